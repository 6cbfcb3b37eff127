// SPDX-License-Identifier: GPL-2.0-only
/*
 * A panic takes a second longer before it stops the other CPUs, as on a machine with a slow
 * console. This module is that console.
 */
#include <linux/atomic.h>
#include <linux/console.h>
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/printk.h>

#define DELAY_MS	1000

static atomic_t has_delayed;

static void slow_panic_write(struct console *console, const char *text, unsigned int length)
{
	/*
	 * A panic has interrupts off and pseudo-NMIs on, so another CPU can pause this one
	 * meanwhile.
	 */
	if (oops_in_progress && !atomic_xchg(&has_delayed, 1))
		mdelay(DELAY_MS);
}

static struct console slow_panic = {
	.name = "slow_panic",
	.write = slow_panic_write,
	.flags = CON_ENABLED,
	.index = -1,
};

static int __init slow_panic_init(void)
{
	register_console(&slow_panic);

	return 0;
}
module_init(slow_panic_init);

static void __exit slow_panic_exit(void)
{
	unregister_console(&slow_panic);
}
module_exit(slow_panic_exit);

MODULE_DESCRIPTION("A console that makes a panic take longer, for tests");
MODULE_LICENSE("GPL");
