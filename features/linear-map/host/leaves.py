"""The kernel's linear map as a guest shows it: which leaf sizes, which permissions.

`record` boots a guest and reads /sys/kernel/debug/kernel_page_tables several
times, `parse` makes runs of equal leaves of it; leaves_plot.py draws them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import page_tables
from page_tables import TOOL
from rich.console import Console
from rich.table import Table
from settled import settled_state

from pagewright.guest.shell import UNLOAD
from pagewright.host.errors import PagewrightError
from pagewright.machine.boot import boot
from pagewright.machine.machine import Machine
from pagewright.machine.options import MachineOptions

# Our configuration switches KFENCE off until it is asked for, and base kernels keep pages
# for the sake of a KFENCE that may still come, even with rodata=on. This gives it its pool
# at boot, as in Debian's kernels, and lets it sample next to nothing.
EARLY_KFENCE = "kfence.sample_interval=3600000"

# At 4K pages every entry is walked: some thousand million instructions in a big guest.
_READ_SECONDS = 900
# How often the picture is taken anew, if the map changes meanwhile.
_TRIES = 5
# A parameter of patched kernels, in milliseconds.
_FOLD_DELAY = "/sys/module/arm64/parameters/linear_map_fold_delay_ms"


class Access(Enum):
    """What the kernel may do through a leaf."""

    READ_WRITE = "read-write"
    READ_ONLY = "read-only"
    INVALID = "invalid"


@dataclass(frozen=True)
class Run:
    """Neighbouring leaves of one size and permission.

    Attributes:
        start: virtual address.
        end: the address after it.
        leaf: bytes that one leaf maps: a page, a block, or a contiguous range of them.
        access: the leaves' permission.
    """

    start: int
    end: int
    leaf: int
    access: Access

    @property
    def size(self) -> int:
        """Bytes mapped."""
        return self.end - self.start


@dataclass(frozen=True)
class Snapshot:
    """The linear map at one moment.

    Attributes:
        title: what happened before.
        runs: all leaves, by address; what is between runs is not mapped.
        direct_map: the DirectMap lines of /proc/meminfo, in bytes by leaf size; empty
            if the kernel has none.
        memory: MemTotal, in bytes.
    """

    title: str
    runs: tuple[Run, ...]
    direct_map: dict[int, int]
    memory: int

    @property
    def start(self) -> int:
        """The first address mapped: the start of RAM."""
        return self.runs[0].start

    @property
    def end(self) -> int:
        """The address after the last one mapped."""
        return self.runs[-1].end

    def histogram(self) -> dict[int, dict[Access, int]]:
        """Return the bytes mapped by leaf size and permission, small leaves first."""
        found: dict[int, dict[Access, int]] = {}
        for run in sorted(self.runs, key=lambda r: r.leaf):
            row = found.setdefault(run.leaf, {})
            row[run.access] = row.get(run.access, 0) + run.size
        return found


@dataclass(frozen=True)
class Record:
    """What `record` brings back.

    Attributes:
        mode: the kernel's own line on how it maps memory, or empty.
        page: the page size.
        modules: those that were loaded and unloaded.
        image: where the kernel image is, as offsets in RAM.
        snapshots: the linear map at several moments of one boot.
    """

    mode: str
    page: int
    modules: tuple[str, ...]
    image: tuple[int, int]
    snapshots: tuple[Snapshot, ...]


def parse(text: str, page: int) -> tuple[Run, ...]:
    """Return the linear map's runs from the text of kernel_page_tables.

    Args:
        text: the file, or the part of it that has the linear map.
        page: the kernel's page size.

    Raises:
        PagewrightError: the text has no linear map, or a leaf of a size unknown.
    """
    if page_tables.LINEAR_MAP not in text:
        raise PagewrightError(
            "kernel_page_tables shows no linear map", "does the build set CONFIG_PTDUMP_DEBUGFS?"
        )
    sizes = TOOL.leaf_sizes(page)
    runs: list[Run] = []
    for line in page_tables.lines(text):
        if line.area != page_tables.LINEAR_MAP:
            continue
        leaf = sizes.get((line.level, "CON" in line.flags))
        if leaf is None or (line.end - line.start) % leaf:
            raise PagewrightError(
                "kernel_page_tables shows a leaf of unknown size", details=line.text
            )
        run = Run(line.start, line.end, leaf, _access(line.flags))
        # Lines also differ in attributes that are not of interest here.
        if runs and (runs[-1].end, runs[-1].leaf, runs[-1].access) == (run.start, leaf, run.access):
            run = Run(runs.pop().start, run.end, leaf, run.access)
        runs.append(run)
    return tuple(runs)


def _access(flags: Sequence[str]) -> Access:
    if "F" in flags:
        return Access.INVALID
    return Access.READ_ONLY if "ro" in flags else Access.READ_WRITE


def parse_direct_map(meminfo: str) -> dict[int, int]:
    """Return the DirectMap lines of /proc/meminfo: bytes mapped by leaf size."""
    sizes: dict[int, int] = TOOL.read_direct_map(TOOL.parse_numbers(meminfo))
    return sizes


def direct_map(place: Machine) -> dict[int, int]:
    """Return how many bytes leaves of each size map."""
    return parse_direct_map(place.check("cat /proc/meminfo"))


def parse_image(iomem: str) -> tuple[int, int]:
    """Return where the kernel image is, as offsets in RAM, from the text of /proc/iomem."""
    places = {
        name: (int(start, 16), int(end, 16) + 1)
        for start, end, name in reversed(
            re.findall(r"^ *([0-9a-f]+)-([0-9a-f]+) : (.*)$", iomem, re.MULTILINE)
        )
    }
    ram = places["System RAM"][0]
    return places["Kernel code"][0] - ram, places["Kernel data"][1] - ram


def snapshot(machine: Machine, title: str = "", page: int | None = None) -> Snapshot:
    """Read the linear map of a running machine.

    Args:
        machine: it must be alone: what allocates meanwhile blurs the picture.
        title: what happened before.
        page: its page size; it is asked for that if it is not said.
    """
    page = page or int(machine.check("getconf PAGESIZE"))
    meminfo = machine.check("cat /proc/meminfo")
    for _ in range(_TRIES):
        text = machine.check(
            "mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug; "
            f"sed -n '/Linear Mapping start/,/Linear Mapping end/p' {page_tables.FILE}",
            timeout=_READ_SECONDS,
        )
        before, meminfo = meminfo, machine.check("cat /proc/meminfo")
        # On a machine under load something is folded late, which one of the two does not see.
        if parse_direct_map(before) == parse_direct_map(meminfo):
            break
    total: int = TOOL.parse_numbers(meminfo)["MemTotal"]
    return Snapshot(title, parse(text, page), parse_direct_map(meminfo), total)


def _quiet(machine: Machine, mode: str) -> float:
    """Return after how many seconds without a change the map of a machine is settled.

    What was split is folded a delay after it could be, or ten of them if it is not worth a
    pause of its own. A map in pages and that of a base kernel only lose what modules do not
    need any more, which takes the kernel a moment.
    """
    delay = f"cat {_FOLD_DELAY} 2>/dev/null || test ! -e {_FOLD_DELAY}"
    delays = 11 if "in pauses" in mode else 1.5 if "live" in mode else 0
    return 0.5 + delays * int(machine.check(delay) or 0) / 1000


def record(options: MachineOptions, settle: float = 60) -> Record:
    """Boot a guest and record its linear map before, while and after all modules are loaded.

    Each look is at a map that has settled: the kernel frees what modules need for their start
    a moment later, and folds leaves back a second later, or as late as it comes to it where
    much else runs.

    Args:
        options: the machine.
        settle: how many seconds a look waits for that at the most; its title tells if that was
            too short.

    Raises:
        PagewrightError: it did not boot, or has no modules.
    """
    # Not the tests of features below arch/, which run when they are loaded. Debian's configurations
    # compress modules, whose names end in .ko.xz then.
    name = r"/arch/d; s|:.*||; s|.*/||; s|\.ko\(\.[a-z]*\)*$||"
    modules = f"sed '{name}' /lib/modules/$(uname -r)/modules.dep"
    with boot(options) as machine:
        page = int(machine.check("getconf PAGESIZE"))
        mode = machine.check("dmesg | sed -n 's/.*\\(linear map: .*\\)/\\1/p' | head -n 1")
        image = parse_image(machine.check("cat /proc/iomem"))
        names = machine.check(modules).split()
        quiet = _quiet(machine, mode)

        def look(title: str) -> Snapshot:
            if settled_state(machine, quiet, settle) is None:
                title += f", looked at after {settle:g} s"
            return snapshot(machine, title, page)

        snapshots = [look("after boot")]
        machine.check(f"for module in {' '.join(names)}; do modprobe $module || exit; done")
        snapshots.append(look("modules loaded"))
        machine.check(f"{UNLOAD} {' '.join(names)}")
        snapshots.append(look("modules unloaded"))
    return Record(mode, page, tuple(names), image, tuple(snapshots))


def print_histograms(record: Record, console: Console) -> None:
    """Print how much each leaf size maps, at each moment, by permission."""
    title = f"{record.mode or 'linear map'}\nmodules: {', '.join(record.modules)}"
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("", "leaf"):
        table.add_column(heading)
    for heading in ("leaves", "MiB", *(access.value for access in Access)):
        table.add_column(heading, justify="right")
    for shot in record.snapshots:
        for cells in histogram_rows(shot):
            table.add_row(*cells)
        table.add_section()
    console.print(table)


def histogram_rows(shot: Snapshot) -> Iterator[tuple[str, ...]]:
    """Return the rows of a histogram's table; sizes in MiB."""
    title = shot.title
    for leaf, row in shot.histogram().items():
        total = sum(row.values())
        shares = (_mib(row[access]) if access in row else "" for access in Access)
        yield title, TOOL.leaf_name(leaf), f"{total // leaf:,}", _mib(total), *shares
        title = ""


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.2f}".removesuffix(".00")
