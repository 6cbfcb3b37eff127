// SPDX-License-Identifier: GPL-2.0-only
/*
 * Folding the linear map back into large leaves.
 *
 * A change of permission splits the linear map (see linear_map_change.c). When the memory gets
 * its default permission back, because a module was unloaded, a BPF program freed or
 * secret memory closed, leaves that are alike again are folded: pages into contiguous
 * ranges, pages into blocks, blocks into contiguous ranges, blocks into larger blocks.
 * Tables that are no longer needed are freed.
 *
 * It is done lazily, by a worker: whoever gives back memory says where, and the worker
 * goes through the window of all such places a while later. It does a bounded piece of
 * work at a time and then lets permission changes pass. The window is the only state
 * there is, so nothing is allocated to remember a place. A place is forgotten only if a pool of
 * KFENCE is given up there while the worker passes by: see is_in_kfence_pool().
 * Blocks are passed over in one step each, and almost all of the map is blocks.
 *
 * Only memory with the default permission is folded, although read-only pages could be,
 * too. So a leaf with another permission never reaches beyond the memory of its one
 * owner, and giving that back can never fail for want of a table.
 *
 * A leaf is made only where both its addresses, virtual and physical, are aligned to its
 * size. With 64 KiB pages they need not be for contiguous ranges of blocks, and then there
 * are none.
 *
 * Only tables from the page allocator are freed. What the boot code has painted with
 * smaller leaves than it might have is left as it is.
 *
 * Live folding changes the size of a mapping without break-before-make, as splitting
 * does, and needs BBM level 2 like it. The new entry translates like the old ones did, so
 * nobody can tell when a TLB changes over. But a TLB may hold the table that is no longer
 * there, and the entries read from it, so all of it is invalidated before the table is
 * given back.
 *
 * Where that cannot be live, all folds of a round are made in one pause of the other CPUs
 * (linear_map_pause.c). A round goes further then, and comes to nothing if what it would
 * free is not worth a pause, or if there have been many pauses a moment ago.
 *
 * Who walks the tables in software is kept out or waited for:
 *
 *  - page-table dumps hold the mmap lock of init_mm, memory hotplug its own lock;
 *  - permission changes hold linear_map_fold_sem, and so does kexec, which copies the
 *    tables of the linear map, by linear_map_hold();
 *  - hibernation copies them on one CPU with interrupts disabled;
 *  - lockless walkers are in an RCU read-side critical section, or have interrupts or
 *    preemption off, and the table is freed only after an RCU grace period.
 */
#include <linux/delay.h>
#include <linux/init.h>
#include <linux/kasan.h>
#include <linux/kfence.h>
#include <linux/list.h>
#include <linux/memory_hotplug.h>
#include <linux/mm.h>
#include <linux/mmzone.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/spinlock.h>
#include <linux/vmstat.h>
#include <linux/workqueue.h>

#include <asm/bbml2.h>
#include <asm/linear_map.h>
#include <asm/tlbflush.h>

#include "linear_map.h"

#include <trace/events/linear_map.h>

#undef MODULE_PARAM_PREFIX
#define MODULE_PARAM_PREFIX "arm64."

static bool fold = true;

static unsigned int fold_delay_ms = 1000;
module_param_named(linear_map_fold_delay_ms, fold_delay_ms, uint, 0644);
MODULE_PARM_DESC(linear_map_fold_delay_ms, "Milliseconds until memory is folded (default: 1000)");

/*
 * How many entries the worker reads before it lets others pass, and for how long. It may read a few
 * tables more, as it goes through what it has begun.
 */
#define FOLD_BUDGET	4096
#define FOLD_PAUSE	msecs_to_jiffies(10)

/*
 * The budget of a round that ends with a pause. It is larger, so that one pause serves as
 * many folds as possible. Folding asks for a pause if that frees at least WORTH_A_PAUSE
 * tables. It asks for one that frees fewer only if the last pause for folding is PATIENCE
 * times the delay ago.
 *
 * Everybody who changes a permission waits for the round, so that it is bounded in entries: it
 * may free 64 tables with 4K pages. With 64K pages a table has so many entries that the round needs
 * more to free WORTH_A_PAUSE of them.
 */
#define PAUSED_BUDGET	max(32768, (WORTH_A_PAUSE + 1) * PTRS_PER_PTE)
#define WORTH_A_PAUSE	8
#define PATIENCE	10

/*
 * As long as a CPU is lost (cpu_pause_lost_cpu()), there is no pause. It may be for good, so that
 * it is worth a look now and then only.
 */
#define LOST_CPU_PAUSE	(60 * HZ)

/* How many entries the round may still read; protected by linear_map_fold_sem. */
static long budget;

/* When folding had a pause last, and how often in a row it could have none since. */
static unsigned long last_fold = INITIAL_JIFFIES;
static unsigned int failed_rounds;

/* When a module's memory was split last; written while linear_map_fold_sem is held. */
static unsigned long last_prepared = INITIAL_JIFFIES;

/* Tests do not wait until it is worth it. */
static bool fold_at_once;

/* Where something was given back since the worker last went by. */
static unsigned long window_start = ULONG_MAX;
static unsigned long window_end;
static DEFINE_RAW_SPINLOCK(window_lock);

static void fold_work_fn(struct work_struct *work);
static DECLARE_DELAYED_WORK(fold_work, fold_work_fn);

/* What the worker has taken from the window and still has to go through. */
static unsigned long todo_start, todo_end;

/*
 * The largest leaf that folding can make: the unit that the window is rounded to, so
 * that the worker gets to the last piece of every leaf that may be complete again.
 */
static unsigned long largest_leaf(void)
{
	return pud_sect_supported() ? PUD_SIZE : CONT_PMD_SIZE;
}

/*
 * The worker has a queue of its own, which is bound to no CPU: it holds locks that permission
 * changes and memory hotplug wait for, and a real-time task that keeps the CPU for itself must
 * not keep it from going on. Isolated CPUs are left alone, too. No queue is there before initcalls.
 */
static struct workqueue_struct *fold_wq;

static void queue_fold(unsigned long delay)
{
	/* Pairs with init_fold(). */
	struct workqueue_struct *wq = smp_load_acquire(&fold_wq);

	if (wq)
		queue_delayed_work(wq, &fold_work, delay);
}

static int __init init_fold(void)
{
	struct workqueue_struct *wq = alloc_workqueue("linear_map_fold",
						      WQ_UNBOUND | WQ_FREEZABLE, 1);

	if (!wq) {
		pr_warn("linear map: no memory for a worker, what is split stays split\n");
		return -ENOMEM;
	}
	/* Pairs with queue_fold(). */
	smp_store_release(&fold_wq, wq);
	/* For what was given back before. */
	if (READ_ONCE(fold))
		queue_fold(msecs_to_jiffies(fold_delay_ms));

	return 0;
}
core_initcall(init_fold);

static void extend_window(unsigned long start, unsigned long end)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&window_lock, flags);
	WRITE_ONCE(window_start, min(window_start, round_down(start, largest_leaf())));
	WRITE_ONCE(window_end, max(window_end, round_up(end, largest_leaf())));
	raw_spin_unlock_irqrestore(&window_lock, flags);
}

/**
 * linear_map_fold_later() - memory got its default permission back
 * @start: its first linear address
 * @end: the address after it
 *
 * Context: any.
 */
void linear_map_fold_later(unsigned long start, unsigned long end)
{
	extend_window(start, end);

	if (READ_ONCE(fold))
		queue_fold(msecs_to_jiffies(fold_delay_ms));
}

/**
 * linear_map_fold_not_yet() - what has been split is about to get its permission
 *
 * In pauses, nothing is folded for as long as memory waits that was given back. What was given back
 * before may be beside what was split, and until that has its permission it looks the same.
 *
 * Context: linear_map_fold_sem is held for reading.
 */
void linear_map_fold_not_yet(void)
{
	lockdep_assert_held_read(&linear_map_fold_sem);

	WRITE_ONCE(last_prepared, jiffies);
}

static void free_table_rcu(struct rcu_head *head)
{
	pagetable_free(container_of(head, struct ptdesc, pt_rcu_head));
}

/* May a table be freed? One that was made at boot came from memblock. */
static bool table_is_ours(void *table)
{
	return !PageReserved(virt_to_page(table));
}

/*
 * Is this part of KFENCE's pool? Its permissions are changed where nobody may sleep. So is a pool
 * that cannot be had until kfence_init_late() has given it up, of which nobody tells the worker.
 */
static bool is_in_kfence_pool(unsigned long start, unsigned long end)
{
#ifdef CONFIG_KFENCE
	unsigned long pool = (unsigned long)kasan_reset_tag(READ_ONCE(__kfence_pool));

	if (pool && start < pool + KFENCE_POOL_SIZE && end > pool)
		return true;
#endif
	return false;
}

/*
 * Memory that was added later may be removed again, in the parts in which it was added. These are
 * sections at least: do not put it into leaves that map more than one. See
 * linear_map_prepare_remove().
 *
 * Memory of devices may be added and removed in smaller parts. It is never folded, as it is mapped
 * as MT_NORMAL, and all_default() wants linear_map_default_desc(), which has MT_NORMAL_TAGGED.
 */
static bool is_boot_memory(unsigned long start, unsigned long end)
{
	unsigned long pfn;

	if (!IS_ENABLED(CONFIG_MEMORY_HOTREMOVE) || end - start <= 1UL << PA_SECTION_SHIFT)
		return true;

	for (pfn = PHYS_PFN(__pa(start)); pfn < PHYS_PFN(__pa(end)); pfn += PAGES_PER_SECTION) {
		struct mem_section *ms = __pfn_to_section(pfn);

		if (!ms || !early_section(ms))
			return false;
	}

	return true;
}

/* The i-th entry of a table, or of a contiguous range, of leaves of a size. */
static pteval_t read_entry(enum leaf_size size, void *table, unsigned int i)
{
	return size == LEAF_PTE ? pte_val(__ptep_get((pte_t *)table + i)) :
	       pmd_val(READ_ONCE(((pmd_t *)table)[i]));
}

/* Is this the entry of a table that will be a block when what is planned is done? */
static bool is_planned(enum leaf_size size, pteval_t desc, unsigned long addr)
{
	return size == LEAF_PMD && (desc & PTE_VALID) && !pmd_leaf(__pmd(desc)) &&
	       linear_map_is_paused() && fold_is_planned(addr);
}

/*
 * Are these entries leaves of a size that together map a range of the linear map with
 * the default permission, and all of it?
 */
static bool all_default(enum leaf_size size, void *table, unsigned int nr, unsigned long start)
{
	unsigned int i;

	for (i = 0; i < nr; i++) {
		unsigned long addr = start + i * leaf_bytes(size);
		pteval_t desc = read_entry(size, table, i);

		budget--;
		/* Contiguous or not, a piece of the same leaf. */
		if ((desc & ~PTE_CONT) != linear_map_default_desc(addr, size) &&
		    !is_planned(size, desc, addr))
			return false;
	}

	return true;
}

static void count_fold(enum leaf_size size, unsigned long start)
{
	linear_map_count(size, leaf_bytes(size));
	count_vm_event(LINEAR_MAP_FOLD_CONT_PTE + size - LEAF_CONT_PTE);
	trace_linear_map_fold(start, leaf_bytes(size));
}

/* Take the leaves that a table or a contiguous range consists of out of the count. */
static void uncount(enum leaf_size size, void *table, unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++) {
		bool cont = read_entry(size, table, i) & PTE_CONT;

		linear_map_count(cont ? size + 1 : size, -(long)leaf_bytes(size));
	}
}

/* What a round has folded live, and the tables of any round; protected by linear_map_fold_sem. */
static bool was_folded;
static LIST_HEAD(folded_tables);

/* A block has taken the place of a table. */
static void folded(enum leaf_size size, void *table, unsigned long start)
{
	uncount(size == LEAF_PUD ? LEAF_PMD : LEAF_PTE, table, PTRS_PER_PTE);
	list_add(&virt_to_ptdesc(table)->pt_list, &folded_tables);
	count_fold(size, start);
}

/* Free the tables that were folded. No TLB knows them any more. */
static void free_folded_tables(void)
{
	struct ptdesc *table, *next;

	list_for_each_entry_safe(table, next, &folded_tables, pt_list) {
		list_del(&table->pt_list);
		call_rcu(&table->pt_rcu_head, free_table_rcu);
	}
}

/*
 * No TLB may hold what was folded when somebody changes a permission again, because an
 * invalidation by address is all that follows then. Where a TLB has two leaves of different
 * size for one address, that need not remove both; an invalidation of everything does. So all
 * of the TLB is invalidated, with the tables themselves in the walk caches. Only then are the
 * tables given to RCU.
 */
static void end_live_folds(void)
{
	if (!was_folded)
		return;

	flush_tlb_all();
	was_folded = false;
	free_folded_tables();
}

/*
 * Fold a table into one block, if all of it is alike; or plan it, where it takes a pause.
 *
 * One entry is replaced that is live: by BBM level 2 it may go from table to block
 * directly, as both translate every address alike. The table is kept until the TLBs are
 * rid of it: see end_live_folds().
 */
static bool fold_table(enum leaf_size size, void *entry, void *table, unsigned long start)
{
	enum leaf_size piece = size == LEAF_PUD ? LEAF_PMD : LEAF_PTE;
	unsigned long end = start + leaf_bytes(size);

	if (!leaf_is_aligned(size, start, __virt_to_phys(start)) || !table_is_ours(table) ||
	    is_in_kfence_pool(start, end) || !is_boot_memory(start, end) ||
	    !all_default(piece, table, PTRS_PER_PTE, start))
		return false;

	if (linear_map_is_paused())
		return plan_fold(size, entry, table, start);

	set_kernel_leaf(size, entry, linear_map_default_desc(start, size));
	was_folded = true;
	folded(size, table, start);

	return true;
}

/*
 * Fold the entries of a contiguous range, if they are alike and not yet contiguous.
 *
 * All of them are live. That some have the contiguous bit and some do not is a change of
 * size in progress, which BBM level 2 allows.
 */
static void fold_contiguous(enum leaf_size size, void *entry, unsigned long start)
{
	unsigned long end = start + leaf_bytes(size);
	pteval_t desc = linear_map_default_desc(start, size);
	enum leaf_size piece = size - 1;
	unsigned int nr = leaf_bytes(size) / leaf_bytes(piece);

	budget--;
	if (linear_map_without_contiguous() ||
	    !leaf_is_aligned(size, start, __virt_to_phys(start)) ||
	    read_entry(piece, entry, 0) == desc || is_in_kfence_pool(start, end) ||
	    !is_boot_memory(start, end) || !all_default(piece, entry, nr, start))
		return;

	uncount(piece, entry, nr);
	set_kernel_leaf(size, entry, desc);
	was_folded = true;
	count_fold(size, start);
}

/* Go through a table of pages. */
static void fold_ptes(pmd_t *pmdp, unsigned long start)
{
	pte_t *table = pte_offset_kernel(pmdp, start);
	unsigned int i;

	if (fold_table(LEAF_PMD, pmdp, table, start))
		return;

	for (i = 0; i < PTRS_PER_PTE; i += CONT_PTES)
		fold_contiguous(LEAF_CONT_PTE, table + i, start + i * PAGE_SIZE);
}

/*
 * Go through what one PMD entry maps. If it is the last of a larger leaf that all of its
 * entries may now make up, fold these. Return the address to go on from.
 */
static unsigned long fold_step(unsigned long addr)
{
	unsigned long next = addr + PMD_SIZE;
	unsigned long past = round_down(addr, largest_leaf()) + largest_leaf();
	pgd_t *pgdp = pgd_offset_k(addr);
	p4d_t *p4dp;
	pud_t *pudp;
	pmd_t *pmdp;

	budget--;
	if (pgd_none(READ_ONCE(*pgdp)))
		return past;
	p4dp = p4d_offset(pgdp, addr);
	if (p4d_none(READ_ONCE(*p4dp)))
		return past;
	pudp = pud_offset(p4dp, addr);
	if (pud_none(READ_ONCE(*pudp)) || pud_leaf(READ_ONCE(*pudp)))
		return past;

	pmdp = pmd_offset(pudp, addr);
	if (!pmd_none(READ_ONCE(*pmdp)) && !pmd_leaf(READ_ONCE(*pmdp)))
		fold_ptes(pmdp, addr);
	if (IS_ALIGNED(next, CONT_PMD_SIZE))
		fold_contiguous(LEAF_CONT_PMD, pmdp - (CONT_PMDS - 1), next - CONT_PMD_SIZE);
	if (pud_sect_supported() && IS_ALIGNED(next, PUD_SIZE))
		fold_table(LEAF_PUD, pudp, pmdp - (PTRS_PER_PMD - 1), next - PUD_SIZE);

	return next;
}

/* Take over the window, if there is one. */
static bool take_window(void)
{
	bool any;

	raw_spin_lock_irq(&window_lock);
	any = window_start < window_end;
	if (any) {
		todo_start = window_start;
		todo_end = window_end;
		WRITE_ONCE(window_start, ULONG_MAX);
		WRITE_ONCE(window_end, 0);
	}
	raw_spin_unlock_irq(&window_lock);

	return any;
}

static bool window_is_empty(void)
{
	return READ_ONCE(window_start) >= READ_ONCE(window_end);
}

/* Go through as much as there is time for; live. */
static unsigned long fold_round_live(void)
{
	budget = FOLD_BUDGET;
	while (todo_start < todo_end && budget > 0)
		WRITE_ONCE(todo_start, fold_step(todo_start));
	end_live_folds();

	return FOLD_PAUSE;
}

/*
 * Go through as much as there is time for, and fold all of it in one pause.
 *
 * A pause stops everybody. It is worth it if it frees some tables, and sometimes if it frees
 * any: a table less is a page, but it is also one TLB entry for what took PTRS_PER_PTE.
 * What is not folded goes back to the window, also if there can be no pause now.
 *
 * Return: after how many jiffies to go on.
 */
static unsigned long fold_round_paused(void)
{
	unsigned long start = todo_start, delay = msecs_to_jiffies(fold_delay_ms);
	bool at_once = READ_ONCE(fold_at_once);
	unsigned long wait = FOLD_PAUSE;
	int ret;

	mutex_lock(&linear_map_split_lock);
	if (linear_map_pauses_are_frequent() && !at_once) {
		wait = HZ;
		goto unlock;
	}
	/* A module may still be loading. */
	if (time_before(jiffies, READ_ONCE(last_prepared) + delay) && !at_once) {
		wait = delay;
		goto unlock;
	}

	budget = PAUSED_BUDGET;
	while (todo_start < todo_end && budget > 0 && !fold_plan_is_full())
		WRITE_ONCE(todo_start, fold_step(todo_start));

	/* Nothing is to be folded, so no pause is spent, and last_fold stays as it is. */
	if (!nr_planned_folds())
		goto forget;
	if (nr_planned_folds() < WORTH_A_PAUSE && !at_once &&
	    time_before(jiffies, last_fold + PATIENCE * delay)) {
		extend_window(start, todo_start);
		goto forget;
	}

	ret = fold_planned(folded);
	if (ret) {
		/*
		 * The sleep between tries, twice as long each time, is here, where it can be
		 * without the locks that the caller holds.
		 */
		extend_window(start, todo_start);
		wait = ret == -EOPNOTSUPP ? LOST_CPU_PAUSE :
					    min(FOLD_PAUSE << failed_rounds, (unsigned long)HZ);
		failed_rounds = min(failed_rounds + 1, 10U);
	} else {
		free_folded_tables();
		last_fold = jiffies;
		failed_rounds = 0;
	}
forget:
	forget_planned_folds();
unlock:
	mutex_unlock(&linear_map_split_lock);

	return wait;
}

/*
 * Everybody who changes the linear map waits while these locks are held. If this function had
 * to wait for one of them, it would hold the others meanwhile. So it must not sleep for long,
 * nor wait for a lock whose holder may sleep for long: memory goes offline for as long as it
 * takes to move what is in it, and a permission change may wait for memory, or for a pause.
 *
 * Return: after how many jiffies to go on.
 */
static unsigned long fold_round(void)
{
	unsigned long wait = HZ;

	if (!try_get_online_mems())
		return wait;
	/*
	 * A dump of the page tables holds it for writing from its beginning to its end. Who
	 * holds it for reading, like this, changes or walks nothing but its own tables.
	 */
	if (!mmap_read_trylock(&init_mm))
		goto put;
	if (down_write_trylock(&linear_map_fold_sem)) {
		wait = linear_map_is_paused() ? fold_round_paused() : fold_round_live();
		up_write(&linear_map_fold_sem);
	} else if (!linear_map_is_paused()) {
		wait = FOLD_PAUSE;
	}
	mmap_read_unlock(&init_mm);
put:
	put_online_mems();

	return wait;
}

static void fold_work_fn(struct work_struct *work)
{
	unsigned long wait;

	if (!READ_ONCE(fold) || !linear_map_is_split())
		return;
	if (!linear_map_is_paused() && !system_supports_bbml2_noabort())
		return;
	if (todo_start >= todo_end && !take_window())
		return;

	wait = fold_round();
	if (todo_start < todo_end)
		queue_fold(wait);
	else if (!window_is_empty())
		queue_fold(max(wait, msecs_to_jiffies(fold_delay_ms)));
}

/* Allow or forbid folding. A round that is going on comes to its end. */
static void enable_fold(bool enable)
{
	WRITE_ONCE(fold, enable);
	if (!enable)
		cancel_delayed_work(&fold_work);
	else
		queue_fold(msecs_to_jiffies(fold_delay_ms));
}

#ifdef CONFIG_ARM64_LINEAR_MAP_KUNIT_TEST
/**
 * linear_map_fold_enable() - allow or forbid folding
 * @enable: which
 *
 * When it returns after forbidding, nothing is being folded.
 *
 * Context: process context, may sleep.
 * Return: whether it was allowed before.
 */
bool linear_map_fold_enable(bool enable)
{
	bool before = READ_ONCE(fold);

	enable_fold(enable);
	if (!enable)
		cancel_delayed_work_sync(&fold_work);

	return before;
}

/**
 * linear_map_fold_now() - fold all that can be folded
 *
 * Context: process context, may sleep. Does nothing if folding is not allowed.
 */
void linear_map_fold_now(void)
{
	/* Pauses may fail, but not for ever; each round has one try, and the next needs a sleep. */
	unsigned int tries = 100;

	WRITE_ONCE(fold_at_once, true);
	for (;;) {
		mod_delayed_work(fold_wq, &fold_work, 0);
		flush_delayed_work(&fold_work);
		if (!READ_ONCE(fold) || (todo_start >= todo_end && window_is_empty()) || !tries--)
			break;
		if (linear_map_is_paused())
			msleep(20);
	}
	WRITE_ONCE(fold_at_once, false);
}
#endif

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

static int set_fold(const char *val, const struct kernel_param *kp)
{
	bool enable;
	int ret = kstrtobool(val, &enable);

	if (ret)
		return ret;

	/*
	 * On the command line there is nothing to stop or to start yet. Later nothing is waited
	 * for: the caller holds the one lock of all parameters that are built in.
	 */
	if (system_state < SYSTEM_SCHEDULING)
		fold = enable;
	else
		enable_fold(enable);

	return 0;
}

static const struct kernel_param_ops fold_ops = {
	.set = set_fold,
	.get = param_get_bool,
};
module_param_cb(linear_map_fold, &fold_ops, &fold, 0644);
MODULE_PARM_DESC(linear_map_fold, "Fold the linear map back into large leaves (default: yes)");
