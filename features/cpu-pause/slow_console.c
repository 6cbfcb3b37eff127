// SPDX-License-Identifier: GPL-2.0-only
/*
 * This module is a slow console. A panic takes a second longer before it stops the other CPUs, and
 * with always=1 whoever prints is in this console most of the time. It says before the end of a
 * panic, where all that is left is printed, whether it was given the panic already.
 */
#include <linux/atomic.h>
#include <linux/console.h>
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/notifier.h>
#include <linux/panic_notifier.h>
#include <linux/printk.h>
#include <linux/string.h>

#define DELAY_MS	20

static bool always;
module_param(always, bool, 0644);
MODULE_PARM_DESC(always, "Be slow for whoever prints, and not only once on the way to a panic");

static unsigned int panic_delay_ms = 1000;
module_param(panic_delay_ms, uint, 0);
MODULE_PARM_DESC(panic_delay_ms, "How much longer a panic takes");

static atomic_t has_delayed;

static bool panic_is_printed;

static void slow_console_write(struct console *console, const char *text, unsigned int length)
{
	if (strnstr(text, "Kernel panic - not syncing", length))
		panic_is_printed = true;

	/*
	 * Who writes has interrupts off and pseudo-NMIs on, so another CPU can pause this one
	 * meanwhile.
	 */
	if (oops_in_progress) {
		if (!atomic_xchg(&has_delayed, 1))
			mdelay(panic_delay_ms);
	} else if (always) {
		mdelay(DELAY_MS);
	}
}

static struct console slow_console = {
	.name = "slow_console",
	.write = slow_console_write,
	.flags = CON_ENABLED,
	.index = -1,
};

static int tell(struct notifier_block *block, unsigned long action, void *data)
{
	pr_emerg("slow_console: the panic is %sprinted\n", panic_is_printed ? "" : "not ");

	return NOTIFY_DONE;
}

static struct notifier_block on_panic = { .notifier_call = tell };

static int __init slow_console_init(void)
{
	register_console(&slow_console);
	atomic_notifier_chain_register(&panic_notifier_list, &on_panic);

	return 0;
}
module_init(slow_console_init);

static void __exit slow_console_exit(void)
{
	atomic_notifier_chain_unregister(&panic_notifier_list, &on_panic);
	unregister_console(&slow_console);
}
module_exit(slow_console_exit);

MODULE_DESCRIPTION("A slow console, for tests");
MODULE_LICENSE("GPL");
