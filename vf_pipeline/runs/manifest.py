"""What a run read and wrote, by digest: the one truth about what is done.

``manifest.json`` lies in the run directory and is replaced whole after each stage. A stage is done
when its record holds the key it would have now: the digest of its settings and of its inputs.

    no record ──record()──► done, under a key ──the key is still the same──► reused
        ▲                     ▲     │
        │ --fresh             │     └─ settings or inputs changed ─► run again ─┐
        └─────────────────────┴───────────── record() replaces it ◄─────────────┘

A stage that is killed, or fails, leaves its record as it was. The key of a stage holds what the
stages before it made, so one that made something else has those after it run again.
"""

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from vf_pipeline import storage
from vf_pipeline.errors import StorageError

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class StageRecord:
    """A finished stage: its key, what it made, and how long that took (seconds)."""

    key: str
    outputs: dict[str, Any]
    started_at: float
    duration_s: float


@dataclass(slots=True)
class Manifest:
    """The stages of one run directory that are done."""

    path: Path
    stages: dict[str, StageRecord] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def open(cls, run_dir: str | Path) -> "Manifest":
        """Return the manifest of a run directory; an absent one is empty.

        Raises:
            StorageError: the file is damaged or of an unknown schema.
        """
        path = Path(run_dir) / "manifest.json"
        if not path.exists():
            return cls(path)
        data = storage.read_json(path)
        if not isinstance(data, dict) or data.get("schema") != SCHEMA:
            raise StorageError(f"{path} has an unknown schema", "run again with --fresh")
        try:
            stages = {name: StageRecord(**record) for name, record in data["stages"].items()}
            facts = dict(data.get("facts", {}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(f"{path} is damaged: {error!r}", "run again with --fresh") from None
        # The file's keys are sorted; here the stages stand in the order in which they ran.
        in_order = sorted(stages.items(), key=lambda item: item[1].started_at)
        return cls(path, dict(in_order), facts)

    def done(self, stage: str, key: str) -> dict[str, Any] | None:
        """Return what a stage made, if it was done under this very key."""
        record = self.stages.get(stage)
        return record.outputs if record is not None and record.key == key else None

    def record(self, stage: str, key: str, outputs: dict[str, Any], started_at: float) -> None:
        """Write down that a stage is done; ``started_at`` is a time.time()."""
        elapsed = time.time() - started_at
        self.stages[stage] = StageRecord(key, outputs, started_at, round(elapsed, 3))
        self._write()

    def note(self, **facts: Any) -> None:
        """Keep facts about the run itself, such as the ids of its Prefect and MLflow runs."""
        # Facts are not part of any key: they change with each try.
        self.facts.update(facts)
        self._write()

    def _write(self) -> None:
        stages = {name: asdict(record) for name, record in self.stages.items()}
        storage.write_json(self.path, {"schema": SCHEMA, "facts": self.facts, "stages": stages})
