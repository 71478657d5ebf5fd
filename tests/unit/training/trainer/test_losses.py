import math

import pytest
import torch

from vf_pipeline.training.trainer.losses import clip_loss, cross_entropy


def logs(*ratios: float) -> torch.Tensor:
    return torch.tensor([math.log(r) for r in ratios], dtype=torch.float64)


def test_clip_loss_by_hand() -> None:
    ratios = logs(1.0, 1.5, 0.5, 1.5, 0.5).requires_grad_()
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    got = clip_loss(ratios, torch.zeros(5, dtype=torch.float64), advantages, 0.2, 0.28)
    # min(r A, clip(r) A) per token: 1, 1.28, 0.5, -1.5, -0.8
    assert got.loss.item() == pytest.approx(-(1.0 + 1.28 + 0.5 - 1.5 - 0.8))
    assert got.tokens == 5
    assert got.sums["clip_frac"] == 2
    # k3 is r - log r - 1
    wanted = sum(r - math.log(r) - 1 for r in (1.0, 1.5, 0.5, 1.5, 0.5))
    assert got.sums["kl"] == pytest.approx(wanted)
    assert got.peaks["mismatch/max"] == pytest.approx(math.log(2))
    got.loss.backward()
    # The gradient of -r A with respect to log r is -r A; clipped tokens have none.
    assert ratios.grad is not None
    assert ratios.grad.tolist() == pytest.approx([-1.0, 0.0, -0.5, 1.5, 0.0])


def test_on_policy_gradient_is_reinforce() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantages = torch.tensor([0.5, -0.5, 0.25])
    got = clip_loss(logprobs, logprobs.detach(), advantages, 0.2, 0.2)
    got.loss.backward()
    assert logprobs.grad is not None
    assert torch.equal(logprobs.grad, -advantages)
    assert got.sums["clip_frac"] == 0 and got.sums["kl"] == 0


def test_cross_entropy_is_a_sum() -> None:
    got = cross_entropy(torch.tensor([-1.0, -0.5]))
    assert (got.loss.item(), got.tokens) == (1.5, 2)


def test_no_tokens_is_no_loss() -> None:
    empty = torch.zeros(0)
    assert clip_loss(empty, empty, empty, 0.2, 0.2).loss.item() == 0.0
