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

#include <asm/pgtable-transition.h>

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

static void tables_are_not_exchanged(struct kunit *test)
{
	u64 a = (PFN_A << PAGE_SHIFT) | PMD_TYPE_TABLE, b = (PFN_B << PAGE_SHIFT) | PMD_TYPE_TABLE;

	KUNIT_EXPECT_NOT_NULL(test, error(a, b, PMD_SHIFT, true));
	KUNIT_EXPECT_NULL(test, error(a, a | PMD_TABLE_PXN, PMD_SHIFT, true));
}

static unsigned int reported;

static void count_report(const void *entry, u64 old, u64 new, unsigned int shift,
			 const char *error)
{
	reported++;
}

/* Break-before-make left out on purpose: the functions that write entries notice. */
static void violations_trip(struct kunit *test)
{
	pte_t *table;
	pmd_t *pmdp;

	if (!static_key_enabled(&pgtable_transition_key))
		kunit_skip(test, "pgtable_transition_check=on was not given");

	table = (pte_t *)get_zeroed_page(GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, table);
	pmdp = (pmd_t *)table + 8;
	kunit_activate_static_stub(test, report_pgtable_transition, count_report);
	reported = 0;

	/* With break-before-make it is legal, */
	__set_pte(table, pfn_pte(PFN_A, PAGE_KERNEL));
	__set_pte(table, __pte(0));
	__set_pte(table, pfn_pte(PFN_B, PAGE_KERNEL));
	KUNIT_EXPECT_EQ(test, reported, 0);

	/* without it is not. */
	__set_pte(table, pfn_pte(PFN_A, PAGE_KERNEL));
	KUNIT_EXPECT_EQ(test, reported, 1);

	set_pmd(pmdp, __pmd((PFN_A << PAGE_SHIFT) | PROT_SECT_NORMAL));
	set_pmd(pmdp, __pmd((PFN_B << PAGE_SHIFT) | PROT_SECT_NORMAL));
	KUNIT_EXPECT_EQ(test, reported, 2);

	/* User space has its own ways. */
	__set_pte(table + 1, pfn_pte(PFN_A, PAGE_SHARED));
	__set_pte(table + 1, pfn_pte(PFN_B, PAGE_SHARED));
	KUNIT_EXPECT_EQ(test, reported, 2);

	kunit_deactivate_static_stub(test, report_pgtable_transition);
	free_page((unsigned long)table);
}

static struct kunit_case pgtable_transition_cases[] = {
	KUNIT_CASE(permissions_may_change),
	KUNIT_CASE(address_and_type_may_not),
	KUNIT_CASE(address_may_where_contents_are_equal),
	KUNIT_CASE(contiguous_bit_needs_level_2),
	KUNIT_CASE(block_and_table_must_agree),
	KUNIT_CASE(tables_are_not_exchanged),
	KUNIT_CASE(violations_trip),
	{}
};

static struct kunit_suite pgtable_transition_suite = {
	.name = "pgtable_transition",
	.test_cases = pgtable_transition_cases,
};

kunit_test_suite(pgtable_transition_suite);

MODULE_DESCRIPTION("KUnit tests of the checker of page-table changes");
MODULE_LICENSE("GPL");
