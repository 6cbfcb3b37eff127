"""What the experiments count of struct pages is what there is to count."""

from __future__ import annotations

import pytest
from hugepage_uses import FILL_POOL, use
from percpu_layout import AREAS, LOCAL, RANGES
from percpu_workloads import COUNT

from pagewright.machine.machine import Machine
from pagewright.machine.options import DEFAULT_CPU
from pagewright.results.experiment import parse_values
from pagewright.results.misses import GEOMETRIES

pytestmark = [
    pytest.mark.skipif("config.getoption('lg_env')", reason="counts in QEMU"),
    pytest.mark.full,
]

# 512 KiB of struct pages, those of 32 MiB of memory, for each number; the memory begins at 2 GiB,
# which is the second of those that the guest has.
READ = "dd if=/proc/kpagecount of=/dev/null bs=64k skip=64 count={} 2>/dev/null"
# A block of struct pages, and what it is split into.
ONE_BLOCK, PAGES = 4, 512


def counted(place: Machine, command: str) -> dict[str, int]:
    return {key: int(n) for key, n in parse_values(place.check(f"{COUNT} {command}")).items()}


@pytest.fixture(scope="module", params=["off", "on"])
def guest(request, shared_machine):
    """A guest that had most of its memory in hugepages, with HVO off or on."""
    append = f"hugetlb_free_vmemmap={request.param} brd.rd_size=16384"
    options = {"icount": True, "tlb": True, "tlb_ranges": RANGES, "cpu": f"{DEFAULT_CPU},lpa2=off"}
    place = shared_machine("patched-4k", memory="3G", append=append, **options)
    place.check(f"set -e{FILL_POOL.replace('MOST', '1300').replace('PAGES', '8')}", timeout=600)
    counted(place, READ.format(2 * ONE_BLOCK))
    return request.param, place


def test_struct_pages_miss_once_for_each_leaf(guest):
    """They are read in order: a block, or 512 pages."""
    hvo, place = guest
    few, many = (counted(place, READ.format(n * ONE_BLOCK)) for n in (1, 2))
    more = {key: many[key] - few[key] for key in many}
    assert more["not translated"] == 0
    # One for each page of memory, at least.
    assert more["accesses struct-pages"] >= 32768
    for geometry in GEOMETRIES:
        # What else is accessed meanwhile takes some entries away, and these miss once more, in
        # either of the two counts.
        misses = more[f"{geometry} struct-pages l1"]
        assert misses < (2 * PAGES if hvo == "on" else PAGES / 2), geometry
        assert misses > 0.9 * PAGES or hvo == "off", geometry


# How many hugepages are used each time, and by how much the number of times is larger.
USED, MORE = 8, 200


@pytest.mark.parametrize(
    ("how", "each"), [("direct", 1), ("pipe", 1), ("fault", USED), ("fork", USED)]
)
def test_uses_of_hugepages_access_their_struct_pages(guest, how, each):
    _, place = guest

    def more(pages: int, key: str) -> int:
        """Count what the larger number of times takes of something."""
        command = use(how).replace("PAGES", str(pages))
        counted(place, command.replace("$2", "1"))
        once, often = (counted(place, command.replace("$2", str(n)))[key] for n in (1, 1 + MORE))
        return often - once

    accesses = "accesses struct-pages"
    # A reference is taken and given back, which is two accesses at least.
    if each == 1:
        assert more(USED, accesses) >= 2 * MORE
    else:
        # Faults and forks also access struct pages of other memory. What more hugepages add tells.
        assert more(USED, accesses) - more(1, accesses) >= 2 * (each - 1) * MORE
    assert more(USED, "kernel") > 500 * each * MORE


def test_per_cpu_data_has_classes_of_its_own(guest):
    _, place = guest
    values = counted(place, "true")
    assert values[f"accesses {LOCAL}"] > 100
    assert values[f"accesses {AREAS}"] > 100
