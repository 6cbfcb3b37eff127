// SPDX-License-Identifier: GPL-2.0-only
/*
 * Everyone reads all struct pages while huge pages come and go.
 *
 * Some threads walk all page frames, through every file that does so and by
 * compaction.  Others map huge pages and look at the flags of all their
 * subpages: as long as a page is held they are those of one head and its tails.
 * Meanwhile the pools are filled, demoted and emptied, again and again.
 *
 * All of this holds whether struct pages of huge pages are freed or not.  They are
 * if the kernel can do that.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>

#include "kselftest_harness.h"

#include "pool.h"

#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	600

#define OPTIMIZE	"/proc/sys/vm/hugetlb_optimize_vmemmap"
#define PAGE_LISTS	"/proc/sys/vm/percpu_pagelist_high_fraction"

#define HOLDERS		2

/* How often a holder looks at a page before it lets go of it. */
#define LOOKS		3

/*
 * What may be missing at the end, in KiB: lists of free pages and of objects that
 * each CPU keeps, and tables that map the vmemmap in pages from now on, with base
 * pages of 4 KiB one for every 128 MiB of memory.  If the struct pages of only one
 * round's pages were lost each time, 28 KiB of each of 2 MiB, it would be several
 * times more.
 */
#define SLACK		8192

#define CHUNK		(1UL << 16)

/*
 * How many chunks of a file are read before it is the next file's turn.  What page_owner has
 * to say of one page takes a read of its own, and all of it takes minutes.
 */
#define CHUNKS		16

/* The first two are always there; the others are if the kernel has them. */
static const char * const walked[] = {
	KPAGEFLAGS,
	KPAGECOUNT,
	"/proc/kpagecgroup",
	"/sys/kernel/mm/page_idle/bitmap",
	"/sys/kernel/debug/page_owner",
};

struct work {
	unsigned long size;
	bool stop;
	/* What came of it; each holder and walker adds to them. */
	unsigned long walks[ARRAY_SIZE(walked)];
	unsigned long compactions;
	unsigned long holds;
	unsigned long wrong;
};

static bool stopped(struct work *work)
{
	return __atomic_load_n(&work->stop, __ATOMIC_RELAXED);
}

static void count(unsigned long *counter)
{
	__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

/* Read on in a file, at its beginning after its end; true if something could be read. */
static bool walk(struct work *work, int fd, char *buffer)
{
	bool some = false;
	ssize_t got = 0;
	int i;

	for (i = 0; i < CHUNKS && !stopped(work); i++) {
		got = read(fd, buffer, CHUNK);
		if (got <= 0)
			break;
		some = true;
	}
	if (got <= 0)
		lseek(fd, 0, SEEK_SET);
	return some;
}

static void *walk_all(void *data)
{
	struct work *work = data;
	char *buffer = malloc(CHUNK);
	int fd[ARRAY_SIZE(walked)];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(walked); i++)
		fd[i] = open(walked[i], O_RDONLY | O_CLOEXEC);
	while (buffer && !stopped(work)) {
		for (i = 0; i < ARRAY_SIZE(walked); i++) {
			if (fd[i] >= 0 && walk(work, fd[i], buffer))
				count(&work->walks[i]);
		}
	}
	for (i = 0; i < ARRAY_SIZE(walked); i++) {
		if (fd[i] >= 0)
			close(fd[i]);
	}
	free(buffer);
	return NULL;
}

/*
 * A bus error ends the test; which one it was, and how the pool stood, tells whether the
 * pool had no page for a reservation, the page was poisoned, or a file could not be read.
 */
static void tell_of_bus_error(int number, siginfo_t *info, void *context)
{
	unsigned long size = pool_default();
	char text[200];
	int length;

	length = snprintf(text, sizeof(text),
			  "# signal %d, code %d at %p; pages: %ld, free %ld, reserved %ld, surplus %ld\n",
			  number, info->si_code, info->si_addr,
			  pool_get(size, "nr_hugepages"), pool_get(size, "free_hugepages"),
			  pool_get(size, "resv_hugepages"), pool_get(size, "surplus_hugepages"));
	/* The instruction that failed is executed once more, and ends us. */
	(void)!write(STDOUT_FILENO, text, length);
}

static void *compact(void *data)
{
	struct work *work = data;

	while (!stopped(work)) {
		if (!text_write("/proc/sys/vm/compact_memory", "1"))
			count(&work->compactions);
		usleep(1000);
	}
	return NULL;
}

/* Are these the flags and the mapcounts of one huge page that is mapped once? */
static bool whole(unsigned long frame, uint64_t *values, size_t subpages)
{
	size_t i;

	if (!pages_read(KPAGEFLAGS, frame, values, subpages))
		return false;
	for (i = 0; i < subpages; i++) {
		uint64_t place = i ? FLAG_TAIL : FLAG_HEAD;
		uint64_t mask = FLAG_HUGE | FLAG_HEAD | FLAG_TAIL | FLAG_BUDDY | FLAG_NOPAGE |
				FLAG_HWPOISON;

		if ((values[i] & mask) != (FLAG_HUGE | place)) {
			printf("# frame %#lx + %zu: flags %#lx\n", frame, i,
			       (unsigned long)values[i]);
			return false;
		}
	}
	if (!pages_read(KPAGECOUNT, frame, values, subpages))
		return false;
	/* All 0 while it is being moved. */
	for (i = 0; i < subpages; i++) {
		if (values[i] != 1 && (values[i] || values[0])) {
			printf("# frame %#lx + %zu: mapped %lu times\n", frame, i,
			       (unsigned long)values[i]);
			return false;
		}
	}
	return true;
}

static void hold_one(struct work *work, unsigned long size, uint64_t *values)
{
	size_t subpages = size / page_size();
	unsigned long frame;
	char *p = pool_map(size, 1);
	int i;

	if (!p)
		return;
	*p = 1;
	frame = frame_of(p);
	for (i = 0; i < LOOKS; i++) {
		if (!frame || !whole(frame, values, subpages) || frame_of(p) != frame) {
			/*
			 * Compaction may move a page between two looks; then it is no
			 * longer ours.
			 */
			if (frame_of(p) == frame)
				count(&work->wrong);
			break;
		}
	}
	munmap(p, size);
	count(&work->holds);
}

/* Whatever the pools have at the moment. */
static void *hold(void *data)
{
	struct work *work = data;
	uint64_t *values = malloc(work->size / page_size() * sizeof(*values));

	while (values && !stopped(work)) {
		hold_one(work, work->size, values);
		if (work->size != pool_default())
			hold_one(work, pool_default(), values);
		usleep(500);
	}
	free(values);
	return NULL;
}

struct settings {
	long pages;
	long default_pages;
	long optimize;
	long page_lists;
};

FIXTURE(walkers) {
	struct work work;
	struct settings before;
};

FIXTURE_VARIANT(walkers) {
	unsigned long size;
	int pages;
	int rounds;
	unsigned long least_holds;
	int least_memory_mb;
};

FIXTURE_VARIANT_ADD(walkers, of_2M) {
	.size = POOL_2M,
	.pages = 128,
	.rounds = 30,
	.least_holds = 31,
	.least_memory_mb = 800,
};

/* These two are the default where base pages have 16 and 64 KiB. */
FIXTURE_VARIANT_ADD(walkers, of_32M) {
	.size = POOL_32M,
	.pages = 32,
	.rounds = 20,
	.least_holds = 21,
	.least_memory_mb = 1800,
};

FIXTURE_VARIANT_ADD(walkers, of_512M) {
	.size = POOL_512M,
	.pages = 6,
	.rounds = 10,
	.least_holds = 1,
	.least_memory_mb = 4000,
};

FIXTURE_VARIANT_ADD(walkers, of_1G) {
	.size = POOL_1G,
	.pages = 2,
	.rounds = 6,
	/* Under KASAN an emulator clears a page of 1 GiB for longer than a round waits. */
	.least_holds = 1,
	.least_memory_mb = 3500,
};

static void start(struct work *work, pthread_t *threads)
{
	int i;

	pthread_create(&threads[0], NULL, walk_all, work);
	pthread_create(&threads[1], NULL, compact, work);
	for (i = 0; i < HOLDERS; i++)
		pthread_create(&threads[2 + i], NULL, hold, work);
}

static void finish(struct work *work, pthread_t *threads)
{
	int i;

	__atomic_store_n(&work->stop, true, __ATOMIC_RELAXED);
	for (i = 0; i < HOLDERS + 2; i++)
		pthread_join(threads[i], NULL);
	for (i = 0; i < (int)ARRAY_SIZE(walked); i++)
		printf("# %lu walks of %s\n", work->walks[i], walked[i]);
	printf("# %lu compactions, %lu holds\n", work->compactions, work->holds);
}

/* Pages that somebody has, or may still take, would not go when the pool is emptied. */
static bool is_in_use(unsigned long size)
{
	return pool_get(size, "nr_hugepages") != pool_get(size, "free_hugepages") ||
	       pool_get(size, "resv_hugepages");
}

static void give_back(const struct settings *before, unsigned long size)
{
	number_write(OPTIMIZE, before->optimize);
	number_write(PAGE_LISTS, before->page_lists);
	pool_set(size, "nr_hugepages", before->pages);
	pool_set(pool_default(), "nr_hugepages", before->default_pages);
}

FIXTURE_SETUP(walkers)
{
	bool empty;

	if (access(KPAGEFLAGS, R_OK) || access(KPAGECOUNT, R_OK))
		SKIP(return, "no " KPAGEFLAGS);
	if (!pool_exists(variant->size))
		SKIP(return, "no pool of %lu kB pages", variant->size >> 10);
	if (variant->size < pool_default())
		SKIP(return, "%lu kB are less than the default size", variant->size >> 10);
	if (meminfo("MemTotal") >> 10 < variant->least_memory_mb)
		SKIP(return, "less than %d MiB of memory", variant->least_memory_mb);
	if (is_in_use(variant->size) || is_in_use(pool_default()))
		SKIP(return, "huge pages are in use");
	self->before.pages = pool_get(variant->size, "nr_hugepages");
	self->before.default_pages = pool_get(pool_default(), "nr_hugepages");
	self->before.optimize = number_read(OPTIMIZE, 0);
	self->before.page_lists = number_read(PAGE_LISTS, 0);
	number_write(OPTIMIZE, 1);
	empty = pool_is_empty(pool_default()) && pool_is_empty(variant->size);
	/* No teardown follows a setup that fails. */
	if (!empty)
		give_back(&self->before, variant->size);
	ASSERT_TRUE(empty);
	self->work.size = variant->size;
	sigaction(SIGBUS, &(struct sigaction){
		.sa_sigaction = tell_of_bus_error,
		.sa_flags = SA_SIGINFO | SA_RESETHAND,
	}, NULL);
}

FIXTURE_TEARDOWN(walkers)
{
	/* The next test wants to find nothing of them. */
	EXPECT_TRUE(pool_is_empty(variant->size));
	EXPECT_TRUE(pool_is_empty(pool_default()));
	give_back(&self->before, variant->size);
}

/* Free pages go at once, those held become surplus and go with their holder. */
static void empty_both(unsigned long size)
{
	pool_set(size, "nr_hugepages", 0);
	pool_set(pool_default(), "nr_hugepages", 0);
}

/* Give the holders the time to get hold of pages as they are now. */
static void wait_for_holders(struct work *work)
{
	unsigned long before = __atomic_load_n(&work->holds, __ATOMIC_RELAXED);
	int tries;

	for (tries = 0; tries < 500; tries++) {
		if (__atomic_load_n(&work->holds, __ATOMIC_RELAXED) >= before + HOLDERS)
			return;
		usleep(2000);
	}
}

/* How many pages there were. */
static long fill_demote_and_empty(struct work *work, int pages, bool demotes)
{
	long got;

	pool_set(work->size, "nr_hugepages", pages);
	got = pool_get(work->size, "nr_hugepages");
	wait_for_holders(work);
	if (demotes) {
		pool_set(work->size, "demote", 1);
		wait_for_holders(work);
		/* Some of them go early, so that others are freed from between them. */
		pool_set(pool_default(), "nr_hugepages",
			 pool_get(pool_default(), "nr_hugepages") / 2);
	}
	empty_both(work->size);
	return got;
}

/* Do all that while everyone looks; how many pages there were at most. */
static long go_round(struct work *work, int rounds, int pages, bool demotes)
{
	pthread_t threads[HOLDERS + 2];
	long got, most = 0;

	start(work, threads);
	while (rounds--) {
		got = fill_demote_and_empty(work, pages, demotes);
		most = got > most ? got : most;
	}
	finish(work, threads);
	return most;
}

TEST_F(walkers, see_whole_pages_only)
{
	struct work first = { .size = variant->size };
	long available_before, most;
	bool demotes = false;
	char smaller[32];
	size_t i;

	if (variant->size != pool_default()) {
		snprintf(smaller, sizeof(smaller), "%lukB", pool_default() >> 10);
		demotes = !text_write(pool_path_in(POOL_DIR, variant->size, "demote_size"),
				      smaller);
		EXPECT_TRUE(demotes);
	}
	/* What the first round leaves behind is no loss. */
	go_round(&first, 1, variant->pages, demotes);
	EXPECT_TRUE(pool_is_empty(variant->size));
	EXPECT_TRUE(pool_is_empty(pool_default()));
	available_before = available();
	most = go_round(&self->work, variant->rounds, variant->pages, demotes);

	EXPECT_EQ(0, self->work.wrong);
	EXPECT_GT(most, 0);
	for (i = 0; i < ARRAY_SIZE(walked); i++) {
		if (access(walked[i], R_OK))
			continue;
		EXPECT_GT(self->work.walks[i], 0) {
			TH_LOG("%s was not read", walked[i]);
		}
	}
	EXPECT_GT(self->work.compactions, 0);
	EXPECT_GE(self->work.holds, variant->least_holds);
	EXPECT_TRUE(pool_is_empty(variant->size));
	EXPECT_TRUE(pool_is_empty(pool_default()));
	EXPECT_LT(available_before - available(), SLACK);
}

/* What was given back can be had again, as often as one likes. */
TEST_F(walkers, can_have_the_pages_again)
{
	long first, later;
	int i;

	if (self->work.size == pool_default())
		SKIP(return, "pages of the default size are anywhere");
	text_write("/proc/sys/vm/compact_memory", "1");
	pool_set(variant->size, "nr_hugepages", variant->pages);
	first = pool_get(variant->size, "nr_hugepages");
	EXPECT_GT(first, 0);
	for (i = 0; i < 3; i++) {
		EXPECT_TRUE(pool_is_empty(variant->size));
		pool_set(variant->size, "nr_hugepages", variant->pages);
		later = pool_get(variant->size, "nr_hugepages");
		EXPECT_EQ(first, later);
	}
}

/* No tail keeps anything of its head: all frames are ordinary free or used pages again. */
TEST_F(walkers, find_no_huge_page_that_was_freed)
{
	long subpages = variant->size / page_size();
	unsigned long frame;
	char *p;

	pool_set(variant->size, "nr_hugepages", 1);
	p = pool_map(variant->size, 1);
	if (!p)
		SKIP(return, "no page of %lu kB to be had", variant->size >> 10);
	*p = 1;
	frame = frame_of(p);
	ASSERT_NE(0, frame);
	EXPECT_EQ(subpages, frames_with(frame, subpages, FLAG_HUGE));
	EXPECT_EQ(1, frames_with(frame, subpages, FLAG_HEAD));
	munmap(p, variant->size);
	EXPECT_TRUE(pool_is_empty(variant->size));
	EXPECT_EQ(0, frames_with(frame, subpages, FLAG_HUGE));
}

TEST_HARNESS_MAIN
