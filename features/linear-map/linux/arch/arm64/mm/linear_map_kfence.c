// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pool of KFENCE in the linear map.
 */
#include <linux/kfence.h>
#include <linux/rwsem.h>

#include <asm/kfence.h>

#include "linear_map.h"

/*
 * One page of each contiguous range of pages that the pool has a part of. A leaf that has to end
 * there is split into contiguous ranges, where there are any, and the range itself into pages.
 */
static bool next_page_of_range(const void *what, unsigned int *position,
			       struct address_range *range)
{
	const struct address_range *pool = what;
	unsigned long addr = round_down(pool->start, CONT_PTE_SIZE) + *position * CONT_PTE_SIZE;

	if (addr >= pool->end)
		return false;

	range->start = max(addr, pool->start);
	range->end = range->start + PAGE_SIZE;
	++*position;

	return true;
}

/**
 * split_into_pages() - split all of a range, in as few pauses and TLB invalidations as possible
 * @start: its first address, page-aligned
 * @end: the address after it
 *
 * Context: as split_all_ends().
 * Return: as split_all_ends().
 */
int split_into_pages(unsigned long start, unsigned long end)
{
	const struct address_range range = { .start = start, .end = end };

	return split_all_ends(next_page_of_range, &range, NULL);
}

/**
 * arch_kfence_init_pool() - map the pool of KFENCE with pages
 *
 * KFENCE makes single pages invalid where it cannot sleep. A pool that was there when
 * the linear map was painted consists of pages already. linear_map_fold.c keeps off it.
 *
 * Context: process context, may sleep, or boot.
 * Return: whether the pool can be used.
 */
bool arch_kfence_init_pool(void)
{
	unsigned long start = __tag_reset((unsigned long)__kfence_pool);
	unsigned long end = start + KFENCE_POOL_SIZE;
	int ret;

	down_read(&linear_map_fold_sem);
	ret = split_into_pages(start, end);
	up_read(&linear_map_fold_sem);
	if (ret)
		fold_later(start, end);

	return !ret;
}
