"""A run: its folder, its lock, its manifest, its records in MLflow. What every stage is given."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tasks.addresses import mlflow_ui
from vf_pipeline import storage
from vf_pipeline.configs import PipelineConfig, load_config, validate
from vf_pipeline.environments import Environment
from vf_pipeline.errors import ConfigError, StorageError
from vf_pipeline.manifest import Manifest
from vf_pipeline.registry import load_environment
from vf_pipeline.serving.process import reap
from vf_pipeline.serving.session import EngineSession
from vf_pipeline.tracking import MlflowTracker
from vf_pipeline.types import ModelRef

ROOT = Path(__file__).resolve().parent.parent
LOCK = "lock"


def state_dir() -> Path:
    """Return the project's own state: Prefect's and MLflow's databases, logs of services."""
    return Path(os.environ.get("VF_STATE", ROOT / ".vf")).absolute()


def artifacts_dir() -> Path:
    """Return the folder of MLflow's artifacts."""
    return state_dir() / "artifacts"


def runs_dir() -> Path:
    """Return the folder that holds all run directories."""
    return Path(os.environ.get("VF_RUNS", ROOT / "runs")).absolute()


def run_dir_of(config: PipelineConfig) -> Path:
    """Return the run directory of a config: the same settings find the same folder again."""
    settings = config.model_dump(exclude={"execution"})
    return runs_dir() / f"{config.name}-{storage.digest_json(settings)[:10]}"


def mlflow_uri(config: PipelineConfig) -> str:
    """Return the tracking URI: the one configured, or the sqlite file under the state folder."""
    if config.tracking.mlflow_uri:
        return config.tracking.mlflow_uri
    server = os.environ.get("MLFLOW_TRACKING_URI", "")
    return server or f"sqlite:///{state_dir() / 'mlflow.db'}"


@dataclass(slots=True)
class Run:
    """One run in this process: settings, folder, what is done, and the engine it serves with."""

    config: PipelineConfig
    folder: Path
    manifest: Manifest
    engine: EngineSession

    @property
    def stage_outputs(self) -> dict[str, dict[str, Any]]:
        """What the finished stages made, by stage."""
        return {name: record.outputs for name, record in self.manifest.stages.items()}

    def model(self, stage: str) -> ModelRef:
        """Return the model that a stage made."""
        return ModelRef(**self.stage_outputs[stage]["model"])

    def load_environment(self) -> Environment:
        """Return the environment, as it was when the run was prepared.

        Raises:
            ConfigError: its version or its rubric has changed since: scores would not compare.
        """
        settings = self.config.environment
        env = load_environment(settings.id, **settings.args)
        now = {"version": env.version, "rubric": env.rubric.digest()}
        before = self.stage_outputs.get("prepare", {}).get("environment", now)
        if now != before:
            raise ConfigError(
                f"the environment {settings.id} has changed since this run was prepared: "
                f"{before} → {now}",
                "start over with --fresh",
            )
        return env

    def path(self, *parts: str) -> Path:
        """Return a path in the run directory."""
        return self.folder.joinpath(*parts)

    def start_tracker(self, stage: str) -> MlflowTracker:
        """Return the MLflow run of a stage ("" is the parent), the same one after a resume."""
        runs: dict[str, str] = dict(self.manifest.facts.get("mlflow_runs", {}))
        config = self.config
        tags = {
            "vf.stage": stage or "chain",
            "vf.env": config.environment.id,
            "vf.model": config.model.name,
            "vf.config_digest": storage.digest_json(config.model_dump()),
            "vf.run_dir": self.folder.name,
        }
        tracker = MlflowTracker.start(
            mlflow_uri(config),
            config.tracking.experiment or f"vf/{config.environment.id}",
            f"{self.folder.name}/{stage}" if stage else self.folder.name,
            run_id=runs.get(stage),
            parent_id=runs.get("") if stage else None,
            tags=tags,
            ui=mlflow_ui(),
        )
        if runs.get(stage) != tracker.run_id:
            runs[stage] = tracker.run_id
            self.manifest.note(mlflow_runs=runs)
        return tracker


@contextmanager
def open_run(
    config: PipelineConfig, *, fresh: bool = False, of_chain: bool = False
) -> Iterator[Run]:
    """Yield the run of a config; its folder is made, locked, and cleared of orphaned processes.

    Args:
        config: the settings; the folder is found by their digest.
        fresh: whether to throw away what an earlier run left there.
        of_chain: whether a stage is opened whose chain holds the run's own lock and waits for it.

    Raises:
        StorageError: another process works on this run, or the folder cannot be written.
    """
    folder = run_dir_of(config)
    with ExitStack() as stack:
        stack.enter_context(_lock(folder, "stage.lock" if of_chain else LOCK))
        if not of_chain:
            reap(folder / "processes.json")
            if fresh:
                _clear(folder)
            storage.write_json(folder / "config.json", config.model_dump(mode="json"))
        engine = stack.enter_context(EngineSession(config.inference, folder))
        yield Run(config, folder, Manifest.open(folder), engine)


def read_run_config(folder: Path) -> PipelineConfig:
    """Return the settings that a run directory was made with.

    Raises:
        ConfigError: there is no run in the folder, or it was made elsewhere or by other settings.
    """
    path = folder / "config.json"
    if not path.exists():
        raise ConfigError(f"no run in {folder}", f"runs are in {runs_dir()}")
    config = validate(PipelineConfig, storage.read_json(path), where=str(path))
    if run_dir_of(config) != folder.resolve():
        raise ConfigError(
            f"the run in {folder} belongs at {run_dir_of(config)}",
            "it was moved, or made by another version: start it from its TOML file",
        )
    return config


def config_from(paths: list[str], overrides: list[str]) -> PipelineConfig:
    """Return the settings of TOML files and overrides."""
    return load_config(PipelineConfig, list(paths), overrides)


def _clear(folder: Path) -> None:
    """Remove what a run left, except its lock, which is held."""
    for path in folder.iterdir():
        if path.name != LOCK:
            storage.remove(path)


@contextmanager
def _lock(folder: Path, name: str) -> Iterator[IO[str]]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / name).open("w", encoding="utf-8")
    except OSError as error:
        raise storage.explain_os_error(error, "write", folder) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(
                f"another process works on {folder}",
                "wait for it, or end it first (a stage in a work pool: cancel it in Prefect)",
            ) from None
        yield file
