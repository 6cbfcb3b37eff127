"""What a machine leaves behind for whoever asks later why something failed.

Every machine writes three files: its console, what QEMU itself printed, and the commands that it
was given, with how each ended. A place that runs already has no QEMU, and its console is what
labgrid has read of it, if it drives the place over one at all. As a rule the files are in a
temporary directory that goes with the machine. Within `kept_in` they are written below a folder of
the caller's instead, from the first moment on, so that they are there even if the caller is killed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from labgrid.step import StepEvent, steps

CONSOLE = "console.log"
STDERR = "qemu.stderr"
COMMANDS = "commands.log"
# Written by the strict machine alone, see strict.py.
VIOLATIONS = "violations.json"

# How much of a command's output its log shows.
_OUTPUT_CHARACTERS = 20_000

_folder: ContextVar[Path | None] = ContextVar("evidence", default=None)


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Have machines that are booted meanwhile write to subfolders of a folder: 1, 2, ..."""
    token = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(token)


def claim(otherwise: Path) -> Path:
    """Return the folder for the next machine's files, made if needed.

    Args:
        otherwise: what it is if nobody wants to keep them.
    """
    folder = _folder.get()
    if folder is None:
        return otherwise
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        try:
            (folder / str(number)).mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder / str(number)


class Transcript:
    """The commands that a machine was given, and how each ended."""

    def __init__(self, file: Path) -> None:
        """Begin a new file."""
        self._file = file
        self._begun = time.monotonic()
        file.touch()

    def begin(self, command: str) -> None:
        """Write a command down before it runs: it may be the last one."""
        self._write(f"[{self._now():.1f} s] $ {command}\n")

    def end(self, status: int, output: str) -> None:
        """Write down how the command ended."""
        shown = output[-_OUTPUT_CHARACTERS:]
        if len(shown) < len(output):
            shown = f"[{len(output) - len(shown)} characters left out]\n{shown}"
        newline = "" if not shown or shown.endswith("\n") else "\n"
        self._write(f"{shown}{newline}[{self._now():.1f} s] status {status}\n\n")

    def note(self, text: str) -> None:
        """Write a remark."""
        self._write(f"[{self._now():.1f} s] # {text}\n")

    def _now(self) -> float:
        return time.monotonic() - self._begun

    def _write(self, text: str) -> None:
        with self._file.open("a", errors="replace") as file:
            file.write(text)


@contextmanager
def console_written(target: Any, file: Path) -> Iterator[None]:  # noqa: ANN401
    """Append to a file what labgrid reads meanwhile from the console of one of its targets."""

    def write(event: StepEvent) -> None:
        step = event.step
        if step.tag != "console" or step.title != "read" or event.data.get("state") != "stop":
            return
        if step.result and step.source.target is target:
            with file.open("ab") as log:
                log.write(step.result)

    steps.subscribe(write)
    try:
        yield
    finally:
        steps.unsubscribe(write)


def sizes(folder: Path) -> dict[Path, int]:
    """Return how long the files of machines are now that write to subfolders of a folder."""
    return {file: file.stat().st_size for file in folder.glob("*/*")}


def copy(machine: Path, target: Path, since: Mapping[Path, int] | None = None) -> None:
    """Copy a machine's files to a new folder; those of a machine that runs are copied as they are.

    Args:
        machine: a folder that `claim` returned.
        target: is made.
        since: how long files were, of which only what was added later is to be copied.
    """
    target.mkdir(parents=True, exist_ok=True)
    for name in (CONSOLE, STDERR, COMMANDS, VIOLATIONS):
        file = machine / name
        if file.is_file():
            with file.open("rb") as whole, (target / name).open("wb") as part:
                whole.seek((since or {}).get(file, 0))
                shutil.copyfileobj(whole, part)
