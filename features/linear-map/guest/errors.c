// SPDX-License-Identifier: GPL-2.0-only
/*
 * What changes the linear map survives every failed allocation.
 *
 * Each test does the same thing again and again, and the n-th time the n-th
 * allocation on the way fails.  It must fail with ENOMEM, or succeed all the
 * same, and when there is no allocation left that could fail, the permissions
 * of all memory are what they were.  Little of it is lost.  Whether a failure
 * loses even one page is tested for a page of secret memory only, which is
 * quick enough to fail hundreds of times.
 */
#define _GNU_SOURCE
#include "kselftest_harness.h"

#include "dump.h"
#include "files.h"
#include "module.h"
#include "program.h"
#include "secret.h"

#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	300

#define FAULTS		"/sys/kernel/debug/"
#define FAIL_NTH	"/proc/thread-self/fail-nth"
#define FOLD_DELAY	"/sys/module/arm64/parameters/linear_map_fold_delay_ms"

/* Nothing needs that many allocations. */
#define MOST		5000

#define SECRET_PAGES	40

/* What caches move by themselves, in KiB. */
#define SLACK		1500

/* So many failures that lose a page of 4 KiB each are twice SLACK. */
#define ROUNDS		(2 * SLACK / 4)

/* What a kernel without an interpreter says if it cannot store machine code. */
#define ENOTSUPP	524

/* Memory that is free or could be at once, in KiB. */
static long available(void)
{
	sync();
	text_write("/proc/sys/vm/drop_caches", "3");
	return meminfo("MemFree") + meminfo("SReclaimable");
}

/*
 * How much of the linear map is in the largest blocks; 0 if the kernel does not say.  Pages of all
 * sizes have 2 MiB; with 64 KiB each, 512 MiB come next.
 */
static long blocks(void)
{
	return meminfo("DirectMap1G") * 1024 + meminfo("DirectMap512M") * 512 +
	       meminfo("DirectMap32M") * 32 + meminfo("DirectMap2M");
}

/*
 * Wait until as much is again, so that the next one has to split it as the last one did. It
 * may be more, if the last thing was not all folded when it began. Return how much it is.
 */
static long wait_for_blocks(long wanted)
{
	long found;
	int tries;

	for (tries = 0; (found = blocks()) < wanted && tries < 2000; tries++)
		usleep(5000);
	return found;
}

static int load_module(void *data)
{
	int result = module_load(*(int *)data) ? errno : 0;

	if (!result && module_unload(module_names[0]))
		result = errno;
	return result;
}

static int load_program(void *data)
{
	int fd = program_load(PROGRAM_LONGEST, 1);

	(void)data;
	/* EINVAL is what the kernel says if it cannot store the instructions. */
	if (fd < 0)
		return errno == ENOTSUPP || errno == EINVAL ? ENOMEM : errno;
	close(fd);
	return 0;
}

/* A page that cannot be had at the first touch is had at the second. */
static int take_secret_memory(void *data)
{
	size_t page_size = sysconf(_SC_PAGESIZE);
	int i, pages = *(int *)data;
	char *p = secret_map(pages * page_size);

	if (!p)
		return errno;
	for (i = 0; i < pages; i++)
		p[i * page_size] = 1;
	munmap(p, pages * page_size);
	return 0;
}

struct sweep {
	int (*action)(void *data);
	void *data;
	int fail_nth;
	/* What came of it. */
	int failures;
	int wrong_error;
	int left_split;		/* how often the linear map was split before it began */
	bool complete;
};

static void sweep_run(struct sweep *sweep)
{
	long intact = 0, now;
	char text[16];
	int n, error;

	for (n = 1; n <= MOST && !sweep->complete; n++) {
		now = wait_for_blocks(intact);
		if (now < intact) {
			printf("# allocation %d: %ld MiB of blocks, and not %ld\n",
			       n, now / 1024, intact / 1024);
			sweep->left_split++;
		} else {
			intact = now;
		}
		snprintf(text, sizeof(text), "%d", n);
		if (write(sweep->fail_nth, text, strlen(text)) < 0)
			return;
		error = sweep->action(sweep->data);
		memset(text, 0, sizeof(text));
		if (pread(sweep->fail_nth, text, sizeof(text) - 1, 0) < 0)
			return;
		if (write(sweep->fail_nth, "0", 1) < 0)
			return;
		/* The kernel counts down, and ends at 0 if it came to the n-th. */
		sweep->complete = atoi(text);
		if (error)
			sweep->failures++;
		if (error && (error != ENOMEM || sweep->complete)) {
			printf("# allocation %d: %s\n", n, strerror(error));
			sweep->wrong_error = error;
		}
	}
}

FIXTURE(errors) {
	struct sweep sweep;
};

FIXTURE_SETUP(errors)
{
	static const char * const names[] = { "failslab", "fail_page_alloc" };
	char path[128];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(names); i++) {
		/* Else only allocations that cannot wait would fail. */
		snprintf(path, sizeof(path), FAULTS "%s/ignore-gfp-wait", names[i]);
		if (text_write(path, "N"))
			SKIP(return, "no fault injection");
		snprintf(path, sizeof(path), FAULTS "%s/verbose", names[i]);
		text_write(path, "0");
	}
	/* A pause that the task asks for is one of the things that may fail, and is tried again. */
	text_write(FAULTS "fail_cpu_pause/verbose", "0");
	text_write(FAULTS "fail_page_alloc/ignore-gfp-highmem", "N");
	text_write(FAULTS "fail_page_alloc/min-order", "0");
	page_lists_shorten();
	ASSERT_EQ(0, text_write(FOLD_DELAY, "1"));
	self->sweep.fail_nth = open(FAIL_NTH, O_RDWR);
	if (self->sweep.fail_nth < 0)
		SKIP(return, "no " FAIL_NTH);
}

FIXTURE_TEARDOWN(errors)
{
	text_write(FOLD_DELAY, "1000");
	text_write(FAULTS "failslab/ignore-gfp-wait", "Y");
	text_write(FAULTS "fail_page_alloc/ignore-gfp-wait", "Y");
}

#define SWEEP(action_, data_, rounds_)						\
do {										\
	struct dump before_;							\
	long available_;							\
	int round_;								\
										\
	self->sweep.action = action_;						\
	self->sweep.data = data_;						\
	/* What the first time leaves behind is no leak. */			\
	EXPECT_EQ(0, self->sweep.action(self->sweep.data));			\
	EXPECT_EQ(0, self->sweep.action(self->sweep.data));			\
	dump_read_settled(&before_);						\
	available_ = available();						\
	for (round_ = 0; round_ < (rounds_); round_++) {			\
		self->sweep.complete = false;					\
		sweep_run(&self->sweep);					\
		ASSERT_TRUE(self->sweep.complete);				\
	}									\
	EXPECT_GE(self->sweep.failures, (rounds_) > 4 ? (rounds_) : 4);		\
	EXPECT_EQ(0, self->sweep.wrong_error);					\
	EXPECT_EQ(0, self->sweep.left_split);					\
	EXPECT_TRUE(dump_returns_to(&before_));					\
	EXPECT_LT(available_ - available(), SLACK);				\
	dump_free(&before_);							\
} while (0)

TEST_F(errors, of_loading_a_module)
{
	int fd = module_open(module_names[0]);

	if (fd < 0)
		SKIP(return, "no module %s", module_names[0]);
	SWEEP(load_module, &fd, 1);
	close(fd);
}

TEST_F(errors, of_loading_a_program)
{
	int kept = program_load(PROGRAM_SHORTEST, 1);

	if (kept < 0)
		SKIP(return, "no BPF: %s", strerror(errno));
	SWEEP(load_program, NULL, 1);
	close(kept);
}

TEST_F(errors, of_taking_secret_memory)
{
	void *p = secret_map(1);
	int pages = SECRET_PAGES;

	if (!p)
		SKIP(return, "no secret memory: %s", strerror(errno));
	munmap(p, 1);
	SWEEP(take_secret_memory, &pages, 1);
}

/* Where blocks are split in pauses, and these are rationed, it takes minutes. */
TEST_F_TIMEOUT(errors, of_taking_a_secret_page_lose_none, 900)
{
	void *p = secret_map(1);
	int pages = 1;

	if (!p)
		SKIP(return, "no secret memory: %s", strerror(errno));
	munmap(p, 1);
	SWEEP(take_secret_memory, &pages, ROUNDS);
}

TEST_HARNESS_MAIN
