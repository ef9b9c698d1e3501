/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/choice.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "xfer/backends.h"

struct words {
	char *text;
	size_t at;
};

static __attribute__((format(printf, 2, 3))) void add_words(struct words *w, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(w->text + w->at, TN_XFER_EXPLAIN_BYTES - w->at, fmt, args);
	va_end(args);
	if (n > 0)
		w->at += (size_t)n < TN_XFER_EXPLAIN_BYTES - w->at ? (size_t)n : TN_XFER_EXPLAIN_BYTES - w->at - 1;
}

static uint64_t estimate(const struct tn_xfer_backend *b, const struct tn_xfer_wish *wish)
{
	struct tn_xfer_cost cost = {0, 1};

	b->ops->cost(b->self, wish->peer != NULL, &cost);
	return cost.latency_ns + (uint64_t)((double)wish->bytes * 1e9 / (double)(cost.bytes_per_s ? cost.bytes_per_s : 1));
}

/* Whether a backend can; else the reason is in the words. */
static bool can(const struct tn_xfer_agent *a, uint32_t i, const struct tn_xfer_wish *wish, struct words *w)
{
	const struct tn_xfer_backend *b = &a->backend[i];
	const struct tn_xfer_peer *p = wish->peer;

	if (tn_xfer_backend_told(b->ops, b->ops->can(b->self, wish->op, wish->local, wish->remote, p != NULL)))
		add_words(w, "%s: no, %s; ", b->ops->name, tn_error_last()->text);
	else if (!(wish->local_backends & 1u << i))
		add_words(w, "%s: no, a local section is not registered with it; ", b->ops->name);
	else if (p && !(p->backends & 1u << i))
		add_words(w, "%s: no, agent %s does not have it; ", b->ops->name, p->head.name);
	else if (!(wish->remote_backends & 1u << i) && p && p->mapped_only & 1u << i)
		add_words(w, "%s: no, %s, and a remote section is not mapped%s%s; ", b->ops->name, p->why[i], p->unmapped[0] ? ": " : "", p->unmapped);
	else if (!(wish->remote_backends & 1u << i))
		add_words(w, "%s: no, a remote section is not registered with it; ", b->ops->name);
	else if (p && !(p->reachable & 1u << i))
		add_words(w, "%s: no, %s; ", b->ops->name, p->why[i][0] ? p->why[i] : "it reaches no other agent");
	else
		return true;
	return false;
}

static int index_of(const struct tn_xfer_agent *a, const char *name)
{
	for (uint32_t i = 0; i < a->nbackends; i++)
		if (name && !strcmp(a->backend[i].ops->name, name))
			return (int)i;
	return -1;
}

/* The caller's order: the first that can. */
static int preferred(struct tn_xfer_agent *a, const struct tn_xfer_wish *wish, struct words *w)
{
	for (uint32_t i = 0; i < wish->opts->nbackends; i++) {
		int k = index_of(a, wish->opts->backends[i]);

		if (k < 0)
			return tn_fail(-EINVAL, "backend %s: agent %s has none of that name", wish->opts->backends[i] ? wish->opts->backends[i] : "NULL", a->name);
		if (!can(a, (uint32_t)k, wish, w))
			continue;
		add_words(w, "%s: chosen, the caller named it%s; ", a->backend[k].ops->name, i ? " after those" : " first");
		return k;
	}
	return -ENOTSUP;
}

/* The least estimated time, then the name. */
static int cheapest(struct tn_xfer_agent *a, const struct tn_xfer_wish *wish, struct words *w)
{
	uint64_t best_ns = 0;
	int best = -ENOTSUP;

	for (uint32_t i = 0; i < a->nbackends; i++) {
		uint64_t ns;

		if (!can(a, i, wish, w))
			continue;
		ns = estimate(&a->backend[i], wish);
		add_words(w, "%s: can, %.1f us expected; ", a->backend[i].ops->name, (double)ns / 1e3);
		if (best < 0 || ns < best_ns || (ns == best_ns && strcmp(a->backend[i].ops->name, a->backend[best].ops->name) < 0)) {
			best = (int)i;
			best_ns = ns;
		}
	}
	if (best >= 0)
		add_words(w, "%s: chosen, the least expected time; ", a->backend[best].ops->name);
	return best;
}

int tn_xfer_choose(struct tn_xfer_agent *a, const struct tn_xfer_wish *wish, uint32_t *backend, uint64_t *estimate_ns, char text[TN_XFER_EXPLAIN_BYTES])
{
	struct words w = {text, 0};
	int k;

	text[0] = 0;
	k = wish->opts->backends ? preferred(a, wish, &w) : cheapest(a, wish, &w);
	if (w.at >= 2)
		text[w.at - 2] = 0; /* the last "; " */
	if (k == -ENOTSUP)
		return tn_fail(-ENOTSUP, "no backend can do it. %s", text);
	if (k < 0)
		return k;
	*backend = (uint32_t)k;
	*estimate_ns = estimate(&a->backend[k], wish);
	return 0;
}
