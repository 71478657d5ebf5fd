"""Which processes run, on disk: so that what a killed parent left behind is found and ended.

What the kernel does not reach (a child's own children, after a SIGKILL of their parent) carries a
tag in its environment, which descendants inherit.
"""

import json
import logging
import threading
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from vf_pipeline import storage
from vf_pipeline.processes.tree import end_tree, find_tree

logger = logging.getLogger(__name__)

TAG_VAR = "VF_PROCESS_TAG"
"""Environment variable that holds the tag of a child and of all below it."""


def new_tag() -> str:
    """Return a tag that no other process has."""
    return uuid.uuid4().hex


@dataclass(frozen=True, slots=True)
class Noted:
    """A process in a record; its start time tells it from a later one with the same id."""

    name: str
    pid: int
    started_at: float
    tag: str


# Between threads of this process; other processes are kept out by the run's lock.
RECORD_LOCK = threading.Lock()


def read_record(path: Path) -> list[Noted]:
    """Return the processes of a record; an absent or damaged one has none."""
    try:
        return [Noted(**fields) for fields in json.loads(path.read_bytes())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError):
        logger.warning("%s cannot be read; processes noted there may still run", path)
        return []


def write_record(path: Path, entries: Sequence[Noted]) -> None:
    """Replace a record; without processes there is none."""
    if entries:
        storage.write_json(path, [asdict(noted) for noted in entries])
    else:
        path.unlink(missing_ok=True)


def reap(record: str | Path) -> int:
    """End the processes noted in a record that are still alive; return how many were.

    Only for records whose run nobody works on: the caller holds the run's lock.
    """
    path = Path(record)
    ended = 0
    with RECORD_LOCK:
        for noted in read_record(path):
            tree = find_tree(noted.pid, TAG_VAR, noted.tag, noted.started_at)
            if tree:
                logger.warning("ending %s (pid %d), left behind", noted.name, noted.pid)
                end_tree(tree, grace_s=5.0)
                ended += 1
        path.unlink(missing_ok=True)
    return ended
