/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Keep all other CPUs away for a moment. See arch/arm64/kernel/cpu_pause.c.
 */
#ifndef __ASM_CPU_PAUSE_H
#define __ASM_CPU_PAUSE_H

#include <linux/types.h>

struct cpumask;

/**
 * typedef cpu_pause_fn_t - what is done while all other CPUs are paused
 * @arg: what was given to cpu_pause_run()
 *
 * Runs with everything masked that can be. It must not sleep, allocate, print, take a
 * lock, or call what may be traced or probed; and it must not touch what it has made
 * invalid itself. When it changes translations, the TLBs must be invalidated before it
 * returns.
 *
 * Return: true if there is more to do. It is then called once more, in another pause,
 *	   after the other CPUs have run; cpu_pause_limit_reached() says when to stop.
 */
typedef bool (*cpu_pause_fn_t)(void *arg);

/**
 * struct cpu_pause_stats - what pauses took
 * @pauses: how many there were
 * @given_up: how often CPUs were let go because one did not stop in time
 * @longest_ns: the longest time from a request until all were let go, given up or not
 * @total_ns: the sum of these times
 */
struct cpu_pause_stats {
	u64 pauses;
	u64 given_up;
	u64 longest_ns;
	u64 total_ns;
};

#ifdef CONFIG_ARM64_CPU_PAUSE

int cpu_pause_run(cpu_pause_fn_t fn, void *arg, struct cpu_pause_stats *stats);
int cpu_pause_run_unmapped(cpu_pause_fn_t fn, void *arg, struct cpu_pause_stats *stats);
int cpu_pause_try_unmapped(cpu_pause_fn_t fn, void *arg, struct cpu_pause_stats *stats);
void cpu_pause_sleep(u64 ns);
bool cpu_pause_limit_reached(void);
bool cpu_pause_half_reached(void);

/*
 * For the driver of the interrupt controller: register what interrupts all other CPUs at once. It
 * is called with everything masked. It returns false, having done nothing, if the CPUs that it
 * would reach are not as many as @others.
 */
typedef bool (*cpu_pause_broadcast_t)(irq_hw_number_t hwirq, unsigned int others);
void cpu_pause_set_broadcast(cpu_pause_broadcast_t fn);

bool cpu_pause_knows_all_cpus(void);
bool cpu_pause_look_for_cpus(void);

/* For what stops CPUs, starts them, and handles exceptions. */
void cpu_pause_ipi(void);
void cpu_pause_lost_cpu(unsigned int cpu, bool leaves);
void cpu_pause_cpu_leaves(bool leaves);
void cpu_pause_started_cpu(unsigned int cpu);
bool cpu_pause_error_means_gone(int error);
bool cpu_pause_abandon(void);
bool cpu_pause_died(void);
void smp_send_cpu_pause(const struct cpumask *mask, unsigned int others, bool together);

#else /* CONFIG_ARM64_CPU_PAUSE */

static inline void cpu_pause_ipi(void) { }
static inline void cpu_pause_lost_cpu(unsigned int cpu, bool leaves) { }
static inline void cpu_pause_cpu_leaves(bool leaves) { }
static inline void cpu_pause_started_cpu(unsigned int cpu) { }
static inline bool cpu_pause_error_means_gone(int error) { return false; }
static inline bool cpu_pause_abandon(void) { return false; }
static inline bool cpu_pause_died(void) { return false; }

#endif /* CONFIG_ARM64_CPU_PAUSE */

#endif /* __ASM_CPU_PAUSE_H */
