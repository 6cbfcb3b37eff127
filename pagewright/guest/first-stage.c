// SPDX-License-Identifier: GPL-2.0-only
/*
 * The first process of the boot that installs a Debian (see debian.py), from an
 * initramfs that has nothing but this program and the modules that Debian's
 * kernel needs for its disk: 0.ko, 1.ko and so on, in the order of loading. It
 * goes over to the root on the disk, and has second-stage.sh do the rest.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STEP(call)					\
	do {						\
		if ((call) < 0) {			\
			perror("first stage: " #call);	\
			return 1;			\
		}					\
	} while (0)

int main(void)
{
	char name[16];
	int number, module, wait;

	/* Most kernels have these folders in a small initramfs of their own. */
	mkdir("/dev", 0755);
	mkdir("/root", 0755);
	STEP(mount("devtmpfs", "/dev", "devtmpfs", 0, NULL));
	for (number = 0; ; number++) {
		snprintf(name, sizeof(name), "/%d.ko", number);
		module = open(name, O_RDONLY | O_CLOEXEC);
		if (module < 0)
			break;
		STEP(syscall(SYS_finit_module, module, "", 0));
		close(module);
	}
	/* The partitions are found a moment after the module is loaded. */
	for (wait = 0; wait < 100 && access(ROOT_DEVICE, F_OK); wait++)
		usleep(100000);
	STEP(mount(ROOT_DEVICE, "/root", "ext4", 0, NULL));
	STEP(mount("/dev", "/root/dev", NULL, MS_MOVE, NULL));
	STEP(chdir("/root"));
	STEP(mount(".", "/", NULL, MS_MOVE, NULL));
	STEP(chroot("."));
	STEP(execl("/second-stage", "second-stage", NULL));
	return 1;
}
