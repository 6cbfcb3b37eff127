"""The commands that port a hook and take a feature upstream, typed in a copy of the clone.

They are in docs/porting.md and docs/upstream.md.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import documents
import pytest

from pagewright.host import workspace
from pagewright.host.run import run
from pagewright.kernel import hooks, series, source

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
    tree = clone / "out" / SPACE.version / "tree"
    listing = clone / "base" / SPACE.version / "series"
    hook, all_hooks = hook_of(clone), listing.read_text()
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
    listing.write_text(before + re.sub("^", "# ", f"{name}\n{after.rstrip()}\n", flags=re.M))
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

    listing.write_text(listing.read_text().replace(f"# {name}\n", f"{name}\n"))
    again = typed(rest[1], clone, clone)
    assert again.returncode == 0, again.stdout
    assert {file: (tree / file).read_bytes() for file in wanted} == wanted
    # And those after it still apply.
    listing.write_text(all_hooks)
    [export, build, test] = last.splitlines()
    assert build.startswith("pagewright build ") and test.startswith("pagewright test ")
    result = typed(f"{export}\npagewright tree", clone, clone)
    assert result.returncode == 0, result.stdout


def test_upstream_names_each_patch_by_its_number():
    """A patch that is put in moves the numbers of those after it."""
    page = (SPACE.root / "docs" / "upstream.md").read_text()

    def patch(feature: str, number: str) -> str:
        [path] = SPACE.hooks(feature).glob(f"{number}-*.patch")
        return path.read_text()

    fixes = re.findall(r"^\| ([\w-]+) (\d{4})\b(.*)$", page, re.MULTILINE)
    assert len(fixes) > 4
    for feature, number, said in fixes:
        # Files and names in them, and not what finds the commit. Not each hunk says its function.
        names = re.findall(r"`([\w/.-]+)(?:\(\))?`", said.rsplit(" | ", 1)[0])
        text = patch(feature, number)
        assert all(f"+++ b/{name}\n" in text for name in names if "/" in name), said
        assert any(name in text for name in names if "/" not in name), said
    named = re.findall(r'^\| ([\w-]+) \| the patch "(.*)" \((\d{4})\)', page, re.MULTILINE)
    grep = r"that ([\w-]+) (\d{4}) names by its\stitle is found by .*--grep='Disable (\w+)'"
    named += [(feature, symbol, number) for feature, number, symbol in re.findall(grep, page)]
    assert len(named) == 2
    for feature, text, number in named:
        assert text in patch(feature, number), f"{feature} {number}: {text}"


@pytest.mark.full
def test_a_series_goes_into_a_kernel_and_out_of_it_as_the_page_says(tmp_path, monkeypatch):
    """All but compiling, which tests/test_series.py does with each commit."""
    clone = documents.clone(tmp_path / "pagewright")
    # The page has the clone in the home of the user. What is cached is not there.
    monkeypatch.setenv("XDG_CACHE_HOME", str(SPACE.cache.parent))
    monkeypatch.setenv("HOME", str(tmp_path))
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "A Tester")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "tester@example.org")
    page = (SPACE.root / "docs" / "upstream.md").read_text()
    made = typed(documents.scripts(page)[0], clone, clone)
    assert made.returncode == 0, made.stdout
    [into] = documents.scripts(documents.section("upstream.md", "Into a kernel of your own"))
    [onto] = documents.scripts(documents.section("upstream.md", "Onto a mailing list"))
    # In the place of make, which is called for each commit.
    (tmp_path / "make").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/made\n')
    (tmp_path / "make").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    pristine = source.ensure(SPACE)
    features = [SPACE.feature(name) for name in re.findall(r"/series/([\w-]+)/", into)]
    assert len(features) > 1
    files = {file for feature in features for file in series.touched(SPACE, feature)}
    with series.repository(SPACE, pristine, sorted(files)) as path:
        run(["sh", "-e", "-c", into], cwd=path)
        commits = run(["git", "rev-list", "pristine..HEAD"], cwd=path).split()
        assert len(commits) == sum(len(feature.commits) for feature in features)
        # What the commands for the mailing list ask of is not only what was touched.
        for file in pristine.path.iterdir():
            if not (path / file.name).exists():
                (path / file.name).symlink_to(file)
        base, rebases, checks, formats, asks = onto.splitlines()
        assert run(["sh", "-e", "-c", f"{base}\ngit rev-parse $base"], cwd=path)
        # The last ones are enough. What checkpatch says of them is the matter of another test.
        given = "base=HEAD~2"
        run(["sh", "-e", "-c", f"{given}\n{rebases}"], cwd=path)
        said = run(["sh", "-c", f"{given}\n{checks}"], cwd=path, check=False)
        assert said.count("total: ") == 2, said[-3000:]
        script = "\n".join([given, formats, asks])
        assert "linux-arm-kernel@lists.infradead.org" in run(["sh", "-e", "-c", script], cwd=path)
        # And the cover letter.
        assert len(list((path / "patches").glob("*.patch"))) == 2 + 1
    calls = (tmp_path / "made").read_text().splitlines()
    assert len(calls) == 2
    assert all(call.endswith(" Image") for call in calls)
