"""Commands that look after this computer: setup, doctor, clean."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from pagewright.host import doctor as examination
from pagewright.host import packages, workspace
from pagewright.host.files import empty_folder
from pagewright.host.progress import say
from pagewright.host.scratch import held_alone


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (setup, doctor, clean):
        app.command()(command)


def setup(
    packaging: Annotated[
        bool, typer.Option("--packaging", help="also what makes packages, and tries them")
    ] = False,
    full: Annotated[
        bool,
        typer.Option("--full", help="all that; and what else `test --full` uses: Clang, a browser"),
    ] = False,
) -> None:
    """Install what this host lacks, with apt; uses sudo unless you are root."""
    also = packages.PACKAGING if packaging or full else ()
    packages.setup(workspace.find(), (*also, *(packages.FULL_TESTS if full else ())))


def doctor() -> None:
    """Say what is missing on this host, and the command that installs it."""
    lines = examination.complaints(workspace.find())
    for line in filter(None, (*lines, examination.kvm())):
        say(line)
    if lines:
        raise typer.Exit(1)
    say(f"this host has all that is needed (QEMU {packages.qemu_version()})")


def clean(
    cache: Annotated[
        bool, typer.Option("--cache", help="also what clones share: downloads, compiler cache")
    ] = False,
) -> None:
    """Remove everything generated in this clone; with --cache, all but the clone and packages."""
    space = workspace.find()
    out = space.root / "out"
    removed = [out, space.cache] if cache else [out]
    with held_alone([space.out, *removed]):
        for folder in removed:
            _remove(folder)
    if not cache:
        say(f"downloads and the compiler cache stay in {space.cache}; --cache removes them")


def _remove(folder: Path) -> None:
    """Remove a folder, if it is there; of one that is a symbolic link, what is in it.

    The link stays. Whoever made it has moved the folder to a larger disk, and wants the next one
    there, too.
    """
    if not folder.is_symlink():
        if folder.exists():
            shutil.rmtree(folder)
            say(f"removed {folder}")
        return
    linked = folder.resolve()
    if not linked.is_dir():
        return
    empty_folder(linked)
    say(f"emptied {linked}, which {folder} leads to")
