// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of the CPUs' kernel page tables; see percpu_local.c. What is done
 * through them is tested by lib/percpu_kunit.c.
 */
#include <kunit/test.h>

#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/io.h>
#include <linux/memblock.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/pgtable.h>
#include <linux/set_memory.h>
#include <linux/slab.h>
#include <linux/smp.h>
#include <linux/uaccess.h>
#include <linux/uio.h>
#include <linux/vmalloc.h>

#include <asm/mmu_context.h>
#include <asm/percpu_local.h>
#include <asm/percpu_local_layout.h>
#include <asm/sections.h>
#include <asm/tlbflush.h>

#include "percpu_local.h"

#define ENTRIES		(PAGE_SIZE / sizeof(u64))

static DEFINE_PER_CPU(unsigned long, percpu_local_seen);

static int needs_local_map(struct kunit *test)
{
	if (!percpu_local_enabled())
		kunit_skip(test, "the local map is off");
	return 0;
}

/* How many entries of two tables of @size bytes differ. */
static unsigned int differences(const void *a, const void *b, size_t size)
{
	const u64 *one = a, *other = b;
	unsigned int i, found = 0;

	for (i = 0; i < size / sizeof(u64); i++)
		found += READ_ONCE(one[i]) != READ_ONCE(other[i]);

	return found;
}

/*
 * The entry for @addr below @pgdir that leads no further: a block's, or that of
 * the last level; NULL if there is no table of those.
 */
static pte_t *entry_at(pgd_t *pgdir, unsigned long addr)
{
	pgd_t *pgdp = pgd_offset_pgd(pgdir, addr);
	p4d_t *p4dp;
	pud_t *pudp;
	pmd_t *pmdp;

	if (pgd_none(READ_ONCE(*pgdp)))
		return NULL;
	p4dp = p4d_offset(pgdp, addr);
	if (p4d_none(READ_ONCE(*p4dp)))
		return NULL;
	pudp = pud_offset(p4dp, addr);
	if (pud_none(READ_ONCE(*pudp)))
		return NULL;
	if (pud_leaf(READ_ONCE(*pudp)))
		return (pte_t *)pudp;
	pmdp = pmd_offset(pudp, addr);
	if (pmd_none(READ_ONCE(*pmdp)))
		return NULL;
	if (pmd_leaf(READ_ONCE(*pmdp)))
		return (pte_t *)pmdp;

	return pte_offset_kernel(pmdp, addr);
}

static u64 leaf_at(pgd_t *pgdir, unsigned long addr)
{
	pte_t *entry = entry_at(pgdir, addr);

	return entry ? pte_val(__ptep_get(entry)) : 0;
}

static phys_addr_t phys_of(unsigned long addr)
{
	return __pte_to_phys(__pte(leaf_at(swapper_pg_dir, addr))) +
	       offset_in_page(addr);
}

/*
 * The index in @table, of @size bytes, of the entry that leads from @pgdir to
 * @addr; -1 if the way is not through it. A level that is folded has the entry
 * of another one, or when it is folded at boot, a wrong one in the same table:
 * so the lowest level in the table counts.
 */
static int index_in(pgd_t *pgdir, unsigned long addr, const void *table,
		    size_t size)
{
	pgd_t *pgdp = pgd_offset_pgd(pgdir, addr);
	p4d_t *p4dp = p4d_offset(pgdp, addr);
	const void *entries[] = { pud_offset(p4dp, addr), p4dp, pgdp };
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(entries); i++)
		if (entries[i] >= table && entries[i] < table + size)
			return (const u64 *)entries[i] - (const u64 *)table;

	return -1;
}

/* Another CPU may be about to set both entries: then they are the same soon. */
static bool stay_different(const u64 *one, const u64 *other)
{
	unsigned int tries;

	for (tries = 0; tries < 50; tries++) {
		if (READ_ONCE(*one) == READ_ONCE(*other))
			return false;
		msleep(20);
	}

	return true;
}

/*
 * Of a CPU's table and the @shared one that it is a copy of, those entries
 * differ that are on the path to the local region, and no others.
 */
static void expect_own_path(struct kunit *test, unsigned int cpu,
			    const u64 *copies, const u64 *shared, size_t size)
{
	const struct percpu_local_space *space = percpu_local_get_space();
	pgd_t *pgd = percpu_local_table_of(cpu)->pgd;
	int first = index_in(pgd, space->local, copies, size);
	int last = index_in(pgd, space->local + space->size - 1, copies, size);
	int i;

	KUNIT_ASSERT_GE(test, first, 0);
	KUNIT_ASSERT_GE(test, last, first);
	for (i = 0; i < size / sizeof(u64); i++) {
		bool differ = READ_ONCE(copies[i]) != READ_ONCE(shared[i]);

		if (i < first || i > last) {
			if (differ && stay_different(&copies[i], &shared[i]))
				KUNIT_FAIL(test, "CPU %u: entry %d is %#llx instead of %#llx\n",
					   cpu, i, copies[i], shared[i]);
		} else if (!differ) {
			/*
			 * With two levels, it is for ptes of the area, and set
			 * when the area has some. The first chunk has.
			 */
			if (i == first || !__is_defined(__PAGETABLE_PMD_FOLDED))
				KUNIT_FAIL(test, "CPU %u: entry %d is not its own\n",
					   cpu, i);
		}
	}
}

/* A table differs from the kernel's where the path to the local region begins. */
static void tables_differ_in_the_path_only(struct kunit *test)
{
	const struct percpu_local_table *table;
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		table = percpu_local_table_of(cpu);
		KUNIT_EXPECT_EQ(test, table->phys, virt_to_phys(table->pgd));

		expect_own_path(test, cpu, (u64 *)table->pgd,
				(u64 *)swapper_pg_dir, percpu_local_top_size());

		KUNIT_EXPECT_EQ(test, !!table->second_level,
				!!percpu_local_second_level);
		if (table->second_level)
			expect_own_path(test, cpu, table->second_level,
					(u64 *)percpu_local_second_level,
					PAGE_SIZE);
	}
}

static void the_block_is_laid_out_like_the_linkers(struct kunit *test)
{
	unsigned int cpu, size = percpu_local_top_size();

	for_each_possible_cpu(cpu) {
		void *pgd = percpu_local_table_of(cpu)->pgd;
		void *trampoline = pgd - TRAMP_SWAPPER_OFFSET;
		void *reserved = pgd - RESERVED_SWAPPER_OFFSET;

		KUNIT_EXPECT_FALSE(test, memchr_inv(reserved, 0, size));
		if (IS_ENABLED(CONFIG_UNMAP_KERNEL_AT_EL0))
			KUNIT_EXPECT_EQ(test, 0, differences(trampoline,
							     tramp_pg_dir,
							     size));
	}
}

/*
 * Top levels that are smaller than a page share one: a block for each CPU would
 * be 192 KiB with 64 KiB pages. They do not overlap, and each is aligned to its
 * size, as TTBR1 and the hardware ask for.
 */
static void small_top_levels_share_pages(struct kunit *test)
{
	unsigned int size = percpu_local_top_size();
	unsigned int cpu, other, node, same = 0, blocks = 0, expected = 0;

	KUNIT_EXPECT_LE(test, size, PAGE_SIZE);
	for_each_possible_cpu(cpu) {
		const void *pgd = percpu_local_table_of(cpu)->pgd;

		KUNIT_EXPECT_TRUE(test, IS_ALIGNED((unsigned long)pgd, size));
		blocks += PAGE_ALIGNED(pgd);
		for_each_possible_cpu(other)
			same += percpu_local_table_of(other)->pgd == pgd;
	}
	KUNIT_EXPECT_EQ(test, same, num_possible_cpus());
	for (node = 0; node < MAX_NUMNODES; node++) {
		unsigned int cpus = 0;

		for_each_possible_cpu(cpu)
			cpus += cpu_to_node(cpu) == node;
		expected += DIV_ROUND_UP(cpus * size, PAGE_SIZE);
	}
	KUNIT_EXPECT_EQ(test, blocks, expected);

	/* 16 entries of the fifth level, 64 or 1024 with 64 KiB pages. */
	if (pgtable_l5_enabled() ||
	    (IS_ENABLED(CONFIG_ARM64_64K_PAGES) && CONFIG_PGTABLE_LEVELS == 3))
		KUNIT_EXPECT_LT(test, size, PAGE_SIZE);
}

/* Write what is there already: 0, or -EFAULT if it cannot be written. */
static long try_to_write(void *table)
{
	return copy_to_kernel_nofault(table, table, sizeof(u64));
}

/* All is writable while the kernel boots: the test is run again later. */
static void the_block_is_as_writable_as_the_linkers(struct kunit *test)
{
	long expected = try_to_write(swapper_pg_dir);
	unsigned int cpu;

	if (!can_set_direct_map())
		expected = 0;
	kunit_info(test, "the top levels are %s\n",
		   expected ? "read-only" : "writable");
	/* What the top levels are found by is no easier to change. */
	KUNIT_EXPECT_EQ(test, try_to_write((void *)percpu_local_table_of(0)), expected);
	for_each_possible_cpu(cpu) {
		void *pgd = percpu_local_table_of(cpu)->pgd;
		void *trampoline = pgd - TRAMP_SWAPPER_OFFSET;
		void *reserved = pgd - RESERVED_SWAPPER_OFFSET;

		KUNIT_EXPECT_EQ(test, try_to_write(pgd), expected);
		KUNIT_EXPECT_EQ(test, try_to_write(reserved), expected);
		if (IS_ENABLED(CONFIG_UNMAP_KERNEL_AT_EL0))
			KUNIT_EXPECT_EQ(test, try_to_write(trampoline),
					expected);
	}
}

static void read_ttbr1(void *result)
{
	u64 *ttbr1 = result;

	ttbr1[smp_processor_id()] = read_sysreg(ttbr1_el1);
}

static void every_cpu_is_on_its_table(struct kunit *test)
{
	u64 *ttbr1 =
		kunit_kcalloc(test, nr_cpu_ids, sizeof(*ttbr1), GFP_KERNEL);
	unsigned int cpu;

	KUNIT_ASSERT_NOT_NULL(test, ttbr1);
	cpus_read_lock();
	on_each_cpu(read_ttbr1, ttbr1, 1);
	for_each_online_cpu(cpu) {
		u64 table = phys_to_ttbr(percpu_local_table_of(cpu)->phys);
		u64 found = ttbr1[cpu] & ~TTBR_ASID_MASK;

#ifdef CONFIG_ARM64_VA_BITS_52
		/*
		 * Where 64 KiB pages have fewer address bits than were hoped
		 * for.
		 */
		if (IS_ENABLED(CONFIG_ARM64_64K_PAGES) && vabits_actual == 48)
			table |= TTBR1_BADDR_4852_OFFSET;
#endif
		KUNIT_EXPECT_EQ(test, found, table);
		KUNIT_EXPECT_EQ(test, found & TTBR_CNP_BIT, 0);
	}
	cpus_read_unlock();
}

/*
 * Every page of each area is in its CPU's local region: they have tables in
 * common.
 */
static void local_regions_show_the_areas(struct kunit *test)
{
	const struct percpu_local_space *space = percpu_local_get_space();
	unsigned int cpu, unit = 0, mapped, executable;
	unsigned long offset;

	for_each_possible_cpu(cpu) {
		unsigned long area = space->areas + unit++ * space->stride;
		pgd_t *pgd = percpu_local_table_of(cpu)->pgd;
		pte_t *there = NULL;

		mapped = 0;
		executable = 0;
		for (offset = 0; offset < space->size; offset += PAGE_SIZE) {
			u64 leaf;

			if (!offset || IS_ALIGNED(area + offset, PMD_SIZE)) {
				there = entry_at(swapper_pg_dir, area + offset);
				KUNIT_EXPECT_PTR_EQ(test, there,
						    entry_at(pgd, space->local +
								  offset));
			} else if (there) {
				there++;
			}
			leaf = there ? pte_val(__ptep_get(there)) : 0;
			mapped += !!leaf;
			executable += leaf && (~leaf & (PTE_PXN | PTE_UXN));
		}
		KUNIT_EXPECT_GE(test, mapped,
				PFN_UP(__per_cpu_end - __per_cpu_start));
		KUNIT_EXPECT_EQ(test, executable, 0);
	}
	KUNIT_EXPECT_EQ(test, leaf_at(swapper_pg_dir, space->local), 0);
}

/*
 * A contiguous range is one of memory, too, or a TLB that has an entry for all
 * of it makes up an address. With 4 KiB pages, where a range is 64 KiB, the
 * first chunk consists of them.
 */
static void the_first_chunk_has_contiguous_ranges(struct kunit *test)
{
	const struct percpu_local_space *space = percpu_local_get_space();
	size_t static_size = __per_cpu_end - __per_cpu_start;
	unsigned int cpu, unit = 0;

	for_each_possible_cpu(cpu) {
		unsigned long area = space->areas + unit++ * space->stride;
		unsigned long addr, range, contiguous = 0;

		for (addr = area; addr < area + space->size;
		     addr += PAGE_SIZE) {
			pte_t pte = __pte(leaf_at(swapper_pg_dir, addr));
			pte_t head;

			if (!pte_valid(pte) || !pte_cont(pte))
				break;
			contiguous += PAGE_SIZE;
			range = round_down(addr, CONT_PTE_SIZE);
			head = __pte(leaf_at(swapper_pg_dir, range));
			KUNIT_EXPECT_TRUE(test, IS_ALIGNED(__pte_to_phys(head),
							   CONT_PTE_SIZE));
			KUNIT_EXPECT_EQ(test, pte_val(pte),
					pte_val(head) + (addr - range));
		}
		KUNIT_EXPECT_TRUE(test, IS_ALIGNED(contiguous, CONT_PTE_SIZE));
		if (IS_ENABLED(CONFIG_ARM64_4K_PAGES))
			KUNIT_EXPECT_GE(test, contiguous, static_size);
	}
}

static void pointers_lead_into_the_space(struct kunit *test)
{
	const struct percpu_local_space *space = percpu_local_get_space();
	unsigned long __percpu *dynamic = alloc_percpu(unsigned long);
	unsigned int cpu, unit = 0;

	KUNIT_ASSERT_NOT_NULL(test, (__force void *)dynamic);
	KUNIT_EXPECT_EQ(test, space->local,
			(unsigned long)__per_cpu_start & ~PERCPU_LOCAL_BIT);
	KUNIT_EXPECT_GE(test, space->areas, PERCPU_AREAS_START);
	KUNIT_EXPECT_TRUE(test, IS_ALIGNED(space->areas -
					   (unsigned long)__per_cpu_start,
					   PMD_SIZE));
	for_each_possible_cpu(cpu) {
		unsigned long area = space->areas + unit++ * space->stride;
		unsigned long ptr = (unsigned long)per_cpu_ptr(dynamic, cpu);

		KUNIT_EXPECT_GE(test, ptr, area);
		KUNIT_EXPECT_LT(test, ptr, area + space->size);
		KUNIT_EXPECT_EQ(test, ptr - area,
				(__force unsigned long)dynamic -
					(unsigned long)__per_cpu_start);
		KUNIT_EXPECT_FALSE(test,
				   is_vmalloc_addr(per_cpu_ptr(dynamic, cpu)));
	}
	KUNIT_EXPECT_LE(test,
			space->areas + (unit - 1) * space->stride + space->size,
			PERCPU_AREAS_END);
	KUNIT_EXPECT_LE(test, space->local + space->size, PERCPU_AREAS_START);
	free_percpu(dynamic);
}

/* Whoever asks for the page of an address of per-CPU data finds the right one. */
static void expect_page_of(struct kunit *test, void *ptr)
{
	struct kvec kvec = { .iov_base = ptr, .iov_len = sizeof(long) };
	struct page *page = vmalloc_to_page(ptr), **pages = NULL;
	struct iov_iter iter;
	size_t offset;

	KUNIT_EXPECT_TRUE(test, is_vmalloc_or_module_addr(ptr));
	KUNIT_EXPECT_FALSE(test, virt_addr_valid(ptr));
	KUNIT_ASSERT_NOT_NULL(test, page);
	KUNIT_EXPECT_EQ(test, page_to_phys(page) + offset_in_page(ptr),
			phys_of((unsigned long)ptr));
	KUNIT_EXPECT_EQ(test, per_cpu_ptr_to_phys(ptr),
			phys_of((unsigned long)ptr));

	iov_iter_kvec(&iter, ITER_SOURCE, &kvec, 1, sizeof(long));
	KUNIT_ASSERT_EQ(test, sizeof(long),
			iov_iter_extract_pages(&iter, &pages, sizeof(long), 1,
					       0, &offset));
	KUNIT_EXPECT_PTR_EQ(test, pages[0], page);
	KUNIT_EXPECT_EQ(test, offset, offset_in_page(ptr));
	kvfree(pages);
}

static void addresses_lead_to_pages(struct kunit *test)
{
	/* Four of the largest have no room in the first chunk. */
	void __percpu *dynamic[4];
	unsigned int cpu, i;

	for (i = 0; i < ARRAY_SIZE(dynamic); i++)
		dynamic[i] = __alloc_percpu(PCPU_MIN_UNIT_SIZE, sizeof(long));
	for_each_possible_cpu(cpu) {
		expect_page_of(test, per_cpu_ptr(&percpu_local_seen, cpu));
		for (i = 0; i < ARRAY_SIZE(dynamic); i++)
			if (dynamic[i])
				expect_page_of(test,
					       per_cpu_ptr(dynamic[i], cpu));
	}
	for (i = 0; i < ARRAY_SIZE(dynamic); i++) {
		KUNIT_EXPECT_NOT_NULL(test, (__force void *)dynamic[i]);
		free_percpu(dynamic[i]);
	}
}

/*
 * How many CPUs have room in the smallest address spaces, and that it is the
 * same wherever KASLR places the image.
 */
static void the_room_is_that_of_the_worst_case(struct kunit *test)
{
	const struct percpu_local_space *space = percpu_local_get_space();
	unsigned long end = PERCPU_AREAS_END - PERCPU_AREAS_START;
	unsigned int limit, nr;

	if (IS_ENABLED(CONFIG_ARM64_4K_PAGES) && VA_BITS == 39)
		limit = 496;
	else if (IS_ENABLED(CONFIG_ARM64_16K_PAGES) && VA_BITS == 36)
		limit = 42;
	else if (IS_ENABLED(CONFIG_ARM64_64K_PAGES) && VA_BITS == 42)
		limit = 255;
	else
		limit = 0;

	if (limit) {
		KUNIT_EXPECT_GE(test, percpu_local_room(limit),
				PERCPU_LOCAL_MIN);
		KUNIT_EXPECT_LT(test, percpu_local_room(limit + 1),
				PERCPU_LOCAL_MIN);
	} else {
		KUNIT_EXPECT_GE(test, percpu_local_room(CONFIG_NR_CPUS),
				PERCPU_LOCAL_MIN);
	}

	KUNIT_EXPECT_EQ(test, space->size,
			percpu_local_room(num_possible_cpus()));
	KUNIT_EXPECT_GE(test, space->size, PERCPU_LOCAL_MIN);
	KUNIT_EXPECT_GE(test, space->stride, space->size + PMD_SIZE);
	KUNIT_EXPECT_TRUE(test, IS_ALIGNED(space->stride, PMD_SIZE));

	for (nr = 1; nr <= CONFIG_NR_CPUS && percpu_local_room(nr); nr++)
		KUNIT_EXPECT_LE(test, nr * (percpu_local_room(nr) + PMD_SIZE),
				end);
}

/* KASAN has no shadow of what is mapped by hand. */
static void read_there(void *addr)
{
	this_cpu_write(percpu_local_seen,
		       READ_ONCE_NOCHECK(**(unsigned long **)addr));
}

/*
 * An address in the areas' space for which the top level has no entry, away from
 * the areas; 0 if there is none.
 */
static unsigned long address_without_entry(void)
{
	const struct percpu_local_space *space = percpu_local_get_space();
	unsigned long end = space->areas + num_possible_cpus() * space->stride;
	/* What an entry maps that each CPU has a copy of. */
	unsigned long entry_size = CONFIG_PGTABLE_LEVELS > 4 ? P4D_SIZE :
				   IS_ENABLED(CONFIG_ARM64_16K_PAGES) ?
				   PUD_SIZE : PGDIR_SIZE;
	unsigned long addr, first;

	for (addr = PERCPU_AREAS_END - PMD_SIZE; addr >= PERCPU_AREAS_START;
	     addr -= entry_size) {
		first = round_down(addr, entry_size);
		if ((first + entry_size <= space->areas || first >= end) &&
		    !entry_at(swapper_pg_dir, addr))
			return addr;
	}
	return 0;
}

/*
 * A mapping that needs a new entry at the top is there for all CPUs, and goes
 * for all.
 */
static void new_top_level_entries_reach_all(struct kunit *test)
{
	/* Tables stay: an entry of an earlier run is there, and not taken again. */
	unsigned long addr = address_without_entry();
	unsigned long *page;
	unsigned int cpu;

	if (!addr)
		kunit_skip(test, "the areas leave no entry free");
	page = (unsigned long *)get_zeroed_page(GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, page);
	*page = 0x5ca1ab1e;
	KUNIT_ASSERT_EQ(test, 0,
			vmap_page_range(addr, addr + PAGE_SIZE,
					virt_to_phys(page), PAGE_KERNEL));

	cpus_read_lock();
	on_each_cpu(read_there, &addr, 1);
	for_each_online_cpu(cpu)
		KUNIT_EXPECT_EQ(test, per_cpu(percpu_local_seen, cpu),
				0x5ca1ab1e);
	cpus_read_unlock();
	for_each_possible_cpu(cpu)
		KUNIT_EXPECT_EQ(test,
				leaf_at(percpu_local_table_of(cpu)->pgd, addr),
				leaf_at(swapper_pg_dir, addr));

	vunmap_range(addr, addr + PAGE_SIZE);
	for_each_possible_cpu(cpu)
		KUNIT_EXPECT_EQ(test,
				leaf_at(percpu_local_table_of(cpu)->pgd, addr),
				0);
	tables_differ_in_the_path_only(test);
	free_page((unsigned long)page);
}

/*
 * ioremap() maps in blocks, unless CONFIG_PTDUMP_DEBUGFS rules them out. With the
 * fewest address bits the largest are entries of the top level, which each CPU
 * has a copy of, where a table may have been before.
 */
static void what_ioremap_maps_reaches_all(struct kunit *test)
{
	bool pmds = arch_vmap_pmd_supported(PAGE_KERNEL);
	bool puds = arch_vmap_pud_supported(PAGE_KERNEL) &&
		    __is_defined(__PAGETABLE_PUD_FOLDED);
	unsigned long size = puds ? PUD_SIZE : PMD_SIZE;
	/* Where no memory is. It does not matter what is: nobody touches it. */
	phys_addr_t phys = ALIGN(memblock_end_of_DRAM(), size);
	void __iomem *mapped = ioremap(phys, size);
	unsigned long addr = (__force unsigned long)mapped;
	unsigned int cpu;
	u64 leaf;

	KUNIT_ASSERT_NE(test, addr, 0);
	leaf = leaf_at(swapper_pg_dir, addr);
	KUNIT_EXPECT_EQ(test, leaf & PTE_TYPE_MASK,
			pmds ? PMD_TYPE_SECT : PTE_TYPE_PAGE);
	KUNIT_EXPECT_EQ(test, __pte_to_phys(__pte(leaf)), phys);
	for_each_possible_cpu(cpu)
		KUNIT_EXPECT_EQ(test, leaf,
				leaf_at(percpu_local_table_of(cpu)->pgd, addr));
	tables_differ_in_the_path_only(test);

	iounmap(mapped);
	for_each_possible_cpu(cpu)
		KUNIT_EXPECT_EQ(test, 0,
				leaf_at(percpu_local_table_of(cpu)->pgd, addr));
	tables_differ_in_the_path_only(test);
}

/*
 * What adds memory to the linear map sets entries of the common second level
 * through the fixmap, and says so afterwards. Only memory at very high
 * addresses needs a new one there.
 */
static void new_second_level_entries_are_copied(struct kunit *test)
{
	u64 *shared = (u64 *)percpu_local_second_level;
	void *page;
	unsigned int cpu, i;
	u64 desc;

	if (!shared)
		kunit_skip(test, "the top level has an entry for the local region alone");
	page = (void *)get_zeroed_page(GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, page);
	desc = __phys_to_pte_val(virt_to_phys(page)) | PMD_TYPE_TABLE;

	for (i = 0; i < ENTRIES; i++) {
		bool free = !READ_ONCE(shared[i]);

		for_each_possible_cpu(cpu) {
			const u64 *copies =
				percpu_local_table_of(cpu)->second_level;

			free &= !READ_ONCE(copies[i]);
		}
		if (free)
			break;
	}
	KUNIT_ASSERT_LT(test, i, ENTRIES);

	WRITE_ONCE(shared[i], desc);
	percpu_local_sync_second_level();
	for_each_possible_cpu(cpu) {
		u64 *copies = percpu_local_table_of(cpu)->second_level;

		KUNIT_EXPECT_EQ(test, READ_ONCE(copies[i]), desc);
	}
	tables_differ_in_the_path_only(test);

	/* As set_p4d() and set_pud() clear it. */
	percpu_local_mirror(&shared[i], 0);
	WRITE_ONCE(shared[i], 0);
	dsb(ishst);
	for_each_possible_cpu(cpu) {
		u64 *copies = percpu_local_table_of(cpu)->second_level;

		KUNIT_EXPECT_EQ(test, READ_ONCE(copies[i]), 0);
	}
	tables_differ_in_the_path_only(test);

	flush_tlb_all();
	free_page((unsigned long)page);
}

#ifdef __PERCPU_LOCAL_OPS
/*
 * A per-CPU pointer that is NULL, and members of what it should point at: no
 * user memory.
 */
static void local_addresses_of_null_are_not_user_space(struct kunit *test)
{
	KUNIT_EXPECT_EQ(test, __pcp_local_addr(NULL), 0);
	KUNIT_EXPECT_EQ(test, __pcp_local_addr(0x100), 0x100);
}

/*
 * A variable that callers guard with per-CPU operations. Accesses that the
 * compiler does not know about stand for those of an interrupt handler.
 */
static unsigned long percpu_local_guarded;

static __always_inline void write_unnoticed(unsigned long value)
{
	asm volatile("str\t%0, [%1]"
		     : : "r" (value), "r" (&percpu_local_guarded));
}

static __always_inline unsigned long read_unnoticed(void)
{
	unsigned long value;

	asm volatile("ldr\t%0, [%1]"
		     : "=r" (value) : "r" (&percpu_local_guarded));
	return value;
}

#define EXPECT_BARRIER(test, operation)					\
do {									\
	unsigned long before, seen, after;				\
									\
	percpu_local_guarded = 1;					\
	(void)(operation);						\
	seen = read_unnoticed();					\
	percpu_local_guarded = 2;					\
	before = percpu_local_guarded;					\
	write_unnoticed(3);						\
	(void)(operation);						\
	after = percpu_local_guarded;					\
	KUNIT_EXPECT_EQ_MSG(test, seen, 1, "written after " #operation); \
	KUNIT_EXPECT_EQ(test, before, 2);				\
	KUNIT_EXPECT_EQ_MSG(test, after, 3, "read before " #operation);	\
} while (0)

#define EXPECT_BARRIERS(test, form, sz)					\
do {									\
	EXPECT_BARRIER(test, __pcp_##form##_fetch_add_##sz(var, addr, 1));	\
	EXPECT_BARRIER(test, __pcp_##form##_xchg_##sz(var, addr, 1));	\
	EXPECT_BARRIER(test, __pcp_##form##_cmpxchg_##sz(var, addr, 1, 2));	\
} while (0)

static DEFINE_PER_CPU_ALIGNED(u128, percpu_local_lock);

/*
 * An operation that changes its variable and returns a value is a barrier to
 * the compiler: what is read or written after it is not read or written before,
 * nor the other way round. The forms by themselves: where one is chosen, the
 * others are in the compiler's way.
 */
static void a_returned_value_is_a_compiler_barrier(struct kunit *test)
{
	void *var = (__force void *)&percpu_local_lock;
	unsigned long addr = __pcp_local_addr(var);

#ifdef CONFIG_PREEMPT_COUNT
	EXPECT_BARRIERS(test, llsc, 8);
	EXPECT_BARRIERS(test, llsc, 16);
	EXPECT_BARRIERS(test, llsc, 32);
	EXPECT_BARRIERS(test, llsc, 64);
#endif
	if (!cpus_have_final_cap(ARM64_HAS_PERCPU_LOCAL_LSE)) {
		if (!IS_ENABLED(CONFIG_PREEMPT_COUNT))
			kunit_skip(test, "these operations are the base kernel's here");
		return;
	}
	EXPECT_BARRIERS(test, local, 8);
	EXPECT_BARRIERS(test, local, 16);
	EXPECT_BARRIERS(test, local, 32);
	EXPECT_BARRIERS(test, local, 64);
	EXPECT_BARRIER(test, __pcp_local_cmpxchg_128(var, addr, 1, 2));
}
#endif /* __PERCPU_LOCAL_OPS */

static struct kunit_case percpu_local_cases[] = {
	KUNIT_CASE(tables_differ_in_the_path_only),
	KUNIT_CASE(the_block_is_laid_out_like_the_linkers),
	KUNIT_CASE(small_top_levels_share_pages),
	KUNIT_CASE(the_block_is_as_writable_as_the_linkers),
	KUNIT_CASE(every_cpu_is_on_its_table),
	KUNIT_CASE(local_regions_show_the_areas),
	KUNIT_CASE(the_first_chunk_has_contiguous_ranges),
	KUNIT_CASE(pointers_lead_into_the_space),
	KUNIT_CASE(addresses_lead_to_pages),
	KUNIT_CASE(the_room_is_that_of_the_worst_case),
	KUNIT_CASE(new_top_level_entries_reach_all),
	KUNIT_CASE(what_ioremap_maps_reaches_all),
	KUNIT_CASE(new_second_level_entries_are_copied),
#ifdef __PERCPU_LOCAL_OPS
	KUNIT_CASE(local_addresses_of_null_are_not_user_space),
	KUNIT_CASE(a_returned_value_is_a_compiler_barrier),
#endif
	{ }
};

static struct kunit_suite percpu_local_suite = {
	.name = "percpu_local",
	.init = needs_local_map,
	.test_cases = percpu_local_cases,
};

kunit_test_suite(percpu_local_suite);
