"""Workloads that are counted with few operations and with many, to tell what one operation costs.

What a program costs to begin and to end is in neither difference then. In the commands FEW and MANY
stand for how much is done, and PAGES for how many hugepages are used.
"""

from __future__ import annotations

from dataclasses import dataclass

from hugepage_uses import use
from percpu_workloads import COMPILE_ONE, COMPILE_SETUP, COUNT, IN_MEMCG, loopback
from workloads import CRYPT_DISK, MEMCACHED_BEGINS, MEMCACHED_ENDS

from pagewright.results.experiment import Work

# Prints what few operations cost, and what many do.
COUNTED = f"""
echo few=FEW
echo many=MANY
counted() {{
	label=$1
	shift
	{COUNT} "$@" >/tmp/counts || {{ cat /tmp/counts; exit 1; }}
	grep = /tmp/counts | sed "s/^/$label /"
}}
"""
# The first time is not counted: it brings programs and data into memory.
EACH = """each warm FEW
each few FEW
each many MANY
"""

READ = f"""
set -e
{COUNTED}
dd if=/dev/zero of=/var/tmp/file bs=1M count=MANY 2>/dev/null
# Or it is written to the disk in the middle of what is counted.
sync /var/tmp/file
cat /var/tmp/file >/dev/null
each() {{ counted $1 dd if=/var/tmp/file of=/dev/null bs=64k count=$(($2 * 16)) 2>/dev/null; }}
{EACH}rm /var/tmp/file
"""

CRYPT = f"""{COUNTED}{CRYPT_DISK}
each() {{ counted $1 sh -c "$(write 16M) --io_size=$2k >/dev/null"; }}
{EACH}dmsetup remove crypt
"""

MEMCACHED = f"""{COUNTED}{MEMCACHED_BEGINS}
each() {{ counted $1 sh -c "$(load set $2) >/dev/null && $(load get $2) >/dev/null"; }}
{EACH}{MEMCACHED_ENDS}"""

REQUESTS = f"""
set -e
{COUNTED}
each() {{ counted $1 {loopback("requests").replace("SIZE", "$2")}; }}
{EACH}"""

COMPILE = f"""
set -e
{COUNTED}{COMPILE_SETUP}
each() {{
	counted $1 sh -c '{IN_MEMCG}; for turn in $(seq '$2'); do {COMPILE_ONE} || exit; done'
}}
{EACH}"""


def of_hugepages(how: str) -> str:
    """Return the command of a workload that uses hugepages."""
    return f"set -e\n{COUNTED}\neach() {{ counted $1 {use(how)}; }}\n{EACH}"


@dataclass(frozen=True)
class Workload:
    """What is counted with few operations and with many.

    Attributes:
        command: has FEW and MANY, and PAGES if it uses hugepages.
        few: how many are few.
        quick: how many are many when quick; 0 if it is left out then.
        full: and in full.
        unit: what one of these is.
        operations: how many operations that is; one for each hugepage if it is 0.
    """

    command: str
    few: int
    quick: int
    full: int
    unit: str
    operations: float = 1

    def work(self, name: str, quick: bool) -> Work:
        """Return the work that is named so."""
        many = str(self.quick if quick else self.full)
        text = self.command.replace("FEW", str(self.few)).replace("MANY", many)
        pages = pages_used(quick)
        return Work(name, f"echo pages={pages}\n{text}".replace("PAGES", str(pages)), 1800)


def pages_used(quick: bool) -> int:
    """Return how many hugepages are used."""
    return 64 if quick else 512
