"""What may be done with every page of the kernel, whatever the size of the leaves.

Kernels of different code can be compared by it: pages are counted by what they belong to, and by
all attributes that kernel_page_tables has words for. It makes no difference where the image and
what is allocated are, nor how large the parts of the image are.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import leaves
import page_tables
from page_tables import Line

from pagewright.machine.machine import Machine

# The parts of the kernel image, from one symbol to another.
_PARTS = {
    "header": ("_text", "_stext"),
    "code": ("_stext", "_etext"),
    "constants": ("__start_rodata", "__init_begin"),
    "init": ("__init_begin", "__init_end"),
    "data": ("_data", "_end"),
}

# What is no permission: by how large an entry the page is mapped.
_SIZES = {"CON", "BLK"}

# Areas in which memory comes and goes.
_ALLOCATED = ("Modules start", "vmalloc() area")
# Areas that are always the same.
_FIXED = ("PCI I/O start", "Fixmap start")
_VMEMMAP = "vmemmap start"

# Bytes by attributes.
Sizes = Counter[str]


def less(sizes: Sizes, others: Mapping[str, int]) -> Sizes:
    """Return the difference; what is less than nothing stays in it, and nothing does not."""
    found = Sizes(sizes)
    found.subtract(others)
    return Sizes({kind: size for kind, size in found.items() if size})


@dataclass(frozen=True)
class Permissions:
    """What may be done with every page of the kernel.

    Attributes:
        kinds: the attributes that pages have, by the part of the image that they are, or that
            they are the alias of in the linear map, or by their area.
        default: the attributes that most of the linear map has.
        protected: bytes of the linear map outside the image that have others.
        areas: bytes of modules and vmalloc() outside the image that are not plain data.
        fixed: bytes of other areas.
        mapped: bytes of the linear map, with whatever attributes.
    """

    kinds: dict[str, frozenset[str]]
    default: str
    protected: Sizes
    areas: Sizes
    fixed: dict[str, Sizes]
    mapped: int


def _attributes(flags: Collection[str]) -> str:
    ignored = set(_SIZES)
    # The bit that is nG of a valid entry says of an invalid one, as PTE_PRESENT_INVALID, that it
    # still has an address.
    if "F" in flags:
        ignored.add("NG")
    return " ".join(flag for flag in flags if flag not in ignored)


def _by_place(
    lines: Iterable[Line], places: Mapping[str, tuple[int, int]], rest: str
) -> dict[str, Sizes]:
    """Return the sizes by place, with what is in none of the places as the rest."""
    found = {name: Sizes() for name in (*places, rest)}
    for line in lines:
        outside, attributes = line.end - line.start, _attributes(line.flags)
        for name, (start, end) in places.items():
            inside = max(0, min(line.end, end) - max(line.start, start))
            found[name][attributes] += inside
            outside -= inside
        found[rest][attributes] += outside
    return {name: +sizes for name, sizes in found.items()}


def parse(table: str, image: int, symbols: Mapping[str, int], freed: int = 0) -> Permissions:
    """Return the permissions from the text of kernel_page_tables.

    Args:
        table: the file.
        image: where the image begins, as an offset in RAM.
        symbols: addresses of the symbols between which the parts of the image are.
        freed: how many bytes of KFENCE's pool are invalid because objects were freed. How many
            that are is left to chance, so they are counted as valid.
    """
    lines = list(page_tables.lines(table))
    linear = [line for line in lines if line.area == page_tables.LINEAR_MAP]
    parts = {name: (symbols[start], symbols[end]) for name, (start, end) in _PARTS.items()}
    move = linear[0].start + image - symbols["_text"]
    # The memory of what is needed for the boot alone is anybody's then.
    aliases = {
        f"alias of {name}": (a + move, b + move) for name, (a, b) in parts.items() if name != "init"
    }

    places = _by_place(linear, aliases, "linear map")
    places |= _by_place((line for line in lines if line.area in _ALLOCATED), parts, "areas")
    for name in (*_FIXED, _VMEMMAP):
        places |= _by_place((line for line in lines if line.area == name), {}, name)

    protected = places.pop("linear map")
    default = max(protected, key=lambda kind: protected[kind])
    del protected[default]
    plain = {"RW", "NX"}
    areas = {kind: size for kind, size in places["areas"].items() if not plain <= {*kind.split()}}
    return Permissions(
        {name: frozenset(sizes) for name, sizes in places.items() if name not in _FIXED},
        default,
        less(protected, {_attributes(("F", *default.split())): freed}),
        Sizes(areas),
        {name: places[name] for name in _FIXED},
        sum(line.end - line.start for line in linear),
    )


class Reader:
    """Reads the permissions of a running machine, which has KFENCE, again and again.

    Attributes:
        page: the kernel's page size.
    """

    def __init__(self, place: Machine) -> None:
        """Find out where the image is."""
        self._place = place
        self.page = int(place.check("getconf PAGESIZE"))
        self._image = leaves.parse_image(place.check("cat /proc/iomem"))[0]
        names = "|".join(sorted({symbol for part in _PARTS.values() for symbol in part}))
        symbols = place.check(f"grep -E ' ({names})$' /proc/kallsyms").splitlines()
        self._symbols = {line.split()[2]: int(line.split()[0], 16) for line in symbols}

    def read(self) -> Permissions:
        """Return the permissions at this moment."""
        table, stats = self._place.read(page_tables.FILE, "/sys/kernel/debug/kfence/stats")
        counts = dict(re.findall(r"^(.+): (\d+)$", stats, re.MULTILINE))
        # No object is used twice before all of them were used once.
        freed = int(counts["total allocations"]) - int(counts["currently allocated"])
        return parse(table, self._image, self._symbols, freed * self.page)
