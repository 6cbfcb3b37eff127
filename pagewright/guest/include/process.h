/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Processes: how programs of several features end where they cannot go on, and how
 * they run a command.
 */
#ifndef PROCESS_H
#define PROCESS_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The status of a program that was to run a command and has failed itself, as env(1) has it. */
#define COMMAND_NOT_RUN	125

/* Say what failed, and why by errno, and exit. */
static inline void __attribute__((noreturn)) die_with(int status, const char *what)
{
	perror(what);
	exit(status);
}

static inline void __attribute__((noreturn)) die(const char *what)
{
	die_with(EXIT_FAILURE, what);
}

/* Become a command, or exit as a shell does that does not find it. */
static inline void __attribute__((noreturn)) command_become(char *command[])
{
	execvp(command[0], command);
	fprintf(stderr, "%s: %s\n", command[0], strerror(errno));
	_exit(127);
}

/* What a shell makes of the status of a process that has ended. */
static inline int shell_status(int status)
{
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Run a command to its end; its status as a shell gives it, or -1 and errno. */
static inline int command_run(char *command[])
{
	pid_t child;
	int status;

	child = fork();
	if (child == 0)
		command_become(command);
	if (child < 0 || waitpid(child, &status, 0) != child)
		return -1;
	return shell_status(status);
}

#endif /* PROCESS_H */
