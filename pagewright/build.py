"""Assembled tree + config fragments -> Image, modules, vmlinux."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pagewright import source, tree, workspace
from pagewright.errors import PagewrightError
from pagewright.progress import Bar
from pagewright.run import run
from pagewright.workspace import Workspace, lock

CROSS = "aarch64-linux-gnu-"
CCACHE_SIZE = "8G"


@dataclass(frozen=True)
class Recipe:
    """How a named build is made: its config fragments, and which features it has."""

    fragments: tuple[str, ...]
    patched: bool
    without: tuple[str, ...] = ()


RECIPES = {
    "base-4k": Recipe(("virt", "pages-4k", "preempt-dynamic"), patched=False),
    "patched-4k": Recipe(("virt", "pages-4k", "preempt-dynamic"), patched=True),
    "debug-4k": Recipe(("virt", "pages-4k", "preempt-dynamic", "debug"), patched=True),
    # HVO as it must not be done on hardware, for measurements.
    "naive-4k": Recipe(
        ("virt", "pages-4k", "preempt-dynamic", "naive"), patched=True, without=("hugetlb-vmemmap",)
    ),
    "base-16k": Recipe(("virt", "pages-16k", "preempt-dynamic"), patched=False),
    "patched-16k": Recipe(("virt", "pages-16k", "preempt-dynamic"), patched=True),
    "base-64k": Recipe(("virt", "pages-64k", "preempt-dynamic"), patched=False),
    "patched-64k": Recipe(("virt", "pages-64k", "preempt-dynamic"), patched=True),
    "base-kvm-4k": Recipe(("virt", "pages-4k", "preempt-dynamic", "kvm"), patched=False),
    "patched-kvm-4k": Recipe(("virt", "pages-4k", "preempt-dynamic", "kvm"), patched=True),
    "base-voluntary-4k": Recipe(("virt", "pages-4k", "preempt-voluntary"), patched=False),
    "patched-voluntary-4k": Recipe(("virt", "pages-4k", "preempt-voluntary"), patched=True),
}


def _tiny(*fragments: str) -> Recipe:
    """Return the recipe of a small kernel with percpu-local alone."""
    others = ("atomic-write-fault", "cpu-pause", "hugetlb-vmemmap", "linear-map")
    return Recipe(("tiny", *fragments, "preempt-dynamic"), patched=True, without=others)


# Every page size and number of kernel address bits, and KASAN with tags.
MATRIX = [
    f"{size}-{bits}"
    for size, all_bits in {"4k": (39, 48, 52), "16k": (47, 48, 52), "64k": (42, 48, 52)}.items()
    for bits in all_bits
]
RECIPES |= {
    f"tiny-{size}-{bits}": _tiny(f"pages-{size}", f"va-{bits}")
    for size, bits in (name.split("-") for name in MATRIX)
}
KASAN = ("kasan-sw-tags", "kasan-hw-tags")
RECIPES |= {f"tiny-4k-52-{kind}": _tiny("pages-4k", "va-52", kind) for kind in KASAN}

# What `make test` boots.
TESTED = ("patched-4k", "base-4k", "debug-4k", "tiny-4k-39", "tiny-64k-42")


@dataclass(frozen=True)
class Build:
    """A finished kernel build.

    Attributes:
        name: which recipe.
        out: the build's folder, laid out by kbuild.
        tree: the source it was built from.
        kernel_version: the point release, such as 6.12.117.
    """

    name: str
    out: Path
    tree: Path
    kernel_version: str

    @property
    def image(self) -> Path:
        """The bootable image."""
        return self.out / "arch" / "arm64" / "boot" / "Image"

    @property
    def vmlinux(self) -> Path:
        """The kernel with symbols."""
        return self.out / "vmlinux"

    @property
    def modules(self) -> Path:
        """A folder with usr/lib/modules in it, to be laid over the guest's root."""
        return self.out / "modules"


def recipe(name: str) -> Recipe:
    """Return a recipe by name; NAME-without-FEATURE leaves a feature's symbol off.

    Raises:
        PagewrightError: there is none of that name.
    """
    base, *without = name.split("-without-")
    if base not in RECIPES:
        raise PagewrightError(
            f"there is no build {name!r}", f"the builds are: {', '.join(RECIPES)}"
        )
    return replace(RECIPES[base], without=(*RECIPES[base].without, *without))


@cache
def ensure(name: str, without: tuple[str, ...] = ()) -> Build:
    """Bring a build up to date, once in the life of this process, and return it.

    Args:
        name: a key of RECIPES.
        without: features whose Kconfig symbol is left off; such a build has a
            folder of its own, and its name says so.

    Raises:
        PagewrightError: the source, a hook, the configuration or the compiler failed.
    """
    space = workspace.find()
    chosen = recipe(name)
    pristine = source.ensure(space)
    tree_path = tree.assemble(space, pristine) if chosen.patched else pristine.path
    full_name = "-without-".join((name, *without))
    build = Build(full_name, space.out / full_name, tree_path, pristine.kernel_version)
    if re.search(r"[\s:]", str(space.root)):
        raise PagewrightError(
            f"kbuild cannot work below {space.root}", "move the clone to a path without spaces"
        )
    # The tree must not be assembled anew while it is compiled.
    with (
        lock(build.out, f"the build {full_name}"),
        lock(space.out, "the assembled tree", shared=True),
    ):
        configure(space, build, _fragments(space, chosen, (*chosen.without, *without)))
        _compile(space, build)
    return build


def _fragments(space: Workspace, chosen: Recipe, without: tuple[str, ...]) -> list[Path]:
    """Return the fragment files of a recipe, the features' own included."""
    config = space.root / "base" / space.version / "config"
    files = [config / f"{fragment}.config" for fragment in chosen.fragments]
    if chosen.patched:
        for name in without:
            space.feature(name)
        kept = [f for f in space.features() if f.name not in without]
        files += [f.config for f in kept]
        if "debug" in chosen.fragments:
            files += [f.debug_config for f in kept if f.debug_config.exists()]
    return files


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
    """Return the make command line for a build."""
    return [
        "make",
        "-C",
        build.tree,
        f"O={build.out}",
        "ARCH=arm64",
        f"CROSS_COMPILE={CROSS}",
        f"CC=ccache {CROSS}gcc",
        f"-j{os.cpu_count() or 1}",
        *targets,
    ]


def environment(space: Workspace) -> dict[str, str]:
    """Return the environment of a kernel build: ccache shared by clones, no dates."""
    return {
        "CCACHE_DIR": str(space.cache / "ccache"),
        "CCACHE_BASEDIR": str(space.root),
        "CCACHE_NOHASHDIR": "1",
        # The kernel build writes dependency files; ccache need not preprocess to find them.
        "CCACHE_DEPEND": "1",
        "CCACHE_MAXSIZE": CCACHE_SIZE,
        "KBUILD_BUILD_TIMESTAMP": "1970-01-01",
        "KBUILD_BUILD_USER": "builder",
        "KBUILD_BUILD_HOST": "localhost",
    }


def configure(space: Workspace, build: Build, fragments: list[Path]) -> None:
    """Make .config from allnoconfig and the fragments, if they or the tree changed."""
    manifest = tree.Manifest.read(build.tree)
    text = f"# linux {build.kernel_version}, hooks {manifest.key if manifest else 'none'}\n"
    text += "".join(f"{file.read_text()}\n" for file in fragments)
    merged = build.out / "fragments.config"
    config = build.out / ".config"
    if not (config.exists() and merged.exists() and merged.read_text() == text):
        merged.unlink(missing_ok=True)
        wanted = build.out / "wanted.config"
        wanted.write_text(text)
        run(
            [*make_command(build, "allnoconfig"), f"KCONFIG_ALLCONFIG={wanted}"],
            env=environment(space),
        )
        got = parse_config(config.read_text())
        lines = [
            f"  {os.path.relpath(file, space.root)}: {line}"
            for file in fragments
            for line in unmet(parse_config(file.read_text()), got)
        ]
        if lines:
            config.unlink()
            raise PagewrightError(
                f"{build.name}: {len(lines)} config symbols did not take the value asked for",
                "add what they depend on to the fragment, or take them out",
                "\n".join(lines),
            )
        wanted.rename(merged)


def _compile(space: Workspace, build: Build) -> None:
    """Run kbuild; the progress is the number of objects made."""
    made = 0
    total = space.base().objects
    log = build.out / "build.log"
    env = environment(space)
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
        run(
            [
                *make_command(build, "modules_install"),
                f"INSTALL_MOD_PATH={build.modules / 'usr'}",
            ],
            env=env,
        )
