"""Which tests have passed, on which files: a suite that was interrupted goes on from there.

The suite with --full takes hours. Each test is written down as it ends, with git's name for the
files of the repository as they are, whether committed or not. With --resume a test is left out if
it passed when it ran last, unless a file has changed since that could make a difference to it.

Only tests import this module, so that no command loads pytest for its sake.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Set
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from pagewright.host import repository
from pagewright.host.files import replace_text
from pagewright.host.workspace import Workspace

# Tests that check the files of other tests, or run them.
OF_OTHER_TESTS = (
    "tests/test_documents.py",
    "tests/test_passed.py",
    "tests/test_remote.py",
    "tests/test_style.py",
    "tests/test_typed_commands.py",
)
# Tests of kernels, which are most of what takes hours.
OF_KERNELS = (
    "features/*/test_*.py",
    "tests/test_build.py",
    "tests/test_series.py",
    "tests/test_strict.py",
    "tests/test_wide.py",
)
# What none of these looks at: documents, figures that were recorded, and how packages are made.
OF_NO_KERNEL = ("*.md", "docs/*", "packaging/*/*")


# By this name a report tells whether its test shares machines with others of its file.
SHARES = "shares_machines"


class Passed:
    """A plugin of pytest that writes down what passes and what does not.

    Attributes:
        seconds: how long each test took that has passed on these files, with the options of today.
    """

    def __init__(self, space: Workspace, file: Path, how: str) -> None:
        """Read what has passed before.

        Args:
            space: the repository.
            file: where it is written down, a line of JSON for each test.
            how: all that changes what a test means beside the files: options such as --build, the
                version of the kernel's source, and that of QEMU.

        Raises:
            PagewrightError: git cannot name the files, as in sources that were not cloned.
        """
        self._file = file
        self._how = how
        self._files = repository.files(space)
        self._reports: dict[str, list[pytest.TestReport]] = defaultdict(list)
        lines = file.read_text().splitlines() if file.exists() else []
        # The last line may be of a suite that was killed while it wrote.
        entries = [json.loads(line) for line in lines if line.endswith("}")]
        last = {(entry["test"], entry["how"]): entry for entry in entries}
        changed = {
            files: repository.changed(space, files, self._files)
            for files in {entry["files"] for entry in entries}
        }
        self._kept = {
            which: entry
            for which, entry in last.items()
            # Files of earlier versions have nothing but what passed.
            if entry.get("passed", True) and _holds(entry["test"], changed[entry["files"]])
        }
        self.seconds = {
            # Files of earlier versions do not have it.
            test: entry.get("seconds", 0.0)
            for (test, how_then), entry in self._kept.items()
            if how_then == how
        }

    @property
    def tests(self) -> Set[str]:
        """The tests that have passed."""
        return self.seconds.keys()

    def begin(self) -> None:
        """Drop from the file what no longer counts, and add to it from now on."""
        replace_text(self._file, "".join(map(_line, self._kept.values())))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write a test down when it has ended; it passed if all its subtests did.

        One that did not pass is written down, too: that it passed before no longer counts. If it
        was on a machine that it shares with tests of its file, so it is with these: what it found
        wrong there may be of one of them.
        """
        reports = self._reports[report.nodeid]
        reports.append(report)
        # Of a worker that died, pytest-xdist has a report that is of none of a test's phases.
        died = report.when not in ("setup", "call", "teardown")
        if died or report.when == "teardown":
            del self._reports[report.nodeid]
            outcomes = [one.outcome for one in reports]
            # The last but one is of the test itself, which may have been skipped.
            passed = "failed" not in outcomes and outcomes[-2:] == ["passed", "passed"]
            # The time of the test itself contains that of its subtests.
            parts = (reports[0], *reports[-2:])
            entry = {
                "test": report.nodeid,
                "files": self._files,
                "how": self._how,
                "passed": passed,
                "seconds": round(sum(part.duration for part in parts), 1),
                "shares": getattr(report, SHARES, died),
            }
            lines = [_line(entry)]
            if passed:
                self._kept[report.nodeid, self._how] = entry
            elif entry["shares"]:
                lines += [_line(one | {"passed": False}) for one in self._beside(report.nodeid)]
            with self._file.open("a") as file:
                file.writelines(lines)

    def _beside(self, test: str) -> Iterator[dict[str, Any]]:
        """Yield the tests of a test's file that have passed on machines which they share."""
        for (other, how), entry in self._kept.items():
            in_file = other.split("::")[0] == test.split("::")[0]
            # Files of earlier versions do not say of which tests that is so.
            if in_file and how == self._how and entry.get("shares", True):
                yield entry


def _line(entry: dict[str, Any]) -> str:
    return f"{json.dumps(entry)}\n"


def _holds(test: str, changed: list[str] | None) -> bool:
    """Tell whether a test need not run again, although these files have changed since it passed.

    It is taken to depend on every file but those that have other tests, unless it looks at these. A
    test of kernels does not depend on documents and packages either.
    """
    own = test.split("::")[0]
    if own in OF_OTHER_TESTS:
        return changed == []
    others = ["test_*.py"]
    others += OF_NO_KERNEL if any(PurePosixPath(own).match(tests) for tests in OF_KERNELS) else []
    return changed is not None and all(
        file != own and any(PurePosixPath(file).match(pattern) for pattern in others)
        for file in changed
    )
