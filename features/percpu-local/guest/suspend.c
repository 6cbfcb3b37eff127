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
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define STATE	"/sys/power/state"

static void die(const char *what)
{
	perror(what);
	exit(EXIT_FAILURE);
}

int main(int argc, char *argv[])
{
	struct itimerspec alarm = { .it_value.tv_sec = argc == 2 ? atol(argv[1]) : 0 };
	static const char freeze[] = "freeze";
	int timer, state;
	unsigned long long ended;

	if (alarm.it_value.tv_sec < 3) {
		fprintf(stderr, "usage: suspend SECONDS, which are at least 3\n");
		return 2;
	}

	state = open(STATE, O_WRONLY);
	if (state < 0)
		die(STATE);
	timer = timerfd_create(CLOCK_BOOTTIME_ALARM, 0);
	if (timer < 0 || timerfd_settime(timer, 0, &alarm, NULL))
		die("timer");
	if (write(state, freeze, strlen(freeze)) < 0)
		die(STATE);
	if (read(timer, &ended, sizeof(ended)) != sizeof(ended))
		die("timer");
	return 0;
}
