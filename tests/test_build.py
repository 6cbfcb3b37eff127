"""Builds: fragments are met or named, recipes are known, Kconfig symbols switch code."""

from __future__ import annotations

import pytest

from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.run import run
from pagewright.kernel import build, recipes

SPACE = workspace.find()


def test_unmet_symbols_are_named():
    wanted = build.parse_config("CONFIG_A=y\nCONFIG_B=n\nCONFIG_C=16\n# CONFIG_D is not set\n")
    got = build.parse_config("CONFIG_A=y\nCONFIG_B=m\n")
    assert build.unmet(wanted, got) == ["CONFIG_B=n (is m)", "CONFIG_C=16 (is n)"]


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


@pytest.mark.full
@pytest.mark.parametrize("feature", SPACE.features(), ids=lambda f: f.name)
def test_symbol_off_leaves_no_code_of_the_feature(feature):
    # What builds on it selects it.
    dependents = [f.name for f in SPACE.features() if feature.name in f.builds_on]
    name = recipes.without("patched-4k", [feature.name, *dependents])
    built = build.ensure(SPACE, name)
    symbols = run(["aarch64-linux-gnu-nm", built.vmlinux])
    for file in feature.new_files():
        assert not (built.out / file.with_suffix(".o")).exists(), file
    assert feature.name.replace("-", "_") not in symbols


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(set(recipes.names(SPACE)) - {"base-4k", "patched-4k"}))
def test_every_build_boots(name, machine):
    guest = machine(name)
    sizes = {"4k": "4096", "16k": "16384", "64k": "65536"}
    assert guest.check("getconf PAGESIZE") in [
        sizes[part] for part in name.split("-") if part in sizes
    ]
    assert guest.warnings() == ""
