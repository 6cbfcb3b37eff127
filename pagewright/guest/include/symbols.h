/* SPDX-License-Identifier: GPL-2.0-only */
/* Symbols of the running kernel, for programs of several features. */
#ifndef SYMBOLS_H
#define SYMBOLS_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Find a symbol of the kernel; 0, ENXIO if there is none of that name, or what went wrong. */
static inline int symbol_find(const char *name, unsigned long *address)
{
	char line[512], found[256], type;
	int error = ENXIO;
	FILE *file;

	file = fopen("/proc/kallsyms", "re");
	if (!file)
		return errno;
	while (error && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "%lx %c %255s", address, &type, found) == 3 &&
		    !strcmp(found, name))
			error = 0;
	}
	fclose(file);
	return error;
}

#endif /* SYMBOLS_H */
