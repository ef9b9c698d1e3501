/* SPDX-License-Identifier: Apache-2.0 */
/* What a cache says of the processes that use it: the owner's process and those that have attached see the same. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <tenuto/session.h>
#include <unistd.h>

#include "core/core.h"
#include "front/cache_rig.h"
#include "region/latency.h"

#define BLOCKS 32u

struct pair {
	struct rig owner, mine; /* mine is attached to the owner's cache, from the same process */
};

static void attach(struct pair *p)
{
	struct rig *r = &p->mine;
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];

	rig_init_in(r, p->owner.dir, 64u << 20, 0, 64);
	r->o.attached = true;
	snprintf(path, sizeof(path), "%.90s/socket", r->dir);
	assert_int_equal(tn_cache_attach(path, NULL, &r->cache), 0);
	assert_int_equal(rig_space_open(r, &(struct rig_space_opts){0}, r->s), 0);
}

static void set_up(struct pair *p)
{
	char path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];

	rig_set_up(&p->owner, 64u << 20, 8u << 20, 64);
	snprintf(path, sizeof(path), "%.90s/socket", p->owner.dir);
	assert_int_equal(tn_cache_serve(p->owner.cache, path, NULL), 0);
	attach(p);
}

static struct tn_owner_stats owner_stats(struct tn_cache *cache)
{
	struct tn_owner_stats s = {.size = sizeof(s)};

	assert_int_equal(tn_cache_owner_stats(cache, &s), 0);
	return s;
}

static void detach(struct pair *p)
{
	rig_space_close(p->mine.s);
	assert_int_equal(tn_cache_close(p->mine.cache), 0);
	rig_until(&p->owner, owner_stats(p->owner.cache).sessions == 0);
}

static struct tn_session_stats session(struct tn_cache *cache, uint32_t place)
{
	struct tn_session_stats s = {.size = sizeof(s)};

	assert_int_equal(tn_cache_session_stats(cache, place, &s), 0);
	return s;
}

static struct tn_latency latency(struct tn_cache *cache, enum tn_latency_kind kind, enum tn_tier tier)
{
	struct tn_latency l = {.size = sizeof(l)};

	assert_int_equal(tn_cache_all_latency(cache, kind, tier, &l), 0);
	return l;
}

static void each_process_has_a_session_and_all_see_the_same(void **state)
{
	uint64_t bytes;
	struct pair p;

	set_up(&p);
	bytes = (uint64_t)BLOCKS * tn_geometry_block_bytes(&p.owner.s->g);
	assert_int_equal(rig_save(p.mine.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_load(p.mine.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(rig_load(p.mine.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(rig_load(p.owner.s, 1, BLOCKS), BLOCKS);
	for (uint32_t i = 0; i < 2; i++) {
		struct tn_cache *asked = i ? p.mine.cache : p.owner.cache;
		struct tn_session_stats own = session(asked, 0), other = session(asked, 1), none = {.size = sizeof(none)};
		struct tn_owner_stats owner = owner_stats(asked);

		assert_int_equal(owner.pid, getpid());
		assert_int_equal(owner.sessions, 1);
		assert_int_equal(owner.sessions_total, 1);
		assert_true(owner.open_ns > 0);
		assert_int_equal(own.loads, 1);
		assert_int_equal(own.saves, 0);
		assert_int_equal(own.loaded_bytes, bytes);
		assert_int_equal(other.pid, getpid());
		assert_int_equal(other.loads, 2);
		assert_int_equal(other.saves, 1);
		assert_int_equal(other.loaded_bytes, 2 * bytes);
		assert_int_equal(other.saved_bytes, bytes);
		assert_true(other.attached_ns > 0 && other.attached_ns < owner.open_ns);
		assert_int_equal(other.loads_now + other.saves_now + other.calls, 0);
		assert_int_equal(tn_cache_session_stats(asked, 2, &none), -ENOENT);
		assert_int_equal(tn_cache_session_stats(asked, TN_SESSION_PLACES, &none), -EINVAL);
	}
	assert_int_equal(rig_stats(&p.owner).loaded_bytes[TN_TIER_HOST] + rig_stats(&p.owner).loaded_bytes[TN_TIER_DISK], 3 * bytes);
	assert_int_equal(rig_stats(&p.owner).saved_bytes, bytes);
	detach(&p);
	assert_int_equal(owner_stats(p.owner.cache).sessions_total, 1);
	rig_tear_down(&p.owner);
}

static void what_a_process_waits_for_is_told(void **state)
{
	struct tn_session_stats s;
	struct tn_key keys[4];
	uint32_t pages[4 * RIG_PAGES];
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_event *event;
	struct tn_save *save;
	struct pair p;

	set_up(&p);
	rig_keys(100, 4, keys);
	rig_pages(p.mine.s, 0, 4, pages);
	rig_fill_blocks(p.mine.s, 100, 4, 0);
	assert_int_equal(tn_event_create(p.mine.cache, &event), 0);
	assert_int_equal(tn_save_begin(p.mine.s->space, p.mine.s->pool, keys, 4, pages, NULL, &save), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_save_layer(save, l, event, 1 + l), 0);
	rig_until(&p.owner, session(p.owner.cache, 1).saves_now == 1);
	s = session(p.owner.cache, 1);
	assert_int_equal(s.waiting_process, 1);
	assert_int_equal(s.moving + s.waiting_turn, 0);
	assert_int_equal(session(p.owner.cache, 0).saves_now, 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_event_raise(event, 1 + l), 0);
	assert_int_equal(tn_save_commit(save), 0);
	assert_int_equal(tn_save_end(save, tn_test_deadline(), &res), 0);
	assert_int_equal(session(p.owner.cache, 1).saves_now, 0);
	tn_event_destroy(event);
	detach(&p);
	rig_tear_down(&p.owner);
}

/* A process that has left is still counted, and one that writes anything into its counts takes nothing back. */
static void no_count_of_a_latency_ever_falls(void **state)
{
	struct tn_latency before, after;
	struct tn_region_histogram *words;
	struct pair p;

	set_up(&p);
	assert_int_equal(rig_match(p.owner.s, 1, 1), 0);
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(rig_match(p.mine.s, 1, 1), 0);
	assert_int_equal(rig_flush(&p.mine), 0);
	before = latency(p.owner.cache, TN_LATENCY_MATCH, TN_TIER_NONE);
	assert_int_equal(before.count, 6);
	after = latency(p.mine.cache, TN_LATENCY_MATCH, TN_TIER_NONE); /* asks the owner */
	assert_memory_equal(&before, &after, sizeof(before));
	assert_int_equal(latency(p.owner.cache, TN_LATENCY_FLUSH, TN_TIER_NONE).count, 1);
	assert_int_equal(tn_cache_latency(p.mine.cache, TN_LATENCY_MATCH, TN_TIER_NONE, &after), 0);
	assert_int_equal(after.count, 5); /* its own calls alone */

	words = tn_region_table(&p.mine.cache->region, TN_REGION_LATENCIES);
	words += tn_latency_number(TN_LATENCY_MATCH, TN_TIER_NONE);
	for (uint32_t i = 0; i < TN_LATENCY_BUCKETS; i++)
		__atomic_store_n(&words->buckets[i], 0, __ATOMIC_RELAXED);
	__atomic_store_n(&words->sum_ns, UINT64_MAX, __ATOMIC_RELAXED);
	__atomic_store_n(&words->buckets[300], UINT64_MAX, __ATOMIC_RELAXED);
	after = latency(p.owner.cache, TN_LATENCY_MATCH, TN_TIER_NONE);
	for (uint32_t i = 0; i < TN_LATENCY_BUCKETS; i++)
		assert_true(after.buckets[i] >= before.buckets[i]);
	assert_true(after.sum_ns >= before.sum_ns);
	detach(&p);
	before = latency(p.owner.cache, TN_LATENCY_MATCH, TN_TIER_NONE);
	assert_memory_equal(&before, &after, sizeof(before));

	attach(&p);
	assert_int_equal(rig_match(p.mine.s, 1, 1), 0);
	after = latency(p.owner.cache, TN_LATENCY_MATCH, TN_TIER_NONE);
	assert_int_equal(after.count, before.count + 1);
	assert_int_equal(latency(p.owner.cache, TN_LATENCY_FLUSH, TN_TIER_NONE).count, 1);
	detach(&p);
	rig_tear_down(&p.owner);
}

static void a_cache_that_nobody_attaches_to_tells_of_itself(void **state)
{
	struct tn_session_stats s = {.size = sizeof(s)};
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	assert_int_equal(owner_stats(r.cache).sessions_total, 0);
	assert_int_equal(rig_match(r.s, 1, 1), 0);
	assert_int_equal(latency(r.cache, TN_LATENCY_MATCH, TN_TIER_NONE).count, 1);
	assert_int_equal(session(r.cache, 0).loads, 0);
	assert_int_equal(tn_cache_session_stats(r.cache, 1, &s), -ENOENT);
	rig_tear_down(&r);
}

/* ---- spaces --------------------------------------------------------------------------------------------------- */

static struct tn_slack *table(uint64_t window_ns)
{
	const uint64_t inputs[] = {64, 65536}, prefixes[] = {0};
	struct tn_slack_desc d;
	struct tn_slack *t;

	tn_slack_desc_init(&d);
	d.how = TN_SLACK_PROFILED;
	d.layers = RIG_LAYERS;
	d.inputs = inputs;
	d.prefixes = prefixes;
	d.ninputs = 2;
	d.nprefixes = 1;
	assert_int_equal(tn_slack_create(&d, &t), 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(tn_slack_set(t, i, 0, TN_SLACK_ALL_LAYERS, window_ns * inputs[i] / 64), 0);
	return t;
}

/* As the owner and as an attached process see it. */
static void check_space(struct pair *p, uint32_t how, uint64_t bps, uint64_t crossover)
{
	for (int attached = 0; attached < 2; attached++) {
		struct tn_space_stats s = {.size = sizeof(s)};
		struct tn_cache *cache = attached ? p->mine.cache : p->owner.cache;

		assert_int_equal(tn_cache_space_stats(cache, 0, 64, &s), 0);
		assert_int_equal(s.index, 0);
		assert_string_equal(s.model, p->owner.s->space->model);
		assert_int_equal(s.how, how);
		assert_int_equal(s.block_tokens, tn_geometry_block_tokens(&p->owner.s->g));
		assert_int_equal(s.read_bps, bps);
		assert_int_equal(s.crossover_tokens, crossover);
		assert_int_equal(tn_cache_space_stats(cache, 0, 0, &s), -EINVAL);
		while (tn_cache_space_stats(cache, s.index + 1, 64, &s) == 0)
			;
		assert_int_equal(tn_cache_space_stats(cache, 1023, 64, &s), -ENOENT);
		assert_int_equal(tn_cache_space_stats(cache, UINT32_MAX, 64, &s), -ENOENT);
	}
}

/* 2^20 blocks of one token are more bytes than can be counted: no error for who asks, who has other spaces to tell of. */
static void check_huge(struct tn_cache *cache, struct tn_space *space)
{
	struct tn_space_stats s = {.size = sizeof(s)};
	struct tn_geometry geometry = space->geometry;
	uint32_t object_bytes = space->shape.padded_bytes;

	pthread_mutex_lock(&cache->lock); /* the thread of a session has read them */
	space->geometry.page_tokens = 1;
	space->geometry.pages_per_block = 1;
	space->shape.padded_bytes = UINT32_MAX;
	pthread_mutex_unlock(&cache->lock);
	assert_int_equal(tn_cache_space_stats(cache, 0, 64, &s), 0);
	assert_int_equal(s.crossover_tokens, 0);
	pthread_mutex_lock(&cache->lock);
	space->geometry.page_tokens = geometry.page_tokens;
	space->geometry.pages_per_block = geometry.pages_per_block;
	space->shape.padded_bytes = object_bytes;
	pthread_mutex_unlock(&cache->lock);
}

static void a_space_tells_from_where_on_a_restore_pays(void **state)
{
	struct tn_slack *fast = table(1000), *slow = table(1000000000);
	struct pair p;

	set_up(&p);
	check_space(&p, TN_SLACK_UNKNOWN, 0, 0);
	assert_int_equal(tn_space_slack(p.mine.s->space, slow), 0);
	check_space(&p, TN_SLACK_PROFILED, 0, 0); /* the disk was not read yet */
	__atomic_store_n(&rig_core(&p.owner)->ns_per_mib[TN_TIER_DISK], 10000000, __ATOMIC_RELAXED);
	check_space(&p, TN_SLACK_PROFILED, 104857600, tn_geometry_block_tokens(&p.owner.s->g));
	check_huge(rig_core(&p.owner), rig_core_space(p.owner.s));
	assert_int_equal(tn_space_slack(p.mine.s->space, fast), 0);
	check_space(&p, TN_SLACK_PROFILED, 104857600, TN_CROSSOVER_NEVER);
	tn_slack_destroy(fast);
	tn_slack_destroy(slow);
	detach(&p);
	rig_tear_down(&p.owner);
}

/* ---- finding the owner -------------------------------------------------------------------------------------- */

static int listening(const char *path, int type)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%.107s", path);
	unlink(path);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 4), 0);
	return fd;
}

static void a_socket_that_listens_already_is_served(void **state)
{
	char path[128];
	struct tn_cache *attached;
	struct rig r;
	int fd;

	rig_set_up(&r, 64u << 20, 0, 64);
	snprintf(path, sizeof(path), "%.90s/given", r.dir);
	assert_int_equal(tn_cache_attach_store(r.dir, "default", NULL, &attached), -ENOENT);
	assert_int_equal(tn_cache_serve_socket(r.cache, -1, NULL), -EBADF);
	fd = listening(path, SOCK_STREAM);
	assert_int_equal(tn_cache_serve_socket(r.cache, fd, NULL), -EINVAL);
	assert_int_equal(close(fd), 0); /* still ours */
	fd = listening(path, SOCK_SEQPACKET);
	assert_int_equal(tn_cache_serve_socket(r.cache, fd, NULL), 0);
	assert_int_equal(tn_cache_serve_socket(r.cache, fd, NULL), -EALREADY);

	assert_int_equal(tn_cache_attach_store(r.dir, "default", NULL, &attached), 0);
	assert_int_equal(owner_stats(attached).sessions, 1);
	assert_int_equal(tn_cache_serve_socket(attached, fd, NULL), -EINVAL);
	assert_int_equal(tn_cache_close(attached), 0);
	assert_int_equal(tn_cache_attach_store(r.dir, "other", NULL, &attached), -ENOENT);
	assert_int_equal(tn_cache_attach_store(NULL, "default", NULL, &attached), -EINVAL);
	assert_int_equal(rig_close(&r), 0);
	assert_int_equal(access(path, F_OK), 0); /* the path belongs to whoever made it */
	assert_int_equal(tn_cache_attach_store(r.dir, "default", NULL, &attached), -ENOENT);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_process_has_a_session_and_all_see_the_same),
		cmocka_unit_test(what_a_process_waits_for_is_told),
		cmocka_unit_test(no_count_of_a_latency_ever_falls),
		cmocka_unit_test(a_cache_that_nobody_attaches_to_tells_of_itself),
		cmocka_unit_test(a_space_tells_from_where_on_a_restore_pays),
		RIG_FILE_TEST(a_socket_that_listens_already_is_served),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
