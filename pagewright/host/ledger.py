"""How long builds and boots took: written down by whoever made them, added up by the test suite.

The suite runs in several processes, so the ledger is a file, which is named by a variable of the
environment that these processes inherit. Each entry is one line, appended in one write. Without
the variable nothing is written.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pagewright.host.lock import lock

VARIABLE = "PAGEWRIGHT_LEDGER"
# What the lock of the logs is called to those who wait for it.
LOGS = "the logs of the tests"


@dataclass(frozen=True)
class Total:
    """What one kind of work took altogether.

    Attributes:
        number: how often it was done.
        seconds: the sum of the times, over all processes.
    """

    number: int
    seconds: float


def begin(file: Path) -> None:
    """Begin a new ledger, for this process and those that it will start."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"kind": "begin", "process": os.getpid(), "at": time.time()}) + "\n")
    os.environ[VARIABLE] = str(file)


@contextmanager
def suite(logs: Path) -> Iterator[None]:
    """Have the logs for a suite alone, with a new ledger among them.

    Two suites at once would take each other's logs away.

    Args:
        logs: the folder, made if it is not there.
    """
    with lock(logs, LOGS):
        begin(logs / ".ledger")
        yield


def begun_here() -> Path | None:
    """Return the ledger that this process has begun, or None if it has not begun one."""
    file = os.environ.get(VARIABLE)
    if not file or _first(Path(file)).get("process") != os.getpid():
        return None
    return Path(file)


def age(file: Path) -> float:
    """Return how many seconds ago a ledger was begun."""
    return time.time() - float(_first(file)["at"])


def _first(file: Path) -> dict[str, Any]:
    with file.open() as ledger:
        entry: dict[str, Any] = json.loads(ledger.readline())
    return entry


@contextmanager
def timed(kind: str) -> Iterator[None]:
    """Write down how long the work within takes, whether it succeeds or not.

    Args:
        kind: what it is, such as "build" or "boot".
    """
    started = time.monotonic()
    try:
        yield
    finally:
        if file := os.environ.get(VARIABLE):
            entry = {"kind": kind, "seconds": round(time.monotonic() - started, 3)}
            with Path(file).open("a") as ledger:
                ledger.write(json.dumps(entry) + "\n")


def total(file: Path, kind: str) -> Total:
    """Return the number and the sum of the entries of one kind."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = [entry["seconds"] for entry in map(json.loads, lines) if entry["kind"] == kind]
    return Total(len(found), sum(found))
