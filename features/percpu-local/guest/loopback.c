// SPDX-License-Identifier: GPL-2.0-only
/*
 * Send a given amount over TCP connections of this machine with itself.
 *
 *	loopback requests PAIRS NUMBER
 *	loopback stream PAIRS MEGABYTES
 *
 * PAIRS clients and as many servers run at the same time, each a process on a
 * CPU of its own, as long as there are enough: where the scheduler would place
 * them differs from run to run, and with it what they cost.  With requests a
 * client sends a byte and waits for one in return, NUMBER times; with stream it
 * sends MEGABYTES in pieces of 64 KiB.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process.h"

#define PIECE	65536

static char piece[PIECE];

/* Have this process run on one CPU, the same for the same number. */
static void stay_on(int number)
{
	cpu_set_t cpus;

	CPU_ZERO(&cpus);
	CPU_SET(number % sysconf(_SC_NPROCESSORS_ONLN), &cpus);
	if (sched_setaffinity(0, sizeof(cpus), &cpus))
		die("sched_setaffinity");
}

/* Send what a socket gets back until the other side is done. */
static void answer(int fd)
{
	char byte;

	while (read(fd, &byte, 1) == 1)
		if (write(fd, &byte, 1) != 1)
			die("write");
}

static void ask(int fd, long number)
{
	char byte = 0;

	while (number--)
		if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1)
			die("request");
}

static void drain(int fd)
{
	while (read(fd, piece, PIECE) > 0)
		;
}

static void fill(int fd, long megabytes)
{
	long pieces = megabytes * (1024 * 1024 / PIECE);
	size_t sent;
	ssize_t step;

	while (pieces--)
		for (sent = 0; sent < PIECE; sent += step) {
			step = write(fd, piece + sent, PIECE - sent);
			if (step <= 0)
				die("write");
		}
}

/* The kernel tunes buffers by the time that passes, unless their size was set. */
static int new_socket(void)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), size = 2 * PIECE;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)) ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)))
		die("socket");
	return fd;
}

/* Start a server and a client; the server accepts one connection. */
static void start_pair(int number, int requests, long amount)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t length = sizeof(address);
	int listener = new_socket(), fd, one = 1;

	if (bind(listener, (struct sockaddr *)&address, length) ||
	    listen(listener, 1) || getsockname(listener, (struct sockaddr *)&address, &length))
		die("listen");
	if (!fork()) {
		stay_on(2 * number);
		fd = accept(listener, NULL, NULL);
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		if (requests)
			answer(fd);
		else
			drain(fd);
		_exit(0);
	}
	if (!fork()) {
		stay_on(2 * number + 1);
		fd = new_socket();
		if (connect(fd, (struct sockaddr *)&address, length))
			die("connect");
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
		if (requests)
			ask(fd, amount);
		else
			fill(fd, amount);
		_exit(0);
	}
	close(listener);
}

int main(int argc, char *argv[])
{
	int requests = argc == 4 && !strcmp(argv[1], "requests");
	int stream = argc == 4 && !strcmp(argv[1], "stream");
	int pairs, status, failed = 0;

	if (!requests && !stream) {
		fprintf(stderr, "usage: loopback requests|stream PAIRS AMOUNT\n");
		return 2;
	}
	for (pairs = atoi(argv[2]); pairs > 0; pairs--)
		start_pair(pairs - 1, requests, atol(argv[3]));
	while (wait(&status) > 0)
		failed |= status;
	return failed ? 1 : 0;
}
