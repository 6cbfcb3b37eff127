"""The everyday kernel boots as on a server: from UEFI with ACPI tables, on two NUMA nodes."""

from __future__ import annotations

import pytest

import conftest
from conftest import SPACE
from pagewright.host.errors import MachineError
from pagewright.kernel import recipes
from pagewright.machine.inputs import as_servers_boot
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


SERVER = {"firmware": True, "smp": 8, "nodes": 2}


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ({}, SERVER),
        ({"memory": "4G"}, {**SERVER, "memory": "4G"}),
        ({"smp": 2}, {**SERVER, "smp": 2}),
        # One CPU is one node.
        ({"smp": 1}, {**SERVER, "smp": 1, "nodes": 1}),
        # Whoever says it gets it.
        ({"nodes": 1}, {**SERVER, "nodes": 1}),
        ({"firmware": False}, {**SERVER, "firmware": False}),
        # What is counted is of as many CPUs as a test has asked for.
        ({"icount": True}, {**SERVER, "icount": True, "smp": 1, "nodes": 1}),
        ({"icount": True, "smp": 4}, {**SERVER, "icount": True, "smp": 4}),
        ({"count": True}, {**SERVER, "count": True, "smp": 1, "nodes": 1}),
        ({"tlb": True}, {**SERVER, "tlb": True, "smp": 1, "nodes": 1}),
    ],
    ids=str,
)
def test_a_kernel_in_debians_configuration_boots_as_on_a_server(asked, made):
    assert as_servers_boot(recipes.recipe(SPACE, "server-4k"), asked) == made
    assert as_servers_boot(recipes.recipe(SPACE, "base-server-4k"), asked) == made
    assert as_servers_boot(recipes.recipe(SPACE, "patched-4k"), asked) == asked


class NothingBootsError(Exception):
    """Ends a test's machine before there is one."""


@pytest.mark.parametrize(("build", "made"), [("server-4k", SERVER), ("patched-4k", {})])
@pytest.mark.skipif("config.getoption('lg_env')", reason="a place is as it is")
def test_the_machines_of_tests_boot_so(
    monkeypatch, machine, shared_machine, tested_options, tested, build, made
):
    """Each fixture asks for it that makes machines, or options of one."""
    asked = []

    def options_for(space, name, **options):
        asked.append((name, options))
        raise NothingBootsError

    monkeypatch.setattr(conftest, "options_for", options_for)
    monkeypatch.setattr(conftest, "_may_be_strict", lambda options: False)
    for fixture in (machine, shared_machine, tested_options):
        with pytest.raises(NothingBootsError):
            fixture(build)
    if tested(build) == build:
        assert asked == [(build, made)] * 3
