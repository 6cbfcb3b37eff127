"""Pristine tree + overlay + hooks -> assembled tree.

The assembled tree is a copy of the pristine one in which new files are symbolic
links into features/*/linux and the hooks are an applied quilt stack. Hooks are
applied to copies of the files they touch first, in a scratch folder; the tree
is only changed when all of them took. Files whose text stays the same are not
written, so that kbuild compiles what changed and no more.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import TypeGuard

from pagewright.host import disk, repository
from pagewright.host.errors import SourceError
from pagewright.host.files import digest, replace_text
from pagewright.host.lock import lock
from pagewright.host.progress import Bar, say
from pagewright.host.run import run
from pagewright.host.scratch import scratch
from pagewright.host.workspace import Workspace
from pagewright.kernel.hooks import QUILT, apply_hooks, changes, check_stack, patched_files
from pagewright.kernel.manifest import MANIFEST, Manifest, find_edits, now
from pagewright.kernel.source import Source, unpacked

__all__ = ["QUILT", "Manifest", "assemble", "commit", "edits", "patched_files", "refresh"]

# What a copy of the source takes, in MB.
TREE_MB = 1800


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
    new.inputs = _inputs(space, new)
    if discard or not _is_current(space, source, new):
        with lock(space.out, "the assembled tree"):
            old = Manifest.read(tree)
            if not discard and _is_made_of(old, tree, new):
                _search(source, tree, old)
            else:
                _assemble(space, source, old, new, discard)
    return tree


def edits(space: Workspace) -> dict[str, str]:
    """Return the files that were edited in the assembled tree and are in no hook.

    Returns:
        Their names, with a digest of what is there now; nothing if there is no tree.
    """
    manifest = Manifest.read(space.tree)
    if not manifest:
        return {}
    return find_edits(space.tree, unpacked(space, manifest.source), manifest)


def commit(space: Workspace) -> str:
    """Return the repository's commit, with a + if it does not say what kernels are made of.

    That is so if a file changed since the commit, or was edited in the assembled tree.
    """
    name = repository.commit(space)
    return f"{name}+" if edits(space) and not name.endswith("+") else name


def _is_current(space: Workspace, source: Source, wanted: Manifest) -> bool:
    """Whether the tree is there, made of what is wanted, and as edited as its manifest says."""
    # As a rule there is nothing to do, and others may be compiling what is there.
    with lock(space.out, "the assembled tree", shared=True):
        there = Manifest.read(space.tree)
        if not _is_made_of(there, space.tree, wanted):
            return False
        if find_edits(space.tree, source.path, there) != there.edited:
            return False
        _warn_of_edits(there)
        return True


def _is_made_of(there: Manifest | None, tree: Path, wanted: Manifest) -> TypeGuard[Manifest]:
    """Whether a tree is there, its patches are all applied, and it is made of what is wanted."""
    if not there:
        return False
    check_stack(tree, there)
    return there.inputs == wanted.inputs


def _search(source: Source, tree: Path, manifest: Manifest) -> None:
    """Bring the list of edits in a tree's manifest up to date."""
    started = now()
    manifest.edited = find_edits(tree, source.path, manifest)
    manifest.write(tree, started)
    _warn_of_edits(manifest)


def _warn_of_edits(manifest: Manifest) -> None:
    """Say in one line which files of the tree no series will have."""
    if manifest.edited:
        say(
            f"edited in the assembled tree and in no hook: {', '.join(sorted(manifest.edited))} "
            "(`make refresh` takes in what quilt tracks, `pagewright tree --discard` drops all)"
        )


def _assemble(
    space: Workspace, source: Source, old: Manifest | None, new: Manifest, discard: bool
) -> None:
    """Make the tree what the new manifest says, unless a hook fails or edits would be lost."""
    tree = space.tree
    if old and not discard:
        _refuse_to_lose_edits(tree, old)
    with scratch(space.out, "assemble-") as folder:
        stage = folder / "stage"
        originals = {name: _path(space, name) for name in new.hooks}
        new.hooked = apply_hooks(space, source, originals, stage)
        new.links = _check_overlay(space, source)
        if not old or old.source != source.package_version:
            _copy_pristine(source, old, tree, folder)
            old = Manifest()
            started = now()
        else:
            started = now()
            new.edited = find_edits(tree, source.path, old)
            if discard:
                _drop_edits(source, tree, new)
            else:
                _refuse_to_hook_edits(tree, new)
        (tree / MANIFEST).unlink(missing_ok=True)
        _install_hooked(source, stage, tree, old, new)
        _install_links(space, tree, old, new)
    new.write(tree, started)
    _search(source, tree, new)
    say(
        f"assembled {source.package_version}: {len(new.hooked)} files hooked, "
        f"{len(new.links)} new files"
    )


def _drop_edits(source: Source, tree: Path, manifest: Manifest) -> None:
    """Make edited files what they were; those that are hooked or new are written afterwards."""
    for name in manifest.edited:
        (tree / name).unlink(missing_ok=True)
        if (source.path / name).exists():
            shutil.copy(source.path / name, tree / name)


def refresh(space: Workspace, source: Source) -> list[Path]:
    """Write hooks edited in the assembled tree back to the features.

    An edit goes into the last hook that touches its file, as quilt has it; for
    another hook, `quilt pop` to it, edit, `quilt refresh` and `quilt push -a` first.
    Nothing is written unless the refreshed hooks give the tree as it is. A hook that changes
    the same lines as before stays as it is: its context is chosen so that it applies with the
    other features' hooks and without them, and quilt would write that of the assembled tree.

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
        check_stack(tree, manifest)
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
        kept = {
            name: _path(space, name)
            for name, file in refreshed.items()
            if changes(file.read_text()) == changes(_path(space, name).read_text())
        }
        with scratch(space.out, "refresh-") as folder:
            try:
                result = apply_hooks(space, source, refreshed | kept, folder / "stage")
            except SourceError:
                # The context of one that was kept is what an edit has changed.
                edited = {
                    touched
                    for name, file in refreshed.items()
                    if name not in kept
                    for touched in patched_files(file.read_text())
                }
                kept = {
                    name: file
                    for name, file in kept.items()
                    if not edited & set(patched_files(file.read_text()))
                }
                result = apply_hooks(space, source, refreshed | kept, folder / "again")
        manifest.hooked |= result
        _refuse_to_lose_edits(tree, manifest)
        written = []
        for name, file in refreshed.items():
            target = _path(space, name)
            if name in kept:
                replace_text(file, target.read_text())
            elif file.read_bytes() != target.read_bytes():
                replace_text(target, file.read_text())
                written.append(target)
        manifest.hooks = _hooks(space)
        manifest.hooked = result
        manifest.inputs = _inputs(space, manifest)
        # The search takes a while. Interrupted, it must not leave hooks that no manifest knows.
        manifest.write(tree, (tree / MANIFEST).stat().st_mtime_ns)
        _search(source, tree, manifest)
    return written


def _path(space: Workspace, name: str) -> Path:
    """Return where a hook of the series is kept."""
    feature, hook = name.split("/")
    return space.hooks(feature) / hook


def _hooks(space: Workspace) -> dict[str, str]:
    """Return the series, with a digest of each hook."""
    return {name: digest(_path(space, name)) for name in space.series()}


def _inputs(space: Workspace, manifest: Manifest) -> str:
    """Digest what an assembly depends on: source, series, hooks, new files' names."""
    parts = [manifest.source]
    parts += [f"{name} {text}" for name, text in manifest.hooks.items()]
    parts += [f"{f.name}/{file}" for f in space.features() for file in f.new_files()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _refuse_to_lose_edits(tree: Path, manifest: Manifest) -> None:
    """Raise if files that an assembly would write were edited since the last one."""
    edited = [name for name, old in manifest.hooked.items() if digest(tree / name) != old]
    if edited:
        raise SourceError(
            f"the assembled tree has edits that are not in a hook yet: {', '.join(edited)}",
            "write them back with `make refresh`, or drop them with `pagewright tree --discard`",
        )
    # Some editors put a file in the place of a link.
    if copies := [n for n in manifest.links if (tree / n).exists() and not (tree / n).is_symlink()]:
        raise SourceError(
            f"new files are no links any more in the assembled tree: {', '.join(copies)}",
            "copy what was edited to features/*/linux, and `pagewright tree --discard` the copies",
        )


def _refuse_to_hook_edits(tree: Path, new: Manifest) -> None:
    """Raise if a file gets its first hook that was edited, but for just what the hook does."""
    hooked = [name for name in new.edited if name in new.hooked]
    if edited := [name for name in hooked if digest(tree / name) != new.hooked[name]]:
        raise SourceError(
            f"the assembled tree has edits that a hook would overwrite: {', '.join(edited)}",
            "move them away, or drop them with `pagewright tree --discard`",
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


def _copy_pristine(source: Source, old: Manifest | None, tree: Path, folder: Path) -> None:
    """Replace the tree by a copy of the pristine one; keep the one that was there aside.

    The files get new times, so that whatever was compiled before is older than they are. A tree
    without a manifest is one whose assembly was interrupted. What was edited in it cannot be told
    from what was not written yet, so it is kept as well.
    """
    disk.require(tree, TREE_MB, "the assembled kernel tree")
    with Bar(f"copy linux {source.package_version} to {os.path.relpath(tree)}", None):
        command = ["cp", "-a", "--no-preserve=timestamps", "--reflink=auto"]
        run([*command, source.path, folder / "tree"])
    if tree.exists():
        for aside in tree.parent.glob(f"{tree.name}-*"):
            shutil.rmtree(aside, ignore_errors=True)
        aside = tree.with_name(f"{tree.name}-{old.source if old else 'incomplete'}")
        tree.rename(aside)
        if old:
            say(f"the kernel source moved; the tree of {old.source} is now {aside}")
        else:
            say(f"an assembly was interrupted; what it left, with any edits, is now {aside}")
    (folder / "tree").rename(tree)


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
