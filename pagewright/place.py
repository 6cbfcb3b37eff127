"""What a machine is to be like, and whether a given one is.

Options in, a labgrid environment file out; or, for a place that is as it is,
the options it does not meet.
"""

from __future__ import annotations

import shlex
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labgrid.util.yaml import dump, load

from pagewright import build, counter, external, guest
from pagewright.errors import PagewrightError

_QEMU = Path(__file__).with_name("qemu.yaml")

CONSOLE_LOG = "console.log"
QEMU_STDERR = "qemu.stderr"
OUTPUT = "output"

# While all CPUs wait for the host's disk, a guest that counts instructions skips to its
# next timer, so that a wait of milliseconds is minutes to the hung task detector.
# It must not start at all: its sysctl is set only when the root is mounted.
_ICOUNT_PARAMETERS = ("initcall_blacklist=hung_task_init",)


# All that QEMU can, and the MIDR of a Neoverse V3 r0p2: features that trust a list of
# processors are on.
DEFAULT_CPU = "max,midr=0x410fd842"

# Arguments for memory with tags.
MTE = ("-machine", "mte=on")


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
        count: count the instructions of the kernel and of programs apart (see counter.py).
        virtualization: the CPUs have EL2: a kernel with KVM can run guests of its own.
        overlay: a directory whose files are laid over the guest's root.
        modules: a directory with the kernel's lib/modules, laid over it too.
        extra_args: further arguments for QEMU.
    """

    kernel: Path
    rootfs: Path
    cpu: str = DEFAULT_CPU
    smp: int = 2
    memory: str = "1G"
    append: str = ""
    icount: bool = False
    single_threaded: bool = False
    count: bool = False
    virtualization: bool = False
    overlay: Path | None = None
    modules: Path | None = None
    extra_args: Sequence[str] = ()


def options_for(
    name: str,
    modules_from: Sequence[str] = (),
    **options: Any,  # noqa: ANN401
) -> MachineOptions:
    """Return the options of a machine that runs a build with our guest.

    Args:
        name: the build; it and the guest are brought up to date.
        modules_from: sources of modules that are compiled for the build and laid over the
            guest's root (see external.py); there is no other overlay then.
        options: further fields of MachineOptions.
    """
    built = build.ensure(name)
    if modules_from:
        options["overlay"] = external.ensure(built, modules_from)
    return MachineOptions(built.image, guest.ensure(), modules=built.modules, **options)


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
    words = [emulator["boot_args"], *(_ICOUNT_PARAMETERS if options.icount else ()), options.append]
    emulator["boot_args"] = " ".join(words).strip()
    arguments = [
        *("-smp", str(options.smp)),
        # Reserving nothing on the host lets a guest be larger than it.
        *("-object", f"memory-backend-ram,id=ram,size={options.memory},reserve=off"),
        *("-serial", f"file:{directory / CONSOLE_LOG}", "-serial", "none"),
        *("-chardev", f"file,id=output,path={directory / OUTPUT}"),
        *("-device", "virtserialport,chardev=output,name=command-output"),
        *_execution(options),
        *(counter.arguments(directory) if options.count else ()),
        *(("-machine", "virtualization=on") if options.virtualization else ()),
    ]
    overlays = [path for path in (options.modules, options.overlay) if path]
    if overlays:
        archive = directory / "overlay.tar"
        _pack(overlays, archive)
        arguments += [
            *("-drive", f"if=none,id=overlay,format=raw,readonly=on,file={archive}"),
            # Far from the root's disk, which must be found first and be vda.
            *("-device", "virtio-blk-pci,drive=overlay,serial=overlay,addr=0x1e"),
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


def unmet(options: MachineOptions, check: Callable[[str], str]) -> list[str]:
    """Say which of the options a place does not meet that is as it is.

    The number of CPUs and the memory must be at least what is asked for, and the
    kernel must have been started with the parameters in `append`. The kernel and
    the root are the place's, and `single_threaded` corrects the emulator and asks
    nothing of a place.

    Args:
        options: what is asked for.
        check: runs a command there and returns its output.
    """
    default = MachineOptions(options.kernel, options.rootfs)
    missing = [
        f"{name}={getattr(options, name)}"
        for name in ("cpu", "icount", "count", "overlay", "extra_args")
        if getattr(options, name) != getattr(default, name)
    ]
    parameters = check("cat /proc/cmdline").split()
    missing += [f"append={word}" for word in options.append.split() if word not in parameters]
    if options.smp != default.smp and int(check("nproc")) < options.smp:
        missing.append(f"smp={options.smp}")
    if options.virtualization and "kvm" not in check("ls /dev").split():
        missing.append("virtualization")
    if options.memory != default.memory:
        total = int(check("cat /proc/meminfo").split()[1]) << 10
        # MemTotal, its first line, leaves out what the kernel itself occupies.
        if total < 0.9 * _bytes(options.memory):
            missing.append(f"memory={options.memory}")
    return missing


def _bytes(size: str) -> int:
    """Read a size as QEMU writes it; a bare number is in MiB."""
    shifts = {"K": 10, "M": 20, "G": 30, "T": 40}
    shift = shifts.get(size[-1].upper())
    return int(float(size) * 2**20) if shift is None else int(float(size[:-1]) * 2**shift)


def _execution(options: MachineOptions) -> list[str]:
    """Return the arguments that say how QEMU executes the guest's code."""
    if options.icount:
        # Without seeds in the device tree, boots repeat exactly until the first I/O.
        randomness = ["-machine", "dtb-randomness=off"]
        return ["-accel", "tcg", "-icount", "shift=0,sleep=off", *randomness]
    thread = "single" if options.single_threaded else "multi"
    return ["-accel", f"tcg,thread={thread}"]


def _pack(directories: Sequence[Path], archive: Path) -> None:
    """Pack what directories contain, owned by root, into a tar archive."""

    def of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        return member

    for directory in directories:
        if not directory.is_dir():
            raise PagewrightError(f"the overlay {directory} is not a directory")
    with tarfile.open(archive, "w") as tar:
        for entry in (e for directory in directories for e in sorted(directory.iterdir())):
            tar.add(entry, entry.name, filter=of_root)
