"""Overlay + hooks -> a `git am`-able series per feature.

Each hook of a feature becomes one commit, together with the new files that
feature.toml lists beside it. The commits are made by git in a scratch
repository whose only commit has the files that are touched, as the kernel has them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pagewright.host.errors import PagewrightError, SourceError
from pagewright.host.lock import lock
from pagewright.host.run import run
from pagewright.host.scratch import scratch
from pagewright.host.workspace import Feature, Workspace
from pagewright.kernel.hooks import patched_files
from pagewright.kernel.source import Source

# git without the user's own configuration, which can change what is in a patch. Files get names of
# twelve digits, as many as git takes in the kernel's own repository.
GIT = (
    *("env", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1"),
    *("git", "-c", "core.abbrev=12"),
)


@contextmanager
def repository(space: Workspace, source: Source, files: Iterable[str]) -> Iterator[Path]:
    """Make a scratch git repository of some files of the kernel, and remove it at the end.

    Its only commit, `pristine`, has those of the files that the kernel has. Git writes its
    index anew at each commit: with the kernel's 87,000 files in it a series takes half a
    minute, with those that are touched less than a second. The patches are the same.

    Args:
        space: the repository of the features.
        source: the pristine kernel.
        files: what the patches that come touch, relative to the kernel's root.

    Yields:
        The repository's work tree.
    """
    with scratch(space.out, "series-") as folder:
        path = folder / "linux"
        for name in files:
            if (source.path / name).exists():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source.path / name, path / name)
        run([*GIT, "init", "-q", path])
        run([*GIT, "add", "--all", "--force"], cwd=path)
        identity = {
            f"GIT_{role}_{key}": value
            for role in ("AUTHOR", "COMMITTER")
            for key, value in (
                ("NAME", "pristine"),
                ("EMAIL", "pristine@localhost"),
                ("DATE", "2000-01-01T00:00:00Z"),
            )
        }
        message = f"linux {source.package_version}"
        run([*GIT, "commit", "-q", "-m", message], cwd=path, env=identity)
        run([*GIT, "branch", "pristine"], cwd=path)
        yield path


def check_commits(space: Workspace, feature: Feature) -> None:
    """Raise unless feature.toml gives every hook and every new file to one commit."""
    hooks = [name.split("/")[1] for name in space.series() if name.split("/")[0] == feature.name]
    listed = [commit.hook for commit in feature.commits]
    if hooks != listed:
        raise SourceError(
            f"{feature.name}: series and feature.toml differ in their hooks",
            f"series has {hooks}, feature.toml has {listed}",
        )
    given = sorted(file for commit in feature.commits for file in commit.files)
    new = [str(file) for file in feature.new_files()]
    if given != new:
        odd = sorted(set(given) ^ set(new)) or "a file that is listed twice"
        raise SourceError(
            f"{feature.name}: feature.toml must give each new file to one commit", f"see {odd}"
        )


def compose(
    space: Workspace, source: Source, feature: Feature, signoff: bool = False
) -> list[Path]:
    """Write a feature's series to out/VERSION/series/FEATURE and return the patches.

    Args:
        space: the repository.
        source: the pristine kernel.
        feature: the feature; those it builds on must be applied before it.
        signoff: add the committer's Signed-off-by.

    Raises:
        SourceError: feature.toml is not complete, git knows no identity, or a
            hook does not apply.
    """
    check_commits(space, feature)
    identity = _identity(space)
    store = space.out / "series"
    target = store / feature.name
    with (
        lock(store, "the patch series"),
        repository(space, source, touched(space, feature)) as path,
    ):
        for name in feature.builds_on:
            for commit in space.feature(name).commits:
                _commit(space, space.feature(name), commit.hook, commit.files, path, identity)
        start = run(["git", "rev-parse", "HEAD"], cwd=path).strip()
        for commit in feature.commits:
            _commit(space, feature, commit.hook, commit.files, path, identity, signoff)
        fresh = path.parent / "patches"
        run([*GIT, "format-patch", "-q", "--no-signature", "-o", fresh, start], cwd=path)
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(fresh, target)
    return sorted(target.glob("*.patch"))


def commit_all(space: Workspace, path: Path) -> None:
    """Commit every hook of every feature, in the order in which they are applied to the tree.

    Args:
        space: the repository.
        path: the work tree of a repository with all files that any feature touches.

    Raises:
        SourceError: git knows no identity, or a hook does not apply.
    """
    identity = _identity(space)
    for name in space.series():
        feature = space.feature(name.split("/")[0])
        commit = next(c for c in feature.commits if c.hook == name.split("/")[1])
        _commit(space, feature, commit.hook, commit.files, path, identity)


def touched(space: Workspace, feature: Feature) -> list[str]:
    """Return every existing file that a feature and what it builds on touch."""
    names = []
    for one in (*map(space.feature, feature.builds_on), feature):
        for commit in one.commits:
            names += patched_files((space.hooks(one.name) / commit.hook).read_text())
            names += commit.files
    return sorted(set(names))


def _identity(space: Workspace) -> dict[str, str]:
    """Return the variables that tell git who commits in the clone, for use in another repository.

    The clone may have a name and an address of its own (`git config --local user.email`), which
    git does not know elsewhere.

    Raises:
        SourceError: git does not know who commits.
    """
    variables = {}
    for role in ("AUTHOR", "COMMITTER"):
        try:
            said = run(["git", "var", f"GIT_{role}_IDENT"], cwd=space.root)
        except PagewrightError as error:
            raise SourceError(
                "git does not know who the author of the series is",
                "run: git config --global user.name NAME; git config --global user.email ADDRESS",
            ) from error
        name, _, rest = said.rpartition(" <")
        variables[f"GIT_{role}_NAME"] = name
        variables[f"GIT_{role}_EMAIL"] = rest.rpartition("> ")[0]
    return variables


def _commit(
    space: Workspace,
    feature: Feature,
    hook: str,
    files: tuple[str, ...],
    path: Path,
    identity: dict[str, str],
    signoff: bool = False,
) -> None:
    """Apply one hook, add its new files, and commit them with the hook's message."""
    patch = space.hooks(feature.name) / hook
    message = patch.read_text().split("\n---\n", 1)[0]
    run([*GIT, "apply", "--index", patch], cwd=path)
    for name in files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(feature.overlay / name, path / name)
    if files:
        run([*GIT, "add", "--force", *files], cwd=path)
    sign = ["--signoff"] if signoff else []
    run([*GIT, "commit", "-q", *sign, "-F", "-"], cwd=path, stdin=message, env=identity)


def apply(patches: list[Path], path: Path) -> None:
    """Apply a series with `git am` to a work tree.

    Raises:
        SourceError: a patch does not apply.
    """
    run([*GIT, "am", "--keep-non-patch", "-q", *patches], cwd=path)
