"""The state of the repository, as git tells it."""

from __future__ import annotations

from pagewright.host.errors import PagewrightError
from pagewright.host.run import run
from pagewright.host.workspace import Workspace


def commit(space: Workspace) -> str:
    """Return the repository's commit, with a + if there are changes since.

    It is "none" where git does not know one, as in sources that were not cloned.
    """
    try:
        name = run(["git", "rev-parse", "--short=12", "HEAD"], cwd=space.root).strip()
        dirty = run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=space.root)
    except PagewrightError:
        return "none"
    return f"{name}+" if dirty.strip() else name
