// SPDX-License-Identifier: GPL-2.0-only
/*
 * Torture of the per-CPU operations: everybody operates on the same per-CPU
 * variables, from tasks, softirqs, hardirqs and NMIs, while tasks migrate, CPUs
 * go off and on, and per-CPU memory comes and goes. In the end everything must
 * add up.
 *
 * It knows only the generic API and holds on any kernel. NMIs operate where the
 * architecture says that they may. Loading the module runs it: the result is
 * KTAP in the log, and an error of -EIO if anything was wrong, or if something
 * did not happen that was to happen. All is bounded by counts, not by time.
 *
 * Who operates is an actor: it runs in one context, never twice at a time, and
 * keeps in plain variables what it has done. What is checked:
 *
 *  - Sums. Actors add random numbers, with every operation that can; the sum
 *    over all CPUs must be the sum over all actors, modulo the size of the
 *    variable. Of exchanges, what was put in and not got back must be there.
 *    What incrementing returns on one CPU is 1, 2, 3 and so on, so its sum is
 *    known too. Of 128 bits, one half is the inverse of the other.
 *  - Bits. Each context has a bit of its own in a word; in interrupts it must
 *    stay on that CPU as it was left, whatever others do with other bits of
 *    that word.
 *  - Places. A variable that holds the number of its CPU, and those that only
 *    one context writes, must show to a task that cannot migrate what they
 *    ought to.
 *  - Stillness. While interrupts are off nobody else may change this CPU's
 *    copies: an operation that hits another CPU's copy is wrong, even if it is
 *    atomic.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/atomic.h>
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/fs.h>
#include <linux/hrtimer.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/perf_event.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/timekeeping.h>
#include <linux/tracepoint.h>

#include "percpu_checks.h"

static unsigned int rounds = 2000;
module_param(rounds, uint, 0444);
MODULE_PARM_DESC(rounds,
		 "How often each thread operates on all variables of one kind");

static unsigned int threads;
module_param(threads, uint, 0444);
MODULE_PARM_DESC(threads,
		 "How many threads operate (default: 2 for each CPU, and 1)");

static unsigned int interrupts = 300;
module_param(interrupts, uint, 0444);
MODULE_PARM_DESC(interrupts,
		 "How many softirqs and hardirqs operate, for each CPU");

static unsigned int plugs = 4;
module_param(plugs, uint, 0444);
MODULE_PARM_DESC(plugs, "How often a CPU goes off and on");

static unsigned int churns = 2;
module_param(churns, uint, 0444);
MODULE_PARM_DESC(churns,
		 "How often chunks are made, emptied, filled and freed");

static unsigned int chunks = 2;
module_param(chunks, uint, 0444);
MODULE_PARM_DESC(chunks, "How many chunks are made each time");

static unsigned int cycles = 1000000;
module_param(cycles, uint, 0444);
MODULE_PARM_DESC(cycles,
		 "How many cycles of a CPU there are from one NMI to the next");

enum context { TASK, SOFTIRQ, HARDIRQ, NMI, NR_CONTEXTS };

/* What is operated on */

/* What is in front of the variables of a size and behind them. */
#define GUARD	0x5a

/*
 * The variables of one size; @own has one for each context, of @bits one bit.
 * What a kind of tally counts is the sum over all CPUs of the variable with the
 * same name.
 */
#define DEFINE_VARIABLES(size)				\
struct variables_ ## size {				\
	u ## size before;				\
	u ## size add;					\
	u ## size add_return;				\
	u ## size inc_return;				\
	u ## size xchg;					\
	u ## size cmpxchg;				\
	u ## size try_cmpxchg;				\
	u ## size bits;					\
	u ## size pattern;				\
	u ## size cpu;					\
	u ## size own[NR_CONTEXTS];			\
	u ## size after;				\
};							\
							\
struct tally_ ## size {					\
	u ## size add;					\
	u ## size add_return;				\
	u ## size inc_return;				\
	u ## size returned;				\
	u ## size xchg;					\
	u ## size cmpxchg;				\
	u ## size try_cmpxchg;				\
	u ## size bit;					\
	u ## size own;					\
}

DEFINE_VARIABLES(8);
DEFINE_VARIABLES(16);
DEFINE_VARIABLES(32);
DEFINE_VARIABLES(64);

union pair {
	struct {
		u64 count;
		u64 inverse;
	};
#ifdef PERCPU_CHECKS_128
	u128 full;
#endif
};

struct variables {
	union pair pair;
	struct variables_64 v64;
	struct variables_32 v32;
	struct variables_16 v16;
	struct variables_8 v8;
} __aligned(16);

struct tally {
	u64 pair;
	struct tally_64 v64;
	struct tally_32 v32;
	struct tally_16 v16;
	struct tally_8 v8;
};

/*
 * Of this module; allocated, in the first chunk if there was room; and in later
 * chunks.
 */
enum { STATIC, SMALL, LARGE, NR_ARENAS = LARGE + 3 };

/* Two of them do not fit into what the first chunk has for allocations. */
#define LARGE_SIZE	(24 * 1024)

static DEFINE_PER_CPU(struct variables, percpu_torture_variables);
static struct variables __percpu *arenas[NR_ARENAS];
static void __percpu *allocated[NR_ARENAS];

/* Who operates */

struct actor {
	enum context context;
	u64 random;
	unsigned long rounds;
	struct tally tally[NR_ARENAS];
	struct percpu_checks checks;
};

/* An actor that a timer calls, again and again, on one CPU. */
struct timer_actor {
	struct actor actor;
	struct hrtimer timer;
	unsigned int cpu;
	/*
	 * Memory that an interrupt has allocated, and what this CPU has written
	 * there.
	 */
	u64 __percpu *memory;
	u64 written;
	unsigned long allocations;
};

struct cpu_actors {
	struct timer_actor hard;
	struct timer_actor soft;
	struct actor nmi;
	u64 nmi_ended;
	u64 nmi_took;
	unsigned long nmis;
	unsigned long not_nmis;
	struct perf_event *event;
	struct perf_event *dead_event;
};

static struct cpu_actors *cpu_actors;

struct thread {
	struct actor actor;
	struct task_struct *task;
	unsigned long cpu_changes;
	unsigned long preemptions;
	bool done;
};

static struct thread *thread;

/* Threads, and others with a count to reach, that have not reached it. */
static atomic_t unfinished;

static u64 next_random(struct actor *a)
{
	a->random ^= a->random << 13;
	a->random ^= a->random >> 7;
	a->random ^= a->random << 17;

	return a->random;
}

/*
 * All operations on the variables of one size; @v is a constant for static
 * variables. The task may migrate between any two of them, and in each of them.
 */
#define DEFINE_OPERATE(size)						\
static __always_inline void						\
operate_ ## size(struct variables_ ## size __percpu *v,			\
		 struct tally_ ## size *t, struct actor *a)		\
{									\
	const unsigned int width = 8 * sizeof(v->add);			\
	const u ## size bit = 1 << a->context;				\
	const u ## size shared = 0x10 << (next_random(a) & 3);		\
	u ## size x = next_random(a), old, new, got, before, *own;	\
									\
	this_cpu_add(v->add, x);					\
	this_cpu_sub(v->add, x >> 3);					\
	this_cpu_inc(v->add);						\
	this_cpu_inc(v->add);						\
	this_cpu_dec(v->add);						\
	t->add += x - (x >> 3) + 1;					\
									\
	this_cpu_add_return(v->add_return, x);				\
	this_cpu_sub_return(v->add_return, x >> 2);			\
	this_cpu_dec_return(v->add_return);				\
	t->add_return += x - (x >> 2) - 1;				\
									\
	t->returned += this_cpu_inc_return(v->inc_return);		\
	t->inc_return++;						\
									\
	got = this_cpu_xchg(v->xchg, x);				\
	t->xchg += x - got;						\
									\
	old = this_cpu_read(v->cmpxchg);				\
	new = old + x;							\
	if (this_cpu_cmpxchg(v->cmpxchg, old, new) == old)		\
		t->cmpxchg += x;					\
									\
	before = this_cpu_read(v->try_cmpxchg);				\
	old = before;							\
	new = old + x;							\
	while (!this_cpu_try_cmpxchg(v->try_cmpxchg, &old, new)) {	\
		percpu_check(&a->checks, "try_cmpxchg that failed",	\
			     width, old != before, true);		\
		before = old;						\
		new = old + x;						\
	}								\
	t->try_cmpxchg += x;						\
									\
	/* All bytes are the same, unless half was read or written. */	\
	this_cpu_write(v->pattern, (u ## size)(0x101010101010101UL * (u8)x)); \
	got = this_cpu_read(v->pattern);				\
	percpu_check(&a->checks, "pattern", width, got,			\
		     (u ## size)(0x101010101010101UL * (u8)got));	\
									\
	/* Bits that all may change: others' are lost if not atomic. */	\
	this_cpu_or(v->bits, shared);					\
	this_cpu_and(v->bits, (u ## size)~shared);			\
									\
	preempt_disable();						\
	got = this_cpu_read(v->cpu);					\
	percpu_check(&a->checks, "number of this CPU", width, got,	\
		     (u ## size)smp_processor_id());			\
									\
	/* Tasks leave it clear: the next may be on another CPU. */	\
	got = this_cpu_read(v->bits) & bit;				\
	percpu_check(&a->checks, "bit of this context", width, got, t->bit); \
	if (got)							\
		this_cpu_and(v->bits, (u ## size)~bit);			\
	else								\
		this_cpu_or(v->bits, bit);				\
	t->bit ^= bit;							\
	got = this_cpu_read(v->bits) & bit;				\
	percpu_check(&a->checks, "bit after its change", width, got, t->bit); \
	if (a->context == TASK) {					\
		this_cpu_and(v->bits, (u ## size)~bit);			\
		t->bit = 0;						\
	}								\
									\
	/* Nobody but this context writes here. */			\
	own = this_cpu_ptr(&v->own[a->context]);			\
	old = *own;							\
	this_cpu_add(v->own[a->context], x);				\
	raw_cpu_add(v->own[a->context], 3);				\
	*own += 7;							\
	__this_cpu_sub(v->own[a->context], 1);				\
	got = this_cpu_inc_return(v->own[a->context]);			\
	percpu_check(&a->checks, "variable of this context", width, got, \
		     (u ## size)(old + x + 10));			\
	this_cpu_write(v->own[a->context], (u ## size)(got + 1));	\
	percpu_check(&a->checks, "variable of this context", width, *own, \
		     (u ## size)(got + 1));				\
	preempt_enable();						\
	t->own += x + 11;						\
}

DEFINE_OPERATE(8)
DEFINE_OPERATE(16)
DEFINE_OPERATE(32)
DEFINE_OPERATE(64)

#ifdef PERCPU_CHECKS_128
static __always_inline void operate_pair(union pair __percpu *v,
					 struct tally *t, struct actor *a)
{
	u64 x = next_random(a);
	union pair old, new, got;
	bool done;

	if (!system_has_cmpxchg128())
		return;
	old.count = this_cpu_read(v->count);
	old.inverse = ~old.count;
	do {
		new.count = old.count + x;
		new.inverse = ~new.count;
		if (x & 1) {
			got.full = this_cpu_cmpxchg128(v->full, old.full,
						       new.full);
			done = got.full == old.full;
		} else {
			got = old;
			done = this_cpu_try_cmpxchg128(v->full, &got.full,
						       new.full);
		}
		percpu_check(&a->checks, "halves of a pair", 128, got.inverse,
			     ~got.count);
		old = got;
	} while (!done);
	t->pair += x;
}
#else
static inline void operate_pair(union pair __percpu *v, struct tally *t,
				struct actor *a)
{
}
#endif

static __always_inline void operate_arena(struct variables __percpu *v,
					  struct tally *t, struct actor *a)
{
	operate_8(&v->v8, &t->v8, a);
	operate_16(&v->v16, &t->v16, a);
	operate_32(&v->v32, &t->v32, a);
	operate_64(&v->v64, &t->v64, a);
	operate_pair(&v->pair, t, a);
}

static void operate(struct actor *a)
{
	unsigned int arena = next_random(a) % NR_ARENAS;

	if (arena == STATIC)
		operate_arena(&percpu_torture_variables, &a->tally[STATIC], a);
	else
		operate_arena(arenas[arena], &a->tally[arena], a);
	WRITE_ONCE(a->rounds, a->rounds + 1);
}

/* Any change of what this CPU has in the arenas changes this, or nearly any. */
static u64 checksum_of_copies(void)
{
	u64 sum = 0;
	unsigned int i, j;

	for (i = 0; i < NR_ARENAS; i++) {
		const u64 *copy = (const u64 *)this_cpu_ptr(arenas[i]);

		for (j = 0; j < sizeof(struct variables) / sizeof(u64); j++)
			sum = sum * 31 + READ_ONCE(copy[j]);
	}

	return sum;
}

/* While interrupts are off only an NMI may change what this CPU has. */
static void stay_still(struct actor *a)
{
	unsigned long flags, *nmis, before;
	unsigned int wait = 1000;
	u64 sum;

	local_irq_save(flags);
	nmis = &cpu_actors[smp_processor_id()].nmis;
	before = READ_ONCE(*nmis);
	sum = checksum_of_copies();
	while (wait--)
		cpu_relax();
	if (checksum_of_copies() != sum && READ_ONCE(*nmis) == before)
		percpu_check_failed(&a->checks,
				    "copies change while interrupts are off", 0,
				    1, 0);
	local_irq_restore(flags);
}

static int operate_in_task(void *arg)
{
	struct thread *me = arg;
	unsigned int cpu = raw_smp_processor_id();
	unsigned long flags, switches;

	while (!kthread_should_stop()) {
		switches = READ_ONCE(current->nivcsw);
		switch (me->actor.random & 0xf) {
		case 0:
			local_irq_save(flags);
			operate(&me->actor);
			local_irq_restore(flags);
			break;
		case 1:
			local_bh_disable();
			operate(&me->actor);
			local_bh_enable();
			break;
		case 2 ... 4:
			stay_still(&me->actor);
			fallthrough;
		default:
			operate(&me->actor);
		}
		/* What cond_resched() does below is no preemption. */
		me->preemptions += READ_ONCE(current->nivcsw) - switches;
		if (cpu != raw_smp_processor_id()) {
			cpu = raw_smp_processor_id();
			me->cpu_changes++;
		}
		if (!me->done && me->actor.rounds >= rounds) {
			me->done = true;
			atomic_dec(&unfinished);
		}
		cond_resched();
	}

	return 0;
}

/* Softirqs and hardirqs */

/* Allocate here, and at another time look at it and free it. */
static void allocate_in_interrupt(struct timer_actor *me)
{
	struct percpu_checks *c = &me->actor.checks;
	const size_t size = 8 << (next_random(&me->actor) & 7);

	if (!me->memory) {
		me->memory =
			__alloc_percpu_gfp(size, 8, GFP_NOWAIT | __GFP_NOWARN);
		if (!me->memory)
			return;
		percpu_check(c, "memory allocated in a softirq", 0,
			     this_cpu_read(*me->memory), 0);
		me->written = next_random(&me->actor);
		this_cpu_write(*me->memory, me->written);
		me->allocations++;
	} else {
		percpu_check(c, "memory allocated in a softirq", 1,
			     this_cpu_read(*me->memory), me->written);
		free_percpu(me->memory);
		me->memory = NULL;
	}
}

static enum hrtimer_restart operate_in_timer(struct hrtimer *timer)
{
	struct timer_actor *me = container_of(timer, struct timer_actor, timer);
	struct actor *a = &me->actor;
	u64 took, start = ktime_get_mono_fast_ns();

	percpu_check(&a->checks, "CPU of a timer", 0, smp_processor_id(),
		     me->cpu);
	percpu_check(&a->checks, "context of a timer", 0,
		     a->context == HARDIRQ ? !!in_hardirq() :
					     !!in_serving_softirq(),
		     true);
	operate(a);
	if (a->context == SOFTIRQ && a->rounds % 8 == 0)
		allocate_in_interrupt(me);

	/* However slow the machine is, others get most of its time. */
	took = ktime_get_mono_fast_ns() - start;
	hrtimer_set_expires(timer, ns_to_ktime(start + 4 * took + 30000 +
					       (next_random(a) & 0x3ffff)));

	return HRTIMER_RESTART;
}

/* NMIs */

/*
 * Where an interrupt is not an NMI (without pseudo-NMIs) it is one more
 * hardirq.
 */
static void operate_in_nmi(struct perf_event *event,
			   struct perf_sample_data *data, struct pt_regs *regs)
{
	struct cpu_actors *me = &cpu_actors[smp_processor_id()];
	u64 start = ktime_get_mono_fast_ns();

	if (start < me->nmi_ended + 2 * me->nmi_took)
		return;
	WRITE_ONCE(me->nmis, me->nmis + 1);
	if (!in_nmi())
		me->not_nmis++;
	operate(&me->nmi);
	me->nmi_ended = ktime_get_mono_fast_ns();
	me->nmi_took = me->nmi_ended - start;
	WRITE_ONCE(me->nmis, me->nmis + 1);
}

static long nmi_error;

static void start_nmis(struct cpu_actors *me, unsigned int cpu)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_HARDWARE,
		.config = PERF_COUNT_HW_CPU_CYCLES,
		.size = sizeof(attr),
		.pinned = 1,
		.sample_period = cycles,
	};
	struct perf_event *event;

	/* Elsewhere an NMI may come in the middle of an operation. */
	if (!IS_ENABLED(CONFIG_ARCH_HAS_NMI_SAFE_THIS_CPU_OPS)) {
		nmi_error = -EOPNOTSUPP;
		return;
	}

	/* What a CPU that went offline has left cannot be enabled again. */
	if (me->dead_event)
		perf_event_release_kernel(me->dead_event);
	me->dead_event = NULL;
	event = perf_event_create_kernel_counter(&attr, cpu, NULL,
						 operate_in_nmi, NULL);
	if (IS_ERR(event))
		nmi_error = PTR_ERR(event);
	else
		me->event = event;
}

static void stop_nmis(struct cpu_actors *me)
{
	if (!me->event)
		return;
	perf_event_disable(me->event);
	me->dead_event = me->event;
	me->event = NULL;
}

/* CPUs */

static int start_cpu(unsigned int cpu)
{
	struct cpu_actors *me = &cpu_actors[cpu];

	hrtimer_start(&me->hard.timer, 0, HRTIMER_MODE_REL_PINNED_HARD);
	hrtimer_start(&me->soft.timer, 0, HRTIMER_MODE_REL_PINNED_SOFT);
	start_nmis(me, cpu);

	return 0;
}

static int stop_cpu(unsigned int cpu)
{
	struct cpu_actors *me = &cpu_actors[cpu];

	stop_nmis(me);
	hrtimer_cancel(&me->hard.timer);
	hrtimer_cancel(&me->soft.timer);

	return 0;
}

static DEFINE_PER_CPU_ALIGNED(u8[512], percpu_torture_bytes);

struct plugger {
	struct percpu_checks checks;
	struct percpu_view view;
	unsigned int turns;
	unsigned int errors;
};

static bool may_plug(void)
{
	return IS_ENABLED(CONFIG_HOTPLUG_CPU) && num_online_cpus() > 1;
}

#ifdef CONFIG_HOTPLUG_CPU
/*
 * Memory that was allocated, and variables that were written, while a CPU was
 * off.
 */
static int plug_cpus(void *arg)
{
	struct plugger *me = arg;
	struct percpu_view *view = &me->view;
	unsigned int cpu = 0;

	view->checks = &me->checks;
	while (!kthread_should_stop()) {
		void __percpu *memory;
		size_t size = PAGE_SIZE << (me->turns % 3);

		cpu = cpumask_next_wrap(cpu, cpu_online_mask, nr_cpu_ids,
					false);
		/* Others may plug too, and the last one has to stay. */
		if (me->turns >= plugs || num_online_cpus() == 1 ||
		    remove_cpu(cpu)) {
			schedule_timeout_idle(1);
			continue;
		}

		memory = __alloc_percpu(min(size, PCPU_MIN_UNIT_SIZE), 8);
		view->memory = percpu_torture_bytes;
		view->size = sizeof(percpu_torture_bytes);
		percpu_view_compare(view);

		/* It is 1 if somebody else was faster. */
		if (add_cpu(cpu) < 0 || !memory) {
			me->errors++;
		} else {
			percpu_view_compare(view);
			view->memory = memory;
			view->size = min(size, PCPU_MIN_UNIT_SIZE);
			percpu_on_each_cpu(percpu_view_visit_zeroes, view);
			percpu_view_compare(view);
		}
		free_percpu(memory);
		if (++me->turns == plugs)
			atomic_dec(&unfinished);
	}

	return 0;
}
#endif

/* Migration */

static unsigned long moves;

/*
 * Some threads are on one CPU, some where the scheduler wants them; all change.
 */
static int move_threads(void *arg)
{
	struct actor a = { .random = 0x6d6f7665 };

	while (!kthread_should_stop()) {
		struct task_struct *task =
			thread[next_random(&a) % threads].task;
		unsigned int cpu;

		/*
		 * Not to a CPU that goes: a kernel thread may ask for it, but
		 * nobody sees to it that it leaves again in time.
		 */
		cpus_read_lock();
		cpu = cpumask_next((int)(next_random(&a) % nr_cpu_ids) - 1,
				   cpu_active_mask);
		if (cpu >= nr_cpu_ids || next_random(&a) % 4 == 0)
			set_cpus_allowed_ptr(task, cpu_possible_mask);
		else if (!set_cpus_allowed_ptr(task, cpumask_of(cpu)))
			moves++;
		cpus_read_unlock();
		if (next_random(&a) % 4 == 0)
			schedule_timeout_idle(1);
		cond_resched();
	}

	return 0;
}

/* Memory */

static atomic_t chunks_created, chunks_destroyed;

static void count_creation(void *data, void *base_addr)
{
	atomic_inc(&chunks_created);
}

static void count_destruction(void *data, void *base_addr)
{
	atomic_inc(&chunks_destroyed);
}

struct probes {
	struct tracepoint *create;
	struct tracepoint *destroy;
};

static struct probes probes;

static void find_probes(struct tracepoint *tp, void *data)
{
	if (!strcmp(tp->name, "percpu_create_chunk"))
		probes.create = tp;
	else if (!strcmp(tp->name, "percpu_destroy_chunk"))
		probes.destroy = tp;
}

/*
 * How many kB of pages per-CPU memory has, in chunks other than the first; 0 if
 * unknown.
 */
static unsigned long populated(void)
{
	struct file *file = filp_open("/proc/meminfo", O_RDONLY, 0);
	unsigned long kb = 0;
	char *text, *line;
	loff_t pos = 0;

	if (IS_ERR(file))
		return 0;
	text = kzalloc(PAGE_SIZE, GFP_KERNEL);
	if (text && kernel_read(file, text, PAGE_SIZE - 1, &pos) > 0) {
		line = strstr(text, "Percpu:");
		if (line)
			sscanf(line, "Percpu: %lu", &kb);
	}
	kfree(text);
	fput(file);

	return kb;
}

#define NR_BLOCKS	1024

struct churner {
	struct percpu_checks checks;
	struct percpu_view view;
	struct actor random;
	unsigned int turns;
	unsigned int allocations;
	unsigned int atomic_allocations;
	unsigned int failed_allocations;
	unsigned int emptied;
	unsigned int nr;
	struct {
		void __percpu *memory;
		size_t size;
	} blocks[NR_BLOCKS];
};

static bool next_block(struct churner *me, unsigned int *i)
{
	while (*i < me->nr && !me->blocks[*i].memory)
		++*i;
	if (*i == me->nr)
		return false;
	me->view.memory = me->blocks[*i].memory;
	me->view.size = me->blocks[*i].size;
	++*i;

	return true;
}

static long visit_blocks(void *arg)
{
	struct churner *me = arg;
	unsigned int i = 0;

	while (next_block(me, &i)) {
		percpu_view_visit(&me->view);
		cond_resched();
	}

	return 0;
}

static long visit_fresh_blocks(void *arg)
{
	struct churner *me = arg;
	unsigned int i = 0;

	while (next_block(me, &i)) {
		percpu_view_visit_zeroes(&me->view);
		cond_resched();
	}

	return 0;
}

/* Compare both views of all blocks, on all CPUs. */
static void compare_blocks(struct churner *me, bool fresh)
{
	unsigned int i;

	if (fresh)
		percpu_on_each_cpu(visit_fresh_blocks, me);
	me->view.salt += 2;
	cpumask_clear(&me->view.visited);
	for (i = 0; next_block(me, &i); cond_resched())
		percpu_view_fill(&me->view);
	percpu_on_each_cpu(visit_blocks, me);
	for (i = 0; next_block(me, &i); cond_resched())
		percpu_view_check_outside(&me->view);
}

static bool new_block(struct churner *me, unsigned int i)
{
	u64 random = next_random(&me->random);
	size_t size = random & 7 ? 8 + (random >> 8 & 0xff8) :
				   PCPU_MIN_UNIT_SIZE;
	bool atomic = random & 0x10;
	void __percpu *memory;

	if (atomic) {
		/* The allocator's lock is one for which PREEMPT_RT sleeps. */
		if (!IS_ENABLED(CONFIG_PREEMPT_RT))
			preempt_disable();
		memory = __alloc_percpu_gfp(size, 8, GFP_NOWAIT | __GFP_NOWARN);
		if (!IS_ENABLED(CONFIG_PREEMPT_RT))
			preempt_enable();
	} else {
		memory = __alloc_percpu(size, 8);
	}
	me->blocks[i].memory = memory;
	me->blocks[i].size = size;
	me->allocations += !atomic && memory;
	me->atomic_allocations += atomic && memory;
	/*
	 * When there is no populated page left, atomic ones fail; that is no
	 * error.
	 */
	me->failed_allocations += !atomic && !memory;

	return memory;
}

static void free_block(struct churner *me, unsigned int i)
{
	free_percpu(me->blocks[i].memory);
	me->blocks[i].memory = NULL;
}

/* What was freed is given back a little later. */
static bool shrinks_below(unsigned long kb)
{
	unsigned int tries;

	for (tries = 0; tries < 100; tries++) {
		if (populated() < kb)
			return true;
		schedule_timeout_idle(HZ / 50);
	}

	return false;
}

static void make_chunks(struct churner *me, unsigned int nr)
{
	int created = atomic_read(&chunks_created);

	me->nr = 0;
	while (me->nr < NR_BLOCKS &&
	       atomic_read(&chunks_created) - created < nr)
		new_block(me, me->nr++);
}

static void free_blocks(struct churner *me)
{
	unsigned int i;

	for (i = 0; i < me->nr; i++)
		free_block(me, i);
}

/*
 * Chunks that are empty go a little later, all but one. But one that was given
 * back its pages before the last block was freed is put aside, for the next
 * blocks.
 */
static void destroy_chunk(struct churner *me)
{
	int destroyed = atomic_read(&chunks_destroyed);
	unsigned int tries;

	for (tries = 0; tries < 50; tries++) {
		make_chunks(me, 1);
		free_blocks(me);
		schedule_timeout_idle(HZ / 50);
		if (atomic_read(&chunks_destroyed) != destroyed)
			break;
	}
}

static void churn(struct churner *me)
{
	unsigned long full;
	unsigned int i;

	make_chunks(me, chunks);
	compare_blocks(me, true);

	/* Few blocks are left, so that a chunk stays and its pages go. */
	full = populated();
	for (i = 0; i < me->nr; i++)
		if (i % 16)
			free_block(me, i);
	me->emptied += shrinks_below(full);
	compare_blocks(me, false);

	/* The pages come again, other ones, at the same addresses. */
	for (i = 0; i < me->nr; i++)
		if (!me->blocks[i].memory)
			new_block(me, i);
	for (i = 0; i < me->nr; i += 16)
		free_block(me, i);
	compare_blocks(me, true);

	free_blocks(me);
	destroy_chunk(me);
}

static int churn_memory(void *arg)
{
	struct churner *me = arg;

	me->random.random = 0x636875726e;
	me->view.checks = &me->checks;
	while (!kthread_should_stop()) {
		if (me->turns >= churns) {
			schedule_timeout_idle(1);
			continue;
		}
		churn(me);
		if (++me->turns == churns)
			atomic_dec(&unfinished);
	}

	return 0;
}

/* Results */

#define NR_RESULTS	19

static unsigned int results, bad_results;

static __printf(3, 4) void result(bool good, const char *name,
				  const char *format, ...)
{
	struct va_format detail = { .fmt = format };
	va_list args;

	va_start(args, format);
	detail.va = &args;
	if (good)
		pr_info("# %s: %pV\n", name, &detail);
	else
		pr_err("# %s: %pV\n", name, &detail);
	va_end(args);
	pr_info("%sok %u %s\n", good ? "" : "not ", ++results, name);
	bad_results += !good;
}

static void skipped(const char *name, const char *why, long error)
{
	pr_info("ok %u %s # SKIP %s (%ld)\n", ++results, name, why, error);
}

static void result_of_checks(const char *name, const struct percpu_checks *c)
{
	result(c->done && !c->failed, name, "%lu of %lu checks failed%s%s",
	       c->failed, c->done, c->failed ? ": " : "", c->first);
}

/*
 * Compare the sums over all CPUs of variables of one size with a sum of
 * tallies.
 */
#define DEFINE_CHECK_SUMS(size)						\
static void								\
check_sums_ ## size(struct percpu_checks *c,				\
		    struct variables_ ## size __percpu *all,		\
		    const struct tally_ ## size *t)		\
{									\
	const unsigned int width = 8 * sizeof(t->add);			\
	struct variables_ ## size sum = { };				\
	u ## size returned = 0, n;					\
	unsigned int cpu, i;						\
									\
	for_each_possible_cpu(cpu) {					\
		struct variables_ ## size *v = per_cpu_ptr(all, cpu);	\
									\
		sum.add += v->add;					\
		sum.add_return += v->add_return;			\
		sum.inc_return += v->inc_return;			\
		sum.xchg += v->xchg;					\
		sum.cmpxchg += v->cmpxchg;				\
		sum.try_cmpxchg += v->try_cmpxchg;			\
		for (i = 0; i < NR_CONTEXTS; i++)			\
			sum.own[0] += v->own[i];			\
		/* The highest bit of n * (n + 1) / 2 is unknown: n wraps. */ \
		n = v->inc_return;					\
		returned += n & 1 ? n * (u ## size)((n >> 1) + 1) :	\
				    (n >> 1) * (u ## size)(n + 1);	\
		percpu_check(c, "guard before", width, v->before, GUARD); \
		percpu_check(c, "guard after", width, v->after, GUARD);	\
		percpu_check(c, "CPU number", width, v->cpu, (u ## size)cpu); \
		percpu_check(c, "pattern", width, v->pattern,		\
			     (u ## size)(0x101010101010101UL *		\
					 (u8)v->pattern));		\
		percpu_check(c, "bits of tasks", width,			\
			     v->bits & BIT(TASK), 0);			\
	}								\
	percpu_check(c, "sum of add", width, sum.add, t->add);		\
	percpu_check(c, "sum of add_return", width, sum.add_return,	\
		     t->add_return);					\
	percpu_check(c, "sum of inc_return", width, sum.inc_return,	\
		     t->inc_return);					\
	percpu_check(c, "sum of xchg", width, sum.xchg, t->xchg);	\
	percpu_check(c, "sum of cmpxchg", width, sum.cmpxchg, t->cmpxchg); \
	percpu_check(c, "sum of try_cmpxchg", width, sum.try_cmpxchg,	\
		     t->try_cmpxchg);					\
	percpu_check(c, "sum of own", width, sum.own[0], t->own);	\
	percpu_check(c, "sum of what inc_return returned", width,	\
		     (u ## size)(returned << 1),			\
		     (u ## size)(t->returned << 1));			\
}

DEFINE_CHECK_SUMS(8)
DEFINE_CHECK_SUMS(16)
DEFINE_CHECK_SUMS(32)
DEFINE_CHECK_SUMS(64)

#define DEFINE_ADD_TALLY(size)						\
static void add_tally_ ## size(struct tally_ ## size *sum,		\
			       const struct tally_ ## size *t)		\
{									\
	sum->add += t->add;						\
	sum->add_return += t->add_return;				\
	sum->inc_return += t->inc_return;				\
	sum->returned += t->returned;					\
	sum->xchg += t->xchg;						\
	sum->cmpxchg += t->cmpxchg;					\
	sum->try_cmpxchg += t->try_cmpxchg;				\
	sum->own += t->own;						\
}

DEFINE_ADD_TALLY(8)
DEFINE_ADD_TALLY(16)
DEFINE_ADD_TALLY(32)
DEFINE_ADD_TALLY(64)

static void add_tally(struct tally *sum, const struct tally *t)
{
	sum->pair += t->pair;
	add_tally_8(&sum->v8, &t->v8);
	add_tally_16(&sum->v16, &t->v16);
	add_tally_32(&sum->v32, &t->v32);
	add_tally_64(&sum->v64, &t->v64);
}

/* The bits of an actor that is bound to a CPU are as it has left them. */
static void check_bits(struct percpu_checks *c, const struct actor *a,
		       unsigned int cpu)
{
	const u8 bit = 1 << a->context;
	unsigned int i;

	for (i = 0; i < NR_ARENAS; i++) {
		const struct variables *v = per_cpu_ptr(arenas[i], cpu);
		const struct tally *t = &a->tally[i];

		percpu_check(c, "bit at the end", 8, v->v8.bits & bit,
			     t->v8.bit);
		percpu_check(c, "bit at the end", 16, v->v16.bits & bit,
			     t->v16.bit);
		percpu_check(c, "bit at the end", 32, v->v32.bits & bit,
			     t->v32.bit);
		percpu_check(c, "bit at the end", 64, v->v64.bits & bit,
			     t->v64.bit);
	}
}

static void check_sums(void)
{
	struct percpu_checks checks = { };
	unsigned int i, j, cpu;
	struct tally *sum;

	sum = kzalloc(sizeof(*sum), GFP_KERNEL);
	percpu_check(&checks, "memory for the sums", 0, !!sum, true);
	for (i = 0; sum && i < NR_ARENAS; i++) {
		u64 pairs = 0;

		memset(sum, 0, sizeof(*sum));
		for (j = 0; j < threads; j++)
			add_tally(sum, &thread[j].actor.tally[i]);
		for_each_possible_cpu(cpu) {
			union pair *pair = &per_cpu_ptr(arenas[i], cpu)->pair;

			add_tally(sum, &cpu_actors[cpu].hard.actor.tally[i]);
			add_tally(sum, &cpu_actors[cpu].soft.actor.tally[i]);
			add_tally(sum, &cpu_actors[cpu].nmi.tally[i]);
			percpu_check(&checks, "halves of a pair", i,
				     pair->inverse, ~pair->count);
			pairs += pair->count;
		}
		percpu_check(&checks, "sum of pairs", i, pairs, sum->pair);
		check_sums_8(&checks, &arenas[i]->v8, &sum->v8);
		check_sums_16(&checks, &arenas[i]->v16, &sum->v16);
		check_sums_32(&checks, &arenas[i]->v32, &sum->v32);
		check_sums_64(&checks, &arenas[i]->v64, &sum->v64);
	}
	kfree(sum);

	for_each_possible_cpu(cpu) {
		check_bits(&checks, &cpu_actors[cpu].hard.actor, cpu);
		check_bits(&checks, &cpu_actors[cpu].soft.actor, cpu);
		check_bits(&checks, &cpu_actors[cpu].nmi, cpu);
	}
	result_of_checks("sums_are_exact", &checks);
}

static void report_actors(void)
{
	unsigned long task = 0, soft = 0, hard = 0, nmi = 0, cpu_changes = 0,
		      preemptions = 0;
	unsigned long not_nmi = 0, allocations = 0;
	struct percpu_checks checks = { };
	unsigned int i, cpu;

	for (i = 0; i < threads; i++) {
		task += thread[i].actor.rounds;
		cpu_changes += thread[i].cpu_changes;
		preemptions += thread[i].preemptions;
		percpu_checks_add(&checks, &thread[i].actor.checks);
	}
	result_of_checks("tasks_see_what_they_ought_to", &checks);
	if (preempt_model_preemptible())
		result(task && preemptions, "tasks_are_preempted",
		       "%lu rounds in %u threads, preempted %lu times", task,
		       threads, preemptions);
	else
		skipped("tasks_are_preempted", "not in this kernel", 0);
	if (num_possible_cpus() > 1)
		result(moves && cpu_changes, "tasks_migrate",
		       "%lu seen of which %lu were asked for", cpu_changes,
		       moves);
	else
		skipped("tasks_migrate", "there is one CPU", 0);

	memset(&checks, 0, sizeof(checks));
	for_each_possible_cpu(cpu) {
		soft += cpu_actors[cpu].soft.actor.rounds;
		allocations += cpu_actors[cpu].soft.allocations;
		percpu_checks_add(&checks, &cpu_actors[cpu].soft.actor.checks);
	}
	result_of_checks("softirqs_see_what_they_ought_to", &checks);
	result(soft, "softirqs_run", "%lu rounds", soft);
	result(allocations, "softirqs_allocate", "%lu times", allocations);

	memset(&checks, 0, sizeof(checks));
	for_each_possible_cpu(cpu) {
		hard += cpu_actors[cpu].hard.actor.rounds;
		percpu_checks_add(&checks, &cpu_actors[cpu].hard.actor.checks);
	}
	result_of_checks("hardirqs_see_what_they_ought_to", &checks);
	result(hard, "hardirqs_run", "%lu rounds", hard);

	memset(&checks, 0, sizeof(checks));
	for_each_possible_cpu(cpu) {
		nmi += cpu_actors[cpu].nmi.rounds;
		not_nmi += cpu_actors[cpu].not_nmis;
		percpu_checks_add(&checks, &cpu_actors[cpu].nmi.checks);
	}
	if (nmi)
		result_of_checks("nmis_see_what_they_ought_to", &checks);
	else
		skipped("nmis_see_what_they_ought_to", "no counter interrupts",
			nmi_error);
	if (nmi_error)
		skipped("nmis_run", "no counter, or operations are not for NMIs",
			nmi_error);
	else if (nmi && nmi == not_nmi)
		skipped("nmis_run", "counters interrupt, but not as NMIs", 0);
	else
		result(nmi && !not_nmi, "nmis_run",
		       "%lu rounds, %lu of them not in an NMI", nmi, not_nmi);
}

static void report_plugger(const struct plugger *p)
{
	if (!plugs) {
		skipped("cpus_that_come_see_what_they_ought_to", "no CPU comes",
			0);
		skipped("cpus_go_off_and_on", "there is no CPU to take away",
			0);
		return;
	}
	result_of_checks("cpus_that_come_see_what_they_ought_to", &p->checks);
	result(p->turns >= plugs && !p->errors, "cpus_go_off_and_on",
	       "%u times, %u errors", p->turns, p->errors);
}

static void report_churner(const struct churner *c)
{
	int created = atomic_read(&chunks_created),
	    destroyed = atomic_read(&chunks_destroyed);

	if (!churns) {
		skipped("both_views_of_memory_that_comes_and_goes",
			"not asked for", 0);
		skipped("memory_comes_and_goes", "not asked for", 0);
		skipped("chunks_are_created_and_destroyed", "not asked for", 0);
		skipped("chunks_are_depopulated", "not asked for", 0);
		return;
	}
	result_of_checks("both_views_of_memory_that_comes_and_goes",
			 &c->checks);
	result(c->turns >= churns && c->allocations && c->atomic_allocations &&
	       !c->failed_allocations, "memory_comes_and_goes",
	       "%u times: %u and %u atomic allocations, %u errors", c->turns,
	       c->allocations, c->atomic_allocations, c->failed_allocations);
	result(created && destroyed, "chunks_are_created_and_destroyed",
	       "%d and %d", created, destroyed);
	result(c->emptied, "chunks_are_depopulated", "%u times", c->emptied);
}

/* The whole */

static long check_operations(void *arg)
{
	percpu_check_static_integers(arg, raw_smp_processor_id() % 5, 5);
	percpu_check_cmpxchg64(arg, &percpu_static_slot);
	percpu_check_cmpxchg128(arg, &percpu_static_slot);

	return 0;
}

/* What needs no company. */
static void check_alone(void)
{
	struct percpu_view *view = kzalloc(sizeof(*view), GFP_KERNEL);
	struct percpu_checks checks = { };

	if (!view)
		return;
	percpu_on_each_cpu(check_operations, &checks);
	result_of_checks("operations_on_variables_of_a_module", &checks);

	memset(&checks, 0, sizeof(checks));
	view->checks = &checks;
	view->memory = percpu_torture_bytes;
	view->size = sizeof(percpu_torture_bytes);
	percpu_on_each_cpu(percpu_view_visit_zeroes, view);
	percpu_view_compare(view);
	result_of_checks("both_views_of_variables_of_a_module", &checks);
	kfree(view);
}

static void init_variables(struct variables __percpu *all)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		struct variables *v = per_cpu_ptr(all, cpu);

		v->pair.inverse = ~0UL;
		v->v8.before = GUARD;
		v->v16.before = GUARD;
		v->v32.before = GUARD;
		v->v64.before = GUARD;
		v->v8.after = GUARD;
		v->v16.after = GUARD;
		v->v32.after = GUARD;
		v->v64.after = GUARD;
		v->v8.cpu = cpu;
		v->v16.cpu = cpu;
		v->v32.cpu = cpu;
		v->v64.cpu = cpu;
	}
}

static void init_actor(struct actor *a, enum context where, unsigned int seed)
{
	a->context = where;
	a->random = 0x9e3779b97f4a7c15UL * (NR_CONTEXTS * seed + where + 1);
}

static void init_timer_actor(struct timer_actor *me, enum context where,
			     unsigned int cpu)
{
	init_actor(&me->actor, where, cpu);
	me->cpu = cpu;
	hrtimer_init(&me->timer, CLOCK_MONOTONIC,
		     where == HARDIRQ ? HRTIMER_MODE_REL_PINNED_HARD :
					HRTIMER_MODE_REL_PINNED_SOFT);
	me->timer.function = operate_in_timer;
}

static int prepare(void)
{
	unsigned int i, cpu;

	for (i = 0; i < NR_ARENAS; i++) {
		size_t size = i < LARGE ? sizeof(struct variables) : LARGE_SIZE;
		size_t align = __alignof__(struct variables);

		if (i == STATIC) {
			arenas[i] = &percpu_torture_variables;
		} else {
			allocated[i] = __alloc_percpu(size, align);
			if (!allocated[i])
				return -ENOMEM;
			/* Not always at the begin of a page. */
			arenas[i] = allocated[i] +
				    (i < LARGE ? 0 : LARGE_SIZE / 8 * i);
		}
		init_variables(arenas[i]);
	}

	cpu_actors = kvcalloc(nr_cpu_ids, sizeof(*cpu_actors), GFP_KERNEL);
	thread = kvcalloc(threads, sizeof(*thread), GFP_KERNEL);
	if (!cpu_actors || !thread)
		return -ENOMEM;
	for_each_possible_cpu(cpu) {
		init_timer_actor(&cpu_actors[cpu].hard, HARDIRQ, cpu);
		init_timer_actor(&cpu_actors[cpu].soft, SOFTIRQ, cpu);
		init_actor(&cpu_actors[cpu].nmi, NMI, cpu);
	}
	for (i = 0; i < threads; i++)
		init_actor(&thread[i].actor, TASK, i);

	return 0;
}

static void clean_up(void)
{
	unsigned int i, cpu;

	if (cpu_actors) {
		for_each_possible_cpu(cpu) {
			struct cpu_actors *me = &cpu_actors[cpu];

			if (me->dead_event)
				perf_event_release_kernel(me->dead_event);
			free_percpu(me->soft.memory);
		}
	}
	kvfree(cpu_actors);
	kvfree(thread);
	for (i = 0; i < NR_ARENAS; i++)
		free_percpu(allocated[i]);
}

/* All operate at the same time until each has operated often enough. */
static bool enough(void)
{
	unsigned long soft = 0, hard = 0;
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		soft += READ_ONCE(cpu_actors[cpu].soft.actor.rounds);
		hard += READ_ONCE(cpu_actors[cpu].hard.actor.rounds);
	}

	return !atomic_read(&unfinished) &&
	       min(soft, hard) >= (unsigned long)interrupts * num_online_cpus();
}

static struct task_struct *new_thread(int (*function)(void *arg), void *arg,
				      const char *name)
{
	struct task_struct *task =
		kthread_run(function, arg, "torture/%s", name);

	return IS_ERR(task) ? NULL : task;
}

static void end_thread(struct task_struct *task)
{
	if (task)
		kthread_stop(task);
}

static int run(struct plugger *plugger, struct churner *churner)
{
	struct task_struct *mover = NULL, *plugging = NULL, *churning = NULL;
	int state, error = 0;
	unsigned int i;

	state = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "percpu/torture:online",
				  start_cpu, stop_cpu);
	if (state < 0)
		return state;

	atomic_set(&unfinished, threads + !!plugs + !!churns);
	for (i = 0; i < threads && !error; i++) {
		thread[i].task =
			new_thread(operate_in_task, &thread[i], "operate");
		if (!thread[i].task)
			error = -ENOMEM;
	}
	if (!error) {
		mover = new_thread(move_threads, NULL, "move");
		churning = new_thread(churn_memory, churner, "churn");
#ifdef CONFIG_HOTPLUG_CPU
		plugging = plugs ? new_thread(plug_cpus, plugger, "plug") :
				   NULL;
#endif
		if (!mover || !churning || (plugs && !plugging))
			error = -ENOMEM;
	}
	while (!error && !enough()) {
		schedule_timeout_interruptible(HZ / 20);
		if (signal_pending(current))
			error = -EINTR;
	}

	end_thread(plugging);
	end_thread(churning);
	end_thread(mover);
	for (i = 0; i < threads; i++)
		end_thread(thread[i].task);
	cpuhp_remove_state(state);

	return error;
}

static int __init percpu_torture_init(void)
{
	struct plugger *plugger = kvzalloc(sizeof(*plugger), GFP_KERNEL);
	struct churner *churner = kvzalloc(sizeof(*churner), GFP_KERNEL);
	int error = -ENOMEM;

	if (!threads)
		threads = 2 * num_online_cpus() + 1;
	if (!may_plug())
		plugs = 0;
	pr_info("KTAP version 1\n");
	pr_info("1..%u\n", NR_RESULTS);

	for_each_kernel_tracepoint(find_probes, NULL);
	if (probes.create)
		tracepoint_probe_register(probes.create, count_creation, NULL);
	if (probes.destroy)
		tracepoint_probe_register(probes.destroy, count_destruction,
					  NULL);

	if (plugger && churner)
		error = prepare();
	if (!error) {
		check_alone();
		error = run(plugger, churner);
	}
	if (!error) {
		check_sums();
		report_actors();
		report_plugger(plugger);
		report_churner(churner);
		if (bad_results || results != NR_RESULTS)
			error = -EIO;
	}
	if (error)
		pr_err("failed: %d, %u of %u results\n", error, bad_results,
		       results);

	clean_up();
	if (probes.create)
		tracepoint_probe_unregister(probes.create, count_creation,
					    NULL);
	if (probes.destroy)
		tracepoint_probe_unregister(probes.destroy, count_destruction,
					    NULL);
	tracepoint_synchronize_unregister();
	kvfree(churner);
	kvfree(plugger);

	return error;
}

static void __exit percpu_torture_exit(void) { }

module_init(percpu_torture_init);
module_exit(percpu_torture_exit);

MODULE_DESCRIPTION("Torture of the per-CPU operations");
MODULE_LICENSE("GPL");
