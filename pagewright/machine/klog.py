"""What a kernel log says about the health of the machine that wrote it."""

from __future__ import annotations

import re

# The line that says why the kernel oopsed comes first, then registers and a
# trace; a panic that follows only repeats that there was one.
_OOPS = re.compile(r"(Unable to handle kernel .*|kernel BUG at .*|Internal error: .*)")
_PANIC = re.compile(r"Kernel panic - not syncing: (.*)")

# Lines that begin (or are) a report of something that should not have happened. What a
# warning is about stands between the mark and the word. Of an entry of a page table that makes no
# sense, and is cleared, the kernel says no more than the line.
_SPLAT = re.compile(
    r"-\[ cut here \]-|WARNING:|BUG:|kernel BUG at|KASAN|UBSAN|KCSAN|ODEBUG|Bad page state"
    r"|Call trace|Internal error|Unable to handle kernel"
    r"|INFO: (possible|suspicious|task .* blocked|inconsistent|trying to register)"
    r"|rcu: INFO:|soft lockup|hard LOCKUP|page allocation failure"
    r"|: bad p(te|md|ud|4d|gd) |EXT4-fs error"
)
_SPLAT_END = re.compile(r"---\[ end trace")
_SPLAT_LINES = 40

_NOT_VACATED = re.compile(
    r"[^\n]*-\[ cut here \]-+\n[^\n]*Dying CPU not properly vacated!\n.*?end trace [^\n]*\n",
    re.DOTALL,
)

# A thread gets its stack from kthreadd. The state of memory that follows is no report by itself.
_NO_STACK = re.compile(
    r"[^\n]* kthreadd: [^\n]*(vmalloc error|page allocation failure).*?Mem-Info:", re.DOTALL
)

# What fault injection says of a failure that it forces, up to the last function of its trace. A
# report that another CPU begins before the trace is not a part of it.
_INJECTED = re.compile(
    r"[^\n]*FAULT_INJECTION: forcing a failure\.\n"
    rf"(?:(?![^\n]*(?:{_SPLAT.pattern}))[^\n]*\n)+[^\n]*Call trace:\n"
    r"(?:(?:\[[^\]\n]*\])* +[\w.$]+\+0x[^\n]*\n)*"
)

# A data race, between two lines of KCSAN's report, with the functions that accessed the same.
_RACE = re.compile(r"[^\n]*BUG: KCSAN: [\w-]+ in (\w+)\S*(?: / (\w+)\S*)?\n.*?={66}\n", re.DOTALL)

# What dmesg and /dev/kmsg have before the text of a record; the latter has its number, too.
_SHOWN = re.compile(r"\[ *(\d+)\.(\d{6})\]")
_RECORD = re.compile(r"\d+,(?P<number>\d+),(?P<microseconds>\d+),")
_BOOT = "Booting Linux on physical CPU"

# Bits of /proc/sys/kernel/tainted that mean a report was made; the others say
# that a test, a module or an administrator did something.
WARNING = "warning"
TAINTS = {
    4: "machine check",
    5: "bad page",
    7: "oops",
    9: WARNING,
    14: "soft lockup",
}


def cause_of_death(log: str) -> str:
    """Return why the kernel stopped, one line, or an empty text if it did not say."""
    panic = _PANIC.search(log)
    if panic and (oops := _OOPS.search(log)):
        return f"oops: {oops[1].strip()}"
    return f"panic: {panic[1].strip()}" if panic else ""


def splats(log: str) -> str:
    """Return the reports of a kernel log (warnings, lockdep, KASAN, ...), or an empty text.

    Each report is given from its first line to its end mark, at most 40 lines.
    """
    found: list[str] = []
    left = 0
    for line in log.splitlines():
        if left == 0 and _SPLAT.search(line):
            left = _SPLAT_LINES
        if left:
            found.append(line)
            left = 0 if _SPLAT_END.search(line) else left - 1
    return "\n".join(found)


def without_dying_cpus(log: str) -> str:
    """Leave out what the base kernel says now and then when a CPU goes offline.

    It counts the server of the fair class as a task that should have left the CPU.
    """
    return _NOT_VACATED.sub("", log)


def without_failed_threads(log: str) -> str:
    """Leave out that there was no memory for a kernel thread, where a test lets pages fail."""
    return _NO_STACK.sub("", log)


def without_injected_faults(log: str) -> str:
    """Leave out the traces of failures that fault injection has forced."""
    return _INJECTED.sub("", log)


def races(log: str) -> dict[frozenset[str], str]:
    """Return the reports of KCSAN, by the functions in which something was accessed."""
    return {frozenset(filter(None, m.groups())): m[0] for m in _RACE.finditer(log)}


def without_races(log: str) -> str:
    """Leave out the reports of KCSAN, which are about the base kernel, too."""
    return _RACE.sub("", log)


def lacks_records(log: str, first: str) -> bool:
    """Tell whether records were overwritten that dmesg would have shown.

    Clearing the log hides records but removes none: the first one that the kernel has is number 0
    until others take its place. What was overwritten had been cleared before if dmesg shows less
    than the kernel has.

    Args:
        log: what dmesg printed.
        first: the first record in /dev/kmsg a little later; empty if it was overwritten while it
            was read.
    """
    record, shown = _RECORD.match(first), _SHOWN.match(log)
    if not record or not shown:
        return not record
    since = int(shown[1] + shown[2])
    return int(record["number"]) > 0 and since <= int(record["microseconds"])


def since_boot(console: str) -> str:
    """Return what the last kernel that has booted has printed on a console."""
    return console[max(console.rfind(_BOOT), 0) :]


def taint_names(tainted: int) -> list[str]:
    """Name the bits of the kernel's taint mask that stand for a report."""
    return [name for bit, name in TAINTS.items() if tainted >> bit & 1]
