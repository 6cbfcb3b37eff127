"""Whether the linear map of a guest can be split."""

from __future__ import annotations

from pagewright.machine.machine import Machine


def was_split(guest: Machine) -> bool:
    """Tell whether the suite of the linear map took it for one that is split.

    It skips nearly all its cases where it is not, and passes.
    """
    [results] = guest.read("/sys/kernel/debug/kunit/linear_map/results")
    return "the linear map is not split on this system" not in results
