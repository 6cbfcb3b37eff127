"""The machine that is as strict as hardware: its model of TLBs, what it reads, and guests on it."""

from __future__ import annotations

import ctypes
import itertools
import json
import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
from split import LIVE, PAUSED, said, was_split

from pagewright.cli import main
from pagewright.guest.shell import UNLOAD
from pagewright.host import workspace
from pagewright.host.errors import GuestDiedError, MachineError, PagewrightError
from pagewright.host.run import run
from pagewright.host.toolchain import HOST_GCC, encodings
from pagewright.machine import boot, evidence, inputs, strict
from pagewright.machine.options import UNLISTED_CPU, MachineOptions
from pagewright.machine.strict import MAX_CPUS, RULES, BlindError, Known, Strict, Violation

SPACE = workspace.find()
KNOWN = strict.known(SPACE.base().path / "violations.toml")
SOURCES = Path(strict.__file__).with_name("strict")
HARNESS = Path(__file__).with_name("strict") / "harness.c"

RAM = 0x40000000
ROOT = RAM + 0x10000
# Level 1, 2 and 3 of the tables that the tests use.
TABLES = {1: RAM + 0x11000, 2: RAM + 0x12000, 3: RAM + 0x13000}
OTHER = {2: RAM + 0x22000, 3: RAM + 0x23000}
# Memory to map: pages, and an aligned block.
PAGE = RAM + 0x100000
BLOCK = RAM + 0x400000
# 48 bits, pages of 4 KiB, hardware's access flag.
TCR = 16 << 16 | 2 << 30 | 1 << 39
MAIR = 0xFF
VA = 0xFFFF_8000_0000_0000

VALID, TABLE, READ_ONLY, AF, NOT_GLOBAL = 1, 2, 1 << 7, 1 << 10, 1 << 11
CONTIGUOUS, PXN, DEVICE = 1 << 52, 1 << 53, 1 << 2
LEAF = VALID | AF | 3 << 8 | PXN
A_PAGE = LEAF | TABLE


ATOMICS = (
    "stxr w1, x2, [x3]",
    "stlxr w1, x2, [x3]",
    "cas x1, x2, [x3]",
    "casal x1, x2, [x3]",
    "casp x0, x1, x2, x3, [x4]",
    "swp x1, x2, [x3]",
    "ldclral x1, x2, [x3]",
)
PLAIN_STORES = (
    "str x1, [x3]",
    "str x1, [x3, x2]",
    "stp x1, x2, [x3]",
    "stlr x1, [x3]",
    "stlr w1, [x3]",
)


def forms(*names: str, tail: str = ", x0") -> dict[str, tuple[str, bool]]:
    """Return the instructions of some names, and for each its name and whether it is broadcast."""
    return {
        f"tlbi {name}{reach}{tail}": (name, bool(reach))
        for name in names
        for reach in ("", "is", "os")
    }


# What is invalidated, as in decode.h: all, or an address space.
KINDS = {"vmalle1": 1, "alle1": 1, "vmalls12e1": 1, "aside1": 2}
# Of other translations: stage 2, and other exception levels.
OTHERS = ("ipas2e1", "vae2", "vae3")
WITHOUT_ADDRESS = {
    **forms("vmalle1", "alle1", "vmalls12e1", "alle2", "alle3", tail=""),
    **forms("aside1", *OTHERS),
}
# Of the last level alone, and of any address space.
ADDRESSES = {
    "vae1": (False, False),
    "vaae1": (False, True),
    "vale1": (True, False),
    "vaale1": (True, True),
}
BY_ADDRESS = forms(*ADDRESSES)
BY_RANGE = forms(*(f"r{name}" for name in ADDRESSES))
CODES = encodings(
    *WITHOUT_ADDRESS,
    *BY_ADDRESS,
    *BY_RANGE,
    "dsb ish",
    "dsb ishst",
    "dsb nsh",
    "dsb nshst",
    "dsb sy",
    "dsb osh",
    "dsb ishld",
    "dsb ishnxs",
    "dsb nshnxs",
    "isb",
    "ssbb",
    "dc zva, x0",
    *ATOMICS,
    *PLAIN_STORES,
)
# A TLBI that need not wait for accesses with the XS attribute has CRn 9 instead of 8. Debian's
# assembler does not know its name.
CODES |= {f"{text} nxs": code | 1 << 12 for text, code in CODES.items() if text.startswith("tlbi")}


class Geometry(ctypes.Structure):
    """As in decode.h."""

    _fields_ = [
        ("page_shift", ctypes.c_uint32),
        ("va_bits", ctypes.c_uint32),
        ("root_level", ctypes.c_int),
        ("lpa2", ctypes.c_bool),
    ]


class Tlbi(ctypes.Structure):
    """As in decode.h."""

    _fields_ = [
        ("what", ctypes.c_int),
        ("broadcast", ctypes.c_bool),
        ("last_level", ctypes.c_bool),
        ("any_asid", ctypes.c_bool),
        ("start", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("level", ctypes.c_int),
    ]


class Model:
    """The model, with a guest's memory and two CPUs that share the tables."""

    def __init__(self, library: Path, bbm_level: int, without: int) -> None:
        """Start with empty last tables."""
        self._c = ctypes.CDLL(str(library))
        self._c.test_words.restype = ctypes.c_char_p
        self._c.desc_address.restype = ctypes.c_uint64
        self._c.root_address.restype = ctypes.c_uint64
        self._c.test_address.restype = ctypes.c_uint64
        self._c.model_start(bbm_level, without)
        self._c.model_mair(ctypes.c_uint64(MAIR))
        self._c.model_tcr(ctypes.c_uint64(TCR))
        self.write(ROOT + 256 * 8, TABLES[1] | VALID | TABLE)
        self.write(TABLES[1], TABLES[2] | VALID | TABLE)
        self.write(TABLES[2], TABLES[3] | VALID | TABLE)
        self.root(0)
        self.root(1)

    def __getattr__(self, name):
        """Return a function of the library."""
        return getattr(self._c, name)

    def write(self, pa: int, *words: int, size: int = 8, cpu: int = 0, atomic: bool = False):
        """Write to memory, by one store; words have a size."""
        data = b"".join(word.to_bytes(size, "little") for word in words)
        length = ctypes.c_uint64(len(data))
        self._c.test_write(cpu, ctypes.c_uint64(pa), data, length, atomic)

    def set(self, level: int, index: int, *descs: int, **options):
        """Write an entry of the table of a level, or several of them by one store."""
        self.write(TABLES[level] + 8 * index, *descs, **options)

    def blind(self) -> int:
        """Return how often the model has said that it does not see all."""
        return self._c.test_blind()

    def root(self, cpu: int, pa: int = ROOT, common: bool = False):
        """Load TTBR1, with CnP if asked."""
        self._c.test_root(cpu, ctypes.c_uint64(pa | common))

    def do(self, text: str, operand: int = 0, cpu: int = 0):
        """Execute a TLBI or a DSB."""
        function = self._c.test_dsb if text.startswith("dsb") else self._c.test_tlbi
        arguments = () if text.startswith("dsb") else (ctypes.c_uint64(operand),)
        function(cpu, CODES[text], *arguments)

    def steps(self, *texts: str, va: int = VA, cpu: int = 0):
        """Execute several, each TLBI about one address, or about two pages if it has a range."""
        for text in texts:
            of_range = text.removesuffix(" nxs") in BY_RANGE
            self.do(text, ranged(va >> 12, 1, 0, 0) if of_range else operand(va), cpu)

    def flush(self, va: int = VA, tlbi: str = "tlbi vaale1is, x0", cpu: int = 0):
        """Invalidate an address as the kernel does."""
        self.do("dsb ishst", cpu=cpu)
        self.do(tlbi, operand(va), cpu=cpu)
        self.do("dsb ish", cpu=cpu)

    def access(self, va: int = VA, write: bool = False, cpu: int = 0):
        """Use an address."""
        self._c.test_access(cpu, ctypes.c_uint64(va), write)

    def rules(self) -> list[str]:
        """Return the names of the rules that were broken."""
        return [RULES[self._c.test_rule(i)] for i in range(self._c.test_reports())]

    def words(self, index: int = 0) -> str:
        """Return what a report says."""
        return self._c.test_words(index).decode()


def operand(va: int, level: int | None = None) -> int:
    """Return that of a TLBI by address; the level is a hint, for pages of 4 KiB."""
    return va >> 12 & (1 << 44) - 1 | (0 if level is None else (1 << 2 | level) << 44)


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("strict") / "model.so"
    code = [source for source in SOURCES.glob("*.c") if source.stem != "plugin"]
    run([HOST_GCC, "-O0", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
         "-I", SOURCES, "-o", file, *code, HARNESS])  # fmt: skip
    return file


@pytest.fixture
def model(library, tmp_path):
    """Make models; each is a copy of the library, as their state is in there."""
    numbers = itertools.count()

    def make(bbm_level: int = 0, without: int = 0) -> Model:
        copy = shutil.copy(library, tmp_path / f"model{next(numbers)}.so")
        return Model(copy, bbm_level, without)

    return make


# --- What bits mean -------------------------------------------------------------


@pytest.mark.parametrize(
    ("granule", "va_bits", "ds", "expected"),
    [
        (2, 39, 0, (12, 39, 1, False)),
        (2, 48, 0, (12, 48, 0, False)),
        (2, 52, 1, (12, 52, -1, True)),
        (1, 47, 0, (14, 47, 1, False)),
        (1, 48, 0, (14, 48, 0, False)),
        (1, 52, 1, (14, 52, 0, True)),
        (3, 42, 0, (16, 42, 2, False)),
        (3, 48, 0, (16, 48, 1, False)),
        (3, 52, 1, (16, 52, 1, False)),
    ],
)
def test_tables_of_all_page_sizes(model, granule, va_bits, ds, expected):
    geometry = Geometry()
    tcr = granule << 30 | (64 - va_bits) << 16 | ds << 59
    assert model().decode_tcr(ctypes.c_uint64(tcr), ctypes.byref(geometry))
    found = (geometry.page_shift, geometry.va_bits, geometry.root_level, geometry.lpa2)
    assert found == expected
    stride = geometry.page_shift - 3
    entries = model().table_entries(ctypes.byref(geometry), geometry.root_level)
    bits = (entries - 1).bit_length() + stride * (3 - geometry.root_level) + geometry.page_shift
    assert bits == va_bits


@pytest.mark.parametrize("tcr", [16 << 16, 2 << 30 | 11 << 16, 3 << 30 | 48 << 16])
def test_reserved_values_are_no_tables(model, tcr):
    """No granule, 53 bits of address, and as many as a page has."""
    m = model()
    assert not m.decode_tcr(ctypes.c_uint64(tcr), ctypes.byref(Geometry())) & 1
    m.model_tcr(ctypes.c_uint64(tcr))
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["break-before-make"]


@pytest.mark.parametrize(
    ("shift", "level", "entries"),
    [(12, 3, 16), (12, 2, 16), (14, 3, 128), (14, 2, 32), (16, 3, 32), (16, 2, 32)],
)
def test_entries_of_a_contiguous_group(model, shift, level, entries):
    geometry = ctypes.byref(geometry_of(shift, 48))
    assert model().contiguous_entries(geometry, level) == entries


def geometry_of(page_shift: int, va_bits: int, lpa2: bool = False) -> Geometry:
    levels = -(-(va_bits - page_shift) // (page_shift - 3))
    return Geometry(page_shift, va_bits, 4 - levels, lpa2)


@pytest.mark.parametrize(
    ("geometry", "desc", "level", "expected"),
    [
        ((12, 48, False), 0x0068_0000_4123_4F13, 3, 0x4123_4000),
        ((12, 48, False), 0x0068_0000_4020_0F11, 2, 0x4020_0000),
        # A block has bits that are no address below its size.
        ((12, 48, False), 0x0068_0000_4021_0F11, 2, 0x4020_0000),
        ((12, 48, False), 0x4123_4003, 2, 0x4123_4000),
        # With LPA2 bits 9 and 8 are the highest of the address.
        ((12, 52, True), 0x0003_0000_4000_0713, 3, 0x000F_0000_4000_0000),
        ((16, 52, False), 0x4000_F713, 3, 0x000F_0000_4000_0000),
    ],
)
def test_output_addresses(model, geometry, desc, level, expected):
    found = model().desc_address(ctypes.byref(geometry_of(*geometry)), ctypes.c_uint64(desc), level)
    assert found == expected


def test_root_of_few_entries(model):
    """With 52 bits the first table has 16 entries, and the ASID is in TTBR1.

    Bits 5 to 2 are the highest ones of its address.
    """
    geometry = ctypes.byref(geometry_of(12, 52, True))
    for ttbr, address in ((0x0012_0000_4000_0F81, 0x4000_0F80), (0x4000_0FA5, 0x9_0000_4000_0F80)):
        assert model().root_address(geometry, ctypes.c_uint64(ttbr)) == address


def decoded(model, text: str, value: int = 0, geometry=(12, 48, False)) -> Tlbi:
    tlbi = Tlbi()
    code = CODES[text]
    assert model.is_tlbi(code) & 1
    where = ctypes.byref(geometry_of(*geometry))
    model.decode_tlbi(where, code, ctypes.c_uint64(value), ctypes.byref(tlbi))
    return tlbi


def test_invalidations_without_address(model):
    m = model()
    for text, (name, broadcast) in WITHOUT_ADDRESS.items():
        what = KINDS.get(name, 0)
        for tlbi in (decoded(m, text), decoded(m, f"{text} nxs")):
            assert (text, tlbi.what, tlbi.broadcast) == (text, what, bool(what) and broadcast)


def test_invalidations_by_address_and_by_range(model):
    m = model()
    for text, (name, broadcast) in {**BY_ADDRESS, **BY_RANGE}.items():
        start, pages = VA + 0x5000, 2 if text in BY_RANGE else 1
        value = ranged(start >> 12, 1, 0, 0) if text in BY_RANGE else operand(start)
        last_level, any_asid = ADDRESSES[name.removeprefix("r")]
        for tlbi in (decoded(m, text, value | 7 << 48), decoded(m, f"{text} nxs", value)):
            found = (tlbi.what, tlbi.start, tlbi.end, tlbi.level)
            assert (text, *found) == (text, 3, start, start + 0x1000 * pages, 0)
            found = (tlbi.broadcast, tlbi.last_level, tlbi.any_asid)
            assert (text, *found) == (text, broadcast, last_level, any_asid)


@pytest.mark.parametrize("shift", [14, 16])
def test_an_address_in_larger_pages(model, shift):
    """The bits of the operand that are below a page are none of the address."""
    tlbi = decoded(model(), "tlbi vaae1is, x0", operand(VA + 0x5_3000), (shift, 48, False))
    start = VA + (0x5_3000 >> shift << shift)
    assert (tlbi.start, tlbi.end) == (start, start + (1 << shift))


@pytest.mark.parametrize(("hint", "level"), [(1 << 2 | 2, 2), (1 << 2 | 3, 3), (2, 0), (0, 0)])
def test_level_hint(model, hint, level):
    """Bits 47 and 46 say whether there is one, and bits 45 and 44 which."""
    found = decoded(model(), "tlbi vaale1is, x0", operand(VA) | hint << 44)
    assert (found.start, found.level) == (VA, level)


@pytest.mark.parametrize(
    ("hint", "expected"),
    [(1 << 2 | 3, []), (2 << 2 | 3, ["scope"]), (3 << 2 | 3, ["scope"]), (2 << 2, [])],
)
@pytest.mark.parametrize("level", [2, 3], ids=["table", "leaf"])
def test_a_level_of_tables_with_other_pages_invalidates_nothing(model, hint, expected, level):
    """If there is a level: 0 is none."""
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(level, 0, 0)
    m.do("dsb ishst")
    m.do("tlbi vaae1is, x0", operand(VA) | hint << 44)
    m.do("dsb ish")
    m.set(level, 0, BLOCK | LEAF if level == 2 else PAGE + 0x1000 | A_PAGE)
    assert m.rules() == expected


def ranged(page: int, tg: int, scale: int, num: int, level: int = 0) -> int:
    return page & (1 << 37) - 1 | level << 37 | num << 39 | scale << 44 | tg << 46


@pytest.mark.parametrize(
    ("geometry", "shift", "tg", "scale", "num", "pages"),
    [
        ((12, 48, False), 12, 1, 0, 0, 2),
        ((12, 48, False), 12, 1, 0, 31, 64),
        ((12, 48, False), 12, 1, 1, 0, 64),
        ((12, 48, False), 12, 1, 3, 1, 131072),
        ((16, 48, False), 16, 3, 0, 0, 2),
        ((14, 48, False), 14, 2, 2, 2, 6144),
        # With LPA2 the address is in units of 64 KiB.
        ((12, 52, True), 16, 1, 0, 7, 16),
        # Of another page size: nothing is invalidated.
        ((12, 48, False), 16, 3, 0, 0, 0),
    ],
)
def test_ranges(model, geometry, shift, tg, scale, num, pages):
    start = 0xFFFF_FFFF_8000_0000
    value = ranged(start >> shift, tg, scale, num, level=3)
    tlbi = decoded(model(), "tlbi rvaae1is, x0", value, geometry)
    assert (tlbi.what, tlbi.start) == (3, start)
    assert tlbi.end - tlbi.start == pages << geometry[0]
    assert tlbi.level == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dsb ish", (True, True, True)),
        ("dsb sy", (True, True, True)),
        ("dsb osh", (True, True, True)),
        ("dsb ishnxs", (True, True, True)),
        ("dsb nshnxs", (False, True, True)),
        ("dsb nsh", (False, True, True)),
        ("dsb nshst", (False, True, False)),
        ("dsb ishst", (True, True, False)),
        ("dsb ishld", (True, False, True)),
    ],
)
def test_barriers(model, text, expected):
    found = (ctypes.c_bool * 3)()
    assert model().is_dsb(CODES[text]) & 1
    assert model().decode_dsb(CODES[text], ctypes.byref(found)) & 1
    assert tuple(found) == expected


@pytest.mark.parametrize("text", ["isb", "dc zva, x0", "tlbi vmalle1is"])
def test_what_is_no_barrier(model, text):
    assert not model().is_dsb(CODES[text]) & 1


def test_speculation_barrier_has_the_encoding_of_dsb(model):
    assert not model().decode_dsb(CODES["ssbb"], ctypes.byref((ctypes.c_bool * 3)())) & 1


def test_stores_that_look_at_what_was_there_before(model):
    m = model()
    found = [text for text in (*ATOMICS, *PLAIN_STORES) if m.is_atomic(CODES[text]) & 1]
    assert found == [*ATOMICS]


# --- The rules ------------------------------------------------------------------


def test_break_before_make_as_it_should_be(model):
    m = model()
    for _ in range(2):
        m.set(3, 0, PAGE | A_PAGE)
    assert m.test_records() == 0
    m.set(3, 0, 0)
    assert m.test_records() == 1
    m.flush()
    assert m.test_records() == 0
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    m.access()
    assert m.rules() == []


def test_a_new_address_without_break(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["break-before-make"]


@pytest.mark.parametrize("bits", [READ_ONLY, PXN, 1 << 54, 1 << 55, 1 << 58, READ_ONLY | PXN])
def test_permissions_and_software_bits_change_live(model, bits):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, PAGE | A_PAGE ^ bits)
    assert [rule for rule in m.rules() if rule != "write-execute"] == []


@pytest.mark.parametrize("bits", [DEVICE, 1 << 8])
def test_memory_type_and_shareability_do_not(model, bits):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, PAGE | A_PAGE ^ bits)
    assert m.rules() == ["break-before-make"]


def test_tagged_memory_is_the_same_type(model):
    m = model()
    m.model_mair(ctypes.c_uint64(0xF0FF))
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, PAGE | A_PAGE ^ DEVICE)
    assert m.rules() == []


def test_not_global_may_replace_global_and_not_the_other_way(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, PAGE | A_PAGE | NOT_GLOBAL)
    assert m.rules() == []
    m.flush(tlbi="tlbi vaae1is, x0")
    m.set(3, 0, PAGE | A_PAGE)
    assert m.rules() == ["break-before-make"]


@pytest.mark.parametrize(
    ("old", "new", "alike", "expected"),
    [
        (READ_ONLY, READ_ONLY, True, []),
        (READ_ONLY, READ_ONLY, False, ["break-before-make"]),
        (0, READ_ONLY, True, ["break-before-make"]),
        (READ_ONLY, 0, True, ["break-before-make"]),
        # Hardware would make it writable.
        (READ_ONLY, READ_ONLY | 1 << 51, True, ["break-before-make"]),
    ],
)
def test_a_new_address_with_the_same_contents(model, old, new, alike, expected):
    m = model()
    m.write(PAGE + 0x800, 1)
    m.write(PAGE + 0x1800, 1 if alike else 2)
    m.set(3, 0, PAGE | A_PAGE | old)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE | new)
    assert m.rules() == expected


def test_an_entry_of_the_last_level_without_the_bit_of_a_page_is_invalid(model):
    m = model()
    m.set(3, 0, PAGE | LEAF)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == []


def test_a_new_address_of_what_is_no_memory(model):
    """Devices are not read to be compared."""
    m = model()
    m.set(3, 0, 0x900_0000 | A_PAGE | READ_ONLY)
    m.set(3, 0, 0x900_1000 | A_PAGE | READ_ONLY)
    assert m.rules() == ["break-before-make"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # Each of the words alone is a change that needs a break.
        ((0, 0x1000), (0x8000, 0x1000), ["break-before-make"]),
        ((0, 0x1000), (0, 0x8000), ["break-before-make"]),
        ((0, 0x1000), (0x8000, 0x9000), ["break-before-make"] * 2),
        ((0, 0x1000), (READ_ONLY, 0x1000 | READ_ONLY), []),
        ((0, 0x1000), (0, 0x1000), []),
        # Hardware sets the access flag of the second one.
        ((0, 0x1000 | AF), (0, 0x8000), ["access-flag"]),
    ],
)
def test_a_store_to_two_entries(model, before, after, expected):
    """STP, STXP and CASP: bits of the descriptors that differ from those of a page at PAGE."""
    m = model()
    m.set(3, 2, *(PAGE | A_PAGE ^ bits for bits in before))
    m.set(3, 2, *(PAGE | A_PAGE ^ bits for bits in after))
    assert m.rules() == expected
    # One that has looked at both is no blind one, and no better otherwise.
    m = model()
    m.set(3, 2, *(PAGE | A_PAGE ^ bits for bits in before))
    m.set(3, 2, *(PAGE | A_PAGE ^ bits for bits in after), atomic=True)
    assert m.rules() == [rule for rule in expected if rule != "access-flag"]


@pytest.mark.parametrize(
    ("half", "word", "expected"),
    [
        (0, PAGE + 0x1000 | A_PAGE & 0xFFFF_FFFF, ["break-before-make"]),
        (4, (PXN | 1 << 54) >> 32, []),
        (4, 0, ["write-execute"]),
    ],
)
def test_a_store_to_half_of_an_entry(model, half, word, expected):
    m = model()
    m.set(3, 1, PAGE | A_PAGE)
    m.write(TABLES[3] + 8 + half, word, size=4)
    assert m.rules() == expected


def test_an_entry_that_no_cpu_could_walk_is_in_no_tlb(model):
    m = model()
    m.write(OTHER[3], PAGE | A_PAGE)
    m.write(OTHER[3], PAGE + 0x1000 | A_PAGE)
    m.set(2, 1, OTHER[3] | VALID | TABLE)
    assert m.rules() == []
    m.write(OTHER[3], PAGE | A_PAGE)
    assert m.rules() == ["break-before-make"]


@pytest.mark.parametrize(
    ("steps", "rule"),
    [
        ([], "make-before-invalidation"),
        (["dsb ishst", "dsb ish"], "make-before-invalidation"),
        (["dsb ishst", "tlbi vaale1is, x0"], "make-before-invalidation"),
        (["dsb ishst", "tlbi vaale1is, x0", "dsb nsh"], "make-before-invalidation"),
        (["dsb ishst", "tlbi vaale1is, x0", "dsb ishst"], "make-before-invalidation"),
        (["dsb ishst", "tlbi vaale1is, x0", "dsb ishld"], "make-before-invalidation"),
        (["tlbi vaale1is, x0", "dsb ish"], "scope"),
        (["dsb ishld", "tlbi vaale1is, x0", "dsb ish"], "scope"),
        (["dsb ishst", "tlbi vale1, x0", "dsb ish"], "scope"),
        (["dsb ishst", "tlbi vmalle1", "dsb ish"], "scope"),
        (["dsb ishst", "tlbi aside1is, x0", "dsb ish"], "make-before-invalidation"),
        # What was tried before in vain does not matter when the right one is under way.
        (["tlbi vaale1is, x0", "dsb ish", "tlbi vaale1is, x0"], "make-before-invalidation"),
    ],
)
def test_made_before_the_invalidation_has_completed(model, steps, rule):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    for step in steps:
        m.do(step, operand(VA))
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == [rule]


@pytest.mark.parametrize(
    "steps",
    [
        ["dsb ishst", "tlbi vaale1is, x0", "dsb ish"],
        ["dsb ish", "tlbi vaae1is, x0", "dsb sy"],
        ["dsb ishst", "tlbi vae1is, x0", "dsb ish"],
        ["dsb ishst", "tlbi vmalle1is", "dsb ish"],
        ["dsb sy", "tlbi vmalle1os", "dsb osh"],
    ],
)
def test_invalidations_that_suffice(model, steps):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    for step in steps:
        m.do(step, operand(VA))
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == []


def test_another_cpus_barrier_does_not_wait_for_this_ones_invalidation(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    m.do("dsb ishst")
    m.do("tlbi vaale1is, x0", operand(VA))
    m.do("dsb ish", cpu=1)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["make-before-invalidation"]


def test_an_entry_that_came_and_went_again_after_its_invalidation(model):
    """The DSB waits for a TLBI that came before the second change."""
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    m.do("dsb ishst")
    m.do("tlbi vaale1is, x0", operand(VA))
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    m.do("dsb ish")
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["make-before-invalidation"]


@pytest.mark.parametrize(
    ("before", "after", "rule"),
    [
        (["dsb ishst"], ["tlbi vaale1is, x0", "dsb ish"], "scope"),
        (["dsb ishst", "tlbi vmalle1"], ["dsb ish"], "make-before-invalidation"),
    ],
)
def test_what_came_before_an_entry_went_again_is_not_about_it(model, before, after, rule):
    m = model()
    for steps in (before, after):
        m.set(3, 0, PAGE | A_PAGE)
        m.set(3, 0, 0)
        m.steps(*steps)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == [rule]


def test_a_barrier_waits_for_no_descriptor_that_is_remembered_since(model):
    """Another CPU has invalidated the first one meanwhile, and its place is taken."""
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    m.steps("dsb ishst", "tlbi vaale1is, x0")
    m.flush(tlbi="tlbi vmalle1is", cpu=1)
    m.set(3, 1, PAGE | A_PAGE)
    m.set(3, 1, 0)
    m.do("dsb ish")
    m.set(3, 1, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["make-before-invalidation"]


def test_each_descriptor_that_an_entry_had_is_remembered(model):
    """The first one is writable, so the last one conflicts with it, and not with the second."""
    m = model()
    m.set(3, 0, PAGE | A_PAGE, cpu=1)
    m.set(3, 0, PAGE | A_PAGE | READ_ONLY, cpu=1)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE | READ_ONLY)
    assert m.rules() == ["make-before-invalidation"]
    assert m.test_writer(0) == 1


@pytest.mark.parametrize("barrier", ["dsb nshst", "dsb nsh"])
def test_a_barrier_for_one_cpu_before_an_invalidation_for_all(model, barrier):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    for step in (barrier, "tlbi vaale1is, x0", "dsb ish"):
        m.do(step, operand(VA))
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["scope"]


def test_an_entry_that_went_twice_and_was_invalidated_by_one_cpu_each_time(model):
    m = model()
    for cpu, barrier in ((0, "dsb ishst"), (1, "dsb ish")):
        m.set(3, 0, PAGE | A_PAGE)
        m.set(3, 0, 0)
        for step in (barrier, "tlbi vmalle1", "dsb nsh"):
            m.do(step, cpu=cpu)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["scope"]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # Those of the CPU itself, and of others that reach it.
        ([(1, "dsb nshst"), (1, "tlbi vmalle1"), (1, "dsb nsh")], []),
        ([(1, "dsb nshst"), (1, "tlbi vmalle1 nxs"), (1, "dsb nsh")], []),
        ([(1, "dsb nsh"), (1, "tlbi vaale1, x0"), (1, "dsb nsh")], []),
        ([(1, "dsb nsh"), (1, "tlbi rvaale1, x0"), (1, "dsb nsh")], []),
        ([(1, "dsb nsh"), (1, "tlbi rvaae1, x0 nxs"), (1, "dsb nsh")], []),
        ([(0, "dsb ishst"), (0, "tlbi vmalle1is"), (0, "dsb ish")], []),
        ([(0, "dsb ishst"), (0, "tlbi vmalle1is nxs"), (0, "dsb ish")], []),
        ([(0, "dsb ishst"), (0, "tlbi vaale1os, x0"), (0, "dsb osh")], []),
        ([(0, "dsb ishst"), (0, "tlbi rvaale1is, x0"), (0, "dsb ish")], []),
        # A DSB for one CPU waits for that one's TLB alone, and the next one for those of all.
        (
            [(0, "dsb ishst"), (0, "tlbi vaale1is, x0"), (0, "dsb nsh")],
            ["make-before-invalidation"],
        ),
        ([(0, "dsb ishst"), (0, "tlbi vaale1is, x0"), (0, "dsb nsh"), (0, "dsb ish")], []),
        # What another CPU does to its own TLB, and a barrier of another one.
        ([(0, "dsb ish"), (0, "tlbi vmalle1"), (0, "dsb ish")], ["scope"]),
        ([(0, "dsb ish"), (0, "tlbi vmalle1 nxs"), (0, "dsb ish")], ["scope"]),
        ([(0, "dsb ish"), (0, "tlbi vaale1, x0"), (0, "dsb ish")], ["scope"]),
        ([(0, "dsb ish"), (0, "tlbi rvaale1, x0"), (0, "dsb ish")], ["scope"]),
        (
            [(1, "dsb ish"), (1, "tlbi vmalle1"), (0, "dsb ish")],
            ["make-before-invalidation"],
        ),
        ([(0, "dsb ish"), (1, "tlbi vmalle1"), (1, "dsb nsh")], ["scope"]),
    ],
)
def test_whose_invalidation_reaches_a_cpu(model, steps, expected):
    """CPU 1 alone can walk the entry, as those of its per-CPU variables."""
    m = model()
    unmap_for_the_second_cpu(m)
    for cpu, text in steps:
        m.steps(text, cpu=cpu)
    m.write(OTHER[3], PAGE + 0x1000 | A_PAGE, cpu=1)
    assert m.rules() == expected


def test_each_cpu_may_invalidate_its_own_tlb(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    for cpu in (0, 1):
        m.do("dsb nshst" if cpu == 0 else "dsb ish", cpu=cpu)
        m.do("tlbi vmalle1", cpu=cpu)
        m.do("dsb nsh", cpu=cpu)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == []


def test_a_cpu_that_is_off_holds_nothing(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.test_power_off(1)
    m.set(3, 0, 0)
    m.do("dsb nshst")
    m.do("tlbi vmalle1")
    m.do("dsb nsh")
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == []
    # Back again, it has to be reached.
    m.root(1)
    m.set(3, 0, 0)
    m.do("dsb nshst")
    m.do("tlbi vmalle1")
    m.do("dsb nsh")
    m.set(3, 0, PAGE | A_PAGE)
    assert m.rules() == ["scope"]


def test_a_cpu_that_is_switched_off_has_nothing_more_to_invalidate(model):
    m = model()
    for index in range(3):
        m.set(3, index, PAGE + 0x1000 * index | A_PAGE)
    for index in range(3):
        m.set(3, index, 0)
    m.steps("dsb nshst", "tlbi vmalle1", "dsb nsh")
    m.test_power_off(1)
    assert m.test_records() == 0
    for index in range(3):
        m.set(3, index, PAGE + 0x10000 + 0x1000 * index | A_PAGE)
    assert m.rules() == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (["dsb nshst", "tlbi vmalle1", "dsb nsh"], ["scope"]),
        (["dsb ishst", "tlbi vmalle1is", "dsb ish"], []),
    ],
)
def test_the_tlb_of_a_cpu_without_translation_has_to_be_invalidated(model, steps, expected):
    """SCTLR_EL1.M says that a TLB is not used, and not that it is empty."""
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.test_off(1)
    m.set(3, 0, 0)
    for step in steps:
        m.do(step)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == expected


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], ["break-before-make"]),
        (["tlbi vmalle1"], ["break-before-make"]),
        (["tlbi vmalle1", "dsb nsh"], []),
        (["tlbi vaae1, x0", "dsb nsh"], ["break-before-make"]),
    ],
)
def test_a_cpu_without_translation_has_emptied_its_tlb(model, steps, expected):
    """What it led to alone is memory then, as before a kernel is started by another one."""
    m = model()
    root = second_root(m, PAGE)
    m.root(1, root)
    m.do("tlbi vmalle1", cpu=1)
    m.do("dsb nsh", cpu=1)
    m.test_off(1)
    for step in steps:
        m.do(step, operand(VA), cpu=1)
    m.write(OTHER[3], PAGE + 0x1000 | A_PAGE)
    assert m.rules() == expected


def test_tables_that_only_a_cpu_led_to_that_is_off_are_memory(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.root(0, ROOT + 0x100000)
    m.do("tlbi vmalle1")
    m.do("dsb nsh")
    m.test_power_off(1)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == []


def test_entries_that_are_not_global_need_all_address_spaces(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE | NOT_GLOBAL)
    m.set(3, 0, 0)
    m.flush(tlbi="tlbi vae1is, x0")
    m.set(3, 0, PAGE + 0x1000 | A_PAGE | NOT_GLOBAL)
    assert m.rules() == ["scope"]
    assert "address space" in m.words()


def test_the_level_of_another_leaf_invalidates_nothing(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    m.do("dsb ishst")
    m.do("tlbi vaale1is, x0", operand(VA, level=2))
    m.do("dsb ish")
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["scope"]


@pytest.mark.parametrize(("level", "expected"), [(2, ["tables"]), (3, [])])
def test_the_level_of_a_block_does_not_invalidate_what_leads_to_pages(model, level, expected):
    m = model(2)
    split_block(m)
    m.flush(tlbi="tlbi vmalle1is")
    m.set(2, 1, 0)
    m.do("dsb ishst")
    m.do("tlbi vaae1is, x0", operand(VA + 0x200000, level))
    m.do("dsb ish")
    m.write(OTHER[3] + 8, 0x1234)
    assert m.rules() == expected


@pytest.mark.parametrize("pages", [0, 20])
def test_an_address_in_the_middle_of_a_block_invalidates_it(model, pages):
    """Among few records of pages, and among many."""
    m = model()
    for index in range(pages):
        m.set(3, index, PAGE + 0x1000 * index | A_PAGE)
    m.set(2, 1, BLOCK | LEAF)
    for index in range(pages):
        m.set(3, index, 0)
    m.set(2, 1, 0)
    m.flush(VA + 0x205000)
    m.set(2, 1, BLOCK + 0x200000 | LEAF)
    assert m.rules() == []


@pytest.mark.parametrize("pages", [4, 20])
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("tlbi", ["tlbi rvaae1is, x0", "tlbi rvaale1os, x0 nxs"])
def test_a_range_that_is_too_short(model, pages, first, tlbi):
    """Of two pages, among few records and among many."""
    m = model()
    for index in range(pages):
        m.set(3, index, PAGE + 0x1000 * index | A_PAGE)
    for index in range(pages):
        m.set(3, index, 0)
    m.steps("dsb ishst", tlbi, "dsb ish", va=VA + 0x1000 * first)
    for index in range(pages):
        m.set(3, index, PAGE + 0x20000 + 0x1000 * index | A_PAGE)
    assert m.rules() == ["make-before-invalidation"] * (pages - 2)


def split_block(m: Model, pages: int = 512):
    for index in range(512):
        m.write(OTHER[3] + 8 * index, (BLOCK + 0x1000 * index | A_PAGE) if index < pages else 0)
    m.set(2, 1, BLOCK | LEAF)
    m.set(2, 1, OTHER[3] | VALID | TABLE)


def test_sizes_change_live_with_level_2_alone(model):
    with_it, without = model(2), model(0)
    split_block(with_it)
    assert with_it.rules() == []
    split_block(without)
    assert set(without.rules()) == {"break-before-make"}


@pytest.mark.parametrize("level", [0, 1])
def test_lower_levels_do_not_allow_what_level_2_does(model, level):
    m = model(level)
    split_block(m)
    assert set(m.rules()) == {"break-before-make"}
    m = model(level)
    contiguous(m, 16, PAGE)
    m.set(3, 20, PAGE + 0x4000 | A_PAGE)
    assert set(m.rules()) == {"break-before-make", "contiguous"}


def test_a_block_between_pages_that_tlbs_may_hold(model):
    m = model(2)
    m.set(2, 2, OTHER[3] | VALID | TABLE)
    for table in (TABLES[3] + 8 * 511, OTHER[3]):
        m.write(table, PAGE | A_PAGE)
        m.write(table, 0)
    m.set(2, 1, BLOCK | LEAF)
    assert m.rules() == []


def test_a_block_in_the_place_of_pages_among_many_records(model):
    m = model(2)
    last = RAM + 0x33000
    for index, table in ((1, OTHER[3]), (2, last)):
        m.set(2, index, table | VALID | TABLE)
    for table, pages in ((TABLES[3], 512), (OTHER[3], 2), (last, 512)):
        for index in range(pages):
            m.write(table + 8 * index, PAGE + 0x1000 * index | A_PAGE)
            m.write(table + 8 * index, 0)
    m.set(2, 1, BLOCK | LEAF)
    assert m.rules() == ["make-before-invalidation"] * 2


def test_a_block_of_1_gib_in_the_place_of_pages_of_other_memory(model):
    m = model(2)
    m.set(3, 0, PAGE | A_PAGE)
    m.set(1, 0, RAM + 0x40000000 | LEAF)
    assert set(m.rules()) == {"break-before-make"}


def test_a_block_becomes_a_table_that_is_half_filled(model):
    m = model(2)
    split_block(m, pages=511)
    assert m.rules() == ["tables"]


def test_a_block_becomes_tables_of_which_the_lower_one_is_half_filled(model):
    """Of 1 GiB, the first 2 MiB in pages."""
    m = model(2)
    huge = RAM + 0x40000000
    m.set(1, 1, huge | LEAF)
    for index in range(512):
        m.write(OTHER[2] + 8 * index, huge + 0x200000 * index | LEAF)
        m.write(OTHER[3] + 8 * index, huge + 0x1000 * index | A_PAGE if index != 5 else 0)
    m.write(OTHER[2], OTHER[3] | VALID | TABLE)
    m.set(1, 1, OTHER[2] | VALID | TABLE)
    assert m.rules() == ["tables"]


def test_invalidation_by_address_with_two_sizes_cached(model):
    m = model(2)
    split_block(m)
    m.flush(VA + 0x200000)
    assert m.rules() == ["sizes"]
    m = model(2)
    split_block(m)
    m.flush(tlbi="tlbi vmalle1is")
    m.flush(VA + 0x200000)
    assert m.rules() == []


def test_invalidation_by_address_of_a_page_that_was_split_off_and_unmapped(model):
    """Neither the block nor the page is in the tables any more; both may be in a TLB."""
    m = model(2)
    split_block(m)
    m.write(OTHER[3] + 8 * 3, 0)
    m.flush(VA + 0x203000)
    assert set(m.rules()) == {"sizes"}
    m = model(2)
    split_block(m)
    m.flush(tlbi="tlbi vmalle1is")
    m.write(OTHER[3] + 8 * 3, 0)
    m.flush(VA + 0x203000)
    assert m.rules() == []


def fold_block(m: Model, tlbi: str):
    split_block(m)
    m.flush(tlbi="tlbi vmalle1is")
    m.set(2, 1, BLOCK | LEAF)
    m.flush(VA + 0x200000, tlbi=tlbi)


@pytest.mark.parametrize("tlbi", ["tlbi vaale1is, x0", "tlbi vae1is, x0"])
def test_a_table_is_freed_while_walk_caches_may_lead_to_it(model, tlbi):
    """Of all address spaces: what leads to tables is never global, and belongs to one of them."""
    m = model(2)
    fold_block(m, tlbi)
    m.write(OTHER[3] + 8, 0x1234)
    assert m.rules()[-1:] == ["tables"]


def test_a_table_is_freed_after_its_walk_cache_entry(model):
    m = model(2)
    fold_block(m, "tlbi vmalle1is")
    m.write(OTHER[3] + 8, 0x1234)
    assert m.rules() == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], ["tables"] * 2),
        (["dsb ishst", "tlbi vaale1is, x0", "dsb ish"], ["tables"] * 2),
        # The other one is at another address.
        (["dsb ishst", "tlbi vaae1is, x0", "dsb ish"], ["tables"]),
        (["dsb ishst", "tlbi vaae1is, x0 nxs", "dsb ish"], ["tables"]),
        (["dsb ishst", "tlbi vmalle1is", "dsb ish"], []),
    ],
)
def test_tables_below_one_that_is_unlinked(model, steps, expected):
    m = model()
    m.set(2, 1, OTHER[3] | VALID | TABLE)
    m.set(1, 0, 0, cpu=1)
    m.steps(*steps)
    m.set(3, 0, 0x1234)
    m.write(OTHER[3], 0x1234)
    assert m.rules() == expected
    assert [m.test_writer(index) for index in range(len(expected))] == [1] * len(expected)


def test_an_entry_that_leads_to_the_same_table(model):
    """Only the entry itself has changed: what it leads to is in the tables all the time."""
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(2, 0, TABLES[3] | VALID | TABLE | 1 << 59)
    assert m.test_records() == 1
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["break-before-make"]


def test_a_page_that_is_a_table_of_another_level_later(model):
    m = model()
    m.set(2, 1, OTHER[3] | VALID | TABLE)
    m.set(2, 1, 0)
    m.set(1, 1, OTHER[3] | VALID | TABLE)
    m.write(OTHER[3], BLOCK | LEAF)
    m.write(OTHER[3], BLOCK + 0x200000 | LEAF)
    assert m.rules() == ["break-before-make"]
    # What is garbage as a table of level 2 stays one of level 3.
    m = model()
    m.set(1, 1, TABLES[3] | VALID | TABLE)
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["break-before-make"]


@pytest.mark.parametrize(("places", "reports"), [(64, 64), (65, 0)])
def test_a_table_that_is_linked_at_many_places(model, places, reports):
    """At more than 64 it is not looked at, as its document says."""
    m = model()
    for index in range(1, places):
        m.set(2, index, TABLES[3] | VALID | TABLE)
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["break-before-make"] * reports


def test_what_a_stale_table_held_is_remembered(model):
    """The leaves of a table that was unlinked may be cached, and conflict with what follows."""
    m = model(2)
    split_block(m)
    m.flush(tlbi="tlbi vmalle1is")
    m.set(2, 1, 0)
    m.set(2, 1, BLOCK + 0x200000 | LEAF)
    assert set(m.rules()) == {"make-before-invalidation"}
    assert len(m.rules()) > 1


@pytest.mark.parametrize(
    ("tlbi", "expected"),
    [
        ("tlbi vaale1is, x0", ["scope"]),
        ("tlbi vae1is, x0", ["scope"]),
        ("tlbi vaae1is, x0", []),
        ("tlbi vmalle1is", []),
    ],
)
def test_what_a_stale_table_has_is_walked_again(model, tlbi, expected):
    """As long as a walk cache leads there, it does not help that the leaf was invalidated."""
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(2, 0, 0)
    m.flush(tlbi=tlbi)
    m.set(2, 0, BLOCK | LEAF)
    assert m.rules() == expected


def test_a_stale_table_whose_leaves_were_unmapped_before(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    m.set(2, 0, 0)
    m.flush()
    m.set(2, 0, BLOCK | LEAF)
    assert m.rules() == []


def test_a_stale_table_has_what_it_had_last(model):
    """What a leaf was before cannot be walked again, and is gone with its invalidation."""
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, PAGE | A_PAGE | READ_ONLY)
    m.set(2, 0, 0)
    m.flush()
    m.set(2, 0, BLOCK | LEAF)
    assert m.rules() == ["scope"]


def test_use_while_unmapped(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    m.access(VA + 0x1000)
    assert m.rules() == []
    m.access(VA + 8, cpu=1)
    assert m.rules() == ["stale-use"]
    assert "unmapped" in m.words()


@pytest.mark.parametrize(
    ("level", "desc", "beside", "inside"),
    [
        pytest.param(2, BLOCK | LEAF, 0x400000, 0x203008, id="in-a-block"),
        pytest.param(1, 2 << 30 | LEAF, 2 << 30, (1 << 30) + 0x20203008, id="in-a-block-of-1g"),
        pytest.param(3, PAGE + 0x1000 | A_PAGE, 0xFF8, 0xFFC, id="from-the-page-before"),
    ],
)
def test_use_of_what_is_unmapped_and_of_what_is_beside_it(model, level, desc, beside, inside):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(level, 1, desc)
    m.set(level, 1, 0)
    m.access(VA + beside)
    assert m.rules() == []
    m.access(VA + inside)
    assert m.rules() == ["stale-use"]


def test_use_in_the_middle_of_a_page_of_64_kib(model):
    m = model()
    m.model_tcr(ctypes.c_uint64(3 << 30 | 22 << 16))
    m.write(ROOT, RAM + 0x20000 | VALID | TABLE)
    m.write(RAM + 0x20000, PAGE | A_PAGE)
    m.write(RAM + 0x20000, 0)
    start = (1 << 64) - (1 << 42)
    m.access(start + 0x10000)
    assert m.rules() == []
    m.access(start + 0xB008)
    assert m.rules() == ["stale-use"]


def test_use_of_what_was_unmapped_after_a_harmless_change(model):
    m = model()
    for bits in (0, READ_ONLY, 0):
        m.set(3, 0, PAGE | A_PAGE | bits)
    m.access()
    assert m.rules() == []
    m.set(3, 0, 0)
    m.access()
    assert set(m.rules()) == {"stale-use"}


def test_use_of_a_page_whose_table_is_unlinked(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(2, 0, 0)
    m.access(VA + 8)
    assert m.rules() == ["stale-use"]


def test_use_of_either_of_two_pages_with_the_same_contents(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE | READ_ONLY)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE | READ_ONLY)
    m.access()
    assert m.rules() == []
    m.access(write=True)
    assert m.rules() == ["stale-use"]
    # The page that was given up belongs to somebody else, and a TLB may still lead to it.
    m.write(PAGE + 0x800, 1)
    m.access()
    assert m.rules() == ["stale-use"] * 2


def test_use_of_a_page_in_a_block_or_of_a_copy_of_it(model):
    m = model(2)
    for index in range(512):
        pa = PAGE if index == 5 else BLOCK + 0x1000 * index
        m.write(OTHER[3] + 8 * index, pa | A_PAGE | READ_ONLY)
    for desc in (BLOCK | LEAF | READ_ONLY, 0, OTHER[3] | VALID | TABLE):
        m.set(2, 1, desc)
    assert m.rules() == ["make-before-invalidation"]
    assert "size" in m.words()
    # The pages beside it do not matter.
    m.write(BLOCK + 0x6000, 1)
    m.access(VA + 0x205000)
    assert m.rules() == ["make-before-invalidation"]
    m.write(BLOCK + 0x5800, 1)
    m.access(VA + 0x205000)
    assert m.rules() == ["make-before-invalidation", "stale-use"]


def contiguous(m: Model, first: int, pa: int, bits: int = CONTIGUOUS):
    for index in range(16):
        m.set(3, first + index, pa + 0x1000 * index | A_PAGE | bits)


def test_a_contiguous_group(model):
    m = model()
    contiguous(m, 16, PAGE)
    m.flush(VA + 0x10000)
    assert m.rules() == []


def test_a_misaligned_contiguous_group(model):
    m = model()
    contiguous(m, 16, PAGE + 0x1000)
    assert set(m.rules()) == {"contiguous"}
    assert "index" in m.words()


def test_a_contiguous_group_of_two_halves(model):
    m = model()
    for index in range(8):
        m.set(3, 16 + index, PAGE + 0x1000 * index | A_PAGE | CONTIGUOUS)
    m.set(3, 24, PAGE + 0x10000 + 0x8000 | A_PAGE | CONTIGUOUS)
    assert m.rules() == ["contiguous"]


def test_a_page_of_other_memory_within_a_contiguous_group(model):
    """BBM level 2 is about the bit alone: a TLB may translate the page as part of the group."""
    m = model(2)
    for index in range(15):
        m.set(3, 16 + index, PAGE + 0x1000 * index | A_PAGE | CONTIGUOUS)
    m.set(3, 31, PAGE + 0x20000 | A_PAGE)
    assert m.rules() == ["contiguous"]
    assert "different blocks" in m.words()


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        *((bits, []) for bits in (AF, 1 << 51, *(1 << software for software in range(55, 59)))),
        *((bits, ["contiguous"]) for bits in (READ_ONLY, 1 << 54)),
    ],
)
def test_a_member_of_a_contiguous_group_with_another_bit(model, bits, expected):
    """Access flags and software bits may differ, permissions may not."""
    m = model(2)
    contiguous(m, 16, PAGE)
    m.set(3, 20, (PAGE + 0x4000 | A_PAGE | CONTIGUOUS) ^ bits)
    m.flush(tlbi="tlbi vmalle1is")
    assert m.rules() == expected


def test_a_contiguous_group_is_judged_when_it_is_invalidated(model):
    m = model(2)
    for index in range(8):
        m.set(3, 16 + index, PAGE + 0x1000 * index | A_PAGE | CONTIGUOUS)
    for beside in (0xF000, 0x20000):
        m.flush(VA + beside)
    assert m.rules() == []
    m.flush(VA + 0x1F000)
    assert m.rules() == ["contiguous"]


def test_a_contiguous_group_changes_live(model):
    m = model(0)
    contiguous(m, 16, PAGE)
    m.set(3, 20, PAGE + 0x4000 | A_PAGE)
    assert set(m.rules()) == {"break-before-make", "contiguous"}
    m = model(2)
    contiguous(m, 16, PAGE)
    contiguous(m, 16, PAGE, 0)
    m.flush(tlbi="tlbi vmalle1is")
    assert m.rules() == []


def test_a_contiguous_group_stays_inconsistent(model):
    m = model(2)
    contiguous(m, 16, PAGE)
    m.set(3, 20, PAGE + 0x4000 | A_PAGE)
    m.flush(tlbi="tlbi vmalle1is")
    assert m.rules() == ["contiguous"]
    assert "inconsistent" in m.words()


@pytest.mark.parametrize("cpu", [0, 1])
def test_a_contiguous_group_whose_table_is_gone(model, cpu):
    """It is no group any more when its writer has invalidated it, or another CPU before."""
    m = model(2)
    m.set(2, 1, OTHER[3] | VALID | TABLE)
    for index in range(15):
        m.write(OTHER[3] + 8 * index, PAGE + 0x1000 * index | A_PAGE | CONTIGUOUS)
    m.set(2, 1, 0)
    m.flush(tlbi="tlbi vmalle1is", cpu=cpu)
    m.flush(tlbi="tlbi vmalle1is")
    assert m.rules() == []


def test_contiguous_groups_at_the_same_place_in_two_tables(model):
    m = model(2)
    m.set(2, 1, OTHER[3] | VALID | TABLE)
    for table in (TABLES[3], OTHER[3]):
        for index in range(16):
            bit = CONTIGUOUS if index != 5 else 0
            m.write(table + 8 * index, PAGE + 0x1000 * index | A_PAGE | bit)
    m.flush(tlbi="tlbi vmalle1is")
    assert m.rules() == ["contiguous"] * 2


def test_more_groups_than_there_is_room_for(model):
    """The last ones are looked at, and not those that nobody had a reason to invalidate."""
    m = model(2)
    last = RAM + 0x33000
    for index, table in ((1, OTHER[3]), (2, last)):
        m.set(2, index, table | VALID | TABLE)
    for table in (TABLES[3], OTHER[3], last):
        for index in range(512):
            m.write(table + 8 * index, BLOCK + 0x1000 * index | A_PAGE | CONTIGUOUS)
    for index in (20, 40):
        m.write(last + 8 * index, 0)
    m.flush(tlbi="tlbi vmalle1is")
    assert m.rules() == ["contiguous"] * 2


@pytest.mark.parametrize("new", [0, PAGE + 0x4000 | A_PAGE & ~VALID | CONTIGUOUS])
def test_a_member_of_a_contiguous_group_is_unmapped(model, new):
    """The others still have the bit: a TLB may go on translating all of the group."""
    m = model()
    contiguous(m, 16, PAGE)
    m.flush(VA + 0x10000)
    m.set(3, 20, new)
    m.flush(VA + 0x14000)
    assert m.rules() == ["contiguous"]
    assert "inconsistent" in m.words()


def test_a_contiguous_group_is_unmapped(model):
    m = model()
    contiguous(m, 16, PAGE)
    m.flush(VA + 0x10000)
    for index in range(16):
        m.set(3, 16 + index, 0)
    m.do("dsb ishst")
    m.do("tlbi rvaae1is, x0", ranged(VA + 0x10000 >> 12, 1, 0, 7))
    m.do("dsb ish")
    contiguous(m, 16, PAGE + 0x10000)
    assert m.rules() == []


def test_another_cpus_invalidation_does_not_end_the_change_of_a_group(model):
    m = model(2)
    contiguous(m, 16, PAGE)
    m.set(3, 20, PAGE + 0x4000 | A_PAGE)
    m.flush(tlbi="tlbi vmalle1is", cpu=1)
    m.steps("dsb ish", "tlbi vmalle1is")
    m.do("dsb ish", cpu=1)
    assert m.rules() == []
    m.do("dsb ish")
    assert m.rules() == ["contiguous"]


def test_a_contiguous_group_that_is_invalid_keeps_its_bits(model):
    """As when the linear map of a page is made invalid, and then another member is cleared."""
    m = model()
    contiguous(m, 16, PAGE)
    for index in range(16):
        m.set(3, 16 + index, (PAGE + 0x1000 * index | A_PAGE | CONTIGUOUS) ^ VALID)
    m.set(3, 20, 0)
    m.flush(tlbi="tlbi vmalle1is")
    assert m.rules() == []


def test_no_access_flag_no_tlb_entry(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE ^ AF)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE, atomic=True)
    assert m.rules() == []


def test_an_access_flag_is_set(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE ^ AF)
    m.set(3, 0, PAGE | A_PAGE)
    assert m.rules() == []


def test_a_blind_store_where_hardware_sets_no_access_flags(model):
    m = model()
    m.model_tcr(ctypes.c_uint64(TCR & ~(1 << 39)))
    m.set(3, 0, PAGE | A_PAGE ^ AF)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == []


def test_no_access_flag_and_a_blind_store(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE ^ AF)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["access-flag"]


@pytest.mark.parametrize("tlbi", ["tlbi vaae1is, x0", "tlbi rvaae1is, x0"])
def test_the_last_page_of_all(model, tlbi):
    """Its end is no address."""
    m = model()
    top = -0x1000 & (1 << 64) - 1
    m.write(ROOT + 8 * 511, RAM + 0x31000 | VALID | TABLE)
    m.write(RAM + 0x31000 + 8 * 511, OTHER[2] | VALID | TABLE)
    m.write(OTHER[2] + 8 * 511, OTHER[3] | VALID | TABLE)
    m.write(OTHER[3] + 8 * 511, PAGE | A_PAGE)
    m.write(OTHER[3] + 8 * 511, 0)
    m.do("dsb ishst")
    m.do(tlbi, operand(top) if " va" in tlbi else ranged((top >> 12) - 1, 1, 0, 0))
    m.do("dsb ish")
    m.write(OTHER[3] + 8 * 511, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == []


def second_root(m: Model, page: int) -> int:
    """Make a root that differs from the first in the translation of VA."""
    root = RAM + 0x30000
    m.write(root + 256 * 8, RAM + 0x31000 | VALID | TABLE)
    m.write(RAM + 0x31000, OTHER[2] | VALID | TABLE)
    m.write(OTHER[2], OTHER[3] | VALID | TABLE)
    m.write(OTHER[3], page | A_PAGE)
    return root


def test_cpus_that_share_a_tlb(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    root = second_root(m, PAGE + 0x1000)
    m.flush(tlbi="tlbi vmalle1is", cpu=1)
    m.root(1, RAM + 0x40000)
    m.do("tlbi vmalle1", cpu=1)
    m.do("dsb nsh", cpu=1)
    m.root(1, root)
    assert m.rules() == []
    m.root(0, common=True)
    m.root(1, root, common=True)
    assert m.rules() == ["shared-tlb"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([True], True, ["shared-tlb"]),
        ([True], False, []),
        ([False], True, []),
        # The bit belongs to what is loaded now.
        ([True, False], True, []),
    ],
)
def test_cpus_share_a_tlb_if_both_say_so(model, first, second, expected):
    m = model()
    m.test_power_off(1)
    m.set(3, 0, PAGE | A_PAGE)
    root = second_root(m, PAGE + 0x1000)
    for common in first:
        m.root(0, common=common)
    m.root(1, root, common=second)
    assert m.rules() == expected


@pytest.mark.parametrize(
    ("bits", "expected"),
    [(READ_ONLY, ["shared-tlb"]), (NOT_GLOBAL, ["shared-tlb"]), (1 << 55, []), (AF, [])],
    ids=["read-only", "not global", "of software", "access flag"],
)
@pytest.mark.parametrize("later", [False, True])
def test_cpus_that_share_a_tlb_have_the_same_bits(model, bits, expected, later):
    """But for what hardware sets by itself, or does not look at."""
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    root = second_root(m, PAGE ^ bits)
    m.test_power_off(1)
    if later:
        m.write(OTHER[3], 0)
    m.root(0, common=True)
    m.root(1, root, common=True)
    if later:
        assert m.rules() == []
        m.write(OTHER[3], PAGE ^ bits | A_PAGE if bits != AF else PAGE | A_PAGE ^ AF)
    assert m.rules() == expected


@pytest.mark.parametrize(("common", "expected"), [(True, ["shared-tlb"]), (False, [])])
def test_tables_of_cpus_that_share_a_tlb_become_different(model, common, expected):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    root = second_root(m, PAGE)
    m.root(0, common=True)
    m.root(1, root, common=common)
    for cpu in (0, 1):
        m.flush(tlbi="tlbi vmalle1is", cpu=cpu)
    m.write(OTHER[3], 0)
    m.flush(tlbi="tlbi vmalle1is")
    assert m.rules() == []
    m.write(OTHER[3], PAGE + 0x1000 | A_PAGE)
    assert m.rules() == expected


def test_another_root_while_the_tlb_has_entries_of_the_first(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.root(0, second_root(m, PAGE + 0x1000))
    assert m.rules() == ["break-before-make"]


def test_roots_for_which_there_is_no_room_are_not_silently_left_out(model):
    m = model()
    for number in range(64):
        assert m.blind() == 0
        m.root(0, ROOT + 0x200_0000 + number * 0x1000)
    assert m.blind() > 0


def test_roots_are_compared_again_when_something_has_changed(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    root = second_root(m, PAGE)
    for to in (root, ROOT):
        m.root(0, to)
        m.steps("tlbi vmalle1", "dsb nsh")
    assert m.rules() == []
    # It is memory meanwhile, and then a root again.
    m.write(OTHER[3], PAGE + 0x1000 | A_PAGE)
    m.root(0, root)
    assert m.rules() == ["break-before-make"]
    m.root(0)
    assert m.rules() == ["break-before-make"] * 2
    # Each way was said once.
    m.root(0, root)
    assert m.rules() == ["break-before-make"] * 2
    # Who shares a TLB is another question about the same roots.
    m.root(1, common=True)
    m.root(0, root, common=True)
    assert m.rules() == ["break-before-make"] * 2 + ["shared-tlb"]


def test_what_has_left_the_tables_is_compared_again_when_something_has_changed(model):
    m = model()
    root = second_root(m, PAGE + 0x1000)
    m.write(OTHER[3] + 8, PAGE + 0x2000 | A_PAGE)
    m.root(2, root)
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    # Of each CPU that may hold it, once.
    for cpu in (0, 1, 0):
        m.root(cpu, root)
        m.root(cpu)
    assert m.rules() == ["make-before-invalidation"] * 2
    m.set(3, 1, PAGE | A_PAGE)
    m.set(3, 1, 0)
    m.root(0, root)
    assert m.rules() == ["make-before-invalidation"] * 4


@pytest.mark.parametrize(
    "users",
    [
        pytest.param([], id="never-loaded"),
        pytest.param(["second"], id="loaded"),
        pytest.param(["second", "first"], id="left"),
    ],
)
def test_another_root_while_the_tlb_has_what_has_left_the_first(model, users):
    """It is said once, when the root is loaded, whoever has loaded it before."""
    m = model()
    roots = {"first": ROOT, "second": second_root(m, PAGE + 0x1000)}
    for name in users:
        m.root(2, roots[name])
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    # CPU 0 has dropped it, and CPU 1 has not.
    m.steps("dsb nshst", "tlbi vmalle1", "dsb nsh")
    for cpu in (1, 0):
        m.root(cpu, roots["second"])
        assert m.rules() == ["scope"]


def test_a_root_that_is_loaded_again_after_its_own_change(model):
    """What is wrong about that was said when the new entry was made."""
    m = model()
    root = second_root(m, PAGE)
    m.write(OTHER[3], 0)
    m.root(2, root)
    for desc in (PAGE | A_PAGE, 0, PAGE + 0x1000 | A_PAGE):
        m.write(OTHER[3], desc)
    for to in (ROOT, root):
        m.root(2, to)
    assert m.rules() == ["make-before-invalidation"]


def test_another_root_with_a_block_of_the_same_memory_as_a_page(model):
    m = model(2)
    root = second_root(m, PAGE)
    m.write(OTHER[2] + 8, BLOCK | LEAF)
    m.root(2, root)
    m.set(2, 1, RAM + 0x33000 | VALID | TABLE)
    m.write(RAM + 0x33000 + 8 * 3, BLOCK + 0x3000 | A_PAGE)
    m.write(RAM + 0x33000 + 8 * 3, 0)
    m.root(0, root)
    assert m.rules() == []


def test_leaves_of_two_sizes_in_different_tlbs(model):
    m = model(2)
    root = second_root(m, PAGE)
    m.write(OTHER[2] + 8, BLOCK | LEAF)
    m.root(1, root)
    m.do("tlbi vmalle1", cpu=1)
    m.do("dsb nsh", cpu=1)
    m.write(OTHER[2] + 8, 0, cpu=1)
    m.set(2, 1, RAM + 0x33000 | VALID | TABLE)
    m.write(RAM + 0x33000, BLOCK | A_PAGE)
    m.write(RAM + 0x33000, 0)
    m.flush(VA + 0x200000)
    assert m.rules() == []


@pytest.mark.parametrize("loaded", [True, False])
def test_tables_are_others_when_tcr_changes(model, loaded):
    """A CPU with 52 bits says at first that it has 48. The root of then is no table later."""
    m = model(2)
    if not loaded:
        m.root(0, second_root(m, PAGE))
        m.root(1, second_root(m, PAGE))
    m.model_tcr(ctypes.c_uint64(2 << 30 | 12 << 16 | 1 << 59))
    # The last of these is remembered where the first root was.
    for root in (RAM + 0x38000, RAM + 0x39000):
        for cpu in range(2):
            m.root(cpu, root)
            m.do("tlbi vmalle1", cpu=cpu)
            m.do("dsb nsh", cpu=cpu)
    for number in range(1, 4):
        m.write(ROOT + 8 * 88, number << 39 | LEAF)
    assert m.rules() == []


def test_a_root_that_stays_loaded_when_tcr_changes(model):
    m = model(2)
    m.model_tcr(ctypes.c_uint64(2 << 30 | 12 << 16 | 1 << 59))
    # Of what was table of level 0 the last entry is that of level -1 now.
    m.write(ROOT + 8 * 15, TABLES[1] | VALID | TABLE)
    m.write(TABLES[1], PAGE | VALID | TABLE)
    m.write(TABLES[1], 0)
    m.write(PAGE, 0x1234)
    assert m.rules() == ["tables"]


@pytest.mark.parametrize(("bits", "first"), [(39, 1), (47, 0)])
def test_addresses_are_others_when_tcr_changes(model, bits, first):
    """With 39 bits the root is a table of level 1; with 47 it is half as long."""
    m = model()
    m.model_tcr(ctypes.c_uint64(2 << 30 | 64 - bits << 16))
    path = [ROOT, RAM + 0x31000, OTHER[2], OTHER[3]]
    if first:
        del path[1]
    for table, below in itertools.pairwise(path):
        m.write(table, below | VALID | TABLE)
    for desc in (PAGE | A_PAGE, 0):
        m.write(OTHER[3], desc)
    m.flush((1 << 64) - (1 << bits))
    m.write(OTHER[3], PAGE + 0x1000 | A_PAGE)
    assert m.rules() == []
    m.write(OTHER[3], PAGE | A_PAGE)
    assert m.rules() == ["break-before-make"]


def test_bits_of_descriptors_are_others_when_tcr_changes(model):
    """With TCR_EL1.DS those of the shareability are of the output address."""
    m = model()
    m.model_tcr(ctypes.c_uint64(TCR | 1 << 59))
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, PAGE | A_PAGE ^ 1 << 8)
    assert m.rules() == ["break-before-make"]
    assert "output address" in m.words()


def unmap_for_the_second_cpu(m: Model) -> None:
    """Let both CPUs map a page, each in its own tables, and unmap it in those of the second."""
    root = second_root(m, PAGE)
    m.set(3, 0, PAGE | A_PAGE)
    m.root(1, root)
    m.do("tlbi vmalle1", cpu=1)
    m.do("dsb nsh", cpu=1)
    m.write(OTHER[3], 0, cpu=1)


def test_per_cpu_tables(model):
    """What only one CPU can walk is in no other TLB: its own invalidation is enough."""
    m = model()
    unmap_for_the_second_cpu(m)
    m.do("dsb nshst", cpu=1)
    m.do("tlbi vmalle1", cpu=1)
    m.do("dsb nsh", cpu=1)
    m.write(OTHER[3], PAGE + 0x1000 | A_PAGE, cpu=1)
    assert m.rules() == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(0, "tlbi vmalle1"), (0, "dsb nsh")], ["break-before-make"]),
        ([(cpu, text) for cpu in (0, 1) for text in ("tlbi vmalle1", "dsb nsh")], []),
        ([(0, "tlbi vmalle1is")], ["break-before-make"]),
        ([(0, "tlbi vmalle1is"), (0, "dsb nsh")], ["break-before-make"]),
        ([(0, "tlbi vmalle1is"), (1, "dsb ish")], ["break-before-make"]),
        ([(0, "tlbi vmalle1is"), (0, "dsb ish")], []),
        ([(0, "tlbi vmalle1os nxs"), (0, "dsb ish")], []),
        ([(0, "tlbi vaae1is, x0"), (0, "dsb ish")], ["break-before-make"]),
    ],
)
def test_tables_of_a_root_that_both_cpus_have_left(model, steps, expected):
    """Of per-CPU tables that are freed: they are memory when no TLB has anything of them."""
    m = model()
    root = second_root(m, PAGE)
    for to in (root, ROOT):
        for cpu in (0, 1):
            m.root(cpu, to)
    for cpu, text in steps:
        m.steps(text, cpu=cpu)
    m.write(OTHER[3], PAGE + 0x1000 | A_PAGE)
    assert m.rules() == expected


def test_more_roots_one_after_the_other_than_there_is_room_for(model):
    m = model()
    m.test_power_off(1)
    for number in range(70):
        top = RAM + 0x200000 + 0x1000 * number
        m.write(top + 256 * 8, TABLES[1] | VALID | TABLE)
        m.root(0, top)
        m.steps("tlbi vmalle1", "dsb nsh")
    m.root(0, second_root(m, PAGE))
    m.write(OTHER[3], PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["break-before-make"]


def test_what_one_cpu_may_hold_is_no_matter_to_another(model):
    m = model()
    unmap_for_the_second_cpu(m)
    m.write(OTHER[3] + 8, PAGE | A_PAGE, cpu=1)
    m.write(OTHER[3] + 8, 0, cpu=1)
    m.set(3, 1, PAGE + 0x1000 | A_PAGE)
    m.access(VA + 0x1000)
    assert m.rules() == []
    m.write(OTHER[3] + 8, PAGE + 0x1000 | A_PAGE, cpu=1)
    assert m.rules() == ["make-before-invalidation"]


def test_use_through_one_of_two_roots(model):
    """What is unmapped for one CPU is not for the other."""
    m = model()
    unmap_for_the_second_cpu(m)
    # A harmless change of the same descriptor under the other root is no reason to forget that.
    m.set(3, 0, PAGE | A_PAGE | READ_ONLY)
    m.access(cpu=0)
    assert m.rules() == []
    m.access(cpu=1)
    assert m.rules() == ["stale-use"]


def test_another_root_with_a_block_of_other_memory(model):
    m = model()
    m.set(2, 1, BLOCK | LEAF)
    root = second_root(m, PAGE)
    m.write(OTHER[2] + 8, BLOCK + 0x200000 | LEAF)
    m.root(0, root)
    assert m.rules() == ["break-before-make"]
    assert m.test_address(0) == VA + 0x200000


def test_a_table_that_is_linked_twice(model):
    """An invalidation by one of its addresses is none by the other."""
    m = model()
    m.set(2, 1, TABLES[3] | VALID | TABLE)
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, 0)
    m.flush()
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    assert m.rules() == ["make-before-invalidation"]


def test_top_levels_that_share_a_page(model):
    """With pages of 64 KiB those of 48 bits have 512 bytes."""
    m = model()
    for cpu in (0, 1):
        m.test_power_off(cpu)
    m.model_tcr(ctypes.c_uint64(3 << 30 | 16 << 16))
    top, empty, third, middle, last = (
        RAM + at for at in (0x102000, 0x102200, 0x102400, 0x110000, 0x120000)
    )
    m.write(top, middle | VALID | TABLE)
    m.write(middle, last | VALID | TABLE)
    m.write(last, PAGE | A_PAGE)
    m.root(0, top)
    # What leads nowhere any more is memory.
    for root in (empty, third):
        m.root(0, root)
        m.do("tlbi vmalle1")
        m.do("dsb nsh")
    m.write(last, PAGE + 0x10000 | A_PAGE)
    assert m.rules() == []
    m.root(0, top)
    m.write(middle + 0x20000, last + 0x20000 | VALID | TABLE)
    m.write(last + 0x20000, PAGE | A_PAGE)
    m.write(top, middle + 0x20000 | VALID | TABLE)
    assert m.rules() == ["break-before-make"]
    # One that is forgotten leaves the page to the others.
    for root in (empty, top):
        m.root(1, root)
        m.steps("tlbi vmalle1", "dsb nsh", cpu=1)
    m.write(top, middle | VALID | TABLE)
    assert m.rules() == ["break-before-make"] * 2


def test_writable_here_and_executable_there(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 1, PAGE | A_PAGE ^ PXN | READ_ONLY)
    assert m.rules() == ["write-execute"]


def test_a_table_of_two_roots_is_counted_once(model):
    """Per-CPU roots have most tables in common."""
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 1, PAGE + 0x1000 | A_PAGE)
    root = RAM + 0x30000
    m.write(root + 256 * 8, TABLES[1] | VALID | TABLE)
    for to in (root, ROOT, root):
        m.root(1, to)
        m.flush(tlbi="tlbi vmalle1is", cpu=1)
    m.set(3, 0, 0)
    m.flush()
    m.set(3, 2, PAGE | A_PAGE ^ PXN | READ_ONLY)
    assert m.rules() == []
    m.set(3, 3, PAGE + 0x1000 | A_PAGE ^ PXN | READ_ONLY)
    assert m.rules() == ["write-execute"]


def test_what_a_root_had_when_it_was_loaded(model):
    """It was reported when it was made, and counts for what comes later."""
    m = model()
    root = second_root(m, PAGE)
    m.set(3, 5, PAGE + 0x1000 | A_PAGE ^ PXN | READ_ONLY)
    m.write(OTHER[3] + 8 * 6, PAGE + 0x1000 | A_PAGE)
    m.root(1, root)
    assert m.rules() == []
    m.set(3, 1, PAGE | A_PAGE ^ PXN | READ_ONLY)
    assert m.rules() == ["write-execute"]


def test_devices_are_no_memory_to_execute(model):
    m = model()
    m.set(3, 0, 0x900_0000 | A_PAGE)
    m.set(3, 1, 0x900_0000 | A_PAGE ^ PXN | READ_ONLY)
    assert m.rules() == []


def test_writable_in_a_block_and_executable_in_a_page_of_it(model):
    m = model()
    m.set(2, 1, BLOCK | LEAF)
    m.set(3, 1, BLOCK + 0x5000 | A_PAGE ^ PXN | READ_ONLY)
    assert m.rules() == ["write-execute"]


def test_executable_by_a_table_that_is_linked(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.write(OTHER[3], PAGE | A_PAGE ^ PXN | READ_ONLY)
    m.set(2, 1, OTHER[3] | VALID | TABLE)
    assert m.rules() == ["write-execute"]


def test_executable_after_the_table_that_made_it_writable_is_gone(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(2, 0, 0)
    m.flush(tlbi="tlbi vmalle1is")
    m.write(OTHER[3], PAGE | A_PAGE ^ PXN | READ_ONLY)
    m.set(2, 1, OTHER[3] | VALID | TABLE)
    assert m.rules() == []


def test_writable_in_a_tlb_alone(model):
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, PAGE | A_PAGE | READ_ONLY)
    m.set(3, 1, PAGE | A_PAGE ^ PXN | READ_ONLY)
    assert m.rules() == ["write-execute"]
    m = model()
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, PAGE | A_PAGE | READ_ONLY)
    m.flush()
    m.set(3, 1, PAGE | A_PAGE ^ PXN | READ_ONLY)
    assert m.rules() == []


# --- What it writes -------------------------------------------------------------

SYMBOLS = """
ffff800080000000 T _text
ffff800080010000 T vectors
ffff800080010000 t $x
ffff800080020000 t set_it
ffff800080021000 T caller
ffff800080022000 D data
"""
MODULES = "ffffa00000000000 t in_module\t[mutants]\n"
# The kernel was moved by this much, and its first instruction was at that physical address.
MOVED = 0x2000_0000
IMAGE = 0x4020_0000

REPORT = {
    "count": 3,
    "rule": "break-before-make",
    "words": "the output address changes",
    "cpu": 1,
    "pc": 0xFFFF_8000_8002_0010 + MOVED,
    "address": 0xFFFF_8000_8100_0000,
    "old": 0x43,
    "new": 0x83,
    "writer_cpu": 0,
    "writer": IMAGE + 0x21004,
    "writer_caller": 0,
    "callers": [0xFFFF_8000_8002_1008 + MOVED, 0xFFFF_A000_0000_0020],
}


@pytest.fixture
def reports(tmp_path, monkeypatch):
    """Write a file of reports, for a kernel with the symbols above."""
    monkeypatch.setattr(strict, "_symbols", lambda vmlinux: strict.parse_symbols(SYMBOLS))
    monkeypatch.setattr(strict, "run", lambda command: "??:0\n" * len(command))

    def write(*entries: dict, rest: str = "") -> Path:
        facts = [{"bbm_level": 2}, {"image": IMAGE}, {"vectors": 0xFFFF_8000_8001_0000 + MOVED}]
        file = tmp_path / "violations.json"
        file.write_text("".join(json.dumps(entry) + "\n" for entry in [*facts, *entries]) + rest)
        return file

    return write


def test_addresses_become_names(reports):
    machine = Strict(Path("plugin"), Path("vmlinux"))
    (found,) = strict.read(reports(REPORT), machine, MODULES)
    assert found.place == ("set_it+0x10", "caller+0x8", "in_module+0x20")
    assert found.writer == ("caller+0x4",)
    assert found.functions() == {"set_it", "caller", "in_module"}
    text = str(found)
    assert "3 times, by CPU 1 in set_it+0x10 < caller+0x8" in text
    assert "0xffff800081000000" in text


def test_each_kernel_has_been_moved_by_its_own(reports):
    """One that was started by another (kexec) is elsewhere."""
    by = 0x100_0000
    other = [{"kernel": 1}, {"image": IMAGE + by}, {"vectors": 0xFFFF_8000_8001_0000 + by}]
    report = {**REPORT, "pc": 0xFFFF_8000_8002_0020 + by, "writer": IMAGE + by + 0x21008}
    first, second = strict.read(
        reports(REPORT, *other, report), Strict(Path("plugin"), Path("vmlinux"))
    )
    assert (first.place[0], first.writer) == ("set_it+0x10", ("caller+0x4",))
    assert (second.place[0], second.writer) == ("set_it+0x20", ("caller+0x8",))


def test_source_lines_where_the_kernel_has_them(reports, monkeypatch):
    monkeypatch.setattr(strict, "run", lambda command: "mm/some.c:42\n")
    (found,) = strict.read(reports(REPORT), Strict(Path("plugin"), Path("vmlinux")))
    assert found.place[0] == "set_it+0x10 (mm/some.c:42)"


def test_without_symbols_there_are_addresses(reports):
    (found,) = strict.read(reports(REPORT), Strict(Path("plugin")))
    assert found.place[0] == hex(REPORT["pc"])


def test_what_is_explained_is_left_out(reports):
    file = reports(REPORT, {**REPORT, "rule": "scope"})
    entries = [
        Known("scope", "caller", "because", "base-4k"),
        Known("tables", "set_it", "of another rule", "base-4k"),
    ]
    machine = Strict(Path("plugin"), Path("vmlinux"), known=entries)
    assert [found.rule for found in strict.read(file, machine)] == ["break-before-make"]
    assert len(strict.read_all(file, machine)) == 2


def test_a_line_that_is_half_written(reports):
    assert strict.read(reports(rest='{"count":   1, "ru'), Strict(Path("plugin"))) == []


def test_no_reports_at_all(tmp_path):
    with pytest.raises(MachineError, match="has left no reports"):
        strict.read(tmp_path / "none", Strict(Path("plugin")))


def test_a_machine_that_was_blind_has_not_found_nothing(reports, tmp_path):
    """A full disk, memory that it did not find, or more of something than it has room for."""
    machine = Strict(Path("plugin"))
    assert strict.read(reports(), machine) == []
    with pytest.raises(BlindError, match="not seen all: there was too much of it") as error:
        strict.read(reports(REPORT, *2 * [{"blind": "there was too much of it"}]), machine)
    # What it has seen is not lost.
    assert [found.rule for found in error.value.violations] == [REPORT["rule"]]
    with pytest.raises(MachineError, match="has a line that is no report"):
        strict.read(reports(rest="garbage\n"), machine)
    empty = tmp_path / "empty"
    for text in ("", '{"bbm_level": 2}\n'):
        empty.write_text(text)
        with pytest.raises(BlindError, match="not seen all: no kernel has run in it"):
            strict.read(empty, machine)


def test_reports_outlive_a_guest_that_died(reports, tmp_path, monkeypatch, capsys):
    """It may have died of what they are about."""

    def die(environment, logs, *_):
        shutil.copy(reports(REPORT), logs / evidence.VIOLATIONS)
        raise GuestDiedError("the guest kernel died")

    options = MachineOptions(Path("Image"), Path("rootfs"), strict=Strict(Path("plugin")))
    monkeypatch.setattr(inputs, "options_for", lambda *_, **__: options)
    monkeypatch.setattr(boot, "describe", lambda *_: None)
    monkeypatch.setattr(boot, "_start", die)
    file = tmp_path / "strict.json"
    arguments = ["patched-4k", "--strict", "--strict-json", str(file), "--run", "true"]
    with pytest.raises(GuestDiedError):
        main.app(["boot", *arguments], standalone_mode=False)
    assert "the output address changes" in capsys.readouterr().err
    [report] = json.loads(file.read_text())
    assert report["rule"] == "break-before-make"
    # Another test compares these names with what is documented.
    assert set(report) == {field.name for field in fields(Violation)}


def test_rules_that_are_left_out(model, tmp_path):
    machine = Strict(Path("plugin"), without=["break-before-make", "write-execute"])
    (_, words) = strict.arguments(machine, tmp_path)
    m = model(without=int(re.search(r",without=(\d+)$", words)[1]))
    m.set(3, 0, PAGE | A_PAGE)
    m.set(3, 0, PAGE + 0x1000 | A_PAGE)
    m.set(3, 1, PAGE + 0x1000 | A_PAGE ^ PXN | READ_ONLY)
    m.set(3, 0, 0)
    m.access()
    assert set(m.rules()) == {"stale-use"}


def test_rules_that_there_are_not():
    with pytest.raises(MachineError, match="there is no rule speed"):
        Strict(Path("plugin"), without=["speed"])


def test_names_of_rules_are_those_of_the_plugin():
    names = re.findall(r'\[RULE_\w+\]\s*= "([\w-]+)"', (SOURCES / "plugin.c").read_text())
    assert tuple(names) == RULES


def test_the_number_of_cpus_is_that_of_the_plugin():
    assert f"#define MAX_CPUS\t{MAX_CPUS}\n" in (SOURCES / "model.h").read_text()


def test_what_is_explained_is_well_formed():
    assert {entry.rule for entry in KNOWN} <= set(RULES)
    # Of the features, one thing is to be explained.
    builds = [entry.build for entry in KNOWN if entry.build != "base-4k"]
    assert builds == ["patched-4k"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["patched-4k", "--strict-json", "x.json"], "add --strict"),
        (["patched-4k", "--bbm-level", "0"], "add --strict"),
        (["--strict", "--vmlinux", __file__], "add --kernel"),
        (["--strict"], "name a build"),
        (["patched-4k", "--kernel", __file__], "instead of a build"),
    ],
)
def test_options_that_need_others(arguments, message):
    with pytest.raises(PagewrightError, match=message):
        main.app(["boot", *arguments], standalone_mode=False)


# --- Guests ---------------------------------------------------------------------

PAGE_TABLES_AT_WORK = f"""
stress-ng --fork 2 --fork-ops 100 --mmap 1 --mmap-ops 2 --mmap-bytes 4M 2>&1 || exit
modprobe crypto_null && {UNLOAD} crypto_null
"""

KPTI_CPU = "cortex-a76"
# The linear map goes back to pages.
UNEQUAL = "arm64.linear_map=live arm64.nobbml2_cpus=1"


@pytest.mark.full
def test_base_kernel_has_what_is_explained_and_no_more(machine):
    """With and without BBM level 2, and where the kernel is not mapped for programs."""
    seen = set()
    for cpu, append in ((None, ""), (KPTI_CPU, ""), (None, "kpti=on nokaslr")):
        guest = machine("base-4k", smp=2, cpu=cpu, append=append, strict=True)
        guest.check(PAGE_TABLES_AT_WORK, timeout=900)
        assert guest.violations() == []
        seen |= explanations(guest)
    assert seen == {entry for entry in KNOWN if entry.build == "base-4k"}


@pytest.mark.full
def test_unequal_cpus_have_what_is_explained(machine):
    guest = machine("patched-4k", smp=2, append=UNEQUAL, strict=True)
    assert guest.violations() == []
    assert {entry for entry in KNOWN if entry.build == "patched-4k"} <= explanations(guest)


def explanations(guest) -> set[Known]:
    """Return what explains the violations of a machine that has no others."""
    everything = strict.read_all(guest.logs / evidence.VIOLATIONS, guest.strict)
    return {strict.explains(guest.strict.known, found) for found in everything}


MUTANTS = {
    "new_address": {"break-before-make"},
    "new_address_of_writable": {"break-before-make"},
    "second_of_pair": {"break-before-make"},
    "second_of_exclusive_pair": {"break-before-make"},
    "second_of_swapped_pair": {"break-before-make"},
    "new_memory_type": {"break-before-make"},
    "global_over_not_global": {"break-before-make"},
    "made_too_early": {"make-before-invalidation"},
    "no_barrier_before_tlbi": {"scope"},
    "one_cpu_invalidated": {"scope"},
    "wrong_level": {"scope"},
    "short_range": {"make-before-invalidation"},
    "split_believed_too_early": {"sizes"},
    "split_and_unmapped": {"sizes"},
    "half_filled_table": {"tables"},
    "table_given_away": {"tables"},
    "table_zeroed": {"tables"},
    "table_of_one_address_space": {"tables"},
    "table_taken_for_block": {"tables"},
    "leaf_of_unlinked_table": {"scope"},
    "misaligned_group": {"contiguous"},
    "inconsistent_group": {"contiguous"},
    "member_unmapped": {"contiguous"},
    "member_elsewhere": {"contiguous"},
    "blind_store": {"access-flag"},
    "blind_release": {"access-flag"},
    "used_while_broken": {"stale-use"},
    "writable_and_executable": {"write-execute"},
    # The other table is loaded while the TLB has entries of the first one.
    "common_not_private": {"shared-tlb", "break-before-make"},
}

# What a CPU without BBM level 2 must not do on top of that, or may not do at all.
WITHOUT_LEVEL_2 = {"new_size": {"break-before-make"}, "inconsistent_group": {"contiguous"}}

# What the module does as the architecture wants it.
LEGAL = ["permissions_of_pair", "invalidated_without_xs", "compared_flag"]

MODULE = "tests/strict/strict_mutants.c"


def run_mutants(guest, names) -> dict[str, set[str]]:
    """Run mutants; return the rules that each was found to break."""
    guest.check("insmod /usr/lib/tests/external/strict_mutants.ko")
    for name in names:
        guest.check(f"echo {name} >/sys/module/strict_mutants/parameters/run")
    found: dict[str, set[str]] = {}
    for violation in guest.violations():
        function = violation.place[0].partition("+")[0]
        found.setdefault(function, set()).add(violation.rule)
    return found


def test_there_is_a_mutant_for_each_rule():
    assert set.union(*MUTANTS.values()) == set(RULES)
    names = re.findall(r'^\t\{ "(\w+)"', (SPACE.root / MODULE).read_text(), re.MULTILINE)
    assert set(names) == MUTANTS.keys() | WITHOUT_LEVEL_2.keys() | set(LEGAL)


@pytest.mark.full
def test_mutants_are_found(machine):
    guest = machine("base-4k", smp=2, strict=True, modules_from=[MODULE])
    assert run_mutants(guest, MUTANTS) == MUTANTS
    found = guest.violations()
    # The size may change live with level 2, and the last CPU may invalidate its own TLB alone.
    guest.check("rmmod strict_mutants && echo 0 >/sys/devices/system/cpu/cpu1/online")
    assert run_mutants(guest, [*LEGAL, "new_size", "one_cpu_invalidated"]) == MUTANTS
    assert guest.violations() == found


@pytest.mark.full
def test_mutants_are_found_without_level_2(machine):
    guest = machine("base-4k", smp=2, strict=True, bbm_level=0, modules_from=[MODULE])
    assert run_mutants(guest, WITHOUT_LEVEL_2) == WITHOUT_LEVEL_2


HUGEPAGES = """
for nr in NUMBERS 0; do echo $nr >/proc/sys/vm/nr_hugepages || exit 1; done
test $(cat /proc/sys/vm/nr_hugepages) = 0
"""
ENTRIES_CHANGED = "cat /sys/kernel/mm/hugetlb_vmemmap/entries_changed"
HUGEPAGES_OF_2M = HUGEPAGES.replace("NUMBERS", "40 90 140")
# By the size of pages, with hugepages of 2, 32 and 512 MiB: the build, memory, and the pools.
PAGE_SIZES = [
    pytest.param("patched-4k", "2G", "40 90 140", id="4k"),
    pytest.param("patched-16k", "4G", "4 20 40", id="16k"),
    pytest.param("patched-64k", "16G", "1 4 10", id="64k"),
]

CPUS = [
    pytest.param({}, id="level-2"),
    pytest.param({"cpu": UNLISTED_CPU, "bbm_level": 0}, id="level-0"),
    pytest.param({"cpu": KPTI_CPU}, id="cortex-a76"),
    pytest.param({"cpu": "neoverse-n1", "append": "arm64.linear_map=af"}, id="access-flags"),
    pytest.param(
        {"cpu": UNLISTED_CPU, "bbm_level": 0, "append": "hugetlb_vmemmap=pause"}, id="paused-remaps"
    ),
]


def changes_as_asked(guest, suites, cpu):
    """Assert that live entries are changed in the way that the machine is booted for."""
    mode, reason = said(guest)
    [of_hugepages] = guest.read("/sys/kernel/mm/hugetlb_vmemmap/mode")
    words = cpu.get("append", "")
    assert mode == "blocks"
    assert reason.startswith(PAUSED if "cpu" in cpu else LIVE)
    assert ("arm64.linear_map=af" in reason) == ("arm64.linear_map=af" in words)
    assert of_hugepages == ("pause" if "hugetlb_vmemmap=pause" in words else "seamless")
    if "linear_map" in suites:
        assert was_split(guest)
    if "linear_map" in suites and "arm64.linear_map=af" in words:
        assert int(guest.check("cat /sys/kernel/mm/linear_map/access_flag_splits")) > 0


def works_by_the_rules(machine, build, memory, pools, suites, cpu):
    """Run suites, change pools of hugepages, and load modules; no rule is broken."""
    words = f"kunit.enable=1 kunit.filter_glob={suites} hugetlb_free_vmemmap=on"
    options = {**cpu, "append": f"{words} {cpu.get('append', '')}".strip()}
    guest = machine(build, smp=2, memory=memory, strict=True, **options)
    ran = guest.check("ls /sys/kernel/debug/kunit").split()
    assert ran
    changes_as_asked(guest, ran, cpu)
    for results in guest.read(*(f"/sys/kernel/debug/kunit/{suite}/results" for suite in ran)):
        # Some cases are of one size of pages only, and are skipped with another.
        assert re.search(r"^ +ok \d+ \w+$", results, re.M), results
        assert not re.search(r"^ *not ok", results, re.M), results
    changed = int(guest.check(ENTRIES_CHANGED))
    guest.check(HUGEPAGES.replace("NUMBERS", pools), timeout=900)
    assert int(guest.check(ENTRIES_CHANGED)) > changed
    guest.check(PAGE_TABLES_AT_WORK, timeout=900)
    assert guest.violations() == []
    assert guest.warnings() == ""


def test_suites_that_change_live_entries(machine):
    """Those of the linear map and of HVO, where both are changed live."""
    works_by_the_rules(machine, "patched-4k", "2G", "40 90 140", "[lh]*", {})


@pytest.mark.full
@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("suite", ["linear_map", "hugetlb_vmemmap", "percpu*", "cpu_pause"])
@pytest.mark.parametrize(("build", "memory", "pools"), PAGE_SIZES)
def test_suites_of_the_features(machine, build, memory, pools, suite, cpu):
    works_by_the_rules(machine, build, memory, pools, suite, cpu)


# With few bits of addresses tables are folded: three levels are left, and two.
FEW_LEVELS = [
    pytest.param("tiny-4k-39", "2G", "40 90 140", id="4k-39"),
    pytest.param("tiny-64k-42", "16G", "1 4 10", id="64k-42"),
]


@pytest.mark.full
@pytest.mark.parametrize("suites", ["[lhc]*", "percpu*"])
@pytest.mark.parametrize(("build", "memory", "pools"), FEW_LEVELS)
def test_suites_of_the_features_with_few_levels_of_tables(machine, build, memory, pools, suites):
    """Live, as without BBM level 2 a top level that has blocks is not split at all."""
    works_by_the_rules(machine, build, memory, pools, suites, {})


@pytest.mark.full
def test_hvo_without_break_before_make_is_found(machine):
    """By the functions that write the entries; the same work in our kernel breaks no rule."""
    options = {"memory": "2G", "strict": True, "append": "hugetlb_free_vmemmap=on"}
    naive = machine("naive-4k", **options)
    naive.check(HUGEPAGES_OF_2M, timeout=900)
    found = [v for v in naive.violations() if v.rule == "break-before-make"]
    assert all(v.words.startswith("the output address changes") for v in found)
    # When they are allocated, and when they are freed: for each 2 MiB at least a page.
    for writer in ("vmemmap_remap_pte", "vmemmap_restore_pte"):
        assert sum(v.count for v in found if writer in v.functions()) >= 140

    ours = machine("patched-4k", **options)
    ours.check(HUGEPAGES_OF_2M, timeout=900)
    # Of the 140, each has seven that are changed twice.
    assert int(ours.check(ENTRIES_CHANGED)) >= 140 * 7 * 2
    assert ours.violations() == []
