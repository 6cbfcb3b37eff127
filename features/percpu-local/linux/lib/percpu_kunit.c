// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of what the per-CPU operations mean, one task at a time. They
 * know only the generic API; see percpu_checks.h for most of them,
 * percpu_torture.c for what happens when everybody operates at once.
 */
#include <kunit/test.h>

#include <linux/cpu.h>
#include <linux/hrtimer.h>
#include <linux/irqflags.h>
#include <linux/module.h>
#include <linux/preempt.h>
#include <linux/slab.h>
#include <linux/stop_machine.h>

#include <asm/sections.h>

#include "percpu_checks.h"

/* A module has no such area, and on one CPU static variables are where all others are. */
#if !defined(MODULE) && defined(CONFIG_SMP)
#define HAS_STATIC_AREA
#endif

/* Integers */

/* One CPU's turn at some checks; all CPUs have theirs one after the other. */
struct turn {
	void (*check)(struct turn *turn);
	struct percpu_slot __percpu *slot;
	struct percpu_checks checks;
	unsigned int nr;
};

static void check_untouched(struct turn *turn, unsigned int cpu)
{
	const struct percpu_slot *copy = per_cpu_ptr(turn->slot, cpu);
	size_t i;

	for (i = 0; i < sizeof(*copy); i++)
		percpu_check(&turn->checks, "another CPU's copy", i,
			     copy->bytes[i], (u8)~cpu);
}

static long take_turn(void *arg)
{
	struct turn *turn = arg;
	unsigned int cpu;

	/* What the other CPUs have is not to change. */
	if (turn->slot)
		for_each_possible_cpu(cpu)
			memset(per_cpu_ptr(turn->slot, cpu), (u8)~cpu,
			       sizeof(*turn->slot));

	turn->check(turn);

	if (turn->slot)
		for_each_possible_cpu(cpu)
			if (cpu != raw_smp_processor_id())
				check_untouched(turn, cpu);
	turn->nr++;

	return 0;
}

static void expect_no_failure(struct kunit *test,
			      const struct percpu_checks *checks)
{
	KUNIT_EXPECT_GT(test, checks->done, 0UL);
	KUNIT_EXPECT_EQ_MSG(test, checks->failed, 0UL, "%s", checks->first);
	kunit_info(test, "%lu checks", checks->done);
}

static void on_each_cpu_in_turn(struct kunit *test,
				void (*check)(struct turn *turn),
				struct percpu_slot __percpu *slot)
{
	struct turn turn = { .check = check, .slot = slot };

	percpu_on_each_cpu(take_turn, &turn);
	KUNIT_EXPECT_EQ(test, turn.nr, num_online_cpus());
	expect_no_failure(test, &turn.checks);
}

static void free_slot(void *slot)
{
	free_percpu((void __percpu __force *)slot);
}

static struct percpu_slot __percpu *new_slot(struct kunit *test, bool reserved)
{
	struct percpu_slot __percpu *slot;

	slot = reserved ? __alloc_reserved_percpu(sizeof(*slot),
						  __alignof__(*slot)) :
			  alloc_percpu(struct percpu_slot);
	KUNIT_ASSERT_NOT_NULL(test, (void __force *)slot);
	KUNIT_ASSERT_EQ(test,
			kunit_add_action_or_reset(test, free_slot,
						  (void __force *)slot),
			0);

	return slot;
}

/*
 * The first CPU goes through every pair of values, the others share another
 * round. Where KASAN looks at each access, that takes long, and the first CPU
 * has its share as the others do.
 */
static bool has_every_pair(const struct turn *turn)
{
	return !turn->nr && !IS_ENABLED(CONFIG_KASAN);
}

static void check_integers(struct turn *turn)
{
	if (has_every_pair(turn))
		percpu_check_integers(&turn->checks, turn->slot, 0, 1);
	else
		percpu_check_integers(&turn->checks, turn->slot, turn->nr % 7,
				      7);
	percpu_check_cmpxchg64(&turn->checks, turn->slot);
	percpu_check_cmpxchg128(&turn->checks, turn->slot);
}

static void check_static_integers(struct turn *turn)
{
	if (has_every_pair(turn))
		percpu_check_static_integers(&turn->checks, 0, 1);
	else
		percpu_check_static_integers(&turn->checks, turn->nr % 7, 7);
	percpu_check_cmpxchg64(&turn->checks, turn->slot);
	percpu_check_cmpxchg128(&turn->checks, turn->slot);
}

static void integers_in_a_static_variable(struct kunit *test)
{
	on_each_cpu_in_turn(test, check_static_integers, &percpu_static_slot);
}

static void integers_in_allocated_memory(struct kunit *test)
{
	on_each_cpu_in_turn(test, check_integers, new_slot(test, false));
}

static void integers_in_reserved_memory(struct kunit *test)
{
	on_each_cpu_in_turn(test, check_integers, new_slot(test, true));
}

/* Other types */

enum colour { RED, GREEN, BLUE };

struct mixed {
	bool yes;
	char letter;
	enum colour colour;
	void *pointer;
	const char *text;
	struct mixed __percpu *nested;
	u8 array[3];
	unsigned long last;
};

static DEFINE_PER_CPU(struct mixed, percpu_kunit_mixed);
static DEFINE_PER_CPU(void *, percpu_kunit_pointer);
static DEFINE_PER_CPU(bool, percpu_kunit_bool);

#define CHECK_SAME(got, wanted)						\
	percpu_check(c, #got, 0, (s64)(got), (s64)(wanted))

static __always_inline void check_types_of(struct percpu_checks *c,
					   struct mixed __percpu *mixed,
					   void *__percpu *pointer,
					   bool __percpu *yes)
{
	int a, b;
	void *old = NULL;
	unsigned int i;

	this_cpu_write(*pointer, NULL);
	CHECK_SAME(this_cpu_read(*pointer), NULL);
	CHECK_SAME(this_cpu_cmpxchg(*pointer, NULL, &a), NULL);
	CHECK_SAME(this_cpu_read(*pointer), &a);
	CHECK_SAME(this_cpu_cmpxchg(*pointer, NULL, &b), &a);
	CHECK_SAME(this_cpu_try_cmpxchg(*pointer, &old, &b), false);
	CHECK_SAME(old, &a);
	CHECK_SAME(this_cpu_try_cmpxchg(*pointer, &old, &b), true);
	CHECK_SAME(this_cpu_xchg(*pointer, NULL), &b);
	CHECK_SAME(*this_cpu_ptr(pointer), NULL);

	this_cpu_write(*yes, true);
	CHECK_SAME(this_cpu_read(*yes), true);
	CHECK_SAME(this_cpu_xchg(*yes, false), true);
	CHECK_SAME(this_cpu_cmpxchg(*yes, false, true), false);
	CHECK_SAME(this_cpu_cmpxchg(*yes, false, true), true);
	CHECK_SAME(*this_cpu_ptr(yes), true);
	__this_cpu_write(*yes, false);
	CHECK_SAME(raw_cpu_read(*yes), false);

	memset(this_cpu_ptr(mixed), 0, sizeof(*mixed));
	this_cpu_write(mixed->yes, true);
	this_cpu_write(mixed->letter, 'x');
	this_cpu_write(mixed->colour, BLUE);
	this_cpu_write(mixed->pointer, c);
	this_cpu_write(mixed->text, "text");
	this_cpu_write(mixed->nested, mixed);
	for (i = 0; i < ARRAY_SIZE(mixed->array); i++)
		this_cpu_add(mixed->array[i], i * 100 + 1);
	this_cpu_dec(mixed->last);
	CHECK_SAME(this_cpu_read(mixed->yes), true);
	CHECK_SAME(this_cpu_read(mixed->letter), 'x');
	CHECK_SAME(this_cpu_inc_return(mixed->letter), 'y');
	CHECK_SAME(this_cpu_read(mixed->colour), BLUE);
	CHECK_SAME(this_cpu_cmpxchg(mixed->colour, BLUE, RED), BLUE);
	CHECK_SAME(this_cpu_xchg(mixed->colour, GREEN), RED);
	CHECK_SAME(this_cpu_read(mixed->pointer), c);
	CHECK_SAME(this_cpu_read(mixed->text)[3], 't');
	/* A per-CPU pointer in per-CPU memory. */
	CHECK_SAME(this_cpu_read(this_cpu_read(mixed->nested)->letter), 'y');
	CHECK_SAME(this_cpu_read(mixed->array[0]), 1);
	CHECK_SAME(this_cpu_read(mixed->array[1]), 101);
	CHECK_SAME(this_cpu_read(mixed->array[2]), 201);
	CHECK_SAME(this_cpu_read(mixed->last), -1);
	CHECK_SAME(this_cpu_ptr(mixed)->colour, GREEN);
	CHECK_SAME(this_cpu_ptr(mixed)->last, ULONG_MAX);
	/* The address is a global one: every CPU may use it. */
	CHECK_SAME(this_cpu_ptr(mixed),
		   per_cpu_ptr(mixed, raw_smp_processor_id()));
	CHECK_SAME(raw_cpu_ptr(mixed),
		   per_cpu_ptr(mixed, raw_smp_processor_id()));
}

/* All three, in memory that was allocated. */
struct of_types {
	struct mixed mixed;
	void *pointer;
	bool yes;
};

static struct of_types __percpu *types;

static void check_types(struct turn *turn)
{
	check_types_of(&turn->checks, &percpu_kunit_mixed,
		       &percpu_kunit_pointer, &percpu_kunit_bool);
	check_types_of(&turn->checks, &types->mixed, &types->pointer,
		       &types->yes);
}

static void pointers_bools_and_members(struct kunit *test)
{
	types = alloc_percpu(struct of_types);
	KUNIT_ASSERT_NOT_NULL(test, (void __force *)types);
	on_each_cpu_in_turn(test, check_types, NULL);
	free_percpu(types);
}

/* Operands */

static DEFINE_PER_CPU(long, percpu_kunit_long);
static DEFINE_PER_CPU(unsigned long, percpu_kunit_ulong);
static DEFINE_PER_CPU(u8, percpu_kunit_u8);

/* Literals, and operands of another width and sign than the variable. */
static void check_operands(struct turn *turn)
{
	struct percpu_checks *c = &turn->checks;
	unsigned int one = 1, wide = 0x700;
	int minus_one = -1;

	/*
	 * Known to the compiler, -1 would become a decrement, and be extended
	 * by it.
	 */
	OPTIMIZER_HIDE_VAR(one);
	OPTIMIZER_HIDE_VAR(wide);
	OPTIMIZER_HIDE_VAR(minus_one);

	this_cpu_write(percpu_kunit_ulong, 0);
	this_cpu_add(percpu_kunit_ulong, -1);
	CHECK_SAME(this_cpu_read(percpu_kunit_ulong), -1L);
	this_cpu_add(percpu_kunit_ulong, minus_one);
	CHECK_SAME(this_cpu_read(percpu_kunit_ulong), -2L);
	this_cpu_sub(percpu_kunit_ulong, one);
	CHECK_SAME(this_cpu_read(percpu_kunit_ulong), -3L);
	this_cpu_add(percpu_kunit_ulong, -one);
	CHECK_SAME(this_cpu_read(percpu_kunit_ulong), 0xfffffffcL);
	CHECK_SAME(this_cpu_sub_return(percpu_kunit_ulong, one), 0xfffffffbL);
	CHECK_SAME(this_cpu_sub_return(percpu_kunit_ulong, minus_one),
		   0xfffffffcL);
	CHECK_SAME(this_cpu_xchg(percpu_kunit_ulong, minus_one), 0xfffffffcL);
	CHECK_SAME(this_cpu_cmpxchg(percpu_kunit_ulong, minus_one, one), -1L);
	CHECK_SAME(this_cpu_read(percpu_kunit_ulong), 1);
	this_cpu_or(percpu_kunit_ulong, minus_one);
	CHECK_SAME(this_cpu_read(percpu_kunit_ulong), -1L);
	this_cpu_and(percpu_kunit_ulong, ~1);
	CHECK_SAME(this_cpu_read(percpu_kunit_ulong), -2L);
	this_cpu_and(percpu_kunit_ulong, ~one);
	CHECK_SAME(this_cpu_read(percpu_kunit_ulong), 0xfffffffeL);
	this_cpu_and(percpu_kunit_ulong, minus_one);
	CHECK_SAME(this_cpu_read(percpu_kunit_ulong), 0xfffffffeL);

	this_cpu_write(percpu_kunit_long, minus_one);
	CHECK_SAME(this_cpu_read(percpu_kunit_long), -1L);
	this_cpu_write(percpu_kunit_long, one);
	this_cpu_sub(percpu_kunit_long, 2);
	CHECK_SAME(this_cpu_read(percpu_kunit_long) < 0, true);

	/* What does not fit is cut off. */
	this_cpu_write(percpu_kunit_u8, wide + 0xff);
	CHECK_SAME(this_cpu_read(percpu_kunit_u8), 0xff);
	this_cpu_add(percpu_kunit_u8, wide + 1);
	CHECK_SAME(this_cpu_read(percpu_kunit_u8), 0);
	CHECK_SAME(this_cpu_sub_return(percpu_kunit_u8, wide + 1), 0xff);
	CHECK_SAME(this_cpu_xchg(percpu_kunit_u8, wide + 0x7f), 0xff);
	CHECK_SAME(this_cpu_cmpxchg(percpu_kunit_u8, wide + 0x7f, wide + 0x11),
		   0x7f);
	this_cpu_and(percpu_kunit_u8, wide);
	CHECK_SAME(this_cpu_read(percpu_kunit_u8), 0);
	this_cpu_or(percpu_kunit_u8, wide + 0x81);
	CHECK_SAME(this_cpu_read(percpu_kunit_u8), 0x81);
}

static void operands_of_any_width_and_sign(struct kunit *test)
{
	on_each_cpu_in_turn(test, check_operands, NULL);
}

static void check_side_effects(struct turn *turn)
{
	struct percpu_checks *c = &turn->checks;
	unsigned long old[2] = { 0, 0 };
	unsigned long *olds = old;
	int n = 1;

	this_cpu_write(percpu_kunit_ulong, n++);
	CHECK_SAME(n, 2);
	this_cpu_add(percpu_kunit_ulong, n++);
	CHECK_SAME(n, 3);
	this_cpu_sub(percpu_kunit_ulong, n++);
	CHECK_SAME(n, 4);
	CHECK_SAME(this_cpu_read(percpu_kunit_ulong), 0);
	this_cpu_or(percpu_kunit_ulong, n++);
	CHECK_SAME(n, 5);
	this_cpu_and(percpu_kunit_ulong, n++);
	CHECK_SAME(n, 6);
	CHECK_SAME(this_cpu_add_return(percpu_kunit_ulong, n++), 10);
	CHECK_SAME(n, 7);
	CHECK_SAME(this_cpu_sub_return(percpu_kunit_ulong, n++), 3);
	CHECK_SAME(n, 8);
	CHECK_SAME(this_cpu_xchg(percpu_kunit_ulong, n++), 3);
	CHECK_SAME(n, 9);
	this_cpu_write(percpu_kunit_ulong, 9);
	CHECK_SAME(this_cpu_cmpxchg(percpu_kunit_ulong, n++, 20), 9);
	CHECK_SAME(n, 10);
	CHECK_SAME(this_cpu_cmpxchg(percpu_kunit_ulong, 20, n++), 20);
	CHECK_SAME(n, 11);
	old[0] = 10;
	CHECK_SAME(this_cpu_try_cmpxchg(percpu_kunit_ulong, olds++, n++), true);
	CHECK_SAME(n, 12);
	CHECK_SAME(olds == old + 1, true);
	CHECK_SAME(this_cpu_read(percpu_kunit_ulong), 11);
}

static void operands_are_evaluated_once(struct kunit *test)
{
	on_each_cpu_in_turn(test, check_side_effects, NULL);
}

/* The compiler */

/*
 * An operation on this CPU's copy and plain accesses to it through a pointer,
 * with preemption disabled, happen in the order in which they are written, and
 * the compiler keeps nothing in a register across an operation. Nothing is
 * called in between: that would do what the operation ought to do.
 */
#define CHECK_ORDER(type)						\
do {									\
	type r[26], old = 0, *p;					\
	unsigned int n = 0;						\
									\
	preempt_disable();						\
	p = this_cpu_ptr(&PCP(type));					\
	*p = 1;				/* written, then read */	\
	r[n++] = this_cpu_read(PCP(type));				\
	*p = 2;								\
	r[n++] = this_cpu_read(PCP(type));				\
	this_cpu_write(PCP(type), 3);	/* written, then read */	\
	r[n++] = *p;							\
	*p = 10;			/* written, changed, read */	\
	this_cpu_add(PCP(type), 1);					\
	r[n++] = *p;							\
	*p = 10;							\
	r[n++] = this_cpu_add_return(PCP(type), 2);			\
	r[n++] = *p;							\
	*p = 15;							\
	this_cpu_and(PCP(type), 6);					\
	r[n++] = *p;							\
	*p = 8;								\
	this_cpu_or(PCP(type), 3);					\
	r[n++] = *p;							\
	*p = 20;							\
	r[n++] = this_cpu_xchg(PCP(type), 21);				\
	r[n++] = *p;							\
	*p = 30;							\
	r[n++] = this_cpu_cmpxchg(PCP(type), 30, 31);			\
	r[n++] = *p;							\
	*p = 40;							\
	old = 40;							\
	r[n++] = this_cpu_try_cmpxchg(PCP(type), &old, 41);		\
	r[n++] = *p;							\
	*p = 50;			/* with the unprotected forms */ \
	raw_cpu_add(PCP(type), 1);					\
	r[n++] = this_cpu_read(PCP(type));				\
	this_cpu_inc(PCP(type));					\
	r[n++] = raw_cpu_read(PCP(type));				\
	__this_cpu_write(PCP(type), 60);				\
	r[n++] = this_cpu_add_return(PCP(type), 1);			\
	this_cpu_write(PCP(type), 70);					\
	r[n++] = __this_cpu_read(PCP(type));				\
	__this_cpu_add(PCP(type), 1);					\
	r[n++] = this_cpu_xchg(PCP(type), 80);				\
	r[n++] = __this_cpu_add_return(PCP(type), 1);			\
	this_cpu_dec(PCP(type));					\
	r[n++] = raw_cpu_xchg(PCP(type), 90);				\
	r[n++] = this_cpu_cmpxchg(PCP(type), 90, 91);			\
	r[n++] = raw_cpu_cmpxchg(PCP(type), 91, 92);			\
	r[n++] = *p;							\
	*p = 100;			/* the first may not go away */	\
	old = this_cpu_read(PCP(type));					\
	*p = 101;							\
	r[n++] = this_cpu_read(PCP(type)) - old;			\
	r[n++] = *p;							\
	preempt_enable();						\
	check_order(c, #type, n, (s64[]) {				\
		r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8],	\
		r[9], r[10], r[11], r[12], r[13], r[14], r[15], r[16],	\
		r[17], r[18], r[19], r[20], r[21], r[22], r[23],	\
		r[24], r[25],						\
	});								\
} while (0)

static const s64 in_order[] = {
	1, 2, 3, 11, 12, 12, 6, 11, 20, 21, 30, 31, 1, 41, 51, 52, 61, 70, 71,
	81, 80, 90, 91, 92, 1, 101,
};

static noinline void check_order(struct percpu_checks *c, const char *type,
				 unsigned int n, const s64 *got)
{
	unsigned int i;

	percpu_check(c, "number of values", 0, n, ARRAY_SIZE(in_order));
	for (i = 0; i < min(n, ARRAY_SIZE(in_order)); i++)
		percpu_check(c, type, i, got[i], in_order[i]);
}

/*
 * As in the checks of operations: where the linker knows the address, and where
 * not.
 */
#define PCP(t)	percpu_slot_var(t, &percpu_static_slot, 16)

static noinline void check_static_order(struct percpu_checks *c)
{
	CHECK_ORDER(u8);
	CHECK_ORDER(u16);
	CHECK_ORDER(u32);
	CHECK_ORDER(u64);
}

#undef PCP
#define PCP(t)	percpu_slot_var(t, slot, sizeof(t))

static noinline void check_pointer_order(struct percpu_checks *c,
					 struct percpu_slot __percpu *slot)
{
	CHECK_ORDER(u8);
	CHECK_ORDER(u16);
	CHECK_ORDER(u32);
	CHECK_ORDER(u64);
}

#undef PCP

#ifdef PERCPU_CHECKS_128
static noinline void check_128_order(struct percpu_checks *c,
				     struct percpu_slot __percpu *slot)
{
	u128 __percpu *pcp = (u128 __percpu *)slot;
	u128 *p, old, r[4];

	if (!system_has_cmpxchg128())
		return;
	preempt_disable();
	p = this_cpu_ptr(pcp);
	*p = 10;
	r[0] = this_cpu_cmpxchg128(*pcp, 10, 11);
	r[1] = *p;
	*p = 20;
	old = 20;
	r[2] = this_cpu_try_cmpxchg128(*pcp, &old, 21);
	r[3] = *p;
	preempt_enable();
	CHECK_SAME(r[0], 10);
	CHECK_SAME(r[1], 11);
	CHECK_SAME(r[2], true);
	CHECK_SAME(r[3], 21);
}
#else
static void check_128_order(struct percpu_checks *c,
			    struct percpu_slot __percpu *slot)
{
}
#endif

static void check_orders(struct turn *turn)
{
	check_static_order(&turn->checks);
	check_pointer_order(&turn->checks, turn->slot);
	check_128_order(&turn->checks, turn->slot);
}

static void the_compiler_keeps_the_order(struct kunit *test)
{
	on_each_cpu_in_turn(test, check_orders, new_slot(test, false));
}

/*
 * Another variable with the same address in the local view must not be mistaken
 * for it.
 */
static noinline void check_no_alias(struct turn *turn)
{
	struct percpu_checks *c = &turn->checks;
	unsigned long *mine, before, after, changed, seen;
	unsigned int cpu;

	preempt_disable();
	mine = this_cpu_ptr(&percpu_kunit_ulong);
	for_each_possible_cpu(cpu)
		per_cpu(percpu_kunit_ulong, cpu) = 100 + cpu;
	before = this_cpu_read(percpu_kunit_ulong);
	*mine += 1000;
	after = this_cpu_read(percpu_kunit_ulong);
	/* Reads may be through the address in mine: see percpu_checks.h. */
	*mine += 1000;
	changed = this_cpu_add_return(percpu_kunit_ulong, 10000);
	seen = *mine;
	preempt_enable();
	CHECK_SAME(before, 100 + raw_smp_processor_id());
	CHECK_SAME(after, 1100 + raw_smp_processor_id());
	CHECK_SAME(changed, 12100 + raw_smp_processor_id());
	CHECK_SAME(seen, 12100 + raw_smp_processor_id());
	for_each_possible_cpu(cpu)
		if (cpu != raw_smp_processor_id())
			CHECK_SAME(per_cpu(percpu_kunit_ulong, cpu), 100 + cpu);
}

static void what_is_written_for_a_cpu_is_read_there(struct kunit *test)
{
	on_each_cpu_in_turn(test, check_no_alias, NULL);
}

/* Interrupts */

static DEFINE_PER_CPU(u32, percpu_kunit_rung);

static enum hrtimer_restart ring(struct hrtimer *timer)
{
	this_cpu_inc(percpu_kunit_rung);
	return HRTIMER_NORESTART;
}

/* A loop that waits for an interrupt reads again each time. */
static void check_interrupts(struct turn *turn)
{
	unsigned long spins, limit = 100000000;
	struct hrtimer timer;

	hrtimer_init_on_stack(&timer, CLOCK_MONOTONIC,
			      HRTIMER_MODE_REL_PINNED_HARD);
	timer.function = ring;
	this_cpu_write(percpu_kunit_rung, 41);
	hrtimer_start(&timer, ns_to_ktime(200 * NSEC_PER_USEC),
		      HRTIMER_MODE_REL_PINNED_HARD);
	for (spins = 0; spins < limit; spins++)
		if (this_cpu_read(percpu_kunit_rung) == 42)
			break;
	hrtimer_cancel(&timer);
	destroy_hrtimer_on_stack(&timer);
	percpu_check(&turn->checks, "saw what an interrupt did", 0,
		     spins < limit, true);
}

static void interrupts_are_seen(struct kunit *test)
{
	on_each_cpu_in_turn(test, check_interrupts, NULL);
}

/* Views */

static void compare_views(struct kunit *test, void __percpu *memory,
			  size_t size)
{
	struct percpu_checks checks = { };
	struct percpu_view *view =
		kunit_kzalloc(test, sizeof(*view), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, view);
	view->memory = memory;
	view->size = size;
	view->checks = &checks;
	percpu_on_each_cpu(percpu_view_visit_zeroes, view);
	percpu_view_compare(view);
	KUNIT_EXPECT_EQ(test, cpumask_weight(&view->visited),
			num_online_cpus());
	expect_no_failure(test, &checks);
}

static void both_views_of_allocated_memory(struct kunit *test)
{
	/* The last is the most that can be had. */
	static const size_t sizes[] = { 8, 520, PAGE_SIZE, PCPU_MIN_UNIT_SIZE };
	void __percpu *memory[ARRAY_SIZE(sizes)];
	unsigned int i;

	/* All together, so that they are in several places. */
	for (i = 0; i < ARRAY_SIZE(sizes); i++)
		memory[i] = __alloc_percpu(sizes[i], 8);
	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		KUNIT_EXPECT_NOT_NULL(test, (void __force *)memory[i]);
		if (memory[i])
			compare_views(test, memory[i], sizes[i]);
	}
	for (i = 0; i < ARRAY_SIZE(sizes); i++)
		free_percpu(memory[i]);
}

static void both_views_of_reserved_memory(struct kunit *test)
{
	void __percpu *memory = __alloc_reserved_percpu(1024, 8);

	KUNIT_ASSERT_NOT_NULL(test, (void __force *)memory);
	compare_views(test, memory, 1024);
	free_percpu(memory);
}

#ifdef HAS_STATIC_AREA
/*
 * The kernel's own variables: they may change meanwhile, so what differs is
 * looked at again. A difference that stays is one of views. KCSAN counts each
 * access that it sees in such a variable, which would differ each time, so that
 * it must not see these.
 */
static __no_kcsan void compare_static_area(struct turn *turn, size_t step,
					   bool modify)
{
	u8 __percpu *start = (u8 __percpu __force *)__per_cpu_start;
	size_t i, size = __per_cpu_end - __per_cpu_start;
	unsigned int tries, cpu = raw_smp_processor_id();

	for (i = 0; i < size; i += step) {
		u8 inside = 0, outside = 1;

		for (tries = 0; tries < 100 && inside != outside; tries++) {
			unsigned long flags;

			local_irq_save(flags);
			inside = modify ? this_cpu_add_return(start[i], 0) :
					  this_cpu_read(start[i]);
			outside = READ_ONCE(*per_cpu_ptr(start + i, cpu));
			local_irq_restore(flags);
		}
		percpu_check(&turn->checks,
			     modify ? "this_cpu_add_return() of the static area" :
				      "this_cpu_read() of the static area",
			     i, inside, outside);
	}
}

/* At every address; with KASAN only some of each page's, at all alignments. */
static void read_static_area(struct turn *turn)
{
	compare_static_area(turn, IS_ENABLED(CONFIG_KASAN) ? 9 : 1, false);
}

/* At some addresses of each page, at all alignments: all CPUs wait for it. */
static int modify_static_area(void *arg)
{
	struct turn *turn = arg;

	compare_static_area(turn, 61, true);
	turn->nr++;

	return 0;
}

/*
 * Other CPUs write to some of these variables. Where a read-modify-write is not
 * atomic to them, one that leaves a variable as it is might undo what they
 * write. So they are stopped while a CPU does that; why it is done at all, see
 * percpu_checks.h.
 */
static void both_views_of_the_static_area(struct kunit *test)
{
	struct turn turn = { };
	unsigned int cpu;

	on_each_cpu_in_turn(test, read_static_area, NULL);

	cpus_read_lock();
	for_each_online_cpu(cpu)
		stop_machine_cpuslocked(modify_static_area, &turn,
					cpumask_of(cpu));
	KUNIT_EXPECT_EQ(test, turn.nr, num_online_cpus());
	cpus_read_unlock();
	expect_no_failure(test, &turn.checks);
}

/* Copies that hold the same bytes would tell nothing about who has which. */
static DEFINE_PER_CPU_ALIGNED(u8[512], percpu_kunit_bytes);
static DEFINE_PER_CPU_PAGE_ALIGNED(u8[PAGE_SIZE], percpu_kunit_page);

static void both_views_of_static_variables(struct kunit *test)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		memset(per_cpu_ptr(percpu_kunit_bytes, cpu), 0,
		       sizeof(percpu_kunit_bytes));
		memset(per_cpu_ptr(percpu_kunit_page, cpu), 0,
		       sizeof(percpu_kunit_page));
	}
	compare_views(test, percpu_kunit_bytes, sizeof(percpu_kunit_bytes));
	compare_views(test, percpu_kunit_page, sizeof(percpu_kunit_page));
}
#endif

static struct kunit_case percpu_cases[] = {
	KUNIT_CASE_SLOW(integers_in_a_static_variable),
	KUNIT_CASE_SLOW(integers_in_allocated_memory),
	KUNIT_CASE_SLOW(integers_in_reserved_memory),
	KUNIT_CASE(pointers_bools_and_members),
	KUNIT_CASE(operands_of_any_width_and_sign),
	KUNIT_CASE(operands_are_evaluated_once),
	KUNIT_CASE(the_compiler_keeps_the_order),
	KUNIT_CASE(what_is_written_for_a_cpu_is_read_there),
	KUNIT_CASE(interrupts_are_seen),
	KUNIT_CASE(both_views_of_allocated_memory),
	KUNIT_CASE(both_views_of_reserved_memory),
#ifdef HAS_STATIC_AREA
	KUNIT_CASE(both_views_of_the_static_area),
	KUNIT_CASE(both_views_of_static_variables),
#endif
	{}
};

static struct kunit_suite percpu_suite = {
	.name = "percpu",
	.test_cases = percpu_cases,
};

kunit_test_suite(percpu_suite);

MODULE_DESCRIPTION("KUnit tests of the per-CPU operations");
MODULE_LICENSE("GPL");
