"""Struct pages of device memory that is used in large units are shared from the start.

A module adds memory that the kernel was told to leave alone (mem=) as that of a device, with or
without units, so that one kernel shows what is saved. It also looks at every struct page.
"""

from __future__ import annotations

import pytest

from pagewright.kernel.modules import FOLDER
from pagewright.machine.free_memory import free_memory
from pagewright.machine.machine import Machine

DEVICE_MIB = 4096
# The memory of QEMU's machine begins at the first GiB, of which the kernel uses one.
MODULE = f"/{FOLDER}/device_memory.ko start=0x80000000 size={DEVICE_MIB << 20}"
OPTIONS = {
    "memory": "5G",
    "smp": 2,
    "append": "mem=1G",
    "modules_from": ["features/hugetlb-vmemmap/device_memory.c"],
}

# What all struct pages take, in KiB.
ALL_KIB = DEVICE_MIB * 256 * 64 // 1024
# Page tables: those of the linear map have none for pages, those of the vmemmap have one for each
# 128 MiB. And what goes on meanwhile.
ELSE_KIB = 1024


def kept(order: int) -> int:
    """Return KiB of struct pages that are not shared: of each unit the head's page and a second."""
    units = DEVICE_MIB * 256 >> order
    return units * 2 * 4


def added(place: Machine, order: int) -> int:
    """Add the memory and remove it again; return by how many KiB MemFree was less meanwhile."""
    before = free_memory(place)
    place.check(f"insmod {MODULE} shift={order}", timeout=300)
    taken = before - free_memory(place)
    place.check("rmmod device_memory")
    assert abs(free_memory(place) - before) < ELSE_KIB
    return taken


def test_device_memory(machine):
    """In units of 2 MiB it takes a quarter of the struct pages, of 1 GiB next to none."""
    place = machine(**OPTIONS)
    # The first one leaves caches of slabs behind.
    place.check(f"insmod {MODULE}; rmmod device_memory", timeout=300)
    assert added(place, 0) == pytest.approx(ALL_KIB, abs=ELSE_KIB)
    for order in (9, 18):
        assert added(place, order) == pytest.approx(kept(order), abs=ELSE_KIB)
    assert place.warnings() == ""


@pytest.mark.full
@pytest.mark.parametrize("order", [9, 18])
def test_device_memory_on_a_strict_machine(machine, order):
    """No entry is written where one was, and none is left in a TLB when its page goes."""
    place = machine(strict=True, **OPTIONS)
    for _ in range(2):
        place.check(f"insmod {MODULE} shift={order} && rmmod device_memory", timeout=900)
    assert place.warnings() == ""
    assert place.violations() == []
