"""What one of the kernel's own selftests printed, and what one run lost of another."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pagewright.guest.kselftest import SELFTESTS
from pagewright.machine.machine import Machine
from pagewright.results import ktap

# What kselftest.h defines of exit statuses.
_STATUS: Mapping[int, ktap.Outcome] = {0: "pass", 4: "skip"}
# The kernel's parser of KTAP takes no case without a name, which these programs print.
_CASE = re.compile(r"^(not )?ok (\d+)\b[ -]*(.*?)(?:# (SKIP|XFAIL)\b.*)?$", re.MULTILINE)
_PLAN = re.compile(r"^1\.\.(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class SelftestRun:
    """How a selftest went.

    Attributes:
        output: all it printed.
        outcome: what its exit status says.
        cases: by their numbers, what its TAP says of each case; empty if it prints none.
        names: the cases' names, which need not be unique nor the same in each run.
    """

    output: str
    outcome: ktap.Outcome
    cases: Mapping[int, ktap.Outcome]
    names: Mapping[int, str]

    @classmethod
    def read(cls, output: str, status: int) -> SelftestRun:
        """Understand what a selftest printed, and its exit status."""
        cases: dict[int, ktap.Outcome] = {}
        names: dict[int, str] = {}
        plan = _PLAN.search(output)
        for number in range(1, int(plan[1]) + 1 if plan else 1):
            cases[number] = "crash"
        for bad, number, name, note in _CASE.findall(output):
            # A failure that the selftest expects is none: those of cow come and go on any kernel.
            cases[int(number)] = "fail" if bad else "skip" if note == "SKIP" else "pass"
            names[int(number)] = name.strip()
        return cls(output, _STATUS.get(status, "fail"), cases, names)

    def lost(self, other: SelftestRun) -> list[str]:
        """Return what passed here and did not in another run, one line each."""
        lost = [
            f"case {number}, {self.names.get(number, '')}: {other.cases.get(number, 'missing')}"
            for number, outcome in self.cases.items()
            if outcome == "pass" and other.cases.get(number) != "pass"
        ]
        if self.outcome == "pass" and other.outcome != "pass":
            lost.append(f"exit status: {other.outcome}")
        return lost


def run_in(place: Machine, collection: str, command: str, timeout: float = 300) -> SelftestRun:
    """Run a selftest in the folder of its collection.

    Args:
        place: was booted with the overlay that `ensure` returns.
        collection: the folder of the kernel's selftests that it is in.
        command: shell; its status is the test's.
        timeout: as in Machine.run.

    Raises:
        MachineError: the machine died, or did not answer in time.
    """
    result = place.run(f"cd {SELFTESTS}/{collection} || exit 1\n{command}", timeout)
    return SelftestRun.read(result.output, result.status)
