/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Reading figures from /proc without disturbing them: files are opened once and
 * read into static buffers, so that a second reading causes no page fault.
 */
#ifndef VMSTAT_H
#define VMSTAT_H

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"

#define VMSTAT_ABSENT	(-1L)

struct vmstat {
	char text[32768];
};

/* Take a snapshot of /proc/vmstat. */
static inline void vmstat_read(struct vmstat *snapshot)
{
	static int fd = -1;
	size_t length = 0;
	ssize_t got;

	if (fd < 0)
		fd = open("/proc/vmstat", O_RDONLY | O_CLOEXEC);
	if (fd < 0 || lseek(fd, 0, SEEK_SET) < 0) {
		perror("/proc/vmstat");
		exit(EXIT_FAILURE);
	}
	do {
		got = read(fd, snapshot->text + length,
			   sizeof(snapshot->text) - 1 - length);
		if (got > 0)
			length += got;
	} while (got > 0);
	snapshot->text[length] = '\0';
}

/* The counter of that name, or VMSTAT_ABSENT. */
static inline long vmstat_get(const struct vmstat *snapshot, const char *name)
{
	const char *line = snapshot->text;
	size_t length = strlen(name);

	while (line && *line) {
		if (!strncmp(line, name, length) && line[length] == ' ')
			return atol(line + length + 1);
		line = strchr(line, '\n');
		if (line)
			line++;
	}
	return VMSTAT_ABSENT;
}

/* By how much the counter grew, or VMSTAT_ABSENT. */
static inline long vmstat_delta(const struct vmstat *before,
				const struct vmstat *after, const char *name)
{
	long first = vmstat_get(before, name);

	return first == VMSTAT_ABSENT ? VMSTAT_ABSENT : vmstat_get(after, name) - first;
}

/* Does the command line switch off what is called, say, "arm64.atomic_write_fault="? */
static inline bool cmdline_switches_off(const char *name)
{
	size_t length = strlen(name);
	bool off = false;
	char text[4096];
	char *token;

	line_read("/proc/cmdline", text, sizeof(text));
	for (token = strtok(text, " "); token; token = strtok(NULL, " ")) {
		/* As kstrtobool() has it; the last one that it understands counts. */
		if (strncmp(token, name, length) || !token[length])
			continue;
		if (strchr("0nNfF", token[length]) || !strncasecmp(token + length, "of", 2))
			off = true;
		else if (strchr("1yYtT", token[length]) || !strncasecmp(token + length, "on", 2))
			off = false;
	}
	return off;
}

/* Size of a transparent huge page in bytes; 0 without them. */
static inline unsigned long thp_size(void)
{
	return number_read("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", 0);
}

/* Sum of a field of /proc/self/smaps, in KiB, over the mappings that lie in an area. */
static inline long smaps_kib(const void *area, size_t size, const char *field)
{
	unsigned long first = (unsigned long)area, last = first + size;
	unsigned long start, end;
	bool inside = false;
	size_t length = strlen(field);
	char line[512];
	long total = 0;
	FILE *file;

	file = fopen("/proc/self/smaps", "r");
	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			inside = start < last && end > first;
		else if (inside && !strncmp(line, field, length) && line[length] == ':')
			total += atol(line + length + 1);
	}
	fclose(file);
	return total;
}

#endif /* VMSTAT_H */
