// SPDX-License-Identifier: GPL-2.0-only
/*
 * Splitting leaves of the kernel's page tables while they are in use.
 *
 * A leaf is split into leaves of the next smaller size, and one of these further, until a
 * leaf starts at the address that was asked for. Leaves of each size are counted, as far as
 * they are part of the linear map.
 *
 * Locking. A leaf is split under linear_map_split_lock. Folding, the only thing that makes
 * leaves larger and frees tables, holds linear_map_fold_sem for writing. Permission changes
 * hold it for reading, so a boundary between leaves, once there, stays until they have
 * finished. Two changes at a time are on different pages (the owner of a page does not
 * change it twice at a time), hence on different leaves once each has split its ends.
 * What may not sleep (KFENCE, DEBUG_PAGEALLOC, the copying of a hibernation image)
 * changes only leaves that need no split, in places where nothing folds, and takes no
 * lock.
 */
#include <kunit/static_stub.h>

#include <linux/capability.h>
#include <linux/init.h>
#include <linux/jiffies.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/task_work.h>
#include <linux/vmstat.h>

#include <asm/bbml2.h>
#include <asm/linear_map.h>
#include <asm/pgalloc.h>
#include <asm/tlbflush.h>

#include "linear_map.h"

#include <trace/events/linear_map.h>

enum linear_map_mode linear_map_mode __ro_after_init = LINEAR_MAP_PAGES;
bool linear_map_by_access_flag __ro_after_init;

/* See above, and linear_map.h. */
DECLARE_RWSEM(linear_map_fold_sem);

/* Protects the sizes of leaves; see above. */
DEFINE_MUTEX(linear_map_split_lock);

/*
 * Bytes of the linear map by size of leaf. Once other CPUs are up, they are written with
 * linear_map_split_lock held or with linear_map_fold_sem held for writing; they are read without
 * a lock. The two exclude each other: whoever counts under the lock also holds the semaphore for
 * reading, or the memory hotplug lock, which folding holds for reading.
 */
static unsigned long mapped_bytes[NR_LEAF_SIZES];

/**
 * linear_map_count() - count leaves in or out
 * @size: their size
 * @bytes: how much they map; negative if they are gone
 *
 * Context: linear_map_split_lock is held, or linear_map_fold_sem for writing, or one CPU
 *	    is running.
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

/**
 * linear_map_count_range() - count what maps a range, leaf by leaf
 * @start: first linear address, page-aligned
 * @end: the address after it
 * @sign: 1 to count it in, -1 to count it out
 *
 * Cheap only where leaves are large.
 *
 * Context: as linear_map_count().
 */
void linear_map_count_range(unsigned long start, unsigned long end, int sign)
{
	struct kernel_leaf leaf;
	unsigned long addr, next;

	for (addr = start; addr < end; addr = next) {
		if (!find_kernel_leaf(addr, &leaf)) {
			next = addr + PAGE_SIZE;
			continue;
		}
		next = min(leaf_end(&leaf), end);
		linear_map_count(leaf.size, sign * (long)(next - addr));
	}
}

/**
 * linear_map_count_memory() - count memory that was added, or is removed
 * @start: its linear address
 * @size: bytes
 * @sign: 1 if it was added, -1 if it is removed
 *
 * Context: process context; memory hotplug lock held.
 */
void linear_map_count_memory(unsigned long start, u64 size, int sign)
{
	mutex_lock(&linear_map_split_lock);
	if (linear_map_in_pages())
		linear_map_count(LEAF_PTE, sign * (long)size);
	else
		linear_map_count_range(start, start + size, sign);
	mutex_unlock(&linear_map_split_lock);
}

/**
 * linear_map_in_pages() - must memory be added to the linear map as pages?
 *
 * Context: any, after it was decided what the linear map is painted with.
 * Return: true if only pages are allowed.
 */
bool linear_map_in_pages(void)
{
	return linear_map_mode == LINEAR_MAP_PAGES;
}

/**
 * linear_map_without_contiguous() - must the linear map have no contiguous ranges?
 *
 * Without BBM level 2 the contiguous bit of entries that are in use cannot be changed live, so
 * that a change of the permission of a part of a range would take a pause.
 *
 * Context: any, after it was decided what the linear map is painted with.
 * Return: true if so.
 */
bool linear_map_without_contiguous(void)
{
	return linear_map_in_pages() || linear_map_is_paused();
}

static bool may_split(void)
{
	if (linear_map_mode != LINEAR_MAP_LIVE)
		return false;

	/* Until all CPUs have been judged, one that was not may be running. */
	if (!system_capabilities_finalized())
		return system_state < SYSTEM_SCHEDULING;

	return system_supports_bbml2_noabort();
}

/**
 * fill_split_table() - fill a new table with what replaces a block
 * @leaf: the block
 * @size: the smaller size of leaf that the table has
 * @table: the table; what it held does not matter
 *
 * Context: any. Nobody else knows of @table.
 */
void fill_split_table(const struct kernel_leaf *leaf, enum leaf_size size, void *table)
{
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
 * split_table_desc() - the descriptor that puts a table in the place of a block
 * @leaf: the block
 * @table: the table
 *
 * Return: the descriptor.
 */
u64 split_table_desc(const struct kernel_leaf *leaf, const void *table)
{
	if (leaf->size == LEAF_PUD)
		return __phys_to_pud_val(__pa(table)) | PUD_TYPE_TABLE | PUD_TABLE_UXN |
		       PUD_TABLE_PXN;

	return __phys_to_pmd_val(__pa(table)) | PMD_TYPE_TABLE | PMD_TABLE_UXN | PMD_TABLE_PXN;
}

/**
 * count_split() - a leaf was split: count and tell it
 * @leaf: the leaf
 * @size: what it was split into
 *
 * Context: as linear_map_count().
 */
void count_split(const struct kernel_leaf *leaf, enum leaf_size size)
{
	linear_map_count(leaf->size, -(long)leaf_bytes(leaf->size));
	linear_map_count(size, leaf_bytes(leaf->size));
	count_vm_event(LINEAR_MAP_SPLIT_CONT_PTE + leaf->size - LEAF_CONT_PTE);
	trace_linear_map_split(leaf->start, leaf_bytes(leaf->size));
}

/**
 * __split_kernel_leaf() - split a leaf into smaller ones
 * @leaf: the leaf
 * @size: what it is split into: the next smaller size; or, if that is a contiguous range,
 *	  the one below
 * @table: a page for a table, if split_needs_table()
 *
 * This changes the size of a live mapping without break-before-make, which BBM level 2
 * allows: all translations and permissions stay as they are. A TLB may go on using the
 * large entry next to small ones. To be sure that both are gone takes an invalidation of
 * everything: one by address removes an entry that is used for the address, and it is not
 * relied on here that it looks for a second one. The caller invalidates before anyone may
 * change a permission of what was split.
 *
 * Context: nobody else splits, changes or folds @leaf, and all CPUs that can see it
 *	    support such a change.
 */
void __split_kernel_leaf(const struct kernel_leaf *leaf, enum leaf_size size, void *table)
{
	switch (leaf->size) {
	case LEAF_PUD:
		fill_split_table(leaf, size, table);
		set_pud(leaf->entry, __pud(split_table_desc(leaf, table)));
		break;
	case LEAF_PMD:
		fill_split_table(leaf, size, table);
		set_pmd(leaf->entry, __pmd(split_table_desc(leaf, table)));
		break;
	case LEAF_CONT_PMD:
	case LEAF_CONT_PTE: {
		unsigned int i, nr = leaf_entries(leaf->size);

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

	count_split(leaf, size);
}

/* Tests make it fail. */
struct ptdesc *alloc_split_table(void)
{
	KUNIT_STATIC_STUB_REDIRECT(alloc_split_table);

	/* fill_split_table() writes all of it. */
	return pagetable_alloc(GFP_PGTABLE_KERNEL & ~__GFP_ZERO, 0);
}

/**
 * alloc_split_tables() - allocate tables for splits
 * @tables: the list that they are added to
 * @nr: how many are wanted
 *
 * Context: process context, may sleep. No lock of splits is held, because reclaim must not
 *	    find it taken.
 * Return: 0 if there is at least one, or -ENOMEM.
 */
int alloc_split_tables(struct list_head *tables, unsigned int nr)
{
	struct ptdesc *table;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		table = alloc_split_table();
		if (!table)
			return i ? 0 : -ENOMEM;
		list_add(&table->pt_list, tables);
	}

	return 0;
}

/**
 * free_split_tables() - free the tables that no split took
 * @tables: the list of them
 *
 * Context: process context.
 */
void free_split_tables(struct list_head *tables)
{
	struct ptdesc *table, *next;

	list_for_each_entry_safe(table, next, tables, pt_list)
		pagetable_free(table);
	INIT_LIST_HEAD(tables);
}

/**
 * flush_splits() - rid all TLBs of what was split; tests count it
 *
 * Context: process context; linear_map_split_lock is held since the first of the splits.
 */
noinline void flush_splits(void)
{
	KUNIT_STATIC_STUB_REDIRECT(flush_splits);

	flush_tlb_all();
}

/*
 * Any program can have leaves split: each page of memfd_secret() can be in another one. Each time
 * all TLBs lose everything, or all other CPUs are paused. So while that is frequent, an
 * unprivileged task that had it done waits for its turn, when it returns to user space and holds
 * nothing. All of these tasks together get one turn at a time; but none waits longer than a
 * second. Within one system call that touches many such pages for its task nothing limits them,
 * as it may hold locks.
 */
#define LONGEST_WAIT		HZ

/* What TLBs lose costs every CPU some microseconds: of these there may be more than pauses. */
#define FREQUENT_FLUSHES	256
static unsigned long flush_times[FREQUENT_FLUSHES];
struct turns flush_turns = {
	.times = flush_times,
	.frequent = FREQUENT_FLUSHES,
	.turn_ms = 4,
	.last = INITIAL_JIFFIES,
};

struct waiting {
	struct callback_head work;
	unsigned long at;
};

/**
 * count_for_turns() - it was done once more
 * @turns: which
 *
 * Context: linear_map_split_lock is held.
 */
void count_for_turns(struct turns *turns)
{
	turns->times[turns->nr++ % turns->frequent] = jiffies;
}

/**
 * turns_are_needed() - was it done too often, a moment ago?
 * @turns: which
 *
 * Context: linear_map_split_lock is held.
 * Return: true if so.
 */
bool turns_are_needed(const struct turns *turns)
{
	return turns->nr >= turns->frequent &&
	       time_before(jiffies, turns->times[turns->nr % turns->frequent] + HZ);
}

/**
 * take_turn() - must this task, which had it done, wait for its turn?
 * @turns: which
 * @at: set to when the turn begins, in jiffies
 *
 * Context: linear_map_split_lock is held.
 * Return: true if so; then wait_later() is to be called without the lock.
 */
bool take_turn(struct turns *turns, unsigned long *at)
{
	unsigned long now = jiffies;

	if (!turns_are_needed(turns) || has_capability_noaudit(current, CAP_SYS_ADMIN))
		return false;

	if (time_before(turns->last, now))
		turns->last = now;
	turns->last = min(turns->last + msecs_to_jiffies(turns->turn_ms), now + LONGEST_WAIT);
	*at = turns->last;

	return true;
}

/* The task is about to return to user space: sleep until it is its turn. */
static void wait_for_turn(struct callback_head *work)
{
	struct waiting *waiting = container_of(work, struct waiting, work);
	unsigned long at = waiting->at, now = jiffies;

	kfree(waiting);
	if (time_after(at, now))
		schedule_timeout_uninterruptible(at - now);
}

/**
 * wait_later() - have this task wait when it returns to user space
 * @at: until when, in jiffies
 *
 * Context: process context, may sleep. Without memory the task does not wait.
 */
void wait_later(unsigned long at)
{
	struct waiting *waiting;

	/* These never do; the workers of io_uring run such work all the same. */
	if (current->flags & PF_KTHREAD ||
	    (current->flags & (PF_USER_WORKER | PF_IO_WORKER)) == PF_USER_WORKER)
		return;

	waiting = kmalloc(sizeof(*waiting), GFP_KERNEL);
	if (!waiting)
		return;

	waiting->at = at;
	init_task_work(&waiting->work, wait_for_turn);
	if (task_work_add(current, &waiting->work, TWA_RESUME))
		kfree(waiting);
}

/* What splits live have to do with: tables for them, and what they have done with them. */
struct live_splits {
	struct list_head tables;
	unsigned int taken;
	unsigned int needed;
	bool unflushed;
};

/*
 * Split the leaf of an address that crosses a boundary, until none does.
 *
 * Whether there is something to split is decided under the lock. Another task may be
 * splitting the same contiguous range, entry by entry: without the lock an entry at the
 * boundary may look like a page while the ones behind it still belong to the range.
 *
 * Return: 0; -EAGAIN if @splits->needed tables, or a few more, are needed to go on; -EINVAL as
 *	   split_all_ends().
 */
static int split_boundary(unsigned long addr, unsigned long boundary,
			  const struct desc_change *change, struct live_splits *splits)
{
	struct kernel_leaf leaf;

	for (;;) {
		struct ptdesc *table = NULL;

		if (!find_kernel_leaf(addr, &leaf))
			return -EINVAL;
		if (!leaf_has_to_be_split(&leaf, boundary, change))
			return 0;
		if (!may_split())
			return -EINVAL;
		if (split_needs_table(leaf.size)) {
			table = list_first_entry_or_null(&splits->tables, struct ptdesc, pt_list);
			if (!table) {
				splits->needed = leaf.size == LEAF_PUD &&
						 !IS_ALIGNED(boundary, PMD_SIZE) ? 2 : 1;
				return -EAGAIN;
			}
			list_del(&table->pt_list);
			splits->taken++;
		}
		__split_kernel_leaf(&leaf, leaf.size - 1, table ? ptdesc_address(table) : NULL);
		splits->unflushed = true;
	}
}

/**
 * split_all_ends_live() - split at both ends of ranges, live
 * @next: tells the ranges; one that ends where it starts is split there
 * @what: handed to it
 * @change: what their leaves will be changed by; a leaf that it does not change is left as
 *	    it is. NULL to split all.
 *
 * The end of a range is looked at from inside, as what comes after it may be unmapped.
 *
 * All splits that there are tables for are made under one hold of the lock, and all TLBs are
 * invalidated once, before it is released. That is soon enough. What a TLB holds of the old leaf
 * translates as the new ones do, until somebody changes one of these; and whoever may do that
 * has looked for it under the lock, and so after the invalidation:
 *
 *  - the owner of another part of the leaf, who finds it split and then changes that part,
 *    and invalidates by address, as the users of set_memory_ro() and
 *    set_direct_map_invalid_noflush() do;
 *  - this task, whose caller changes the leaves when this has returned;
 *  - and the splits themselves: a piece is split further while a TLB may still hold the
 *    leaf that it is a piece of, but that is one more size of the same translation.
 *
 * Folding is kept out by linear_map_fold_sem until the caller has changed what it wants to. So
 * boundaries that are there stay, and when tables run out, which is when the lock is dropped,
 * it goes on with the range that it was at. As many tables again as were used are allocated
 * each time, so the invalidations are few, also for an area whose pages are all in different
 * blocks, and no more than half of the tables are allocated in vain.
 *
 * Context: as split_all_ends().
 * Return: as split_all_ends().
 */
int split_all_ends_live(next_range_fn *next, const void *what,
			const struct desc_change *change)
{
	struct live_splits splits = { .tables = LIST_HEAD_INIT(splits.tables) };
	struct address_range range;
	unsigned int position = 0;
	bool more = next(what, &position, &range), must_wait = false;
	unsigned long turn;
	int ret = 0;

	while (more && !ret) {
		mutex_lock(&linear_map_split_lock);
		while (more && !ret) {
			ret = split_boundary(range.start, range.start, change, &splits);
			if (!ret && range.end > range.start)
				ret = split_boundary(range.end - 1, range.end, change, &splits);
			if (!ret)
				more = next(what, &position, &range);
		}
		if (splits.unflushed) {
			flush_splits();
			count_for_turns(&flush_turns);
			must_wait |= take_turn(&flush_turns, &turn);
		}
		splits.unflushed = false;
		mutex_unlock(&linear_map_split_lock);

		if (ret == -EAGAIN)
			ret = alloc_split_tables(&splits.tables, max(splits.taken, splits.needed));
	}
	free_split_tables(&splits.tables);

	if (must_wait)
		wait_later(turn);

	return ret;
}

/**
 * linear_map_next_only() - the ranges of what is one range
 * @what: a struct address_range
 * @position: 0 before it
 * @range: where to put it
 *
 * Return: false after it.
 */
bool linear_map_next_only(const void *what, unsigned int *position, struct address_range *range)
{
	*range = *(const struct address_range *)what;

	return !(*position)++;
}

/**
 * split_all_ends() - split at both ends of several ranges that change together
 * @next: tells the ranges
 * @what: handed to it
 * @change: what their leaves will be changed by; a leaf that it does not change is left as
 *	    it is. NULL to split all.
 *
 * A leaf is split level by level, and each time only the piece that crosses an end is split
 * further; every other leaf stays as large as it can be. If that takes a pause, it takes one for
 * all ranges.
 *
 * Context: process context, may sleep, also before there are other CPUs or other tasks.
 *	    linear_map_fold_sem is held.
 * Return: 0; -EINVAL if an end is not mapped, or its leaf may not be split on this system;
 *	   -ENOMEM if there is no memory for a table; -EBUSY if other CPUs have to be paused, and
 *	   cannot be; -EOPNOTSUPP if they never can. After an error everything maps as before, and
 *	   what was split may be folded again.
 */
int split_all_ends(next_range_fn *next, const void *what, const struct desc_change *change)
{
	if (linear_map_is_paused())
		return split_all_ends_paused(next, what, change);

	return split_all_ends_live(next, what, change);
}

/**
 * split_ends() - split at both ends of a range, where the leaf there will change
 * @start: first address of the range, page-aligned
 * @end: the address after it
 * @change: what its leaves will be changed by
 *
 * The lock may be dropped between the two. A leaf that crosses the start and need not
 * change is not changed later either: its other part has another owner, who first splits
 * it where that part ends.
 *
 * Context: as split_all_ends().
 * Return: as split_all_ends().
 */
int split_ends(unsigned long start, unsigned long end, const struct desc_change *change)
{
	const struct address_range range = { .start = start, .end = end };

	if (start >= end)
		return 0;

	return split_all_ends(linear_map_next_only, &range, change);
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
