"""What HVO saves, and what it takes, one step of a hugepage's life after the other.

A guest with nearly all of its memory in 1 GiB pages: they are allocated, freed, allocated
once more, demoted to 2 MiB pages, and those are freed. Quick: 24 of them in 32 GiB; in
full: 600 in 640 GiB. Each side is a fresh boot:

- base: no HVO, which is what arm64 has;
- naive: HVO that just writes the entries, without break-before-make. It is wrong on
  hardware and right as a yardstick for instructions;
- pause: break-before-make while all other CPUs are paused;
- stop_machine: the same while they are stopped by stop_machine();
- seamless: no pause.

Instructions are those of the four processors together, from the beginning of a step to its
end, without the time that the processor that does the step was idle. A paused processor
waits for an event; under -icount that costs next to nothing, so what a pause takes from
other processors is told by its length, not by instructions.

With HVO off nobody should pay for it. Users of compound_head() are counted on kernels with
HVO switched off and the other features switched off as far as parameters can, next to base;
on a CPU that would be seamless and on one that would pause.

The steps once more on a CPU whose blocks cannot be split live, so that HVO pauses CPUs to split the
vmemmap, and changes all else without a pause. And how long its pauses are with many CPUs, as if an
instruction took a nanosecond, added up over all CPUs: they take turns in the emulator.

Memory is what MemFree grows by when the pages are allocated, beyond what the pages
themselves take, next to what the kernel says it saves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from workloads import COUNTER

from pagewright.guest.shell import SHORT_PAGE_LISTS
from pagewright.host import workspace
from pagewright.machine.options import LEVEL_0_CPU, UNLISTED_CPU
from pagewright.results.experiment import (
    BASE,
    Experiment,
    Means,
    Part,
    Published,
    Quantity,
    Side,
    Values,
    Work,
    off_and_on,
)

PAUSE = Side("pause", "patched-4k", "hugetlb_free_vmemmap=on hugetlb_vmemmap=pause")
SEAMLESS = Side("seamless", "patched-4k", "hugetlb_free_vmemmap=on hugetlb_vmemmap=seamless")
SIDES = (
    BASE,
    Side("naive", "naive-4k", "hugetlb_free_vmemmap=on"),
    PAUSE,
    Side("stop_machine", "patched-4k", f"{PAUSE.append} cpu_pause.stop_machine=1"),
    SEAMLESS,
)
OFF_SIDES = (BASE, off_and_on(workspace.find().features())[0])

# Works of the small part, which also is what `make` shows.
SMALL = "2 GiB in 6 GiB: "
# Works on a CPU without BBM level 2, and works that tell the pauses of a number of CPUs.
LEVEL_0 = "CPU without level 2: "
PAUSES_WITH = "24 x 1 GiB, pauses with "
PAUSED_SMP = (4, 64, 160)

GIANT = "/sys/kernel/mm/hugepages/hugepages-1048576kB"
LARGE = "/sys/kernel/mm/hugepages/hugepages-2048kB"

# Free memory includes what processors keep for themselves only if they keep little.
STEP = f"""
set -e
{SHORT_PAGE_LISTS}
hvo() {{ cat /sys/kernel/mm/hugetlb_vmemmap/$1 2>/dev/null || echo 0; }}
switches() {{ sed -n 's/^ctxt //p' /proc/stat; }}
free() {{ sed -n 's/^MemFree: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo; }}
ipis() {{
	sum=0
	while read -r name counts; do
		case $name in IPI*) for n in $counts; do
			case $n in *[!0-9]*) break ;; esac
			sum=$((sum + n))
		done ;; esac
	done </proc/interrupts
	echo $sum
}}
free0=$(free) switches0=$(switches) ipis0=$(ipis) pauses0=$(hvo pauses) total0=$(hvo total_pause_ns)
{COUNTER} sh -c 'COMMAND'
echo switches=$(($(switches) - switches0))
echo ipis=$(($(ipis) - ipis0))
echo pauses=$(($(hvo pauses) - pauses0))
echo total_pause_ns=$(($(hvo total_pause_ns) - total0))
echo longest_pause_ns=$(hvo longest_pause_ns)
echo free_gained=$(($(free) - free0))
echo bytes_saved=$(hvo bytes_saved)
echo giant=$(cat {GIANT}/nr_hugepages)
echo large=$(cat {LARGE}/nr_hugepages)
"""

# With fewer pages than were asked for a side would seem to take less.
ALLOCATE = f"echo NUMBER >{GIANT}/nr_hugepages; test $(cat {GIANT}/nr_hugepages) = NUMBER"
# By name: what is done with NUMBER pages of 1 GiB.
STEPS = {
    "allocate 1 GiB": ALLOCATE,
    "free 1 GiB": f"echo 0 >{GIANT}/nr_hugepages",
    "allocate 1 GiB again": ALLOCATE,
    "demote to 2 MiB": f"echo 2048kB >{GIANT}/demote_size; echo NUMBER >{GIANT}/demote",
    "free 2 MiB": f"echo 0 >{LARGE}/nr_hugepages",
}


# Named after the CPU: what uses compound_head() a lot.
HVO_OFF = "HVO off, "
USERS = {
    "look at each page": "dd if=/proc/kpagecount of=/dev/null bs=1M 2>/dev/null",
    "start 50 programs": "sh -c 'for i in $(seq 50); do /bin/true; done'",
    "write and remove a file": "sh -c 'head -c 64M /dev/zero >/tmp/file; rm /tmp/file'",
    "allocate and free 2 MiB": f"sh -c 'for n in 64 0; do echo $n >{LARGE}/nr_hugepages; done'",
}


def off(part: str, which: str, **machine: str) -> Part:
    """Return the part that shows what HVO costs when it is off, on a CPU."""
    works = [
        Work(f"{HVO_OFF}{which}: {name}", f"{COUNTER} {command}", rounds=9)
        for name, command in USERS.items()
    ]
    return Part(part, {"icount": True, "smp": 1, **machine}, works, OFF_SIDES)


def steps(number: int, prefix: str = "") -> list[Work]:
    """Return the steps with a number of gigantic pages."""
    return [
        Work(
            f"{prefix}{name}",
            STEP.replace("COMMAND", command.replace("NUMBER", str(number))),
            timeout=1800,
        )
        for name, command in STEPS.items()
    ]


def many_cpus() -> Iterator[Part]:
    """Return a part for each number of CPUs, on which 24 gigantic pages come and go."""
    for smp in PAUSED_SMP:
        options = {"icount": True, "memory": "32G", "smp": smp, "cpu": LEVEL_0_CPU}
        works = steps(24, f"{PAUSES_WITH}{smp} CPUs: ")
        yield Part(f"pauses-{smp}", options, works, (SEAMLESS, PAUSE))


def parts(quick: bool) -> list[Part]:
    """Return one boot per side, and the steps on it; and a small one of what is compared."""
    memory, number = ("32G", 24) if quick else ("640G", 600)
    large = {"icount": True, "memory": memory, "smp": 4}
    level_0 = Part(
        "large-level-0", {**large, "cpu": LEVEL_0_CPU}, steps(number, LEVEL_0), (BASE, SEAMLESS)
    )
    return [
        Part("small", {"icount": True, "memory": "6G", "smp": 4}, steps(2, SMALL)),
        off("off-level-2", "CPU with level 2"),
        off("off-level-0", "CPU without", cpu=UNLISTED_CPU),
        Part("large", large, steps(number), SIDES),
        *([] if quick else [level_0, *many_cpus()]),
    ]


def pages(step: Values) -> float:
    """Return the hugepages after a step, in GiB."""
    return int(step["giant"]) + int(step["large"]) / 512


def gained(step: Values) -> float:
    """Return what MemFree has grown by, beyond the hugepages, in MiB."""
    return (int(step["free_gained"]) + pages(step) * 1024 * 1024) / 1024


SAVING = [name for name in STEPS if not name.startswith("free")]
INSTRUCTIONS = "instructions"
PAUSES = "pauses"
LONGEST = "longest pause so far"
SAVED = "saved, says the kernel"
PAGES = "hugepages after the step"
# Tables: the group, the unit, the steps that are rows, and what is told of each.
TABLES: list[tuple[str, str, list[str], Callable[[Values], float]]] = [
    (INSTRUCTIONS, "million", list(STEPS), lambda v: int(v["instructions"]) / 1e6),
    (PAGES, "GiB", list(STEPS), pages),
    (PAUSES, "pauses", list(STEPS), lambda v: int(v["pauses"])),
    ("time paused", "us", list(STEPS), lambda v: int(v["total_pause_ns"]) / 1e3),
    (LONGEST, "us", list(STEPS), lambda v: int(v["longest_pause_ns"]) / 1e3),
    ("switches between tasks", "switches", list(STEPS), lambda v: int(v["switches"])),
    ("interrupts between processors", "IPIs", list(STEPS), lambda v: int(v["ipis"])),
    ("MemFree gained beyond the pages", "MiB", ["allocate 1 GiB"], gained),
    (SAVED, "MiB", SAVING, lambda v: int(v["bytes_saved"]) / (1 << 20)),
]


# By how the name of a work begins: which of them are told. Of others all are.
SHOWN = {
    SMALL: (INSTRUCTIONS, PAGES, SAVED),
    LEVEL_0: (INSTRUCTIONS, PAGES, PAUSES, LONGEST),
    PAUSES_WITH: (PAGES, PAUSES, LONGEST),
}


def quantities(side: str, work: str, values: Values) -> Iterator[Quantity]:
    """Make a number of each quantity, for a row a step."""
    if work.startswith(HVO_OFF):
        cpu, name = work.split(": ")
        group = f"{cpu}: {INSTRUCTIONS}"
        yield Quantity(group, name, "million", int(values[INSTRUCTIONS]) / 1e6)
        return
    # The steps have no colon in their names, and what comes before them is said of all.
    step = work.rpartition(": ")[2]
    prefix = work.removesuffix(step)
    shown = next((groups for start, groups in SHOWN.items() if prefix.startswith(start)), None)
    for group, unit, steps_shown, get in TABLES:
        if step in steps_shown and (shown is None or group in shown):
            yield Quantity(prefix + group, step, unit, get(values))


def summary(means: Means) -> str:
    """Say what HVO saves of pages of 1 GiB, whole and demoted."""
    there = means[SMALL + PAGES, "allocate 1 GiB"]["on"]
    whole = means[SMALL + SAVED, "allocate 1 GiB"]["on"]
    demoted = means[SMALL + SAVED, "demote to 2 MiB"]["on"]
    return (
        f"{whole / there:.0f} MiB back of each GiB in hugepages of 1 GiB, "
        f"{demoted / there:.0f} MiB in hugepages of 2 MiB"
    )


# The publication does not name the machine. There pauses are compared with HVO that writes
# entries without break-before-make, in time; each pair of ours is of the same two.
WHERE = "a server that is not named, in time"
PUBLISHED = tuple(
    Published(
        f"600 x 1 GiB: {what}",
        figure,
        WHERE,
        INSTRUCTIONS,
        step,
        side,
        "naive",
        remark,
    )
    for what, figure, step, side, remark in (
        ("allocate, with pauses", "3.526 s, then 3.779 s: +7 %", "allocate 1 GiB", "pause", ""),
        ("allocate, seamless", "none", "allocate 1 GiB", "seamless", ""),
        ("free, with pauses", "0.880 s, then 0.940 s: +7 %", "free 1 GiB", "pause", ""),
        (
            "demote to 307,200 x 2 MiB, with pauses",
            "1.575 s, then 5.132 s: +326 %",
            "demote to 2 MiB",
            "pause",
            "There is a pause for each page; here one pause serves thousands of entries.",
        ),
        ("demote, seamless", "none", "demote to 2 MiB", "seamless", ""),
        (
            "free those, with pauses",
            "0.946 s, then 4.456 s: +471 %",
            "free 2 MiB",
            "pause",
            "The same.",
        ),
        ("free those, seamless", "none", "free 2 MiB", "seamless", ""),
    )
)

EXPERIMENT = Experiment(
    name="hugetlb-vmemmap",
    feature="hugetlb-vmemmap",
    title="What HVO saves and takes, step by step",
    parts=parts,
    quantities=quantities,
    summary=summary,
    # The code of other architectures, which follows no rules of arm64, and works page by page.
    yardstick="naive",
    published=PUBLISHED,
    limits=(
        "How long a pause is: its length is given as if an instruction took a nanosecond, and a "
        "CPU that waits counts nothing. A real one may have to come out of a deep idle state.",
        "What the invalidations, barriers and interrupts of a pause or of a seamless change take.",
        "That naive is wrong: on hardware it may crash or corrupt memory, and it works in QEMU.",
    ),
)
