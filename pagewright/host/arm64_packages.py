"""Debian packages of arm64, fetched and extracted, and never installed: what guests are made of."""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagewright.host import disk, packages
from pagewright.host.errors import BuildError, PagewrightError
from pagewright.host.lock import lock
from pagewright.host.progress import Bar, say
from pagewright.host.run import run
from pagewright.host.scratch import scratch
from pagewright.host.workspace import Workspace

# The space that fetching takes for a while, in MB, a third more than was measured for all packages
# of the guest: their tar in the cache, and their files in the folder for temporary files.
_TAR_MB = 600
_UNPACKED_MB = 900

# Where the list of the packages is in the tar.
_LIST = "var/lib/packages.txt"
# The packages' files are gone when mmdebstrap ends; this runs while they are there.
_WRITE_LIST = (
    'for deb in "$1"/var/cache/apt/archives/*.deb; do '
    "dpkg-deb --show --showformat='${Package} ${Version}\\n' \"$deb\" || exit; "
    f'done | LC_ALL=C sort >"$1"/{_LIST}'
)


@dataclass(frozen=True)
class Fetched:
    """Packages, extracted.

    Attributes:
        tar: their files, and those of all packages that they need.
        listing: all these packages, a line with the name and the version each, sorted.
    """

    tar: Path
    listing: Path


def fetch(space: Workspace, names: Sequence[str]) -> Fetched:
    """Return packages and all they need, extracted, from the cache or from Debian.

    Args:
        space: the repository.
        names: the packages; a list of names is fetched once and stays as it was.

    Raises:
        BuildError: apt has no source for the host's release of Debian.
        PagewrightError: mmdebstrap failed, which says why.
        DiskFullError: no space.
    """
    release = packages.debian_release()
    store = space.cache / "guest"
    name = hashlib.sha256(" ".join((release, *names)).encode()).hexdigest()[:16]
    tar = store / f"{release}-{name}.tar"
    fetched = Fetched(tar, tar.with_suffix(".packages.txt"))
    with lock(store, "the guest cache"):
        if not (fetched.tar.exists() and fetched.listing.exists()):
            disk.require(store, _TAR_MB, "packages of arm64")
            disk.require(Path(tempfile.gettempdir()), _UNPACKED_MB, "unpacking them")
            with scratch(store, "fetch-") as folder:
                fresh = folder / "root.tar"
                _extract(release, names, fresh)
                content = run(["tar", "-x", "-O", "-f", fresh, f"./{_LIST}"])
                fetched.listing.write_text(content)
                fresh.rename(fetched.tar)
    return fetched


def read(fetched: Fetched, name: str) -> bytes:
    """Return the contents of one file of fetched packages, named from their root.

    Raises:
        BuildError: no package has it.
    """
    with tarfile.open(fetched.tar) as archive:
        try:
            member = archive.extractfile(f"./{name}")
        except KeyError:
            member = None
        if member is None:
            raise BuildError(f"none of the packages fetched has {name}", f"see {fetched.listing}")
        return member.read()


def _extract(release: str, names: Sequence[str], tar: Path) -> None:
    """Have mmdebstrap download packages of arm64 and put their files into a tar."""
    sites = packages.apt_sites(release)
    if not sites:
        raise BuildError(f"apt has no source for Debian {release}", "run `apt-get update`")
    lines = "".join(
        f"deb {site} {suite} main\n" for site, suite in sites if "backports" not in suite
    )
    command = _allowed(
        [
            "mmdebstrap",
            "--arch=arm64",
            "--variant=extract",
            "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
            '--aptopt=Acquire::Retries "3"',
            "--dpkgopt=path-exclude=/usr/share/doc/*",
            "--dpkgopt=path-exclude=/usr/share/man/*",
            "--dpkgopt=path-exclude=/usr/share/locale/*",
            f"--extract-hook={_WRITE_LIST}",
            f"--include={','.join(names)}",
            release,
            str(tar),
            "-",
        ]
    )
    with Bar("fetch packages of arm64", None):
        run(command, stdin=lines)


def _allowed(mmdebstrap: list[str]) -> list[str]:
    """Return a command of mmdebstrap so that it may own files as root.

    A user gets that in a user namespace, if the host allows one; otherwise from sudo.
    """
    if os.geteuid() == 0:
        return mmdebstrap
    try:
        # Does all that mmdebstrap will do, and needs the same files and programs of the host.
        run(["unshare", "--map-auto", "--map-root-user", "true"])
    except PagewrightError:
        say("no user namespaces here (are uidmap and /etc/subuid there?): sudo fetches packages")
        return packages.as_root(mmdebstrap)
    return [mmdebstrap[0], "--mode=unshare", *mmdebstrap[1:]]
