"""Everything that changes the linear map, or reads it, while the machine runs.

The guest programs say what each user is to do. What they measure holds on any
kernel with rodata=full, so the same tests on the base kernel (--full) show that
it is them who are right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import leaves
import pytest
from leaf_sizes import LeafSizes
from settled import settled_leaves
from split import tries_by_access_flag
from waiting import wait_until

from pagewright.guest import programs
from pagewright.machine.machine import Machine
from pagewright.machine.options import DEFAULT_CPU, LEVEL_0_CPU, MTE, UNLISTED_CPU

pytestmark = pytest.mark.long(2)

TESTS = programs.path("linear-map")
MIB = 1 << 20

# With an ITS the next kernel finds interrupts going to memory that is no longer theirs.
NO_ITS = ("-machine", "its=off")


def options_to_jump(build: str, way: dict[str, Any], append: str = "") -> dict[str, Any]:
    """Return options of a machine on which a build can start another kernel, or resume.

    With 52-bit addresses the base cannot: it copies the linear map without the tables
    of the fifth level.
    """
    cpu = DEFAULT_CPU + (",lpa2=off" if build.startswith("base") else "")
    append = f"{way.get('append', '')} {append}".strip()
    return {"cpu": cpu, "smp": 2} | way | {"append": append}


BASE = pytest.param("base-4k", marks=pytest.mark.full)
DEBUG = pytest.param("debug-4k", marks=pytest.mark.full)

builds = pytest.mark.parametrize("build", ["patched-4k", BASE])
builds_and_debug = pytest.mark.parametrize("build", ["patched-4k", BASE, DEBUG])

FOLD_SOON = "arm64.linear_map_fold_delay_ms=100"
SPLIT = "linear_map_split_"


def meminfo(place: Machine, prefix: str) -> dict[str, int]:
    """Return the lines of /proc/meminfo that begin so, in KiB."""
    return {name: size for name, size in place.meminfo().items() if name.startswith(prefix)}


def splits(place: Machine) -> int | None:
    """Return how many leaves were split since boot; None if the kernel does not count."""
    counts = [count for name, count in place.vmstat().items() if name.startswith(SPLIT)]
    return sum(counts) if counts else None


def check_user(
    guest_program: Callable[..., None], place: Machine, program: str, way: dict[str, Any]
) -> None:
    """Run a program; on a kernel with blocks it splits some, and they are whole again after it."""
    leaves, before = settled_leaves(place), splits(place)
    # Only the base has no counts.
    of_ours = place.run("grep -qw linear_map_change /proc/kallsyms")
    assert (before is not None) == (of_ours.status == 0)
    # Where changes are live the kernel has no such count.
    counts_tries = bool(way) and before is not None
    tries = tries_by_access_flag(place) if counts_tries else 0
    guest_program(place, f"{TESTS}/{program}", may_skip=())
    wait_until(lambda: meminfo(place, "DirectMap") == leaves, 10)
    if before is not None:
        assert splits(place) > before
    if counts_tries:
        assert (tries_by_access_flag(place) > tries) == ("append" in way)
    assert place.warnings() == ""


@builds_and_debug
def test_secret_memory(blocks, guest_program, build, way):
    check_user(guest_program, blocks(build, append=FOLD_SOON), "secretmem", way)


@builds_and_debug
def test_modules(blocks, guest_program, build, way):
    check_user(guest_program, blocks(build, append=FOLD_SOON), "modules", way)


@builds_and_debug
def test_bpf_programs(blocks, guest_program, build, way, needs_symbol):
    """Where the base makes machine code writable, to attach a program to it, we do not."""
    needs_symbol("KPROBE_EVENTS", build)
    place, tracing = blocks(build, append=FOLD_SOON), "/sys/kernel/tracing"
    # The kernel keeps one pack of machine code once it has one.
    guest_program(place, f"{TESTS}/bpf -t programs_are_machine_code_that_runs", may_skip=())
    place.check(f"echo p:writable set_memory_rw >{tracing}/kprobe_events")
    place.check(f"echo 1 >{tracing}/events/kprobes/writable/enable")
    try:
        check_user(guest_program, place, "bpf", way)
        name, hits, misses = place.check(f"cat {tracing}/kprobe_profile").split()
    finally:
        place.run(
            f"echo 0 >{tracing}/events/kprobes/writable/enable; echo >{tracing}/kprobe_events"
        )
    assert (name, int(misses)) == ("writable", 0)
    assert (int(hits) > 0) == build.startswith("base")


def permissions(place: Machine) -> list[tuple[int, int, leaves.Access]]:
    """Return what may be done with the linear map, whatever the size of its leaves."""
    found: list[tuple[int, int, leaves.Access]] = []
    for run in leaves.snapshot(place).runs:
        if found and found[-1][1:] == (run.start, run.access):
            found[-1] = (found[-1][0], run.end, run.access)
        else:
            found.append((run.start, run.end, run.access))
    return found


@pytest.mark.full
@pytest.mark.parametrize("build", ["patched-4k", BASE, DEBUG])
@pytest.mark.parametrize("delay", ["1", "100"])
def test_users_at_the_same_time(blocks, guest_program, build, delay):
    """All of them on four CPUs, and readers of the page tables besides."""
    place = blocks(build, smp=4, append=f"arm64.linear_map_fold_delay_ms={delay}")
    guest_program(place, f"{TESTS}/bpf -t programs_are_machine_code_that_runs", may_skip=())
    # Memory of programs that are gone is out of the map for a moment when it is freed, later.
    settled_leaves(place)
    guest_program(place, f"{TESTS}/modules -t leave_nothing_else_read_only", may_skip=())
    leaves = settled_leaves(place)
    before = permissions(place)
    output = place.check(
        f"""
        cd {TESTS}; export TOGETHER=1; jobs=
        ./secretmem -t of_many_processes_comes_back & jobs="$jobs $!"
        ./modules -t come_and_go_on_all_cpus & jobs="$jobs $!"
        ./bpf -t programs_come_and_go_on_all_cpus & jobs="$jobs $!"
        for i in 1 2 3 4 5; do
            cat /sys/kernel/debug/kernel_page_tables >/dev/null || exit
            head -c 64M /proc/kcore >/dev/null || exit
        done
        for job in $jobs; do wait $job || exit; done
        """,
        timeout=300,
    )
    # A program that has skipped its test, or has none of that name, says that it passed.
    passed = re.findall(r"# PASSED: [1-9]", output)
    assert (len(passed), output.count("# SKIP")) == (3, 0), output
    wait_until(lambda: permissions(place) == before, 20)
    wait_until(lambda: meminfo(place, "DirectMap") == leaves, 10)
    assert place.warnings() == ""


def have_new_memory_in_pages(place: Machine, leaf: LeafSizes) -> None:
    """Split most of what is free, and fill what is not split of it.

    Secret memory and its pages that are free again are in blocks of the kernel's own memory; tasks
    get memory there only when there is none for them elsewhere. Nothing must be folded.
    """
    free, before = place.meminfo()["MemFree"] // 1024, splits(place)
    in_pages = leaves.direct_map(place).get(leaf.page)
    place.check(f"{TESTS}/touch user {free * 3 // 4}", timeout=300)
    place.check(f"head -c {free * 3 // 8}M /dev/zero >/dev/shm/filled", timeout=300)
    if before is None:
        return
    now = leaves.direct_map(place)
    assert splits(place) > before
    assert now[leaf.page] - in_pages > free // 2 * MIB
    # What was in use is in large leaves still.
    assert any(mapped for size, mapped in now.items() if size >= leaf.block)


@pytest.mark.full
@builds
def test_memory_tags(blocks, guest_program, build, way, leaf):
    """In large leaves, and in what they were split into."""
    # A CPU that has tags, whatever the way.
    cpu = {"cpu": UNLISTED_CPU} if way else {}
    place = blocks(build, **cpu, append="arm64.linear_map_fold=0", extra_args=MTE)
    assert "Memory Tagging Extension" in place.console()
    guest_program(place, f"{TESTS}/memory_tags", may_skip=())
    have_new_memory_in_pages(place, leaf)
    guest_program(place, f"{TESTS}/memory_tags", may_skip=())


# --- KFENCE -------------------------------------------------------------------

# Beside each of its 255 pages, and before the first, is one that nobody may access.
KFENCE_GUARDS = 256 * 4096


def kfence_allocations(place: Machine) -> int:
    """Return how many allocations KFENCE has guarded."""
    stats = place.check("cat /sys/kernel/debug/kfence/stats")
    return int(next(line.split(":")[1] for line in stats.splitlines() if "total alloc" in line))


def out_of_the_map(place: Machine) -> int:
    """Return how many bytes of the linear map are invalid."""
    runs = leaves.snapshot(place).runs
    return sum(run.size for run in runs if run.access is leaves.Access.INVALID)


def check_kfence(place: Machine) -> None:
    """Work, without a false report; then read freed memory, until KFENCE reports it."""
    before = kfence_allocations(place)
    place.check("for i in $(seq 30); do ls -lR /sys/class >/dev/null; done")
    assert kfence_allocations(place) > before + 20
    assert place.warnings() == ""
    place.check(
        "for i in $(seq 2000); do"
        " echo READ_AFTER_FREE >/sys/kernel/debug/provoke-crash/DIRECT;"
        " dmesg | grep -q 'BUG: KFENCE: use-after-free' && exit 0;"
        "done; exit 1"
    )
    # It is only a report: the machine goes on.
    assert "KFENCE: use-after-free read in lkdtm_READ_AFTER_FREE" in place.warnings()
    place.check("ls -lR /sys/class >/dev/null")


@pytest.mark.full
@builds
def test_kfence_from_boot_on(own_blocks, build):
    check_kfence(own_blocks(build, append="kfence.sample_interval=1"))


@pytest.mark.full
@builds
def test_kfence_switched_on_late(own_blocks, build):
    place = own_blocks(build)
    place.check("echo 1 >/sys/module/kfence/parameters/sample_interval")
    check_kfence(place)


# --- Memory that comes and goes -----------------------------------------------


@builds
@pytest.mark.parametrize(
    "steps", [(1, 5, 0), pytest.param((1, 16, 5, 32, 0), marks=pytest.mark.full)]
)
def test_memory_is_plugged_used_and_unplugged(own_blocks, hotplug, build, steps):
    """In numbers of the kernel's blocks of memory: of 128 MiB, or 512 with pages of 64 KiB."""
    place = own_blocks(build, **hotplug.options)
    total = meminfo(place, "MemTotal")["MemTotal"]
    mapped = sum(meminfo(place, "DirectMap").values())
    block = int(place.check("cat /sys/devices/system/memory/block_size_bytes"), 16)
    for number in steps:
        size = min(number * block, hotplug.MOST)
        hotplug.resize(place, size)
        wait_until(lambda size=size: hotplug.size(place) == size, 60)
        if number == 5:
            # More than was there before.
            stress = f"stress-ng --vm 1 --vm-bytes {total + 200 * 1024}K"
            place.check(f"{stress} --vm-method write64 --vm-ops 2", 300)
    wait_until(lambda: meminfo(place, "MemTotal")["MemTotal"] == total, 10)
    wait_until(lambda: sum(meminfo(place, "DirectMap").values()) == mapped, 10)
    assert place.warnings() == ""


@pytest.mark.full
@builds
def test_plugged_memory_is_in_the_map(own_blocks, hotplug, build):
    """What is plugged is mapped, and unmapped when it goes."""
    place = own_blocks(build, **hotplug.options)
    before = hotplug.mapped(place)
    hotplug.resize(place, 1024 * MIB)
    wait_until(lambda: hotplug.size(place) == 1024 * MIB, 60)
    wait_until(lambda: hotplug.mapped(place) == before + 1024 * MIB, 10)
    hotplug.resize(place, 0)
    wait_until(lambda: hotplug.size(place) == 0, 60)
    wait_until(lambda: hotplug.mapped(place) == before, 10)
    assert place.warnings() == ""


@pytest.mark.full
@pytest.mark.parametrize(
    ("cpu", "contiguous"),
    [(DEFAULT_CPU, True), (LEVEL_0_CPU, False)],
    ids=["live", "paused"],
)
def test_plugged_memory_has_contiguous_ranges_where_blocks_are_split_live(
    machine, hotplug, leaf, cpu, contiguous
):
    """In a pause the entries of a range would change one after the other."""
    place = machine(cpu=cpu, smp=2, **hotplug.options)
    settled_leaves(place)
    end = max(run.end for run in leaves.snapshot(place).runs)
    hotplug.resize(place, 1024 * MIB)
    wait_until(lambda: hotplug.size(place) == 1024 * MIB, 60)
    plugged = [run for run in leaves.snapshot(place).runs if run.start >= end]
    assert sum(run.size for run in plugged) >= 1024 * MIB
    sizes = {run.leaf for run in plugged}
    block = int(place.check("cat /sys/devices/system/memory/block_size_bytes"), 16)
    assert (leaf.blocks in sizes) == (contiguous and leaf.blocks <= block)
    assert leaf.pages not in sizes
    assert place.warnings() == ""


# --- Kernels that follow this one ----------------------------------------------


@pytest.mark.full
@builds
def test_kexec_jumps_to_a_kernel_that_boots(machine, kernel_overlay, build, way):
    place = machine(
        build,
        **options_to_jump(build, way),
        extra_args=NO_ITS,
        overlay=kernel_overlay(build),
    )
    first = place.check("cat /proc/sys/kernel/random/boot_id")
    place.start_anew(f"{TESTS}/kexec /boot/Image second-kernel")
    assert place.check("cat /proc/sys/kernel/random/boot_id") != first
    assert "second-kernel" in place.check("cat /proc/cmdline").split()
    assert place.warnings() == ""


@pytest.mark.full
@builds
def test_crash_dump_shows_memory_as_it_was(machine, kernel_overlay, build, way):
    place = machine(
        build,
        **options_to_jump(build, way, "crashkernel=256M"),
        extra_args=NO_ITS,
        overlay=kernel_overlay(build),
    )
    place.check(f"{TESTS}/kexec -p /boot/Image maxcpus=1 reset_devices")
    held = "until test -s /run/mark; do sleep 0.1; done; cat /run/mark"
    address, content = place.check(f"{TESTS}/mark hold >/run/mark & {held}").split()
    assert place.check(f"{TESTS}/mark find {address} /proc/kcore") == content
    place.start_anew("echo c >/proc/sysrq-trigger")
    assert place.check(f"{TESTS}/mark find {address} /proc/vmcore") == content
    assert place.warnings() == ""


# --- Hibernation ----------------------------------------------------------------


def hibernating(
    machine: Callable[..., Machine], tmp_path: Path, build: str, way: dict[str, Any]
) -> Machine:
    """Boot a machine with a disk of swap for an image, which its kernel loads if there is one."""
    swap = tmp_path / "swap"
    with swap.open("wb") as file:
        file.truncate(1024 * MIB)
    place: Machine = machine(
        build,
        **options_to_jump(build, way, "resume=/dev/vdc hibernate=nocompress"),
        memory="512M",
        extra_args=(
            *("-drive", f"if=none,id=swap,format=raw,file={swap}"),
            *("-device", "virtio-blk-pci,drive=swap,serial=swap,addr=0x1f"),
        ),
    )
    assert place.check("cat /sys/block/vdc/serial") == "swap"
    place.check("mkswap /dev/vdc; swapon /dev/vdc")
    return place


@pytest.mark.full
@builds
def test_hibernation_restores_memory(machine, tmp_path, build, way):
    """Save an image to swap, load it, and go on from it, all in one boot."""
    place = hibernating(machine, tmp_path, build, way)
    place.check("echo test_resume >/sys/power/disk")
    # KFENCE's pages that cannot be read are made valid for the moment in which each is copied.
    place.check("echo 1 >/sys/module/kfence/parameters/sample_interval")
    assert out_of_the_map(place) >= KFENCE_GUARDS
    place.check("head -c 30000000 /dev/urandom >/tmp/memory; modprobe dummy")
    before = place.check("sha256sum /tmp/memory; cat /proc/modules")
    # The base flushes the instruction cache in the interrupt of each page that it has loaded, and
    # waits there for the other CPUs, which it warns can deadlock; now and then, it does.
    place.check("echo 0 >/sys/devices/system/cpu/cpu1/online")
    place.check("echo disk >/sys/power/state", timeout=120)
    place.check("echo 1 >/sys/devices/system/cpu/cpu1/online")
    # This only the kernel that the image was loaded into says.
    assert "MTE pages" in place.check("dmesg | grep hibernate:")
    assert place.check("sha256sum /tmp/memory; cat /proc/modules") == before
    assert out_of_the_map(place) >= KFENCE_GUARDS
    guarded = kfence_allocations(place)
    place.check("rmmod dummy; ls -lR /sys/class >/dev/null")
    assert kfence_allocations(place) > guarded
    assert place.warnings() == ""


@pytest.mark.full
@builds
def test_an_image_is_loaded_into_a_map_that_is_split_elsewhere(machine, tmp_path, build, way):
    """Save an image to swap, and have another boot, whose map is as it is at boot, load it.

    The image then comes into a kernel in which blocks map what pages mapped when it was saved.
    """
    append = f"{way.get('append', '')} arm64.linear_map_fold=0"
    place = hibernating(machine, tmp_path, build, way | {"smp": 1, "append": append})
    at_boot = meminfo(place, "DirectMap")
    place.check("echo 1 >/sys/module/kfence/parameters/sample_interval")
    assert out_of_the_map(place) >= KFENCE_GUARDS
    place.check("head -c 30000000 /dev/urandom >/tmp/memory; modprobe dummy")
    saved = meminfo(place, "DirectMap")
    before = place.check("sha256sum /tmp/memory; cat /proc/modules")
    assert build == "base-4k" or saved != at_boot
    # QEMU is not to end when the guest has it reset the machine.
    place.monitor("set-action", reboot="reset")
    place.check("echo reboot >/sys/power/disk")
    # The image has the shell already, so what the guest's init would say is said for it.
    place.start_anew("echo disk >/sys/power/state && echo guest-init: ready >/dev/kmsg")
    assert place.console().count("Booting Linux on physical CPU") == 2
    assert place.check("sha256sum /tmp/memory; cat /proc/modules") == before
    assert meminfo(place, "DirectMap") == saved
    assert out_of_the_map(place) >= KFENCE_GUARDS
    guarded = kfence_allocations(place)
    place.check("rmmod dummy; ls -lR /sys/class >/dev/null")
    assert kfence_allocations(place) > guarded
    assert place.warnings() == ""


# --- Debugging of page allocation ---------------------------------------------------


@pytest.mark.full
def test_debug_pagealloc_works_in_pages(machine):
    place = machine("debug-4k", smp=2, append="debug_pagealloc=on")
    assert "linear map: pages" in place.check("dmesg | grep 'linear map: '")
    place.check("stress-ng --vm 2 --vm-bytes 100M --vm-ops 50 --fork 2 --fork-ops 50", 300)
    assert place.warnings() == ""
