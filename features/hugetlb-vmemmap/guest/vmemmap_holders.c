// SPDX-License-Identifier: GPL-2.0-only
/*
 * Huge pages of the default size are held, written and given back by several threads, and
 * some of their pages have memory errors meanwhile, until a file is there.
 *
 *	vmemmap_holders FILE
 *
 * Others may change the pool, demote its pages and plug memory at the same time:
 * a thread that gets no huge page waits a little. What must hold is that each
 * page has what was written to it for as long as it is held, also when it moves
 * because of a soft offline, that an error is heard of, and that a page with an
 * error can be repaired afterwards.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "memory_error.h"
#include "pool.h"

#define THREADS		4

/* One in so many pages that are held gets an error, and one is taken offline. */
#define ERROR_IN	16
#define OFFLINE_IN	8

struct holder {
	pthread_t thread;
	unsigned int seed;
	const char *stop;
	unsigned long holds;
	unsigned long errors;
	unsigned long offlines;
	unsigned long wrong;
	unsigned long unheard;
};

/*
 * Have an error in a page that is mapped, hear of it, let go of the huge page and
 * repair it. False if there was no error, because the kernel was busy with another
 * one or was moving the page; it is still mapped then.
 */
static bool have_error(struct holder *holder, char *p, size_t offset)
{
	unsigned long frame = frame_of(p) + offset / page_size();
	int tries;

	if (fault_from_error_at(p + offset, page_size()) < 0)
		return false;
	holder->errors++;
	holder->unheard += fault_at(p + offset) != BUS_MCEERR_AR;
	munmap(p, pool_default());
	/* The page leaves the pool when its last user is gone, which may take a little. */
	for (tries = 0; tries < 100 && frame_flags(frame) & FLAG_HWPOISON; tries++) {
		number_write(UNPOISON, frame);
		usleep(10000);
	}
	return true;
}

static void *hold(void *data)
{
	struct holder *holder = data;
	size_t offset;
	char *p;

	while (access(holder->stop, F_OK)) {
		p = pool_map(pool_default(), 1);
		if (!p || fault_at(p)) {
			if (p)
				munmap(p, pool_default());
			usleep(1000);
			continue;
		}
		fill(p, pool_default(), holder->holds);
		offset = rand_r(&holder->seed) % (pool_default() / page_size()) * page_size();
		if (!(holder->holds % OFFLINE_IN)) {
			unsigned long frame = frame_of(p) + offset / page_size();

			/* It may move, or not for want of a page to move to. */
			if (!madvise(p + offset, page_size(), MADV_SOFT_OFFLINE)) {
				holder->offlines++;
				number_write(UNPOISON, frame);
			}
		}
		holder->wrong += wrong_pages(p, pool_default(), holder->holds);
		if (++holder->holds % ERROR_IN || !have_error(holder, p, offset))
			munmap(p, pool_default());
	}
	return NULL;
}

/* Repair what an error has moved away from meanwhile; how many pages stay bad. */
static unsigned long repair_all(void)
{
	enum { AT_ONCE = 4096 };
	static uint64_t flags[AT_ONCE];
	unsigned long first, bad = 0;
	ssize_t got;
	int fd, i;

	fd = open(KPAGEFLAGS, O_RDONLY | O_CLOEXEC);
	for (first = 0; (got = pread(fd, flags, sizeof(flags), first * sizeof(*flags))) > 0;
	     first += AT_ONCE) {
		for (i = 0; i < got / (ssize_t)sizeof(*flags); i++) {
			if (!(flags[i] & FLAG_HWPOISON))
				continue;
			number_write(UNPOISON, first + i);
			bad += !!(frame_flags(first + i) & FLAG_HWPOISON);
		}
	}
	close(fd);
	return bad;
}

int main(int argc, char **argv)
{
	struct holder holders[THREADS] = { 0 }, all = { 0 };
	int i;

	if (argc != 2) {
		fprintf(stderr, "usage: vmemmap_holders FILE\n");
		return 2;
	}
	catch_faults();
	for (i = 0; i < THREADS; i++) {
		holders[i].seed = i;
		holders[i].stop = argv[1];
		if (pthread_create(&holders[i].thread, NULL, hold, holders + i)) {
			fprintf(stderr, "no thread\n");
			return 2;
		}
	}
	for (i = 0; i < THREADS; i++) {
		pthread_join(holders[i].thread, NULL);
		all.holds += holders[i].holds;
		all.errors += holders[i].errors;
		all.offlines += holders[i].offlines;
		all.wrong += holders[i].wrong;
		all.unheard += holders[i].unheard;
	}
	printf("holds=%lu\nerrors=%lu\nofflines=%lu\nwrong=%lu\nunheard=%lu\nunrepaired=%lu\n",
	       all.holds, all.errors, all.offlines, all.wrong, all.unheard, repair_all());
	return 0;
}
