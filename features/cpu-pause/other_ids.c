// SPDX-License-Identifier: GPL-2.0-only
/*
 * While this module is loaded, CPU 2 has another ID than its MPIDR_EL1, as secondary CPUs have in
 * some device trees. Firmware takes that for the CPU that it means.
 */
#include <linux/bits.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/ptrace.h>

#define CPU		2
#define OTHER_ID	BIT(8)

/* No module may change it, and so it is not exported. */
static u64 *logical_map;

static int know_id(struct kprobe *probe, struct pt_regs *regs)
{
	regs->regs[0] &= ~OTHER_ID;

	return 0;
}

static struct kprobe cpu_on = { .symbol_name = "psci_0_2_cpu_on", .pre_handler = know_id };
static struct kprobe affinity_info = {
	.symbol_name = "psci_affinity_info", .pre_handler = know_id
};

static struct kprobe *probes[] = { &cpu_on, &affinity_info };

/* A probe of it says where it is. */
static struct kprobe lookup = {
	.symbol_name = "kallsyms_lookup_name",
};

static int __init other_ids_init(void)
{
	unsigned long (*lookup_name)(const char *name);
	int ret = register_kprobe(&lookup);

	if (ret)
		return ret;
	lookup_name = (void *)lookup.addr;
	unregister_kprobe(&lookup);
	logical_map = (u64 *)lookup_name("__cpu_logical_map");
	if (!logical_map)
		return -ENOENT;

	ret = register_kprobes(probes, ARRAY_SIZE(probes));
	if (!ret)
		logical_map[CPU] |= OTHER_ID;

	return ret;
}
module_init(other_ids_init);

static void __exit other_ids_exit(void)
{
	logical_map[CPU] &= ~OTHER_ID;
	unregister_kprobes(probes, ARRAY_SIZE(probes));
}
module_exit(other_ids_exit);

MODULE_DESCRIPTION("CPUs with other IDs than MPIDR_EL1, for tests");
MODULE_LICENSE("GPL");
