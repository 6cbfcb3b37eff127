// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a program may rely on when an atomic or exclusive access faults.
 *
 * The kernel treats such a fault as a write, so that the first touch of a page
 * populates it.  Nothing else may change: access errors are one SIGSEGV with the
 * right code and address, and userfaultfd, copy-on-write, dirty tracking, memory
 * tags and the rest behave as they do for a plain store.
 *
 * The tests hold on any kernel and in any mode of an emulator.  What only a
 * kernel with the feature promises (one fault, an event marked as a write, a
 * huge page at once) is checked if the kernel has the counters and its command
 * line does not switch the feature off; the environment variable
 * EXPECT_PROMOTE=0|1 overrides this.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/magic.h>
/* <sys/sysinfo.h> may get a linux/kernel.h of the tools, which does not include this. */
#include <linux/sysinfo.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>

#include "kselftest_harness.h"

#include "access.h"
#include "vmstat.h"

/* Emulated kernels with all their checks on are slow. */
#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	300

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE		0x08
#endif
#ifndef UFFD_FEATURE_WP_UNPOPULATED
#define UFFD_FEATURE_WP_UNPOPULATED	(1 << 13)
#endif

#ifndef __NR_memfd_secret
#define __NR_memfd_secret	447
#endif

#define RW	(PROT_READ | PROT_WRITE)

/* One of each sort, for the tests that need not try every instruction. */
static const char * const samples[] = {
	"store", "load", "ldapr", "ldadd", "ldaddalb", "stadd", "swpal", "cas",
	"casp", "swpp", "ldxr", "ldaxr", "ldxp", "ldxr_only", "ldaxp_only",
};

/* A name that is not in the table must not end a loop over the samples early. */
static const struct access *sample(size_t i)
{
	const struct access *a = access_find(samples[i]);

	if (!a) {
		fprintf(stderr, "there is no access %s\n", samples[i]);
		abort();
	}
	return a;
}

#define for_each_sample(a)							\
	for (size_t sample_ = 0;						\
	     sample_ < ARRAY_SIZE(samples) && ((a) = sample(sample_));		\
	     sample_++)								\
		if (access_supported(a))

/*
 * Every instruction; with EVERY=N in the environment, for slow kernels, every Nth and the
 * samples.
 */
#define for_each_tried(a)							\
	for (a = access_table; a < access_table + ARRAY_SIZE(access_table); a++) \
		if (is_tried(a))

static bool is_tried(const struct access *a)
{
	const char *every = getenv("EVERY");
	size_t i;

	if (!every || atoi(every) < 2 || (a - access_table) % atoi(every) == 0)
		return true;
	for (i = 0; i < ARRAY_SIZE(samples); i++)
		if (!strcmp(a->name, samples[i]))
			return true;
	return false;
}

/* The harness's EXPECT_..., saying which access failed, and fit for if and else. */
#define CHECK(what, a, ...)							\
do {										\
	EXPECT_##what(__VA_ARGS__)						\
		TH_LOG("%s", (a)->name);					\
} while (0)

#define CHECK_EQ(a, expected, seen)	CHECK(EQ, a, expected, seen)
#define CHECK_LT(a, expected, seen)	CHECK(LT, a, expected, seen)
#define CHECK_LE(a, expected, seen)	CHECK(LE, a, expected, seen)
#define CHECK_TRUE(a, seen)		CHECK(TRUE, a, seen)
#define CHECK_FALSE(a, seen)		CHECK(FALSE, a, seen)

static size_t page_size(void)
{
	return sysconf(_SC_PAGESIZE);
}

/* Does this kernel promise to treat the access as a write? */
static bool promoted(const struct access *a)
{
	const char *override = getenv("EXPECT_PROMOTE");
	static struct vmstat vmstat;
	bool atomics;

	if (a->class == ACCESS_STORE)
		return true;
	if (a->class == ACCESS_LOAD)
		return false;
	if (override)
		return atoi(override);
	vmstat_read(&vmstat);
	atomics = vmstat_get(&vmstat, "atomic_write_fault") != VMSTAT_ABSENT &&
		  !cmdline_switches_off("arm64.atomic_write_fault=");
	if (a->class == ACCESS_ATOMIC)
		return atomics;
	return atomics && !cmdline_switches_off("arm64.atomic_write_fault_exclusive=");
}

/* The same where a load-exclusive stays a read: in a file, or with userfaultfd. */
static bool promoted_but_exclusive(const struct access *a)
{
	return promoted(a) && (a->class == ACCESS_STORE || a->class == ACCESS_ATOMIC);
}

/* Map untouched anonymous memory, without huge pages. */
static void *map_pages(int pages, int prot)
{
	size_t size = pages * page_size();
	void *p;

	p = mmap(NULL, size, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		perror("mmap");
		abort();
	}
	madvise(p, size, MADV_NOHUGEPAGE);
	return p;
}

static void unmap_pages(void *p, int pages)
{
	munmap(p, pages * page_size());
}

/* How many faults this thread has taken, and nobody else. */
static long thread_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_minflt + usage.ru_majflt;
}

/* Do the access and count the faults. */
static long faults_of(const struct access *a, void *p)
{
	unsigned long scratch[2] __attribute__((aligned(16))) = { 0, 0 };
	long before;

	a->run(scratch);
	/* Its own code and the stack are in memory then. */
	thread_faults();
	before = thread_faults();
	a->run(p);
	return thread_faults() - before;
}

/*
 * Does a read of shared memory whose writes nobody is told of map it so that a write then
 * takes no fault? It does where the hardware sets the dirty state of entries.
 */
static bool read_maps_writable(void)
{
	long faults;
	void *p;

	p = mmap(NULL, page_size(), RW, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED) {
		perror("mmap");
		abort();
	}
	access_find("load")->run(p);
	faults = faults_of(access_find("store"), p);
	unmap_pages(p, 1);
	return !faults;
}

/* Does this kernel promise to treat the access as a write in such memory? */
static bool promoted_in_shared_memory(const struct access *a)
{
	return promoted_but_exclusive(a) && (a->class == ACCESS_STORE || !read_maps_writable());
}

/* Does it promise one fault for the access there? */
static bool one_fault_in_shared_memory(const struct access *a)
{
	return promoted_but_exclusive(a) || !access_writes(a) || read_maps_writable();
}

/* Is the memory at p what the access makes of 16 bytes that were "was"? */
static bool holds_result(const struct access *a, const void *p, const void *was)
{
	unsigned char expected[16];

	memcpy(expected, was, sizeof(expected));
	access_model(a, expected);
	return !memcmp(p, expected, sizeof(expected));
}

static const unsigned char zeroes[16];

/* Signals: count them, remember the last one, and leave the access. */
static sigjmp_buf segv_return;
static sig_atomic_t segv_count;
static siginfo_t segv_info;
static bool segv_write;		/* the syndrome says that it was a write */

/* ESR_EL1.WnR, from the signal frame. */
static bool reported_as_write(const ucontext_t *context)
{
	const unsigned char *p = context->uc_mcontext.__reserved;
	const struct _aarch64_ctx *record;

	for (record = (const void *)p; record->magic; record = (const void *)p) {
		if (record->magic == ESR_MAGIC)
			return ((const struct esr_context *)record)->esr & 1 << 6;
		p += record->size;
	}
	return false;
}

static void segv_handler(int signal, siginfo_t *info, void *context)
{
	segv_count++;
	segv_write = reported_as_write(context);
	segv_info = *info;
	segv_info.si_signo = signal;
	siglongjmp(segv_return, 1);
}

static void catch_segv(void)
{
	struct sigaction action = {
		.sa_sigaction = segv_handler, .sa_flags = SA_SIGINFO
	};

	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
}

/* Do the access; return the number of signals it got. */
static int signals_of(const struct access *a, void *p)
{
	segv_count = 0;
	memset(&segv_info, 0, sizeof(segv_info));
	if (!sigsetjmp(segv_return, 1))
		a->run(p);
	return segv_count;
}

/* Check that the access gets one signal with that code, at that address. */
#define CHECK_ONE_SIGNAL(a, p, signal, code)					\
do {										\
	CHECK_EQ(a, 1, signals_of(a, p));					\
	CHECK_EQ(a, signal, segv_info.si_signo);				\
	CHECK_EQ(a, code, segv_info.si_code);					\
	CHECK_EQ(a, (void *)((unsigned long)(p) << 8 >> 8), segv_info.si_addr);	\
} while (0)

#define CHECK_ONE_SEGV(a, p, code)	CHECK_ONE_SIGNAL(a, p, SIGSEGV, code)

/* Places in a page where accesses are tried: first, in between, last. */
static size_t offset_in_page(int i)
{
	const size_t offsets[] = { 0, 0x7f0, page_size() - 16 };

	return offsets[i];
}

#define OFFSETS		3

/* Every instruction, one untouched page each. */
TEST(every_access_populates_with_the_right_value)
{
	const struct access *a;
	int tried = 0;
	long faults;
	char *p;

	for_each_tried(a) {
		if (!access_supported(a))
			continue;
		p = map_pages(1, RW);
		faults = faults_of(a, p + 0x7f0);
		CHECK_TRUE(a, holds_result(a, p + 0x7f0, zeroes));
		CHECK_LE(a, faults, 2);
		CHECK_LE(a, 1, faults);
		if (promoted(a) || !access_writes(a))
			CHECK_EQ(a, 1, faults);
		unmap_pages(p, 1);
		tried++;
	}
	TH_LOG("%d instructions tried", tried);
}

/* A load-exclusive gets a page of its own; a plain load gets the zero page. */
TEST(only_exclusives_and_atomics_are_forced_to_write)
{
	const struct access *a;
	long anonymous;
	char *p;

	for_each_tried(a) {
		if (!access_supported(a) || access_writes(a))
			continue;
		p = map_pages(1, RW);
		a->run(p);
		anonymous = smaps_kib(p, page_size(), "Anonymous");
		CHECK_EQ(a, promoted(a) ? (long)page_size() / 1024 : 0, anonymous);
		unmap_pages(p, 1);
	}
}

/* Present page, no write permission. */
TEST(read_only_page_gives_one_access_error)
{
	unsigned char value[16], initial[16];
	const struct access *a;
	char *p;
	int i;

	catch_segv();
	p = map_pages(1, RW);
	for_each_tried(a) {
		if (!access_supported(a))
			continue;
		access_initial(a, initial);
		for (i = 0; i < OFFSETS; i++) {
			memcpy(p + offset_in_page(i), initial, sizeof(initial));
			ASSERT_EQ(0, mprotect(p, page_size(), PROT_READ));
			if (access_writes(a))
				CHECK_ONE_SEGV(a, p + offset_in_page(i), SEGV_ACCERR);
			else
				CHECK_EQ(a, 0, signals_of(a, p + offset_in_page(i)));
			memcpy(value, p + offset_in_page(i), sizeof(value));
			CHECK_EQ(a, 0, memcmp(value, initial, sizeof(value)));
			ASSERT_EQ(0, mprotect(p, page_size(), RW));
		}
	}
}

/* Nobody has touched the page yet: the first fault must not grant a write. */
TEST(untouched_read_only_page_gives_one_access_error)
{
	const struct access *a;
	char *p;
	int i;

	catch_segv();
	for_each_tried(a) {
		if (!access_supported(a))
			continue;
		for (i = 0; i < OFFSETS; i++) {
			p = map_pages(1, PROT_READ);
			if (access_writes(a))
				CHECK_ONE_SEGV(a, p + offset_in_page(i), SEGV_ACCERR);
			else
				CHECK_EQ(a, 0, signals_of(a, p + offset_in_page(i)));
			CHECK_EQ(a, 0, memcmp(p + offset_in_page(i), zeroes, sizeof(zeroes)));
			CHECK_EQ(a, 0, smaps_kib(p, page_size(), "Anonymous"));
			unmap_pages(p, 1);
		}
	}
}

TEST(read_only_shared_memory_gives_one_access_error)
{
	const struct access *a;
	char *p;
	int fd;

	catch_segv();
	fd = memfd_create("read-only", MFD_CLOEXEC);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ftruncate(fd, page_size()));
	for_each_sample(a) {
		p = mmap(NULL, page_size(), PROT_READ, MAP_SHARED, fd, 0);
		ASSERT_NE(MAP_FAILED, (void *)p);
		if (access_writes(a))
			CHECK_ONE_SEGV(a, p, SEGV_ACCERR);
		else
			CHECK_EQ(a, 0, signals_of(a, p));
		CHECK_EQ(a, 0, memcmp(p, zeroes, sizeof(zeroes)));
		unmap_pages(p, 1);
	}
}

TEST(inaccessible_page_gives_one_access_error)
{
	const struct access *a;
	char *p;
	int i;

	catch_segv();
	p = map_pages(2, RW);
	p[0] = 1;	/* one page is there, one is not */
	ASSERT_EQ(0, mprotect(p, 2 * page_size(), PROT_NONE));
	for_each_tried(a) {
		if (!access_supported(a))
			continue;
		for (i = 0; i < OFFSETS; i++) {
			CHECK_ONE_SEGV(a, p + offset_in_page(i), SEGV_ACCERR);
			CHECK_ONE_SEGV(a, p + page_size() + offset_in_page(i), SEGV_ACCERR);
		}
	}
	ASSERT_EQ(0, mprotect(p, 2 * page_size(), RW));
	EXPECT_EQ(1, p[0]);
}

TEST(unmapped_address_gives_one_mapping_error)
{
	const struct access *a;
	char *p;
	int i;

	catch_segv();
	p = map_pages(3, RW);
	unmap_pages(p + page_size(), 1);
	p += page_size();
	for_each_tried(a) {
		if (!access_supported(a))
			continue;
		for (i = 0; i < OFFSETS; i++)
			CHECK_ONE_SEGV(a, p + offset_in_page(i), SEGV_MAPERR);
	}
}

/* Beyond the end of a private file there is no page to populate. */
TEST(private_file_beyond_its_end_gives_one_bus_error)
{
	const struct access *a;
	char *p;
	int fd;

	catch_segv();
	fd = memfd_create("short", MFD_CLOEXEC);
	ASSERT_LE(0, fd);
	p = mmap(NULL, page_size(), RW, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, (void *)p);
	for_each_sample(a) {
		CHECK_ONE_SIGNAL(a, p + 0x7f0, SIGBUS, BUS_ADRERR);
	}
}

static void *with_tag(void *p, unsigned long tag)
{
	return (void *)((unsigned long)p | tag << 56);
}

/* Addresses with a tag in the top byte, without memory tagging. */
TEST(top_byte_of_the_address_is_ignored)
{
	const struct access *a;
	char *p;

	catch_segv();
	for_each_sample(a) {
		p = map_pages(2, RW);
		if (promoted(a))
			CHECK_EQ(a, 1, faults_of(a, with_tag(p, 0x5a)));
		else
			a->run(with_tag(p, 0x5a));
		CHECK_TRUE(a, holds_result(a, p, zeroes));
		if (access_writes(a)) {
			ASSERT_EQ(0, mprotect(p + page_size(), page_size(), PROT_READ));
			CHECK_ONE_SEGV(a, with_tag(p + page_size(), 0x5a), SEGV_ACCERR);
		}
		unmap_pages(p, 2);
	}
}

/* ldadd x1, x2, [x0]; ret */
static const unsigned int ldadd_code[] = { 0xf8210002, 0xd65f03c0 };

/* Put the code into a page of its own, which may then only be used as "prot" says. */
static char *make_code(int prot)
{
	char *code = map_pages(1, RW);

	memcpy(code, ldadd_code, sizeof(ldadd_code));
	__builtin___clear_cache(code, code + sizeof(ldadd_code));
	return mprotect(code, page_size(), prot) ? NULL : code;
}

static unsigned long call_ldadd(void *code, void *p, unsigned long value)
{
	register unsigned long x0 asm("x0") = (unsigned long)p;
	register unsigned long x1 asm("x1") = value;
	register unsigned long x2 asm("x2");

	asm volatile("blr %[code]"
		     : "=r" (x2), "+r" (x0), "+r" (x1) : [code] "r" (code)
		     : "x3", "x4", "x30", "memory");
	return x2;
}

/* The kernel cannot read this instruction; the access works all the same. */
TEST(execute_only_code_works)
{
	unsigned long *p;
	char *code;

	if (!(getauxval(AT_HWCAP) & HWCAP_ATOMICS))
		SKIP(return, "no LSE atomics");
	catch_segv();
	code = make_code(PROT_EXEC);
	ASSERT_NE(NULL, code);
	p = map_pages(1, RW);
	EXPECT_EQ(0, call_ldadd(code, p, 5));
	EXPECT_EQ(5, call_ldadd(code, p, 2));
	EXPECT_EQ(7, *p);
	ASSERT_EQ(0, mprotect(p, page_size(), PROT_READ));
	segv_count = 0;
	if (!sigsetjmp(segv_return, 1))
		call_ldadd(code, p, 1);
	EXPECT_EQ(1, segv_count);
	EXPECT_EQ(SEGV_ACCERR, segv_info.si_code);
	EXPECT_EQ((void *)p, segv_info.si_addr);
	EXPECT_EQ(7, *p);
}

/* A jump into code that is not there is an instruction fault like any other. */
TEST(missing_code_gives_one_mapping_error)
{
	unsigned long *p = map_pages(1, RW);
	char *code = make_code(PROT_READ | PROT_EXEC);

	catch_segv();
	ASSERT_NE(NULL, code);
	unmap_pages(code, 1);
	segv_count = 0;
	if (!sigsetjmp(segv_return, 1))
		call_ldadd(code, p, 1);
	EXPECT_EQ(1, segv_count);
	EXPECT_EQ(SEGV_MAPERR, segv_info.si_code);
	EXPECT_EQ((void *)code, segv_info.si_addr);
}

/* userfaultfd: one thread resolves events, and remembers them. */
struct uffd {
	pthread_t thread;
	int fd;
	int stop[2];
	char *area;		/* untouched anonymous memory, if there is none at the start */
	bool zeropage;
	bool in_cache;		/* what is missing is in the page cache */
	bool write_protect;
	int events;
	unsigned long flags;	/* of the last event */
	unsigned long address;
};

static void uffd_resolve(struct uffd *uffd, unsigned long address)
{
	static unsigned long content[65536 / sizeof(long)] = { 0 };
	struct uffdio_writeprotect wp = {
		.range = { .start = address, .len = page_size() }
	};
	struct uffdio_zeropage zero = {
		.range = { .start = address, .len = page_size() }
	};
	struct uffdio_copy copy = {
		.dst = address, .src = (unsigned long)content, .len = page_size()
	};
	struct uffdio_continue map = {
		.range = { .start = address, .len = page_size() }
	};

	if (uffd->write_protect)
		ioctl(uffd->fd, UFFDIO_WRITEPROTECT, &wp);
	else if (uffd->zeropage)
		ioctl(uffd->fd, UFFDIO_ZEROPAGE, &zero);
	else if (uffd->in_cache)
		ioctl(uffd->fd, UFFDIO_CONTINUE, &map);
	else
		ioctl(uffd->fd, UFFDIO_COPY, &copy);
}

static void *uffd_serve(void *argument)
{
	struct uffd *uffd = argument;
	struct pollfd polled[] = {
		{ .fd = uffd->fd, .events = POLLIN },
		{ .fd = uffd->stop[0], .events = POLLIN },
	};
	struct uffd_msg message;

	while (poll(polled, 2, -1) > 0 && !polled[1].revents) {
		if (read(uffd->fd, &message, sizeof(message)) != sizeof(message))
			continue;
		if (message.event != UFFD_EVENT_PAGEFAULT)
			continue;
		uffd->events++;
		uffd->flags = message.arg.pagefault.flags;
		uffd->address = message.arg.pagefault.address;
		uffd_resolve(uffd, uffd->address & ~(page_size() - 1));
	}
	return NULL;
}

/* Register one page for that mode; false if the kernel has no such thing. */
static bool uffd_start(struct uffd *uffd, unsigned long mode, unsigned long features)
{
	struct uffdio_register registration;
	struct uffdio_api api = { .api = UFFD_API, .features = features };

	uffd->fd = syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (uffd->fd < 0)
		return false;
	if (!uffd->area)
		uffd->area = map_pages(1, RW);
	registration = (struct uffdio_register) {
		.range = { .start = (unsigned long)uffd->area, .len = page_size() },
		.mode = mode,
	};
	if (ioctl(uffd->fd, UFFDIO_API, &api) ||
	    ioctl(uffd->fd, UFFDIO_REGISTER, &registration) ||
	    pipe(uffd->stop)) {
		close(uffd->fd);
		return false;
	}
	return !pthread_create(&uffd->thread, NULL, uffd_serve, uffd);
}

static void uffd_stop(struct uffd *uffd)
{
	if (write(uffd->stop[1], "", 1) == 1)
		pthread_join(uffd->thread, NULL);
	close(uffd->stop[0]);
	close(uffd->stop[1]);
	close(uffd->fd);
	unmap_pages(uffd->area, 1);
}

/*
 * Check that one event came, with that flag or with none. If "written" is set, its flags have
 * to say that it was a write, too; of other atomics they may say so or not.
 */
static void check_uffd_event(struct __test_metadata *_metadata, const struct access *a,
			     const struct uffd *uffd, unsigned long flag, bool written)
{
	CHECK_EQ(a, 1, uffd->events);
	CHECK_EQ(a, flag, uffd->flags & ~UFFD_PAGEFAULT_FLAG_WRITE);
	/* A load-exclusive may be followed by no store: it stays a read. */
	if (written)
		CHECK_TRUE(a, uffd->flags & UFFD_PAGEFAULT_FLAG_WRITE);
	else if (!access_writes(a) || a->class == ACCESS_EXCLUSIVE)
		CHECK_FALSE(a, uffd->flags & UFFD_PAGEFAULT_FLAG_WRITE);
	CHECK_EQ(a, (unsigned long)uffd->area, uffd->address);
}

static void check_uffd_missing(struct __test_metadata *_metadata, bool zeropage)
{
	const struct access *a;

	for_each_sample(a) {
		struct uffd uffd = { .zeropage = zeropage };

		if (!uffd_start(&uffd, UFFDIO_REGISTER_MODE_MISSING, 0))
			SKIP(return, "no userfaultfd");
		a->run(uffd.area);
		CHECK_TRUE(a, holds_result(a, uffd.area, zeroes));
		check_uffd_event(_metadata, a, &uffd, 0, promoted_but_exclusive(a));
		uffd_stop(&uffd);
	}
}

TEST(userfaultfd_missing_page_is_one_event_resolved_by_copy)
{
	check_uffd_missing(_metadata, false);
}

TEST(userfaultfd_missing_page_is_one_event_resolved_by_zeropage)
{
	check_uffd_missing(_metadata, true);
}

static int uffd_protect(struct uffd *uffd)
{
	struct uffdio_writeprotect wp = {
		.range = { .start = (unsigned long)uffd->area, .len = page_size() },
		.mode = UFFDIO_WRITEPROTECT_MODE_WP,
	};

	return ioctl(uffd->fd, UFFDIO_WRITEPROTECT, &wp);
}

TEST(userfaultfd_write_protection_is_one_event)
{
	const unsigned long wp_write = UFFD_PAGEFAULT_FLAG_WP | UFFD_PAGEFAULT_FLAG_WRITE;
	unsigned char initial[16];
	const struct access *a;

	for_each_sample(a) {
		struct uffd uffd = { .write_protect = true };

		if (!uffd_start(&uffd, UFFDIO_REGISTER_MODE_WP, UFFD_FEATURE_PAGEFAULT_FLAG_WP))
			SKIP(return, "no userfaultfd write protection");
		access_initial(a, initial);
		memcpy(uffd.area, initial, sizeof(initial));
		ASSERT_EQ(0, uffd_protect(&uffd));
		a->run(uffd.area);
		CHECK_TRUE(a, holds_result(a, uffd.area, initial));
		CHECK_EQ(a, access_writes(a) ? 1 : 0, uffd.events);
		CHECK_EQ(a, access_writes(a) ? wp_write : 0, uffd.flags);
		uffd_stop(&uffd);
	}
}

/* The page is protected before it exists. */
TEST(userfaultfd_write_protection_of_untouched_page_is_kept)
{
	const struct access *a;

	for_each_sample(a) {
		struct uffd uffd = { .write_protect = true };

		if (!uffd_start(&uffd, UFFDIO_REGISTER_MODE_WP,
				UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_UNPOPULATED))
			SKIP(return, "no write protection of unpopulated pages");
		ASSERT_EQ(0, uffd_protect(&uffd));
		a->run(uffd.area);
		CHECK_TRUE(a, holds_result(a, uffd.area, zeroes));
		CHECK_EQ(a, access_writes(a) ? 1 : 0, uffd.events);
		uffd_stop(&uffd);
	}
}

/* Create a file in memory, of one page that is a hole. */
static int memory_file(void)
{
	int fd = memfd_create("memory", MFD_CLOEXEC);

	if (fd >= 0 && !ftruncate(fd, page_size()))
		return fd;
	perror("memfd_create");
	abort();
}

/* Map it untouched, MAP_SHARED or MAP_PRIVATE. */
static void *map_file(int fd, int sharing)
{
	void *p = mmap(NULL, page_size(), RW, sharing, fd, 0);

	if (p != MAP_FAILED)
		return p;
	perror("mmap");
	abort();
}

/*
 * Check what became of a page of a file that began with "was": with a shared mapping the
 * file has what the access made of it, with a private one it is unchanged.
 */
static void check_file(struct __test_metadata *_metadata, const struct access *a, int fd,
		       int sharing, const void *was)
{
	unsigned char content[16];

	ASSERT_EQ(sizeof(content), pread(fd, content, sizeof(content), 0));
	if (sharing == MAP_SHARED)
		CHECK_TRUE(a, holds_result(a, content, was));
	else
		CHECK_EQ(a, 0, memcmp(content, was, sizeof(content)));
}

/* Does this kernel promise to treat an access to a file in memory, mapped like that, as a write? */
static bool promoted_in_file(const struct access *a, int sharing)
{
	return sharing == MAP_SHARED ? promoted_in_shared_memory(a) : promoted_but_exclusive(a);
}

/* Neither the mapping nor the file has the page. */
static void check_uffd_missing_in_file(struct __test_metadata *_metadata, int sharing)
{
	const struct access *a;

	for_each_sample(a) {
		int fd = memory_file();
		struct uffd uffd = { .area = map_file(fd, sharing) };

		if (!uffd_start(&uffd, UFFDIO_REGISTER_MODE_MISSING, UFFD_FEATURE_MISSING_SHMEM))
			SKIP(return, "no userfaultfd for files in memory");
		a->run(uffd.area);
		CHECK_TRUE(a, holds_result(a, uffd.area, zeroes));
		check_file(_metadata, a, fd, sharing, zeroes);
		check_uffd_event(_metadata, a, &uffd, 0, promoted_in_file(a, sharing));
		uffd_stop(&uffd);
		close(fd);
	}
}

TEST(userfaultfd_missing_page_of_shared_memory_is_one_event)
{
	check_uffd_missing_in_file(_metadata, MAP_SHARED);
}

TEST(userfaultfd_missing_page_of_private_file_in_memory_is_one_event)
{
	check_uffd_missing_in_file(_metadata, MAP_PRIVATE);
}

/* The file has the page, the mapping has not. */
static void check_uffd_minor(struct __test_metadata *_metadata, int sharing)
{
	unsigned char initial[16];
	const struct access *a;
	bool copied;

	for_each_sample(a) {
		int fd = memory_file();
		struct uffd uffd = { .area = map_file(fd, sharing), .in_cache = true };

		if (!uffd_start(&uffd, UFFDIO_REGISTER_MODE_MINOR, UFFD_FEATURE_MINOR_SHMEM))
			SKIP(return, "no minor faults of userfaultfd");
		access_initial(a, initial);
		ASSERT_EQ(sizeof(initial), pwrite(fd, initial, sizeof(initial), 0));
		a->run(uffd.area);
		CHECK_TRUE(a, holds_result(a, uffd.area, initial));
		check_file(_metadata, a, fd, sharing, initial);
		check_uffd_event(_metadata, a, &uffd, UFFD_PAGEFAULT_FLAG_MINOR,
				 promoted_in_file(a, sharing));
		copied = sharing == MAP_PRIVATE && access_writes(a);
		CHECK_EQ(a, copied ? (long)page_size() / 1024 : 0,
			 smaps_kib(uffd.area, page_size(), "Anonymous"));
		uffd_stop(&uffd);
		close(fd);
	}
}

TEST(userfaultfd_minor_fault_of_shared_memory_is_one_event)
{
	check_uffd_minor(_metadata, MAP_SHARED);
}

TEST(userfaultfd_minor_fault_of_private_file_in_memory_is_one_event)
{
	check_uffd_minor(_metadata, MAP_PRIVATE);
}

/*
 * The file has the page. The mapping has it, too, or has not, and protects it. What is handled
 * as a write there makes no event if no store follows, but the counter tells.
 */
static void check_uffd_protected_file(struct __test_metadata *_metadata, int sharing,
				      bool mapped)
{
	const unsigned long wp_write = UFFD_PAGEFAULT_FLAG_WP | UFFD_PAGEFAULT_FLAG_WRITE;
	static struct vmstat first, last;
	unsigned char initial[16];
	const struct access *a;

	for_each_sample(a) {
		int fd = memory_file();
		struct uffd uffd = { .area = map_file(fd, sharing), .write_protect = true };

		if (!uffd_start(&uffd, UFFDIO_REGISTER_MODE_WP,
				UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM))
			SKIP(return, "no userfaultfd write protection of files in memory");
		access_initial(a, initial);
		ASSERT_EQ(sizeof(initial), pwrite(fd, initial, sizeof(initial), 0));
		if (mapped)
			access_find("load")->run(uffd.area);
		ASSERT_EQ(0, uffd_protect(&uffd));
		vmstat_read(&first);
		a->run(uffd.area);
		vmstat_read(&last);
		if (a->class == ACCESS_EXCLUSIVE_LOAD &&
		    vmstat_get(&last, "exclusive_write_fault") != VMSTAT_ABSENT)
			CHECK_EQ(a, 0, vmstat_delta(&first, &last, "exclusive_write_fault"));
		CHECK_TRUE(a, holds_result(a, uffd.area, initial));
		check_file(_metadata, a, fd, sharing, initial);
		CHECK_EQ(a, access_writes(a) ? 1 : 0, uffd.events);
		CHECK_EQ(a, access_writes(a) ? wp_write : 0, uffd.flags);
		uffd_stop(&uffd);
		close(fd);
	}
}

TEST(userfaultfd_write_protection_of_shared_memory_is_one_event)
{
	check_uffd_protected_file(_metadata, MAP_SHARED, true);
}

TEST(userfaultfd_write_protection_of_unmapped_shared_memory_is_kept)
{
	check_uffd_protected_file(_metadata, MAP_SHARED, false);
}

TEST(userfaultfd_write_protection_of_unmapped_private_file_is_kept)
{
	check_uffd_protected_file(_metadata, MAP_PRIVATE, false);
}

/* Open a file of one page in /var/tmp. */
static int disk_file(void)
{
	char name[] = "/var/tmp/atomic-write-fault.XXXXXX";
	int fd = mkstemp(name);

	if (fd < 0)
		return fd;
	unlink(name);
	if (ftruncate(fd, page_size()) || fsync(fd)) {
		close(fd);
		return -1;
	}
	return fd;
}

static long dirty_kib(void *p)
{
	return smaps_kib(p, page_size(), "Private_Dirty") +
	       smaps_kib(p, page_size(), "Shared_Dirty");
}

static long modified(int fd)
{
	struct stat status;

	if (fstat(fd, &status))
		return -1;
	return status.st_mtim.tv_sec * 1000000000L + status.st_mtim.tv_nsec;
}

/* Map the page of @fd: in the cache, clean and not in the page table. */
static void *map_clean(int fd)
{
	if (pwrite(fd, zeroes, sizeof(zeroes), 0) != sizeof(zeroes) || fsync(fd))
		return MAP_FAILED;
	return mmap(NULL, page_size(), RW, MAP_SHARED, fd, 0);
}

static void check_shared_file(struct __test_metadata *_metadata, int fd, bool on_disk)
{
	/* Longer than the clock tick that file times are taken from. */
	const struct timespec pause = { .tv_nsec = 20000000 };
	unsigned char content[16];
	const struct access *a;
	long before, dirty;
	char *p;

	ASSERT_LE(0, fd);
	for_each_sample(a) {
		/*
		 * The kernel writes a dirty page of a disk back when it likes, and the
		 * page is clean again then. An access after which it is clean therefore
		 * gets another try, again with a page that is not mapped.
		 */
		for (int tries = 1; ; tries++) {
			p = map_clean(fd);
			ASSERT_NE(MAP_FAILED, (void *)p);
			before = modified(fd);
			nanosleep(&pause, NULL);
			a->run(p);
			dirty = dirty_kib(p);
			if (dirty || !on_disk || !access_writes(a) || tries == 3)
				break;
			TH_LOG("%s: the page is clean, try %d", a->name, tries);
			unmap_pages(p, 1);
		}
		CHECK_TRUE(a, holds_result(a, p, zeroes));
		ASSERT_EQ(sizeof(content), pread(fd, content, sizeof(content), 0));
		CHECK_TRUE(a, holds_result(a, content, zeroes));
		if (access_writes(a))
			CHECK_EQ(a, (long)page_size() / 1024, dirty);
		else if (on_disk)
			CHECK_EQ(a, 0, dirty);
		if (on_disk && access_writes(a))
			CHECK_LT(a, before, modified(fd));
		if (!access_writes(a))
			CHECK_EQ(a, before, modified(fd));
		ASSERT_EQ(0, msync(p, page_size(), MS_SYNC));
		unmap_pages(p, 1);
	}
	close(fd);
}

/* A file that was never written: its memory pages are holes. */
TEST(shared_memory_hole_is_dirtied_by_writes_only)
{
	unsigned char content[16];
	const struct access *a;
	char *p;
	int fd;

	for_each_sample(a) {
		fd = memfd_create("hole", MFD_CLOEXEC);
		ASSERT_LE(0, fd);
		ASSERT_EQ(0, ftruncate(fd, page_size()));
		p = mmap(NULL, page_size(), RW, MAP_SHARED, fd, 0);
		ASSERT_NE(MAP_FAILED, (void *)p);
		a->run(p);
		CHECK_EQ(a, access_writes(a) ? (long)page_size() / 1024 : 0, dirty_kib(p));
		ASSERT_EQ(sizeof(content), pread(fd, content, sizeof(content), 0));
		CHECK_TRUE(a, holds_result(a, content, zeroes));
		unmap_pages(p, 1);
		close(fd);
	}
}

/* Memory that the kernel takes out of its linear map; a mapping of it is always shared. */
TEST(secret_memory_is_populated_by_one_access)
{
	const struct access *a;
	long faults;
	char *p;
	int fd;

	for_each_sample(a) {
		fd = syscall(__NR_memfd_secret, O_CLOEXEC);
		if (fd < 0)
			SKIP(return, "no secret memory");
		ASSERT_EQ(0, ftruncate(fd, page_size()));
		p = map_file(fd, MAP_SHARED);
		faults = faults_of(a, p + 0x7f0);
		CHECK_TRUE(a, holds_result(a, p + 0x7f0, zeroes));
		CHECK_LE(a, 1, faults);
		CHECK_LE(a, faults, one_fault_in_shared_memory(a) ? 1 : 2);
		CHECK_EQ(a, access_writes(a) ? (long)page_size() / 1024 : 0, dirty_kib(p));
		unmap_pages(p, 1);
		close(fd);
	}
}

TEST(shared_memory_gets_the_data)
{
	int fd = memfd_create("shared", MFD_CLOEXEC);

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ftruncate(fd, page_size()));
	check_shared_file(_metadata, fd, false);
}

TEST(shared_file_on_disk_is_dirtied_by_writes_only)
{
	int fd = disk_file();
	struct statfs fs;

	if (fd < 0)
		SKIP(return, "cannot write to /var/tmp");
	if (fstatfs(fd, &fs) || fs.f_type != EXT4_SUPER_MAGIC)
		SKIP(return, "/var/tmp is not on ext4");
	check_shared_file(_metadata, fd, true);
}

TEST(private_file_gets_a_copy_and_stays_unchanged)
{
	unsigned char content[16], initial[16];
	const struct access *a;
	char *p;
	int fd;

	fd = disk_file();
	if (fd < 0)
		SKIP(return, "cannot write to /var/tmp");
	for_each_tried(a) {
		if (!access_supported(a))
			continue;
		access_initial(a, initial);
		ASSERT_EQ(sizeof(initial), pwrite(fd, initial, sizeof(initial), 0));
		p = mmap(NULL, page_size(), RW, MAP_PRIVATE, fd, 0);
		ASSERT_NE(MAP_FAILED, (void *)p);
		if (promoted_but_exclusive(a))
			CHECK_EQ(a, 1, faults_of(a, p));
		else
			a->run(p);
		CHECK_TRUE(a, holds_result(a, p, initial));
		ASSERT_EQ(sizeof(content), pread(fd, content, sizeof(content), 0));
		CHECK_EQ(a, 0, memcmp(content, initial, sizeof(content)));
		unmap_pages(p, 1);
	}
	close(fd);
}

/* Until it is written, a private mapping shows what others write to the file. */
TEST(load_exclusive_of_private_file_sees_later_changes)
{
	const struct access *a;
	char *p;
	int fd;

	fd = disk_file();
	if (fd < 0)
		SKIP(return, "cannot write to /var/tmp");
	for_each_tried(a) {
		if (!access_supported(a) || access_writes(a))
			continue;
		p = mmap(NULL, page_size(), RW, MAP_PRIVATE, fd, 0);
		ASSERT_NE(MAP_FAILED, (void *)p);
		ASSERT_EQ(1, pwrite(fd, "1", 1, 0));
		a->run(p);
		ASSERT_EQ(1, pwrite(fd, "2", 1, 0));
		CHECK_EQ(a, '2', *p);
		unmap_pages(p, 1);
	}
	close(fd);
}

/*
 * Pages that may be freed are clean, and their access flag is clear: without an access flag
 * in hardware every read of them takes a fault.
 */
TEST(load_exclusive_of_freeable_memory_stays_a_read)
{
	static struct vmstat first, last;
	const struct access *a;
	const int pages = 16;
	long i;
	char *p;

	for_each_sample(a) {
		if (a->class != ACCESS_EXCLUSIVE_LOAD)
			continue;
		p = map_pages(pages, RW);
		memset(p, 1, pages * page_size());
		if (madvise(p, pages * page_size(), MADV_FREE))
			SKIP(return, "no MADV_FREE");
		CHECK_EQ(a, 0, smaps_kib(p, pages * page_size(), "Private_Dirty"));
		vmstat_read(&first);
		for (i = 0; i < pages; i++)
			a->run(p + i * page_size());
		vmstat_read(&last);
		CHECK_EQ(a, 0, smaps_kib(p, pages * page_size(), "Private_Dirty"));
		if (vmstat_get(&last, "exclusive_write_fault") != VMSTAT_ABSENT)
			CHECK_EQ(a, 0, vmstat_delta(&first, &last, "exclusive_write_fault"));
		unmap_pages(p, pages);
	}
}

/* Pages 0 and 1 exist before the fork, 2 and 3 do not. */
TEST(fork_keeps_parent_and_child_apart)
{
	unsigned char initial[16];
	const struct access *a;
	int status, i;
	pid_t child;
	char *p;

	for_each_sample(a) {
		access_initial(a, initial);
		p = map_pages(4, RW);
		memcpy(p, initial, sizeof(initial));
		memcpy(p + page_size(), initial, sizeof(initial));
		child = fork();
		ASSERT_LE(0, child);
		if (!child) {
			status = 0;
			for (i = 0; i < 4; i++) {
				a->run(p + i * page_size());
				status |= !holds_result(a, p + i * page_size(),
							i < 2 ? initial : zeroes);
			}
			_exit(status);
		}
		a->run(p);			/* while the child runs */
		a->run(p + 2 * page_size());
		ASSERT_EQ(child, waitpid(child, &status, 0));
		EXPECT_EQ(0, status)
			TH_LOG("child, %s", a->name);
		a->run(p + page_size());	/* after the child */
		a->run(p + 3 * page_size());
		for (i = 0; i < 4; i++) {
			EXPECT_TRUE(holds_result(a, p + i * page_size(), i < 2 ? initial : zeroes))
				TH_LOG("page %d, %s", i, a->name);
		}
		unmap_pages(p, 4);
	}
}

/*
 * Several threads touch all pages of one area, each starting elsewhere.  Few
 * pages are enough: where an emulator has fewer cores than the machine has CPUs,
 * threads in step cost a time slice per contended lock.
 */
#define CROWD		4
#define CROWD_PAGES	32

struct crowd {
	const struct access *access;
	char *area;
	pthread_barrier_t *start;
	int number;
};

static void *crowd_touch(void *argument)
{
	struct crowd *me = argument;
	int i, page;

	pthread_barrier_wait(me->start);
	for (i = 0; i < CROWD_PAGES; i++) {
		page = (i + me->number * CROWD_PAGES / CROWD) % CROWD_PAGES;
		me->access->run(me->area + page * page_size());
	}
	return NULL;
}

TEST(threads_populate_one_area_together)
{
	static const char * const names[] = { "ldadd", "staddl", "ldxr", "ldaxr", "ldxp" };
	struct crowd crowd[CROWD];
	pthread_barrier_t start;
	pthread_t thread[CROWD];
	unsigned long sum;
	char *area;
	size_t n;
	int i;

	for (n = 0; n < ARRAY_SIZE(names); n++) {
		if (!access_supported(access_find(names[n])))
			continue;
		area = map_pages(CROWD_PAGES, RW);
		pthread_barrier_init(&start, NULL, CROWD);
		for (i = 0; i < CROWD; i++) {
			crowd[i] = (struct crowd) {
				.access = access_find(names[n]), .area = area,
				.start = &start, .number = i,
			};
			ASSERT_EQ(0, pthread_create(&thread[i], NULL, crowd_touch, &crowd[i]));
		}
		for (i = 0; i < CROWD; i++)
			pthread_join(thread[i], NULL);
		for (sum = 0, i = 0; i < CROWD_PAGES; i++)
			sum += *(unsigned long *)(area + i * page_size());
		EXPECT_EQ(CROWD * CROWD_PAGES, sum)
			TH_LOG("%s", names[n]);
		unmap_pages(area, CROWD_PAGES);
	}
}

/* Memory that is locked as it is touched. */
TEST(locked_on_fault_memory_is_locked_by_one_access)
{
	const struct access *a;
	char *p;

	for_each_sample(a) {
		p = map_pages(1, RW);
		if (syscall(__NR_mlock2, p, page_size(), 1 /* MLOCK_ONFAULT */))
			SKIP(return, "cannot lock memory");
		a->run(p);
		CHECK_TRUE(a, holds_result(a, p, zeroes));
		if (access_writes(a) || promoted(a))
			CHECK_EQ(a, (long)page_size() / 1024, smaps_kib(p, page_size(), "Locked"));
		unmap_pages(p, 1);
	}
}

/*
 * One thread adds 1 to two pages, over and over, while their protection flips;
 * the second page is also thrown away now and then.  A signal while they are
 * read-only means: try again.
 */
struct flips {
	const struct access *access;
	char *area;
	int stop;
	unsigned long done;
};

static int flip_signals;
static int flip_wrong;

static void flip_handler(int signal, siginfo_t *info, void *context)
{
	(void)context;
	__atomic_add_fetch(&flip_signals, 1, __ATOMIC_RELAXED);
	if (signal != SIGSEGV || info->si_code != SEGV_ACCERR)
		__atomic_add_fetch(&flip_wrong, 1, __ATOMIC_RELAXED);
}

static void *flip_access(void *argument)
{
	struct flips *flips = argument;

	while (!__atomic_load_n(&flips->stop, __ATOMIC_RELAXED)) {
		flips->access->run(flips->area);
		flips->access->run(flips->area + page_size());
		__atomic_add_fetch(&flips->done, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

TEST(changes_of_protection_never_hang_or_lose_an_access)
{
	struct sigaction action = {
		.sa_sigaction = flip_handler, .sa_flags = SA_SIGINFO
	};
	const struct timespec pause = { .tv_nsec = 20000 };
	static const char * const names[] = { "ldadd", "ldxr" };
	pthread_t thread;
	size_t n;
	int i;

	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
	for (n = 0; n < ARRAY_SIZE(names); n++) {
		struct flips flips = { .access = access_find(names[n]) };

		if (!access_supported(flips.access))
			continue;
		flips.area = map_pages(2, RW);
		flip_signals = 0;
		ASSERT_EQ(0, pthread_create(&thread, NULL, flip_access, &flips));
		/* Until one access at least has met a page that is read-only. */
		for (i = 0; i < 150 || (!flip_signals && i < 15000); i++) {
			mprotect(flips.area, 2 * page_size(), PROT_READ);
			if (i % 3 == 0)
				madvise(flips.area + page_size(), page_size(), MADV_DONTNEED);
			if (i % 7 == 0)
				nanosleep(&pause, NULL);
			mprotect(flips.area, 2 * page_size(), RW);
			if (i % 5 == 0)
				nanosleep(&pause, NULL);
		}
		__atomic_store_n(&flips.stop, 1, __ATOMIC_RELAXED);
		ASSERT_EQ(0, pthread_join(thread, NULL));
		EXPECT_LT(0, flips.done);
		EXPECT_LT(0, flip_signals);
		EXPECT_EQ(flips.done, *(unsigned long *)flips.area);
		EXPECT_EQ(0, flip_wrong);
		TH_LOG("%s: %lu accesses, %d signals", names[n], flips.done, flip_signals);
		unmap_pages(flips.area, 2);
	}
}

/* A wait loop of load-exclusive and WFE on a page that nobody has written. */
struct waiter {
	unsigned int *flag;
	unsigned int first;	/* value seen first */
	unsigned int last;	/* value that ended the wait */
	int waiting;
};

static void *wait_for_change(void *argument)
{
	struct waiter *waiter = argument;
	unsigned int value;

	asm volatile("ldaxr %w0, [%1]" : "=&r" (value) : "r" (waiter->flag) : "memory");
	waiter->first = value;
	__atomic_store_n(&waiter->waiting, 1, __ATOMIC_RELEASE);
	while (!value) {
		asm volatile("wfe\n\tldaxr %w0, [%1]"
			     : "=&r" (value) : "r" (waiter->flag) : "memory");
	}
	asm volatile("clrex" : : : "memory");
	waiter->last = value;
	return NULL;
}

TEST(wait_loop_on_untouched_page_sees_zero_then_the_new_value)
{
	const struct timespec pause = { .tv_nsec = 5000000 };
	struct waiter waiter = { .first = ~0U };
	pthread_t thread;

	waiter.flag = map_pages(1, RW);
	ASSERT_EQ(0, pthread_create(&thread, NULL, wait_for_change, &waiter));
	while (!__atomic_load_n(&waiter.waiting, __ATOMIC_ACQUIRE))
		nanosleep(&pause, NULL);
	nanosleep(&pause, NULL);
	__atomic_store_n(waiter.flag, 7, __ATOMIC_RELEASE);
	ASSERT_EQ(0, pthread_join(thread, NULL));
	EXPECT_EQ(0, waiter.first);
	EXPECT_EQ(7, waiter.last);
}

/* With transparent huge pages, one access makes a huge page. */
TEST(one_access_makes_a_huge_page)
{
	size_t size = thp_size();
	const struct access *a;
	long faults, huge;
	char *area, *p;

	if (!size || size > (64UL << 20))
		SKIP(return, "no huge pages of a usable size");
	area = mmap(NULL, 2 * size, RW, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)area);
	p = (char *)(((unsigned long)area + size - 1) & ~(size - 1));
	if (madvise(p, size, MADV_HUGEPAGE))
		SKIP(return, "no transparent huge pages");
	for_each_sample(a) {
		ASSERT_EQ(0, madvise(p, size, MADV_DONTNEED));
		faults = faults_of(a, p + page_size());
		huge = smaps_kib(p, size, "AnonHugePages");
		CHECK_TRUE(a, holds_result(a, p + page_size(), zeroes));
		if (promoted(a)) {
			if (a->class == ACCESS_STORE && !huge)
				SKIP(return, "no huge page is free");
			CHECK_EQ(a, 1, faults);
			CHECK_EQ(a, (long)size / 1024, huge);
		} else if (!access_writes(a)) {
			CHECK_EQ(a, 0, huge);
		}
	}
}

/* Create a file in a tmpfs of its own, where pages are huge if they can be; -1 without that. */
static int huge_file(void)
{
	char directory[] = "/var/tmp/atomic-write-fault.XXXXXX";
	int fd = -1;

	if (!mkdtemp(directory))
		return -1;
	if (!mount("tmpfs", directory, "tmpfs", 0, "huge=always")) {
		fd = open(directory, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
		/* It stays until the file is closed. */
		umount2(directory, MNT_DETACH);
	}
	rmdir(directory);
	return fd;
}

/* In shared memory a read makes a huge page, too; what was written to is dirty. */
TEST(one_access_makes_a_huge_page_of_shared_memory)
{
	size_t size = thp_size();
	const struct access *a;
	long faults, huge, dirty;
	char *area, *p;
	int fd;

	if (!size || size > (64UL << 20))
		SKIP(return, "no huge pages of a usable size");
	fd = huge_file();
	if (fd < 0)
		SKIP(return, "no tmpfs with huge pages can be mounted");
	area = mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)area);
	p = (char *)(((unsigned long)area + size - 1) & ~(size - 1));
	ASSERT_EQ(p, (char *)mmap(p, size, RW, MAP_SHARED | MAP_FIXED, fd, 0));
	for_each_sample(a) {
		ASSERT_EQ(0, ftruncate(fd, 0));
		ASSERT_EQ(0, ftruncate(fd, size));
		faults = faults_of(a, p + page_size());
		huge = smaps_kib(p, size, "ShmemPmdMapped");
		dirty = smaps_kib(p, size, "Private_Dirty");
		CHECK_TRUE(a, holds_result(a, p + page_size(), zeroes));
		if (a->class == ACCESS_STORE && !huge)
			SKIP(return, "no huge page is free");
		CHECK_EQ(a, (long)size / 1024, huge);
		CHECK_LE(a, 1, faults);
		CHECK_LE(a, faults, one_fault_in_shared_memory(a) ? 1 : 2);
		CHECK_EQ(a, access_writes(a) ? (long)size / 1024 : 0, dirty);
	}
	close(fd);
	munmap(area, 2 * size);
}

/* The faulting address lies below the mapping, which must grow first. */
TEST(access_below_a_stack_makes_it_grow)
{
	size_t reserve = 1024 * page_size();
	const struct access *a;
	long faults;
	char *area;
	char *top;

	for_each_sample(a) {
		area = mmap(NULL, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		ASSERT_NE(MAP_FAILED, (void *)area);
		munmap(area, reserve);
		top = area + reserve - page_size();
		ASSERT_EQ(top, (char *)mmap(top, page_size(), RW,
					    MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN |
					    MAP_FIXED_NOREPLACE, -1, 0));
		madvise(top, page_size(), MADV_NOHUGEPAGE);
		faults = faults_of(a, top - 3 * page_size() + 64);
		CHECK_TRUE(a, holds_result(a, top - 3 * page_size() + 64, zeroes));
		if (promoted(a) || !access_writes(a))
			CHECK_EQ(a, 1, faults);
		munmap(top - 3 * page_size(), 4 * page_size());
	}
}

static long hugetlb_free(void)
{
	char path[128];

	snprintf(path, sizeof(path),
		 "/sys/kernel/mm/hugepages/hugepages-%lukB/free_hugepages",
		 thp_size() / 1024);
	return number_read(path, 0);
}

#define FAIL_PAGE_ALLOC	"/sys/kernel/debug/fail_page_alloc/"

/* For the calling task no page can be had, a number of times; what ends that, or -1. */
static int fail_page_alloc(long times)
{
	int fd = open(FAIL_PAGE_ALLOC "probability", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return -1;
	number_write(FAIL_PAGE_ALLOC "verbose", 0);
	number_write(FAIL_PAGE_ALLOC "times", times);
	number_write(FAIL_PAGE_ALLOC "task-filter", 1);
	number_write(FAIL_PAGE_ALLOC "ignore-gfp-wait", 0);
	number_write(FAIL_PAGE_ALLOC "ignore-gfp-highmem", 0);
	number_write(FAIL_PAGE_ALLOC "min-order", 0);
	number_write("/proc/self/make-it-fail", 1);
	if (write(fd, "100", 3) == 3)
		return fd;
	close(fd);
	return -1;
}

/* If its page cannot be allocated, who only reads has the zero page. */
TEST(load_exclusive_whose_page_cannot_be_allocated_has_the_zero_page)
{
	const size_t size = page_size();
	const struct access *a;

	for_each_sample(a) {
		char *pages = map_pages(3, RW), *p = pages;
		int fd;

		if (a->class != ACCESS_EXCLUSIVE_LOAD)
			continue;
		/* The first page brings the table that the second one's entry is in. */
		if (!((uintptr_t)(p + size) % (2UL << 20)))
			p += size;
		access_find("load")->run(p);
		fd = fail_page_alloc(100);
		if (fd < 0)
			SKIP(return, "no fault injection");
		a->run(p + size);
		CHECK_EQ(a, 1, write(fd, "0", 1));
		close(fd);
		number_write("/proc/self/make-it-fail", 0);
		CHECK_EQ(a, 0, smaps_kib(pages, 3 * size, "Anonymous"));
		CHECK_TRUE(a, number_read(FAIL_PAGE_ALLOC "times", 0) > 0);
		unmap_pages(pages, 3);
	}
}

/* In droppable memory a write that gets no page is no error: it is tried again for ever. */
TEST(load_exclusive_in_droppable_memory_stays_a_read)
{
	const int flags = MAP_DROPPABLE | MAP_ANONYMOUS;
	const struct access *a;
	char *p;

	for_each_sample(a) {
		if (a->class != ACCESS_EXCLUSIVE_LOAD)
			continue;
		p = mmap(NULL, page_size(), RW, flags, -1, 0);
		if (p == MAP_FAILED)
			SKIP(return, "no droppable memory");
		a->run(p);
		CHECK_EQ(a, 0, smaps_kib(p, page_size(), "Anonymous"));
		unmap_pages(p, 1);
	}
}

TEST(hugetlb_page_is_allocated_once)
{
	const char *pool = "/proc/sys/vm/nr_hugepages";
	long reserved = number_read(pool, 0), before;
	const struct access *a;
	size_t size = thp_size();
	char *p;

	if (!size || size > (64UL << 20))
		SKIP(return, "no huge pages of a usable size");
	number_write(pool, reserved + 1);
	before = hugetlb_free();
	if (!before) {
		number_write(pool, reserved);
		SKIP(return, "no huge page can be reserved");
	}
	for_each_sample(a) {
		p = mmap(NULL, size, RW, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
		ASSERT_NE(MAP_FAILED, (void *)p);
		a->run(p + page_size());
		CHECK_TRUE(a, holds_result(a, p + page_size(), zeroes));
		CHECK_EQ(a, before - 1, hugetlb_free());
		munmap(p, size);
	}
	number_write(pool, reserved);
}

#define FAILING_WRITES	100L

/* How many faults so many writes take that fail, each in a new mapping of the file. */
static long faults_of_failing_writes(const struct access *a, int fd, size_t size)
{
	static struct vmstat first, last;
	char *p;
	int i;

	for (i = -1; i < FAILING_WRITES; i++) {
		if (i == 0)
			vmstat_read(&first);
		p = mmap(NULL, size, RW, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
		if (p == MAP_FAILED)
			return -1;
		signals_of(a, p);
		munmap(p, size);
	}
	vmstat_read(&last);
	return vmstat_delta(&first, &last, "pgfault");
}

/*
 * A private mapping of a hugetlb file, with the page in the page cache and the
 * pool empty: it can be read, and a write is a bus error that says it was a write.
 * A load-exclusive alone must read, as a load does.
 */
TEST(hugetlb_file_without_a_free_page_can_be_read_and_not_written)
{
	const char *pool = "/proc/sys/vm/nr_hugepages";
	long reserved = number_read(pool, 0);
	const struct access *a;
	size_t size = thp_size();
	char *shared, *private;
	int fd;

	if (!size || size > (64UL << 20))
		SKIP(return, "no huge pages of a usable size");
	if (reserved)
		SKIP(return, "huge pages are in use");
	fd = memfd_create("hugetlb", MFD_CLOEXEC | MFD_HUGETLB);
	if (fd < 0)
		SKIP(return, "no hugetlb files");
	ASSERT_EQ(0, ftruncate(fd, size));
	number_write(pool, 1);
	shared = mmap(NULL, size, RW, MAP_SHARED, fd, 0);
	if (shared == MAP_FAILED) {
		number_write(pool, 0);
		SKIP(return, "no huge page can be reserved");
	}
	*(long *)shared = 42;
	catch_segv();
	for_each_sample(a) {
		private = mmap(NULL, size, RW, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
		ASSERT_NE(MAP_FAILED, (void *)private);
		if (access_writes(a)) {
			CHECK_ONE_SIGNAL(a, private, SIGBUS, BUS_ADRERR);
			CHECK_TRUE(a, segv_write);
			/*
			 * One that reads, if it is reported so, and one that fails; a few
			 * of others.
			 */
			CHECK_LT(a, faults_of_failing_writes(a, fd, size),
				 FAILING_WRITES * 5 / 2);
		} else {
			CHECK_EQ(a, 0, signals_of(a, private));
		}
		munmap(private, size);
	}
	munmap(shared, size);
	close(fd);
	number_write(pool, 0);
}

/* Use a new file for swapping; what it is called, or NULL. */
static const char *swap_on(size_t size)
{
	static const char * const name = "/var/tmp/atomic-write-fault.swap";
	char *page = calloc(1, page_size());
	int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	bool written = page && fd >= 0;
	size_t i;

	/* All of it, as a file for swapping must not have holes; then a header as mkswap's. */
	for (i = 0; i < size && written; i += page_size())
		written = write(fd, page, page_size()) == (ssize_t)page_size();
	if (written) {
		((unsigned int *)(page + 1024))[0] = 1;
		((unsigned int *)(page + 1024))[1] = size / page_size() - 1;
		memcpy(page + page_size() - 10, "SWAPSPACE2", 10);
		written = pwrite(fd, page, page_size(), 0) == (ssize_t)page_size() && !fsync(fd);
	}
	free(page);
	close(fd);
	if (written && !swapon(name, 0))
		return name;
	unlink(name);
	return NULL;
}

/* Have as many of some pages swapped out as are wanted; how many are in the end. */
static long swap_out(char *p, long pages, long wanted)
{
	size_t size = pages * page_size();
	long swapped = 0;
	int tries;

	for (tries = 0; tries < 3000 && swapped < wanted; tries++) {
		/* What is still being written stays for now. */
		if (tries)
			usleep(10000);
		madvise(p, size, MADV_PAGEOUT);
		swapped = smaps_kib(p, size, "Swap") * 1024 / (long)page_size();
	}
	return swapped;
}

/* A page that is swapped in to be read is as good as the one in swap. */
TEST(load_exclusive_of_swapped_memory_stays_a_read)
{
	static struct vmstat first, last;
	const struct access *a;
	const int pages = 16;
	const char *swap = swap_on(256 * page_size());
	cpu_set_t here;
	long i;
	char *p;

	if (!swap)
		SKIP(return, "no swapping to a file");
	/* Only what this CPU has lately added to the lists of the kernel is seen there at once. */
	CPU_ZERO(&here);
	CPU_SET(sched_getcpu(), &here);
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(here), &here));
	for_each_sample(a) {
		if (a->class != ACCESS_EXCLUSIVE_LOAD)
			continue;
		p = map_pages(pages, RW);
		memset(p, 1, pages * page_size());
		CHECK_EQ(a, pages, swap_out(p, pages, pages));
		vmstat_read(&first);
		for (i = 0; i < pages; i++)
			a->run(p + i * page_size());
		vmstat_read(&last);
		if (vmstat_get(&last, "exclusive_write_fault") != VMSTAT_ABSENT)
			CHECK_EQ(a, 0, vmstat_delta(&first, &last, "exclusive_write_fault"));
		unmap_pages(p, pages);
	}
	swapoff(swap);
	unlink(swap);
}

/*
 * While swapoff brings pages back to memory, what it has not come to yet is still
 * swapped out. They are shared with a child since fork(), so a write would copy them.
 * Return how many loads took a fault: none if swapoff was through before the first.
 */
static long check_loads_during_swapoff(struct __test_metadata *_metadata, const char *swap,
				       size_t size, const cpu_set_t *all)
{
	const struct access *a = access_find("ldaxr_only");
	const long pages = size / page_size();
	static struct vmstat first, last;
	struct sysinfo before, now;
	long i, faults;
	pid_t child;
	int status;
	char *p;

	p = map_pages(pages, RW);
	/* Pages that hold the same byte all over would not be written to the file. */
	for (i = 0; i < (long)size; i += sizeof(long))
		*(long *)(p + i) = i + 1;
	/* Most will do. */
	EXPECT_LE(pages * 3 / 4, swap_out(p, pages, pages * 3 / 4));

	sysinfo(&before);
	child = fork();
	ASSERT_LE(0, child);
	if (!child) {
		sched_setaffinity(0, sizeof(*all), all);
		_exit(!!swapoff(swap));
	}
	vmstat_read(&first);
	/* As soon as it has begun, only what is still in use counts. */
	for (i = 0; i < 1000000; i++) {
		sysinfo(&now);
		if (now.totalswap < before.totalswap)
			break;
		sched_yield();
	}
	faults = thread_faults();
	/* swapoff goes upwards, too: at the end it comes last. */
	for (i = pages - 1; i >= 0; i--) {
		a->run(p + i * page_size());
		EXPECT_EQ(i * (long)page_size() + 1, *(long *)(p + i * page_size()));
		/* If there is one CPU only, swapoff gets its turn. */
		sched_yield();
	}
	/* What was back already took none. */
	faults = thread_faults() - faults;
	vmstat_read(&last);
	ASSERT_EQ(child, waitpid(child, &status, 0));
	EXPECT_EQ(0, status);
	if (vmstat_get(&last, "exclusive_write_fault") != VMSTAT_ABSENT)
		EXPECT_EQ(0, vmstat_delta(&first, &last, "exclusive_write_fault"));
	unmap_pages(p, pages);
	return faults;
}

TEST(load_exclusive_stays_a_read_while_swap_is_switched_off)
{
	const size_t size = 8 << 20;
	cpu_set_t here, all;
	long faults = 0;
	int tries;

	/* As above, but the child is to run on another CPU at the same time. */
	ASSERT_EQ(0, sched_getaffinity(0, sizeof(all), &all));
	CPU_ZERO(&here);
	CPU_SET(sched_getcpu(), &here);
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(here), &here));
	/* A host that is busy may let swapoff finish before this CPU gets its turn. */
	for (tries = 0; tries < 10 && !faults && __test_passed(_metadata); tries++) {
		const char *swap = swap_on(2 * size);

		if (!swap)
			SKIP(return, "no swapping to a file");
		faults = check_loads_during_swapoff(_metadata, swap, size, &all);
		swapoff(swap);
		unlink(swap);
	}
	if (!faults && __test_passed(_metadata))
		SKIP(return, "all was back before a page was touched, %d times", tries);
}

/* Turn on checks of memory tags: PR_MTE_TCF_SYNC or PR_MTE_TCF_ASYNC. */
static bool mte_start(unsigned long mode)
{
	if (!(getauxval(AT_HWCAP2) & HWCAP2_MTE))
		return false;
	return !prctl(PR_SET_TAGGED_ADDR_CTRL,
		      PR_TAGGED_ADDR_ENABLE | mode | 0xfffeUL << PR_MTE_TAG_SHIFT,
		      0, 0, 0);
}

TEST(tagged_memory_works_and_mismatches_are_reported)
{
	const struct access *a;
	void *good, *bad;
	char *p;

	if (!mte_start(PR_MTE_TCF_SYNC))
		SKIP(return, "no memory tagging");
	catch_segv();
	for_each_sample(a) {
		/* Untouched: all tags are 0. */
		p = map_pages(2, RW | PROT_MTE);
		CHECK_EQ(a, 0, signals_of(a, p + 64));
		CHECK_TRUE(a, holds_result(a, p + 64, zeroes));
		CHECK_ONE_SEGV(a, with_tag(p + page_size(), 3), SEGV_MTESERR);
		CHECK_EQ(a, 0, memcmp(p + page_size(), zeroes, sizeof(zeroes)));

		/* Give the granule a tag. */
		good = with_tag(p + 128, 5);
		bad = with_tag(p + 128, 6);
		asm volatile(".arch armv8.5-a+memtag\n\tstg %0, [%0]"
			     : : "r" (good) : "memory");
		CHECK_ONE_SEGV(a, bad, SEGV_MTESERR);
		CHECK_EQ(a, 0, signals_of(a, good));
		CHECK_TRUE(a, holds_result(a, good, zeroes));
		unmap_pages(p, 2);
	}
}

/* Instruction fetches are not checked, so the kernel's look at the code must not be. */
static void check_tagged_code(struct __test_metadata *_metadata, unsigned long mode)
{
	unsigned long *p = map_pages(1, RW);
	char *code;

	if (!mte_start(mode))
		SKIP(return, "no memory tagging");
	catch_segv();
	code = make_code(PROT_READ | PROT_WRITE | PROT_EXEC | PROT_MTE);
	ASSERT_NE(NULL, code);
	asm volatile(".arch armv8.5-a+memtag\n\tstg %0, [%0]"
		     : : "r" (with_tag(code, 5)) : "memory");
	segv_count = 0;
	if (!sigsetjmp(segv_return, 1)) {
		EXPECT_EQ(0, call_ldadd(code, p, 5));
		/* An asynchronous tag check fault is told by the next system call. */
		syscall(__NR_getppid);
	}
	EXPECT_EQ(0, segv_count);
	EXPECT_EQ(5, *p);
}

TEST(code_with_tags_works_with_synchronous_checks)
{
	check_tagged_code(_metadata, PR_MTE_TCF_SYNC);
}

TEST(code_with_tags_works_with_asynchronous_checks)
{
	check_tagged_code(_metadata, PR_MTE_TCF_ASYNC);
}

/* A protection key that forbids writing: only writes fail, and with its code. */
TEST(protection_key_forbids_writes_only)
{
	const struct access *a;
	char *p;
	int key;

	key = syscall(__NR_pkey_alloc, 0, 2 /* PKEY_DISABLE_WRITE */);
	if (key < 0)
		SKIP(return, "no protection keys");
	catch_segv();
	for_each_sample(a) {
		p = map_pages(1, RW);
		ASSERT_EQ(0, syscall(__NR_pkey_mprotect, p, page_size(), RW, key));
		if (access_writes(a))
			CHECK_ONE_SEGV(a, p, SEGV_PKUERR);
		else
			CHECK_EQ(a, 0, signals_of(a, p));
		unmap_pages(p, 1);
	}
}

static void *wait_for_end(void *pipe)
{
	char none;

	return (void *)read(*(int *)pipe, &none, 1);
}

/*
 * Pages that NUMA balancing made inaccessible come back with their contents. They are
 * not untouched: what brings them back is no fault of a load-exclusive handled as a write.
 */
static void check_numa_hints(struct __test_metadata *_metadata, const struct access *a,
			     long step)
{
	const char *knob = "/proc/sys/kernel/numa_balancing";
	long before = number_read(knob, 0), i, hints, round = 0;
	const long pages = 2048;
	static struct vmstat first, last;
	pthread_t other;
	int ends[2];
	time_t end;
	char *p;

	if (access("/sys/devices/system/node/node1", F_OK) || access(knob, F_OK))
		SKIP(return, "no second NUMA node, or no NUMA balancing");
	if (!access_supported(a))
		SKIP(return, "no LSE atomics");
	p = map_pages(pages, RW);
	for (i = 0; i < pages; i++)
		*(long *)(p + i * page_size()) = 0;
	/* Of a task with one thread, pages on its own node are left alone. */
	ASSERT_EQ(0, pipe(ends));
	ASSERT_EQ(0, pthread_create(&other, NULL, wait_for_end, &ends[0]));
	number_write(knob, 1);
	vmstat_read(&first);
	end = time(NULL) + 20;
	do {
		for (i = 0; i < pages; i++)
			a->run(p + i * page_size());
		round++;
		vmstat_read(&last);
		hints = vmstat_delta(&first, &last, "numa_hint_faults");
	} while (time(NULL) < end && hints < pages);
	number_write(knob, before);
	close(ends[1]);
	pthread_join(other, NULL);
	close(ends[0]);
	TH_LOG("%s: %ld rounds, %ld hinting faults", a->name, round, hints);
	EXPECT_LE(pages, hints);
	for (i = 0; i < pages; i++)
		CHECK_EQ(a, round * step, *(long *)(p + i * page_size()));
	if (vmstat_get(&first, "exclusive_write_fault") != VMSTAT_ABSENT)
		CHECK_EQ(a, 0, vmstat_delta(&first, &last, "exclusive_write_fault"));
	unmap_pages(p, pages);
}

TEST(numa_hinting_faults_of_atomics_keep_the_contents)
{
	check_numa_hints(_metadata, access_find("ldadd"), 1);
}

TEST(numa_hinting_faults_of_load_exclusives_stay_reads)
{
	check_numa_hints(_metadata, access_find("ldaxr_only"), 0);
}

/* The counters move once for each populated page, and not when nothing is forced. */
TEST(counters_count_forced_faults)
{
	static struct vmstat first, last;
	const long pages = 64;
	const struct access *a;
	long atomic, exclusive;
	long i;
	char *p;

	vmstat_read(&first);
	if (vmstat_get(&first, "atomic_write_fault") == VMSTAT_ABSENT)
		SKIP(return, "this kernel has no such counters");
	for_each_sample(a) {
		p = map_pages(pages, RW);
		vmstat_read(&first);
		for (i = 0; i < pages; i++)
			a->run(p + i * page_size());
		vmstat_read(&last);
		atomic = vmstat_delta(&first, &last, "atomic_write_fault");
		exclusive = vmstat_delta(&first, &last, "exclusive_write_fault");
		if (a->class == ACCESS_ATOMIC) {
			/* 0 where the emulator reports a write by itself. */
			EXPECT_TRUE(atomic == 0 || (promoted(a) && atomic == pages))
				TH_LOG("%s: %ld", a->name, atomic);
			CHECK_EQ(a, 0, exclusive);
		} else {
			CHECK_EQ(a, 0, atomic);
			CHECK_EQ(a, promoted(a) && a->class != ACCESS_STORE ? pages : 0, exclusive);
		}
		unmap_pages(p, pages);
	}
}

TEST_HARNESS_MAIN
