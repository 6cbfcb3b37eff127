// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ways to die while all other CPUs are paused. One of them may hold what the report needs,
 * so they must be let go before anything is printed. And a way to lose a CPU while it comes.
 */
#include "lkdtm.h"
#include <linux/bug.h>
#include <linux/cpuhotplug.h>
#include <linux/kdebug.h>
#include <linux/notifier.h>
#include <linux/panic.h>

#include <asm/cpu_pause.h>

static bool panic_paused(void *arg)
{
	panic("dies while all other CPUs are paused, as asked\n");

	return false;
}

static bool fault_paused(void *arg)
{
	WRITE_ONCE(*(int *)16, 0);

	return false;
}

static bool warn_paused(void *arg)
{
	WARN(1, "warns while all other CPUs are paused, as asked\n");

	return false;
}

/* Nobody but whoever reads this knows that it goes on until the stack ends. */
static noinline bool exhaust_stack_paused(void *arg)
{
	char room[512] = { };

	return READ_ONCE(room[0]) || exhaust_stack_paused(arg) || READ_ONCE(room[1]);
}

/* As what saves a dump may, if it finds that a CPU does not stop. */
static int warn_of_death(struct notifier_block *nb, unsigned long action, void *data)
{
	WARN(1, "warns of a death in a pause, as asked\n");

	return NOTIFY_DONE;
}

static struct notifier_block warns_of_death = { .notifier_call = warn_of_death };

static void die_paused(cpu_pause_fn_t how)
{
	int ret = cpu_pause_run(how, NULL, NULL);

	if (ret)
		pr_err("XFAIL: CPUs cannot be paused (%d)\n", ret);
	else
		pr_err("FAIL: survived what is fatal in a pause\n");
}

static void lkdtm_CPU_PAUSE_PANIC(void)
{
	die_paused(panic_paused);
}

static void lkdtm_CPU_PAUSE_FAULT(void)
{
	die_paused(fault_paused);
}

static void lkdtm_CPU_PAUSE_STACK(void)
{
	if (IS_ENABLED(CONFIG_VMAP_STACK))
		die_paused(exhaust_stack_paused);
	else
		pr_err("XFAIL: nothing guards the end of stacks (CONFIG_VMAP_STACK)\n");
}

static void lkdtm_CPU_PAUSE_WARNING(void)
{
	die_paused(warn_paused);
}

static void lkdtm_CPU_PAUSE_FAULT_WARNING(void)
{
	if (register_die_notifier(&warns_of_death))
		return;
	die_paused(fault_paused);
	unregister_die_notifier(&warns_of_death);
}

static int never_arrive(unsigned int cpu)
{
	for (;;)
		cpu_relax();

	return 0;
}

/* CPUs that come from now on have their tasks, and do not get on line. The state is of no arm64. */
static void lkdtm_CPU_PAUSE_LOSE_CPU(void)
{
	int ret = cpuhp_setup_state_nocalls(CPUHP_AP_ARM_TWD_STARTING, "lkdtm:lose_cpu",
					    never_arrive, NULL);

	if (ret)
		pr_err("XFAIL: no CPU hotplug state to be had (%d)\n", ret);
}

static struct crashtype crashtypes[] = {
	CRASHTYPE(CPU_PAUSE_PANIC),
	CRASHTYPE(CPU_PAUSE_FAULT),
	CRASHTYPE(CPU_PAUSE_STACK),
	CRASHTYPE(CPU_PAUSE_WARNING),
	CRASHTYPE(CPU_PAUSE_FAULT_WARNING),
	CRASHTYPE(CPU_PAUSE_LOSE_CPU),
};

struct crashtype_category cpu_pause_crashtypes = {
	.crashtypes = crashtypes,
	.len	    = ARRAY_SIZE(crashtypes),
};
