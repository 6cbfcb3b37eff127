"""What per-CPU page tables take: memory, virtual space, and the kernel's text.

Memory is that of machines with 4, 64 and 160 CPUs, after boot, with 10000 memory cgroups
more, and without those again, with the feature switched off and on. Most of what a memory
cgroup takes is per-CPU memory, whose tables every CPU has.

With pages of 64 KiB no table is smaller than that, so what they take is measured apart: after boot,
with 42, 48 and 52 bits of addresses.

Text is that of the patched kernel and of the same with the feature's symbol off, both without
KUnit suites, as servers have none: those of this feature have each operation hundreds of times.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagewright.guest import programs
from pagewright.guest.shell import SHORT_PAGE_LISTS, direct_map
from pagewright.results.experiment import (
    PATCHED,
    Experiment,
    Part,
    Published,
    Quantity,
    Side,
    Values,
    Work,
)

OFF = Side("off", "patched-4k", "percpu_local_map=0")
MEMCGS = programs.path("percpu-local", "memcgs")

# Memory of the machine by its number of CPUs: a memory cgroup takes some KiB for each.
MACHINES = {4: "4G", 64: "16G", 160: "32G"}
BUILDS = ("4k", "voluntary-4k", "16k", "64k")

# With 64 KiB pages, by the bits of addresses. A kernel for 52 bits has top levels of that size on a
# CPU with 48, too, so each has a build.
BITS = (42, 48, 52)

# What the feature itself says of its tables, in KiB for one CPU; nothing if there is no local map.
TABLES = """tables() {
	dmesg | sed -n 's/.*local map of .*, \\([0-9]*\\) KiB.cpu of tables.*/\\1/p'
}"""

# A moment is after all that was freed is free; MemTotal leaves out what the kernel took before it
# counted. Mapped is what one CPU's table maps, but for the linear map and the struct pages.
# DirectMap is the linear map by leaf size.
MEMORY = f"""
set -e
debug=/sys/kernel/debug
{TABLES}
mapped() {{
	file=$debug/kernel_page_tables_cpu/0
	[ -e $file ] || file=$debug/kernel_page_tables
	busybox awk '/(Linear Mapping|vmemmap) start/ {{ skip = 1 }}
		/(Linear Mapping|vmemmap) end/ {{ skip = 0 }}
		skip || !/^0x/ || NF < 4 {{ next }}
		{{ size = $2 + 0 }}
		$2 ~ /[MG]$/ {{ size *= 1024 }}
		$2 ~ /G$/ {{ size *= 1024 }}
		{{ total += size }}
		END {{ printf "%.0f", total }}' $file
}}
moment() {{
	sync
	echo 3 >/proc/sys/vm/drop_caches
	sleep 2
	echo 1 >/proc/sys/vm/compact_memory
	for key in MemTotal MemFree PageTables SecPageTables Percpu VmallocUsed Slab; do
		sed -n "s/^$key: *\\([0-9]*\\) kB/$1 $key=\\1/p" /proc/meminfo
	done
	{direct_map("$1 ")}
	echo "$1 Mapped=$(mapped)"
}}
{SHORT_PAGE_LISTS}
{MEMCGS} create 1
{MEMCGS} remove 1
moment boot
kib=$(tables)
echo "boot tables=$((${{kib:-0}} * $(nproc)))"
{MEMCGS} create SIZE
moment memcgs
{MEMCGS} remove SIZE
moment removed
"""
MOMENTS = {"boot": "after boot", "memcgs": "with the memcgs", "removed": "without them again"}

# Each CPU that may ever come has its tables, so one that is up is enough.
MEMORY_64K = f"""
set -e
{TABLES}
kib=$(tables)
echo "tables=$((${{kib:-0}} * CPUS))"
sed -n 's/^MemTotal: *\\([0-9]*\\) kB/MemTotal=\\1/p' /proc/meminfo
"""

# kallsyms has 64-bit addresses, which a shell's arithmetic has no room for; _etext is aligned.
TEXT = """
address() { sed -n "s/^....\\(.*\\) . $1\\$/0x\\1/p" /proc/kallsyms | head -n 1; }
size() { echo "$1=$(($(address $3) - $(address $2)))"; }
size text _stext __kprobes_text_end
size altinstructions __alt_instructions __alt_instructions_end
size image _text _end
"""
TEXTS = {
    "text": "text",
    "altinstructions": "list of alternatives",
    "image": "image in memory",
}


def memory(quick: bool) -> Iterator[Part]:
    """Return a boot for each number of CPUs."""
    for cpus in (4,) if quick else MACHINES:
        command = MEMORY.replace("SIZE", str(100 if quick else 10000))
        work = Work(f"memory, {cpus} CPUs", command, timeout=3600)
        # One CPU after the other: more in parallel than the host has starve each other.
        options = {"icount": True, "memory": MACHINES[cpus], "smp": cpus}
        yield Part(f"memory-{cpus}", options, [work], (OFF, PATCHED))


def memory_64k(bits: int) -> Iterator[Part]:
    """Return a boot for each number of CPUs, with some bits of addresses."""
    build = f"tiny-64k-{bits}"
    sides = (
        Side(f"{build}, off", build, OFF.append),
        Side(f"{build}, patched", build),
    )
    for cpus in MACHINES:
        work = Work(f"64k, {bits}, {cpus} CPUs", MEMORY_64K.replace("CPUS", str(cpus)))
        options = {
            "icount": True,
            "memory": MACHINES[160],
            "smp": cpus,
            "append": "maxcpus=1",
        }
        yield Part(f"memory-64k-{bits}-{cpus}", options, [work], sides)


def text(build: str) -> Part:
    """Return the part that compares a patched build with the same without the feature."""
    patched = f"patched-{build}-without-tests"
    without = Side(f"{build}, without", f"{patched}-without-percpu-local")
    sides = (without, Side(f"{build}, patched", patched))
    return Part(f"text-{build}", {}, [Work(f"text, {build}", TEXT)], sides)


def parts(quick: bool) -> list[Part]:
    """Return what runs where; text and 64 KiB pages need builds of their own."""
    found = [*memory(quick)]
    if not quick:
        found += [part for bits in BITS for part in memory_64k(bits)]
        found += map(text, BUILDS)
    return found


def quantities(side: str, work: str, values: Values) -> Iterator[Quantity]:
    """Make numbers for a table for each number of CPUs, and for each build."""
    kind, _, which = work.partition(", ")
    for key, size in values.items():
        if kind == "memory":
            moment, _, name = key.partition(" ")
            group = f"memory of a machine with {which}"
            yield Quantity(group, f"{name} {MOMENTS[moment]}", "kB", int(size))
        elif kind == "64k":
            bits, _, cpus = which.partition(", ")
            yield Quantity(f"64 KiB pages, {bits} bits", f"{key}, {cpus}", "kB", int(size))
        elif key in TEXTS:
            yield Quantity(f"size of the kernel, {which}", TEXTS[key], "bytes", int(size))


WHERE = "AmpereOne, 160 cores, Linux 7.1-rc1"
AT_160 = "memory of a machine with 160 CPUs"
PUBLISHED = (
    Published(
        "virtual space with 10000 memcgs",
        "2112 KiB more",
        WHERE,
        AT_160,
        "VmallocUsed with the memcgs",
        reference="off",
    ),
    Published(
        "tables of the CPUs",
        "a few MiB",
        WHERE,
        AT_160,
        "tables after boot",
        reference="off",
    ),
)

EXPERIMENT = Experiment(
    name="percpu-memory",
    feature="percpu-local",
    title="What per-CPU page tables take: memory, virtual space, and text",
    parts=parts,
    quantities=quantities,
    published=PUBLISHED,
    limits=(
        "These are bytes, and the same on hardware that has as much memory and as many CPUs. What "
        "the memory is worth to a program is another question.",
    ),
)
