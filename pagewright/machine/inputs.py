"""A build and our guest, brought up to date -> the options of a machine that runs them.

A place of a lab is as it is: `lacking` says why it cannot stand in for such a machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pagewright.guest import image
from pagewright.host.scratch import claim
from pagewright.host.workspace import Workspace
from pagewright.kernel import build, modules
from pagewright.kernel.recipes import DEFAULT_BUILD, Recipe
from pagewright.machine import count, qemu
from pagewright.machine import firmware as uefi
from pagewright.machine import strict as strict_machine
from pagewright.machine import tlb as tlb_machine
from pagewright.machine.machine import Machine
from pagewright.machine.options import MachineOptions
from pagewright.machine.strict import Strict
from pagewright.machine.tlb import Tlb

# What a kernel in Debian's configuration is booted with, unless something else is asked for.
SERVER_CPUS = 8
SERVER_NODES = 2


@dataclass(frozen=True)
class Extras:
    """What a machine can be asked for that is compiled, fetched or read for it first.

    Attributes:
        modules_from: sources of modules that are compiled for the build and laid over the
            guest's root (see kernel/modules.py); there is no other overlay then.
        firmware: boot through UEFI (see firmware.py).
        count: count the instructions of the kernel and of programs apart (see count.py).
        strict: check what TLBs may hold (see strict.py).
        bbm_level: what a strict machine takes for FEAT_BBM's level, instead of what the CPU says.
        tlb: count what TLBs of all geometries miss (see tlb.py).
        tlb_ranges: what it tells apart of the kernel's data, by names: addresses, as
            `tlb.ranges` reads them.
    """

    modules_from: Sequence[str] = ()
    firmware: bool = False
    count: bool = False
    strict: bool = False
    bbm_level: int | None = None
    tlb: bool = False
    tlb_ranges: Mapping[str, str] = field(default_factory=dict)


def _divided(options: Mapping[str, Any]) -> tuple[Extras, dict[str, Any]]:
    """Divide options into the extras and the fields of MachineOptions."""
    names = {one.name for one in fields(Extras)} & options.keys()
    extras = Extras(**{name: options[name] for name in names})
    return extras, {name: options[name] for name in options if name not in names}


def options_for(
    space: Workspace,
    name: str,
    **asked: Any,  # noqa: ANN401
) -> MachineOptions:
    """Return the options of a machine that runs a build with our guest.

    Args:
        space: the repository.
        name: the build; it and the guest are brought up to date.
        asked: fields of Extras, and further ones of MachineOptions.

    Raises:
        MachineError: the options contradict each other, or this computer has no such processor.
    """
    extras, options = _divided(asked)
    ranges = tlb_machine.ranges(extras.tlb_ranges)
    # A first build takes long, after which nobody wants to hear of a typing error.
    own = Path()
    like = MachineOptions(
        own,
        own,
        count=own if extras.count else None,
        strict=Strict(own) if extras.strict else None,
        tlb=Tlb(own, tlb_machine.read(), ranges) if extras.tlb else None,
        **options,
    )
    qemu.require_processor(like)
    built = build.ensure(space, name)
    # As long as we may boot it, `pagewright clean` removes nothing.
    claim(built.out)
    if extras.modules_from:
        options["overlay"] = modules.ensure(space, built, extras.modules_from)
    if extras.firmware:
        options["firmware"] = uefi.ensure(space)
    if extras.count:
        options["count"] = count.ensure(space)
    if extras.strict:
        options["strict"] = strict_for(space, built.vmlinux, extras.bbm_level)
    if extras.tlb:
        options["tlb"] = Tlb(tlb_machine.ensure(space), tlb_machine.read(), ranges)
    options["append"] = parameters(space, options.pop("append", ""))
    return MachineOptions(built.image, image.ensure(space), modules=built.modules, **options)


def as_servers_boot(recipe: Recipe, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Have a kernel in Debian's configuration boot as on a server, where nothing else is asked for.

    UEFI starts it and describes the machine in ACPI tables, and there are several CPUs and nodes. A
    machine that counts has the CPUs that it is asked for, which is one by default, because its
    figures depend on that. Each node has a CPU.

    Args:
        recipe: what is booted.
        asked: as for `options_for`.

    Returns:
        What to ask `options_for` for.
    """
    if not recipe.debian:
        return dict(asked)
    counts = any(asked.get(what) for what in ("icount", "count", "tlb"))
    options: dict[str, Any] = {"firmware": True, "smp": 1 if counts else SERVER_CPUS, **asked}
    return {"nodes": min(SERVER_NODES, options["smp"]), **options}


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
    **asked: Any,  # noqa: ANN401
) -> str:
    """Say why a place cannot be used in place of a machine; nothing if it can.

    A place has a UEFI of its own, but no modules that are compiled here, nor QEMU's plugins.

    Args:
        place: the place, which is connected.
        name: the build that the machine would run.
        asked: as for `options_for`.
    """
    if name != (runs := place.build or DEFAULT_BUILD):
        return f"the place runs {runs}, not {name}"
    extras, options = _divided(asked)
    missing = [what for what in ("modules_from", "count", "strict", "tlb") if getattr(extras, what)]
    own = Path()
    like = MachineOptions(own, own, firmware=own if extras.firmware else None, **options)
    missing += place.unmet(like)
    return f"the place does not have {', '.join(missing)}" if missing else ""
