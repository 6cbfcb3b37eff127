/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef __ARM64_MM_PERCPU_LOCAL_H
#define __ARM64_MM_PERCPU_LOCAL_H

#include <linux/math.h>
#include <linux/minmax.h>
#include <linux/percpu-local.h>
#include <linux/pgtable.h>

#include <asm/percpu_local_layout.h>

/**
 * struct percpu_local_table - the kernel page table of a CPU
 * @pgd: its top level
 * @phys: where that is in memory
 * @second_level: its copy of the second-level table that the path to the local
 *	region shares with other mappings; NULL if there is none
 */
struct percpu_local_table {
	pgd_t *pgd;
	phys_addr_t phys;
	void *second_level;
};

/**
 * percpu_local_room() - how much per-CPU data each CPU can have
 * @nr_units: how many areas are needed
 *
 * No last-level table has ptes of two areas, so they are multiples of PMD_SIZE
 * apart. An area begins where the image's per-CPU section does in what such a
 * table maps, which KASLR decides anew at each boot. What remains in the worst
 * case is what each CPU gets, so that no boot has less room than another.
 *
 * Context: any.
 * Return: bytes, a multiple of PMD_SIZE; or 0. Areas are PMD_SIZE more apart.
 */
static inline unsigned long percpu_local_room(unsigned int nr_units)
{
	unsigned long all = PERCPU_AREAS_END - PERCPU_AREAS_START;
	unsigned long stride = round_down(all / nr_units, PMD_SIZE);

	if (stride <= PMD_SIZE)
		return 0;
	return min(stride - PMD_SIZE, PERCPU_LOCAL_MAX);
}

/* In proc.S; to be called in the ID map. */
typedef void (ttbr_replace_func)(phys_addr_t ttbr1);
extern ttbr_replace_func idmap_cpu_replace_ttbr1;

/* Set by kaslr_early_init(). */
extern u16 percpu_areas_seed;

const struct percpu_local_table *percpu_local_table_of(unsigned int cpu);
unsigned int percpu_local_top_size(void);
const struct percpu_local_space *percpu_local_get_space(void);

#ifdef CONFIG_ARM64_PERCPU_LOCAL_MAP
void percpu_local_protect(void);
#else
static inline void percpu_local_protect(void) { }
#endif

/**
 * percpu_local_without_contiguous() - has memory to be mapped without contiguous ranges?
 *
 * With two levels the top level has blocks, and each CPU a copy of them. If KPTI makes
 * mappings non-global after all, the copies become so one entry after the other, while
 * CPUs use them (percpu_local_sync_nonglobal()). The entries of a contiguous range would
 * not be alike in between.
 *
 * Context: boot, before memory is mapped.
 * Return: true if so.
 */
static inline bool percpu_local_without_contiguous(void)
{
	return IS_ENABLED(CONFIG_ARM64_PERCPU_LOCAL_MAP) && CONFIG_PGTABLE_LEVELS == 2 &&
	       !arm64_use_ng_mappings;
}

/* In mmu.c. */
void write_kernel_pgd(pgd_t *pgdp, phys_addr_t phys, pgd_t pgd);

#endif /* __ARM64_MM_PERCPU_LOCAL_H */
