"""Figures -> tables as text, and in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.table import Table

from pagewright.results.figures import Figure, Report, runs_of
from pagewright.results.statistics import difference, grouped, without_sign_of_zero


@dataclass(frozen=True)
class Sheet:
    """A table as text: what the terminal and pages of HTML show.

    Attributes:
        title: the group of its figures.
        heads: the heads of its columns; the first two have words, the others numbers.
        rows: a cell for each column.
        figures: what the rows were made of.
    """

    title: str
    heads: list[str]
    rows: list[list[str]]
    figures: list[Figure]


def number(value: float) -> str:
    """Write a number with two decimals, but where they do not count."""
    return grouped(value, 2)


def change(runs: Sequence[float], reference: Sequence[float]) -> str:
    """Say how a side differs from another one: absolute, and in percent.

    Both have the standard error of the difference of the means behind a ± if there is more
    than one run of each side.
    """
    found = difference(runs, reference)
    if not found.absolute and not found.error:
        return "="
    # Spaces at which a narrow terminal must not break a line.
    error = (
        "" if found.error is None else f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{number(found.error)}"
    )
    sign = "+" if found.absolute >= 0 else ""
    text = f"{without_sign_of_zero(sign + number(found.absolute))}{error}"
    if found.percent is None:
        return text
    percent = without_sign_of_zero(f"{found.percent:+.1f}")
    error = (
        ""
        if found.percent_error is None
        else f"\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}{found.percent_error:.1f}"
    )
    return f"{text} ({percent}{error}\N{NO-BREAK SPACE}%)"


def sheets(report: Report) -> list[Sheet]:
    """Return the figures as tables, in the order in which they were made."""
    return [
        _sheet(report, group, list(figures))
        for group, figures in groupby(report.figures, lambda figure: figure.group)
    ]


def _sheet(report: Report, group: str, figures: list[Figure]) -> Sheet:
    labels = _labels(report, figures)
    reference = report.yardstick if report.yardstick in labels else labels[0]
    others = [label for label in labels if label != reference]
    several = any(len(runs) > 1 for figure in figures for runs in figure.runs.values())
    rows = []
    for figure in figures:
        row = [figure.name, figure.unit]
        row += [number(figure.values[label]) if label in figure.runs else "" for label in labels]
        for label in others:
            there = label in figure.runs and reference in figure.runs
            row.append(change(figure.runs[label], figure.runs[reference]) if there else "")
        if several:
            row.append(", ".join(str(len(figure.runs.get(label, ()))) for label in labels))
        rows.append(row)
    short = _short(labels)
    heads = ["", "unit", *short.values()]
    heads += [f"{short[label]} - {short[reference]}" for label in others]
    return Sheet(group, [*heads, *(["runs"] if several else [])], rows, figures)


def _labels(report: Report, figures: list[Figure]) -> list[str]:
    """Return the labels of the sides that some figures have, in the report's order."""
    return [
        side.label for side in report.sides if any(side.label in figure.runs for figure in figures)
    ]


def _short(labels: list[str]) -> dict[str, str]:
    """Return labels without what all of them begin with, such as the build in "16k, patched"."""
    builds = {label.rpartition(", ")[0] for label in labels}
    return {label: label.rpartition(", ")[2] if len(builds) == 1 else label for label in labels}


def origin(report: Report) -> str:
    """Say how often figures were measured and on what, and what prints them."""
    size = "quick: small sizes and few runs, " if report.quick else ""
    machine = f" ({report.machine})" if report.machine else ""
    return (
        f"{size}{runs_of(report.figures)}, linux {report.kernel}, {report.emulator}{machine}, "
        f"commit {report.commit}; `{report.command}` prints these figures"
    )


def print_tables(report: Report, console: Console) -> None:
    """Print a report as tables."""
    for sheet in sheets(report):
        title = f"{report.feature}: {sheet.title}"
        table = Table(title=title, title_justify="left", title_style="bold")
        for index, head in enumerate(sheet.heads):
            table.add_column(head, justify="left" if index < 2 else "right")
        for row in sheet.rows:
            table.add_row(*row)
        console.print(table)
    console.print(origin(report), highlight=False, soft_wrap=True)
