"""The linear map of a patched guest: /proc/meminfo tells what the page tables hold."""

from __future__ import annotations

import leaves
import pytest
from leaves import Access, Record, Snapshot

from pagewright.machine.options import DEFAULT_CPU, LEVEL_0_CPU

pytestmark = pytest.mark.skipif(
    "config.getoption('lg_env')", reason="boots with parameters of its own"
)


MIB = 1 << 20


@pytest.mark.parametrize(
    ("append", "blocks"),
    [
        ("", True),
        pytest.param("rodata=on", True, marks=pytest.mark.full),
        # Leaves are folded later than a look that does not wait for it.
        pytest.param("arm64.linear_map_fold_delay_ms=4000", True, marks=pytest.mark.full),
        pytest.param("arm64.linear_map=pages", False, marks=pytest.mark.full),
    ],
)
def test_direct_map_lines_are_what_the_tables_hold(tested_options, leaf, append, blocks):
    options = tested_options(
        memory=f"{leaf.memory('4G') // MIB}M",
        append=f"{append} {leaves.EARLY_KFENCE}",
    )
    record = leaves.record(options)
    assert record.mode.startswith("linear map: blocks" if blocks else "linear map: pages")
    for shot in record.snapshots:
        held = {size: sum(row.values()) for size, row in shot.histogram().items()}
        assert {size: n for size, n in shot.direct_map.items() if n} == held, shot.title
    boot, loaded, unloaded = (shot.histogram() for shot in record.snapshots)
    assert (leaf.largest() in boot) == blocks
    if append != "rodata=on":
        assert loaded[leaf.page][Access.READ_ONLY] > boot[leaf.page][Access.READ_ONLY]
    assert unloaded == boot


def protected(shot: Snapshot, record: Record) -> tuple[list[tuple[int, int, Access]], dict]:
    """Return what the kernel may not write: ranges in its image, and bytes in all else.

    Ranges of pages are offsets in the image, whatever the size of the leaves. UEFI has the image
    at another place in each boot, and so is what lies outside of it.
    """
    ranges: list[tuple[int, int, Access]] = []
    image, image_end = record.image
    elsewhere: dict[Access, int] = {}
    for run in shot.runs:
        if run.access == Access.READ_WRITE:
            continue
        first, end = run.start - shot.start, run.end - shot.start
        start, stop = max(first, image) - image, min(end, image_end) - image
        inside = max(0, stop - start)
        if inside and ranges and ranges[-1][1:] == (start, run.access):
            ranges[-1] = (ranges[-1][0], stop, run.access)
        elif inside:
            ranges.append((start, stop, run.access))
        if run.size > inside:
            elsewhere[run.access] = elsewhere.get(run.access, 0) + run.size - inside
    # The memory of what is needed for the boot alone is anybody's then.
    for start, stop, access in ranges[1:]:
        elsewhere[access] = elsewhere.get(access, 0) + stop - start
    return ranges[:1], elsewhere


@pytest.mark.parametrize(
    "cpu", [LEVEL_0_CPU, pytest.param(DEFAULT_CPU, marks=pytest.mark.full)], ids=["paused", "live"]
)
def test_blocks_protect_what_pages_protect(tested_options, leaf, cpu):
    """With large leaves each page has the permission that it has with pages only."""
    found, memory = [], f"{leaf.memory('512M') // MIB}M"
    for append in ("arm64.linear_map=pages", ""):
        # Without KFENCE, which makes pages invalid and valid all the time.
        options = tested_options(cpu=cpu, memory=memory, append=append)
        record = leaves.record(options, settle=0)
        assert record.mode.startswith(f"linear map: {'pages' if append else 'blocks'}")
        found.append([protected(shot, record) for shot in record.snapshots[:2]])
    pages, blocks = found
    (image, boot), (_, loaded) = blocks
    # Something is protected, and modules add to it.
    assert image and loaded[Access.READ_ONLY] > boot[Access.READ_ONLY]
    assert blocks == pages
