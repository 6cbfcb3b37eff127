// SPDX-License-Identifier: GPL-2.0-only
/*
 * this_cpu_*() where they are not one instruction, for kernels with a preemption count.
 *
 * Until the boot CPU has its own table, and for good where the local map is off, they are
 * the classic operation on this CPU's copy with preemption disabled.
 *
 * With the local map but without LSE, they are an exclusive pair on the local address. It
 * may be preempted and go on elsewhere in between: the return to it clears the exclusive
 * monitor, the store fails, and the loop starts anew on the new CPU's copy.
 *
 * Any code may use per-CPU data, so nothing here can be traced, probed or instrumented.
 */
#include <linux/export.h>
#include <linux/percpu.h>
#include <linux/preempt.h>

#ifdef CONFIG_PREEMPT_COUNT

static __always_inline bool has_local_map(void)
{
	return alternative_has_cap_unlikely(ARM64_HAS_PERCPU_LOCAL);
}

/* The operation with preemption disabled on @__ptr, this CPU's copy. */
#define classic(ptr, sz, op)							\
({										\
	u##sz *__ptr;								\
										\
	preempt_disable_notrace();						\
	__ptr = raw_cpu_ptr((u##sz __percpu __force *)(ptr));				\
	op;									\
	preempt_enable_notrace();						\
})

/* A loop of an exclusive pair: @calc makes %[new] of %[old] and %[val]. */
#define llsc(ptr, sz, w, sfx, val, calc)					\
({										\
	unsigned long __old, __new;						\
	unsigned int __fail;							\
										\
	asm volatile("1:	ldxr" #sfx "	%" #w "[old], [%[addr]]\n"	\
		     "	" calc "\n"						\
		     "	stxr" #sfx "	%w[fail], %" #w "[new], [%[addr]]\n"	\
		     "	cbnz	%w[fail], 1b"					\
		     : [old] "=&r" (__old), [new] "=&r" (__new), [fail] "=&r" (__fail),	\
		       "+Q" (*(u##sz *)(ptr))					\
		     : [addr] "r" (__pcp_local_addr(ptr)), [_val] "r" (val));	\
	(u##sz)__old;								\
})

#define SLOW_OPS(sz, w, sfx)							\
noinstr unsigned long __pcp_slow_read_##sz(void *ptr)				\
{										\
	unsigned long ret;							\
										\
	classic(ptr, sz, ret = READ_ONCE(*__ptr));				\
	return ret;								\
}										\
EXPORT_SYMBOL(__pcp_slow_read_##sz);						\
										\
noinstr void __pcp_slow_write_##sz(void *ptr, unsigned long val)		\
{										\
	classic(ptr, sz, WRITE_ONCE(*__ptr, val));				\
}										\
EXPORT_SYMBOL(__pcp_slow_write_##sz);						\
										\
noinstr void __pcp_slow_add_##sz(void *ptr, unsigned long val)			\
{										\
	if (has_local_map())							\
		llsc(ptr, sz, w, sfx, val, "add %x[new], %x[old], %x[_val]");	\
	else									\
		classic(ptr, sz, __percpu_add_case_##sz(__ptr, val));		\
}										\
EXPORT_SYMBOL(__pcp_slow_add_##sz);						\
										\
noinstr void __pcp_slow_andnot_##sz(void *ptr, unsigned long val)		\
{										\
	if (has_local_map())							\
		llsc(ptr, sz, w, sfx, val, "bic %x[new], %x[old], %x[_val]");	\
	else									\
		classic(ptr, sz, __percpu_andnot_case_##sz(__ptr, val));	\
}										\
EXPORT_SYMBOL(__pcp_slow_andnot_##sz);						\
										\
noinstr void __pcp_slow_or_##sz(void *ptr, unsigned long val)			\
{										\
	if (has_local_map())							\
		llsc(ptr, sz, w, sfx, val, "orr %x[new], %x[old], %x[_val]");	\
	else									\
		classic(ptr, sz, __percpu_or_case_##sz(__ptr, val));		\
}										\
EXPORT_SYMBOL(__pcp_slow_or_##sz);						\
										\
noinstr unsigned long __pcp_slow_add_return_##sz(void *ptr, unsigned long val)	\
{										\
	unsigned long ret;							\
										\
	if (has_local_map())							\
		return (u##sz)(val +						\
			       llsc(ptr, sz, w, sfx, val, "add %x[new], %x[old], %x[_val]"));	\
	classic(ptr, sz, ret = __percpu_add_return_case_##sz(__ptr, val));	\
	return ret;								\
}										\
EXPORT_SYMBOL(__pcp_slow_add_return_##sz);					\
										\
noinstr unsigned long __pcp_slow_xchg_##sz(void *ptr, unsigned long val)	\
{										\
	unsigned long ret;							\
										\
	if (has_local_map())							\
		return llsc(ptr, sz, w, sfx, val, "mov %x[new], %x[_val]");	\
	classic(ptr, sz, ret = arch_xchg_relaxed(__ptr, (u##sz)val));		\
	return ret;								\
}										\
EXPORT_SYMBOL(__pcp_slow_xchg_##sz);						\
										\
noinstr unsigned long								\
__pcp_slow_cmpxchg_##sz(void *ptr, unsigned long old, unsigned long new)	\
{										\
	unsigned long ret;							\
										\
	if (has_local_map()) {							\
		unsigned int fail;						\
										\
		asm volatile("1:	ldxr" #sfx "	%" #w "[ret], [%[addr]]\n"	\
			     "	cmp	%x[ret], %x[old]\n"			\
			     "	b.ne	2f\n"					\
			     "	stxr" #sfx "	%w[fail], %" #w "[new], [%[addr]]\n"	\
			     "	cbnz	%w[fail], 1b\n"				\
			     "2:"						\
			     : [ret] "=&r" (ret), [fail] "=&r" (fail), "+Q" (*(u##sz *)ptr)	\
			     : [addr] "r" (__pcp_local_addr(ptr)),		\
			       [old] "r" ((unsigned long)(u##sz)old), [new] "r" (new)	\
			     : "cc");						\
		return ret;							\
	}									\
	classic(ptr, sz, ret = arch_cmpxchg_relaxed(__ptr, (u##sz)old, (u##sz)new));	\
	return ret;								\
}										\
EXPORT_SYMBOL(__pcp_slow_cmpxchg_##sz)

SLOW_OPS(8, w, b);
SLOW_OPS(16, w, h);
SLOW_OPS(32, w,);
SLOW_OPS(64, x,);

noinstr u128 __pcp_slow_cmpxchg_128(void *ptr, u128 old, u128 new)
{
	u128 ret;

	if (has_local_map()) {
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

	classic(ptr, 128, ret = arch_cmpxchg128_local(__ptr, old, new));
	return ret;
}
EXPORT_SYMBOL(__pcp_slow_cmpxchg_128);

#endif /* CONFIG_PREEMPT_COUNT */
