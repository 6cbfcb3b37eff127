// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instructions of this_cpu_read() and this_cpu_add() on static variables
 * if the local region were within ADRP's reach of the image and of modules.
 *
 * Then the assembly would name the variable's local address itself. No kernel
 * has a region there. What is named here is a variable of this module, which
 * ADRP reaches, too, and so takes the same instructions. Which form runs is
 * chosen as it is now.
 */
#include <linux/percpu.h>

static u64 near_copy __used;

static __always_inline u64 near_read(u64 __percpu *p)
{
	u64 *page, ret;

	if (!alternative_has_cap_likely(ARM64_HAS_PERCPU_LOCAL))
		return raw_cpu_read_8(*p);
	asm("adrp	%0, %1" : "=r" (page) : "S" (&near_copy));
	/*
	 * The load has the lower bits of the address. To the compiler, what
	 * page points at may be any variable.
	 */
	asm volatile("ldr	%0, [%1, :lo12:%2]"
		     : "=r" (ret)
		     : "r" (page), "S" (&near_copy), "m" (*page));

	return ret;
}

static __always_inline void near_add(u64 __percpu *p, u64 v)
{
	unsigned long addr;

	if (!alternative_has_cap_likely(ARM64_HAS_PERCPU_LOCAL_LSE)) {
		raw_cpu_add_8(*p, v);
		return;
	}
	asm("adrp	%0, %1\n"
	    "add	%0, %0, :lo12:%1"
	    : "=r" (addr)
	    : "S" (&near_copy));
	/* To name the variable itself as the operand would take another ADRP. */
	__pcp_local_add_64((void *)addr, addr, v);
}

#define form_read(pcp)		near_read((u64 __percpu *)&(pcp))
#define form_add(pcp, v)	near_add((u64 __percpu *)&(pcp), v)

#include "percpu_forms.h"
