"""A kernel source package -> a pristine tree in the cache."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pagewright.host.errors import PagewrightError, SourceError
from pagewright.host.lock import lock
from pagewright.host.progress import Bar
from pagewright.host.run import run
from pagewright.host.workspace import Workspace

# tar reports progress every so many records of 10240 bytes.
RECORD = 10240
CHECKPOINT = 1000


@dataclass(frozen=True)
class Source:
    """A pristine kernel tree, unpacked from a package."""

    package_version: str
    path: Path

    @property
    def kernel_version(self) -> str:
        """The point release, such as 6.12.117."""
        return self.package_version.split("-")[0]


def candidate(package: str, release: str = "") -> str:
    """Return the newest version of a package that apt offers.

    Args:
        package: the package.
        release: only versions of this point release, such as 6.12.117.

    Raises:
        SourceError: apt does not know the package, or no such version.
    """
    rows = [line.split("|") for line in run(["apt-cache", "madison", package]).splitlines()]
    versions = [row[1].strip() for row in rows if len(row) == 3]
    if not versions:
        raise SourceError(
            f"apt does not know the package {package}",
            "run `apt-get update` (Debian 12 needs its security or updates suite enabled)",
        )
    fitting = [v for v in versions if not release or v.startswith(f"{release}-")]
    if not fitting:
        raise SourceError(
            f"apt offers no version {release} of {package}",
            f"unset PAGEWRIGHT_KERNEL, or set it to one of: {', '.join(versions)}",
        )
    return fitting[0]


def ensure(space: Workspace) -> Source:
    """Fetch and unpack the newest source package, unless that was done before.

    The environment variable PAGEWRIGHT_KERNEL chooses an older point release.
    The tree appears in the cache when it is complete, never before.

    Raises:
        SourceError: no package, no network, no space.
    """
    package = space.base().package
    version = candidate(package, os.environ.get("PAGEWRIGHT_KERNEL", ""))
    store = space.cache / "source"
    source = Source(version, store / version)
    with lock(store, "the source cache"):
        for stray in store.glob("unpack-*"):
            shutil.rmtree(stray, ignore_errors=True)
        if not source.path.exists():
            with tempfile.TemporaryDirectory(dir=store, prefix="unpack-") as scratch:
                _unpack(
                    _download(f"{package}={version}", Path(scratch)), Path(scratch), source.path
                )
    return source


def _download(package: str, scratch: Path) -> Path:
    """Download a package with apt, after `apt-get update` if the lists are stale."""
    # Root's apt drops privileges for downloads, which needs a folder it can write to.
    command = ["apt-get", "-o", "APT::Sandbox::User=root", "download", package]
    try:
        run(command, cwd=scratch)
    except PagewrightError as error:
        if "404" not in error.details:
            raise
        raise SourceError(
            f"the archive no longer has the version of {package} that apt's lists name",
            "run `apt-get update`, then the same command again",
        ) from error
    return next(scratch.glob("*.deb"))


def _unpack(deb: Path, scratch: Path, target: Path) -> None:
    """Unpack the source tarball inside a package, then move it into place."""
    run(["dpkg-deb", "-x", deb, scratch / "deb"])
    deb.unlink()
    tarball = next((scratch / "deb" / "usr" / "src").glob("linux-source-*.tar.*"))
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
                f"--checkpoint={CHECKPOINT}",
                "--checkpoint-action=echo=%u",
                "-f",
                tarball,
                "-C",
                scratch,
            ],
            on_line=lambda line: follow(line.removeprefix("tar: ")),
        )
    unpacked = next(p for p in scratch.iterdir() if p.name.startswith("linux-source-"))
    shutil.move(unpacked, target)
