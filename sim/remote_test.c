/* SPDX-License-Identifier: Apache-2.0 */
/* The remote tier over a store that does as the test says: late, gone, full, or with other bytes than were written. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "core/core.h"
#include "front/cache_rig.h"
#include "tier/remote/client.h"
#include "tier/remote/object.h"
#include "tier/remote/remote.h"

#define OBJECTS 256u
#define CHAIN 40u

struct object {
	char name[TN_OBJECT_NAME_BYTES];
	unsigned char *bytes;
	uint64_t n;
};

struct pending {
	struct tn_object_transfer t;
	char name[TN_OBJECT_NAME_BYTES];
	uint64_t due_ns;
	bool busy, asks;
};

/* The store, and the client of it: a request is answered latency_ns after it came, or later, and what was asked last first; mute: never; fails: with that status. */
static struct store {
	struct tn_object_client client;
	const struct tn_clock *clock;
	struct object object[OBJECTS];
	uint32_t n;
	struct pending slot[TN_OBJECT_SLOTS];
	uint32_t requests, most, busy;
	uint64_t latency_ns;
	int fails;
	bool mute;
} store;

static struct object *find(const char *name)
{
	for (uint32_t i = 0; i < store.n; i++)
		if (strcmp(store.object[i].name, name) == 0)
			return &store.object[i];
	return NULL;
}

static int begin(struct tn_object_client *c, uint32_t slot, const struct tn_object_transfer *t)
{
	struct pending *p = &store.slot[slot];

	assert_false(p->busy);
	assert_in_range(strlen(t->name), 1, TN_OBJECT_NAME_BYTES - 1);
	*p = (struct pending){.t = *t,
			     .due_ns = tn_now_ns(store.clock) + store.latency_ns * (TN_OBJECT_SLOTS - slot), .busy = true};
	snprintf(p->name, sizeof(p->name), "%s", t->name);
	store.requests++;
	store.busy++;
	store.most = store.busy > store.most ? store.busy : store.most;
	return 0;
}

static uint64_t bytes_of(const struct tn_object_transfer *t)
{
	return t->part[0].bytes + t->part[1].bytes;
}

/* To the object, or from it. */
static void copy_parts(const struct tn_object_transfer *t, unsigned char *object)
{
	for (uint32_t i = 0; i < TN_OBJECT_PARTS && t->part[i].bytes; object += t->part[i++].bytes)
		memcpy(t->write ? object : t->part[i].address, t->write ? t->part[i].address : object, t->part[i].bytes);
}

static int answer(const struct pending *p)
{
	struct object *o = find(p->name);

	if (store.fails)
		return store.fails;
	if (p->t.write && o && !p->t.replace)
		return -EEXIST;
	if (p->t.write) {
		assert_in_range(store.n, 0, OBJECTS - 1);
		if (!o)
			o = &store.object[store.n++];
		free(o->bytes);
		memcpy(o->name, p->name, sizeof(o->name));
		o->n = bytes_of(&p->t);
		o->bytes = malloc(o->n);
		copy_parts(&p->t, o->bytes);
		return 0;
	}
	if (!o)
		return -ENOENT;
	if (o->n < bytes_of(&p->t))
		return -EIO;
	copy_parts(&p->t, o->bytes);
	return 0;
}

static int poll_slot(struct tn_object_client *c, uint32_t slot)
{
	struct pending *p = &store.slot[slot];
	uint64_t now = tn_now_ns(store.clock);
	bool late = now >= p->t.deadline_ns;

	assert_true(p->busy);
	if (!late && (store.mute || now < p->due_ns))
		return -EINPROGRESS;
	p->busy = false;
	store.busy--;
	return late ? -ETIMEDOUT : p->asks ? store.fails : answer(p);
}

static void forget_requests(struct tn_object_client *c)
{
	memset(store.slot, 0, sizeof(store.slot));
	store.busy = 0;
}

static const struct tn_object_client_ops client_ops = {
	.size = sizeof(client_ops), .name = "script", .begin = begin, .poll = poll_slot, .destroy = forget_requests};

/* Answers when the request for the first object's header would. */
static int ask_many(struct tn_object_client *c, uint32_t slot, struct tn_object_find *f)
{
	const struct tn_object_transfer head = {.name = "find", .deadline_ns = f->deadline_ns};
	char name[TN_OBJECT_NAME_BYTES];

	for (f->found = 0; f->found < f->n; f->found++) {
		f->name(f, f->found, name);
		if (!find(name))
			break;
	}
	begin(c, slot, &head);
	store.slot[slot].asks = true;
	return 0;
}

static const struct tn_object_client_ops reader_ops = {
	.size = sizeof(reader_ops), .name = "script", .read_only = true, .begin = begin, .find = ask_many, .poll = poll_slot, .destroy = forget_requests};

static int make(const struct tn_tier_env *env, struct tn_tier_base **out)
{
	store.client.ops = &client_ops;
	store.clock = env->clock;
	return tn_remote_tier_create(env, &store.client, "test", out);
}

static const struct tn_tier_maker maker = {.make = make};

static void prepare(struct rig *r)
{
	r->cache->makers[TN_TIER_REMOTE] = &maker;
}

/* A cache with an empty store behind it; max_blocks: as of its options. */
static struct rig *node_of(uint64_t max_blocks)
{
	struct rig_opts o = rig_simulated_opts();
	struct rig *r;

	for (uint32_t i = 0; i < store.n; i++)
		free(store.object[i].bytes);
	memset(&store, 0, sizeof(store));
	store.latency_ns = RIG_MS;
	o.cache.host_bytes = 4u << 20;
	o.cache.max_blocks = max_blocks;
	o.prepare = prepare;
	r = rig_simulated(&o);
	rig_must_open(r);
	return r;
}

static struct rig *node(void)
{
	return node_of(8192);
}

static struct tn_tier_base *tier_of(struct rig *r)
{
	return r->cache->row.tier[TN_TIER_REMOTE];
}

/* ---- blocks and look-ups of the tier, behind the cache's back --------------------------------------------------------------- */

struct moved {
	bool over;
	int status;
};

static void move_done(struct tn_tier_move *move, int status)
{
	*(struct moved *)move->owner = (struct moved){true, status};
}

static void probe_done(struct tn_tier_probe *probe, int status)
{
	*(struct moved *)probe->owner = (struct moved){true, status};
}

static size_t block_bytes(const struct tn_shape *s)
{
	return s->slot_bytes + s->layers * sizeof(uint64_t);
}

/* flat: the block, and its checksums behind it. */
static int move(struct rig *r, uint64_t id, unsigned char *flat, bool write)
{
	const struct tn_space *space = r->s[0].space;
	const struct tn_mapped_range range = {.bytes = space->shape.slot_bytes, .address = flat};
	const struct tn_mapping memory = {.range = &range, .nranges = 1};
	struct moved moved = {false, 0};
	struct tn_tier_move m = {.write = write, .space = {space->id, space->epoch}, .key = rig_key(id), .shape = &space->shape, .mem.memory = &memory,
				 .checks = (uint64_t *)(void *)(flat + space->shape.slot_bytes), .done = move_done, .owner = &moved};

	tier_of(r)->ops->move(tier_of(r), &m);
	rig_until(r, moved.over);
	return moved.status;
}

static unsigned char *content_of(struct rig *r, uint64_t id)
{
	const struct tn_shape *s = &r->s[0].space->shape;
	unsigned char *flat = malloc(block_bytes(s));
	uint64_t *checks = (uint64_t *)(void *)(flat + s->slot_bytes);

	assert_non_null(flat);
	memset(flat, (int)(id * 37 + 1), s->slot_bytes);
	for (uint32_t l = 0; l < s->layers; l++)
		checks[l] = tn_checksum(flat + (uint64_t)l * s->padded_bytes, s->object_bytes);
	return flat;
}

static int write_one(struct rig *r, uint64_t id)
{
	unsigned char *flat = content_of(r, id);
	int status = move(r, id, flat, true);

	free(flat);
	return status;
}

/* What a read says; of 0 the bytes are the block's. */
static int read_one(struct rig *r, uint64_t id)
{
	unsigned char *flat = content_of(r, id), *got = content_of(r, id + 1);
	int status = move(r, id, got, false);

	if (status == 0)
		assert_memory_equal(got, flat, block_bytes(&r->s[0].space->shape));
	free(flat);
	free(got);
	return status;
}

static uint32_t look_up(struct rig *r, uint32_t n)
{
	const struct tn_space *space = r->s[0].space;
	struct moved moved = {false, 0};
	struct tn_key key[CHAIN];
	struct tn_tier_probe p = {.space = {space->id, space->epoch}, .keys = key, .n = n, .done = probe_done, .owner = &moved};

	for (uint32_t i = 0; i < n; i++)
		key[i] = rig_key(1 + i);
	assert_int_equal(tier_of(r)->ops->probe(tier_of(r), &p), 0);
	rig_until(r, moved.over);
	assert_int_equal(moved.status, 0);
	return p.found;
}

static struct object *object_of(struct rig *r, uint64_t id)
{
	const struct tn_tier_space space = {r->s[0].space->id, r->s[0].space->epoch};
	const struct tn_key key = rig_key(id);
	char name[TN_OBJECT_NAME_BYTES];

	tn_object_name("test", &space, &key, name, sizeof(name));
	return find(name);
}

/* ---- cases ------------------------------------------------------------------------------------------------------------------ */

static void what_was_written_is_found_and_comes_back(void **state)
{
	struct rig *r = node();

	assert_int_equal(look_up(r, CHAIN), 0);
	for (uint32_t i = 0; i < CHAIN; i++)
		assert_int_equal(write_one(r, 1 + i), 0);
	store.requests = 0;
	assert_int_equal(look_up(r, CHAIN), CHAIN);
	assert_int_equal(store.requests, CHAIN);
	assert_int_equal(store.most, TN_OBJECT_SLOTS); /* so many at the same time */
	for (uint32_t i = 0; i < CHAIN; i++)
		assert_int_equal(read_one(r, 1 + i), 0);
	assert_int_equal(write_one(r, 1), 0); /* it is there already */
	rig_tear_down(r);
}

static void a_look_up_ends_at_the_first_block_that_is_missing(void **state)
{
	struct rig *r = node();

	for (uint32_t i = 0; i < CHAIN; i++)
		assert_int_equal(write_one(r, 1 + i), 0);
	for (uint32_t gap = CHAIN; gap-- > 0; gap -= gap > 5 ? 5 : 0) {
		object_of(r, 1 + gap)->name[0] = '!'; /* nobody finds it */
		store.requests = 0;
		assert_int_equal(look_up(r, CHAIN), gap);
		assert_in_range(store.requests, gap + 1, gap + TN_OBJECT_SLOTS);
	}
	rig_tear_down(r);
}

static void a_store_that_answers_for_many_keys_is_asked_once(void **state)
{
	struct rig *r = node();

	for (uint32_t i = 0; i < CHAIN; i++)
		assert_int_equal(write_one(r, 1 + i), 0);
	store.client.ops = &reader_ops;
	for (uint32_t gap = CHAIN + 1; gap-- > 0;) {
		store.requests = 0;
		assert_int_equal(look_up(r, CHAIN), gap);
		assert_int_equal(store.requests, 1);
		if (gap)
			object_of(r, gap)->name[0] = '!'; /* nobody finds it */
	}
	store.fails = -EIO;
	assert_int_equal(look_up(r, CHAIN), 0);
	store.client.ops = &client_ops;
	rig_tear_down(r);
}

static void a_store_for_reading_only_has_no_place_for_a_block(void **state)
{
	struct rig *r = node();
	struct tn_place_wait wait = {0};
	uint32_t place;

	store.client.ops = &reader_ops;
	assert_int_equal(tier_of(r)->ops->place(tier_of(r), &wait, 1, &place), -EROFS);
	store.client.ops = &client_ops;
	assert_int_equal(tier_of(r)->ops->place(tier_of(r), &wait, 1, &place), 1);
	rig_tear_down(r);
}

static void what_is_not_the_block_is_not_there(void **state)
{
	struct rig *r = node();
	struct object *o, *other, kept;
	uint64_t data = tn_object_header_bytes(&r->s[0].space->shape);

	assert_int_equal(write_one(r, 1), 0);
	assert_int_equal(write_one(r, 2), 0);
	o = object_of(r, 1);
	other = object_of(r, 2);
	kept = *o;
	for (uint64_t at = 0; at < sizeof(uint64_t) * 13; at++) { /* the head */
		o->bytes[at] ^= 1;
		assert_int_equal(read_one(r, 1), -ENOENT);
		assert_int_equal(look_up(r, 1), 0);
		o->bytes[at] ^= 1;
	}
	o->bytes[sizeof(uint64_t) * 13] ^= 1; /* a checksum */
	assert_int_equal(read_one(r, 1), -ENOENT);
	o->bytes[sizeof(uint64_t) * 13] ^= 1;
	o->bytes[data] ^= 1; /* its data */
	assert_int_equal(read_one(r, 1), -ENOENT);
	o->bytes[data] ^= 1;
	o->bytes = other->bytes;
	assert_int_equal(read_one(r, 1), -ENOENT);
	assert_int_equal(look_up(r, 1), 0);
	o->bytes = kept.bytes;
	o->n--;
	assert_int_equal(read_one(r, 1), -EIO);
	*o = kept;
	assert_int_equal(read_one(r, 1), 0);
	rig_tear_down(r);
}

static void a_store_that_does_not_answer_is_left_alone_and_asked_again(void **state)
{
	struct rig *r = node();
	uint64_t from;

	assert_int_equal(write_one(r, 1), 0);
	store.mute = true;
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(tier_of(r)->ops->health(tier_of(r)), 0);
		from = rig_now(r);
		assert_int_equal(look_up(r, 1), 0);
		assert_in_range(rig_now(r) - from, RIG_SECOND, 3 * RIG_SECOND);
	}
	assert_int_equal(tier_of(r)->ops->health(tier_of(r)), -EHOSTDOWN);
	store.requests = 0;
	from = rig_now(r);
	assert_int_equal(look_up(r, 1), 0);
	assert_int_equal(read_one(r, 1), -EHOSTDOWN);
	assert_int_equal(write_one(r, 2), -EHOSTDOWN);
	assert_in_range(rig_now(r) - from, 0, RIG_SECOND / 10);
	assert_int_equal(store.requests, 0);
	store.mute = false;
	rig_run(r, 6 * RIG_SECOND);
	assert_int_equal(look_up(r, 1), 1);
	assert_int_equal(read_one(r, 1), 0);
	assert_int_equal(tier_of(r)->ops->health(tier_of(r)), 0);
	rig_tear_down(r);
}

static void a_store_that_refuses_costs_the_cache_nothing(void **state)
{
	struct rig *r = node();

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
	struct rig *r = node();

	rig_save(&r->s[0], 1, 4, 0);
	rig_until(r, store.n == 4);
	rig_run(r, RIG_SECOND);
	assert_int_equal(tier_of(r)->blocks, 4);
	rig_tear_down(r);
}

/* What the cache's own look-up finds. */
static uint32_t ask(struct rig *r, uint64_t first, uint32_t n)
{
	struct tn_match m = {.size = sizeof(m)};
	struct tn_key keys[CHAIN];
	uint64_t query;
	int rc;

	rig_keys(first, n, keys);
	assert_int_equal(tn_match_begin(&r->s[0].space, 1, keys, n, rig_now(r) + 10 * RIG_SECOND, 0, &query), 0);
	rig_until(r, (rc = tn_match_poll(r->cache, query, NULL, &m)) != -EAGAIN);
	assert_in_range(rc, 0, n);
	return (uint32_t)rc;
}

static void a_full_tier_learns_what_a_look_up_finds(void **state)
{
	struct rig *r = node_of(192);
	uint64_t capacity = tier_of(r)->ops->capacity(tier_of(r)), i = 0;

	assert_int_equal(capacity, 96);
	for (; i < capacity + CHAIN; i++)
		assert_int_equal(write_one(r, 1 + i), 0);
	for (i = 0; i < capacity; i += 8)
		assert_int_equal(ask(r, 1 + i, 8), 8);
	assert_int_equal(tier_of(r)->entries, capacity);
	assert_int_equal(ask(r, 1 + capacity, 8), 8);
	for (i = 0; i < capacity - 8; i += 8)
		assert_int_equal(ask(r, 1 + i, 8), 8);
	assert_int_equal(ask(r, 1 + capacity, CHAIN), CHAIN); /* its first eight, which are the oldest now, do not go for the others */
	store.requests = 0;
	assert_int_equal(ask(r, 1 + capacity, CHAIN), CHAIN);
	assert_int_equal(store.requests, 0);
	assert_int_equal(ask(r, 1, 8), 8); /* forgotten, and found again */
	assert_int_equal(store.requests, 8);
	assert_int_equal(tier_of(r)->entries, capacity);
	rig_tear_down(r);
}

static void drop(struct rig *r)
{
	struct tn_flush_waiter *w;

	assert_int_equal(tn_space_drop_begin(&r->cache->drops, r->s[0].space, &w), 0);
	rig_until(r, tn_flush_poll(w) != -EAGAIN);
}

/* Each node has an epoch of its own, which its drops and its disk decide. */
static void a_drop_forgets_here_and_the_store_has_it_still(void **state)
{
	struct rig *r = node();

	rig_save(&r->s[0], 1, 4, 0);
	rig_until(r, store.n == 4);
	rig_run(r, RIG_SECOND);
	for (uint32_t i = 0; i < 3; i++) {
		drop(r);
		assert_int_equal(tier_of(r)->blocks, 0);
		assert_int_equal(rig_match(&r->s[0], 1, 4), 0);
		assert_int_equal(ask(r, 1, 4), 4);
		assert_int_equal(rig_load(&r->s[0], 1, 4), 4);
	}
	assert_int_equal(store.n, 4); /* nothing was written anew */
	rig_tear_down(r);
}

static void another_revision_names_other_objects(void **state)
{
	const struct tn_key key = rig_key(1);
	struct rig *r = node();
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
	struct rig *r = node();
	uint64_t from;

	rig_save(&r->s[0], 1, 4, 0);
	rig_until(r, store.n == 4);
	rig_run(r, RIG_SECOND);
	drop(r); /* they are in the store alone */
	store.latency_ns = 100 * RIG_MS;
	store.most = 0;
	for (uint32_t i = 1; i <= 3; i++) /* more blocks than there are moves */
		rig_save(&r->s[0], 100 * i, 32, 0);
	rig_until(r, store.busy > 0);
	rig_run(r, RIG_SECOND);
	from = rig_now(r);
	assert_int_equal(ask(r, 1, 4), 4);
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
	struct rig *r = node();
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
	struct rig *r = node();

	store.fails = -ENOENT;
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(look_up(r, 1), 0);
	assert_int_equal(tier_of(r)->ops->health(tier_of(r)), 0); /* nobody has written these blocks, for all that it knows */
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(write_one(r, 1), -ENOENT);
	assert_int_equal(tier_of(r)->ops->health(tier_of(r)), -EHOSTDOWN);
	store.fails = 0;
	rig_tear_down(r);
}

/* 16 blocks at the same time through a thin link are slow, and no sign of a store that is dead. */
static void a_large_block_has_the_time_that_it_takes(void **state)
{
	struct rig *r = node();
	uint64_t bytes = r->s[0].space->shape.slot_bytes;

	assert_int_equal(write_one(r, 1), 0);
	store.latency_ns = (10 * RIG_SECOND + 1000 * bytes) / TN_OBJECT_SLOTS; /* 1 us per byte, after 10 s */
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(read_one(r, 1), 0);
	assert_int_equal(tier_of(r)->ops->health(tier_of(r)), 0);
	rig_tear_down(r);
}

static void an_error_tells_no_secret(void **state)
{
	static char longer[2048];
	const char *const wrong[] = {"s3,bucket=b,secret_key=hidden,prefix=", "s3,secret_key=hidden,prefix=,bucket=b", longer};
	struct tn_cache_opts o = {.cluster_secret_file = "there"};
	const struct tn_tier_env env = {.o = &o, .alloc = &tn_alloc_system};
	struct tn_tier_base *tier = NULL;

	snprintf(longer, sizeof(longer), "s3,secret_key=hidden,bucket=%01000d", 0);
	for (uint32_t i = 0; i < 3; i++) {
		o.remote = wrong[i];
		assert_int_equal(tn_remote_tier_maker.make(&env, &tier), -EINVAL);
		assert_null(strstr(tn_error_last()->text, "hidden"));
		assert_non_null(strstr(tn_error_last()->text, "s3"));
	}
	assert_null(tier);
}

/* Of an object: its head, its checksums, a byte of its data, its end. */
static void a_damaged_object_leaves_and_is_replaced(void **state)
{
	struct rig *r = node();
	uint64_t header = tn_object_header_bytes(&r->s[0].space->shape), at[] = {0, 104, header, header + 4096};

	rig_save(&r->s[0], 1, 1, 0);
	rig_until(r, store.n == 1);
	rig_run(r, RIG_SECOND);
	for (uint32_t i = 0; i < 5; i++) {
		drop(r);
		assert_int_equal(ask(r, 1, 1), 1);
		if (i < 4)
			object_of(r, 1)->bytes[at[i]] ^= 1;
		else
			object_of(r, 1)->n--;
		assert_int_equal(rig_load(&r->s[0], 1, 1), 0);
		assert_int_equal(tier_of(r)->blocks, 0);
		rig_save(&r->s[0], 1, 1, 0);
		rig_run(r, RIG_SECOND);
		drop(r);
		assert_int_equal(ask(r, 1, 1), 1);
		assert_int_equal(rig_load(&r->s[0], 1, 1), 1);
	}
	assert_int_equal(store.n, 1);
	rig_tear_down(r);
}

/* Answers come from 10 ms on, of the last slot, to 160 ms, of the first one. */
static void look_ups_do_not_wait_for_each_other(void **state)
{
	struct tn_match m = {.size = sizeof(m)};
	struct rig *r = node();
	struct tn_key keys[CHAIN];
	uint64_t query[4], from;

	assert_int_equal(write_one(r, 1), 0);
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
	struct rig *r = node();
	struct tn_key keys[CHAIN];
	uint64_t query;

	for (uint32_t i = 0; i < CHAIN; i++)
		assert_int_equal(write_one(r, 1 + i), 0);
	store.requests = 0;
	store.latency_ns = 10 * RIG_MS;
	rig_keys(1, CHAIN, keys);
	assert_int_equal(tn_match_begin(&r->s[0].space, 1, keys, CHAIN, rig_now(r) + 10 * RIG_SECOND, 0, &query), 0);
	rig_until(r, store.busy > 0);
	tn_match_cancel(r->cache, query);
	rig_run(r, RIG_SECOND);
	assert_in_range(store.requests, 1, TN_OBJECT_SLOTS + 1);
	assert_int_equal(ask(r, 1, CHAIN), CHAIN);
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
		cmocka_unit_test(look_ups_do_not_wait_for_each_other),
		cmocka_unit_test(a_look_up_that_nobody_waits_for_asks_no_more),
		cmocka_unit_test(a_damaged_object_leaves_and_is_replaced),
	};

	return tn_test_ran(cmocka_run_group_tests_name("remote", tests, NULL, NULL));
}
