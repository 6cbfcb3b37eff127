"""A CPU that is half way on line, as cpu-pause sees it."""

from __future__ import annotations

import re

from pagewright.machine.machine import Machine

CPUS = "/sys/devices/system/cpu"


def park(place: Machine, cpu: int) -> None:
    """Take a CPU off line and have it come as far as makes pauses impossible, by hand.

    The kernel needs CONFIG_CPU_HOTPLUG_STATE_CONTROL.

    Raises:
        AssertionError: the kernel has no pauses.
    """
    states = place.check(f"cat {CPUS}/hotplug/states")
    state = re.search(r"(\d+): arm64/cpu_pause:prepare", states)
    assert state
    place.check(
        f"echo 0 >{CPUS}/cpu{cpu}/online && echo {state[1]} >{CPUS}/cpu{cpu}/hotplug/target"
    )
