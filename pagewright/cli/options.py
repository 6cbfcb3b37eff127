"""Arguments that several commands have, and what a shell completes them with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pagewright.host import workspace
from pagewright.host.errors import PagewrightError
from pagewright.host.workspace import Workspace
from pagewright.kernel import recipes


class Accelerator(StrEnum):
    """Who executes the guest's code."""

    TCG = "tcg"
    KVM = "kvm"


def completes(names: Callable[[Workspace], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return what a shell completes a word with: those names that begin so."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names(workspace.find()) if name.startswith(incomplete)]

    return complete


builds = completes(recipes.names)
_features = completes(lambda space: [feature.name for feature in space.features()])


# Stands in the repository for whoever writes a place of their own.
_EXAMPLE = "tests/remote/environment.yaml"

# What `--help` of a command ends with that takes the name of a build.
BUILDS_ARE_LISTED = "`pagewright list` shows the builds, and what each is for."

_BUILD = typer.Argument(
    metavar="BUILD",
    help="a build, such as patched-4k (`pagewright list`)",
    autocompletion=builds,
)
BuildName = Annotated[str, _BUILD]
BuildOrNone = Annotated[str | None, _BUILD]
BuildOption = Annotated[
    str | None,
    typer.Option("--build", metavar="BUILD", help="the kernel", autocompletion=builds),
]
FeatureName = Annotated[
    str | None,
    typer.Argument(metavar="[FEATURE]", help="one feature; all without", autocompletion=_features),
]
FeatureNames = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FEATURE",
        help="leave a feature's symbol off (may be repeated)",
        autocompletion=_features,
    ),
]
CpuModel = Annotated[
    str | None, typer.Option(metavar="MODEL", help="QEMU's CPU model; as a rule a Neoverse V3")
]
Accel = Annotated[
    Accelerator, typer.Option(help="emulate, or run on this computer's own arm64 CPUs")
]
Cpus = Annotated[int, typer.Option(metavar="N", min=1, help="number of CPUs")]
MemorySize = Annotated[str, typer.Option(metavar="SIZE", help="may be more than the host has")]
Parameters = Annotated[str, typer.Option(metavar="STR", help="more kernel parameters")]
Overlay = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        exists=True,
        file_okay=False,
        help="lay the files of DIR over the guest's root",
    ),
]


# A boot is waited for in whole seconds, and the kernel waits for no more milliseconds than 31 bits.
_LONGEST_TIMEOUT = 10**6


def _seconds(timeout: float) -> float:
    """Refuse a time that nobody can wait for; what is no number is none either."""
    if not 1 <= timeout <= _LONGEST_TIMEOUT:
        raise PagewrightError(
            f"--timeout {timeout:g} is no time to wait",
            f"give it seconds, from 1 to {_LONGEST_TIMEOUT}",
        )
    return timeout


Timeout = Annotated[
    float,
    typer.Option(metavar="S", callback=_seconds, help="seconds until the guest counts as hung"),
]


def check_place(file: Path) -> None:
    """Raise if the file that describes a board is not there."""
    if not file.is_file():
        there = ", ".join(sorted(str(other) for other in file.parent.glob("*.yaml")))
        raise PagewrightError(
            f"there is no environment file {file}",
            (f"the files there are: {there}; or " if there else "")
            + f"write one like {_EXAMPLE}; docs/lab.md says how",
        )


def check_output(file: Path) -> None:
    """Raise if a file cannot be written, before the work whose results it is to have."""
    if file.exists():
        fits = not file.is_dir() and os.access(file, os.W_OK)
    else:
        fits = file.parent.is_dir() and os.access(file.parent, os.W_OK)
    if not fits:
        raise PagewrightError(f"{file} cannot be written", "name a file in a folder that is there")
