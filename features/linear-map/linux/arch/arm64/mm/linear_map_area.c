// SPDX-License-Identifier: GPL-2.0-only
/*
 * The linear alias of vmalloc areas: protected with them, and given back by vfree().
 */
#include <linux/minmax.h>
#include <linux/mm.h>
#include <linux/set_memory.h>
#include <linux/vmalloc.h>

#include <asm/linear_map.h>
#include <asm/tlbflush.h>

#include "linear_map.h"

#include <trace/events/linear_map.h>

/* The pages of a vmalloc area that lie together in the linear map too. */
struct run {
	unsigned long start;
	unsigned long end;
};

/* Find the run that begins with a page of an area; return the page after it. */
static unsigned int next_run(const struct vm_struct *area, unsigned int i,
			     unsigned int end, struct run *run)
{
	unsigned int first = i;

	do {
		i++;
	} while (i < end && page_to_pfn(area->pages[i]) ==
			    page_to_pfn(area->pages[first]) + i - first);

	run->start = untagged((unsigned long)page_address(area->pages[first]));
	run->end = run->start + (unsigned long)(i - first) * PAGE_SIZE;

	return i;
}

/**
 * linear_map_change_area() - change the linear alias of a part of a vmalloc area
 * @area: an area with pages
 * @start: first address of the part, page-aligned
 * @size: bytes
 * @set: bits to set in the descriptors
 * @clear: bits to clear in the descriptors
 *
 * Goes by runs of pages that are neighbours in the linear map. First all that has to be
 * split is split, then all is changed; so it is done or not done.
 *
 * Context: as linear_map_change(), but does the TLB maintenance.
 * Return: as linear_map_change().
 */
int linear_map_change_area(const struct vm_struct *area, unsigned long start,
			   unsigned long size, u64 set, u64 clear)
{
	unsigned int first = (untagged(start) - untagged((unsigned long)area->addr)) >> PAGE_SHIFT;
	unsigned int i, end = min(first + (unsigned int)(size >> PAGE_SHIFT), area->nr_pages);
	const struct desc_change change = { .set = set, .clear = clear };
	bool live = linear_map_is_live();
	struct run run;
	int ret = 0;

	if (live) {
		down_read(&linear_map_fold_sem);
		for (i = first; i < end && !ret; ) {
			i = next_run(area, i, end, &run);
			ret = split_ends(run.start, run.end, &change);
			if (ret)
				fold_later(run.start, run.end);
		}
	}

	for (i = first; i < end && !ret; ) {
		bool was_valid = false;

		i = next_run(area, i, end, &run);
		ret = change_kernel_leaves(run.start, run.end, &change, &was_valid);
		flush_tlb_kernel_range(run.start, run.end);
		if (set & PTE_WRITE)
			fold_later(run.start, run.end);
		trace_linear_map_change(run.start, run.end, set, clear, ret);
	}

	if (live)
		up_read(&linear_map_fold_sem);

	return ret;
}

/* Change those leaves of a run of pages that do not have the default. */
static void change_not_default(const struct run *run, const struct desc_change *change)
{
	struct kernel_leaf leaf;
	unsigned long addr, next;

	for (addr = run->start; addr < run->end; addr = next) {
		if (WARN_ON_ONCE(!find_kernel_leaf(addr, &leaf)))
			return;
		next = min(leaf_end(&leaf), run->end);
		if (leaf.desc != linear_map_default_desc(leaf.start, leaf.size))
			change_kernel_range(max(addr, leaf.start), next, change);
	}
}

static void change_area_not_default(const struct vm_struct *area,
				    const struct desc_change *change)
{
	bool live = linear_map_is_live();
	unsigned int i;
	struct run run;

	if (!can_set_direct_map())
		return;

	if (live)
		down_read(&linear_map_fold_sem);
	for (i = 0; i < area->nr_pages; ) {
		i = next_run(area, i, area->nr_pages, &run);
		change_not_default(&run, change);
	}
	if (live)
		up_read(&linear_map_fold_sem);
}

/**
 * set_area_direct_map_invalid() - begin to give back the linear alias of a vmalloc area
 * @area: an area with pages
 *
 * Only leaves whose permission was changed are made invalid: the others are as they
 * should be, and much memory that is freed like this, data of modules for instance, was
 * never protected. As only leaves with the default are folded, one with another
 * permission maps nothing but memory of the area. So it is changed as a whole: nothing is
 * split, and this cannot fail.
 *
 * Context: process context, may sleep. The caller does the TLB maintenance, and then
 *	    calls set_area_direct_map_default().
 */
void set_area_direct_map_invalid(const struct vm_struct *area)
{
	const struct desc_change change = { .clear = PTE_VALID };

	change_area_not_default(area, &change);
}

/**
 * set_area_direct_map_default() - give the linear alias of a vmalloc area its default
 * @area: an area for which set_area_direct_map_invalid() was called
 *
 * Context: process context, may sleep.
 */
void set_area_direct_map_default(const struct vm_struct *area)
{
	const struct desc_change change = {
		.set = PTE_VALID | PTE_WRITE,
		.clear = PTE_RDONLY,
	};

	change_area_not_default(area, &change);
}
