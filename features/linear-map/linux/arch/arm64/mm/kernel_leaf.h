/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The leaves of the kernel's page tables. See kernel_leaf.c.
 */
#ifndef __ARM64_MM_KERNEL_LEAF_H
#define __ARM64_MM_KERNEL_LEAF_H

#include <linux/pgtable.h>
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
 * struct desc_change - what a change of permissions does to a descriptor
 * @set: bits to set
 * @clear: bits to clear
 */
struct desc_change {
	u64 set;
	u64 clear;
};

unsigned long leaf_bytes(enum leaf_size size);
unsigned int leaf_entries(enum leaf_size size);
bool leaf_is_aligned(enum leaf_size size, unsigned long start, phys_addr_t pa);
pteval_t piece_desc(pteval_t desc, enum leaf_size size, int n);
pteval_t change_desc(pteval_t desc, const struct desc_change *change);
pteval_t linear_map_default_desc(unsigned long addr, enum leaf_size size);
bool find_kernel_leaf(unsigned long addr, struct kernel_leaf *leaf);
void set_kernel_leaf(enum leaf_size size, void *entry, pteval_t desc);

static inline bool leaf_is_contiguous(enum leaf_size size)
{
	return size == LEAF_CONT_PTE || size == LEAF_CONT_PMD;
}

static inline unsigned long leaf_end(const struct kernel_leaf *leaf)
{
	return leaf->start + leaf_bytes(leaf->size);
}

/* Does a leaf map both what is before an address and what is behind it? */
static inline bool leaf_crosses(const struct kernel_leaf *leaf, unsigned long boundary)
{
	return leaf->start < boundary && boundary < leaf_end(leaf);
}

/* A leaf that @change does not change is left as it is; all are split if that is NULL. */
static inline bool leaf_has_to_be_split(const struct kernel_leaf *leaf, unsigned long boundary,
					const struct desc_change *change)
{
	return leaf_crosses(leaf, boundary) &&
	       (!change || change_desc(leaf->desc, change) != leaf->desc);
}

#endif /* __ARM64_MM_KERNEL_LEAF_H */
