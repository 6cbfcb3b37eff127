"""The command report: all experiments on one page."""

from __future__ import annotations

from typing import Annotated

import typer

from pagewright.host import workspace
from pagewright.host.errors import MeasureError
from pagewright.host.files import replace_text
from pagewright.host.progress import say
from pagewright.kernel.tree import commit


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(
    record: Annotated[
        bool,
        typer.Option(
            "--record",
            help="also write the full figures to docs/figures.json and the tables of README.md",
        ),
    ] = False,
) -> None:
    """Write all experiments to a page, out/report/index.html: our figures beside published ones.

    It runs nothing. The figures are those of `pagewright bench NAME --show`, and the recorded ones
    of docs/figures.json where this clone has none.
    """
    from pagewright.results import pages
    from pagewright.results import record as committed
    from pagewright.results.chapters import chapters, measured_here, to_record
    from pagewright.results.experiment import experiments, load

    space = workspace.find()
    recorded = committed.read(space)
    if record:
        new = {}
        for name in experiments(space):
            experiment = load(space, name)
            here = measured_here(space, experiment)
            # Small sizes are not what README.md tells of.
            if here is None or here.quick:
                continue
            try:
                new[name] = to_record(experiment, here, recorded.get(name))
            except MeasureError as error:
                say(f"{name} is not recorded: {error}")
        for file in committed.write(space, {**recorded, **new}):
            say(f"wrote {file.relative_to(space.root)}")
        recorded = committed.read(space)
        for name in committed.tables_in((space.root / "README.md").read_text()):
            if name not in recorded:
                say(f"the table of {name} stays as it is: `pagewright bench {name}` measures it")
    made = chapters(space, recorded)
    page = space.root / "out" / "report" / "index.html"
    replace_text(page, pages.experiments_page(made, f"commit {commit(space)}"))
    width = max(len(chapter.experiment.name) for chapter in made)
    for chapter in made:
        print(f"{chapter.experiment.name:{width}}  {chapter.status}")
    print(page.relative_to(space.root))
