"""A checker is asked again as soon as anything that it looks at is another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagewright.host import answers, workspace
from pagewright.host.answers import remembered


@pytest.fixture
def space(tmp_path):
    return replace(workspace.find(), cache=tmp_path / "cache")


@pytest.fixture
def asked(space, tmp_path):
    """Ask of some inputs; each answer is another."""
    counter = iter(range(1000))
    return lambda *inputs: remembered(space, "it", inputs, lambda: f"answer {next(counter)}")


def test_same_inputs_have_the_same_answer(asked, tmp_path):
    file = tmp_path / "file"
    file.write_text("text")
    assert [asked("a", file), asked("a", file)] == ["answer 0", "answer 0"]
    file.write_text("other text")
    assert asked("a", file) == "answer 1"
    assert asked("b", file) == "answer 2"


def test_inputs_do_not_run_together(asked):
    assert asked("ab", "c") != asked("a", "bc")


def test_what_failed_is_asked_again(space):
    def fails():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        remembered(space, "it", ["a"], fails)
    assert remembered(space, "it", ["a"], lambda: "well") == "well"


def test_the_oldest_answers_go(asked, monkeypatch, space):
    monkeypatch.setattr(answers, "KEPT", 3)
    for name in "abcde":
        asked(name)
    assert len(list((space.cache / "answers" / "it").iterdir())) == 3
    assert asked("e") == "answer 4"
