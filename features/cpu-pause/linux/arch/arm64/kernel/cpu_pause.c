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
 * The protocol has two variables. pause_seq is odd while a pause is asked for or lasts;
 * stopped counts who has stopped, next to the sequence number that it is the count for.
 *
 *	initiator				every other CPU
 *	---------				---------------
 *	mask everything
 *	stopped = (pause_seq + 1, 0)
 *	pause_seq++ (odd)
 *	send the interrupt		->	seq = pause_seq; if even, return
 *	wait until stopped is			if stopped is (seq, n), make it (seq, n + 1),
 *	  (pause_seq, number of others)		  or else return
 *	change what is to be changed		wait until pause_seq is not seq
 *	stopped = (pause_seq + 1, same)
 *	pause_seq++ (even)		->
 *	wait until stopped is (.., 0)	<-	stopped = (.., n - 1)
 *	unmask
 *
 * - The interrupt may be late, early or doubled: it is shared with the backtrace. It is
 *   pause_seq that counts, and nobody can stop twice for the same value of it.
 * - A CPU may see an odd pause_seq and go on only when that pause was given up, or another
 *   has begun. It must not be counted then; hence the number next to the count.
 * - All have left before the next pause begins.
 * - A CPU may be unable to take the interrupt because it waits, interrupts masked, for a
 *   CPU that has stopped already: for a lock that one holds, or in stop_machine() and
 *   stop_two_cpus(), whose threads walk through their states in lock step. Hence the
 *   initiator waits for a limited time. Then it lets everyone go, itself included, sleeps
 *   a little so that they get somewhere, and tries again.
 * - The initiator has its interrupts masked from the beginning: a handler could wait for
 *   a lock that a CPU holds which has stopped already.
 * - CPUs that come or go execute kernel code without being online, or cannot be
 *   interrupted. pause_sem keeps them and the initiators apart, as cpus_read_lock() would
 *   do; but that cannot be used, since memory hotplug has it already when it frees
 *   hugepages.
 * - When the initiator panics it lets the others go, so that they can be stopped.
 *
 * features/cpu-pause/model of the Pagewright repository has a model of it for spin.
 */
#define pr_fmt(fmt) "cpu_pause: " fmt

#include <linux/atomic.h>
#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/cpumask.h>
#include <linux/init.h>
#include <linux/kobject.h>
#include <linux/kprobes.h>
#include <linux/math64.h>
#include <linux/sched.h>
#include <linux/semaphore.h>
#include <linux/smp.h>
#include <linux/sysfs.h>

#include <asm/barrier.h>
#include <asm/cpu_pause.h>
#include <asm/sysreg.h>

#define CREATE_TRACE_POINTS
#include <trace/events/cpu_pause.h>

/* Who waits, waits for this one, so it is alone in its cache line. */
static u32 pause_seq ____cacheline_aligned;

/* The sequence number in the upper half, the count in the lower one. */
static atomic64_t stopped ____cacheline_aligned = ATOMIC64_INIT(0);

#define NEXT_SEQ	BIT_ULL(32)

/* The CPU that runs cpu_pause_run(), with everything masked; or -1. */
static int pause_initiator = -1;

/* Held by an initiator, and while a CPU comes or goes. */
static DEFINE_SEMAPHORE(pause_sem, 1);

/* How long to wait for the others at first; four times as long after each failure. */
#define FIRST_WAIT_US	1000
#define LONGEST_WAIT_US	((u64)USEC_PER_SEC)

/*
 * How long one pause may last; what runs in it is asked to keep to it. About a thousand
 * times what it takes to change an entry.
 */
static unsigned int limit_us = 500;

/* When the running pause has to end, in ticks of the counter; written by the initiator. */
static u64 pause_deadline;

/* Of all callers; protected by pause_sem. */
static struct cpu_pause_stats pause_stats;

/* The counter itself: what is above it may use per-CPU memory. */
static __always_inline u64 ticks(void)
{
	isb();
	return read_sysreg(cntvct_el0);
}

static u64 us_to_ticks(u64 us)
{
	return mul_u64_u64_div_u64(us, read_sysreg(cntfrq_el0), USEC_PER_SEC);
}

static u64 ticks_to_ns(u64 count)
{
	return mul_u64_u64_div_u64(count, NSEC_PER_SEC, read_sysreg(cntfrq_el0));
}

/* Interrupts, pseudo-NMIs, SErrors and debug exceptions: whatever PMR allows. */
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
 * Touches nothing but the two variables in the kernel's image and its registers.
 *
 * Context: the interrupt of cpu_pause_run(), or any other with interrupts masked.
 */
void noinstr cpu_pause_ipi(void)
{
	/* Pairs with the store-release of who asks. */
	u32 seq = smp_load_acquire(&pause_seq);
	s64 old;
	u64 daif;

	if (!(seq & 1))
		return;

	daif = mask_all();

	/* What this CPU has done so far is done before the initiator sees it stopped. */
	old = raw_atomic64_read(&stopped);
	do {
		if (upper_32_bits(old) != seq)
			goto out;
	} while (!raw_atomic64_try_cmpxchg_release(&stopped, &old, old + 1));

	/* Waits for an event rather than spinning; pairs with the store-release in resume(). */
	smp_cond_load_acquire(&pause_seq, VAL != seq);

	/* Whatever was fetched or translated ahead is from before the change. */
	isb();
	raw_atomic64_dec_return_release(&stopped);
out:
	unmask(daif);
}

static void let_go(void)
{
	/* Nobody stops any more; everything that was changed is changed before they see it. */
	atomic64_add_return_release(NEXT_SEQ, &stopped);

	/* Pairs with the load-acquire of each that waits. */
	smp_store_release(&pause_seq, READ_ONCE(pause_seq) + 1);
}

NOKPROBE_SYMBOL(let_go);

/**
 * cpu_pause_abandon() - let all CPUs go, because this one will not come back
 *
 * Context: any, on the way to stop all other CPUs for good. Does something only on a CPU
 *	    that died while the others were paused.
 */
void cpu_pause_abandon(void)
{
	if (READ_ONCE(pause_initiator) != raw_smp_processor_id())
		return;

	if (READ_ONCE(pause_seq) & 1)
		let_go();
}

/* Let everyone go, and wait until they have gone. */
static void resume(void)
{
	/* Unless that was done on the way to a panic. */
	if (READ_ONCE(pause_seq) & 1)
		let_go();

	while (lower_32_bits(atomic64_read_acquire(&stopped)))
		cpu_relax();
}

NOKPROBE_SYMBOL(resume);

/* Stop @others CPUs; false if not all stopped by the deadline. */
static bool pause(const struct cpumask *mask, unsigned int others, u64 deadline)
{
	u32 seq = READ_ONCE(pause_seq) + 1;
	u64 all = ((u64)seq << 32) + others;

	atomic64_set(&stopped, (u64)seq << 32);

	/* What was prepared for the pause is done before anyone stops for it. */
	smp_store_release(&pause_seq, seq);
	if (others)
		smp_send_cpu_pause(mask);

	/* Pairs with the release of each that stops. */
	while (atomic64_read_acquire(&stopped) != all) {
		if (ticks() > deadline)
			return false;
		cpu_relax();
	}

	return true;
}

NOKPROBE_SYMBOL(pause);

/* Count a pause, or an attempt at one. */
static void count_pause(struct cpu_pause_stats *stats, u64 ns, bool stopped)
{
	if (stopped)
		stats->pauses++;
	else
		stats->given_up++;
	stats->longest_ns = max(stats->longest_ns, ns);
	stats->total_ns += ns;
}

/* Stop all others and call @fn, once; false if they did not stop within @wait_us. */
static bool try_pause(cpu_pause_fn_t fn, void *arg, u64 wait_us, bool *more,
		      struct cpu_pause_stats *stats)
{
	static cpumask_t mask;		/* protected by pause_sem */
	u64 asked, arrived, released, daif, wait = us_to_ticks(wait_us);
	u64 limit = us_to_ticks(READ_ONCE(limit_us));
	unsigned long flags;
	unsigned int others;
	bool all_stopped;

	local_irq_save(flags);
	daif = mask_all();

	/* As stable as with cpus_read_lock(): no CPU is coming or going. */
	cpumask_copy(&mask, cpu_online_mask);
	cpumask_clear_cpu(smp_processor_id(), &mask);
	others = cpumask_weight(&mask);
	WRITE_ONCE(pause_initiator, smp_processor_id());

	asked = ticks();
	all_stopped = pause(&mask, others, asked + wait);
	arrived = ticks();
	if (all_stopped) {
		pause_deadline = arrived + limit;
		*more = fn(arg);
	}
	released = ticks();
	resume();

	WRITE_ONCE(pause_initiator, -1);
	unmask(daif);
	local_irq_restore(flags);

	trace_cpu_pause(others, ticks_to_ns(arrived - asked),
			all_stopped ? ticks_to_ns(released - arrived) : 0, !all_stopped);
	count_pause(&pause_stats, ticks_to_ns(released - asked), all_stopped);
	if (stats)
		count_pause(stats, ticks_to_ns(released - asked), all_stopped);

	return all_stopped;
}

/**
 * cpu_pause_run() - call a function while all other CPUs are paused
 * @fn: the function; see cpu_pause_fn_t for what it may do
 * @arg: handed to it
 * @stats: what this took is added to it; or NULL
 *
 * @fn is called until it returns false, each time in a pause of its own. Between pauses
 * all CPUs run, and the caller may be preempted.
 *
 * Returns when it is done: a CPU that cannot be interrupted now is waited for, outside of
 * any pause.
 *
 * Context: process context, may sleep, interrupts enabled. Takes pause_sem, which is held
 *	    while a CPU comes or goes: not for CPU hotplug callbacks. No lock may be held
 *	    that is taken with interrupts disabled or by interrupt handlers.
 */
void cpu_pause_run(cpu_pause_fn_t fn, void *arg, struct cpu_pause_stats *stats)
{
	bool more = true;

	might_sleep();
	lockdep_assert_irqs_enabled();

	while (more) {
		u64 wait_us = FIRST_WAIT_US;

		down(&pause_sem);
		while (!try_pause(fn, arg, wait_us, &more, stats)) {
			/* To try again at once could catch the same CPU in the same place. */
			wait_us = min(4 * wait_us, LONGEST_WAIT_US);
			if (wait_us == LONGEST_WAIT_US)
				pr_warn_ratelimited("some CPU cannot be interrupted for %llu us\n",
						    wait_us);
			schedule_timeout_uninterruptible(1);
		}
		up(&pause_sem);
	}
}

/**
 * cpu_pause_limit_reached() - has this pause lasted as long as it may?
 *
 * Context: a cpu_pause_fn_t.
 * Return: true if it should come to an end, and do the rest in another pause.
 */
bool cpu_pause_limit_reached(void)
{
	return ticks() > pause_deadline;
}

NOKPROBE_SYMBOL(cpu_pause_limit_reached);

/* CPUs that come or go */

static int begin_transition(unsigned int cpu)
{
	down(&pause_sem);
	return 0;
}

static int end_transition(unsigned int cpu)
{
	up(&pause_sem);
	return 0;
}

/*
 * A CPU comes between the startup callbacks of the two states, and goes between their
 * teardown callbacks; a transition that fails half way passes the same callbacks back.
 */
static int __init init_transitions(void)
{
	int ret;

	ret = cpuhp_setup_state_nocalls(CPUHP_BP_PREPARE_DYN, "arm64/cpu_pause:prepare",
					begin_transition, end_transition);
	if (ret < 0)
		panic("cpu_pause: no CPU hotplug state (%d)\n", ret);

	ret = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, "arm64/cpu_pause:online",
					end_transition, begin_transition);
	if (ret < 0)
		panic("cpu_pause: no CPU hotplug state (%d)\n", ret);

	return 0;
}
core_initcall(init_transitions);

/* /sys/kernel/cpu_pause */

static ssize_t stat_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf);

static struct kobj_attribute pauses_attr = __ATTR(pauses, 0444, stat_show, NULL);
static struct kobj_attribute given_up_attr = __ATTR(given_up, 0444, stat_show, NULL);
static struct kobj_attribute longest_ns_attr = __ATTR(longest_ns, 0444, stat_show, NULL);
static struct kobj_attribute total_ns_attr = __ATTR(total_ns, 0444, stat_show, NULL);

static ssize_t stat_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	u64 value = attr == &pauses_attr     ? READ_ONCE(pause_stats.pauses) :
		    attr == &given_up_attr   ? READ_ONCE(pause_stats.given_up) :
		    attr == &longest_ns_attr ? READ_ONCE(pause_stats.longest_ns) :
					       READ_ONCE(pause_stats.total_ns);

	return sysfs_emit(buf, "%llu\n", value);
}

static ssize_t limit_us_show(struct kobject *kobj, struct kobj_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(limit_us));
}

static ssize_t limit_us_store(struct kobject *kobj, struct kobj_attribute *attr,
			      const char *buf, size_t count)
{
	unsigned int us;
	int ret;

	ret = kstrtouint(buf, 0, &us);
	if (ret)
		return ret;
	if (!us || us > USEC_PER_SEC)
		return -EINVAL;
	WRITE_ONCE(limit_us, us);

	return count;
}

static struct kobj_attribute limit_us_attr = __ATTR_RW(limit_us);

static struct attribute *cpu_pause_attrs[] = {
	&pauses_attr.attr,
	&given_up_attr.attr,
	&longest_ns_attr.attr,
	&total_ns_attr.attr,
	&limit_us_attr.attr,
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
