// SPDX-License-Identifier: GPL-2.0-only
/*
 * The local regions in /sys/kernel/debug/kernel_page_tables_cpu/N, and in the
 * check for pages that are writable and executable.
 */
#include <linux/cpumask.h>
#include <linux/debugfs.h>
#include <linux/mm.h>
#include <linux/ptdump.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include <asm/percpu_local.h>
#include <asm/ptdump.h>

#include "percpu_local.h"

#ifdef CONFIG_PTDUMP_DEBUGFS
static const struct ptdump_info *kernel_info __ro_after_init;

static int percpu_table_show(struct seq_file *m, void *v)
{
	struct ptdump_info info = *kernel_info;

	info.pgd = percpu_local_table_of((unsigned long)m->private)->pgd;
	ptdump_walk(m, &info);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(percpu_table);

/**
 * percpu_local_ptdump_register() - make a debugfs file for each CPU's kernel
 * page table
 * @kernel: how that of the kernel is shown
 *
 * Context: boot.
 */
void __init percpu_local_ptdump_register(const struct ptdump_info *kernel)
{
	struct dentry *dir;
	unsigned long cpu;
	char name[12];

	if (!percpu_local_enabled())
		return;

	kernel_info = kernel;
	dir = debugfs_create_dir("kernel_page_tables_cpu", NULL);
	for_each_possible_cpu(cpu) {
		snprintf(name, sizeof(name), "%lu", cpu);
		debugfs_create_file(name, 0400, dir, (void *)cpu,
				    &percpu_table_fops);
	}
}
#else
void __init percpu_local_ptdump_register(const struct ptdump_info *kernel) { }
#endif

/**
 * percpu_local_ptdump_check() - look at the local region of each CPU as well
 * @state: of the walk over the kernel's own tables, which counts what it finds
 *
 * Context: process; takes init_mm's mmap_lock.
 */
void percpu_local_ptdump_check(struct ptdump_state *state)
{
	const struct percpu_local_space *space = percpu_local_get_space();
	const struct ptdump_range *before = state->range;
	const struct ptdump_range range[] = {
		{ ALIGN_DOWN(space->local, PMD_SIZE),
		  ALIGN(space->local + space->size, PMD_SIZE) },
		{ 0, 0 }
	};
	unsigned int cpu;

	if (!percpu_local_enabled())
		return;

	state->range = range;
	for_each_possible_cpu(cpu)
		ptdump_walk_pgd(state, &init_mm,
				percpu_local_table_of(cpu)->pgd);
	state->range = before;
}
