"""Debian packages + guest programs -> the guest's root file system, an ext4 image.

The packages are only extracted, never configured, so nothing of arm64 runs here. Beside the image
is packages.txt, which says what versions of which packages are in it.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from pagewright.guest import programs
from pagewright.host import arm64_packages, disk
from pagewright.host.arm64_packages import Fetched
from pagewright.host.lock import lock
from pagewright.host.progress import Bar
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

# The space that making an image takes for a while, in MB, a third more than was measured.
_IMAGE_MB = 1600


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
        fetched = arm64_packages.fetch(space, PACKAGES)
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
