"""Commands that start guests: boot."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from pagewright.cli.options import (
    BUILDS_ARE_LISTED,
    Accel,
    Accelerator,
    BuildName,
    CpuModel,
    Cpus,
    MemorySize,
    Overlay,
    Parameters,
    Timeout,
)
from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.progress import say
from pagewright.host.workspace import Workspace
from pagewright.kernel import build

# QEMU's own -s: where it waits for a debugger.
GDB_PORT = 1234


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(epilog=BUILDS_ARE_LISTED)(boot)


def boot(
    name: BuildName,
    cpu: CpuModel = None,
    smp: Cpus = 2,
    memory: MemorySize = "1G",
    append: Parameters = "",
    icount: Annotated[
        bool,
        typer.Option(
            "--icount", help="count instructions: the guest's clock goes on by 1 ns with each"
        ),
    ] = False,
    accel: Accel = Accelerator.TCG,
    single_threaded: Annotated[
        bool,
        typer.Option(
            "--single-threaded", help="emulate all CPUs in one thread; atomics fault as on hardware"
        ),
    ] = False,
    nodes: Annotated[int, typer.Option(metavar="N", min=1, help="number of NUMA nodes")] = 1,
    uefi: Annotated[
        bool, typer.Option("--uefi", help="boot through UEFI and ACPI, as servers do")
    ] = False,
    overlay: Overlay = None,
    qemu_args: Annotated[
        list[str] | None,
        typer.Option(metavar="STR", help="more arguments for QEMU (may be repeated)"),
    ] = None,
    gdb: Annotated[
        bool, typer.Option("--gdb", help="stop before the first instruction, wait for a debugger")
    ] = False,
    run: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="run it, print its output, exit with its status"),
    ] = None,
    timeout: Timeout = 300,
) -> None:
    """Boot a build: a console without --run, or one command with it."""
    from pagewright.machine.boot import boot as boot_machine
    from pagewright.machine.boot import console
    from pagewright.machine.inputs import options_for

    space = workspace.find()
    options: dict[str, Any] = {
        "cpu": cpu,
        "smp": smp,
        "memory": memory,
        "append": append,
        "icount": icount,
        "accel": accel.value,
        "single_threaded": single_threaded,
        "nodes": nodes,
        "firmware": uefi,
        "overlay": overlay,
        "extra_args": [word for text in qemu_args or () for word in shlex.split(text)],
    }
    if gdb:
        if run is not None:
            raise PagewrightError("--gdb gives a console", "leave --run out")
        options["extra_args"] += ["-s", "-S"]
        # The addresses of vmlinux are those of a kernel that is not moved.
        options["append"] = f"nokaslr {append}".strip()
    prepared = options_for(space, name, **options)
    if gdb:
        say(f"QEMU waits; in another terminal: {gdb_command(space, name)}")
    if run is None:
        raise typer.Exit(console(prepared))
    with boot_machine(prepared, timeout=int(timeout)) as guest_machine:
        result = guest_machine.run(run, timeout=timeout)
    sys.stdout.write(result.output)
    sys.stdout.flush()
    raise typer.Exit(result.status)


def gdb_command(space: Workspace, name: str) -> str:
    """Return the command that debugs a guest of a build."""
    vmlinux = shlex.quote(str(build.ensure(space, name).vmlinux))
    return f"gdb-multiarch {vmlinux} -ex 'target remote :{GDB_PORT}'"
