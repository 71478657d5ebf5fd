"""`make up` when a worker does not come up."""

import os
import sys
from pathlib import Path
from unittest import mock

import psutil
import pytest

from infra.local import stack
from infra.local.services import Service
from vf_pipeline.errors import ProcessError
from vf_pipeline.processes import answers, free_port

pytestmark = [
    pytest.mark.slow,
    # Services outlive their starter, so its handles of them are let go of.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# Long enough to look alive; it never tells the server of itself.
MUTE = "import sys, time; time.sleep(5.0); sys.exit('no such pool type')"


def test_a_worker_that_dies_late_is_named_and_all_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mute_worker(pool: str) -> Service:
        return Service(f"worker-{pool}", [sys.executable, "-c", MUTE])

    monkeypatch.setattr(stack, "worker_service", mute_worker)
    prefect, mlflow = free_port(), free_port()
    own = {
        "VF_STATE": str(tmp_path / "state"),
        "VF_RUNS": str(tmp_path / "runs"),
        "VF_PREFECT_PORT": str(prefect),
        "VF_MLFLOW_PORT": str(mlflow),
        "VF_TEST_MARK": str(tmp_path),
    }
    # `up` sets variables of this process for the servers that it starts.
    with mock.patch.dict(os.environ, own):
        try:
            with pytest.raises(ProcessError) as caught:
                stack.up()
        finally:
            # Nothing is left for this to end, or the checks below say so.
            left = stack._services().names()
            stack.down()
    said = str(caught.value)
    assert "worker-vf-cpu died before it was online in the pool vf-cpu" in said
    assert "no such pool type" in said
    assert str(tmp_path / "state" / "logs" / "worker-vf-cpu.log") in said
    assert left == []
    assert not answers(f"http://127.0.0.1:{prefect}/api/health")
    assert not answers(f"http://127.0.0.1:{mlflow}/health")
    assert marked(str(tmp_path)) == []
    # The servers were up before: the worker was the last thing that was started.
    assert (tmp_path / "state" / "logs" / "mlflow-server.log").exists()
    assert not (tmp_path / "state" / "logs" / "worker-vf-gpu.log").exists()


def marked(mark: str) -> list[str]:
    """Return the commands of living processes that were started with a test's mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get("VF_TEST_MARK") == mark:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found
