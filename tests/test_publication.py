"""Entries that lead to fresh memory: nobody may find there what the memory held before.

publication/publication.pml states how such an entry is written, for each kind of place in the
features' code, and spin tries all orders in which stores become visible. Here it is said which
function is of which kind, and what it has to do in which order; a function that writes entries
and is not named here fails the test.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pagewright.host import spin, workspace
from pagewright.host.run import tail
from pagewright.kernel import source, tree

SPACE = workspace.find()
MODEL = Path(__file__).parent / "publication/publication.pml"

# Kinds of places, as in the model; and those that the model need not know.
SPLIT, TREE, REMAP, MIRROR, FOLD = "SPLIT", "TREE", "REMAP", "MIRROR", "FOLD"
FLAG = "FLAG"
# What is written leads where the old entry led, or only a permission changes.
SAME = "same memory"
# Nobody can walk to the entry yet.
UNKNOWN = "unknown to others"
# It writes for the function that is named in its place.
PART = "part of another"

# By file and function: the kind, and patterns that follow each other in the function. One without
# patterns has no order to keep by itself, for the reason that its kind says.
PLACES: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {
    ("kernel_leaf.c", "set_kernel_leaf"): (SAME, ()),
    ("linear_map_change.c", "change_kernel_leaves"): (SAME, ()),
    ("linear_map_split.c", "fill_split_table"): (UNKNOWN, (r"WRITE_ONCE", r"dsb\(ishst\)")),
    ("linear_map_split.c", "__split_kernel_leaf"): (
        SPLIT,
        (r"fill_split_table\(", r"set_pud\(", r"fill_split_table\(", r"set_pmd\("),
    ),
    # It writes through the function before it: no change may meet what is not invalidated yet.
    ("linear_map_split.c", "split_all_ends_live"): (
        PART,
        (r"mutex_lock\(", r"split_boundary\(", r"flush_splits\(\)", r"mutex_unlock\("),
    ),
    ("linear_map_split.c", "flush_splits"): (PART, (r"flush_tlb_all\(\)",)),
    ("linear_map_fold.c", "fold_table"): (FOLD, (r"set_kernel_leaf\(", r"folded\(")),
    ("linear_map_fold.c", "end_live_folds"): (FOLD, (r"flush_tlb_all\(\)", r"free_folded_tables")),
    ("linear_map_fold.c", "fold_contiguous"): (SAME, ()),
    ("linear_map_pause.c", "plan_split"): (UNKNOWN, (r"fill_split_table\(", r"WRITE_ONCE")),
    ("linear_map_pause.c", "add_exchange"): (SAME, (r"__set_pte\(",)),
    ("linear_map_pause.c", "change_entries"): (
        TREE,
        (
            r"alias, 0\)",
            r"dsb\(ishst\)",
            r"__tlbi\(vmalle1is\)",
            r"dsb\(ish\)",
            r"desc\)",
            r"dsb\(ishst\)",
        ),
    ),
    ("linear_map_access_flag.c", "exchange_once"): (
        FLAG,
        (
            r"~PTE_AF\)",
            r"dsb\(ishst\)",
            r"__tlbi\(vmalle1is\)",
            r"dsb\(ish\)",
            r"arch_cmpxchg_relaxed\(",
            r"dsb\(ishst\)",
        ),
    ),
    ("pgtable_transition.c", "violate"): (UNKNOWN, ()),
    ("vmemmap_change.c", "remap_live"): (
        REMAP,
        (
            r"smp_wmb\(\)",
            *(r"__set_pte_nosync\(", r"invalidate\(changes->start, changes->end,") * 2,
        ),
    ),
    ("vmemmap_change.c", "fill_table"): (UNKNOWN, ()),
    ("vmemmap_change.c", "prepare_split"): (UNKNOWN, ()),
    # No other CPU runs; those that start later find all of it, and nobody looks meanwhile.
    ("vmemmap_change.c", "vmemmap_share_at_boot"): (
        TREE,
        (
            r"fill_table\(",
            r"set_pmd\(",
            r"__pte\(0\)",
            r"flush_tlb_all\(\)",
            r"pmd_populate_kernel\(",
            r"shared\);\s*\}\s*dsb\(ishst\)",
        ),
    ),
    ("vmemmap_change.c", "install_splits"): (
        SPLIT,
        (r"dsb\(ishst\)", r"set_pmd\(", r"flush_tlb_all\(\)"),
    ),
    ("vmemmap_change.c", "break_and_make"): (
        TREE,
        (r"false\)", r"invalidate\(work\)", r"true\)", r"dsb\(ishst\)"),
    ),
    ("vmemmap_change.c", "write_pte"): (PART, ()),
    ("vmemmap_change.c", "write_pmd"): (PART, ()),
    ("percpu_local.c", "make_private"): (UNKNOWN, ()),
    # write_kernel_pgd() and set_pmd() have the barrier after the store.
    ("percpu_local.c", "set_top_level"): (MIRROR, (r"write_kernel_pgd\(",)),
    ("percpu_local.c", "set_local_pmd"): (MIRROR, (r"set_pmd\(",)),
    # No other CPU runs, and this one uses the mapping after the barrier.
    ("percpu_local.c", "arch_percpu_local_map_first"): (
        UNKNOWN,
        (r"__set_pte_nosync\(", r"dsb\(ishst\)"),
    ),
    ("percpu_local.c", "arch_percpu_local_map"): (MIRROR, (r"set_local_pmd\(",)),
    ("percpu_local.c", "percpu_local_mirror"): (MIRROR, (r"WRITE_ONCE\(\*copy", r"dsb\(ishst\)")),
    ("percpu_local.c", "percpu_local_sync_second_level"): (
        MIRROR,
        (r"WRITE_ONCE\(copies", r"dsb\(ishst\)"),
    ),
    ("percpu_local.c", "private_table"): (UNKNOWN, ()),
    ("percpu_local.c", "make_table"): (UNKNOWN, ()),
    ("percpu_local.c", "percpu_local_sync_trampoline"): (
        MIRROR,
        (r"memcpy\(", r"dsb\(ishst\)"),
    ),
    ("percpu_local.c", "sync_nonglobal"): (SAME, ()),
}

_SETTERS = (
    r"set_(?:pte|pmd|pud|p4d|pgd)|__set_pte(?:_nosync)?|set_kernel_leaf|write_kernel_pgd"
    r"|set_top_level|set_local_pmd|(?:pmd|pud|p4d|pgd)_populate\w*"
)
# A store to what a pointer or an index names; plain variables are no entries.
_STORE = re.compile(rf"\b(?:{_SETTERS})\(|\bmemcpy\(|\bWRITE_ONCE\((?:\*|\(\(|\w+\[)")
# The code that changes page tables.
_FOLDER = "arch/arm64/mm"
_NOT_ENTRIES = {("linear_map_split.c", "linear_map_count")}


def functions(text: str) -> dict[str, str]:
    """Return the text of each function, and of each macro with arguments, by its name."""
    found: dict[str, str] = {}
    start = re.compile(r"^(?:#define\s+(\w+)\(|(?!#)[A-Za-z_][\w\s*]*?\b(\w+)\()", re.MULTILINE)
    starts = [(match.start(), match[1] or match[2]) for match in start.finditer(text)]
    for (begin, name), (end, _) in zip(starts, [*starts[1:], (len(text), "")], strict=True):
        body = re.sub(r"/\*.*?\*/", "", text[begin:end], flags=re.DOTALL)
        if "{" in body:
            found[name] = body
    return found


def sources() -> dict[str, str]:
    """Return the features' code that changes page tables, by the names of its files."""
    files = (
        file
        for feature in SPACE.features()
        for file in (feature.path / "linux" / _FOLDER).glob("*.c")
        if not file.stem.endswith("_kunit")
    )
    return {file.name: file.read_text() for file in files}


SOURCES = sources()


def test_every_function_that_writes_entries_is_named():
    writers = {
        (file, name)
        for file, text in SOURCES.items()
        for name, body in functions(text).items()
        # Its own head is no call.
        if _STORE.search(body[body.index("{") :])
    }
    assert writers - _NOT_ENTRIES - PLACES.keys() == set()
    # What is named here is there.
    for file, name in PLACES:
        assert name in functions(SOURCES[file]), (file, name)


@pytest.mark.parametrize(
    ("place", "patterns"),
    [
        pytest.param(place, patterns, id=place[1])
        for place, (_, patterns) in PLACES.items()
        if patterns
    ],
)
def test_the_order_is_as_in_the_model(place, patterns):
    file, name = place
    body = functions(SOURCES[file])[name]
    position = 0
    for pattern in patterns:
        found = re.compile(pattern).search(body, position)
        assert found, f"{name}() has no {pattern} where it should"
        position = found.end()


def test_no_table_is_folded_away_while_kexec_copies_it():
    """A guest would have to fold in just that moment, which it does too seldom."""
    file = tree.assemble(SPACE, source.ensure(SPACE)) / "arch/arm64/kernel/machine_kexec.c"
    body = functions(file.read_text())["machine_kexec_post_load"]
    steps = [r"linear_map_hold\(", r"trans_pgd_create_copy\(", r"linear_map_release\("]
    assert re.search(r".*?".join(steps), body, re.DOTALL)


@pytest.mark.full
@pytest.mark.parametrize("kind", [SPLIT, TREE, REMAP, MIRROR, FOLD, FLAG])
def test_nobody_finds_what_memory_held_before(kind, tmp_path):
    verdict = spin.verify(MODEL, [kind], tmp_path)
    assert not verdict.error, tail(verdict.trail, 80)
    assert verdict.complete, verdict.output


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "without"),
    [
        (SPLIT, "NO_BARRIER"),
        (TREE, "NO_BARRIER"),
        (TREE, "NO_INVALIDATION"),
        (TREE, "NO_PAUSE"),
        (REMAP, "NO_BARRIER"),
        (REMAP, "NO_INVALIDATION"),
        (MIRROR, "NO_BARRIER"),
        (FOLD, "NO_INVALIDATION"),
        (FLAG, "NO_INVALIDATION"),
        (FLAG, "NO_COMPARISON"),
    ],
)
def test_what_is_left_out_is_found_out(kind, without, tmp_path):
    assert "assertion violated" in spin.verify(MODEL, [kind, without], tmp_path).error
