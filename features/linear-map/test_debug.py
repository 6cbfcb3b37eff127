"""The feature under lockdep, KASAN, page-table check and the checker of transitions."""

from __future__ import annotations

import re

import pytest

from pagewright import ktap, source, workspace
from pagewright.place import DEFAULT_CPU

CHECK = "pgtable_transition_check=on"


@pytest.mark.parametrize("cpu", [DEFAULT_CPU, "max,midr=0x410fd491"])
def test_clean_under_the_checker(shared_machine, subtests, cpu):
    """Level 2 and, by its list, level 0."""
    guest = shared_machine("debug-4k", cpu=cpu, append=f"kunit.enable=1 {CHECK}")
    tree = source.ensure(workspace.find()).path
    for suite in ("linear_map", "pgtable_transition"):
        text = guest.check(f"cat /sys/kernel/debug/kunit/{suite}/results")
        ktap.report(ktap.parse(text, tree), subtests)
    guest.check(
        "for i in 1 2 3; do for m in crypto_null dummy veth; do modprobe $m || exit 1; done;"
        " rmmod veth dummy crypto_null || exit 1; done; sleep 3",
        timeout=300,
    )
    assert guest.warnings() == ""


def test_a_violation_is_reported_with_both_descriptors(machine):
    guest = machine("debug-4k", append=f"{CHECK} panic_on_warn=0")
    guest.check("echo 1 >/sys/kernel/debug/pgtable_transition_violate")
    found = re.search(
        r"page-table entry at \w+, which maps 2\^12 bytes: "
        r"([0-9a-f]{16}) -> ([0-9a-f]{16}): output address changes",
        guest.warnings(),
    )
    assert found
    assert found[1] != found[2]
