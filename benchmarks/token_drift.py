"""How often sampled ids change when their text is encoded again, with the quickstart's model.

``python benchmarks/token_drift.py``: 48 completions of 30 tokens, temperature 1; about a minute.
"""

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import vf_pipeline as vf

QUESTIONS = (
    "Tell me a short story.",
    "What is 17 times 23?",
    "Write a line of Python that sorts a list.",
    "Name three rivers of Europe and their lengths.",
    "Explain rain to a child.",
    "Give me a recipe with numbers.",
)
SAMPLES = 8
TOKENS = 30


def main() -> None:
    """Sample, decode, encode, and count."""
    folder = vf.resolve_model("smollm2-135m").uri
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    end = tokenizer.eos_token_id
    torch.manual_seed(0)
    total = changed = 0
    for question in QUESTIONS:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        ids = torch.tensor([prompt] * SAMPLES)
        sampled = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,  # generate() has 50 as its default
            max_new_tokens=TOKENS,
            pad_token_id=end,
        )
        for row in sampled[:, len(prompt) :].tolist():
            kept = row[: row.index(end)] if end in row else row
            again = tokenizer.encode(tokenizer.decode(kept), add_special_tokens=False)
            total, changed = total + 1, changed + (again != kept)
    print(f"{changed} of {total} completions have other ids after decoding and encoding")


if __name__ == "__main__":
    main()
