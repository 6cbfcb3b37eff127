"""Allocations that fail on the way to a change of the linear map."""

from __future__ import annotations

import re
import time

import pytest
from waiting import wait_until

from pagewright.guest import programs
from pagewright.machine import klog
from pagewright.machine.free_memory import free_memory
from pagewright.machine.machine import Machine

pytestmark = pytest.mark.usefixtures("fault_injection")

TESTS = programs.path("linear-map")

# What the kernel reports by itself when these allocations fail, without our doing: the
# module loader that jump labels will not work, and others how much memory there was.
CUT = re.compile(r"-+\[ cut here \].*?-+\[ end trace [^\n]*\n", re.DOTALL)
OUT_OF_MEMORY = re.compile(
    r"[^\n]*(vmalloc error|vmemmap alloc failure): .*?pages hwpoisoned\n", re.DOTALL
)


def unexpected(log: str) -> str:
    """Return the reports in a log that failed allocations do not explain."""
    log = CUT.sub(lambda report: "" if "jump_label_" in report[0] else report[0], log)
    return klog.splats(OUT_OF_MEMORY.sub("", log))


def unexpected_in(place: Machine) -> str:
    """Return the unexpected reports of a machine, of which dmesg may have lost the first ones."""
    return unexpected(place.console())


@pytest.mark.parametrize(
    "tests",
    ["-t of_taking_secret_memory", pytest.param("", marks=pytest.mark.full)],
    ids=["secret-memory", "all"],
)
def test_failed_allocations_change_nothing(own_blocks, guest_program, tests):
    program = f"{TESTS}/errors {tests}"
    guest_program(own_blocks(), program, unexpected_in, timeout=1800, may_skip=())


# Memory is plugged by a worker of one of the CPUs; any of them may be the one. They also
# write to file systems, which do not like it when that fails. Only allocations of pages
# fail: without memory for its resource the kernel takes a block for one that is there
# already (EEXIST), and the driver gives up for good.
FAIL_ALL_PAGES = """
sync && mount -o remount,ro / && cd /sys/kernel/debug/fail_page_alloc || exit
echo N >ignore-gfp-wait && echo N >ignore-gfp-highmem && echo 0 >min-order && echo 0 >verbose
"""
# A worker counts down, and its allocation fails when it comes to 0. One that is slow or had
# nothing to allocate is still above 0 when it is looked at; all are switched off then.
FAIL_NTH = """
rm -f /run/workers
for file in $(grep -l '^kworker/[0-9]' /proc/[0-9]*/comm); do
    echo {nth} >${{file%comm}}fail-nth && echo ${{file%comm}}fail-nth >>/run/workers
done 2>/dev/null
test -s /run/workers
"""
FAILED = """
failed=0
for file in $(cat /run/workers); do
    test "$(cat $file)" = 0 && failed=$((failed + 1))
    echo 0 >$file
done 2>/dev/null
echo $failed
"""
# Succeeds if one has come to 0.
HAS_FAILED = "grep -sqx 0 $(cat /run/workers)"
PLUGGED = 256 << 20


@pytest.fixture
def plugged(leaf):
    """Return how many bytes are plugged: one block with pages of 64 KiB, and some with others."""
    return max(PLUGGED, leaf.block)


# More than it takes.
ALLOCATIONS = 20

# Its first allocations are those of five tables that it may need. When the last one fails, four
# have been taken, of a page each. If one of these is lost so often, that is 480 KiB with pages of
# 4 KiB.
TABLES = 5
TIMES = 120
LOST = 240
# What caches give back, or take, the first times is no table: it was 580 KiB.
FIRST_TIMES = 20


def plug(place: Machine, hotplug, size: int, seconds: float) -> bool:
    """Ask for memory; is it there in time?"""
    hotplug.resize(place, size)
    give_up = time.monotonic() + seconds
    while (done := hotplug.size(place) == size) is False and time.monotonic() < give_up:
        time.sleep(0.05)
    return done


def free_or_slab(place: Machine) -> int:
    """Return KiB that are free, or have slab objects: their caches grow, and no table is in them.

    They grew by 330 KiB in one run of sixty failures, and what is free was 300 to 700 KiB less.
    """
    slab = place.meminfo()["Slab"]
    return free_memory(place) + slab


@pytest.mark.full
@pytest.mark.parametrize("step", [5, 1])
def test_memory_that_cannot_be_plugged_leaves_nothing_mapped(
    own_blocks, hotplug, leaf, plugged, step
):
    """The n-th allocation fails; not on the base kernel, which stops for good then."""
    if step > 1 and leaf.page > 4096:
        pytest.skip("with larger pages it takes few allocations, and each has to be tried")
    place = own_blocks(**hotplug.options)
    place.check(FAIL_ALL_PAGES)
    assert plug(place, hotplug, plugged, 30)
    assert plug(place, hotplug, 0, 30)
    mapped = hotplug.mapped(place)
    failures = 0
    for nth in range(1, ALLOCATIONS, step):
        place.check(FAIL_NTH.format(nth=nth))
        done = plug(place, hotplug, plugged, 0.7)
        failed = int(place.check(FAILED)) > 0
        # Without a failed allocation it was only slow.
        assert done or failed or plug(place, hotplug, plugged, 30), nth
        failures += failed and not done
        assert plug(place, hotplug, 0, 30)
        assert hotplug.mapped(place) == mapped, nth
    # How many pages it takes depends on what the lists of the CPUs have.
    assert failures > (2 // step if leaf.page == 4096 else 0)
    assert plug(place, hotplug, plugged, 30)
    assert plug(place, hotplug, 0, 30)
    assert hotplug.mapped(place) == mapped
    assert unexpected_in(place) == ""


@pytest.mark.full
def test_memory_that_cannot_be_plugged_loses_no_tables(own_blocks, hotplug, leaf, plugged):
    """Of those that were taken before one could not be had."""
    place = own_blocks(**hotplug.options)
    place.check(FAIL_ALL_PAGES)
    assert plug(place, hotplug, plugged, 30)
    assert plug(place, hotplug, 0, 30)

    def fail(times: int) -> None:
        failures = 0
        # A worker that was made later than the others were told has no allocation that fails.
        for _ in range(2 * times):
            place.check(FAIL_NTH.format(nth=TABLES))
            hotplug.resize(place, plugged)
            wait_until(
                lambda: place.run(HAS_FAILED).status == 0 or hotplug.size(place) == plugged, 30
            )
            failures += int(place.check(FAILED)) > 0
            assert plug(place, hotplug, 0, 30)
            if failures == times:
                break
        assert failures == times

    fail(FIRST_TIMES)
    before, lost = free_or_slab(place), LOST * leaf.page // 4096
    fail(TIMES)
    wait_until(lambda: free_or_slab(place) > before - lost, 30)
    assert unexpected_in(place) == ""
