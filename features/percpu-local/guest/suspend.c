// SPDX-License-Identifier: GPL-2.0-only
/*
 * Suspend to idle, and have the real-time clock wake the machine after some seconds.
 *
 *	suspend SECONDS
 *
 * A timer of CLOCK_BOOTTIME_ALARM goes on while the machine sleeps: when the kernel
 * suspends, it sets the alarm of the real-time clock to when that timer ends. This
 * takes no driver that gives user space the clock. The kernel does not suspend if less
 * than 2 seconds are left by then.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "files.h"
#include "process.h"

#define STATE	"/sys/power/state"

int main(int argc, char *argv[])
{
	struct itimerspec alarm = { .it_value.tv_sec = argc == 2 ? atol(argv[1]) : 0 };
	unsigned long long ended;
	int timer;

	if (alarm.it_value.tv_sec < 3) {
		fprintf(stderr, "usage: suspend SECONDS, which are at least 3\n");
		return 2;
	}

	timer = timerfd_create(CLOCK_BOOTTIME_ALARM, 0);
	if (timer < 0 || timerfd_settime(timer, 0, &alarm, NULL))
		die("timer");
	errno = text_write(STATE, "freeze");
	if (errno)
		die(STATE);
	if (read(timer, &ended, sizeof(ended)) != sizeof(ended))
		die("timer");
	return 0;
}
