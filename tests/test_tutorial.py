"""The tutorial, typed in a fresh clone of the last commit."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from pagewright.host import ledger, workspace
from pagewright.kernel import source, tree

SPACE = workspace.find()
# What each step is known by, and what it must print; a fragment of a regular expression.
STEPS = {
    "A": r"linear-map: \d+ MiB of .* back",
    "B": r"\b32M\b",
    "C": r"out/report/index\.html",
    "1": r"arm64_handle_mm_fault",
    "2": r"",
    "3": r"(?m)^\+.*\b0, regs\);",
    "4": r"[1-9]\d* failed",
    "5": r"(?m)^\W*[1-9]\d* passed(?!.*failed)",
}
# In this one a test fails, which is the point of it.
FAILS = "4"


def steps() -> dict[str, list[str]]:
    """Return the commands of each step, by its letter or number."""
    text = (SPACE.root / "docs" / "tutorial.md").read_text()
    parts = re.split(r"^\*\*(\w)\. ", text, flags=re.MULTILINE)[1:]
    return {
        name: re.findall(r"^    (.+)$", part, re.MULTILINE)
        for name, part in zip(parts[::2], parts[1::2], strict=True)
    }


def test_every_step_has_commands_and_something_to_see():
    assert {name for name, commands in steps().items() if commands} == STEPS.keys()


def test_the_edit_of_the_hook_finds_its_line(tmp_path: Path):
    """It would change nothing without a word, and all of the tutorial takes minutes."""
    (edit,) = [command for command in steps()["2"] if command.startswith("sed ")]
    name = edit.split()[-1]
    before = (tree.assemble(SPACE, source.ensure(SPACE)) / name).read_text()
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(before)
    subprocess.run(edit, shell=True, cwd=tmp_path, check=True)
    after = (tmp_path / name).read_text()
    assert len(set(after.splitlines()) - set(before.splitlines())) == 1
    assert re.search(STEPS["3"].replace("\\+", ""), after)


@pytest.mark.full
def test_the_tutorial_goes_as_it_says(tmp_path: Path):
    folder = tmp_path
    # What this run of pytest tells the programs that it starts is not for the clone.
    ours = ("PYTHONPATH", "PYTEST_", ledger.VARIABLE)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    for name, commands in steps().items():
        # The address is that of this clone; errors end a step, but for the test that fails.
        script = "\n".join(commands).replace("ADDRESS", str(SPACE.root))
        end = "\npwd >&3" if name != FAILS else ""
        set_e = "set -e\n" if name != FAILS else ""
        where = tmp_path / "where"
        done = subprocess.run(
            ["bash", "-c", f"exec 3>{where}\nexport PATH=$PWD/bin:$PATH\n{set_e}{script}{end}"],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=7200,
        )
        assert done.returncode == 0 or name == FAILS, f"step {name}: {done.stdout[-5000:]}"
        assert re.search(STEPS[name], done.stdout), f"step {name} printed: {done.stdout[-5000:]}"
        folder = Path(where.read_text().strip() or folder)
    assert (folder / "map.png").stat().st_size > 10_000
    status = ["git", "-C", str(folder), "status", "--porcelain", "features"]
    assert subprocess.run(status, capture_output=True, text=True, check=True).stdout == ""
