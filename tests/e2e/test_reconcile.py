"""What was killed on this machine ends in Prefect: on a real server."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from infra.local import reconcile as module
from infra.local.reconcile import STAGE_LOCK, process_facts, reconcile
from vf_pipeline.processes import ManagedProcess, free_port
from vf_pipeline.runs import Manifest
from vf_pipeline.runs.lock import hold_lock

pytestmark = pytest.mark.slow


def start(command: list[str], project: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(
            command, env=project, stdout=out, stderr=out, start_new_session=True
        )


def wait_for(log: Path, words: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while words not in log.read_text(errors="replace"):
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline, f"waited for {words!r}"
        time.sleep(0.05)


def states(project: dict[str, str], table: str) -> list[str]:
    """Return the states of all flow runs or task runs, the oldest first."""
    path = Path(project["VF_STATE"]) / "prefect" / "prefect.db"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        rows = db.execute(f"select state_type from {table} order by created").fetchall()
    return [row[0] for row in rows]


def test_a_killed_command_ends_as_crashed_when_it_is_run_again(
    chain_command: Callable[..., list[str]], project: dict[str, str], tmp_path: Path
) -> None:
    first = tmp_path / "first.log"
    process = start(chain_command(), project, first)
    wait_for(first, "evaluate-base: started", process)
    time.sleep(2.0)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
    time.sleep(1.0)
    assert states(project, "flow_run") == ["RUNNING"]

    second = tmp_path / "second.log"
    process = start(chain_command(), project, second)
    wait_for(second, "prepare: reused", process)
    assert "was killed before: its flow run ends as Crashed" in second.read_text()
    assert states(project, "flow_run") == ["CRASHED", "RUNNING"]
    assert "RUNNING" not in states(project, "task_run")[:2]
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=90) == 130, second.read_text()
    assert states(project, "flow_run")[0] == "CRASHED"
    assert "RUNNING" not in states(project, "flow_run")


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A Prefect server of this test's own, which this process talks to."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.setenv("VF_RUNS", str(tmp_path / "runs"))
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    with (
        ManagedProcess(
            "prefect",
            [*command, "--port", str(port)],
            log_path=tmp_path / "prefect.log",
            env={"PREFECT_HOME": str(tmp_path / "prefect")},
            ready_url=f"{api}/health",
        ),
        temporary_settings({PREFECT_API_URL: api}),
    ):
        yield api


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_only_what_is_dead_and_known_there_is_ended(api: str, tmp_path: Path) -> None:
    from prefect import flow, task
    from prefect.client.orchestration import get_client
    from prefect.states import Completed, Pending, Running, Scheduled

    @flow
    def chain() -> None:
        pass

    @flow
    def stage() -> None:
        pass

    @task
    def step() -> None:
        pass

    gone = {"pid": 2**22 + 1, "started_at": 1.0}
    with get_client(sync_client=True) as client:

        def flow_run(state: object) -> UUID:
            return client.create_flow_run(chain, state=state).id  # type: ignore[arg-type]

        def below(parent: UUID, state: object) -> UUID:
            """Make a flow run below another one, as run_deployment does: by a task run."""
            link = client.create_task_run(step, parent, dynamic_key=str(uuid4()), state=Running())
            made = client.create_flow_run(
                stage,
                parent_task_run_id=link.id,
                state=state,  # type: ignore[arg-type]
            )
            return made.id

        def run_folder(name: str, flow_run_id: UUID, **facts: object) -> Path:
            folder = tmp_path / "runs" / name
            Manifest.open(folder).note(prefect_flow_run=str(flow_run_id), **facts)
            return folder

        def state(flow_run_id: UUID) -> str:
            return str(client.read_flow_run(flow_run_id).state_name)

        dead, older = flow_run(Running()), flow_run(Running())
        retried, queued = flow_run(Running()), flow_run(Pending())
        alive, held, done = flow_run(Running()), flow_run(Running()), flow_run(Completed())
        waiting, running = below(dead, Scheduled()), below(dead, Running())
        served = flow_run(Running())
        on_worker = below(served, Running())
        work = client.create_task_run(step, dead, dynamic_key="0", state=Running())
        run_folder("dead", dead, process=gone)
        run_folder("older", older)
        # The UI's Retry: the flow run begins again, and its new process has not noted itself yet.
        run_folder("retried", retried, process=gone | {"noted_at": time.time() - 60})
        run_folder("queued", queued)
        run_folder("alive", alive, process=process_facts())
        run_folder("done", done, process=gone)
        run_folder("elsewhere", uuid4(), process=gone)
        (tmp_path / "runs" / "damaged").mkdir()
        (tmp_path / "runs" / "damaged" / "manifest.json").write_text("{")
        (tmp_path / "runs" / "another").mkdir()
        (tmp_path / "runs" / "another" / "manifest.json").write_text('{"schema": 1}')
        holder = run_folder("held", held, process=gone)
        served_folder = run_folder("served", served, process=gone)
        with hold_lock(holder), hold_lock(served_folder, STAGE_LOCK):
            assert reconcile() == 3
        assert [state(one) for one in (dead, older, served)] == ["Crashed"] * 3
        assert [state(one) for one in (waiting, running)] == ["Crashed"] * 2
        assert [state(one) for one in (alive, held, done)] == ["Running", "Running", "Completed"]
        assert [state(one) for one in (retried, queued)] == ["Running", "Pending"]
        # A stage that a worker still runs is told to stop; the worker reports its end.
        assert state(on_worker) == "Cancelling"
        crashed = client.read_task_run(work.id).state
        assert crashed is not None and crashed.is_crashed()
        message = client.read_flow_run(dead).state
        assert message is not None and "killed" in str(message.message)
        assert reconcile() == 1, "the lock is free now"
        assert state(held) == "Crashed"
        assert reconcile() == 0


def test_a_server_that_does_not_answer_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from prefect.client import orchestration

    def refuse(**_: object) -> None:
        raise ConnectionError("nobody answers")

    monkeypatch.setenv("VF_RUNS", str(tmp_path))
    Manifest.open(tmp_path / "one").note(prefect_flow_run=str(uuid4()))
    monkeypatch.setattr(orchestration, "get_client", refuse)
    assert reconcile() == 0
    assert "nobody answers" in caplog.text
    assert module.log.name in {record.name for record in caplog.records}
