"""Progress of long steps: a Rich bar on a terminal, a line at the end elsewhere."""

from __future__ import annotations

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


class Bar:
    """A progress bar for one step, used as a context manager.

    Args:
        what: the step, as shown.
        total: how many units it has; None if that is not known.
    """

    def __init__(self, what: str, total: int | None) -> None:
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

    def __enter__(self) -> Bar:
        """Start to draw."""
        self.progress.start()
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop to draw; say how long the step took."""
        self.progress.stop()
        if kind is None:
            seconds = time.monotonic() - self.started
            say(f"{self.what}: {seconds:.0f} s")


def say(text: str) -> None:
    """Print a line about what is going on."""
    console.print(text, highlight=False, soft_wrap=True)
