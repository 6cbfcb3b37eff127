// SPDX-License-Identifier: GPL-2.0-only
/*
 * mark hold: fill a page, print its physical address and the first 16 bytes, and
 * keep it until killed.  mark find ADDRESS FILE: print the same 16 bytes as they
 * are at that physical address in /proc/vmcore or /proc/kcore.
 */
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "physical.h"

#define BYTES	16

static void print(const unsigned char *bytes)
{
	int i;

	for (i = 0; i < BYTES; i++)
		printf("%02x", bytes[i]);
	printf("\n");
	fflush(stdout);
}

static int hold(void)
{
	size_t size = sysconf(_SC_PAGESIZE);
	unsigned char *p;

	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED || mlock(p, size) || getrandom(p, BYTES, 0) != BYTES) {
		perror("mark");
		return EXIT_FAILURE;
	}
	printf("%#lx ", physical_address(p));
	print(p);
	while (true)
		pause();
}

static int find(const char *address, const char *path)
{
	unsigned char bytes[BYTES];

	if (physical_read(path, strtoul(address, NULL, 0), bytes, sizeof(bytes))) {
		perror(path);
		return EXIT_FAILURE;
	}
	print(bytes);
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "hold"))
		return hold();
	if (argc == 4 && !strcmp(argv[1], "find"))
		return find(argv[2], argv[3]);
	fprintf(stderr, "usage: mark hold | mark find ADDRESS FILE\n");
	return EXIT_FAILURE;
}
