"""The composed series: complete, applies with `git am`, gives the assembled tree."""

from __future__ import annotations

import os

import pytest

from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.run import run
from pagewright.kernel import series, source, tree
from pagewright.kernel.checks import checkpatch, known_complaints

SPACE = workspace.find()
FEATURES = SPACE.features()
KNOWN = known_complaints(SPACE)


@pytest.fixture(autouse=True)
def identity(monkeypatch):
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "A Tester")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "tester@example.org")


@pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.name)
def test_series_applies_with_git_am_and_gives_the_assembled_files(feature):
    pristine = source.ensure(SPACE)
    assembled = tree.assemble(SPACE, pristine)
    patches = series.compose(SPACE, pristine, feature)
    assert len(patches) == len(feature.commits)
    files = series.touched(SPACE, feature)
    with series.worktree(SPACE, pristine, files) as path:
        for name in feature.builds_on:
            series.apply(series.compose(SPACE, pristine, SPACE.feature(name)), path)
        series.apply(patches, path)
        changed = run(["git", "diff", "--name-only", "pristine", "HEAD"], cwd=path).split()
        assert sorted(changed) == sorted(set(files))
        if len(FEATURES) == 1:
            for name in changed:
                assert (path / name).read_bytes() == (assembled / name).read_bytes(), name
        subjects = run(["git", "log", "--format=%s", "pristine..HEAD"], cwd=path).splitlines()
    assert all(len(subject) <= 75 and ": " in subject for subject in subjects)


@pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.name)
def test_series_passes_checkpatch(feature):
    pristine = source.ensure(SPACE)
    patches = series.compose(SPACE, pristine, feature, signoff=True)
    # FILE_PATH_CHANGES asks for a MAINTAINERS entry, which upstream has to settle.
    assert checkpatch(pristine.path, patches, "--ignore", "FILE_PATH_CHANGES", known=KNOWN) == []


def test_unlisted_new_file_is_refused(tmp_path):
    feature = FEATURES[0]
    odd = SPACE.features()[0].__class__(**{**feature.__dict__, "commits": feature.commits[:-1]})
    with pytest.raises(PagewrightError, match=r"feature\.toml"):
        series.check_commits(SPACE, odd)


def test_unknown_author_is_a_clear_error(monkeypatch):
    for name in [n for n in os.environ if n.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "")
    with pytest.raises(PagewrightError, match="author"):
        series.compose(SPACE, source.ensure(SPACE), FEATURES[0])
