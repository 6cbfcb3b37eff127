"""What the linear map costs: in memory, in instructions, and as modules come and go.

The parts:

- Memory and boot of a guest as large as a server, 256 GiB. MemTotal leaves out what the
  kernel took for its page tables before it counted, so a difference of MemTotal is the
  linear map's tables. Instructions run from reset until the first program starts.
- Programs: fio writes 4 KiB blocks at random through dm-crypt to a ramdisk, dd reads a
  cached file, memcslap sets and gets on memcached, and modprobe loads and unloads three
  modules. Counted are instructions of kernel and programs together, without the time the
  processor is idle. Under -icount an instruction costs the same whatever the TLB has to
  do for it: these figures show what the feature adds to the paths it touches, not what
  large leaves save. That takes hardware.
- The leaves of the linear map while modules are loaded and unloaded, with folding and
  without.
- Each way to split and fold, on one processor that can do all of them: modprobe's
  instructions on four CPUs, those of CPUs that wait for a pause to end among them; how often
  it paused them; and what the access flag spared.
- Memory and boot again with two processors, of which the second has all of it mapped by pages after
  all, while the machine stands still.
- Memory and boot again, on processors whose linear map is split in pauses; and the pauses
  while a module is loaded and unloaded, with many CPUs. A pause is as long as if an
  instruction took a nanosecond, added up over all CPUs: they take turns in the emulator.

All sides of a part are the same processor, and all have KFENCE's pool since boot (see
host/leaves.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from leaves import EARLY_KFENCE
from workloads import CHURN, COUNTER, CRYPT, MEMCACHED, MODULE, MODULES, READ

from pagewright.guest.shell import SHORT_PAGE_LISTS, UNLOAD, direct_map
from pagewright.results.experiment import (
    BASE,
    PATCHED,
    Experiment,
    Means,
    Part,
    Published,
    Quantity,
    Side,
    Values,
    Work,
)

# A kernel that is not patched has large leaves only with fewer protections: what a module
# has read-only, another mapping of the same page can write.
BASE_ON = Side("rodata=on", "base-4k", "rodata=on")
SWITCHED_OFF = Side("pages", "patched-4k", "arm64.linear_map=pages")
# arm64.linear_map_fold=0 keeps what was split.
NO_FOLDING = Side("no folding", "patched-4k", "arm64.linear_map_fold=0")
FOLDING = Side("folding", "patched-4k")
# The ways to change sizes. The default processor has what each of them needs.
LIVE = Side("live", "patched-4k", "arm64.linear_map=live")
ACCESS_FLAG = Side("access flag", "patched-4k", "arm64.linear_map=af")
PAUSE = Side("pauses", "patched-4k", "arm64.linear_map=pause")
# One of two CPUs cannot split blocks live, which is found out when all memory is mapped by blocks.
REPAINTED = Side("repainted", "patched-4k", "arm64.linear_map=live arm64.nobbml2_cpus=1")
# None of these can have sizes changed live.
PAUSED_CPUS = ("cortex-a72", "cortex-a76", "neoverse-n1", "neoverse-v1")
PAUSED_SMP = (4, 64, 160)
PROGRAM_SIDES = (BASE, BASE_ON, SWITCHED_OFF, PATCHED)
OTHER_SIDES = (NO_FOLDING, FOLDING, LIVE, ACCESS_FLAG, PAUSE, REPAINTED)
COLUMNS = [side.label for side in (BASE, BASE_ON, SWITCHED_OFF, *OTHER_SIDES, PATCHED)]

COUNTING: Mapping[str, Any] = {
    "icount": True,
    "smp": 1,
    "append": f"{EARLY_KFENCE} brd.rd_size=16384 init={COUNTER}",
}

# Free memory includes what processors keep for themselves only if they keep little.
MEMORY = f"""
echo size=SIZE
{SHORT_PAGE_LISTS}
sed -n 's/^\\(MemTotal\\|MemFree\\): *\\([0-9]*\\) kB/\\1=\\2/p' /proc/meminfo
echo "instructions=$BOOT_INSTRUCTIONS"
"""

# Programs by the name of their figure: the command, its size when quick, and in full.
PROGRAMS: dict[str, tuple[str, int, int]] = {
    "fio on dm-crypt": (CRYPT, 1, 16),
    "cached file": (READ, 16, 128),
    "memcached": (MEMCACHED, 200, 5000),
    "modprobe": (MODULE, 2, 20),
}

CYCLES = f"""
set -e
leaves() {{
	{direct_map("$1 ")}
}}
echo cycles=SIZE
sleep 3
leaves boot
modprobe -a {MODULES}
leaves loaded
{UNLOAD} {MODULES}
{CHURN}leaves settled
sed -n 's/^linear_map_\\([a-z]*\\)_\\([a-z_]*\\) \\([0-9]*\\)/\\1 \\2=\\3/p' /proc/vmstat
"""

WAY_FILES = ("pauses", "total_pause_ns", "access_flag_splits", "access_flag_failures")
# Where there can be no pause none of these files is there.
WAYS = f"""
tell() {{
	for file in {" ".join(WAY_FILES)}; do
		echo $1 $file=$(cat /sys/kernel/mm/linear_map/$file 2>/dev/null || echo 0)
	done
}}
echo turns=SIZE
sleep 3
tell before
{MODULE}
tell after
"""

# Folding is soon, and what is not worth a pause at once is folded after ten times the delay.
FOLD_SOON = "arm64.linear_map_fold_delay_ms=100"
PAUSES = f"""
set -e
cd /sys/kernel/mm/linear_map
sleep 3
echo boot=$(cat pauses)
most=0 start=$(cat pauses)
for turn in $(seq SIZE); do
	before=$(cat pauses)
	modprobe crypto_null && {UNLOAD} crypto_null || exit
	sleep 3
	after=$(cat pauses)
	test $((after - before)) -le $most || most=$((after - before))
done
echo most=$most
echo mean=$(((100 * $(cat pauses) - 100 * start) / SIZE))
echo longest=$(cat longest_pause_ns)
"""

MOMENTS = {
    "boot": "after boot",
    "loaded": "with the modules loaded",
    "settled": "after the cycles",
}


def command(text: str, size: int) -> str:
    """Fill in a command's size."""
    return text.replace("SIZE", str(size))


def parts(quick: bool) -> list[Part]:
    """Return what runs where."""
    size = 8 if quick else 256
    large = {**COUNTING, "memory": f"{size}G"}
    memory = [Work("memory", command(MEMORY, size))]
    programs = [
        Work(name, command(text, small if quick else full), 900, rounds=1 if quick else 3)
        for name, (text, small, full) in PROGRAMS.items()
    ]
    cycles = Work("cycles", command(CYCLES, 20 if quick else 200), timeout=900)
    # Where instructions are counted time passes at once while the guest sleeps. The quick cycles
    # would be over before anything is folded then.
    slept = {"icount": not quick, "smp": 1, "append": EARLY_KFENCE}
    more = [] if quick else [ways(), repaint(large), *memory_where_paused(large), *pauses()]
    return [
        Part("boot", large, memory, also=(BASE_ON, SWITCHED_OFF)),
        # Against the base other features count, too; what this one takes shows against `pages`.
        Part("programs", {**COUNTING, "memory": "2G"}, programs, PROGRAM_SIDES),
        Part("leaves", {**slept, "memory": "2G"}, [cycles], (NO_FOLDING, FOLDING)),
        *more,
    ]


def ways() -> Part:
    """Return the part that compares them."""
    options = {**COUNTING, "smp": 4, "memory": "4G"}
    work = Work(WAY, command(WAYS, 20), timeout=900)
    return Part("ways", options, [work], (SWITCHED_OFF, LIVE, ACCESS_FLAG, PAUSE))


def repaint(large: Mapping[str, Any]) -> Part:
    """Return the part in which one of two processors is found to lack what the first one has."""
    work = Work(f"{ON_CPU}two CPUs", command(MEMORY, 256))
    return Part("repaint", {**large, "smp": 2}, [work], (SWITCHED_OFF, LIVE, REPAINTED))


def memory_where_paused(large: Mapping[str, Any]) -> Iterator[Part]:
    """Return a part for each processor that cannot change sizes live, on a large guest."""
    for cpu in PAUSED_CPUS:
        work = Work(f"{ON_CPU}{cpu}", command(MEMORY, 256))
        yield Part(f"boot-{cpu}", {**large, "cpu": cpu}, [work], (BASE, BASE_ON, PATCHED))


def pauses() -> Iterator[Part]:
    """Return a part for each number of CPUs."""
    for smp in PAUSED_SMP:
        options = {
            "icount": True,
            "smp": smp,
            "cpu": "neoverse-n1",
            "memory": "4G",
            "append": f"{EARLY_KFENCE} {FOLD_SOON}",
        }
        work = Work(f"{PAUSES_WITH}{smp} CPUs", command(PAUSES, 20), timeout=3600)
        yield Part(f"pauses-{smp}", options, [work], (PATCHED,))


# Works, with what is different from one to the other.
ON_CPU = "memory on "
WAY = "way"
PAUSES_WITH = "pauses with "

LARGE_GUEST = "boot of a guest with "
UNTIL_INIT = "until init runs"


def quantities(side: str, work: str, values: Values) -> Iterator[Quantity]:
    """Make the numbers of a work."""
    if work == "memory" or work.startswith(ON_CPU):
        group = f"{LARGE_GUEST}{values['size']} GiB{work.removeprefix('memory')}"
        for key in ("MemTotal", "MemFree"):
            yield Quantity(group, key, "kB", int(values[key]))
        yield Quantity(group, UNTIL_INIT, "instructions", int(values["instructions"]))
    elif work == "cycles":
        yield from leaves(values)
    elif work == WAY:
        turns = int(values["turns"])
        group = f"three modules loaded and unloaded {turns} times, four CPUs"
        pauses, nanoseconds, splits, failures = (
            int(values[f"after {file}"]) - int(values[f"before {file}"]) for file in WAY_FILES
        )
        yield Quantity(group, "modprobe", "instructions", int(values["instructions"]))
        yield Quantity(group, "pauses", "pauses", pauses)
        yield Quantity(group, "all pauses", "us", nanoseconds / 1000)
        yield Quantity(group, "blocks split by access flag", "blocks", splits)
        yield Quantity(group, "blocks not split by it", "blocks", failures)
    elif work.startswith(PAUSES_WITH):
        group = f"a module loaded and unloaded, {work}"
        yield Quantity(group, "most pauses for it", "pauses", int(values["most"]))
        yield Quantity(group, "pauses for it in the mean", "pauses", int(values["mean"]) / 100)
        yield Quantity(group, "pauses until then", "pauses", int(values["boot"]))
        yield Quantity(group, "longest pause since boot", "us", int(values["longest"]) / 1000)
    else:
        group = OF_PROGRAMS
        yield Quantity(group, work, "instructions", int(values["instructions"]))


def leaves(values: Values) -> Iterator[Quantity]:
    """Tell what the leaves map at each moment, and how often they changed."""
    group = f"linear map by leaf size, {values['cycles']} times three modules loaded and unloaded"
    sizes = [key.removeprefix("boot ") for key in values if key.startswith("boot ")]
    for size in sizes:
        for moment, when in MOMENTS.items():
            yield Quantity(group, f"{size} {when}", "kB", int(values[f"{moment} {size}"]))
    for key, count in values.items():
        verb, _, level = key.partition(" ")
        if verb in ("split", "fold"):
            yield Quantity("leaves split and folded", f"{verb} {level}", "leaves", int(count))


def summary(means: Means) -> str:
    """Say what large leaves give back at boot."""
    group = next(group for group, name in means if name == UNTIL_INIT)
    total, boot = means[group, "MemTotal"], means[group, UNTIL_INIT]
    less = (1 - boot["on"] / boot["off"]) * 100
    return (
        f"{(total['on'] - total['off']) / 1024:.0f} MiB of {group.removeprefix(LARGE_GUEST)} "
        f"back, {less:.0f} % fewer instructions until init"
    )


AMPERE = "AmpereOne, 192 cores, 256 GB, pages of 4 KiB"
OF_PROGRAMS = "instructions of programs; TLB misses do not show"
MISSES = "Misses of the TLB are what is saved there. Here they cost nothing: the figure only shows \
that the paths did not get longer."
# Programs are compared with the same kernel: against the base other features count, too.
PUBLISHED = (
    Published(
        "free memory after boot",
        "about 500 MB more",
        AMPERE,
        f"{LARGE_GUEST}256 GiB",
        "MemFree",
    ),
    Published(
        "memcached",
        "+3.5 % operations, -9.6 % time of the slowest in a hundred",
        AMPERE,
        OF_PROGRAMS,
        "memcached",
        reference=SWITCHED_OFF.label,
        remark=MISSES,
    ),
    Published(
        "TLB misses of the kernel per 1000 instructions",
        "-28.5 %",
        AMPERE,
        remark="Not counted here: the emulator's TLB is not a processor's. `pagewright bench "
        "tlb-reach` simulates TLBs.",
    ),
    Published(
        "fio writes to dm-crypt",
        "+90 to +150 % operations in a second",
        AMPERE,
        OF_PROGRAMS,
        "fio on dm-crypt",
        reference=SWITCHED_OFF.label,
        remark=MISSES,
    ),
    Published(
        "sequential reads of a cached file",
        "+150 %",
        AMPERE,
        OF_PROGRAMS,
        "cached file",
        reference=SWITCHED_OFF.label,
        remark=MISSES,
    ),
)

EXPERIMENT = Experiment(
    name="linear-map",
    feature="linear-map",
    title="What the linear map costs, in memory, in instructions, and as modules come and go",
    parts=parts,
    quantities=quantities,
    summary=summary,
    columns=COLUMNS,
    published=PUBLISHED,
    limits=(
        "What large leaves save: fewer misses of the TLB, and shorter walks of the tables. Under "
        "emulation a miss costs no instruction.",
        "Whether a processor answers a change of size with a TLB conflict abort. The list of those "
        "that do not is their makers' word.",
    ),
)
