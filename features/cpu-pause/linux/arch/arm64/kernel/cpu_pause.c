// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pause all other CPUs, for changes that nobody may watch.
 *
 * Break-before-make leaves a translation invalid for a moment. Where the translation is
 * of memory that any CPU may use at any time, like the vmemmap, all others have to be
 * kept away meanwhile. stop_machine() can do that, by waking a thread on each CPU and
 * walking all of them through several states in lock step. This is cheaper and shorter:
 * an interrupt takes each CPU into a loop in the kernel's image, where it waits for one
 * word of memory to change. With pseudo-NMI it is an NMI.
 *
 * The protocol has a sequence number, which is odd while a pause is asked for or lasts, and
 * for each CPU the number of the pause that it has stopped for last.
 *
 *	initiator				every other CPU
 *	---------				---------------
 *	mask everything
 *	pause.seq++ (odd)
 *	send the interrupt		->	seq = pause.seq; if even, return
 *	wait until stopped_for[] of each	stopped_for[cpu] = seq
 *	  of them is pause.seq
 *	change what is to be changed		wait until pause.seq is not seq
 *	pause.seq++ (even)		->
 *	unmask
 *
 * - The interrupt may be late, early or doubled: it is shared with the backtrace. It is
 *   pause.seq that counts, and nobody can stop twice for the same value of it.
 * - A CPU may see an odd pause.seq and go on only when that pause was given up, or another
 *   has begun. It must not be taken to have stopped for that one, as it leaves at once. Hence it
 *   says which pause it has stopped for, and not that it has stopped. For the same reason nobody
 *   has to wait until all have left.
 * - Each CPU writes a word of its own. Were there a count of all, CPUs that arrive together
 *   would contend for it, and the more there are, the longer each of them would take. Words that
 *   share a cache line are contended for by eight CPUs or, with lines of 256 bytes, 32.
 * - A CPU may be unable to take the interrupt because it waits, interrupts masked, for a
 *   CPU that has stopped already: for a lock that one holds, or in stop_machine() and
 *   stop_two_cpus(), whose threads walk through their states in lock step. Hence the
 *   initiator waits for a few milliseconds at most. Then it lets everyone go, itself
 *   included, sleeps so that they get somewhere, and tries again.
 * - A CPU may also be unable to take it for seconds, or for ever, for a reason that has
 *   nothing to do with the pause. All others would be stopped in vain again and again. So
 *   each sleep is twice as long as the one before, and after some tries the pause fails.
 *   The count of failed tries is common to all initiators that sleep: together they cannot
 *   stop the others more often than one could.
 * - Work that takes several pauses leaves the others as much time after each of them. No other
 *   initiator takes it from them, as that time is put off for all, as after a try that failed.
 * - An initiator has pause_sem only while it runs. Its priority or its cgroup may keep it from
 *   running for long, and other initiators and CPU hotplug would wait. So it does not sleep with
 *   pause_sem, is not preempted, and does not queue for it: up() would hand it to a task that may
 *   not run.
 * - A caller that can do without the pause and holds locks that others wait for uses
 *   cpu_pause_try_unmapped(). It has one try and does not sleep. Only the first of its failures
 *   in a row is counted, so it does not use up the tries of callers that cannot do without. It
 *   waits longer each time before it asks again, as nobody does that for it.
 * - The initiator has its interrupts masked from the beginning: a handler could wait for
 *   a lock that a CPU holds which has stopped already.
 * - CPUs that come or go execute kernel code without being online, or cannot be
 *   interrupted. pause_sem keeps them and the initiators apart, as cpus_read_lock() would
 *   do; but that cannot be used, since memory hotplug has it already when it frees
 *   hugepages.
 * - A CPU that has begun to come may take longer than the one that started it waits. It runs
 *   kernel code from then on, though CPU hotplug has given it up, so there are no more pauses. Nor
 *   are there if one leaves, until firmware has started it again or says that it is gone.
 * - When the initiator panics it lets the others go, so that they can be stopped.
 * - What the initiator prints reaches the consoles later. A CPU that has stopped may hold what a
 *   console needs, and the text of a warning is printed before anybody knows that it is a warning.
 *
 * Documentation/arch/arm64/cpu-pause.rst says what of this was checked with a model, and
 * what would break without each part.
 */
#define pr_fmt(fmt) "cpu_pause: " fmt

#include <linux/arm_sdei.h>
#include <linux/atomic.h>
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/debugfs.h>
#include <linux/fault-inject.h>
#include <linux/hrtimer.h>
#include <linux/init.h>
#include <linux/irqflags.h>
#include <linux/jiffies.h>
#include <linux/kobject.h>
#include <linux/kprobes.h>
#include <linux/kstrtox.h>
#include <linux/lockdep.h>
#include <linux/math64.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/preempt.h>
#include <linux/printk.h>
#include <linux/psci.h>
#include <linux/ratelimit.h>
#include <linux/sched.h>
#include <linux/semaphore.h>
#include <linux/sizes.h>
#include <linux/smp.h>
#include <linux/stop_machine.h>
#include <linux/swait.h>
#include <linux/sysfs.h>
#include <linux/timekeeping.h>

#include <clocksource/arm_arch_timer.h>

#include <uapi/linux/psci.h>

#include <asm/arch_timer.h>
#include <asm/barrier.h>
#include <asm/cpu_pause.h>
#include <asm/smp_plat.h>
#include <asm/sysreg.h>

#define CREATE_TRACE_POINTS
#include <trace/events/cpu_pause.h>

/*
 * Every paused CPU waits on this word, and wakes when anything in its cache line is written. So
 * nothing else is in that line, which has 256 bytes at most (A64FX). 64 bits never wrap: a CPU
 * that was off line for long cannot be taken for one that has stopped.
 */
static struct {
	u64 seq;
} __aligned(SZ_256) pause;

/*
 * By CPU. Not per-CPU data, which paused CPUs and the initiator may have no translation for. Some
 * CPUs share a cache line, of which the initiator has the fewer to fetch.
 */
static u64 stopped_for[NR_CPUS] __aligned(SZ_256);

/* The CPU that runs cpu_pause_run(), with everything masked; or -1. */
static int pause_initiator = -1;

/* Held by an initiator, and while a CPU comes or goes. Initiators wait until it may be free. */
static DEFINE_SEMAPHORE(pause_sem, 1);
static DECLARE_SWAIT_QUEUE_HEAD(turn_ended);

/*
 * Tells lockdep about pause_sem, which as a semaphore has no map of its own. A CPU that
 * comes or goes takes pause_sem in one task and gives it back in another, so there lockdep
 * only learns what is held when it is taken.
 */
#ifdef CONFIG_LOCKDEP
static struct lockdep_map pause_map = STATIC_LOCKDEP_MAP_INIT("cpu_pause", &pause_map);
#endif

/*
 * How long a try waits for the others: one before which none has failed, which is what all but
 * few pauses need, and each that follows such a failure until failed_tries is 0 again. Those
 * that have stopped stand still for that time. Only the CPUs of an emulator, or of a host that
 * has too few for its guests, take longer to come.
 */
#define FIRST_WAIT_US	1000U
static unsigned int wait_us = 4000;
module_param(wait_us, uint, 0);
MODULE_PARM_DESC(wait_us, "How long CPUs that have stopped wait for others at most");

/* The sleep after the first failed try; it is twice as long after each further one. */
#define FIRST_SLEEP_NS	(4 * NSEC_PER_MSEC)

/* When so many tries in a row have failed, the pause fails, after 0.25 s and 25 ms of waits. */
#define MAX_FAILED_TRIES	7

/*
 * A pause that is asked for so soon after one that failed fails too, and stops nobody. So once
 * MAX_FAILED_TRIES have failed there is at most one try in this time for as long as a CPU cannot
 * be interrupted.
 */
#define HOLD_OFF_NS	(250 * NSEC_PER_MSEC)

/* Between two pauses of the same work the others run for as long as a pause took, or for this. */
#define MAX_REST_NS	(250 * NSEC_PER_MSEC)

/*
 * When no try has failed for this long, failures are forgotten, and the next pause has all its
 * tries again. What kept a CPU from being interrupted then says nothing of the CPUs now.
 */
#define FORGET_NS	(10 * NSEC_PER_SEC)

/* How long an initiator goes on to try, and waits for its turns, while others do, too. */
#define GIVE_UP_NS	(2 * NSEC_PER_SEC)

/* How long a CPU that comes or goes waits for its turn. */
#define CPUHP_TIMEOUT	msecs_to_jiffies(10000)

/* How many tries have failed in a row, and when the last one did; protected by pause_sem. */
static unsigned int failed_tries;
static u64 last_failed_ns;

/*
 * No try before this time of ktime_get_ns(); written under pause_sem. These times are not in
 * jiffies, which may be what the CPU that cannot be interrupted should be counting.
 */
static u64 next_try_ns;

/* Before this time pauses fail at once. */
static u64 fail_until_ns;

/*
 * How long one pause may last; what runs in it is asked to keep to it. About a thousand
 * times what it takes to change an entry.
 */
static unsigned int limit_us = 500;

/* When the running pause began and how long it may last, in ticks; for the initiator. */
static u64 pause_began;
static u64 pause_limit;

/* Of all callers; protected by pause_sem. */
static struct cpu_pause_stats pause_stats;

/* CPUs may come and go unnoticed: no pause can be had. */
static bool hotplug_unnoticed __ro_after_init;

/*
 * These may run the kernel, and nobody knows what they do. Written while pause_sem is held, or
 * before anybody asks for pauses.
 */
static cpumask_t lost_cpus;

/*
 * Those of them that have left: they may be gone by now, and firmware can be asked. For the one
 * that holds pause_sem.
 */
static cpumask_t left_cpus;

/* Has a CPU gone off line that is not known to be gone? For the one that holds pause_sem. */
static bool cpu_leaves;

/* Whose transition holds pause_sem, or -1; and since when. Written under cpus_write_lock(). */
static int transition_cpu = -1;
static u64 transition_began_ns;

/* How many pauses have failed. */
static atomic_long_t pauses_failed = ATOMIC_LONG_INIT(0);

/*
 * The counter, with what the errata of some timers need, and the rate that the timer's
 * driver goes by: firmware may have left the register with the rate unset or wrong.
 */
static __always_inline u64 ticks(void)
{
	return __arch_counter_get_cntvct_stable();
}

/* What reads the counter where no erratum wants more. It is called by its address, not inlined. */
NOKPROBE_SYMBOL(arch_timer_read_cntvct_el0);

static u64 us_to_ticks(u64 us)
{
	return mul_u64_u64_div_u64(us, arch_timer_get_rate(), USEC_PER_SEC);
}

static u64 ticks_to_ns(u64 count)
{
	return mul_u64_u64_div_u64(count, NSEC_PER_SEC, arch_timer_get_rate());
}

/*
 * Interrupts, pseudo-NMIs, SErrors and debug exceptions: whatever PMR allows. Events of firmware
 * (SDEI) come nevertheless, and their handlers use data in the linear map. So where firmware has
 * SDEI, each CPU asks it for none before the CPU says that it has stopped, until it is let go.
 */
static __always_inline u64 mask_all(void)
{
	u64 daif = read_sysreg(daif);

	asm volatile("msr daifset, #0xf" : : : "memory");

	return daif;
}

static __always_inline void unmask(u64 daif)
{
	asm volatile("msr daif, %0" : : "r" (daif) : "memory");
}

/**
 * cpu_pause_ipi() - stop here while a pause is asked for
 *
 * Touches nothing but the two variables in the kernel's image and its registers. Between
 * saying that it has stopped and being let go it must not use its stack, the task or data of
 * its CPU either, because the linear map may be invalid then. It calls nothing there, and a
 * stack protector would look for its canary, which is in the task, before and after that.
 *
 * Context: the interrupt of cpu_pause_run(), or any other with interrupts masked.
 */
void noinstr cpu_pause_ipi(void)
{
	/* Pairs with the store-release of who asks. */
	u64 seq = smp_load_acquire(&pause.seq);
	u64 *stopped = &stopped_for[raw_smp_processor_id()];
	bool masked;
	u64 daif;

	if (!(seq & 1))
		return;

	daif = mask_all();
	masked = sdei_try_mask_local_cpu();

	/* What this CPU has done so far is done before the initiator sees it stopped. */
	smp_store_release(stopped, seq);

	/* Waits for an event rather than spinning; pairs with the store-release in let_go(). */
	smp_cond_load_acquire(&pause.seq, VAL != seq);

	/* Whatever was fetched or translated ahead is from before the change. */
	isb();
	if (masked)
		sdei_unmask_local_cpu();
	unmask(daif);
}

/* Let everyone go; false if that was done already, on the way to a panic. */
static bool notrace let_go(void)
{
	u64 seq = READ_ONCE(pause.seq);

	if (!(seq & 1))
		return false;

	/*
	 * What was changed is changed before they see it. Pairs with the load-acquire of each that
	 * waits. That may read the value of a later pause; its initiator got pause_sem from this.
	 */
	smp_store_release(&pause.seq, seq + 1);

	return true;
}

NOKPROBE_SYMBOL(let_go);

/**
 * cpu_pause_abandon() - let all CPUs go, because this one will not come back
 *
 * Context: any, on the way to print an oops or to stop all other CPUs for good. Does
 *	    something only on a CPU that died while the others were paused.
 * Return: true on that CPU; it must not go back to what it did.
 */
bool cpu_pause_abandon(void)
{
	/*
	 * The initiator has interrupts disabled. A task with interrupts enabled could
	 * migrate to the initiator's CPU while this is evaluated, and be mistaken for it.
	 */
	if (!irqs_disabled() || READ_ONCE(pause_initiator) != raw_smp_processor_id())
		return false;

	/* From now on the others can give back what a console needs. */
	if (let_go())
		printk_deferred_exit();

	return true;
}

/**
 * cpu_pause_died() - let all CPUs go, on the way to a panic
 *
 * Like cpu_pause_abandon(), but this is true only once. What the way to the panic warns of is
 * no warning in a pause: die() would be called for it while it holds its lock.
 *
 * Context: any. For die(), and for what stops all other CPUs for good.
 * Return: true on the CPU that died while the others were paused, the first time.
 */
bool cpu_pause_died(void)
{
	bool died = cpu_pause_abandon();

	/* pause_sem stays taken, so no other initiator can have been noted. */
	if (died)
		WRITE_ONCE(pause_initiator, -1);

	return died;
}

/* The CPU that the last try has waited for in vain, or -1. Written while pause_sem is held. */
static int late_cpu = -1;

/* Stop @others CPUs; false if not all stopped by the deadline. */
static bool notrace stop_others(const struct cpumask *mask, unsigned int others, bool together,
				u64 deadline)
{
	u64 seq = READ_ONCE(pause.seq) + 1;
	unsigned int cpu;

	/* What was prepared for the pause is done before anyone stops for it. */
	smp_store_release(&pause.seq, seq);
	if (others)
		smp_send_cpu_pause(mask, others, together);

	/* Not for_each_cpu(), which calls what may be traced and probed. */
	for (cpu = 0; cpu < nr_cpu_ids; cpu++) {
		if (!cpumask_test_cpu(cpu, mask))
			continue;
		/* Pairs with the release of the one that stops. */
		while (smp_load_acquire(&stopped_for[cpu]) != seq) {
			if (ticks() > deadline) {
				WRITE_ONCE(late_cpu, cpu);
				return false;
			}
			cpu_relax();
		}
	}

	return true;
}

NOKPROBE_SYMBOL(stop_others);

/*
 * Sleep, with a timer of this CPU's own. Others could be left to the CPU that cannot be
 * interrupted, which looks busy, when this one becomes idle.
 */
static void sleep_until(u64 ns)
{
	ktime_t until = ns_to_ktime(ns);

	while (ktime_get_ns() < ns) {
		set_current_state(TASK_UNINTERRUPTIBLE);
		schedule_hrtimeout_range(&until, NSEC_PER_MSEC, HRTIMER_MODE_ABS_PINNED);
	}
}

/**
 * cpu_pause_sleep() - sleep while some CPU may not be interrupted
 * @ns: for how many nanoseconds; it may be a millisecond more
 *
 * For who asks for a pause again after it failed. The timers of msleep() and usleep_range() may be
 * left to another CPU, when this one is idle or leaves its timers to others (nohz_full=). If that
 * is the CPU that cannot be interrupted, such a sleep lasts as long as it cannot.
 *
 * Context: process context, may sleep.
 */
void cpu_pause_sleep(u64 ns)
{
	sleep_until(ktime_get_ns() + ns);
}

/* Count a pause, or an attempt at one. */
static void count_pause(struct cpu_pause_stats *stats, u64 ns, bool stopped)
{
	if (!stats)
		return;
	if (stopped)
		stats->pauses++;
	else
		stats->given_up++;
	stats->longest_ns = max(stats->longest_ns, ns);
	stats->total_ns += ns;
}

/* To try again at once could catch the same CPU in the same place. */
static void put_off_next_try(u64 ns)
{
	WRITE_ONCE(next_try_ns, ktime_get_ns() + ns);
}

/*
 * Stop all others and call @fn, once; false if they did not stop in time. It must not be probed
 * either, as compilers inline what it calls while the others are stopped.
 */
static bool try_pause(cpu_pause_fn_t fn, void *arg, bool *more, struct cpu_pause_stats *stats)
{
	static cpumask_t mask;		/* protected by pause_sem */
	/* What is written to the file is checked, and what the kernel is booted with is not. */
	unsigned int longest_wait_us = clamp(READ_ONCE(wait_us), 1U, USEC_PER_SEC);
	u64 asked, arrived, released, daif, wait, took_ns;
	/*
	 * The first try may interrupt all CPUs with one register write. In case that does not
	 * reach all of them, a retry interrupts each CPU by itself.
	 */
	bool together = !failed_tries;
	unsigned long flags;
	unsigned int others;
	bool all_stopped, masked;

	wait = us_to_ticks(together ? min(FIRST_WAIT_US, longest_wait_us) : longest_wait_us);
	pause_limit = us_to_ticks(READ_ONCE(limit_us));

	local_irq_save(flags);
	printk_deferred_enter();
	daif = mask_all();
	masked = sdei_try_mask_local_cpu();

	/* As stable as with cpus_read_lock(): no CPU is coming or going. */
	cpumask_copy(&mask, cpu_online_mask);
	cpumask_clear_cpu(smp_processor_id(), &mask);
	others = cpumask_weight(&mask);
	WRITE_ONCE(pause_initiator, smp_processor_id());

	asked = ticks();
	all_stopped = stop_others(&mask, others, together, asked + wait);
	arrived = ticks();
	if (all_stopped) {
		pause_began = arrived;
		*more = fn(arg);
	}
	released = ticks();
	let_go();

	WRITE_ONCE(pause_initiator, -1);
	if (masked)
		sdei_unmask_local_cpu();
	unmask(daif);
	printk_deferred_exit();
	local_irq_restore(flags);

	trace_cpu_pause(others, ticks_to_ns(arrived - asked),
			all_stopped ? ticks_to_ns(released - arrived) : 0, !all_stopped);
	took_ns = ticks_to_ns(released - asked);
	count_pause(&pause_stats, took_ns, all_stopped);
	count_pause(stats, took_ns, all_stopped);
	if (all_stopped) {
		failed_tries = 0;
		WRITE_ONCE(late_cpu, -1);
		/*
		 * Asked at once, the others would stop again before they have run. A pause that a
		 * host has made much longer, by running something else, is no reason to have none
		 * for as long.
		 */
		if (*more)
			put_off_next_try(min_t(u64, took_ns, MAX_REST_NS));
	} else {
		last_failed_ns = ktime_get_ns();
	}

	return all_stopped;
}

NOKPROBE_SYMBOL(try_pause);

#ifdef CONFIG_ARM64_CPU_PAUSE_STOP_MACHINE
/* For measurements: what a pause takes if stop_machine() does it. */
static bool by_stop_machine;
module_param_named(stop_machine, by_stop_machine, bool, 0444);
MODULE_PARM_DESC(stop_machine, "Use stop_machine() in place of pauses, to compare");

static DEFINE_MUTEX(stop_machine_mutex);

struct stop_machine_work {
	cpu_pause_fn_t fn;
	void *arg;
	bool more;
	u64 arrived;
	u64 released;
};

static int run_stopped(void *data)
{
	struct stop_machine_work *work = data;

	work->arrived = ticks();
	pause_began = work->arrived;
	work->more = work->fn(work->arg);
	work->released = ticks();

	return 0;
}

static bool stop_machine_once(cpu_pause_fn_t fn, void *arg, bool *more,
			      struct cpu_pause_stats *stats)
{
	struct stop_machine_work work = { .fn = fn, .arg = arg };
	bool done;
	u64 asked;

	if (!by_stop_machine)
		return false;

	mutex_lock(&stop_machine_mutex);
	pause_limit = us_to_ticks(READ_ONCE(limit_us));
	asked = ticks();
	/* It stops the CPUs that are online, so no other may run, nor get lost meanwhile. */
	cpus_read_lock();
	done = cpu_pause_knows_all_cpus();
	if (done)
		stop_machine_cpuslocked(run_stopped, &work, NULL);
	cpus_read_unlock();
	if (!done)
		goto unlock;
	*more = work.more;

	trace_cpu_pause(num_online_cpus() - 1, ticks_to_ns(work.arrived - asked),
			ticks_to_ns(work.released - work.arrived), false);
	count_pause(&pause_stats, ticks_to_ns(work.released - asked), true);
	count_pause(stats, ticks_to_ns(work.released - asked), true);
	if (work.more)
		cpu_pause_sleep(ticks_to_ns(work.released - asked));
unlock:
	mutex_unlock(&stop_machine_mutex);

	return done;
}
#else
static bool stop_machine_once(cpu_pause_fn_t fn, void *arg, bool *more,
			      struct cpu_pause_stats *stats)
{
	return false;
}
#endif

#ifdef CONFIG_FAULT_INJECTION
static DECLARE_FAULT_ATTR(fail_cpu_pause);

static bool should_fail_pause(void)
{
	return should_fail(&fail_cpu_pause, 1);
}

static int __init setup_fail_cpu_pause(char *text)
{
	return setup_fault_attr(&fail_cpu_pause, text);
}
__setup("fail_cpu_pause=", setup_fail_cpu_pause);

static int __init init_fault_injection(void)
{
	fault_create_debugfs_attr("fail_cpu_pause", NULL, &fail_cpu_pause);
	return 0;
}
late_initcall(init_fault_injection);
#else
static bool should_fail_pause(void)
{
	return false;
}
#endif

/* A pause cannot be had now, as @late did not stop; or there was no turn, if that is -1. */
static int fail_pause(int late)
{
	int half_way = READ_ONCE(transition_cpu);
	bool parked = half_way >= 0 &&
		      ktime_get_ns() - READ_ONCE(transition_began_ns) > GIVE_UP_NS;
	static DEFINE_RATELIMIT_STATE(limit, DEFAULT_RATELIMIT_INTERVAL, DEFAULT_RATELIMIT_BURST);

	/* If others had their pauses, or a CPU is about to be there, so can who asks next. */
	if (late >= 0 || parked)
		WRITE_ONCE(fail_until_ns, ktime_get_ns() + HOLD_OFF_NS);
	/*
	 * Whoever prints may have to take the console over, and to print what another CPU has left,
	 * maybe the one that did not answer. This is no place for that: the callers hold locks.
	 */
	if (!__ratelimit(&limit))
		return -EBUSY;
	if (late >= 0)
		printk_deferred(KERN_WARNING "cpu_pause: CPU%d does not take interrupts\n", late);
	else if (half_way >= 0)
		printk_deferred(KERN_WARNING "cpu_pause: CPU%d is half way on or off line\n",
				half_way);
	else
		printk_deferred(KERN_WARNING "cpu_pause: others have had all pauses\n");

	return -EBUSY;
}

/* How long to sleep after so many tries as have failed. */
static u64 sleep_between_tries(void)
{
	return (u64)FIRST_SLEEP_NS << (failed_tries - 1);
}

/* May there be a try now, or did the last one fail a moment ago? */
static bool may_try(void)
{
	u64 now = ktime_get_ns();

	if (now < next_try_ns)
		return false;
	if (failed_tries && now - last_failed_ns > FORGET_NS)
		failed_tries = 0;

	return true;
}

/* Take pause_sem if it is free. The task is not preempted then until end_turn(). */
static bool take_turn(void)
{
	preempt_disable();
	if (!down_trylock(&pause_sem))
		return true;
	preempt_enable();

	return false;
}

/* To be kept from running between the two would keep those that wait from their turns. */
static void release_pause_sem(void)
{
	preempt_disable();
	up(&pause_sem);
	swake_up_all(&turn_ended);
	preempt_enable();
}

static void end_turn(void)
{
	release_pause_sem();
	preempt_enable();
}

/* How many jiffies there are until a time of ktime_get_ns(). */
static unsigned long jiffies_until(u64 ns)
{
	u64 now = ktime_get_ns();

	return now < ns ? nsecs_to_jiffies(ns - now) + 1 : 0;
}

/**
 * cpu_pause_knows_all_cpus() - is no CPU in the kernel but those that are online or on their way?
 *
 * Context: any. While no CPU can come or go, true stays true.
 * Return: false if one could be. If it has left it may be gone: see cpu_pause_look_for_cpus().
 */
bool cpu_pause_knows_all_cpus(void)
{
	return !hotplug_unnoticed && cpumask_empty(&lost_cpus);
}

/* The CPU is not lost, or not any more. The caller has pause_sem. */
static void found_cpu(unsigned int cpu, const char *how)
{
	cpumask_clear_cpu(cpu, &left_cpus);
	if (!cpumask_test_and_clear_cpu(cpu, &lost_cpus))
		return;
	/* Deferred, as in fail_pause(). */
	printk_deferred(KERN_INFO "cpu_pause: CPU%u %s%s\n", cpu, how,
			cpu_pause_knows_all_cpus() ? ", and CPUs can be paused again" : "");
}

/**
 * cpu_pause_error_means_gone() - is a CPU gone that has left, if AFFINITY_INFO fails for it?
 * @error: what the call has returned
 *
 * If firmware does not know the CPU, the host has taken it away. If firmware does not know the
 * call, nobody can know, and the CPU is taken to be gone, as where there is no such call.
 *
 * Context: any.
 * Return: false for any other error, and if it is none.
 */
bool cpu_pause_error_means_gone(int error)
{
	switch (error) {
	case PSCI_RET_INVALID_PARAMS:
	case PSCI_RET_NOT_PRESENT:
	case PSCI_RET_DISABLED:
	case PSCI_RET_NOT_SUPPORTED:
		return true;
	default:
		return false;
	}
}

/* Is a CPU gone that has left? */
static bool cpu_is_gone(unsigned int cpu)
{
	int state = psci_ops.affinity_info(cpu_logical_map(cpu), 0);

	return state == PSCI_0_2_AFFINITY_LEVEL_OFF || cpu_pause_error_means_gone(state);
}

/*
 * Are all CPUs known, when firmware was asked once more about those that have left? A host may
 * have run a virtual CPU only after CPU hotplug had stopped to wait for it, and may take it away
 * then, so that it never comes on line again. What firmware says stays true until CPU hotplug
 * starts the CPU, for which it has pause_sem, as the caller has it here.
 */
static bool find_all_cpus(void)
{
	unsigned int cpu;

	for_each_cpu(cpu, &left_cpus) {
		if (cpu_is_gone(cpu))
			found_cpu(cpu, "has gone after all");
	}

	return cpu_pause_knows_all_cpus();
}

/*
 * Try once, unless the last try failed a moment ago. The turn is waited for until @give_up_ns.
 *
 * Return: 0 if there was a pause; -EAGAIN if there may be one after next_try_ns; -EBUSY if not;
 *	   -EOPNOTSUPP if a CPU was lost.
 */
static int try_in_turn(cpu_pause_fn_t fn, void *arg, bool *more, struct cpu_pause_stats *stats,
		       u64 give_up_ns)
{
	int ret = -EAGAIN;

	if (!swait_event_timeout_exclusive(turn_ended, take_turn(), jiffies_until(give_up_ns)))
		return fail_pause(-1);
	lock_map_acquire(&pause_map);

	if (!find_all_cpus()) {
		ret = -EOPNOTSUPP;
		goto unlock;
	}
	if (!may_try())
		goto unlock;

	if (try_pause(fn, arg, more, stats)) {
		ret = 0;
	} else if (++failed_tries < MAX_FAILED_TRIES) {
		put_off_next_try(sleep_between_tries());
	} else {
		/* The next pause has one try, unless that comes so late that may_try() forgets. */
		failed_tries = MAX_FAILED_TRIES - 1;
		ret = fail_pause(late_cpu);
	}
unlock:
	lock_map_release(&pause_map);
	end_turn();

	return ret;
}

/*
 * Try once, if that is allowed now and nobody else has pause_sem, and do not sleep.
 *
 * The first try that fails counts, so that the next waits longer, and interrupts each CPU by
 * itself. Further ones do not: those who sleep between their tries have MAX_FAILED_TRIES, and
 * who asks again and again without sleeping here must not use them up. When the tries are used
 * up already there is one in HOLD_OFF_NS, of whichever caller. If that was this one, the next is
 * put off. Pauses do not fail for that time, as after the last try of those who sleep: who asks
 * for one sleeps until then, and has a try.
 *
 * Return: 0 if there was a pause, or -EBUSY; -EOPNOTSUPP if a CPU was lost.
 */
static int try_now(cpu_pause_fn_t fn, void *arg, bool *more, struct cpu_pause_stats *stats)
{
	int ret = -EBUSY;

	if (should_fail_pause() || ktime_get_ns() < READ_ONCE(fail_until_ns))
		return -EBUSY;
	if (!take_turn())
		return -EBUSY;
	lock_map_acquire_try(&pause_map);

	if (!find_all_cpus()) {
		ret = -EOPNOTSUPP;
		goto unlock;
	}
	if (!may_try())
		goto unlock;

	if (try_pause(fn, arg, more, stats)) {
		ret = 0;
	} else if (failed_tries < MAX_FAILED_TRIES - 1) {
		failed_tries = max(failed_tries, 1U);
		put_off_next_try(sleep_between_tries());
	} else {
		put_off_next_try(HOLD_OFF_NS);
	}
unlock:
	lock_map_release(&pause_map);
	end_turn();

	return ret;
}

/* One pause; or, if @may_stop, what may stand in for it. */
static int pause_once(cpu_pause_fn_t fn, void *arg, bool *more, struct cpu_pause_stats *stats,
		      bool may_stop)
{
	u64 give_up_ns = ktime_get_ns() + GIVE_UP_NS;
	int ret;

	if (should_fail_pause())
		return -EBUSY;
	if (may_stop && stop_machine_once(fn, arg, more, stats))
		return 0;

	do {
		sleep_until(READ_ONCE(next_try_ns));
		if (ktime_get_ns() < READ_ONCE(fail_until_ns))
			return -EBUSY;
		ret = try_in_turn(fn, arg, more, stats, give_up_ns);
	} while (ret == -EAGAIN && ktime_get_ns() < give_up_ns);

	/*
	 * With a wait_us of a second this comes before MAX_FAILED_TRIES. Who asks next would have
	 * the same CPUs stand still at once for the same that does not come.
	 */
	return ret == -EAGAIN ? fail_pause(READ_ONCE(late_cpu)) : ret;
}

/* May stop_machine() stand in for a pause, and may the caller sleep? */
#define MAY_STOP	BIT(0)
#define MAY_SLEEP	BIT(1)

static int run(cpu_pause_fn_t fn, void *arg, struct cpu_pause_stats *stats, unsigned int flags)
{
	bool more = true;
	int ret = 0;

	if (flags & MAY_SLEEP)
		might_sleep();
	lockdep_assert_irqs_enabled();

	if (!arch_timer_get_rate() || hotplug_unnoticed)
		ret = -EOPNOTSUPP;
	while (more && !ret)
		ret = flags & MAY_SLEEP ?
		      pause_once(fn, arg, &more, stats, flags & MAY_STOP) :
		      try_now(fn, arg, &more, stats);
	if (ret)
		atomic_long_inc(&pauses_failed);

	return ret;
}

/**
 * cpu_pause_run() - call a function while all other CPUs are paused
 * @fn: the function; see cpu_pause_fn_t for what it may do
 * @arg: handed to it
 * @stats: what this took is added to it; or NULL
 *
 * @fn is called until it returns false, each time in a pause of its own. After each of them but
 * the last all CPUs run for as long as it took, or for 0.25 s, whoever asks for the next, and the
 * caller sleeps.
 *
 * A CPU that cannot be interrupted now is waited for, outside of any pause; but only for
 * about 0.25 s, or no time at all if that was waited in vain a moment ago. A CPU that is half
 * way on or off line, and other initiators, are waited for, for 2 s at most. So callers have to go
 * on without. @fn may have been called then, if it wants to be called several times.
 *
 * Context: process context, may sleep, interrupts enabled. Takes pause_sem, which is held
 *	    while a CPU comes or goes: not for CPU hotplug callbacks. No lock may be held
 *	    that is taken with interrupts disabled or by interrupt handlers.
 * Return: 0 when @fn has returned false; -EBUSY if not all CPUs can be paused;
 *	   -EOPNOTSUPP if there is no counter to go by, no CPU hotplug state, or a CPU that was
 *	   lost while it came or left (cpu_pause_lost_cpu()).
 */
int cpu_pause_run(cpu_pause_fn_t fn, void *arg, struct cpu_pause_stats *stats)
{
	return run(fn, arg, stats, MAY_SLEEP | MAY_STOP);
}

/**
 * cpu_pause_run_unmapped() - cpu_pause_run() for what makes the linear map invalid
 * @fn: as of cpu_pause_run(); for a while it may make any part of the linear map invalid
 * @arg: as of cpu_pause_run()
 * @stats: as of cpu_pause_run()
 *
 * From when they say that they have stopped until they are let go, CPUs use nothing but
 * registers and a word in the kernel's image. CPUs that stop_machine() has stopped use more, so
 * it never stands in here. While the linear map is invalid @fn may use no memory that is only there
 * either: see linear_map_pause.c.
 *
 * Context: as cpu_pause_run().
 * Return: as cpu_pause_run().
 */
int cpu_pause_run_unmapped(cpu_pause_fn_t fn, void *arg, struct cpu_pause_stats *stats)
{
	return run(fn, arg, stats, MAY_SLEEP);
}

/**
 * cpu_pause_try_unmapped() - cpu_pause_run_unmapped() without sleeping, in one try
 * @fn: as of cpu_pause_run_unmapped()
 * @arg: as of cpu_pause_run()
 * @stats: as of cpu_pause_run()
 *
 * For who holds locks that others wait for, and can do without the pause. @fn should leave
 * nothing to be done, as that would take another try. While a CPU comes or goes, another
 * initiator has its turn, or the CPUs run after a pause of work that takes several, this fails
 * at once. So it does if one try has failed, until the next is due, which is a few milliseconds
 * later, or 0.25 s when many have failed. To be tried again later, with the locks released in
 * between; and each time after a longer while than before, which is up to the caller, as those
 * few milliseconds do not become more by such tries.
 *
 * Context: process context, interrupts enabled. Does not sleep, but waits for other CPUs with
 *	    interrupts masked, for as long as a try may take (wait_us). Takes pause_sem if it is
 *	    free; otherwise as cpu_pause_run().
 * Return: 0 when @fn has returned false; -EBUSY if there can be no pause now;
 *	   -EOPNOTSUPP if there is no counter to go by, no CPU hotplug state, or a CPU that was
 *	   lost while it came or left (cpu_pause_lost_cpu()).
 */
int cpu_pause_try_unmapped(cpu_pause_fn_t fn, void *arg, struct cpu_pause_stats *stats)
{
	return run(fn, arg, stats, 0);
}

/**
 * cpu_pause_limit_reached() - has this pause lasted as long as it may?
 *
 * Context: a cpu_pause_fn_t.
 * Return: true if it should come to an end, and do the rest in another pause.
 */
bool notrace cpu_pause_limit_reached(void)
{
	return ticks() - pause_began > pause_limit;
}

NOKPROBE_SYMBOL(cpu_pause_limit_reached);

/**
 * cpu_pause_half_reached() - has this pause lasted half as long as it may?
 *
 * For what takes as long to complete as it has taken so far, as break-before-make does.
 *
 * Context: a cpu_pause_fn_t.
 * Return: true if it should begin nothing more, and complete what it has begun.
 */
bool notrace cpu_pause_half_reached(void)
{
	return ticks() - pause_began > pause_limit / 2;
}

NOKPROBE_SYMBOL(cpu_pause_half_reached);

/* CPUs that come or go */

/*
 * Another CPU may be parked between the two states by hand, and for as long as anybody
 * likes. To wait for it here would be with cpus_write_lock() held. So the transition fails. It
 * does not fail with -EBUSY: after that the core tries a CPU that is to come five times more.
 */
static int begin_transition(unsigned int cpu)
{
	int ret;

	lock_map_acquire(&pause_map);
	lock_map_release(&pause_map);

	ret = down_timeout(&pause_sem, CPUHP_TIMEOUT);
	if (ret)
		return ret;
	WRITE_ONCE(transition_began_ns, ktime_get_ns());
	WRITE_ONCE(transition_cpu, cpu);
	cpu_leaves = false;

	return 0;
}

/*
 * The semaphore may be another's. When a CPU that comes fails late, begin_transition() is called
 * on its way back, and the core goes on even if that has failed.
 */
static void end_transition(unsigned int cpu)
{
	if (transition_cpu != cpu)
		return;

	WRITE_ONCE(transition_cpu, -1);
	release_pause_sem();
}

/* A CPU is gone, or was given up on its way. One that was given up may set itself online now. */
static int end_without_cpu(unsigned int cpu)
{
	if (cpu_leaves)
		cpu_pause_lost_cpu(cpu, true);
	end_transition(cpu);
	return 0;
}

/* A CPU has come, or was not taken off line after all. */
static int end_with_cpu(unsigned int cpu)
{
	found_cpu(cpu, "has been brought online");
	end_transition(cpu);
	return 0;
}

/**
 * cpu_pause_cpu_leaves() - say that a CPU is about to leave the kernel, or that it has left
 * @leaves: is it about to?
 *
 * If CPU hotplug is done with a CPU that was about to leave, and nobody has said that it has left,
 * it is lost (cpu_pause_lost_cpu()).
 *
 * Context: the CPU itself, or who takes it off line; the transition has pause_sem.
 */
void cpu_pause_cpu_leaves(bool leaves)
{
	cpu_leaves = leaves;
}

/**
 * cpu_pause_lost_cpu() - say that a CPU may run the kernel that CPU hotplug has given up
 * @cpu: the CPU
 * @leaves: is it on its way out of the kernel, and firmware knows when it is gone?
 *
 * It had its task when the one that started it gave up, or it left and firmware did not say that
 * it is gone. No pause would stop it, but it may use its stack and its data at any time. So there
 * are no pauses until CPU hotplug has brought it online. If it left, there are none until firmware
 * has started it again or says that it is gone, for which it is asked again when somebody wants a
 * pause.
 *
 * One that was late sets itself online. But CPU hotplug, which had given it up, has called none of
 * its callbacks, that of the interrupt controller included: no pause could stop it. Nor can
 * CPU hotplug start it again, as firmware says that it runs. So there are no pauses any more.
 *
 * Context: the other CPU's transition has pause_sem; or while the kernel boots, when nobody asks
 *	    for pauses.
 */
void cpu_pause_lost_cpu(unsigned int cpu, bool leaves)
{
	bool asked = leaves && psci_ops.affinity_info;

	cpumask_assign_cpu(cpu, &left_cpus, asked);
	cpumask_set_cpu(cpu, &lost_cpus);
	pr_err("CPU%u may run the kernel, though CPU hotplug has given it up; no CPU can be paused\n",
	       cpu);
}

/**
 * cpu_pause_started_cpu() - say that CPU hotplug has had a CPU started
 * @cpu: the CPU
 *
 * Firmware starts none that runs. So one that had left was gone. Its transition fails if it is
 * late again, and it parks when it comes. Firmware would say then for ever that it is on.
 *
 * Context: the other CPU's transition has pause_sem; or while the kernel boots.
 */
void cpu_pause_started_cpu(unsigned int cpu)
{
	if (cpumask_test_cpu(cpu, &left_cpus))
		found_cpu(cpu, "has been started again, so it had gone");
}

/**
 * cpu_pause_look_for_cpus() - ask firmware once more about CPUs that have left
 *
 * For who is about to go on without pauses, or to wait until there are some again. Each pause that
 * is wanted has firmware asked, too, but maybe nobody wants one meanwhile. Firmware is not asked
 * while somebody else has pause_sem.
 *
 * Context: process context, interrupts enabled. Does not sleep.
 * Return: as cpu_pause_knows_all_cpus().
 */
bool cpu_pause_look_for_cpus(void)
{
	lockdep_assert_irqs_enabled();

	if (!cpu_pause_knows_all_cpus() && take_turn()) {
		lock_map_acquire_try(&pause_map);
		find_all_cpus();
		lock_map_release(&pause_map);
		end_turn();
	}

	return cpu_pause_knows_all_cpus();
}

static int __init have_no_pauses(int error)
{
	hotplug_unnoticed = true;
	pr_err("no CPU hotplug state (%d), so no CPU can be paused\n", error);

	return error;
}

/*
 * A CPU comes between the startup callbacks of the two states, and goes between their
 * teardown callbacks; a transition that fails half way passes the same callbacks back.
 */
static int __init init_transitions(void)
{
	int prepare, online;

	prepare = cpuhp_setup_state_nocalls(CPUHP_BP_PREPARE_DYN, "arm64/cpu_pause:prepare",
					    begin_transition, end_without_cpu);
	if (prepare < 0)
		return have_no_pauses(prepare);

	online = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, "arm64/cpu_pause:online",
					   end_with_cpu, begin_transition);
	if (online < 0) {
		cpuhp_remove_state_nocalls(prepare);
		return have_no_pauses(online);
	}

	return 0;
}
core_initcall(init_transitions);

/* /sys/kernel/cpu_pause */

static ssize_t stat_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf);

static struct kobj_attribute pauses_attr = __ATTR(pauses, 0444, stat_show, NULL);
static struct kobj_attribute given_up_attr = __ATTR(given_up, 0444, stat_show, NULL);
static struct kobj_attribute failed_attr = __ATTR(failed, 0444, stat_show, NULL);
static struct kobj_attribute longest_ns_attr = __ATTR(longest_ns, 0444, stat_show, NULL);
static struct kobj_attribute total_ns_attr = __ATTR(total_ns, 0444, stat_show, NULL);

static ssize_t stat_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	u64 value = attr == &pauses_attr     ? READ_ONCE(pause_stats.pauses) :
		    attr == &given_up_attr   ? READ_ONCE(pause_stats.given_up) :
		    attr == &failed_attr     ? atomic_long_read(&pauses_failed) :
		    attr == &longest_ns_attr ? READ_ONCE(pause_stats.longest_ns) :
					       READ_ONCE(pause_stats.total_ns);

	return sysfs_emit(buf, "%llu\n", value);
}

static ssize_t lost_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	/* One that has left may be gone by now. */
	cpu_pause_look_for_cpus();

	return sysfs_emit(buf, "%*pbl\n", cpumask_pr_args(&lost_cpus));
}

static struct kobj_attribute lost_attr = __ATTR(lost, 0444, lost_show, NULL);

static ssize_t us_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf);
static ssize_t us_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			size_t count);

static struct kobj_attribute limit_us_attr = __ATTR(limit_us, 0644, us_show, us_store);
static struct kobj_attribute wait_us_attr = __ATTR(wait_us, 0644, us_show, us_store);

static ssize_t us_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(*(attr == &limit_us_attr ? &limit_us : &wait_us)));
}

static ssize_t us_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			size_t count)
{
	unsigned int us;
	int ret;

	ret = kstrtouint(buf, 0, &us);
	if (ret)
		return ret;
	if (!us || us > USEC_PER_SEC)
		return -EINVAL;
	WRITE_ONCE(*(attr == &limit_us_attr ? &limit_us : &wait_us), us);

	return count;
}

static struct attribute *cpu_pause_attrs[] = {
	&pauses_attr.attr,
	&given_up_attr.attr,
	&failed_attr.attr,
	&longest_ns_attr.attr,
	&total_ns_attr.attr,
	&lost_attr.attr,
	&limit_us_attr.attr,
	&wait_us_attr.attr,
	NULL
};

static const struct attribute_group cpu_pause_group = {
	.attrs = cpu_pause_attrs,
};

static int __init init_sysfs(void)
{
	struct kobject *kobj = kobject_create_and_add("cpu_pause", kernel_kobj);
	int ret;

	if (!kobj)
		return -ENOMEM;
	ret = sysfs_create_group(kobj, &cpu_pause_group);
	if (ret)
		kobject_put(kobj);

	return ret;
}
late_initcall(init_sysfs);
