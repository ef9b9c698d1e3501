/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The subscriber (tenuto/subscribe.h): one thread, which takes over batches in the order of their numbers.
 *
 *   state     question    a batch that is next   a batch further on      an answer's batch    its end
 *   LIVE      none        taken over             ask for what is missing  -                    -
 *   FILLING   old ones    waits at the bus       waits at the bus         taken over           LIVE; a gap is left: ask for a snapshot
 *   LOADING   a snapshot  waits at the bus       waits at the bus         taken over           LIVE; there was none: ask for all old ones
 *
 * While an answer is under way, live batches wait in the bus's own queue. If that overflows, their numbers show it afterwards. A live batch
 * whose number is not above the last live one's comes from a publisher that has started again.
 */
#include <errno.h>
#include <pthread.h>
#include <tenuto/prefix_tree.h>
#include <tenuto/subscribe.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "plugin/loader.h"
#include "xfer/backends.h"

#define TURN_MS 50
#define ANSWER_NS UINT64_C(5000000000) /* without a part of the answer for so long: ask anew */
#define AGAIN_NS UINT64_C(500000000)   /* after an answer that too many ask */

enum state { LIVE, FILLING, LOADING };

struct tn_subscriber {
	const struct tn_event_bus_ops *ops;
	void *bus;
	struct tn_subscribe_opts o;
	pthread_t thread;
	bool stop;	 /* shared */
	bool orphan;	 /* stopped by its own on_event: the thread frees it */
	pthread_mutex_t lock; /* of said */
	struct tn_subscribe_state said;
	struct tn_subscribe_state now; /* the thread's own */
	enum state state;
	bool begun;	 /* a part of the answer was taken over */
	bool lost;	 /* the answer leaves a gap */
	bool from_first; /* old batches were asked for from the first on */
	bool no_snapshots; /* the publisher has given none when it was asked */
	bool any_live;	 /* since the publisher was there */
	uint64_t last_live, answer_ns;
};

/* ---- taking over ------------------------------------------------------------------------------------------------- */

static void take_event(struct tn_subscriber *s, uint64_t sequence, const struct tn_bus_event *e)
{
	struct tn_tree *tree = s->o.tree;

	s->now.events++;
	if (s->o.on_event)
		s->o.on_event(s->o.arg, sequence, e);
	if (!tree || s->orphan) /* who has stopped it may have freed the tree */
		return;
	if (e->kind == TN_BUS_CLEARED)
		tn_tree_clear(tree, s->o.cache);
	else if (e->group != 0)
		return; /* groups share hashes; routers ask for the first one */
	else if (e->kind == TN_BUS_STORED)
		tn_tree_store(tree, s->o.cache, (enum tn_tier)e->tier, tn_tree_key(e->hash, e->hash_bytes));
	else
		tn_tree_remove(tree, s->o.cache, (enum tn_tier)e->tier, tn_tree_key(e->hash, e->hash_bytes));
}

static void take_batch(struct tn_subscriber *s, const struct tn_bus_message *m)
{
	s->now.batches++;
	for (uint32_t i = 0; i < m->n && !s->orphan; i++)
		take_event(s, m->sequence, &m->events[i]);
}

static void forget(struct tn_subscriber *s)
{
	if (s->o.tree)
		tn_tree_clear(s->o.tree, s->o.cache);
}

/* ---- questions ------------------------------------------------------------------------------------------------------ */

static void live_from(struct tn_subscriber *s, uint64_t next, bool current)
{
	s->state = LIVE;
	s->now.next = next;
	s->now.current = current;
}

static void ask(struct tn_subscriber *s, enum state state, uint64_t sequence)
{
	uint64_t now = tn_now_ns(&tn_clock_system);

	s->now.current = false;
	s->state = state;
	s->begun = s->lost = false;
	s->from_first = sequence == 0;
	s->answer_ns = now;
	s->now.replays += state == FILLING;
	if (s->ops->ask(s->bus, sequence) == -ENOTSUP) { /* what comes from now on is all there is */
		if (state == LOADING || s->from_first)
			forget(s);
		s->now.complete = false;
		s->no_snapshots = true;
		live_from(s, s->any_live ? s->last_live : 0, true);
	}
}

/* Everything anew: a snapshot; of a publisher without, the old batches that it still has. */
static void begin(struct tn_subscriber *s)
{
	s->now.complete = false;
	if (s->no_snapshots)
		ask(s, FILLING, 0);
	else
		ask(s, LOADING, TN_BUS_SNAPSHOT);
}

static void take_answer(struct tn_subscriber *s, const struct tn_bus_message *m)
{
	s->answer_ns = tn_now_ns(&tn_clock_system);
	if (s->state == LOADING) {
		if (!s->begun)
			forget(s);
		s->begun = true;
		s->now.next = m->sequence;
		take_batch(s, m);
		return;
	}
	if (!s->begun && s->from_first) {
		forget(s);
		s->now.complete = m->sequence == 0;
		s->now.next = m->sequence;
	}
	s->begun = true;
	if (m->sequence < s->now.next)
		return;
	s->lost |= m->sequence > s->now.next;
	s->now.next = m->sequence + 1;
	take_batch(s, m);
}

static void end_answer(struct tn_subscriber *s)
{
	bool reaches = !s->any_live || s->now.next > s->last_live;

	if (s->state == FILLING && s->from_first && !s->begun) { /* it has none: it has sent none yet, or keeps none */
		forget(s);
		s->now.complete = !s->any_live;
		live_from(s, s->any_live ? s->last_live + 1 : 0, true);
	} else if (s->state == LOADING && !s->begun) {
		s->no_snapshots = true;
		begin(s);
	} else if (s->state == LOADING) {
		s->now.snapshots++;
		s->now.complete = !s->lost;
		live_from(s, s->now.next, true);
	} else if (s->from_first) { /* what is missing nobody has */
		live_from(s, reaches ? s->now.next : s->last_live + 1, true);
	} else if (s->lost || !reaches) {
		begin(s);
	} else {
		live_from(s, s->now.next, true);
	}
}

/* ---- live batches ---------------------------------------------------------------------------------------------------- */

static bool is_next(const struct tn_subscriber *s, const struct tn_bus_message *m, bool first)
{
	return m->sequence == s->now.next || (first && s->no_snapshots && !s->now.complete && m->sequence > s->now.next);
}

static void take_live(struct tn_subscriber *s, const struct tn_bus_message *m)
{
	bool first = !s->any_live, restarted = s->any_live && m->sequence <= s->last_live;

	s->now.heard_ns = tn_now_ns(&tn_clock_system);
	s->any_live = true;
	s->last_live = m->sequence;
	if (restarted) {
		s->now.restarts++;
		s->no_snapshots = false; /* another one may be there now */
		begin(s);
	} else if (m->sequence > s->now.next && !is_next(s, m, first)) {
		s->now.gaps++;
		ask(s, FILLING, s->now.next);
	}
	if (s->state == LIVE && is_next(s, m, first)) {
		s->now.next = m->sequence + 1;
		take_batch(s, m);
	}
}

static void connected(struct tn_subscriber *s)
{
	s->now.connected = true;
	s->any_live = false;
	s->no_snapshots = false;
	begin(s);
}

static void take_message(struct tn_subscriber *s, const struct tn_bus_message *m)
{
	switch (m->kind) {
	case TN_BUS_CONNECTED:
		connected(s);
		break;
	case TN_BUS_LOST:
		s->now.connected = s->now.current = false;
		s->state = LIVE;
		break;
	case TN_BUS_LIVE:
		take_live(s, m);
		break;
	case TN_BUS_ANSWER:
		if (s->state != LIVE)
			take_answer(s, m);
		break;
	case TN_BUS_END:
		if (s->state != LIVE)
			end_answer(s);
		break;
	case TN_BUS_BUSY: /* live batches wait meanwhile */
		s->answer_ns = tn_now_ns(&tn_clock_system) - ANSWER_NS + AGAIN_NS;
		break;
	default:
		break;
	}
}

/* ---- the thread -------------------------------------------------------------------------------------------------------- */

/* An answer that stays away: the publisher is slow, or has more to do for others. */
static void ask_anew(struct tn_subscriber *s)
{
	uint64_t now = tn_now_ns(&tn_clock_system);

	if (s->state != LIVE && now > s->answer_ns + ANSWER_NS)
		begin(s);
}

static void destroy(struct tn_subscriber *s)
{
	s->ops->follower_destroy(s->bus);
	pthread_mutex_destroy(&s->lock);
	tn_put(&tn_alloc_system, s, sizeof(*s));
}

static void *subscribe_main(void *arg)
{
	struct tn_subscriber *s = arg;

	while (!__atomic_load_n(&s->stop, __ATOMIC_ACQUIRE)) {
		struct tn_bus_message m = {0};
		int rc = s->ops->receive(s->bus, s->state != LIVE, TURN_MS, &m);

		if (rc == 0)
			take_message(s, &m);
		s->now.bad += rc == -EBADMSG;
		s->lost |= rc == -EBADMSG && s->state != LIVE; /* it may have been a part of the answer */
		ask_anew(s);
		pthread_mutex_lock(&s->lock);
		s->said = s->now;
		pthread_mutex_unlock(&s->lock);
	}
	if (s->orphan)
		destroy(s);
	return NULL;
}

int tn_subscribe_start(const char *spec, const struct tn_subscribe_opts *opts, struct tn_subscriber **out)
{
	const struct tn_plugin *plugin;
	struct tn_xfer_spec parts;
	struct tn_subscriber *s;
	int rc;

	if (!spec || !opts || opts->size != sizeof(*opts) || !out)
		return tn_fail(-EINVAL, "tn_subscribe_start: no specification, no options of the right size, or nowhere to return the subscriber");
	rc = tn_xfer_spec_split("events", spec, &parts);
	if (rc == 0)
		rc = tn_plugin_open(TN_PLUGIN_EVENT_BUS, parts.name, &plugin);
	if (rc)
		return rc;
	s = tn_get(&tn_alloc_system, sizeof(*s));
	if (!s)
		return tn_fail(-ENOMEM, "no memory for a subscriber");
	s->ops = plugin->table;
	s->o = *opts;
	pthread_mutex_init(&s->lock, NULL);
	rc = s->ops->follower_create(parts.param, parts.n, &s->bus);
	if (rc)
		rc = tn_fail(rc, "events: %s", s->ops->error());
	else
		rc = tn_thread_start(&s->thread, subscribe_main, s);
	if (rc) {
		destroy(s);
		return rc;
	}
	*out = s;
	return 0;
}

void tn_subscribe_stop(struct tn_subscriber *subscriber)
{
	if (!subscriber)
		return;
	__atomic_store_n(&subscriber->stop, true, __ATOMIC_RELEASE);
	if (pthread_equal(subscriber->thread, pthread_self())) {
		subscriber->orphan = true;
		pthread_detach(subscriber->thread);
		return;
	}
	pthread_join(subscriber->thread, NULL);
	destroy(subscriber);
}

int tn_subscribe_state(struct tn_subscriber *subscriber, struct tn_subscribe_state *out)
{
	if (!subscriber || !out || out->size != sizeof(*out))
		return tn_fail(-EINVAL, "tn_subscribe_state: no subscriber, nowhere to return its state, or the size is not set");
	pthread_mutex_lock(&subscriber->lock);
	*out = subscriber->said;
	pthread_mutex_unlock(&subscriber->lock);
	out->size = sizeof(*out);
	return 0;
}
