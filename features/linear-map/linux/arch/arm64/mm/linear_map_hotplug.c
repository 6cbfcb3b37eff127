// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory that is added to the linear map while the system runs, and removed again.
 *
 * What is added gets all tables that it may need before the first of them is used, so
 * there is nothing to unwind if one cannot be had. What is removed has leaves of its own.
 */
#include <kunit/static_stub.h>

#include <linux/mm.h>

#include <asm/kernel-pgtable.h>
#include <asm/linear_map.h>
#include <asm/pgalloc.h>

#include "linear_map.h"

/**
 * linear_map_prepare_add() - allocate the tables that new memory may need
 * @start: its physical address
 * @size: bytes
 *
 * Context: process context, may sleep; memory hotplug lock held.
 * Return: 0, or -ENOMEM with nothing allocated.
 */
int linear_map_prepare_add(u64 start, u64 size)
{
	unsigned long addr = __phys_to_virt(start), end = addr + size;
	unsigned long nr = SPAN_NR_ENTRIES(addr, end, PUD_SHIFT) +
			   SPAN_NR_ENTRIES(addr, end, P4D_SHIFT) +
			   SPAN_NR_ENTRIES(addr, end, PGDIR_SHIFT);

	/* In blocks, tables of pages are needed at most at the two ends. */
	nr += linear_map_in_pages() ? SPAN_NR_ENTRIES(addr, end, PMD_SHIFT) : 2;

	return alloc_spare_tables(nr);
}

/**
 * linear_map_take_table() - hand out a table for new memory
 * @shift: what an entry of it will map; all tables are pages
 *
 * Context: between linear_map_prepare_add() and linear_map_added().
 * Return: its physical address.
 */
phys_addr_t linear_map_take_table(int shift)
{
	struct ptdesc *table = take_spare_table();

	if (WARN_ON_ONCE(!table))
		table = pagetable_alloc(GFP_KERNEL | __GFP_NOFAIL, 0);

	return __pa(ptdesc_address(table));
}

/**
 * linear_map_added() - memory has been painted: count it, free what was not needed
 * @start: its physical address
 * @size: bytes
 *
 * Context: process context; memory hotplug lock held.
 */
void linear_map_added(u64 start, u64 size)
{
	free_spare_tables();
	linear_map_count_memory(__phys_to_virt(start), size, 1);
}

/* Does a leaf map more than this memory? */
static bool is_crossed(unsigned long start, unsigned long end)
{
	struct kernel_leaf leaf;

	return (find_kernel_leaf(start, &leaf) && leaf_crosses(&leaf, start)) ||
	       (find_kernel_leaf(end - 1, &leaf) && leaf_crosses(&leaf, end));
}

/* Tests count it in place of the log. */
void report_removal_of_part(unsigned long start, unsigned long end)
{
	KUNIT_STATIC_STUB_REDIRECT(report_removal_of_part, start, end);

	WARN_ONCE(1, "linear map: a leaf maps more than the memory that is removed, %#llx to %#llx, which stays mapped\n",
		  (u64)__virt_to_phys(start), (u64)__virt_to_phys(end));
}

/**
 * linear_map_prepare_remove() - memory is about to be unmapped: count it out
 * @start: its linear address
 * @size: bytes
 *
 * Memory is removed in the parts in which it was added, and no leaf maps more than one of
 * these: __create_pgd_mapping() makes leaves within a part, and for folding see
 * is_boot_memory(). If a leaf did, clearing it would take away other memory, which is in use.
 * To leave all of it mapped does less harm. It is too late to refuse the removal.
 *
 * Context: process context, may sleep; memory hotplug lock held, which keeps folding
 *	    out.
 * Return: true if it can be unmapped; false, with a warning, if a leaf maps more than it.
 */
bool linear_map_prepare_remove(unsigned long start, u64 size)
{
	if (is_crossed(start, start + size)) {
		report_removal_of_part(start, start + size);
		return false;
	}

	linear_map_count_memory(start, size, -1);

	return true;
}
