// SPDX-License-Identifier: GPL-2.0
/*
 * First process of a guest: mounts what tests need, lays the overlay over the
 * root, brings the network up, and then keeps a root shell running for whoever
 * drives the machine.
 *
 * This is a program and not a shell script because each process that a script
 * starts costs an emulated machine several milliseconds.
 *
 * Kernel parameters it reads:
 *   guest.shell=TTY   where the shell runs; the kernel's console by default
 *   guest.ssh         start dropbear, if the root has it (keys: the overlay's
 *                     /root/.ssh/authorized_keys)
 *
 * Nothing here is fatal: a kernel that lacks something must still get a shell,
 * so that one can look at it. What should not have happened is told in the
 * kernel's log.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/route.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/klog.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "guest.h"

#define PATH	"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

/* The guest's address in QEMU's user-mode network, and the gateway there. */
#define ADDRESS	"10.0.2.15"
#define NETMASK	"255.255.255.0"
#define GATEWAY	"10.0.2.2"

/* A shell that ends at once, for want of its terminal, is not started anew in a busy loop. */
#define RESTART_US	200000

/* Of klogctl(): sets which messages the console gets; 1 leaves only an emergency. */
#define CONSOLE_LEVEL	8

/* Write a line to the kernel's log, which makes a message of each write. */
static void __attribute__((format(printf, 1, 2))) say(const char *format, ...)
{
	char line[512];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(line, sizeof(line), format, arguments);
	va_end(arguments);
	/* There is nobody else to tell if this fails. */
	text_write("/dev/kmsg", line);
}

/* --- File systems ----------------------------------------------------------- */

/* In this order: /dev/pts is made in /dev, /run must be there for everything else. */
static const struct {
	const char *type, *directory, *options;
} mounts[] = {
	{ "proc",	"/proc",		"" },
	{ "sysfs",	"/sys",			"" },
	{ "devtmpfs",	"/dev",			"" },
	{ "devpts",	"/dev/pts",		"gid=5,mode=620,ptmxmode=666" },
	{ "tmpfs",	"/dev/shm",		"mode=1777" },
	{ "tmpfs",	"/run",			"mode=755" },
	{ "tmpfs",	"/tmp",			"mode=1777" },
	{ "debugfs",	"/sys/kernel/debug",	"" },
	{ "tracefs",	"/sys/kernel/tracing",	"" },
	{ "cgroup2",	"/sys/fs/cgroup",	"" },
	{ "hugetlbfs",	"/dev/hugepages",	"" },
};

static void mount_all(void)
{
	for (size_t i = 0; i < sizeof(mounts) / sizeof(*mounts); i++) {
		const char *directory = mounts[i].directory;

		/* In sysfs the directory comes with the file system's type. */
		if (mkdir(directory, 0755) && errno != EEXIST)
			continue;
		if (!mount(mounts[i].type, directory, mounts[i].type, 0, mounts[i].options))
			continue;
		/* The kernel lacks the type, or has mounted devtmpfs itself. */
		if (errno != ENODEV && errno != EBUSY)
			say("guest-init: cannot mount %s: %m\n", directory);
	}
}

/* Without a console in the root, the kernel starts us without open files. */
static void open_standard_files(void)
{
	int fd = open("/dev/null", O_RDWR);

	while (fd >= 0 && fd < 2)
		fd = dup(fd);
	if (fd > 2)
		close(fd);
}

/* Write a file that the root does not have. */
static void supply(const char *path, const char *content)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

	if (fd < 0)
		return;
	if (write(fd, content, strlen(content)) < 0)
		say("guest-init: cannot write %s: %m\n", path);
	close(fd);
}

/* --- Other programs --------------------------------------------------------- */

/* Run a program to its end; false if it failed or is not there. */
static bool run(const char *const arguments[])
{
	pid_t child = fork();
	int status;

	if (!child) {
		execvp(arguments[0], (char *const *)arguments);
		/* The shell's status for a program that is not there. */
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		return false;
	return WIFEXITED(status) && !WEXITSTATUS(status);
}

/* The overlay is a tar archive on a disk of its own. */
static void lay_overlay(void)
{
	char path[PATH_MAX], serial[64], disk[PATH_MAX];
	DIR *disks = opendir("/sys/block");
	struct dirent *entry;

	if (!disks)
		return;
	while ((entry = readdir(disks))) {
		const char *const tar[] = { "busybox", "tar", "-x", "-f", disk, "-C", "/", NULL };

		if (strncmp(entry->d_name, "vd", 2))
			continue;
		snprintf(path, sizeof(path), "/sys/block/%s/serial", entry->d_name);
		line_read(path, serial, sizeof(serial));
		if (strcmp(serial, "overlay"))
			continue;
		snprintf(disk, sizeof(disk), "/dev/%s", entry->d_name);
		if (!run(tar))
			say("guest-init: the overlay could not be unpacked\n");
	}
	closedir(disks);
}

/* --- Network ---------------------------------------------------------------- */

static void set_address(struct sockaddr *address, const char *text)
{
	struct sockaddr_in *in = (struct sockaddr_in *)address;

	in->sin_family = AF_INET;
	inet_pton(AF_INET, text, &in->sin_addr);
}

static bool bring_up(int sock, const char *name)
{
	struct ifreq request = { };

	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
	if (ioctl(sock, SIOCGIFFLAGS, &request))
		return false;
	request.ifr_flags |= IFF_UP;
	return !ioctl(sock, SIOCSIFFLAGS, &request);
}

/* Bring the loopback interface up, and the network card if there is one. */
static void configure_network(void)
{
	struct ifreq request = { .ifr_name = "eth0" };
	struct rtentry route = { .rt_flags = RTF_UP | RTF_GATEWAY };
	/* A kernel without IPv4 has no such socket, and there is nothing to do. */
	int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (sock < 0)
		return;
	/* The loopback interface gets its address from the kernel. */
	bring_up(sock, "lo");
	/* Asked for an interface that is not there, the kernel has modprobe look for a driver. */
	if (!access("/sys/class/net/eth0", F_OK) && !ioctl(sock, SIOCGIFINDEX, &request)) {
		bool done;

		set_address(&request.ifr_addr, ADDRESS);
		done = !ioctl(sock, SIOCSIFADDR, &request);
		set_address(&request.ifr_netmask, NETMASK);
		done = done && !ioctl(sock, SIOCSIFNETMASK, &request) && bring_up(sock, "eth0");
		set_address(&route.rt_dst, "0.0.0.0");
		set_address(&route.rt_genmask, "0.0.0.0");
		set_address(&route.rt_gateway, GATEWAY);
		if (!done || ioctl(sock, SIOCADDRT, &route))
			say("guest-init: eth0 could not be configured: %m\n");
	}
	close(sock);
}

/* --- The kernel's command line ------------------------------------------------ */

/*
 * Look for a parameter, with or without a value.
 *
 * Return: its value, empty if it has none, or NULL if the parameter was not given. The next
 * call overwrites it.
 */
static const char *parameter(const char *name)
{
	static char line[4096];
	size_t length = strlen(name);

	line_read("/proc/cmdline", line, sizeof(line));
	for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) {
		if (strncmp(word, name, length))
			continue;
		if (word[length] == '=')
			return word + length + 1;
		if (!word[length])
			return "";
	}
	return NULL;
}

/* --- Shell ------------------------------------------------------------------ */

/*
 * Find the terminal for the shell. Where the shell shares it with the kernel's
 * console, the kernel keeps quiet: only an oops or a panic is still printed.
 */
static void find_terminal(char *terminal, size_t size)
{
	const char *given = parameter("guest.shell");
	char consoles[256];
	char *last;

	if (!given || !*given) {
		line_read("/sys/class/tty/console/active", consoles, sizeof(consoles));
		last = strrchr(consoles, ' ');
		given = last ? last + 1 : consoles;
		klogctl(CONSOLE_LEVEL, NULL, 1);
	}
	snprintf(terminal, size, "/dev/%s", given);
}

/* Start a shell in a session of its own, which the terminal controls. */
static pid_t start_shell(const char *terminal)
{
	pid_t child = fork();
	int fd;

	if (child)
		return child;
	setsid();
	fd = open(terminal, O_RDWR | O_NOCTTY);
	if (fd < 0)
		_exit(1);
	/* What an earlier shell left running may still hold the terminal: take it away. */
	ioctl(fd, TIOCSCTTY, 1);
	for (int standard = 0; standard <= 2; standard++)
		dup2(fd, standard);
	if (fd > 2)
		close(fd);
	execlp("sh", "sh", "-i", NULL);
	_exit(127);
}

int main(void)
{
	static const char *const dropbear[] = { "dropbear", "-R", "-E", "-s", NULL };
	char terminal[PATH_MAX];
	pid_t shell, ended;

	umask(022);
	setenv("PATH", PATH, 1);
	setenv("HOME", "/root", 1);
	setenv("LANG", "C.UTF-8", 1);
	setenv("TERM", "dumb", 1);

	mount_all();
	open_standard_files();
	if (symlink("/proc/self/fd", "/dev/fd") && errno != EEXIST)
		say("guest-init: cannot make /dev/fd: %m\n");
	link_ports();
	mkdir("/root", 0755);
	mkdir("/var", 0755);
	mkdir("/var/tmp", 0755);
	/* For pieces of commands on their way in, see pagewright/machine/transport.py. */
	mkdir("/run/command", 0755);

	lay_overlay();
	supply("/etc/passwd", "root::0:0:root:/root:/bin/sh\n");
	supply("/etc/group", "root:x:0:\ntty:x:5:\n");
	sethostname("guest", strlen("guest"));
	configure_network();
	if (parameter("guest.ssh")) {
		mkdir("/etc/dropbear", 0755);
		if (!run(dropbear))
			say("guest-init: guest.ssh was given, but dropbear could not be started\n");
	}

	find_terminal(terminal, sizeof(terminal));
	if (chdir("/root") && chdir("/"))
		say("guest-init: cannot change to the root: %m\n");
	say("guest-init: ready, shell on %s\n", terminal + strlen("/dev/"));
	setenv("PS1", "guest# ", 1);

	/* Orphans become children of process 1: each that ends is reaped here. */
	shell = start_shell(terminal);
	for (;;) {
		ended = wait(NULL);
		if (ended != shell && ended > 0)
			continue;
		/* With a shell there is always a child, so without one there is no shell. */
		usleep(RESTART_US);
		shell = start_shell(terminal);
	}
}
