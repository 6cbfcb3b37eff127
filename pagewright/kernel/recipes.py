"""base/VERSION/builds.toml: which builds there are, and what each is made of."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pagewright.host.errors import PagewrightError
from pagewright.host.files import toml
from pagewright.host.workspace import Feature, Workspace

# What is booted where no build is named, and what a place of a lab runs unless its environment
# file says otherwise (options: build:).
DEFAULT_BUILD = "patched-4k"

_WITHOUT = "-without-"
# Stands after it in place of a feature's name, for a kernel as servers have it.
_TESTS = "tests"


@dataclass(frozen=True)
class Recipe:
    """How a named build is made.

    Attributes:
        name: its name, which is that of its folder below out/VERSION, too.
        purpose: what it is for, one line.
        fragments: the names of its config fragments, in the order of their merging.
        features: names of the features whose symbols are on.
        patched: it is made from the assembled tree, and not from the pristine one.
        debug: the debug fragments of its features are merged, too.
        debian: the configuration of Debian that the fragments are merged into, such as
            cloud-arm64; none if they start from allnoconfig.
        modules: the modules of that configuration are built, too.
        clang: Clang compiles it, and not GCC.
        tests: the features have what their tests take: KUnit suites, and parameters that make a
            machine worse. Servers have none of it.
        packaged: packages may be made of it, if it has features.
    """

    name: str
    purpose: str
    fragments: tuple[str, ...]
    features: tuple[str, ...]
    patched: bool
    debug: bool = False
    debian: str = ""
    modules: bool = False
    clang: bool = False
    tests: bool = True
    packaged: bool = True

    @property
    def page_kib(self) -> int:
        """How large its pages are; those of Debian have 4 KiB if its name says nothing else."""
        named = {*self.fragments, f"pages-{self.debian.rpartition('-')[2]}"}
        return next((kib for kib in (16, 64) if f"pages-{kib}k" in named), 4)

    def files(self, space: Workspace) -> list[Path]:
        """Return the fragment files, the features' own included."""
        config = space.root / "base" / space.version / "config"
        files = [config / f"{fragment}.config" for fragment in self.fragments]
        kept = [f for f in space.features() if f.name in self.features]
        files += [f.config for f in kept]
        if self.tests:
            files += [f.tests_config for f in kept if f.tests_config.exists()]
        if self.debug:
            files += [f.debug_config for f in kept if f.debug_config.exists()]
        return files


def names(space: Workspace) -> list[str]:
    """Return the names of all builds, in the order of the file."""
    with _read(space) as data:
        return list(data["builds"])


def everyday(space: Workspace) -> list[str]:
    """Return the builds that `make test` boots."""
    with _read(space) as data:
        return list(data["everyday"])


def matrix(space: Workspace) -> list[str]:
    """Return the builds with all features, one for each page size and number of address bits."""
    with _read(space) as data:
        return list(data["matrix"])


def unpatched(space: Workspace, name: str) -> str:
    """Return the name of the unpatched build that is configured as another one, if there is one.

    Raises:
        PagewrightError: there is no build of the name given.
    """
    like = recipe(space, name)
    for other in map(partial(recipe, space), names(space)):
        same = (other.fragments, other.debian) == (like.fragments, like.debian)
        if same and not other.patched:
            return other.name
    return ""


def recipe(space: Workspace, name: str) -> Recipe:
    """Return a recipe by name.

    NAME-without-FEATURE leaves a feature's symbol off, and NAME-without-tests all that only the
    tests of features take.

    Raises:
        PagewrightError: there is no build of that name, or no such feature.
    """
    base, *without = name.split(_WITHOUT)
    with _read(space) as data:
        builds = data["builds"]
        if base not in builds:
            raise PagewrightError(
                f"there is no build {name!r}", f"the builds are: {', '.join(builds)}"
            )
        entry = builds[base]
        features = [f.name for f in _chosen(space, entry["features"])]
        # Each name is looked up even if the build has no features that it could be left off from.
        # Otherwise a name with a typing error would build the same kernel once more.
        gone_names = {space.feature(gone).name for gone in without if gone != _TESTS}
        features = [kept for kept in features if kept not in gone_names]
        return Recipe(
            name,
            entry["purpose"] + "".join(f", without {gone}" for gone in without),
            tuple(entry["fragments"]),
            tuple(features),
            patched=entry["features"] != "none",
            debug=entry.get("debug", False),
            debian=entry.get("debian", ""),
            modules=entry.get("modules", False),
            clang=entry.get("clang", False),
            tests=entry.get("tests", True) and _TESTS not in without,
            packaged=entry.get("packaged", True),
        )


def without(name: str, features: list[str]) -> str:
    """Return the name of a build with features left off."""
    return _WITHOUT.join((name, *features))


def _chosen(space: Workspace, features: str | list[str]) -> list[Feature]:
    """Return the features that an entry names."""
    if features == "none":
        return []
    if features == "all":
        return space.features()
    return [space.feature(name) for name in features]


def _read(space: Workspace) -> AbstractContextManager[dict[str, Any]]:
    return toml(space.root / "base" / space.version / "builds.toml")
