// SPDX-License-Identifier: GPL-2.0-only
/*
 * The model of what TLBs cost with a memory of its own, for tests that tell it
 * what to access and ask what it has counted.
 */
#include <string.h>

#include "tlb.h"

#define RAM_BASE	0x40000000ULL
#define RAM_SIZE	(64ULL << 20)

static char ram[RAM_SIZE];

void *tlb_memory(u64 pa, u64 size)
{
	if (pa < RAM_BASE || pa - RAM_BASE >= RAM_SIZE ||
	    size > RAM_SIZE - (pa - RAM_BASE))
		return NULL;
	return ram + (pa - RAM_BASE);
}

void test_write(u64 pa, u64 value);
u64 test_event(u32 cpu, u32 geometry, u32 class, u32 event);
u64 test_accesses(u32 cpu, u32 class);
u64 test_unknown(u32 cpu);
u64 test_instructions(u32 cpu, bool user);

void test_write(u64 pa, u64 value)
{
	memcpy(tlb_memory(pa, 8), &value, 8);
}

u64 test_event(u32 cpu, u32 geometry, u32 class, u32 event)
{
	return tlb_counts(cpu)->events[geometry][class][event];
}

u64 test_accesses(u32 cpu, u32 class)
{
	return tlb_counts(cpu)->accesses[class];
}

u64 test_unknown(u32 cpu)
{
	return tlb_counts(cpu)->unknown;
}

u64 test_instructions(u32 cpu, bool user)
{
	return tlb_counts(cpu)->instructions[user];
}
