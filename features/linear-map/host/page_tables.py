"""The lines of /sys/kernel/debug/kernel_page_tables: what is mapped where, and how."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pagewright.host import workspace

# What it knows of page tables is not written down a second time.
TOOL = workspace.find().tool()
FILE = "/sys/kernel/debug/kernel_page_tables"

LINEAR_MAP = "Linear Mapping start"

_HEADING = re.compile(r"---\[ (.*) \]---")


@dataclass(frozen=True)
class Line:
    """Neighbouring entries of one level that have the same attributes.

    Attributes:
        area: the heading that the line follows.
        start: virtual address.
        end: the address after it.
        level: that of the entries: PTE, PMD ...
        flags: the attributes that the file has words for; "F" is among them if the entries
            are invalid.
        text: the line itself.
    """

    area: str
    start: int
    end: int
    level: str
    flags: tuple[str, ...]
    text: str


def lines(text: str) -> Iterator[Line]:
    """Return the lines that are no holes: a hole has no attributes."""
    area = ""
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            area = heading[1]
        elif (match := TOOL.LEAF_LINE.match(line)) and (flags := tuple(match[4].split())):
            yield Line(area, int(match[1], 16), int(match[2], 16), match[3], flags, line)
