"""The whole of GRPO, bare: sample groups, score them, push up what scored above its group.

    python examples/grpo_loop.py

A tiny model with random weights learns to write what it is asked for: digits, letters or
punctuation. The environment and its rubric are of the kind that ``vf-eval`` and the chain use; all
else is here, to be read from top to bottom. Deliberately lacks what ``vf_pipeline.training`` adds:
an engine beside the trainer, a journal, checkpoints, micro-batches, staleness.

Shapes: G completions of one prompt, T tokens of a sequence, C of them the completion's, V tokens in
the vocabulary.
"""

import asyncio
import string
import tempfile
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

import vf_pipeline as vf

SEED = 0
STEPS = 50
GROUP_SIZE = 32  # completions of one prompt
MAX_TOKENS = 4
PASSES = 2  # optimizer steps on the same samples: from the second on, the clip matters
LR = 3e-3
CLIP_LOW, CLIP_HIGH = 0.2, 0.28  # DAPO, arXiv 2503.14476: what is rare may grow faster

KINDS = {
    "digits": string.digits,
    "small letters": string.ascii_lowercase,
    "capital letters": string.ascii_uppercase,
    "punctuation": string.punctuation,
}


def share_of_right_characters(completion: vf.Messages, answer: str) -> float:
    """Return which part of the text is of the kind that was asked for."""
    text = completion[-1]["content"]
    return sum(character in KINDS[answer] for character in text) / max(len(text), 1)


def load_environment() -> vf.SingleTurnEnv:
    """Return the task; ``answer`` names the kind that is right."""
    rows = [{"question": f"Write {kind}.", "answer": kind, "task": kind} for kind in KINDS]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([share_of_right_characters]))


@dataclass
class Group:
    """The completions of one prompt, with what the policy that sampled them thought of them."""

    ids_GT: Tensor
    prompt_length: int
    sampled_GC: Tensor  # False behind the end of a turn: nobody chose those tokens
    behaviour_GC: Tensor  # log-probabilities at the time of sampling
    rewards_G: Tensor


@torch.no_grad()
def sample(model, prompt_ids: list[int], end: int) -> tuple[Tensor, Tensor]:
    """Return sequences that start with the prompt, and which completion tokens were sampled."""
    ids_GT = torch.tensor([prompt_ids] * GROUP_SIZE)
    ended_G = torch.zeros(GROUP_SIZE, dtype=torch.bool)
    sampled = []
    for _ in range(MAX_TOKENS):
        # Neither top-k nor top-p: the log-probabilities below would be another policy's.
        next_G1 = torch.multinomial(model(ids_GT).logits[:, -1].softmax(-1), 1)
        ids_GT = torch.cat([ids_GT, next_G1], dim=1)
        sampled.append(~ended_G)
        ended_G = ended_G | (next_G1[:, 0] == end)  # the end itself was sampled, and is learned
    return ids_GT, torch.stack(sampled, dim=1)


def completion_logprobs(model, ids_GT: Tensor, prompt_length: int) -> Tensor:
    """Return the log-probability of each completion token, shape G × C."""
    logits_GCV = model(ids_GT[:, :-1]).logits[:, prompt_length - 1 :]  # position t is about t + 1
    ids_GC1 = ids_GT[:, prompt_length:, None]
    return log_softmax(logits_GCV, dim=-1).gather(-1, ids_GC1)[..., 0]


async def score(env: vf.SingleTurnEnv, example: vf.Example, texts: list[str]) -> list[float]:
    """Return the rubric's reward of each answer to an example."""
    rewards = []
    for text in texts:
        completion = [{"role": "assistant", "content": text}]
        state = {"prompt": example.prompt, "completion": completion, "answer": example.answer}
        outcome = await env.rubric.score(state)
        if outcome.reward is None:  # an error is not a wrong answer; here nothing should fail
            raise RuntimeError(f"not scored: {outcome.outcomes}")
        rewards.append(outcome.reward)
    return rewards


def play(model, tokenizer, env: vf.SingleTurnEnv, example: vf.Example) -> Group:
    """Return the answers to one example, scored."""
    form = {"add_generation_prompt": True, "return_dict": False}
    prompt_ids = tokenizer.apply_chat_template(example.prompt, **form)
    ids_GT, sampled_GC = sample(model, prompt_ids, tokenizer.eos_token_id)
    # The text is for the rubric alone and never encoded again: we learn from the sampled ids.
    texts = [
        tokenizer.decode(ids_C[sampled_C], skip_special_tokens=True)
        for ids_C, sampled_C in zip(ids_GT[:, len(prompt_ids) :], sampled_GC, strict=True)
    ]
    with torch.no_grad():
        behaviour_GC = completion_logprobs(model, ids_GT, len(prompt_ids))
    rewards_G = torch.tensor(asyncio.run(score(env, example, texts)))
    return Group(ids_GT, len(prompt_ids), sampled_GC, behaviour_GC, rewards_G)


def policy_loss(model, group: Group) -> Tensor:
    """Return the clipped loss -min(ratio A, clip(ratio) A), summed over the sampled tokens."""
    # Dr. GRPO, arXiv 2503.20783: the group's mean is the baseline, its std divides nothing.
    advantages_G1 = (group.rewards_G - group.rewards_G.mean())[:, None]
    logprobs_GC = completion_logprobs(model, group.ids_GT, group.prompt_length)
    ratio_GC = (logprobs_GC - group.behaviour_GC).exp()
    clipped_GC = ratio_GC.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH)
    loss_GC = -torch.minimum(ratio_GC * advantages_G1, clipped_GC * advantages_G1)
    return loss_GC[group.sampled_GC].sum()


def train(model, tokenizer, env: vf.SingleTurnEnv) -> None:
    """Train the model in place; print the mean reward as it rises."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    # The closer the goal, the smaller the gradients; Adam would blow their noise up again.
    decay = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=STEPS)
    for step in range(STEPS):
        groups = [play(model, tokenizer, env, example) for example in env.examples("train")]
        tokens = sum(int(group.sampled_GC.sum()) for group in groups)
        for _ in range(PASSES):
            optimizer.zero_grad()
            # One mean over all tokens of the step: a short answer's token weighs what others do.
            (sum(policy_loss(model, group) for group in groups) / tokens).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        decay.step()
        reward = torch.cat([group.rewards_G for group in groups]).mean()
        if step % 5 == 0 or step == STEPS - 1:
            print(f"step {step:2d}  reward {reward:.3f}  {'#' * round(40 * float(reward))}")


def main() -> None:
    """Make a model that knows nothing, and train it."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        vf.make_tiny_model(folder, seed=SEED)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder)
    train(model, tokenizer, load_environment())


if __name__ == "__main__":
    main()
