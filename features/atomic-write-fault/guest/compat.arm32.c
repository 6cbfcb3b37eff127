// SPDX-License-Identifier: GPL-2.0-only
/*
 * A 32-bit task populates memory with LDREX/STREX loops.
 *
 * The fault handler looks only at the instructions of 64-bit tasks: a 32-bit one
 * must get the right memory, with the faults the base kernel takes, and must not
 * move the counters of forced write faults.  Argument: the size in MiB (16).
 * Output: one key=value per line; the status is 1 if the memory is wrong.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <sys/resource.h>

#include "vmstat.h"

static struct vmstat before, after;

static void add_one(unsigned int *p)
{
	unsigned int value, failed;

	asm volatile("1:	ldrex %0, [%2]\n\t"
		     "add %0, %0, #1\n\t"
		     "strex %1, %0, [%2]\n\t"
		     "cmp %1, #0\n\t"
		     "bne 1b"
		     : "=&r" (value), "=&r" (failed) : "r" (p) : "cc", "memory");
}

static void touch(char *area, size_t size, size_t page)
{
	size_t offset;

	for (offset = 0; offset < size; offset += page)
		add_one((unsigned int *)(area + offset));
}

static void print_counter(const char *name)
{
	long delta = vmstat_delta(&before, &after, name);

	if (delta == VMSTAT_ABSENT)
		printf("%s=absent\n", name);
	else
		printf("%s=%ld\n", name, delta);
}

int main(int argc, char **argv)
{
	size_t size = (argc > 1 ? strtoul(argv[1], NULL, 0) : 16) << 20;
	size_t page = sysconf(_SC_PAGESIZE);
	static unsigned int scratch;
	struct rusage usage;
	size_t offset;
	long faults;
	long sum = 0;
	char *area;

	area = mmap(NULL, size, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED) {
		perror("mmap");
		return EXIT_FAILURE;
	}
	madvise(area, size, MADV_NOHUGEPAGE);

	touch((char *)&scratch, 1, page);
	vmstat_read(&after);
	vmstat_read(&before);
	getrusage(RUSAGE_SELF, &usage);
	getrusage(RUSAGE_SELF, &usage);
	faults = -(usage.ru_minflt + usage.ru_majflt);
	touch(area, size, page);
	getrusage(RUSAGE_SELF, &usage);
	faults += usage.ru_minflt + usage.ru_majflt;
	vmstat_read(&after);

	for (offset = 0; offset < size; offset += page)
		sum += *(unsigned int *)(area + offset);

	printf("bits=%zu\n", 8 * sizeof(void *));
	printf("pages=%zu\n", size / page);
	printf("faults=%ld\n", faults);
	printf("sum=%ld\n", sum);
	print_counter("atomic_write_fault");
	print_counter("exclusive_write_fault");
	return sum == (long)(size / page) ? EXIT_SUCCESS : EXIT_FAILURE;
}
