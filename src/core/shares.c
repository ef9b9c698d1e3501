/* SPDX-License-Identifier: Apache-2.0 */
/* Shares of one block: which spaces belong together, and what was decided about blocks lately. */
#include "core/shares.h"

#include <errno.h>

#define DECISIONS 4096u /* blocks whose ranks save them at about the same time; what is overwritten is decided anew */
#define RANKS_MAX 64u	/* bits of `asked`; a rank beyond them decides by itself */

struct tn_decision_made {
	struct tn_key key;
	uint64_t asked; /* bit by rank: it was told; its next question is about another save */
	struct tn_key family;
	bool let_in;
};

int tn_shares_create(struct tn_shares *s, const struct tn_alloc *alloc)
{
	for (uint32_t i = 0; i < TN_STORE_SPACES_MAX; i++)
		s->next[i] = (uint16_t)i;
	s->made = tn_get(alloc, tn_array_bytes(DECISIONS, sizeof(*s->made)));
	return s->made ? 0 : -ENOMEM;
}

void tn_shares_destroy(struct tn_shares *s, const struct tn_alloc *alloc)
{
	tn_put(alloc, s->made, tn_array_bytes(DECISIONS, sizeof(*s->made)));
}

void tn_shares_join(struct tn_shares *s, uint16_t space, const struct tn_key *family, uint32_t rank)
{
	uint32_t other = 0;

	if (tn_key_eq(&s->family[space], family))
		return;
	while (other < TN_STORE_SPACES_MAX && !tn_key_eq(&s->family[other], family))
		other++;
	s->family[space] = *family;
	s->rank[space] = rank;
	if (other == TN_STORE_SPACES_MAX)
		return;
	s->next[space] = s->next[other];
	s->next[other] = space;
}

void tn_shares_leave(struct tn_shares *s, uint16_t space)
{
	uint16_t before = space;

	while (s->next[before] != space)
		before = s->next[before];
	s->next[before] = s->next[space];
	s->next[space] = space;
	s->family[space] = (struct tn_key){{0, 0}};
}

static struct tn_decision_made *place_of(const struct tn_shares *s, uint16_t space, const struct tn_key *key)
{
	return &s->made[(key->word[0] ^ s->family[space].word[0]) % DECISIONS];
}

static bool is_about(const struct tn_shares *s, const struct tn_decision_made *d, uint16_t space, const struct tn_key *key)
{
	return d->asked != 0 && tn_key_eq(&d->family, &s->family[space]) && tn_key_eq(&d->key, key);
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
	return tn_tier_has_share(t, space, key) ? TN_POLICY_LET_IN : TN_POLICY_UNDECIDED;
}

void tn_shares_note(struct tn_shares *s, uint16_t space, const struct tn_key *key, bool let_in)
{
	struct tn_decision_made *d = place_of(s, space, key);

	if (is_alone(s, space))
		return;
	if (!is_about(s, d, space, key) || d->asked >> s->rank[space] & 1)
		*d = (struct tn_decision_made){.key = *key, .family = s->family[space], .let_in = let_in};
	d->asked |= UINT64_C(1) << s->rank[space];
}
