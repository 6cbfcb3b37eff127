"""`pagewright demo`: a line for each feature, made of what was measured; the tables in files."""

from __future__ import annotations

import pytest

from pagewright.cli import demo
from pagewright.host import workspace
from pagewright.host.workspace import Workspace
from pagewright.results import experiment
from pagewright.results.experiment import Side
from pagewright.results.figures import Figure, Report

SPACE = workspace.find()

# What experiments measure, off and on: by experiment, then group and name.
MEASURED: dict[str, dict[tuple[str, str], tuple[float, float]]] = {
    "atomic-populate": {
        ("page faults", "ldadd, 64 MiB, THP off"): (32768, 16384),
        ("page faults", "ldadd, 64 MiB, THP on"): (16416, 32),
        ("kernel instructions per page", "ldadd, 64 MiB, THP off"): (4600, 3220),
    },
    "linear-map": {
        ("boot of a guest with 8 GiB", "MemTotal"): (8_000_000, 8_016_384),
        ("boot of a guest with 8 GiB", "until init runs"): (1000, 900),
    },
    "hugetlb-vmemmap": {
        ("2 GiB in 6 GiB: hugepages after the step", "allocate 1 GiB"): (2, 2),
        ("2 GiB in 6 GiB: saved, says the kernel", "allocate 1 GiB"): (0, 31.98),
        ("2 GiB in 6 GiB: saved, says the kernel", "demote to 2 MiB"): (0, 24),
    },
    "percpu-local": {
        ("instructions, preempt=full, static variable, in a function of its own", "inc 8"): (23, 6),
        (
            "instructions, preempt=full, static variable, in a function of its own",
            "cmpxchg 8",
        ): (23, 5),
    },
}


@pytest.fixture
def reports() -> list[Report]:
    found = []
    for name, figures in MEASURED.items():
        measured = experiment.load(SPACE, name)
        report = Report(
            *(name, measured.feature, measured.title, "pagewright demo", True),
            [Side("off", "patched-4k"), Side("on", "patched-4k")],
        )
        report.figures = [
            Figure(group, row, "units", {"off": [off], "on": [on]})
            for (group, row), (off, on) in figures.items()
        ]
        found.append(report)
    return found


def test_each_feature_has_a_line_made_of_its_figures(reports):
    lines = demo.summaries(SPACE, reports)
    assert [line.split(":")[0] for line in lines] == [f.name for f in SPACE.features()]
    said = dict(line.split(": ", 1) for line in lines)
    assert said["linear-map"] == "16 MiB of 8 GiB back, 10 % fewer instructions until init"
    assert "16,384 page faults instead of 32,768" in said["atomic-write-fault"]
    assert "30 % fewer instructions" in said["atomic-write-fault"]
    assert said["hugetlb-vmemmap"].startswith("16 MiB back of each GiB in hugepages of 1 GiB, 12")
    assert "this_cpu_inc() takes 6 instructions instead of 23" in said["percpu-local"]


def test_a_feature_without_figures_names_those_that_build_on_it(reports):
    lines = demo.summaries(SPACE, reports)
    assert "cpu-pause: nothing to count by itself; hugetlb-vmemmap builds on it" in lines


def test_the_tables_are_in_files(tmp_path, reports):
    space = Workspace(tmp_path, tmp_path)
    text, page = demo.write_tables(space, ["one line"], reports)
    assert (text, page) == ("out/6.12/demo.txt", "out/6.12/demo.html")
    for file in (text, page):
        written = (tmp_path / file).read_text()
        assert "one line" in written
        assert "until init runs" in written
        assert "8,016,384" in written
