/* SPDX-License-Identifier: Apache-2.0 */
#include "base/trace.h"
#include "front/peers.h"

#include <errno.h>

#include "base/error.h"

struct tn_peers {
	pthread_mutex_t lock; /* of the rest. The owner thread never takes it */
	struct tn_list all;
	uint32_t now;
	uint64_t total;
	struct tn_region_histogram over[TN_REGION_HISTOGRAMS]; /* of those that have left */
};

static struct tn_peer *peer_of(struct tn_list *link)
{
	return tn_container_of(link, struct tn_peer, link);
}

int tn_peers_create(const struct tn_alloc *alloc, struct tn_peers **out)
{
	struct tn_peers *peers = tn_get(alloc, sizeof(*peers));

	if (!peers)
		return tn_fail(-ENOMEM, "no memory to count what processes do");
	pthread_mutex_init(&peers->lock, NULL);
	tn_list_init(&peers->all);
	*out = peers;
	return 0;
}

void tn_peers_destroy(struct tn_peers *peers, const struct tn_alloc *alloc)
{
	if (!peers)
		return;
	pthread_mutex_destroy(&peers->lock);
	tn_put(alloc, peers, sizeof(*peers));
}

void tn_peers_join(struct tn_peers *peers, struct tn_peer *peer)
{
	pthread_mutex_lock(&peers->lock);
	tn_list_push(&peers->all, &peer->link);
	peer->joined = true;
	peers->now++;
	peers->total++;
	TN_TRACE2(session_begin, peer->pid, peer->session->place);
	pthread_mutex_unlock(&peers->lock);
}

static void add(struct tn_region_histogram *to, const struct tn_region_histogram *h)
{
	to->sum_ns += h->sum_ns;
	for (uint32_t i = 0; i < TN_LATENCY_BUCKETS; i++)
		to->buckets[i] += h->buckets[i];
}

void tn_peers_leave(struct tn_peers *peers, struct tn_peer *peer)
{
	if (!peer->joined)
		return;
	pthread_mutex_lock(&peers->lock);
	for (uint32_t n = 0; n < TN_REGION_HISTOGRAMS; n++) {
		tn_latency_look(&peer->session->region, n, &peer->seen[n]);
		add(&peers->over[n], &peer->seen[n]);
	}
	TN_TRACE2(session_end, peer->pid, peer->session->place);
	tn_list_del(&peer->link);
	peer->joined = false;
	peers->now--;
	pthread_mutex_unlock(&peers->lock);
}

static void add_out(struct tn_latency *out, const struct tn_region_histogram *h)
{
	out->sum_ns += h->sum_ns;
	for (uint32_t i = 0; i < TN_LATENCY_BUCKETS; i++) {
		out->buckets[i] += h->buckets[i];
		out->count += h->buckets[i];
	}
}

void tn_peers_latency(struct tn_peers *peers, uint32_t number, struct tn_latency *out)
{
	struct tn_list *pos, *tmp;

	pthread_mutex_lock(&peers->lock);
	add_out(out, &peers->over[number]);
	tn_list_for_each_safe(pos, tmp, &peers->all) {
		struct tn_peer *peer = peer_of(pos);

		tn_latency_look(&peer->session->region, number, &peer->seen[number]);
		add_out(out, &peer->seen[number]);
	}
	pthread_mutex_unlock(&peers->lock);
}

void tn_peers_count(struct tn_peers *peers, uint32_t *now, uint64_t *total)
{
	pthread_mutex_lock(&peers->lock);
	*now = peers->now;
	*total = peers->total;
	pthread_mutex_unlock(&peers->lock);
}

int tn_peers_describe(struct tn_peers *peers, struct tn_cache *cache, const struct tn_session_view *view)
{
	struct tn_list *pos, *tmp;
	int rc = -ENOENT;

	pthread_mutex_lock(&peers->lock);
	tn_list_for_each_safe(pos, tmp, &peers->all) {
		const struct tn_peer *peer = peer_of(pos);

		if (peer->session->place + 1 != view->place)
			continue;
		view->out->pid = peer->pid;
		view->out->attached_ns = tn_now_ns(&cache->clock) - peer->since_ns;
		view->out->calls = __atomic_load_n(peer->calls, __ATOMIC_RELAXED);
		rc = tn_owner_call(cache, tn_session_describe, (void *)(uintptr_t)view);
		break;
	}
	pthread_mutex_unlock(&peers->lock);
	return rc;
}
