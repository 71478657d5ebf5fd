"""What a training is asked to do, and what it made: the two files between parent and child."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError, model_validator

from vf_pipeline import storage
from vf_pipeline.configs import EnvironmentSettings, GrpoSettings, Settings, SftSettings
from vf_pipeline.errors import ConfigError
from vf_pipeline.types import ModelRef

FAILURE = "failure.json"
"""File in the work folder in which a child that fails says why."""

# Places, names and shares of this machine. What lies at a place is in the digest by a digest of its
# own, so that a moved run goes on.
_NOT_IN_DIGEST = {
    "model_dir",
    "output_dir",
    "work_dir",
    "threads",
    "rows_uri",
    "examples_uri",
    "base_url",
    "served_model",
    "api_key_var",
    "weights_dir",
    "tracking_uri",
    "tracking_run_id",
}


class TrainSpec(Settings):
    """One training, complete: the child needs nothing else."""

    kind: Literal["sft", "grpo"]
    """Supervised on rows, or GRPO on an environment."""
    model_dir: str
    """Folder of the weights to start from."""
    model_digest: str
    """Digest of those weights."""
    output_dir: str
    """Folder that the trained model is written to, whole."""
    work_dir: str
    """Folder of checkpoints, metrics.jsonl, the log and result.json."""
    sft: SftSettings = SftSettings()
    """Settings, for kind = "sft"."""
    grpo: GrpoSettings = GrpoSettings()
    """Settings, for kind = "grpo"."""
    seed: int = 0
    """Seed of the data order and of sampling."""
    threads: int = 1
    """Threads of the trainer."""
    rows_uri: str = ""
    """Parquet of prompt (JSON messages) and completion (text); or the folder that holds it."""
    rows_digest: str = ""
    """Digest of the rows."""
    environment: EnvironmentSettings = EnvironmentSettings()
    """Environment that rollouts are played in."""
    examples_uri: str = ""
    """File of the examples that rollouts are played on."""
    examples_digest: str = ""
    """Digest of the examples."""
    base_url: str = ""
    """URL of the engine; ends with /v1."""
    served_model: str = ""
    """Name of the model there."""
    api_key_var: str = ""
    """Environment variable that holds the engine's key."""
    weights_dir: str = ""
    """Folder that new weights are written to, which the engine may read."""
    tracking_uri: str = ""
    """MLflow tracking URI; empty tracks nothing."""
    tracking_run_id: str = ""
    """MLflow run that metrics go to."""

    @model_validator(mode="after")
    def _complete(self) -> "TrainSpec":
        needed = {
            "sft": ("rows_uri",),
            "grpo": ("examples_uri", "base_url", "served_model", "weights_dir"),
        }
        missing = [name for name in needed[self.kind] if not getattr(self, name)]
        if missing:
            raise ValueError(f"a {self.kind} training needs {', '.join(missing)}")
        return self

    @property
    def digest(self) -> str:
        """What the outcome depends on. Folders, ports and threads are not part of it."""
        values = self.model_dump(mode="json", exclude=_NOT_IN_DIGEST | self._other_kind())
        return storage.digest_json(values)

    def work(self, *parts: str) -> Path:
        """Return a path in the work folder."""
        return Path(self.work_dir).joinpath(*parts)

    def _other_kind(self) -> set[str]:
        # What the other kind would use must not undo a training that never looks at it.
        if self.kind == "sft":
            return {"grpo", "environment", "examples_digest"}
        return {"sft", "rows_digest"}


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a training made.

    ``metrics`` are those of the last step, with those of the first under "first/"; ``duration_s``
    is that of the process that finished; ``resumed_from`` is the step it started at.
    """

    model: ModelRef
    steps: int
    metrics: dict[str, float] = field(default_factory=dict)
    duration_s: float = 0.0
    resumed_from: int = 0


def write_spec(spec: TrainSpec) -> Path:
    """Write a spec into its work folder, and return the file."""
    path = spec.work("spec.json")
    storage.write_json(path, spec.model_dump(mode="json"))
    return path


def read_spec(path: str | Path) -> TrainSpec:
    """Return the spec in a file.

    Raises:
        ConfigError: the file holds no spec.
        StorageError: the file cannot be read.
    """
    try:
        return TrainSpec.model_validate(storage.read_json(path))
    except ValidationError as error:
        raise ConfigError(f"{path} is no training spec: {error.errors()[0]['msg']}") from None


def write_result(spec: TrainSpec, result: TrainResult) -> None:
    """Write the result file: from now on the training is done."""
    storage.write_json(spec.work("result.json"), {"digest": spec.digest, **asdict(result)})


def finished_result(spec: TrainSpec) -> TrainResult | None:
    """Return the result of this very training, if it is done and its model is still there."""
    path = spec.work("result.json")
    if not path.exists():
        return None
    values: dict[str, Any] = storage.read_json(path)
    if values.pop("digest", None) != spec.digest:
        return None
    model = ModelRef(**values.pop("model"))
    return TrainResult(model, **values) if Path(model.uri).is_dir() else None
