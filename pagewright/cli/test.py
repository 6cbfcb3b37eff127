"""Commands that test: test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from pagewright.cli import pytest_arguments
from pagewright.guest import image
from pagewright.host import ledger, workspace
from pagewright.kernel import build, recipes

# What a worker of the suite may need, in GB. With --full one has a guest of 640 GiB, which takes
# 11, while others need less.
WORKER_GB = 6
FULL_WORKER_GB = 10


def register(app: typer.Typer) -> None:
    """Add these commands."""
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(context_settings=passed_on)(test)


def test(
    context: typer.Context,
    full: Annotated[bool, typer.Option("--full", help="the slow and wide tests too")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="leave out what has passed before, on the same files")
    ] = False,
) -> None:
    """Run the tests; further arguments go to pytest."""
    import pytest

    space = workspace.find()
    given = pytest_arguments.complete(space, context.args)
    logs = Path(pytest_arguments.value("--logs", context.args) or space.out / "logs")
    arguments = [
        f"--rootdir={space.root}",
        f"--config-file={space.root / 'pyproject.toml'}",
        *given,
    ]
    if full:
        arguments.append("--full")
    if resume:
        arguments.append("--resume")
    if not context.args:
        arguments += ["-n", str(workers(full)), "--dist", "loadfile", "--no-loadscope-reorder"]
    with ledger.suite(logs):
        if not context.args:
            # Tests build what they need; up front there is progress to see.
            for name in recipes.everyday(space):
                build.ensure(space, name)
            image.ensure(space)
        raise typer.Exit(int(pytest.main(arguments)))


def workers(full: bool) -> int:
    """Return how many tests may run at once, if there is memory for them.

    That is three for two CPUs, because tests also wait for time to pass. With --full it is one for
    each CPU, as there more of the guests have many CPUs and keep them busy.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    cpus = os.cpu_count() or 1
    if full:
        return max(1, min(cpus, int(memory / FULL_WORKER_GB)))
    return max(1, min(cpus * 3 // 2, int(memory / WORKER_GB)))
