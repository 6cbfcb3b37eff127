// SPDX-License-Identifier: GPL-2.0-only
/*
 * The linear alias of a module's text and read-only data is read-only for as
 * long as the module is there.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "kselftest_harness.h"

#include "dump.h"
#include "module.h"

#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	300

#define ROUNDS	50

FIXTURE(modules) {
	int fds[NR_MODULES];
	struct dump before;
};

FIXTURE_SETUP(modules)
{
	int i;

	for (i = 0; i < NR_MODULES; i++) {
		self->fds[i] = module_open(module_names[i]);
		if (self->fds[i] < 0)
			SKIP(return, "no module %s", module_names[i]);
		/* What a first time leaves behind is no leak. */
		ASSERT_EQ(0, module_load(self->fds[i]))
			TH_LOG("%s: %s", module_names[i], strerror(errno));
		ASSERT_EQ(0, module_unload(module_names[i]))
			TH_LOG("%s: %s", module_names[i], strerror(errno));
	}
	dump_read_settled(&self->before);
}

FIXTURE_TEARDOWN(modules)
{
	dump_free(&self->before);
}

/*
 * Take a dump once a condition holds; whether it does.  Free the dump in any case.  What
 * only the start of a module needs is freed a little later, and is out of the linear map
 * meanwhile.
 */
static bool dump_becomes(struct dump *dump, const struct dump *before,
			 bool (*condition)(const struct dump *dump, const struct dump *before))
{
	int tries;

	dump_read(dump);
	for (tries = 0; tries < 50 && !condition(dump, before); tries++) {
		dump_free(dump);
		usleep(100000);
		dump_read(dump);
	}
	return condition(dump, before);
}

static unsigned long more_in_areas(const struct dump *dump, const struct dump *before)
{
	return dump->areas_read_only - before->areas_read_only;
}

static unsigned long more_in_linear_map(const struct dump *dump, const struct dump *before)
{
	return dump->read_only - before->read_only;
}

static bool as_much_is_read_only(const struct dump *dump, const struct dump *before)
{
	return more_in_areas(dump, before) == more_in_linear_map(dump, before);
}

static bool nothing_else_changed(const struct dump *dump, const struct dump *before)
{
	return dump->mapped == before->mapped && as_much_is_read_only(dump, before);
}

TEST_F(modules, have_a_read_only_alias)
{
	struct dump during;
	int i;

	for (i = 0; i < NR_MODULES; i++) {
		ASSERT_EQ(0, module_load(self->fds[i]));
		EXPECT_TRUE(dump_becomes(&during, &self->before, as_much_is_read_only))
			TH_LOG("%s: %lu and %lu bytes", module_names[i],
			       more_in_areas(&during, &self->before),
			       more_in_linear_map(&during, &self->before));
		/* At least a page of text and one of data. */
		EXPECT_GE(more_in_linear_map(&during, &self->before), 2 * sysconf(_SC_PAGESIZE));
		dump_free(&during);
		ASSERT_EQ(0, module_unload(module_names[i]))
			TH_LOG("%s: %s", module_names[i], strerror(errno));
		EXPECT_TRUE(dump_returns_to(&self->before))
			TH_LOG("%s", module_names[i]);
	}
}

TEST_F(modules, leave_nothing_else_read_only)
{
	struct dump during;
	int i;

	for (i = 0; i < NR_MODULES; i++)
		ASSERT_EQ(0, module_load(self->fds[i]));
	EXPECT_TRUE(dump_becomes(&during, &self->before, nothing_else_changed))
		TH_LOG("%lu and %lu bytes are read-only", more_in_areas(&during, &self->before),
		       more_in_linear_map(&during, &self->before));
	EXPECT_EQ(0, during.executable);
	dump_free(&during);
	for (i = 0; i < NR_MODULES; i++)
		ASSERT_EQ(0, module_unload(module_names[i]))
			TH_LOG("%s: %s", module_names[i], strerror(errno));
	EXPECT_TRUE(dump_returns_to(&self->before));
}

struct worker {
	pthread_t thread;
	const char *name;
	int fd;
	int loads;
	int error;
};

/*
 * Two workers have the same module, so one may find it there, or gone, or going. One that
 * has had little luck goes on for a while. It waits between its tries then: the module may
 * take long to go on a busy machine, and tries that fail at once would all be over by then.
 */
static void *churn(void *data)
{
	struct worker *worker = data;
	int round;

	for (round = 0; round < 20 * ROUNDS; round++) {
		if (round >= ROUNDS && worker->loads >= ROUNDS / 10)
			break;
		if (round >= ROUNDS)
			usleep(10000);
		if (!module_load(worker->fd))
			worker->loads++;
		else if (errno != EEXIST && errno != EBUSY)
			worker->error = errno;
		if (module_unload(worker->name) && errno != ENOENT && errno != EBUSY)
			worker->error = errno;
	}
	return NULL;
}

TEST_F(modules, come_and_go_on_all_cpus)
{
	enum { WORKERS = 2 * NR_MODULES };
	struct worker workers[WORKERS] = { 0 };
	int i;

	for (i = 0; i < WORKERS; i++) {
		workers[i].name = module_names[i % NR_MODULES];
		workers[i].fd = self->fds[i % NR_MODULES];
		ASSERT_EQ(0, pthread_create(&workers[i].thread, NULL, churn, workers + i));
	}
	for (i = 0; i < WORKERS; i++) {
		pthread_join(workers[i].thread, NULL);
		EXPECT_EQ(0, workers[i].error)
			TH_LOG("%s: %s", workers[i].name, strerror(workers[i].error));
	}
	for (i = 0; i < NR_MODULES; i++) {
		EXPECT_GE(workers[i].loads + workers[i + NR_MODULES].loads, ROUNDS / 5);
		module_unload(module_names[i]);
	}
	EXPECT_TRUE(dump_returns_to(&self->before));
}

TEST_HARNESS_MAIN
