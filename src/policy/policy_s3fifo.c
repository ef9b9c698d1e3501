/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3fifo: S3-FIFO (Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023).
 *
 * New entries go through a small queue of a tenth of the target. Entries touched there move to the main queue. The
 * others leave and are remembered by as many ghosts as the target. A block that comes back as a ghost goes to the main
 * queue at once. The main queue gives each entry one more round per touch, at most 3. There is one pair of queues per
 * priority; ghosts and sizes are shared. Everything is admitted.
 */
#include <errno.h>

#include "base/error.h"
#include "base/hash.h"
#include "policy/policies.h"
#include "policy/policy_ghost.h"
#include "policy/policy_list.h"

#define FREQUENCY_MAX 3u

struct entry {
	uint8_t frequency : 2;
	uint8_t main : 1; /* in the main queue */
	int8_t priority;
};

struct s3fifo {
	struct tn_policy base;
	const struct tn_alloc *alloc;
	uint32_t capacity;
	uint32_t small_target;
	struct tn_policy_link *links;
	struct entry *entries;
	struct tn_policy_lists small, main;
	struct tn_ghosts ghosts;
};

static struct s3fifo *s3fifo_of(struct tn_policy *p)
{
	return (struct s3fifo *)(void *)p;
}

static void destroy(struct tn_policy *p)
{
	struct s3fifo *s = s3fifo_of(p);

	if (!s)
		return;
	if (s->ghosts.alloc)
		tn_ghosts_fini(&s->ghosts);
	tn_put(s->alloc, s->links, tn_array_bytes(s->capacity, sizeof(*s->links)));
	tn_put(s->alloc, s->entries, tn_array_bytes(s->capacity, sizeof(*s->entries)));
	tn_put(s->alloc, s, sizeof(*s));
}

static int create(const struct tn_policy_opts *opts, struct tn_policy **out)
{
	uint32_t target = opts->target ? opts->target : opts->capacity;
	struct s3fifo *s;

	if (opts->capacity == 0 || opts->capacity == TN_ENTRY_NONE)
		return tn_fail(-EINVAL, "capacity %u: a policy needs 1 to 2^32 - 2 entries", opts->capacity);
	s = tn_get(opts->alloc, sizeof(*s));
	if (!s)
		return tn_fail(-ENOMEM, "no memory for a policy");
	s->base.ops = &tn_policy_s3fifo;
	s->alloc = opts->alloc;
	s->capacity = opts->capacity;
	s->small_target = target / 10 ? target / 10 : 1;
	s->links = tn_get(s->alloc, tn_array_bytes(s->capacity, sizeof(*s->links)));
	s->entries = tn_get(s->alloc, tn_array_bytes(s->capacity, sizeof(*s->entries)));
	if (!s->links || !s->entries || tn_ghosts_init(&s->ghosts, target, s->alloc)) {
		destroy(&s->base);
		return tn_fail(-ENOMEM, "no memory for a policy of %u entries", opts->capacity);
	}
	tn_policy_lists_init(&s->small, s->links);
	tn_policy_lists_init(&s->main, s->links);
	*out = &s->base;
	return 0;
}

static void request(struct tn_policy *p, const struct tn_policy_request *req)
{
}

static void insert(struct tn_policy *p, uint32_t id, const struct tn_policy_block *b)
{
	struct s3fifo *s = s3fifo_of(p);
	struct entry *e = &s->entries[id];

	*e = (struct entry){.priority = b->priority};
	e->main = tn_ghosts_take(&s->ghosts, tn_mix64(b->key_hash));
	tn_policy_list_add(e->main ? &s->main : &s->small, tn_policy_level(b->priority), id);
}

static void touch(struct tn_policy *p, uint32_t id, const struct tn_policy_block *b)
{
	struct entry *e = &s3fifo_of(p)->entries[id];

	if (e->frequency < FREQUENCY_MAX)
		e->frequency++;
}

/* The small queue's next victim; touched entries before it move on to the main queue. */
static uint32_t victim_small(struct s3fifo *s, uint32_t level, bool (*usable)(void *arg, uint32_t id), void *arg)
{
	uint32_t id, newer;

	for (id = s->small.level[level].oldest; id != TN_ENTRY_NONE; id = newer) {
		newer = s->links[id].newer;
		if (usable && !usable(arg, id))
			continue;
		if (s->entries[id].frequency == 0)
			return id;
		s->entries[id].frequency = 0;
		s->entries[id].main = 1;
		tn_policy_list_del(&s->small, level, id);
		tn_policy_list_add(&s->main, level, id);
	}
	return TN_ENTRY_NONE;
}

static uint32_t victim_main(struct s3fifo *s, uint32_t level, bool (*usable)(void *arg, uint32_t id), void *arg)
{
	/* Each round takes one from the frequency of every usable entry, so the last round finds a victim if there is any. */
	for (uint32_t round = 0; round <= FREQUENCY_MAX; round++) {
		uint32_t last = s->main.level[level].newest, id, newer;

		for (id = s->main.level[level].oldest; id != TN_ENTRY_NONE; id = newer) {
			newer = id == last ? TN_ENTRY_NONE : s->links[id].newer;
			if (usable && !usable(arg, id))
				continue;
			if (s->entries[id].frequency == 0)
				return id;
			s->entries[id].frequency--;
			tn_policy_list_del(&s->main, level, id);
			tn_policy_list_add(&s->main, level, id);
		}
	}
	return TN_ENTRY_NONE;
}

static uint32_t victim_at(struct s3fifo *s, uint32_t level, bool (*usable)(void *arg, uint32_t id), void *arg)
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

static uint32_t level_next(const struct s3fifo *s, uint32_t from)
{
	uint32_t small = tn_policy_level_next(&s->small, from), main = tn_policy_level_next(&s->main, from);

	return small < main ? small : main;
}

static uint32_t victim(struct tn_policy *p, bool (*usable)(void *arg, uint32_t id), void *arg)
{
	struct s3fifo *s = s3fifo_of(p);

	for (uint32_t level = level_next(s, 0); level < TN_POLICY_LEVELS; level = level_next(s, level + 1)) {
		uint32_t id = victim_at(s, level, usable, arg);

		if (id != TN_ENTRY_NONE)
			return id;
	}
	return TN_ENTRY_NONE;
}

static void forget(struct tn_policy *p, uint32_t id, uint64_t key_hash, enum tn_policy_why why)
{
	struct s3fifo *s = s3fifo_of(p);
	const struct entry *e = &s->entries[id];

	tn_policy_list_del(e->main ? &s->main : &s->small, tn_policy_level(e->priority), id);
	if (!e->main && why == TN_POLICY_EVICTED)
		tn_ghosts_put(&s->ghosts, tn_mix64(key_hash));
}

const struct tn_policy_ops tn_policy_s3fifo = {
	.size = sizeof(struct tn_policy_ops),
	.abi = TN_POLICY_ABI,
	.name = "s3fifo",
	.forward = true,
	.create = create,
	.destroy = destroy,
	.request = request,
	.admit = tn_policy_admit_all,
	.insert = insert,
	.touch = touch,
	.victim = victim,
	.remove = forget,
};
