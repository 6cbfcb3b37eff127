"""A machine as strict as hardware: what its TLBs may hold is checked, and reported.

strict/ is a plugin of QEMU with a model of TLBs; docs/strict-machine.md says what it assumes. Here
it is compiled, a machine is given the arguments for it, and what it reports is read: addresses
become names of functions, and what base/VERSION/violations.toml explains is taken out.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pagewright.host.errors import MachineError
from pagewright.host.files import toml
from pagewright.host.run import run
from pagewright.host.toolchain import ADDR2LINE, NM
from pagewright.host.workspace import Workspace
from pagewright.machine import evidence, plugin

_SOURCES = Path(__file__).with_name("strict")

RULES = (
    "break-before-make",
    "make-before-invalidation",
    "stale-use",
    "scope",
    "sizes",
    "contiguous",
    "tables",
    "access-flag",
    "shared-tlb",
    "write-execute",
)

# What the plugin has room for, as strict/model.h says.
MAX_CPUS = 30

# Kernel addresses are the upper half.
_UPPER = 1 << 63
# A text symbol of another file than the kernel's may be this far before an address.
_LONGEST_FUNCTION = 1 << 20


@dataclass(frozen=True)
class Known:
    """A violation that is explained.

    Attributes:
        rule: its rule.
        function: the function that breaks it, one that calls that, or the one that has changed
            the old descriptor.
        why: why it is there.
        build: a build where it is seen, and whose test fails if it is not.
    """

    rule: str
    function: str
    why: str
    build: str


@dataclass(frozen=True)
class Strict:
    """How strict a machine is.

    Attributes:
        plugin: from `ensure`.
        vmlinux: the kernel with its symbols; without it there are only addresses.
        bbm_level: FEAT_BBM's level, instead of what the CPU's ID register says.
        without: rules that are not checked.
        known: what is explained.
    """

    plugin: Path
    vmlinux: Path | None = None
    bbm_level: int | None = None
    without: Sequence[str] = ()
    known: Sequence[Known] = ()

    def __post_init__(self) -> None:
        """Refuse rules that there are not.

        Raises:
            MachineError: one of `without` is no rule.
        """
        for rule in self.without:
            if rule not in RULES:
                raise MachineError(f"there is no rule {rule}", f"rules: {', '.join(RULES)}")


@dataclass(frozen=True)
class Violation:
    """A place that breaks a rule.

    Attributes:
        rule: the rule's name.
        words: what is wrong.
        count: how often it happened.
        cpu: which CPU did it first.
        place: where, the function first, then its callers.
        address: the address whose translation it is about, that first time.
        old: the descriptor that TLBs may hold.
        new: the one in the tables.
        writer: who had changed the old one, and who called that; empty if that is unknown.
        writer_cpu: on which CPU.
    """

    rule: str
    words: str
    count: int
    cpu: int
    place: tuple[str, ...]
    address: int
    old: int
    new: int
    writer: tuple[str, ...]
    writer_cpu: int

    def __str__(self) -> str:
        """Return some lines that say it all."""
        lines = [
            f"{self.rule}: {self.words}",
            f"    {_times(self.count)}, by CPU {self.cpu} in {' < '.join(self.place)}",
            f"    address {self.address:#x}, descriptor {self.old:#x} -> {self.new:#x}",
        ]
        if self.writer:
            writer = " < ".join(self.writer)
            lines.append(f"    the old one was changed by CPU {self.writer_cpu} in {writer}")
        return "\n".join(lines)

    def functions(self) -> set[str]:
        """Return the names of the function, its callers and those who changed the old descriptor.

        They are without what the compiler appends.
        """
        names = (*self.place, *self.writer)
        return {name.partition("+")[0].partition(".")[0] for name in names}

    def as_json(self) -> dict[str, Any]:
        """Return it as what json.dump() takes."""
        return {**vars(self), "place": list(self.place), "writer": list(self.writer)}


class BlindError(MachineError):
    """A strict machine has not seen all that it should look at.

    Attributes:
        violations: what it has seen, but for what is explained.
    """

    def __init__(self, what: str, violations: list[Violation]) -> None:
        """Say why, and keep what was seen."""
        super().__init__(what)
        self.violations = violations
        for violation in violations:
            self.add_note(str(violation))


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


@cache
def ensure(space: Workspace) -> Path:
    """Compile the plugin if it is made of other sources, and return it."""
    return plugin.compiled(space, "strict", [*sorted(_SOURCES.glob("*.[ch]")), *plugin.shared()])


def arguments(strict: Strict, logs: Path) -> list[str]:
    """Return QEMU's arguments; memory has to be memory-backend-memfd.

    Args:
        strict: how strict.
        logs: takes the file with the reports.
    """
    words = [str(strict.plugin), f"out={logs / evidence.VIOLATIONS}"]
    if strict.bbm_level is not None:
        words.append(f"bbm={strict.bbm_level}")
    if strict.without:
        words.append(f"without={sum(1 << RULES.index(rule) for rule in set(strict.without))}")
    return ["-plugin", ",".join(words)]


def known(file: Path) -> tuple[Known, ...]:
    """Read what is explained; nothing if there is no such file."""
    if not file.is_file():
        return ()
    with toml(file) as data:
        return tuple(Known(**entry) for entry in data.get("known", ()))


def explains(entries: Iterable[Known], violation: Violation) -> Known | None:
    """Return the entry that explains a violation, if one does."""
    for entry in entries:
        if entry.rule == violation.rule and entry.function in violation.functions():
            return entry
    return None


@dataclass(frozen=True)
class Symbols:
    """Names of functions by address: of a kernel that may have been moved, and of modules."""

    starts: Sequence[int] = ()
    names: Sequence[str] = ()
    lines: dict[int, str] = field(default_factory=dict)

    def name(self, address: int) -> str:
        """Return function+offset, with the source line if it is known."""
        index = bisect.bisect_right(self.starts, address) - 1
        if index < 0 or address - self.starts[index] > _LONGEST_FUNCTION:
            return f"{address:#x}"
        text = f"{self.names[index]}+{address - self.starts[index]:#x}"
        return f"{text} ({self.lines[address]})" if address in self.lines else text


def parse_symbols(text: str) -> Symbols:
    """Read what nm or /proc/kallsyms prints, of functions."""
    found = []
    for line in text.splitlines():
        parts = line.split(maxsplit=3)
        if len(parts) >= 3 and parts[1] in "tTwW" and not parts[2].startswith("$"):
            # Of a module the name follows, in brackets.
            found.append((int(parts[0], 16), parts[2]))
    found.sort(key=lambda symbol: symbol[0])
    return Symbols([start for start, _ in found], [name for _, name in found])


@cache
def _symbols(vmlinux: Path) -> Symbols:
    return parse_symbols(run([NM, vmlinux]))


def _link_address(symbols: Symbols, name: str) -> int | None:
    return symbols.starts[symbols.names.index(name)] if name in symbols.names else None


def link_address(vmlinux: Path, name: str) -> int | None:
    """Return where a function of a kernel is if that is not moved; None if there is none."""
    return _link_address(_symbols(vmlinux), name)


class _Resolver:
    """Makes names of the addresses in one file of reports."""

    def __init__(self, strict: Strict, facts: dict[str, int], modules: Symbols) -> None:
        """Find out how far the kernel was moved from where it was linked to."""
        self._modules = modules
        self._kernel = _symbols(strict.vmlinux) if strict.vmlinux else Symbols()
        self._moved = self._at_boot = 0
        vectors, text = (_link_address(self._kernel, name) for name in ("vectors", "_text"))
        if vectors is not None and "vectors" in facts:
            self._moved = facts["vectors"] - vectors
        if text is not None and "image" in facts:
            self._at_boot = facts["image"] - text

    def linked(self, address: int) -> int:
        """Return the address in vmlinux; code that runs before the tables is at physical ones."""
        return address - (self._moved if address & _UPPER else self._at_boot)

    def name(self, address: int) -> str:
        """Return the name for an address."""
        name = self._modules.name(address)
        return self._kernel.name(self.linked(address)) if name.startswith("0x") else name

    def find_lines(self, vmlinux: Path, addresses: Iterable[int]) -> None:
        """Find source lines, if the kernel was built with them."""
        linked = sorted({self.linked(address) for address in addresses})
        text = run([ADDR2LINE, "-e", vmlinux, *(f"{address:#x}" for address in linked)])
        for address, line in zip(linked, text.splitlines(), strict=False):
            if "/" in line:
                self._kernel.lines[address] = line


def read(file: Path, strict: Strict, modules: str = "") -> list[Violation]:
    """Read a file of reports, those that are not explained.

    Args:
        file: what the plugin has written so far.
        strict: that of the machine.
        modules: lines of the guest's /proc/kallsyms, of its modules.

    Raises:
        MachineError: there is no such file: QEMU did not get as far.
        BlindError: the machine has not seen all; the error has what it has seen.
    """
    entries = _entries(file)
    everything = _violations(entries, strict, modules)
    found = [violation for violation in everything if not explains(strict.known, violation)]
    # One that has seen nothing has nothing to report.
    reasons = dict.fromkeys(entry["blind"] for entry in entries if "blind" in entry)
    if not any("vectors" in entry for entry in entries):
        reasons["no kernel has run in it"] = None
    if reasons:
        raise BlindError(f"the strict machine has not seen all: {'; '.join(reasons)}", found)
    return found


def read_all(file: Path, strict: Strict, modules: str = "") -> list[Violation]:
    """Read a file of reports: as `read`, but those that are explained, too."""
    return _violations(_entries(file), strict, modules)


def _violations(
    everything: Iterable[dict[str, Any]], strict: Strict, modules: str
) -> list[Violation]:
    symbols = parse_symbols(modules)
    found: list[Violation] = []
    for entries in _by_kernel(everything):
        facts = {
            name: value for entry in entries if "rule" not in entry for name, value in entry.items()
        }
        reports = [entry for entry in entries if "rule" in entry]
        resolver = _Resolver(strict, facts, symbols)
        if strict.vmlinux and reports:
            resolver.find_lines(strict.vmlinux, (entry["pc"] for entry in reports))
        found += [_violation(entry, resolver) for entry in reports]
    return found


def _by_kernel(entries: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Divide entries into those of each kernel: one may have started another in its place."""
    of_one: list[dict[str, Any]] = []
    for entry in entries:
        if "kernel" in entry:
            yield of_one
            of_one = []
        of_one.append(entry)
    yield of_one


def _entries(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        raise MachineError(f"the strict machine has left no reports in {file}")
    # What is behind the last newline is half written.
    *lines, _ = file.read_text().split("\n")
    try:
        return list(map(json.loads, lines))
    except json.JSONDecodeError as error:
        raise MachineError(f"{file} has a line that is no report: {error.doc!r}") from error


def _violation(entry: dict[str, Any], resolver: _Resolver) -> Violation:
    writers = [address for address in (entry["writer"], entry["writer_caller"]) if address]
    return Violation(
        rule=entry["rule"],
        words=entry["words"],
        count=entry["count"],
        cpu=entry["cpu"],
        place=tuple(resolver.name(address) for address in (entry["pc"], *entry["callers"])),
        address=entry["address"],
        old=entry["old"],
        new=entry["new"],
        writer=tuple(map(resolver.name, writers)),
        writer_cpu=entry["writer_cpu"],
    )
