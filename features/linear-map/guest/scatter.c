// SPDX-License-Identifier: GPL-2.0-only
/*
 * scatter PAGES: as a user without privileges, take pages of secret memory that lie 2 MiB
 * apart, each in another block of the linear map, and print how many milliseconds it took.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "secret.h"

#define NOBODY	65534

/* Pages that are allocated one by one on a machine that has just started are neighbours. */
#define BETWEEN	((2UL << 20) - 4096)

static unsigned long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000UL + now.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
	size_t i, page, pages = argc == 2 ? strtoul(argv[1], NULL, 0) : 0;
	long size = sysconf(_SC_PAGESIZE);
	char *secret, *ordinary;
	unsigned long start;

	if (!pages) {
		fprintf(stderr, "usage: scatter PAGES\n");
		return EXIT_FAILURE;
	}
	if (setgid(NOBODY) || setuid(NOBODY)) {
		perror("scatter: setuid");
		return EXIT_FAILURE;
	}
	secret = secret_map(pages * size);
	ordinary = mmap(NULL, pages * BETWEEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			-1, 0);
	if (!secret || ordinary == MAP_FAILED ||
	    madvise(ordinary, pages * BETWEEN, MADV_NOHUGEPAGE)) {
		perror("scatter");
		return EXIT_FAILURE;
	}

	start = now_ms();
	for (page = 0; page < pages; page++) {
		secret[page * size] = 1;
		for (i = 0; i < BETWEEN; i += size)
			ordinary[page * BETWEEN + i] = 1;
	}
	printf("%lu\n", now_ms() - start);
	return EXIT_SUCCESS;
}
