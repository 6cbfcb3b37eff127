// SPDX-License-Identifier: GPL-2.0-only
/*
 * The linear map in large blocks, split where a permission has to change.
 *
 * With rodata=full the permission of any page of the linear map may have to change:
 * module text becomes read-only in all its mappings, secret memory disappears from
 * the linear map. A block cannot be split while it is in use, unless break-before-make
 * is not needed for that; so arm64 maps everything with pages. Here the linear map is
 * painted with large leaves, as with rodata=on, and is split when, and only where, a
 * permission changes. There are three ways:
 *
 *  - live, where all CPUs have BBM level 2 without TLB conflict aborts (see
 *    arch/arm64/kernel/bbml2.c);
 *  - in a pause of all other CPUs, elsewhere; then there are no contiguous ranges;
 *  - by their access flag, if that is asked for, those blocks that nobody uses for a moment,
 *    and the others in a pause.
 *
 * This file decides what the map is painted with, and says what it consists of. The other
 * parts:
 *
 *  - kernel_leaf.c: finding and setting the leaf that maps an address, at any level;
 *  - linear_map_split.c: one leaf into smaller ones, until a leaf starts at an address;
 *    it has the locking, too;
 *  - linear_map_pause.c: all splits of a change in one pause, where they cannot be live;
 *    linear_map_access_flag.c: those that need no pause, if that is asked for;
 *  - linear_map_change.c: permissions: split at both ends of a range, then change leaf by
 *    leaf; linear_map_area.c does so for the alias of vmalloc areas;
 *  - linear_map_fold.c: leaves that are alike again become larger ones;
 *  - linear_map_hotplug.c, linear_map_kfence.c: memory that comes and goes, and the pool of
 *    KFENCE;
 *  - linear_map_repaint.c: at boot, if a secondary CPU lacks the feature or has not started,
 *    no more contiguous ranges, or back to pages.
 */
#define pr_fmt(fmt) "linear map: " fmt

#include <linux/cpumask.h>
#include <linux/ctype.h>
#include <linux/init.h>
#include <linux/kobject.h>
#include <linux/memblock.h>
#include <linux/mm.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/set_memory.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include <asm/bbml2.h>
#include <asm/cputype.h>
#include <asm/linear_map.h>

#include "linear_map.h"

/*
 * Why the linear map is what it is: why it is not split live, or is, and where it is in pages
 * for want of pauses, why there are none. Written as linear_map_mode is.
 */
static const char *mode_reason __ro_after_init;
static const char *no_pause_reason __ro_after_init;
static bool is_repainted __ro_after_init;

#define REASON "%s%s%s%s"
#define REASON_ARGS way_of_splits(), mode_reason, no_pause_reason ? ", and " : "",	\
		    no_pause_reason ?: ""

/* What arm64.linear_map= asks for. */
static enum {
	WAY_AUTO, WAY_LIVE, WAY_AF, WAY_PAUSE, WAY_PAGES
} wanted_way __initdata;

static int __init parse_way(char *arg)
{
	static const char *const names[] __initconst = {
		[WAY_AUTO]	= "auto",
		[WAY_LIVE]	= "live",
		[WAY_AF]	= "af",
		[WAY_PAUSE]	= "pause",
		[WAY_PAGES]	= "pages",
	};
	int way = arg ? match_string(names, ARRAY_SIZE(names), arg) : -EINVAL;

	if (way < 0)
		pr_warn("arm64.linear_map=%s: not one of auto, live, af, pause, pages; using auto\n",
			arg ?: "");
	wanted_way = max(way, WAY_AUTO);

	return 0;
}
early_param("arm64.linear_map", parse_way);

/* Some CPUs are to be left alone. Which they are is for others to parse, and later. */
static bool cpus_are_isolated __initdata;

static int __init note_isolcpus(char *arg)
{
	size_t len;

	if (!arg)
		return -EINVAL;

	len = str_has_prefix(arg, "managed_irq,");
	/* By itself this flag keeps interrupts of devices away, and nothing else. */
	if (!len || isalpha(arg[len]))
		cpus_are_isolated |= IS_ENABLED(CONFIG_CPU_ISOLATION);

	return 0;
}
early_param("isolcpus", note_isolcpus);

static int __init note_nohz_full(char *arg)
{
	if (!arg)
		return -EINVAL;

	cpus_are_isolated |= IS_ENABLED(CONFIG_NO_HZ_FULL);

	return 0;
}
early_param("nohz_full", note_nohz_full);

/*
 * Why are blocks not split in pauses? NULL if they are.
 *
 * Pages interrupt nobody. Who has set CPUs aside, or has a real-time kernel, asks for that more
 * than for memory, and would have to know of pauses to do without them. So there are none unless
 * they are asked for.
 */
static const char *__init why_no_pauses(void)
{
	const char *why = why_linear_map_cannot_pause();

	if (wanted_way == WAY_LIVE)
		return "arm64.linear_map=live";
	if (why || wanted_way != WAY_AUTO)
		return why;
	if (IS_ENABLED(CONFIG_PREEMPT_RT))
		return "a real-time kernel pauses no CPUs";
	if (cpus_are_isolated)
		return "isolated CPUs are not paused";

	return NULL;
}

/* Why are blocks not split live, by the boot CPU and by what is asked for? */
static const char *__init why_not_painted_live(const char *no_pauses)
{
	if (wanted_way == WAY_PAUSE)
		return "arm64.linear_map=pause";
	/* What cannot be split by access flags is left to a pause. */
	if (wanted_way == WAY_AF)
		return no_pauses ? "arm64.linear_map=af" :
		       "arm64.linear_map=af, splits without one if they can be";
	if (bbml2_noabort_disabled())
		return "arm64.nobbml2";

	return "the boot CPU is not known to have BBM level 2 without aborts";
}

/**
 * linear_map_choose_mode() - what is the linear map to be painted with?
 *
 * Context: the boot CPU, before the linear map is there.
 * Return: true if it must be painted with pages only.
 */
bool __init linear_map_choose_mode(void)
{
	const char *no_pauses = why_no_pauses();

	if (debug_pagealloc_enabled()) {
		linear_map_mode = LINEAR_MAP_PAGES;
		mode_reason = "debug_pagealloc=on";
	} else if (!can_set_direct_map()) {
		linear_map_mode = LINEAR_MAP_FIXED;
		mode_reason = "its permissions do not change without rodata=full";
	} else if (wanted_way == WAY_PAGES) {
		linear_map_mode = LINEAR_MAP_PAGES;
		mode_reason = "arm64.linear_map=pages";
	} else if ((wanted_way == WAY_AUTO || wanted_way == WAY_LIVE) &&
		   cpu_has_bbml2_noabort()) {
		linear_map_mode = LINEAR_MAP_LIVE;
		mode_reason = "BBM level 2 without aborts";
	} else {
		linear_map_mode = LINEAR_MAP_PAUSED;
		mode_reason = why_not_painted_live(no_pauses);
		no_pause_reason = no_pauses;
		if (no_pauses)
			linear_map_mode = LINEAR_MAP_PAGES;
		linear_map_by_access_flag = wanted_way == WAY_AF && !no_pauses;
	}
	/* Isolated CPUs are no reason to refuse others: then there are pages if one lacks it. */
	if (linear_map_mode == LINEAR_MAP_LIVE &&
	    (wanted_way == WAY_LIVE || why_linear_map_cannot_pause()))
		bbml2_noabort_require();

	return linear_map_in_pages();
}

static const char *blocks_or_pages(void)
{
	return linear_map_in_pages() ? "pages" : "blocks";
}

/* How blocks are split, as the start of the reason. */
static const char *way_of_splits(void)
{
	if (linear_map_is_paused())
		return "split and folded back in pauses: ";
	if (linear_map_is_split())
		return "split and folded back live: ";

	return is_repainted ? "repainted: " : "";
}

/**
 * linear_map_painted() - the linear map is there: say and count what it is made of
 * @kernel_start: physical start of the kernel's text
 * @kernel_end: physical end of its read-only data
 *
 * Context: the boot CPU, right after painting.
 */
void __init linear_map_painted(phys_addr_t kernel_start, phys_addr_t kernel_end)
{
	unsigned long image_start = __phys_to_virt(kernel_start);
	unsigned long image_end = __phys_to_virt(kernel_end);
	phys_addr_t start, end;
	u64 i;

	for_each_mem_range(i, &start, &end) {
		unsigned long first = __phys_to_virt(PAGE_ALIGN(start));
		unsigned long last = __phys_to_virt(end & PAGE_MASK);

		if (first >= last)
			continue;
		if (!linear_map_in_pages()) {
			linear_map_count_range(first, last, 1);
			continue;
		}

		/*
		 * All but the image's alias is pages. To look at each of them would
		 * take as long as to paint them.
		 */
		if (first <= image_start && image_end <= last) {
			linear_map_count(LEAF_PTE, last - first - (image_end - image_start));
			linear_map_count_range(image_start, image_end, 1);
		} else {
			linear_map_count(LEAF_PTE, last - first);
		}
	}

	pr_info("%s (" REASON "; MIDR_EL1 0x%08x)\n", blocks_or_pages(), REASON_ARGS,
		read_cpuid_id());
}

/*
 * Why can sizes not be changed live from now on? NULL if they can. Where the kernel cannot have
 * pauses, or arm64.linear_map=live asks for it, CPUs that have not started are taken to be like the
 * others, and are refused if they are not.
 */
static const char *__init why_not_live(void)
{
	if (system_supports_bbml2_noabort())
		return NULL;
	if (!bbml2_noabort_is_required() && !cpumask_subset(cpu_present_mask, cpu_online_mask))
		return "not all CPUs have started";

	return "a secondary CPU is not known to have BBM level 2 without aborts";
}

/**
 * linear_map_finalise() - all CPUs that start at boot are judged: repaint if one lacks
 *			   what the linear map is painted for, or may come to lack it
 *
 * Context: the boot CPU, process context; system capabilities are final, there is no
 *	    user space.
 */
void __init linear_map_finalise(void)
{
	const char *why = linear_map_mode == LINEAR_MAP_LIVE ? why_not_live() : NULL;

	if (!why && !linear_map_is_paused())
		return;

	/* To repaint and to pause both take that all CPUs can be stopped. */
	linear_map_require_all_cpus();
	if (why) {
		mode_reason = why;
		is_repainted = true;
		no_pause_reason = why_no_pauses();
		linear_map_repaint(no_pause_reason);
		pr_info("%s (" REASON ")\n", blocks_or_pages(), REASON_ARGS);
	}
	if (linear_map_is_paused())
		linear_map_prepare_pauses();
}

/* What of /sys/kernel/mm/linear_map there is always. */

static ssize_t mode_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", blocks_or_pages());
}

static struct kobj_attribute mode_attr = __ATTR_RO(mode);

static ssize_t reason_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, REASON "\n", REASON_ARGS);
}

static struct kobj_attribute reason_attr = __ATTR_RO(reason);

static struct attribute *mode_attrs[] = {
	&mode_attr.attr,
	&reason_attr.attr,
	NULL
};

static const struct attribute_group mode_group = {
	.name = LINEAR_MAP_SYSFS,
	.attrs = mode_attrs,
};

static int __init init_sysfs(void)
{
	return sysfs_create_group(mm_kobj, &mode_group);
}
device_initcall(init_sysfs);

#ifdef CONFIG_PROC_FS
/*
 * /proc/meminfo. The unit is spelt with a small k, as all architectures do that have
 * these lines.
 */
void arch_report_meminfo(struct seq_file *m)
{
	enum leaf_size size;

	for (size = LEAF_PTE; size < NR_LEAF_SIZES; size++) {
		unsigned long bytes = leaf_bytes(size);
		char name[24], unit = 'k';

		if (size == LEAF_PUD && !pud_sect_supported())
			continue;

		bytes /= SZ_1K;
		if (bytes >= SZ_1M) {
			bytes /= SZ_1M;
			unit = 'G';
		} else if (bytes >= SZ_1K) {
			bytes /= SZ_1K;
			unit = 'M';
		}
		snprintf(name, sizeof(name), "DirectMap%lu%c:", bytes, unit);
		seq_printf(m, "%-16s%8lu kB\n", name, linear_map_bytes(size) / SZ_1K);
	}
}
#endif
