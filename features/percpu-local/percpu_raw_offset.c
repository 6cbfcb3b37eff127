// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instructions of raw_cpu_read() and raw_cpu_add() where what is chosen is
 * the offset that is added to the per-CPU pointer: that in TPIDR, or the one
 * from which a local address comes.
 *
 * Then nothing else has to be chosen. An atomic addition is right with either.
 */
#include <linux/percpu.h>

#include <asm/alternative.h>

static __always_inline unsigned long chosen_offset(void)
{
	unsigned long offset;

	asm volatile(ALTERNATIVE_2("mrs	%0, tpidr_el1",
				   "mrs	%0, tpidr_el2",
				   ARM64_HAS_VIRT_HOST_EXTN,
				   "mov	%0, %1",
				   ARM64_HAS_PERCPU_LOCAL)
		     : "=r" (offset)
		     : "i" (-PERCPU_LOCAL_BIT));

	return offset;
}

static __always_inline u64 offset_read(u64 __percpu *p)
{
	unsigned long offset = chosen_offset();
	u64 ret;

	asm volatile("ldr	%0, [%1, %2]"
		     : "=r" (ret)
		     : "r" (p), "r" (offset), "m" (*(__force u64 *)p));

	return ret;
}

static __always_inline void offset_add(u64 __percpu *p, u64 v)
{
	__pcp_local_add_64((__force void *)p,
			   (unsigned long)p + chosen_offset(), v);
}

#define form_read(pcp)		offset_read((u64 __percpu *)&(pcp))
#define form_add(pcp, v)	offset_add((u64 __percpu *)&(pcp), v)

#include "percpu_forms.h"
