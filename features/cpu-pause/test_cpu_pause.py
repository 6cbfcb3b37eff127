"""All other CPUs stop, and go on."""

from __future__ import annotations

import base64
import re
import time
from pathlib import Path

import calls
import half_way
import pytest
from waiting import wait_until

from pagewright.host.errors import PagewrightError
from pagewright.host.run import run
from pagewright.host.toolchain import NM, OBJDUMP
from pagewright.kernel import build, recipes
from pagewright.kernel.modules import FOLDER
from pagewright.machine import klog, virtual_cpus
from pagewright.machine.machine import Machine
from pagewright.machine.options import LEVEL_0_CPU
from pagewright.machine.strict import link_address

pytestmark = pytest.mark.long(2)

SUITE = "/sys/kernel/debug/kunit/cpu_pause"
SYSFS = "/sys/kernel/cpu_pause"
PAGE = 4096
NMI = "irqchip.gicv3_pseudo_nmi=1"
# What firmware may answer to AFFINITY_INFO.
PSCI_NOT_SUPPORTED, PSCI_INVALID_PARAMS = -1, -2
BY_NMI = ("a_pause_stops_a_cpu_with_interrupts_off",)


EVERY_DAY = [(4, NMI)]
# Where an emulator has more CPUs than its host, a pause takes long. With so long a wait it fails
# for the time it took, and not for the number of tries.
PATIENT = "cpu_pause.wait_us=1000000"
# So many CPUs do not boot in time, as each waits for others that the host does not run meanwhile.
# Where instructions are the clock, all CPUs go on alike, and the usual waits are long enough.
BY_INSTRUCTIONS = 64
WIDE = [(cpus, nmi) for cpus in (1, 2, 4, 16, 64) for nmi in ("", NMI)]


@pytest.mark.parametrize(
    ("smp", "nmi"),
    [
        *EVERY_DAY,
        *[pytest.param(*one, marks=pytest.mark.full) for one in WIDE if one not in EVERY_DAY],
    ],
    ids=lambda value: value if isinstance(value, int) else ("nmi" if value else "irq"),
)
def test_stress(machine, kunit_suites, needs_symbol, smp, nmi):
    if nmi:
        needs_symbol("ARM64_PSEUDO_NMI")
    # Where there are two CPUs there is a third that never comes online.
    more = "maxcpus=2 " if smp == 2 else ""
    more += PATIENT if smp == 2 or 4 < smp < BY_INSTRUCTIONS else ""
    place = machine(
        smp=3 if smp == 2 else smp,
        memory="2G",
        icount=smp >= BY_INSTRUCTIONS,
        append=f"kunit.enable=1 kunit.filter_glob=cpu_pause {nmi} {more}",
    )
    # With pseudo-NMIs a pause reaches CPUs whose interrupts are off.
    kunit_suites(place, ["cpu_pause"], must_run=BY_NMI if nmi and smp > 1 else ())
    assert ("Pseudo-NMIs enabled" in place.console()) == bool(nmi)
    # The suite has one CPU not answer, unless there is no other.
    late = re.search(r"cpu_pause: CPU\d+ does not take interrupts", place.console())
    assert bool(late) == (smp > 1)
    assert place.warnings(klog.without_dying_cpus) == ""
    assert int(place.check(f"cat {SYSFS}/pauses")) > 0


def test_others_run_between_pauses_whoever_asks(machine, kunit_suites):
    """Instructions are the clock, so that CPUs come at once and an early pause is seen."""
    case = "cpu_pause.what_is_left_is_done_in_further_pauses"
    place = machine(smp=2, icount=True, append=f"kunit.enable=1 kunit.filter_glob={case}")
    kunit_suites(place, ["cpu_pause"])
    assert place.warnings() == ""


# What firmware says of the timer: that the counter is to be read until two reads nearly agree, and
# a rate that the processor's register does not have. The kernel goes by either.
TIMERS = {
    "hisilicon,erratum-161010101": "workaround for HiSilicon erratum",
    "clock-frequency": "running at {:.2f}MHz",
}


@pytest.mark.full
@pytest.mark.parametrize("told", TIMERS)
def test_time_in_a_pause_is_the_drivers(machine, kunit_suites, tmp_path, told):
    """Pauses go by the timer as its driver knows it, not by what the processor says.

    Counters of emulated processors are too fast for two reads to agree each time, so this one has
    a sixth of the rate. It has no erratum: that it is read as one asks is seen in the code alone.
    There is one CPU, so that a pause is as long as what is done in it.
    """
    # The tree is what says it, so that there must not be a UEFI with tables of its own.
    options = {"smp": 1, "cpu": f"{LEVEL_0_CPU},cntfrq=10000000", "firmware": False}
    place, tree = machine(**options), tmp_path / "virt.dtb"
    tree.write_bytes(base64.b64decode(place.check("base64 /sys/firmware/fdt")))
    megahertz = re.search(r"running at ([0-9.]+)MHz", place.console())
    assert megahertz
    half = float(megahertz[1]) / 2
    rate = [str(round(half * 1e6))] if told == "clock-frequency" else []
    run(["fdtput", *(["-t", "u"] if rate else []), tree, "/timer", told, *rate])
    append = f"kunit.enable=1 kunit.filter_glob=cpu_pause {PATIENT}"
    told_so = {**options, "extra_args": ("-dtb", str(tree))}
    place = machine(append=append, **told_so)
    assert TIMERS[told].format(half) in place.console()
    kunit_suites(place, ["cpu_pause"])
    assert place.warnings() == ""

    # And so does their limit, which was not compared with what it is said to be.
    case = "kunit.enable=1 kunit.filter_glob=cpu_pause.a_pause_knows_its_limit"
    place = machine(append=f"{case} trace_event=cpu_pause:cpu_pause", **told_so)
    limit_ns = 1000 * int(place.check(f"cat {SYSFS}/limit_us"))
    trace = place.check("cat /sys/kernel/tracing/trace")
    # Others are of the linear map, and much shorter. A busy host makes any of them longer.
    held = [ns for ns in map(int, re.findall(r" hold_ns=(\d+) ", trace)) if ns > limit_ns / 2]
    assert 0.9 * limit_ns <= min(held) <= 1.5 * limit_ns, trace


@pytest.mark.full
@pytest.mark.parametrize("nmi", ["", NMI], ids=["irq", "nmi"])
def test_stress_under_the_debug_build(machine, kunit_suites, nmi):
    place = machine(
        "debug-4k",
        smp=4,
        memory="2G",
        append=f"kunit.enable=1 kunit.filter_glob=cpu_pause cpu_pause_kunit.rounds=200 {nmi}",
    )
    kunit_suites(place, ["cpu_pause"], must_run=BY_NMI if nmi else ())
    assert place.warnings(klog.without_dying_cpus) == ""


BACKTRACE = 6


def pause_writes(log: Path) -> tuple[int, int]:
    """Count the SGIs that QEMU saw sent for pauses: to all others at once, and to lists."""
    sent = re.findall(r"generating SGI (\d+) IRM (\d)", log.read_text())
    modes = [irm for sgi, irm in sent if int(sgi) == BACKTRACE]
    return modes.count("1"), modes.count("0")


@pytest.mark.full
def test_one_write_interrupts_all_if_all_are_online(machine, tmp_path):
    """With a CPU offline each cluster of 16 is written to, or the CPU would be woken.

    When a pause is tried again each CPU is: perhaps one write did not reach all.
    """
    log = tmp_path / "trace"
    # Whoever asks, there are others in both clusters, also when one has gone.
    place = machine(
        smp=19,
        memory="2G",
        append=f"kunit.enable=1 kunit.filter_glob=cpu_pause.a_pause_knows_its_limit {PATIENT}",
        extra_args=("-D", str(log), "-d", "trace:gicv3_icc_generate_sgi"),
    )

    def counts() -> tuple[int, int, int]:
        """Return how many pauses there were, how many tries were given up, and other writes.

        An overloaded emulator has CPUs stall, whose backtraces are asked for with the same SGI.
        """
        pauses, given_up = (
            int(place.check(f"cat {SYSFS}/{count}")) for count in ("pauses", "given_up")
        )
        return pauses, given_up, place.console().count("Sending NMI from CPU")

    pauses, given_up, others = counts()
    assert pauses >= 1
    # The first try of each is one write to all.
    assert pause_writes(log) == (pauses, 18 * given_up + others)

    place.check("echo 0 >/sys/devices/system/cpu/cpu18/online")
    place.check(f"echo 1 >{SUITE}/run")
    pauses_later, given_up_later, others = counts()
    again = pauses_later - pauses
    assert again > 0
    # Two clusters at first, 17 CPUs in each further try.
    assert pause_writes(log) == (
        pauses,
        18 * given_up + 2 * again + 17 * (given_up_later - given_up) + others,
    )
    # A stall is a complaint, too, also one that is over before a backtrace is asked for.
    stalled = others or "detected stalls on CPUs/tasks" in place.console()
    assert stalled or place.warnings(klog.without_dying_cpus) == ""


def test_statistics_and_limit(machine):
    place = machine(
        smp=2, append="kunit.enable=1 kunit.filter_glob=cpu_pause.a_pause_knows_its_limit"
    )
    longest = int(place.check(f"cat {SYSFS}/longest_ns"))
    assert longest >= 500_000
    assert int(place.check(f"cat {SYSFS}/total_ns")) >= longest

    assert place.check(f"cat {SYSFS}/limit_us").strip() == "500"
    for wrong in ("0", "1000001", "-1", "fast", ""):
        assert place.run(f"echo {wrong} >{SYSFS}/limit_us").status != 0
    assert place.check(f"cat {SYSFS}/limit_us").strip() == "500"

    # What the tests' machines are booted with.
    assert place.check(f"cat {SYSFS}/wait_us").strip() == "50000"
    assert place.run(f"echo 0 >{SYSFS}/wait_us").status != 0
    place.check(f"echo 1000000 >{SYSFS}/wait_us")

    place.check(f"echo 20000 >{SYSFS}/limit_us")
    place.check("echo 1 >/sys/kernel/tracing/events/cpu_pause/enable")
    place.check(f"echo 1 >{SUITE}/run")
    assert int(place.check(f"cat {SYSFS}/longest_ns")) >= 20_000_000
    event = re.search(
        r"cpu_pause: cpus=1 arrive_ns=\d+ hold_ns=(\d+) given_up=0",
        place.check("cat /sys/kernel/tracing/trace"),
    )
    assert event
    assert int(event[1]) >= 20_000_000
    assert place.warnings() == ""


# What is called with the CPUs paused, of what is a function of its own. exchange_once() runs in no
# pause, but may use as little memory as what does.
IN_A_PAUSE = {
    *("stop_others", "let_go", "cpu_pause_ipi", "smp_send_cpu_pause"),
    *("__ipi_send_mask", "__ipi_send_single", "gic_broadcast_sgi", "cpu_logical_map"),
    "_find_next_bit",
    *("cpu_pause_limit_reached", "cpu_pause_half_reached", "arch_timer_read_cntvct_el0"),
    *("remap_paused", "split_paused", "change_entries", "exchange_once"),
}
# What these call beside each other.
CALLED_IN_A_PAUSE = {"irq_get_irq_data"}
# What calls others by their address: the counter, or what the driver of the interrupts has.
CALLS_BY_ADDRESS = {
    *("stop_others", "cpu_pause_limit_reached", "cpu_pause_half_reached"),
    *("smp_send_cpu_pause", "__ipi_send_mask", "__ipi_send_single"),
}
# What cpu_pause_ipi() calls before the CPU says that it has stopped, and after it was let go.
BEFORE_AND_AFTER = {"sdei_try_mask_local_cpu", "sdei_unmask_local_cpu"}


def gicv3_send_mask(vmlinux: Path) -> str:
    """Return the code with which the driver of GICv3 interrupts CPUs; GICv2's has its name."""
    symbols = run([NM, "--print-size", vmlinux])
    found = re.findall(r"^(\w+) (\w+) t gic_ipi_send_mask$", symbols, re.MULTILINE)
    codes = [
        run(
            [
                *(OBJDUMP, "--no-show-raw-insn", "--disassemble", vmlinux),
                f"--start-address=0x{start}",
                f"--stop-address={int(start, 16) + int(size, 16)}",
            ]
        )
        for start, size in found
    ]
    # ICC_SGI1R_EL1 is of GICv3.
    [code] = (code for code in codes if re.search(r"\tmsr\t(icc_sgi1r_el1|s3_0_c12_c11_5),", code))
    return code


@pytest.mark.parametrize(
    "name", [recipes.DEFAULT_BUILD, pytest.param("clang-4k", marks=pytest.mark.full)]
)
def test_nothing_else_is_called_in_a_pause(space, tested, name):
    """No compiler makes a function of what has to be inlined there."""
    vmlinux = build.ensure(space, tested(name)).vmlinux
    codes = calls.codes(vmlinux, IN_A_PAUSE)
    codes["gic_ipi_send_mask"] = gicv3_send_mask(vmlinux)
    called = {function: calls.called(function, code) for function, code in codes.items()}
    # A CPU that has stopped calls nothing, and does not use its stack or its task.
    stopped = re.search(r"\tstlr\t.*?\tisb$", codes["cpu_pause_ipi"], re.MULTILINE | re.DOTALL)
    assert stopped
    assert not re.search(r"\tbl\t|\bsp\b|sp_el0", stopped[0])
    called["cpu_pause_ipi"] -= BEFORE_AND_AFTER
    assert called["stop_others"] == {"smp_send_cpu_pause"}
    assert set().union(*called.values()) <= IN_A_PAUSE | CALLED_IN_A_PAUSE, called
    by_address = {name for name, code in codes.items() if re.search(r"\tbl?r\t", code)}
    assert by_address <= CALLS_BY_ADDRESS

    # From when all have stopped until they are let go: the counter twice, and what is to be done.
    [pauses] = calls.codes(vmlinux, ["try_pause"]).values()
    stopped = re.search(r"<stop_others>$.*?\tstlr\t", pauses, re.MULTILINE | re.DOTALL)
    assert stopped
    assert calls.called("stop_others", stopped[0]) == set()
    assert len(re.findall(r"\tblr\t", stopped[0])) == 3


def test_nothing_that_runs_in_a_pause_can_be_traced_or_probed(machine):
    place = machine(smp=2)
    functions = place.check("cat /sys/kernel/tracing/available_filter_functions").split()
    assert "cpu_pause_run" in functions
    # A function that has another name by now, or is inlined, would be missed in any list.
    symbols = place.check(f"grep -E ' [tT] ({'|'.join(IN_A_PAUSE)})$' /proc/kallsyms").split()
    assert IN_A_PAUSE.difference(symbols) == set()
    assert IN_A_PAUSE.intersection(functions) == set()
    # Nor probed: who probes by address does not ask which functions can be traced.
    blacklist = "cat /sys/kernel/debug/kprobes/blacklist"
    unprobed = {line.split()[1] for line in place.check(blacklist).splitlines()}
    # What is inlined into try_pause() has the addresses of try_pause().
    assert {*IN_A_PAUSE, "try_pause"}.difference(unprobed) == set()
    # The driver of GICv2, which has no NMI, has one of this name, too.
    assert functions.count("gic_ipi_send_mask") == 1
    # Inlined by the driver; if they were not, they would have to be here.
    inlined = {"gic_send_sgi", "gic_compute_target_list", "gic_cpu_to_affinity"}
    assert inlined.isdisjoint(functions)


# A CPU that is to come or go is refused with ETIME: when that began, which one, when it ended.
REFUSED = re.compile(
    r"(\d+\.\d+): cpuhp_enter: cpu: (\d+) .*\(begin_transition\)\n"
    r".* (\d+\.\d+): cpuhp_exit: +cpu: \2 .*ret: -62$",
    re.MULTILINE,
)


def test_no_cpu_comes_or_goes_while_another_is_half_way(machine, needs_symbol):
    """It is refused after ten seconds: who waits holds the lock of CPU hotplug.

    Time is counted in instructions, and passes at once while all CPUs wait.
    """
    needs_symbol("CPU_HOTPLUG_STATE_CONTROL")
    place = machine(smp=4, icount=True)
    cpus, trace = half_way.CPUS, "/sys/kernel/tracing"
    place.check(f"echo 0 >{cpus}/cpu2/online")
    half_way.park(place, 3)

    place.check(f"echo 1 >{trace}/events/cpuhp/enable")
    for change in ("echo 0 >cpu1/online", "echo 1 >cpu2/online"):
        assert place.run(f"cd {cpus}; {change}", timeout=120).status != 0
        assert place.read(f"{cpus}/online") == ["0-1"]
    place.check(f"echo 0 >{trace}/events/cpuhp/enable")
    refused = REFUSED.findall(place.check(f"cat {trace}/trace"))
    # Linux would try again at once after EBUSY.
    assert [int(cpu) for _, cpu, _ in refused] == [1, 2]
    assert all(10 <= float(end) - float(begin) < 11 for begin, _, end in refused), refused

    # Once that CPU has come all the way others come and go again.
    place.check(f"echo 1 >{cpus}/cpu3/online")
    place.check(f"echo 0 >{cpus}/cpu1/online; echo 1 >{cpus}/cpu2/online")
    assert place.read(f"{cpus}/online") == ["0,2-3"]
    assert place.warnings(klog.without_dying_cpus) == ""


# While CPU 3 is half way a task of CPU 1 waits for a pause, and when CPU 3 has left, another one
# keeps it from running. Both are real-time tasks, as the others have some of each second.
WAITS_WITHOUT_RUNNING = """
echo -1 >/proc/sys/kernel/sched_rt_runtime_us || exit 1
chrt -f 1 taskset -c 1 sh -c 'echo 1 >POOL' &
until grep -q cpu_pause_run /proc/$!/stack; do sleep 0.01; done
chrt -f 50 taskset -c 1 sh -c 'while :; do :; done' &
echo $! >/run/spins
sleep 0.2
echo 0 >CPUS/cpu3/hotplug/target
"""


def test_who_waits_and_does_not_run_keeps_nobody_from_pauses(machine, needs_symbol):
    """Neither others that want a pause, nor CPUs that come and go."""
    needs_symbol("CPU_HOTPLUG_STATE_CONTROL")
    append = "hugetlb_free_vmemmap=on hugetlb_vmemmap=pause"
    place = machine(smp=4, icount=True, append=append)
    cpus, pools = half_way.CPUS, "/sys/kernel/mm/hugepages"
    pool = f"{pools}/hugepages-32768kB/nr_hugepages"
    half_way.park(place, 3)
    waits = WAITS_WITHOUT_RUNNING.replace("POOL", pool).replace("CPUS", cpus)
    place.check(waits, timeout=120)

    begun = time_of(place)
    place.check(f"taskset -c 0 sh -c 'echo 8 >{pools}/hugepages-2048kB/nr_hugepages'", timeout=120)
    place.check(f"taskset -c 0 sh -c 'echo 1 >{cpus}/cpu3/online'", timeout=120)
    # An initiator gives up after two seconds, and a CPU after ten.
    assert time_of(place) - begun < 1
    hvo = "/sys/kernel/mm/hugetlb_vmemmap"
    assert place.read(f"{hvo}/not_optimized", pool) == ["0", "0"]
    assert int(place.check(f"cat {hvo}/bytes_saved")) == 8 * 7 * PAGE

    place.check("kill $(cat /run/spins)")
    wait_until(lambda: place.read(pool) == ["1"], 30)
    assert int(place.check(f"cat {hvo}/not_optimized")) <= 1
    assert place.warnings(klog.without_dying_cpus) == ""


def time_of(place):
    """Return the time since boot in seconds."""
    return float(place.check("cat /proc/uptime").split()[0])


# What the CPU does that has paused the others, and what it says then.
DEATHS = {
    "panic": "dies while all other CPUs are paused",
    "fault": "Unable to handle kernel",
    "stack": "Insufficient stack space to handle exception!",
    "warning": "warns while all other CPUs are paused",
    # On the way to the panic, when the others run again, a warning is not fatal once more.
    "fault_warning": "warns of a death in a pause",
}


def dies(place: Machine, command: str, timeout: float = 20) -> None:
    """Run a command of which the guest dies, and wait until that has come to its end."""
    with pytest.raises(PagewrightError):
        place.check(command, timeout=timeout)
    # The kernel is to reboot then, which ends QEMU. A panic that hangs has been told of, too.
    assert place.ended(timeout) is not None


def test_there_are_no_pauses_when_a_cpu_was_lost_on_its_way(machine):
    """It runs the kernel when the one that started it gives up, and is not on line."""
    place = machine(smp=3, append="maxcpus=2")
    crash, cpus = "/sys/kernel/debug/provoke-crash/DIRECT", "/sys/devices/system/cpu"
    place.check(f"echo CPU_PAUSE_LOSE_CPU >{crash}")
    assert place.run(f"echo 1 >{cpus}/cpu2/online").status != 0
    assert "CPU2: failed in unknown state" in place.console()
    assert "CPU2 may run the kernel, though CPU hotplug has given it up" in place.console()
    place.check(f"echo CPU_PAUSE_PANIC >{crash}")
    assert "XFAIL: CPUs cannot be paused (-95)" in place.console()


@pytest.mark.full
def test_a_cpu_that_is_late_does_not_become_another(machine, tmp_path):
    """It comes while the next one is waited for. A host that does not run it has it so late."""
    path = tmp_path / "gdb"
    place = machine(smp=4, append="maxcpus=2", extra_args=virtual_cpus.arguments(path))
    cpus = "/sys/devices/system/cpu"
    with virtual_cpus.VirtualCpus(path) as host:
        host.run([0, 1])
        assert place.run(f"echo 1 >{cpus}/cpu2/online").status != 0
        place.check(f"echo 1 >{cpus}/cpu3/online 2>/dev/null &")
        place.check(f"until test $(cat {cpus}/cpu3/hotplug/state) -gt 0; do sleep 0.1; done")
        time.sleep(1)
        host.run([0, 1, 2])
        time.sleep(1)
        host.run([0, 1, 2, 3])
        place.check(f"until test $(cat {cpus}/cpu3/online) = 1; do sleep 0.1; done", timeout=20)
    assert "CPU2: failed to come online" in place.console()
    booted = re.findall(r"CPU(\d): Booted secondary processor 0x0*(\d) ", place.console())
    assert booted == [("1", "1"), ("3", "3")]
    # It has not begun to run, so nothing speaks against pauses.
    assert "CPU hotplug has given it up" not in place.console()


@pytest.mark.full
def test_a_cpu_whose_id_is_not_what_it_shows_comes_up_as_on_the_base(machine, tmp_path):
    """Nothing has compared the two for secondary CPUs, and some device trees have other IDs.

    Not even once another CPU was given up; but then one such CPU has to have come up before.
    """
    path = tmp_path / "gdb"
    place = machine(
        smp=4,
        append="maxcpus=2",
        modules_from=["features/cpu-pause/other_ids.c"],
        # A GICv3 is told of CPUs by these IDs.
        extra_args=("-machine", "gic-version=2", *virtual_cpus.arguments(path)),
    )
    cpus = "/sys/devices/system/cpu"
    place.check(f"insmod /{FOLDER}/other_ids.ko")
    with virtual_cpus.VirtualCpus(path) as host:
        host.run(range(4))
        place.check(f"echo 1 >{cpus}/cpu2/online && echo 0 >{cpus}/cpu2/online")
        host.run([0, 1, 2])
        assert place.run(f"echo 1 >{cpus}/cpu3/online").status != 0
        place.check(f"echo 1 >{cpus}/cpu2/online")
    assert "CPU3: failed to come online" in place.console()
    assert place.read(f"{cpus}/online") == ["0-2"]


@pytest.mark.full
def test_a_cpu_that_comes_after_it_was_given_up(machine, built, tmp_path):
    """It sets itself online, but takes no interrupt, and is not taken for the next one."""
    path = tmp_path / "gdb"
    place = machine(smp=4, append="nokaslr", extra_args=virtual_cpus.arguments(path))
    cpus, crash = "/sys/devices/system/cpu", "/sys/kernel/debug/provoke-crash/DIRECT"
    has_task = link_address(built(recipes.DEFAULT_BUILD).vmlinux, "secondary_start_kernel")
    assert has_task
    place.check(f"echo 0 >{cpus}/cpu2/online; echo 0 >{cpus}/cpu3/online")
    with virtual_cpus.VirtualCpus(path) as host:
        host.run(range(4))
        place.check(f"(sleep 1; echo 1 >{cpus}/cpu2/online || touch /tmp/lost) 2>/dev/null &")
        host.run_until(has_task)
        host.run([0, 1, 3])
        place.check("until test -e /tmp/lost; do sleep 0.1; done", timeout=30)
        host.run(range(4))
        place.check(f"until grep -q 2 {cpus}/online; do sleep 0.1; done", timeout=20)
        place.check(f"echo CPU_PAUSE_PANIC >{crash}")
        assert "XFAIL: CPUs cannot be paused (-95)" in place.console()
        place.check(f"echo 1 >{cpus}/cpu3/online")
    assert place.console().count("CPU hotplug has given it up") == 1


@pytest.mark.full
def test_there_are_no_pauses_when_a_cpu_that_left_is_not_known_to_be_gone(machine):
    """It may come back to the kernel and go on where it was. Once it is on line all is well."""
    place = machine(smp=3, modules_from=["features/cpu-pause/undead_cpu.c"])
    cpu, module = "/sys/devices/system/cpu/cpu2/online", "undead_cpu"
    pause = "echo CPU_PAUSE_PANIC >/sys/kernel/debug/provoke-crash/DIRECT"
    place.check(f"echo 0 >{cpu}; echo 1 >{cpu}; insmod /{FOLDER}/{module}.ko")
    assert "CPU hotplug has given it up" not in place.console()
    lost = "/sys/kernel/cpu_pause/lost"
    assert place.read(lost) == [""]
    place.check(f"echo 0 >{cpu} && {pause}")
    assert place.read(lost) == ["2"]
    assert "CPU2 may run the kernel, though CPU hotplug has given it up" in place.console()
    assert "XFAIL: CPUs cannot be paused (-95)" in place.console()
    assert place.check("cat /sys/kernel/cpu_pause/failed").strip() == "1"
    place.check(f"echo 1 >{cpu} && rmmod {module} && echo 0 >{cpu}")
    again = "so it had gone, and CPUs can be paused again"
    assert f"CPU2 has been started again, {again}" in place.console()
    assert place.read(lost) == [""]
    assert place.console().count("CPU hotplug has given it up") == 1
    assert "has gone after all" not in place.console()
    dies(place, pause)
    assert DEATHS["panic"] in place.console()


@pytest.mark.full
def test_a_cpu_that_has_gone_after_all_keeps_nobody_from_pauses(machine):
    """A host may run the virtual CPU only after it was waited for, and may take it away then."""
    place = machine(smp=3, modules_from=["features/cpu-pause/undead_cpu.c"])
    lost = "/sys/kernel/cpu_pause/lost"
    place.check(f"insmod /{FOLDER}/undead_cpu.ko; echo 0 >/sys/devices/system/cpu/cpu2/online")
    pause = "echo CPU_PAUSE_PANIC >/sys/kernel/debug/provoke-crash/DIRECT"
    place.check(pause)
    assert place.read(lost) == ["2"]
    assert "XFAIL: CPUs cannot be paused (-95)" in place.console()
    place.check("rmmod undead_cpu")
    dies(place, pause)
    assert "CPU2 has gone after all, and CPUs can be paused again" in place.console()
    assert DEATHS["panic"] in place.console()


@pytest.mark.full
def test_a_cpu_that_firmware_does_not_know_any_more_keeps_nobody_from_pauses(machine):
    """A host that has taken away a virtual CPU may have no state of it that it could tell."""
    place = machine(smp=3, modules_from=["features/cpu-pause/undead_cpu.c"])
    lost, says = "/sys/kernel/cpu_pause/lost", "/sys/module/undead_cpu/parameters/says"
    place.check(f"insmod /{FOLDER}/undead_cpu.ko; echo 0 >/sys/devices/system/cpu/cpu2/online")
    assert place.read(lost) == ["2"]
    place.check(f"echo {PSCI_INVALID_PARAMS} >{says}")
    assert place.read(lost) == [""]
    assert "CPU2 has gone after all, and CPUs can be paused again" in place.console()


@pytest.mark.full
def test_a_cpu_that_had_left_and_is_late_parks(machine, tmp_path):
    """It was not known to be gone. But it was, as firmware has started it, which took too long.

    Since it parks, firmware says for ever that it is on.
    """
    path = tmp_path / "gdb"
    modules = ["features/cpu-pause/undead_cpu.c"]
    place = machine(smp=3, modules_from=modules, extra_args=virtual_cpus.arguments(path))
    cpu = "/sys/devices/system/cpu/cpu2/online"
    with virtual_cpus.VirtualCpus(path) as host:
        host.run(range(3))
        place.check(f"insmod /{FOLDER}/undead_cpu.ko; echo 0 >{cpu}; rmmod undead_cpu")
        host.run([0, 1])
        assert place.run(f"echo 1 >{cpu}").status != 0
        host.run(range(3))
        time.sleep(1)
        assert place.read("/sys/kernel/cpu_pause/lost") == [""]
        assert "CPU2: failed to come online" in place.console()
        assert "CPU2 may run the kernel, though CPU hotplug has given it up" in place.console()
    dies(place, "echo CPU_PAUSE_PANIC >/sys/kernel/debug/provoke-crash/DIRECT")
    assert DEATHS["panic"] in place.console()


@pytest.mark.full
def test_who_reads_which_cpus_are_lost_has_firmware_asked(machine):
    place = machine(smp=4, modules_from=["features/cpu-pause/undead_cpu.c"])
    cpus, lost = "/sys/devices/system/cpu", "/sys/kernel/cpu_pause/lost"
    place.check(f"insmod /{FOLDER}/undead_cpu.ko")
    place.check(f"echo 0 >{cpus}/cpu2/online; echo 0 >{cpus}/cpu3/online")
    assert place.read(lost) == ["2-3"]
    place.check(f"rmmod undead_cpu; echo 1 >{cpus}/cpu3/online")
    assert place.read(lost) == [""]
    # One that has been on line is not asked about when it has left again.
    place.check(f"echo 0 >{cpus}/cpu3/online; cat {lost}")
    log = place.check("dmesg")
    assert "CPU2 has gone after all, and CPUs can be paused again" in log
    assert "CPU3 has been started again, so it had gone" in log
    assert "CPU3 has gone after all" not in log
    assert place.warnings(klog.without_dying_cpus) == ""


@pytest.mark.full
def test_what_stands_in_for_a_pause_does_not_run_while_a_cpu_is_lost(machine):
    """stop_machine() stops the CPUs that are online."""
    modules = ["features/cpu-pause/undead_cpu.c"]
    place = machine(smp=3, modules_from=modules, append="cpu_pause.stop_machine=1")
    place.check(f"insmod /{FOLDER}/undead_cpu.ko; echo 0 >/sys/devices/system/cpu/cpu2/online")
    place.check("echo CPU_PAUSE_PANIC >/sys/kernel/debug/provoke-crash/DIRECT")
    assert "XFAIL: CPUs cannot be paused (-95)" in place.console()


@pytest.mark.full
def test_what_stands_in_for_a_pause_waits_until_a_cpu_has_left_and_may_be_lost(machine):
    """CPU hotplug asks firmware about it for two seconds, and lets nobody in meanwhile."""
    modules = ["features/cpu-pause/undead_cpu.c"]
    place = machine(smp=3, modules_from=modules, append="cpu_pause.stop_machine=1")
    cpu = "/sys/devices/system/cpu/cpu2"
    place.check(f"insmod /{FOLDER}/undead_cpu.ko; echo 0 >{cpu}/online &")
    place.check("until ! grep -q 2 /sys/devices/system/cpu/online; do sleep 0.1; done")
    assert "CPU hotplug has given it up" not in place.console()
    place.check("echo CPU_PAUSE_PANIC >/sys/kernel/debug/provoke-crash/DIRECT")
    assert "CPU2 may run the kernel, though CPU hotplug has given it up" in place.console()
    assert "XFAIL: CPUs cannot be paused (-95)" in place.console()


@pytest.mark.full
@pytest.mark.parametrize("says", [PSCI_NOT_SUPPORTED, PSCI_INVALID_PARAMS])
def test_a_cpu_is_taken_to_be_gone_where_firmware_does_not_know_the_call_or_it(machine, says):
    """It is not asked for two seconds, and the CPU is not lost, which would forbid pauses."""
    place = machine(smp=3, modules_from=["features/cpu-pause/undead_cpu.c"])
    place.check(f"insmod /{FOLDER}/undead_cpu.ko says={says}")
    place.check("echo 0 >/sys/devices/system/cpu/cpu2/online")
    assert place.read("/sys/kernel/cpu_pause/lost") == [""]
    # QEMU's firmware does say so, and that was replaced; nor was a time-out waited for.
    assert "CPU2 killed" not in place.console()
    assert "may not have shut down cleanly" not in place.console()


@pytest.mark.parametrize(
    ("death", "nmi"),
    [
        ("panic", NMI),
        ("stack", ""),
        *(
            pytest.param(death, "", marks=pytest.mark.full)
            for death in ("fault", "fault_warning", "warning", "panic")
        ),
    ],
    ids=lambda value: value if value in DEATHS else ("nmi" if value else "irq"),
)
def test_death_in_a_pause_is_told(machine, death, nmi):
    """The others can hold what the report needs, as the console is now and then."""
    # Only that there is a pause makes it fatal.
    place = machine(smp=4, append=f"printk.devkmsg=on {nmi}")
    place.check("echo 0 >/proc/sys/kernel/panic_on_oops")
    place.check("while :; do echo busy >/dev/kmsg; done >/dev/null 2>&1 & sleep 0.5")
    dies(place, f"echo CPU_PAUSE_{death.upper()} >/sys/kernel/debug/provoke-crash/DIRECT")
    assert DEATHS[death] in place.console()
    assert "Kernel panic" in place.console()
    assert "SMP: stopping secondary CPUs" in place.console()
    assert "failed to stop" not in place.console()


def test_the_report_of_a_death_in_a_pause_is_printed_at_once(machine):
    """A crash kernel is started before the end of a panic, where all that is left is printed."""
    place = machine(smp=2, modules_from=["features/cpu-pause/slow_console.c"])
    place.check(f"insmod /{FOLDER}/slow_console.ko")
    dies(place, "echo CPU_PAUSE_PANIC >/sys/kernel/debug/provoke-crash/DIRECT")
    assert "slow_console: the panic is printed" in place.console()


def test_a_warning_in_a_pause_waits_for_no_console(machine):
    """Its text comes before it is known to be a warning, while another CPU has the console."""
    place = machine(smp=4, append=NMI, modules_from=["features/cpu-pause/slow_console.c"])
    place.check("echo 0 >/proc/sys/kernel/panic_on_oops; echo on >/proc/sys/kernel/printk_devkmsg")
    place.check(f"insmod /{FOLDER}/slow_console.ko always=1")
    place.check("taskset -c 1 sh -c 'while :; do echo busy >/dev/kmsg; done' & sleep 1")
    crash = "echo CPU_PAUSE_WARNING >/sys/kernel/debug/provoke-crash/DIRECT"
    dies(place, f"taskset -c 0 sh -c '{crash}'", timeout=60)
    assert DEATHS["warning"] in place.console()
    assert "Kernel panic" in place.console()
    assert "SMP: stopping secondary CPUs" in place.console()
    assert "failed to stop" not in place.console()


@pytest.mark.full
def test_a_pause_does_not_keep_a_panic_that_began_before_it(machine, built, tmp_path):
    """Whoever panics second is stopped by the first, whom it had paused.

    Nothing is printed of the second any more, so a debugger tells that it came as far.
    """
    path = tmp_path / "gdb"
    place = machine(
        smp=4,
        append=f"nokaslr {NMI}",
        modules_from=["features/cpu-pause/slow_console.c"],
        extra_args=virtual_cpus.arguments(path),
    )
    crash = "/sys/kernel/debug/provoke-crash/DIRECT"
    in_a_pause = link_address(built(recipes.DEFAULT_BUILD).vmlinux, "panic_paused")
    assert in_a_pause
    # On a busy host the other CPUs get little done in a second.
    place.check(f"insmod /{FOLDER}/slow_console.ko panic_delay_ms=8000")
    first = f"taskset -c 1 sh -c 'sleep 2; echo PANIC >{crash}'"
    has_begun = "until dmesg | grep -q 'entry PANIC'; do sleep 0.1; done"
    second = f"({has_begun}; taskset -c 0 sh -c 'echo CPU_PAUSE_PANIC >{crash}')"
    with virtual_cpus.VirtualCpus(path) as host, host.running_until(in_a_pause):
        place.check(f"{first} & {second} &")
    dies(place, "sleep 20")
    assert "Kernel panic - not syncing: dumptest" in place.console()
    # Only the first panic is told of.
    assert DEATHS["panic"] not in place.console()
    assert "SMP: stopping secondary CPUs" in place.console()
    assert "failed to stop" not in place.console()
