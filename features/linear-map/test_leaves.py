"""The linear map: read as the kernel prints it, counted by leaf, drawn."""

from __future__ import annotations

import re
from dataclasses import replace

import leaves
import leaves_plot
import pytest
import settled
from leaves import Access, Record, Run, Snapshot
from page_tables import TOOL

from pagewright.host.errors import PagewrightError
from pagewright.machine.inputs import options_for

MIB = 1 << 20
GIB = 1 << 30

# Cut from a base-4k kernel with rodata=on and 4 GiB; its KFENCE pool shortened.
SAMPLE = """\
---[ Linear Mapping start ]---
0xfff0000000000000-0xfff0000000200000           2M PMD       RW NX     AF        BLK UXN    MEM/NORMAL-TAGGED
0xfff0000000200000-0xfff0000000c00000          10M PMD       ro NX     AF        BLK UXN    MEM/NORMAL
0xfff0000000c00000-0xfff0000000c50000         320K PTE       ro NX     AF            UXN    MEM/NORMAL
0xfff0000000c50000-0xfff0000000e00000        1728K PTE       RW NX     AF    CON     UXN    MEM/NORMAL-TAGGED
0xfff0000000e00000-0xfff0000002000000          18M PMD       RW NX     AF        BLK UXN    MEM/NORMAL-TAGGED
0xfff0000002000000-0xfff0000040000000         992M PMD       RW NX     AF    CON BLK UXN    MEM/NORMAL-TAGGED
0xfff0000040000000-0xfff00000c0000000           2G PUD       RW NX     AF        BLK UXN    MEM/NORMAL-TAGGED
0xfff00000c0000000-0xfff00000fe000000         992M PMD       RW NX     AF    CON BLK UXN    MEM/NORMAL-TAGGED
0xfff00000fe000000-0xfff00000ffe00000          30M PMD       RW NX     AF        BLK UXN    MEM/NORMAL-TAGGED
0xfff00000ffe00000-0xfff00000ffe02000           8K PTE F     RW NX     AF            UXN    MEM/NORMAL-TAGGED
0xfff00000ffe02000-0xfff00000ffe03000           4K PTE       RW NX     AF            UXN    MEM/NORMAL
0xfff00000ffe03000-0xfff0000100000000        2036K PTE       RW NX     AF            UXN    MEM/NORMAL-TAGGED
0xfff0000100000000-0xfff0008000000000         508G PUD
0xfff0008000000000-0xfff1000000000000      261632G P4D
---[ Linear Mapping end ]---
0xffff800000000000-0xffff800080000000           2G PMD       RW NX     AF        BLK UXN    MEM/NORMAL
"""  # noqa: E501

MEMINFO = """\
MemTotal:        4019304 kB
DirectMap4k:        8192 kB
DirectMap64k:          0 kB
DirectMap2M:      100352 kB
DirectMap1G:     3145728 kB
"""

IOMEM = """\
09000000-09000fff : pl011@9000000
40000000-13fffffff : System RAM
  40200000-40c4ffff : Kernel code
  40c50000-40f2ffff : reserved
  40f30000-4119ffff : Kernel data
"""


@pytest.fixture
def sample() -> Record:
    runs = leaves.parse(SAMPLE, 4096)
    shots = tuple(Snapshot(title, runs, {}, 4 * GIB) for title in ("before", "after"))
    return Record("linear map: blocks", 4096, ("dummy",), (2 * MIB, 12 * MIB), shots)


def test_leaves_are_counted_by_size_and_permission(sample):
    megabytes = {
        TOOL.leaf_name(leaf): {access: size / MIB for access, size in row.items()}
        for leaf, row in sample.snapshots[0].histogram().items()
    }
    write, read, invalid = Access
    assert megabytes == {
        "4k": {write: 2040 / 1024, read: 320 / 1024, invalid: 8 / 1024},
        "64k": {write: 1728 / 1024},
        "2M": {write: 50, read: 10},
        "32M": {write: 1984},
        "1G": {write: 2048},
    }
    assert sum(run.size for run in sample.snapshots[0].runs) == 4 * GIB


def test_only_size_and_permission_part_runs():
    runs = leaves.parse(SAMPLE, 4096)
    # The last two lines differ in memory tagging alone.
    assert runs[-1] == Run(0xFFF00000FFE02000, 0xFFF0000100000000, 4096, Access.READ_WRITE)
    assert len(runs) == 11


@pytest.mark.parametrize(
    ("page", "names"),
    [
        (4096, ["4k", "64k", "2M", "32M", "1G", "512G"]),
        (16384, ["16k", "2M", "32M", "1G", "64G", "131072G"]),
        (65536, ["64k", "2M", "512M", "16G", "4096G", "33554432G"]),
    ],
)
def test_leaf_sizes_are_the_configurations(page, names):
    order = TOOL.leaf_order(TOOL.leaf_sizes(page).values())
    assert [TOOL.leaf_name(size) for size in order] == names
    # Each has a colour of its own.
    assert list(order.values()) == list(range(len(TOOL.LEAF_COLOURS)))


def test_a_map_of_three_levels_of_tables_is_read_and_drawn(sample, tmp_path):
    """There blocks of 1 GiB are in the first table, which the kernel calls PGD."""
    text = SAMPLE.replace("PUD       RW", "PGD       RW")
    runs = leaves.parse(text, 4096)
    assert runs == sample.snapshots[0].runs
    leaves_plot.draw(sample, "A map", tmp_path / "map.svg")
    assert TOOL.LEAF_COLOURS[4] in (tmp_path / "map.svg").read_text()


def test_text_without_a_linear_map_or_with_odd_leaves_is_refused():
    with pytest.raises(PagewrightError, match="no linear map"):
        leaves.parse("", 4096)
    with pytest.raises(PagewrightError, match="unknown size"):
        leaves.parse(SAMPLE.replace("PUD       RW", "P4D       RW"), 4096)
    with pytest.raises(PagewrightError, match="unknown size"):
        leaves.parse(SAMPLE.replace("320K PTE       ro NX     AF    ", "320K PMD       ro"), 4096)


def test_meminfo_and_iomem_are_read():
    assert leaves.parse_direct_map(MEMINFO) == {
        4096: 8 * MIB,
        65536: 0,
        2 * MIB: 98 * MIB,
        GIB: 3 * GIB,
    }
    assert leaves.parse_image(IOMEM) == (2 * MIB, 0x11A0000)


def test_rows_that_look_alike_are_one_band(sample):
    row, bands = leaves_plot.layout(sample.snapshots, 4096)
    assert row == 16 * MIB
    assert sum(band.rows for band in bands) == 4 * GIB // row
    assert [(band.start // MIB, band.rows) for band in bands] == [
        (0, 1),
        (16, 1),
        (32, 62),
        (1024, 128),
        (3072, 62),
        (4064, 1),
        (4080, 1),
    ]


def test_pictures_share_their_rows(sample):
    shot = sample.snapshots[1]
    hole = Run(shot.start + GIB, shot.start + GIB + MIB, 4096, Access.READ_ONLY)
    rest = Run(hole.end, shot.start + 3 * GIB, 4096, Access.READ_WRITE)
    runs = [run for run in shot.runs if run.leaf != GIB]
    changed = replace(shot, runs=tuple(sorted([*runs, hole, rest], key=lambda r: r.start)))
    _, bands = leaves_plot.layout([sample.snapshots[0], changed], 4096)
    assert leaves_plot.Band(GIB, 1) in bands
    assert leaves_plot.Band(GIB + 16 * MIB, 127) in bands


def test_rows_get_longer_rather_than_more(sample):
    shot = sample.snapshots[0]
    step = 64 * MIB
    runs = [
        Run(start + part, start + part + step // 2, 4096, access)
        for start in range(shot.start, shot.end, step)
        for part, access in ((0, Access.READ_WRITE), (step // 2, Access.READ_ONLY))
    ]
    row, bands = leaves_plot.layout([replace(shot, runs=tuple(runs))], 4096)
    assert row > 64 * MIB
    assert len(bands) <= leaves_plot.MOST_ROWS


def test_picture_is_the_same_twice_and_names_the_sizes(sample, tmp_path):
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    for target in (first, second):
        leaves_plot.draw(sample, "A map", target)
    assert first.read_bytes() == second.read_bytes()
    drawn = first.read_text()
    for text in ("2 GiB in 1G leaves", "kernel image", "read-only", "before", "after"):
        assert f"<!-- {text}" in drawn or f"<!--  {text}" in drawn
    leaves_plot.draw(sample, "A map", tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(PagewrightError, match="no picture"):
        leaves_plot.draw(sample, "A map", tmp_path / "map.txt")


class Changing:
    """Stands for a machine whose map goes on changing for so many looks."""

    def __init__(self, looks: int, delay: str = "") -> None:
        """Begin to change; the delay is how long folding waits, if the kernel folds."""
        self.looks, self.delay = looks, delay

    def check(self, command: str) -> str:
        """Answer with how many changes are still to come, or the delay."""
        if "linear_map_fold_delay_ms" in command:
            return self.delay
        self.looks = max(0, self.looks - 1)
        return f"DirectMap4k: {self.looks} kB"


def test_a_map_settles_when_it_changes_no_more():
    assert settled.settled_state(Changing(5), quiet=0.3, timeout=60) == "DirectMap4k: 0 kB"
    assert settled.settled_state(Changing(10**6), quiet=0.3, timeout=0.4) is None
    with pytest.raises(AssertionError, match="did not settle"):
        settled.settled_leaves(Changing(10**6), quiet=0.3, timeout=0.4)


def test_a_map_is_quiet_for_longer_than_folding_waits():
    """A map that is changed in pauses waits for ten delays until few tables are worth one."""
    live, paused = (
        leaves._quiet(Changing(0, "200"), f"linear map: blocks (split and folded back {how}: x)")
        for how in ("live", "in pauses")
    )
    assert 0.2 < live < 10 * 0.2 < paused
    assert leaves._quiet(Changing(0), "") < live


@pytest.mark.skipif("config.getoption('lg_env')", reason="boots with parameters of its own")
@pytest.mark.parametrize(
    ("build", "rodata"),
    [
        ("patched-4k", "full"),
        pytest.param("base-4k", "full", marks=pytest.mark.full),
        pytest.param("base-4k", "on", marks=pytest.mark.full),
    ],
)
def test_record_of_a_guest_adds_up(space, build, rodata):
    append = f"rodata={rodata} {leaves.EARLY_KFENCE}"
    options = options_for(space, build, memory="2G", append=append)
    record = leaves.record(options)
    titles = [shot.title for shot in record.snapshots]
    assert titles == ["after boot", "modules loaded", "modules unloaded"]
    assert "veth" in record.modules
    for shot in record.snapshots:
        histogram = shot.histogram()
        # The base does not say how large its leaves are.
        assert bool(shot.direct_map) == (build == "patched-4k")
        if shot.direct_map:
            assert {leaf: sum(row.values()) for leaf, row in histogram.items()} == {
                leaf: size for leaf, size in shot.direct_map.items() if size
            }
        mapped = sum(run.size for run in shot.runs)
        assert 0 < shot.memory < mapped <= 2 * GIB
        pages = sum(histogram[4096].values())
        blocks = sum(sum(row.values()) for leaf, row in histogram.items() if leaf > 4096)
        in_pages = build == "base-4k" and rodata == "full"
        assert blocks < 32 * MIB if in_pages else pages < 16 * MIB
    # With rodata=full the modules' code and constants are read-only here, too.
    read_only = [
        sum(run.size for run in shot.runs if run.access is Access.READ_ONLY)
        for shot in record.snapshots
    ]
    before, loaded, after = read_only
    assert before == after
    assert loaded > before if rodata == "full" else loaded == before
    assert re.match(r"linear map: |$", record.mode)
