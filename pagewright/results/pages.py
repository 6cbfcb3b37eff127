"""Figures -> pages of HTML, each complete in itself: no script, no file beside it, no network.

The templates are in templates/. They escape all text that they are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pagewright.results import plots, report
from pagewright.results.experiment import Experiment, Published
from pagewright.results.figures import Report, runs_of


@dataclass(frozen=True)
class Shown:
    """Some figures of an experiment, and where they come from.

    Attributes:
        source: words for it.
        report: the figures.
    """

    source: str
    report: Report


@dataclass(frozen=True)
class Chapter:
    """What the page of all experiments says of one.

    Attributes:
        experiment: which.
        status: in a word or two, whether it was measured.
        shown: its figures; none if it was not.
        missing: commands that measure what is missing, by what that is.
    """

    experiment: Experiment
    status: str
    shown: list[Shown] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def beside(self, published: Published) -> str:
        """Return our figure that stands beside a published one, or that there is none."""
        for one in self.shown:
            figure = one.report.find(published.group, published.name)
            sides = (published.side, published.reference)
            if figure and all(side in figure.runs for side in sides):
                text = report.change(*(figure.runs[side] for side in sides))
                quick = ", small sizes" if one.report.quick else ""
                return f"{text} {figure.unit}{quick}"
        return "not measured yet" if published.group else "none"


def _environment() -> Environment:
    """Return what renders our templates."""
    environment = Environment(
        loader=PackageLoader("pagewright.results"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"sheets": report.sheets, "plots_of": _plots_of, "runs_of": runs_of}
    return environment


def _plots_of(sheet: report.Sheet) -> list[Markup]:
    """Return a plot for each unit of a table."""
    return [
        # matplotlib escapes the words that it draws.
        Markup(plots.bars(list(same)))
        for _, same in groupby(sheet.figures, lambda figure: figure.unit)
    ]


def to_html(figures: Report) -> str:
    """Return a report as a page."""
    return page(figures.title, [], figures)


def page(title: str, lines: Sequence[str], *reports: Report) -> str:
    """Return a page with the tables and plots of some reports.

    Args:
        title: its title.
        lines: what stands above the tables.
        reports: what is shown.
    """
    template = _environment().get_template("tables.html")
    return template.render(title=title, lines=lines, reports=reports)


def experiments_page(chapters: Sequence[Chapter], versions: str) -> str:
    """Return the page of all experiments.

    Args:
        chapters: what it says of each.
        versions: which commit the page is made by.
    """
    template = _environment().get_template("experiments.html")
    return template.render(chapters=chapters, versions=versions)
