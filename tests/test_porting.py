"""The commands with which a hook is ported (docs/porting.md), typed in a copy of the clone."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import documents
import pytest

from pagewright.host import workspace
from pagewright.host.run import run
from pagewright.kernel import hooks

SPACE = workspace.find()
COMMANDS = documents.scripts(documents.section("porting.md", "When a hook does not apply"))
# The kernel that stands in for the newest release. It is here already.
RELEASE = SPACE.base().known_good


def typed(script: str, folder: Path, clone: Path) -> subprocess.CompletedProcess[str]:
    """Run commands of the page in a folder of a clone."""
    return subprocess.run(
        ["sh", "-e", "-c", script.replace("=newest", f"={RELEASE}")],
        cwd=folder,
        env={**os.environ, "PATH": f"{clone / 'bin'}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def hook_of(clone: Path) -> Path:
    """Return the hook that the page ports."""
    [name] = re.findall(r"quilt import -P \S+ (?:\.\./)*(\S+)", COMMANDS[0])
    return clone / name


def test_the_page_ports_a_hook_that_there_is():
    hook = hook_of(SPACE.root)
    assert hook.exists()
    assert f"{hook.parents[2].name}/{hook.name}" in COMMANDS[0]


@pytest.mark.full
def test_a_hook_that_does_not_apply_is_ported_as_the_page_says(tmp_path):
    clone = documents.clone(tmp_path / "clone")
    tree, series = clone / "out" / SPACE.version / "tree", clone / "base" / SPACE.version / "series"
    hook, all_hooks = hook_of(clone), series.read_text()
    name = f"{hook.parents[2].name}/{hook.name}"
    right = hook.read_text()
    # The hook removes a line that the kernel has no more, as if it had another one now.
    hook.write_text(re.sub(r"^-(?!-).+$", "-\tno_such_line();", right, count=1, flags=re.M))
    begin, *rest, last = COMMANDS
    assert len(rest) == 2
    assembles = begin.splitlines()[0]
    fails = typed(assembles, clone, clone)
    assert fails.returncode != 0
    assert name in fails.stdout

    # The hook, and those after it, get a # in front.
    before, _, after = all_hooks.partition(f"{name}\n")
    series.write_text(before + re.sub("^", "# ", f"{name}\n{after.rstrip()}\n", flags=re.M))
    pushed = typed(begin, clone, clone)
    # What quilt says of a patch that it has applied in part.
    assert "forced; needs refresh" in pushed.stdout, pushed.stdout
    assert list(tree.rglob("*.rej"))

    # By hand: the files get what they were to have.
    for file in hooks.patched_files(right):
        (tree / file).write_bytes((tree / ".pc" / name / file).read_bytes())
    run(["patch", "-p1"], cwd=tree, stdin=right)
    wanted = {file: (tree / file).read_bytes() for file in hooks.patched_files(right)}
    refreshed = typed(rest[0], tree, clone)
    assert refreshed.returncode == 0, refreshed.stdout
    assert "no_such_line" not in hook.read_text()

    series.write_text(series.read_text().replace(f"# {name}\n", f"{name}\n"))
    again = typed(rest[1], clone, clone)
    assert again.returncode == 0, again.stdout
    assert {file: (tree / file).read_bytes() for file in wanted} == wanted
    # And those after it still apply.
    series.write_text(all_hooks)
    [export, build, test] = last.splitlines()
    assert build.startswith("pagewright build ") and test.startswith("pagewright test ")
    result = typed(f"{export}\npagewright tree", clone, clone)
    assert result.returncode == 0, result.stdout
