/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software controller's volatile cache: blocks as they were before writes that no flush covers, and what a power cut leaves of them. The namespace's
 * memory always has the new bytes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "nvme_soft_internal.h"

bool tn_soft_remember(struct tn_soft *s, const struct tn_soft_work *w, uint64_t block, uint64_t blocks)
{
	bool own = w >= s->work && w < s->work + TN_SOFT_WORK_MAX;

	for (uint64_t i = 0; s->o.cache && i < blocks; i++) {
		struct tn_soft_undo *u = malloc(sizeof(*u) + s->o.block_bytes);

		if (!u)
			return false;
		*u = (struct tn_soft_undo){.next = s->undo, .block = block + i, .number = w->number, .work = own ? w : NULL,
					   .at = (uint32_t)i, .of = (uint32_t)blocks};
		memcpy(u->bytes, s->media + (block + i) * s->o.block_bytes, s->o.block_bytes);
		s->undo = u;
	}
	return true;
}

void tn_soft_settle(struct tn_soft *s, uint64_t block, uint64_t blocks)
{
	for (struct tn_soft_undo **at = &s->undo, *u = *at; u; u = *at) {
		if (u->block - block >= blocks) {
			at = &u->next;
			continue;
		}
		*at = u->next;
		free(u);
	}
}

/* The host cannot know yet that it ended: a flush need not cover it. */
static bool under_way(const struct tn_soft_undo *u)
{
	return u->work->number == u->number && !u->work->told;
}

void tn_soft_cover(struct tn_soft *s, uint64_t flush)
{
	for (struct tn_soft_undo *u = s->undo; u; u = u->next)
		if (!u->flush && !under_way(u))
			u->flush = flush;
}

void tn_soft_flush(struct tn_soft *s, uint64_t flush)
{
	s->stats.flushes++;
	for (struct tn_soft_undo **at = &s->undo, *u = *at; u; u = *at) {
		if (!u->flush || u->flush > flush) {
			at = &u->next;
			continue;
		}
		*at = u->next;
		free(u);
	}
}

static void restore(struct tn_soft *s, const struct tn_soft_undo *u)
{
	memcpy(s->media + u->block * s->o.block_bytes, u->bytes, s->o.block_bytes);
}

void tn_soft_lose(struct tn_soft *s)
{
	for (struct tn_soft_undo *u = s->undo; u; u = u->next)
		if (tn_rng_below(&s->rng, 2))
			restore(s, u);
	tn_soft_settle(s, 0, UINT64_MAX);
}

/* ---- copies --------------------------------------------------------------------------------------------------- */

static bool copy_undo(const struct tn_soft *s, struct tn_soft *c)
{
	struct tn_soft_undo **end = &c->undo;

	for (const struct tn_soft_undo *u = s->undo; u; u = u->next) {
		struct tn_soft_undo *v = malloc(sizeof(*v) + s->o.block_bytes);

		if (!v)
			return false;
		memcpy(v, u, sizeof(*v) + s->o.block_bytes);
		v->next = NULL;
		/* Ended, or done but not yet told. */
		v->work = u->work && under_way(u) ? NULL : &c->work[0];
		*end = v;
		end = &v->next;
	}
	return true;
}

int tn_soft_copy(struct tn_soft *s, uint64_t seed, struct tn_soft **out)
{
	struct tn_soft_opts o = s->o;
	struct tn_soft *c;
	int rc;

	o.seed = seed;
	o.file = NULL;
	rc = tn_soft_create(&o, &c);
	if (rc)
		return rc;
	madvise(c->media, s->o.blocks * s->o.block_bytes, MADV_HUGEPAGE); /* copying is mostly page faults */
	memcpy(c->media, s->media, s->o.blocks * s->o.block_bytes);
	c->number = s->number;
	if (!copy_undo(s, c)) {
		tn_soft_destroy(c);
		return -ENOMEM;
	}
	for (uint32_t i = 0; i < s->nactive; i++) {
		struct tn_soft_work *w = &s->work[s->active[i]];

		if (w->queue == TN_NVME_ADMIN || w->done || tn_soft_copy_write(s, w, c))
			continue;
		tn_soft_destroy(c);
		return -ENOMEM;
	}
	*out = c;
	return 0;
}

/* A younger command's write to the same block stays, so that it does not matter what becomes of this one. */
static bool is_overwritten(const struct tn_soft *copy, const struct tn_soft_undo *u)
{
	for (const struct tn_soft_undo *v = copy->undo; v != u; v = v->next)
		if (v->block == u->block && v->kept)
			return true;
	return false;
}

static bool may_be_taken(const struct tn_soft_undo *u, bool power_cut)
{
	return power_cut || !u->work;
}

void tn_soft_cut(struct tn_soft *copy, bool power_cut, tn_soft_keeps keeps, void *arg)
{
	struct tn_soft_volatile v = {0};
	uint64_t number = 0;

	for (const struct tn_soft_undo *u = copy->undo; u; u = u->next) {
		v.count += may_be_taken(u, power_cut) && u->number != number;
		number = may_be_taken(u, power_cut) ? u->number : number;
	}
	v.index = UINT32_MAX;
	for (struct tn_soft_undo *u = copy->undo; u; u = u->next) {
		if (!may_be_taken(u, power_cut))
			continue;
		v.index += u->number != v.number;
		v.number = u->number;
		v.under_way = !u->work;
		v.at = u->at;
		v.of = u->of;
		u->kept = keeps(arg, &v);
		if (!u->kept && !is_overwritten(copy, u))
			restore(copy, u);
		u->work = &copy->work[0];
	}
	if (power_cut)
		tn_soft_settle(copy, 0, UINT64_MAX);
}
