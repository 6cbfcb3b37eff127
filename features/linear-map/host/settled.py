"""Wait until the linear map has become what it stays."""

from __future__ import annotations

import time

from pagewright.machine.machine import Machine

# Leaves by size, and how many were split and folded, if the kernel counts that. The base counts
# neither, and grep's status is 1 then.
_STATE = "grep -h -e ^DirectMap -e ^linear_map_ /proc/meminfo /proc/vmstat || test $? = 1"


def settled_state(place: Machine, quiet: float, timeout: float) -> str | None:
    """Return what the kernel tells of its leaves, once nothing is split or folded any more.

    The kernel frees machine code some time after the program has ended, and folds the
    leaves later still; what is not worth a pause at once waits for ten delays.

    Args:
        place: the machine.
        quiet: for how many seconds nothing must have changed.
        timeout: how many seconds to wait for that.

    Returns:
        Lines of /proc/meminfo and /proc/vmstat; None if it went on for longer than that.
    """
    give_up = time.monotonic() + timeout
    state, since = place.check(_STATE), time.monotonic()
    while time.monotonic() <= since + quiet:
        if time.monotonic() > give_up:
            return None
        time.sleep(0.1)
        now = place.check(_STATE)
        if now != state:
            state, since = now, time.monotonic()
    return state


def settled_leaves(place: Machine, quiet: float = 1.5, timeout: float = 60) -> dict[str, int]:
    """Return how much leaves of each size map, in KiB, once nothing is split or folded any more.

    Args:
        place: the machine.
        quiet: for how many seconds nothing must have changed.
        timeout: how many seconds to wait for that.

    Raises:
        AssertionError: it went on for longer than that.
    """
    state = settled_state(place, quiet, timeout)
    assert state is not None, "it did not settle"
    lines = (line.split() for line in state.splitlines() if line.startswith("DirectMap"))
    return {words[0].rstrip(":"): int(words[1]) for words in lines}
