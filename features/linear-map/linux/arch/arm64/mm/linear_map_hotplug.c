// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory that is added to the linear map while the system runs, and removed again.
 *
 * What is added gets all tables that it may need before the first of them is used, so
 * there is nothing to unwind if one cannot be had. What is removed is cut out of the
 * leaves that map more than it, where leaves can be split; elsewhere its removal is
 * refused.
 */
#include <linux/memory_hotplug.h>
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

/**
 * linear_map_prepare_remove() - memory is about to be unmapped
 * @start: its linear address
 * @size: bytes
 *
 * A leaf that maps more than this memory is split first.
 *
 * Context: process context, may sleep; memory hotplug lock held, which keeps folding
 *	    out.
 */
void linear_map_prepare_remove(unsigned long start, u64 size)
{
	unsigned long end = start + size;

	/* It is too late to fail. What takes a pause was done before: see below. */
	if (linear_map_mode == LINEAR_MAP_LIVE) {
		const struct address_range range = { .start = start, .end = end };

		WARN_ON_ONCE(split_all_ends_live(linear_map_next_only, &range, NULL,
						 GFP_PGTABLE_KERNEL | __GFP_NOFAIL));
	}

	linear_map_count_memory(start, size, -1);
}

/* Is there a leaf that maps more than this memory? */
static bool is_crossed(unsigned long start, unsigned long end)
{
	struct kernel_leaf leaf;

	return (find_kernel_leaf(start, &leaf) && leaf_crosses(&leaf, start)) ||
	       (find_kernel_leaf(end - 1, &leaf) && leaf_crosses(&leaf, end));
}

/*
 * Split at both ends of what will be removed, in a pause, which may fail. A leaf that is crossed
 * is larger than a section, and of memory that can be removed no such leaf is made by folding: see
 * is_boot_memory(). So what is split here stays so until it is removed.
 */
static int split_to_remove(unsigned long start, unsigned long end)
{
	int ret = 0;

	down_read(&linear_map_fold_sem);
	if (is_crossed(start, end))
		ret = split_ends(start, end, NULL);
	up_read(&linear_map_fold_sem);

	/*
	 * offline_and_remove_memory() hands these two on. __remove_memory(), which ACPI calls, is a
	 * BUG() for any error; but ACPI removes what it has added, and a leaf of memory that was
	 * added does not cross that (see is_boot_memory()).
	 */
	return ret && ret != -ENOMEM ? -EBUSY : ret;
}

/**
 * arch_prepare_remove_memory() - have memory unmapped without more than that, or refuse it
 * @start: its physical address
 * @size: bytes
 *
 * Where leaves cannot be split, one that maps more than this memory could only be cleared
 * as a whole, and what else it maps is still in use. What is removed as it was added has
 * leaves of its own. Where they are split in a pause, that is done here, because it can fail.
 *
 * Context: process context; the memory is offline, and cannot be brought online meanwhile.
 * Return: 0; -EBUSY if leaves cannot be split, or CPUs not be paused; -ENOMEM if there is no
 *	   memory for a table.
 */
int arch_prepare_remove_memory(u64 start, u64 size)
{
	unsigned long first = __phys_to_virt(start), end = first + size;

	if (linear_map_mode == LINEAR_MAP_LIVE)
		return 0;
	if (linear_map_is_paused())
		return split_to_remove(first, end);

	return is_crossed(first, end) ? -EBUSY : 0;
}
