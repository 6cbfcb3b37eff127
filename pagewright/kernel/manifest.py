"""What an assembly put into the tree, and what was edited there by hand since."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass, field, fields
from pathlib import Path

from pagewright.host.files import digest, replace_text
from pagewright.host.run import run

MANIFEST = ".assembled.json"
# Folders of the tree that are quilt's own.
_QUILT = (".pc", "patches")
# Files' times come from a clock that ticks this seldom, at most.
_TICK = 10_000_000


@dataclass
class Manifest:
    """What an assembly put into the tree.

    The time of its file is when the tree was last searched for edits.

    Attributes:
        source: the version of the source package.
        hooked: each file that a hook touches, with the digest of its text.
        links: each new file.
        hooks: each hook in the order of the series, with the digest of its text.
        inputs: digest of everything the assembly was made from.
        edited: each file that was edited in the tree and is in no hook, with its digest.
    """

    source: str = ""
    hooked: dict[str, str] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    hooks: dict[str, str] = field(default_factory=dict)
    inputs: str = ""
    edited: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, tree: Path) -> Manifest | None:
        """Return the manifest of a tree, or None if there is none."""
        file = tree / MANIFEST
        if not file.exists():
            return None
        known = {one.name for one in fields(cls)}
        return cls(**{k: v for k, v in json.loads(file.read_text()).items() if k in known})

    def write(self, tree: Path, searched: int) -> None:
        """Store the manifest in a tree.

        Args:
            tree: the assembled tree.
            searched: when a search for edits began, as `now` gave it.
        """
        replace_text(tree / MANIFEST, json.dumps(self.__dict__, indent=1))
        os.utime(tree / MANIFEST, ns=(searched, searched))

    def key(self, tree: Path) -> str:
        """Return what a tree is: a digest of what it was made from and of what was edited there.

        An assembly need not be repeated for a new file that was edited, as the tree has a link
        to it. What is in these files belongs to the key all the same.
        """
        made = [self.inputs, *(f"{name} {text}" for name, text in self._new_files(tree).items())]
        key = _digest_of(made)
        if not self.edited:
            return key
        edits = [f"{name} {text}" for name, text in sorted(self.edited.items())]
        return f"{key}-edited-{_digest_of(edits)[:16]}"

    def changeable(self, tree: Path) -> dict[str, str]:
        """Return the files of a tree that change without an assembly, with a digest of each."""
        return self._new_files(tree) | self.edited

    def _new_files(self, tree: Path) -> dict[str, str]:
        return {name: digest(tree / name) for name in sorted(self.links)}

    def describe(self) -> str:
        """Return what the tree was made from, and the names of the files that were edited."""
        edits = f", edited by hand: {', '.join(sorted(self.edited))}" if self.edited else ""
        return f"hooks {self.inputs}{edits}"


def _digest_of(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def now() -> int:
    """Return a time in nanoseconds that no file written from now on is older than."""
    return time.time_ns() - _TICK


def find_edits(tree: Path, pristine: Path, manifest: Manifest) -> dict[str, str]:
    """Return the files of an assembled tree that nothing in features/ accounts for.

    Only what changed since the last search is compared, and what was found then. A file counts
    that differs from the pristine one or from what the hooks made of it, one that is gone, and
    a new one that a kernel build could take in.

    Args:
        tree: the assembled tree.
        pristine: the tree that it was copied from.
        manifest: the tree's manifest.

    Returns:
        Their names, with a digest of what is there now.
    """
    # The time of a change of the file's state; the one of its contents can be set to anything.
    command = ["find", "."]
    for name in _QUILT:
        command += ["-path", f"./{name}", "-prune", "-o"]
    changed = run([*command, "-cnewer", MANIFEST, "-printf", r"%y %P\n"], cwd=tree).splitlines()
    names = set(manifest.edited)
    for kind, name in (line.split(" ", 1) for line in changed):
        if kind == "f":
            names.add(name)
        elif kind == "d" and (pristine / name).is_dir():
            names |= _gone(tree, pristine, name)
    return {
        name: digest(tree / name)
        for name in sorted(names)
        if _is_edit(tree, pristine, manifest, name)
    }


def _gone(tree: Path, pristine: Path, folder: str) -> set[str]:
    """Return the files of a pristine folder that the tree no longer has."""
    return {
        str(entry.relative_to(pristine))
        for entry in (pristine / folder).iterdir()
        if entry.is_file() and not os.path.lexists(tree / entry.relative_to(pristine))
    }


def _is_edit(tree: Path, pristine: Path, manifest: Manifest, name: str) -> bool:
    """Tell whether a file that may have been edited is not what it should be."""
    file, original = tree / name, pristine / name
    if name in manifest.hooked:
        return digest(file) != manifest.hooked[name]
    if name in manifest.links:
        return not file.is_symlink()
    if original.is_file():
        return digest(file) != digest(original)
    # Editors and checkers leave files of their own, which no makefile looks for.
    built = file.suffix in (".c", ".h", ".S") or file.name.startswith(
        ("Kconfig", "Makefile", "Kbuild")
    )
    return file.is_file() and built and not file.name.startswith(".")
