"""A machine that counts what its TLBs miss, for TLBs of several geometries at once.

tlb/ is a plugin of QEMU with a model of TLBs; docs/tlb-model.md says what it assumes. Here it is
compiled, the geometries are read, and a machine is given the arguments for it. A guest program
that maps the device with the counts reads them, as for count.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from pagewright.host.errors import MachineError
from pagewright.host.files import toml
from pagewright.host.workspace import Workspace
from pagewright.machine import plugin

_SOURCES = Path(__file__).with_name("tlb")
GEOMETRIES = _SOURCES / "geometries.toml"

# What the plugin has room for.
MAX_GEOMETRIES = 16
MAX_NAME = 31
MAX_RANGES = 4
MAX_RANGE_NAME = 15
_MAX_COALESCED = 8

# Who accesses what, as the plugin tells it apart by itself.
KERNEL_DATA = ("linear", "struct-pages", "other", "for-user")
CLASSES = (*KERNEL_DATA, "user", "kernel-code", "user-code")
_KERNEL = 1 << 63

_SHIFTS = {"K": 10, "M": 20, "G": 30}


@dataclass(frozen=True)
class Geometry:
    """The TLBs of a CPU, as geometries.toml describes them.

    Attributes:
        name: its name.
        l1_data: entries for data.
        l1_code: entries for instructions.
        l1_sizes: what such an entry can map, as a sum of sizes in bytes.
        l2: entries for both.
        l2_ways: how many of these are a set.
        l2_sizes: as l1_sizes.
        walk: entries for tables; 0 if these take entries of L2.
        coalesced: how many pages may take one entry of L2.
    """

    name: str
    l1_data: int
    l1_code: int
    l1_sizes: int
    l2: int
    l2_ways: int
    l2_sizes: int
    walk: int
    coalesced: int

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            MachineError: a number is none that a TLB can have.
        """
        wrong = ""
        if not self.name or len(self.name) > MAX_NAME or " " in self.name:
            wrong = f"its name must have 1 to {MAX_NAME} characters and no space"
        elif min(self.l1_data, self.l1_code, self.l1_sizes, self.l2_ways, self.l2_sizes) < 1:
            wrong = "L1 and L2 must have entries, and sizes that these map"
        elif self.l2 < 1 or self.l2 % self.l2_ways:
            wrong = f"{self.l2} entries cannot be sets of {self.l2_ways}"
        elif self.walk < 0:
            wrong = f"walk is {self.walk}"
        elif self.coalesced not in (1, 2, 4, _MAX_COALESCED):
            wrong = f"{self.coalesced} pages cannot coalesce"
        if wrong:
            raise MachineError(f"the geometry {self.name}: {wrong}", f"see {GEOMETRIES.name}")

    def line(self) -> str:
        """Return it as the plugin reads it."""
        return " ".join(str(getattr(self, field.name)) for field in fields(self))


@dataclass(frozen=True)
class Range:
    """Addresses of the kernel whose data is a class of its own.

    Attributes:
        name: what the class is called.
        first: the first address.
        last: the last one.
    """

    name: str
    first: int
    last: int

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            MachineError: it has a name that cannot be told from another one or that is too
                long, or it has no address of the kernel.
        """
        wrong = ""
        if not self.name or len(self.name) > MAX_RANGE_NAME or " " in self.name:
            wrong = f"its name must have 1 to {MAX_RANGE_NAME} characters and no space"
        elif self.name in CLASSES:
            wrong = "there is a class of that name"
        elif not _KERNEL <= self.first <= self.last < 2 * _KERNEL:
            wrong = "it must begin and end at addresses of the kernel, in this order"
        if wrong:
            raise MachineError(f"the range {self.name}: {wrong}")

    def line(self) -> str:
        """Return it as the plugin reads it."""
        return f"{self.name} {self.first:x} {self.last:x}"


@dataclass(frozen=True)
class Tlb:
    """How a machine counts what its TLBs miss.

    Attributes:
        plugin: from `ensure`.
        geometries: those that are simulated.
        ranges: what is told apart of the kernel's data, besides what the plugin knows.
    """

    plugin: Path
    geometries: Sequence[Geometry]
    ranges: Sequence[Range] = ()

    def __post_init__(self) -> None:
        """Refuse more than the plugin has room for, no geometry, and ranges that overlap.

        Raises:
            MachineError: that is so.
        """
        if not 1 <= len(self.geometries) <= MAX_GEOMETRIES:
            raise MachineError(
                f"{len(self.geometries)} geometries of TLBs cannot be simulated at once",
                f"choose 1 to {MAX_GEOMETRIES}",
            )
        if len(self.ranges) > MAX_RANGES:
            raise MachineError(
                f"{len(self.ranges)} ranges cannot be told apart", f"choose {MAX_RANGES} at most"
            )
        for one, other in itertools.combinations(self.ranges, 2):
            if one.name == other.name or (one.first <= other.last and other.first <= one.last):
                raise MachineError(f"the ranges {one.name} and {other.name} are not apart")


@cache
def ensure(space: Workspace) -> Path:
    """Compile the plugin if it is made of other sources, and return it."""
    return plugin.compiled(space, "tlb", sources())


def made_of() -> list[Path]:
    """Return the files that a machine with this plugin is made by, beside those of any plugin."""
    return [Path(__file__), GEOMETRIES, *sources()]


def sources() -> list[Path]:
    """Return the C files of the plugin, and their headers."""
    decode = [_SOURCES.with_name("strict") / f"decode.{kind}" for kind in "ch"]
    return [*sorted(_SOURCES.glob("*.[ch]")), *decode, *plugin.shared()]


def read(file: Path = GEOMETRIES) -> list[Geometry]:
    """Read a file of geometries.

    Raises:
        MachineError: one is described wrongly.
    """
    with toml(file) as data:
        return [_geometry(name, table) for name, table in data.items()]


def _geometry(name: str, table: dict[str, Any]) -> Geometry:
    wanted = {field.name for field in fields(Geometry)} - {"name"}
    if table.keys() != wanted | {"source"}:
        differing = ", ".join(sorted(table.keys() ^ (wanted | {"source"})))
        raise MachineError(f"the geometry {name} has too much or too little: {differing}")
    values = {
        key: _sizes(name, value) if key.endswith("_sizes") else int(value)
        for key, value in table.items()
        if key in wanted
    }
    return Geometry(name=name, **values)


def _sizes(name: str, texts: Sequence[str]) -> int:
    total = 0
    for text in texts:
        number, unit = text[:-1], text[-1:]
        if not number.isdigit() or unit not in _SHIFTS or int(number).bit_count() != 1:
            raise MachineError(f"the geometry {name}: {text!r} is no size", 'write "64K" or "2M"')
        total |= int(number) << _SHIFTS[unit]
    return total


def ranges(texts: Mapping[str, str]) -> list[Range]:
    """Read ranges, by their names: first and last address, as /proc/iomem writes them.

    Raises:
        MachineError: one is written wrongly.
    """
    return [_range(name, text) for name, text in texts.items()]


def _range(name: str, text: str) -> Range:
    first, _, last = text.partition("-")
    try:
        return Range(name, int(first, 16), int(last, 16))
    except ValueError:
        raise MachineError(
            f"the range {name}: {text!r} is not one", 'write "ffff800000000000-ffff80000000ffff"'
        ) from None


def arguments(tlb: Tlb, directory: Path) -> list[str]:
    """Return QEMU's arguments; memory has to be memory-backend-memfd.

    Args:
        tlb: what is counted.
        directory: takes the file with the counts, and those with the geometries and ranges; the
            machine's own.
    """
    files: Mapping[str, Sequence[Geometry | Range]] = {
        "geometries": tlb.geometries,
        "ranges": tlb.ranges,
    }
    for name, items in files.items():
        (directory / name).write_text("".join(f"{item.line()}\n" for item in items))
    return plugin.arguments(tlb.plugin, directory, *(f"{n}={directory / n}" for n in files))
