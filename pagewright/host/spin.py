"""The model checker spin: whether a model holds in all orders of its steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pagewright.host.errors import PagewrightError
from pagewright.host.run import run, tail
from pagewright.host.toolchain import HOST_GCC

_MEMORY_MB = 3000
_TIMEOUT = 900
# More than any run's length; a longer one is an error, not a shorter search.
DEPTH = 100_000


@dataclass(frozen=True)
class Verdict:
    """What spin found.

    Attributes:
        error: what the first error is, in pan's words; empty if there is none.
        complete: all that can happen was tried.
        states: how many different states were met.
        steps: how long the longest run was.
        output: all that pan printed.
        trail: the steps that lead to the error.
    """

    error: str
    complete: bool
    states: int
    steps: int
    output: str
    trail: str


def verify(model: Path, macros: Sequence[str], cwd: Path, depth: int = DEPTH) -> Verdict:
    """Search all that a model can do, up to the first error.

    Args:
        model: the model.
        macros: names, or name=value, that choose a variant of it.
        cwd: an empty folder.
        depth: how many steps a run may have.

    Raises:
        PagewrightError: spin's report cannot be understood.
    """
    defines = [f"-D{macro}" for macro in macros]
    run(["spin", *defines, "-a", model], cwd=cwd)
    options = ["-O2", "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={_MEMORY_MB}"]
    run([HOST_GCC, *options, "-o", "pan", "pan.c"], cwd=cwd)
    output = run([cwd / "pan", "-b", f"-m{depth}"], cwd=cwd, timeout=_TIMEOUT)
    found = re.search(r"^pan:1: (.*?) \(at depth", output, re.MULTILINE)
    size = re.search(r"depth reached (\d+), errors: (\d+)$", output, re.MULTILINE)
    states = re.search(r"^ *(\d+) states, stored", output, re.MULTILINE)
    if not size or not states or bool(found) != (size[2] != "0"):
        raise PagewrightError(f"spin's report of {model} is not understood", details=tail(output))
    complete = not re.search(r"Search not completed|depth too small|MEMLIM|out of memory", output)
    # Spin looks for the trail where the model is.
    trail = ""
    if found:
        steps = [*defines, "-k", str(cwd / f"{model.name}.trail"), "-p", "-g"]
        trail = run(["spin", *steps, model], cwd=cwd, check=False)
    error = found[1] if found else ""
    return Verdict(error, complete, int(states[1]), int(size[1]), output, trail)
