"""A build and our guest, brought up to date -> the options of a machine that runs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pagewright.guest import image
from pagewright.host.workspace import Workspace
from pagewright.kernel import build, modules
from pagewright.machine import plugin
from pagewright.machine.options import MachineOptions


def options_for(
    space: Workspace,
    name: str,
    modules_from: Sequence[str] = (),
    count: bool = False,
    **options: Any,  # noqa: ANN401
) -> MachineOptions:
    """Return the options of a machine that runs a build with our guest.

    Args:
        space: the repository.
        name: the build; it and the guest are brought up to date.
        modules_from: sources of modules that are compiled for the build and laid over the
            guest's root (see kernel/modules.py); there is no other overlay then.
        count: count the instructions of the kernel and of programs apart (see plugin.py).
        options: further fields of MachineOptions.
    """
    built = build.ensure(space, name)
    if modules_from:
        options["overlay"] = modules.ensure(space, built, modules_from)
    if count:
        options["count"] = plugin.ensure(space)
    return MachineOptions(built.image, image.ensure(space), modules=built.modules, **options)
