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

/**
 * linear_map_next_run() - the runs of pages of an area that are neighbours in the linear map
 * @what: a struct area_part
 * @position: how many of its pages the runs before had
 * @run: where to put the next run
 *
 * Return: false if there is none left.
 */
bool linear_map_next_run(const void *what, unsigned int *position, struct address_range *run)
{
	const struct area_part *part = what;
	unsigned int first = part->first + *position, i = first;
	struct page **pages = part->area->pages;

	if (i >= part->end)
		return false;

	do {
		i++;
	} while (i < part->end && page_to_pfn(pages[i]) == page_to_pfn(pages[first]) + i - first);

	run->start = __tag_reset((unsigned long)page_address(pages[first]));
	run->end = run->start + (unsigned long)(i - first) * PAGE_SIZE;
	*position = i - part->first;

	return true;
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
 * split is split, then all is changed. So it is done or not done, as all of an area's pages
 * are mapped.
 *
 * Context: as linear_map_change(), but does the TLB maintenance.
 * Return: as linear_map_change().
 */
int linear_map_change_area(const struct vm_struct *area, unsigned long start,
			   unsigned long size, u64 set, u64 clear)
{
	unsigned long begin = __tag_reset((unsigned long)area->addr);
	unsigned int first = (__tag_reset(start) - begin) >> PAGE_SHIFT;
	const struct area_part part = {
		.area = area,
		.first = first,
		.end = min(first + (unsigned int)(size >> PAGE_SHIFT), area->nr_pages),
	};
	const struct desc_change change = { .set = set, .clear = clear };
	bool is_split = linear_map_is_split();
	struct address_range run;
	unsigned int position;
	int ret = 0;

	if (is_split) {
		down_read(&linear_map_fold_sem);
		ret = split_all_ends(linear_map_next_run, &part, &change);
		for (position = 0; ret && linear_map_next_run(&part, &position, &run); )
			fold_later(run.start, run.end);
	}

	for (position = 0; !ret && linear_map_next_run(&part, &position, &run); ) {
		bool was_valid = false;

		ret = change_kernel_leaves(run.start, run.end, &change, &was_valid);
		flush_tlb_kernel_range(run.start, run.end);
		if (set & PTE_WRITE)
			fold_later(run.start, run.end);
		trace_linear_map_change(run.start, run.end, set, clear, ret);
	}

	if (is_split)
		up_read(&linear_map_fold_sem);

	return ret;
}

/* Change those leaves of a run of pages that do not have the default. */
static void change_not_default(const struct address_range *run, const struct desc_change *change)
{
	struct kernel_leaf leaf;
	unsigned long addr, next;

	for (addr = run->start; addr < run->end; addr = next) {
		if (WARN_ON_ONCE(!find_kernel_leaf(addr, &leaf)))
			return;
		next = min(leaf_end(&leaf), run->end);
		/*
		 * A block without the access flag is being split by somebody else, who has
		 * cleared it for a moment (linear_map_access_flag.c): it is not protected. The
		 * lock that would tell them apart may be held for as long as a pause takes.
		 */
		if ((leaf.desc | PTE_AF) != linear_map_default_desc(leaf.start, leaf.size)) {
			change_whole_leaves(max(addr, leaf.start), next, change);
		} else if (leaf.size == LEAF_PTE && (change->set & PTE_WRITE)) {
			/*
			 * Split for a change that did not come, as when a module could not be
			 * loaded for want of memory. Nobody else would have it folded.
			 */
			fold_later(leaf.start, next);
		}
	}
}

static void change_area_not_default(const struct vm_struct *area,
				    const struct desc_change *change)
{
	const struct area_part all = { .area = area, .end = area->nr_pages };
	bool is_split = linear_map_is_split();
	unsigned int position = 0;
	struct address_range run;

	if (!can_set_direct_map())
		return;

	if (is_split)
		down_read(&linear_map_fold_sem);
	while (linear_map_next_run(&all, &position, &run))
		change_not_default(&run, change);
	if (is_split)
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
 * split, and this cannot fail. The access flag, which a block may lack while it is split for
 * somebody else, is no permission.
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
