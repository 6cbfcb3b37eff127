"""How much an atomic instruction costs that is the first to touch a page.

The guest's populate program touches every page once with one kind of access,
twice over: the first pass faults, the second finds everything mapped. Under
-icount a nanosecond of guest time is one instruction, so the difference of the
two passes is the number of instructions that the kernel spent on the faults.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pagewright.guest import programs
from pagewright.results.experiment import (
    Experiment,
    Means,
    Part,
    Published,
    Quantity,
    Side,
    Values,
    Work,
)

PROGRAM = programs.path("atomic-write-fault", "populate")

ATOMICS = ("ldxr", "ldadd", "cas", "casp", "swp")
QUICK_ATOMICS = ("ldxr", "ldadd")

# The same kernel as on the patched side, so that nothing else differs.
OFF = Side("switched off", "patched-4k", "arm64.atomic_write_fault=0")

MACHINE = {"icount": True, "memory": "4G", "smp": 1}

# One kprobe counts the invalidations: ptep_clear_flush() and pmdp_huge_clear_flush()
# are what copy-on-write calls between the old entry and the new one.
PROBES = ("ptep_clear_flush", "pmdp_huge_clear_flush")
# What the names of works begin with that count them.
FLUSHES = "flushes "


@dataclass(frozen=True)
class Case:
    """One run of the program."""

    kind: str
    size: str
    thp: bool

    @property
    def name(self) -> str:
        """The row's name, and the work's."""
        return f"{self.kind}, {self.size}, THP {'on' if self.thp else 'off'}"

    @property
    def command(self) -> str:
        """The command that measures faults and instructions."""
        size = self.size.replace(" ", "").replace("iB", "")
        return f"{PROGRAM} {self.kind} {size} --thp={'on' if self.thp else 'off'}"


def cases(quick: bool) -> Iterator[Case]:
    """Return the runs on anonymous memory; store and load are the yardsticks."""
    sizes = ("64 MiB",) if quick else ("64 MiB", "1 GiB")
    kinds = QUICK_ATOMICS if quick else ATOMICS
    for size in sizes:
        for thp in (False, True):
            for kind in ("store", "load", *kinds):
                yield Case(kind, size, thp)


# Code that the kernel cannot read either: it tries, at each read fault.
HIDDEN = "load, execute-only code, 64 MiB, THP off"

FILES = {
    "read a private file mapping, cold page cache": "--mapping=private-file --cache=cold",
    "read a private file mapping, warm page cache": "--mapping=private-file --cache=warm",
}


def counted(command: str) -> str:
    """Wrap a command so that it also prints how often entries were invalidated."""
    names = " ".join(PROBES)
    return (
        "set -e; cd /sys/kernel/tracing; "
        f"for f in {names}; do echo p:count/$f $f >>kprobe_events; done; "
        f"echo 1 >events/count/enable; {command} >/dev/null; echo 0 >events/count/enable; "
        "busybox awk '{n += $2} END {print \"flushes=\" n}' kprobe_profile; echo >kprobe_events"
    )


def works(quick: bool) -> list[Work]:
    """Return what runs in each guest; several times where one run would be noisy."""
    several = 1 if quick else 3
    found = [
        # A gigabyte is an average of its own, and takes a while.
        Work(case.name, case.command, timeout=900, rounds=1 if case.size == "1 GiB" else several)
        for case in cases(quick)
    ]
    for name, options in FILES.items():
        found.append(Work(name, f"{PROGRAM} load 64M {options}", timeout=900, rounds=several))
    found.append(Work(HIDDEN, f"{PROGRAM} load 64M --thp=off --text=hidden", rounds=several))
    for kind in QUICK_ATOMICS:
        case = Case(kind, "64 MiB", False)
        found.append(Work(f"{FLUSHES}{kind}", counted(case.command), timeout=900))
    return found


def kernel_instructions(values: Values) -> int:
    """Return the instructions the kernel spent on the faults of one run.

    With a cold page cache the task also waits for the disk, so there it is the
    task's CPU time that counts.
    """
    clock = "cpu" if values["cache"] == "cold" else "ticks"
    return int(values[f"first_{clock}"]) - int(values[f"second_{clock}"])


def quantities(side: str, work: str, values: Values) -> Iterator[Quantity]:
    """Make numbers for the tables: faults, instructions per page, invalidations."""
    if work.startswith(FLUSHES):
        group = "entries invalidated by copy-on-write, 64 MiB, THP off"
        name = work.removeprefix(FLUSHES)
        yield Quantity(group, name, "TLB invalidations", int(values["flushes"]))
        return
    yield Quantity("page faults", work, "faults", int(values["faults"]))
    cost = kernel_instructions(values) / int(values["pages"])
    yield Quantity("kernel instructions per page", work, "instructions", cost)


def summary(means: Means) -> str:
    """Say what an atomic's first touch costs, in faults and instructions."""
    small, huge = "ldadd, 64 MiB, THP off", "ldadd, 64 MiB, THP on"
    faults, huge_faults = means["page faults", small], means["page faults", huge]
    cost = means["kernel instructions per page", small]
    less = (1 - cost["on"] / cost["off"]) * 100
    return (
        f"64 MiB touched by atomics take {faults['on']:,.0f} page faults instead of "
        f"{faults['off']:,.0f} (huge pages: {huge_faults['on']:,.0f} instead of "
        f"{huge_faults['off']:,.0f}), {less:.0f} % fewer instructions"
    )


ALTRA = "a virtual machine on an Ampere Altra"
# They are of atomics: to handle load-exclusives as writes is new here.
PUBLISHED = (
    Published(
        "page faults while 1 GiB is populated",
        "half of them",
        ALTRA,
        "page faults",
        "ldadd, 1 GiB, THP off",
    ),
    Published(
        "system time of the same",
        "60 % less",
        ALTRA,
        "kernel instructions per page",
        "ldadd, 1 GiB, THP off",
        remark="Instructions, not time. The TLB invalidations that are saved are among the most "
        "expensive things that a fault does on hardware, and cost nothing here.",
    ),
    Published(
        "anonymous read faults",
        "no noticeable change",
        ALTRA,
        "kernel instructions per page",
        "load, 1 GiB, THP off",
        # Against the base other features count, too.
        reference=OFF.label,
    ),
)

EXPERIMENT = Experiment(
    name="atomic-populate",
    feature="atomic-write-fault",
    title="What the first touch of memory costs, by kind of access",
    parts=lambda quick: [Part("populate", MACHINE, works(quick), also=() if quick else (OFF,))],
    quantities=quantities,
    summary=summary,
    published=PUBLISHED,
    limits=(
        "What an invalidation costs that is sent to all CPUs. The table of invalidations counts "
        "them; only a board can say what each takes.",
        "How atomics fault with several CPUs: there QEMU reports them as writes at once, so that "
        "the second fault does not happen. All of this is measured on one CPU.",
        "LSE128, LSFE, THE and LSUI instructions, none of which QEMU executes.",
    ),
    picture="kernel instructions per page: .*, 1 GiB",
)
