"""The tables of the documents have the figures that docs/figures.json has.

Those of README.md that stand between comments are made of it (test_experiments_page.py). The
others are written by hand; here it is said of each which figures they are. A table of figures that
is neither here nor among those without a record fails a test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from tables import Cell, Table, has_figures, says, tables

from pagewright.host import workspace
from pagewright.results import record, statistics
from pagewright.results.figures import Report

SPACE = workspace.find()
DOCUMENTS = [
    SPACE.root / "README.md",
    *sorted((SPACE.root / "docs").glob("*.md")),
    *sorted((SPACE.root / "features").glob("*/*.md")),
    SPACE.root / "tools" / "README.md",
]

# The first cell of a row, and what the others are compared with.
Row = tuple[str, list[Cell]]

ATOMIC = "features/atomic-write-fault/README.md"
HVO = "features/hugetlb-vmemmap/README.md"
LINEAR_MAP = "features/linear-map/README.md"
PERCPU = "features/percpu-local/README.md"
TLB = "docs/tlb-model.md"

# Tables of figures that docs/figures.json has nothing of, by their document and header, and why.
WITHOUT_RECORD = {
    ("docs/hosts.md", "in the clone | MB"): "disk",
    (
        "docs/hosts.md",
        "in the cache, `${XDG_CACHE_HOME:-~/.cache}/pagewright` | MB",
    ): "disk",
    (
        LINEAR_MAP,
        "`arm64.linear_map=` | `pages` | `live` | `af` | `pause`",
    ): "the part `ways` was measured with twelve boots in a clone that did not record it",
    (
        PERCPU,
        "GCC 14.2 | base | `percpu_local_map=0` | patched",
    ): "measured on a Debian 13; the record is of this host's compiler",
    (
        TLB,
        "for each | first chunk in pages | in contiguous ranges | of these local and in the areas: "
        "in pages | in contiguous ranges",
    ): "half of it is of commit 0e4636a44d1d, when the first chunk was mapped by pages",
}

RECORDED: dict[tuple[str, str], Callable[[], Iterator[Row]]] = {}


@cache
def recorded() -> dict[str, Report]:
    return record.read(SPACE)


def runs(experiment: str, group: str, name: str) -> dict[str, list[float]]:
    """Return the runs of a figure by their sides."""
    found = recorded()[experiment].find(group, name)
    assert found, f"{experiment} has no {name!r} of {group!r}"
    return found.runs


def means(experiment: str, group: str, name: str) -> dict[str, float]:
    """Return the means of a figure's runs by their sides."""
    return {side: sum(of) / len(of) for side, of in runs(experiment, group, name).items()}


def change(sides: dict[str, list[float]], side: str, reference: str) -> tuple[float, ...]:
    """Return how a side differs from another in percent, and the error if there is one."""
    found = statistics.difference(sides[side], sides[reference])
    assert found.percent is not None
    return (found.percent,) if found.percent_error is None else (found.percent, found.percent_error)


def table(document: str, header: str) -> Callable[..., Callable[[], Iterator[Row]]]:
    """Say of which table of a document a function makes the rows."""

    def note(rows: Callable[[], Iterator[Row]]) -> Callable[[], Iterator[Row]]:
        assert (document, header) not in RECORDED
        RECORDED[document, header] = rows
        return rows

    return note


@table(ATOMIC, "access |  | base | patched, off | patched")
def accesses() -> Iterator[Row]:
    faults, cost = "page faults", "kernel instructions per page"
    sides = ("base", "switched off", "patched")

    def cells(group: str, *names: str) -> list[Cell]:
        found = [means("atomic-populate", group, name) for name in names]
        return [tuple(one[side] for one in found) for side in sides]

    for switch in ("off", "on"):
        for title, kind in (("LDADD", "ldadd"), ("LDXR/STXR", "ldxr")):
            name = f"{kind}, 1 GiB, THP {switch}"
            yield f"{title}, THP {switch}", ["faults", *cells(faults, name)]
            yield "", ["instructions per page", *cells(cost, name)]
    stores = [f"store, 1 GiB, THP {switch}" for switch in ("off", "on")]
    title = "store (for comparison), THP off / on"
    yield title, ["instructions per page", *cells(cost, *stores)]
    yield "load, THP off", ["instructions per page", *cells(cost, "load, 1 GiB, THP off")]


@table(HVO, "of each hugepage (4 KiB base pages) | pause frees | seamless frees")
def freed() -> Iterator[Row]:
    for title, kib in (("2 MiB", 2048), ("32 MiB", 32768), ("1 GiB", 1048576)):
        found = means("hugetlb-sizes", "freed of one hugepage, 4K base pages", f"{kib}kB")
        # A struct page has 64 bytes for each 4 KiB.
        yield title, [(found["4k pause"], kib / 64), (found["4k seamless"], kib / 64)]


STEPS = ("allocate 1 GiB", "free 1 GiB", "allocate 1 GiB again", "demote to 2 MiB", "free 2 MiB")


@table(
    HVO,
    "million instructions | no HVO | naive | pause | seamless | pause / naive | seamless / naive",
)
def large() -> Iterator[Row]:
    for step in STEPS:
        of_step = runs("hugetlb-vmemmap", "instructions", step)
        found = means("hugetlb-vmemmap", "instructions", step)
        sides = [found[side] for side in ("base", "naive", "pause", "seamless")]
        yield step, [*sides, *(change(of_step, side, "naive") for side in ("pause", "seamless"))]


@table(HVO, "pause mode | pauses | paused in all")
def paused() -> Iterator[Row]:
    for step in STEPS:
        # The second time it is as the first.
        if step != "allocate 1 GiB again":
            number = means("hugetlb-vmemmap", "pauses", step)["pause"]
            microseconds = means("hugetlb-vmemmap", "time paused", step)["pause"]
            yield step, [number, microseconds / 1000]


@table(HVO, "million instructions | no HVO | seamless |  | pauses | longest pause")
def large_without_level_2() -> Iterator[Row]:
    kind = "CPU without level 2: "
    for step in STEPS:
        of_step = runs("hugetlb-vmemmap", f"{kind}instructions", step)
        found = means("hugetlb-vmemmap", f"{kind}instructions", step)
        pauses = means("hugetlb-vmemmap", f"{kind}pauses", step)["seamless"]
        longest = means("hugetlb-vmemmap", f"{kind}longest pause so far", step)["seamless"]
        cells = [found["base"], found["seamless"], change(of_step, "seamless", "base"), pauses]
        yield step, [*cells, longest if pauses else ""]


@table(HVO, "CPUs | seamless | longest pause | pause mode | longest pause")
def pauses_with_many_cpus() -> Iterator[Row]:
    for number in (4, 64, 160):
        group = f"24 x 1 GiB, pauses with {number} CPUs: "
        of_steps = [means("hugetlb-vmemmap", f"{group}pauses", step) for step in STEPS]
        longest = means("hugetlb-vmemmap", f"{group}longest pause so far", STEPS[-1])
        cells: list[Cell] = []
        for side in ("seamless", "pause"):
            if side in longest:
                cells += [sum(one[side] for one in of_steps), longest[side]]
            else:
                cells += ["not run", ""]
        yield str(number), cells


MISSES = {
    "4 KiB written by fio to dm-crypt": "fio on dm-crypt, memory scattered: misses for each 4 KiB "
    "written",
    "set or get of memcached": "memcached, memory scattered: misses for each set or get",
    "request over TCP": "TCP requests, memory scattered: misses for each request",
    "C file compiled": "compiling, memory scattered: misses for each file",
    "4 KiB read of a cached file": "cached file, memory scattered: misses for each 4 KiB read",
}
AFTER_HUGEPAGES = "memory that was hugepages"
OF_HUGEPAGES = {
    "4 KiB read past the page cache": "reading past the page cache, hugepages: misses for each "
    "4 KiB read",
    "4 KiB through a pipe": "vmsplice, hugepages: misses for each 4 KiB",
    "hugepage faulted in and given back": "faults, hugepages: misses for each hugepage",
    "hugepage of a forked child": "fork, hugepages: misses for each hugepage of a child",
    f"4 KiB read of a cached file, {AFTER_HUGEPAGES}": f"cached file, {AFTER_HUGEPAGES}: misses "
    "for each 4 KiB read",
    "set or get of memcached, the same": f"memcached, {AFTER_HUGEPAGES}: misses for each set or "
    "get",
}
GEOMETRIES = ("neoverse-n1", "cortex-a72", "sweep-40-1024", "sweep-64-2048")
HVO_SIDES = ("HVO off", "seamless", "pause")


@table(HVO, "misses of L2 for each | HVO off | seamless | pause")
def misses_after_hugepages() -> Iterator[Row]:
    for title, group in list(OF_HUGEPAGES.items())[-2:]:
        found = means("tlb-reach", group, "neoverse-n1, struct pages: L2 misses")
        yield title, [found[side] for side in HVO_SIDES]


@table(
    TLB,
    "for each | L1: off | seamless | pause | L2: off | seamless | pause | "
    "L2, seamless, in four geometries",
)
def misses_of_struct_pages() -> Iterator[Row]:
    for title, group in OF_HUGEPAGES.items():
        cells: list[Cell] = []
        for level in ("L1", "L2"):
            found = means("tlb-reach", group, f"neoverse-n1, struct pages: {level} misses")
            cells += [found[side] for side in HVO_SIDES]
        names = [f"{geometry}, struct pages: L2 misses" for geometry in GEOMETRIES]
        all_of_them = [means("tlb-reach", group, name)["seamless"] for name in names]
        yield title, [*cells, (min(all_of_them), max(all_of_them))]


@table(
    TLB,
    "for each | base | linear-map alone | all features | of these local | "
    "of these in the areas | accesses: local, in the areas",
)
def two_views() -> Iterator[Row]:
    for title, group in MISSES.items():
        found = means("tlb-reach", group, "neoverse-n1, kernel data: L1 misses")
        views = ("local", "areas")
        missed = [
            means("tlb-reach", group, f"neoverse-n1, per-CPU data, {view}: L1 misses")["patched"]
            for view in views
        ]
        accessed = tuple(
            means("tlb-reach", group, f"accesses, per-CPU data, {view}")["patched"]
            for view in views
        )
        sides = [found[side] for side in ("base", "linear-map alone", "patched")]
        yield title, [*sides, *missed, accessed]


@table(
    TLB,
    " | hardware | `rodata=on` | linear-map alone | all features | "
    "linear-map alone, in four geometries",
)
def beside_hardware() -> Iterator[Row]:
    sides = ("rodata=on", "linear-map alone", "patched")
    fio, memcached = list(MISSES.values())[:2]

    def changes(group: str, name: str, of: tuple[str, ...]) -> list[float]:
        found = runs("tlb-reach", group, name)
        return [change(found, side, "base")[0] for side in of]

    def range_of(group: str) -> tuple[float, ...]:
        alone = [
            changes(group, f"{geometry}, kernel data: L1 misses", ("linear-map alone",))[0]
            for geometry in GEOMETRIES
        ]
        return max(alone), min(alone)

    of_data = changes(fio, "neoverse-n1, kernel data: L1 misses", sides)
    yield "fio: misses of the data TLB by loads", [None, *of_data, range_of(fio)]
    of_all = changes(memcached, "neoverse-n1, kernel: L1 misses in 1000 of its instructions", sides)
    title = "memcached: TLB misses of the kernel in 1000 of its instructions"
    yield title, [None, *of_all, range_of(memcached)]


BOOT = "boot of a guest with 256 GiB"


@table(LINEAR_MAP, " | base, `rodata=full` | base, `rodata=on` | patched, `rodata=full`")
def boot() -> Iterator[Row]:
    sides = ("base", "rodata=on", "patched")
    total, free, init = (
        means("linear-map", BOOT, name) for name in ("MemTotal", "MemFree", "until init runs")
    )
    yield "MemTotal, kB", [total[side] for side in sides]
    gained: list[Cell] = [total[side] - total["base"] for side in sides[1:]]
    yield "gained, kB: page tables of the linear map", ["", *gained]
    yield "MemFree, kB", [free[side] for side in sides]
    yield "million instructions from reset until init runs", [init[side] / 1e6 for side in sides]


@table(
    LINEAR_MAP,
    "CPU | gained with `rodata=on`, kB | patched, kB | until init: base | `rodata=on` | "
    "patched, million",
)
def boot_in_pauses() -> Iterator[Row]:
    for cpu in ("cortex-a72", "cortex-a76", "neoverse-n1", "neoverse-v1"):
        total = means("linear-map", f"{BOOT} on {cpu}", "MemTotal")
        init = means("linear-map", f"{BOOT} on {cpu}", "until init runs")
        gained = [total[side] - total["base"] for side in ("rodata=on", "patched")]
        cells = [init[side] / 1e6 for side in ("base", "rodata=on", "patched")]
        yield f"`{cpu}`", [*gained, *cells]


@table(LINEAR_MAP, "CPUs | pauses for it | longest pause since boot, thousand instructions")
def pauses_for_a_module() -> Iterator[Row]:
    for number in (4, 64, 160):
        group = f"a module loaded and unloaded, pauses with {number} CPUs"
        pauses = means("linear-map", group, "most pauses for it")["patched"]
        assert pauses == means("linear-map", group, "pauses for it in the mean")["patched"]
        # In microseconds, and an instruction takes a nanosecond.
        yield (
            str(number),
            [pauses, means("linear-map", group, "longest pause since boot")["patched"]],
        )


@table(
    LINEAR_MAP,
    " | base, `rodata=full` | base, `rodata=on` | `pages` | patched, `rodata=full` | "
    "patched against `pages`",
)
def programs() -> Iterator[Row]:
    group = "instructions of programs; TLB misses do not show"
    for title, name in (
        ("fio writes to dm-crypt on a ramdisk", "fio on dm-crypt"),
        ("sequential read of a cached file", "cached file"),
        ("memcached with memcslap", "memcached"),
        ("loading and unloading modules", "modprobe"),
    ):
        found = means("linear-map", group, name)
        sides = [found[side] / 1e6 for side in ("base", "rodata=on", "pages", "patched")]
        yield title, [*sides, change(runs("linear-map", group, name), "patched", "pages")]


@table(
    LINEAR_MAP,
    "leaf | after boot | modules loaded | after 200 cycles, folded | "
    "the same with `arm64.linear_map_fold=0`",
)
def leaves() -> Iterator[Row]:
    group = "linear map by leaf size, 200 times three modules loaded and unloaded"
    for leaf in ("4k", "64k", "2M", "32M"):
        boot, loaded, cycles = (
            means("linear-map", group, f"DirectMap{leaf} {when}")
            for when in ("after boot", "with the modules loaded", "after the cycles")
        )
        yield leaf, [*(one["folding"] for one in (boot, loaded, cycles)), cycles["no folding"]]


OWN = "static variable, in a function of its own"
FURTHER = "static variable, each further one in a function"


def operations(row: str, kind: str, sides: tuple[str, ...], size: int = 8) -> list[Cell]:
    """Return the cells of one or several operations, each number once if they have the same."""
    found = [
        means("percpu-local", f"instructions, {kind}, {OWN}", f"{name} {size}")
        for name in row.split(", ")
    ]
    return [tuple(dict.fromkeys(one[side] for one in found)) for side in sides]


@table(PERCPU, " | base | `percpu_local_map=0` | patched")
def with_a_count() -> Iterator[Row]:
    sides = ("base", "off", "patched")
    for row in ("read", "write", "inc", "add", "add_return", "and, or", "xchg", "cmpxchg"):
        yield row, operations(row, "preempt=full", sides)
    yield "cmpxchg128", operations("cmpxchg128", "preempt=full", sides, 16)


def of_further_ones(side: str, size: int) -> tuple[float, ...]:
    """Return the fewest and the most instructions of a further operation, as whole numbers."""
    found = [
        round(figure.values[side])
        for figure in recorded()["percpu-local"].figures
        if figure.group == f"instructions, preempt=full, {FURTHER}"
        and figure.name.endswith(f" {size}")
    ]
    return (min(found),) if len(found) == 1 else (min(found), max(found))


@table(PERCPU, "a further operation in the function | base | patched")
def further_ones() -> Iterator[Row]:
    for size in (8, 16):
        yield f"on {size} bytes", [of_further_ones(side, size) for side in ("base", "patched")]


@table(PERCPU, " | without | `percpu_local_map=0` | patched")
def without_a_count() -> Iterator[Row]:
    sides = ("voluntary, without", "voluntary, off", "voluntary, patched")
    for row in ("read, write", "inc, and", "add, or, xchg", "add_return", "cmpxchg"):
        yield row, operations(row, "no preemption count", sides)


@table(PERCPU, " | base | restartable sequences | a table for each CPU")
def restartable() -> Iterator[Row]:
    sides = ("base", "restartable", "patched")
    for row in ("read, write", "inc, and", "add, or", "add_return", "xchg, cmpxchg"):
        cells = operations(row, "preempt=full", sides)
        # Of several that differ by one in the base, the table has one.
        yield row, [None if row in ("inc, and", "add, or") else cells[0], *cells[1:]]
    yield "a further one in the function", [of_further_ones(side, 8) for side in sides]


WORKLOADS = {
    "stress-ng --vm": "stress-ng --vm",
    "stress-ng --mmapfork": "stress-ng --mmapfork",
    "stress-ng --fork": "stress-ng --fork",
    "creating 10000 memcgs": "create memcgs",
    "removing them": "remove memcgs",
    "compiling in a memcg": "compile in a memcg",
    "TCP requests": "TCP requests",
    "TCP stream": "TCP stream",
}


@table(
    PERCPU,
    "preempt=full | 4 CPUs, without | `percpu_local_map=0` | patched |  | 8 CPUs, without | "
    "patched | ",
)
def workloads() -> Iterator[Row]:
    for title, name in WORKLOADS.items():
        cells: list[Cell] = []
        for cpus, sides in ((4, ("without", "off", "patched")), (8, ("without", "patched"))):
            group = f"instructions of the kernel, {cpus} CPUs"
            found = means("percpu-local", group, name)
            cells += [found[side] for side in sides]
            cells.append(change(runs("percpu-local", group, name), "patched", "without"))
        yield title, cells


@table(PERCPU, "no count | without | patched | ")
def workloads_without_a_count() -> Iterator[Row]:
    group = "instructions of the kernel, 4 CPUs, voluntary"
    without, patched = "voluntary, without", "voluntary, patched"
    for title, name in WORKLOADS.items():
        found = means("percpu-local", group, name)
        differs = change(runs("percpu-local", group, name), patched, without)
        yield title, [found[without], found[patched], differs]


@table(PERCPU, "CPUs | 4 | 64 | 160")
def memory() -> Iterator[Row]:
    with_memcgs = "with the memcgs"

    def each(name: str) -> list[dict[str, float]]:
        groups = [f"memory of a machine with {number} CPUs" for number in (4, 64, 160)]
        return [means("percpu-memory", group, name) for group in groups]

    def mapped(when: str) -> list[Cell]:
        """Return what is mapped more; a CPU's table has it all, and the figure is of one."""
        return [one["patched"] - one["off"] for one in each(f"Mapped {when}")]

    yield (
        "tables of the CPUs, of the boot log",
        [one["patched"] for one in each("tables after boot")],
    )
    yield (
        "MemTotal, less than with `=0`",
        [one["off"] - one["patched"] for one in each("MemTotal after boot")],
    )
    for what in ("Percpu", "VmallocUsed"):
        for title, side in (("`=0`", "off"), ("patched", "patched")):
            found = [one[side] for one in each(f"{what} {with_memcgs}")]
            yield f"{what} with 10000 memcgs, {title}", [*found]
    yield "a CPU's table maps more after boot", mapped("after boot")
    yield "a CPU's table maps more with 10000 memcgs", mapped(with_memcgs)


@table(PERCPU, "CPUs, with 64 KiB pages | 4 | 64 | 160")
def memory_with_64_kib_pages() -> Iterator[Row]:
    for bits in (52, 42):
        for title, name in (
            ("tables of the CPUs, of the boot log", "tables"),
            ("MemTotal, less than with `=0`", "MemTotal"),
        ):
            cells: list[Cell] = []
            for number in (4, 64, 160):
                group = f"64 KiB pages, {bits} bits"
                found = means("percpu-memory", group, f"{name}, {number} CPUs")
                off, patched = (found[f"tiny-64k-{bits}, {side}"] for side in ("off", "patched"))
                cells.append(abs(patched - off))
            yield f"{bits} bits: {title}", cells


@table(PERCPU, " | without | patched | ")
def size_without_suites() -> Iterator[Row]:
    for name in ("text", "list of alternatives", "image in memory"):
        sides = runs("percpu-memory", "size of the kernel, 4k", name)
        without, patched = sides["4k, without"], sides["4k, patched"]
        yield name, [without[0], patched[0], change(sides, "4k, patched", "4k, without")]


@table(PERCPU, " | published | here")
def beside_an_ampereone() -> Iterator[Row]:
    rows = ("compiling in a memcg", "stress-ng --vm", "stress-ng --mmapfork", "stress-ng --fork")
    for title in (*rows, "creating 10000 memcgs"):
        found = [
            runs("percpu-local", f"instructions of the kernel, {cpus} CPUs", WORKLOADS[title])
            for cpus in (4, 8)
        ]
        differs = [change(one, "patched", "without") for one in found]
        yield title, [None, (*differs[0], *differs[1])]
    group = "memory of a machine with 160 CPUs"
    used = runs("percpu-memory", group, "VmallocUsed with the memcgs")
    more = used["patched"][0] - used["off"][0]
    yield "virtual space with 10000 memcgs", [None, (more, *change(used, "patched", "off"))]
    tables_of_cpus = means("percpu-memory", group, "tables after boot")["patched"]
    yield "tables of the CPUs", [None, tables_of_cpus]


def found_in(document: str) -> dict[str, Table]:
    """Return the tables of a document by their header, but for those that commands write."""
    written = r"<!-- figures of .*?<!-- end of figures -->\n"
    text = re.sub(written, "", (SPACE.root / document).read_text(), flags=re.DOTALL)
    return {" | ".join(one.header): one for one in tables(text)}


# What stands in the text and not in a table: how it begins and ends, and its numbers.
SAID: dict[tuple[str, str, str], Callable[[], tuple[float, ...]]] = {}


def said(document: str, begins: str, ends: str) -> Callable[..., Callable[[], tuple[float, ...]]]:
    """Say of which text of a document a function makes the numbers."""

    def note(values: Callable[[], tuple[float, ...]]) -> Callable[[], tuple[float, ...]]:
        SAID[document, begins, ends] = values
        return values

    return note


def cost(name: str, *sides: str) -> list[float]:
    found = means("atomic-populate", "kernel instructions per page", name)
    return [found[side] for side in sides]


@said(ATOMIC, "The first fault of a load takes", "than on the base")
def load_that_faults() -> tuple[float, ...]:
    of_load = runs("atomic-populate", "kernel instructions per page", "load, 1 GiB, THP off")
    more = of_load["patched"][0] - of_load["switched off"][0]
    by_itself = change(of_load, "patched", "switched off")
    return more, *by_itself, *change(of_load, "patched", "base")


@said(ATOMIC, "For 64 MiB the faults are", "in the TLB against 2")
def faults_of_64_mib() -> tuple[float, ...]:
    values = [64]
    for switch in ("off", "on"):
        found = means("atomic-populate", "page faults", f"ldadd, 64 MiB, THP {switch}")
        values += [found["base"], found["patched"]]
    group = "entries invalidated by copy-on-write, 64 MiB, THP off"
    flushed = means("atomic-populate", group, "ldadd")
    return *values, flushed["base"], flushed["patched"]


@said(ATOMIC, "Reading a file through a private mapping takes", "(warm)")
def files_that_are_read() -> tuple[float, ...]:
    sides = ("base", "switched off", "patched")
    names = [f"read a private file mapping, {cache} page cache" for cache in ("cold", "warm")]
    return tuple(number for name in names for number in cost(name, *sides))


@said(ATOMIC, "LDXR takes", "instructions more than LDADD")
def load_exclusive() -> tuple[float, ...]:
    [ldxr], [ldadd] = (cost(f"{kind}, 1 GiB, THP off", "patched") for kind in ("ldxr", "ldadd"))
    return (ldxr - ldadd,)


@said(ATOMIC, "A read fault that maps the zero page takes", "in execute-only code")
def code_that_cannot_be_read() -> tuple[float, ...]:
    on, off = cost("load, 64 MiB, THP off", "patched", "switched off")
    [hidden] = cost("load, execute-only code, 64 MiB, THP off", "patched")
    return on, off, hidden, (hidden / off - 1) * 100


@said("README.md", "Of the 828 KiB", "are page tables")
def page_tables_alone() -> tuple[float, ...]:
    total = means("linear-map", BOOT, "MemTotal")
    others = total["base"] - total["pages"]
    missing = total["rodata=on"] - total["patched"]
    return missing, others, missing - others


@said(LINEAR_MAP, "the patched kernel is where the base is", "that it has less")
def in_pages() -> tuple[float, ...]:
    total = means("linear-map", BOOT, "MemTotal")
    init = means("linear-map", BOOT, "until init runs")
    return total["pages"], init["pages"] / 1e6, total["base"] - total["pages"]


CHURNED = {
    "memcached": "memcached, memory scattered, modules churned: misses for each set or get",
    "fio": "fio on dm-crypt, memory scattered, modules churned: misses for each 4 KiB written",
    "TCP": "TCP requests, memory scattered, modules churned: misses for each request",
}


@said(LINEAR_MAP, "memcached misses L1 for kernel data", "times. These are single boots")
def with_and_without_folding() -> tuple[float, ...]:
    values: list[float] = []
    for group in CHURNED.values():
        found = means("tlb-reach", group, "neoverse-n1, kernel data: L1 misses")
        values += [found["alone, no folding"], found["linear-map alone"]]
    return tuple(values)


@said(TLB, "fio, memcached and a TCP request miss L1 in the linear map", "times. These are")
def misses_of_the_linear_map() -> tuple[float, ...]:
    groups = [CHURNED[name] for name in ("fio", "memcached", "TCP")]
    found = [means("tlb-reach", group, "neoverse-n1, linear map: L1 misses") for group in groups]
    sides = ("alone, no folding", "linear-map alone", "base")
    return tuple(one[side] for side in sides for one in found)


def between(group: str, side: str, reference: str) -> tuple[float, float]:
    """Return the least and the most by which misses of L1 differ, in the four geometries."""
    names = [f"{geometry}, kernel data: L1 misses" for geometry in GEOMETRIES]
    found = [change(runs("tlb-reach", group, name), side, reference)[0] for name in names]
    return min(found), max(found)


@said(TLB, "geometries all features have", "with memcached")
def what_the_views_take() -> tuple[float, ...]:
    groups = [MISSES[name] for name in ("C file compiled", "set or get of memcached")]
    ranges = [between(group, "patched", "linear-map alone") for group in groups]
    least, most = ranges[0]
    return least, most, *ranges[1]


@said(TLB, "the four geometries the latter is between", "than with `rodata=on`")
def compiling_beside_rodata_on() -> tuple[float, ...]:
    least, most = between(MISSES["C file compiled"], "linear-map alone", "rodata=on")
    return -least, most


@said(TLB, "What blocks save there are walks: from", "to none")
def walks_of_a_cached_file() -> tuple[float, ...]:
    group = MISSES["4 KiB read of a cached file"]
    names = [f"neoverse-n1, kernel data: {what}" for what in ("L2 misses", "descriptors loaded")]
    # Each 4 KiB.
    return *(means("tlb-reach", group, name)["base"] for name in names), 4


@said(TLB, "On memory as it is after boot L1 misses fall by", "%.")
def cached_file_after_boot() -> tuple[float, ...]:
    group = "cached file: misses for each 4 KiB read"
    found = runs("tlb-reach", group, "neoverse-n1, kernel data: L1 misses")
    return (-change(found, "linear-map alone", "base")[0],)


@said(HVO, "Allocating them makes MemFree grow by", "MiB. The longest")
def memory_of_600_pages() -> tuple[float, ...]:
    grown = means("hugetlb-vmemmap", "MemFree gained beyond the pages", "allocate 1 GiB")
    kernel = [
        means("hugetlb-vmemmap", "saved, says the kernel", step)
        for step in ("allocate 1 GiB", "demote to 2 MiB")
    ]
    saved = [one[side] for one in kernel for side in ("pause", "seamless")]
    return grown["pause"], grown["seamless"], grown["base"], *saved


@said("tools/pagewright", "The workloads measured for it took", "in the kernel.")
def least_and_most_of_all_workloads() -> tuple[float, ...]:
    groups = [f"instructions of the kernel, {cpus} CPUs" for cpus in (4, 8)]
    found = [
        change(runs("percpu-local", group, name), "patched", "without")[0]
        for group in groups
        for name in WORKLOADS.values()
    ]
    # What is said to be fewer is no negative number.
    return -max(found), -min(found)


@said(HVO, "The longest pause is", "ms")
def longest_of_600_pages() -> tuple[float, ...]:
    return (means("hugetlb-vmemmap", "longest pause so far", STEPS[-1])["pause"] / 1000,)


@said(HVO, "three of them idle, each stop lasts", "switches between tasks")
def stops() -> tuple[float, ...]:
    name = "allocate 1 GiB"
    number = means("hugetlb-vmemmap", "pauses", name)["pause"]
    time = means("hugetlb-vmemmap", "time paused", name)
    switched = []
    for step in STEPS:
        found = means("hugetlb-vmemmap", "switches between tasks", step)
        pauses = means("hugetlb-vmemmap", "pauses", step)["pause"]
        switched.append(round((found["stop_machine"] - found["pause"]) / pauses))
    longer = (time["stop_machine"] - time["pause"]) / number
    # It is said in tens of microseconds.
    return longer, round(time["pause"] / number, -1), min(switched), max(switched)


@said(HVO, "reading `/proc/kpagecount` takes", "on the base")
def kpagecount_while_off() -> tuple[float, ...]:
    found = means("hugetlb-vmemmap", "HVO off, CPU with level 2: instructions", "look at each page")
    return found["off"], found["base"]


@said(HVO, "starting 50 programs takes", "(five boots")
def others_while_off() -> tuple[float, ...]:
    groups = [f"HVO off, CPU {kind}: instructions" for kind in ("with level 2", "without")]

    def of(name: str) -> list[tuple[float, ...]]:
        return [change(runs("hugetlb-vmemmap", group, name), "off", "base") for group in groups]

    programs, files, pages = map(
        of, ("start 50 programs", "write and remove a file", "allocate and free 2 MiB")
    )
    # 50 and 64 are how many.
    return (50, programs[0][0], programs[1][0], *files[0], *files[1], 64, 2, *pages[0], *pages[1])


@pytest.mark.parametrize(("document", "header"), RECORDED, ids=lambda part: part.strip("| "))
def test_a_table_has_the_recorded_figures(document: str, header: str):
    rows = found_in(document)[header].rows
    wanted = list(RECORDED[document, header]())
    assert [row[0] for row in rows] == [title for title, _ in wanted]
    for row, (_, cells) in zip(rows, wanted, strict=True):
        assert len(row) == 1 + len(cells)
        wrong = [
            (cell, value)
            for cell, value in zip(row[1:], cells, strict=True)
            if not says(cell, value)
        ]
        assert wrong == [], row[0]


@pytest.mark.parametrize(("document", "begins", "ends"), SAID)
def test_a_sentence_has_the_recorded_figures(document: str, begins: str, ends: str):
    text = " ".join((SPACE.root / document).read_text().split())
    assert text.count(begins) == 1
    sentence = text[text.index(begins) :]
    sentence = sentence[: sentence.index(ends) + len(ends)]
    wanted = SAID[document, begins, ends]()
    assert says(sentence, wanted), (sentence, wanted)


def test_of_each_table_of_figures_it_is_known_whether_it_is_recorded():
    with_figures = {
        (str(file.relative_to(SPACE.root)), header)
        for file in DOCUMENTS
        for header, one in found_in(str(file.relative_to(SPACE.root))).items()
        if has_figures(one)
    }
    assert with_figures - RECORDED.keys() == WITHOUT_RECORD.keys()
    assert not RECORDED.keys() & WITHOUT_RECORD.keys()


def test_a_cell_is_compared_with_as_many_decimals_as_it_has():
    assert says("1,019", 1018.6)
    assert says("-2.0 ± 0.8 %", (-2.04, 0.76))
    assert says("none", 0)
    assert says("28 of 32 KiB", (28, 32))
    assert says("-72 to -81 %", (-71.6, -80.9))
    assert says("no cell is looked at", None)
    for cell, value in (
        ("1,019", 1020),
        ("5.0", 5.06),
        ("3", (3, 4)),
        ("none", 1),
        ("not run", ""),
    ):
        assert not says(cell, value)
