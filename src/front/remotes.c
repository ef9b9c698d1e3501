/* SPDX-License-Identifier: Apache-2.0 */
/* What a cache tells of its remote stores, and a try of them without a cache. */
#include <tenuto/remote.h>

#include <errno.h>
#include <string.h>

#include "base/abi.h"
#include "base/error.h"
#include "front/attach.h"
#include "tier/remote/spec.h"
#include "tier/remote/try.h"

struct remote_stats_call {
	uint32_t index;
	struct tn_remote_stats *stats;
};

/* 1: there is such a remote. */
static int stats_on_owner(struct tn_cache *cache, void *arg)
{
	const struct remote_stats_call *c = arg;

	for_each_tier(t, &cache->row)
		if (t->ops->remotes)
			return t->ops->remotes(t, c->index, c->stats) == 0;
	return 0;
}

int tn_cache_remote_stats(struct tn_cache *cache, uint32_t index, struct tn_remote_stats *stats)
{
	const struct tn_abi *abi = TN_ABI_RESULT(tn_remote_stats, write_p50_ns);
	struct tn_remote_stats s = {.size = sizeof(s)};
	struct remote_stats_call call = {index, &s};
	int rc;

	if (!cache || !stats)
		return tn_fail(-EINVAL, "tn_cache_remote_stats: no cache, or nowhere to return the statistics");
	rc = tn_abi_check(abi, stats);
	if (rc)
		return rc;
	if (cache->attached)
		rc = tn_check_process(cache) ? -ECHILD : tn_remote_remote_stats(cache, index, &s);
	else
		rc = tn_owner_call(cache, stats_on_owner, &call);
	if (rc == 0)
		return -ENOENT;
	if (rc < 0)
		return rc;
	tn_abi_out(abi, stats, &s);
	return 0;
}

int tn_remotes_try(const char *remote, uint64_t deadline_ns, void (*report)(void *arg, const char *name, int status, const char *text), void *arg)
{
	struct tn_remote_spec specs[TN_REMOTES_MAX];
	int n, first = 0;

	if (!remote)
		return tn_fail(-EINVAL, "tn_remotes_try: no remote");
	n = tn_remote_specs(remote, specs);
	for (int i = 0; i < n; i++) {
		int rc = tn_remote_try(&specs[i], deadline_ns);

		first = first ? first : rc;
		if (report)
			report(arg, specs[i].store.name, rc, rc ? tn_error_last()->text : "");
	}
	return n < 0 ? n : first;
}
