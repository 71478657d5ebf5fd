"""What trainer and worker say to each other, besides the rollouts themselves."""

from dataclasses import dataclass

from vf_pipeline.training.spec import TrainSpec


@dataclass(frozen=True, slots=True)
class PlayOrder:
    """What a worker plays, and where it starts: the step, and the position in the data."""

    spec: TrainSpec
    step: int
    position: int


@dataclass(frozen=True, slots=True)
class Allow:
    """Trainer to worker: steps up to ``step`` may be played; the engine serves ``version``."""

    step: int
    version: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """Worker to trainer: a group was started or finished; rollouts now in flight."""

    step: int
    count: int


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """Worker to trainer: why it ends."""

    message: str
    hint: str = ""
