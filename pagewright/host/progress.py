"""Progress of long steps: a Rich bar on a terminal; elsewhere lines, so that no step is silent.

Without a terminal a step prints a line when it starts, one a minute while it runs, and one
when it has ended.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

console = Console(stderr=True)

# Without a terminal a step that runs says so this often.
HEARTBEAT_SECONDS = 60.0
# The name of the thread that does.
HEARTBEAT = "heartbeat"


class Bar:
    """A progress bar for one step, used as a context manager.

    Args:
        what: the step, as shown.
        total: how many units it has; None if that is not known.
        heartbeat: seconds between the lines without a terminal.
    """

    def __init__(self, what: str, total: int | None, heartbeat: float = HEARTBEAT_SECONDS) -> None:
        """Prepare the bar; it is drawn from `with` on."""
        self.what = what
        self.total = total
        self.done = 0
        self.started = time.monotonic()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.task = self.progress.add_task(what, total=total)
        self._heartbeat = heartbeat
        self._ended = threading.Event()
        self._beating: threading.Thread | None = None

    def __enter__(self) -> Bar:
        """Start to draw."""
        self.progress.start()
        if not console.is_terminal:
            say(self.what)
            self._beating = threading.Thread(target=self._beat, name=HEARTBEAT, daemon=True)
            self._beating.start()
        return self

    def to(self, done: int) -> None:
        """Move to a number of units; past the total, the total grows."""
        self.done = done
        if self.total is not None and done > self.total:
            self.total = done
        self.progress.update(self.task, completed=done, total=self.total)

    def advance(self) -> None:
        """Move on by one unit."""
        self.to(self.done + 1)

    def status(self, seconds: float) -> str:
        """Return the line that says how far the step is, some seconds after it started."""
        units = "" if self.total is None else f"{self.done} of {self.total}, "
        return f"{self.what}: {units}{duration(seconds)}"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop to draw; say how long the step took."""
        self.progress.stop()
        self._ended.set()
        if self._beating:
            self._beating.join()
        if kind is None:
            seconds = time.monotonic() - self.started
            say(f"{self.what}: {seconds:.0f} s")

    def _beat(self) -> None:
        while not self._ended.wait(self._heartbeat):
            say(self.status(time.monotonic() - self.started))


def duration(seconds: float) -> str:
    """Write a time as a reader wants it: in seconds below two minutes, then in minutes."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def say(text: str) -> None:
    """Print a line about what is going on."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
