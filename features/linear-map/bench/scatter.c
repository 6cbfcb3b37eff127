// SPDX-License-Identifier: GPL-2.0-only
/*
 * Leaves free memory as a server's is after a while: pages here and there.
 *
 * When it is loaded it takes all memory in pieces of 2 MiB but for some, and
 * gives back a few pages of each, in random order.  What is allocated from then
 * on, a page at a time, comes from all over the memory.  It never gives back
 * the rest.  Half of the pieces are for what can be moved, as the page cache,
 * the other half for what cannot.
 *
 * The order is the same each time.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/prandom.h>
#include <linux/sizes.h>
#include <linux/swap.h>
#include <linux/vmalloc.h>

static unsigned int left_mib = 1024;
module_param(left_mib, uint, 0444);
MODULE_PARM_DESC(left_mib, "memory that is left alone, in MiB");

static unsigned int pages_each = 16;
module_param(pages_each, uint, 0444);
MODULE_PARM_DESC(pages_each, "pages of each piece that are free");

#define ORDER	(ilog2(SZ_2M) - PAGE_SHIFT)

/* Take pieces until little is left; returns how many. */
static unsigned long take(struct page **pieces, unsigned long room)
{
	unsigned long nr;

	for (nr = 0; nr < room; nr++) {
		gfp_t gfp = nr % 2 ? GFP_KERNEL : GFP_HIGHUSER_MOVABLE;

		pieces[nr] = alloc_pages(gfp | __GFP_NOWARN | __GFP_NORETRY,
					 ORDER);
		if (!pieces[nr])
			break;
		split_page(pieces[nr], ORDER);
	}
	return nr;
}

static int __init scatter_init(void)
{
	unsigned long left = (unsigned long)left_mib * SZ_1M / PAGE_SIZE;
	unsigned long free = nr_free_pages(), room, nr, total, i;
	struct page **pieces, **pages;
	struct rnd_state random;

	if (free <= left || !pages_each || pages_each >= 1U << ORDER)
		return -EINVAL;
	room = (free - left) >> ORDER;
	pieces = vmalloc(room * sizeof(*pieces));
	pages = vmalloc(room * pages_each * sizeof(*pages));
	if (!pieces || !pages) {
		vfree(pieces);
		vfree(pages);
		return -ENOMEM;
	}

	nr = take(pieces, room);
	total = nr * pages_each;
	prandom_seed_state(&random, 1);
	/* Each page is alone: it has a stretch of its piece for itself. */
	for (i = 0; i < total; i++) {
		unsigned int stretch = (1U << ORDER) / pages_each;
		unsigned int at = i % pages_each * stretch +
				  prandom_u32_state(&random) % stretch;

		pages[i] = pieces[i / pages_each] + at;
	}
	for (i = total; i > 1; i--)
		swap(pages[i - 1], pages[prandom_u32_state(&random) % i]);
	for (i = 0; i < total; i++)
		__free_page(pages[i]);
	pr_info("%lu pages of %lu pieces are free\n", total, nr);
	vfree(pieces);
	vfree(pages);
	return 0;
}
module_init(scatter_init);

MODULE_DESCRIPTION("Scatters free memory");
MODULE_LICENSE("GPL");
