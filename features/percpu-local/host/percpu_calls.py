"""How often a workload calls what updates the statistics of memory cgroups.

6.12 does that with __this_cpu_add(), which this feature leaves alone. Kprobes count the calls.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagewright.results.experiment import Quantity, Values, Work

# How many __this_cpu_add() each call makes.
ADDITIONS = {
    "__mod_memcg_state": 1,
    "__mod_memcg_lruvec_state": 2,
    "__count_memcg_events": 1,
}
FAULTS = "handle_mm_fault"
# What the names of these works begin with.
CALLS_IN = "calls, "
# What the feature takes off a this_cpu_add(): the part `operations` has both numbers.
SAVED = 25 - 5

# A line of the profile has a function, its hits, and those that were missed.
COUNTED = f"""
set -e
mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing
for function in {" ".join([*ADDITIONS, FAULTS])}; do
	echo "p:calls/$function $function" >>/sys/kernel/tracing/kprobe_events
done
SETUP
echo 1 >/sys/kernel/tracing/events/calls/enable
COMMAND
echo 0 >/sys/kernel/tracing/events/calls/enable
busybox awk '{{ print $1 "=" $2; missed += $3 }} END {{ exit missed > 0 }}' \\
	/sys/kernel/tracing/kprobe_profile
echo >/sys/kernel/tracing/kprobe_events
"""


def counting(workload: str, setup: str, command: str) -> Work:
    """Return the work that runs a workload and counts calls meanwhile."""
    script = COUNTED.replace("SETUP", setup).replace("COMMAND", command)
    return Work(f"{CALLS_IN}{workload}", script, timeout=3600)


def counted(workload: str, values: Values) -> Iterator[Quantity]:
    """Make what is called in a workload, and what its additions would be worth to the feature."""
    group = f"calls, {workload}"
    for function in (FAULTS, *ADDITIONS):
        yield Quantity(group, f"{function}()", "thousand", int(values[function]) / 1e3)
    additions = sum(number * int(values[function]) for function, number in ADDITIONS.items())
    yield Quantity(group, "__this_cpu_add() in these", "thousand", additions / 1e3)
    yield Quantity(
        group,
        f"the same, {SAVED} instructions each",
        "million instructions",
        additions * SAVED / 1e6,
    )
