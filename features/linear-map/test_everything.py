"""Everything that changes kernel page tables at once, with 8 CPUs, for ten minutes.

Modules, BPF programs and secret memory come and go; hugepages are held, demoted and given back, and
have memory errors; CPUs and memory come and go; and per-CPU operations add up meanwhile. Each
program checks what it has: every sum, and every page.
"""

from __future__ import annotations

import itertools
import re
import shlex
import time
from typing import Any, NamedTuple

import pytest
from settled import settled_leaves
from waiting import wait_until
from ways import WAYS, completed
from workloads import LOAD_UNLOAD

from pagewright.guest import programs
from pagewright.kernel.recipes import recipe
from pagewright.machine import klog
from pagewright.machine.machine import Machine
from pagewright.machine.options import LEVEL_0_CPU

pytestmark = [pytest.mark.full, pytest.mark.long(60)]

SECONDS = 600
MIB = 1 << 20


class Amounts(NamedTuple):
    """What goes by the size of hugepages, and so of base pages.

    Attributes:
        pools: how many hugepages there are to be, one number after the other.
        memory: of the machine, of which the largest pool is a small part.
        plugged: how many MiB are plugged, by turns.
    """

    pools: str
    memory: str
    plugged: tuple[int, int]


# khugepaged, which has the lowest priority, copies what becomes a hugepage in one RCU read section,
# and before that takes its pages from their lists without a break. Among all of this, on a host
# that had other work too, that took longer than the 21 s after which RCU complains, and the 20 s of
# the detector of soft lockups: 32 MiB did with pages of 16 KiB, and 2 MiB with KASAN and lockdep.
PATIENT = "rcupdate.rcu_cpu_stall_timeout=120 watchdog_thresh=60"

# Some of what is plugged stays while anybody allocates: when the last of a zone goes, Linux 6.12
# rebuilds the list of zones under those who allocate, in code that no feature changes. Right after
# that an oops in zone_statistics() was seen: it read the entry of the preferred zone again, and
# there was none any more.
AMOUNTS = {
    "4k": Amounts("64 16 128 32", "3G", (256, 1024)),
    "16k": Amounts("16 4 24 8", "5G", (256, 1024)),
    "64k": Amounts("4 1 6 2", "10G", (512, 2048)),
}

# How much of it may stay for good where DEBUG_VM is set. The page allocator looks at pages there,
# and drops 2 MiB that it is about to hand out if one of them has an error. Nobody has these then,
# and memory with such pages in it cannot go off line. 2 MiB were seen, in 5 minutes.
LOST = 64 * MIB

STOP = "/run/stop"
# The CPUs that were taken off line, by number.
UNPLUGGED = "/run/unplugged"
LINEAR_MAP = programs.path("linear-map")
HUGEPAGES = programs.path("hugetlb-vmemmap")
POOL = "/proc/sys/vm/nr_hugepages"

# Each is run again and again until the time is over. A turn that fails is the last one.
# POOLS stands for the sizes of the pool.
JOBS = {
    "secret-memory": f"{LINEAR_MAP}/secretmem -t of_many_processes_comes_back",
    "modules": LOAD_UNLOAD,
    "bpf": f"{LINEAR_MAP}/bpf -t programs_come_and_go_on_all_cpus",
    "hugepages": f"{HUGEPAGES}/vmemmap_holders {STOP}",
    # A pool that grows takes what it can get.
    "pool": f"for nr in POOLS; do echo $nr >{POOL} || exit; sleep 1; done",
    # So much work, which takes 5 s on an idle machine. With a time-out of 20 s, stress-ng said "out
    # of system resources" in its first turn on a debug kernel, with memory free.
    "memory": "stress-ng --vm 2 --vm-bytes 64M --vm-method all --verify --vm-ops 10000",
    "processes": "stress-ng --fork 2 --mmap 1 --mmap-bytes 16M --timeout 20s --quiet",
    # Only one at a time may be off; the torture of per-CPU operations takes some off itself, and
    # then one of this may fail.
    "cpus": f"""for cpu in 4 5 6 7; do
        echo 0 >/sys/devices/system/cpu/cpu$cpu/online && echo $cpu >>{UNPLUGGED}; sleep 0.2
        echo 1 >/sys/devices/system/cpu/cpu$cpu/online; sleep 0.2
    done; :""",
    # Its module fails to load if a sum is wrong.
    "per-cpu-sums": "modprobe percpu_torture rounds=500 plugs=2 churns=1 && rmmod percpu_torture",
    "page-tables": "cat /sys/kernel/debug/kernel_page_tables >/dev/null && sleep 5",
}

BEGIN = """
export TOGETHER=1
job() {{
    turns=0
    until test -e {stop}; do
        sh -c "$2" >/run/$1.log 2>&1 || {{ echo "failed: $?" >>/run/$1.log; break; }}
        ! grep -w -e SKIP -e "0 / 0 tests" /run/$1.log ||
            {{ echo "failed: no test was run" >>/run/$1.log; break; }}
        turns=$((turns + 1))
        echo $turns >/run/$1.turns
    done
    touch /run/$1.ended
}}
"""


def changes(place: Machine) -> dict[str, int]:
    """Return how many leaves of the linear map were split and folded since boot."""
    counts = place.vmstat()
    return {
        what: sum(n for name, n in counts.items() if name.startswith(f"linear_map_{what}_"))
        for what in ("split", "fold")
    }


# What else tells how a machine changes kernel page tables, and whether each write is looked at.
OTHERS: dict[str, dict[str, Any]] = {
    "paused-remaps": {"cpu": LEVEL_0_CPU, "append": "hugetlb_vmemmap=pause"},
    "strict": {"strict": True},
    "strict-paused": {"cpu": LEVEL_0_CPU, "strict": True, "bbm_level": 0},
}
BUILDS = ("patched-4k", "debug-4k", "patched-16k", "patched-64k")


@pytest.mark.parametrize(
    ("build", "way"),
    [
        *itertools.product(BUILDS, ("live", "paused")),
        *itertools.product(BUILDS[:1], ("af", *OTHERS)),
    ],
)
def test_everything_at_once(machine, guest_program, space, hotplug, build, way):
    """What fails is named with the end of what it has printed; nothing is left when all is over."""
    amounts = AMOUNTS[build.rpartition("-")[2]]
    patience = "" if build == "patched-4k" else PATIENT
    append = (
        f"{hotplug.options['append']} hugetlb_free_vmemmap=on "
        f"arm64.linear_map_fold_delay_ms=10 {patience}".strip()
    )
    own = hotplug.options | {"smp": 8, "memory": amounts.memory, "append": append}
    options = completed(build, (WAYS | OTHERS)[way], own)
    place = machine(build, **options)
    guest_program(place, f"{LINEAR_MAP}/bpf -t programs_are_machine_code_that_runs", may_skip=())
    guest_program(place, f"{LINEAR_MAP}/modules -t leave_nothing_else_read_only", may_skip=())
    leaves, counted = settled_leaves(place), changes(place)
    for name, command in JOBS.items():
        words = shlex.quote(command.replace("POOLS", amounts.pools))
        place.check(f"{BEGIN.format(stop=STOP)}\njob {name} {words} >/dev/null 2>&1 &", timeout=300)
    until, sizes = time.monotonic() + SECONDS, itertools.cycle(amounts.plugged)
    plugged = [hotplug.size(place)]
    while time.monotonic() < until:
        hotplug.resize(place, next(sizes) * MIB)
        time.sleep(15)
        plugged.append(hotplug.size(place))
        # Also that it still answers. With forty tasks running that has taken more than a minute.
        place.check("cat /proc/loadavg", timeout=300)
    place.check(f"touch {STOP}", timeout=300)
    ended = " && ".join(f"test -e /run/{name}.ended" for name in JOBS)
    place.check(f"until {ended}; do sleep 1; done", timeout=2400)
    hotplug.resize(place, 0)
    failed = {name: place.check(f"tail -n 20 /run/{name}.log") for name in JOBS}
    # A job also fails for want of a pause, if a busy host does not run one of the CPUs for so long
    # as a pause is tried.
    without_pause = place.read("/sys/kernel/cpu_pause/failed")
    assert not {name: text for name, text in failed.items() if "failed: " in text}, (
        failed,
        f"pauses that could not be had: {without_pause}",
    )
    turns = dict(zip(JOBS, place.read(*(f"/run/{name}.turns" for name in JOBS)), strict=True))
    assert min(map(int, turns.values())) > 0, turns
    assert set(place.read(UNPLUGGED)[0].split()) == set("4567")
    came_and_went = {then < now for then, now in itertools.pairwise(plugged) if then != now}
    assert came_and_went == {True, False}, plugged
    grown = {what: count - counted[what] for what, count in changes(place).items()}
    assert min(grown.values()) > 0, grown
    counts = {k: int(v) for k, v in re.findall(r"(\w+)=(\d+)", failed["hugepages"])}
    assert min(counts["holds"], counts["errors"], counts["offlines"]) > 0, counts
    assert counts["wrong"] == counts["unheard"] == counts["unrepaired"] == 0, counts
    assert "not ok" not in place.check("dmesg")
    place.check(f"echo 0 >{POOL}")
    lost = LOST if recipe(space, build).debug else 0
    # On an idle host that takes 20 s, and a strict machine is ten times as slow.
    wait_until(lambda: hotplug.size(place) <= lost, 900)
    # What stays is mapped by blocks; pages and contiguous ranges of them are told first.
    sizes = [*leaves][:2] if hotplug.size(place) else [*leaves]
    wait_until(lambda: all(settled_leaves(place)[size] == leaves[size] for size in sizes), 60)
    assert place.meminfo()["HugePages_Total"] == 0
    assert klog.splats(klog.without_dying_cpus(place.console())) == ""
    if options.get("strict"):
        assert place.violations() == []
