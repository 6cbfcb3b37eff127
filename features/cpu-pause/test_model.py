"""The protocol of cpu-pause, as model/cpu_pause.pml states it, checked by spin.

The protocol must hold in every order of steps, with whatever the other CPUs do; and each
way to get it wrong that is switched on with a macro must be found out, with the error that
it is there to show. The model's first comment says what is checked and what the macros are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from pagewright.host.run import run, tail

pytestmark = pytest.mark.full

MODEL = Path(__file__).parent / "model/cpu_pause.pml"
# More than any run's length; a longer one is an error, not a shorter search.
DEPTH = 100_000
MEMORY_MB = 3000
TIMEOUT = 900

# The kinds of error, each by a word of what pan prints for it.
DEADLOCK = "invalid end state"
ACCESS = "entry_valid"
WRONG_COUNT = "counted_right"
NOT_COUNTED = "stopped>0"
TWO_INITIATORS = "initiators==1"
ENDLESS = "seq<32"
NEEDLESS_FAILURE = "assertion violated deaf"


@dataclass(frozen=True)
class Verdict:
    """What spin found.

    Attributes:
        error: what the first error is, in pan's words; empty if there is none.
        complete: all that can happen was tried.
        output: all that pan printed.
        trail: the steps that lead to the error.
    """

    error: str
    complete: bool
    output: str
    trail: str


def verify(macros: str, cwd: Path, depth: int = DEPTH) -> Verdict:
    """Search all that the model can do, up to the first error.

    Args:
        macros: names, or name=value, that choose the variant and what the CPUs do.
        cwd: an empty folder.
        depth: how many steps a run may have.
    """
    defines = [f"-D{macro}" for macro in macros.split()]
    run(["spin", *defines, "-a", MODEL], cwd=cwd)
    options = ["-O2", "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}"]
    run(["gcc", *options, "-o", "pan", "pan.c"], cwd=cwd)
    output = run([cwd / "pan", "-b", f"-m{depth}"], cwd=cwd, timeout=TIMEOUT)
    found = re.search(r"^pan:1: (.*?) \(at depth", output, re.MULTILINE)
    errors = re.search(r"errors: (\d+)$", output, re.MULTILINE)
    assert errors, f"pan has not finished its report:\n{tail(output)}"
    assert bool(found) == (errors[1] != "0"), f"pan contradicts itself:\n{tail(output)}"
    complete = not re.search(r"Search not completed|depth too small|MEMLIM|out of memory", output)
    # Spin looks for the trail where the model is.
    trail = ""
    if found:
        steps = ["-k", cwd / f"{MODEL.name}.trail", "-p", "-g"]
        trail = run(["spin", *defines, *steps, MODEL], cwd=cwd, check=False)
    return Verdict(found[1] if found else "", complete, output, trail)


# Two pauses, and one time-out that comes early, unless it says otherwise here.
@pytest.mark.parametrize(
    "macros",
    [
        "EARLY=2",
        "SPURIOUS=1",
        "PAUSE PAUSES=1",
        "LOCK EARLY=2",
        "STOP PAUSES=1 EARLY=0",
        "HOTPLUG PAUSES=1",
        "CRASH PAUSES=1",
        "DEAF",
        "DEAF PAUSE PAUSES=1 EARLY=0",
        "NMI LOCK",
        "NMI STOP PAUSES=1 EARLY=0",
        "NMI HOTPLUG PAUSES=1",
        # A pseudo-NMI needs no giving up, and a count that is never given up needs no tag.
        "NMI LOCK NO_GIVE_UP",
        "NMI STOP NO_GIVE_UP PAUSES=1",
        "NMI LOCK NO_GIVE_UP COUNTER",
    ],
)
def test_protocol_holds(macros, tmp_path):
    verdict = verify(macros, tmp_path)
    assert not verdict.error, tail(verdict.trail, 80)
    assert verdict.complete, verdict.output


@pytest.mark.parametrize(
    ("macros", "error"),
    [
        ("LOCK NO_GIVE_UP", DEADLOCK),
        ("STOP NO_GIVE_UP", DEADLOCK),
        ("LOCK NO_BACK_OFF PAUSES=1 EARLY=0", NEEDLESS_FAILURE),
        ("STOP NO_BACK_OFF PAUSES=1 EARLY=0", NEEDLESS_FAILURE),
        ("LOCK NO_BACK_OFF NO_FAILING PAUSES=1 EARLY=0", ENDLESS),
        ("DEAF NO_FAILING PAUSES=1", ENDLESS),
        ("COUNTER", WRONG_COUNT),
        ("LEVEL_FLAG", WRONG_COUNT),
        ("NO_WAIT_FOR_LEAVING", NOT_COUNTED),
        ("HOTPLUG NO_HOTPLUG_LOCK", ACCESS),
        ("PAUSE NO_MUTEX", TWO_INITIATORS),
        ("CRASH NO_ABANDON", DEADLOCK),
    ],
)
def test_what_is_wrong_is_found_out(macros, error, tmp_path):
    verdict = verify(macros, tmp_path)
    assert error in verdict.error, verdict.output


def test_search_cut_short_proves_nothing(tmp_path):
    verdict = verify("", tmp_path, depth=50)
    assert verdict.error or not verdict.complete
