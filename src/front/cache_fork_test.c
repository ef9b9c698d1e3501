/* SPDX-License-Identifier: Apache-2.0 */
/* Forked children: they can call everything and harm nothing, and what they inherited keeps no lock of a dead owner. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tenuto/events.h>

#include "base/shared_memory.h"
#include "core/core.h"
#include "core/pool.h"
#include "front/attach.h"
#include "front/front.h"
#include "cache_rig.h"
#include "tn_test_child.h"

/* ---- a child that outlives a killed owner ------------------------------------------------------------------ */

struct owner {
	const char *engine;
	uint32_t executors;
	bool raw; /* the child is made by the system call itself: no handler of the C library runs */
};

/* Opens the cache and has reads in flight, forks, tells its child's pid, and waits to be killed. */
static void own(const struct owner *o, struct rig *r, int pipe_end)
{
	pid_t child;

	r->o.cache.io_engine = o->engine;
	r->o.cache.executors = o->executors;
	assert_int_equal(rig_open(r), 0);
	rig_save(r->s, 1, 32, 0);
	assert_int_equal(rig_flush(r), 0);
	child = o->raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
	if (child == 0)
		for (;;)
			pause();
	if (write(pipe_end, &child, sizeof(child)) != (ssize_t)sizeof(child))
		_exit(1);
	for (;;)
		rig_load(r->s, 1, 32);
}

/* Kills an owner whose child goes on: what the next open says. */
static int open_after(const struct owner *o, struct rig *r, pid_t *dead, pid_t *child)
{
	int ends[2], status;

	rig_init(r, 64u << 20, 0, 64);
	fflush(stdout);
	assert_int_equal(pipe(ends), 0);
	*dead = fork();
	assert_true(*dead >= 0);
	if (*dead == 0) {
		setenv("CMOCKA_TEST_ABORT", "1", 1);
		alarm(60);
		own(o, r, ends[1]);
	}
	close(ends[1]);
	assert_int_equal(read(ends[0], child, sizeof(*child)), sizeof(*child));
	close(ends[0]);
	usleep(20000);
	kill(*dead, SIGKILL);
	assert_int_equal(waitpid(*dead, &status, 0), *dead);
	return rig_open(r);
}

static void a_child_that_outlives_a_killed_owner_keeps_no_lock(void **state)
{
	static const struct owner owners[] = {{"posix", 0, false}, {"io_uring", 0, false}, {"io_uring", 2, false},
					      {"posix", 2, false}};

	for (size_t i = 0; i < sizeof(owners) / sizeof(owners[0]); i++) {
		pid_t dead, child;
		struct rig r;
		int rc;

		if (owners[i].executors && !rig_has_executors())
			continue;
		rc = open_after(&owners[i], &r, &dead, &child);
		assert_int_equal(kill(child, 0), 0);
		kill(child, SIGKILL);
		assert_int_equal(rc, 0);
		assert_int_equal(rig_match(r.s, 1, 32), 32);
		rig_tear_down(&r);
	}
}

static void a_lock_that_somebody_else_keeps_is_told_with_his_pid(void **state)
{
	const struct owner o = {"posix", 0, true};
	pid_t dead, child;
	char name[32];
	struct rig r;

	assert_int_equal(open_after(&o, &r, &dead, &child), -EBUSY);
	printf("# %s\n", tn_error_last()->text);
	snprintf(name, sizeof(name), "process %d", (int)child);
	assert_non_null(strstr(tn_error_last()->text, name));
	snprintf(name, sizeof(name), "process %d", (int)dead);
	assert_non_null(strstr(tn_error_last()->text, name));
	assert_non_null(strstr(tn_error_last()->text, "gone"));
	kill(child, SIGKILL);
	assert_int_equal(rig_open(&r), 0);
	rig_tear_down(&r);
}

/* ---- every call in a child ---------------------------------------------------------------------------------- */

struct inherited {
	struct rig r;
	struct tn_match m;
	struct tn_load *load;
	struct tn_save *save;
	struct tn_key keys[8];
	uint32_t pages[8 * RIG_PAGES];
};

#define SAYS_ECHILD(call)                                                                                              \
	do {                                                                                                           \
		long rc_ = (call);                                                                                     \
		if (rc_ != -ECHILD) {                                                                                  \
			printf("# in a child %s says %ld\n", #call, rc_);                                              \
			wrong++;                                                                                       \
		}                                                                                                      \
	} while (0)

static int call_spaces(struct inherited *i)
{
	struct rig *r = &i->r;
	const uint64_t base[2 * RIG_LAYERS] = {0};
	struct tn_pool_layout layout = {.npages = RIG_POOL_PAGES, .base = base};
	struct tn_memory_desc desc;
	struct tn_memory *memory;
	uint32_t tokens[256] = {0};
	unsigned char hashes[16 * RIG_PAGES] = {0};
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_space *space;
	struct tn_pool *pool;
	struct tn_slack *slack;
	uint64_t changes;
	struct tn_key key;
	int wrong = 0;

	tn_memory_desc_init(&desc);
	tn_identity_init(&id);
	id.model = "another";
	tn_shard_init(&shard);
	SAYS_ECHILD(tn_space_open(r->cache, &id, &shard, &r->s->g, NULL, &space));
	SAYS_ECHILD(tn_space_drop(r->s->space, tn_test_deadline()));
	SAYS_ECHILD(tn_keys_from_tokens(r->s->space, tokens, 256, NULL, 0, &key, 1));
	SAYS_ECHILD(tn_keys_from_hashes(r->s->space, hashes, 16, RIG_PAGES, &key, 1));
	SAYS_ECHILD(tn_memory_register(r->cache, &desc, &memory));
	SAYS_ECHILD(tn_memory_unregister(r->s->pool->memory));
	SAYS_ECHILD(tn_pool_create(r->s->pool->memory, &r->s->g, &layout, &pool));
	SAYS_ECHILD(tn_pool_destroy(r->s->pool));
	SAYS_ECHILD(tn_space_at(r->cache, 0, &space, &key));
	SAYS_ECHILD(tn_space_slack(r->s->space, NULL));
	SAYS_ECHILD(tn_space_slack_copy(r->s->space, &slack));
	SAYS_ECHILD(tn_space_slack_changes(r->s->space, &changes, &changes));
	SAYS_ECHILD(tn_space_observe(r->s->space, 1, 0, 0, 1));
	tn_space_close(r->s->space);
	return wrong;
}

static int call_transfers(struct inherited *i)
{
	struct rig *r = &i->r;
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_match m = {.size = sizeof(m)};
	struct tn_load *load;
	struct tn_save *save;
	uint8_t busy[1];
	int wrong = 0;

	SAYS_ECHILD(tn_match(r->s->space, i->keys, 8, NULL, &m, 0));
	SAYS_ECHILD(tn_match(r->s->space, i->keys, 8, NULL, &m, TN_MATCH_PIN));
	SAYS_ECHILD(tn_unpin(r->s->space, i->m.pin));
	SAYS_ECHILD(tn_cache_unpin(r->cache, i->m.pin));
	SAYS_ECHILD(tn_prefetch(r->s->space, i->keys, 8, tn_test_deadline()));
	SAYS_ECHILD(tn_load_begin(r->s->space, r->s->pool, i->keys, 8, i->pages, NULL, &load));
	SAYS_ECHILD(tn_load_wait(i->load, RIG_LAYERS - 1, tn_test_deadline()));
	SAYS_ECHILD(tn_load_poll(i->load, 0));
	SAYS_ECHILD(tn_load_cancel(i->load));
	SAYS_ECHILD(tn_load_end(i->load, tn_test_deadline(), busy));
	SAYS_ECHILD(tn_save_begin(r->s->space, r->s->pool, i->keys, 8, i->pages, NULL, &save));
	SAYS_ECHILD(tn_save_layer(i->save, 1, NULL, 0));
	SAYS_ECHILD(tn_save_commit(i->save));
	SAYS_ECHILD(tn_save_abort(i->save));
	SAYS_ECHILD(tn_save_end(i->save, tn_test_deadline(), &res));
	SAYS_ECHILD(tn_drop(r->s->space, i->keys, 8));
	return wrong;
}

static void on_event(void *arg, const struct tn_block_event *event)
{
}

static int call_cache(struct inherited *i)
{
	struct tn_device_stats device = {.size = sizeof(device)};
	struct tn_latency latency = {.size = sizeof(latency)};
	uint64_t value;
	struct tn_plan plan = {.size = sizeof(plan)};
	struct tn_block_event events[4];
	struct rig *r = &i->r;
	struct tn_cache *cache;
	uint64_t cursor = 0;
	int wrong = 0;

	SAYS_ECHILD(tn_cache_eventfd(r->cache));
	SAYS_ECHILD(tn_cache_stats(r->cache, &value, 1));
	SAYS_ECHILD(tn_cache_stat(r->cache, "loads", &value));
	SAYS_ECHILD(tn_cache_device_stats(r->cache, 0, &device));
	SAYS_ECHILD(tn_cache_latency(r->cache, TN_LATENCY_MATCH, TN_TIER_NONE, &latency));
	SAYS_ECHILD(tn_cache_events(r->cache, &cursor, events, 4));
	SAYS_ECHILD(tn_cache_snapshot(r->cache, on_event, NULL, &cursor));
	SAYS_ECHILD(tn_flush(r->cache, tn_test_deadline()));
	SAYS_ECHILD(tn_phase(r->cache, TN_PHASE_DECODE, 1000));
	SAYS_ECHILD(tn_plan(r->s->space, &i->m, NULL, 100, &plan));
	SAYS_ECHILD(tn_cache_close(r->cache));
	if (TN_TEST_THREAD_SANITIZER || rig_namespace) /* where nothing is beside the owner's store */
		return wrong;
	/* A cache of its own: not at the directory of the owner, who lives, but beside it. */
	r->o.cache.lock_timeout_ns = 0;
	if (tn_cache_open(&r->o.cache, &cache) != -EBUSY)
		wrong++;
	r->o.cache.instance = "child";
	if (tn_cache_open(&r->o.cache, &cache) || tn_cache_stat(cache, "loads", &value) || tn_cache_close(cache))
		wrong++;
	return wrong;
}

static int call_all(void *arg)
{
	struct inherited *i = arg;

	return call_transfers(i) + call_spaces(i) + call_cache(i);
}

/* What another thread of the parent held at the fork is held for ever in the child. */
static int call_all_with_locks_held(void *arg)
{
	struct inherited *i = arg;

	pthread_mutex_lock(&i->r.cache->lock);
	pthread_mutex_lock(&i->r.s->space->plan_lock);
	return call_all(arg);
}

static void every_call_in_a_forked_child_says_echild_at_once(void **state)
{
	struct tn_save_result res = {.size = sizeof(res)};
	struct inherited i;

	for (int host = 0; host < 2; host++) {
		rig_set_up(&i.r, 64u << 20, host ? 16u << 20 : 0, 64);
		res = rig_save(i.r.s, 1, 8, 0);
		rig_keys(1, 8, i.keys);
		for (uint32_t k = 0; k < 8 * RIG_PAGES; k++)
			i.pages[k] = 64 + k;
		i.m.size = sizeof(i.m);
		assert_int_equal(tn_match(i.r.s->space, i.keys, 8, NULL, &i.m, TN_MATCH_PIN), 8);
		assert_int_equal(tn_load_begin(i.r.s->space, i.r.s->pool, i.keys, 8, i.pages, NULL, &i.load), 0);
		rig_keys(100, 8, i.keys);
		for (uint32_t k = 0; k < 8 * RIG_PAGES; k++)
			i.pages[k] = 128 + k;
		assert_int_equal(tn_save_begin(i.r.s->space, i.r.s->pool, i.keys, 8, i.pages, NULL, &i.save), 0);
		assert_int_equal(tn_save_layer(i.save, 0, NULL, 0), 0);
		assert_int_equal(tn_test_in_child(call_all, &i), 0);
		assert_int_equal(tn_test_in_child(call_all_with_locks_held, &i), 0);
		/* And nothing of it reached the parent. */
		assert_int_equal(tn_load_wait(i.load, RIG_LAYERS - 1, tn_test_deadline()), 8);
		assert_int_equal(tn_load_end(i.load, tn_test_deadline(), NULL), 0);
		for (uint32_t l = 1; l < RIG_LAYERS; l++)
			assert_int_equal(tn_save_layer(i.save, l, NULL, 0), 0);
		assert_int_equal(tn_save_commit(i.save), 0);
		assert_int_equal(tn_save_end(i.save, tn_test_deadline(), &res), 0);
		assert_int_equal(res.stored, 8);
		assert_int_equal(tn_unpin(i.r.s->space, i.m.pin), 0);
		assert_int_equal(tn_flush(i.r.cache, tn_test_deadline()), 0);
		rig_tear_down(&i.r);
	}
}

/* ---- a child of a process whose other threads are inside the library ----------------------------------------- */

#define FORKS 30u
#define MEMORIES 200u

/* Other threads work while the process forks. */
struct others {
	void (*work)(struct others *o);
	int (*in_child)(void *arg);
	void *memory[MEMORIES];
	pthread_t thread;
	uint32_t stop; /* shared */
};

static void *work_on(void *arg)
{
	struct others *o = arg;

	while (!__atomic_load_n(&o->stop, __ATOMIC_SEQ_CST)) {
		for (uint32_t i = 0; i < 64; i++)
			o->work(o);
		usleep(50); /* else a fork could wait for long */
	}
	return NULL;
}

static void fork_meanwhile(struct others *o)
{
	assert_int_equal(pthread_create(&o->thread, NULL, work_on, o), 0);
	for (uint32_t i = 0; i < FORKS; i++)
		assert_int_equal(tn_test_in_child(o->in_child, o), 0);
	__atomic_store_n(&o->stop, 1, __ATOMIC_SEQ_CST);
	assert_int_equal(pthread_join(o->thread, NULL), 0);
}

/* Goes through the whole list. */
static void ask_for_a_file(struct others *o)
{
	uint64_t offset;

	if (tn_memory_file(o->memory[MEMORIES - 1], 4096, &offset) < 0)
		abort();
}

static int use_memory(void *arg)
{
	struct others *o = arg;
	uint64_t offset;
	void *own;
	int wrong;

	/* Of its parent's memory the child has nothing: what lies at the address now is another thing. */
	wrong = tn_memory_free(o->memory[1]) != -EINVAL || tn_memory_file(o->memory[1], 4096, &offset) >= 0;
	if (tn_memory_alloc(4096, NULL, &own))
		return 2;
	wrong += tn_memory_file(own, 4096, &offset) < 0 || tn_memory_free(own);
	return wrong;
}

static void a_child_can_allocate_whatever_its_parents_threads_did_just_then(void **state)
{
	struct others o = {.work = ask_for_a_file, .in_child = use_memory};

	for (uint32_t i = 0; i < MEMORIES; i++)
		assert_int_equal(tn_memory_alloc(4096, NULL, &o.memory[i]), 0);
	fork_meanwhile(&o);
	for (uint32_t i = 0; i < MEMORIES; i++)
		assert_int_equal(tn_memory_free(o.memory[i]), 0);
}

/* A front without a cache. */
static void come_and_go(struct others *o)
{
	struct tn_cache *cache = tn_get(&tn_alloc_system, sizeof(*cache));

	if (!cache)
		abort();
	cache->alloc = &tn_alloc_system;
	cache->o.max_ops = 4096;
	if (tn_front_create(cache))
		abort();
	tn_front_destroy(cache);
	tn_put(&tn_alloc_system, cache, sizeof(*cache));
}

static int come_and_go_in_child(void *arg)
{
	come_and_go(arg);
	return 0;
}

static void a_child_can_open_a_cache_whatever_its_parents_threads_did_just_then(void **state)
{
	struct others o = {.work = come_and_go, .in_child = come_and_go_in_child};

	if (TN_TEST_ADDRESS_SANITIZER)
		tn_test_skip("the sanitizer's allocator may be locked in the child");
	fork_meanwhile(&o);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_child_that_outlives_a_killed_owner_keeps_no_lock),
		RIG_FILE_TEST(a_lock_that_somebody_else_keeps_is_told_with_his_pid),
		cmocka_unit_test(every_call_in_a_forked_child_says_echild_at_once),
		cmocka_unit_test(a_child_can_allocate_whatever_its_parents_threads_did_just_then),
		cmocka_unit_test(a_child_can_open_a_cache_whatever_its_parents_threads_did_just_then),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
