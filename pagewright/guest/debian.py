"""Debian packages -> the disk of a whole Debian system, as a server has one.

The disk has a table of partitions: one for UEFI, /boot, and the root. This computer's dpkg unpacks
the packages, and nothing of arm64 runs: second-stage.sh configures them, in the one boot that is
left to do (see pagewright/machine/server.py). Debian's own kernel does that, with an initramfs made
here. An emulated machine takes most of an hour to unpack what is unpacked here in a minute.
"""

from __future__ import annotations

import lzma
import shutil
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
    "grub-efi-arm64-signed",
    "initramfs-tools",
    "kmod",
    "libc6-dev",
    "linux-base",
    "login",
    "make",
    "mokutil",
    "openssl",
    "passwd",
    "procps",
    "python3",
    "sbsigntool",
    "shim-signed",
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
# The drivers that Debian's kernel needs to see its disk, with the packed root.
_DISK_DRIVERS = ("virtio_pci", "virtio_blk")

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
    """A system that is unpacked and not configured.

    Attributes:
        disk: its disk.
        kernel: the kernel among its packages.
        initramfs: what has that kernel configure all packages.
    """

    disk: Path
    kernel: Path
    initramfs: Path


def extract(fetched: Fetched, target: Path) -> Extracted:
    """Make a disk with packages unpacked and not yet configured.

    Args:
        fetched: the packages.
        target: a folder, which takes the three files.

    Raises:
        DiskFullError: there is no space for it.
    """
    disk.require(target, _DISK_MB, "the disk of a whole Debian")
    with Bar("make the disk of a whole Debian", None), scratch(target, "root-") as folder:
        root, boot = folder / "root", folder / "boot"
        made = Extracted(target / "disk.img", target / "kernel", target / "initramfs")
        root.mkdir()
        run(["tar", "-x", "--exclude=./dev/*", "-f", fetched.tar, "-C", root])
        for name in ("dev", "proc", "sys", "run", "tmp", "root"):
            (root / name).mkdir(exist_ok=True)
        (root / SECOND_STAGE).write_text(SCRIPT.read_text())
        (root / SECOND_STAGE).chmod(0o755)
        owners = folder / "owners"
        _unpack(root, owners, folder / "package")
        shutil.copyfile(next((root / "boot").glob("vmlinuz-*")), made.kernel)
        _make_initramfs(root, folder / "initramfs", made.initramfs)
        # /boot is a file system of its own.
        (root / "boot").rename(boot)
        (root / "boot").mkdir()
        mib = 1 << 20
        with made.disk.open("wb") as file:
            file.truncate((_START + _UEFI + _BOOT + _ROOT + 1) * mib)
        run(["/sbin/sfdisk", "--quiet", made.disk], stdin=_TABLE)
        sector = str(_START * mib // 512)
        # With clusters of more than one sector it would have so few that UEFI takes it for FAT16.
        fat = ["/sbin/mkfs.vfat", "-F", "32", "-S", "512", "-s", "1", "--offset", sector]
        run([*fat, made.disk, str(_UEFI * 1024)])
        start = _START + _UEFI
        _make_ext4(made.disk, start, _BOOT, boot, owners)
        _make_ext4(made.disk, start + _BOOT, _ROOT, root, owners)
    return made


def _unpack(root: Path, owners: Path, work: Path) -> None:
    """Have dpkg unpack the packages in the folder debs of a root, and remove them.

    Args:
        root: the files of all packages are there already, but dpkg knows of none.
        owners: takes what fakeroot remembers: who owns which file.
        work: a folder for what is needed meanwhile.
    """
    scripts: dict[str, str] = {}
    for package in sorted((root / "debs").iterdir()):
        work.mkdir()
        run(["dpkg-deb", "--control", package, work / "control"])
        preinst = work / "control" / "preinst"
        # It is for arm64, and would run before dpkg unpacks its package. second-stage.sh runs it.
        if preinst.exists():
            fields = run(["dpkg-deb", "--field", package, "Package", "Architecture", "Multi-Arch"])
            values = dict(line.split(": ", 1) for line in fields.splitlines())
            many = values.get("Multi-Arch") == "same"
            name = values["Package"] + (f":{values['Architecture']}" if many else "")
            scripts[name] = preinst.read_text()
            preinst.unlink()
            run(["tar", "-c", "-f", work / "control.tar", "-C", work / "control", "."])
            run(["ar", "x", package], cwd=work)
            package.unlink()
            members = ["debian-binary", "control.tar", next(work.glob("data.tar*")).name]
            run(["ar", "rcS", package, *members], cwd=work)
        shutil.rmtree(work)
    command: list[str | Path] = [
        "fakeroot",
        "-s",
        owners,
        "--",
        "dpkg",
        f"--root={root}",
        "--no-triggers",
    ]
    command += [f"--log={root}/var/log/dpkg.log"]
    command += [f"--force-{what}" for what in ("architecture", "depends", "unsafe-io", "bad-path")]
    command += [f"--path-exclude=/usr/share/{what}/*" for what in ("doc", "man", "locale")]
    run([*command, "--unpack", "--recursive", root / "debs"])
    shutil.rmtree(root / "debs")
    for name, text in scripts.items():
        file = root / "var" / "lib" / "dpkg" / "info" / f"{name}.preinst"
        file.write_text(text)
        file.chmod(0o755)


def _make_initramfs(root: Path, folder: Path, target: Path) -> None:
    """Pack the first stage, and the modules that it loads, by the numbers of their order."""
    folder.mkdir()
    disk_name = f'-DROOT_DEVICE="{_ROOT_DEVICE}"'
    run([GCC, *CFLAGS, disk_name, FIRST_STAGE, "-o", folder / "init"])
    names = ["init"]
    for number, module in enumerate(_modules(root)):
        names.append(f"{number}.ko")
        content = module.read_bytes()
        # Debian 13 compresses its modules, and Debian 12 does not.
        packed = module.suffix == ".xz"
        (folder / names[-1]).write_bytes(lzma.decompress(content) if packed else content)
    command: list[str | Path] = ["cpio", "--create", "--format=newc", "--quiet", "--file", target]
    run(command, cwd=folder, stdin="".join(f"{name}\n" for name in names))


def _modules(root: Path) -> list[Path]:
    """Return the modules of the drivers of the disk that are not built in, in order of loading."""
    version = next((root / "usr" / "lib" / "modules").iterdir()).name
    run(["/sbin/depmod", "--basedir", root, version])
    command: list[str | Path] = ["/sbin/modprobe", "--dirname", root, "--set-version", version]
    said = run([*command, "--show-depends", "--all", *_DISK_DRIVERS])
    lines = [line.split() for line in said.splitlines()]
    # What several drivers need is listed several times.
    return list(dict.fromkeys(Path(words[1]) for words in lines if words[0] == "insmod"))


def _make_ext4(disk_file: Path, start: int, size: int, content: Path, owners: Path) -> None:
    """Make a file system in a partition; where it starts and its size are in MiB."""
    command: list[str | Path] = [
        "fakeroot",
        "-i",
        owners,
        "--",
        "/sbin/mke2fs",
        "-q",
        "-F",
        "-t",
        "ext4",
    ]
    command += ["-E", f"offset={start << 20},root_owner=0:0", "-d", content]
    run([*command, disk_file, f"{size}M"])
