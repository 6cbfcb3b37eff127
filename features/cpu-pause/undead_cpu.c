// SPDX-License-Identifier: GPL-2.0-only
/*
 * While this module is loaded, no CPU that goes off line is known to be gone: what the kernel asks
 * of PSCI has timed out. A host that does not run the virtual CPU has it so.
 */
#include <linux/errno.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/ptrace.h>

static int time_out(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	regs_set_return_value(regs, -ETIMEDOUT);

	return 0;
}

static struct kretprobe probe = {
	.kp.symbol_name = "cpu_psci_cpu_kill",
	.handler = time_out,
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
