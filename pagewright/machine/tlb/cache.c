// SPDX-License-Identifier: GPL-2.0-only
/*
 * Places for translations: sets of a few, of which the least recently used
 * one makes room.  A TLB that is fully associative is one set.
 */
#include <stdlib.h>
#include <string.h>

#include "tlb.h"

/**
 * cache_init() - make an empty one
 * @cache: where
 * @entries: how many entries it has in all
 * @ways: how many of them are a set; divides @entries
 */
void cache_init(struct cache *cache, u32 entries, u32 ways)
{
	*cache = (struct cache){
		.sets = entries / ways,
		.ways = ways,
		.entries = calloc(entries, sizeof(struct entry)),
	};
}

static struct entry *set_of(struct cache *cache, u64 va, u32 shift)
{
	return &cache->entries[(va >> shift) % cache->sets * cache->ways];
}

/* Put an entry of a set first, and those that were before it after it. */
static struct entry *use(struct entry *set, u32 index)
{
	struct entry found;

	if (index) {
		found = set[index];
		memmove(set + 1, set, index * sizeof(*set));
		set[0] = found;
	}
	return set;
}

static bool is_of(const struct entry *entry, u64 va, u32 asid)
{
	return entry->valid && !((va ^ entry->va) >> entry->shift) &&
	       (entry->global || entry->asid == asid);
}

/* Find the entry of one size for an address, and make it the last one used. */
struct entry *cache_find(struct cache *cache, u64 va, u32 asid, bool is_table,
			 u32 shift)
{
	struct entry *set = set_of(cache, va, shift);
	u32 i;

	for (i = 0; i < cache->ways; i++)
		if (set[i].shift == shift && set[i].is_table == is_table &&
		    is_of(&set[i], va, asid))
			return use(set, i);
	return NULL;
}

/* The same for a leaf of any size. */
struct entry *cache_find_leaf(struct cache *cache, u64 va, u32 asid)
{
	struct entry *found;
	u64 sizes;
	u32 i;

	/* One set is looked through once, whatever the sizes. */
	if (cache->sets == 1) {
		for (i = 0; i < cache->ways; i++)
			if (is_of(&cache->entries[i], va, asid) &&
			    !cache->entries[i].is_table)
				return use(cache->entries, i);
		return NULL;
	}
	for (sizes = cache->leaves; sizes; sizes &= sizes - 1) {
		found = cache_find(cache, va, asid, false,
				   __builtin_ctzll(sizes));
		if (found)
			return found;
	}
	return NULL;
}

/* Insert what was not found. */
void cache_insert(struct cache *cache, const struct entry *entry)
{
	struct entry *set = set_of(cache, entry->va, entry->shift);
	u32 i;

	/* An invalid one makes room before any other does. */
	for (i = 0; i < cache->ways - 1; i++)
		if (!set[i].valid)
			break;
	set[i] = *entry;
	set[i].valid = true;
	use(set, i);
	if (entry->is_table)
		cache->tables |= BIT(entry->shift);
	else
		cache->leaves |= BIT(entry->shift);
	cache->pieces |= entry->shift < entry->leaf;
}

static bool is_invalidated(const struct entry *entry, const struct tlbi *tlbi,
			   u32 asid)
{
	/* A piece goes with its leaf, pages that share an entry together. */
	u32 size = entry->leaf > entry->shift ? entry->leaf : entry->shift;
	u64 start = entry->va >> size << size;

	switch (tlbi->what) {
	case TLBI_ALL:
		return true;
	case TLBI_ASID:
		return !entry->global && entry->asid == asid;
	case TLBI_VA:
		return (!entry->is_table || !tlbi->last_level) &&
		       tlbi_reaches(tlbi, start, BIT(size)) &&
		       (entry->global || tlbi->any_asid || entry->asid == asid);
	default:
		return false;
	}
}

static void invalidate(struct entry *entries, u32 number,
		       const struct tlbi *tlbi, u32 asid)
{
	u32 i;

	for (i = 0; i < number; i++)
		if (entries[i].valid && is_invalidated(&entries[i], tlbi, asid))
			entries[i].valid = false;
}

/**
 * cache_invalidate() - do what a TLBI asks for
 * @cache: of what
 * @tlbi: what it invalidates
 * @asid: the address space that it names
 * @page: the size of a page
 */
void cache_invalidate(struct cache *cache, const struct tlbi *tlbi, u32 asid,
		      u64 page)
{
	u64 sizes = cache->leaves | cache->tables;

	/* For one page it is known in which sets it may be. */
	if (tlbi->what == TLBI_VA && tlbi->end - tlbi->start <= page &&
	    cache->sets > 1 && !cache->pieces) {
		for (; sizes; sizes &= sizes - 1)
			invalidate(set_of(cache, tlbi->start,
					  __builtin_ctzll(sizes)),
				   cache->ways, tlbi, asid);
		return;
	}
	invalidate(cache->entries, cache->sets * cache->ways, tlbi, asid);
}
