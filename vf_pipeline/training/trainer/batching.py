"""How one optimizer step is cut into micro-batches by a token budget. No torch.

Samples that share a prompt (the completions of a group; the rows of an SFT batch, behind their
common prefix) share its forward pass.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vf_pipeline.types import TrainSample


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Samples of one forward pass. ``prompt_of[i]`` is the position of sample i's prompt."""

    prompts: tuple[tuple[int, ...], ...]
    samples: tuple[TrainSample, ...]
    prompt_of: tuple[int, ...]

    @property
    def padded_tokens(self) -> int:
        """Tokens of the forward pass, padding included."""
        prompts = [len(prompt) for prompt in self.prompts]
        completions = [len(sample.completion_ids) for sample in self.samples]
        return len(prompts) * max(prompts) + len(completions) * max(completions)


def pack(samples: Sequence[TrainSample], budget: int) -> list[MicroBatch]:
    """Return the samples in micro-batches of at most ``budget`` padded tokens each.

    Samples are ordered by prompt and length, so that prompts are shared and padding is small. A
    sample that exceeds the budget alone gets a micro-batch alone; a prompt whose samples do not
    fit together is forwarded again for each part.
    """
    # The ids stand in the key so that equal prompts become neighbours. Lengths rise from prompt to
    # prompt, but completions start short again with each: hence the maxima below.
    ordered = sorted(
        samples,
        key=lambda sample: (len(sample.prompt_ids), sample.prompt_ids, len(sample.completion_ids)),
    )
    batches: list[MicroBatch] = []
    current: list[TrainSample] = []
    prompts: set[tuple[int, ...]] = set()
    widest = longest = 0
    for sample in ordered:
        many = len(prompts | {sample.prompt_ids})
        wide = max(widest, len(sample.prompt_ids))
        long = max(longest, len(sample.completion_ids))
        # What the pass would cost with this sample in it: every row is padded to the longest. The
        # prefix that all prompts share is not subtracted, so this is an upper bound.
        if current and many * wide + (len(current) + 1) * long > budget:
            batches.append(_micro_batch(current))
            current, prompts = [], set()
            wide, long = len(sample.prompt_ids), len(sample.completion_ids)
        current.append(sample)
        prompts.add(sample.prompt_ids)
        widest, longest = wide, long
    if current:
        batches.append(_micro_batch(current))
    return batches


def _micro_batch(samples: list[TrainSample]) -> MicroBatch:
    # A dict keeps the order in which keys came, so its keys are the prompts at the very places that
    # it gave out.
    places: dict[tuple[int, ...], int] = {}
    prompt_of = [places.setdefault(sample.prompt_ids, len(places)) for sample in samples]
    return MicroBatch(tuple(places), tuple(samples), tuple(prompt_of))
