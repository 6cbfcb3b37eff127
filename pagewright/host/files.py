"""Files as a whole: what they contain, and putting something else in their place."""

from __future__ import annotations

import hashlib
import os
import shutil
import tomllib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pagewright.host.errors import PagewrightError


def digest(file: Path, algorithm: str = "sha256") -> str:
    """Return a digest of a file's contents; of nothing if it is not there."""
    return hashlib.new(algorithm, file.read_bytes() if file.exists() else b"").hexdigest()


@contextmanager
def toml(file: Path) -> Iterator[dict[str, Any]]:
    """Read a TOML file; what goes wrong while its values are used is an error that names it.

    Raises:
        PagewrightError: it is no TOML, or something is not there, or not of the kind, that is
            taken of it.
    """
    try:
        yield tomllib.loads(file.read_text())
    except KeyError as error:
        raise PagewrightError(f"{file} does not have {error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise PagewrightError(f"{file} is not as it should be: {error}") from error


def empty_folder(folder: Path, but: Collection[str] = ()) -> None:
    """Remove what is in a folder, and not what symbolic links in it lead to.

    Args:
        folder: it stays.
        but: the names of what stays in it.
    """
    for entry in folder.iterdir():
        if entry.name in but:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def replace_text(file: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new, never a part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # Another process may be writing the same file.
    scratch = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        scratch.write_text(text)
        scratch.replace(file)
    except BaseException:
        # A stray beside a hook would be a change since the commit.
        scratch.unlink(missing_ok=True)
        raise
