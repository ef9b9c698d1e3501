/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups in parts (lookup.h). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lookup.h"

/* Spaces of one kind, and where they are in the look-up. */
struct group {
	struct tn_space *spaces[TN_MATCH_SPACES_MAX];
	uint32_t place[TN_MATCH_SPACES_MAX];
	uint32_t n, window; /* the widest; 0: prefixes */
};

int tn_py_match_add_part(struct tn_match *match, struct tn_py_leases *leases, const struct tn_match *part)
{
	uint64_t *more;

	for (unsigned t = 0; t < TN_TIERS_MAX; t++)
		match->tier_blocks[t] += part->tier_blocks[t];
	match->load_ns += part->load_ns;
	if (!match->pin || !part->pin) {
		match->pin = match->pin ? match->pin : part->pin;
		return 0;
	}
	more = realloc(leases->pin, (leases->n + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	more[leases->n++] = part->pin;
	leases->pin = more;
	return 0;
}

int tn_py_unpin(struct tn_cache *cache, struct tn_match *match, struct tn_py_leases *leases)
{
	int rc = match->pin ? tn_cache_unpin(cache, match->pin) : 0;

	for (size_t i = 0; i < leases->n; i++) {
		int ended = tn_cache_unpin(cache, leases->pin[i]);

		rc = rc ? rc : ended;
	}
	free(leases->pin);
	*leases = (struct tn_py_leases){NULL, 0};
	match->pin = 0;
	return rc;
}

/* One call, of keys[from..from + n). With @take what it finds counts, and is pinned if that was asked for. Return: as tn_match_all. */
static int one(struct tn_py_lookup *l, const struct group *g, size_t from, size_t n, bool take)
{
	unsigned flags = take && l->pin ? TN_MATCH_PIN : 0;
	uint32_t firsts[TN_MATCH_SPACES_MAX] = {0};
	struct tn_match m = {.size = sizeof(m)};
	int found;

	if (l->nspaces == 1)
		found = tn_match(g->spaces[0], l->keys + from, n, take && l->tiers ? l->tiers + from : NULL, &m, flags);
	else
		found = tn_match_all(g->spaces, g->n, l->keys + from, n, firsts, &m, flags);
	if (l->nspaces == 1)
		firsts[0] = m.first;
	if (found < 0 || !take)
		return found;
	for (uint32_t i = 0; i < g->n && g->window; i++)
		l->firsts[g->place[i]] = (uint32_t)from + firsts[i];
	if (tn_py_match_add_part(&l->match, &l->leases, &m) == 0)
		return found;
	tn_cache_unpin(l->cache, m.pin);
	return -ENOMEM;
}

/* The longest prefix of keys[0..n), part by part. */
static long prefix(struct tn_py_lookup *l, const struct group *g, size_t n, bool take)
{
	size_t at = 0, want;
	int found;

	do {
		want = n - at < l->most ? n - at : l->most;
		found = one(l, g, at, want, take);
		if (found < 0)
			return found;
		at += (size_t)found;
	} while ((size_t)found == want && at < n);
	return (long)at;
}

/*
 * The longest end, n at most, at which the rules of windows can end. Parts are looked at from the end on, and overlap by a window: what
 * is found in one counts only if a whole window lies in it, or if it has the beginning of the prompt.
 */
static long window_end(struct tn_py_lookup *l, const struct group *g, size_t n)
{
	size_t most = l->most > g->window ? l->most : g->window;

	while (n > 0) {
		size_t from = n > most ? n - most : 0;
		int found = one(l, g, from, n - from, false);

		if (found < 0)
			return found;
		if (from == 0 || (uint32_t)found >= g->window)
			return (long)(from + (size_t)found);
		n = from + g->window - 1;
	}
	return 0;
}

/* Counts and pins what must be loaded to that end. Return: the end that is still there. */
static long take(struct tn_py_lookup *l, const struct group *prefixes, const struct group *windows, size_t end)
{
	size_t from = end > l->most ? end - l->most : 0;
	long got = (long)end;

	if (prefixes->n)
		got = prefix(l, prefixes, end, true);
	if (windows->n && got == (long)end) {
		int found = one(l, windows, from, end - from, true);

		got = found < 0 ? found : (long)from + found;
	}
	return got;
}

static void add_space(struct group *g, const struct tn_py_lookup *l, uint32_t i)
{
	g->spaces[g->n] = l->spaces[i];
	g->place[g->n++] = i;
	if (l->windows[i] > g->window)
		g->window = l->windows[i];
}

static void forget(struct tn_py_lookup *l)
{
	tn_py_unpin(l->cache, &l->match, &l->leases);
	memset(l->firsts, 0, sizeof(l->firsts));
	l->match = (struct tn_match){.size = sizeof(l->match)};
	if (l->tiers)
		memset(l->tiers, 0, l->n);
}

/* Until what was found is still there when it is pinned: what has gone meanwhile makes the prompt shorter. */
static long in_parts(struct tn_py_lookup *l)
{
	struct group prefixes = {.n = 0}, windows = {.n = 0};
	long end = (long)l->n, got;

	for (uint32_t i = 0; i < l->nspaces; i++)
		add_space(l->windows[i] ? &windows : &prefixes, l, i);
	for (;;) {
		forget(l);
		if (prefixes.n && windows.n)
			end = prefix(l, &prefixes, (size_t)end, false);
		if (windows.n && end >= 0)
			end = window_end(l, &windows, (size_t)end);
		if (end < 0)
			return end;
		got = take(l, &prefixes, &windows, (size_t)end);
		if (got < 0 || got == end || windows.n == 0)
			return got;
		end = got;
	}
}

int tn_py_look_up(struct tn_py_lookup *l)
{
	struct group all = {.n = 0};
	long found;

	for (uint32_t i = 0; i < l->nspaces; i++)
		add_space(&all, l, i);
	l->match.size = sizeof(l->match);
	found = l->n <= l->most ? one(l, &all, 0, l->n, true) : in_parts(l);
	if (found < 0) {
		forget(l);
		return (int)found;
	}
	l->match.blocks = (uint32_t)found;
	l->match.first = l->nspaces ? l->firsts[0] : 0;
	for (uint32_t i = 1; i < l->nspaces; i++)
		l->match.first = l->firsts[i] < l->match.first ? l->firsts[i] : l->match.first;
	return (int)found;
}
