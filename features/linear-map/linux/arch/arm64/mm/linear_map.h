/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The linear map in large blocks: what its parts share. See linear_map.c.
 */
#ifndef __ARM64_MM_LINEAR_MAP_H
#define __ARM64_MM_LINEAR_MAP_H

#include <linux/mutex.h>
#include <linux/pgtable.h>
#include <linux/rwsem.h>
#include <linux/types.h>

/*
 * The sizes of leaf that a kernel mapping is made of, from small to large. Between
 * two levels of table lies the contiguous range: CONT_PTES or CONT_PMDS neighbouring
 * leaves that the TLB may hold as one.
 */
enum leaf_size {
	LEAF_PTE,
	LEAF_CONT_PTE,
	LEAF_PMD,
	LEAF_CONT_PMD,
	LEAF_PUD,
	NR_LEAF_SIZES
};

/**
 * struct kernel_leaf - the leaf that maps an address
 * @size: its size; a contiguous range counts as one leaf
 * @start: the first address that it maps
 * @entry: its entry, or the first entry of a contiguous range
 * @desc: the descriptor in @entry when it was looked up
 *
 * A descriptor has the same fields at every level but for its type bits, so the
 * one type pteval_t serves for all.
 */
struct kernel_leaf {
	enum leaf_size size;
	unsigned long start;
	void *entry;
	pteval_t desc;
};

/**
 * enum linear_map_mode - what the linear map is made of, and whether it changes
 * @LINEAR_MAP_PAGES: pages only; permissions change, sizes never do
 * @LINEAR_MAP_FIXED: blocks; neither permissions nor sizes change
 * @LINEAR_MAP_LIVE: blocks, split and folded back live
 */
enum linear_map_mode {
	LINEAR_MAP_PAGES,
	LINEAR_MAP_FIXED,
	LINEAR_MAP_LIVE,
};

/*
 * Written when the map is painted and once more when CPUs turn out to be unequal,
 * both before there is user space.
 */
extern enum linear_map_mode linear_map_mode;

/*
 * Whoever changes permissions holds it for reading from the first split to the last
 * change, so that nothing is folded in between; folding holds it for writing.
 */
extern struct rw_semaphore linear_map_fold_sem;

struct ptdesc *alloc_split_table(gfp_t gfp);
int alloc_spare_tables(unsigned long nr);
struct ptdesc *take_spare_table(void);
void free_spare_tables(void);
unsigned long leaf_bytes(enum leaf_size size);
bool leaf_is_aligned(enum leaf_size size, unsigned long start, phys_addr_t pa);
bool find_kernel_leaf(unsigned long addr, struct kernel_leaf *leaf);
int split_kernel_leaf(unsigned long addr);
void linear_map_count(enum leaf_size size, long bytes);
unsigned long linear_map_bytes(enum leaf_size size);
pteval_t linear_map_default_desc(unsigned long addr, enum leaf_size size);
void set_kernel_leaf(enum leaf_size size, void *entry, pteval_t desc);
void __split_kernel_leaf(const struct kernel_leaf *leaf, void *table);

static inline bool leaf_is_contiguous(enum leaf_size size)
{
	return size == LEAF_CONT_PTE || size == LEAF_CONT_PMD;
}

/* Does a split of this leaf need a table for what it is split into? */
static inline bool split_needs_table(enum leaf_size size)
{
	return size == LEAF_PMD || size == LEAF_PUD;
}

/* linear_map_park.S */
typedef void (park_fn)(u32 *parked);
extern park_fn linear_map_park;
extern u32 linear_map_parked;

/* kernel/pi/map_range.c, also called by mmu.c */
void __pi_map_range(u64 *pgd, u64 start, u64 end, u64 pa, pgprot_t prot,
		    int level, pte_t *tbl, bool may_use_cont, u64 va_offset);

/* linear_map_fold.c */
void linear_map_fold_later(unsigned long start, unsigned long end);
bool linear_map_fold_enable(bool enable);
void linear_map_fold_now(void);

#endif /* __ARM64_MM_LINEAR_MAP_H */
