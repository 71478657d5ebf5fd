"""One command around the flow: preflight, server, calibration, the run, and its verdict."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.graph import GRAPH, reusable
from flows.machine import PeakMemory, calibrate
from flows.preflight import check_run
from flows.server import prefect_server
from tasks.run import open_run, run_dir_of
from vf_pipeline import storage
from vf_pipeline.configs import PipelineConfig
from vf_pipeline.manifest import Manifest

log = logging.getLogger(__name__)

BOUND_S = 600.0
BOUND_GFLOPS = 50.0


def run(config: PipelineConfig, *, fresh: bool = False, debug: bool = False) -> int:
    """Run or resume the chain; return the exit code.

    Raises:
        VfError: something is missing, or a stage failed.
    """
    folder = run_dir_of(config)
    done = None if fresh else _finished(config)
    if done is None:
        check_run(config, folder)
        with _logs_on_stderr(debug):
            with open_run(config, fresh=fresh):
                log.info("run directory: %s", folder)
            done = _run(config, folder, quiet=not debug)
    _show(folder, done, storage.read_json(folder / "machine.json"))
    return 0 if done["passed"] else 3


def _run(config: PipelineConfig, folder: Path, *, quiet: bool) -> dict[str, Any]:
    """Return the outcome of the flow, and keep beside it what it took."""
    started_at = time.monotonic()
    with PeakMemory() as memory:
        speed = _calibrated(folder)
        with prefect_server(folder / "logs", quiet=quiet) as api:
            log.info("Prefect, while this runs: %s", api.removesuffix("/api"))
            # Prefect reads its settings when it is imported, so the flow comes after the server.
            from flows.forms import PipelineForm
            from flows.pipeline import pipeline_flow

            outcome = pipeline_flow(PipelineForm.from_config(config))
    wall_s = round(time.monotonic() - started_at, 1)
    machine = {"gflops": speed, "peak_gb": round(memory.peak_gb, 2), "wall_s": wall_s}
    storage.write_json(folder / "machine.json", machine)
    return dict(outcome)


def plan(config: PipelineConfig) -> int:
    """Print which stages would run and which would be reused; return 0."""
    folder = run_dir_of(config)
    check_run(config, folder)
    lines = [f"run directory: {folder}"]
    manifest = Manifest.open(folder)
    for name, stage in GRAPH.items():
        state = "reused" if reusable(config, manifest, name) is not None else "will run"
        lines.append(f"  {name:17} {state:9} pool vf-{stage.pool}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _finished(config: PipelineConfig) -> dict[str, Any] | None:
    """Return the outcome of a run whose last stage is done, for these very settings."""
    folder = run_dir_of(config)
    manifest = Manifest.open(folder)
    # The records in Prefect and MLflow are closed after the last stage, and noted then.
    if not manifest.facts.get("published") or not (folder / "machine.json").exists():
        return None
    return reusable(config, manifest, "promote")


def _calibrated(folder: Path) -> float:
    """Return one thread's speed on this machine, measured once a run."""
    path = folder / "machine.json"
    if path.exists():
        return float(storage.read_json(path)["gflops"])
    speed = calibrate()
    storage.write_json(path, {"gflops": speed})
    return speed


def _show(folder: Path, outcome: dict[str, Any], machine: dict[str, float]) -> None:
    stages = Manifest.open(folder).stages.values()
    work_s = sum(record.duration_s for record in stages)
    speed = machine["gflops"]
    bound = BOUND_S * BOUND_GFLOPS / speed if speed else BOUND_S
    lines = [
        "",
        *outcome["verdict"],
        "",
        f"stages took {work_s:.0f} s in all, the command that finished "
        f"{machine.get('wall_s', 0.0):.0f} s and {machine.get('peak_gb', 0.0):.1f} GB at its peak",
        f"one thread of this machine: {speed:.0f} GFLOP/s in an fp32 matmul "
        f"({BOUND_S:.0f} s at {BOUND_GFLOPS:.0f} would be {bound:.0f} s here)",
        f"report: {outcome['report']}",
        "look around: make ui",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


@contextmanager
def _logs_on_stderr(debug: bool) -> Iterator[None]:
    """Show what the flows and the library log, each line with its time, while the block runs."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    loggers = [logging.getLogger(name) for name in ("flows", "vf_pipeline")]
    for logger in loggers:
        logger.setLevel(logging.DEBUG if debug else logging.INFO)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
            logger.setLevel(logging.NOTSET)
