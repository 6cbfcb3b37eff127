"""Commands that test: test."""

from __future__ import annotations

from typing import Annotated

import typer

from pagewright.guest import image
from pagewright.host import workspace
from pagewright.kernel import build, recipes


def register(app: typer.Typer) -> None:
    """Add these commands."""
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(context_settings=passed_on)(test)


def test(
    context: typer.Context,
    full: Annotated[bool, typer.Option("--full", help="the slow and wide tests too")] = False,
) -> None:
    """Run the tests; further arguments go to pytest."""
    import pytest

    space = workspace.find()
    root = space.root
    arguments = [f"--config-file={root / 'pyproject.toml'}", *context.args]
    if full:
        arguments.append("--full")
    if not context.args:
        arguments += [str(root / "tests"), str(root / "features")]
        # Tests build what they need; up front there is progress to see.
        for name in recipes.everyday(space):
            build.ensure(space, name)
        image.ensure(space)
    raise typer.Exit(int(pytest.main(arguments)))
