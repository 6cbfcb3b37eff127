"""The rooms of the package import as docs/architecture.md says, and it names what there is."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from pagewright.host import workspace

SPACE = workspace.find()
PACKAGE = SPACE.root / "pagewright"
# Each room imports from itself and from those before it.
ROOMS = ["host", "kernel", "guest", "machine", "results", "cli"]
# What only tests load.
LOAD_PYTEST = ("pagewright.results.subtests.", "pagewright.results.passed.")
MODULES = sorted(PACKAGE.glob("*/*.py"))


def imported(file: Path) -> set[str]:
    """Return the rooms that a module imports from."""
    names = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("pagewright.")}


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_a_room_imports_only_from_rooms_before_it(file: Path):
    room = ROOMS.index(file.parent.name)
    assert imported(file) <= set(ROOMS[: room + 1])


def test_the_package_knows_no_feature_by_name():
    """Nor in a comment, in C, or as an identifier."""
    names = "|".join(feature.name.replace("-", "[-_]") for feature in SPACE.features())
    files = [file for kind in ("py", "c", "h", "yaml") for file in PACKAGE.rglob(f"*.{kind}")]
    assert PACKAGE / "machine" / "count.c" in files
    named = [
        f"{file.relative_to(SPACE.root)}: {line}"
        for file in files
        for line in file.read_text().splitlines()
        if re.search(names, line, re.IGNORECASE)
    ]
    assert named == []


def test_only_tests_load_pytest():
    """Neither the command line nor what it loads does, but for the command that runs the tests."""
    loaded = []
    for file in MODULES:
        for node in ast.parse(file.read_text()).body:
            names = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            if any(f"{name}.".startswith(("pytest.", *LOAD_PYTEST)) for name in names):
                loaded.append(str(file.relative_to(PACKAGE)))
    assert loaded == ["results/passed.py", "results/subtests.py"]


def test_every_module_is_in_the_document():
    text = (SPACE.root / "docs" / "architecture.md").read_text()
    missing = [
        str(file.relative_to(PACKAGE))
        for file in MODULES
        if file.parent.name != "cli" and file.stem != "__init__" and f"`{file.stem}`" not in text
    ]
    assert missing == []


def test_no_module_of_the_tests_has_the_name_of_a_folder():
    """When pytest has loaded tests of a folder, Python imports the folder by that name."""
    modules = [*SPACE.root.glob("tests/shared/*.py"), *SPACE.root.glob("features/*/host/*.py")]
    names = {module.stem for module in modules}
    assert "documents" in names
    assert names & {folder.name for folder in SPACE.root.iterdir() if folder.is_dir()} == set()
