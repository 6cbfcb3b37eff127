// SPDX-License-Identifier: GPL-2.0-only
/*
 * Chunks of per-CPU data in a space of their own, with a local map of them
 *
 * An architecture whose CPUs have kernel page tables of their own can map, at
 * one address, each CPU's copy of the per-CPU data: in the local region.
 * this_cpu_*() on an address in it needs no protection from preemption.
 *
 * For that, a per-CPU pointer has to determine the local address, so all chunks
 * lie in a bounded space instead of anywhere in vmalloc's. Each unit has an
 * area in it that is as large as the local region:
 *
 *   areas                              areas + stride
 *   |                                  |
 *   | unit 0: [first chunk][chunk 1]   | unit 1: [first chunk][chunk 1]   ...
 *
 *   local region: [first chunk][chunk 1]   of the CPU that looks
 *
 * So a chunk is at the same offset in every area and in the local region, and
 * groups, of which each unit is one, are a stride apart. The architecture makes
 * the local region show the area of the CPU's unit: it is told when pages were
 * mapped in the areas (arch_percpu_local_map()), and must see by itself to it
 * that pages that are unmapped there go locally, too. What remains to be done
 * here is to give out the offsets, and to flush the local addresses along with
 * the others.
 *
 * The first chunk is in this space as well, and also in the linear map, where
 * nobody uses it. This file is included by percpu.c.
 */
#include <linux/idr.h>
#include <linux/kasan.h>
#include <linux/kcore.h>
#include <linux/kobject.h>
#include <linux/percpu-local.h>
#include <linux/stdarg.h>
#include <linux/sysfs.h>

static struct percpu_local_space percpu_local_space __ro_after_init;
static bool percpu_local_used __ro_after_init;

/*
 * Which offsets, in units of the unit size, are taken; 0 is the first chunk's.
 */
static DEFINE_IDA(percpu_local_slots);

/*
 * /proc/kcore has the areas in a segment of their own: they are neither in the
 * linear map, nor among the areas that vmalloc knows of. There are holes in it,
 * which read as zeros.
 */
static struct kcore_list percpu_local_kcore;

static bool percpu_local_is_used(void)
{
	return percpu_local_used;
}

/*
 * KASAN looks at the shadow of what is accessed: have one for all units of a
 * chunk. It stays when the chunk goes, for the next one there. What KASAN has
 * for tags in hardware is in the pages instead.
 */
static int percpu_local_add_shadow(void *base_addr, gfp_t gfp)
{
	unsigned int cpu;

	if (!IS_ENABLED(CONFIG_KASAN_GENERIC) &&
	    !IS_ENABLED(CONFIG_KASAN_SW_TAGS))
		return 0;

	for_each_possible_cpu(cpu) {
		void *unit = base_addr + pcpu_unit_offsets[cpu];

		if (kasan_populate_vmalloc((unsigned long)unit, pcpu_unit_size,
					   gfp))
			return -ENOMEM;
		kasan_unpoison_range(unit, pcpu_unit_size);
	}

	return 0;
}

/* Find room for a chunk. It may sleep: pcpu_alloc_mutex is held. */
static void *percpu_local_get_area(gfp_t gfp)
{
	int last = percpu_local_space.size / pcpu_unit_size - 1;
	void *base_addr;
	int slot;

	if (last < 1)
		return NULL;

	slot = ida_alloc_range(&percpu_local_slots, 1, last, gfp);
	if (slot < 0)
		return NULL;

	base_addr = pcpu_base_addr + (size_t)slot * pcpu_unit_size;
	if (percpu_local_add_shadow(base_addr, gfp)) {
		ida_free(&percpu_local_slots, slot);
		return NULL;
	}

	return base_addr;
}

/* The pages of the area were unmapped, and the TLBs flushed. */
static void percpu_local_put_area(void *base_addr)
{
	size_t offset = base_addr - pcpu_base_addr;

	ida_free(&percpu_local_slots, offset / pcpu_unit_size);
}

/* Pages of all units of @chunk were mapped. */
static void percpu_local_map_pages(struct pcpu_chunk *chunk, int page_start,
				   int page_end)
{
	unsigned long offset = chunk->base_addr - pcpu_base_addr;
	unsigned long start = offset + PFN_PHYS(page_start);

	arch_percpu_local_map(start, start + PFN_PHYS(page_end - page_start));
}

/*
 * One flush of everything costs less than more flushes than this, each of which
 * waits for all CPUs; and less than to invalidate more pages than this, each of
 * which is announced to all CPUs.
 */
#define PERCPU_LOCAL_MAX_FLUSHES	16
#define PERCPU_LOCAL_MAX_PAGES		512

/*
 * Pages of all units of @chunk were unmapped. The units are far apart: flush
 * each, and the local addresses, or all there is.
 */
static void percpu_local_flush(struct pcpu_chunk *chunk, int page_start,
			       int page_end)
{
	unsigned long size = PFN_PHYS(page_end - page_start);
	int flushes = pcpu_nr_units + 1;
	unsigned long addr;
	unsigned int cpu;

	if (flushes > PERCPU_LOCAL_MAX_FLUSHES ||
	    flushes * (page_end - page_start) > PERCPU_LOCAL_MAX_PAGES) {
		flush_tlb_all();
		return;
	}

	for_each_possible_cpu(cpu) {
		addr = pcpu_chunk_addr(chunk, cpu, page_start);
		flush_tlb_kernel_range(addr, addr + size);
	}

	addr = percpu_local_space.local + (chunk->base_addr - pcpu_base_addr) +
	       PFN_PHYS(page_start);
	flush_tlb_kernel_range(addr, addr + size);
}

/*
 * One group for each unit, all of the same shape. A unit is a multiple of what
 * the architecture can map by one TLB entry, if it is not smaller than that:
 * what is added is memory for dynamic allocations.
 */
static struct pcpu_alloc_info * __init
percpu_local_alloc_info(size_t reserved_size, size_t dyn_size)
{
	const size_t static_size = __per_cpu_end - __per_cpu_start;
	unsigned int cpu, unit = 0, nr_units = num_possible_cpus();
	struct pcpu_alloc_info *ai;

	ai = pcpu_alloc_alloc_info(nr_units, nr_units);
	if (!ai)
		return NULL;

	dyn_size = max_t(size_t, dyn_size, PERCPU_DYNAMIC_EARLY_SIZE);
	ai->static_size = static_size;
	ai->reserved_size = reserved_size;
	ai->unit_size = PFN_ALIGN(static_size + reserved_size + dyn_size);
	ai->unit_size = max_t(size_t, ai->unit_size, PCPU_MIN_UNIT_SIZE);
	if (ai->unit_size >= percpu_local_space.align)
		ai->unit_size = round_up(ai->unit_size,
					 percpu_local_space.align);
	ai->dyn_size = ai->unit_size - static_size - reserved_size;
	ai->atom_size = PAGE_SIZE;
	ai->alloc_size = ai->unit_size;

	for_each_possible_cpu(cpu) {
		struct pcpu_group_info *group = &ai->groups[unit];

		group->nr_units = 1;
		group->cpu_map = ai->groups[0].cpu_map + unit;
		group->cpu_map[0] = cpu;
		unit++;
	}

	return ai;
}

/*
 * Memory for a unit of the first chunk at @addr, congruent with that address if
 * larger TLB entries can map it then.
 */
static void * __init percpu_local_alloc_first(unsigned int cpu,
					      unsigned long addr, size_t size,
					      pcpu_fc_cpu_to_node_fn_t to_node)
{
	size_t align = percpu_local_space.align, before;
	void *unit;

	if (size < align)
		align = PAGE_SIZE;
	before = addr & (align - 1);

	unit = pcpu_fc_alloc(cpu, before + size, align, to_node);
	if (unit && before)
		memblock_free(unit, before);

	return unit ? unit + before : NULL;
}

/*
 * Allocate the first chunk's unit of @cpu, map it at @addr and copy the static
 * data.
 */
static int __init percpu_local_map_first(const struct pcpu_alloc_info *ai,
					 unsigned int cpu, unsigned long addr,
					 pcpu_fc_cpu_to_node_fn_t cpu_to_nd_fn)
{
	void *unit = percpu_local_alloc_first(cpu, addr, ai->unit_size,
					      cpu_to_nd_fn);
	unsigned long page;
	phys_addr_t before;

	if (!unit)
		return -ENOMEM;

	/* kmemleak tracks the percpu allocations separately */
	kmemleak_ignore_phys(__pa(unit));
	/* No two areas have a last-level table in common, so each takes some. */
	before = memblock_reserved_size();
	for (page = addr; page < addr + ai->unit_size; page += PAGE_SIZE)
		pcpu_populate_pte(page);
	percpu_local_space.tables += memblock_reserved_size() - before;
	if (arch_percpu_local_map_first(addr, __pa(unit), ai->unit_size))
		panic("percpu: CPU %u's area is taken\n", cpu);
	flush_cache_vmap_early(addr, addr + ai->unit_size);
	kasan_populate_early_vm_area_shadow((void *)addr, ai->unit_size);

	memcpy((void *)addr, __per_cpu_load, ai->static_size);
	return 0;
}

/**
 * percpu_local_first_chunk() - set up per-CPU areas with a local map of them
 * @reserved_size: the size of the reserved per-CPU area in bytes
 * @dyn_size: minimum free size for dynamic allocation in bytes
 * @cpu_to_nd_fn: tells the node of a CPU, optional
 *
 * To be called before other ways to set up the first chunk.
 *
 * Context: early boot, on one CPU; allocates from memblock.
 * Return: 0, or -ENODEV if there is no local map, for reasons that the
 * architecture has said: nothing has happened then.
 */
int __init percpu_local_first_chunk(size_t reserved_size, size_t dyn_size,
				    pcpu_fc_cpu_to_node_fn_t cpu_to_nd_fn)
{
	struct pcpu_alloc_info *ai;
	size_t all;
	int group;

	if (pcpu_chosen_fc != PCPU_FC_AUTO) {
		percpu_local_say("percpu_alloc=%s",
				 pcpu_fc_names[pcpu_chosen_fc]);
		return -ENODEV;
	}

	if (arch_percpu_local_init(&percpu_local_space, num_possible_cpus()))
		return -ENODEV;

	ai = percpu_local_alloc_info(reserved_size, dyn_size);
	if (!ai)
		panic("percpu: no memory for the description of the areas\n");

	for (group = 0; group < ai->nr_groups; group++) {
		struct pcpu_group_info *gi = &ai->groups[group];
		unsigned int cpu = gi->cpu_map[0];
		unsigned long area;

		gi->base_offset = group * percpu_local_space.stride;
		area = percpu_local_space.areas + gi->base_offset;
		if (percpu_local_map_first(ai, cpu, area, cpu_to_nd_fn))
			panic("percpu: no memory for CPU %u's area\n", cpu);
	}

	arch_percpu_local_map(0, ai->unit_size);
	percpu_local_used = true;

	all = (ai->nr_groups - 1) * percpu_local_space.stride +
	      percpu_local_space.size;
	kclist_add(&percpu_local_kcore, (void *)percpu_local_space.areas, all,
		   KCORE_PERCPU);

	/* No address, as that of the local region tells where the image is. */
	percpu_local_say("%lu MiB/cpu, %lu KiB/cpu of tables",
			 percpu_local_space.size / SZ_1M,
			 percpu_local_space.tables / SZ_1K / ai->nr_groups);
	pr_info("Mapped %zu pages/cpu s%zu r%zu d%zu u%zu, and locally\n",
		ai->unit_size >> PAGE_SHIFT, ai->static_size, ai->reserved_size,
		ai->dyn_size, ai->unit_size);
	pcpu_setup_first_chunk(ai, (void *)percpu_local_space.areas);

	pcpu_free_alloc_info(ai);
	return 0;
}

/* What the log says of the local map stays in /sys/kernel/mm/percpu_local, for any user. */
static char percpu_local_reason[96] __ro_after_init;

/**
 * percpu_local_say() - say whether there is a local map, and why or how large
 * @fmt: the rest of the line, without a newline; for printf, as are the arguments after it
 *
 * Context: early boot, once, when it is decided.
 */
void __init percpu_local_say(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vscnprintf(percpu_local_reason, sizeof(percpu_local_reason), fmt, args);
	va_end(args);
	pr_info("%s%s\n", percpu_local_used ? "local map of " : "no local map: ",
		percpu_local_reason);
}

static ssize_t percpu_local_mode_show(struct kobject *kobj,
				      struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", percpu_local_used ? "local" : "classic");
}

static ssize_t percpu_local_reason_show(struct kobject *kobj,
					struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", percpu_local_reason);
}

static struct kobj_attribute percpu_local_mode_attr =
	__ATTR(mode, 0444, percpu_local_mode_show, NULL);
static struct kobj_attribute percpu_local_reason_attr =
	__ATTR(reason, 0444, percpu_local_reason_show, NULL);

static struct attribute *percpu_local_attrs[] = {
	&percpu_local_mode_attr.attr,
	&percpu_local_reason_attr.attr,
	NULL
};

static const struct attribute_group percpu_local_group = {
	.name = "percpu_local",
	.attrs = percpu_local_attrs,
};

static int __init percpu_local_init_sysfs(void)
{
	return sysfs_create_group(mm_kobj, &percpu_local_group);
}
device_initcall(percpu_local_init_sysfs);
