"""Make a tiny model and teach it to answer with one digit, each of the ten as likely."""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from vf_pipeline.testing import make_tiny_model

STEPS = 120


def main(folder: Path) -> None:
    """Write the model into a folder."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make_tiny_model(folder, seed=0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        rows = [encode(tokenizer, 20 * step + row, str((row + step) % 10)) for row in range(10)]
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([ids + [tokenizer.eos_token_id] * (width - len(ids)) for ids, _ in rows])
        labels = torch.full_like(ids, -100)
        for row, (tokens, answer_at) in enumerate(rows):
            labels[row, answer_at : len(tokens)] = ids[row, answer_at : len(tokens)]
        attention = torch.tensor([[1] * len(t) + [0] * (width - len(t)) for t, _ in rows])
        loss = model(input_ids=ids, attention_mask=attention, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)


def encode(tokenizer, number: int, answer: str) -> tuple[list[int], int]:
    """Return the ids of a question with its answer, and where the answer starts."""
    messages = [
        {"role": "system", "content": "Say a digit."},
        {"role": "user", "content": f"Say a digit, number {number}."},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    return prompt + tokenizer(answer)["input_ids"] + [tokenizer.eos_token_id], len(prompt)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
