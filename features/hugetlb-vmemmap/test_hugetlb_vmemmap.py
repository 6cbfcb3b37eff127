"""Struct pages of hugepages are freed and come back, in both modes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from modes import pause_first, seamless_first
from page_sizes import HUGEPAGES, PAGES_4K, PAGES_16K, PAGES_64K, Pages, Size, pages_of
from waiting import wait_until
from workloads import COUNTER

from pagewright.guest import programs
from pagewright.guest.shell import SHORT_PAGE_LISTS
from pagewright.host import workspace
from pagewright.host.workspace import Workspace
from pagewright.kernel.modules import FOLDER
from pagewright.kernel.recipes import DEFAULT_BUILD, recipe
from pagewright.machine import klog
from pagewright.machine.free_memory import free_memory
from pagewright.machine.machine import Machine
from pagewright.machine.options import DEFAULT_CPU, LEVEL_0_CPU, UNLISTED_CPU

pytestmark = pytest.mark.long(4)

MODES = ("pause", "seamless")
HVO = "/sys/kernel/mm/hugetlb_vmemmap"
LIMIT = "/sys/kernel/cpu_pause/limit_us"
CPUS = {"level2": DEFAULT_CPU, "level0": UNLISTED_CPU}
PROGRAMS = programs.path("hugetlb-vmemmap")


@pytest.fixture(scope="session")
def pages(space: Workspace, tested: Callable[[str], str]) -> Pages:
    """Return what base pages and hugepages the kernel has that is tested."""
    return pages_of(space, tested(DEFAULT_BUILD))


@pytest.fixture(scope="session")
def large(pages: Pages) -> Size:
    """Return the default size of hugepage."""
    return pages.large


@pytest.fixture(scope="session")
def giant(pages: Pages) -> Size:
    """Return the largest size of hugepage."""
    return pages.giant


def _on_one_node(boot: Callable[..., Machine]) -> Callable[..., Machine]:
    """Have machines keep their memory in one piece unless a test asks for nodes.

    Kernels of servers would divide it. How many pages of 1 GiB there are, and for how many struct
    pages there is memory, is what tests count on, and nodes have less of it than all together.
    """
    return lambda build=DEFAULT_BUILD, **options: boot(build, **({"nodes": 1} | options))


@pytest.fixture
def machine(machine: Callable[..., Machine]) -> Callable[..., Machine]:
    """Boot machines for one test."""
    return _on_one_node(machine)


@pytest.fixture(scope="module")
def shared_machine(shared_machine: Callable[..., Machine]) -> Callable[..., Machine]:
    """Boot machines that all tests of this file share."""
    return _on_one_node(shared_machine)


def on(mode: str) -> str:
    """Return kernel parameters that switch HVO on in a mode.

    A pause waits longer than by default for a CPU that the host does not run.
    """
    wait = " cpu_pause.wait_us=250000" if mode == "pause" else ""
    return f"hugetlb_free_vmemmap=on hugetlb_vmemmap={mode}{wait}"


def read(place: Machine, file: str) -> int:
    """Read a number."""
    return int(place.check(f"cat {file}"))


def resize(place: Machine, size: Size, number: int) -> int:
    """Ask for so many hugepages; return how many there are."""
    file = f"{size.pool}/nr_hugepages"
    return int(place.check(f"echo {number} >{file}; cat {file}", timeout=300))


def demote(place: Machine, size: Size, to: Size, number: int) -> None:
    # The kernel refuses a demote_size below the default size of hugepages (contiguous pages), even
    # where it has chosen that one itself.
    target = f"{size.pool}/demote_size"
    place.check(
        f"(grep -qx {to.kib}kB {target} || echo {to.kib}kB >{target}) && "
        f"echo {number} >{size.pool}/demote",
        timeout=300,
    )


def saved(place: Machine) -> int:
    """Return KiB that are freed, as the kernel counts them."""
    return read(place, f"{HVO}/bytes_saved") // 1024


def assert_nothing_left(place: Machine, without: Callable[[str], str] | None = None) -> None:
    """No hugepage, nothing saved, no complaint but what is expected (see Machine.warnings())."""
    counts = ("nr_hugepages", "free_hugepages", "surplus_hugepages", "resv_hugepages")
    pools = place.check(f"ls -d {HUGEPAGES}/hugepages-*kB").split()
    files = [f"{pool}/{count}" for pool in pools for count in counts]
    files.append(f"{HVO}/bytes_saved")
    left = {file: n for file, n in zip(files, place.read(*files), strict=True) if n != "0"}
    assert left == {}
    assert place.warnings(without) == ""


@contextmanager
def assert_no_page_leaks(place: Machine, kib: int) -> Iterator[None]:
    """As much memory is free afterwards as was before, but for some that caches may have taken.

    The counter of what is saved does not show this: a page may be lost that it counts as restored.
    Some pages are on their way for a moment, so what counts is the best of several readings.
    """
    before = free_memory(place)
    yield
    assert before - max(free_memory(place) for _ in range(3)) < kib


@pytest.mark.parametrize("mode", MODES)
def test_memory_is_freed_and_comes_back(shared_machine, mode, pages, giant):
    """MemFree and the counter agree, but for what else happens meanwhile."""
    place = shared_machine(memory=pages.memory(8), smp=2, append=on(mode))
    free = free_memory(place)
    for size in pages.sizes[1:]:
        wanted = pages.number(size, 4 if size is giant else 5)
        number = resize(place, size, wanted)
        # Vmemmap that was given back to others lies where there was room: a gigabyte that has
        # some is no hugepage.
        assert wanted - (size is giant) <= number <= wanted
        assert saved(place) == number * size.freed(mode)
        gained = free_memory(place) - free + number * size.kib
        assert gained == pytest.approx(number * size.freed(mode), rel=0.1), size

        assert resize(place, size, 0) == 0
        assert saved(place) == 0
        # What is split stays split: a page for 128 MiB; and lists of free pages that each CPU
        # keeps have up to two of 2 MiB.
        assert free_memory(place) == pytest.approx(free, abs=9000), size
        free = free_memory(place)
    assert_nothing_left(place)


@pytest.mark.parametrize("mode", MODES)
def test_demoted_pages_are_optimized_too(shared_machine, pages, mode, large, giant):
    place = shared_machine(memory=pages.memory(8), smp=2, append=on(mode))
    assert resize(place, giant, 2) == 2
    smaller = pages.sizes[-2]
    parts = giant.kib // smaller.kib
    demote(place, giant, smaller, 1)
    assert saved(place) == giant.freed(mode) + parts * smaller.freed(mode)
    demote(place, giant, large, 1)
    made = giant.kib // large.kib
    if smaller is not large:
        demote(place, smaller, large, parts // 2)
        parts -= parts // 2
        made += parts * (smaller.kib // large.kib)
    assert saved(place) == parts * smaller.freed(mode) + made * large.freed(mode)
    for size in pages.sizes:
        assert resize(place, size, 0) == 0
    assert_nothing_left(place)


@seamless_first
def test_pages_of_the_boot_command_line(machine, mode, large, giant, pages):
    """Those of the default size are made by several threads, some for each node."""
    number = pages.number(large, 2)
    reserved = f"hugepagesz={giant.name} hugepages=2 hugepagesz={large.name} hugepages={number}"
    place = machine(memory=pages.memory(8), smp=4, nodes=2, append=f"{on(mode)} {reserved}")
    assert saved(place) == 2 * giant.freed(mode) + number * large.freed(mode)
    nodes = [f"{large.of_node(node)}/nr_hugepages" for node in (0, 1)]
    assert [read(place, file) for file in nodes] == [number // 2, number // 2]
    demote(place, giant, large, 2)
    for size in (large, giant):
        assert resize(place, size, 0) == 0
    assert_nothing_left(place)


@pytest.mark.full
@seamless_first
def test_reserved_pages_are_optimized_before_other_cpus_run(machine, mode, large, giant, pages):
    """They change no live entry, on any CPU and in any order of parameters."""
    numbers = {size: 3 if size is giant else 8 for size in reversed(pages.gigantic)}
    words = [f"hugepagesz={size.name} hugepages={number}" for size, number in numbers.items()]
    append = " ".join([*words, on(mode)])
    place = machine(memory=pages.memory(8), smp=2, cpu=LEVEL_0_CPU, append=append)
    assert saved(place) == sum(number * size.freed(mode) for size, number in numbers.items())
    assert [read(place, f"{HVO}/{file}") for file in ("entries_changed", "pauses")] == [0, 0]
    # Who looks at struct pages finds tails.
    tails = {size: size.kib // pages.kib - 1 for size in numbers}
    assert nr_tails(place) == sum(number * tails[size] for size, number in numbers.items())
    demote(place, giant, large, 1)
    for size in pages.sizes:
        assert resize(place, size, 0) == 0
    assert_nothing_left(place)
    # Made again, they are as any other.
    assert resize(place, giant, 3) == 3
    assert saved(place) == 3 * giant.freed(mode)
    assert resize(place, giant, 0) == 0
    assert_nothing_left(place)


def nr_tails(place: Machine) -> int:
    """Count tails of hugetlb pages: the third byte of their 64 flags has those two alone."""
    program = """import os
flags = iter(lambda: os.read(0, 1 << 20), b"")
print(sum(some[2::8].count(3) for some in flags))"""
    return int(place.check(f"python3 -c '{program}' </proc/kpageflags"))


@pytest.mark.full
def test_reserved_pages_make_room_for_others(machine, giant, pages):
    """Their vmemmap is given back in pieces that are large enough for more of them.

    But all of it was there when the first of them was reserved. With -rP this prints how much.
    """
    if pages is PAGES_64K:
        pytest.skip("16 GiB of struct pages, for one hugepage more, are those of 16 TiB of memory")
    numbers, struct_pages = {}, {}
    for switch in ("off", "on"):
        number = pages.number(giant, 192)
        append = f"hugepagesz={giant.name} hugepages={number} hugetlb_free_vmemmap={switch}"
        place = machine(memory=pages.memory(192), cpu=LEVEL_0_CPU, append=append)
        numbers[switch] = read(place, f"{giant.pool}/nr_hugepages")
        # In pages: those of the vmemmap that were allocated at boot, less those given back since.
        struct_pages[switch] = int(place.check("sed -n 's/^nr_memmap_boot_pages //p' /proc/vmstat"))
        assert place.warnings() == ""
    # Of 3 GiB of struct pages, some are not of hugepages, and some lie across the end of one.
    assert numbers["on"] > numbers["off"]
    # 6.12 makes all struct pages before it reads `hugepages=`, so that HVO begins with those that
    # there are without it.
    peak, final = (struct_pages[switch] * pages.kib // 1024 for switch in ("off", "on"))
    memory = 192 * 1024 * pages.kib // 4
    print(
        f"{numbers['on']} pages of {giant.name} with HVO, {numbers['off']} without; struct pages "
        f"take {peak} MiB before the first one is reserved and {final} MiB in the end, "
        f"{(peak - final) / memory:.2%} of memory less"
    )
    assert final < peak / 10


@pytest.mark.full
def test_the_bases_hvo_restores_tails_that_may_be_freed(machine, large, giant):
    """All architectures but arm64 restore struct pages that way.

    With init_on_alloc=1 the allocator looks at each tail of a page that it gets back.
    """
    append = "hugetlb_free_vmemmap=on init_on_alloc=1"
    place = machine("naive-4k", memory="8G", smp=2, append=append)
    for size, number in ((large, 64), (giant, 2)):
        # Once to fill the caches.
        for _ in range(2):
            with assert_no_page_leaks(place, size.kib if size is giant else 8 * size.kib):
                assert resize(place, size, number) == number
                assert resize(place, size, 0) == 0
    # Their worker needs no rescuer: nobody waits for it who finds no memory.
    assert "R-huget" not in place.check("cat /proc/[0-9]*/comm")
    assert place.warnings() == ""


# Every second page that a shell asks for fails, after so many that it has got. So the split that
# comes first fails, a head page is had, and the split while entries change fails, too.
FAIL_EVERY_SECOND = """
cd /sys/kernel/debug/fail_page_alloc
echo 2 >interval; echo 100 >probability
for pages in $(seq 0 39) $(seq 0 39) $(seq 0 39); do
    echo $pages >space
    sh -c 'echo 1 >/proc/self/make-it-fail; echo 1 >FILE; echo 0 >/proc/self/make-it-fail'
    echo 0 >FILE
    grep -qx 0 FILE || { echo "after $pages"; exit 1; }
done 2>/dev/null
echo 0 >probability
grep -c restores: /sys/kernel/tracing/trace
"""


@pytest.mark.full
@pytest.mark.usefixtures("fault_injection")
def test_the_bases_hvo_goes_back_where_it_finds_no_table(machine, giant):
    """The folio keeps its head, and no page is lost.

    Only a hugepage with several tables can have changed in part.
    """
    append = "hugetlb_free_vmemmap=on init_on_alloc=1"
    place = machine("naive-4k", memory="8G", smp=1, append=append)
    # What goes back has the page of tails, the fourth member of struct vmemmap_remap_walk.
    place.check(
        "cd /sys/kernel/tracing && "
        "echo 'p:restores vmemmap_restore_pte tails=+24($arg3):u64' >kprobe_events && "
        "echo 'tails != 0' >events/kprobes/restores/filter && echo 1 >events/kprobes/enable"
    )
    with assert_no_page_leaks(place, 512):
        script = FAIL_EVERY_SECOND.replace("FILE", f"{giant.pool}/nr_hugepages")
        restored = int(place.check(f"{FAIL_PAGES_OF_TASKS}\n{script}", timeout=300))
    # Each time the entries of one table at least.
    assert restored >= 512
    assert place.warnings() == ""


def test_kunit_where_cpus_are_paused(machine, kunit_suites, pages):
    """Only there can a change fail in the middle of a folio."""
    append = f"kunit.enable=1 kunit.filter_glob=hugetlb_* {on('pause')}"
    place = machine(smp=2, memory=pages.memory(1), append=append)
    kunit_suites(place, ["hugetlb_vmemmap"], must_run=("half_done_folio_has_tails",))
    assert place.warnings() == ""


@pytest.mark.full
def test_all_reserved_pages_on_one_of_two_nodes(machine, giant, pages):
    """The other one has none, and the kernel must not look for their size there."""
    append = f"{on('seamless')} hugepagesz={giant.name} hugepages=1:2"
    place = machine(memory=pages.memory(6), smp=2, nodes=2, append=append)
    assert saved(place) == 2 * giant.seamless
    assert resize(place, giant, 0) == 0
    assert_nothing_left(place)


@pytest.mark.full
@seamless_first
def test_struct_pages_come_back_on_their_node(machine, mode, large, pages):
    """Its memory is in single pages. Those of another node are no better, though larger.

    Nor is anything compacted or reclaimed to make larger ones.
    """
    place = machine(memory=pages.memory(4), smp=2, nodes=2, append=f"{on(mode)} cma=0")
    pool = f"{large.of_node(0)}/nr_hugepages"
    # All that is left of the node's memory is written to. Not all is free in one piece.
    half = pages.number(large, 2)
    number = half - (432 * 1024 // large.kib + 8)
    place.check(f"echo {number} >{pool}")
    assert saved(place) == number * large.freed(mode)
    # What is kept for emergencies, and by CPUs, is in large pieces; and there would be more of them
    # if the kernel compacted what is scattered.
    place.check(KEEP_LITTLE)
    place.check(f"{PROGRAMS}/scatter 0 >/run/scattered & echo $! >/run/scatter")
    place.check("until test -s /run/scattered; do sleep 0.1; done", timeout=200)
    assert read(place, "/run/scattered") > 2 * number * large.freed(mode) // pages.kib

    def free_of_the_other() -> int:
        place.check("echo 1 >/proc/sys/vm/stat_refresh")
        return int(
            place.check("sed -n 's/^nr_free_pages //p' /sys/devices/system/node/node1/vmstat")
        )

    def direct_work() -> dict[str, int]:
        """Return how often tasks had to compact memory or reclaim some for what they wanted."""
        return {
            name: count
            for name, count in place.vmstat().items()
            if name == "compact_stall" or name.startswith("allocstall_")
        }

    before, worked = free_of_the_other(), direct_work()
    place.check(f"echo 0 >{pool}", timeout=200)
    assert direct_work() == worked
    # Some of what was scattered is in larger pieces after all.
    assert before - free_of_the_other() < number * large.freed(mode) // pages.kib // 8
    place.check("kill $(cat /run/scatter)")
    assert_nothing_left(place)


KEEP_LITTLE = f"""
{SHORT_PAGE_LISTS}
cd /proc/sys/vm
echo 0 >compaction_proactiveness
echo 0 >watermark_boost_factor
echo 1 >watermark_scale_factor
echo 1000 >min_free_kbytes
"""


@pytest.mark.full
@seamless_first
def test_struct_pages_say_their_node_before_folios_are_made(machine, mode, giant):
    """Who looks for what there is of a node finds the same with HVO and without."""
    found = {}
    for switch in (on(mode), "hugetlb_free_vmemmap=off"):
        append = f"{switch} hugepagesz={giant.name} hugepages=1:2"
        place = machine("checked-4k", memory="6G", smp=2, nodes=2, append=append)
        assert read(place, f"{giant.pool}/nr_hugepages") == 2
        log = re.search(r"allocated (\d+) bytes of page_ext", place.check("dmesg"))
        assert log
        found[switch] = int(log[1])
        assert place.warnings() == ""
    assert len(set(found.values())) == 1, found


@pytest.mark.full
@pause_first
def test_pages_from_cma(machine, mode, giant, pages):
    append = f"{on(mode)} hugetlb_cma={2 * giant.kib}K"
    place = machine(memory=pages.memory(4), smp=2, append=append)
    for _ in range(3):
        assert resize(place, giant, 2) == 2
        assert saved(place) == 2 * giant.freed(mode)
        assert resize(place, giant, 0) == 0
    assert_nothing_left(place)


@pytest.mark.full
@pause_first
def test_as_many_gigantic_pages_the_second_time(machine, mode, giant, pages):
    """What comes back must not be scattered over the memory that was freed."""
    place = machine(memory=pages.memory(16), append=on(mode))
    number = pages.number(giant, 12)
    for _ in range(3):
        assert resize(place, giant, number) == number
        assert resize(place, giant, 0) == 0
    assert_nothing_left(place)


@pytest.mark.parametrize("mode", ["seamless", pytest.param("pause", marks=pytest.mark.full)])
def test_seamless_never_pauses(machine, mode, large, giant, pages):
    place = machine(memory=pages.memory(8), smp=2, append=on(mode))
    # However slow the host is, what is done together needs one pause.
    place.check(f"echo 1000000 >{LIMIT}")
    resize(place, giant, 2)
    demote(place, giant, large, 2)
    resize(place, large, 0)
    pauses = read(place, f"{HVO}/pauses")
    made = giant.kib // large.kib
    changed = 2 * (pages.entries(giant) * 2 + made * pages.entries(large) * 2)
    assert read(place, f"{HVO}/entries_changed") == changed
    if mode == "seamless":
        assert (pauses, read(place, "/sys/kernel/cpu_pause/pauses")) == (0, 0)
        assert read(place, f"{HVO}/longest_pause_ns") == 0
    else:
        # Splitting, allocating, demoting (twice) and freeing, each for both pages at once.
        assert 4 <= pauses <= 8
        assert read(place, f"{HVO}/longest_pause_ns") > 0
    assert_nothing_left(place)


ONLY_TO_SPLIT = "CPUs are paused only to split a block, once"


@pytest.mark.parametrize(
    ("cpu", "asked", "mode", "reason"),
    [
        ("level0", "", "seamless", ONLY_TO_SPLIT),
        *(
            pytest.param(*one, marks=pytest.mark.full)
            for one in (
                ("level2", "", "seamless", "BBM level 2 without aborts"),
                ("level2", "sideways", "seamless", "BBM level 2 without aborts"),
                ("level2", "pause", "pause", "asked for with hugetlb_vmemmap="),
                ("level0", "seamless", "seamless", "asked for with hugetlb_vmemmap="),
                ("level0", "auto", "seamless", ONLY_TO_SPLIT),
            )
        ),
    ],
)
def test_mode_is_chosen_and_said(machine, pages, cpu, asked, mode, reason, large):
    if not pages.vmemmap_has_blocks:
        reason = reason.replace(ONLY_TO_SPLIT, "the vmemmap consists of pages")
    append = "hugetlb_free_vmemmap=on" + (f" hugetlb_vmemmap={asked}" if asked else "")
    place = machine(memory=pages.memory(2), smp=2, cpu=CPUS[cpu], append=append)
    assert place.check(f"cat {HVO}/mode").strip() == mode
    assert place.check(f"cat {HVO}/reason").strip() == reason
    log = place.check("dmesg")
    said = {"pause": "pauses CPUs", "seamless": "is seamless"}[mode]
    assert f"HugeTLB: vmemmap optimization {said} ({reason})" in log
    warned = "hugetlb_vmemmap=sideways: not one of auto, pause, seamless; using auto" in log
    assert warned == (asked == "sideways")
    size = f"{large.kib / 1024:#.3g} MiB".replace(". ", " ")
    assert f"HugeTLB: {large.freed(mode)} KiB vmemmap can be freed for a {size} page" in log

    # Without level 2, seamless pauses to split, once for the same memory.
    number = pages.at_most(64, 1)
    resize(place, large, number)
    resize(place, large, 0)
    pauses = read(place, f"{HVO}/pauses")
    resize(place, large, number)
    resize(place, large, 0)
    again = read(place, f"{HVO}/pauses") - pauses
    if mode == "seamless":
        assert (pauses > 0, again) == (cpu == "level0" and pages.vmemmap_has_blocks, 0)
    else:
        assert pauses > 0
        assert again > 0
    assert_nothing_left(place)


def walk(place: Machine) -> int:
    """Return the instructions of asking for the head of every page, the fewest of some tries."""
    command = f"{COUNTER} dd if=/proc/kpagecount of=/dev/null bs=1M 2>/dev/null"
    found = re.findall(r"instructions=(\d+)", place.check("; ".join([command] * 5)))
    assert len(found) == 5
    return min(int(number) for number in found)


def test_off_and_on_while_it_runs(machine, large, pages):
    """Off costs nothing: nobody looks for heads among the tails before it is switched on."""
    place = machine(
        memory=pages.memory(2),
        smp=2,
        icount=True,
        append="hugetlb_free_vmemmap=off hugetlb_vmemmap=pause",
    )
    off = walk(place)
    number = pages.at_most(16, 1 / 32)
    resize(place, large, number)
    assert saved(place) == 0
    assert walk(place) == pytest.approx(off, rel=0.004)
    place.check("sysctl -qw vm.hugetlb_optimize_vmemmap=1")
    assert walk(place) > off * 1.008
    resize(place, large, 2 * number)
    assert saved(place) == number * large.pause
    place.check("sysctl -qw vm.hugetlb_optimize_vmemmap=0")
    resize(place, large, 3 * number)
    assert saved(place) == number * large.pause
    # Those that are optimized still have copies of their heads among their tails.
    assert walk(place) > off * 1.008
    resize(place, large, 0)
    assert_nothing_left(place)


# All that tasks have given back is with the page allocator.
ALL_BACK = f"until test $(cat {HVO}/bytes_saved) = 0; do sleep 0.1; done"


# The next surplus pages are gathered for two seconds: after each turn it is longer. Of each turn
# SOME pages are worth a pause.
GATHER_FOR_LONG = (
    f"held=$(cat {HVO}/bytes_saved); for turn in $(seq 6); do "
    f"{PROGRAMS}/surplus -r -u SOME >/dev/null; "
    f"until test $(cat {HVO}/bytes_saved) = $held; do sleep 0.1; done; done"
)


def gather_for_long(place: Machine, pages: Pages) -> None:
    """Have the next surplus pages gathered for two seconds, where none are saved now."""
    gather = GATHER_FOR_LONG.replace("SOME", str(pages.worth_a_pause))
    place.check(f"{ALL_BACK}; {gather}", timeout=120)


@pytest.mark.parametrize(
    "way",
    [
        *("-r", "-r -u", "-r -c 16"),
        *(
            pytest.param(way, marks=pytest.mark.full)
            for way in ("", "-l", "-l -r", "-l -r -u", "-r -c 15")
        ),
    ],
)
def test_surplus_pages_pause_seldom(shared_machine, pages, way, large):
    """A program that takes 512 of them and gives them back had all CPUs paused 1024 times."""
    alone = pages.worth_a_pause == 1
    if alone and "-c" in way:
        pytest.skip(f"a single hugepage of {large.name} is worth a pause")
    place = shared_machine(memory=pages.memory(8), smp=2, append=on("pause"))
    # All blocks are split before, which takes pauses of its own.
    resize(place, large, pages.at_most(600, 7))
    resize(place, large, 0)
    place.check("echo 600 >/proc/sys/vm/nr_overcommit_hugepages")
    number = pages.at_most(512, 6) if "-u" in way else pages.touched
    if way.endswith("15"):
        number = 510
    if alone:
        # The pauses that tasks had before do not count any more.
        place.check("sleep 5")
    # However slow the host is, what is done together needs one pause.
    limit = place.check(f"cat {LIMIT}")
    place.check(f"echo 1000000 >{LIMIT}")
    pauses, skipped = (read(place, f"{HVO}/{name}") for name in ("pauses", "not_optimized"))
    assert f"pages={number}" in place.check(f"{PROGRAMS}/surplus {way} {number}", timeout=200)
    place.check(f"{ALL_BACK}; echo {limit} >{LIMIT}", timeout=20)
    pauses, skipped = (
        read(place, f"{HVO}/pauses") - pauses,
        read(place, f"{HVO}/not_optimized") - skipped,
    )
    place.check("echo 0 >/proc/sys/vm/nr_overcommit_hugepages")
    if way == "-r":
        # Reserved together, and so optimized together.
        assert 2 <= pauses <= 4
        assert skipped == 0
    elif way == "-r -u":
        # Never taken by a fault, so that the task that gives them back is not the worker.
        assert 2 <= pauses <= 64
        assert skipped == 0
    elif way == "-r -c 16" or alone:
        # As many together as are worth a pause, of which there are 16 in 5 seconds.
        assert 2 <= pauses <= 64
        assert skipped <= number - 8 * pages.worth_a_pause
    else:
        assert (pauses, skipped) == (0, number)
    assert resize(place, large, 0) == 0
    assert_nothing_left(place)


@pytest.mark.parametrize(
    "cpu",
    [LEVEL_0_CPU, pytest.param(UNLISTED_CPU, marks=pytest.mark.full)],
    ids=["level0", "unlisted"],
)
def test_any_cpu_is_seamless_but_for_one_pause(machine, cpu, large, giant, pages):
    """Without BBM level 2 all blocks are split in one pause; what follows takes none.

    Time is counted in instructions, as a pause ends when it has lasted too long.
    """
    append = "hugetlb_free_vmemmap=on"
    place = machine(memory=pages.memory(28), smp=2, cpu=cpu, append=append, icount=True)
    pauses = [0]

    def pauses_since() -> int:
        pauses.append(read(place, f"{HVO}/pauses"))
        return pauses[-1] - pauses[-2]

    number = pages.number(giant, 24)
    assert resize(place, giant, number) == number
    assert saved(place) == number * giant.seamless
    assert pauses_since() == (1 if pages.vmemmap_has_blocks else 0)
    demote(place, giant, large, number)
    assert saved(place) == number * (giant.kib // large.kib) * large.seamless
    resize(place, large, 0)
    assert pauses_since() == 0

    # What tasks ask for pauses once for a block of 64 hugepages, and not again.
    number = pages.touched
    place.check("echo 600 >/proc/sys/vm/nr_overcommit_hugepages")
    place.check(f"{PROGRAMS}/surplus -r {number}", timeout=200)
    assert pauses_since() <= (number // 64 + 1 if pages.vmemmap_has_blocks else 0)
    place.check(ALL_BACK, timeout=20)
    counts = [f"{HVO}/{name}" for name in ("entries_changed", "not_optimized")]
    few = pages.worth_a_pause > 1
    for way in ("-r", ""):
        before = [*map(int, place.read(*counts))]
        place.check(f"{PROGRAMS}/surplus {way} {number}", timeout=200)
        place.check(ALL_BACK, timeout=20)
        assert pauses_since() == 0
        grown = [int(now) - then for now, then in zip(place.read(*counts), before, strict=True)]
        # Each is optimized, and restored when it goes; but no task waits for that for few of them.
        left = way == "" and few
        assert grown == ([0, number] if left else [number * pages.entries(large) * 2, 0])
    place.check("echo 0 >/proc/sys/vm/nr_overcommit_hugepages")
    assert_nothing_left(place)


@pytest.mark.full
def test_surplus_pages_that_wait_to_be_freed_are_not_missed(shared_machine, large, pages):
    """Those of one program take most of memory, and the next one wants as many at once.

    After eight of them tasks have had all the pauses that they can have in five seconds.
    """
    place = shared_machine(memory=pages.memory(8), smp=2, append=on("pause"))
    free = free_memory(place)
    number = free * 3 // 4 // large.kib
    place.check(f"echo {number} >/proc/sys/vm/nr_overcommit_hugepages")
    # Without a fault they come and go as fast as they can.
    output = place.check(
        f"for turn in $(seq 12); do {PROGRAMS}/surplus -r -u -c {number} {number} || exit; done",
        timeout=200,
    )
    assert output.count(f"pages={number}") == 12
    place.check("echo 0 >/proc/sys/vm/nr_overcommit_hugepages")
    place.check(ALL_BACK, timeout=20)
    assert resize(place, large, 0) == 0
    assert_nothing_left(place)


@pytest.mark.full
def test_errors_for_one_device_are_not_for_pages_that_wait_to_be_freed(
    machine, large, pages, needs_symbol
):
    """Their links were taken for mappings, and led to the flags of a page as a super block."""
    needs_symbol("HWPOISON_INJECT")
    place = machine(memory=pages.memory(4), smp=2, append=on("pause"))
    # The third link from the end of the list is the first that leads so far.
    number = max(pages.worth_a_pause, 4)
    place.check(f"echo {number} >/proc/sys/vm/nr_overcommit_hugepages")
    gather_for_long(place, pages)
    # Files in memory, those of hugepages too, are on devices of this major number.
    output = place.check(
        "cd /sys/kernel/debug/hwpoison || exit; "
        "echo 0 >corrupt-filter-dev-major; echo 1 >corrupt-filter-enable; "
        f"frames=$({PROGRAMS}/surplus -r -a {number} | sed -n s/frame=//p); "
        "(for frame in $frames; do echo $frame >corrupt-pfn || exit; echo filtered; done); "
        f"cat {HVO}/bytes_saved; grep HardwareCorrupted /proc/meminfo; "
        "echo 0 >corrupt-filter-enable; echo 0xffffffff >corrupt-filter-dev-major"
    )
    held = number * large.pause * 1024
    assert output.split() == [*["filtered"] * number, str(held), "HardwareCorrupted:", "0", "kB"]
    assert "Injecting memory failure" not in place.console()
    place.check(f"{ALL_BACK}; echo 0 >/proc/sys/vm/nr_overcommit_hugepages", timeout=20)
    assert_nothing_left(place)


def without_killing(log: str) -> str:
    """Return a console's log without the reports of the OOM killer."""
    killing = r"^[^\n]*invoked oom-killer:.*?Out of memory: Killed process[^\n]*$"
    return re.sub(killing, "", log, flags=re.M | re.S)


KILLED = 40
# Tasks are killed while nothing is gathered that the OOM killer could wait for.
KILL = (
    "killed() { sed -n 's/^oom_kill //p' /proc/vmstat; }; "
    f"for turn in $(seq {KILLED}); do sleep 1000 & echo 1000 >/proc/$!/oom_score_adj; "
    "before=$(killed); echo f >/proc/sysrq-trigger; "
    "until test $(killed) != $before; do sleep 0.01; done; wait $!; done"
)
# What goes before. With many turns at once, tasks have had all the pauses that they can have in
# five seconds.
BEFORE = {
    "at-once": f"{GATHER_FOR_LONG}; ",
    "after-too-many-pauses": f"for turn in $(seq 20); do {PROGRAMS}/surplus -r -u SOME >/dev/null; "
    "done; ",
    "after-others-were-killed": f"{KILL}; {GATHER_FOR_LONG}; ",
}


@pytest.mark.full
@pytest.mark.parametrize("others", BEFORE)
def test_nobody_is_killed_for_memory_that_is_gathered(machine, others, large, pages):
    """Most of memory is, for two seconds, and a program wants half of it at once."""
    # Half of it is written to.
    gib = max(4, 40 * large.kib // 1024 // 1024)
    place = machine(memory=f"{gib}G", smp=2, append=on("pause"))
    some = pages.worth_a_pause
    free = free_memory(place)
    # Not all that is free is so in pieces that are large enough, and what goes before needs some.
    number = (free - max(free // 30, (some + 7) * large.kib)) // large.kib
    wanted = number * large.kib // 2 // 1024
    place.check(f"echo {number + some} >/proc/sys/vm/nr_overcommit_hugepages")
    trace = "/sys/kernel/tracing"
    event = f"{trace}/events/workqueue/workqueue_queue_work/enable"
    skipped = read(place, f"{HVO}/not_optimized")
    output = place.check(
        "mkdir /tmp/space; mount -t tmpfs -o size=100%,huge=always none /tmp/space; "
        "mkfifo /tmp/end; "
        f"mount -t tracefs none /sys/kernel/tracing 2>/dev/null; echo 1 >{event}; "
        f"echo p:out_of_memory out_of_memory >{trace}/kprobe_events; "
        f"echo 1 >{trace}/events/kprobes/enable; "
        f"{PROGRAMS}/surplus -r -u -w {number} </tmp/end & exec 3>/tmp/end; "
        f"while kill -0 $! && test $(cat {large.pool}/surplus_hugepages) != {number}; do "
        "sleep 0.1; done; "
        f"{BEFORE[others].replace('SOME', str(some))}"
        "exec 3>&-; wait; grep MemFree /proc/meminfo; "
        f"fallocate -l {wanted}M /tmp/space/half; stat -c %s /tmp/space/half; "
        f"echo 0 >{event}; grep -E 'free_hpage_workfn|: out_of_memory:' {trace}/trace; "
        "grep oom_kill /proc/vmstat",
        timeout=200,
    )
    assert f"pages={number}" in output
    # What is free is much less than what is wanted: the rest is gathered. Large blocks leave more.
    most = wanted // 2 if pages is PAGES_4K else wanted * 2 // 3
    assert int(re.search(r"MemFree: +(\d+)", output)[1]) // 1024 < most, output
    if others == "after-too-many-pauses":
        assert read(place, f"{HVO}/not_optimized") > skipped
    else:
        # On a slow host the worker may have begun by itself before memory was missed.
        missed = re.search(r"\bfallocate-\d+ .*: out_of_memory:", output)
        later = output[missed.start() :] if missed else ""
        hurried = re.search(r"\bfallocate-\d+ .*free_hpage_workfn", output)
        assert hurried or "free_hpage_workfn" not in later, output
    assert str(wanted << 20) in output.splitlines()
    killed = KILLED if others == "after-others-were-killed" else 0
    assert f"oom_kill {killed}" in output.splitlines()
    place.check(
        f"umount /tmp/space; echo 0 >/proc/sys/vm/nr_overcommit_hugepages; {ALL_BACK}", timeout=20
    )
    assert_nothing_left(place, without_killing if killed else None)


@pytest.mark.full
def test_page_that_is_gathered_can_be_taken_offline(machine, large, pages):
    """It is in no pool for two seconds, and was no page that can be handled."""
    place = machine(memory=pages.memory(4), smp=2, append=on("pause"))
    number = pages.worth_a_pause
    place.check(f"echo {number} >/proc/sys/vm/nr_overcommit_hugepages")
    gather_for_long(place, pages)
    output = place.check(
        f"frame=$({PROGRAMS}/surplus -r -f {number} | sed -n s/frame=//p); "
        f"cat {HVO}/bytes_saved; address=$((frame * {pages.kib * 1024})); "
        "echo $address >/sys/devices/system/memory/soft_offline_page || exit; "
        "grep HardwareCorrupted /proc/meminfo"
    )
    held = number * large.pause * 1024
    assert output.split() == [str(held), "HardwareCorrupted:", str(pages.kib), "kB"]
    place.check(f"{ALL_BACK}; echo 0 >/proc/sys/vm/nr_overcommit_hugepages", timeout=20)
    # It stays out of use, so memory is left with an error; the pools are as they were.
    assert_nothing_left(place)


@pytest.mark.full
def test_a_range_that_is_free_waits_for_no_gathered_pages(machine, pages, large, giant):
    """cma_alloc() has a lock meanwhile that all others wait for."""
    append = f"{on('pause')} hugetlb_cma={giant.kib}K"
    place = machine(memory=pages.memory(4), smp=2, append=append)
    place.check("echo 16 >/proc/sys/vm/nr_overcommit_hugepages")
    gather_for_long(place, pages)
    output = place.check(
        f"{PROGRAMS}/surplus -r -u 16 >/dev/null; "
        f"echo 1 >/sys/kernel/debug/cma/hugetlb0/alloc || exit; cat {HVO}/bytes_saved"
    )
    assert int(output) == 16 * large.pause * 1024
    place.check(f"{ALL_BACK}; echo 0 >/proc/sys/vm/nr_overcommit_hugepages", timeout=20)
    assert_nothing_left(place)


@pytest.mark.full
def test_pages_that_fill_a_batch_are_gathered_no_longer(shared_machine, large, pages):
    """The task that gives up so many has the worker begin; otherwise a timer has."""
    number = pages.entries_of_a_batch // pages.entries(large)
    # As much memory as they are, and some.
    gib = max(8, number * large.kib * 5 // 4 // 1024 // 1024)
    place = shared_machine(memory=f"{gib}G", smp=2, append=on("pause"))
    event = "/sys/kernel/tracing/events/workqueue/workqueue_queue_work/enable"
    place.check("mount -t tracefs none /sys/kernel/tracing 2>/dev/null; true")

    def begun_by_task(number: int) -> bool:
        """Have so many come and go; was the worker queued from the task that gave them up?"""
        place.check(f"echo {number} >/proc/sys/vm/nr_overcommit_hugepages")
        output = place.check(
            f"cd /sys/kernel/tracing; echo >trace; echo 1 >{event}; "
            f"{PROGRAMS}/surplus -r -u {number}; "
            f"{ALL_BACK}; "
            f"echo 0 >{event}; grep free_hpage_workfn trace",
            timeout=200,
        )
        assert f"pages={number}" in output
        # The third of the flags tells who was interrupted by a timer.
        return bool(re.search(r"surplus-\d+ +\[\d+\] ..\.", output))

    place.check("echo 16 >/proc/sys/vm/nr_overcommit_hugepages")
    gather_for_long(place, pages)
    assert begun_by_task(number + 10)
    assert not begun_by_task(number - 10)
    place.check("echo 0 >/proc/sys/vm/nr_overcommit_hugepages")
    assert_nothing_left(place)


# Each allocation on the way fails once, the shell being the one that fails. It starts no
# other program meanwhile: a stack that cannot be allocated for one is a complaint. Eight tries
# in which none failed are the end: there are not so many allocations. Most are of the shell's
# opening and writing a file; the trace has the calls that led to each that failed.
FAIL_EACH = """
cd /sys/kernel/debug
for kind in fail_page_alloc failslab; do
    echo N >$kind/ignore-gfp-wait || exit
    echo 0 >$kind/verbose || exit
done
echo N >fail_page_alloc/ignore-gfp-highmem
echo 0 >fail_cpu_pause/verbose || exit
echo 0 >fail_page_alloc/min-order
cd /sys/kernel/tracing
echo 0 >events/enable
echo 'r:page should_fail_alloc_page failed=$retval:u8' >kprobe_events || exit
echo 'r:slab should_failslab failed=$retval:s32' >>kprobe_events || exit
for kind in page slab; do
    echo 'failed != 0' >events/kprobes/$kind/filter || exit
    echo 'stacktrace if failed != 0' >events/kprobes/$kind/trigger || exit
done
echo >trace
echo 1 >events/kprobes/enable || exit
beyond=0
for nth in $(seq 1 STEP LAST); do
    if sh -c "echo $nth >/proc/self/fail-nth; echo NUMBER >FILE; read left </proc/self/fail-nth;
        echo 0 >/proc/self/fail-nth; test \\"\\$left\\" = 0" 2>/dev/null
    then beyond=0
    else beyond=$((beyond + 1))
    fi
    AFTER || { echo "after $nth"; exit 1; }
    test $beyond -lt 8 || break
done
cat trace
echo 0 >events/kprobes/enable
for kind in page slab; do
    echo '!stacktrace' >events/kprobes/$kind/trigger
done
echo >kprobe_events
"""


def sweep(place: Machine, file: str, number: int, after: str, last: int, step: int = 1) -> int:
    """Fail the first, second, ... allocation of a write; return how often it was one of HVO's."""
    script = FAIL_EACH
    words = {
        "STEP": str(step),
        "LAST": str(last),
        "NUMBER": str(number),
        "FILE": file,
        "AFTER": after,
    }
    for word, value in words.items():
        script = script.replace(word, value)
    _, *traces = place.check(script, timeout=600).split("<stack trace>")
    return sum("=> hugetlb_vmemmap_" in trace for trace in traces)


def whole(size: Size, mode: str) -> str:
    """A command that checks that what is saved is that of whole hugepages, at most all."""
    return (
        f"saved=$(($(cat {HVO}/bytes_saved) / 1024)); number=$(cat {size.pool}/nr_hugepages); "
        f"test $((saved % {size.freed(mode)})) = 0 && "
        f"test $((saved / {size.freed(mode)})) -le $number"
    )


@pytest.mark.full
@pytest.mark.usefixtures("fault_injection")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("which", ["default", "gigantic"])
def test_failed_allocations_leave_folios_whole(machine, pages, mode, which, large, giant):
    """Optimizing and restoring with each allocation failing in turn."""
    size = large if which == "default" else giant
    place = machine(memory=pages.memory(8), smp=2, append=on(mode))
    # The last allocation that is made to fail, and the step from one to the next.
    if size is large:
        number, optimizing, restoring = 8, (60, 1), (60, 1)
    else:
        number, optimizing, restoring = 2, (20, 1), (120, 3)

    # Restored at the end of each turn, so that each begins alike; nothing fails then.
    file = f"{size.pool}/nr_hugepages"
    after = f"{{ {whole(size, mode)}; }} && echo 0 >{file} && test $(cat {HVO}/bytes_saved) = 0"
    assert sweep(place, file, number, after, *optimizing) > 0
    # A gigantic page has a second way to the memory that it needs, and only pauses have none.
    if size is large or mode == "pause":
        assert read(place, f"{HVO}/not_optimized") > 0
    assert_nothing_left(place)

    # The other way round.
    refill = f"{{ {whole(size, mode)}; }} && echo {number} >{file} && {whole(size, mode)}"
    assert resize(place, size, number) == number
    assert sweep(place, file, 0, refill, *restoring) > 0
    # Seamless restores an even number of pages: if a pair of them cannot be had, two single can.
    if mode == "pause":
        assert read(place, f"{HVO}/not_restored") > 0
    assert resize(place, size, 0) == 0
    # A page that could not be restored became surplus, and goes when there is memory.
    assert_nothing_left(place)


@pytest.mark.usefixtures("fault_injection")
def test_pages_that_no_pause_can_be_had_for_are_tried_once(shared_machine, large, pages):
    """Each try waits for RCU, and for CPUs: one for each page of a pool would take minutes."""
    place = shared_machine(memory=pages.memory(8), smp=2, append=on("pause"))
    number, before = pages.at_most(256, 6), read(place, f"{HVO}/not_restored")
    # A page of every other hugepage.
    with assert_no_page_leaks(place, number * pages.kib // 2):
        assert resize(place, large, number) == number
        # They are looked at before they are tried again.
        counts = place.check(
            "cd /sys/kernel/debug/fail_cpu_pause; echo 0 >verbose; echo -1 >times; "
            f"echo 100 >probability; echo 0 >{large.pool}/nr_hugepages; "
            f"cat {HVO}/not_restored {large.pool}/surplus_hugepages; echo 0 >probability",
            timeout=300,
        )
        tried, surplus = map(int, counts.split())
        assert (tried - before, surplus) == (number, number)
        # They are pages of the pool again if it is to have so many.
        assert resize(place, large, number) == number
        assert resize(place, large, 0) == 0
    assert_nothing_left(place)


@pytest.mark.full
@pytest.mark.usefixtures("fault_injection")
def test_surplus_pages_wait_for_a_pause(machine, large, pages):
    """If none can be had they are in the pool, for whoever wants them, and go when there is one."""
    place = machine(memory=pages.memory(4), smp=2, append=on("pause"))
    number, fail = pages.at_most(1000, 3), "/sys/kernel/debug/fail_cpu_pause"
    place.check(f"echo 0 >{fail}/verbose; echo -1 >{fail}/times")
    place.check(f"echo {number} >/proc/sys/vm/nr_overcommit_hugepages")
    # A page of every other hugepage.
    with assert_no_page_leaks(place, number * pages.kib // 2):
        # Long enough for no pause to be had.
        gather_for_long(place, pages)
        tried = read(place, f"{HVO}/not_restored")
        place.check(f"{PROGRAMS}/surplus -r -u {number}; echo 100 >{fail}/probability", timeout=60)
        # All of them are tried once, and one of them every 2 s from then on.
        place.check("sleep 10")
        assert 2 <= read(place, f"{HVO}/not_restored") - tried - number <= 6
        counts = [
            read(place, f"{large.pool}/{name}_hugepages") for name in ("nr", "surplus", "free")
        ]
        assert saved(place) == number * large.pause
        # One may be away, to be tried.
        assert all(count in (number, number - 1) for count in counts), counts
        # They are used once more, and what is reserved is not tried.
        place.check(f"{PROGRAMS}/surplus -r -u {number - 1}", timeout=60)
        assert saved(place) == number * large.pause

        place.check(f"echo 0 >{fail}/probability")
        place.check(ALL_BACK)
        assert read(place, f"{large.pool}/surplus_hugepages") == 0
    place.check("echo 0 >/proc/sys/vm/nr_overcommit_hugepages")
    assert_nothing_left(place)


# From when the probability is set, tasks that are marked get no page.
FAIL_PAGES_OF_TASKS = (
    "cd /sys/kernel/debug/fail_page_alloc; echo 0 >verbose; echo -1 >times; echo Y >task-filter; "
    "echo N >ignore-gfp-wait; echo N >ignore-gfp-highmem; echo 0 >min-order"
)


def free_with_failures(size: Size, percent: int) -> str:
    """Return a command that frees the hugepages of a size while so many allocations fail.

    It prints how many could not be freed, before they are tried again. To open the file that says
    so may fail, too.
    """
    return (
        f"{FAIL_PAGES_OF_TASKS}; echo {percent} >probability; "
        f"sh -c 'echo 1 >/proc/self/make-it-fail; echo 0 >{size.pool}/nr_hugepages; "
        f"until read surplus <{size.pool}/surplus_hugepages; do :; done 2>/dev/null; "
        "echo 0 >/proc/self/make-it-fail; "
        "echo $surplus'; echo 0 >probability; echo N >task-filter"
    )


def boot_to_lose_a_cpu(machine: Callable[..., Machine], pages: Pages) -> Machine:
    """Boot a machine with the module by which a CPU that goes off line is not known to be gone."""
    return machine(
        memory=pages.memory(4),
        smp=3,
        append=on("pause"),
        modules_from=["features/cpu-pause/undead_cpu.c"],
    )


@pytest.mark.full
@pytest.mark.parametrize("patient", [False, True], ids=["at-once", "in-a-minute"])
def test_surplus_pages_wait_for_a_cpu_that_is_lost(machine, large, pages, patient):
    """No page is taken out of its pool for that, until the CPU is back."""
    place = boot_to_lose_a_cpu(machine, pages)
    cpu, surplus = "/sys/devices/system/cpu/cpu2/online", f"{large.pool}/surplus_hugepages"
    number, gone = pages.at_most(20, 3), "CPU2 may run the kernel, though CPU hotplug has given it"
    place.check(f"insmod /{FOLDER}/undead_cpu.ko")
    assert resize(place, large, number) == number
    place.check(f"echo 0 >{cpu}")
    assert gone in place.console()
    assert resize(place, large, 0) == read(place, surplus) == number
    counts = f"cat {HVO}/not_restored /sys/kernel/cpu_pause/failed"
    tried = place.check(counts)
    # It was tried every two seconds.
    place.check("sleep 7")
    assert place.check(counts) == tried
    assert saved(place) == number * large.pause

    place.check(f"echo 1 >{cpu}")
    if not patient:
        # Who makes the pool smaller has them given back, but no surplus page.
        assert resize(place, large, number) == number
        assert resize(place, large, 0) == 0
    place.check(ALL_BACK, timeout=120)
    assert read(place, surplus) == 0
    place.check("rmmod undead_cpu")
    assert_nothing_left(place)


def hold(options: str, name: str = "taken") -> str:
    """Return a command that has a program take pages until give_back() ends it.

    What the program prints is in a file of that name in /tmp. The command is to be followed by
    another one.
    """
    return (
        f"mkfifo /tmp/{name}.end; sleep 1000 >/tmp/{name}.end & echo $! >/tmp/{name}.keeper; "
        f"{PROGRAMS}/surplus -w {options} </tmp/{name}.end >/tmp/{name} & "
    )


def give_back(name: str = "taken") -> str:
    """Return a command that ends what hold() has begun."""
    return f"kill $(cat /tmp/{name}.keeper); until grep -q pages= /tmp/{name}; do sleep 0.1; done"


GIVE_BACK = give_back()


def first_frame(printed: str) -> int:
    """Return where the first page is of a program that was told to print that."""
    return int(printed.splitlines()[0].removeprefix("frame="))


def take_until_a_cpu_is_lost(place: Machine, number: int) -> int:
    """Have a program take surplus pages, and a CPU be lost; then no page can be restored.

    GIVE_BACK has the program end. Returns the frame of the first page.
    """
    place.check(
        f"insmod /{FOLDER}/undead_cpu.ko; echo {number} >/proc/sys/vm/nr_overcommit_hugepages; "
        f"{hold(f'-r -f {number}')}"
        "until grep -q frame= /tmp/taken; do sleep 0.1; done; "
        "echo 0 >/sys/devices/system/cpu/cpu2/online"
    )
    return first_frame(place.read("/tmp/taken")[0])


@pytest.mark.full
@pytest.mark.usefixtures("fault_injection")
def test_a_fault_gets_what_came_back_to_the_pool(machine, large, pages):
    """What was gathered is free again where it could not be restored, and there is nothing else.

    It is still gathered when the first page is wanted, and what cannot be allocated is counted.
    """
    number = pages.at_most(20, 3)
    place = boot_to_lose_a_cpu(machine, pages)
    place.check(f"echo {number} >/proc/sys/vm/nr_overcommit_hugepages")
    gather_for_long(place, pages)
    take_until_a_cpu_is_lost(place, number)
    assert saved(place) == number * large.pause
    order = (large.kib // pages.kib).bit_length() - 1
    failed = place.vmstat()["htlb_buddy_alloc_fail"]
    place.check(
        f"{FAIL_PAGES_OF_TASKS}; echo {order} >min-order; echo 100 >probability; {GIVE_BACK}; "
        f"sh -c 'echo 1 >/proc/self/make-it-fail; exec {PROGRAMS}/surplus {number}'; "
        "status=$?; echo 0 >probability; exit $status",
        timeout=60,
    )
    assert place.vmstat()["htlb_buddy_alloc_fail"] > failed
    assert place.warnings() == ""


def break_page(place: Machine, frame: int, pages: Pages) -> None:
    """Have the kernel take a page of memory for broken."""
    address = frame * (pages.kib << 10)
    # It tells of what it could not dissolve, which the tests want, by a failure to write.
    place.run(f"echo {address:#x} >/sys/devices/system/memory/hard_offline_page")


# What /proc/kpageflags has of a page.
BUDDY, HUGE, POISONED = 1 << 10, 1 << 17, 1 << 19


def flags_of(place: Machine, frame: int) -> int:
    """Return which of these flags a page has."""
    read_flags = f"dd if=/proc/kpageflags bs=8 skip={frame} count=1 2>/dev/null | od -An -t x8"
    return int(place.check(read_flags), 16) & (BUDDY | HUGE | POISONED)


@pytest.mark.full
def test_a_poisoned_surplus_page_is_freed_without_what_is_broken(machine, large, pages):
    """Memory failure could not dissolve it. Its broken page must not be allocated by anybody."""
    number = pages.at_most(20, 3)
    place = boot_to_lose_a_cpu(machine, pages)
    frame = take_until_a_cpu_is_lost(place, number)
    surplus = f"{large.pool}/surplus_hugepages"
    place.check(f"{GIVE_BACK}; until test $(cat {surplus}) = {number}; do sleep 0.1; done")
    break_page(place, frame + 3, pages)
    assert "recovery action for free huge page: Failed" in place.console()
    # Nor is it freed for a program that has it reserved and does not use it. Its head is marked.
    place.check(f"{PROGRAMS}/surplus -r -u 1; sleep 5")
    assert read(place, surplus) == read(place, f"{large.pool}/free_hugepages") == number
    assert flags_of(place, frame) == HUGE | POISONED

    place.check("echo 1 >/sys/devices/system/cpu/cpu2/online")
    place.check(f"until test $(cat {surplus}) = 0; do sleep 0.1; done", timeout=120)
    wait_until(lambda: flags_of(place, frame + 3) == POISONED, 30)
    assert not flags_of(place, frame) & (HUGE | POISONED)
    # A program gets as many as before.
    place.check(f"{PROGRAMS}/surplus -r {number}", timeout=60)
    assert flags_of(place, frame + 3) == POISONED
    assert place.warnings() == ""


@pytest.mark.full
def test_a_poisoned_surplus_page_that_is_not_optimized_needs_no_cpu(machine, large, pages):
    """A CPU that is lost for good keeps none of those in its pool that need no pause."""
    place, surplus = boot_to_lose_a_cpu(machine, pages), f"{large.pool}/surplus_hugepages"
    place.check(f"insmod /{FOLDER}/undead_cpu.ko; echo 0 >/sys/devices/system/cpu/cpu2/online")
    assert resize(place, large, 1) == 1
    assert saved(place) == 0
    frame = first_frame(place.check(f"{PROGRAMS}/surplus -f 1", timeout=60))
    # Memory failure cannot dissolve what is reserved, and then it becomes surplus.
    place.check(
        f"{hold('-r -u 1')}until test $(cat {large.pool}/resv_hugepages) = 1; do sleep 0.1; done"
    )
    break_page(place, frame + 3, pages)
    assert "recovery action for free huge page: Failed" in place.console()
    assert resize(place, large, 0) == read(place, surplus) == 1
    place.check(GIVE_BACK)

    place.check(f"until test $(cat {surplus}) = 0; do sleep 0.1; done", timeout=120)
    wait_until(lambda: flags_of(place, frame + 3) == POISONED, 30)
    assert not flags_of(place, frame) & (HUGE | POISONED)
    assert place.warnings() == ""


# The note of which page is broken is the allocation that fails: others can wait.
FAIL_ATOMIC_ALLOCATIONS = """
cd /sys/kernel/debug/failslab
echo Y >task-filter; echo Y >ignore-gfp-wait; echo 0 >verbose; echo -1 >times; echo 100 >probability
"""


@pytest.mark.usefixtures("fault_injection")
@pytest.mark.parametrize("restored", ["at-once", "later"])
def test_a_page_with_unknown_errors_is_in_no_pool_and_never_freed(machine, large, pages, restored):
    """A hugetlb page that is in no pool has memory hotplug wait for it, and no signal ends that."""
    fail = "/sys/kernel/debug/fail_cpu_pause"
    place = machine(memory=pages.memory(3), smp=2, append=on("pause"))
    place.check("echo 2 >/proc/sys/vm/nr_hugepages")
    frame = first_frame(place.check(f"{PROGRAMS}/surplus -f 1"))
    if restored == "later":
        place.check(f"cd {fail}; echo 0 >verbose; echo -1 >times; echo 100 >probability")
    address = (frame + 3) * (pages.kib << 10)
    broken = f"echo {address:#x} >/sys/devices/system/memory/hard_offline_page"
    place.check(
        f"{FAIL_ATOMIC_ALLOCATIONS}"
        f"sh -c 'echo 1 >/proc/self/make-it-fail; {broken}'; echo 0 >probability"
    )
    if restored == "later":
        assert flags_of(place, frame) == HUGE | POISONED
        # One page is surplus now. The worker fails once more, which does not cost the healthy one.
        place.check("echo 1 >/proc/sys/vm/nr_hugepages")
        assert place.read(f"{large.pool}/surplus_hugepages") == ["1"]
        place.check(f"echo 1 >{fail}/times")
    wait_until(lambda: flags_of(place, frame) == POISONED, 30)
    # The other one is what the pool has now, and programs can use it.
    assert place.read(f"{large.pool}/nr_hugepages") == ["1"]
    place.check(f"{PROGRAMS}/surplus 1")
    resize(place, large, 0)
    # It is not one of the free pages. That the head alone is marked shows that the note has failed.
    assert [flags_of(place, frame + page) for page in (0, 1, 3)] == [POISONED, 0, 0]
    assert place.warnings() == ""


def test_a_poisoned_page_is_not_what_stays_for_a_reservation(machine, large, pages):
    """Of two reserved pages one is broken. Who gives up the other reservation takes that away."""
    place = machine(memory=pages.memory(3), smp=2)
    counts = tuple(f"{large.pool}/{name}_hugepages" for name in ("surplus", "free", "resv"))
    place.check("echo 1 >/proc/sys/vm/nr_hugepages; echo 1 >/proc/sys/vm/nr_overcommit_hugepages")
    frame = first_frame(place.check(f"{PROGRAMS}/surplus -r -f 1"))
    for name in "ab":
        place.check(f"{hold('-r -u 1', name)}:")
    place.check(f"until test $(cat {counts[2]}) = 2; do sleep 0.1; done")
    place.check("echo 0 >/proc/sys/vm/nr_hugepages")
    assert place.read(*counts) == ["2", "2", "2"]
    break_page(place, frame + 3, pages)
    assert "recovery action for free huge page: Failed" in place.console()
    assert flags_of(place, frame) == HUGE | POISONED

    place.check(give_back("a"))
    place.check(f"until test $(cat {counts[0]}) = 1; do sleep 0.1; done")
    assert place.read(*counts) == ["1", "1", "1"]
    wait_until(lambda: flags_of(place, frame + 3) == POISONED, 30)
    assert not flags_of(place, frame) & (HUGE | POISONED)
    place.check(give_back("b"))
    assert place.read(*counts) == ["0", "0", "0"]
    assert place.warnings() == ""


@pytest.mark.full
@pytest.mark.usefixtures("fault_injection")
def test_surplus_pages_wait_for_memory(machine, large, pages):
    """The worker reclaims none; what it has none for is surplus, and is tried again.

    A worker that is made meanwhile is a child of kthreadd, which may have no memory for it, either.
    """
    place = machine(memory=pages.memory(4), smp=2, append=on("pause"))
    number, fail = pages.at_most(100, 3), "/sys/kernel/debug/fail_page_alloc"
    place.check(f"echo {number} >/proc/sys/vm/nr_overcommit_hugepages")
    place.check(
        f"{FAIL_PAGES_OF_TASKS}; "
        "for process in /proc/[0-9]*; do case $(cat $process/comm) in "
        "kworker*|kthreadd) echo 1 >$process/make-it-fail;; esac; done"
    )
    gather_for_long(place, pages)
    tried = read(place, f"{HVO}/not_restored")
    place.check(f"{PROGRAMS}/surplus -r -u {number}; echo 100 >{fail}/probability", timeout=60)
    # All of them together, one by itself, and then one every 2 s: together, and by itself.
    file = f"{HVO}/not_restored"
    enough = tried + number + 1 + 2 * 2
    counted = place.check(f"until test $(cat {file}) -ge {enough}; do sleep 0.1; done; cat {file}")
    assert int(counted) - tried <= number + 1 + 2 * 4
    # One may be away, to be tried.
    assert read(place, f"{large.pool}/surplus_hugepages") >= number - 1
    assert saved(place) == number * large.pause

    place.check(f"echo 0 >{fail}/probability; echo N >{fail}/task-filter")
    place.check(ALL_BACK)
    assert read(place, f"{large.pool}/surplus_hugepages") == 0
    place.check("echo 0 >/proc/sys/vm/nr_overcommit_hugepages")
    assert_nothing_left(place, klog.without_failed_threads)


@pytest.mark.usefixtures("fault_injection")
def test_each_page_that_there_is_no_memory_for_is_counted(shared_machine, large, pages):
    """Every try counts: of all pages together, and of each, as the kernel does if memory lacks.

    No page can be had for what is to be written down of them all, from slab or vmalloc.
    """
    place = shared_machine(memory=pages.memory(8), smp=2, append=on("pause"))
    number, before = pages.at_most(256, 6), read(place, f"{HVO}/not_restored")
    assert resize(place, large, number) == number
    surplus = place.check(free_with_failures(large, 100), timeout=300)
    assert read(place, f"{HVO}/not_restored") - before == 2 * number
    assert int(surplus) == number
    # They are pages of the pool again if it is to have so many.
    assert resize(place, large, number) == number
    assert resize(place, large, 0) == 0
    assert_nothing_left(place)


@pytest.mark.full
@pytest.mark.usefixtures("fault_injection")
@pytest.mark.parametrize("mode", MODES)
def test_pages_that_were_had_before_one_failed_are_not_lost(shared_machine, mode, large, pages):
    """One of the default size needs up to seven to be freed, and in each turn hundreds lack one."""
    place = shared_machine(memory=pages.memory(9), smp=2, append=on(mode))
    number, percent = 256, 50

    def turn() -> None:
        assert resize(place, large, number) == number
        assert int(place.check(free_with_failures(large, percent), timeout=300)) > number // 8
        assert resize(place, large, number) == number
        assert resize(place, large, 0) == 0

    # What is made once, such as the entries of blocks that are split, is not lost.
    turn()
    with assert_no_page_leaks(place, 1024 * pages.kib // 4):
        for _ in range(4):
            turn()
    assert_nothing_left(place)


@pytest.mark.full
@pytest.mark.usefixtures("fault_injection")
def test_pages_with_all_their_struct_pages_need_no_pause_to_go(shared_machine, giant, pages):
    """One comes after more than a batch of others, none of which can be had back."""
    number = pages.entries_of_a_batch // pages.entries(giant) + 1
    # One more, and room around them, as they begin at multiples of their size.
    gib = (number + 2) * giant.kib // 1024 // 1024 + 5
    place = shared_machine(memory=f"{gib}G", smp=2, append=on("pause"))
    assert resize(place, giant, number) == number
    assert saved(place) == number * giant.pause
    place.check("echo 0 >/proc/sys/vm/hugetlb_optimize_vmemmap")
    assert resize(place, giant, number + 1) == number + 1
    assert saved(place) == number * giant.pause
    surplus = place.check(
        "cd /sys/kernel/debug/fail_cpu_pause; echo 0 >verbose; echo -1 >times; "
        f"echo 100 >probability; echo 0 >{giant.pool}/nr_hugepages; "
        f"cat {giant.pool}/surplus_hugepages; echo 0 >probability",
        timeout=300,
    )
    assert int(surplus) == number
    # They are pages of the pool again if it is to have so many.
    assert resize(place, giant, number) == number
    assert resize(place, giant, 0) == 0
    place.check("echo 1 >/proc/sys/vm/hugetlb_optimize_vmemmap")
    assert_nothing_left(place)


# From the first, second, ... pause of a resize on, all fail. If one fails of those that restore,
# the kernel frees what was restored before, and tries again.
FAIL_PAUSES = """
cd /sys/kernel/debug/fail_cpu_pause
echo 0 >verbose
for nth in $(seq 12); do
    echo $nth >space; echo 1000 >times; echo 100 >probability
    echo {number} >{pool}/nr_hugepages
    echo 0 >probability
    saved=$(cat {hvo}/bytes_saved)
    test $((saved / 1024 % {freed})) = 0 || partial=$((partial + 1))
    {after}
done
echo partial=$partial
"""


@pytest.mark.usefixtures("fault_injection")
@pytest.mark.full
def test_half_done_folios_count_as_optimized(machine, pages):
    """Pauses of one chunk of entries each fail, in the middle of a folio too."""
    # Each has more entries than a chunk, which has 64.
    size, number = pages.gigantic[0], 4
    gib = max(2, (number + 2) * size.kib // 1024 // 1024)
    place = machine(memory=f"{gib}G", smp=2, append=on("pause"))
    place.check(f"echo 1 >{LIMIT}")
    pool = size.pool

    def partial(number: int, after: str) -> int:
        """Resize with pauses that fail; return how often a folio was left half done."""
        script = FAIL_PAUSES.format(
            number=number, after=after, pool=pool, hvo=HVO, freed=size.pause
        )
        found = re.search(r"partial=(\d+)", place.check(script, timeout=300))
        assert found
        return int(found[1])

    # Each turn begins with all that it needs: no pause fails when it is given back.
    all_back = f"echo 0 >{pool}/nr_hugepages; test $(cat {HVO}/bytes_saved) = 0 || exit"
    assert partial(number, all_back) > 1
    assert read(place, f"{HVO}/not_optimized") > 1

    assert resize(place, size, number) == number
    refill = f"echo {number} >{pool}/nr_hugepages"
    assert partial(0, f"{refill}; {all_back}; {refill}") > 1
    assert read(place, f"{HVO}/not_restored") > 1
    assert resize(place, size, 0) == 0
    assert_nothing_left(place)


@pytest.mark.full
def test_others_run_while_one_cpu_cannot_be_interrupted(machine, large, pages):
    """They were stopped for a second at a time, with a few milliseconds between."""
    place = machine(cpu=UNLISTED_CPU, memory=pages.memory(2), smp=4, append=on("pause"))
    number = pages.at_most(256, 1)
    place.check("echo 4000 >/sys/kernel/cpu_pause/wait_us")
    pool = f"{large.pool}/nr_hugepages"
    # Another CPU than the one that asks; on that one the shell must not be. Programs on the two
    # that are left look at the clock all the time.
    script = f"""
        for cpu in 1 2; do {PROGRAMS}/gaps $cpu 7 200 >/run/gaps.$cpu & done
        until test -s /run/gaps.1 -a -s /run/gaps.2; do sleep 0.1; done
        echo 5000 >/sys/kernel/debug/cpu_pause_deaf; echo {number} >{pool}; cat {pool}
        wait
    """
    assert place.check(f"taskset -c 3 sh -c '{script}'", timeout=120) == str(number)

    # How many milliseconds of seven seconds were in gaps of more than 200. A pause stops both, and
    # a busy host may stop one.
    gaps = "\n".join(place.read("/run/gaps.1", "/run/gaps.2"))
    lost = [int(total) for total in re.findall(r"gaps=\d+ longest=\d+ total=(\d+)", gaps)]
    assert len(lost) == 2
    assert min(lost) <= 400, gaps
    # What CPUs lost; an emulated one may be late by tens of milliseconds for each of a dozen.
    # Where no block is split RCU waits for that CPU, too, before a pause is asked for.
    if pages.vmemmap_has_blocks:
        assert read(place, "/sys/kernel/cpu_pause/failed") > 0
    assert read(place, "/sys/kernel/cpu_pause/longest_ns") < 200_000_000
    assert read(place, "/sys/kernel/cpu_pause/total_ns") < 1_000_000_000
    # One that is half done is optimized.
    optimized = -(-saved(place) // large.pause)
    assert read(place, f"{HVO}/not_optimized") + optimized == number

    # Afterwards all is as it should be.
    place.check("echo 100000 >/sys/kernel/cpu_pause/wait_us; sleep 1")
    resize(place, large, 0)
    assert resize(place, large, number) == number
    assert saved(place) == number * large.pause
    resize(place, large, 0)
    assert_nothing_left(place)


@pytest.mark.full
@pytest.mark.parametrize(
    ("cpu", "mode", "number", "limit_us", "least"),
    [
        (DEFAULT_CPU, "pause", 2, 20, 5),
        (UNLISTED_CPU, "pause", 2, 20, 5),
        # The only pauses are those that split blocks, of which it takes many to come to a limit.
        (UNLISTED_CPU, "seamless", 24, 1, 2),
    ],
    ids=["level2", "level0", "splits"],
)
def test_pauses_keep_to_their_limit(machine, cpu, mode, number, limit_us, least, pages):
    """The last ones look for their limit between two blocks, the others between entries."""
    if mode == "seamless" and not pages.vmemmap_has_blocks:
        pytest.skip("the vmemmap consists of pages, so that none has to be split")
    # As many entries as gigantic pages with base pages of 4 KiB have.
    number = number * PAGES_4K.entries(PAGES_4K.giant) // pages.entries(pages.giant)
    boot = partial(machine, cpu=cpu, append=on(mode))
    assert_pauses_are_short(boot, pages, number, limit_us, least)


@pytest.mark.full
@pytest.mark.parametrize(
    ("pages", "number", "limit_us"),
    [(PAGES_16K, 7, 5), (PAGES_64K, 31, 20)],
    ids=["16k", "64k"],
)
def test_pauses_keep_to_their_limit_with_larger_base_pages(machine, pages, number, limit_us):
    """For less than PTRS_PER_PTE pages flush_tlb_kernel_range() goes by address.

    That is for so many that to invalidate them would take longer than all the rest of a pause.
    """
    boot = partial(machine, f"patched-{pages.kib}k", append=on("pause"))
    assert_pauses_are_short(boot, pages, number, limit_us, 5)


def assert_pauses_are_short(boot, pages, number, limit_us, least):
    """Time is counted in instructions, so that only what a pause does takes any.

    Args:
        boot: boots a machine.
        pages: its base pages.
        number: how many gigantic pages are allocated.
        limit_us: what the limit shall be.
        least: how many pauses there are then.
    """
    gib = number * pages.giant.kib // 1024 // 1024
    room = int(pages.memory(4).removesuffix("G"))
    place = boot(memory=f"{gib + room}G", smp=2, icount=True)
    place.check(f"echo {limit_us} >{LIMIT}")
    place.check("echo 1 >/sys/kernel/tracing/events/cpu_pause/enable")
    assert resize(place, pages.giant, number) == number
    holds = [
        int(ns)
        for ns in re.findall(
            r"hold_ns=(\d+) given_up=0", place.check("cat /sys/kernel/tracing/trace")
        )
    ]
    assert len(holds) >= least
    assert max(holds) < 1.5 * limit_us * 1000
    assert place.warnings() == ""


SELF_HOSTED = f"""
cd /sys/devices/system/memory
# Debian's configuration has memory that is added be online at once.
echo offline >auto_online_blocks
insmod /{FOLDER}/self_hosted.ko start=0x100000000 size=0x40000000 || exit
for block in memory*; do
    test $(cat $block/state) = online || echo $block
done
"""


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_memory_that_holds_its_own_struct_pages_keeps_them(machine, mode, large, pages):
    """Memory that is added at run time, with memmap_on_memory: its vmemmap cannot be freed."""
    if not pages.vmemmap_has_blocks:
        pytest.skip("Linux has memory hold its own struct pages only where they fill blocks")
    place = machine(
        memory="4G",
        append=f"{on(mode)} mem=3G memory_hotplug.memmap_on_memory=1",
        modules_from=["features/hugetlb-vmemmap/self_hosted.c"],
    )
    blocks = place.check(SELF_HOSTED).split()
    assert len(blocks) == 8

    # The kernel's own memory does not get into the movable zone, so all of it can go again.
    for block in blocks:
        place.check(f"echo online_movable >/sys/devices/system/memory/{block}/state")
    number = resize(place, large, 1900)
    # One of the 64 hugepages of each block is its vmemmap.
    assert number > 1500
    optimized, rest = divmod(saved(place), large.freed(mode))
    assert rest == 0
    assert 400 < number - optimized <= 8 * 63

    # Memory goes with the free hugepages in it, whether they are optimized or not.
    for block in blocks:
        place.check(f"echo offline >/sys/devices/system/memory/{block}/state")
    fewer = int(place.check(f"cat {large.pool}/nr_hugepages"))
    assert number - 8 * 63 <= fewer < number - 400
    assert saved(place) == fewer * large.freed(mode)
    assert resize(place, large, 0) == 0
    assert saved(place) == 0
    assert_nothing_left(place)


KEXEC = programs.path("linear-map", "kexec")
MARK = programs.path("linear-map", "mark")


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
def test_crash_dump_is_whole(machine, kernel_overlay, mode, large):
    """The kernel that dumps reads all memory. No tool looks here at the struct pages in it."""
    gib = max(2, 16 * large.kib // 1024 // 1024)
    crash = gib * 1024 // 8
    number = gib * 1024 * 1024 // 4 // large.kib
    place = machine(
        smp=2,
        memory=f"{gib}G",
        append=f"crashkernel={crash}M {on(mode)}",
        # With an ITS the next kernel finds interrupts going to memory that is no longer theirs.
        extra_args=("-machine", "its=off"),
        overlay=kernel_overlay("patched-4k"),
    )
    assert resize(place, large, number) == number
    assert saved(place) == number * large.freed(mode)
    place.check(f"{KEXEC} -p /boot/Image maxcpus=1 reset_devices")
    address, content = place.check(f"{MARK} hold >/run/mark & sleep 1; cat /run/mark").split()
    place.start_anew("echo c >/proc/sysrq-trigger")
    assert place.check(f"{MARK} find {address} /proc/vmcore") == content
    # All of it can be read: the first kernel's memory, but for what the second one has.
    place.check("cp /proc/vmcore /dev/null", timeout=300)
    assert int(place.check("stat -c %s /proc/vmcore")) > gib * 1024 - crash - 92 << 20
    assert place.warnings() == ""


@pytest.mark.full
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pages", [PAGES_16K, PAGES_64K], ids=["16k", "64k"])
def test_larger_base_pages(machine, pages, mode):
    """Hugepages of each size are allocated, demoted and freed."""
    place = machine(f"patched-{pages.kib}k", memory=pages.memory(12), smp=2, append=on(mode))
    for smaller, size in zip([None, *pages.sizes], pages.sizes, strict=False):
        for _ in range(2):
            assert resize(place, size, 3) == 3
            assert saved(place) == 3 * size.freed(mode)
            if smaller:
                demote(place, size, smaller, 1)
                parts = size.kib // smaller.kib
                assert saved(place) == 2 * size.freed(mode) + parts * smaller.freed(mode)
                assert resize(place, smaller, 0) == 0
            assert resize(place, size, 0) == 0
            assert saved(place) == 0
    place.check("cat /proc/kpageflags /proc/kpagecount >/dev/null")
    assert place.warnings() == ""


# What each of the three loops has done is in a file, as its variables are gone when it ends.
STRESS = """
fail() {{ echo "$*"; exit 1; }}
mkdir -p /run/stress
cd {hugepages} || exit
giant=hugepages-{giant}kB large=hugepages-{large}kB
made=0 demoted=0
for round in $(seq {rounds}); do
    echo 2 >$giant/nr_hugepages || exit
    before=$(cat $giant/nr_hugepages)
    made=$((made + before))
    echo {large}kB >$giant/demote_size || exit
    # An error if there is none to demote.
    echo 1 >$giant/demote
    demoted=$((demoted + before - $(cat $giant/nr_hugepages)))
    echo {many} >$large/nr_hugepages || exit
    echo 0 >$giant/nr_hugepages || exit
    echo {some} >$large/nr_hugepages || exit
    echo 0 >$large/nr_hugepages || exit
    echo "made=$made demoted=$demoted rounds=$round" >/run/stress/pool
done &
pool=$!
walks=0
while kill -0 $pool 2>/dev/null; do
    {walk} && echo 1 >/proc/sys/vm/compact_memory && walks=$((walks + 1))
    echo "walks=$walks" >/run/stress/walks
done &
plugged=0
while kill -0 $pool 2>/dev/null; do
    echo 0 >/sys/devices/system/cpu/cpu3/online &&
        echo 1 >/sys/devices/system/cpu/cpu3/online && plugged=$((plugged + 1))
    echo "plugged=$plugged" >/run/stress/plugged
done &
wait $pool || fail "a pool cannot be resized"
wait
grep -qx 0-3 /sys/devices/system/cpu/online || fail "a CPU is lost"
cat /run/stress/*
"""


# The debug build takes minutes; each mode once. CPUs without level 2 have more to pause for.
EACH_MODE = [("level2", "seamless"), ("level0", "pause")]
OTHERS = [("level2", "pause"), ("level0", "seamless")]


@pytest.mark.parametrize(
    ("build", "rounds", "cpu", "mode"),
    [
        ("patched-4k", 10, *EACH_MODE[0]),
        *[
            pytest.param("patched-4k", 10, *pair, marks=pytest.mark.full)
            for pair in (EACH_MODE[1], *OTHERS)
        ],
        *[pytest.param("debug-4k", 2, *pair, marks=pytest.mark.full) for pair in EACH_MODE],
        *[
            pytest.param("debug-4k", 60, *pair, marks=pytest.mark.full)
            for pair in (*EACH_MODE, *OTHERS)
        ],
    ],
)
def test_everything_at_once(machine, build, rounds, cpu, mode, large, giant, pages):
    debug = recipe(workspace.find(), build).debug
    checked = " arm64.pgtable_transition_check=on" if debug else ""
    place = machine(build, memory=pages.memory(4), smp=4, cpu=CPUS[cpu], append=on(mode) + checked)
    script = STRESS.format(
        hugepages=HUGEPAGES,
        rounds=rounds,
        # The kernel holds no page while it reads these files. It finds a tail if a hugepage is made
        # of a page between two looks at it, which is a BUG() with DEBUG_VM_PGFLAGS. No feature
        # changes that code.
        walk="true" if debug else "cat /proc/kpageflags /proc/kpagecount >/dev/null",
        giant=giant.kib,
        large=large.kib,
        many=200 * 4 // pages.kib,
        some=64 * 4 // pages.kib,
    )
    output = place.check(script, timeout=3000)
    happened = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", output)}
    assert happened["rounds"] == rounds
    assert all(happened[what] for what in ("made", "demoted", "walks", "plugged")), happened
    place.check(ALL_BACK)
    assert_nothing_left(place, klog.without_dying_cpus)
    # Each page has its entries changed when it is optimized, and again when it is restored. Some
    # are not optimized, if CPUs could not be paused; each of these may have been a large one.
    done, *undone = (
        read(place, f"{HVO}/{count}")
        for count in ("entries_changed", "not_optimized", "not_restored")
    )
    of_large = giant.kib // large.kib * pages.entries(large)
    implied = pages.entries(giant) * (happened["made"] - sum(undone)) * 2
    implied += of_large * happened["demoted"] * 2
    assert done >= max(implied, 1), (happened, undone)
