// SPDX-License-Identifier: GPL-2.0-only
/*
 * Splitting and folding the linear map where sizes cannot change live.
 *
 * On most CPUs a block that is in use may not be exchanged for a table: it has to be made
 * invalid, and the TLBs invalidated, before the table may be written (break-before-make).
 * In between nobody can use what the block maps, which may be a GiB. So that is done while
 * all other CPUs are paused (arch/arm64/kernel/cpu_pause.c).
 *
 * All that one change of permissions has to split, both ends of all its ranges and all
 * levels, is gathered in a plan, for one pause. A new table is complete, with the tables
 * below it, before the pause, because nobody knows of it yet. So only one entry has to be
 * exchanged for each block that is in use. Folding exchanges entries the other way round,
 * many in one pause. If there is no memory, or there can be no pause, the plan is
 * dropped: nothing was changed. With arm64.linear_map=af, splits are tried without a pause
 * before that (linear_map_access_flag.c).
 *
 * What may be used in the pause. Any memory that is only in the linear map may be out of
 * reach: what was allocated with kmalloc() or as pages, tasks, and so current and the count
 * of preemptions, data of each CPU. change_entries() uses
 *
 *  - its text, and arrays in .bss: the kernel's image has a mapping of its own;
 *  - registers, and at most its stack, which is in vmalloc space: VMAP_STACK is required.
 *    Interrupts and the idle task of each CPU have such stacks, too; that of the boot CPU's
 *    idle task is in the image;
 *  - the entries, by aliases in vmalloc space that were made before. The tables are in the
 *    linear map, and possibly in the block that is changed. The hardware that walks
 *    them goes by physical addresses.
 *
 * It is noinstr, so that neither ftrace and kprobes nor KASAN, KCSAN and KCOV add to it,
 * and it has no stack protector, whose canary is in the task. It calls nothing. What calls
 * it does so when everything is masked, and finds everything mapped when it returns.
 * The paused CPUs are in the loop of cpu_pause_ipi(), which is made for that: between being
 * counted and being let go they read one word of the image and use registers.
 * Trace and profiling buffers (TRBE, SPE), which the hardware writes to at any time, are in
 * vmalloc space.
 *
 * The linear map has no contiguous ranges where it is split like this. What would change the
 * permission of a part of one would have to split it first, which would take a pause.
 */
#define pr_fmt(fmt) "linear map: " fmt

#include <kunit/static_stub.h>

#include <linux/capability.h>
#include <linux/init.h>
#include <linux/jiffies.h>
#include <linux/kobject.h>
#include <linux/ktime.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/time64.h>
#include <linux/vmalloc.h>

#include <asm/barrier.h>
#include <asm/cpu_pause.h>
#include <asm/cpufeature.h>
#include <asm/daifflags.h>
#include <asm/linear_map.h>
#include <asm/mmu_context.h>
#include <asm/tlbflush.h>

#include "linear_map.h"
#include "pgtable_transition.h"

#include <trace/events/linear_map.h>

/* So many entries are exchanged in one pause at most. */
#define MAX_ENTRIES	128

/**
 * struct planned - a block that a table will replace, or be replaced by
 * @leaf: the block; the entry in use may be in a table of this plan
 * @old: what its entry has now
 * @table: the table, by its linear address
 * @in_use: is the entry in use, and must be exchanged in the pause?
 * @done: was it exchanged, or that of the block that this one is a part of?
 */
struct planned {
	struct kernel_leaf leaf;
	u64 old;
	u64 *table;
	bool in_use;
	bool done;
};

/* All of this is protected by linear_map_split_lock. */
static struct planned plan[MAX_ENTRIES];
static unsigned int nr_planned;

/* Read in the pause, so they are in the image. */
static struct exchange exchanges[MAX_ENTRIES];
static unsigned int nr_exchanges;

/* What each of them is for. */
static struct planned *exchanged[MAX_ENTRIES];

/* Where the tables are mapped whose entries are exchanged, and the entries that map them. */
static void *aliases;
static pte_t *alias_ptes[MAX_ENTRIES];

/* What pauses took, and how many could not be had; protected by linear_map_split_lock. */
static struct cpu_pause_stats pause_stats;
static unsigned long pauses_failed;

/*
 * How many blocks were split by their access flag, and how many were to be and were not: nearly
 * all because they were in use, some because a CPU was coming, going or lost and nothing was tried.
 */
static unsigned long access_flag_splits;
static unsigned long access_flag_failures;

/* While pauses are frequent a split gets its pause, as its caller needs it; folding waits. */
#define FREQUENT_PAUSES	8
static unsigned long pause_times[FREQUENT_PAUSES];
static struct turns pause_turns = {
	.times = pause_times,
	.frequent = FREQUENT_PAUSES,
	.turn_ms = 20,
	.last = INITIAL_JIFFIES,
};

/*
 * A caller cannot do without its split, and the CPUs of a virtual machine may not be running
 * for longer than a pause waits. So a pause that fails is tried again: for about a second in
 * all if a CPU does not take the interrupt, as only the first try waits for that. If a CPU is
 * half way on or off line each try waits for 2 s, and all of them take almost 9 s.
 *
 * A task without privileges has one try. It may ask for such splits as often as it likes, and may
 * be the one that keeps a CPU from taking the interrupt; its caller has locks that others want,
 * as the allocator of BPF programs has. It waits when it returns to user space, where it has none.
 */
#define RETRY_NS	(250 * NSEC_PER_MSEC)
unsigned int linear_map_pause_tries = 4;

/*
 * What calls while the kernel boots has nobody who would try again, and is not always prepared for
 * an error: there is a BUG_ON() if the first BPF program cannot be made. So it is tried for a
 * minute more, once for all. A machine whose CPUs never take an interrupt in time for a pause is
 * of no use with pauses, and the log then names the parameter that does without.
 */
#define BOOT_PATIENCE_NS	(60 * NSEC_PER_SEC)
static bool is_booting = true;

/* May who has no pause wait for one any longer? */
static bool boot_is_patient(void)
{
	static u64 give_up_ns;

	if (!is_booting)
		return false;
	if (!give_up_ns) {
		give_up_ns = ktime_get_ns() + BOOT_PATIENCE_NS;
		pr_warn("the boot waits until all CPUs can be paused: cpu_pause.wait_us= lets them take longer, arm64.linear_map=pages needs no pauses\n");
	}

	return ktime_get_ns() < give_up_ns;
}

/**
 * why_linear_map_cannot_pause() - can sizes be changed in pauses at all?
 *
 * Context: any.
 * Return: NULL if they can, or else why not.
 */
const char *why_linear_map_cannot_pause(void)
{
	/*
	 * The entries of a top level are not in the linear map, are read-only in the image,
	 * and may have copies. With few levels they are blocks.
	 */
	if (CONFIG_PGTABLE_LEVELS == 2 || (CONFIG_PGTABLE_LEVELS == 3 && pud_sect_supported()))
		return "the top level of the page tables has blocks";

	return NULL;
}

/*
 * Exchange the entries: break, invalidate, make.
 *
 * All others are paused, and this CPU has everything masked, so nobody uses what is invalid,
 * nor can a TLB get an entry for it, as invalid entries are not cached. All of the TLB is
 * invalidated: the blocks, and when it folds, the tables and what they mapped.
 *
 * The first barrier makes the invalid entries visible to the walkers of all CPUs before the
 * invalidation, and what new tables hold before the tables are. After the second no CPU uses
 * an old translation. The third makes the new entries visible before any CPU goes on, and
 * the ISB has this one translate what comes next with them.
 */
static bool noinstr __no_stack_protector change_entries(void *unused)
{
	unsigned int i, nr = nr_exchanges;

	for (i = 0; i < nr; i++)
		if (!exchanges[i].done)
			WRITE_ONCE(*exchanges[i].alias, 0);

	dsb(ishst);
	__tlbi(vmalle1is);
	dsb(ish);
	__repeat_tlbi_sync(vale1is, 0);
	isb();

	for (i = 0; i < nr; i++)
		if (!exchanges[i].done)
			WRITE_ONCE(*exchanges[i].alias, exchanges[i].desc);
	dsb(ishst);
	isb();

	return false;
}

static int remember_alias_pte(pte_t *ptep, unsigned long addr, void *area)
{
	alias_ptes[(addr - (unsigned long)area) / PAGE_SIZE] = ptep;

	return 0;
}

/*
 * Have a place for the aliases, once. Its tables stay, so that nothing is allocated to map
 * an alias.
 */
static int prepare_aliases(void)
{
	static DEFINE_MUTEX(lock);
	struct vm_struct *area;
	int ret = 0;

	/* Pairs with the store-release below. */
	if (smp_load_acquire(&aliases))
		return 0;

	mutex_lock(&lock);
	if (aliases)
		goto unlock;
	area = get_vm_area(MAX_ENTRIES * PAGE_SIZE, VM_MAP);
	if (!area) {
		ret = -ENOMEM;
		goto unlock;
	}
	ret = apply_to_page_range(&init_mm, (unsigned long)area->addr, MAX_ENTRIES * PAGE_SIZE,
				  remember_alias_pte, area->addr);
	if (ret)
		free_vm_area(area);
	else	/* Pairs with the load above: what was remembered can be seen. */
		smp_store_release(&aliases, area->addr);
unlock:
	mutex_unlock(&lock);

	return ret;
}

/**
 * linear_map_prepare_pauses() - allocate what pauses need
 *
 * Without memory it is tried again when there is something to split.
 *
 * Context: process context, may sleep.
 */
void linear_map_prepare_pauses(void)
{
	if (prepare_aliases())
		pr_warn("no memory for the aliases of page tables\n");
}

/**
 * linear_map_require_all_cpus() - panic if a CPU may run the kernel that cannot be stopped
 *
 * One that took longer to start than it was waited for may be one, or one that was refused and is
 * not known to be off. It runs on the kernel's tables, and takes no part in stop_machine(): see
 * cpu_pause_lost_cpu(). Nor is there any pause then, so that no module could be loaded, and where
 * BPF is compiled the boot would end at the BUG_ON() of its first program, which says nothing of
 * CPUs.
 *
 * Context: the boot CPU, before there is user space.
 */
void __init linear_map_require_all_cpus(void)
{
	if (!cpu_pause_look_for_cpus())
		panic("linear map: a CPU started too late or is not known to be off, so blocks cannot be changed; arm64.linear_map=pages has no blocks\n");
}

/* Have one more entry exchanged. */
static void add_exchange(struct planned *planned, u64 desc)
{
	unsigned int i = nr_exchanges++;
	unsigned long entry = (unsigned long)planned->leaf.entry;

	check_pgtable_paused_transition(planned->leaf.entry, planned->old, desc,
					planned->leaf.size == LEAF_PUD ? PUD_SHIFT : PMD_SHIFT);
	__set_pte(alias_ptes[i], pfn_pte(PHYS_PFN(__pa(entry)), PAGE_KERNEL));
	exchanges[i] = (struct exchange) {
		.alias = aliases + i * PAGE_SIZE + offset_in_page(entry),
		.old = planned->old,
		.desc = desc,
	};
	exchanged[i] = planned;
}

/* Remove the aliases. */
static void forget_exchanges(void)
{
	unsigned int i;

	for (i = 0; i < nr_exchanges; i++)
		__pte_clear(&init_mm, (unsigned long)aliases + i * PAGE_SIZE, alias_ptes[i]);
	flush_tlb_kernel_range((unsigned long)aliases,
			       (unsigned long)aliases + nr_exchanges * PAGE_SIZE);
	nr_exchanges = 0;
}

/**
 * linear_map_run_paused() - exchange all entries in one pause; tests make it fail
 * @may_sleep: may it sleep until there can be a pause?
 *
 * Until there are other CPUs no pause is needed. While they start at boot, nobody splits.
 *
 * Context: as split_all_ends(), with linear_map_split_lock held.
 * Return: 0; -EBUSY if other CPUs cannot be paused; another error if there can be no pauses.
 */
int linear_map_run_paused(bool may_sleep)
{
	unsigned long flags;
	int ret;

	KUNIT_STATIC_STUB_REDIRECT(linear_map_run_paused, may_sleep);

	if (system_state < SYSTEM_SCHEDULING) {
		flags = local_daif_save();
		change_entries(NULL);
		local_daif_restore(flags);
		return 0;
	}
	if (!system_capabilities_finalized())
		return -EINVAL;

	ret = may_sleep ? cpu_pause_run_unmapped(change_entries, NULL, &pause_stats) :
			  cpu_pause_try_unmapped(change_entries, NULL, &pause_stats);
	if (ret) {
		pauses_failed++;
		return ret;
	}
	count_for_turns(&pause_turns);

	return 0;
}

/**
 * linear_map_pauses_are_frequent() - have there been many pauses a moment ago?
 *
 * Context: linear_map_split_lock is held.
 * Return: true if what can wait should wait.
 */
bool linear_map_pauses_are_frequent(void)
{
	return turns_are_needed(&pause_turns);
}

/* Splitting */

static struct planned *find_planned(enum leaf_size size, unsigned long start)
{
	unsigned int i;

	for (i = 0; i < nr_planned; i++)
		if (plan[i].leaf.size == size && plan[i].leaf.start == start)
			return &plan[i];

	return NULL;
}

/* Take the table for a split from the list, and fill it. */
static struct planned *plan_split(const struct kernel_leaf *leaf, bool in_use,
				  struct list_head *tables)
{
	struct ptdesc *table = list_first_entry_or_null(tables, struct ptdesc, pt_list);
	struct planned *planned = &plan[nr_planned];

	if (nr_planned == MAX_ENTRIES)
		return ERR_PTR(-ENOSPC);
	if (!table)
		return ERR_PTR(-EAGAIN);

	list_del(&table->pt_list);
	nr_planned++;
	planned->leaf = *leaf;
	planned->old = leaf->desc;
	planned->table = ptdesc_address(table);
	planned->in_use = in_use;
	planned->done = false;
	fill_split_table(leaf, leaf->size == LEAF_PUD ? LEAF_PMD : LEAF_PTE, planned->table);
	/* It is in a table that nobody knows of. */
	if (!in_use)
		WRITE_ONCE(*(u64 *)leaf->entry, split_table_desc(leaf, planned->table));

	return planned;
}

/* The leaf of a planned table that maps an address, as it was before it was split itself. */
static void find_in_table(struct planned *planned, unsigned long addr, struct kernel_leaf *leaf)
{
	enum leaf_size size = planned->leaf.size == LEAF_PUD ? LEAF_PMD : LEAF_PTE;
	unsigned int i = (addr - planned->leaf.start) / leaf_bytes(size);

	leaf->size = size;
	leaf->start = planned->leaf.start + i * leaf_bytes(size);
	leaf->entry = planned->table + i;
	leaf->desc = piece_desc(planned->leaf.desc, size, i);
}

static bool is_boundary(unsigned long addr, unsigned long boundary,
			const struct desc_change *change)
{
	struct kernel_leaf leaf;

	return find_kernel_leaf(addr, &leaf) && !leaf_has_to_be_split(&leaf, boundary, change);
}

/*
 * Is nothing to be split? There are no contiguous ranges, of which somebody may be writing the
 * entries one by one, and no leaf becomes larger while linear_map_fold_sem is held. So a boundary
 * that is seen without the lock is there and stays. Before a table can be seen, TLBs have nothing
 * of the block that it replaces, in a pause as well as by its access flag.
 */
static bool all_are_boundaries(next_range_fn *next, const void *what,
			       const struct desc_change *change)
{
	struct address_range range;
	unsigned int position = 0;

	while (next(what, &position, &range)) {
		if (!is_boundary(range.start, range.start, change))
			return false;
		if (range.end > range.start && !is_boundary(range.end - 1, range.end, change))
			return false;
	}

	return true;
}

/* Plan what split_boundary() does live. */
static int plan_boundary(unsigned long addr, unsigned long boundary,
			 const struct desc_change *change, struct list_head *tables)
{
	struct kernel_leaf leaf;
	bool in_use = true;

	if (!find_kernel_leaf(addr, &leaf))
		return -EINVAL;

	while (leaf_has_to_be_split(&leaf, boundary, change)) {
		struct planned *planned;

		if (WARN_ON_ONCE(leaf_is_contiguous(leaf.size)))
			return -EINVAL;

		planned = find_planned(leaf.size, leaf.start);
		if (!planned)
			planned = plan_split(&leaf, in_use, tables);
		if (IS_ERR(planned))
			return PTR_ERR(planned);
		find_in_table(planned, addr, &leaf);
		in_use = false;
	}

	return 0;
}

/* Is a block of the plan, which is in no table in use, a part of one that is done? */
static bool is_part_of_done(const struct planned *part)
{
	unsigned int i;

	for (i = 0; i < nr_planned; i++)
		if (plan[i].in_use && plan[i].done &&
		    part->leaf.start >= plan[i].leaf.start &&
		    part->leaf.start - plan[i].leaf.start < leaf_bytes(plan[i].leaf.size))
			return true;

	return false;
}

/* Count what was split, and take it out of the plan. */
static void complete_splits(void)
{
	unsigned int i, left = 0;

	for (i = 0; i < nr_planned; i++)
		if (!plan[i].in_use)
			plan[i].done = is_part_of_done(&plan[i]);

	for (i = 0; i < nr_planned; i++) {
		if (plan[i].done)
			count_split(&plan[i].leaf,
				    plan[i].leaf.size == LEAF_PUD ? LEAF_PMD : LEAF_PTE);
		else
			plan[left++] = plan[i];
	}
	nr_planned = left;
}

/*
 * Carry out the plan. What could be split by access flags is split, also if there is no pause
 * for the rest; it maps as before.
 */
static int install_splits(void)
{
	unsigned int i, done;
	int ret = 0;

	if (!nr_planned)
		return 0;

	for (i = 0; i < nr_planned; i++)
		if (plan[i].in_use)
			add_exchange(&plan[i], split_table_desc(&plan[i].leaf, plan[i].table));

	done = exchange_by_access_flag(exchanges, nr_exchanges);
	access_flag_splits += done;
	if (linear_map_can_use_access_flag())
		access_flag_failures += nr_exchanges - done;
	if (done < nr_exchanges)
		ret = linear_map_run_paused(true);

	for (i = 0; i < nr_exchanges; i++)
		exchanged[i]->done = !ret || exchanges[i].done;
	forget_exchanges();
	complete_splits();

	return ret;
}

/* Drop what is left of a plan. */
static void forget_splits(struct list_head *tables)
{
	while (nr_planned)
		list_add(&virt_to_ptdesc(plan[--nr_planned].table)->pt_list, tables);
}

/* Plan and install. When the plan is full it is carried out, and the next one begun. */
static int split_ranges(next_range_fn *next, const void *what, const struct desc_change *change,
			struct list_head *tables)
{
	struct address_range range;
	unsigned int position = 0;
	int ret;

	while (next(what, &position, &range)) {
		do {
			ret = plan_boundary(range.start, range.start, change, tables);
			if (!ret && range.end > range.start)
				ret = plan_boundary(range.end - 1, range.end, change, tables);
		} while (ret == -ENOSPC && !(ret = install_splits()));
		if (ret)
			return ret;
	}

	return install_splits();
}

/**
 * split_all_ends_paused() - split at both ends of ranges, in one pause
 * @next: tells the ranges; one that ends where it starts is split there
 * @what: handed to it
 * @change: what their leaves will be changed by; a leaf that it does not change is left as
 *	    it is. NULL to split all.
 *
 * More than MAX_ENTRIES tables take more than one pause. While pauses are frequent, an
 * unprivileged task that had one will sleep before it returns to user space.
 *
 * Context: as split_all_ends().
 * Return: as split_all_ends(). After an error everything maps as before.
 */
int split_all_ends_paused(next_range_fn *next, const void *what,
			  const struct desc_change *change)
{
	bool privileged = has_capability_noaudit(current, CAP_SYS_ADMIN);
	unsigned int tries = privileged ? linear_map_pause_tries : 1, failed = 0, taken;
	unsigned long pauses, flushes, turn;
	bool must_wait = false;
	LIST_HEAD(tables);
	int ret;

	/* Who has to split nothing does not wait for those who wait for a pause with the lock. */
	if (all_are_boundaries(next, what, change))
		return 0;

	ret = prepare_aliases();
	while (!ret) {
		mutex_lock(&linear_map_split_lock);
		pauses = pause_turns.nr;
		flushes = flush_turns.nr;
		ret = split_ranges(next, what, change, &tables);
		taken = nr_planned;
		forget_splits(&tables);
		if (pause_turns.nr != pauses)
			must_wait |= take_turn(&pause_turns, &turn);
		else if (flush_turns.nr != flushes)
			must_wait |= take_turn(&flush_turns, &turn);
		mutex_unlock(&linear_map_split_lock);

		if (ret == -EAGAIN) {
			/*
			 * Reclaim must not find the lock taken; so plan anew after it, with
			 * as many tables again as that plan took.
			 */
			ret = alloc_split_tables(&tables, max(taken, 1U));
		} else if (ret == -EBUSY &&
			   (++failed < tries || (privileged && boot_is_patient()))) {
			cpu_pause_sleep(RETRY_NS);
			ret = 0;
		} else {
			break;
		}
	}

	free_split_tables(&tables);

	if (ret == -EBUSY && !privileged) {
		unsigned long retry = jiffies + nsecs_to_jiffies(RETRY_NS);

		/* A full plan may have had a pause before the one that failed. */
		if (!must_wait || time_before(turn, retry))
			turn = retry;
		must_wait = true;
	}
	if (must_wait)
		wait_later(turn);

	return ret;
}

#ifdef CONFIG_MODULES
/* The memory of a module that will be read-only. */
struct module_parts {
	struct area_part part[MOD_MEM_NUM_TYPES];
	unsigned int nr;
};

/* The runs of all parts; the position counts pages. */
static bool next_run_of_parts(const void *what, unsigned int *position,
			      struct address_range *run)
{
	const struct module_parts *parts = what;
	unsigned int i, before = 0;

	for (i = 0; i < parts->nr; i++) {
		unsigned int within = *position - before;

		if (linear_map_next_run(&parts->part[i], &within, run)) {
			*position = before + within;
			return true;
		}
		before += parts->part[i].end;
	}

	return false;
}

/*
 * How long a module waits for its pause. One that is not loaded by then is missing until somebody
 * loads it by hand, as nobody tries it again. A CPU that has taken no interrupt for longer, because
 * it prints to a slow console for example, is one that the detector of hard lockups reports.
 */
#define MODULE_PATIENCE_NS	(10 * NSEC_PER_SEC)

/**
 * linear_map_prepare_module() - split what a module will have read-only
 * @mod: the module, complete, before anything of it is protected
 *
 * Its text and its data are in several areas, which are protected one after the other. Each
 * might take a pause otherwise.
 *
 * Context: process context, may sleep, for MODULE_PATIENCE_NS and the tries of one more split. Who
 *	    loads a module has no lock here.
 * Return: as split_all_ends().
 */
int linear_map_prepare_module(const struct module *mod)
{
	const struct desc_change change = { .set = PTE_RDONLY, .clear = PTE_WRITE };
	struct module_parts parts = { };
	u64 give_up_ns = ktime_get_ns() + MODULE_PATIENCE_NS;
	struct address_range run;
	unsigned int position;
	int ret;

	if (!linear_map_is_paused() || !rodata_full || !IS_ENABLED(CONFIG_STRICT_MODULE_RWX))
		return 0;

	for_each_mod_mem_type(type) {
		const struct module_memory *mem = &mod->mem[type];
		struct vm_struct *area;

		if (type == MOD_DATA || type == MOD_INIT_DATA || !mem->size)
			continue;
		area = find_vm_area(mem->base);
		if (area)
			parts.part[parts.nr++] = (struct area_part) {
				.area = area,
				.end = min(area->nr_pages, PAGE_ALIGN(mem->size) / PAGE_SIZE),
			};
	}

	for (;;) {
		down_read(&linear_map_fold_sem);
		ret = split_all_ends(next_run_of_parts, &parts, &change);
		for (position = 0; ret && next_run_of_parts(&parts, &position, &run); )
			fold_later(run.start, run.end);
		if (!ret)
			linear_map_fold_not_yet();
		up_read(&linear_map_fold_sem);

		if (ret != -EBUSY || ktime_get_ns() >= give_up_ns ||
		    fatal_signal_pending(current))
			return ret;
		cpu_pause_sleep(RETRY_NS);
	}
}

#endif /* CONFIG_MODULES */

/* Folding */

/**
 * plan_fold() - plan that a block replaces a table
 * @size: the size of the block
 * @entry: its entry, which has the table
 * @table: the table, which maps the same, by its linear address
 * @start: the first linear address
 *
 * What was planned for entries of the table need not be done any more.
 *
 * Context: linear_map_split_lock is held.
 * Return: false if there is no room for it in this plan.
 */
bool plan_fold(enum leaf_size size, void *entry, void *table, unsigned long start)
{
	unsigned int i;

	if (nr_planned == MAX_ENTRIES)
		return false;

	for (i = 0; i < nr_planned; i++)
		if (plan[i].leaf.start >= start &&
		    plan[i].leaf.start - start < leaf_bytes(size))
			plan[i].in_use = false;

	plan[nr_planned++] = (struct planned) {
		.leaf = {
			.size = size,
			.start = start,
			.entry = entry,
			.desc = linear_map_default_desc(start, size),
		},
		.old = READ_ONCE(*(u64 *)entry),
		.table = table,
		.in_use = true,
	};

	return true;
}

/**
 * fold_is_planned() - will there be a block in place of a table of pages?
 * @start: the first linear address of the block
 *
 * Context: linear_map_split_lock is held.
 * Return: true if so.
 */
bool fold_is_planned(unsigned long start)
{
	return find_planned(LEAF_PMD, start);
}

/**
 * nr_planned_folds() - how many tables would be freed?
 *
 * Context: linear_map_split_lock is held.
 * Return: their number.
 */
unsigned int nr_planned_folds(void)
{
	return nr_planned;
}

/**
 * fold_plan_is_full() - may there be no room for the next two folds?
 *
 * Context: linear_map_split_lock is held.
 * Return: true if there is none.
 */
bool fold_plan_is_full(void)
{
	return nr_planned + 2 > MAX_ENTRIES;
}

/**
 * fold_planned() - carry out all planned folds, or none, in one pause
 * @done: told of each that was, in the order in which they were planned; the table may be
 *	  freed then, after an RCU grace period
 *
 * The caller keeps out everybody who changes permissions or adds memory, and can fold later
 * just as well. So there is one try and no sleep: to wait for a CPU that is half way on or off
 * line would take seconds.
 *
 * Context: process context; linear_map_fold_sem is held for writing, and
 *	    linear_map_split_lock.
 * Return: 0; -EBUSY if other CPUs cannot be paused now, -EOPNOTSUPP if that may never be again,
 *	   -ENOMEM if there is no memory.
 */
int fold_planned(void (*done)(enum leaf_size size, void *table, unsigned long start))
{
	unsigned int i;
	int ret;

	if (!nr_planned)
		return 0;
	/* Nothing was split yet, so there is nothing to fold. */
	if (!aliases)
		return -ENOMEM;

	for (i = 0; i < nr_planned; i++)
		if (plan[i].in_use)
			add_exchange(&plan[i], plan[i].leaf.desc);
	ret = linear_map_run_paused(false);
	forget_exchanges();
	if (ret)
		return ret;

	for (i = 0; i < nr_planned; i++)
		done(plan[i].leaf.size, plan[i].table, plan[i].leaf.start);
	nr_planned = 0;

	return 0;
}

/**
 * forget_planned_folds() - drop the plan
 *
 * Context: linear_map_split_lock is held.
 */
void forget_planned_folds(void)
{
	nr_planned = 0;
}

/**
 * linear_map_access_flag_splits() - how many blocks were split by their access flag?
 *
 * Context: any.
 * Return: their number, since boot.
 */
unsigned long linear_map_access_flag_splits(void)
{
	return READ_ONCE(access_flag_splits);
}

/**
 * linear_map_pauses() - how many pauses were there for the linear map?
 *
 * Context: any.
 * Return: their number, since boot.
 */
unsigned long linear_map_pauses(void)
{
	return READ_ONCE(pause_stats.pauses);
}

/* What of /sys/kernel/mm/linear_map there is where there are pauses. */

#define STAT_ATTR(_name, _value)						\
static ssize_t _name##_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)	\
{										\
	return sysfs_emit(buf, "%llu\n", (u64)READ_ONCE(_value));		\
}										\
static struct kobj_attribute _name##_attr = __ATTR_RO(_name)

STAT_ATTR(pauses, pause_stats.pauses);
STAT_ATTR(pauses_failed, pauses_failed);
STAT_ATTR(access_flag_splits, access_flag_splits);
STAT_ATTR(access_flag_failures, access_flag_failures);
STAT_ATTR(longest_pause_ns, pause_stats.longest_ns);
STAT_ATTR(total_pause_ns, pause_stats.total_ns);

static struct attribute *pause_attrs[] = {
	&pauses_attr.attr,
	&pauses_failed_attr.attr,
	&access_flag_splits_attr.attr,
	&access_flag_failures_attr.attr,
	&longest_pause_ns_attr.attr,
	&total_pause_ns_attr.attr,
	NULL
};

static const struct attribute_group pause_group = {
	.name = LINEAR_MAP_SYSFS,
	.attrs = pause_attrs,
};

/* The directory has been made, by device_initcall(). */
static int __init init_sysfs(void)
{
	if (linear_map_by_access_flag && !linear_map_can_use_access_flag())
		pr_warn("arm64.linear_map=af: %s; there are pauses alone\n",
			IS_ENABLED(CONFIG_ARM64_LINEAR_MAP_ACCESS_FLAG) ?
			"not all CPUs set access flags" :
			"this kernel has no ARM64_LINEAR_MAP_ACCESS_FLAG");

	return linear_map_is_paused() ? sysfs_merge_group(mm_kobj, &pause_group) : 0;
}
late_initcall(init_sysfs);

/* What is left of the boot can do without a split. */
static int __init end_patience(void)
{
	is_booting = false;

	return 0;
}
late_initcall_sync(end_patience);
