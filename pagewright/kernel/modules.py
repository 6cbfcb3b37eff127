"""Kernel modules that are compiled apart from the kernel, for any build.

The base has no file of ours in its tree, and yet a measurement needs the same module on
both sides: it is compiled for each build from the same source, with kbuild's M=.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pagewright.host.errors import BuildError
from pagewright.host.files import digest
from pagewright.host.lock import lock
from pagewright.host.run import run
from pagewright.host.workspace import Workspace
from pagewright.kernel import build, times
from pagewright.kernel.build import Build

# Where the modules are in the guest: FOLDER/NAME.ko.
FOLDER = "usr/lib/tests/external"


def sources(space: Workspace, names: Sequence[str]) -> list[Path]:
    """Return the files of the repository that modules are compiled from.

    Args:
        space: the repository.
        names: one C file per module, relative to the repository.

    Returns:
        These files, and what each includes of what is beside it.
    """
    found: list[Path] = []
    wanted = [space.root / name for name in names]
    while wanted:
        file = wanted.pop()
        if file not in found and file.is_file():
            found.append(file)
            included = re.findall(r'^#include "(.+)"', file.read_text(), re.MULTILINE)
            wanted += [file.parent / name for name in included]
    return sorted(found)


def ensure(space: Workspace, built: Build, names: Sequence[str]) -> Path:
    """Compile modules for a build and return an overlay that has them.

    Args:
        space: the repository.
        built: the build, up to date.
        names: one C file per module, relative to the repository.

    Raises:
        BuildError: a source is missing or does not compile, or the tree is of another release.
    """
    files = [space.root / name for name in names]
    # Each set of modules has its own: another process may boot from one meanwhile.
    folder = space.out / "modules" / built.name / "+".join(file.stem for file in files)
    overlay = folder / "overlay"
    for file in files:
        if not file.is_file():
            raise BuildError(f"there is no module source {file}")
    with (
        lock(folder, f"the modules for {built.name}"),
        lock(space.out, "the assembled tree", shared=True),
    ):
        build.require_own_tree(space, built)
        # What a source includes is beside it, and not beside the link.
        lines = [f"ccflags-y += -I{directory}\n" for directory in {file.parent for file in files}]
        lines += [f"obj-m += {file.stem}.o\n" for file in files]
        (folder / "Kbuild").write_text("".join(sorted(lines)))
        for file in files:
            link = folder / file.name
            link.unlink(missing_ok=True)
            link.symlink_to(file)
        texts = {str(file.relative_to(space.root)): digest(file) for file in sources(space, names)}
        times.renew(folder / build.TEXTS_STAMP, space.root, texts)
        environment = build.environment(space)
        run([*build.make_command(built, "modules"), f"M={folder}"], env=environment)
        target = overlay / FOLDER
        target.mkdir(parents=True, exist_ok=True)
        for file in files:
            module = target / f"{file.stem}.ko"
            compiled = (folder / module.name).read_bytes()
            # Another process may be packing it for a guest.
            if not module.exists() or module.read_bytes() != compiled:
                module.write_bytes(compiled)
    return overlay
