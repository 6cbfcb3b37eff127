"""Commands that look after this computer: setup, doctor, clean."""

from __future__ import annotations

import shutil

import typer

from pagewright.host import packages, workspace
from pagewright.host.progress import say


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (setup, doctor, clean):
        app.command()(command)


def setup() -> None:
    """Install what this host lacks, with apt; uses sudo unless you are root."""
    packages.setup()


def doctor() -> None:
    """Say what is missing on this host, and the command that installs it."""
    lines = packages.doctor()
    for line in lines:
        say(line)
    if lines:
        raise typer.Exit(1)
    say(f"this host has all that is needed (QEMU {packages.qemu_version()})")


def clean() -> None:
    """Remove everything generated in this clone; the cache that clones share stays."""
    space = workspace.find()
    shutil.rmtree(space.root / "out", ignore_errors=True)
    say(f"removed out/; downloads and the compiler cache are in {space.cache}")
