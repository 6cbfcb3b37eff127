// SPDX-License-Identifier: GPL-2.0-only
/*
 * KVM writes memory tags to the pages of a guest that has MTE, if the program that runs the guest
 * asks for it.  The kernel notes that in the struct page of each, and those of hugetlb pages
 * may be read-only.  There are two ways to have such pages in a guest with MTE, though each is
 * refused if it is tried at the wrong moment; no guest need run.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/kvm.h>
#include <sys/ioctl.h>

#include "kselftest_harness.h"

#include "pool.h"

/* One granule of 16 bytes has a tag, which takes a byte when it is copied. */
#define TAGS	(64 << 10 >> 4)

#define PAGES	4

FIXTURE(mte) {
	int kvm, vm;
	char *memory;
	unsigned char tags[TAGS];
};

FIXTURE_SETUP(mte)
{
	ASSERT_EQ(0, pool_set(POOL_2M, "nr_hugepages", PAGES));
	ASSERT_EQ(PAGES, pool_get(POOL_2M, "nr_hugepages"));
	self->kvm = open("/dev/kvm", O_RDWR);
	if (self->kvm < 0 || ioctl(self->kvm, KVM_CHECK_EXTENSION, KVM_CAP_ARM_MTE) <= 0)
		SKIP(return, "no guest can have MTE");
	self->vm = ioctl(self->kvm, KVM_CREATE_VM, 0);
	ASSERT_LE(0, self->vm);
	/* In one place, to which a slot leads whatever is there. */
	self->memory = mmap(NULL, 2 * POOL_2M, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->memory);
	self->memory += -(unsigned long)self->memory & (POOL_2M - 1);
}

FIXTURE_TEARDOWN(mte)
{
	close(self->vm);
	close(self->kvm);
	munmap(self->memory, POOL_2M);
	EXPECT_TRUE(pool_is_empty(POOL_2M));
}

/* Map 2 MiB of memory, and touch all of it. */
static bool map(char *memory, int flags)
{
	char *p = mmap(memory, POOL_2M, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | flags, -1, 0);

	if (p != memory)
		return false;
	memset(p, 1, POOL_2M);
	return true;
}

static int make_slot(int vm, char *memory)
{
	struct kvm_userspace_memory_region region = {
		.memory_size = POOL_2M,
		.userspace_addr = (unsigned long)memory,
	};

	return ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region);
}

static int switch_on(int vm)
{
	struct kvm_enable_cap cap = { .cap = KVM_CAP_ARM_MTE };

	return ioctl(vm, KVM_ENABLE_CAP, &cap);
}

/* Write the tags of one page; what the ioctl returned, or -errno. */
static int write_tags(int vm, size_t page, void *tags)
{
	struct kvm_arm_copy_mte_tags copy = {
		.guest_ipa = page * page_size(),
		.length = page_size(),
		.addr = tags,
	};
	int ret = ioctl(vm, KVM_ARM_MTE_COPY_TAGS, &copy);

	return ret < 0 ? -errno : ret;
}

/* Pages whose struct pages are in the first page of these, and in the last. */
static void refuses_all(struct __test_metadata *_metadata, int vm, void *tags)
{
	size_t page, pages = POOL_2M / page_size();

	for (page = 0; page < pages; page = page * 2 + 1)
		EXPECT_EQ(-EFAULT, write_tags(vm, page, tags));
	EXPECT_EQ(-EFAULT, write_tags(vm, pages - 1, tags));
}

TEST_F(mte, of_ordinary_memory_are_written)
{
	ASSERT_EQ(0, switch_on(self->vm));
	ASSERT_TRUE(map(self->memory, 0));
	ASSERT_EQ(0, make_slot(self->vm, self->memory));
	EXPECT_EQ(page_size(), write_tags(self->vm, 1, self->tags));
}

TEST_F(mte, of_hugetlb_pages_that_were_there_before_are_refused)
{
	ASSERT_TRUE(map(self->memory, MAP_HUGETLB));
	ASSERT_EQ(0, make_slot(self->vm, self->memory));
	ASSERT_EQ(0, switch_on(self->vm));
	refuses_all(_metadata, self->vm, self->tags);
}

TEST_F(mte, of_hugetlb_pages_that_came_later_are_refused)
{
	ASSERT_EQ(0, switch_on(self->vm));
	ASSERT_TRUE(map(self->memory, 0));
	ASSERT_EQ(0, make_slot(self->vm, self->memory));
	ASSERT_TRUE(map(self->memory, MAP_HUGETLB));
	refuses_all(_metadata, self->vm, self->tags);
}

TEST_HARNESS_MAIN
