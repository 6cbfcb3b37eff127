"""The rooms of the package import as docs/architecture.md says, and it names what there is."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pagewright.host import workspace

SPACE = workspace.find()
PACKAGE = SPACE.root / "pagewright"
# Each room imports from itself and from those before it.
ROOMS = ["host", "kernel", "guest", "machine", "results", "cli"]
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
    names = [feature.name for feature in SPACE.features()]
    named = [
        f"{file.relative_to(SPACE.root)}: {node.value}"
        for file in MODULES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and any(node.value.startswith((name, f"features/{name}")) for name in names)
    ]
    assert named == []


def test_every_module_is_in_the_document():
    text = (SPACE.root / "docs" / "architecture.md").read_text()
    missing = [
        str(file.relative_to(PACKAGE))
        for file in MODULES
        if file.parent.name != "cli" and file.stem != "__init__" and f"`{file.stem}`" not in text
    ]
    assert missing == []
