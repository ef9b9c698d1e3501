/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto replay --no-io`: the trace against the index and a policy only, without bytes.
 *
 * Blocks are evicted when the policy's published form does it (LRU: after the request, as the traces' README
 * counts), so that figures can be compared with those of other simulators.
 */
#include "replay.h"

#include <stdlib.h>
#include <string.h>

#include "lab/policy_sim.h"

static int create(const struct replay_args *a, const struct trace *t, const char *policy, uint64_t capacity,
		  struct tn_policy_sim **out)
{
	struct tn_policy_sim_opts o;

	tn_policy_sim_opts_init(&o);
	o.policy = policy;
	o.capacity_blocks = capacity;
	o.max_request_blocks = t->longest;
	o.seed = a->seed;
	return tn_policy_sim_create(&o, out);
}

static void set_result(struct replay_result *r, const struct tn_policy_sim_stats *s)
{
	r->requests = s->requests;
	r->blocks = s->blocks;
	r->distinct_blocks = s->distinct;
	r->blocks_written = s->inserted;
	r->blocks_rejected = s->rejected;
	r->blocks_unread = s->unread;
	r->blocks_held = s->held;
}

static int belady(const struct replay_args *a, const struct trace *t, struct replay_result *r)
{
	struct tn_policy_sim_result *each = calloc(t->requests, sizeof(*each));
	struct tn_policy_sim_stats s;
	uint64_t start_ns = cli_now_ns();
	int rc;

	if (!each)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	rc = tn_policy_sim_belady(t->ids, t->length, t->requests, a->capacity_blocks, each, &s);
	for (size_t i = 0; !rc && i < t->requests; i++) {
		r->blocks += t->length[i];
		r->hit_blocks += each[i].hits;
		if (r->each)
			r->each[i] = (struct replay_hits){.hits = each[i].hits, .inserted = each[i].inserted};
		replay_sample(r, t, i + 1, (double)(cli_now_ns() - start_ns) * 1e-9);
	}
	free(each);
	if (rc)
		return cli_fail(rc, NULL);
	set_result(r, &s);
	return CLI_OK;
}

/*
 * With a host tier a request hits as far as either tier has its blocks from the first on. The tiers are
 * simulated independently, because every saved block passes through host memory. So the longer run of hits counts.
 */
static int simulate(const struct trace *t, struct tn_policy_sim *disk, struct tn_policy_sim *host,
		    struct replay_result *r)
{
	uint64_t start_ns = cli_now_ns();
	struct cli_progress p;
	size_t i;
	int rc = 0;

	cli_progress_begin(&p, "replay", t->requests);
	for (i = 0; !rc && i < t->requests && !cli_interrupted(); i++) {
		const uint64_t *ids = t->ids + t->first[i];
		struct tn_policy_sim_result d, h = {0};

		rc = tn_policy_sim_request(disk, ids, t->length[i], trace_partial(t, i), &d);
		if (!rc && host)
			rc = tn_policy_sim_request(host, ids, t->length[i], trace_partial(t, i), &h);
		if (rc)
			break;
		r->blocks += t->length[i];
		r->hit_blocks += d.hits > h.hits ? d.hits : h.hits;
		r->host_hit_blocks += h.hits;
		if (r->each)
			r->each[i] = (struct replay_hits){d.hits > h.hits ? d.hits : h.hits, h.hits, d.inserted};
		replay_sample(r, t, i + 1, (double)(cli_now_ns() - start_ns) * 1e-9);
		cli_progress_step(&p, i + 1);
	}
	cli_progress_end(&p);
	r->interrupted = !rc && i < t->requests;
	return rc;
}

int replay_index(const struct replay_args *a, const struct trace *t, struct replay_result *r)
{
	struct tn_policy_sim *disk = NULL, *host = NULL;
	struct tn_policy_sim_stats s;
	int rc;

	if (!strcmp(a->policy, "belady"))
		return belady(a, t, r);
	rc = create(a, t, a->policy, a->capacity_blocks, &disk);
	if (!rc && a->host_blocks)
		rc = create(a, t, "lru", a->host_blocks, &host);
	if (!rc)
		rc = simulate(t, disk, host, r);
	if (!rc) {
		tn_policy_sim_stats(disk, &s);
		set_result(r, &s);
	}
	tn_policy_sim_destroy(host);
	tn_policy_sim_destroy(disk);
	return rc ? cli_fail(rc, NULL) : CLI_OK;
}
