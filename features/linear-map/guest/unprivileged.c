// SPDX-License-Identifier: GPL-2.0-only
/*
 * unprivileged BLOCKS: as a user without privileges, but for locked memory, touch secret
 * memory of so many blocks of 2 MiB, and print how many milliseconds it took.
 *
 * unprivileged filter: as that user, attach a filter to a socket, which is a BPF program, and print
 * errno, or 0, and how many milliseconds it took.
 *
 * unprivileged root-filter: the same with all privileges, to compare.
 */
#include <errno.h>
#include <linux/filter.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
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

static int attach_filter(void)
{
	unsigned long start;
	struct sock_filter accept_all = BPF_STMT(BPF_RET | BPF_K, 0xffff);
	struct sock_fprog program = { .len = 1, .filter = &accept_all };
	int sock = socket(AF_UNIX, SOCK_DGRAM, 0);

	if (sock < 0) {
		perror("unprivileged: socket");
		return EXIT_FAILURE;
	}
	start = now_ms();
	if (!setsockopt(sock, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)))
		errno = 0;
	printf("%d %lu\n", errno, now_ms() - start);
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	const struct rlimit unlimited = { RLIM_INFINITY, RLIM_INFINITY };
	size_t i, size = argc == 2 ? strtoul(argv[1], NULL, 0) * BLOCK : 0;
	bool filter = argc == 2 && !strcmp(argv[1], "filter");
	unsigned long start;
	char *secret;

	if (argc == 2 && !strcmp(argv[1], "root-filter"))
		return attach_filter();
	if (!size && !filter) {
		fprintf(stderr, "usage: unprivileged BLOCKS|filter|root-filter\n");
		return EXIT_FAILURE;
	}
	if (setrlimit(RLIMIT_MEMLOCK, &unlimited) || setgid(NOBODY) || setuid(NOBODY)) {
		perror("unprivileged: setuid");
		return EXIT_FAILURE;
	}
	if (filter)
		return attach_filter();

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
