"""The command bench: measure experiments, keep the runs, print the figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from pagewright.cli.options import check_output, check_place, completes
from pagewright.host import workspace
from pagewright.host.errors import NothingToMeasureError, PagewrightError
from pagewright.host.lock import lock
from pagewright.host.progress import say
from pagewright.host.workspace import Workspace

if TYPE_CHECKING:
    from pagewright.results.experiment import Experiment
    from pagewright.results.figures import Report
    from pagewright.results.journal import Journal
    from pagewright.results.plan import Choice, Run

# In place of an experiment's name.
LIST = "list"
# How wide tables may be that are not printed to a terminal.
COLUMNS = 180


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(bench)


def _names(space: Workspace) -> list[str]:
    from pagewright.results import experiment as catalogue

    return [LIST, *catalogue.experiments(space)]


def _of_runs(text: Callable[[Run], str]) -> Callable[[typer.Context, str], Iterable[str]]:
    """Return what a shell completes a word with: texts of the runs of the experiment before it."""

    def complete(ctx: typer.Context, incomplete: str) -> Iterable[str]:
        from pagewright.results import experiment as catalogue
        from pagewright.results.plan import Choice, plan

        space = workspace.find()
        # As the last option has no value yet, no word before it counts as an argument already.
        names = [name for name in ctx.args if name in catalogue.experiments(space)]
        if not names:
            return []
        experiment = catalogue.load(space, names[0])
        texts = map(text, plan(experiment, catalogue.base_and_patched(), Choice()))
        # One with a space would have to be quoted, which shells do in different ways.
        return dict.fromkeys(t for t in texts if t.startswith(incomplete) and " " not in t)

    return complete


def bench(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help=f"an experiment, or `{LIST}` to see what there is; all of them without",
            autocompletion=completes(_names),
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="small sizes, and without the long runs")
    ] = False,
    part: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="this part only (may be repeated)",
            autocompletion=_of_runs(lambda run: run.part.name),
        ),
    ] = None,
    side: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LABEL",
            help="this side only (may be repeated)",
            autocompletion=_of_runs(lambda run: run.side.label),
        ),
    ] = None,
    runs: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="run each part so often, in boots of their own"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="do not repeat runs that are in the file already")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="print the tables of the file; run nothing")
    ] = False,
    lg_env: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="run what can be run on the place of a labgrid environment",
        ),
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
) -> None:
    """Measure an experiment of a feature, as a rule on the base and on the patched kernel.

    Every run is added to out/6.12/bench/NAME.jsonl as it ends; an earlier file is renamed.
    """
    from pagewright.results import experiment as catalogue
    from pagewright.results import report
    from pagewright.results.plan import Choice

    space = workspace.find()
    if name == LIST:
        _list(space)
        return
    outputs = _Outputs(json, html, svg, select)
    _validate(name, part, side, show, resume, lg_env, outputs)
    # Rather now than after hours of measuring. The folder of the runs will be there then.
    (space.out / "bench").mkdir(parents=True, exist_ok=True)
    for output in outputs.files:
        check_output(output)
    names = [name] if name else catalogue.experiments(space)
    console = Console()
    if not console.is_terminal:
        # The widest tables fit, and no number is broken in two.
        console = Console(width=COLUMNS)
    choice = Choice(quick, part or (), side or (), runs or 0)
    measured = False
    for experiment in [catalogue.load(space, one) for one in names]:
        file = space.out / "bench" / f"{experiment.name}.jsonl"
        try:
            figures = (
                _show(experiment, file, choice)
                if show
                else _measure(space, experiment, file, choice, resume, lg_env)
            )
        except NothingToMeasureError as error:
            if name:
                raise
            say(error.what)
            continue
        measured = True
        report.print_tables(figures, console)
        outputs.write(figures)
    if not measured:
        raise NothingToMeasureError(
            "nothing of any experiment can be run here",
            "the lines above say what each lacks; docs/lab.md describes the places",
        )


@dataclass(frozen=True)
class _Outputs:
    """The files that figures are also written to, each if it was asked for.

    Attributes:
        json: takes the figures.
        html: takes a page with plots.
        svg: takes a plot of some figures.
        select: which figures those are, as a regular expression.
    """

    json: Path | None
    html: Path | None
    svg: Path | None
    select: str

    @property
    def files(self) -> list[Path]:
        """The files that were asked for."""
        return [file for file in (self.json, self.html, self.svg) if file]

    def write(self, figures: Report) -> None:
        """Write the figures of an experiment."""
        from pagewright.results import pages, plots

        if self.json:
            self.json.write_text(figures.to_json())
        if self.html:
            self.html.write_text(pages.to_html(figures))
        if self.svg:
            self.svg.write_text(plots.plot(figures, self.select))


def _validate(
    name: str | None,
    part: list[str] | None,
    side: list[str] | None,
    show: bool,
    resume: bool,
    lg_env: Path | None,
    outputs: _Outputs,
) -> None:
    """Refuse options that do not go together, and values that there cannot be."""
    from pagewright.results import plots

    if not name and (outputs.files or part or side or show):
        raise PagewrightError(
            "parts, sides, files and --show are of one experiment", "give its name, too"
        )
    if show and (resume or lg_env):
        raise PagewrightError("--show runs nothing", "leave out --resume and --lg-env")
    if bool(outputs.svg) != bool(outputs.select):
        raise PagewrightError(
            "--svg draws the figures that --select names",
            "give both options, as a plot has one unit",
        )
    if lg_env:
        check_place(lg_env)
    plots.pattern(outputs.select)


def _show(experiment: Experiment, file: Path, choice: Choice) -> Report:
    from pagewright.results import measure
    from pagewright.results.experiment import base_and_patched

    return measure.shown(experiment, file, base_and_patched(), choice)


def _measure(
    space: Workspace,
    experiment: Experiment,
    file: Path,
    choice: Choice,
    resume: bool,
    lg_env: Path | None,
) -> Report:
    """Measure an experiment and keep its runs in a file."""
    from pagewright.results import measure
    from pagewright.results.experiment import base_and_patched
    from pagewright.results.plan import plan
    from pagewright.results.runners import runner

    sides = base_and_patched()
    # What cannot be had is said before a place is connected to, or another bench waited for.
    plan(experiment, sides, choice)
    again = f"{choice.command(experiment)} --resume" + (f" --lg-env {lg_env}" if lg_env else "")
    with runner(space, lg_env) as where, _journal(file, resume, again) as journal:
        return measure.measure(space, experiment, sides, choice, journal, where)


@contextmanager
def _journal(file: Path, resume: bool, again: str) -> Iterator[Journal]:
    """Open the file of an experiment; if it is cut short, name the command that goes on."""
    from pagewright.results.journal import Journal

    with lock(file.parent, "the files of the benches"):
        journal = Journal(file, anew=not resume)
        before = len(journal.entries)
        try:
            yield journal
        except BaseException as error:
            todo = f"the runs so far are in {file}; `{again}` goes on with them"
            if len(journal.entries) > before:
                if isinstance(error, PagewrightError):
                    error.todo = error.todo or todo
                else:
                    say(todo)
            raise


def _list(space: Workspace) -> None:
    """Print every experiment with its parts, their sides, and how many boots they take."""
    from pagewright.results import experiment as catalogue
    from pagewright.results.plan import Choice, plan

    sides = catalogue.base_and_patched()
    for experiment in [catalogue.load(space, name) for name in catalogue.experiments(space)]:
        full, quick = (plan(experiment, sides, Choice(quick=wanted)) for wanted in (False, True))
        print(f"{experiment.name} ({experiment.feature}): {experiment.title}")
        print(f"    {len(full)} boots, {len(quick)} with --quick")
        in_full, when_quick = (_sides_of_parts(runs) for runs in (full, quick))
        for part in {**in_full, **when_quick}:
            texts = [in_full.get(part, "not in full")]
            if when_quick.get(part) != in_full.get(part):
                texts.append(f"with --quick: {when_quick.get(part, 'left out')}")
            print(f"    --part {part}: {' | '.join(texts)}")


def _sides_of_parts(runs: Sequence[Run]) -> dict[str, str]:
    """Return the sides of each part, and how often it is run, as text."""
    texts = {}
    for name in dict.fromkeys(run.part.name for run in runs):
        of_part = [run for run in runs if run.part.name == name]
        labels = "; ".join(dict.fromkeys(run.side.label for run in of_part))
        total = of_part[0].total
        texts[name] = f"{labels} ({total} runs)" if total > 1 else labels
    return texts
