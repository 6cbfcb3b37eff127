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
base register in the rows that hold a match.  Capstone sees all of them.  So does
binutils, which is slower, with --full.
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

from pagewright.host.toolchain import OBJDUMP

HERE = Path(__file__).parent
HOST = HERE / "host"
INCLUDE = HERE / "linux/arch/arm64/include"
HEADER = INCLUDE / "asm/insn-rmw.h"
KUNIT = HERE / "linux/arch/arm64/lib/insn_rmw_kunit.c"
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

    def may_be_rmw(self, words: Words) -> Mask:
        """Ask the header's quick rejection which words may match."""
        passed = np.empty(words.size, dtype=np.uint8)
        self._lib.oracle_may_be_rmw(_pointer(words), ctypes.c_size_t(words.size), _pointer(passed))
        return passed.astype(np.bool_)

    def capstone(self, words: Words) -> Classes:
        """Classify words by the mnemonics of capstone."""
        indices = np.empty(words.size, dtype=np.uint16)
        count = ctypes.c_size_t(words.size)
        if self._lib.oracle_capstone(_pointer(words), count, _pointer(indices)) != 0:
            raise RuntimeError("capstone did not start, or MAX_MNEMONICS is too small")
        classes: list[Rmw] = []
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
    # The set includes only words with the same register in Rt and Rt2.
    same: bool = False

    def select(self, words: Words) -> Mask:
        """Tell which words are in the set."""
        selected: Mask = (words & np.uint32(self.mask)) == self.value
        for ones in self.but:
            selected &= (words & np.uint32(ones)) != ones
        if self.same:
            selected &= (words & np.uint32(RT)) == (words & np.uint32(RT2)) >> np.uint32(10)
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

LDXR = "capstone rejects LDXR if Rs and Rt2 are not the ones that they should be"
LDXP = "capstone rejects LDXP of one register twice, which is unpredictable, not undefined"

CAPSTONE_DIFFERENCES = (
    *YOUNG,
    Difference(0x3FE00000, 0x08400000, Rmw.EXCLUSIVE, LDXR, (RS | RT2,)),
    Difference(0xBFE00000, 0x88600000, Rmw.EXCLUSIVE, LDXP, same=True),
)


def binutils_version() -> tuple[int, ...]:
    """Return the version of the installed objdump."""
    text = subprocess.run([OBJDUMP, "--version"], capture_output=True, text=True, check=True).stdout
    match = re.search(r"(\d+)\.(\d+)", text.splitlines()[0].split(")")[-1])
    assert match, text
    return int(match[1]), int(match[2])


# Debian 12 has 2.40, which knows none of them; Debian 13 has 2.44.
BINUTILS_KNOWS = () if binutils_version() < (2, 44) else (LSE128, THE, D128)
BINUTILS_DIFFERENCES = tuple(d for d in YOUNG if not d.reason.startswith(BINUTILS_KNOWS))

# Instructions in the KUnit test that binutils 2.40 does not know and the decoder ignores.
YOUNG_OTHERS = (
    "sttxr", "stltxr", "ldtp", "sttp",  # FEAT_LSUI
    "ldap1", "stl1", "ldapur q", "ldiapp", "stilp", "ldapr x1, [x2], #8", "stlr x1, [x2, #-8]!",
    "gcsstr", "gcssttr",
)  # fmt: skip


def refuse(wrong: Mask, words: Words, decoder: Classes, other: Classes, what: str) -> None:
    """Fail if any word is wrong, and show the first of them."""
    if wrong.any():
        first = [
            f"{words[i]:08x}: decoder {Rmw(decoder[i]).name}, disassembler {Rmw(other[i]).name}"
            for i in np.flatnonzero(wrong)[:10]
        ]
        pytest.fail("\n  ".join([f"{what}: {wrong.sum()} words", *first]), pytrace=False)


def compare(
    words: Words, decoder: Classes, other: Classes, differences: Iterable[Difference]
) -> None:
    """Assert that the decoder and a disassembler differ exactly as listed."""
    known = np.zeros(words.size, dtype=np.bool_)
    for difference in differences:
        selected = difference.select(words)
        assert selected.any(), f"no word of the sample is in {difference}"
        refuse(selected & (decoder != difference.expected), words, decoder, other,
               f"decoder wrong about {difference}")  # fmt: skip
        refuse(selected & (other == difference.expected), words, decoder, other,
               f"not needed: {difference}")  # fmt: skip
        known |= selected
    refuse(~known & (decoder != other), words, decoder, other, "disagreement")


# --- The tests -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Oracle:
    """Build the header under test for the host."""
    return Oracle(tmp_path_factory.mktemp("oracle"))


@pytest.fixture(scope="module")
def words() -> Words:
    """Draw the words once."""
    return samples()


def kunit_table(name: str) -> tuple[Words, list[str]]:
    """Read the encodings and the texts of one table of the KUnit test."""
    body = re.search(rf"{name}\[\] = {{\n(.*?)^}};", KUNIT.read_text(), re.M | re.S)
    assert body is not None, f"no table {name} in {KUNIT}"
    rows = re.findall(r'{ (0x[0-9a-f]{8}), (?:ORDER_\w+, )?"(.*)" },', body.group(1))
    return np.array([int(value, 16) for value, _ in rows], np.uint32), [text for _, text in rows]


def test_sample_is_large_and_has_every_class(words, oracle):
    """The other tests would prove little if it had not."""
    assert words.size > 10_000_000
    counts = np.bincount(oracle.decoder(words), minlength=len(Rmw))
    assert (counts > 100_000).all(), counts


def test_capstone_agrees(words, oracle):
    """Every word of the sample, in about ten seconds."""
    compare(words, oracle.decoder(words), oracle.capstone(words), CAPSTONE_DIFFERENCES)


@pytest.mark.full
def test_binutils_agrees(words, oracle, tmp_path):
    """Every word of the sample, in about a minute."""
    compare(words, oracle.decoder(words), binutils(words, tmp_path), BINUTILS_DIFFERENCES)


def test_quick_rejection_passes_every_match_and_no_plain_load(words, oracle):
    """The fault path classifies only what passes."""
    passed = oracle.may_be_rmw(words)
    assert passed[oracle.decoder(words) != Rmw.NONE].all()
    for mask, value in ((0x3B000000, 0x39000000), (0x3B200C00, 0x38200800)):
        plain = (words & np.uint32(mask)) == np.uint32(value)
        assert plain.sum() > 10_000
        assert not passed[plain].any()


def test_no_match_outside_the_load_store_space(oracle):
    """The decoder alone, over all bits but Rn and Rt of the other encoding groups."""
    opcodes = np.arange(1 << 22, dtype=np.uint32) << np.uint32(10)
    other = np.ascontiguousarray(opcodes[(opcodes & 0x0A000000) != 0x08000000])
    for registers in (0x000, 0x01F, 0x3FF):
        assert not oracle.decoder(other | np.uint32(registers)).any()


@pytest.mark.parametrize("table", ["atomics", "exclusives", "others"])
def test_kunit_texts_are_the_disassembly(table, tmp_path):
    """Binutils reads back what stands beside an encoding, unless it is too old.

    What it does not know has been assembled with LLVM 22.
    """
    words, texts = kunit_table(table)
    young = np.any([difference.select(words) for difference in BINUTILS_DIFFERENCES], axis=0)
    for text, is_young, (mnemonic, operands) in zip(
        texts, young, objdump(words, tmp_path), strict=True
    ):
        if is_young:
            assert mnemonic == ".inst", f"binutils knows {text} by now"
        elif text.startswith(YOUNG_OTHERS):
            assert mnemonic in (".inst", text.split()[0])
        elif "[" in text:
            assert f"{mnemonic} {operands}" == text
        else:
            assert mnemonic == text.split()[0]


def test_kunit_unallocated_is_undefined(oracle, tmp_path):
    """Binutils defines none of the words that the KUnit test calls unallocated."""
    words, texts = kunit_table("unallocated")
    for text, (mnemonic, _) in zip(texts, objdump(words, tmp_path), strict=True):
        assert mnemonic in (".inst", "udf"), text


def test_comment_in_the_header_lists_the_groups_of_the_kunit_test():
    """One list is for the reader, the other is what KUnit compares the decoder with."""
    pair = r"(0x[0-9a-f]{8}),?\s+(0x[0-9a-f]{8})"
    header = re.findall(r"^ \*\t[0-9a-f]{2} +" + pair, HEADER.read_text(), re.M)
    groups = re.findall(r"{ " + pair + ", (?:ATOMIC|EXCLUSIVE),", KUNIT.read_text())
    assert len(groups) > 20
    assert header == groups
