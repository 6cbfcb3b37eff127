/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __ARM64_MM_PERCPU_LOCAL_H
#define __ARM64_MM_PERCPU_LOCAL_H

#include <linux/percpu-local.h>
#include <linux/pgtable.h>

/**
 * struct percpu_local_table - the kernel page table of a CPU
 * @pgd: its top level
 * @phys: where that is in memory
 * @second_level: its copy of the second-level table that the path to the local
 *	region
 *	shares with other mappings; NULL if there is none
 */
struct percpu_local_table {
	pgd_t *pgd;
	phys_addr_t phys;
	void *second_level;
};

/* In proc.S; to be called in the ID map. */
typedef void (ttbr_replace_func)(phys_addr_t ttbr1);
extern ttbr_replace_func idmap_cpu_replace_ttbr1;

const struct percpu_local_table *percpu_local_table_of(unsigned int cpu);
unsigned int percpu_local_top_size(void);
const struct percpu_local_space *percpu_local_get_space(void);

#ifdef CONFIG_ARM64_PERCPU_LOCAL_MAP
void percpu_local_protect(void);
#else
static inline void percpu_local_protect(void) { }
#endif

/* In mmu.c and pageattr.c. */
void write_kernel_pgd(pgd_t *pgdp, phys_addr_t phys, pgd_t pgd);
int set_linear_map_ro(unsigned long addr, int numpages);

#endif /* __ARM64_MM_PERCPU_LOCAL_H */
