// SPDX-License-Identifier: GPL-2.0-only
/*
 * Adds memory that holds its own struct pages (memmap_on_memory), as ACPI does where there
 * are slots for memory. The machine is booted with mem= and less than it has; what is
 * behind that is added here, for good: there is no way to remove the module.
 */
#include <linux/ioport.h>
#include <linux/memory_hotplug.h>
#include <linux/module.h>

static unsigned long start;
module_param(start, ulong, 0444);
MODULE_PARM_DESC(start, "Physical address of the memory");

static unsigned long size;
module_param(size, ulong, 0444);
MODULE_PARM_DESC(size, "Its size");

static int __init self_hosted_init(void)
{
	if (!mhp_supports_memmap_on_memory())
		return -EOPNOTSUPP;

	return add_memory_driver_managed(0, start, size, "System RAM (test)",
					 MHP_MEMMAP_ON_MEMORY);
}
module_init(self_hosted_init);

MODULE_DESCRIPTION("Memory that holds its own struct pages, for tests");
MODULE_LICENSE("GPL");
