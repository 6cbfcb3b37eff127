// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of pausing all other CPUs; see cpu_pause.c. The stress tests want many CPUs
 * to tell something; they run with as many as there are.
 */
#include <kunit/test.h>

#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/jiffies.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/stop_machine.h>
#include <linux/timekeeping.h>
#include <linux/timex.h>

#include <clocksource/arm_arch_timer.h>

#include <asm/cpu_pause.h>
#include <asm/daifflags.h>

/* An emulator with more CPUs than its host takes tens of milliseconds for each pause. */
static unsigned int rounds = 40;
module_param(rounds, uint, 0644);
MODULE_PARM_DESC(rounds, "How many pauses a stress test asks for");

/* What every CPU counts up, as fast as it can, in one of the contexts below. */
static DEFINE_PER_CPU_ALIGNED(unsigned long, pause_test_progress);

/* How a CPU counts: the pause has to reach it in each. */
enum context { PREEMPTIBLE, PREEMPT_OFF, IRQS_OFF, NR_CONTEXTS };

static int count_up(void *arg)
{
	unsigned int i, round = 0;

	while (!kthread_should_stop()) {
		enum context context = round++ % NR_CONTEXTS;
		unsigned long flags = 0;

		if (context == PREEMPT_OFF)
			preempt_disable();
		else if (context == IRQS_OFF)
			local_irq_save(flags);

		for (i = 0; i < 100; i++)
			this_cpu_inc(pause_test_progress);

		if (context == PREEMPT_OFF)
			preempt_enable();
		else if (context == IRQS_OFF)
			local_irq_restore(flags);
		cond_resched();
	}

	return 0;
}

static void stop_counters(void *threads)
{
	struct task_struct **thread = threads;
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		if (thread[cpu])
			kthread_stop(thread[cpu]);
}

/* Have every CPU but @except, or really every one if that is -1, count until the test ends. */
static void start_counters(struct kunit *test, int except)
{
	struct task_struct **thread;
	unsigned int cpu;

	thread = kunit_kcalloc(test, nr_cpu_ids, sizeof(*thread), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, thread);

	cpus_read_lock();
	for_each_online_cpu(cpu) {
		struct task_struct *task;

		if (cpu == except)
			continue;
		task = kthread_run_on_cpu(count_up, NULL, cpu, "pause/%u");
		if (!IS_ERR(task))
			thread[cpu] = task;
	}
	cpus_read_unlock();
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, stop_counters, thread), 0);
}

/* What a pause saw. */
struct watch {
	unsigned int calls;
	unsigned long moved;
	unsigned long unmasked;
	unsigned int cpu_changes;
	unsigned long spin;
};

static unsigned long others_progress(void)
{
	unsigned long sum = 0;
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		if (cpu != raw_smp_processor_id())
			sum += READ_ONCE(per_cpu(pause_test_progress, cpu));

	return sum;
}

/* Nobody may count meanwhile, and nothing interrupts this CPU. */
static bool watch_others(void *arg)
{
	struct watch *watch = arg;
	unsigned long before = others_progress();
	unsigned long i;

	for (i = 0; i < watch->spin; i++)
		cpu_relax();
	watch->moved += others_progress() - before;
	watch->unmasked |= ~read_sysreg(daif) & DAIF_MASK;
	watch->calls++;

	return false;
}

/*
 * As cpu_pause_run(), but for who has the time: pauses may fail where CPUs are slow to come,
 * as in an emulator with more of them than its host has.
 */
static bool pause_at_last(cpu_pause_fn_t fn, void *arg, struct cpu_pause_stats *stats)
{
	unsigned int tries;

	for (tries = 0; tries < 100; tries++) {
		if (!cpu_pause_run(fn, arg, stats))
			return true;
		msleep(50);
	}

	return false;
}

static void nobody_else_runs_in_a_pause(struct kunit *test)
{
	struct cpu_pause_stats stats = { };
	struct watch watch = { .spin = 2000 };
	unsigned int round, paused = 0;
	unsigned long before;

	start_counters(test, -1);
	/* The others are the same to the end. */
	migrate_disable();
	msleep(20);
	before = others_progress();
	for (round = 0; round < rounds; round++)
		paused += pause_at_last(watch_others, &watch, &stats);

	KUNIT_EXPECT_EQ(test, paused, rounds);
	KUNIT_EXPECT_EQ(test, watch.moved, 0UL);
	KUNIT_EXPECT_EQ(test, watch.unmasked, 0UL);
	KUNIT_EXPECT_EQ(test, watch.calls, rounds);
	KUNIT_EXPECT_EQ(test, stats.pauses, (u64)paused);
	KUNIT_EXPECT_GT(test, stats.total_ns, 0ULL);
	KUNIT_EXPECT_GE(test, stats.total_ns, stats.longest_ns);

	/* They did run before and after; alone there is nobody to run. */
	msleep(20);
	if (num_online_cpus() > 1)
		KUNIT_EXPECT_GT(test, others_progress(), before);
	migrate_enable();
}

/* The last pause of work that takes several; times are in ticks. Used in pauses only. */
struct last_pause {
	cycles_t took;
	cycles_t ended;
	unsigned int too_soon;
};

/* Work that takes several pauses, each as long as it may be. */
struct long_work {
	struct completion done;
	struct last_pause *last;
	struct cpu_pause_stats *stats;
	unsigned int calls;
	bool complete;
};

static bool work_until_the_limit(void *arg)
{
	struct long_work *work = arg;
	struct last_pause *last = work->last;
	cycles_t began = get_cycles();
	bool more = ++work->calls <= 10;

	if (began - last->ended < last->took)
		last->too_soon++;
	while (!cpu_pause_limit_reached())
		cpu_relax();
	last->ended = get_cycles();
	/*
	 * After the last one another initiator may have its turn at once. One that the host has
	 * made longer than a quarter of a second is followed by no more than that.
	 */
	last->took = more ? min_t(cycles_t, last->ended - began, arch_timer_get_rate() / 4) : 0;

	return more;
}

static int work_long(void *arg)
{
	struct long_work *work = arg;

	work->complete = pause_at_last(work_until_the_limit, work, work->stats);
	complete(&work->done);

	return 0;
}

/* Also with a low limit, all others run for as long as they stand still, whoever asks. */
static void what_is_left_is_done_in_further_pauses(struct kunit *test)
{
	struct cpu_pause_stats stats = { };
	struct last_pause last = { };
	struct long_work work[2];
	struct task_struct *task;
	unsigned int i, begun;

	for (i = 0; i < ARRAY_SIZE(work); i++) {
		work[i] = (struct long_work){ .last = &last, .stats = &stats };
		init_completion(&work[i].done);
	}
	for (begun = 0; begun < ARRAY_SIZE(work); begun++) {
		task = kthread_run(work_long, &work[begun], "work_long/%u", begun);
		if (IS_ERR(task))
			break;
	}
	/* They work on this stack. */
	for (i = 0; i < begun; i++)
		wait_for_completion(&work[i].done);

	KUNIT_ASSERT_EQ(test, begun, ARRAY_SIZE(work));
	for (i = 0; i < begun; i++) {
		KUNIT_EXPECT_TRUE(test, work[i].complete);
		KUNIT_EXPECT_EQ(test, work[i].calls, 11);
	}
	/* Both count theirs in the same place. */
	KUNIT_EXPECT_EQ(test, stats.pauses, 22ULL);
	KUNIT_EXPECT_EQ(test, last.too_soon, 0);
}

/* A pause of a second, as if the host had run something else, and how long until the next began. */
struct stretched_pause {
	cycles_t ended;
	cycles_t rest;
	unsigned int calls;
};

static bool stretch(void *arg)
{
	struct stretched_pause *stretched = arg;
	cycles_t began = get_cycles();

	if (stretched->calls++) {
		stretched->rest = began - stretched->ended;
		return false;
	}
	while (get_cycles() - began < arch_timer_get_rate())
		cpu_relax();
	stretched->ended = get_cycles();

	return true;
}

/* Other initiators, who give up after two seconds, wait for no such pause twice. */
static void a_stretched_pause_puts_nothing_off_for_as_long(struct kunit *test)
{
	unsigned int tries = 0;

	/* A host may run something else after the pause, too. */
	do {
		struct stretched_pause stretched = { };

		KUNIT_ASSERT_TRUE(test, pause_at_last(stretch, &stretched, NULL));
		KUNIT_ASSERT_EQ(test, stretched.calls, 2);
		/* The kernel's clock may be slewed against the counter. */
		KUNIT_ASSERT_GE(test, stretched.rest, (cycles_t)arch_timer_get_rate() / 5);
		if (stretched.rest < arch_timer_get_rate())
			return;
	} while (++tries < 5);

	KUNIT_FAIL(test, "after each of %u pauses of a second there was none for as long", tries);
}

/* A pause that takes as long as it may. */
struct full_pause {
	/* What was reached too soon. */
	unsigned int early;
	/* How long that took by the kernel's clock, read in a way that waits for no other CPU. */
	u64 took_ns;
};

static bool wait_for_limit(void *arg)
{
	struct full_pause *full = arg;
	u64 began = ktime_get_raw_fast_ns();

	/* Not yet at the beginning. */
	full->early += cpu_pause_half_reached();
	while (!cpu_pause_half_reached())
		cpu_relax();
	full->early += cpu_pause_limit_reached();
	while (!cpu_pause_limit_reached())
		cpu_relax();
	full->took_ns = ktime_get_raw_fast_ns() - began;

	return false;
}

static void a_pause_knows_its_limit(struct kunit *test)
{
	unsigned int tries = 0;
	bool too_late;

	/* A host that runs something else meanwhile has the limit reached early, or late. */
	do {
		struct full_pause full = { };
		struct cpu_pause_stats stats = { };

		KUNIT_ASSERT_TRUE(test, pause_at_last(wait_for_limit, &full, &stats));
		KUNIT_EXPECT_EQ(test, stats.pauses, 1ULL);
		KUNIT_EXPECT_GE(test, stats.longest_ns, 1000ULL);
		/*
		 * The rate that a pause goes by is that of the kernel's clock. How long others
		 * take to come is in the statistics, too.
		 */
		KUNIT_EXPECT_GE(test, stats.longest_ns, full.took_ns * 9 / 10);
		too_late = num_online_cpus() == 1 && stats.longest_ns > full.took_ns * 3 / 2;
		if (!full.early && !too_late)
			return;
	} while (++tries < 100);

	KUNIT_FAIL(test, "none of %u pauses had its limit in time", tries);
}

/* How long a stress test goes on until what it is about has happened. */
#define PATIENCE	(60 * HZ)

/*
 * What several initiators share: how many have asked for a pause and not had it yet, how many
 * are inside of one, and how often somebody was inside while others were asking.
 */
struct turns {
	struct completion begin;
	atomic_t asking;
	unsigned int inside;
	unsigned int contended;
};

/* Several initiators: they must not meet, and all must get their turn. */
struct initiator {
	struct completion done;
	struct watch watch;
	struct turns *turns;
	unsigned int overlaps;
	unsigned int asked;
	unsigned int paused;
};

static bool alone_inside(void *arg)
{
	struct initiator *initiator = arg;
	struct turns *turns = initiator->turns;

	/* All that are left have to wait for the end of this pause. */
	if (atomic_dec_return(&turns->asking))
		WRITE_ONCE(turns->contended, turns->contended + 1);

	initiator->overlaps += turns->inside++;
	watch_others(&initiator->watch);
	turns->inside--;

	return false;
}

static int initiate(void *arg)
{
	struct initiator *initiator = arg;
	struct turns *turns = initiator->turns;
	unsigned long end;

	wait_for_completion(&turns->begin);
	end = jiffies + PATIENCE;
	while (initiator->asked < rounds / 4 ||
	       (!READ_ONCE(turns->contended) && time_before(jiffies, end))) {
		initiator->asked++;
		atomic_inc(&turns->asking);
		initiator->paused += pause_at_last(alone_inside, initiator, NULL);
		cond_resched();
	}
	complete(&initiator->done);

	return 0;
}

static void initiators_take_turns(struct kunit *test)
{
	unsigned int i, n = min(num_online_cpus(), 4U);
	struct initiator *initiators;
	struct task_struct *task;
	struct turns *turns;

	initiators = kunit_kcalloc(test, n, sizeof(*initiators), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, initiators);
	turns = kunit_kzalloc(test, sizeof(*turns), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, turns);
	init_completion(&turns->begin);
	start_counters(test, -1);

	for (i = 0; i < n; i++) {
		init_completion(&initiators[i].done);
		initiators[i].turns = turns;
		initiators[i].watch.spin = 200;
		task = kthread_run(initiate, &initiators[i], "initiate/%u", i);
		if (IS_ERR(task))
			break;
	}
	/* Those that are there wait for this, in what the test has allocated. */
	KUNIT_EXPECT_EQ(test, i, n);
	n = i;
	complete_all(&turns->begin);
	for (i = 0; i < n; i++) {
		wait_for_completion(&initiators[i].done);
		KUNIT_EXPECT_EQ(test, initiators[i].overlaps, 0);
		KUNIT_EXPECT_EQ(test, initiators[i].watch.moved, 0UL);
		KUNIT_EXPECT_GE(test, initiators[i].asked, rounds / 4);
		KUNIT_EXPECT_EQ(test, initiators[i].paused, initiators[i].asked);
		KUNIT_EXPECT_EQ(test, initiators[i].watch.calls, initiators[i].asked);
	}

	/* One alone has nobody to take turns with. */
	if (n > 1)
		KUNIT_EXPECT_GT(test, turns->contended, 0);
}

/* stop_machine() holds CPUs with interrupts masked until all have come. */
static int do_nothing(void *arg)
{
	return 0;
}

static int stop_often(void *arg)
{
	unsigned int *stops = arg;

	while (!kthread_should_stop()) {
		stop_machine(do_nothing, NULL, cpu_online_mask);
		WRITE_ONCE(*stops, *stops + 1);
	}

	return 0;
}

static void pauses_and_stop_machine_get_along(struct kunit *test)
{
	unsigned int paused = 0, stops = 0, meanwhile;
	struct watch watch = { .spin = 200 };
	struct task_struct *stopper;
	unsigned long end;

	start_counters(test, -1);
	stopper = kthread_run(stop_often, &stops, "stop_often");
	KUNIT_ASSERT_FALSE(test, IS_ERR(stopper));

	/* The thread may be late to begin; there are pauses until it has got somewhere. */
	end = jiffies + PATIENCE;
	while (paused < rounds / 4 || (READ_ONCE(stops) < 3 && time_before(jiffies, end))) {
		if (!pause_at_last(watch_others, &watch, NULL))
			break;
		paused++;
		cond_resched();
	}
	/* What comes after the last pause does not count. */
	meanwhile = READ_ONCE(stops);
	kthread_stop(stopper);

	KUNIT_EXPECT_GE(test, meanwhile, 3);
	KUNIT_EXPECT_GE(test, paused, rounds / 4);
	KUNIT_EXPECT_EQ(test, watch.calls, paused);
	KUNIT_EXPECT_EQ(test, watch.moved, 0UL);
}

#ifdef CONFIG_HOTPLUG_CPU
struct plugger {
	unsigned int cpu;
	unsigned int turns;
	int error;
};

static int plug_often(void *arg)
{
	struct plugger *plugger = arg;

	while (!kthread_should_stop()) {
		int ret = remove_cpu(plugger->cpu) ?: add_cpu(plugger->cpu);

		if (ret) {
			WRITE_ONCE(plugger->error, ret);
			break;
		}
		WRITE_ONCE(plugger->turns, plugger->turns + 1);
	}
	while (!kthread_should_stop())
		msleep(20);

	return 0;
}

static void pauses_and_cpu_hotplug_get_along(struct kunit *test)
{
	/* Not all that are possible need be present, or have been brought online. */
	struct plugger plugger = { .cpu = cpumask_last(cpu_online_mask) };
	unsigned int round, paused = 0, online = num_online_cpus();
	struct watch watch = { .spin = 200 };
	struct task_struct *task;

	if (online == 1)
		kunit_skip(test, "there is no CPU to take away");

	task = kthread_run(plug_often, &plugger, "plug_often");
	KUNIT_ASSERT_FALSE(test, IS_ERR(task));

	for (round = 0; round < rounds || READ_ONCE(plugger.turns) < 3; round++) {
		if (READ_ONCE(plugger.error))
			break;
		if (!pause_at_last(watch_others, &watch, NULL))
			break;
		paused++;
		cond_resched();
	}
	kthread_stop(task);

	KUNIT_EXPECT_EQ(test, plugger.error, 0);
	KUNIT_EXPECT_GE(test, paused, rounds);
	KUNIT_EXPECT_EQ(test, watch.calls, paused);
	KUNIT_EXPECT_GE(test, plugger.turns, 3);
	KUNIT_EXPECT_EQ(test, num_online_cpus(), online);
}
#endif

/*
 * For tests of a CPU that cannot be interrupted: one keeps interrupts masked, and pseudo-NMIs
 * with them unless it is to hear those, until told, or for about as many milliseconds as are
 * asked for.
 */
struct deafness {
	unsigned int ms;
	bool hears_nmis;
	bool began;
	bool over;
	bool ended;
};

static void be_deaf(void *arg)
{
	struct deafness *deafness = arg;
	unsigned long flags;
	unsigned int ms;

	if (deafness->hears_nmis)
		local_irq_save(flags);
	else
		flags = local_daif_save();
	WRITE_ONCE(deafness->began, true);
	for (ms = 0; ms < deafness->ms && !READ_ONCE(deafness->over); ms++)
		mdelay(1);
	WRITE_ONCE(deafness->ended, true);
	if (deafness->hears_nmis)
		local_irq_restore(flags);
	else
		local_daif_restore(flags);
}

/* Any but this one. */
static int make_another_deaf(struct deafness *deafness)
{
	int cpu = get_cpu(), ret;

	ret = smp_call_function_single(cpumask_any_but(cpu_online_mask, cpu), be_deaf, deafness,
				       false);
	put_cpu();

	return ret;
}

static void stop_being_deaf(void *arg)
{
	struct deafness *deafness = arg;

	WRITE_ONCE(deafness->over, true);
}

/*
 * Another CPU than this one is deaf from now on, until the test ends or says so.
 *
 * That CPU is busy before. So when this one is idle it leaves the timers that any CPU may
 * serve to the other, which serves none: msleep() would take until something else happens.
 */
static void have_a_deaf_cpu(struct kunit *test, struct deafness *deafness, bool hears_nmis)
{
	start_counters(test, raw_smp_processor_id());
	*deafness = (struct deafness){ .ms = 5000, .hears_nmis = hears_nmis };
	KUNIT_ASSERT_EQ(test, kunit_add_action(test, stop_being_deaf, deafness), 0);
	KUNIT_ASSERT_EQ(test, make_another_deaf(deafness), 0);
	while (!READ_ONCE(deafness->began))
		cpu_relax();
}

static void a_pause_fails_if_a_cpu_does_not_stop(struct kunit *test)
{
	/* Static, as the CPU may read it a moment after the test has ended. */
	static struct deafness deafness;
	struct cpu_pause_stats stats = { }, again = { };
	struct watch watch = { };
	u64 asked, at_most;

	if (num_online_cpus() == 1)
		kunit_skip(test, "there is no CPU that could be deaf");

	migrate_disable();
	have_a_deaf_cpu(test, &deafness, false);

	/* It fails after some tries, while that CPU is deaf still. */
	asked = ktime_get_ns();
	KUNIT_EXPECT_EQ(test, cpu_pause_run(watch_others, &watch, &stats), -EBUSY);
	KUNIT_EXPECT_LT(test, ktime_get_ns() - asked, 4 * NSEC_PER_SEC);
	KUNIT_EXPECT_EQ(test, stats.pauses, 0ULL);
	KUNIT_EXPECT_GT(test, stats.given_up, 1ULL);

	/*
	 * What is asked for then fails at once and stops nobody. There is one try if a quarter
	 * of a second has passed meanwhile, on a busy host.
	 */
	asked = ktime_get_ns();
	KUNIT_EXPECT_EQ(test, cpu_pause_run(watch_others, &watch, &again), -EBUSY);
	at_most = ktime_get_ns() - asked < 200 * NSEC_PER_MSEC ? 0 : 1;
	KUNIT_EXPECT_LE(test, again.given_up, at_most);
	KUNIT_EXPECT_EQ(test, watch.calls, 0);
	stop_being_deaf(&deafness);
	migrate_enable();

	/* A moment later all is well again. */
	KUNIT_EXPECT_TRUE(test, pause_at_last(watch_others, &watch, NULL));
}

/* Pseudo-NMIs are what reaches a CPU whose interrupts are off, and a pause is asked for by one. */
static void a_pause_stops_a_cpu_with_interrupts_off(struct kunit *test)
{
	static struct deafness deafness;
	struct watch watch = { };

	if (!system_uses_irq_prio_masking())
		kunit_skip(test, "there are no pseudo-NMIs");
	if (num_online_cpus() == 1)
		kunit_skip(test, "there is no CPU whose interrupts could be off");

	migrate_disable();
	have_a_deaf_cpu(test, &deafness, true);
	/* Other CPUs may be slow to come. Not msleep(), as have_a_deaf_cpu() says. */
	while (cpu_pause_run(watch_others, &watch, NULL) && !READ_ONCE(deafness.ended))
		cpu_pause_sleep(50 * NSEC_PER_MSEC);
	KUNIT_EXPECT_EQ(test, watch.calls, 1);
	KUNIT_EXPECT_FALSE(test, READ_ONCE(deafness.ended));
	stop_being_deaf(&deafness);
	migrate_enable();
}

/* Who holds locks gets an answer at once, and takes nothing from those who cannot do without. */
static void a_try_does_not_sleep(struct kunit *test)
{
	static struct deafness deafness;
	struct cpu_pause_stats stats = { }, other = { };
	struct watch watch = { };
	unsigned int tries;
	u64 asked;
	int ret;

	/* After a success no tries are counted as failed. */
	KUNIT_ASSERT_TRUE(test, pause_at_last(watch_others, &watch, NULL));
	watch.calls = 0;
	for (tries = 0; tries < 100; tries++) {
		preempt_disable();
		ret = cpu_pause_try_unmapped(watch_others, &watch, &stats);
		preempt_enable();
		if (!ret)
			break;
		msleep(50);
	}
	KUNIT_EXPECT_EQ(test, ret, 0);
	KUNIT_EXPECT_EQ(test, watch.calls, 1);
	KUNIT_EXPECT_EQ(test, stats.pauses, 1ULL);
	KUNIT_EXPECT_LE(test, stats.given_up, (u64)tries);

	if (num_online_cpus() == 1)
		return;

	migrate_disable();
	have_a_deaf_cpu(test, &deafness, false);

	/* One try, and none for 4 ms after it, which may pass meanwhile on a busy host. */
	stats = (struct cpu_pause_stats){ };
	asked = ktime_get_ns();
	KUNIT_EXPECT_EQ(test, cpu_pause_try_unmapped(watch_others, &watch, &stats), -EBUSY);
	KUNIT_EXPECT_EQ(test, cpu_pause_try_unmapped(watch_others, &watch, &stats), -EBUSY);
	if (ktime_get_ns() - asked - stats.total_ns < 4 * NSEC_PER_MSEC)
		KUNIT_EXPECT_LE(test, stats.given_up, 1ULL);
	for (tries = 0; tries < 8 && stats.given_up < 8 && stats.total_ns < NSEC_PER_SEC; tries++) {
		/* Not msleep(), as have_a_deaf_cpu() says. */
		cpu_pause_sleep(20 * NSEC_PER_MSEC);
		KUNIT_EXPECT_EQ(test, cpu_pause_try_unmapped(watch_others, &watch, &stats), -EBUSY);
	}
	KUNIT_EXPECT_GE(test, stats.given_up, 1ULL);
	KUNIT_EXPECT_EQ(test, watch.calls, 1);

	/* More tries than one are left for who sleeps between them. */
	KUNIT_EXPECT_EQ(test, cpu_pause_run(watch_others, &watch, &other), -EBUSY);
	KUNIT_EXPECT_GT(test, other.given_up, 1ULL);
	stop_being_deaf(&deafness);
	migrate_enable();
	KUNIT_EXPECT_TRUE(test, pause_at_last(watch_others, &watch, NULL));
}

/*
 * When the tries are used up there is one in 0.25 s. If one that can do without had it, in vain,
 * the pauses of others do not fail for that: they wait for the next.
 */
static void a_try_that_fails_leaves_others_theirs(struct kunit *test)
{
	static struct deafness deafness;
	struct cpu_pause_stats stats = { }, other = { };
	struct watch watch = { };

	if (num_online_cpus() == 1)
		kunit_skip(test, "there is no CPU that could be deaf");

	migrate_disable();
	have_a_deaf_cpu(test, &deafness, false);
	KUNIT_EXPECT_EQ(test, cpu_pause_run(watch_others, &watch, NULL), -EBUSY);

	cpu_pause_sleep(260 * NSEC_PER_MSEC);
	KUNIT_EXPECT_EQ(test, cpu_pause_try_unmapped(watch_others, &watch, &stats), -EBUSY);
	KUNIT_EXPECT_EQ(test, stats.given_up, 1ULL);

	/* Where a try takes seconds the CPU may have come to its senses. */
	cpu_pause_run(watch_others, &watch, &other);
	KUNIT_EXPECT_GE(test, other.given_up + other.pauses, 1ULL);
	stop_being_deaf(&deafness);
	migrate_enable();
	KUNIT_EXPECT_TRUE(test, pause_at_last(watch_others, &watch, NULL));
}

/* For tests of those that ask for pauses. */
static int deaf_set(void *data, u64 value)
{
	static struct deafness deafness;

	if (!value || value > 10 * MSEC_PER_SEC)
		return -EINVAL;
	deafness.ms = value;

	return make_another_deaf(&deafness);
}
DEFINE_DEBUGFS_ATTRIBUTE(deaf_fops, NULL, deaf_set, "%llu\n");

static int __init cpu_pause_debugfs(void)
{
	debugfs_create_file("cpu_pause_deaf", 0200, NULL, NULL, &deaf_fops);
	return 0;
}
late_initcall(cpu_pause_debugfs);

static struct kunit_case cpu_pause_cases[] = {
	KUNIT_CASE(nobody_else_runs_in_a_pause),
	KUNIT_CASE(what_is_left_is_done_in_further_pauses),
	KUNIT_CASE_SLOW(a_stretched_pause_puts_nothing_off_for_as_long),
	KUNIT_CASE(a_pause_knows_its_limit),
	KUNIT_CASE_SLOW(initiators_take_turns),
	KUNIT_CASE_SLOW(pauses_and_stop_machine_get_along),
#ifdef CONFIG_HOTPLUG_CPU
	KUNIT_CASE_SLOW(pauses_and_cpu_hotplug_get_along),
#endif
	KUNIT_CASE_SLOW(a_pause_fails_if_a_cpu_does_not_stop),
	KUNIT_CASE(a_pause_stops_a_cpu_with_interrupts_off),
	KUNIT_CASE_SLOW(a_try_does_not_sleep),
	KUNIT_CASE_SLOW(a_try_that_fails_leaves_others_theirs),
	{}
};

static struct kunit_suite cpu_pause_suite = {
	.name = "cpu_pause",
	.test_cases = cpu_pause_cases,
};

kunit_test_suite(cpu_pause_suite);

MODULE_DESCRIPTION("KUnit tests of pausing all other CPUs");
MODULE_LICENSE("GPL");
