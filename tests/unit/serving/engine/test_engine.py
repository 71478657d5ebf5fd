"""The engine against transformers' own forward pass and generate."""

import random
import time
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch

from vf_pipeline.errors import ConfigError
from vf_pipeline.serving.engine.decoder import refuse_unsupported
from vf_pipeline.serving.engine.requests import (
    GenerationRequest,
    Sample,
    SamplingParams,
    WeightUpdate,
)

WAIT_S = 30.0


def ids(seed: int, count: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(3, 300) for _ in range(count))


def run(engine: Any, requests: list[GenerationRequest]) -> list[list[Sample]]:
    for request in requests:
        engine.submit(request)
    return [request.future.result(WAIT_S) for request in requests]


def ask(
    prompt: tuple[int, ...], n: int = 1, seed: int = 0, max_tokens: int = 8, **params: Any
) -> GenerationRequest:
    return GenerationRequest(prompt, SamplingParams(max_tokens, **params), n, seed)


@torch.no_grad()
def plain_logprobs(
    model: Any, prompt: tuple[int, ...], sampled: list[int], temperature: float = 1.0
) -> list[float]:
    row = torch.tensor([[*prompt, *sampled]])
    logits = model(row).logits[0, len(prompt) - 1 : -1].float() / temperature
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(sampled)[:, None])[:, 0].tolist()


def assert_logprobs(model: Any, prompt: tuple[int, ...], sample: Sample, t: float = 1.0) -> None:
    expected = plain_logprobs(model, prompt, sample.token_ids, t)
    assert sample.logprobs == pytest.approx(expected, abs=1e-4)


def test_greedy_equals_generate_for_prompts_of_mixed_lengths(
    make_engine: Any, plain_model: Any
) -> None:
    prompts = [ids(seed, count) for seed, count in enumerate((1, 2, 7, 31, 60, 61, 130))]
    results = run(make_engine(), [ask(p, temperature=0.0, max_tokens=12) for p in prompts])
    for prompt, (sample,) in zip(prompts, results, strict=True):
        row = torch.tensor([prompt])
        expected = plain_model.generate(
            row, attention_mask=torch.ones_like(row), max_new_tokens=12, do_sample=False
        )
        assert sample.token_ids == expected[0, len(prompt) :].tolist()
        assert_logprobs(plain_model, prompt, sample)


def test_long_prompts_go_in_pieces(
    make_engine: Any, plain_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vf_pipeline.serving.engine.decoder._PREFILL_COLUMNS", 16)
    prompts = [ids(1, 40), ids(2, 100), ids(3, 33)]
    for prompt, (sample,) in zip(
        prompts, run(make_engine(), [ask(p) for p in prompts]), strict=True
    ):
        assert_logprobs(plain_model, prompt, sample)


def test_logprobs_follow_temperature_and_an_update_in_place(
    make_engine: Any, plain_model: Any, other_dir: Path
) -> None:
    from transformers import AutoModelForCausalLM

    engine, prompt = make_engine(), ids(4, 20)
    (before,) = run(engine, [ask(prompt, n=4, temperature=0.7)])
    for sample in before:
        assert sample.weight_version == "0"
        assert_logprobs(plain_model, prompt, sample, 0.7)
    update = WeightUpdate(str(other_dir), "1", time.monotonic() + WAIT_S)
    engine.submit(update)
    assert update.future.result(WAIT_S) == "1"
    (after,) = run(engine, [ask(prompt, n=4, temperature=0.7)])
    other = AutoModelForCausalLM.from_pretrained(other_dir, dtype=torch.float32).eval()
    for sample in after:
        assert sample.weight_version == "1"
        assert_logprobs(other, prompt, sample, 0.7)


def test_samples_do_not_depend_on_their_neighbours(make_engine: Any) -> None:
    engine = make_engine()
    (alone,) = run(engine, [ask(ids(5, 24), n=3, seed=11, max_tokens=20)])
    crowd = [ask(ids(50 + i, 5 + 3 * i), n=2, seed=i, max_tokens=20) for i in range(8)]
    wanted = ask(ids(5, 24), n=3, seed=11, max_tokens=20)
    *_, together = run(engine, [*crowd, wanted])
    assert [s.token_ids for s in together] == [s.token_ids for s in alone]
    assert len({tuple(s.token_ids) for s in alone}) == 3


def test_first_tokens_follow_the_models_distribution(make_engine: Any, plain_model: Any) -> None:
    prompt, draws, temperature = ids(6, 10), 4000, 0.25
    (samples,) = run(
        make_engine(max_batch=1000, kv_budget_mb=256),
        [ask(prompt, n=draws, seed=3, max_tokens=1, temperature=temperature)],
    )
    with torch.no_grad():
        logits = plain_model(torch.tensor([prompt])).logits[0, -1].float()
    expected = (torch.softmax(logits / temperature, -1) * draws).tolist()
    seen = Counter(s.token_ids[0] for s in samples)
    # Tokens that are expected fewer than five times are pooled, as the test needs.
    large = [t for t, e in enumerate(expected) if e >= 5]
    pooled_expected = draws - sum(expected[t] for t in large)
    pooled_seen = draws - sum(seen[t] for t in large)
    statistic = sum((seen[t] - expected[t]) ** 2 / expected[t] for t in large)
    statistic += (pooled_seen - pooled_expected) ** 2 / pooled_expected
    degrees = len(large)
    # The 99.99 % quantile of chi-square, by Wilson and Hilferty's approximation.
    bound = degrees * (1 - 2 / (9 * degrees) + 3.72 * (2 / (9 * degrees)) ** 0.5) ** 3
    assert degrees > 20
    assert statistic < bound


def test_a_shared_prefix_is_computed_once_and_changes_no_logprob(
    make_engine: Any, plain_model: Any
) -> None:
    engine, prefix = make_engine(), ids(7, 40)
    prompts = [(*prefix, *ids(100 + i, 2 + i)) for i in range(6)] + [ids(8, 12)]
    results = run(engine, [ask(p, n=2) for p in prompts])
    reused = engine.counters.prompt_tokens_reused
    assert reused >= 40
    results += run(engine, [ask((*prefix, 9, 9, 9))])
    assert engine.counters.prompt_tokens_reused == reused + 40
    for prompt, samples in zip([*prompts, (*prefix, 9, 9, 9)], results, strict=True):
        for sample in samples:
            assert_logprobs(plain_model, prompt, sample)


def test_updated_weights_forget_the_prefixes(make_engine: Any, other_dir: Path) -> None:
    from transformers import AutoModelForCausalLM

    engine, prefix = make_engine(), ids(9, 30)
    run(engine, [ask((*prefix, i)) for i in range(3, 6)])
    update = WeightUpdate(str(other_dir), "1", time.monotonic() + WAIT_S)
    engine.submit(update)
    update.future.result(WAIT_S)
    other = AutoModelForCausalLM.from_pretrained(other_dir, dtype=torch.float32).eval()
    ((sample,),) = run(engine, [ask((*prefix, 8))])
    assert_logprobs(other, (*prefix, 8), sample)


def test_more_samples_than_slots_all_come(make_engine: Any, plain_model: Any) -> None:
    engine, prompt = make_engine(max_batch=3), ids(10, 9)
    requests = [ask(prompt, n=8, seed=1, max_tokens=5), ask(ids(11, 9), n=2, max_tokens=9)]
    results = run(engine, requests)
    assert [len(samples) for samples in results] == [8, 2]
    for request, samples in zip(requests, results, strict=True):
        for sample in samples:
            assert_logprobs(plain_model, request.prompt_ids, sample)


def test_rows_of_many_lengths_come_and_go(make_engine: Any, plain_model: Any) -> None:
    engine = make_engine(max_batch=5, kv_budget_mb=16)
    rng = random.Random(0)
    requests = [
        ask(ids(i, rng.randrange(1, 120)), n=rng.randrange(1, 4), max_tokens=rng.randrange(1, 40))
        for i in range(24)
    ]
    for request, samples in zip(requests, run(engine, requests), strict=True):
        for sample in samples:
            assert_logprobs(plain_model, request.prompt_ids, sample)


def test_stop_strings_tokens_and_lengths_end_a_sample(make_engine: Any, tokenizer: Any) -> None:
    engine, prompt = make_engine(), ids(12, 6)
    ((whole,),) = run(engine, [ask(prompt, seed=2, max_tokens=30, ignore_eos=True)])
    assert (whole.finish_reason, len(whole.token_ids)) == ("length", 30)
    text = tokenizer.decode(whole.token_ids)
    stop = text[8:11]
    ((cut,),) = run(engine, [ask(prompt, seed=2, max_tokens=30, ignore_eos=True, stop=(stop,))])
    assert cut.finish_reason == "stop"
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
    assert stop in tokenizer.decode(cut.token_ids)
    assert stop not in tokenizer.decode(cut.token_ids[:-1])
    token = whole.token_ids[4]
    stopped = ask(prompt, seed=2, max_tokens=30, stop_token_ids=frozenset({token}))
    ((sample,),) = run(engine, [stopped])
    assert sample.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1]


def test_top_logprobs_are_the_likeliest(make_engine: Any, plain_model: Any) -> None:
    prompt = ids(13, 8)
    ((sample,),) = run(make_engine(), [ask(prompt, max_tokens=1, top_logprobs=3)])
    with torch.no_grad():
        logprobs = torch.log_softmax(plain_model(torch.tensor([prompt])).logits[0, -1], -1)
    best = torch.topk(logprobs, 3)
    assert [i for i, _ in sample.top[0]] == best.indices.tolist()
    assert [v for _, v in sample.top[0]] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_deterministic_mode_gives_the_same_bits_whatever_else_waits(make_engine: Any) -> None:
    engine = make_engine(deterministic=True)
    (alone,) = run(engine, [ask(ids(14, 20), n=4, seed=5, max_tokens=16)])
    crowd = [ask(ids(i, 30), n=3, seed=i) for i in range(4)]
    wanted = ask(ids(14, 20), n=4, seed=5, max_tokens=16)
    *_, again = run(engine, [*crowd, wanted])
    assert [(s.token_ids, s.logprobs) for s in again] == [(s.token_ids, s.logprobs) for s in alone]
    assert engine.counters.prompt_tokens_reused == 0


def test_a_cancelled_request_frees_its_slots(make_engine: Any) -> None:
    engine = make_engine(max_batch=2)
    endless = ask(ids(15, 4), n=2, max_tokens=250, ignore_eos=True)
    engine.submit(endless)
    started: Future[None] = Future()
    endless.on_token = lambda _: started.done() or started.set_result(None)
    started.result(WAIT_S)
    assert endless.future.cancel()
    run(engine, [ask(ids(16, 4))])
    assert engine.counters.sampled_tokens < 500


def test_an_update_waits_for_running_sequences_but_not_for_ever(
    make_engine: Any, other_dir: Path
) -> None:
    engine = make_engine()
    seen: list[str] = []
    first = ask(ids(17, 4), n=2, max_tokens=60, ignore_eos=True)
    first.on_token = lambda event: seen.append(event.weight_version)
    engine.submit(first)
    while not seen:
        time.sleep(0.001)
    late = WeightUpdate(str(other_dir), "late", time.monotonic() - 1.0)
    engine.submit(late)
    with pytest.raises(TimeoutError, match="still run"):
        late.future.result(WAIT_S)
    update = WeightUpdate(str(other_dir), "1", time.monotonic() + WAIT_S)
    engine.submit(update)
    ((behind,),) = run(engine, [ask(ids(18, 4))])
    assert update.future.result(WAIT_S) == "1"
    assert {s.weight_version for s in first.future.result(WAIT_S)} == {"0"}
    assert behind.weight_version == "1"


def test_weights_that_do_not_fit_change_nothing(
    make_engine: Any, tiny_dir: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    engine, prompt = make_engine(), ids(19, 10)
    (before,) = run(engine, [ask(prompt, seed=1)])
    good = load_file(tiny_dir / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    bad = {
        "shape": {**good, name: torch.zeros(3, 3)},
        "missing": {k: v for k, v in good.items() if k != name},
        "unknown": {**good, "model.more": torch.zeros(2)},
        "nan": {**good, name: good[name] * float("nan")},
    }
    first = "model.embed_tokens.weight"
    for kind, tensors in bad.items():
        folder = tmp_path / kind
        folder.mkdir()
        save_file({**tensors, first: tensors[first] + 1.0}, folder / "model.safetensors")
        update = WeightUpdate(str(folder), kind, time.monotonic() + WAIT_S)
        engine.submit(update)
        with pytest.raises(ConfigError, match="weight"):
            update.future.result(WAIT_S)
    assert engine.weight_version == "0"
    (after,) = run(engine, [ask(prompt, seed=1)])
    assert after[0].token_ids == before[0].token_ids
    assert after[0].logprobs == pytest.approx(before[0].logprobs, abs=1e-5)


def test_models_that_are_no_full_attention_decoders_are_refused_by_name() -> None:
    from transformers import Gemma3TextConfig, MambaConfig, MistralConfig, T5Config

    cases = [
        (Gemma3TextConfig(sliding_window=64), "gemma3_text"),
        (MambaConfig(), "mamba"),
        (MistralConfig(sliding_window=64), "mistral"),
        (T5Config(), "t5"),
    ]
    for config, name in cases:
        with pytest.raises(ConfigError, match=name):
            refuse_unsupported(config, 512)
    refuse_unsupported(MistralConfig(sliding_window=4096), 512)


def test_a_context_that_the_model_or_the_budget_cannot_hold_is_refused(make_engine: Any) -> None:
    with pytest.raises(ConfigError, match="512 positions"):
        make_engine(max_context=513)
    with pytest.raises(ConfigError, match="kv_budget_mb 0"):
        make_engine(kv_budget_mb=0)


def test_a_failing_step_fails_its_requests_and_the_engine_goes_on(
    make_engine: Any, plain_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vf_pipeline.errors import ProcessError

    engine = make_engine()
    with monkeypatch.context() as patch:
        patch.setattr(engine._decoder, "step", lambda *_: 1 / 0)
        with pytest.raises(ProcessError, match="ZeroDivisionError"):
            run(engine, [ask(ids(20, 5), ignore_eos=True)])
    ((sample,),) = run(engine, [ask(ids(20, 5))])
    assert_logprobs(plain_model, ids(20, 5), sample)


def test_requests_fail_once_the_engine_has_ended(make_engine: Any) -> None:
    from vf_pipeline.errors import ProcessError

    engine = make_engine()
    engine.stop()
    request = ask(ids(21, 5))
    engine.submit(request)
    with pytest.raises(ProcessError, match="ended"):
        request.future.result(1.0)


def test_a_request_that_can_never_start_fails_at_once(make_engine: Any) -> None:
    engine = make_engine()
    too_long = ask(ids(1, 20), max_tokens=1_000_000)
    engine.submit(too_long)
    with pytest.raises(ConfigError, match="1000020 tokens do not fit"):
        too_long.future.result(WAIT_S)
    assert run(engine, [ask(ids(2, 5), max_tokens=2)]), "what comes behind it is served"
