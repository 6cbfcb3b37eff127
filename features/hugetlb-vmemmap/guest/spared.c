// SPDX-License-Identifier: GPL-2.0-only
/*
 * spared PROGRAM [ARGUMENTS]: run a program that no SIGBUS reaches.
 *
 * Since Linux 6.11 madvise(MADV_HWPOISON) ends the caller with a SIGBUS that cannot be
 * ignored; the kernel's own hugetlb-read-hwpoison does not expect it. As its tracer we
 * take it away. A load that faults would fault for ever: the program is ended after
 * more signals than any test injects.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process.h"

#define MOST 100

int main(int argc, char **argv)
{
	int taken = 0, status;
	pid_t child;

	if (argc < 2)
		return 2;
	child = fork();
	if (child == 0) {
		ptrace(PTRACE_TRACEME, 0, 0, 0);
		command_become(argv + 1);
	}
	while (child > 0 && waitpid(child, &status, 0) == child) {
		long number;

		if (!WIFSTOPPED(status))
			return shell_status(status);
		number = WSTOPSIG(status);
		/* A tracee stops with SIGTRAP when it has become the program. */
		if (number == SIGTRAP || (number == SIGBUS && ++taken <= MOST))
			number = 0;
		ptrace(PTRACE_CONT, child, 0, number);
	}
	perror("spared");
	return 1;
}
