// SPDX-License-Identifier: GPL-2.0-only
/*
 * The torture with operations that are broken on purpose: it has to find out.
 *
 * Each parameter breaks one operation of one size. It is done then as it would be if it
 * were not one piece, and not always on this CPU's copy. Without any parameter this is the
 * torture itself.
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

/* The operations as they are. */
#define GOOD(type, name, operation, ...)					\
static __always_inline type good_ ## name(__VA_ARGS__) { return operation; }
#define GOOD_VOID(name, operation, ...)						\
static __always_inline void good_ ## name(__VA_ARGS__) { operation; }

GOOD_VOID(add_8, this_cpu_add_8(*p, v), u64 __percpu *p, u64 v)
GOOD_VOID(add_4, this_cpu_add_4(*p, v), u32 __percpu *p, u32 v)
GOOD(u16, add_return_2, this_cpu_add_return_2(*p, v), u16 __percpu *p, u16 v)
GOOD_VOID(and_1, this_cpu_and_1(*p, v), u8 __percpu *p, u8 v)
GOOD_VOID(or_8, this_cpu_or_8(*p, v), u64 __percpu *p, u64 v)
GOOD_VOID(write_8, this_cpu_write_8(*p, v), u64 __percpu *p, u64 v)
GOOD(u64, read_8, this_cpu_read_8(*p), u64 __percpu *p)
GOOD(u32, xchg_4, this_cpu_xchg_4(*p, v), u32 __percpu *p, u32 v)
GOOD(u64, cmpxchg_8, this_cpu_cmpxchg_8(*p, o, n), u64 __percpu *p, u64 o, u64 n)
GOOD(u128, cmpxchg128, this_cpu_cmpxchg128(*p, o, n), u128 __percpu *p, u128 o, u128 n)

/* A broken one works on what was this CPU's copy a while ago. */
#define STALE(type, p)	((volatile type *)raw_cpu_ptr(p))

static __always_inline void any_add_8(u64 __percpu *p, u64 v)
{
	volatile u64 *copy = STALE(u64, p);

	if (broken_add)
		*copy = *copy + v;
	else
		good_add_8(p, v);
}

static __always_inline void any_add_4(u32 __percpu *p, u32 v)
{
	atomic_t *copy = (atomic_t *)raw_cpu_ptr(p);
	unsigned int wait = 1000;

	if (!broken_add_elsewhere)
		return good_add_4(p, v);
	/* As if this CPU had an old translation for a while. */
	while (wait--)
		cpu_relax();
	atomic_add(v, copy);
}

static __always_inline u16 any_add_return_2(u16 __percpu *p, u16 v)
{
	volatile u16 *copy = STALE(u16, p);

	return broken_add_return ? (*copy = *copy + v) : good_add_return_2(p, v);
}

static __always_inline void any_and_1(u8 __percpu *p, u8 v)
{
	volatile u8 *copy = STALE(u8, p);

	if (broken_and)
		*copy = *copy & v;
	else
		good_and_1(p, v);
}

static __always_inline void any_or_8(u64 __percpu *p, u64 v)
{
	volatile u64 *copy = STALE(u64, p);

	if (broken_or)
		*copy = *copy | v;
	else
		good_or_8(p, v);
}

static __always_inline void any_write_8(u64 __percpu *p, u64 v)
{
	volatile u32 *halves = STALE(u32, (u32 __percpu *)p);

	if (broken_write) {
		halves[0] = v;
		halves[1] = v >> 32;
	} else {
		good_write_8(p, v);
	}
}

static __always_inline u64 any_read_8(u64 __percpu *p)
{
	volatile u32 *halves = STALE(u32, (u32 __percpu *)p);

	return broken_read ? halves[0] | (u64)halves[1] << 32 : good_read_8(p);
}

static __always_inline u32 any_xchg_4(u32 __percpu *p, u32 v)
{
	volatile u32 *copy = STALE(u32, p);
	u32 old;

	if (!broken_xchg)
		return good_xchg_4(p, v);
	old = *copy;
	*copy = v;

	return old;
}

static __always_inline u64 any_cmpxchg_8(u64 __percpu *p, u64 o, u64 n)
{
	volatile u64 *copy = STALE(u64, p);
	u64 old;

	if (!broken_cmpxchg)
		return good_cmpxchg_8(p, o, n);
	old = *copy;
	if (old == o)
		*copy = n;

	return old;
}

static __always_inline u128 any_cmpxchg128(u128 __percpu *p, u128 o, u128 n)
{
	u128 *copy = raw_cpu_ptr(p);
	u128 old;

	if (!broken_cmpxchg128)
		return good_cmpxchg128(p, o, n);
	old = *copy;
	barrier();
	if (old == o)
		*copy = n;

	return old;
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

/* In the tree: <...> starts at arch/arm64/include. */
#include <../mm/percpu_local_torture.c>
