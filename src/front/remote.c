/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of an attached cache: what goes to the owner's process, and what is kept here of the answer. Arguments were checked. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/error.h"
#include "base/shared_memory.h"
#include "front/attach.h"
#include "front/stage.h"

/* A call about one thing, with no answer but its status. */
static int call_about(struct tn_cache *cache, enum tn_wire_call kind, const struct tn_wire_about *about)
{
	const struct iovec in = TN_PART(about, sizeof(*about));

	return tn_attached_call(cache, kind, &in, 1, NULL, 0);
}

/* The same, by a deadline, which may be 0. */
static int call_until(struct tn_cache *cache, enum tn_wire_call kind, const struct tn_wire_about *about)
{
	const struct iovec in = TN_PART(about, sizeof(*about));

	return tn_attached_call_until(cache, kind, about->deadline_ns ? about->deadline_ns : 1, &in, 1, NULL, 0);
}

/* ---- spaces --------------------------------------------------------------------------------------------------- */

static int put_strings(struct tn_wire_space *w, const struct tn_identity *id)
{
	const char *const string[TN_WIRE_STRINGS] = {id->tenant, id->model, id->revision, id->kv_dtype, id->rotary, id->hash_algorithm};
	size_t at = 0;

	for (uint32_t i = 0; i < TN_WIRE_STRINGS; i++) {
		size_t n = string[i] ? strlen(string[i]) : 0;

		if (n > sizeof(w->strings) - at)
			return tn_fail(-EINVAL, "identity: its strings have more than %u bytes together", TN_WIRE_STRINGS_BYTES);
		if (n)
			memcpy(w->strings + at, string[i], n);
		w->length[i] = (uint16_t)n;
		at += n;
	}
	return 0;
}

/* The space of that number, which may have had handles before. Under cache->lock. */
static int take_space(struct tn_cache *cache, const struct tn_wire_space_told *told, const struct tn_shard *shard,
		      const struct tn_geometry *g, struct tn_space **out)
{
	struct tn_space *space = told->number < TN_SPACES_MAX ? cache->spaces[told->number] : NULL;
	int rc;

	if (told->number >= TN_SPACES_MAX)
		return tn_fail(-EPROTO, "tn_space_open: the owner says space %u", told->number);
	if (!space)
		space = cache->spaces[told->number] = tn_get(cache->alloc, sizeof(*space));
	if (!space)
		return tn_fail(-ENOMEM, "space: no memory");
	space->quota = told->quota;
	if (space->refs == 0) {
		space->cache = cache;
		space->index = (uint16_t)told->number;
		space->secret = told->secret;
		space->identity = told->identity;
		space->geometry = *g;
		space->match_rule = shard->match_rule;
		space->group = shard->group;
		space->window_blocks = tn_shape_window_blocks(g, shard->window_tokens);
		space->memory_tier = told->memory_tier < TN_TIERS_MAX ? told->memory_tier : TN_TIER_NONE;
		space->prefetches = told->prefetches;
		space->last_wait = TN_WAIT_NOT;
		rc = tn_shape_init(g, &space->shape);
		if (rc)
			return rc;
	}
	space->refs++;
	*out = space;
	return 0;
}

int tn_remote_space_open(struct tn_cache *cache, const struct tn_identity *id, const struct tn_shard *shard,
			 const struct tn_geometry *g, const struct tn_quota *quota, struct tn_space **out)
{
	struct tn_wire_space w = {.shard = *shard, .hash_seed = id->hash_seed, .has_quota = quota != NULL};
	struct tn_wire_space_told told;
	const struct iovec in = TN_PART(&w, sizeof(w)), answer = TN_PART(&told, sizeof(told));
	int rc = put_strings(&w, id);

	if (rc)
		return rc;
	memcpy(w.reset_revision, id->reset_revision, sizeof(w.reset_revision));
	if (quota)
		w.quota = *quota;
	rc = tn_geometry_store(g, w.geometry, sizeof(w.geometry));
	if (rc < 0)
		return rc;
	rc = tn_attached_call(cache, TN_WIRE_SPACE_OPEN, &in, 1, &answer, 1);
	if (rc)
		return rc;
	pthread_mutex_lock(&cache->lock);
	rc = take_space(cache, &told, shard, g, out);
	pthread_mutex_unlock(&cache->lock);
	if (rc)
		call_about(cache, TN_WIRE_SPACE_CLOSE, &(struct tn_wire_about){.number = told.number});
	return rc;
}

void tn_remote_space_close(struct tn_space *space)
{
	struct tn_cache *cache = space->cache;
	uint32_t number = space->index;

	/* First: once the owner has answered, the number may be another space's. */
	pthread_mutex_lock(&cache->lock);
	space->refs--;
	pthread_mutex_unlock(&cache->lock);
	call_about(cache, TN_WIRE_SPACE_CLOSE, &(struct tn_wire_about){.number = number});
}

int tn_remote_space_drop(struct tn_space *space, uint64_t deadline_ns)
{
	return call_until(space->cache, TN_WIRE_SPACE_DROP, &(struct tn_wire_about){.number = space->index, .deadline_ns = deadline_ns});
}

/* ---- look-ups -------------------------------------------------------------------------------------------------- */

int tn_remote_match(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n, uint8_t *tiers,
		    uint32_t *first, struct tn_match *match, unsigned flags, bool all)
{
	struct tn_cache *cache = spaces[0]->cache;
	struct tn_wire_match w = {.nspaces = (uint32_t)nspaces, .flags = flags, .all = all};
	struct tn_wire_match_told told;
	struct iovec in[2], out[2];
	int rc;

	w.n = (uint32_t)(n < cache->o.max_op_blocks ? n : cache->o.max_op_blocks);
	for (size_t i = 0; i < nspaces; i++)
		w.space[i] = spaces[i]->index;
	in[0] = TN_PART(&w, sizeof(w));
	in[1] = TN_PART(keys, w.n * sizeof(*keys));
	out[0] = TN_PART(&told, sizeof(told));
	out[1] = TN_PART(tiers, tiers ? w.n : 0);
	rc = tn_attached_call(cache, TN_WIRE_MATCH, in, 2, out, 2);
	if (rc < 0)
		return rc;
	if (first)
		memcpy(first, told.first, nspaces * sizeof(*first));
	*match = told.match;
	return rc;
}

int tn_remote_match_begin(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n, uint64_t deadline_ns,
			  unsigned flags, uint64_t *query)
{
	struct tn_wire_match w = {.nspaces = (uint32_t)nspaces, .flags = flags, .n = (uint32_t)n, .deadline_ns = deadline_ns};
	const struct iovec in[] = {TN_PART(&w, sizeof(w)), TN_PART(keys, n * sizeof(*keys))}, out = TN_PART(query, sizeof(*query));

	for (size_t i = 0; i < nspaces; i++)
		w.space[i] = spaces[i]->index;
	return tn_attached_call(spaces[0]->cache, TN_WIRE_QUERY, in, 2, &out, 1);
}

/* What is asked for is checked first: the answer ends the query. */
int tn_remote_match_poll(struct tn_cache *cache, uint64_t query, uint32_t *first, struct tn_match *match)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_match, pin);
	const struct tn_wire_about w = {.pin = query};
	struct tn_wire_match_told told;
	const struct iovec in = TN_PART(&w, sizeof(w)), out = TN_PART(&told, sizeof(told));
	int rc = tn_abi_check(abi, match);

	if (rc == 0)
		rc = tn_attached_call(cache, TN_WIRE_QUERY_POLL, &in, 1, &out, 1);
	if (rc < 0)
		return rc;
	if (first && told.nspaces <= TN_MATCH_SPACES_MAX)
		memcpy(first, told.first, told.nspaces * sizeof(*first));
	tn_abi_out(abi, match, &told.match);
	return rc;
}

int tn_remote_match_cancel(struct tn_cache *cache, uint64_t query)
{
	return call_about(cache, TN_WIRE_QUERY_CANCEL, &(struct tn_wire_about){.pin = query});
}

int tn_remote_unpin(struct tn_cache *cache, uint64_t pin)
{
	return call_about(cache, TN_WIRE_UNPIN, &(struct tn_wire_about){.pin = pin});
}

int tn_remote_drop(struct tn_space *space, const struct tn_key *keys, size_t n)
{
	size_t most = space->cache->o.max_op_blocks;
	int found = 0;

	for (size_t at = 0; at < n; at += most) {
		uint32_t some = (uint32_t)(n - at < most ? n - at : most);
		const struct tn_wire_about w = {.number = space->index, .n = some};
		const struct iovec in[] = {TN_PART(&w, sizeof(w)), TN_PART(keys + at, some * sizeof(*keys))};
		int rc = tn_attached_call(space->cache, TN_WIRE_DROP, in, 2, NULL, 0);

		if (rc < 0)
			return rc;
		found += rc;
	}
	return found;
}

int tn_remote_plan(struct tn_space *space, const struct tn_match *match, const uint8_t *tiers, uint64_t input_tokens,
		   struct tn_plan *plan)
{
	const struct tn_wire_plan w = {.space = space->index, .ntiers = tiers ? match->blocks : 0, .input_tokens = input_tokens,
				       .match = *match};
	const struct iovec in[] = {TN_PART(&w, sizeof(w)), TN_PART(tiers, w.ntiers)}, out = TN_PART(plan, sizeof(*plan));

	return tn_attached_call(space->cache, TN_WIRE_PLAN, in, 2, &out, 1);
}

/* ---- the cache ------------------------------------------------------------------------------------------------- */

int tn_remote_flush(struct tn_cache *cache, uint64_t deadline_ns)
{
	return call_until(cache, TN_WIRE_FLUSH, &(struct tn_wire_about){.deadline_ns = deadline_ns});
}

int tn_remote_stats(struct tn_cache *cache, struct tn_stats *s)
{
	const struct iovec out = TN_PART(s, sizeof(*s));

	return tn_attached_call(cache, TN_WIRE_STATS, NULL, 0, &out, 1);
}

int tn_remote_device_stats(struct tn_cache *cache, uint32_t index, struct tn_device_stats *s)
{
	const struct tn_wire_about w = {.number = index};
	const struct iovec in = TN_PART(&w, sizeof(w)), out = TN_PART(s, sizeof(*s));

	return tn_attached_call(cache, TN_WIRE_DEVICE_STATS, &in, 1, &out, 1);
}

int tn_remote_remote_stats(struct tn_cache *cache, uint32_t index, struct tn_remote_stats *s)
{
	const struct tn_wire_about w = {.number = index};
	const struct iovec in = TN_PART(&w, sizeof(w)), out = TN_PART(s, sizeof(*s));

	return tn_attached_call(cache, TN_WIRE_REMOTE_STATS, &in, 1, &out, 1);
}

/* ---- memories and pools ---------------------------------------------------------------------------------------- */

/* Registers a memory whose ranges the owner can map. -ENOTSUP: some range is of this process alone. */
static int register_memory(struct tn_memory *memory, bool staged)
{
	struct tn_wire_memory w = {.magic = TN_WIRE_MAGIC, .nranges = memory->mapping.nranges, .staged = staged};
	struct tn_wire_registered answer;
	int fds[TN_WIRE_RANGES_MAX] = {0}, opened[TN_WIRE_RANGES_MAX], rc = 0;
	uint32_t nopened = 0;

	for (uint32_t i = 0; i < memory->mapping.nranges && rc == 0; i++) {
		const struct tn_mapped_range *r = &memory->mapping.range[i];

		w.range[i].bytes = r->bytes;
		fds[i] = tn_memory_file(r->address, r->bytes, &w.range[i].offset);
		if (fds[i] >= 0)
			continue;
		fds[i] = tn_shared_file(r->address, r->bytes, &w.range[i].offset);
		if (fds[i] >= 0)
			opened[nopened++] = fds[i];
		else
			rc = -ENOTSUP;
	}
	if (rc == 0)
		rc = tn_attached_memory(memory->cache, &w, fds, &answer);
	while (nopened > 0)
		close(opened[--nopened]);
	if (rc)
		return rc;
	if (answer.status)
		return tn_fail(answer.status, "%.250s", answer.text);
	memory->number = answer.number;
	return 0;
}

int tn_remote_memory(struct tn_memory *memory)
{
	/* Of a device, or more ranges than descriptors go in one message: the owner's pools are over one range each. */
	int rc = memory->driver || memory->mapping.nranges > TN_WIRE_RANGES_MAX ? -ENOTSUP : register_memory(memory, false);

	memory->staged = rc == -ENOTSUP;
	return memory->staged ? 0 : rc;
}

void tn_remote_memory_unregister(struct tn_memory *memory)
{
	if (!memory->staged)
		tn_attached_forget_memory(memory->cache, memory->number);
}

static int create_pool(struct tn_pool *pool, const struct tn_memory *memory, const struct tn_pool_layout *layout)
{
	const struct tn_geometry *g = &pool->layout.geometry;
	struct tn_wire_pool w = {.memory = memory->number, .nbases = g->layers * g->nplanes, .npages = layout->npages};
	const struct iovec in[] = {TN_PART(&w, sizeof(w)), TN_PART(layout->base, w.nbases * sizeof(*layout->base))};
	struct tn_wire_pool_told told;
	const struct iovec out = TN_PART(&told, sizeof(told));
	int rc = tn_geometry_store(g, w.geometry, sizeof(w.geometry));

	if (rc < 0)
		return rc;
	memcpy(w.stride, layout->stride, sizeof(w.stride));
	rc = tn_attached_call(memory->cache, TN_WIRE_POOL_CREATE, in, 2, &out, 1);
	if (rc)
		return rc;
	pool->number = told.number;
	pool->life = told.life;
	return 0;
}

/* The owner's pool lies over session memory, as the owner's memory does. */
static int create_staged(struct tn_pool *pool)
{
	struct tn_stage_pool *s;
	int rc = tn_stage_start(pool->memory->cache);

	if (rc == 0)
		rc = tn_stage_pool_create(pool);
	if (rc)
		return rc;
	s = pool->stage;
	rc = register_memory(&s->memory, true);
	if (rc == 0) {
		rc = create_pool(pool, &s->memory, &s->places);
		if (rc)
			tn_remote_memory_unregister(&s->memory);
	}
	if (rc)
		tn_stage_pool_destroy(pool);
	return rc;
}

int tn_remote_pool(struct tn_pool *pool, const struct tn_pool_layout *layout)
{
	return pool->memory->staged ? create_staged(pool) : create_pool(pool, pool->memory, layout);
}

/*
 * The owner may still be on its way out of an operation that this side has ended. It does not have the pool any more if it has carried out, later, a call
 * that had timed out here.
 */
int tn_remote_pool_destroy(struct tn_pool *pool)
{
	int rc = call_about(pool->memory->cache, TN_WIRE_POOL_DESTROY, &(struct tn_wire_about){.number = pool->number, .pin = pool->life});

	if (rc && rc != -ESHUTDOWN && rc != -ENOENT)
		return rc;
	if (pool->stage) {
		tn_remote_memory_unregister(&pool->stage->memory);
		tn_stage_pool_destroy(pool);
	}
	return 0;
}
