/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The disk tier: the store's slots, and who gets them.
 *
 * Who finds no slot asks again. What is waited for is always one of these:
 *
 *	slots of the right size whose removal is not durable yet: a commit of the log brings them;
 *	a segment that moves to this size, or whose preparation stops: a commit, or one write;
 *	a file that gets longer: two seconds, or as long as it takes where nothing can go instead;
 *	transfers that are all that keeps some segment from moving, and end by themselves, as those of a device that stands
 *	(core/budget.h) do not: for a second at most;
 *	other saves of a space at its quota, and transfers that hold what was dropped of it: likewise;
 *	the turn to move a segment, which the first one in the core's queue has.
 *
 * The first one gets slots from these or fails with -ENOSPC at once, when there is nothing of its size to evict and no
 * segment that can go. No lease is waited for, and no other save that waits for its caller or for a place.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/trace.h"
#include "tier/disk/disk.h"
#include "tier/disk/headers.h"

#define TRANSFERS_NS 1000000000ull
#define TRANSFERS_AGAIN_NS 10000000ull /* a long load lets go of one block after the other */
#define TRANSFERS_PAUSE_NS 1000000ull  /* looking costs: not for each of many short ones that end */
#define RECORDS_KEPT 2048u	       /* of the registry, for blocks on their way in: half of what the core adds for them */

/* ---- places -------------------------------------------------------------------------------------------------- */

/* When to look again, whether transfers are still in the way. */
static uint64_t look_ns(const struct tn_place_wait *w)
{
	bool some_ended = w->ended_then != w->ended;

	return w->again_ns - (some_ended ? TRANSFERS_AGAIN_NS - TRANSFERS_PAUSE_NS : 0);
}

/*
 * The first one's demand begins, whatever was tried for those before it; or once more, when transfers were in its way and some
 * have ended: then each segment is tried again, and what is of its own size.
 */
static void demand(struct tn_disk *d, struct tn_place_wait *w, uint64_t now_ns)
{
	if (w->demand != 0 && (w->again_ns == 0 || now_ns < look_ns(w)))
		return;
	w->demand = tn_store_demand(d->store);
	w->again_ns = 0;
	w->own_gone = false;
}

/* Transfers are in its way, and it is too early to look again: the first one only takes what others have freed. */
static bool waits_still(const struct tn_disk *d, struct tn_place_wait *w, uint64_t now_ns)
{
	uint64_t free_now, coming;

	if (w->again_ns == 0 || now_ns >= look_ns(w))
		return false;
	tn_store_free_slots(d->store, w->cls, &free_now, &coming);
	if (free_now + coming > 0)
		return false;
	w->due_ns = look_ns(w);
	return true;
}

/* False: for long enough. */
static bool wait_for_transfers(struct tn_place_wait *w, uint64_t now_ns)
{
	uint64_t end_ns = w->stuck_ns + TRANSFERS_NS;

	if (now_ns >= end_ns)
		return false;
	if (w->again_ns == 0) {
		w->again_ns = now_ns + TRANSFERS_AGAIN_NS < end_ns ? now_ns + TRANSFERS_AGAIN_NS : end_ns;
		w->ended_then = w->ended;
	}
	w->due_ns = look_ns(w);
	return true;
}

/*
 * `missing` slots are not there. Slots whose remove record is not durable yet come by themselves: only what they leave
 * open is evicted, of blocks that leave a slot of this size. A segment that moves to this size is waited for instead.
 * If somebody waits in front, the turn to move a segment is theirs.
 */
static int free_slots(struct tn_disk *d, struct tn_place_wait *w, uint32_t missing)
{
	uint64_t free_now, coming, moving, now = tn_now_ns(d->env->clock);
	enum tn_store_move move;
	int growth;

	if (w->stuck_ns == 0)
		w->stuck_ns = now;
	if (w->first) {
		demand(d, w, now);
		tn_store_move(d->store, w->cls, true, w->demand);
	}
	tn_store_free_slots(d->store, w->cls, &free_now, &coming);
	moving = tn_store_moving(d->store, w->cls);
	if (moving == 0 && coming < missing && !w->own_gone) {
		w->again = tn_tier_evict(&d->base, missing - (uint32_t)coming, -1, &w->cls) > 0;
		if (w->again)
			return 0;
		w->own_gone = true;
	}
	if (coming + moving > 0)
		w->stuck_ns = now; /* the second is for transfers, and for older ones that wait for them */
	if (coming + moving > 0 || !w->first)
		return 0;
	/* None of this size may go, so a segment of another size must. */
	move = tn_store_move(d->store, w->cls, false, w->demand);
	if (move == TN_STORE_MOVE_COMES || move == TN_STORE_MOVE_GROWS)
		w->stuck_ns = now;
	if (move == TN_STORE_MOVE_COMES || (move != TN_STORE_MOVE_NONE && wait_for_transfers(w, now)))
		return 0;
	growth = tn_store_growth_error(d->store);
	return tn_fail(-ENOSPC, "no slot for blocks of %llu bytes: everything is pinned or in use%s%s",
		       (unsigned long long)w->block_bytes, growth ? ", and the file cannot get longer: " : "",
		       growth ? strerror(-growth) : "");
}

/* The quota may be taken by what others are filling, or by blocks that were dropped and that transfers still hold: these end by themselves. */
static bool wait_for_quota(const struct tn_disk *d, struct tn_place_wait *w)
{
	uint64_t now = tn_now_ns(d->env->clock);

	if (d->base.space_coming[w->space] <= w->own && !d->base.watch->dropping(d->base.watch->arg))
		return false;
	if (w->stuck_ns == 0)
		w->stuck_ns = now;
	if (w->again_ns > 0 && now >= look_ns(w))
		w->again_ns = 0;
	return wait_for_transfers(w, now);
}

static int place(struct tn_tier_base *t, struct tn_place_wait *w, uint32_t want, uint32_t *out)
{
	struct tn_disk *d = tn_disk_of(t);
	uint32_t asked = want < TN_PLACES_AT_ONCE ? want : TN_PLACES_AT_ONCE, allowed, got;
	int rc;

	if (!tn_store_writable(d->store)) /* evicting would not help */
		return tn_fail(-EROFS, "no device takes writes now");
	if (w->first && waits_still(d, w, tn_now_ns(d->env->clock)))
		return 0;
	allowed = tn_tier_quota(t, w->space, w->quota_bytes / w->block_bytes, asked);
	if (allowed == 0 && wait_for_quota(d, w))
		return 0;
	if (allowed == 0)
		return tn_fail(-ENOSPC, "no slot for %u blocks of %llu bytes: the space's quota of %llu bytes on disk is taken by "
			       "blocks that are pinned or on their way; raise its quota", want, (unsigned long long)w->block_bytes,
			       (unsigned long long)w->quota_bytes);
	got = tn_store_reserve(d->store, w->cls, allowed, out);
	if (got > 0) {
		w->demand = w->stuck_ns = 0;
		w->own_gone = false;
	}
	if (got < allowed) {
		rc = free_slots(d, w, allowed - got);
		if (rc && got == 0)
			return rc;
	}
	return (int)got;
}

static void release(struct tn_tier_base *t, tn_block b, uint32_t slot, int status)
{
	if (status == -EIO)
		tn_store_fail_slot(tn_disk_of(t)->store, slot, true);
	else
		tn_store_unreserve(tn_disk_of(t)->store, slot);
}

/* ---- blocks --------------------------------------------------------------------------------------------------- */

static void fill(struct tn_tier_base *t, tn_block b, uint32_t slot, const struct tn_index_entry *entry)
{
	tn_store_publish(tn_disk_of(t)->store, slot, b, entry);
	TN_TRACE2(block_on_disk, b, slot);
}

static void drain(struct tn_tier_base *t, tn_block b, uint32_t slot, enum tn_leave how)
{
	if (how == TN_LEAVE_BAD || how == TN_LEAVE_EIO)
		tn_store_fail_slot(tn_disk_of(t)->store, slot, how == TN_LEAVE_EIO);
	else
		tn_store_remove(tn_disk_of(t)->store, slot);
}

static tn_block find(const struct tn_tier_base *t, uint32_t slot)
{
	return tn_store_cookie(tn_disk_at(t)->store, slot);
}

static bool evict(const struct tn_tier_base *t, tn_block b, uint32_t slot, const uint32_t *cls)
{
	return !cls || tn_store_frees_for(tn_disk_at(t)->store, slot, *cls);
}

static void used(struct tn_tier_base *t, uint32_t slot, uint32_t tick)
{
	tn_store_touch(tn_disk_of(t)->store, slot, tick);
}

/* ---- the whole ------------------------------------------------------------------------------------------------ */

static int space(struct tn_tier_base *t, const struct tn_shape *s, uint32_t *cls)
{
	struct tn_disk *d = tn_disk_of(t);
	uint32_t *bytes = tn_get(d->env->alloc, s->layers * sizeof(*bytes));
	int rc;

	*cls = TN_CLASS_NONE;
	if (!bytes)
		return tn_fail(-ENOMEM, "space: no memory");
	for (uint32_t i = 0; i < s->layers; i++)
		bytes[i] = s->object_bytes;
	rc = tn_store_class(d->store, s->layers, bytes, cls);
	tn_put(d->env->alloc, bytes, s->layers * sizeof(*bytes));
	return rc;
}

static bool quota(struct tn_tier_base *t, uint64_t bytes, bool take)
{
	if (take)
		return tn_store_charge_write(tn_disk_of(t)->store, bytes);
	tn_store_uncharge_write(tn_disk_of(t)->store, bytes);
	return true;
}

/*
 * How many blocks the disk holds: as many as there are slots, which the sizes of what is stored and of the spaces that are
 * open decide - not which of them came first. It changes when segments move between sizes.
 */
static uint64_t capacity(const struct tn_tier_base *t)
{
	const struct tn_disk *d = tn_disk_at(t);
	uint64_t slots = tn_store_slots(d->store), spare = slots / 32 < 8 ? 8 : slots / 32;
	uint32_t reserve = d->env->max_blocks / 2 < RECORDS_KEPT ? d->env->max_blocks / 2 : RECORDS_KEPT;
	/* Some slots stay free: an evicted block's is not used again before its removal is durable. */
	uint64_t blocks = slots > 2 * spare ? slots - spare : (slots + 1) / 2;

	if (d->env->o->disk_blocks && d->env->o->disk_blocks < blocks)
		blocks = d->env->o->disk_blocks;
	return blocks < d->env->max_blocks - reserve ? blocks : d->env->max_blocks - reserve;
}

static int health(const struct tn_tier_base *t)
{
	return tn_store_writable(tn_disk_at(t)->store) ? 0 : -EROFS;
}

static bool away(const struct tn_tier_base *t, uint32_t place)
{
	return tn_store_offline(tn_disk_at(t)->store, place);
}

static void destroy(struct tn_tier_base *t)
{
	t->policy->ops->destroy(t->policy);
	tn_headers_destroy(tn_disk_of(t)->headers);
	tn_put(tn_disk_of(t)->env->alloc, t, sizeof(struct tn_disk));
}

static const struct tn_tier_ops ops = {
	.size = sizeof(ops),
	.abi = TN_TIER_ABI,
	.name = "disk",
	.traits = {.reach = TN_REACH_DEVICE, .durable = true, .saves = true, .offloads = true},
	.drives = &tn_disk_drive_ops,
	.durable = &tn_disk_durable_ops,
	.space = space,
	.place = place,
	.release = release,
	.fill = fill,
	.drain = drain,
	.find = find,
	.evict = evict,
	.quota = quota,
	.capacity = capacity,
	.health = health,
	.away = away,
	.used = used,
	.open = tn_disk_open,
	.close = tn_disk_close,
	.destroy = destroy,
};

static int make(const struct tn_tier_env *env, struct tn_tier_base **out)
{
	const struct tn_policy_opts po = {
		.capacity = env->max_blocks,
		.target = (uint32_t)env->o->disk_blocks,
		.seed = env->o->seed,
		.alloc = env->alloc,
	};
	const struct tn_policy_ops *policy;
	struct tn_disk *d;
	int rc = env->o->ndirs ? tn_policy_find(env->o->policy, &policy) : 0;

	if (rc || env->o->ndirs == 0)
		return rc;
	d = tn_get(env->alloc, sizeof(*d));
	if (!d)
		return tn_fail(-ENOMEM, "disk tier: no memory");
	d->env = env;
	d->base.ops = &ops;
	d->base.tier = TN_TIER_DISK;
	rc = policy->create(&po, &d->base.policy);
	if (rc)
		tn_put(env->alloc, d, sizeof(*d));
	else
		*out = &d->base;
	return rc;
}

const struct tn_tier_maker tn_disk_tier_maker = {.plan = tn_disk_plan, .make = make};

struct tn_store *tn_disk_tier_store(struct tn_tier_base *t)
{
	return tn_disk_of(t)->store;
}
