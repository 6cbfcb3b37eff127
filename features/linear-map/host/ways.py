"""The ways to split the linear map, and the machines on which tests do it."""

from __future__ import annotations

from typing import Any

from pagewright.host import workspace
from pagewright.kernel.recipes import recipe
from pagewright.machine.options import LEVEL_0_CPU

WAYS: dict[str, dict[str, Any]] = {
    "live": {},
    "paused": {"cpu": LEVEL_0_CPU},
    # A CPU that sets access flags, and has no BBM level 2.
    "af": {"cpu": "neoverse-n1", "append": "arm64.linear_map=af"},
}


def completed(build: str, way: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Have blocks split in a way, a second CPU look on, and a debug build check every change.

    With pages of 64 KiB memory is handed out and plugged in blocks of 512 MiB, of which some must
    be free.
    """
    options = {"smp": 2} | way | options | {"append": _words(way, options)}
    made = recipe(workspace.find(), build)
    if made.page_kib == 64:
        options = {"memory": "4G"} | options
    if not made.debug:
        return options
    return options | {"append": f"{options['append']} arm64.pgtable_transition_check=on".strip()}


def _words(*options: dict[str, Any]) -> str:
    """Return the kernel parameters of all."""
    return " ".join(one["append"] for one in options if one.get("append"))
