"""The linear map of a patched guest: /proc/meminfo tells what the page tables hold."""

from __future__ import annotations

import leaves
import pytest
from leaves import Access

from pagewright.machine.inputs import options_for

pytestmark = pytest.mark.skipif(
    "config.getoption('lg_env')", reason="boots with parameters of its own"
)


@pytest.mark.parametrize(
    ("append", "blocks"), [("", True), ("rodata=on", True), ("arm64.linear_map=pages", False)]
)
def test_direct_map_lines_are_what_the_tables_hold(space, append, blocks):
    options = options_for(
        space,
        "patched-4k",
        memory="4G",
        append=f"{append} {leaves.EARLY_KFENCE}",
    )
    record = leaves.record(options)
    assert record.mode.startswith("linear map: blocks" if blocks else "linear map: pages")
    for shot in record.snapshots:
        held = {leaf: sum(row.values()) for leaf, row in shot.histogram().items()}
        assert {leaf: size for leaf, size in shot.direct_map.items() if size} == held, shot.title
    boot, loaded, unloaded = (shot.histogram() for shot in record.snapshots)
    assert (1 << 30 in boot) == blocks
    if append != "rodata=on":
        assert loaded[4096][Access.READ_ONLY] > boot[4096][Access.READ_ONLY]
    assert unloaded == boot
