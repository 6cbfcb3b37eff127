/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the kernel's page tables say about the linear map, without regard to the
 * size of the entries: how much of it is mapped, how much of that is read-only.
 */
#ifndef DUMP_H
#define DUMP_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DUMP_PATH	"/sys/kernel/debug/kernel_page_tables"

struct dump_range {
	unsigned long start;
	unsigned long end;
	bool read_only;
	bool executable;
};

struct dump {
	/* In bytes. */
	unsigned long mapped;
	unsigned long read_only;
	unsigned long executable;
	/* Read-only bytes of the areas that modules and BPF programs are in. */
	unsigned long areas_read_only;
	/* Of the permissions of every address; equal if they are. */
	unsigned long hash;
	/* What is mapped, by address; neighbours with equal permissions are one. */
	struct dump_range *ranges;
	size_t nr_ranges;
};

static inline void dump_free(struct dump *dump)
{
	free(dump->ranges);
	memset(dump, 0, sizeof(*dump));
}

static inline void dump_add(struct dump *dump, const struct dump_range *range)
{
	struct dump_range *last = dump->ranges + dump->nr_ranges - 1;

	if (dump->nr_ranges && last->end == range->start &&
	    last->read_only == range->read_only &&
	    last->executable == range->executable) {
		last->end = range->end;
		return;
	}
	dump->ranges = realloc(dump->ranges, (dump->nr_ranges + 1) * sizeof(*range));
	if (!dump->ranges) {
		perror("realloc");
		exit(EXIT_FAILURE);
	}
	dump->ranges[dump->nr_ranges++] = *range;
}

static inline void dump_sum(struct dump *dump)
{
	const unsigned long prime = 0x100000001b3;
	size_t i;

	dump->hash = 0xcbf29ce484222325;
	for (i = 0; i < dump->nr_ranges; i++) {
		const struct dump_range *range = dump->ranges + i;
		unsigned long size = range->end - range->start;

		dump->mapped += size;
		dump->read_only += range->read_only ? size : 0;
		dump->executable += range->executable ? size : 0;
		dump->hash = (dump->hash ^ range->start) * prime;
		dump->hash = (dump->hash ^ range->end) * prime;
		dump->hash = (dump->hash ^ (range->read_only | range->executable << 1)) * prime;
	}
}

/* Can a dump be taken?  That takes root, debugfs and CONFIG_PTDUMP_DEBUGFS. */
static inline bool dump_is_there(void)
{
	return !access(DUMP_PATH, R_OK);
}

/* Take a dump.  Free it after use. */
static inline void dump_read(struct dump *dump)
{
	bool linear = false, areas = false, valid;
	unsigned long start, end;
	FILE *file;
	char line[256];

	memset(dump, 0, sizeof(*dump));
	file = fopen(DUMP_PATH, "r");
	if (!file) {
		perror(DUMP_PATH);
		exit(EXIT_FAILURE);
	}
	while (fgets(line, sizeof(line), file)) {
		struct dump_range range;

		if (!strncmp(line, "---[", 4)) {
			linear = strstr(line, "Linear Mapping start");
			areas = strstr(line, "Modules start") || strstr(line, "vmalloc() area");
			continue;
		}
		if (!(linear || areas) || sscanf(line, "0x%lx-0x%lx", &start, &end) != 2)
			continue;
		/* No attributes: nothing there.  F: not valid. */
		valid = strstr(line, "MEM/") && !strstr(line, " F ");
		if (!valid)
			continue;
		range.start = start;
		range.end = end;
		range.read_only = strstr(line, " ro ");
		range.executable = !strstr(line, " NX ");
		if (linear)
			dump_add(dump, &range);
		else if (range.read_only)
			dump->areas_read_only += end - start;
	}
	fclose(file);
	if (!dump->nr_ranges) {
		fprintf(stderr, "%s: no linear map\n", DUMP_PATH);
		exit(EXIT_FAILURE);
	}
	dump_sum(dump);
}

/*
 * Take a dump once no permission has changed for two seconds: what is freed late, after
 * a grace period or by a worker, takes longer on a busy machine.
 */
static inline void dump_read_settled(struct dump *dump)
{
	unsigned long hash;
	int tries, same = 0;

	dump_read(dump);
	for (tries = 0; tries < 30 && same < 2; tries++) {
		hash = dump->hash;
		dump_free(dump);
		sleep(1);
		dump_read(dump);
		same = dump->hash == hash ? same + 1 : 0;
	}
}

/* How many bytes of [start, end) are mapped, and read-only or not. */
static inline unsigned long dump_count(const struct dump *dump, unsigned long start,
				       unsigned long end, bool read_only)
{
	unsigned long bytes = 0;
	size_t i;

	for (i = 0; i < dump->nr_ranges; i++) {
		const struct dump_range *range = dump->ranges + i;
		unsigned long first = range->start > start ? range->start : start;
		unsigned long last = range->end < end ? range->end : end;

		if (first < last && range->read_only == read_only)
			bytes += last - first;
	}
	return bytes;
}

/*
 * Wait until all permissions are again as they were: what is freed late (after a
 * grace period, by a worker) may take a little.  With TOGETHER in the environment
 * others change them meanwhile, and whoever started us looks at the end.
 */
static inline bool dump_returns_to(const struct dump *before)
{
	struct dump now;
	int tries;
	bool same;

	if (getenv("TOGETHER"))
		return true;
	for (tries = 0; tries < 100; tries++) {
		dump_read(&now);
		same = now.hash == before->hash;
		dump_free(&now);
		if (same)
			return true;
		usleep(100000);
	}
	return false;
}

#endif /* DUMP_H */
