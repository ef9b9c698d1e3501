/* SPDX-License-Identifier: Apache-2.0 */
#include "front/name_table.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "block/registry.h"

#define WAYS 8u
#define MAX_BLOCKS (1u << 28)

struct name {
	struct tn_key key;
	uint64_t given; /* rises with each name; 0: the place is free */
	struct tn_block_name name;
	uint16_t space;
};
_Static_assert(sizeof(struct name) <= 160, "what tenuto/names.h says");

struct tn_names {
	const struct tn_alloc *alloc;
	pthread_mutex_t lock;
	struct name *place;
	uint32_t *tokens; /* max_tokens for each place */
	uint32_t *by_hash; /* in buckets as the places: number of a place from 1 on, which may have another name by now; 0: none */
	uint32_t nbuckets, max_tokens;
	uint64_t given;
};

static size_t tokens_bytes(const struct tn_names *names)
{
	return tn_array_bytes((size_t)names->nbuckets * WAYS, (size_t)names->max_tokens * sizeof(*names->tokens));
}

int tn_names_create(uint32_t max_blocks, uint32_t max_tokens, const struct tn_alloc *alloc, struct tn_names **out)
{
	struct tn_names *names;

	if (max_blocks == 0 || max_blocks > MAX_BLOCKS)
		return tn_fail(-EINVAL, "names of %u blocks: keep 1 to %u", max_blocks, MAX_BLOCKS);
	if (max_tokens > TN_NAME_TOKENS_MAX)
		return tn_fail(-EINVAL, "%u token ids per block: at most %u are kept", max_tokens, TN_NAME_TOKENS_MAX);
	names = tn_get(alloc, sizeof(*names));
	if (!names)
		return tn_fail(-ENOMEM, "no memory for names of blocks");
	names->alloc = alloc;
	names->nbuckets = (max_blocks + WAYS - 1) / WAYS;
	names->max_tokens = max_tokens;
	pthread_mutex_init(&names->lock, NULL);
	names->place = tn_get(alloc, tn_array_bytes((size_t)names->nbuckets * WAYS, sizeof(*names->place)));
	names->by_hash = tn_get(alloc, tn_array_bytes((size_t)names->nbuckets * WAYS, sizeof(*names->by_hash)));
	if (max_tokens)
		names->tokens = tn_get(alloc, tokens_bytes(names));
	tn_sparse(alloc, names->place, tn_array_bytes((size_t)names->nbuckets * WAYS, sizeof(*names->place)));
	if (names->tokens)
		tn_sparse(alloc, names->tokens, tokens_bytes(names));
	if (!names->place || !names->by_hash || (max_tokens && !names->tokens)) {
		tn_names_destroy(names);
		return tn_fail(-ENOMEM, "no memory for the names of %u blocks with %u token ids each", max_blocks, max_tokens);
	}
	*out = names;
	return 0;
}

void tn_names_destroy(struct tn_names *names)
{
	if (!names)
		return;
	if (names->tokens)
		tn_put(names->alloc, names->tokens, tokens_bytes(names));
	tn_put(names->alloc, names->by_hash, tn_array_bytes((size_t)names->nbuckets * WAYS, sizeof(*names->by_hash)));
	tn_put(names->alloc, names->place, tn_array_bytes((size_t)names->nbuckets * WAYS, sizeof(*names->place)));
	pthread_mutex_destroy(&names->lock);
	tn_put(names->alloc, names, sizeof(*names));
}

int tn_names_check(const struct tn_block_names *in)
{
	if (in->hash_bytes == 0 || in->hash_bytes > TN_NAME_HASH_BYTES)
		return tn_fail(-EINVAL, "tn_names_give: hashes of %u bytes: give 1 to %u", in->hash_bytes, TN_NAME_HASH_BYTES);
	if (in->block_tokens == 0 || in->block_tokens > 1u << 20)
		return tn_fail(-EINVAL, "tn_names_give: blocks of %u tokens: give 1 to %u", in->block_tokens, 1u << 20);
	if (in->group > UINT16_MAX)
		return tn_fail(-EINVAL, "tn_names_give: group %u: give 0 to %u", in->group, UINT16_MAX);
	return 0;
}

static struct name *bucket_of(const struct tn_names *names, uint16_t space, const struct tn_key *key)
{
	uint64_t hash = tn_registry_hash(space, key->word[0], key->word[1]);

	return &names->place[((hash >> 32) * names->nbuckets >> 32) * WAYS];
}

static bool is_of(const struct name *p, uint16_t space, const struct tn_key *key)
{
	return p->given && p->space == space && p->key.word[0] == key->word[0] && p->key.word[1] == key->word[1];
}

/* The place that the block has, or is to have: a free one, or the one that was given first. */
static struct name *place_for(const struct tn_names *names, uint16_t space, const struct tn_key *key)
{
	struct name *p = bucket_of(names, space, key), *oldest = p;

	for (struct name *end = p + WAYS; p < end; p++) {
		if (is_of(p, space, key))
			return p;
		if (p->given < oldest->given)
			oldest = p;
	}
	return oldest;
}

/* ---- by hash ------------------------------------------------------------------------------------------------------ */

static uint64_t tail_of(const struct tn_block_name *name)
{
	uint64_t tail = 0;

	for (uint32_t i = name->hash_bytes > 8 ? name->hash_bytes - 8u : 0; i < name->hash_bytes; i++)
		tail = tail << 8 | name->hash[i];
	return tail;
}

static uint32_t *hash_bucket(const struct tn_names *names, uint64_t tail)
{
	return &names->by_hash[((tail * 0x9e3779b97f4a7c15u >> 32) * names->nbuckets >> 32) * WAYS];
}

/* Notes where a name lies: in the place of one that has gone, or else of the one that was given first. */
static void note_hash(struct tn_names *names, const struct name *p)
{
	uint32_t number = (uint32_t)(p - names->place) + 1, *bucket = hash_bucket(names, tail_of(&p->name)), *to = bucket;
	uint64_t oldest = UINT64_MAX;

	for (uint32_t *at = bucket; at < bucket + WAYS; at++) {
		const struct name *there = *at ? &names->place[*at - 1] : NULL;
		uint64_t given = there && hash_bucket(names, tail_of(&there->name)) == bucket ? there->given : 0;

		if (*at == number)
			return;
		if (given < oldest) {
			oldest = given;
			to = at;
		}
	}
	*to = number;
}

uint32_t tn_names_by_hash(struct tn_names *names, uint64_t hash, struct tn_named *out, uint32_t max)
{
	const uint32_t *bucket = hash_bucket(names, hash);
	uint32_t n = 0;

	pthread_mutex_lock(&names->lock);
	for (uint32_t i = 0; i < WAYS && n < max; i++) {
		const struct name *p = bucket[i] ? &names->place[bucket[i] - 1] : NULL;

		if (p && p->given && tail_of(&p->name) == hash)
			out[n++] = (struct tn_named){p->key, p->space};
	}
	pthread_mutex_unlock(&names->lock);
	return n;
}

/* ---- giving ------------------------------------------------------------------------------------------------------- */

static void describe(const struct tn_block_names *in, size_t i, const struct tn_names *names, struct tn_block_name *out)
{
	const unsigned char *hashes = in->hashes, *parent = i ? hashes + (i - 1) * in->hash_bytes : in->parent;

	*out = (struct tn_block_name){
		.block_tokens = in->block_tokens,
		.group = in->group,
		.ntokens = in->token_ids && in->block_tokens <= names->max_tokens ? in->block_tokens : 0,
		.hash_bytes = (uint8_t)in->hash_bytes,
		.parent_bytes = parent ? (uint8_t)in->hash_bytes : 0,
	};
	memcpy(out->hash, hashes + i * in->hash_bytes, in->hash_bytes);
	if (parent)
		memcpy(out->parent, parent, in->hash_bytes);
}

size_t tn_names_put(struct tn_names *names, uint16_t space, const struct tn_key *keys, size_t n, const struct tn_block_names *in, bool *fresh)
{
	size_t nfresh = 0;

	pthread_mutex_lock(&names->lock);
	for (size_t i = 0; i < n; i++) {
		struct name *p = place_for(names, space, &keys[i]);
		struct tn_block_name name;

		describe(in, i, names, &name);
		fresh[i] = !is_of(p, space, &keys[i]) || memcmp(p->name.hash, name.hash, sizeof(name.hash)) != 0;
		nfresh += fresh[i];
		p->key = keys[i];
		p->space = space;
		p->given = ++names->given;
		p->name = name;
		note_hash(names, p);
		if (name.ntokens)
			memcpy(&names->tokens[(size_t)(p - names->place) * names->max_tokens], in->token_ids + i * in->block_tokens,
			       name.ntokens * sizeof(*in->token_ids));
	}
	pthread_mutex_unlock(&names->lock);
	return nfresh;
}

bool tn_names_get(struct tn_names *names, uint16_t space, const struct tn_key *key, struct tn_block_name *out, uint32_t *token_ids,
		  uint32_t max_tokens)
{
	const struct name *p;
	bool has;

	pthread_mutex_lock(&names->lock);
	p = place_for(names, space, key);
	has = is_of(p, space, key);
	if (has) {
		*out = p->name;
		if (!token_ids || out->ntokens > max_tokens)
			out->ntokens = 0;
		if (out->ntokens)
			memcpy(token_ids, &names->tokens[(size_t)(p - names->place) * names->max_tokens], out->ntokens * sizeof(*token_ids));
	}
	pthread_mutex_unlock(&names->lock);
	return has;
}
