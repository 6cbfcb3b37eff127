"""A checker is asked again as soon as anything that it looks at is another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagewright.host import answers, workspace
from pagewright.host.answers import remembered
from pagewright.host.errors import PagewrightError
from pagewright.kernel.checks import checkpatch


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
    for name in "abc":
        asked(name)
    # What is asked for again is not the oldest any more.
    assert asked("a") == "answer 0"
    asked("d")
    assert len(list((space.cache / "answers" / "it").iterdir())) == 3
    assert [asked(name) for name in "acd"] == ["answer 0", "answer 2", "answer 3"]
    assert asked("b") == "answer 4"


SCRIPT = """
for (grep { /[.]c$/ } @ARGV) {
    die "cannot go on" if -e "$_.bad";
    print "total: 0 errors, 0 warnings, 0 checks, 1 lines checked\\n";
}
"""


def test_checkpatch_that_dies_between_two_files_has_given_no_answer(space, tmp_path):
    """What it has not looked at is not without complaints, today nor the next time."""
    scripts = tmp_path / "tree" / "scripts"
    scripts.mkdir(parents=True)
    for name, text in (
        ("checkpatch.pl", SCRIPT),
        ("spelling.txt", ""),
        ("const_structs.checkpatch", ""),
    ):
        (scripts / name).write_text(text)
    files = [tmp_path / "a.c", tmp_path / "b.c"]
    for file in files:
        file.write_text("int a;\n")
    bad = tmp_path / "b.c.bad"
    bad.touch()
    with pytest.raises(PagewrightError, match=r"did not look at all of a\.c, b\.c") as error:
        checkpatch(space, tmp_path / "tree", files)
    assert "cannot go on" in error.value.details
    bad.unlink()
    assert checkpatch(space, tmp_path / "tree", files) == []
