"""What this_cpu operations cost, and what they cost whole workloads.

What is run:

- Operations: a module executes each of them many times (percpu_bench.c says how it
  counts) on kernels with a preemption count, for preempt=full and preempt=voluntary, and on
  kernels without one.
- Workloads, with 4 and 8 CPUs: instructions of the kernel, on all CPUs and in whatever
  context, from the beginning of a workload to its end, and those of programs, which should
  not differ. QEMU counts each by its address (count.c), so neither depends on ticks or on
  how a task's time is accounted, and an idle CPU counts nothing. Workloads that differ most
  from run to run and take least have more runs.
- Operations of a kernel that Clang has compiled, where the choice computes the address.
- Restartable sequences, another design: its operations on 8 bytes (percpu_restartable.c), without
  what the kernel would do when it preempts a task.
- Forms that were not made: raw_cpu operations on local addresses, and a local region near the
  image, beside raw_cpu operations as they are.
- How often a workload calls what updates the statistics of memory cgroups, which is not done with
  this_cpu operations in 6.12.

Sides: base is the unpatched kernel, without the patched one with this feature's symbol off
(which tells what this feature changes from what others do), off the patched one with
percpu_local_map=0. Those of other builds have labels of the form "BUILD, SIDE", and tables of
their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from percpu_calls import CALLS_IN, counted, counting
from percpu_workloads import COMPILE, COMPILE_SETUP, COUNT, TESTS, loopback

from pagewright.kernel.modules import FOLDER
from pagewright.results.experiment import (
    BASE,
    PATCHED,
    Experiment,
    Means,
    Part,
    Published,
    Quantity,
    Side,
    Values,
    Work,
)

WITHOUT = Side("without", "patched-4k-without-percpu-local")
OFF = Side("off", "patched-4k", "percpu_local_map=0")
# Without a preemption count, as Debian's kernels are.
UNCOUNTED = (
    Side("voluntary, without", "patched-voluntary-4k-without-percpu-local"),
    Side("voluntary, off", "patched-voluntary-4k", "percpu_local_map=0"),
    Side("voluntary, patched", "patched-voluntary-4k"),
)
# Another design on the unpatched kernel, which has as many instructions on any.
RESTARTABLE = Side("restartable", "base-4k")
# The compiler knows asm goto with an output.
CLANG = Side("Clang", "clang-4k")
# Forms of reading and adding, on the patched kernel, each in a module of that name.
FORMS = {
    "percpu_raw": Side("raw", "patched-4k"),
    "percpu_raw_local": Side("raw local", "patched-4k"),
    "percpu_raw_offset": Side("raw offset", "patched-4k"),
    "percpu_near": Side("near", "patched-4k"),
    "percpu_near_compiled": Side("near compiled", "patched-4k"),
}
COLUMNS = (
    *("base", "without", "off", "patched", CLANG.label, RESTARTABLE.label),
    *(side.label for side in (*UNCOUNTED, *FORMS.values())),
)

MODULE = "percpu_bench"
SOURCE = f"features/percpu-local/linux/lib/{MODULE}.c"

# The same with the sequences of the other design; the file has the same name.
SEQUENCES = "percpu_restartable"

OPERATIONS = f"""
set -e
insmod /{FOLDER}/COUNTER.ko
grep 'ONLY=' /sys/kernel/debug/{MODULE}
rmmod COUNTER
"""
HOW = {"static": "static variable", "dynamic": "through a pointer"}
# What the module prints for each, in its order.
PLACES = ("in a function of its own", "each further one in a function")
# What the forms have: one operation on a static variable. The number of further ones is cut off,
# because a compiler can make one of several that are no assembly.
FORM = f"""
set -e
insmod /{FOLDER}/COUNTER.ko
sed -nE 's/^((read|inc|add) 8 static=[0-9.]+) .*/\\1/p' /sys/kernel/debug/{MODULE}
rmmod COUNTER
"""
# What the names of works begin with that count operations.
OPERATIONS_WITH = "operations, "
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
        runs: how many runs of the full variant have it.
    """

    name: str
    setup: str
    command: str
    quick: int
    full: int
    runs: int = 3

    def scripts(self, cpus: int, size: int) -> tuple[str, str]:
        """Return what runs before, and what is counted."""
        setup, command = (
            text.replace("SIZE", str(size)).replace("CPUS", str(cpus))
            for text in (self.setup, self.command)
        )
        return setup, command

    def work(self, cpus: int, size: int) -> Work:
        """Return the work that runs and counts it."""
        setup, command = self.scripts(cpus, size)
        script = f"set -e\n{setup}\n{COUNT} {command}\n"
        return Work(f"{self.name}, {cpus} CPUs", script, timeout=3600, runs=self.runs)


def stress(name: str, options: str, quick: int, full: int, runs: int = 3) -> Workload:
    """Return a workload of stress-ng with a fixed seed, which first runs for a moment."""
    command = f"stress-ng --quiet --no-rand-seed {options}"
    setup = command.replace("SIZE", "1")
    return Workload(f"stress-ng --{name}", setup, command, quick, full, runs)


# For workloads of seconds.
MANY = 13


def tcp(name: str, full: int) -> Workload:
    """Return a workload of a TCP connection, which first is run for a moment."""
    command = loopback(name)
    return Workload(f"TCP {name}", command.replace("SIZE", "1"), command, 0, full, MANY)


# Those that only the first runs have come last: they leave memory otherwise than they found it.
WORKLOADS = (
    stress("vm", "--vm CPUS --vm-ops SIZE --vm-bytes 16m", 0, 8000, MANY),
    stress("mmapfork", "--mmapfork 1 --mmapfork-ops SIZE", 0, 1, MANY),
    tcp("requests", 4000),
    tcp("stream", 400),
    stress("fork", "--fork CPUS --fork-ops SIZE", 100, 2000),
    Workload("create memcgs", "", f"{TESTS}/memcgs create SIZE", 1000, 10000),
    Workload("remove memcgs", "", f"{TESTS}/memcgs remove SIZE", 1000, 10000),
    Workload("compile in a memcg", COMPILE_SETUP, COMPILE, 0, 8),
)


def operations(
    name: str, model: str, quick: bool, sides: Sequence[Side] = (), also: Sequence[Side] = ()
) -> Part:
    """Return the part that counts the operations with one preemption model."""
    append = model if model.startswith("preempt=") else ""
    command = OPERATIONS.replace("ONLY", " 8 static" if quick else "").replace("COUNTER", MODULE)
    options = {"icount": True, "smp": 2, "append": append, "modules_from": (SOURCE,)}
    works = [Work(f"{OPERATIONS_WITH}{model}", command, timeout=600)]
    return Part(name, options, works, sides, also)


def sequences() -> Part:
    """Return the part that counts restartable sequences: of operations on 8 bytes."""
    command = OPERATIONS.replace("ONLY", " 8 .*").replace("COUNTER", SEQUENCES)
    options = {
        "icount": True,
        "smp": 2,
        "append": MODELS[0],
        "modules_from": (f"features/percpu-local/{SEQUENCES}.c",),
    }
    works = [Work(f"{OPERATIONS_WITH}{MODELS[0]}", command, timeout=600)]
    return Part("operations-restartable", options, works, (RESTARTABLE,))


def form(name: str) -> Part:
    """Return the part that counts a form that the feature does not have, or raw_cpu operations."""
    options = {
        "icount": True,
        "smp": 2,
        "append": MODELS[0],
        "modules_from": (f"features/percpu-local/{name}.c",),
    }
    works = [Work(f"{OPERATIONS_WITH}{MODELS[0]}", FORM.replace("COUNTER", name), timeout=600)]
    part = name.replace("percpu_", "operations-").replace("_", "-")
    return Part(part, options, works, (FORMS[name],))


def calls(cpus: int) -> Part:
    """Return the part that counts calls, of the workloads with memory cgroups."""
    works = [
        counting(workload.name, *workload.scripts(cpus, workload.full))
        for workload in WORKLOADS
        if "memcg" in workload.name
    ]
    return Part(f"calls-{cpus}", {"icount": True, "memory": "2G", "smp": cpus}, works, (PATCHED,))


def workloads(quick: bool) -> Iterator[Part]:
    """Return a part for each number of CPUs."""
    kinds: list[tuple[str, int, tuple[Side, ...]]] = [("workloads-4", 4, (BASE, PATCHED))]
    if not quick:
        kinds = [
            ("workloads-4", 4, (WITHOUT, OFF, PATCHED)),
            ("workloads-8", 8, (WITHOUT, PATCHED)),
            ("workloads-uncounted", 4, (UNCOUNTED[0], UNCOUNTED[2])),
        ]
    for name, cpus, sides in kinds:
        options = {"icount": True, "count": True, "memory": "2G", "smp": cpus}
        sized = [(workload, workload.quick if quick else workload.full) for workload in WORKLOADS]
        works = [workload.work(cpus, size) for workload, size in sized if size]
        yield Part(name, options, works, sides, runs=1 if quick else MANY)


def parts(quick: bool) -> list[Part]:
    """Return what runs where; `make` shows the first part alone."""
    full, voluntary, no_count = MODELS
    found = [operations("operations", full, quick, also=(OFF,))]
    if not quick:
        three = (BASE, OFF, PATCHED)
        found.append(operations("operations-voluntary", voluntary, quick, three))
        found.append(operations("operations-uncounted", no_count, quick, UNCOUNTED))
        found.append(operations("operations-clang", full, quick, (CLANG,)))
        found.append(sequences())
        found += map(form, FORMS)
        found.append(calls(4))
    return [*found, *workloads(quick)]


def quantities(side: str, work: str, values: Values) -> Iterator[Quantity]:
    """Make the numbers of an operation, or of a workload."""
    if work.startswith(OPERATIONS_WITH):
        # Forms have a table of their own.
        kind = "forms" if side in (form.label for form in FORMS.values()) else "instructions"
        yield from per_operation(kind, work.removeprefix(OPERATIONS_WITH), values)
        return
    if work.startswith(CALLS_IN):
        yield from counted(work.removeprefix(CALLS_IN), values)
        return
    # Kernels of other builds have tables of their own.
    build = side.rpartition(", ")[0]
    workload, _, cpus = work.rpartition(", ")
    where = f"{cpus}, {build}" if build else cpus
    for group, key in (("of the kernel", "kernel"), ("of programs", "user")):
        count = int(values[key]) / 1e6
        yield Quantity(f"instructions {group}, {where}", workload, "million", count)


def per_operation(kind: str, model: str, values: Values) -> Iterator[Quantity]:
    """Make the instructions of each operation, in each place and of each kind of variable."""
    for index, place in enumerate(PLACES):
        for how, found in HOW.items():
            group = f"{kind}, {model}, {found}, {place}"
            for key, counts in values.items():
                numbers = counts.split()
                if key.endswith(f" {how}") and index < len(numbers):
                    name = key.removesuffix(f" {how}")
                    yield Quantity(group, name, "instructions", float(numbers[index]))


def summary(means: Means) -> str:
    """Say what operations on 8 bytes take."""
    group = f"instructions, {MODELS[0]}, {HOW['static']}, {PLACES[0]}"
    inc, cmpxchg = means[group, "inc 8"], means[group, "cmpxchg 8"]
    return (
        f"this_cpu_inc() takes {inc['on']:.0f} instructions instead of {inc['off']:.0f}, "
        f"this_cpu_cmpxchg() {cmpxchg['on']:.0f} instead of {cmpxchg['off']:.0f}"
    )


FEWER = "6.12 updates its memcg statistics with __this_cpu_add(), which this feature leaves alone, \
so it has fewer operations to save."
PUBLISHED = tuple(
    Published(
        what,
        figure,
        "AmpereOne, 160 cores, Linux 7.1-rc1, in time",
        "instructions of the kernel, 4 CPUs",
        row,
        reference="without",
        remark=remark,
    )
    for what, figure, row, remark in (
        (
            "compiling in a memcg",
            "system time -13 to -18 %, wall time -3 to -7 %",
            "compile in a memcg",
            FEWER,
        ),
        ("stress-ng --vm", "8.5 % better", "stress-ng --vm", ""),
        ("stress-ng --mmapfork", "15 % better", "stress-ng --mmapfork", ""),
        ("stress-ng --fork", "about 1 % slower, with a tiny address space", "stress-ng --fork", ""),
        ("creating 10000 memcgs", "no slower", "create memcgs", ""),
    )
)

EXPERIMENT = Experiment(
    name="percpu-local",
    feature="percpu-local",
    title="What this_cpu operations cost, and what they cost whole workloads",
    parts=parts,
    quantities=quantities,
    summary=summary,
    columns=COLUMNS,
    published=PUBLISHED,
    limits=(
        "Time: what goes is a chain of loads and stores in front of an atomic instruction, and "
        "what stays of a workload are mostly cheap instructions. Neither figure can be had from "
        "the other.",
        "What the second view of per-CPU data costs in TLB entries. A page that is used through "
        "both takes two. `pagewright bench tlb-reach` has a model of it.",
    ),
)
