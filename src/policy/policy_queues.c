/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lru, fifo and s3fifo: queues of entries per priority. Everything is admitted, but for shares of a block of which another share was kept out.
 *
 * lru: a touched block becomes the newest. fifo: only a touched block that came in with the present request does. So
 * the second, backward pass over the request (see policy.h) leaves the request's first block the newest in both.
 *
 * s3fifo: S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023). New entries go through a
 * small queue of a tenth of the target. Entries touched there move to the main queue. The others leave and are remembered
 * by as many ghosts as the target. A block that comes back as a ghost goes to the main queue at once. The main queue gives
 * each entry one more round per touch, at most 3. There is one pair of queues per priority; ghosts and sizes are shared.
 */
#include <errno.h>

#include "base/error.h"
#include "base/hash.h"
#include "policy/policy.h"
#include "policy/policy_ghost.h"

#define FREQUENCY_MAX 3u
#define LEVELS 256u

/* ---- queues --------------------------------------------------------------------------------------------- */

struct link {
	uint32_t newer, older; /* TN_ENTRY_NONE at the ends */
};

struct queue {
	uint32_t newest, oldest;
	uint32_t count;
};

/* One queue per priority. The links of all entries lie in one array: an entry is in one queue at a time. */
struct queues {
	struct link *links;
	uint32_t count; /* entries in all queues */
	uint64_t used[LEVELS / 64]; /* levels that have entries */
	struct queue level[LEVELS];
};

/* The level of a priority: 0 is the first to go. */
static uint32_t level_of(int8_t priority)
{
	return (uint32_t)((int)priority + 128);
}

static void queues_init(struct queues *l, struct link *links)
{
	*l = (struct queues){.links = links};
	for (uint32_t i = 0; i < LEVELS; i++)
		l->level[i] = (struct queue){TN_ENTRY_NONE, TN_ENTRY_NONE, 0};
}

/* As the newest of its level. */
static void queue_add(struct queues *l, uint32_t level, uint32_t id)
{
	struct queue *list = &l->level[level];

	l->links[id] = (struct link){TN_ENTRY_NONE, list->newest};
	if (list->newest != TN_ENTRY_NONE)
		l->links[list->newest].newer = id;
	else
		list->oldest = id;
	list->newest = id;
	list->count++;
	l->count++;
	l->used[level / 64] |= (uint64_t)1 << level % 64;
}

static void queue_del(struct queues *l, uint32_t level, uint32_t id)
{
	struct queue *list = &l->level[level];
	struct link at = l->links[id];

	if (at.newer != TN_ENTRY_NONE)
		l->links[at.newer].older = at.older;
	else
		list->newest = at.older;
	if (at.older != TN_ENTRY_NONE)
		l->links[at.older].newer = at.newer;
	else
		list->oldest = at.newer;
	l->count--;
	if (--list->count == 0)
		l->used[level / 64] &= ~((uint64_t)1 << level % 64);
}

/* The first level from `from` on that has entries, LEVELS if none. */
static uint32_t level_next(const struct queues *l, uint32_t from)
{
	for (uint32_t w = from / 64; w < LEVELS / 64; w++) {
		uint64_t bits = l->used[w];

		if (w == from / 64)
			bits &= ~(uint64_t)0 << from % 64;
		if (bits)
			return w * 64 + (uint32_t)__builtin_ctzll(bits);
	}
	return LEVELS;
}

/* The oldest usable entry of the lowest level that has a usable entry, or TN_ENTRY_NONE. */
static uint32_t queues_oldest(const struct queues *l, tn_usable_fn usable, void *arg)
{
	for (uint32_t level = level_next(l, 0); level < LEVELS;
	     level = level_next(l, level + 1))
		for (uint32_t id = l->level[level].oldest; id != TN_ENTRY_NONE; id = l->links[id].newer)
			if (!usable || usable(arg, id))
				return id;
	return TN_ENTRY_NONE;
}

static bool admit_all(struct tn_policy *p, const struct tn_policy_block *b, bool full, tn_usable_fn usable, void *arg)
{
	return b->decided != TN_POLICY_KEPT_OUT;
}

/* ---- in and out of memory ------------------------------------------------------------------------------- */

/* How each of the policies below begins. */
struct common {
	struct tn_policy base;
	const struct tn_alloc *alloc;
	uint32_t capacity;
	size_t bytes, entry_bytes;
	struct link *links;
	void *entries;
};

static void free_common(struct tn_policy *p)
{
	struct common *c = (struct common *)(void *)p;

	if (!c)
		return;
	tn_put(c->alloc, c->links, tn_array_bytes(c->capacity, sizeof(*c->links)));
	tn_put(c->alloc, c->entries, tn_array_bytes(c->capacity, c->entry_bytes));
	tn_put(c->alloc, c, c->bytes);
}

/* A policy of so many bytes, zero but for what is common. NULL: an error is said. */
static void *new_policy(const struct tn_policy_opts *opts, const struct tn_policy_ops *ops, size_t bytes, size_t entry_bytes)
{
	struct common *c;

	if (opts->capacity == 0 || opts->capacity == TN_ENTRY_NONE) {
		tn_fail(-EINVAL, "capacity %u: a policy needs 1 to 2^32 - 2 entries", opts->capacity);
		return NULL;
	}
	c = tn_get(opts->alloc, bytes);
	if (c) {
		*c = (struct common){{ops}, opts->alloc, opts->capacity, bytes, entry_bytes, NULL, NULL};
		c->links = tn_get(c->alloc, tn_array_bytes(c->capacity, sizeof(*c->links)));
		c->entries = tn_get(c->alloc, tn_array_bytes(c->capacity, entry_bytes));
		if (c->links && c->entries)
			return c;
		free_common(&c->base);
	}
	tn_fail(-ENOMEM, "no memory for a policy of %u entries", opts->capacity);
	return NULL;
}

/* ---- lru and fifo --------------------------------------------------------------------------------------- */

struct age {
	uint32_t request; /* fifo: number of the request that the block came in with */
	int8_t priority;
};

struct recency {
	struct common c;
	uint32_t request;
	struct queues queues;
};

static struct recency *recency_of(struct tn_policy *p)
{
	return (struct recency *)(void *)p;
}

static struct age *age_of(struct recency *r, uint32_t id)
{
	return (struct age *)r->c.entries + id;
}

static int create_recency(const struct tn_policy_opts *opts, const struct tn_policy_ops *ops, struct tn_policy **out)
{
	struct recency *r = new_policy(opts, ops, sizeof(*r), sizeof(struct age));

	if (!r)
		return tn_error_last()->code;
	queues_init(&r->queues, r->c.links);
	*out = &r->c.base;
	return 0;
}

static int lru_create(const struct tn_policy_opts *opts, struct tn_policy **out)
{
	return create_recency(opts, &tn_policy_lru, out);
}

static int fifo_create(const struct tn_policy_opts *opts, struct tn_policy **out)
{
	return create_recency(opts, &tn_policy_fifo, out);
}

static void recency_request(struct tn_policy *p, uint32_t parent, uint64_t parent_hash)
{
	recency_of(p)->request++;
}

static void recency_insert(struct tn_policy *p, uint32_t id, const struct tn_policy_block *b)
{
	struct recency *r = recency_of(p);

	*age_of(r, id) = (struct age){r->request, b->priority};
	queue_add(&r->queues, level_of(b->priority), id);
}

static void recency_touch(struct tn_policy *p, uint32_t id, const struct tn_policy_block *b)
{
	struct recency *r = recency_of(p);
	const struct age *e = age_of(r, id);

	if (p->ops == &tn_policy_fifo && e->request != r->request)
		return;
	queue_del(&r->queues, level_of(e->priority), id);
	queue_add(&r->queues, level_of(e->priority), id);
}

static uint32_t recency_victim(struct tn_policy *p, tn_usable_fn usable, void *arg)
{
	return queues_oldest(&recency_of(p)->queues, usable, arg);
}

static void recency_remove(struct tn_policy *p, uint32_t id, uint64_t key_hash, enum tn_policy_why why)
{
	struct recency *r = recency_of(p);

	queue_del(&r->queues, level_of(age_of(r, id)->priority), id);
}

/* Both are the same but for their names and what create makes of them. */
#define RECENCY_OPS(policy, make)                                                                                   \
	{                                                                                                           \
		.size = sizeof(struct tn_policy_ops), .abi = TN_POLICY_ABI, .name = (policy), .create = (make),     \
		.destroy = free_common, .request = recency_request, .admit = admit_all, .insert = recency_insert,   \
		.touch = recency_touch, .victim = recency_victim, .remove = recency_remove,                         \
	}

const struct tn_policy_ops tn_policy_lru = RECENCY_OPS("lru", lru_create);
const struct tn_policy_ops tn_policy_fifo = RECENCY_OPS("fifo", fifo_create);

/* ---- s3fifo --------------------------------------------------------------------------------------------- */

struct turn {
	uint8_t frequency : 2;
	uint8_t main : 1; /* in the main queue */
	int8_t priority;
};

struct s3fifo {
	struct common c;
	uint32_t small_target;
	struct queues small, main;
	struct tn_ghosts ghosts;
};

static struct s3fifo *s3fifo_of(struct tn_policy *p)
{
	return (struct s3fifo *)(void *)p;
}

static struct turn *turn_of(struct s3fifo *s, uint32_t id)
{
	return (struct turn *)s->c.entries + id;
}

static void s3fifo_destroy(struct tn_policy *p)
{
	if (p)
		tn_ghosts_fini(&s3fifo_of(p)->ghosts);
	free_common(p);
}

static int s3fifo_create(const struct tn_policy_opts *opts, struct tn_policy **out)
{
	uint32_t target = opts->target ? opts->target : opts->capacity;
	struct s3fifo *s = new_policy(opts, &tn_policy_s3fifo, sizeof(*s), sizeof(struct turn));

	if (!s)
		return tn_error_last()->code;
	s->small_target = target / 10 ? target / 10 : 1;
	queues_init(&s->small, s->c.links);
	queues_init(&s->main, s->c.links);
	if (tn_ghosts_init(&s->ghosts, target, s->c.alloc)) {
		s3fifo_destroy(&s->c.base);
		return tn_fail(-ENOMEM, "no memory for %u ghosts of a policy", target);
	}
	*out = &s->c.base;
	return 0;
}

static void s3fifo_request(struct tn_policy *p, uint32_t parent, uint64_t parent_hash)
{
}

static void s3fifo_insert(struct tn_policy *p, uint32_t id, const struct tn_policy_block *b)
{
	struct s3fifo *s = s3fifo_of(p);
	struct turn *e = turn_of(s, id);

	*e = (struct turn){.priority = b->priority};
	e->main = tn_ghosts_take(&s->ghosts, tn_mix64(b->key_hash));
	queue_add(e->main ? &s->main : &s->small, level_of(b->priority), id);
}

static void s3fifo_touch(struct tn_policy *p, uint32_t id, const struct tn_policy_block *b)
{
	struct turn *e = turn_of(s3fifo_of(p), id);

	if (e->frequency < FREQUENCY_MAX)
		e->frequency++;
}

/* The small queue's next victim; touched entries before it move on to the main queue. */
static uint32_t victim_small(struct s3fifo *s, uint32_t level, tn_usable_fn usable, void *arg)
{
	uint32_t id, newer;

	for (id = s->small.level[level].oldest; id != TN_ENTRY_NONE; id = newer) {
		newer = s->c.links[id].newer;
		if (usable && !usable(arg, id))
			continue;
		if (turn_of(s, id)->frequency == 0)
			return id;
		turn_of(s, id)->frequency = 0;
		turn_of(s, id)->main = 1;
		queue_del(&s->small, level, id);
		queue_add(&s->main, level, id);
	}
	return TN_ENTRY_NONE;
}

static uint32_t victim_main(struct s3fifo *s, uint32_t level, tn_usable_fn usable, void *arg)
{
	/* Each round takes one from the frequency of every usable entry, so the last round finds a victim if there is any. */
	for (uint32_t round = 0; round <= FREQUENCY_MAX; round++) {
		uint32_t last = s->main.level[level].newest, id, newer;

		for (id = s->main.level[level].oldest; id != TN_ENTRY_NONE; id = newer) {
			newer = id == last ? TN_ENTRY_NONE : s->c.links[id].newer;
			if (usable && !usable(arg, id))
				continue;
			if (turn_of(s, id)->frequency == 0)
				return id;
			turn_of(s, id)->frequency--;
			queue_del(&s->main, level, id);
			queue_add(&s->main, level, id);
		}
	}
	return TN_ENTRY_NONE;
}

static uint32_t victim_at(struct s3fifo *s, uint32_t level, tn_usable_fn usable, void *arg)
{
	bool small_first = s->small.count >= s->small_target || s->main.level[level].count == 0;
	uint32_t id = TN_ENTRY_NONE;

	if (small_first)
		id = victim_small(s, level, usable, arg);
	if (id == TN_ENTRY_NONE)
		id = victim_main(s, level, usable, arg);
	if (id == TN_ENTRY_NONE && !small_first)
		id = victim_small(s, level, usable, arg);
	/* All that the small queue had may have moved to the main queue. */
	if (id == TN_ENTRY_NONE && !small_first)
		id = victim_main(s, level, usable, arg);
	return id;
}

static uint32_t next_level(const struct s3fifo *s, uint32_t from)
{
	uint32_t small = level_next(&s->small, from), main = level_next(&s->main, from);

	return small < main ? small : main;
}

static uint32_t s3fifo_victim(struct tn_policy *p, tn_usable_fn usable, void *arg)
{
	struct s3fifo *s = s3fifo_of(p);

	for (uint32_t level = next_level(s, 0); level < LEVELS; level = next_level(s, level + 1)) {
		uint32_t id = victim_at(s, level, usable, arg);

		if (id != TN_ENTRY_NONE)
			return id;
	}
	return TN_ENTRY_NONE;
}

static void s3fifo_remove(struct tn_policy *p, uint32_t id, uint64_t key_hash, enum tn_policy_why why)
{
	struct s3fifo *s = s3fifo_of(p);
	const struct turn *e = turn_of(s, id);

	queue_del(e->main ? &s->main : &s->small, level_of(e->priority), id);
	if (!e->main && why == TN_POLICY_EVICTED)
		tn_ghosts_put(&s->ghosts, tn_mix64(key_hash));
}

static void s3fifo_expect(struct tn_policy *p, uint32_t blocks)
{
	struct s3fifo *s = s3fifo_of(p);

	s->small_target = blocks / 10 ? blocks / 10 : 1;
	tn_ghosts_keep(&s->ghosts, blocks);
}

const struct tn_policy_ops tn_policy_s3fifo = {
	.size = sizeof(struct tn_policy_ops),
	.abi = TN_POLICY_ABI,
	.name = "s3fifo",
	.forward = true,
	.create = s3fifo_create,
	.destroy = s3fifo_destroy,
	.request = s3fifo_request,
	.admit = admit_all,
	.insert = s3fifo_insert,
	.touch = s3fifo_touch,
	.victim = s3fifo_victim,
	.remove = s3fifo_remove,
	.expect = s3fifo_expect,
};
