"""Our code is clean under the checkers of its field."""

from __future__ import annotations

import platform
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pagewright.host import workspace
from pagewright.host.answers import remembered
from pagewright.host.lock import lock
from pagewright.host.run import run
from pagewright.host.toolchain import GCC, GCC_ARM32, HOST_GCC
from pagewright.kernel import build, tree
from pagewright.kernel.checks import checkpatch

SPACE = workspace.find()
NEW_FILES = [str(file) for feature in SPACE.features() for file in feature.new_files()]
OBJECTS = sorted({f"{name}" for feature in SPACE.features() for name in feature.objects()})
TREE = Path("/tree")
CHECKS = ("W=1", "C=2", "CHECK=sparse")
# Sources that another one includes.
INCLUDED = {"mm/percpu-vm.c": "mm/percpu.c"}


def python(*arguments: str) -> None:
    run([sys.executable, "-m", *arguments], cwd=SPACE.root)


def test_ruff():
    python("ruff", "check", ".")


def test_ruff_format():
    python("ruff", "format", "--check", ".")


def test_mypy():
    python("mypy")


def test_checkpatch_sees_a_fault(tmp_path: Path):
    bad = tmp_path / "bad.c"
    bad.write_text("// SPDX-License-Identifier: GPL-2.0-only\nint f(int a){return a%2;}\n")
    assert checkpatch(SPACE, build.ensure(SPACE, "patched-4k").tree, [bad], "-f")


def test_checkpatch_sees_the_only_fault_of_each_file(tmp_path: Path):
    files = [tmp_path / "one.c", tmp_path / "two.c"]
    for file in files:
        file.write_text(
            "// SPDX-License-Identifier: GPL-2.0-only\nint f(int a)\n{\n\treturn a%2;\n}\n"
        )
    complaints = checkpatch(SPACE, build.ensure(SPACE, "patched-4k").tree, files, "-f")
    assert [next(f.name for f in files if f.name in c) for c in complaints] == ["one.c", "two.c"]


def hooked_objects(hooked: list[str]) -> list[str]:
    """Return what the sources that hooks touch compile to; a linker script does to no object."""
    sources = {
        INCLUDED.get(name, name)
        for name in hooked
        if Path(name).suffix in (".c", ".S") and not name.endswith(".lds.S")
    }
    return sorted(str(Path(name).with_suffix(".o")) for name in sources)


def test_hooked_objects_are_those_of_all_hooked_sources():
    hooked = ["mm/percpu-vm.c", "mm/a.c", "arch/b.S", "arch/vmlinux.lds.S", "mm/c.h", "mm/Kconfig"]
    assert hooked_objects(hooked) == ["arch/b.o", "mm/a.o", "mm/percpu.o"]


def compiled(like: build.Build, name: str, more: str, *targets: str) -> str:
    """Compile in a folder of its own, so that no build is disturbed, and return what make says.

    Args:
        like: the build whose tree and configuration are taken.
        name: of the folder.
        more: what else is in the configuration; what is there twice counts as the second time.
        targets: what is made, and variables of make.
    """
    scratch = build.Build(name, SPACE.out / name, like.tree, like.source)
    scratch.out.mkdir(exist_ok=True)
    wanted = (like.out / ".config").read_text() + more
    config, asked = scratch.out / ".config", scratch.out / "asked.config"
    environment = build.environment(SPACE)
    with lock(scratch.out, "the folder of the checks"):
        if not asked.exists() or asked.read_text() != wanted:
            config.write_text(wanted)
            run(build.make_command(scratch, "olddefconfig"), env=environment)
            asked.write_text(wanted)
        run(build.make_command(scratch, "prepare"), env=environment)
        # What was compiled before would say nothing.
        for file in {*OBJECTS, *targets}:
            if file.endswith(".o"):
                (scratch.out / file).unlink(missing_ok=True)
        output = run(build.make_command(scratch, *targets), env=environment)
    assert all((scratch.out / target).exists() for target in targets if target.endswith(".o"))
    return output


def said_of(like: build.Build, name: str, more: str, objects: list[str]) -> str:
    """Return what W=1 and sparse say, asking them only of what they have not seen before.

    The tree is called TREE, as it is another one in each clone.
    """
    manifest = tree.Manifest.read(like.tree)
    inputs = [
        like.source,
        manifest.key(like.tree) if manifest else "",
        (like.out / ".config").read_text() + more,
        *CHECKS,
        *objects,
        *(run([program, "--version"]) for program in (GCC, "sparse")),
        run(["make", "--version"]),
    ]

    def ask() -> str:
        return compiled(like, name, more, *CHECKS, *objects).replace(f"{like.tree}/", f"{TREE}/")

    return remembered(SPACE, "sparse", inputs, ask)


def complaints(output: str, tree: Path) -> Counter[tuple[str, str]]:
    """Count what is said of each file of a tree: each complaint once for each place."""
    return Counter((file, text) for file, _, text in places(output, tree))


def places(output: str, tree: Path) -> set[tuple[str, int, str]]:
    """Return what is said of files of a tree: the file, the line, the complaint."""
    found = re.findall(rf"^{tree}/(\S+?):(\d+):\d+: (?:warning|error): (.*)$", output, re.M)
    return {(file, int(line), text) for file, line, text in found}


def is_of_the_base(file: str, line: int, patched: Path, base: Path) -> bool:
    """Whether a line of a header is the base's: our new files include it and use it anew."""
    if not file.endswith(".h") or not (base / file).exists():
        return False
    return (patched / file).read_text().splitlines()[line - 1] in (base / file).read_text()


def test_complaints_count_places():
    line = "/tree/mm/a.c:{}:1: warning: dubious: !x\n"
    once, twice = line.format(1) * 2, line.format(1) + line.format(2)
    assert complaints(once, TREE) == {("mm/a.c", "dubious: !x"): 1}
    assert complaints(twice, TREE) - complaints(once, TREE) == {("mm/a.c", "dubious: !x"): 1}


@pytest.mark.long(4)
def test_w1_and_sparse_say_no_more_than_of_the_base():
    """New files must be silent; of hooked files no more may be said than without our hooks."""
    patched, base = build.ensure(SPACE, "patched-4k"), build.ensure(SPACE, "base-4k")
    manifest = tree.Manifest.read(patched.tree)
    assert manifest
    hooked = hooked_objects(list(manifest.hooked))
    # What belongs to KASAN the everyday configuration does not compile, but the checked one; and
    # none has events of firmware, which QEMU has not either.
    elsewhere = [name for name in hooked if not (patched.out / name).exists()]
    hooked = [name for name in hooked if name not in elsewhere]
    # Of the debug builds' symbols only those of the features themselves.
    debug = [f.debug_config.read_text() for f in SPACE.features() if f.debug_config.exists()]
    objects = sorted({*OBJECTS, *hooked})
    output = said_of(patched, "check", "".join(debug), objects)
    assert output.count("  CHECK ") >= len(OBJECTS)
    # What the base's configuration does not build has no complaints to compare with.
    built = [name for name in hooked if (base.out / name).exists()]
    before = complaints(said_of(base, "check-base", "", built), TREE)
    if elsewhere:
        checked = build.ensure(SPACE, "checked-4k")
        unpatched = replace(checked, tree=base.tree, source=base.source)
        more = "CONFIG_ARM_SDE_INTERFACE=y\n"
        output += said_of(checked, "check-checked", more, elsewhere)
        before += complaints(said_of(unpatched, "check-unpatched", more, elsewhere), TREE)
    # Both checkers have something to say of the base: they did run.
    for kind in (r"\[-W", "context imbalance"):
        assert any(re.search(kind, text) for _, text in before)
    ours = {*NEW_FILES, *manifest.hooked}
    new = complaints(output, TREE) - before
    assert [
        f"{file}:{line}: {text}"
        for file, line, text in sorted(places(output, TREE))
        if file in ours
        and (file, text) in new
        and not is_of_the_base(file, line, patched.tree, base.tree)
    ] == []


# What servers, phones or test kernels leave out, one at a time; with it goes what would select it.
LEFT_OUT = (
    *("MODULES", "KFENCE", "MEMORY_HOTPLUG", "MEMORY_FAILURE", "NUMA", "DEBUG_FS", "VMAP_STACK"),
    *("HIBERNATION", "SUSPEND HIBERNATION HOTPLUG_CPU", "TRANSPARENT_HUGEPAGE", "ARM64_HW_AFDBM"),
    *("EFI", "ACPI", "PROC_FS", "HUGETLBFS"),
)


@pytest.mark.full
@pytest.mark.parametrize("symbols", LEFT_OUT)
def test_our_folders_compile_without_what_most_kernels_have(symbols):
    """An error stops make, wherever it is; warnings must not be of our files."""
    patched = build.ensure(SPACE, "patched-4k")
    # Without EXPERT nobody can leave out PROC_FS.
    off = "CONFIG_EXPERT=y\n"
    off += "".join(f"# CONFIG_{symbol} is not set\n" for symbol in symbols.split())
    output = compiled(patched, "check-without", off, "arch/arm64/kernel/", "arch/arm64/mm/", "mm/")
    config = (SPACE.out / "check-without" / ".config").read_text().splitlines()
    assert not {f"CONFIG_{symbol}=y" for symbol in symbols.split()} & set(config)
    assert {place for place in places(output, patched.tree) if place[0] in NEW_FILES} == set()


# Where else what is not arm64's has to compile: what the configuration starts from, the compiler,
# and what of it is there. kbuild compiles what it is asked for, whether that is switched on or not.
OTHERS = {
    "x86_64": ("x86_64_defconfig", HOST_GCC, ("fs/", "lib/", "mm/")),
    "arm": (
        "multi_v7_defconfig",
        GCC_ARM32,
        ("drivers/clocksource/", "drivers/irqchip/", "kernel/", "mm/percpu", "mm/vm"),
    ),
}
# What our hooks change and these configurations leave out.
OF_OTHERS = ("HUGETLBFS", "KUNIT", "LKDTM", "MEMORY_FAILURE", "MEMORY_HOTPLUG", "MEMORY_HOTREMOVE")


def said_elsewhere(arch: str, like: build.Build, out: Path, names: list[str]) -> str:
    """Compile objects for another architecture, and return what make says."""
    start, compiler, _ = OTHERS[arch]
    scratch = build.Build(out.name, out, like.tree, like.source)
    environment = build.environment(SPACE)

    def make(*targets: str, check: bool = True) -> str:
        # Of two values of a variable of make the last one counts.
        others = (f"ARCH={arch}", f"CROSS_COMPILE={compiler.removesuffix('gcc')}")
        command = build.make_command(scratch, *others, f"CC=ccache {compiler}", *targets)
        return run(command, env=environment, check=check)

    out.mkdir()
    make(start)
    with (out / ".config").open("a") as config:
        config.writelines(f"CONFIG_{symbol}=y\n" for symbol in OF_OTHERS)
        config.write("CONFIG_PERCPU_KUNIT_TEST=y\nCONFIG_PERCPU_TORTURE_TEST=m\n")
    make("olddefconfig")
    make("prepare")
    return make("W=1", *names)


@pytest.mark.full
@pytest.mark.parametrize("arch", OTHERS)
def test_what_is_not_of_arm64_compiles_elsewhere(arch, tmp_path):
    """Warnings are no more than without our hooks. 32-bit systems count in other types."""
    if arch == "x86_64" and platform.machine() != arch:
        pytest.skip("the compiler of x86-64 is installed on x86-64 alone")
    patched, base = build.ensure(SPACE, "patched-4k"), build.ensure(SPACE, "base-4k")
    manifest = tree.Manifest.read(patched.tree)
    assert manifest
    *_, there = OTHERS[arch]
    names = [n for n in hooked_objects(list(manifest.hooked)) if n.startswith(there)]
    # What the feature's own symbol switches on is not there.
    new = [n for n in OBJECTS if n.startswith("lib/percpu_") and n.startswith(there)]
    assert "mm/vmalloc.o" in names
    said = said_elsewhere(arch, patched, tmp_path / "patched", [*names, *new])
    before = said_elsewhere(arch, base, tmp_path / "base", names)
    found = complaints(said.replace(f"{patched.tree}/", f"{TREE}/"), TREE)
    found -= complaints(before.replace(f"{base.tree}/", f"{TREE}/"), TREE)
    assert {key: n for key, n in found.items() if key[0] in {*NEW_FILES, *manifest.hooked}} == {}
