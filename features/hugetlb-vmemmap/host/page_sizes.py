"""Hugepages by the size of base page: how large they are, and what each mode frees of them.

Amounts of a test are written for pages of 4 KiB. With larger pages the same number of struct pages
is about more memory, which is given to the machine: it costs the host little, as nobody writes to
most of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from pagewright.host.workspace import Workspace
from pagewright.kernel.recipes import recipe

HUGEPAGES = "/sys/kernel/mm/hugepages"

_KIB = {"K": 1, "M": 1024, "G": 1024 * 1024}


@dataclass(frozen=True)
class Size:
    """A size of hugepage, as on the command line, and what each mode frees of one, in KiB."""

    name: str
    pause: int
    seamless: int

    @property
    def kib(self) -> int:
        """Its size."""
        return int(self.name[:-1]) * _KIB[self.name[-1]]

    @property
    def pool(self) -> str:
        """Its directory in sysfs."""
        return f"{HUGEPAGES}/hugepages-{self.kib}kB"

    def of_node(self, node: int) -> str:
        """Return its directory of a node."""
        return f"/sys/devices/system/node/node{node}/hugepages/{PurePath(self.pool).name}"

    def freed(self, mode: str) -> int:
        """Return KiB freed of one."""
        return self.pause if mode == "pause" else self.seamless


@dataclass(frozen=True)
class Pages:
    """A size of base page.

    Attributes:
        kib: the size.
        sizes: hugepages, the smallest first: its struct pages fit into one page.
        default: the default size of hugepage, which one entry of the second level maps.
        touched: so many of the default size a program may write to, without taking too much
            memory of the host.
        worth_a_pause: so many of the default size are worth a pause if a task wants them together.
    """

    kib: int
    sizes: tuple[Size, ...]
    default: str
    touched: int
    worth_a_pause: int

    @property
    def large(self) -> Size:
        """The default size."""
        [size] = (size for size in self.sizes if size.name == self.default)
        return size

    @property
    def giant(self) -> Size:
        """The largest, which the page allocator does not have."""
        return self.sizes[-1]

    @property
    def gigantic(self) -> tuple[Size, ...]:
        """All that the page allocator does not have, the smallest first."""
        return self.sizes[self.sizes.index(self.large) + 1 :]

    @property
    def vmemmap_has_blocks(self) -> bool:
        """Tell whether blocks have to be split before struct pages can be freed."""
        return self.kib == 4

    def memory(self, gib: int) -> str:
        """Return how much memory is as many base pages as GiB are with 4 KiB pages."""
        return f"{gib * self.kib // 4}G"

    def number(self, size: Size, gib: float) -> int:
        """Return how many hugepages are as many base pages as GiB are with 4 KiB pages."""
        return int(gib * _KIB["G"]) * self.kib // 4 // size.kib

    def at_most(self, number: int, gib: float) -> int:
        """Return a number of hugepages of the default size, or those of so much memory if less."""
        return min(number, self.number(self.large, gib))

    def entries(self, size: Size) -> int:
        """Return how many entries change when a hugepage is optimized."""
        return size.pause // self.kib

    @property
    def entries_of_a_batch(self) -> int:
        """Tell how many entries change together at most: those of 64 MiB of struct pages."""
        return 64 * _KIB["M"] // self.kib


PAGES_4K = Pages(
    4,
    (
        Size("64K", 0, 0),
        Size("2M", 28, 24),
        Size("32M", 508, 504),
        Size("1G", 16380, 16376),
    ),
    default="2M",
    touched=512,
    worth_a_pause=16,
)
PAGES_16K = Pages(
    16,
    (Size("2M", 0, 0), Size("32M", 112, 96), Size("1G", 4080, 4064)),
    default="32M",
    touched=128,
    worth_a_pause=1,
)
PAGES_64K = Pages(
    64,
    (Size("2M", 0, 0), Size("512M", 448, 384), Size("16G", 16320, 16256)),
    default="512M",
    touched=8,
    worth_a_pause=1,
)


def pages_of(space: Workspace, build: str) -> Pages:
    """Return what base pages a build has."""
    kib = recipe(space, build).page_kib
    return next(pages for pages in (PAGES_4K, PAGES_16K, PAGES_64K) if pages.kib == kib)
