"""Experiments: what is run, where it is kept, what a killed bench goes on with."""

from __future__ import annotations

import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pagewright.cli import bench as command
from pagewright.cli.main import app
from pagewright.host import workspace
from pagewright.host.errors import MachineError, MeasureError, PagewrightError
from pagewright.kernel import build
from pagewright.kernel.manifest import Manifest
from pagewright.machine.machine import Machine
from pagewright.machine.options import MachineOptions
from pagewright.results import experiment as catalogue
from pagewright.results import measure, report, runners
from pagewright.results.experiment import Experiment, Part, Quantity, Side, Work
from pagewright.results.journal import Conditions, Journal, set_aside
from pagewright.results.plan import Choice, plan

SPACE = workspace.find()
SIDES = [Side("base", "base-4k"), Side("patched", "patched-4k")]
THIRD = Side("third", "base-4k", "rodata=on")


@pytest.fixture(autouse=True)
def commit(monkeypatch):
    """Save the time that git takes for each run."""
    monkeypatch.setattr(measure, "commit", lambda space: "abc+")


# --- Experiments ------------------------------------------------------------------


CONDITIONS = Conditions("6.12.1-1", "key", "image", "QEMU 10", "guest", "work")


@dataclass
class Faked:
    """A runner whose values depend on what is run alone; it can die after some runs."""

    place: str = ""
    dies_after: int = 1000
    conditions_of: Conditions = CONDITIONS
    done: list[tuple[str, str, int]] = field(default_factory=list)

    def left_out(self, part, side):
        """Leave nothing out."""
        return ""

    def conditions(self, part, side, works):
        """Tell a side by its build, and works by their number."""
        return replace(self.conditions_of, image=f"{side.build}", work=f"{part.name}{len(works)}")

    def packages(self):
        """Return one package."""
        return {"busybox": "1.37"}

    def run(self, what, part, side, run):
        """Make up values, or die."""
        if len(self.done) == self.dies_after:
            raise MachineError("killed")
        self.done.append((part.name, side.label, run))
        slow = 0 if side.label == "patched" else 100
        return {
            work.name: [
                {"n": f"{1000 + slow + 7 * run * run + turn}", "text": "x"}
                for turn in range(work.rounds)
            ]
            for work in part.works_of(run)
        }


def quantities(side, work, values):
    yield Quantity("counts", work, "units", int(values["n"]))


def parts(quick):
    works = [Work("often", "true", rounds=3), Work("seldom", "true", runs=2)]
    return [
        Part("first", {"smp": 2}, works, runs=1 if quick else 4),
        Part("second", {}, [Work("own", "true")], (THIRD,)),
        Part("third", {}, [Work("more", "true")], also=(THIRD,)),
    ]


EXPERIMENT = Experiment("x", "linear-map", "A title", parts, quantities, columns=("base", "third"))


def table(report_):
    console = Console(record=True, width=200, file=io.StringIO())
    report.print_tables(report_, console)
    return console.export_text()


def run(runner, choice=Choice(), journal=None):  # noqa: B008
    return measure.measure(SPACE, EXPERIMENT, SIDES, choice, journal, runner)


def test_sides_of_a_part_take_turns_and_works_are_left_out_of_late_runs():
    runner = Faked()
    made = run(runner)
    first = [("first", side, number) for number in (1, 2, 3, 4) for side in ("base", "patched")]
    third = [("third", side, 1) for side in ("base", "patched", "third")]
    assert runner.done == [*first, ("second", "third", 1), *third]
    runs = {
        figure.name: {side: len(r) for side, r in figure.runs.items()} for figure in made.figures
    }
    assert runs["often"] == {"base": 4, "patched": 4}
    assert runs["seldom"] == {"base": 2, "patched": 2}
    assert list(runs["more"]) == ["base", "third", "patched"]


def test_only_what_is_asked_for_is_run():
    runner = Faked()
    run(runner, Choice(parts=["first", "third"], sides=["patched"], runs=2))
    assert runner.done == [
        ("first", "patched", 1),
        ("first", "patched", 2),
        *[("third", "patched", n) for n in (1, 2)],
    ]
    runner = Faked()
    run(runner, Choice(quick=True, only_compared=True))
    assert [part for part, _, _ in runner.done] == ["first", "first", "third", "third"]
    assert "third" not in [side for _, side, _ in runner.done]


@pytest.mark.parametrize(
    ("choice", "what", "todo"),
    [
        (Choice(parts=["fourth"]), "no part 'fourth' in x", "first; second; third"),
        (
            Choice(quick=True, sides=["off"]),
            "no side 'off' in x with --quick",
            "base; patched; third",
        ),
        (Choice(parts=["second"], sides=["base"]), "base", "second: third"),
    ],
)
def test_an_unknown_part_or_side_lists_what_there_is(choice, what, todo):
    with pytest.raises(MeasureError, match=what) as error:
        run(Faked(), choice)
    assert todo in error.value.todo
    assert "\n" not in error.value.what + error.value.todo


def test_every_experiment_loads_and_names_its_feature():
    names = catalogue.experiments(SPACE)
    assert names
    for name in names:
        experiment = catalogue.load(SPACE, name)
        assert experiment.name == name
        assert experiment.feature == "all features" or SPACE.feature(experiment.feature)
        for quick in (True, False):
            named = [part.name for part in experiment.parts(quick)]
            assert len(set(named)) == len(named)
            assert all(re.fullmatch(r"[\w-]+", part) for part in named)
        sizes = [len(plan(experiment, SIDES, Choice(quick=quick))) for quick in (True, False)]
        assert sizes[0] <= sizes[1]


def test_unknown_experiment_lists_the_known_ones():
    with pytest.raises(PagewrightError, match="no experiment") as error:
        catalogue.load(SPACE, "no-such-thing")
    assert "atomic-populate" in error.value.todo


def test_works_take_turns_in_their_rounds():
    class Guest:
        ran = ()
        complaint = ""

        def check(self, text, timeout):
            self.ran = (*self.ran, text)
            return f"n={len(self.ran)}\nnoise\nk = x=y"

        def warnings(self):
            return self.complaint

    guest = Guest()
    works = [Work("a", "do a", rounds=3), Work("b", "do b")]
    printed = runners.execute(guest, "what", works)
    assert guest.ran == ("do a", "do b", "do a", "do a")
    assert [values["n"] for values in printed["a"]] == ["1", "3", "4"]
    assert printed["b"] == [{"n": "2", "k": "x=y"}]
    guest.complaint = "a splat"
    with pytest.raises(MeasureError, match="complained"):
        runners.execute(guest, "what", works)


# --- The file of a bench ------------------------------------------------------------


@pytest.mark.parametrize("dies_after", [0, 1, 5, 11])
@pytest.mark.parametrize("torn", ["", '{"experiment": "x", "par'])
def test_a_bench_that_was_killed_goes_on_and_prints_the_same_table(tmp_path, dies_after, torn):
    whole = table(run(Faked(), journal=Journal(tmp_path / "whole.jsonl")))
    file = tmp_path / "x.jsonl"
    with pytest.raises(MachineError):
        run(Faked(dies_after=dies_after), journal=Journal(file))
    with file.open("a") as end:
        end.write(torn)
    rest = Faked()
    assert table(run(rest, journal=Journal(file))) == whole
    assert len(rest.done) == 12 - dies_after
    times = r'"time": "[^"]*"'
    ours, theirs = (
        re.sub(times, "", (tmp_path / name).read_text()) for name in ("x.jsonl", "whole.jsonl")
    )
    assert ours == theirs
    assert table(measure.shown(EXPERIMENT, file, SIDES, Choice())).startswith(
        whole[: whole.index("`pagewright")]
    )


def test_what_late_runs_leave_out_comes_last():
    """What comes after it would begin in another state in those runs, and be averaged."""
    always, twice, once = (
        Work("always", "true"),
        Work("twice", "true", runs=2),
        Work("once", "", runs=1),
    )
    assert Part("first", {}, [always, twice, once], runs=3).works_of(2) == [always, twice]
    for works in ([twice, always], [always, once, twice]):
        with pytest.raises(ValueError, match="put it last"):
            Part("first", {}, works, runs=3)


@pytest.mark.parametrize("changed", ["kernel", "tree", "emulator", "guest", "place"])
def test_runs_under_other_conditions_are_repeated(tmp_path, changed):
    file = tmp_path / "x.jsonl"
    first = Faked()
    run(first, journal=Journal(file))
    conditions = replace(first.conditions_of, **{changed: "other"})
    second = Faked(conditions_of=conditions)
    run(second, journal=Journal(file))
    assert second.done == first.done
    third = Faked(conditions_of=conditions)
    run(third, journal=Journal(file))
    assert third.done == []


def test_quick_runs_are_none_of_the_full_ones(tmp_path):
    file = tmp_path / "x.jsonl"
    run(Faked(), Choice(quick=True), Journal(file))
    full = Faked()
    run(full, Choice(), Journal(file))
    assert len(full.done) == 12
    # What was asked for last is what is shown.
    assert not measure.shown(EXPERIMENT, file, SIDES, Choice()).quick


def test_what_is_shown_is_in_the_order_of_the_experiment(tmp_path):
    file = tmp_path / "x.jsonl"
    for part in ("third", "second", "first"):
        run(
            Faked(),
            Choice(parts=[part], sides=["third"] if part == "second" else []),
            Journal(file),
        )
    whole = run(Faked())
    shown = measure.shown(EXPERIMENT, file, SIDES, Choice())
    assert shown.figures == whole.figures
    only = measure.shown(EXPERIMENT, file, SIDES, Choice(parts=["first"], sides=["base"], runs=2))
    assert [figure.runs for figure in only.figures] == [
        {"base": [1108, 1129]},
        {"base": [1107, 1128]},
    ]
    with pytest.raises(MeasureError, match="no side 'off'") as error:
        measure.shown(EXPERIMENT, file, SIDES, Choice(sides=["off"]))
    assert set(error.value.todo.split(": ")[1].split("; ")) == {"base", "patched", "third"}
    with pytest.raises(MeasureError, match="no runs of x"):
        measure.shown(EXPERIMENT, tmp_path / "none.jsonl", SIDES, Choice())


def test_what_is_shown_is_what_the_last_bench_printed(tmp_path):
    """A bench whose runs are all in the file has been asked for last, whatever came between."""
    file = tmp_path / "x.jsonl"
    choice = Choice(parts=["first"])
    tried = Faked(conditions_of=replace(CONDITIONS, kernel="tried"))
    for between in ((tried, choice), (Faked(), Choice(quick=True)), (tried, Choice(runs=1))):
        wanted = run(Faked(), choice, Journal(file))
        assert measure.shown(EXPERIMENT, file, SIDES, choice).figures == wanted.figures
        run(*between, Journal(file))
        again = Faked()
        assert run(again, choice, Journal(file)).figures == wanted.figures
        assert again.done == []
        shown = measure.shown(EXPERIMENT, file, SIDES, choice)
        assert (shown.quick, shown.kernel) == (False, CONDITIONS.kernel)
        assert shown.figures == wanted.figures
    # Nothing is written again that counts already.
    size = file.stat().st_size
    run(Faked(), choice, Journal(file))
    assert file.stat().st_size == size


@pytest.mark.parametrize("changed", ["kernel", "image", "guest", "machine"])
def test_what_is_shown_is_of_one_image(tmp_path, capsys, changed):
    """A bench that was resumed on another kernel and killed again has runs of both."""
    file = tmp_path / "x.jsonl"
    run(Faked(), Choice(parts=["first"]), Journal(file))

    class Later(Faked):
        """The same, under other conditions and with other values."""

        def conditions(self, part, side, works):
            return replace(super().conditions(part, side, works), **{changed: "other"})

        def run(self, what, part, side, run):
            made = super().run(what, part, side, run)
            return {name: [{"n": "5"} for _ in rounds] for name, rounds in made.items()}

    # Of each side the first run only; then also the second one of the first side.
    for dies_after, base in ((2, [5]), (1, [5, 5])):
        with pytest.raises(MachineError):
            run(Later(dies_after=dies_after), Choice(parts=["first"]), Journal(file))
        capsys.readouterr()
        often, seldom = measure.shown(EXPERIMENT, file, SIDES, Choice()).figures
        assert often.runs == seldom.runs == {"base": base, "patched": [5]}
        said = capsys.readouterr().err
        assert "8 of " in said
        assert len(said.splitlines()) == 1
    assert measure.shown(EXPERIMENT, file, SIDES, Choice(runs=1)).figures[0].runs == {
        "base": [5],
        "patched": [5],
    }


@pytest.mark.parametrize("changed", ["kernel", "emulator", "guest", "common"])
def test_sides_that_cannot_be_compared_are_left_out_and_named(tmp_path, capsys, changed):
    """One of them was measured again, on an emulator or with packages that are newer."""
    file = tmp_path / "x.jsonl"
    run(Faked(), Choice(parts=["first", "third"]), Journal(file))
    newer = Faked(conditions_of=replace(CONDITIONS, **{changed: "other"}))
    run(newer, Choice(parts=["first"], sides=["patched"]), Journal(file))
    capsys.readouterr()
    shown = measure.shown(EXPERIMENT, file, SIDES, Choice())
    assert shown.parts == {"first": ["patched"], "third": ["base", "patched", "third"]}
    assert "left out: x, first, base: it was measured with another" in capsys.readouterr().err
    run(newer, Choice(parts=["first"]), Journal(file))
    shown = measure.shown(EXPERIMENT, file, SIDES, Choice(parts=["first"]))
    assert shown.parts == {"first": ["base", "patched"]}


def test_sides_of_another_machine_or_with_another_command_are_left_out(tmp_path):
    """The experiment has changed, and only one side has been measured again."""
    file = tmp_path / "x.jsonl"

    def changed(*works, **options):
        made = [Part("only", {"smp": 2, **options}, [*works])]
        return replace(EXPERIMENT, parts=lambda quick: made)

    class Digested(Faked):
        """Tells works by their commands, and machines by their options."""

        def conditions(self, part, side, works):
            commands = " ".join(work.command for work in works)
            found = super().conditions(part, side, works)
            return replace(found, work=commands, machine=str(part.options))

    work = Work("own", "true")
    seldom = Work("seldom", "true", runs=1)
    for later in (changed(work, seldom, smp=8), changed(replace(work, command="false"), seldom)):
        file.unlink(missing_ok=True)
        for experiment, sides in ((changed(work, seldom), []), (later, ["patched"])):
            choice = Choice(sides=sides, runs=2)
            measure.measure(SPACE, experiment, SIDES, choice, Journal(file), Digested())
        assert measure.shown(later, file, SIDES, Choice()).parts == {"only": ["patched"]}
    # The first run of each side has a work more than the others, which is no reason.
    measure.measure(SPACE, later, SIDES, Choice(runs=2), Journal(file), Digested())
    shown = measure.shown(later, file, SIDES, Choice())
    assert [figure.runs for figure in shown.figures] == [
        {"base": [1107, 1128], "patched": [1007, 1028]},
        {"base": [1107], "patched": [1007]},
    ]


def test_the_kernels_of_a_place_are_compared_although_each_has_its_own_name(tmp_path):
    file = tmp_path / "x.jsonl"
    for side in ("base", "patched"):
        runner = Faked("board", conditions_of=replace(CONDITIONS, kernel=side, place="board"))
        run(runner, Choice(parts=["first"], sides=[side]), Journal(file))
    assert measure.shown(EXPERIMENT, file, SIDES, Choice()).parts == {"first": ["base", "patched"]}


def test_another_command_is_another_condition(tmp_path, capsys):
    """Works that are not in all runs are none: those of early runs are compared with each other."""
    file = tmp_path / "x.jsonl"
    run(Faked(), Choice(parts=["first"]), Journal(file))
    measure.shown(EXPERIMENT, file, SIDES, Choice())
    assert capsys.readouterr().err == ""
    entries = list(map(json.loads, file.read_text().splitlines()))
    for entry in entries[1:3]:
        assert entry["run"] == 1
        entry["conditions"]["work"] = "other"
    file.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    shown = measure.shown(EXPERIMENT, file, SIDES, Choice()).figures
    assert [figure.runs["base"] for figure in shown] == [[1129, 1164, 1213], [1128]]
    assert "2 of 8 runs of x are left out" in capsys.readouterr().err


@pytest.fixture
def emulator(monkeypatch, tmp_path):
    """Return what the emulator says of a run, with a build and a guest that are made up."""
    space = replace(SPACE, root=tmp_path)
    guest = space.out / "guest" / "root.ext4"
    built = build.Build("patched-4k", tmp_path / "out", tmp_path / "tree", "6.12.1-1")
    for file, text in {
        built.image: "image",
        guest: "",
        runners.image.stamp(space): "stamp",
        runners.image.listing(space): "busybox 1:1.37.0-6\nlibc6 2.41-12\n",
        tmp_path / "module.c": "module",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(runners.build, "ensure", lambda space, name: built)
    monkeypatch.setattr(runners.image, "ensure", lambda space: guest)
    return lambda: runners.Emulator(space)


def test_a_kernel_that_is_built_anew_while_a_bench_runs_ends_it(tmp_path):
    """No figure is of two kernels; what was measured before stays, and can be gone on with."""
    file = tmp_path / "x.jsonl"

    class Rebuilt(Faked):
        """Has another kernel from the third run on."""

        def conditions(self, part, side, works):
            found = super().conditions(part, side, works)
            return replace(found, image="other") if len(self.done) > 2 else found

    with pytest.raises(MeasureError, match="first, base, run 2 of 4: the kernel"):
        run(Rebuilt(), Choice(parts=["first"]), Journal(file))
    assert [entry.conditions.image for entry in Journal(file).entries] == ["base-4k", "patched-4k"]


def test_all_kernels_are_built_before_the_first_run():
    class Broken(Faked):
        """Cannot make what the last side boots."""

        def conditions(self, part, side, works):
            if part.name == "third" and side == THIRD:
                raise PagewrightError("does not compile")
            return super().conditions(part, side, works)

    runner = Broken()
    with pytest.raises(PagewrightError, match="does not compile"):
        run(runner)
    assert runner.done == []


def test_the_commit_of_a_run_is_the_one_that_its_bench_began_with(monkeypatch, tmp_path):
    runner = Faked()
    monkeypatch.setattr(measure, "commit", lambda space: "def" if runner.done else "abc")
    assert run(runner, Choice(parts=["first"], runs=1)).commit == "abc"


def test_what_changes_while_kernels_are_built_ends_a_bench_before_its_first_run(monkeypatch):
    """The first kernel would be of one commit and the second one of another."""
    commits = iter(["abc", "def"])
    monkeypatch.setattr(measure, "commit", lambda space: next(commits))
    runner = Faked()
    with pytest.raises(MeasureError, match="commit abc became def while the kernels of x"):
        run(runner, Choice(parts=["first"]))
    assert runner.done == []


def test_conditions_tell_what_a_run_depends_on(emulator, tmp_path):
    works = [Work("w", "true", rounds=2)]
    part = Part("p", {"smp": 1, "modules_from": ("module.c",)}, works)

    (tmp_path / "module.c").write_text('#include <linux/module.h>\n#include "included.c"\n')
    (tmp_path / "included.c").write_text('#include "module.c"\n')

    def said(part=part, side=SIDES[1], works=works):
        return emulator().conditions(part, side, works)

    first = said()
    assert first == said()
    assert (first.kernel, first.tree, first.place) == ("6.12.1-1", "6.12.1-1", "")
    assert first.emulator.startswith("QEMU ")
    assert said(replace(part, options={**part.options, "smp": 2})).machine != first.machine
    assert said(side=replace(SIDES[1], append="x=1")).machine != first.machine
    for changed in (Work("w", "false", rounds=2), Work("w", "true"), Work("v", "true", rounds=2)):
        assert said(works=[changed]).work != first.work
    assert said(works=[replace(works[0], timeout=1)]) == first
    for file, field_ in (
        ("out/arch/arm64/boot/Image", "image"),
        (f"out/{SPACE.version}/guest/stamp", "guest"),
        (f"out/{SPACE.version}/guest/packages.txt", "guest"),
        ("included.c", "machine"),
        ("module.c", "machine"),
    ):
        before = said()
        (tmp_path / file).write_text("changed")
        # What makes the machine is in both of these.
        fields = ("machine", "common") if field_ == "machine" else (field_,)
        changed = {name: getattr(said(), name) for name in fields}
        assert said() == replace(before, **changed)
        assert all(getattr(before, name) != value for name, value in changed.items())


def test_conditions_are_those_of_the_kernel_that_is_booted(emulator, tmp_path):
    """Another process may build it anew; an edit that nobody has compiled is not in it."""
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "new.c").write_text("as it was compiled")
    Manifest("6.12.1-1", links=["new.c"]).write(tree, 0)
    part = Part("p", {}, [Work("w", "true")])
    one = emulator()
    first = one.conditions(part, SIDES[1], part.works)
    (tree / "new.c").write_text("edited since")
    assert one.conditions(part, SIDES[1], part.works) == first
    (tmp_path / "out/arch/arm64/boot/Image").write_text("built anew")
    assert one.conditions(part, SIDES[1], part.works).image != first.image


@pytest.mark.parametrize(
    "name",
    [
        *("qemu.yaml", "qemu.py", "options.py", "plugin.py", "count.c", "shared/qemu.c"),
        "count.py",
        "tlb.py",
    ],
)
def test_what_makes_the_machine_is_among_the_conditions(emulator, monkeypatch, tmp_path, name):
    works = [Work("w", "true")]
    part = Part("p", {"tlb": True} if name == "tlb.py" else {}, works)
    folder = shutil.copytree(Path(runners.count.__file__).parent, tmp_path / "machine")
    for module in (runners.count, runners.count.plugin, runners.tlb):
        monkeypatch.setattr(module, "__file__", str(folder / Path(module.__file__).name))
    before = emulator().conditions(part, SIDES[1], works)
    (folder / name).write_text("changed")
    after = emulator().conditions(part, SIDES[1], works)
    assert after == replace(before, machine=after.machine, common=after.common)
    assert after.machine != before.machine
    assert after.common != before.common


def test_what_features_add_to_the_parameters_of_emulated_machines_is_a_condition(
    emulator, monkeypatch
):
    features = [SPACE.features()[0]]
    monkeypatch.setattr(workspace.Workspace, "features", lambda space: features)
    part = Part("p", {}, [Work("w", "true")])
    before = emulator().conditions(part, SIDES[1], part.works)
    features[0] = replace(features[0], boot_emulated="feature=slowly")
    after = emulator().conditions(part, SIDES[1], part.works)
    assert after == replace(before, machine=after.machine, common=after.common)
    assert after.machine != before.machine
    assert after.common != before.common


def test_packages_of_the_guest_are_known_if_they_are_listed(emulator, tmp_path):
    assert emulator().packages() == {"busybox": "1:1.37.0-6", "libc6": "2.41-12"}
    (tmp_path / "out" / SPACE.version / "guest" / "packages.txt").unlink()
    assert emulator().packages() == {}


def test_the_file_has_each_round_and_what_it_was_measured_on(tmp_path):
    file = tmp_path / "x.jsonl"
    run(Faked(), Choice(parts=["first"], runs=1), Journal(file))
    guest, *entries = map(json.loads, file.read_text().splitlines())
    assert guest == {"guest": "guest", "packages": {"busybox": "1.37"}}
    assert [entry["side"]["label"] for entry in entries] == ["base", "patched"]
    assert [values["n"] for values in entries[0]["works"]["often"]] == ["1107", "1108", "1109"]
    assert entries[0]["conditions"]["tree"] == "key"
    assert entries[0]["options"] == {"smp": 2}
    assert entries[0]["commit"] == "abc+"
    assert (entries[0]["run"], entries[0]["quick"]) == (1, False)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]+\+00:00", entries[0]["time"])


def test_a_line_that_is_no_run_is_an_error_that_names_it(tmp_path):
    file = tmp_path / "x.jsonl"
    run(Faked(), Choice(parts=["second"]), Journal(file))
    file.write_text(file.read_text() + "{}\n")
    with pytest.raises(MeasureError, match=r"line 3 of .*x\.jsonl"):
        Journal(file)


def test_a_file_that_is_moved_away_while_a_bench_runs_is_begun_anew(tmp_path):
    file = tmp_path / "x.jsonl"

    class Moved(Faked):
        """Has its file moved before the third run."""

        def run(self, what, part, side, run):
            if len(self.done) == 2:
                file.rename(tmp_path / "kept.jsonl")
            return super().run(what, part, side, run)

    run(Moved(), Choice(parts=["third"]), Journal(file))
    assert [entry.side.label for entry in Journal(file).entries] == ["third"]
    assert len(Journal(tmp_path / "kept.jsonl").entries) == 2


def test_the_file_of_an_earlier_bench_is_kept(tmp_path):
    file = tmp_path / "x.jsonl"
    assert set_aside(file) is None
    for text in ("one\n", "two\n"):
        file.write_text(text)
        set_aside(file)
    assert not file.exists()
    assert (tmp_path / "x.1.jsonl").read_text() == "one\n"
    assert (tmp_path / "x.2.jsonl").read_text() == "two\n"


# --- The command --------------------------------------------------------------------


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """Call `pagewright bench` with a runner; the space and the experiment are ours."""
    monkeypatch.setattr(command.workspace, "find", lambda: replace(SPACE, root=tmp_path))
    monkeypatch.setattr(catalogue, "load", lambda space, name: EXPERIMENT)

    def call(runner, *words):
        monkeypatch.setattr(runners, "Emulator", lambda space: runner)
        result = CliRunner().invoke(app, ["bench", *words])
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.output

    return call


def test_the_command_resumes_only_if_told_to(bench, tmp_path):
    folder = tmp_path / "out" / SPACE.version / "bench"
    with pytest.raises(MachineError) as error:
        bench(Faked(dies_after=5), "x")
    assert "bench x --resume" in error.value.todo
    killed = (folder / "x.jsonl").read_text()
    rest = Faked()
    resumed = bench(rest, "x", "--resume")
    assert len(rest.done) == 12 - 5
    anew = Faked()
    whole = bench(anew, "x")
    assert len(anew.done) == 12
    assert resumed.split("│", 1)[1:] == whole.split("│", 1)[1:]
    assert (folder / "x.1.jsonl").read_text().startswith(killed)
    shown = bench(Faked(dies_after=0), "x", "--show")
    assert shown.split("commit")[0].split("│", 1)[1] in whole


# Runs `pagewright` with the files of benches in a folder of its own: those of this clone are its
# user's, whose figures the report shows.
ELSEWHERE = """
import sys
from pathlib import Path

from pagewright.cli import bench, main

folder, journal = Path(sys.argv.pop(1)), bench._journal
bench._journal = lambda file, *rest: journal(folder / file.name, *rest)
main.app()
"""


@pytest.mark.full
@pytest.mark.skipif("config.getoption('lg_env')", reason="counts instructions in QEMU")
def test_a_bench_whose_process_is_killed_goes_on_and_prints_the_same_table(tmp_path):
    """Nothing is faked: the machine that runs when the signal comes is lost, and its run."""

    def started(folder, *words):
        """Start the bench, which has two runs."""
        arguments = [sys.executable, "-c", ELSEWHERE, tmp_path / folder]
        arguments += ["bench", "atomic-populate", "--quick", *words]
        return subprocess.Popen(
            arguments, cwd=SPACE.root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def runs(folder):
        """Return the lines of runs; one is of the guest's packages."""
        file = tmp_path / folder / "atomic-populate.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [line for line in lines if '"experiment": ' in line]

    def faults(text):
        """Return the rows of page faults, which repeat exactly; those of instructions do not."""
        return [line.split() for line in text.splitlines() if "│ faults " in line]

    with started("whole") as whole:
        expected = faults(whole.communicate(timeout=600)[0])
    assert len(expected) > 10
    assert len(runs("whole")) == 2
    with started("killed") as killed:
        while not runs("killed") and killed.poll() is None:
            time.sleep(0.1)
        killed.kill()
    assert killed.returncode == -signal.SIGKILL
    [first] = runs("killed")
    assert first.endswith("\n")
    with started("killed", "--resume") as resumed:
        assert faults(resumed.communicate(timeout=600)[0]) == expected
    assert len(runs("killed")) == 2
    assert runs("killed")[0] == first


@pytest.mark.parametrize("option", ["--json", "--html", "--select=x --svg"])
def test_a_file_that_cannot_be_written_is_named_before_anything_runs(bench, tmp_path, option):
    one = Faked()
    (tmp_path / "file").touch()
    for file in (tmp_path / "nowhere" / "x", tmp_path / "file" / "x", tmp_path):
        with pytest.raises(PagewrightError, match=f"{file} cannot be written"):
            bench(one, "x", *option.split(), str(file))
    assert one.done == []


def test_whatever_ends_a_bench_the_command_that_goes_on_with_it_is_told(bench):
    """It is about the same runs: without --quick it would begin the long ones."""

    class Interrupted(Faked):
        """Does two runs."""

        def run(self, what, part, side, run):
            if len(self.done) == 2:
                raise KeyboardInterrupt
            return super().run(what, part, side, run)

    words = ["x", "--quick", "--part", "third"]
    command = f"`pagewright bench {' '.join(words)} --resume` goes on with them"
    with pytest.raises(MachineError) as error:
        bench(Faked(dies_after=1), *words)
    assert command in error.value.todo
    assert command in bench(Interrupted(), *words)


def test_the_file_stays_where_it_is_until_there_is_a_run_to_be_written(bench, tmp_path):
    """A bench that fails before its first run has ended takes no figures from the report."""
    folder = tmp_path / "out" / SPACE.version / "bench"
    bench(Faked(), "x", "--part", "second")
    before = (folder / "x.jsonl").read_text()
    with pytest.raises(MachineError):
        bench(Faked(dies_after=0), "x")
    assert [file.name for file in folder.glob("*.jsonl")] == ["x.jsonl"]
    assert (folder / "x.jsonl").read_text() == before
    said = bench(Faked(), "x", "--part", "second")
    assert (folder / "x.1.jsonl").read_text() == before
    # What --resume goes on with is the new file.
    assert "x.1.jsonl" in said
    assert "--resume" not in said


def test_all_experiments_are_tried_on_a_place_that_can_run_some(bench, monkeypatch):
    """The first one is not, and nothing is there to be printed of it."""

    class Some(Faked):
        """Can run what a set of parts has."""

        parts = ("second",)

        def left_out(self, part, side):
            return "" if part.name in self.parts else "the place does not have it"

    def load(space, name):
        wanted = "second" if name == "two" else "first"
        kept = [part for part in parts(False) if part.name == wanted]
        return replace(EXPERIMENT, name=name, parts=lambda quick: kept)

    monkeypatch.setattr(catalogue, "experiments", lambda space: ["one", "two", "three"])
    monkeypatch.setattr(catalogue, "load", load)
    runner = Some()
    said = bench(runner)
    assert runner.done == [("second", "third", 1)]
    assert "nothing of one can be run here\n" in said
    assert "nothing of three can be run here\n" in said
    with pytest.raises(MeasureError, match="nothing of one"):
        bench(runner, "one")
    runner.parts = ()
    with pytest.raises(MeasureError, match="nothing of any experiment"):
        bench(runner)


def test_a_wrong_part_leaves_the_file_where_it_is(bench, tmp_path):
    bench(Faked(), "x", "--part", "second")
    with pytest.raises(MeasureError, match="no part 'nonsense'"):
        bench(Faked(), "x", "--part", "nonsense")
    assert [f.name for f in (tmp_path / "out" / SPACE.version / "bench").glob("*.jsonl")] == [
        "x.jsonl"
    ]


def test_a_wrong_selection_is_refused_before_anything_runs(bench):
    runner = Faked()
    with pytest.raises(MeasureError, match="is no regular expression"):
        bench(runner, "x", "--svg", "x.svg", "--select", "(")
    assert runner.done == []


@pytest.mark.parametrize("words", [["--svg", "x.svg"], ["--select", "x"]])
def test_a_plot_without_a_selection_is_refused_before_anything_runs(bench, words):
    runner = Faked()
    with pytest.raises(PagewrightError, match="--svg draws the figures that --select names"):
        bench(runner, "x", *words)
    assert runner.done == []


def test_list_tells_parts_sides_and_boots():
    text = CliRunner().invoke(app, ["bench", "list"]).output
    assert "atomic-populate (atomic-write-fault): What the first touch" in text
    assert "--part populate: base; patched; switched off | with --quick: base; patched\n" in text
    assert "without; off; patched (13 runs) | with --quick: base; patched" in text
    assert "108 boots, 5 with --quick" in text


# --- Places ---------------------------------------------------------------------------


class Board(Machine):
    """A place with two CPUs and 1 GiB of memory."""

    def __init__(self, build="", says=()):
        """Run a build, and answer some commands in another way."""
        self.build = build
        self.says = dict(says)
        self.fixed = True
        self.ran = []

    def check(self, command, timeout=60):
        """Answer as a board."""
        self.ran.append(command)
        known = {
            "uname -r -v": "6.12.1 #1",
            "nproc": "2",
            "cat /proc/meminfo": "MemTotal: 1000000 kB",
            "cat /proc/cmdline": "root=/dev/vda rodata=on",
            "sha256sum /sys/kernel/notes": "abc  /sys/kernel/notes",
            **self.says,
        }
        return known.get(command, "n=5")

    def warnings(self):
        """Return none."""
        return ""


def test_a_place_runs_what_it_can_and_the_rest_is_named(capfd, tmp_path):
    works = [Work("w", "work")]
    some = [
        Part("can", {"smp": 2}, works, also=(Side("fixed", "patched-4k", "rodata=on"),)),
        Part("counts", {"icount": True, "count": True}, works),
        Part("module", {"modules_from": ("x.c",)}, works),
        Part("large", {"memory": "64G", "smp": 8}, works),
        Part("off", {}, works, (Side("off", "patched-4k", "feature=0"),)),
    ]
    experiment = replace(EXPERIMENT, parts=lambda quick: some)
    board = Board()
    file = tmp_path / "x.jsonl"
    where = runners.Place("shelf", board)
    made = measure.measure(SPACE, experiment, SIDES, Choice(runs=2), Journal(file), where)
    said = capfd.readouterr().err
    for line in (
        "can, base: the place runs patched-4k, not base-4k",
        "counts, patched: the place does not have count, icount=True",
        "module, patched: the place does not have modules_from",
        "large, patched: the place does not have smp=8, memory=64G",
        "off, off: the place does not have append=feature=0",
    ):
        assert said.count(f"left out: x, {line}\n") == 1, line
    assert board.ran.count("work") == 4
    assert [figure.runs for figure in made.figures] == [{"patched": [5, 5], "fixed": [5, 5]}]
    assert "the place shelf" in report.origin(made)
    entries = Journal(file).entries
    assert {entry.conditions.place for entry in entries} == {"shelf"}
    assert {entry.conditions.kernel for entry in entries} == {"6.12.1 #1"}
    with pytest.raises(MeasureError, match="nothing of x"):
        measure.measure(SPACE, experiment, SIDES, Choice(parts=["off"]), None, where)
    other = runners.Place("shelf", Board("base-4k"))
    assert "runs base-4k" in other.left_out(some[0], SIDES[1])


@pytest.mark.parametrize(
    ("command", "compared"),
    [("sha256sum /sys/kernel/notes", True), ("cat /proc/cmdline", True), ("nproc", False)],
)
def test_what_a_place_says_of_itself_is_a_condition(command, compared):
    """Builds of one version have one name, and a place may have been booted in another way.

    With other CPUs no side of it can be compared with what was measured before.
    """
    part = Part("p", {"smp": 2}, [Work("w", "true")])
    first, again, other = (
        runners.Place("shelf", Board(says=says)).conditions(part, SIDES[1], part.works)
        for says in ({}, {}, {command: "4"})
    )
    assert first == again != other
    assert (first.common == other.common) == compared


def test_the_place_of_an_environment_is_connected_to(monkeypatch, tmp_path):
    seen = []

    class Connected:
        def __init__(self, options, env):
            seen.append((options, env))

        def __enter__(self):
            return Board()

        def __exit__(self, *error):
            pass

    monkeypatch.setattr(runners, "boot", Connected)
    env = tmp_path / "board.yaml"
    env.write_text("targets: {}\n")
    with runners.runner(SPACE, env) as where:
        assert where.place == "board"
    assert seen == [(MachineOptions(runners.Path(), runners.Path()), env)]
    # Another board with the same kernel, whose file has the same name in another folder.
    other = tmp_path / "other" / "board.yaml"
    other.parent.mkdir()
    other.write_text("targets: {main: {}}\n")
    part = Part("p", {}, [Work("w", "true")])
    said = []
    for file in (env, env, other):
        with runners.runner(SPACE, file) as where:
            said.append(where.conditions(part, SIDES[1], part.works))
    assert said[0] == said[1] != said[2]


# --- What tables say of their origin ---------------------------------------------------


def test_the_line_below_says_quick_and_what_prints_it():
    assert "quick" not in report.origin(run(Faked(), Choice(parts=["first"])))
    made = run(Faked(), Choice(quick=True, parts=["first"]))
    assert report.origin(made).startswith("quick: ")
    assert "`pagewright bench x --quick --part first` prints" in report.origin(made)
    shown = Choice(sides=["voluntary, patched"], runs=3).command(EXPERIMENT)
    assert shown == "pagewright bench x --side 'voluntary, patched' --runs 3"


def test_off_and_on_names_the_command_that_prints_it(monkeypatch):
    monkeypatch.setattr(measure, "experiments", lambda space: ["x"])
    monkeypatch.setattr(measure, "load", lambda space, name: EXPERIMENT)
    runner = Faked()
    monkeypatch.setattr(measure, "Emulator", lambda space: runner)
    seen = []
    (made,) = measure.quick_off_and_on(SPACE, "pagewright demo", seen.append)
    assert seen == [made]
    assert [side.label for side in made.sides] == ["off", "on"]
    assert "`pagewright demo` prints" in report.origin(made)
    assert "quick: " in report.origin(made)


def test_values_that_figures_cannot_be_made_of_are_an_error_with_all_of_them():
    runner = Faked()
    runner.run = lambda what, part, side, run: {"w": [{"other": "7"}]}
    with pytest.raises(MeasureError, match="w on base did not print") as error:
        run(runner)
    assert "'other': '7'" in error.value.details
