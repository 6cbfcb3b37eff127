// SPDX-License-Identifier: GPL-2.0-only
/*
 * See qemu.h.  Memory is looked at directly: the guest's RAM has to be an
 * object memory-backend-memfd, whose mapping is found in /proc/self/maps.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "qemu.h"

int qemu_plugin_version = API_VERSION;

/* Memory */

#define MAX_PIECES	16

struct piece {
	char *host;
	u64 size, inode;
};

static struct piece pieces[MAX_PIECES];
static u32 nr_pieces;

static int by_inode(const void *a, const void *b)
{
	const struct piece *one = a, *two = b;

	return one->inode < two->inode ? -1 : one->inode > two->inode;
}

/**
 * find_memory() - find out where QEMU has mapped the guest's memory
 *
 * Backends are made in the order in which their memory is laid out.
 *
 * Return: false if there is none that can be looked at.
 */
bool find_memory(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[512];
	u64 start, end;
	u64 inode;

	while (maps && fgets(line, sizeof(line), maps)) {
		if (!strstr(line, "/memfd:memory-backend-memfd") ||
		    nr_pieces == MAX_PIECES ||
		    sscanf(line, "%" PRIx64 "-%" PRIx64 " %*s %*s %*s %" PRIu64,
			   &start, &end, &inode) != 3)
			continue;
		pieces[nr_pieces++] = (struct piece){
			.host = (char *)start,
			.size = end - start,
			.inode = inode,
		};
	}
	if (maps)
		fclose(maps);
	qsort(pieces, nr_pieces, sizeof(*pieces), by_inode);
	return nr_pieces;
}

/* The guest's memory at a physical address; NULL if there is none. */
void *guest_memory(u64 pa, u64 size)
{
	u64 offset = pa - RAM_BASE;
	u32 i;

	for (i = 0; i < nr_pieces && pa >= RAM_BASE; i++) {
		if (offset < pieces[i].size)
			return size <= pieces[i].size - offset ?
			       pieces[i].host + offset : NULL;
		offset -= pieces[i].size;
	}
	return NULL;
}

/* Registers */

/* Find the registers of the CPU that starts. */
void find_registers(struct registers *registers)
{
	struct array *array = qemu_plugin_get_registers();
	const struct reg_descriptor *all = (void *)array->data;
	unsigned int i, number;
	char rest;

	for (i = 0; i < array->len; i++) {
		const char *name = all[i].name;
		struct reg *handle = all[i].handle;

		if (sscanf(name, "x%u%c", &number, &rest) == 1 &&
		    number < NR_X)
			registers->x[number] = handle;
		else if (!strcmp(name, "pc"))
			registers->pc = handle;
		else if (!strcmp(name, "cpsr"))
			registers->cpsr = handle;
		else if (!strcmp(name, "ID_AA64MMFR2_EL1"))
			registers->mmfr2 = handle;
		else if (!strcmp(name, "DCZID_EL0"))
			registers->dczid = handle;
	}
}

/* The value of a register; 0 if the CPU does not have it. */
u64 read_register(struct reg *handle)
{
	static __thread struct bytes *bytes;
	u64 value = 0;
	int size;

	if (!handle)
		return 0;
	if (!bytes)
		bytes = g_byte_array_new();
	g_byte_array_set_size(bytes, 0);
	size = qemu_plugin_read_register(handle, bytes);
	if (size > 0)
		memcpy(&value, bytes->data, size < 8 ? size : 8);
	return value;
}

/* A general register, 31 being zero. */
u64 read_x(const struct registers *registers, u32 number)
{
	return number < NR_X ? read_register(registers->x[number]) : 0;
}

u32 exception_level(const struct registers *registers)
{
	return read_register(registers->cpsr) >> 2 & 3;
}

/* How many bytes DC ZVA zeroes. */
u64 zeroed_at_once(const struct registers *registers)
{
	return registers->dczid ?
	       4ULL << (read_register(registers->dczid) & 15) : 64;
}

/* Instructions */

/* Loads and stores, all of them, by their place in the encoding of A64. */
bool accesses_memory(u32 code)
{
	return (code & 0x0a000000) == 0x08000000;
}
