"""Space on the disks: asked for before a long step, not found missing at its end."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from pagewright.host.errors import DiskFullError
from pagewright.host.run import run


def existing(path: Path) -> Path:
    """Return the path itself, or the nearest folder above it that is there."""
    path = path.absolute()
    return next(folder for folder in (path, *path.parents) if folder.exists())


def free(path: Path) -> int:
    """Return how many megabytes (of 10^6 bytes) are free where a path is, or would be."""
    return shutil.disk_usage(existing(path)).free // 10**6


def require(path: Path, megabytes: int, what: str) -> None:
    """Raise unless there is space for something that is about to be written.

    Args:
        path: the file or folder that it will be in; need not be there yet.
        megabytes: how much space it takes, in units of 10^6 bytes.
        what: what it is, for the message.

    Raises:
        DiskFullError: there is less.
    """
    there = free(path)
    if there < megabytes:
        raise DiskFullError(
            f"{what} needs {megabytes} MB, and {existing(path)} has {there} MB free",
            "free some space there, then run the same command again",
        )


def occupied(path: Path) -> int:
    """Return how many megabytes a folder and what is in it occupy; none if it is not there."""
    if not path.exists():
        return 0
    # Files that go away meanwhile are no error.
    output = run(["du", "-s", "--block-size=MB", path], check=False).splitlines()
    return int(output[-1].split("MB")[0]) if output else 0


def shortages(wanted: Mapping[Path, int]) -> list[str]:
    """Return a line for each disk that has less space than its folders will need.

    Args:
        wanted: how many megabytes each folder will have in it, with what is there already.
    """
    by_disk: dict[int, list[Path]] = {}
    for folder in wanted:
        by_disk.setdefault(existing(folder).stat().st_dev, []).append(folder)
    lines = []
    for folders in by_disk.values():
        needed = sum(max(0, wanted[folder] - occupied(folder)) for folder in folders)
        if (there := free(folders[0])) < needed:
            names = " and ".join(map(str, folders))
            lines.append(f"{there} MB free for {names}; `make test` needs {needed} MB more there")
    return lines
