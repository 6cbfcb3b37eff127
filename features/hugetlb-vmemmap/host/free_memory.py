"""How much memory of a guest is free, for tests that compare it before and after."""

from __future__ import annotations

from pagewright.machine.machine import Machine


def free_memory(place: Machine) -> int:
    """Return MemFree in KiB, with what CPUs keep for themselves given back."""
    place.check(
        "echo 1000000 >/proc/sys/vm/percpu_pagelist_high_fraction; echo 3 >/proc/sys/vm/drop_caches"
    )
    return place.meminfo()["MemFree"]
