// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of HVO in batches; see hugetlb_vmemmap_batch.c. They make hugetlb folios of
 * their own, which are in no pool, so that nobody else optimizes or frees them.
 */
#include <kunit/test.h>

#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/pgtable.h>

#include <asm/vmemmap_change.h>

#include "internal.h"
#include "hugetlb_vmemmap.h"

/**
 * struct hvo_test - what a test has
 * @h: the smallest hstate that can be optimized
 * @folio: a frozen hugetlb folio
 * @before: its struct pages, as they were
 */
struct hvo_test {
	struct hstate *h;
	struct folio *folio;
	struct page *before;
};

static unsigned long vmemmap_size(const struct hvo_test *t)
{
	return hugetlb_vmemmap_size(t->h);
}

static int hvo_test_init(struct kunit *test)
{
	struct hvo_test *t = kunit_kzalloc(test, sizeof(*t), GFP_KERNEL);
	struct hstate *h;

	if (!t)
		return -ENOMEM;
	test->priv = t;

	for_each_hstate(h)
		if (hugetlb_vmemmap_optimizable(h) && !hstate_is_gigantic(h) &&
		    (!t->h || huge_page_order(h) < huge_page_order(t->h)))
			t->h = h;
	if (!t->h)
		kunit_skip(test, "no size of hugetlb page can be optimized here");

	/* As the pool does it, but for the pool. */
	t->folio = __folio_alloc(GFP_KERNEL, huge_page_order(t->h), numa_mem_id(), NULL);
	if (!t->folio)
		return -ENOMEM;
	folio_clear_large_rmappable(t->folio);
	if (!folio_ref_freeze(t->folio, 1))
		return -EBUSY;
	__folio_set_hugetlb(t->folio);
	folio_change_private(t->folio, NULL);
	INIT_LIST_HEAD(&t->folio->lru);

	if (!vmemmap_should_optimize_folio(t->h, t->folio))
		kunit_skip(test, "needs hugetlb_free_vmemmap=on");

	t->before = kunit_kmalloc(test, vmemmap_size(t), GFP_KERNEL);
	if (!t->before)
		return -ENOMEM;
	memcpy(t->before, &t->folio->page, vmemmap_size(t));

	return 0;
}

static void hvo_test_exit(struct kunit *test)
{
	struct hvo_test *t = test->priv;

	if (!t || !t->folio || folio_ref_count(t->folio))
		return;
	if (hugetlb_vmemmap_restore_folio(t->h, t->folio))
		return;
	__folio_clear_hugetlb(t->folio);
	folio_ref_unfreeze(t->folio, 1);
	folio_put(t->folio);
}

/* As pools have it done, so that it is done whether CPUs are paused often or not. */
static void optimize(const struct hvo_test *t)
{
	LIST_HEAD(folios);

	list_add(&t->folio->lru, &folios);
	hugetlb_vmemmap_optimize_folios(t->h, &folios);
	list_del_init(&t->folio->lru);
}

static pte_t entry_of(unsigned long addr)
{
	return ptep_get(pte_offset_kernel(pmd_off_k(addr), addr));
}

/* What code asks of a tail. */
static bool is_tail_of(const struct page *page, const struct folio *folio)
{
	return PageTail(page) && !PageHead(page) && PageCompound(page) &&
	       page_folio(page) == folio && !page_count(page);
}

static unsigned long nr_bad_tails(const struct hvo_test *t)
{
	unsigned long i, bad = 0;

	for (i = 1; i < pages_per_huge_page(t->h); i++)
		bad += !is_tail_of(folio_page(t->folio, i), t->folio);

	return bad;
}

static void optimized_tails_are_tails(struct kunit *test)
{
	struct hvo_test *t = test->priv;
	unsigned long start = (unsigned long)&t->folio->page, addr;
	unsigned long kept = start + (hugetlb_vmemmap_retained_pages() - 1) * PAGE_SIZE;

	optimize(t);
	KUNIT_ASSERT_TRUE(test, folio_test_hugetlb_vmemmap_optimized(t->folio));

	/* The head's page is its own, writable; all others are the kept one, read-only. */
	KUNIT_EXPECT_TRUE(test, pte_write(entry_of(start)));
	for (addr = start + PAGE_SIZE; addr < start + vmemmap_size(t); addr += PAGE_SIZE) {
		KUNIT_EXPECT_FALSE(test, pte_write(entry_of(addr)));
		KUNIT_EXPECT_EQ(test, pte_pfn(entry_of(addr)), pte_pfn(entry_of(kept)));
	}
	KUNIT_EXPECT_EQ(test, nr_bad_tails(t), 0UL);

	/* Whoever tries to take a reference to a tail writes nothing, and gets none. */
	for (addr = start + PAGE_SIZE; addr < start + vmemmap_size(t); addr += PAGE_SIZE)
		KUNIT_EXPECT_FALSE(test, get_page_unless_zero((struct page *)addr));
}

/* Struct pages must be as before, but for what means nothing in a tail. */
static void restored_tails_are_as_before(struct kunit *test)
{
	struct hvo_test *t = test->priv;
	unsigned long start = (unsigned long)&t->folio->page, addr, i;
	struct page *now;

	optimize(t);
	KUNIT_ASSERT_EQ(test, hugetlb_vmemmap_restore_folio(t->h, t->folio), 0);
	KUNIT_EXPECT_FALSE(test, folio_test_hugetlb_vmemmap_optimized(t->folio));

	for (addr = start; addr < start + vmemmap_size(t); addr += PAGE_SIZE) {
		KUNIT_EXPECT_TRUE(test, pte_write(entry_of(addr)));
		KUNIT_EXPECT_TRUE(test, addr == start ||
				  pte_pfn(entry_of(addr)) != pte_pfn(entry_of(addr - PAGE_SIZE)));
	}
	KUNIT_EXPECT_EQ(test, nr_bad_tails(t), 0UL);

	now = kunit_kmalloc(test, vmemmap_size(t), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, now);
	memcpy(now, &t->folio->page, vmemmap_size(t));
	for (i = HUGETLB_VMEMMAP_RESERVE_PAGES; i < pages_per_huge_page(t->h); i++) {
		t->before[i].index = now[i].index;
		t->before[i].lru.prev = now[i].lru.prev;
	}
	KUNIT_EXPECT_MEMEQ(test, now, t->before, vmemmap_size(t));
}

static void every_turn_is_the_same(struct kunit *test)
{
	struct hvo_test *t = test->priv;
	int i;

	for (i = 0; i < 20; i++) {
		optimize(t);
		KUNIT_ASSERT_TRUE(test, folio_test_hugetlb_vmemmap_optimized(t->folio));
		/* Once more changes nothing. */
		optimize(t);
		KUNIT_ASSERT_EQ(test, hugetlb_vmemmap_restore_folio(t->h, t->folio), 0);
		KUNIT_ASSERT_EQ(test, hugetlb_vmemmap_restore_folio(t->h, t->folio), 0);
	}
	KUNIT_EXPECT_EQ(test, nr_bad_tails(t), 0UL);
}

/* The head is in use meanwhile: what others write to it must not be lost. */
static void head_stays_where_it_is(struct kunit *test)
{
	struct hvo_test *t = test->priv;
	unsigned long start = (unsigned long)&t->folio->page;
	unsigned long pfn;

	optimize(t);
	pfn = pte_pfn(entry_of(start));
	folio_set_owner_2(t->folio);
	KUNIT_ASSERT_EQ(test, hugetlb_vmemmap_restore_folio(t->h, t->folio), 0);

	KUNIT_EXPECT_EQ(test, pte_pfn(entry_of(start)), pfn);
	KUNIT_EXPECT_TRUE(test, folio_test_owner_2(t->folio));
	folio_clear_owner_2(t->folio);
	KUNIT_EXPECT_EQ(test, nr_bad_tails(t), 0UL);
}

static struct kunit_case hvo_cases[] = {
	KUNIT_CASE(optimized_tails_are_tails),
	KUNIT_CASE(restored_tails_are_as_before),
	KUNIT_CASE(every_turn_is_the_same),
	KUNIT_CASE(head_stays_where_it_is),
	{}
};

static struct kunit_suite hvo_suite = {
	.name = "hugetlb_vmemmap",
	.init = hvo_test_init,
	.exit = hvo_test_exit,
	.test_cases = hvo_cases,
};

kunit_test_suite(hvo_suite);

MODULE_DESCRIPTION("KUnit tests of HVO in batches");
MODULE_LICENSE("GPL");
