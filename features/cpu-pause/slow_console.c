// SPDX-License-Identifier: GPL-2.0-only
/*
 * This module is a slow console. A panic takes a second longer before it stops the other CPUs, and
 * with always=1 whoever prints is in this console most of the time.
 */
#include <linux/atomic.h>
#include <linux/console.h>
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/printk.h>

#define PANIC_DELAY_MS	1000
#define DELAY_MS	20

static bool always;
module_param(always, bool, 0644);
MODULE_PARM_DESC(always, "Be slow for whoever prints, and not only once on the way to a panic");

static atomic_t has_delayed;

static void slow_console_write(struct console *console, const char *text, unsigned int length)
{
	/*
	 * Who writes has interrupts off and pseudo-NMIs on, so another CPU can pause this one
	 * meanwhile.
	 */
	if (oops_in_progress) {
		if (!atomic_xchg(&has_delayed, 1))
			mdelay(PANIC_DELAY_MS);
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

static int __init slow_console_init(void)
{
	register_console(&slow_console);

	return 0;
}
module_init(slow_console_init);

static void __exit slow_console_exit(void)
{
	unregister_console(&slow_console);
}
module_exit(slow_console_exit);

MODULE_DESCRIPTION("A slow console, for tests");
MODULE_LICENSE("GPL");
