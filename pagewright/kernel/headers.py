"""What it takes to compile modules for a kernel on the machine that runs it."""

from __future__ import annotations

import shutil
from pathlib import Path

from pagewright.host import arm64_packages
from pagewright.host.run import run
from pagewright.host.workspace import Workspace
from pagewright.kernel import build
from pagewright.kernel.build import Build

# The kernel's own script that chooses the files. Where the kernel was cross-compiled, it compiles
# kbuild's programs again, for arm64.
_SCRIPT = "+$(srctree)/scripts/package/install-extmod-build"
# The library that one of these programs, sign-file, is linked with.
_LIBRARY = "libssl-dev"
# kbuild's programs are copied with their folders, where there is also what they were made of. bison
# and the compiler write the folder's name into that, so that no two builds would be the same.
_LEFT_OVER = ("**/.gitignore", "scripts/**/*.tab.[ch]", "scripts/**/*.lex.c", "scripts/**/*.s")


def install(space: Workspace, built: Build, target: Path, work: Path) -> None:
    """Fill a folder with the headers, kbuild and its programs for arm64.

    Args:
        space: the repository.
        built: the build, up to date and locked.
        target: the folder; made.
        work: a folder for what is needed meanwhile.
    """
    library = _unpack_library(space, work / "library")
    flags = f"-I{library}/usr/include -I{library}/usr/include/aarch64-linux-gnu"
    command = build.make_command(built, "run-command")
    command += [
        f"KBUILD_RUN_COMMAND={_SCRIPT} {target}",
        f"HOSTCFLAGS={flags}",
        f"HOSTLDFLAGS=-L{library}/usr/lib/aarch64-linux-gnu",
        # The computer's own would name this computer's libraries.
        "HOSTPKG_CONFIG=false",
    ]
    run(command, env=build.environment(space))
    shutil.copyfile(built.out / ".config", target / ".config")
    # Without it `make kernelrelease` gives a name that no kernel has.
    shutil.copy(built.out / build.LOCAL_VERSION, target)
    _resolve_links(target, built.tree)
    _remove_left_over(target)


def _remove_left_over(target: Path) -> None:
    """Remove what no module needs from headers that were put into a folder."""
    for pattern in _LEFT_OVER:
        for file in list(target.glob(pattern)):
            file.unlink()


def _unpack_library(space: Workspace, folder: Path) -> Path:
    """Unpack the headers and the library that sign-file needs, for arm64."""
    fetched = arm64_packages.fetch(space, [_LIBRARY])
    folder.mkdir()
    members = ["./usr/include", "./usr/lib/aarch64-linux-gnu"]
    run(["tar", "-x", "--no-same-owner", "-f", fetched.tar, "-C", folder, *members])
    return folder


def _resolve_links(folder: Path, tree: Path) -> None:
    """Put files in place of links that lead out of a folder.

    The new files of the assembled tree are such links, into the features' folders.

    Args:
        folder: a copy of a part of the tree.
        tree: the tree.
    """
    for link in list(folder.rglob("*")):
        if link.is_symlink() and not link.resolve().is_relative_to(folder.resolve()):
            original = tree / link.relative_to(folder)
            link.unlink()
            shutil.copy(original, link)
