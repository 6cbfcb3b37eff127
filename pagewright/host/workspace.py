"""Where things are: the repository, its features, what is generated, and the cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

from pagewright.host.errors import HostError, PagewrightError
from pagewright.host.files import toml


@dataclass(frozen=True)
class Commit:
    """One commit of a feature's series: a hook, and the new files that come with it."""

    hook: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Feature:
    """What feature.toml says of a feature, and where the feature lives."""

    name: str
    path: Path
    summary: str
    kconfig: str
    boot_off: str
    builds_on: tuple[str, ...]
    kunit_suites: tuple[str, ...]
    debug_kunit_suites: tuple[str, ...]
    commits: tuple[Commit, ...]
    kselftests: Mapping[str, list[str]] = field(default_factory=dict, hash=False)
    boot_emulated: str = ""

    @property
    def overlay(self) -> Path:
        """The new kernel files, at their path in the kernel tree."""
        return self.path / "linux"

    @property
    def config(self) -> Path:
        """The feature's config fragment."""
        return self.path / "feature.config"

    @property
    def tests_config(self) -> Path:
        """What its tests take on top, which no server needs; need not be there."""
        return self.path / "tests.config"

    @property
    def debug_config(self) -> Path:
        """What its config fragment has on top in debug builds; need not be there."""
        return self.path / "debug.config"

    def new_files(self) -> list[Path]:
        """Return the new kernel files, relative to the kernel tree, sorted."""
        return sorted(p.relative_to(self.overlay) for p in self.overlay.rglob("*") if p.is_file())

    def objects(self) -> list[Path]:
        """Return what the kernel's new .c files compile to, but for those that others include."""
        hooks = "".join(file.read_text() for file in (self.path / "hooks").rglob("*.patch"))
        return [
            file.with_suffix(".o")
            for file in self.new_files()
            if file.suffix == ".c"
            and file.parts[0] != "tools"
            and f'#include "{file.name}"' not in hooks
        ]


@dataclass(frozen=True)
class Base:
    """What base.toml says of a kernel base."""

    version: str
    path: Path
    package: str
    known_good: str
    oldest: str
    objects: int


@dataclass(frozen=True)
class Workspace:
    """The repository, its generated files, and the cache that clones share."""

    root: Path
    cache: Path
    version: str = "6.12"

    @property
    def out(self) -> Path:
        """Everything generated for the base."""
        return self.root / "out" / self.version

    @property
    def tree(self) -> Path:
        """The assembled kernel tree."""
        return self.out / "tree"

    def hooks(self, feature: str) -> Path:
        """Return where a feature keeps its hooks for the base."""
        return self.root / "features" / feature / "hooks" / self.version

    def base(self) -> Base:
        """Read base.toml."""
        path = self.root / "base" / self.version
        fields = ("package", "known_good", "oldest", "objects")
        with toml(path / "base.toml") as data:
            return Base(self.version, path, *(data[name] for name in fields))

    def features(self) -> list[Feature]:
        """Read every feature.toml, in the order of the names."""
        found = []
        for file in sorted((self.root / "features").glob("*/feature.toml")):
            with toml(file) as data:
                found.append(
                    Feature(
                        data["name"],
                        file.parent,
                        data["summary"],
                        data["kconfig"],
                        data["boot_off"],
                        tuple(data["builds_on"]),
                        tuple(data["kunit_suites"]),
                        tuple(data.get("debug_kunit_suites", ())),
                        tuple(Commit(c["hook"], tuple(c["files"])) for c in data["commit"]),
                        data.get("kselftests", {}),
                        data.get("boot_emulated", ""),
                    )
                )
        return found

    def make_importable(self) -> None:
        """Let Python import what features keep in features/NAME/host."""
        for folder in sorted(map(str, (self.root / "features").glob("*/host"))):
            if folder not in sys.path:
                sys.path.append(folder)

    def tool(self) -> Any:  # noqa: ANN401
        """Return tools/pagewright, the file that servers get, as a module.

        It cannot import the workbench. What both need to know is there, and the workbench asks it.
        """
        loader = SourceFileLoader("pagewright_tool", str(self.root / "tools" / "pagewright"))
        if loader.name not in sys.modules:
            spec = spec_from_loader(loader.name, loader)
            assert spec
            # Dataclasses look their module up there.
            module = sys.modules[loader.name] = module_from_spec(spec)
            # The folder is the user's, who copies it, and has no compiled file.
            sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
            try:
                loader.exec_module(module)
            except BaseException:
                del sys.modules[loader.name]
                raise
            finally:
                sys.dont_write_bytecode = before
        return sys.modules[loader.name]

    def feature(self, name: str) -> Feature:
        """Return a feature by name.

        Raises:
            PagewrightError: there is none of that name.
        """
        features = self.features()
        for feature in features:
            if feature.name == name:
                return feature
        names = ", ".join(f.name for f in features)
        raise PagewrightError(f"there is no feature {name!r}", f"the features are: {names}")

    def series(self) -> list[str]:
        """Return every hook as feature/patch, in the order of base/VERSION/series.

        Raises:
            PagewrightError: a feature has a hook that the series neither names nor has as
                a comment. It would be left out without a word.
        """
        file = self.root / "base" / self.version / "series"
        lines = [line.strip() for line in file.read_text().splitlines() if line.strip()]
        known = {line.lstrip("# ") for line in lines}
        patches = (self.root / "features").glob(f"*/hooks/{self.version}/*.patch")
        hooks = sorted(f"{patch.parents[2].name}/{patch.name}" for patch in patches)
        if forgotten := [hook for hook in hooks if hook not in known]:
            raise PagewrightError(
                f"base/{self.version}/series does not name {', '.join(forgotten)}",
                "add a line for each where it is to be applied; one that is left out for now "
                "gets a # in front",
            )
        return [line for line in lines if not line.startswith("#")]


def find() -> Workspace:
    """Return the workspace this package belongs to.

    Raises:
        HostError: there is no place for the cache.
    """
    cache = of_user("XDG_CACHE_HOME", ".cache")
    return Workspace(Path(__file__).resolve().parents[2], cache)


def of_user(variable: str, folder: str) -> Path:
    """Return the folder in which we keep something for the user, of all clones.

    Args:
        variable: an environment variable that says where the user has such folders.
        folder: where they are in the home, if it does not.

    Raises:
        HostError: the user has no home, as in a container that was started for a mere number.
    """
    try:
        return Path(os.environ.get(variable) or Path.home() / folder) / "pagewright"
    except RuntimeError as error:
        raise HostError("you have no home on this computer", f"set HOME, or {variable}") from error
