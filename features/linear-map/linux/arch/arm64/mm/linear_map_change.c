// SPDX-License-Identifier: GPL-2.0-only
/*
 * Changing the permissions of kernel memory, whatever maps it.
 *
 * Where leaves can be split, those at the two ends of the range are, and then every leaf
 * of the range is changed as it is. Elsewhere what has to change consists of leaves that
 * lie in the range: vmalloc space and, if its permissions may change, the linear map are
 * mapped with pages. The locking is described in linear_map_split.c.
 */
#include <linux/kernel.h>
#include <linux/mm.h>
#include <linux/rcupdate.h>

#include <asm/linear_map.h>
#include <asm/tlbflush.h>

#include "linear_map.h"

#include <trace/events/linear_map.h>

/**
 * change_kernel_leaves() - change all leaves of a range
 * @start: first address, page-aligned
 * @end: the address after it
 * @change: what is changed; no leaf that it changes crosses an end of the range
 * @was_valid: set to true if a leaf that changed was valid before
 *
 * All of the changes are of permissions, between invalid and valid included, and need
 * no break-before-make.
 *
 * Context: any, if nothing folds there; or linear_map_fold_sem is held. The caller does
 *	    the TLB maintenance.
 * Return: 0; -EINVAL if an address is not mapped, or a leaf crosses an end; then what is
 *	   before it has changed.
 */
int change_kernel_leaves(unsigned long start, unsigned long end,
			 const struct desc_change *change, bool *was_valid)
{
	struct kernel_leaf leaf;
	unsigned long addr, next;

	for (addr = start; addr < end; addr = next) {
		pteval_t desc;

		if (WARN_ON_ONCE(!find_kernel_leaf(addr, &leaf)))
			return -EINVAL;

		next = leaf_end(&leaf);
		desc = change_desc(leaf.desc, change);
		if (desc == leaf.desc)
			continue;
		if (WARN_ON_ONCE(leaf.start < start || next > end))
			return -EINVAL;

		if (leaf.desc & PTE_VALID)
			*was_valid = true;
		set_kernel_leaf(leaf.size, leaf.entry, desc);
	}

	return 0;
}

/* Is every page of a range mapped? Then a change of it cannot fail half way. */
static bool range_is_mapped(unsigned long start, unsigned long end)
{
	struct kernel_leaf leaf;
	unsigned long addr;

	for (addr = start; addr < end; addr = leaf_end(&leaf))
		if (!find_kernel_leaf(addr, &leaf))
			return false;

	return true;
}

/* Change what is not part of larger leaves and is not folded meanwhile. */
static int change_atomic(unsigned long start, unsigned long size,
			 const struct desc_change *change)
{
	bool was_valid = false;

	return change_kernel_leaves(start, start + size, change, &was_valid);
}

/**
 * linear_map_set_valid() - make pages valid or invalid where it is not allowed to sleep
 * @start: first linear address, page-aligned
 * @size: bytes
 * @valid: which
 *
 * For the pool of KFENCE and for DEBUG_PAGEALLOC: what they change is mapped by pages,
 * and not folded.
 *
 * Context: any; takes no lock. Does the TLB maintenance.
 * Return: 0; -EINVAL if not all is mapped by leaves that lie in the range.
 */
int linear_map_set_valid(unsigned long start, unsigned long size, bool valid)
{
	const struct desc_change change = {
		.set = valid ? PTE_VALID : 0,
		.clear = valid ? 0 : PTE_VALID,
	};
	unsigned long first = __tag_reset(start);
	int ret = change_atomic(first, size, &change);

	flush_tlb_kernel_range(first, first + size);

	return ret;
}

/**
 * change_whole_leaves() - change all leaves of a range, and have them folded if they may be
 * @start: first address, page-aligned
 * @end: the address after it
 * @change: what is changed; no leaf that it changes crosses an end of the range
 *
 * Context: as change_kernel_leaves(); takes no lock of splits. The caller does the TLB
 *	    maintenance.
 * Return: as change_kernel_leaves().
 */
int change_whole_leaves(unsigned long start, unsigned long end,
			const struct desc_change *change)
{
	bool was_valid = false;
	int ret = change_kernel_leaves(start, end, change, &was_valid);

	if (ret || (change->set & PTE_WRITE))
		fold_later(start, end);
	/*
	 * A leaf that this change was to make valid was valid already: making it invalid had
	 * failed for want of a table or of a pause. TLBs may still hold its old permission, and
	 * no caller invalidates them after this change.
	 */
	if (was_valid && (change->set & PTE_VALID))
		flush_tlb_kernel_range(start, end);
	trace_linear_map_change(start, end, change->set, change->clear, ret);

	return ret;
}

/* Change a range, or nothing of it. linear_map_fold_sem is held. */
static int change_kernel_range(unsigned long start, unsigned long end,
			       const struct desc_change *change)
{
	int ret = -EINVAL;

	/*
	 * vmalloc areas whose permissions may change consist of pages. So their changes do not
	 * wait for the lock of splits, which may be held for as long as a pause takes.
	 */
	if (range_is_mapped(start, end))
		ret = __is_lm_address(start) ? split_ends(start, end, change) : 0;
	if (!ret)
		return change_whole_leaves(start, end, change);

	/* What was split for it may be folded again. */
	fold_later(start, end);
	trace_linear_map_change(start, end, change->set, change->clear, ret);

	return ret;
}

/**
 * linear_map_change() - change permissions of kernel memory, whatever maps it
 * @start: first address, page-aligned; in the linear map or in vmalloc space
 * @size: bytes
 * @set: bits to set in the descriptors
 * @clear: bits to clear in the descriptors
 *
 * Blocks that lie in the range are changed as blocks; at most the two leaves at its
 * ends are split.
 *
 * Context: process context, may sleep; but where this system splits nothing, any. The
 *	    caller owns the range, and does the TLB maintenance.
 * Return: 0; -EINVAL if part of the range is not mapped, or a leaf would have to be
 *	   split on a system that cannot; -ENOMEM if there is no memory for a table; -EBUSY
 *	   if other CPUs have to be paused and cannot be now, -EOPNOTSUPP if they may never
 *	   be again. If it is not 0 no permission was changed, on a system that splits; on
 *	   others what is before the first address that is not mapped has changed.
 */
int linear_map_change(unsigned long start, unsigned long size, u64 set, u64 clear)
{
	const struct desc_change change = { .set = set, .clear = clear };
	unsigned long first = __tag_reset(start);
	int ret;

	if (!linear_map_is_split())
		return change_atomic(first, size, &change);

	/*
	 * The image of a hibernating system is copied by one CPU with interrupts off,
	 * when tasks and what folds are frozen. A page that cannot be read is made valid
	 * for its copy, and invalid again. It may be part of a larger leaf that some
	 * vfree() has not finished with; that changes as a whole. No task has stopped half way
	 * through its entries: set_kernel_leaf() is not preempted, and a CPU goes off line in
	 * its stopper thread, which runs only where a task can be preempted.
	 */
	if (system_state == SYSTEM_SUSPEND) {
		struct kernel_leaf leaf;

		if (!find_kernel_leaf(first, &leaf))
			return -EINVAL;
		return change_atomic(leaf.start, max(size, leaf_bytes(leaf.size)), &change);
	}

	down_read(&linear_map_fold_sem);
	ret = change_kernel_range(first, first + size, &change);
	up_read(&linear_map_fold_sem);

	return ret;
}

/**
 * linear_map_is_valid() - can an address be accessed?
 * @addr: a linear address
 *
 * Context: any.
 * Return: true if it is mapped and not made invalid.
 */
bool linear_map_is_valid(unsigned long addr)
{
	struct kernel_leaf leaf;
	bool valid;

	/*
	 * The caller may be preemptible while the worker that folds is running, as
	 * hibernation is when it counts the pages to save. A table that is folded away
	 * is freed after a grace period.
	 */
	rcu_read_lock();
	valid = find_kernel_leaf(__tag_reset(addr), &leaf) && (leaf.desc & PTE_VALID);
	rcu_read_unlock();

	return valid;
}
