/* SPDX-License-Identifier: GPL-2.0-only */
/* Files of /proc and /sys: texts and numbers in them, read and written. */
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
	ssize_t length = strlen(text), written;
	int fd, error = 0;

	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno;
	written = write(fd, text, length);
	if (written != length)
		error = written < 0 ? errno : EIO;
	close(fd);
	return error;
}

static inline int number_write(const char *path, long value)
{
	char text[32];

	snprintf(text, sizeof(text), "%ld", value);
	return text_write(path, text);
}

/*
 * The first line of a file, without its newline and as far as there is room. Its length,
 * or -1 and errno if the file cannot be read; the line is empty then.
 */
static inline ssize_t line_read(const char *path, char *line, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = fd < 0 ? -1 : read(fd, line, size - 1);
	int error = errno;

	if (fd >= 0)
		close(fd);
	line[got > 0 ? got : 0] = '\0';
	line[strcspn(line, "\n")] = '\0';
	errno = error;
	return got < 0 ? -1 : (ssize_t)strlen(line);
}

/* The number a file begins with, to a base as strtol(3) has it; otherwise the fallback. */
static inline long number_read_to_base(const char *path, int base, long fallback)
{
	char text[32], *end;
	long value;

	line_read(path, text, sizeof(text));
	value = strtol(text, &end, base);
	return end != text ? value : fallback;
}

static inline long number_read(const char *path, long fallback)
{
	return number_read_to_base(path, 10, fallback);
}

/* The number that a line of a file has after a name, and maybe a colon; otherwise the fallback. */
static inline long named_number_read(const char *path, const char *name, long fallback)
{
	size_t length = strlen(name);
	long value = fallback;
	char line[128];
	FILE *file;

	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		if (strcspn(line, ": ") == length && !strncmp(line, name, length))
			value = atol(line + length + 1);
	}
	if (file)
		fclose(file);
	return value;
}

/* A line of /proc/meminfo, in KiB; 0 if there is none. */
static inline long meminfo(const char *name)
{
	return named_number_read("/proc/meminfo", name, 0);
}

/*
 * Have CPUs keep few free pages to themselves, which MemFree does not count. The millionth part
 * of a zone is less than the least that Linux would let a CPU keep, if the zone has no more than
 * half a TiB.
 */
static inline void page_lists_shorten(void)
{
	text_write("/proc/sys/vm/percpu_pagelist_high_fraction", "1000000");
}

#endif /* FILES_H */
