/* SPDX-License-Identifier: Apache-2.0 */
/* What is told about blocks to the outside - events and snapshots -, and when they expire. Owner thread. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "block/events.h"
#include "core/core.h"

#define EXPIRY_SCAN 65536u	    /* blocks looked at in one step */
#define EXPIRY_EVERY_NS 100000000ull /* between steps */
#define SECOND_NS 1000000000ull
#define PART_SCAN 4096u		     /* blocks looked at for a part of a snapshot */

struct follower {
	struct tn_events *ring;
	const uint64_t *spaces; /* shared bits */
};

struct tn_watch {
	struct tn_watch_opts o;
	struct follower follower[TN_SESSIONS_MAX];
	uint32_t nfollowers;
	uint32_t *expiry;   /* shared, by block: second after which it is not found; 0: none */
	uint32_t ttl_used; /* shared */
	uint32_t cursor;   /* of the look for expired blocks */
	uint64_t due_ns;
};

int tn_watch_create(const struct tn_watch_opts *opts, struct tn_watch **out)
{
	struct tn_watch *w = tn_get(opts->alloc, sizeof(*w));
	uint32_t *expiry = tn_get(opts->alloc, tn_array_bytes(opts->max_blocks, sizeof(*expiry)));

	if (!w || !expiry) {
		tn_put(opts->alloc, w, sizeof(*w));
		tn_put(opts->alloc, expiry, tn_array_bytes(opts->max_blocks, sizeof(*expiry)));
		return tn_fail(-ENOMEM, "no memory to watch %u blocks", opts->max_blocks);
	}
	w->o = *opts;
	w->expiry = expiry;
	*out = w;
	return 0;
}

void tn_watch_destroy(struct tn_watch *w)
{
	const struct tn_alloc *a;

	if (!w)
		return;
	a = w->o.alloc;
	tn_put(a, w->expiry, tn_array_bytes(w->o.max_blocks, sizeof(*w->expiry)));
	tn_put(a, w, sizeof(*w));
}

/* ---- events ------------------------------------------------------------------------------------------------- */

static void fill_event(struct tn_watch *w, tn_block b, enum tn_tier tier, enum tn_block_event_kind kind,
		       struct tn_block_event *e)
{
	struct tn_registry *reg = w->o.registry;
	tn_block parent = tn_block_parent(reg, b);

	*e = (struct tn_block_event){
		.time_ns = tn_now_ns(w->o.clock),
		.key = tn_block_key(reg, b),
		.depth = tn_block_depth(reg, b),
		.space = tn_block_space(reg, b),
		.kind = (uint8_t)kind,
		.tier = (uint8_t)tier,
	};
	if (parent != TN_BLOCK_NONE)
		e->parent = tn_block_key(reg, parent);
	if (w->o.spaces[e->space])
		e->bytes = (uint64_t)w->o.spaces[e->space]->shape.object_bytes * w->o.spaces[e->space]->shape.layers;
}

static bool is_among(const uint64_t *spaces, uint32_t number)
{
	return __atomic_load_n(&spaces[number / 64], __ATOMIC_ACQUIRE) >> number % 64 & 1;
}

void tn_watch_raise(struct tn_watch *w, tn_block b, enum tn_tier tier, enum tn_block_event_kind kind)
{
	struct tn_block_event e;

	fill_event(w, b, tier, kind, &e);
	tn_events_raise(w->o.events, &e);
	for (uint32_t i = 0; i < w->nfollowers; i++)
		if (is_among(w->follower[i].spaces, e.space))
			tn_events_raise(w->follower[i].ring, &e);
}

void tn_watch_repeat(struct tn_watch *w, tn_block b)
{
	for_each_tier(t, w->o.row)
		if (tn_tier_has(t, b))
			tn_watch_raise(w, b, t->tier, TN_EVENT_STORED);
}

int tn_watch_follow(struct tn_watch *w, struct tn_events *ring, const uint64_t *spaces)
{
	if (w->nfollowers == TN_SESSIONS_MAX)
		return -EAGAIN;
	w->follower[w->nfollowers++] = (struct follower){ring, spaces};
	return 0;
}

void tn_watch_unfollow(struct tn_watch *w, const uint64_t *spaces)
{
	uint32_t i = 0;

	while (i < w->nfollowers && w->follower[i].spaces != spaces)
		i++;
	if (i < w->nfollowers)
		w->follower[i] = w->follower[--w->nfollowers];
}

uint16_t tn_space_index(const struct tn_space *space)
{
	return space->index;
}

void tn_watch_snapshot(struct tn_watch *w, struct tn_watch_snapshot *s)
{
	struct tn_registry *reg = w->o.registry;

	for (tn_block b = tn_registry_next(reg, TN_BLOCK_NONE); b != TN_BLOCK_NONE; b = tn_registry_next(reg, b))
		for_each_tier(t, w->o.row) {
			struct tn_block_event e;

			if (!tn_tier_has(t, b))
				continue;
			fill_event(w, b, t->tier, TN_EVENT_STORED, &e);
			s->fn(s->arg, &e);
			s->count++;
		}
	s->cursor = tn_events_next(w->o.events);
}

void tn_watch_part(struct tn_watch *w, struct tn_watch_part *p)
{
	struct tn_registry *reg = w->o.registry;

	p->n = 0;
	for (uint32_t looked = 0; looked < PART_SCAN && p->max - p->n >= TN_TIERS_MAX; looked++) {
		p->at = tn_registry_next(reg, p->at);
		if (p->at == TN_BLOCK_NONE)
			return;
		if (p->spaces && !is_among(p->spaces, tn_block_space(reg, p->at)))
			continue;
		for_each_tier(t, w->o.row)
			if (tn_tier_has(t, p->at))
				fill_event(w, p->at, t->tier, TN_EVENT_STORED, &p->out[p->n++]);
	}
}

/* ---- time to live --------------------------------------------------------------------------------------------- */

/* Seconds of the monotonic clock, rounded up; 0: never. */
static uint32_t expiry_of(const struct tn_watch *w, uint64_t ttl_ns)
{
	uint64_t at = ttl_ns ? (tn_now_ns(w->o.clock) + ttl_ns + SECOND_NS - 1) / SECOND_NS : 0;

	return at > UINT32_MAX || (ttl_ns && at < ttl_ns / SECOND_NS) ? UINT32_MAX : (uint32_t)at;
}

static void set_expiry(struct tn_watch *w, tn_block b, uint32_t at)
{
	if (at)
		__atomic_store_n(&w->ttl_used, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&w->expiry[b], at, __ATOMIC_RELAXED);
}

void tn_watch_expire_at(struct tn_watch *w, tn_block b, uint64_t ttl_ns)
{
	set_expiry(w, b, expiry_of(w, ttl_ns));
}

bool tn_watch_extend(struct tn_watch *w, tn_block b, uint64_t ttl_ns)
{
	uint32_t had = w->expiry[b], at = expiry_of(w, ttl_ns);

	if (had == 0 || (at != 0 && at <= had))
		return false;
	set_expiry(w, b, at);
	return at == 0;
}

bool tn_watch_expires(const struct tn_watch *w, tn_block b)
{
	return __atomic_load_n(&w->expiry[b], __ATOMIC_RELAXED) != 0;
}

bool tn_watch_expired(const struct tn_watch *w, tn_block b)
{
	uint32_t at;

	if (!__atomic_load_n(&w->ttl_used, __ATOMIC_RELAXED))
		return false;
	at = __atomic_load_n(&w->expiry[b], __ATOMIC_RELAXED);
	return at && at <= tn_now_ns(w->o.clock) / SECOND_NS;
}

/*
 * Gives up expired blocks, some at a time; one that somebody holds on a later round, so that until then a save may still
 * revive it. Returns when to come back.
 */
uint64_t tn_watch_step(struct tn_watch *w, uint64_t now_ns, void (*expire)(struct tn_blocks *bl, tn_block b), struct tn_blocks *bl)
{
	if (!w->ttl_used)
		return TN_FOREVER;
	if (now_ns < w->due_ns)
		return w->due_ns;
	for (uint32_t k = 0; k < EXPIRY_SCAN && k < w->o.max_blocks; k++) {
		tn_block b = w->cursor;

		w->cursor = (b + 1) % w->o.max_blocks;
		if (w->expiry[b] && tn_watch_expired(w, b) && tn_block_state(w->o.registry, b) == TN_BLOCK_REGISTERED &&
		    tn_block_refs(w->o.registry, b) == 0)
			expire(bl, b);
	}
	w->due_ns = now_ns + EXPIRY_EVERY_NS;
	return w->due_ns;
}
