"""What a machine that counts what TLBs miss has printed -> numbers for each operation.

A command is counted with few operations and with many (see machine/tlb.py), and prints each count
twice: as `few NAME` and as `many NAME`. The difference is divided by the difference of operations,
so that what a program costs to begin and to end is in no number. Rows are named by the geometry, by
what was accessed, and by what happened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pagewright.machine import tlb
from pagewright.results.experiment import Quantity, Values

# What happens, as the plugin calls it: how a row does, and the unit.
EVENTS = {
    "l1": ("L1 misses", "misses"),
    "l2": ("L2 misses", "misses"),
    "loads": ("descriptors loaded", "loads"),
}
GEOMETRIES = tuple(geometry.name for geometry in tlb.read())


def row(geometry: str, event: str, of: str) -> str:
    """Name a row.

    Args:
        geometry: the name of a geometry.
        event: a key of EVENTS.
        of: what is accessed, in words.
    """
    return f"{geometry}, {of}: {EVENTS[event][0]}"


@dataclass(frozen=True)
class Cost:
    """What an operation costs.

    Attributes:
        values: what was printed.
        operations: how many more operations `many` has than `few`.
    """

    values: Values
    operations: float

    def each(self, key: str) -> float:
        """Return how much of something there is for an operation."""
        return (int(self.values[f"many {key}"]) - int(self.values[f"few {key}"])) / self.operations

    def of(self, geometry: str, event: str, classes: Sequence[str]) -> float:
        """Return how often something happens in some classes of accesses together."""
        return sum(self.each(f"{geometry} {one} {event}") for one in classes)

    def accesses(self, classes: Sequence[str]) -> float:
        """Return how many accesses there are."""
        return sum(self.each(f"accesses {one}") for one in classes)

    def rows(
        self,
        group: str,
        of: str,
        classes: Sequence[str],
        geometries: Sequence[str] = GEOMETRIES,
        events: Sequence[str] = tuple(EVENTS),
    ) -> Iterator[Quantity]:
        """Make a row for each event and geometry.

        Args:
            group: the table.
            of: what the classes are, in words.
            classes: those that are added up.
            geometries: which ones; all by default.
            events: which ones; all by default.
        """
        for event in events:
            for geometry in geometries:
                number = self.of(geometry, event, classes)
                yield Quantity(group, row(geometry, event, of), EVENTS[event][1], number)
