// SPDX-License-Identifier: GPL-2.0-only
/*
 * Adds memory as that of a device, and looks at every struct page of it.
 *
 * With shift=N its pages are compound pages of 2^N pages from the start, as those of a device
 * are that programs map in units of that size (device DAX). The memory goes when the module
 * does. It must be none that the kernel has taken for itself: boot with mem= for less than
 * there is. A struct page that is not what it should be, or memory that does not keep what is
 * written there, is named, and the module does not load.
 */
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>

static unsigned long start;
module_param(start, ulong, 0400);
MODULE_PARM_DESC(start, "physical address of the memory");
static unsigned long mib;
module_param(mib, ulong, 0400);
MODULE_PARM_DESC(mib, "how much it is, in MiB");
static unsigned int shift;
module_param(shift, uint, 0400);
MODULE_PARM_DESC(shift, "order of its compound pages; 0 for none");

static struct dev_pagemap pgmap = { .type = MEMORY_DEVICE_GENERIC, .nr_range = 1 };

/* Is this what the struct page of a frame of device memory has to be? */
static bool page_is_right(unsigned long nth, unsigned long pfn)
{
	struct page *page = pfn_to_page(pfn);
	struct page *head = pfn_to_page(pfn - nth % (1UL << shift));
	bool is_tail = page != head;

	if (!is_zone_device_page(head) || head->pgmap != &pgmap)
		return false;
	if (!shift)
		return !PageCompound(page);
	return compound_head(page) == head && PageTail(page) == is_tail &&
	       PageHead(head) && compound_order(head) == shift;
}

/* The number of the first page that is not right, or how many pages there are. */
static unsigned long check_pages(unsigned long pages)
{
	unsigned long nth, pfn = PHYS_PFN(start);

	for (nth = 0; nth < pages; nth++) {
		if (!page_is_right(nth, pfn + nth))
			return nth;
		if (nth % 1024 == 0)
			cond_resched();
	}
	return pages;
}

static unsigned long *place_in(char *memory, unsigned long unit)
{
	return (unsigned long *)(memory + unit * SZ_2M + unit % 512 * SZ_4K);
}

/* A number in each 2 MiB, at different places; all are written before one is read. */
static bool memory_keeps_numbers(char *memory)
{
	unsigned long unit;

	for (unit = 0; unit < mib / 2; unit++)
		*place_in(memory, unit) = ~unit;
	for (unit = 0; unit < mib / 2; unit++) {
		if (*place_in(memory, unit) != ~unit)
			return false;
	}
	return true;
}

static int __init device_memory_init(void)
{
	unsigned long pages = mib << (20 - PAGE_SHIFT), right;
	char *memory;

	pgmap.range.start = start;
	pgmap.range.end = start + (mib << 20) - 1;
	pgmap.vmemmap_shift = shift;
	memory = memremap_pages(&pgmap, NUMA_NO_NODE);
	if (IS_ERR(memory))
		return PTR_ERR(memory);
	right = check_pages(pages);
	if (right == pages && memory_keeps_numbers(memory))
		return 0;
	pr_err("page %lu of %lu is wrong\n", right, pages);
	memunmap_pages(&pgmap);
	return -EIO;
}
module_init(device_memory_init);

static void __exit device_memory_exit(void)
{
	memunmap_pages(&pgmap);
}
module_exit(device_memory_exit);

MODULE_DESCRIPTION("Adds memory as that of a device, and looks at its struct pages");
MODULE_LICENSE("GPL");
