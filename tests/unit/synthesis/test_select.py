"""What becomes an SFT row, and what falls at which step."""

import random

import pytest

from vf_pipeline.configs import SynthSettings
from vf_pipeline.errors import VfError
from vf_pipeline.synthesis.card import render_card
from vf_pipeline.synthesis.select import Provenance, Selection, completion_text, select_for_sft
from vf_pipeline.types import Failure, Messages, Rollout, Score

SETTINGS = SynthSettings(min_rows=1, keep_per_example=2, min_reward=0.5)


def say(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def pair(
    example: int,
    index: int,
    completion: Messages,
    reward: float | None,
    stop: str = "stop",
    failed: bool = False,
):
    error = Failure("provider", "ProviderError", "down") if failed else None
    prompt = [{"role": "user", "content": f"shots and question {example}"}]
    rollout = Rollout(
        example,
        index,
        f"d{example}",
        "t",
        prompt,
        completion,
        "g",
        stop,
        error=error,  # type: ignore[arg-type]
    )
    return rollout, Score(rollout.key, reward)


PAIRS = [
    pair(0, 0, say("42"), 0.5),
    pair(0, 1, say(" 42\n"), 0.5),
    pair(0, 2, say("forty-two"), 1.0),
    pair(0, 3, say("6 x 7"), 0.5),
    pair(1, 0, say("cut"), 1.0, stop="length"),
    pair(1, 1, say("wrong"), 0.0),
    pair(1, 2, say("lost"), 1.0, failed=True),
    pair(1, 3, say("unscored"), None),
    pair(2, 0, [*say("a"), {"role": "tool", "content": "b"}], 1.0),
    pair(2, 1, "plain text", 1.0),
]


def test_select_drops_and_counts_step_by_step() -> None:
    found = select_for_sft(PAIRS, SETTINGS)
    assert found.funnel == {
        "sampled": 10,
        "scored": 8,
        "not_truncated": 7,
        "accepted": 6,
        "single_text": 5,
        "distinct": 4,
        "kept": 3,
    }
    assert [row.completion for row in found.rows] == ["forty-two", "42", "plain text"]
    assert [row.rollout_key for row in found.rows] == ["d0:0:2", "d0:0:0", "d2:2:1"]


def test_select_does_not_depend_on_the_order() -> None:
    shuffled = PAIRS.copy()
    random.Random(5).shuffle(shuffled)
    assert select_for_sft(shuffled, SETTINGS) == select_for_sft(PAIRS, SETTINGS)


def test_rows_carry_the_zero_shot_prompt_and_where_they_come_from() -> None:
    zero = [{"role": "user", "content": "question 0"}]
    made_by = Provenance("0123", "number-sense", "1.2")
    row = select_for_sft(PAIRS, SETTINGS, prompts={"d0": zero}, provenance=made_by).rows[0]
    assert row.prompt == zero
    assert (row.example_digest, row.task, row.reward) == ("d0", "t", 1.0)
    assert (row.model, row.env, row.env_version) == ("0123", "number-sense", "1.2")


def test_too_few_rows_say_where_the_others_went_and_what_to_do() -> None:
    wrong = [pair(i, 0, say("no"), 0.0) for i in range(9)] + [pair(9, 0, say("yes"), 1.0)]
    with pytest.raises(VfError, match="only 1 of 10 samples were accepted") as caught:
        select_for_sft(wrong, SETTINGS.model_copy(update={"min_rows": 4}))
    assert "1 accepted" in caught.value.message
    assert "synth.shots" in caught.value.hint
    with pytest.raises(VfError, match="only 0 of 0"):
        select_for_sft([], SETTINGS)
    cut = [pair(i, 0, say("…"), 1.0, stop="length") for i in range(3)]
    with pytest.raises(VfError, match=r"synth\.max_tokens"):
        select_for_sft(cut, SETTINGS)


def test_completion_text_wants_one_plain_answer() -> None:
    assert completion_text(pair(0, 0, say("x"), 1.0)[0]) == "x"
    call = [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]
    for completion in (call, say("  "), [], "", [{"role": "assistant", "content": None}]):
        assert completion_text(pair(0, 0, completion, 1.0)[0]) is None
    assert completion_text(pair(0, 0, say("half a pair \ud83d"), 1.0)[0]) is None


def test_card_shows_the_funnel_and_keeps_its_tables() -> None:
    selection = Selection([], {"sampled": 640, "kept": 150})
    card = render_card(selection, Provenance("m", "a|b\n`c`", ""), {"seed": 3}, shots=2)
    assert card.startswith("---\nconfigs:")
    assert "| sampled | rollouts played | 640 |" in card
    assert "a\\|b 'c'" in card
    assert '"seed": 3' in card
