// SPDX-License-Identifier: GPL-2.0-only
/*
 * Have the kernel use struct pages of hugepages of 2 MiB, so often that what it
 * costs can be counted.
 *
 *	vmemmap_use direct PAGES NUMBER
 *	vmemmap_use pipe PAGES NUMBER
 *	vmemmap_use fault PAGES NUMBER
 *	vmemmap_use fork PAGES NUMBER
 *
 * PAGES hugepages are mapped.  With direct, 4 KiB of a block device are read
 * past the page cache into a part of them, NUMBER times; with pipe, 4 KiB of
 * them go through a pipe, NUMBER times.  Which part is chosen at random, the
 * same each time the program is run.  With fault, all of them are faulted in
 * and given back, NUMBER times, and with fork, a child is made that has them
 * too, NUMBER times.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pool.h"
#include "process.h"

#define PIECE	4096
#define DEVICE	"/dev/ram0"
#define BLOCKS	1024		/* of the device */

static char *memory;
static int pages;

static void map_pages(void)
{
	memory = pool_map(POOL_2M, pages);
	if (!memory)
		die("mmap");
}

static void fault_in(void)
{
	int i;

	for (i = 0; i < pages; i++)
		*(volatile char *)(memory + i * POOL_2M) = 1;
}

/* A linear congruential generator, of which the upper bits are used. */
static unsigned long chosen(unsigned long limit)
{
	static uint64_t state = 1;

	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (state >> 33) % limit;
}

static char *part(void)
{
	return memory + chosen(pages * (POOL_2M / PIECE)) * PIECE;
}

static void use_direct(long number)
{
	int device = open(DEVICE, O_RDONLY | O_DIRECT | O_CLOEXEC);

	if (device < 0)
		die(DEVICE);
	while (number--)
		if (pread(device, part(), PIECE, chosen(BLOCKS) * PIECE) != PIECE)
			die("pread");
}

static void use_pipe(long number)
{
	int null = open("/dev/null", O_WRONLY | O_CLOEXEC), ends[2];
	struct iovec piece = { .iov_len = PIECE };

	if (null < 0 || pipe2(ends, O_CLOEXEC))
		die("pipe");
	while (number--) {
		piece.iov_base = part();
		if (vmsplice(ends[1], &piece, 1, 0) != PIECE ||
		    splice(ends[0], NULL, null, NULL, PIECE, 0) != PIECE)
			die("splice");
	}
}

static void use_fault(long number)
{
	while (number--) {
		map_pages();
		fault_in();
		if (munmap(memory, pages * POOL_2M))
			die("munmap");
	}
}

static void use_fork(long number)
{
	int status;
	pid_t pid;

	while (number--) {
		pid = fork();
		if (!pid)
			_exit(0);
		if (pid < 0 || waitpid(pid, &status, 0) != pid || status)
			die("fork");
	}
}

static const struct use {
	const char *name;
	void (*use)(long number);
	bool needs_pages;
} uses[] = {
	{ "direct", use_direct, true },
	{ "pipe", use_pipe, true },
	{ "fault", use_fault, false },
	{ "fork", use_fork, true },
};

int main(int argc, char *argv[])
{
	size_t i;

	pages = argc == 4 ? atoi(argv[2]) : 0;
	for (i = 0; pages > 0 && i < sizeof(uses) / sizeof(*uses); i++) {
		if (strcmp(argv[1], uses[i].name))
			continue;
		if (uses[i].needs_pages) {
			map_pages();
			fault_in();
		}
		uses[i].use(atol(argv[3]));
		return 0;
	}
	fprintf(stderr, "usage: vmemmap_use direct|pipe|fault|fork PAGES NUMBER\n");
	return 2;
}
