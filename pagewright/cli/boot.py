"""Commands that start guests: boot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pagewright.cli.options import BuildName, CpuModel, MemorySize, Parameters
from pagewright.host import workspace


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(boot)


def boot(
    name: BuildName,
    cpu: CpuModel = None,
    smp: Annotated[int, typer.Option(metavar="N", help="number of CPUs")] = 2,
    memory: MemorySize = "1G",
    append: Parameters = "",
    icount: Annotated[
        bool, typer.Option("--icount", help="count instructions: guest time is their number")
    ] = False,
    overlay: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="lay the files of DIR over the guest's root"),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="run it, print its output, exit with its status"),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="seconds until the guest counts as hung")
    ] = 300,
) -> None:
    """Boot a build: a console without --run, or one command with it."""
    from pagewright.machine import machine
    from pagewright.machine.inputs import options_for
    from pagewright.machine.options import DEFAULT_CPU

    options = options_for(
        workspace.find(),
        name,
        cpu=cpu or DEFAULT_CPU,
        smp=smp,
        memory=memory,
        append=append,
        icount=icount,
        overlay=overlay,
    )
    if run is None:
        raise typer.Exit(machine.console(options))
    with machine.boot(options, timeout=int(timeout)) as guest_machine:
        result = guest_machine.run(run, timeout=timeout)
    sys.stdout.write(result.output)
    sys.stdout.flush()
    raise typer.Exit(result.status)
