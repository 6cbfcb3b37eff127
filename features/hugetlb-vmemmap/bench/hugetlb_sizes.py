"""What HVO frees of each size of hugepage, for each size of base page, in both modes.

One hugepage of each size that the kernel has is allocated, and the kernel is asked what it
saves then; a size whose struct pages fit into one page saves nothing. Quick: 4 KiB base
pages only; in full 16 and 64 KiB too, which are builds of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pagewright.results.experiment import Experiment, Part, Quantity, Side, Values, Work

MODES = ("pause", "seamless")

ALLOCATE_EACH = """
cd /sys/kernel/mm/hugepages
for pool in *; do
    echo 1 >$pool/nr_hugepages
    echo "$pool=$(cat /sys/kernel/mm/hugetlb_vmemmap/bytes_saved) $(cat $pool/nr_hugepages)"
    echo 0 >$pool/nr_hugepages
done
"""


def sides(page: str) -> list[Side]:
    """Return both modes of a kernel with a size of base page."""
    return [
        Side(f"{page} {mode}", f"patched-{page}", f"hugetlb_free_vmemmap=on hugetlb_vmemmap={mode}")
        for mode in MODES
    ]


def parts(quick: bool) -> list[Part]:
    """Return a boot for each mode and size of base page."""
    work = Work("sizes", ALLOCATE_EACH, timeout=600)
    found = [Part("4k", {"memory": "4G"}, [work], sides("4k"))]
    if not quick:
        found += [
            Part("16k", {"memory": "4G"}, [work], sides("16k")),
            # Room for a page of 16 GiB.
            Part("64k", {"memory": "40G"}, [work], sides("64k")),
        ]
    return found


def quantities(side: str, work: str, values: Values) -> Iterator[Quantity]:
    """Make numbers for a table for each size of base page, with a row for each hugepage's."""
    group = f"freed of one hugepage, {side.split()[0].upper()} base pages"
    for pool in sorted(values, key=lambda name: int(re.sub(r"\D", "", name))):
        saved, allocated = values[pool].split()
        if allocated != "1":
            raise ValueError(f"no hugepage in {pool}: {values[pool]}")
        yield Quantity(group, pool.removeprefix("hugepages-"), "KiB", int(saved) / 1024)


EXPERIMENT = Experiment(
    name="hugetlb-sizes",
    feature="hugetlb-vmemmap",
    title="What HVO frees of each size of hugepage",
    parts=parts,
    quantities=quantities,
    limits=("These are bytes, and the same on hardware with base pages of that size.",),
)
