// SPDX-License-Identifier: GPL-2.0-only
/*
 * hold MIB: touch so much secret memory, load a BPF program, say so, and keep
 * both until killed.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "program.h"
#include "secret.h"

int main(int argc, char **argv)
{
	size_t size = argc == 2 ? strtoul(argv[1], NULL, 0) << 20 : 0;
	char *secret;

	if (!size) {
		fprintf(stderr, "usage: hold MIB\n");
		return EXIT_FAILURE;
	}
	secret = secret_map(size);
	if (!secret) {
		perror("hold: memfd_secret");
		return EXIT_FAILURE;
	}
	memset(secret, 1, size);
	if (program_load(PROGRAM_LONGEST, 0) < 0) {
		perror("hold: bpf");
		return EXIT_FAILURE;
	}
	printf("held\n");
	fflush(stdout);
	while (true)
		pause();
}
