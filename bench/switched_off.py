"""What a kernel with all features costs while all of them are switched off by boot parameters.

Counted are the instructions of a boot, from reset until the first program starts, and of programs
that make much use of what the features touch. The sides are the unpatched kernel, the patched one
with all features switched off, on a processor that all of them could use and on one that linear-map
cannot, and the patched one as it is. One more is the patched kernel without percpu-local, switched
off: percpu-local leaves a branch in each per-CPU operation, and the others leave next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from workloads import COUNTER

from pagewright.host import workspace
from pagewright.machine.options import DEFAULT_CPU, UNLISTED_CPU
from pagewright.results.experiment import (
    BASE,
    Experiment,
    Part,
    Quantity,
    Side,
    Values,
    Work,
    off_and_on,
)

OFF, ON = off_and_on(workspace.find().features())
WITHOUT_PERCPU_LOCAL = Side(
    "off, without percpu-local", "patched-4k-without-percpu-local", OFF.append
)
SIDES = (BASE, WITHOUT_PERCPU_LOCAL, OFF, ON)

# What fork() costs depends on where the parts of the program lie. With random addresses the count
# of a program that forks differs by up to 2 % from one execution to another, also within one boot.
APPEND = f"nokaslr norandmaps init={COUNTER}"

# How often each program is executed in one boot. The median leaves out a round that was disturbed.
ROUNDS = 3

BOOT = 'echo "instructions=$BOOT_INSTRUCTIONS"'
# Each first runs a little, not counted, which brings programs into memory.
FORK = f"""
set -e
stress-ng --quiet --no-rand-seed --fork 1 --fork-ops 10
{COUNTER} stress-ng --quiet --no-rand-seed --fork 1 --fork-ops SIZE
"""
MMAP = f"""
set -e
stress-ng --quiet --no-rand-seed --mmap 1 --mmap-bytes 4m --mmap-ops 1
{COUNTER} stress-ng --quiet --no-rand-seed --mmap 1 --mmap-bytes 4m --mmap-ops SIZE
"""
HUGEPAGES = f"""
set -e
pool=/proc/sys/vm/nr_hugepages
echo 4 >$pool
echo 0 >$pool
{COUNTER} sh -c 'for turn in $(seq SIZE); do echo 256 >'$pool'; echo 0 >'$pool'; done'
test $(cat $pool) = 0
"""
# By the name of the row: the command, its size when quick and in full, and how often it runs.
PROGRAMS = {
    "until init runs": (BOOT, 1, 1, 1),
    "fork": (FORK, 100, 1000, ROUNDS),
    "mmap": (MMAP, 2, 20, ROUNDS),
    "allocate and free hugepages": (HUGEPAGES, 1, 10, ROUNDS),
}

# By how the processor is called in the tables.
PROCESSORS = {"with BBM level 2": DEFAULT_CPU, "without BBM level 2": UNLISTED_CPU}


def parts(quick: bool) -> list[Part]:
    """Return what runs where."""
    found = []
    for called, cpu in PROCESSORS.items():
        works = [
            Work(
                f"{name}, {called}",
                text.replace("SIZE", str(small if quick else full)),
                900,
                rounds,
            )
            for name, (text, small, full, rounds) in PROGRAMS.items()
        ]
        options = {"icount": True, "smp": 1, "memory": "2G", "append": APPEND, "cpu": cpu}
        runs = 1 if quick else 3
        found.append(Part(called.replace(" ", "-"), options, works, SIDES, runs=runs))
    return found


def quantities(side: str, work: str, values: Values) -> Iterator[Quantity]:
    """Make a row of each work, in the table of its processor."""
    name, called = work.split(", ")
    count = int(values["instructions"]) / 1e6
    yield Quantity(f"instructions on a processor {called}", name, "million", count)


EXPERIMENT = Experiment(
    name="switched-off",
    feature="all features",
    title="What a kernel with all features costs while they are switched off",
    parts=parts,
    quantities=quantities,
    columns=[side.label for side in SIDES],
    limits=(
        "What the features give where they are on: their savings in time hardly show in these "
        "programs. The experiments of the features show what each saves.",
    ),
)
