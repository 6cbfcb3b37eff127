// SPDX-License-Identifier: GPL-2.0-only
/*
 * As percpu_near.c, but the compiler makes the local address, of the variable's
 * and a constant distance.
 *
 * In place of the variable there is a label 2 GiB above one of this module, so
 * that there is memory at that distance.
 */
#include <linux/percpu.h>
#include <linux/sizes.h>

static u64 near_copy __used;
DECLARE_PER_CPU(u64, far_label);
asm(".set far_label, near_copy + 0x80000000");

static __always_inline u64 near_read(u64 __percpu *p)
{
	unsigned long addr = (unsigned long)&far_label - SZ_2G;

	if (!alternative_has_cap_likely(ARM64_HAS_PERCPU_LOCAL))
		return raw_cpu_read_8(*p);

	return __pcp_local_read_64((void *)addr, addr);
}

static __always_inline void near_add(u64 __percpu *p, u64 v)
{
	unsigned long addr = (unsigned long)&far_label - SZ_2G;

	if (alternative_has_cap_likely(ARM64_HAS_PERCPU_LOCAL_LSE))
		__pcp_local_add_64((void *)addr, addr, v);
	else
		raw_cpu_add_8(*p, v);
}

#define form_read(pcp)		near_read((u64 __percpu *)&(pcp))
#define form_add(pcp, v)	near_add((u64 __percpu *)&(pcp), v)

#include "percpu_forms.h"
