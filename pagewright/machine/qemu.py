"""Options of a machine -> a labgrid environment file for QEMU."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import tarfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from labgrid.util.yaml import dump, load

from pagewright.host import doctor
from pagewright.host.errors import MachineError
from pagewright.host.packages import ARM64
from pagewright.host.run import run
from pagewright.machine import evidence, plugin, strict, tlb
from pagewright.machine.options import DEFAULT_CPU, HOST_CPU, KVM, MachineOptions, in_bytes

_QEMU = Path(__file__).with_name("qemu.yaml")
# As that file has it.
_PROGRAM = "qemu-system-aarch64"

# In the directory of a machine: what commands print, on its way to us.
OUTPUT = "output"

# While all CPUs wait for the host's disk, a guest that counts instructions skips to its
# next timer, so that a wait of milliseconds is minutes to the hung task detector.
# It must not start at all: its sysctl is set only when the root is mounted.
_ICOUNT_PARAMETERS = ("initcall_blacklist=hung_task_init",)


def require_processor(options: MachineOptions) -> None:
    """Check that this computer can give a machine its processor.

    Raises:
        MachineError: QEMU has no such CPU model, or KVM cannot be used here.
    """
    if options.accel == KVM:
        if platform.machine() != ARM64 or not os.access(doctor.KVM, os.R_OK | os.W_OK):
            raise MachineError(
                f"KVM runs arm64 guests on arm64 computers, with {doctor.KVM}; this is not one",
                doctor.kvm() or "leave --accel out, and the guest is emulated",
            )
    elif options.cpu and (models := _models()):
        name = options.cpu.partition(",")[0]
        if name not in models:
            raise MachineError(
                f"QEMU has no CPU model {name!r}", f"its models are: {', '.join(models)}"
            )


@cache
def _models() -> list[str]:
    """Return the CPU models that QEMU has; none if there is no QEMU yet."""
    if not shutil.which(_PROGRAM):
        return []
    return [line.split()[0] for line in run([_PROGRAM, "-cpu", "help"]).splitlines()[1:] if line]


def describe(options: MachineOptions, directory: Path, logs: Path, boot_timeout: int) -> Path:
    """Write the environment file of a QEMU machine.

    Args:
        options: the machine.
        directory: takes the file and the overlay; the machine's own.
        logs: takes the console and what QEMU itself prints.
        boot_timeout: seconds until the guest's shell must have answered.

    Returns:
        The environment file.
    """
    for what, path in (("kernel", options.kernel), ("root file system", options.rootfs)):
        if not path.is_file():
            raise MachineError(f"there is no {what} at {path}", "build it first")
    with _QEMU.open() as file:
        place = load(file)
    drivers = place["targets"]["main"]["drivers"]
    drivers["ShellDriver"]["login_timeout"] = boot_timeout
    emulator = drivers["EmulatorDriver"]
    emulator["cpu"] = HOST_CPU if options.accel == KVM else options.cpu or DEFAULT_CPU
    emulator["memory"] = options.memory
    emulator["stderr"] = str(logs / evidence.STDERR)
    words = [emulator["boot_args"], *(_ICOUNT_PARAMETERS if options.icount else ()), options.append]
    emulator["boot_args"] = " ".join(words).strip()
    arguments = [
        *("-smp", str(options.smp)),
        *_memory(options),
        *(("-bios", str(options.firmware)) if options.firmware else ()),
        *("-serial", f"file:{logs / evidence.CONSOLE}", "-serial", "none"),
        *("-chardev", f"file,id=output,path={directory / OUTPUT}"),
        *("-device", "virtserialport,chardev=output,name=command-output"),
        *_execution(options),
        *(plugin.arguments(options.count, directory) if options.count else ()),
        *(strict.arguments(options.strict, logs) if options.strict else ()),
        *(tlb.arguments(options.tlb, directory) if options.tlb else ()),
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


def _memory(options: MachineOptions) -> list[str]:
    """Return the arguments for memory, and for the nodes that have it and the CPUs.

    Reserving nothing on the host lets a guest be larger than it. Plugins that look at the guest's
    memory find it by the kind of its mapping.
    """
    kind = f"memory-backend-{'memfd' if options.strict or options.tlb else 'ram'},reserve=off"
    if options.nodes == 1:
        size = options.memory
        return ["-object", f"{kind},id=ram,size={size}", "-machine", "memory-backend=ram"]
    arguments: list[str] = []
    left = in_bytes(options.memory)
    # Nodes begin at a MiB. The last one has what is over, as QEMU wants the sum to be the whole.
    share = left // options.nodes >> 20 << 20
    for node in range(options.nodes):
        part = share if node < options.nodes - 1 else left
        left -= part
        first = node * options.smp // options.nodes
        last = (node + 1) * options.smp // options.nodes - 1
        arguments += ["-object", f"{kind},id=ram{node},size={part}"]
        arguments += ["-numa", f"node,nodeid={node},cpus={first}-{last},memdev=ram{node}"]
    return arguments


def _execution(options: MachineOptions) -> list[str]:
    """Return the arguments that say how QEMU executes the guest's code."""
    if options.accel == KVM:
        # The guest's interrupt controller is the host's kind, whatever qemu.yaml asks for:
        # of two values that -machine is given, the last counts.
        return ["-accel", "kvm", "-machine", "gic-version=host"]
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
            raise MachineError(f"the overlay {directory} is not a directory")
    with tarfile.open(archive, "w") as tar:
        for entry in (e for directory in directories for e in sorted(directory.iterdir())):
            tar.add(entry, entry.name, filter=of_root)
