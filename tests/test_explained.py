"""What the explanations of the features have the reader type, and what they say it shows."""

from __future__ import annotations

import re
import shlex

import pytest
from typer.testing import CliRunner

from pagewright.cli import main
from pagewright.host import workspace

SPACE = workspace.find()
# By a part of the command, what it must print.
SHOWN = {
    "boot patched-4k --single-threaded": r"(?m)^faults=16384$",
    "boot base-4k --single-threaded": r"(?m)^faults=32768$",
    "map patched-4k": r"\b32M\b",
    "map base-4k": r"4k\W+1,0\d\d,\d\d\d",
    "hugepages=64 --run 'grep . /sys/kernel/mm/hugetlb_vmemmap/*'": (
        r"(?s)/bytes_saved:1572864\n.*/mode:seamless\n.*/reason:BBM level 2 without aborts\n"
    ),
    "hugepages=64 hugetlb_vmemmap=pause": r"(?s)/longest_ns:[1-9].*/pauses:[1-9]",
    "boot patched-4k --run 'dmesg": r"percpu: local map of ",
    "percpu_local_map=0": r"percpu: no local map: percpu_local_map=0",
}


def commands() -> list[str]:
    """Return what is typed in all explanations."""
    texts = [feature.path / "explained.md" for feature in SPACE.features()]
    return [
        line
        for file in texts
        for line in re.findall(r"^    pagewright (.+)$", file.read_text(), re.MULTILINE)
    ]


def expected(line: str) -> str:
    """Return what a command must print."""
    [pattern] = [pattern for part, pattern in SHOWN.items() if part in line]
    return pattern


def test_it_is_said_of_each_command_what_it_shows():
    assert len(commands()) == len({expected(line) for line in commands()}) == len(SHOWN)


@pytest.mark.full
@pytest.mark.parametrize("line", commands())
def test_a_command_shows_what_the_explanation_says(line, capfd):
    main.add_commands_of_features()
    done = CliRunner().invoke(main.app, shlex.split(line), catch_exceptions=False)
    assert done.exit_code == 0
    assert re.search(expected(line), done.output + capfd.readouterr().out)
