"""`pagewright map`: the linear map of a guest, as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pagewright.cli.options import (
    Accel,
    Accelerator,
    BuildName,
    CpuModel,
    MemorySize,
    Parameters,
)
from pagewright.host import workspace


def register(app: typer.Typer) -> None:
    """Add the command to the workbench's."""
    app.command("map")(show)


def show(
    name: BuildName,
    rodata: Annotated[
        str | None, typer.Option(metavar="full|on|off", help="the kernel parameter")
    ] = None,
    append: Parameters = "",
    cpu: CpuModel = None,
    memory: MemorySize = "4G",
    accel: Accel = Accelerator.TCG,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="also draw it, as .svg or .png")
    ] = None,
) -> None:
    """Show how the kernel maps memory: after boot, with modules loaded, and without again."""
    import leaves
    import leaves_plot

    from pagewright.machine.inputs import options_for

    if output:
        leaves_plot.check_suffix(output)
    words = [leaves.EARLY_KFENCE, f"rodata={rodata}" if rodata else "", append]
    append = " ".join(filter(None, words))
    space = workspace.find()
    options = options_for(space, name, cpu=cpu, memory=memory, append=append, accel=accel.value)
    record = leaves.record(options)
    leaves.print_histograms(record, Console())
    if output:
        title = f"Linear map of {memory}, {name}" + (f", rodata={rodata}" if rodata else "")
        leaves_plot.draw(record, title, output)
