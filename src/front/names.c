/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine's names of blocks: given by this process or by one that has attached, kept in the owner's memory (front/name_table.h).
 *
 * A block that is there already and gets a name, as after a restart, has its STORED events raised once more. That is the one case in which the
 * core's thread is asked.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "front/name_table.h"
#include "front/attach.h"
#include "front/serve.h"

#define PART_BLOCKS 512u /* named in one turn */

static struct tn_names *names_of(const struct tn_cache *cache)
{
	return __atomic_load_n(&cache->names, __ATOMIC_ACQUIRE);
}

int tn_names_keep(struct tn_cache *cache, uint32_t max_blocks, uint32_t max_tokens)
{
	struct tn_names *names, *none = NULL;
	int rc;

	if (!cache || cache->attached)
		return tn_fail(-EINVAL, "tn_names_keep: no cache of this process");
	if (tn_check_process(cache))
		return -ECHILD;
	rc = tn_names_create(max_blocks, max_tokens, cache->alloc, &names);
	if (rc)
		return rc;
	if (__atomic_compare_exchange_n(&cache->names, &none, names, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		return 0;
	tn_names_destroy(names);
	return tn_fail(-EEXIST, "tn_names_keep: the cache keeps names already");
}

struct repeat {
	struct tn_space *space;
	const struct tn_key *keys;
	const bool *fresh;
	size_t n;
};

static int repeat_on_owner(struct tn_cache *cache, void *arg)
{
	const struct repeat *r = arg;

	for (size_t i = 0; i < r->n; i++) {
		tn_block b = r->fresh[i] ? tn_registry_find_one(cache->registry, r->space->index, &r->keys[i], false) : TN_BLOCK_NONE;

		if (b != TN_BLOCK_NONE)
			tn_watch_repeat(cache->watch, b);
	}
	return 0;
}

/* Whether one of the blocks that are named anew is there. */
static bool any_is_there(const struct repeat *r)
{
	for (size_t i = 0; i < r->n; i++)
		if (r->fresh[i] && tn_registry_find_one(r->space->cache->registry, r->space->index, &r->keys[i], false) != TN_BLOCK_NONE)
			return true;
	return false;
}

static int give(struct tn_space *space, const struct tn_key *keys, size_t n, const struct tn_block_names *in)
{
	struct tn_names *names = names_of(space->cache);
	const unsigned char *hashes = in->hashes;
	bool fresh[PART_BLOCKS];
	int rc = 0;

	for (size_t at = 0; at < n && rc == 0; at += PART_BLOCKS) {
		struct repeat r = {space, keys + at, fresh, n - at < PART_BLOCKS ? n - at : PART_BLOCKS};
		struct tn_block_names part = *in;

		part.hashes = hashes + at * in->hash_bytes;
		part.parent = at ? hashes + (at - 1) * in->hash_bytes : in->parent;
		part.token_ids = in->token_ids ? in->token_ids + at * in->block_tokens : NULL;
		if (tn_names_put(names, space->index, r.keys, r.n, &part, fresh) && any_is_there(&r))
			rc = tn_owner_call(space->cache, repeat_on_owner, &r);
	}
	return rc;
}

/* ---- of a process that has attached ------------------------------------------------------------------------- */

static int give_part(struct tn_space *space, const struct tn_key *keys, uint32_t n, const struct tn_block_names *in)
{
	static const unsigned char zeros[sizeof(uint32_t)];
	const struct tn_wire_names w = {
		.space = space->index,
		.n = n,
		.hash_bytes = in->hash_bytes,
		.group = in->group,
		.block_tokens = in->block_tokens,
		.has_parent = in->parent != NULL,
		.has_tokens = in->token_ids != NULL,
	};
	size_t hashes = (size_t)(n + w.has_parent) * in->hash_bytes;
	const struct iovec parts[] = {
		TN_PART(&w, sizeof(w)),
		TN_PART(keys, n * sizeof(*keys)),
		TN_PART(in->parent ? in->parent : zeros, w.has_parent ? in->hash_bytes : 0),
		TN_PART(in->hashes, (size_t)n * in->hash_bytes),
		TN_PART(zeros, -hashes % sizeof(uint32_t)),
		TN_PART(in->token_ids ? (const void *)in->token_ids : zeros, w.has_tokens ? (size_t)n * in->block_tokens * sizeof(uint32_t) : 0),
	};

	return tn_attached_call(space->cache, TN_WIRE_NAMES, parts, 6, NULL, 0);
}

/* As many blocks at a time as a call has bytes for. Without a place for one block's token ids they are left out. */
static int give_to_owner(struct tn_space *space, const struct tn_key *keys, size_t n, const struct tn_block_names *in)
{
	size_t bytes = space->cache->region.counts.call_bytes - sizeof(struct tn_wire_names) - TN_NAME_HASH_BYTES - sizeof(uint32_t);
	size_t each = sizeof(struct tn_key) + in->hash_bytes, with_tokens = each + (size_t)in->block_tokens * sizeof(uint32_t);
	struct tn_block_names part = *in;
	int rc = 0;

	if (in->token_ids && with_tokens <= bytes)
		each = with_tokens;
	else
		part.token_ids = NULL;
	for (size_t at = 0; at < n && rc == 0;) {
		uint32_t some = (uint32_t)(n - at < bytes / each ? n - at : bytes / each);

		rc = give_part(space, keys + at, some, &part);
		at += some;
		part.parent = (const unsigned char *)in->hashes + (at - 1) * in->hash_bytes;
		part.hashes = (const unsigned char *)in->hashes + at * in->hash_bytes;
		part.token_ids = part.token_ids ? in->token_ids + at * in->block_tokens : NULL;
	}
	return rc;
}

/* bytes: of the owner's copy of what the process has sent. */
static int give_for(struct tn_space *space, const unsigned char *bytes, size_t size)
{
	struct tn_wire_names w;
	const struct tn_key *keys;
	struct tn_block_names in = {.size = sizeof(in)};
	size_t hashes, need;
	int rc;

	memcpy(&w, bytes, sizeof(w));
	in.hash_bytes = w.hash_bytes;
	in.group = w.group;
	in.block_tokens = w.block_tokens;
	rc = tn_names_check(&in);
	if (rc)
		return rc;
	hashes = ((size_t)w.n + (w.has_parent != 0)) * w.hash_bytes;
	hashes += -hashes % sizeof(uint32_t);
	need = sizeof(w) + w.n * sizeof(*keys) + hashes + (w.has_tokens ? (size_t)w.n * w.block_tokens * sizeof(uint32_t) : 0);
	if (size < need)
		return tn_fail(-EINVAL, "tn_names_give: %zu bytes of %zu for the names of %u blocks", size, need, w.n);
	keys = (const struct tn_key *)(const void *)(bytes + sizeof(w));
	in.parent = w.has_parent ? keys + w.n : NULL;
	in.hashes = (const unsigned char *)(keys + w.n) + (w.has_parent ? w.hash_bytes : 0);
	in.token_ids = w.has_tokens ? (const uint32_t *)(const void *)((const unsigned char *)(keys + w.n) + hashes) : NULL;
	return give(space, keys, w.n, &in);
}

int tn_served_names(struct tn_served *s, struct tn_space *space, const unsigned char *asked, uint32_t bytes)
{
	void *copy;
	int rc;

	if (!space)
		return -EINVAL;
	if (!names_of(s->cache))
		return tn_fail(-ENOTSUP, "tn_names_give: the owner keeps no names");
	if (bytes < sizeof(struct tn_wire_names))
		return tn_fail(-EINVAL, "tn_names_give: process %d: %u bytes are no call", (int)s->pid, bytes);
	copy = tn_get(s->cache->alloc, bytes);
	if (!copy)
		return tn_fail(-ENOMEM, "tn_names_give: no memory for %u bytes", bytes);
	memcpy(copy, asked, bytes);
	rc = give_for(space, copy, bytes);
	tn_put(s->cache->alloc, copy, bytes);
	return rc;
}

/* ---- the public calls ---------------------------------------------------------------------------------------- */

int tn_names_give(struct tn_space *space, const struct tn_key *keys, size_t n, const struct tn_block_names *names)
{
	int rc;

	if (!space || !names || (n && (!keys || !names->hashes)))
		return tn_fail(-EINVAL, "tn_names_give: space, keys or names are missing");
	if (names->size != sizeof(*names))
		return tn_fail(-EINVAL, "tn_names_give: size %zu: set it to sizeof(struct tn_block_names), %zu", names->size, sizeof(*names));
	if (tn_check_process(space->cache))
		return -ECHILD;
	rc = tn_names_check(names);
	if (rc || n == 0)
		return rc;
	if (space->cache->attached)
		return give_to_owner(space, keys, n, names);
	if (!names_of(space->cache))
		return tn_fail(-ENOTSUP, "tn_names_give: the cache keeps no names: call tn_names_keep first");
	return give(space, keys, n, names);
}

int tn_names_find(struct tn_cache *cache, uint16_t space, const struct tn_key *key, struct tn_block_name *out, uint32_t *token_ids,
		  uint32_t max_tokens)
{
	struct tn_names *names;

	if (!cache || cache->attached || !key || !out)
		return tn_fail(-EINVAL, "tn_names_find: no cache of this process, no key, or nowhere to return the name");
	names = names_of(cache);
	if (!names)
		return tn_fail(-ENOTSUP, "tn_names_find: the cache keeps no names: call tn_names_keep first");
	return tn_names_get(names, space, key, out, token_ids, max_tokens);
}
