// SPDX-License-Identifier: GPL-2.0-only
/*
 * A module with static per-CPU variables that comes and goes. Loading it fails
 * with -EIO if its variables are not on every CPU as they are defined, or if
 * the views of them differ. The log has what is wrong. See percpu_torture.c,
 * with which it may run.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/slab.h>

#include "percpu_checks.h"

#define NUMBER	0x123456789abcdef

/*
 * Different sizes and alignments, copied from the module's file for each CPU.
 * Addresses could not be here: no kernel relocates them.
 */
static DEFINE_PER_CPU(u64, percpu_visitor_number) = NUMBER;
static DEFINE_PER_CPU(u8, percpu_visitor_letter) = 'x';
static DEFINE_PER_CPU_ALIGNED(u8[1000], percpu_visitor_bytes);

static long visit(void *arg)
{
	struct percpu_checks *c = arg;

	percpu_check(c, "number", 0, this_cpu_read(percpu_visitor_number),
		     NUMBER);
	percpu_check(c, "letter", 0, this_cpu_read(percpu_visitor_letter), 'x');
	this_cpu_add(percpu_visitor_number, raw_smp_processor_id());
	this_cpu_inc(percpu_visitor_letter);
	percpu_check_static_u64(c, &percpu_static_slot, PERCPU_SLOT_OFFSET, 0,
				7);
	percpu_check_static_u16(c, &percpu_static_slot, PERCPU_SLOT_OFFSET, 0,
				7);
	cond_resched();

	return 0;
}

static void check_all(struct percpu_checks *c, struct percpu_view *view)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		percpu_check(c, "number from outside", cpu,
			     per_cpu(percpu_visitor_number, cpu), NUMBER);
		percpu_check(c, "letter from outside", cpu,
			     per_cpu(percpu_visitor_letter, cpu), 'x');
	}

	/*
	 * Others may plug CPUs meanwhile; one that was not visited is
	 * unchanged.
	 */
	percpu_on_each_cpu(visit, c);
	for_each_possible_cpu(cpu)
		if (per_cpu(percpu_visitor_letter, cpu) != 'x')
			percpu_check(c, "number after a visit", cpu,
				     per_cpu(percpu_visitor_number, cpu),
				     NUMBER + cpu);

	view->checks = c;
	view->memory = percpu_visitor_bytes;
	view->size = sizeof(percpu_visitor_bytes);
	percpu_on_each_cpu(percpu_view_visit_zeroes, view);
	percpu_view_compare(view);
}

static int __init percpu_visitor_init(void)
{
	struct percpu_view *view = kzalloc(sizeof(*view), GFP_KERNEL);
	struct percpu_checks checks = { };

	if (!view)
		return -ENOMEM;
	check_all(&checks, view);
	kfree(view);
	if (!checks.failed)
		return 0;
	pr_err("%lu of %lu checks failed: %s\n", checks.failed, checks.done,
	       checks.first);

	return -EIO;
}

static void __exit percpu_visitor_exit(void) { }

module_init(percpu_visitor_init);
module_exit(percpu_visitor_exit);

MODULE_DESCRIPTION("Static per-CPU variables that come and go");
MODULE_LICENSE("GPL");
