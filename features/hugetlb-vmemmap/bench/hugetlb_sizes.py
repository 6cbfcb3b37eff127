"""What HVO frees of each size of hugepage, for each size of base page, in both modes.

One hugepage of each size that the kernel has is allocated, and the kernel is asked what it
saves then; a size whose struct pages fit into one page saves nothing. Quick: 4 KiB base
pages only; in full 16 and 64 KiB too, which are builds of their own.
"""

from __future__ import annotations

import re

from pagewright.results.measure import Experiment, Figure, Part, Side, Values, Work

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
    found = [Part({"memory": "4G"}, [work], sides("4k"))]
    if not quick:
        found += [
            Part({"memory": "4G"}, [work], sides("16k")),
            # Room for a page of 16 GiB.
            Part({"memory": "40G"}, [work], sides("64k")),
        ]
    return found


def figures(values: dict[str, dict[str, Values]]) -> list[Figure]:
    """Make a table for each size of base page, with a row for each size of hugepage."""
    found = []
    for page in dict.fromkeys(label.split()[0] for label in values):
        both = {label: values[label]["sizes"] for label in values if label.split()[0] == page}
        pools = next(iter(both.values()))
        for pool in sorted(pools, key=lambda name: int(re.sub(r"\D", "", name))):
            saved = {label: printed[pool].split() for label, printed in both.items()}
            if any(number != "1" for _, number in saved.values()):
                raise ValueError(f"no hugepage in {pool}: {saved}")
            found.append(
                Figure(
                    f"freed of one hugepage, {page.upper()} base pages",
                    pool.removeprefix("hugepages-"),
                    "KiB",
                    {label: int(size) / 1024 for label, (size, _) in saved.items()},
                )
            )
    return found


EXPERIMENT = Experiment(
    name="hugetlb-sizes",
    feature="hugetlb-vmemmap",
    title="What HVO frees of each size of hugepage",
    parts=parts,
    figures=figures,
)
