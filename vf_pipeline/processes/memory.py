"""The memory that this process takes with all its children."""

import threading

import psutil


class PeakMemory:
    """Watches this process and its children; ``peak_gb`` is the largest sum of their memory.

    Pages that may be shared (libraries, mapped files) count once, at the size that the largest of
    the processes has of them. Exact shares (PSS) would stop each process while they are counted.
    """

    def __init__(self, every_s: float = 1.0) -> None:
        self.peak_gb = 0.0
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak-memory", daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(self._every_s):
            try:
                family = [me, *me.children(recursive=True)]
            except psutil.Error:
                # A process ended while the family was counted; the next look is soon.
                continue
            sizes = [_memory(process) for process in family]
            total = sum(own for own, _ in sizes) + max(shared for _, shared in sizes)
            self.peak_gb = max(self.peak_gb, total / 1e9)


def _memory(process: psutil.Process) -> tuple[int, int]:
    """Return the bytes that are a process's own, and those that it may share."""
    try:
        info = process.memory_info()
    except psutil.Error:
        return 0, 0
    shared = int(getattr(info, "shared", 0))
    return info.rss - shared, shared
