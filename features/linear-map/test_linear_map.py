"""What the linear map is made of, on which processors, and what it says about it."""

from __future__ import annotations

import re

import leaves
import pytest

from pagewright.machine.machine import Machine
from pagewright.machine.options import DEFAULT_CPU, UNLISTED_CPU

pytestmark = pytest.mark.long

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
MODULES = ("crypto_null", "dummy", "veth")


def mode(guest: Machine) -> str:
    """Return what the kernel last said of the linear map."""
    lines = re.findall(r"linear map: (.*)", guest.check("dmesg"))
    assert lines, "the kernel said nothing of the linear map"
    return lines[-1]


def direct_map(guest: Machine) -> dict[str, int]:
    """Return the kB that leaves of each size map."""
    sizes = leaves.parse_direct_map(guest.check("cat /proc/meminfo"))
    return {leaves.size_name(leaf): mapped >> 10 for leaf, mapped in sizes.items()}


def vmstat(guest: Machine) -> dict[str, int]:
    return {name: n for name, n in guest.vmstat().items() if name.startswith("linear_map_")}


def in_pages(guest: Machine) -> bool:
    """Whether all but the alias of the kernel image, which never changes, is pages."""
    sizes = direct_map(guest)
    return sizes["1G"] == sizes["32M"] == 0 and sizes["2M"] < 32 << 10 < sizes["4k"]


# KUnit asks for each of the list whether it is trusted; that a trusted one boots in blocks is
# the same for all, but for those that are on the list against what their ID register says.
EVERY_DAY = ("Neoverse-V3 r0p2", "AmpereOne")

# The case of KUnit for maps that are not split, too.
REMOVAL = "part_of_a_leaf_is_removed_if_it_can_be_split"
RUN_REMOVAL = f"kunit.enable=1 kunit.filter_glob=linear_map.{REMOVAL}"


@pytest.mark.parametrize(
    "midr",
    [
        pytest.param(midr, id=name, marks=() if name in EVERY_DAY else pytest.mark.full)
        for name, midr in LISTED.items()
    ],
)
def test_listed_cpu_boots_in_blocks(machine, midr):
    guest = machine(cpu=f"max,midr={midr:#x}", memory="512M")
    assert mode(guest).startswith("blocks (split and folded back live")
    sizes = direct_map(guest)
    assert sizes["4k"] < 4 << 10
    # Most of it: the image of a large kernel, which has permissions of its own, is in two of them.
    assert sizes["32M"] > 350 << 10


@pytest.mark.parametrize(
    ("cpu", "append", "said"),
    [
        (UNLISTED_CPU, "", "pages (the boot CPU is not known to have BBM level 2 without aborts"),
        ("max,midr=0x410fd822", "", "pages (the boot CPU is not known"),  # X4 r0p2: too old
        # C1-Ultra r1p0: erratum 3683289
        pytest.param(
            "max,midr=0x411fd8c0", "", "pages (the boot CPU is not known", marks=pytest.mark.full
        ),
        (LEVEL_2, "arm64.nobbml2", "pages (arm64.nobbml2;"),
        (LEVEL_2, "arm64.nobbml2_cpus=0", "pages (the boot CPU is not known"),
        (UNLISTED_CPU, "rodata=on", "pages (the boot CPU is not known"),  # late KFENCE needs pages
        (UNLISTED_CPU, "rodata=on kfence.sample_interval=100000", "blocks (its permissions do not"),
        (LEVEL_2, "rodata=off kfence.sample_interval=100000", "blocks (its permissions do not"),
        (LEVEL_2, "rodata=on", "blocks (split and folded back live"),  # for late KFENCE
    ],
)
def test_mode_and_its_reason(machine, cpu, append, said):
    guest = machine(cpu=cpu, append=f"{append} {RUN_REMOVAL}")
    assert mode(guest).startswith(said)
    assert in_pages(guest) == said.startswith("pages")
    # There are blocks on all of them, if only the image's.
    assert re.search(rf"\bok 1 {REMOVAL}$", guest.check("dmesg"), re.MULTILINE)
    assert guest.warnings() == ""


@pytest.mark.parametrize(("smp", "lacking"), [(2, "1"), (4, "2"), (8, "1,5-7")])
def test_unequal_cpus_go_back_to_pages(machine, smp, lacking):
    guest = machine(cpu=LEVEL_2, smp=smp, append=f"arm64.nobbml2_cpus={lacking}")
    assert mode(guest).startswith("pages (repainted: a secondary CPU")
    assert in_pages(guest)
    assert guest.check("nproc").strip() == str(smp)
    sizes = direct_map(guest)
    for _ in range(3):
        guest.check(f"for m in {' '.join(MODULES)}; do modprobe $m && rmmod $m || exit 1; done")
    assert direct_map(guest) == sizes
    assert not any(v for name, v in vmstat(guest).items() if "fold" in name)
    assert guest.warnings() == ""


def test_late_cpu_without_it_is_refused(machine):
    guest = machine(cpu=LEVEL_2, smp=3, append="maxcpus=1 arm64.nobbml2_cpus=2")
    assert mode(guest).startswith("blocks")
    guest.check("echo 1 >/sys/devices/system/cpu/cpu1/online")
    assert guest.run("echo 1 >/sys/devices/system/cpu/cpu2/online").status != 0
    assert guest.check("cat /sys/devices/system/cpu/online").strip() == "0-1"
    assert re.search(
        r"CPU2: Detected conflict for capability \d+ \(Break-before-make level 2",
        guest.check("dmesg"),
    )


def test_modules_split_and_are_folded_back(machine):
    guest = machine(cpu=LEVEL_2, smp=2, memory="4G", append="arm64.linear_map_fold_delay_ms=200")
    before = direct_map(guest)
    # Some splits are for good: what is made read-only at the end of boot.
    boots = vmstat(guest)
    assert before["1G"] >= 2 << 20
    guest.check(f"for m in {' '.join(MODULES)}; do modprobe $m || exit 1; done; sleep 1")
    loaded = direct_map(guest)
    assert loaded["4k"] > before["4k"]
    assert sum(loaded.values()) == sum(before.values())
    # No more than the blocks in which the modules lie.
    assert before["32M"] + before["1G"] - loaded["32M"] - loaded["1G"] <= 1 << 20 << 1
    guest.check(f"rmmod {' '.join(reversed(MODULES))}; sleep 2")
    assert direct_map(guest) == before
    counts = {name: count - boots[name] for name, count in vmstat(guest).items()}
    assert counts["linear_map_split_pmd"] == counts["linear_map_fold_pmd"] > 0
    assert counts["linear_map_split_pud"] == counts["linear_map_fold_pud"]


def test_without_folding_it_stays_split_until_folding_is_allowed(machine):
    options = "arm64.linear_map_fold=0 arm64.linear_map_fold_delay_ms=100"
    guest = machine(cpu=LEVEL_2, smp=2, append=options)
    before = direct_map(guest)
    guest.check("modprobe dummy && rmmod dummy; sleep 1")
    assert direct_map(guest)["4k"] > before["4k"]
    guest.check("echo 1 >/sys/module/arm64/parameters/linear_map_fold; sleep 1")
    assert direct_map(guest) == before


def test_tracepoints_tell_of_splits_and_folds(machine):
    guest = machine(cpu=LEVEL_2, smp=2, append="arm64.linear_map_fold_delay_ms=100")
    guest.check("mount -t tracefs none /sys/kernel/tracing 2>/dev/null; true")
    guest.check("echo 1 >/sys/kernel/tracing/events/linear_map/enable")
    guest.check("modprobe dummy && rmmod dummy; sleep 1")
    trace = guest.check("cat /sys/kernel/tracing/trace")
    for event in ("linear_map_split", "linear_map_change", "linear_map_fold"):
        assert re.search(rf"{event}: start=[0-9a-f]+ ", trace)
