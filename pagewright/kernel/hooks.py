"""The hooks: patches to existing kernel files, applied as a quilt stack."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from pagewright.host.errors import PagewrightError, SourceError
from pagewright.host.files import digest
from pagewright.host.run import run
from pagewright.host.workspace import Workspace
from pagewright.kernel.manifest import Manifest
from pagewright.kernel.source import Source

QUILT = {"QUILT_PATCHES": "patches", "QUILTRC": "-", "LC_ALL": "C"}


def patched_files(patch: str) -> list[str]:
    """Return the files that a patch in -p1 form touches."""
    return re.findall(r"^\+\+\+ b/(\S+)", patch, re.MULTILINE)


def changes(patch: str) -> list[str]:
    """Return the lines that a patch adds and removes, by file, without their places."""
    return [line for line in patch.splitlines() if re.match(r"[-+]", line)]


def check_stack(tree: Path, manifest: Manifest) -> None:
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


def apply_hooks(
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
