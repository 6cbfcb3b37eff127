"""Test results in KTAP, as KUnit and the kselftest harness print them.

The parsing is the kernel's own (tools/testing/kunit/kunit_parser.py of the tree
that is tested); this module turns what it finds into a flat list of cases and
sees to it that nothing missing is taken for a success.
"""

from __future__ import annotations

import importlib
import inspect
import io
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pagewright.host.errors import SourceError
from pagewright.host.run import tail

Outcome = Literal["pass", "fail", "skip", "crash"]

_MODULES = ("kunit_parser", "kunit_printer")
_OUTCOMES: dict[str, Outcome] = {"SUCCESS": "pass", "FAILURE": "fail", "SKIPPED": "skip"}
_RESULT = re.compile(r"^(?:\[[^]]*\])?\s*(?:not )?ok \d+\b", re.MULTILINE)
_ALL_SKIPPED = re.compile(r"^1\.\.0 # SKIP.*", re.MULTILINE)
_TEST = re.compile(r"^(?:not )?ok \d+ (?:- )?(\S+)", re.MULTILINE)
_SKIP = re.compile(r"\bok \d+ (?:- )?(\S+) # SKIP *(.*)")


@dataclass(frozen=True)
class Case:
    """One test case.

    Attributes:
        name: the names of its suites and its own, joined by dots.
        outcome: "crash" if it has no result, or one that cannot be.
        log: what it printed.
    """

    name: str
    outcome: Outcome
    log: str = ""


def from_module(log: str, module: str) -> str:
    """Return what a module has said in a kernel log, without the time and its name."""
    said = re.findall(rf"^\[ *[\d.]+\] {module}: (.*)$", log, re.MULTILINE)
    return "\n".join(said)


def skipped(text: str) -> set[str]:
    """Return the names of the tests that a text in KTAP or TAP has as skipped."""
    return {name for name, _ in _SKIP.findall(text)}


def tests(text: str) -> set[str]:
    """Return the names of the tests that a text in TAP has, without those of their fixtures."""
    return {name.rpartition(".")[2] for name in _TEST.findall(text)}


def parse(text: str, tree: Path) -> list[Case]:
    """Parse KTAP or TAP text.

    Args:
        text: the output; anything before the version line is ignored.
        tree: the kernel tree whose parser is used.

    Returns:
        The cases in their order. A text without cases, or one that ends before
        its plan is fulfilled, has at least one whose outcome is "crash".
    """
    with _parser(tree) as parser:
        said = io.StringIO()
        printer = sys.modules["kunit_printer"].Printer(said)
        try:
            root = _run(parser, printer, text.splitlines())
        except ValueError as error:
            # The parser ran past the end.
            return [Case("complete result", "crash", f"{error}\n{said.getvalue()}{tail(text)}")]
    cases = list(_cases(root, (), dict(_SKIP.findall(text))))
    if not root.subtests and (all_skipped := _ALL_SKIPPED.search(text)):
        return [Case("all", "skip", all_skipped[0])]
    # The parser stops where a plan is fulfilled and ignores what follows, and it
    # counts what contradicts a plan without a case that shows it.
    lost = len(_RESULT.findall(text)) != _nodes(root)
    if lost or (root.counts.errors and not any(case.outcome == "crash" for case in cases)):
        cases.append(Case("complete result", "crash", said.getvalue() + tail(text)))
    return cases


@contextmanager
def _parser(tree: Path) -> Iterator[ModuleType]:
    """Import the parser of a kernel tree, and forget it afterwards."""
    folder = tree / "tools" / "testing" / "kunit"
    if not (folder / "kunit_parser.py").is_file():
        raise SourceError(f"{tree} has no KUnit parser", "give the path of a kernel tree")
    before = {name: sys.modules.pop(name, None) for name in _MODULES}
    sys.path.insert(0, str(folder))
    try:
        yield importlib.import_module("kunit_parser")
    finally:
        sys.path.remove(str(folder))
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


def _run(parser: ModuleType, printer: Any, lines: list[str]) -> Any:  # noqa: ANN401
    """Call the parser: up to 6.14 it prints through a global, later to an argument."""
    if "printer" in inspect.signature(parser.parse_run_tests).parameters:
        return parser.parse_run_tests(lines, printer)
    parser.stdout = printer  # type: ignore[attr-defined]
    return parser.parse_run_tests(lines)


def _nodes(test: Any) -> int:  # noqa: ANN401
    """Count the results below a node of the parser's tree."""
    return len(test.subtests) + sum(_nodes(child) for child in test.subtests)


def _cases(test: Any, above: tuple[str, ...], skips: dict[str, str]) -> Iterator[Case]:  # noqa: ANN401
    """Flatten the parser's tree: its leaves, and groups that failed on their own.

    Args:
        test: a node.
        above: the names of the groups it is in.
        skips: the reasons for skips by name; the parser drops them.
    """
    names = (*above, test.name) if test.name and test.name != "main" else above
    found = [case for child in test.subtests for case in _cases(child, names, skips)]
    yield from found
    outcome = _OUTCOMES.get(test.status.name, "crash")
    explained = any(case.outcome in ("fail", "crash") for case in found)
    if not found or (outcome in ("fail", "crash") and not explained):
        log = list(test.log)
        if outcome == "skip":
            log.append(f"# SKIP {skips.get(test.name, '')}")
        yield Case(".".join(names) or "result", outcome, "\n".join(log))
