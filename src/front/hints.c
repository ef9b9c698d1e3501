/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hints of this process, and of those that have attached. Each is queued and followed by one thread, so that neither the answer nor the time it
 * takes says what the cache has. A pin holds a lease, which the thread ends in time; all pins together may keep what one attached process may. A hint
 * holds a handle of its space until it was followed: a pin needs none.
 */
#include "front/hints.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <tenuto/hints.h>

#include "base/error.h"
#include "base/list.h"
#include "base/thread.h"
#include "front/attach.h"
#include "front/name_table.h"
#include "front/serve.h"

struct hint {
	struct tn_list link;
	struct tn_space *space; /* NULL: it was followed */
	struct tn_key tenant;
	enum tn_hint_kind kind;
	uint64_t until_ns;
	uint64_t pin; /* 0: the blocks are not there, or it is no pin */
	size_t n;
	struct tn_key keys[];
};

struct tn_hints {
	struct tn_cache *cache;
	pthread_t thread;
	struct tn_holder pins; /* the thread's */
	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t changed;
	struct tn_list queued, held;
	bool stop;
};

static size_t hint_bytes(size_t n)
{
	return sizeof(struct hint) + n * sizeof(struct tn_key);
}

static void free_hint(struct tn_hints *h, struct hint *hint)
{
	const struct tn_alloc *alloc = h->cache->alloc;

	if (hint->pin)
		tn_cache_unpin(h->cache, hint->pin);
	if (hint->space)
		tn_space_close(hint->space);
	tn_put(alloc, hint, hint_bytes(hint->n));
}

/* ---- what a hint does ------------------------------------------------------------------------------------------ */

static int demote_on_owner(struct tn_cache *cache, void *arg)
{
	const struct hint *hint = arg;
	struct tn_tier_base *memory = cache->row.memory, *durable = cache->row.durable;

	for (size_t i = hint->n; memory && durable && i-- > 0;) { /* the end of a prompt is needed last */
		tn_block b = tn_registry_find_one(cache->registry, hint->space->index, &hint->keys[i], false);

		if (b != TN_BLOCK_NONE && tn_tier_has(durable, b))
			tn_tier_demote(memory, b);
	}
	return 0;
}

static void follow(struct tn_hints *h, struct hint *hint)
{
	struct tn_match match = {.size = sizeof(match)};
	size_t most = h->cache->o.max_op_blocks;

	if (hint->kind == TN_HINT_DEMOTE)
		tn_owner_call(h->cache, demote_on_owner, hint);
	else if (hint->kind == TN_HINT_PREFETCH)
		tn_prefetch(hint->space, hint->keys, hint->n < most ? hint->n : most, hint->until_ns);
	else if (tn_match_answer(&h->pins, hint->space, hint->keys, hint->n, NULL, &match, TN_MATCH_PIN) > 0)
		hint->pin = match.pin;
}

/* ---- the thread ---------------------------------------------------------------------------------------------------- */

/* With the lock. The next one to be let go; *until: when. */
static struct hint *first_to_end(struct tn_hints *h, uint64_t *until)
{
	struct hint *first = NULL;

	*until = UINT64_MAX;
	for (struct tn_list *pos = h->held.next; pos != &h->held; pos = pos->next) {
		struct hint *hint = tn_container_of(pos, struct hint, link);

		if (hint->until_ns < *until) {
			*until = hint->until_ns;
			first = hint;
		}
	}
	return first;
}

/* With the lock, which is free while the hint is followed. */
static void follow_first(struct tn_hints *h)
{
	struct hint *hint = tn_container_of(h->queued.next, struct hint, link);
	bool holds = hint->kind == TN_HINT_PIN;

	tn_list_del(&hint->link);
	tn_list_push(&h->held, &hint->link);
	pthread_mutex_unlock(&h->lock);
	follow(h, hint);
	tn_space_close(hint->space);
	hint->space = NULL;
	pthread_mutex_lock(&h->lock);
	if (holds)
		return;
	tn_list_del(&hint->link);
	pthread_mutex_unlock(&h->lock);
	free_hint(h, hint);
	pthread_mutex_lock(&h->lock);
}

static void *hints_main(void *arg)
{
	struct tn_hints *h = arg;

	pthread_mutex_lock(&h->lock);
	while (!h->stop) {
		uint64_t until;
		struct hint *over = first_to_end(h, &until);

		if (over && until <= tn_now_ns(&h->cache->clock)) {
			tn_list_del(&over->link);
			pthread_mutex_unlock(&h->lock);
			free_hint(h, over);
			pthread_mutex_lock(&h->lock);
		} else if (!tn_list_empty(&h->queued)) {
			follow_first(h);
		} else {
			tn_cond_wait(&h->changed, &h->lock, until);
		}
	}
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

static int start(struct tn_cache *cache, struct tn_hints **out)
{
	struct tn_hints *h = tn_get(cache->alloc, sizeof(*h));
	int rc;

	if (!h)
		return tn_fail(-ENOMEM, "tn_hint: no memory");
	rc = tn_holder_init(&h->pins, cache);
	if (rc) {
		tn_put(cache->alloc, h, sizeof(*h));
		return rc;
	}
	h->pins.leases.own = 0; /* sessions alone have leases of their own */
	h->cache = cache;
	pthread_mutex_init(&h->lock, NULL);
	tn_cond_init(&h->changed);
	tn_list_init(&h->queued);
	tn_list_init(&h->held);
	rc = tn_thread_start(&h->thread, hints_main, h);
	if (rc) {
		pthread_cond_destroy(&h->changed);
		pthread_mutex_destroy(&h->lock);
		tn_holder_fini(&h->pins, cache);
		tn_put(cache->alloc, h, sizeof(*h));
		return tn_fail(rc, "tn_hint: no thread");
	}
	*out = h;
	return 0;
}

/* The queue of a cache, which the first hint makes. */
static int hints_of(struct tn_cache *cache, struct tn_hints **out)
{
	int rc = 0;

	pthread_mutex_lock(&cache->lock);
	if (!cache->hints)
		rc = start(cache, &cache->hints);
	*out = cache->hints;
	pthread_mutex_unlock(&cache->lock);
	return rc;
}

static void free_all(struct tn_hints *h, struct tn_list *list)
{
	while (!tn_list_empty(list)) {
		struct hint *hint = tn_container_of(list->next, struct hint, link);

		tn_list_del(&hint->link);
		free_hint(h, hint);
	}
}

void tn_hints_stop(struct tn_cache *cache)
{
	struct tn_hints *h = cache->hints;

	if (!h)
		return;
	pthread_mutex_lock(&h->lock);
	h->stop = true;
	pthread_cond_signal(&h->changed);
	pthread_mutex_unlock(&h->lock);
	pthread_join(h->thread, NULL);
	free_all(h, &h->queued);
	free_all(h, &h->held);
	pthread_cond_destroy(&h->changed);
	pthread_mutex_destroy(&h->lock);
	tn_holder_fini(&h->pins, cache);
	tn_put(cache->alloc, h, sizeof(*h));
	cache->hints = NULL;
}

/* ---- asking -------------------------------------------------------------------------------------------------------- */

static uint32_t count_of_tenant(const struct tn_list *list, const struct tn_key *tenant)
{
	uint32_t n = 0;

	for (const struct tn_list *pos = list->next; pos != list; pos = pos->next)
		n += tn_key_eq(&tn_container_of(pos, struct hint, link)->tenant, tenant);
	return n;
}

static int push(struct tn_hints *h, struct hint *hint)
{
	const struct tn_key *tenant = &hint->tenant;
	int rc = 0;

	pthread_mutex_lock(&h->lock);
	if (count_of_tenant(&h->queued, tenant) + count_of_tenant(&h->held, tenant) >= TN_HINTS_TENANT) {
		rc = -EAGAIN;
	} else {
		tn_list_push(&h->queued, &hint->link);
		pthread_cond_signal(&h->changed);
	}
	pthread_mutex_unlock(&h->lock);
	return rc;
}

static int check(enum tn_hint_kind kind, size_t n, uint64_t ttl_ns)
{
	if (kind < TN_HINT_PREFETCH || kind > TN_HINT_DEMOTE)
		return tn_fail(-EINVAL, "tn_hint: there is no kind %d", (int)kind);
	if (n == 0 || n > TN_HINT_BLOCKS_MAX)
		return tn_fail(-EINVAL, "tn_hint: %zu blocks: give 1 to %u", n, TN_HINT_BLOCKS_MAX);
	if (kind == TN_HINT_DEMOTE ? ttl_ns != 0 : ttl_ns == 0 || ttl_ns > TN_HINT_NS_MAX)
		return tn_fail(-EINVAL, "tn_hint: ttl_ns %llu: give 1 to %llu, and 0 for a demotion", (unsigned long long)ttl_ns,
			       (unsigned long long)TN_HINT_NS_MAX);
	return 0;
}

static int queue(struct tn_space *space, enum tn_hint_kind kind, const struct tn_key *keys, size_t n, uint64_t ttl_ns)
{
	struct tn_cache *cache = space->cache;
	struct tn_hints *h = NULL;
	struct tn_key name;
	struct hint *hint;
	int rc = hints_of(cache, &h);

	if (rc)
		return rc;
	hint = tn_get(cache->alloc, hint_bytes(n));
	if (!hint)
		return tn_fail(-ENOMEM, "tn_hint: no memory for %zu keys", n);
	hint->kind = kind;
	hint->n = n;
	hint->until_ns = tn_now_ns(&cache->clock) + ttl_ns;
	memcpy(hint->keys, keys, n * sizeof(*keys));
	rc = tn_space_at(cache, space->index, &hint->space, &name);
	if (rc) {
		tn_put(cache->alloc, hint, hint_bytes(n));
		return rc;
	}
	hint->tenant = hint->space->tenant;
	rc = push(h, hint);
	if (rc == 0)
		return 0;
	free_hint(h, hint);
	return tn_fail(rc, "tn_hint: the tenant has %u hints under way: ask again when some are over", TN_HINTS_TENANT);
}

static int ask_owner(struct tn_space *space, enum tn_hint_kind kind, const struct tn_key *keys, size_t n, uint64_t ttl_ns)
{
	const struct tn_wire_hint w = {.space = space->index, .kind = (uint32_t)kind, .n = (uint32_t)n, .ttl_ns = ttl_ns};
	const struct iovec in[] = {TN_PART(&w, sizeof(w)), TN_PART(keys, n * sizeof(*keys))};

	return tn_attached_call(space->cache, TN_WIRE_HINT, in, 2, NULL, 0);
}

int tn_hint(struct tn_space *space, enum tn_hint_kind kind, const struct tn_key *keys, size_t n, uint64_t ttl_ns)
{
	int rc;

	if (!space || !keys)
		return tn_fail(-EINVAL, "tn_hint: space or keys is missing");
	if (tn_check_process(space->cache))
		return -ECHILD;
	rc = check(kind, n, ttl_ns);
	if (rc)
		return rc;
	return space->cache->attached ? ask_owner(space, kind, keys, n, ttl_ns) : queue(space, kind, keys, n, ttl_ns);
}

int tn_served_hint(struct tn_space *space, const unsigned char *asked, uint32_t bytes)
{
	struct tn_wire_hint w;
	int rc;

	if (!space)
		return -EINVAL;
	if (bytes < sizeof(w))
		return tn_fail(-EINVAL, "tn_hint: %u bytes are no call", bytes);
	memcpy(&w, asked, sizeof(w));
	rc = check((enum tn_hint_kind)w.kind, w.n, w.ttl_ns);
	if (rc == 0 && (bytes - sizeof(w)) / sizeof(struct tn_key) < w.n)
		rc = tn_fail(-EINVAL, "tn_hint: %u bytes for %u keys", bytes, w.n);
	return rc ? rc : queue(space, (enum tn_hint_kind)w.kind, (const struct tn_key *)(const void *)(asked + sizeof(w)), w.n, w.ttl_ns);
}

/* ---- by the engine's names -------------------------------------------------------------------------------------------- */

#define SPACES_NAMED 8u /* that have one name */

/* Keys of the blocks in a space, up to the first that has no name there. */
static size_t keys_of(struct tn_names *names, uint16_t space, const uint64_t *hashes, size_t n, struct tn_key *keys)
{
	struct tn_named found[SPACES_NAMED];
	size_t i = 0;

	for (bool there = true; i < n && there; i += there) {
		uint32_t nfound = tn_names_by_hash(names, hashes[i], found, SPACES_NAMED);

		there = false;
		for (uint32_t k = 0; k < nfound && !there; k++) {
			there = found[k].space == space;
			keys[i] = found[k].key;
		}
	}
	return i;
}

/* Queues a hint for each open space whose keys are those of `space`: the shares of all ranks. Those of an identity that is among `done` have theirs. */
static void queue_for_all(struct tn_cache *cache, uint16_t space, struct tn_key *done, uint32_t *ndone, enum tn_hint_kind kind, const struct tn_key *keys,
			  size_t n, uint64_t ttl_ns)
{
	struct tn_space *named, *other;
	uint32_t seen = 0;
	struct tn_key name;

	if (tn_space_at(cache, space, &named, &name))
		return;
	while (seen < *ndone && !tn_key_eq(&done[seen], &named->identity))
		seen++;
	if (seen < *ndone) {
		tn_space_close(named);
		return;
	}
	done[(*ndone)++] = named->identity;
	for (uint32_t i = 0; i < TN_SPACES_MAX; i++) {
		if (tn_space_at(cache, i, &other, &name))
			continue;
		if (tn_key_eq(&other->identity, &named->identity))
			queue(other, kind, keys, n, ttl_ns); /* nobody is told that there are too many */
		tn_space_close(other);
	}
	tn_space_close(named);
}

int tn_hint_named(struct tn_cache *cache, enum tn_hint_kind kind, const uint64_t *hashes, size_t n, uint64_t ttl_ns)
{
	struct tn_named first[SPACES_NAMED];
	struct tn_names *names;
	struct tn_key *keys;
	struct tn_key done[SPACES_NAMED];
	uint32_t nfirst, ndone = 0;
	int rc;

	if (!cache || cache->attached || !hashes)
		return tn_fail(-EINVAL, "tn_hint_named: no cache of this process, or no hashes");
	if (tn_check_process(cache))
		return -ECHILD;
	names = __atomic_load_n(&cache->names, __ATOMIC_ACQUIRE);
	rc = names ? check(kind, n, ttl_ns) : tn_fail(-ENOTSUP, "tn_hint_named: the cache keeps no names: nothing is published of it");
	if (rc)
		return rc;
	keys = tn_get(cache->alloc, tn_array_bytes(n, sizeof(*keys)));
	if (!keys)
		return tn_fail(-ENOMEM, "tn_hint_named: no memory for %zu keys", n);
	nfirst = tn_names_by_hash(names, hashes[0], first, SPACES_NAMED);
	for (uint32_t i = 0; i < nfirst; i++)
		queue_for_all(cache, first[i].space, done, &ndone, kind, keys, keys_of(names, first[i].space, hashes, n, keys), ttl_ns);
	tn_put(cache->alloc, keys, tn_array_bytes(n, sizeof(*keys)));
	return 0;
}
