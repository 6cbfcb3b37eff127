// SPDX-License-Identifier: GPL-2.0-only
/*
 * scatter NODE: leave free memory of a node in pieces of one page.
 *
 * Takes pages of NODE until none is left and gives back every other one. Prints how many these are,
 * and keeps the others until it is ended.
 */
#define _GNU_SOURCE
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* So many pages are taken between two looks at where they come from. */
#define STEP	16UL
#define MOST	(64UL << 30)

/* Once a node has no more, the kernel takes memory of another one. */
static bool prefer(int node)
{
	unsigned long nodes = 1UL << node;

	return !syscall(SYS_set_mempolicy, MPOL_PREFERRED, &nodes, 8 * sizeof(nodes));
}

static int node_of(void *p)
{
	int node = -1;

	syscall(SYS_get_mempolicy, &node, NULL, 0UL, p, MPOL_F_NODE | MPOL_F_ADDR);
	return node;
}

int main(int argc, char *argv[])
{
	size_t size = sysconf(_SC_PAGESIZE), taken = 0, i;
	int node = argc > 1 ? atoi(argv[1]) : 0;
	char *p;

	p = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		 -1, 0);
	if (p == MAP_FAILED || madvise(p, MOST, MADV_NOHUGEPAGE) || !prefer(node)) {
		perror("scatter");
		return 1;
	}
	do {
		for (i = 0; i < STEP; i++)
			p[taken++ * size] = 1;
	} while (node_of(p + (taken - 1) * size) == node);

	for (i = 0; i < taken; i += 2)
		madvise(p + i * size, size, MADV_DONTNEED);
	printf("%zu\n", taken / 2);
	fflush(stdout);
	pause();
	return 0;
}
