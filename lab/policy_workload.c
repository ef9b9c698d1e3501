/* SPDX-License-Identifier: Apache-2.0 */
/* Random workloads; see policy_workload.h. */
#include "lab/policy_workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"

#define SESSIONS_MAX 256u
#define DOCUMENTS_MAX 4096u
#define SOURCES_MAX 3u
#define PROMPT_MAX 4096u

enum source_kind { SESSIONS, DOCUMENTS, LOOP, SCAN, SOURCE_KINDS };

static const char *const source_names[SOURCE_KINDS] = {"sessions", "documents", "loop", "scan"};

struct session {
	uint64_t ids[PROMPT_MAX];
	uint32_t n;
	uint32_t turns_left;
};

/* One way to ask. Means are of geometric distributions. */
struct source {
	enum source_kind kind;
	uint32_t weight;
	uint32_t common; /* different prefixes that prompts begin with, of common_mean blocks */
	uint32_t common_mean;
	uint32_t first_mean; /* blocks of a session's first prompt, of a document, of a scanned prompt */
	uint32_t tail; /* 0: none; 1: each request ends with an unfinished tail; 2: with up to 3 blocks of its own */
	/* Sessions. */
	uint32_t at_once, turns_mean, growth_mean, order, cut;
	/* Documents and loops. */
	uint32_t count, skew;
	uint64_t fresh, next_id; /* ids */
	uint32_t at, open;
	struct session *session;
	uint32_t common_length[8];
	uint16_t length[DOCUMENTS_MAX];
};

static void *room_for(void *old, size_t n, size_t bytes)
{
	void *p = realloc(old, n * bytes);

	if (!p) {
		fprintf(stderr, "no memory for a workload\n");
		exit(1);
	}
	return p;
}

static uint32_t between(struct tn_rng *rng, uint32_t lo, uint32_t hi)
{
	return lo + tn_rng_below(rng, hi - lo + 1);
}

/* Each octave from lo to hi is as likely as any other. */
static uint32_t octaves(struct tn_rng *rng, uint32_t lo, uint32_t hi)
{
	uint32_t n = 1, base;

	while ((uint64_t)lo << n < hi)
		n++;
	base = lo << tn_rng_below(rng, n);
	base += tn_rng_below(rng, base);
	return base < hi ? base : hi;
}

/* Geometric, at least 1. */
static uint32_t about(struct tn_rng *rng, uint32_t mean)
{
	uint32_t n = 1;

	while (n < mean * 8 && tn_rng_below(rng, mean) != 0)
		n++;
	return n;
}

static void describe(const struct source *s, char *text, size_t bytes)
{
	size_t n = strlen(text);

	if (s->kind == SESSIONS)
		snprintf(text + n, bytes - n, " %s(%u at once, %u+%u blocks, %u turns, order %u)", source_names[s->kind], s->at_once, s->first_mean,
			 s->growth_mean, s->turns_mean, s->order);
	else
		snprintf(text + n, bytes - n, " %s(%u of %u, skew %u)", source_names[s->kind], s->count, s->first_mean, s->skew);
}

static void source_init(struct source *s, struct tn_rng *rng, uint64_t number)
{
	*s = (struct source){.kind = (enum source_kind)tn_rng_below(rng, SOURCE_KINDS), .next_id = (number + 1) << 40};
	s->weight = octaves(rng, 1, 16);
	s->common = tn_rng_below(rng, 3) ? between(rng, 1, 8) : 0;
	s->common_mean = octaves(rng, 1, 32);
	s->first_mean = octaves(rng, 1, 96);
	s->tail = tn_rng_below(rng, 3);
	s->at_once = octaves(rng, 1, SESSIONS_MAX);
	s->turns_mean = octaves(rng, 1, 32);
	s->growth_mean = octaves(rng, 1, 16);
	s->order = tn_rng_below(rng, 3);
	s->cut = tn_rng_below(rng, 4) ? 0 : between(rng, 5, 50);
	s->count = octaves(rng, 16, s->kind == LOOP ? DOCUMENTS_MAX / 4 : DOCUMENTS_MAX);
	s->skew = tn_rng_below(rng, 4);
	for (uint32_t i = 0; i < 8; i++)
		s->common_length[i] = about(rng, s->common_mean);
	for (uint32_t i = 0; i < DOCUMENTS_MAX; i++)
		s->length[i] = (uint16_t)about(rng, s->first_mean);
	s->fresh = s->next_id + ((uint64_t)(DOCUMENTS_MAX + 8) << 20);
	if (s->kind == SESSIONS)
		s->session = room_for(NULL, s->at_once, sizeof(*s->session));
}

static uint32_t append_fresh(struct source *s, uint64_t *ids, uint32_t at, uint32_t n)
{
	while (n-- > 0 && at < PROMPT_MAX)
		ids[at++] = s->fresh++;
	return at;
}

static uint32_t append_common(const struct source *s, uint32_t which, uint64_t *ids)
{
	uint32_t n = 0;

	for (; s->common && n < s->common_length[which % s->common]; n++)
		ids[n] = s->next_id + ((uint64_t)(which % s->common) << 20) + n;
	return n;
}

/* The session that goes on: any, the one that has waited for longest, or often the one that has just been. */
static uint32_t choose_session(struct source *s, struct tn_rng *rng)
{
	if (s->order == 1)
		s->at = (s->at + 1) % s->open;
	else if (s->order == 0 || tn_rng_below(rng, 4) == 0)
		s->at = tn_rng_below(rng, s->open);
	return s->at % s->open;
}

static uint32_t ask_session(struct source *s, struct tn_rng *rng, uint64_t *ids)
{
	struct session *x;
	uint32_t which, n;

	while (s->open < s->at_once) {
		x = &s->session[s->open++];
		n = append_common(s, tn_rng_below(rng, 8), x->ids);
		x->n = append_fresh(s, x->ids, n, about(rng, s->first_mean));
		x->turns_left = about(rng, s->turns_mean);
	}
	which = choose_session(s, rng);
	x = &s->session[which];
	n = x->n;
	memcpy(ids, x->ids, n * sizeof(*ids));
	if (s->cut && tn_rng_below(rng, s->cut) == 0 && x->n > 8) /* the session branches off */
		x->n -= tn_rng_below(rng, x->n / 2);
	x->n = append_fresh(s, x->ids, x->n, about(rng, s->growth_mean));
	if (--x->turns_left == 0 || x->n >= PROMPT_MAX - 8)
		*x = s->session[--s->open];
	return n;
}

static uint32_t ask_document(struct source *s, struct tn_rng *rng, uint64_t *ids)
{
	double u = tn_rng_unit(rng);
	uint32_t which, n;

	for (uint32_t i = 0; i < s->skew; i++)
		u *= u;
	which = s->kind == LOOP ? s->at++ % s->count : (uint32_t)(u * s->count);
	n = append_common(s, (uint32_t)tn_mix64(which) % 8, ids);
	for (uint32_t i = 0; i < s->length[which]; i++)
		ids[n++] = s->next_id + ((uint64_t)(which + 8) << 20) + i;
	return n;
}

static void ask(struct tn_workload *w, struct source *s, struct tn_rng *rng)
{
	static uint64_t ids[2 * PROMPT_MAX];
	uint32_t n;

	if (s->kind == SESSIONS)
		n = ask_session(s, rng, ids);
	else if (s->kind == SCAN)
		n = append_fresh(s, ids, append_common(s, tn_rng_below(rng, 8), ids), about(rng, s->first_mean));
	else
		n = ask_document(s, rng, ids);
	if (s->tail)
		n = append_fresh(s, ids, n, s->tail == 1 ? 1 : tn_rng_below(rng, 4));
	tn_workload_add(w, ids, n, s->tail == 1);
}

void tn_workload_add(struct tn_workload *w, const uint64_t *ids, uint32_t n, bool partial)
{
	if (w->requests == w->requests_room) {
		w->requests_room = w->requests * 2 + 1024;
		w->lengths = room_for(w->lengths, w->requests_room, sizeof(*w->lengths));
		w->partial = room_for(w->partial, w->requests_room, sizeof(*w->partial));
	}
	if (w->blocks + n > w->blocks_room) {
		w->blocks_room = (w->blocks + n) * 2;
		w->ids = room_for(w->ids, w->blocks_room, sizeof(*w->ids));
	}
	memcpy(w->ids + w->blocks, ids, n * sizeof(*ids));
	w->blocks += n;
	w->lengths[w->requests] = n;
	w->partial[w->requests++] = partial;
	if (n > w->longest)
		w->longest = n;
}

void tn_workload_make(struct tn_workload *w, uint64_t seed)
{
	static struct source sources[SOURCES_MAX];
	struct tn_rng rng;
	uint32_t n, total = 0, blocks, turn, at = 0;

	*w = (struct tn_workload){.requests = 0};
	tn_rng_seed(&rng, seed);
	n = between(&rng, 1, SOURCES_MAX);
	blocks = octaves(&rng, 50000, 400000);
	turn = tn_rng_below(&rng, 3) ? 0 : octaves(&rng, 64, 4096); /* requests before another source has its turn; 0: all at once */
	for (uint32_t i = 0; i < n; i++) {
		source_init(&sources[i], &rng, i);
		total += sources[i].weight;
		describe(&sources[i], w->name, sizeof(w->name));
	}
	while (w->blocks < blocks) {
		uint32_t pick = tn_rng_below(&rng, total);

		if (!turn)
			for (at = 0; pick >= sources[at].weight; at++)
				pick -= sources[at].weight;
		else if (w->requests % turn == 0)
			at = (at + 1) % n;
		ask(w, &sources[at], &rng);
	}
	for (uint32_t i = 0; i < n; i++)
		free(sources[i].session);
}

void tn_workload_free(struct tn_workload *w)
{
	free(w->ids);
	free(w->lengths);
	free(w->partial);
	*w = (struct tn_workload){.requests = 0};
}
