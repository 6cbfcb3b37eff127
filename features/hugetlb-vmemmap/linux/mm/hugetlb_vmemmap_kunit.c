// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of HVO in batches; see hugetlb_vmemmap_batch.c. They make hugetlb folios of
 * their own, which are in no pool, so that nobody else optimizes or frees them.
 */
#include <kunit/static_stub.h>
#include <kunit/test.h>

#include <linux/completion.h>
#include <linux/delay.h>
#include <linux/hugetlb.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/rcupdate.h>

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

/* A frozen hugetlb folio, made as the pool does it, but for the pool. */
static struct folio *make_folio(struct hstate *h)
{
	struct folio *folio = __folio_alloc(GFP_KERNEL | __GFP_NOWARN, huge_page_order(h),
					    numa_mem_id(), NULL);

	if (!folio)
		return NULL;
	folio_clear_large_rmappable(folio);
	/* It leaks if somebody else looks at it now, which the test will say. */
	if (!folio_ref_freeze(folio, 1))
		return NULL;
	__folio_set_hugetlb(folio);
	folio_change_private(folio, NULL);
	INIT_LIST_HEAD(&folio->lru);

	return folio;
}

static void free_folio(const struct hstate *h, struct folio *folio)
{
	if (hugetlb_vmemmap_restore_folio(h, folio))
		return;
	__folio_clear_hugetlb(folio);
	folio_ref_unfreeze(folio, 1);
	folio_put(folio);
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

	t->folio = make_folio(t->h);
	if (!t->folio)
		return -ENOMEM;

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

	if (t && t->folio)
		free_folio(t->h, t->folio);
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

/* The page that @addr is in, be it mapped by a block or by a page. */
static unsigned long pfn_at(unsigned long addr)
{
	pmd_t pmd = pmdp_get(pmd_off_k(addr));

	return pmd_leaf(pmd) ? pmd_pfn(pmd) + pte_index(addr) : pte_pfn(entry_of(addr));
}

/* What code asks of a tail. */
static bool is_tail_of(const struct page *page, const struct folio *folio)
{
	return PageTail(page) && !PageHead(page) && PageCompound(page) &&
	       page_folio(page) == folio && !page_count(page);
}

static unsigned long nr_bad_tails_of(const struct hstate *h, struct folio *folio)
{
	unsigned long i, bad = 0;

	for (i = 1; i < pages_per_huge_page(h); i++)
		bad += !is_tail_of(folio_page(folio, i), folio);

	return bad;
}

static unsigned long nr_bad_tails(const struct hvo_test *t)
{
	return nr_bad_tails_of(t->h, t->folio);
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
	KUNIT_ASSERT_TRUE(test, folio_test_hugetlb_vmemmap_optimized(t->folio));
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
	unsigned long pfn = pfn_at(start);

	folio_set_owner_2(t->folio);
	optimize(t);
	KUNIT_ASSERT_TRUE(test, folio_test_hugetlb_vmemmap_optimized(t->folio));
	KUNIT_EXPECT_EQ(test, pfn_at(start), pfn);
	KUNIT_EXPECT_TRUE(test, folio_test_owner_2(t->folio));
	KUNIT_ASSERT_EQ(test, hugetlb_vmemmap_restore_folio(t->h, t->folio), 0);

	KUNIT_EXPECT_EQ(test, pfn_at(start), pfn);
	KUNIT_EXPECT_TRUE(test, folio_test_owner_2(t->folio));
	folio_clear_owner_2(t->folio);
	KUNIT_EXPECT_EQ(test, nr_bad_tails(t), 0UL);
}

/* One that looks at struct pages, as get_page_unless_zero() and memory_failure() do. */
struct reader {
	struct completion inside;
	struct completion gone;
	bool has_left;
};

static int look_for_long(void *arg)
{
	struct reader *reader = arg;

	rcu_read_lock();
	complete(&reader->inside);
	mdelay(100);
	WRITE_ONCE(reader->has_left, true);
	rcu_read_unlock();
	complete(&reader->gone);

	return 0;
}

static void restore(const struct hvo_test *t)
{
	hugetlb_vmemmap_restore_folio(t->h, t->folio);
}

static void restore_with_others(const struct hvo_test *t)
{
	LIST_HEAD(folios);
	LIST_HEAD(restored);

	list_add(&t->folio->lru, &folios);
	hugetlb_vmemmap_restore_folios(t->h, &folios, &restored);
	list_del_init(&t->folio->lru);
}

/*
 * Who looked at the tails while a folio was no hugetlb page of ours must have stopped; and who saw
 * its head among them, where that is what they are mapped to.
 */
static void readers_have_left_when_tails_change(struct kunit *test)
{
	static void (*const changes[])(const struct hvo_test *t) = {
		optimize, restore, optimize, restore_with_others
	};
	struct hvo_test *t = test->priv;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(changes); i++) {
		struct reader reader = {
			.inside = COMPLETION_INITIALIZER_ONSTACK(reader.inside),
			.gone = COMPLETION_INITIALIZER_ONSTACK(reader.gone),
		};
		bool optimized = folio_test_hugetlb_vmemmap_optimized(t->folio);
		struct task_struct *task = kthread_run(look_for_long, &reader, "hvo/reader");

		KUNIT_ASSERT_FALSE(test, IS_ERR(task));
		wait_for_completion(&reader.inside);
		changes[i](t);
		if (!optimized || hugetlb_vmemmap_retained_pages() == 1)
			KUNIT_EXPECT_TRUE_MSG(test, READ_ONCE(reader.has_left), "change %u", i);
		wait_for_completion(&reader.gone);
		KUNIT_EXPECT_NE(test, optimized,
				folio_test_hugetlb_vmemmap_optimized(t->folio));
	}
}

/* A task that optimizes the folio of a test. */
struct optimizer {
	const struct hvo_test *t;
	struct completion begun;
	struct completion done;
};

static int optimize_in_task(void *arg)
{
	struct optimizer *optimizer = arg;

	complete(&optimizer->begun);
	optimize(optimizer->t);
	complete_all(&optimizer->done);

	return 0;
}

/*
 * A table may be in place while some TLB still holds the block that it replaced. So an entry of a
 * table is changed only after the split is complete, of which only the lock tells.
 */
static void splits_of_others_are_complete_first(struct kunit *test)
{
	struct hvo_test *t = test->priv;
	struct optimizer optimizer = {
		.t = t,
		.begun = COMPLETION_INITIALIZER_ONSTACK(optimizer.begun),
		.done = COMPLETION_INITIALIZER_ONSTACK(optimizer.done),
	};
	unsigned long start = (unsigned long)&t->folio->page;
	struct task_struct *task;

	/* The table is in place, as somebody else sees it who splits the same block. */
	KUNIT_ASSERT_EQ(test, vmemmap_split(start, start + vmemmap_size(t)), 0);
	vmemmap_split_begin();
	task = kthread_run(optimize_in_task, &optimizer, "hvo/optimizer");
	if (!IS_ERR(task)) {
		wait_for_completion(&optimizer.begun);
		KUNIT_EXPECT_EQ(test, wait_for_completion_timeout(&optimizer.done,
								  msecs_to_jiffies(100)), 0UL);
		KUNIT_EXPECT_TRUE(test, pte_write(entry_of(start + vmemmap_size(t) - PAGE_SIZE)));
	}
	KUNIT_EXPECT_EQ(test, vmemmap_split_end(), 0);
	KUNIT_ASSERT_FALSE(test, IS_ERR(task));

	wait_for_completion(&optimizer.done);
	KUNIT_EXPECT_TRUE(test, folio_test_hugetlb_vmemmap_optimized(t->folio));
	KUNIT_EXPECT_EQ(test, nr_bad_tails(t), 0UL);
}

static void set_batch_entries(void *entries)
{
	hugetlb_vmemmap_batch_entries = (unsigned long)entries;
}

static void free_folios(struct hvo_test *t, struct list_head *folios)
{
	struct folio *folio, *next;

	list_for_each_entry_safe(folio, next, folios, lru) {
		list_del_init(&folio->lru);
		free_folio(t->h, folio);
	}
}

/* More folios than a batch has room for, one of which has its own vmemmap and keeps it. */
static void folios_of_several_batches(struct kunit *test)
{
	struct hvo_test *t = test->priv;
	unsigned int entries = vmemmap_size(t) / PAGE_SIZE - 1, i;
	const unsigned int nr = 6, odd = 3;
	struct folio *folio;
	LIST_HEAD(restored);
	LIST_HEAD(folios);

	/* Room for two folios, and for a part of a third one. */
	KUNIT_ASSERT_EQ(test, 0, kunit_add_action(test, set_batch_entries,
						  (void *)(long)hugetlb_vmemmap_batch_entries));
	set_batch_entries((void *)(3UL * entries - 1));

	for (i = 0; i < nr; i++) {
		folio = make_folio(t->h);
		if (!folio)
			break;
		list_add_tail(&folio->lru, &folios);
	}
	if (i < nr) {
		free_folios(t, &folios);
		/* With pages of 64 KiB a folio has 512 MiB. */
		kunit_skip(test, "not enough memory in pieces of this size");
	}

	hugetlb_vmemmap_optimize_folios(t->h, &folios);
	i = 0;
	list_for_each_entry(folio, &folios, lru) {
		KUNIT_EXPECT_TRUE(test, folio_test_hugetlb_vmemmap_optimized(folio));
		KUNIT_EXPECT_EQ(test, nr_bad_tails_of(t->h, folio), 0UL);
		if (i++ == odd)
			KUNIT_EXPECT_EQ(test, hugetlb_vmemmap_restore_folio(t->h, folio), 0);
	}

	KUNIT_EXPECT_EQ(test, hugetlb_vmemmap_restore_folios(t->h, &folios, &restored), nr - 1L);
	KUNIT_EXPECT_TRUE(test, list_empty(&folios));
	KUNIT_EXPECT_EQ(test, list_count_nodes(&restored), nr);
	list_for_each_entry(folio, &restored, lru) {
		KUNIT_EXPECT_FALSE(test, folio_test_hugetlb_vmemmap_optimized(folio));
		KUNIT_EXPECT_TRUE(test, pte_write(entry_of((unsigned long)&folio->page +
							   vmemmap_size(t) - PAGE_SIZE)));
		KUNIT_EXPECT_EQ(test, nr_bad_tails_of(t->h, folio), 0UL);
	}
	free_folios(t, &restored);
	free_folios(t, &folios);
}

/* The second pause of a batch fails. */
static unsigned int remap_half(struct vmemmap_changes *changes)
{
	struct vmemmap_changes half = *changes;

	kunit_deactivate_static_stub(kunit_get_current_test(), vmemmap_remap);
	half.nr /= 2;

	return vmemmap_remap(&half);
}

/*
 * The tails of a page of the command line hold whatever was in memory, until they are written.
 * Here others walk over memory meanwhile, so that these are valid struct pages which are no tails.
 */
static void half_done_folio_has_tails(struct kunit *test)
{
	struct hvo_test *t = test->priv;
	unsigned long start = (unsigned long)&t->folio->page;
	unsigned long i;

	if (!vmemmap_change_pauses())
		kunit_skip(test, "needs hugetlb_vmemmap=pause");

	for (i = HUGETLB_VMEMMAP_RESERVE_PAGES; i < pages_per_huge_page(t->h); i++)
		clear_compound_head(folio_page(t->folio, i));
	KUNIT_EXPECT_EQ(test, nr_bad_tails(t),
			pages_per_huge_page(t->h) - HUGETLB_VMEMMAP_RESERVE_PAGES);
	kunit_activate_static_stub(test, vmemmap_remap, remap_half);
	optimize(t);
	KUNIT_ASSERT_TRUE(test, folio_test_hugetlb_vmemmap_optimized(t->folio));
	KUNIT_EXPECT_FALSE(test, pte_write(entry_of(start + PAGE_SIZE)));
	KUNIT_EXPECT_TRUE(test, pte_write(entry_of(start + vmemmap_size(t) - PAGE_SIZE)));
	KUNIT_EXPECT_EQ(test, nr_bad_tails(t), 0UL);

	KUNIT_ASSERT_EQ(test, hugetlb_vmemmap_restore_folio(t->h, t->folio), 0);
	KUNIT_EXPECT_EQ(test, nr_bad_tails(t), 0UL);
}

static struct kunit_case hvo_cases[] = {
	KUNIT_CASE(optimized_tails_are_tails),
	KUNIT_CASE(restored_tails_are_as_before),
	KUNIT_CASE(every_turn_is_the_same),
	KUNIT_CASE(head_stays_where_it_is),
	KUNIT_CASE(readers_have_left_when_tails_change),
	KUNIT_CASE(splits_of_others_are_complete_first),
	KUNIT_CASE(folios_of_several_batches),
	KUNIT_CASE(half_done_folio_has_tails),
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
