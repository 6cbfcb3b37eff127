"""Builds: fragments are met or named, recipes are known, Kconfig symbols switch code."""

from __future__ import annotations

import lzma
import os
from dataclasses import replace
from pathlib import Path

import pytest
from empty_feature import FEATURE

from pagewright.host import disk, packages, workspace
from pagewright.host.arm64_packages import Fetched
from pagewright.host.errors import (
    BuildError,
    DiskFullError,
    HostError,
    PagewrightError,
    VersionGoneError,
)
from pagewright.host.run import run
from pagewright.host.toolchain import CLANG, GCC, NM
from pagewright.host.workspace import Workspace
from pagewright.kernel import build, modules, recipes, source, tree
from pagewright.kernel.manifest import MANIFEST, Manifest, now
from pagewright.kernel.source import Source

SPACE = workspace.find()


def test_unmet_symbols_are_named():
    wanted = build.parse_config("CONFIG_A=y\nCONFIG_B=n\nCONFIG_C=16\n# CONFIG_D is not set\n")
    got = build.parse_config("CONFIG_A=y\nCONFIG_B=m\n")
    assert build.unmet(wanted, got) == ["CONFIG_B=n (is m)", "CONFIG_C=16 (is n)"]


@pytest.mark.full
def test_fragment_that_asks_for_an_unknown_symbol_fails_by_name(tmp_path, monkeypatch):
    fragment = tmp_path / "wrong.config"
    fragment.write_text("CONFIG_NO_SUCH_SYMBOL=y\n")
    good = build.ensure(SPACE, "patched-4k")
    out = tmp_path / "out"
    out.mkdir()
    scratch = build.Build("scratch", out, good.tree, good.source)
    fragments = [SPACE.root / "base" / "6.12" / "config" / "virt.config", fragment]
    with pytest.raises(PagewrightError) as error:
        build.configure(SPACE, scratch, fragments)
    assert "wrong.config: CONFIG_NO_SUCH_SYMBOL=y (is n)" in str(error.value)
    assert not (out / ".config").exists()


def configured(name: str, out: Path) -> dict[str, str]:
    """Return the symbols of a build that starts from allnoconfig, without compiling it."""
    chosen = recipes.recipe(SPACE, name)
    made = replace(build.assembled(SPACE, chosen), out=out)
    build.configure(SPACE, made, chosen.files(SPACE))
    return build.parse_config((out / ".config").read_text())


@pytest.fixture(scope="module")
def kconfig_folder(tmp_path_factory):
    """Return a folder in which kbuild compiles its programs for configurations once."""
    return tmp_path_factory.mktemp("kconfig")


# Those that start from a configuration of Debian take a package, and are looked at in test_deb.py.
@pytest.mark.full
@pytest.mark.parametrize(
    "name",
    [name for name in recipes.names(SPACE) if not recipes.recipe(SPACE, name).debian],
)
def test_a_configuration_has_what_its_fragments_ask_for(name, kconfig_folder):
    """No everyday test compiles the other kernels."""
    assert configured(name, kconfig_folder)["ARM64"] == "y"


def test_of_two_fragments_the_last_one_counts(kconfig_folder):
    """The kernel that is installed in tests is that of other tests, but cannot dump page tables."""
    files = {file.stem: file for file in recipes.recipe(SPACE, "system-4k").files(SPACE)}
    symbol = "PTDUMP_DEBUGFS"
    assert build.parse_config(files["virt"].read_text())[symbol] == "y"
    assert build.parse_config(files["package"].read_text())[symbol] == "n"
    assert configured("system-4k", kconfig_folder).get(symbol, "n") == "n"


def test_unknown_build_lists_the_known_ones():
    with pytest.raises(PagewrightError, match="patched-4k"):
        build.ensure(SPACE, "patched-5k")


def test_features_are_in_the_patched_build_and_not_in_the_base():
    objects = {
        f"{file}"
        for feature in SPACE.features()
        for file in feature.objects()
        if "kunit" not in file.name
        # Built only for debug.config's and naive.config's sake.
        and "transition" not in file.name
        and "naive" not in file.name
    }
    assert len(objects) > len(SPACE.features())
    patched, base = build.ensure(SPACE, "patched-4k"), build.ensure(SPACE, "base-4k")
    assert all((patched.out / name).exists() for name in objects)
    assert not any((base.out / name).exists() for name in objects)


@pytest.mark.parametrize("name", ["patched-4k", pytest.param("checked-4k", marks=pytest.mark.full)])
def test_workarounds_are_what_kconfig_would_have(tmp_path, name):
    """Those of processors' errata, of which kernels have all that nobody switched off."""
    built = build.ensure(SPACE, name)
    config, default = (built.out / ".config").read_text(), tmp_path / ".config"
    lines = config.splitlines(keepends=True)
    default.write_text("".join(line for line in lines if "ERRATUM" not in line))
    scratch = replace(built, out=tmp_path)
    run(build.make_command(scratch, "olddefconfig"), env=build.environment(SPACE))
    has, would_have = (
        {symbol: value for symbol, value in build.parse_config(text).items() if "ERRATUM" in symbol}
        for text in (config, default.read_text())
    )
    assert has and has == would_have


@pytest.mark.full
@pytest.mark.parametrize("feature", SPACE.features(), ids=lambda f: f.name)
def test_symbol_off_leaves_no_code_of_the_feature(feature):
    # What builds on it selects it.
    dependents = [f.name for f in SPACE.features() if feature.name in f.builds_on]
    name = recipes.without("patched-4k", [feature.name, *dependents])
    built = build.ensure(SPACE, name)
    symbols = run([NM, built.vmlinux])
    for file in feature.new_files():
        assert not (built.out / file.with_suffix(".o")).exists(), file
    assert feature.name.replace("-", "_") not in symbols


# The everyday tests boot two of them; those that are bare have no shell (bare.config), and those
# with all of Debian's modules do not boot without an initramfs (test_install.py).
OTHERS = [
    name
    for name in sorted(set(recipes.names(SPACE)) - {"base-4k", "patched-4k"})
    if not name.startswith("bare-") and not recipes.recipe(SPACE, name).modules
]


@pytest.mark.full
@pytest.mark.parametrize("name", OTHERS)
def test_every_build_boots(name, machine):
    guest = machine(name)
    kib = recipes.recipe(SPACE, name).page_kib
    assert f"{kib}k" in name.split("-")
    assert guest.check("getconf PAGESIZE") == str(kib << 10)
    assert guest.warnings() == ""


@pytest.mark.parametrize("offered", [True, False])
def test_the_configuration_is_of_the_version_of_the_source(tmp_path, monkeypatch, capsys, offered):
    configs = build.DEBIAN_CONFIGS
    had = f"{configs}=6.12.9-1" if offered else configs
    listing = tmp_path / "packages.txt"
    listing.write_text(f"linux-base 4.9\n{configs} 6.12.{9 if offered else 7}-1\n")

    def fetch(space, names, instead_of=""):
        if names != [had]:
            raise VersionGoneError(f"E: Version of {names} was not found")
        assert instead_of == ("" if offered else "6.12.9-1")
        return Fetched(tmp_path / had, listing)

    def read(fetched, name):
        return lzma.compress(f"{fetched.tar.name} {name}".encode())

    monkeypatch.setattr(build.arm64_packages, "fetch", fetch)
    monkeypatch.setattr(build.arm64_packages, "read", read)
    text = build._debian_config(Workspace(tmp_path, tmp_path), "cloud-arm64", "6.12.9-1")
    assert text == f"{had} usr/src/{configs}/config.arm64_none_cloud-arm64.xz"
    said = "" if offered else f"taking {configs} 6.12.7-1, as 6.12.9-1 of it cannot be had"
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert bool(err) == bool(said)


def test_no_other_configuration_is_taken_without_a_network(tmp_path, monkeypatch):
    def fetch(space, names, instead_of=""):
        assert not instead_of
        raise PagewrightError("Temporary failure resolving the archive")

    monkeypatch.setattr(build.arm64_packages, "fetch", fetch)
    with pytest.raises(PagewrightError, match="Temporary failure"):
        build._debian_config(Workspace(tmp_path, tmp_path), "cloud-arm64", "6.12.9-1")


# --- A source that moves: kernels of one C file -----------------------------------

MAKEFILE = """\
allnoconfig: ; touch $(O)/.config
Image: $(O)/main.o
	echo asked >>$(O)/asked
	nice >$(O)/niceness
	mkdir -p $(O)/arch/arm64/boot && cp $< $(O)/arch/arm64/boot/Image
$(O)/main.o: main.c ; cp $< $@ && echo '  CC      main.o'
modules: $(O)/main.o ; touch -r $(O)/main.o $(O)/modules.order
modules_install: ; mkdir -p $(INSTALL_MOD_PATH) && echo installed >>$(O)/installs
"""

OF_NEW_FILE = """\
Image: $(O)/new.o
$(O)/new.o: new.c ; cp $< $@
"""

IMAGE = "arch/arm64/boot/Image"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch) -> Workspace:
    """Make a repository with a base and a patched build, and no feature."""
    base = tmp_path / "repo" / "base" / "6.12"
    (base / "config").mkdir(parents=True)
    (base / "config" / "none.config").touch()
    (base / "series").touch()
    (base / "base.toml").write_text(
        'package = "p"\nknown_good = "6.12.1"\noldest = "6.12.0"\nobjects = 1\n'
    )
    builds = "everyday = []\nmatrix = []\n"
    for name, features in (("base", "none"), ("patched", "all")):
        builds += f'[builds.{name}]\npurpose = "p"\nfragments = ["none"]\nfeatures = "{features}"\n'
    (base / "builds.toml").write_text(builds)
    monkeypatch.setattr(disk, "free", lambda path: 10**6)
    return Workspace(tmp_path / "repo", tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "old", "new", "what"),
    [
        ("base.toml", 'package = "p"', 'package = "p', "is not as it should be: "),
        ("base.toml", 'oldest = "6.12.0"', "", "does not have 'oldest'"),
        ("builds.toml", "everyday = []", "everyday = ", "is not as it should be: "),
        ("builds.toml", 'purpose = "p"', "", "does not have 'purpose'"),
        ("builds.toml", 'fragments = ["none"]', "fragments = 1", "is not as it should be: "),
    ],
)
def test_a_typing_error_in_a_file_names_the_file(tiny, name, old, new, what):
    file = tiny.root / "base" / tiny.version / name
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(PagewrightError) as error:
        tiny.base(), recipes.recipe(tiny, "base")
    assert error.value.what.startswith(f"{file} {what}")


@pytest.mark.parametrize("base", recipes.names(SPACE))
def test_a_feature_that_does_not_exist_cannot_be_left_off(base):
    """A build without features would be compiled once more, under the name with the error."""
    with pytest.raises(PagewrightError) as error:
        recipes.recipe(SPACE, f"{base}-without-nonsense")
    assert error.value.what == "there is no feature 'nonsense'"
    assert error.value.todo.startswith("the features are: ")


def test_what_only_tests_take_can_be_left_off():
    """Servers have none of it, so sizes are those of a kernel without it."""
    whole, without = (
        recipes.recipe(SPACE, name) for name in ("patched-4k", "patched-4k-without-tests")
    )
    assert without.features == whole.features
    gone = set(whole.files(SPACE)) - set(without.files(SPACE))
    assert gone == {f.tests_config for f in SPACE.features() if f.tests_config.exists()} != set()
    both = recipes.recipe(SPACE, "patched-4k-without-tests-without-percpu-local")
    assert set(whole.features) - set(both.features) == {"percpu-local"}
    assert not both.tests


def test_a_typing_error_in_the_file_of_a_feature_names_it(tiny):
    file = tiny.root / "features" / "one" / "feature.toml"
    file.parent.mkdir(parents=True)
    for text, what in (("name = ", "is not as it should be: "), ("", "does not have 'name'")):
        file.write_text(text)
        with pytest.raises(PagewrightError) as error:
            tiny.features()
        assert error.value.what.startswith(f"{file} {what}")


def made(space: Workspace, name: str, version: str, text: str, monkeypatch) -> Path:
    """Build a release, whose file is older than all that was ever compiled; return the object."""
    folder = space.cache / ("the same path" if name == "base" else version)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Makefile").write_text(MAKEFILE)
    (folder / "main.c").write_text(text)
    for file in folder.iterdir():
        os.utime(file, (10**9, 10**9))
    monkeypatch.setattr(source, "ensure", lambda space: Source(version, folder))
    return build.ensure.__wrapped__(space, name).out / "main.o"


@pytest.mark.parametrize("name", ["base", "patched"])
@pytest.mark.parametrize("newer", ["6.12.118-1", "6.12.117-2"])
def test_no_object_of_another_release_is_left(name, newer, tiny, monkeypatch):
    old = made(tiny, name, "6.12.117-1", "old", monkeypatch)
    assert old.read_text() == "old"
    (old.parent / "gone.o").touch()
    assert made(tiny, name, newer, "new", monkeypatch).read_text() == "new"
    assert not (old.parent / "gone.o").exists()


@pytest.mark.parametrize("name", ["base", "patched"])
def test_objects_of_the_same_release_are_kept(name, tiny, monkeypatch):
    compiled = made(tiny, name, "6.12.117-1", "text", monkeypatch)
    os.utime(compiled, (2 * 10**9, 2 * 10**9))
    assert made(tiny, name, "6.12.117-1", "text", monkeypatch).stat().st_mtime == 2 * 10**9


def test_modules_are_installed_again_only_if_they_changed(tiny, monkeypatch):
    """Installing removes what is there, and another process may be packing it for a guest."""
    compiled = made(tiny, "base", "6.12.117-1", "text", monkeypatch)
    installs = compiled.with_name("installs")
    made(tiny, "base", "6.12.117-1", "text", monkeypatch)
    assert installs.read_text() == "installed\n"
    os.utime(compiled, (2 * 10**9, 2 * 10**9))
    (compiled.parent / IMAGE).touch()
    made(tiny, "base", "6.12.117-1", "text", monkeypatch)
    assert installs.read_text() == "installed\n" * 2


def test_kbuild_is_asked_only_if_something_changed(tiny, monkeypatch):
    """It takes seconds to find that it has nothing to do."""
    compiled = made(tiny, "patched", "6.12.117-1", "text", monkeypatch)
    asked, image = compiled.with_name("asked"), compiled.parent / IMAGE

    def times() -> int:
        made(tiny, "patched", "6.12.117-1", "text", monkeypatch)
        return len(asked.read_text().splitlines())

    assert times() == 1
    # Someone else has run it, or changed what it works from.
    image.touch()
    assert times() == 2
    with compiled.with_name(".config").open("a") as config:
        config.write("# CONFIG_A is not set\n")
    assert times() == 3
    (tiny.tree / "main.c").write_text("mine")
    assert times() == 4
    assert compiled.read_text() == "mine"
    assert times() == 4
    image.unlink()
    assert times() == 5


@pytest.mark.parametrize(
    ("name", "source"),
    [("a.S", '.data\n.incbin "text"\n'), ("a.c", '__asm__(".data; .incbin \\"text\\"");\n')],
)
def test_no_object_with_another_file_in_it_comes_from_the_cache(tmp_path, name, source):
    """With CCACHE_DEPEND=1, also from a user, it did: a certificate of another key, for example."""
    environment = build.environment(Workspace(tmp_path, tmp_path))
    (tmp_path / name).write_text(source)
    command = ["ccache", GCC, "-Wp,-MMD,a.d", "-c", name, "-o", "a.o"]
    for text in ("first", "second"):
        (tmp_path / "text").write_text(text)
        run(command, cwd=tmp_path, env={"CCACHE_DEPEND": "1", **environment})
        assert text.encode() in (tmp_path / "a.o").read_bytes()
    # It is the cache that compiles: what has no such file in it comes from there.
    (tmp_path / name).write_text("\n")
    log = {"CCACHE_LOGFILE": str(tmp_path / "log")}
    for _ in range(2):
        run(command, cwd=tmp_path, env=environment | log)
    assert "Result: direct_cache_hit" in (tmp_path / "log").read_text()


def test_guests_go_before_a_build(tiny, monkeypatch):
    niceness = made(tiny, "patched", "6.12.117-1", "text", monkeypatch).with_name("niceness")
    assert int(niceness.read_text()) == min(os.nice(0) + 10, 19)


def test_a_file_that_was_put_back_is_compiled_again(tiny, monkeypatch):
    """`cp -p`, `rsync -a` and `tar -x` give it a time that is older than the object."""
    monkeypatch.setitem(globals(), "MAKEFILE", MAKEFILE + OF_NEW_FILE)
    feature = tiny.root / "features" / "one"
    (feature / "linux").mkdir(parents=True)
    (feature / "feature.toml").write_text(FEATURE)
    (feature / "feature.config").touch()
    new = feature / "linux" / "new.c"
    new.write_text("old")
    out = made(tiny, "patched", "6.12.117-1", "old", monkeypatch).parent
    # A new file, to which the tree has a link, and one that is edited in the tree.
    files = {new: out / "new.o", tiny.tree / "main.c": out / "main.o"}
    for then in ("experiment", "old", "experiment", "old"):
        for file, compiled in files.items():
            file.write_text(then)
            if then == "old":
                os.utime(file, (10**9, 10**9))
            made(tiny, "patched", "6.12.117-1", "old", monkeypatch)
            assert compiled.read_text() == then
    asked = (out / "asked").read_text()
    made(tiny, "patched", "6.12.117-1", "old", monkeypatch)
    assert (out / "asked").read_text() == asked


def test_a_tree_that_another_run_has_assembled_of_another_release_is_refused(tiny, monkeypatch):
    """Between the assembly and the compilation nobody holds the tree."""
    text = made(tiny, "patched", "6.12.117-1", "old", monkeypatch)
    built = build.Build("patched", text.parent, tiny.tree, "6.12.117-1")
    real = tree.assemble

    def overtaken(space: Workspace, pristine: Source) -> Path:
        path = real(space, pristine)
        replace(Manifest.read(path), source="6.12.118-1").write(path, now())
        return path

    monkeypatch.setattr(tree, "assemble", overtaken)
    what = r"another pagewright has assembled linux 6\.12\.118-1 meanwhile"
    with pytest.raises(BuildError, match=what) as error:
        made(tiny, "patched", "6.12.117-1", "old", monkeypatch)
    assert error.value.todo == "run the same command again"
    (tiny.root / "a.c").touch()
    with pytest.raises(BuildError, match=what):
        modules.ensure(tiny, built, ["a.c"])
    # One whose assembly was interrupted has no manifest.
    (tiny.tree / MANIFEST).unlink()
    with pytest.raises(BuildError, match="another pagewright has begun"):
        modules.ensure(tiny, built, ["a.c"])
    assert made(tiny, "base", "6.12.117-1", "old", monkeypatch).read_text() == "old"


def test_a_module_that_was_put_back_is_compiled_again(tiny):
    kernel = tiny.cache / "kernel"
    kernel.mkdir(parents=True)
    (kernel / "Makefile").write_text("modules: $(M)/a.ko\n$(M)/a.ko: $(M)/a.c ; cp $< $@\n")
    built = build.Build("base", tiny.out / "base", kernel, "6.12.117-1")
    for text in ("old", "experiment", "old"):
        (tiny.root / "a.c").write_text(text)
        if text == "old":
            os.utime(tiny.root / "a.c", (10**9, 10**9))
        overlay = modules.ensure(tiny, built, ["a.c"])
        assert (overlay / modules.FOLDER / "a.ko").read_text() == text


def test_what_changes_while_kbuild_runs_is_for_the_next_time(tiny, monkeypatch):
    asked = made(tiny, "patched", "6.12.117-1", "text", monkeypatch).with_name("asked")
    real = build._compile

    def edited_meanwhile(built, *arguments) -> None:
        real(built, *arguments)
        with (built.out / ".config").open("a") as config:
            config.write("# CONFIG_A is not set\n")

    asked.with_name(build.FINISHED_STAMP).unlink()
    with monkeypatch.context() as patch:
        patch.setattr(build, "_compile", edited_meanwhile)
        made(tiny, "patched", "6.12.117-1", "text", monkeypatch)
    made(tiny, "patched", "6.12.117-1", "text", monkeypatch)
    assert len(asked.read_text().splitlines()) == 3


def test_configuration_says_that_the_tree_was_edited_by_hand(tiny, monkeypatch):
    out = made(tiny, "patched", "6.12.117-1", "text", monkeypatch).parent
    assert "edited" not in (out / "fragments.config").read_text()
    (tiny.tree / "main.c").write_text("mine")
    compiled = made(tiny, "patched", "6.12.117-1", "text", monkeypatch)
    assert compiled.read_text() == "mine"
    assert "edited by hand: main.c\n" in (out / "fragments.config").read_text()


@pytest.mark.parametrize(
    ("root", "cache", "what", "todo"),
    [
        ("my repo", "cache", "kbuild", "move the clone"),
        ("my:repo", "cache", "kbuild", "without spaces and colons"),
        ("my,repo", "cache", "QEMU", "move the clone to a path without commas"),
        ("repo", "my cache", "kbuild", "XDG_CACHE_HOME"),
    ],
)
def test_folders_that_nothing_can_be_made_or_booted_in_are_refused_at_once(
    tiny, tmp_path, root, cache, what, todo
):
    """Unpatched kernels are made of the source in the cache, others of the tree in the clone."""
    if not (tmp_path / root).exists():
        tiny.root.rename(tmp_path / root)
    with pytest.raises(BuildError, match=f"{what} cannot work below {tmp_path}/my") as error:
        build.ensure.__wrapped__(Workspace(tmp_path / root, tmp_path / cache), "patched")
    assert todo in error.value.todo


@pytest.fixture
def by_clang(tiny: Workspace) -> Workspace:
    """Have Clang compile the base build."""
    file = tiny.root / "base" / tiny.version / "builds.toml"
    file.write_text(file.read_text().replace("[builds.base]", "[builds.base]\nclang = true"))
    return tiny


def test_a_build_is_compiled_by_the_compiler_of_its_recipe(by_clang, monkeypatch):
    monkeypatch.setattr(source, "ensure", lambda space: Source("6.12.117-1", space.cache))
    monkeypatch.setattr(tree, "assemble", lambda space, pristine: space.tree)
    made_of = {
        name: build.assembled(by_clang, recipes.recipe(by_clang, name))
        for name in recipes.names(by_clang)
    }
    assert made_of["base"].compiler == CLANG and made_of["patched"].compiler == GCC
    assert made_of["base"].tree == by_clang.cache and made_of["patched"].tree == by_clang.tree


def test_clang_is_asked_for_before_anything_is_fetched(by_clang, monkeypatch):
    need = packages.Need("no-such-package", "no-such-program", "compile a kernel with Clang")
    monkeypatch.setattr(packages, "OF_CLANG", (need,))
    monkeypatch.setattr(source, "ensure", lambda space: pytest.fail("the source was fetched"))
    with pytest.raises(HostError, match="takes no-such-package") as error:
        build.ensure.__wrapped__(by_clang, "base")
    assert "`pagewright setup --full`" in error.value.todo


def test_space_is_asked_for_before_a_first_build(tiny, monkeypatch):
    monkeypatch.setattr(disk, "free", lambda path: build.BUILD_MB - 1)
    with pytest.raises(DiskFullError, match=f"the build base needs {build.BUILD_MB} MB"):
        made(tiny, "base", "6.12.117-1", "text", monkeypatch)
    assert not (tiny.out / "base" / ".config").exists()
    monkeypatch.setattr(disk, "free", lambda path: build.BUILD_MB)
    made(tiny, "base", "6.12.117-1", "text", monkeypatch)
    monkeypatch.setattr(disk, "free", lambda path: 0)
    made(tiny, "base", "6.12.117-1", "text", monkeypatch)
