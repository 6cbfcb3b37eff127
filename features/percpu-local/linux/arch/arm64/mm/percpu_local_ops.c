// SPDX-License-Identifier: GPL-2.0-only
/*
 * this_cpu_cmpxchg128() where it is not one instruction.
 *
 * Any code may use per-CPU data, so nothing here can be traced, probed or
 * instrumented.
 */
#include <linux/export.h>
#include <linux/percpu.h>
#include <linux/preempt.h>

#ifdef CONFIG_PREEMPT_COUNT
noinstr u128 __pcp_llsc_cmpxchg_128(void *ptr, u128 old, u128 new)
{
	union __u128_halves r, o = { .full = old }, n = { .full = new };
	unsigned long fail;

	asm volatile("1:	ldxp	%[lo], %[hi], [%[addr]]\n"
		     "	cmp	%[lo], %[old_lo]\n"
		     "	ccmp	%[hi], %[old_hi], #0, eq\n"
		     "	b.ne	2f\n"
		     "	stxp	%w[fail], %[new_lo], %[new_hi], [%[addr]]\n"
		     "	cbnz	%w[fail], 1b\n"
		     "	b	3f\n"
		     /* Both halves are of one moment if they can be stored. */
		     "2:	stxp	%w[fail], %[lo], %[hi], [%[addr]]\n"
		     "	cbnz	%w[fail], 1b\n"
		     "3:"
		     : [lo] "=&r" (r.low), [hi] "=&r" (r.high),
		       [fail] "=&r" (fail), "+Q" (*(u128 *)ptr)
		     : [addr] "r" (__pcp_local_addr(ptr)),
		       [old_lo] "r" (o.low), [old_hi] "r" (o.high),
		       [new_lo] "r" (n.low), [new_hi] "r" (n.high)
		     : "cc", "memory");
	return r.full;
}
EXPORT_SYMBOL(__pcp_llsc_cmpxchg_128);
#endif

noinstr u128 __pcp_classic_cmpxchg_128(void *ptr, u128 old, u128 new)
{
	u128 ret;

	preempt_disable_notrace();
	ret = arch_cmpxchg128_local(raw_cpu_ptr((u128 __percpu __force *)ptr),
				    old, new);
	preempt_enable_notrace();
	return ret;
}
EXPORT_SYMBOL(__pcp_classic_cmpxchg_128);
