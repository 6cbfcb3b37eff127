// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of the linear map in blocks: splitting, changing, folding back.
 *
 * They work on memory of their own, taken in large contiguous pieces, whose part of the
 * live linear map they split. Where the system does not split, they are skipped.
 */
#include <kunit/static_stub.h>
#include <kunit/test.h>

#include <linux/completion.h>
#include <linux/cpu.h>
#include <linux/gfp.h>
#include <linux/kfence.h>
#include <linux/kthread.h>
#include <linux/log2.h>
#include <linux/memblock.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/prandom.h>
#include <linux/set_memory.h>
#include <linux/smp.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>
#include <linux/vmstat.h>

#include <asm/bbml2.h>
#include <asm/cputype.h>
#include <asm/linear_map.h>
#include <asm/mmu_context.h>
#include <asm/sections.h>
#include <asm/tlbflush.h>
#include <asm/trans_pgd.h>

#include "linear_map.h"

/* What the hardware translates an address to, if it may be read; or -1. */
static phys_addr_t hardware_pa(unsigned long addr)
{
	unsigned long flags;
	u64 par;

	local_irq_save(flags);
	asm volatile("at s1e1r, %0" : : "r" (addr));
	isb();
	par = read_sysreg_par();
	local_irq_restore(flags);

	if (par & SYS_PAR_EL1_F)
		return -1;

	return (par & GENMASK_ULL(51, 12)) | (addr & ~PAGE_MASK & GENMASK(11, 0));
}

/* A piece of the linear map, and its mapping when the test began. */
struct region {
	struct page *pages;
	unsigned long start;
	unsigned long size;
};

static void free_region(void *data)
{
	struct region *region = data;

	linear_map_change(region->start, region->size, PTE_VALID | PTE_WRITE, PTE_RDONLY);
	flush_tlb_kernel_range(region->start, region->start + region->size);
	free_contig_range(page_to_pfn(region->pages), region->size / PAGE_SIZE);
}

/* Make the leaves of a region as large as they get. */
static void fold_all(const struct region *region)
{
	linear_map_fold_enable(true);
	linear_map_fold_later(region->start, region->start + region->size);
	linear_map_fold_now();
	linear_map_fold_enable(false);
}

/* Split until a leaf starts at an address. */
static int split_at(unsigned long addr)
{
	const struct address_range nothing = { .start = addr, .end = addr };

	return split_all_ends(linear_map_next_only, &nothing, NULL);
}

/*
 * Take memory that is mapped with leaves of at most @largest. Its physical address is
 * aligned to its size. Linear addresses are only known to be congruent to physical ones
 * modulo the largest block of the painted map, which with 64 KiB pages is PMD_SIZE.
 */
static struct region *take_region(struct kunit *test, unsigned long size,
				  enum leaf_size largest)
{
	struct region *region = kunit_kzalloc(test, sizeof(*region), GFP_KERNEL);
	struct kernel_leaf leaf;
	unsigned long addr;

	if (!linear_map_is_split() ||
	    (!linear_map_is_paused() && !system_supports_bbml2_noabort()))
		kunit_skip(test, "the linear map is not split on this system");
	if (linear_map_is_paused() && leaf_is_contiguous(largest))
		kunit_skip(test, "the linear map has no contiguous ranges on this system");

	KUNIT_ASSERT_NOT_NULL(test, region);
	region->size = size;
	region->pages = alloc_contig_pages(size / PAGE_SIZE, GFP_KERNEL | __GFP_NOWARN,
					   first_online_node, NULL);
	/* Any system has 8 MiB. Without them the test fails: nobody would notice a skip. */
	if (!region->pages && size > SZ_8M)
		kunit_skip(test, "no %lu MiB of contiguous memory", size / SZ_1M);
	KUNIT_ASSERT_NOT_NULL(test, region->pages);
	region->start = (unsigned long)page_address(region->pages);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, free_region, region), 0);
	KUNIT_ASSERT_TRUE(test, IS_ALIGNED(region->start, min(size, PMD_SIZE)));

	fold_all(region);

	/* A leaf that has to end after a smaller piece than it maps is split. */
	for (addr = region->start; addr < region->start + size; ) {
		KUNIT_ASSERT_TRUE(test, find_kernel_leaf(addr, &leaf));
		if (leaf.size <= largest)
			addr = leaf.start + leaf_bytes(leaf.size);
		else if (leaf.start == addr)
			KUNIT_ASSERT_EQ(test, split_at(addr + leaf_bytes(leaf.size - 1)),
					0);
		else
			KUNIT_ASSERT_EQ(test, split_at(addr), 0);
	}

	return region;
}

/* Count the leaves of a region by size. */
static void histogram(struct kunit *test, const struct region *region,
		      unsigned int count[NR_LEAF_SIZES])
{
	struct kernel_leaf leaf;
	unsigned long addr;

	memset(count, 0, NR_LEAF_SIZES * sizeof(*count));
	for (addr = region->start; addr < region->start + region->size;
	     addr = leaf.start + leaf_bytes(leaf.size)) {
		KUNIT_ASSERT_TRUE(test, find_kernel_leaf(addr, &leaf));
		count[leaf.size]++;
	}
}

/* A TLB drops the low bits of both addresses of a leaf: they have to be 0 in both. */
static void leaves_are_aligned_in_both_addresses(struct kunit *test)
{
	const unsigned long start = PAGE_OFFSET;
	const phys_addr_t pa = 0;
	enum leaf_size size;

	for (size = LEAF_PTE; size < NR_LEAF_SIZES; size++) {
		KUNIT_EXPECT_TRUE(test, leaf_is_aligned(size, start, pa));
		KUNIT_EXPECT_FALSE(test, leaf_is_aligned(size, start, pa + leaf_bytes(size) / 2));
		KUNIT_EXPECT_FALSE(test, leaf_is_aligned(size, start + leaf_bytes(size) / 2, pa));
		/* Congruent is not enough. */
		KUNIT_EXPECT_FALSE(test, leaf_is_aligned(size, start + leaf_bytes(size) / 2,
							 pa + leaf_bytes(size) / 2));
	}
}

/* No leaf of the linear map is larger than the alignment of its addresses allows. */
static void painted_leaves_are_aligned(struct kunit *test)
{
	phys_addr_t start = PFN_PHYS(min_low_pfn), end = PFN_PHYS(max_pfn), pa;
	unsigned long step = PMD_SIZE, found = 0;
	struct kernel_leaf leaf;

	for (pa = ALIGN(start, step); pa < end; pa += step) {
		unsigned long addr = __phys_to_virt(pa);

		if (!find_kernel_leaf(addr, &leaf))
			continue;
		found++;
		if (!leaf_is_aligned(leaf.size, leaf.start, __virt_to_phys(leaf.start))) {
			KUNIT_FAIL(test, "leaf of %lu MiB at %lx maps %llx",
				   leaf_bytes(leaf.size) / SZ_1M, leaf.start,
				   (u64)__virt_to_phys(leaf.start));
			return;
		}
	}
	KUNIT_EXPECT_GT(test, found, 0);
}

/*
 * Of 8 MiB in blocks of 2 MiB, [2052K, 6208K) is cut out. Only the two blocks at its ends
 * are split. With other page sizes the numbers differ, so it is for 4 KiB pages.
 */
static void splits_only_at_the_ends(struct kunit *test)
{
	struct region *region;
	unsigned int count[NR_LEAF_SIZES];

	if (PAGE_SIZE != SZ_4K)
		kunit_skip(test, "for 4 KiB pages");
	region = take_region(test, SZ_8M, LEAF_PMD);
	histogram(test, region, count);
	KUNIT_ASSERT_EQ(test, count[LEAF_PMD], 4);

	KUNIT_EXPECT_EQ(test, split_at(region->start + 2052 * SZ_1K), 0);
	KUNIT_EXPECT_EQ(test, split_at(region->start + 6208 * SZ_1K), 0);

	histogram(test, region, count);
	KUNIT_EXPECT_EQ(test, count[LEAF_PMD], 2);
	KUNIT_EXPECT_EQ(test, count[LEAF_CONT_PMD], 0);
	if (linear_map_is_paused()) {
		KUNIT_EXPECT_EQ(test, count[LEAF_PTE], 2 * PTRS_PER_PTE);
		KUNIT_EXPECT_EQ(test, count[LEAF_CONT_PTE], 0);
	} else {
		KUNIT_EXPECT_EQ(test, count[LEAF_PTE], 16);
		KUNIT_EXPECT_EQ(test, count[LEAF_CONT_PTE], 31 + 32);
	}
}

static void leaf_start_needs_no_split(struct kunit *test)
{
	struct region *region = take_region(test, PMD_SIZE, LEAF_PMD);
	unsigned int count[NR_LEAF_SIZES];

	KUNIT_EXPECT_EQ(test, split_at(region->start), 0);
	histogram(test, region, count);
	KUNIT_EXPECT_EQ(test, count[LEAF_PMD], 1);
}

static void unmapped_is_an_error(struct kunit *test)
{
	take_region(test, PMD_SIZE, LEAF_PUD);

	/* The guard page between the linear map and what follows it. */
	KUNIT_EXPECT_EQ(test, split_at(VMEMMAP_END + PAGE_SIZE), -EINVAL);
	KUNIT_EXPECT_EQ(test, linear_map_change(VMEMMAP_END, PAGE_SIZE, PTE_RDONLY, PTE_WRITE),
			-EINVAL);
}

/*
 * The property test: random splits and changes against a model that knows, for each
 * page, its permission, and for each address, whether somebody asked for a boundary
 * there.
 */
struct model {
	unsigned long nr;
	enum leaf_size *initial;	/* size of leaf when the test began, by page */
	bool *boundary;
	bool *read_only;
};

/* The largest leaf around a page that no boundary cuts. */
static enum leaf_size expected_size(const struct model *model, unsigned long page)
{
	enum leaf_size size;

	for (size = model->initial[page]; size > LEAF_PTE; size--) {
		unsigned long nr = leaf_bytes(size) / PAGE_SIZE;
		unsigned long first = round_down(page, nr), i;

		if (linear_map_is_paused() && leaf_is_contiguous(size))
			continue;
		for (i = first + 1; i < first + nr && !model->boundary[i]; i++)
			;
		if (i == first + nr)
			break;
	}

	return size;
}

static void compare(struct kunit *test, const struct region *region, const struct model *model,
		    const char *when, unsigned int round)
{
	unsigned long page, addr;

	for (page = 0; page < model->nr; page++) {
		struct kernel_leaf leaf;
		pteval_t expected;

		addr = region->start + page * PAGE_SIZE;
		if (!find_kernel_leaf(addr, &leaf)) {
			KUNIT_FAIL(test, "%s %u: page %lu is not mapped", when, round, page);
			return;
		}

		/* The same address, and the same attributes but for what was changed. */
		expected = linear_map_default_desc(leaf.start, leaf.size);
		if (model->read_only[page])
			expected = (expected & ~PTE_WRITE) | PTE_RDONLY;
		if (leaf.desc != expected || leaf.size != expected_size(model, page)) {
			KUNIT_FAIL(test, "%s %u: page %lu: size %d not %d, %llx not %llx",
				   when, round, page, leaf.size, expected_size(model, page),
				   leaf.desc, expected);
			return;
		}
		if (hardware_pa(addr) != __virt_to_phys(addr)) {
			KUNIT_FAIL(test, "%s %u: page %lu translates to another address", when,
				   round, page);
			return;
		}
	}
}

static void random_splits_match_a_model(struct kunit *test)
{
	/* KASAN looks at each access of the comparison, which is of every page in every round. */
	const unsigned int rounds = IS_ENABLED(CONFIG_KASAN) ? 15 : 60;
	struct region *region = take_region(test, max(SZ_8M, PMD_SIZE), LEAF_PMD);
	struct rnd_state rnd;
	struct model model = { .nr = region->size / PAGE_SIZE };
	unsigned int round;
	unsigned long page;

	model.initial = kunit_kcalloc(test, model.nr, sizeof(*model.initial), GFP_KERNEL);
	model.boundary = kunit_kcalloc(test, model.nr + 1, sizeof(bool), GFP_KERNEL);
	model.read_only = kunit_kcalloc(test, model.nr, sizeof(bool), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, model.initial);
	KUNIT_ASSERT_NOT_NULL(test, model.boundary);
	KUNIT_ASSERT_NOT_NULL(test, model.read_only);

	for (page = 0; page < model.nr; page++) {
		struct kernel_leaf leaf;

		KUNIT_ASSERT_TRUE(test, find_kernel_leaf(region->start + page * PAGE_SIZE, &leaf));
		model.initial[page] = leaf.size;
	}

	prandom_seed_state(&rnd, 6);
	compare(test, region, &model, "begin", 0);
	for (round = 0; round < rounds && !test->status; round++) {
		unsigned long first = prandom_u32_state(&rnd) % model.nr;
		unsigned long most = min(model.nr - first, 1UL << prandom_u32_state(&rnd) % 12);
		unsigned long nr = 1 + prandom_u32_state(&rnd) % most, i;
		unsigned long start = region->start + first * PAGE_SIZE;
		bool read_only = prandom_u32_state(&rnd) & 1;
		bool at_start, at_end;

		/* Where nothing changes at an end, nothing is split there. */
		at_start = model.read_only[first] != read_only;
		at_end = model.read_only[first + nr - 1] != read_only;
		KUNIT_EXPECT_EQ(test, linear_map_change(start, nr * PAGE_SIZE,
							read_only ? PTE_RDONLY : PTE_WRITE,
							read_only ? PTE_WRITE : PTE_RDONLY), 0);
		flush_tlb_kernel_range(start, start + nr * PAGE_SIZE);

		model.boundary[first] |= at_start;
		model.boundary[first + nr] |= at_end;
		for (i = 0; i < nr; i++)
			model.read_only[first + i] = read_only;
		compare(test, region, &model, "round", round);
	}
}

static unsigned int leaves_set;

static void count_set_leaves(enum leaf_size size, void *entry, pteval_t desc)
{
	leaves_set++;
}

/* As the map is repainted: no entry of the new table is written when it is in use. */
static void blocks_split_straight_to_pages(struct kunit *test)
{
	struct region *region = take_region(test, PMD_SIZE, LEAF_PMD);
	struct ptdesc *table = pagetable_alloc(GFP_KERNEL, 0);
	struct kernel_leaf leaf;
	unsigned long addr;

	KUNIT_ASSERT_NOT_NULL(test, table);
	if (linear_map_is_paused()) {
		pagetable_free(table);
		kunit_skip(test, "nothing is split live on this system");
	}
	KUNIT_ASSERT_TRUE(test, find_kernel_leaf(region->start, &leaf));
	KUNIT_ASSERT_EQ(test, leaf.size, LEAF_PMD);

	leaves_set = 0;
	kunit_activate_static_stub(test, set_kernel_leaf, count_set_leaves);
	mutex_lock(&linear_map_split_lock);
	__split_kernel_leaf(&leaf, LEAF_PTE, ptdesc_address(table));
	flush_tlb_all();
	mutex_unlock(&linear_map_split_lock);
	kunit_deactivate_static_stub(test, set_kernel_leaf);

	KUNIT_EXPECT_EQ(test, leaves_set, 0);
	for (addr = region->start; addr < region->start + region->size; addr += PAGE_SIZE) {
		KUNIT_ASSERT_TRUE(test, find_kernel_leaf(addr, &leaf));
		KUNIT_ASSERT_EQ(test, leaf.size, LEAF_PTE);
		KUNIT_ASSERT_EQ(test, leaf.desc, linear_map_default_desc(addr, LEAF_PTE));
		KUNIT_ASSERT_EQ(test, hardware_pa(addr), __virt_to_phys(addr));
	}
}

#ifdef CONFIG_MEMORY_HOTPLUG
static unsigned int parts_reported;

static void count_removal_of_part(unsigned long start, unsigned long end)
{
	parts_reported++;
}

/* All that counts as mapped, whatever is split meanwhile. */
static unsigned long counted_bytes(void)
{
	unsigned long bytes = 0;
	enum leaf_size size;

	mutex_lock(&linear_map_split_lock);
	for (size = LEAF_PTE; size < NR_LEAF_SIZES; size++)
		bytes += linear_map_bytes(size);
	mutex_unlock(&linear_map_split_lock);

	return bytes;
}

/* Nobody removes a part of what a leaf maps. Should it be tried, all of the leaf stays. */
static void a_part_of_a_leaf_is_not_removed(struct kunit *test)
{
	phys_addr_t pa = PFN_PHYS(max_pfn) - 1;
	struct kernel_leaf leaf, after;
	unsigned long bytes, half;

	/* From the end of memory, where least of it is in smaller leaves. */
	while (!find_kernel_leaf(__phys_to_virt(pa), &leaf) || leaf.size < LEAF_PMD) {
		if (pa < PFN_PHYS(min_low_pfn) + PMD_SIZE)
			kunit_skip(test, "the linear map has no blocks");
		pa -= PMD_SIZE;
	}
	half = leaf_bytes(leaf.size) / 2;

	parts_reported = 0;
	kunit_activate_static_stub(test, report_removal_of_part, count_removal_of_part);
	mem_hotplug_begin();
	bytes = counted_bytes();
	KUNIT_EXPECT_FALSE(test, linear_map_prepare_remove(leaf.start, half));
	KUNIT_EXPECT_FALSE(test, linear_map_prepare_remove(leaf.start + half, half));
	KUNIT_EXPECT_FALSE(test, linear_map_prepare_remove(leaf.start + half, PAGE_SIZE));
	KUNIT_EXPECT_EQ(test, parts_reported, 3);
	KUNIT_EXPECT_EQ(test, counted_bytes(), bytes);
	KUNIT_EXPECT_TRUE(test, find_kernel_leaf(leaf.start + half, &after));
	KUNIT_EXPECT_EQ(test, after.start, leaf.start);
	KUNIT_EXPECT_EQ(test, after.size, leaf.size);
	KUNIT_EXPECT_EQ(test, after.desc, leaf.desc);

	/* All of it might be. It is not unmapped here, so it is counted in again. */
	KUNIT_EXPECT_TRUE(test, linear_map_prepare_remove(leaf.start, 2 * half));
	KUNIT_EXPECT_EQ(test, parts_reported, 3);
	KUNIT_EXPECT_EQ(test, counted_bytes(), bytes - 2 * half);
	linear_map_count_memory(leaf.start, 2 * half, 1);
	mem_hotplug_done();
	kunit_deactivate_static_stub(test, report_removal_of_part);
}
#endif

static void blocks_change_as_blocks(struct kunit *test)
{
	struct region *region = take_region(test, max(SZ_8M, PMD_SIZE), LEAF_PMD);
	unsigned int before[NR_LEAF_SIZES], after[NR_LEAF_SIZES];
	struct kernel_leaf leaf;
	unsigned long addr;

	histogram(test, region, before);
	KUNIT_EXPECT_EQ(test, linear_map_change(region->start, region->size, PTE_RDONLY,
						PTE_WRITE), 0);
	histogram(test, region, after);
	KUNIT_EXPECT_MEMEQ(test, before, after, sizeof(before));
	for (addr = region->start; addr < region->start + region->size;
	     addr = leaf.start + leaf_bytes(leaf.size)) {
		KUNIT_ASSERT_TRUE(test, find_kernel_leaf(addr, &leaf));
		KUNIT_ASSERT_TRUE(test, leaf.desc & PTE_RDONLY);
		KUNIT_ASSERT_FALSE(test, leaf.desc & PTE_WRITE);
	}
}

/* A whole block made invalid and valid again as a block, and a part of it in between. */
static void invalid_blocks_stay_leaves(struct kunit *test)
{
	struct region *region = take_region(test, PMD_SIZE, LEAF_PMD);
	unsigned long middle = region->start + PMD_SIZE / 2, addr;
	unsigned int count[NR_LEAF_SIZES];

	KUNIT_EXPECT_EQ(test, linear_map_change(region->start, region->size, 0, PTE_VALID), 0);
	histogram(test, region, count);
	KUNIT_EXPECT_EQ(test, count[LEAF_PMD], 1);
	flush_tlb_kernel_range(region->start, region->start + region->size);
	KUNIT_EXPECT_EQ(test, linear_map_change(region->start, region->size,
						PTE_VALID | PTE_WRITE, PTE_RDONLY), 0);
	histogram(test, region, count);
	KUNIT_EXPECT_EQ(test, count[LEAF_PMD], 1);
	KUNIT_EXPECT_EQ(test, hardware_pa(middle), __virt_to_phys(middle));

	KUNIT_EXPECT_EQ(test, linear_map_change(region->start, region->size, 0, PTE_VALID), 0);
	flush_tlb_kernel_range(region->start, region->start + region->size);
	KUNIT_EXPECT_FALSE(test, linear_map_is_valid(region->start));
	KUNIT_EXPECT_EQ(test, hardware_pa(region->start), (phys_addr_t)-1);

	KUNIT_EXPECT_EQ(test, linear_map_change(middle, PAGE_SIZE, PTE_VALID | PTE_WRITE,
						PTE_RDONLY), 0);
	KUNIT_EXPECT_TRUE(test, linear_map_is_valid(middle));
	KUNIT_EXPECT_EQ(test, hardware_pa(middle), __virt_to_phys(middle));
	KUNIT_EXPECT_FALSE(test, linear_map_is_valid(middle - PAGE_SIZE));
	KUNIT_EXPECT_FALSE(test, linear_map_is_valid(middle + PAGE_SIZE));

	KUNIT_EXPECT_EQ(test, linear_map_change(region->start, region->size,
						PTE_VALID | PTE_WRITE, PTE_RDONLY), 0);
	for (addr = region->start; addr < region->start + region->size; addr += PAGE_SIZE)
		KUNIT_ASSERT_EQ(test, hardware_pa(addr), __virt_to_phys(addr));
}

static void default_is_folded_back(struct kunit *test)
{
	struct region *region = take_region(test, max(SZ_8M, PMD_SIZE), LEAF_PUD);
	unsigned int before[NR_LEAF_SIZES], after[NR_LEAF_SIZES];
	unsigned long bytes[NR_LEAF_SIZES], page = region->start + 5 * PAGE_SIZE;
	enum leaf_size size;

	histogram(test, region, before);
	for (size = LEAF_PTE; size < NR_LEAF_SIZES; size++)
		bytes[size] = linear_map_bytes(size);

	KUNIT_EXPECT_EQ(test, linear_map_change(page, PAGE_SIZE, PTE_RDONLY, PTE_WRITE), 0);
	fold_all(region);
	histogram(test, region, after);
	KUNIT_EXPECT_EQ_MSG(test, after[LEAF_PTE],
			    linear_map_is_paused() ? PTRS_PER_PTE : CONT_PTES,
			    "folded what is not alike");
	KUNIT_EXPECT_EQ(test, hardware_pa(page), __virt_to_phys(page));

	KUNIT_EXPECT_EQ(test, linear_map_change(page, PAGE_SIZE, PTE_WRITE, PTE_RDONLY), 0);
	flush_tlb_kernel_range(page, page + PAGE_SIZE);
	/* The change itself said where there is something to fold. */
	linear_map_fold_enable(true);
	linear_map_fold_now();
	histogram(test, region, after);
	KUNIT_EXPECT_MEMEQ(test, before, after, sizeof(before));
	for (size = LEAF_PTE; size < NR_LEAF_SIZES; size++)
		KUNIT_EXPECT_EQ(test, linear_map_bytes(size), bytes[size]);
	KUNIT_EXPECT_EQ(test, hardware_pa(page), __virt_to_phys(page));
}

/* At most one table of each level for a page out of the largest leaf there is. */
static void one_page_takes_few_tables(struct kunit *test)
{
	struct region *region = take_region(test, max(SZ_8M, PMD_SIZE), LEAF_PUD);
	unsigned long page = region->start + 7 * PAGE_SIZE;
	unsigned long *before, *after;

	if (!IS_ENABLED(CONFIG_VM_EVENT_COUNTERS))
		kunit_skip(test, "nothing is counted");
	before = kunit_kcalloc(test, NR_VM_EVENT_ITEMS, sizeof(*before), GFP_KERNEL);
	after = kunit_kcalloc(test, NR_VM_EVENT_ITEMS, sizeof(*after), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, before);
	KUNIT_ASSERT_NOT_NULL(test, after);

	all_vm_events(before);
	KUNIT_EXPECT_EQ(test, linear_map_change(page, PAGE_SIZE, PTE_RDONLY, PTE_WRITE), 0);
	all_vm_events(after);
	KUNIT_EXPECT_LE(test, after[LINEAR_MAP_SPLIT_PUD] - before[LINEAR_MAP_SPLIT_PUD], 1);
	KUNIT_EXPECT_EQ(test, after[LINEAR_MAP_SPLIT_PMD] - before[LINEAR_MAP_SPLIT_PMD], 1);
}

/* Two tasks that change neighbouring parts of one contiguous range. */
struct neighbours {
	struct completion half_split;
	struct completion second_done;
	unsigned long boundary;
	void *boundary_entry;
	bool waited;
	int ret;
};

static struct neighbours neighbours;

/* Write an entry as set_kernel_leaf() does, and stop when half of the range is split. */
static void split_slowly(enum leaf_size size, void *entry, pteval_t desc)
{
	unsigned int i, nr = size == LEAF_CONT_PTE ? CONT_PTES : 1;

	for (i = 0; i < nr; i++)
		__set_pte((pte_t *)entry + i,
			  pfn_pte(pte_pfn(__pte(desc)) + i, pte_pgprot(__pte(desc))));

	if (entry == neighbours.boundary_entry && !neighbours.waited) {
		neighbours.waited = true;
		complete(&neighbours.half_split);
		/* One that waits for this split to be complete will be late. */
		wait_for_completion_timeout(&neighbours.second_done, msecs_to_jiffies(50));
	}
}

static int change_second_half(void *data)
{
	if (wait_for_completion_timeout(&neighbours.half_split, 5 * HZ))
		neighbours.ret = linear_map_change(neighbours.boundary, CONT_PTE_SIZE / 2,
						   PTE_RDONLY, PTE_WRITE);
	complete_all(&neighbours.second_done);

	return 0;
}

static void neighbours_change_at_a_time(struct kunit *test)
{
	struct region *region = take_region(test, PMD_SIZE, LEAF_CONT_PTE);
	struct task_struct *second;
	struct kernel_leaf leaf;
	unsigned long addr;

	KUNIT_ASSERT_TRUE(test, find_kernel_leaf(region->start, &leaf));
	KUNIT_ASSERT_EQ(test, leaf.size, LEAF_CONT_PTE);

	memset(&neighbours, 0, sizeof(neighbours));
	init_completion(&neighbours.half_split);
	init_completion(&neighbours.second_done);
	neighbours.boundary = region->start + CONT_PTE_SIZE / 2;
	neighbours.boundary_entry = (pte_t *)leaf.entry + CONT_PTES / 2;
	neighbours.ret = -ETIMEDOUT;

	second = kthread_run(change_second_half, NULL, "linear_map_second");
	KUNIT_ASSERT_FALSE(test, IS_ERR(second));
	get_task_struct(second);

	kunit_activate_static_stub(test, set_kernel_leaf, split_slowly);
	KUNIT_EXPECT_EQ(test, linear_map_change(region->start, CONT_PTE_SIZE / 2, PTE_RDONLY,
						PTE_WRITE), 0);
	kunit_deactivate_static_stub(test, set_kernel_leaf);
	/* A thread that is stopped before it ran never runs. */
	wait_for_completion(&neighbours.second_done);
	kthread_stop_put(second);

	KUNIT_EXPECT_TRUE(test, neighbours.waited);
	KUNIT_EXPECT_EQ(test, neighbours.ret, 0);
	for (addr = region->start; addr < region->start + CONT_PTE_SIZE; addr += PAGE_SIZE) {
		KUNIT_ASSERT_TRUE(test, find_kernel_leaf(addr, &leaf));
		KUNIT_EXPECT_EQ(test, leaf.size, LEAF_PTE);
		KUNIT_EXPECT_TRUE(test, leaf.desc & PTE_RDONLY);
	}
}

static unsigned int tables_left;

static struct ptdesc *alloc_few_tables(void)
{
	if (!tables_left)
		return NULL;
	tables_left--;

	return pagetable_alloc(GFP_KERNEL, 0);
}

/* A change that needs two tables, with none, one and two to be had. */
static void failed_allocation_changes_nothing(struct kunit *test)
{
	struct region *region = take_region(test, 4 * PMD_SIZE, LEAF_PMD);
	unsigned long start = region->start + PMD_SIZE / 2, end = start + 2 * PMD_SIZE;
	unsigned int have, before[NR_LEAF_SIZES], after[NR_LEAF_SIZES];
	struct kernel_leaf leaf;
	unsigned long addr;

	histogram(test, region, before);
	kunit_activate_static_stub(test, alloc_split_table, alloc_few_tables);
	for (have = 0; have < 2; have++) {
		tables_left = have;
		KUNIT_EXPECT_EQ(test, linear_map_change(start, end - start, PTE_RDONLY, PTE_WRITE),
				-ENOMEM);
		for (addr = region->start; addr < region->start + region->size;
		     addr = leaf.start + leaf_bytes(leaf.size)) {
			KUNIT_ASSERT_TRUE(test, find_kernel_leaf(addr, &leaf));
			KUNIT_EXPECT_EQ(test, leaf.desc,
					linear_map_default_desc(leaf.start, leaf.size));
		}

		/* What was split in vain is folded back, without being asked, and beyond. */
		linear_map_fold_enable(true);
		linear_map_fold_now();
		linear_map_fold_enable(false);
		tables_left = UINT_MAX;
		for (addr = region->start; addr < region->start + region->size; addr += PMD_SIZE)
			KUNIT_EXPECT_EQ(test, split_at(addr), 0);
		histogram(test, region, after);
		KUNIT_EXPECT_MEMEQ(test, before, after, sizeof(before));
	}

	tables_left = 2;
	KUNIT_EXPECT_EQ(test, linear_map_change(start, end - start, PTE_RDONLY, PTE_WRITE), 0);
	KUNIT_EXPECT_EQ(test, tables_left, 0);

	/* Giving back takes none. */
	KUNIT_EXPECT_EQ(test, linear_map_change(start, end - start, PTE_VALID | PTE_WRITE,
						PTE_RDONLY), 0);
	kunit_deactivate_static_stub(test, alloc_split_table);
}

/* How often the TLBs were rid of what was split. */
static unsigned int flushes;

static void count_flushes(void)
{
	flushes++;
	flush_tlb_all();
}

/*
 * Pages of many blocks: all of them are split with few invalidations, each of which is for as
 * many tables as all before it.
 */
static void many_ends_take_few_invalidations(struct kunit *test)
{
	const unsigned int blocks = 16;
	struct region *region;
	struct vm_struct area = { .nr_pages = blocks };
	unsigned int before[NR_LEAF_SIZES], after[NR_LEAF_SIZES];
	struct kernel_leaf leaf;
	unsigned int i;

	if (linear_map_is_paused())
		kunit_skip(test, "nothing is split live on this system");
	if (PAGE_SIZE != SZ_4K)
		kunit_skip(test, "blocks are too large to have many");
	region = take_region(test, blocks * PMD_SIZE, LEAF_PMD);

	area.pages = kunit_kcalloc(test, blocks, sizeof(*area.pages), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, area.pages);
	for (i = 0; i < blocks; i++)
		area.pages[i] = virt_to_page((void *)(region->start + i * PMD_SIZE +
						      5 * PAGE_SIZE));

	histogram(test, region, before);
	KUNIT_ASSERT_EQ(test, before[LEAF_PMD], blocks);
	flushes = 0;
	kunit_activate_static_stub(test, flush_splits, count_flushes);
	KUNIT_EXPECT_EQ(test, linear_map_change_area(&area, 0, blocks * PAGE_SIZE, PTE_RDONLY,
						     PTE_WRITE), 0);
	kunit_deactivate_static_stub(test, flush_splits);
	/* 1, 1, 2, 4, 8 tables, and so on. */
	KUNIT_EXPECT_LE(test, flushes, ilog2(blocks) + 1);
	KUNIT_EXPECT_GE(test, flushes, 1);

	histogram(test, region, after);
	KUNIT_EXPECT_EQ(test, after[LEAF_PMD], 0);
	KUNIT_EXPECT_EQ(test, after[LEAF_PTE], blocks * CONT_PTES);
	for (i = 0; i < blocks; i++) {
		unsigned long addr = (unsigned long)page_address(area.pages[i]);

		KUNIT_ASSERT_TRUE(test, find_kernel_leaf(addr, &leaf));
		KUNIT_ASSERT_EQ(test, leaf.size, LEAF_PTE);
		KUNIT_ASSERT_FALSE(test, leaf.desc & PTE_WRITE);
		KUNIT_ASSERT_EQ(test, hardware_pa(addr), __virt_to_phys(addr));
		KUNIT_ASSERT_TRUE(test, find_kernel_leaf(addr + PAGE_SIZE, &leaf));
		KUNIT_ASSERT_TRUE(test, leaf.desc & PTE_WRITE);
	}
}

#ifdef CONFIG_KFENCE
/* The pool of KFENCE may begin and end anywhere, and consists of pages throughout. */
static void the_pool_of_kfence_takes_few_invalidations(struct kunit *test)
{
	struct region *region = take_region(test, 4 * PMD_SIZE, LEAF_PMD);
	unsigned long start = region->start + PMD_SIZE / 2 + PAGE_SIZE, addr;
	unsigned long end = start + 2 * PMD_SIZE;
	struct kernel_leaf leaf;

	flushes = 0;
	kunit_activate_static_stub(test, flush_splits, count_flushes);
	down_read(&linear_map_fold_sem);
	KUNIT_EXPECT_EQ(test, split_into_pages(start, end), 0);
	up_read(&linear_map_fold_sem);
	kunit_deactivate_static_stub(test, flush_splits);
	/* Three tables. */
	KUNIT_EXPECT_LE(test, flushes, 3);
	if (!linear_map_is_paused())
		KUNIT_EXPECT_GE(test, flushes, 1);

	for (addr = start; addr < end; addr += PAGE_SIZE) {
		KUNIT_ASSERT_TRUE(test, find_kernel_leaf(addr, &leaf));
		KUNIT_ASSERT_EQ(test, leaf.size, LEAF_PTE);
		KUNIT_ASSERT_EQ(test, hardware_pa(addr), __virt_to_phys(addr));
	}
	/* What is around it is not. */
	KUNIT_ASSERT_TRUE(test, find_kernel_leaf(region->start, &leaf));
	KUNIT_EXPECT_EQ(test, leaf.size, linear_map_is_paused() ? LEAF_PTE : LEAF_CONT_PTE);
	KUNIT_ASSERT_TRUE(test, find_kernel_leaf(region->start + 3 * PMD_SIZE, &leaf));
	KUNIT_EXPECT_EQ(test, leaf.size, LEAF_PMD);
}
#endif

#ifdef CONFIG_TRANS_TABLE
/* The pages of a copy of the tables. */
struct copy {
	struct page *pages[16];
	unsigned int nr;
};

static void *take_copy_page(void *data)
{
	struct copy *copy = data;
	struct page *page;

	if (copy->nr == ARRAY_SIZE(copy->pages))
		return NULL;
	page = alloc_page(GFP_KERNEL | __GFP_ZERO);
	if (page)
		copy->pages[copy->nr++] = page;

	return page ? page_address(page) : NULL;
}

static void free_copy(void *data)
{
	struct copy *copy = data;

	while (copy->nr)
		__free_page(copy->pages[--copy->nr]);
}

/* Copy a range of the linear map; return the entry of the upper level for its start. */
static pud_t *copy_range(struct kunit *test, unsigned long start, unsigned long size)
{
	struct copy *copy = kunit_kzalloc(test, sizeof(*copy), GFP_KERNEL);
	struct trans_pgd_info info = {
		.trans_alloc_page = take_copy_page,
		.trans_alloc_arg = copy,
	};
	p4d_t *p4dp;
	pgd_t *pgdp;

	KUNIT_ASSERT_NOT_NULL(test, copy);
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, free_copy, copy), 0);
	KUNIT_ASSERT_EQ(test, trans_pgd_create_copy(&info, &pgdp, start, start + size), 0);
	p4dp = p4d_offset(pgd_offset_pgd(pgdp, start), start);

	return pud_offset(p4dp, start);
}

static pmd_t *copy_of_pmds(struct kunit *test, unsigned long start, unsigned long size)
{
	return pmd_offset(copy_range(test, start, size), start);
}

/*
 * kexec and resume write through a copy of the linear map: blocks that are read-only, or
 * invalid for a time, have to be writable there, whatever it is that says so.
 */
static void a_copy_can_be_written(struct kunit *test)
{
	struct region *region = take_region(test, PMD_SIZE, LEAF_PMD);
	unsigned int i;

	KUNIT_ASSERT_EQ(test, linear_map_change(region->start, PMD_SIZE, PTE_RDONLY, PTE_WRITE), 0);
	for (i = 0; i < 2; i++) {
		u64 desc = pmd_val(READ_ONCE(*copy_of_pmds(test, region->start, PMD_SIZE)));

		KUNIT_EXPECT_TRUE(test, pmd_leaf(__pmd(desc)));
		KUNIT_EXPECT_TRUE(test, desc & PTE_VALID);
		KUNIT_EXPECT_TRUE(test, desc & PTE_WRITE);
		KUNIT_EXPECT_FALSE(test, desc & PTE_RDONLY);
		KUNIT_EXPECT_EQ(test, __pmd_to_phys(__pmd(desc)), __virt_to_phys(region->start));

		KUNIT_ASSERT_EQ(test, linear_map_change(region->start, PMD_SIZE, 0, PTE_VALID), 0);
		flush_tlb_kernel_range(region->start, region->start + PMD_SIZE);
	}
}

/*
 * Entries of a contiguous range must be alike, and leaves may be split while kexec copies them.
 * So nothing is contiguous in a copy.
 */
static void a_copy_has_no_contiguous_pages(struct kunit *test)
{
	struct region *region = take_region(test, PMD_SIZE, LEAF_CONT_PTE);
	struct kernel_leaf leaf;
	unsigned int i;
	pte_t *ptep;

	KUNIT_ASSERT_TRUE(test, find_kernel_leaf(region->start, &leaf));
	KUNIT_ASSERT_EQ(test, leaf.size, LEAF_CONT_PTE);
	ptep = pte_offset_kernel(copy_of_pmds(test, region->start, PMD_SIZE), region->start);
	for (i = 0; i < PTRS_PER_PTE; i++) {
		KUNIT_ASSERT_TRUE(test, pte_valid(__ptep_get(ptep + i)));
		KUNIT_ASSERT_FALSE(test, pte_cont(__ptep_get(ptep + i)));
	}
}

static void a_copy_has_no_contiguous_blocks(struct kunit *test)
{
	struct region *region = take_region(test, CONT_PMD_SIZE, LEAF_CONT_PMD);
	struct kernel_leaf leaf;
	unsigned int i;
	pmd_t *pmdp;

	KUNIT_ASSERT_TRUE(test, find_kernel_leaf(region->start, &leaf));
	if (leaf.size != LEAF_CONT_PMD)
		kunit_skip(test, "physical and virtual addresses are not congruent");
	pmdp = copy_of_pmds(test, region->start, CONT_PMD_SIZE);
	for (i = 0; i < CONT_PMDS; i++) {
		KUNIT_ASSERT_TRUE(test, pmd_leaf(READ_ONCE(pmdp[i])));
		KUNIT_ASSERT_FALSE(test, pmd_val(READ_ONCE(pmdp[i])) & PMD_SECT_CONT);
	}
}

static void a_copy_has_the_largest_blocks(struct kunit *test)
{
	unsigned long end = (unsigned long)__va(memblock_end_of_DRAM() - 1) + 1;
	unsigned long addr = ALIGN((unsigned long)__va(memblock_start_of_DRAM()), PUD_SIZE);
	struct kernel_leaf leaf = { };
	u64 desc;

	for (; addr < end && leaf.size != LEAF_PUD; addr += PUD_SIZE)
		if (!find_kernel_leaf(addr, &leaf))
			leaf.size = LEAF_PTE;
	if (leaf.size != LEAF_PUD)
		kunit_skip(test, "no block of this size is whole");

	desc = pud_val(READ_ONCE(*copy_range(test, leaf.start, PUD_SIZE)));
	KUNIT_EXPECT_TRUE(test, pud_leaf(__pud(desc)));
	KUNIT_EXPECT_TRUE(test, desc & PTE_VALID);
	KUNIT_EXPECT_TRUE(test, desc & PTE_WRITE);
	KUNIT_EXPECT_FALSE(test, desc & PTE_RDONLY);
	KUNIT_EXPECT_EQ(test, __pte_to_phys(__pte(desc)), __virt_to_phys(leaf.start));
}
#endif

#ifdef CONFIG_MEMORY_HOTPLUG
/* While memory comes or goes nothing is folded, and nobody waits for it with locks held. */
static void folding_waits_for_no_hotplug(struct kunit *test)
{
	struct region *region = take_region(test, PMD_SIZE, LEAF_PMD);
	unsigned int before[NR_LEAF_SIZES], after[NR_LEAF_SIZES];

	histogram(test, region, before);
	KUNIT_ASSERT_EQ(test, split_at(region->start + PAGE_SIZE), 0);

	mem_hotplug_begin();
	/* It would wait for ever if the worker did. */
	fold_all(region);
	mem_hotplug_done();
	histogram(test, region, after);
	KUNIT_EXPECT_EQ(test, after[LEAF_PMD], 0);

	fold_all(region);
	histogram(test, region, after);
	KUNIT_EXPECT_EQ(test, after[LEAF_PTE], 0);
}
#endif

#ifdef CONFIG_ARM64_LINEAR_MAP_PAUSE
static int no_pause(bool may_sleep)
{
	return -EBUSY;
}

/* Pages of several blocks, by an area: all splits, of all levels, are in one pause or in none. */
static void a_change_has_one_pause_or_none(struct kunit *test)
{
	const unsigned int blocks = 4, nr = 2 * blocks;
	struct region *region = take_region(test, blocks * PMD_SIZE, LEAF_PUD);
	unsigned int i, tries = linear_map_pause_tries;
	unsigned int before[NR_LEAF_SIZES], after[NR_LEAF_SIZES];
	struct page *pages[8];
	unsigned long count, addr;
	struct kernel_leaf leaf;
	void *area;

	if (!linear_map_is_paused() || linear_map_can_use_access_flag())
		kunit_skip(test, "the linear map is split without pauses on this system");

	/* Two pages of each block, neither of which is at its ends. */
	for (i = 0; i < nr; i++)
		pages[i] = virt_to_page((void *)(region->start + i / 2 * PMD_SIZE +
						 (3 + i % 2 * 4) * PAGE_SIZE));
	area = vmap(pages, nr, VM_MAP, PAGE_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, area);
	/* vfree() expects this of an area that has pages of its own. */
	find_vm_area(area)->pages = pages;
	find_vm_area(area)->nr_pages = nr;

	histogram(test, region, before);
	count = linear_map_pauses();
	linear_map_pause_tries = 1;
	kunit_activate_static_stub(test, linear_map_run_paused, no_pause);
	KUNIT_EXPECT_EQ(test, linear_map_change_area(find_vm_area(area), (unsigned long)area,
						     nr * PAGE_SIZE, PTE_RDONLY, PTE_WRITE),
			-EBUSY);
	kunit_deactivate_static_stub(test, linear_map_run_paused);
	linear_map_pause_tries = tries;
	histogram(test, region, after);
	KUNIT_EXPECT_MEMEQ(test, before, after, sizeof(before));
	for (addr = region->start; addr < region->start + region->size;
	     addr = leaf.start + leaf_bytes(leaf.size)) {
		KUNIT_ASSERT_TRUE(test, find_kernel_leaf(addr, &leaf));
		KUNIT_EXPECT_EQ(test, leaf.desc, linear_map_default_desc(leaf.start, leaf.size));
		KUNIT_EXPECT_EQ(test, hardware_pa(addr), __virt_to_phys(addr));
	}
	KUNIT_EXPECT_EQ(test, linear_map_pauses(), count);

	KUNIT_EXPECT_EQ(test, linear_map_change_area(find_vm_area(area), (unsigned long)area,
						     nr * PAGE_SIZE, PTE_RDONLY, PTE_WRITE), 0);
	KUNIT_EXPECT_EQ(test, linear_map_pauses(), count + 1);
	histogram(test, region, after);
	KUNIT_EXPECT_EQ(test, after[LEAF_PTE], blocks * PTRS_PER_PTE);
	for (addr = region->start; addr < region->start + region->size; addr += PAGE_SIZE) {
		unsigned long page = (addr - region->start) % PMD_SIZE / PAGE_SIZE;

		KUNIT_ASSERT_TRUE(test, find_kernel_leaf(addr, &leaf));
		KUNIT_ASSERT_EQ(test, !(leaf.desc & PTE_WRITE), page == 3 || page == 7);
		KUNIT_ASSERT_EQ(test, hardware_pa(addr), __virt_to_phys(addr));
	}

	/* Once it is split nobody has to be paused, not even to give it back. */
	KUNIT_EXPECT_EQ(test, linear_map_change_area(find_vm_area(area), (unsigned long)area,
						     nr * PAGE_SIZE, PTE_WRITE, PTE_RDONLY), 0);
	KUNIT_EXPECT_EQ(test, linear_map_pauses(), count + 1);

	/* All of it is folded in one pause. */
	fold_all(region);
	histogram(test, region, after);
	KUNIT_EXPECT_MEMEQ(test, before, after, sizeof(before));
	KUNIT_EXPECT_EQ(test, linear_map_pauses(), count + 2);

	find_vm_area(area)->pages = NULL;
	find_vm_area(area)->nr_pages = 0;
	vunmap(area);
}

/*
 * How long the pause for a full plan is, tests look at that have a clock for it. It is full with
 * MAX_ENTRIES (linear_map_pause.c), and the rest takes a pause of its own.
 */
static void a_full_plan_takes_one_pause(struct kunit *test)
{
	const unsigned int full = 128, rest = 4, nr = full + rest;
	struct region *region[2];
	struct vm_struct area = { .nr_pages = nr };
	unsigned int count[NR_LEAF_SIZES], i, blocks = 0;
	unsigned long pauses;

	if (!linear_map_is_paused() || linear_map_can_use_access_flag())
		kunit_skip(test, "the linear map is split without pauses on this system");
	if (PAGE_SIZE != SZ_4K)
		kunit_skip(test, "blocks are too large to have many");

	/* Contiguous memory is aligned if it has a power of two of pages. */
	region[0] = take_region(test, full * PMD_SIZE, LEAF_PMD);
	region[1] = take_region(test, rest * PMD_SIZE, LEAF_PMD);
	area.pages = kunit_kcalloc(test, nr, sizeof(*area.pages), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, area.pages);
	for (i = 0; i < nr; i++)
		area.pages[i] = virt_to_page((void *)(region[i / full]->start +
						      i % full * PMD_SIZE + 5 * PAGE_SIZE));
	for (i = 0; i < ARRAY_SIZE(region); i++) {
		histogram(test, region[i], count);
		blocks += count[LEAF_PMD];
	}
	KUNIT_ASSERT_EQ(test, blocks, nr);

	pauses = linear_map_pauses();
	KUNIT_EXPECT_EQ(test, linear_map_change_area(&area, 0, nr * PAGE_SIZE, PTE_RDONLY,
						     PTE_WRITE), 0);
	KUNIT_EXPECT_EQ(test, linear_map_pauses(), pauses + 2);
	for (i = 0; i < ARRAY_SIZE(region); i++) {
		histogram(test, region[i], count);
		KUNIT_EXPECT_EQ(test, count[LEAF_PMD], 0);
	}
}
#endif

#ifdef CONFIG_ARM64_LINEAR_MAP_ACCESS_FLAG
/* The first page of a block is split off, and all maps as it did. */
static void expect_split(struct kunit *test, unsigned long block)
{
	struct kernel_leaf leaf;
	unsigned long addr;

	KUNIT_EXPECT_EQ(test, split_at(block + PAGE_SIZE), 0);
	for (addr = block; addr < block + PMD_SIZE; addr += PAGE_SIZE) {
		KUNIT_ASSERT_TRUE(test, find_kernel_leaf(addr, &leaf));
		KUNIT_ASSERT_EQ(test, leaf.desc, linear_map_default_desc(addr, LEAF_PTE));
		KUNIT_ASSERT_EQ(test, hardware_pa(addr), __virt_to_phys(addr));
	}
}

/*
 * A block that nobody uses is split by its access flag, without a pause. One that is used
 * between the invalidation and the exchange has its flag again, and takes a pause.
 */
static void idle_blocks_are_split_by_their_access_flag(struct kunit *test)
{
	const unsigned int blocks = 4;
	unsigned long splits, pauses;
	struct region *region;
	unsigned int i;

	if (!linear_map_can_use_access_flag())
		kunit_skip(test, "blocks are not split by their access flag on this system");
	region = take_region(test, blocks * PMD_SIZE, LEAF_PMD);

	splits = linear_map_access_flag_splits();
	pauses = linear_map_pauses();
	for (i = 0; i < blocks; i++)
		expect_split(test, region->start + i * PMD_SIZE);
	KUNIT_EXPECT_EQ(test, linear_map_access_flag_splits(), splits + blocks);
	KUNIT_EXPECT_EQ(test, linear_map_pauses(), pauses);

	/* Folding takes a pause. */
	fold_all(region);
	KUNIT_EXPECT_EQ(test, linear_map_pauses(), pauses + 1);

	splits = linear_map_access_flag_splits();
	access_flag_test_use = (const u32 *)region->start;
	expect_split(test, region->start);
	expect_split(test, region->start + PMD_SIZE);
	access_flag_test_use = NULL;
	KUNIT_EXPECT_EQ(test, linear_map_access_flag_splits(), splits + 1);
	KUNIT_EXPECT_EQ(test, linear_map_pauses(), pauses + 2);
}
#endif

/* Try to write through the linear map, as an attacker or a stray pointer would. */
static bool can_write(const void *addr)
{
	u32 value = *(const u32 *)addr;

	return !copy_to_kernel_nofault((void *)addr, &value, sizeof(value));
}

static bool can_read(const void *addr)
{
	u32 value;

	return !copy_from_kernel_nofault(&value, addr, sizeof(value));
}

struct probe {
	bool (*access)(const void *addr);
	const void *addr;
	bool succeeded;
};

static void probe_here(void *data)
{
	struct probe *probe = data;

	probe->succeeded = probe->access(probe->addr);
}

/* On every CPU: one that was left out of the invalidation would still see it. */
static unsigned int cpus_that(bool (*access)(const void *addr), const void *addr)
{
	struct probe probe = { .access = access, .addr = addr };
	unsigned int cpu, count = 0;

	cpus_read_lock();
	for_each_online_cpu(cpu) {
		smp_call_function_single(cpu, probe_here, &probe, true);
		count += probe.succeeded;
	}
	cpus_read_unlock();

	return count;
}

static void image_alias_is_read_only(struct kunit *test)
{
	if (!rodata_full)
		kunit_skip(test, "rodata=full is off");

	KUNIT_EXPECT_FALSE(test, can_write(lm_alias(_stext)));
	KUNIT_EXPECT_FALSE(test, can_write(lm_alias(__start_rodata)));
	KUNIT_EXPECT_FALSE(test, can_write((void *)lm_alias(__init_begin) - PAGE_SIZE));
	/* The test itself: what is not protected can be written. */
	KUNIT_EXPECT_TRUE(test, can_write(lm_alias(_data)));
}

/* What module_memory does: memory from vmalloc that becomes read-only code. */
static void vmalloc_alias_is_protected(struct kunit *test)
{
	unsigned int i, nr = 24;
	struct vm_struct *area;
	struct page *last;
	void *code;

	if (!rodata_full)
		kunit_skip(test, "rodata=full is off");

	code = vmalloc(nr * PAGE_SIZE);
	KUNIT_ASSERT_NOT_NULL(test, code);
	set_vm_flush_reset_perms(code);
	area = find_vm_area(code);

	KUNIT_EXPECT_EQ(test, set_memory_rox((unsigned long)code, nr), 0);
	for (i = 0; i < nr; i++)
		KUNIT_EXPECT_FALSE(test, can_write(page_address(area->pages[i])));

	KUNIT_EXPECT_EQ(test, set_memory_nx((unsigned long)code, nr), 0);
	KUNIT_EXPECT_EQ(test, set_memory_rw((unsigned long)code, nr / 2), 0);
	for (i = 0; i < nr; i++)
		KUNIT_EXPECT_EQ(test, can_write(page_address(area->pages[i])), i < nr / 2);

	/*
	 * The change rids each CPU of the translation that it could write through. Nothing has to
	 * be split for it, so no invalidation of a split hides one that is missing here.
	 * set_memory_ro() would invalidate the area, too, which can hide it; so it is not used.
	 */
	for (i = 0; i < nr / 2; i++)
		KUNIT_EXPECT_EQ(test, cpus_that(can_write, page_address(area->pages[i])),
				num_online_cpus());
	KUNIT_EXPECT_EQ(test, linear_map_change_area(area, (unsigned long)code, nr / 2 * PAGE_SIZE,
						     PTE_RDONLY, PTE_WRITE), 0);
	for (i = 0; i < nr / 2; i++)
		KUNIT_EXPECT_EQ(test, cpus_that(can_write, page_address(area->pages[i])), 0);

	/* After it was freed the linear map has the default again. */
	last = area->pages[nr - 1];
	get_page(last);
	vfree(code);
	KUNIT_EXPECT_TRUE(test, can_write(page_address(last)));
	put_page(last);
}

/* How many leaves were split until now. */
static unsigned long splits(unsigned long *events)
{
	all_vm_events(events);

	return events[LINEAR_MAP_SPLIT_CONT_PTE] + events[LINEAR_MAP_SPLIT_PMD] +
	       events[LINEAR_MAP_SPLIT_CONT_PMD] + events[LINEAR_MAP_SPLIT_PUD];
}

/*
 * Map pages of a region in an area that vfree() gives the default back. The area takes a
 * reference to each page, and the array.
 */
static void *map_area(struct kunit *test, struct page *first, unsigned int nr)
{
	struct page **pages = kcalloc(nr, sizeof(*pages), GFP_KERNEL);
	unsigned int i;
	void *area;

	KUNIT_ASSERT_NOT_NULL(test, pages);
	for (i = 0; i < nr; i++) {
		pages[i] = first + i;
		get_page(pages[i]);
	}
	area = vmap(pages, nr, VM_MAP | VM_MAP_PUT_PAGES, PAGE_KERNEL);
	if (!area) {
		for (i = 0; i < nr; i++)
			put_page(pages[i]);
		kfree(pages);
		KUNIT_FAIL_AND_ABORT(test, "no memory for an area");
	}
	set_vm_flush_reset_perms(area);

	return area;
}

/* Memory that vfree() gives back: none of it was protected, or one page and no other. */
static void vfree_splits_nothing(struct kunit *test)
{
	struct region *region = take_region(test, max(SZ_8M, PMD_SIZE), LEAF_PUD);
	unsigned int before[NR_LEAF_SIZES], after[NR_LEAF_SIZES], nr;
	unsigned long *events, split, middle = region->start + PMD_SIZE / 2;
	/* Not in the contiguous ranges that the ends of the area are in the middle of. */
	unsigned long page = middle + 2 * CONT_PTE_SIZE;
	void *area;

	events = kunit_kcalloc(test, NR_VM_EVENT_ITEMS, sizeof(*events), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, events);

	for (nr = 0; nr <= 1; nr++) {
		/* In the middle of blocks. */
		area = map_area(test, virt_to_page((void *)middle) + 1, 4 * CONT_PTES);
		if (nr) {
			KUNIT_EXPECT_EQ(test, linear_map_change(page, PAGE_SIZE, PTE_RDONLY,
								PTE_WRITE), 0);
			flush_tlb_kernel_range(page, page + PAGE_SIZE);
			KUNIT_EXPECT_FALSE(test, can_write((void *)page));
		}

		histogram(test, region, before);
		split = splits(events);
		vfree(area);
		KUNIT_EXPECT_EQ(test, splits(events), split);
		histogram(test, region, after);
		KUNIT_EXPECT_MEMEQ(test, before, after, sizeof(before));
		KUNIT_EXPECT_EQ(test, hardware_pa(middle), __virt_to_phys(middle));
		KUNIT_EXPECT_TRUE(test, can_write((void *)page));
	}
}

/* Read-only pages among others are the only ones that vfree() has to change back. */
static void vfree_gives_back_what_was_protected(struct kunit *test)
{
	struct region *region = take_region(test, max(SZ_8M, PMD_SIZE), LEAF_PUD);
	unsigned long *events, split, page = region->start + 5 * PAGE_SIZE, addr;
	struct kernel_leaf leaf;
	void *area;

	events = kunit_kcalloc(test, NR_VM_EVENT_ITEMS, sizeof(*events), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, events);
	area = map_area(test, region->pages, 4 * CONT_PTES);

	KUNIT_EXPECT_EQ(test, linear_map_change(page, 7 * PAGE_SIZE, PTE_RDONLY, PTE_WRITE), 0);
	flush_tlb_kernel_range(page, page + 7 * PAGE_SIZE);
	KUNIT_EXPECT_FALSE(test, can_write((void *)page));

	split = splits(events);
	vfree(area);
	KUNIT_EXPECT_EQ(test, splits(events), split);
	for (addr = region->start; addr < region->start + region->size;
	     addr = leaf.start + leaf_bytes(leaf.size)) {
		KUNIT_ASSERT_TRUE(test, find_kernel_leaf(addr, &leaf));
		KUNIT_EXPECT_EQ(test, leaf.desc, linear_map_default_desc(leaf.start, leaf.size));
	}
	KUNIT_EXPECT_TRUE(test, can_write((void *)page));
}

/* An area that may have blocks is refused before its linear alias has changed. */
static void an_area_that_may_have_blocks_is_refused(struct kunit *test)
{
	void *area = vmalloc_huge(PMD_SIZE, GFP_KERNEL);
	void *alias;

	KUNIT_ASSERT_NOT_NULL(test, area);
	alias = page_address(vmalloc_to_page(area));
	KUNIT_EXPECT_EQ(test, set_memory_ro((unsigned long)area, 1), -EINVAL);
	KUNIT_EXPECT_TRUE(test, can_write(area));
	KUNIT_EXPECT_TRUE(test, can_write(alias));
	vfree(area);
}

/* What changes permissions and has to split nothing. */
struct unlocked_change {
	struct completion done;
	void *pages;
	unsigned long alias;
	void *area;
	int ret;
};

static int change_without_splits(void *data)
{
	struct unlocked_change *change = data;

	change->ret = set_memory_nx((unsigned long)change->pages, 1);
	/* Live, somebody else may be writing the entries of the same contiguous range. */
	if (!change->ret && linear_map_is_paused())
		change->ret = linear_map_change(change->alias, PAGE_SIZE, 0, PTE_VALID);
	vfree(change->area);
	complete(&change->done);

	return 0;
}

/* The lock of splits is held for as long as a pause takes, which others need not wait for. */
static void who_splits_nothing_waits_for_no_split(struct kunit *test)
{
	struct region *region = take_region(test, max(SZ_8M, PMD_SIZE), LEAF_PUD);
	struct unlocked_change change = {
		.done = COMPLETION_INITIALIZER_ONSTACK(change.done),
	};
	unsigned long page = region->start + 5 * PAGE_SIZE;
	struct task_struct *task;
	bool in_time;

	change.alias = page;
	change.area = map_area(test, region->pages, 4 * CONT_PTES);
	change.pages = vmalloc(PAGE_SIZE);
	KUNIT_EXPECT_EQ(test, linear_map_change(page, PAGE_SIZE, PTE_RDONLY, PTE_WRITE), 0);
	flush_tlb_kernel_range(page, page + PAGE_SIZE);
	KUNIT_EXPECT_FALSE(test, can_write((void *)page));

	mutex_lock(&linear_map_split_lock);
	task = kthread_run(change_without_splits, &change, "linear_map_change");
	in_time = !IS_ERR(task) && wait_for_completion_timeout(&change.done, 10 * HZ);
	mutex_unlock(&linear_map_split_lock);
	if (IS_ERR(task))
		vfree(change.area);
	else if (!in_time)
		wait_for_completion(&change.done);
	vfree(change.pages);

	KUNIT_ASSERT_FALSE(test, IS_ERR(task));
	KUNIT_EXPECT_TRUE(test, in_time);
	KUNIT_EXPECT_EQ(test, change.ret, 0);
	KUNIT_EXPECT_TRUE(test, can_write((void *)page));
}

#ifdef CONFIG_ARM64_LINEAR_MAP_ACCESS_FLAG
/*
 * A block lacks its flag for a moment while somebody else splits it. That is no protection which
 * vfree() would have to undo: it would split the block then, which can fail.
 */
static void vfree_knows_a_block_without_access_flag(struct kunit *test)
{
	struct kernel_leaf leaf, seen;
	unsigned long *events, split;
	struct region *region;
	void *area;

	if (!linear_map_can_use_access_flag())
		kunit_skip(test, "blocks are not split by their access flag on this system");
	region = take_region(test, PMD_SIZE, LEAF_PMD);
	events = kunit_kcalloc(test, NR_VM_EVENT_ITEMS, sizeof(*events), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, events);
	area = map_area(test, region->pages + 1, CONT_PTES);
	KUNIT_ASSERT_TRUE(test, find_kernel_leaf(region->start, &leaf));
	KUNIT_ASSERT_EQ(test, leaf.size, LEAF_PMD);

	/* As exchange_once() does; hardware sets it again when the block is used. */
	WRITE_ONCE(*(u64 *)leaf.entry, leaf.desc & ~PTE_AF);
	dsb(ishst);
	flush_tlb_all();
	split = splits(events);
	vfree(area);
	KUNIT_EXPECT_EQ(test, splits(events), split);
	KUNIT_EXPECT_TRUE(test, find_kernel_leaf(region->start, &seen));
	KUNIT_EXPECT_EQ(test, seen.desc | PTE_AF,
			linear_map_default_desc(leaf.start, LEAF_PMD));
	/* Nobody knows whether that was before vfree() has looked. */
	if (seen.desc & PTE_AF && test->status == KUNIT_SUCCESS)
		kunit_mark_skipped(test, "a walk on speculation has set the access flag again");
	/* Sets it. */
	KUNIT_EXPECT_TRUE(test, can_write((void *)region->start));
}

#endif

static void secret_page_is_gone(struct kunit *test)
{
	struct page *pages, *page;

	if (!can_set_direct_map())
		kunit_skip(test, "the linear map does not change");

	pages = alloc_pages(GFP_KERNEL, 2);
	KUNIT_ASSERT_NOT_NULL(test, pages);
	page = pages + 1;
	KUNIT_EXPECT_EQ(test, cpus_that(can_read, page_address(page)), num_online_cpus());

	/* As memfd_secret(2) does it. */
	KUNIT_EXPECT_EQ(test, set_direct_map_invalid_noflush(page), 0);
	flush_tlb_kernel_range((unsigned long)page_address(page),
			       (unsigned long)page_address(page) + PAGE_SIZE);
	KUNIT_EXPECT_EQ(test, cpus_that(can_read, page_address(page)), 0);
	KUNIT_EXPECT_FALSE(test, kernel_page_present(page));

	/* Its neighbours are not. */
	KUNIT_EXPECT_TRUE(test, can_write(page_address(page - 1)));
	KUNIT_EXPECT_TRUE(test, can_write(page_address(page + 1)));

	KUNIT_EXPECT_EQ(test, set_direct_map_default_noflush(page), 0);
	KUNIT_EXPECT_EQ(test, cpus_that(can_read, page_address(page)), num_online_cpus());
	KUNIT_EXPECT_TRUE(test, can_write(page_address(page)));
	KUNIT_EXPECT_TRUE(test, kernel_page_present(page));
	__free_pages(pages, 2);
}

/* Which implementations are trusted; the level-3 ID cannot be had from an emulator. */
static void allow_list(struct kunit *test)
{
	static const struct {
		u32 midr;
		u64 bbm;
		bool expected;
	} cases[] = {
		{ 0x410fd823, 2, true  },	/* Cortex-X4 r0p3 */
		{ 0x410fd822, 2, false },
		{ 0x411fd820, 2, true  },	/* r1p0 is later than r0p3 */
		{ 0x410fd842, 2, true  },	/* Neoverse-V3 r0p2 */
		{ 0x410fd841, 2, false },
		{ 0x410fd832, 2, true  },	/* Neoverse-V3AE r0p2 */
		{ 0x410fd831, 2, false },
		{ 0x4e0f0100, 2, true  },	/* NVIDIA Olympus */
		{ 0xc00fac30, 0, true  },	/* AmpereOne: the ID says 0 */
		{ 0xc00fac40, 0, true  },	/* AmpereOne A */
		{ 0x410fd880, 2, true  },	/* Cortex-A520AE */
		{ 0x410fd4d0, 2, true  },	/* Cortex-A715 */
		{ 0x410fd890, 2, true  },	/* Cortex-A720AE */
		{ 0x410fd870, 2, true  },	/* Cortex-A725 */
		{ 0x410fd8e0, 2, true  },	/* Neoverse-N3 */
		{ 0x410fd8a0, 2, true  },	/* C1-Nano */
		{ 0x410fd8b0, 2, true  },	/* C1-Pro */
		{ 0x411fd8c1, 2, true  },	/* C1-Ultra r1p1 */
		{ 0x411fd8c0, 2, false },	/* erratum 3683289, also if the ID says 3 */
		{ 0x411fd8c0, 3, false },
		{ 0x410fd8c3, 3, false },
		{ 0x411fd901, 2, true  },	/* C1-Premium r1p1 */
		{ 0x411fd900, 2, false },
		{ 0x411fd900, 3, false },
		{ 0x412fd900, 2, true  },
		{ 0x410fd490, 2, false },	/* Neoverse-N2: level 2, with aborts */
		{ 0x410fd490, 3, true  },	/* level 3 needs no list */
		{ 0x410fd490, 4, true  },
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		u64 mmfr2 = cases[i].bbm << ID_AA64MMFR2_EL1_BBM_SHIFT;

		KUNIT_EXPECT_EQ_MSG(test, arm64_has_bbml2_noabort(cases[i].midr, mmfr2),
				    cases[i].expected, "MIDR_EL1 %x, BBM %llu",
				    cases[i].midr, cases[i].bbm);
	}
}

/* Folding by the way would change what a test looks at. */
static bool fold_before;

static int stop_folding(struct kunit *test)
{
	fold_before = linear_map_fold_enable(false);

	return 0;
}

static void resume_folding(struct kunit *test)
{
	linear_map_fold_enable(fold_before);
}

static struct kunit_case linear_map_cases[] = {
	KUNIT_CASE(allow_list),
	KUNIT_CASE(image_alias_is_read_only),
	KUNIT_CASE(vmalloc_alias_is_protected),
	KUNIT_CASE(an_area_that_may_have_blocks_is_refused),
	KUNIT_CASE(vfree_splits_nothing),
	KUNIT_CASE(vfree_gives_back_what_was_protected),
	KUNIT_CASE(who_splits_nothing_waits_for_no_split),
	KUNIT_CASE(secret_page_is_gone),
	KUNIT_CASE(leaves_are_aligned_in_both_addresses),
	KUNIT_CASE(painted_leaves_are_aligned),
	KUNIT_CASE(blocks_split_straight_to_pages),
#ifdef CONFIG_MEMORY_HOTPLUG
	KUNIT_CASE(a_part_of_a_leaf_is_not_removed),
#endif
	KUNIT_CASE(blocks_change_as_blocks),
	KUNIT_CASE(invalid_blocks_stay_leaves),
	KUNIT_CASE(default_is_folded_back),
	KUNIT_CASE(one_page_takes_few_tables),
	KUNIT_CASE(neighbours_change_at_a_time),
	KUNIT_CASE(failed_allocation_changes_nothing),
	KUNIT_CASE(many_ends_take_few_invalidations),
#ifdef CONFIG_KFENCE
	KUNIT_CASE(the_pool_of_kfence_takes_few_invalidations),
#endif
#ifdef CONFIG_TRANS_TABLE
	KUNIT_CASE(a_copy_can_be_written),
	KUNIT_CASE(a_copy_has_no_contiguous_pages),
	KUNIT_CASE(a_copy_has_no_contiguous_blocks),
	KUNIT_CASE(a_copy_has_the_largest_blocks),
#endif
#ifdef CONFIG_MEMORY_HOTPLUG
	KUNIT_CASE_SLOW(folding_waits_for_no_hotplug),
#endif
#ifdef CONFIG_ARM64_LINEAR_MAP_PAUSE
	KUNIT_CASE(a_change_has_one_pause_or_none),
	KUNIT_CASE(a_full_plan_takes_one_pause),
#endif
#ifdef CONFIG_ARM64_LINEAR_MAP_ACCESS_FLAG
	KUNIT_CASE(idle_blocks_are_split_by_their_access_flag),
	KUNIT_CASE(vfree_knows_a_block_without_access_flag),
#endif
	KUNIT_CASE(splits_only_at_the_ends),
	KUNIT_CASE(leaf_start_needs_no_split),
	KUNIT_CASE(unmapped_is_an_error),
	KUNIT_CASE(random_splits_match_a_model),
	{}
};

static struct kunit_suite linear_map_suite = {
	.name = "linear_map",
	.init = stop_folding,
	.exit = resume_folding,
	.test_cases = linear_map_cases,
};

kunit_test_suite(linear_map_suite);

MODULE_DESCRIPTION("KUnit tests of the linear map in blocks");
MODULE_LICENSE("GPL");
