"""What makes the kernel use struct pages of hugepages, and a pool to do it in: shell commands.

In them PAGES stands for the hugepages that are used, and MOST for those that there are at first.
"""

from __future__ import annotations

from pagewright.guest import programs

POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
USE = programs.path("hugetlb-vmemmap", "vmemmap_use")

# Most of memory is in hugepages for once, and then no more than are needed. If HVO is on, all
# blocks of struct pages have been split by then, and stay so.
FILL_POOL = f"""
echo MOST >{POOL}
echo hugepages=$(cat {POOL})
test $(cat {POOL}) -gt PAGES
echo PAGES >{POOL}
test $(cat {POOL}) = PAGES
dd if=/dev/zero of=/dev/ram0 bs=1M count=4 2>/dev/null
"""


def use(how: str) -> str:
    """Return the command of a use, as often as a shell's $2 says.

    Args:
        how: one of those that guest/vmemmap_use.c has.
    """
    return f"{USE} {how} PAGES $2"
