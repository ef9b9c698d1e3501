/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spaces: who the blocks belong to. Opening and closing takes a lock; nothing on the way of a load or save does.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/abi.h"
#include "base/error.h"
#include "block/keys.h"
#include "core/core.h"
#include "core/transfers.h"
#include "front/attach.h"
#include "front/front.h"

#define FINGERPRINT_BYTES 4096u

void tn_identity_init_sized(struct tn_identity *id, size_t size)
{
	static const struct tn_identity defaults = {.size = sizeof(defaults)};

	tn_abi_init(id, size, &defaults, sizeof(defaults));
}

void tn_shard_init_sized(struct tn_shard *shard, size_t size)
{
	static const struct tn_shard defaults = {.size = sizeof(defaults), .tp_size = 1, .pp_size = 1};

	tn_abi_init(shard, size, &defaults, sizeof(defaults));
}

void tn_quota_init_sized(struct tn_quota *quota, size_t size)
{
	struct tn_quota defaults = {.size = sizeof(defaults)};

	memset(defaults.bytes, 0xff, sizeof(defaults.bytes)); /* UINT64_MAX */
	tn_abi_init(quota, size, &defaults, sizeof(defaults));
}

/* ---- fingerprint ------------------------------------------------------------------------------------------ */

struct writer {
	unsigned char buf[FINGERPRINT_BYTES];
	size_t len;
	bool overflow;
};

static void put_bytes(struct writer *w, const void *p, size_t n)
{
	if (n > sizeof(w->buf) - w->len) {
		w->overflow = true;
		return;
	}
	memcpy(w->buf + w->len, p, n);
	w->len += n;
}

static void put_u64(struct writer *w, uint64_t v)
{
	put_bytes(w, &v, sizeof(v));
}

static void put_string(struct writer *w, const char *s)
{
	size_t n = s ? strlen(s) : 0;

	put_u64(w, n); /* length first, so that no two sequences of strings look alike */
	put_bytes(w, s ? s : "", n);
}

static bool only_latent(const struct tn_geometry *g)
{
	for (uint32_t p = 0; p < g->nplanes; p++)
		if (g->planes[p].kind != TN_PLANE_LATENT)
			return false;
	return true;
}

/* Whose blocks they are, and which share of them. */
struct fingerprint {
	struct tn_key tenant;
	struct tn_key identity; /* of whom the keys are */
	struct tn_key family;	/* of the spaces with the shares of the same blocks: ranks of one size, of one group */
	struct tn_key id;	/* of the space */
	struct tn_key table;	/* tn_space_at's name */
	uint32_t rank;
};

/* Which share of a block's layers, and of how many. */
struct part {
	const char *kind; /* NULL: a rank's, as it was stored before there were head groups */
	uint32_t number, of;
};

/* Latents are one share, whatever is asked for. */
static struct part part_of(const struct tn_shard *shard, bool mla)
{
	if (mla)
		return (struct part){NULL, 0, 1};
	if (shard->head_groups)
		return (struct part){"head groups", shard->head_group, shard->head_groups};
	return (struct part){NULL, shard->tp_rank, shard->tp_size};
}

static struct tn_key family_of(const struct tn_cache *cache, const struct tn_key *reset, const struct writer *identity, const struct tn_shard *shard,
			       const struct part *part)
{
	struct writer w = *identity;

	put_string(&w, part->kind ? part->kind : "ranks");
	put_u64(&w, part->of);
	put_u64(&w, shard->pp_size);
	put_u64(&w, shard->group);
	put_u64(&w, shard->match_rule);
	put_u64(&w, shard->window_tokens);
	return tn_hash_chain(&cache->secret, reset, w.buf, w.len);
}

struct tn_key tn_tenant_of(const struct tn_cache *cache, const char *tenant)
{
	const struct tn_key none = {{0, 0}};
	const struct tn_key named = tn_hash_chain(&cache->secret, &none, "tenant", 6);

	return tn_hash_chain(&cache->secret, &named, tenant ? tenant : "", tenant ? strlen(tenant) : 0);
}

static int fingerprint(const struct tn_cache *cache, const struct tn_identity *id, const struct tn_shard *shard,
		       const struct tn_geometry *g, struct fingerprint *out)
{
	static const struct tn_secret no_secret; /* a table's name is the same in every cache */
	unsigned char geometry[TN_GEOMETRY_BYTES];
	struct writer w = {.len = 0};
	const struct part part = part_of(shard, only_latent(g));
	int n = tn_geometry_store(g, geometry, sizeof(geometry));
	size_t named, hashed; /* bytes before and behind what is of hashes alone */
	struct tn_key reset; /* each hash continues it */

	_Static_assert(sizeof(reset) == sizeof(id->reset_revision), "a revision is what a chain of hashes begins with");
	memcpy(&reset, id->reset_revision, sizeof(reset));
	if (n < 0)
		return n;
	put_string(&w, id->tenant);
	put_string(&w, id->model);
	put_string(&w, id->revision);
	put_string(&w, id->kv_dtype);
	put_string(&w, id->rotary);
	named = w.len;
	put_string(&w, id->hash_algorithm);
	put_u64(&w, id->hash_seed);
	hashed = w.len;
	out->tenant = tn_tenant_of(cache, id->tenant);
	out->identity = tn_hash_chain(&cache->secret, &reset, w.buf, w.len);
	out->family = family_of(cache, &reset, &w, shard, &part);
	out->rank = shard->pp_rank * part.of + part.number;
	if (part.kind)
		put_string(&w, part.kind);
	put_u64(&w, part.number);
	put_u64(&w, part.of);
	put_u64(&w, shard->pp_rank);
	put_u64(&w, shard->pp_size);
	put_u64(&w, shard->group);
	put_u64(&w, shard->match_rule);
	put_u64(&w, shard->window_tokens);
	put_bytes(&w, geometry, (size_t)n);
	if (w.overflow)
		return tn_fail(-EINVAL, "identity: its strings have more than %u bytes together", FINGERPRINT_BYTES - 512);
	out->id = tn_hash_chain(&cache->secret, &reset, w.buf, w.len);
	out->table = tn_hash_chain(&no_secret, &(struct tn_key){{0, 0}}, w.buf, named);
	out->table = tn_hash_chain(&no_secret, &out->table, w.buf + hashed, w.len - hashed);
	return 0;
}

/* ---- open ------------------------------------------------------------------------------------------------- */

/* What tn_space_open is given. */
struct arguments {
	struct tn_identity identity;
	struct tn_shard shard;
	struct tn_quota quota;
};

static int take_arguments(const struct tn_identity *identity, const struct tn_shard *shard, const struct tn_quota *quota,
			  struct arguments *a)
{
	int rc;

	if (!identity || !shard)
		return tn_fail(-EINVAL, "tn_space_open: identity or shard is missing");
	tn_identity_init(&a->identity);
	tn_shard_init(&a->shard);
	tn_quota_init(&a->quota);
	rc = tn_abi_in(TN_ABI(tn_identity, hash_seed), &a->identity, identity);
	if (rc == 0)
		rc = tn_abi_in(TN_ABI(tn_shard, window_tokens), &a->shard, shard);
	if (rc == 0 && quota)
		rc = tn_abi_in(TN_ABI(tn_quota, bytes), &a->quota, quota);
	return rc;
}

static int check_arguments(const struct tn_identity *id, const struct tn_shard *shard, const struct tn_geometry *g)
{
	if (!id->model || id->model[0] == '\0')
		return tn_fail(-EINVAL, "identity: model is required, so that another model's KV never matches");
	if (shard->tp_size == 0 || shard->tp_rank >= shard->tp_size)
		return tn_fail(-EINVAL, "shard: tp_rank %u of tp_size %u", shard->tp_rank, shard->tp_size);
	if (shard->head_groups && shard->head_group >= shard->head_groups)
		return tn_fail(-EINVAL, "shard: head_group %u of head_groups %u", shard->head_group, shard->head_groups);
	if (shard->pp_size == 0 || shard->pp_rank >= shard->pp_size)
		return tn_fail(-EINVAL, "shard: pp_rank %u of pp_size %u", shard->pp_rank, shard->pp_size);
	if (shard->match_rule > TN_MATCH_EXACT)
		return tn_fail(-EINVAL, "shard: match_rule %u is none of enum tn_match_rule", shard->match_rule);
	if (shard->match_rule == TN_MATCH_WINDOW && shard->window_tokens == 0)
		return tn_fail(-EINVAL, "shard: TN_MATCH_WINDOW needs window_tokens > 0");
	if (!g)
		return tn_fail(-EINVAL, "tn_space_open: no geometry");
	return tn_geometry_check(g);
}

static int take_number(struct tn_cache *cache, struct tn_space *space)
{
	uint32_t i = 0;

	if (cache->row.durable)
		return cache->row.durable->ops->durable->number(cache->row.durable, &space->id, &space->index);
	while (i < TN_SPACES_MAX && cache->spaces[i])
		i++;
	space->index = (uint16_t)i;
	return i < TN_SPACES_MAX ? 0 : -ENOSPC;
}

/* What was there beyond a smaller capacity than last time. */
static void evict_to_capacity(struct tn_cache *cache, struct tn_tier_base *t)
{
	uint64_t capacity = t->ops->capacity(t);

	if (t->entries > capacity && !cache->o.read_only)
		tn_tier_evict(t, (uint32_t)(t->entries - capacity), -1, NULL);
}

/* What the tiers must know of the space; one whose blocks a tier that is not durable cannot hold does without it. */
static int announce(struct tn_cache *cache, struct tn_space *space)
{
	for_each_tier(t, &cache->row) {
		int rc = t->ops->space(t, &space->shape, &space->cls[t->tier]);

		if (rc && t->ops->traits.durable)
			return rc;
		if (rc)
			tn_log(&cache->log, TN_LOG_WARN, "space %u has no %s tier: %s", space->index, t->ops->name,
			       tn_error_last()->text);
		else
			evict_to_capacity(cache, t);
	}
	return 0;
}

/* Owner thread: what the store and the tiers must know of the space. */
static int open_on_owner(struct tn_cache *cache, void *arg)
{
	struct tn_space *space = arg;
	const struct tn_shape *s = &space->shape;
	struct tn_tier_space known;
	int rc;

	for (unsigned i = 0; i < TN_TIERS_MAX; i++)
		space->cls[i] = TN_CLASS_NONE;
	rc = tn_transfers_shape(cache, s);
	if (rc)
		return rc;
	rc = take_number(cache, space);
	if (rc == -ENOSPC) {
		rc = tn_space_reclaim(cache->reclaim);
		if (rc == 0)
			rc = take_number(cache, space);
	}
	if (rc)
		return rc;
	if (cache->row.durable && cache->row.durable->ops->durable->space(cache->row.durable, space->index, &known) == 0)
		space->epoch = known.epoch;
	rc = announce(cache, space);
	rc = rc ? rc : tn_shares_join(&cache->blocks.shares, cache->row.durable, space->index, &space->family, space->rank);
	if (rc)
		return rc;
	cache->spaces[space->index] = space;
	tn_space_stays(cache->reclaim, space->index);
	return 0;
}

static struct tn_space *find_open(struct tn_cache *cache, const struct tn_key *id)
{
	for (uint32_t i = 0; i < TN_SPACES_MAX; i++)
		if (cache->spaces[i] && tn_key_eq(&cache->spaces[i]->id, id))
			return cache->spaces[i];
	return NULL;
}

static void set_quota(struct tn_space *space, const struct tn_quota *quota)
{
	for (unsigned i = 0; i < TN_TIERS_MAX; i++)
		__atomic_store_n(&space->quota.bytes[i], quota->bytes[i], __ATOMIC_RELAXED);
}

/*
 * Owner thread, of a space that nobody had open: it stays. A crash may bring back what had been evicted for the quota, and that may be
 * smaller than last time. Of a space that is open, the next save makes it true.
 */
static int enter_on_owner(struct tn_cache *cache, void *arg)
{
	const struct tn_space *space = arg;
	struct tn_tier_base *t = cache->row.durable;

	tn_space_stays(cache->reclaim, space->index);
	if (t && !cache->o.read_only)
		tn_tier_quota(t, space->index, tn_space_quota(space, t->tier) / space->shape.slot_bytes, 0);
	return 0;
}

/* What the front has to know of where its blocks may lie. */
static void look_at_tiers(struct tn_space *space)
{
	const struct tn_cache *cache = space->cache;

	space->memory_tier = tn_space_in(space, cache->row.memory) ? cache->row.memory->tier : TN_TIER_NONE;
	space->prefetches = false;
	for_each_tier(t, &cache->row)
		space->prefetches |= space->memory_tier != TN_TIER_NONE && t->tier > space->memory_tier;
}

/* A record that is nobody's yet. */
static int create_space(struct tn_cache *cache, const struct fingerprint *f, const char *model, const struct tn_shard *shard,
			const struct tn_geometry *g, struct tn_space **out)
{
	struct tn_space *space = tn_get(cache->alloc, sizeof(*space));
	struct tn_key secret;
	int rc;

	if (!space)
		return tn_fail(-ENOMEM, "space: no memory");
	space->cache = cache;
	space->id = f->id;
	space->geometry = *g;
	space->match_rule = shard->match_rule;
	space->group = shard->group;
	space->window_blocks = tn_shape_window_blocks(g, shard->window_tokens);
	space->tenant = f->tenant;
	space->identity = f->identity;
	space->family = f->family;
	space->rank = f->rank;
	space->table_name = f->table;
	secret = tn_hash_chain(&cache->secret, &f->identity, "keys", 4);
	space->secret = (struct tn_secret){{secret.word[0], secret.word[1]}};
	snprintf(space->model, sizeof(space->model), "%s", model);
	rc = tn_shape_init(g, &space->shape);
	space->header_shape = tn_header_shape(&space->shape);
	if (rc == 0 && space->shape.layers > cache->max_objects)
		rc = tn_fail(-EINVAL, "%u layers: raise max_op_blocks", space->shape.layers);
	if (rc == 0)
		rc = tn_space_slack_create(space, cache->alloc);
	if (rc) {
		tn_put(cache->alloc, space, sizeof(*space));
		return rc;
	}
	*out = space;
	return 0;
}

static void destroy_space(struct tn_cache *cache, struct tn_space *space)
{
	if (!space)
		return;
	tn_space_slack_destroy(space, cache->alloc);
	tn_put(cache->alloc, space, sizeof(*space));
}

/*
 * One more handle of the space that has the identity: of one that is known, or of *fresh, which is taken then; -ENOENT: there is neither.
 * -EAGAIN: no number is free yet.
 */
static int enter_space(struct tn_cache *cache, const struct tn_key *id, struct tn_space **fresh, const struct tn_quota *quota, bool limited,
		       struct tn_space **out)
{
	struct tn_space *space;
	int rc = 0;

	pthread_mutex_lock(&cache->lock);
	space = find_open(cache, id);
	if (!space && !*fresh)
		rc = -ENOENT;
	if (!space && *fresh) {
		space = *fresh;
		rc = tn_owner_call(cache, open_on_owner, space);
		if (rc == 0) {
			*fresh = NULL;
			look_at_tiers(space);
		}
	}
	if (rc == 0) {
		if (space->refs == 0 || limited)
			set_quota(space, quota);
		if (space->refs == 0)
			tn_owner_call(cache, enter_on_owner, space);
		space->refs++;
		*out = space;
	}
	pthread_mutex_unlock(&cache->lock);
	return rc;
}

static bool has_waited_for_long(void *arg, uint32_t naps)
{
	return naps >= TN_SPACE_NAPS_MAX;
}

int tn_space_open(struct tn_cache *cache, const struct tn_identity *identity, const struct tn_shard *shard,
		  const struct tn_geometry *geometry, const struct tn_quota *quota, struct tn_space **out)
{
	return tn_space_open_unless(cache, identity, shard, geometry, quota, has_waited_for_long, NULL, out);
}

/* The lock is free while this naps: others open and close what they have. */
int tn_space_open_unless(struct tn_cache *cache, const struct tn_identity *identity, const struct tn_shard *shard,
			 const struct tn_geometry *geometry, const struct tn_quota *quota, tn_gives_up *gives_up, void *arg,
			 struct tn_space **out)
{
	const struct timespec nap = {0, 1000000};
	struct tn_space *fresh = NULL;
	struct arguments a;
	struct fingerprint f;
	int rc;

	if (!cache || !out)
		return tn_fail(-EINVAL, "tn_space_open: no cache, or nowhere to return the space");
	if (tn_check_process(cache))
		return -ECHILD;
	rc = take_arguments(identity, shard, quota, &a);
	if (rc == 0)
		rc = check_arguments(&a.identity, &a.shard, geometry);
	if (rc == 0 && cache->attached)
		return tn_remote_space_open(cache, &a.identity, &a.shard, geometry, quota ? &a.quota : NULL, out);
	if (rc == 0)
		rc = fingerprint(cache, &a.identity, &a.shard, geometry, &f);
	if (rc)
		return rc;
	rc = enter_space(cache, &f.id, &fresh, &a.quota, quota != NULL, out);
	if (rc != -ENOENT)
		return rc;
	rc = create_space(cache, &f, a.identity.model, &a.shard, geometry, &fresh);
	if (rc)
		return rc;
	/* Blocks of spaces that nobody has open go; the owner gets them out within some steps, unless leases hold them. */
	for (uint32_t naps = 0; (rc = enter_space(cache, &f.id, &fresh, &a.quota, quota != NULL, out)) == -EAGAIN; naps++) {
		if (gives_up(arg, naps)) {
			rc = tn_fail(-ENOSPC, "%u spaces are known, and leases hold blocks of all that are not open", TN_SPACES_MAX);
			break;
		}
		nanosleep(&nap, NULL);
	}
	destroy_space(cache, fresh);
	return rc;
}

/* The record stays until its number is needed (reclaim.c) or the cache closes: blocks refer to it. */
void tn_space_close(struct tn_space *space)
{
	if (!space || tn_check_process(space->cache))
		return;
	if (space->cache->attached) {
		tn_remote_space_close(space);
		return;
	}
	pthread_mutex_lock(&space->cache->lock);
	space->refs--;
	pthread_mutex_unlock(&space->cache->lock);
}

int tn_space_at(struct tn_cache *cache, uint32_t index, struct tn_space **out, struct tn_key *name)
{
	struct tn_space *space;
	int rc = -ENOENT;

	if (!cache || !out || !name)
		return tn_fail(-EINVAL, "tn_space_at: no cache, or nowhere to return the space");
	if (tn_check_process(cache))
		return -ECHILD;
	if (cache->attached || index >= TN_SPACES_MAX)
		return tn_fail(-EINVAL, "tn_space_at: number %u, of %u of a cache's owner", index, TN_SPACES_MAX);
	pthread_mutex_lock(&cache->lock);
	space = cache->spaces[index];
	if (space && space->refs > 0) {
		space->refs++;
		*out = space;
		*name = space->table_name;
		rc = 0;
	}
	pthread_mutex_unlock(&cache->lock);
	return rc;
}

int tn_space_of_id(struct tn_cache *cache, const struct tn_key *id, struct tn_space **out)
{
	int rc = -ENOENT;

	pthread_mutex_lock(&cache->lock);
	for (uint32_t i = 0; i < TN_SPACES_MAX && rc; i++) {
		struct tn_space *space = cache->spaces[i];

		if (space && space->refs > 0 && tn_key_eq(&space->id, id)) {
			space->refs++;
			*out = space;
			rc = 0;
		}
	}
	pthread_mutex_unlock(&cache->lock);
	return rc;
}

uint32_t tn_space_op_blocks(const struct tn_space *space)
{
	return space ? tn_op_blocks_max(space->cache, space, true) : 0;
}

int tn_space_drop(struct tn_space *space, uint64_t deadline_ns)
{
	const struct timespec nap = {0, 1000000};
	struct tn_flush_waiter *w;
	int rc;

	if (!space)
		return tn_fail(-EINVAL, "tn_space_drop: no space");
	if (tn_check_process(space->cache))
		return -ECHILD;
	if (space->cache->attached)
		return tn_remote_space_drop(space, deadline_ns);
	if (space->cache->o.read_only && space->cache->row.durable)
		return tn_fail(-EROFS, "tn_space_drop: the cache was opened read-only");
	/* Background offloads and prefetches end by themselves. */
	while ((rc = tn_space_drop_begin(&space->cache->drops, space, &w)) == -EBUSY && tn_now_ns(&space->cache->clock) < deadline_ns)
		nanosleep(&nap, NULL);
	return rc ? rc : tn_flush_wait(w, deadline_ns);
}

/* ---- keys ------------------------------------------------------------------------------------------------- */

long tn_keys_from_tokens(const struct tn_space *space, const uint32_t *tokens, size_t n, const void *extra,
			 size_t extra_bytes, struct tn_key *keys, size_t max)
{
	if (!space || (n && !tokens) || (max && !keys) || (extra_bytes && !extra))
		return tn_fail(-EINVAL, "tn_keys_from_tokens: a pointer is missing");
	if (tn_check_process(space->cache))
		return -ECHILD;
	return tn_block_keys_tokens(&space->secret, tn_geometry_block_tokens(&space->geometry), tokens, n, extra, extra_bytes,
				    keys, max);
}

long tn_keys_from_hashes(const struct tn_space *space, const void *hashes, size_t hash_bytes, size_t npages,
			 struct tn_key *keys, size_t max)
{
	if (!space || (npages && !hashes) || (max && !keys))
		return tn_fail(-EINVAL, "tn_keys_from_hashes: a pointer is missing");
	if (tn_check_process(space->cache))
		return -ECHILD;
	return tn_block_keys_hashes(&space->secret, space->geometry.pages_per_block, hashes, hash_bytes, npages, keys,
				    max);
}
