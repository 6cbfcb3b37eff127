"""Debian packages + guest programs -> the guest's root file system, an ext4 image.

The packages are only extracted, never configured, so nothing of arm64 runs here. Beside the image
is packages.txt, which says what versions of which packages are in it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pagewright.guest import programs
from pagewright.host import disk, packages
from pagewright.host.errors import BuildError, PagewrightError
from pagewright.host.lock import lock
from pagewright.host.progress import Bar, say
from pagewright.host.run import run
from pagewright.host.scratch import scratch
from pagewright.host.workspace import Workspace
from pagewright.kernel import source

PACKAGES = (
    "bash",
    "busybox",
    "coreutils",
    "dash",
    "dmsetup",
    "dropbear-bin",
    "fio",
    "gcc",
    "grep",
    "gzip",
    "kmod",
    "libc-bin",
    "libc6-dev",
    "libmemcached-tools",
    "libstb-dev",
    "memcached",
    "mount",
    "procps",
    "psmisc",
    "sed",
    "stress-ng",
    "tcc",
    "util-linux",
)
# The image gets this much more than its contents, for what guests write.
SPARE_MB = 256

# The space that the steps take for a while, in MB, a third more than was measured: the tar of
# packages in the cache and their files in the folder for temporary files; the files and the image.
_TAR_MB = 600
_UNPACKED_MB = 900
_IMAGE_MB = 1600

# Where the list of the packages is in the guest.
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


@cache
def ensure(space: Workspace) -> Path:
    """Bring the guest image up to date and return it.

    Raises:
        BuildError: packages cannot be fetched, or a program does not compile.
    """
    pristine = source.ensure(space)
    target = space.out / "guest"
    image = target / "root.ext4"
    with lock(target, "the guest image"):
        fetched = _fetch(space, PACKAGES)
        overlay = target / "programs"
        inputs = [fetched.listing, *programs.ensure(space, pristine, overlay)]
        key = _key(fetched, inputs)
        made = stamp(space)
        if not (image.exists() and made.exists() and made.read_text() == key):
            made.unlink(missing_ok=True)
            _make_image(fetched.tar, overlay, image)
            shutil.copyfile(fetched.listing, listing(space))
            made.write_text(key)
    return image


def _key(fetched: Fetched, inputs: Sequence[Path]) -> str:
    """Digest all that an image is made of, and this file, which says how it is made."""
    files = (Path(__file__), *inputs)
    text = b"".join(str(file).encode() + file.read_bytes() for file in files)
    return hashlib.sha256(text + fetched.tar.name.encode()).hexdigest()


def listing(space: Workspace) -> Path:
    """Return the file that lists the packages of the guest image, with their versions."""
    return space.out / "guest" / "packages.txt"


def stamp(space: Workspace) -> Path:
    """Return the file with the digest of all that the guest image was made of."""
    return space.out / "guest" / "stamp"


def fetch(space: Workspace, names: Sequence[str]) -> Path:
    """Return a tar of extracted packages and all they need, made once per list of names."""
    return _fetch(space, names).tar


def _fetch(space: Workspace, names: Sequence[str]) -> Fetched:
    """Fetch packages into the cache, unless they are there with their list."""
    release = packages.debian_release()
    store = space.cache / "guest"
    name = hashlib.sha256(" ".join((release, *names)).encode()).hexdigest()[:16]
    tar = store / f"{release}-{name}.tar"
    fetched = Fetched(tar, tar.with_suffix(".packages.txt"))
    with lock(store, "the guest cache"):
        if not (fetched.tar.exists() and fetched.listing.exists()):
            disk.require(store, _TAR_MB, "a copy of the guest's packages")
            disk.require(Path(tempfile.gettempdir()), _UNPACKED_MB, "unpacking them")
            with scratch(store, "fetch-") as folder:
                fresh = folder / "root.tar"
                _extract(release, names, fresh)
                content = run(["tar", "-x", "-O", "-f", fresh, f"./{_LIST}"])
                fetched.listing.write_text(content)
                fresh.rename(fetched.tar)
    return fetched


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
    with Bar("fetch the guest's packages", None):
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
        say("no user namespaces here (are uidmap and /etc/subuid there?): sudo fetches the guest")
        return packages.as_root(mmdebstrap)
    return [mmdebstrap[0], "--mode=unshare", *mmdebstrap[1:]]


def _make_image(tar: Path, overlay: Path, image: Path) -> None:
    """Make the ext4 image from the packages and the programs."""
    disk.require(image, _IMAGE_MB, "making the guest image")
    with Bar("make the guest image", None), scratch(image.parent, "image-") as folder:
        root = folder / "root"
        root.mkdir()
        run(["tar", "-x", "--no-same-owner", "--exclude=./dev/*", "-f", tar, "-C", root])
        for name in ("dev", "proc", "sys", "run", "tmp", "root"):
            (root / name).mkdir(exist_ok=True)
        # Debian 13 leaves these links to a package that is not extracted here.
        for name in ("bin", "lib", "sbin"):
            if not (root / name).exists():
                (root / name).symlink_to(f"usr/{name}")
        run(["cp", "--recursive", "--no-target-directory", overlay, root])
        size = int(run(["du", "-sm", root]).split()[0]) + SPARE_MB
        fresh = folder / "root.ext4"
        # In the image all files are root's, whoever makes it.
        command = ["fakeroot", "--", "/sbin/mke2fs", "-q", "-t", "ext4", "-d"]
        run([*command, root, fresh, f"{size}M"])
        fresh.rename(image)
