/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/remote/remote.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "tier/remote/clients.h"
#include "tier/remote/spec.h"

#define BLOCKS 65536u /* that the tier knows at most */
#define HINTS 65536u

struct remote {
	struct tn_tier_base base;
	const struct tn_tier_env *env;
	struct tn_object_store *store[TN_REMOTES_MAX]; /* in the order in which they are asked */
	uint32_t n;
	uint32_t offers; /* by enum tn_offer: whether blocks are written then */
	struct tn_list cancelled; /* moves that waited and are not wanted any more: they end in the next step */
	uint8_t hint[HINTS];	  /* by hash of the key: the remote that had the block last; wrong ones cost a request */
};

static struct remote *remote_of(struct tn_tier_base *t)
{
	return (struct remote *)t;
}

static const struct remote *remote_at(const struct tn_tier_base *t)
{
	return (const struct remote *)t;
}

static uint32_t index_of(const struct remote *r, const struct tn_object_store *s)
{
	uint32_t i = 0;

	while (r->store[i] != s)
		i++;
	return i;
}

static uint8_t *hint_of(struct remote *r, const struct tn_key *key)
{
	return &r->hint[(key->word[0] ^ key->word[1]) % HINTS];
}

/* ---- look-ups --------------------------------------------------------------------------------------------------------- */

static int start_probe(struct tn_tier_base *t, struct tn_tier_probe *probe)
{
	struct remote *r = remote_of(t);

	probe->asked = probe->from = 0;
	probe->store = 0;
	probe->left = r->n;
	tn_object_store_probe(r->store[0], probe);
	return 0;
}

/* The look-up is over when as many remotes as there are others had nothing more of it. */
static void probed(void *arg, struct tn_object_store *s, struct tn_tier_probe *p, int status)
{
	struct remote *r = arg;

	p->left = p->found > p->from ? r->n - 1 : p->left - 1;
	for (uint32_t i = p->from; i < p->found; i++)
		*hint_of(r, &p->keys[i]) = (uint8_t)p->store;
	if (status || p->found == p->n || p->left == 0) {
		p->done(p, status);
		return;
	}
	p->from = p->asked = p->found;
	p->store = (p->store + 1) % r->n;
	tn_object_store_probe(r->store[p->store], p);
}

/* ---- blocks -------------------------------------------------------------------------------------------------------- */

/* The next remote for the block that was not asked yet: the one with the hint first, of those to read from. -1: there is none. */
static int next_store(struct remote *r, const struct tn_tier_move *m)
{
	uint32_t hint = *hint_of(r, &m->key);

	if (!m->write && !(m->tried & 1u << hint))
		return (int)hint;
	for (uint32_t i = 0; i < r->n; i++)
		if (!(m->tried & 1u << i) && !(m->write && tn_object_store_health(r->store[i]) == -EROFS))
			return (int)i;
	return -1;
}

static bool go_on(struct remote *r, struct tn_tier_move *m)
{
	int i = next_store(r, m);

	if (i < 0)
		return false;
	m->tried |= 1u << i;
	tn_object_store_move(r->store[i], m);
	return true;
}

/* What the caller learns of two remotes. One that has the block, or took it, is enough; that a block is nowhere is said only if all have said so. */
static int both(int a, int b)
{
	return a == 0 || b == 0 ? 0 : a == -ENOENT ? b : a;
}

static void moved(void *arg, struct tn_object_store *s, struct tn_tier_move *m, int status)
{
	struct remote *r = arg;

	if (status == 0)
		*hint_of(r, &m->key) = (uint8_t)index_of(r, s);
	m->status = both(m->status, status);
	if (m->cancelled || (status == 0 && !m->write) || !go_on(r, m))
		m->done(m, m->status);
}

/* Ends in the next step. */
static void end_later(struct remote *r, struct tn_tier_move *m, int status)
{
	m->cancelled = true;
	m->status = status;
	tn_list_push(&r->cancelled, &m->link);
}

static void start_move(struct tn_tier_base *t, struct tn_tier_move *move)
{
	struct remote *r = remote_of(t);

	move->status = -ENOENT;
	move->tried = 0;
	if (!go_on(r, move))
		end_later(r, move, -EROFS);
}

/* One that has a slot ends with its request, which the client does not withdraw. */
static void cancel_move(struct tn_tier_base *t, struct tn_tier_move *move)
{
	struct remote *r = remote_of(t);

	if (move->cancelled)
		return;
	move->cancelled = true;
	for (uint32_t i = 0; i < r->n; i++)
		if (tn_object_store_moves(r->store[i], move))
			return;
	tn_list_del(&move->link);
	end_later(r, move, -ECANCELED);
}

static bool end_cancelled(struct remote *r)
{
	bool any = !tn_list_empty(&r->cancelled);

	while (!tn_list_empty(&r->cancelled)) {
		struct tn_tier_move *m = tn_container_of(tn_list_pop(&r->cancelled), struct tn_tier_move, link);

		m->done(m, m->status);
	}
	return any;
}

/* ---- steps and places ------------------------------------------------------------------------------------------------ */

static uint64_t max_of(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static bool step(struct tn_tier_base *t, uint64_t now_ns, uint64_t *due_ns)
{
	struct remote *r = remote_of(t);
	bool any = end_cancelled(r);
	uint64_t latency = 0;

	t->corrupt = 0;
	for (uint32_t i = 0; i < r->n; i++) {
		any |= tn_object_store_step(r->store[i], now_ns, due_ns);
		t->corrupt += tn_object_store_corrupt(r->store[i]);
		latency = max_of(latency, tn_object_store_latency(r->store[i]));
	}
	__atomic_store_n(&t->latency_ns, latency, __ATOMIC_RELAXED);
	return any;
}

static uint32_t events(struct tn_tier_base *t, struct tn_tier_event *out, uint32_t max)
{
	return 0;
}

/* 0 if one of the remotes takes writes. */
static int health(const struct tn_tier_base *t)
{
	const struct remote *r = remote_at(t);
	int why = -EROFS;

	for (uint32_t i = 0; i < r->n; i++) {
		int rc = tn_object_store_health(r->store[i]);

		if (rc == 0)
			return 0;
		why = rc == -EROFS ? why : rc;
	}
	return why;
}

static int remotes(struct tn_tier_base *t, uint32_t index, struct tn_remote_stats *stats)
{
	if (index >= remote_of(t)->n)
		return -ENOENT;
	tn_object_store_stats(remote_of(t)->store[index], stats);
	return 0;
}

static int space(struct tn_tier_base *t, const struct tn_shape *shape, uint32_t *cls)
{
	*cls = 0;
	return 0;
}

static bool wants(const struct tn_tier_base *t, enum tn_offer when)
{
	return remote_at(t)->offers & 1u << when;
}

/* A remote that fails says nothing of the block. */
static bool away(const struct tn_tier_base *t, uint32_t at)
{
	return true;
}

/* A key is a place. */
static int place(struct tn_tier_base *t, struct tn_place_wait *w, uint32_t want, uint32_t *out)
{
	uint32_t n = want < TN_PLACES_AT_ONCE ? want : TN_PLACES_AT_ONCE;
	int rc = health(t);

	if (rc)
		return tn_fail(rc, "no remote store %s", rc == -EROFS ? "takes writes" : "answers");
	memset(out, 0, n * sizeof(*out));
	return (int)n;
}

static void release(struct tn_tier_base *t, tn_block b, uint32_t at, int status)
{
}

static void fill(struct tn_tier_base *t, tn_block b, uint32_t at, const struct tn_index_entry *entry)
{
}

static void drain(struct tn_tier_base *t, tn_block b, uint32_t at, enum tn_leave how)
{
}

static uint64_t capacity(const struct tn_tier_base *t)
{
	uint32_t records = remote_at(t)->env->max_blocks;

	return records / 2 < BLOCKS ? records / 2 : BLOCKS;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------- */

static int close_clients(struct tn_tier_base *t)
{
	struct remote *r = remote_of(t);

	for (uint32_t i = 0; i < r->n; i++)
		tn_object_store_close(r->store[i]);
	return 0;
}

static void destroy(struct tn_tier_base *t)
{
	struct remote *r = remote_of(t);

	for (uint32_t i = 0; i < r->n; i++)
		tn_object_store_destroy(r->store[i]);
	if (t->policy)
		t->policy->ops->destroy(t->policy);
	tn_put(r->env->alloc, r, sizeof(*r));
}

static const struct tn_tier_ops ops = {
	.size = sizeof(ops),
	.abi = TN_TIER_ABI,
	.name = "remote",
	.traits = {.reach = TN_REACH_WHOLE, .keyed = true, .offloads = true, .keeps = true},
	.space = space,
	.probe = start_probe,
	.place = place,
	.release = release,
	.fill = fill,
	.drain = drain,
	.capacity = capacity,
	.health = health,
	.wants = wants,
	.away = away,
	.remotes = remotes,
	.move = start_move,
	.cancel = cancel_move,
	.events = events,
	.step = step,
	.close = close_clients,
	.destroy = destroy,
};

/* always: also what could not be written when it was stored, and is used again. */
static uint32_t offers_of(const char *offload)
{
	if (!offload || strcmp(offload, "after_reuse") == 0)
		return 1u << TN_OFFER_REUSED;
	return strcmp(offload, "on_evict") == 0 ? 1u << TN_OFFER_LEAVING : 1u << TN_OFFER_STORED | 1u << TN_OFFER_REUSED;
}

static int plan(struct tn_tier_env *env, uint64_t *blocks)
{
	if (env->o->remote)
		*blocks += BLOCKS;
	return 0;
}

int tn_remote_tier_create(const struct tn_tier_env *env, const struct tn_object_store_opts *remotes, uint32_t n, struct tn_tier_base **out)
{
	struct tn_policy_opts po = {.capacity = env->max_blocks, .seed = env->o->seed, .alloc = env->alloc};
	struct remote *r = tn_get(env->alloc, sizeof(*r));
	const struct tn_object_store_owner owner = {probed, moved, r};
	const struct tn_policy_ops *policy;
	int rc = r ? 0 : tn_fail(-ENOMEM, "remote tier: no memory");

	for (; rc == 0 && r->n < n; r->n += rc == 0)
		rc = tn_object_store_create(env, &remotes[r->n], &owner, &r->store[r->n]);
	for (uint32_t i = r ? r->n : 0; i < n; i++)
		remotes[i].client->ops->destroy(remotes[i].client);
	if (!r)
		return rc;
	r->env = env;
	r->offers = offers_of(env->o->offload);
	r->base.ops = &ops;
	r->base.tier = TN_TIER_REMOTE;
	tn_list_init(&r->cancelled);
	rc = rc ? rc : tn_policy_find("lru", &policy);
	rc = rc ? rc : policy->create(&po, &r->base.policy);
	if (rc)
		destroy(&r->base);
	else
		*out = &r->base;
	return rc;
}

static int create_clients(const struct tn_tier_env *env, const struct tn_remote_spec *specs, uint32_t n, struct tn_object_store_opts *remotes)
{
	for (uint32_t i = 0; i < n; i++) {
		int rc;

		remotes[i] = specs[i].store;
		rc = tn_object_client_create(specs[i].client, env->alloc, &remotes[i].client);
		while (rc && i-- > 0)
			remotes[i].client->ops->destroy(remotes[i].client);
		if (rc)
			return rc;
	}
	return 0;
}

static int make(const struct tn_tier_env *env, struct tn_tier_base **out)
{
	struct tn_object_store_opts remotes[TN_REMOTES_MAX];
	struct tn_remote_spec specs[TN_REMOTES_MAX];
	int n, rc;

	if (!env->o->remote)
		return 0;
	if (!env->o->cluster_secret_file)
		tn_log(env->log, TN_LOG_WARN, "remote tier: without cluster_secret_file it serves this store alone; no other node finds what is saved there");
	n = tn_remote_specs(env->o->remote, specs);
	rc = n < 0 ? n : create_clients(env, specs, (uint32_t)n, remotes);
	return rc ? rc : tn_remote_tier_create(env, remotes, (uint32_t)n, out);
}

const struct tn_tier_maker tn_remote_tier_maker = {.plan = plan, .make = make};
