"""Figures: compared as measured, shown as tables, drawn as asked."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import documents
import pytest
from rich.console import Console

from pagewright.host.errors import PagewrightError
from pagewright.results import pages, plots, record, report
from pagewright.results.experiment import Side
from pagewright.results.figures import Figure, Report
from pagewright.results.statistics import difference

SIDES = [Side("base", "base-4k"), Side("patched", "patched-4k")]
THIRD = Side("third", "base-4k", "rodata=on")


def table(made):
    console = Console(record=True, width=200, file=io.StringIO())
    report.print_tables(made, console)
    return console.export_text()


@pytest.fixture
def sample() -> Report:
    figures = [
        Figure("faults", "ldadd", "faults", {"base": [32768.0], "patched": [16384.0]}),
        Figure("faults", "none", "faults", {"base": [0.0], "patched": [5.0]}),
        Figure("cost", "ldadd", "instructions", {"base": [12.345], "patched": [12.345]}),
    ]
    sides = [SIDES[0], THIRD, SIDES[1]]
    made = Report(
        "x",
        "y",
        "A <title>",
        "pagewright bench x",
        False,
        sides,
    )
    made.figures = figures
    made.kernels = {"part": ["6.12.1"]}
    made.emulators = {"part": ["QEMU 10"]}
    made.machines = {"part": ["smp=1"]}
    made.commits = {"part": ["abc"]}
    return made


def test_table_shows_both_sides_and_the_difference(sample):
    text = table(sample)
    assert "32,768" in text
    assert "-16,384 (-50.0\N{NO-BREAK SPACE}%)" in text
    assert "12.35" in text or "12.34" in text
    assert "pagewright bench x" in text
    assert "third" not in text
    # A column of them is for sides that were run several times.
    assert "runs" not in text
    assert "1 boot of each side, linux 6.12.1" in text


def test_heads_leave_out_the_build_that_all_sides_of_a_table_have(sample):
    labels = ["16k, without", "16k, patched"]
    sample.sides = [Side(label, "patched-16k") for label in labels]
    sample.figures = [Figure("g", "row", "unit", {label: [1.0] for label in labels})]
    assert report.sheets(sample)[0].heads[2:] == ["without", "patched", "patched - without"]


def test_the_error_is_that_of_the_difference_of_means():
    found = difference([8, 10, 12], [18, 22])
    assert found.absolute == -10
    # sqrt(4 / 3 + 8 / 2)
    assert found.error == pytest.approx(2.3094, rel=1e-4)
    assert found.percent == -50
    assert found.percent_error == pytest.approx(11.547, rel=1e-4)
    assert difference([8, 12], [20]).error is None


def test_a_table_of_several_runs_has_errors_and_their_number(sample):
    sample.figures = [
        Figure("g", "row", "unit", {"base": [200.0, 202, 204], "patched": [101.0, 103]})
    ]
    text = table(sample).replace("\N{NO-BREAK SPACE}", " ")
    assert "-100 ± 1.53 (-49.5 ± 0.8 %)" in text
    assert "│ 3, 2 │" in text
    assert "2 to 3 boots of each side" in text


def test_only_a_side_that_was_run_once_is_without_an_error():
    """In README.md, as in the terminal, one that rounds to 0.0 is not left out."""
    for runs, error in (([50.0, 50.01], " ± 0.0"), ([50.0, 50.0], " ± 0.0"), ([50.0], "")):
        figure = Figure("g", "row", "unit", {"base": [100.0, 100.01], "patched": runs})
        assert record.percent(figure, "patched", "base") == f"-50.0{error} %"
        printed = report.change(runs, figure.runs["base"]).replace("\N{NO-BREAK SPACE}", " ")
        assert f"(-50.0{error} %)" in printed


def test_difference_from_nothing_is_not_a_percentage():
    assert report.change([5.0], [0.0]) == "+5"
    assert report.change([12.3], [12.3]) == "="
    assert report.change([3.0, 5.0], [4.0, 4.0]) != "="


def test_more_than_a_negative_number_is_a_positive_percentage():
    found = difference([-50, -50], [-90, -110])
    assert (found.absolute, found.percent) == (50, 50)
    assert found.percent_error == pytest.approx(10)
    assert "+150 (+150.0" in report.change([50], [-100])


def test_a_yardstick_is_what_the_others_are_compared_with(sample):
    sample.yardstick = "third"
    runs = {"base": [100.0], "third": [200.0], "patched": [300.0]}
    sample.figures.append(Figure("other", "row", "unit", runs))
    sheets = report.sheets(sample)
    assert sheets[0].heads[-1] == "patched - base"
    assert sheets[-1].heads[-2:] == ["base - third", "patched - third"]
    assert "+100 (+50.0" in sheets[-1].rows[0][-1]


def test_a_half_is_rounded_up_in_all_tables():
    assert report.number(147024.5) == record.short(147024.5) == "147,025"
    assert report.number(-147024.5) == "-147,024"


def test_what_rounds_to_zero_has_no_sign():
    """In tables in the terminal, in pages and in README.md; what does not keeps its sign."""
    assert report.number(-0.004) == "0.00"
    assert report.number(-0.006) == "-0.01"
    assert record.short(-0.04) == "0.0"
    assert record.short(-0.06) == "-0.1"
    for reference in (50.001, 49.999):
        assert report.change([50.0], [reference]) == "0.00 (0.0\N{NO-BREAK SPACE}%)"
        runs = {"base": [reference], "patched": [50.0]}
        assert record.percent(Figure("g", "row", "unit", runs), "patched", "base") == "0.0 %"
    # Two sides with the same mean whose runs differ.
    assert report.change([3.0, 5.0], [3.0, 5.0]).startswith("0\N{NO-BREAK SPACE}±")
    assert report.change([49.9], [50.0]) == "-0.10 (-0.2\N{NO-BREAK SPACE}%)"
    assert report.change([0.1], [0.0]) == "+0.10"


def test_json_holds_what_is_needed_to_repeat(sample):
    data = json.loads(sample.to_json())
    assert data["commit"] == "abc"
    assert data["emulator"] == "QEMU 10"
    assert [side["build"] for side in data["sides"]] == ["base-4k", "base-4k", "patched-4k"]
    assert data["figures"][0]["values"] == {"base": 32768.0, "patched": 16384.0}
    assert data["figures"][0]["runs"] == {"base": [32768.0], "patched": [16384.0]}


def test_the_keys_of_json_are_those_that_are_documented(sample):
    data = json.loads(sample.to_json())
    of_all = set(data).union(*data["sides"], *data["figures"])
    assert of_all == set(documents.names("benchmarks.md", "Figures as JSON"))


def test_html_is_complete_and_escaped(sample):
    page = pages.to_html(sample)
    assert "A &lt;title&gt;" in page
    assert page.count("<svg") == 2
    assert not re.search(r"<(script|link|img)\b|@import", page)


def test_plot_draws_the_selection_and_the_same_twice(sample):
    assert plots.plot(sample, "^faults: ldadd") == plots.plot(sample, "^faults: ldadd")
    with pytest.raises(PagewrightError, match="one unit"):
        plots.plot(sample, "ldadd")
    with pytest.raises(PagewrightError, match="0 figures"):
        plots.plot(sample, "nothing")
    with pytest.raises(PagewrightError, match=r"'\(' is no regular expression"):
        plots.plot(sample, "(")


def test_tables_have_columns_of_their_own(sample):
    runs = {"base": [4.0], "third": [3.0], "patched": [2.0]}
    sample.figures.append(Figure("other", "x", "kB", runs))
    first, other = table(sample).split("other")
    assert "third" not in first
    assert "third" in other
    # The heads of its column and of its difference, and the plot's legend.
    assert pages.to_html(sample).count("third") >= 2
    with pytest.raises(PagewrightError, match="same sides"):
        plots.plot(replace(sample, figures=[sample.figures[0], sample.figures[-1]]), "")
