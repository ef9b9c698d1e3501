/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences: tokens in, keys and lives of blocks out. block/life.c says which steps there are; the registry, by leases, says what is registered.
 *
 * A lease holds as many blocks as a look-up finds at once. So a sequence has one lease for its last registered blocks, which each registration takes anew, longer,
 * and full ones for the blocks before.
 */
#include <errno.h>
#include <string.h>
#include <tenuto/sequence.h>

#include "base/abi.h"
#include "base/error.h"
#include "block/keys.h"
#include "block/life.h"
#include "front/front.h"

struct tn_sequence {
	struct tn_space *space;
	uint64_t block_tokens;
	struct tn_key root;
	bool begun;	       /* the block behind the last one is Partial; false: Reset */
	uint64_t ntokens;      /* of it */
	uint64_t n, registered, duplicates, max;
	struct tn_key *keys;   /* of max */
	uint64_t *leases;      /* of max / blocks of a lease + 1; the last one is of the blocks from leased on */
	uint64_t nleases, leased;
	uint32_t tokens[];     /* of the block that is Partial */
};

static const struct tn_alloc *alloc_of(const struct tn_sequence *seq)
{
	return seq->space->cache->alloc;
}

static enum tn_life life_of(const struct tn_sequence *seq, uint64_t block)
{
	if (block < seq->registered)
		return TN_LIFE_REGISTERED;
	if (block < seq->n)
		return TN_LIFE_COMPLETE;
	return block == seq->n && seq->begun ? TN_LIFE_PARTIAL : TN_LIFE_RESET;
}

static uint64_t sequence_bytes(const struct tn_sequence *seq)
{
	return sizeof(*seq) + seq->block_tokens * sizeof(seq->tokens[0]);
}

static uint64_t most_leases(const struct tn_sequence *seq, uint64_t max)
{
	return max / seq->space->cache->o.max_op_blocks + 1;
}

int tn_sequence_create(struct tn_space *space, struct tn_sequence **out)
{
	struct tn_sequence *seq;
	uint64_t tokens;

	if (!space || !out)
		return tn_fail(-EINVAL, "tn_sequence_create: space or out is missing");
	if (tn_check_process(space->cache))
		return -ECHILD;
	tokens = tn_geometry_block_tokens(&space->geometry);
	seq = tn_get(space->cache->alloc, sizeof(*seq) + tokens * sizeof(seq->tokens[0]));
	if (!seq)
		return tn_fail(-ENOMEM, "no memory for a sequence with blocks of %llu tokens", (unsigned long long)tokens);
	seq->space = space;
	seq->block_tokens = tokens;
	*out = seq;
	return 0;
}

static void give_leases_back(struct tn_sequence *seq)
{
	while (seq->nleases)
		tn_unpin(seq->space, seq->leases[--seq->nleases]);
	seq->leased = 0;
}

void tn_sequence_destroy(struct tn_sequence *seq)
{
	if (!seq || tn_check_process(seq->space->cache))
		return;
	give_leases_back(seq);
	tn_put(alloc_of(seq), seq->keys, seq->max * sizeof(*seq->keys));
	tn_put(alloc_of(seq), seq->leases, seq->max ? most_leases(seq, seq->max) * sizeof(*seq->leases) : 0);
	tn_put(alloc_of(seq), seq, sequence_bytes(seq));
}

int tn_sequence_init(struct tn_sequence *seq, const void *salt, size_t salt_bytes)
{
	int rc;

	if (!seq || (salt_bytes && !salt))
		return tn_fail(-EINVAL, "tn_sequence_init: the sequence or the salt is missing");
	rc = tn_life_next(life_of(seq, 0), TN_LIFE_INIT);
	if (rc < 0)
		return rc;
	seq->root = tn_block_key_root(&seq->space->secret, salt, salt_bytes);
	seq->begun = true;
	return 0;
}

long tn_sequence_add_tokens(struct tn_sequence *seq, const uint32_t *tokens, size_t n)
{
	uint64_t fits;
	int rc;

	if (!seq || (n && !tokens))
		return tn_fail(-EINVAL, "tn_sequence_add_tokens: the sequence or its tokens are missing");
	rc = tn_life_next(life_of(seq, seq->n), TN_LIFE_ADD);
	if (rc < 0)
		return rc;
	fits = seq->block_tokens - seq->ntokens;
	fits = n < fits ? n : fits;
	memcpy(seq->tokens + seq->ntokens, tokens, fits * sizeof(*tokens));
	seq->ntokens += fits;
	return (long)fits;
}

/* A place for one more block. */
static int grow(struct tn_sequence *seq)
{
	uint64_t max = seq->max ? 2 * seq->max : 64;
	struct tn_key *keys;
	uint64_t *leases;

	if (seq->n < seq->max)
		return 0;
	keys = tn_get(alloc_of(seq), max * sizeof(*keys));
	leases = tn_get(alloc_of(seq), most_leases(seq, max) * sizeof(*leases));
	if (!keys || !leases) {
		tn_put(alloc_of(seq), keys, max * sizeof(*keys));
		tn_put(alloc_of(seq), leases, most_leases(seq, max) * sizeof(*leases));
		return tn_fail(-ENOMEM, "no memory for %llu blocks of a sequence", (unsigned long long)max);
	}
	if (seq->max) {
		memcpy(keys, seq->keys, seq->n * sizeof(*keys));
		memcpy(leases, seq->leases, seq->nleases * sizeof(*leases));
		tn_put(alloc_of(seq), seq->keys, seq->max * sizeof(*keys));
		tn_put(alloc_of(seq), seq->leases, most_leases(seq, seq->max) * sizeof(*leases));
	}
	seq->keys = keys;
	seq->leases = leases;
	seq->max = max;
	return 0;
}

int tn_sequence_commit(struct tn_sequence *seq, struct tn_key *key)
{
	int rc;

	if (!seq)
		return tn_fail(-EINVAL, "tn_sequence_commit: the sequence is missing");
	rc = tn_life_next(life_of(seq, seq->n), TN_LIFE_COMMIT);
	if (rc < 0)
		return rc;
	if (seq->ntokens < seq->block_tokens)
		return tn_fail(-EINVAL, "block %llu has %llu of %llu tokens: only a full one can be committed", (unsigned long long)seq->n,
			       (unsigned long long)seq->ntokens, (unsigned long long)seq->block_tokens);
	rc = grow(seq);
	if (rc)
		return rc;
	seq->keys[seq->n] = tn_block_key_next(&seq->space->secret, seq->n ? &seq->keys[seq->n - 1] : &seq->root, seq->tokens, seq->block_tokens);
	if (key)
		*key = seq->keys[seq->n];
	seq->n++;
	seq->ntokens = 0;
	return 0;
}

long tn_sequence_keys(const struct tn_sequence *seq, struct tn_key *keys, size_t max)
{
	uint64_t n;

	if (!seq || (max && !keys))
		return tn_fail(-EINVAL, "tn_sequence_keys: the sequence or keys are missing");
	n = seq->n < max ? seq->n : max;
	if (n)
		memcpy(keys, seq->keys, n * sizeof(*keys));
	return (long)n;
}

int tn_sequence_life(const struct tn_sequence *seq, uint64_t block)
{
	return seq ? (int)life_of(seq, block) : tn_fail(-EINVAL, "tn_sequence_life: the sequence is missing");
}

/* A lease on the blocks from `first` on, of which the cache may have fewer than are wanted. How many it has, or -errno. */
static long lease(struct tn_sequence *seq, uint64_t first, uint64_t wanted, uint64_t *pin)
{
	struct tn_match m = {.size = sizeof(m)};
	uint64_t most = seq->space->cache->o.max_op_blocks, n = wanted < most ? wanted : most;
	int rc = tn_match(seq->space, seq->keys + first, n, NULL, &m, TN_MATCH_PIN);

	*pin = rc < 0 ? 0 : m.pin;
	return rc;
}

/* Registers blocks up to `end`. The last lease is taken anew from where it begins, unless it is full. How many were registered, or -errno. */
static long take_handles(struct tn_sequence *seq, uint64_t end)
{
	uint64_t most = seq->space->cache->o.max_op_blocks, before = seq->registered;

	while (seq->registered < end) {
		bool full = seq->nleases == 0 || seq->registered - seq->leased == most;
		uint64_t first = full ? seq->registered : seq->leased, pin;
		long got = lease(seq, first, end - first, &pin);

		if (got <= 0 || first + (uint64_t)got <= seq->registered) {
			if (got > 0)
				tn_unpin(seq->space, pin);
			return got < 0 && seq->registered == before ? got : (long)(seq->registered - before);
		}
		if (!full)
			tn_unpin(seq->space, seq->leases[--seq->nleases]);
		seq->leases[seq->nleases++] = pin;
		seq->leased = first;
		seq->registered = first + (uint64_t)got;
	}
	return (long)(seq->registered - before);
}

long tn_sequence_register(struct tn_sequence *seq, size_t n, const uint8_t *outcome, uint64_t *duplicates)
{
	uint64_t doubles = 0;
	long got;

	if (!seq)
		return tn_fail(-EINVAL, "tn_sequence_register: the sequence is missing");
	if (!n || n > seq->n - seq->registered)
		return tn_fail(-EINVAL, "%zu blocks to register, and %llu are Complete: commit first", n, (unsigned long long)(seq->n - seq->registered));
	got = take_handles(seq, seq->registered + n);
	for (long i = 0; i < got; i++)
		doubles += outcome && outcome[i] == TN_SAVED_EXISTING;
	seq->duplicates += doubles;
	if (duplicates && got >= 0)
		*duplicates = doubles;
	return got;
}

int tn_sequence_reset(struct tn_sequence *seq, uint64_t from)
{
	int rc;

	if (!seq)
		return tn_fail(-EINVAL, "tn_sequence_reset: the sequence is missing");
	rc = tn_life_next(life_of(seq, from), TN_LIFE_TO_RESET);
	if (rc < 0)
		return rc;
	seq->n = from;
	seq->ntokens = 0;
	seq->begun = from != 0; /* behind a block there is a Partial one; the first one needs its salt */
	return 0;
}

int tn_sequence_drop(struct tn_sequence *seq)
{
	int rc;

	if (!seq)
		return tn_fail(-EINVAL, "tn_sequence_drop: the sequence is missing");
	rc = tn_life_next(life_of(seq, seq->n ? seq->n - 1 : 0), TN_LIFE_DROP);
	if (rc < 0)
		return rc;
	if (seq->ntokens)
		return tn_fail(-EINVAL, "block %llu has %llu tokens: reset it first", (unsigned long long)seq->n, (unsigned long long)seq->ntokens);
	give_leases_back(seq);
	seq->n = seq->registered = seq->duplicates = 0;
	seq->begun = false;
	return 0;
}

int tn_sequence_info(const struct tn_sequence *seq, struct tn_sequence_info *info)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_sequence_info, tokens);
	struct tn_sequence_info now = {0};

	if (!seq || !info)
		return tn_fail(-EINVAL, "tn_sequence_info: the sequence or info is missing");
	if (tn_abi_check(abi, info))
		return -EINVAL;
	now.blocks = seq->n;
	now.registered = seq->registered;
	now.duplicates = seq->duplicates;
	now.tokens = seq->ntokens;
	tn_abi_out(abi, info, &now);
	return 0;
}
