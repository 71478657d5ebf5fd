"""Which checkpoint may be resumed from: one that is sealed. The seal is written last.

A process may be killed while the Trainer writes a checkpoint, so its folder alone proves nothing.
The older checkpoint is removed only after the newer one is sealed. No torch.

    Trainer writes it ─► unsealed ──seal()──► sealed, the older too ─► sealed, alone
         │ killed           │ killed               │ killed               │ killed
         └────────┬─────────┘                      └──────────┬───────────┘
                  ▼                                           ▼
    last_complete(): removed; the one before it counts      it counts; others are removed

A training that is done removes the last one as well.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vf_pipeline import storage
from vf_pipeline.errors import StorageError

log = logging.getLogger(__name__)

SEAL = "complete.json"
_NAME = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A sealed checkpoint: its folder, its step, and what else was kept with it."""

    folder: Path
    step: int
    state: dict[str, Any]


def seal(folder: Path, digest: str, step: int, state: dict[str, Any]) -> None:
    """Declare a checkpoint complete, then remove all others.

    Args:
        folder: the checkpoint.
        digest: digest of the training that it belongs to.
        step: the optimizer steps it has behind it.
        state: what else belongs to that step, such as the position in the data.
    """
    # Replaced whole: a seal that is there is never half of one.
    storage.write_json(folder / SEAL, {"digest": digest, "step": step, "state": state})
    for other in _folders(folder.parent):
        if other != folder:
            storage.remove(other)


def last_complete(work_dir: Path, digest: str) -> Checkpoint | None:
    """Return the newest complete checkpoint of this training; all others are removed."""
    found: Checkpoint | None = None
    # Rising, so that the last sealed one wins; the one before it goes only when that is known.
    for folder in sorted(_folders(work_dir), key=_step):
        checkpoint = _read(folder, digest)
        if checkpoint is None:
            log.info("removing %s: incomplete, or of another training", folder)
            storage.remove(folder)
            continue
        if found is not None:
            storage.remove(found.folder)
        found = checkpoint
    return found


def remove_all(work_dir: Path) -> None:
    """Remove all checkpoints: the training is done."""
    for folder in _folders(work_dir):
        storage.remove(folder)


def _read(folder: Path, digest: str) -> Checkpoint | None:
    if not (folder / "trainer_state.json").exists() or not (folder / SEAL).exists():
        return None
    try:
        values = storage.read_json(folder / SEAL)
        # A work folder may be used again with other settings, and a folder may have been copied.
        if values["digest"] != digest or values["step"] != _step(folder):
            return None
        return Checkpoint(folder, values["step"], values["state"])
    except (StorageError, KeyError, TypeError):
        return None


def _folders(work_dir: Path) -> list[Path]:
    if not work_dir.is_dir():
        return []
    return [path for path in work_dir.iterdir() if path.is_dir() and _NAME.fullmatch(path.name)]


def _step(folder: Path) -> int:
    match = _NAME.fullmatch(folder.name)
    return int(match[1]) if match else -1
