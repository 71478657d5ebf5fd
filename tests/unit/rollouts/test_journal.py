"""The journal: what survives, what is refused, and what is played again."""

import json
import os
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from vf_pipeline.errors import JournalError, StorageError
from vf_pipeline.rollouts import journal as journal_module
from vf_pipeline.rollouts.journal import Journal, JournalCounts, count_journal, read_journal
from vf_pipeline.types import Failure, Rollout, Score

SETTINGS = {"model": "m1", "sampling": {"temperature": 0.0}}
FAILURE = Failure("provider", "ProviderError", "gone")


def rollout(example: int, index: int = 0, text: str = "hi", failed: bool = False) -> Rollout:
    completion = [{"role": "assistant", "content": text}]
    error = FAILURE if failed else None
    stop = "error" if failed else "stop"
    return Rollout(example, index, f"d{example}", "t", "q", completion, "a", stop, error=error)  # type: ignore[arg-type]


def write(path: Path, *plays: Rollout, reward: float | None = 1.0) -> None:
    with Journal.open(path, SETTINGS) as journal:
        for play in plays:
            journal.append(play, Score(play.key, None if play.error else reward))


def test_a_journal_gives_back_what_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rollouts.jsonl"
    write(path, rollout(1, 1), rollout(0), rollout(1, 0, "cut \ud83d"))
    pairs = read_journal(path)
    assert [pair[0] for pair in pairs] == [rollout(0), rollout(1, 0, "cut \ud83d"), rollout(1, 1)]
    assert [pair[1].reward for pair in pairs] == [1.0, 1.0, 1.0]
    assert count_journal(path) == JournalCounts(done=3)
    assert path.read_bytes().isascii()


def test_every_line_has_its_checksum_and_its_key(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, rollout(7))
    lines = path.read_bytes().splitlines()
    for line, key in zip(lines, [b"header", b"d7:7:0", b"d7:7:0"], strict=True):
        crc, _, body = line.partition(b" ")
        assert crc == b"%08x" % zlib.crc32(body)
        assert body.startswith(key + b" {")
    assert json.loads(lines[0].split(b" ", 2)[2])["settings"] == SETTINGS


def test_later_records_win_and_no_play_is_twice(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, rollout(0, text="old"))
    with Journal.open(path, SETTINGS) as journal:
        journal.append_score(Score(rollout(0).key, 0.25))
    assert [(pair[0].completion, pair[1].reward) for pair in read_journal(path)] == [
        ([{"role": "assistant", "content": "old"}], 0.25)
    ]
    write(path, rollout(0, text="new"), reward=0.5)
    ((kept, score),) = read_journal(path)
    assert kept.completion == [{"role": "assistant", "content": "new"}]
    assert score.reward == 0.5


def test_a_new_rollout_is_not_what_the_old_score_was_about(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, rollout(0))
    with Journal.open(path, SETTINGS) as journal:
        assert journal.done() == {"d0:0:0"}
        journal.append_rollout(rollout(0, text="again"))
        assert journal.done() == set()
    assert read_journal(path) == []
    assert count_journal(path) == JournalCounts(unscored=1)


def test_failed_plays_are_played_again_three_times(tmp_path: Path) -> None:
    path, key = tmp_path / "j", rollout(0).key
    for attempt in (1, 2, 3):
        write(path, rollout(0, failed=True))
        with Journal.open(path, SETTINGS) as journal:
            assert journal.done() == set()
            assert journal.exhausted() == ({key} if attempt == 3 else set())
    assert count_journal(path) == JournalCounts(failed=1)
    assert len(read_journal(path)) == 1
    write(path, rollout(0))
    with Journal.open(path, SETTINGS) as journal:
        assert (journal.done(), journal.exhausted()) == ({key}, set())


def test_a_play_without_a_reward_is_played_again_three_times(tmp_path: Path) -> None:
    path, key = tmp_path / "j", rollout(0).key
    for attempt in (1, 2, 3):
        with Journal.open(path, SETTINGS) as journal:
            journal.append(rollout(0), Score(key, None, outcomes={"judge": "it is down"}))
        with Journal.open(path, SETTINGS) as journal:
            assert journal.done() == set()
            assert journal.exhausted() == ({key} if attempt == 3 else set())
    with Journal.open(path, SETTINGS) as journal:
        journal.append(rollout(0), Score(key, 0.0))
    with Journal.open(path, SETTINGS) as journal:
        assert (journal.done(), journal.exhausted()) == ({key}, set())


def test_a_tail_torn_at_any_byte_is_repaired(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, rollout(0))
    whole = len(path.read_bytes())
    write(path, rollout(1))
    content = path.read_bytes()
    first_line = content.index(b"\n", whole) + 1
    for end in range(whole, len(content)):
        path.write_bytes(content[:end])
        assert [pair[0].example_id for pair in read_journal(path)] == [0]
        with Journal.open(path, SETTINGS) as journal:
            assert journal.done() == {"d0:0:0"}
            assert path.stat().st_size == (first_line if end >= first_line else whole)
            journal.append(rollout(1), Score(rollout(1).key, 1.0))
        assert [pair[0].example_id for pair in read_journal(path)] == [0, 1]


def test_a_header_torn_at_any_byte_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path)
    header = path.read_bytes()
    for end in range(len(header)):
        path.write_bytes(header[:end])
        write(path, rollout(0))
        assert path.read_bytes().startswith(header)
        assert len(read_journal(path)) == 1


@pytest.mark.parametrize("tail", [b"\0" * 700, b"garbage\n", b"x" * 100 + b"\n\n\n"])
def test_rubbish_at_the_end_is_cut_off(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "j"
    write(path, rollout(0))
    content = path.read_bytes()
    path.write_bytes(content + tail)
    write(path, rollout(1))
    assert path.read_bytes().startswith(content)
    assert tail not in path.read_bytes()
    assert len(read_journal(path)) == 2


def test_a_damaged_line_costs_only_its_own_play(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, rollout(0), rollout(1), rollout(2))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"hi", b"ho")
    path.write_bytes(b"".join(lines))
    assert [pair[0].example_id for pair in read_journal(path)] == [0, 2]
    with Journal.open(path, SETTINGS) as journal:
        assert journal.done() == {"d0:0:0", "d2:2:0"}
    assert path.read_bytes() == b"".join(lines)


def test_changed_settings_are_refused_and_named(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, rollout(0))
    changed = {"model": "m1", "sampling": {"temperature": 1.0}, "seed": 3}
    with pytest.raises(JournalError) as caught:
        Journal.open(path, changed)
    text = str(caught.value)
    assert "sampling.temperature: 0.0 → 1.0" in text
    assert "seed: (absent) → 3" in text
    assert "model" not in text.split("other settings")[1]
    assert "--fresh" in text
    with Journal.open(path, changed, fresh=True) as journal:
        assert journal.done() == set()
    assert read_journal(path) == []


def test_equal_settings_in_other_clothes_are_equal(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal.open(path, {"a": (1, 2), "b": {"c": 1, "d": Path("x")}}):
        pass
    with Journal.open(path, {"b": {"d": "x", "c": 1}, "a": [1, 2]}):
        pass


@pytest.mark.parametrize("start", [b"hello\n", b"\0" * 64, b'{"id": 1}\n{"id": 2}\n'])
def test_what_is_no_journal_is_left_alone(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "j"
    path.write_bytes(start)
    for opening in (lambda: Journal.open(path, SETTINGS), lambda: read_journal(path)):
        with pytest.raises(JournalError, match="head is damaged"):
            opening()
    assert path.read_bytes() == start


def test_another_schema_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    write(path)
    monkeypatch.setattr(journal_module, "SCHEMA", 2)
    with pytest.raises(JournalError, match="schema 1"):
        Journal.open(path, SETTINGS)


def test_two_writers_are_one_too_many(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal.open(path, SETTINGS) as journal:
        journal.append(rollout(0), Score(rollout(0).key, 1.0))
        with pytest.raises(JournalError, match="is being written by another process"):
            Journal.open(path, SETTINGS, fresh=True)
        assert len(read_journal(path)) == 1, "reading needs no lock"
    write(path, rollout(1))
    assert len(read_journal(path)) == 2


def test_missing_files(tmp_path: Path) -> None:
    assert count_journal(tmp_path / "j") == JournalCounts()
    with pytest.raises(StorageError, match="does not exist"):
        read_journal(tmp_path / "j")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        Journal.open(tmp_path / "file" / "j", SETTINGS)


def test_a_closed_journal_takes_nothing(tmp_path: Path) -> None:
    journal = Journal.open(tmp_path / "j", SETTINGS)
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match="closed"):
        journal.append_rollout(rollout(0))


def test_strange_keys_survive(tmp_path: Path) -> None:
    path = tmp_path / "j"
    odd = replace(rollout(0), example_digest="a b\n\ud83d%20é")
    with Journal.open(path, SETTINGS) as journal:
        journal.append(odd, Score(odd.key, 1.0))
    with Journal.open(path, SETTINGS) as journal:
        assert journal.done() == {odd.key}
    assert read_journal(path)[0][0] == odd


FULL_DISK = """
import resource, sys
from vf_pipeline.errors import StorageError
from vf_pipeline.rollouts.journal import Journal
from vf_pipeline.types import Rollout, Score
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
with Journal.open(sys.argv[1], {}) as journal:
    for i in range(100):
        rollout = Rollout(i, 0, "d", "t", "q" * 200, "a", "", "stop")
        try:
            journal.append(rollout, Score(rollout.key, 1.0))
        except StorageError as error:
            print(i, len(journal.done()), error)
            break
"""


def test_a_full_disk_leaves_no_half_record(tmp_path: Path) -> None:
    path = tmp_path / "j"
    ran = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    failed_at, done, *message = ran.stdout.split(" ", 2)
    assert int(failed_at) == int(done) >= 1
    assert "cannot write" in message[0]
    assert path.stat().st_size < 2000
    assert path.read_bytes().endswith(b"\n")
    assert len(read_journal(path)) == int(done)


KILLED = """
import itertools, sys
from vf_pipeline.rollouts.journal import Journal
from vf_pipeline.types import Rollout, Score
with Journal.open(sys.argv[1], {}) as journal:
    for i in itertools.count():
        rollout = Rollout(i, 0, "d", "t", "q", "a", "", "stop")
        journal.append(rollout, Score(rollout.key, 1.0))
        print(i, flush=True)
"""


def test_a_killed_writer_loses_nothing_that_it_wrote(tmp_path: Path) -> None:
    path = tmp_path / "j"
    command = [sys.executable, "-c", KILLED, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if int(line) == 20:
                    break
            with pytest.raises(JournalError, match="another process"):
                Journal.open(path, {})
        finally:
            os.kill(process.pid, signal.SIGKILL)
        last = 20
        for line in process.stdout:
            last = int(line) if line.endswith("\n") else last
    with Journal.open(path, {}) as journal:
        assert len(journal.done()) >= last + 1
    assert [pair[0].example_id for pair in read_journal(path)][: last + 1] == list(range(last + 1))


def test_reading_is_fast_enough(tmp_path: Path) -> None:
    path = tmp_path / "j"
    write(path, *(rollout(i) for i in range(1000)))
    started = time.monotonic()
    assert count_journal(path).done == 1000
    assert time.monotonic() - started < 2.0
