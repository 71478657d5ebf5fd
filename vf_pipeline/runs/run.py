"""A run: its folder, its lock, its manifest, its records in MLflow. What every stage is given."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vf_pipeline import storage
from vf_pipeline.configs import PipelineConfig, validate
from vf_pipeline.errors import ConfigError
from vf_pipeline.processes import reap
from vf_pipeline.runs.lock import LOCK, STAGE_LOCK, hold_lock
from vf_pipeline.runs.manifest import Manifest
from vf_pipeline.runs.outputs import Made, Prepared, Trained, read_outputs
from vf_pipeline.runs.places import mlflow_uri, run_dir_of, runs_dir
from vf_pipeline.runs.stages import StageName
from vf_pipeline.tracking import MlflowTracker
from vf_pipeline.types import ModelRef

_STAGE_WAIT_S = 30.0
"""How long starting over waits for a stage that is told to stop, in seconds."""


@dataclass(slots=True)
class Run:
    """One run in this process: its settings, its folder, and what is done."""

    config: PipelineConfig
    folder: Path
    manifest: Manifest

    def outputs(self, stage: StageName, kind: type[Made]) -> Made:
        """Return what a finished stage made.

        Raises:
            KeyError: the stage is not done.
            StorageError: another version of the library made it.
        """
        return read_outputs(kind, self.manifest.stages[stage].outputs, stage)

    @property
    def prepared(self) -> Prepared:
        """What the run was prepared with."""
        return self.outputs("prepare", Prepared)

    @property
    def prepared_or_none(self) -> Prepared | None:
        """What the run was prepared with; None before it was."""
        return self.prepared if "prepare" in self.manifest.stages else None

    def model(self, stage: StageName) -> ModelRef:
        """Return the model that a stage made: the base, or a trained one."""
        if stage == "prepare":
            return self.prepared.model
        return self.outputs(stage, Trained).model

    def path(self, *parts: str) -> Path:
        """Return a path in the run directory."""
        return self.folder.joinpath(*parts)

    def start_tracker(self, stage: str, key: str = "") -> MlflowTracker:
        """Return the MLflow run of a stage ("" is the parent), the same one after a resume.

        Args:
            stage: the stage.
            key: what the stage's numbers depend on; under another key than before they are those
                of other inputs, and get a run of their own.
        """
        runs: dict[str, str] = dict(self.manifest.facts.get("mlflow_runs", {}))
        keys: dict[str, str] = dict(self.manifest.facts.get("mlflow_keys", {}))
        if keys.get(stage, key) != key:
            runs.pop(stage, None)
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
        )
        # At once: a stage that is killed later goes on in the same MLflow run.
        if (runs.get(stage), keys.get(stage, "")) != (tracker.run_id, key):
            runs[stage], keys[stage] = tracker.run_id, key
            self.manifest.note(mlflow_runs=runs, mlflow_keys=keys)
        return tracker


@contextmanager
def open_run(
    config: PipelineConfig, *, fresh: bool = False, of_chain: bool = False, wait_s: float = 0.0
) -> Iterator[Run]:
    """Yield the run of a config; its folder is made, locked, and cleared of orphaned processes.

    Args:
        config: the settings; the folder is found by their digest.
        fresh: whether to throw away what an earlier run left there.
        of_chain: whether a stage is opened whose chain holds the run's own lock and waits for it.
        wait_s: how long to wait for another process that works on this very run, in seconds.

    Raises:
        StorageError: another process works on this run, or the folder cannot be written.
    """
    folder = run_dir_of(config)
    with hold_lock(folder, STAGE_LOCK if of_chain else LOCK, wait_s=wait_s):
        # The chain has done all this, and what it started may be running.
        if not of_chain:
            # Under the lock, so that nobody is at work with them; before the folder is cleared of
            # their record.
            reap(folder / "processes.json")
            if fresh:
                # A stage of a chain that was killed may still run on a worker: it ends first, or
                # it would write into the folder of its successor.
                with hold_lock(folder, STAGE_LOCK, wait_s=max(wait_s, _STAGE_WAIT_S)):
                    _clear(folder)
            storage.write_json(folder / "config.json", config.model_dump(mode="json"))
        yield Run(config, folder, Manifest.open(folder))


def read_run_config(folder: Path) -> PipelineConfig:
    """Return the settings that a run directory was made with.

    Raises:
        ConfigError: there is no run in the folder, or it was made elsewhere or by other settings.
    """
    path = folder / "config.json"
    if not path.exists():
        raise ConfigError(f"no run in {folder}", f"runs are in {runs_dir()}")
    config = validate(PipelineConfig, storage.read_json(path), where=str(path))
    # Stages would go on in the folder that the settings name, not in the one that was asked for.
    if run_dir_of(config).resolve() != folder.resolve():
        raise ConfigError(
            f"the run in {folder} belongs at {run_dir_of(config)}",
            "it was moved, or made by another version: start it from its TOML file",
        )
    return config


def _clear(folder: Path) -> None:
    """Remove what a run left, except its locks, which are held."""
    for path in folder.iterdir():
        if path.name not in (LOCK, STAGE_LOCK):
            storage.remove(path)
