/* SPDX-License-Identifier: GPL-2.0-only */
/* Memory of memfd_secret(2): its pages are taken out of the linear map. */
#ifndef SECRET_H
#define SECRET_H

#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef __NR_memfd_secret
#define __NR_memfd_secret	447
#endif

/*
 * Map secret memory, untouched.  The file is closed: unmapping frees the pages.
 * NULL and errno if that fails.
 *
 * Each page that is touched counts as locked memory, whoever the user is, and
 * the usual limit of 8 MiB is 128 pages of 64 KiB.  The user who may have no
 * more than the limit still has what is below it.
 */
static inline void *secret_map(size_t size)
{
	const struct rlimit no_limit = { RLIM_INFINITY, RLIM_INFINITY };
	void *p = MAP_FAILED;
	int fd, error;

	setrlimit(RLIMIT_MEMLOCK, &no_limit);
	fd = syscall(__NR_memfd_secret, 0);
	if (fd < 0)
		return NULL;
	if (!ftruncate(fd, size))
		p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	error = errno;
	close(fd);
	errno = error;
	return p == MAP_FAILED ? NULL : p;
}

#endif /* SECRET_H */
