"""The tables of the documents, and whether a cell says what a number is."""

from __future__ import annotations

import re
from dataclasses import dataclass

# What a cell is compared with: numbers in their order, a text, or None if nothing is known of it.
Cell = float | tuple[float, ...] | str | None

_NUMBER = re.compile(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?")
# A hyphen in a word is no sign, and names of sizes such as `4k` are no figures.
_NO_FIGURES = re.compile(r"`[^`]*`|\[[^]]*\]\([^)]*\)|\b[A-Za-z]+[-\d][\w-]*")


@dataclass(frozen=True)
class Table:
    """A table of a document: its cells, without the line below the header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(text: str) -> list[Table]:
    """Return the tables of a document in Markdown."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        header, _, *rows = (
            tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            for line in block.splitlines()
        )
        found.append(Table(header, tuple(rows)))
    return found


def numbers(cell: str) -> list[str]:
    """Return the numbers of a cell, as they are written there."""
    return _NUMBER.findall(_NO_FIGURES.sub("", cell))


def has_figures(table: Table) -> bool:
    """Tell whether most cells of a table, but for its first column, begin with a number."""
    cells = [cell for row in table.rows for cell in row[1:] if cell]
    return 2 * sum(bool(re.match(r"[-+]?\d", cell)) for cell in cells) > len(cells)


def says(cell: str, wanted: Cell) -> bool:
    """Tell whether a cell says something; numbers are rounded as they are there."""
    if wanted is None:
        return True
    if isinstance(wanted, str):
        return cell == wanted
    values = wanted if isinstance(wanted, tuple) else (wanted,)
    if cell in ("none", "") and values == (0,):
        return True
    written = numbers(cell)
    return len(written) == len(values) and all(map(_rounded, written, values))


def _rounded(written: str, value: float) -> bool:
    """Tell whether a number is another one with fewer decimals; a half may go either way."""
    decimals = len(written.partition(".")[2])
    return abs(float(written.replace(",", "")) - value) <= 0.5 * 10**-decimals + 1e-9
