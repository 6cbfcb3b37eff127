// SPDX-License-Identifier: GPL-2.0-only
/*
 * The kernel writes and copies the tags of memory through the linear map, which
 * therefore has to be tagged memory in entries of all sizes.
 */
#define _GNU_SOURCE
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "kselftest_harness.h"

#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	300

#define TAG_SHIFT		56
#define TAGGED_ADDRESSES	1UL
#define FAULT_AT_ONCE		2UL
#define ALL_TAGS		(0xffffUL << 3)

/* What one tag is for. */
#define GRANULE			16
#define SIZE			(4UL << 20)

static char *with_tag(char *p, unsigned long tag)
{
	return (char *)(((unsigned long)p & ~(0xfUL << TAG_SHIFT)) | tag << TAG_SHIFT);
}

static void store_tag(char *p)
{
	asm volatile(".arch armv8.5-a+memtag\n stg %0, [%0]" : : "r" (p) : "memory");
}

static unsigned long load_tag(char *p)
{
	asm volatile(".arch armv8.5-a+memtag\n ldg %0, [%0]" : "+r" (p) : : "memory");
	return (unsigned long)p >> TAG_SHIFT & 0xf;
}

/* A tag and a value for every granule. */
static unsigned long tag_of(size_t offset)
{
	return 1 + offset / GRANULE % 15;
}

static size_t count_wrong(char *p)
{
	size_t offset, wrong = 0;
	char *tagged;

	for (offset = 0; offset < SIZE; offset += GRANULE) {
		if (load_tag(p + offset) != tag_of(offset)) {
			wrong++;
			continue;
		}
		tagged = with_tag(p + offset, tag_of(offset));
		wrong += *tagged != (char)tag_of(offset);
	}
	return wrong;
}

FIXTURE(tags) {
	char *p;
};

FIXTURE_SETUP(tags)
{
	size_t offset;

	if (!(getauxval(AT_HWCAP2) & HWCAP2_MTE))
		SKIP(return, "no memory tags");
	ASSERT_EQ(0, prctl(PR_SET_TAGGED_ADDR_CTRL, TAGGED_ADDRESSES | FAULT_AT_ONCE | ALL_TAGS,
			   0, 0, 0));
	self->p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE | PROT_MTE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	for (offset = 0; offset < SIZE; offset += GRANULE) {
		char *tagged = with_tag(self->p + offset, tag_of(offset));

		/* New memory has no tags; the kernel cleared them. */
		EXPECT_EQ(0, load_tag(self->p + offset));
		store_tag(tagged);
		*tagged = tag_of(offset);
	}
}

FIXTURE_TEARDOWN(tags)
{
	munmap(self->p, SIZE);
}

TEST_F(tags, are_kept)
{
	EXPECT_EQ(0, count_wrong(self->p));
}

TEST_F(tags, are_copied_on_write)
{
	size_t page = sysconf(_SC_PAGESIZE), offset;
	int status;
	pid_t pid;

	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		for (offset = 0; offset < SIZE; offset += page)
			*with_tag(self->p + offset, tag_of(offset)) = tag_of(offset);
		_exit(count_wrong(self->p) ? EXIT_FAILURE : EXIT_SUCCESS);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	EXPECT_EQ(0, count_wrong(self->p));
}

TEST_F(tags, are_checked)
{
	int status;
	pid_t pid;

	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		signal(SIGSEGV, SIG_DFL);
		*with_tag(self->p, tag_of(0) + 1) = 0;
		_exit(EXIT_SUCCESS);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFSIGNALED(status));
}

TEST_HARNESS_MAIN
