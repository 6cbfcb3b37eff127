// SPDX-License-Identifier: GPL-2.0-only
/*
 * The leaves of the kernel's page tables: to find, describe and set them, at any level.
 *
 * A leaf is a page, a block, or a contiguous range of either. Whatever changes permissions of
 * kernel mappings looks at leaves with find_kernel_leaf() and changes them with
 * set_kernel_leaf(), and does not need to know the level.
 *
 * Changes of the size do the same, with these exceptions. fold_step() walks the tables itself,
 * because it looks for tables. __split_kernel_leaf() writes the entry that leads to a new table.
 * change_entries() and exchange_once() write entries through an alias: in a pause, or by
 * compare-and-exchange.
 *
 * Lockless walkers of the kernel's tables read either the old entry or the new one. Where
 * only the size changes, both translate alike. They must read each entry once, and may go
 * on in a table that was just folded away: see linear_map_fold.c for how long it lives.
 */
#include <kunit/static_stub.h>

#include <linux/align.h>
#include <linux/mm.h>
#include <linux/pfn.h>
#include <linux/preempt.h>

#include "kernel_leaf.h"

/* Of what splits, changes and folds leaves. */
#define CREATE_TRACE_POINTS
#include <trace/events/linear_map.h>

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

/**
 * leaf_entries() - how many entries a leaf has
 * @size: the size of leaf
 *
 * Return: one, or the number of those that a contiguous range has.
 */
unsigned int leaf_entries(enum leaf_size size)
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

/**
 * piece_desc() - the descriptor for a piece of a leaf that is divided
 * @desc: the descriptor of an entry of the leaf
 * @size: what the pieces are
 * @n: which entry, counted from the one that @desc is for; negative for one before it
 *
 * Between a block and a page the type bits differ, so they are made anew and not carried
 * over.
 *
 * Return: the descriptor.
 */
pteval_t piece_desc(pteval_t desc, enum leaf_size size, int n)
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
 *	    the lock of splits, or owns all that the leaf maps and holds
 *	    linear_map_fold_sem.
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
 * safe. Maintenance by address is enough then, if it is of all pages of the range: neither the
 * contiguous bit nor a size changes, and contpte_wrprotect_ptes() relies on the same.
 *
 * A task is not preempted between the first of these entries and the last. So if one CPU is
 * online, and has its interrupts disabled, all entries of a leaf are valid, or all are invalid;
 * linear_map_change() relies on that for hibernation. What splits a leaf, entry by entry, does so
 * while it is valid. With two levels of tables a contiguous range of blocks is an exception:
 * set_pmd() takes a lock there, for which it sleeps on PREEMPT_RT. Such a range has 1 GiB at least,
 * and nobody gives back as much that was executable.
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
		if (CONFIG_PGTABLE_LEVELS > 2)
			preempt_disable();
		for (i = 0; i < nr; i++)
			set_pmd(pmdp + i, __pmd(piece_desc(desc, size, i)));
		if (CONFIG_PGTABLE_LEVELS > 2)
			preempt_enable();
		break;
	case LEAF_CONT_PTE:
	case LEAF_PTE:
		preempt_disable();
		for (i = 0; i < nr; i++)
			__set_pte(ptep + i, __pte(piece_desc(desc, size, i)));
		preempt_enable();
		break;
	default:
		break;
	}
}

/**
 * change_desc() - set and clear bits of a descriptor
 * @desc: the descriptor
 * @change: the bits
 *
 * A leaf that is made invalid keeps its other bits, and is marked as present so that a
 * walker does not take a block for a table; the mark's bit is the not-global bit of valid
 * entries.
 *
 * Return: the new descriptor.
 */
pteval_t change_desc(pteval_t desc, const struct desc_change *change)
{
	bool was_valid = desc & PTE_VALID;

	desc = (desc & ~change->clear) | change->set;
	if (was_valid && !(desc & PTE_VALID))
		desc |= PTE_PRESENT_INVALID;
	else if (!was_valid && (desc & PTE_VALID))
		desc = (desc & ~PTE_NG) | PTE_MAYBE_NG;

	return desc;
}
