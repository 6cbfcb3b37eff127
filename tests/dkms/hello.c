// SPDX-License-Identifier: GPL-2.0-only
/*
 * A module that DKMS compiles against our headers. It uses per-CPU data and
 * memory of vmalloc(), which features of these kernels map in their own ways.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/vmalloc.h>

static DEFINE_PER_CPU(int, hello_count);

static int __init hello_init(void)
{
	void *memory = vmalloc(PAGE_SIZE);

	if (!memory)
		return -ENOMEM;
	vfree(memory);
	this_cpu_inc(hello_count);
	pr_info("counted %d\n", raw_cpu_read(hello_count));
	return 0;
}

static void __exit hello_exit(void)
{
}

module_init(hello_init);
module_exit(hello_exit);
MODULE_DESCRIPTION("a module that is compiled where it runs");
MODULE_LICENSE("GPL");
