/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Files of /proc and /sys, read and written by programs of several features.
 */
#ifndef FILES_H
#define FILES_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Write a text to a file at once; 0, or what went wrong. */
static inline int text_write(const char *path, const char *text)
{
	int fd, error = 0;

	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	if (write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		error = errno;
	close(fd);
	return error;
}

static inline int number_write(const char *path, long value)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld", value);
	return text_write(path, text);
}

/* The number a file begins with; otherwise the fallback. */
static inline long number_read(const char *path, long fallback)
{
	char text[32] = "", *end;
	ssize_t got;
	long value;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return fallback;
	got = read(fd, text, sizeof(text) - 1);
	close(fd);
	value = strtol(text, &end, 10);
	return got > 0 && end != text ? value : fallback;
}

/* A line of /proc/meminfo, in KiB; 0 if there is none. */
static inline long meminfo(const char *name)
{
	size_t length = strlen(name);
	char line[128];
	long value = 0;
	FILE *file;

	file = fopen("/proc/meminfo", "r");
	while (file && fgets(line, sizeof(line), file)) {
		if (!strncmp(line, name, length) && line[length] == ':')
			value = atol(line + length + 1);
	}
	if (file)
		fclose(file);
	return value;
}

/* Have CPUs keep next to no free pages to themselves, which MemFree does not count. */
static inline void page_lists_shorten(void)
{
	text_write("/proc/sys/vm/percpu_pagelist_high_fraction", "100000");
}

#endif /* FILES_H */
