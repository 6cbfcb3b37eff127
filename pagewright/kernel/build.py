"""Assembled tree + config fragments -> Image, modules, vmlinux."""

from __future__ import annotations

import lzma
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pagewright.host import arm64_packages, disk, packages
from pagewright.host.errors import BuildError, HostError, PagewrightError, VersionGoneError
from pagewright.host.files import digest, empty_folder
from pagewright.host.ledger import timed
from pagewright.host.lock import LOCK_FILE, lock
from pagewright.host.progress import Bar, say
from pagewright.host.run import run
from pagewright.host.toolchain import CLANG, CROSS, GCC, LLVM, version
from pagewright.host.workspace import Workspace
from pagewright.kernel import signing, source, times, tree
from pagewright.kernel.manifest import Manifest
from pagewright.kernel.recipes import Recipe, recipe
from pagewright.kernel.release import Release

CCACHE_SIZE = "8G"
# The package with the configurations of Debian's own kernels.
DEBIAN_CONFIGS = "linux-config-6.12"
# What a build takes in its folder and, compressed, in the compiler cache, in MB.
BUILD_MB = 500
DEBUG_BUILD_MB = 1000
DEBIAN_BUILD_MB = 1500
# With the modules; Debian's arm64 has four times as many as its cloud-arm64.
MODULES_BUILD_MB = 5000
# In a build's folder: the version of the source package that it was made from.
SOURCE_STAMP = ".source"
# In a build's folder: which modules were installed, when each was compiled, and who signed them.
INSTALLED_STAMP = ".installed"
# In a build's folder: what it was made of when kbuild had nothing more to do, and what came of it.
FINISHED_STAMP = ".finished"
# In a build's folder: the texts of new and of edited files when kbuild compiled them last.
TEXTS_STAMP = ".texts"
# In a build's folder: what kbuild appends to the kernel's version.
LOCAL_VERSION = "localversion-pagewright"


@dataclass(frozen=True)
class Build:
    """A finished kernel build.

    Attributes:
        name: which recipe.
        out: the build's folder, laid out by kbuild.
        tree: the source it was built from.
        source: the version of the source package, such as 6.12.117-1.
        clang: Clang compiles it, and not GCC.
    """

    name: str
    out: Path
    tree: Path
    source: str
    clang: bool = False

    @property
    def compiler(self) -> str:
        """The program that compiles it."""
        return CLANG if self.clang else GCC

    @property
    def kernel_version(self) -> str:
        """The point release, such as 6.12.117."""
        return self.source.split("-")[0]

    @property
    def image(self) -> Path:
        """The bootable image."""
        return self.out / "arch" / "arm64" / "boot" / "Image"

    @property
    def vmlinux(self) -> Path:
        """The kernel with symbols."""
        return self.out / "vmlinux"

    def has(self, symbol: str) -> bool:
        """Tell whether a symbol of Kconfig, without CONFIG_, is on: built in or as a module."""
        return parse_config((self.out / ".config").read_text()).get(symbol, "n") != "n"

    @property
    def modules(self) -> Path:
        """A folder with usr/lib/modules in it, to be laid over the guest's root."""
        return self.out / "modules"


@cache
def ensure(space: Workspace, name: str, release: Release | None = None) -> Build:
    """Bring a build up to date, once in the life of this process, and return it.

    Args:
        space: the repository.
        name: a build of builds.toml; with -without-FEATURE, that feature's symbol is left off, and
            with -without-tests what only the tests of features take.
        release: what the kernel says that it is; if None, the point release alone.

    Raises:
        PagewrightError: there is no such build, or no such feature.
        HostError: Clang is to compile it, and is not installed.
        BuildError: the configuration or the compiler failed.
        SourceError: the source could not be had, or a hook does not apply.
        DiskFullError: there is no space for it.
    """
    chosen = recipe(space, name)
    # Unpatched kernels are made of the source in the cache. The guest's root is in the clone, and
    # QEMU is told of it in a list with commas.
    for folder, unfit, program, todo in (
        (space.root, r"[\s:]", "kbuild", "move the clone to a path without spaces and colons"),
        (space.root, ",", "QEMU", "move the clone to a path without commas"),
        (space.cache, r"[\s:]", "kbuild", "set XDG_CACHE_HOME to a path without spaces and colons"),
    ):
        if re.search(unfit, str(folder)):
            raise BuildError(f"{program} cannot work below {folder}", todo)
    if chosen.clang:
        _require_clang(name)
    build = assembled(space, chosen)
    # The tree must not be assembled anew while it is compiled.
    with (
        lock(build.out, f"the build {name}"),
        lock(space.out, "the assembled tree", shared=True),
        timed("build"),
    ):
        require_own_tree(space, build)
        _start_over_for_another_source(build)
        if not build.image.exists():
            disk.require(build.out, space_for(chosen), f"the build {name}")
        start = _debian_config(space, chosen.debian, build.source)
        configure(space, build, chosen.files(space), start, chosen.modules)
        signing.place(build.out)
        _set_release(build, release)
        if not is_finished(space, build, release):
            env = _environment_of(space, release)
            stamp = build.out / FINISHED_STAMP
            stamp.unlink(missing_ok=True)
            # Before kbuild reads it: what is edited meanwhile is for the next time.
            made_of = _made_of(build, env)
            if manifest := Manifest.read(build.tree):
                times.renew(build.out / TEXTS_STAMP, build.tree, manifest.changeable(build.tree))
            _compile(build, space.base().objects, env)
            stamp.write_text(made_of + _results(build))
    return build


def assembled(space: Workspace, chosen: Recipe) -> Build:
    """Return a build whose tree is up to date; it is neither configured nor compiled yet.

    Raises:
        SourceError: the source could not be had, or a hook does not apply.
        DiskFullError: there is no space for it.
    """
    pristine = source.ensure(space)
    path = tree.assemble(space, pristine) if chosen.patched else pristine.path
    folder = space.out / chosen.name
    return Build(chosen.name, folder, path, pristine.package_version, chosen.clang)


def _require_clang(name: str) -> None:
    """Raise unless all is installed with which Clang compiles a build."""
    if lacking := packages.missing(packages.OF_CLANG):
        names = " ".join(packages.package_names(lacking))
        raise HostError(
            f"the build {name} takes {names}, not installed here",
            "run `pagewright setup --full`, or install them with apt",
        )


def require_own_tree(space: Workspace, build: Build) -> None:
    """Raise if the tree that a build is made from is of another release by now.

    The tree was not locked between its assembly and now, and a pagewright with another release may
    have waited for it. The caller holds the tree's lock.

    Raises:
        BuildError: it is of another release, or not whole.
    """
    if build.tree != space.tree:
        return
    there = Manifest.read(build.tree)
    if there is None or there.source != build.source:
        did = f"assembled linux {there.source}" if there else "begun to assemble the tree"
        raise BuildError(f"another pagewright has {did} meanwhile", "run the same command again")


def is_finished(space: Workspace, build: Build, release: Release | None) -> bool:
    """Tell whether all in a build's folder is made of its sources as they are now.

    The caller holds the locks of the folder and of the tree.

    Args:
        space: the repository.
        build: the build.
        release: as for `ensure`.
    """
    stamp = build.out / FINISHED_STAMP
    made_of = _made_of(build, _environment_of(space, release))
    return stamp.exists() and stamp.read_text() == made_of + _results(build)


def _environment_of(space: Workspace, release: Release | None) -> dict[str, str]:
    """Return the environment that a build is made in."""
    return {**environment(space), **(release.environment() if release else {})}


def space_for(chosen: Recipe) -> int:
    """Return how many megabytes a build takes in its folder and in the compiler cache."""
    if chosen.modules:
        return MODULES_BUILD_MB
    if chosen.debian:
        return DEBIAN_BUILD_MB
    return DEBUG_BUILD_MB if chosen.debug else BUILD_MB


def _set_release(build: Build, release: Release | None) -> None:
    """Have kbuild append what a release says to the kernel's version, or nothing.

    It is not done with CONFIG_LOCALVERSION: all objects depend on the configuration, so that the
    next release would have each compiled again.
    """
    file = build.out / LOCAL_VERSION
    if release is None:
        file.unlink(missing_ok=True)
    elif not file.exists() or file.read_text() != f"{release.suffix}\n":
        file.write_text(f"{release.suffix}\n")


def _start_over_for_another_source(build: Build) -> None:
    """Empty a build's folder if it was made from another version of the source package.

    kbuild compares times: files that another package brings may be older than the objects
    made from those of the last one, and would not be compiled.
    """
    stamp = build.out / SOURCE_STAMP
    if stamp.exists() and stamp.read_text() == f"{build.source}\n":
        return
    empty_folder(build.out, but=[LOCK_FILE])
    stamp.write_text(f"{build.source}\n")


def parse_config(text: str) -> dict[str, str]:
    """Return the symbols that a .config or a fragment sets; n for unset ones."""
    symbols = {}
    for line in text.splitlines():
        if match := re.match(r"CONFIG_(\w+)=(.*)", line):
            symbols[match[1]] = match[2]
        elif match := re.match(r"# CONFIG_(\w+) is not set", line):
            symbols[match[1]] = "n"
    return symbols


def unmet(wanted: dict[str, str], config: dict[str, str]) -> list[str]:
    """Return the symbols that a configuration does not have as they were asked for."""
    return [
        f"CONFIG_{name}={value} (is {config.get(name, 'n')})"
        for name, value in wanted.items()
        if config.get(name, "n") != value
    ]


def make_command(build: Build, *targets: str) -> list[str | Path]:
    """Return the make command line for a build.

    It gives way to all else that runs, as that may be guests of other tests. Without time on a
    processor their watchdogs would find that they hang.
    """
    tools = f"LLVM=-{LLVM}" if build.clang else f"CROSS_COMPILE={CROSS}"
    return [
        "nice",
        "make",
        "-C",
        build.tree,
        f"O={build.out}",
        "ARCH=arm64",
        tools,
        f"CC=ccache {build.compiler}",
        f"-j{os.cpu_count() or 1}",
        *targets,
    ]


def environment(space: Workspace) -> dict[str, str]:
    """Return the environment of a kernel build: ccache shared by clones, no dates."""
    return {
        "CCACHE_DIR": str(space.cache / "ccache"),
        "CCACHE_BASEDIR": str(space.root),
        "CCACHE_NOHASHDIR": "1",
        # With CCACHE_DEPEND=1 ccache would take all that a source depends on from the dependency
        # files that kbuild writes. What `.incbin` brings is not in them: the certificate of the
        # key that signs modules, the initramfs, the vDSO. An object with those of another build
        # would be taken from the cache. What was put there like that is not in this namespace.
        "CCACHE_NODEPEND": "1",
        "CCACHE_NAMESPACE": "all-dependencies",
        "CCACHE_MAXSIZE": CCACHE_SIZE,
        "KBUILD_BUILD_TIMESTAMP": "1970-01-01",
        "KBUILD_BUILD_USER": "builder",
        "KBUILD_BUILD_HOST": "localhost",
    }


def configure(
    space: Workspace, build: Build, fragments: list[Path], start: str = "", modules: bool = False
) -> None:
    """Make .config from what it starts from and the fragments, if they or the tree changed.

    Args:
        space: the repository.
        build: the build.
        fragments: files whose symbols must come out as they say; of several that name one the last.
        start: the text of a whole configuration; without it all starts from allnoconfig.
        modules: keep the modules of that configuration.

    Raises:
        BuildError: a symbol of a fragment did not take its value.
    """
    manifest = Manifest.read(build.tree)
    text = f"# linux {build.source}, {manifest.describe() if manifest else 'no hooks'}\n"
    asked = "".join(f"{file.read_text()}\n" for file in fragments)
    text += start + asked
    merged = build.out / "fragments.config"
    config = build.out / ".config"
    if not (config.exists() and merged.exists() and merged.read_text() == text):
        merged.unlink(missing_ok=True)
        wanted = build.out / "wanted.config"
        wanted.write_text(text)
        if start:
            config.write_text(start)
            if not modules:
                run(make_command(build, "mod2noconfig"), env=environment(space))
            # Of two lines for one symbol the last one counts.
            config.write_text(config.read_text() + asked)
            run(make_command(build, "olddefconfig"), env=environment(space))
        else:
            command = make_command(build, "allnoconfig")
            run([*command, f"KCONFIG_ALLCONFIG={wanted}"], env=environment(space))
        got = parse_config(config.read_text())
        # Of several fragments that name a symbol the last one counts.
        wishes = {
            symbol: (file, value)
            for file in fragments
            for symbol, value in parse_config(file.read_text()).items()
        }
        lines = [
            f"  {os.path.relpath(file, space.root)}: {line}"
            for symbol, (file, value) in wishes.items()
            for line in unmet({symbol: value}, got)
        ]
        if lines:
            config.unlink()
            raise BuildError(
                f"{build.name}: {len(lines)} config symbols did not take the value asked for",
                "add what they depend on to the fragment, or take them out",
                "\n".join(lines),
            )
        wanted.rename(merged)


def _debian_config(space: Workspace, flavour: str, version: str) -> str:
    """Return the configuration of one of Debian's kernels of arm64, such as cloud-arm64.

    Args:
        space: the repository.
        flavour: the kernel; "" for none, which has an empty configuration.
        version: that of the source package. Debian changes configurations within a release of
            the kernel, so the configuration is to be of the same version as the source.
    """
    if not flavour:
        return ""
    try:
        fetched = arm64_packages.fetch(space, [f"{DEBIAN_CONFIGS}={version}"])
    except VersionGoneError:
        fetched = arm64_packages.fetch(space, [DEBIAN_CONFIGS], instead_of=version)
        say(f"taking {_config_of(fetched)}, as {version} of it cannot be had")
    name = f"usr/src/{DEBIAN_CONFIGS}/config.arm64_none_{flavour}.xz"
    return lzma.decompress(arm64_packages.read(fetched, name)).decode()


def _config_of(fetched: arm64_packages.Fetched) -> str:
    """Return the name and the version of the package of configurations that was fetched."""
    lines = fetched.listing.read_text().splitlines()
    return next((line for line in lines if line.startswith(f"{DEBIAN_CONFIGS} ")), DEBIAN_CONFIGS)


def _compile(build: Build, total: int, env: Mapping[str, str]) -> None:
    """Run kbuild; the progress is the number of objects made."""
    made = 0
    log = build.out / "build.log"
    with Bar(f"build {build.name}", total) as bar:

        def follow(line: str) -> None:
            nonlocal made
            if re.match(r"\s+(CC|AS)\b", line):
                made += 1
                bar.advance()

        try:
            run(make_command(build, "Image", "modules"), env=env, on_line=follow, log=log)
        except PagewrightError as error:
            error.todo = error.todo or f"the whole log is {log}"
            raise
        _install_modules(build, env)


def _made_of(build: Build, env: Mapping[str, str]) -> str:
    """Return all that a build depends on.

    kbuild takes seconds to find that it has nothing to do. It is asked again when any of this
    changed.
    """
    manifest = Manifest.read(build.tree)
    lines = [
        f"tree {manifest.key(build.tree) if manifest else build.source}",
        f"compiler {version(build.compiler)}",
        *(f"{name} {digest(build.out / name)}" for name in (".config", LOCAL_VERSION)),
        f"key {digest(build.out / signing.PLACE)}",
        *(f"{name}={value}" for name, value in sorted(env.items())),
    ]
    return "".join(f"{line}\n" for line in lines)


def _results(build: Build) -> str:
    """Return the times of what kbuild made: others if someone has run it by hand."""
    files = [build.image, build.vmlinux, build.modules]
    return _times(files) + _compiled_modules(build)


def _install_modules(build: Build, env: Mapping[str, str]) -> None:
    """Install the modules, if they are not those that were installed last.

    kbuild removes the installed ones first, and another process may be packing them for a guest.
    It signs modules when it installs them, so that another key is a reason to install them again.
    """
    stamp = build.out / INSTALLED_STAMP
    wanted = f"{_compiled_modules(build)}key {digest(build.out / signing.PLACE)}\n"
    if build.modules.exists() and stamp.exists() and stamp.read_text() == wanted:
        return
    stamp.unlink(missing_ok=True)
    # kbuild removes only what has the kernel's present name, and those of other numbers would stay.
    installed = build.modules / "usr" / "lib" / "modules"
    if installed.exists():
        shutil.rmtree(installed)
    command = make_command(build, "modules_install")
    run([*command, f"INSTALL_MOD_PATH={build.modules / 'usr'}"], env=env)
    stamp.write_text(wanted)


def _compiled_modules(build: Build) -> str:
    """Return the files that kbuild would install, with the time of each."""
    order = build.out / "modules.order"
    objects = order.read_text().split() if order.exists() else []
    names = ["include/config/kernel.release", "modules.builtin", "modules.order"]
    names += [str(Path(name).with_suffix(".ko")) for name in objects]
    return _times([build.out / name for name in names])


def _times(files: Iterable[Path]) -> str:
    """Return a line for each file that is there."""
    return "".join(f"{file} {file.stat().st_mtime_ns}\n" for file in files if file.exists())
