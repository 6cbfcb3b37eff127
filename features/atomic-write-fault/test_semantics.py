"""Nothing but the number of faults changes: guest/semantics.c, on and off.

The same program runs on the base kernel and on the patched one, with the
feature on, off, and on without exclusives, and in both of the emulator's modes:
where CPUs run in parallel it reports atomics as writes by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pagewright.guest import programs
from pagewright.machine.machine import Machine
from pagewright.machine.options import MTE

pytestmark = pytest.mark.long(2)

TESTS = programs.path("atomic-write-fault")
SEMANTICS = f"{TESTS}/semantics"
OFF = "arm64.atomic_write_fault=0"
EXCLUSIVE_OFF = "arm64.atomic_write_fault_exclusive=0"

Boot = Callable[..., Machine]

# What takes memory tags and two nodes, which other tests here have; and protection keys, which no
# emulated CPU has.
OF_TAGS = {
    "global.code_with_tags_works_with_asynchronous_checks",
    "global.code_with_tags_works_with_synchronous_checks",
    "global.tagged_memory_works_and_mismatches_are_reported",
}
OF_NODES = {
    "global.numa_hinting_faults_of_atomics_keep_the_contents",
    "global.numa_hinting_faults_of_load_exclusives_stay_reads",
}
ELSEWHERE = OF_TAGS | OF_NODES | {"global.protection_key_forbids_writes_only"}


@pytest.fixture
def all_run(usual: Callable[[Machine], bool], guest_program) -> Callable[[Machine], None]:
    """Run the program, which may skip only those tests on the usual kernel and machine."""

    def run(place: Machine) -> None:
        skipped = guest_program(place, SEMANTICS)
        assert skipped == ELSEWHERE or not usual(place)

    return run


@pytest.mark.full
def test_semantics(machine: Boot, all_run: Callable[[Machine], None]) -> None:
    all_run(machine(smp=2))


def test_semantics_with_the_faults_of_hardware(
    machine: Boot, all_run: Callable[[Machine], None]
) -> None:
    all_run(machine(smp=2, single_threaded=True))


def faults_of_a_cgroup(place: Machine, guest_program: Callable[..., set[str]]) -> tuple[int, int]:
    """Let a cgroup write hugetlb pages that it cannot have; return its faults and all faults."""
    group = "/sys/fs/cgroup/faults"
    test = "hugetlb_file_without_a_free_page_can_be_read_and_not_written"
    place.check(f"echo +memory >/sys/fs/cgroup/cgroup.subtree_control && mkdir {group}")
    before = place.vmstat()["pgfault"]
    command = f"sh -c 'echo $$ >{group}/cgroup.procs && exec {SEMANTICS} -t {test}'"
    guest_program(place, command, may_skip=())
    everybodys = place.vmstat()["pgfault"] - before
    found = re.search(r"^pgfault (\d+)$", place.check(f"cat {group}/memory.stat"), re.MULTILINE)
    assert found
    return int(found[1]), everybodys


def test_a_fault_of_a_cgroup_is_counted_once_for_it_too(machine: Boot, guest_program) -> None:
    """A write that was forced and failed, and the read after it, are one fault to all who count.

    So there are as many of them as where none is forced. That is about 2200, of which 612 are
    forced and fail; and a cgroup counts up to 64 faults of each CPU late.
    """
    forced, switched_off = (
        faults_of_a_cgroup(machine(smp=2, single_threaded=True, append=append), guest_program)
        for append in ("", OFF)
    )
    assert forced == pytest.approx(switched_off, abs=300)


@pytest.mark.full
def test_semantics_with_memory_tagging(machine: Boot, guest_program) -> None:
    place = machine(smp=2, single_threaded=True, extra_args=MTE)
    assert "Memory Tagging Extension" in place.console()
    guest_program(place, SEMANTICS, may_skip=ELSEWHERE - OF_TAGS)


@pytest.mark.full
def test_semantics_with_numa_balancing(machine: Boot, guest_program) -> None:
    place = machine(smp=2, single_threaded=True, nodes=2)
    guest_program(place, SEMANTICS, may_skip=ELSEWHERE - OF_NODES)


@pytest.mark.full
def test_semantics_with_pan_in_software(machine: Boot, guest_program, needs_symbol) -> None:
    """An Armv8.0 CPU: no PAN, no LSE, and 32-bit tasks."""
    needs_symbol("ARM64_SW_TTBR0_PAN")
    place = machine(smp=2, single_threaded=True, cpu="cortex-a72")
    assert "emulated: Privileged Access Never" in place.console()
    without_lse = {"global.execute_only_code_works"}
    guest_program(place, SEMANTICS, may_skip=ELSEWHERE | without_lse)


# It has LSE, and the kernel does not let it set the dirty state: see test_populate.py.
WITHOUT_DBM = "cortex-a55"


@pytest.mark.full
@pytest.mark.parametrize("build", ["patched-4k", "base-4k"])
def test_semantics_without_the_dirty_state_in_hardware(
    machine: Boot, guest_program, build: str
) -> None:
    """A read of shared memory maps it read-only, so that atomics are forced there, too."""
    place = machine(build=build, smp=2, single_threaded=True, cpu=WITHOUT_DBM)
    of_ours = {"global.counters_count_forced_faults"} if build == "base-4k" else set()
    guest_program(place, SEMANTICS, may_skip=ELSEWHERE | of_ours)


@pytest.mark.full
def test_semantics_switched_off(machine: Boot, guest_program) -> None:
    place = machine(smp=2, single_threaded=True, append=OFF)
    guest_program(place, SEMANTICS, may_skip=ELSEWHERE)


@pytest.mark.full
def test_semantics_without_exclusives(machine: Boot, guest_program) -> None:
    place = machine(smp=2, single_threaded=True, append=EXCLUSIVE_OFF)
    guest_program(place, SEMANTICS, may_skip=ELSEWHERE)


@pytest.mark.full
def test_semantics_of_the_base_kernel(machine: Boot, guest_program) -> None:
    """It is the test that is right, and not what it tests: no change of ours can break this."""
    place = machine(build="base-4k", smp=2, single_threaded=True)
    of_ours = {"global.counters_count_forced_faults"}
    guest_program(place, SEMANTICS, may_skip=ELSEWHERE | of_ours)


# One for each kind of memory, as the handlers of their faults take different locks.
KINDS_OF_MEMORY = (
    "every_access_populates_with_the_right_value",
    "untouched_read_only_page_gives_one_access_error",
    "userfaultfd_missing_page_is_one_event_resolved_by_copy",
    "userfaultfd_minor_fault_of_shared_memory_is_one_event",
    "shared_memory_gets_the_data",
    "secret_memory_is_populated_by_one_access",
    "private_file_gets_a_copy_and_stays_unchanged",
    "fork_keeps_parent_and_child_apart",
    "one_access_makes_a_huge_page",
    "one_access_makes_a_huge_page_of_shared_memory",
    "hugetlb_page_is_allocated_once",
    "load_exclusive_of_swapped_memory_stays_a_read",
)


@pytest.mark.parametrize(
    ("build", "mte", "every", "tests"),
    [
        ("checked-4k", "off", 997, KINDS_OF_MEMORY),
        pytest.param("checked-4k", "off", 997, (), marks=pytest.mark.full),
        pytest.param("debug-4k", "off", 11, (), marks=pytest.mark.full),
        pytest.param("debug-4k", "on", 11, (), marks=pytest.mark.full),
    ],
    ids=["kinds-of-memory", "checked", "debug", "debug-tagging"],
)
def test_semantics_under_lockdep_and_kasan(
    machine: Boot, guest_program, build: str, mte: str, every: int, tests: tuple[str, ...]
) -> None:
    place = machine(build, smp=2, single_threaded=True, extra_args=("-machine", f"mte={mte}"))
    chosen = "".join(f" -t {test}" for test in tests)
    may_skip = set() if tests else ELSEWHERE - (OF_TAGS if mte == "on" else set())
    guest_program(place, f"EVERY={every} {SEMANTICS}{chosen}", may_skip=may_skip)


def run_compat(place: Machine, usual: Callable[[Machine], bool]) -> dict[str, str]:
    """Let a 32-bit task populate memory; return what it printed."""
    result = place.run(f"{TESTS}/compat")
    if result.status == 126 and not usual(place):
        pytest.skip("this machine runs no 32-bit tasks")
    assert result.status == 0, result.output
    return dict(line.split("=", 1) for line in result.output.splitlines())


def test_32_bit_task_populates_and_is_never_forced(
    machine: Boot, usual: Callable[[Machine], bool]
) -> None:
    place = machine()
    printed = run_compat(place, usual)
    pages = int(printed["pages"])
    assert printed["bits"] == "32"
    assert int(printed["sum"]) == pages
    assert int(printed["faults"]) == 2 * pages
    assert printed["atomic_write_fault"] == printed["exclusive_write_fault"] == "0"
    assert place.warnings() == ""
