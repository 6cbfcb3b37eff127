"""The command line: its errors are printed plainly, Ctrl-C ends it quietly."""

from __future__ import annotations

import importlib
import importlib.metadata
import logging
import signal
import sys
from typing import Annotated

import typer

from pagewright.cli import (
    bench,
    boot,
    demo,
    guest,
    host,
    kernel,
    overview,
    package,
    report,
    test,
)
from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.progress import console
from pagewright.host.run import explain_own
from pagewright.kernel.tree import commit

LOGGER = logging.getLogger("pagewright")

app = typer.Typer(
    help="Assemble, build, boot, test and measure arm64 kernel features.",
    epilog="`pagewright list` shows the builds and the experiments.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for group in (host, overview, kernel, package, boot, guest, test, bench, report, demo):
    group.register(app)


def show_version(wanted: bool) -> None:
    """Print the versions and end, if that is wanted."""
    if not wanted:
        return
    space = workspace.find()
    try:
        of = commit(space)
    except PagewrightError:
        # Git does not tell of a clone that belongs to somebody else, for example.
        of = "unknown"
    print(
        f"pagewright {importlib.metadata.version('pagewright')}, commit {of}, "
        f"for linux {space.base().version}; known good with {space.base().known_good}"
    )
    raise typer.Exit


@app.callback()
def prepare(
    version: Annotated[
        bool,
        typer.Option("--version", callback=show_version, is_eager=True, help="print it and end"),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="print each program that is run, and errors in full"),
    ] = False,
) -> None:
    """Assemble, build, boot, test and measure arm64 kernel features."""
    if debug:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(relativeCreated)7.0f ms: %(message)s"))
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.DEBUG)


def add_commands_of_features() -> None:
    """Let features add commands: each features/NAME/host/*_command.py has a register(app)."""
    space = workspace.find()
    space.make_importable()
    for file in sorted((space.root / "features").glob("*/host/*_command.py")):
        importlib.import_module(file.stem).register(app)


# What only tools/pagewright knows, the command of the same name that servers get as a package.
OF_SERVERS = ("status", "watch", "check", "advise", "export")


def refuse(context: typer.Context) -> None:
    """Say whose command this is.

    Raises:
        PagewrightError: always.
    """
    raise PagewrightError(
        f"`{context.info_name}` is a command of the tool for servers, not of this one",
        f"run tools/pagewright {context.info_name}; tools/README.md says what it shows",
    )


for _name in OF_SERVERS:
    app.command(
        _name,
        hidden=True,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(refuse)


def complain(text: str, style: str = "") -> None:
    """Print text as it is, on standard error."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """Run the command line."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        # `nohup` has us ignore that the connection ends.
        if signal.getsignal(ending) != signal.SIG_IGN:
            signal.signal(ending, lambda number, _: sys.exit(128 + number))
    try:
        add_commands_of_features()
        app()
    except (PagewrightError, OSError) as error:
        LOGGER.debug("the error comes from here:", exc_info=True)
        known = explain_own(error) if isinstance(error, OSError) else error
        complain(f"pagewright: {known.what}", style="bold red")
        for text in filter(None, (known.details, known.todo)):
            complain(text)
        sys.exit(1)
    except KeyboardInterrupt:
        # Before the command runs; Typer ends the command itself in the same way.
        sys.exit(130)
