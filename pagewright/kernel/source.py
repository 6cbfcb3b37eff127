"""A kernel source package -> a pristine tree in the cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pagewright.host import disk
from pagewright.host.errors import PagewrightError, SourceError
from pagewright.host.lock import lock
from pagewright.host.packages import DOWNLOAD_OPTIONS, offered
from pagewright.host.progress import Bar, say
from pagewright.host.run import run
from pagewright.host.scratch import claim, prune, scratch
from pagewright.host.workspace import Workspace

# tar reports progress every so many records of 10240 bytes.
RECORD = 10240
CHECKPOINT = 1000

# How many releases stay in the cache: the one in use, and the one before.
KEEP = 2
# What the package, the tarball in it and the tree take together, in MB.
UNPACK_MB = 2500

# An environment variable that names the point release to take.
VARIABLE = "PAGEWRIGHT_KERNEL"
# Its value that takes whatever apt has last.
NEWEST = "newest"


@dataclass(frozen=True)
class Source:
    """A pristine kernel tree, unpacked from a package."""

    package_version: str
    path: Path

    @property
    def kernel_version(self) -> str:
        """The point release, such as 6.12.117."""
        return self.package_version.split("-")[0]


def candidate(space: Workspace, package: str, known_good: str, wanted: str = "") -> str:
    """Return the version of a package to take, of those that apt offers.

    Args:
        space: the repository.
        package: the package.
        known_good: the point release that is taken if nothing else is wanted; the newest one
            if apt no longer has it.
        wanted: another point release, such as 6.12.117, or `newest`.

    Raises:
        SourceError: apt does not know the package, or no such version, or its lists are old.
    """
    versions = offered(space, package)
    if not versions:
        raise SourceError(
            f"apt does not know the package {package}",
            "run `apt-get update` (Debian 12 needs its security or updates suite enabled)",
        )
    if wanted == NEWEST:
        return versions[0]
    fitting = [v for v in versions if v.startswith(f"{wanted or known_good}-")]
    if fitting:
        return fitting[0]
    if wanted:
        raise SourceError(
            f"apt offers no version {wanted} of {package}",
            f"unset PAGEWRIGHT_KERNEL, or set it to {NEWEST} or the point release of one of: "
            f"{', '.join(versions)}",
        )
    if _numbers(versions[0]) < _numbers(known_good):
        raise SourceError(
            f"apt knows nothing newer than linux {versions[0]}, and {known_good} is known good",
            "its lists are old, or its mirror is: run `apt-get update`; "
            f"PAGEWRIGHT_KERNEL={NEWEST} takes what there is",
        )
    say(f"apt no longer has linux {known_good}, which is known good; taking {versions[0]}")
    return versions[0]


def wanted_version(space: Workspace) -> str:
    """Return the version of the source package that is to be taken, fetched already or not.

    Raises:
        SourceError: apt does not have the release asked for.
    """
    base = space.base()
    return candidate(space, base.package, base.known_good, os.environ.get(VARIABLE, ""))


def newer(space: Workspace, package: str, taken: str) -> str:
    """Return the version of a package that apt has last, if it is newer than the one taken.

    It is empty where the environment variable PAGEWRIGHT_KERNEL says which release to take: who
    has set it knows that there are others.

    Args:
        space: the repository.
        package: the package.
        taken: the version that `candidate` chose.
    """
    versions = offered(space, package)
    if os.environ.get(VARIABLE) or not versions:
        return ""
    # Lists that apt has from before know of older ones only.
    later = ["dpkg", "--compare-versions", versions[0], "gt", taken]
    return versions[0] if subprocess.run(later, check=False).returncode == 0 else ""


def _numbers(version: str) -> list[int]:
    """Return the numbers of a point release, to compare it."""
    return [int(number) for number in version.split("-")[0].split(".")]


def unpacked(space: Workspace, version: str) -> Path:
    """Return where the pristine tree of a version of the package is, if it is there."""
    return space.cache / "source" / version


@cache
def ensure(space: Workspace) -> Source:
    """Fetch and unpack the source package, unless that was done before.

    That is the release known good (base.toml), or what the environment variable
    PAGEWRIGHT_KERNEL says: a point release, or `newest`. The tree appears in the cache when
    it is complete, never before; it stays there at least until this process ends. Of older
    releases one stays.

    Raises:
        SourceError: no package, or not the release asked for.
        NetworkError: no network.
        DiskFullError: no space.
    """
    version = wanted_version(space)
    store = space.cache / "source"
    source = Source(version, unpacked(space, version))
    with lock(store, "the source cache"):
        if not source.path.exists():
            disk.require(store, UNPACK_MB, "the kernel source")
            with scratch(store, "unpack-") as folder:
                _unpack(_download(f"{space.base().package}={version}", folder), folder, source.path)
        claim(source.path)
        # Versions begin with a digit, which scratch folders do not.
        prune(store.glob("[0-9]*"), KEEP)
    return source


def _download(package: str, folder: Path) -> Path:
    """Download a package with apt.

    Raises:
        SourceError: apt's lists are older than the archive.
    """
    # Root's apt drops privileges for downloads, which needs a folder it can write to.
    options = [*DOWNLOAD_OPTIONS, "-o", "APT::Sandbox::User=root"]
    command = ["apt-get", *options, "download", package]
    try:
        run(command, cwd=folder)
    except PagewrightError as error:
        if "404" not in error.details:
            raise
        raise SourceError(
            f"the archive no longer has the version of {package} that apt's lists name",
            "run `apt-get update`, then the same command again",
        ) from error
    return next(folder.glob("*.deb"))


def _unpack(deb: Path, folder: Path, target: Path) -> None:
    """Unpack the source tarball inside a package, then move it into place."""
    run(["dpkg-deb", "-x", deb, folder / "deb"])
    deb.unlink()
    tarball = next((folder / "deb" / "usr" / "src").glob("linux-source-*.tar.*"))
    totals = run(["xz", "--robot", "--list", tarball]).split()
    size = int(totals[totals.index("totals") + 4])
    with Bar("unpack the kernel source", size // RECORD) as bar:

        def follow(line: str) -> None:
            if line.isdigit():
                bar.to(int(line))

        run(
            [
                "tar",
                "-x",
                # kbuild compares times: the package's own are older than what was compiled
                # before this release came.
                "-m",
                f"--checkpoint={CHECKPOINT}",
                "--checkpoint-action=echo=%u",
                "-f",
                tarball,
                "-C",
                folder,
            ],
            on_line=lambda line: follow(line.removeprefix("tar: ")),
        )
    unpacked = next(p for p in folder.iterdir() if p.name.startswith("linux-source-"))
    shutil.move(unpacked, target)
