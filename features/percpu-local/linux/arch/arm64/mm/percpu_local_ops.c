// SPDX-License-Identifier: GPL-2.0-only
/*
 * this_cpu_cmpxchg128() where it is not one instruction.
 *
 * Any code may use per-CPU data, so nothing here can be traced, probed or instrumented.
 */
#include <linux/export.h>
#include <linux/percpu.h>
#include <linux/preempt.h>

#ifdef CONFIG_PREEMPT_COUNT
noinstr u128 __pcp_llsc_cmpxchg_128(void *ptr, u128 old, u128 new)
{
	unsigned long lo, hi, fail;

	asm volatile("1:	ldxp	%[lo], %[hi], [%[addr]]\n"
		     "	cmp	%[lo], %[old_lo]\n"
		     "	ccmp	%[hi], %[old_hi], #0, eq\n"
		     "	b.ne	2f\n"
		     "	stxp	%w[fail], %[new_lo], %[new_hi], [%[addr]]\n"
		     "	cbnz	%w[fail], 1b\n"
		     "	b	3f\n"
		     /* Only a store makes sure that both halves are of one moment. */
		     "2:	stxp	%w[fail], %[lo], %[hi], [%[addr]]\n"
		     "	cbnz	%w[fail], 1b\n"
		     "3:"
		     : [lo] "=&r" (lo), [hi] "=&r" (hi), [fail] "=&r" (fail),
		       "+Q" (*(u128 *)ptr)
		     : [addr] "r" (__pcp_local_addr(ptr)),
		       [old_lo] "r" ((u64)old), [old_hi] "r" ((u64)(old >> 64)),
		       [new_lo] "r" ((u64)new), [new_hi] "r" ((u64)(new >> 64))
		     : "cc");
	return (u128)hi << 64 | lo;
}
EXPORT_SYMBOL(__pcp_llsc_cmpxchg_128);
#endif

noinstr u128 __pcp_classic_cmpxchg_128(void *ptr, u128 old, u128 new)
{
	u128 ret;

	preempt_disable_notrace();
	ret = arch_cmpxchg128_local(raw_cpu_ptr((u128 __percpu __force *)ptr), old, new);
	preempt_enable_notrace();
	return ret;
}
EXPORT_SYMBOL(__pcp_classic_cmpxchg_128);
