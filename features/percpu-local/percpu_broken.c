// SPDX-License-Identifier: GPL-2.0-only
/*
 * The torture with operations that are broken on purpose: it has to find out.
 *
 * Each parameter breaks one operation of one size. It is done then as it would
 * be if it were not one piece, and not always on this CPU's copy. Without any
 * parameter this is the torture itself.
 */
#include <linux/atomic.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/processor.h>

#define DEFECT(name, what)						\
	static bool broken_ ## name;					\
	module_param_named(name, broken_ ## name, bool, 0444);		\
	MODULE_PARM_DESC(name, what)

DEFECT(add, "Load, add and store a u64");
DEFECT(add_elsewhere, "Add to a u32 in one piece, but on the CPU where the task was a while ago");
DEFECT(add_return, "Load, add and store a u16");
DEFECT(and, "Load, mask and store a u8");
DEFECT(or, "Load, set and store a u64");
DEFECT(write, "Write the halves of a u64");
DEFECT(read, "Read the halves of a u64");
DEFECT(xchg, "Load and store a u32");
DEFECT(cmpxchg, "Load, compare and store a u64");
DEFECT(cmpxchg128, "Load, compare and store a u128");

/*
 * A broken one works on what was this CPU's copy a while ago: the kernel has
 * that as raw_cpu_generic_*(), for callers who keep others away.
 */

static __always_inline void any_add_8(u64 __percpu *p, u64 v)
{
	if (broken_add)
		raw_cpu_generic_to_op(*p, v, +=);
	else
		this_cpu_add_8(*p, v);
}

static __always_inline void any_add_4(u32 __percpu *p, u32 v)
{
	atomic_t *copy = (atomic_t *)raw_cpu_ptr(p);
	unsigned int wait = 1000;

	if (broken_add_elsewhere) {
		/* As if this CPU had an old translation for a while. */
		while (wait--)
			cpu_relax();
		atomic_add(v, copy);
	} else {
		this_cpu_add_4(*p, v);
	}
}

static __always_inline u16 any_add_return_2(u16 __percpu *p, u16 v)
{
	return broken_add_return ? raw_cpu_generic_add_return(*p, v) :
	       this_cpu_add_return_2(*p, v);
}

static __always_inline void any_and_1(u8 __percpu *p, u8 v)
{
	if (broken_and)
		raw_cpu_generic_to_op(*p, v, &=);
	else
		this_cpu_and_1(*p, v);
}

static __always_inline void any_or_8(u64 __percpu *p, u64 v)
{
	if (broken_or)
		raw_cpu_generic_to_op(*p, v, |=);
	else
		this_cpu_or_8(*p, v);
}

static __always_inline void any_write_8(u64 __percpu *p, u64 v)
{
	u32 *halves = raw_cpu_ptr((u32 __percpu *)p);

	if (broken_write) {
		WRITE_ONCE(halves[0], v);
		WRITE_ONCE(halves[1], v >> 32);
	} else {
		this_cpu_write_8(*p, v);
	}
}

static __always_inline u64 any_read_8(u64 __percpu *p)
{
	u32 *halves = raw_cpu_ptr((u32 __percpu *)p);

	if (!broken_read)
		return this_cpu_read_8(*p);

	return READ_ONCE(halves[0]) | (u64)READ_ONCE(halves[1]) << 32;
}

static __always_inline u32 any_xchg_4(u32 __percpu *p, u32 v)
{
	return broken_xchg ? raw_cpu_generic_xchg(*p, v) :
	       this_cpu_xchg_4(*p, v);
}

static __always_inline u64 any_cmpxchg_8(u64 __percpu *p, u64 o, u64 n)
{
	return broken_cmpxchg ? raw_cpu_generic_cmpxchg(*p, o, n) :
	       this_cpu_cmpxchg_8(*p, o, n);
}

static __always_inline u128 any_cmpxchg128(u128 __percpu *p, u128 o, u128 n)
{
	return broken_cmpxchg128 ? raw_cpu_generic_cmpxchg(*p, o, n) :
	       this_cpu_cmpxchg128(*p, o, n);
}

#undef this_cpu_add_8
#undef this_cpu_add_4
#undef this_cpu_add_return_2
#undef this_cpu_and_1
#undef this_cpu_or_8
#undef this_cpu_write_8
#undef this_cpu_read_8
#undef this_cpu_xchg_4
#undef this_cpu_cmpxchg_8
#undef this_cpu_cmpxchg128
#define this_cpu_add_8(pcp, v)		any_add_8((u64 __percpu *)&(pcp), (u64)(v))
#define this_cpu_add_4(pcp, v)		any_add_4((u32 __percpu *)&(pcp), (u32)(v))
#define this_cpu_add_return_2(pcp, v)	any_add_return_2((u16 __percpu *)&(pcp), (u16)(v))
#define this_cpu_and_1(pcp, v)		any_and_1((u8 __percpu *)&(pcp), (u8)(v))
#define this_cpu_or_8(pcp, v)		any_or_8((u64 __percpu *)&(pcp), (u64)(v))
#define this_cpu_write_8(pcp, v)	any_write_8((u64 __percpu *)&(pcp), (u64)(v))
#define this_cpu_read_8(pcp)		((typeof(pcp))any_read_8((u64 __percpu *)&(pcp)))
#define this_cpu_xchg_4(pcp, v)		((typeof(pcp))any_xchg_4((u32 __percpu *)&(pcp), (u32)(v)))
#define this_cpu_cmpxchg_8(pcp, o, n)	\
	((typeof(pcp))any_cmpxchg_8((u64 __percpu *)&(pcp), (u64)(o), (u64)(n)))
#define this_cpu_cmpxchg128(pcp, o, n)	any_cmpxchg128((u128 __percpu *)&(pcp), o, n)

#include "linux/lib/percpu_torture.c"
