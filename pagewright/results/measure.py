"""Some machines, same work -> figures.

This module makes the list of runs that an experiment asks for, has those done that are not in
the experiment's file yet, and returns the figures of all of them. What an experiment is stands
in experiment.py, which runs are asked for in plan.py, what does them in runners.py, their file
in journal.py, and how numbers are put together in figures.py and statistics.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pagewright.host.errors import MeasureError, NothingToMeasureError
from pagewright.host.progress import say
from pagewright.host.workspace import Workspace
from pagewright.kernel.tree import commit
from pagewright.results import figures
from pagewright.results.experiment import Experiment, Side, experiments, load, off_and_on
from pagewright.results.figures import Report
from pagewright.results.journal import Conditions, Entry, Journal
from pagewright.results.plan import Choice, Run, check, plan, sides_of
from pagewright.results.runners import Emulator, Runner


def measure(
    space: Workspace,
    experiment: Experiment,
    sides: Sequence[Side],
    choice: Choice | None = None,
    journal: Journal | None = None,
    runner: Runner | None = None,
) -> Report:
    """Run an experiment on each side and return its figures.

    Args:
        space: where the repository is.
        experiment: what to run.
        sides: what to compare where a part has no sides of its own.
        choice: what of it to run; all of it by default.
        journal: runs that it has, under the same conditions, are not repeated; others are
            added to it as they end.
        runner: where to run it; QEMU by default.

    Raises:
        NothingToMeasureError: nothing of it can be run here.
        PagewrightError: there is no such part or side; a build, a boot or a piece of work
            failed; the kernel complained while it was measured, or was built anew meanwhile;
            the repository changed while kernels were built.
    """
    choice = choice or Choice()
    journal = journal or Journal()
    runner = runner or Emulator(space)
    runs = _possible(experiment, plan(experiment, sides, choice), runner)
    began_at = commit(space)
    # All kernels are built before the first run: what is edited from now on is in none of them.
    wanted = [_entry(experiment, choice, runner, one) for one in runs]
    if (now_at := commit(space)) != began_at:
        raise MeasureError(
            f"commit {began_at} became {now_at} while the kernels of {experiment.name} were built, "
            "and they may be of either",
            "start the bench again; what is built already is not built again",
        )
    entries = []
    kept = 0
    for one, described in zip(runs, wanted, strict=True):
        entry = journal.find(described)
        if entry is None:
            entry = _do(runner, one, replace(described, commit=began_at))
            if _entry(experiment, choice, runner, one) != described:
                raise MeasureError(
                    f"{_name(one, described)}: the kernel, the guest or what makes the machine has "
                    "changed since this bench began"
                )
            journal.append(entry, runner.packages())
        else:
            journal.keep(entry)
            kept += 1
        entries.append(entry)
    if kept:
        say(f"{kept} of {len(runs)} runs were in the file already")
    command = choice.command(experiment) + (" --lg-env FILE" if runner.place else "")
    return figures.report(experiment, entries, command)


def quick_off_and_on(
    space: Workspace, command: str, done: Callable[[Report], None] | None = None
) -> list[Report]:
    """Measure every experiment, quick, on one image with all features off and on.

    Experiments that compare only sides of their own are left out.

    Args:
        space: where the repository is.
        command: what the reports name as the command that prints their figures.
        done: called with each report when it is there.
    """
    sides = off_and_on(space.features())
    choice = Choice(quick=True, only_compared=True)
    reports = []
    for name in experiments(space):
        experiment = load(space, name)
        if plan(experiment, sides, choice):
            report = measure(space, experiment, sides, choice)
            report.command = command
            reports.append(report)
            if done:
                done(report)
    return reports


def shown(experiment: Experiment, path: Path, sides: Sequence[Side], choice: Choice) -> Report:
    """Make the report of the runs in an experiment's file, without running anything.

    They are those that the last run in the file goes with: quick or not, and on the same
    place. Of a part and a side, only those count that were made under the conditions of the
    last one, so that no figure is of two kernels; of a run that is there several times, the
    last one. A side counts only if it was measured in the same circumstances as the last run of
    its part, so that a difference of two sides is that of what they are compared for.

    Args:
        experiment: whose file it is.
        path: the file.
        sides: what is compared where a part has no sides of its own; they give the order.
        choice: which parts, sides and runs.

    Raises:
        MeasureError: there is no file, or nothing in it of what was asked for.
    """
    entries = Journal(path).entries
    if not entries:
        raise MeasureError(
            f"there are no runs of {experiment.name} in {path}",
            f"`pagewright bench {experiment.name}` makes them",
        )
    quick, place = entries[-1].quick, entries[-1].conditions.place
    parts = experiment.parts(quick)
    names = [part.name for part in parts]
    labels = [side.label for part in parts for side in sides_of(part, sides, False)]
    going_together = [
        entry
        for entry in entries
        if (entry.quick, entry.conditions.place) == (quick, place)
        # The experiment may have changed since.
        and entry.part in names
        and entry.side.label in labels
    ]
    for kind, wanted, there in (
        ("part", choice.parts, [entry.part for entry in going_together]),
        ("side", choice.sides, [entry.side.label for entry in going_together]),
    ):
        check(str(path), kind, wanted, list(dict.fromkeys(there)))
    chosen = [
        entry
        for entry in going_together
        if entry.part in (choice.parts or names) and entry.side.label in (choice.sides or labels)
    ]
    current = _under_last_conditions(chosen)
    if others := len(chosen) - len(current):
        say(
            f"{others} of {len(chosen)} runs of {experiment.name} are left out: another kernel, "
            "guest, machine or command has been measured since"
        )
    current = _in_last_circumstances(experiment, current)
    last = {
        (names.index(entry.part), entry.run, labels.index(entry.side.label)): entry
        for entry in current
        if entry.run <= (choice.runs or entry.run)
    }
    command = replace(choice, quick=quick).command(experiment)
    in_order = [entry for _, entry in sorted(last.items())]
    return figures.report(experiment, in_order, f"{command} --show")


def _under_last_conditions(entries: Sequence[Entry]) -> list[Entry]:
    """Return the runs that were made under the conditions of the last run of their part and side.

    Not all works need be in all runs, so the commands are compared with those of the last run
    that had works of the same names.
    """

    def compared(entry: Entry) -> tuple[Side, Conditions]:
        return entry.side, replace(entry.conditions, work="")

    last = {(entry.part, entry.side.label): compared(entry) for entry in entries}
    commands = {
        (entry.part, entry.side.label, *entry.works): entry.conditions.work for entry in entries
    }
    return [
        entry
        for entry in entries
        if compared(entry) == last[entry.part, entry.side.label]
        and entry.conditions.work == commands[entry.part, entry.side.label, *entry.works]
    ]


def _in_last_circumstances(experiment: Experiment, entries: Sequence[Entry]) -> list[Entry]:
    """Return the runs of sides that can be compared with the last run of their part.

    The kernels of two sides may differ, and their parameters, but not the version of the source
    that they are made of, nor the emulator, the guest, the rest of the machine and the commands.
    Each other side is named.
    """

    def circumstances(entry: Entry) -> tuple[object, ...]:
        conditions = entry.conditions
        # What `uname` says on a place is not only the version of the source.
        kernel = "" if conditions.place else conditions.kernel
        return kernel, conditions.emulator, conditions.guest, conditions.common, entry.options

    last = {entry.part: entry for entry in entries}
    # Not all works need be in all runs.
    commands = {(entry.part, *entry.works): entry.conditions.work for entry in entries}
    kept = [
        entry
        for entry in entries
        if circumstances(entry) == circumstances(last[entry.part])
        and entry.conditions.work == commands[entry.part, *entry.works]
    ]
    gone = [(entry.part, entry.side.label) for entry in entries if entry not in kept]
    for part, side in dict.fromkeys(gone):
        say(
            f"left out: {experiment.name}, {part}, {side}: it was measured with another kernel "
            f"version, emulator, guest, machine or command than {last[part].side.label}"
        )
    return kept


def _possible(experiment: Experiment, runs: list[Run], runner: Runner) -> list[Run]:
    """Return the runs that can be done; say of each other part and side why it cannot."""
    reasons: dict[tuple[str, str], str] = {}
    for one in runs:
        key = (one.part.name, one.side.label)
        if key not in reasons:
            reasons[key] = runner.left_out(one.part, one.side)
            if reasons[key]:
                say(f"left out: {experiment.name}, {key[0]}, {key[1]}: {reasons[key]}")
    kept = [one for one in runs if not reasons[one.part.name, one.side.label]]
    if not kept:
        raise NothingToMeasureError(f"nothing of {experiment.name} can be run here")
    return kept


def _entry(experiment: Experiment, choice: Choice, runner: Runner, one: Run) -> Entry:
    """Return what the file must have for a run not to be repeated."""
    works = one.part.works_of(one.number)
    conditions = runner.conditions(one.part, one.side, works)
    return Entry(experiment.name, one.part.name, one.side, one.number, choice.quick, conditions)


def _do(runner: Runner, one: Run, wanted: Entry) -> Entry:
    """Do a run and return what is to be kept of it."""
    works = runner.run(_name(one, wanted), one.part, one.side, one.number)
    return replace(
        wanted,
        # The side's own kernel parameters are in the entry as the side's.
        options=dict(one.part.options),
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        works=works,
    )


def _name(one: Run, wanted: Entry) -> str:
    """Return what the progress bar and errors call a run."""
    number = f", run {one.number} of {one.total}" if one.total > 1 else ""
    return f"{wanted.experiment}, {one.part.name}, {one.side.label}{number}"
