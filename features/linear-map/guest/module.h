/* SPDX-License-Identifier: GPL-2.0-only */
/* Loading and unloading of the kernel's own modules. */
#ifndef MODULE_H
#define MODULE_H

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Each of these needs no other module and may come and go at any time. */
#define NR_MODULES	3
static const char * const module_names[NR_MODULES] = { "veth", "dummy", "crypto_null" };

static char module_wanted[64];
static char module_path[512];

static inline int module_visit(const char *path, const struct stat *status, int type,
			       struct FTW *walk)
{
	(void)status;
	if (type != FTW_F || strcmp(path + walk->base, module_wanted))
		return 0;
	snprintf(module_path, sizeof(module_path), "%s", path);
	return 1;
}

/* Open the file of a module; not from several threads. */
static inline int module_open(const char *name)
{
	struct utsname kernel;
	char top[128];

	uname(&kernel);
	snprintf(top, sizeof(top), "/lib/modules/%s", kernel.release);
	snprintf(module_wanted, sizeof(module_wanted), "%s.ko", name);
	if (nftw(top, module_visit, 16, FTW_PHYS) != 1) {
		errno = ENOENT;
		return -1;
	}
	return open(module_path, O_RDONLY | O_CLOEXEC);
}

static inline int module_load(int fd)
{
	return syscall(__NR_finit_module, fd, "", 0);
}

/* The kernel's own tests of a cipher keep its module busy for a moment. */
static inline int module_unload(const char *name)
{
	int tries, result;

	for (tries = 0; tries < 500; tries++) {
		result = syscall(__NR_delete_module, name, O_NONBLOCK);
		if (!result || errno != EWOULDBLOCK)
			break;
		usleep(10000);
	}
	return result;
}

#endif /* MODULE_H */
