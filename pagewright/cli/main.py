"""The command line: its errors are printed plainly, Ctrl-C ends it quietly."""

from __future__ import annotations

import importlib
import signal
import sys

import typer

from pagewright.cli import bench, boot, host, kernel, test
from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.progress import console

app = typer.Typer(
    help="Assemble, build, boot, test and measure arm64 kernel features.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for group in (host, kernel, boot, test, bench):
    group.register(app)


def add_commands_of_features() -> None:
    """Let features add commands: each features/NAME/host/*_command.py has a register(app)."""
    space = workspace.find()
    space.make_importable()
    for file in sorted((space.root / "features").glob("*/host/*_command.py")):
        importlib.import_module(file.stem).register(app)


def complain(text: str, style: str = "") -> None:
    """Print text as it is, on standard error."""
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def main() -> None:
    """Run the command line."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    add_commands_of_features()
    try:
        app()
    except PagewrightError as error:
        complain(f"pagewright: {error.what}", style="bold red")
        for text in filter(None, (error.details, error.todo)):
            complain(text)
        sys.exit(1)
    except KeyboardInterrupt:
        console.print("interrupted", highlight=False)
        sys.exit(130)
    except OSError as error:
        complain(f"pagewright: {error}", style="bold red")
        sys.exit(1)
