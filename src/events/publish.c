/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The publisher (tenuto/publish.h): one thread, which reads the cache's events, gives each block its engine's name, and hands batches to a bus.
 *
 * A snapshot goes out in parts between the batches, one per turn, so that neither the core nor the followers of live events wait for it. Its parts
 * carry the number of the batch that was next when it began: what changed since comes in batches from there on.
 */
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <tenuto/cache.h>
#include <tenuto/event_bus.h>
#include <tenuto/events.h>
#include <tenuto/names.h>
#include <tenuto/publish.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "plugin/loader.h"
#include "xfer/backends.h"

#define BATCH 1024u
#define NAMES_MAX (1u << 22) /* by default */
#define IDLE_NS UINT64_C(1000000000) /* after so long without a batch an empty one says that the publisher lives */
#define SECOND_NS UINT64_C(1000000000)
#define CLIENTS_MAX 16u /* that wait for a snapshot */

struct limits {
	uint64_t names, tokens, bytes_per_second, interval_ms;
};

/* A snapshot on its way to a client. */
struct snapshot {
	uint64_t client, sequence;
	uint32_t at;
	uint32_t n; /* events of `batch` that the client did not take yet */
	bool last, has_part;
};

struct tn_publisher {
	struct tn_cache *cache;
	const struct tn_event_bus_ops *ops;
	void *bus;
	struct limits limits;
	pthread_t thread;
	bool stop; /* shared */
	struct tn_publish_stats stats; /* shared */
	uint64_t cursor, sequence, sent_ns, refilled_ns;
	int64_t budget; /* bytes that may be sent now; below 0: too much was */
	struct snapshot snapshot[CLIENTS_MAX];
	uint32_t nsnapshots;
	struct tn_block_event event[BATCH];
	struct tn_bus_event batch[BATCH], part[BATCH];
	uint32_t *token_ids; /* of the events of a batch; then of a part */
};

static void count(uint64_t *value, uint64_t n)
{
	__atomic_add_fetch(value, n, __ATOMIC_RELAXED);
}

/* ---- names ---------------------------------------------------------------------------------------------------- */

/* False: the block has no name. */
static bool translate(struct tn_publisher *p, const struct tn_block_event *e, uint32_t *token_ids, struct tn_bus_event *out)
{
	struct tn_block_name name;

	if (tn_names_find(p->cache, e->space, &e->key, &name, token_ids, (uint32_t)p->limits.tokens) <= 0)
		return false;
	*out = (struct tn_bus_event){
		.kind = e->kind == TN_EVENT_STORED ? TN_BUS_STORED : TN_BUS_REMOVED,
		.tier = e->tier,
		.hash_bytes = name.hash_bytes,
		.parent_bytes = name.parent_bytes,
		.group = name.group,
		.block_tokens = name.block_tokens,
		.ntokens = name.ntokens,
		.token_ids = token_ids,
	};
	memcpy(out->hash, name.hash, sizeof(name.hash));
	memcpy(out->parent, name.parent, sizeof(name.parent));
	return true;
}

static uint32_t translate_all(struct tn_publisher *p, long n, uint32_t *token_ids, struct tn_bus_event *out)
{
	uint32_t named = 0;

	for (long i = 0; i < n; i++) {
		uint32_t *tokens = token_ids ? token_ids + named * p->limits.tokens : NULL;

		named += translate(p, &p->event[i], tokens, &out[named]);
	}
	return named;
}

/* ---- batches ---------------------------------------------------------------------------------------------------- */

static void send_batch(struct tn_publisher *p, uint32_t n, uint64_t now)
{
	long bytes = p->ops->publish(p->bus, p->sequence++, (double)tn_wall_ns(&tn_clock_system) / 1e9, p->batch, n);

	p->sent_ns = now;
	if (bytes < 0) { /* the number is used up: followers see the gap */
		count(&p->stats.gaps, 1);
		return;
	}
	p->budget -= p->limits.bytes_per_second ? bytes : 0;
	count(&p->stats.batches, 1);
	count(&p->stats.events, n);
	count(&p->stats.bytes, (uint64_t)bytes);
}

static void refill(struct tn_publisher *p, uint64_t now)
{
	uint64_t passed = now - p->refilled_ns, limit = p->limits.bytes_per_second;

	if (limit == 0)
		return;
	passed = passed < SECOND_NS ? passed : SECOND_NS;
	p->budget += (int64_t)((double)limit * (double)passed / 1e9);
	if (p->budget > (int64_t)limit)
		p->budget = (int64_t)limit;
	p->refilled_ns = now;
}

/* Whether there is more to be read at once. */
static bool publish_some(struct tn_publisher *p, uint64_t now)
{
	uint32_t named;
	long n;

	if (p->budget < 0)
		return false;
	n = tn_cache_events(p->cache, &p->cursor, p->event, BATCH);
	if (n == -ESTALE) {
		p->sequence++; /* a number that no batch has */
		count(&p->stats.gaps, 1);
		return true;
	}
	named = n > 0 ? translate_all(p, n, p->token_ids, p->batch) : 0;
	if (n > 0)
		count(&p->stats.unnamed, (uint64_t)n - named);
	if (named || now - p->sent_ns >= IDLE_NS)
		send_batch(p, named, now);
	if (n > 0)
		__atomic_store_n(&p->stats.lag_ns, now > p->event[n - 1].time_ns ? now - p->event[n - 1].time_ns : 0, __ATOMIC_RELAXED);
	return n == (long)BATCH;
}

/* ---- snapshots -------------------------------------------------------------------------------------------------- */

static void begin_snapshot(struct tn_publisher *p, uint64_t client)
{
	if (p->nsnapshots == CLIENTS_MAX) {
		p->ops->answer(p->bus, client, p->sequence, NULL, 0, true);
		return;
	}
	p->snapshot[p->nsnapshots++] = (struct snapshot){.client = client, .sequence = p->sequence, .at = TN_SNAPSHOT_BEGIN};
	count(&p->stats.snapshots, 1);
}

static void end_snapshot(struct tn_publisher *p)
{
	p->nsnapshots--;
	memmove(&p->snapshot[0], &p->snapshot[1], p->nsnapshots * sizeof(p->snapshot[0]));
}

/* One part of the snapshot that was asked for first; the others wait. Whether a part went out. */
static bool send_part(struct tn_publisher *p)
{
	struct snapshot *s = &p->snapshot[0];
	int rc;

	if (p->nsnapshots == 0 || p->budget < 0)
		return false;
	if (!s->has_part) {
		long n = tn_cache_snapshot_part(p->cache, &s->at, p->event, BATCH);

		if (n < 0) {
			end_snapshot(p);
			return false;
		}
		s->n = translate_all(p, n, p->token_ids ? p->token_ids + BATCH * p->limits.tokens : NULL, p->part);
		s->last = s->at == TN_SNAPSHOT_BEGIN;
		s->has_part = true;
	}
	rc = p->ops->answer(p->bus, s->client, s->sequence, p->part, s->n, s->last);
	if (rc == -EAGAIN)
		return false;
	s->has_part = false;
	if (rc || s->last)
		end_snapshot(p);
	return rc == 0;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static void *publish_main(void *arg)
{
	struct tn_publisher *p = arg;

	while (!__atomic_load_n(&p->stop, __ATOMIC_ACQUIRE)) {
		uint64_t now = tn_now_ns(&tn_clock_system), client;
		bool more;

		refill(p, now);
		more = publish_some(p, now);
		more |= send_part(p);
		while (p->ops->serve(p->bus, more ? 0 : (int)p->limits.interval_ms, &client) > 0) {
			begin_snapshot(p, client);
			more = true;
		}
	}
	return NULL;
}

/* ---- the beginning and the end ------------------------------------------------------------------------------------ */

static int take_number(const struct tn_xfer_param *param, uint64_t max, uint64_t *out)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(param->value, &end, 10);
	if (errno || end == param->value || *end || *param->value == '-' || value > max)
		return tn_fail(-EINVAL, "events: %s=%.40s: give a number up to %llu", param->key, param->value, (unsigned long long)max);
	*out = value;
	return 0;
}

/* Takes the parameters of every bus out of the specification: the others are the bus's own. */
static int take_limits(struct tn_xfer_spec *spec, struct limits *l)
{
	const struct {
		const char *key;
		uint64_t max, *out;
	} known[] = {
		{"names", 1u << 28, &l->names},
		{"tokens", TN_NAME_TOKENS_MAX, &l->tokens},
		{"bytes_per_second", UINT64_C(1) << 40, &l->bytes_per_second},
		{"interval_ms", 10000, &l->interval_ms},
	};
	uint32_t kept = 0;
	int rc = 0;

	for (uint32_t i = 0; i < spec->n && rc == 0; i++) {
		size_t k = 0;

		while (k < sizeof(known) / sizeof(known[0]) && strcmp(known[k].key, spec->param[i].key) != 0)
			k++;
		if (k < sizeof(known) / sizeof(known[0]))
			rc = take_number(&spec->param[i], known[k].max, known[k].out);
		else
			spec->param[kept++] = spec->param[i];
	}
	spec->n = kept;
	return rc;
}

static uint64_t names_by_default(struct tn_cache *cache)
{
	uint64_t capacity = 0, blocks = 0;

	tn_cache_stat(cache, "capacity_blocks", &capacity);
	tn_cache_stat(cache, "blocks", &blocks);
	capacity = 2 * (capacity > blocks ? capacity : blocks);
	return capacity < 1u << 16 ? 1u << 16 : capacity > NAMES_MAX ? NAMES_MAX : capacity;
}

static int open_bus(struct tn_publisher *p, struct tn_xfer_spec *spec)
{
	const struct tn_plugin *plugin;
	int rc = tn_plugin_open(TN_PLUGIN_EVENT_BUS, spec->name, &plugin);

	if (rc)
		return rc;
	p->ops = plugin->table;
	rc = p->ops->publisher_create(spec->param, spec->n, &p->bus);
	return rc ? tn_fail(rc, "events: %s", p->ops->error()) : 0;
}

static size_t token_bytes(const struct tn_publisher *p)
{
	return (size_t)2 * BATCH * p->limits.tokens * sizeof(*p->token_ids);
}

static int prepare(struct tn_publisher *p, const char *text)
{
	struct tn_xfer_spec spec;
	int rc = tn_xfer_spec_split("events", text, &spec);

	p->limits.interval_ms = 10;
	if (rc == 0)
		rc = take_limits(&spec, &p->limits);
	if (rc)
		return rc;
	if (p->limits.names == 0)
		p->limits.names = names_by_default(p->cache);
	if (p->limits.tokens) {
		p->token_ids = tn_get(&tn_alloc_system, token_bytes(p));
		if (!p->token_ids)
			return tn_fail(-ENOMEM, "events: no memory for token ids");
	}
	rc = open_bus(p, &spec);
	if (rc)
		return rc;
	rc = tn_names_keep(p->cache, (uint32_t)p->limits.names, (uint32_t)p->limits.tokens);
	return rc == -EEXIST ? 0 : rc;
}

static void destroy(struct tn_publisher *p)
{
	if (p->bus)
		p->ops->publisher_destroy(p->bus);
	tn_put(&tn_alloc_system, p->token_ids, token_bytes(p));
	tn_put(&tn_alloc_system, p, sizeof(*p));
}

int tn_publish_start(struct tn_cache *cache, const char *spec, struct tn_publisher **out)
{
	struct tn_publisher *p;
	int rc;

	if (!cache || !spec || !out)
		return tn_fail(-EINVAL, "tn_publish_start: no cache, no specification, or nowhere to return the publisher");
	p = tn_get(&tn_alloc_system, sizeof(*p));
	if (!p)
		return tn_fail(-ENOMEM, "no memory for a publisher");
	p->cache = cache;
	rc = prepare(p, spec);
	if (rc == 0) {
		long n = tn_cache_events(cache, &p->cursor, p->event, 0);

		rc = n < 0 ? (int)n : tn_thread_start(&p->thread, publish_main, p);
	}
	if (rc) {
		destroy(p);
		return rc;
	}
	*out = p;
	return 0;
}

void tn_publish_stop(struct tn_publisher *publisher)
{
	if (!publisher)
		return;
	__atomic_store_n(&publisher->stop, true, __ATOMIC_RELEASE);
	pthread_join(publisher->thread, NULL);
	destroy(publisher);
}

int tn_publish_stats(struct tn_publisher *publisher, struct tn_publish_stats *out)
{
	const uint64_t *from = publisher ? &publisher->stats.events : NULL;
	uint64_t *to = out ? &out->events : NULL;

	if (!publisher || !out || out->size != sizeof(*out))
		return tn_fail(-EINVAL, "tn_publish_stats: no publisher, nowhere to return the figures, or their size is not set");
	for (size_t i = 0; i < (sizeof(*out) - offsetof(struct tn_publish_stats, events)) / sizeof(*to); i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
	return 0;
}
