/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/policy_ghost.h"

#include <errno.h>

#define WAYS 16u
#define LOAD_PERCENT 60u

struct tn_ghost {
	uint32_t tag;
	uint32_t sequence;
};

static size_t ghosts_bytes(const struct tn_ghosts *g)
{
	return tn_array_bytes((size_t)g->nbins * WAYS, sizeof(struct tn_ghost));
}

int tn_ghosts_init(struct tn_ghosts *g, uint32_t limit, const struct tn_alloc *alloc)
{
	*g = (struct tn_ghosts){.alloc = alloc, .limit = limit, .most = limit, .oldest = 1, .next = 1};
	g->nbins = (uint32_t)((uint64_t)limit * 100 / (LOAD_PERCENT * WAYS)) + 1;
	/* The span holds three taken ghosts per remaining ghost; beyond that the oldest are forgotten early. */
	for (g->span = 64; g->span < (uint64_t)limit * 4 && g->span < 1u << 31;)
		g->span *= 2;
	g->ghosts = tn_get(alloc, ghosts_bytes(g));
	g->live = tn_get(alloc, g->span / 8);
	return g->ghosts && g->live ? 0 : -ENOMEM;
}

void tn_ghosts_fini(struct tn_ghosts *g)
{
	tn_put(g->alloc, g->ghosts, ghosts_bytes(g));
	tn_put(g->alloc, g->live, g->span / 8);
}

static bool is_live(const struct tn_ghosts *g, uint32_t sequence)
{
	uint32_t bit = sequence & (g->span - 1);

	return g->next - sequence - 1 < g->next - g->oldest && (g->live[bit / 64] >> bit % 64 & 1);
}

static void forget(struct tn_ghosts *g, uint32_t sequence)
{
	uint32_t bit = sequence & (g->span - 1);

	g->live[bit / 64] &= ~((uint64_t)1 << bit % 64);
	g->count--;
}

static void advance_oldest(struct tn_ghosts *g)
{
	if (is_live(g, g->oldest))
		forget(g, g->oldest);
	g->oldest++;
}

void tn_ghosts_keep(struct tn_ghosts *g, uint32_t limit)
{
	g->limit = limit < g->most ? limit : g->most;
	while (g->count > g->limit)
		advance_oldest(g);
}

/* One of the two bins of a hash. */
static struct tn_ghost *bin_of(const struct tn_ghosts *g, uint64_t hash, uint32_t which)
{
	uint64_t place = which ? hash * 0x9e3779b97f4a7c15u >> 32 : hash >> 32;

	return &g->ghosts[(place * g->nbins >> 32) * WAYS];
}

/* A way for a new ghost: a way whose ghost is not live, or that of the oldest ghost. */
static struct tn_ghost *way_of(const struct tn_ghosts *g, struct tn_ghost *bin, uint32_t *live)
{
	struct tn_ghost *dead = NULL, *oldest = bin;

	*live = 0;
	for (uint32_t i = 0; i < WAYS; i++) {
		if (!is_live(g, bin[i].sequence)) {
			dead = &bin[i];
			continue;
		}
		++*live;
		if (g->next - bin[i].sequence > g->next - oldest->sequence)
			oldest = &bin[i];
	}
	return dead ? dead : oldest;
}

void tn_ghosts_put(struct tn_ghosts *g, uint64_t hash)
{
	struct tn_ghost *place, *other;
	uint32_t live, other_live;

	if (g->limit == 0)
		return;
	if (g->next - g->oldest == g->span)
		advance_oldest(g);
	place = way_of(g, bin_of(g, hash, 0), &live);
	other = way_of(g, bin_of(g, hash, 1), &other_live);
	if (other_live < live)
		place = other;
	if (is_live(g, place->sequence))
		forget(g, place->sequence);
	*place = (struct tn_ghost){(uint32_t)hash, g->next};
	g->live[(g->next & (g->span - 1)) / 64] |= (uint64_t)1 << (g->next & 63);
	g->next++;
	g->count++;
	while (g->count > g->limit)
		advance_oldest(g);
}

bool tn_ghosts_take(struct tn_ghosts *g, uint64_t hash)
{
	for (uint32_t which = 0; which < 2; which++) {
		struct tn_ghost *bin = bin_of(g, hash, which);

		for (uint32_t i = 0; i < WAYS; i++)
			if (bin[i].tag == (uint32_t)hash && is_live(g, bin[i].sequence)) {
				forget(g, bin[i].sequence);
				return true;
			}
	}
	return false;
}
