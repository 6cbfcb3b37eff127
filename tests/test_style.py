"""Our code is clean under the checkers of its field."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pagewright.host import workspace
from pagewright.host.run import run
from pagewright.kernel import build, tree
from pagewright.kernel.checks import checkpatch

SPACE = workspace.find()
NEW_FILES = [str(file) for feature in SPACE.features() for file in feature.new_files()]
OBJECTS = sorted({f"{name}" for feature in SPACE.features() for name in feature.objects()})
# Sources that another one includes.
INCLUDED = {"mm/percpu-vm.c": "mm/percpu.c"}
# What sparse and W=1 say of hooked files without our hooks.
IN_THE_BASE_TOO = (
    "context imbalance in 'pcpu_balance_free'",
    "context imbalance in 'show_pte'",
    "symbol 'rodata_full' was not declared",
)


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
    assert checkpatch(build.ensure(SPACE, "patched-4k").tree, [bad], "-f")


def test_checkpatch_sees_the_only_fault_of_each_file(tmp_path: Path):
    files = [tmp_path / "one.c", tmp_path / "two.c"]
    for file in files:
        file.write_text(
            "// SPDX-License-Identifier: GPL-2.0-only\nint f(int a)\n{\n\treturn a%2;\n}\n"
        )
    complaints = checkpatch(build.ensure(SPACE, "patched-4k").tree, files, "-f")
    assert [next(f.name for f in files if f.name in c) for c in complaints] == ["one.c", "two.c"]


def hooked_objects(hooked: list[str]) -> list[str]:
    """Return what the sources that hooks touch compile to."""
    sources = {INCLUDED.get(name, name) for name in hooked if Path(name).suffix in (".c", ".S")}
    return sorted(str(Path(name).with_suffix(".o")) for name in sources)


def test_hooked_objects_are_those_of_all_hooked_sources():
    hooked = ["mm/percpu-vm.c", "mm/a.c", "arch/b.S", "mm/c.h", "mm/Kconfig"]
    assert hooked_objects(hooked) == ["arch/b.o", "mm/a.o", "mm/percpu.o"]


def test_w1_and_sparse_are_silent():
    """Compile our files in a folder of their own, so that no build is disturbed."""
    built = build.ensure(SPACE, "patched-4k")
    manifest = tree.Manifest.read(built.tree)
    assert manifest
    objects = sorted({*OBJECTS, *hooked_objects(list(manifest.hooked))})
    scratch = build.Build("check", SPACE.out / "check", built.tree, built.source)
    scratch.out.mkdir(exist_ok=True)
    # Of the debug builds' symbols only those of the features themselves.
    debug = [f.debug_config.read_text() for f in SPACE.features() if f.debug_config.exists()]
    wanted = "".join([(built.out / ".config").read_text(), *debug])
    config, asked = scratch.out / ".config", scratch.out / "asked.config"
    environment = build.environment(SPACE)
    if not asked.exists() or asked.read_text() != wanted:
        config.write_text(wanted)
        run(build.make_command(scratch, "olddefconfig"), env=environment)
        asked.write_text(wanted)
    run(build.make_command(scratch, "prepare"), env=environment)
    for name in objects:
        (scratch.out / name).unlink(missing_ok=True)
    command = build.make_command(scratch, "W=1", "C=2", "CHECK=sparse", *objects)
    output = run(command, env=environment)
    assert all((scratch.out / name).exists() for name in objects)
    assert output.count("  CHECK ") >= len(OBJECTS)
    complaints = [
        line
        for line in output.splitlines()
        if re.search(r"warning:|error:", line)
        and any(name in line for name in (*NEW_FILES, *manifest.hooked))
        and not any(known in line for known in IN_THE_BASE_TOO)
    ]
    assert complaints == []
