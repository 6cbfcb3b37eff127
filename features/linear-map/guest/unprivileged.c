// SPDX-License-Identifier: GPL-2.0-only
/*
 * unprivileged BLOCKS: as a user without privileges, but for locked memory, touch secret
 * memory of so many blocks of 2 MiB, and print how many milliseconds it took.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "secret.h"

#define NOBODY	65534
#define BLOCK	(2UL << 20)

static unsigned long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000UL + now.tv_nsec / 1000000;
}

int main(int argc, char **argv)
{
	const struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	size_t i, size = argc == 2 ? strtoul(argv[1], NULL, 0) * BLOCK : 0;
	unsigned long start;
	char *secret;

	if (!size) {
		fprintf(stderr, "usage: unprivileged BLOCKS\n");
		return EXIT_FAILURE;
	}
	if (setrlimit(RLIMIT_MEMLOCK, &unlimited) || setgid(NOBODY) || setuid(NOBODY)) {
		perror("unprivileged: setuid");
		return EXIT_FAILURE;
	}
	secret = secret_map(size);
	if (!secret) {
		perror("unprivileged: memfd_secret");
		return EXIT_FAILURE;
	}

	start = now_ms();
	for (i = 0; i < size; i += sysconf(_SC_PAGESIZE))
		secret[i] = 1;
	printf("%lu\n", now_ms() - start);
	return EXIT_SUCCESS;
}
