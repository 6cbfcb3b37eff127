// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pool of KFENCE in the linear map.
 */
#include <linux/kfence.h>
#include <linux/rwsem.h>

#include <asm/kfence.h>

#include "linear_map.h"

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
	struct kernel_leaf leaf;
	int ret = 0;

	down_read(&linear_map_fold_sem);
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
		fold_later(addr, end);

	return !ret;
}
