"""Debian packages -> the disk of a whole Debian system, as a server has one.

The disk has a table of partitions: one for UEFI, /boot, and the root. The packages are extracted
here, and nothing of arm64 runs: second-stage.sh installs them, in the one boot that is left to do
(see pagewright/machine/server.py). Debian's own kernel does that, with an initramfs made here.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from pathlib import Path

from pagewright.guest.programs import CFLAGS
from pagewright.host import arm64_packages, disk
from pagewright.host.arm64_packages import Fetched
from pagewright.host.progress import Bar
from pagewright.host.run import run
from pagewright.host.scratch import scratch
from pagewright.host.toolchain import GCC
from pagewright.host.workspace import Workspace

# The kernel that the system comes with, which is the distribution's own.
KERNEL = "linux-image-cloud-arm64"
PACKAGES = (
    "?essential",
    "apt",
    "apt-utils",
    "dbus",
    "dkms",
    "e2fsprogs",
    "gcc",
    "grub-efi-arm64",
    "initramfs-tools",
    "kmod",
    "libc6-dev",
    "linux-base",
    "login",
    "make",
    "passwd",
    "procps",
    "python3",
    "systemd",
    "systemd-sysv",
    "udev",
    "zstd",
    KERNEL,
)
# In the root: what installs the packages.
SECOND_STAGE = "second-stage"
SCRIPT = Path(__file__).with_name("second-stage.sh")
FIRST_STAGE = Path(__file__).with_name("first-stage.c")
# The one module that Debian's kernel needs to see its disk, with the packed root.
_DISK_MODULE = "usr/lib/modules/*/kernel/drivers/block/virtio_blk.ko.xz"

# The partitions, in MiB. The first begins where partitions usually do.
_START, _UEFI, _BOOT, _ROOT = 1, 64, 256, 4096
_TABLE = f"""\
label: gpt
start={_START}MiB, size={_UEFI}MiB, type=uefi
start={_START + _UEFI}MiB, size={_BOOT}MiB, type=linux
start={_START + _UEFI + _BOOT}MiB, size={_ROOT}MiB, type=linux
"""
# What the kernel calls the last of them.
_ROOT_DEVICE = "/dev/vda3"
# What making the disk takes for a while, in MB; the disk itself is sparse.
_DISK_MB = 4000


def fetch(space: Workspace, release: str) -> Fetched:
    """Return all packages of the system, extracted, and their files as they come from Debian."""
    return arm64_packages.fetch(space, PACKAGES, release, keep=True)


@dataclass(frozen=True)
class Extracted:
    """A system that is extracted and not installed.

    Attributes:
        disk: its disk.
        kernel: the kernel among its packages.
        initramfs: what has that kernel install all packages.
    """

    disk: Path
    kernel: Path
    initramfs: Path


def extract(fetched: Fetched, target: Path) -> Extracted:
    """Make a disk with packages extracted and not yet installed.

    Args:
        fetched: the packages.
        target: a folder, which takes the three files.

    Raises:
        DiskFullError: there is no space for it.
    """
    disk.require(target, _DISK_MB, "the disk of a whole Debian")
    with Bar("make the disk of a whole Debian", None), scratch(target, "root-") as folder:
        root = folder / "root"
        made = Extracted(target / "disk.img", target / "kernel", target / "initramfs")
        root.mkdir()
        run(["tar", "-x", "--exclude=./dev/*", "-f", fetched.tar, "-C", root])
        for name in ("dev", "proc", "sys", "run", "tmp", "root"):
            (root / name).mkdir(exist_ok=True)
        (root / SECOND_STAGE).write_text(SCRIPT.read_text())
        (root / SECOND_STAGE).chmod(0o755)
        next((root / "boot").glob("vmlinuz-*")).rename(made.kernel)
        _make_initramfs(root, folder / "initramfs", made.initramfs)
        mib = 1 << 20
        with made.disk.open("wb") as file:
            file.truncate((_START + _UEFI + _BOOT + _ROOT + 1) * mib)
        run(["/sbin/sfdisk", "--quiet", made.disk], stdin=_TABLE)
        sector = str(_START * mib // 512)
        fat = ["/sbin/mkfs.vfat", "-F", "32", "-S", "512", "--offset", sector]
        run([*fat, made.disk, str(_UEFI * 1024)])
        boot, whole = _START + _UEFI, _START + _UEFI + _BOOT
        _make_ext4(made.disk, boot, _BOOT)
        _make_ext4(made.disk, whole, _ROOT, root)
    return made


def _make_initramfs(root: Path, folder: Path, target: Path) -> None:
    """Pack the first stage, and the module that it loads."""
    folder.mkdir()
    disk_name = f'-DROOT_DEVICE="{_ROOT_DEVICE}"'
    run([GCC, *CFLAGS, disk_name, FIRST_STAGE, "-o", folder / "init"])
    module = next(root.glob(_DISK_MODULE))
    (folder / "virtio_blk.ko").write_bytes(lzma.decompress(module.read_bytes()))
    names = "init\nvirtio_blk.ko\n"
    run(["cpio", "--create", "--format=newc", "--quiet", "--file", target], cwd=folder, stdin=names)


def _make_ext4(disk_file: Path, start: int, size: int, content: Path | None = None) -> None:
    """Make a file system in a partition; where it starts and its size are in MiB."""
    command = ["fakeroot", "--", "/sbin/mke2fs", "-q", "-F", "-t", "ext4"]
    command += ["-E", f"offset={start << 20},root_owner=0:0"]
    command += ["-d", str(content)] if content else []
    run([*command, disk_file, f"{size}M"])
