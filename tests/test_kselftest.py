"""The kernel's own selftests: what a selftest's output says, and what one run lost of another."""

from dataclasses import replace
from pathlib import Path

import pytest

from pagewright.guest import kselftest
from pagewright.guest.kselftest import _mirror
from pagewright.host import workspace
from pagewright.kernel.source import Source
from pagewright.results.kselftest import SelftestRun

GOOD = """# [INFO] detected hugetlb page size: 2048 KiB
TAP version 13
1..4
ok 1 mmap
ok 2 - Extra pages 61 (0.1%)
ok 3 # SKIP gup_test not available
ok 4 mmap # XFAIL not yet
# Totals: pass:2 fail:0 xfail:1 xpass:0 skip:1 error:0
"""


def test_cases_need_neither_name_nor_unique_one():
    run = SelftestRun.read(GOOD, 0)
    assert run.outcome == "pass"
    assert run.cases == {1: "pass", 2: "pass", 3: "skip", 4: "pass"}
    assert run.names[2] == "Extra pages 61 (0.1%)"
    assert run.names[3] == ""


def test_without_tap_only_the_status_counts():
    run = SelftestRun.read("Returned address is 0xffffae600000\n", 0)
    assert (run.outcome, run.cases) == ("pass", {})


@pytest.mark.parametrize(
    ("status", "outcome"), [(0, "pass"), (1, "fail"), (4, "skip"), (128 + 7, "fail")]
)
def test_status(status, outcome):
    assert SelftestRun.read("", status).outcome == outcome


@pytest.mark.parametrize(
    ("text", "status", "lost"),
    [
        (GOOD, 0, []),
        (GOOD.replace("61", "17"), 0, []),
        (GOOD.replace("ok 1", "not ok 1"), 1, ["case 1, mmap: fail", "exit status: fail"]),
        (GOOD.replace("ok 1 mmap", "ok 1 # SKIP no page"), 0, ["case 1, mmap: skip"]),
        (GOOD.replace("ok 1 mmap", "ok 1 mmap # XFAIL a leak"), 0, []),
        (GOOD.replace("ok 4", "not ok 4"), 1, ["case 4, mmap: fail", "exit status: fail"]),
        (GOOD.replace("ok 1 mmap\n", ""), 0, ["case 1, mmap: crash"]),
        (GOOD, 4, ["exit status: skip"]),
        (
            "Bus error",
            135,
            [
                "case 1, mmap: missing",
                "case 2, Extra pages 61 (0.1%): missing",
                "case 4, mmap: missing",
                "exit status: fail",
            ],
        ),
    ],
)
def test_lost(text, status, lost):
    assert SelftestRun.read(GOOD, 0).lost(SelftestRun.read(text, status)) == lost


def test_what_passes_now_is_no_loss():
    assert (
        SelftestRun.read(GOOD.replace("ok 1", "not ok 1"), 1).lost(SelftestRun.read(GOOD, 0)) == []
    )


def test_selftests_of_another_release_begin_with_nothing(tmp_path, monkeypatch):
    """Its headers may be older than those installed of the last one, and make goes by that."""
    space = replace(workspace.find(), root=tmp_path)
    seen = []
    monkeypatch.setattr(kselftest, "collections", lambda space: {})
    monkeypatch.setattr(
        kselftest, "_build", lambda *_: seen.append(list((space.out / "selftests").glob("[!.]*")))
    )
    for version in ("6.12.2-1", "6.12.1-1"):
        made = Source(version, tmp_path / version)
        monkeypatch.setattr(kselftest.source, "ensure", lambda space, made=made: made)
        kselftest.ensure.__wrapped__(space)
        for name in ("overlay", "source", "headers"):
            (space.out / "selftests" / name).mkdir(exist_ok=True)
    # Each release was built, and in an empty folder.
    assert seen == [[], []]


def test_mirror_is_writable_where_files_are_made(tmp_path):
    tree = tmp_path / "tree"
    (tree / "tools" / "mm").mkdir(parents=True)
    (tree / "tools" / "lib").mkdir()
    for name in ("Makefile", "tools/mm/cow.c", "tools/lib/a.h"):
        (tree / name).write_text(name)
    mirror = tmp_path / "mirror"
    _mirror(tree, mirror, {Path("tools/mm")})
    (mirror / "tools" / "mm" / "made.h").write_text("")
    assert not (tree / "tools" / "mm" / "made.h").exists()
    assert (mirror / "tools" / "lib").is_symlink()
    assert (mirror / "tools" / "mm" / "cow.c").read_text() == "tools/mm/cow.c"
