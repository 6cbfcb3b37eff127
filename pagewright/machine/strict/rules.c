// SPDX-License-Identifier: GPL-2.0-only
/*
 * What is wrong, judged by what TLBs may hold and what is in the tables.
 */
#include <string.h>

#include "model.h"

void report(enum rule rule, const char *words, struct site site, u64 address,
	    u64 old, u64 new, struct site writer)
{
	struct report it = {
		.rule = rule,
		.words = words,
		.site = site,
		.address = address,
		.old = old,
		.new = new,
		.writer = writer,
	};

	if (!(model.disabled & BIT(rule)))
		model_report(&it);
}

static const struct site nobody;

/* A leaf, wherever it comes from. */
struct leaf {
	u64 va;
	u64 desc;
	int level;
};

static u64 leaf_pa(const struct leaf *leaf)
{
	return desc_address(&model.geometry, leaf->desc, leaf->level);
}

static bool same_size(const struct leaf *a, const struct leaf *b)
{
	return a->level == b->level &&
	       !((a->desc ^ b->desc) & DESC_CONTIGUOUS);
}

/* Does memory at two physical addresses have the same contents? */
static bool same_contents(u64 pa, u64 other, u64 size)
{
	void *one = model_memory(pa, size), *two = model_memory(other, size);

	return one && two && !memcmp(one, two, size);
}

static void common_part(const struct leaf *a, const struct leaf *b, u64 *va,
			u64 *size)
{
	int level = a->level > b->level ? a->level : b->level;

	*va = a->va > b->va ? a->va : b->va;
	*size = granule(level);
}

/* Do two leaves translate what both map to the same address? */
static bool same_address(const struct leaf *a, const struct leaf *b)
{
	u64 va, size;

	common_part(a, b, &va, &size);
	return leaf_pa(a) + (va - a->va) == leaf_pa(b) + (va - b->va);
}

/* Do two leaves of one entry map the same memory? */
bool same_translation(u64 old, u64 new, int level)
{
	return desc_address(&model.geometry, old, level) ==
	       desc_address(&model.geometry, new, level);
}

static bool both_read_only_and_alike(const struct leaf *a,
				     const struct leaf *b)
{
	u64 va, size;

	common_part(a, b, &va, &size);
	return !desc_writable(a->desc) && !desc_writable(b->desc) &&
	       same_contents(leaf_pa(a) + (va - a->va),
			     leaf_pa(b) + (va - b->va), size);
}

/*
 * May TLBs hold two translations of an address at the same time, the older
 * one first?
 *
 * Return: NULL if they may, or what is wrong.
 */
static const char *conflict(const struct leaf *old, const struct leaf *new)
{
	const struct geometry *geometry = &model.geometry;
	bool sizes = !same_size(old, new);

	if (desc_memory(geometry, old->desc, model.mair) !=
	    desc_memory(geometry, new->desc, model.mair))
		return "the memory type or shareability changes";
	if ((old->desc & ~new->desc) & DESC_NOT_GLOBAL)
		return "the new entry is global, the old one is not";
	if (!same_address(old, new)) {
		if (sizes)
			return "the output address and the size change";
		if (!both_read_only_and_alike(old, new))
			return "the output address changes, and an entry is "
			       "writable or the contents differ";
		return NULL;
	}
	if (sizes && model.bbm_level < 2)
		return "the size changes, and CPUs lack BBM level 2";
	return NULL;
}

static const char *attempt_of(const struct record *record)
{
	if (record->tried & TRIED_TOO_EARLY)
		return "the old entry was invalidated without a DSB between "
		       "its change and the TLBI";
	if (record->tried & TRIED_LOCAL)
		return "the old entry was invalidated in one CPU's TLB only, "
		       "and others may hold it";
	if (record->tried & TRIED_LEVEL)
		return "the old entry was invalidated with the level of "
		       "another one";
	if (record->tried & TRIED_ASID)
		return "the old entry was invalidated for one address space "
		       "only";
	if (record->tried & TRIED_LAST_LEVEL)
		return "the last level alone was invalidated, and walk caches "
		       "may still lead to the table of the old entry";
	return NULL;
}

static void judge(struct site site, const struct record *record,
		  const struct leaf *new, u64 cpus)
{
	struct leaf old = {
		.va = record->va,
		.desc = record->desc,
		.level = record->level,
	};
	enum rule rule = RULE_MAKE_BEFORE_INVALIDATION;
	const char *words;

	if (record->is_table || !(record->cpus & cpus))
		return;
	words = conflict(&old, new);
	if (!words)
		return;
	if (record->when == model.now) {
		rule = RULE_BREAK_BEFORE_MAKE;
	} else if (attempt_of(record)) {
		rule = RULE_SCOPE;
		words = attempt_of(record);
	}
	report(rule, words, site, new->va, record->desc, new->desc,
	       record->writer);
}

#define LOOK_AT_ALL	1024U

/**
 * check_make() - a leaf appears in the tables
 * @site: who wrote it
 * @va: what it maps
 * @level: of its table
 * @desc: its descriptor
 * @roots: those from which it can be reached
 *
 * It is compared with all that TLBs may still hold of the same addresses.
 */
void check_make(struct site site, u64 va, int level, u64 desc, u64 roots)
{
	struct leaf new = { .va = va, .desc = desc, .level = level };
	struct record *record;
	u32 position = 0;
	u64 cpus, at;
	int i;

	if (!model.nr_records)
		return;
	cpus = cpus_of(roots);
	for (i = model.geometry.root_level; i <= level; i++)
		for (record = record_first(va & ~(granule(i) - 1), i); record;
		     record = record_next(record))
			judge(site, record, &new, cpus);
	if (level == 3)
		return;
	if (level == 2 && model.nr_records > LOOK_AT_ALL) {
		for (at = va; at - va < granule(2); at += granule(3))
			for (record = record_first(at, 3); record;
			     record = record_next(record))
				judge(site, record, &new, cpus);
		return;
	}
	while ((record = record_any(&position)))
		if (record->level > level && record->va >= va &&
		    record->va - va < granule(level))
			judge(site, record, &new, cpus);
}

/* Contiguous groups */

/* A group that was written, until its writer has invalidated it. */
struct group {
	u64 table;
	u32 first;
	u64 va;
	struct site writer;
	bool invalidated;
};

#define MAX_GROUPS	64U

static struct group groups[MAX_GROUPS];
static u32 nr_groups;
static u32 replaced;		/* how often one made room for another */

static void group_written(struct site site, u64 table, u32 first, u64 va)
{
	u32 i;

	for (i = 0; i < nr_groups; i++)
		if (groups[i].table == table && groups[i].first == first)
			break;
	/* Many are never invalidated, having been made where nothing was. */
	if (i == MAX_GROUPS)
		i = replaced++ % MAX_GROUPS;
	else if (i == nr_groups)
		nr_groups++;
	groups[i] = (struct group){
		.table = table,
		.first = first,
		.va = va,
		.writer = site,
	};
}

/**
 * check_contiguous() - a leaf was written or went: look at its group
 * @site: who wrote it
 * @table: its table
 * @index: which entry
 * @mount: where the table is mounted
 *
 * A TLB may hold a group as one entry, made of any member of it.
 */
void check_contiguous(struct site site, const struct table *table, u32 index,
		      const struct mount *mount)
{
	const struct geometry *geometry = &model.geometry;
	u32 count = contiguous_entries(geometry, table->level), i;
	u32 shift = level_shift(geometry, table->level);
	u32 first = index / count * count;
	bool gone = desc_kind(table->shadow[index], table->level) != KIND_LEAF;
	u64 new = gone ? 0 : table->shadow[index];
	u64 va = entry_va(table, mount, index);
	struct leaf leaf = { .va = va, .desc = new, .level = table->level };
	bool mixed = false;

	if (count > table->entries || table->level < 1 ||
	    !cpus_of(mount->roots))
		return;
	if ((new & DESC_CONTIGUOUS) &&
	    (leaf_pa(&leaf) >> shift) % count != index - first) {
		report(RULE_CONTIGUOUS, "the entry has the contiguous bit, and "
		       "its index in the group is not that of its output "
		       "address", site, va, 0, new, nobody);
		return;
	}
	for (i = first; i < first + count; i++) {
		u64 other = table->shadow[i];
		struct leaf neighbour = {
			.va = entry_va(table, mount, i),
			.desc = other,
			.level = table->level,
		};
		bool both = new & other & DESC_CONTIGUOUS;

		if (i == index || desc_kind(other, table->level) != KIND_LEAF ||
		    !((new | other) & DESC_CONTIGUOUS))
			continue;
		mixed = true;
		/* It may be the first of a group that is unmapped as a whole. */
		if (gone)
			break;
		if (leaf_pa(&neighbour) - neighbour.va !=
		    leaf_pa(&leaf) - leaf.va)
			report(RULE_CONTIGUOUS, "two entries of a contiguous "
			       "group map different blocks of memory", site, va,
			       other, new, nobody);
		else if (!both && model.bbm_level < 2)
			report(RULE_CONTIGUOUS, "an entry of the group has the "
			       "contiguous bit and another one has not, and "
			       "CPUs lack BBM level 2", site, va, other, new,
			       nobody);
		else
			continue;
		return;
	}
	if (mixed)
		group_written(site, table->pa, first,
			      entry_va(table, mount, first));
}

/* A TLBI: the groups that its CPU has written should be consistent now. */
void groups_invalidated(struct site site, const struct tlbi *tlbi)
{
	u32 i;

	for (i = 0; i < nr_groups; i++) {
		struct group *group = &groups[i];
		struct table *table = table_at(group->table);
		u64 size;

		if (!table || group->writer.cpu != site.cpu)
			continue;
		size = granule(table->level) *
		       contiguous_entries(&model.geometry, table->level);
		if (tlbi->what == TLBI_ALL ||
		    (tlbi->what == TLBI_VA &&
		     tlbi_reaches(tlbi, group->va, size)))
			group->invalidated = true;
	}
}

/* All valid, and alike but for the address; or without the contiguous bit. */
static void check_group(const struct group *group)
{
	struct table *table = table_at(group->table);
	u64 ignored = DESC_AF | DESC_DBM | DESC_SOFTWARE;
	u32 i, count, any = 0;
	u64 first, step;

	if (!table)
		return;
	count = contiguous_entries(&model.geometry, table->level);
	for (i = 0; i < count; i++)
		if (table->shadow[group->first + i] & DESC_CONTIGUOUS)
			any |= desc_kind(table->shadow[group->first + i],
					 table->level) == KIND_LEAF;
	if (!any)
		return;
	first = table->shadow[group->first] & ~ignored;
	step = granule(table->level);
	for (i = 1; i < count; i++) {
		u64 desc = table->shadow[group->first + i] & ~ignored;

		if (desc == first + i * step)
			continue;
		report(RULE_CONTIGUOUS, "a contiguous group is inconsistent "
		       "when its invalidation has completed", group->writer,
		       group->va + i * step, first, desc, nobody);
		return;
	}
}

/* A DSB has waited for the TLBIs of a CPU. */
void groups_completed(struct site site)
{
	u32 i = 0;

	while (i < nr_groups) {
		if (groups[i].writer.cpu == site.cpu && groups[i].invalidated) {
			check_group(&groups[i]);
			groups[i] = groups[--nr_groups];
		} else {
			i++;
		}
	}
}

/* A leaf appears: is memory writable and executable now? */
void check_write_execute(struct site site, u64 va, int level, u64 desc)
{
	if (count_leaf(desc, level, 1))
		report(RULE_WRITE_EXECUTE, "memory may be written through one "
		       "translation and executed through another", site, va, 0,
		       desc, nobody);
}

/* Tables */

/* A table was written that only walk caches lead to. */
void check_stale_store(struct site site, const struct table *table,
		       u32 index, u64 old)
{
	u32 position = 0;
	struct record *record;
	struct site writer = nobody;

	while ((record = record_any(&position)))
		if (record->is_table && record->level == table->level - 1 &&
		    desc_address(&model.geometry, record->desc,
				 record->level) == table->pa)
			writer = record->writer;
	report(RULE_TABLES, "a page is written that was a table, and a walk "
	       "cache may still lead to it", site,
	       entry_va(table, &table->mounts[0], index), old,
	       table->shadow[index], writer);
}

/*
 * A live block becomes a table: the table, and those that it leads to, have to
 * map all that the block did.  Return whether they do.
 */
bool check_half_filled(struct site site, const struct table *child, u64 va,
		       u64 old)
{
	const struct table *below;
	u32 i;

	for (i = 0; i < child->entries; i++, va += granule(child->level)) {
		u64 desc = child->shadow[i];

		switch (desc_kind(desc, child->level)) {
		case KIND_TABLE:
			below = table_at(desc_address(&model.geometry, desc,
						      child->level));
			if (below && below->level == child->level + 1 &&
			    !check_half_filled(site, below, va, old))
				return false;
			break;
		case KIND_INVALID:
			report(RULE_TABLES, "a live block is replaced by a "
			       "table that does not map all of it", site, va,
			       old, desc, nobody);
			return false;
		default:
			break;
		}
	}
	return true;
}

/* Accesses */

/**
 * check_access() - a CPU uses an address
 * @site: which CPU, and where
 * @va: the address
 * @write: whether it writes
 *
 * Its TLB may have held the old translation, and used that.
 */
void check_access(struct site site, u64 va, bool write)
{
	struct leaf now = { 0 };
	struct record *record;
	bool mapped, looked = false;
	int i;

	for (i = model.geometry.root_level; i <= 3; i++) {
		u64 first = va & ~(granule(i) - 1);

		for (record = record_first(first, i); record;
		     record = record_next(record)) {
			struct leaf old = {
				.va = first,
				.desc = record->desc,
				.level = i,
			};

			if (record->is_table ||
			    !(record->cpus & BIT(site.cpu)))
				continue;
			if (!looked)
				mapped = walk(model.cpus[site.cpu].root, va,
					      &now.desc, &now.level);
			looked = true;
			now.va = mapped ? va & ~(granule(now.level) - 1) : 0;
			if (!mapped)
				report(RULE_STALE_USE, "the address is used "
				       "after it was unmapped, and before the "
				       "invalidation has completed", site, va,
				       record->desc, now.desc, record->writer);
			else if (!same_address(&old, &now) &&
				 (write ||
				  !both_read_only_and_alike(&old, &now)))
				report(RULE_STALE_USE, "the address is used "
				       "while TLBs may hold two translations "
				       "of it, to different memory", site, va,
				       record->desc, now.desc, record->writer);
		}
	}
}

/* What TLBs may hold of an address in another size than a record's. */
static bool other_size(const struct record *record, const struct leaf *old,
		       u64 va, struct leaf *other)
{
	const struct record *it;
	int level;

	/* The tables of its first root are looked at, for all of its roots. */
	if (record->roots && walk(__builtin_ctzll(record->roots), va,
				  &other->desc, &other->level) &&
	    !same_size(old, other))
		return true;
	/* It may have left the tables, too. */
	for (level = model.geometry.root_level; level <= 3; level++) {
		it = record_first(va & ~(granule(level) - 1), level);
		for (; it; it = record_next(it)) {
			other->desc = it->desc;
			other->level = level;
			if (!it->is_table && (it->cpus & record->cpus) &&
			    !same_size(old, other))
				return true;
		}
	}
	return false;
}

/*
 * An invalidation by address while TLBs may hold leaves of several sizes for
 * it: only the invalidation of all is sure to remove each of them.
 */
void check_invalidation(struct site site, const struct record *record,
			const struct tlbi *tlbi)
{
	u64 va = record->va > tlbi->start ? record->va : tlbi->start;
	struct leaf old = {
		.va = record->va,
		.desc = record->desc,
		.level = record->level,
	};
	struct leaf other;

	if (!record->is_table && other_size(record, &old, va, &other))
		report(RULE_SIZES, "invalidated by address, while TLBs may "
		       "hold leaves of two sizes for it", site, va,
		       record->desc, other.desc, record->writer);
}

/* Roots */

static const char not_common[] = "two CPUs with CnP have different "
				 "translations of an address";

/*
 * What is common to CPUs has to be alike, but for what hardware sets by itself
 * or does not look at.  As leaves of two sizes may be in one TLB where there is
 * level 2 of FEAT_BBM, they may be in common ones.
 */
static const char *common_conflict(const struct leaf *one,
				   const struct leaf *other)
{
	u64 ignored = DESC_AF | DESC_SOFTWARE;

	if (same_size(one, other))
		return (one->desc ^ other->desc) & ~ignored ? not_common : NULL;
	return conflict(one, other) ? not_common : NULL;
}

/**
 * check_common() - a leaf appears in tables that CPUs may have in common
 * @site: who wrote it
 * @va: what it maps
 * @level: of its table
 * @desc: its descriptor
 * @roots: those from which it can be reached
 *
 * CPUs with CnP that have another root have to translate its address as it
 * does, or not at all.
 */
void check_common(struct site site, u64 va, int level, u64 desc, u64 roots)
{
	struct leaf new = { .va = va, .desc = desc, .level = level }, other;
	u64 common = 0;
	u32 i;

	for (i = 0; i < MAX_CPUS; i++)
		if (model.cpus[i].common && model.cpus[i].root >= 0)
			common |= BIT(model.cpus[i].root);
	if (!(common & roots))
		return;
	for (common &= ~roots; common; common &= common - 1) {
		if (!walk(__builtin_ctzll(common), va, &other.desc,
			  &other.level))
			continue;
		other.va = va & ~(granule(other.level) - 1);
		if (common_conflict(&other, &new)) {
			report(RULE_SHARED_TLB, not_common, site, va,
			       other.desc, desc, nobody);
			return;
		}
	}
}

static void compare(struct site site, u64 a, u64 b, int level, u64 va,
		    enum rule rule)
{
	const struct geometry *geometry = &model.geometry;
	u32 entries = table_entries(geometry, level), i;
	u64 *one = model_memory(a, entries * 8ULL);
	u64 *two = model_memory(b, entries * 8ULL);

	if (a == b || !one || !two)
		return;
	for (i = 0; i < entries; i++, va += granule(level)) {
		enum kind kind = desc_kind(one[i], level);
		struct leaf left = {
			.va = va,
			.desc = one[i],
			.level = level,
		};
		struct leaf right = {
			.va = va,
			.desc = two[i],
			.level = level,
		};
		const char *words;

		if (one[i] == two[i] || kind == KIND_INVALID ||
		    desc_kind(two[i], level) == KIND_INVALID)
			continue;
		if (kind == KIND_TABLE &&
		    desc_kind(two[i], level) == KIND_TABLE) {
			compare(site, desc_address(geometry, one[i], level),
				desc_address(geometry, two[i], level),
				level + 1, va, rule);
			continue;
		}
		/* A block here and a table there is not looked at further. */
		if (kind != KIND_LEAF || desc_kind(two[i], level) != KIND_LEAF)
			continue;
		words = rule == RULE_SHARED_TLB ?
			common_conflict(&left, &right) :
			conflict(&left, &right);
		if (words)
			report(rule, words, site, va, one[i], two[i], nobody);
	}
}

/* Two roots whose translations may be in one TLB at a time. */
void check_roots(struct site site, int a, int b, enum rule rule)
{
	compare(site, model.roots[a].pa, model.roots[b].pa,
		model.geometry.root_level, -BIT(model.geometry.va_bits), rule);
}

/**
 * check_switch() - a CPU is about to load a root
 * @site: which CPU, and where
 * @root: the root
 *
 * What its TLB may hold of others is compared with the translations of this
 * one.  A root that no CPU has loaded is looked at when it is mounted.
 */
void check_switch(struct site site, int root)
{
	const struct root *loaded = &model.roots[root];
	struct record *record;
	struct leaf new;
	u32 position = 0;

	if (!(loaded->loaded | loaded->stale))
		return;
	while ((record = record_any(&position))) {
		if ((record->roots & BIT(root)) ||
		    !walk(root, record->va, &new.desc, &new.level))
			continue;
		new.va = record->va & ~(granule(new.level) - 1);
		judge(site, record, &new, BIT(site.cpu));
	}
}
