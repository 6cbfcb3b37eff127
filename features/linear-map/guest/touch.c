// SPDX-License-Identifier: GPL-2.0-only
/*
 * touch user|kernel MIB: touch so much secret memory, as a task does or as a system call does for
 * it.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "secret.h"

int main(int argc, char **argv)
{
	size_t i, size = argc == 3 ? strtoul(argv[2], NULL, 0) << 20 : 0;
	char *secret;
	int zero;

	if (!size || (strcmp(argv[1], "user") && strcmp(argv[1], "kernel"))) {
		fprintf(stderr, "usage: touch user|kernel MIB\n");
		return EXIT_FAILURE;
	}
	secret = secret_map(size);
	zero = open("/dev/zero", O_RDONLY);
	if (!secret || zero < 0) {
		perror("touch: memfd_secret");
		return EXIT_FAILURE;
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
