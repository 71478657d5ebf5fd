import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from vf_pipeline.errors import TrainingError
from vf_pipeline.training.trainer.batching import pack
from vf_pipeline.training.trainer.logprobs import check_model, completion_logprobs
from vf_pipeline.types import TrainSample

TEMPERATURE = 0.7


def mixed_rows() -> list[TrainSample]:
    generator = torch.Generator().manual_seed(3)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(5, 300, (count,), generator=generator).tolist())

    prompts = [ids(9), ids(3), ids(14)]
    rows = []
    for prompt, lengths in zip(prompts, [(4, 1, 7), (2, 2), (5,)], strict=True):
        for length in lengths:
            rows.append(TrainSample(str(len(rows)), prompt, ids(length), skip=length // 4))
    return rows


def oracle(model: Any, row: TrainSample) -> tuple[torch.Tensor, torch.Tensor]:
    """One plain forward of the whole sequence, no cache, no padding, no sharing."""
    ids = torch.tensor([row.prompt_ids + row.completion_ids])
    logits = model(input_ids=ids).logits[0].double() / TEMPERATURE
    logps = torch.log_softmax(logits, -1)
    start = len(row.prompt_ids) + row.skip
    picked = [logps[place - 1, ids[0, place]] for place in range(start, ids.shape[1])]
    entropy = [-(logps[p - 1].exp() * logps[p - 1]).sum() for p in range(start, ids.shape[1])]
    return torch.stack(picked), torch.stack(entropy).detach()


def gradient(model: Any) -> torch.Tensor:
    return torch.cat([p.grad.flatten().double() for p in model.parameters()])


def with_shared(rows: list[TrainSample], shared: tuple[int, ...]) -> list[TrainSample]:
    return [replace(row, prompt_ids=shared + row.prompt_ids) for row in rows]


@pytest.mark.parametrize("shared", [0, 7, 8, 20])
@pytest.mark.parametrize(("budget", "chunk"), [(10_000, 1024), (10_000, 3), (40, 1024)])
def test_same_as_a_plain_forward(model: Any, budget: int, chunk: int, shared: int) -> None:
    plain = copy.deepcopy(model)
    rows = with_shared(mixed_rows(), tuple(range(20, 20 + shared)))
    weights = torch.linspace(-1, 1, sum(row.loss_tokens for row in rows)).double()
    place = {}
    at = 0
    for row in rows:
        place[row.group] = slice(at, at + row.loss_tokens)
        at += row.loss_tokens
    wanted = torch.zeros(at).double()
    entropies = torch.zeros(at).double()
    for row in rows:
        logps, entropy = oracle(plain, row)
        (logps * weights[place[row.group]]).sum().backward()
        wanted[place[row.group]] = logps.detach()
        entropies[place[row.group]] = entropy
    got = torch.zeros(at).double()
    for batch in pack(rows, budget):
        logps, entropy = completion_logprobs(model, batch, TEMPERATURE, chunk=chunk)
        order = torch.cat([torch.arange(at)[place[row.group]] for row in batch.samples])
        (logps * weights[order]).sum().backward()
        got[order] = logps.detach().double()
        assert torch.allclose(entropy.double(), entropies[order], atol=1e-4)
        assert not entropy.requires_grad
    assert (got - wanted).abs().max() < 1e-5
    assert wanted.std() > 0.1, "logits that do not differ prove nothing"
    ours, theirs = gradient(model), gradient(plain)
    assert (ours - theirs).norm() / theirs.norm() < 1e-4


def test_check_model_accepts_plain_logits(model: Any) -> None:
    check_model(model)


def test_check_model_refuses_other_logits(model: Any) -> None:
    class Scaled(type(model)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = super().forward(*args, **kwargs)
            out.logits = out.logits * 2
            return out

    model.__class__ = Scaled
    with pytest.raises(TrainingError, match="changes its logits"):
        check_model(model)
