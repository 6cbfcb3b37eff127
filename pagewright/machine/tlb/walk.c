// SPDX-License-Identifier: GPL-2.0-only
/*
 * A walk of the tables in the guest's memory.  It begins at the lowest table
 * that a cache knows, and each descriptor from there on is a load.
 */
#include "tlb.h"

static u64 load(u64 pa, bool *failed)
{
	u64 *memory = tlb_memory(pa, sizeof(u64));

	if (!memory)
		*failed = true;
	return memory ? *memory : 0;
}

static u64 attributes(const struct geometry *geometry, u64 desc)
{
	u64 address = (BIT(50) - 1) & ~(BIT(geometry->page_shift) - 1);

	return desc & ~address;
}

/*
 * Do the pages around one follow each other in memory too, so that all of them
 * are one entry?  They are in one line of the cache, so a walk has loaded them
 * all.
 */
static bool coalesce(const struct geometry *geometry, u64 pa, u64 desc,
		     u32 number)
{
	u64 page = BIT(geometry->page_shift), address, other;
	u32 index = pa / sizeof(u64) % number, i;
	bool failed = false;

	pa -= index * sizeof(u64);
	address = desc_address(geometry, desc, 3) - index * page;
	if (address & (number * page - 1))
		return false;
	for (i = 0; i < number; i++, pa += sizeof(u64), address += page) {
		other = load(pa, &failed);
		if (failed || desc_address(geometry, other, 3) != address ||
		    attributes(geometry, other) != attributes(geometry, desc))
			return false;
	}
	return true;
}

static u32 log2_of(u64 number)
{
	return 63 - __builtin_clzll(number);
}

static void describe(const struct geometry *geometry, u64 pa, u64 desc,
		     int level, u32 coalesced, struct leaf *leaf)
{
	leaf->shift = level_shift(geometry, level);
	leaf->global = !(desc & DESC_NOT_GLOBAL);
	if (desc & DESC_CONTIGUOUS)
		leaf->shift += log2_of(contiguous_entries(geometry, level));
	leaf->together = leaf->shift;
	if (level == 3 && !(desc & DESC_CONTIGUOUS) && coalesced > 1 &&
	    coalesce(geometry, pa, desc, coalesced))
		leaf->together += log2_of(coalesced);
}

static bool upper(u64 va)
{
	return va >> 55 & 1;
}

/**
 * walk_tables() - translate an address
 * @regime: the tables
 * @tables: the cache that has where lower tables are
 * @va: the address
 * @asid: the address space
 * @coalesced: how many pages may be one entry
 * @leaf: where to say what was found
 *
 * Return: how many descriptors were loaded, or -1 if there is no translation.
 */
int walk_tables(const struct regime *regime, struct cache *tables, u64 va,
		u32 asid, u32 coalesced, struct leaf *leaf)
{
	const struct geometry *geometry = &regime->geometry;
	int level, first = geometry->root_level, loads = 0;
	u64 pa = root_address(geometry, regime->ttbr), desc;
	bool failed = false;
	struct entry *known;

	for (level = 2; level >= first; level--) {
		known = cache_find(tables, va, asid, true,
				   level_shift(geometry, level));
		if (known) {
			pa = known->target;
			first = level + 1;
			break;
		}
	}
	for (level = first; level <= 3; level++) {
		u32 shift = level_shift(geometry, level);
		u32 index = va >> shift & (table_entries(geometry, level) - 1);

		pa += index * sizeof(u64);
		desc = load(pa, &failed);
		loads++;
		switch (desc_kind(desc, level)) {
		case KIND_LEAF:
			describe(geometry, pa, desc, level, coalesced, leaf);
			return loads;
		case KIND_TABLE:
			pa = desc_address(geometry, desc, level);
			cache_insert(tables, &(struct entry){
				.va = va >> shift << shift,
				.target = pa,
				.asid = asid,
				.shift = shift,
				.leaf = shift,
				.is_table = true,
				.global = upper(va),
			});
			break;
		default:
			return -1;
		}
	}
	return -1;
}
