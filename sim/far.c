/* SPDX-License-Identifier: Apache-2.0 */
#include "far.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"

#define EVENTS 256u

struct stored {
	struct tn_tier_space space;
	struct tn_key key, parent;
	bool there; /* else taken away, and perhaps put back */
	uint32_t bytes, layers;
	unsigned char *flat; /* and the checksums behind it */
};

struct tier;

struct tn_far {
	struct tn_far_opts o;
	struct tn_rng rng;
	struct stored *stored;
	uint32_t n, there, reserved;
	struct tn_tier_event event[EVENTS]; /* ring; what does not fit is lost, as events are */
	uint32_t head, nevents;
	struct tier *tier; /* of the cache that uses it */
};

struct tier {
	struct tn_tier_base base;
	const struct tn_clock *clock;
	const struct tn_alloc *alloc;
	struct tn_far *far;
	struct tn_list moves, probes;
	uint32_t under_way;
	uint64_t ticket;
};

static struct tier *tier_of(struct tn_tier_base *t)
{
	return (struct tier *)t;
}

static const struct tier *tier_at(const struct tn_tier_base *t)
{
	return (const struct tier *)t;
}

/* ---- the remote side ------------------------------------------------------------------------------------------- */

static bool same(const struct stored *s, const struct tn_tier_space *space, const struct tn_key *key)
{
	return tn_key_eq(&s->key, key) && tn_key_eq(&s->space.id, &space->id) && s->space.epoch == space->epoch;
}

static struct stored *find(struct tn_far *far, const struct tn_tier_space *space, const struct tn_key *key)
{
	for (uint32_t i = 0; i < far->n; i++)
		if (same(&far->stored[i], space, key))
			return &far->stored[i];
	return NULL;
}

static void report_event(struct tn_far *far, const struct stored *s, bool gone)
{
	if (far->nevents == EVENTS)
		return;
	far->event[(far->head + far->nevents++) % EVENTS] = (struct tn_tier_event){s->space, s->key, s->parent, gone};
}

static void take_away(struct tn_far *far, struct stored *s, bool told)
{
	s->there = false;
	far->there--;
	if (told)
		report_event(far, s, true);
}

/* For good, and without a word: whoever does this knows. */
static void delete(struct tn_far *far, struct stored *s)
{
	far->there -= s->there;
	free(s->flat);
	*s = far->stored[--far->n];
}

static struct stored *nth_there(struct tn_far *far, uint32_t i)
{
	for (uint32_t k = 0; k < far->n; k++)
		if (far->stored[k].there && i-- == 0)
			return &far->stored[k];
	return NULL;
}

uint32_t tn_far_blocks(const struct tn_far *far)
{
	return far->there;
}

void tn_far_take_away(struct tn_far *far, uint32_t i, bool told)
{
	take_away(far, nth_there(far, i), told);
}

bool tn_far_put_back(struct tn_far *far, bool told)
{
	for (uint32_t k = far->n; k-- > 0;) {
		struct stored *s = &far->stored[k];

		if (s->there || far->there + far->reserved >= far->o.blocks)
			continue;
		s->there = true;
		far->there++;
		if (told)
			report_event(far, s, false);
		return true;
	}
	return false;
}

static bool one_of(struct tn_far *far, uint32_t n)
{
	return n > 0 && tn_rng_below(&far->rng, n) == 0;
}

static void others(struct tn_far *far)
{
	if (far->there > 0 && one_of(far, far->o.lose))
		tn_far_take_away(far, tn_rng_below(&far->rng, far->there), tn_rng_below(&far->rng, 2) == 0);
	if (one_of(far, far->o.others))
		tn_far_put_back(far, tn_rng_below(&far->rng, 4) != 0);
}

/* ---- requests ----------------------------------------------------------------------------------------------------- */

static uint64_t later(struct tier *t)
{
	return tn_now_ns(t->clock) + 1 + t->far->o.least_ns + tn_rng_below(&t->far->rng, (uint32_t)t->far->o.latency_ns);
}

static int write_block(struct tn_far *far, const struct tn_tier_move *m)
{
	const struct tn_shape *s = m->shape;
	size_t sums = s->layers * sizeof(uint64_t);
	struct stored *old = find(far, &m->space, &m->key);
	unsigned char *flat;

	if (old)
		delete(far, old);
	if (far->n == 2 * far->o.blocks) /* what was taken away is not kept for ever */
		for (uint32_t i = 0; i < far->n; i++)
			if (!far->stored[i].there) {
				delete(far, &far->stored[i]);
				break;
			}
	flat = far->n < 2 * far->o.blocks ? malloc(s->slot_bytes + sums) : NULL;
	if (!flat)
		return -EIO;
	memcpy(flat, tn_mapping_address(m->mem.memory, m->mem.flat), s->slot_bytes);
	memcpy(flat + s->slot_bytes, m->checks, sums);
	far->stored[far->n++] = (struct stored){.space = m->space, .key = m->key, .parent = m->parent, .there = true,
						.bytes = (uint32_t)s->slot_bytes, .layers = s->layers, .flat = flat};
	far->there++;
	return 0;
}

static int read_block(struct tn_far *far, const struct tn_tier_move *m)
{
	const struct stored *s = find(far, &m->space, &m->key);
	struct iovec iov[TN_OBJECT_IOVS_MAX];

	if (!s || !s->there)
		return -ENOENT;
	for (uint32_t l = 0; l < s->layers; l++)
		tn_span_store(&m->mem, m->shape, l, s->flat + (uint64_t)l * m->shape->padded_bytes, iov);
	memcpy(m->checks, s->flat + s->bytes, s->layers * sizeof(uint64_t));
	if (one_of(far, far->o.corrupt))
		m->checks[0] ^= 1;
	return 0;
}

static void start_move(struct tn_tier_base *base, struct tn_tier_move *move)
{
	struct tier *t = tier_of(base);

	move->due_ns = later(t);
	tn_list_push(&t->moves, &move->link);
	t->under_way++;
}

static void cancel_move(struct tn_tier_base *base, struct tn_tier_move *move)
{
	move->cancelled = true;
	move->due_ns = 0;
}

static int end_move(struct tn_far *far, const struct tn_tier_move *m)
{
	if (m->cancelled)
		return -ECANCELED;
	return m->write ? write_block(far, m) : read_block(far, m);
}

static bool end_moves(struct tier *t, uint64_t now_ns, uint64_t *due_ns)
{
	struct tn_list *pos, *tmp;
	bool any = false;

	tn_list_for_each_safe(pos, tmp, &t->moves) {
		struct tn_tier_move *m = tn_container_of(pos, struct tn_tier_move, link);

		if (m->due_ns > now_ns) {
			*due_ns = m->due_ns < *due_ns ? m->due_ns : *due_ns;
			continue;
		}
		tn_list_del(&m->link);
		t->under_way--;
		m->done(m, end_move(t->far, m));
		any = true;
	}
	return any;
}

static int start_probe(struct tn_tier_base *base, struct tn_tier_probe *probe)
{
	struct tier *t = tier_of(base);

	probe->due_ns = later(t);
	tn_list_push(&t->probes, &probe->link);
	return 0;
}

static bool end_probes(struct tier *t, uint64_t now_ns, uint64_t *due_ns)
{
	struct tn_list *pos, *tmp;
	bool any = false;

	if (t->far->o.mute)
		return false;
	tn_list_for_each_safe(pos, tmp, &t->probes) {
		struct tn_tier_probe *p = tn_container_of(pos, struct tn_tier_probe, link);
		const struct stored *s;

		if (p->due_ns > now_ns) {
			*due_ns = p->due_ns < *due_ns ? p->due_ns : *due_ns;
			continue;
		}
		while (p->found < p->n && (s = find(t->far, &p->space, &p->keys[p->found])) && s->there)
			p->found++;
		tn_list_del(&p->link);
		p->done(p, 0);
		any = true;
	}
	return any;
}

static bool step(struct tn_tier_base *base, uint64_t now_ns, uint64_t *due_ns)
{
	struct tier *t = tier_of(base);
	bool any = end_moves(t, now_ns, due_ns);

	any |= end_probes(t, now_ns, due_ns);
	if (any)
		others(t->far);
	return any;
}

static uint32_t events(struct tn_tier_base *base, struct tn_tier_event *out, uint32_t max)
{
	struct tn_far *far = tier_of(base)->far;
	uint32_t n = 0;

	for (; n < max && far->nevents > 0; n++, far->nevents--) {
		out[n] = far->event[far->head];
		far->head = (far->head + 1) % EVENTS;
	}
	return n;
}

/* ---- places -------------------------------------------------------------------------------------------------------- */

/* A batch is asked for first, and given when it is asked for again some time later: fewer, if fewer are left by then. */
static int place(struct tn_tier_base *base, struct tn_place_wait *w, uint32_t want, uint32_t *out)
{
	struct tier *t = tier_of(base);
	struct tn_far *far = t->far;
	uint32_t n = 0;

	if (w->demand == 0) {
		w->demand = ++t->ticket;
		w->again_ns = later(t);
	}
	w->due_ns = w->again_ns;
	if (tn_now_ns(t->clock) < w->again_ns)
		return 0;
	w->demand = 0;
	for (; n < want && far->there + far->reserved < far->o.blocks; n++, far->reserved++)
		out[n] = 0;
	return n > 0 ? (int)n : tn_fail(-ENOSPC, "the remote side is full");
}


static void fill(struct tn_tier_base *base, tn_block b, uint32_t place_of, const struct tn_index_entry *entry)
{
	tier_of(base)->far->reserved--;
}

static void delete_key(struct tn_tier_base *base, tn_block b)
{
	struct tn_key key = tn_block_key(base->registry, b);
	struct tn_far *far = tier_of(base)->far;

	for (uint32_t i = far->n; i-- > 0;)
		if (tn_key_eq(&far->stored[i].key, &key))
			delete(far, &far->stored[i]);
}

static void release(struct tn_tier_base *base, tn_block b, uint32_t place_of, int status)
{
	tier_of(base)->far->reserved--;
	delete_key(base, b);
}

static void drain(struct tn_tier_base *base, tn_block b, uint32_t place_of, enum tn_leave how)
{
	if (how != TN_LEAVE_GONE)
		delete_key(base, b);
}

/* ---- the whole ------------------------------------------------------------------------------------------------------ */

static int space(struct tn_tier_base *base, const struct tn_shape *shape, uint32_t *cls)
{
	*cls = 0;
	return 0;
}

static uint64_t capacity(const struct tn_tier_base *base)
{
	return tier_at(base)->far->o.blocks;
}

static int health(const struct tn_tier_base *base)
{
	return 0;
}

static void destroy(struct tn_tier_base *base)
{
	struct tier *t = tier_of(base);
	struct tn_list *link;

	while ((link = tn_list_pop(&t->probes))) {
		struct tn_tier_probe *p = tn_container_of(link, struct tn_tier_probe, link);

		p->done(p, -ESHUTDOWN);
	}
	t->far->tier = NULL;
	t->far->reserved = 0;
	base->policy->ops->destroy(base->policy);
	tn_put(t->alloc, t, sizeof(*t));
}

static const struct tn_tier_ops ops = {
	.size = sizeof(ops),
	.abi = TN_TIER_ABI,
	.name = "far",
	.traits = {.reach = TN_REACH_WHOLE, .keyed = true, .offloads = true},
	.space = space,
	.probe = start_probe,
	.place = place,
	.release = release,
	.fill = fill,
	.drain = drain,
	.capacity = capacity,
	.health = health,
	.move = start_move,
	.cancel = cancel_move,
	.events = events,
	.step = step,
	.destroy = destroy,
};

int tn_far_tier(struct tn_far *far, const struct tn_clock *clock, const struct tn_alloc *alloc, struct tn_policy *policy,
		struct tn_tier_base **out)
{
	struct tier *t = tn_get(alloc, sizeof(*t));

	if (!t)
		return tn_fail(-ENOMEM, "far tier: no memory");
	t->clock = clock;
	t->alloc = alloc;
	t->far = far;
	far->tier = t;
	tn_list_init(&t->moves);
	tn_list_init(&t->probes);
	t->base.ops = &ops;
	t->base.tier = TN_TIER_REMOTE;
	t->base.policy = policy;
	*out = &t->base;
	return 0;
}

uint32_t tn_far_under_way(const struct tn_far *far)
{
	return far->tier ? far->tier->under_way : 0;
}

int tn_far_create(const struct tn_far_opts *opts, struct tn_far **out)
{
	struct tn_far *far = calloc(1, sizeof(*far));

	if (!far)
		return -ENOMEM;
	far->o = *opts;
	far->o.latency_ns = opts->latency_ns ? opts->latency_ns : 1;
	tn_rng_seed(&far->rng, opts->seed ^ 0xfa7);
	far->stored = calloc(2 * opts->blocks, sizeof(*far->stored));
	if (!far->stored) {
		free(far);
		return -ENOMEM;
	}
	*out = far;
	return 0;
}

void tn_far_destroy(struct tn_far *far)
{
	if (!far)
		return;
	for (uint32_t i = 0; i < far->n; i++)
		free(far->stored[i].flat);
	free(far->stored);
	free(far);
}
