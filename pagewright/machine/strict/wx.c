// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which memory may be written, and which may be executed by the kernel: by any
 * translation that is in the tables, or that a TLB may still hold.
 *
 * For each page of memory there are two counts of such translations.  What
 * table descriptors forbid for all below them is not looked at: the kernel
 * says it in the leaves too.
 */
#include <stddef.h>
#include <sys/mman.h>

#include "model.h"

#define FRAME_SHIFT	12
#define NR_FRAMES	BIT(40 - FRAME_SHIFT)

struct frame {
	unsigned short writable;
	unsigned short executable;
};

static struct frame *frames;

static bool prepare(void)
{
	if (!frames)
		frames = mmap(NULL, NR_FRAMES * sizeof(*frames),
			      PROT_READ | PROT_WRITE, MAP_PRIVATE |
			      MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return frames != MAP_FAILED;
}

/**
 * count_leaf() - a translation comes or goes
 * @desc: its descriptor
 * @level: of its table
 * @by: 1 or -1
 *
 * Return: true if there is memory now that may be written and executed, and to
 *	   which this translation contributes.
 */
bool count_leaf(u64 desc, int level, int by)
{
	bool writable = desc_writable(desc), executable = !(desc & DESC_PXN);
	u64 pa = desc_address(&model.geometry, desc, level);
	u64 first = pa >> FRAME_SHIFT, i;
	bool both = false;

	if ((!writable && !executable) || !prepare() ||
	    !model_memory(pa, granule(level)))
		return false;
	for (i = first; i < first + (granule(level) >> FRAME_SHIFT); i++) {
		if (i >= NR_FRAMES)
			break;
		if (writable)
			frames[i].writable += by;
		if (executable)
			frames[i].executable += by;
		both |= frames[i].writable && frames[i].executable;
	}
	return both && by > 0;
}
