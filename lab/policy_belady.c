/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The policy that knows the future (policy_sim.h): farthest next use, deepest first among blocks that are never
 * used again. Two passes over a whole trace: next uses from the end, then the requests with a heap of them.
 */
#include "lab/policy_sim.h"

#include <errno.h>

#include "base/error.h"
#include "lab/id_map.h"

#define NEVER UINT32_MAX
#define NOT_HELD (UINT32_MAX - 1) /* as a next use */

struct use {
	uint32_t next; /* request that uses the block again, or NEVER */
	uint32_t depth;
	uint32_t block;
};

struct belady {
	const uint64_t *ids;
	const uint32_t *lengths;
	size_t requests;
	uint64_t references;
	uint64_t capacity;
	struct tn_id_map map; /* id -> number of the block */
	uint32_t *blocks; /* of each reference */
	uint32_t *next; /* of each reference: request of the block's next reference */
	uint32_t *held; /* of each block: next use while the block is held, else NOT_HELD */
	bool *hit; /* of each block: since the block came in */
	struct use *heap; /* farthest use on top; outdated uses stay until they surface */
	uint64_t heap_count;
	struct tn_policy_sim_stats stats;
};

static bool farther(const struct use *a, const struct use *b)
{
	return a->next != b->next ? a->next > b->next : a->depth > b->depth;
}

static void heap_push(struct belady *s, struct use u)
{
	uint64_t i = s->heap_count++;

	for (; i > 0 && farther(&u, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
		s->heap[i] = s->heap[(i - 1) / 2];
	s->heap[i] = u;
}

static struct use heap_pop(struct belady *s)
{
	struct use top = s->heap[0], last = s->heap[--s->heap_count];
	uint64_t i = 0;

	for (uint64_t c = 1; c < s->heap_count; c = 2 * i + 1) {
		if (c + 1 < s->heap_count && farther(&s->heap[c + 1], &s->heap[c]))
			c++;
		if (!farther(&s->heap[c], &last))
			break;
		s->heap[i] = s->heap[c];
		i = c;
	}
	s->heap[i] = last;
	return top;
}

static void fini(struct belady *s)
{
	const struct tn_alloc *a = &tn_alloc_system;

	tn_id_map_fini(&s->map);
	tn_put(a, s->blocks, tn_array_bytes(s->references, sizeof(*s->blocks)));
	tn_put(a, s->next, tn_array_bytes(s->references, sizeof(*s->next)));
	tn_put(a, s->held, tn_array_bytes(s->references, sizeof(*s->held)));
	tn_put(a, s->hit, tn_array_bytes(s->references, sizeof(*s->hit)));
	tn_put(a, s->heap, tn_array_bytes(s->references, sizeof(*s->heap)));
}

static int init(struct belady *s)
{
	const struct tn_alloc *a = &tn_alloc_system;
	int rc;

	if (s->requests >= NOT_HELD)
		return tn_fail(-EINVAL, "%zu requests: more than %u", s->requests, NOT_HELD - 1);
	for (size_t q = 0; q < s->requests; q++)
		s->references += s->lengths[q];
	if (s->references >= NOT_HELD)
		return tn_fail(-EINVAL, "%llu blocks: more than %u", (unsigned long long)s->references, NOT_HELD - 1);
	s->map.alloc = a;
	s->blocks = tn_get(a, tn_array_bytes(s->references, sizeof(*s->blocks)));
	s->next = tn_get(a, tn_array_bytes(s->references, sizeof(*s->next)));
	s->held = tn_get(a, tn_array_bytes(s->references, sizeof(*s->held)));
	s->hit = tn_get(a, tn_array_bytes(s->references, sizeof(*s->hit)));
	s->heap = tn_get(a, tn_array_bytes(s->references, sizeof(*s->heap)));
	if (!s->blocks || !s->next || !s->held || !s->hit || !s->heap)
		return tn_fail(-ENOMEM, "no memory for a trace of %llu blocks", (unsigned long long)s->references);
	for (uint64_t i = 0; i < s->references; i++) {
		rc = tn_id_map_reserve(&s->map, 1);
		if (rc)
			return rc;
		s->blocks[i] = tn_id_map_at(&s->map, s->ids[i], (uint32_t)s->map.count)->value;
	}
	return 0;
}

/* From the end: which request uses each reference's block next. Leaves held[] empty. */
static void look_ahead(struct belady *s)
{
	uint64_t end = s->references;

	for (uint64_t b = 0; b < s->map.count; b++)
		s->held[b] = NEVER;
	for (size_t q = s->requests; q-- > 0;) {
		uint64_t start = end - s->lengths[q];

		for (uint64_t i = start; i < end; i++)
			s->next[i] = s->held[s->blocks[i]];
		for (uint64_t i = start; i < end; i++)
			s->held[s->blocks[i]] = (uint32_t)q;
		end = start;
	}
	for (uint64_t b = 0; b < s->map.count; b++)
		s->held[b] = NOT_HELD;
}

static struct tn_policy_sim_result serve(struct belady *s, uint64_t start, uint32_t n)
{
	struct tn_policy_sim_result r = {0};

	while (r.hits < n && s->held[s->blocks[start + r.hits]] != NOT_HELD) {
		uint32_t b = s->blocks[start + r.hits++];

		s->stats.unread -= !s->hit[b];
		s->hit[b] = true;
	}
	for (uint32_t i = n; i-- > 0;) {
		uint32_t b = s->blocks[start + i];

		if (s->held[b] == NOT_HELD) {
			s->stats.held++;
			s->stats.unread++;
			s->hit[b] = false;
			r.inserted++;
		}
		s->held[b] = s->next[start + i];
		if (s->capacity)
			heap_push(s, (struct use){s->next[start + i], i, b});
	}
	while (s->capacity && s->stats.held > s->capacity) {
		struct use u = heap_pop(s);

		if (s->held[u.block] != u.next)
			continue; /* the block was used since */
		s->held[u.block] = NOT_HELD;
		s->stats.held--;
		r.evicted++;
	}
	return r;
}

int tn_policy_sim_belady(const uint64_t *ids, const uint32_t *lengths, size_t requests, uint64_t capacity_blocks,
			 struct tn_policy_sim_result *results, struct tn_policy_sim_stats *stats)
{
	struct belady s = {.ids = ids, .lengths = lengths, .requests = requests, .capacity = capacity_blocks};
	uint64_t start = 0;
	int rc = init(&s);

	if (rc) {
		fini(&s);
		return rc;
	}
	look_ahead(&s);
	for (size_t q = 0; q < requests; q++) {
		struct tn_policy_sim_result r = serve(&s, start, lengths[q]);

		start += lengths[q];
		s.stats.hits += r.hits;
		s.stats.inserted += r.inserted;
		s.stats.evicted += r.evicted;
		if (results)
			results[q] = r;
	}
	s.stats.requests = requests;
	s.stats.blocks = s.references;
	s.stats.distinct = s.map.count;
	*stats = s.stats;
	fini(&s);
	return 0;
}
