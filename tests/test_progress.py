"""Without a terminal no step is silent: it starts with a line, says how far it is, and ends."""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace

import pytest

from pagewright.host import progress
from pagewright.host.progress import Bar


def test_a_step_says_when_it_starts_and_how_long_it_took(capsys):
    with Bar("build patched-4k", 1245):
        assert capsys.readouterr().err == "build patched-4k\n"
    assert re.fullmatch(r"build patched-4k: \d+ s\n", capsys.readouterr().err)


def test_a_step_that_runs_on_says_how_far_it_is(monkeypatch):
    """The clock goes on by a minute each time it is read; the step ends after three lines."""
    now = iter(range(0, 100_000, 60))
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: float(next(now))))
    lines: list[str] = []
    enough = threading.Event()

    def say(text: str) -> None:
        lines.append(text)
        if len(lines) == 4:
            enough.set()

    monkeypatch.setattr(progress, "say", say)
    bar = Bar("build patched-4k", 1245, heartbeat=0.001)
    bar.to(512)
    with bar:
        assert enough.wait(30)
    assert lines[0] == "build patched-4k"
    assert lines[2] == "build patched-4k: 512 of 1245, 2 min"
    assert lines[3] == "build patched-4k: 512 of 1245, 3 min"


def test_a_step_without_units_tells_its_time_alone():
    bar = Bar("install packages", None)
    assert bar.status(75) == "install packages: 75 s"
    assert bar.status(185) == "install packages: 3 min"


def test_a_step_that_failed_does_not_claim_to_have_ended(capsys):
    with pytest.raises(ValueError, match="broken"), Bar("step", None):
        raise ValueError("broken")
    assert capsys.readouterr().err == "step\n"


def test_nothing_beats_after_the_step():
    with Bar("step", None, heartbeat=0.001):
        assert progress.HEARTBEAT in [thread.name for thread in threading.enumerate()]
    assert progress.HEARTBEAT not in [thread.name for thread in threading.enumerate()]


def test_what_is_said_is_printed_as_it_is(capsys):
    progress.say("a[0] of [bold]")
    assert capsys.readouterr().err == "a[0] of [bold]\n"
