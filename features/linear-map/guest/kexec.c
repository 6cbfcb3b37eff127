// SPDX-License-Identifier: GPL-2.0-only
/*
 * kexec IMAGE [WORD...]: load a kernel with our own command line and the words,
 * and jump to it.  With -p first, load it for a crash and stay.
 */
#include <fcntl.h>
#include <linux/kexec.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/reboot.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "files.h"

int main(int argc, char **argv)
{
	unsigned long flags = KEXEC_FILE_NO_INITRAMFS;
	int i = 1, crash, fd;
	char line[4096];
	ssize_t size;

	crash = argc > 1 && !strcmp(argv[1], "-p");
	i += crash;
	if (i >= argc) {
		fprintf(stderr, "usage: kexec [-p] IMAGE [WORD...]\n");
		return EXIT_FAILURE;
	}
	if (crash)
		flags |= KEXEC_FILE_ON_CRASH;
	fd = open(argv[i], O_RDONLY);
	size = line_read("/proc/cmdline", line, sizeof(line));
	if (fd < 0 || size < 0) {
		perror(argv[i]);
		return EXIT_FAILURE;
	}
	for (i++; i < argc; i++)
		size += snprintf(line + size, sizeof(line) - size, " %s", argv[i]);
	line[size] = '\0';
	if (syscall(__NR_kexec_file_load, fd, -1, strlen(line) + 1, line, flags)) {
		perror("kexec_file_load");
		return EXIT_FAILURE;
	}
	if (crash)
		return EXIT_SUCCESS;
	sync();
	syscall(SYS_reboot, 0xfee1dead, 672274793, RB_KEXEC, NULL);
	perror("reboot");
	return EXIT_FAILURE;
}
