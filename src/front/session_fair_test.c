/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What processes that have attached share: tables of leases, look-ups and pools, numbers of spaces, the lock of what is opened and closed. One
 * that takes all that it can get leaves the others their part; one that waits hinders nobody; one that has no thread to answer it is not let in.
 */
#include <stdlib.h>

#include "base/error.h"
#include "front/serve.h"
#include "session_rig.h"

#define MAX_OPS 32u
#define LEASES (4 * MAX_OPS)
#define TENANT "some" /* and the token of who may see it */
#define SPACES (TN_SPACES_MAX / TN_ATTACHED_MAX) /* of a process that may see some tenants only */
#define AT_ONCE (TN_WIRE_CALLS - 1)

/* Of the library. While it fails, a session has no thread. */
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *arg), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *arg), void *arg);

static uint32_t no_threads; /* shared */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *arg), void *arg)
{
	if (run == tn_served_main && __atomic_load_n(&no_threads, __ATOMIC_SEQ_CST))
		return EAGAIN;
	return __real_pthread_create(thread, attr, run, arg);
}

/* Who has the token may see one tenant only. */
static void serve(struct rig *r)
{
	rig_init(r, 0, 8u << 20, 64);
	r->o.cache.max_ops = MAX_OPS;
	rig_must_open(r);
	serve_tenant(r, TENANT);
	rig_save(r->s, 1, BLOCKS, 0);
}

static bool says(const char *what)
{
	return strstr(tn_error_last()->text, what) != NULL;
}

/* Leases until there are no more, n at most. How many. */
static uint32_t take_leases(struct rig *r, uint64_t *pin, uint32_t n)
{
	struct tn_match m = {.size = sizeof(m)};
	struct tn_key key = rig_key(1);
	uint32_t i = 0;
	int rc = 1;

	for (; i < n && (rc = tn_match(r->s->space, &key, 1, NULL, &m, TN_MATCH_PIN)) == 1; i++)
		pin[i] = m.pin;
	assert_true(rc == 1 || rc == -EAGAIN);
	return i;
}

static void a_process_that_takes_all_leases_leaves_the_others_their_part(void **state)
{
	static uint64_t pin[4][LEASES + 1];
	struct rig r, a, b, c;

	serve(&r);
	attach(r.dir, &a);
	attach(r.dir, &b);
	assert_int_equal(take_leases(&a, pin[0], LEASES + 1), LEASES); /* as many as one may have who is alone */
	assert_true(says("all 128 leases are taken; tn_unpin some"));
	assert_int_equal(take_leases(&b, pin[1], LEASES + 1), LEASES); /* what was common is gone now */
	assert_int_equal(take_leases(&r, pin[3], 1), 0);
	attach(r.dir, &c); /* later than all of them */
	assert_int_equal(take_leases(&c, pin[2], LEASES), TN_ALLOTTED_LEASES);
	assert_true(says("has 64 leases, of which 64 are its own part"));
	rig_unpin(a.s, pin[0][0]);
	assert_int_equal(take_leases(&c, pin[2], LEASES), 1);
	assert_int_equal(take_leases(&a, pin[0], 1), 0);
	detach(&b); /* with all that it has */
	rig_until(&r, take_leases(&r, pin[3], 1) == 1);
	detach(&a);
	detach(&c);
	rig_unpin(r.s, pin[3][0]);
	for (uint32_t n = 0; n < LEASES; n++) /* nothing was lost */
		rig_until(&r, take_leases(&r, &pin[3][n], 1) == 1);
	for (uint32_t n = 0; n < LEASES; n++)
		rig_unpin(r.s, pin[3][n]);
	rig_tear_down(&r);
}

/* The same of look-ups that are polled later. */
static uint32_t begin_queries(struct rig *r, uint64_t *query, uint32_t n)
{
	struct tn_key key = rig_key(1);
	uint32_t i = 0;
	int rc = 0;

	for (; i < n && (rc = tn_match_begin(&r->s->space, 1, &key, 1, 0, 0, &query[i])) == 0; i++)
		;
	assert_true(rc == 0 || rc == -EAGAIN);
	return i;
}

static void a_process_that_begins_all_look_ups_leaves_the_others_their_part(void **state)
{
	uint64_t query[4][MAX_OPS + 1];
	struct rig r, a, b;

	serve(&r);
	attach(r.dir, &a);
	attach(r.dir, &b);
	assert_int_equal(begin_queries(&r, query[2], MAX_OPS + 1), MAX_OPS); /* also if that process is the owner's */
	assert_true(says("all 32 look-ups"));
	assert_int_equal(begin_queries(&a, query[0], MAX_OPS + 1), TN_ALLOTTED_QUERIES);
	assert_true(says("has 4 look-ups under way, of which 4 are its own part"));
	assert_int_equal(begin_queries(&b, query[1], MAX_OPS + 1), TN_ALLOTTED_QUERIES);
	assert_int_equal(tn_match_cancel(r.cache, query[2][0]), 0);
	assert_int_equal(begin_queries(&a, query[3], MAX_OPS), 1);
	for (uint32_t i = 0; i < TN_ALLOTTED_QUERIES; i++)
		assert_int_equal(tn_match_cancel(a.cache, query[0][i]), 0);
	assert_int_equal(begin_queries(&a, query[0], MAX_OPS), TN_ALLOTTED_QUERIES); /* of its part four are free, and none of the rest */
	for (uint32_t i = 1; i < MAX_OPS; i++)
		assert_int_equal(tn_match_cancel(r.cache, query[2][i]), 0);
	detach(&a);
	detach(&b);
	rig_tear_down(&r);
}

/* Pools like that of the rig's space, until there are no more, n at most. */
static uint32_t create_pools(struct rig *r, struct tn_pool **pool, uint32_t n)
{
	uint64_t base[TN_PLANES_MAX * 8];
	struct tn_pool_layout layout = {.npages = r->s->npages, .base = base};
	uint32_t i = 0;
	int rc = 0;

	for (uint32_t k = 0; k < r->s->g.layers * r->s->g.nplanes; k++)
		base[k] = r->s->pool->layout.base[k];
	memcpy(layout.stride, r->s->pool->layout.stride, sizeof(layout.stride));
	for (; i < n && (rc = tn_pool_create(r->s->pool->memory, &r->s->g, &layout, &pool[i])) == 0; i++)
		;
	assert_true(rc == 0 || rc == -ENOSPC);
	return i;
}

static void destroy_pools(struct tn_pool **pool, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(tn_pool_destroy(pool[i]), 0);
}

static void each_process_can_have_its_pools_whatever_others_have(void **state)
{
	static struct tn_pool *pool[3][TN_POOLS_OWN + 1];
	struct rig r, a, b;
	uint32_t n;

	serve(&r);
	attach(r.dir, &a);
	n = create_pools(&r, pool[0], TN_POOLS_OWN + 1);
	assert_int_equal(n, TN_POOLS_OWN - 1); /* and the rig's */
	assert_true(says("4096 pools, the most there can be; destroy some"));
	assert_int_equal(create_pools(&a, pool[1], TN_SERVED_POOLS + 1), TN_SERVED_POOLS - 1);
	assert_true(says("has 256 pools; destroy some"));
	attach(r.dir, &b);
	assert_int_equal(create_pools(&b, pool[2], TN_SERVED_POOLS - 1), TN_SERVED_POOLS - 1);
	rig_load(b.s, 1, BLOCKS);
	destroy_pools(pool[2], TN_SERVED_POOLS - 1);
	destroy_pools(pool[1], TN_SERVED_POOLS - 1);
	destroy_pools(pool[0], n);
	detach(&a);
	detach(&b);
	rig_tear_down(&r);
}

/* What is asked of the owner's cache waits meanwhile. */
static void the_owner_does_not_answer_in_time(struct rig *owner, struct rig *r, struct tn_pool *pool)
{
	assert_int_equal(pthread_mutex_lock(&owner->cache->lock), 0);
	tn_attached_answer_within(r->cache, 5 * RIG_MS);
	assert_int_equal(tn_pool_destroy(pool), -ETIMEDOUT);
	assert_int_equal(pthread_mutex_unlock(&owner->cache->lock), 0);
	tn_attached_answer_within(r->cache, 600 * RIG_SECOND);
}

static bool is_there(const struct rig *owner, const struct tn_pool *pool)
{
	return __atomic_load_n(&owner->cache->pools[pool->number], __ATOMIC_ACQUIRE) != NULL;
}

static void a_pool_that_is_destroyed_a_second_time_is_no_other_pool(void **state)
{
	struct tn_pool *pool[2], *next[2];
	struct rig r, a;

	serve(&r);
	attach(r.dir, &a);
	assert_int_equal(create_pools(&a, pool, 2), 2);
	the_owner_does_not_answer_in_time(&r, &a, pool[0]);
	rig_until(&r, tn_pool_destroy(pool[0]) == 0); /* it is gone, and nobody has its number yet */
	the_owner_does_not_answer_in_time(&r, &a, pool[1]);
	rig_until(&r, rig_match(a.s, 1, 1) == 1); /* the owner answers again: it has carried out what had timed out */
	assert_int_equal(create_pools(&a, next, 2), 2);
	assert_true(next[0]->number == pool[1]->number || next[1]->number == pool[1]->number);
	assert_int_equal(tn_pool_destroy(pool[1]), 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_true(is_there(&r, next[i]));
	destroy_pools(next, 2);
	detach(&a);
	rig_tear_down(&r);
}

/* ---- spaces ------------------------------------------------------------------------------------------------------- */

/* One that waits until it is told to give up. */
struct opener {
	struct rig *r;
	pthread_t thread;
	uint32_t naps, enough; /* shared */
	int rc;
};

static bool has_enough(void *arg, uint32_t naps)
{
	struct opener *o = arg;

	__atomic_store_n(&o->naps, naps + 1, __ATOMIC_SEQ_CST);
	return __atomic_load_n(&o->enough, __ATOMIC_SEQ_CST);
}

static void *open_in_thread(void *arg)
{
	struct opener *o = arg;
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_space *space;

	tn_identity_init(&id);
	id.model = "one too many";
	tn_shard_init(&shard);
	o->rc = tn_space_open_unless(o->r->cache, &id, &shard, &o->r->s->g, NULL, has_enough, o, &space);
	return NULL;
}

static uint32_t sessions(struct rig *r)
{
	struct tn_owner_stats s = {.size = sizeof(s)};

	assert_int_equal(tn_cache_owner_stats(r->cache, &s), 0);
	return s.sessions;
}

static struct rig_space_opts seed_of(uint64_t seed)
{
	return (struct rig_space_opts){.tenant = "some", .seed = seed, .no_pool = true};
}

/* All numbers of spaces are taken, and the one space that nobody has open has a block under a lease, so it does not go. */
static uint64_t take_all_numbers(struct rig *r, struct rig_space held[TN_SPACES_MAX])
{
	struct rig_space_opts o = {.seed = 1};
	struct rig_space closed;
	uint64_t pin;

	assert_int_equal(rig_space_open(r, &o, &closed), 0);
	rig_save(&closed, 1, 1, 0);
	pin = rig_pin(&closed, 1, 1);
	rig_space_close(&closed);
	for (uint64_t i = 2; i < TN_SPACES_MAX; i++) {
		o = seed_of(i);
		assert_int_equal(rig_space_open(r, &o, &held[i]), 0);
	}
	return pin;
}

static void a_process_ends_and_another_one_begins_while_a_space_waits_to_be_opened(void **state)
{
	static struct rig_space held[TN_SPACES_MAX];
	struct opener o = {0};
	struct rig r, mine, other;
	uint64_t pin;

	serve(&r);
	attach(r.dir, &mine); /* the spaces of the rigs are one */
	pin = take_all_numbers(&r, held);
	o.r = &r;
	assert_int_equal(pthread_create(&o.thread, NULL, open_in_thread, &o), 0);
	rig_until(&r, __atomic_load_n(&o.naps, __ATOMIC_SEQ_CST) > 0);
	detach(&mine);
	rig_until(&r, sessions(&r) == 0);
	attach(r.dir, &other); /* opens a space that is known, and registers memory */
	assert_int_equal(rig_load(other.s, 1, BLOCKS), BLOCKS);
	detach(&other);
	rig_until(&r, sessions(&r) == 0);
	/* The other one waits as before, and then gives up. */
	__atomic_store_n(&o.enough, 1, __ATOMIC_SEQ_CST);
	assert_int_equal(pthread_join(o.thread, NULL), 0);
	assert_int_equal(o.rc, -ENOSPC);
	/* Once the lease has ended there is a number. */
	assert_int_equal(tn_unpin(r.s->space, pin), 0);
	o.enough = 0;
	o.r = &r;
	open_in_thread(&o);
	assert_int_equal(o.rc, 0);
	for (uint64_t i = 2; i < TN_SPACES_MAX; i++)
		rig_space_close(&held[i]);
	rig_tear_down(&r);
}

/* A thread that opens a space of its own. */
struct one_more {
	struct rig *r;
	uint64_t seed;
	pthread_barrier_t *barrier;
	pthread_t thread;
	struct rig_space s;
	uint32_t ended; /* shared: 1: opened, 2: refused */
};

static void *open_one_more(void *arg)
{
	struct one_more *m = arg;
	struct rig_space_opts o = seed_of(m->seed);
	int rc;

	pthread_barrier_wait(m->barrier);
	rc = rig_space_open(m->r, &o, &m->s);
	assert_true(rc == 0 || rc == -ENOSPC);
	__atomic_store_n(&m->ended, rc == 0 ? 1 : 2, __ATOMIC_SEQ_CST);
	return NULL;
}

static uint32_t count_ended(const struct one_more *more, uint32_t how)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < AT_ONCE; i++)
		n += __atomic_load_n(&more[i].ended, __ATOMIC_SEQ_CST) == how;
	return n;
}

static void so_many_spaces_of_a_process_are_open_also_if_it_opens_them_at_the_same_time(void **state)
{
	struct tn_attach_opts o = *patient();
	static struct rig_space held[SPACES];
	static struct one_more more[AT_ONCE];
	pthread_barrier_t barrier;
	struct rig r, mine;
	char path[PATH];

	serve(&r);
	socket_path(&r, path);
	init_in(r.dir, &mine);
	mine.o.attached = true;
	o.token = TENANT;
	assert_int_equal(tn_cache_attach(path, &o, &mine.cache), 0);
	tn_attached_answer_within(mine.cache, 600 * RIG_SECOND);
	for (uint64_t i = 0; i < SPACES - 1; i++) {
		struct rig_space_opts so = seed_of(i);

		assert_int_equal(rig_space_open(&mine, &so, &held[i]), 0);
	}
	assert_int_equal(pthread_barrier_init(&barrier, NULL, AT_ONCE), 0);
	/* None can be opened yet: all but one are refused all the same. */
	assert_int_equal(pthread_mutex_lock(&r.cache->lock), 0);
	for (uint32_t i = 0; i < AT_ONCE; i++) {
		more[i] = (struct one_more){.r = &mine, .seed = 1000 + i, .barrier = &barrier};
		assert_int_equal(pthread_create(&more[i].thread, NULL, open_one_more, &more[i]), 0);
	}
	rig_until(&r, count_ended(more, 2) == AT_ONCE - 1);
	assert_int_equal(pthread_mutex_unlock(&r.cache->lock), 0);
	for (uint32_t i = 0; i < AT_ONCE; i++)
		assert_int_equal(pthread_join(more[i].thread, NULL), 0);
	assert_int_equal(count_ended(more, 1), 1);
	/* One that is closed makes way for another one. */
	rig_space_close(&held[0]);
	for (uint32_t i = 0; i < AT_ONCE; i++)
		if (more[i].ended == 1)
			rig_space_close(&more[i].s);
	for (uint64_t i = 0; i < 2; i++) {
		struct rig_space_opts so = seed_of(2000 + i);

		assert_int_equal(rig_space_open(&mine, &so, &held[i]), 0);
	}
	assert_int_equal(tn_cache_close(mine.cache), 0);
	pthread_barrier_destroy(&barrier);
	rig_tear_down(&r);
}

/* ---- the beginning -------------------------------------------------------------------------------------------------- */

static void a_process_that_no_thread_can_answer_is_not_welcome(void **state)
{
	struct tn_cache *cache;
	struct held before;
	struct rig r, mine;
	char path[PATH];

	serve(&r);
	socket_path(&r, path);
	before = held_by(&r);
	__atomic_store_n(&no_threads, 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(tn_cache_attach(path, patient(), &cache), -EAGAIN);
		assert_true(says("cannot start a thread for a session"));
	}
	__atomic_store_n(&no_threads, 0, __ATOMIC_SEQ_CST);
	all_is_given_back(&r, &before);
	attach(r.dir, &mine);
	assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS);
	detach(&mine);
	all_is_given_back(&r, &before);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_process_that_takes_all_leases_leaves_the_others_their_part),
		cmocka_unit_test(a_process_that_begins_all_look_ups_leaves_the_others_their_part),
		cmocka_unit_test(each_process_can_have_its_pools_whatever_others_have),
		cmocka_unit_test(a_pool_that_is_destroyed_a_second_time_is_no_other_pool),
		cmocka_unit_test(a_process_ends_and_another_one_begins_while_a_space_waits_to_be_opened),
		cmocka_unit_test(so_many_spaces_of_a_process_are_open_also_if_it_opens_them_at_the_same_time),
		cmocka_unit_test(a_process_that_no_thread_can_answer_is_not_welcome),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
