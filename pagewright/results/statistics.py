"""How rounds and runs are put together.

A run is a boot of its own, and runs of one side are independent of each other. Rounds of a
work within one run are not: they share the guest, its caches and its memory. So a run counts
once, with the median of its rounds, and a side's figure is the mean of its runs. What is said
of two sides is the difference of their means, with the standard error of that difference,
sqrt(s1^2/n1 + s2^2/n2), where s is the standard deviation of a side's runs and n their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, hypot, sqrt
from statistics import mean, stdev


def whole(value: float) -> str:
    """Write a number without decimals; a half is rounded up, and not to the even neighbour."""
    return f"{floor(value + 0.5):,}"


def without_sign_of_zero(text: str) -> str:
    """Return a number as it was written, without its sign if it was rounded to zero."""
    return text if text.strip("+-0.") else text.lstrip("+-")


def grouped(value: float, decimals: int) -> str:
    """Write a number with thousands grouped, and with decimals only where they count."""
    if abs(value) >= 100 or value == int(value):
        return whole(value)
    return without_sign_of_zero(f"{value:,.{decimals}f}")


@dataclass(frozen=True)
class Difference:
    """How the mean of one side's runs differs from that of another.

    Attributes:
        absolute: this side's mean less the other's.
        reference: the other's mean.
        error: the standard error of the difference; None where a side was run only once.
    """

    absolute: float
    reference: float
    error: float | None

    @property
    def percent(self) -> float | None:
        """The difference in percent of the size of the other side; None if that is zero."""
        return self.absolute / abs(self.reference) * 100 if self.reference else None

    @property
    def percent_error(self) -> float | None:
        """The standard error in percent of the other side, if there is one."""
        if self.error is None or not self.reference:
            return None
        return self.error / abs(self.reference) * 100


def standard_error(runs: Sequence[float]) -> float:
    """Return the standard error of the mean of some runs; 0 of a single one."""
    return stdev(runs) / sqrt(len(runs)) if len(runs) > 1 else 0


def difference(runs: Sequence[float], reference: Sequence[float]) -> Difference:
    """Compare the runs of a side with those of another one."""
    error = None
    if len(runs) > 1 and len(reference) > 1:
        error = hypot(standard_error(runs), standard_error(reference))
    return Difference(mean(runs) - mean(reference), mean(reference), error)
