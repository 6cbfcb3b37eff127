// SPDX-License-Identifier: GPL-2.0-only
/*
 * The linear alias of the machine code of BPF programs is read-only, programs
 * may come and go on all CPUs, and others may be attached to them.
 */
#define _GNU_SOURCE
#include <glob.h>
#include <pthread.h>
#include <sys/resource.h>

#include "kselftest_harness.h"

#include "dump.h"
#include "program.h"
#include "tracing.h"

/* Nine other jobs and the checks of a debug kernel may share an emulated CPU with this. */
#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	1500

#define THREADS		4
#define ROUNDS		40

FIXTURE(bpf) {
	int kept;
	struct dump before;
};

/* Of the packs that hold machine code the kernel keeps one, once there is one. */
FIXTURE_SETUP(bpf)
{
	self->kept = program_load(PROGRAM_SHORTEST, 42);
	if (self->kept < 0)
		SKIP(return, "no BPF: %s", strerror(errno));
	sleep(1);
	dump_read(&self->before);
}

FIXTURE_TEARDOWN(bpf)
{
	close(self->kept);
	dump_free(&self->before);
}

/* How many nodes of memory there are. */
static int nodes(void)
{
	glob_t found;
	int nr = 1;

	if (!glob("/sys/devices/system/node/node[0-9]*", 0, NULL, &found)) {
		nr = found.gl_pathc;
		globfree(&found);
	}
	return nr;
}

TEST_F(bpf, programs_are_machine_code_that_runs)
{
	EXPECT_GT(program_machine_code(self->kept), 0);
	EXPECT_EQ(42, program_run(self->kept));
}

TEST_F(bpf, programs_have_a_read_only_alias)
{
	/* A pack has 2 MiB for each node, and so many programs fill more than one. */
	enum { PER_NODE = 180, MOST_NODES = 4 };
	int fds[PER_NODE * MOST_NODES], count = PER_NODE * nodes(), i;
	struct dump during;

	if (nodes() > MOST_NODES)
		SKIP(return, "more than %d nodes", MOST_NODES);
	for (i = 0; i < count; i++) {
		fds[i] = program_load(PROGRAM_LONGEST, i);
		ASSERT_GE(fds[i], 0)
			TH_LOG("%s", strerror(errno));
	}
	dump_read(&during);
	/* More than one pack, or there would be nothing to see. */
	EXPECT_GT(during.read_only, self->before.read_only);
	EXPECT_EQ(during.areas_read_only - self->before.areas_read_only,
		  during.read_only - self->before.read_only);
	EXPECT_EQ(0, during.executable);
	EXPECT_EQ(self->before.mapped, during.mapped);
	dump_free(&during);
	for (i = 0; i < count; i++) {
		EXPECT_EQ(i, program_run(fds[i]));
		close(fds[i]);
	}
	EXPECT_TRUE(dump_returns_to(&self->before));
}

struct worker {
	pthread_t thread;
	unsigned int seed;
	int failures;
};

static void *churn(void *data)
{
	enum { HELD = 8 };
	struct worker *worker = data;
	int fds[HELD], round, i, length;

	memset(fds, -1, sizeof(fds));
	for (round = 0; round < ROUNDS; round++) {
		i = round % HELD;
		if (fds[i] >= 0)
			close(fds[i]);
		length = PROGRAM_SHORTEST +
			 rand_r(&worker->seed) % (PROGRAM_LONGEST - PROGRAM_SHORTEST);
		fds[i] = program_load(length, round);
		if (fds[i] < 0 || program_run(fds[i]) != round)
			worker->failures++;
	}
	for (i = 0; i < HELD; i++)
		close(fds[i]);
	return NULL;
}

TEST_F(bpf, programs_come_and_go_on_all_cpus)
{
	struct worker workers[THREADS] = { 0 };
	int i;

	for (i = 0; i < THREADS; i++) {
		workers[i].seed = i;
		ASSERT_EQ(0, pthread_create(&workers[i].thread, NULL, churn, workers + i));
	}
	for (i = 0; i < THREADS; i++) {
		pthread_join(workers[i].thread, NULL);
		EXPECT_EQ(0, workers[i].failures);
	}
	EXPECT_EQ(42, program_run(self->kept));
	EXPECT_TRUE(dump_returns_to(&self->before));
}

/* A jump to what is farther away than this goes by an address beside the machine code. */
#define JUMP_REACHES	(128UL << 20)

static bool far_away(unsigned long address, unsigned long other)
{
	return (address > other ? address - other : other - address) > JUMP_REACHES;
}

/*
 * Take so many MiB of the area that machine code is in, its gaps first.  How many
 * there are, each with a descriptor.
 */
static int take_addresses(int *fds, int most)
{
	int nr;

	for (nr = 0; nr < most; nr++) {
		fds[nr] = program_new_map(1 << 20);
		if (fds[nr] < 0)
			break;
	}
	return nr;
}

/* Load programs of this length until one is far away; how many, or -1 if none is. */
static int fill_up_to_far_away(unsigned long address, int length, int *fds, int most)
{
	int nr;

	for (nr = 0; nr < most; nr++) {
		fds[nr] = program_load(length, 0);
		if (fds[nr] < 0)
			break;
		if (far_away(program_address(fds[nr]), address))
			return nr + 1;
	}
	while (nr)
		close(fds[--nr]);
	return -1;
}

struct caller {
	pthread_t thread;
	int target;
	int value;
	bool stop;
	unsigned long calls;
	unsigned long failures;
};

static void *call(void *data)
{
	struct caller *caller = data;

	while (!__atomic_load_n(&caller->stop, __ATOMIC_RELAXED)) {
		caller->failures += program_run(caller->target) != caller->value;
		caller->calls++;
	}
	return NULL;
}

/*
 * What is attached to a program is called by an address that is written into the
 * program's machine code, which is read-only, while others run the program.
 */
TEST_F(bpf, programs_are_traced_from_far_away)
{
	enum { VALUE = 7, RUNS = 3, SPACE = 160, MOST = 1000, ATTACHED = 20 };
	const struct rlimit files = { .rlim_cur = 4 * MOST, .rlim_max = 4 * MOST };
	struct caller caller = { .value = VALUE };
	int types, count, tracer, link, space[SPACE], longest[MOST], shortest[MOST];
	int nr_space, nr_longest, nr_shortest, i;
	unsigned long address;
	struct dump before, attached;

	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &files));
	types = tracing_load_types();
	ASSERT_GE(types, 0)
		TH_LOG("%s", strerror(errno));
	caller.target = tracing_load_target(types, PROGRAM_SHORTEST, VALUE);
	ASSERT_GE(caller.target, 0)
		TH_LOG("%s", strerror(errno));
	address = program_address(caller.target);
	ASSERT_NE(0, address);

	/*
	 * Take all that is near, down to the smallest of gaps.  Some appear only now,
	 * as machine code of programs that are gone is freed late.
	 */
	nr_space = take_addresses(space, SPACE);
	ASSERT_EQ(SPACE, nr_space)
		TH_LOG("%s", strerror(errno));
	nr_longest = fill_up_to_far_away(address, PROGRAM_LONGEST, longest, MOST);
	ASSERT_LE(0, nr_longest);
	nr_shortest = fill_up_to_far_away(address, PROGRAM_SHORTEST, shortest, MOST);
	ASSERT_LE(0, nr_shortest);

	count = program_new_map(sizeof(__u64));
	ASSERT_GE(count, 0);
	tracer = tracing_load(caller.target, count);
	ASSERT_GE(tracer, 0)
		TH_LOG("%s", strerror(errno));
	dump_read_settled(&before);
	link = tracing_attach(tracer);
	ASSERT_GE(link, 0)
		TH_LOG("%s", strerror(errno));
	/* 0 is far away, too. */
	ASSERT_NE(0, tracing_trampoline());
	EXPECT_TRUE(far_away(tracing_trampoline(), address))
		TH_LOG("%#lx is called from %#lx", tracing_trampoline(), address);
	for (i = 0; i < RUNS; i++)
		EXPECT_EQ(VALUE, program_run(caller.target));
	EXPECT_EQ(RUNS, tracing_count(count));
	dump_read(&attached);
	EXPECT_EQ(before.hash, attached.hash);
	dump_free(&attached);
	close(link);
	close(tracer);
	EXPECT_EQ(VALUE, program_run(caller.target));
	EXPECT_EQ(RUNS, tracing_count(count));

	ASSERT_EQ(0, pthread_create(&caller.thread, NULL, call, &caller));
	for (i = 0; i < ATTACHED; i++) {
		/* One that was attached to a program cannot be attached to it again. */
		tracer = tracing_load(caller.target, count);
		link = tracing_attach(tracer);
		EXPECT_GE(link, 0);
		usleep(10000);
		close(link);
		close(tracer);
	}
	__atomic_store_n(&caller.stop, true, __ATOMIC_RELAXED);
	pthread_join(caller.thread, NULL);
	EXPECT_EQ(0, caller.failures);
	EXPECT_LT(RUNS, tracing_count(count));
	EXPECT_GE(RUNS + caller.calls, tracing_count(count));
	dump_free(&before);

	close(count);
	while (nr_shortest)
		close(shortest[--nr_shortest]);
	while (nr_longest)
		close(longest[--nr_longest]);
	while (nr_space)
		close(space[--nr_space]);
	close(caller.target);
	close(types);
	EXPECT_TRUE(dump_returns_to(&self->before));
}

TEST_HARNESS_MAIN
