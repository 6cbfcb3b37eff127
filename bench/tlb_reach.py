"""What large leaves save: misses of TLBs, and descriptors that walks load, for each operation.

A model of TLBs counts them (docs/tlb-model.md), for several geometries at once. The workloads are
a cached file that is read in order, fio that writes blocks at random through dm-crypt to a ramdisk,
memcached over the loopback device, requests of one byte over it, and a C file that is compiled.
Each is counted with few operations and with many: the difference is divided by the difference of
operations, so that what a program costs to begin and to end is in no figure.

In the part `fresh` memory is as it is after boot, where what is allocated together lies together.
In the others free memory is scattered over the guest's before anything else happens (scatter.c), as
it is on a server after a while. In `churned` modules have come and gone besides, with folding and
without.

Per-CPU data is told apart where percpu-local is on: that at local addresses, and that in the areas,
which other CPUs can reach. The kernels without it have the first of it in the linear map.

In `hvo` most of memory was in hugepages once. If HVO is on, the struct pages of that memory are
mapped by pages from then on, and by blocks if it is off. Some hugepages are left for what uses
them; the other memory is scattered and shows what all programs pay.

Tables have four levels, as on the CPUs whose geometries are simulated: QEMU's own has 52 bits. All
sides have KFENCE's pool since boot (see features/linear-map/host/leaves.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hugepage_uses import FILL_POOL, use
from leaves import EARLY_KFENCE
from percpu_layout import AREAS, LOCAL, RANGES
from percpu_workloads import COMPILE_ONE, COMPILE_SETUP, COUNT, IN_MEMCG, loopback
from workloads import CHURN, CRYPT_DISK, MEMCACHED_BEGINS, MEMCACHED_ENDS

from pagewright.guest.shell import direct_map
from pagewright.kernel.modules import FOLDER
from pagewright.machine import tlb
from pagewright.machine.options import DEFAULT_CPU
from pagewright.results.experiment import (
    BASE,
    PATCHED,
    Experiment,
    Part,
    Published,
    Quantity,
    Side,
    Values,
    Work,
)
from pagewright.results.misses import EVENTS, Cost, row

BASE_ON = Side("rodata=on", "base-4k", "rodata=on")
# Only the feature that is about large leaves: percpu-local maps what belongs to a CPU once more,
# and that takes entries of its own.
_ALONE = "percpu_local_map=0"
ALONE = Side("linear-map alone", "patched-4k", _ALONE)
NO_FOLDING = Side("alone, no folding", "patched-4k", f"{_ALONE} arm64.linear_map_fold=0")
HVO_OFF = Side("HVO off", "patched-4k", "hugetlb_free_vmemmap=off")
SEAMLESS = Side("seamless", "patched-4k", "hugetlb_free_vmemmap=on hugetlb_vmemmap=seamless")
PAUSE = Side("pause", "patched-4k", "hugetlb_free_vmemmap=on hugetlb_vmemmap=pause")
HVO = (HVO_OFF, SEAMLESS, PAUSE)
COLUMNS = [side.label for side in (BASE, BASE_ON, NO_FOLDING, ALONE, PATCHED, *HVO)]

SCATTER = "features/linear-map/bench/scatter.c"

# TLBs are simulated from the first count on.
BEGIN = f"""
set -e
{direct_map()}
{COUNT} true >/dev/null
"""
SCATTERED = f"insmod /{FOLDER}/scatter.ko || exit\n"

# In the commands of workloads FEW and MANY stand for how much is done, and PAGES for how many
# hugepages are used.

# Prints what few operations cost, and what many do.
COUNTED = f"""
echo few=FEW
echo many=MANY
counted() {{
	label=$1
	shift
	{COUNT} "$@" >/tmp/counts || {{ cat /tmp/counts; exit 1; }}
	grep = /tmp/counts | sed "s/^/$label /"
}}
"""
# The first time is not counted: it brings programs and data into memory.
EACH = """each warm FEW
each few FEW
each many MANY
"""

READ_FILE = f"""
set -e
{COUNTED}
dd if=/dev/zero of=/var/tmp/file bs=1M count=MANY 2>/dev/null
# Or it is written to the disk in the middle of what is counted.
sync /var/tmp/file
cat /var/tmp/file >/dev/null
each() {{ counted $1 dd if=/var/tmp/file of=/dev/null bs=64k count=$(($2 * 16)) 2>/dev/null; }}
{EACH}rm /var/tmp/file
"""

WRITE_BLOCKS = f"""{COUNTED}{CRYPT_DISK}
each() {{ counted $1 sh -c "$(write 16M) --io_size=$2k >/dev/null"; }}
{EACH}dmsetup remove crypt
"""

SET_AND_GET = f"""{COUNTED}{MEMCACHED_BEGINS}
each() {{ counted $1 sh -c "$(load set $2) >/dev/null && $(load get $2) >/dev/null"; }}
{EACH}{MEMCACHED_ENDS}"""

SEND_REQUESTS = f"""
set -e
{COUNTED}
each() {{ counted $1 {loopback("requests").replace("SIZE", "$2")}; }}
{EACH}"""

COMPILE_FILE = f"""
set -e
{COUNTED}{COMPILE_SETUP}
each() {{
	counted $1 sh -c '{IN_MEMCG}; for turn in $(seq '$2'); do {COMPILE_ONE} || exit; done'
}}
{EACH}"""


def of_hugepages(how: str) -> str:
    """Return the command of a workload that uses hugepages."""
    return f"set -e\n{COUNTED}\neach() {{ counted $1 {use(how)}; }}\n{EACH}"


@dataclass(frozen=True)
class Workload:
    """What is counted with few operations and with many.

    Attributes:
        command: has FEW and MANY, and PAGES if it uses hugepages.
        few: how many are few.
        quick: how many are many when quick; 0 if it is left out then.
        full: and in full.
        unit: what one of these is.
        operations: how many operations that is; one for each hugepage if it is 0.
    """

    command: str
    few: int
    quick: int
    full: int
    unit: str
    operations: float = 1

    def work(self, name: str, quick: bool) -> Work:
        """Return the work that is named so."""
        many = str(self.quick if quick else self.full)
        text = self.command.replace("FEW", str(self.few)).replace("MANY", many)
        pages = pages_used(quick)
        return Work(name, f"echo pages={pages}\n{text}".replace("PAGES", str(pages)), 1800)


def pages_used(quick: bool) -> int:
    """Return how many hugepages are used."""
    return 64 if quick else 512


CACHED, FIO, CACHE = "cached file", "fio on dm-crypt", "memcached"
TCP, COMPILING = "TCP requests", "compiling"
# By the name of their group.
WORKLOADS = {
    CACHED: Workload(READ_FILE, 1, 9, 65, "4 KiB read", 256),
    FIO: Workload(WRITE_BLOCKS, 64, 1024, 2112, "4 KiB written", 1 / 4),
    CACHE: Workload(SET_AND_GET, 100, 200, 1100, "set or get", 2),
    TCP: Workload(SEND_REQUESTS, 100, 600, 2100, "request"),
    # Takes as long as the others together.
    COMPILING: Workload(COMPILE_FILE, 1, 0, 3, "file"),
}
OF_HUGEPAGES = {
    "reading past the page cache": Workload(of_hugepages("direct"), 100, 600, 4100, "4 KiB read"),
    "vmsplice": Workload(of_hugepages("pipe"), 100, 600, 4100, "4 KiB"),
    "faults": Workload(of_hugepages("fault"), 1, 2, 3, "hugepage", 0),
    "fork": Workload(of_hugepages("fork"), 1, 9, 17, "hugepage of a child", 0),
}
ALL = {**WORKLOADS, **OF_HUGEPAGES}
# In parts that compare what the first one has compared already, in other circumstances.
AGAIN = (CACHED, FIO, CACHE, TCP)

# Where a workload runs, after its name.
FRESH, ON_SCATTERED, ON_CHURNED = "", ", memory scattered", ", memory scattered, modules churned"
IN_HUGEPAGES, AFTER_HUGEPAGES = ", hugepages", ", memory that was hugepages"


def parts(quick: bool) -> list[Part]:
    """Return what runs where."""
    options: Mapping[str, Any] = {
        "icount": True,
        "tlb": True,
        "tlb_ranges": RANGES,
        "smp": 1,
        "cpu": f"{DEFAULT_CPU},lpa2=off",
        "memory": "2G" if quick else "16G",
        "append": f"{EARLY_KFENCE} brd.rd_size=16384",
    }
    scattered = {**options, "modules_from": (SCATTER,)}

    def works(where: str, names: Sequence[str] = tuple(WORKLOADS)) -> list[Work]:
        sized = [(name, ALL[name]) for name in names if not quick or ALL[name].quick]
        return [workload.work(f"{name}{where}", quick) for name, workload in sized]

    churn = CHURN.replace("SIZE", "5" if quick else "40")
    fill = FILL_POOL.replace("MOST", "800" if quick else "7000")
    fill = fill.replace("PAGES", str(pages_used(quick)))
    begin = Work("begin", BEGIN)
    begin_scattered = Work("begin, memory scattered", f"{SCATTERED}{BEGIN}", 900)
    begin_churned = Work("begin, modules churned", f"{SCATTERED}{churn}{BEGIN}", 1800)
    begin_hvo = Work("begin, hugepages", f"set -e\n{fill}{SCATTERED}{BEGIN}", 1800)
    sides = (BASE, BASE_ON, ALONE, PATCHED)
    hvo = [
        begin_hvo,
        *works(IN_HUGEPAGES, tuple(OF_HUGEPAGES)),
        *works(AFTER_HUGEPAGES, (CACHED, CACHE)),
    ]
    return [
        Part("scattered", scattered, [begin_scattered, *works(ON_SCATTERED)], sides),
        Part(
            "churned",
            scattered,
            [begin_churned, *works(ON_CHURNED, AGAIN)],
            (BASE, NO_FOLDING, ALONE),
        ),
        Part("fresh", options, [begin, *works(FRESH, AGAIN)], sides),
        Part("hvo", scattered, hvo, HVO),
    ]


# The one that the published figures are nearest to.
USUAL = "neoverse-n1"
KERNEL_DATA = (*tlb.KERNEL_DATA, LOCAL, AREAS)
DATA = (*KERNEL_DATA, "user")
KERNEL = (*KERNEL_DATA, "kernel-code")
OF_DATA = "kernel data"
# What is told apart of that, where percpu-local is on. Kernels without it have other things at
# these addresses, and the first chunk of per-CPU data in the linear map.
PERCPU = {"per-CPU data, local": (LOCAL,), "per-CPU data, areas": (AREAS,)}
ALL_DATA = f"{USUAL}, kernel and programs: L1 misses"
PER_1000 = {
    event: f"{USUAL}, kernel: {EVENTS[event][0]} in 1000 of its instructions"
    for event in ("l1", "l2")
}


def group_of(name: str, where: str) -> str:
    """Name the table of a workload."""
    return f"{name}{where}: misses for each {ALL[name].unit}"


def quantities(side: str, work: str, values: Values) -> Iterator[Quantity]:
    """Make the numbers of a work."""
    name = work.partition(",")[0]
    if name not in ALL:
        return
    group = group_of(name, work.removeprefix(name))
    operations = ALL[name].operations or int(values["pages"])
    cost = Cost(values, operations * (int(values["many"]) - int(values["few"])))

    yield from cost.rows(group, OF_DATA, KERNEL_DATA)
    yield from cost.rows(group, "linear map", ("linear",), (USUAL,), ("l1", "l2"))
    told_apart = {"struct pages": ("struct-pages",), **(PERCPU if side == PATCHED.label else {})}
    for of, classes in told_apart.items():
        yield from cost.rows(group, of, classes)
        yield Quantity(group, f"accesses, {of}", "accesses", cost.accesses(classes))
    yield Quantity(group, ALL_DATA, "misses", cost.of(USUAL, "l1", DATA))
    instructions = cost.each("kernel")
    for event, name_of_row in PER_1000.items():
        of_kernel = 1000 * cost.of(USUAL, event, KERNEL) / instructions
        yield Quantity(group, name_of_row, "misses", of_kernel)
    yield Quantity(group, "instructions of the kernel", "instructions", instructions)


PUBLISHED = (
    Published(
        "fio: misses of the data TLB by loads",
        "-76 % with the linear map in blocks (1,818,320,693 to 438,729,774)",
        "arm64 server, 2022",
        group_of(FIO, ON_SCATTERED),
        row(USUAL, "l1", OF_DATA),
        side=ALONE.label,
        remark="Ours is of kernel data. Hardware counted the program's misses too: of ours, what "
        "the program misses to begin differs by more than what it misses for a block.",
    ),
    Published(
        "memcached: TLB misses of the kernel in 1000 of its instructions",
        "-28.5 %",
        "AmpereOne, 192 cores, 256 GB, pages of 4 KiB",
        group_of(CACHE, ON_SCATTERED),
        PER_1000["l1"],
        side=ALONE.label,
        remark="Which event was counted is not known; ours are misses of L1. A machine with 192 "
        "cores has more that misses, which large leaves do not save.",
    ),
)

EXPERIMENT = Experiment(
    name="tlb-reach",
    feature="all features",
    title="What large leaves save: misses of the TLB, and descriptors loaded for them",
    parts=parts,
    quantities=quantities,
    columns=COLUMNS,
    published=PUBLISHED,
    limits=(
        "Time. A miss of L1 that hits L2 costs a few cycles, a walk whose descriptors are in a "
        "cache some tens, and one that goes to memory some hundreds.",
        "TLBs that replace entries otherwise than the least recently used one, that fetch "
        "translations before they are needed, or that walk on speculation.",
    ),
)
