"""The composed series: complete, applies with `git am`, gives the assembled tree, and builds."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.lock import lock
from pagewright.host.run import run
from pagewright.host.toolchain import CROSS
from pagewright.kernel import build, recipes, series, source, tree
from pagewright.kernel.checks import EXCEPTION_TABLE, checkpatch, known_complaints

pytestmark = pytest.mark.long(1)

SPACE = workspace.find()
FEATURES = SPACE.features()
COMMITS = [
    (feature, number) for feature in FEATURES for number in range(1, len(feature.commits) + 1)
]

by_name = pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.name)


@pytest.fixture(autouse=True, scope="module")
def identity():
    with pytest.MonkeyPatch.context() as patch:
        for role in ("AUTHOR", "COMMITTER"):
            patch.setenv(f"GIT_{role}_NAME", "A Tester")
            patch.setenv(f"GIT_{role}_EMAIL", "tester@example.org")
        yield


@pytest.fixture(scope="module")
def patches(identity, tmp_path_factory):
    """Compose a feature's series, once, into a folder that nobody else writes to."""

    @cache
    def compose(name: str) -> list[Path]:
        made = series.compose(SPACE, source.ensure(SPACE), SPACE.feature(name), signoff=True)
        folder = tmp_path_factory.mktemp(name)
        return [Path(shutil.copy(patch, folder)) for patch in made]

    return compose


def files_of(feature) -> set[str]:
    """Return the files that a feature touches itself, if others touch them, too, or not."""
    return set(series.touched(SPACE, replace(feature, builds_on=())))


@by_name
def test_series_applies_with_git_am_and_gives_the_assembled_files(patches, feature):
    pristine = source.ensure(SPACE)
    assembled = tree.assemble(SPACE, pristine)
    assert len(patches(feature.name)) == len(feature.commits)
    files = series.touched(SPACE, feature)
    with series.repository(SPACE, pristine, files) as path:
        for name in feature.builds_on:
            series.apply(patches(name), path)
        series.apply(patches(feature.name), path)
        changed = run(["git", "diff", "--name-only", "pristine", "HEAD"], cwd=path).split()
        assert sorted(changed) == sorted(set(files))
        # What other features touch, too, has their changes in the assembled tree.
        others = [f for f in FEATURES if f != feature and f.name not in feature.builds_on]
        own = set(files).difference(*(files_of(other) for other in others))
        assert any(name.endswith(".c") for name in own)
        for name in own:
            assert (path / name).read_bytes() == (assembled / name).read_bytes(), name
        subjects = run(["git", "log", "--format=%s", "pristine..HEAD"], cwd=path).splitlines()
    assert all(len(subject) <= 75 and ": " in subject for subject in subjects)


def test_all_series_together_give_the_assembled_tree():
    pristine = source.ensure(SPACE)
    assembled = tree.assemble(SPACE, pristine)
    files = sorted({name for feature in FEATURES for name in series.touched(SPACE, feature)})
    with series.repository(SPACE, pristine, files) as path:
        series.commit_all(SPACE, path)
        different = [
            name for name in files if (path / name).read_bytes() != (assembled / name).read_bytes()
        ]
    assert different == []


# What each needs comes before it. The document about upstream promises that this is all.
ORDERS = (
    ("cpu-pause", "linear-map", "hugetlb-vmemmap", "percpu-local", "atomic-write-fault"),
    ("atomic-write-fault", "percpu-local", "linear-map", "cpu-pause", "hugetlb-vmemmap"),
)


@pytest.mark.parametrize(
    "order", [ORDERS[0], pytest.param(ORDERS[1], marks=pytest.mark.full)], ids=" ".join
)
def test_composed_series_apply_one_after_the_other(patches, order):
    """A composed patch has more lines of context than its hook, and they are of the base."""
    assert sorted(order) == sorted(feature.name for feature in FEATURES)
    pristine = source.ensure(SPACE)
    assembled = tree.assemble(SPACE, pristine)
    files = sorted({name for feature in FEATURES for name in series.touched(SPACE, feature)})
    with series.repository(SPACE, pristine, files) as path:
        for name in order:
            series.apply(patches(name), path)
        different = [
            name for name in files if (path / name).read_bytes() != (assembled / name).read_bytes()
        ]
    assert different == []


def test_repository_has_what_is_asked_for_and_goes():
    files = ["mm/gup.c", "mm/is_not_there.c"]
    with series.repository(SPACE, source.ensure(SPACE), files) as path:
        assert run(["git", "ls-tree", "-r", "--name-only", "pristine"], cwd=path) == "mm/gup.c\n"
    assert not path.parent.exists()


def test_a_repository_that_the_environment_names_stays_as_it_is(monkeypatch, tmp_path):
    """Git names it to hooks, and to what `git bisect run` and `git rebase --exec` start."""
    mine = tmp_path / "mine"
    run(["git", "init", "-q", mine])
    run(["git", "commit", "-q", "--allow-empty", "-m", "mine"], cwd=mine)
    before = run(["git", "rev-parse", "HEAD"], cwd=mine)
    (tmp_path / "Makefile").write_text("kernel\n")
    space = workspace.Workspace(tmp_path, SPACE.cache)
    monkeypatch.setenv("GIT_DIR", str(mine / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(mine / ".git" / "index"))
    with series.repository(space, source.Source("6.12.1-1", tmp_path), ["Makefile"]) as path:
        assert run(["git", "log", "--format=%s"], cwd=path) == "linux 6.12.1-1\n"
    assert run(["git", "rev-parse", "HEAD"], cwd=mine) == before
    assert run(["git", "branch", "--list", "pristine"], cwd=mine) == ""


@pytest.mark.parametrize(
    ("feature", "number"), COMMITS, ids=[f"{feature.name}-{number}" for feature, number in COMMITS]
)
def test_patch_passes_checkpatch(patches, feature, number):
    """Every line of ours is in one of the patches, and each is checked once."""
    patch = patches(feature.name)[number - 1]
    # FILE_PATH_CHANGES asks for a MAINTAINERS entry, which upstream has to settle.
    options = ("--ignore", "FILE_PATH_CHANGES")
    known = known_complaints(feature)
    assert checkpatch(SPACE, source.ensure(SPACE).path, [patch], *options, known=known) == []


def entries(maintainers: str) -> list[tuple[str, list[str]]]:
    """Return the entries of MAINTAINERS: the name, and the patterns of files."""
    found: list[tuple[str, list[str]]] = []
    before = ""
    for line in maintainers.splitlines():
        if re.match("[A-Z]:\t", line):
            if not re.match("[A-Z]:\t", before):
                found.append((before, []))
            if line.startswith("F:"):
                found[-1][1].append(line[2:].strip())
        before = line
    return found


def covers(pattern: str, name: str) -> bool:
    """Whether a pattern of MAINTAINERS is of a file: of a folder if it ends with a slash."""
    words = re.escape(pattern).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    return bool(re.match(words, name) if pattern.endswith("/") else re.fullmatch(words, name))


@by_name
def test_somebody_looks_after_each_new_file(feature):
    """What is in no folder of theirs has a line of its own in the entry of a subsystem."""
    text = (tree.assemble(SPACE, source.ensure(SPACE)) / "MAINTAINERS").read_text()
    # These two are sent all that is below their folder, whatever it is of.
    everywhere = ("THE REST", "TRACING")
    patterns = [p for name, listed in entries(text) if name not in everywhere for p in listed]
    assert len(patterns) > 5000
    names = [str(file) for file in feature.new_files()]
    assert [n for n in names if not any(covers(p, n) for p in patterns)] == []


SELFTESTS = Path("tools/testing/selftests/arm64")
OF_SELFTESTS = sorted(
    {
        (feature.name, file.parent.name)
        for feature in FEATURES
        for file in feature.new_files()
        if file.is_relative_to(SELFTESTS)
    }
)


@pytest.fixture(scope="module")
def kernel_headers(tmp_path_factory):
    """Return the folder of the release's headers for programs."""
    out = tmp_path_factory.mktemp("headers")
    run(["make", "-s", "-C", source.ensure(SPACE).path, f"O={out}", "ARCH=arm64", "headers"])
    return out / "usr" / "include"


@pytest.mark.parametrize(("name", "folder"), OF_SELFTESTS, ids=lambda value: value)
def test_selftests_are_built_by_their_own_makefiles(name, folder, kernel_headers, tmp_path):
    """The guest's programs are made of the same files, but with other headers and flags."""
    where = tree.assemble(SPACE, source.ensure(SPACE)) / SELFTESTS
    assert re.search(rf"^ARM64_SUBTARGETS \?=.* {folder}\b", (where / "Makefile").read_text(), re.M)
    said = run(
        [
            *("make", "-s", "-C", where, f"ARM64_SUBTARGETS={folder}", f"OUTPUT={tmp_path}"),
            *("ARCH=arm64", f"CROSS_COMPILE={CROSS}", f"KHDR_INCLUDES=-isystem {kernel_headers}"),
        ]
    )
    ours = [file for file in SPACE.feature(name).new_files() if file.parent == SELFTESTS / folder]
    assert [f.name for f in ours if re.search(rf"^{f.name}:\d.*warning", said, re.M)] == []
    programs = [file.stem for file in ours if file.suffix == ".c"]
    assert programs
    ignored = (where / folder / ".gitignore").read_text().splitlines()
    for program in programs:
        assert (tmp_path / folder / program).exists(), said
        assert program in ignored


def test_complaints_that_are_wrong_of_one_feature_are_reported_of_others(tmp_path):
    """The file of one feature silences nothing of another."""
    one, other = (
        replace(FEATURES[0], name=name, path=tmp_path / name) for name in ("one", "other")
    )
    one.path.mkdir()
    (one.path / "checkpatch.toml").write_text(
        "[[wrong]]\ncomplaint = 'WARNING: odd'\nreason = 'x'\n"
    )
    assert known_complaints(one) == [*known_complaints(other), "WARNING: odd"]
    assert EXCEPTION_TABLE in known_complaints(other)


@pytest.fixture
def place_of_commits():
    """Return a folder that is always the same one, for one test at a time.

    Nothing is in it: make would take objects for those of other files of the same names.
    """
    folder = SPACE.out / "commits"
    with lock(folder, "the commits that are compiled"):
        for part in ("linux", "built", "built-without"):
            shutil.rmtree(folder / part, ignore_errors=True)
        yield folder
        shutil.rmtree(folder / "linux")


# With pauses linear-map has two files more, which its patches 0016 to 0021 change.
COMPILED = [(feature, feature.builds_on) for feature in FEATURES]
COMPILED += [(SPACE.feature("linear-map"), ("cpu-pause",))]


@pytest.mark.full
@pytest.mark.parametrize(
    ("feature", "before"), COMPILED, ids=["-after-".join((f.name, *b)) for f, b in COMPILED]
)
def test_every_commit_builds(patches, feature, before, place_of_commits):
    """Whoever bisects lands on any of them."""
    pristine = source.ensure(SPACE)
    features = [*map(SPACE.feature, before), feature]
    files = sorted({name for one in features for name in series.touched(SPACE, one)})
    with series.repository(SPACE, pristine, files) as made:
        # The compiler's cache knows a source by its path, and most of all kernels is the same.
        path = place_of_commits / "linux"
        made.rename(path)
        run(["cp", "--archive", "--no-clobber", f"{pristine.path}/.", path])
        for name in before:
            series.apply(patches(name), path)
        for patch in patches(feature.name):
            series.apply([patch], path)
            config = compile_commit(path, features)
            compile_without(path, feature, changed_folders(patch.read_text(), pristine.path))
    # All of it was compiled, at last: before the last commit some symbols do not exist yet.
    assert build.unmet(build.parse_config(feature.config.read_text()), config) == []


def compile_commit(path: Path, features) -> dict[str, str]:
    """Compile the kernel of a work tree, with what there is of features already switched on.

    Returns:
        The configuration.
    """
    fragments = [f.config for f in features]
    fragments += [f.tests_config for f in features if f.tests_config.exists()]
    fragments += [f.debug_config for f in features if f.debug_config.exists()]
    texts = [file.read_text() for file in fragments]
    return compile_as_configured(path, "built", texts, ["Image", "modules"])


def compile_without(path: Path, feature, folders) -> None:
    """Compile folders with a feature's symbol off: what stands in for its functions is there."""
    if folders:
        off = f"# CONFIG_{feature.kconfig} is not set\n"
        compile_as_configured(path, "built-without", [off], folders)


def compile_as_configured(path: Path, name: str, fragments, targets) -> dict[str, str]:
    """Compile something in a folder of that name, configured as base-4k and by fragments."""
    folder = path.parent / name
    folder.mkdir(exist_ok=True)
    built = build.Build("commits", folder, path, "commit")
    base = [file.read_text() for file in recipes.recipe(SPACE, "base-4k").files(SPACE)]
    wanted = folder / "wanted.config"
    wanted.write_text("\n".join([*base, *fragments]))
    environment = build.environment(SPACE)
    configure = [*build.make_command(built, "allnoconfig"), f"KCONFIG_ALLCONFIG={wanted}"]
    run(configure, env=environment)
    run(build.make_command(built, *targets), env=environment, log=folder / "build.log")
    return build.parse_config((folder / ".config").read_text())


# What includes most of the headers that our patches change.
INCLUDING = {"arch/arm64/kernel/", "arch/arm64/mm/", "mm/"}


def changed_folders(patch: str, release: Path) -> list[str]:
    """Return where the release's own C files are that a patch changes, as targets of make.

    Of its headers, it is where files are that include them.
    """
    names = re.findall(r"^diff --git a/(\S+\.[ch]) b/", patch, re.MULTILINE)
    own = [Path(name) for name in names if (release / name).exists()]
    folders = {f"{name.parent}/" for name in own if name.suffix == ".c"}
    headers = [name for name in own if name.suffix == ".h" and not name.is_relative_to("arch/x86")]
    return sorted(folders | INCLUDING if headers else folders)


def test_a_commit_that_changes_headers_is_compiled_where_they_are_included(tmp_path):
    for name in ("mm/gup.c", "include/linux/mm.h", "arch/x86/include/asm/percpu.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def of(*names: str) -> list[str]:
        patch = "".join(f"diff --git a/{name} b/{name}\n" for name in names)
        return changed_folders(patch, tmp_path)

    assert of("mm/gup.c", "lib/ours.c") == ["mm/"]
    assert of("include/linux/mm.h") == of("mm/gup.c", "include/linux/mm.h") == sorted(INCLUDING)
    assert of("arch/x86/include/asm/percpu.h", "include/linux/ours.h", "mm/Makefile") == []


def test_series_has_the_name_that_git_has_in_the_clone(monkeypatch, tmp_path):
    """It may differ from the user's other one, as for a job and a hobby."""
    for name in [n for n in os.environ if n.startswith("GIT_")]:
        monkeypatch.delenv(name)
    (tmp_path / "everywhere").write_text("[user]\nname = Private\nemail = private@localhost\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "everywhere"))
    root = tmp_path / "clone"
    root.mkdir()
    for part in ("base", "features"):
        (root / part).symlink_to(SPACE.root / part)
    run(["git", "init", "-q", root])
    run(["git", "config", "user.name", "Anna <B> Cole"], cwd=root)
    run(["git", "config", "user.email", "anna@localhost"], cwd=root)
    space = workspace.Workspace(root, SPACE.cache)
    patches = series.compose(space, source.ensure(SPACE), space.features()[0], signoff=True)
    assert patches
    for text in map(Path.read_text, patches):
        assert "\nSigned-off-by: Anna B Cole <anna@localhost>\n" in text
        assert "\nFrom: Anna B Cole <anna@localhost>\n" in text
        assert "private@localhost" not in text


@pytest.mark.full
def test_a_users_configuration_of_git_has_no_say_in_a_series(monkeypatch, tmp_path):
    """It is about the user's own repositories; some of it would change what is in a patch."""
    pristine = source.ensure(SPACE)
    feature = SPACE.feature("cpu-pause")

    def made() -> list[str]:
        patches = series.compose(SPACE, pristine, feature)
        # The names of commits have the time in them.
        texts = [re.sub(r"\A.*|^Date: .*", "", patch.read_text(), flags=re.M) for patch in patches]
        return [f"{patch.name}\n{text}" for patch, text in zip(patches, texts, strict=True)]

    wanted = made()
    (tmp_path / "order").write_text("*.c\n")
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "pre-commit").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "pre-commit").chmod(0o755)
    file = tmp_path / "gitconfig"
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(file))
    for option, value in {
        "commit.gpgSign": "true",
        "core.abbrev": "40",
        "core.autocrlf": "true",
        "core.hooksPath": str(hooks),
        "diff.context": "9",
        "diff.noprefix": "true",
        "diff.orderFile": str(tmp_path / "order"),
        "format.attach": "x",
        "format.signOff": "true",
        "format.suffix": ".txt",
        "format.numbered": "false",
        "format.subjectPrefix": "mine",
        "format.to": "list@localhost",
        "format.useAutoBase": "true",
    }.items():
        file.write_text("")
        run(["git", "config", "--file", file, option, value])
        assert made() == wanted, option


def test_unlisted_new_file_is_refused():
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
