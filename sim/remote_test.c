/* SPDX-License-Identifier: Apache-2.0 */
/* The remote tier over a store that does as the test says: late, gone, full, or with other bytes than were written. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tenuto/remote.h>

#include "core/core.h"
#include "remote_rig.h"
#include "tier/remote/spec.h"

/* ---- cases ------------------------------------------------------------------------------------------------------------------ */

static void what_was_written_is_found_and_comes_back(void **state)
{
	struct rig *r = remote_node();

	assert_int_equal(remote_look_up(r, CHAIN), 0);
	for (uint32_t i = 0; i < CHAIN; i++)
		assert_int_equal(remote_write(r, 1 + i), 0);
	store.requests = 0;
	assert_int_equal(remote_look_up(r, CHAIN), CHAIN);
	assert_int_equal(store.requests, CHAIN);
	assert_int_equal(store.most, TN_OBJECT_SLOTS); /* so many at the same time */
	for (uint32_t i = 0; i < CHAIN; i++)
		assert_int_equal(remote_read(r, 1 + i), 0);
	assert_int_equal(remote_write(r, 1), 0); /* it is there already */
	rig_tear_down(r);
}

static void a_look_up_ends_at_the_first_block_that_is_missing(void **state)
{
	struct rig *r = remote_node();

	for (uint32_t i = 0; i < CHAIN; i++)
		assert_int_equal(remote_write(r, 1 + i), 0);
	for (uint32_t gap = CHAIN; gap-- > 0; gap -= gap > 5 ? 5 : 0) {
		remote_object(r, 1 + gap)->name[0] = '!'; /* nobody finds it */
		store.requests = 0;
		assert_int_equal(remote_look_up(r, CHAIN), gap);
		assert_in_range(store.requests, gap + 1, gap + TN_OBJECT_SLOTS);
	}
	rig_tear_down(r);
}

static void a_store_that_answers_for_many_keys_is_asked_once(void **state)
{
	struct rig *r = remote_node();

	for (uint32_t i = 0; i < CHAIN; i++)
		assert_int_equal(remote_write(r, 1 + i), 0);
	store.client.ops = &remote_reader;
	for (uint32_t gap = CHAIN + 1; gap-- > 0;) {
		store.requests = 0;
		assert_int_equal(remote_look_up(r, CHAIN), gap);
		assert_int_equal(store.requests, 1);
		if (gap)
			remote_object(r, gap)->name[0] = '!'; /* nobody finds it */
	}
	store.fails = -EIO;
	assert_int_equal(remote_look_up(r, CHAIN), 0);
	store.client.ops = &remote_client;
	rig_tear_down(r);
}

static void a_store_for_reading_only_has_no_place_for_a_block(void **state)
{
	struct rig *r = remote_node();
	struct tn_place_wait wait = {0};
	uint32_t place;

	store.client.ops = &remote_reader;
	assert_int_equal(remote_tier(r)->ops->place(remote_tier(r), &wait, 1, &place), -EROFS);
	store.client.ops = &remote_client;
	assert_int_equal(remote_tier(r)->ops->place(remote_tier(r), &wait, 1, &place), 1);
	rig_tear_down(r);
}

static void what_is_not_the_block_is_not_there(void **state)
{
	struct rig *r = remote_node();
	struct object *o, *other, kept;
	uint64_t data = tn_object_header_bytes(&r->s[0].space->shape);

	assert_int_equal(remote_write(r, 1), 0);
	assert_int_equal(remote_write(r, 2), 0);
	o = remote_object(r, 1);
	other = remote_object(r, 2);
	kept = *o;
	for (uint64_t at = 0; at < sizeof(uint64_t) * 13; at++) { /* the head */
		o->bytes[at] ^= 1;
		assert_int_equal(remote_read(r, 1), -ENOENT);
		assert_int_equal(remote_look_up(r, 1), 0);
		o->bytes[at] ^= 1;
	}
	o->bytes[sizeof(uint64_t) * 13] ^= 1; /* a checksum */
	assert_int_equal(remote_read(r, 1), -ENOENT);
	o->bytes[sizeof(uint64_t) * 13] ^= 1;
	o->bytes[data] ^= 1; /* its data */
	assert_int_equal(remote_read(r, 1), -ENOENT);
	o->bytes[data] ^= 1;
	o->bytes = other->bytes;
	assert_int_equal(remote_read(r, 1), -ENOENT);
	assert_int_equal(remote_look_up(r, 1), 0);
	o->bytes = kept.bytes;
	o->n--;
	assert_int_equal(remote_read(r, 1), -ENOENT);
	*o = kept;
	assert_int_equal(remote_read(r, 1), 0);
	rig_tear_down(r);
}

static void a_store_that_does_not_answer_is_left_alone_and_asked_again(void **state)
{
	struct rig *r = remote_node();
	uint64_t from;

	assert_int_equal(remote_write(r, 1), 0);
	store.mute = true;
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(remote_tier(r)->ops->health(remote_tier(r)), 0);
		from = rig_now(r);
		assert_int_equal(remote_look_up(r, 1), 0);
		assert_in_range(rig_now(r) - from, RIG_SECOND, 3 * RIG_SECOND);
	}
	assert_int_equal(remote_tier(r)->ops->health(remote_tier(r)), -EHOSTDOWN);
	store.requests = 0;
	from = rig_now(r);
	assert_int_equal(remote_look_up(r, 1), 0);
	assert_int_equal(remote_read(r, 1), -EHOSTDOWN);
	assert_int_equal(remote_write(r, 2), -EHOSTDOWN);
	assert_in_range(rig_now(r) - from, 0, RIG_SECOND / 10);
	assert_int_equal(store.requests, 0);
	store.mute = false;
	rig_run(r, 6 * RIG_SECOND);
	assert_int_equal(remote_look_up(r, 1), 1);
	assert_int_equal(remote_read(r, 1), 0);
	assert_int_equal(remote_tier(r)->ops->health(remote_tier(r)), 0);
	rig_tear_down(r);
}

static void a_store_that_refuses_costs_the_cache_nothing(void **state)
{
	struct rig *r = remote_node();

	store.fails = -EACCES;
	rig_save(&r->s[0], 1, 4, 0);
	rig_run(r, 10 * RIG_SECOND);
	assert_int_equal(rig_load(&r->s[0], 1, 4), 4);
	assert_int_equal(store.n, 0);
	assert_in_range(store.requests, 1, 40);
	store.fails = 0;
	rig_tear_down(r);
}

static void what_a_cache_saves_gets_to_the_store(void **state)
{
	struct rig *r = remote_node();

	rig_save(&r->s[0], 1, 4, 0);
	rig_until(r, store.n == 4);
	rig_run(r, RIG_SECOND);
	assert_int_equal(remote_tier(r)->blocks, 4);
	rig_tear_down(r);
}

static void a_full_tier_learns_what_a_look_up_finds(void **state)
{
	struct rig *r = remote_node_of(&(struct remote_node_opts){.max_blocks = 192});
	uint64_t capacity = remote_tier(r)->ops->capacity(remote_tier(r)), i = 0;

	assert_int_equal(capacity, 96);
	for (; i < capacity + CHAIN; i++)
		assert_int_equal(remote_write(r, 1 + i), 0);
	for (i = 0; i < capacity; i += 8)
		assert_int_equal(remote_ask(r, 1 + i, 8), 8);
	assert_int_equal(remote_tier(r)->entries, capacity);
	assert_int_equal(remote_ask(r, 1 + capacity, 8), 8);
	for (i = 0; i < capacity - 8; i += 8)
		assert_int_equal(remote_ask(r, 1 + i, 8), 8);
	assert_int_equal(remote_ask(r, 1 + capacity, CHAIN), CHAIN); /* its first eight, which are the oldest now, do not go for the others */
	store.requests = 0;
	assert_int_equal(remote_ask(r, 1 + capacity, CHAIN), CHAIN);
	assert_int_equal(store.requests, 0);
	assert_int_equal(remote_ask(r, 1, 8), 8); /* forgotten, and found again */
	assert_int_equal(store.requests, 8);
	assert_int_equal(remote_tier(r)->entries, capacity);
	rig_tear_down(r);
}

/* Each node has an epoch of its own, which its drops and its disk decide. */
static void a_drop_forgets_here_and_the_store_has_it_still(void **state)
{
	struct rig *r = remote_node();

	rig_save(&r->s[0], 1, 4, 0);
	rig_until(r, store.n == 4);
	rig_run(r, RIG_SECOND);
	for (uint32_t i = 0; i < 3; i++) {
		remote_drop(r);
		assert_int_equal(remote_tier(r)->blocks, 0);
		assert_int_equal(rig_match(&r->s[0], 1, 4), 0);
		assert_int_equal(remote_ask(r, 1, 4), 4);
		assert_int_equal(rig_load(&r->s[0], 1, 4), 4);
	}
	assert_int_equal(store.n, 4); /* nothing was written anew */
	rig_tear_down(r);
}

static void another_revision_names_other_objects(void **state)
{
	const struct tn_key key = rig_key(1);
	struct rig *r = remote_node();
	char name[2][TN_OBJECT_NAME_BYTES];
	struct rig_space s;

	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(rig_space_open(r, &(struct rig_space_opts){.reset = i, .no_pool = true}, &s), 0);
		tn_object_name("test", &(struct tn_tier_space){s.space->id, s.space->epoch}, &key, name[i], sizeof(name[i]));
		rig_space_close(&s);
	}
	assert_string_not_equal(name[0], name[1]);
	rig_tear_down(r);
}

/* What was saved is on its way at the pace of the store: 1.6 s per block at most, four at once. */
static void look_ups_and_reads_do_not_wait_for_writes(void **state)
{
	struct rig *r = remote_node();
	uint64_t from;

	rig_save(&r->s[0], 1, 4, 0);
	rig_until(r, store.n == 4);
	rig_run(r, RIG_SECOND);
	remote_drop(r); /* they are in the store alone */
	store.latency_ns = 100 * RIG_MS;
	store.most = 0;
	for (uint32_t i = 1; i <= 3; i++) /* more blocks than there are moves */
		rig_save(&r->s[0], 100 * i, 32, 0);
	rig_until(r, store.busy > 0);
	rig_run(r, RIG_SECOND);
	from = rig_now(r);
	assert_int_equal(remote_ask(r, 1, 4), 4);
	assert_in_range(rig_now(r) - from, 0, 1700 * RIG_MS);
	from = rig_now(r);
	assert_int_equal(rig_load(&r->s[0], 1, 4), 4);
	assert_in_range(rig_now(r) - from, 0, 1700 * RIG_MS);
	assert_in_range(store.n, 4, 32); /* and the writes are not over */
	rig_until(r, store.n >= 90);
	assert_in_range(store.most, 4, 8);
	rig_tear_down(r);
}

/* What the store was asked for ends as it does; what waited for a slot is not begun any more. */
static void a_close_begins_no_more_writes(void **state)
{
	struct rig *r = remote_node();
	uint32_t begun;

	store.latency_ns = 100 * RIG_MS;
	rig_save(&r->s[0], 1, 32, 0);
	rig_until(r, store.busy > 0);
	rig_run(r, RIG_MS);
	begun = store.requests;
	assert_int_equal(rig_close(r), 0);
	assert_int_equal(store.requests, begun);
	assert_in_range(begun, 1, 16);
	rig_tear_down(r);
}

/* A missing bucket answers each request with 404. */
static void a_bucket_that_there_is_not_is_a_store_that_fails(void **state)
{
	struct rig *r = remote_node();

	store.fails = -ENOENT;
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(remote_look_up(r, 1), 0);
	assert_int_equal(remote_tier(r)->ops->health(remote_tier(r)), 0); /* nobody has written these blocks, for all that it knows */
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(remote_write(r, 1), -ENOENT);
	assert_int_equal(remote_tier(r)->ops->health(remote_tier(r)), -EHOSTDOWN);
	store.fails = 0;
	rig_tear_down(r);
}

/* 16 blocks at the same time through a thin link are slow, and no sign of a store that is dead. */
static void a_large_block_has_the_time_that_it_takes(void **state)
{
	struct rig *r = remote_node();
	uint64_t bytes = r->s[0].space->shape.slot_bytes;

	assert_int_equal(remote_write(r, 1), 0);
	store.latency_ns = (10 * RIG_SECOND + 1000 * bytes) / TN_OBJECT_SLOTS; /* 1 us per byte, after 10 s */
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(remote_read(r, 1), 0);
	assert_int_equal(remote_tier(r)->ops->health(remote_tier(r)), 0);
	rig_tear_down(r);
}

static void an_error_tells_no_secret(void **state)
{
	static char longer[2048];
	const char *const wrong[] = {"s3,bucket=b,secret_key=hidden,prefix=", "s3,secret_key=hidden,prefix=,bucket=b", "s3,bucket=b;s3,secret_key=hidden,prefix=", longer};
	struct tn_cache_opts o = {.cluster_secret_file = "there"};
	const struct tn_tier_env env = {.o = &o, .alloc = &tn_alloc_system};
	struct tn_tier_base *tier = NULL;

	snprintf(longer, sizeof(longer), "s3,secret_key=hidden,bucket=%01000d", 0);
	for (uint32_t i = 0; i < 4; i++) {
		o.remote = wrong[i];
		assert_int_equal(tn_remote_tier_maker.make(&env, &tier), -EINVAL);
		assert_null(strstr(tn_error_last()->text, "hidden"));
		assert_non_null(strstr(tn_error_last()->text, "s3"));
	}
	assert_null(tier);
}

static void specs_are_read_in_their_order(void **state)
{
	struct tn_remote_spec spec[TN_REMOTES_MAX];

	assert_int_equal(tn_remote_specs("peer,at=a:1,prefix=x;s3,prefix=y,bucket=b;s3,bucket=c", spec), 3);
	assert_string_equal(spec[0].client, "peer,at=a:1");
	assert_string_equal(spec[0].store.prefix, "x");
	assert_string_equal(spec[0].store.name, "peer");
	assert_string_equal(spec[1].client, "s3,bucket=b");
	assert_string_equal(spec[1].store.prefix, "y");
	assert_string_equal(spec[1].store.name, "s3");
	assert_string_equal(spec[2].client, "s3,bucket=c");
	assert_string_equal(spec[2].store.prefix, "tenuto");
	assert_string_equal(spec[2].store.name, "s3-2");
	assert_int_equal(tn_remote_specs("s3;", spec), -EINVAL);
	assert_int_equal(tn_remote_specs(";s3", spec), -EINVAL);
	assert_int_equal(tn_remote_specs("s3;bucket=b", spec), -EINVAL);
	assert_int_equal(tn_remote_specs("a;b;c;d;e;f;g;h", spec), 8);
	assert_int_equal(tn_remote_specs("a;b;c;d;e;f;g;h;i", spec), -EINVAL);
}

/* Of an object: its head, its checksums, a byte of its data, its end. */
static void a_damaged_object_leaves_and_is_replaced(void **state)
{
	struct rig *r = remote_node();
	uint64_t header = tn_object_header_bytes(&r->s[0].space->shape), at[] = {0, 104, header, header + 4096};

	rig_save(&r->s[0], 1, 1, 0);
	rig_until(r, store.n == 1);
	rig_run(r, RIG_SECOND);
	for (uint32_t i = 0; i < 5; i++) {
		remote_drop(r);
		assert_int_equal(remote_ask(r, 1, 1), 1);
		if (i < 4)
			remote_object(r, 1)->bytes[at[i]] ^= 1;
		else
			remote_object(r, 1)->n--;
		assert_int_equal(rig_load(&r->s[0], 1, 1), 0);
		assert_int_equal(remote_tier(r)->blocks, 0);
		rig_save(&r->s[0], 1, 1, 0);
		rig_run(r, RIG_SECOND);
		remote_drop(r);
		assert_int_equal(remote_ask(r, 1, 1), 1);
		assert_int_equal(rig_load(&r->s[0], 1, 1), 1);
	}
	assert_int_equal(store.n, 1);
	rig_tear_down(r);
}

/* Its answers came until it was given up, and nothing is thrown away of them. */
static void what_a_look_up_found_before_it_was_given_up_is_known(void **state)
{
	struct rig *r = remote_node();
	struct tn_key keys[CHAIN];
	uint64_t query;

	for (uint32_t i = 0; i < CHAIN; i++)
		assert_int_equal(remote_write(r, 1 + i), 0);
	store.latency_ns = 10 * RIG_MS;
	rig_keys(1, CHAIN, keys);
	assert_int_equal(tn_match_begin(&r->s[0].space, 1, keys, CHAIN, rig_now(r) + 10 * RIG_SECOND, 0, &query), 0);
	rig_run(r, 165 * RIG_MS); /* the first 16 are in */
	tn_match_cancel(r->cache, query);
	rig_run(r, RIG_SECOND);
	assert_in_range(rig_match(&r->s[0], 1, CHAIN), TN_OBJECT_SLOTS, CHAIN - 1);
	rig_tear_down(r);
}

static void a_prefetch_brings_blocks_into_host_memory(void **state)
{
	struct rig *r = remote_node();
	struct tn_key keys[4];

	rig_save(&r->s[0], 1, 4, 0);
	rig_until(r, store.n == 4);
	rig_run(r, RIG_SECOND);
	remote_drop(r);
	assert_int_equal(remote_ask(r, 1, 4), 4);
	rig_keys(1, 4, keys);
	assert_int_equal(tn_prefetch(r->s[0].space, keys, 4, TN_FOREVER), 4);
	rig_until(r, r->cache->row.memory->blocks == 4);
	store.requests = 0;
	assert_int_equal(rig_load(&r->s[0], 1, 4), 4);
	assert_int_equal(store.requests, 0);
	rig_tear_down(r);
}

static struct tn_remote_stats stats_of(struct rig *r)
{
	struct tn_remote_stats s = {.size = sizeof(s)};

	assert_int_equal(remote_tier(r)->ops->remotes(remote_tier(r), 0, &s), 0);
	return s;
}

static void a_remote_counts_what_it_was_asked_and_how_that_ended(void **state)
{
	struct rig *r = remote_node();
	struct tn_remote_stats s, past = {.size = sizeof(past)};
	uint64_t bytes = tn_object_header_bytes(&r->s[0].space->shape) + r->s[0].space->shape.slot_bytes, corrupt;
	const int fails[] = {-EACCES, -ENOSPC, -ECONNREFUSED, -EIO};

	assert_int_equal(remote_tier(r)->ops->remotes(remote_tier(r), 1, &past), -ENOENT);
	assert_int_equal(remote_write(r, 1), 0);
	assert_int_equal(remote_write(r, 1), 0);
	assert_int_equal(remote_read(r, 1), 0);
	assert_int_equal(remote_read(r, 2), -ENOENT);
	assert_int_equal(remote_look_up(r, 2), 1);
	remote_object(r, 1)->bytes[0] ^= 1;
	assert_int_equal(remote_read(r, 1), -ENOENT);
	s = stats_of(r);
	assert_string_equal(s.name, "first");
	assert_int_equal(s.state, TN_REMOTE_SERVES);
	assert_int_equal(s.lookup_requests, 2);
	assert_int_equal(s.read_requests, 3);
	assert_int_equal(s.write_requests, 2);
	assert_int_equal(s.hit_blocks, 1);
	assert_int_equal(s.read_bytes, 2 * bytes);
	assert_int_equal(s.written_bytes, bytes);
	assert_int_equal(s.existing_blocks, 1);
	assert_int_equal(s.missing_blocks, 1);
	assert_int_equal(s.corrupt_objects, 1);
	assert_in_range(s.read_p50_ns, RIG_MS, 20 * RIG_MS);
	assert_in_range(remote_tier(r)->latency_ns, RIG_MS, 20 * RIG_MS);
	for (uint32_t i = 0; i < 4; i++) {
		store.fails = fails[i];
		assert_int_equal(remote_read(r, 2), i < 3 ? fails[i] : -EHOSTDOWN);
	}
	s = stats_of(r);
	assert_int_equal(s.state, TN_REMOTE_ALONE);
	assert_int_equal(s.pauses, 1);
	assert_int_equal(s.denied_errors + s.full_errors + s.connection_errors, 3);
	assert_int_equal(s.unasked_requests, 1);
	assert_int_equal(tn_cache_stat(r->cache, "corrupt_objects", &corrupt), 0);
	assert_int_equal(corrupt, 1);
	store.fails = 0;
	rig_tear_down(r);
}

/* A store that fails with 5xx in the midst of a read says nothing of its objects, unlike one whose object is too short. */
static void a_store_that_fails_has_no_damaged_object(void **state)
{
	struct rig *r = remote_node();

	rig_save(&r->s[0], 1, 1, 0);
	rig_until(r, store.n == 1);
	rig_run(r, RIG_SECOND);
	remote_drop(r);
	assert_int_equal(remote_ask(r, 1, 1), 1);
	store.fails = -EIO;
	assert_int_equal(rig_load(&r->s[0], 1, 1), 0);
	assert_int_equal(remote_tier(r)->blocks, 1);
	assert_int_equal(stats_of(r).corrupt_objects, 0);
	store.fails = 0;
	assert_int_equal(rig_load(&r->s[0], 1, 1), 1);
	rig_tear_down(r);
}

/* Answers come from 10 ms on, of the last slot, to 160 ms, of the first one. */
static void look_ups_do_not_wait_for_each_other(void **state)
{
	struct tn_match m = {.size = sizeof(m)};
	struct rig *r = remote_node();
	struct tn_key keys[CHAIN];
	uint64_t query[4], from;

	assert_int_equal(remote_write(r, 1), 0);
	store.latency_ns = 10 * RIG_MS;
	from = rig_now(r);
	for (uint32_t i = 0; i < 4; i++) {
		rig_keys(1000 * i + 1, CHAIN, keys);
		assert_int_equal(tn_match_begin(&r->s[0].space, 1, keys, CHAIN, rig_now(r) + 10 * RIG_SECOND, 0, &query[i]), 0);
	}
	for (uint32_t i = 0; i < 4; i++) {
		int rc;

		rig_until(r, (rc = tn_match_poll(r->cache, query[i], NULL, &m)) != -EAGAIN);
		assert_int_equal(rc, i == 0);
	}
	assert_in_range(rig_now(r) - from, 0, 330 * RIG_MS); /* one after the other: four times 160 */
	rig_tear_down(r);
}

static void a_look_up_that_nobody_waits_for_asks_no_more(void **state)
{
	struct rig *r = remote_node();
	struct tn_key keys[CHAIN];
	uint64_t query;

	for (uint32_t i = 0; i < CHAIN; i++)
		assert_int_equal(remote_write(r, 1 + i), 0);
	store.requests = 0;
	store.latency_ns = 10 * RIG_MS;
	rig_keys(1, CHAIN, keys);
	assert_int_equal(tn_match_begin(&r->s[0].space, 1, keys, CHAIN, rig_now(r) + 10 * RIG_SECOND, 0, &query), 0);
	rig_until(r, store.busy > 0);
	tn_match_cancel(r->cache, query);
	rig_run(r, RIG_SECOND);
	assert_in_range(store.requests, 1, TN_OBJECT_SLOTS + 1);
	assert_int_equal(remote_ask(r, 1, CHAIN), CHAIN);
	rig_tear_down(r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_written_is_found_and_comes_back),
		cmocka_unit_test(a_look_up_ends_at_the_first_block_that_is_missing),
		cmocka_unit_test(a_store_that_answers_for_many_keys_is_asked_once),
		cmocka_unit_test(a_store_for_reading_only_has_no_place_for_a_block),
		cmocka_unit_test(what_is_not_the_block_is_not_there),
		cmocka_unit_test(a_store_that_does_not_answer_is_left_alone_and_asked_again),
		cmocka_unit_test(a_store_that_refuses_costs_the_cache_nothing),
		cmocka_unit_test(what_a_cache_saves_gets_to_the_store),
		cmocka_unit_test(a_full_tier_learns_what_a_look_up_finds),
		cmocka_unit_test(a_drop_forgets_here_and_the_store_has_it_still),
		cmocka_unit_test(another_revision_names_other_objects),
		cmocka_unit_test(look_ups_and_reads_do_not_wait_for_writes),
		cmocka_unit_test(a_close_begins_no_more_writes),
		cmocka_unit_test(a_bucket_that_there_is_not_is_a_store_that_fails),
		cmocka_unit_test(a_large_block_has_the_time_that_it_takes),
		cmocka_unit_test(an_error_tells_no_secret),
		cmocka_unit_test(specs_are_read_in_their_order),
		cmocka_unit_test(look_ups_do_not_wait_for_each_other),
		cmocka_unit_test(a_look_up_that_nobody_waits_for_asks_no_more),
		cmocka_unit_test(what_a_look_up_found_before_it_was_given_up_is_known),
		cmocka_unit_test(a_prefetch_brings_blocks_into_host_memory),
		cmocka_unit_test(a_damaged_object_leaves_and_is_replaced),
		cmocka_unit_test(a_remote_counts_what_it_was_asked_and_how_that_ended),
		cmocka_unit_test(a_store_that_fails_has_no_damaged_object),
	};

	return tn_test_ran(cmocka_run_group_tests_name("remote", tests, NULL, NULL));
}
