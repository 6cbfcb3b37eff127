// SPDX-License-Identifier: GPL-2.0-only
/*
 * surplus [-r [-u]] [-f | -a] [-w] [-l] [-c COUNT] NUMBER [TASKS]: take huge pages of the default
 * size beyond the pool, as any program can if nr_overcommit_hugepages lets it.
 *
 * Each of TASKS (1) takes NUMBER pages, one fault after the other, and gives all of them back
 * when it ends. With -r they are reserved beforehand, which takes them all at once; with -u they
 * are given back without a fault; with -w they are given back when the standard input ends; with
 * -l each page is given back before the next one is taken; with -c so many are mapped and given
 * back at once, one after the other. Prints pages=N, how many were taken, and with -f, before they
 * are given back, frame=N, where the first one is; with -a such a line for each that is mapped
 * with the first one.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <sys/wait.h>

#include "pool.h"

static int take(int number, int reserve, int untouched, int frames, int wait_for_end, int count)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
	size_t size = pool_default(), length = count * size;
	int i;

	flags |= __builtin_ctzl(size) << MAP_HUGE_SHIFT;
	if (!reserve)
		flags |= MAP_NORESERVE;

	for (i = 0; i < number;) {
		int j;
		char *p = mmap(NULL, length, PROT_READ | PROT_WRITE, flags, -1, 0);

		if (p == MAP_FAILED) {
			perror("surplus: mmap");
			return 1;
		}
		/* A fault for which there is no page ends the program with SIGBUS. */
		for (j = 0; j < count && !untouched; j++)
			p[j * size] = 1;
		if (i == 0) {
			for (j = 0; j < frames && j < count; j++)
				printf("frame=%lu\n", frame_of(p + j * size));
			fflush(stdout);
		}
		while (wait_for_end && getchar() != EOF)
			;
		for (j = 0; j < count; j++)
			munmap(p + j * size, size);
		i += count;
	}
	return 0;
}

int main(int argc, char *argv[])
{
	int option, reserve = 0, untouched = 0, frames = 0, wait_for_end = 0, count = 0;
	int number, tasks, i, status, failed = 0;

	while ((option = getopt(argc, argv, "rufawlc:")) != -1) {
		reserve |= option == 'r';
		untouched |= option == 'u';
		wait_for_end |= option == 'w';
		if (option == 'f')
			frames = 1;
		else if (option == 'a')
			frames = INT_MAX;
		else if (option == 'l')
			count = 1;
		else if (option == 'c')
			count = atoi(optarg);
	}
	if (optind >= argc)
		return 2;
	number = atoi(argv[optind]);
	if (!count)
		count = number;
	tasks = optind + 1 < argc ? atoi(argv[optind + 1]) : 1;

	for (i = 0; i < tasks; i++) {
		pid_t child = fork();

		if (child == 0)
			_exit(take(number, reserve, untouched, frames, wait_for_end, count));
		failed += child < 0;
	}
	while (wait(&status) > 0)
		failed += status != 0;
	printf("pages=%d\n", failed ? 0 : number * tasks);
	return failed != 0;
}
