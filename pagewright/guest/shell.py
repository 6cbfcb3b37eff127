"""Shell commands that tests and experiments of several features run in guests."""

from __future__ import annotations

# Has CPUs keep few free pages to themselves. MemFree does not count those, of which there may be
# gigabytes. The lowest limit that Linux sets for a CPU's list is four batches (zone_highsize() in
# mm/page_alloc.c). A fraction gives this limit if it is less. The millionth part is, of any zone of
# up to half a TiB. page_lists_shorten() in include/files.h writes the same number.
SHORT_PAGE_LISTS = "echo 1000000 >/proc/sys/vm/percpu_pagelist_high_fraction"

# Has them keep as many as Linux lets them: an eighth of each zone. A page that is on no CPU's list
# comes from the zone, at up to 73 instructions more for a fault, and whether it does depends on who
# gave which pages back before.
LONG_PAGE_LISTS = "echo 8 >/proc/sys/vm/percpu_pagelist_high_fraction"

# Unloads modules. A cipher is busy for a moment after it was loaded, while the kernel tests it.
UNLOAD = "modprobe -r --wait 10000"


def direct_map(prefix: str = "") -> str:
    """Return the command that prints the linear map by leaf size, as DirectMap4k=1234 in KiB.

    Args:
        prefix: stands before each name, as the shell expands it.
    """
    pattern = r"^\(DirectMap[^:]*\): *\([0-9]*\) kB"
    return rf'sed -n "s/{pattern}/{prefix}\1=\2/p" /proc/meminfo'
