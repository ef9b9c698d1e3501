/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saves, on the owner thread.
 *
 * A save begins with the question which of its blocks are there already, and which of the others the durable tier lets in. What that keeps
 * out may still lie in memory, and is told apart (enum tn_saved). A save copies its blocks into memory if there is a tier for that (they go
 * down later, offload.c), else it writes them straight from the engine's pages (writing.c), as the caller gives the layers. Once the save is
 * committed, its blocks become visible as they are stored, first block first, so that a child never precedes its parent.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/trace.h"
#include "core/budget.h"
#include "core/core.h"
#include "core/near.h"

static uint32_t index_of(const struct tn_write_item *item)
{
	return (uint32_t)(item - item->w->items);
}

/* ---- the beginning ---------------------------------------------------------------------------------- */

/* What the durable tier may know of a block that is not in it yet. */
static void describe(struct tn_save_op *save, uint32_t i, tn_block parent, uint32_t depth, struct tn_policy_block *info)
{
	const struct tn_tier_base *t = save->w.op.cache->row.durable;

	*info = (struct tn_policy_block){
		.key_hash = t ? tn_key_hash(t, &save->w.op.keys[i], save->w.op.space->index) : 0,
		.parent = t ? tn_tier_entry(t, parent) : TN_ENTRY_NONE,
		.depth = depth,
		.partial = save->partial_last && i == save->w.op.n - 1,
		.priority = (int8_t)save->w.op.priority,
	};
}

/* What is in the block's way for another reason than the policy's word is noted. */
static void note_kept_out(struct tn_save_op *save, uint32_t i, enum tn_kept_out why, int error)
{
	save->w.items[i].kept_out = (uint8_t)why;
	if (!save->kept_off)
		save->kept_off = error;
}

static enum tn_kept_out why_not(int rc)
{
	switch (rc) {
	case 0:
		return TN_KEPT_BY_POLICY;
	case -EBUSY:
		return TN_KEPT_BY_HOLDERS;
	case -EDQUOT:
		return TN_KEPT_BY_BUDGET;
	default:
		return TN_KEPT_BY_DEVICES;
	}
}

/* The block before it is nowhere. The policy is not asked, but learns at the end what it missed. */
static void orphan(struct tn_save_op *save, uint32_t i)
{
	struct tn_shares *shares = &save->w.op.cache->blocks.shares;
	struct tn_tier_base *t = save->w.op.cache->row.durable;
	struct tn_space *space = save->w.op.space;

	note_kept_out(save, i, TN_KEPT_BY_PARENT, i == 0 ? -ENOENT : 0);
	if (!tn_space_in(space, t))
		return;
	save->w.items[i].offered = tn_shares_decided(shares, t, space->index, &save->w.op.keys[i]) == TN_POLICY_UNDECIDED;
	tn_shares_note(shares, t, space->index, &save->w.op.keys[i], false);
}

/* Whether the durable tier lets the block in. */
static bool let_in(struct tn_save_op *save, uint32_t i, struct tn_policy_block *info)
{
	struct tn_shares *shares = &save->w.op.cache->blocks.shares;
	const struct tn_key *key = &save->w.op.keys[i];
	struct tn_space *space = save->w.op.space;
	struct tn_tier_base *t = save->w.op.cache->row.durable;
	bool may;
	int rc;

	if (!tn_space_in(space, t) || tn_space_quota(space, t->tier) < space->shape.slot_bytes) {
		note_kept_out(save, i, TN_KEPT_BY_QUOTA, 0);
		return false;
	}
	may = tn_session_has_share(save->w.op.session, t);
	info->decided = tn_shares_decided(shares, t, space->index, key);
	rc = may ? tn_tier_admit(t, info, space->shape.slot_bytes) : -EAGAIN;
	tn_shares_note(shares, t, space->index, key, rc > 0);
	save->w.items[i].offered = may && info->decided == TN_POLICY_UNDECIDED;
	if (rc <= 0)
		note_kept_out(save, i, may ? why_not(rc) : TN_KEPT_BY_SHARE, rc);
	return rc > 0;
}

/* For records: of the lowest tier first. */
static bool evict_some(struct tn_cache *cache)
{
	for (unsigned t = TN_TIERS_MAX; t-- > 0;)
		if (cache->row.tier[t] && tn_tier_evict(cache->row.tier[t], 16, -1, NULL) > 0)
			return true;
	return false;
}

/* A record for the new block, in state Complete: its key is known, its bytes are not stored yet. */
static int take_record(struct tn_save_op *save, uint32_t i)
{
	struct tn_cache *cache = save->w.op.cache;
	const struct tn_key *key = &save->w.op.keys[i], *parent = i ? key - 1 : &save->parent;
	tn_block b;
	int rc = tn_block_take(cache->registry, save->w.op.space->index, key, parent, &b);

	if (rc == -ENOSPC && evict_some(cache))
		rc = tn_block_take(cache->registry, save->w.op.space->index, key, parent, &b);
	if (rc == 0)
		save->w.items[i].block = b;
	return rc;
}

/* Asks for the block to be let in; if it is, it counts as one of the tier's from now on. */
static void admit(struct tn_save_op *save, uint32_t i, struct tn_policy_block *info)
{
	struct tn_cache *cache = save->w.op.cache;
	struct tn_write_item *item = &save->w.items[i];

	if (!let_in(save, i, info))
		return;
	if (take_record(save, i) == 0) {
		item->admitted = true;
		tn_session_hold(save->w.op.session, cache->row.durable->tier);
		tn_shares_took(&cache->blocks.shares, cache->row.durable, item->block);
		tn_block_let_in(&cache->blocks, cache->row.durable, item->block, info);
		return;
	}
	note_kept_out(save, i, TN_KEPT_BY_HOLDERS, -EBUSY);
	if (cache->row.durable->ops->quota)
		cache->row.durable->ops->quota(cache->row.durable, save->w.op.shape->slot_bytes, false);
}

/* The longer of both times to live counts. */
static void extend(struct tn_save_op *save, tn_block b)
{
	struct tn_cache *cache = save->w.op.cache;
	struct tn_tier_base *t = cache->row.durable;

	if (tn_watch_extend(cache->watch, b, save->ttl_ns) && t && tn_tier_has(t, b))
		t->ops->durable->update(t, tn_tier_place_of(t, b));
}

/* The block is there. If only in memory, it is offered to the durable tier once more. */
static void begin_visible(struct tn_save_op *save, uint32_t i, tn_block b, tn_block parent, uint32_t depth)
{
	struct tn_cache *cache = save->w.op.cache;
	struct tn_write_item *item = &save->w.items[i];
	struct tn_policy_block info;

	item->state = TN_WRITE_EXISTING;
	item->block = b;
	tn_block_ref(cache->registry, b); /* not to be evicted for the blocks behind it; until the end of begin */
	extend(save, b); /* also if its time is over: the bytes are the key's */
	tn_block_touch(&cache->blocks, b, save->partial_last && i == save->w.op.n - 1);
	item->saved = TN_SAVED_EXISTING;
	if (tn_block_is_kept(&cache->blocks, b))
		return;
	describe(save, i, parent, depth, &info);
	item->saved = TN_SAVED_HOST_ONLY;
	if (!let_in(save, i, &info))
		return;
	tn_shares_took(&cache->blocks.shares, cache->row.durable, b);
	tn_block_let_in(&cache->blocks, cache->row.durable, b, &info);
	tn_dirty_push(&cache->dirty, b, cache->row.durable);
	item->saved = TN_SAVED_STORED;
}

/* *cut: the block before this one is neither there nor on its way. */
static void begin_item(struct tn_save_op *save, uint32_t i, tn_block *parent, uint32_t depth, bool *cut)
{
	struct tn_cache *cache = save->w.op.cache;
	struct tn_registry *reg = cache->registry;
	struct tn_write_item *item = &save->w.items[i];
	tn_block b = tn_registry_find_one(reg, save->w.op.space->index, &save->w.op.keys[i], false);
	struct tn_policy_block info;

	if (b != TN_BLOCK_NONE && tn_block_is_local(&cache->blocks, b)) {
		begin_visible(save, i, b, *parent, depth);
		*parent = b;
		*cut = false;
		return;
	}
	if (*cut) {
		orphan(save, i);
	} else {
		describe(save, i, *parent, depth, &info);
		admit(save, i, &info);
	}
	*parent = item->block;
	if (!item->admitted && !*cut && tn_space_in(save->w.op.space, cache->row.memory) && take_record(save, i) == 0)
		*parent = TN_BLOCK_NONE; /* in memory only: no parent in the durable tier's eyes */
	if (item->block != TN_BLOCK_NONE) {
		item->state = TN_WRITE_PLACE;
		save->w.unplaced++;
	} else {
		item->state = TN_WRITE_REJECTED;
		item->saved = TN_SAVED_REJECTED;
		*cut = save->chained;
	}
}

/* Something of it, its next layer or the commit, is its caller's to give. */
static bool waits_for_caller(const struct tn_save_op *save)
{
	return !save->held && !save->w.op.cancelled && (save->w.ready < save->w.op.shape->layers || !tn_op_is_committed(&save->w.op));
}

/* Whether that block of an earlier save has the key and is on its way. Every look is counted, because callers choose how many blocks there are. */
static bool brings(const struct tn_save_op *before, uint32_t i, const struct tn_save_op *save, const struct tn_key *key)
{
	save->w.op.cache->parent_steps++;
	return before->w.op.space == save->w.op.space && !before->held && !before->w.op.cancelled && before->shown <= i &&
	       before->w.items[i].state < TN_WRITE_EXISTING && tn_key_eq(&before->w.op.keys[i], key);
}

/*
 * A save that began before this one and whose last block has that key; NULL: there is none. Only last blocks are looked at, because parts of a prompt
 * follow each other, and callers choose how many blocks there are. One that needs nothing from a caller is best, then one of the same session.
 */
static const struct tn_write_item *coming(const struct tn_save_op *save, const struct tn_key *key)
{
	const struct tn_write_item *found = NULL;

	for (const struct tn_list *pos = save->w.op.link.prev; pos != &save->w.op.cache->saves; pos = pos->prev) {
		const struct tn_save_op *before = tn_container_of(pos, struct tn_save_op, w.op.link);
		uint32_t last = before->w.op.n - 1;

		if (!brings(before, last, save, key))
			continue;
		if (!waits_for_caller(before))
			return &before->w.items[last];
		if (!found || before->w.op.session == save->w.op.session)
			found = &before->w.items[last];
	}
	return found;
}

/* Blocks that are there, and those before them: no more than one operation has. The last batch does it for all. */
static void touch_back(struct tn_save_op *save, tn_block before)
{
	struct tn_cache *cache = save->w.op.cache;

	if (save->w.op.more)
		return;
	for (uint32_t i = tn_request_goes_back(&cache->blocks) ? save->w.op.n : 0; i-- > 0;)
		if (save->w.items[i].block != TN_BLOCK_NONE)
			tn_block_touch_back(&cache->blocks, save->w.items[i].block);
	tn_chain_touch_back(&cache->blocks, before, cache->o.max_op_blocks);
}

/* Whether the block before the first one was given and is nowhere. *item: what is on its way of it, or NULL. */
static bool is_cut(const struct tn_save_op *save, tn_block parent, const struct tn_write_item **item)
{
	const struct tn_blocks *bl = &save->w.op.cache->blocks;

	if (!save->chained || tn_key_is_zero(&save->parent) ||
	    (parent != TN_BLOCK_NONE && !tn_block_lies_nowhere(bl, parent) && !tn_block_is_dropped(bl, parent)))
		return false;
	*item = coming(save, &save->parent);
	return !*item;
}

static void find_work(struct tn_save_op *save)
{
	struct tn_cache *cache = save->w.op.cache;
	struct tn_registry *reg = cache->registry;
	tn_block parent = TN_BLOCK_NONE, first;
	const struct tn_write_item *item = NULL;
	bool cut;

	save->heard_ns = tn_now_ns(&cache->clock);
	save->chained = save->w.op.space->match_rule == TN_MATCH_PREFIX;
	if (!tn_key_is_zero(&save->parent))
		parent = tn_registry_find_one(reg, save->w.op.space->index, &save->parent, true);
	first = parent;
	cut = is_cut(save, parent, &item);
	if (item || cut)
		parent = item ? item->block : TN_BLOCK_NONE;
	if (item)
		save->depth = item->w->save->depth + index_of(item) + 1;
	else if (parent != TN_BLOCK_NONE)
		save->depth = tn_block_depth(reg, parent) + 1;
	else if (save->w.op.goes_on || cut)
		save->depth = 1; /* the block before it was not let in */
	tn_request_begins(&cache->blocks, parent);
	for (uint32_t i = 0; i < save->w.op.n; i++)
		begin_item(save, i, &parent, save->depth + i, &cut);
	touch_back(save, first);
	for (uint32_t i = 0; i < save->w.op.n; i++)
		if (save->w.items[i].state == TN_WRITE_EXISTING)
			tn_block_unpin(reg, save->w.items[i].block);
	if (first != TN_BLOCK_NONE)
		tn_block_release(&cache->blocks, first);
	tn_places_join(&save->w);
}

void tn_save_begins(struct tn_save_op *save)
{
	struct tn_op *op = &save->w.op;

	op->active = true;
	TN_COUNT(op, saves, !op->goes_on);
	op->session->saves += !op->goes_on;
	tn_list_push(&op->cache->saves, &op->link);
	save->held = __atomic_load_n(&op->space->dropping, __ATOMIC_RELAXED);
	if (!save->held)
		find_work(save);
}

/* ---- from there to the end --------------------------------------------------------------------------- */

/* The block is on its way no more: it becomes visible, or it does not. */
static void arrived(const struct tn_write_item *item)
{
	struct tn_cache *cache = item->w->op.cache;

	if (item->admitted)
		tn_session_let_go(item->w->op.session, cache->row.durable->tier);
	if (cache->row.memory && item->tier == cache->row.memory->tier)
		tn_session_let_go(item->w->op.session, cache->row.memory->tier);
}

/* A block that does not become visible: its place, its entry and its record are free again. */
static void withdraw(struct tn_write_item *item)
{
	struct tn_cache *cache = item->w->op.cache;

	tn_item_release(item);
	if (item->state == TN_WRITE_EXISTING || item->block == TN_BLOCK_NONE)
		return;
	if (item->admitted)
		tn_tier_remove(cache->row.durable, item->block);
	tn_block_reset(cache->registry, item->block);
	item->block = TN_BLOCK_NONE;
}

/* 0, or -EINVAL: a layer was given with an event that there is not. */
static int update_ready(struct tn_save_op *save)
{
	struct tn_writing *w = &save->w;

	for (; w->ready < w->op.shape->layers; w->ready++) {
		int final = tn_face_layer_is_final(tn_op_region(&w->op), w->op.number, w->ready);

		if (final != 1)
			return final;
	}
	return 0;
}

/* What lies in memory goes on from there. */
static void goes_down(struct tn_save_op *save, tn_block b, bool admitted)
{
	struct tn_cache *cache = save->w.op.cache;

	if (admitted)
		tn_dirty_push(&cache->dirty, b, cache->row.durable);
	else
		tn_offload_further(&cache->offloads, b, TN_OFFER_STORED);
}

static void arrives(struct tn_write_item *item, tn_block b)
{
	bool in_memory = tn_item_reach(item) == TN_REACH_MEMORY;

	tn_writing_publish(item, b);
	tn_item_kept_near(item, b);
	if (in_memory)
		goes_down(item->w->save, b, item->admitted);
	item->saved = item->admitted ? TN_SAVED_STORED : TN_SAVED_HOST_ONLY;
}

/* The block failed verification, and whoever pinned it keeps its record: the new bytes go there. */
static void take_over(struct tn_write_item *item, tn_block known)
{
	struct tn_writing *w = item->w;
	struct tn_cache *cache = w->op.cache;
	struct tn_policy_block info;

	describe(w->save, index_of(item), tn_block_parent(cache->registry, known),
			 tn_block_depth(cache->registry, known), &info);
	if (item->admitted)
		tn_tier_remove(cache->row.durable, item->block);
	tn_block_reset(cache->registry, item->block);
	item->block = known;
	if (item->admitted)
		tn_block_let_in(&cache->blocks, cache->row.durable, known, &info);
	tn_watch_expire_at(cache->watch, known, w->save->ttl_ns);
	arrives(item, known);
}

/*
 * Somebody else has saved the block meanwhile: theirs stays, and registering takes this record back. If theirs is kept out of the
 * durable tier and this one was let in, it goes there all the same; and memory takes what only a tier further down has.
 */
static void was_there(struct tn_write_item *item, tn_block known)
{
	struct tn_writing *w = item->w;
	struct tn_cache *cache = w->op.cache;
	struct tn_registry *reg = cache->registry;
	struct tn_policy_block info;
	bool wanted;

	item->saved = tn_block_is_kept(&cache->blocks, known) ? TN_SAVED_EXISTING : TN_SAVED_HOST_ONLY;
	if (item->admitted)
		tn_tier_remove(cache->row.durable, item->block);
	tn_block_register(reg, item->block, &item->block);
	assert(item->block == known);
	item->state = TN_WRITE_EXISTING;
	extend(w->save, known);
	wanted = item->admitted && item->saved == TN_SAVED_HOST_ONLY;
	if (wanted) {
		describe(w->save, index_of(item), tn_block_parent(reg, known), tn_block_depth(reg, known), &info);
		tn_block_let_in(&cache->blocks, cache->row.durable, known, &info);
		item->saved = TN_SAVED_STORED;
	}
	if (tn_item_reach(item) == TN_REACH_MEMORY ? !tn_block_is_local(&cache->blocks, known) : wanted)
		tn_writing_publish(item, known);
	if (wanted && tn_tier_residency(cache->row.durable, known) == TN_FILLING)
		tn_dirty_push(&cache->dirty, known, cache->row.durable);
	tn_item_release(item);
}

static void becomes_visible(struct tn_write_item *item)
{
	struct tn_writing *w = item->w;
	struct tn_cache *cache = w->op.cache;
	tn_block b = item->block, known;

	known = tn_registry_find_one(cache->registry, w->op.space->index, &w->op.keys[index_of(item)], false);
	if (known != TN_BLOCK_NONE && tn_block_is_dropped(&cache->blocks, known)) {
		tn_item_failed(item, tn_fail(-EBUSY, "block %u was dropped, and somebody still holds it", index_of(item)));
		withdraw(item);
		return;
	}
	if (known != TN_BLOCK_NONE && tn_block_lies_nowhere(&cache->blocks, known)) {
		take_over(item, known);
		return;
	}
	if (known != TN_BLOCK_NONE) {
		was_there(item, known);
		return;
	}
	tn_block_register(cache->registry, b, &item->block);
	tn_block_registered(&cache->blocks, w->op.space->index);
	tn_watch_expire_at(cache->watch, b, w->save->ttl_ns);
	if (item->admitted) /* registering cleared it */
		tn_block_set_residency(cache->registry, b, cache->row.durable->tier, TN_FILLING);
	arrives(item, b);
}

/* What became of a block, as decided here: whoever has the region may change its byte. */
static uint8_t result_of(const struct tn_save_op *save, uint32_t i)
{
	uint8_t saved = save->w.items[i].saved;

	if (save->given_up)
		return saved == TN_SAVED_NOT ? TN_SAVED_FAILED : saved;
	return save->w.op.cancelled ? TN_SAVED_NOT : saved;
}

/* Who has the slots that blocks could have had. */
static void log_kept_out(struct tn_save_op *save, const uint32_t *why)
{
	struct tn_cache *cache = save->w.op.cache;
	const struct tn_session *most = cache->own;
	struct tn_tier_base *t = cache->row.durable;

	if (!t || why[TN_KEPT_BY_HOLDERS] + why[TN_KEPT_BY_SHARE] == 0 || !tn_log_may(&cache->kept_out_lines, &cache->log, tn_now_ns(&cache->clock)))
		return;
	for_each_session(session, cache)
		if (session->held[t->tier] > most->held[t->tier])
			most = session;
	tn_log(&cache->log, TN_LOG_WARN, "%u blocks of a save were not admitted, because %s; of %llu slots saves under way hold %llu, those of session %u "
	       "%llu, and leases and loads hold others (statistics rejected_*)",
	       why[TN_KEPT_BY_HOLDERS] + why[TN_KEPT_BY_SHARE] + why[TN_KEPT_BY_PARENT],
	       why[TN_KEPT_BY_SHARE] ? "the saves of its process hold their part" : "nothing can go for them",
	       (unsigned long long)t->ops->capacity(t), (unsigned long long)cache->held[t->tier], most == cache->own ? 0 : most->place + 1,
	       (unsigned long long)most->held[t->tier]);
}

static void count_kept_out(struct tn_save_op *save)
{
	const struct tn_op *op = &save->w.op;
	uint32_t why[TN_KEPT_KINDS] = {0};

	for (uint32_t i = 0; i < op->n; i++)
		why[save->w.items[i].kept_out] += result_of(save, i) == TN_SAVED_REJECTED;
	TN_COUNT(op, rejected_policy_blocks, why[TN_KEPT_BY_POLICY]);
	TN_COUNT(op, rejected_held_blocks, why[TN_KEPT_BY_HOLDERS]);
	TN_COUNT(op, rejected_share_blocks, why[TN_KEPT_BY_SHARE]);
	TN_COUNT(op, rejected_budget_blocks, why[TN_KEPT_BY_BUDGET]);
	TN_COUNT(op, rejected_quota_blocks, why[TN_KEPT_BY_QUOTA]);
	TN_COUNT(op, rejected_devices_blocks, why[TN_KEPT_BY_DEVICES]);
	TN_COUNT(op, rejected_parent_blocks, why[TN_KEPT_BY_PARENT]);
	log_kept_out(save, why);
}

/* Tells what became of the blocks; returns how many were stored. */
static uint32_t tell_results(struct tn_save_op *save)
{
	const struct tn_op *op = &save->w.op;
	uint32_t n[TN_SAVED_KINDS] = {0};
	uint8_t *saved = tn_face_saved(tn_op_region(op), op->number);
	int error = op->cancelled && !save->given_up ? 0 : save->w.error;
	uint64_t bytes;

	for (uint32_t i = 0; i < op->n; i++) {
		saved[i] = result_of(save, i);
		n[result_of(save, i)]++;
	}
	if (n[TN_SAVED_REJECTED] > 0)
		count_kept_out(save);
	if (!op->cancelled && !error && n[TN_SAVED_HOST_ONLY] + n[TN_SAVED_REJECTED] > 0)
		error = save->kept_off;
	tn_face_tell_saved(tn_op_region(op), op->number, n, TN_SAVED_KINDS, error);
	TN_COUNT(op, saved_blocks, n[TN_SAVED_STORED]);
	TN_COUNT(op, existing_blocks, n[TN_SAVED_EXISTING]);
	TN_COUNT(op, host_only_blocks, n[TN_SAVED_HOST_ONLY]);
	TN_COUNT(op, admission_rejected_blocks, n[TN_SAVED_REJECTED]);
	TN_COUNT(op, save_failed_blocks, n[TN_SAVED_FAILED]);
	bytes = (uint64_t)(n[TN_SAVED_STORED] + n[TN_SAVED_HOST_ONLY]) * op->shape->layers * op->shape->object_bytes;
	TN_TRACE3(saved, n[TN_SAVED_STORED], n[TN_SAVED_REJECTED], bytes);
	TN_COUNT(op, saved_bytes, bytes);
	op->session->saved_bytes += bytes;
	return n[TN_SAVED_STORED];
}

/*
 * Before the first block is shown: whether to wait for the one before it, which is on its way. Of the same session's saves each is waited for until it ends,
 * because that session's caller is the one who waits; of another session's only one that needs nothing but the devices; and none whose pages lie on a
 * device that stands, unless this save's do, too. Else this save's blocks are not let in after all: nobody is made to wait for another caller.
 */
static bool waits_for_parent(struct tn_save_op *save)
{
	const struct tn_write_item *item = NULL;
	tn_block parent;

	if (save->shown > 0 || !save->chained || tn_key_is_zero(&save->parent))
		return false;
	parent = tn_registry_find_one(save->w.op.cache->registry, save->w.op.space->index, &save->parent, false);
	save->cut = is_cut(save, parent, &item) || (item && tn_op_stands(&item->w->op) && !tn_op_stands(&save->w.op)) ||
		    (item && item->w->op.session != save->w.op.session && waits_for_caller(item->w->save));
	return item && !save->cut;
}

/* Somebody else has saved the block meanwhile. */
static bool is_there(const struct tn_write_item *item)
{
	const struct tn_writing *w = item->w;
	tn_block b = tn_registry_find_one(w->op.cache->registry, w->op.space->index, &w->op.keys[index_of(item)], false);

	return b != TN_BLOCK_NONE && tn_block_is_local(&w->op.cache->blocks, b);
}

/* A block of which all is stored, and that nobody could find. */
static void reject_orphan(struct tn_write_item *item)
{
	note_kept_out(item->w->save, index_of(item), TN_KEPT_BY_PARENT, index_of(item) == 0 ? -ENOENT : 0);
	item->saved = TN_SAVED_REJECTED;
	withdraw(item);
}

/* What is stored does not wait for the blocks behind it. */
static bool show(struct tn_save_op *save)
{
	uint32_t before = save->shown;

	if (waits_for_parent(save))
		return false;

	for (; save->shown < save->w.op.n; save->shown++) {
		struct tn_write_item *item = &save->w.items[save->shown];

		if (item->state < TN_WRITE_STORED || item->inflight > 0)
			break;
		arrived(item);
		if (item->state == TN_WRITE_STORED && save->cut && !is_there(item))
			reject_orphan(item);
		else if (item->state == TN_WRITE_STORED)
			becomes_visible(item);
		else
			withdraw(item);
		save->cut = save->chained && (item->saved == TN_SAVED_REJECTED || item->saved == TN_SAVED_FAILED);
	}
	return save->shown > before;
}

/* The durable tier's policy is told that the prompt goes on with block i of the save. */
static void goes_on_with(struct tn_save_op *save, struct tn_tier_base *t, uint32_t i)
{
	const struct tn_key *before = i > 0 ? &save->w.op.keys[i - 1] : &save->parent;
	uint16_t space = save->w.op.space->index;

	tn_tier_request(t, tn_registry_find_one(save->w.op.cache->registry, space, before, false),
			tn_key_is_zero(before) ? 0 : tn_key_hash(t, before, space));
}

/*
 * The durable tier's policy learns of the blocks that it was asked about only here, when the save has come to its end as a whole: a save that is given
 * up teaches nothing. Blocks that were there before the save are not learned again: the request goes on behind them.
 */
static void teach(struct tn_save_op *save)
{
	struct tn_tier_base *t = save->w.op.cache->row.durable;
	bool asked = false;

	for (uint32_t i = 0; t && i < save->w.op.n; i++) {
		struct tn_write_item *item = &save->w.items[i];
		struct tn_policy_block info;

		if (!item->offered || item->saved == TN_SAVED_NOT || item->saved == TN_SAVED_FAILED)
			continue;
		if (!asked)
			goes_on_with(save, t, i);
		asked = true;
		describe(save, i, TN_BLOCK_NONE, save->depth + i, &info);
		tn_tier_learn(t, item->block, &info);
	}
}

static void finish(struct tn_save_op *save)
{
	bool commit = !save->w.op.cancelled;
	uint32_t stored;

	if (commit)
		show(save);
	for (uint32_t i = save->shown; i < save->w.op.n; i++) {
		arrived(&save->w.items[i]);
		withdraw(&save->w.items[i]);
	}
	if (commit)
		teach(save);
	stored = tell_results(save);
	tn_list_del(&save->w.op.link);
	save->w.op.active = false;
	save->w.op.cache->places.ended++;
	tn_schedule_give_back(&save->w.op, save->admitted_bytes);
	if (commit && stored > 0 && save->w.op.cache->o.durability_ms == 0)
		tn_save_flush(&save->w.op.cache->flushes, save);
	else
		tn_op_drained(&save->w.op);
}

static void cancel(struct tn_save_op *save)
{
	save->w.op.cancelled = true;
	tn_places_leave(&save->w);
}

static uint64_t given_up_ns(const struct tn_save_op *save)
{
	return save->heard_ns + __atomic_load_n(&save->w.op.cache->save_idle_ns, __ATOMIC_RELAXED);
}

/* Its slots are for others: what its caller does with the pages from now on goes nowhere. */
static void give_up(struct tn_save_op *save, uint64_t now_ns)
{
	const struct tn_session *session = save->w.op.session;
	struct tn_cache *cache = save->w.op.cache;

	if (tn_log_may(&cache->lines, &cache->log, now_ns))
		tn_log(&cache->log, TN_LOG_WARN, "a save of %u blocks of session %u is given up: %u of %u layers came, and nothing more for %llu ms",
		       save->w.op.n, session == cache->own ? 0 : session->place + 1, save->w.ready, save->w.op.shape->layers,
		       (unsigned long long)(now_ns - save->heard_ns) / 1000000u);
	save->w.error = -ECANCELED;
	save->given_up = true;
	cancel(save);
}

static bool step(struct tn_save_op *save, uint64_t now_ns)
{
	uint32_t ready = save->w.ready;
	bool busy = false;
	int rc;

	if (tn_op_is_cancelled(&save->w.op) && !save->w.op.cancelled) {
		cancel(save);
		busy = true;
	}
	if (save->held && !save->w.op.cancelled) {
		if (__atomic_load_n(&save->w.op.space->dropping, __ATOMIC_RELAXED))
			return false;
		save->held = false;
		find_work(save);
		return true;
	}
	rc = save->w.op.cancelled ? 0 : update_ready(save);
	if (rc) {
		tn_op_tell_status(&save->w.op, rc);
		cancel(save);
	}
	if (save->w.ready > ready)
		save->heard_ns = now_ns;
	if (waits_for_caller(save) && now_ns >= given_up_ns(save))
		give_up(save, now_ns);
	if (tn_writing_step(&save->w, tn_op_is_committed(&save->w.op), &busy)) {
		if (!save->w.op.cancelled && waits_for_parent(save))
			return busy;
		finish(save);
		return true;
	}
	if (!save->w.op.cancelled && tn_op_is_committed(&save->w.op))
		busy |= show(save);
	return busy;
}

bool tn_saves_step(struct tn_cache *cache, uint64_t now_ns)
{
	struct tn_list *pos, *tmp;
	bool busy = false;

	tn_list_for_each_safe(pos, tmp, &cache->saves)
		busy |= step(tn_container_of(pos, struct tn_save_op, w.op.link), now_ns);
	return busy;
}

uint64_t tn_saves_due(const struct tn_cache *cache)
{
	uint64_t due = TN_FOREVER;

	for (const struct tn_list *pos = cache->saves.next; pos != &cache->saves; pos = pos->next) {
		const struct tn_save_op *save = tn_container_of(pos, struct tn_save_op, w.op.link);

		if (waits_for_caller(save) && given_up_ns(save) < due)
			due = given_up_ns(save);
	}
	return due;
}

bool tn_saves_wait_for_others(const struct tn_cache *cache)
{
	for (const struct tn_list *pos = cache->saves.next; pos != &cache->saves; pos = pos->next) {
		const struct tn_save_op *save = tn_container_of(pos, struct tn_save_op, w.op.link);

		if (save->w.op.session != cache->own && save->w.ready < save->w.op.shape->layers)
			return true;
	}
	return false;
}

/* Whether a layer was given whose bytes become final when a device says so, which wakes nobody. */
bool tn_save_devices_pending(const struct tn_cache *cache)
{
	for (const struct tn_list *pos = cache->saves.next; pos != &cache->saves; pos = pos->next) {
		const struct tn_save_op *save = tn_container_of(pos, struct tn_save_op, w.op.link);

		if (save->w.ready < save->w.op.shape->layers &&
		    tn_face_layer_is_devices(tn_op_region(&save->w.op), save->w.op.number, save->w.ready))
			return true;
	}
	return false;
}
