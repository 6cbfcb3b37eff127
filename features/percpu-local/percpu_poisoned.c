// SPDX-License-Identifier: GPL-2.0-only
/*
 * While this module is loaded, the page of an address is marked as one that has a memory error.
 *
 * That is all that memory failure does to a page which the kernel has for itself, and can be
 * undone here. Nothing frees the page meanwhile: it is one of static per-CPU data.
 */
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/page-flags.h>

static unsigned long address;
module_param(address, ulong, 0400);
MODULE_PARM_DESC(address, "kernel address in the page");

static struct page *page;

static int __init percpu_poisoned_init(void)
{
	const void *data = (void *)address;

	if (is_vmalloc_or_module_addr(data))
		page = vmalloc_to_page(data);
	else if (virt_addr_valid(data))
		page = virt_to_page(data);
	if (!page)
		return -ENXIO;

	SetPageHWPoison(page);

	return 0;
}
module_init(percpu_poisoned_init);

static void __exit percpu_poisoned_exit(void)
{
	ClearPageHWPoison(page);
}
module_exit(percpu_poisoned_exit);

MODULE_DESCRIPTION("A page with a memory error, for tests");
MODULE_LICENSE("GPL");
