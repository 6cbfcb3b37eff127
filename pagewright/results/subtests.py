"""Cases that ran in a guest -> results of pytest.

Only tests import this module, so that no command loads pytest for the sake of a guest's results.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NoReturn

import pytest

from pagewright.results.ktap import Case

_SKIP_REASON = re.compile(r"# SKIP *(.+)")


def report(cases: Sequence[Case], subtests: pytest.Subtests) -> bool:
    """Report every case as a result of its own: a pass, a failure or a skip.

    Args:
        cases: from `ktap.parse`; none at all is a failure.
        subtests: pytest's fixture of that name.

    Returns:
        Whether there was a case that was not skipped. If there was none, the test should end
        with `skip`, but not before it has looked at everything else.
    """
    if not cases:
        pytest.fail("there is no test result at all")
    for case in cases:
        with subtests.test(case.name):
            if case.outcome == "skip":
                reason = _SKIP_REASON.search(case.log)
                pytest.skip(reason[1] if reason else "skipped in the guest")
            if case.outcome != "pass":
                pytest.fail(f"{case.name}: {case.outcome}\n{case.log}", pytrace=False)
    return any(case.outcome != "skip" for case in cases)


def skip() -> NoReturn:
    """Skip a test whose cases were all skipped."""
    pytest.skip("all cases were skipped in the guest")
