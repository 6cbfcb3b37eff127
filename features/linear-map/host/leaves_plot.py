"""A linear map as a picture: RAM in rows, leaves coloured by size, permissions below.

All pictures of a record have the same rows, so that they can be compared. Rows
that look alike all over, one after the other, are drawn as one thin band.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leaves import Access, Record, Run, Snapshot
from page_tables import TOOL

from pagewright.host.errors import PagewrightError

ACCESS_COLOURS = {
    Access.READ_WRITE: "#e0e0e0",
    Access.READ_ONLY: "#252525",
    Access.INVALID: "#dd1c77",
}
# A row is at first so many pages wide, so that a page is about half a point.
PAGES_PER_ROW = 4096
# With more rows than this they get longer.
MOST_ROWS = 24

# In inches.
_WIDTH = 12.0
_ROW_HEIGHT = 0.2
_TOP = 0.35
_GAP = 0.4


@dataclass(frozen=True)
class Band:
    """Rows drawn as one: a single one in detail, or several that look alike.

    Attributes:
        start: offset in RAM of the first row.
        rows: how many.
    """

    start: int
    rows: int


def cut(shot: Snapshot, start: int, end: int) -> list[Run]:
    """Return the runs of a part of RAM, cut at its ends.

    Args:
        shot: the linear map.
        start: offset in RAM.
        end: the offset after it.
    """
    low, high = shot.start + start, shot.start + end
    first = bisect_right(shot.runs, low, key=lambda run: run.end)
    last = bisect_left(shot.runs, high, key=lambda run: run.start)
    return [
        Run(max(run.start, low), min(run.end, high), run.leaf, run.access)
        for run in shot.runs[first:last]
    ]


def _look(shots: Sequence[Snapshot], start: int, row: int) -> tuple[object, ...] | None:
    """Return what a row is made of, if in each picture it is of one kind all over."""
    kinds: list[object] = []
    for shot in shots:
        runs = cut(shot, start, start + row)
        if len(runs) > 1 or (runs and runs[0].size != row):
            return None
        kinds.append((runs[0].leaf, runs[0].access) if runs else None)
    return tuple(kinds)


def layout(shots: Sequence[Snapshot], page: int) -> tuple[int, list[Band]]:
    """Choose the rows of a picture.

    Args:
        shots: what is to be drawn, with the same rows each.
        page: the page size.

    Returns:
        The length of a row in bytes, and the bands.
    """
    extent = max(shot.end - shot.start for shot in shots)
    row = page * PAGES_PER_ROW
    while True:
        bands: list[Band] = []
        before: tuple[object, ...] | None = None
        for start in range(0, extent, row):
            look = _look(shots, start, row)
            if look is not None and look == before:
                bands[-1] = Band(bands[-1].start, bands[-1].rows + 1)
            else:
                bands.append(Band(start, 1))
            before = look
        if len(bands) <= MOST_ROWS:
            return row, bands
        row *= 2


def check_suffix(target: Path) -> None:
    """Raise unless `draw` can write such a file."""
    if target.suffix not in (".svg", ".png"):
        raise PagewrightError(f"{target} is no picture", "name a file that ends in .svg or .png")


def draw(record: Record, title: str, target: Path) -> None:
    """Draw the snapshots of a record, one below the other.

    Args:
        record: the linear map at several moments.
        title: goes on top.
        target: the file; its suffix says whether SVG or PNG.

    Raises:
        PagewrightError: another suffix.
    """
    check_suffix(target)
    import matplotlib

    matplotlib.use("agg")
    # The same maps give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "linear map"
    from matplotlib import pyplot

    row, bands = layout(record.snapshots, record.page)
    panel = _ROW_HEIGHT * len(bands)
    height = _TOP + (panel + _GAP) * len(record.snapshots)
    picture, panels = pyplot.subplots(
        len(record.snapshots), 1, figsize=(_WIDTH, height), squeeze=False
    )
    title = f"{title}; a row is {_offset(row)}"
    picture.suptitle(title, x=0.01, y=1 - 0.1 / height, ha="left", va="top", fontsize=11)
    order = TOOL.leaf_order(TOOL.leaf_sizes(record.page).values())
    colours = {size: TOOL.LEAF_COLOURS[place] for size, place in order.items()}
    for axes, shot in zip(panels[:, 0], record.snapshots, strict=True):
        _draw_panel(axes, shot, row, bands, colours)
        _mark(axes, "kernel image", record.image, row, bands)
    used = {run.leaf for shot in record.snapshots for run in shot.runs}
    picture.legend(
        handles=list(_legend({s: c for s, c in colours.items() if s in used})),
        loc="upper right",
        bbox_to_anchor=(1, 1 - 0.05 / height),
        ncols=len(used) + len(Access),
        frameon=False,
        fontsize=8,
    )
    picture.subplots_adjust(
        left=0.075,
        right=0.995,
        top=1 - (_TOP + _GAP - 0.1) / height,
        bottom=0.1 / height,
        hspace=_GAP / panel,
    )
    picture.savefig(target, dpi=150, metadata={"Date": None} if target.suffix == ".svg" else None)
    pyplot.close(picture)


def _legend(colours: dict[int, str]) -> Iterator[Any]:
    from matplotlib.patches import Patch

    for size, colour in colours.items():
        yield Patch(color=colour, label=TOOL.leaf_name(size))
    for access, colour in ACCESS_COLOURS.items():
        yield Patch(color=colour, label=access.value)


def _draw_panel(
    axes: Any,  # noqa: ANN401
    shot: Snapshot,
    row: int,
    bands: Sequence[Band],
    colours: dict[int, str],
) -> None:
    """Draw one snapshot: of each band the leaves, and below them the permissions."""
    for line, band in enumerate(bands):
        runs = cut(shot, band.start, band.start + row)
        # Small leaves last, and with an edge, so that none disappears behind larger ones.
        for run in sorted(runs, key=lambda r: -r.leaf):
            left = (run.start - shot.start - band.start) / row
            width = run.size / row
            axes.broken_barh(
                [(left, width)],
                (line + 0.08, 0.58),
                facecolor=colours[run.leaf],
                edgecolor=colours[run.leaf],
                linewidth=0.4,
            )
        for run in sorted(runs, key=lambda r: list(Access).index(r.access)):
            axes.broken_barh(
                [((run.start - shot.start - band.start) / row, run.size / row)],
                (line + 0.7, 0.2),
                facecolor=ACCESS_COLOURS[run.access],
                edgecolor=ACCESS_COLOURS[run.access],
                linewidth=0.4,
            )
        if band.rows > 1:
            _label_band(axes, line, band, row, runs)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(bands), 0)
    axes.set_xticks([])
    axes.set_yticks([line + 0.4 for line in range(len(bands))])
    axes.set_yticklabels([_offset(band.start) for band in bands], fontsize=7)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    total = ", ".join(
        f"{sum(by_access.values()) // leaf:,} x {TOOL.leaf_name(leaf)}"
        for leaf, by_access in shot.histogram().items()
    )
    axes.set_title(f"{shot.title}: {total}", loc="left", fontsize=9)


def _label_band(
    axes: Any,  # noqa: ANN401
    line: int,
    band: Band,
    row: int,
    runs: Sequence[Run],
) -> None:
    """Say how much memory a band stands for."""
    text = (
        f"{_offset(band.rows * row)} in {TOOL.leaf_name(runs[0].leaf)} leaves"
        if runs
        else "not mapped"
    )
    axes.text(0.5, line + 0.38, text, ha="center", va="center", fontsize=6.5)


def _mark(
    axes: Any,  # noqa: ANN401
    name: str,
    place: tuple[int, int],
    row: int,
    bands: Sequence[Band],
) -> None:
    """Write a name where a part of RAM begins, if that row is drawn in detail."""
    for line, band in enumerate(bands):
        if band.start <= place[0] < band.start + row and band.rows == 1:
            left = (place[0] - band.start) / row
            axes.text(left, line + 0.38, f" {name}", ha="left", va="center", fontsize=6.5)


def _offset(size: int) -> str:
    """Write an offset in RAM."""
    if size == 0:
        return "0"
    if size % (1 << 30) == 0:
        return f"{size >> 30} GiB"
    return f"{size >> 20} MiB"
