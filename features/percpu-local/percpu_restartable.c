// SPDX-License-Identifier: GPL-2.0-only
/*
 * The instructions of another design: restartable per-CPU sequences.
 *
 * An operation computes the address of this CPU's copy and changes it in one
 * atomic instruction, and says in a table from where to where that is. A kernel
 * that is about to preempt a task looks its program counter up in the table,
 * and if the task is in a sequence, sets it back to where that begins. Nothing
 * has happened before the last instruction, and with that all has.
 *
 * This module has the sequences and the table, for operations on 8 bytes, but
 * no kernel looks at it: the benchmark counts with interrupts off.
 */
/* Whatever uses per-CPU data, before the operations are others. */
#include <linux/debugfs.h>
#include <linux/kernel.h>
#include <linux/math64.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/seq_file.h>
#include <linux/timekeeping.h>

#include <asm/alternative.h>
#include <asm/lse.h>

#define SEQUENCE(last)							\
	"1:	" ALTERNATIVE("mrs	%[addr], tpidr_el1",		\
			      "mrs	%[addr], tpidr_el2",		\
			      ARM64_HAS_VIRT_HOST_EXTN) "\n"		\
	"	" last "\n"						\
	"2:\n"								\
	"	.pushsection .rodata.percpu_restart, \"a\"\n"		\
	"	.long	1b - ., 2b - 1b\n"				\
	"	.popsection\n"

static __always_inline u64 restartable_read(u64 __percpu *p)
{
	u64 addr, ret;

	asm volatile(SEQUENCE("ldr	%[ret], [%[addr], %[p]]")
		     : [addr] "=&r" (addr), [ret] "=r" (ret)
		     : [p] "r" (p), "m" (*(__force u64 *)p));

	return ret;
}

static __always_inline void restartable_write(u64 __percpu *p, u64 v)
{
	u64 addr;

	asm volatile(SEQUENCE("str	%[v], [%[addr], %[p]]")
		     : [addr] "=&r" (addr), "=m" (*(__force u64 *)p)
		     : [p] "r" (p), [v] "rZ" (v));
}

#define DEFINE_CHANGE(name, insn)					\
static __always_inline u64 restartable_##name(u64 __percpu *p, u64 v)	\
{									\
	u64 addr, ret;							\
									\
	asm volatile(__LSE_PREAMBLE					\
		     SEQUENCE("add	%[addr], %[addr], %[p]\n"	\
			      #insn "	%[v], %[ret], [%[addr]]")	\
		     : [addr] "=&r" (addr), [ret] "=&r" (ret),		\
		       "+m" (*(__force u64 *)p)				\
		     : [p] "r" (p), [v] "rZ" (v)			\
		     : "memory");					\
									\
	return ret;							\
}

DEFINE_CHANGE(add, ldadd)
DEFINE_CHANGE(andnot, ldclr)
DEFINE_CHANGE(or, ldset)
DEFINE_CHANGE(xchg, swp)

static __always_inline u64 restartable_add_return(u64 __percpu *p, u64 v)
{
	return restartable_add(p, v) + v;
}

/* Only the last instruction changes old, which a restart needs as it was. */
static __always_inline u64
restartable_cmpxchg(u64 __percpu *p, u64 old, u64 new)
{
	u64 addr;

	asm volatile(__LSE_PREAMBLE
		     SEQUENCE("add	%[addr], %[addr], %[p]\n"
			      "cas	%[old], %[new], [%[addr]]")
		     : [addr] "=&r" (addr), [old] "+&r" (old),
		       "+m" (*(__force u64 *)p)
		     : [p] "r" (p), [new] "rZ" (new)
		     : "memory");

	return old;
}

#define P(pcp)	((u64 __percpu *)&(pcp))
#undef this_cpu_read_8
#undef this_cpu_write_8
#undef this_cpu_add_8
#undef this_cpu_add_return_8
#undef this_cpu_and_8
#undef this_cpu_or_8
#undef this_cpu_xchg_8
#undef this_cpu_cmpxchg_8
#define this_cpu_read_8(pcp)		restartable_read(P(pcp))
#define this_cpu_write_8(pcp, v)	restartable_write(P(pcp), v)
#define this_cpu_add_8(pcp, v)		((void)restartable_add(P(pcp), v))
#define this_cpu_add_return_8(pcp, v)	restartable_add_return(P(pcp), v)
#define this_cpu_and_8(pcp, v)		((void)restartable_andnot(P(pcp), ~(v)))
#define this_cpu_or_8(pcp, v)		((void)restartable_or(P(pcp), v))
#define this_cpu_xchg_8(pcp, v)		restartable_xchg(P(pcp), v)
#define this_cpu_cmpxchg_8(pcp, o, n)	restartable_cmpxchg(P(pcp), o, n)

#include "linux/lib/percpu_bench.c"
