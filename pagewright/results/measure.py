"""Some machines, same work -> figures.

An experiment (one file in features/NAME/bench) says what to run and what to make of it; this
module runs it on each side in turn, base and patched or switched off and on,
and puts the figures next to each other with all that is needed to repeat them.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from pagewright.host import packages
from pagewright.host.errors import MeasureError, PagewrightError
from pagewright.host.progress import Bar
from pagewright.host.run import run
from pagewright.host.workspace import Feature, Workspace
from pagewright.kernel import build
from pagewright.machine.inputs import options_for
from pagewright.machine.machine import boot

# What one piece of work printed: its key=value lines.
Values = dict[str, str]


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a build, and how it is booted."""

    label: str
    build: str
    append: str = ""


@dataclass(frozen=True)
class Work:
    """A command to run in the guest; it prints key=value lines.

    Attributes:
        name: what the figures call it.
        command: the shell command.
        timeout: seconds of wall time after which the guest counts as hung.
        rounds: how often it runs; of each number the median counts.
    """

    name: str
    command: str
    timeout: float = 300
    rounds: int = 1


@dataclass(frozen=True)
class Part:
    """Machines that are set up alike, and what runs on each of them.

    Attributes:
        options: fields of MachineOptions, the same for all sides; a side's own kernel
            parameters are added to theirs.
        works: what to run.
        sides: what it compares; if empty, what the command does: base and patched, or
            one image with the feature off and on. A label that other parts have too
            stands for the same side.
    """

    options: Mapping[str, Any]
    works: Sequence[Work]
    sides: Sequence[Side] = ()


@dataclass(frozen=True)
class Figure:
    """One measured quantity, on all sides of its table.

    Attributes:
        group: the table it belongs to.
        name: the row.
        unit: what is counted.
        values: a number for each side's label.
    """

    group: str
    name: str
    unit: str
    values: dict[str, float]


@dataclass(frozen=True)
class Experiment:
    """What a file in features/NAME/bench defines.

    Attributes:
        name: as on the command line.
        feature: the feature it measures.
        title: one line.
        parts: what runs on which machines; quick leaves out what takes long.
        figures: makes figures from the values by side and name of work.
    """

    name: str
    feature: str
    title: str
    parts: Callable[[bool], Sequence[Part]]
    figures: Callable[[dict[str, dict[str, Values]]], list[Figure]]


@dataclass
class Report:
    """The figures of an experiment, and what they were measured on."""

    experiment: str
    feature: str
    title: str
    commit: str
    kernel: str
    emulator: str
    machine: str
    sides: list[Side]
    figures: list[Figure] = field(default_factory=list)

    def to_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self), indent=1) + "\n"


def parse_values(text: str) -> Values:
    """Return the key=value lines of an output."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def load(space: Workspace, name: str) -> Experiment:
    """Load an experiment of a feature by its name.

    Raises:
        MeasureError: there is none of that name.
    """
    file = _files(space).get(name)
    if file is None:
        names = ", ".join(_files(space))
        raise MeasureError(f"there is no experiment {name!r}", f"the experiments are: {names}")
    space.make_importable()
    experiment = _module(file).EXPERIMENT
    if not isinstance(experiment, Experiment):
        raise MeasureError(f"{file.name} does not define an Experiment named EXPERIMENT")
    return experiment


def experiments(space: Workspace) -> list[str]:
    """Return the names of all experiments."""
    return list(_files(space))


def _files(space: Workspace) -> dict[str, Path]:
    """Return the experiments' files, which are in features/NAME/bench, by their names."""
    files = sorted((space.root / "features").glob("*/bench/[a-z]*.py"))
    return {file.stem.replace("_", "-"): file for file in files}


def _module(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{file.stem}", file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up here.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def base_and_patched() -> list[Side]:
    """Return the sides that compare the unpatched kernel with the patched one."""
    return [Side("base", "base-4k"), Side("patched", "patched-4k")]


def off_and_on(features: Sequence[Feature]) -> list[Side]:
    """Return the sides that compare one image with itself, features switched off and on."""
    off = " ".join(feature.boot_off for feature in features if feature.boot_off)
    return [Side("off", "patched-4k", off), Side("on", "patched-4k")]


def measure(
    space: Workspace,
    experiment: Experiment,
    sides: Sequence[Side],
    quick: bool,
    only_these: bool = False,
) -> Report:
    """Run an experiment on each side and return its figures.

    Args:
        space: where the repository is.
        experiment: what to run.
        sides: what to compare where the experiment has no sides of its own.
        quick: leave out what takes long.
        only_these: leave out parts with sides of their own.

    Raises:
        MeasureError: a build, a boot or a piece of work failed, or the kernel
            complained while it was measured.
    """
    values: dict[str, dict[str, Values]] = {}
    parts = [p for p in experiment.parts(quick) if not (only_these and p.sides)]
    compared: dict[str, Side] = {}
    kernel = ""
    for part in parts:
        for side in part.sides or sides:
            kernel = build.ensure(space, side.build).kernel_version
            compared.setdefault(side.label, side)
            found = _run(space, f"{experiment.name}, {side.label}", part, side)
            values.setdefault(side.label, {}).update(found)
    machines = dict.fromkeys(
        ", ".join(f"{key}={value}" for key, value in part.options.items()) for part in parts
    )
    return Report(
        experiment.name,
        experiment.feature,
        experiment.title,
        commit(space),
        kernel,
        f"QEMU {packages.qemu_version()}",
        "; ".join(machines),
        list(compared.values()),
        _figures(experiment, values),
    )


def _run(space: Workspace, what: str, part: Part, side: Side) -> dict[str, Values]:
    """Boot one side of a part, run its works and return what each printed."""
    words = (part.options.get("append", ""), side.append)
    append = " ".join(word for word in words if word)
    options = options_for(space, side.build, **{**part.options, "append": append})
    # In turns, because what a run costs depends a little on what ran before.
    works = part.works
    turns = [w for turn in range(max(w.rounds for w in works)) for w in works if turn < w.rounds]
    printed: dict[str, list[Values]] = {work.name: [] for work in works}
    with boot(options) as machine, Bar(what, len(turns)) as bar:
        for work in turns:
            text = machine.check(work.command, timeout=work.timeout)
            printed[work.name].append(parse_values(text))
            bar.advance()
        if complaint := machine.warnings():
            raise MeasureError(
                f"the kernel of {side.label} complained while it was measured", details=complaint
            )
    return {name: medians(runs) for name, runs in printed.items()}


def _figures(experiment: Experiment, values: dict[str, dict[str, Values]]) -> list[Figure]:
    try:
        return experiment.figures(values)
    except (KeyError, ValueError) as error:
        raise MeasureError(
            f"{experiment.name}: the guest did not print what the figures are made of: {error!r}",
            details="\n".join(f"{side}: {works}" for side, works in values.items())[:2000],
        ) from error


def medians(runs: Sequence[Values]) -> Values:
    """Return the median of each number over several runs; other values of the last one."""
    merged = dict(runs[-1])
    for key in merged:
        if all(run.get(key, "").isdigit() for run in runs):
            merged[key] = str(round(median(int(run[key]) for run in runs)))
    return merged


def commit(space: Workspace) -> str:
    """Return the repository's commit, with a + if there are changes since."""
    try:
        name = run(["git", "rev-parse", "--short=12", "HEAD"], cwd=space.root).strip()
        dirty = run(["git", "status", "--porcelain", "--untracked-files=no"], cwd=space.root)
    except PagewrightError:
        return "none"
    return f"{name}+" if dirty.strip() else name
