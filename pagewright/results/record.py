"""The figures that are committed: docs/figures.json, and the tables of README.md made of it.

A journal stays in the clone that measured it. What is recorded of it is what `pagewright bench
NAME --show` prints, with every run's number and what it was measured on, so that a reader who has
measured nothing sees figures, and which commit they are of.

An experiment whose figures are in README.md has a template beside it, bench/NAME.md.j2. It is
rendered into README.md between two comments, so nobody has to copy a number. One that names figures
for a picture has it in docs/NAME.svg.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from jinja2.exceptions import TemplateError

from pagewright.host.errors import MeasureError
from pagewright.host.files import replace_text
from pagewright.host.workspace import Workspace
from pagewright.results import plots
from pagewright.results.experiment import Experiment, load, table_template
from pagewright.results.figures import Figure, Report, runs_of
from pagewright.results.plan import Choice
from pagewright.results.statistics import difference, grouped, whole, without_sign_of_zero

_BEGIN = "<!-- figures of {name}: `pagewright report --record` writes this table -->"
_END = "<!-- end of figures -->"
_BLOCK = re.compile(
    _BEGIN.replace("{name}", "(?P<name>[a-z-]+)") + r"\n(?P<text>.*?)" + _END, re.DOTALL
)


def path(space: Workspace) -> Path:
    """Return the file of the committed figures."""
    return space.root / "docs" / "figures.json"


def read(space: Workspace) -> dict[str, Report]:
    """Return what is recorded, by the names of experiments; nothing if there is no file.

    Raises:
        MeasureError: the file is not one that `write` has written.
    """
    file = path(space)
    if not file.exists():
        return {}
    try:
        return {name: Report.read(data) for name, data in json.loads(file.read_text()).items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MeasureError(
            f"{file} does not have recorded figures: {error!r}",
            f"`git checkout {file.relative_to(space.root)}` brings it back",
        ) from error


def write(space: Workspace, reports: dict[str, Report]) -> list[Path]:
    """Record figures, and make the tables of README.md and the pictures anew.

    Nothing is written if a table or a picture cannot be made. Returned are the files that changed.

    Args:
        space: the repository.
        reports: all that is to be recorded, by the names of experiments.

    Raises:
        MeasureError: a template asks for a figure that is not there.
    """
    readme = space.root / "README.md"
    data = {name: asdict(report) for name, report in sorted(reports.items())}
    texts = {
        path(space): json.dumps(data, indent=1) + "\n",
        readme: with_tables(space, readme.read_text(), reports),
    }
    for name, report in reports.items():
        if selection := load(space, name).picture:
            texts[space.root / "docs" / f"{name}.svg"] = plots.plot(report, selection)
    changed = [file for file, text in texts.items() if not _has(file, text)]
    for file in changed:
        replace_text(file, texts[file])
    return changed


def _has(file: Path, text: str) -> bool:
    return file.exists() and file.read_text() == text


def with_tables(space: Workspace, document: str, reports: dict[str, Report]) -> str:
    """Return a document with its tables made anew of recorded figures.

    A table whose figures are not recorded stays as it is.

    Raises:
        MeasureError: a template fails, or asks for a figure that was not measured.
    """

    def rendered(block: re.Match[str]) -> str:
        name = block["name"]
        if name not in reports:
            return block[0]
        return f"{_BEGIN.format(name=name)}\n{table(space, reports[name])}{_END}"

    return _BLOCK.sub(rendered, document)


def tables_in(document: str) -> list[str]:
    """Return the names of the experiments whose tables a document has."""
    return [block["name"] for block in _BLOCK.finditer(document)]


def table(space: Workspace, report: Report) -> str:
    """Render the template of an experiment's table.

    Raises:
        MeasureError: there is no template, or it asks for a figure that is not there.
    """
    file = table_template(space, report.experiment)
    used: list[Figure] = []

    def figure(group: str, name: str) -> Figure:
        found = report.find(group, name)
        if found is None:
            raise MeasureError(
                f"{file.name} asks for {name!r} of {group!r}, which was not measured",
                f"`pagewright bench {report.experiment} --resume` measures what is missing",
            )
        used.append(found)
        return found

    # What is made is Markdown, in which nothing is to be escaped.
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters |= {
        "short": short,
        "whole": whole,
        "without_sign_of_zero": without_sign_of_zero,
    }
    try:
        template = environment.from_string(file.read_text())
        return template.render(
            figure=figure,
            percent=percent,
            # These are called at the end of a table, when it has all its figures.
            command=lambda: command(load(space, report.experiment), used),
            origin=lambda: origin(report, used),
        )
    except (OSError, TemplateError, LookupError, TypeError) as error:
        raise MeasureError(
            f"the table of {report.experiment} cannot be made: {error}",
            f"it is made by {file}",
        ) from error


def command(experiment: Experiment, figures: Sequence[Figure]) -> str:
    """Return the command that measures some figures of an experiment, and no other part of it."""
    parts = {part.name: part.runs for part in experiment.parts(False)}
    named = [name for name in parts if any(name in figure.parts for figure in figures)]
    most = max((len(runs) for figure in figures for runs in figure.runs.values()), default=0)
    usual = max((parts[name] for name in named), default=0)
    choice = Choice(
        parts=named if len(named) < len(parts) else (), runs=most if most != usual else 0
    )
    return choice.command(experiment)


def origin(report: Report, figures: Sequence[Figure]) -> str:
    """Say in a line how often some figures of a report were measured, and on what."""
    parts = list(dict.fromkeys(part for figure in figures for part in figure.parts))

    def said(by_part: Mapping[str, Sequence[str]]) -> str:
        return ", ".join(dict.fromkeys(text for part in parts for text in by_part.get(part, ())))

    return (
        f"{runs_of(figures)}, {said(report.emulators)}, linux {said(report.kernels)}, "
        f"commit {said(report.commits)}"
    )


def short(value: float) -> str:
    """Write a number with four digits or so, which is enough to compare."""
    return grouped(value, 1)


def percent(figure: Figure, side: str, reference: str) -> str:
    """Say how a side differs from another one, in percent, with the standard error if there is one.

    One that rounds to 0.0 is there, too: without it a side counts as run once.
    """
    found = difference(figure.runs[side], figure.runs[reference])
    if found.percent is None:
        return ""
    error = "" if found.percent_error is None else f" ± {found.percent_error:.1f}"
    return f"{without_sign_of_zero(f'{found.percent:+.1f}')}{error} %"
