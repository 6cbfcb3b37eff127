/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Checks of the per-CPU operations, for a KUnit suite and for a module.
 *
 * They know only the generic API, and hold on any kernel. There are two kinds.
 *
 * Checks of operations: each operation works on a variable in the middle of a
 * slot. The slot of this CPU is filled with a pattern through its global
 * address before, and looked at through that address after; what was not to
 * change must be as it was.
 *
 * Checks of views: what per_cpu_ptr() shows of a piece of per-CPU memory must
 * be what the this_cpu_*() operations reach on that CPU, at every address.
 * Reads and writes alone would not do. An architecture may make them at the
 * very address that per_cpu_ptr() returns, and only read-modify-writes at
 * another one. arm64 does that with a local map if there is no preemption
 * count. So there are read-modify-writes at every address, too.
 */
#ifndef __LIB_PERCPU_CHECKS_H
#define __LIB_PERCPU_CHECKS_H

#include <linux/build_bug.h>
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/kernel.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <linux/string.h>
#include <linux/workqueue.h>

/*
 * Operations on 128 bits are checked. On x86-64 they call a function that is
 * not exported, for CPUs without the instruction; and there user-mode Linux
 * does not declare what tells such CPUs apart.
 */
#if defined(system_has_cmpxchg128) && \
	!(defined(CONFIG_X86_64) && (defined(MODULE) || defined(CONFIG_UML)))
#define PERCPU_CHECKS_128
#endif

/**
 * struct percpu_checks - how many checks were made, and how they ended
 * @done: checks made
 * @failed: how many of them failed
 * @first: what the first failure was
 *
 * Written by one task or interrupt handler at a time.
 */
struct percpu_checks {
	unsigned long done;
	unsigned long failed;
	char first[160];
};

static noinline __maybe_unused void
percpu_check_failed(struct percpu_checks *c, const char *what,
		    unsigned long place, s64 got, s64 wanted)
{
	if (!c->failed++)
		snprintf(c->first, sizeof(c->first),
			 "CPU %u: %s (at %lu): 0x%llx instead of 0x%llx",
			 raw_smp_processor_id(), what, place, got, wanted);
}

static inline void percpu_check(struct percpu_checks *c, const char *what,
				unsigned long place, s64 got, s64 wanted)
{
	c->done++;
	if (unlikely(got != wanted))
		percpu_check_failed(c, what, place, got, wanted);
}

/* Add the result of some checks to others. */
static inline void percpu_checks_add(struct percpu_checks *sum,
				     const struct percpu_checks *more)
{
	sum->done += more->done;
	if (more->failed && !sum->failed)
		strscpy(sum->first, more->first, sizeof(sum->first));
	sum->failed += more->failed;
}

/* Operations */

#define PERCPU_SLOT_FILL	0xa5

/* A multiple of 16, so that every size is aligned there. */
#define PERCPU_SLOT_OFFSET	32

struct percpu_slot {
	u8 bytes[80];
} __aligned(16);

#define percpu_slot_var(T, slot, offset)				\
	(*(T __percpu *)((u8 __percpu *)(slot) + (offset)))

/*
 * The bytes of @value that a variable of @size bytes takes: those of its low
 * end.
 */
static inline const void *percpu_slot_bytes(const s64 *value, size_t size)
{
	const u8 *bytes = (const u8 *)value;

	if (IS_ENABLED(CONFIG_CPU_BIG_ENDIAN))
		bytes += sizeof(*value) - size;

	return bytes;
}

static noinline __maybe_unused void
percpu_slot_begin(struct percpu_slot __percpu *slot, unsigned int offset,
		  size_t size, s64 value)
{
	struct percpu_slot *mine = per_cpu_ptr(slot, raw_smp_processor_id());

	memset(mine, PERCPU_SLOT_FILL, sizeof(*mine));
	memcpy(mine->bytes + offset, percpu_slot_bytes(&value, size), size);
}

static noinline __maybe_unused void
percpu_slot_end(struct percpu_checks *c, struct percpu_slot __percpu *slot,
		unsigned int offset, size_t size, s64 value, const char *what)
{
	struct percpu_slot *mine = per_cpu_ptr(slot, raw_smp_processor_id());
	struct percpu_slot wanted;
	unsigned int i;

	memset(&wanted, PERCPU_SLOT_FILL, sizeof(wanted));
	memcpy(wanted.bytes + offset, percpu_slot_bytes(&value, size), size);
	c->done++;
	if (likely(!memcmp(mine, &wanted, sizeof(wanted))))
		return;
	for (i = 0; i < sizeof(wanted); i++)
		if (mine->bytes[i] != wanted.bytes[i])
			break;
	percpu_check_failed(c, what, i - offset, mine->bytes[i],
			    wanted.bytes[i]);
}

/* What goes wrong where a sign, a carry or a width is lost. */
static const s64 percpu_values[] = {
	0, 1, -1, 2, 0x55, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0x8000, 0xffff,
	-0x8000, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000,
	S64_MAX, S64_MIN, 0x123456789abcdef,
};

/* An operation without a value. */
#define PERCPU_CHECK_OP(operation, before, after)			\
do {									\
	percpu_slot_begin(slot, offset, size, before);			\
	operation;							\
	percpu_slot_end(c, slot, offset, size, after, #operation);	\
} while (0)

/* An operation with a value. */
#define PERCPU_CHECK_RET(operation, before, after, value)		\
do {									\
	s64 ret__;							\
									\
	percpu_slot_begin(slot, offset, size, before);			\
	ret__ = operation;						\
	percpu_check(c, #operation " returned", 0, ret__, value);	\
	percpu_slot_end(c, slot, offset, size, after, #operation);	\
} while (0)

/*
 * All operations of a family (this_cpu_, __this_cpu_, raw_cpu_). What they work
 * on is up to the caller: PCP(type) is the variable, a the value that it has
 * before, and b the operand, which may be of another type.
 */
#define PERCPU_CHECK_FAMILY(family, type)				\
do {									\
	type other = a ^ 1, old;					\
									\
	PERCPU_CHECK_RET(family ## read(PCP(type)), a, a, a);		\
	PERCPU_CHECK_OP(family ## write(PCP(type), b), a, (type)b);	\
	PERCPU_CHECK_OP(family ## add(PCP(type), b), a, (type)(a + b));	\
	PERCPU_CHECK_OP(family ## sub(PCP(type), b), a, (type)(a - b));	\
	PERCPU_CHECK_OP(family ## inc(PCP(type)), a, (type)(a + 1));	\
	PERCPU_CHECK_OP(family ## dec(PCP(type)), a, (type)(a - 1));	\
	PERCPU_CHECK_OP(family ## and(PCP(type), b), a, (type)(a & b));	\
	PERCPU_CHECK_OP(family ## or(PCP(type), b), a, (type)(a | b));	\
	PERCPU_CHECK_RET(family ## add_return(PCP(type), b), a,		\
			 (type)(a + b), (type)(a + b));			\
	PERCPU_CHECK_RET(family ## sub_return(PCP(type), b), a,		\
			 (type)(a - b), (type)(a - b));			\
	PERCPU_CHECK_RET(family ## inc_return(PCP(type)), a,		\
			 (type)(a + 1), (type)(a + 1));			\
	PERCPU_CHECK_RET(family ## dec_return(PCP(type)), a,		\
			 (type)(a - 1), (type)(a - 1));			\
	PERCPU_CHECK_RET(family ## xchg(PCP(type), b), a, (type)b, a);	\
	PERCPU_CHECK_RET(family ## cmpxchg(PCP(type), a, b), a, (type)b, a); \
	PERCPU_CHECK_RET(family ## cmpxchg(PCP(type), other, b), a, a, a); \
	old = a;							\
	PERCPU_CHECK_RET(family ## try_cmpxchg(PCP(type), &old, b), a,	\
			 (type)b, true);				\
	percpu_check(c, #family "try_cmpxchg changed the old value", 0,	\
		     old, a);						\
	old = other;							\
	PERCPU_CHECK_RET(family ## try_cmpxchg(PCP(type), &old, b), a,	\
			 a, false);					\
	percpu_check(c, #family "try_cmpxchg did not read", 0, old, a);	\
} while (0)

/*
 * Define a function that checks all operations on the variable PCP(type), of an
 * integer type, offset bytes into a slot. It is called where the task cannot
 * migrate. Each value is there before an operation; the operands are every
 * step-th one from the first on.
 */
#define DEFINE_PERCPU_CHECK(name, type)					\
static noinline __maybe_unused						\
void name(struct percpu_checks *c, struct percpu_slot __percpu *slot,	\
	  unsigned int offset, unsigned int first, unsigned int step)	\
{									\
	const size_t size = sizeof(type);				\
	unsigned int i, j;						\
									\
	static_assert(__same_type(this_cpu_read(PCP(type)), type));	\
	static_assert(__same_type(this_cpu_add_return(PCP(type), 1), type)); \
	static_assert(__same_type(this_cpu_xchg(PCP(type), 1), type));	\
	static_assert(__same_type(this_cpu_cmpxchg(PCP(type), 0, 1), type)); \
	for (i = 0; i < ARRAY_SIZE(percpu_values); i++) {		\
		const type a = percpu_values[i];			\
									\
		for (j = first; j < ARRAY_SIZE(percpu_values); j += step) { \
			const type b = percpu_values[j];		\
									\
			PERCPU_CHECK_FAMILY(this_cpu_, type);		\
			PERCPU_CHECK_FAMILY(__this_cpu_, type);		\
			PERCPU_CHECK_FAMILY(raw_cpu_, type);		\
		}							\
		for (j = first; j < ARRAY_SIZE(percpu_values); j += step) { \
			const s64 b = percpu_values[j];			\
									\
			PERCPU_CHECK_FAMILY(this_cpu_, type);		\
		}							\
		cond_resched();						\
	}								\
}

/* A variable that a pointer leads to. */
#define PCP(t)	percpu_slot_var(t, slot, offset)

DEFINE_PERCPU_CHECK(percpu_check_u8, u8)
DEFINE_PERCPU_CHECK(percpu_check_s8, s8)
DEFINE_PERCPU_CHECK(percpu_check_u16, u16)
DEFINE_PERCPU_CHECK(percpu_check_s16, s16)
DEFINE_PERCPU_CHECK(percpu_check_u32, u32)
DEFINE_PERCPU_CHECK(percpu_check_s32, s32)
DEFINE_PERCPU_CHECK(percpu_check_u64, u64)
DEFINE_PERCPU_CHECK(percpu_check_s64, s64)

#undef PCP

/*
 * A variable whose address the linker knows; what includes this has one by its
 * name.
 */
#define percpu_static_slot	__PASTE(__KBUILD_MODNAME, _slot)

static DEFINE_PER_CPU(struct percpu_slot, percpu_static_slot);

#define PCP(t)	percpu_slot_var(t, &percpu_static_slot, PERCPU_SLOT_OFFSET)

DEFINE_PERCPU_CHECK(percpu_check_static_u8, u8)
DEFINE_PERCPU_CHECK(percpu_check_static_s8, s8)
DEFINE_PERCPU_CHECK(percpu_check_static_u16, u16)
DEFINE_PERCPU_CHECK(percpu_check_static_s16, s16)
DEFINE_PERCPU_CHECK(percpu_check_static_u32, u32)
DEFINE_PERCPU_CHECK(percpu_check_static_s32, s32)
DEFINE_PERCPU_CHECK(percpu_check_static_u64, u64)
DEFINE_PERCPU_CHECK(percpu_check_static_s64, s64)

#undef PCP

/* All integer types, at each offset that is aligned for it in 16 bytes. */
static inline void percpu_check_integers(struct percpu_checks *c,
					 struct percpu_slot __percpu *slot,
					 unsigned int first, unsigned int step)
{
	unsigned int i, base = PERCPU_SLOT_OFFSET;

	for (i = 0; i < 16; i++) {
		/* All values at the first offset, some at the others. */
		unsigned int more = i ? step + 6 : step;

		percpu_check_u8(c, slot, base + i, (first + i) % more, more);
		percpu_check_s8(c, slot, base + i, (first + i) % more, more);
		if (i % 2 == 0) {
			percpu_check_u16(c, slot, base + i, (first + i) % more,
					 more);
			percpu_check_s16(c, slot, base + i, (first + i) % more,
					 more);
		}
		if (i % 4 == 0) {
			percpu_check_u32(c, slot, base + i, (first + i) % more,
					 more);
			percpu_check_s32(c, slot, base + i, (first + i) % more,
					 more);
		}
		if (i % 8 == 0) {
			percpu_check_u64(c, slot, base + i, (first + i) % more,
					 more);
			percpu_check_s64(c, slot, base + i, (first + i) % more,
					 more);
		}
	}
}

static inline void percpu_check_static_integers(struct percpu_checks *c,
						unsigned int first,
						unsigned int step)
{
	struct percpu_slot __percpu *slot = &percpu_static_slot;

	percpu_check_static_u8(c, slot, PERCPU_SLOT_OFFSET, first, step);
	percpu_check_static_s8(c, slot, PERCPU_SLOT_OFFSET, first, step);
	percpu_check_static_u16(c, slot, PERCPU_SLOT_OFFSET, first, step);
	percpu_check_static_s16(c, slot, PERCPU_SLOT_OFFSET, first, step);
	percpu_check_static_u32(c, slot, PERCPU_SLOT_OFFSET, first, step);
	percpu_check_static_s32(c, slot, PERCPU_SLOT_OFFSET, first, step);
	percpu_check_static_u64(c, slot, PERCPU_SLOT_OFFSET, first, step);
	percpu_check_static_s64(c, slot, PERCPU_SLOT_OFFSET, first, step);
}

/* Comparing and exchanging 64 bits by name. */
static noinline __maybe_unused void
percpu_check_cmpxchg64(struct percpu_checks *c,
		       struct percpu_slot __percpu *slot)
{
	const unsigned int offset = PERCPU_SLOT_OFFSET;
	const size_t size = sizeof(u64);
	unsigned int i, j;

#define PCP	percpu_slot_var(u64, slot, offset)
	for (i = 0; i < ARRAY_SIZE(percpu_values); i++) {
		for (j = 0; j < ARRAY_SIZE(percpu_values); j++) {
			u64 a = percpu_values[i], b = percpu_values[j], old;

			PERCPU_CHECK_RET(this_cpu_cmpxchg64(PCP, a, b), a, b,
					 a);
			PERCPU_CHECK_RET(this_cpu_cmpxchg64(PCP, a + 1, b), a,
					 a, a);
			old = a;
			PERCPU_CHECK_RET(this_cpu_try_cmpxchg64(PCP, &old, b),
					 a, b, true);
			old = a - 1;
			PERCPU_CHECK_RET(this_cpu_try_cmpxchg64(PCP, &old, b),
					 a, a, false);
			percpu_check(c, "this_cpu_try_cmpxchg64 did not read",
				     0, old, a);
		}
	}
#undef PCP
}

#ifdef PERCPU_CHECKS_128
/* Both halves, so that one which is ignored or exchanged is noticed. */
static noinline __maybe_unused void
percpu_slot_end_128(struct percpu_checks *c, struct percpu_slot __percpu *slot,
		    u128 value, const char *what)
{
	struct percpu_slot *mine = per_cpu_ptr(slot, raw_smp_processor_id());
	u128 got = *(u128 *)(mine->bytes + PERCPU_SLOT_OFFSET);
	unsigned int i;

	percpu_check(c, what, 0, got, value);
	percpu_check(c, what, 8, got >> 64, value >> 64);
	for (i = 0; i < sizeof(*mine); i++)
		if (i < PERCPU_SLOT_OFFSET ||
		    i >= PERCPU_SLOT_OFFSET + sizeof(u128))
			percpu_check(c, what, i, mine->bytes[i],
				     PERCPU_SLOT_FILL);
}

static noinline __maybe_unused
void percpu_slot_begin_128(struct percpu_slot __percpu *slot, u128 value)
{
	struct percpu_slot *mine = per_cpu_ptr(slot, raw_smp_processor_id());

	memset(mine, PERCPU_SLOT_FILL, sizeof(*mine));
	*(u128 *)(mine->bytes + PERCPU_SLOT_OFFSET) = value;
}

/* What is there is @a, what is expected another: nothing changes. */
static noinline __maybe_unused void
percpu_check_failing_128(struct percpu_checks *c,
			 struct percpu_slot __percpu *slot, u128 a, u128 other,
			 u128 new)
{
	u128 __percpu *p =
		(u128 __percpu *)((u8 __percpu *)slot + PERCPU_SLOT_OFFSET);
	u128 old = other, ret;

	percpu_slot_begin_128(slot, a);
	ret = this_cpu_cmpxchg128(*p, other, new);
	percpu_check(c, "cmpxchg128 that failed", 0, ret == a, true);
	percpu_slot_end_128(c, slot, a, "cmpxchg128 that failed");

	percpu_check(c, "try_cmpxchg128 that failed", 0,
		     this_cpu_try_cmpxchg128(*p, &old, new), false);
	percpu_check(c, "try_cmpxchg128 did not read", 0, old == a, true);
	percpu_slot_end_128(c, slot, a, "try_cmpxchg128 that failed");
}

static noinline __maybe_unused void
percpu_check_cmpxchg128(struct percpu_checks *c,
			struct percpu_slot __percpu *slot)
{
	u128 __percpu *p =
		(u128 __percpu *)((u8 __percpu *)slot + PERCPU_SLOT_OFFSET);
	const u128 low = 1, high = low << 64;
	unsigned int i, j;

	if (!system_has_cmpxchg128())
		return;
	for (i = 0; i < ARRAY_SIZE(percpu_values); i++) {
		for (j = 0; j < ARRAY_SIZE(percpu_values); j++) {
			u128 a = (u128)percpu_values[i] << 64 |
				 (u64)percpu_values[j];
			u128 b = ~a * 3 + 1, old = a, ret;

			percpu_slot_begin_128(slot, a);
			ret = this_cpu_cmpxchg128(*p, a, b);
			percpu_check(c, "cmpxchg128 returned", 0, ret, a);
			percpu_check(c, "cmpxchg128 returned", 8, ret >> 64,
				     a >> 64);
			percpu_slot_end_128(c, slot, b, "cmpxchg128");

			percpu_slot_begin_128(slot, a);
			percpu_check(c, "try_cmpxchg128 returned", 0,
				     this_cpu_try_cmpxchg128(*p, &old, b),
				     true);
			percpu_slot_end_128(c, slot, b, "try_cmpxchg128");

			percpu_check_failing_128(c, slot, a, a ^ low, b);
			percpu_check_failing_128(c, slot, a, a ^ high, b);
			percpu_check_failing_128(c, slot, a, a ^ low ^ high, b);
		}
		cond_resched();
	}
}
#else
static inline void percpu_check_cmpxchg128(struct percpu_checks *c,
					   struct percpu_slot __percpu *slot)
{
}
#endif

/* Views */

/**
 * struct percpu_view - per-CPU memory that is looked at from both sides
 * @memory: where it is; aligned to 8 bytes
 * @size: bytes
 * @salt: makes what it is filled with another each time
 * @visited: CPUs that have read what is there and replaced it
 * @checks: what came of it
 */
struct percpu_view {
	void __percpu *memory;
	size_t size;
	u32 salt;
	cpumask_t visited;
	struct percpu_checks *checks;
};

/* What a byte is to hold: another for each CPU, address and salt. */
static inline u8 percpu_view_byte(unsigned int cpu, size_t i, u32 salt)
{
	u32 mixed = (u32)i * 0x9e3779b1 + cpu * 0x85ebca6b + salt * 0xc2b2ae35;

	mixed = (mixed ^ mixed >> 15) * 0x2c1b3c6d;

	return mixed >> 24;
}

/* From outside: every possible CPU's copy gets its own bytes. */
static inline void percpu_view_fill(struct percpu_view *view)
{
	unsigned int cpu;
	size_t i;

	for_each_possible_cpu(cpu) {
		u8 *bytes = per_cpu_ptr(view->memory, cpu);

		for (i = 0; i < view->size; i++)
			bytes[i] = percpu_view_byte(cpu, i, view->salt);
	}
}

/* From outside: those who were visited have written, the others have not. */
static inline void percpu_view_check_outside(struct percpu_view *view)
{
	unsigned int cpu;
	size_t i;

	for_each_possible_cpu(cpu) {
		const u8 *bytes = per_cpu_ptr(view->memory, cpu);
		u32 salt = view->salt + cpumask_test_cpu(cpu, &view->visited);

		for (i = 0; i < view->size; i++)
			percpu_check(view->checks,
				     "per_cpu_ptr() after this_cpu_write() or this_cpu_xchg()",
				     i, READ_ONCE(bytes[i]),
				     percpu_view_byte(cpu, i, salt));
	}
}

/*
 * From inside, on a CPU that is not left meanwhile: read all, then write all.
 * Nobody else writes to this CPU's copy meanwhile: not on every architecture is
 * a read-modify-write atomic to other CPUs.
 */
static inline long percpu_view_visit(void *arg)
{
	struct percpu_view *view = arg;
	unsigned int cpu = raw_smp_processor_id();
	u8 __percpu *bytes = view->memory;
	u8 *outside = per_cpu_ptr(bytes, cpu);
	struct percpu_checks *c = view->checks;
	size_t i;

	for (i = 0; i < view->size; i++) {
		u8 wanted = percpu_view_byte(cpu, i, view->salt);

		percpu_check(c, "this_cpu_read() after per_cpu_ptr()", i,
			     this_cpu_read(bytes[i]), wanted);
		percpu_check(c, "this_cpu_add_return() after per_cpu_ptr()", i,
			     this_cpu_add_return(bytes[i], 0), wanted);
	}
	for (i = 0; i + 2 <= view->size; i += 2)
		percpu_check(c, "this_cpu_read() of 2 bytes", i,
			     this_cpu_read(percpu_slot_var(u16, bytes, i)),
			     *(u16 *)(outside + i));
	for (i = 0; i + 4 <= view->size; i += 4)
		percpu_check(c, "this_cpu_read() of 4 bytes", i,
			     this_cpu_read(percpu_slot_var(u32, bytes, i)),
			     *(u32 *)(outside + i));
	for (i = 0; i + 8 <= view->size; i += 8)
		percpu_check(c, "this_cpu_read() of 8 bytes", i,
			     this_cpu_read(percpu_slot_var(u64, bytes, i)),
			     *(u64 *)(outside + i));

	for (i = 0; i < view->size; i++) {
		u8 new = percpu_view_byte(cpu, i, view->salt + 1);

		if (i % 2)
			percpu_check(c, "this_cpu_xchg() after per_cpu_ptr()",
				     i, this_cpu_xchg(bytes[i], new),
				     percpu_view_byte(cpu, i, view->salt));
		else
			this_cpu_write(bytes[i], new);
	}
	cpumask_set_cpu(cpu, &view->visited);

	return 0;
}

/* From inside, on a CPU that is not left meanwhile: it is all zeroes. */
static inline long percpu_view_visit_zeroes(void *arg)
{
	struct percpu_view *view = arg;
	u8 __percpu *bytes = view->memory;
	size_t i;

	for (i = 0; i < view->size; i++) {
		percpu_check(view->checks, "this_cpu_read() of fresh memory", i,
			     this_cpu_read(bytes[i]), 0);
		percpu_check(view->checks,
			     "this_cpu_add_return() of fresh memory", i,
			     this_cpu_add_return(bytes[i], 0), 0);
	}

	return 0;
}

/* Have every CPU that is online visit something; may sleep. */
static inline void percpu_on_each_cpu(long (*visit)(void *arg), void *arg)
{
	unsigned int cpu;

	/* One that goes offline before its turn is left out. */
	for_each_possible_cpu(cpu)
		if (cpu_online(cpu))
			work_on_cpu_safe(cpu, visit, arg);
}

/*
 * Compare both views of memory at every address, on every CPU that is online;
 * may sleep.
 */
static inline void percpu_view_compare(struct percpu_view *view)
{
	view->salt += 2;
	cpumask_clear(&view->visited);
	percpu_view_fill(view);
	percpu_on_each_cpu(percpu_view_visit, view);
	percpu_view_check_outside(view);
}

#endif /* __LIB_PERCPU_CHECKS_H */
