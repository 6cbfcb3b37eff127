// SPDX-License-Identifier: GPL-2.0-only
/*
 * HugeTLB Vmemmap Optimization (HVO) in batches.
 *
 * All tail struct pages of a hugetlb page say the same. They take many pages of vmemmap,
 * of which one is enough: the entries of all the others are pointed at it, read-only, and
 * the pages are freed. Before the hugetlb page is given back each entry gets a page of its
 * own again.
 *
 * hugetlb_vmemmap.c does that one folio and one entry at a time, on architectures that may
 * change a live entry as they like. Here the changes of many folios are collected first,
 * with all memory that they need, and then made together by vmemmap_remap() of the
 * architecture. The order is always: change, invalidate the TLBs, free.
 *
 * As a rule vmemmap_remap() makes all changes of a batch. If CPUs have to be paused and
 * cannot be, it makes only the first ones, and the rest of the batch is dropped: its folios
 * stay as they are, and one folio may be left half done. That one counts as optimized. Its
 * entries say how much of it is: those that map the kept page. When it is restored only these
 * are changed.
 *
 * Which page is kept depends on how entries are changed (asm/vmemmap_change.h).
 *
 *  - Paused: the first one, which holds the head. Its copy of the head appears in front
 *    of every page of tails: page_fixed_fake_head() takes care of that.
 *  - Seamless: the first one, and the second one, which is all tails. The others must have
 *    the contents of the second, so all tails are first written anew from one pattern.
 *
 * The kept pages stay where they are. hugetlb_vmemmap.c moves the head to a new page, so
 * that all pages around it can be freed; a copy would lose what is written to the head
 * meanwhile, unless nobody can write.
 *
 * Nobody writes to the tails of a hugetlb page: they have no references, and who was about
 * to take one has given up after synchronize_rcu(), see page_ref_add_unless(). All code that
 * could is listed in Documentation/arch/arm64/hugetlb-vmemmap.rst.
 */
#define pr_fmt(fmt) "HugeTLB: " fmt

#include <linux/atomic.h>
#include <linux/init.h>
#include <linux/jiffies.h>
#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/memblock.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/ratelimit.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/sysctl.h>
#include <linux/sysfs.h>
#include <linux/vmalloc.h>

#include <asm/vmemmap_change.h>

#include "hugetlb_vmemmap.h"

/*
 * Entries that are changed together, but for a folio that has more. Whatever the size of a page,
 * 64 MiB of vmemmap are written before the pages that this frees can be allocated, or are
 * allocated before they are used. Tests make it less.
 */
unsigned int hugetlb_vmemmap_batch_entries = SZ_64M / PAGE_SIZE;

/* What is visible in /sys/kernel/mm/hugetlb_vmemmap. */
static atomic_long_t entries_changed = ATOMIC_LONG_INIT(0);
static atomic_long_t pages_saved = ATOMIC_LONG_INIT(0);
static atomic_long_t not_optimized = ATOMIC_LONG_INIT(0);
static atomic_long_t not_restored = ATOMIC_LONG_INIT(0);

/**
 * struct batch - changes that are collected, to be made together
 * @changes: the changes
 * @freed: pages of vmemmap that nobody uses once they are made
 * @nr_freed: how many
 * @failed: not all changes could be made
 */
struct batch {
	struct vmemmap_changes changes;
	struct list_head freed;
	long nr_freed;
	bool failed;
};

/* Is the page that folios keep the head's, so that copies of it appear among the tails? */
static bool keeps_head_only(void)
{
	return hugetlb_vmemmap_retained_pages() == 1;
}

static unsigned long vmemmap_start(const struct folio *folio)
{
	return (unsigned long)&folio->page;
}

static unsigned long vmemmap_end(const struct hstate *h, const struct folio *folio)
{
	return vmemmap_start(folio) + hugetlb_vmemmap_size(h);
}

/*
 * Before folios are restored: wait for who has seen the references of a head in a copy of it, and
 * is about to add one there. Where there are no copies, tails had none since they were optimized,
 * and who would have seen one before that had ended by then.
 */
static void wait_for_fake_references(void)
{
	if (keeps_head_only())
		synchronize_rcu();
}

/* Entries of a folio that change: all but the head's own. */
static unsigned int nr_entries(const struct hstate *h)
{
	return hugetlb_vmemmap_size(h) / PAGE_SIZE - 1;
}

/*
 * A worker that must not reclaim (PF_MEMALLOC) frees folios when memory may be all but gone. It
 * does not get all of the reserves for that: what it frees may be of a zone or node that is of no
 * use to others, and not come back to where it was taken. It gets half of what is kept below the
 * watermark. Tasks that eat what it frees do not, so that there is some for the next folios.
 */
static gfp_t batch_gfp(void)
{
	gfp_t gfp = GFP_KERNEL | __GFP_RETRY_MAYFAIL;

	if (current->flags & PF_MEMALLOC)
		gfp |= __GFP_NOMEMALLOC | __GFP_HIGH | __GFP_NOWARN;

	return gfp;
}

static int batch_init(struct batch *batch, const struct hstate *h, unsigned long nr_folios)
{
	struct vmemmap_changes *changes = &batch->changes;
	gfp_t gfp = batch_gfp() | __GFP_NOWARN;
	size_t size;

	INIT_LIST_HEAD(&batch->freed);
	batch->nr_freed = 0;
	batch->failed = false;

	changes->nr = 0;
	changes->max = min(nr_folios * nr_entries(h),
			   max(hugetlb_vmemmap_batch_entries, nr_entries(h)));
	changes->start = ULONG_MAX;
	changes->end = 0;

	/*
	 * __GFP_RETRY_MAYFAIL keeps the OOM killer away. It would have kvmalloc() reclaim and
	 * compact for a large block, too, before that takes single pages, which do as well.
	 */
	size = array_size(changes->max, sizeof(*changes->change));
	if (size > PAGE_SIZE) {
		changes->change = __vmalloc(size, gfp);
		if (changes->change)
			return 0;
		/*
		 * vmalloc does not reclaim for a task that is about to die. That task has folios
		 * to restore all the same, and can do it one by one.
		 */
		changes->max = nr_entries(h);
		size = array_size(changes->max, sizeof(*changes->change));
	}
	changes->change = kmalloc(size, gfp);

	return changes->change ? 0 : -ENOMEM;
}

static void add_change(struct batch *batch, pte_t *ptep, unsigned long addr, pte_t pte)
{
	struct vmemmap_changes *changes = &batch->changes;

	changes->change[changes->nr++] = (struct vmemmap_change){ ptep, pte };
	changes->start = min(changes->start, addr);
	changes->end = max(changes->end, addr + PAGE_SIZE);
}

/*
 * Only the changes before @first were made. The remaining ones are of two kinds. A page that
 * an optimizing change would have freed is still in use; a page that was allocated for a
 * restoring change is not needed. A change that leaves the entry's page as it is occurs in
 * seamless mode only, where every change is made.
 */
static void batch_drop(struct batch *batch, unsigned int first)
{
	struct vmemmap_changes *changes = &batch->changes;
	unsigned int i;

	for (i = first; i < changes->nr; i++) {
		pte_t *ptep = changes->change[i].ptep;
		pte_t pte = changes->change[i].pte;

		if (pte_write(pte)) {
			free_vmemmap_page(pte_page(pte));
			batch->nr_freed++;
		} else {
			list_del(&pte_page(ptep_get(ptep))->lru);
			batch->nr_freed--;
		}
	}
	batch->failed = true;
}

/* Make the changes that were collected, if possible, and free what they make free. */
static void batch_commit(struct batch *batch)
{
	struct vmemmap_changes *changes = &batch->changes;
	unsigned int done = vmemmap_remap(changes);
	struct page *page, *next;

	if (done < changes->nr)
		batch_drop(batch, done);
	atomic_long_add(done, &entries_changed);
	atomic_long_add(batch->nr_freed, &pages_saved);

	list_for_each_entry_safe(page, next, &batch->freed, lru)
		free_vmemmap_page(page);

	INIT_LIST_HEAD(&batch->freed);
	batch->nr_freed = 0;
	changes->nr = 0;
	changes->start = ULONG_MAX;
	changes->end = 0;
	cond_resched();
}

/* Is there room for the changes of one more folio? */
static bool batch_has_room(const struct batch *batch, const struct hstate *h)
{
	return batch->changes.nr + nr_entries(h) <= batch->changes.max;
}

/* Returns false if not all changes could be made since batch_init(). */
static bool batch_finish(struct batch *batch)
{
	batch_commit(batch);
	kvfree(batch->changes.change);

	return !batch->failed;
}

/*
 * Write a page of tails: copies of one tail struct page. Fields that no tail uses are cleared
 * first, because an earlier user may have left something in them.
 *
 * The copies come out of registers, which compilers do not do by themselves. copy_page() takes
 * nearly twice the instructions, and a gigantic page has thousands of such pages.
 */
static void write_tails(struct page *page, const struct folio *folio)
{
	struct page tail = *folio_page(folio, HUGETLB_VMEMMAP_RESERVE_PAGES - 1);
	u128 words[4], a, b, c, d, *to = (u128 *)page, *end = to + PAGE_SIZE / sizeof(*to);

	/* If the size is no power of two there is no HVO: hugetlb_vmemmap_optimizable_size(). */
	BUILD_BUG_ON(is_power_of_2(sizeof(tail)) && sizeof(tail) != sizeof(words));
	BUILD_BUG_ON(sizeof(tail) < sizeof(words));

	tail.index = 0;
	tail.lru.prev = NULL;
	memcpy(words, &tail, sizeof(words));
	a = words[0];
	b = words[1];
	c = words[2];
	d = words[3];
	for (; to < end; to += 2 * ARRAY_SIZE(words)) {
		to[0] = a;
		to[1] = b;
		to[2] = c;
		to[3] = d;
		to[4] = a;
		to[5] = b;
		to[6] = c;
		to[7] = d;
	}
}

/* The entry that maps an address, if @prev maps the page before it or is NULL. */
static pte_t *next_entry(unsigned long addr, pte_t *prev)
{
	return prev && (addr & ~PMD_MASK) ? prev + 1 : pte_offset_kernel(pmd_off_k(addr), addr);
}

/* How many entries of a folio map the kept page besides its own. */
static unsigned int nr_shared(const struct hstate *h, const struct folio *folio)
{
	unsigned long kept_pages = hugetlb_vmemmap_retained_pages();
	unsigned long addr = vmemmap_start(folio) + (kept_pages - 1) * PAGE_SIZE;
	pte_t *ptep = next_entry(addr, NULL);
	struct page *kept = pte_page(ptep_get(ptep));
	unsigned int nr = 0;

	for (addr += PAGE_SIZE; addr < vmemmap_end(h, folio); addr += PAGE_SIZE) {
		ptep = next_entry(addr, ptep);
		nr += pte_page(ptep_get(ptep)) == kept;
	}

	return nr;
}

/* Collect the changes that optimize a folio. */
static void collect_optimize(struct batch *batch, const struct hstate *h, struct folio *folio)
{
	unsigned long head = vmemmap_start(folio), end = vmemmap_end(h, folio), addr;
	unsigned long kept_addr = head + (hugetlb_vmemmap_retained_pages() - 1) * PAGE_SIZE;
	struct page *kept = pte_page(ptep_get(next_entry(kept_addr, NULL)));
	pte_t *ptep = NULL, entry = mk_pte(kept, PAGE_KERNEL_RO);

	/* Where the kept page is the head's the others need not equal it. */
	if (!keeps_head_only())
		for (addr = kept_addr; addr < end; addr += PAGE_SIZE)
			write_tails((struct page *)addr, folio);

	for (addr = head + PAGE_SIZE; addr < end; addr += PAGE_SIZE) {
		struct page *page;

		ptep = next_entry(addr, ptep);
		page = pte_page(ptep_get(ptep));
		add_change(batch, ptep, addr, entry);
		if (page != kept) {
			list_add(&page->lru, &batch->freed);
			batch->nr_freed++;
		}
	}
}

/*
 * Allocate pages of vmemmap for a folio. In large pieces, as long as there are any: that
 * is faster, and leaves more of memory in one piece. A large piece is taken if there is one,
 * but nothing is reclaimed or compacted for it: hugetlb pages are given back when memory is
 * short, and then each order of each folio would try. Nor is it taken from another node, where
 * the struct pages would stay for good: single pages of the folio's own node are better, unless
 * that has movable memory only.
 */
static int alloc_vmemmap_pages(const struct folio *folio, unsigned long nr,
			       struct list_head *pages)
{
	gfp_t large = (GFP_KERNEL & ~__GFP_RECLAIM) | __GFP_NOWARN | __GFP_NOMEMALLOC |
		      (node_state(folio_nid(folio), N_NORMAL_MEMORY) ? __GFP_THISNODE : 0);
	gfp_t single = batch_gfp();
	unsigned int order = pageblock_order;
	unsigned long allocated = 0, i;
	struct page *page, *next;

	while (allocated < nr) {
		order = min_t(unsigned int, order, ilog2(nr - allocated));
		page = alloc_pages_node(folio_nid(folio), order ? large : single, order);
		if (!page && !order)
			goto fail;
		if (!page) {
			order--;
			continue;
		}
		split_page(page, order);
		for (i = 0; i < 1UL << order; i++)
			list_add_tail(&page[i].lru, pages);
		allocated += 1UL << order;
	}

	return 0;
fail:
	list_for_each_entry_safe(page, next, pages, lru)
		__free_page(page);

	return -ENOMEM;
}

/* Collect the changes that restore a folio; nothing is collected if it fails. */
static int collect_restore(struct batch *batch, const struct hstate *h, struct folio *folio)
{
	unsigned long head = vmemmap_start(folio), end = vmemmap_end(h, folio), addr;
	unsigned long kept_addr = head + (hugetlb_vmemmap_retained_pages() - 1) * PAGE_SIZE;
	struct page *page, *kept = pte_page(ptep_get(next_entry(kept_addr, NULL)));
	unsigned int nr = nr_shared(h, folio);
	pte_t *ptep = NULL;
	LIST_HEAD(pages);

	VM_WARN_ON_ONCE_FOLIO(!folio_test_hugetlb(folio), folio);
	VM_WARN_ON_ONCE_FOLIO(folio_ref_count(folio), folio);

	if (alloc_vmemmap_pages(folio, nr, &pages))
		return -ENOMEM;
	memmap_pages_add(nr);
	batch->nr_freed -= nr;

	for (addr = head + PAGE_SIZE; addr < end; addr += PAGE_SIZE) {
		ptep = next_entry(addr, ptep);
		page = pte_page(ptep_get(ptep));
		if (addr > kept_addr) {
			/* Only some do if CPUs could not be paused before. */
			if (page != kept)
				continue;
			page = list_first_entry(&pages, struct page, lru);
			list_del(&page->lru);
			write_tails(page_to_virt(page), folio);
		}
		add_change(batch, ptep, addr, mk_pte(page, PAGE_KERNEL));
	}

	return 0;
}

/* Is the vmemmap itself in the memory that it is about, memmap_on_memory? */
static bool is_self_hosted(const struct folio *folio)
{
	unsigned long addr = vmemmap_start(folio);
	pmd_t *pmdp = pmd_off_k(addr), pmd = pmdp_get(pmdp);
	struct page *page;

	if (!IS_ENABLED(CONFIG_MEMORY_HOTPLUG))
		return false;

	page = pmd_leaf(pmd) ? pmd_page(pmd) + pte_index(addr) :
			       pte_page(ptep_get(pte_offset_kernel(pmdp, addr)));

	return PageVmemmapSelfHosted(page);
}

static bool should_optimize(const struct hstate *h, struct folio *folio)
{
	return vmemmap_should_optimize_folio(h, folio) && !is_self_hosted(folio);
}

static unsigned long nr_to_optimize(const struct hstate *h, struct list_head *folios)
{
	unsigned long nr = 0;
	struct folio *folio;

	list_for_each_entry(folio, folios, lru)
		nr += should_optimize(h, folio);

	return nr;
}

/*
 * Have the vmemmap of the folios consist of pages, all of it together. Where there is too
 * little memory for that, optimize() finds out how far it went.
 */
static void split_folios(const struct hstate *h, struct list_head *folios)
{
	struct folio *folio;

	vmemmap_split_begin();
	list_for_each_entry(folio, folios, lru)
		if (should_optimize(h, folio))
			vmemmap_split_add(vmemmap_start(folio), vmemmap_end(h, folio));
	vmemmap_split_end();
}

/*
 * Optimize a folio when the batch is committed, if there is memory to split its vmemmap.
 * synchronize_rcu() was called since it became one.
 */
static void optimize(struct batch *batch, const struct hstate *h, struct folio *folio)
{
	int ret;

	VM_WARN_ON_ONCE_FOLIO(!folio_test_hugetlb(folio), folio);
	VM_WARN_ON_ONCE_FOLIO(folio_ref_count(folio), folio);

	/* What could not be changed for others a moment ago cannot be for this one. */
	if (batch->failed || vmemmap_has_poisoned_tail(h, folio))
		return;
	ret = vmemmap_split(vmemmap_start(folio), vmemmap_end(h, folio));
	if (ret == -ENOMEM) {
		/* What other folios of the batch give back may be enough. */
		batch_commit(batch);
		ret = vmemmap_split(vmemmap_start(folio), vmemmap_end(h, folio));
	}
	if (ret)
		return;
	if (!batch_has_room(batch, h))
		batch_commit(batch);
	if (batch->failed)
		return;
	collect_optimize(batch, h, folio);
	folio_set_hugetlb_vmemmap_optimized(folio);
	cond_resched();
}

/*
 * A batch has failed: take the mark off a folio that nothing was done for. Of one that is half
 * done the tails that were not changed are written: those of a page of the command line never
 * were, and hugetlb.c writes only those of folios without the mark.
 */
static void settle_failed(const struct hstate *h, struct folio *folio)
{
	unsigned long head = vmemmap_start(folio), end = vmemmap_end(h, folio), addr;
	unsigned long kept_addr = head + (hugetlb_vmemmap_retained_pages() - 1) * PAGE_SIZE;
	pte_t *ptep = NULL;
	struct page *kept;

	/* The vmemmap of a folio without the mark may be in a block that was not split. */
	if (!folio_test_hugetlb_vmemmap_optimized(folio))
		return;
	if (!nr_shared(h, folio)) {
		folio_clear_hugetlb_vmemmap_optimized(folio);
		return;
	}
	kept = pte_page(ptep_get(next_entry(kept_addr, NULL)));
	for (addr = kept_addr + PAGE_SIZE; addr < end; addr += PAGE_SIZE) {
		ptep = next_entry(addr, ptep);
		if (pte_page(ptep_get(ptep)) != kept)
			write_tails((struct page *)addr, folio);
	}
}

static void optimize_folios(const struct hstate *h, struct list_head *folio_list)
{
	struct folio *folio;
	struct batch batch;
	unsigned long nr;

	/* While HVO is off no folio need be looked at. */
	if (!READ_ONCE(vmemmap_optimize_enabled))
		return;
	nr = nr_to_optimize(h, folio_list);
	if (!nr)
		return;
	if (batch_init(&batch, h, nr)) {
		atomic_long_add(nr, &not_optimized);
		return;
	}

	split_folios(h, folio_list);

	/* Wait for who has seen a reference and is about to add one, see page_ref_add_unless(). */
	synchronize_rcu();
	list_for_each_entry(folio, folio_list, lru)
		if (should_optimize(h, folio))
			optimize(&batch, h, folio);
	if (!batch_finish(&batch))
		list_for_each_entry(folio, folio_list, lru)
			settle_failed(h, folio);

	list_for_each_entry(folio, folio_list, lru)
		if (should_optimize(h, folio))
			atomic_long_inc(&not_optimized);
}

/**
 * hugetlb_vmemmap_optimize_folios() - free most of the vmemmap of folios
 * @h: their hstate
 * @folio_list: the folios, all of them frozen
 *
 * Does what it has the memory for, and what CPUs can be paused for.
 * folio_test_hugetlb_vmemmap_optimized() tells which folios it did.
 *
 * Context: process context, may sleep.
 */
void hugetlb_vmemmap_optimize_folios(struct hstate *h, struct list_head *folio_list)
{
	optimize_folios(h, folio_list);
}

/*
 * No privilege is needed to ask for surplus folios, or to have folios moved, and no task
 * shall be able to have all CPUs paused as often as it likes. So there are at most
 * TASK_PAUSES in each TASK_PERIOD for folios that a task asked for. At the end of a period and the
 * beginning of the next one twice as many may come together. The others keep their vmemmap:
 * that costs memory, but is correct, and is counted. The flag keeps the rate limit from
 * logging.
 */
#define TASK_PAUSES	16
#define TASK_PERIOD	(5 * HZ)

static struct ratelimit_state task_pauses =
	RATELIMIT_STATE_INIT_FLAGS(task_pauses, TASK_PERIOD, TASK_PAUSES, RATELIMIT_MSG_ON_RELEASE);

/*
 * Optimize folios that a task asked for, if no CPU is paused for that, or not too often. A
 * pause that splits a block is the last one for all the folios that the block is about.
 */
static void optimize_for_task(const struct hstate *h, struct list_head *folio_list)
{
	bool pauses = vmemmap_change_pauses();
	unsigned long nr = 0;
	struct folio *folio;

	list_for_each_entry(folio, folio_list, lru) {
		if (!should_optimize(h, folio))
			continue;
		nr++;
		pauses |= vmemmap_split_pauses(vmemmap_start(folio), vmemmap_end(h, folio));
	}
	if (!nr)
		return;
	if (!pauses || __ratelimit(&task_pauses))
		optimize_folios(h, folio_list);
	else
		atomic_long_add(nr, &not_optimized);
}

/*
 * Surplus folios are worth a pause, and in any case a grace period, if they are so large together:
 * the task that asks for them waits for it, with locks that all of its threads need. In whatever
 * time 512 of 2 MiB are asked for, they are worth 32 pauses at most, and about as many when they
 * are given back. There are more if blocks have to be split, or if a pause may last so short a time
 * that one is not enough for 32 MiB. A folio that a fault needs comes alone, and is worth one only
 * if it is so large itself, as all are with pages of 16 and 64 KiB; TASK_PAUSES bounds these.
 */
#define SURPLUS_WORTH_WAITING	SZ_32M

/**
 * hugetlb_vmemmap_optimize_surplus() - free most of the vmemmap of surplus folios
 * @h: their hstate
 * @folio_list: the folios, all of them frozen
 *
 * As hugetlb_vmemmap_optimize_folios(), but does nothing for few of them, or if CPUs would be
 * paused too often.
 *
 * Context: process context, may sleep.
 */
void hugetlb_vmemmap_optimize_surplus(struct hstate *h, struct list_head *folio_list)
{
	unsigned long nr = nr_to_optimize(h, folio_list);

	if (nr * huge_page_size(h) >= SURPLUS_WORTH_WAITING)
		optimize_for_task(h, folio_list);
	else
		atomic_long_add(nr, &not_optimized);
}

/**
 * hugetlb_vmemmap_optimize_folio() - free most of the vmemmap of a folio
 * @h: its hstate
 * @folio: the folio, frozen, on no list
 *
 * Single folios are those that take the place of others when these are moved, which a task
 * can ask for. So nothing is done if CPUs would be paused too often.
 *
 * Context: process context, may sleep.
 */
void hugetlb_vmemmap_optimize_folio(const struct hstate *h, struct folio *folio)
{
	LIST_HEAD(folio_list);

	list_add(&folio->lru, &folio_list);
	optimize_for_task(h, &folio_list);
	list_del_init(&folio->lru);
}

/*
 * Make the changes that restore the folios on @folios, and move those that are restored to
 * @restored. The others stay on @folios. Returns how many were restored.
 */
static long commit_restored(struct batch *batch, const struct hstate *h,
			    struct list_head *folios, struct list_head *restored)
{
	struct folio *folio, *next;
	long nr = 0;

	batch_commit(batch);
	list_for_each_entry_safe(folio, next, folios, lru) {
		if (batch->failed && nr_shared(h, folio))
			continue;
		folio_clear_hugetlb_vmemmap_optimized(folio);
		list_move_tail(&folio->lru, restored);
		nr++;
	}

	return nr;
}

/**
 * hugetlb_vmemmap_restore_folios() - give folios back all of their vmemmap
 * @h: their hstate
 * @folio_list: the folios, all of them frozen
 * @non_hvo_folios: folios that have all of their vmemmap are moved here
 *
 * Stops at the first folio that there is not enough memory for, or when CPUs have to be
 * paused and cannot be. Folios that are not restored stay on @folio_list and stay optimized;
 * there are no others on it in the end.
 *
 * Context: process context, may sleep.
 * Return: how many were restored; -ENOMEM if there was not enough memory for one; -EBUSY if
 *	   CPUs could not be paused.
 */
long hugetlb_vmemmap_restore_folios(const struct hstate *h, struct list_head *folio_list,
				    struct list_head *non_hvo_folios)
{
	struct folio *folio, *next;
	unsigned long nr = 0;
	struct batch batch;
	long restored = 0;
	LIST_HEAD(folios);
	int ret = 0;

	/* An optimized folio on the list, which is the caller's alone, saves at least a page. */
	if (!atomic_long_read(&pages_saved)) {
		list_splice_init(folio_list, non_hvo_folios);
		return 0;
	}
	list_for_each_entry_safe(folio, next, folio_list, lru) {
		if (folio_test_hugetlb_vmemmap_optimized(folio))
			nr++;
		else
			list_move(&folio->lru, non_hvo_folios);
	}
	if (!nr)
		return 0;
	if (batch_init(&batch, h, nr)) {
		atomic_long_add(nr, &not_restored);
		return -ENOMEM;
	}

	wait_for_fake_references();

	list_for_each_entry_safe(folio, next, folio_list, lru) {
		if (!batch_has_room(&batch, h)) {
			restored += commit_restored(&batch, h, &folios, non_hvo_folios);
			if (batch.failed)
				break;
		}
		ret = collect_restore(&batch, h, folio);
		if (ret)
			break;
		list_move(&folio->lru, &folios);
		cond_resched();
	}
	restored += commit_restored(&batch, h, &folios, non_hvo_folios);
	if (!batch_finish(&batch))
		ret = -EBUSY;
	list_splice(&folios, folio_list);
	atomic_long_add(nr - restored, &not_restored);

	return ret ? ret : restored;
}

/**
 * hugetlb_vmemmap_restore_folio() - give a folio back all of its vmemmap
 * @h: its hstate
 * @folio: the folio, frozen
 *
 * Context: process context, may sleep.
 * Return: 0; or -ENOMEM if there is not enough memory, or -EBUSY if CPUs have to be paused
 *	   and cannot be, and the folio stays optimized.
 */
int hugetlb_vmemmap_restore_folio(const struct hstate *h, struct folio *folio)
{
	struct batch batch;
	int ret;

	if (!folio_test_hugetlb_vmemmap_optimized(folio))
		return 0;
	ret = batch_init(&batch, h, 1);
	if (!ret) {
		wait_for_fake_references();
		ret = collect_restore(&batch, h, folio);
		if (!batch_finish(&batch))
			ret = -EBUSY;
	}
	if (ret)
		atomic_long_inc(&not_restored);
	else
		folio_clear_hugetlb_vmemmap_optimized(folio);

	return ret;
}

/*
 * How long folios that are to be restored are gathered at first. If they keep coming it is
 * HUGETLB_VMEMMAP_RESTORE_DELAY_MAX.
 */
#define RESTORE_DELAY_MIN	(HZ / 10)

/* When none were given up for so long, the next ones are the first ones again. */
#define RESTORE_QUIET		(10 * HZ)

/**
 * hugetlb_vmemmap_restore_delay() - how long to gather folios that are to be restored
 *
 * A worker restores the folios that are given up where nobody can sleep. It begins this long
 * after the first of them, so that one pause serves those that follow it closely, as when a
 * program ends. If there are new ones soon after each time it grows, so that a program that
 * gives back its folios one by one has CPUs paused ever less often.
 *
 * Context: any. Calls that meet may lose a step.
 * Return: the delay in jiffies.
 */
unsigned long hugetlb_vmemmap_restore_delay(void)
{
	static unsigned long delay, last;
	unsigned long next = 2 * READ_ONCE(delay), now = jiffies;

	if (!vmemmap_change_pauses())
		return 0;

	if (time_after(now, READ_ONCE(last) + RESTORE_QUIET))
		next = 0;
	next = clamp_t(unsigned long, next, RESTORE_DELAY_MIN,
		       HUGETLB_VMEMMAP_RESTORE_DELAY_MAX);
	WRITE_ONCE(delay, next);
	WRITE_ONCE(last, now);

	return next;
}

/**
 * hugetlb_vmemmap_may_restore_now() - may the worker restore what it has gathered for a task?
 *
 * A task that finds no memory can have the worker begin before its time, or else it waits
 * for that. These pauses count among those that tasks can ask for.
 *
 * Context: any.
 * Return: true if no CPU is paused for that, or not too often.
 */
bool hugetlb_vmemmap_may_restore_now(void)
{
	return !vmemmap_change_pauses() || __ratelimit(&task_pauses);
}

/* Switching it on */

/*
 * If tails are mapped to the head's page, copies of the head appear among them, and
 * page_fixed_fake_head() has to look for those. It costs every user of compound_head(), so
 * that it does not begin before HVO is switched on. It must begin before the first folio is
 * optimized, and goes on for good: to count the folios that are would take cpus_read_lock()
 * for each, which memory hotplug holds already when it dissolves hugetlb pages.
 */
static void expect_fake_heads(void)
{
	if (keeps_head_only())
		static_branch_enable(&hugetlb_optimize_vmemmap_key);
}

/**
 * hugetlb_vmemmap_sysctl() - read or write vm.hugetlb_optimize_vmemmap
 * @table: the entry, for vmemmap_optimize_enabled
 * @write: as for all handlers
 * @buffer: as for all handlers
 * @lenp: as for all handlers
 * @ppos: as for all handlers
 *
 * Context: process context, may sleep; takes cpus_read_lock().
 * Return: 0, or the error of proc_dobool().
 */
int hugetlb_vmemmap_sysctl(const struct ctl_table *table, int write, void *buffer,
			   size_t *lenp, loff_t *ppos)
{
	bool enabled = READ_ONCE(vmemmap_optimize_enabled);
	struct ctl_table copy = *table;
	int ret;

	copy.data = &enabled;
	ret = proc_dobool(&copy, write, buffer, lenp, ppos);
	if (ret || !write)
		return ret;

	if (enabled)
		expect_fake_heads();
	WRITE_ONCE(vmemmap_optimize_enabled, enabled);

	return 0;
}

/* Hugetlb pages of the command line */

/*
 * Pages that are too large for the page allocator are reserved while the command line is
 * parsed. There is memory in large pieces then, and one CPU that does nothing else: so what
 * is saved of a page can become a part of the next one, and no live entry is changed. Their
 * folios are made later: of the largest by hugetlb_bootmem_struct_page_init(), of the others by a
 * subsys_initcall().
 *
 * hugetlb_free_vmemmap= has to be known before hugepages=, wherever it stands.
 */
static int __init parse_enabled_early(char *arg)
{
	bool enabled;

	/* What is wrong with it is said when all parameters are parsed. */
	if (!kstrtobool(arg ?: "y", &enabled))
		vmemmap_optimize_enabled = enabled;

	return 0;
}
early_param("hugetlb_free_vmemmap", parse_enabled_early);

/*
 * Does memblock leave the tail struct pages of a hugetlb page to us? It had to be told, which takes
 * memory. If it was not it is going to write to all of them, and they must not be read-only.
 */
static bool __init is_left_to_us(const struct huge_bootmem_page *reserved)
{
	phys_addr_t tails = virt_to_phys(reserved) + PAGE_SIZE;
	phys_addr_t end = virt_to_phys(reserved) + huge_page_size(reserved->hstate);
	struct memblock_region *region;

	for_each_reserved_mem_region(region)
		if (region->base <= tails && end <= region->base + region->size)
			return region->flags & MEMBLOCK_RSRV_NOINIT;

	return false;
}

static void __init share_reserved(const struct huge_bootmem_page *reserved, int nid)
{
	unsigned long start = (unsigned long)virt_to_page(reserved);
	unsigned long end = start + hugetlb_vmemmap_size(reserved->hstate);

	/* If there is no memory for it now, there may be when folios are made. */
	if (hugetlb_vmemmap_optimizable(reserved->hstate) && !vmemmap_is_shared(start, end) &&
	    is_left_to_us(reserved))
		vmemmap_share_at_boot(start, end, nid);
}

/**
 * alloc_bootmem_huge_page() - reserve a hugetlb page from memblock
 * @h: its size
 * @nid: its node, or NUMA_NO_NODE if that is no matter
 *
 * Context: the boot CPU, while the command line is parsed.
 * Return: 1, or 0 if there is no memory.
 */
int __init alloc_bootmem_huge_page(struct hstate *h, int nid)
{
	struct huge_bootmem_page *reserved;
	int node;

	if (!__alloc_bootmem_huge_page(h, nid))
		return 0;
	if (!vmemmap_optimize_enabled)
		return 1;
	/* It is the first on the list of its node, whichever that is. */
	for_each_online_node(node) {
		reserved = list_first_entry_or_null(&huge_boot_pages[node],
						    struct huge_bootmem_page, list);
		if (reserved)
			share_reserved(reserved, node);
	}

	return 1;
}

/**
 * hugetlb_vmemmap_adopt_folios() - complete folios of pages that were reserved at boot
 * @h: their hstate
 * @folio_list: the folios, frozen, of which the head's page of struct pages is written
 *
 * Those that share a page of tails since boot have it written, and are optimized folios.
 *
 * Context: process context, may sleep; nobody has looked for more of tails than their node yet.
 */
void __init hugetlb_vmemmap_adopt_folios(const struct hstate *h, struct list_head *folio_list)
{
	unsigned long kept = (hugetlb_vmemmap_retained_pages() - 1) * PAGE_SIZE;
	struct folio *folio;

	/* A node for which none were reserved has an empty list, and no hstate. */
	if (list_empty(folio_list) || !hugetlb_vmemmap_optimizable(h))
		return;
	/* These folios are the first ones, and are made before any initcall. */
	if (vmemmap_optimize_enabled)
		expect_fake_heads();
	list_for_each_entry(folio, folio_list, lru) {
		unsigned long start = vmemmap_start(folio);
		struct page *page;

		if (!vmemmap_is_shared(start, vmemmap_end(h, folio)))
			continue;
		/* It may have been switched off since then. */
		expect_fake_heads();
		page = pte_page(ptep_get(next_entry(start + kept, NULL)));
		if (!keeps_head_only())
			write_tails(page_to_virt(page), folio);
		folio_set_hugetlb_vmemmap_optimized(folio);
		atomic_long_add(nr_shared(h, folio), &pages_saved);
	}
}

/*
 * A core_initcall() runs before any hugetlb folio is made, except those of pages that were
 * reserved at boot: see hugetlb_vmemmap_adopt_folios().
 */
static int __init hvo_init_early(void)
{
	if (vmemmap_optimize_enabled)
		expect_fake_heads();

	return 0;
}
core_initcall(hvo_init_early);

/* /sys/kernel/mm/hugetlb_vmemmap; the architecture adds what it knows of changes. */

#define HVO_ATTR(_name, _format, _value)						\
static ssize_t _name##_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)	\
{											\
	return sysfs_emit(buf, _format "\n", _value);					\
}											\
static struct kobj_attribute _name##_attr = __ATTR_RO(_name)

HVO_ATTR(entries_changed, "%ld", atomic_long_read(&entries_changed));
HVO_ATTR(not_optimized, "%ld", atomic_long_read(&not_optimized));
HVO_ATTR(not_restored, "%ld", atomic_long_read(&not_restored));
HVO_ATTR(bytes_saved, "%ld", atomic_long_read(&pages_saved) * PAGE_SIZE);

static struct attribute *hvo_attrs[] = {
	&entries_changed_attr.attr,
	&not_optimized_attr.attr,
	&not_restored_attr.attr,
	&bytes_saved_attr.attr,
	NULL
};

static const struct attribute_group hvo_group = {
	.name = "hugetlb_vmemmap",
	.attrs = hvo_attrs,
};

static int __init hvo_init(void)
{
	int ret = sysfs_create_group(mm_kobj, &hvo_group);

	return ret ?: sysfs_merge_group(mm_kobj, &vmemmap_change_group);
}
late_initcall(hvo_init);
