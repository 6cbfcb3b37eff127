"""A machine to be, described: options in, a labgrid environment file out."""

from __future__ import annotations

import shlex
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from labgrid.util.yaml import dump, load

from pagewright.errors import PagewrightError

_QEMU = Path(__file__).with_name("qemu.yaml")

CONSOLE_LOG = "console.log"
QEMU_STDERR = "qemu.stderr"


@dataclass(frozen=True)
class MachineOptions:
    """What to boot, and on what kind of machine.

    Attributes:
        kernel: an arm64 Image.
        rootfs: an ext4 image; the machine works on a snapshot of it.
        cpu: QEMU's CPU model with its properties.
        smp: number of CPUs.
        memory: size of RAM, as QEMU writes it ("1G"); may exceed the host's.
        append: kernel parameters added to the machine's own.
        icount: count instructions: guest time is the number of them executed,
            and figures repeat. Implies a single thread.
        single_threaded: run all CPUs in one thread, which makes atomics fault
            as on hardware.
        overlay: a directory whose files are laid over the guest's root.
        extra_args: further arguments for QEMU.
    """

    kernel: Path
    rootfs: Path
    cpu: str = "max"
    smp: int = 2
    memory: str = "1G"
    append: str = ""
    icount: bool = False
    single_threaded: bool = False
    overlay: Path | None = None
    extra_args: Sequence[str] = ()


def describe(options: MachineOptions, directory: Path, boot_timeout: int) -> Path:
    """Write the environment file of a QEMU machine.

    Args:
        options: the machine.
        directory: takes the file, the overlay and the logs; the machine's own.
        boot_timeout: seconds until the guest's shell must have answered.

    Returns:
        The environment file.
    """
    for what, path in (("kernel", options.kernel), ("root file system", options.rootfs)):
        if not path.is_file():
            raise PagewrightError(f"there is no {what} at {path}", "build it first")
    with _QEMU.open() as file:
        place = load(file)
    drivers = place["targets"]["main"]["drivers"]
    drivers["ShellDriver"]["login_timeout"] = boot_timeout
    emulator = drivers["EmulatorDriver"]
    emulator["cpu"] = options.cpu
    emulator["memory"] = options.memory
    emulator["stderr"] = str(directory / QEMU_STDERR)
    emulator["boot_args"] = f"{emulator['boot_args']} {options.append}".strip()
    arguments = [
        *("-smp", str(options.smp)),
        # Reserving nothing on the host lets a guest be larger than it.
        *("-object", f"memory-backend-ram,id=ram,size={options.memory},reserve=off"),
        *("-serial", f"file:{directory / CONSOLE_LOG}", "-serial", "none"),
        *_execution(options),
    ]
    if options.overlay:
        archive = directory / "overlay.tar"
        _pack(options.overlay, archive)
        arguments += [
            *("-drive", f"if=none,id=overlay,format=raw,readonly=on,file={archive}"),
            *("-device", "virtio-blk-pci,drive=overlay,serial=overlay"),
        ]
    arguments += options.extra_args
    emulator["extra_args"] = f"{emulator['extra_args']} {shlex.join(arguments)}"
    place["images"] = {
        "kernel": str(options.kernel.resolve()),
        "rootfs": str(options.rootfs.resolve()),
    }
    environment = directory / "environment.yaml"
    environment.write_text(dump(place))
    return environment


def _execution(options: MachineOptions) -> list[str]:
    """Return the arguments that say how QEMU executes the guest's code."""
    if options.icount:
        return ["-accel", "tcg", "-icount", "shift=0,sleep=off"]
    thread = "single" if options.single_threaded else "multi"
    return ["-accel", f"tcg,thread={thread}"]


def _pack(directory: Path, archive: Path) -> None:
    """Pack a directory's content, owned by root, into a tar archive."""

    def of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    if not directory.is_dir():
        raise PagewrightError(f"the overlay {directory} is not a directory")
    with tarfile.open(archive, "w") as tar:
        for entry in sorted(directory.iterdir()):
            tar.add(entry, entry.name, filter=of_root)
