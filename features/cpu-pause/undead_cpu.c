// SPDX-License-Identifier: GPL-2.0-only
/*
 * While this module is loaded, no CPU that goes off line is known to be gone: firmware says that it
 * is on. It is where a host does not run the virtual CPU.
 *
 * With another answer it is other firmware: one that does not know what the kernel asks it (-1), or
 * one that does not know the CPU (-2).
 */
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/ptrace.h>
#include <uapi/linux/psci.h>

static int says = PSCI_0_2_AFFINITY_LEVEL_ON;
module_param(says, int, 0644);
MODULE_PARM_DESC(says, "What AFFINITY_INFO returns");

static int answer(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	regs_set_return_value(regs, READ_ONCE(says));

	return 0;
}

static struct kretprobe probe = {
	.handler = answer,
	.kp.symbol_name = "psci_affinity_info",
};

static int __init undead_cpu_init(void)
{
	return register_kretprobe(&probe);
}
module_init(undead_cpu_init);

static void __exit undead_cpu_exit(void)
{
	unregister_kretprobe(&probe);
}
module_exit(undead_cpu_exit);

MODULE_DESCRIPTION("CPUs that are not known to be gone, for tests");
MODULE_LICENSE("GPL");
