"""percpu-local: which mode is chosen and why, what user space sees, and CPUs that come and go.

The tables themselves are looked at by KUnit (percpu_local), the operations by KUnit
(percpu) and by the torture test.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection

import calls
import pytest
from percpu_layout import AREAS, LOCAL, RANGES
from percpu_local_log import FILES, is_on, mode_and_reason

from pagewright.guest import programs
from pagewright.guest.shell import UNLOAD
from pagewright.host import workspace
from pagewright.kernel import build, recipes
from pagewright.kernel.modules import FOLDER
from pagewright.machine import klog
from pagewright.machine.machine import Machine
from pagewright.machine.options import DEFAULT_CPU, LEVEL_0_CPU, MTE
from pagewright.results import ktap

pytestmark = pytest.mark.long(2)

RESULTS = "/sys/kernel/debug/kunit"
KUNIT = "kunit.enable=1 kunit.filter_glob=percpu*"
NMI = "irqchip.gicv3_pseudo_nmi=1"
# 48 bits of addresses on hardware without LPA2; LL/SC only; neither KPTI nor SW PAN needed
# by any of them, so these are asked for.
NO_LPA2 = "max,lpa2=off"
NO_LSE = "cortex-a72"


def kilobytes(place: Machine, name: str) -> int:
    """Read a figure of /proc/meminfo."""
    return place.meminfo()[name]


def skipped_cases(kernel: build.Build, cpu: str) -> set[str]:
    """Return which cases of the KUnit suites skip themselves, by the kernel and the processor."""
    has_lpa2 = cpu.startswith("max") and "lpa2=off" not in cpu
    # All of the upper kernel space is under one entry of the top level if the tables have five
    # levels, or four with 16 KiB pages. Kernels for 52 bits use one level less without LPA2.
    has_second_level = (kernel.has("ARM64_16K_PAGES") and kernel.has("ARM64_VA_BITS_48")) or (
        kernel.has("ARM64_VA_BITS_52") and not kernel.has("ARM64_64K_PAGES") and has_lpa2
    )
    skipped = set()
    if not has_second_level:
        skipped.add("new_second_level_entries_are_copied")
    # Then the operations are those of the base.
    if cpu == NO_LSE and not kernel.has("PREEMPT_COUNT"):
        skipped.add("a_returned_value_is_a_compiler_barrier")
    return skipped


def passes_its_suites(place: Machine, skipped: Collection[str] = ()) -> None:
    """Assert that these cases of the KUnit suites and no others were skipped, and none failed."""
    found = set()
    for suite in ("percpu_local", "percpu"):
        text = place.check(f"cat {RESULTS}/{suite}/results")
        assert re.search(rf"^ok \d+ {suite}$", text, re.MULTILINE), text
        assert "not ok" not in text
        found |= ktap.skipped(text)
    assert found == set(skipped)
    assert place.warnings() == ""


def passes_again(place: Machine, top_levels: str = "read-only") -> None:
    """Run the tables' suite again: while the kernel booted all was writable."""
    assert place.warnings() == ""
    place.check(f"dmesg -c >/dev/null; echo 1 >{RESULTS}/percpu_local/run")
    log = place.check("dmesg")
    assert f"the top levels are {top_levels}" in log
    assert "not ok" not in log
    assert re.search(r"ok \d+ new_top_level_entries_reach_all$", log, re.MULTILINE)
    assert place.warnings() == ""


def runs_its_suites_again(place: Machine, skipped: Collection[str] = ()) -> None:
    """Run both suites once more; what their files say of the boot is no result of that."""
    passes_again(place)
    place.check(f"dmesg -c >/dev/null; echo 1 >{RESULTS}/percpu/run")
    assert re.search(r"ok \d+ integers_in_allocated_memory$", place.check("dmesg"), re.MULTILINE)
    passes_its_suites(place, skipped)


def passes_with_local_map(place: Machine, skipped: Collection[str] = ()) -> None:
    """Assert that the map is on, and that the suites pass at boot and with read-only tables."""
    assert is_on(place)
    passes_its_suites(place, skipped)
    passes_again(place)


@pytest.mark.parametrize(
    ("cpu", "append"),
    [
        (NO_LSE, "kpti=on nokaslr"),
        ("max,pauth-impdef=on", NMI),
        # What is new in each of these, one of the others has in another combination.
        *(
            pytest.param(cpu, append, marks=pytest.mark.full)
            for cpu, append in (
                (NO_LPA2, ""),
                ("max", ""),
                ("max", "kpti=on nokaslr"),
                ("max", "nokaslr"),
                ("max", "kpti=on"),
                (NO_LSE, ""),
            )
        ),
    ],
)
def test_suites_pass(machine, built, cpu, append):
    place = machine(cpu=cpu, smp=3, append=f"{KUNIT} {append}")
    passes_with_local_map(place, skipped_cases(built(recipes.DEFAULT_BUILD), cpu))


# With KFENCE the linear map can be changed, unless its pool is made at boot.
@pytest.mark.full
@pytest.mark.parametrize("append", ["rodata=on kfence.sample_interval=100", "rodata=off"])
def test_where_the_linear_map_cannot_be_changed(machine, append):
    place = machine(smp=2, append=f"{KUNIT} {append}")
    passes_its_suites(place)
    passes_again(place, "writable")


@pytest.mark.full
def test_top_levels_are_protected_later_if_no_cpu_can_be_paused(machine, built):
    """Where blocks of the linear map are split in pauses, they are for this."""
    # The first pause is for a BPF program of the boot, if the kernel makes one then.
    first = 2 if built(recipes.DEFAULT_BUILD).has("NET_PTP_CLASSIFY") else 0
    fail = f"fail_cpu_pause=1,100,{first},-1"
    place = machine(smp=2, cpu=LEVEL_0_CPU, append=f"{KUNIT} {fail}")
    assert "some top levels stay writable for now (error -16)" in place.console()
    place.check("echo 0 >/sys/kernel/debug/fail_cpu_pause/probability")
    place.check("until dmesg | grep 'all top levels are protected now'; do sleep 1; done")
    assert place.warnings(klog.without_injected_faults) == ""
    # What follows is to be without any report.
    place.check("dmesg -c >/dev/null")
    passes_again(place)


def test_switched_off_it_is_as_without(machine):
    place = machine(append=f"percpu_local_map=0 {KUNIT}")
    assert mode_and_reason(place) == ("classic", "percpu_local_map=0")
    # Any user may read what the log does not tell everyone.
    assert place.check(f"stat -c %a {FILES}/*").split() == ["444", "444"]
    assert "pcpu_get_vm_areas" in place.check("cat /proc/vmallocinfo")
    assert place.run("ls /sys/kernel/debug/kernel_page_tables_cpu").status != 0
    text = place.check(f"cat {RESULTS}/percpu/results")
    assert re.search(r"^ok \d+ percpu$", text, re.MULTILINE), text
    assert place.warnings() == ""


@pytest.mark.full
@pytest.mark.parametrize("value", ["maybe", "", "2"])
def test_a_value_that_is_none_is_named(machine, value):
    place = machine(append=f"percpu_local_map={value}")
    assert "say 0 or 1" in place.check("dmesg | grep percpu_local_map=")
    assert is_on(place)
    assert place.warnings() == ""


def test_another_first_chunk_is_respected(machine):
    place = machine(append="percpu_alloc=page")
    assert mode_and_reason(place) == ("classic", "percpu_alloc=page")
    assert place.warnings() == ""


def test_what_user_space_sees(machine):
    place = machine(smp=2)
    assert "pcpu_get_vm_areas" not in place.check("cat /proc/vmallocinfo")
    percpu = kilobytes(place, "Percpu")
    off = machine(smp=2, append="percpu_local_map=0")
    # The first chunk is rounded up for contiguous ranges, by up to 60 KiB for each CPU.
    assert percpu == pytest.approx(kilobytes(off, "Percpu"), rel=0, abs=2 * 60)
    assert place.warnings() == off.warnings() == ""


def in_kcore(place: Machine) -> dict[str, str]:
    """Return what a debugger finds in /proc/kcore, by its names (see guest/kcore.c)."""
    text = place.check(programs.path("percpu-local", "kcore"))
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.full
@pytest.mark.parametrize("append", ["", "percpu_local_map=0"])
def test_kcore_shows_each_cpus_data(machine, needs_symbol, append):
    needs_symbol("PROC_KCORE")
    place = machine(smp=4, append=append)
    found = in_kcore(place)
    for cpu in range(4):
        assert found[f"cpu{cpu}"] == f"ksoftirqd/{cpu}"
    bounds = [f"NUMBER(PERCPU_AREAS_{name})" for name in ("START", "END")]
    if append:
        assert not is_on(place)
        assert not found.keys() & bounds
    else:
        assert is_on(place)
        first, end = (int(found[name], 16) for name in bounds)
        assert all(first <= int(found[f"address{cpu}"], 16) < end for cpu in range(4))
        start, size = (int(found[name], 16) for name in ("start", "size"))
        assert first <= start < start + size <= end
        # Nothing that asks for physical addresses finds some there.
        assert int(found["physical"], 16) == (1 << 64) - 1
        assert int(found["last"], 16) == 0
        assert int(found["read"], 16) == 4 << 20
    assert place.warnings() == ""


@pytest.mark.full
@pytest.mark.parametrize("append", ["", "percpu_local_map=0"])
def test_kcore_does_not_read_memory_with_an_error(machine, needs_symbol, append):
    """The kernel could not go on if it did. A page is marked as if one CPU's data had an error."""
    for symbol in ("PROC_KCORE", "MEMORY_FAILURE"):
        needs_symbol(symbol)
    module = "percpu_poisoned"
    place = machine(smp=4, append=append, modules_from=[f"features/percpu-local/{module}.c"])
    assert is_on(place) == (not append)
    cpus = [f"cpu{cpu}" for cpu in range(4)]
    found = in_kcore(place)
    all_well = {cpu: found[cpu] for cpu in cpus}
    assert "none" not in all_well.values()

    place.check(f"insmod /{FOLDER}/{module}.ko address=0x{found['address1']}")
    found = in_kcore(place)
    assert {cpu: found[cpu] for cpu in cpus} == all_well | {"cpu1": "none"}

    place.check(f"rmmod {module}")
    found = in_kcore(place)
    assert {cpu: found[cpu] for cpu in cpus} == all_well
    assert place.warnings() == ""


# What each CPU has to itself in a page-table dump, and what the kernel maps and unmaps all the
# time, the buffer of the dump included.
OWN, MOVING = "Local per-CPU data", "vmalloc() area"


def parts(table: str) -> dict[str, list[str]]:
    """Return the lines of a page-table dump by the headings that they follow, in its order.

    Of vmalloc(), which keeps its tables, those of pages are left out.
    """
    headings_and_lines = re.split(r"^---\[ (.*) \]---\n", table, flags=re.MULTILINE)[1:]
    lines = [text.splitlines() for text in headings_and_lines[1::2]]
    found = dict(zip(headings_and_lines[::2], lines, strict=True))
    found[MOVING] = [line for line in found[MOVING] if not re.search(r" PTE\b", line)]
    return found


def mapped(lines: list[str]) -> list[str]:
    """Return the lines of mapped pages, without those of table entries."""
    return [line for line in lines if " PTE " in line and " AF " in line]


def differing(tables: list[dict[str, list[str]]]) -> set[str]:
    """Return the headings after which dumps are not the same; all of them have the same ones."""
    assert all(list(table) == list(tables[0]) for table in tables)
    return {name for name in tables[0] if any(table[name] != tables[0][name] for table in tables)}


def test_page_table_dumps(machine):
    place = machine(smp=2)
    debugfs = "/sys/kernel/debug"
    assert place.check(f"ls {debugfs}/kernel_page_tables_cpu").split() == ["0", "1"]
    files = [f"{debugfs}/kernel_page_tables_cpu/{cpu}" for cpu in range(2)]
    # What is mapped or unmapped while the dumps are made is in some of them only.
    for _ in range(5):
        texts = place.read(f"{debugfs}/kernel_page_tables", *files)
        kernels, *dumps = tables = [parts(text) for text in texts]
        if differing(tables) == {OWN}:
            break
    # Everything but its own data is the same for each CPU, and what the kernel's table has.
    assert differing(tables) == {OWN}
    for name in ("Linear Mapping start", "Per-CPU areas start", "Modules start", MOVING):
        assert kernels[name]

    assert mapped(kernels[OWN]) == []
    for dump in dumps:
        assert mapped(dump[OWN])
        assert all("RW NX" in line and "UXN" in line for line in mapped(dump[OWN]))
    # Machines that count misses of TLBs are told the same addresses.
    heads = ("Local per-CPU data", "Per-CPU areas start", "Modules start")
    local, areas, modules = (
        int(dumps[0][head][0].removeprefix("0x").split("-")[0], 16) for head in heads
    )
    assert RANGES[LOCAL] == f"{local:x}-{areas - 1:x}"
    assert RANGES[AREAS] == f"{areas:x}-{modules - 1:x}"
    # What looks for pages that are writable and executable looks at the local region of each CPU,
    # too, after the kernel's own table.
    trace = "/sys/kernel/tracing"
    place.check(f"echo ptdump_walk_pgd >{trace}/set_ftrace_filter")
    place.check(f"echo function >{trace}/current_tracer")
    assert place.read(f"{debugfs}/check_wx_pages") == ["SUCCESS"]
    walks = re.findall(r": ptdump_walk_pgd <-(\w+)", place.check(f"cat {trace}/trace"))
    assert walks == ["ptdump_check_wx", *["percpu_local_ptdump_check"] * len(files)]
    assert place.warnings() == ""


# Runs before the CPU has a table of its own.
WITHOUT_A_TABLE = "percpu_local_install"
# An operation for the kernel's exception handlers, too, and what it calls when it has finished.
NOT_PROBED = "__pcp_classic_cmpxchg_128"
SCHEDULER = {"dynamic_preempt_schedule_notrace", "preempt_schedule_notrace"}


@pytest.mark.parametrize(
    "name", [recipes.DEFAULT_BUILD, pytest.param("clang-4k", marks=pytest.mark.full)]
)
def test_no_compiler_makes_a_function_of_what_has_to_be_inlined(space, tested, name):
    """It could be probed, and what handles the probe uses data of the CPU."""
    vmlinux = build.ensure(space, tested(name)).vmlinux
    codes = calls.codes(vmlinux, (WITHOUT_A_TABLE, NOT_PROBED))
    assert calls.called(WITHOUT_A_TABLE, codes[WITHOUT_A_TABLE]) == set()
    assert calls.called(NOT_PROBED, codes[NOT_PROBED]) <= SCHEDULER


@pytest.mark.full
def test_kaslr_moves_the_areas(machine):
    """The log's line about the map has no address, as that would tell where the image is."""
    starts = []
    for append in ("", "", "nokaslr"):
        place = machine(smp=2, append=append)
        [table] = place.read("/sys/kernel/debug/kernel_page_tables")
        starts.append(int(mapped(parts(table)["Per-CPU areas start"])[0].split("-")[0], 16))
        assert not re.search("0x|ffff", place.check("dmesg | grep 'percpu: local map'"))
    lowest = int(RANGES[AREAS].split("-")[0], 16)
    assert starts[2] - lowest < 2 << 20
    # Of 65,536 boots one has the place of a certain other one.
    assert len({start >> 21 for start in starts}) == 3


def test_cpus_come_and_go(machine):
    place = machine(smp=4, append=f"{KUNIT} {NMI}")
    place.check(
        "for round in 1 2 3; do"
        " for cpu in 1 2 3; do echo 0 >/sys/devices/system/cpu/cpu$cpu/online || exit 1; done;"
        " for cpu in 3 1 2; do echo 1 >/sys/devices/system/cpu/cpu$cpu/online || exit 1; done;"
        "done",
        timeout=120,
    )
    runs_its_suites_again(place)


@pytest.mark.full
@pytest.mark.parametrize("cpu", [None, LEVEL_0_CPU], ids=["any", "paused"])
def test_suspend_to_idle(machine, built, cpu):
    """Where the linear map is split in pauses, all CPUs can be paused after it."""
    place = machine(smp=2, cpu=cpu, append=KUNIT)
    suspends = "cat /sys/power/suspend_stats/success"
    before = int(place.check(suspends))
    place.check(f"{programs.path('percpu-local', 'suspend')} 5", timeout=60)
    assert int(place.check(suspends)) == before + 1
    # It slept until the clock woke it: this file has no number if nothing did.
    clock = "sed -n 's/^ *\\([0-9]*\\):.*rtc-pl031$/\\1/p' /proc/interrupts"
    assert place.read("/sys/power/pm_wakeup_irq") == [place.check(clock)]
    if cpu == LEVEL_0_CPU:
        pauses = "cat /sys/kernel/mm/linear_map/pauses"
        had = int(place.check(pauses))
        place.check(f"modprobe -a dummy veth && {UNLOAD} veth dummy")
        assert int(place.check(pauses)) > had
    runs_its_suites_again(place, skipped_cases(built(recipes.DEFAULT_BUILD), cpu or DEFAULT_CPU))


@pytest.mark.full
def test_cpus_resume_from_hibernation_on_their_tables(machine, tmp_path):
    """The only way here in which the boot CPU loses its registers and comes back."""
    disk = tmp_path / "swap"
    disk.touch()
    os.truncate(disk, 1 << 30)
    place = machine(
        smp=2,
        append=f"{KUNIT} resume=/dev/vdc hibernate=nocompress",
        extra_args=(
            *("-drive", f"if=none,id=swap,format=raw,file={disk}"),
            *("-device", "virtio-blk-pci,drive=swap,serial=swap,addr=0x1f"),
        ),
    )
    assert place.check("cat /sys/block/vdc/serial") == "swap"
    place.check("mkswap /dev/vdc; swapon /dev/vdc; echo test_resume >/sys/power/disk")
    # The base flushes the instruction cache in the interrupt of each page that it has loaded, and
    # waits there for the other CPUs, which it warns can deadlock; now and then, it does.
    place.check("echo 0 >/sys/devices/system/cpu/cpu1/online")
    place.check("echo disk >/sys/power/state", timeout=120)
    # This only the kernel that the image was loaded into says.
    assert "MTE pages" in place.check("dmesg | grep hibernate:")
    place.check("echo 1 >/sys/devices/system/cpu/cpu1/online")
    runs_its_suites_again(place)


@pytest.mark.full
@pytest.mark.parametrize("cpus", [24, 160])
def test_many_cpus_boot(machine, cpus):
    # One after the other: more processors in parallel than the host has starve each other.
    place = machine(smp=cpus, memory="4G", icount=True)
    assert place.check("nproc").strip() == str(cpus)
    assert is_on(place)
    assert place.warnings() == ""


# All that vmalloc's own tests have, but two that are busy for minutes, and one that asks for any
# alignment until it gets none.
VMALLOC_TESTS = 0x7FF & ~(1 << 1 | 1 << 2 | 1 << 6)


@pytest.mark.full
@pytest.mark.parametrize(
    ("build", "pages", "memory"),
    [
        ("checked-4k", 512, "2G"),
        ("tiny-4k-39", 512, "2G"),
        # Blocks are entries of the top level, which each CPU has a copy of.
        ("tiny-64k-42", 8192, "16G"),
    ],
)
def test_vmalloc_and_its_blocks_in_half_of_its_space(machine, build, pages, memory):
    """As on servers: what rules blocks out on most kernels for tests is not compiled in.

    Blocks are made where there is memory for them, which KUnit looks at (what_ioremap_maps_...).
    """
    place = machine(build, smp=2, memory=memory)
    assert is_on(place)
    place.check("test ! -e /sys/kernel/debug/kernel_page_tables")
    assert place.warnings() == ""
    # It ends with an error, as there is nothing to stay for.
    log = place.check(
        "dmesg -c >/dev/null; modprobe test_vmalloc nr_threads=2 test_loop_count=10 use_huge=1 "
        f"nr_pages={pages} run_test_mask={VMALLOC_TESTS}; dmesg",
        timeout=600,
    )
    summary = re.findall(r"Summary: (\w+) passed: (\d+) failed: (\d+) ", log)
    assert len(summary) == 2 * VMALLOC_TESTS.bit_count()
    assert {(passed, failed) for _, passed, failed in summary} == {("1", "0")}
    assert place.warnings() == ""


@pytest.mark.full
def test_no_map_where_kaslr_would_decide_who_has_room(machine):
    """Areas are 512 MiB apart, and begin anywhere in what a last-level table maps: 512 MiB."""
    # All CPUs have areas, whether they start or not.
    place = machine("tiny-64k-42", smp=256, memory="4G", icount=True, append="maxcpus=1")
    reason = "256 CPUs have room for 0 MiB each, and need 64 MiB"
    assert mode_and_reason(place) == ("classic", reason)
    assert place.warnings() == ""


@pytest.mark.full
@pytest.mark.parametrize("append", ["", "nokaslr", "kpti=on", "kpti=on nokaslr"])
@pytest.mark.parametrize("cpu", ["max", NO_LPA2, NO_LSE])
@pytest.mark.parametrize("name", recipes.matrix(workspace.find()))
def test_the_matrix(machine, built, name, cpu, append):
    if cpu == NO_LSE and "16k" in name:
        pytest.skip("the processor has no 16 KiB pages")
    place = machine(name, cpu=cpu, smp=3, append=f"{KUNIT} {append}")
    passes_with_local_map(place, skipped_cases(built(name), cpu))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["kasan-sw-tags", "kasan-hw-tags"])
def test_kasan_with_tags(machine, kind):
    place = machine(f"tiny-4k-52-{kind}", smp=3, append=KUNIT, extra_args=MTE)
    assert f"KernelAddressSanitizer initialized ({kind.removeprefix('kasan-')}" in place.console()
    passes_with_local_map(place)
