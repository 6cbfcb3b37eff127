"""The protocol of cpu-pause, as model/cpu_pause.pml states it, checked by spin.

The protocol must hold in every order of steps, with whatever the other CPUs do; and each
way to get it wrong that is switched on with a macro must be found out, with the error that
it is there to show. The model's first comment says what is checked and what the macros are.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pagewright.host import spin
from pagewright.host.run import tail

pytestmark = pytest.mark.full

MODEL = Path(__file__).parent / "model/cpu_pause.pml"

# The kinds of error, each by a word of what pan prints for it.
DEADLOCK = "invalid end state"
ACCESS = "entry_valid"
NOT_PAUSED = "all_paused"
TWO_INITIATORS = "initiators==1"
ENDLESS = "seq<32"
NEEDLESS_FAILURE = "assertion violated deaf"


def verify(macros: str, cwd: Path, depth: int = spin.DEPTH) -> spin.Verdict:
    """Search all that the model can do, with macros that choose the variant and what CPUs do."""
    return spin.verify(MODEL, macros.split(), cwd, depth)


# Two pauses, and one time-out that comes early, unless it says otherwise here.
@pytest.mark.parametrize(
    "macros",
    [
        "EARLY=2",
        "SPURIOUS=1",
        "PAUSE PAUSES=1",
        "TRY PAUSES=1 TRIES=3",
        "TRY LOCK PAUSES=1 EARLY=0",
        "TRY HOTPLUG PAUSES=1 EARLY=0",
        "TRY DEAF PAUSES=1 EARLY=0",
        "LOCK EARLY=2",
        "STOP PAUSES=1 EARLY=0",
        "HOTPLUG PAUSES=1",
        "HOTPLUG LATE PAUSES=1",
        "HOTPLUG UNDEAD PAUSES=1",
        "CRASH PAUSES=1",
        "DEAF",
        "DEAF PAUSE PAUSES=1 EARLY=0",
        "DEAF FORGET",
        "DEAF FORGET PAUSE PAUSES=1 EARLY=0",
        "TRY DEAF FORGET PAUSES=1 EARLY=0",
        "LOCK FORGET",
        "NMI LOCK",
        "NMI STOP PAUSES=1 EARLY=0",
        "NMI HOTPLUG PAUSES=1",
        # A pseudo-NMI needs no giving up, and pauses that are never given up need no numbers.
        "NMI LOCK NO_GIVE_UP",
        "NMI STOP NO_GIVE_UP PAUSES=1",
        "NMI LOCK NO_GIVE_UP NO_NUMBER",
    ],
)
def test_protocol_holds(macros, tmp_path):
    verdict = verify(macros, tmp_path)
    assert not verdict.error, tail(verdict.trail, 80)
    assert verdict.complete, verdict.output
    print(f"{macros}: {verdict.states:,} states, {verdict.steps} steps deep")


@pytest.mark.parametrize(
    ("macros", "error"),
    [
        ("LOCK NO_GIVE_UP", DEADLOCK),
        ("STOP NO_GIVE_UP", DEADLOCK),
        ("LOCK NO_BACK_OFF PAUSES=1 EARLY=0", NEEDLESS_FAILURE),
        ("STOP NO_BACK_OFF PAUSES=1 EARLY=0", NEEDLESS_FAILURE),
        ("LOCK NO_BACK_OFF NO_FAILING PAUSES=1 EARLY=0", ENDLESS),
        ("DEAF NO_FAILING PAUSES=1", ENDLESS),
        ("NO_NUMBER", NOT_PAUSED),
        ("NMI LOCK NO_GIVE_UP NO_NUMBER NO_WAIT_FOR_LEAVING", NOT_PAUSED),
        ("LEVEL_FLAG", NOT_PAUSED),
        ("HOTPLUG NO_HOTPLUG_LOCK", ACCESS),
        ("HOTPLUG LATE NO_LOSS", ACCESS),
        ("HOTPLUG UNDEAD NO_LOSS PAUSES=1", ACCESS),
        ("PAUSE NO_MUTEX", TWO_INITIATORS),
        ("TRY TRY_COUNTS PAUSES=1 TRIES=3", NEEDLESS_FAILURE),
        ("CRASH NO_ABANDON", DEADLOCK),
    ],
)
def test_what_is_wrong_is_found_out(macros, error, tmp_path):
    verdict = verify(macros, tmp_path)
    assert error in verdict.error, verdict.output


def test_search_cut_short_proves_nothing(tmp_path):
    verdict = verify("", tmp_path, depth=50)
    assert verdict.error or not verdict.complete
