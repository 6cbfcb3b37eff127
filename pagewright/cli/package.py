"""Commands that bring kernels to servers: deb, repo."""

from __future__ import annotations

from typing import Annotated

import typer

from pagewright.cli.options import BUILDS_ARE_LISTED, builds
from pagewright.host import workspace
from pagewright.host.progress import say
from pagewright.kernel import archive
from pagewright.kernel import deb as packer


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(epilog=BUILDS_ARE_LISTED)(deb)
    app.command()(repo)


def deb(
    name: Annotated[
        str,
        typer.Argument(metavar="[BUILD]", help="a build", autocompletion=builds),
    ] = packer.DEFAULT,
    number: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="which build it is; as a rule the next one"),
    ] = None,
    for_tests: Annotated[
        bool, typer.Option("--for-tests", help="take a build with what only tests take, too")
    ] = False,
) -> None:
    """Make Debian packages of a kernel, its headers and the tools, in out/6.12/packages."""
    for package in packer.make(workspace.find(), name, number, for_tests=for_tests):
        print(package)


def repo(
    key: Annotated[
        str, typer.Option(metavar="KEY", help="your key, as gpg --list-secret-keys shows it")
    ],
) -> None:
    """Make an apt repository of all packages in out/6.12/packages, signed with your key."""
    folder = archive.make(workspace.find(), key)
    say(f"the repository is {folder}; docs/install.md says how machines use it")
