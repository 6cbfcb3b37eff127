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
from pagewright.host.errors import BuildError, PagewrightError, ProgramError, VersionGoneError
from pagewright.host.lock import lock
from pagewright.host.progress import Bar, say
from pagewright.host.run import run
from pagewright.host.scratch import claim, prune, scratch
from pagewright.host.workspace import Workspace

# The space that fetching takes for a while, in MB, a third more than was measured for all packages
# of the guest: their tar in the cache, and their files in the folder for temporary files.
_TAR_MB = 600
_UNPACKED_MB = 900

# How many lists of packages stay in the cache: as many as there are now, of the guests, of Debian's
# configurations, of whole systems and of UEFI, and some of the last lists, which another clone may
# have.
_KEEP_LISTS = 10

# What the name of a list ends with where that of the tar has its suffix.
_LISTING = ".packages.txt"
# Where the list of the packages is in the tar.
_LIST = "var/lib/packages.txt"
# The packages' files are gone when mmdebstrap ends; this runs while they are there.
_WRITE_LIST = (
    'for deb in "$1"/var/cache/apt/archives/*.deb; do '
    "dpkg-deb --show --showformat='${Package} ${Version}\\n' \"$deb\" || exit; "
    f'done | LC_ALL=C sort >"$1"/{_LIST}'
)


# Extracted packages cannot be installed any more; these can.
_KEEP = 'mkdir "$1/debs" && cp "$1"/var/cache/apt/archives/*.deb "$1/debs"'


@dataclass(frozen=True)
class Fetched:
    """Packages, extracted.

    Attributes:
        tar: their files, and those of all packages that they need.
        listing: all these packages, a line with the name and the version each, sorted.
    """

    tar: Path
    listing: Path


def fetch(
    space: Workspace,
    names: Sequence[str],
    release: str = "",
    keep: bool = False,
    instead_of: str = "",
) -> Fetched:
    """Return packages and all they need, extracted, from the cache or from Debian.

    Args:
        space: the repository.
        names: the packages; a list of names is fetched once and stays as it was. A name may be
            followed by an equals sign and a version. One that begins with a question mark is a
            pattern of apt, such as ?essential.
        release: the release of Debian that they are of; the host's if empty.
        keep: the packages as they come are in the folder debs, too, to be installed.
        instead_of: a version that cannot be had; a list that stands in for another version stays
            as it was for that one alone.

    Raises:
        BuildError: apt has no source for the host's release of Debian.
        VersionGoneError: Debian does not have a version that is asked for.
        PagewrightError: mmdebstrap failed, which says why.
        DiskFullError: no space.
    """
    release = release or packages.debian_release()
    store = space.cache / "guest"
    words = (release, *names, *(("keep",) if keep else ()), *filter(None, (instead_of,)))
    name = hashlib.sha256(" ".join(words).encode()).hexdigest()[:16]
    tar = store / f"{release}-{name}.tar"
    fetched = Fetched(tar, tar.with_suffix(_LISTING))
    with lock(store, "the guest cache"):
        if not (fetched.tar.exists() and fetched.listing.exists()):
            disk.require(store, _TAR_MB, "packages of arm64")
            disk.require(Path(tempfile.gettempdir()), _UNPACKED_MB, "unpacking them")
            with scratch(store, "fetch-") as folder:
                fresh = folder / "root.tar"
                _extract(release, names, fresh, keep)
                content = run(["tar", "-x", "-O", "-f", fresh, f"./{_LIST}"])
                fetched.listing.write_text(content)
                fresh.rename(fetched.tar)
        claim(fetched.tar)
        prune(store.glob("*.tar"), _KEEP_LISTS)
        for listing in store.glob(f"*{_LISTING}"):
            if not listing.with_name(f"{listing.name.removesuffix(_LISTING)}.tar").exists():
                listing.unlink()
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


def _sources(release: str) -> str:
    """Return the lines of sources.list that have a release.

    Raises:
        BuildError: apt gets nothing of Debian from anywhere.
    """
    host = packages.debian_release()
    sites = packages.apt_sites(host)
    if not sites:
        raise BuildError(f"apt has no source for Debian {host}", "run `apt-get update`")
    if release == host:
        return "".join(
            f"deb {site} {suite} main\n" for site, suite in sites if "backports" not in suite
        )
    # Any mirror has all releases, though the host's apt asks it for one only.
    site = next((site for site, suite in sites if suite == host), sites[0][0])
    return f"deb {site} {release} main\n"


def _extract(release: str, names: Sequence[str], tar: Path, keep: bool) -> None:
    """Have mmdebstrap download packages of arm64 and put their files into a tar."""
    lines = _sources(release)
    # A pattern ends where the option does.
    patterns = [f"--include={name}" for name in names if name.startswith("?")]
    plain = ",".join(name for name in names if not name.startswith("?"))
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
            # UEFI as a flash memory: 64 MB for each of several, and guests need none.
            "--dpkgopt=path-exclude=/usr/share/AAVMF/*",
            f"--extract-hook={_WRITE_LIST}",
            *([f"--extract-hook={_KEEP}"] if keep else []),
            *patterns,
            f"--include={plain}",
            release,
            str(tar),
            "-",
        ]
    )
    with Bar("fetch packages of arm64", None):
        try:
            run(command, stdin=lines)
        except ProgramError as error:
            # What apt says of a version; the archive drops old ones.
            if "was not found" not in error.details:
                raise
            raise VersionGoneError(error.what, error.todo, error.details) from error


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
        return packages.as_root(
            mmdebstrap,
            "fetching the guest's packages without user namespaces",
            "allow user namespaces (`pagewright setup` gives what they need), install sudo, or run "
            "the same command as root",
        )
    return [mmdebstrap[0], "--mode=unshare", *mmdebstrap[1:]]
