// SPDX-License-Identifier: GPL-2.0-only
/*
 * gaps CPU SECONDS MS: for how long a program that runs all the time did not run.
 *
 * Looks at the clock on one CPU, again and again for so many seconds. A gap is what is between two
 * looks, if it is more than MS milliseconds. Prints "began", and in the end how many gaps there
 * were, and the longest one and all together in milliseconds.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NS_PER_MS	1000000L
#define MS_PER_S	1000L

static long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * MS_PER_S * NS_PER_MS + now.tv_nsec;
}

int main(int argc, char *argv[])
{
	long last, now, gap, end, least, number = 0, longest = 0, total = 0;
	cpu_set_t cpus;

	if (argc != 4) {
		fprintf(stderr, "usage: gaps CPU SECONDS MS\n");
		return EXIT_FAILURE;
	}
	CPU_ZERO(&cpus);
	CPU_SET(atoi(argv[1]), &cpus);
	least = atol(argv[3]) * NS_PER_MS;
	if (sched_setaffinity(0, sizeof(cpus), &cpus)) {
		perror("gaps");
		return EXIT_FAILURE;
	}
	puts("began");
	fflush(stdout);

	last = now_ns();
	end = last + atol(argv[2]) * MS_PER_S * NS_PER_MS;
	while (last < end) {
		now = now_ns();
		gap = now - last;
		last = now;
		longest = gap > longest ? gap : longest;
		if (gap > least) {
			number++;
			total += gap;
		}
	}
	printf("gaps=%ld longest=%ld total=%ld\n", number, longest / NS_PER_MS, total / NS_PER_MS);
	return EXIT_SUCCESS;
}
