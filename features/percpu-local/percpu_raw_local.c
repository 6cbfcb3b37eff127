// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instructions of raw_cpu_read() and raw_cpu_add() on local addresses.
 *
 * They are chosen as those of this_cpu_*() are. An addition is one atomic
 * instruction: a task that moved between a load and a store would write one
 * CPU's number to another one's copy.
 */
#include <linux/percpu.h>

static __always_inline u64 local_read(u64 __percpu *p)
{
	void *raw = (__force void *)p;
	unsigned long addr;

	if (__pcp_is_local(ARM64_HAS_PERCPU_LOCAL, raw, &addr))
		return __pcp_local_read_64(raw, addr);

	return raw_cpu_read_8(*p);
}

static __always_inline void local_add(u64 __percpu *p, u64 v)
{
	void *raw = (__force void *)p;
	unsigned long addr;

	if (__pcp_is_local(ARM64_HAS_PERCPU_LOCAL_LSE, raw, &addr))
		__pcp_local_add_64(raw, addr, v);
	else
		raw_cpu_add_8(*p, v);
}

#define form_read(pcp)		local_read((u64 __percpu *)&(pcp))
#define form_add(pcp, v)	local_add((u64 __percpu *)&(pcp), v)

#include "percpu_forms.h"
