"""Small suites, which tests write and run with the fixtures of this repository."""

from __future__ import annotations

import sys
from pathlib import Path


def command(folder: Path, *words: object) -> list[object]:
    """Return the command that runs the suite in a folder, and keeps its logs there.

    Args:
        folder: of the suite. The command runs where `conftest` can be imported.
        words: further arguments of pytest.
    """
    pytest = (sys.executable, "-m", "pytest", "--rootdir", folder, "-p", "conftest", "-q")
    return [*pytest, "-p", "no:cacheprovider", f"--logs={folder / 'logs'}", *words]
