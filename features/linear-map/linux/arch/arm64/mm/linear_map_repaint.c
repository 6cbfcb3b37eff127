// SPDX-License-Identifier: GPL-2.0-only
/*
 * Another linear map, if a secondary CPU cannot live with sizes that change.
 *
 * The boot CPU has painted the linear map with blocks because it can split them live.
 * When all CPUs have started, one may turn out to lack that. Then the map has to become
 * what it would be if the boot CPU had lacked it, before the first permission of it has to
 * change: without contiguous ranges, if sizes can be changed in pauses from now on, or else
 * everything mapped with pages.
 *
 * A CPU that has not started (maxcpus=) may turn out later to lack the feature. It could be
 * refused then, but only after it has run for a moment on the kernel's tables, which map its stack
 * and its per-CPU data. Until it is judged, nobody may change the size of a leaf of the linear map
 * live, nor a contiguous range entry by entry. With live changes everybody who
 * changes a permission would therefore have to wait for CPU hotplug, and that includes vfree(),
 * which cannot fail. No CPU can come online during a pause. So, if not all CPUs have started,
 * sizes are changed in pauses from now on, too, and no CPU is refused: see has_bbml2_noabort().
 * Where isolated CPUs are not to be paused, everything is mapped with pages then.
 *
 * It is the boot CPU that splits, live, for it can. The others must not notice. To stop
 * them is not enough: a CPU also translates what it speculates on, and where its stack
 * is. So they wait in the ID map, with the empty table in TTBR1 (linear_map_park.S), and
 * all TLBs are invalidated before they go on. The tables are allocated before anything
 * is stopped. A failure is the end of the boot, and says so.
 *
 * It happens once, before user space, before any module, and before memory is added.
 */
#define pr_fmt(fmt) "linear map: " fmt

#include <linux/cpumask.h>
#include <linux/init.h>
#include <linux/memblock.h>
#include <linux/mm.h>
#include <linux/smp.h>
#include <linux/stop_machine.h>

#include <asm/bbml2.h>
#include <asm/daifflags.h>
#include <asm/linear_map.h>
#include <asm/mmu_context.h>
#include <asm/pgtable-transition.h>
#include <asm/sections.h>
#include <asm/tlbflush.h>

#include "linear_map.h"

/**
 * linear_map_map_park_flag() - let CPUs that wait in the ID map write their counter
 *
 * Context: the boot CPU, right after the ID map was made; memory comes from memblock.
 */
void __init linear_map_map_park_flag(void)
{
	u64 pa = __pa_symbol(&linear_map_parked);
	u64 ptep;

	/* Only what may be repainted needs somebody parked. */
	if (linear_map_mode != LINEAR_MAP_LIVE)
		return;

	ptep = memblock_phys_alloc((IDMAP_LEVELS - 1) * PAGE_SIZE, PAGE_SIZE);
	if (!ptep)
		panic("linear map: no memory to map %s\n", "linear_map_parked");
	memset(__va(ptep), 0, (IDMAP_LEVELS - 1) * PAGE_SIZE);

	__pi_map_range(&ptep, pa, pa + sizeof(linear_map_parked), pa, PAGE_KERNEL,
		       IDMAP_ROOT_LEVEL, (pte_t *)idmap_pg_dir, false,
		       __phys_to_virt(ptep) - ptep);
}

/* Allocate as many tables as it takes to map everything with pages. */
static void __init allocate_tables(void)
{
	unsigned long blocks = linear_map_bytes(LEAF_PMD) + linear_map_bytes(LEAF_CONT_PMD);
	unsigned long nr = blocks / PMD_SIZE;

	blocks = linear_map_bytes(LEAF_PUD);
	nr += blocks / PUD_SIZE + blocks / PMD_SIZE;

	if (alloc_spare_tables(nr))
		panic("linear map: no memory for %lu tables to repaint it with pages\n", nr);
}

static void *__init take_table(void)
{
	struct ptdesc *table = take_spare_table();

	if (!table)
		panic("linear map: more tables needed to repaint it than blocks were counted\n");

	return ptdesc_address(table);
}

/* The alias of the kernel's text and read-only data: never split, so blocks always. */
static bool __init is_image_alias(unsigned long addr)
{
	return addr >= (unsigned long)lm_alias(_text) &&
	       addr < (unsigned long)lm_alias(__init_begin);
}

/* To pages, or only contiguous ranges to what they consist of? */
static bool to_pages __initdata;

/* Must a leaf be split, and into what? Nothing is made contiguous on the way. */
static bool __init is_too_large(enum leaf_size size, enum leaf_size *smaller)
{
	*smaller = size > LEAF_PMD ? LEAF_PMD : LEAF_PTE;

	return to_pages ? size != LEAF_PTE : leaf_is_contiguous(size);
}

/*
 * Split everything that is too large. Only this CPU is using the tables, and its TLB takes the
 * changes.
 *
 * Nothing is made contiguous on the way: a block becomes a complete table of pages, for
 * which one entry that is in use has to be written, with its barriers. All others wait for
 * this, and it is done for every 2 MiB of memory, so each entry of a page is written once. What is
 * larger than 2 MiB becomes blocks of 2 MiB first.
 */
static void __init split_all(unsigned long start, unsigned long end)
{
	struct kernel_leaf leaf;
	unsigned long addr, next;
	enum leaf_size smaller;

	for (addr = start; addr < end; addr = next) {
		if (is_image_alias(addr) || !find_kernel_leaf(addr, &leaf)) {
			next = (addr | ~CONT_PTE_MASK) + 1;
			continue;
		}
		next = leaf_end(&leaf);
		while (is_too_large(leaf.size, &smaller)) {
			void *table = split_needs_table(leaf.size) ? take_table() : NULL;

			/* What the smallest leaf maps that this address is split from. */
			next = leaf_end(&leaf);
			__split_kernel_leaf(&leaf, smaller, table);
			find_kernel_leaf(addr, &leaf);
		}
	}
}

/* The boot CPU's part: wait until all others are parked, repaint, let them go. */
static void __init repaint(unsigned int others)
{
	phys_addr_t start, end;
	u64 i;

	/* Pairs with the store-release of each CPU that parks. */
	while (smp_load_acquire(&linear_map_parked) != others)
		cpu_relax();

	pgtable_transition_pause();
	for_each_mem_range(i, &start, &end)
		split_all(__phys_to_virt(PAGE_ALIGN(start)), __phys_to_virt(end & PAGE_MASK));

	/* No TLB may hold a block when its CPU goes on. */
	flush_tlb_all();
	pgtable_transition_resume();

	/* Pairs with the load-acquire that they spin on. */
	smp_store_release(&linear_map_parked, 0);
	dsb(ishst);
	sev();
}

static int __init __nocfi repaint_cpu(void *unused)
{
	unsigned long flags;

	/* The one that painted: no other is known to have the feature. */
	if (!smp_processor_id()) {
		repaint(num_online_cpus() - 1);
		return 0;
	}

	/* Not even an NMI or an SError could be taken: the vectors are not mapped. */
	flags = local_daif_save();
	cpu_install_idmap();
	((park_fn *)__pa_symbol(linear_map_park))((u32 *)__pa_symbol(&linear_map_parked));
	cpu_uninstall_idmap();
	local_daif_restore(flags);

	return 0;
}

/**
 * linear_map_repaint() - make the linear map fit for CPUs that cannot split it live
 * @with_pages: true if sizes of leaves cannot be changed any more, so that all of it is to be
 *		pages; else it loses its contiguous ranges
 *
 * Context: the boot CPU, process context, in LINEAR_MAP_LIVE, when it is known that all CPUs can be
 *	    stopped; system capabilities are final, there is no user space.
 */
void __init linear_map_repaint(bool with_pages)
{
	to_pages = with_pages;
	if (to_pages)
		allocate_tables();
	stop_machine(repaint_cpu, NULL, cpu_online_mask);
	linear_map_mode = to_pages ? LINEAR_MAP_PAGES : LINEAR_MAP_PAUSED;

	/* The blocks of the image's alias were counted too. */
	free_spare_tables();
}
