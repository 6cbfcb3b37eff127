// SPDX-License-Identifier: GPL-2.0-only
/*
 * The linear alias of the machine code of BPF programs is read-only, and
 * programs may come and go on all CPUs.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "kselftest_harness.h"

#include "dump.h"
#include "program.h"

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

TEST_F(bpf, programs_are_machine_code_that_runs)
{
	EXPECT_GT(program_machine_code(self->kept), 0);
	EXPECT_EQ(42, program_run(self->kept));
}

TEST_F(bpf, programs_have_a_read_only_alias)
{
	enum { COUNT = 180 };
	struct dump during;
	int fds[COUNT], i;

	for (i = 0; i < COUNT; i++) {
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
	for (i = 0; i < COUNT; i++) {
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

TEST_HARNESS_MAIN
