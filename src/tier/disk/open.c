/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the store of the disk tier, what it found, and what it asks later. */
#include "tier/disk/disk.h"

#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "tier/disk/headers.h"

/* ---- recovery ----------------------------------------------------------------------------------------------- */

/* What the store found: registered at once, given to the policy afterwards in the order of last use. By block. */
struct recovered {
	uint32_t recency;
	uint32_t depth; /* known once all are linked */
	tn_block block;
};

struct recovery {
	struct tn_disk *disk;
	struct recovered *list; /* max_blocks */
	size_t count;
};

static uint32_t on_recovered(void *arg, tn_slot slot, const struct tn_index_entry *entry)
{
	struct recovery *r = ((struct tn_disk *)arg)->recovery;
	struct tn_tier_base *t = &r->disk->base;
	tn_block b;

	if (entry->flags & TN_ENTRY_EXPIRES)
		return UINT32_MAX;
	if (tn_block_adopt(t->registry, entry->space, &entry->key, &entry->parent, &b) < 0)
		return TN_STORE_REFUSED;
	tn_block_set_slot(t->registry, b, t->tier, slot);
	tn_block_set_residency(t->registry, b, t->tier, TN_PRESENT);
	t->recency[b] = entry->recency;
	r->list[b] = (struct recovered){entry->recency, 0, b};
	r->count = b < r->count ? r->count : b + 1;
	return b;
}

static int by_recency(const void *a, const void *b)
{
	const struct recovered *x = a, *y = b;

	if (x->recency != y->recency)
		return x->recency < y->recency ? -1 : 1;
	if (x->depth != y->depth) /* of one request: the first block is the most recent, all others need it */
		return x->depth > y->depth ? -1 : 1;
	return x->block < y->block ? -1 : x->block > y->block;
}

static void fill_policy(struct recovery *r)
{
	struct tn_tier_base *t = &r->disk->base;
	size_t n = 0;

	tn_registry_relink(t->registry);
	for (size_t i = 0; i < r->count; i++)
		r->list[i].depth = tn_block_depth(t->registry, r->list[i].block);
	for (size_t b = 0; b < r->count; b++)
		if (tn_block_state(t->registry, (tn_block)b) == TN_BLOCK_REGISTERED && tn_tier_has(t, (tn_block)b))
			r->list[n++] = r->list[b];
	qsort(r->list, n, sizeof(*r->list), by_recency);
	for (size_t i = 0; i < n; i++) {
		tn_block b = r->list[i].block;
		struct tn_policy_block info;

		tn_tier_describe(t, b, &info);
		tn_tier_adopt(t, b, &info);
		t->watch->found(t->watch->arg, t, b); /* in the order of last use */
	}
}

/* ---- what the store asks later ------------------------------------------------------------------------------ */

static void on_describe(void *arg, tn_slot slot, uint32_t cookie, struct tn_index_entry *entry)
{
	const struct tn_tier_base *t = &((struct tn_disk *)arg)->base;
	tn_block parent = tn_block_parent(t->registry, cookie);

	entry->key = tn_block_key(t->registry, cookie);
	entry->space = tn_block_space(t->registry, cookie);
	entry->recency = t->recency[cookie];
	entry->flags = t->watch->expires(t->watch->arg, cookie) ? TN_ENTRY_EXPIRES : 0;
	entry->parent = (struct tn_key){{0, 0}};
	if (parent != TN_BLOCK_NONE)
		entry->parent = tn_block_key(t->registry, parent);
}

static void on_evict(void *arg, tn_slot slot, uint32_t cookie)
{
	struct tn_tier_base *t = &((struct tn_disk *)arg)->base;

	if (tn_tier_has(t, cookie))
		t->watch->lost(t->watch->arg, t, cookie);
}

static void on_health(void *arg, uint32_t device, enum tn_health health)
{
	const struct tn_tier_owner *owner = &((struct tn_disk *)arg)->env->owner;

	if (health == TN_HEALTHY)
		owner->takes_writes(owner->arg);
}

static bool on_may_write(void *arg, uint32_t device, uint64_t bytes)
{
	const struct tn_tier_owner *owner = &((struct tn_disk *)arg)->env->owner;

	return owner->may_write(owner->arg, device, bytes);
}

static void on_written(void *arg, uint32_t device, uint64_t bytes)
{
	const struct tn_tier_owner *owner = &((struct tn_disk *)arg)->env->owner;

	owner->written(owner->arg, device, bytes);
}

static bool on_passes(void *arg, tn_slot first, uint32_t n)
{
	const struct tn_tier_owner *owner = &((struct tn_disk *)arg)->env->owner;

	return owner->passes(owner->arg, first, n);
}

/*
 * First a look, then all are withdrawn, and only then the first one goes: if somebody pins one meanwhile, they are all
 * there again. What was dropped before and waits to leave goes as well.
 */
static bool on_vacate(void *arg, tn_slot first, uint32_t n)
{
	struct tn_tier_base *t = arg;
	struct tn_store *store = tn_disk_of(t)->store;
	uint32_t k;

	for (k = 0; k < n; k++) {
		tn_block b = tn_store_cookie(store, first + k);

		if (b != TN_BLOCK_NONE && tn_block_refs(t->registry, b) > 0)
			return false;
	}
	for (k = 0; k < n; k++) {
		tn_block b = tn_store_cookie(store, first + k);

		if (b != TN_BLOCK_NONE && !t->watch->dropped(t->watch->arg, b) && !tn_block_withdraw(t->registry, b, t->tier))
			break;
	}
	for (uint32_t i = 0; i < k; i++) {
		tn_block b = tn_store_cookie(store, first + i);

		if (b == TN_BLOCK_NONE)
			continue;
		if (k == n) {
			tn_tier_leave_evicted(t, b);
		} else if (!t->watch->dropped(t->watch->arg, b)) {
			tn_block_set_residency(t->registry, b, t->tier, TN_PRESENT);
		}
	}
	return k == n;
}

/* ---- the store ------------------------------------------------------------------------------------------------ */

static int open_store(struct tn_disk *d)
{
	const struct tn_tier_env *env = d->env;
	const struct tn_cache_opts *o = env->o;
	uint64_t slots = tn_disk_new_slots(env);
	const struct tn_store_opts so = {
		.io = env->io,
		.alloc = env->alloc,
		.clock = env->clock,
		.log = env->log,
		.dirs = o->dirs,
		.ndirs = (uint32_t)o->ndirs,
		.capacity_bytes = o->disk_bytes,
		.segment_bytes = env->segment_bytes,
		.max_slots = (uint32_t)(slots < UINT32_MAX ? slots : UINT32_MAX),
		.read_only = o->read_only,
		.prepare = true,
		.write_bytes_per_day = o->write_bytes_per_day,
		.lock_timeout_ns = o->lock_timeout_ns,
		.durability_ns = o->durability_ms == UINT32_MAX ? UINT64_MAX : o->durability_ms * 1000000ull,
		.slow_read_ns = env->slow_read_ns,
		.boot = {env->boot[0], env->boot[1]},
		.entropy = {env->entropy[0], env->entropy[1]},
		.cb = {on_recovered, on_describe, on_evict, on_health, d, on_may_write, on_written, on_vacate, on_passes},
	};

	return tn_store_open(&so, &d->store);
}

int tn_disk_open(struct tn_tier_base *t)
{
	struct tn_disk *d = tn_disk_of(t);
	struct tn_headers_opts ho = {.alloc = d->env->alloc, .cache_bytes = d->env->o->header_cache_bytes};
	struct recovery r = {.disk = d, .list = tn_get(ho.alloc, tn_array_bytes(d->env->max_blocks, sizeof(*r.list)))};
	int rc;

	if (!r.list)
		return tn_fail(-ENOMEM, "no memory to recover %u blocks", d->env->max_blocks);
	d->recovery = &r;
	rc = open_store(d);
	if (rc == 0) {
		fill_policy(&r);
		ho.store = d->store;
		t->devices = tn_store_devices(d->store);
		rc = tn_headers_create(&ho, &d->headers);
	}
	if (rc == 0)
		t->headers = tn_headers_buffers(d->headers);
	d->recovery = NULL;
	tn_put(ho.alloc, r.list, tn_array_bytes(d->env->max_blocks, sizeof(*r.list)));
	return rc;
}

int tn_disk_close(struct tn_tier_base *t)
{
	struct tn_disk *d = tn_disk_of(t);
	int rc = d->store ? tn_store_close(d->store) : 0;

	d->store = NULL;
	if (rc && tn_error_last()->code != rc)
		rc = tn_fail(rc, "the last changes could not be made durable (error %d): the next open goes back to what was flushed", -rc);
	return rc;
}
