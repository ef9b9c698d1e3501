/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of one block: which spaces belong together, and what was decided about blocks lately. */
#include "core/shares.h"

#include <errno.h>

#include "base/error.h"

#define SETS 1024u /* of decisions about blocks whose ranks save them at about the same time; what is overwritten is decided anew */
#define WAYS 8u
#define DECISIONS (SETS * WAYS)
#define STALE 2048u /* decisions later a rank that has not asked is not waited for any more */
#define RANKS_MAX 64u	/* bits of `asked`; a rank beyond them decides by itself */

struct tn_decision_made {
	struct tn_key key;
	uint64_t number; /* in the order of the decisions, from 1 */
	uint64_t asked; /* bit by rank: it was told; its next question is about another save */
	struct tn_key family;
	tn_block last; /* share that was let in; TN_BLOCK_NONE: none yet */
	uint32_t promised; /* free entries of the tier that ranks are to take which have not asked yet */
	bool let_in;
};

int tn_shares_create(struct tn_shares *s, uint32_t max_blocks, const struct tn_alloc *alloc)
{
	s->alloc = alloc;
	s->max_blocks = max_blocks;
	for (uint32_t i = 0; i < TN_SPACES_MAX; i++)
		s->next[i] = s->first[i] = (uint16_t)i;
	s->made = tn_get(alloc, tn_array_bytes(DECISIONS, sizeof(*s->made)));
	return s->made ? 0 : -ENOMEM;
}

void tn_shares_destroy(struct tn_shares *s)
{
	if (!s->alloc)
		return;
	tn_put(s->alloc, s->share, tn_array_bytes(s->max_blocks, sizeof(*s->share)));
	tn_put(s->alloc, s->made, tn_array_bytes(DECISIONS, sizeof(*s->made)));
}

/* Each record is a ring of its own. */
static int make_rings(struct tn_shares *s, struct tn_tier_base *t)
{
	if (s->share || !t)
		return 0;
	s->share = tn_get(s->alloc, tn_array_bytes(s->max_blocks, sizeof(*s->share)));
	if (!s->share)
		return tn_fail(-ENOMEM, "no memory for the shares of %u blocks", s->max_blocks);
	for (uint32_t i = 0; i < s->max_blocks; i++)
		s->share[i] = i;
	t->share = s->share;
	s->tier = t;
	return 0;
}

static uint32_t others(const struct tn_shares *s, uint16_t space)
{
	uint32_t n = 0;

	for (uint16_t at = s->next[space]; at != space; at = s->next[at])
		n += s->rank[at] < RANKS_MAX;
	return n;
}

static bool has_rank(const struct tn_shares *s, uint16_t space, uint32_t rank)
{
	uint16_t at = space;

	do {
		if (s->rank[at] == rank)
			return true;
		at = s->next[at];
	} while (at != space);
	return false;
}

int tn_shares_join(struct tn_shares *s, struct tn_tier_base *t, uint16_t space, const struct tn_key *family, uint32_t rank)
{
	uint32_t other = 0;

	if (tn_key_eq(&s->family[space], family))
		return 0;
	while (other < TN_SPACES_MAX && !tn_key_eq(&s->family[other], family))
		other++;
	if (other < TN_SPACES_MAX && has_rank(s, (uint16_t)other, rank))
		return 0; /* another engine's, of another geometry */
	if (other < TN_SPACES_MAX && make_rings(s, t))
		return -ENOMEM;
	s->family[space] = *family;
	s->rank[space] = rank;
	if (other == TN_SPACES_MAX)
		return 0;
	s->next[space] = s->next[other];
	s->next[other] = space;
	s->first[space] = s->first[other];
	if (t && others(s, space) >= t->ranks)
		t->ranks = others(s, space) + 1;
	return 0;
}

static void release(struct tn_tier_base *t, struct tn_decision_made *d)
{
	t->promised -= d->promised;
	d->promised = 0;
}

void tn_shares_leave(struct tn_shares *s, uint16_t space)
{
	uint16_t before = space;

	while (s->next[before] != space)
		before = s->next[before];
	s->next[before] = s->next[space];
	s->next[space] = space;
	for (uint16_t at = before; before != space && s->first[at] == space; at = s->next[at]) /* what the policy remembers of blocks that are not there is lost */
		s->first[at] = before;
	s->first[space] = space;
	for (uint32_t i = 0; i < DECISIONS && s->tier; i++) /* it does not ask any more */
		if (tn_key_eq(&s->made[i].family, &s->family[space]))
			release(s->tier, &s->made[i]);
	s->family[space] = (struct tn_key){{0, 0}};
}

static bool is_about(const struct tn_shares *s, const struct tn_decision_made *d, uint16_t space, const struct tn_key *key)
{
	return d->asked != 0 && tn_key_eq(&d->family, &s->family[space]) && tn_key_eq(&d->key, key);
}

/* The decision about the block, or the one to overwrite: that is none, or the oldest. */
static struct tn_decision_made *place_of(const struct tn_shares *s, uint16_t space, const struct tn_key *key)
{
	struct tn_decision_made *set = &s->made[(key->word[0] ^ s->family[space].word[0]) % SETS * WAYS], *oldest = set;

	for (uint32_t i = 0; i < WAYS; i++) {
		if (is_about(s, &set[i], space, key))
			return &set[i];
		if (set[i].number < oldest->number)
			oldest = &set[i];
	}
	return oldest;
}

static bool is_alone(const struct tn_shares *s, uint16_t space)
{
	return s->next[space] == space || s->rank[space] >= RANKS_MAX;
}

enum tn_policy_decided tn_shares_decided(const struct tn_shares *s, const struct tn_tier_base *t, uint16_t space, const struct tn_key *key)
{
	const struct tn_decision_made *d = place_of(s, space, key);

	if (is_alone(s, space))
		return TN_POLICY_UNDECIDED;
	if (is_about(s, d, space, key) && !(d->asked >> s->rank[space] & 1))
		return d->let_in ? TN_POLICY_LET_IN : TN_POLICY_KEPT_OUT;
	return tn_tier_mate(t, space, key) != TN_BLOCK_NONE ? TN_POLICY_LET_IN : TN_POLICY_UNDECIDED;
}

/* Shares that are on their way are not found by their key. */
static bool is_share(const struct tn_shares *s, const struct tn_tier_base *t, tn_block b, uint16_t space, const struct tn_key *key)
{
	struct tn_key its;

	if (b == TN_BLOCK_NONE || tn_tier_residency(t, b) == TN_ABSENT)
		return false;
	its = tn_block_key(t->registry, b);
	return tn_key_eq(&its, key) && tn_key_eq(&s->family[tn_block_space(t->registry, b)], &s->family[space]);
}

/* One of all per decision: what was promised long ago is not kept. */
static void look_for_stale(struct tn_shares *s, struct tn_tier_base *t)
{
	struct tn_decision_made *d = &s->made[s->decisions % DECISIONS];

	if (d->number + STALE < s->decisions)
		release(t, d);
}

void tn_shares_note(struct tn_shares *s, struct tn_tier_base *t, uint16_t space, const struct tn_key *key, bool let_in)
{
	struct tn_decision_made *d = place_of(s, space, key);
	uint64_t bit;

	if (is_alone(s, space))
		return;
	bit = UINT64_C(1) << s->rank[space];
	if (!is_about(s, d, space, key) || d->asked & bit) {
		bool first = let_in && !is_share(s, t, d->last, space, key) && tn_tier_mate(t, space, key) == TN_BLOCK_NONE;

		release(t, d);
		*d = (struct tn_decision_made){.key = *key, .family = s->family[space], .let_in = let_in, .last = TN_BLOCK_NONE, .number = ++s->decisions};
		d->promised = first ? others(s, space) : 0;
		t->promised += d->promised;
		look_for_stale(s, t);
	} else if (d->promised > 0) {
		d->promised--;
		t->promised--;
	}
	d->asked |= bit;
}

void tn_shares_took(struct tn_shares *s, struct tn_tier_base *t, tn_block b)
{
	uint16_t space = tn_block_space(t->registry, b);
	struct tn_key key = tn_block_key(t->registry, b);
	struct tn_decision_made *d = place_of(s, space, &key);
	tn_block mate;

	if (is_alone(s, space))
		return;
	mate = is_share(s, t, d->last, space, &key) ? d->last : tn_tier_mate(t, space, &key);
	if (mate != TN_BLOCK_NONE)
		tn_tier_follow(t, b, mate);
	if (is_about(s, d, space, &key))
		d->last = b;
}
