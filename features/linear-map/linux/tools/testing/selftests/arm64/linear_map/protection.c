// SPDX-License-Identifier: GPL-2.0-only
/*
 * What must not be reached through the linear map is not.
 */
#define _GNU_SOURCE
#include <sys/uio.h>

#include "kselftest_harness.h"

#include "dump.h"
#include "physical.h"
#include "secret.h"

#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	300

#define KCORE	"/proc/kcore"
#define PATTERN	0xa7

static size_t page_size(void)
{
	return sysconf(_SC_PAGESIZE);
}

/* Does a page that is read through the linear map hold only this byte? */
static bool reads_as(unsigned long physical, int byte)
{
	size_t i, size = page_size();
	unsigned char *page;
	bool same = true;

	page = malloc(size);
	if (!page || physical_read(KCORE, physical, page, size)) {
		perror(KCORE);
		exit(EXIT_FAILURE);
	}
	for (i = 0; i < size; i++)
		same &= page[i] == byte;
	free(page);
	return same;
}

/* The physical range that /proc/iomem gives a name. */
static bool find_resource(const char *name, unsigned long *start, unsigned long *end)
{
	unsigned long first, last;
	bool found = false;
	char line[256];
	FILE *file;

	file = fopen("/proc/iomem", "r");
	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file)) {
		if (!strstr(line, name) || sscanf(line, " %lx-%lx", &first, &last) != 2)
			continue;
		*start = first;
		*end = last + 1;
		found = true;
	}
	fclose(file);
	return found;
}

/* Without this, the tests that nothing is read could pass without reading anything. */
TEST(ordinary_memory_is_read_through_the_linear_map)
{
	size_t size = page_size();
	char *p;

	if (access(KCORE, R_OK))
		SKIP(return, KCORE " cannot be read");
	p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	ASSERT_NE(MAP_FAILED, p);
	memset(p, PATTERN, size);
	ASSERT_NE(0, physical_address(p));
	EXPECT_TRUE(reads_as(physical_address(p), PATTERN));
}

TEST(secret_memory_is_not_read_through_the_linear_map)
{
	enum { PAGES = 33 };
	size_t size = PAGES * page_size();
	unsigned long physical[PAGES], linear;
	bool has_dump = dump_is_there();
	struct dump dump = { 0 };
	char *p;
	int i;

	if (access(KCORE, R_OK))
		SKIP(return, KCORE " cannot be read");
	p = secret_map(size);
	if (!p)
		SKIP(return, "no secret memory: %s", strerror(errno));
	memset(p, PATTERN, size);
	if (has_dump)
		dump_read(&dump);
	for (i = 0; i < PAGES; i++) {
		physical[i] = physical_address(p + i * page_size());
		ASSERT_NE(0, physical[i]);
		EXPECT_TRUE(reads_as(physical[i], 0));
		if (!has_dump)
			continue;
		linear = linear_address(physical[i]);
		ASSERT_NE(0, linear);
		EXPECT_EQ(0, dump_count(&dump, linear, linear + page_size(), true));
		EXPECT_EQ(0, dump_count(&dump, linear, linear + page_size(), false));
	}
	dump_free(&dump);
	munmap(p, size);
	/* Whoever got the pages since, the secret is not in them. */
	for (i = 0; i < PAGES; i++)
		EXPECT_FALSE(reads_as(physical[i], PATTERN));
}

TEST(neighbours_of_secret_memory_stay)
{
	size_t size = page_size();
	unsigned long linear;
	struct dump dump;
	char *p;

	if (!dump_is_there())
		SKIP(return, DUMP_PATH " cannot be read");
	p = secret_map(size);
	if (!p)
		SKIP(return, "no secret memory: %s", strerror(errno));
	*p = 1;
	linear = linear_address(physical_address(p));
	ASSERT_NE(0, linear);
	dump_read(&dump);
	/*
	 * Nobody else here has secret memory, so the page is a hole of its own. What is beside
	 * it may be the read-only alias of somebody's code.
	 */
	EXPECT_EQ(2 * size, dump_count(&dump, linear - size, linear + 2 * size, false) +
			    dump_count(&dump, linear - size, linear + 2 * size, true));
	dump_free(&dump);
	munmap(p, size);
}

TEST(secret_memory_is_not_read_by_system_calls)
{
	size_t size = page_size();
	char *p, buffer[16];
	struct iovec local = { buffer, sizeof(buffer) }, remote;
	int fd;

	p = secret_map(size);
	if (!p)
		SKIP(return, "no secret memory: %s", strerror(errno));
	memset(p, PATTERN, size);
	remote.iov_base = p;
	remote.iov_len = sizeof(buffer);
	EXPECT_EQ(-1, process_vm_readv(getpid(), &local, 1, &remote, 1, 0));
	EXPECT_EQ(-1, process_vm_writev(getpid(), &local, 1, &remote, 1, 0));
	fd = open("/proc/self/mem", O_RDWR);
	ASSERT_GE(fd, 0);
	EXPECT_EQ(-1, pread(fd, buffer, sizeof(buffer), (off_t)p));
	EXPECT_EQ(-1, pwrite(fd, buffer, sizeof(buffer), (off_t)p));
	close(fd);
	munmap(p, size);
}

TEST(nothing_in_the_linear_map_is_executable)
{
	struct dump dump;

	if (!dump_is_there())
		SKIP(return, DUMP_PATH " cannot be read");
	dump_read(&dump);
	EXPECT_EQ(0, dump.executable);
	dump_free(&dump);
}

/* The kernel's text and read-only data, at their linear addresses. */
TEST(alias_of_the_kernel_is_read_only)
{
	unsigned long start, end, linear;
	struct dump dump;

	if (!dump_is_there())
		SKIP(return, DUMP_PATH " cannot be read");
	ASSERT_TRUE(find_resource("Kernel code", &start, &end));
	linear = linear_address(start);
	ASSERT_NE(0, linear);
	dump_read(&dump);
	EXPECT_EQ(end - start, dump_count(&dump, linear, linear + end - start, true));
	EXPECT_EQ(0, dump_count(&dump, linear, linear + end - start, false));
	ASSERT_TRUE(find_resource("Kernel data", &start, &end));
	linear = linear_address(start);
	ASSERT_NE(0, linear);
	EXPECT_EQ(0, dump_count(&dump, linear, linear + end - start, true));
	dump_free(&dump);
}

TEST_HARNESS_MAIN
