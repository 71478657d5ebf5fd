"""Progress on stderr: a bar with rate and time left on a terminal, now and then a line else."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_PLAIN_EVERY_S = 5.0


class Progress:
    """How far a stage is. ``advance`` counts; ``note`` shows one short text behind the bar."""

    def __init__(self, title: str, total: int, done: int = 0) -> None:
        self.title = title
        self.total = total
        self.done = done
        self.text = ""
        self._started_at = time.monotonic()
        self._first = done

    def advance(self, count: int = 1, note: str | None = None) -> None:
        """Count finished units, and replace the text behind the bar."""
        self.done += count
        if note is not None:
            self.text = note
        self._show()

    def _show(self) -> None:
        """Draw; the plain base draws nothing."""

    def line(self) -> str:
        """Return the state as one plain line: done, rate, time left, text."""
        text = f" · {self.text}" if self.text else ""
        return f"{self.title}: {self.done}/{self.total} · {self.pace()}{text}"

    def pace(self) -> str:
        """Return rate and time left; the very first units say little about either."""
        counted = self.done - self._first
        if counted < max(1, self.total // 50):
            return "starting"
        rate = counted / max(time.monotonic() - self._started_at, 1e-9)
        each = f"{rate:.1f}/s" if rate >= 1 else f"{1 / rate:.1f} s each"
        return f"{each} · {(self.total - self.done) / rate:.0f} s left"


class _PlainProgress(Progress):
    _shown_at = 0.0

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown_at >= _PLAIN_EVERY_S or self.done >= self.total:
            self._shown_at = now
            sys.stderr.write(self.line() + "\n")
            sys.stderr.flush()


@contextmanager
def progress_bar(title: str, total: int, done: int = 0) -> Iterator[Progress]:
    """Yield a Progress that draws itself on stderr until the block ends."""
    if not sys.stderr.isatty():
        yield _PlainProgress(title, total, done)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as RichProgress

    class Bar(Progress):
        def _show(self) -> None:
            bar.update(task, completed=self.done, text=self.text, pace=self.pace())

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[pace]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[text]}"),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, completed=done, text="", pace="")
        yield Bar(title, total, done)
