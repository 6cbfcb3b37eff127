"""What a machine is to be like.

A board, or another place of a lab, is as it is: `unmet` says which options it does not meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pagewright.host.errors import MachineError
from pagewright.machine.strict import MAX_CPUS, Strict
from pagewright.machine.tlb import Tlb

# All that QEMU can, and the MIDR of a Neoverse V3 r0p2: features that trust a list of
# processors are on.
LISTED_CPU = "max,midr=0x410fd842"

# QEMU computes a code at each call and return, with which a debug kernel takes four times as
# long to boot, and others a third longer.
_NO_PAUTH = "pauth=off"
DEFAULT_CPU = f"{LISTED_CPU},{_NO_PAUTH}"

# BBM level 2 by its ID register, but not on the kernel's list: to the kernel, level 0.
UNLISTED_CPU = f"max,midr=0x410fd491,{_NO_PAUTH}"
# As most servers have, without BBM level 2 and without what UNLISTED_CPU has of later features.
LEVEL_0_CPU = "cortex-a76"

# The computer's own CPU, which is what KVM gives a guest.
HOST_CPU = "host"

# How QEMU runs the guest's code: it translates the code, or KVM has the computer's own CPUs run it.
TCG = "tcg"
KVM = "kvm"

# Arguments for memory with tags.
MTE = ("-machine", "mte=on")


@dataclass(frozen=True)
class MachineOptions:
    """What to boot, and on what kind of machine.

    Attributes:
        kernel: an arm64 Image.
        rootfs: an ext4 image; the machine works on a snapshot of it.
        cpu: QEMU's CPU model with its properties; None if any will do, which is DEFAULT_CPU
            in QEMU and whatever a place has that is as it is.
        smp: number of CPUs, at least.
        memory: size of RAM, as QEMU writes it ("1G"); may exceed the host's.
        append: kernel parameters added to the machine's own.
        icount: count instructions: the guest's clock goes on by one nanosecond with each, so
            that times are counts, and repeat. Implies a single thread.
        single_threaded: run all CPUs in one thread, which makes atomics fault
            as on hardware.
        count: QEMU's plugin that counts the instructions of the kernel and of programs apart
            (see count.py).
        strict: check what TLBs may hold, and report what could go wrong on hardware (see
            strict.py).
        tlb: count what TLBs miss (see tlb.py), of one CPU, with icount or single_threaded.
        nodes: number of NUMA nodes, among which CPUs and memory are divided as evenly as can be.
        firmware: the UEFI to boot through, as servers do (see firmware.py); the kernel then learns
            what there is from ACPI tables, and not from a device tree.
        virtualization: the CPUs have EL2: a kernel with KVM can run guests of its own.
        accel: "tcg", with which QEMU emulates any CPU on any computer, or "kvm", with which an
            arm64 computer runs the guest on its own CPUs. KVM counts no instructions.
        overlay: a directory whose files are laid over the guest's root.
        modules: a directory with the kernel's lib/modules, laid over it too.
        extra_args: further arguments for QEMU.
    """

    kernel: Path
    rootfs: Path
    cpu: str | None = None
    smp: int = 1
    memory: str = "1G"
    append: str = ""
    icount: bool = False
    single_threaded: bool = False
    count: Path | None = None
    strict: Strict | None = None
    tlb: Tlb | None = None
    nodes: int = 1
    firmware: Path | None = None
    virtualization: bool = False
    overlay: Path | None = None
    modules: Path | None = None
    extra_args: Sequence[str] = ()
    accel: str = TCG

    def __post_init__(self) -> None:
        """Refuse what KVM and QEMU's plugins cannot do, and nodes without a CPU.

        Raises:
            MachineError: the options contradict each other, or the memory has no size.
        """
        in_bytes(self.memory)
        if not 1 <= self.nodes <= self.smp:
            raise MachineError(
                f"{self.smp} CPUs cannot be divided among {self.nodes} nodes",
                "each node has a CPU: ask for more CPUs, or for fewer nodes",
            )
        if self.accel not in (TCG, KVM):
            raise MachineError(f"there is no accel {self.accel!r}", f"it is {TCG} or {KVM}")
        if self.tlb and not self.in_one_thread():
            raise MachineError(
                "tlb simulates one CPU in one thread", "add icount or single_threaded"
            )
        if self.count and self.smp > 1 and not self.in_one_thread():
            raise MachineError(
                "count adds up for CPUs that take turns in one thread",
                "add icount or single_threaded, or ask for one CPU",
            )
        if (self.strict or self.tlb) and self.smp > 1 and self.in_one_thread():
            raise MachineError(
                "where CPUs share a thread, QEMU tells the plugin of the wrong CPU",
                "ask for one CPU; or, if it is strict, for neither icount nor single_threaded",
            )
        if self.strict and self.smp > MAX_CPUS:
            raise MachineError(
                f"strict knows the tables of {MAX_CPUS} CPUs", "ask for fewer CPUs, or leave it out"
            )
        if self.strict and self.virtualization:
            raise MachineError("strict takes the kernel of a guest in the machine for its own")
        if self.tlb and (self.count or self.strict):
            raise MachineError("tlb counts instructions itself, and leaves no room for strict")
        if self.accel != KVM:
            return
        use = f"use the default, accel {TCG}"
        if self.icount or self.count:
            what = "icount" if self.icount else "count"
            raise MachineError(f"{what} counts instructions, which KVM cannot: {use}")
        if self.tlb:
            raise MachineError(f"tlb looks at each instruction, which KVM cannot: {use}")
        if self.strict:
            raise MachineError(f"strict looks at each instruction, which KVM cannot: {use}")
        if self.single_threaded:
            raise MachineError(f"single_threaded is about emulated CPUs, KVM has none: {use}")
        if self.virtualization:
            raise MachineError(
                f"virtualization needs CPUs with EL2, which KVM does not give: {use}"
            )
        if self.cpu not in (None, HOST_CPU):
            raise MachineError(f"KVM runs the computer's own CPU and not cpu {self.cpu}: {use}")

    def in_one_thread(self) -> bool:
        """Tell whether QEMU runs all CPUs in one thread, one after the other."""
        return self.icount or self.single_threaded


def unmet(options: MachineOptions, check: Callable[[str], str]) -> list[str]:
    """Say which of the options a place does not meet that is as it is.

    The number of CPUs and the memory must be at least what is asked for, and the
    kernel must have been started with the parameters in `append`. The kernel and
    the root are the place's; `single_threaded` and `accel` are about the emulator and
    ask nothing of a place.

    Args:
        options: what is asked for.
        check: runs a command there and returns its output.
    """
    default = MachineOptions(options.kernel, options.rootfs)
    missing = [
        f"{name}={getattr(options, name)}"
        for name in ("cpu", "icount", "count", "strict", "tlb", "overlay", "extra_args")
        if getattr(options, name) != getattr(default, name)
    ]
    parameters = check("cat /proc/cmdline").split()
    missing += [f"append={word}" for word in options.append.split() if word not in parameters]
    if options.smp != default.smp and int(check("nproc")) < options.smp:
        missing.append(f"smp={options.smp}")
    if options.nodes != default.nodes:
        nodes = check("ls /sys/devices/system/node").split()
        if len([name for name in nodes if name.startswith("node")]) < options.nodes:
            missing.append(f"nodes={options.nodes}")
    if options.firmware and "efi" not in check("ls /sys/firmware").split():
        missing.append("firmware")
    if options.virtualization and "kvm" not in check("ls /dev").split():
        missing.append("virtualization")
    if options.memory != default.memory:
        total = int(check("cat /proc/meminfo").split()[1]) << 10
        # MemTotal, its first line, leaves out what the kernel itself occupies.
        if total < 0.9 * in_bytes(options.memory):
            missing.append(f"memory={options.memory}")
    return missing


def in_bytes(size: str) -> int:
    """Read a size as QEMU writes it; a bare number is in MiB.

    Raises:
        MachineError: it is none.
    """
    shifts = {"K": 10, "M": 20, "G": 30, "T": 40}
    shift = shifts.get(size[-1:].upper())
    wrong = MachineError(f"{size!r} is no size of memory", "write it as 512M or 1G")
    try:
        number = int(float(size) * 2**20) if shift is None else int(float(size[:-1]) * 2**shift)
    except (ValueError, OverflowError) as error:
        raise wrong from error
    # No kernel of arm64 boots with less.
    if number < 2**20:
        raise wrong
    return number
