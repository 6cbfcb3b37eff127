"""What this_cpu operations cost, and what they cost whole workloads.

Two parts:

- Operations: a module executes each of them many times (percpu_local_bench.c says how it
  counts) on kernels with a preemption count, for preempt=full and preempt=voluntary, and on
  kernels without one.
- Workloads, with 4 and 8 CPUs: instructions of the kernel, on all CPUs and in whatever
  context, from the beginning of a workload to its end, and those of programs, which should
  not differ. QEMU counts each by its address (counter.c), so neither depends on ticks or on
  how a task's time is accounted, and an idle CPU counts nothing. Each run is a boot of its
  own, and the sides take turns; those that differ most and take least have more runs. The
  standard error is that of the mean of one side's runs.

Sides: base is the unpatched kernel, without the patched one with this feature's symbol off
(which tells what this feature changes from what others do), off the patched one with
percpu_local_map=0. Those of other builds have labels of the form "BUILD, SIDE", and tables of
their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import sqrt
from statistics import mean, median, stdev

from pagewright.kernel.modules import FOLDER
from pagewright.results.measure import Experiment, Figure, Part, Side, Values, Work

BASE = Side("base", "base-4k")
WITHOUT = Side("without", "patched-4k-without-percpu-local")
OFF = Side("off", "patched-4k", "percpu_local_map=0")
PATCHED = Side("patched", "patched-4k")
# Without a preemption count, as Debian's kernels are.
UNCOUNTED = (
    Side("voluntary, without", "patched-voluntary-4k-without-percpu-local"),
    Side("voluntary, off", "patched-voluntary-4k", "percpu_local_map=0"),
    Side("voluntary, patched", "patched-voluntary-4k"),
)
# Tables compare their last column with their first; "on" is what `make` calls patched.
ORDER = ("base", "without", "off", "patched", "on")

MODULE = "percpu_local_bench"
SOURCE = f"features/percpu-local/linux/arch/arm64/mm/{MODULE}.c"
TESTS = "/usr/lib/tests/percpu-local"
COUNT = f"{TESTS}/count"

OPERATIONS = f"""
set -e
insmod /{FOLDER}/{MODULE}.ko
grep 'ONLY=' /sys/kernel/debug/{MODULE}
rmmod {MODULE}
"""
HOW = {"static": "static variable", "dynamic": "through a pointer"}
# What the module prints for each, in its order.
PLACES = ("in a function of its own", "each further one in a function")
MODELS = ("preempt=full", "preempt=voluntary", "no preemption count")


@dataclass(frozen=True)
class Workload:
    """What is run while instructions are counted.

    Attributes:
        name: the row.
        setup: runs before, not counted: also what brings programs into memory.
        command: is counted. Both have CPUS and SIZE filled in.
        quick: size of the quick variant; 0 if it has none.
        full: size of the full one.
        runs: how often the full one runs.
    """

    name: str
    setup: str
    command: str
    quick: int
    full: int
    runs: int = 3

    def work(self, cpus: int, size: int, run: int) -> Work:
        """Return the work of one run."""
        script = f"set -e\n{self.setup}\n{COUNT} {self.command}\n"
        script = script.replace("SIZE", str(size)).replace("CPUS", str(cpus))
        return Work(f"{self.name}, {cpus} CPUs, run {run}", script, timeout=3600)

    def printed(self, works: dict[str, Values], cpus: int) -> list[Values]:
        """Return what each run printed, of all works of a side."""
        return [v for name, v in works.items() if name.startswith(f"{self.name}, {cpus} CPUs")]


def stress(name: str, options: str, quick: int, full: int, runs: int = 3) -> Workload:
    """Return a workload of stress-ng with a fixed seed, which first runs for a moment."""
    command = f"stress-ng --quiet --no-rand-seed {options}"
    setup = command.replace("SIZE", "1")
    return Workload(f"stress-ng --{name}", setup, command, quick, full, runs)


# For workloads of seconds.
MANY = 13


def tcp(name: str, full: int) -> Workload:
    """Return a workload of a TCP connection, which first is run for a moment."""
    command = f"{TESTS}/loopback {name} 1 SIZE"
    return Workload(f"TCP {name}", command.replace("SIZE", "1"), command, 0, full, MANY)


COMPILE_FILES = (
    "stb_image stb_truetype stb_ds stb_sprintf stb_image_write stb_rect_pack stb_dxt stb_perlin"
)
# Single-file C libraries, each compiled by a gcc of its own.
COMPILE_SETUP = f"""
mkdir -p /tmp/compile /sys/fs/cgroup/compile
cd /tmp/compile
for name in {COMPILE_FILES}; do
	upper=$(echo $name | tr a-z A-Z)
	printf '#define %s_IMPLEMENTATION\\n#include <stb/%s.h>\\n' $upper $name >$name.c
done
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
gcc -O0 -c stb_dxt.c
"""
COMPILE = f"""sh -c '
	echo $$ >/sys/fs/cgroup/compile/cgroup.procs
	for name in $(echo {COMPILE_FILES} | cut -d " " -f 1-SIZE); do
		echo $name.c
	done | busybox xargs -n 1 -P CPUS gcc -O0 -c'
"""

WORKLOADS = (
    stress("vm", "--vm CPUS --vm-ops SIZE --vm-bytes 16m", 0, 8000, MANY),
    stress("mmapfork", "--mmapfork 1 --mmapfork-ops SIZE", 0, 1, MANY),
    stress("fork", "--fork CPUS --fork-ops SIZE", 100, 2000),
    Workload("create memcgs", "", f"{TESTS}/memcgs create SIZE", 100, 10000),
    Workload("remove memcgs", "", f"{TESTS}/memcgs remove SIZE", 100, 10000),
    Workload("compile in a memcg", COMPILE_SETUP, COMPILE, 0, 8),
    tcp("requests", 4000),
    tcp("stream", 400),
)


def operations(model: str, sides: tuple[Side, ...], quick: bool) -> Part:
    """Return the part that counts the operations with one preemption model."""
    append = model if model.startswith("preempt=") else ""
    command = OPERATIONS.replace("ONLY", " 8 static" if quick else "")
    options = {"icount": True, "smp": 2, "append": append, "modules_from": (SOURCE,)}
    return Part(options, [Work(f"operations, {model}", command, timeout=600)], sides)


def workloads(quick: bool) -> Iterator[Part]:
    """Return a boot for each run, with each number of CPUs."""
    kinds: list[tuple[int, tuple[Side, ...]]] = [(4, (BASE, PATCHED))]
    if not quick:
        kinds = [
            (4, (WITHOUT, OFF, PATCHED)),
            (8, (WITHOUT, PATCHED)),
            (4, (UNCOUNTED[0], UNCOUNTED[2])),
        ]
    for cpus, sides in kinds:
        options = {"icount": True, "count": True, "memory": "2G", "smp": cpus}
        for run in range(1 if quick else MANY):
            sized = [(w, w.quick if quick else w.full) for w in WORKLOADS if run < w.runs]
            yield Part(options, [w.work(cpus, size, run) for w, size in sized if size], sides)


def parts(quick: bool) -> list[Part]:
    """Return what runs where; `make` shows the first part alone."""
    full, voluntary, no_count = MODELS
    found = [operations(full, (), quick), operations(full, (OFF,), quick)]
    if not quick:
        found.append(operations(voluntary, (BASE, OFF, PATCHED), quick))
        found.append(operations(no_count, UNCOUNTED, quick))
    return [*found, *workloads(quick)]


def figures(values: dict[str, dict[str, Values]]) -> list[Figure]:
    """Make the tables of all parts that ran."""
    found: list[Figure] = []
    for build in dict.fromkeys(label.rpartition(", ")[0] for label in values):
        sides = [side for side in values if side.rpartition(", ")[0] == build]
        sides.sort(key=lambda side: ORDER.index(side.rpartition(", ")[2]))
        chosen = {side: values[side] for side in sides}
        suffix = f", {build}" if build else ""
        found += operation_figures(chosen)
        found += workload_figures(chosen, suffix)
    return found


def ran(values: dict[str, dict[str, Values]], work: str) -> dict[str, Values]:
    """Return what a work printed on each side that ran it."""
    return {side: works[work] for side, works in values.items() if work in works}


def operation_figures(values: dict[str, dict[str, Values]]) -> Iterator[Figure]:
    """Make the tables of the operations."""
    for model in MODELS:
        printed = ran(values, f"operations, {model}")
        for index, place in enumerate(PLACES):
            for how, found in HOW.items():
                group = f"instructions, {model}, {found}, {place}"
                for key in next(iter(printed.values()), {}):
                    if key.endswith(f" {how}"):
                        numbers = {s: float(v[key].split()[index]) for s, v in printed.items()}
                        yield Figure(group, key.removesuffix(f" {how}"), "instructions", numbers)


def workload_figures(values: dict[str, dict[str, Values]], suffix: str) -> Iterator[Figure]:
    """Make the tables of the workloads: medians of the runs, and how sure the mean is."""
    tables: list[tuple[str, str, Callable[[list[Values]], float]]] = [
        ("instructions of the kernel", "million", lambda runs: median(counts(runs, "kernel"))),
        ("instructions of programs", "million", lambda runs: median(counts(runs, "user"))),
        ("standard error of the kernel's", "%", lambda runs: error(counts(runs, "kernel"))),
    ]
    for cpus in (4, 8):
        for group, unit, get in tables:
            for workload in WORKLOADS:
                by_side = {side: workload.printed(works, cpus) for side, works in values.items()}
                numbers = {side: get(runs) for side, runs in by_side.items() if runs}
                if numbers:
                    yield Figure(f"{group}, {cpus} CPUs{suffix}", workload.name, unit, numbers)


def counts(runs: list[Values], key: str) -> list[float]:
    """Return a count of each run, in millions."""
    return [int(run[key]) / 1e6 for run in runs]


def error(numbers: list[float]) -> float:
    """Return the standard error of the mean of numbers, in percent of it."""
    if len(numbers) < 2:
        return 0
    return stdev(numbers) / sqrt(len(numbers)) / mean(numbers) * 100


EXPERIMENT = Experiment(
    name="percpu-local",
    feature="percpu-local",
    title="What this_cpu operations cost, and what they cost whole workloads",
    parts=parts,
    figures=figures,
)
