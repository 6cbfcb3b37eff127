"""The state of the repository, as git tells it."""

from __future__ import annotations

from tempfile import TemporaryDirectory

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


def files(space: Workspace) -> str:
    """Return git's name (that of a tree) for the files as they are, committed or not.

    New files count unless git ignores them. The index of the repository stays as it is.

    Raises:
        PagewrightError: these sources were not cloned.
    """
    with TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": f"{folder}/index"}
        run(["git", "add", "--all"], cwd=space.root, env=index)
        return run(["git", "write-tree"], cwd=space.root, env=index).strip()


def changed(space: Workspace, before: str, after: str) -> list[str] | None:
    """Return the files in which two results of `files()` differ.

    Returns:
        Their paths from the root, or None if git no longer has one of the two.
    """
    names = ["git", "diff", "--name-only", "--no-renames", before, after]
    try:
        return run(names, cwd=space.root).splitlines()
    except PagewrightError:
        return None
