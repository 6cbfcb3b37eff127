// SPDX-License-Identifier: GPL-2.0-only
/*
 * CPUs with TLBs of several geometries, all of which see the same accesses:
 * what misses in them is counted.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tlb.h"

/* The smallest page. */
#define PAGE_SHIFT	12
#define NR_RECENT	16

static const char * const class_names[FIRST_RANGE] = {
	[LINEAR]	= "linear",
	[STRUCT_PAGES]	= "struct-pages",
	[OTHER]		= "other",
	[FOR_USER]	= "for-user",
	[USER]		= "user",
	[KERNEL_CODE]	= "kernel-code",
	[USER_CODE]	= "user-code",
};

const char * const event_names[NR_EVENTS] = {
	[L1_MISS]	= "l1",
	[L2_MISS]	= "l2",
	[LOAD]		= "loads",
};

struct tlbs {
	struct cache data, code, l2, walk;
};

/*
 * The pages that were accessed last, the last one first.  Most accesses are to
 * these, and hit every L1.  So that these accesses are counted and no more,
 * L1s do not know of them: there an entry becomes the last one used when it is
 * looked for, when its page is no longer one of these, and, for all of these,
 * when an entry has to make room (see catch_up()).  The order is the same then
 * as if each access had been told.
 */
struct recent {
	u64 pages[NR_RECENT];
	u32 nr;
};

/* Addresses of the kernel whose data is a class of its own. */
struct range {
	char name[MAX_RANGE_NAME];
	u64 first, last;
};

struct cpu {
	struct regime lower, upper;
	bool asid_in_upper;	/* TCR_EL1.A1 */
	u32 asid;
	struct recent data, code;
	struct tlbs *tlbs;	/* by geometry */
	struct counts counts;
};

static struct tlb_geometry geometries[MAX_GEOMETRIES];
static u32 nr_geometries;
/* Not more than any L1 has entries. */
static u32 nr_recent = NR_RECENT;
static struct range ranges[MAX_RANGES];
static u32 nr_ranges;
static struct cpu cpus[MAX_CPUS];

u32 tlb_geometries(void)
{
	return nr_geometries;
}

const struct tlb_geometry *tlb_geometry_of(u32 index)
{
	return &geometries[index];
}

const struct counts *tlb_counts(u32 cpu)
{
	return &cpus[cpu].counts;
}

/* How many classes there are, those of ranges included. */
u32 tlb_classes(void)
{
	return FIRST_RANGE + nr_ranges;
}

const char *tlb_class_name(u32 class)
{
	return class < FIRST_RANGE ? class_names[class] :
				     ranges[class - FIRST_RANGE].name;
}

/**
 * tlb_range() - make a class of what the kernel has at some of its addresses
 * @line: its name, and its first and its last address in hexadecimal
 *
 * Return: false if it is not one, or there is no room.
 */
bool tlb_range(const char *line)
{
	struct range *new = &ranges[nr_ranges];

	if (nr_ranges == MAX_RANGES ||
	    sscanf(line, "%15s %" SCNx64 " %" SCNx64, new->name, &new->first,
		   &new->last) != 3 || new->first > new->last)
		return false;
	nr_ranges++;
	return true;
}

/**
 * tlb_geometry() - have a geometry simulated
 * @line: its name and its numbers, in the order of struct tlb_geometry
 *
 * To be called before anything else.
 *
 * Return: false if that is no geometry, or one too many.
 */
bool tlb_geometry(const char *line)
{
	struct tlb_geometry *new = &geometries[nr_geometries];

	if (nr_geometries == MAX_GEOMETRIES ||
	    sscanf(line, "%31s %u %u %" SCNu64 " %u %u %" SCNu64 " %u %u",
		   new->name, &new->l1_data, &new->l1_code, &new->l1_sizes,
		   &new->l2, &new->l2_ways, &new->l2_sizes, &new->walk,
		   &new->coalesced) != 9)
		return false;
	if (!new->l1_data || !new->l1_code || !new->l1_sizes || !new->l2 ||
	    !new->l2_ways || new->l2 % new->l2_ways || !new->l2_sizes ||
	    !new->coalesced || new->coalesced > MAX_COALESCED ||
	    new->coalesced & (new->coalesced - 1))
		return false;
	if (nr_recent > new->l1_data)
		nr_recent = new->l1_data;
	if (nr_recent > new->l1_code)
		nr_recent = new->l1_code;
	nr_geometries++;
	return true;
}

/* Let an L1 know in which order the recent pages were used. */
static void catch_up(struct cache *l1, const struct recent *recent, u32 asid)
{
	u32 i;

	for (i = recent->nr; i > 0; i--)
		cache_find_leaf(l1, recent->pages[i - 1] << PAGE_SHIFT, asid);
}

/* What is recent may not hit any more. */
static void forget_recent(struct cpu *cpu)
{
	u32 i;

	for (i = 0; cpu->tlbs && i < nr_geometries; i++) {
		catch_up(&cpu->tlbs[i].data, &cpu->data, cpu->asid);
		catch_up(&cpu->tlbs[i].code, &cpu->code, cpu->asid);
	}
	cpu->data.nr = 0;
	cpu->code.nr = 0;
}

static bool is_recent(struct recent *recent, u64 page)
{
	u32 i;

	for (i = 0; i < recent->nr; i++)
		if (recent->pages[i] == page)
			break;
	if (i == recent->nr)
		return false;
	for (; i > 0; i--)
		recent->pages[i] = recent->pages[i - 1];
	recent->pages[0] = page;
	return true;
}

static void add_recent(struct recent *recent, u64 page)
{
	u32 i;

	for (i = recent->nr; i > 0; i--)
		recent->pages[i] = recent->pages[i - 1];
	recent->pages[0] = page;
	recent->nr++;
}

static void add_tlbs(struct cpu *cpu)
{
	u32 i;

	cpu->tlbs = calloc(nr_geometries, sizeof(*cpu->tlbs));
	for (i = 0; i < nr_geometries; i++) {
		const struct tlb_geometry *geometry = &geometries[i];
		struct tlbs *tlbs = &cpu->tlbs[i];

		cache_init(&tlbs->data, geometry->l1_data, geometry->l1_data);
		cache_init(&tlbs->code, geometry->l1_code, geometry->l1_code);
		cache_init(&tlbs->l2, geometry->l2, geometry->l2_ways);
		if (geometry->walk)
			cache_init(&tlbs->walk, geometry->walk, geometry->walk);
	}
}

static void find_asid(struct cpu *cpu)
{
	forget_recent(cpu);
	cpu->asid = BITS(cpu->asid_in_upper ? cpu->upper.ttbr :
			 cpu->lower.ttbr, 63, 48);
}

/* TCR_EL1 has the same fields for TTBR0, in which TG0 is encoded otherwise. */
static u64 as_of_ttbr1(u64 tcr)
{
	static const u64 granules[4] = { 2, 3, 1, 0 };

	return (tcr & BIT(59)) | granules[BITS(tcr, 15, 14)] << 30 |
	       BITS(tcr, 5, 0) << 16;
}

/* From now on there are TLBs. */
void tlb_tcr(u32 cpu, u64 tcr)
{
	struct cpu *it = &cpus[cpu];

	if (!it->tlbs)
		add_tlbs(it);
	it->upper.known = decode_tcr(tcr, &it->upper.geometry);
	it->lower.known = decode_tcr(as_of_ttbr1(tcr), &it->lower.geometry);
	it->asid_in_upper = tcr & BIT(22);
	find_asid(it);
}

void tlb_ttbr0(u32 cpu, u64 ttbr)
{
	cpus[cpu].lower.ttbr = ttbr;
	find_asid(&cpus[cpu]);
}

void tlb_ttbr1(u32 cpu, u64 ttbr)
{
	cpus[cpu].upper.ttbr = ttbr;
	find_asid(&cpus[cpu]);
}

/* The MMU is off until TCR_EL1 is written anew. */
void tlb_off(u32 cpu)
{
	cpus[cpu].lower.known = false;
	cpus[cpu].upper.known = false;
}

static void invalidate(struct cpu *cpu, const struct tlbi *tlbi, u32 asid)
{
	u64 page = BIT(cpu->upper.geometry.page_shift);
	u32 i;

	forget_recent(cpu);
	for (i = 0; cpu->tlbs && i < nr_geometries; i++) {
		struct tlbs *tlbs = &cpu->tlbs[i];

		cache_invalidate(&tlbs->data, tlbi, asid, page);
		cache_invalidate(&tlbs->code, tlbi, asid, page);
		cache_invalidate(&tlbs->l2, tlbi, asid, page);
		if (tlbs->walk.entries)
			cache_invalidate(&tlbs->walk, tlbi, asid, page);
	}
}

/**
 * tlb_tlbi() - a TLBI is executed
 * @cpu: by whom
 * @code: the instruction, for which is_tlbi() is true
 * @operand: the contents of its register
 */
void tlb_tlbi(u32 cpu, u32 code, u64 operand)
{
	struct tlbi tlbi;
	u32 i;

	if (!cpus[cpu].upper.known)
		return;
	decode_tlbi(&cpus[cpu].upper.geometry, code, operand, &tlbi);
	for (i = 0; i < MAX_CPUS; i++)
		if (i == cpu || tlbi.broadcast)
			invalidate(&cpus[i], &tlbi, BITS(operand, 63, 48));
}

static bool is_code(enum class class)
{
	return class == KERNEL_CODE || class == USER_CODE;
}

/* The largest size that a TLB can hold of a piece of memory. */
static u32 fitting(u64 sizes, u32 shift)
{
	u64 smaller = sizes & (2 * BIT(shift) - 1);

	return smaller ? 63U - __builtin_clzll(smaller) : shift;
}

static struct entry piece(u64 va, u32 asid, u32 shift, u32 leaf, bool global)
{
	return (struct entry){
		.va = va >> shift << shift,
		.asid = asid,
		.shift = shift,
		.leaf = leaf,
		.global = global,
	};
}

/* Returns false if there is no translation. */
static bool access(struct cpu *cpu, u32 index, u64 va, enum class class)
{
	const struct regime *regime = va >> 63 ? &cpu->upper : &cpu->lower;
	const struct tlb_geometry *geometry = &geometries[index];
	u64 *events = cpu->counts.events[index][class];
	struct tlbs *tlbs = &cpu->tlbs[index];
	struct cache *l1 = is_code(class) ? &tlbs->code : &tlbs->data;
	struct cache *tables = geometry->walk ? &tlbs->walk : &tlbs->l2;
	struct entry *found, new;
	struct leaf leaf;
	u32 shift;
	int loads;

	if (cache_find_leaf(l1, va, cpu->asid))
		return true;
	found = cache_find_leaf(&tlbs->l2, va, cpu->asid);
	if (found) {
		new = *found;
	} else {
		loads = walk_tables(regime, tables, va, cpu->asid,
				    geometry->coalesced, &leaf);
		if (loads < 0)
			return false;
		shift = fitting(geometry->l2_sizes, leaf.shift);
		if (leaf.together > leaf.shift)
			shift = leaf.together;
		new = piece(va, cpu->asid, shift, leaf.shift, leaf.global);
		cache_insert(&tlbs->l2, &new);
		events[L2_MISS]++;
		events[LOAD] += loads;
	}
	events[L1_MISS]++;
	/* Pages that share an entry of L2 do not in L1. */
	shift = new.shift < new.leaf ? new.shift : new.leaf;
	shift = fitting(geometry->l1_sizes, shift);
	new = piece(va, cpu->asid, shift, new.leaf, new.global);
	catch_up(l1, is_code(class) ? &cpu->code : &cpu->data, cpu->asid);
	cache_insert(l1, &new);
	return true;
}

/* The upper byte of an address may be a tag. */
static u64 without_tag(u64 va)
{
	return (u64)((int64_t)(va << 8) >> 8);
}

static void access_all(struct cpu *cpu, u64 va, enum class class)
{
	struct recent *recent = is_code(class) ? &cpu->code : &cpu->data;
	bool known;
	u64 dropped;
	u32 i;

	va = without_tag(va);
	known = va >> 63 ? cpu->upper.known : cpu->lower.known;
	if (known && is_recent(recent, va >> PAGE_SHIFT)) {
		cpu->counts.accesses[class]++;
		return;
	}
	if (known && recent->nr == nr_recent) {
		dropped = recent->pages[--recent->nr] << PAGE_SHIFT;
		for (i = 0; i < nr_geometries; i++)
			cache_find_leaf(is_code(class) ? &cpu->tlbs[i].code :
					&cpu->tlbs[i].data, dropped, cpu->asid);
	}
	for (i = 0; known && i < nr_geometries; i++)
		known = access(cpu, i, va, class);
	if (known) {
		cpu->counts.accesses[class]++;
		add_recent(recent, va >> PAGE_SHIFT);
	} else {
		cpu->counts.unknown++;
	}
}

/*
 * The linear map is the lower half of the kernel's addresses.  A kernel for 52
 * bits has it end where it would with fewer, which a CPU may not exceed.
 */
static u64 linear_end(const struct geometry *geometry)
{
	u32 bits = geometry->va_bits;

	if (bits > 48)
		bits = geometry->page_shift == 14 ? 47 : 48;
	return -BIT(bits - 1);
}

/*
 * The struct pages of what the linear map could hold, each of 64 bytes.  They
 * end 1 GiB before the addresses do.
 */
#define STRUCT_PAGE_SHIFT	6

static bool in_struct_pages(const struct geometry *geometry, u64 va)
{
	u64 pages = (linear_end(geometry) + BIT(geometry->va_bits)) >>
		    geometry->page_shift;
	u64 end = -BIT(30);

	return va < end && va >= end - (pages << STRUCT_PAGE_SHIFT);
}

static enum class class_of(const struct cpu *cpu, u64 va, bool kernel)
{
	const struct geometry *geometry = &cpu->upper.geometry;
	u32 i;

	va = without_tag(va);
	if (!(va >> 63))
		return kernel ? FOR_USER : USER;
	if (!cpu->upper.known)
		return OTHER;
	if (va < linear_end(geometry))
		return LINEAR;
	if (in_struct_pages(geometry, va))
		return STRUCT_PAGES;
	for (i = 0; i < nr_ranges; i++)
		if (va >= ranges[i].first && va <= ranges[i].last)
			return FIRST_RANGE + i;
	return OTHER;
}

/**
 * tlb_data() - data is loaded or stored
 * @cpu: by whom
 * @va: where
 * @kernel: by code of the kernel
 */
void tlb_data(u32 cpu, u64 va, bool kernel)
{
	struct cpu *it = &cpus[cpu];

	access_all(it, va, class_of(it, va, kernel));
}

/**
 * tlb_code() - instructions are executed that are in one page
 * @cpu: by whom
 * @va: where
 * @kernel: they are the kernel's
 * @instructions: how many
 */
void tlb_code(u32 cpu, u64 va, bool kernel, u32 instructions)
{
	struct cpu *it = &cpus[cpu];
	enum class class = kernel ? KERNEL_CODE : USER_CODE;

	it->counts.instructions[!kernel] += instructions;
	access_all(it, va, class);
}
