// SPDX-License-Identifier: GPL-2.0-only
/*
 * Count the instructions that all processors execute while a command runs,
 * those of the kernel and those of programs apart.
 *
 *	count COMMAND [ARGUMENT...]
 *
 * prints kernel=N and user=N and exits with the command's status. If the machine
 * counts other things too (see pagewright/machine/tlb/plugin.c), it prints those
 * by their names.
 *
 * QEMU counts (see pagewright/machine/count.c): an instruction that does nothing
 * makes it write the counts to memory that the guest sees as a PCI device.
 * An idle processor executes nothing, so waiting costs what the kernel does
 * to begin and to end it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "files.h"
#include "process.h"

#define DEVICES	"/sys/bus/pci/devices"
/* An ivshmem device. */
#define VENDOR	0x1af4
#define DEVICE	0x1110

struct named {
	char name[56];
	uint64_t value;
};

/* As large as the device. */
#define BYTES	(1 << 20)

struct counts {
	uint64_t kernel;
	uint64_t user;
	uint64_t marks;
	uint64_t nr_named;
	struct named named[];
};

/* The path of a file of a PCI device. */
static const char *path_of(const char *device, const char *name)
{
	static char path[512];

	snprintf(path, sizeof(path), DEVICES "/%s/%s", device, name);
	return path;
}

static long number_of(const char *device, const char *name)
{
	return number_read_to_base(path_of(device, name), 0, -1);
}

/* Map the memory that QEMU writes the counts to. */
static volatile const struct counts *map_counts(void)
{
	DIR *devices = opendir(DEVICES);
	struct dirent *entry;
	void *counts;
	int file;

	if (!devices)
		die_with(COMMAND_NOT_RUN, DEVICES);
	while ((entry = readdir(devices)))
		if (number_of(entry->d_name, "vendor") == VENDOR &&
		    number_of(entry->d_name, "device") == DEVICE)
			break;
	if (!entry) {
		fprintf(stderr, "count: this machine does not count instructions\n");
		exit(COMMAND_NOT_RUN);
	}
	errno = text_write(path_of(entry->d_name, "enable"), "1");
	if (errno)
		die_with(COMMAND_NOT_RUN, "enable");
	file = open(path_of(entry->d_name, "resource2"), O_RDWR | O_CLOEXEC);
	if (file < 0)
		die_with(COMMAND_NOT_RUN, "resource2");
	counts = mmap(NULL, BYTES, PROT_READ, MAP_SHARED, file, 0);
	if (counts == MAP_FAILED)
		die_with(COMMAND_NOT_RUN, "resource2");
	close(file);
	closedir(devices);
	return counts;
}

/* Memory for a copy, which is there before anything is counted. */
static struct counts *room_for_counts(void)
{
	struct counts *room = malloc(BYTES);

	if (!room)
		die_with(COMMAND_NOT_RUN, "memory");
	return memset(room, 0xff, BYTES);
}

/* Copy the counts up to here. */
static void now(volatile const struct counts *counts, struct counts *copy)
{
	uint64_t marks = counts->marks;

	asm volatile("hint #127" : : : "memory");
	if (counts->marks != marks + 1) {
		fprintf(stderr, "count: QEMU runs without the plugin that counts\n");
		exit(COMMAND_NOT_RUN);
	}
	memcpy(copy, (const void *)counts,
	       sizeof(*copy) + counts->nr_named * sizeof(*copy->named));
}

int main(int argc, char *argv[])
{
	struct counts *start = room_for_counts(), *end = room_for_counts();
	volatile const struct counts *counts;
	uint64_t i;
	int status;

	if (argc < 2) {
		fprintf(stderr, "usage: count COMMAND [ARGUMENT...]\n");
		return COMMAND_NOT_RUN;
	}
	counts = map_counts();
	now(counts, start);
	status = command_run(argv + 1);
	if (status < 0)
		die_with(COMMAND_NOT_RUN, "count");
	now(counts, end);
	printf("kernel=%lu\nuser=%lu\n", end->kernel - start->kernel, end->user - start->user);
	for (i = 0; i < end->nr_named; i++)
		printf("%s=%lu\n", end->named[i].name,
		       end->named[i].value - start->named[i].value);
	return status;
}
