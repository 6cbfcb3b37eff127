// SPDX-License-Identifier: GPL-2.0-only
/*
 * Create or remove many memory cgroups, all children of one.
 *
 *	memcgs create NUMBER
 *	memcgs remove NUMBER
 *
 * A removed cgroup is taken apart behind the scenes; remove ends when none is
 * left.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "process.h"

#define ROOT	"/sys/fs/cgroup"
#define PARENT	ROOT "/memcgs"

/* How often remove looks whether it is done, and how long it waits in between. */
#define STEPS		600
#define MICROSECONDS	100000

static void enable_memory(const char *file)
{
	errno = text_write(file, "+memory");
	if (errno)
		die(file);
}

/* Return how many children are still being taken apart. */
static long dying(void)
{
	long number = named_number_read(PARENT "/cgroup.stat", "nr_dying_descendants", -1);

	if (number < 0)
		die(PARENT "/cgroup.stat");
	return number;
}

static void create(long number)
{
	char path[64];
	long i;

	enable_memory(ROOT "/cgroup.subtree_control");
	if (mkdir(PARENT, 0755))
		die(PARENT);
	enable_memory(PARENT "/cgroup.subtree_control");
	for (i = 0; i < number; i++) {
		snprintf(path, sizeof(path), PARENT "/%ld", i);
		if (mkdir(path, 0755))
			die(path);
	}
}

static void remove_all(long number)
{
	char path[64];
	long i;

	for (i = 0; i < number; i++) {
		snprintf(path, sizeof(path), PARENT "/%ld", i);
		if (rmdir(path))
			die(path);
	}
	for (i = 0; i < STEPS && dying(); i++)
		usleep(MICROSECONDS);
	if (dying()) {
		fprintf(stderr, "memcgs: %ld are still there\n", dying());
		exit(1);
	}
	if (rmdir(PARENT))
		die(PARENT);
}

int main(int argc, char *argv[])
{
	long number = argc == 3 ? atol(argv[2]) : 0;

	if (number > 0 && !strcmp(argv[1], "create")) {
		create(number);
	} else if (number > 0 && !strcmp(argv[1], "remove")) {
		remove_all(number);
	} else {
		fprintf(stderr, "usage: memcgs create|remove NUMBER\n");
		return 2;
	}
	return 0;
}
