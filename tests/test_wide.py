"""KUnit, hugepages, CPU hotplug and guest programs on kernels of all page sizes and of servers."""

from __future__ import annotations

import re

import pytest
from settled import settled_leaves
from split import logged, was_split
from waiting import wait_until

from pagewright.guest import programs
from pagewright.guest.shell import UNLOAD
from pagewright.host import workspace
from pagewright.host.run import run
from pagewright.host.toolchain import NM
from pagewright.kernel import build, recipes
from pagewright.machine import klog
from pagewright.machine.options import DEFAULT_CPU, LISTED_CPU, UNLISTED_CPU

pytestmark = pytest.mark.full

SPACE = workspace.find()
SUITES = [suite for feature in SPACE.features() for suite in feature.kunit_suites]
KUNIT = "kunit.enable=1 hugetlb_free_vmemmap=on"

# Pools of hugepages grow and shrink, one after the other. A pool gets fewer pages than were asked
# for if there is no memory for more, as of the largest ones; of those of the usual size there is
# enough, and HVO changes the mappings of their struct pages.
HUGEPAGES = """
cd /sys/kernel/mm/hugepages || exit 1
changed=$(cat ../hugetlb_vmemmap/entries_changed) || exit 1
usual=hugepages-$(sed -n 's/^Hugepagesize: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo)kB
test -d $usual || exit 1
for size in hugepages-*; do
    for nr in 1 3 0; do
        echo $nr >$size/nr_hugepages || exit 1
        got=$(cat $size/nr_hugepages)
        if [ $got != $nr ] && { [ $size = $usual ] || [ $nr = 0 ]; }; then
            echo "$got of $nr pages in $size"
            exit 1
        fi
    done
done
test $(cat ../hugetlb_vmemmap/entries_changed) -gt $changed
"""
# CPUs leave and come back.
HOTPLUG = """
for round in 1 2 3; do
    for online in 0 1; do
        for cpu in /sys/devices/system/cpu/cpu[1-9]; do echo $online >$cpu/online || exit 1; done
    done
done
"""


# KCSAN looks at one access in so many, each for so long that others may access the same.
OFTEN = "kcsan.skip_watch=300 log_buf_len=16M"
# With so few levels the top level has blocks, which only BBM level 2 splits.
BLOCKS_ON_TOP = ("tiny-4k-39", "tiny-64k-42")

# These kernels cannot dump their page tables, which some tests of guest programs compare.
OF_DUMPS = {
    "protection": {
        "global.alias_of_the_kernel_is_read_only",
        "global.neighbours_of_secret_memory_stay",
        "global.nothing_in_the_linear_map_is_executable",
    },
    "secretmem": {"secretmem.takes_exactly_its_pages_out"},
}
# Tests for memory tags, two nodes and protection keys, which these machines do not have.
OF_OTHER_MACHINES = {
    "global.code_with_tags_works_with_asynchronous_checks",
    "global.code_with_tags_works_with_synchronous_checks",
    "global.numa_hinting_faults_of_atomics_keep_the_contents",
    "global.numa_hinting_faults_of_load_exclusives_stay_reads",
    "global.protection_key_forbids_writes_only",
    "global.tagged_memory_works_and_mismatches_are_reported",
}


def passes(place, kunit_suites, split=True, without=None):
    """Every suite runs and passes, pools and CPUs come and go, and the kernel has no complaint."""
    kunit_suites(place, SUITES, must_run=SUITES)
    assert was_split(place) == split
    place.check(HUGEPAGES, timeout=300)
    place.check(HOTPLUG, timeout=300)
    assert place.warnings(without) == ""


def programs_pass(place, guest_program, split):
    """Guest programs of the features do what they do with any size of pages.

    What secret memory has split is folded again.
    """
    # A fold that is not worth a pause of its own waits for ten times that.
    place.check("echo 100 >/sys/module/arm64/parameters/linear_map_fold_delay_ms")
    whole, before = settled_leaves(place), splits(place)
    for program, may_skip in OF_DUMPS.items():
        guest_program(place, programs.path("linear-map", program), may_skip=may_skip)
    wait_until(lambda: settled_leaves(place) == whole, 60)
    assert (splits(place) > before) == split
    # Of hugepages of the default size.
    size = f"of_{int(place.meminfo()['Hugepagesize']) >> 10}M"
    walkers = f"{programs.path('hugetlb-vmemmap', 'vmemmap_walkers')} -v {size}"
    guest_program(place, walkers, may_skip={f"walkers.{size}.can_have_the_pages_again"})
    semantics = programs.path("atomic-write-fault", "semantics")
    guest_program(place, f"EVERY=997 {semantics}", may_skip=OF_OTHER_MACHINES)


def splits(place) -> int:
    """Return how many leaves of the linear map were split since boot."""
    return sum(n for name, n in place.vmstat().items() if name.startswith("linear_map_split_"))


@pytest.mark.parametrize("append", ["", "nokaslr kpti=on"], ids=["plain", "nokaslr-kpti"])
@pytest.mark.parametrize("cpu", [DEFAULT_CPU, UNLISTED_CPU], ids=["level2", "level0"])
@pytest.mark.parametrize("build", recipes.matrix(SPACE))
def test_page_sizes_and_address_bits(machine, kunit_suites, guest_program, build, cpu, append):
    # With pages of 64 KiB a hugepage has 512 MiB, and KUnit wants several of them.
    memory = "16G" if "64k" in build else "4G"
    place = machine(build, cpu=cpu, smp=2, memory=memory, append=f"{KUNIT} {append}")
    split = cpu == DEFAULT_CPU or build not in BLOCKS_ON_TOP
    passes(place, kunit_suites, split)
    # Whether programs see the kernel's tables makes no difference to them.
    if not append:
        programs_pass(place, guest_program, split)


@pytest.mark.parametrize("append", ["", "nokaslr kpti=on"], ids=["plain", "nokaslr-kpti"])
@pytest.mark.parametrize("cpu", [DEFAULT_CPU, UNLISTED_CPU], ids=["level2", "level0"])
def test_compiled_by_clang_with_its_checks(machine, kunit_suites, cpu, append):
    """A wrong type of what is called, a wrong place to land, and a wrong index are oopses."""
    place = machine("clang-4k", cpu=cpu, smp=2, memory="4G", append=f"{KUNIT} {append}")
    assert "clang version" in place.check("cat /proc/version")
    if cpu == DEFAULT_CPU:
        assert "Branch Target Identification" in place.check("dmesg")
    place.check(f"modprobe xts && {UNLOAD} xts")
    passes(place, kunit_suites)


@pytest.mark.parametrize(
    ("cpu", "append", "said"),
    [
        (DEFAULT_CPU, "", "blocks .split and folded back live: "),
        (UNLISTED_CPU, "", "pages .*, and a real-time kernel pauses no CPUs;"),
        (UNLISTED_CPU, "arm64.linear_map=pause", "blocks .split and folded back in pauses: "),
    ],
    ids=["live", "pages", "paused"],
)
def test_a_real_time_kernel_sleeps_where_it_may(machine, kunit_suites, cpu, append, said):
    """Nearly all of its spin locks sleep, and lockdep knows which do not."""
    place = machine("rt-4k", cpu=cpu, smp=2, memory="4G", append=f"{KUNIT} {append}")
    assert "PREEMPT_RT" in place.check("cat /proc/version")
    assert re.match(said, logged(place))
    place.check(f"modprobe xts && {UNLOAD} xts")
    passes(place, kunit_suites, said.startswith("blocks"))


def functions_of_hooks() -> set[str]:
    """Return the names of the functions that hooks define, and do not only change, in the base."""
    define, drop = (
        re.compile(rf"^{sign}(?:[a-z_]\w*[ *]+)+(\w+)\(", re.MULTILINE) for sign in (r"\+", "-")
    )
    added: set[str] = set()
    for feature in SPACE.features():
        for hook in sorted(SPACE.hooks(feature.name).glob("*.patch")):
            text = hook.read_text()
            # What an earlier hook has defined stays ours if a later one changes its first line.
            added |= set(define.findall(text)) - set(drop.findall(text))
    return added


@pytest.mark.parametrize("cpu", [DEFAULT_CPU, UNLISTED_CPU], ids=["level2", "level0"])
def test_no_data_race_is_of_ours(machine, kunit_suites, cpu):
    """The base's functions have races of their own, most of which are meant."""
    place = machine("kcsan-4k", cpu=cpu, smp=4, memory="4G", append=f"{KUNIT} {OFTEN}")
    passes(place, kunit_suites, without=klog.without_races)
    found = klog.races(place.check("dmesg"))
    # The detector was there, and nobody has cleared the log.
    assert found
    folder = build.ensure(SPACE, "kcsan-4k").out
    objects = [folder / name for feature in SPACE.features() for name in feature.objects()]
    symbols = run([NM, "--defined-only", *(file for file in objects if file.exists())])
    ours = set(re.findall(r" [tT] (\w+)", symbols)) | functions_of_hooks()
    assert {"linear_map_change", "free_surplus_workfn"} <= ours
    assert {names: report for names, report in found.items() if names & ours} == {}


@pytest.mark.parametrize("cpu", [LISTED_CPU, "neoverse-n1", "cortex-a72"])
def test_kernel_of_servers_from_uefi_and_acpi_on_two_nodes(machine, kunit_suites, cpu):
    place = machine("server-4k", firmware=True, nodes=2, cpu=cpu, smp=8, memory="4G", append=KUNIT)
    assert place.read("/sys/devices/system/node/online") == ["0-1"]
    assert place.check("ls /sys/firmware/acpi/tables/SRAT")
    # Message-signalled interrupts come through the GIC's ITS.
    assert "ITS-" in place.check("cat /proc/interrupts")
    passes(place, kunit_suites)


@pytest.mark.parametrize(
    ("cpu", "append", "said"),
    [
        ("neoverse-n1", "isolcpus=1", "pages .*, and isolated CPUs are not paused;"),
        ("neoverse-n1", "nohz_full=1", "pages .*, and isolated CPUs are not paused;"),
        ("neoverse-n1", "isolcpus=1 arm64.linear_map=pause", "blocks .*in pauses: "),
        # The first of these keeps nothing away but interrupts of devices.
        ("neoverse-n1", "isolcpus=managed_irq,1", "blocks .*in pauses: "),
        (
            "neoverse-n1",
            "isolcpus=managed_irq,domain,1",
            "pages .*, and isolated CPUs are not paused;",
        ),
        (LISTED_CPU, "isolcpus=1", "blocks .*split and folded back live: "),
        # A CPU that starts later may lack what the others have, and is not refused.
        (LISTED_CPU, "isolcpus=1 maxcpus=2", "pages .repainted: not all CPUs have started"),
        (LISTED_CPU, "maxcpus=2", "blocks .*in pauses: not all CPUs have started"),
    ],
)
def test_isolated_cpus_are_not_paused(machine, cpu, append, said):
    """Which takes a kernel that isolates CPUs, as this one."""
    place = machine("server-4k", cpu=cpu, smp=4, memory="2G", append=append)
    assert re.match(said, logged(place))
    # Linux 6.12 refuses, for its deadline scheduler, to take an isolated CPU off line.
    place.check(HOTPLUG.replace("cpu[1-9]", "cpu[23]"), timeout=300)
    if "are not paused" in said:
        # A module's permissions are changed in pages, as they are.
        place.check(f"modprobe dummy && {UNLOAD} dummy", timeout=300)
        assert place.read("/sys/kernel/cpu_pause/pauses") == ["0"]
    assert place.warnings() == ""


def test_no_contiguous_range_of_16_gib_where_addresses_are_not_congruent(machine):
    """With 64 KiB pages, virtual and physical addresses agree in their lower 29 bits only.

    A range of 16 GiB would have the processor make up the bits above: neither the linear map of
    the boot nor folding may make one.
    """
    # The first 16 GiB of the second node could be such a range: what the boot takes of a node, and
    # has in smaller leaves, is at its end.
    place = machine("tiny-64k-42", memory="64G", smp=2, nodes=2, append="nokaslr")
    ranges = "grep DirectMap16G /proc/meminfo"
    assert re.fullmatch(r"DirectMap16G: +0 kB", place.check(ranges))
    # Each module splits leaves there, which are folded when it is gone.
    module = f"taskset -c 1 modprobe xts && {UNLOAD} xts"
    place.check(f"for round in 1 2 3; do {module} || exit 1; done; sleep 3")
    assert int(place.check("grep linear_map_fold_pmd /proc/vmstat").split()[1]) > 0
    assert re.fullmatch(r"DirectMap16G: +0 kB", place.check(ranges))
    assert place.warnings() == ""
