// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pool of KFENCE in the linear map.
 */
#include <linux/kfence.h>
#include <linux/rwsem.h>

#include <asm/kfence.h>
#include <asm/pgalloc.h>

#include "linear_map.h"

/*
 * Where leaves are split in pauses there are no contiguous ranges, so a block that is split
 * at any address becomes pages throughout. So it is enough to split each block of the pool
 * at one address.
 */
static bool next_block(const void *what, unsigned int *position, struct address_range *range)
{
	const struct address_range *pool = what;
	unsigned long addr = pool->start;

	if (*position)
		addr = round_down(addr, PMD_SIZE) + *position * PMD_SIZE;
	if (addr >= pool->end)
		return false;

	range->start = addr;
	range->end = addr + PAGE_SIZE;
	++*position;

	return true;
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
	unsigned long addr = untagged((unsigned long)__kfence_pool);
	unsigned long end = addr + KFENCE_POOL_SIZE;
	const struct address_range pool = { .start = addr, .end = end };
	struct kernel_leaf leaf;
	int ret = 0;

	down_read(&linear_map_fold_sem);
	if (linear_map_is_paused()) {
		ret = split_all_ends_paused(next_block, &pool, NULL, GFP_PGTABLE_KERNEL);
		addr = end;
	}
	while (addr < end && !ret) {
		if (!find_kernel_leaf(addr, &leaf))
			ret = -EINVAL;
		else if (leaf.size == LEAF_PTE)
			addr += PAGE_SIZE;
		else	/* no leaf that starts before the next page ends behind it */
			ret = split_kernel_leaf(addr + PAGE_SIZE);
	}
	up_read(&linear_map_fold_sem);
	if (ret)
		fold_later(pool.start, end);

	return !ret;
}
