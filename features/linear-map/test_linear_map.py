"""What the linear map is made of, on which processors, and what it says about it."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import half_way
import leaves
import pytest
from leaf_sizes import LeafSizes
from leaves import direct_map
from settled import settled_leaves
from split import logged, said
from waiting import wait_until

from pagewright.guest import programs
from pagewright.guest.shell import UNLOAD
from pagewright.host.errors import GuestDiedError
from pagewright.host.run import run
from pagewright.kernel.modules import FOLDER
from pagewright.kernel.recipes import DEFAULT_BUILD
from pagewright.machine import klog, virtual_cpus
from pagewright.machine.machine import Machine
from pagewright.machine.options import DEFAULT_CPU, LEVEL_0_CPU, UNLISTED_CPU
from pagewright.machine.strict import link_address

pytestmark = pytest.mark.long(3)

MIB = 1 << 20
LEVEL_2 = DEFAULT_CPU
LISTED = {
    "Cortex-X4 r0p3": 0x410FD823,
    "Cortex-A520AE": 0x410FD880,
    "Cortex-A715": 0x410FD4D0,
    "Cortex-A720AE": 0x410FD890,
    "Cortex-A725": 0x410FD870,
    "Neoverse-N3": 0x410FD8E0,
    "Neoverse-V3 r0p2": 0x410FD842,
    "Neoverse-V3AE r0p2": 0x410FD832,
    "NVIDIA Olympus": 0x4E0F0100,
    "AmpereOne": 0xC00FAC30,
    "AmpereOne A": 0xC00FAC40,
    "C1-Nano": 0x410FD8A0,
    "C1-Pro": 0x410FD8B0,
    "C1-Ultra r1p1": 0x411FD8C1,
    "C1-Premium r1p1": 0x411FD901,
}
TESTS = programs.path("linear-map")
MODULES = ("crypto_null", "dummy", "veth")
# It sets access flags, and has no BBM level 2.
ACCESS_FLAG_CPU = "neoverse-n1"
# It sets none, and has pages of all sizes.
NO_ACCESS_FLAG_CPU = "cortex-a35"
ACCESS_FLAGS = "arm64.linear_map=af"
ONLY_PAUSES = f"{ACCESS_FLAGS}: not all CPUs set access flags; there are pauses alone"
PAUSED = "blocks (split and folded back in pauses"
LACKING = "the boot CPU is not known"

# Both ways to split. What follows of a way is its CPU, and how little time folding lets pass.
ways = pytest.mark.parametrize("cpu", [LEVEL_2, LEVEL_0_CPU], ids=["live", "paused"])
# How many CPUs there are, and which of them cannot change sizes live.
unequal = pytest.mark.parametrize(("smp", "lacking"), [(4, "2"), (2, "1"), (8, "1,5-7")])


def mode(guest: Machine) -> str:
    """Return what the kernel last said of the linear map, which sysfs has, too."""
    line = logged(guest)
    blocks_or_pages, reason = said(guest)
    assert re.fullmatch(rf"{blocks_or_pages} \({re.escape(reason)}(; MIDR_EL1 \w+)?\)", line)
    return line


@pytest.fixture
def machine(machine: Callable[..., Machine], leaf: LeafSizes) -> Callable[..., Machine]:
    """Boot machines with as much memory as is asked for, and not less than takes many blocks."""

    def factory(memory: str = "1G", **options: Any) -> Machine:
        return machine(memory=f"{leaf.memory(memory) // MIB}M", **options)

    return factory


def vmstat(guest: Machine) -> dict[str, int]:
    return {name: n for name, n in guest.vmstat().items() if name.startswith("linear_map_")}


def pauses(guest: Machine) -> int:
    """Return how many pauses there were for the linear map."""
    return int(guest.check("cat /sys/kernel/mm/linear_map/pauses"))


def linear_map_counts(guest: Machine, *names: str) -> list[int]:
    """Return counts of /sys/kernel/mm/linear_map."""
    return [int(text) for text in guest.read(*(f"/sys/kernel/mm/linear_map/{n}" for n in names))]


def load_and_unload(guest: Machine, modules: tuple[str, ...] = MODULES) -> None:
    command = f"for m in {' '.join(modules)}; do modprobe $m && {UNLOAD} $m || exit 1; done"
    guest.check(command)


def blocks_of_image(guest: Machine, leaf: LeafSizes) -> int:
    """Return how many bytes of the kernel's text and constants are whole blocks."""
    code = re.search(r"(\w+)-(\w+) : Kernel code", guest.check("cat /proc/iomem"))
    assert code
    first, last = -(-int(code[1], 16) // leaf.block), (int(code[2], 16) + 1) // leaf.block
    return max(0, last - first) * leaf.block


def in_large_leaves(sizes: dict[int, int], least: int) -> int:
    """Return how much of what direct_map() returns is mapped by leaves of a size or more."""
    return sum(mapped for size, mapped in sizes.items() if size >= least)


def in_pages(guest: Machine, leaf: LeafSizes) -> bool:
    """Whether all but the alias of the kernel image, which never changes, is pages."""
    sizes = direct_map(guest)
    in_blocks = in_large_leaves(sizes, leaf.block)
    return in_blocks < 32 * MIB < sizes[leaf.page]


# KUnit asks for each of the list whether it is trusted; that a trusted one boots in blocks is
# the same for all, but for those that are on the list against what their ID register says.
EVERY_DAY = ("AmpereOne",)

HOLD = programs.path("linear-map", "hold")

# The case of KUnit for maps that are not split, too.
REMOVAL = "a_part_of_a_leaf_is_not_removed"
RUN_REMOVAL = f"kunit.enable=1 kunit.filter_glob=linear_map.{REMOVAL}"


@pytest.mark.parametrize(
    "midr",
    [
        pytest.param(midr, id=name, marks=() if name in EVERY_DAY else pytest.mark.full)
        for name, midr in LISTED.items()
    ],
)
def test_listed_cpu_boots_in_blocks(machine, leaf, midr):
    memory = 16 * leaf.large
    guest = machine(cpu=f"max,midr={midr:#x}", memory=f"{memory // MIB}M")
    assert mode(guest).startswith("blocks (split and folded back live")
    sizes = direct_map(guest)
    # Next to no pages, but for an image that is smaller than a block.
    _, end = leaves.parse_image(guest.check("cat /proc/iomem"))
    assert sizes[leaf.page] < min(2 * leaf.block, end + 4 * MIB)
    # Most of it: the image of a large kernel, which has permissions of its own, is in two of them.
    assert sizes[leaf.large] > memory * 350 // 512


# Which is chosen for another reason, or said of another one.
OTHER_MODES = (
    (UNLISTED_CPU, "arm64.linear_map=live", f"pages ({LACKING} to have BBM level 2 without "),
    # The everyday kernel isolates no CPUs; see below.
    (UNLISTED_CPU, "isolcpus=1 nohz_full=1", f"{PAUSED}: {LACKING}"),
    (UNLISTED_CPU, "isolcpus nohz_full", f"{PAUSED}: {LACKING}"),  # of none
    ("max,midr=0x410fd822", "", f"{PAUSED}: {LACKING}"),  # X4 r0p2: too old
    ("max,midr=0x411fd8c0", "", f"{PAUSED}: {LACKING}"),  # C1-Ultra r1p0: erratum 3683289
    (LEVEL_2, "arm64.nobbml2", f"{PAUSED}: arm64.nobbml2;"),
    (LEVEL_2, "arm64.linear_map=pause", f"{PAUSED}: arm64.linear_map=pause;"),
    (LEVEL_2, "arm64.linear_map=pages", "pages (arm64.linear_map="),
    (LEVEL_2, "arm64.nobbml2_cpus=0", f"{PAUSED}: {LACKING}"),
    (UNLISTED_CPU, "rodata=on", f"{PAUSED}: {LACKING}"),  # late KFENCE needs pages
    (LEVEL_2, "rodata=off kfence.sample_interval=100000", "blocks (its permissions do not"),
    (LEVEL_2, "rodata=on", "blocks (split and folded back live"),  # for late KFENCE
)


@pytest.mark.parametrize(
    ("cpu", "append", "said"),
    [
        (UNLISTED_CPU, "", f"{PAUSED}: {LACKING} to have BBM level 2 without aborts;"),
        (UNLISTED_CPU, "arm64.linear_map=pages", "pages (arm64.linear_map=pages;"),
        (UNLISTED_CPU, "rodata=on kfence.sample_interval=100000", "blocks (its permissions do not"),
        (LEVEL_2, "arm64.linear_map=af", f"{PAUSED}: arm64.linear_map=af, splits without one if "),
        *(pytest.param(*one, marks=pytest.mark.full) for one in OTHER_MODES),
    ],
)
def test_mode_and_its_reason(machine, leaf, cpu, append, said):
    guest = machine(cpu=cpu, append=f"{append} {RUN_REMOVAL}")
    if "isolcpus=" in append and guest.run("grep -w housekeeping_setup /proc/kallsyms").status == 0:
        said = f"pages ({LACKING} to have BBM level 2 without aborts, and isolated CPUs are not "
    assert mode(guest).startswith(said)
    pages = said.startswith("pages")
    assert in_pages(guest, leaf) == pages
    # If there are blocks, if only the image's, they are looked at.
    skip = " # SKIP the linear map has no blocks"
    result = f"ok 1 {REMOVAL}{skip if pages and not blocks_of_image(guest, leaf) else ''}"
    assert re.search(rf"\] +{result}$", guest.check("dmesg"), re.MULTILINE)
    assert guest.warnings() == ""


# Models of QEMU, of which an older one does not have all. None is on the kernel's list.
MODELS = (
    *("cortex-a35", "cortex-a53", "cortex-a55", "cortex-a57", "cortex-a72", "cortex-a76"),
    *("cortex-a710", "a64fx", "neoverse-n1", "neoverse-n2", "neoverse-v1"),
)
WITHOUT_16K = ("cortex-a53", "cortex-a57", "cortex-a72", "a64fx")


@pytest.mark.full
@pytest.mark.skipif("config.getoption('lg_env')", reason="chooses QEMU's models of CPUs")
@pytest.mark.parametrize("cpu", MODELS)
def test_every_model_splits_and_folds_back_in_pauses(machine, kunit_suites, leaf, cpu):
    """From Armv8.0, without LSE, to what servers have today."""
    models = run(["qemu-system-aarch64", "-cpu", "help"]).split()
    if cpu not in models:
        pytest.skip(f"this QEMU has no {cpu}")
    if leaf.page == 16384 and cpu in WITHOUT_16K:
        pytest.skip(f"{cpu} has no pages of 16 KiB")
    options = "arm64.linear_map_fold_delay_ms=50 kunit.enable=1 kunit.filter_glob=linear_map"
    guest = machine(cpu=cpu, smp=2, append=options)
    assert mode(guest).startswith(f"{PAUSED}: {LACKING} to have BBM level 2 without aborts;")
    kunit_suites(guest, ["linear_map"])
    settled_leaves(guest)
    before, had = direct_map(guest), pauses(guest)
    guest.check(f"modprobe {MODULES[0]}")
    assert direct_map(guest)[leaf.page] > before[leaf.page]
    guest.check(f"{UNLOAD} {MODULES[0]}")
    wait_until(lambda: direct_map(guest) == before, 30)
    assert pauses(guest) > had
    assert guest.warnings() == ""


@pytest.mark.full
@unequal
def test_unequal_cpus_go_back_to_pages(machine, leaf, smp, lacking):
    append = f"arm64.linear_map=live arm64.nobbml2_cpus={lacking}"
    guest = machine(cpu=LEVEL_2, smp=smp, append=append)
    assert mode(guest).startswith("pages (repainted: a secondary CPU")
    assert in_pages(guest, leaf)
    assert guest.check("nproc").strip() == str(smp)
    sizes = direct_map(guest)
    for _ in range(3):
        load_and_unload(guest)
    assert direct_map(guest) == sizes
    assert not any(v for name, v in vmstat(guest).items() if "fold" in name)
    assert guest.warnings() == ""


@pytest.mark.full
@unequal
def test_unequal_cpus_go_on_with_pauses(machine, leaf, smp, lacking):
    """The boot CPU has painted contiguous ranges, which nobody may change from now on."""
    guest = machine(cpu=LEVEL_2, smp=smp, append=f"arm64.nobbml2_cpus={lacking}")
    assert mode(guest).startswith(f"{PAUSED}: a secondary CPU")
    sizes = direct_map(guest)
    assert sizes[leaf.pages] == sizes[leaf.blocks] == 0
    # The edges of the image, and what lies beside them.
    assert sizes[leaf.page] < 8 * leaf.block
    largest_range = "cont_pmd" if leaf.large == leaf.blocks else "cont_pte"
    assert vmstat(guest)[f"linear_map_split_{largest_range}"] > 0
    load_and_unload(guest)
    assert pauses(guest) > 0
    assert guest.warnings() == ""


def test_a_way_that_there_is_not_is_said_once(machine):
    guest = machine(cpu=LEVEL_2, append="arm64.linear_map=quick")
    warning = "arm64.linear_map=quick: not one of auto, live, af, pause, pages; using auto"
    assert guest.check("dmesg").count(warning) == 1
    assert mode(guest).startswith("blocks (split and folded back live")


@pytest.mark.full
@pytest.mark.parametrize(
    ("cpu", "asked"), [(LEVEL_0_CPU, ""), (ACCESS_FLAG_CPU, ACCESS_FLAGS)], ids=["pause", "af"]
)
def test_late_cpu_is_welcome_where_sizes_change_in_pauses(machine, cpu, asked):
    """Also where blocks are split by access flags if they are idle, before and after it comes."""
    options = f"maxcpus=1 arm64.linear_map_fold_delay_ms=50 {asked}"
    guest = machine(cpu=cpu, smp=3, append=options)
    assert mode(guest).startswith(f"{PAUSED}: {asked or LACKING}")
    tries = ("access_flag_splits", "access_flag_failures")
    late = "/sys/devices/system/cpu/cpu"
    for switch in (f"1 >{late}1/online", f"1 >{late}2/online", f"0 >{late}1/online"):
        guest.check(f"echo {switch}")
        settled_leaves(guest)
        before = linear_map_counts(guest, *tries, "pauses")
        load_and_unload(guest)
        settled_leaves(guest)
        by_flag, in_vain, in_pauses = (
            now - was
            for now, was in zip(linear_map_counts(guest, *tries, "pauses"), before, strict=True)
        )
        assert in_pauses > 0
        assert (by_flag + in_vain > 0) == (asked == ACCESS_FLAGS)
    assert (linear_map_counts(guest, *tries)[0] > 0) == (asked == ACCESS_FLAGS)
    assert guest.warnings() == ""


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        # Until it is judged it uses the kernel's tables, so nothing may change live.
        ("", f"{PAUSED}: not all CPUs have started"),
        pytest.param(
            "arm64.linear_map=pause", f"{PAUSED}: arm64.linear_map=pause", marks=pytest.mark.full
        ),
        pytest.param("arm64.linear_map=pages", "pages (", marks=pytest.mark.full),
        pytest.param(
            "rodata=on kfence.sample_interval=100000",
            "blocks (its permissions do not change",
            marks=pytest.mark.full,
        ),
    ],
    ids=["auto", "pause", "pages", "fixed"],
)
def test_late_cpu_without_it_is_welcome(machine, asked, said):
    """Also where the others have it and nothing needs it, as on the base."""
    guest = machine(cpu=LEVEL_2, smp=3, append=f"maxcpus=1 arm64.nobbml2_cpus=2 {asked}")
    assert mode(guest).startswith(said)
    load_and_unload(guest)
    for cpu in (1, 2):
        guest.check(f"echo 1 >/sys/devices/system/cpu/cpu{cpu}/online")
        load_and_unload(guest)
    assert guest.warnings() == ""


@pytest.mark.full
@ways
def test_late_cpu_that_cannot_be_stopped_is_the_end_of_the_boot(
    machine, built, tmp_path, needs_symbol, cpu
):
    """It has begun to run when it is given up, and so runs on the tables that would change."""
    needs_symbol("ARM64_LINEAR_MAP_PAUSE")
    path = tmp_path / "gdb"
    runs = link_address(built(DEFAULT_BUILD).vmlinux, "secondary_start_kernel")
    assert runs
    dead = threading.Event()

    def stop_the_second() -> None:
        wait_until(path.exists, 60)
        with virtual_cpus.VirtualCpus(path) as host:
            host.run_until(runs)
            host.run([0])
            assert dead.wait(60)

    # All CPUs wait until a debugger has come.
    extra_args = ("-S", *virtual_cpus.arguments(path))
    with ThreadPoolExecutor() as pool:
        host = pool.submit(stop_the_second)
        with pytest.raises(GuestDiedError, match="linear map: a CPU started too late"):
            machine(cpu=cpu, smp=2, append="nokaslr", extra_args=extra_args)
        dead.set()
        host.result()


def test_the_boot_waits_until_cpus_can_be_paused(machine):
    """Where BPF is compiled, its first program is made early, and the kernel is lost without it."""
    fail = "fail_cpu_pause=1,100,0,12"
    guest = machine(build="checked-4k", cpu=LEVEL_0_CPU, smp=2, append=fail)
    assert mode(guest).startswith(PAUSED)
    log = guest.check("dmesg")
    assert log.count("the boot waits until all CPUs can be paused") == 1
    # Who folds has a single try, too, and may fail by itself.
    [failed] = linear_map_counts(guest, "pauses_failed")
    assert failed >= 12
    guest.check(f"modprobe xts && {UNLOAD} xts")
    assert guest.warnings(klog.without_injected_faults) == ""


@pytest.mark.full
def test_late_cpu_without_it_is_refused_where_all_changes_are_live(machine):
    options = "maxcpus=1 arm64.nobbml2_cpus=2 arm64.linear_map=live"
    guest = machine(cpu=LEVEL_2, smp=3, append=options)
    assert mode(guest).startswith("blocks (split and folded back live")
    load_and_unload(guest)
    guest.check("echo 1 >/sys/devices/system/cpu/cpu1/online")
    assert guest.run("echo 1 >/sys/devices/system/cpu/cpu2/online").status != 0
    assert guest.check("cat /sys/devices/system/cpu/online").strip() == "0-1"
    assert re.search(
        r"CPU2: Detected conflict for capability \d+ \(Break-before-make level 2",
        guest.check("dmesg"),
    )
    load_and_unload(guest)
    assert guest.warnings() == ""


@pytest.mark.parametrize(
    "cpu", [ACCESS_FLAG_CPU, pytest.param(LEVEL_2, marks=pytest.mark.full)], ids=["n1", "level2"]
)
def test_blocks_that_nobody_uses_are_split_by_their_access_flag(machine, kunit_suites, cpu):
    """KUnit looks at blocks in use and not in use; modules may take any."""
    options = f"{ACCESS_FLAGS} kunit.enable=1 kunit.filter_glob=linear_map"
    guest = machine(cpu=cpu, smp=2, memory="2G", append=options)
    cases = (
        "idle_blocks_are_split_by_their_access_flag",
        "vfree_knows_a_block_without_access_flag",
    )
    kunit_suites(guest, ["linear_map"], must_run=cases)
    splits, failures = linear_map_counts(guest, "access_flag_splits", "access_flag_failures")
    load_and_unload(guest)
    after = linear_map_counts(guest, "access_flag_splits", "access_flag_failures")
    assert sum(after) > splits + failures
    assert ONLY_PAUSES not in guest.console()
    assert guest.warnings() == ""


@pytest.mark.full
def test_cpus_that_set_no_access_flags_have_pauses(machine):
    guest = machine(cpu=NO_ACCESS_FLAG_CPU, smp=2, append=ACCESS_FLAGS)
    assert guest.check("dmesg").count(ONLY_PAUSES) == 1
    load_and_unload(guest)
    assert linear_map_counts(guest, "access_flag_splits", "access_flag_failures") == [0, 0]
    assert pauses(guest) > 0
    assert guest.warnings() == ""


@ways
def test_modules_split_and_are_folded_back(machine, leaf, cpu):
    guest = machine(cpu=cpu, smp=2, memory="4G", append="arm64.linear_map_fold_delay_ms=50")
    settled_leaves(guest, 1)
    before = direct_map(guest)
    # Some splits are for good: what is made read-only at the end of boot.
    boots = vmstat(guest)
    largest = leaf.largest(contiguous=cpu == LEVEL_2)
    # UEFI has some memory of most of the largest blocks to itself.
    assert before[largest] > 0
    assert in_large_leaves(before, leaf.block) >= leaf.memory("4G") // 2
    guest.check(f"for m in {' '.join(MODULES)}; do modprobe $m || exit 1; done; sleep 1")
    loaded = direct_map(guest)
    assert loaded[leaf.page] > before[leaf.page]
    assert sum(loaded.values()) == sum(before.values())
    # No more than the blocks in which the modules lie.
    whole, left = (in_large_leaves(sizes, min(leaf.large, largest)) for sizes in (before, loaded))
    assert whole - left <= 2 * largest
    guest.check(f"{UNLOAD} {' '.join(reversed(MODULES))}")
    wait_until(lambda: direct_map(guest) == before, 30)
    counts = {name: count - boots[name] for name, count in vmstat(guest).items()}
    assert counts["linear_map_split_pmd"] == counts["linear_map_fold_pmd"] > 0
    assert counts["linear_map_split_pud"] == counts["linear_map_fold_pud"]
    assert guest.warnings() == ""


@pytest.mark.full
def test_what_folds_is_bound_to_no_cpu(machine):
    """It holds locks, and a real-time task may have a CPU for itself."""
    guest = machine(smp=2, append="arm64.linear_map_fold_delay_ms=50")
    guest.check(
        "cd /sys/kernel/tracing\necho p:fold fold_work_fn >kprobe_events\n"
        "echo 1 >events/kprobes/fold/enable"
    )
    load_and_unload(guest)

    def workers() -> list[str]:
        return re.findall(
            r"^ *(\S+)-\d+ .* fold:", guest.check("cat /sys/kernel/tracing/trace"), re.M
        )

    wait_until(lambda: bool(workers()), 10)
    assert {name[: len("kworker/u")] for name in workers()} == {"kworker/u"}
    assert guest.warnings() == ""


def test_a_module_takes_two_pauses(machine):
    """All that its text and data split, and all that is folded after it.

    Time is counted in instructions, or a guest that waits for its host folds half way. It passes
    all the same while all CPUs wait for the disk, from which everything has been read before.
    """
    options = "arm64.linear_map_fold_delay_ms=100"
    guest = machine(cpu=LEVEL_0_CPU, smp=2, icount=True, append=options)
    load_and_unload(guest, MODULES[:1])
    settled_leaves(guest, 2)
    before = pauses(guest)
    load_and_unload(guest, MODULES[:1])
    settled_leaves(guest, 2)
    assert 1 <= pauses(guest) - before <= 2
    assert guest.warnings() == ""


# So many entries are exchanged in one pause at most, and so many instructions are twice what it
# takes for each of them.
MOST_ENTRIES, INSTRUCTIONS = 128, 32


@pytest.mark.full
def test_the_largest_plan_takes_a_short_pause(machine, kunit_suites, leaf):
    """What runs in it never asks whether the limit of pauses is reached: see change_entries().

    Time is counted in instructions, one to a nanosecond.
    """
    if leaf.page != 4096:
        pytest.skip("blocks are too large to have many")
    case = "a_full_plan_takes_one_pause"
    append = f"kunit.enable=1 kunit.filter_glob=linear_map.{case} trace_event=cpu_pause:cpu_pause"
    guest = machine("2G", cpu=LEVEL_0_CPU, smp=2, icount=True, append=append)
    kunit_suites(guest, ["linear_map"], must_run=(case,))
    trace = guest.check("cat /sys/kernel/tracing/trace")
    holds = [int(ns) for ns in re.findall(r"hold_ns=(\d+) given_up=0", trace)]
    # Each entry is written twice at least, so that the pause of the full plan is among them.
    assert 2 * MOST_ENTRIES < max(holds) < INSTRUCTIONS * MOST_ENTRIES
    limit_us = int(guest.check("cat /sys/kernel/cpu_pause/limit_us"))
    assert max(holds) < limit_us * 1000
    assert guest.warnings() == ""


@pytest.mark.full
def test_nothing_is_folded_right_after_a_module_was_split(machine):
    """Its data that becomes read-only after init looks like any other until then.

    What was given back before is due a second later, and so is what lies beside it. A module that
    comes meanwhile has it put off for as long.
    """
    guest = machine(cpu=LEVEL_0_CPU, smp=2, append="arm64.linear_map_fold_delay_ms=1000")
    load_and_unload(guest, MODULES[:1])
    settled_leaves(guest, 3)
    folds = "grep linear_map_fold_ /proc/vmstat"
    before = guest.check(folds)
    # So many blocks are worth a pause, and the module is in one of them.
    now = guest.check(
        f"{HOLD} 32 >/tmp/held & until grep -q held /tmp/held; do sleep 0.1; done; kill $!;"
        f"sleep 0.6; modprobe {MODULES[0]} && sleep 0.6; {folds}; sleep 4; echo; {folds}"
    )
    soon, later = now.split("\n\n")
    assert soon.strip() == before.strip() != later.strip()
    assert guest.warnings() == ""


# When it is, and how many pauses, split blocks and folded blocks there were.
COUNTS = """
cut -d ' ' -f 1 /proc/uptime
cat /sys/kernel/mm/linear_map/pauses
for what in split fold; do sed -n "s/^linear_map_${what}_pmd //p" /proc/vmstat; done
"""


@pytest.mark.full
def test_many_pauses_in_a_second_leave_folding_for_later(machine, leaf):
    """What has to be split is split; nothing fails, and in the end all is folded.

    Time is counted in instructions. Secret memory is touched and given back in a part of a second,
    and folding is due after another part. It then waits for a second, as its pause would be one of
    many; without that it would have been done when it is looked for.
    """
    frequent, blocks = 8, 32
    if leaf.page != 4096:
        pytest.skip("blocks are too large to have many")
    options = "arm64.linear_map_fold_delay_ms=200"
    guest = machine(cpu=LEVEL_0_CPU, smp=2, icount=True, append=options)
    # Nothing is read from the disk later: while all CPUs wait for it, time passes at once.
    touch = f"{TESTS}/touch user"
    guest.check(f"{touch} 2; sleep 0.1; {COUNTS}")
    settled_leaves(guest, 3)
    leaves = direct_map(guest)
    touched = f"{touch} {blocks * leaf.block // MIB} || exit"
    script = f"{COUNTS}{touched}{COUNTS}sleep 0.6{COUNTS}"
    figures = [float(figure) for figure in guest.check(script, timeout=200).split()]
    before, after, soon = (figures[first : first + 4] for first in (0, 4, 8))
    counts = f"uptime, pauses, splits and folds were {before}, then {after}, and then {soon}"
    assert after[0] - before[0] < 1, counts
    # Only splits took pauses, and folding them back is worth one.
    assert after[1] - before[1] > frequent, counts
    assert after[2] - before[2] > frequent, counts
    assert soon[1:] == [*after[1:3], before[3]], counts
    settled_leaves(guest, 3)
    assert direct_map(guest) == leaves
    for_folds = pauses(guest) - soon[1]
    assert 1 <= for_folds <= frequent, f"{for_folds} pauses for folds; {counts}"
    assert guest.warnings() == ""


def test_unprivileged_tasks_take_turns_when_there_are_many_pauses(machine, leaf):
    """Who had a pause sleeps for 20 ms at least; time is counted in instructions."""
    frequent, turn_ms, blocks = 8, 20, 32
    if leaf.page == 65536:
        pytest.skip(f"{blocks} blocks of 512 MiB, of which a guest writes all, are 16 GiB")
    guest = machine(cpu=LEVEL_0_CPU, smp=2, icount=True)
    before = pauses(guest)
    elapsed_ms = int(guest.check(f"{TESTS}/unprivileged {blocks * leaf.block // (2 * MIB)}"))
    during = pauses(guest) - before
    assert during > blocks // 2
    assert elapsed_ms >= (during - frequent - 1) * turn_ms
    assert guest.warnings() == ""


@pytest.mark.full
def test_unprivileged_tasks_take_turns_when_all_tlbs_lose_everything_often(machine, leaf):
    """Live, too: who had leaves split 256 times in a second sleeps for 4 ms from then on."""
    frequent, turn_ms, blocks, trace = 256, 4, 32, "/sys/kernel/tracing"
    if leaf.page != 4096:
        pytest.skip("so many contiguous ranges, of which a guest writes all, are GiB")
    guest = machine(smp=2, icount=True)
    guest.check(f"echo flush_splits >{trace}/set_ftrace_filter")
    guest.check(f"echo function >{trace}/current_tracer")
    elapsed_ms = int(guest.check(f"{TESTS}/unprivileged {blocks * leaf.block // (2 * MIB)}"))
    lines = guest.check(f"grep 'unprivileged.*: flush_splits' {trace}/trace")
    times = [float(time) for time in re.findall(r" (\d+\.\d+): flush_splits", lines)]
    assert len(times) > 2 * frequent
    # At first nobody has to wait.
    assert times[frequent - 1] - times[0] < 0.5
    # The turn of a task is reckoned in ticks, of which the first one has begun.
    assert elapsed_ms >= (len(times) - frequent) * turn_ms * 0.9
    assert guest.warnings() == ""


# What BPF says of a program that cannot be compiled, where nothing interprets it.
ENOTSUPP = 524


def pauses_failed(guest: Machine) -> int:
    """Return how often there was no pause for a change."""
    return int(guest.check("cat /sys/kernel/mm/linear_map/pauses_failed"))


def attach_filter(guest: Machine, who: str = "filter") -> tuple[int, int]:
    """Have a BPF program compiled; return the error, and how many milliseconds it took."""
    error, elapsed_ms = guest.check(f"{TESTS}/unprivileged {who}").split()
    return int(error), int(elapsed_ms)


@pytest.mark.usefixtures("fault_injection")
def test_a_pause_that_cannot_be_had_fails_the_change(machine, built):
    """As memory for a table that cannot be had does, and nothing is left of it."""
    guest = machine(cpu=LEVEL_0_CPU, smp=2, append="arm64.linear_map_fold=0")
    before = direct_map(guest)
    fail = "/sys/kernel/debug/fail_cpu_pause"
    guest.check(f"echo 100 >{fail}/probability; echo -1 >{fail}/times; echo 0 >{fail}/verbose")
    assert guest.run(f"modprobe {MODULES[1]}").status != 0
    assert direct_map(guest) == before
    failed = pauses_failed(guest)
    # A module is tried four times in each of ten seconds, and so often once more when the time is
    # over. A busy host has time for fewer tries.
    assert 12 <= failed <= 44 and failed % 4 == 0
    # BPF's allocator, whose lock all want, does not wait for what a user can keep from being had.
    # Memory that it had for a program of the boot is enough for this one, too.
    if not built(DEFAULT_BUILD).has("NET_PTP_CLASSIFY"):
        assert attach_filter(guest)[0] == ENOTSUPP
        assert pauses_failed(guest) == failed + 1
    failed = pauses_failed(guest)
    # Nine pauses fail, which is more than other callers wait for, and less than a module does.
    guest.check(f"echo 9 >{fail}/times; modprobe {MODULES[1]}")
    assert pauses_failed(guest) == failed + 9
    assert attach_filter(guest)[0] == 0
    assert direct_map(guest) != before
    assert guest.warnings() == ""


@pytest.mark.full
@pytest.mark.usefixtures("fault_injection")
def test_who_could_have_no_pause_waits_before_the_next(machine, built):
    """Between tries, or without privileges after the only one. Instructions are the clock."""
    if built(DEFAULT_BUILD).has("NET_PTP_CLASSIFY"):
        pytest.skip("memory that BPF had for a program of the boot is enough for this one")
    guest = machine(cpu=LEVEL_0_CPU, smp=2, icount=True, append="arm64.linear_map_fold=0")
    fail = "/sys/kernel/debug/fail_cpu_pause"
    guest.check(f"echo 100 >{fail}/probability; echo -1 >{fail}/times; echo 0 >{fail}/verbose")
    for who, tries, sleeps in (("filter", 1, 1), ("root-filter", 4, 3)):
        failed = pauses_failed(guest)
        error, elapsed_ms = attach_filter(guest, who)
        assert error == ENOTSUPP
        assert pauses_failed(guest) == failed + tries
        # The first tick has begun.
        assert sleeps * 250 - 10 <= elapsed_ms < (sleeps + 1) * 250
    assert guest.warnings() == ""


@pytest.mark.full
@pytest.mark.usefixtures("fault_injection")
def test_secret_memory_waits_for_a_pause_that_cannot_be_had(machine):
    """Its task faults again and can be killed meanwhile. What the kernel does for a task fails.

    A task that exits could not be killed, and one in a system call may hold locks.
    """
    guest = machine(cpu=LEVEL_0_CPU, smp=2)
    fail = "/sys/kernel/debug/fail_cpu_pause"
    guest.check(f"echo 100 >{fail}/probability; echo -1 >{fail}/times; echo 0 >{fail}/verbose")
    output = guest.check(
        f"""
        cd {TESTS}
        (./touch kernel 32 2>&1; echo "kernel ended: $?") &
        (./touch exit 32; echo "exit ended: $?") &
        ./touch user 32 & waiting=$!
        ./touch user 32 & doomed=$!
        sleep 4
        kill -KILL $doomed; wait $doomed; echo "doomed ended: $?"
        kill -0 $waiting && echo "still waiting"
        echo 0 >{fail}/probability
        wait $waiting; echo "waiting ended: $?"
        wait
        """,
        timeout=120,
    )
    assert pauses_failed(guest) > 0
    refused, waited = output.split("doomed ended: 137")
    for line in ("touch: read: Bad address\n", "kernel ended: 1\n", "exit ended: 0\n"):
        assert line in refused, output
    assert "still waiting" in waited, output
    assert "waiting ended: 0" in waited, output
    assert guest.warnings() == ""


@pytest.mark.full
def test_while_a_cpu_is_lost_nothing_is_split_or_folded(machine, leaf):
    """Who needs a split is refused at once, and not told to wait: the CPU may be lost for good."""
    guest = machine(
        cpu=LEVEL_0_CPU,
        smp=3,
        append="arm64.linear_map_fold=0 arm64.linear_map_fold_delay_ms=50",
        modules_from=["features/cpu-pause/undead_cpu.c"],
    )
    cpu = "/sys/devices/system/cpu/cpu2/online"
    fold = "/sys/module/arm64/parameters/linear_map_fold"
    guest.check(f"insmod /{FOLDER}/undead_cpu.ko && {TESTS}/touch user 8 && echo 0 >{cpu}")
    assert "CPU2 may run the kernel" in guest.console()
    split = direct_map(guest)
    guest.check(f"echo 1 >{fold}")
    assert guest.run(f"{TESTS}/touch user 64").status == 128 + signal.SIGBUS
    assert "read: Bad address" in guest.run(f"{TESTS}/touch kernel 64").output
    guest.check("rmmod undead_cpu; sleep 1")
    assert direct_map(guest) == split
    assert linear_map_counts(guest, "pauses_failed")[0] > 0

    # Folding would look for the CPU after a minute by itself.
    guest.check(f"echo 1 >{cpu} && {TESTS}/touch user 64 && echo 0 >{fold} && echo 1 >{fold}")
    wait_until(lambda: direct_map(guest)[leaf.page] < split[leaf.page], 30)
    assert guest.warnings() == ""


@pytest.mark.full
def test_a_cpu_that_cannot_be_interrupted_stops_the_others_seldom(machine):
    """Secret memory waits for it. Time is counted in instructions: a busy host adds none."""
    guest = machine(cpu=LEVEL_0_CPU, smp=3, icount=True)
    pause, figures = "/sys/kernel/cpu_pause", ("given_up", "total_ns")
    guest.check(f"echo 4000 >{pause}/wait_us")
    begun = [int(guest.check(f"cat {pause}/{figure}")) for figure in figures]
    # Another CPU than the one that asks.
    deaf = "echo 2000 >/sys/kernel/debug/cpu_pause_deaf"
    guest.check(f"taskset -c 2 sh -c '{deaf}; {TESTS}/touch user 32'", timeout=300)
    ended = [int(guest.check(f"cat {pause}/{figure}")) for figure in figures]
    given_up, total_ns = (end - begin for begin, end in zip(begun, ended, strict=True))
    # Seven before the first pause fails, and from then on one in a quarter of a second.
    assert 7 <= given_up <= 7 + 2000 // 250
    # Each try in vain takes 4 ms. The pauses that come to pass, one for each page, take less than
    # one such try together.
    assert total_ns < (given_up + 1) * 4_000_000
    assert guest.warnings() == ""


# A page of secret memory that the kernel touches for a task asks for a pause four times, and then
# the system call fails. The disk's interrupts are for CPU 0, which must not be the one that takes
# none.
TRIES_IN_VAIN = f"""
tries_in_vain() {{
    before=$(cat /sys/kernel/cpu_pause/given_up)
    echo 2000 >/sys/kernel/debug/cpu_pause_deaf
    {TESTS}/touch kernel 8 2>/dev/null && exit 1
    echo $(($(cat /sys/kernel/cpu_pause/given_up) - before))
    sleep 3
}}
taskset -p -c 0 $$ >/dev/null
"""


@pytest.mark.full
def test_failures_of_long_ago_take_no_tries_away(machine):
    """Time is counted in instructions, and passes at once while all CPUs wait."""
    append = "arm64.linear_map_fold=0"
    guest = machine(cpu=LEVEL_0_CPU, smp=2, append=append, icount=True)
    script = f"{TRIES_IN_VAIN} tries_in_vain; tries_in_vain; sleep 10; tries_in_vain"
    assert guest.check(script, timeout=200).split() == ["10", "4", "10"]
    # So that whoever reads the log knows which one it was.
    assert "cpu_pause: CPU1 does not take interrupts" in guest.console()
    assert guest.warnings() == ""


# Dumps the kernel's page tables now and then for five seconds; prints how long the third slowest
# took, as a busy host may make one or two of them slow.
SLOW_DUMP = """
for i in $(seq 50); do
    read begin rest </proc/uptime
    cat /sys/kernel/debug/kernel_page_tables >/dev/null || exit
    read end rest </proc/uptime
    echo $((${end%.*}${end#*.} - ${begin%.*}${begin#*.}))
    sleep 0.1
done >/run/dumps
sort -n /run/dumps | tail -n 3 | head -n 1
"""


@pytest.mark.full
def test_a_fold_that_can_have_no_pause_keeps_nobody_waiting(machine, leaf, needs_symbol):
    """While a CPU is half way on line there are no pauses, and a dump takes the same locks."""
    needs_symbol("CPU_HOTPLUG_STATE_CONTROL")
    options = "arm64.linear_map_fold=0 arm64.linear_map_fold_delay_ms=100"
    guest = machine(cpu=LEVEL_0_CPU, smp=3, append=options)
    whole = direct_map(guest)[leaf.page]
    load_and_unload(guest)
    split = direct_map(guest)[leaf.page]
    assert split > whole
    usual = int(guest.check(SLOW_DUMP, timeout=60))

    half_way.park(guest, 2)
    guest.check("echo 1 >/sys/module/arm64/parameters/linear_map_fold")
    slowest = int(guest.check(SLOW_DUMP, timeout=60))
    failed = "cat /sys/kernel/mm/linear_map/pauses_failed"
    assert int(guest.check(failed)) > 0
    # A busy host has time for one try meanwhile, which is not the last one.
    wait_until(lambda: int(guest.check(failed)) > 1, 30)
    assert direct_map(guest)[leaf.page] == split
    assert slowest < usual + 100, "hundredths of a second"

    # What it could not fold is not forgotten.
    cpu = f"{half_way.CPUS}/cpu2"
    guest.check(f"echo 0 >{cpu}/hotplug/target; echo 1 >{cpu}/online")
    wait_until(lambda: direct_map(guest)[leaf.page] <= whole, 30)
    assert guest.warnings() == ""


@pytest.mark.full
def test_without_folding_it_stays_split_until_folding_is_allowed(machine, leaf):
    options = "arm64.linear_map_fold=0 arm64.linear_map_fold_delay_ms=100"
    guest = machine(cpu=LEVEL_2, smp=2, append=options)
    before = direct_map(guest)
    guest.check(f"modprobe dummy && {UNLOAD} dummy; sleep 1")
    assert direct_map(guest)[leaf.page] > before[leaf.page]
    guest.check("echo 1 >/sys/module/arm64/parameters/linear_map_fold")
    wait_until(lambda: direct_map(guest) == before, 30)
    assert guest.warnings() == ""


@pytest.mark.full
@ways
def test_tracepoints_tell_of_splits_and_folds(machine, cpu):
    guest = machine(cpu=cpu, smp=2, append="arm64.linear_map_fold_delay_ms=10")
    guest.check("mount -t tracefs none /sys/kernel/tracing 2>/dev/null; true")
    guest.check("echo 1 >/sys/kernel/tracing/events/linear_map/enable")
    file = "/sys/kernel/tracing/trace"
    guest.check(
        f"modprobe dummy && {UNLOAD} dummy;"
        f"until grep -q linear_map_fold: {file}; do sleep 0.1; done"
    )
    trace = guest.check(f"cat {file}")
    for event in ("linear_map_split", "linear_map_change", "linear_map_fold"):
        assert re.search(rf"{event}: start=[0-9a-f]+ ", trace)
    assert guest.warnings() == ""
