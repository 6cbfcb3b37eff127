/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What an architecture provides whose CPUs each map their own copy of the
 * per-CPU data at the same addresses: the local map. See mm/percpu-local.c for
 * how it is used.
 */
#ifndef _LINUX_PERCPU_LOCAL_H
#define _LINUX_PERCPU_LOCAL_H

#include <linux/errno.h>
#include <linux/init.h>
#include <linux/percpu.h>
#include <linux/types.h>

/**
 * struct percpu_local_space - the addresses of all per-CPU data
 * @areas: where the area of the first unit starts; page aligned
 * @stride: from the start of one unit's area to the start of the next one's
 * @size: of the area of each unit, and of the local region
 * @local: where the local region starts; page aligned
 * @align: a power of two, at least PAGE_SIZE: memory of this size that is
 *	congruent with its address takes one TLB entry
 * @tables: bytes of page tables that were made, for all CPUs
 *
 * The CPUs' units follow each other in the order of cpu_possible_mask.
 */
struct percpu_local_space {
	unsigned long areas;
	unsigned long stride;
	unsigned long size;
	unsigned long local;
	unsigned long align;
	unsigned long tables;
};

#ifdef CONFIG_HAVE_PERCPU_LOCAL_MAP

int arch_percpu_local_init(struct percpu_local_space *space,
			   unsigned int nr_units);
int arch_percpu_local_map_first(unsigned long addr, phys_addr_t phys,
				size_t size);
void arch_percpu_local_map(unsigned long start, unsigned long end);
bool arch_percpu_local_contains(unsigned long addr);

int percpu_local_first_chunk(size_t reserved_size, size_t dyn_size,
			     pcpu_fc_cpu_to_node_fn_t cpu_to_nd_fn);
__printf(1, 2) void percpu_local_say(const char *fmt, ...);

#else

static inline int
percpu_local_first_chunk(size_t reserved_size, size_t dyn_size,
			 pcpu_fc_cpu_to_node_fn_t cpu_to_nd_fn)
{
	return -ENODEV;
}

static inline bool arch_percpu_local_contains(unsigned long addr)
{
	return false;
}

#endif /* CONFIG_HAVE_PERCPU_LOCAL_MAP */

#endif /* _LINUX_PERCPU_LOCAL_H */
