"""The state of the repository, as git tells it."""

from __future__ import annotations

from tempfile import TemporaryDirectory

from pagewright.host.errors import PagewrightError
from pagewright.host.run import run
from pagewright.host.workspace import Workspace

# Folders whose new files go into kernels, their packages, guests and experiments before git is told
# of them.
_TAKEN_WHOLE = ("base/", "bench/", "features/", "packaging/debian/", "pagewright/")


def is_cloned(space: Workspace) -> bool:
    """Tell whether there is a repository of git around these sources."""
    return (space.root / ".git").exists()


def commit(space: Workspace) -> str:
    """Return the repository's commit, with a + if there are changes since.

    It is "none" in sources that were not cloned.

    Raises:
        PagewrightError: they were, and git cannot tell.
    """
    if not is_cloned(space):
        return "none"
    status = ["git", "status", "--porcelain", "--untracked-files=normal"]
    name = run(["git", "rev-parse", "--short=12", "HEAD"], cwd=space.root).strip()
    lines = run(status, cwd=space.root).splitlines()
    changed = any(not line.startswith("??") or line[3:].startswith(_TAKEN_WHOLE) for line in lines)
    return f"{name}+" if changed else name


def last_commit(space: Workspace, *paths: str) -> tuple[str, int]:
    """Return the last commit that changed one of some paths, or anything if none is given.

    In a shallow clone that is the oldest commit which is there, if none after it changed them.

    Returns:
        Its hash, and when it was made, in seconds since 1970; "none" and 0 where git does not know
        one, as in sources that were not cloned.

    Raises:
        PagewrightError: they were, and git cannot tell.
    """
    if not is_cloned(space):
        return "none", 0
    # A user's configuration has no say in what this prints, unlike `git log`.
    last = ["git", "rev-list", "--max-count=1", "--timestamp", "HEAD", "--", *paths]
    found = run(last, cwd=space.root)
    if not found:
        return "none", 0
    seconds, name = found.split()
    return name[:12], int(seconds)


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
