/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Pools of huge pages as root sees them: counters in sysfs, page frames and
 * their flags in /proc.
 */
#ifndef POOL_H
#define POOL_H

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "files.h"

#define POOL_2M		(2UL << 20)
#define POOL_32M	(32UL << 20)
#define POOL_512M	(512UL << 20)
#define POOL_1G		(1UL << 30)

#define POOL_DIR	"/sys/kernel/mm/hugepages"

/* Bits of /proc/kpageflags. */
#define FLAG_BUDDY	(1UL << 10)
#define FLAG_HEAD	(1UL << 15)
#define FLAG_TAIL	(1UL << 16)
#define FLAG_HUGE	(1UL << 17)
#define FLAG_HWPOISON	(1UL << 19)
#define FLAG_NOPAGE	(1UL << 20)

#define KPAGEFLAGS	"/proc/kpageflags"
#define KPAGECOUNT	"/proc/kpagecount"

static inline size_t page_size(void)
{
	return sysconf(_SC_PAGESIZE);
}

/*
 * Huge pages of the default size, which one entry of the second level maps: 2, 32 or 512 MiB,
 * by the size of the base page.  They are the smallest whose struct pages can be freed.
 */
static inline unsigned long pool_default(void)
{
	static unsigned long size;

	if (!size)
		size = meminfo("Hugepagesize") << 10;
	return size;
}

/*
 * Have all slab caches give back what they do not use.  With KASAN they free here what
 * waits to be freed, of up to a thirty-second of all memory, so that a use of it is found.
 */
static inline void slabs_shrink(void)
{
	glob_t caches;

	if (glob("/sys/kernel/slab/*/shrink", 0, NULL, &caches))
		return;
	for (size_t i = 0; i < caches.gl_pathc; i++)
		text_write(caches.gl_pathv[i], "1");
	globfree(&caches);
}

/* Memory that is free or could be at once, in KiB; CPUs keep next to nothing to themselves. */
static inline long available(void)
{
	page_lists_shorten();
	sync();
	text_write("/proc/sys/vm/drop_caches", "3");
	slabs_shrink();
	text_write("/proc/sys/vm/stat_refresh", "1");
	return meminfo("MemFree") + meminfo("SReclaimable");
}

/* The file of a pool in a folder of pools: POOL_DIR, or a node's. */
static inline const char *pool_path_in(const char *folder, unsigned long size, const char *name)
{
	static __thread char path[160];

	snprintf(path, sizeof(path), "%s/hugepages-%lukB/%s", folder, size >> 10, name);
	return path;
}

static inline long pool_get(unsigned long size, const char *name)
{
	return number_read(pool_path_in(POOL_DIR, size, name), -1);
}

static inline int pool_set(unsigned long size, const char *name, unsigned long value)
{
	return number_write(pool_path_in(POOL_DIR, size, name), value);
}

static inline bool pool_exists(unsigned long size)
{
	return pool_get(size, "nr_hugepages") >= 0;
}

/* Pages that are freed where the kernel must not sleep are gone a little later. */
static inline bool pool_becomes(unsigned long size, const char *name, long value)
{
	int tries;

	for (tries = 0; tries < 500; tries++) {
		if (pool_get(size, name) == value)
			return true;
		usleep(10000);
	}
	printf("# %s of %lu kB is %ld, not %ld\n", name, size >> 10, pool_get(size, name), value);
	return false;
}

/*
 * An empty pool again, with nothing left of what was done with it.
 *
 * A page that is given back while the pool shrinks can end up free and surplus: the kernel
 * frees what is free, with its lock dropped, and only then counts the others as surplus.
 * Not every kernel frees such a page, unless it becomes part of the pool again.
 */
static inline bool pool_is_empty(unsigned long size)
{
	pool_set(size, "nr_hugepages", 0);
	pool_set(size, "nr_hugepages", pool_get(size, "surplus_hugepages"));
	pool_set(size, "nr_hugepages", 0);
	return pool_becomes(size, "nr_hugepages", 0) && pool_becomes(size, "free_hugepages", 0) &&
	       pool_becomes(size, "surplus_hugepages", 0) &&
	       pool_becomes(size, "resv_hugepages", 0);
}

/* Map so many huge pages of this process's own; NULL and errno. */
static inline char *pool_map(unsigned long size, int count)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB;
	void *p;

	flags |= __builtin_ctzl(size) << 26;
	p = mmap(NULL, size * count, PROT_READ | PROT_WRITE, flags, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

/* A file in memory of huge pages of some size; -1 and errno. */
static inline int pool_file(unsigned long size)
{
	return memfd_create("pool", MFD_CLOEXEC | MFD_HUGETLB |
			    (unsigned int)__builtin_ctzl(size) << MAP_HUGE_SHIFT);
}

/* What a file of numbers by page says about some of them; false if not all can be read. */
static inline bool pages_read(const char *path, unsigned long page, uint64_t *values,
			      size_t count)
{
	size_t done = 0, size = count * sizeof(*values);
	ssize_t got = 1;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	while (done < size && got > 0) {
		got = pread(fd, (char *)values + done, size - done,
			    page * sizeof(*values) + done);
		done += got > 0 ? got : 0;
	}
	close(fd);
	return done == size;
}

/* The frame number of a mapped page; 0 if it is not there. */
static inline unsigned long frame_of(const void *p)
{
	uint64_t entry;

	if (!pages_read("/proc/self/pagemap", (unsigned long)p / page_size(), &entry, 1))
		return 0;
	/* Bit 63: present; bits 0 to 54: the frame number. */
	return entry >> 63 ? entry & ((1UL << 55) - 1) : 0;
}

static inline uint64_t frame_flags(unsigned long frame)
{
	uint64_t flags = 0;

	return pages_read(KPAGEFLAGS, frame, &flags, 1) ? flags : FLAG_NOPAGE;
}

/* How many of some frames have all flags of a mask. */
static inline long frames_with(unsigned long frame, size_t count, uint64_t mask)
{
	uint64_t *flags = malloc(count * sizeof(*flags));
	long found = 0;
	size_t i;

	if (!flags || !pages_read(KPAGEFLAGS, frame, flags, count))
		found = -1;
	for (i = 0; i < count && found >= 0; i++)
		found += (flags[i] & mask) == mask;
	free(flags);
	return found;
}

#endif /* POOL_H */
