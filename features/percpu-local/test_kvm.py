"""A guest kernel runs inside the emulated host, in each mode of the host's KVM.

KVM saves and restores what a CPU translates addresses with, and at EL2 some per-CPU code
runs without the kernel's tables: host and guest do the same work at the same time, and both
must get it right. The base kernel ignores the switch, and does the same.
"""

from __future__ import annotations

import re
import shutil
from typing import Any

import pytest

from pagewright.kernel import modules
from pagewright.machine import klog, nested
from pagewright.machine.machine import Machine
from pagewright.results import ktap

pytestmark = pytest.mark.full

# How the host is booted, and what its KVM says then.
MODES = {
    "vhe": ({}, "VHE mode"),
    "nvhe": ({"append": "kvm-arm.mode=nvhe"}, "Hyp nVHE mode"),
    # No VHE and no LSE; addresses of 48 bits, and KPTI.
    "cortex-a72": ({"cpu": "cortex-a72"}, "Hyp nVHE mode"),
}
# As a host, there, a CPU that has come back may never get a timer interrupt again while a
# guest runs. The base kernel does it, too, so what unplugs the host's CPUs leaves it out.
PLUGGABLE = ("vhe", "nvhe")
SWITCH = "percpu_local_map"
TORTURE = "percpu_torture"
# Where it is in the guest of a kernel that has it only compiled apart.
TORTURE_FILE = f"/{modules.FOLDER}/{TORTURE}.ko"
# An emulator in an emulator may not get a CPU of ours for long: that is no lockup.
PATIENT = "watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=300"

PATCHED, BASE = "patched-kvm-4k", "base-kvm-4k"
builds = pytest.mark.parametrize("build", [PATCHED, BASE])
modes = pytest.mark.parametrize("mode", MODES)

# What host and guest do: processes come and go on all CPUs, and count what they did.
WORK = """
n=0
while [ $n -lt ROUNDS ]; do
    for i in 1 2 3 4 5 6 7 8; do (echo $i | cat >/dev/null) & done; wait
    n=$((n + 1))
done
echo "rounds: $n"
"""
# Vectors, tables and timers of a CPU are set up anew each time it comes.
HOTPLUG = """
n=0
while [ ! -e /tmp/enough ]; do
    for cpu in 1 2 3; do
        echo 0 >/sys/devices/system/cpu/cpu$cpu/online &&
        echo 1 >/sys/devices/system/cpu/cpu$cpu/online || exit 1
    done
    n=$((n + 1))
done
echo "rounds: $n"
"""
# Again and again until the guest has ended.
TORTURE_OF_HOST = """
rm -f /run/torture /run/enough
(
    status=0
    until [ -e /run/enough ] || [ $status != 0 ]; do
        {load} && rmmod percpu_torture
        status=$?
    done
    echo $status >/run/torture
) >/dev/null 2>&1 &
"""


@pytest.fixture(scope="module")
def host(space, built, shared_machine, tmp_path_factory):
    """Boot a machine that can run the build it runs itself inside it."""
    overlays = {}

    def factory(build: str, mode: str, local: int = 1) -> Machine:
        if build not in overlays:
            overlays[build] = nested.lay_out(
                space, tmp_path_factory.mktemp("overlay") / build, built(build).image
            )
            if build == BASE:
                source = f"features/percpu-local/linux/lib/{TORTURE}.c"
                made = modules.ensure(space, built(build), [source])
                shutil.copytree(made, overlays[build], dirs_exist_ok=True)
        options, says = MODES[mode]
        append = f"{PATIENT} {SWITCH}={local} {options.get('append', '')}".strip()
        place = shared_machine(
            build,
            smp=4,
            virtualization=True,
            overlay=overlays[build],
            **(options | {"append": append}),
        )
        assert re.search(rf"kvm \[1\]: {says} initialized successfully", place.console())
        return place

    return factory


def work(rounds: int) -> str:
    """Return shell that works for so many rounds and says so."""
    return WORK.replace("ROUNDS", str(rounds))


def run(place: Machine, command: str, local: int, **options: Any) -> nested.Ended:
    """Boot a guest inside a host and run a command in it."""
    return nested.run(place, command, append=f"{PATIENT} {SWITCH}={local}", **options)


@modes
@pytest.mark.parametrize(
    ("build", "local", "guests_local"),
    [(PATCHED, 1, 1), (PATCHED, 1, 0), (PATCHED, 0, 1), (BASE, 1, 1)],
    ids=["both", "host", "guest", "base"],
)
def test_guest_kernel_boots_and_works(host, mode, build, local, guests_local):
    """Whether one of them has the switch on is nothing to the other."""
    place = host(build, mode, local)
    guest = run(place, f"uname -r; nproc; {work(10)}", guests_local)
    assert guest.status == 0, guest.output
    release = place.check("uname -r")
    assert guest.output.splitlines() == [release, "2", "rounds: 10"]
    assert guest.warnings == ""
    assert place.warnings() == ""
    if build.startswith("patched"):
        assert ("percpu: local map of" in place.console()) == bool(local)
        assert ("percpu: local map of" in guest.log) == bool(guests_local)


@builds
@modes
def test_torture_in_host_and_guest(host, report_ktap, build, mode):
    """All per-CPU operations in all contexts, in both at once."""
    place = host(build, mode)
    assert place.warnings(klog.without_dying_cpus) == ""
    load = f"insmod {TORTURE_FILE}" if build == BASE else f"modprobe {TORTURE}"
    place.check(TORTURE_OF_HOST.format(load=f"{load} plugs={int(mode in PLUGGABLE)}"))
    try:
        guest = run(
            place,
            f"{load} rounds=200 interrupts=50 plugs=1",
            1,
            files=[TORTURE_FILE] if build == BASE else [],
            timeout=900,
        )
        # The host's torture ends before it is told to only if it finds an error.
        assert place.run("test -e /run/torture").status == 1
    finally:
        place.check("touch /run/enough")
    assert guest.status == 0, guest.output
    wait = "while [ ! -e /run/torture ]; do sleep 1; done; cat /run/torture"
    assert place.check(wait, timeout=1800) == "0"
    for log in (place.check("dmesg"), guest.log):
        # Of the host's runs the last one: one that finds an error is not loaded.
        results = "".join(ktap.from_module(log, TORTURE).rpartition("KTAP version")[1:])
        assert report_ktap(results)
        assert re.search(r"^ok ", results, re.MULTILINE)
        assert klog.splats(klog.without_dying_cpus(log)) == ""


@builds
@pytest.mark.parametrize("mode", PLUGGABLE)
def test_host_works_and_its_cpus_come_and_go_meanwhile(host, build, mode):
    place = host(build, mode)
    place.check(
        f"""
        rm -f /tmp/enough
        ({HOTPLUG}) >/tmp/hotplug 2>&1 & echo $! >/tmp/jobs
        ({work(25)}) >/tmp/work 2>&1 & echo $! >>/tmp/jobs
        """
    )
    try:
        guest = run(place, work(25), 1)
    finally:
        place.check("touch /tmp/enough")
    # One by one, as kill fails if one of several is gone.
    place.check(
        "for job in $(cat /tmp/jobs); do while kill -0 $job 2>/dev/null; do sleep 1; done; done"
    )
    assert guest.output == "rounds: 25\n", guest.output
    assert place.check("cat /tmp/work") == "rounds: 25"
    assert re.fullmatch(r"rounds: [1-9]\d*", place.check("cat /tmp/hotplug"))
    assert guest.warnings == ""
    assert place.warnings(klog.without_dying_cpus) == ""
