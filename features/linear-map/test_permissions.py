"""Each page has the permissions that it has on the base kernel with rodata=full.

What is compared is the kernel's own dump of its page tables, with all attributes that it has words
for, but for the sizes of entries. It has no word for PTE_WRITE, with which hardware that manages
dirty state lets a write through a read-only entry. That writes to what the image protects fault is
for test_protection.py to show. Three differences are none in protection:

- The parts of the images differ in size. So the kinds of pages of each part, and of its alias in
  the linear map, are compared, and not their number. Of all else that the linear map has, and of
  all else that is read-only or executable, the number of pages is compared, too.
- In an invalid entry the bit that is nG elsewhere is PTE_PRESENT_INVALID. The patched kernel sets
  it, or page-table dumps would take an invalid block for a table; the base clears PTE_VALID alone.
- percpu-local makes pages read-only that the base does not have (percpu_local_protect()): top
  levels of page tables for each CPU, and the list of them. Without its map there are none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import permissions
import pytest
from leaves import EARLY_KFENCE
from permissions import Permissions, Reader, Sizes
from ways import WAYS
from workloads import MODULES

from pagewright.guest import programs
from pagewright.guest.shell import UNLOAD

HOLD = programs.path("linear-map", "hold")
MIB = 1 << 20
SECRET = 1 * MIB
CPUS = 2
NO_MAP = "percpu_local_map=0"

# Of a small kernel, with a page of a module and one of KFENCE.
TABLE = """\
---[ Linear Mapping start ]---
0xfff0000000000000-0xfff0000000200000           2M PMD       RW NX     AF        BLK UXN    MEM/NORMAL-TAGGED
0xfff0000000200000-0xfff0000000600000           4M PMD       ro NX     AF        BLK UXN    MEM/NORMAL
0xfff0000000600000-0xfff0000000800000           2M PMD       RW NX     AF        BLK UXN    MEM/NORMAL-TAGGED
0xfff0000000800000-0xfff000001fffe000      516088K PTE       RW NX     AF            UXN    MEM/NORMAL-TAGGED
0xfff000001fffe000-0xfff000001ffff000           4K PTE       ro NX     AF            UXN    MEM/NORMAL-TAGGED
0xfff000001ffff000-0xfff0000020000000           4K PTE F     RW NX     AF            UXN    MEM/NORMAL-TAGGED
0xfff0000020000000-0xffff800000000000     3752447G P4D
---[ Linear Mapping end ]---
---[ Modules start ]---
0xffff800000000000-0xffff800000001000           4K PTE       ro x      AF            UXN    MEM/NORMAL
0xffff800000001000-0xffff800080000000     2097148K PTE
---[ Modules end ]---
---[ vmalloc() area ]---
0xffff800080000000-0xffff800080010000          64K PTE       ro NX     AF            UXN    MEM/NORMAL
0xffff800080010000-0xffff800080200000        1984K PTE       ro x      AF    CON     UXN    MEM/NORMAL
0xffff800080200000-0xffff800080400000           2M PMD       ro NX     AF        BLK UXN    MEM/NORMAL
0xffff800080400000-0xffff800080500000           1M PTE
0xffff800080500000-0xffff800080600000           1M PTE       RW NX     AF    CON     UXN    MEM/NORMAL
0xffff800080600000-0xffff800080610000          64K PTE       RW NX     AF            UXN    DEVICE/nGnRE
---[ vmalloc() end ]---
---[ vmemmap start ]---
0xffffc1ffc0000000-0xffffc1ffc0800000           8M PMD       RW NX     AF        BLK UXN    MEM/NORMAL
---[ vmemmap end ]---
---[ PCI I/O start ]---
0xffffffffc0800000-0xffffffffc0810000          64K PTE       RW NX     AF            UXN    DEVICE/nGnRE
---[ PCI I/O end ]---
---[ Fixmap start ]---
0xffffffffff5fe000-0xffffffffff6fe000           1M PTE       ro NX     AF            UXN    MEM/NORMAL
---[ Fixmap end ]---
"""  # noqa: E501
MAPPED = [line for line in TABLE.splitlines() if " AF " in line]
IMAGE = 2 * MIB
SYMBOLS = {
    "_text": 0xFFFF800080000000,
    "_stext": 0xFFFF800080010000,
    "_etext": 0xFFFF800080200000,
    "__start_rodata": 0xFFFF800080200000,
    "__init_begin": 0xFFFF800080400000,
    "__init_end": 0xFFFF800080500000,
    "_data": 0xFFFF800080500000,
    "_end": 0xFFFF800080600000,
}
CHANGES = (
    *(("RW", "ro"), ("ro", "RW"), (" NX ", " x  "), (" x  ", " NX "), ("UXN", "   ")),
    *((" AF ", "    "), (" AF ", " AF NG "), (" AF ", " SHD AF "), (" AF ", " AF GP ")),
    *(("PTE  ", "PTE F"), ("PMD  ", "PMD F"), ("MEM/NORMAL", "MEM/NORMAL-NC")),
)


def parsed(table: str = TABLE, freed: int = 0) -> Permissions:
    return permissions.parse(table, IMAGE, SYMBOLS, freed)


@pytest.mark.parametrize("line", MAPPED, ids=lambda line: line.split("-")[0])
def test_each_attribute_of_each_page_counts(line):
    # Of an invalid page one bit does not count, as below.
    invalid = " F " in line
    for old, new in CHANGES:
        if old in line and not (invalid and "NG" in new):
            changed = line.replace(old, new)
            assert parsed(TABLE.replace(line, changed)) != parsed(), changed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" BLK ", "     "),
        (" CON ", "     "),
        ("PMD", "PTE"),
        # A bit of an invalid entry that has another meaning.
        ("F     RW NX     AF   ", "F     RW NX     AF NG"),
        # More memory of vmalloc().
        ("-0xffff800080610000", "-0xffff800080620000"),
    ],
)
def test_sizes_of_entries_and_places_of_data_do_not_count(old, new):
    assert old in TABLE
    assert parsed(TABLE.replace(old, new)) == parsed()


def test_freed_objects_of_kfence_do_not_count():
    [invalid] = [line for line in MAPPED if "PTE F" in line]
    valid = TABLE.replace(invalid, invalid.replace("PTE F", "PTE  "))
    assert parsed(TABLE, freed=4096) == parsed(valid)


def having(flag: str, sizes: Sizes) -> int:
    """Return the bytes that have an attribute."""
    return sum(size for kind, size in sizes.items() if flag in kind.split())


def mirrored(now: Permissions) -> int:
    """Return how much is read-only of modules and programs; -1 if it is not all of its aliases.

    Nothing else may be read-only in the linear map.
    """
    size = having("ro", now.areas)
    return size if having("ro", now.protected) == size else -1


def protected_by_percpu_local(base: Reader, patched: Reader) -> Sizes:
    """Return what is read-only on the patched kernel alone, which is of percpu-local.

    Before a top level are the pages of the reserved one and of the trampoline's. If top levels are
    smaller than a page, as with 52-bit addresses, they share these three.
    """
    theirs, ours = base.read().protected, patched.read().protected
    own = Sizes({kind: size for kind, size in (ours - theirs).items() if "ro" in kind.split()})
    assert own.total() // patched.page in {1 + 3 * blocks for blocks in (1, CPUS)}
    return own


# The ways to split blocks, and other processors of servers in the way that they have by default.
MACHINES: dict[str, dict[str, Any]] = WAYS | {
    cpu: {"cpu": cpu} for cpu in ("neoverse-n1", "cortex-a72")
}


@pytest.fixture(
    params=[
        "live",
        *(pytest.param(name, marks=pytest.mark.full) for name in MACHINES if name != "live"),
    ]
)
def way(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the options of a machine; see the fixture of that name in conftest.py."""
    return MACHINES[request.param]


@pytest.mark.skipif("config.getoption('lg_env')", reason="boots with parameters of its own")
@pytest.mark.parametrize(
    ("append", "memory"),
    [
        ("", "512M"),
        pytest.param(NO_MAP, "512M", marks=pytest.mark.full),
        pytest.param("", "3G", marks=pytest.mark.full),
    ],
    ids=["map", "no-map", "giants"],
)
def test_every_page_has_the_permissions_of_the_base(blocks, append, memory):
    """After boot, with modules, with secret memory and a BPF program, and after each of these.

    How much memory there is makes no difference to what is compared, as more of it has more pages
    of the same kinds. But blocks of 1 GiB take more than 2 GiB: some of the first is the image's.
    """
    options = {"smp": CPUS, "memory": memory}
    base = blocks("base-4k", append=f"rodata=full {EARLY_KFENCE}", **options)
    patched = blocks(append=f"{append} {EARLY_KFENCE}", **options)
    readers = [Reader(place) for place in (base, patched)]
    has_map = "percpu: local map of" in patched.console()
    assert not (has_map and append == NO_MAP)
    own = protected_by_percpu_local(*readers) if has_map else Sizes()

    def on_both(command: str) -> None:
        for place in (base, patched):
            place.check(command)

    def agree(expected: Callable[[Permissions], bool]) -> Permissions:
        """Return what both have, once it is the same and as expected: some is freed late."""
        give_up = time.monotonic() + 60
        while True:
            theirs, ours = (reader.read() for reader in readers)
            ours = replace(ours, protected=permissions.less(ours.protected, own))
            if (ours == theirs and expected(ours)) or time.monotonic() > give_up:
                break
        assert ours == theirs
        assert expected(ours), ours
        return ours

    boot = agree(lambda now: mirrored(now) >= 0 < having("F", now.protected))
    # The base has nothing but pages, and no line that says so.
    assert patched.meminfo()["DirectMap4k"] << 10 < boot.mapped // 8

    on_both(f"modprobe -a {MODULES}")
    agree(lambda now: mirrored(now) > mirrored(boot))
    on_both(f"{UNLOAD} {MODULES}")
    agree(lambda now: now == boot)

    on_both(f"{HOLD} {SECRET // MIB} >/run/held & until test -s /run/held; do sleep 0.1; done")
    secret = having("F", boot.protected) + SECRET
    # Where the kernel has BPF programs itself, the page of this one is there already.
    code = max(mirrored(boot), 1)
    try:
        agree(lambda now: mirrored(now) >= code and having("F", now.protected) == secret)
    finally:
        on_both("kill $(pidof hold) && rm /run/held")
    agree(lambda now: now == boot)
    assert base.warnings() == patched.warnings() == ""
