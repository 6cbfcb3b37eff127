"""Figures -> a table in the terminal, or a page of HTML with plots."""

from __future__ import annotations

import html
import io
import re
from itertools import groupby

from rich.console import Console
from rich.table import Table

from pagewright.host.errors import MeasureError
from pagewright.results.measure import Figure, Report


def number(value: float) -> str:
    """Write a number with thousands grouped, and decimals only where they count."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}"


def change(figure: Figure, labels: list[str]) -> str:
    """Say how the last side compares with the first."""
    first, last = (figure.values[label] for label in (labels[0], labels[-1]))
    if first == last:
        return "="
    return f"{(last / first - 1) * 100:+.1f} %" if first else ""


def rows(report: Report) -> list[tuple[str, list[Figure]]]:
    """Return the figures by group, in the order they were made."""
    return [(name, list(figures)) for name, figures in groupby(report.figures, lambda f: f.group)]


def origin(report: Report) -> str:
    """Say what the figures were measured on."""
    return (
        f"linux {report.kernel}, {report.emulator} ({report.machine}), commit {report.commit}; "
        f"`pagewright bench {report.experiment}` prints these figures"
    )


def print_tables(report: Report, console: Console) -> None:
    """Print a report as tables."""
    for group, figures in rows(report):
        labels = list(figures[0].values)
        table = Table(title=f"{report.feature}: {group}", title_justify="left", title_style="bold")
        table.add_column("")
        table.add_column("unit")
        for label in labels:
            table.add_column(label, justify="right")
        table.add_column("change", justify="right")
        for figure in figures:
            values = [number(figure.values[label]) for label in labels]
            table.add_row(figure.name, figure.unit, *values, change(figure, labels))
        console.print(table)
    console.print(origin(report), highlight=False, soft_wrap=True)


def plot(report: Report, selection: str) -> str:
    """Draw the figures whose "group: name" matches a regular expression, as SVG.

    Raises:
        MeasureError: there is none, or they do not count the same.
    """
    chosen = [f for f in report.figures if re.search(selection, f"{f.group}: {f.name}")]
    if len({(f.unit, *f.values) for f in chosen}) != 1:
        raise MeasureError(
            f"{len(chosen)} figures match {selection!r}; a plot needs one unit, and the same sides",
            "some names: " + "; ".join(f"{f.group}: {f.name}" for f in report.figures[:5]),
        )
    return _plot(chosen)


def _plot(figures: list[Figure]) -> str:
    """Draw figures of one unit as a bar chart and return it as SVG."""
    import matplotlib

    matplotlib.use("svg")
    # The same figures give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "figures"
    from matplotlib import pyplot

    picture, axes = pyplot.subplots(figsize=(8, 0.5 + 0.35 * len(figures)))
    labels = list(figures[0].values)
    width = 0.8 / len(labels)
    for index, label in enumerate(labels):
        offsets = [row + index * width for row in range(len(figures))]
        axes.barh(offsets, [f.values[label] for f in figures], height=width, label=label)
    axes.set_yticks([row + 0.4 - width / 2 for row in range(len(figures))])
    axes.set_yticklabels([f.name for f in figures])
    axes.set_xlabel(figures[0].unit)
    axes.invert_yaxis()
    axes.legend()
    picture.tight_layout()
    drawing = io.StringIO()
    picture.savefig(drawing, format="svg", metadata={"Date": None})
    pyplot.close(picture)
    # Without the XML declaration and document type it can stand in a page, too.
    return drawing.getvalue().split("-//W3C//DTD", 1)[-1].split(">", 1)[-1].lstrip()


def to_html(report: Report) -> str:
    """Return a report as a page of HTML, complete in itself."""
    parts = [
        "<!doctype html><meta charset=utf-8>",
        f"<title>{html.escape(report.title)}</title>",
        "<style>body{font:16px sans-serif;max-width:60em;margin:2em auto}"
        "td,th{padding:.2em .8em;text-align:right}td:first-child{text-align:left}</style>",
        f"<h1>{html.escape(report.title)}</h1><p>{html.escape(origin(report))}</p>",
    ]
    for group, figures in rows(report):
        labels = list(figures[0].values)
        heads = "".join(f"<th>{html.escape(h)}</th>" for h in ("", "unit", *labels, "change"))
        parts.append(f"<h2>{html.escape(group)}</h2><table><tr>{heads}</tr>")
        for figure in figures:
            cells = [figure.name, figure.unit, *(number(figure.values[label]) for label in labels)]
            cells.append(change(figure, labels))
            parts.append(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in cells)}</tr>")
        parts.append("</table>")
        for _, same_unit in groupby(figures, lambda f: f.unit):
            parts.append(_plot(list(same_unit)))
    return "\n".join(parts) + "\n"
