"""What large leaves save: misses of TLBs, and descriptors that walks load, for each operation.

A model of TLBs counts them (docs/tlb-model.md), for several geometries at once. The workloads are
a cached file that is read in order, fio that writes blocks at random through dm-crypt to a ramdisk,
and memcached over the loopback device. Each is counted with few operations and with many:
the difference is divided by the difference of operations, so that what a program costs to begin
and to end is in no figure.

In the part `fresh` memory is as it is after boot, where what is allocated together lies together.
In the others free memory is scattered over the guest's before anything else happens (scatter.c), as
it is on a server after a while. In `churned` modules have come and gone besides, with folding and
without.

Tables have four levels, as on the CPUs whose geometries are simulated: QEMU's own has 52 bits. All
sides have KFENCE's pool since boot (see host/leaves.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leaves import EARLY_KFENCE
from workloads import CRYPT_DISK, LOAD_UNLOAD, MEMCACHED_BEGINS, MEMCACHED_ENDS

from pagewright.guest.programs import TESTS
from pagewright.kernel.modules import FOLDER
from pagewright.machine import tlb
from pagewright.machine.options import DEFAULT_CPU
from pagewright.results.experiment import (
    Experiment,
    Part,
    Published,
    Quantity,
    Side,
    Values,
    Work,
)

BASE = Side("base", "base-4k")
BASE_ON = Side("rodata=on", "base-4k", "rodata=on")
# Only the feature that is about large leaves: percpu-local maps what belongs to a CPU once more,
# and that takes entries of its own.
_ALONE = "percpu_local_map=0"
ALONE = Side("linear-map alone", "patched-4k", _ALONE)
NO_FOLDING = Side("alone, no folding", "patched-4k", f"{_ALONE} arm64.linear_map_fold=0")
PATCHED = Side("patched", "patched-4k")
COLUMNS = [side.label for side in (BASE, BASE_ON, NO_FOLDING, ALONE, PATCHED)]

COUNT = f"/{TESTS}/percpu-local/count"
SCATTER = "features/linear-map/bench/scatter.c"

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

# TLBs are simulated from the first count on.
BEGIN = f"""
set -e
sed -n 's/^\\(DirectMap[^:]*\\): *\\([0-9]*\\) kB/\\1=\\2/p' /proc/meminfo
{COUNT} true >/dev/null
"""
SCATTERED = f"insmod /{FOLDER}/scatter.ko || exit\n"

READ = f"""
set -e
{COUNTED}
dd if=/dev/zero of=/var/tmp/file bs=1M count=MANY 2>/dev/null
cat /var/tmp/file >/dev/null
read() {{ counted $1 dd if=/var/tmp/file of=/dev/null bs=64k count=$(($2 * 16)) 2>/dev/null; }}
read warm FEW
read few FEW
read many MANY
rm /var/tmp/file
"""

CRYPT = f"""{COUNTED}{CRYPT_DISK}
blocks() {{ counted $1 sh -c "$(write 16M) --io_size=$2k >/dev/null"; }}
blocks warm FEW
blocks few FEW
blocks many MANY
dmsetup remove crypt
"""

MEMCACHED = f"""{COUNTED}{MEMCACHED_BEGINS}
both() {{ counted $1 sh -c "$(load set $2) >/dev/null && $(load get $2) >/dev/null"; }}
both warm FEW
both few FEW
both many MANY
{MEMCACHED_ENDS}"""

CACHED, FIO, CACHE = "cached file", "fio on dm-crypt", "memcached"
# By the name of their group: the command, few and many (quick, and in full), how many operations
# one of them is, and what an operation is.
WORKLOADS: dict[str, tuple[str, int, int, int, float, str]] = {
    CACHED: (READ, 1, 9, 65, 256, "4 KiB read"),
    FIO: (CRYPT, 64, 1024, 2112, 1 / 4, "4 KiB written"),
    CACHE: (MEMCACHED, 100, 200, 1100, 2, "set or get"),
}

# Modules come and go; files that stay for a while make their pages come from ever new places.
CHURN = f"""
for turn in $(seq SIZE); do
	head -c $((turn % 13 * 100000)) /dev/zero >/tmp/hold.$((turn % 7))
	{LOAD_UNLOAD} || exit
done
rm -f /tmp/hold.*
sleep 5
"""


def command(text: str, few: int, many: int) -> str:
    """Fill in how much is done."""
    return text.replace("FEW", str(few)).replace("MANY", str(many))


def parts(quick: bool) -> list[Part]:
    """Return what runs where."""
    options: Mapping[str, Any] = {
        "icount": True,
        "tlb": True,
        "smp": 1,
        "cpu": f"{DEFAULT_CPU},lpa2=off",
        "memory": "2G" if quick else "16G",
        "append": f"{EARLY_KFENCE} brd.rd_size=16384",
    }
    scattered = {**options, "modules_from": (SCATTER,)}
    works = {
        where: [
            Work(f"{name}{where}", command(text, few, small if quick else full), 1800)
            for name, (text, few, small, full, _, _) in WORKLOADS.items()
        ]
        for where in (FRESH, ON_SCATTERED, ON_CHURNED)
    }
    churn = CHURN.replace("SIZE", "5" if quick else "40")
    begin = Work("begin", BEGIN)
    begin_scattered = Work("begin, memory scattered", f"{SCATTERED}{BEGIN}", 900)
    begin_churned = Work("begin, modules churned", f"{SCATTERED}{churn}{BEGIN}", 1800)
    sides = (BASE, BASE_ON, ALONE, PATCHED)
    churned = [begin_churned, *works[ON_CHURNED]]
    return [
        Part("scattered", scattered, [begin_scattered, *works[ON_SCATTERED]], sides),
        Part("churned", scattered, churned, (BASE, NO_FOLDING, ALONE)),
        Part("fresh", options, [begin, *works[FRESH]], sides),
    ]


# Where a workload runs, after its name.
FRESH, ON_SCATTERED, ON_CHURNED = "", ", memory scattered", ", memory scattered, modules churned"

GEOMETRIES = [geometry.name for geometry in tlb.read()]
# The one that the published figures are nearest to.
USUAL = "neoverse-n1"
KERNEL_DATA = ("linear", "other", "for-user")
DATA = (*KERNEL_DATA, "user")
KERNEL = (*KERNEL_DATA, "kernel-code")
EVENTS = {
    "l1": ("L1 misses", "misses"),
    "l2": ("L2 misses", "misses"),
    "loads": ("descriptors loaded", "loads"),
}
ALL_DATA = f"{USUAL}, kernel and programs: L1 misses"
PER_1000 = {
    event: f"{USUAL}, kernel: {EVENTS[event][0]} in 1000 of its instructions"
    for event in ("l1", "l2")
}


def row(geometry: str, event: str, of: str = "kernel data") -> str:
    """Name a row."""
    return f"{geometry}, {of}: {EVENTS[event][0]}"


def difference(values: Values, key: str) -> int:
    """Return how much more of something there was with many operations than with few."""
    return int(values[f"many {key}"]) - int(values[f"few {key}"])


def quantities(side: str, work: str, values: Values) -> Iterator[Quantity]:
    """Make the numbers of a work."""
    name = work.partition(",")[0]
    if name not in WORKLOADS:
        return
    operations = WORKLOADS[name][4]
    group = group_of(name, work.removeprefix(name))
    done = operations * (int(values["many"]) - int(values["few"]))

    def each(geometry: str, event: str, classes: tuple[str, ...]) -> float:
        keys = (f"{geometry} {one} {event}" for one in classes)
        return sum(difference(values, key) for key in keys) / done

    for event, (_, unit) in EVENTS.items():
        for geometry in GEOMETRIES:
            yield Quantity(group, row(geometry, event), unit, each(geometry, event, KERNEL_DATA))
    for event in ("l1", "l2"):
        of = "linear map"
        yield Quantity(group, row(USUAL, event, of), "misses", each(USUAL, event, ("linear",)))
    yield Quantity(group, ALL_DATA, "misses", each(USUAL, "l1", DATA))
    instructions = difference(values, "kernel") / done
    for event, name_of_row in PER_1000.items():
        of_kernel = 1000 * each(USUAL, event, KERNEL) / instructions
        yield Quantity(group, name_of_row, "misses", of_kernel)
    yield Quantity(group, "instructions of the kernel", "instructions", instructions)


def group_of(name: str, where: str) -> str:
    """Name the table of a workload."""
    return f"{name}{where}: misses for each {WORKLOADS[name][5]}"


PUBLISHED = (
    Published(
        "fio, with the linear map in blocks instead of pages: misses of the data TLB by loads",
        "-76 % (1,818,320,693 to 438,729,774)",
        "arm64 server, 2022",
        group_of(FIO, ON_SCATTERED),
        row(USUAL, "l1"),
        side=ALONE.label,
        remark="Ours is of kernel data. Hardware counted the program's misses too: of ours, what "
        "the program misses to begin differs by more than what it misses for a block.",
    ),
    Published(
        "memcached: TLB misses of the kernel per 1000 instructions",
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
    feature="linear-map",
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
