// SPDX-License-Identifier: GPL-2.0-only
/*
 * Touch every page of an untouched area once with a given instruction, and say
 * what the kernel did for it.
 *
 * The same loop runs twice over the area.  The first pass takes the faults; the
 * second finds everything mapped, so that first_ticks - second_ticks is the
 * kernel's share.  Time is the virtual counter, in nanoseconds of guest time;
 * under QEMU's -icount shift=0 one nanosecond is one instruction.  It includes
 * waiting for a disk; first_cpu and second_cpu, the CPU time of the threads that
 * touch, do not.  Faults are those of these threads during the first pass only:
 * the program's own code, stack and buffers are touched before.
 *
 * Output: one key=value per line.  Counters this kernel does not have are
 * printed as "absent".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

#include "access.h"
#include "vmstat.h"

#define MAX_THREADS	64

enum mapping { ANON, PRIVATE_FILE, SHARED_FILE, SHMEM };

static const char * const mapping_names[] = {
	[ANON] = "anon",
	[PRIVATE_FILE] = "private-file",
	[SHARED_FILE] = "shared-file",
	[SHMEM] = "shmem",
};

static const char * const counters[] = {
	"pgfault", "pgmajfault", "thp_fault_alloc", "thp_zero_page_alloc",
	"thp_split_pmd", "atomic_write_fault", "exclusive_write_fault",
};

static struct {
	const struct access *access;
	enum mapping mapping;
	bool thp;
	bool cold;
	bool hidden;
	int threads;
	size_t size;
	size_t page;
	const char *file;
} options = {
	.threads = 1,
	.file = "/var/tmp/populate.data",
};

/* What one thread touches, and what it saw. */
struct worker {
	pthread_t thread;
	char *start;
	size_t size;
	long faults;		/* first pass, minor and major */
	unsigned long begin[2];	/* counter at the start and end of each pass */
	unsigned long end[2];
	unsigned long cpu[2];	/* CPU time of each pass, nanoseconds */
};

static struct worker workers[MAX_THREADS];
static pthread_barrier_t barrier;
static struct vmstat before, after;

static void fail(const char *what)
{
	perror(what);
	exit(EXIT_FAILURE);
}

static unsigned long counter(void)
{
	unsigned long ticks;

	asm volatile("isb\n\tmrs %0, cntvct_el0" : "=r" (ticks) : : "memory");
	return ticks;
}

static unsigned long nanoseconds(unsigned long ticks)
{
	unsigned long frequency;

	asm("mrs %0, cntfrq_el0" : "=r" (frequency));
	return (__uint128_t)ticks * 1000000000 / frequency;
}

/* What this thread has used so far. */
static unsigned long cpu_time(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return used.tv_sec * 1000000000UL + used.tv_nsec;
}

static void touch(struct worker *worker, int pass)
{
	void (*run)(void *p) = options.access->run;
	char *end = worker->start + worker->size;
	size_t page = options.page;
	unsigned long cpu = cpu_time();
	char *p;

	worker->begin[pass] = counter();
	for (p = worker->start; p < end; p += page)
		run(p);
	worker->end[pass] = counter();
	worker->cpu[pass] = cpu_time() - cpu;
}

/* Bring in the code and the stack that a pass uses, with a pass over one element. */
static void rehearse(struct worker *worker)
{
	static char scratch[MAX_THREADS][16] __attribute__((aligned(64)));
	struct worker rehearsal = {
		.start = scratch[worker - workers], .size = 1
	};
	struct rusage usage;

	memset(rehearsal.start, 0, 16);
	getrusage(RUSAGE_THREAD, &usage);
	touch(&rehearsal, 0);
	getrusage(RUSAGE_THREAD, &usage);
}

static void first_pass(struct worker *worker)
{
	struct rusage usage;

	pthread_barrier_wait(&barrier);	/* the snapshot has been taken */
	getrusage(RUSAGE_THREAD, &usage);
	worker->faults = -(usage.ru_minflt + usage.ru_majflt);
	touch(worker, 0);
	getrusage(RUSAGE_THREAD, &usage);
	worker->faults += usage.ru_minflt + usage.ru_majflt;
	pthread_barrier_wait(&barrier);
}

static void *work(void *argument)
{
	struct worker *worker = argument;

	rehearse(worker);
	pthread_barrier_wait(&barrier);	/* all threads exist */
	first_pass(worker);
	pthread_barrier_wait(&barrier);	/* the contents have been checked */
	touch(worker, 1);
	pthread_barrier_wait(&barrier);
	return NULL;
}

/* From the first thread's start of a pass to the last one's end. */
static unsigned long pass_time(int pass)
{
	unsigned long begin = ULONG_MAX, end = 0;
	int i;

	for (i = 0; i < options.threads; i++) {
		if (workers[i].begin[pass] < begin)
			begin = workers[i].begin[pass];
		if (workers[i].end[pass] > end)
			end = workers[i].end[pass];
	}
	return nanoseconds(end - begin);
}

/* Each page of a file starts with its number, counted from 1. */
static int make_file(void)
{
	char *buffer = calloc(1, options.page);
	unsigned long number;
	int fd;

	fd = open(options.file, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || !buffer)
		fail(options.file);
	for (number = 1; number <= options.size / options.page; number++) {
		memcpy(buffer, &number, sizeof(number));
		if (write(fd, buffer, options.page) != (ssize_t)options.page)
			fail(options.file);
	}
	free(buffer);
	if (fsync(fd))
		fail("fsync");
	return fd;
}

#define MAX_PTES_NONE	"/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none"

static long max_ptes_none;

static void write_max_ptes_none(long number)
{
	errno = number_write(MAX_PTES_NONE, number);
	if (errno)
		fail(MAX_PTES_NONE);
}

static void release_khugepaged(void)
{
	write_max_ptes_none(max_ptes_none);
}

/*
 * Until the program ends, have khugepaged collapse only what is fully populated.
 * It looks at a process as soon as that has an area for huge pages, and may
 * populate the rest of a half-populated one: those pages would never fault.
 */
static void hold_khugepaged(void)
{
	max_ptes_none = number_read(MAX_PTES_NONE, 0);
	write_max_ptes_none(0);
	atexit(release_khugepaged);
}

/* Remove the file's pages from the page cache, as far as its file system can. */
static void drop_cache(int fd)
{
	int drop;

	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	drop = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);
	if (drop >= 0) {
		if (write(drop, "1", 1) != 1)
			fail("drop_caches");
		close(drop);
	}
}

static char *map_area(int fd)
{
	unsigned long align = thp_size() ? thp_size() : options.page;
	int flags = MAP_PRIVATE | MAP_ANONYMOUS;
	char *area;

	/* Find an aligned place, then map the area there. */
	area = mmap(NULL, options.size + align, PROT_NONE, flags | MAP_NORESERVE, -1, 0);
	if (area == MAP_FAILED)
		fail("mmap");
	area = (char *)(((unsigned long)area + align - 1) & ~(align - 1));

	if (options.mapping == SHMEM)
		flags = MAP_SHARED | MAP_ANONYMOUS;
	else if (options.mapping == SHARED_FILE)
		flags = MAP_SHARED;
	else if (options.mapping == PRIVATE_FILE)
		flags = MAP_PRIVATE;
	area = mmap(area, options.size, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0);
	if (area == MAP_FAILED)
		fail("mmap");
	if (thp_size() && madvise(area, options.size,
				  options.thp ? MADV_HUGEPAGE : MADV_NOHUGEPAGE))
		fail("madvise");
	return area;
}

static long resident_pages(char *area)
{
	size_t pages = options.size / options.page, i;
	unsigned char *map = malloc(pages);
	long resident = 0;

	if (!map || mincore(area, options.size, map))
		fail("mincore");
	for (i = 0; i < pages; i++)
		resident += map[i] & 1;
	free(map);
	return resident;
}

/* Does every page hold what that many passes leave there? */
static bool contents_right(const char *area, int passes, unsigned long *sum)
{
	size_t page = options.page, i;
	bool right = true;
	int pass;

	*sum = 0;
	for (i = 0; i < options.size / page; i++) {
		unsigned long expected[2] = { 0, 0 };

		if (options.mapping == PRIVATE_FILE || options.mapping == SHARED_FILE)
			expected[0] = i + 1;
		for (pass = 0; pass < passes; pass++)
			access_model(options.access, expected);
		if (memcmp(area + i * page, expected, sizeof(expected)))
			right = false;
		*sum += *(const unsigned long *)(area + i * page);
	}
	return right;
}

/* Run the access from a copy of its code that can be executed, but not read. */
static void hide_code(void)
{
	static struct access hidden;
	const size_t length = 256;	/* more than that of any access */
	char *code = mmap(NULL, options.page, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (code == MAP_FAILED)
		fail("mmap");
	memcpy(code, (const void *)options.access->run, length);
	__builtin___clear_cache(code, code + length);
	if (mprotect(code, options.page, PROT_EXEC))
		fail("mprotect");
	hidden = *options.access;
	hidden.run = (void (*)(void *))code;
	options.access = &hidden;
}

static void usage(const char *program)
{
	fprintf(stderr,
		"usage: %s KIND SIZE[K|M|G] [--thp=off|on] [--threads=N]\n"
		"          [--mapping=anon|private-file|shared-file|shmem]\n"
		"          [--cache=warm|cold] [--text=readable|hidden] [--file=PATH]\n"
		"       %s --list    all kinds and their classes\n", program, program);
	exit(2);
}

static size_t parse_size(const char *text)
{
	char *end;
	size_t size = strtoul(text, &end, 0);

	if (*end == 'K')
		size <<= 10;
	else if (*end == 'M')
		size <<= 20;
	else if (*end == 'G')
		size <<= 30;
	return size;
}

static void parse(int argc, char **argv)
{
	static const struct option known[] = {
		{ "thp", required_argument, NULL, 't' },
		{ "mapping", required_argument, NULL, 'm' },
		{ "threads", required_argument, NULL, 'n' },
		{ "cache", required_argument, NULL, 'c' },
		{ "text", required_argument, NULL, 'x' },
		{ "file", required_argument, NULL, 'f' },
		{ "list", no_argument, NULL, 'l' },
		{ }
	};
	const struct access *a;
	int option, i;

	options.page = sysconf(_SC_PAGESIZE);
	while ((option = getopt_long(argc, argv, "", known, NULL)) != -1) {
		switch (option) {
		case 't':
			options.thp = !strcmp(optarg, "on");
			if (!options.thp && strcmp(optarg, "off"))
				usage(argv[0]);
			break;
		case 'm':
			for (i = 0; i < 4 && strcmp(optarg, mapping_names[i]); i++)
				;
			if (i == 4)
				usage(argv[0]);
			options.mapping = i;
			break;
		case 'n':
			options.threads = atoi(optarg);
			break;
		case 'c':
			options.cold = !strcmp(optarg, "cold");
			if (!options.cold && strcmp(optarg, "warm"))
				usage(argv[0]);
			break;
		case 'x':
			options.hidden = !strcmp(optarg, "hidden");
			if (!options.hidden && strcmp(optarg, "readable"))
				usage(argv[0]);
			break;
		case 'f':
			options.file = optarg;
			break;
		case 'l':
			for_each_access(a)
				printf("%s %s %s\n", a->name, access_class_name(a),
				       access_supported(a) ? "supported" : "unsupported");
			exit(EXIT_SUCCESS);
		default:
			usage(argv[0]);
		}
	}
	if (argc != optind + 2)
		usage(argv[0]);
	options.access = access_find(argv[optind]);
	if (!options.access) {
		fprintf(stderr, "no such kind: %s (see --list)\n", argv[optind]);
		exit(2);
	}
	if (!access_supported(options.access)) {
		fprintf(stderr, "this CPU has no %s\n", options.access->name);
		exit(EXIT_FAILURE);
	}
	options.size = parse_size(argv[optind + 1]);
	if (options.threads < 1 || options.threads > MAX_THREADS || !options.size ||
	    options.size % (options.page * options.threads))
		usage(argv[0]);
	if (options.thp && !thp_size()) {
		fprintf(stderr, "this kernel has no transparent huge pages\n");
		exit(EXIT_FAILURE);
	}
}

int main(int argc, char **argv)
{
	long faults = 0, resident = 0, delta;
	unsigned long cpu[2] = { 0, 0 };
	bool right[2];
	unsigned long sum[2];
	char *area;
	size_t i;
	int fd = -1;

	parse(argc, argv);
	if (options.hidden)
		hide_code();
	if (options.thp)
		hold_khugepaged();
	if (options.mapping == PRIVATE_FILE || options.mapping == SHARED_FILE)
		fd = make_file();
	area = map_area(fd);
	if (fd >= 0) {
		unlink(options.file);
		if (options.cold)
			drop_cache(fd);
		resident = resident_pages(area);
	}

	pthread_barrier_init(&barrier, NULL, options.threads);
	for (i = 0; i < (size_t)options.threads; i++) {
		workers[i].size = options.size / options.threads;
		workers[i].start = area + i * workers[i].size;
		if (i && pthread_create(&workers[i].thread, NULL, work, &workers[i]))
			fail("pthread_create");
	}
	rehearse(&workers[0]);
	pthread_barrier_wait(&barrier);
	vmstat_read(&after);
	vmstat_read(&before);
	first_pass(&workers[0]);
	vmstat_read(&after);
	right[0] = contents_right(area, 1, &sum[0]);
	pthread_barrier_wait(&barrier);
	touch(&workers[0], 1);
	pthread_barrier_wait(&barrier);
	right[1] = contents_right(area, 2, &sum[1]);

	for (i = 0; i < (size_t)options.threads; i++) {
		if (i)
			pthread_join(workers[i].thread, NULL);
		faults += workers[i].faults;
		cpu[0] += workers[i].cpu[0];
		cpu[1] += workers[i].cpu[1];
	}

	printf("kind=%s\n", options.access->name);
	printf("class=%s\n", access_class_name(options.access));
	printf("mapping=%s\n", mapping_names[options.mapping]);
	printf("thp=%s\n", options.thp ? "on" : "off");
	printf("cache=%s\n", options.cold ? "cold" : "warm");
	printf("text=%s\n", options.hidden ? "hidden" : "readable");
	printf("threads=%d\n", options.threads);
	printf("page_size=%zu\n", options.page);
	printf("thp_size=%lu\n", thp_size());
	printf("pages=%zu\n", options.size / options.page);
	printf("faults=%ld\n", faults);
	printf("first_ticks=%lu\n", pass_time(0));
	printf("second_ticks=%lu\n", pass_time(1));
	printf("first_cpu=%lu\n", cpu[0]);
	printf("second_cpu=%lu\n", cpu[1]);
	for (i = 0; i < ARRAY_SIZE(counters); i++) {
		delta = vmstat_delta(&before, &after, counters[i]);
		if (delta == VMSTAT_ABSENT)
			printf("%s=absent\n", counters[i]);
		else
			printf("%s=%ld\n", counters[i], delta);
	}
	if (fd >= 0)
		printf("resident_pages=%ld\n", resident);
	printf("anon_huge_kib=%ld\n", smaps_kib(area, options.size, "AnonHugePages"));
	printf("sum=%lu\n", sum[0]);
	printf("second_sum=%lu\n", sum[1]);
	printf("contents=%s\n", right[0] && right[1] ? "right" : "wrong");
	return right[0] && right[1] ? EXIT_SUCCESS : EXIT_FAILURE;
}
