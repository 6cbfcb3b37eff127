// SPDX-License-Identifier: GPL-2.0-only
/*
 * Secret memory leaves the linear map page by page, and comes back.
 *
 * Nothing else may change the linear map meanwhile: modules, BPF programs and other
 * secret memory do.
 *
 * Where page tables cannot be dumped the memory is used all the same, and holds what was
 * written to it. What became of the linear map is not looked at then.
 */
#define _GNU_SOURCE
#include <sys/wait.h>

#include "kselftest_harness.h"

#include "dump.h"
#include "secret.h"

/* Nine other jobs and the checks of a debug kernel may share an emulated CPU with this. */
#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	1500

#define PROCESSES	4
#define ROUNDS		50
#define MOST_PAGES	40

static size_t page_size(void)
{
	return sysconf(_SC_PAGESIZE);
}

FIXTURE(secretmem) {
	struct dump before;
};

FIXTURE_SETUP(secretmem)
{
	void *p;

	p = secret_map(page_size());
	if (!p)
		SKIP(return, "no secret memory: %s", strerror(errno));
	munmap(p, page_size());
	if (dump_is_there())
		dump_read(&self->before);
}

FIXTURE_TEARDOWN(secretmem)
{
	dump_free(&self->before);
}

/* Is the linear map again as it was, as far as that can be known? */
static bool comes_back(const struct dump *before)
{
	return !dump_is_there() || dump_returns_to(before);
}

TEST_F(secretmem, takes_exactly_its_pages_out)
{
	static const int sizes[] = { 1, 2, 3, 15, 16, 17, 511, 512, 700 };
	struct dump during;
	size_t i, size;
	char *p;

	if (!dump_is_there())
		SKIP(return, DUMP_PATH " cannot be read");
	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		size = sizes[i] * page_size();
		p = secret_map(size);
		ASSERT_NE(NULL, p);
		memset(p, 0x5a, size);
		dump_read(&during);
		EXPECT_EQ(self->before.mapped - size, during.mapped)
			TH_LOG("%d pages", sizes[i]);
		EXPECT_EQ(self->before.read_only, during.read_only);
		dump_free(&during);
		munmap(p, size);
		ASSERT_TRUE(dump_returns_to(&self->before))
			TH_LOG("%d pages", sizes[i]);
	}
}

TEST_F(secretmem, gives_pages_back_in_any_order)
{
	enum { COUNT = 64 };
	char *pages[COUNT];
	struct dump during;
	int i;

	for (i = 0; i < COUNT; i++) {
		pages[i] = secret_map(page_size());
		ASSERT_NE(NULL, pages[i]);
		*pages[i] = i;
	}
	/* Every other one first, so that holes and pages alternate. */
	for (i = 0; i < COUNT; i += 2)
		munmap(pages[i], page_size());
	if (dump_is_there()) {
		dump_read(&during);
		EXPECT_EQ(self->before.mapped - COUNT / 2 * page_size(), during.mapped);
		dump_free(&during);
	}
	for (i = 1; i < COUNT; i += 2) {
		EXPECT_EQ(i, *pages[i]);
		munmap(pages[i], page_size());
	}
	EXPECT_TRUE(comes_back(&self->before));
}

/* Take secret memory, check what is in it, give it back; again and again. */
static int churn(unsigned int seed)
{
	int round, pages, i;
	char *p;

	for (round = 0; round < ROUNDS; round++) {
		pages = 1 + rand_r(&seed) % MOST_PAGES;
		p = secret_map(pages * page_size());
		if (!p)
			return EXIT_FAILURE;
		for (i = 0; i < pages; i++) {
			if (p[i * page_size()])
				return EXIT_FAILURE;
			p[i * page_size()] = seed + i;
		}
		for (i = 0; i < pages; i++) {
			if (p[i * page_size()] != (char)(seed + i))
				return EXIT_FAILURE;
		}
		munmap(p, pages * page_size());
	}
	return EXIT_SUCCESS;
}

TEST_F(secretmem, of_many_processes_comes_back)
{
	int i, status;
	pid_t pid;

	for (i = 0; i < PROCESSES; i++) {
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid)
			_exit(churn(i));
	}
	for (i = 0; i < PROCESSES; i++) {
		ASSERT_GT(wait(&status), 0);
		EXPECT_EQ(0, status);
	}
	EXPECT_TRUE(comes_back(&self->before));
}

TEST_F(secretmem, of_a_killed_process_comes_back)
{
	size_t size = 300 * page_size();
	int ready[2], status;
	char byte, *p;
	pid_t pid;

	ASSERT_EQ(0, pipe(ready));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		p = secret_map(size);
		if (p)
			memset(p, 1, size);
		if (write(ready[1], p ? "y" : "n", 1) != 1)
			_exit(EXIT_FAILURE);
		pause();
	}
	/* If the child dies by itself, there is nothing to read. */
	close(ready[1]);
	ASSERT_EQ(1, read(ready[0], &byte, 1));
	EXPECT_EQ('y', byte);
	kill(pid, SIGKILL);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(comes_back(&self->before));
}

TEST_HARNESS_MAIN
