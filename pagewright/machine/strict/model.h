/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A model of what the TLBs of a machine may hold, and of the rules for it.
 *
 * It is told what happens (model_*()), looks at the guest's memory, and says
 * what breaks a rule by calling model_report().  It knows nothing of QEMU, so
 * tests can tell it stories.
 *
 * Parts: tables.c knows the tables that TTBR1 of any CPU leads to, tlb.c what
 * TLBs may hold that is no longer in the tables, wx.c what may be written and
 * executed, rules.c what is wrong, and model.c is what is told.  All of it runs
 * under one lock, the caller's.
 */
#ifndef STRICT_MODEL_H
#define STRICT_MODEL_H

#include "decode.h"

/*
 * Each CPU may have two roots of its own, for the kernel and for programs,
 * besides those that all of them have.  Sets of either are one u64.
 */
#define MAX_CPUS	30
#define MAX_ROOTS	64

/* A CPU, and the instruction at which it is. */
struct site {
	u32 cpu;
	u64 pc;
	u64 caller;		/* of a store to a table; or 0 */
};

enum rule {
	RULE_BREAK_BEFORE_MAKE,
	RULE_MAKE_BEFORE_INVALIDATION,
	RULE_STALE_USE,
	RULE_SCOPE,
	RULE_SIZES,
	RULE_CONTIGUOUS,
	RULE_TABLES,
	RULE_ACCESS_FLAG,
	RULE_SHARED_TLB,
	RULE_WRITE_EXECUTE,
	NR_RULES
};

struct report {
	enum rule rule;
	const char *words;	/* what is wrong, in this case */
	struct site site;
	u64 address;
	u64 old, new;		/* descriptors */
	struct site writer;	/* of the old one's change; pc 0 if unknown */
};

/* The caller's: prints or counts a report. */
void model_report(const struct report *report);
/* The caller's: the model does not see all from now on, and why. */
void model_blind(const char *why);
/* The caller's: guest memory at a physical address; NULL if there is none. */
void *model_memory(u64 pa, u64 size);

/*
 * A table, where it is mounted: from which address on, and under which roots.
 * A stale mount is one that only walk caches lead to.
 */
struct mount {
	u64 va;
	u64 roots;
	u64 stale_roots;
};

struct table {
	u64 pa;
	int level;
	u32 entries;
	u32 nr_mounts, room;
	bool crowded;		/* too many mounts: not looked at */
	struct mount *mounts;
	struct table *next;	/* of those in the same page */
	u64 shadow[];
};

struct root {
	u64 pa;
	u64 loaded;		/* CPUs that have it in TTBR1 */
	u64 stale;		/* CPUs that had, and may have cached of it */
};

/* A descriptor that is no longer in a table, and still may be in TLBs. */
struct record {
	u64 va;
	u64 desc;
	u64 cpus;		/* whose TLBs may hold it */
	u64 roots;
	u64 when;		/* of the change */
	struct site writer;
	int level;		/* of its table */
	bool is_table;
	bool in_use;
	bool hazard;		/* its use would be wrong */
	u32 tried;		/* invalidations that did not suffice: TRIED_* */
	u32 generation;
	u32 next;		/* in its chain, or of free ones */
	u32 position;		/* among those in use */
};

#define TRIED_LOCAL		BIT(0)	/* this CPU's TLB alone */
#define TRIED_LAST_LEVEL	BIT(1)	/* no walk caches */
#define TRIED_TOO_EARLY		BIT(2)	/* no DSB after the change */
#define TRIED_ASID		BIT(3)	/* of one address space */
#define TRIED_LEVEL		BIT(4)	/* with the level of another leaf */

struct cpu {
	u64 barrier;		/* when it last waited for stores: ISH */
	u64 local_barrier;	/* the same, NSH */
	int root;		/* index, or -1 */
	bool common;		/* CnP */
	struct issue *issued;	/* since its last DSB */
	u32 nr_issued, room;
};

/* An invalidation that was issued and not waited for. */
struct issue {
	u32 record;
	u32 generation;
	int root;		/* or -1: it is about the record */
	bool broadcast;
	u64 cpus;
};

struct model {
	struct geometry geometry;
	bool known;		/* the geometry */
	u64 mair;
	bool hardware_af;	/* TCR_EL1.HA */
	int bbm_level;
	u32 disabled;		/* rules, by bit */
	u64 now;
	u64 changes;		/* of entries */
	struct cpu cpus[MAX_CPUS];
	struct root roots[MAX_ROOTS];
	u32 nr_records;
};

extern struct model model;

/* model.c: what the model is told. */
void model_start(int bbm_level, u32 disabled);
void model_tcr(u64 tcr);
void model_mair(u64 mair);
void model_root(struct site site, u64 ttbr);
void model_off(struct site site);
void model_power_off(struct site site);
void model_store(struct site site, u64 pa, u64 size, bool atomic);
void model_tlbi(struct site site, u32 code, u64 operand);
void model_dsb(struct site site, u32 code);
void model_access(struct site site, u64 va, u64 size, bool write);

/* tables.c */
bool is_table_page(u64 pa);
struct table *table_at(u64 pa);
struct table *tables_in_page(u64 pa);
void mount_root(struct site site, int root);
void unmount_root(int root);
void table_changed(struct site site, struct table *table, u32 index, u64 old);
void drop_stale_mount(const struct record *record);
bool stale_table_has(const struct record *record, const struct record *leaf);
u64 cpus_of(u64 roots);
bool walk(int root, u64 va, u64 *desc, int *level);
u64 entry_va(const struct table *table, const struct mount *mount, u32 index);

/* tlb.c */
void record_add(struct site site, u64 va, int level, u64 desc, u64 roots,
		bool is_table, bool hazard);
struct record *record_first(u64 va, int level);
struct record *record_next(const struct record *record);
struct record *record_any(u32 *position);
void record_invalidate(struct site site, const struct tlbi *tlbi);
void complete(u32 cpu, bool inner);
void forget_tlb(u32 cpu);
bool access_has_records(u64 va, u64 size);
u64 granule(int level);

/* wx.c */
bool count_leaf(u64 desc, int level, int by);

/* rules.c */
void check_make(struct site site, u64 va, int level, u64 desc, u64 roots);
void check_common(struct site site, u64 va, int level, u64 desc, u64 roots);
void check_contiguous(struct site site, const struct table *table, u32 index,
		      const struct mount *mount);
void groups_invalidated(struct site site, const struct tlbi *tlbi);
void groups_completed(struct site site);
void check_stale_store(struct site site, const struct table *table,
		       u32 index, u64 old);
void check_access(struct site site, u64 va, bool write);
void check_switch(struct site site, int root);
void check_roots(struct site site, int a, int b, enum rule rule);
void check_invalidation(struct site site, const struct record *record,
			const struct tlbi *tlbi);
void check_write_execute(struct site site, u64 va, int level, u64 desc);
bool check_half_filled(struct site site, const struct table *child, u64 va,
		       u64 old);
bool same_translation(u64 old, u64 new, int level);
void report(enum rule rule, const char *words, struct site site, u64 address,
	    u64 old, u64 new, struct site writer);

#endif
