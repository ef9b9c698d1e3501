/* SPDX-License-Identifier: Apache-2.0 */
/* The whole of a cache (tenuto/status.h): asked in the owner's process, or of it. */
#include <errno.h>
#include <unistd.h>

#include "base/abi.h"
#include "base/error.h"
#include "front/attach.h"
#include "front/peers.h"

_Static_assert(TN_SESSION_PLACES == TN_SESSIONS_MAX + 1, "the owner's place, and one per process that may attach");

static int ask(struct tn_cache *cache, enum tn_wire_call kind, uint32_t number, uint32_t n, void *out, size_t bytes)
{
	struct tn_wire_about about = {.number = number, .n = n};
	const struct iovec in = {&about, sizeof(about)}, answer = {out, bytes};

	return tn_attached_call(cache, kind, &in, 1, &answer, 1);
}

/* What all three have in common. */
static int check(struct tn_cache *cache, const struct tn_abi *abi, const void *out)
{
	if (!cache || !out)
		return tn_fail(-EINVAL, "struct %s: no cache, or nowhere to return it", abi->name);
	if (tn_check_process(cache))
		return -ECHILD;
	return tn_abi_check(abi, out);
}

static struct tn_peers *peers_of(struct tn_cache *cache)
{
	return __atomic_load_n(&cache->peers, __ATOMIC_ACQUIRE);
}

int tn_cache_owner_stats(struct tn_cache *cache, struct tn_owner_stats *out)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_owner_stats, write_bytes_per_day);
	struct tn_owner_stats s = {.size = sizeof(s)};
	int rc = check(cache, abi, out);

	if (rc)
		return rc;
	if (cache->attached) {
		rc = ask(cache, TN_WIRE_OWNER_STATS, 0, 0, &s, sizeof(s));
		if (rc)
			return rc;
	} else {
		s.pid = (uint32_t)getpid();
		s.open_ns = tn_now_ns(&cache->clock) - cache->opened_ns;
		s.write_bytes_per_day = cache->o.write_bytes_per_day;
		if (peers_of(cache))
			tn_peers_count(peers_of(cache), &s.sessions, &s.sessions_total);
	}
	tn_abi_out(abi, out, &s);
	return 0;
}

static int describe(struct tn_cache *cache, const struct tn_session_view *view)
{
	if (view->place > 0)
		return peers_of(cache) ? tn_peers_describe(peers_of(cache), cache, view) : -ENOENT;
	view->out->pid = (uint32_t)getpid();
	view->out->attached_ns = tn_now_ns(&cache->clock) - cache->opened_ns;
	return tn_owner_call(cache, tn_session_describe, (void *)(uintptr_t)view);
}

int tn_cache_session_stats(struct tn_cache *cache, uint32_t place, struct tn_session_stats *out)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_session_stats, backlog_bytes);
	struct tn_session_stats s = {.size = sizeof(s)};
	const struct tn_session_view view = {place, &s};
	int rc = check(cache, abi, out);

	if (rc)
		return rc;
	if (place >= TN_SESSION_PLACES)
		return tn_fail(-EINVAL, "tn_cache_session_stats: place %u; there are %u", place, TN_SESSION_PLACES);
	rc = cache->attached ? ask(cache, TN_WIRE_SESSION_STATS, place, 0, &s, sizeof(s)) : describe(cache, &view);
	if (rc == 0)
		tn_abi_out(abi, out, &s);
	return rc;
}

int tn_cache_space_stats(struct tn_cache *cache, uint32_t index, uint32_t input_tokens, struct tn_space_stats *out)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_space_stats, crossover_tokens);
	struct tn_space_stats s = {.size = sizeof(s)};
	int rc = check(cache, abi, out);

	if (rc)
		return rc;
	if (input_tokens == 0)
		return tn_fail(-EINVAL, "tn_cache_space_stats: 0 input tokens; the last one of a prompt is always computed");
	rc = cache->attached ? ask(cache, TN_WIRE_SPACE_STATS, index, input_tokens, &s, sizeof(s))
			     : tn_space_describe(cache, index, input_tokens, &s);
	if (rc == 0)
		tn_abi_out(abi, out, &s);
	return rc;
}

int tn_cache_all_latency(struct tn_cache *cache, enum tn_latency_kind kind, enum tn_tier tier, struct tn_latency *out)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_latency, buckets);
	struct tn_latency l = {.size = sizeof(l)};
	int rc = check(cache, abi, out);

	if (rc)
		return rc;
	if (cache->attached) {
		rc = ask(cache, TN_WIRE_LATENCY, (uint32_t)kind, (uint32_t)tier, &l, sizeof(l));
	} else {
		rc = tn_cache_latency(cache, kind, tier, &l);
		if (rc == 0 && peers_of(cache))
			tn_peers_latency(peers_of(cache), tn_latency_number(kind, (uint32_t)tier), &l);
	}
	if (rc == 0)
		tn_abi_out(abi, out, &l);
	return rc;
}
