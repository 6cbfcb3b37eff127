// SPDX-License-Identifier: GPL-2.0-only
/*
 * A kernel page table for each CPU, which differ in the local region alone:
 * there, each CPU finds its own copy of the per-CPU data. See
 * asm/percpu_local_layout.h for where that is and
 * Documentation/arch/arm64/percpu-local.rst for what it is good for.
 *
 * A CPU's table is the top level, with private tables below it on the path to
 * the local region. At the end of the path, an entry of the last but one level
 * (pmd) points at the same last-level table (of ptes) as the entry for the
 * CPU's area does. So an area's pages appear in the local region, and disappear
 * from it, without anything being done, and the two views cannot differ. The
 * pmds are linked once, when the area first has a table there: tables of this
 * space are never freed.
 *
 *   CPU 1's top level -> ... -> pmd of local address --.
 *                                                       +-> ptes of the area
 *   swapper_pg_dir -> ... -> pmd of CPU 1's area ------'
 *
 * swapper_pg_dir stays what the kernel looks at and changes. Its entries are
 * copied to each CPU's top level whenever one is set (set_swapper_pgd()). If
 * all of the upper kernel space hangs under one entry of the top level, as with
 * 52-bit addresses, the second level is on the private path, and its entries
 * are copied just so (set_p4d(), set_pud()). Each entry has one writer at a
 * time, who writes all its copies, so no lock is needed for that.
 *
 * The entry code finds the trampoline's table and the reserved one at fixed
 * distances from TTBR1, so a CPU's top level is in the last page of a block
 * that is laid out like the linker's: trampoline, reserved, top level. Where a
 * top level is smaller than a page, the CPUs of a node share a block, each at
 * an offset of its own in each of its pages. After boot the blocks are read-only,
 * as the linker's is, where parts of the linear map can be.
 *
 * TTBR1 is loaded without CnP, as these tables are not common to all CPUs;
 * TTBR0 keeps it. Who changes the ASID in TTBR1 reads the register and writes it
 * back, and must not move to another CPU in between, whose table is another one.
 * Everybody who does so has interrupts or preemption off; or, with PREEMPT_RT, a
 * lock that keeps the task on its CPU. cpu_do_switch_mm() cannot check that with
 * cant_migrate(): while KASAN's shadow is made, nothing may be called there that
 * has a stack to poison.
 *
 * All tables are made at boot, for every possible CPU, and stay: a CPU that
 * goes offline and comes back finds its own.
 */
#define pr_fmt(fmt) "percpu: " fmt

#include <linux/cpumask.h>
#include <linux/init.h>
#include <linux/kstrtox.h>
#include <linux/memblock.h>
#include <linux/mm.h>
#include <linux/percpu-local.h>
#include <linux/pgtable.h>
#include <linux/workqueue.h>

#include <asm/mmu_context.h>
#include <asm/numa.h>
#include <asm/percpu_local.h>
#include <asm/percpu_local_layout.h>
#include <asm/sections.h>
#include <asm/set_memory.h>
#include <asm/tlbflush.h>

#include "percpu_local.h"

static_assert(IS_ALIGNED(PERCPU_LOWER_START, 2 * PERCPU_LOCAL_BIT));
static_assert(MODULES_VADDR == PERCPU_LOWER_END);
static_assert(VMEMMAP_START - PERCPU_LOWER_END > PERCPU_LOCAL_BIT / 4 * 3,
	      "struct page is too large for CONFIG_ARM64_PERCPU_LOCAL_MAP: switch it off");
static_assert(TRAMP_SWAPPER_OFFSET >= RESERVED_SWAPPER_OFFSET);

/* One for each possible CPU, by its number. Written at boot. */
static struct percpu_local_table *tables __ro_after_init;
static struct percpu_local_space space __ro_after_init;
static bool enabled __ro_after_init;
/* Bytes of a top level. */
static unsigned int top_size __ro_after_init;

unsigned long percpu_local_second_level __ro_after_init;

/*
 * Where the areas begin in the room that there is, in 65,536ths of it. Set with the
 * image's offset by KASLR, and 0 without. Nothing else is made of these bits of the
 * seed, so where the areas are tells no more of where the image is than its place
 * modulo PMD_SIZE, which is theirs. They hide the data of other CPUs only: who knows
 * where the image is knows where the local region is.
 */
u16 percpu_areas_seed __initdata;

static bool wanted __initdata = true;

static int __init parse_percpu_local_map(char *arg)
{
	if (!arg || kstrtobool(arg, &wanted)) {
		pr_err("percpu_local_map=%s is not understood, say 0 or 1\n",
		       arg ?: "");
		return -EINVAL;
	}
	return 0;
}
early_param("percpu_local_map", parse_percpu_local_map);

/**
 * percpu_local_enabled() - does each CPU have a table of its own?
 *
 * Context: any, after setup_per_cpu_areas().
 * Return: true if so.
 */
bool percpu_local_enabled(void)
{
	return enabled;
}

/**
 * percpu_local_table_of() - the kernel page table of a CPU
 * @cpu: a possible CPU
 *
 * Context: any, if percpu_local_enabled().
 * Return: the table.
 */
const struct percpu_local_table *percpu_local_table_of(unsigned int cpu)
{
	return &tables[cpu];
}

/**
 * percpu_local_get_space() - where the areas and the local region are
 *
 * Context: any, if percpu_local_enabled().
 * Return: a description of both, which does not change.
 */
const struct percpu_local_space *percpu_local_get_space(void)
{
	return &space;
}

/**
 * percpu_local_top_size() - how many bytes a top level takes
 *
 * Context: any, if percpu_local_enabled().
 * Return: bytes.
 */
unsigned int percpu_local_top_size(void)
{
	return top_size;
}

/* The tables at boot */

/* How many pages of a block come before those of top levels. */
#define BYTES_BELOW	(IS_ENABLED(CONFIG_UNMAP_KERNEL_AT_EL0) ?	\
			 TRAMP_SWAPPER_OFFSET : RESERVED_SWAPPER_OFFSET)
#define PAGES_BELOW	(BYTES_BELOW / PAGE_SIZE)

static void * __init alloc_pages_of(unsigned int cpu, unsigned int nr)
{
	void *pages = memblock_alloc_try_nid(nr * PAGE_SIZE, PAGE_SIZE, 0,
					     MEMBLOCK_ALLOC_ACCESSIBLE,
					     early_cpu_to_node(cpu));

	if (pages)
		space.tables += nr * PAGE_SIZE;
	return pages;
}

static unsigned int __init size_of_top_level(void)
{
	/*
	 * If a level is folded at boot, the level below is the top one. It may
	 * have a page full of entries, and is found by aligning pointers down
	 * to a page.
	 */
	if ((CONFIG_PGTABLE_LEVELS == 5 && !pgtable_l5_enabled()) ||
	    (CONFIG_PGTABLE_LEVELS == 4 && !pgtable_l4_enabled()))
		return PAGE_SIZE;

	/*
	 * A table is aligned to its size, and to 64 bytes at least. With 64 KiB
	 * pages and fewer address bits than were built for, the table is the
	 * end of this, at TTBR1_BADDR_4852_OFFSET: that is set by an OR, so the
	 * whole has to be aligned to its size, too.
	 */
	return max(PTRS_PER_PGD * sizeof(pgd_t), 64);
}

/*
 * Where the next top level of a node's CPUs goes; NULL if that needs a block. What
 * is below a top level is found by subtracting from the value of TTBR1, with the
 * ASID and, in bits 5 to 2, bits 51 to 48 of the address in it. So no address with
 * 48 zeros may be inside a block: that would take RAM on both sides of one.
 */
static void *next_top_level[MAX_NUMNODES] __initdata;

static void * __init alloc_top_level(unsigned int cpu)
{
	int node = early_cpu_to_node(cpu);
	void **next = &next_top_level[node == NUMA_NO_NODE ? 0 : node];
	void *top = *next;

	if (!top) {
		top = alloc_pages_of(cpu, PAGES_BELOW + 1);
		if (!top)
			return NULL;
		top += PAGES_BELOW * PAGE_SIZE;
	}
	*next = PAGE_ALIGNED(top + top_size) ? NULL : top + top_size;

	return top;
}

/*
 * Which entries of a table each CPU has its own of: those on the path to the
 * local region.
 */
struct private_entries {
	unsigned int first;
	unsigned int end;
};

static struct private_entries private_top __ro_after_init;
static struct private_entries private_second __ro_after_init;

/* The path of each CPU is the same. */
static void __init note_private(const struct percpu_local_table *table,
				const void *entry)
{
	struct private_entries *private;
	unsigned int index;

	if (entry >= (void *)table->pgd &&
	    entry < (void *)table->pgd + top_size) {
		private = &private_top;
		index = (const u64 *)entry - (u64 *)table->pgd;
	} else if (PTR_ALIGN_DOWN(entry, PAGE_SIZE) == table->second_level) {
		private = &private_second;
		index = (const u64 *)entry - (u64 *)table->second_level;
	} else {
		return;
	}

	if (private->first == private->end)
		private->first = index;
	private->first = min(private->first, index);
	private->end = max(private->end, index + 1);
}

/*
 * A private table for @cpu in place of the one that the @shared descriptor
 * points at, with the same entries, or an empty one if that is 0.
 *
 * Return: a descriptor of it, or 0 without memory.
 */
static u64 __init private_table(unsigned int cpu, u64 shared, void **copy)
{
	u64 attributes = PMD_TYPE_TABLE | PMD_TABLE_UXN | PMD_TABLE_PXN;
	void *table = alloc_pages_of(cpu, 1);

	if (!table)
		return 0;

	if (shared) {
		phys_addr_t pa = __pte_to_phys(__pte(shared));

		attributes = shared & ~__phys_to_pte_val(pa);
		memcpy(table, __va(pa), PAGE_SIZE);
		percpu_local_second_level = (unsigned long)__va(pa);
		*copy = table;
	}

	return __phys_to_pte_val(__pa(table)) | attributes;
}

/*
 * Make the @entry that leads to a local address point at a private table, if it
 * does not yet: it is still what all CPUs have.
 */
#define make_private(cpu, entry, type, shared, table)			\
({									\
	struct percpu_local_table *__table = (table);			\
	typeof(entry) __entry = (entry);				\
	u64 __desc = type##_val(*__entry);				\
									\
	if (__desc == (shared)) {					\
		note_private(__table, __entry);				\
		__desc = private_table(cpu, __desc,			\
				       &__table->second_level);		\
		if (__desc)						\
			WRITE_ONCE(*__entry, __##type(__desc));		\
	}								\
	__desc;								\
})

/* Make the tables on the path to @addr, down to that of pmds. */
static int __init make_path(unsigned int cpu, struct percpu_local_table *table,
			    unsigned long addr)
{
	pgd_t *pgdp = pgd_offset_pgd(table->pgd, addr);
	pgd_t *kernel_pgdp = pgd_offset_k(addr);
	p4d_t *p4dp, *kernel_p4dp = NULL;
	pud_t *pudp, *kernel_pudp = NULL;
	u64 shared;

	/*
	 * A level that is folded is the one above it: there is no entry to look
	 * at.
	 */
	if (pgtable_l5_enabled()) {
		shared = pgd_val(*kernel_pgdp);
		if (!make_private(cpu, pgdp, pgd, shared, table))
			return -ENOMEM;
		if (shared)
			kernel_p4dp = p4d_offset(kernel_pgdp, addr);
	} else {
		kernel_p4dp = p4d_offset(kernel_pgdp, addr);
	}

	p4dp = p4d_offset(pgdp, addr);
	if (pgtable_l4_enabled()) {
		shared = kernel_p4dp ? p4d_val(*kernel_p4dp) : 0;
		if (!make_private(cpu, p4dp, p4d, shared, table))
			return -ENOMEM;
		if (shared)
			kernel_pudp = pud_offset(kernel_p4dp, addr);
	} else {
		kernel_pudp = pud_offset(kernel_p4dp, addr);
	}

	pudp = pud_offset(p4dp, addr);
	if (__is_defined(__PAGETABLE_PMD_FOLDED)) {
		/* With two levels, this is the top level's entry for ptes. */
		note_private(table, pudp);
		return 0;
	}

	shared = kernel_pudp ? pud_val(*kernel_pudp) : 0;
	return make_private(cpu, pudp, pud, shared, table) ? 0 : -ENOMEM;
}

/*
 * The entry for @addr in the tables below @pgdir, which has one of pmds there.
 */
static pmd_t *pmd_of(pgd_t *pgdir, unsigned long addr)
{
	p4d_t *p4dp = p4d_offset(pgd_offset_pgd(pgdir, addr), addr);

	return pmd_offset(pud_offset(p4dp, addr), addr);
}

static int __init make_table(unsigned int cpu)
{
	struct percpu_local_table *table = &tables[cpu];
	unsigned long addr, end = space.local + space.size;

	table->pgd = alloc_top_level(cpu);
	if (!table->pgd)
		return -ENOMEM;

	table->phys = __pa(table->pgd);
	memcpy(table->pgd, swapper_pg_dir, top_size);

	for (addr = space.local; addr < end; addr += PMD_SIZE)
		if (make_path(cpu, table, addr))
			return -ENOMEM;
	return make_path(cpu, table, end - 1);
}

/*
 * Give each CPU as much room as there is, such that ptes can be in both views'
 * tables. With KASLR the areas begin anywhere in what room is left.
 */
static int __init lay_out(unsigned int nr_units)
{
	unsigned long start = (unsigned long)__per_cpu_start;
	unsigned long rest;

	space.local = start & ~PERCPU_LOCAL_BIT;
	space.align = CONT_PTE_SIZE;
	space.size = percpu_local_room(nr_units);
	space.stride = space.size + PMD_SIZE;

	if (space.size < PERCPU_LOCAL_MIN) {
		percpu_local_say("%u CPUs have room for %lu MiB each, and need %u MiB",
				 nr_units, space.size / SZ_1M, PERCPU_LOCAL_MIN / SZ_1M);
		return -ENOSPC;
	}

	rest = PERCPU_AREAS_END - PERCPU_AREAS_START - nr_units * space.stride;
	space.areas = PERCPU_AREAS_START + (start & (PMD_SIZE - 1)) +
		      round_down(rest * percpu_areas_seed >> 16, PMD_SIZE);

	/* KASLR leaves the image room for that, whatever the seed. */
	if (space.local + space.size > PERCPU_AREAS_START) {
		percpu_local_say("the kernel image is too far up");
		return -ENOSPC;
	}

	return 0;
}

static size_t size_of_tables(void)
{
	return PAGE_ALIGN(nr_cpu_ids * sizeof(*tables));
}

/**
 * arch_percpu_local_init() - make a table for each CPU, if possible
 * @result: is set to where the areas and the local region are
 * @nr_units: how many areas are needed
 *
 * Context: setup_per_cpu_areas(); allocates from memblock.
 * Return: 0 or an error, whose reason has been said. Nothing uses the tables
 * yet.
 */
int __init arch_percpu_local_init(struct percpu_local_space *result,
				  unsigned int nr_units)
{
	unsigned int cpu;
	int err;

	if (!wanted) {
		percpu_local_say("percpu_local_map=0");
		return -ENODEV;
	}

	err = lay_out(nr_units);
	if (err)
		return err;

	top_size = size_of_top_level();
	/* All that is in its pages, as it becomes read-only. */
	tables = memblock_alloc(size_of_tables(), PAGE_SIZE);
	if (!tables)
		goto no_memory;
	for_each_possible_cpu(cpu)
		if (make_table(cpu))
			goto no_memory;

	*result = space;
	enabled = true;
	return 0;

no_memory:
	/*
	 * As the areas themselves need more memory than this, there is no point
	 * in tidying.
	 */
	tables = NULL;
	percpu_local_second_level = 0;
	percpu_local_say("no memory for tables");
	return -ENOMEM;
}

/* Set an entry of a CPU's top level, which may be read-only. */
static void noinstr set_top_level(const struct percpu_local_table *table,
				  void *entry, u64 desc)
{
	write_kernel_pgd(entry, table->phys + (entry - (void *)table->pgd),
			 __pgd(desc));
}

static void set_local_pmd(const struct percpu_local_table *table, pmd_t *pmdp,
			  pmd_t pmd)
{
	/* With two levels, pmds are the top level. */
	if (__is_defined(__PAGETABLE_PMD_FOLDED))
		set_top_level(table, pmdp, pmd_val(pmd));
	else
		set_pmd(pmdp, pmd);
}

/**
 * arch_percpu_local_map_first() - map a unit of the first chunk
 * @addr: where it begins in its area; there are tables of ptes for it
 * @phys: where its memory begins, which is in one piece
 * @size: in bytes; a multiple of pages
 *
 * Where a whole contiguous range is in it, and both addresses are aligned to
 * one, the entries have the contiguous bit. Nobody changes them while they are
 * live: the first chunk stays, and so do its permissions. KPTI makes them
 * non-global while no CPU is on a table that leads to them, and none is in a TLB.
 *
 * Context: boot, on one CPU.
 * Return: 0, or -EBUSY if something else is mapped there.
 */
int __init arch_percpu_local_map_first(unsigned long addr, phys_addr_t phys,
				       size_t size)
{
	unsigned long page, end = addr + size;
	unsigned long first = end, last = end;

	if (IS_ALIGNED(addr ^ phys, CONT_PTE_SIZE)) {
		first = round_up(addr, CONT_PTE_SIZE);
		last = round_down(end, CONT_PTE_SIZE);
	}

	for (page = addr; page < end; page += PAGE_SIZE, phys += PAGE_SIZE) {
		pte_t *ptep = virt_to_kpte(page);
		pte_t pte = pfn_pte(PHYS_PFN(phys), PAGE_KERNEL);

		if (!pte_none(__ptep_get(ptep)))
			return -EBUSY;
		if (page >= first && page < last)
			pte = pte_mkcont(pte);
		/*
		 * From invalid to valid: no TLB can hold anything else of it.
		 * One that takes an entry of a range for all of them, while the
		 * others are not written yet, has what they are about to be.
		 */
		__set_pte_nosync(ptep, pte);
	}
	/* The static data is copied next, through these entries. */
	dsb(ishst);
	isb();

	return 0;
}

/**
 * arch_percpu_local_map() - let the local region show new pages
 * @start: offset into the areas, of the first page
 * @end: offset of the end of the last page
 *
 * Context: pcpu_alloc_mutex, or at boot. Cannot fail.
 */
void arch_percpu_local_map(unsigned long start, unsigned long end)
{
	unsigned int cpu, unit = 0;

	for_each_possible_cpu(cpu) {
		unsigned long area = space.areas + unit++ * space.stride;
		unsigned long offset, next;

		for (offset = start; offset < end; offset = next) {
			pmd_t *local = pmd_of(tables[cpu].pgd,
					      space.local + offset);
			pmd_t pmd = READ_ONCE(*pmd_off_k(area + offset));

			/*
			 * From invalid to a table: no TLB can hold anything of
			 * it. Other CPUs have no business here yet.
			 */
			if (pmd_none(READ_ONCE(*local)))
				set_local_pmd(&tables[cpu], local, pmd);
			next = pmd_addr_end(area + offset, area + end) - area;
		}
	}
}

/**
 * arch_percpu_local_contains() - is this an address where an area may be?
 * @addr: any address
 *
 * Context: any, also before there are areas.
 * Return: true if it is.
 */
bool arch_percpu_local_contains(unsigned long addr)
{
	return addr >= PERCPU_AREAS_START && addr < PERCPU_AREAS_END;
}

/* The tables in use */

/**
 * percpu_local_install_boot_cpu() - put the boot CPU on its table
 *
 * Context: before its alternatives are patched.
 */
void __init percpu_local_install_boot_cpu(void)
{
	if (enabled)
		__cpu_replace_ttbr1(tables[smp_processor_id()].pgd, false);
}

/**
 * percpu_local_install() - put this CPU on its table
 *
 * Context: called by assembly code, just out of reset or back in the image that
 * hibernation has restored, on swapper_pg_dir, with current, the per-CPU offset
 * and the stack in place and interrupts masked. What is in TTBR0 is replaced by
 * the ID map, which the caller gets rid of. No this_cpu_*() may have been used
 * before, so it is the first C code, and nothing in it may be instrumented.
 */
asmlinkage void noinstr percpu_local_install(void)
{
	phys_addr_t idmap = __pa_symbol_nodebug(idmap_pg_dir);
	ttbr_replace_func *replace;

	if (!enabled)
		return;

	/* Hibernation comes with one page of its own in TTBR0. */
	if (read_sysreg(ttbr0_el1) != phys_to_ttbr(idmap))
		cpu_install_ttbr0(phys_to_ttbr(idmap), idmap_t0sz);

	replace = (void *)__pa_symbol_nodebug(idmap_cpu_replace_ttbr1);
	replace(phys_to_ttbr(tables[raw_smp_processor_id()].phys));
}

/**
 * percpu_local_mirror() - set all copies of an entry that is about to be set
 * @entry: in swapper_pg_dir, or in the second-level table that is copied
 * @desc: what it becomes
 *
 * Entries on the path to the local region are no copies. Nothing else is mapped
 * where they lead to, so nobody has a reason to set them in the tables that all
 * CPUs share.
 *
 * Context: any; the caller is the only one who writes this entry, and makes the
 * write visible to table walks.
 */
void noinstr percpu_local_mirror(void *entry, u64 desc)
{
	unsigned long offset = offset_in_page(entry);
	bool second = percpu_local_mirrored(entry);
	const struct private_entries *private = second ? &private_second :
							 &private_top;
	unsigned int index = offset / sizeof(u64);
	unsigned int cpu;

	if (!tables)
		return;
	if (WARN_ON_ONCE(index >= private->first && index < private->end))
		return;

	for_each_possible_cpu(cpu) {
		void *table = second ? tables[cpu].second_level :
				       tables[cpu].pgd;
		u64 *copy = table + offset;

		if (second)
			WRITE_ONCE(*copy, desc);
		else
			set_top_level(&tables[cpu], copy, desc);
	}

	/*
	 * Whoever finds the shared entry set takes the mapping for complete,
	 * and may use it on a CPU whose walks go through its copy. So the
	 * copies have to be visible to walks before the shared entry is to
	 * anybody. Those of the top level are, as write_kernel_pgd() waits for
	 * each. An entry of a second level, which maps 64 or 512 GiB, is set
	 * when memory is added or removed there, or when vmalloc(), ioremap() or
	 * an area is the first to use it: too seldom for a barrier to matter.
	 */
	if (second)
		dsb(ishst);
}

/**
 * percpu_local_sync_trampoline() - the trampoline's table is complete: copy it
 *
 * Context: boot, before any task runs user code.
 */
void __init percpu_local_sync_trampoline(void)
{
	unsigned int cpu;

	if (!enabled || !IS_ENABLED(CONFIG_UNMAP_KERNEL_AT_EL0))
		return;

	for_each_possible_cpu(cpu) {
		void *pgd = tables[cpu].pgd;

		memcpy(pgd - TRAMP_SWAPPER_OFFSET, tramp_pg_dir, top_size);
	}
	/*
	 * A CPU that goes to user space walks its copy as soon as it has loaded
	 * it into TTBR1. That may be another CPU than this one, and nothing else
	 * makes the entries visible to its walks: they are new, so no TLB is
	 * invalidated.
	 */
	dsb(ishst);
}

/**
 * percpu_local_sync_second_level() - copy entries that were set in place
 *
 * Code that makes mappings with swapper_pg_dir as an argument reaches tables
 * through the fixmap, where those of the common second level are not
 * recognized. It only adds entries. Nobody uses what is below them before it has
 * returned, so it does no harm that the copies come later.
 *
 * Another CPU may be setting an entry meanwhile, and its copies: that is the
 * entry that is found here, or it is found empty and left alone. None is
 * cleared meanwhile, as only the removal of memory does that.
 *
 * Whoever sets copies begins with the first CPU's, so those of one that is new
 * are missing there. The other CPUs' copies are written only then: memory is
 * added block by block, and nearly never needs an entry here.
 *
 * Context: process, fixmap_lock; nobody removes memory meanwhile.
 */
void percpu_local_sync_second_level(void)
{
	const u64 *entries = (u64 *)percpu_local_second_level, *first;
	unsigned int cpu, i;

	if (!entries)
		return;

	first = tables[cpumask_first(cpu_possible_mask)].second_level;
	for (i = 0; i < PAGE_SIZE / sizeof(u64); i++) {
		u64 desc = READ_ONCE(entries[i]);

		if (!desc || READ_ONCE(first[i]))
			continue;
		for_each_possible_cpu(cpu) {
			u64 *copies = tables[cpu].second_level;

			WRITE_ONCE(copies[i], desc);
		}
	}
	dsb(ishst);
	isb();
}

/*
 * Make the blocks and the array read-only; what is so already stays as it is. Each of them may take
 * a pause of all CPUs, and one that cannot be had takes a second: so end with the first.
 */
static int protect(void)
{
	unsigned int cpu;
	int ret;

	for_each_possible_cpu(cpu) {
		void *block = (void *)tables[cpu].pgd - PAGES_BELOW * PAGE_SIZE;

		/* The others that share a block are further up in its pages. */
		if (!PAGE_ALIGNED(block))
			continue;
		ret = set_linear_map_ro((unsigned long)block, PAGES_BELOW + 1);
		if (ret)
			return ret;
	}

	return set_linear_map_ro((unsigned long)tables, size_of_tables() / PAGE_SIZE);
}

/*
 * Until all are read-only: entries are written through the fixmap, whatever they are. What keeps
 * pauses from being had may stay, as a CPU that is lost does, so each time it waits twice as long.
 */
#define PROTECT_AGAIN_MIN	(10 * HZ)
#define PROTECT_AGAIN_MAX	(600 * HZ)
static void protect_again(struct work_struct *work);
static DECLARE_DELAYED_WORK(protect_work, protect_again);

static void protect_later(void)
{
	static unsigned long delay = PROTECT_AGAIN_MIN;

	queue_delayed_work(system_freezable_wq, &protect_work, delay);
	delay = min(2 * delay, PROTECT_AGAIN_MAX);
}

static void protect_again(struct work_struct *work)
{
	if (protect())
		protect_later();
	else
		pr_info("all top levels are protected now\n");
}

/**
 * percpu_local_protect() - nobody writes to the blocks from here on
 *
 * Nor to the array, which says what goes into TTBR1 when a CPU comes up. They are
 * all that is in their pages. Other tables of the kernel are writable, too.
 *
 * Where that fails, as no memory or no pause of the other CPUs can be had, a
 * worker tries it again.
 *
 * Context: end of boot, may sleep.
 */
void percpu_local_protect(void)
{
	int ret;

	if (!enabled)
		return;

	ret = protect();
	if (!ret)
		return;

	pr_warn("some top levels stay writable for now (error %d)\n", ret);
	protect_later();
}

/* Make @copies differ from @entries on the path to the local region only. */
static void __init sync_nonglobal(u64 *copies, const u64 *entries, size_t size)
{
	unsigned int i;

	for (i = 0; i < size / sizeof(u64); i++)
		if ((copies[i] ^ entries[i]) == PTE_NG)
			WRITE_ONCE(copies[i], entries[i]);
}

/**
 * percpu_local_sync_nonglobal() - swapper_pg_dir became non-global in place
 *
 * Entries that point at tables have the bit set, too, where it means nothing.
 * Global to non-global needs no break-before-make, except for contiguous ranges,
 * which a top level does not have then (percpu_local_without_contiguous()).
 * Private tables below these have entries for tables alone, and all other tables
 * are common.
 *
 * Context: boot CPU in stop_machine().
 */
void __init percpu_local_sync_nonglobal(void)
{
	unsigned int cpu;

	if (!enabled)
		return;

	for_each_possible_cpu(cpu) {
		sync_nonglobal((u64 *)tables[cpu].pgd, (u64 *)swapper_pg_dir,
			       top_size);
		if (tables[cpu].second_level)
			sync_nonglobal(tables[cpu].second_level,
				       (u64 *)percpu_local_second_level,
				       PAGE_SIZE);
	}
	dsb(ishst);
	flush_tlb_all();
}
