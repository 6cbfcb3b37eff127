"""Figures -> bar charts, as SVG."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from pagewright.host.errors import MeasureError
from pagewright.results.figures import Figure, Report
from pagewright.results.report import number
from pagewright.results.statistics import standard_error

# The first side is what the others are compared with, and stays in the background. The others
# can be told apart by colour-blind readers, too.
_COLOURS = ("#b4bac4", "#2f6db3", "#d98324", "#3c8f5a", "#7a5aa6")
# Inches. So narrow that the text can be read where the picture is shrunk to a phone's width.
_WIDTH = 4.6
_BAR = 0.19
# Characters of a row's name in a line.
_NAME = 22


def pattern(selection: str) -> re.Pattern[str]:
    """Compile a regular expression that the user gave.

    Raises:
        MeasureError: it is none.
    """
    try:
        return re.compile(selection)
    except re.error as error:
        raise MeasureError(f"{selection!r} is no regular expression: {error}") from error


def plot(report: Report, selection: str) -> str:
    """Draw the figures whose "group: name" matches a regular expression, as SVG.

    Raises:
        MeasureError: there is none, or they do not count the same.
    """
    wanted = pattern(selection)
    chosen = [f for f in report.figures if wanted.search(f"{f.group}: {f.name}")]
    if len({(f.unit, *f.values) for f in chosen}) != 1:
        raise MeasureError(
            f"{len(chosen)} figures match {selection!r}; a plot needs one unit, and the same sides",
            "some names: " + "; ".join(f"{f.group}: {f.name}" for f in report.figures[:5]),
        )
    return bars(chosen)


def bars(figures: Sequence[Figure]) -> str:
    """Draw figures of one unit as bars, with the standard error of each mean of several runs."""
    import matplotlib

    matplotlib.use("svg")
    # The same figures give the same file. Text stays text, in a font that every reader has.
    settings: dict[Any, Any] = {
        "svg.hashsalt": "figures",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
    }
    from matplotlib import pyplot

    labels = list(dict.fromkeys(label for figure in figures for label in figure.values))
    with matplotlib.rc_context(settings):
        height = 0.9 + len(figures) * (_BAR * len(labels) + 0.14)
        picture, axes = pyplot.subplots(figsize=(_WIDTH, height), layout="constrained")
        step = len(labels) + 0.14 / _BAR
        for index, label in enumerate(labels):
            rows = [row for row, figure in enumerate(figures) if label in figure.runs]
            values = [figures[row].values[label] for row in rows]
            drawn = axes.barh(
                [row * step + index for row in rows],
                values,
                height=0.92,
                label=label,
                color=_COLOURS[index % len(_COLOURS)],
                xerr=[standard_error(figures[row].runs[label]) for row in rows],
                error_kw={"elinewidth": 1, "ecolor": "#333333"},
            )
            axes.bar_label(drawn, [number(value) for value in values], fontsize=8, padding=3)
        axes.set_yticks([row * step + (len(labels) - 1) / 2 for row in range(len(figures))])
        axes.set_yticklabels([textwrap.fill(f.name, _NAME) for f in figures], fontsize=9)
        axes.tick_params(axis="x", labelsize=8)
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
        axes.xaxis.set_major_formatter(matplotlib.ticker.StrMethodFormatter("{x:,.12g}"))
        axes.margins(x=0.24, y=0.01)
        axes.set_xlim(left=min(0, axes.get_xlim()[0]) if _negative(figures) else 0)
        axes.set_xlabel(figures[0].unit, fontsize=9)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
        picture.legend(loc="outside upper left", ncols=3, fontsize=9, frameon=False)
        drawing = io.StringIO()
        picture.savefig(drawing, format="svg", metadata={"Date": None})
        pyplot.close(picture)
    # Without the XML declaration and document type it can stand in a page, too.
    return drawing.getvalue().split("-//W3C//DTD", 1)[-1].split(">", 1)[-1].lstrip()


def _negative(figures: Sequence[Figure]) -> bool:
    return any(value < 0 for figure in figures for value in figure.values.values())
