// SPDX-License-Identifier: GPL-2.0-only
/*
 * Mapped huge pages move: from node to node, and out of memory that goes offline.
 *
 * Their contents must move with them, and the pages they leave behind must be
 * usable; meanwhile others of the same pool are allocated and freed.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sys/syscall.h>

#include "kselftest_harness.h"

#include "pool.h"

#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	300

#define MOST_PAGES	24
#define ROUNDS		20
#define NODES		2

/* As in vmemmap_walkers.c. */
#define SLACK		8192

#define NODE_DIR	"/sys/devices/system/node/node%d/hugepages"
#define BLOCK_DIR	"/sys/devices/system/memory"
#define BLOCK_SIZE	BLOCK_DIR "/block_size_bytes"

/* How many pages move; those of 512 MiB take much memory. */
static int pages_moved(void)
{
	return pool_default() < POOL_512M ? MOST_PAGES : 3;
}

/* What others of the same pool take and give back meanwhile. */
static int pages_churned(void)
{
	return pool_default() < POOL_512M ? 16 : 2;
}

static const char *node_path(int node, const char *name)
{
	static __thread char folder[64];

	snprintf(folder, sizeof(folder), NODE_DIR, node);
	return pool_path_in(folder, pool_default(), name);
}

/* Every word says where it belongs. */
static void fill(char *p, int pages, size_t seed)
{
	size_t i, words = pages * pool_default() / sizeof(size_t);

	for (i = 0; i < words; i += 64)
		((size_t *)p)[i] = i ^ seed;
}

static size_t wrong_words(char *p, int pages, size_t seed)
{
	size_t i, wrong = 0, words = pages * pool_default() / sizeof(size_t);

	for (i = 0; i < words; i += 64)
		wrong += ((size_t *)p)[i] != (i ^ seed);
	return wrong;
}

/* How many of the pages are on a node after all were asked to go there. */
static int move_to(char *p, int pages, int node)
{
	int i, there = 0, nodes[MOST_PAGES], status[MOST_PAGES];
	void *addresses[MOST_PAGES];

	for (i = 0; i < pages; i++) {
		addresses[i] = p + i * pool_default();
		nodes[i] = node;
		status[i] = -1;
	}
	if (syscall(__NR_move_pages, 0, pages, addresses, nodes, status, MPOL_MF_MOVE) < 0)
		printf("# move_pages: %s\n", strerror(errno));
	for (i = 0; i < pages; i++)
		there += status[i] == node;
	return there;
}

/* The same by a policy that says where the memory must be. */
static int bind_to(char *p, int pages, int node)
{
	unsigned long mask = 1UL << node;
	int i, there = 0, status[MOST_PAGES];
	void *addresses[MOST_PAGES];

	if (syscall(__NR_mbind, p, pages * pool_default(), MPOL_BIND, &mask, 8 * sizeof(mask),
		    MPOL_MF_MOVE | MPOL_MF_STRICT))
		printf("# mbind: %s\n", strerror(errno));
	for (i = 0; i < pages; i++) {
		addresses[i] = p + i * pool_default();
		status[i] = -1;
	}
	syscall(__NR_move_pages, 0, pages, addresses, NULL, status, 0);
	for (i = 0; i < pages; i++)
		there += status[i] == node;
	return there;
}

struct churn {
	pthread_t thread;
	bool stop;
	/* The pool holds this many pages when none of ours is there. */
	long kept[NODES];
	int nodes;
	unsigned long rounds;
};

/* Grow and shrink the pools, each node's on its own. */
static void *churn(void *data)
{
	struct churn *churn = data;
	int node;

	while (!__atomic_load_n(&churn->stop, __ATOMIC_RELAXED)) {
		for (node = 0; node < churn->nodes; node++)
			number_write(node_path(node, "nr_hugepages"),
				     churn->kept[node] + pages_churned());
		for (node = 0; node < churn->nodes; node++)
			number_write(node_path(node, "nr_hugepages"), churn->kept[node]);
		__atomic_fetch_add(&churn->rounds, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void churn_start(struct churn *self, int nodes, long kept)
{
	int node;

	memset(self, 0, sizeof(*self));
	self->nodes = nodes;
	for (node = 0; node < nodes; node++)
		self->kept[node] = kept;
	pthread_create(&self->thread, NULL, churn, self);
}

/* How often the pools have grown and shrunk so far. */
static unsigned long churn_rounds(const struct churn *self)
{
	return __atomic_load_n(&self->rounds, __ATOMIC_RELAXED);
}

static void churn_stop(struct churn *self)
{
	__atomic_store_n(&self->stop, true, __ATOMIC_RELAXED);
	pthread_join(self->thread, NULL);
}

FIXTURE(nodes) {
	struct churn churn;
	int pages;
	long available;
	char *p;
};

FIXTURE_SETUP(nodes)
{
	int node;

	if (number_read(node_path(1, "nr_hugepages"), -1) < 0)
		SKIP(return, "there is one node only");
	ASSERT_TRUE(pool_is_empty(pool_default()));
	self->available = available();
	self->pages = pages_moved();
	for (node = 0; node < NODES; node++)
		number_write(node_path(node, "nr_hugepages"), self->pages);
	for (node = 0; node < NODES; node++)
		ASSERT_EQ(self->pages, number_read(node_path(node, "nr_hugepages"), -1));
	self->p = pool_map(pool_default(), self->pages);
	ASSERT_NE(NULL, self->p);
	fill(self->p, self->pages, 0);
	ASSERT_EQ(self->pages, move_to(self->p, self->pages, 0));
	churn_start(&self->churn, NODES, self->pages);
}

FIXTURE_TEARDOWN(nodes)
{
	if (self->p)
		munmap(self->p, self->pages * pool_default());
	pool_set(pool_default(), "nr_hugepages", 0);
}

#define EXPECT_NOTHING_LOST()									\
do {												\
	churn_stop(&self->churn);								\
	EXPECT_GT(self->churn.rounds, 0);							\
	EXPECT_EQ(NODES * self->pages, pool_get(pool_default(), "nr_hugepages"));		\
	EXPECT_EQ((NODES - 1) * self->pages, pool_get(pool_default(), "free_hugepages"));	\
	EXPECT_EQ(0, pool_get(pool_default(), "surplus_hugepages"));				\
	munmap(self->p, self->pages * pool_default());						\
	self->p = NULL;										\
	EXPECT_TRUE(pool_is_empty(pool_default()));						\
	EXPECT_LT(self->available - available(), SLACK);					\
} while (0)

TEST_F(nodes, take_pages_from_each_other)
{
	int i;

	for (i = 1; i <= ROUNDS; i++) {
		EXPECT_EQ(self->pages, move_to(self->p, self->pages, i % NODES));
		EXPECT_EQ(0, wrong_words(self->p, self->pages, i - 1));
		fill(self->p, self->pages, i);
	}
	EXPECT_NOTHING_LOST();
}

TEST_F(nodes, have_what_is_bound_to_them)
{
	int i;

	for (i = 1; i <= ROUNDS; i++) {
		EXPECT_EQ(self->pages, bind_to(self->p, self->pages, i % NODES));
		EXPECT_EQ(0, wrong_words(self->p, self->pages, i - 1));
		fill(self->p, self->pages, i);
	}
	EXPECT_NOTHING_LOST();
}

/* A block of memory that may go offline, and back. */
struct block {
	unsigned long first;
	unsigned long frames;
	char state[128];
};

/* The n-th block that holds only what can be moved; false if there are fewer. */
static bool block_find(struct block *block, int n)
{
	unsigned long size = number_read_to_base(BLOCK_SIZE, 16, 0);
	struct dirent *entry;
	bool found = false;
	char path[320], zones[64];
	DIR *dir;

	dir = opendir(BLOCK_DIR);
	while (dir && size && !found && (entry = readdir(dir))) {
		if (strncmp(entry->d_name, "memory", 6))
			continue;
		snprintf(path, sizeof(path), BLOCK_DIR "/%s/valid_zones", entry->d_name);
		line_read(path, zones, sizeof(zones));
		if (strncmp(zones, "Movable", 7) || n--)
			continue;
		snprintf(block->state, sizeof(block->state), BLOCK_DIR "/%.32s/state",
			 entry->d_name);
		block->frames = size / page_size();
		block->first = strtoul(entry->d_name + 6, NULL, 10) * block->frames;
		found = true;
	}
	if (dir)
		closedir(dir);
	return found;
}

/* How many huge pages are in the block. */
static long block_pages(const struct block *block)
{
	return frames_with(block->first, block->frames, FLAG_HUGE | FLAG_HEAD);
}

static bool block_has(const struct block *block, unsigned long frame)
{
	return frame >= block->first && frame - block->first < block->frames;
}

/* How many of some mapped pages lie in the block. */
static long block_has_of(const struct block *block, const char *p, long pages)
{
	long i, found = 0;

	for (i = 0; i < pages; i++)
		found += block_has(block, frame_of(p + i * pool_default()));
	return found;
}

/* Take a block that some of the mapped pages lie in; false if there is none. */
static bool block_find_with(struct block *block, const char *p, long pages)
{
	int i;

	for (i = 0; !block_has_of(block, p, pages); i++) {
		if (!block_find(block, i))
			return false;
	}
	return true;
}

FIXTURE(block) {
	struct block block;
	long available;
	long pages;
};

FIXTURE_SETUP(block)
{
	int i;

	ASSERT_TRUE(pool_is_empty(pool_default()));
	self->available = available();
	/* As many as there is memory that can be moved, for some to be in each block. */
	pool_set(pool_default(), "nr_hugepages",
		 meminfo("MemFree") / (pool_default() >> 10) * 3 / 4);
	for (i = 0; block_find(&self->block, i); i++) {
		self->pages = block_pages(&self->block);
		/* More than an eighth of it. */
		if (self->pages * 8 > self->block.frames * page_size() / pool_default())
			return;
	}
	pool_is_empty(pool_default());
	SKIP(return, "no block of memory that could go offline (of %d)", i);
}

FIXTURE_TEARDOWN(block)
{
	text_write(self->block.state, "online_movable");
	pool_set(pool_default(), "nr_hugepages", 0);
}

#define EXPECT_BLOCK_BACK()							\
do {										\
	EXPECT_EQ(0, text_write(self->block.state, "online_movable"));		\
	EXPECT_EQ(0, block_pages(&self->block));				\
	EXPECT_TRUE(pool_is_empty(pool_default()));				\
	EXPECT_LT(self->available - available(), SLACK);			\
} while (0)

TEST_F(block, takes_its_free_pages_along)
{
	long before = pool_get(pool_default(), "nr_hugepages");

	EXPECT_EQ(0, text_write(self->block.state, "offline"));
	EXPECT_EQ(0, frames_with(self->block.first, self->block.frames, FLAG_HUGE));
	EXPECT_EQ(before - self->pages, pool_get(pool_default(), "nr_hugepages"));
	EXPECT_EQ(before - self->pages, pool_get(pool_default(), "free_hugepages"));
	EXPECT_BLOCK_BACK();
}

/*
 * Pages in use go elsewhere, to new ones.  There are no free ones in the pool that they could go
 * to: the kernel would take those that have just been left, in the same block, and never end.
 */
TEST_F(block, leaves_its_used_pages_behind)
{
	long before = pool_get(pool_default(), "nr_hugepages"), used = before / 2;
	unsigned long size = used * pool_default();
	char *p = pool_map(pool_default(), used);

	ASSERT_NE(NULL, p);
	fill(p, used, 7);
	ASSERT_TRUE(block_find_with(&self->block, p, used));
	printf("# %ld of %ld used pages are in the block\n", block_has_of(&self->block, p, used),
	       used);
	pool_set(pool_default(), "nr_hugepages", used);
	EXPECT_EQ(0, text_write(self->block.state, "offline"));
	EXPECT_EQ(0, wrong_words(p, used, 7));
	EXPECT_EQ(0, block_has_of(&self->block, p, used));
	EXPECT_EQ(0, frames_with(self->block.first, self->block.frames, FLAG_HUGE));
	EXPECT_LE(used, pool_get(pool_default(), "nr_hugepages"));
	munmap(p, size);
	EXPECT_BLOCK_BACK();
}

/*
 * What goes offline while the pool changes fails or succeeds, but nothing is lost. It is tried
 * until it has succeeded once and the pool has changed meanwhile.
 */
TEST_F(block, goes_while_the_pool_changes)
{
	long before = pool_get(pool_default(), "nr_hugepages"), used = before / 4;
	char *p = pool_map(pool_default(), used);
	int tries, offline = 0;
	struct churn churn;

	ASSERT_NE(NULL, p);
	fill(p, used, 9);
	ASSERT_TRUE(block_find_with(&self->block, p, used));
	churn_start(&churn, 1, used);
	for (tries = 0; tries < 5 || (tries < 100 && !(offline && churn_rounds(&churn)));
	     tries++) {
		offline += !text_write(self->block.state, "offline");
		text_write(self->block.state, "online_movable");
	}
	/* What comes after the last try does not count. */
	EXPECT_GT(churn_rounds(&churn), 0);
	churn_stop(&churn);
	printf("# offline %d times in %d tries, %lu changes of the pool\n", offline, tries,
	       churn.rounds);
	EXPECT_GT(offline, 0);
	EXPECT_EQ(0, wrong_words(p, used, 9));
	munmap(p, used * pool_default());
	EXPECT_TRUE(pool_is_empty(pool_default()));
	EXPECT_EQ(0, frames_with(self->block.first, self->block.frames, FLAG_HUGE));
	EXPECT_LT(self->available - available(), SLACK);
}

TEST_HARNESS_MAIN
