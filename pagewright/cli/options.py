"""Arguments that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

BuildName = Annotated[
    str, typer.Argument(metavar="BUILD", help="a build, such as patched-4k (`pagewright list`)")
]
CpuModel = Annotated[
    str | None, typer.Option(metavar="MODEL", help="QEMU's CPU model; as a rule a Neoverse V3")
]
MemorySize = Annotated[str, typer.Option(metavar="SIZE", help="may be more than the host has")]
Parameters = Annotated[str, typer.Option(metavar="STR", help="more kernel parameters")]
