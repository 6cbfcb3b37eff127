/* SPDX-License-Identifier: GPL-2.0-only */
/* Memory of memfd_secret(2): its pages are taken out of the linear map. */
#ifndef SECRET_H
#define SECRET_H

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef __NR_memfd_secret
#define __NR_memfd_secret	447
#endif

/*
 * Map secret memory, untouched.  The file is closed: unmapping frees the pages.
 * NULL and errno if that fails.
 */
static inline void *secret_map(size_t size)
{
	void *p = MAP_FAILED;
	int fd, error;

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
