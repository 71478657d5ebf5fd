"""What a stage may say about itself: the protocol, and the tracker that keeps nothing."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from vf_pipeline.types import DatasetRef

Status = Literal["FINISHED", "FAILED", "KILLED"]


class Tracker(Protocol):
    """The record of one run. Once started, it never raises into its caller.

    As a context manager it closes itself: FINISHED, or FAILED on an error, or KILLED on Ctrl-C.
    """

    run_id: str
    url: str

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Record settings, once; nested ones get dotted names."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers, all of one step together."""

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Record a file or a folder."""

    def log_dataset(self, ref: DatasetRef, name: str, context: str) -> None:
        """Record that a dataset was used, and for what ("source", "eval", "sft", "training")."""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set tags, which may change later."""

    def close(self, status: Status = "FINISHED") -> None:
        """End the record; closing twice is fine."""

    def __enter__(self) -> Self:
        """Return the tracker itself."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, with the status that the error stands for."""


class TrackerBase:
    """What all trackers share: how a block's end becomes a status."""

    run_id: str = ""
    url: str = ""

    def close(self, status: Status = "FINISHED") -> None:
        """End the record; closing twice is fine."""

    def __enter__(self) -> Self:
        """Return the tracker itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, with the status that the error stands for."""
        if kind is None:
            self.close("FINISHED")
        else:
            # What is no Exception is Ctrl-C, or an exit that was asked for.
            self.close("FAILED" if issubclass(kind, Exception) else "KILLED")


class NullTracker(TrackerBase):
    """A tracker that keeps nothing."""

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Keep nothing."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Keep nothing."""

    def log_artifact(self, path: Path, folder: str = "") -> None:
        """Keep nothing."""

    def log_dataset(self, ref: DatasetRef, name: str, context: str) -> None:
        """Keep nothing."""

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Keep nothing."""


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one level with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat
