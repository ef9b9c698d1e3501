/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Look-ups and the leases that they take. Any thread: the registry's table is read without the owner, and a lease is a list of
 * pinned blocks from a pool that is sized at open. A look-up that is begun and polled, for tiers that answer later, is a query: it
 * keeps its arguments, in tables that are sized at open, too.
 */
#include <errno.h>
#include <string.h>

#include "base/abi.h"
#include "base/error.h"
#include "base/stack.h"
#include "base/trace.h"
#include "front/attach.h"
#include "region/latency.h"

#define FIND_AT_ONCE 256u /* keys */

struct tn_query {
	uint32_t next;	     /* free stack */
	uint32_t generation; /* odd: under way. Shared. */
	unsigned flags;
	uint32_t nspaces, n;
	struct tn_holder *holder; /* whose it is; NULL: the owner's process */
	uint64_t deadline_ns;
	struct tn_space *space[TN_MATCH_SPACES_MAX];
	struct tn_lookup *lookup[TN_MATCH_SPACES_MAX]; /* NULL: nothing is asked that is answered later */
	struct tn_key *keys;
};

int tn_match_create(struct tn_cache *cache)
{
	uint32_t nqueries = cache->o.max_ops, n = nqueries * 4, each = cache->o.max_op_blocks;
	struct tn_common queries = {.most = nqueries}, leases = {.most = n};
	struct tn_matches *m = tn_get(cache->alloc, sizeof(*m));

	if (!m)
		return tn_fail(-ENOMEM, "no memory for look-ups");
	cache->matches = m;
	m->common_leases = leases;
	m->common_queries = queries;
	n += TN_SESSIONS_MAX * TN_ALLOTTED_LEASES;
	nqueries += TN_SESSIONS_MAX * TN_ALLOTTED_QUERIES;
	m->nleases = n;
	m->nqueries = nqueries;
	m->leases = tn_get(cache->alloc, tn_array_bytes(n, sizeof(*m->leases)));
	m->lease_blocks = tn_get(cache->alloc, tn_array_bytes(n, each * sizeof(tn_block)));
	m->queries = tn_get(cache->alloc, tn_array_bytes(nqueries, sizeof(*m->queries)));
	m->query_keys = tn_get(cache->alloc, tn_array_bytes(nqueries, each * sizeof(struct tn_key)));
	if (!m->leases || !m->lease_blocks || !m->queries || !m->query_keys)
		return tn_fail(-ENOMEM, "no memory for %u leases and %u look-ups; lower max_ops or max_op_blocks", n, nqueries);
	for (uint32_t i = 0; i < n; i++) {
		m->leases[i].blocks = m->lease_blocks + (size_t)i * each;
		tn_stack_push(&m->free_leases, i, &m->leases[i].next);
	}
	for (uint32_t i = 0; i < nqueries; i++) {
		m->queries[i].keys = m->query_keys + (size_t)i * each;
		tn_stack_push(&m->free_queries, i, &m->queries[i].next);
	}
	return 0;
}

void tn_match_destroy(struct tn_cache *cache)
{
	const struct tn_alloc *a = cache->alloc;
	struct tn_matches *m = cache->matches;
	uint32_t each = cache->o.max_op_blocks;

	if (!m)
		return;
	tn_put(a, m->leases, tn_array_bytes(m->nleases, sizeof(*m->leases)));
	tn_put(a, m->lease_blocks, tn_array_bytes(m->nleases, each * sizeof(tn_block)));
	tn_put(a, m->queries, tn_array_bytes(m->nqueries, sizeof(*m->queries)));
	tn_put(a, m->query_keys, tn_array_bytes(m->nqueries, each * sizeof(struct tn_key)));
	tn_put(a, m, sizeof(*m));
}

static void unpin(struct tn_cache *cache, tn_block b)
{
	tn_block_unpin(cache->registry, b);
	tn_doomed_unpinned(&cache->blocks, b);
}

/* The lease has so many blocks from now on. */
static void lease_has(struct tn_lease *lease, uint32_t n)
{
	if (lease->holder)
		__atomic_fetch_add(&lease->holder->listed, (uint64_t)n - lease->n, __ATOMIC_RELAXED);
	lease->n = n;
}

/* Unpins what the lease and those behind it have. */
static void unpin_all(struct tn_cache *cache, struct tn_lease *lease)
{
	for (; lease; lease = lease->rest) {
		for (uint32_t i = 0; i < lease->n; i++)
			unpin(cache, lease->blocks[i]);
		lease_has(lease, 0);
	}
}

/* Ends the lease and those behind it, which are one holder's. */
static void lease_give(struct tn_cache *cache, struct tn_lease *lease)
{
	struct tn_holder *holder = lease ? lease->holder : NULL;
	struct tn_matches *m = cache->matches;
	uint32_t n = 0;

	unpin_all(cache, lease);
	for (; lease; n++) {
		struct tn_lease *rest = lease->rest;

		lease->rest = NULL;
		tn_list_del(&lease->link);
		tn_stack_push(&m->free_leases, (uint32_t)(lease - m->leases), &lease->next);
		lease = rest;
	}
	tn_allotment_give(&m->common_leases, holder ? &holder->leases : NULL, n);
}

static size_t seen_bytes(const struct tn_cache *cache)
{
	return (cache->max_blocks / 64u + 1) * sizeof(uint64_t);
}

int tn_holder_init(struct tn_holder *holder, const struct tn_cache *cache)
{
	holder->leases = (struct tn_allotment){.own = TN_ALLOTTED_LEASES};
	holder->queries = (struct tn_allotment){.own = TN_ALLOTTED_QUERIES};
	tn_list_init(&holder->taken);
	holder->seen = tn_get(cache->alloc, seen_bytes(cache));
	return holder->seen ? 0 : tn_fail(-ENOMEM, "no memory for a session");
}

void tn_holder_fini(struct tn_holder *holder, const struct tn_cache *cache)
{
	tn_put(cache->alloc, holder->seen, seen_bytes(cache));
}

/* How many blocks the leases of a session keep, each once. */
static uint64_t count_leased(struct tn_holder *holder)
{
	uint64_t n = 0;

	for (const struct tn_list *pos = holder->taken.next; pos != &holder->taken; pos = pos->next) {
		const struct tn_lease *lease = tn_container_of(pos, struct tn_lease, link);

		for (uint32_t i = 0; i < lease->n; i++) {
			uint64_t *word = &holder->seen[lease->blocks[i] / 64], bit = UINT64_C(1) << lease->blocks[i] % 64;

			n += !(*word & bit);
			*word |= bit;
		}
	}
	for (const struct tn_list *pos = holder->taken.next; pos != &holder->taken; pos = pos->next) {
		const struct tn_lease *lease = tn_container_of(pos, struct tn_lease, link);

		for (uint32_t i = 0; i < lease->n; i++)
			holder->seen[lease->blocks[i] / 64] = 0;
	}
	return n;
}

/*
 * tn_registry_find, but for blocks whose time is over. Those found are pinned if there is a list for them; tiers (may be
 * NULL) and counts[tier] are set for them.
 */
static uint32_t find_alive(struct tn_space *space, const struct tn_key *keys, uint32_t n, tn_block *blocks,
			   uint8_t *tiers, uint32_t *counts)
{
	struct tn_cache *cache = space->cache;
	tn_block some[FIND_AT_ONCE];
	uint8_t tier[FIND_AT_ONCE];
	uint32_t done = 0;

	memset(counts, 0, TN_TIERS_MAX * sizeof(*counts));
	for (;;) {
		uint32_t want = n - done < FIND_AT_ONCE ? n - done : FIND_AT_ONCE, alive = 0, found;

		found = tn_registry_find(cache->registry, space->index, keys + done, want, blocks != NULL, some, tier);
		for (; alive < found && !tn_watch_expired(cache->watch, some[alive]); alive++) {
			counts[tier[alive]]++;
			if (blocks)
				blocks[done + alive] = some[alive];
			if (tiers)
				tiers[done + alive] = tier[alive];
		}
		for (uint32_t i = alive; blocks && i < found; i++)
			unpin(cache, some[i]);
		done += alive;
		if (alive < want || done == n)
			return done;
	}
}

static uint32_t window_of(const struct tn_space *space)
{
	return space->match_rule == TN_MATCH_EXACT ? 1 : space->window_blocks;
}

/*
 * Applies the group's rule to what was found: keys[first..end) are there, and pinned if there is a list. Returns end.
 * Tiers are said of what matched only: another look of blocks that are not pinned may find less, which is a miss.
 */
static uint32_t find_by_rule(struct tn_space *space, const struct tn_key *keys, uint32_t n, tn_block *blocks,
			     uint8_t *tiers, uint32_t *first, uint32_t *counts)
{
	uint32_t window = window_of(space);

	*first = 0;
	if (space->match_rule == TN_MATCH_PREFIX)
		return find_alive(space, keys, n, blocks, tiers, counts);
	/* The longest prefix whose last `window` blocks are all there. */
	for (uint32_t end = n; end > 0; end--) {
		uint32_t from = end > window ? end - window : 0, got;

		got = find_alive(space, keys + from, end - from, blocks, NULL, counts);
		if (got == end - from && (!tiers || find_alive(space, keys + from, got, NULL, tiers + from, counts) == got)) {
			*first = from;
			return end;
		}
		for (uint32_t i = 0; blocks && i < got; i++)
			unpin(space->cache, blocks[i]);
		end = from + got + 1; /* a window that reaches the gap cannot match */
	}
	memset(counts, 0, TN_TIERS_MAX * sizeof(*counts));
	return 0;
}

/* None is left: whose are they? */
static int too_many(const char *call, const char *what, const char *end, const struct tn_common *c, const struct tn_allotment *p)
{
	if (p && p->taken < c->most)
		return tn_fail(-EAGAIN, "%s: this process has %u %s, of which %u are its own part, and other processes have the rest of the "
			       "owner's %u; %s some, or raise the owner's max_ops", call, p->taken, what, p->own, c->most, end);
	return tn_fail(-EAGAIN, "%s: all %u %s are taken; %s some or raise max_ops", call, c->most, what, end);
}

/* Of n blocks, how many the leases of a session that has attached may keep besides what they keep already. They have their part of the store. */
static size_t leasable(const struct tn_cache *cache, struct tn_holder *holder, size_t n)
{
	uint64_t part = __atomic_load_n(&cache->lease_blocks, __ATOMIC_RELAXED), leased;

	if (!holder || holder->listed + n <= part)
		return n;
	leased = count_leased(holder);
	if (leased < part)
		return part - leased < n ? part - leased : n;
	tn_fail(-EAGAIN, "tn_match: the leases of this process keep %llu of the blocks that the store holds, its part is %llu; tn_unpin some",
		(unsigned long long)leased, (unsigned long long)part);
	return 0;
}

/*
 * As many leases, one behind the other, or none. *nkeys: how many keys may be looked for, fewer if the leases would keep too much otherwise. Windows and
 * checkpoints are short: they are found whole.
 */
static int take_leases(struct tn_holder *holder, struct tn_space *const *spaces, size_t n, size_t *nkeys, struct tn_lease **out)
{
	struct tn_allotment *own = holder ? &holder->leases : NULL;
	struct tn_cache *cache = spaces[0]->cache;
	struct tn_matches *m = cache->matches;
	struct tn_lease *all = NULL;
	size_t prefixes = 0, others = 0, most;

	for (size_t i = 0; i < n; i++) {
		prefixes += spaces[i]->match_rule == TN_MATCH_PREFIX;
		if (spaces[i]->match_rule != TN_MATCH_PREFIX)
			others += window_of(spaces[i]) < *nkeys ? window_of(spaces[i]) : *nkeys;
	}
	most = leasable(cache, holder, *nkeys * prefixes + others);
	if (*nkeys > 0 && most < prefixes + others)
		return -EAGAIN;
	if (prefixes > 0 && *nkeys > (most - others) / prefixes)
		*nkeys = (most - others) / prefixes;
	if (!tn_allotment_take(&m->common_leases, own, (uint32_t)n))
		return too_many("tn_match", "leases", "tn_unpin", &m->common_leases, own);
	for (; n > 0; n--) { /* as many are free as were counted */
		uint32_t i = tn_stack_pop(&m->free_leases, &m->leases[0].next, sizeof(m->leases[0]));

		m->leases[i - 1].rest = all;
		m->leases[i - 1].holder = holder;
		tn_list_init(&m->leases[i - 1].link);
		if (holder)
			tn_list_push(&holder->taken, &m->leases[i - 1].link);
		all = &m->leases[i - 1];
	}
	*out = all;
	return 0;
}

/* The leases' pin, or - nothing matched - none and the leases are free again. */
static uint64_t lease_pin(struct tn_cache *cache, struct tn_lease *lease, bool found)
{
	if (lease && found)
		return (uint64_t)__atomic_add_fetch(&lease->generation, 1, __ATOMIC_ACQ_REL) << 32 |
		       (uint64_t)(lease - cache->matches->leases + 1);
	lease_give(cache, lease);
	return 0;
}

/* Adds what was found of a space to the result. */
static void add_found(const struct tn_space *space, const uint32_t *counts, struct tn_match *m)
{
	const uint64_t *ns_per_mib = space->cache->ns_per_mib;

	for (unsigned t = 0; t < TN_TIERS_MAX; t++) {
		m->tier_blocks[t] += counts[t];
		m->load_ns += (counts[t] * space->shape.slot_bytes >> 20) * __atomic_load_n(&ns_per_mib[t], __ATOMIC_RELAXED);
	}
}

/* A look-up in several spaces counts in the first. */
static void count_lookup(struct tn_space *space, size_t keys, uint32_t hits)
{
	struct tn_matches *m = space->cache->matches;

	__atomic_add_fetch(&m->lookups, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&m->lookup_blocks, keys, __ATOMIC_RELAXED);
	__atomic_add_fetch(&m->hit_blocks, hits, __ATOMIC_RELAXED);
	__atomic_add_fetch(&space->c.lookups, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&space->c.lookup_blocks, keys, __ATOMIC_RELAXED);
	__atomic_add_fetch(&space->c.hit_blocks, hits, __ATOMIC_RELAXED);
	TN_TRACE2(lookup, keys, hits);
}

static void time_lookup(const struct tn_cache *cache, uint64_t begun_ns)
{
	tn_latency_add(&cache->region, TN_LATENCY_MATCH, TN_TIER_NONE, tn_now_ns(&cache->clock) - begun_ns);
}

static size_t most_keys(const struct tn_space *space, size_t n)
{
	if (__atomic_load_n(&space->dropping, __ATOMIC_ACQUIRE))
		return 0;
	return n < space->cache->o.max_op_blocks ? n : space->cache->o.max_op_blocks;
}

static int check_space(const struct tn_space *space, const struct tn_key *keys, size_t n, const struct tn_match *match, unsigned flags)
{
	if (!space || (n && !keys) || !match || (flags & ~TN_MATCH_PIN))
		return tn_fail(-EINVAL, "tn_match: space, keys or match is missing, or unknown flags %#x", flags);
	return tn_check_process(space->cache) ? -ECHILD : 0;
}

/* tn_match, of arguments that were checked. */
static int find_one(struct tn_holder *holder, struct tn_space *space, const struct tn_key *keys, size_t n, uint8_t *tiers, struct tn_match *match,
		    unsigned flags)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_match, pin);
	struct tn_match m = {.size = sizeof(m)};
	struct tn_cache *cache = space->cache;
	struct tn_lease *lease = NULL;
	uint32_t counts[TN_TIERS_MAX];
	size_t asked = most_keys(space, n);
	int rc = tn_abi_check(abi, match);

	if (rc == 0 && cache->attached) {
		rc = tn_remote_match(&space, 1, keys, n, tiers, NULL, &m, flags, false);
		if (rc >= 0)
			tn_abi_out(abi, match, &m);
		return rc;
	}
	if (rc == 0 && flags & TN_MATCH_PIN)
		rc = take_leases(holder, &space, 1, &n, &lease);
	if (rc)
		return rc;
	n = most_keys(space, n);
	m.blocks = find_by_rule(space, keys, (uint32_t)n, lease ? lease->blocks : NULL, tiers, &m.first, counts);
	if (lease)
		lease_has(lease, m.blocks - m.first);
	if (tiers)
		memset(tiers, TN_TIER_NONE, m.first);
	add_found(space, counts, &m);
	count_lookup(space, asked, m.blocks);
	m.pin = lease_pin(cache, lease, m.blocks > 0);
	tn_abi_out(abi, match, &m);
	return (int)m.blocks;
}

int tn_match(struct tn_space *space, const struct tn_key *keys, size_t n, uint8_t *tiers, struct tn_match *match,
	     unsigned flags)
{
	int rc = check_space(space, keys, n, match, flags);
	uint64_t begun;

	if (rc)
		return rc;
	begun = tn_now_ns(&space->cache->clock);
	rc = find_one(NULL, space, keys, n, tiers, match, flags);
	if (rc >= 0)
		time_lookup(space->cache, begun);
	return rc;
}

int tn_match_answer(struct tn_holder *holder, struct tn_space *space, const struct tn_key *keys, size_t n, uint8_t *tiers,
		    struct tn_match *match, unsigned flags)
{
	int rc = check_space(space, keys, n, match, flags);

	return rc ? rc : find_one(holder, space, keys, n, tiers, match, flags);
}

/* ---- several spaces --------------------------------------------------------------------------------------- */

/*
 * The longest end, n at most, at which the rule of every space can end; first[i] is of space i. Prefixes are looked for once: each
 * end below one that a prefix has is one that it has, too. The others are asked in turn until all agree; each has the longest
 * end of its own below what it is asked for, so none is left out.
 */
static uint32_t common_end(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, uint32_t n, uint32_t *first)
{
	uint32_t counts[TN_TIERS_MAX];
	size_t agreed = 0;

	for (size_t i = 0; i < nspaces; i++) {
		first[i] = 0;
		if (spaces[i]->match_rule == TN_MATCH_PREFIX)
			n = find_alive(spaces[i], keys, n, NULL, NULL, counts);
	}
	for (size_t i = 0; agreed < nspaces; i = (i + 1) % nspaces) {
		uint32_t end = n;

		if (spaces[i]->match_rule != TN_MATCH_PREFIX)
			end = find_by_rule(spaces[i], keys, n, NULL, NULL, &first[i], counts);
		agreed = end == n ? agreed + 1 : 1;
		n = end;
	}
	return n;
}

/* Counts, and with leases pins, what must be loaded to that end; false: some of it has gone meanwhile. */
static bool take_all(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, uint32_t end,
		     const uint32_t *first, struct tn_lease *lease, struct tn_match *m)
{
	uint32_t counts[TN_TIERS_MAX];

	for (size_t i = 0; i < nspaces; i++) {
		uint32_t n = end - first[i];
		uint32_t got = find_alive(spaces[i], keys + first[i], n, lease ? lease->blocks : NULL, NULL, counts);

		if (lease) {
			lease_has(lease, got);
			lease = lease->rest;
		}
		if (got < n)
			return false;
		add_found(spaces[i], counts, m);
	}
	return true;
}

static int check_spaces(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n, unsigned flags)
{
	if (!spaces || nspaces == 0 || nspaces > TN_MATCH_SPACES_MAX || (n && !keys) || (flags & ~TN_MATCH_PIN))
		return tn_fail(-EINVAL, "tn_match_all: %zu spaces, 1 to %u, or spaces or keys are missing, or unknown flags %#x", nspaces,
			       TN_MATCH_SPACES_MAX, flags);
	for (size_t i = 0; i < nspaces; i++) {
		const struct tn_space *a = spaces[0], *b = spaces[i];

		if (!b)
			return tn_fail(-EINVAL, "tn_match_all: spaces[%zu] is missing", i);
		if (b->cache != a->cache || !tn_key_eq(&b->identity, &a->identity) ||
		    tn_geometry_block_tokens(&b->geometry) != tn_geometry_block_tokens(&a->geometry))
			return tn_fail(-EINVAL, "tn_match_all: spaces[%zu] is of another cache, identity or number of tokens per block than "
				       "spaces[0]: it has other keys", i);
	}
	return tn_check_process(spaces[0]->cache);
}

/* tn_match_all, of arguments that were checked. */
static int find_all(struct tn_holder *holder, struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n,
		    uint32_t *first, struct tn_match *match, unsigned flags)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_match, pin);
	struct tn_cache *cache = spaces[0]->cache;
	uint32_t at[TN_MATCH_SPACES_MAX], end;
	struct tn_lease *lease = NULL;
	struct tn_match m;
	size_t asked = n;
	int rc = tn_abi_check(abi, match);

	if (rc == 0 && cache->attached) {
		rc = tn_remote_match(spaces, nspaces, keys, n, NULL, first, &m, flags, true);
		if (rc >= 0)
			tn_abi_out(abi, match, &m);
		return rc;
	}
	for (size_t i = 0; i < nspaces; i++)
		asked = most_keys(spaces[i], asked);
	if (rc == 0 && flags & TN_MATCH_PIN)
		rc = take_leases(holder, spaces, nspaces, &n, &lease);
	if (rc)
		return rc;
	for (size_t i = 0; i < nspaces; i++)
		n = most_keys(spaces[i], n);
	for (end = (uint32_t)n;; end--) {
		end = common_end(spaces, nspaces, keys, end, at);
		m = (struct tn_match){.size = sizeof(m), .blocks = end, .first = end};
		if (take_all(spaces, nspaces, keys, end, at, lease, &m))
			break;
		unpin_all(cache, lease);
	}
	for (size_t i = 0; i < nspaces; i++)
		m.first = at[i] < m.first ? at[i] : m.first;
	if (first)
		memcpy(first, at, nspaces * sizeof(*first));
	count_lookup(spaces[0], asked, end);
	m.pin = lease_pin(cache, lease, end > 0);
	tn_abi_out(abi, match, &m);
	return (int)end;
}

int tn_match_all(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n, uint32_t *first,
		 struct tn_match *match, unsigned flags)
{
	int rc = check_spaces(spaces, nspaces, keys, n, flags);
	uint64_t begun;

	if (rc == 0 && !match)
		rc = tn_fail(-EINVAL, "tn_match_all: match is missing");
	if (rc)
		return rc;
	begun = tn_now_ns(&spaces[0]->cache->clock);
	rc = find_all(NULL, spaces, nspaces, keys, n, first, match, flags);
	if (rc >= 0)
		time_lookup(spaces[0]->cache, begun);
	return rc;
}

int tn_match_all_answer(struct tn_holder *holder, struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n,
			uint32_t *first, struct tn_match *match, unsigned flags)
{
	int rc = check_spaces(spaces, nspaces, keys, n, flags);

	return rc ? rc : find_all(holder, spaces, nspaces, keys, n, first, match, flags);
}

int tn_cache_unpin(struct tn_cache *cache, uint64_t pin)
{
	if (!cache)
		return tn_fail(-EINVAL, "tn_cache_unpin: no cache");
	if (tn_check_process(cache))
		return -ECHILD;
	if (cache->attached)
		return tn_remote_unpin(cache, pin);
	return tn_lease_end(cache, pin);
}

int tn_unpin(struct tn_space *space, uint64_t pin)
{
	return space ? tn_cache_unpin(space->cache, pin) : tn_fail(-EINVAL, "tn_unpin: no space");
}

int tn_lease_end(struct tn_cache *cache, uint64_t pin)
{
	uint32_t generation = (uint32_t)(pin >> 32), i = (uint32_t)pin;
	struct tn_matches *m = cache->matches;

	/* Odd generations are taken; the exchange to even lets only one caller end the lease. */
	if (i == 0 || i > m->nleases || !(generation & 1) ||
	    !__atomic_compare_exchange_n(&m->leases[i - 1].generation, &generation, generation + 1, false,
					 __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
		return tn_fail(-EINVAL, "tn_unpin: no lease %#llx (ended before?)", (unsigned long long)pin);
	lease_give(cache, &m->leases[i - 1]);
	return 0;
}

/* ---- queries ---------------------------------------------------------------------------------------------- */

/* Ends what is asked of tiers: those that have not answered do so in vain. */
static void end_lookups(struct tn_query *q)
{
	for (uint32_t i = 0; i < q->nspaces; i++) {
		if (q->lookup[i])
			tn_lookup_end(q->lookup[i]);
		q->lookup[i] = NULL;
	}
}

static bool is_answered(const struct tn_query *q)
{
	for (uint32_t i = 0; i < q->nspaces; i++)
		if (q->lookup[i] && !tn_lookup_over(q->lookup[i]))
			return false;
	return true;
}

static void give_query(struct tn_matches *m, struct tn_query *q)
{
	struct tn_allotment *own = q->holder ? &q->holder->queries : NULL;

	tn_stack_push(&m->free_queries, (uint32_t)(q - m->queries), &q->next);
	tn_allotment_give(&m->common_queries, own, 1);
}

int tn_query_check(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n, unsigned flags)
{
	int rc = check_spaces(spaces, nspaces, keys, n, flags);

	if (rc == 0 && n > spaces[0]->cache->o.max_op_blocks)
		rc = tn_fail(-E2BIG, "tn_match_begin: %zu keys, at most max_op_blocks: %u", n, spaces[0]->cache->o.max_op_blocks);
	return rc;
}

int tn_match_begin(struct tn_space *const *spaces, size_t nspaces, const struct tn_key *keys, size_t n, uint64_t deadline_ns,
		   unsigned flags, uint64_t *query)
{
	int rc;

	if (!query)
		return tn_fail(-EINVAL, "tn_match_begin: nowhere to return the query");
	rc = tn_query_check(spaces, nspaces, keys, n, flags);
	if (rc)
		return rc;
	if (spaces[0]->cache->attached)
		return tn_remote_match_begin(spaces, nspaces, keys, n, deadline_ns, flags, query);
	return tn_query_begin(spaces[0]->cache->own, NULL, spaces, nspaces, keys, n, deadline_ns, flags, query);
}

int tn_query_begin(struct tn_session *whose, struct tn_holder *holder, struct tn_space *const *spaces, size_t nspaces,
		   const struct tn_key *keys, size_t n, uint64_t deadline_ns, unsigned flags, uint64_t *query)
{
	struct tn_allotment *own = holder ? &holder->queries : NULL;
	struct tn_cache *cache = whose->cache;
	struct tn_matches *m = cache->matches;
	struct tn_query *q;
	uint32_t i;

	if (!tn_allotment_take(&m->common_queries, own, 1))
		return too_many("tn_match_begin", "look-ups under way", "poll", &m->common_queries, own);
	i = tn_stack_pop(&m->free_queries, &m->queries[0].next, sizeof(m->queries[0]));
	q = &m->queries[i - 1];
	q->holder = holder;
	q->flags = flags;
	q->nspaces = (uint32_t)nspaces;
	q->n = (uint32_t)n;
	q->deadline_ns = deadline_ns;
	memcpy(q->space, spaces, nspaces * sizeof(*spaces));
	if (n)
		memcpy(q->keys, keys, n * sizeof(*keys));
	for (uint32_t s = 0; s < nspaces; s++) /* asks the tiers that answer later */
		q->lookup[s] = n && deadline_ns ? tn_lookup_begin(cache->keyed, whose, q->space[s], q->keys, q->n) : NULL;
	*query = (uint64_t)__atomic_add_fetch(&q->generation, 1, __ATOMIC_ACQ_REL) << 32 | i;
	return 0;
}

/* The query is the caller's alone until it is given back or put back; NULL: there is no such query, or another thread has it. */
static struct tn_query *take_query(struct tn_matches *m, uint64_t query)
{
	uint32_t generation = (uint32_t)(query >> 32), i = (uint32_t)query;

	if (i == 0 || i > m->nqueries || !(generation & 1) ||
	    !__atomic_compare_exchange_n(&m->queries[i - 1].generation, &generation, generation + 1, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED))
		return NULL;
	return &m->queries[i - 1];
}

static int no_query(const char *call, uint64_t query)
{
	return tn_fail(-EINVAL, "%s: no look-up %#llx (over before?)", call, (unsigned long long)query);
}

static void put_back(struct tn_query *q)
{
	__atomic_sub_fetch(&q->generation, 1, __ATOMIC_RELEASE);
}

int tn_match_poll(struct tn_cache *cache, uint64_t query, uint32_t *first, struct tn_match *match)
{
	struct tn_query *q;
	int rc;

	if (!cache || !match)
		return tn_fail(-EINVAL, "tn_match_poll: cache or match is missing");
	if (tn_check_process(cache))
		return -ECHILD;
	if (cache->attached)
		return tn_remote_match_poll(cache, query, first, match);
	q = take_query(cache->matches, query);
	if (!q)
		return no_query("tn_match_poll", query);
	if (!is_answered(q) && tn_now_ns(&cache->clock) < q->deadline_ns) {
		put_back(q);
		return -EAGAIN;
	}
	end_lookups(q);
	rc = find_all(q->holder, q->space, q->nspaces, q->keys, q->n, first, match, q->flags);
	if (rc == -EAGAIN || rc == -EINVAL) /* no lease is free, or match cannot take the result: it can be asked again */
		put_back(q);
	else
		give_query(cache->matches, q);
	return rc;
}

int tn_match_cancel(struct tn_cache *cache, uint64_t query)
{
	struct tn_query *q;

	if (!cache)
		return tn_fail(-EINVAL, "tn_match_cancel: no cache");
	if (tn_check_process(cache))
		return -ECHILD;
	if (cache->attached)
		return tn_remote_match_cancel(cache, query);
	q = take_query(cache->matches, query);
	if (!q)
		return no_query("tn_match_cancel", query);
	end_lookups(q);
	give_query(cache->matches, q);
	return 0;
}
