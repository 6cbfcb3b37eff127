// SPDX-License-Identifier: GPL-2.0-only
/*
 * The linear map in large blocks, split live where a permission has to change.
 *
 * With rodata=full the permission of any page of the linear map may have to change:
 * module text becomes read-only in all its mappings, secret memory disappears from
 * the linear map. A block cannot be split while it is in use, unless break-before-make
 * is not needed for that; so arm64 maps everything with pages. Where all CPUs have BBM
 * level 2 without TLB conflict aborts (see arch/arm64/kernel/bbml2.c), the linear map is
 * painted with the largest leaves that fit, as with rodata=on, and this file splits
 * them when, and only where, a permission changes. linear_map_fold.c puts them together
 * again when permissions are alike again; linear_map_repaint.c goes back to pages at
 * boot if a secondary CPU lacks the feature.
 *
 * The file has four parts:
 *
 *  - leaves: finding and setting the leaf that maps an address, at any level;
 *  - splitting: one leaf into the next smaller size, until a leaf starts at an address;
 *  - changing permissions: split at both ends of a range, then change leaf by leaf;
 *  - the map as a whole: what it is painted with, what it consists of, hotplug.
 *
 * Locking. A leaf is split under split_lock. Folding, the only thing that makes leaves
 * larger and frees tables, holds linear_map_fold_sem for writing. Permission changes
 * hold it for reading, so a boundary between leaves, once there, stays until they have
 * finished. Two changes at a time are on different pages (the owner of a page does not
 * change it twice at a time), hence on different leaves once each has split its ends.
 * What may not sleep (KFENCE, DEBUG_PAGEALLOC, the copying of a hibernation image)
 * changes only leaves that need no split, in places where nothing folds, and takes no
 * lock.
 *
 * Lockless walkers of the kernel's tables read either the old entry or the new one; both
 * translate alike. They must read each entry once, and may go on in a table that was just
 * folded away: see linear_map_fold.c for how long it lives.
 */
#define pr_fmt(fmt) "linear map: " fmt

#include <kunit/static_stub.h>

#include <linux/init.h>
#include <linux/kasan.h>
#include <linux/kernel.h>
#include <linux/kfence.h>
#include <linux/list.h>
#include <linux/memblock.h>
#include <linux/mm.h>
#include <linux/proc_fs.h>
#include <linux/rcupdate.h>
#include <linux/seq_file.h>
#include <linux/set_memory.h>
#include <linux/vmalloc.h>
#include <linux/vmstat.h>

#include <asm/bbml2.h>
#include <asm/kfence.h>
#include <asm/linear_map.h>
#include <asm/mmu_context.h>
#include <asm/pgalloc.h>
#include <asm/tlbflush.h>

#include "linear_map.h"

#define CREATE_TRACE_POINTS
#include <trace/events/linear_map.h>

enum linear_map_mode linear_map_mode __ro_after_init = LINEAR_MAP_PAGES;

DECLARE_RWSEM(linear_map_fold_sem);
static DEFINE_MUTEX(split_lock);

/* Leaves */

/**
 * leaf_bytes() - how much a leaf maps
 * @size: the size of leaf
 *
 * Return: bytes.
 */
unsigned long leaf_bytes(enum leaf_size size)
{
	static const unsigned long bytes[NR_LEAF_SIZES] = {
		[LEAF_PTE]	= PAGE_SIZE,
		[LEAF_CONT_PTE]	= CONT_PTE_SIZE,
		[LEAF_PMD]	= PMD_SIZE,
		[LEAF_CONT_PMD]	= CONT_PMD_SIZE,
		[LEAF_PUD]	= PUD_SIZE,
	};

	return bytes[size];
}

/**
 * leaf_is_aligned() - may a leaf of a size begin at an address?
 * @size: the size of leaf
 * @start: the virtual address
 * @pa: the physical address that it maps
 *
 * Both have to be aligned. An entry of a contiguous range has bits for an output address
 * that is not, but a TLB that holds the range as one entry may take these bits from the
 * virtual address. With 64 KiB pages the two addresses of the linear map are congruent
 * modulo PMD_SIZE only (see ARM64_MEMSTART_SHIFT), and the contiguous range of blocks is
 * 32 times as large.
 *
 * Return: true if it may.
 */
bool leaf_is_aligned(enum leaf_size size, unsigned long start, phys_addr_t pa)
{
	return IS_ALIGNED(start | pa, leaf_bytes(size));
}

/* How many entries a leaf has: one, or those of a contiguous range. */
static unsigned int leaf_entries(enum leaf_size size)
{
	switch (size) {
	case LEAF_CONT_PTE:
		return CONT_PTES;
	case LEAF_CONT_PMD:
		return CONT_PMDS;
	default:
		return 1;
	}
}

/*
 * The descriptor for a piece of a leaf that is divided into leaves of a size: for the
 * n-th entry after the one that @desc is for, or before it if n is negative. Between a
 * block and a page the type bits differ, so they are made anew and not carried over.
 */
static pteval_t piece_desc(pteval_t desc, enum leaf_size size, int n)
{
	enum leaf_size step = leaf_is_contiguous(size) ? size - 1 : size;
	unsigned long pfn = pte_pfn(__pte(desc)) + n * (long)(leaf_bytes(step) >> PAGE_SHIFT);
	pteval_t prot = pgprot_val(pte_pgprot(__pte(desc)));

	prot &= ~(PTE_TABLE_BIT | PTE_CONT);
	if (size <= LEAF_CONT_PTE)
		prot |= PTE_TABLE_BIT;	/* the type of a page */
	if (leaf_is_contiguous(size))
		prot |= PTE_CONT;

	return pte_val(pfn_pte(pfn, __pgprot(prot)));
}

/**
 * find_kernel_leaf() - find the leaf of the kernel's tables that maps an address
 * @addr: a kernel address, without tag
 * @leaf: where to say what was found
 *
 * A leaf that was made invalid for a time is a leaf too. Each entry that may be
 * split or folded is read once, so that a leaf is described as it was at one moment.
 *
 * Context: any; takes no lock. What was found stays true while the caller holds
 *	    split_lock, or owns all that the leaf maps and holds linear_map_fold_sem.
 *	    A table that is passed may be folded away and freed meanwhile, unless the
 *	    caller holds linear_map_fold_sem, is in an RCU read-side critical section, or
 *	    looks at memory where nothing folds.
 * Return: true if there is one.
 */
bool find_kernel_leaf(unsigned long addr, struct kernel_leaf *leaf)
{
	pgd_t *pgdp = pgd_offset_k(addr);
	p4d_t *p4dp;
	pud_t *pudp, pud;
	pmd_t *pmdp, pmd;
	pte_t *ptep, pte;

	/* The tables of these levels stay. */
	if (pgd_none(READ_ONCE(*pgdp)))
		return false;

	p4dp = p4d_offset(pgdp, addr);
	if (p4d_none(READ_ONCE(*p4dp)))
		return false;

	pudp = pud_offset(p4dp, addr);
	pud = READ_ONCE(*pudp);
	if (pud_none(pud))
		return false;
	if (pud_leaf(pud)) {
		leaf->size = LEAF_PUD;
		leaf->start = addr & PUD_MASK;
		leaf->entry = pudp;
		leaf->desc = pud_val(pud);
		return true;
	}

	/* The entry that was looked at; or itself, where there is no such level. */
	pmdp = pmd_offset(CONFIG_PGTABLE_LEVELS > 2 ? &pud : pudp, addr);
	pmd = READ_ONCE(*pmdp);
	if (pmd_none(pmd))
		return false;
	if (pmd_leaf(pmd)) {
		int first;

		leaf->size = pmd_cont(pmd) ? LEAF_CONT_PMD : LEAF_PMD;
		leaf->start = addr & ~(leaf_bytes(leaf->size) - 1);
		first = pmd_index(leaf->start) - pmd_index(addr);
		leaf->entry = pmdp + first;
		leaf->desc = piece_desc(pmd_val(pmd), leaf->size, first);
		return true;
	}

	ptep = pte_offset_kernel(&pmd, addr);
	pte = __ptep_get(ptep);
	if (pte_none(pte))
		return false;

	leaf->size = pte_cont(pte) ? LEAF_CONT_PTE : LEAF_PTE;
	leaf->start = addr & ~(leaf_bytes(leaf->size) - 1);
	leaf->entry = ptep + (pte_index(leaf->start) - pte_index(addr));
	leaf->desc = piece_desc(pte_val(pte), leaf->size,
				pte_index(leaf->start) - pte_index(addr));

	return true;
}

/**
 * linear_map_default_desc() - what the linear map has where nobody changed it
 * @addr: a linear address at which a leaf of @size may start
 * @size: the size of leaf
 *
 * Return: the descriptor.
 */
pteval_t linear_map_default_desc(unsigned long addr, enum leaf_size size)
{
	pgprot_t prot = pgprot_tagged(PAGE_KERNEL);

	return piece_desc(pte_val(pfn_pte(PHYS_PFN(__virt_to_phys(addr)), prot)), size, 0);
}

/**
 * set_kernel_leaf() - write all entries of a leaf
 * @size: the size of leaf
 * @entry: its first entry
 * @desc: what goes into the first entry; into the others, with their own address
 *
 * A change between valid descriptors must be one that needs no break-before-make: of
 * permissions, or between two ways of mapping the same with leaves of different sizes.
 * While the entries of a contiguous range are written one by one they disagree; such a
 * range may be translated by any of them, which all callers can live with until the
 * TLB maintenance that follows, and is not answered with an abort where BBM level 2 is
 * safe.
 *
 * Context: any. The caller does the TLB maintenance.
 */
void set_kernel_leaf(enum leaf_size size, void *entry, pteval_t desc)
{
	unsigned int i, nr = leaf_entries(size);
	pmd_t *pmdp = entry;
	pte_t *ptep = entry;

	KUNIT_STATIC_STUB_REDIRECT(set_kernel_leaf, size, entry, desc);

	switch (size) {
	case LEAF_PUD:
		set_pud(entry, __pud(desc));
		break;
	case LEAF_CONT_PMD:
	case LEAF_PMD:
		for (i = 0; i < nr; i++)
			set_pmd(pmdp + i, __pmd(piece_desc(desc, size, i)));
		break;
	case LEAF_CONT_PTE:
	case LEAF_PTE:
		for (i = 0; i < nr; i++)
			__set_pte(ptep + i, __pte(piece_desc(desc, size, i)));
		break;
	default:
		break;
	}
}

/* Splitting */

static bool may_split(void)
{
	if (linear_map_mode != LINEAR_MAP_LIVE)
		return false;

	/* Until all CPUs have been judged, one that was not may be running. */
	if (!system_capabilities_finalized())
		return system_state < SYSTEM_SCHEDULING;

	return system_supports_bbml2_noabort();
}

/* Fill a new table with what replaces a block: leaves of the next smaller size. */
static void fill_table(const struct kernel_leaf *leaf, void *table)
{
	enum leaf_size size = leaf->size - 1;
	unsigned int i;

	/*
	 * Nobody walks the table yet: no barrier is needed between the entries, and what
	 * the page held before is no entry that changes.
	 */
	for (i = 0; i < PTRS_PER_PTE; i++)
		WRITE_ONCE(((u64 *)table)[i], piece_desc(leaf->desc, size, i));

	/* The table is complete before a walker can find it. */
	dsb(ishst);
}

/**
 * __split_kernel_leaf() - split a leaf into leaves of the next smaller size
 * @leaf: the leaf
 * @table: a page for a table, if split_needs_table()
 *
 * This changes the size of a live mapping without break-before-make, which BBM level 2
 * allows: all translations and permissions stay as they are. No TLB maintenance follows.
 * A TLB may go on using the large entry next to small ones; whoever changes the
 * permission of a small one invalidates by its address, and that removes the large
 * one too.
 *
 * Context: nobody else splits, changes or folds @leaf, and all CPUs that can see it
 *	    support such a change.
 */
void __split_kernel_leaf(const struct kernel_leaf *leaf, void *table)
{
	bool linear = __is_lm_address(leaf->start);
	pmdval_t pxn = linear ? PMD_TABLE_PXN : 0;

	switch (leaf->size) {
	case LEAF_PUD:
		fill_table(leaf, table);
		set_pud(leaf->entry, __pud(__phys_to_pud_val(__pa(table)) |
					   PUD_TYPE_TABLE | PUD_TABLE_UXN | pxn));
		break;
	case LEAF_PMD:
		fill_table(leaf, table);
		set_pmd(leaf->entry, __pmd(__phys_to_pmd_val(__pa(table)) |
					   PMD_TYPE_TABLE | PMD_TABLE_UXN | pxn));
		break;
	case LEAF_CONT_PMD:
	case LEAF_CONT_PTE: {
		unsigned int i, nr = leaf_entries(leaf->size);
		enum leaf_size size = leaf->size - 1;

		for (i = 0; i < nr; i++) {
			pteval_t desc = piece_desc(leaf->desc, size, i);

			if (size == LEAF_PMD)
				set_kernel_leaf(size, (pmd_t *)leaf->entry + i, desc);
			else
				set_kernel_leaf(size, (pte_t *)leaf->entry + i, desc);
		}
		break;
	}
	default:
		WARN_ON_ONCE(1);
		return;
	}

	if (linear) {
		linear_map_count(leaf->size, -(long)leaf_bytes(leaf->size));
		linear_map_count(leaf->size - 1, leaf_bytes(leaf->size));
		count_vm_event(LINEAR_MAP_SPLIT_CONT_PTE + leaf->size - LEAF_CONT_PTE);
	}
	trace_linear_map_split(leaf->start, leaf_bytes(leaf->size));
}

/* Tests make it fail. */
struct ptdesc *alloc_split_table(gfp_t gfp)
{
	KUNIT_STATIC_STUB_REDIRECT(alloc_split_table, gfp);

	/* fill_table() writes all of it. */
	return pagetable_alloc(gfp & ~__GFP_ZERO, 0);
}

/**
 * struct desc_change - what a change of permissions does to a descriptor
 * @set: bits to set
 * @clear: bits to clear
 */
struct desc_change {
	u64 set;
	u64 clear;
};

/*
 * Set and clear bits of a descriptor. A leaf that is made invalid keeps its other bits,
 * and is marked as present so that a walker does not take a block for a table; the
 * mark's bit is the not-global bit of valid entries.
 */
static pteval_t change_desc(pteval_t desc, const struct desc_change *change)
{
	bool was_valid = desc & PTE_VALID;

	desc = (desc & ~change->clear) | change->set;
	if (was_valid && !(desc & PTE_VALID))
		desc |= PTE_PRESENT_INVALID;
	else if (!was_valid && (desc & PTE_VALID))
		desc = (desc & ~PTE_NG) | PTE_MAYBE_NG;

	return desc;
}

static unsigned long leaf_end(const struct kernel_leaf *leaf)
{
	return leaf->start + leaf_bytes(leaf->size);
}

static bool leaf_crosses(const struct kernel_leaf *leaf, unsigned long boundary)
{
	return leaf->start < boundary && boundary < leaf_end(leaf);
}

/*
 * Split the leaf that maps an address until it does not cross a boundary; or not at all
 * if @change, which may be NULL, leaves it as it is.
 *
 * Whether there is something to split is decided under the lock. Another task may be
 * splitting the same contiguous range, entry by entry: without the lock an entry at the
 * boundary may look like a page while the ones behind it still belong to the range.
 */
static int split_at(unsigned long addr, unsigned long boundary,
		    const struct desc_change *change, gfp_t gfp)
{
	struct kernel_leaf leaf;
	struct ptdesc *spare = NULL;
	int ret = 0;

	mutex_lock(&split_lock);
	for (;;) {
		if (!find_kernel_leaf(addr, &leaf)) {
			ret = -EINVAL;
			break;
		}
		if (!leaf_crosses(&leaf, boundary))
			break;
		if (change && change_desc(leaf.desc, change) == leaf.desc)
			break;
		if (!may_split()) {
			ret = -EINVAL;
			break;
		}
		if (split_needs_table(leaf.size) && !spare) {
			/* Reclaim must not find the lock taken; so look anew after it. */
			mutex_unlock(&split_lock);
			spare = alloc_split_table(gfp);
			mutex_lock(&split_lock);
			if (!spare) {
				ret = -ENOMEM;
				break;
			}
			continue;
		}
		__split_kernel_leaf(&leaf, split_needs_table(leaf.size) ?
				    ptdesc_address(spare) : NULL);
		if (split_needs_table(leaf.size))
			spare = NULL;
	}
	mutex_unlock(&split_lock);

	if (spare)
		pagetable_free(spare);

	return ret;
}

/**
 * split_kernel_leaf() - split until a leaf starts at an address
 * @addr: a kernel address, page-aligned
 *
 * Splits the leaf that contains @addr level by level, and each time only the piece that
 * contains @addr further; every other leaf stays as large as it can be.
 *
 * Context: process context, may sleep, also before there are other CPUs or other tasks.
 *	    linear_map_fold_sem is held.
 * Return: 0; -EINVAL if @addr is not mapped, or its leaf may not be split on this
 *	   system; -ENOMEM if there is no memory for a table, then what was split before
 *	   stays split and maps as before.
 */
int split_kernel_leaf(unsigned long addr)
{
	return split_at(addr, addr, NULL, GFP_PGTABLE_KERNEL);
}

/* Changing permissions */

/*
 * Split at both ends of a range, where the leaf there would change. What comes after the
 * range may be unmapped, so the end is looked at from inside.
 *
 * The lock may be dropped between the two. A leaf that crosses the start and need not
 * change is not changed later either: its other part has another owner, who first splits
 * it where his part ends.
 */
static int split_ends(unsigned long start, unsigned long end, const struct desc_change *change)
{
	int ret;

	if (start >= end)
		return 0;

	ret = split_at(start, start, change, GFP_PGTABLE_KERNEL);
	if (ret)
		return ret;

	return split_at(end - 1, end, change, GFP_PGTABLE_KERNEL);
}

/*
 * Change all leaves of a range. No leaf that would change crosses its ends.
 *
 * All of the changes are of permissions, between invalid and valid included, and need
 * no break-before-make.
 */
static int change_leaves(unsigned long start, unsigned long end,
			 const struct desc_change *change, bool *was_valid)
{
	struct kernel_leaf leaf;
	unsigned long addr, next;

	for (addr = start; addr < end; addr = next) {
		pteval_t desc;

		if (WARN_ON_ONCE(!find_kernel_leaf(addr, &leaf)))
			return -EINVAL;

		next = leaf_end(&leaf);
		desc = change_desc(leaf.desc, change);
		if (desc == leaf.desc)
			continue;
		if (WARN_ON_ONCE(leaf.start < start || next > end))
			return -EINVAL;

		if (leaf.desc & PTE_VALID)
			*was_valid = true;
		set_kernel_leaf(leaf.size, leaf.entry, desc);
	}

	return 0;
}

/* Is every page of a range mapped? Then a change of it cannot fail half way. */
static bool range_is_mapped(unsigned long start, unsigned long end)
{
	struct kernel_leaf leaf;
	unsigned long addr;

	for (addr = start; addr < end; addr = leaf_end(&leaf))
		if (!find_kernel_leaf(addr, &leaf))
			return false;

	return true;
}

static unsigned long untagged(unsigned long addr)
{
	return (unsigned long)kasan_reset_tag((void *)addr);
}

static void fold_later(unsigned long start, unsigned long end)
{
	if (linear_map_mode == LINEAR_MAP_LIVE && __is_lm_address(start))
		linear_map_fold_later(start, end);
}

/* Change what is not part of larger leaves and is not folded meanwhile. */
static int change_atomic(unsigned long start, unsigned long size,
			 const struct desc_change *change)
{
	bool was_valid = false;

	return change_leaves(start, start + size, change, &was_valid);
}

/**
 * linear_map_set_valid() - make pages valid or invalid where it is not allowed to sleep
 * @start: first linear address, page-aligned
 * @size: bytes
 * @valid: which
 *
 * For the pool of KFENCE and for DEBUG_PAGEALLOC: what they change is mapped by pages,
 * and not folded.
 *
 * Context: any; takes no lock. Does the TLB maintenance.
 * Return: 0; -EINVAL if not all is mapped by leaves that lie in the range.
 */
int linear_map_set_valid(unsigned long start, unsigned long size, bool valid)
{
	const struct desc_change change = {
		.set = valid ? PTE_VALID : 0,
		.clear = valid ? 0 : PTE_VALID,
	};
	unsigned long first = untagged(start);
	int ret = change_atomic(first, size, &change);

	flush_tlb_kernel_range(first, first + size);

	return ret;
}

/* With linear_map_fold_sem held: change a range, or nothing of it. */
static int change_range(unsigned long start, unsigned long end,
			const struct desc_change *change)
{
	bool was_valid = false;
	int ret = -EINVAL;

	if (range_is_mapped(start, end))
		ret = split_ends(start, end, change);
	if (!ret)
		ret = change_leaves(start, end, change, &was_valid);
	if (ret || (change->set & PTE_WRITE))
		fold_later(start, end);
	/* Not made invalid before, for want of a table: nobody else invalidates it. */
	if (was_valid && (change->set & PTE_VALID))
		flush_tlb_kernel_range(start, end);
	trace_linear_map_change(start, end, change->set, change->clear, ret);

	return ret;
}

/**
 * linear_map_change() - change permissions of kernel memory, whatever maps it
 * @start: first address, page-aligned; in the linear map or in vmalloc space
 * @size: bytes
 * @set: bits to set in the descriptors
 * @clear: bits to clear in the descriptors
 *
 * Blocks that lie in the range are changed as blocks; at most the two leaves at its
 * ends are split.
 *
 * Context: process context, may sleep; but where this system splits nothing, any. The
 *	    caller owns the range, and does the TLB maintenance.
 * Return: 0; -EINVAL if part of the range is not mapped, or a leaf would have to be
 *	   split on a system that cannot; -ENOMEM if there is no memory for a table. If
 *	   it is not 0 no permission was changed.
 */
int linear_map_change(unsigned long start, unsigned long size, u64 set, u64 clear)
{
	const struct desc_change change = { .set = set, .clear = clear };
	unsigned long first = untagged(start);
	int ret;

	if (linear_map_mode != LINEAR_MAP_LIVE)
		return change_atomic(first, size, &change);

	/*
	 * The image of a hibernating system is copied by one CPU with interrupts off,
	 * when tasks and what folds are frozen. A page that cannot be read is made valid
	 * for its copy, and invalid again. It may be part of a larger leaf that some
	 * vfree() has not finished with; that changes as a whole.
	 */
	if (system_state == SYSTEM_SUSPEND) {
		struct kernel_leaf leaf;

		if (!find_kernel_leaf(first, &leaf))
			return -EINVAL;
		return change_atomic(leaf.start, max(size, leaf_bytes(leaf.size)), &change);
	}

	down_read(&linear_map_fold_sem);
	ret = change_range(first, first + size, &change);
	up_read(&linear_map_fold_sem);

	return ret;
}

/* The pages of a vmalloc area that lie together in the linear map too. */
struct run {
	unsigned long start;
	unsigned long end;
};

/* Find the run that begins with a page of an area; return the page after it. */
static unsigned int next_run(const struct vm_struct *area, unsigned int i,
			     unsigned int end, struct run *run)
{
	unsigned int first = i;

	do {
		i++;
	} while (i < end && page_to_pfn(area->pages[i]) ==
			    page_to_pfn(area->pages[first]) + i - first);

	run->start = untagged((unsigned long)page_address(area->pages[first]));
	run->end = run->start + (unsigned long)(i - first) * PAGE_SIZE;

	return i;
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
 * split is split, then all is changed; so it is done or not done.
 *
 * Context: as linear_map_change(), but does the TLB maintenance.
 * Return: as linear_map_change().
 */
int linear_map_change_area(const struct vm_struct *area, unsigned long start,
			   unsigned long size, u64 set, u64 clear)
{
	unsigned int first = (untagged(start) - untagged((unsigned long)area->addr)) >> PAGE_SHIFT;
	unsigned int i, end = min(first + (unsigned int)(size >> PAGE_SHIFT), area->nr_pages);
	const struct desc_change change = { .set = set, .clear = clear };
	bool live = linear_map_mode == LINEAR_MAP_LIVE;
	struct run run;
	int ret = 0;

	if (live) {
		down_read(&linear_map_fold_sem);
		for (i = first; i < end && !ret; ) {
			i = next_run(area, i, end, &run);
			ret = split_ends(run.start, run.end, &change);
			if (ret)
				fold_later(run.start, run.end);
		}
	}

	for (i = first; i < end && !ret; ) {
		bool was_valid = false;

		i = next_run(area, i, end, &run);
		ret = change_leaves(run.start, run.end, &change, &was_valid);
		flush_tlb_kernel_range(run.start, run.end);
		if (set & PTE_WRITE)
			fold_later(run.start, run.end);
		trace_linear_map_change(run.start, run.end, set, clear, ret);
	}

	if (live)
		up_read(&linear_map_fold_sem);

	return ret;
}

/* Change those leaves of a run of pages that do not have the default. */
static void change_not_default(const struct run *run, const struct desc_change *change)
{
	struct kernel_leaf leaf;
	unsigned long addr, next;

	for (addr = run->start; addr < run->end; addr = next) {
		if (WARN_ON_ONCE(!find_kernel_leaf(addr, &leaf)))
			return;
		next = min(leaf_end(&leaf), run->end);
		if (leaf.desc != linear_map_default_desc(leaf.start, leaf.size))
			change_range(max(addr, leaf.start), next, change);
	}
}

static void change_area_not_default(const struct vm_struct *area,
				    const struct desc_change *change)
{
	bool live = linear_map_mode == LINEAR_MAP_LIVE;
	unsigned int i;
	struct run run;

	if (!can_set_direct_map())
		return;

	if (live)
		down_read(&linear_map_fold_sem);
	for (i = 0; i < area->nr_pages; ) {
		i = next_run(area, i, area->nr_pages, &run);
		change_not_default(&run, change);
	}
	if (live)
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
 * split, and this cannot fail.
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

/**
 * linear_map_is_valid() - can an address be accessed?
 * @addr: a linear address
 *
 * Context: any.
 * Return: true if it is mapped and not made invalid.
 */
bool linear_map_is_valid(unsigned long addr)
{
	struct kernel_leaf leaf;
	bool valid;

	/*
	 * The caller may be preemptible while the worker that folds is running, as
	 * hibernation is when it counts the pages to save. A table that is folded away
	 * is freed after a grace period.
	 */
	rcu_read_lock();
	valid = find_kernel_leaf(untagged(addr), &leaf) && (leaf.desc & PTE_VALID);
	rcu_read_unlock();

	return valid;
}

#ifdef CONFIG_KFENCE
/**
 * arch_kfence_init_pool() - map the pool of KFENCE with pages
 *
 * KFENCE makes single pages invalid where it cannot sleep. A pool that was there when
 * the linear map was painted consists of pages already. linear_map_fold.c keeps off it.
 *
 * Context: process context, may sleep, or boot.
 * Return: whether the pool can be used.
 */
bool arch_kfence_init_pool(void)
{
	unsigned long addr = untagged((unsigned long)__kfence_pool);
	unsigned long end = addr + KFENCE_POOL_SIZE;
	struct kernel_leaf leaf;
	int ret = 0;

	down_read(&linear_map_fold_sem);
	while (addr < end && !ret) {
		if (!find_kernel_leaf(addr, &leaf))
			ret = -EINVAL;
		else if (leaf.size == LEAF_PTE)
			addr += PAGE_SIZE;
		else	/* no leaf that starts before the next page ends behind it */
			ret = split_kernel_leaf(addr + PAGE_SIZE);
	}
	up_read(&linear_map_fold_sem);
	if (ret)
		fold_later(addr, end);

	return !ret;
}
#endif

/* The map as a whole */

/* Bytes of the linear map by size of leaf; protected by split_lock once CPUs are up. */
static unsigned long mapped_bytes[NR_LEAF_SIZES];

/**
 * linear_map_count() - count leaves in or out
 * @size: their size
 * @bytes: how much they map; negative if they are gone
 *
 * Context: split_lock or linear_map_fold_sem held for writing, or one CPU is running.
 */
void linear_map_count(enum leaf_size size, long bytes)
{
	WRITE_ONCE(mapped_bytes[size], mapped_bytes[size] + bytes);
}

/**
 * linear_map_bytes() - how much of the linear map leaves of a size map
 * @size: the size of leaf
 *
 * Context: any.
 * Return: bytes.
 */
unsigned long linear_map_bytes(enum leaf_size size)
{
	return READ_ONCE(mapped_bytes[size]);
}

/* Count what maps a range, leaf by leaf: cheap only where leaves are large. */
static void count_range(unsigned long start, unsigned long end, int sign)
{
	struct kernel_leaf leaf;
	unsigned long addr, next;

	for (addr = start; addr < end; addr = next) {
		if (!find_kernel_leaf(addr, &leaf)) {
			next = addr + PAGE_SIZE;
			continue;
		}
		next = min(leaf.start + leaf_bytes(leaf.size), end);
		linear_map_count(leaf.size, sign * (long)(next - addr));
	}
}

static const char *mode_reason __ro_after_init;

/**
 * linear_map_choose_mode() - what is the linear map to be painted with?
 *
 * Context: the boot CPU, before the linear map is there.
 * Return: true if it must be painted with pages only.
 */
bool __init linear_map_choose_mode(void)
{
	if (debug_pagealloc_enabled()) {
		linear_map_mode = LINEAR_MAP_PAGES;
		mode_reason = "debug_pagealloc=on";
	} else if (!can_set_direct_map()) {
		linear_map_mode = LINEAR_MAP_FIXED;
		mode_reason = "its permissions do not change without rodata=full";
	} else if (bbml2_noabort_disabled()) {
		linear_map_mode = LINEAR_MAP_PAGES;
		mode_reason = "arm64.nobbml2";
	} else if (!cpu_has_bbml2_noabort()) {
		linear_map_mode = LINEAR_MAP_PAGES;
		mode_reason = "the boot CPU is not known to have BBM level 2 without aborts";
	} else {
		linear_map_mode = LINEAR_MAP_LIVE;
		mode_reason = "split and folded back live: BBM level 2 without aborts";
	}

	return linear_map_in_pages();
}

/**
 * linear_map_in_pages() - must memory be added to the linear map as pages?
 *
 * Context: any, after linear_map_choose_mode().
 * Return: true if only pages are allowed.
 */
bool linear_map_in_pages(void)
{
	return linear_map_mode == LINEAR_MAP_PAGES;
}

/**
 * linear_map_painted() - the linear map is there: say and count what it is made of
 * @kernel_start: physical start of the kernel's text
 * @kernel_end: physical end of its read-only data
 *
 * Context: the boot CPU, right after painting.
 */
void __init linear_map_painted(phys_addr_t kernel_start, phys_addr_t kernel_end)
{
	unsigned long image_start = __phys_to_virt(kernel_start);
	unsigned long image_end = __phys_to_virt(kernel_end);
	phys_addr_t start, end;
	u64 i;

	for_each_mem_range(i, &start, &end) {
		unsigned long first = __phys_to_virt(PAGE_ALIGN(start));
		unsigned long last = __phys_to_virt(end & PAGE_MASK);

		if (first >= last)
			continue;
		if (!linear_map_in_pages()) {
			count_range(first, last, 1);
			continue;
		}

		/*
		 * All but the image's alias is pages. To look at each of them would
		 * take as long as to paint them.
		 */
		if (first <= image_start && image_end <= last) {
			linear_map_count(LEAF_PTE, last - first - (image_end - image_start));
			count_range(image_start, image_end, 1);
		} else {
			linear_map_count(LEAF_PTE, last - first);
		}
	}

	pr_info("%s (%s; MIDR_EL1 0x%08x)\n",
		linear_map_in_pages() ? "pages" : "blocks", mode_reason,
		read_cpuid_id());
}

/* /proc/meminfo */
void arch_report_meminfo(struct seq_file *m)
{
	enum leaf_size size;

	for (size = LEAF_PTE; size < NR_LEAF_SIZES; size++) {
		unsigned long bytes = leaf_bytes(size);
		char name[24], unit = 'k';

		if (size == LEAF_PUD && !pud_sect_supported())
			continue;

		bytes /= SZ_1K;
		if (bytes >= SZ_1M) {
			bytes /= SZ_1M;
			unit = 'G';
		} else if (bytes >= SZ_1K) {
			bytes /= SZ_1K;
			unit = 'M';
		}
		snprintf(name, sizeof(name), "DirectMap%lu%c:", bytes, unit);
		seq_printf(m, "%-16s%8lu kB\n", name, linear_map_bytes(size) / SZ_1K);
	}
}

/*
 * Tables that are allocated before the first of them is used, so that what uses them
 * cannot fail half way. Protected by the memory hotplug lock; at boot, by being alone.
 */
static LIST_HEAD(spare_tables);

/**
 * alloc_spare_tables() - allocate tables for what must not fail half way
 * @nr: how many; their contents are undefined
 *
 * Context: process context, may sleep; memory hotplug lock held, or boot.
 * Return: 0, or -ENOMEM with nothing allocated.
 */
int alloc_spare_tables(unsigned long nr)
{
	while (nr--) {
		struct ptdesc *table = pagetable_alloc(GFP_PGTABLE_KERNEL & ~__GFP_ZERO, 0);

		if (!table) {
			free_spare_tables();
			return -ENOMEM;
		}
		list_add(&table->pt_list, &spare_tables);
	}

	return 0;
}

/**
 * take_spare_table() - take one of the tables
 *
 * Context: as alloc_spare_tables(), but does not sleep.
 * Return: it, or NULL if there is none left.
 */
struct ptdesc *take_spare_table(void)
{
	struct ptdesc *table = list_first_entry_or_null(&spare_tables, struct ptdesc, pt_list);

	if (table)
		list_del(&table->pt_list);

	return table;
}

/**
 * free_spare_tables() - free the tables that nobody took
 *
 * Context: as alloc_spare_tables().
 */
void free_spare_tables(void)
{
	struct ptdesc *table;

	while ((table = take_spare_table()))
		pagetable_free(table);
}

#ifdef CONFIG_MEMORY_HOTPLUG
/* How many tables, each of which spans so many bytes, does a range touch? */
static unsigned long spans(unsigned long start, u64 size, unsigned long bytes)
{
	return ((start + size - 1) / bytes) - start / bytes + 1;
}

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
	unsigned long addr = __phys_to_virt(start);
	unsigned long nr = spans(addr, size, PUD_SIZE) + spans(addr, size, P4D_SIZE) +
			   spans(addr, size, PGDIR_SIZE);

	/* In blocks, tables of pages are needed at most at the two ends. */
	nr += linear_map_in_pages() ? spans(addr, size, PMD_SIZE) : 2;

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

static void count_hotplug(unsigned long start, u64 size, int sign)
{
	mutex_lock(&split_lock);
	if (linear_map_in_pages())
		linear_map_count(LEAF_PTE, sign * (long)size);
	else
		count_range(start, start + size, sign);
	mutex_unlock(&split_lock);
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
	count_hotplug(__phys_to_virt(start), size, 1);
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

	/* The memory is offline already: it is too late to fail. */
	if (linear_map_mode == LINEAR_MAP_LIVE) {
		gfp_t gfp = GFP_PGTABLE_KERNEL | __GFP_NOFAIL;

		WARN_ON_ONCE(split_at(start, start, NULL, gfp));
		WARN_ON_ONCE(split_at(end - 1, end, NULL, gfp));
	}

	count_hotplug(start, size, -1);
}
#endif /* CONFIG_MEMORY_HOTPLUG */

/**
 * linear_map_hold() - keep the tables of the linear map from being folded away
 *
 * For who walks all of them and may sleep. Leaves may still be split.
 *
 * Context: process context, may sleep. Not to be nested, nor held while a permission is
 *	    changed.
 */
void linear_map_hold(void)
{
	down_read(&linear_map_fold_sem);
}

/**
 * linear_map_release() - the end of what linear_map_hold() began
 *
 * Context: process context.
 */
void linear_map_release(void)
{
	up_read(&linear_map_fold_sem);
}
