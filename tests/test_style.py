"""Our code is clean under the checkers of its field."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pagewright.host import workspace
from pagewright.host.run import run
from pagewright.kernel import build
from pagewright.kernel.checks import checkpatch, known_complaints

SPACE = workspace.find()
NEW_FILES = [(f, file) for f in SPACE.features() for file in f.new_files()]
KNOWN = known_complaints(SPACE)
SOURCES = [f.overlay / file for f, file in NEW_FILES if file.suffix in (".c", ".h", ".S")]
OBJECTS = sorted({f"{name}" for feature in SPACE.features() for name in feature.objects()})
# Files that hooks change in code that runs; the checkers look at them too.
HOOKED_OBJECTS = (
    "arch/arm64/mm/fault.o",
    "arch/arm64/mm/mmu.o",
    "arch/arm64/mm/pageattr.o",
    "arch/arm64/mm/ptdump.o",
    "drivers/base/arch_numa.o",
    "mm/hugetlb_vmemmap.o",
    "mm/percpu.o",
)
# What sparse says of hooked files without our hooks.
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


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: f.name)
def test_checkpatch(file: Path):
    assert checkpatch(build.ensure(SPACE, "patched-4k").tree, [file], "-f", known=KNOWN) == []


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


def test_w1_and_sparse_are_silent():
    """Compile our files in a folder of their own, so that no build is disturbed."""
    built = build.ensure(SPACE, "patched-4k")
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
    for name in (*OBJECTS, *HOOKED_OBJECTS):
        (scratch.out / name).unlink(missing_ok=True)
    command = build.make_command(scratch, "W=1", "C=2", "CHECK=sparse", *OBJECTS, *HOOKED_OBJECTS)
    output = run(command, env=environment)
    assert all((scratch.out / name).exists() for name in OBJECTS)
    assert output.count("  CHECK ") >= len(OBJECTS)
    ours = [str(file) for _, file in NEW_FILES] + [n.replace(".o", ".c") for n in HOOKED_OBJECTS]
    complaints = [
        line
        for line in output.splitlines()
        if re.search(r"warning:|error:", line)
        and any(name in line for name in ours)
        and not any(known in line for known in IN_THE_BASE_TOO)
    ]
    assert complaints == []
