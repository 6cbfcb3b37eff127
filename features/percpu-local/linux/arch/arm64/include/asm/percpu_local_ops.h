/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * this_cpu_*() on local addresses: see Documentation/arch/arm64/percpu-local.rst.
 *
 * Each operation is one instruction on an address that means this CPU's copy on whichever
 * CPU executes it, so neither preemption nor migration has to be kept away. A local
 * address is only ever an integer, and what is done with it is written in assembly: no
 * pointer to local data can escape, and no sanitizer looks at it.
 *
 * Which form runs is chosen at boot by patching a branch. What is not chosen is out of the
 * way: with a preemption count in functions, without one inline but at the end.
 *
 * Included by asm/percpu.h only, which has the classic forms.
 */
#ifndef __ASM_PERCPU_LOCAL_OPS_H
#define __ASM_PERCPU_LOCAL_OPS_H

#include <asm/alternative-macros.h>
#include <asm/cpucaps.h>
#include <asm/lse.h>
#include <asm/percpu_local_layout.h>

#define __pcp_local_addr(ptr)	((unsigned long)(ptr) | PERCPU_LOCAL_BIT)

/*
 * The compiler knows an access by the per-CPU pointer's own address: no C code may access
 * that, but it can be the same variable as far as this_cpu_ptr() tells the compiler.
 */
#define __PCP_LOCAL_RW(sz, w, sfx)						\
static __always_inline unsigned long __pcp_local_read_##sz(void *ptr)		\
{										\
	unsigned long ret;							\
										\
	asm volatile("ldr" #sfx "\t%" #w "[ret], [%[addr]]"			\
		     : [ret] "=r" (ret)						\
		     : [addr] "r" (__pcp_local_addr(ptr)), "m" (*(u##sz *)ptr));	\
										\
	return (u##sz)ret;							\
}										\
										\
static __always_inline void __pcp_local_write_##sz(void *ptr, unsigned long val)	\
{										\
	asm volatile("str" #sfx "\t%" #w "[val], [%[addr]]"			\
		     : "+m" (*(u##sz *)ptr)					\
		     : [addr] "r" (__pcp_local_addr(ptr)), [val] "rZ" ((u##sz)val));	\
}

/* Load and store in one, LSE: [ret] is what was there before. */
#define __PCP_LOCAL_RMW(sz, w, sfx, name, insn)					\
static __always_inline unsigned long						\
__pcp_local_##name##_##sz(void *ptr, unsigned long val)				\
{										\
	unsigned long ret;							\
										\
	asm volatile(__LSE_PREAMBLE						\
		     #insn #sfx "\t%" #w "[val], %" #w "[ret], [%[addr]]"	\
		     : [ret] "=r" (ret), "+m" (*(u##sz *)ptr)			\
		     : [addr] "r" (__pcp_local_addr(ptr)), [val] "rZ" ((u##sz)val));	\
										\
	return (u##sz)ret;							\
}

#define __PCP_LOCAL_CMPXCHG(sz, w, sfx)						\
static __always_inline unsigned long						\
__pcp_local_cmpxchg_##sz(void *ptr, unsigned long old, unsigned long new)	\
{										\
	asm volatile(__LSE_PREAMBLE						\
		     "cas" #sfx "\t%" #w "[old], %" #w "[new], [%[addr]]"	\
		     : [old] "+r" (old), "+m" (*(u##sz *)ptr)			\
		     : [addr] "r" (__pcp_local_addr(ptr)), [new] "rZ" ((u##sz)new));	\
										\
	return (u##sz)old;							\
}

#define __PCP_LOCAL_OPS(sz, w, sfx)						\
	__PCP_LOCAL_RW(sz, w, sfx)						\
	__PCP_LOCAL_RMW(sz, w, sfx, fetch_add, ldadd)				\
	__PCP_LOCAL_RMW(sz, w, sfx, fetch_andnot, ldclr)			\
	__PCP_LOCAL_RMW(sz, w, sfx, fetch_or, ldset)				\
	__PCP_LOCAL_RMW(sz, w, sfx, xchg, swp)					\
	__PCP_LOCAL_CMPXCHG(sz, w, sfx)

__PCP_LOCAL_OPS(8, w, b)
__PCP_LOCAL_OPS(16, w, h)
__PCP_LOCAL_OPS(32, w,)
__PCP_LOCAL_OPS(64, x,)

#undef __PCP_LOCAL_OPS
#undef __PCP_LOCAL_CMPXCHG
#undef __PCP_LOCAL_RMW
#undef __PCP_LOCAL_RW

static __always_inline u128 __pcp_local_cmpxchg_128(void *ptr, u128 old, u128 new)
{
	unsigned long addr = __pcp_local_addr(ptr);
	register unsigned long x0 asm("x0") = old;
	register unsigned long x1 asm("x1") = old >> 64;
	register unsigned long x2 asm("x2") = new;
	register unsigned long x3 asm("x3") = new >> 64;

	asm volatile(__LSE_PREAMBLE
		     "casp\t%[old_lo], %[old_hi], %[new_lo], %[new_hi], [%[addr]]"
		     : [old_lo] "+&r" (x0), [old_hi] "+&r" (x1), "+m" (*(u128 *)ptr)
		     : [addr] "r" (addr), [new_lo] "r" (x2), [new_hi] "r" (x3));

	return (u128)x1 << 64 | x0;
}

/*
 * A read or a write is one instruction by itself. Without a preemption count, the classic
 * form is no longer than the local one, and needs no choice.
 */
#ifdef CONFIG_PREEMPT_COUNT

#define __PCP_SLOW_DECLARE(sz)							\
unsigned long __pcp_slow_read_##sz(void *ptr);					\
void __pcp_slow_write_##sz(void *ptr, unsigned long val);			\
void __pcp_slow_add_##sz(void *ptr, unsigned long val);				\
void __pcp_slow_andnot_##sz(void *ptr, unsigned long val);			\
void __pcp_slow_or_##sz(void *ptr, unsigned long val);				\
unsigned long __pcp_slow_add_return_##sz(void *ptr, unsigned long val);		\
unsigned long __pcp_slow_xchg_##sz(void *ptr, unsigned long val);		\
unsigned long __pcp_slow_cmpxchg_##sz(void *ptr, unsigned long old, unsigned long new);

__PCP_SLOW_DECLARE(8)
__PCP_SLOW_DECLARE(16)
__PCP_SLOW_DECLARE(32)
__PCP_SLOW_DECLARE(64)
#undef __PCP_SLOW_DECLARE

u128 __pcp_slow_cmpxchg_128(void *ptr, u128 old, u128 new);

#define __pcp_has_local_rw()	alternative_has_cap_likely(ARM64_HAS_PERCPU_LOCAL)

#else /* !CONFIG_PREEMPT_COUNT */

/* Nothing preempts: only interrupts come between, and they return to the same CPU. */
#define __pcp_classic_ptr(sz, ptr)	((u##sz *)((ptr) + __my_cpu_offset))

#define __PCP_SLOW_DEFINE(sz)							\
static __always_inline unsigned long __pcp_slow_read_##sz(void *ptr)		\
{										\
	return __percpu_read_##sz(__pcp_classic_ptr(sz, ptr));		\
}										\
static __always_inline void __pcp_slow_write_##sz(void *ptr, unsigned long val)	\
{										\
	__percpu_write_##sz(__pcp_classic_ptr(sz, ptr), val);		\
}										\
static __always_inline void __pcp_slow_add_##sz(void *ptr, unsigned long val)	\
{										\
	__percpu_add_case_##sz(__pcp_classic_ptr(sz, ptr), val);		\
}										\
static __always_inline void __pcp_slow_andnot_##sz(void *ptr, unsigned long val)	\
{										\
	__percpu_andnot_case_##sz(__pcp_classic_ptr(sz, ptr), val);	\
}										\
static __always_inline void __pcp_slow_or_##sz(void *ptr, unsigned long val)	\
{										\
	__percpu_or_case_##sz(__pcp_classic_ptr(sz, ptr), val);		\
}										\
static __always_inline unsigned long						\
__pcp_slow_add_return_##sz(void *ptr, unsigned long val)			\
{										\
	return __percpu_add_return_case_##sz(__pcp_classic_ptr(sz, ptr), val);	\
}										\
static __always_inline unsigned long						\
__pcp_slow_xchg_##sz(void *ptr, unsigned long val)				\
{										\
	return arch_xchg_relaxed(__pcp_classic_ptr(sz, ptr), (u##sz)val);	\
}										\
static __always_inline unsigned long						\
__pcp_slow_cmpxchg_##sz(void *ptr, unsigned long old, unsigned long new)	\
{										\
	return arch_cmpxchg_relaxed(__pcp_classic_ptr(sz, ptr),	\
				    (u##sz)old, (u##sz)new);			\
}

__PCP_SLOW_DEFINE(8)
__PCP_SLOW_DEFINE(16)
__PCP_SLOW_DEFINE(32)
__PCP_SLOW_DEFINE(64)
#undef __PCP_SLOW_DEFINE

static __always_inline u128 __pcp_slow_cmpxchg_128(void *ptr, u128 old, u128 new)
{
	return arch_cmpxchg128_local(__pcp_classic_ptr(128, ptr), old, new);
}

#define __pcp_has_local_rw()	false

#endif /* CONFIG_PREEMPT_COUNT */

#define __pcp_has_local_lse()	alternative_has_cap_likely(ARM64_HAS_PERCPU_LOCAL_LSE)

#define __pcp_read(sz, pcp)							\
({										\
	void *ptr__ = (__force void *)&(pcp);					\
										\
	(typeof(pcp))(__pcp_has_local_rw() ? __pcp_local_read_##sz(ptr__) :	\
					     __pcp_slow_read_##sz(ptr__));	\
})

#define __pcp_write(sz, pcp, val)						\
({										\
	void *ptr__ = (__force void *)&(pcp);					\
	unsigned long val__ = (unsigned long)(val);				\
										\
	if (__pcp_has_local_rw())						\
		__pcp_local_write_##sz(ptr__, val__);				\
	else									\
		__pcp_slow_write_##sz(ptr__, val__);				\
})

#define __pcp_rmw(sz, name, pcp, val)						\
({										\
	void *ptr__ = (__force void *)&(pcp);					\
	unsigned long val__ = (unsigned long)(val);				\
										\
	if (__pcp_has_local_lse())						\
		__pcp_local_fetch_##name##_##sz(ptr__, val__);			\
	else									\
		__pcp_slow_##name##_##sz(ptr__, val__);				\
})

#define __pcp_add_return(sz, pcp, val)						\
({										\
	void *ptr__ = (__force void *)&(pcp);					\
	unsigned long val__ = (unsigned long)(val);				\
										\
	(typeof(pcp))(__pcp_has_local_lse() ?					\
		      (u##sz)(__pcp_local_fetch_add_##sz(ptr__, val__) + val__) :	\
		      (u##sz)__pcp_slow_add_return_##sz(ptr__, val__));		\
})

#define __pcp_xchg(sz, pcp, val)						\
({										\
	void *ptr__ = (__force void *)&(pcp);					\
	unsigned long val__ = (unsigned long)(val);				\
										\
	(typeof(pcp))(__pcp_has_local_lse() ?					\
		      __pcp_local_xchg_##sz(ptr__, val__) :			\
		      __pcp_slow_xchg_##sz(ptr__, val__));			\
})

#define __pcp_cmpxchg(sz, pcp, old, new)					\
({										\
	void *ptr__ = (__force void *)&(pcp);					\
	unsigned long old__ = (unsigned long)(old);				\
	unsigned long new__ = (unsigned long)(new);				\
										\
	(typeof(pcp))(__pcp_has_local_lse() ?					\
		      __pcp_local_cmpxchg_##sz(ptr__, old__, new__) :		\
		      __pcp_slow_cmpxchg_##sz(ptr__, old__, new__));		\
})

#define this_cpu_read_1(pcp)			__pcp_read(8, pcp)
#define this_cpu_read_2(pcp)			__pcp_read(16, pcp)
#define this_cpu_read_4(pcp)			__pcp_read(32, pcp)
#define this_cpu_read_8(pcp)			__pcp_read(64, pcp)

#define this_cpu_write_1(pcp, val)		__pcp_write(8, pcp, val)
#define this_cpu_write_2(pcp, val)		__pcp_write(16, pcp, val)
#define this_cpu_write_4(pcp, val)		__pcp_write(32, pcp, val)
#define this_cpu_write_8(pcp, val)		__pcp_write(64, pcp, val)

#define this_cpu_add_1(pcp, val)		__pcp_rmw(8, add, pcp, val)
#define this_cpu_add_2(pcp, val)		__pcp_rmw(16, add, pcp, val)
#define this_cpu_add_4(pcp, val)		__pcp_rmw(32, add, pcp, val)
#define this_cpu_add_8(pcp, val)		__pcp_rmw(64, add, pcp, val)

#define this_cpu_add_return_1(pcp, val)		__pcp_add_return(8, pcp, val)
#define this_cpu_add_return_2(pcp, val)		__pcp_add_return(16, pcp, val)
#define this_cpu_add_return_4(pcp, val)		__pcp_add_return(32, pcp, val)
#define this_cpu_add_return_8(pcp, val)		__pcp_add_return(64, pcp, val)

#define this_cpu_and_1(pcp, val)		__pcp_rmw(8, andnot, pcp, ~(u8)(val))
#define this_cpu_and_2(pcp, val)		__pcp_rmw(16, andnot, pcp, ~(u16)(val))
#define this_cpu_and_4(pcp, val)		__pcp_rmw(32, andnot, pcp, ~(u32)(val))
#define this_cpu_and_8(pcp, val)		__pcp_rmw(64, andnot, pcp, ~(u64)(val))

#define this_cpu_or_1(pcp, val)			__pcp_rmw(8, or, pcp, val)
#define this_cpu_or_2(pcp, val)			__pcp_rmw(16, or, pcp, val)
#define this_cpu_or_4(pcp, val)			__pcp_rmw(32, or, pcp, val)
#define this_cpu_or_8(pcp, val)			__pcp_rmw(64, or, pcp, val)

#define this_cpu_xchg_1(pcp, val)		__pcp_xchg(8, pcp, val)
#define this_cpu_xchg_2(pcp, val)		__pcp_xchg(16, pcp, val)
#define this_cpu_xchg_4(pcp, val)		__pcp_xchg(32, pcp, val)
#define this_cpu_xchg_8(pcp, val)		__pcp_xchg(64, pcp, val)

#define this_cpu_cmpxchg_1(pcp, o, n)		__pcp_cmpxchg(8, pcp, o, n)
#define this_cpu_cmpxchg_2(pcp, o, n)		__pcp_cmpxchg(16, pcp, o, n)
#define this_cpu_cmpxchg_4(pcp, o, n)		__pcp_cmpxchg(32, pcp, o, n)
#define this_cpu_cmpxchg_8(pcp, o, n)		__pcp_cmpxchg(64, pcp, o, n)

#define this_cpu_cmpxchg64(pcp, o, n)		this_cpu_cmpxchg_8(pcp, o, n)

#define this_cpu_cmpxchg128(pcp, o, n)						\
({										\
	void *ptr__ = (__force void *)&(pcp);					\
	u128 old__ = (o);							\
	u128 new__ = (n);							\
										\
	__pcp_has_local_lse() ? __pcp_local_cmpxchg_128(ptr__, old__, new__) :	\
				__pcp_slow_cmpxchg_128(ptr__, old__, new__);	\
})

#endif /* __ASM_PERCPU_LOCAL_OPS_H */
