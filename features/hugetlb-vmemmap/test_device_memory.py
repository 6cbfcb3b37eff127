"""Struct pages of device memory that is used in large units are shared from the start.

A module adds memory that the kernel was told to leave alone (mem=) as that of a device, with or
without units, so that one kernel shows what is saved. It also looks at every struct page.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from pagewright.kernel.modules import FOLDER
from pagewright.machine.free_memory import free_memory
from pagewright.machine.machine import Machine

# The memory of QEMU's machine begins at the first GiB, of which the kernel uses one.
START = 0x80000000

# Page tables: those of the linear map have none for pages, those of the vmemmap have one for each
# 128 MiB where base pages have 4 KiB. And what goes on meanwhile.
ELSE_KIB = 1024


class Device(NamedTuple):
    """Memory of a device, with larger base pages so much more that its struct pages count.

    Attributes:
        page_kib: how large base pages are.
        gib: how much memory it is.
        orders: units whose struct pages are shared, by the logarithm of how many pages they have.
    """

    page_kib: int
    gib: int
    orders: tuple[int, ...]

    def options(self) -> dict[str, Any]:
        """Return the options of a machine that has it."""
        return {
            "memory": f"{self.gib + 1}G",
            "smp": 2,
            "append": "mem=1G",
            # UEFI has some of the rest to itself.
            "firmware": False,
            "nodes": 1,
            "modules_from": ["features/hugetlb-vmemmap/device_memory.c"],
        }

    def add(self, order: int) -> str:
        """Return the command that adds it in units."""
        module = f"/{FOLDER}/device_memory.ko start={START:#x}"
        return f"insmod {module} size={self.gib << 30} shift={order}"

    def all_kib(self) -> int:
        """Return KiB of all struct pages."""
        return (self.gib << 20) // self.page_kib * 64 // 1024

    def tables_kib(self) -> int:
        """Return KiB of the tables that map struct pages as pages."""
        entries = (self.page_kib << 10) // 8
        return max(self.all_kib() // (self.page_kib * entries), 1) * self.page_kib

    def kept_kib(self, order: int) -> int:
        """Return KiB of struct pages that are not shared: of each unit the head's page and one."""
        units = (self.gib << 20) // self.page_kib >> order
        return units * 2 * self.page_kib


# Units of 2 MiB and 1 GiB, 32 MiB and 1 GiB, and 512 MiB.
DEVICES = {
    "patched-4k": Device(4, 4, (9, 18)),
    "patched-16k": Device(16, 8, (11, 16)),
    "patched-64k": Device(64, 16, (13,)),
}


def added(place: Machine, device: Device, order: int) -> int:
    """Add the memory and remove it again; return by how many KiB MemFree was less meanwhile."""
    before = free_memory(place)
    place.check(device.add(order), timeout=300)
    taken = before - free_memory(place)
    place.check("rmmod device_memory")
    assert abs(free_memory(place) - before) < ELSE_KIB
    return taken


@pytest.mark.parametrize(
    "build", [n if n == "patched-4k" else pytest.param(n, marks=pytest.mark.full) for n in DEVICES]
)
def test_device_memory(machine, build):
    """Two pages of struct pages are left of each unit: a quarter in those of 2, 32 or 512 MiB."""
    device = DEVICES[build]
    place = machine(build, **device.options())
    # The first one leaves caches of slabs behind.
    place.check(f"{device.add(0)}; rmmod device_memory", timeout=300)
    assert added(place, device, 0) == pytest.approx(device.all_kib(), abs=ELSE_KIB)
    for order in device.orders:
        assert added(place, device, order) == pytest.approx(device.kept_kib(order), abs=ELSE_KIB)
    assert place.warnings() == ""


@pytest.mark.full
@pytest.mark.parametrize(
    ("build", "order"), [(name, order) for name in DEVICES for order in DEVICES[name].orders]
)
def test_page_tables_of_device_memory_go_with_it(machine, build, order):
    """Those of one round are fewer than what else may stay, and those of all rounds are more."""
    device = DEVICES[build]
    place = machine(build, **device.options())
    one_round = f"{device.add(order)} && rmmod device_memory"
    place.check(one_round, timeout=300)
    before = free_memory(place)
    rounds = 2 * ELSE_KIB // device.tables_kib()
    place.check(f"for round in $(seq {rounds}); do {one_round} || exit; done", timeout=1800)
    assert abs(free_memory(place) - before) < ELSE_KIB
    assert place.warnings() == ""


@pytest.mark.full
@pytest.mark.parametrize(
    ("build", "order"), [(name, order) for name in DEVICES for order in DEVICES[name].orders]
)
def test_device_memory_on_a_strict_machine(machine, build, order):
    """No entry is written where one was, and none is left in a TLB when its page goes."""
    device = DEVICES[build]
    place = machine(build, strict=True, **device.options())
    for _ in range(2):
        place.check(f"{device.add(order)} && rmmod device_memory", timeout=900)
    assert place.warnings() == ""
    assert place.violations() == []
