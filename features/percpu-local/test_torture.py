"""Everybody operates on per-CPU variables at once while everything moves, and all adds up.

The modules know only the kernel's generic API and pass on any kernel, so the same tests on the
base kernel (--full) show that it is they who are right. All they do is bounded by counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from percpu_local_log import is_on

from pagewright.host import workspace
from pagewright.kernel import recipes, source
from pagewright.kernel.build import Build
from pagewright.kernel.modules import FOLDER
from pagewright.machine import klog
from pagewright.machine.machine import Machine
from pagewright.machine.options import MTE
from pagewright.results import ktap
from pagewright.results.subtests import report

pytestmark = pytest.mark.long(1)

SPACE = workspace.find()

NMI = "irqchip.gicv3_pseudo_nmi=1"
ANY_CPU = None
# No LSE, no VHE: what is one instruction elsewhere is a loop of exclusive accesses here.
OLD_CPU = "cortex-a72"

# The torture with operations that are broken on purpose, and which it can break.
BROKEN = "percpu_broken"
DEFECTS = [
    "add",
    "add_elsewhere",
    "add_return",
    "and",
    "or",
    "write",
    "read",
    "xchg",
    "cmpxchg",
    "cmpxchg128",
]

# A tenth of the rounds.
FEW = "rounds=200 plugs=1 churns=1"

# The modules of the patched kernel, compiled for a kernel that has none.
LIBRARY = "features/percpu-local/linux/lib"
MODULES = [f"{LIBRARY}/percpu_torture.c", f"{LIBRARY}/percpu_visitor.c"]

LOAD = f"""
load() {{
    module=$1
    shift
    if [ -e /{FOLDER}/$module.ko ]; then
        insmod /{FOLDER}/$module.ko "$@"
    else
        modprobe $module "$@"
    fi
}}
"""
VISIT = "load percpu_visitor && rmmod percpu_visitor"
# Where in the kernel's log it begins. To clear the log would leave a taint that nothing explains.
BEGIN = "torture begins"
# Loads and unloads the visitor until the torture ends, and says how often, and how it ended.
TORTURE = f"""
echo {BEGIN} >/dev/kmsg
load percpu_torture PARAMETERS & torture=$!
visits=0
while kill -0 $torture 2>/dev/null; do
    {VISIT} || exit 1
    visits=$((visits + 1))
done
wait $torture
echo "status $? visits $visits"
"""


def modules_for(build: str) -> list[str]:
    """Return the sources of the modules that a build has not itself."""
    return MODULES if build.startswith("base") else []


def torture(place: Machine, subtests: pytest.Subtests, parameters: str = "") -> dict[str, str]:
    """Run the modules; each result of the torture is one of ours. Return the outcomes.

    They pass without the local map, too, so it is asked for where the kernel has the feature.
    """
    if place.run("grep -qw percpu_local_install /proc/kallsyms").status == 0:
        is_off = "percpu_local_map=0" in place.read("/proc/cmdline")[0]
        assert is_on(place) != is_off
    # The kernel says of the first module that is not its own that it taints the kernel.
    place.check(LOAD + VISIT)
    ended = place.check(LOAD + TORTURE.replace("PARAMETERS", parameters), timeout=1800)
    said = place.check("dmesg").rpartition(BEGIN)[2]
    log = ktap.from_module(said, "percpu_torture")
    cases = ktap.parse(log, source.ensure(SPACE).path)
    some_ran = report(cases, subtests)
    assert re.search(r"^status 0 visits [1-9]", ended, re.MULTILINE), f"{ended}\n{log}"
    assert ktap.from_module(said, "percpu_visitor") == ""
    place.check("rmmod percpu_torture")
    assert place.warnings(klog.without_dying_cpus) == ""
    assert some_ran
    outcomes = {case.name: case.outcome for case in cases}
    preempts = "PREEMPT" in place.check("uname -v")
    assert outcomes["tasks_are_preempted"] == ("pass" if preempts else "skip")
    return outcomes


def check_nmis(
    place: Machine, built: Callable[[str], Build], build: str, outcomes: dict[str, str]
) -> None:
    """Assert that NMIs ran. Debian's configurations are without CONFIG_ARM64_PSEUDO_NMI.

    What the kernel of a place (--lg-env) was configured with is not known here.
    """
    if not place.fixed and built(build).has("ARM64_PSEUDO_NMI"):
        assert outcomes["nmis_run"] == "pass"


def stop_at_any_instruction(place: Machine) -> None:
    """Have QEMU take interrupts between any two instructions, not only where a block ends.

    Without this a short sequence without a branch is never interrupted, so that what only
    looks like one operation passes for one.
    """
    if place.fixed:
        return
    said = place.monitor("human-monitor-command", **{"command-line": "one-insn-per-tb on"})
    # It says nothing of what it has done, and what it does not know it calls so.
    assert said == ""


def full(*values: object) -> object:
    return pytest.param(*values, marks=pytest.mark.full)


@pytest.mark.parametrize(
    ("build", "smp", "cpu", "append"),
    [
        ("patched-4k", 4, ANY_CPU, NMI),
        full("patched-4k", 1, ANY_CPU, ""),
        full("patched-4k", 2, ANY_CPU, ""),
        full("patched-4k", 16, ANY_CPU, NMI),
        full("patched-4k", 4, ANY_CPU, "percpu_local_map=0"),
        full("patched-4k", 4, ANY_CPU, "kpti=on"),
        full("patched-4k", 4, OLD_CPU, ""),
        full("base-4k", 4, ANY_CPU, NMI),
        full("base-4k", 4, OLD_CPU, ""),
        full("debug-4k", 4, ANY_CPU, NMI),
        full("debug-4k", 4, ANY_CPU, "percpu_local_map=0"),
        full("patched-voluntary-4k", 4, ANY_CPU, ""),
        full("patched-16k", 4, ANY_CPU, ""),
        full("patched-64k", 4, ANY_CPU, ""),
        *(full(name, 3, ANY_CPU, NMI) for name in recipes.matrix(workspace.find())),
    ],
)
def test_all_at_once(machine, built, subtests, build, smp, cpu, append):
    place = machine(
        build, smp=smp, cpu=cpu, memory="2G", append=append, modules_from=modules_for(build)
    )
    outcomes = torture(place, subtests)
    if NMI in append:
        check_nmis(place, built, build, outcomes)


@pytest.mark.full
@pytest.mark.parametrize("append", [NMI, f"percpu_local_map=0 {NMI}", f"id_aa64mmfr1.vh=0 {NMI}"])
def test_all_at_once_where_cpus_start_at_el2(machine, built, subtests, append):
    """With VHE the kernel stays there, and the offset of a CPU is in another register."""
    place = machine(smp=4, memory="2G", append=append, virtualization=True)
    detected = "detected: Virtualization Host Extensions" in place.console()
    assert detected == ("vh=0" not in append)
    check_nmis(place, built, "patched-4k", torture(place, subtests))


@pytest.mark.full
def test_all_at_once_with_nmis_and_every_check(machine, subtests):
    """The small debug build has counters, and so NMIs; it is slow, and does fewer rounds."""
    place = machine("checked-4k", smp=4, memory="2G", append=NMI)
    assert torture(place, subtests, FEW)["nmis_run"] == "pass"


@pytest.mark.full
@pytest.mark.parametrize("kind", ["kasan-sw-tags", "kasan-hw-tags"])
def test_all_at_once_with_kasan_tags(machine, built, subtests, kind):
    build = f"tiny-4k-52-{kind}"
    place = machine(build, smp=3, memory="2G", append=NMI, extra_args=MTE)
    check_nmis(place, built, build, torture(place, subtests))


@pytest.mark.full
@pytest.mark.parametrize(
    ("build", "smp", "cpu", "append"),
    [
        ("patched-4k", 4, ANY_CPU, NMI),
        ("patched-4k", 4, ANY_CPU, "percpu_local_map=0"),
        ("patched-4k", 4, OLD_CPU, ""),
        ("base-4k", 4, ANY_CPU, NMI),
        ("patched-voluntary-4k", 4, ANY_CPU, ""),
    ],
)
def test_interrupted_at_any_instruction(machine, built, subtests, build, smp, cpu, append):
    place = machine(
        build, smp=smp, cpu=cpu, memory="2G", append=append, modules_from=modules_for(build)
    )
    stop_at_any_instruction(place)
    outcomes = torture(place, subtests, "plugs=1 churns=0")
    if NMI in append:
        check_nmis(place, built, build, outcomes)


@pytest.mark.full
@pytest.mark.parametrize("build", ["patched-4k", "base-4k"])
def test_an_operation_in_more_than_one_piece_is_found(machine, subtests, build):
    place = machine(build, smp=4, memory="2G", modules_from=[f"features/percpu-local/{BROKEN}.c"])
    stop_at_any_instruction(place)
    load = f"insmod /{FOLDER}/{BROKEN}.ko plugs=1 churns=0"
    place.check(f"{load}; rmmod {BROKEN}", timeout=600)
    # On a kernel without preemption nothing goes to another CPU amid an operation.
    never = set() if "PREEMPT" in place.check("uname -v") else {"add_elsewhere"}
    for defect in [one for one in DEFECTS if one not in never]:
        with subtests.test(defect):
            place.check("dmesg -c >/dev/null")
            # Where a window is an instruction wide, one run may miss it.
            until_found = (
                f"for run in 1 2 3 4 5; do {load} {defect}=1 || exit 0; rmmod {BROKEN}; done"
            )
            place.check(f"({until_found}; exit 1)", timeout=1800)
            assert "not ok" in ktap.from_module(place.check("dmesg"), BROKEN)


@pytest.mark.full
@pytest.mark.parametrize("build", ["patched-4k", "debug-4k"])
def test_for_long(machine, subtests, build):
    place = machine(build, smp=4, memory="2G", append=NMI)
    stop_at_any_instruction(place)
    torture(place, subtests, "rounds=20000 plugs=20 churns=6 chunks=6")


# Unplugs CPUs until it is killed. The torture unplugs some itself meanwhile, so that not each
# write to these files succeeds; who has gone is noted.
PLUGGER = """
(while :; do for cpu in 1 2 3; do
    online=/sys/devices/system/cpu/cpu$cpu/online
    echo 0 >$online && grep -q 0 $online && echo $cpu >>/run/gone
    echo 1 >$online
done; done) >/dev/null 2>&1 & echo $! >/run/plugger
"""
END_OF_PLUGGER = """
plugger=$(cat /run/plugger)
kill $plugger
while kill -0 $plugger 2>/dev/null; do sleep 0.1; done
for cpu in 1 2 3; do echo 1 >/sys/devices/system/cpu/cpu$cpu/online || exit 1; done
"""


@pytest.mark.full
def test_cpus_are_unplugged_from_user_space_too(machine, subtests):
    place = machine("patched-4k", smp=4, memory="2G")
    place.check(PLUGGER)
    torture(place, subtests, "plugs=2")
    place.check(END_OF_PLUGGER)
    assert place.read("/sys/devices/system/cpu/online") == ["0-3"]
    # The torture alone would unplug two.
    assert set(place.read("/run/gone")[0].split()) == {"1", "2", "3"}
    assert place.warnings(klog.without_dying_cpus) == ""
