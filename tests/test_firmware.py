"""The everyday kernel boots as on a server: from UEFI with ACPI tables, on two NUMA nodes."""

from __future__ import annotations

import pytest

from pagewright.host.errors import MachineError
from pagewright.machine.options import LISTED_CPU, MachineOptions
from pagewright.machine.qemu import describe

ON = (
    "atomic-write-fault: on for atomics and load-exclusives",
    "linear map: blocks",
    "HugeTLB: vmemmap optimization is seamless",
    "percpu: local map of",
)


def log_with_all_on(place):
    """Assert that every feature says that it is on; return the kernel's log."""
    log = place.check("dmesg")
    for words in ON:
        assert words in log
    return log


def has_two_nodes(place):
    """Assert that CPUs are divided among two nodes, each of which has a pool of hugepages."""
    nodes = "/sys/devices/system/node"
    assert place.read(f"{nodes}/online", f"{nodes}/node0/cpulist", f"{nodes}/node1/cpulist") == [
        "0-1",
        "0-1",
        "2-3",
    ]
    pools = [f"{nodes}/node{node}/hugepages/hugepages-2048kB/nr_hugepages" for node in (0, 1)]
    place.check("; ".join(f"echo 32 >{pool}" for pool in pools))
    assert place.read(*pools) == ["32", "32"]
    place.check("; ".join(f"echo 0 >{pool}" for pool in pools))
    assert place.read("/sys/kernel/mm/hugetlb_vmemmap/bytes_saved") == ["0"]


def test_features_are_on_under_uefi_and_acpi_on_two_nodes(machine):
    place = machine(
        "patched-4k",
        firmware=True,
        nodes=2,
        cpu=LISTED_CPU,
        smp=4,
        memory="2G",
        append="hugetlb_free_vmemmap=on",
    )
    log = log_with_all_on(place)
    # With pointer authentication the kernel itself signs its return addresses.
    assert "detected: Address authentication" in log
    # The tables of ACPI tell of the nodes, as there is no device tree that could.
    assert "ACPI: SRAT: Node 1 PXM 1 " in log
    assert place.check("ls /sys/firmware/efi/systab /sys/firmware/acpi/tables/SRAT")
    assert place.run("test -e /proc/device-tree/cpus").status != 0
    has_two_nodes(place)
    # Message-signalled interrupts come through the GIC's ITS.
    assert "ITS-" in place.check("cat /proc/interrupts")
    assert place.warnings() == ""


@pytest.mark.full
def test_features_are_on_on_two_nodes_of_a_device_tree(machine):
    place = machine("patched-4k", nodes=2, smp=4, memory="2G", append="hugetlb_free_vmemmap=on")
    log_with_all_on(place)
    has_two_nodes(place)
    assert place.warnings() == ""


def test_nodes_divide_cpus_and_memory(tmp_path):
    for file in ("kernel", "rootfs"):
        (tmp_path / file).touch()
    options = MachineOptions(
        tmp_path / "kernel",
        tmp_path / "rootfs",
        smp=5,
        nodes=2,
        memory="2G",
        firmware=tmp_path / "uefi",
    )
    words = describe(options, tmp_path, tmp_path, 1).read_text()
    assert "nodeid=0,cpus=0-1,memdev=ram0" in words
    assert "nodeid=1,cpus=2-4,memdev=ram1" in words
    assert words.count(f"size={1 << 30}") == 2
    assert f"-bios {tmp_path / 'uefi'}" in words


def test_a_node_without_a_cpu_is_refused(tmp_path):
    with pytest.raises(MachineError, match="2 CPUs cannot be divided among 3 nodes"):
        MachineOptions(tmp_path, tmp_path, smp=2, nodes=3)
