"""What is known of every experiment: from this clone's journals, and from what is recorded."""

from __future__ import annotations

from collections.abc import Mapping

from pagewright.host.errors import MeasureError
from pagewright.host.workspace import Workspace
from pagewright.results import measure
from pagewright.results.experiment import Experiment, base_and_patched, experiments, load
from pagewright.results.figures import Report, labels_of, merged
from pagewright.results.journal import Journal
from pagewright.results.pages import Chapter, Shown
from pagewright.results.plan import Choice, plan

HERE, RECORDED = "measured in this clone", "recorded in docs/figures.json"


def chapters(space: Workspace, recorded: Mapping[str, Report]) -> list[Chapter]:
    """Return what is known of each experiment, those that were not run included.

    Raises:
        MeasureError: a journal cannot be read.
    """
    return [_chapter(space, load(space, name), recorded) for name in experiments(space)]


def measured_here(space: Workspace, experiment: Experiment) -> Report | None:
    """Return the figures of this clone's journal of an experiment, if it has runs."""
    file = space.out / "bench" / f"{experiment.name}.jsonl"
    if not Journal(file).entries:
        return None
    return measure.shown(experiment, file, base_and_patched(), Choice())


def _chapter(space: Workspace, experiment: Experiment, recorded: Mapping[str, Report]) -> Chapter:
    here = measured_here(space, experiment)
    shown = [Shown(HERE, here)] if here else []
    # The recorded figures say what is not measured here in full: quick runs are of small sizes.
    if experiment.name in recorded and (not here or here.quick or _lacking(experiment, here)):
        shown.append(Shown(RECORDED, recorded[experiment.name]))
    full = next((one.report for one in shown if not one.report.quick), None)
    missing = _missing(experiment, full)
    return Chapter(experiment, _status(shown, missing), shown, missing)


def to_record(experiment: Experiment, here: Report, recorded: Report | None) -> Report:
    """Return the figures of this clone with those recorded parts that were not measured here.

    Args:
        experiment: whose figures they are.
        here: the full figures of this clone.
        recorded: what is recorded, if there is something.

    Raises:
        MeasureError: the figures cannot be recorded, or something that is recorded would be lost.
    """
    if "+" in here.commit:
        raise MeasureError(f"it was measured with changes that are in no commit ({here.commit})")
    if not recorded:
        return here
    known = (part.name for part in experiment.parts(False))
    stay = [name for name in known if name in recorded.parts and name not in here.parts]
    lost = {
        part: [label for label in labels if label in recorded.parts.get(part, ())]
        for part, labels in _lacking(experiment, here).items()
        if part not in stay
    }
    # A column of a figure has the runs of one clone only.
    for figure in recorded.figures:
        measured_again = here.find(figure.group, figure.name)
        columns = labels_of(recorded, figure, here.parts)
        columns |= measured_again.runs.keys() if measured_again else set()
        if not columns.isdisjoint(labels_of(recorded, figure, stay)):
            lost |= {part: recorded.parts[part] for part in figure.parts if part in stay}
    if words := [f"{part}: {'; '.join(labels)}" for part, labels in lost.items() if labels]:
        raise MeasureError(f"{', '.join(words)} would be lost")
    return merged(experiment, recorded, stay, here)


def _lacking(experiment: Experiment, full: Report | None) -> dict[str, list[str]]:
    """Return the sides that are not measured in full, by the parts that lack some."""
    wanted: dict[str, list[str]] = {}
    there = full.parts if full else {}
    for run in plan(experiment, base_and_patched(), Choice()):
        if run.side.label not in there.get(run.part.name, ()):
            labels = wanted.setdefault(run.part.name, [])
            if run.side.label not in labels:
                labels.append(run.side.label)
    return wanted


def _missing(experiment: Experiment, full: Report | None) -> dict[str, str]:
    """Return the commands that measure in full what is not measured, by what that is."""
    return {
        f"{part}: {'; '.join(labels)}": f"{Choice(parts=[part]).command(experiment)} --resume"
        for part, labels in _lacking(experiment, full).items()
    }


def _status(shown: list[Shown], missing: dict[str, str]) -> str:
    if not shown:
        return "not run"
    source = "measured" if shown[0].source == HERE else "recorded"
    if all(one.report.quick for one in shown):
        return f"{source}, small sizes"
    return f"{source}, in part" if missing else source
