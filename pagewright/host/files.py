"""Files as a whole: what they contain, and putting something else in their place."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def digest(file: Path) -> str:
    """Return a digest of a file's contents; of nothing if it is not there."""
    return hashlib.sha256(file.read_bytes() if file.exists() else b"").hexdigest()


def replace_text(file: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new, never a part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # Another process may be writing the same file.
    scratch = file.with_name(f".{file.name}.{os.getpid()}.new")
    scratch.write_text(text)
    scratch.replace(file)
