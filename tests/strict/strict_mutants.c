// SPDX-License-Identifier: GPL-2.0-only
/*
 * Defects of the kind that the strict machine has to find: each changes the
 * page tables of memory of its own in a way that hardware may punish, and puts
 * everything right again.
 *
 * Write the name of one to the parameter "run".  What breaks the rule is done
 * in a function of that name; what sets it up is correct.  Some are correct as
 * a whole, and are there to be found without a report.
 */
#include <linux/cleanup.h>
#include <linux/cpumask.h>
#include <linux/gfp.h>
#include <linux/io.h>
#include <linux/irqflags.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pgtable.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/vmalloc.h>

#include <asm/barrier.h>
#include <asm/sysreg.h>

#define ADDRESS_MASK	GENMASK_ULL(47, PAGE_SHIFT)
#define STRIDE		(PAGE_SHIFT - 3)
#define ENTRIES		(PAGE_SIZE / 8)
#define LEAF_SIZE	(PAGE_SIZE * ENTRIES)

/* In the operand of a TLBI, bits 47 to 44: the granule, and a block's level. */
#define LEVEL_OF_BLOCK	((PAGE_SHIFT - 10ULL) / 2 << 46 | 2ULL << 44)

#define tlbi_va(op, va, extra) do {					\
	u64 __operand = ((va) >> 12 & GENMASK_ULL(43, 0)) | (extra);	\
									\
	asm volatile("tlbi " op ", %0" : : "r" (__operand));		\
} while (0)

/* Memory with a table of its own, and the entries for it. */
static unsigned long area;
static u64 *pages;	/* the table */
static u64 *block;	/* the entry that leads to it */
static u64 attributes;	/* of a page of it */
static phys_addr_t memory, other;	/* blocks, aligned */

/*
 * The function that issues the TLBI is the one that a report names, so these
 * two must be part of the mutant that calls them.
 */
static __always_inline void invalidate_all(void)
{
	dsb(ishst);
	asm volatile("tlbi vmalle1is");
	dsb(ish);
	isb();
}

static __always_inline void invalidate(unsigned long va)
{
	dsb(ishst);
	tlbi_va("vaale1is", va, 0);
	dsb(ish);
	isb();
}

/* Change an entry as the architecture wants it. */
static void set_entry(u64 *entry, u64 desc)
{
	WRITE_ONCE(*entry, 0);
	invalidate_all();
	WRITE_ONCE(*entry, desc);
	dsb(ishst);
	isb();
}

static u64 page_desc(phys_addr_t pa)
{
	return attributes | pa;
}

static u64 block_desc(phys_addr_t pa)
{
	return (attributes & ~PTE_TABLE_BIT) | pa;
}

static int address_bits(void)
{
	return 64 - (read_sysreg(tcr_el1) >> 16 & 63);
}

static int first_level(void)
{
	return 4 - DIV_ROUND_UP(address_bits() - PAGE_SHIFT, STRIDE);
}

/* Page tables at their addresses in the linear map, from the root down. */
static u64 *find_entry(unsigned long va, int last)
{
	int level = first_level();
	int shift = PAGE_SHIFT + (3 - level) * STRIDE;
	u64 mask = BIT(address_bits() - shift) - 1;
	u64 *table = phys_to_virt(read_sysreg(ttbr1_el1) & GENMASK_ULL(47, 6));

	for (;; level++, shift -= STRIDE, mask = ENTRIES - 1) {
		u64 *entry = table + (va >> shift & mask);

		if (level == last)
			return entry;
		table = phys_to_virt(*entry & ADDRESS_MASK);
	}
}

/* The setups. */

static void map_pages(unsigned int nr, phys_addr_t pa, u64 bits)
{
	unsigned int i;

	for (i = 0; i < ENTRIES; i++)
		WRITE_ONCE(pages[i], 0);
	invalidate_all();
	for (i = 0; i < nr; i++)
		WRITE_ONCE(pages[i], page_desc(pa + i * PAGE_SIZE) | bits);
	dsb(ishst);
	isb();
}

static void fill_table(u64 *table, unsigned int nr, phys_addr_t pa)
{
	unsigned int i;

	for (i = 0; i < ENTRIES; i++)
		WRITE_ONCE(table[i], i < nr ? page_desc(pa + i * PAGE_SIZE) : 0);
	dsb(ishst);
}

/* The mutants. */

static noinline void new_address(void)
{
	WRITE_ONCE(pages[0], page_desc(other));
}

/* The contents are equal, but the old entry is writable. */
static noinline void new_address_of_writable(void)
{
	WRITE_ONCE(pages[0], page_desc(other) | PTE_RDONLY);
}

/* Of two entries that are stored at once, the first one stays as it is. */
static noinline void second_of_pair(void)
{
	asm volatile("stp %0, %1, [%2]" : :
		     "r" (pages[0]), "r" (page_desc(other)), "r" (pages) :
		     "memory");
}

static noinline void second_of_exclusive_pair(void)
{
	u64 first, second;
	u32 failed;

	asm volatile("1:	ldxp	%0, %1, [%3]\n"
		     "	stxp	%w2, %0, %4, [%3]\n"
		     "	cbnz	%w2, 1b" :
		     "=&r" (first), "=&r" (second), "=&r" (failed) :
		     "r" (pages), "r" (page_desc(other)) : "memory");
}

static noinline void second_of_swapped_pair(void)
{
	register u64 first asm("x0") = pages[0];
	register u64 second asm("x1") = pages[1];
	register u64 new_first asm("x2") = first;
	register u64 new_second asm("x3") = page_desc(other);

	asm volatile(".arch_extension lse\n"
		     "	casp	%0, %1, %2, %3, [%4]" :
		     "+r" (first), "+r" (second) :
		     "r" (new_first), "r" (new_second), "r" (pages) : "memory");
}

/* This one is correct: permissions change live, those of both entries too. */
static noinline void permissions_of_pair(void)
{
	asm volatile("stp %0, %1, [%2]" : :
		     "r" (pages[0] | PTE_RDONLY), "r" (pages[1] | PTE_RDONLY),
		     "r" (pages) : "memory");
}

/* So is this: TLBI VMALLE1ISNXS, whose name assemblers may not know. */
static noinline void invalidated_without_xs(void)
{
	WRITE_ONCE(pages[0], 0);
	dsb(ishst);
	asm volatile("sys #0, c9, c3, #0");
	dsb(ish);
	WRITE_ONCE(pages[0], page_desc(other));
}

static noinline void new_memory_type(void)
{
	WRITE_ONCE(pages[0], (page_desc(memory) & ~PTE_ATTRINDX_MASK) |
			     PTE_ATTRINDX(MT_DEVICE_nGnRE));
}

static noinline void global_over_not_global(void)
{
	WRITE_ONCE(pages[0], page_desc(memory) & ~PTE_NG);
}

/* The TLBI is there, and nothing waits for it. */
static noinline void made_too_early(void)
{
	unsigned long flags;

	/* An interrupt may have a DSB that waits for the TLBI. */
	local_irq_save(flags);
	WRITE_ONCE(pages[0], 0);
	dsb(ishst);
	tlbi_va("vaale1is", area, 0);
	WRITE_ONCE(pages[0], page_desc(other));
	dsb(ish);
	local_irq_restore(flags);
}

static noinline void no_barrier_before_tlbi(void)
{
	WRITE_ONCE(pages[0], 0);
	tlbi_va("vaale1is", area, 0);
	dsb(ish);
	WRITE_ONCE(pages[0], page_desc(other));
}

static noinline void one_cpu_invalidated(void)
{
	WRITE_ONCE(pages[0], 0);
	dsb(ishst);
	tlbi_va("vaale1", area, 0);
	dsb(ish);
	WRITE_ONCE(pages[0], page_desc(other));
}

static noinline void wrong_level(void)
{
	WRITE_ONCE(pages[0], 0);
	dsb(ishst);
	tlbi_va("vaale1is", area, LEVEL_OF_BLOCK);
	dsb(ish);
	WRITE_ONCE(pages[0], page_desc(other));
}

static noinline void short_range(void)
{
	unsigned int i;

	for (i = 0; i < 4; i++)
		WRITE_ONCE(pages[i], 0);
	dsb(ishst);
	for (i = 0; i < 3; i++)
		tlbi_va("vaale1is", area + i * PAGE_SIZE, 0);
	dsb(ish);
	for (i = 0; i < 4; i++)
		WRITE_ONCE(pages[i], page_desc(other + i * PAGE_SIZE));
}

/* Another size, which BBM level 2 allows. */
static noinline void new_size(void)
{
	WRITE_ONCE(*block, block_desc(memory));
}

/* A split that nothing invalidates, and then one of its pages. */
static noinline void split_believed_too_early(void)
{
	u64 table = *block;

	set_entry(block, block_desc(memory));
	WRITE_ONCE(*block, table);
	WRITE_ONCE(pages[1], page_desc(memory + PAGE_SIZE) | PTE_RDONLY);
	invalidate(area + PAGE_SIZE);
}

/* The same page unmapped: neither it nor the block is in the tables. */
static noinline void split_and_unmapped(void)
{
	u64 table = *block;

	set_entry(block, block_desc(memory));
	WRITE_ONCE(*block, table);
	WRITE_ONCE(pages[1], 0);
	invalidate(area + PAGE_SIZE);
}

static noinline void half_filled_table(void)
{
	u64 table = *block;

	set_entry(block, block_desc(memory));
	fill_table(pages, ENTRIES - 1, memory);
	WRITE_ONCE(*block, table);
}

/* The table is given away after an invalidation of the last level alone. */
static noinline void table_given_away(void)
{
	WRITE_ONCE(*block, 0);
	invalidate(area);
	WRITE_ONCE(pages[1], 0xdead0000);
}

/* The same, by the instruction that clear_page() uses. */
static noinline void table_zeroed(void)
{
	WRITE_ONCE(*block, 0);
	invalidate(area);
	asm volatile("dc zva, %0" : : "r" (pages) : "memory");
}

/* What leads to a table is of one address space, and that is not known. */
static noinline void table_of_one_address_space(void)
{
	WRITE_ONCE(*block, 0);
	dsb(ishst);
	tlbi_va("vae1is", area, 0);
	dsb(ish);
	isb();
	WRITE_ONCE(pages[1], 0xdead0000);
}

/* The TLBI names the level of a block, where a table was. */
static noinline void table_taken_for_block(void)
{
	WRITE_ONCE(*block, 0);
	dsb(ishst);
	tlbi_va("vaae1is", area, LEVEL_OF_BLOCK);
	dsb(ish);
	isb();
	WRITE_ONCE(pages[1], 0xdead0000);
}

/* The only leaf is invalidated, and a walk cache still leads to it. */
static noinline void leaf_of_unlinked_table(void)
{
	map_pages(1, memory, 0);
	WRITE_ONCE(*block, 0);
	invalidate(area);
	WRITE_ONCE(*block, block_desc(other));
}

static noinline void misaligned_group(void)
{
	unsigned int i;

	for (i = 0; i < CONT_PTES; i++)
		WRITE_ONCE(pages[i], page_desc(memory + (i + 1) * PAGE_SIZE) |
				     PTE_CONT);
}

static noinline void inconsistent_group(void)
{
	unsigned int i;

	for (i = 0; i < CONT_PTES - 1; i++)
		WRITE_ONCE(pages[i], page_desc(memory + i * PAGE_SIZE) |
				     PTE_CONT);
	invalidate_all();
}

/* The others keep the bit, so a TLB may go on with all of the group. */
static noinline void member_unmapped(void)
{
	map_pages(CONT_PTES, memory, PTE_CONT);
	WRITE_ONCE(pages[1], 0);
	invalidate(area + PAGE_SIZE);
}

/* A TLB may translate the last page as part of the group. */
static noinline void member_elsewhere(void)
{
	map_pages(CONT_PTES - 1, memory, PTE_CONT);
	WRITE_ONCE(pages[CONT_PTES - 1], page_desc(other));
}

static noinline void blind_store(void)
{
	WRITE_ONCE(pages[0], page_desc(memory) | PTE_SPECIAL);
}

/* A store-release does not look at what is there either. */
static noinline void blind_release(void)
{
	smp_store_release(&pages[0], page_desc(memory) | PTE_SPECIAL);
}

/* A compare-and-exchange does: this one is correct. */
static noinline void compared_flag(void)
{
	u64 old = READ_ONCE(pages[0]);

	cmpxchg64(&pages[0], old, page_desc(memory) | PTE_SPECIAL);
}

static noinline void used_while_broken(void)
{
	/* Have this CPU's TLB hold it: QEMU would fault otherwise. */
	READ_ONCE(*(u64 *)area);
	WRITE_ONCE(pages[0], 0);
	READ_ONCE(*(u64 *)area);
}

static noinline void writable_and_executable(void)
{
	WRITE_ONCE(pages[0], (page_desc(memory) & ~PTE_PXN) | PTE_RDONLY);
}

/* A copy of the path to the area, in which it is another page. */
static u64 *copies[5];

static u64 *copy_of(const u64 *entry, u64 *copy)
{
	return copy + (unsigned long)entry % PAGE_SIZE / 8;
}

static bool copy_path(void)
{
	int first = first_level(), level;

	for (level = first; level <= 3; level++) {
		u64 *entry = find_entry(area, level);
		u64 *copy = (u64 *)__get_free_page(GFP_KERNEL);

		if (!copy)
			return false;
		copies[level - first] = copy;
		memcpy(copy, (void *)((unsigned long)entry & PAGE_MASK),
		       PAGE_SIZE);
		if (level > first) {
			entry = copy_of(find_entry(area, level - 1),
					copies[level - first - 1]);
			*entry = (*entry & ~ADDRESS_MASK) | virt_to_phys(copy);
		}
		if (level == 3)
			*copy_of(find_entry(area, 3), copy) = page_desc(other);
	}
	dsb(ishst);

	return true;
}

static void load_root(u64 ttbr)
{
	write_sysreg(ttbr, ttbr1_el1);
	isb();
	asm volatile("tlbi vmalle1");
	dsb(nsh);
	isb();
}

static noinline void common_not_private(void *unused)
{
	u64 ttbr = read_sysreg(ttbr1_el1);
	unsigned long flags;

	local_irq_save(flags);
	load_root((ttbr & ~ADDRESS_MASK) | virt_to_phys(copies[0]) |
		  TTBR_CNP_BIT);
	load_root(ttbr);
	local_irq_restore(flags);
}

static noinline void set_common(void *unused)
{
	load_root(read_sysreg(ttbr1_el1) | TTBR_CNP_BIT);
}

static void common(void)
{
	unsigned int cpu = cpumask_next(0, cpu_online_mask), i;

	if (cpu < nr_cpu_ids && copy_path()) {
		on_each_cpu(set_common, NULL, 1);
		smp_call_function_single(cpu, common_not_private, NULL, 1);
	}
	for (i = 0; i < ARRAY_SIZE(copies); i++) {
		free_page((unsigned long)copies[i]);
		copies[i] = NULL;
	}
}

static const struct {
	const char *name;
	void (*run)(void);
	u64 bits;		/* of the page, before */
	u64 cleared;
} mutants[] = {
	{ "new_address", new_address },
	{ "new_address_of_writable", new_address_of_writable },
	{ "second_of_pair", second_of_pair },
	{ "second_of_exclusive_pair", second_of_exclusive_pair },
	{ "second_of_swapped_pair", second_of_swapped_pair },
	{ "permissions_of_pair", permissions_of_pair },
	{ "invalidated_without_xs", invalidated_without_xs },
	{ "new_memory_type", new_memory_type },
	{ "global_over_not_global", global_over_not_global, PTE_NG },
	{ "made_too_early", made_too_early },
	{ "no_barrier_before_tlbi", no_barrier_before_tlbi },
	{ "one_cpu_invalidated", one_cpu_invalidated },
	{ "wrong_level", wrong_level },
	{ "short_range", short_range },
	{ "new_size", new_size },
	{ "split_believed_too_early", split_believed_too_early },
	{ "split_and_unmapped", split_and_unmapped },
	{ "half_filled_table", half_filled_table },
	{ "table_given_away", table_given_away },
	{ "table_zeroed", table_zeroed },
	{ "table_of_one_address_space", table_of_one_address_space },
	{ "table_taken_for_block", table_taken_for_block },
	{ "leaf_of_unlinked_table", leaf_of_unlinked_table },
	{ "misaligned_group", misaligned_group },
	{ "inconsistent_group", inconsistent_group },
	{ "member_unmapped", member_unmapped },
	{ "member_elsewhere", member_elsewhere },
	{ "blind_store", blind_store, 0, PTE_AF },
	{ "blind_release", blind_release, 0, PTE_AF },
	{ "compared_flag", compared_flag, 0, PTE_AF },
	{ "used_while_broken", used_while_broken },
	{ "writable_and_executable", writable_and_executable },
	{ "common_not_private", common },
};

static int run(const char *name, const struct kernel_param *kp)
{
	unsigned int order = ilog2(ENTRIES), i;
	void *space = vmalloc(2 * LEAF_SIZE);
	struct page *first = alloc_pages(GFP_KERNEL | __GFP_ZERO, order);
	struct page *second = alloc_pages(GFP_KERNEL | __GFP_ZERO, order);
	u64 *saved = vmalloc(PAGE_SIZE), table;
	int ret = -ENOMEM;

	if (!space || !first || !second || !saved)
		goto free;
	area = ALIGN((unsigned long)space, LEAF_SIZE);
	memory = page_to_phys(first);
	other = page_to_phys(second);
	pages = find_entry(area, 3);
	block = find_entry(area, 2);
	attributes = *pages & ~ADDRESS_MASK;
	table = *block;
	memcpy(saved, pages, PAGE_SIZE);

	ret = -EINVAL;
	for (i = 0; i < ARRAY_SIZE(mutants); i++) {
		if (!sysfs_streq(name, mutants[i].name))
			continue;
		/*
		 * What follows is not to be interrupted by a TLBI of somebody
		 * else, which would cover up.
		 */
		map_pages(ENTRIES, memory, mutants[i].bits);
		set_entry(pages, (page_desc(memory) | mutants[i].bits) &
				 ~mutants[i].cleared);
		if (!strncmp(mutants[i].name, "misaligned", 10) ||
		    !strncmp(mutants[i].name, "inconsistent", 12)) {
			memset(pages, 0, CONT_PTES * 8);
			invalidate_all();
		}
		mutants[i].run();

		/* A table that was unlinked is not written meanwhile. */
		if (*block == table) {
			memset(pages, 0, PAGE_SIZE);
			invalidate_all();
		} else {
			WRITE_ONCE(*block, 0);
			invalidate_all();
		}
		memcpy(pages, saved, PAGE_SIZE);
		dsb(ishst);
		WRITE_ONCE(*block, table);
		dsb(ishst);
		isb();
		ret = 0;
	}
free:
	if (first)
		__free_pages(first, order);
	if (second)
		__free_pages(second, order);
	vfree(saved);
	vfree(space);
	return ret;
}

static const struct kernel_param_ops run_ops = { .set = run };
module_param_cb(run, &run_ops, NULL, 0200);
MODULE_PARM_DESC(run, "The name of a mutant");

MODULE_DESCRIPTION("Defects that the strict machine has to find");
MODULE_LICENSE("GPL");
