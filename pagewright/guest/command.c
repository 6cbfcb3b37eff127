// SPDX-License-Identifier: GPL-2.0
/*
 * Run a command for whoever drives the machine, and send its output to the host.
 *
 * The command is the argument, or standard input if there is none, in base64, so
 * that any text survives a terminal. A shell runs it in the home directory. Its
 * output leaves through a port of the virtio console, and a line with its status
 * and the size of its output goes to the terminal, to say that all is done (see
 * pagewright/machine/transport.py).
 *
 * A shell could do the same with base64, cat, wc and rm, but each process costs
 * an emulated machine 20 ms, and tests run thousands of commands.
 */
#define _GNU_SOURCE /* O_TMPFILE */
#include <errno.h>
#include <stdlib.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "guest.h"
#include "process.h"

#define PORT	"/dev/command-output"

/* How long the port's name may take to come; it is there by the first command as a rule. */
#define PORT_TRIES	1000
#define PORT_WAIT_US	1000

static void fail(const char *what)
{
	printf("%s: %m\n", what);
	exit(1);
}

/* Read standard input to its end. */
static char *read_all(void)
{
	size_t length = 0, size = 4096;
	char *text = malloc(size);
	ssize_t part;

	while (text && (part = read(STDIN_FILENO, text + length, size - length - 1))) {
		if (part < 0)
			fail("standard input");
		length += part;
		if (size - length < 2) {
			size *= 2;
			text = realloc(text, size);
		}
	}
	if (!text)
		fail("memory");
	text[length] = '\0';
	return text;
}

/* Decode base64 in place, up to its padding; newlines are passed over. */
static void decode(char *text)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	unsigned int bits = 0, count = 0;
	char *end = text;

	for (const char *c = text; *c && *c != '='; c++) {
		const char *digit = strchr(digits, *c);

		if (*c == '\n')
			continue;
		if (!digit) {
			errno = EINVAL;
			fail("the command");
		}
		bits = bits << 6 | (digit - digits);
		count += 6;
		if (count >= 8) {
			count -= 8;
			*end++ = bits >> count;
		}
	}
	*end = '\0';
}

static int open_port(void)
{
	int fd = open(PORT, O_WRONLY | O_CLOEXEC);

	for (int try = 0; fd < 0 && errno == ENOENT && try < PORT_TRIES; try++) {
		link_ports();
		usleep(PORT_WAIT_US);
		fd = open(PORT, O_WRONLY | O_CLOEXEC);
	}
	if (fd < 0)
		fail(PORT);
	return fd;
}

/* Run the command with its output going to a file; return its status as a shell gives it. */
static int run(const char *command, int output)
{
	pid_t child = fork();
	int status;

	if (child < 0)
		fail("fork");
	if (!child) {
		const char *home = getenv("HOME");
		int null = open("/dev/null", O_RDONLY);

		dup2(null, STDIN_FILENO);
		dup2(output, STDOUT_FILENO);
		dup2(output, STDERR_FILENO);
		if (null > STDERR_FILENO)
			close(null);
		if (!home || chdir(home))
			dprintf(STDERR_FILENO, "there is no home directory\n");
		execlp("sh", "sh", "-c", command, NULL);
		_exit(127);
	}
	while (waitpid(child, &status, 0) != child) {
		if (errno != EINTR)
			fail("wait");
	}
	return shell_status(status);
}

int main(int argc, char *argv[])
{
	char *command = argc > 1 ? argv[1] : read_all();
	struct stat written;
	off_t offset = 0;
	int output, status;

	decode(command);
	/*
	 * The output goes to a file first, which has no name and ends with its last
	 * user: what the command leaves running in the background may go on writing
	 * there without getting into a later command's output.
	 */
	output = open("/run", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (output < 0)
		fail("a file in /run");
	status = run(command, output);
	if (fstat(output, &written))
		fail("the output");
	printf("%d %lld\n", status, (long long)written.st_size);
	fflush(stdout);
	if (written.st_size) {
		int port = open_port();

		while (offset < written.st_size) {
			if (sendfile(port, output, &offset, written.st_size - offset) <= 0)
				fail("sending the output");
		}
	}
	return 0;
}
