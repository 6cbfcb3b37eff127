// SPDX-License-Identifier: GPL-2.0-only
/*
 * touch user|kernel|exit MIB: touch so much secret memory, as a task does or as a system call does
 * for it; or leave the first touch to the end of the task, which looks for its robust futexes there.
 */
#include <fcntl.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "secret.h"

int main(int argc, char **argv)
{
	size_t i, size = argc == 3 ? strtoul(argv[2], NULL, 0) << 20 : 0;
	char *secret;
	int zero;

	if (!size || (strcmp(argv[1], "user") && strcmp(argv[1], "kernel") &&
		      strcmp(argv[1], "exit"))) {
		fprintf(stderr, "usage: touch user|kernel|exit MIB\n");
		return EXIT_FAILURE;
	}
	secret = secret_map(size);
	zero = open("/dev/zero", O_RDONLY);
	if (!secret || zero < 0) {
		perror("touch: memfd_secret");
		return EXIT_FAILURE;
	}

	if (!strcmp(argv[1], "exit")) {
		if (syscall(__NR_set_robust_list, secret, sizeof(struct robust_list_head))) {
			perror("touch: set_robust_list");
			return EXIT_FAILURE;
		}
		return EXIT_SUCCESS;
	}
	if (!strcmp(argv[1], "user")) {
		for (i = 0; i < size; i += sysconf(_SC_PAGESIZE))
			secret[i] = 1;
		return EXIT_SUCCESS;
	}
	for (i = 0; i < size; i += sysconf(_SC_PAGESIZE)) {
		if (read(zero, secret + i, 1) != 1) {
			perror("touch: read");
			return EXIT_FAILURE;
		}
	}
	return EXIT_SUCCESS;
}
