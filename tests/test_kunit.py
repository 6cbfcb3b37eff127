"""Every KUnit suite of every feature; and modules that come and go under the debug build.

The debug build runs as a processor whose mappings may change size live and as one whose
may not, and checks every change of a kernel page-table entry.
"""

from __future__ import annotations

import re

import pytest

from pagewright.host import workspace
from pagewright.machine.options import DEFAULT_CPU

SPACE = workspace.find()
SUITES = [suite for feature in SPACE.features() for suite in feature.kunit_suites]
DEBUG_SUITES = [suite for feature in SPACE.features() for suite in feature.debug_kunit_suites]
# BBM level 2 by its ID register, but not on the kernel's list: to it, level 0.
UNLISTED_CPU = "max,midr=0x410fd491"

MODULES = """
for round in 1 2 3; do
    for module in crypto_null dummy veth; do modprobe $module || exit 1; done
    rmmod veth dummy crypto_null || exit 1
done
sleep 3
"""

# The vmemmap's blocks are split a few at a time, again and again.
HUGEPAGES = """
for nr in 40 90 140 0; do echo $nr >/proc/sys/vm/nr_hugepages || exit 1; done
test $(cat /proc/sys/vm/nr_hugepages) = 0
"""


@pytest.mark.parametrize("memory", ["1G", "4G"])
def test_kunit(machine, kunit_suites, memory):
    """With and without blocks of 1 GiB."""
    guest = machine("patched-4k", memory=memory, append="kunit.enable=1 hugetlb_free_vmemmap=on")
    kunit_suites(guest, SUITES)
    assert guest.warnings() == ""


@pytest.mark.parametrize("cpu", [DEFAULT_CPU, UNLISTED_CPU])
def test_kunit_and_modules_under_the_debug_build(machine, kunit_suites, cpu):
    append = "kunit.enable=1 pgtable_transition_check=on hugetlb_free_vmemmap=on"
    guest = machine("debug-4k", cpu=cpu, append=append)
    kunit_suites(guest, SUITES + DEBUG_SUITES)
    guest.check(MODULES, timeout=300)
    guest.check(HUGEPAGES, timeout=300)
    assert guest.warnings() == ""

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
