"""Pristine tree + overlay + hooks -> assembled tree.

The assembled tree is a copy of the pristine one in which new files are symbolic
links into features/*/linux and the hooks are an applied quilt stack. Hooks are
applied to copies of the files they touch first, in a scratch folder; the tree
is only changed when all of them took. Files whose text stays the same are not
written, so that kbuild compiles what changed and no more.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from pagewright.host.errors import PagewrightError, SourceError
from pagewright.host.lock import lock
from pagewright.host.progress import Bar, say
from pagewright.host.run import run
from pagewright.host.workspace import Workspace
from pagewright.kernel.source import Source

MANIFEST = ".assembled.json"
QUILT = {"QUILT_PATCHES": "patches", "QUILTRC": "-", "LC_ALL": "C"}


@dataclass
class Manifest:
    """What an assembly put into the tree.

    Attributes:
        source: the version of the source package.
        hooked: each file that a hook touches, with the digest of its text.
        links: each new file.
        hooks: each hook in the order of the series, with the digest of its text.
        key: digest of everything the assembly was made from.
    """

    source: str = ""
    hooked: dict[str, str] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    hooks: dict[str, str] = field(default_factory=dict)
    key: str = ""

    @classmethod
    def read(cls, tree: Path) -> Manifest | None:
        """Return the manifest of a tree, or None if there is none."""
        file = tree / MANIFEST
        return cls(**json.loads(file.read_text())) if file.exists() else None

    def write(self, tree: Path) -> None:
        """Store the manifest in a tree."""
        replace_text(tree / MANIFEST, json.dumps(self.__dict__, indent=1))


def digest(file: Path) -> str:
    """Return a digest of a file's contents; of nothing if it is not there."""
    return hashlib.sha256(file.read_bytes() if file.exists() else b"").hexdigest()


def replace_text(file: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new, never a part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.new")
    scratch.write_text(text)
    scratch.replace(file)


def patched_files(patch: str) -> list[str]:
    """Return the files that a patch in -p1 form touches."""
    return re.findall(r"^\+\+\+ b/(\S+)", patch, re.MULTILINE)


def assemble(space: Workspace, source: Source, discard: bool = False) -> Path:
    """Bring the assembled tree up to date and return its path.

    Args:
        space: the repository.
        source: the pristine tree.
        discard: give up edits in the tree that were not refreshed into hooks.

    Raises:
        SourceError: a hook does not apply (the tree stays as it was), a new
            file exists in the kernel already, or unrefreshed edits would be lost.
    """
    tree = space.tree
    new = Manifest(source.package_version, hooks=_hooks(space))
    new.key = _key(space, new)
    # As a rule there is nothing to do, and others may be compiling what is there.
    with lock(space.out, "the assembled tree", shared=True):
        if not discard and _is_current(tree, new):
            return tree
    with lock(space.out, "the assembled tree"):
        if not discard and _is_current(tree, new):
            return tree
        old = Manifest.read(tree)
        if old and not discard:
            _refuse_to_lose_edits(tree, old)
        with tempfile.TemporaryDirectory(dir=space.out, prefix="assemble-") as scratch:
            stage = Path(scratch) / "stage"
            originals = {name: _path(space, name) for name in new.hooks}
            new.hooked = _apply_hooks(space, source, originals, stage)
            new.links = _check_overlay(space, source)
            if not old or old.source != source.package_version:
                _copy_pristine(source, old, tree, Path(scratch))
                old = Manifest()
            (tree / MANIFEST).unlink(missing_ok=True)
            _install_hooked(source, stage, tree, old, new)
            _install_links(space, tree, old, new)
        new.write(tree)
        say(
            f"assembled {source.package_version}: {len(new.hooked)} files hooked, "
            f"{len(new.links)} new files"
        )
        return tree


def _is_current(tree: Path, wanted: Manifest) -> bool:
    """Whether a tree is there, unharmed, and made of what is wanted."""
    there = Manifest.read(tree)
    if not there:
        return False
    _check_stack(tree, there)
    return there.key == wanted.key


def refresh(space: Workspace, source: Source) -> list[Path]:
    """Write hooks edited in the assembled tree back to the features.

    An edit goes into the last hook that touches its file, as quilt has it; for
    another hook, `quilt pop` to it, edit, `quilt refresh` and `quilt push -a` first.
    Nothing is written unless the refreshed hooks give the tree as it is.

    Returns:
        The hooks that changed.

    Raises:
        SourceError: there is no assembled tree, hooks are popped, hooks changed
            in the features meanwhile, or an edit is in no hook.
    """
    tree = space.tree
    with lock(space.out, "the assembled tree"):
        manifest = Manifest.read(tree)
        if not manifest or manifest.source != source.package_version:
            raise SourceError("there is no assembled tree", "run `pagewright tree` first")
        _check_stack(tree, manifest)
        hooks = _hooks(space)
        if changed := sorted(dict(hooks.items() ^ manifest.hooks.items())):
            raise SourceError(
                f"hooks changed in features/ since the tree was assembled: {', '.join(changed)}",
                "run `pagewright tree` first; if the tree has edits of its own, "
                "undo the change in features/",
            )
        for name in hooks:
            # A hook whose files a later one touches too has nothing of its own to take in.
            command = ["quilt", "refresh", "-p", "ab", "--no-timestamps", "--no-index", name]
            output = run(command, cwd=tree, env=QUILT, check=False)
            if not re.search(r"^Refreshed|unchanged|More recent patches modify", output, re.M):
                raise SourceError(f"quilt could not refresh {name}", details=output)
        refreshed = {name: tree / "patches" / name for name in hooks}
        with tempfile.TemporaryDirectory(dir=space.out, prefix="refresh-") as scratch:
            result = _apply_hooks(space, source, refreshed, Path(scratch) / "stage")
        manifest.hooked |= result
        _refuse_to_lose_edits(tree, manifest)
        written = []
        for name, file in refreshed.items():
            target = _path(space, name)
            if file.read_bytes() != target.read_bytes():
                replace_text(target, file.read_text())
                written.append(target)
        manifest.hooks = _hooks(space)
        manifest.hooked = result
        manifest.key = _key(space, manifest)
        manifest.write(tree)
    return written


def _path(space: Workspace, name: str) -> Path:
    """Return where a hook of the series is kept."""
    feature, hook = name.split("/")
    return space.hooks(feature) / hook


def _hooks(space: Workspace) -> dict[str, str]:
    """Return the series, with a digest of each hook."""
    return {name: digest(_path(space, name)) for name in space.series()}


def _key(space: Workspace, manifest: Manifest) -> str:
    """Digest what an assembly depends on: source, series, hooks, new files' names."""
    parts = [manifest.source]
    parts += [f"{name} {text}" for name, text in manifest.hooks.items()]
    parts += [f"{f.name}/{file}" for f in space.features() for file in f.new_files()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _check_stack(tree: Path, manifest: Manifest) -> None:
    """Raise unless the tree's quilt stack is the one assembled, and all of it applied."""
    file = tree / ".pc" / "applied-patches"
    applied = file.read_text().split() if file.exists() else []
    if applied == list(manifest.hooks):
        return
    if extra := [name for name in applied if name not in manifest.hooks]:
        raise SourceError(
            f"the assembled tree has patches that are no hooks: {', '.join(extra)}",
            "move them from its patches/ to features/*/hooks and into the series, or drop "
            "them with `pagewright tree --discard`",
        )
    raise SourceError(
        f"{len(manifest.hooks) - len(applied)} hooks are not applied in the assembled tree",
        f"run `QUILT_PATCHES=patches quilt push -a` in {os.path.relpath(tree)}, or give up "
        "what was edited there with `pagewright tree --discard`",
    )


def _refuse_to_lose_edits(tree: Path, manifest: Manifest) -> None:
    """Raise if files that an assembly would write were edited since the last one."""
    edited = [name for name, old in manifest.hooked.items() if digest(tree / name) != old]
    if edited:
        raise SourceError(
            f"the assembled tree has edits that are not in a hook yet: {', '.join(edited)}",
            "write them back with `make refresh`, or drop them with `pagewright tree --discard`",
        )


def _apply_hooks(
    space: Workspace, source: Source, hooks: dict[str, Path], stage: Path
) -> dict[str, str]:
    """Apply all hooks to copies of the files they touch; return the files' digests."""
    patches = stage / "patches"
    touched: set[str] = set()
    for name, original in hooks.items():
        if not original.exists():
            raise SourceError(
                f"base/{space.version}/series names {name}, which does not exist",
                f"add {os.path.relpath(original, space.root)} or take the line out",
            )
        (patches / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(original, patches / name)
        touched |= set(patched_files(original.read_text()))
    patches.mkdir(parents=True, exist_ok=True)
    (patches / "series").write_text("".join(f"{name}\n" for name in hooks))
    for name in sorted(touched):
        if (source.path / name).exists():
            (stage / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source.path / name, stage / name)
    for name, original in hooks.items():
        try:
            run(["quilt", "push", "--fuzz=0", name], cwd=stage, env=QUILT)
        except PagewrightError as error:
            raise _hook_failed(space, source, name, original, error.details) from error
    return {name: digest(stage / name) for name in sorted(touched)}


def _hook_failed(
    space: Workspace, source: Source, name: str, original: Path, output: str
) -> PagewrightError:
    """Say which hook, file and hunk did not apply."""
    file = ""
    failures = []
    for line in output.splitlines():
        if match := re.match(r"patching file (\S+)", line):
            file = match[1]
        elif match := re.match(r"Hunk (#\d+) FAILED at (\d+)", line):
            failures.append(f"  {file}: hunk {match[1]} (line {match[2]})")
    failures += [
        f"  {missing}: not in this kernel"
        for missing in patched_files(original.read_text())
        if not (source.path / missing).exists()
    ]
    base = space.base()
    return SourceError(
        f"the hook {name} does not apply to linux {source.package_version}; nothing was changed",
        f"the hooks apply to {base.oldest} to {base.known_good}: PAGEWRIGHT_KERNEL="
        f"{base.known_good} selects one, if the archive still has it",
        "\n".join(failures) or output,
    )


def _check_overlay(space: Workspace, source: Source) -> list[str]:
    """Return all new files; raise if one is not new."""
    links: dict[str, str] = {}
    for feature in space.features():
        for file in map(str, feature.new_files()):
            if file in links or (source.path / file).exists():
                owner = links.get(file, f"linux {source.package_version}")
                raise SourceError(
                    f"features/{feature.name}/linux/{file} exists in {owner} already",
                    "new files must be new: give it another name, or make the change a hook",
                )
            links[file] = feature.name
    return sorted(links)


def _copy_pristine(source: Source, old: Manifest | None, tree: Path, scratch: Path) -> None:
    """Replace the tree by a copy of the pristine one; keep one of an older source aside."""
    with Bar(f"copy linux {source.package_version} to {os.path.relpath(tree)}", None):
        run(["cp", "-a", "--reflink=auto", source.path, scratch / "tree"])
    if tree.exists():
        aside = tree.with_name(f"tree-{old.source}") if old else scratch / "incomplete"
        shutil.rmtree(aside, ignore_errors=True)
        tree.rename(aside)
        if old:
            say(f"the kernel source moved; the tree of {old.source} is now {aside}")
    (scratch / "tree").rename(tree)


def _install_hooked(source: Source, stage: Path, tree: Path, old: Manifest, new: Manifest) -> None:
    """Move hooked files from the stage into the tree, and files no longer hooked back."""
    for name in set(old.hooked) - set(new.hooked):
        if (source.path / name).exists():
            shutil.copy(source.path / name, tree / name)
        else:
            (tree / name).unlink(missing_ok=True)
    for name, wanted in new.hooked.items():
        if digest(tree / name) != wanted:
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            replace_text(tree / name, (stage / name).read_text())
            shutil.copymode(stage / name, tree / name)
    for name in ("patches", ".pc"):
        shutil.rmtree(tree / name, ignore_errors=True)
        if (stage / name).exists():
            shutil.move(stage / name, tree / name)


def _install_links(space: Workspace, tree: Path, old: Manifest, new: Manifest) -> None:
    """Link the new files, and unlink those that are gone."""
    for name in set(old.links) - set(new.links):
        (tree / name).unlink(missing_ok=True)
    for feature in space.features():
        for file in feature.new_files():
            link = tree / file
            link.parent.mkdir(parents=True, exist_ok=True)
            target = os.path.relpath(feature.overlay / file, link.parent)
            if not link.is_symlink() or link.readlink() != Path(target):
                link.unlink(missing_ok=True)
                link.symlink_to(target)
