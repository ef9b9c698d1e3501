/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's side of sets of blocks. The registry names them: a block's number there is that of its word, and its references are its handles. A word is odd while its
 * block is registered; so a block that is registered anew has another value, whatever its number was used for before.
 */
#include <errno.h>
#include <string.h>
#include <tenuto/blockset.h>

#include "base/clock.h"
#include "base/error.h"
#include "block/block.h"
#include "block/blockset_bytes.h"
#include "block/events.h"

struct tn_blockset {
	struct tn_registry *reg;
	struct tn_events *events;
	uint64_t *words;
	uint32_t *pages; /* per block of the registry */
	uint32_t max_blocks, per_block;
	uint64_t npages, block_bytes, share_bytes;
	unsigned char share[]; /* of share_bytes */
};

static uint64_t pages_bytes(const struct tn_blockset *set)
{
	return tn_array_bytes(set->max_blocks, set->per_block * sizeof(*set->pages));
}

static int create_parts(struct tn_blockset *set)
{
	const struct tn_registry_opts opts = {.max_blocks = set->max_blocks, .alloc = &tn_alloc_system};
	int rc = tn_registry_create(&opts, &set->reg);

	rc = rc ? rc : tn_events_create(TN_BLOCKSET_EVENTS, &tn_alloc_system, &set->events);
	if (rc)
		return rc;
	set->pages = tn_get(&tn_alloc_system, pages_bytes(set));
	return set->pages ? 0 : tn_fail(-ENOMEM, "no memory for the pages of %u blocks", set->max_blocks);
}

int tn_blockset_create(const struct tn_pool_share *share, uint64_t *words, uint32_t max_blocks, struct tn_blockset **out)
{
	struct tn_blockset *set;
	int64_t bytes;
	int rc;

	if (!share || !words || !out || !max_blocks || max_blocks > TN_BLOCKSET_BLOCKS_MAX)
		return tn_fail(-EINVAL, "tn_blockset_create: max_blocks %u: 1 to %u, a share and words are wanted", max_blocks, TN_BLOCKSET_BLOCKS_MAX);
	bytes = tn_pool_share_store(share, NULL, 0);
	if (bytes < 0)
		return (int)bytes;
	set = tn_get(&tn_alloc_system, sizeof(*set) + (size_t)bytes);
	if (!set)
		return tn_fail(-ENOMEM, "no memory for a set of blocks");
	set->words = words;
	set->max_blocks = max_blocks;
	set->per_block = share->geometry.pages_per_block;
	set->npages = share->layout.npages;
	set->block_bytes = tn_geometry_block_bytes(&share->geometry);
	set->share_bytes = (uint64_t)bytes;
	tn_pool_share_store(share, set->share, (size_t)bytes);
	rc = create_parts(set);
	if (rc)
		tn_blockset_destroy(set);
	else
		*out = set;
	return rc;
}

static void raise_event(struct tn_blockset *set, tn_block b, enum tn_block_event_kind kind)
{
	tn_block parent = tn_block_parent(set->reg, b);
	struct tn_block_event e = {.sequence = tn_events_next(set->events), .time_ns = tn_now_ns(&tn_clock_system), .key = tn_block_key(set->reg, b), .bytes = set->block_bytes,
				   .depth = tn_block_depth(set->reg, b), .kind = kind, .tier = TN_TIER_DEVICE};

	if (parent != TN_BLOCK_NONE)
		e.parent = tn_block_key(set->reg, parent);
	tn_events_raise(set->events, &e);
}

/* The word changes before anybody may write to the pages; whoever reads it behind the bytes sees that. */
static void make_void(struct tn_blockset *set, tn_block b)
{
	__atomic_fetch_add(&set->words[b], 1, __ATOMIC_SEQ_CST);
	raise_event(set, b, TN_EVENT_REMOVED);
	tn_block_forget(set->reg, b);
}

void tn_blockset_destroy(struct tn_blockset *set)
{
	tn_block b = TN_BLOCK_NONE;

	if (!set)
		return;
	if (set->pages)
		while ((b = tn_registry_next(set->reg, b)) != TN_BLOCK_NONE)
			__atomic_fetch_add(&set->words[b], 1, __ATOMIC_SEQ_CST);
	tn_put(&tn_alloc_system, set->pages, pages_bytes(set));
	tn_events_destroy(set->events);
	tn_registry_destroy(set->reg);
	tn_put(&tn_alloc_system, set, sizeof(*set) + set->share_bytes);
}

static uint64_t handle_of(const struct tn_blockset *set, tn_block b)
{
	return set->words[b] << 32 | b;
}

int tn_blockset_register(struct tn_blockset *set, const struct tn_key *key, const struct tn_key *parent, const uint32_t *pages, uint64_t *handle)
{
	tn_block b;
	int rc;

	if (!set || !key || !pages || !handle)
		return tn_fail(-EINVAL, "tn_blockset_register: a pointer is missing");
	for (uint32_t i = 0; i < set->per_block; i++)
		if (pages[i] >= set->npages)
			return tn_fail(-EINVAL, "page %u: the pool has %llu", pages[i], (unsigned long long)set->npages);
	rc = tn_block_adopt(set->reg, 0, key, parent, &b);
	if (rc < 0)
		return rc;
	tn_block_ref(set->reg, b);
	if (rc == 0) {
		memcpy(set->pages + (uint64_t)b * set->per_block, pages, set->per_block * sizeof(*pages));
		__atomic_fetch_add(&set->words[b], 1, __ATOMIC_SEQ_CST);
		raise_event(set, b, TN_EVENT_STORED);
	}
	*handle = handle_of(set, b);
	return rc;
}

int tn_blockset_drop(struct tn_blockset *set, uint64_t handle)
{
	uint32_t b = (uint32_t)handle;

	if (!set || b >= tn_registry_records(set->reg) || tn_block_state(set->reg, b) != TN_BLOCK_REGISTERED || handle_of(set, b) != handle)
		return tn_fail(-EINVAL, "handle %llx is none of this set, or was dropped", (unsigned long long)handle);
	tn_block_unpin(set->reg, b);
	if (tn_block_refs(set->reg, b))
		return 0;
	make_void(set, b);
	return 1;
}

long tn_blockset_events(struct tn_blockset *set, uint64_t *cursor, struct tn_block_event *out, size_t max)
{
	if (!set || !cursor || (max && !out))
		return tn_fail(-EINVAL, "tn_blockset_events: a pointer is missing");
	if (*cursor == 0)
		*cursor = tn_events_next(set->events);
	return tn_events_read(set->events, cursor, out, max);
}

int64_t tn_blockset_export(const struct tn_blockset *set, void *buf, size_t len)
{
	struct tn_blockset_head head = {.version = TN_BLOCKSET_VERSION};
	unsigned char *at = buf;
	tn_block b = TN_BLOCK_NONE;
	uint64_t sum;

	if (!set || (len && !buf))
		return tn_fail(-EINVAL, "tn_blockset_export: a pointer is missing");
	memcpy(head.magic, tn_blockset_magic, sizeof(head.magic));
	head.per_block = set->per_block;
	head.cursor = tn_events_next(set->events);
	head.words_address = (uintptr_t)set->words;
	head.words = set->max_blocks;
	head.blocks = tn_registry_count(set->reg);
	head.share_bytes = set->share_bytes;
	head.bytes = tn_blockset_bytes(&head);
	if (head.bytes > len)
		return (int64_t)head.bytes;
	memcpy(at, &head, sizeof(head));
	memcpy(at + sizeof(head), set->share, set->share_bytes);
	at += sizeof(head) + set->share_bytes;
	while ((b = tn_registry_next(set->reg, b)) != TN_BLOCK_NONE) {
		struct tn_blockset_entry e = {.key = tn_block_key(set->reg, b), .value = set->words[b], .word = b};

		memcpy(at, &e, TN_BLOCKSET_ENTRY_BYTES);
		memcpy(at + TN_BLOCKSET_ENTRY_BYTES, set->pages + (uint64_t)b * set->per_block, set->per_block * sizeof(*set->pages));
		at += tn_blockset_entry_bytes(&head);
	}
	sum = tn_hash64(buf, head.bytes - sizeof(sum));
	memcpy(at, &sum, sizeof(sum));
	return (int64_t)head.bytes;
}
