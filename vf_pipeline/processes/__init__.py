"""Child processes: started, watched, and ended with all below them."""

from vf_pipeline.processes.addresses import answers, free_port
from vf_pipeline.processes.managed import ManagedProcess
from vf_pipeline.processes.record import reap

__all__ = ["ManagedProcess", "answers", "free_port", "reap"]
