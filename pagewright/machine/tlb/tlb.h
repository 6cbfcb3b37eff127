/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A model of what TLBs cost: which accesses miss, and how many descriptors are
 * loaded for them, in TLBs of several geometries at once.
 *
 * It is told what CPUs do (tlb_*()), looks at the tables in the guest's
 * memory, and counts.  It knows nothing of QEMU, so tests can tell it what to
 * access.
 *
 * Parts: cache.c is a set of places for translations, walk.c reads tables, and
 * simulate.c has CPUs with such sets, and counts.
 */
#ifndef TLB_TLB_H
#define TLB_TLB_H

#include "../strict/decode.h"

#define MAX_CPUS	64
#define MAX_GEOMETRIES	16
#define MAX_NAME	32
#define MAX_COALESCED	8
#define MAX_RANGES	4
#define MAX_RANGE_NAME	16

/* Who accesses what. */
enum class {
	LINEAR,		/* the kernel, data in the linear map */
	STRUCT_PAGES,	/* the kernel, struct pages: the vmemmap */
	OTHER,		/* the kernel, data at its other addresses */
	FOR_USER,	/* the kernel, data of programs at their addresses */
	USER,		/* programs, data */
	KERNEL_CODE,
	USER_CODE,
	FIRST_RANGE,	/* the kernel, data in a range that has a name */
	MAX_CLASSES = FIRST_RANGE + MAX_RANGES
};

enum event {
	L1_MISS,
	L2_MISS,	/* so the tables are walked */
	LOAD,		/* of a descriptor */
	NR_EVENTS
};

/*
 * The TLBs of a CPU.  Sizes that a TLB can hold are bits: bit n is 1 << n
 * bytes.  It holds a leaf of another size in pieces, of the next smaller size
 * that it can hold.
 */
struct tlb_geometry {
	char name[MAX_NAME];
	u32 l1_data, l1_code;	/* entries, fully associative */
	u64 l1_sizes;
	u32 l2, l2_ways;
	u64 l2_sizes;
	u32 walk;		/* entries for tables; 0 if they are in L2 */
	u32 coalesced;		/* pages that may share an entry of L2, or 1 */
};

/* A translation, or where the next table is. */
struct entry {
	u64 va;			/* of its first byte */
	u64 target;		/* the next table's address */
	u32 asid;
	unsigned char shift;	/* it maps 1 << shift bytes, */
	unsigned char leaf;	/* of a leaf of 1 << leaf bytes */
	bool is_table;
	bool global;
	bool valid;
};

/*
 * Sets of places.  In a set the entry that was used last is the first, and the
 * last one makes room.  An entry is in the set that the lowest bits of its
 * number among those of its size name.
 */
struct cache {
	u32 sets, ways;
	struct entry *entries;
	u64 leaves, tables;	/* sizes that were ever inserted */
	bool pieces;		/* has held parts of leaves */
};

void cache_init(struct cache *cache, u32 entries, u32 ways);
struct entry *cache_find(struct cache *cache, u64 va, u32 asid, bool is_table,
			 u32 shift);
struct entry *cache_find_leaf(struct cache *cache, u64 va, u32 asid);
void cache_insert(struct cache *cache, const struct entry *entry);
void cache_invalidate(struct cache *cache, const struct tlbi *tlbi, u32 asid,
		      u64 page);

/* How the tables of one half of the addresses are walked. */
struct regime {
	bool known;
	struct geometry geometry;
	u64 ttbr;
};

/* What a walk has found. */
struct leaf {
	u32 shift;		/* of the leaf; a contiguous group is one */
	u32 together;		/* with its neighbours, if they coalesce */
	bool global;
};

/* The caller's: guest memory at a physical address; NULL if there is none. */
void *tlb_memory(u64 pa, u64 size);
int walk_tables(const struct regime *regime, struct cache *tables, u64 va,
		u32 asid, u32 coalesced, struct leaf *leaf);

struct counts {
	u64 instructions[2];	/* of the kernel, of programs */
	u64 accesses[MAX_CLASSES];
	u64 unknown;		/* not translated: the MMU is off */
	u64 events[MAX_GEOMETRIES][MAX_CLASSES][NR_EVENTS];
};

extern const char * const event_names[NR_EVENTS];

/* simulate.c */
bool tlb_geometry(const char *line);
u32 tlb_geometries(void);
const struct tlb_geometry *tlb_geometry_of(u32 index);
bool tlb_range(const char *line);
u32 tlb_classes(void);
const char *tlb_class_name(u32 class);
const struct counts *tlb_counts(u32 cpu);
void tlb_tcr(u32 cpu, u64 tcr);
void tlb_ttbr0(u32 cpu, u64 ttbr);
void tlb_ttbr1(u32 cpu, u64 ttbr);
void tlb_off(u32 cpu);
void tlb_tlbi(u32 cpu, u32 code, u64 operand);
void tlb_data(u32 cpu, u64 va, bool kernel);
void tlb_code(u32 cpu, u64 va, bool kernel, u32 instructions);

#endif
