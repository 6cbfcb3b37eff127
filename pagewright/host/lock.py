"""The lock that keeps two runs apart."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pagewright.host.progress import say

# The file in a locked directory.
LOCK_FILE = ".lock"


@contextmanager
def lock(directory: Path, what: str, shared: bool = False) -> Iterator[None]:
    """Hold a directory for ourselves; wait while another run holds it.

    Args:
        directory: what is locked; made if it is not there.
        what: how the directory is called in the message to the waiting user.
        shared: others that also ask for a share may hold it with us.
    """
    with lock_file(directory / LOCK_FILE, what, shared):
        yield


@contextmanager
def lock_file(path: Path, what: str, shared: bool = False) -> Iterator[None]:
    """Hold something else than a directory for ourselves, by a file that stands for it.

    Args:
        path: the file, made with its directory if it is not there; it holds the number of the
            process that has the lock.
        what: how that which is locked is called in the message to the waiting user.
        shared: others that also ask for a share may hold it with us.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    file = _locked(path, kind, what)
    # Who held it may have removed it (`pagewright clean`), and the next run would lock a new one.
    while not _is_at(file, path):
        file.close()
        file = _locked(path, kind, what)
    with file:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def _locked(path: Path, kind: int, what: str) -> TextIO:
    """Open a file, which is made if it is not there, and lock it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+")
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        say(f"waiting for another pagewright (process {owner}) that holds {what}")
        fcntl.flock(file, kind)
    return file


def _is_at(file: TextIO, path: Path) -> bool:
    """Tell whether an open file is still the one that has this name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
