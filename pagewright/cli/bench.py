"""Commands that measure: bench, demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.progress import say


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (bench, demo):
        app.command()(command)


def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="an experiment; all of them without")
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also write the figures as JSON")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also write a page with plots")
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also draw the figures of --select")
    ] = None,
    select: Annotated[
        str, typer.Option(metavar="REGEX", help='which figures --svg draws, by "group: name"')
    ] = "",
    quick: Annotated[bool, typer.Option("--quick", help="leave out the long runs")] = False,
) -> None:
    """Measure an experiment of a feature, as a rule on the base and on the patched kernel."""
    from pagewright.results import measure, report

    if not name and (json or html or svg):
        raise PagewrightError("a file is written for one experiment", "give its name, too")
    space = workspace.find()
    for one in [name] if name else measure.experiments(space):
        experiment = measure.load(space, one)
        figures = measure.measure(space, experiment, measure.base_and_patched(), quick)
        report.print_tables(figures, Console())
        if json:
            json.write_text(figures.to_json())
        if html:
            html.write_text(report.to_html(figures))
        if svg:
            svg.write_text(report.plot(figures, select))


def demo() -> None:
    """Boot with every feature switched off, then on, and print what each changes."""
    from pagewright.results import measure, report

    space = workspace.find()
    features = space.features()
    for name in measure.experiments(space):
        experiment = measure.load(space, name)
        if all(part.sides for part in experiment.parts(True)):
            continue
        sides = measure.off_and_on(features)
        figures = measure.measure(space, experiment, sides, quick=True, only_these=True)
        say(f"\n{space.feature(experiment.feature).summary}.")
        report.print_tables(figures, Console())
