/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The linear map in large blocks: what its parts share. See linear_map.c.
 */
#ifndef __ARM64_MM_LINEAR_MAP_H
#define __ARM64_MM_LINEAR_MAP_H

#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/types.h>

#include "kernel_leaf.h"

struct vm_struct;

/**
 * enum linear_map_mode - what the linear map is made of, and whether it changes
 * @LINEAR_MAP_PAGES: pages only; permissions change, sizes never do
 * @LINEAR_MAP_FIXED: blocks; neither permissions nor sizes change
 * @LINEAR_MAP_LIVE: blocks, split and folded back live
 * @LINEAR_MAP_PAUSED: blocks that are not contiguous, split and folded back while all other
 *		       CPUs are paused
 */
enum linear_map_mode {
	LINEAR_MAP_PAGES,
	LINEAR_MAP_FIXED,
	LINEAR_MAP_LIVE,
	LINEAR_MAP_PAUSED,
};

/*
 * Written when the map is painted, and once more when CPUs turn out to be unequal or not all
 * that are present have started; both before there is user space.
 */
extern enum linear_map_mode linear_map_mode;

/* Are splits tried by access flags before there is a pause? Written as linear_map_mode is. */
extern bool linear_map_by_access_flag;

/* The directory below /sys/kernel/mm. */
#define LINEAR_MAP_SYSFS "linear_map"

/*
 * Whoever changes permissions holds it for reading from the first split to the last
 * change, so that nothing is folded in between; folding holds it for writing.
 */
extern struct rw_semaphore linear_map_fold_sem;

/* Whoever splits a leaf, or counts leaves that may be split, holds it. */
extern struct mutex linear_map_split_lock;

/**
 * struct address_range - a part of the linear map
 * @start: its first address
 * @end: the address after its last
 */
struct address_range {
	unsigned long start;
	unsigned long end;
};

/**
 * struct exchange - an entry that is exchanged
 * @alias: where it is, not by its linear address
 * @old: what it has
 * @desc: what it becomes
 * @done: was it exchanged without a pause?
 */
struct exchange {
	u64 *alias;
	u64 old;
	u64 desc;
	bool done;
};

/**
 * typedef next_range_fn - tell the ranges of a change, one after the other
 * @what: what is changed
 * @position: where this is up to; 0 before the first range
 * @range: where to put the next range
 *
 * Return: false if there is none left.
 */
typedef bool (next_range_fn)(const void *what, unsigned int *position,
			     struct address_range *range);

/**
 * struct area_part - a part of a vmalloc area, by the indices of its pages
 * @area: the area
 * @first: its first page
 * @end: the page after its last
 */
struct area_part {
	const struct vm_struct *area;
	unsigned int first;
	unsigned int end;
};

/**
 * struct turns - a bound on what any program can do to all CPUs, again and again
 * @times: when it was done, the last so many times; if all were within a second it is too often
 * @frequent: how many times these are
 * @nr: how often it was done since boot
 * @turn_ms: how long a turn is, in milliseconds
 * @last: when the last turn that was given out begins, in jiffies
 *
 * Protected by linear_map_split_lock.
 */
struct turns {
	unsigned long *times;
	unsigned int frequent;
	unsigned long nr;
	unsigned int turn_ms;
	unsigned long last;
};

/* linear_map_area.c */
next_range_fn linear_map_next_run;

/* linear_map_split.c */
struct ptdesc *alloc_split_table(void);
int alloc_split_tables(struct list_head *tables, unsigned int nr);
void free_split_tables(struct list_head *tables);
void flush_splits(void);
extern struct turns flush_turns;
void count_for_turns(struct turns *turns);
bool turns_are_needed(const struct turns *turns);
bool take_turn(struct turns *turns, unsigned long *at);
void wait_later(unsigned long at);
int split_all_ends_live(next_range_fn *next, const void *what,
			const struct desc_change *change);
bool linear_map_next_only(const void *what, unsigned int *position,
			  struct address_range *range);
void __split_kernel_leaf(const struct kernel_leaf *leaf, enum leaf_size size, void *table);
void fill_split_table(const struct kernel_leaf *leaf, enum leaf_size size, void *table);
u64 split_table_desc(const struct kernel_leaf *leaf, const void *table);
void count_split(const struct kernel_leaf *leaf, enum leaf_size size);
int alloc_spare_tables(unsigned long nr);
struct ptdesc *take_spare_table(void);
void free_spare_tables(void);
void linear_map_count(enum leaf_size size, long bytes);
void linear_map_count_range(unsigned long start, unsigned long end, int sign);
void linear_map_count_memory(unsigned long start, u64 size, int sign);
unsigned long linear_map_bytes(enum leaf_size size);

#ifdef CONFIG_ARM64_LINEAR_MAP_BLOCKS
int split_ends(unsigned long start, unsigned long end, const struct desc_change *change);
int split_all_ends(next_range_fn *next, const void *what, const struct desc_change *change);
#else
/* What changes consists of pages. */
static inline int split_ends(unsigned long start, unsigned long end,
			     const struct desc_change *change)
{
	return 0;
}

static inline int split_all_ends(next_range_fn *next, const void *what,
				 const struct desc_change *change)
{
	return 0;
}
#endif

/* Does a split of this leaf need a table for what it is split into? */
static inline bool split_needs_table(enum leaf_size size)
{
	return size == LEAF_PMD || size == LEAF_PUD;
}

/* linear_map_change.c */
int change_kernel_leaves(unsigned long start, unsigned long end,
			 const struct desc_change *change, bool *was_valid);
int change_whole_leaves(unsigned long start, unsigned long end,
			const struct desc_change *change);

/* linear_map_repaint.c */
void linear_map_repaint(bool with_pages);

/* linear_map_park.S */
typedef void (park_fn)(u32 *parked);
extern park_fn linear_map_park;
extern u32 linear_map_parked;

/* kernel/pi/map_range.c, also called by mmu.c */
void __pi_map_range(u64 *pgd, u64 start, u64 end, u64 pa, pgprot_t prot,
		    int level, pte_t *tbl, bool may_use_cont, u64 va_offset);

/* linear_map_pause.c */
#ifdef CONFIG_ARM64_LINEAR_MAP_PAUSE
extern unsigned int linear_map_pause_tries;
const char *why_linear_map_cannot_pause(void);
void linear_map_prepare_pauses(void);
void linear_map_require_all_cpus(void);
int split_all_ends_paused(next_range_fn *next, const void *what,
			  const struct desc_change *change);
bool plan_fold(enum leaf_size size, void *entry, void *table, unsigned long start);
bool fold_is_planned(unsigned long start);
unsigned int nr_planned_folds(void);
bool fold_plan_is_full(void);
int fold_planned(void (*done)(enum leaf_size size, void *table, unsigned long start));
void forget_planned_folds(void);
bool linear_map_pauses_are_frequent(void);
unsigned long linear_map_pauses(void);
unsigned long linear_map_access_flag_splits(void);
int linear_map_run_paused(bool may_sleep);
#else
static inline const char *why_linear_map_cannot_pause(void)
{
	return "this kernel cannot pause other CPUs";
}

static inline void linear_map_prepare_pauses(void) { }
static inline void linear_map_require_all_cpus(void) { }

static inline int split_all_ends_paused(next_range_fn *next, const void *what,
					const struct desc_change *change)
{
	return -EINVAL;
}

static inline bool plan_fold(enum leaf_size size, void *entry, void *table,
			     unsigned long start)
{
	return false;
}

static inline bool fold_is_planned(unsigned long start) { return false; }
static inline unsigned int nr_planned_folds(void) { return 0; }
static inline bool fold_plan_is_full(void) { return false; }

static inline int fold_planned(void (*done)(enum leaf_size size, void *table,
					    unsigned long start))
{
	return 0;
}

static inline void forget_planned_folds(void) { }
static inline bool linear_map_pauses_are_frequent(void) { return false; }
#endif

/* linear_map_access_flag.c */
#ifdef CONFIG_ARM64_LINEAR_MAP_ACCESS_FLAG
extern const u32 *access_flag_test_use;
bool linear_map_can_use_access_flag(void);
unsigned int exchange_by_access_flag(struct exchange *exchanges, unsigned int nr);
#else
static inline bool linear_map_can_use_access_flag(void) { return false; }

static inline unsigned int exchange_by_access_flag(struct exchange *exchanges, unsigned int nr)
{
	return 0;
}
#endif

/* linear_map_hotplug.c */
void report_removal_of_part(unsigned long start, unsigned long end);

/* linear_map_kfence.c */
int split_into_pages(unsigned long start, unsigned long end);

/* linear_map_fold.c */
void linear_map_fold_later(unsigned long start, unsigned long end);
void linear_map_fold_not_yet(void);
bool linear_map_fold_enable(bool enable);
void linear_map_fold_now(void);

/*
 * Is the linear map split and folded, in whatever way? If that is not configured, nothing
 * refers to it.
 */
static inline bool linear_map_is_split(void)
{
	return IS_ENABLED(CONFIG_ARM64_LINEAR_MAP_BLOCKS) && linear_map_mode >= LINEAR_MAP_LIVE;
}

/* Does that take a pause of all other CPUs? */
static inline bool linear_map_is_paused(void)
{
	return IS_ENABLED(CONFIG_ARM64_LINEAR_MAP_PAUSE) && linear_map_mode == LINEAR_MAP_PAUSED;
}

/* Something in a range may be folded, if it is part of the linear map. */
static inline void fold_later(unsigned long start, unsigned long end)
{
	if (linear_map_is_split() && __is_lm_address(start))
		linear_map_fold_later(start, end);
}

#endif /* __ARM64_MM_LINEAR_MAP_H */
