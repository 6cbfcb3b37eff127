// SPDX-License-Identifier: GPL-2.0-only
/*
 * Count the instructions of a boot, or of a command.
 *
 * Under QEMU's -icount shift=0 one nanosecond of the virtual counter is one
 * executed instruction, of the kernel and of user space together; while the
 * processor is idle the counter skips to the next event.
 *
 * As process 1 (init=/usr/lib/tests/linear-map/instructions) this reads the
 * counter, which began at reset, puts it into the environment as
 * BOOT_INSTRUCTIONS and becomes /init.
 *
 * As "instructions COMMAND [ARGUMENT...]" it runs the command, prints
 * instructions=N and exits with the command's status.
 *
 * Both leave out the time the processor was idle.  With several processors the
 * counter counts the instructions of all of them; the command is kept on one,
 * and what is left out is the time that one was idle.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include "process.h"

#define INIT	"/init"

/* Stay on this processor, and so will the command. */
static void stay(void)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(sched_getcpu(), &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		die_with(COMMAND_NOT_RUN, "instructions");
}

/* The virtual counter, in nanoseconds. */
static uint64_t now(void)
{
	uint64_t count, frequency;

	asm volatile("isb; mrs %0, cntvct_el0" : "=r" (count) : : "memory");
	asm volatile("mrs %0, cntfrq_el0" : "=r" (frequency));
	return (__uint128_t)count * 1000000000 / frequency;
}

/* How long this processor has been idle since boot, in nanoseconds. */
static uint64_t idle(void)
{
	FILE *file = fopen("/proc/timer_list", "r");
	int cpu = -1, this_cpu = sched_getcpu();
	uint64_t total = 0, value;
	char line[256];
	int found = 0;

	while (file && fgets(line, sizeof(line), file)) {
		sscanf(line, "cpu: %d", &cpu);
		/* Waiting for a disk is idle time of its own. */
		if (cpu == this_cpu &&
		    (sscanf(line, " .idle_sleeptime : %lu", &value) == 1 ||
		     sscanf(line, " .iowait_sleeptime : %lu", &value) == 1)) {
			total += value;
			found++;
		}
	}
	if (found != 2) {
		fprintf(stderr, "/proc/timer_list tells no idle time of this processor\n");
		exit(COMMAND_NOT_RUN);
	}
	fclose(file);
	return total;
}

static int count(char *command[])
{
	uint64_t idle_before, start, end, idle_after;
	int status;

	fflush(NULL);
	stay();
	idle_before = idle();
	start = now();
	status = command_run(command);
	if (status < 0)
		die_with(COMMAND_NOT_RUN, "instructions");
	end = now();
	idle_after = idle();
	printf("instructions=%lu\n", end - start - (idle_after - idle_before));
	return status;
}

static int boot(void)
{
	uint64_t reached = now();
	char text[32];

	if (mount("proc", "/proc", "proc", 0, NULL))
		die_with(COMMAND_NOT_RUN, "/proc");
	snprintf(text, sizeof(text), "%lu", reached - idle());
	umount("/proc");
	setenv("BOOT_INSTRUCTIONS", text, 1);
	execl(INIT, INIT, (char *)NULL);
	die_with(127, INIT);
}

int main(int argc, char *argv[])
{
	if (getpid() == 1)
		return boot();
	if (argc < 2) {
		fprintf(stderr, "usage: instructions COMMAND [ARGUMENT...]\n");
		return COMMAND_NOT_RUN;
	}
	return count(argv + 1);
}
