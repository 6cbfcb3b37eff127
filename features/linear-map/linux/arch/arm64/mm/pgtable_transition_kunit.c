// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of the checker of page-table changes: it must complain of what the
 * architecture forbids, and of nothing else.
 */
#include <kunit/static_stub.h>
#include <kunit/test.h>

#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pgtable.h>
#include <linux/string.h>

#include <asm/bbml2.h>
#include <asm/pgtable-transition.h>
#include <asm/tlbflush.h>

#include "pgtable_transition.h"

#define PFN_A	0x40000UL
#define PFN_B	0x40200UL

static u64 page(unsigned long pfn, pgprot_t prot)
{
	return pte_val(pfn_pte(pfn, prot));
}

static const char *error(u64 old, u64 new, unsigned int shift, bool bbml2)
{
	return pgtable_transition_error(old, new, shift, bbml2, false);
}

static void permissions_may_change(struct kunit *test)
{
	u64 rw = page(PFN_A, PAGE_KERNEL), ro = page(PFN_A, PAGE_KERNEL_RO);

	KUNIT_EXPECT_NULL(test, error(rw, ro, PAGE_SHIFT, false));
	KUNIT_EXPECT_NULL(test, error(ro, rw, PAGE_SHIFT, false));
	KUNIT_EXPECT_NULL(test, error(ro, page(PFN_A, PAGE_KERNEL_ROX), PAGE_SHIFT, false));
	KUNIT_EXPECT_NULL(test, error(rw, page(PFN_A, pgprot_tagged(PAGE_KERNEL)), PAGE_SHIFT,
				      false));
}

static void address_and_type_may_not(struct kunit *test)
{
	u64 rw = page(PFN_A, PAGE_KERNEL);

	KUNIT_EXPECT_NOT_NULL(test, error(rw, page(PFN_B, PAGE_KERNEL), PAGE_SHIFT, true));
	KUNIT_EXPECT_NOT_NULL(test, error(rw, page(PFN_A, pgprot_device(PAGE_KERNEL)), PAGE_SHIFT,
					  true));
	KUNIT_EXPECT_NOT_NULL(test, error(rw | PTE_NG, rw & ~PTE_NG, PAGE_SHIFT, true));
	KUNIT_EXPECT_NULL(test, error(rw & ~PTE_NG, rw | PTE_NG, PAGE_SHIFT, true));
}

static void address_may_where_contents_are_equal(struct kunit *test)
{
	u8 *a = (u8 *)get_zeroed_page(GFP_KERNEL);
	u8 *b = (u8 *)get_zeroed_page(GFP_KERNEL);
	u64 old = page(virt_to_pfn(a), PAGE_KERNEL_RO), new = page(virt_to_pfn(b), PAGE_KERNEL_RO);

	KUNIT_EXPECT_NULL(test, error(old, new, PAGE_SHIFT, true));
	KUNIT_EXPECT_NOT_NULL(test, error(old, page(virt_to_pfn(b), PAGE_KERNEL), PAGE_SHIFT,
					  true));
	b[PAGE_SIZE - 1] = 1;
	KUNIT_EXPECT_NOT_NULL(test, error(old, new, PAGE_SHIFT, true));
	free_page((unsigned long)a);
	free_page((unsigned long)b);
}

static void contiguous_bit_needs_level_2(struct kunit *test)
{
	u64 rw = page(PFN_A, PAGE_KERNEL);

	KUNIT_EXPECT_NULL(test, error(rw, rw | PTE_CONT, PAGE_SHIFT, true));
	KUNIT_EXPECT_NOT_NULL(test, error(rw, rw | PTE_CONT, PAGE_SHIFT, false));
	KUNIT_EXPECT_NOT_NULL(test, error(rw | PTE_CONT, rw, PAGE_SHIFT, false));
	KUNIT_EXPECT_NOT_NULL(test, error(rw | PTE_CONT, page(PFN_A, PAGE_KERNEL_RO) | PTE_CONT,
					  PAGE_SHIFT, false));
}

static void block_and_table_must_agree(struct kunit *test)
{
	pte_t *table = (pte_t *)get_zeroed_page(GFP_KERNEL);
	unsigned long pfn = round_down(PFN_A, PTRS_PER_PTE);
	u64 block = page(pfn, PAGE_KERNEL) & ~PTE_TABLE_BIT;
	u64 entry = __phys_to_pte_val(__pa(table)) | PMD_TYPE_TABLE | PMD_TABLE_UXN;
	unsigned int i;

	KUNIT_ASSERT_NOT_NULL(test, table);
	for (i = 0; i < PTRS_PER_PTE; i++)
		WRITE_ONCE(table[i], pfn_pte(pfn + i, PAGE_KERNEL));

	KUNIT_EXPECT_NULL(test, error(block, entry, PMD_SHIFT, true));
	KUNIT_EXPECT_NULL(test, error(entry, block, PMD_SHIFT, true));
	KUNIT_EXPECT_NOT_NULL(test, error(block, entry, PMD_SHIFT, false));
	KUNIT_EXPECT_NOT_NULL(test, error(entry, block, PMD_SHIFT, false));

	/* One page read-only, one missing, one of another place: not the same mapping. */
	WRITE_ONCE(table[7], pfn_pte(pfn + 7, PAGE_KERNEL_RO));
	KUNIT_EXPECT_NOT_NULL(test, error(block, entry, PMD_SHIFT, true));
	WRITE_ONCE(table[7], __pte(0));
	KUNIT_EXPECT_NOT_NULL(test, error(entry, block, PMD_SHIFT, true));
	WRITE_ONCE(table[7], pfn_pte(pfn + 8, PAGE_KERNEL));
	KUNIT_EXPECT_NOT_NULL(test, error(entry, block, PMD_SHIFT, true));
	free_page((unsigned long)table);
}

/* A block of the second level that becomes pages in one step: a table of tables, and blocks. */
static void tables_of_tables_must_agree(struct kunit *test)
{
	u64 *upper = (u64 *)get_zeroed_page(GFP_KERNEL);
	u64 *lower = (u64 *)get_zeroed_page(GFP_KERNEL);
	unsigned long step = PTRS_PER_PTE, pfn = round_down(PFN_A, step * PTRS_PER_PTE);
	u64 block = page(pfn, PAGE_KERNEL) & ~PTE_TABLE_BIT;
	u64 entry = __phys_to_pte_val(__pa(upper)) | PMD_TYPE_TABLE | PMD_TABLE_UXN;
	unsigned int i;

	if (!pud_sect_supported())
		kunit_skip(test, "there are no such blocks");
	KUNIT_ASSERT_NOT_NULL(test, upper);
	KUNIT_ASSERT_NOT_NULL(test, lower);
	for (i = 0; i < PTRS_PER_PTE; i++) {
		WRITE_ONCE(upper[i], page(pfn + i * step, PAGE_KERNEL) & ~PTE_TABLE_BIT);
		WRITE_ONCE(lower[i], page(pfn + 3 * step + i, PAGE_KERNEL));
	}
	WRITE_ONCE(upper[3], __phys_to_pte_val(__pa(lower)) | PMD_TYPE_TABLE | PMD_TABLE_UXN);

	KUNIT_EXPECT_NULL(test, error(block, entry, PUD_SHIFT, true));
	KUNIT_EXPECT_NULL(test, error(entry, block, PUD_SHIFT, true));

	/* A page of another place, and a table in another place. */
	WRITE_ONCE(lower[7], page(pfn + 7, PAGE_KERNEL));
	KUNIT_EXPECT_NOT_NULL(test, error(block, entry, PUD_SHIFT, true));
	WRITE_ONCE(lower[7], page(pfn + 3 * step + 7, PAGE_KERNEL));
	WRITE_ONCE(upper[4], READ_ONCE(upper[3]));
	KUNIT_EXPECT_NOT_NULL(test, error(block, entry, PUD_SHIFT, true));
	free_page((unsigned long)upper);
	free_page((unsigned long)lower);
}

static void tables_are_not_exchanged(struct kunit *test)
{
	u64 a = (PFN_A << PAGE_SHIFT) | PMD_TYPE_TABLE, b = (PFN_B << PAGE_SHIFT) | PMD_TYPE_TABLE;

	KUNIT_EXPECT_NOT_NULL(test, error(a, b, PMD_SHIFT, true));
	KUNIT_EXPECT_NULL(test, error(a, a | PMD_TABLE_PXN, PMD_SHIFT, true));
}

/* NSTable changes the address space of what is below; APTable takes permissions away. */
#define TABLE_NS	BIT_ULL(63)
#define TABLE_RO	BIT_ULL(62)

static void attributes_of_a_table_count(struct kunit *test)
{
	pte_t *table = (pte_t *)get_zeroed_page(GFP_KERNEL);
	unsigned long pfn = round_down(PFN_A, PTRS_PER_PTE);
	u64 block = page(pfn, PAGE_KERNEL) & ~PTE_TABLE_BIT;
	u64 executable = page(pfn, PAGE_KERNEL_ROX) & ~PTE_TABLE_BIT;
	u64 entry = __phys_to_pte_val(__pa(table)) | PMD_TYPE_TABLE | PMD_TABLE_UXN;
	unsigned int i;

	KUNIT_ASSERT_NOT_NULL(test, table);
	KUNIT_EXPECT_NULL(test, error(entry, entry | TABLE_RO, PMD_SHIFT, false));
	KUNIT_EXPECT_NOT_NULL(test, error(entry, entry | TABLE_NS, PMD_SHIFT, true));

	/* What is taken away from all of the table was not there in the block. */
	for (i = 0; i < PTRS_PER_PTE; i++)
		WRITE_ONCE(table[i], pfn_pte(pfn + i, PAGE_KERNEL));
	KUNIT_EXPECT_NULL(test, error(block, entry | PMD_TABLE_PXN, PMD_SHIFT, true));
	KUNIT_EXPECT_NOT_NULL(test, error(block, entry | TABLE_RO, PMD_SHIFT, true));
	KUNIT_EXPECT_NOT_NULL(test, error(entry | TABLE_RO, block, PMD_SHIFT, true));
	KUNIT_EXPECT_NOT_NULL(test, error(block, entry | TABLE_NS, PMD_SHIFT, true));

	for (i = 0; i < PTRS_PER_PTE; i++)
		WRITE_ONCE(table[i], pfn_pte(pfn + i, PAGE_KERNEL_ROX));
	KUNIT_EXPECT_NULL(test, error(executable, entry, PMD_SHIFT, true));
	KUNIT_EXPECT_NULL(test, error(executable, entry | TABLE_RO, PMD_SHIFT, true));
	KUNIT_EXPECT_NOT_NULL(test, error(executable, entry | PMD_TABLE_PXN, PMD_SHIFT, true));
	free_page((unsigned long)table);
}

/* What the base kernel lets pass is legal; the other way round it need not be. */
static void agrees_with_what_the_kernel_calls_safe(struct kunit *test)
{
	const u64 entries[] = {
		page(PFN_A, PAGE_KERNEL),
		page(PFN_A, PAGE_KERNEL_RO),
		page(PFN_A, PAGE_KERNEL_ROX),
		page(PFN_A, PAGE_KERNEL_EXEC),
		page(PFN_A, pgprot_tagged(PAGE_KERNEL)),
		page(PFN_A, pgprot_device(PAGE_KERNEL)),
		page(PFN_A, pgprot_writecombine(PAGE_KERNEL)),
		page(PFN_A, PAGE_KERNEL) ^ PTE_NG,
		page(PFN_A, PAGE_KERNEL) | PTE_CONT,
		page(PFN_A, PAGE_KERNEL_RO) | PTE_CONT,
		page(PFN_A, PAGE_KERNEL) & ~PTE_AF,
		page(PFN_A, PAGE_KERNEL) & ~PTE_SHARED,
		page(PFN_A, PAGE_KERNEL) | PTE_SPECIAL,
		page(PFN_B, PAGE_KERNEL),
		page(PFN_B, PAGE_KERNEL_RO),
	};
	unsigned int i, j, safe = 0;

	for (i = 0; i < ARRAY_SIZE(entries); i++) {
		for (j = 0; j < ARRAY_SIZE(entries); j++) {
			if (!pgattr_change_is_safe(entries[i], entries[j]))
				continue;
			safe += i != j;
			KUNIT_EXPECT_NULL_MSG(test,
					      error(entries[i], entries[j], PAGE_SHIFT, false),
					      "%016llx -> %016llx", entries[i], entries[j]);
		}
	}
	KUNIT_EXPECT_GT(test, safe, 10);

	/* The access flag is no reason for break-before-make, and never was. */
	KUNIT_EXPECT_FALSE(test, pgattr_change_is_safe(entries[0], entries[10]));
	KUNIT_EXPECT_NULL(test, error(entries[0], entries[10], PAGE_SHIFT, false));
	/* With BBM level 2 the entries of a contiguous range may change one by one. */
	KUNIT_EXPECT_FALSE(test, pgattr_change_is_safe(entries[8], entries[9]));
	KUNIT_EXPECT_NULL(test, error(entries[8], entries[9], PAGE_SHIFT, true));
}

static unsigned int reported, hidden;
static const char *last_error;

static void count_report(const void *entry, u64 old, u64 new, unsigned int shift,
			 const char *error)
{
	reported++;
	last_error = error;
}

/* A table that no CPU uses, and reports that are counted. NULL: the test was skipped. */
static pte_t *start_counting(struct kunit *test)
{
	pte_t *table;

	if (!static_key_enabled(&pgtable_transition_key))
		kunit_skip(test, "arm64.pgtable_transition_check=on was not given");

	table = (pte_t *)get_zeroed_page(GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, table);
	kunit_activate_static_stub(test, report_pgtable_transition, count_report);
	reported = 0;
	last_error = NULL;

	return table;
}

static void invalidate(const pte_t *table)
{
	flush_tlb_kernel_range((unsigned long)table, (unsigned long)table + PAGE_SIZE);
}

static void stop_counting(struct kunit *test, pte_t *table)
{
	invalidate(table);
	kunit_deactivate_static_stub(test, report_pgtable_transition);
	free_page((unsigned long)table);
}

/*
 * So many violations were reported until now, and the last one says this. It is for those that
 * an entry or its neighbours show by themselves, which nobody can hide.
 */
static void expect_report_of_entry(struct kunit *test, unsigned int nr, const char *text)
{
	KUNIT_EXPECT_EQ(test, reported, nr);
	KUNIT_EXPECT_NOT_NULL_MSG(test, strstr(last_error ?: "", text), "%s instead of %s",
				  last_error ?: "nothing", text);
}

/* The same of what a history shows. A violation may be hidden: see until_nothing_is_hidden(). */
static void expect_report(struct kunit *test, unsigned int nr, const char *text)
{
	if (reported < nr) {
		hidden++;
		reported = nr;
		return;
	}
	expect_report_of_entry(test, nr, text);
}

/* What is done in a pause is not seen, but it is told before. */
static void pauses_must_not_change_translations(struct kunit *test)
{
	pte_t *table = start_counting(test);
	unsigned long pfn = round_down(PFN_A, PTRS_PER_PTE);
	u64 block = page(pfn, PAGE_KERNEL) & ~PTE_TABLE_BIT;
	u64 entry = __phys_to_pte_val(__pa(table)) | PMD_TYPE_TABLE | PMD_TABLE_UXN;
	unsigned int i;

	for (i = 0; i < PTRS_PER_PTE; i++)
		WRITE_ONCE(table[i], pfn_pte(pfn + i, PAGE_KERNEL));
	check_pgtable_paused_transition(table, block, entry, PMD_SHIFT);
	check_pgtable_paused_transition(table, entry, block, PMD_SHIFT);
	KUNIT_EXPECT_EQ(test, reported, 0);

	WRITE_ONCE(table[7], pfn_pte(pfn + 8, PAGE_KERNEL));
	check_pgtable_paused_transition(table, block, entry, PMD_SHIFT);
	KUNIT_EXPECT_EQ(test, reported, 1);
	stop_counting(test, table);
}

/*
 * Other CPUs can hide a violation of a history, if they invalidate the TLB in between or hold
 * the lock of the history just then. They cannot make one up. So the test is repeated until
 * all that is to be reported was.
 */
static void until_nothing_is_hidden(struct kunit *test,
				    void (*violate)(struct kunit *test, pte_t *table))
{
	int tries;

	for (tries = 0; tries < 10; tries++) {
		pte_t *table = start_counting(test);

		hidden = 0;
		violate(test, table);
		stop_counting(test, table);
		if (!hidden)
			return;
	}
	KUNIT_FAIL(test, "%u violations were not reported, in each of %d tries", hidden, tries);
}

/* Break and make without an invalidation is no better than no break at all. */
static void break_and_make(struct kunit *test, pte_t *table)
{
	pmd_t *pmdp = (pmd_t *)table + 8;
	u64 prot = PROT_SECT_NORMAL;

	__set_pte(table, pfn_pte(PFN_A, PAGE_KERNEL));
	__set_pte(table, __pte(0));
	invalidate(table);
	__set_pte(table, pfn_pte(PFN_B, PAGE_KERNEL));
	KUNIT_EXPECT_EQ(test, reported, 0);

	__set_pte(table, __pte(0));
	__set_pte(table, pfn_pte(PFN_A, PAGE_KERNEL));
	expect_report(test, 1, "before the TLB was invalidated");

	__ptep_get_and_clear(&init_mm, 0, table);
	__set_pte(table, pfn_pte(PFN_B, PAGE_KERNEL));
	expect_report(test, 2, "before the TLB was invalidated");

	/* What needs no break needs no invalidation after one: KFENCE does it. */
	__set_pte(table, __pte(0));
	__set_pte(table, pfn_pte(PFN_B, PAGE_KERNEL_RO));
	KUNIT_EXPECT_EQ(test, reported, 2);

	set_pmd(pmdp, __pmd((PFN_A << PAGE_SHIFT) | prot));
	pmd_clear(pmdp);
	set_pmd(pmdp, __pmd((PFN_B << PAGE_SHIFT) | prot));
	expect_report(test, 3, "before the TLB was invalidated");

	/* A block may not become a table with other contents, either. */
	pmd_clear(pmdp);
	set_pmd(pmdp, __pmd(__phys_to_pmd_val(__pa(table)) | PMD_TYPE_TABLE | PMD_TABLE_UXN));
	expect_report(test, 4, "before the TLB was invalidated");
}

static void make_needs_an_invalidation(struct kunit *test)
{
	until_nothing_is_hidden(test, break_and_make);
}

#define CONT_KERNEL	__pgprot(pgprot_val(PAGE_KERNEL) | PTE_CONT)
#define CONT_KERNEL_RO	__pgprot(pgprot_val(PAGE_KERNEL_RO) | PTE_CONT)

static void make_contiguous(pte_t *first, unsigned long pfn, pgprot_t prot)
{
	unsigned int i;

	for (i = 0; i < CONT_PTES; i++)
		__set_pte(first + i, pfn_pte(pfn + i, prot));
}

static void contiguous_ranges_are_aligned(struct kunit *test)
{
	unsigned long pfn = round_down(PFN_A, CONT_PTES * CONT_PMDS * PTRS_PER_PTE), i;
	pte_t *table = start_counting(test);
	pmd_t *pmdp = (pmd_t *)table + CONT_PMDS;
	u64 prot = PROT_SECT_NORMAL | PMD_SECT_CONT;

	make_contiguous(table + CONT_PTES, pfn, CONT_KERNEL);
	KUNIT_EXPECT_EQ(test, reported, 0);
	make_contiguous(table + 2 * CONT_PTES, pfn + 1, CONT_KERNEL);
	expect_report_of_entry(test, CONT_PTES, "not aligned");

	/* As the linear map would be with 64 KiB pages and memory at an odd GiB. */
	reported = 0;
	memset(table, 0, PAGE_SIZE);
	for (i = 0; i < CONT_PMDS; i++)
		set_pmd(pmdp + i, __pmd(((pfn << PAGE_SHIFT) + i * PMD_SIZE) | prot));
	KUNIT_EXPECT_EQ(test, reported, 0);
	memset(table, 0, PAGE_SIZE);
	for (i = 0; i < CONT_PMDS; i++)
		set_pmd(pmdp + i, __pmd(((pfn << PAGE_SHIFT) + (i + 2) * PMD_SIZE) | prot));
	expect_report_of_entry(test, CONT_PMDS, "not aligned");
	stop_counting(test, table);
}

static void leave_ranges_inconsistent(struct kunit *test, pte_t *table)
{
	unsigned long pfn = round_down(PFN_A, CONT_PTES);
	pte_t *first = table + CONT_PTES;

	make_contiguous(first, pfn, CONT_KERNEL);
	make_contiguous(first, pfn, CONT_KERNEL_RO);
	make_contiguous(first, pfn, PAGE_KERNEL_RO);
	make_contiguous(first, pfn, CONT_KERNEL_RO);
	KUNIT_EXPECT_EQ(test, reported, 0);

	/* One entry has another permission, and the range is left so. */
	__set_pte(first + 5, pfn_pte(pfn + 5, CONT_KERNEL));
	expect_report(test, 1, "disagree");
	invalidate(table);
	expect_report(test, 2, "half written");

	/* One entry is no longer contiguous. */
	make_contiguous(first, pfn, CONT_KERNEL_RO);
	__set_pte(first + 5, pfn_pte(pfn + 5, PAGE_KERNEL_RO));
	expect_report(test, 3, "only a part");
	invalidate(table);
	expect_report(test, 4, "half written");

	/* One is missing, which shows when the last one is written. */
	memset(table, 0, PAGE_SIZE);
	make_contiguous(first, pfn, CONT_KERNEL);
	WRITE_ONCE(first[3], __pte(0));
	WRITE_ONCE(first[CONT_PTES - 1], __pte(0));
	__set_pte(first + CONT_PTES - 1, pfn_pte(pfn + CONT_PTES - 1, CONT_KERNEL));
	expect_report(test, 5, "disagree");

	/* The first half alone is changed; then something else. */
	memset(table, 0, PAGE_SIZE);
	make_contiguous(first, pfn, CONT_KERNEL);
	__set_pte(first, pfn_pte(pfn, CONT_KERNEL_RO));
	__set_pte(table, pfn_pte(PFN_B, PAGE_KERNEL));
	expect_report(test, 6, "half written");
}

static void contiguous_ranges_are_consistent(struct kunit *test)
{
	if (!system_supports_bbml2_noabort())
		kunit_skip(test, "contiguous ranges do not change live on this CPU");

	until_nothing_is_hidden(test, leave_ranges_inconsistent);
}

/* Break-before-make left out on purpose: the functions that write entries notice. */
static void violations_trip(struct kunit *test)
{
	pte_t *table = start_counting(test);
	pmd_t *pmdp = (pmd_t *)table + 8;

	__set_pte(table, pfn_pte(PFN_A, PAGE_KERNEL));
	__set_pte(table, pfn_pte(PFN_B, PAGE_KERNEL));
	KUNIT_EXPECT_EQ(test, reported, 1);

	set_pmd(pmdp, __pmd((PFN_A << PAGE_SHIFT) | PROT_SECT_NORMAL));
	set_pmd(pmdp, __pmd((PFN_B << PAGE_SHIFT) | PROT_SECT_NORMAL));
	KUNIT_EXPECT_EQ(test, reported, 2);

	/* User space has its own ways. */
	__set_pte(table + 1, pfn_pte(PFN_A, PAGE_SHARED));
	__set_pte(table + 1, pfn_pte(PFN_B, PAGE_SHARED));
	KUNIT_EXPECT_EQ(test, reported, 2);

	stop_counting(test, table);
}

static struct kunit_case pgtable_transition_cases[] = {
	KUNIT_CASE(permissions_may_change),
	KUNIT_CASE(address_and_type_may_not),
	KUNIT_CASE(address_may_where_contents_are_equal),
	KUNIT_CASE(contiguous_bit_needs_level_2),
	KUNIT_CASE(block_and_table_must_agree),
	KUNIT_CASE(tables_of_tables_must_agree),
	KUNIT_CASE(tables_are_not_exchanged),
	KUNIT_CASE(attributes_of_a_table_count),
	KUNIT_CASE(agrees_with_what_the_kernel_calls_safe),
	KUNIT_CASE(violations_trip),
	KUNIT_CASE(pauses_must_not_change_translations),
	KUNIT_CASE(make_needs_an_invalidation),
	KUNIT_CASE(contiguous_ranges_are_aligned),
	KUNIT_CASE(contiguous_ranges_are_consistent),
	{}
};

static struct kunit_suite pgtable_transition_suite = {
	.name = "pgtable_transition",
	.test_cases = pgtable_transition_cases,
};

kunit_test_suite(pgtable_transition_suite);

MODULE_DESCRIPTION("KUnit tests of the checker of page-table changes");
MODULE_LICENSE("GPL");
