// SPDX-License-Identifier: GPL-2.0-only
/*
 * Says that this kernel must not be used: it changes live vmemmap entries as if there was
 * no break-before-make. It is what the other ways to do it are measured against.
 */
#define pr_fmt(fmt) "HugeTLB: " fmt

#include <linux/init.h>
#include <linux/printk.h>

static int __init warn_naive(void)
{
	pr_warn("vmemmap optimization without break-before-make: for measurements in an emulator only\n");
	return 0;
}
late_initcall(warn_naive);
