"""Figures: parsed as printed, compared as measured, drawn as asked."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from rich.console import Console

from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.results import measure, report
from pagewright.results.measure import Experiment, Figure, Part, Report, Side, Work

SPACE = workspace.find()


@pytest.fixture
def sample() -> Report:
    sides = [Side("base", "base-4k"), Side("patched", "patched-4k")]
    figures = [
        Figure("faults", "ldadd", "faults", {"base": 32768.0, "patched": 16384.0}),
        Figure("faults", "none", "faults", {"base": 0.0, "patched": 5.0}),
        Figure("cost", "ldadd", "instructions", {"base": 12.345, "patched": 12.345}),
    ]
    return Report("x", "y", "A <title>", "abc", "6.12.1", "QEMU 10", "smp=1", sides, figures)


def test_values_are_the_key_value_lines():
    assert measure.parse_values("a=1\nnoise\nb = x=y\n") == {"a": "1", "b": "x=y"}


def test_median_of_each_number_counts():
    runs = [{"a": "3", "k": "x"}, {"a": "10", "k": "y"}, {"a": "4", "k": "z"}]
    assert measure.medians(runs) == {"a": "4", "k": "z"}


def test_table_shows_both_sides_and_the_change(sample):
    console = Console(record=True, width=120)
    report.print_tables(sample, console)
    text = console.export_text()
    assert "32,768" in text
    assert "16,384" in text
    assert "-50.0 %" in text
    assert "12.35" in text or "12.34" in text
    assert "pagewright bench x" in text


def test_change_from_nothing_is_not_a_percentage(sample):
    assert report.change(sample.figures[1], ["base", "patched"]) == ""
    assert report.change(sample.figures[2], ["base", "patched"]) == "="


def test_json_holds_what_is_needed_to_repeat(sample):
    data = json.loads(sample.to_json())
    assert data["commit"] == "abc"
    assert data["emulator"] == "QEMU 10"
    assert [side["build"] for side in data["sides"]] == ["base-4k", "patched-4k"]
    assert data["figures"][0]["values"] == {"base": 32768.0, "patched": 16384.0}


def test_html_is_complete_and_escaped(sample):
    page = report.to_html(sample)
    assert "A &lt;title&gt;" in page
    assert page.count("<svg") == 2
    assert not re.search(r"<(script|link|img)\b|@import", page)


def test_plot_draws_the_selection_and_the_same_twice(sample):
    assert report.plot(sample, "^faults: ldadd") == report.plot(sample, "^faults: ldadd")
    with pytest.raises(PagewrightError, match="one unit"):
        report.plot(sample, "ldadd")
    with pytest.raises(PagewrightError, match="0 figures"):
        report.plot(sample, "nothing")


def test_tables_have_columns_of_their_own(sample):
    sample.figures.append(Figure("other", "x", "kB", {"base": 4.0, "third": 3.0, "patched": 2.0}))
    console = Console(record=True, width=120)
    report.print_tables(sample, console)
    first, other = console.export_text().split("other")
    assert "third" not in first
    assert "third" in other
    assert report.to_html(sample).count("third") == 2
    with pytest.raises(PagewrightError, match="same sides"):
        report.plot(replace(sample, figures=[sample.figures[0], sample.figures[-1]]), "")


@pytest.mark.parametrize("only_these", [False, True])
def test_parts_run_on_their_own_sides_or_on_those_asked_for(monkeypatch, only_these):
    ran = []

    def run(space, what, part, side):
        ran.append((side.label, part.works[0].name))
        return {work.name: {"n": "1"} for work in part.works}

    monkeypatch.setattr(measure, "_run", run)
    one, two = Work("one", "true"), Work("two", "true")
    third = Side("third", "base-4k", "rodata=on")
    parts = [Part({}, [one]), Part({"memory": "2G"}, [one, two], (third,))]
    seen = {}
    experiment = Experiment("x", "y", "z", lambda quick: parts, lambda v: seen.update(v) or [])
    sides = [Side("a", "base-4k"), Side("b", "base-4k")]
    made = measure.measure(SPACE, experiment, sides, quick=True, only_these=only_these)
    own = [] if only_these else [("third", "one")]
    assert ran == [("a", "one"), ("b", "one"), *own]
    assert [side.label for side in made.sides] == [label for label, _ in ran]
    assert list(seen["b"]) == ["one"]
    assert only_these or list(seen["third"]) == ["one", "two"]


def test_every_experiment_loads_and_names_its_feature():
    names = measure.experiments(SPACE)
    assert names
    for name in names:
        experiment = measure.load(SPACE, name)
        assert experiment.name == name
        assert SPACE.feature(experiment.feature)
        quick, whole = ([w for p in experiment.parts(q) for w in p.works] for q in (True, False))
        assert len(quick) <= len(whole)


def test_unknown_experiment_lists_the_known_ones():
    with pytest.raises(PagewrightError, match="no experiment") as error:
        measure.load(SPACE, "no-such-thing")
    assert "atomic-populate" in error.value.todo
