"""Assembling: atomic, named failures, and nothing of the user's is lost."""

from __future__ import annotations

import os
import textwrap
import time
from pathlib import Path

import pytest

from pagewright.host import disk, repository
from pagewright.host.errors import DiskFullError, PagewrightError, SourceError
from pagewright.host.files import replace_text
from pagewright.host.run import run
from pagewright.host.workspace import Workspace
from pagewright.kernel import tree
from pagewright.kernel.manifest import MANIFEST, Manifest
from pagewright.kernel.source import Source

MAIN = "".join(f"line {n}\n" for n in range(1, 31))


def hook(old: str, new: str, line: int) -> str:
    """Return a patch that changes one line of a/main.c, with a commit message."""
    before, after = f" line {line - 1}\n", f" line {line + 1}\n"
    return (
        f"change {old}\n\nBecause.\n---\n--- a/main.c\n+++ b/main.c\n"
        f"@@ -{line - 1},3 +{line - 1},3 @@\n{before}-{old}\n+{new}\n{after}"
    )


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    """Make a repository with one feature of one hook and one new file."""
    root = tmp_path / "repo"
    base = root / "base" / "6.12"
    base.mkdir(parents=True)
    (base / "base.toml").write_text(
        'package = "p"\nknown_good = "6.12.1"\noldest = "6.12.0"\nobjects = 1\n'
    )
    feature = root / "features" / "one"
    (feature / "linux" / "mm").mkdir(parents=True)
    (feature / "linux" / "mm" / "one.c").write_text("int one;\n")
    (feature / "feature.toml").write_text(
        textwrap.dedent("""
            name = "one"
            summary = "s"
            kconfig = "ONE"
            boot_off = ""
            builds_on = []
            kunit_suites = []
            commit = [{ hook = "0001.patch", files = ["mm/one.c"] }]
        """)
    )
    (feature / "hooks" / "6.12").mkdir(parents=True)
    (feature / "hooks" / "6.12" / "0001.patch").write_text(hook("line 5", "LINE 5", 5))
    (base / "series").write_text("# comment\none/0001.patch\n")
    return Workspace(root, tmp_path / "cache")


@pytest.fixture
def pristine(tmp_path: Path) -> Source:
    """Make a small pristine tree."""
    path = tmp_path / "pristine"
    (path / "mm").mkdir(parents=True)
    (path / "main.c").write_text(MAIN)
    (path / "other.c").write_text("other\n")
    return Source("6.12.2-1", path)


def add_hook(space: Workspace, name: str, text: str) -> None:
    """Add a hook to the feature and to the series."""
    (space.hooks("one") / name).write_text(text)
    series = space.root / "base" / "6.12" / "series"
    series.write_text(series.read_text() + f"one/{name}\n")


def contents(path: Path) -> dict[str, str]:
    """Return all files below a folder with their text."""
    return {str(p.relative_to(path)): p.read_text() for p in path.rglob("*") if p.is_file()}


def test_hooks_are_applied_and_new_files_are_links(space, pristine):
    path = tree.assemble(space, pristine)
    assert "LINE 5\n" in (path / "main.c").read_text()
    link = path / "mm" / "one.c"
    assert link.is_symlink()
    assert link.resolve() == space.root / "features/one/linux/mm/one.c"
    assert (pristine.path / "main.c").read_text() == MAIN


def test_second_assembly_writes_nothing(space, pristine):
    path = tree.assemble(space, pristine)
    before = {p: p.lstat().st_mtime_ns for p in path.rglob("*")}
    tree.assemble(space, pristine)
    assert before == {p: p.lstat().st_mtime_ns for p in path.rglob("*")}


def test_only_changed_files_are_written(space, pristine):
    path = tree.assemble(space, pristine)
    before = (path / "main.c").stat().st_mtime_ns, (path / "other.c").stat().st_mtime_ns
    other = "x\n---\n--- a/other.c\n+++ b/other.c\n@@ -1 +1 @@\n-other\n+OTHER\n"
    add_hook(space, "0002.patch", other)
    tree.assemble(space, pristine)
    after = (path / "main.c").stat().st_mtime_ns, (path / "other.c").stat().st_mtime_ns
    assert before[0] == after[0]
    assert before[1] != after[1]
    assert (path / "other.c").read_text() == "OTHER\n"


def test_failed_hook_names_hook_file_and_hunk_and_changes_nothing(space, pristine):
    path = tree.assemble(space, pristine)
    before = contents(path)
    add_hook(space, "0002.patch", hook("line 99", "LINE 99", 12))
    with pytest.raises(PagewrightError) as error:
        tree.assemble(space, pristine)
    text = str(error.value)
    assert "one/0002.patch" in text
    assert "main.c: hunk #1" in text
    assert "apply to 6.12.0 to 6.12.1: PAGEWRIGHT_KERNEL=6.12.1" in text
    assert contents(path) == before


def test_failed_hook_leaves_no_half_tree(space, pristine):
    add_hook(space, "0002.patch", hook("line 99", "LINE 99", 12))
    with pytest.raises(PagewrightError):
        tree.assemble(space, pristine)
    assert not space.tree.exists()
    assert [p.name for p in space.out.iterdir()] == [".lock"]


def test_hook_that_needs_fuzz_is_refused(space, pristine):
    text = hook("line 12", "LINE 12", 12).replace(" line 11\n", " line eleven\n")
    add_hook(space, "0002.patch", text)
    with pytest.raises(PagewrightError, match="0002"):
        tree.assemble(space, pristine)


def test_hook_for_a_missing_file_is_named(space, pristine):
    add_hook(space, "0002.patch", hook("line 5", "x", 5).replace("main.c", "gone.c"))
    with pytest.raises(PagewrightError) as error:
        tree.assemble(space, pristine)
    assert "0002.patch" in str(error.value)
    assert "gone.c" in str(error.value)


def test_series_that_names_a_missing_hook(space, pristine):
    series = space.root / "base" / "6.12" / "series"
    series.write_text(series.read_text() + "one/0009.patch\n")
    with pytest.raises(PagewrightError, match=r"0009\.patch"):
        tree.assemble(space, pristine)


def test_hook_that_no_series_names_is_refused(space, pristine):
    """It would be left out without a word, and the kernel without it tested."""
    series = space.root / "base" / "6.12" / "series"
    add_hook(space, "0002.patch", hook("line 20", "LINE 20", 20))
    named = series.read_text()
    series.write_text(named.replace("one/0002.patch\n", ""))
    with pytest.raises(PagewrightError, match=r"does not name one/0002\.patch"):
        tree.assemble(space, pristine)
    assert not space.tree.exists()
    # As long as a hook is being ported it is a comment.
    series.write_text(named.replace("one/0002.patch", "# one/0002.patch"))
    assert "line 20" in (tree.assemble(space, pristine) / "main.c").read_text()


def test_new_file_must_be_new(space, pristine):
    (pristine.path / "mm" / "one.c").write_text("already here\n")
    with pytest.raises(PagewrightError, match=r"mm/one\.c exists"):
        tree.assemble(space, pristine)


def test_removed_feature_parts_leave_the_tree(space, pristine):
    path = tree.assemble(space, pristine)
    (space.root / "features/one/linux/mm/one.c").unlink()
    for hook in space.hooks("one").glob("*.patch"):
        hook.unlink()
    (space.root / "base" / "6.12" / "series").write_text("")
    tree.assemble(space, pristine)
    assert (path / "main.c").read_text() == MAIN
    assert not (path / "mm" / "one.c").is_symlink()


def test_point_release_that_moved_is_followed(space, pristine):
    path = tree.assemble(space, pristine)
    (pristine.path / "other.c").write_text("newer\n")
    tree.assemble(space, Source("6.12.3-1", pristine.path))
    assert (path / "other.c").read_text() == "newer\n"
    assert "LINE 5\n" in (path / "main.c").read_text()


def test_unrefreshed_edits_are_not_lost(space, pristine):
    path = tree.assemble(space, pristine)
    (path / "main.c").write_text((path / "main.c").read_text().replace("LINE 5", "MINE"))
    add_hook(space, "0002.patch", hook("line 20", "LINE 20", 20))
    with pytest.raises(PagewrightError, match=r"edits .* main\.c"):
        tree.assemble(space, pristine)
    assert "MINE\n" in (path / "main.c").read_text()
    tree.assemble(space, pristine, discard=True)
    assert "MINE\n" not in (path / "main.c").read_text()
    assert "LINE 20\n" in (path / "main.c").read_text()


def test_refresh_writes_an_edit_back_with_its_message(space, pristine):
    path = tree.assemble(space, pristine)
    (path / "main.c").write_text((path / "main.c").read_text().replace("LINE 5", "LINE FIVE"))
    target = space.hooks("one") / "0001.patch"
    assert tree.refresh(space, pristine) == [target]
    assert "+LINE FIVE\n" in target.read_text()
    assert target.read_text().startswith("change line 5\n\nBecause.\n---\n")
    assert tree.refresh(space, pristine) == []
    tree.assemble(space, pristine)
    assert "LINE FIVE\n" in (path / "main.c").read_text()


def test_a_refresh_that_was_interrupted_while_it_searched_has_refreshed(
    space, pristine, monkeypatch
):
    """What is edited elsewhere in the tree is still found by the next search."""

    def interrupted(*arguments):
        raise KeyboardInterrupt

    path = tree.assemble(space, pristine)
    (path / "main.c").write_text((path / "main.c").read_text().replace("LINE 5", "Line five"))
    (path / "other.c").write_text("edited\n")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(tree, "_search", interrupted)
        tree.refresh(space, pristine)
    assert "+Line five" in (space.hooks("one") / "0001.patch").read_text()
    assert tree.assemble(space, pristine) == path
    assert list(state(space).edited) == ["other.c"]
    assert tree.refresh(space, pristine) == []


def test_a_file_that_could_not_be_written_leaves_nothing_beside_it(tmp_path):
    """A disk that is full fails at the same place as text that cannot be encoded."""
    file = tmp_path / "0001.patch"
    file.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        replace_text(file, "\udcff")
    assert contents(tmp_path) == {"0001.patch": "old"}


def test_refresh_with_two_hooks_on_one_file(space, pristine):
    add_hook(space, "0002.patch", hook("line 20", "LINE 20", 20))
    path = tree.assemble(space, pristine)
    assert tree.refresh(space, pristine) == []
    (path / "main.c").write_text((path / "main.c").read_text().replace("LINE 20", "TWENTY"))
    assert tree.refresh(space, pristine) == [space.hooks("one") / "0002.patch"]
    assert "+TWENTY\n" in (space.hooks("one") / "0002.patch").read_text()


def test_refresh_leaves_the_context_of_a_hook_that_changes_the_same(space, pristine):
    """Its context may be what applies with another feature's hooks and without them."""
    file = space.hooks("one") / "0001.patch"
    narrow = file.read_text()
    path = tree.assemble(space, pristine)
    assert tree.refresh(space, pristine) == []
    assert file.read_text() == narrow
    # quilt would have written more of it.
    text = (path / "main.c").read_text()
    (path / "main.c").write_text(text.replace("LINE 5", "FIVE"))
    assert tree.refresh(space, pristine) == [file]
    assert file.read_text().count("\n ") > narrow.count("\n ")


def test_refresh_leaves_hooks_of_other_files_when_a_context_has_changed(space, pristine):
    wide = hook("line 7", "LINE 7", 7).splitlines(keepends=True)
    at = wide.index("@@ -6,3 +6,3 @@\n")
    before, after = [" line 4\n", " LINE 5\n"], [" line 9\n", " line 10\n"]
    wide[at:] = ["@@ -4,7 +4,7 @@\n", *before, *wide[at + 1 :], *after]
    add_hook(space, "0002.patch", "".join(wide))
    add_hook(space, "0003.patch", hook("line 5", "LINE 5", 5).replace("main.c", "other.c"))
    (pristine.path / "other.c").write_text(MAIN)
    narrow = (space.hooks("one") / "0003.patch").read_text()
    path = tree.assemble(space, pristine)
    quilt = {"QUILT_PATCHES": "patches", "QUILTRC": "-"}
    run(["quilt", "pop", "one/0001.patch"], cwd=path, env=quilt)
    (path / "main.c").write_text((path / "main.c").read_text().replace("LINE 5", "FIVE"))
    run(["quilt", "refresh", "-p", "ab", "--no-timestamps", "--no-index"], cwd=path, env=quilt)
    # The second one applies with fuzz.
    run(["quilt", "push", "-a"], cwd=path, env=quilt)
    written = [space.hooks("one") / name for name in ("0001.patch", "0002.patch")]
    assert tree.refresh(space, pristine) == written
    assert " FIVE\n" in written[1].read_text()
    assert (space.hooks("one") / "0003.patch").read_text() == narrow


def test_refresh_does_not_overwrite_a_hook_edited_in_its_feature(space, pristine):
    tree.assemble(space, pristine)
    tree.refresh(space, pristine)
    target = space.hooks("one") / "0001.patch"
    target.write_text(target.read_text().replace("Because.", "For a reason."))
    with pytest.raises(PagewrightError, match=r"changed in features/ .* one/0001\.patch"):
        tree.refresh(space, pristine)
    assert "For a reason." in target.read_text()
    tree.assemble(space, pristine)
    assert tree.refresh(space, pristine) == []


def test_popped_hooks_are_not_taken_for_an_assembled_tree(space, pristine):
    path = tree.assemble(space, pristine)
    run(["quilt", "pop", "-a"], cwd=path, env=tree.QUILT)
    for attempt in (tree.assemble, tree.refresh):
        with pytest.raises(PagewrightError, match="1 hooks are not applied"):
            attempt(space, pristine)
    run(["quilt", "push", "-a"], cwd=path, env=tree.QUILT)
    assert tree.assemble(space, pristine) == path


def test_patch_made_in_the_tree_is_not_lost(space, pristine):
    path = tree.assemble(space, pristine)
    run(["quilt", "new", "mine.patch"], cwd=path, env=tree.QUILT)
    run(["quilt", "add", "other.c"], cwd=path, env=tree.QUILT)
    (path / "other.c").write_text("mine\n")
    run(["quilt", "refresh"], cwd=path, env=tree.QUILT)
    add_hook(space, "0002.patch", hook("line 20", "LINE 20", 20))
    with pytest.raises(PagewrightError, match=r"no hooks: mine\.patch"):
        tree.assemble(space, pristine)
    assert (path / "patches" / "mine.patch").exists()


def test_discard_restores_the_tree_even_if_no_hook_changed(space, pristine):
    path = tree.assemble(space, pristine)
    (path / "main.c").write_text("mine\n")
    tree.assemble(space, pristine, discard=True)
    assert "LINE 5\n" in (path / "main.c").read_text()


def test_tree_of_an_older_source_is_kept_aside(space, pristine):
    path = tree.assemble(space, pristine)
    (path / "notes.txt").write_text("mine\n")
    tree.assemble(space, Source("6.12.3-1", pristine.path))
    assert (space.out / "tree-6.12.2-1" / "notes.txt").read_text() == "mine\n"


def test_only_one_tree_of_an_older_source_is_kept(space, pristine):
    tree.assemble(space, pristine)
    for version in ("6.12.3-1", "6.12.4-1"):
        tree.assemble(space, Source(version, pristine.path))
    assert [path.name for path in sorted(space.out.glob("tree*"))] == ["tree", "tree-6.12.3-1"]


def test_edits_outlive_an_assembly_that_was_interrupted(space, pristine, monkeypatch, capsys):
    path = tree.assemble(space, pristine)
    (path / "other.c").write_text("edited\n")
    (space.hooks("one") / "0001.patch").write_text(hook("line 5", "line FIVE", 5))
    with monkeypatch.context() as patched:
        patched.setattr(tree, "_install_links", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            tree.assemble(space, pristine)
    assert "line FIVE" in (tree.assemble(space, pristine) / "main.c").read_text()
    aside = path.with_name("tree-incomplete")
    assert (aside / "other.c").read_text() == "edited\n"
    assert str(aside) in capsys.readouterr().err


def test_copied_files_are_newer_than_what_was_compiled_before(space, pristine):
    os.utime(pristine.path / "other.c", (10**9, 10**9))
    before = time.time() - 1
    assert (tree.assemble(space, pristine) / "other.c").stat().st_mtime >= before


def test_strays_of_a_killed_assembly_are_swept(space, pristine):
    (space.out / "assemble-killed" / "tree").mkdir(parents=True)
    tree.assemble(space, pristine)
    assert sorted(path.name for path in space.out.iterdir()) == [".lock", "tree"]


def test_space_is_asked_for_before_the_tree_is_copied(space, pristine, monkeypatch):
    monkeypatch.setattr(disk, "free", lambda path: 1500)
    with pytest.raises(DiskFullError, match="the assembled kernel tree needs 1800 MB"):
        tree.assemble(space, pristine)
    assert not space.tree.exists()


# --- Edits by hand ----------------------------------------------------------------


def state(space: Workspace) -> Manifest:
    """Return the manifest of the assembled tree."""
    manifest = Manifest.read(space.tree)
    assert manifest is not None
    return manifest


def key(space: Workspace) -> str:
    """Return what the assembled tree is."""
    return state(space).key(space.tree)


def test_untouched_tree_is_not_edited(space, pristine, capsys):
    tree.assemble(space, pristine)
    tree.assemble(space, pristine)
    assert state(space).edited == {}
    assert "edited" not in key(space) + state(space).describe() + capsys.readouterr().err


def test_contents_of_new_files_are_part_of_the_key(space, pristine):
    path = tree.assemble(space, pristine)
    before = key(space)
    link = next(path / name for name in state(space).links)
    link.write_text(link.read_text() + "/* more */\n")
    tree.assemble(space, pristine)
    assert state(space).edited == {}
    assert key(space) != before


def test_edits_by_hand_are_named_and_change_the_key(space, pristine, capsys):
    path = tree.assemble(space, pristine)
    clean = key(space)
    (path / "other.c").write_text("mine\n")
    # As a program does that unpacks an archive.
    os.utime(path / "other.c", (10**9, 10**9))
    (path / "mm" / "more.h").write_text("mine\n")
    (path / "mm" / ".more.h.swp").write_text("an editor's\n")
    (path / "notes.txt").write_text("mine\n")
    for _ in range(2):
        capsys.readouterr()
        tree.assemble(space, pristine)
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 1
        assert said[0].startswith(
            "edited in the assembled tree and in no hook: mm/more.h, other.c "
        )
    assert state(space).describe().endswith(", edited by hand: mm/more.h, other.c")
    first = key(space)
    assert first.startswith(f"{clean}-edited-")
    (path / "other.c").write_text("mine, too\n")
    tree.assemble(space, pristine)
    assert key(space) not in (clean, first)
    assert (path / "other.c").read_text() == "mine, too\n"


def test_a_commit_does_not_say_what_an_edited_tree_is(space, pristine, monkeypatch):
    """Nor does git, for which the tree does not exist."""
    monkeypatch.setattr(repository, "commit", lambda space: "abc")
    assert tree.edits(space) == {}
    (space.cache / "source").mkdir(parents=True)
    (space.cache / "source" / pristine.package_version).symlink_to(pristine.path)
    path = tree.assemble(space, pristine)
    assert tree.edits(space) == {}
    assert tree.commit(space) == "abc"
    (path / "other.c").write_text("mine\n")
    assert tree.edits(space).keys() == {"other.c"}
    assert tree.commit(space) == "abc+"
    monkeypatch.setattr(repository, "commit", lambda space: "abc+")
    assert tree.commit(space) == "abc+"
    (path / "other.c").write_text("other\n")
    assert tree.edits(space) == {}


def test_edit_is_still_named_after_another_hook_was_added(space, pristine):
    path = tree.assemble(space, pristine)
    (path / "other.c").write_text("mine\n")
    add_hook(space, "0002.patch", hook("line 20", "LINE 20", 20))
    tree.assemble(space, pristine)
    assert (path / "other.c").read_text() == "mine\n"
    assert list(state(space).edited) == ["other.c"]


def test_edit_that_is_undone_is_forgotten(space, pristine):
    path = tree.assemble(space, pristine)
    (path / "other.c").write_text("mine\n")
    tree.assemble(space, pristine)
    assert list(state(space).edited) == ["other.c"]
    (path / "other.c").write_text("other\n")
    tree.assemble(space, pristine)
    assert state(space).edited == {}


def test_unrefreshed_edit_of_a_hooked_file_is_named_until_it_is_refreshed(space, pristine):
    path = tree.assemble(space, pristine)
    (path / "main.c").write_text((path / "main.c").read_text().replace("LINE 5", "LINE FIVE"))
    tree.assemble(space, pristine)
    assert list(state(space).edited) == ["main.c"]
    tree.refresh(space, pristine)
    assert state(space).edited == {}


def test_file_that_is_gone_is_an_edit(space, pristine):
    path = tree.assemble(space, pristine)
    (path / "other.c").unlink()
    tree.assemble(space, pristine)
    assert list(state(space).edited) == ["other.c"]


def test_discard_drops_every_edit(space, pristine):
    path = tree.assemble(space, pristine)
    before = contents(path)
    (path / "other.c").write_text("mine\n")
    (path / "main.c").unlink()
    (path / "mm" / "more.h").write_text("mine\n")
    tree.assemble(space, pristine, discard=True)
    assert state(space).edited == {}
    after = contents(path)
    assert {name for name in before | after if before.get(name) != after.get(name)} <= {MANIFEST}


def test_link_that_an_editor_made_a_file_is_not_overwritten(space, pristine):
    (space.root / "features/one/linux/mm/one.rst").write_text("One\n")
    path = tree.assemble(space, pristine)
    link = path / "mm" / "one.rst"
    link.unlink()
    link.write_text("mine\n")
    tree.assemble(space, pristine)
    assert list(state(space).edited) == ["mm/one.rst"]
    add_hook(space, "0002.patch", hook("line 20", "LINE 20", 20))
    with pytest.raises(SourceError, match=r"no links any more .* mm/one\.rst"):
        tree.assemble(space, pristine)
    assert link.read_text() == "mine\n"
    tree.assemble(space, pristine, discard=True)
    assert link.is_symlink()


def test_first_hook_of_a_file_does_not_overwrite_an_edit(space, pristine):
    path = tree.assemble(space, pristine)
    (path / "other.c").write_text("mine\n")
    change = "x\n---\n--- a/other.c\n+++ b/other.c\n@@ -1 +1 @@\n-other\n+OTHER\n"
    add_hook(space, "0002.patch", change)
    with pytest.raises(SourceError, match=r"a hook would overwrite: other\.c"):
        tree.assemble(space, pristine)
    assert (path / "other.c").read_text() == "mine\n"
    # What the hook makes of the file may have been written by hand.
    (path / "other.c").write_text("OTHER\n")
    tree.assemble(space, pristine)
    assert state(space).edited == {}
