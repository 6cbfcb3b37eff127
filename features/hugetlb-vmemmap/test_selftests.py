"""The kernel's own selftests of hugepages: what passes on the base kernel passes on ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from pagewright.guest import kselftest, programs
from pagewright.host.workspace import Workspace
from pagewright.machine.machine import Machine
from pagewright.results.kselftest import SelftestRun, run_in

pytestmark = [pytest.mark.full, pytest.mark.long(10)]

Boot = Callable[..., Machine]

TESTS = programs.path("hugetlb-vmemmap")
MEMORY = "2G"

# Pools of 64 KiB and 32 MiB too; there is no room for pages of 1 GiB.
ALL_SIZES = "for pool in /sys/kernel/mm/hugepages/*/nr_hugepages; do echo 4 >$pool; done"


@dataclass(frozen=True)
class Selftest:
    """One run of a selftest, with what run_vmtests.sh of the kernel sets up for it.

    Attributes:
        command: what is run in the folder of the collection.
        pages: free hugepages of the default size that it finds; no other size has any.
        before: shell that is run first.
        after: shell that takes that back.
        seconds: how long it may take.
    """

    command: str
    pages: int = 128
    collection: str = "mm"
    before: str = ""
    after: str = ""
    seconds: float = 300

    @property
    def name(self) -> str:
        """The program, with the arguments that tell its runs apart."""
        return self.command.split("./")[-1].rstrip("'")


SELFTESTS = (
    Selftest("./hugepage-vmemmap"),
    Selftest("./hugetlb-madvise"),
    Selftest("./hugetlb-soft-offline", pages=8, after="echo 1 >/proc/sys/vm/enable_soft_offline"),
    Selftest("./hugepage-mmap"),
    Selftest("./map_hugetlb"),
    Selftest("./hugepage-shm"),
    Selftest("./hugepage-mremap"),
    # In a tmpfs, as /tmp is one, I/O is never direct.
    Selftest("unshare -m sh -c 'mount --bind /var/tmp /tmp && exec ./hugetlb_dio'"),
    Selftest("./hugetlb_fault_after_madv", pages=1),
    Selftest("./hugetlb_madv_vs_map", pages=1),
    Selftest("./thuge-gen", before=ALL_SIZES),
    Selftest("./va_high_addr_switch.sh", pages=6),
    Selftest("./compaction_test", pages=0),
    Selftest("./cow", before=ALL_SIZES),
    Selftest("./pagemap_ioctl"),
    Selftest("./uffd-stress hugetlb 128 32"),
    Selftest("./uffd-stress hugetlb-private 128 32"),
    Selftest("./uffd-unit-tests", seconds=900),
    Selftest("./charge_reserved_hugetlb.sh -cgroup-v2", pages=0, seconds=600),
    Selftest("./hugetlb_reparenting_test.sh -cgroup-v2", pages=0),
    Selftest(
        "./test_hugetlb_memcg",
        pages=0,
        collection="cgroup",
        before="mount -o remount,memory_hugetlb_accounting /sys/fs/cgroup;"
        " echo +memory >/sys/fs/cgroup/cgroup.subtree_control",
        after="echo -memory >/sys/fs/cgroup/cgroup.subtree_control;"
        " mount -o remount /sys/fs/cgroup",
    ),
    # Loses its hugepages for good, on any kernel, and is therefore the last on its machine.
    Selftest(f"{TESTS}/spared ./hugetlb-read-hwpoison", pages=8),
)


@dataclass(frozen=True)
class Outcome:
    """What came of a selftest: its results, the default pool after it, new complaints."""

    run: SelftestRun
    pool: dict[str, int]
    complaints: str


def default_pool(place: Machine) -> dict[str, int]:
    """Return the counts of the default pool, as /proc/meminfo has them."""
    return {name: n for name, n in place.meminfo().items() if name.startswith("HugePages_")}


def run(place: Machine, test: Selftest) -> Outcome:
    """Run a selftest on a machine that is as if nothing had run there."""
    place.check(
        "for pool in /sys/kernel/mm/hugepages/*/nr_hugepages; do echo 0 >$pool; done;"
        " echo 3 >/proc/sys/vm/drop_caches; echo 1 >/proc/sys/vm/compact_memory;"
        f" echo {test.pages} >/proc/sys/vm/nr_hugepages"
    )
    assert default_pool(place)["HugePages_Free"] == test.pages
    before = place.warnings()
    place.check(test.before or "true")
    result = run_in(place, test.collection, test.command, test.seconds)
    pool = default_pool(place)
    place.check(test.after or "true")
    complaints = place.warnings()
    return Outcome(result, pool, "" if complaints == before else complaints)


@pytest.fixture(scope="module")
def on_base(space: Workspace, shared_machine: Boot) -> Callable[[Selftest], Outcome]:
    """Run selftests on the base kernel, each once."""
    done: dict[Selftest, Outcome] = {}

    def outcome(test: Selftest) -> Outcome:
        if test not in done:
            place = shared_machine("base-4k", smp=2, memory=MEMORY, overlay=kselftest.ensure(space))
            done[test] = run(place, test)
        return done[test]

    return outcome


@pytest.mark.parametrize("mode", ["seamless", "pause"])
@pytest.mark.parametrize("test", SELFTESTS, ids=lambda test: test.name)
def test_no_new_failure(space, shared_machine, on_base, test, mode):
    base = on_base(test)
    assert base.run.outcome == "pass", base.run.output
    place = shared_machine(
        "patched-4k",
        smp=2,
        memory=MEMORY,
        overlay=kselftest.ensure(space),
        append=f"hugetlb_free_vmemmap=on hugetlb_vmemmap={mode}",
    )
    assert place.check("cat /sys/kernel/mm/hugetlb_vmemmap/mode") == mode
    ours = run(place, test)
    assert base.run.lost(ours.run) == [], ours.run.output
    assert ours.complaints == ""
    assert ours.pool == base.pool
