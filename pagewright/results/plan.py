"""Which runs of an experiment are asked for: its parts, their sides, and how often each."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pagewright.host.errors import MeasureError
from pagewright.results.experiment import Experiment, Part, Side


@dataclass(frozen=True)
class Choice:
    """What is run of an experiment.

    Attributes:
        quick: smaller sizes, fewer parts and runs.
        parts: names of parts; all if empty.
        sides: labels of sides; all if empty.
        runs: how often each part is run; as the experiment says if 0.
        only_compared: leave out sides that the experiment brings itself.
    """

    quick: bool = False
    parts: Sequence[str] = ()
    sides: Sequence[str] = ()
    runs: int = 0
    only_compared: bool = False

    def command(self, experiment: Experiment) -> str:
        """Return the command that measures this."""
        words = ["pagewright bench", experiment.name]
        words += ["--quick"] if self.quick else []
        words += [f"--part {shlex.quote(part)}" for part in self.parts]
        words += [f"--side {shlex.quote(side)}" for side in self.sides]
        words += [f"--runs {self.runs}"] if self.runs else []
        return " ".join(words)


@dataclass(frozen=True)
class Run:
    """One run of one side of a part, by its number from 1, of how many."""

    part: Part
    side: Side
    number: int
    total: int


def plan(experiment: Experiment, sides: Sequence[Side], choice: Choice) -> list[Run]:
    """Return the runs that are asked for; in each part, the sides take turns.

    Args:
        experiment: what to run.
        sides: what to compare where a part has no sides of its own.
        choice: what of it.

    Raises:
        MeasureError: it has no such part, or no such side, or the parts do not have the sides.
    """
    parts = experiment.parts(choice.quick)
    compared = {part.name: sides_of(part, sides, choice.only_compared) for part in parts}
    what = f"{experiment.name}{' with --quick' if choice.quick else ''}"
    check(what, "part", choice.parts, list(compared))
    labels = [side.label for part in parts for side in compared[part.name]]
    check(what, "side", choice.sides, list(dict.fromkeys(labels)))
    runs = [
        Run(part, side, number, total)
        for part in parts
        if not choice.parts or part.name in choice.parts
        for total in [choice.runs or part.runs]
        for number in range(1, total + 1)
        for side in compared[part.name]
        if (not choice.sides or side.label in choice.sides) and part.works_of(number)
    ]
    if not runs and (choice.parts or choice.sides):
        has = "; ".join(
            f"{name}: {', '.join(side.label for side in compared[name])}" for name in choice.parts
        )
        raise MeasureError(
            f"no part that was asked for has a side that was asked for: {', '.join(choice.sides)}",
            f"the parts and their sides are: {has}",
        )
    return runs


def sides_of(part: Part, sides: Sequence[Side], only_compared: bool) -> list[Side]:
    """Return the sides that a part is run on."""
    if only_compared:
        return [] if part.sides else list(sides)
    return [*(part.sides or sides), *part.also]


def check(what: str, kind: str, wanted: Sequence[str], there: list[str]) -> None:
    """Raise if something is asked for that an experiment does not have."""
    for name in wanted:
        if name not in there:
            raise MeasureError(
                f"there is no {kind} {name!r} in {what}", f"the {kind}s are: {'; '.join(there)}"
            )
