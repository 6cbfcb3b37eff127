"""What the kernel's log says of the local map."""

from __future__ import annotations

from pagewright.machine.machine import Machine


def is_on(place: Machine) -> bool:
    """Tell what the boot log says.

    Args:
        place: a machine whose kernel has the feature, and whose log has not been cleared.
    """
    log = place.check("dmesg | grep -E 'percpu: (no )?local map'")
    assert len(log.splitlines()) == 1
    return "no local map" not in log
