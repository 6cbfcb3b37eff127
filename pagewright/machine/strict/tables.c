// SPDX-License-Identifier: GPL-2.0-only
/*
 * The tables that TTBR1 of any CPU leads to: a copy of each, and where it is
 * mounted.
 *
 * A table that two others point at, or one of them twice, has two mounts.  An
 * entry of it then is about two addresses.  The same address under several
 * roots is one mount with several bits.
 *
 * When an entry no longer points at a table, walk caches may still lead there.
 * The mount then becomes stale, together with those of the tables below, and
 * each goes with the record of the descriptor that led to it (see tlb.c).
 */
#include <stdlib.h>
#include <string.h>

#include "model.h"

/* One bit for each 4 KiB of the lowest 16 TiB of physical addresses. */
#define FRAME_SHIFT	12
#define NR_FRAMES	BIT(44 - FRAME_SHIFT)
#define NR_BUCKETS	65536U
#define BUCKET_SHIFT	16
#define MAX_MOUNTS	64U

static u64 *frames;
static struct table *buckets[NR_BUCKETS];

/*
 * All tables of a page are in one bucket, whatever the size of the kernel's
 * pages: top levels are smaller than one of 16 or 64 KiB, and several share it.
 */
static struct table **bucket_of(u64 pa)
{
	return &buckets[(pa >> BUCKET_SHIFT) % NR_BUCKETS];
}

/* May be asked without a lock. */
bool is_table_page(u64 pa)
{
	u64 frame = pa >> FRAME_SHIFT;

	return frames && frame < NR_FRAMES &&
	       (frames[frame / 64] & BIT(frame % 64));
}

static bool contains(const struct table *table, u64 pa)
{
	return pa >= table->pa && pa < table->pa + table->entries * 8ULL;
}

struct table *table_at(u64 pa)
{
	struct table *table;

	if (!is_table_page(pa))
		return NULL;
	for (table = *bucket_of(pa); table; table = table->next)
		if (contains(table, pa))
			return table;
	return NULL;
}

static void mark(const struct table *table)
{
	u64 first = table->pa >> FRAME_SHIFT, frame;
	u64 last = (table->pa + table->entries * 8ULL - 1) >> FRAME_SHIFT;

	if (!frames)
		frames = calloc(NR_FRAMES / 64, sizeof(u64));
	for (frame = first; frame <= last && frame < NR_FRAMES; frame++)
		frames[frame / 64] |= BIT(frame % 64);
}

static void unmark(const struct table *table)
{
	u64 first = table->pa >> FRAME_SHIFT, frame;
	u64 last = (table->pa + table->entries * 8ULL - 1) >> FRAME_SHIFT;
	struct table *other = *bucket_of(table->pa);

	/* Small tables may share a page. */
	for (; other; other = other->next)
		if (other->pa >> FRAME_SHIFT == first)
			return;
	for (frame = first; frame <= last && frame < NR_FRAMES; frame++)
		frames[frame / 64] &= ~BIT(frame % 64);
}

static void forget(struct table *table)
{
	struct table **link = bucket_of(table->pa);

	while (*link != table)
		link = &(*link)->next;
	*link = table->next;
	unmark(table);
	free(table->mounts);
	free(table);
}

/* Does a live descriptor lead to a table? */
static bool in_tables(const struct table *table)
{
	u32 i;

	for (i = 0; i < table->nr_mounts; i++)
		if (table->mounts[i].roots)
			return true;
	return table->crowded;
}

/* Return the table at an address, which is remembered if it was not. */
static struct table *remember(u64 pa, int level)
{
	u32 entries = table_entries(&model.geometry, level);
	struct table *table = table_at(pa);
	u64 *memory;

	if (table && table->level == level && table->pa == pa)
		return table;
	if (table) {
		/* The page was another table before, unless this is garbage. */
		if (in_tables(table))
			return NULL;
		forget(table);
	}
	memory = model_memory(pa, entries * 8ULL);
	if (!memory)
		return NULL;
	table = calloc(1, sizeof(*table) + entries * sizeof(u64));
	table->pa = pa;
	table->level = level;
	table->entries = entries;
	memcpy(table->shadow, memory, entries * sizeof(u64));
	table->next = *bucket_of(pa);
	*bucket_of(pa) = table;
	mark(table);
	return table;
}

static struct mount *mount_at(struct table *table, u64 va)
{
	u32 i;

	for (i = 0; i < table->nr_mounts; i++)
		if (table->mounts[i].va == va)
			return &table->mounts[i];
	return NULL;
}

static struct mount *new_mount(struct table *table, u64 va)
{
	if (table->nr_mounts == MAX_MOUNTS) {
		table->crowded = true;
		return NULL;
	}
	if (table->nr_mounts == table->room) {
		table->room = table->room ? 4 * table->room : 1;
		table->mounts = realloc(table->mounts, table->room *
					sizeof(*table->mounts));
	}
	table->mounts[table->nr_mounts] = (struct mount){ .va = va };
	return &table->mounts[table->nr_mounts++];
}

/* Forget the mounts that nothing leads to, and the table if none is left. */
static void tidy(struct table *table)
{
	u32 i = 0;

	if (table->crowded)
		return;
	while (i < table->nr_mounts) {
		struct mount *mount = &table->mounts[i];

		if (mount->roots || mount->stale_roots)
			i++;
		else
			*mount = table->mounts[--table->nr_mounts];
	}
	if (!table->nr_mounts)
		forget(table);
}

/* The address that an entry is about. */
u64 entry_va(const struct table *table, const struct mount *mount, u32 index)
{
	return mount->va + ((u64)index << level_shift(&model.geometry,
						      table->level));
}

static struct table *child_of(u64 desc, int level)
{
	return remember(desc_address(&model.geometry, desc, level), level + 1);
}

/*
 * A root is being loaded: what it has was there before, and what is wrong with
 * it as memory that is writable and executable was said then.
 */
static bool loading;

/* Roots that are being loaded are compared with others as a whole. */
static void leaf_appears(struct site site, u64 va, int level, u64 desc,
			 u64 roots)
{
	check_make(site, va, level, desc, roots);
	if (!loading)
		check_common(site, va, level, desc, roots);
}

static void mount_table(struct site site, struct table *table, u64 va,
			u64 roots)
{
	u64 step = BIT(level_shift(&model.geometry, table->level)), added;
	struct mount *mount = mount_at(table, va);
	bool first;
	u32 i;

	if (table->crowded)
		return;
	if (!mount)
		mount = new_mount(table, va);
	if (!mount)
		return;
	first = !mount->roots;
	added = roots & ~mount->roots;
	mount->roots |= roots;
	if (!added)
		return;

	for (i = 0; i < table->entries; i++, va += step) {
		u64 desc = table->shadow[i];
		struct table *child;

		switch (desc_kind(desc, table->level)) {
		case KIND_TABLE:
			child = child_of(desc, table->level);
			if (child)
				mount_table(site, child, va, added);
			break;
		case KIND_LEAF:
			leaf_appears(site, va, table->level, desc, added);
			if (first && loading)
				count_leaf(desc, table->level, 1);
			else if (first)
				check_write_execute(site, va, table->level,
						    desc);
			break;
		default:
			break;
		}
	}
}

/*
 * Nothing leads to a table any more but walk caches, if there are CPUs that
 * may have walked it.  What it held may be in their TLBs.
 */
static void unmount_table(struct site site, struct table *table, u64 va,
			  u64 roots, bool hazard)
{
	u64 step = BIT(level_shift(&model.geometry, table->level));
	struct mount *mount = mount_at(table, va);
	bool last;
	u32 i;

	if (table->crowded || !mount)
		return;
	roots &= mount->roots;
	mount->roots &= ~roots;
	last = !mount->roots;
	if (cpus_of(roots))
		mount->stale_roots |= roots;

	for (i = 0; i < table->entries && roots; i++, va += step) {
		u64 desc = table->shadow[i];
		struct table *child;

		switch (desc_kind(desc, table->level)) {
		case KIND_TABLE:
			record_add(site, va, table->level, desc, roots, true,
				   false);
			child = table_at(desc_address(&model.geometry, desc,
						      table->level));
			if (child)
				unmount_table(site, child, va, roots, hazard);
			break;
		case KIND_LEAF:
			record_add(site, va, table->level, desc, roots, false,
				   hazard);
			if (last)
				count_leaf(desc, table->level, -1);
			break;
		default:
			break;
		}
	}
	tidy(table);
}

/* The walk caches no longer have the descriptor of a record. */
void drop_stale_mount(const struct record *record)
{
	u64 pa = desc_address(&model.geometry, record->desc, record->level);
	struct table *table = table_at(pa);
	struct mount *mount = table ? mount_at(table, record->va) : NULL;

	if (!mount || table->pa != pa)
		return;
	mount->stale_roots &= ~record->roots;
	tidy(table);
}

/* Does the table that a record leads to have the descriptor of another one? */
bool stale_table_has(const struct record *record, const struct record *leaf)
{
	u64 pa = desc_address(&model.geometry, record->desc, record->level);
	struct table *table = table_at(pa);

	return table && table->pa == pa && table->level == leaf->level &&
	       table->shadow[(leaf->va - record->va) /
			     granule(leaf->level)] == leaf->desc;
}

static u64 upper_half(void)
{
	return -BIT(model.geometry.va_bits);
}

void mount_root(struct site site, int root)
{
	struct table *table = remember(model.roots[root].pa,
				       model.geometry.root_level);

	loading = true;
	if (table)
		mount_table(site, table, upper_half(), BIT(root));
	loading = false;
}

/* No CPU has it in TTBR1, nor anything of it in its TLB. */
void unmount_root(int root)
{
	struct table *table = table_at(model.roots[root].pa);

	if (table)
		unmount_table((struct site){ 0 }, table, upper_half(),
			      BIT(root), false);
}

/* Which CPUs may have entries of some roots in their TLBs? */
u64 cpus_of(u64 roots)
{
	u64 cpus = 0;
	u32 i;

	for (i = 0; i < MAX_ROOTS && roots; i++, roots >>= 1)
		if (roots & 1)
			cpus |= model.roots[i].loaded | model.roots[i].stale;
	return cpus;
}

/**
 * table_changed() - an entry of a table was written
 * @site: by whom
 * @table: the table, whose copy has the new descriptor
 * @index: which entry
 * @old: what it was
 */
void table_changed(struct site site, struct table *table, u32 index, u64 old)
{
	const struct geometry *geometry = &model.geometry;
	u64 new = table->shadow[index];
	int level = table->level;
	enum kind was = desc_kind(old, level), is = desc_kind(new, level);
	bool same_table = was == KIND_TABLE && is == KIND_TABLE &&
			  desc_address(geometry, old, level) ==
			  desc_address(geometry, new, level);
	/*
	 * Whether a table maps what a block did, and the other way round, is
	 * looked at elsewhere.
	 */
	bool hazard = is == KIND_INVALID || (was == is && was == KIND_LEAF &&
					     !same_translation(old, new, level));
	u32 i;

	for (i = 0; i < table->nr_mounts && !table->crowded; i++) {
		struct mount mount = table->mounts[i];
		u64 va = entry_va(table, &mount, index);
		struct table *child;

		if (!mount.roots) {
			check_stale_store(site, table, index, old);
			continue;
		}
		if (was != KIND_INVALID)
			record_add(site, va, level, old, mount.roots,
				   was == KIND_TABLE,
				   was == KIND_LEAF && hazard);
		if (was == KIND_LEAF)
			count_leaf(old, level, -1);
		if (was == KIND_TABLE && !same_table) {
			child = table_at(desc_address(geometry, old, level));
			if (child)
				unmount_table(site, child, va, mount.roots,
					      hazard);
		}
		if (is == KIND_TABLE && !same_table) {
			child = child_of(new, level);
			if (child)
				mount_table(site, child, va, mount.roots);
			if (child && was == KIND_LEAF)
				check_half_filled(site, child, va, old);
		}
		if (is == KIND_LEAF) {
			leaf_appears(site, va, level, new, mount.roots);
			check_write_execute(site, va, level, new);
		}
		if (was == KIND_LEAF || is == KIND_LEAF)
			check_contiguous(site, table, index, &mount);
	}
}

/**
 * walk() - translate an address as a CPU would now
 * @root: index of the root
 * @va: the address
 * @desc: where to say the descriptor of the leaf
 * @level: where to say its level
 *
 * Return: false if there is no translation.
 */
bool walk(int root, u64 va, u64 *desc, int *level)
{
	const struct geometry *geometry = &model.geometry;
	u64 pa;

	if (root < 0 || va < upper_half())
		return false;
	pa = model.roots[root].pa;
	for (*level = geometry->root_level; *level <= 3; (*level)++) {
		u32 index = va >> level_shift(geometry, *level) &
			    (table_entries(geometry, *level) - 1);
		u64 *entry = model_memory(pa + index * 8ULL, 8);

		if (!entry)
			return false;
		*desc = *entry;
		switch (desc_kind(*desc, *level)) {
		case KIND_LEAF:
			return true;
		case KIND_TABLE:
			pa = desc_address(geometry, *desc, *level);
			break;
		default:
			return false;
		}
	}
	return false;
}
