/* SPDX-License-Identifier: Apache-2.0 */
/* The duel of orders; see policy_duel.h. */
#include "policy/policy_duel.h"

#include <errno.h>

#include "base/error.h"

#define SAMPLE_MAX 4096u /* blocks of a shadow that sees a sample */
#define S3FIFO_MAX 49152u
#define QUEUE 4096u /* power of two */

/* When another order is followed. All in sampled blocks. */
#define DECIDE_EVERY 64u
#define HALF_LIFE_MIN 32768.0
#define HALF_LIFE_CAPACITIES 64.0
#define LN_2 0.6931
#define LEAD_CAPACITY (1.0 / 12) /* more hits than the order that is followed: a change costs hits */
#define LEAD_SPREAD 2.0
#define LEAD_SPREAD_SAMPLED 8.0 /* which blocks are in the sample is chance, too */

uint32_t tn_duel_nodes(uint32_t entries)
{
	return entries < SAMPLE_MAX ? entries : SAMPLE_MAX;
}

static void set_bit(uint64_t *bits, uint32_t i, bool on)
{
	uint64_t bit = UINT64_C(1) << i % 64;

	bits[i / 64] = on ? bits[i / 64] | bit : bits[i / 64] & ~bit;
}

static bool dropped(void *arg, uint32_t id)
{
	struct tn_duel *d = arg;

	if (tn_duel_has_dropped(d, id))
		return false;
	set_bit(d->dropped, id, true);
	tn_duel_leaf(d, id);
	return true;
}

/* ---- begin and end --------------------------------------------------------------------------------------- */

static int init_shadow(struct tn_duel *d, enum tn_duel_order order, const struct tn_policy_ops *ops, uint32_t nodes)
{
	const struct tn_policy_opts o = {.capacity = nodes, .alloc = d->alloc};
	struct tn_policy *p;
	int rc = ops->create(&o, &p);

	return rc ? rc : tn_shadow_init(&d->shadow[order], p, nodes, d->alloc);
}

int tn_duel_init(struct tn_duel *d, const struct tn_policy_opts *opts, struct tn_policy *value)
{
	struct tn_shadow *s3fifo = &d->shadow[TN_DUEL_S3FIFO];
	uint32_t nodes = tn_duel_nodes(opts->capacity);
	int rc;

	*d = (struct tn_duel){.alloc = opts->alloc, .entries = opts->capacity};
	rc = tn_shadow_init(&d->shadow[TN_DUEL_VALUE], value, nodes, d->alloc);
	d->shadow[TN_DUEL_VALUE].chains = true;
	if (rc == 0)
		rc = init_shadow(d, TN_DUEL_RECENCY, &tn_policy_lru, nodes);
	if (rc == 0)
		rc = init_shadow(d, TN_DUEL_S3FIFO, &tn_policy_s3fifo, opts->capacity < S3FIFO_MAX ? opts->capacity : S3FIFO_MAX);
	if (rc)
		return rc;
	d->dropped = tn_get(d->alloc, tn_array_bytes(d->entries / 64 + 1, sizeof(*d->dropped)));
	d->queue = tn_get(d->alloc, QUEUE * sizeof(*d->queue));
	if (!d->dropped || !d->queue)
		return tn_fail(-ENOMEM, "no memory for what S3-FIFO drops of %u entries", d->entries);
	s3fifo->dropped = dropped;
	s3fifo->arg = d;
	s3fifo->protects = false; /* as S3-FIFO is published */
	return 0;
}

void tn_duel_fini(struct tn_duel *d)
{
	for (uint32_t i = 0; i < TN_DUEL_ORDERS; i++)
		tn_shadow_fini(&d->shadow[i]);
	tn_put(d->alloc, d->dropped, tn_array_bytes(d->entries / 64 + 1, sizeof(*d->dropped)));
	tn_put(d->alloc, d->queue, QUEUE * sizeof(*d->queue));
}

void tn_duel_expect(struct tn_duel *d, uint32_t blocks)
{
	struct tn_shadow *s3fifo = &d->shadow[TN_DUEL_S3FIFO];
	uint32_t nodes = d->shadow[TN_DUEL_VALUE].nodes, share;

	if (d->shadow[TN_DUEL_RECENCY].held == 0) /* another mask would make other blocks the sample */
		for (d->mask = 0; blocks / (d->mask + 1) > nodes;)
			d->mask = d->mask * 2 + 1;
	share = blocks / (d->mask + 1);
	share = share < nodes ? share : nodes;
	d->shadow[TN_DUEL_VALUE].limit = d->shadow[TN_DUEL_RECENCY].limit = share ? share : 1;
	s3fifo->limit = blocks <= s3fifo->nodes ? blocks : 0;
	if (!s3fifo->limit && d->order == TN_DUEL_S3FIFO)
		d->order = TN_DUEL_VALUE;
	s3fifo->policy->ops->expect(s3fifo->policy, blocks);
}

/* ---- which order ----------------------------------------------------------------------------------------- */

/* Where the spread of two orders is. */
static uint32_t pair(uint32_t a, uint32_t b)
{
	return a + b - 1;
}

/* The present prompt is through. */
static void count(struct tn_duel *d)
{
	for (uint32_t a = 0; a < TN_DUEL_ORDERS; a++)
		for (uint32_t b = 0; b < a; b++) {
			double apart = (double)d->prompt[a] - d->prompt[b];

			d->spread[pair(a, b)] += apart * apart;
		}
	for (uint32_t a = 0; a < TN_DUEL_ORDERS; a++) {
		d->hits[a] += d->prompt[a];
		d->prompt[a] = 0;
	}
}

/* Whether the lead is more than a change costs, and more than chance: a prompt hits as a whole, so a few prompts may make a lead. */
static bool leads(const struct tn_duel *d, enum tn_duel_order best)
{
	double lead = d->hits[best] - d->hits[d->order];

	return lead > LEAD_CAPACITY * d->shadow[TN_DUEL_RECENCY].limit && lead * lead > (d->mask ? LEAD_SPREAD_SAMPLED : LEAD_SPREAD) * d->spread[pair(best, d->order)];
}

/* Follows what has most hits lately. A change costs hits, because what the tier holds was chosen by the order before. */
static void decide(struct tn_duel *d)
{
	double half_life = HALF_LIFE_CAPACITIES * d->shadow[TN_DUEL_RECENCY].limit, keep;
	enum tn_duel_order best = d->order;

	if (half_life < HALF_LIFE_MIN)
		half_life = HALF_LIFE_MIN;
	for (uint32_t i = 0; i < TN_DUEL_ORDERS; i++)
		if (d->hits[i] > d->hits[best])
			best = (enum tn_duel_order)i;
	if (best != d->order && leads(d, best))
		d->order = best;
	keep = half_life / (half_life + LN_2 * d->sampled);
	for (uint32_t i = 0; i < TN_DUEL_ORDERS; i++) {
		d->hits[i] *= keep;
		d->spread[i] *= keep;
	}
	d->sampled = 0;
}

/* What is known of a prompt up to this block. */
static struct tn_duel_end known_up_to(const struct tn_duel *d, uint64_t parent)
{
	const struct tn_duel_end *end = &d->ends[parent % TN_DUEL_ENDS];

	if (parent && end->last == parent)
		return *end;
	return (struct tn_duel_end){.last = parent, .sampled = (parent & d->mask) == 0 ? parent : 0};
}

void tn_duel_request(struct tn_duel *d, uint64_t parent)
{
	for (uint32_t i = 0; i < TN_DUEL_ORDERS; i++)
		d->end.missed[i] = d->shadow[i].missed;
	d->ends[d->end.last % TN_DUEL_ENDS] = d->end;
	if (parent && parent == d->end.last) /* no other prompt was between: it is one. Another one may go on from the same block later */
		return;
	d->end = known_up_to(d, parent);
	count(d);
	if (d->sampled >= DECIDE_EVERY)
		decide(d);
	for (uint32_t i = 0; i < TN_DUEL_ORDERS; i++) {
		tn_shadow_request(&d->shadow[i], i == TN_DUEL_S3FIFO ? parent : d->end.sampled);
		d->shadow[i].missed |= d->end.missed[i];
	}
}

void tn_duel_refer(struct tn_duel *d, uint64_t hash, const struct tn_policy_block *b)
{
	bool sampled = (hash & d->mask) == 0;

	d->end.last = hash;
	if (d->shadow[TN_DUEL_S3FIFO].limit > 0)
		d->prompt[TN_DUEL_S3FIFO] += tn_shadow_refer(&d->shadow[TN_DUEL_S3FIFO], hash, b) && sampled;
	if (!sampled)
		return;
	d->end.sampled = hash;
	d->sampled++;
	d->prompt[TN_DUEL_VALUE] += tn_shadow_refer(&d->shadow[TN_DUEL_VALUE], hash, b);
	d->prompt[TN_DUEL_RECENCY] += tn_shadow_refer(&d->shadow[TN_DUEL_RECENCY], hash, b);
}

void tn_duel_recover(struct tn_duel *d, uint64_t hash, uint32_t id, const struct tn_policy_block *b)
{
	for (uint32_t i = 0; i < TN_DUEL_ORDERS; i++)
		tn_shadow_request(&d->shadow[i], 0);
	tn_duel_refer(d, hash, b);
	d->sampled = 0;
	for (uint32_t i = 0; i < TN_DUEL_ORDERS; i++)
		d->prompt[i] = 0;
	tn_duel_is(d, id);
}

/* ---- what S3-FIFO has dropped ------------------------------------------------------------------------------ */

void tn_duel_is(struct tn_duel *d, uint32_t id)
{
	if (d->shadow[TN_DUEL_S3FIFO].limit > 0)
		set_bit(d->dropped, id, !tn_shadow_is(&d->shadow[TN_DUEL_S3FIFO], id));
}

void tn_duel_remove(struct tn_duel *d, uint64_t hash, uint32_t id)
{
	set_bit(d->dropped, id, false);
	tn_shadow_forget(&d->shadow[TN_DUEL_S3FIFO], hash);
}

void tn_duel_leaf(struct tn_duel *d, uint32_t id)
{
	if (!tn_duel_has_dropped(d, id))
		return;
	if (d->count == QUEUE) { /* that one is found by chance, or never */
		d->first++;
		d->count--;
	}
	d->queue[(d->first + d->count++) % QUEUE] = id;
}

uint32_t tn_duel_next(struct tn_duel *d)
{
	if (d->count == 0)
		return TN_ENTRY_NONE;
	d->count--;
	return d->queue[d->first++ % QUEUE];
}
