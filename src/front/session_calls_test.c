/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an attached process asks of the owner's beside loads and saves: look-ups that are polled, block events, snapshots, slack tables. What
 * one process sees of others, what is left when it ends, and that rubbish is refused. The same calls run in cache_*_test.c, too.
 */
#include <errno.h>
#include <string.h>

#include <tenuto/events.h>
#include <tenuto/slack.h>

#include "block/events.h"
#include "cache_rig.h"
#include "enginepool.h"
#include "front/attach.h"
#include "sched/slack.h"

#define QUERIES 16u /* max_ops of rig_init */
#define SMALL_BYTES 4096u

static void set_up(struct rig *r, uint64_t host_bytes)
{
	rig_init(r, 0, host_bytes, 64);
	r->o.attached = true;
	rig_must_open(r);
}

/* A rig for another process that has attached to the same cache. */
static void attach(const struct rig *r, struct rig *other)
{
	*other = (struct rig){.o = r->o, .cache = rig_attach(r), .owner = r->owner};
}

static void detach(struct rig *other)
{
	assert_int_equal(tn_cache_close(other->cache), 0);
}

static void open_tenant(struct rig *r, const char *tenant, struct rig_space *s)
{
	assert_int_equal(rig_space_open(r, &(struct rig_space_opts){.tenant = tenant}, s), 0);
}

static void revisions_of_a_reset_have_blocks_of_their_own_in_every_process(void **state)
{
	struct rig_space mine, theirs, first;
	struct rig r, other;

	set_up(&r, 64u << 20);
	rig_save(r.s, 1, 4, 0);
	attach(&r, &other);
	assert_int_equal(rig_space_open(&other, &(struct rig_space_opts){.reset = 7, .no_pool = true}, &theirs), 0);
	assert_int_equal(rig_match(&theirs, 1, 4), 0);
	assert_int_equal(rig_space_open(&r, &(struct rig_space_opts){.reset = 7}, &mine), 0);
	rig_save(&mine, 1, 2, 0);
	assert_int_equal(rig_match(&theirs, 1, 4), 2);
	assert_int_equal(rig_match(r.s, 1, 4), 4); /* of the weights that the engine had started with */
	assert_int_equal(rig_space_open(&other, &(struct rig_space_opts){.reset = 8, .no_pool = true}, &first), 0);
	assert_int_equal(rig_match(&first, 1, 4), 0);
	tn_space_close(first.space);
	tn_space_close(theirs.space);
	rig_space_close(&mine);
	detach(&other);
	rig_tear_down(&r);
}

/* ---- look-ups ------------------------------------------------------------------------------------------------- */

static int begin(const struct rig_space *s, uint64_t *query)
{
	struct tn_key key = rig_key(1);

	return tn_match_begin(&s->space, 1, &key, 1, 0, 0, query);
}

/* Until there are no more. */
static uint32_t begin_all(const struct rig_space *s, uint64_t query[QUERIES])
{
	uint32_t n = 0;

	while (n < QUERIES && begin(s, &query[n]) == 0)
		n++;
	return n;
}

/* Of the cache's look-ups each process has a part that nobody else takes; beyond it they are common. */
static void a_process_that_ends_leaves_no_look_up_behind(void **state)
{
	uint64_t query[QUERIES], mine[QUERIES];
	struct rig r, other;
	uint32_t n;

	set_up(&r, 4u << 20);
	for (int round = 0; round < 3; round++) {
		attach(&r, &other);
		open_tenant(&other, "anna", other.s);
		for (uint32_t i = 0; i < QUERIES; i++)
			assert_int_equal(begin(other.s, &query[i]), 0);
		n = begin_all(r.s, mine);
		assert_int_equal(n, 2 * TN_ALLOTTED_QUERIES); /* its part, and what the other one has left of what is common */
		assert_int_equal(begin(r.s, &query[0]), -EAGAIN); /* the tables are the cache's */
		rig_space_close(other.s);
		if (round == 0) { /* the look-ups went with their space */
			assert_int_equal(begin(r.s, &query[0]), 0);
			assert_int_equal(tn_match_cancel(r.cache, query[0]), 0);
		}
		detach(&other);
		rig_until(&r, begin(r.s, &query[0]) == 0);
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(tn_match_cancel(r.cache, mine[i]), 0);
		for (uint32_t i = 1; i < QUERIES; i++)
			assert_int_equal(begin(r.s, &query[i]), 0);
		for (uint32_t i = 0; i < QUERIES; i++)
			assert_int_equal(tn_match_cancel(r.cache, query[i]), 0);
	}
	rig_tear_down(&r);
}

static void nobody_polls_or_cancels_another_processs_look_up(void **state)
{
	struct tn_match m = {.size = sizeof(m)};
	struct rig r, other;
	uint64_t query;

	set_up(&r, 4u << 20);
	attach(&r, &other);
	assert_int_equal(begin(r.s, &query), 0);
	assert_int_equal(tn_match_poll(other.cache, query, NULL, &m), -EINVAL);
	assert_int_equal(tn_match_cancel(other.cache, query), -EINVAL);
	assert_int_equal(tn_match_poll(r.cache, 0, NULL, &m), -EINVAL);
	assert_int_equal(tn_match_poll(r.cache, UINT64_MAX, NULL, &m), -EINVAL);
	assert_int_equal(tn_match_poll(r.cache, query, NULL, &m), 0);
	assert_int_equal(tn_match_poll(r.cache, query, NULL, &m), -EINVAL);
	detach(&other);
	rig_tear_down(&r);
}

/* ---- events --------------------------------------------------------------------------------------------------- */

static long read_events(struct rig *r, uint64_t *cursor, struct tn_block_event *e, size_t max)
{
	long n;

	memset(e, 0, max * sizeof(*e));
	n = tn_cache_events(r->cache, cursor, e, max);
	return n;
}

/* Not even gaps in the numbers tell of others. */
static void events_are_those_of_spaces_that_the_process_has_open(void **state)
{
	uint64_t cursor[2] = {0, 0};
	struct tn_block_event e[32];
	struct rig r, other;

	set_up(&r, 16u << 20);
	attach(&r, &other);
	open_tenant(&other, "bert", other.s);
	assert_int_equal(read_events(&r, &cursor[0], e, 32), 0);
	assert_int_equal(read_events(&other, &cursor[1], e, 32), 0);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(rig_save(r.s, 1 + 4 * i, 4, 0).host_only, 4);
		assert_int_equal(rig_save(other.s, 1001 + i, 1, 0).host_only, 1);
	}
	assert_int_equal(read_events(&r, &cursor[0], e, 32), 12);
	for (uint32_t i = 0; i < 12; i++) {
		assert_int_equal(e[i].sequence, e[0].sequence + i);
		assert_int_equal(e[i].space, tn_space_index(r.s->space));
		assert_int_equal(e[i].kind, TN_EVENT_STORED);
		assert_int_equal(e[i].key.word[1], 1 + i);
	}
	assert_int_equal(read_events(&other, &cursor[1], e, 2), 2);
	assert_int_equal(e[0].sequence, 1);
	assert_int_equal(e[1].key.word[1], 1002);
	assert_int_equal(read_events(&other, &cursor[1], e, 32), 1);
	assert_int_equal(e[0].sequence, 3);
	rig_space_close(other.s); /* from now on nothing is raised for it */
	assert_int_equal(rig_save(r.s, 101, 4, 0).host_only, 4);
	assert_int_equal(read_events(&other, &cursor[1], e, 32), 0);
	assert_int_equal(read_events(&r, &cursor[0], e, 32), 4);
	detach(&other);
	rig_tear_down(&r);
}

struct flood {
	struct tn_key key;
	uint32_t space, n;
};

/* The same block arrives again and again, as far as readers can tell. */
static int flood_events(struct tn_cache *cache, void *arg)
{
	const struct flood *f = arg;
	tn_block b = tn_registry_find_one(cache->registry, f->space, &f->key, false);

	for (uint32_t i = 0; i < f->n; i++)
		tn_watch_raise(cache->watch, b, TN_TIER_HOST, TN_EVENT_STORED);
	return 0;
}

static void who_reads_too_late_is_told_so_and_others_are_not(void **state)
{
	struct flood f = {.key = rig_key(1), .n = TN_EVENTS_KEPT + 10};
	struct tn_block_event e[1000];
	uint64_t cursor[2] = {0, 0}, begun;
	struct rig r, other;

	set_up(&r, 16u << 20);
	attach(&r, &other);
	open_tenant(&other, "bert", other.s);
	assert_int_equal(read_events(&r, &cursor[0], e, 1), 0);
	assert_int_equal(read_events(&other, &cursor[1], e, 1), 0);
	assert_int_equal(rig_save(other.s, 7, 1, 0).host_only, 1);
	rig_save(r.s, 1, 1, 0);
	f.space = tn_space_index(r.s->space);
	assert_int_equal(tn_owner_call(r.owner, flood_events, &f), 0);
	begun = cursor[0];
	assert_int_equal(read_events(&r, &cursor[0], e, 1000), -ESTALE);
	assert_true(cursor[0] == begun + 1 + f.n);
	assert_int_equal(read_events(&r, &cursor[0], e, 1000), 0);
	assert_int_equal(read_events(&other, &cursor[1], e, 1000), 1); /* its own are all there */
	f.n = TN_EVENTS_KEPT;
	assert_int_equal(tn_owner_call(r.owner, flood_events, &f), 0);
	for (uint32_t left = f.n; left > 0;) {
		long n = read_events(&r, &cursor[0], e, 1000);

		assert_int_equal(n, left < 1000 ? left : 1000);
		left -= (uint32_t)n;
	}
	rig_space_close(other.s);
	detach(&other);
	rig_tear_down(&r);
}

static void cursors_that_were_never_given_out_are_refused(void **state)
{
	struct tn_block_event e;
	uint64_t cursor = 5;
	struct rig r;

	set_up(&r, 4u << 20);
	assert_int_equal(tn_cache_events(r.cache, &cursor, &e, 1), -EINVAL);
	cursor = UINT64_MAX;
	assert_int_equal(tn_cache_events(r.cache, &cursor, &e, 1), -EINVAL);
	cursor = 0;
	assert_int_equal(tn_cache_events(r.cache, &cursor, NULL, 0), 0);
	assert_int_equal(cursor, 1);
	rig_tear_down(&r);
}

/* ---- snapshots -------------------------------------------------------------------------------------------------- */

#define SMALL_BLOCKS 1300u /* more than two parts of a snapshot */

struct seen {
	bool there[SMALL_BLOCKS + 1];
	uint32_t space, wrong;
};

static void on_block(void *arg, const struct tn_block_event *e)
{
	struct seen *s = arg;
	uint64_t id = e->key.word[1];

	s->wrong += e->space != s->space || id == 0 || id > SMALL_BLOCKS || s->there[id <= SMALL_BLOCKS ? id : 0];
	s->there[id <= SMALL_BLOCKS ? id : 0] = true;
}

/* Blocks of one page of 4 KiB. */
static void save_small(struct rig *r, struct rig_space *s, uint32_t n)
{
	struct tn_geometry g = {.layers = 1, .page_tokens = 1, .pages_per_block = 1, .nplanes = 1, .planes = {{TN_PLANE_K, 1, 2048, 16}}};
	const uint32_t pages[256] = {0}; /* all from one page */
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_pool *pool;
	void *kv = rig_memory(r, SMALL_BYTES);

	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.model = "small";
	*s = (struct rig_space){.rig = r, .g = g};
	assert_int_equal(tn_space_open(r->cache, &id, &shard, &g, NULL, &s->space), 0);
	assert_int_equal(enginepool_create(r->cache, &g, &(struct tn_pool_shape){.npages = 1}, &kv, &pool), 0);
	for (uint32_t i = 0; i < n; i += 256) {
		uint32_t some = n - i < 256 ? n - i : 256;
		struct tn_key keys[256];
		struct tn_save *save;

		rig_keys(1 + i, some, keys);
		assert_int_equal(tn_save_begin(s->space, pool, keys, some, pages, NULL, &save), 0);
		rig_save_give(s, save);
		assert_int_equal(rig_save_end(s, save).host_only, some);
	}
	assert_int_equal(enginepool_destroy(pool), 0);
	rig_memory_free(r, kv, SMALL_BYTES);
}

static void a_snapshot_has_all_blocks_of_the_processs_spaces_and_no_other(void **state)
{
	struct seen seen = {.wrong = 0}, none = {.wrong = 0};
	struct rig_space small;
	struct tn_block_event e;
	struct rig r, other;
	uint64_t cursor;

	set_up(&r, 200u << 20); /* as many entries as large blocks fit in */
	rig_save(r.s, 1, 16, 0);
	attach(&r, &other);
	save_small(&other, &small, SMALL_BLOCKS);
	seen.space = tn_space_index(small.space);
	assert_int_equal(tn_cache_snapshot(other.cache, on_block, &seen, &cursor), SMALL_BLOCKS);
	assert_int_equal(seen.wrong, 0);
	assert_int_equal(tn_cache_events(other.cache, &cursor, &e, 1), 0);
	tn_space_close(small.space);
	assert_int_equal(tn_cache_snapshot(other.cache, on_block, &none, &cursor), 0);
	assert_int_equal(none.wrong, 0);
	detach(&other);
	rig_tear_down(&r);
}

/* ---- slack tables ----------------------------------------------------------------------------------------------- */

/* So many lengths that its bytes take several calls. */
static struct tn_slack *large_table(void)
{
	uint64_t lengths[TN_SLACK_LENGTHS_MAX];
	struct tn_slack_desc d;
	struct tn_slack *t;

	for (uint32_t i = 0; i < TN_SLACK_LENGTHS_MAX; i++)
		lengths[i] = 100 * (i + 1);
	tn_slack_desc_init(&d);
	d.layers = RIG_LAYERS;
	d.per_layer = true;
	d.inputs = d.prefixes = lengths;
	d.ninputs = d.nprefixes = TN_SLACK_LENGTHS_MAX;
	assert_int_equal(tn_slack_create(&d, &t), 0);
	for (uint32_t i = 0; i < TN_SLACK_LENGTHS_MAX; i++)
		for (uint32_t p = 0; p < TN_SLACK_LENGTHS_MAX; p++)
			for (uint32_t l = 0; l < RIG_LAYERS; l++)
				assert_int_equal(tn_slack_set(t, i, p, l, 1000 + (i * 64 + p) * 8 + l), 0);
	return t;
}

static void assert_same_table(const struct tn_slack *a, const struct tn_slack *b)
{
	for (uint64_t input = 50; input < 4000; input += 350)
		for (uint64_t prefix = 0; prefix < 4000; prefix += 350)
			for (uint32_t l = 0; l < RIG_LAYERS; l++)
				assert_int_equal(tn_slack_window(a, input, prefix, l), tn_slack_window(b, input, prefix, l));
}

static void check_copy(struct rig *r, const struct tn_slack *table)
{
	struct tn_slack *ours, *owners;

	assert_int_equal(tn_space_slack_copy(r->s->space, &ours), 0);
	assert_int_equal(tn_space_slack_copy(rig_core_space(r->s), &owners), 0);
	assert_same_table(ours, table);
	assert_same_table(owners, table);
	tn_slack_destroy(ours);
	tn_slack_destroy(owners);
}

static void a_table_goes_to_the_owner_and_back_with_all_it_has_learned(void **state)
{
	struct tn_slack *table = large_table(), *learned;
	struct rig r;

	set_up(&r, 4u << 20);
	assert_true(tn_slack_bytes(table) > 2 * r.cache->region.counts.call_bytes);
	assert_int_equal(tn_space_slack(r.s->space, table), 0);
	check_copy(&r, table);
	for (uint32_t i = 0; i < 20; i++)
		tn_slack_observe(table, 1000, 1000, 1, 50000);
	assert_int_equal(tn_space_slack(r.s->space, table), 0);
	check_copy(&r, table);
	assert_int_equal(tn_slack_create_empty(RIG_LAYERS, &learned), 0);
	for (uint32_t i = 0; i < 50; i++)
		tn_slack_observe(learned, 1000, 100 * i, TN_SLACK_ALL_LAYERS, 1000000 + 1000 * i);
	assert_int_equal(tn_space_slack(r.s->space, learned), 0);
	check_copy(&r, learned);
	assert_int_equal(tn_space_slack(r.s->space, NULL), 0);
	tn_slack_destroy(learned);
	assert_int_equal(tn_space_slack_copy(r.s->space, &learned), 0);
	assert_int_equal(tn_slack_window(learned, 1000, 1000, 0), 0); /* it begins anew */
	tn_slack_destroy(learned);
	tn_slack_destroy(table);
	rig_tear_down(&r);
}

static int send_part(struct rig *r, struct tn_wire_slack w, const void *part, size_t n)
{
	const struct iovec in[] = {TN_PART(&w, sizeof(w)), TN_PART(part, n)};

	return tn_attached_call(r->cache, TN_WIRE_SLACK_SET, in, 2, NULL, 0);
}

static void parts_of_a_table_that_do_not_follow_each_other_are_refused(void **state)
{
	struct tn_slack *table = large_table(), *t;
	size_t bytes = tn_slack_bytes(table);
	unsigned char *b = malloc(bytes);
	struct tn_wire_slack w, got;
	struct iovec in = TN_PART(&w, sizeof(w)), out = TN_PART(&got, sizeof(got));
	struct rig r;

	set_up(&r, 4u << 20);
	assert_non_null(b);
	tn_slack_store(table, b);
	w = (struct tn_wire_slack){.space = r.s->space->index, .has = 1, .bytes = bytes};
	w.at = 1000;
	assert_int_equal(send_part(&r, w, b, 1000), -EINVAL); /* none is under way */
	w.at = 0;
	w.bytes = UINT64_MAX;
	assert_int_equal(send_part(&r, w, b, 1000), -EINVAL);
	w.bytes = 500;
	assert_int_equal(send_part(&r, w, b, 1000), -EINVAL); /* more than all */
	w.bytes = bytes;
	assert_int_equal(send_part(&r, w, b, 1000), 0);
	w.at = 999;
	assert_int_equal(send_part(&r, w, b, 1000), -EINVAL);
	w.at = bytes - 1;
	assert_int_equal(send_part(&r, w, b, 1), -EINVAL);
	w.at = 1000;
	w.space = 999;
	assert_int_equal(send_part(&r, w, b, 1000), -EINVAL);
	w.space = r.s->space->index;
	w.bytes = UINT64_MAX; /* a part of a copy; none is that large */
	assert_int_equal(tn_attached_call(r.cache, TN_WIRE_SLACK_GET, &in, 1, &out, 1), -EINVAL);
	memset(b, 0xff, bytes); /* a whole table of rubbish */
	for (w.at = 0, w.bytes = 3000; w.at < 3000; w.at += 1000)
		assert_int_equal(send_part(&r, w, b, 1000), w.at < 2000 ? 0 : -EINVAL);
	assert_int_equal(tn_space_slack_copy(r.s->space, &t), 0);
	assert_int_equal(tn_slack_window(t, 100, 100, 0), 0); /* nothing came of it */
	tn_slack_destroy(t);
	free(b);
	tn_slack_destroy(table);
	rig_tear_down(&r);
}

/* ---- the write backlog ------------------------------------------------------------------------------------------ */

static void a_save_that_the_core_refuses_counts_no_longer(void **state)
{
	uint32_t number, pages[RIG_PAGES];
	struct tn_key key = rig_key(1);
	struct tn_save *save;
	struct rig r;

	for (int attached = 0; attached < 2; attached++) {
		const struct tn_region_front *front;

		rig_init(&r, 64u << 20, 0, 64);
		r.o.attached = attached;
		rig_must_open(&r);
		rig_pages(r.s, 0, 1, pages);
		front = tn_region_front(&r.cache->region);
		number = r.s->pool->number;
		r.s->pool->number = 4000; /* of no pool */
		for (int i = 0; i < 3; i++) {
			assert_int_equal(tn_save_begin(r.s->space, r.s->pool, &key, 1, pages, NULL, &save), 0);
			rig_save_give(r.s, save);
			assert_int_equal(tn_save_end(save, tn_test_deadline(), NULL), -EINVAL);
		}
		r.s->pool->number = number;
		assert_int_equal(front->admitted_bytes, 0);
		assert_int_equal(rig_save(r.s, 1, 1, 0).stored, 1);
		rig_until(&r, front->admitted_bytes == __atomic_load_n(&tn_region_core(&r.cache->region)->given_back_bytes, __ATOMIC_RELAXED));
		rig_tear_down(&r);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(revisions_of_a_reset_have_blocks_of_their_own_in_every_process),
		cmocka_unit_test(a_process_that_ends_leaves_no_look_up_behind),
		cmocka_unit_test(nobody_polls_or_cancels_another_processs_look_up),
		cmocka_unit_test(events_are_those_of_spaces_that_the_process_has_open),
		cmocka_unit_test(who_reads_too_late_is_told_so_and_others_are_not),
		cmocka_unit_test(cursors_that_were_never_given_out_are_refused),
		cmocka_unit_test(a_snapshot_has_all_blocks_of_the_processs_spaces_and_no_other),
		cmocka_unit_test(a_table_goes_to_the_owner_and_back_with_all_it_has_learned),
		cmocka_unit_test(parts_of_a_table_that_do_not_follow_each_other_are_refused),
		cmocka_unit_test(a_save_that_the_core_refuses_counts_no_longer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
