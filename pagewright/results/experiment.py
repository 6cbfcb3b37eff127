"""What an experiment is: which guests run what, and what the printed values mean.

An experiment is one file in features/NAME/bench, or in bench/ if it is about all features
together. It defines an Experiment named EXPERIMENT. Its parts are sets of guests that are set up
alike; each part runs on some sides, which are kernels or switches that are compared; and each side
of a part is run once or more often, in a boot of its own each time. In a run every work is
executed, once or in several rounds, and prints key=value lines. The experiment makes quantities of
the lines of one round; how rounds and runs are put together is the same for all experiments (see
statistics.py).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from pagewright.host.errors import MeasureError
from pagewright.host.workspace import Feature, Workspace

# What one round of a work printed: its key=value lines.
Values = dict[str, str]
# The mean of each side's runs, by the group and the name of a figure, and then by label.
Means = Mapping[tuple[str, str], Mapping[str, float]]


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a build, and how it is booted."""

    label: str
    build: str
    append: str = ""


# The unpatched kernel, and the patched one.
BASE = Side("base", "base-4k")
PATCHED = Side("patched", "patched-4k")


@dataclass(frozen=True)
class Work:
    """A command to run in the guest; it prints key=value lines.

    Attributes:
        name: what the figures call it.
        command: the shell command.
        timeout: seconds of wall time after which the guest counts as hung.
        rounds: how often it is executed in one run.
        runs: it is left out of the runs of its part after this one; 0 for none of them.
    """

    name: str
    command: str
    timeout: float = 300
    rounds: int = 1
    runs: int = 0


@dataclass(frozen=True)
class Part:
    """Guests that are set up alike, and what runs on each of them.

    Attributes:
        name: as on the command line.
        options: fields of MachineOptions, the same for all sides; a side's own kernel
            parameters are added to theirs.
        works: what to run, in this order. Those that late runs leave out come last, so that in
            all runs the same has happened before each of the others.
        sides: what is compared. If a part has none, the command chooses them: `bench` compares
            base-4k with patched-4k, `demo` compares patched-4k with all features off and on.
            Sides of different parts that have the same label are the same side.
        also: sides that are run besides those.
        runs: how often each side is run, in a boot of its own each time.
    """

    name: str
    options: Mapping[str, Any]
    works: Sequence[Work]
    sides: Sequence[Side] = ()
    also: Sequence[Side] = ()
    runs: int = 1

    def __post_init__(self) -> None:
        """Refuse an order of works in which a late run would not have before a work what it had."""
        for work, later in pairwise(self.works):
            if work.runs and (not later.runs or later.runs > work.runs):
                raise ValueError(
                    f"part {self.name}: {work.name} is left out of more runs than {later.name}, "
                    "which comes later: put it last"
                )

    def works_of(self, run: int) -> list[Work]:
        """Return what is executed in a run; the first one has number 1."""
        return [work for work in self.works if not work.runs or run <= work.runs]


@dataclass(frozen=True)
class Quantity:
    """A number that a work has given on one side.

    Attributes:
        group: the table it belongs to.
        name: the row.
        unit: what is counted.
        number: the number.
    """

    group: str
    name: str
    unit: str
    number: float


@dataclass(frozen=True)
class Published:
    """What others have measured of the same idea, and which figure of ours stands beside it.

    Attributes:
        what: what was measured.
        figure: the figure, in words, as it was published.
        where: the machine and the kernel that it was measured on.
        group: the table of our figure; empty if we have none.
        name: its row.
        side: the label of the side that is compared.
        reference: the label of the side that it is compared with.
        remark: why the two differ or cannot be compared, or why there is none of ours.
    """

    what: str
    figure: str
    where: str
    group: str = ""
    name: str = ""
    side: str = "patched"
    reference: str = "base"
    remark: str = ""


@dataclass(frozen=True)
class Experiment:
    """What the file of an experiment defines.

    Attributes:
        name: as on the command line.
        feature: the feature it measures, or `all features`.
        title: one line.
        parts: what runs on which guests; quick leaves out what takes long.
        quantities: makes numbers of what one round of a work has printed, given the label of
            its side and the work's name. Tables and rows are in the order in which it names them.
        columns: labels of sides in the order of a table's columns; others come after these.
        yardstick: the label of the side that the others are compared with, in tables that
            have it; in others, and if it is empty, that is the first column.
        summary: sums up in a line what the feature changes, off and on, as `pagewright demo`
            prints it; made of the quick runs of the parts without sides of their own.
        published: what others have measured, for the page of `pagewright report`.
        limits: what these figures cannot say, a sentence or two each, for the same page, which
            says what holds for every experiment by itself.
        picture: a regular expression for "group: name" of the figures that docs/NAME.svg shows;
            empty if there is no such picture.
    """

    name: str
    feature: str
    title: str
    parts: Callable[[bool], Sequence[Part]]
    quantities: Callable[[str, str, Values], Iterable[Quantity]]
    columns: Sequence[str] = ()
    yardstick: str = ""
    summary: Callable[[Means], str] | None = None
    published: Sequence[Published] = ()
    limits: Sequence[str] = ()
    picture: str = ""


def parse_values(text: str) -> Values:
    """Return the key=value lines of an output."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def base_and_patched() -> list[Side]:
    """Return the sides that compare the unpatched kernel with the patched one."""
    return [BASE, PATCHED]


def off_and_on(features: Sequence[Feature]) -> list[Side]:
    """Return the sides that compare one image with itself, features switched off and on."""
    off = " ".join(feature.boot_off for feature in features if feature.boot_off)
    return [Side("off", "patched-4k", off), Side("on", "patched-4k")]


def experiments(space: Workspace) -> list[str]:
    """Return the names of all experiments."""
    return list(_files(space))


def table_template(space: Workspace, name: str) -> Path:
    """Return the template of an experiment's table in README.md, which need not exist.

    Raises:
        MeasureError: there is no such experiment.
    """
    return _file(space, name).with_suffix(".md.j2")


def load(space: Workspace, name: str) -> Experiment:
    """Load an experiment of a feature by its name.

    Raises:
        MeasureError: there is none of that name.
    """
    file = _file(space, name)
    space.make_importable()
    experiment = _module(file).EXPERIMENT
    if not isinstance(experiment, Experiment):
        raise MeasureError(f"{file.name} does not define an Experiment named EXPERIMENT")
    return experiment


def _file(space: Workspace, name: str) -> Path:
    """Return the file of an experiment."""
    files = _files(space)
    if name not in files:
        names = ", ".join(files)
        raise MeasureError(f"there is no experiment {name!r}", f"the experiments are: {names}")
    return files[name]


def _files(space: Workspace) -> dict[str, Path]:
    """Return the files of all experiments by their names."""
    files = sorted((space.root / "features").glob("*/bench/[a-z]*.py"))
    files += sorted((space.root / "bench").glob("[a-z]*.py"))
    return {file.stem.replace("_", "-"): file for file in files}


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{file.stem}", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up here.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
