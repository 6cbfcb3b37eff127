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

static unsigned long start;
module_param(start, ulong, 0444);
MODULE_PARM_DESC(start, "Physical address of the memory");

static unsigned long size;
module_param(size, ulong, 0444);
MODULE_PARM_DESC(size, "Its size");

static unsigned int shift;
module_param(shift, uint, 0444);
MODULE_PARM_DESC(shift, "Order of its compound pages; 0 for none");

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

static bool pages_are_right(void)
{
	unsigned long nth, pfn = PHYS_PFN(start);

	for (nth = 0; nth < PHYS_PFN(size); nth++) {
		if (!page_is_right(nth, pfn + nth)) {
			pr_err("the struct page of page %lu is wrong\n", nth);
			return false;
		}
		if (nth % 1024 == 0)
			cond_resched();
	}
	return true;
}

static unsigned long *place_in(char *memory, unsigned long unit)
{
	return (unsigned long *)(memory + unit * SZ_2M + unit % 512 * SZ_4K);
}

/* A number in each 2 MiB, at different places; all are written before one is read. */
static bool memory_keeps_numbers(char *memory)
{
	unsigned long unit;

	for (unit = 0; unit < size / SZ_2M; unit++)
		*place_in(memory, unit) = ~unit;
	for (unit = 0; unit < size / SZ_2M; unit++) {
		if (*place_in(memory, unit) != ~unit) {
			pr_err("unit %lu does not keep its number\n", unit);
			return false;
		}
	}
	return true;
}

static int __init device_memory_init(void)
{
	char *memory;

	pgmap.range.start = start;
	pgmap.range.end = start + size - 1;
	pgmap.vmemmap_shift = shift;
	memory = memremap_pages(&pgmap, NUMA_NO_NODE);
	if (IS_ERR(memory))
		return PTR_ERR(memory);
	if (pages_are_right() && memory_keeps_numbers(memory))
		return 0;
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
