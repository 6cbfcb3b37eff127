"""What the kernel says of the local map, in its log and in files."""

from __future__ import annotations

from pagewright.machine.machine import Machine

FILES = "/sys/kernel/mm/percpu_local"
# How the log's line begins in each mode.
BEGINNINGS = {"local": "local map of ", "classic": "no local map: "}


def mode_and_reason(place: Machine) -> tuple[str, str]:
    """Return what the files say, which is what the boot log says.

    Args:
        place: a machine whose kernel has the feature, and whose log has not been cleared.
    """
    log = place.check("dmesg | grep -E 'percpu: (no )?local map'")
    mode, reason = place.read(f"{FILES}/mode", f"{FILES}/reason")
    assert len(log.splitlines()) == 1
    assert log.endswith(f"percpu: {BEGINNINGS[mode]}{reason}")
    return mode, reason


def is_on(place: Machine) -> bool:
    """Tell whether there is a local map; for a machine as of `mode_and_reason`."""
    return mode_and_reason(place)[0] == "local"
