"""Folders of work in progress, and of what several runs use at once.

A killed run leaves its scratch folders behind. Each is locked while its run lives, so that the
next run that makes one in the same place can tell those that are left over, and removes them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from pathlib import Path

from pagewright.host.errors import HostError
from pagewright.host.lock import LOCK_FILE
from pagewright.host.progress import say


@contextmanager
def scratch(directory: Path, prefix: str) -> Iterator[Path]:
    """Make a folder for work in progress, and remove it at the end.

    Folders of the same kind that killed runs left are removed first.

    Args:
        directory: where it is made; made itself if it is not there.
        prefix: the beginning of its name, which tells what kind it is.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for stray in directory.glob(f"{prefix}*"):
        _remove_unless_locked(stray)
    path, held = _make_locked(directory, prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(held)


def temporary(kind: str) -> AbstractContextManager[Path]:
    """Make a scratch folder of a kind where this computer keeps temporary files."""
    return scratch(Path(tempfile.gettempdir()), f"pagewright-{kind}-")


def _make_locked(directory: Path, prefix: str) -> tuple[Path, int]:
    """Make a folder and lock it; return it with the open file that holds the lock."""
    while True:
        path = Path(tempfile.mkdtemp(dir=directory, prefix=prefix))
        try:
            held = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue
        fcntl.flock(held, fcntl.LOCK_EX)
        # Another run that looks for strays may have taken it before we had the lock.
        if path.exists():
            return path, held
        os.close(held)


def _remove_unless_locked(stray: Path) -> None:
    """Remove a scratch folder if the run that made it is gone."""
    try:
        # Where temporary files are, any user may have made something of this name. A FIFO would
        # not be opened before somebody writes to it.
        held = os.open(stray, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(stray, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(held)


def _mark(entry: Path) -> Path:
    """Return the file that is locked while an entry of the cache is used.

    Its time says when the entry was used last, and its lines name the processes.
    """
    return entry.with_name(f".{entry.name}.used")


@cache
def claim(entry: Path) -> None:
    """Keep an entry of the cache, or a build, from being removed until this process ends.

    The caller holds the lock of the folder that the entry is in, as that of `prune` does, if there
    is anybody who prunes it.

    Args:
        entry: the folder.
    """
    # Never closed: the kernel drops the lock when the process ends, however it ends.
    held = os.open(_mark(entry), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        # If nobody else uses the entry, all processes that the file names have ended.
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(held, 0)
    except BlockingIOError:
        pass
    fcntl.flock(held, fcntl.LOCK_SH)
    os.write(held, f"{os.getpid()}\n".encode())


@contextmanager
def held_alone(folders: Iterable[Path]) -> Iterator[None]:
    """Hold all that other processes could be using in some folders, so that it can be removed.

    Args:
        folders: those whose subfolders are locked, or claimed, while they are used; they need
            not be there.

    Raises:
        HostError: another process uses something in them.
    """
    with ExitStack() as stack:
        names = (LOCK_FILE, _mark(Path("*")).name)
        files = [file for folder in folders for name in names for file in folder.glob(f"*/{name}")]
        for file in sorted(files):
            lines = stack.enter_context(file.open())
            try:
                fcntl.flock(lines, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                living = [one for one in lines.read().split() if Path("/proc", one).exists()]
                raise HostError(
                    f"process {' and '.join(living) or 'unknown'} uses {file.parent}",
                    "wait until it has ended, or end it",
                ) from None
        yield


def prune(entries: Iterable[Path], keep: int) -> None:
    """Remove all entries of the cache but those used last and those in use now.

    Args:
        entries: folders that are alternatives to each other, such as releases of a kernel.
        keep: how many of them stay.
    """

    def last_used(entry: Path) -> float:
        return _mark(entry).stat().st_mtime if _mark(entry).exists() else 0

    for entry in sorted(entries, key=last_used, reverse=True)[keep:]:
        held = os.open(_mark(entry), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            say(f"removing {entry}: only the {keep} used last are kept")
            # If this is interrupted, nobody takes what is left for the whole entry.
            with scratch(entry.parent, "removed-") as folder:
                entry.rename(folder / entry.name)
            _mark(entry).unlink()
        except BlockingIOError:
            pass
        finally:
            os.close(held)
