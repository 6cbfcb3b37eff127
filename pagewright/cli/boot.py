"""Commands that start guests: boot."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pagewright.cli.options import (
    BUILDS_ARE_LISTED,
    Accel,
    Accelerator,
    BuildOrNone,
    CpuModel,
    Cpus,
    MemorySize,
    Overlay,
    Parameters,
    Timeout,
    check_output,
)
from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.progress import say
from pagewright.host.workspace import Workspace
from pagewright.kernel import build, recipes

if TYPE_CHECKING:
    from pagewright.machine.options import MachineOptions
    from pagewright.machine.strict import Violation

# Where QEMU waits for a debugger, which can do anything to the guest: at QEMU's usual port, but not
# for other computers, as its -s does.
GDB_ADDRESS = "localhost:1234"

# The exit status if a strict machine has found something.
VIOLATED = 3


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.command(epilog=BUILDS_ARE_LISTED)(boot)


def boot(
    name: BuildOrNone = None,
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
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help=f"check what TLBs may hold: reports on standard error, exit status {VIOLATED}",
        ),
    ] = False,
    strict_json: Annotated[
        Path | None, typer.Option(metavar="FILE", help="with --strict: also write the reports here")
    ] = None,
    bbm_level: Annotated[
        int | None,
        typer.Option(
            metavar="LEVEL", min=0, max=2, help="with --strict: FEAT_BBM's level, not the CPU's own"
        ),
    ] = None,
    kernel: Annotated[
        Path | None,
        typer.Option(
            metavar="IMAGE", exists=True, dir_okay=False, help="any kernel, instead of a build"
        ),
    ] = None,
    vmlinux: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", exists=True, dir_okay=False, help="with --kernel: its symbols"
        ),
    ] = None,
) -> None:
    """Boot a build: a console without --run, or one command with it."""
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
        "overlay": overlay,
        "extra_args": [word for text in qemu_args or () for word in _words(text)],
    }
    if gdb:
        options["extra_args"] += ["-gdb", f"tcp:{GDB_ADDRESS}", "-S"]
        # The addresses of vmlinux are those of a kernel that is not moved.
        options["append"] = f"nokaslr {append}".strip()
    _validate(name, gdb, run, strict, strict_json, bbm_level, kernel, vmlinux)
    if kernel is not None:
        prepared = _of_any_kernel(space, kernel, vmlinux, uefi, strict, bbm_level, options)
    else:
        prepared = _of_build(space, name, uefi, strict, bbm_level, options)
    if gdb and name is not None:
        say(f"QEMU waits; in another terminal: {gdb_command(space, name)}")
    found: list[Violation] = []
    try:
        status = _run(prepared, run, timeout, strict, found)
    except PagewrightError as error:
        # A violation may be what the guest died of.
        found = found or getattr(error, "violations", [])
        if found:
            _report(found, strict_json)
        raise
    if strict:
        _report(found, strict_json)
    raise typer.Exit(VIOLATED if found else status)


def _validate(
    name: str | None,
    gdb: bool,
    run: str | None,
    strict: bool,
    strict_json: Path | None,
    bbm_level: int | None,
    kernel: Path | None,
    vmlinux: Path | None,
) -> None:
    """Refuse options that do not go together, and a file that cannot be written."""
    if gdb and run is not None:
        raise PagewrightError("--gdb gives a console", "leave --run out")
    if strict_json is not None or bbm_level is not None:
        _needs(strict, "--strict-json and --bbm-level", "--strict")
    if strict_json is not None:
        check_output(strict_json)
    if vmlinux is not None:
        _needs(kernel is not None, "--vmlinux", "--kernel")
    if kernel is not None and (name is not None or gdb):
        raise PagewrightError("--kernel is instead of a build, and without --gdb")


def _of_any_kernel(
    space: Workspace,
    kernel: Path,
    vmlinux: Path | None,
    uefi: bool,
    strict: bool,
    bbm_level: int | None,
    options: dict[str, Any],
) -> MachineOptions:
    """Return the options of a machine that runs a kernel which is no build of ours."""
    from pagewright.guest import image
    from pagewright.machine import firmware
    from pagewright.machine.inputs import strict_for
    from pagewright.machine.options import MachineOptions

    if strict:
        options["strict"] = strict_for(space, vmlinux, bbm_level)
    if uefi:
        options["firmware"] = firmware.ensure(space)
    return MachineOptions(kernel, image.ensure(space), **options)


def _of_build(
    space: Workspace,
    name: str | None,
    uefi: bool,
    strict: bool,
    bbm_level: int | None,
    options: dict[str, Any],
) -> MachineOptions:
    """Return the options of a machine that runs a build, which is brought up to date."""
    from pagewright.machine.inputs import options_for

    if name is None:
        builds = ", ".join(recipes.names(space))
        raise PagewrightError("what is to be booted?", f"name a build; the builds are: {builds}")
    return options_for(space, name, firmware=uefi, strict=strict, bbm_level=bbm_level, **options)


def _run(
    prepared: MachineOptions,
    command: str | None,
    timeout: float,
    strict: bool,
    found: list[Violation],
) -> int:
    """Boot a machine for a command, or for the user's shell if there is none.

    Args:
        prepared: the machine.
        command: what runs on it; its output is printed.
        timeout: seconds for the boot, and for the command.
        strict: whether the machine is strict.
        found: takes what a strict machine has found, also where an error ends the run.

    Returns:
        The command's status, or QEMU's.
    """
    from pagewright.machine.boot import boot, console

    if command is None:
        return console(prepared, found)
    with boot(prepared, None, int(timeout), found) as machine:
        result = machine.run(command, timeout=timeout)
        sys.stdout.write(result.output)
        sys.stdout.flush()
        if strict:
            found += machine.violations()
    return result.status


def _report(found: list[Violation], file: Path | None) -> None:
    """Print what a strict machine has found, and write it to a file that was asked for."""
    from pagewright.machine.strict import RULES

    for violation in found:
        print(violation, file=sys.stderr)
    if file is not None:
        file.write_text(json.dumps([violation.as_json() for violation in found], indent=1))
    say(f"{len(found)} places break one of {len(RULES)} rules")


def _words(text: str) -> list[str]:
    """Divide arguments for QEMU as a shell does."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        what = f"--qemu-args {text!r} cannot be divided into words: {error}"
        raise PagewrightError(what) from error
    if not {"-append", "--append"}.isdisjoint(words):
        raise PagewrightError(
            f"--qemu-args {text!r} would replace the kernel parameters of the machine itself",
            "add parameters to them with --append",
        )
    return words


def _needs(given: bool, what: str, option: str) -> None:
    """Refuse an option that means nothing without another one."""
    if not given:
        raise PagewrightError(f"{what} is for {option}", f"add {option}")


def gdb_command(space: Workspace, name: str) -> str:
    """Return the command that debugs a guest of a build."""
    vmlinux = shlex.quote(str(build.ensure(space, name).vmlinux))
    return f"gdb-multiarch {vmlinux} -ex 'target remote {GDB_ADDRESS}'"
