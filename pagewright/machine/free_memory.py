"""How much memory of a guest is free, for tests that compare it before and after."""

from __future__ import annotations

import re

from pagewright.guest.shell import SHORT_PAGE_LISTS
from pagewright.machine.machine import Machine

# What is dirty cannot be dropped; and each CPU counts for itself until it is told to add that up.
# KASAN keeps what was freed, up to a 32nd of all memory, until its cache is shrunk.
_DROP = f"""
{SHORT_PAGE_LISTS}
sync
echo 3 >/proc/sys/vm/drop_caches
for cache in /sys/kernel/slab/*/shrink; do [ ! -e "$cache" ] || echo 1 >"$cache"; done
echo 1 >/proc/sys/vm/stat_refresh
"""


def free_memory(place: Machine) -> int:
    """Return in KiB what is free, with the caches dropped.

    That is MemFree and what CPUs keep for themselves, which MemFree does not count. They are told
    to keep little, but what they have already they give back only as they free more: that was
    10 MiB at times.
    """
    page_kib = int(place.check("getconf PAGESIZE")) // 1024
    place.check(_DROP)
    # Together, as CPUs give some back from time to time.
    zones, meminfo = place.read("/proc/zoneinfo", "/proc/meminfo")
    kept = sum(map(int, re.findall(r"^\s+count: +(\d+)$", zones, re.M)))
    [free] = re.findall(r"^MemFree: +(\d+) kB$", meminfo, re.M)
    return int(free) + kept * page_kib
