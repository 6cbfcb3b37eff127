"""Every KUnit suite of every feature; and modules that come and go under the debug build.

The debug build runs as a processor whose mappings may change size live, as one whose may not, and
as one that splits idle blocks by their access flags; and it checks every change of a kernel
page-table entry.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import pytest
from split import LIVE, PAUSED, said, tries_by_access_flag, was_split

from pagewright.guest.shell import UNLOAD
from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.machine.options import DEFAULT_CPU, UNLISTED_CPU

pytestmark = pytest.mark.long(5)

SPACE = workspace.find()
SUITES = [suite for feature in SPACE.features() for suite in feature.kunit_suites]
DEBUG_SUITES = [suite for feature in SPACE.features() for suite in feature.debug_kunit_suites]

# Modules that come and go, by the build that has them.
MODULES = {"checked-4k": "crypto_null sha256_generic xts", "debug-4k": "crypto_null dummy veth"}
COME_AND_GO = f"""
for round in 1 2; do
    for module in MODULES; do modprobe $module || exit 1; done
    for module in MODULES; do {UNLOAD} $module || exit 1; done
done
sleep 3
"""

# How the linear map's blocks are split where they are idle, if that is asked for.
ACCESS_FLAGS = "arm64.linear_map=af"

# The vmemmap's blocks are split a few at a time, again and again.
HUGEPAGES = """
for nr in 40 140 0; do echo $nr >/proc/sys/vm/nr_hugepages || exit 1; done
test $(cat /proc/sys/vm/nr_hugepages) = 0
"""


OF_ACCESS_FLAGS = {
    "idle_blocks_are_split_by_their_access_flag",
    "vfree_knows_a_block_without_access_flag",
}
# What is skipped where the linear map is split in pauses, and where ranges do not change live.
OF_LIVE_CHANGES = {"blocks_split_straight_to_pages", "contiguous_ranges_are_consistent"}
# What takes CPUs that are paused or split blocks by access flags, as in tests of the features.
ELSEWHERE = OF_ACCESS_FLAGS | {
    "a_change_has_one_pause_or_none",
    "a_full_plan_takes_one_pause",
    "a_pause_stops_a_cpu_with_interrupts_off",
    "half_done_folio_has_tails",
}


@pytest.mark.parametrize("memory", ["4G", pytest.param("1G", marks=pytest.mark.full)])
def test_kunit(machine, kunit_suites, usual, memory):
    """With and without blocks of 1 GiB."""
    guest = machine(
        "patched-4k", smp=2, memory=memory, append="kunit.enable=1 hugetlb_free_vmemmap=on"
    )
    skipped = kunit_suites(guest, SUITES, must_run=SUITES)
    giants = {"a_copy_has_the_largest_blocks"} if memory == "1G" else set()
    # Other kernels and machines skip others.
    assert skipped == ELSEWHERE | giants or not usual(guest)
    assert was_split(guest)
    assert guest.warnings() == ""


# What a processor may do with live mappings is nothing to the other suites: on the second one
# only these run, which the glob selects, as the debug build takes minutes for all.
LIVE_CHANGES = ["linear_map", "hugetlb_vmemmap", "pgtable_transition"]
LIVE_CHANGES_GLOB = "[lhp][iug]*"


def test_glob_selects_what_depends_on_the_processor():
    found = [suite for suite in SUITES + DEBUG_SUITES if fnmatchcase(suite, LIVE_CHANGES_GLOB)]
    assert sorted(found) == sorted(LIVE_CHANGES)


@pytest.mark.parametrize("build", ["checked-4k", pytest.param("debug-4k", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("cpu", "asked", "way", "glob", "suites"),
    [
        (DEFAULT_CPU, "", LIVE, "*", SUITES + DEBUG_SUITES),
        (UNLISTED_CPU, "", PAUSED, LIVE_CHANGES_GLOB, LIVE_CHANGES),
        pytest.param(UNLISTED_CPU, "", PAUSED, "*", SUITES + DEBUG_SUITES, marks=pytest.mark.full),
        pytest.param(
            "neoverse-n1",
            ACCESS_FLAGS,
            f"{PAUSED}{ACCESS_FLAGS}",
            "*",
            SUITES + DEBUG_SUITES,
            marks=pytest.mark.full,
        ),
    ],
    ids=["level2", "level0", "level0-all", "access-flags-all"],
)
def test_kunit_and_modules_under_the_debug_build(
    machine, kunit_suites, build, cpu, asked, way, glob, suites
):
    append = (
        f"kunit.enable=1 kunit.filter_glob={glob} arm64.pgtable_transition_check=on "
        f"hugetlb_free_vmemmap=on {asked}"
    )
    guest = machine(build, cpu=cpu, smp=2, append=append)
    cases = {UNLISTED_CPU: ["a_change_has_one_pause_or_none"], DEFAULT_CPU: OF_LIVE_CHANGES}
    kunit_suites(guest, suites, must_run=[*suites, *cases.get(cpu, OF_ACCESS_FLAGS)])
    assert was_split(guest)
    mode, reason = said(guest)
    assert mode == "blocks"
    assert reason.startswith(way)
    tries = tries_by_access_flag(guest) if asked == ACCESS_FLAGS else 0
    guest.check(COME_AND_GO.replace("MODULES", MODULES[build]), timeout=300)
    guest.check(HUGEPAGES, timeout=300)
    assert guest.warnings() == ""
    if asked == ACCESS_FLAGS:
        assert tries_by_access_flag(guest) > tries

    # The checker was there: a change that breaks the rules is reported, with both entries.
    guest.check("echo 1 >/sys/kernel/debug/pgtable_transition_violate")
    found = re.search(
        r"page-table entry at \w+, which maps 2\^12 bytes: "
        r"([0-9a-f]{16}) -> ([0-9a-f]{16}): output address changes",
        guest.check("dmesg"),
    )
    assert found
    assert found[1] != found[2]
    assert "report_pgtable_transition" in guest.warnings()


@pytest.mark.full
def test_an_overflow_of_the_stack_is_told_with_all_features(machine):
    """KASAN's code in the handler writes to the shadow of the stack that it runs on."""
    guest = machine("checked-4k", smp=2)
    with pytest.raises(PagewrightError):
        guest.check("echo EXHAUST_STACK >/sys/kernel/debug/provoke-crash/DIRECT")
    assert "Insufficient stack space to handle exception!" in guest.console()
    assert re.search(r"Overflow stack: +\[0x", guest.console())
    assert "Kernel panic - not syncing: kernel stack overflow" in guest.console()


@pytest.mark.full
def test_nothing_leaks(machine, kunit_suites):
    """What neither is freed nor can be reached any more is reported by kmemleak.

    It knows what comes from slab and vmalloc; pages of the page allocator it does not know.
    """
    append = "kunit.enable=1 kmemleak=on hugetlb_free_vmemmap=on"
    guest = machine("checked-4k", smp=2, memory="2G", append=append)
    # The checker is off, and its suite is skipped.
    kunit_suites(guest, SUITES + DEBUG_SUITES, must_run=SUITES)
    guest.check(COME_AND_GO.replace("MODULES", MODULES["checked-4k"]), timeout=600)
    guest.check(HUGEPAGES, timeout=600)
    # An object must be seen without a pointer to it by two scans, and be some seconds old.
    for _ in range(2):
        guest.check("sleep 6; echo scan >/sys/kernel/debug/kmemleak", timeout=600)
    assert guest.check("cat /sys/kernel/debug/kmemleak") == ""
    assert guest.warnings() == ""
