"""A build and our guest, brought up to date -> the options of a machine that runs them.

A place of a lab is as it is: `lacking` says why it cannot stand in for such a machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pagewright.guest import image
from pagewright.host.scratch import claim
from pagewright.host.workspace import Workspace
from pagewright.kernel import build, modules
from pagewright.kernel.recipes import DEFAULT_BUILD
from pagewright.machine import firmware as uefi
from pagewright.machine import plugin, qemu
from pagewright.machine import strict as strict_machine
from pagewright.machine import tlb as tlb_machine
from pagewright.machine.machine import Machine
from pagewright.machine.options import MachineOptions
from pagewright.machine.strict import Strict
from pagewright.machine.tlb import Tlb


def options_for(
    space: Workspace,
    name: str,
    modules_from: Sequence[str] = (),
    firmware: bool = False,
    count: bool = False,
    strict: bool = False,
    bbm_level: int | None = None,
    tlb: bool = False,
    tlb_ranges: Mapping[str, str] | None = None,
    **options: Any,  # noqa: ANN401
) -> MachineOptions:
    """Return the options of a machine that runs a build with our guest.

    Args:
        space: the repository.
        name: the build; it and the guest are brought up to date.
        modules_from: sources of modules that are compiled for the build and laid over the
            guest's root (see kernel/modules.py); there is no other overlay then.
        firmware: boot through UEFI (see firmware.py).
        count: count the instructions of the kernel and of programs apart (see plugin.py).
        strict: check what TLBs may hold (see strict.py).
        bbm_level: what a strict machine takes for FEAT_BBM's level, instead of what the CPU says.
        tlb: count what TLBs of all geometries miss (see tlb.py).
        tlb_ranges: what it tells apart of the kernel's data, by names: addresses, as
            `tlb.ranges` reads them.
        options: further fields of MachineOptions.

    Raises:
        MachineError: the options contradict each other, or this computer has no such processor.
    """
    ranges = tlb_machine.ranges(tlb_ranges or {})
    # A first build takes long, after which nobody wants to hear of a typing error.
    own = Path()
    like = MachineOptions(
        own,
        own,
        count=own if count else None,
        strict=Strict(own) if strict else None,
        tlb=Tlb(own, tlb_machine.read(), ranges) if tlb else None,
        **options,
    )
    qemu.require_processor(like)
    built = build.ensure(space, name)
    # As long as we may boot it, `pagewright clean` removes nothing.
    claim(built.out)
    if modules_from:
        options["overlay"] = modules.ensure(space, built, modules_from)
    if firmware:
        options["firmware"] = uefi.ensure(space)
    if count:
        options["count"] = plugin.ensure(space)
    if strict:
        options["strict"] = strict_for(space, built.vmlinux, bbm_level)
    if tlb:
        options["tlb"] = Tlb(tlb_machine.ensure(space), tlb_machine.read(), ranges)
    options["append"] = parameters(space, options.pop("append", ""))
    return MachineOptions(built.image, image.ensure(space), modules=built.modules, **options)


def parameters(space: Workspace, append: str) -> str:
    """Return kernel parameters with those that features have on all emulated machines."""
    words = (*(feature.boot_emulated for feature in space.features()), append)
    return " ".join(word for word in words if word)


def strict_for(space: Workspace, vmlinux: Path | None, bbm_level: int | None = None) -> Strict:
    """Return how strict a machine is that runs a kernel of ours or another one.

    Args:
        space: the repository.
        vmlinux: the kernel with its symbols, if it is there.
        bbm_level: FEAT_BBM's level, instead of what the CPU says.
    """
    return Strict(
        strict_machine.ensure(space),
        vmlinux,
        bbm_level,
        known=strict_machine.known(space.base().path / "violations.toml"),
    )


def lacking(
    place: Machine,
    name: str,
    modules_from: Sequence[str] = (),
    firmware: bool = False,
    count: bool = False,
    strict: bool = False,
    bbm_level: int | None = None,
    tlb: bool = False,
    tlb_ranges: Mapping[str, str] | None = None,
    **options: Any,  # noqa: ANN401
) -> str:
    """Say why a place cannot be used in place of a machine; nothing if it can.

    Args:
        place: the place, which is connected.
        name: the build that the machine would run.
        modules_from: as for `options_for`; no place has modules that are compiled here.
        firmware: as for `options_for`; a place has its own.
        count: as for `options_for`; no place has QEMU's plugin.
        strict: as for `options_for`; no place has QEMU's plugin.
        bbm_level: as for `options_for`, if `strict`.
        tlb: as for `options_for`; no place has QEMU's plugin.
        tlb_ranges: as for `options_for`, if `tlb`.
        options: further fields of MachineOptions.
    """
    if name != (runs := place.build or DEFAULT_BUILD):
        return f"the place runs {runs}, not {name}"
    made_here = {"modules_from": modules_from, "count": count, "strict": strict, "tlb": tlb}
    missing = [what for what, wanted in made_here.items() if wanted]
    own = Path()
    like = MachineOptions(own, own, firmware=own if firmware else None, **options)
    missing += place.unmet(like)
    return f"the place does not have {', '.join(missing)}" if missing else ""
