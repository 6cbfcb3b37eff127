"""The command demo: what every feature changes, in a line each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from pagewright.host import workspace
from pagewright.host.progress import say
from pagewright.host.workspace import Feature, Workspace

if TYPE_CHECKING:
    from pagewright.results.figures import Report

# The tables' width in the file.
_COLUMNS = 130

_NEXT = """\
To go on:  pagewright boot patched-4k     a shell in the patched guest (Ctrl-A X ends it)
           pagewright test                the tests
           features/NAME/README.md        how a feature works; `pagewright list` shows the rest"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo() -> None:
    """Boot with every feature switched off, then on, and say what each changes."""
    from pagewright.results import measure

    space = workspace.find()
    reports = measure.quick_off_and_on(space, "pagewright demo")
    lines = summaries(space, reports)
    text, page = write_tables(space, lines, reports)
    print(f"\nlinux {reports[0].kernel}, emulated; all features off, and on:\n")
    for line in lines:
        print(f"  {line}")
    say(f"\nAll figures: {text}\nwith plots:  {page}\n{_NEXT}")


def summaries(space: Workspace, reports: Sequence[Report]) -> list[str]:
    """Return a line for each feature, made of what was measured.

    A feature that no experiment sums up is used by others; its line names them.
    """
    from pagewright.results.experiment import load

    said: dict[str, str] = {}
    for report in reports:
        summary = load(space, report.experiment).summary
        if summary is not None:
            values = {(f.group, f.name): f.values for f in report.figures}
            said[report.feature] = summary(values)
    features = space.features()
    return [f"{f.name}: {said.get(f.name) or _unmeasured(f, features)}" for f in features]


def _unmeasured(feature: Feature, features: Sequence[Feature]) -> str:
    users = [other.name for other in features if feature.name in other.builds_on]
    built_on = f"; {', '.join(users)} builds on it" if users else ""
    return f"nothing to count by itself{built_on}"


def write_tables(
    space: Workspace, lines: Sequence[str], reports: Sequence[Report]
) -> tuple[str, str]:
    """Write all figures to out/VERSION/demo.txt and demo.html, and return their paths."""
    from pagewright.results import pages
    from pagewright.results import report as tables

    space.out.mkdir(parents=True, exist_ok=True)
    text, page = space.out / "demo.txt", space.out / "demo.html"
    with text.open("w") as file:
        file.write("\n".join(lines) + "\n\n")
        console = Console(file=file, width=_COLUMNS)
        for report in reports:
            tables.print_tables(report, console)
            console.print()
    page.write_text(pages.page("Features off and on", lines, *reports))
    return str(text.relative_to(space.root)), str(page.relative_to(space.root))
