/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * this_cpu_*() on local addresses: see
 * Documentation/arch/arm64/percpu-local.rst.
 *
 * Each operation is one instruction on an address that means this CPU's copy on
 * whichever CPU executes it, so neither preemption nor migration has to be kept
 * away. A local address is only ever an integer, and what is done with it is
 * written in assembly: no pointer to local data can escape. Nor does a sanitizer
 * look at it.
 *
 * Which form runs is chosen at boot by patching one branch. The others are
 * inline but out of the way, at the end of the function, and leave no trace in
 * the straight path: neither a stack frame nor a register saved. (But those of
 * 16 bytes are functions: as the compiler reckons, SLUB's fast paths would grow
 * too large to be inlined.)
 *
 * Included by asm/percpu.h only, which has the classic forms.
 */
#ifndef __ASM_PERCPU_LOCAL_OPS_H
#define __ASM_PERCPU_LOCAL_OPS_H

#include <asm/alternative-macros.h>
#include <asm/cpucaps.h>
#include <asm/lse.h>
#include <asm/percpu_local_layout.h>

/* NULL stays NULL, which nobody can map. */
#define __pcp_local_addr(ptr)	((unsigned long)(ptr) & ~PERCPU_LOCAL_BIT)
/* The instruction of the same, for what chooses. */
#define __PCP_LOCAL_AND		"and	%x[addr], %x[ptr], %[mask]"

/*
 * The memory operand names the variable at the per-CPU pointer's own address. C
 * code never accesses that address. But this_cpu_ptr() hides from the compiler
 * how its result is computed, so the compiler has to assume that both may be
 * the same variable, and keeps the accesses in order.
 *
 * Operations that change the variable and return a value are compiler barriers
 * as well, because callers use the result to decide who may use other
 * variables. Reads, writes and operations without a result are not, as they are
 * not on x86. All classic forms are barriers, as each disables preemption.
 */
#define __PCP_LOCAL_RW(sz, w, sfx)					\
static __always_inline unsigned long					\
__pcp_local_read_##sz(void *ptr, unsigned long addr)			\
{									\
	unsigned long ret;						\
									\
	asm volatile("ldr" #sfx "\t%" #w "[ret], [%[addr]]"		\
		     : [ret] "=r" (ret)					\
		     : [addr] "r" (addr), "m" (*(u##sz *)ptr));		\
									\
	return (u##sz)ret;						\
}									\
									\
static __always_inline void						\
__pcp_local_write_##sz(void *ptr, unsigned long addr, unsigned long val) \
{									\
	asm volatile("str" #sfx "\t%" #w "[val], [%[addr]]"		\
		     : "+m" (*(u##sz *)ptr)				\
		     : [addr] "r" (addr), [val] "rZ" (val));		\
}

/* Load and store in one, LSE: [ret] is what was there before. */
#define __PCP_LOCAL_RMW(sz, w, sfx, name, insn, cl...)			\
static __always_inline unsigned long					\
__pcp_local_##name##_##sz(void *ptr, unsigned long addr,		\
			  unsigned long val)				\
{									\
	unsigned long ret;						\
									\
	asm volatile(__LSE_PREAMBLE					\
		     #insn #sfx "\t%" #w "[val], %" #w "[ret], [%[addr]]" \
		     : [ret] "=r" (ret), "+m" (*(u##sz *)ptr)		\
		     : [addr] "r" (addr), [val] "rZ" (val)		\
		     : cl);						\
									\
	return (u##sz)ret;						\
}

#define __PCP_LOCAL_CMPXCHG(sz, w, sfx)					\
static __always_inline unsigned long					\
__pcp_local_cmpxchg_##sz(void *ptr, unsigned long addr,			\
			 unsigned long old, unsigned long new)		\
{									\
	asm volatile(__LSE_PREAMBLE					\
		     "cas" #sfx "\t%" #w "[old], %" #w "[new], [%[addr]]" \
		     : [old] "+r" (old), "+m" (*(u##sz *)ptr)		\
		     : [addr] "r" (addr), [new] "rZ" (new)		\
		     : "memory");					\
									\
	return (u##sz)old;						\
}

#define __PCP_LOCAL_OPS(sz, w, sfx)					\
	__PCP_LOCAL_RW(sz, w, sfx)					\
	__PCP_LOCAL_RMW(sz, w, sfx, add, ldadd)				\
	__PCP_LOCAL_RMW(sz, w, sfx, andnot, ldclr)			\
	__PCP_LOCAL_RMW(sz, w, sfx, or, ldset)				\
	__PCP_LOCAL_RMW(sz, w, sfx, fetch_add, ldadd, "memory")		\
	__PCP_LOCAL_RMW(sz, w, sfx, xchg, swp, "memory")		\
	__PCP_LOCAL_CMPXCHG(sz, w, sfx)

__PCP_LOCAL_OPS(8, w, b)
__PCP_LOCAL_OPS(16, w, h)
__PCP_LOCAL_OPS(32, w,)
__PCP_LOCAL_OPS(64, x,)

#undef __PCP_LOCAL_OPS
#undef __PCP_LOCAL_CMPXCHG
#undef __PCP_LOCAL_RMW
#undef __PCP_LOCAL_RW

static __always_inline u128
__pcp_local_cmpxchg_128(void *ptr, unsigned long addr, u128 old, u128 new)
{
	union __u128_halves o = { .full = old }, n = { .full = new };
	register unsigned long x0 asm("x0") = o.low;
	register unsigned long x1 asm("x1") = o.high;
	register unsigned long x2 asm("x2") = n.low;
	register unsigned long x3 asm("x3") = n.high;

	/* The first register of a pair is the half at the lower address. */
	asm volatile(__LSE_PREAMBLE
		     "casp\t%[old1], %[old2], %[new1], %[new2], [%[addr]]"
		     : [old1] "+&r" (x0), [old2] "+&r" (x1), "+m" (*(u128 *)ptr)
		     : [addr] "r" (addr), [new1] "r" (x2), [new2] "r" (x3)
		     : "memory");

	o.low = x0;
	o.high = x1;
	return o.full;
}

/*
 * The same as exclusive pairs, for CPUs without LSE. A pair may be preempted
 * and go on elsewhere in between: the return to it clears the exclusive
 * monitor, the store fails, and the loop starts anew on the new CPU's copy.
 */
#define __PCP_LLSC_RMW(sz, w, sfx, name, insn, cl...)			\
static __always_inline unsigned long					\
__pcp_llsc_##name##_##sz(void *ptr, unsigned long addr,			\
			 unsigned long val)				\
{									\
	unsigned long ret, new;						\
	unsigned int fail;						\
									\
	asm_inline volatile("1:	ldxr" #sfx "	%" #w "[ret], [%[addr]]\n" \
			    "	" insn "\n"				\
			    "	stxr" #sfx "	%w[fail], %" #w "[new], " \
				"[%[addr]]\n"				\
			    "	cbnz	%w[fail], 1b"			\
			    : [ret] "=&r" (ret), [new] "=&r" (new),	\
			      [fail] "=&r" (fail), "+m" (*(u##sz *)ptr)	\
			    : [addr] "r" (addr), [val] "r" (val)	\
			    : cl);					\
									\
	return (u##sz)ret;						\
}

#define __PCP_LLSC_CMPXCHG(sz, w, sfx)					\
static __always_inline unsigned long					\
__pcp_llsc_cmpxchg_##sz(void *ptr, unsigned long addr,			\
			unsigned long old, unsigned long new)		\
{									\
	unsigned long ret;						\
	unsigned int fail;						\
									\
	asm_inline volatile("1:	ldxr" #sfx "	%" #w "[ret], [%[addr]]\n" \
			    "	cmp	%x[ret], %x[old]\n"		\
			    "	b.ne	2f\n"				\
			    "	stxr" #sfx "	%w[fail], %" #w "[new], " \
				"[%[addr]]\n"				\
			    "	cbnz	%w[fail], 1b\n"			\
			    "2:"					\
			    : [ret] "=&r" (ret), [fail] "=&r" (fail),	\
			      "+m" (*(u##sz *)ptr)			\
			    : [addr] "r" (addr),			\
			      [old] "r" ((unsigned long)(u##sz)old),	\
			      [new] "rZ" (new)				\
			    : "cc", "memory");				\
									\
	return ret;							\
}

#define __PCP_LLSC_OPS(sz, w, sfx)					\
	__PCP_LLSC_RMW(sz, w, sfx, add, "add %x[new], %x[ret], %x[val]") \
	__PCP_LLSC_RMW(sz, w, sfx, andnot, "bic %x[new], %x[ret], %x[val]") \
	__PCP_LLSC_RMW(sz, w, sfx, or, "orr %x[new], %x[ret], %x[val]")	\
	__PCP_LLSC_RMW(sz, w, sfx, fetch_add, "add %x[new], %x[ret], %x[val]", \
		       "memory")					\
	__PCP_LLSC_RMW(sz, w, sfx, xchg, "mov %x[new], %x[val]", "memory") \
	__PCP_LLSC_CMPXCHG(sz, w, sfx)

__PCP_LLSC_OPS(8, w, b)
__PCP_LLSC_OPS(16, w, h)
__PCP_LLSC_OPS(32, w,)
__PCP_LLSC_OPS(64, x,)

#undef __PCP_LLSC_OPS
#undef __PCP_LLSC_CMPXCHG
#undef __PCP_LLSC_RMW

u128 __pcp_llsc_cmpxchg_128(void *ptr, u128 old, u128 new);
u128 __pcp_classic_cmpxchg_128(void *ptr, u128 old, u128 new);

/*
 * __cold is empty where functions have to be aligned, for the sake of cold
 * functions; only GCC knows cold labels.
 */
#ifdef CONFIG_CC_IS_GCC
#define __pcp_cold	__attribute__((__cold__))
#else
#define __pcp_cold
#endif

enum __pcp_form { __PCP_CLASSIC, __PCP_LLSC, __PCP_LSE };

/*
 * Is the local form chosen, which takes @cap? Then @addr is set. Where the
 * compiler knows an asm goto with an output, the instruction that replaces the
 * branch computes the address. Otherwise it is a NOP, and the compiler adds
 * the AND. With outputs, some releases of GCC do not take an asm goto for
 * volatile unless it says so (see asm_goto_output(), which is never inline).
 */
static __always_inline bool __pcp_is_local(const unsigned long cap, void *ptr,
					   unsigned long *addr)
{
#ifdef CONFIG_CC_HAS_ASM_GOTO_OUTPUT
	asm_inline volatile goto(ALTERNATIVE("b	%l[classic]",
					     __PCP_LOCAL_AND, %[cap])
				 : [addr] "=r" (*addr)
				 : [ptr] "r" (ptr),
				   [mask] "i" (~PERCPU_LOCAL_BIT),
				   [cap] "i" (cap)
				 : : classic);

	return true;
classic: __pcp_cold;
	return false;
#else
	*addr = __pcp_local_addr(ptr);

	return alternative_has_cap_likely(cap);
#endif
}

/*
 * Choose the form of a read-modify-write, and set @addr if it is a local one:
 * the branch is patched twice, and comes from the later entry where both
 * capabilities are there. Without a preemption count, classic and exclusive
 * pairs are of the same length.
 */
static __always_inline enum __pcp_form __pcp_rmw_form(void *ptr,
						      unsigned long *addr)
{
#ifdef CONFIG_PREEMPT_COUNT
#ifdef CONFIG_CC_HAS_ASM_GOTO_OUTPUT
	asm_inline volatile goto(ALTERNATIVE_2("b	%l[classic]",
					       "b	%l[llsc]", %[local],
					       __PCP_LOCAL_AND, %[lse])
				 : [addr] "=r" (*addr)
				 : [ptr] "r" (ptr),
				   [mask] "i" (~PERCPU_LOCAL_BIT),
				   [local] "i" (ARM64_HAS_PERCPU_LOCAL),
				   [lse] "i" (ARM64_HAS_PERCPU_LOCAL_LSE)
				 : : classic, llsc);
#else
	asm_inline goto(ALTERNATIVE_2_CB("b	%l[classic]",
					 "b	%l[llsc]", %[local],
					 %[lse], alt_cb_patch_nops)
			: : [local] "i" (ARM64_HAS_PERCPU_LOCAL),
			    [lse] "i" (ARM64_HAS_PERCPU_LOCAL_LSE)
			: : classic, llsc);
	*addr = __pcp_local_addr(ptr);
#endif

	return __PCP_LSE;
llsc:	__pcp_cold;
	*addr = __pcp_local_addr(ptr);
	return __PCP_LLSC;
classic: __pcp_cold;
	return __PCP_CLASSIC;
#else
	return __pcp_is_local(ARM64_HAS_PERCPU_LOCAL_LSE, ptr, addr) ?
	       __PCP_LSE : __PCP_CLASSIC;
#endif
}

/*
 * A read or a write is one instruction by itself. Without a preemption count,
 * the classic form is no longer than the local one, and needs no choice.
 */
static __always_inline bool __pcp_rw_is_local(void *ptr, unsigned long *addr)
{
	return IS_ENABLED(CONFIG_PREEMPT_COUNT) &&
	       __pcp_is_local(ARM64_HAS_PERCPU_LOCAL, ptr, addr);
}

/*
 * The classic form of what returns a value. Enabling preemption calls the
 * scheduler, and a value that lives across a call needs a register that the
 * whole function has to save first. So the result is not that value, but a copy
 * that is made afterwards: the compiler saves a register on this path only.
 * Without a preemption count there is no such call.
 */
#ifdef CONFIG_PREEMPT_COUNT
#define __pcp_classic_return(op, pcp, args...)				\
({									\
	__auto_type kept__ = _pcp_protect_return(op, pcp, ##args);	\
	typeof(kept__) copy__;						\
									\
	asm volatile("mov\t%x0, %x1" : "=&r" (copy__) : "r" (kept__));	\
	copy__;								\
})
#else
#define __pcp_classic_return	_pcp_protect_return
#endif

#define __pcp_read(sz, pcp)						\
({									\
	typeof(pcp) __percpu *ptr__ = &(pcp);				\
	void *raw__ = (__force void *)ptr__;				\
	unsigned long addr__;						\
	typeof(pcp) val__;						\
									\
	if (__pcp_rw_is_local(raw__, &addr__))				\
		val__ = (typeof(pcp))__pcp_local_read_##sz(raw__, addr__); \
	else								\
		val__ = __pcp_classic_return(__percpu_read_##sz, *ptr__); \
	val__;								\
})

#define __pcp_write(sz, pcp, val)					\
({									\
	typeof(pcp) __percpu *ptr__ = &(pcp);				\
	void *raw__ = (__force void *)ptr__;				\
	unsigned long val__ = (unsigned long)(val);			\
	unsigned long addr__;						\
									\
	if (__pcp_rw_is_local(raw__, &addr__))				\
		__pcp_local_write_##sz(raw__, addr__, val__);		\
	else								\
		_pcp_protect(__percpu_write_##sz, *ptr__, val__);	\
})

/*
 * Of three expressions, evaluate the one whose form is chosen. All of them find
 * the pointer in raw__, and the first two the local address in addr__.
 */
#define __pcp_choose(lse, llsc, classic)				\
({									\
	unsigned long addr__;						\
									\
	switch (__pcp_rmw_form(raw__, &addr__)) {			\
	case __PCP_LSE:							\
		lse;							\
		break;							\
	case __PCP_LLSC:						\
		llsc;							\
		break;							\
	case __PCP_CLASSIC:						\
		classic;						\
		break;							\
	}								\
})

#define __pcp_choose_return(type, lse, llsc, classic)			\
({									\
	type ret__;							\
									\
	__pcp_choose(ret__ = (type)(lse), ret__ = (type)(llsc),		\
		     ret__ = (classic));				\
	ret__;								\
})

#define __pcp_rmw(sz, name, pcp, val)					\
({									\
	typeof(pcp) __percpu *ptr__ = &(pcp);				\
	void *raw__ = (__force void *)ptr__;				\
	unsigned long val__ = (unsigned long)(val);			\
									\
	__pcp_choose(__pcp_local_##name##_##sz(raw__, addr__, val__),	\
		     __pcp_llsc_##name##_##sz(raw__, addr__, val__),	\
		     _pcp_protect(__percpu_##name##_case_##sz, *ptr__,	\
				  val__));				\
})

/* The complement as an exclusive or: no bits that a later cast would drop. */
#define __pcp_and(sz, pcp, val)						\
	__pcp_rmw(sz, andnot, pcp, (u##sz)(val) ^ U##sz##_MAX)

#define __pcp_add_return(sz, pcp, val)					\
({									\
	typeof(pcp) __percpu *ptr__ = &(pcp);				\
	void *raw__ = (__force void *)ptr__;				\
	unsigned long val__ = (unsigned long)(val);			\
									\
	__pcp_choose_return(typeof(pcp),				\
		(u##sz)(__pcp_local_fetch_add_##sz(raw__, addr__, val__) + val__), \
		(u##sz)(__pcp_llsc_fetch_add_##sz(raw__, addr__, val__) + val__), \
		__pcp_classic_return(__percpu_add_return_case_##sz,	\
				     *ptr__, val__));			\
})

#define __pcp_xchg(sz, pcp, val)					\
({									\
	typeof(pcp) __percpu *ptr__ = &(pcp);				\
	void *raw__ = (__force void *)ptr__;				\
	typeof(pcp) val__ = (val);					\
	unsigned long bits__ = (unsigned long)val__;			\
									\
	__pcp_choose_return(typeof(pcp),				\
		__pcp_local_xchg_##sz(raw__, addr__, bits__),		\
		__pcp_llsc_xchg_##sz(raw__, addr__, bits__),		\
		__pcp_classic_return(xchg_relaxed, *ptr__, val__));	\
})

#define __pcp_cmpxchg(sz, pcp, old, new)				\
({									\
	typeof(pcp) __percpu *ptr__ = &(pcp);				\
	void *raw__ = (__force void *)ptr__;				\
	typeof(pcp) old__ = (old);					\
	typeof(pcp) new__ = (new);					\
	unsigned long from__ = (unsigned long)old__;			\
	unsigned long to__ = (unsigned long)new__;			\
									\
	__pcp_choose_return(typeof(pcp),				\
		__pcp_local_cmpxchg_##sz(raw__, addr__, from__, to__),	\
		__pcp_llsc_cmpxchg_##sz(raw__, addr__, from__, to__),	\
		__pcp_classic_return(cmpxchg_relaxed, *ptr__, old__, new__)); \
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

#define this_cpu_and_1(pcp, val)		__pcp_and(8, pcp, val)
#define this_cpu_and_2(pcp, val)		__pcp_and(16, pcp, val)
#define this_cpu_and_4(pcp, val)		__pcp_and(32, pcp, val)
#define this_cpu_and_8(pcp, val)		__pcp_and(64, pcp, val)

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

#define this_cpu_cmpxchg128(pcp, o, n)					\
({									\
	typeof(pcp) __percpu *ptr__ = &(pcp);				\
	void *raw__ = (__force void *)ptr__;				\
	u128 old__ = (o);						\
	u128 new__ = (n);						\
									\
	__pcp_choose_return(u128,					\
		__pcp_local_cmpxchg_128(raw__, addr__, old__, new__),	\
		__pcp_llsc_cmpxchg_128(raw__, old__, new__),		\
		__pcp_classic_cmpxchg_128(raw__, old__, new__));	\
})

#endif /* __ASM_PERCPU_LOCAL_OPS_H */
