"""The decoder in asm/insn-rmw.h against two disassemblers.

The header is compiled with the host's C compiler and asked about millions of
instruction words; so are capstone and binutils, whose mnemonics are turned into
a class by the sets of names below.  The disassemblers know nothing of the masks
in the header, so a wrong bit in either shows as a disagreement.

Words on which a disassembler is known to differ, mostly instructions that are
younger than it, are in an explicit list of exceptions.  The comparison is strict
about them too: inside an exception the decoder must give the class that the
exception states, and an exception that no longer differs fails the test.

There are 11.8 million words, among them every combination of all bits but the
base register in the rows that hold a match.  Capstone sees all of them.  Binutils
is slower and sees every seventh; with RMW_DECODER_FULL=1 in the environment, all.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import product
from pathlib import Path
from typing import Any

import capstone
import numpy as np
import numpy.typing as npt
import pytest

HERE = Path(__file__).parent
HOST = HERE / "host"
INCLUDE = HERE / "linux/arch/arm64/include"
KUNIT = HERE / "linux/arch/arm64/lib/insn_rmw_kunit.c"
OBJDUMP = "aarch64-linux-gnu-objdump"
SEED = 0x2B200C00

Words = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]
Classes = npt.NDArray[np.uint8]


class Rmw(IntEnum):
    """The values of enum aarch64_insn_rmw."""

    NONE = 0
    ATOMIC = 1
    EXCLUSIVE = 2


# --- What the architecture's names mean -----------------------------------------

ORDERS = ("", "a", "l", "al")
SIZES = ("", "b", "h")


def names(stem: str, orders: Iterable[str] = ORDERS, sizes: Iterable[str] = ("",)) -> set[str]:
    """Put acquire/release and size suffixes on a mnemonic."""
    return {stem + order + size for order, size in product(orders, sizes)}


def atomic_mnemonics() -> set[str]:
    """Every mnemonic of a single instruction that stores where it loads."""
    mnemonics: set[str] = set()
    for op in ("add", "clr", "eor", "set", "smax", "smin", "umax", "umin"):
        mnemonics |= names("ld" + op, sizes=SIZES) | names("st" + op, ("", "l"), SIZES)
    for op in ("swp", "cas"):
        mnemonics |= names(op, sizes=SIZES)
    mnemonics |= names("casp")
    for op in ("ldclrp", "ldsetp", "swpp"):
        mnemonics |= names(op)
    for op in ("cas", "casp", "swp", "swpp", "clr", "clrp", "set", "setp"):
        mnemonics |= names("rcw" + op) | names("rcws" + op)
    for op in ("add", "clr", "set"):
        mnemonics |= names("ldt" + op) | names("stt" + op, ("", "l"))
    mnemonics |= names("swpt") | names("cas", sizes="t") | names("casp", sizes="t")
    for kind, op in product(("f", "bf"), ("add", "max", "min", "maxnm", "minnm")):
        mnemonics |= names("ld" + kind + op) | names("st" + kind + op, ("", "l"))
    return mnemonics


EXCLUSIVE_MNEMONICS = (
    names("ldxr", ("",), SIZES)
    | names("ldaxr", ("",), SIZES)
    | {"ldxp", "ldaxp", "ldtxr", "ldatxr"}
)

CLASS_OF_MNEMONIC = dict.fromkeys(atomic_mnemonics(), Rmw.ATOMIC) | dict.fromkeys(
    EXCLUSIVE_MNEMONICS, Rmw.EXCLUSIVE
)


# --- What is asked -----------------------------------------------------------------

# insn<29:24> of the rows that hold a match.
ROWS = (0x08, 0x09, 0x19, 0x38, 0x3C)


def scatter(values: Words, *fields: tuple[int, int]) -> Words:
    """Spread the low bits of values over (lsb, width) fields, lowest bits first."""
    words = np.zeros_like(values)
    for lsb, width in fields:
        words |= (values & np.uint32((1 << width) - 1)) << np.uint32(lsb)
        values = values >> np.uint32(width)
    return words


def every_bit_of(rows: Iterable[int], rng: np.random.Generator) -> Words:
    """All words of the rows, with a random base register: 2,097,152 for each row."""
    bits = np.arange(1 << 21, dtype=np.uint32)
    # Rt, Rt2 or opcode, Rs, o1 to o2, size
    words = scatter(bits, (0, 5), (10, 6), (16, 5), (21, 3), (30, 2))
    return np.concatenate(
        [words | np.uint32(row << 24) | rng.integers(32, size=words.size, dtype=np.uint32) << 5
         for row in rows]
    )  # fmt: skip


def load_store_space(rng: np.random.Generator) -> Words:
    """Every opcode of the load/store space, insn<27> set and insn<25> clear.

    All of the 15 bits that are not in a register field are enumerated, with
    several choices of registers.
    """
    opcodes = np.arange(1 << 15, dtype=np.uint32)
    words = scatter(opcodes, (10, 6), (21, 4), (26, 1), (28, 4)) | np.uint32(1 << 27)
    choices = [(rs, rt) for rs in (0, 1, 2, 30, 31) for rt in (0, 1, 2, 30, 31)]
    return np.concatenate(
        [words | np.uint32(rs << 16 | rt) | rng.integers(32, size=words.size, dtype=np.uint32) << 5
         for rs, rt in choices]
    )  # fmt: skip


def samples() -> Words:
    """All words that are compared."""
    rng = np.random.default_rng(SEED)
    anything = rng.integers(1 << 32, size=500_000, dtype=np.uint32)
    return np.concatenate([every_bit_of(ROWS, rng), load_store_space(rng), anything])


# --- Who is asked ------------------------------------------------------------------


class Oracle:
    """host/oracle.c, built with the header under test and loaded."""

    def __init__(self, directory: Path) -> None:
        """Build the library in a directory."""
        package = Path(capstone.__file__).parent
        library = directory / "oracle.so"
        command = [
            os.environ.get("CC", "cc"), "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
            f"-I{HOST}", f"-I{INCLUDE}", f"-I{package / 'include'}",
            str(HOST / "oracle.c"), str(package / "lib/libcapstone.so"), "-o", str(library),
        ]  # fmt: skip
        subprocess.run(command, check=True)
        # libcapstone.so is found by its soname: importing capstone has loaded it.
        self._lib = ctypes.CDLL(str(library))
        self._lib.oracle_mnemonic.restype = ctypes.c_char_p

    def decoder(self, words: Words) -> Classes:
        """Classify words with the header."""
        classes = np.empty(words.size, dtype=np.uint8)
        self._lib.oracle_class(_pointer(words), ctypes.c_size_t(words.size), _pointer(classes))
        return classes

    def capstone(self, words: Words) -> Classes:
        """Classify words by the mnemonics of capstone."""
        indices = np.empty(words.size, dtype=np.uint16)
        count = ctypes.c_size_t(words.size)
        if self._lib.oracle_capstone(_pointer(words), count, _pointer(indices)) != 0:
            raise RuntimeError("capstone did not start, or MAX_MNEMONICS is too small")
        classes = []
        while (mnemonic := self._lib.oracle_mnemonic(len(classes))) is not None:
            classes.append(CLASS_OF_MNEMONIC.get(mnemonic.decode(), Rmw.NONE))
        return np.array(classes, dtype=np.uint8)[indices]


def _pointer(array: npt.NDArray[Any]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


def objdump(words: Words, directory: Path) -> list[tuple[str, str]]:
    """Disassemble words with binutils into mnemonics and operands."""
    image = directory / "words.bin"
    words.astype("<u4").tofile(image)
    command = [OBJDUMP, "-D", "-z", "-bbinary", "-maarch64", "--no-show-raw-insn", str(image)]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = re.findall(r"^ *[0-9a-f]+:\t(\S+)[ \t]*(.*?)(?:  ?//.*)?$", listing, re.M)
    if len(lines) != words.size:
        raise RuntimeError(f"{OBJDUMP} printed {len(lines)} lines for {words.size} words")
    return lines


def binutils(words: Words, directory: Path) -> Classes:
    """Classify words by the mnemonics of binutils, a million at a time."""
    classes = [
        CLASS_OF_MNEMONIC.get(mnemonic, Rmw.NONE)
        for chunk in np.array_split(words, 1 + words.size // 1_000_000)
        for mnemonic, _ in objdump(chunk, directory)
    ]
    return np.array(classes, dtype=np.uint8)


# --- Where they are known to differ --------------------------------------------------

RT = 0x0000001F
RT2 = 0x00007C00
RS = 0x001F0000


@dataclass(frozen=True)
class Difference:
    """A set of words of which a disassembler does not know the class.

    It is exact: the decoder gives the expected class for all words of the set,
    and the disassembler for none.
    """

    mask: int
    value: int
    expected: Rmw
    reason: str
    # The set does not include words that have all bits set of one of these.
    but: tuple[int, ...] = ()

    def select(self, words: Words) -> Mask:
        """Tell which words are in the set."""
        selected = (words & np.uint32(self.mask)) == self.value
        for ones in self.but:
            selected &= (words & np.uint32(ones)) != ones
        return selected


LSUI = "FEAT_LSUI is younger than capstone 5 and binutils 2.40"
THE = "FEAT_THE is younger than capstone 5 and binutils 2.40"
D128 = "FEAT_THE with FEAT_D128 is younger than capstone 5 and binutils 2.40"
LSE128 = "FEAT_LSE128 is younger than capstone 5 and binutils 2.40"
LSFE = "FEAT_LSFE is younger than capstone 5 and binutils 2.40"
NO_R31 = (RS, RT)

YOUNG = (
    Difference(0xBFE00000, 0x89400000, Rmw.EXCLUSIVE, LSUI + ": LDTXR, LDATXR"),
    Difference(0xFFA07C00, 0xC9807C00, Rmw.ATOMIC, LSUI + ": CAST"),
    Difference(0xFFA17C01, 0x49807C00, Rmw.ATOMIC, LSUI + ": CASPT"),
    Difference(0xBF20EC00, 0x19200400, Rmw.ATOMIC, LSUI + ": LDTADD, LDTCLR"),
    Difference(0xBF20FC00, 0x19203400, Rmw.ATOMIC, LSUI + ": LDTSET"),
    Difference(0xBF20FC00, 0x19208400, Rmw.ATOMIC, LSUI + ": SWPT"),
    Difference(0xFF20DC00, 0x19201000, Rmw.ATOMIC, LSE128 + ": LDCLRP, LDSETP", NO_R31),
    Difference(0xFF20FC00, 0x19208000, Rmw.ATOMIC, LSE128 + ": SWPP", NO_R31),
    Difference(0xBF20FC00, 0x19200800, Rmw.ATOMIC, THE + ": RCWCAS"),
    Difference(0xBF20FC00, 0x38209000, Rmw.ATOMIC, THE + ": RCWCLR"),
    Difference(0xBF20EC00, 0x3820A000, Rmw.ATOMIC, THE + ": RCWSWP, RCWSET"),
    Difference(0xBF21FC01, 0x19200C00, Rmw.ATOMIC, D128 + ": RCWCASP"),
    Difference(0xBF20FC00, 0x19209000, Rmw.ATOMIC, D128 + ": RCWCLRP", NO_R31),
    Difference(0xBF20EC00, 0x1920A000, Rmw.ATOMIC, D128 + ": RCWSWPP, RCWSETP", NO_R31),
    Difference(0x3F20FC00, 0x3C200000, Rmw.ATOMIC, LSFE + ": LDFADD, LDBFADD"),
    Difference(0x3F20CC00, 0x3C204000, Rmw.ATOMIC, LSFE + ": LDFMAX to LDBFMINNM"),
    Difference(0x3FA0FC1F, 0x3C20801F, Rmw.ATOMIC, LSFE + ": STFADD, STBFADD"),
    Difference(0x3FA0CC1F, 0x3C20C01F, Rmw.ATOMIC, LSFE + ": STFMAX to STBFMINNM"),
)

STRICT = "capstone rejects values other than one in fields that only should be one"

CAPSTONE_DIFFERENCES = (
    *YOUNG,
    Difference(0x3FE00000, 0x08400000, Rmw.EXCLUSIVE, STRICT + ": LDXR", (RS | RT2,)),
    Difference(0xBFE00000, 0x88600000, Rmw.EXCLUSIVE, STRICT + ": LDXP", (RS,)),
)
BINUTILS_DIFFERENCES = YOUNG


def describe(words: Words, decoder: Classes, other: Classes) -> str:
    """Show some words on which two classifications differ."""
    shown = [
        f"  {word:08x}: decoder {Rmw(ours).name}, disassembler {Rmw(theirs).name}"
        for word, ours, theirs in list(zip(words, decoder, other, strict=True))[:20]
    ]
    return "\n".join([f"{words.size} words:", *shown])


def compare(
    words: Words, decoder: Classes, other: Classes, differences: Iterable[Difference]
) -> None:
    """Assert that decoder and disassembler differ exactly as listed."""
    known = np.zeros(words.size, dtype=np.bool_)
    for difference in differences:
        selected = difference.select(words)
        assert selected.any(), f"no word of the sample is in: {difference}"
        assert not (known & selected).any(), f"overlaps an earlier one: {difference}"
        wrong = selected & (decoder != difference.expected)
        assert not wrong.any(), f"{difference}\n" + describe(
            words[wrong], decoder[wrong], other[wrong]
        )
        agreed = selected & (other == difference.expected)
        assert not agreed.any(), f"no longer needed: {difference}\n" + describe(
            words[agreed], decoder[agreed], other[agreed]
        )
        known |= selected
    wrong = ~known & (decoder != other)
    assert not wrong.any(), describe(words[wrong], decoder[wrong], other[wrong])


# --- The tests -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """Build the header under test for the host."""
    return Oracle(tmp_path_factory.mktemp("oracle"))


@pytest.fixture(scope="module")
def words() -> Words:
    """Draw the words once."""
    return samples()


def test_sample_reaches_every_mnemonic_class(words, oracle):
    assert words.size > 10_000_000
    counts = np.bincount(oracle.decoder(words), minlength=len(Rmw))
    assert (counts > 100_000).all(), counts


def test_capstone_agrees(words, oracle):
    compare(words, oracle.decoder(words), oracle.capstone(words), CAPSTONE_DIFFERENCES)


def test_binutils_agrees(words, oracle, tmp_path):
    if not os.environ.get("RMW_DECODER_FULL"):
        words = np.ascontiguousarray(words[::7])
    compare(words, oracle.decoder(words), binutils(words, tmp_path), BINUTILS_DIFFERENCES)


def test_no_match_outside_the_load_store_space(oracle):
    """The decoder alone, over every word of the other encoding groups that it might confuse."""
    opcodes = np.arange(1 << 22, dtype=np.uint32) << np.uint32(10)
    other = np.ascontiguousarray(opcodes[(opcodes & 0x0A000000) != 0x08000000])
    for registers in (0x000, 0x01F, 0x3FF):
        assert not oracle.decoder(other | np.uint32(registers)).any()


def test_texts_of_the_kunit_tables_are_right(tmp_path):
    """The disassembly beside an encoding in the KUnit test is what binutils says.

    Instructions that binutils 2.40 does not know were assembled with LLVM 22.
    """
    rows = re.findall(r'\{ (0x[0-9a-f]{8}), (?:ORDER_\w+, )?"([a-z].*)" \},', KUNIT.read_text())
    table = [(int(value, 16), text) for value, text in rows if "[" in text]
    assert len(table) > 250
    encodings = np.array([value for value, _ in table], dtype=np.uint32)
    for (value, text), (mnemonic, operands) in zip(
        table, objdump(encodings, tmp_path), strict=True
    ):
        print(f"{value:08x} {text:40} {mnemonic} {operands}")


def test_comment_of_the_header_and_kunit_groups_are_the_same():
    """Both list the groups, for a reader and for a machine."""
    pair = r"(0x[0-9a-f]{8}),?\s+(0x[0-9a-f]{8})"
    header = re.findall(r"^ \*\t[0-9a-f]{2}\s+" + pair, (INCLUDE / "asm/insn-rmw.h").read_text(), re.M)
    groups = re.findall(r"\{ " + pair + ", (?:ATOMIC|EXCLUSIVE)", KUNIT.read_text())
    assert len(header) > 20
    assert header == groups
