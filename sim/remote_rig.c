/* SPDX-License-Identifier: Apache-2.0 */
#include "remote_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "core/core.h"

struct script store, second;

static struct remote_node_opts node; /* that is opened */

static struct script *of(struct tn_object_client *c)
{
	return (struct script *)(void *)c;
}

static struct object *find(struct script *s, const char *name)
{
	for (uint32_t i = 0; i < s->n; i++)
		if (strcmp(s->object[i].name, name) == 0)
			return &s->object[i];
	return NULL;
}

static int begin(struct tn_object_client *c, uint32_t slot, const struct tn_object_transfer *t)
{
	struct script *s = of(c);
	struct pending *p = &s->slot[slot];

	assert_false(p->busy);
	assert_in_range(strlen(t->name), 1, TN_OBJECT_NAME_BYTES - 1);
	*p = (struct pending){.t = *t,
			     .due_ns = tn_now_ns(s->clock) + s->latency_ns * (TN_OBJECT_SLOTS - slot), .busy = true};
	snprintf(p->name, sizeof(p->name), "%s", t->name);
	s->requests++;
	s->busy++;
	s->most = s->busy > s->most ? s->busy : s->most;
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

static int answer(struct script *s, const struct pending *p)
{
	struct object *o = find(s, p->name);

	if (s->fails)
		return s->fails;
	if (p->t.write && o && !p->t.replace)
		return -EEXIST;
	if (p->t.write) {
		assert_in_range(s->n, 0, OBJECTS - 1);
		if (!o)
			o = &s->object[s->n++];
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
		return -ENODATA;
	copy_parts(&p->t, o->bytes);
	return 0;
}

static int poll_slot(struct tn_object_client *c, uint32_t slot)
{
	struct script *s = of(c);
	struct pending *p = &s->slot[slot];
	uint64_t now = tn_now_ns(s->clock);
	bool late = now >= p->t.deadline_ns;

	assert_true(p->busy);
	if (!late && (s->mute || now < p->due_ns))
		return -EINPROGRESS;
	p->busy = false;
	s->busy--;
	return late ? -ETIMEDOUT : p->asks ? s->fails : answer(s, p);
}

static void forget_requests(struct tn_object_client *c)
{
	struct script *s = of(c);

	memset(s->slot, 0, sizeof(s->slot));
	s->busy = 0;
}

const struct tn_object_client_ops remote_client = {
	.size = sizeof(remote_client), .name = "script", .begin = begin, .poll = poll_slot, .destroy = forget_requests};

/* Answers when the request for the first object's header would. */
static int ask_many(struct tn_object_client *c, uint32_t slot, struct tn_object_find *f)
{
	const struct tn_object_transfer head = {.name = "find", .deadline_ns = f->deadline_ns};
	char name[TN_OBJECT_NAME_BYTES];

	for (f->found = 0; f->found < f->n; f->found++) {
		f->name(f, f->found, name);
		if (!find(of(c), name))
			break;
	}
	begin(c, slot, &head);
	of(c)->slot[slot].asks = true;
	return 0;
}

const struct tn_object_client_ops remote_reader = {
	.size = sizeof(remote_reader), .name = "script", .read_only = true, .begin = begin, .find = ask_many, .poll = poll_slot, .destroy = forget_requests};

static int make(const struct tn_tier_env *env, struct tn_tier_base **out)
{
	struct tn_object_store_opts remotes[] = {node.limits, {.name = "second", .prefix = "test", .client = &second.client}};

	remotes[0].client = &store.client;
	snprintf(remotes[0].name, sizeof(remotes[0].name), "first");
	snprintf(remotes[0].prefix, sizeof(remotes[0].prefix), "test");
	store.client.ops = &remote_client;
	second.client.ops = node.read_only ? &remote_reader : &remote_client;
	store.clock = second.clock = env->clock;
	return tn_remote_tier_create(env, remotes, 1 + node.two, out);
}

static const struct tn_tier_maker maker = {.make = make};

static void prepare(struct rig *r)
{
	r->cache->makers[TN_TIER_REMOTE] = &maker;
}

static void reset(struct script *s)
{
	for (uint32_t i = 0; i < s->n; i++)
		free(s->object[i].bytes);
	memset(s, 0, sizeof(*s));
	s->latency_ns = RIG_MS;
}

struct rig *remote_node_of(const struct remote_node_opts *opts)
{
	struct rig_opts o = rig_simulated_opts();
	struct rig *r;

	node = *opts;
	reset(&store);
	reset(&second);
	o.cache.host_bytes = 4u << 20;
	o.cache.max_blocks = opts->max_blocks ? opts->max_blocks : 8192;
	o.cache.offload = opts->offload ? opts->offload : "always";
	o.prepare = prepare;
	r = rig_simulated(&o);
	rig_must_open(r);
	return r;
}

struct rig *remote_node(void)
{
	return remote_node_of(&(struct remote_node_opts){0});
}

struct tn_tier_base *remote_tier(struct rig *r)
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

	remote_tier(r)->ops->move(remote_tier(r), &m);
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

int remote_write(struct rig *r, uint64_t id)
{
	unsigned char *flat = content_of(r, id);
	int status = move(r, id, flat, true);

	free(flat);
	return status;
}

int remote_read(struct rig *r, uint64_t id)
{
	unsigned char *flat = content_of(r, id), *got = content_of(r, id + 1);
	int status = move(r, id, got, false);

	if (status == 0)
		assert_memory_equal(got, flat, block_bytes(&r->s[0].space->shape));
	free(flat);
	free(got);
	return status;
}

uint32_t remote_look_up(struct rig *r, uint32_t n)
{
	const struct tn_space *space = r->s[0].space;
	struct moved moved = {false, 0};
	struct tn_key key[CHAIN];
	struct tn_tier_probe p = {.space = {space->id, space->epoch}, .keys = key, .n = n, .done = probe_done, .owner = &moved};

	for (uint32_t i = 0; i < n; i++)
		key[i] = rig_key(1 + i);
	assert_int_equal(remote_tier(r)->ops->probe(remote_tier(r), &p), 0);
	rig_until(r, moved.over);
	assert_int_equal(moved.status, 0);
	return p.found;
}

struct object *remote_object_in(struct script *s, struct rig *r, uint64_t id)
{
	const struct tn_tier_space space = {r->s[0].space->id, r->s[0].space->epoch};
	const struct tn_key key = rig_key(id);
	char name[TN_OBJECT_NAME_BYTES];

	tn_object_name("test", &space, &key, name, sizeof(name));
	return find(s, name);
}

struct object *remote_object(struct rig *r, uint64_t id)
{
	return remote_object_in(&store, r, id);
}

/* ---- through the cache ------------------------------------------------------------------------------------------------ */

uint32_t remote_ask(struct rig *r, uint64_t first, uint32_t n)
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

void remote_drop(struct rig *r)
{
	struct tn_flush_waiter *w;

	assert_int_equal(tn_space_drop_begin(&r->cache->drops, r->s[0].space, &w), 0);
	rig_until(r, tn_flush_poll(w) != -EAGAIN);
}
