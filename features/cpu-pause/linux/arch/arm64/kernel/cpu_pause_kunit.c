// SPDX-License-Identifier: GPL-2.0-only
/*
 * KUnit tests of pausing all other CPUs; see cpu_pause.c. The stress tests want many CPUs
 * to tell something; they run with as many as there are.
 */
#include <kunit/test.h>

#include <linux/completion.h>
#include <linux/cpu.h>
#include <linux/cpumask.h>
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/panic.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/stop_machine.h>

#include <asm/cpu_pause.h>

/* An emulator with more CPUs than its host takes tens of milliseconds for each pause. */
static unsigned int rounds = 40;
module_param(rounds, uint, 0644);
MODULE_PARM_DESC(rounds, "How many pauses a stress test asks for");

/* What every CPU counts up, as fast as it can, in one of the contexts below. */
static DEFINE_PER_CPU_ALIGNED(unsigned long, progress);

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
			this_cpu_inc(progress);

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

/* Have every CPU count until the test ends. */
static void start_counters(struct kunit *test)
{
	struct task_struct **thread;
	unsigned int cpu;

	thread = kunit_kcalloc(test, nr_cpu_ids, sizeof(*thread), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, thread);

	cpus_read_lock();
	for_each_online_cpu(cpu) {
		struct task_struct *task = kthread_run_on_cpu(count_up, NULL, cpu, "pause/%u");

		if (!IS_ERR(task))
			thread[cpu] = task;
	}
	cpus_read_unlock();
	KUNIT_ASSERT_EQ(test, kunit_add_action_or_reset(test, stop_counters, thread), 0);
}

/* What a pause saw. */
struct watch {
	unsigned int calls;
	unsigned int more;
	unsigned long moved;
	unsigned int cpu_changes;
	unsigned long spin;
};

static unsigned long others_progress(void)
{
	unsigned long sum = 0;
	unsigned int cpu;

	for_each_possible_cpu(cpu)
		if (cpu != raw_smp_processor_id())
			sum += READ_ONCE(per_cpu(progress, cpu));

	return sum;
}

/* Nobody may count meanwhile. */
static bool watch_others(void *arg)
{
	struct watch *watch = arg;
	unsigned long before = others_progress();
	unsigned long i;

	for (i = 0; i < watch->spin; i++)
		cpu_relax();
	watch->moved += others_progress() - before;
	watch->calls++;

	return watch->calls <= watch->more;
}

static void nobody_else_runs_in_a_pause(struct kunit *test)
{
	struct cpu_pause_stats stats = { };
	struct watch watch = { .spin = 2000 };
	unsigned long before;
	unsigned int round;

	start_counters(test);
	msleep(20);
	before = others_progress();
	for (round = 0; round < rounds; round++)
		cpu_pause_run(watch_others, &watch, &stats);

	KUNIT_EXPECT_EQ(test, watch.moved, 0UL);
	KUNIT_EXPECT_EQ(test, watch.calls, rounds);
	KUNIT_EXPECT_EQ(test, stats.pauses, (u64)rounds);
	KUNIT_EXPECT_GT(test, stats.total_ns, 0ULL);
	KUNIT_EXPECT_GE(test, stats.total_ns, stats.longest_ns);

	/* They did run before and after; alone there is nobody to run. */
	msleep(20);
	if (num_online_cpus() > 1)
		KUNIT_EXPECT_GT(test, others_progress(), before);
}

static void what_is_left_is_done_in_further_pauses(struct kunit *test)
{
	struct cpu_pause_stats stats = { };
	struct watch watch = { .more = 4 };

	cpu_pause_run(watch_others, &watch, &stats);

	KUNIT_EXPECT_EQ(test, watch.calls, 5);
	KUNIT_EXPECT_EQ(test, stats.pauses, 5ULL);
}

static bool wait_for_limit(void *arg)
{
	unsigned int *first = arg;

	/* Not yet at the beginning. */
	*first += cpu_pause_limit_reached();
	while (!cpu_pause_limit_reached())
		cpu_relax();

	return false;
}

static void a_pause_knows_its_limit(struct kunit *test)
{
	struct cpu_pause_stats stats = { };
	unsigned int first = 0;

	cpu_pause_run(wait_for_limit, &first, &stats);

	KUNIT_EXPECT_EQ(test, first, 0);
	KUNIT_EXPECT_EQ(test, stats.pauses, 1ULL);
	KUNIT_EXPECT_GE(test, stats.longest_ns, 1000ULL);
}

/* Several initiators: they must not meet, and all must get their turn. */
struct initiator {
	struct completion done;
	struct watch watch;
	unsigned int *inside;
	unsigned int overlaps;
};

static bool alone_inside(void *arg)
{
	struct initiator *initiator = arg;

	initiator->overlaps += (*initiator->inside)++;
	watch_others(&initiator->watch);
	(*initiator->inside)--;

	return false;
}

static int initiate(void *arg)
{
	struct initiator *initiator = arg;
	unsigned int round;

	for (round = 0; round < rounds / 4; round++)
		cpu_pause_run(alone_inside, initiator, NULL);
	complete(&initiator->done);

	return 0;
}

static void initiators_take_turns(struct kunit *test)
{
	static unsigned int inside;
	struct initiator *initiators;
	struct task_struct *task;
	unsigned int i, n = min(num_online_cpus(), 4U);

	initiators = kunit_kcalloc(test, n, sizeof(*initiators), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, initiators);
	start_counters(test);

	for (i = 0; i < n; i++) {
		init_completion(&initiators[i].done);
		initiators[i].inside = &inside;
		initiators[i].watch.spin = 200;
		task = kthread_run(initiate, &initiators[i], "initiate/%u", i);
		KUNIT_ASSERT_FALSE(test, IS_ERR(task));
	}
	for (i = 0; i < n; i++) {
		wait_for_completion(&initiators[i].done);
		KUNIT_EXPECT_EQ(test, initiators[i].overlaps, 0);
		KUNIT_EXPECT_EQ(test, initiators[i].watch.moved, 0UL);
		KUNIT_EXPECT_EQ(test, initiators[i].watch.calls, rounds / 4);
	}
}

/* stop_machine() holds CPUs with interrupts masked until all have come. */
static int do_nothing(void *arg)
{
	return 0;
}

static int stop_often(void *arg)
{
	while (!kthread_should_stop())
		stop_machine(do_nothing, NULL, cpu_online_mask);

	return 0;
}

static void pauses_and_stop_machine_get_along(struct kunit *test)
{
	struct watch watch = { .spin = 200 };
	struct task_struct *stopper;
	unsigned int round;

	start_counters(test);
	stopper = kthread_run(stop_often, NULL, "stop_often");
	KUNIT_ASSERT_FALSE(test, IS_ERR(stopper));

	for (round = 0; round < rounds / 4; round++)
		cpu_pause_run(watch_others, &watch, NULL);
	kthread_stop(stopper);

	KUNIT_EXPECT_EQ(test, watch.calls, rounds / 4);
	KUNIT_EXPECT_EQ(test, watch.moved, 0UL);
}

#ifdef CONFIG_HOTPLUG_CPU
static int plug_often(void *arg)
{
	unsigned int *turns = arg;

	while (!kthread_should_stop()) {
		unsigned int cpu = cpumask_last(cpu_possible_mask);

		if (remove_cpu(cpu) || add_cpu(cpu))
			break;
		(*turns)++;
	}
	while (!kthread_should_stop())
		msleep(20);

	return 0;
}

static void pauses_and_cpu_hotplug_get_along(struct kunit *test)
{
	struct watch watch = { .spin = 200 };
	struct task_struct *plugger;
	unsigned int round, turns = 0;

	if (num_online_cpus() == 1)
		kunit_skip(test, "there is no CPU to take away");

	plugger = kthread_run(plug_often, &turns, "plug_often");
	KUNIT_ASSERT_FALSE(test, IS_ERR(plugger));

	for (round = 0; round < rounds || READ_ONCE(turns) < 3; round++) {
		cpu_pause_run(watch_others, &watch, NULL);
		cond_resched();
	}
	kthread_stop(plugger);

	KUNIT_EXPECT_EQ(test, watch.calls, round);
	KUNIT_EXPECT_GE(test, turns, 3);
	KUNIT_EXPECT_EQ(test, num_online_cpus(), num_present_cpus());
}
#endif

/* For a test of what happens when the initiator dies; nobody else can do that to it. */
static bool die_paused(void *unused)
{
	panic("cpu_pause: dies while all other CPUs are paused, as asked\n");
}

static int die_set(void *data, u64 value)
{
	cpu_pause_run(die_paused, NULL, NULL);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(die_fops, NULL, die_set, "%llu\n");

static int __init cpu_pause_debugfs(void)
{
	debugfs_create_file("cpu_pause_die", 0200, NULL, NULL, &die_fops);
	return 0;
}
late_initcall(cpu_pause_debugfs);

static struct kunit_case cpu_pause_cases[] = {
	KUNIT_CASE(nobody_else_runs_in_a_pause),
	KUNIT_CASE(what_is_left_is_done_in_further_pauses),
	KUNIT_CASE(a_pause_knows_its_limit),
	KUNIT_CASE_SLOW(initiators_take_turns),
	KUNIT_CASE_SLOW(pauses_and_stop_machine_get_along),
#ifdef CONFIG_HOTPLUG_CPU
	KUNIT_CASE_SLOW(pauses_and_cpu_hotplug_get_along),
#endif
	{}
};

static struct kunit_suite cpu_pause_suite = {
	.name = "cpu_pause",
	.test_cases = cpu_pause_cases,
};

kunit_test_suite(cpu_pause_suite);

MODULE_DESCRIPTION("KUnit tests of pausing all other CPUs");
MODULE_LICENSE("GPL");
