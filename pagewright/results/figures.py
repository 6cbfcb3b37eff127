"""Runs of an experiment -> figures: each quantity on all sides, with every run's number."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import mean, median
from typing import Any

from pagewright.host.errors import MeasureError
from pagewright.results.experiment import Experiment, Side
from pagewright.results.journal import Entry


@dataclass(frozen=True)
class Figure:
    """One measured quantity, on all sides of its table.

    Attributes:
        group: the table it belongs to.
        name: the row.
        unit: what is counted.
        runs: by a side's label, a number for each run: the median of the run's rounds.
        parts: the names of the parts of the experiment that these runs are of.
    """

    group: str
    name: str
    unit: str
    runs: dict[str, list[float]]
    parts: list[str] = field(default_factory=list)

    @property
    def values(self) -> dict[str, float]:
        """The mean of each side's runs."""
        return {label: mean(numbers) for label, numbers in self.runs.items()}


@dataclass
class Report:
    """The figures of an experiment, and what they were measured on.

    Attributes:
        experiment: its name.
        feature: the feature it measures.
        title: one line.
        command: what prints these figures.
        quick: they have the sizes of --quick.
        sides: what was compared.
        yardstick: the side that others are compared with, where a table has it.
        figures: table by table.
        parts: by the name of a part, the labels of the sides that it was run on.
        kernels: by the name of a part, the versions of its kernels.
        emulators: by the name of a part, the emulator with its version, or the place of a lab.
        machines: by the name of a part, the machines' options.
        commits: by the name of a part, the repository's commits that its runs were made at.
        time: when the last run ended, in UTC.
    """

    experiment: str
    feature: str
    title: str
    command: str
    quick: bool
    sides: list[Side]
    yardstick: str = ""
    figures: list[Figure] = field(default_factory=list)
    parts: dict[str, list[str]] = field(default_factory=dict)
    kernels: dict[str, list[str]] = field(default_factory=dict)
    emulators: dict[str, list[str]] = field(default_factory=dict)
    machines: dict[str, list[str]] = field(default_factory=dict)
    commits: dict[str, list[str]] = field(default_factory=dict)
    time: str = ""

    @property
    def kernel(self) -> str:
        """The versions of all kernels."""
        return _all_of(self.kernels)

    @property
    def emulator(self) -> str:
        """The emulators and places of all runs."""
        return _all_of(self.emulators)

    @property
    def machine(self) -> str:
        """The options of all machines."""
        return _all_of(self.machines, "; ")

    @property
    def commit(self) -> str:
        """The commits of all runs."""
        return _all_of(self.commits)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Report:
        """Make a report of what `asdict` made of one."""
        parsed = {
            "sides": [Side(**side) for side in data["sides"]],
            "figures": [Figure(**figure) for figure in data["figures"]],
        }
        return cls(**{**data, **parsed})

    def find(self, group: str, name: str) -> Figure | None:
        """Return a figure by its table and its row, if there is one."""
        return next((f for f in self.figures if (f.group, f.name) == (group, name)), None)

    def to_json(self) -> str:
        """Return the report as JSON, with every run's number and the means."""
        texts = ("kernel", "emulator", "machine", "commit")
        data = asdict(self) | {text: getattr(self, text) for text in texts}
        for figure, entry in zip(self.figures, data["figures"], strict=True):
            entry["values"] = figure.values
        return json.dumps(data, indent=1) + "\n"


def report(experiment: Experiment, entries: Sequence[Entry], command: str) -> Report:
    """Make the report of some runs of an experiment.

    Args:
        experiment: what was run.
        entries: its runs, in the order in which the experiment asks for them.
        command: what prints these figures.

    Raises:
        MeasureError: a guest did not print what the figures are made of.
    """
    sides = {entry.side.label: entry.side for entry in reversed(entries)}
    labels = _in_columns(experiment, (entry.side.label for entry in entries))
    return Report(
        experiment.name,
        experiment.feature,
        experiment.title,
        command,
        any(entry.quick for entry in entries),
        [sides[label] for label in labels],
        experiment.yardstick,
        _figures(experiment, entries, labels),
        _by_part((entry.part, entry.side.label) for entry in entries),
        _by_part((entry.part, entry.conditions.kernel) for entry in entries),
        _by_part((entry.part, _where(entry)) for entry in entries),
        _by_part((entry.part, _machine(entry)) for entry in entries),
        _by_part((entry.part, entry.commit) for entry in entries),
        max((entry.time for entry in entries), default=""),
    )


def labels_of(report: Report, figure: Figure, parts: Collection[str]) -> set[str]:
    """Return the labels of the sides on which some parts have made a figure of a report."""
    made_of = [part for part in figure.parts if part in parts]
    return {label for part in made_of for label in report.parts[part] if label in figure.runs}


def merged(experiment: Experiment, older: Report, stay: Sequence[str], newer: Report) -> Report:
    """Put a newer report together with parts of an older one that it has not.

    A figure may have columns of both. No column may be of a part that stays and of one that the
    newer report has.

    Args:
        experiment: what both are of.
        older: the older report.
        stay: which of its parts are taken.
        newer: all of it is taken.
    """
    sources = [(older, stay), (newer, list(newer.parts))]
    order = [part.name for part in experiment.parts(newer.quick)]
    sides = {side.label: side for report, _ in sources for side in report.sides}

    def place(part: str) -> int:
        return order.index(part) if part in order else len(order)

    def of_each_part(field: str) -> dict[str, list[str]]:
        found = {part: getattr(report, field)[part] for report, parts in sources for part in parts}
        return dict(sorted(found.items(), key=lambda item: place(item[0])))

    parts = of_each_part("parts")
    labels = _in_columns(experiment, (label for sides in parts.values() for label in sides))
    return replace(
        newer,
        sides=[sides[label] for label in labels],
        figures=_joined(sources, labels, place),
        parts=parts,
        kernels=of_each_part("kernels"),
        emulators=of_each_part("emulators"),
        machines=of_each_part("machines"),
        commits=of_each_part("commits"),
        time=max(older.time, newer.time),
    )


def _joined(
    sources: Sequence[tuple[Report, Sequence[str]]],
    labels: Sequence[str],
    place: Callable[[str], int],
) -> list[Figure]:
    """Put the figures of some parts of reports together, table by table.

    Args:
        sources: reports, and which parts of each.
        labels: the columns, in their order.
        place: where a part stands among all parts.
    """
    rows: dict[tuple[str, str, str], Figure] = {}
    for report, parts in sources:
        for figure in report.figures:
            made_of = [part for part in figure.parts if part in parts]
            if not made_of:
                continue
            key = (figure.group, figure.name, figure.unit)
            known = rows.get(key, replace(figure, runs={}, parts=[]))
            columns = labels_of(report, figure, parts)
            runs = known.runs | {label: figure.runs[label] for label in columns}
            rows[key] = replace(
                figure,
                runs={label: runs[label] for label in labels if label in runs},
                parts=sorted({*known.parts, *made_of}, key=place),
            )
    figures = sorted(rows.values(), key=lambda figure: place(figure.parts[0]))
    # A table stands where its first row does, and is not in two pieces.
    groups = list(dict.fromkeys(figure.group for figure in figures))
    return sorted(figures, key=lambda figure: groups.index(figure.group))


def runs_of(figures: Iterable[Figure]) -> str:
    """Say of how many runs figures are, each side and figure by itself."""
    numbers = {len(runs) for figure in figures for runs in figure.runs.values()} or {0}
    least, most = min(numbers), max(numbers)
    text = str(most) if least == most else f"{least} to {most}"
    return f"{text} {'boot' if most == 1 else 'boots'} of each side"


def _by_part(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Collect what is said of each part, once, of pairs of a part's name and something of it."""
    parts: dict[str, list[str]] = {}
    for part, text in dict.fromkeys(pairs):
        parts.setdefault(part, []).append(text)
    return parts


def _figures(experiment: Experiment, entries: Sequence[Entry], labels: list[str]) -> list[Figure]:
    """Put the numbers of all rounds and runs together, table by table."""
    # Tables, rows, sides and runs in the order in which they are named first.
    tables: dict[str, dict[tuple[str, str], dict[str, list[float]]]] = {}
    parts: dict[tuple[str, ...], dict[str, None]] = {}
    for entry in entries:
        for (group, *row), numbers in _numbers(experiment, entry).items():
            sides = tables.setdefault(group, {}).setdefault((row[0], row[1]), {})
            sides.setdefault(entry.side.label, []).append(median(numbers))
            parts.setdefault((group, *row), {})[entry.part] = None
    return [
        Figure(
            group,
            name,
            unit,
            {label: runs[label] for label in labels if label in runs},
            list(parts[group, name, unit]),
        )
        for group, rows in tables.items()
        for (name, unit), runs in rows.items()
    ]


def _numbers(experiment: Experiment, entry: Entry) -> dict[tuple[str, str, str], list[float]]:
    """Return the numbers of the rounds of one run, by group, name and unit."""
    numbers: dict[tuple[str, str, str], list[float]] = {}
    for work, rounds in entry.works.items():
        for values in rounds:
            try:
                for q in experiment.quantities(entry.side.label, work, values):
                    numbers.setdefault((q.group, q.name, q.unit), []).append(q.number)
            except (LookupError, ValueError) as error:
                raise MeasureError(
                    f"{experiment.name}: {work} on {entry.side.label} did not print what the "
                    f"figures are made of: {error!r}",
                    details=str(values)[:2000],
                ) from error
    return numbers


def _in_columns(experiment: Experiment, labels: Iterable[str]) -> list[str]:
    """Return each label once, in the order of the columns."""
    known = list(experiment.columns)
    return sorted(
        dict.fromkeys(labels),
        key=lambda label: known.index(label) if label in known else len(known),
    )


def _where(entry: Entry) -> str:
    place = entry.conditions.place
    return f"the place {place}" if place else entry.conditions.emulator


def _machine(entry: Entry) -> str:
    return ", ".join(f"{key}={value}" for key, value in entry.options.items() if value != "")


def _all_of(by_part: Mapping[str, Sequence[str]], separator: str = ", ") -> str:
    """Join what is said of all parts, each text once."""
    return _each((text for texts in by_part.values() for text in texts), separator)


def _each(texts: Iterable[str], separator: str = ", ") -> str:
    """Join texts, each of them once."""
    return separator.join(dict.fromkeys(text for text in texts if text))
