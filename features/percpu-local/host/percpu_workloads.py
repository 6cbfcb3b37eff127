"""What guests do while something is counted: TCP over the loopback device, and compiling.

They are shell commands, each with what runs before it and is not counted. In them SIZE stands for
how much is done, and CPUS for how many CPUs there are.
"""

from __future__ import annotations

from pagewright.guest import programs

TESTS = programs.path("percpu-local")
COUNT = f"{TESTS}/count"


def loopback(what: str) -> str:
    """Return the command of a TCP connection, for `requests` or for a `stream`."""
    return f"{TESTS}/loopback {what} 1 SIZE"


COMPILE_FILES = (
    "stb_image stb_truetype stb_ds stb_sprintf stb_image_write stb_rect_pack stb_dxt stb_perlin"
)
# One of the smallest.
COMPILE_ONE = "gcc -O0 -c stb_dxt.c"
# Single-file C libraries, each compiled by a gcc of its own.
COMPILE_SETUP = f"""
mkdir -p /tmp/compile /sys/fs/cgroup/compile
cd /tmp/compile
for name in {COMPILE_FILES}; do
	upper=$(echo $name | tr a-z A-Z)
	printf '#define %s_IMPLEMENTATION\\n#include <stb/%s.h>\\n' $upper $name >$name.c
done
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
{COMPILE_ONE}
"""
IN_MEMCG = "echo $$ >/sys/fs/cgroup/compile/cgroup.procs"
COMPILE = f"""sh -c '
	{IN_MEMCG}
	for name in $(echo {COMPILE_FILES} | cut -d " " -f 1-SIZE); do
		echo $name.c
	done | busybox xargs -n 1 -P CPUS gcc -O0 -c'
"""
