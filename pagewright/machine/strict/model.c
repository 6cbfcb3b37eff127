// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the model is told: see model.h.
 */
#include <string.h>

#include "model.h"

struct model model;

/**
 * model_start() - before anything else
 * @bbm_level: FEAT_BBM's level, which all CPUs have
 * @disabled: the rules that are not checked, by bit
 */
void model_start(int bbm_level, u32 disabled)
{
	u32 i;

	model.bbm_level = bbm_level;
	model.disabled = disabled;
	for (i = 0; i < MAX_CPUS; i++)
		model.cpus[i].root = -1;
}

/* MAIR_EL1 is written. */
void model_mair(u64 mair)
{
	model.mair = mair;
}

static int root_of(u64 pa)
{
	int i, free = -1;

	for (i = MAX_ROOTS - 1; i >= 0; i--) {
		if (model.roots[i].pa == pa)
			return i;
		if (!model.roots[i].pa)
			free = i;
	}
	if (free >= 0) {
		model.roots[free] = (struct root){ .pa = pa };
		model.changes++;
	}
	return free;
}

/* A root is no longer in TTBR1 of a CPU, but may be in its TLB. */
static void leave_root(u32 number)
{
	struct cpu *cpu = &model.cpus[number];

	if (cpu->root < 0)
		return;
	model.roots[cpu->root].loaded &= ~BIT(number);
	model.roots[cpu->root].stale |= BIT(number);
	cpu->root = -1;
}

static void enter_root(struct site site, int root)
{
	model.cpus[site.cpu].root = root;
	model.roots[root].loaded |= BIT(site.cpu);
	model.roots[root].stale &= ~BIT(site.cpu);
	mount_root(site, root);
}

static bool same_geometry(const struct geometry *a, const struct geometry *b)
{
	return a->page_shift == b->page_shift && a->va_bits == b->va_bits &&
	       a->root_level == b->root_level && a->lpa2 == b->lpa2;
}

/*
 * TCR_EL1 is written.  All CPUs of a kernel write the same, at first.
 *
 * With 52 address bits the first one says 48 until it knows that it has them.
 * What was a table then is one of another level now, or none: so all that is
 * known of tables is forgotten, and what is in TTBR1 is looked at again.
 */
void model_tcr(u64 tcr)
{
	struct geometry geometry;
	u64 loaded[MAX_CPUS] = { 0 };
	u32 i;
	int root;

	model.hardware_af = tcr & BIT(39);
	if (!decode_tcr(tcr, &geometry))
		return;
	if (model.known && same_geometry(&geometry, &model.geometry))
		return;
	for (i = 0; i < MAX_CPUS; i++) {
		if (model.cpus[i].root >= 0)
			loaded[i] = model.roots[model.cpus[i].root].pa;
		leave_root(i);
		forget_tlb(i);
	}
	model.geometry = geometry;
	model.known = true;
	for (i = 0; i < MAX_CPUS; i++) {
		root = loaded[i] ? root_of(loaded[i]) : -1;
		if (root >= 0)
			enter_root((struct site){ .cpu = i }, root);
	}
}

/* A CPU switches translation off, as it does before it starts a kernel. */
void model_off(struct site site)
{
	model.now++;
	leave_root(site.cpu);
}

/*
 * A CPU asks its firmware to switch it off.  It uses no translation any more.
 * When it is switched on again its TLB has to be invalidated before it is used,
 * whatever it then holds.
 */
void model_power_off(struct site site)
{
	model.now++;
	leave_root(site.cpu);
	forget_tlb(site.cpu);
}

/* Look at two roots, unless that was done and nothing has changed since. */
static void compare_roots(struct site site, int a, int b, enum rule rule)
{
	static u64 seen[MAX_ROOTS][MAX_ROOTS][2];
	u64 *at = &seen[a][b][rule == RULE_SHARED_TLB];

	if (*at == model.changes + 1)
		return;
	*at = model.changes + 1;
	check_roots(site, a, b, rule);
}

/*
 * Look at what a CPU's TLB may hold that has left the tables of other roots,
 * unless that was done and nothing has changed since.
 */
static void compare_records(struct site site, int root)
{
	static u64 seen[MAX_CPUS][MAX_ROOTS];

	if (seen[site.cpu][root] == model.changes + 1)
		return;
	seen[site.cpu][root] = model.changes + 1;
	check_switch(site, root);
}

/**
 * model_root() - a CPU loads TTBR1_EL1
 * @site: which one, and where
 * @ttbr: the value
 *
 * What its TLB holds of the root before stays there until it is invalidated.
 * TTBR1 is loaded at each context switch, because the ASID is in it.
 */
void model_root(struct site site, u64 ttbr)
{
	struct cpu *cpu = &model.cpus[site.cpu];
	bool common = ttbr & 1, was_common = cpu->common;
	int before = cpu->root, root, i;
	u64 mine = BIT(site.cpu);

	if (!model.known)
		return;
	root = root_of(root_address(&model.geometry, ttbr));
	if (root < 0) {
		model_blind("there are too many top-level tables");
		return;
	}
	cpu->common = common;
	if (root == before && common == was_common)
		return;
	model.now++;
	if (root != before) {
		leave_root(site.cpu);
		compare_records(site, root);
	}
	enter_root(site, root);
	for (i = 0; i < MAX_ROOTS; i++)
		if (i != root && (model.roots[i].stale & mine))
			compare_roots(site, i, root, RULE_BREAK_BEFORE_MAKE);
	for (i = 0; i < MAX_CPUS && common; i++)
		if (i != (int)site.cpu && model.cpus[i].common &&
		    model.cpus[i].root >= 0 && model.cpus[i].root != root)
			compare_roots(site, model.cpus[i].root, root,
				      RULE_SHARED_TLB);
}

/* Only the access flag was set: that is what hardware does by itself. */
static bool is_hardware_update(u64 old, u64 new, int level)
{
	return desc_kind(old, level) == KIND_LEAF && new == (old | DESC_AF);
}

/**
 * model_store() - memory in a page that has tables was written
 * @site: by whom
 * @pa: the physical address
 * @size: how many bytes
 * @atomic: whether it was compared before, or swapped
 *
 * The memory has the new contents already.
 */
void model_store(struct site site, u64 pa, u64 size, bool atomic)
{
	u64 end = pa + size;

	model.now++;
	for (pa &= ~7ULL; pa < end; pa += 8) {
		struct table *table = table_at(pa);
		u64 *memory, old, new;
		u32 index;

		if (!table)
			continue;
		memory = model_memory(pa, 8);
		index = (pa - table->pa) / 8;
		old = table->shadow[index];
		new = __atomic_load_n(memory, __ATOMIC_RELAXED);
		if (old == new)
			continue;
		table->shadow[index] = new;
		model.changes++;
		if (!atomic && model.hardware_af && !(old & DESC_AF) &&
		    desc_kind(old, table->level) == KIND_LEAF &&
		    !is_hardware_update(old, new, table->level) &&
		    table->nr_mounts)
			report(RULE_ACCESS_FLAG, "an entry without access flag "
			       "is replaced without looking whether hardware "
			       "has changed it meanwhile", site,
			       entry_va(table, &table->mounts[0], index), old,
			       new, (struct site){ 0 });
		table_changed(site, table, index, old);
	}
}

/* A TLBI is about to be executed. */
void model_tlbi(struct site site, u32 code, u64 operand)
{
	struct tlbi tlbi;

	if (!model.known)
		return;
	model.now++;
	decode_tlbi(&model.geometry, code, operand, &tlbi);
	record_invalidate(site, &tlbi);
	groups_invalidated(site, &tlbi);
}

/* A DSB is executed: what its CPU did before is complete. */
void model_dsb(struct site site, u32 code)
{
	struct cpu *cpu = &model.cpus[site.cpu];
	struct dsb dsb;

	if (!decode_dsb(code, &dsb))
		return;
	model.now++;
	if (dsb.stores) {
		cpu->local_barrier = model.now;
		if (dsb.inner)
			cpu->barrier = model.now;
	}
	if (dsb.stores && dsb.loads) {
		complete(site.cpu, dsb.inner);
		groups_completed(site);
	}
}

/* A kernel address was used. */
void model_access(struct site site, u64 va, u64 size, bool write)
{
	if (!model.nr_records)
		return;
	check_access(site, va, write);
	if ((va ^ (va + size - 1)) >> model.geometry.page_shift)
		check_access(site, va + size - 1, write);
}
