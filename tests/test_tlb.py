"""The machine that counts what TLBs miss: its model, the geometries, and a guest on it."""

from __future__ import annotations

import ctypes
import itertools
import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pagewright.guest import programs
from pagewright.host import workspace
from pagewright.host.errors import MachineError
from pagewright.host.run import run
from pagewright.host.toolchain import HOST_GCC, encodings
from pagewright.machine import tlb
from pagewright.machine.options import MachineOptions
from pagewright.machine.tlb import Geometry, Tlb
from pagewright.results.experiment import Values, load, parse_values
from pagewright.results.misses import GEOMETRIES, Cost

SPACE = workspace.find()
HARNESS = Path(__file__).with_name("tlb") / "harness.c"
SOURCES = [file for file in tlb.sources() if file.name not in ("plugin.c", "qemu.c", "qemu.h")]

RAM = 0x40000000
ROOT, LEVEL_1, LEVEL_2 = RAM + 0x10000, RAM + 0x11000, RAM + 0x12000
# Tables for user addresses, by address space.
USER_ROOTS = {1: RAM + 0x20000, 2: RAM + 0x24000}
# So many tables of pages, one after the other.
LEVEL_3 = RAM + 0x100000
TABLES = 24
# What pages map, each at its place in a large memory of which only the tables are there.
MEMORY = 0x1_0000_0000
# 48 bits both, pages of 4 KiB, ASID of TTBR1.
TCR = 16 << 16 | 2 << 30 | 1 << 22 | 16
# The linear map, and the other half of the kernel's addresses.
VA = 0xFFFF_0000_0000_0000
OTHER_VA = 0xFFFF_8000_0000_0000
USER_VA = 0

PAGE, BLOCK, GIGABYTE = 1 << 12, 1 << 21, 1 << 30
VALID, TABLE, AF, NOT_GLOBAL, CONTIGUOUS = 1, 2, 1 << 10, 1 << 11, 1 << 52

LINEAR, STRUCT_PAGES, OTHER, FOR_USER, USER, KERNEL_CODE, USER_CODE, RANGE = range(8)
L1, L2, LOADS = range(3)
# The address after the last struct page.
STRUCT_PAGES_END = 0xFFFF_FFFF_C000_0000
# As TCR_EL1 has the sizes of pages, by the number of their bits.
GRANULES = {12: 2, 14: 1, 16: 3}

# Small enough to be filled by hand: pages of these tests do not coalesce unless they say so.
SMALL = Geometry(
    "small",
    l1_data=48,
    l1_code=16,
    l1_sizes=PAGE | 16 * PAGE | BLOCK,
    l2=1280,
    l2_ways=5,
    l2_sizes=PAGE | 16 * PAGE | BLOCK | 16 * BLOCK | GIGABYTE,
    walk=16,
    coalesced=1,
)


class Model:
    """The model, with a guest's tables."""

    def __init__(self, library: Path, *geometries: Geometry) -> None:
        """Map pages: consecutive ones, from the first address of the linear map on."""
        self._c = ctypes.CDLL(str(library))
        for name in ("event", "accesses", "unknown", "instructions"):
            getattr(self._c, f"test_{name}").restype = ctypes.c_uint64
        self._c.tlb_class_name.restype = ctypes.c_char_p
        for geometry in geometries:
            assert self._c.tlb_geometry(geometry.line().encode())
        self.write(ROOT, LEVEL_1 | VALID | TABLE)
        self.write(ROOT + 256 * 8, LEVEL_1 | VALID | TABLE)
        self.write(LEVEL_1, LEVEL_2 | VALID | TABLE)
        for table in range(TABLES):
            self.write(LEVEL_2 + 8 * table, LEVEL_3 + table * PAGE | VALID | TABLE)
        for index in range(TABLES * 512):
            self.page(index)
        for asid, root in USER_ROOTS.items():
            for level in range(3):
                self.write(root + level * PAGE, root + (level + 1) * PAGE | VALID | TABLE)
            for index in range(512):
                leaf = MEMORY + (asid << 24) + index * PAGE
                self.write(root + 3 * PAGE + 8 * index, leaf | VALID | TABLE | AF | NOT_GLOBAL)
        for cpu in (0, 1):
            self.start(cpu)

    def start(self, cpu: int, asid: int = 1) -> None:
        """Let a CPU begin to translate."""
        self.ttbr1(cpu, asid)
        self._c.tlb_ttbr0(cpu, ctypes.c_uint64(USER_ROOTS[asid]))
        self._c.tlb_tcr(cpu, ctypes.c_uint64(TCR))

    def ttbr1(self, cpu: int, asid: int) -> None:
        """Load the kernel's tables, with the number of an address space."""
        self._c.tlb_ttbr1(cpu, ctypes.c_uint64(asid << 48 | ROOT))

    def map_all(self, page_shift: int, va_bits: int) -> None:
        """Have all addresses of the kernel mapped by blocks, as tables of these sizes do it."""
        lpa2 = va_bits > 48 and page_shift < 16
        stride = page_shift - 3
        root = 4 - -(-(va_bits - page_shift) // stride)
        tables = {level: RAM + 0x200000 + (level + 1) * 0x10000 for level in range(-1, 3)}
        for level in range(root, 3):
            entry = tables[level + 1] | TABLE if level < 2 else MEMORY
            for index in range(1 << stride):
                self.write(tables[level] + 8 * index, entry | VALID | AF)
        tcr = (64 - va_bits) << 16 | GRANULES[page_shift] << 30 | lpa2 << 59 | 1 << 22 | 16
        self._c.tlb_ttbr1(0, ctypes.c_uint64(tables[root]))
        self._c.tlb_tcr(0, ctypes.c_uint64(tcr))

    def range(self, line: str) -> bool:
        """Tell a range of addresses apart."""
        return self._c.tlb_range(line.encode()) & 1 == 1

    def classes(self) -> list[str]:
        """Return the names of what is told apart."""
        return [self._c.tlb_class_name(one).decode() for one in range(self._c.tlb_classes())]

    def switch(self, asid: int, cpu: int = 0) -> None:
        """Switch to the address space of another program."""
        self.ttbr1(cpu, asid)
        self._c.tlb_ttbr0(cpu, ctypes.c_uint64(USER_ROOTS[asid]))

    def switch_in_ttbr0(self, asid: int) -> None:
        """Load the tables of a program with its ASID, as where TCR.A1 is 0."""
        self._c.tlb_tcr(0, ctypes.c_uint64(TCR & ~(1 << 22)))
        self._c.tlb_ttbr0(0, ctypes.c_uint64(USER_ROOTS[asid] | asid << 48))

    def write(self, pa: int, value: int) -> None:
        """Write to memory."""
        self._c.test_write(ctypes.c_uint64(pa), ctypes.c_uint64(value))

    def page(self, index: int, more: int = 0, frame: int | None = None) -> None:
        """Have a page of the linear map mapped."""
        leaf = MEMORY + (index if frame is None else frame) * PAGE
        self.write(LEVEL_3 + 8 * index, leaf | VALID | TABLE | AF | more)

    def block(self, index: int, more: int = 0) -> None:
        """Have a block of 2 MiB mapped in place of pages."""
        self.write(LEVEL_2 + 8 * index, MEMORY + index * BLOCK | VALID | AF | more)

    def access(self, *addresses: int, cpu: int = 0, kernel: bool = True) -> None:
        """Load or store data."""
        for address in addresses:
            self._c.tlb_data(cpu, ctypes.c_uint64(address), kernel)

    def execute(self, *addresses: int, kernel: bool = True) -> None:
        """Execute ten instructions at each address."""
        for address in addresses:
            self._c.tlb_code(0, ctypes.c_uint64(address), kernel, 10)

    def pages(self, *indices: int, size: int = PAGE, cpu: int = 0) -> None:
        """Use pages of the linear map, or pieces of another size, in this order."""
        self.access(*(VA + index * size for index in indices), cpu=cpu)

    def tlbi(self, text: str, operand: int = 0, cpu: int = 0) -> None:
        """Execute a TLBI."""
        self._c.tlb_tlbi(cpu, CODES[text], ctypes.c_uint64(operand))

    def count(self, event: int, of: int = LINEAR, cpu: int = 0, geometry: int = 0) -> int:
        """Return how often something happened."""
        return self._c.test_event(cpu, geometry, of, event)

    def accesses(self, of: int = LINEAR, cpu: int = 0) -> int:
        """Return how many accesses there were."""
        return self._c.test_accesses(cpu, of)

    def instructions(self, user: bool = False) -> int:
        """Return how many instructions the first CPU has executed."""
        return self._c.test_instructions(0, user)

    def unknown(self) -> int:
        """Return how many accesses were not translated."""
        return self._c.test_unknown(0)

    def misses(self, of: int = LINEAR, cpu: int = 0, geometry: int = 0) -> tuple[int, int]:
        """Return how often L1 was missed, and L2."""
        return self.count(L1, of, cpu, geometry), self.count(L2, of, cpu, geometry)


CODES = encodings(
    "tlbi vmalle1is",
    "tlbi vmalle1",
    "tlbi vaae1is, x0",
    "tlbi vaale1is, x0",
    "tlbi vae1is, x0",
    "tlbi vale1, x0",
    "tlbi aside1is, x0",
    "tlbi rvaae1is, x0",
)


def operand(va: int, asid: int = 0) -> int:
    return va >> 12 & (1 << 44) - 1 | asid << 48


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("tlb") / "model.so"
    code = [source for source in SOURCES if source.suffix == ".c"]
    folder = Path(tlb.__file__).with_name("tlb")
    run([HOST_GCC, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
         "-I", folder, "-o", file, *code, HARNESS])  # fmt: skip
    return file


@pytest.fixture
def model(library, tmp_path):
    """Make models; each is a copy of the library, as their state is in there."""
    numbers = itertools.count()

    def make(*geometries: Geometry) -> Model:
        copy = shutil.copy(library, tmp_path / f"model{next(numbers)}.so")
        return Model(copy, *(geometries or [SMALL]))

    return make


# --- Misses ---------------------------------------------------------------------


def test_as_many_pages_as_l1_has_entries_miss_once(model):
    it = model()
    it.pages(*list(range(48)) * 10)
    assert it.misses() == (48, 48)
    assert it.accesses() == 480


def test_a_page_more_misses_each_time(model):
    """The least recently used entry makes room, which always is the next one needed."""
    it = model()
    it.pages(*list(range(49)) * 10)
    assert it.misses() == (490, 49)


def test_l1_of_code_has_a_size_of_its_own(model):
    it = model()
    it.execute(*[VA + n * PAGE for n in range(17)] * 10)
    assert it.misses(KERNEL_CODE) == (170, 17)


def test_a_page_that_is_used_often_stays(model):
    it = model()
    for index in range(1, 1000):
        it.pages(0, index)
    assert it.misses() == (1000, 1000)


def test_l2_holds_what_l1_does_not(model):
    it = model()
    it.pages(*list(range(1280)) * 2)
    assert it.misses() == (2560, 1280)


def test_as_many_pages_of_a_set_as_it_has_ways_miss_l2_once(model):
    """256 sets: every 256th page is in the same one. L1 is too small for them and 48 others."""
    it = model()
    for _ in range(10):
        it.pages(*(256 * n for n in range(5)))
        it.pages(*(256 * n + 1 + n % 7 for n in range(5, 35)), *range(10, 30))
    assert it.count(L2) == 55
    assert it.count(L1) == 550


def test_a_page_more_than_ways_misses_l2_each_time(model):
    it = model(replace(SMALL, l1_data=1))
    it.pages(*[256 * n for n in range(6)] * 10)
    assert it.misses() == (60, 60)


def test_all_geometries_see_the_same_accesses(model):
    it = model(SMALL, replace(SMALL, l1_data=49), replace(SMALL, l1_data=1, l2=5, l2_ways=5))
    it.pages(*list(range(49)) * 10)
    assert it.misses(geometry=0) == (490, 49)
    assert it.misses(geometry=1) == (49, 49)
    assert it.misses(geometry=2) == (490, 490)


def test_each_cpu_has_its_own(model):
    it = model()
    it.pages(1, 2, 1, 2)
    it.pages(1, 2, 3, cpu=1)
    assert it.misses(cpu=0) == (2, 2)
    assert it.misses(cpu=1) == (3, 3)


def test_accesses_to_recent_pages_are_told_in_the_right_order(model):
    """With a TLB of one entry beside it, an L1 is told of each access to another page at once."""
    small = replace(SMALL, l1_data=20, coalesced=4)
    quick, slow = model(small), model(small, replace(SMALL, l1_data=1))
    for it in (quick, slow):
        it.block(3)
        choose = random.Random(1)
        for _ in range(20000):
            # Few pages often, and many seldom; some are in a block.
            index = choose.choice(
                [choose.randrange(12), choose.randrange(30), 1500 + choose.randrange(200)]
            )
            it.pages(index)
            it.access(index % 40 * PAGE, kernel=False)
            if not choose.randrange(50):
                it.switch(choose.choice([1, 2]))
            if not choose.randrange(200):
                it.tlbi("tlbi vaae1is, x0", operand(VA + choose.randrange(30) * PAGE))
    counts = [
        [it.count(event, of) for event in (L1, L2, LOADS) for of in range(RANGE)]
        for it in (quick, slow)
    ]
    assert counts[0] == counts[1]
    assert 1000 < quick.count(L1) < 19000


# --- Walks ----------------------------------------------------------------------


def test_the_first_walk_loads_a_descriptor_of_each_level(model):
    it = model()
    it.pages(0)
    assert it.count(LOADS) == 4


def test_a_walk_begins_at_the_lowest_table_that_is_known(model):
    it = model()
    it.pages(0, 1)
    assert it.count(LOADS) == 4 + 1
    # The next table of pages is another one, and the table above it is the same.
    it.pages(512)
    assert it.count(LOADS) == 4 + 1 + 2


def test_a_block_takes_a_load_less(model):
    it = model()
    it.block(0)
    it.pages(0)
    assert it.count(LOADS) == 3


def test_tables_that_are_used_least_are_forgotten(model):
    """Of four tables of pages and the two above, three entries hold those used last."""
    it = model(replace(SMALL, walk=3, l1_data=1, l2=5, l2_ways=5))
    it.pages(0, 512, 1024, 1536)
    first = it.count(LOADS)
    assert first == 4 + 2 + 2 + 2
    it.pages(1)
    assert it.count(LOADS) == first + 2


def test_entries_for_tables_take_room_in_l2_if_they_are_there(model):
    """Of two entries one is that of the table with which each walk begins."""
    it = model(replace(SMALL, walk=0, l1_data=1, l2=2, l2_ways=2))
    it.pages(0, 1, 0, 1)
    assert it.count(L2) == 4
    assert it.count(LOADS) == 4 + 1 + 1 + 1
    apart = model(replace(SMALL, walk=3, l1_data=1, l2=2, l2_ways=2))
    apart.pages(0, 1, 0, 1)
    assert apart.count(L2) == 2


# --- Sizes ----------------------------------------------------------------------


def test_a_block_is_one_entry(model):
    it = model()
    it.block(0)
    it.pages(*range(512))
    assert it.misses() == (1, 1)


def test_a_contiguous_group_is_one_entry(model):
    it = model()
    for index in range(16):
        it.page(index, CONTIGUOUS)
    it.pages(*range(17))
    assert it.misses() == (2, 2)


def test_a_contiguous_group_of_blocks_is_fractured_in_l1(model):
    it = model()
    for index in range(16):
        it.block(index, CONTIGUOUS)
    it.pages(*range(16), size=BLOCK)
    assert it.misses() == (16, 1)
    it.pages(*range(16), size=BLOCK)
    assert it.misses() == (16, 1)


def test_a_gigabyte_is_fractured_in_l1(model):
    it = model()
    it.write(LEVEL_1, MEMORY | VALID | AF)
    it.pages(0, 1, 511, size=BLOCK)
    assert it.misses() == (3, 1)
    assert it.count(LOADS) == 2


def test_what_l2_cannot_hold_is_fractured_there(model):
    it = model(replace(SMALL, l2_sizes=PAGE | BLOCK, l1_sizes=PAGE | BLOCK // 2))
    for index in range(16):
        it.block(index, CONTIGUOUS)
    it.pages(*range(32), size=BLOCK // 2)
    assert it.misses() == (32, 16)


def test_pages_that_follow_each_other_in_memory_share_an_entry_of_l2(model):
    """In L1 they do not, though it has entries of that size."""
    it = model(replace(SMALL, coalesced=4, l1_sizes=SMALL.l1_sizes | 4 * PAGE))
    it.pages(*range(8))
    assert it.misses() == (8, 2)
    assert it.count(LOADS) == 4 + 1


@pytest.mark.parametrize(
    ("more", "frames"),
    [
        (0, [1, 2, 3, 4]),
        (0, [0, 1, 3, 2]),
        (VALID, [0, 1, 2, None]),
        (NOT_GLOBAL, [0, 1, 2, 3]),
    ],
    ids=["misaligned", "out of order", "one missing", "one differs"],
)
def test_pages_that_do_not_match_share_none(model, more, frames):
    it = model(replace(SMALL, coalesced=4))
    for index, frame in enumerate(frames):
        it.page(index, more if index == 3 else 0, frame)
    if None in frames:
        it.write(LEVEL_3 + 8 * 3, 0)
    it.pages(0, 1, 2)
    assert it.misses() == (3, 3)


# --- Address spaces -------------------------------------------------------------


def test_programs_have_entries_of_their_own(model):
    it = model()
    it.access(USER_VA, USER_VA + PAGE, kernel=False)
    it.switch(2)
    it.access(USER_VA, USER_VA + PAGE, kernel=False)
    assert it.misses(USER) == (4, 4)
    # Nor does one know of the tables of the other.
    assert it.count(LOADS, USER) == 2 * (4 + 1)
    it.switch(1)
    it.access(USER_VA, USER_VA + PAGE, kernel=False)
    assert it.misses(USER) == (4, 4)


def test_entries_of_the_kernel_are_of_all_programs(model):
    it = model()
    it.pages(0)
    it.switch(2)
    it.pages(0)
    assert it.misses() == (1, 1)


def test_who_accesses_what(model):
    it = model()
    it.pages(0)
    it.access(OTHER_VA)
    it.access(USER_VA)
    it.access(USER_VA + PAGE, kernel=False)
    it.execute(OTHER_VA + PAGE)
    it.execute(USER_VA, USER_VA, kernel=False)
    of_each = [LINEAR, OTHER, FOR_USER, USER, KERNEL_CODE, USER_CODE]
    assert [it.accesses(of) for of in of_each] == [1, 1, 1, 1, 1, 2]
    # What data has brought to L2 is there for instructions.
    assert [it.misses(of) for of in of_each] == [(1, 1)] * 5 + [(1, 0)]
    assert (it.instructions(), it.instructions(user=True)) == (10, 20)


@pytest.mark.parametrize(
    ("page_shift", "va_bits", "linear_end", "first"),
    [
        (12, 39, 0xFFFF_FFC0_0000_0000, 0xFFFF_FFFE_C000_0000),
        (12, 48, 0xFFFF_8000_0000_0000, 0xFFFF_FDFF_C000_0000),
        (12, 52, 0xFFFF_8000_0000_0000, 0xFFFF_C1FF_C000_0000),
        (14, 47, 0xFFFF_C000_0000_0000, 0xFFFF_FFBF_C000_0000),
        (14, 52, 0xFFFF_C000_0000_0000, 0xFFFF_F03F_C000_0000),
        (16, 42, 0xFFFF_FE00_0000_0000, 0xFFFF_FFFF_4000_0000),
        (16, 52, 0xFFFF_8000_0000_0000, 0xFFFF_FC1F_C000_0000),
    ],
)
def test_the_linear_map_and_struct_pages_are_where_linux_has_them(
    model, page_shift, va_bits, linear_end, first
):
    it = model()
    it.map_all(page_shift, va_bits)
    for address, of in (
        (linear_end - 8, LINEAR),
        (linear_end, OTHER),
        (first - 8, OTHER),
        (first, STRUCT_PAGES),
        (STRUCT_PAGES_END - 8, STRUCT_PAGES),
        (STRUCT_PAGES_END, OTHER),
    ):
        before = it.accesses(of)
        it.access(address)
        assert it.accesses(of) == before + 1, hex(address)


def test_struct_pages_miss_as_they_are_mapped(model):
    """By blocks, those of 48 times 128 MiB have an entry each in L1; one more has none."""
    it = model()
    it.map_all(12, 48)
    for blocks, l1 in ((48, 48), (49, 49 + 9 * 49)):
        it.tlbi("tlbi vmalle1")
        before = it.count(L1, STRUCT_PAGES)
        for _ in range(10):
            it.access(*(STRUCT_PAGES_END - (index + 1) * BLOCK for index in range(blocks)))
        assert it.count(L1, STRUCT_PAGES) - before == l1


def test_ranges_are_classes_of_their_own(model):
    it = model()
    assert it.range(f"low {OTHER_VA:x} {OTHER_VA + 2 * PAGE - 1:x}")
    assert it.range(f"high {OTHER_VA + 3 * PAGE:x} {OTHER_VA + 4 * PAGE - 1:x}")
    assert it.classes() == [*tlb.CLASSES, "low", "high"]
    for _ in range(2):
        it.access(*(OTHER_VA + n * PAGE for n in range(5)), OTHER_VA + 2 * PAGE - 1)
    it.access(0x5A << 56 | OTHER_VA & (1 << 56) - 1)
    it.pages(0)
    assert [it.accesses(of) for of in (LINEAR, OTHER, RANGE, RANGE + 1)] == [1, 4, 7, 2]
    assert [it.misses(of) for of in (LINEAR, OTHER, RANGE, RANGE + 1)] == [
        (1, 1),
        (2, 2),
        (2, 2),
        (1, 1),
    ]
    # Code is not data, wherever it is.
    it.execute(OTHER_VA)
    assert it.accesses(RANGE) == 7


@pytest.mark.parametrize("line", ["x", "x ffff800000000000", "x ffff800000001000 ffff800000000000"])
def test_what_is_no_range(model, line):
    it = model()
    assert not it.range(line)
    assert it.classes() == list(tlb.CLASSES)


def test_no_more_ranges_than_there_is_room_for(model):
    it = model()
    taken = [it.range(f"r{n} {OTHER_VA + n:x} {OTHER_VA + n:x}") for n in range(5)]
    assert taken == [True] * tlb.MAX_RANGES + [False]


def test_an_address_with_a_tag_is_that_address(model):
    it = model()
    it.access(USER_VA, 0x5A << 56 | USER_VA, kernel=False)
    assert it.misses(USER) == (1, 1)


def test_what_is_not_mapped_is_not_counted_as_missed(model):
    it = model()
    it.access(VA + (TABLES << 21))
    assert it.misses() == (0, 0)
    assert it.unknown() == 1


# --- Invalidations --------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "again", "loads"),
    [
        ("tlbi vmalle1is", 0, 3, 4 + 1 + 1),
        ("tlbi vmalle1", 0, 3, 4 + 1 + 1),
        # With the tables above it, and without.
        ("tlbi vaae1is, x0", operand(VA + PAGE), 1, 4),
        ("tlbi vaale1is, x0", operand(VA + PAGE), 1, 1),
        # Global entries are of every address space, and of none.
        ("tlbi vae1is, x0", operand(VA + PAGE, asid=7), 1, 4),
        ("tlbi aside1is, x0", 1 << 48, 0, 0),
        # Two pages, from the first on.
        ("tlbi rvaae1is, x0", 1 << 46 | (VA >> 12 & (1 << 37) - 1), 2, 4 + 1),
        ("tlbi vaae1is, x0", operand(VA + 5 * PAGE), 0, 0),
    ],
)
def test_what_is_invalidated_misses_again(model, text, value, again, loads):
    it = model()
    it.pages(0, 1, 2)
    before = it.count(LOADS)
    it.tlbi(text, value)
    it.pages(0, 1, 2)
    assert it.misses() == (3 + again, 3 + again)
    # An invalidation of an address leaves the tables above others alone, unless they are the same.
    assert it.count(LOADS) - before == loads


def test_only_broadcast_invalidations_reach_other_cpus(model):
    it = model()
    it.pages(0, cpu=0)
    it.pages(0, cpu=1)
    it.tlbi("tlbi vmalle1")
    it.pages(0, cpu=1)
    assert it.misses(cpu=1) == (1, 1)
    it.tlbi("tlbi vmalle1is")
    it.pages(0, cpu=1)
    assert it.misses(cpu=1) == (2, 2)


def test_an_address_space_is_invalidated_alone(model):
    it = model()
    for asid in (1, 2):
        it.switch(asid)
        it.access(USER_VA, kernel=False)
    it.tlbi("tlbi aside1is, x0", 1 << 48)
    it.access(USER_VA, kernel=False)
    assert it.misses(USER) == (2, 2)
    it.switch(1)
    it.access(USER_VA, kernel=False)
    assert it.misses(USER) == (3, 3)


def test_the_register_of_programs_has_the_address_space_if_the_kernel_says_so(model):
    it = model()
    for asid, misses in ((1, 1), (2, 2), (1, 2)):
        it.switch_in_ttbr0(asid)
        it.access(USER_VA, kernel=False)
        assert it.misses(USER) == (misses, misses)


def test_an_address_is_invalidated_in_all_address_spaces(model):
    it = model()
    it.access(USER_VA, kernel=False)
    it.tlbi("tlbi vaae1is, x0", operand(USER_VA, asid=2))
    it.access(USER_VA, kernel=False)
    assert it.misses(USER) == (2, 2)


def test_code_is_invalidated_like_data(model):
    it = model()
    it.execute(VA)
    it.tlbi("tlbi vmalle1")
    it.execute(VA)
    assert it.misses(KERNEL_CODE) == (2, 2)


def test_an_address_is_invalidated_in_its_address_space(model):
    it = model()
    for asid in (1, 2):
        it.switch(asid)
        it.access(USER_VA, kernel=False)
    it.tlbi("tlbi vae1is, x0", operand(USER_VA, asid=1))
    it.access(USER_VA, kernel=False)
    assert it.misses(USER) == (2, 2)
    it.switch(1)
    it.access(USER_VA, kernel=False)
    assert it.misses(USER) == (3, 3)


@pytest.mark.parametrize("index", range(4))
def test_pages_that_share_an_entry_are_invalidated_together(model, index):
    it = model(replace(SMALL, coalesced=4, l1_data=1))
    it.pages(0, 1, 2, 3)
    it.tlbi("tlbi vaale1is, x0", operand(VA + index * PAGE))
    it.pages(0, 1, 2, 3)
    assert it.count(L2) == 2


def test_all_pieces_of_a_leaf_are_invalidated(model):
    it = model()
    it.write(LEVEL_1, MEMORY | VALID | AF)
    it.pages(0, 1, 2, size=BLOCK)
    it.tlbi("tlbi vaale1is, x0", operand(VA))
    it.pages(2, 1, 0, size=BLOCK)
    assert it.misses() == (6, 2)


def test_a_contiguous_group_is_invalidated_as_a_whole(model):
    it = model()
    for index in range(16):
        it.page(index, CONTIGUOUS)
    it.pages(0)
    it.tlbi("tlbi vaale1is, x0", operand(VA + 9 * PAGE))
    it.pages(0)
    assert it.misses() == (2, 2)


# --- Geometries -----------------------------------------------------------------


def test_geometries_are_well_formed():
    geometries = {geometry.name: geometry for geometry in tlb.read()}
    n1 = geometries["neoverse-n1"]
    assert (n1.l1_data, n1.l2, n1.l2_ways, n1.walk, n1.coalesced) == (48, 1280, 5, 0, 4)
    assert n1.l1_sizes == PAGE | 4 * PAGE | 16 * PAGE | BLOCK
    assert len(geometries) <= tlb.MAX_GEOMETRIES


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"l2_ways": 7}, "1280 entries cannot be sets of 7"),
        ({"coalesced": 3}, "3 pages cannot coalesce"),
        ({"l1_data": 0}, "must have entries"),
        ({"name": "two words"}, "no space"),
        ({"walk": -1}, "walk is -1"),
    ],
)
def test_geometries_that_cannot_be(changes, message):
    with pytest.raises(MachineError, match=message):
        replace(SMALL, **changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[x]\nl2 = 4\n", "too much or too little"),
        (tlb.GEOMETRIES.read_text().replace('"64K"', '"65K"', 1), "'65K' is no size"),
        (tlb.GEOMETRIES.read_text().replace('"64K"', '"64"', 1), "'64' is no size"),
    ],
)
def test_files_of_geometries_that_cannot_be(tmp_path, text, message):
    file = tmp_path / "geometries.toml"
    file.write_text(text)
    with pytest.raises(MachineError, match=message):
        tlb.read(file)


def test_the_plugin_has_room_for_as_much_as_it_is_given():
    header = (SPACE.root / "pagewright/machine/tlb/tlb.h").read_text()
    sizes = dict(re.findall(r"#define\s+(MAX_\w+)\s+(\d+)", header))
    assert int(sizes["MAX_GEOMETRIES"]) == tlb.MAX_GEOMETRIES
    assert int(sizes["MAX_NAME"]) == tlb.MAX_NAME + 1
    assert int(sizes["MAX_RANGES"]) == tlb.MAX_RANGES
    assert int(sizes["MAX_RANGE_NAME"]) == tlb.MAX_RANGE_NAME + 1


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"x": "ffff800000000000"}, "is not one"),
        ({"x": "ffff800000001000-ffff800000000000"}, "in this order"),
        ({"x": "0-fff"}, "addresses of the kernel"),
        ({"linear": "ffff800000000000-ffff800000000fff"}, "there is a class of that name"),
        ({"two words": "ffff800000000000-ffff800000000fff"}, "no space"),
        ({"x" * 16: "ffff800000000000-ffff800000000fff"}, "1 to 15 characters"),
    ],
)
def test_ranges_that_cannot_be(texts, message):
    with pytest.raises(MachineError, match=message):
        tlb.ranges(texts)


def test_ranges_do_not_overlap():
    apart = tlb.ranges(
        {"x": "ffff800000000000-ffff800000000fff", "y": f"{OTHER_VA + PAGE:x}-{-1 % 2**64:x}"}
    )
    assert [one.line() for one in Tlb(Path("plugin"), [SMALL], apart).ranges] == [
        "x ffff800000000000 ffff800000000fff",
        "y ffff800000001000 ffffffffffffffff",
    ]
    for other in (replace(apart[1], first=OTHER_VA + PAGE - 1), replace(apart[1], name="x")):
        with pytest.raises(MachineError, match="are not apart"):
            Tlb(Path("plugin"), [SMALL], [apart[0], other])
    five = [replace(apart[1], name=f"r{n}") for n in range(5)]
    with pytest.raises(MachineError, match="5 ranges cannot be told apart"):
        Tlb(Path("plugin"), [SMALL], five)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "in one thread"),
        ({"icount": True, "smp": 2}, "QEMU tells the plugin of the wrong CPU"),
        ({"icount": True, "count": Path("x")}, "counts instructions itself"),
        ({"single_threaded": True, "accel": "kvm"}, "which KVM cannot"),
    ],
)
def test_machines_that_cannot_count_misses(options, message):
    counted = Tlb(Path("plugin"), [SMALL])
    with pytest.raises(MachineError, match=message):
        MachineOptions(Path("k"), Path("r"), tlb=counted, **options)
    with pytest.raises(MachineError, match="cannot be simulated at once"):
        Tlb(Path("plugin"), [])


# --- What an operation costs ----------------------------------------------------

# What the n-th class misses, for each operation: 1, 10, 100 and so on, and of loads twice that.
RANGES_OF_EXPERIMENT = ("percpu-local", "percpu-areas")
WEIGHTS = {one: 10**n for n, one in enumerate((*tlb.CLASSES, *RANGES_OF_EXPERIMENT))}


def printed(few: int, many: int, of_each: int, **more: int) -> Values:
    """Return what a work prints if so many operations of each of few and many cost as much."""
    values = {"few": few, "many": many, **more}
    for label, number in (("few", few), ("many", many)):
        # Beginning costs seven in any case.
        values[f"{label} kernel"] = 7 + 1000 * number * of_each
        for one, weight in WEIGHTS.items():
            values[f"{label} accesses {one}"] = 7 + 5 * weight * number * of_each
            for geometry in GEOMETRIES:
                for event, factor in (("l1", 1), ("l2", 1), ("loads", 2)):
                    count = 7 + factor * weight * number * of_each
                    values[f"{label} {geometry} {one} {event}"] = count
    return {key: str(value) for key, value in values.items()}


def figures(side: str, work: str, values: Values) -> dict[tuple[str, str], float]:
    experiment = load(SPACE, "tlb-reach")
    return {(one.group, one.name): one.number for one in experiment.quantities(side, work, values)}


def test_an_operation_costs_the_difference_of_many_and_few():
    cost = Cost(printed(few=100, many=300, of_each=2), operations=400)
    assert cost.of("neoverse-n1", "l1", ("linear",)) == 1
    assert cost.of("cortex-a72", "loads", ("struct-pages", "user")) == 2 * (10 + 10000)
    assert cost.accesses(("other",)) == 5 * 100
    rows = list(cost.rows("table", "both", ("linear", "other"), events=("l2", "loads")))
    assert [(one.name, one.unit, one.number) for one in rows] == [
        (f"{geometry}, both: {name}", unit, number)
        for name, unit, number in (
            ("L2 misses", "misses", 101),
            ("descriptors loaded", "loads", 202),
        )
        for geometry in GEOMETRIES
    ]


def test_kernel_data_is_all_that_is_told_apart_of_it():
    # A set and a get.
    found = figures("patched", "memcached, memory scattered", printed(100, 1100, of_each=2))
    group = "memcached, memory scattered: misses for each set or get"
    assert {where for where, _ in found} == {group}
    # All but programs' data and instructions.
    assert found[group, "neoverse-n1, kernel data: L1 misses"] == 110001111
    assert found[group, "cortex-a72, struct pages: L2 misses"] == 10
    assert found[group, "sweep-40-1024, per-CPU data, local: descriptors loaded"] == 2 * 10**7
    assert found[group, "accesses, per-CPU data, areas"] == 5 * 10**8
    assert found[group, "neoverse-n1, kernel: L1 misses in 1000 of its instructions"] == 110101111


def test_kernels_without_the_ranges_have_no_rows_of_them():
    values = printed(100, 1100, of_each=2)
    on_base, patched = (
        figures(side, "memcached, memory scattered", values) for side in ("base", "patched")
    )
    missing = {name for _, name in patched.keys() - on_base.keys()}
    assert len(missing) == 2 * (3 * len(GEOMETRIES) + 1)
    assert all("per-CPU data" in name for name in missing)
    # There it is other data of the kernel.
    name = ("memcached, memory scattered: misses for each set or get",
            "neoverse-n1, kernel data: L1 misses")  # fmt: skip
    assert on_base[name] == patched[name]


def test_a_fork_is_counted_by_its_hugepages():
    found = figures("seamless", "fork, hugepages", printed(1, 9, of_each=512, pages=512))
    group = "fork, hugepages: misses for each hugepage of a child"
    assert found[group, "neoverse-n1, struct pages: L1 misses"] == 10


def test_works_have_their_numbers_filled_in():
    experiment = load(SPACE, "tlb-reach")
    for quick in (True, False):
        for part in experiment.parts(quick):
            for work in part.works:
                left = re.findall(r"\b(?:FEW|MANY|SIZE|PAGES|MOST|CPUS)\b", work.command)
                assert left == [], work.name
            assert len({work.name for work in part.works}) == len(part.works)


# --- A guest --------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.skipif("config.getoption('lg_env')", reason="counts in QEMU")
def test_counts_of_a_guest_repeat(machine):
    """And are of what the command does: reading twice as much misses about twice as often."""
    guest = machine("base-4k", icount=True, tlb=True)
    guest.check("dd if=/dev/zero of=/tmp/file bs=1M count=8 2>/dev/null")

    def counts(blocks: int) -> dict[str, int]:
        read = f"dd if=/tmp/file of=/dev/null bs=64k count={blocks} 2>/dev/null"
        text = guest.check(f"{programs.path('percpu-local', 'count')} {read}")
        return {key: int(value) for key, value in parse_values(text).items()}

    # From the first count on there are TLBs, which the next reading fills.
    counts(1)
    counts(128)
    once, twice, again = counts(64), counts(128), counts(128)
    # 4 MiB more: each page is missed once, or twice if its first copy is cut short.
    for key in ("neoverse-n1 linear l1", "cortex-a72 linear l1", "sweep-40-1024 linear l2"):
        assert 1000 < twice[key] - once[key] < 2500
        assert again[key] == pytest.approx(twice[key], rel=0.1)
    # Less fits into less, and pages that share entries take fewer.
    assert twice["sweep-64-2048 linear l1"] < twice["cortex-a72 linear l1"]
    assert twice["neoverse-n1 linear l2"] < twice["sweep-40-1024 linear l2"]
    # Whatever is accessed has a translation, so what the model knows of the tables is right.
    assert twice["not translated"] == 0
    assert twice["kernel"] == twice["kernel instructions"]
