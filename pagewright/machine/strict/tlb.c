// SPDX-License-Identifier: GPL-2.0-only
/*
 * What TLBs may hold that is no longer in the tables.
 *
 * While a valid entry is in a table that a CPU can walk, any TLB may hold it.
 * When it changes, the old descriptor becomes a record.  The record goes when
 * all CPUs that may hold it have been made to drop it: the change is complete
 * (DSB), a TLBI of sufficient scope is issued, and the CPU that issued it has
 * waited for its completion (DSB).
 */
#include <stdlib.h>

#include "model.h"

#define NR_CHAINS	65536U
#define NR_FILTER	65536U
#define NONE		UINT32_MAX

static struct record *records;
static u32 nr_all, first_free = NONE;
/* The indices of those in use, in any order. */
static u32 *used;
static u32 chains[NR_CHAINS];
static bool chains_ready;
/*
 * How many records there are whose use would be wrong, by address and roughly:
 * of small leaves by page, of larger ones by 2 MiB.  Asked before each access.
 */
static unsigned short small[NR_FILTER], large[NR_FILTER];
static u32 nr_large;

#define SMALL_SHIFT	12
#define LARGE_SHIFT	21

static u32 chain_of(u64 va, int level)
{
	u64 key = (va >> model.geometry.page_shift) * 5 + (level + 1);

	return key * 0x9e3779b97f4a7c15ULL >> 48;
}

/* How many bytes an entry of this level maps. */
u64 granule(int level)
{
	return BIT(level_shift(&model.geometry, level));
}

/* A leaf counts for each slot that it covers. */
static void count(const struct record *record, int by)
{
	u64 size = granule(record->level), slots, i;
	bool is_small = !(size >> LARGE_SHIFT);
	u32 shift = is_small ? SMALL_SHIFT : LARGE_SHIFT;
	unsigned short *filter = is_small ? small : large;

	if (!record->hazard)
		return;
	slots = size >> shift;
	for (i = 0; i < slots && i < NR_FILTER; i++)
		filter[((record->va >> shift) + i) % NR_FILTER] += by;
	if (!is_small)
		nr_large += by;
}

static bool address_has_records(u64 va)
{
	return small[(va >> SMALL_SHIFT) % NR_FILTER] ||
	       (nr_large && large[(va >> LARGE_SHIFT) % NR_FILTER]);
}

/* An access may reach into the next page. May be asked without a lock. */
bool access_has_records(u64 va, u64 size)
{
	return address_has_records(va) || address_has_records(va + size - 1);
}

static u32 take(void)
{
	u32 i;

	if (!chains_ready) {
		for (i = 0; i < NR_CHAINS; i++)
			chains[i] = NONE;
		chains_ready = true;
	}
	if (first_free == NONE) {
		u32 more = nr_all ? nr_all : 1024;

		records = realloc(records, (nr_all + more) * sizeof(*records));
		used = realloc(used, (nr_all + more) * sizeof(*used));
		for (i = nr_all; i < nr_all + more; i++)
			records[i] = (struct record){ .next = i + 1 };
		records[nr_all + more - 1].next = NONE;
		first_free = nr_all;
		nr_all += more;
	}
	i = first_free;
	first_free = records[i].next;
	return i;
}

static void kill_record(u32 index)
{
	struct record *record = &records[index];
	u32 *link = &chains[chain_of(record->va, record->level)];

	while (*link != index)
		link = &records[*link].next;
	*link = record->next;
	record->in_use = false;
	record->generation++;
	record->next = first_free;
	first_free = index;
	model.nr_records--;
	used[record->position] = used[model.nr_records];
	records[used[record->position]].position = record->position;
	count(record, -1);
	if (record->is_table)
		drop_stale_mount(record);
	else
		count_leaf(record->desc, record->level, -1);
}

struct record *record_first(u64 va, int level)
{
	u32 index = model.nr_records ? chains[chain_of(va, level)] : NONE;

	for (; index != NONE; index = records[index].next)
		if (records[index].va == va && records[index].level == level)
			return &records[index];
	return NULL;
}

struct record *record_next(const struct record *record)
{
	u32 index = record->next;

	for (; index != NONE; index = records[index].next)
		if (records[index].va == record->va &&
		    records[index].level == record->level)
			return &records[index];
	return NULL;
}

/* One after the other: start with a position of 0, end with NULL. */
struct record *record_any(u32 *position)
{
	return *position < model.nr_records ? &records[used[(*position)++]] :
					      NULL;
}

/**
 * record_add() - a descriptor goes that TLBs may hold
 * @site: who changed it
 * @va: the first address that it is about
 * @level: of the table that it was in
 * @desc: the descriptor
 * @roots: the roots from which it could be reached
 * @is_table: whether it led to a table
 * @hazard: whether the address is now not mapped, or to something else: that a
 *	    TLB goes on using the descriptor would not be right
 *
 * An entry without access flag is in no TLB.
 */
void record_add(struct site site, u64 va, int level, u64 desc, u64 roots,
		bool is_table, bool hazard)
{
	u64 cpus = cpus_of(roots);
	struct record *record;
	u32 index;

	if (!cpus || (!is_table && !(desc & DESC_AF)))
		return;

	for (record = record_first(va, level); record;
	     record = record_next(record))
		if (record->desc == desc)
			break;
	if (record) {
		/* Invalidations that are under way came before this change. */
		record->generation++;
		record->cpus |= cpus;
		record->roots |= roots;
		count(record, -1);
		/* Under another root the change may have been a harmless one. */
		record->hazard |= hazard;
		count(record, 1);
	} else {
		index = take();
		record = &records[index];
		*record = (struct record){
			.va = va,
			.desc = desc,
			.cpus = cpus,
			.roots = roots,
			.level = level,
			.is_table = is_table,
			.hazard = hazard,
			.in_use = true,
			.generation = record->generation,
			.next = chains[chain_of(va, level)],
		};
		chains[chain_of(va, level)] = index;
		record->position = model.nr_records;
		used[model.nr_records++] = index;
		count(record, 1);
		if (!is_table)
			count_leaf(desc, level, 1);
	}
	record->when = model.now;
	record->writer = site;
	record->tried = 0;
}

static void issue(u32 cpu, u32 record, int root, u64 cpus, bool broadcast)
{
	struct cpu *from = &model.cpus[cpu];

	if (from->nr_issued == from->room) {
		from->room = from->room ? 2 * from->room : 64;
		from->issued = realloc(from->issued, from->room *
				       sizeof(*from->issued));
	}
	from->issued[from->nr_issued++] = (struct issue){
		.record = record,
		.generation = root < 0 ? records[record].generation : 0,
		.root = root,
		.broadcast = broadcast,
		.cpus = cpus,
	};
}

/*
 * One after the other: what walk caches may hold of the table that a leaf is
 * in still, though nothing else leads there.  Start with NULL.
 */
static struct record *next_parent(const struct record *leaf,
				  struct record *parent)
{
	int level = leaf->level - 1;

	parent = parent ? record_next(parent) :
		 record_first(leaf->va & ~(granule(level) - 1), level);
	for (; parent; parent = record_next(parent))
		if (parent->is_table && stale_table_has(parent, leaf))
			return parent;
	return NULL;
}

/*
 * Does an invalidation suffice for a record?  If not, remember why.
 *
 * A leaf in a table that a walk cache leads to can be walked again as soon as
 * it is invalidated.  So what leads to the table has to go, too.
 */
static bool suffices(struct record *record, const struct cpu *cpu,
		     const struct tlbi *tlbi)
{
	struct record *parent = NULL;
	u64 barrier = cpu->barrier;

	if (!tlbi->broadcast && cpu->local_barrier > barrier)
		barrier = cpu->local_barrier;

	if (tlbi->what == TLBI_ASID)
		return false;
	if (tlbi->what == TLBI_VA) {
		if (tlbi->last_level && record->is_table) {
			record->tried |= TRIED_LAST_LEVEL;
			return false;
		}
		/* What leads to a table is never global, even if leaves are. */
		if (!tlbi->any_asid &&
		    (record->is_table || (record->desc & DESC_NOT_GLOBAL))) {
			record->tried |= TRIED_ASID;
			return false;
		}
		/* It is the level of leaves: those of a table are below it. */
		if (tlbi->other_size ||
		    (tlbi->level &&
		     (record->is_table ? tlbi->level <= record->level :
					 tlbi->level != record->level))) {
			record->tried |= TRIED_LEVEL;
			return false;
		}
		while (!record->is_table &&
		       (parent = next_parent(record, parent))) {
			if (suffices(parent, cpu, tlbi))
				continue;
			record->tried |= parent->tried;
			return false;
		}
	}
	if (record->when > barrier) {
		record->tried |= TRIED_TOO_EARLY;
		return false;
	}
	record->tried &= ~TRIED_TOO_EARLY;
	return true;
}

static void invalidate(struct site site, struct record *record,
		       const struct tlbi *tlbi)
{
	u64 mine = BIT(site.cpu);

	if (!suffices(record, &model.cpus[site.cpu], tlbi))
		return;
	if (tlbi->what == TLBI_VA)
		check_invalidation(site, record, tlbi);
	if (!tlbi->broadcast && (record->cpus & ~mine))
		record->tried |= TRIED_LOCAL;
	issue(site.cpu, record - records, -1, tlbi->broadcast ? ~0ULL : mine,
	      tlbi->broadcast);
}

/* A TLBI is executed. */
void record_invalidate(struct site site, const struct tlbi *tlbi)
{
	u64 page = BIT(model.geometry.page_shift);
	u64 pages = (tlbi->end - tlbi->start) / page, va;
	struct record *record;
	u32 position = 0;
	int i;

	if (tlbi->what == TLBI_OTHER || tlbi->what == TLBI_ASID)
		return;
	if (tlbi->what == TLBI_ALL) {
		u64 mask = tlbi->broadcast ? ~0ULL : BIT(site.cpu);

		while ((record = record_any(&position)))
			invalidate(site, record, tlbi);
		for (i = 0; i < MAX_ROOTS; i++)
			if (model.roots[i].stale & mask)
				issue(site.cpu, 0, i,
				      model.roots[i].stale & mask,
				      tlbi->broadcast);
		return;
	}
	if (!model.nr_records)
		return;
	if (pages * 5 > model.nr_records) {
		while ((record = record_any(&position)))
			if (tlbi_reaches(tlbi, record->va,
					 granule(record->level)))
				invalidate(site, record, tlbi);
		return;
	}
	/* Each record once: at the first page of it that is in the range. */
	for (va = tlbi->start; va != tlbi->end; va += page) {
		for (i = model.geometry.root_level; i <= 3; i++) {
			u64 first = va & ~(granule(i) - 1);

			if (first != va && va != tlbi->start)
				continue;
			for (record = record_first(first, i); record;
			     record = record_next(record))
				invalidate(site, record, tlbi);
		}
	}
}

/* TLBs of these CPUs hold nothing more of a root. */
static void drop_root(int number, u64 cpus)
{
	struct root *root = &model.roots[number];

	root->stale &= ~cpus;
	if (root->stale || root->loaded)
		return;
	if (root->pa)
		unmount_root(number);
	root->pa = 0;
}

/* TLBs of these CPUs no longer hold a descriptor.  Return whether none does. */
static bool drop_record(u32 index, u64 cpus)
{
	struct record *record = &records[index];

	record->cpus &= ~cpus;
	if (record->cpus)
		return false;
	kill_record(index);
	return true;
}

/* A CPU has waited for its invalidations: those of others' TLBs if @inner. */
void complete(u32 cpu, bool inner)
{
	struct cpu *from = &model.cpus[cpu];
	u32 i, kept = 0;

	for (i = 0; i < from->nr_issued; i++) {
		struct issue done = from->issued[i];
		struct record *record = &records[done.record];

		if (done.broadcast && !inner) {
			from->issued[kept++] = done;
			continue;
		}
		if (done.root >= 0) {
			drop_root(done.root, done.cpus);
			continue;
		}
		if (!record->in_use || record->generation != done.generation)
			continue;
		drop_record(done.record, done.cpus);
	}
	from->nr_issued = kept;
}

/* A CPU has lost what its TLB held. */
void forget_tlb(u32 cpu)
{
	u32 position = 0;
	int i;

	/* What is dropped has its position taken by another one. */
	while (position < model.nr_records)
		position += !drop_record(used[position], BIT(cpu));
	for (i = 0; i < MAX_ROOTS; i++)
		if (model.roots[i].stale & BIT(cpu))
			drop_root(i, BIT(cpu));
}
