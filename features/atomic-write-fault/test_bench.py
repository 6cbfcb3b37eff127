"""The experiment measures what it says: one image, the feature off and on."""

from __future__ import annotations

import pytest

from pagewright.host import workspace
from pagewright.results import measure
from pagewright.results.experiment import load, off_and_on
from pagewright.results.plan import Choice

SPACE = workspace.find()

pytestmark = pytest.mark.skipif("config.getoption('lg_env')", reason="counts instructions in QEMU")


def test_quick_experiment_shows_what_the_feature_changes(subtests):
    experiment = load(SPACE, "atomic-populate")
    sides = off_and_on([SPACE.feature(experiment.feature)])
    report = measure.measure(SPACE, experiment, sides, Choice(quick=True))
    values = {(f.group, f.name): (f.values["off"], f.values["on"]) for f in report.figures}
    for kind in ("ldxr", "ldadd"):
        with subtests.test(kind=kind):
            assert values["page faults", f"{kind}, 64 MiB, THP off"] == (32768, 16384)
            assert values["page faults", f"{kind}, 64 MiB, THP on"] == (16416, 32)
            group = "entries invalidated by copy-on-write, 64 MiB, THP off"
            off, on = values[group, kind]
            # Each page of the area once; a few are of the program itself.
            assert 16384 <= off < 16384 + 100
            assert on < 100
            cost = "kernel instructions per page"
            assert (
                values[cost, f"{kind}, 64 MiB, THP off"][1]
                < values[cost, f"{kind}, 64 MiB, THP off"][0]
            )
    with subtests.test("stores and loads keep their faults"):
        for kind in ("store", "load"):
            assert values["page faults", f"{kind}, 64 MiB, THP off"] == (16384, 16384)
            assert values["page faults", f"{kind}, 64 MiB, THP on"] == (32, 32)
