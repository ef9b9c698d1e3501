/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a thread of the owner's process does for a process that has attached: it answers calls with the public functions, on behalf of
 * that process, and keeps what that process has: spaces, leases, memories, pools. Once the process is gone all of it is given back.
 *
 * A call that waits for the disk (a flush, the drop of a space) or for other spaces to go (opening one) has a thread of its own, at most one per
 * place of a call. Those threads look every half millisecond whether the session is over.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "block/events.h"
#include "front/attach.h"
#include "front/hints.h"
#include "front/serve.h"

#define NAP_NS 500000u
#define LEAVE_NAP_NS 16000000u
#define PLAN_BLOCKS_MAX (1u << 20) /* of a match in several parts: no more than max_op_blocks may be */

/* A call as it was asked, copied; and where its answer goes. */
struct call {
	struct tn_served *s;
	uint32_t number, kind, bytes, turn;
	const unsigned char *asked;
	unsigned char *answer;
	uint32_t answered; /* bytes */
};

/* Copies the struct that a call begins with; false: it is too short. */
static bool take(const struct call *c, void *out, size_t bytes)
{
	if (c->bytes < bytes)
		return false;
	memcpy(out, c->asked, bytes);
	return true;
}

static int too_short(const struct call *c)
{
	return tn_fail(-EINVAL, "call %u of process %d: %u bytes are too few", c->kind, (int)c->s->pid, c->bytes);
}

static void answer(struct call *c, const void *p, size_t bytes)
{
	memcpy(c->answer + c->answered, p, bytes);
	c->answered += (uint32_t)bytes;
}

static bool is_over(const struct tn_served *s)
{
	return __atomic_load_n(&s->over, __ATOMIC_ACQUIRE);
}

static void nap(uint64_t ns)
{
	const struct timespec t = {0, (long)ns};

	nanosleep(&t, NULL);
}

/* ---- spaces --------------------------------------------------------------------------------------------------- */

/* NULL: the process has not opened it. Handles of spaces live as long as the cache. */
static struct tn_space *space_of(struct tn_served *s, uint32_t number)
{
	struct tn_space *space = NULL;

	pthread_mutex_lock(&s->lock);
	if (number < TN_SPACES_MAX && s->refs[number] > 0)
		space = s->space[number];
	pthread_mutex_unlock(&s->lock);
	if (!space)
		tn_fail(-EINVAL, "process %d has no space %u open", (int)s->pid, number);
	return space;
}

static void name_space(struct tn_session *session, uint32_t number, bool may)
{
	uint64_t bit = UINT64_C(1) << number % 64;

	if (may)
		__atomic_fetch_or(&session->may_name[number / 64], bit, __ATOMIC_RELEASE);
	else
		__atomic_fetch_and(&session->may_name[number / 64], ~bit, __ATOMIC_RELEASE);
}

/* Of the owner's own user, and not held to some tenants. */
static bool is_whole(const struct tn_served *s)
{
	return s->uid == geteuid() && tn_rule_is_for_all(s->rule);
}

/*
 * Whether the process may open a space of the tenant: then it is counted, until opened. Others than those of the owner's own user have their part
 * of the numbers of spaces, and open at most so many, however many of their calls come at the same time.
 */
static int begin_opening(struct tn_served *s, const char *tenant)
{
	bool may;
	uint32_t n;

	if (!tn_rule_allows(s->rule, tenant))
		return tn_fail(-EACCES, "process %d of user %u may not open spaces of tenant '%.100s'", (int)s->pid, s->uid, tenant);
	pthread_mutex_lock(&s->lock);
	n = s->nspaces + s->nopening;
	may = is_whole(s) || n < TN_SPACES_MAX / TN_ATTACHED_MAX;
	s->nopening += may;
	pthread_mutex_unlock(&s->lock);
	return may ? 0 : tn_fail(-ENOSPC, "process %d of user %u has %u spaces open; close some", (int)s->pid, s->uid, n);
}

/* NULL: it was not opened. */
static void end_opening(struct tn_served *s, struct tn_space *space)
{
	pthread_mutex_lock(&s->lock);
	s->nopening--;
	if (space) {
		s->space[space->index] = space;
		s->nspaces += s->refs[space->index] == 0;
		s->refs[space->index]++;
		name_space(s->session, space->index, true);
	}
	pthread_mutex_unlock(&s->lock);
}

static bool gives_up(void *arg, uint32_t naps)
{
	return is_over(arg) || naps >= TN_SPACE_NAPS_MAX;
}

static int check_writes(const struct tn_served *s, const char *call)
{
	return s->rule->read_only ? tn_fail(-EROFS, "%s: process %d may only read", call, (int)s->pid) : 0;
}

static int open_space(struct call *c)
{
	struct tn_wire_space w;
	struct tn_wire_space_told told;
	char text[TN_WIRE_STRINGS_BYTES + TN_WIRE_STRINGS], *string[TN_WIRE_STRINGS], *end = text;
	struct tn_identity id;
	struct tn_geometry g;
	struct tn_space *space = NULL;
	size_t at = 0;
	bool limited;
	int rc;

	if (!take(c, &w, sizeof(w)))
		return too_short(c);
	for (uint32_t i = 0; i < TN_WIRE_STRINGS; at += w.length[i], i++) {
		if (w.length[i] > sizeof(w.strings) - at)
			return too_short(c);
		string[i] = memcpy(end, w.strings + at, w.length[i]);
		end += w.length[i];
		*end++ = '\0';
	}
	tn_identity_init(&id);
	id.tenant = string[0];
	id.model = string[1];
	id.revision = string[2];
	id.kv_dtype = string[3];
	id.rotary = string[4];
	id.hash_algorithm = string[5];
	id.hash_seed = w.hash_seed;
	memcpy(id.reset_revision, w.reset_revision, sizeof(id.reset_revision));
	w.shard.size = sizeof(w.shard);
	w.quota.size = sizeof(w.quota);
	/* A quota evicts what is beyond it: who only reads sets none. */
	limited = w.has_quota != 0 && !c->s->rule->read_only;
	if (!c->s->rule->read_only)
		tn_rule_limit(c->s->rule, &w.quota, &limited);
	rc = begin_opening(c->s, id.tenant);
	if (rc)
		return rc;
	rc = tn_geometry_load(w.geometry, sizeof(w.geometry), &g);
	if (rc >= 0)
		rc = tn_space_open_unless(c->s->cache, &id, &w.shard, &g, limited ? &w.quota : NULL, gives_up, c->s, &space);
	end_opening(c->s, space);
	if (rc < 0)
		return rc;
	told = (struct tn_wire_space_told){.number = space->index, .secret = space->secret, .identity = space->identity,
					   .memory_tier = space->memory_tier, .prefetches = space->prefetches};
	tn_quota_init(&told.quota);
	for (unsigned t = 0; t < TN_TIERS_MAX; t++)
		told.quota.bytes[t] = tn_space_quota(space, t);
	answer(c, &told, sizeof(told));
	return 0;
}

static void close_space(struct tn_served *s, uint32_t number)
{
	pthread_mutex_lock(&s->lock);
	if (number < TN_SPACES_MAX && s->refs[number] > 0) {
		if (--s->refs[number] == 0) {
			name_space(s->session, number, false);
			tn_served_query_forget(s, number);
			s->nspaces--;
		}
		tn_space_close(s->space[number]);
	}
	pthread_mutex_unlock(&s->lock);
}

/* ---- look-ups -------------------------------------------------------------------------------------------------- */

static uint32_t lease_of(uint64_t pin)
{
	return (uint32_t)pin - 1;
}

/* The arguments of a look-up. */
static int take_lookup(const struct call *c, struct tn_wire_match *w, struct tn_space **spaces, const struct tn_key **keys)
{
	if (!take(c, w, sizeof(*w)) || w->n > c->s->cache->o.max_op_blocks || w->nspaces == 0 || w->nspaces > TN_MATCH_SPACES_MAX ||
	    c->bytes - sizeof(*w) < w->n * sizeof(**keys))
		return too_short(c);
	for (uint32_t i = 0; i < w->nspaces; i++) {
		spaces[i] = space_of(c->s, w->space[i]);
		if (!spaces[i])
			return -EINVAL;
	}
	*keys = (const struct tn_key *)(const void *)(c->asked + sizeof(*w));
	return 0;
}

static int match(struct call *c)
{
	struct tn_space *spaces[TN_MATCH_SPACES_MAX];
	struct tn_wire_match_told told = {.match.size = sizeof(told.match)};
	struct tn_wire_match w;
	const struct tn_key *keys;
	uint8_t *tiers;
	int rc = take_lookup(c, &w, spaces, &keys);

	if (rc)
		return rc;
	tiers = c->answer + sizeof(told); /* the process may look at them before they are final */
	if (w.all)
		rc = tn_match_all_answer(&c->s->holder, spaces, w.nspaces, keys, w.n, told.first, &told.match, w.flags);
	else
		rc = tn_match_answer(&c->s->holder, spaces[0], keys, w.n, tiers, &told.match, w.flags);
	if (rc < 0)
		return rc;
	if (told.match.pin)
		c->s->pins[lease_of(told.match.pin)] = told.match.pin;
	answer(c, &told, sizeof(told));
	c->answered += w.all ? 0 : told.match.blocks;
	return rc;
}

static int begin_query(struct call *c)
{
	struct tn_space *spaces[TN_MATCH_SPACES_MAX];
	struct tn_wire_match w;
	const struct tn_key *keys;
	uint64_t query;
	int rc = take_lookup(c, &w, spaces, &keys);

	if (rc == 0)
		rc = tn_served_query(c->s, spaces, &w, keys, &query);
	if (rc == 0)
		answer(c, &query, sizeof(query));
	return rc;
}

static int poll_query(struct call *c, const struct tn_wire_about *w)
{
	struct tn_wire_match_told told = {.match.size = sizeof(told.match)};
	int rc = tn_served_query_poll(c->s, w->pin, &told);

	if (rc < 0)
		return rc;
	if (told.match.pin)
		c->s->pins[lease_of(told.match.pin)] = told.match.pin;
	answer(c, &told, sizeof(told));
	return rc;
}

static int unpin(struct call *c, const struct tn_wire_about *w)
{
	uint32_t lease = lease_of(w->pin);

	if (w->pin == 0 || lease >= c->s->cache->matches->nleases || c->s->pins[lease] != w->pin)
		return tn_fail(-EINVAL, "tn_unpin: process %d has no lease %#llx (ended before?)", (int)c->s->pid, (unsigned long long)w->pin);
	c->s->pins[lease] = 0;
	return tn_lease_end(c->s->cache, w->pin);
}

static int drop(struct call *c, const struct tn_wire_about *w)
{
	struct tn_space *space = space_of(c->s, w->number);
	int rc = space ? check_writes(c->s, "tn_drop") : -EINVAL;

	if (rc)
		return rc;
	if (c->bytes - sizeof(*w) < w->n * sizeof(struct tn_key))
		return too_short(c);
	return tn_drop(space, (const struct tn_key *)(const void *)(c->asked + sizeof(*w)), w->n);
}

static int plan(struct call *c)
{
	struct tn_plan p = {.size = sizeof(p)};
	struct tn_wire_plan w;
	struct tn_space *space;
	int rc;

	if (!take(c, &w, sizeof(w)) || w.match.blocks > PLAN_BLOCKS_MAX || (w.ntiers && (w.ntiers != w.match.blocks || c->bytes - sizeof(w) < w.ntiers)))
		return too_short(c);
	space = space_of(c->s, w.space);
	if (!space)
		return -EINVAL;
	w.match.size = sizeof(w.match);
	rc = tn_plan(space, &w.match, w.ntiers ? c->asked + sizeof(w) : NULL, w.input_tokens, &p);
	if (rc == 0)
		answer(c, &p, sizeof(p));
	return rc;
}

/* ---- what is told of blocks and of compute times --------------------------------------------------------------- */

typedef int tell_events(struct tn_served *s, const struct tn_wire_events *w, struct tn_wire_events_told *told,
			struct tn_block_event *out, uint32_t max);

static int events(struct call *c, tell_events *copy_events)
{
	struct tn_wire_events_told told;
	struct tn_wire_events w;
	uint32_t max = (c->s->region.counts.call_bytes - sizeof(told)) / sizeof(struct tn_block_event);
	int rc;

	if (!take(c, &w, sizeof(w)))
		return too_short(c);
	rc = copy_events(c->s, &w, &told, (struct tn_block_event *)(void *)(c->answer + sizeof(told)), max);
	if (rc)
		return rc;
	answer(c, &told, sizeof(told));
	c->answered += told.n * (uint32_t)sizeof(struct tn_block_event);
	return 0;
}

static int set_slack(struct call *c)
{
	struct tn_wire_slack w;
	struct tn_space *space;

	if (!take(c, &w, sizeof(w)))
		return too_short(c);
	space = space_of(c->s, w.space);
	return space ? tn_served_slack_set(c->s, space, &w, c->asked + sizeof(w), c->bytes - (uint32_t)sizeof(w)) : -EINVAL;
}

static int get_slack(struct call *c)
{
	struct tn_wire_slack w, told;
	struct tn_space *space;
	int n;

	if (!take(c, &w, sizeof(w)))
		return too_short(c);
	space = space_of(c->s, w.space);
	if (!space)
		return -EINVAL;
	n = tn_served_slack_get(c->s, space, &w, &told, c->answer + sizeof(told), c->s->region.counts.call_bytes - (uint32_t)sizeof(told));
	if (n < 0)
		return n;
	answer(c, &told, sizeof(told));
	c->answered += (uint32_t)n;
	return 0;
}

/* ---- what waits ------------------------------------------------------------------------------------------------ */

/* Until the flush is over, or the caller's deadline, or the session. */
static int wait_for_flush(const struct tn_served *s, struct tn_flush_waiter *w, uint64_t deadline_ns)
{
	while (!tn_flush_is_over(w) && tn_now_ns(&tn_clock_system) < deadline_ns && !is_over(s))
		nap(NAP_NS);
	return tn_flush_wait(w, 0);
}

static int flush(const struct call *c, const struct tn_wire_about *about)
{
	struct tn_flush_waiter *w = tn_flush_begin(&c->s->cache->flushes);

	return w ? wait_for_flush(c->s, w, about->deadline_ns) : tn_fail(-ENOMEM, "tn_flush: no memory");
}

/* The space stays open until tn_space_close, whatever the process closes meanwhile. */
static struct tn_space *hold_space(struct tn_served *s, uint32_t number)
{
	struct tn_space *space = NULL;

	pthread_mutex_lock(&s->lock);
	if (number < TN_SPACES_MAX && s->refs[number] > 0) {
		space = s->space[number];
		pthread_mutex_lock(&s->cache->lock);
		space->refs++;
		pthread_mutex_unlock(&s->cache->lock);
	}
	pthread_mutex_unlock(&s->lock);
	if (!space)
		tn_fail(-EINVAL, "process %d has no space %u open", (int)s->pid, number);
	return space;
}

static int drop_space(const struct call *c, const struct tn_wire_about *about)
{
	struct tn_space *space = hold_space(c->s, about->number);
	struct tn_flush_waiter *w;
	int rc = space ? check_writes(c->s, "tn_space_drop") : -EINVAL;

	if (rc == 0 && c->s->cache->o.read_only && c->s->cache->row.durable)
		rc = tn_fail(-EROFS, "tn_space_drop: the cache was opened read-only");
	while (rc == 0 && (rc = tn_space_drop_begin(&c->s->cache->drops, space, &w)) == -EBUSY) {
		if (tn_now_ns(&tn_clock_system) >= about->deadline_ns || is_over(c->s))
			break;
		nap(NAP_NS);
		rc = 0;
	}
	tn_space_close(space); /* marked, or not dropped */
	return rc ? rc : wait_for_flush(c->s, w, about->deadline_ns);
}

/* ---- pools ------------------------------------------------------------------------------------------------------ */

static int create_pool(struct call *c)
{
	struct tn_served *s = c->s;
	struct tn_memory *memory = NULL;
	struct tn_pool_layout layout;
	struct tn_wire_pool_told told;
	struct tn_wire_pool w;
	struct tn_geometry g;
	uint32_t i = 0;
	int rc;

	if (!take(c, &w, sizeof(w)) || w.nbases > (c->bytes - sizeof(w)) / sizeof(uint64_t))
		return too_short(c);
	rc = tn_geometry_load(w.geometry, sizeof(w.geometry), &g);
	if (rc < 0)
		return rc;
	if (w.memory < TN_SERVED_MEMORIES) {
		pthread_mutex_lock(&s->lock);
		memory = s->memory[w.memory].memory;
		pthread_mutex_unlock(&s->lock);
	}
	if (w.nbases != g.layers * g.nplanes || !memory)
		return tn_fail(-EINVAL, "process %d: a pool of %u planes in memory %u", (int)s->pid, w.nbases, w.memory);
	while (i < TN_SERVED_POOLS && s->pool[i])
		i++;
	if (i == TN_SERVED_POOLS)
		return tn_fail(-ENOSPC, "process %d has %u pools; destroy some", (int)s->pid, TN_SERVED_POOLS);
	layout = (struct tn_pool_layout){.npages = w.npages, .base = (const uint64_t *)(const void *)(c->asked + sizeof(w))};
	memcpy(layout.stride, w.stride, sizeof(layout.stride));
	rc = tn_pool_create(memory, &g, &layout, &s->pool[i]);
	if (rc)
		return rc;
	s->pool[i]->life = ++s->pools;
	told = (struct tn_wire_pool_told){.life = s->pools, .number = s->pool[i]->number};
	answer(c, &told, sizeof(told));
	return 0;
}

/* A process that has not waited for the answer asks again. Meanwhile the number may be another pool's: that one stays. */
static int destroy_pool(struct tn_served *s, const struct tn_wire_about *about)
{
	for (uint32_t i = 0; i < TN_SERVED_POOLS; i++) {
		int rc;

		if (!s->pool[i] || s->pool[i]->number != about->number || s->pool[i]->life != about->pin)
			continue;
		rc = tn_pool_destroy(s->pool[i]);
		if (rc == 0)
			s->pool[i] = NULL;
		return rc;
	}
	return tn_fail(-ENOENT, "process %d has no pool %u (%llu)", (int)s->pid, about->number, (unsigned long long)about->pin);
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

/* What the whole cache does tells one tenant of others. */
static int check_sees_tenants(const struct tn_served *s)
{
	if (tn_rule_is_for_all(s->rule))
		return 0;
	return tn_fail(-EACCES, "process %d: statistics of devices are of all tenants, and it may see some only", (int)s->pid);
}

/* Of the tenants that the process may see. */
static int stats_of_tenants(const struct tn_served *s, struct tn_stats *stats)
{
	const char *tenant = s->rule->tenants;
	uint32_t n = s->rule->ntenants;
	struct tn_key *keys = tn_get(s->cache->alloc, tn_array_bytes(n, sizeof(*keys)));
	int rc;

	if (!keys)
		return tn_fail(-ENOMEM, "tn_cache_stats: no memory for %u tenants", n);
	for (uint32_t i = 0; i < n; tenant += strlen(tenant) + 1, i++)
		keys[i] = tn_tenant_of(s->cache, tenant);
	qsort(keys, n, sizeof(*keys), tn_tenant_order);
	rc = tn_stats_take_of(s->cache, keys, n, stats);
	tn_put(s->cache->alloc, keys, tn_array_bytes(n, sizeof(*keys)));
	return rc;
}

static int stats(struct call *c)
{
	struct tn_stats s;
	int rc = tn_rule_is_for_all(c->s->rule) ? tn_stats_take(c->s->cache, &s) : stats_of_tenants(c->s, &s);

	if (rc == 0)
		answer(c, &s, sizeof(s));
	return rc;
}

/* Of a device or a remote store, by its number. */
static int numbered_stats(struct call *c, const struct tn_wire_about *w)
{
	struct tn_device_stats d = {.size = sizeof(d)};
	struct tn_remote_stats r = {.size = sizeof(r)};
	bool device = c->kind == TN_WIRE_DEVICE_STATS;
	int rc = check_sees_tenants(c->s);

	if (rc == 0)
		rc = device ? tn_cache_device_stats(c->s->cache, w->number, &d) : tn_cache_remote_stats(c->s->cache, w->number, &r);
	if (rc && rc != -ENOENT)
		return rc;
	answer(c, device ? (void *)&d : &r, device ? sizeof(d) : sizeof(r));
	return rc == 0; /* as the owner's own thread answers */
}

/* Whether the call begins with a struct tn_wire_about. */
static bool is_about(uint32_t kind)
{
	switch (kind) {
	case TN_WIRE_SPACE_CLOSE:
	case TN_WIRE_SPACE_DROP:
	case TN_WIRE_UNPIN:
	case TN_WIRE_DROP:
	case TN_WIRE_FLUSH:
	case TN_WIRE_DEVICE_STATS:
	case TN_WIRE_REMOTE_STATS:
	case TN_WIRE_POOL_DESTROY:
	case TN_WIRE_MEMORY_UNREGISTER:
	case TN_WIRE_QUERY_POLL:
	case TN_WIRE_QUERY_CANCEL:
	case TN_WIRE_SESSION_STATS:
	case TN_WIRE_SPACE_STATS:
	case TN_WIRE_LATENCY:
		return true;
	default:
		return false; /* these look for themselves */
	}
}

/* What the whole cache does tells one user of others. */
static int check_sees_all(const struct tn_served *s)
{
	if (is_whole(s))
		return 0;
	return tn_fail(-EACCES, "process %d: only processes of user %u may see what others do", (int)s->pid, geteuid());
}

static int status(struct call *c, const struct tn_wire_about *about)
{
	union {
		struct tn_owner_stats owner;
		struct tn_session_stats session;
		struct tn_space_stats space;
		struct tn_latency latency;
	} told = {0};
	size_t bytes;
	int rc = check_sees_all(c->s);

	if (rc)
		return rc;
	if (c->kind == TN_WIRE_OWNER_STATS) {
		bytes = told.owner.size = sizeof(told.owner);
		rc = tn_cache_owner_stats(c->s->cache, &told.owner);
	} else if (c->kind == TN_WIRE_SESSION_STATS) {
		bytes = told.session.size = sizeof(told.session);
		rc = tn_cache_session_stats(c->s->cache, about->number, &told.session);
	} else if (c->kind == TN_WIRE_SPACE_STATS) {
		bytes = told.space.size = sizeof(told.space);
		rc = tn_cache_space_stats(c->s->cache, about->number, about->n, &told.space);
	} else {
		bytes = told.latency.size = sizeof(told.latency);
		rc = tn_cache_all_latency(c->s->cache, (enum tn_latency_kind)about->number, (enum tn_tier)about->n, &told.latency);
	}
	if (rc == 0)
		answer(c, &told, bytes);
	return rc == -ENOENT ? tn_fail(rc, "nothing at place %u", about->number) : rc;
}

static int dispatch(struct call *c)
{
	struct tn_wire_about w = {0};

	if (!take(c, &w, sizeof(w)) && is_about(c->kind))
		return too_short(c);
	switch (c->kind) {
	case TN_WIRE_SPACE_OPEN:
		return open_space(c);
	case TN_WIRE_SPACE_CLOSE:
		close_space(c->s, w.number);
		return 0;
	case TN_WIRE_SPACE_DROP:
		return drop_space(c, &w);
	case TN_WIRE_MATCH:
		return match(c);
	case TN_WIRE_UNPIN:
		return unpin(c, &w);
	case TN_WIRE_DROP:
		return drop(c, &w);
	case TN_WIRE_FLUSH:
		return flush(c, &w);
	case TN_WIRE_STATS:
		return stats(c);
	case TN_WIRE_DEVICE_STATS:
	case TN_WIRE_REMOTE_STATS:
		return numbered_stats(c, &w);
	case TN_WIRE_POOL_CREATE:
		return create_pool(c);
	case TN_WIRE_POOL_DESTROY:
		return destroy_pool(c->s, &w);
	case TN_WIRE_MEMORY_UNREGISTER:
		return tn_served_forget(c->s, w.number);
	case TN_WIRE_PLAN:
		return plan(c);
	case TN_WIRE_OWNER_STATS:
	case TN_WIRE_SESSION_STATS:
	case TN_WIRE_SPACE_STATS:
	case TN_WIRE_LATENCY:
		return status(c, &w);
	case TN_WIRE_QUERY:
		return begin_query(c);
	case TN_WIRE_QUERY_POLL:
		return poll_query(c, &w);
	case TN_WIRE_QUERY_CANCEL:
		return tn_served_query_cancel(c->s, w.pin);
	case TN_WIRE_EVENTS:
		return events(c, tn_served_events);
	case TN_WIRE_SNAPSHOT:
		return events(c, tn_served_snapshot);
	case TN_WIRE_SLACK_SET:
		return check_writes(c->s, "tn_space_slack") ? -EROFS : set_slack(c);
	case TN_WIRE_SLACK_GET:
		return get_slack(c);
	case TN_WIRE_NAMES:
		return check_writes(c->s, "tn_names_give") ? -EROFS : tn_served_names(c->s, space_of(c->s, w.number), c->asked, c->bytes);
	case TN_WIRE_HINT:
		return check_writes(c->s, "tn_hint") ? -EROFS : tn_served_hint(space_of(c->s, w.number), c->asked, c->bytes);
	default:
		return tn_fail(-ENOSYS, "process %d: there is no call %u", (int)c->s->pid, c->kind);
	}
}

static bool waits(uint32_t kind)
{
	return kind == TN_WIRE_SPACE_OPEN || kind == TN_WIRE_SPACE_DROP || kind == TN_WIRE_FLUSH;
}

/* Under the lock: whoever answers the next call of the place, on whichever thread, does so afterwards. */
static void carry_out(struct call *c)
{
	int rc = dispatch(c);

	pthread_mutex_lock(&c->s->lock);
	tn_call_answer(&c->s->region, c->number, c->turn, rc, c->answered, rc < 0 ? tn_error_last()->text : NULL);
	pthread_mutex_unlock(&c->s->lock);
}

/* A call on a thread of its own, which frees it. */
static void *slow_main(void *arg)
{
	struct call *c = arg;
	struct tn_served *s = c->s;

	carry_out(c);
	tn_put(s->cache->alloc, c, sizeof(*c) + c->bytes);
	__atomic_sub_fetch(&s->slow, 1, __ATOMIC_RELEASE);
	return NULL;
}

static bool start_slow(const struct call *c)
{
	const struct tn_alloc *a = c->s->cache->alloc;
	struct call *copy = tn_get(a, sizeof(*copy) + c->bytes);
	pthread_attr_t attr;
	pthread_t thread;
	bool started;

	/* More than there are places: the process does not wait for its answers. */
	if (!copy || __atomic_load_n(&c->s->slow, __ATOMIC_ACQUIRE) >= TN_WIRE_CALLS) {
		tn_put(a, copy, sizeof(*copy) + c->bytes);
		return false;
	}
	*copy = *c;
	copy->asked = memcpy(copy + 1, c->asked, c->bytes);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	__atomic_add_fetch(&c->s->slow, 1, __ATOMIC_RELEASE);
	started = pthread_create(&thread, &attr, slow_main, copy) == 0;
	pthread_attr_destroy(&attr);
	if (started)
		return true;
	__atomic_sub_fetch(&c->s->slow, 1, __ATOMIC_RELEASE);
	tn_put(a, copy, sizeof(*copy) + c->bytes);
	return false;
}

static void take_call(struct tn_served *s, uint32_t number)
{
	struct call c = {.s = s, .number = number, .asked = s->asked, .answer = tn_call_told_bytes(&s->region, number)};

	if (!tn_call_is_open(&s->region, number, s->turn[number], &c.kind, &c.bytes, &c.turn))
		return;
	pthread_mutex_lock(&s->lock); /* after the thread that has answered the place's last call */
	s->turn[number] = c.turn;
	pthread_mutex_unlock(&s->lock);
	memcpy(s->asked, tn_call_asked_bytes(&s->region, number), c.bytes);
	if (!waits(c.kind))
		carry_out(&c);
	else if (!start_slow(&c))
		tn_call_answer(&s->region, number, c.turn, -ENOMEM, 0, "the owner's process cannot start a thread");
}

/* ---- the end --------------------------------------------------------------------------------------------------- */

/* Once nothing of it is under way in the core. */
static void give_back(struct tn_served *s)
{
	tn_served_query_forget(s, TN_SPACES_MAX);
	tn_served_slack_forget(s);
	tn_events_destroy(s->events); /* nobody raises any more */
	for (uint32_t i = 0; i < s->cache->matches->nleases; i++)
		if (s->pins[i])
			tn_lease_end(s->cache, s->pins[i]);
	for (uint32_t i = 0; i < TN_SERVED_POOLS; i++)
		tn_pool_destroy(s->pool[i]);
	for (uint32_t i = 0; i < TN_SERVED_MEMORIES; i++)
		if (s->memory[i].memory)
			tn_served_forget(s, i);
	for (uint32_t i = 0; i < TN_SPACES_MAX; i++)
		while (s->refs[i] > 0)
			close_space(s, i);
}

void tn_served_answer(struct tn_served *s)
{
	for (uint32_t i = 0; i < TN_WIRE_CALLS; i++)
		take_call(s, i);
}

void tn_served_leave(struct tn_served *s)
{
	while (__atomic_load_n(&s->slow, __ATOMIC_ACQUIRE) > 0)
		nap(NAP_NS);
	/* A disk may hang for long. The owner sleeps meanwhile, but for this question. */
	for (uint64_t ns = NAP_NS; tn_owner_call(s->cache, tn_session_leave, s->session) == -EAGAIN; ns += ns < LEAVE_NAP_NS ? ns : 0)
		nap(ns);
	give_back(s);
}

void *tn_served_main(void *arg)
{
	struct tn_served *s = arg;
	uint32_t woken = 0, wakes;
	uint64_t one = 1;

	pthread_setname_np(pthread_self(), "tenuto-session");
	while (!is_over(s)) {
		uint32_t seen = tn_region_rung(&s->region);

		wakes = __atomic_load_n(&tn_region_front(&s->region)->wakes, __ATOMIC_SEQ_CST);
		if (wakes != woken)
			tn_io_wake(s->cache->io);
		woken = wakes;
		tn_served_answer(s);
		if (!is_over(s))
			tn_region_wait_ring(&s->region, seen);
	}
	tn_served_leave(s);
	__atomic_store_n(&s->ended, 1, __ATOMIC_RELEASE);
	(void)!write(s->news, &one, sizeof(one));
	return NULL;
}
