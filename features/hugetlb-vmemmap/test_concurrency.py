"""Others look at, poison and move huge pages while their struct pages are freed and restored.

What the guest programs expect holds on any kernel, so the same tests on the base kernel
(--full) show that it is they who are right. It has no such modes: it ignores the parameters,
and its huge pages keep all their struct pages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import plugged
import pytest
from page_sizes import PAGES_16K, PAGES_64K
from waiting import wait_until

from pagewright.guest import programs
from pagewright.host import workspace
from pagewright.kernel.recipes import recipe
from pagewright.machine.free_memory import free_memory
from pagewright.machine.machine import Machine
from pagewright.machine.options import DEFAULT_CPU, LEVEL_0_CPU, MTE

pytestmark = pytest.mark.long(1)

TESTS = programs.path("hugetlb-vmemmap")
HVO = "/sys/kernel/mm/hugetlb_vmemmap"

# Files that are read, too, where the kernel has them.
OF_DEBUG_BUILDS = ("/sys/kernel/mm/page_idle/bitmap", "/sys/kernel/debug/page_owner")


def builds_and_modes(first: str, second: str) -> pytest.MarkDecorator:
    """Have a test run every day in the first mode, and with --full wherever there is one.

    It makes no difference to the base, which runs once.
    """
    others = [
        ("patched-4k", second),
        ("base-4k", first),
        ("debug-4k", first),
        ("debug-4k", second),
    ]
    full = [pytest.param(*values, marks=pytest.mark.full) for values in others]
    return pytest.mark.parametrize(("build", "mode"), [("patched-4k", first), *full])


seamless_first = builds_and_modes("seamless", "pause")
pause_first = builds_and_modes("pause", "seamless")
sizes = pytest.mark.parametrize("size", ["2M", pytest.param("1G", marks=pytest.mark.full)])

# What uses page_ext for each page of a huge page walks off the end of the section's array if the
# page is larger than a section: 6.12 does, with HVO or without. These are page_owner and the
# check of user page tables, so a debug build has neither where there are pages of 1 GiB.
WITHOUT_PAGE_EXT = "page_table_check=off"

# Two pages of 1 GiB must be there in one piece; for 2 MiB little memory will do.
MEMORY = {"2M": "1280M", "1G": "6G"}

# In bytes.
GIB = 1 << 30

# Memory that can go offline must be plugged: on arm64 what is there at boot cannot.
CAN_GO_OFFLINE = plugged.options(GIB, at_boot=GIB)
# Wait until it is there.
MOVABLE = "until grep -q ^Movable /sys/devices/system/memory/*/valid_zones; do sleep 1; done"

# Pages of the default size are not numbered in advance, and what others of the pool cannot replace
# or what goes beyond the pool is of the default size.
OF_ANOTHER_SIZE = {"can_have_the_pages_again"}
OF_DEFAULT_SIZE = {
    "soft_offline_where_no_other_page_is_free",
    "error_in_a_surplus_page",
    "error_in_a_page_that_was_given_up",
    "errors_while_pages_come_and_go",
}

Boot = Callable[..., Machine]
GuestProgram = Callable[..., None]
Program = Callable[..., None]


@pytest.fixture
def optimised(machine: Boot) -> Boot:
    """Boot a machine whose huge pages do without most of their struct pages.

    Called with the build, the mode, the size of the pages, more kernel parameters and fields of
    MachineOptions.
    """

    def factory(
        build: str, mode: str, size: str = "2M", append: str = "", **options: Any
    ) -> Machine:
        words = ["hugetlb_free_vmemmap=on", f"hugetlb_vmemmap={mode}", append]
        if is_debug(build):
            words += ["arm64.pgtable_transition_check=on", WITHOUT_PAGE_EXT if size == "1G" else ""]
        return machine(build, append=" ".join(filter(None, words)), smp=4, **options)

    return factory


@pytest.fixture
def optimised_program(guest_program: GuestProgram) -> Program:
    """Run a guest program on such a machine: where there is HVO, it must have acted.

    Called with the machine, the build, the command, and the cases that may be skipped.
    """

    def run(place: Machine, build: str, command: str, may_skip: Collection[str] = ()) -> None:
        guest_program(place, command, may_skip=may_skip)
        if has_hvo(build):
            assert int(place.check(f"cat {HVO}/entries_changed")) > 0

    return run


def skipped(program: str, size: str, default: str = "2M") -> set[str]:
    """Return the cases that a program of memory errors or walkers skips for pages of a size."""
    names = OF_ANOTHER_SIZE if size == default else OF_DEFAULT_SIZE
    return {f"{program}.of_{size}.{name}" for name in names}


def is_debug(build: str) -> bool:
    return recipe(workspace.find(), build).debug


def has_hvo(build: str) -> bool:
    return "hugetlb-vmemmap" in recipe(workspace.find(), build).features


@seamless_first
@sizes
def test_walkers_see_whole_pages_only(optimised, optimised_program, build, mode, size):
    """All files are read that show something of each struct page; two are of debug builds."""
    all_files = is_debug(build) and size != "1G"
    append = "page_owner=on" if all_files else ""
    place = optimised(build, mode, size, append, memory=MEMORY[size])
    if all_files:
        place.check(f"test -r {' -a -r '.join(OF_DEBUG_BUILDS)}")
    program = f"{TESTS}/vmemmap_walkers -v of_{size}"
    optimised_program(place, build, program, skipped("walkers", size))


# What the walkers change of a machine.
CHANGED = (
    "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
    "/proc/sys/vm/hugetlb_optimize_vmemmap",
    "/proc/sys/vm/percpu_pagelist_high_fraction",
)
# Somebody has a page of the pool for as long as the walkers run.
WALK_BESIDE_A_HOLDER = """
{programs}/vmemmap_use fork 1 1000000000 & holder=$!
until test $(cat {pool}/free_hugepages) = 4; do sleep 0.1; done
{walkers}; status=$?
kill $holder; wait $holder
exit $status
"""


@pytest.mark.full
def test_walkers_leave_pools_as_they_were(machine):
    """They are a selftest of the kernel, too, and run on machines that have other work to do."""
    place = machine(smp=2, memory=MEMORY["2M"])
    pool = CHANGED[0].rpartition("/")[0]
    walkers = f"{TESTS}/vmemmap_walkers -T see_whole_pages_only -v of_2M"
    for file, value in zip(CHANGED, (5, 0, 8), strict=True):
        place.check(f"echo {value} >{file}")
    assert "pass:1 fail:0" in place.check(walkers)
    assert place.read(*CHANGED) == ["5", "0", "8"]

    script = WALK_BESIDE_A_HOLDER.format(programs=TESTS, pool=pool, walkers=walkers)
    result = place.run(f"sh -c '{script}'")
    assert "SKIP huge pages are in use" in result.output
    assert "pass:0 fail:0" in result.output
    assert place.read(*CHANGED) == ["5", "0", "8"]
    assert place.warnings() == ""


@pause_first
@sizes
def test_memory_errors_are_confined(optimised, optimised_program, build, mode, size):
    place = optimised(build, mode, size, memory=MEMORY[size])
    optimised_program(place, build, f"{TESTS}/vmemmap_poison -v of_{size}", skipped("poison", size))


@pytest.mark.full
@pause_first
@pytest.mark.parametrize("tail", ["a_tail", "the_tail_that_is_copied"])
def test_the_first_error_since_boot_is_kept(optimised, optimised_program, build, mode, tail):
    """Once there was one in another page all struct pages are looked at before they are freed."""
    place = optimised(build, mode)
    program = f"{TESTS}/vmemmap_poison -t in_{tail}_is_kept"
    optimised_program(place, build, program)


@pytest.mark.full
@pause_first
def test_pages_move_between_nodes(optimised, optimised_program, build, mode):
    place = optimised(build, mode, nodes=2)
    assert place.check("cat /sys/devices/system/node/online") == "0-1"
    optimised_program(place, build, f"{TESTS}/vmemmap_migrate -f nodes")


@pytest.mark.full
@seamless_first
def test_pages_leave_memory_that_goes_offline(optimised, optimised_program, build, mode):
    place = optimised(build, mode, **CAN_GO_OFFLINE)
    place.check(MOVABLE)
    optimised_program(place, build, f"{TESTS}/vmemmap_migrate -f block")


# How often memory comes and goes, and the size of its struct pages.
ROUNDS, VMEMMAP_OF_GIB_KIB = 4, 16 << 10


@pytest.mark.full
@pytest.mark.parametrize("cpu", [DEFAULT_CPU, LEVEL_0_CPU], ids=["level-2", "level-0"])
@pytest.mark.parametrize("mode", ["seamless", "pause"])
def test_memory_goes_whose_struct_pages_were_taken_and_given_back(optimised, mode, cpu):
    """Its struct pages are in memory of the boot, and none of them may stay there.

    The blocks that mapped them have been split, so that each page is freed by itself.
    """
    memory = plugged.PluggedMemory()
    place = optimised("patched-4k", mode, cpu=cpu, **memory.options)
    pool = "/proc/sys/vm/nr_hugepages"

    def plug_use_and_unplug() -> None:
        memory.resize(place, GIB)
        wait_until(lambda: memory.size(place) == GIB, 60)
        place.check(f"echo {GIB // (2 << 20)} >{pool}")
        held, pages = struct_pages(place), int(place.read(pool)[0])
        # Some are memory of the boot.
        assert pages > 256
        place.check(f"echo 0 >{pool}")
        assert struct_pages(place) - held == pages * (6 if mode == "seamless" else 7)
        memory.resize(place, 0)
        wait_until(lambda: memory.size(place) == 0, 60)

    plug_use_and_unplug()
    before, free = struct_pages(place), free_memory(place)
    for _ in range(ROUNDS):
        plug_use_and_unplug()
    assert struct_pages(place) == before
    # What hugepages keep is an eighth of their struct pages at least; half of that would show.
    assert free_memory(place) > free - ROUNDS * VMEMMAP_OF_GIB_KIB / 16
    assert place.warnings() == ""


def struct_pages(place: Machine) -> int:
    """Return how many pages hold struct pages."""
    counts = place.vmstat()
    # What the boot allocated counts as one, and what replaces it later as the other.
    return counts["nr_memmap_boot_pages"] + counts["nr_memmap_pages"]


# By the size of base pages: the build, the default size of hugepages, and memory for several.
LARGER_PAGES = [
    ("patched-16k", PAGES_16K.default, "6G"),
    ("patched-64k", PAGES_64K.default, "10G"),
]


@pytest.mark.full
@pytest.mark.parametrize(("build", "size", "memory"), LARGER_PAGES)
@pytest.mark.parametrize("mode", ["seamless", "pause"])
@pytest.mark.parametrize(
    ("program", "options"),
    [
        ("vmemmap_walkers -v of_{size}", {}),
        ("vmemmap_poison -v of_{size}", {}),
        ("vmemmap_poison -t in_a_tail_is_kept", {}),
        ("vmemmap_poison -t in_the_tail_that_is_copied_is_kept", {}),
        ("vmemmap_migrate -f nodes", {"nodes": 2}),
        ("vmemmap_migrate -f block", CAN_GO_OFFLINE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_larger_base_pages(
    optimised, optimised_program, program, options, mode, build, size, memory
):
    """The same with the hugepages that are large enough for HVO there."""
    place = optimised(build, mode, memory=memory, **options)
    if options is CAN_GO_OFFLINE:
        place.check(MOVABLE)
    may_skip = skipped("walkers", size, size) if "walkers" in program else ()
    optimised_program(place, build, f"{TESTS}/{program.format(size=size)}", may_skip)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["seamless", "pause"])
def test_memory_tags_are_not_noted_in_read_only_struct_pages(machine, guest_program, mode):
    """KVM wrote to them where no guest with MTE can have a hugetlb page, but its slots can."""
    place = machine(
        "patched-kvm-4k",
        smp=2,
        virtualization=True,
        extra_args=MTE,
        append=f"hugetlb_free_vmemmap=on hugetlb_vmemmap={mode}",
    )
    guest_program(place, f"{TESTS}/vmemmap_mte", may_skip=())
