/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request under one strategy, in a child process that opens the store anew: no header is cached, as after a restart.
 *
 * Compute is a span of time per layer. Layer l begins when layer l-1 has ended and the load says that l is there. If l
 * is there when this process wakes up after layer l-1, l counts as begun at the very end of l-1: a GPU's stream would not
 * have waited for the wake-up of this process (a fraction of a millisecond). The longest such delay is reported.
 */
#include "pipeline.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static void wait_until(const struct pipeline_set *set, uint64_t ns)
{
	struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

	if (set->spin) {
		while (cli_now_ns() < ns)
			;
		return;
	}
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
		;
}

int request_begin_load(struct pipeline_rig *rig, const struct tn_key *keys, uint32_t n, uint64_t input_tokens,
		       struct tn_load **load)
{
	struct tn_load_opts o;
	int rc;

	tn_load_opts_init(&o);
	o.deadline_ns = cli_now_ns() + PIPELINE_PATIENCE_NS;
	o.input_tokens = input_tokens;
	rc = tn_load_begin(rig->space, rig->pool.pool, keys, n, rig->set->pages, &o, load);
	return rc ? rig_failed(rig, "load", rc) : 0;
}

static int wait_layer(struct pipeline_rig *rig, struct tn_load *load, uint32_t layer, uint32_t blocks)
{
	int rc = tn_load_wait(load, layer, cli_now_ns() + PIPELINE_PATIENCE_NS);

	if (rc == (int)blocks)
		return 0;
	return rig_failed(rig, rc < 0 ? "load" : "load: a saved block is missing", rc < 0 ? rc : -ENODATA);
}

int request_wait_all(struct pipeline_rig *rig, struct tn_load *load, uint32_t blocks)
{
	int rc = 0;

	for (uint32_t layer = 0; !rc && layer < rig->set->geometry.layers; layer++)
		rc = wait_layer(rig, load, layer, blocks);
	return rc;
}

static int warm_up(struct pipeline_rig *rig)
{
	struct tn_load *load;
	int rc = request_begin_load(rig, rig->keys, PIPELINE_WARM_BLOCKS, 0, &load);

	if (!rc)
		rc = request_wait_all(rig, load, PIPELINE_WARM_BLOCKS);
	return rc ? rc : rig_end_load(rig, load);
}

int request_open(struct pipeline_rig *rig, const struct pipeline_set *set, const char *scheduler, const struct tn_slack *table,
		 struct pipeline_run *run)
{
	int rc = rig_open(rig, set, scheduler, true, run);

	if (!rc)
		rc = rig_slack(rig, table);
	if (!rc)
		rc = rig_pin(rig);
	if (rc)
		return rc;
	rig_settle(rig);
	return warm_up(rig);
}

/* Computes all layers, one after the other; *ended: when the last one's compute ended. */
static int compute(struct pipeline_rig *rig, struct tn_load *load, uint32_t blocks, uint64_t began, uint64_t *ended)
{
	const struct pipeline_set *set = rig->set;
	uint64_t t = began, sum = 0;
	struct pipeline_run *run = rig->run;

	for (uint32_t layer = 0; layer < set->geometry.layers; layer++) {
		uint64_t each, now = cli_now_ns();
		bool there = !load || tn_load_poll(load, layer) >= 0;
		double late = (double)(now - t) * 1e-9;

		if (layer && late > run->late)
			run->late = late;
		if (load && wait_layer(rig, load, layer, blocks))
			return -1;
		if (!there || layer == 0)
			t = cli_now_ns();
		each = pipeline_compute_ns(set, blocks, layer);
		sum += each;
		t += each;
		wait_until(set, t);
	}
	run->compute = (double)sum * 1e-9;
	*ended = cli_now_ns();
	return 0;
}

int request_plan(struct pipeline_rig *rig, uint32_t matched, uint32_t *restored, double *estimate)
{
	struct tn_plan plan = {.size = sizeof(plan)};
	uint64_t input = matched < rig->set->blocks ? pipeline_input_tokens(rig->set, matched) : 0;
	struct tn_match m = {.size = sizeof(m)};
	int rc = tn_match(rig->space, rig->keys + PIPELINE_WARM_BLOCKS, matched, NULL, &m, 0);

	if (rc >= 0)
		rc = tn_plan(rig->space, &m, NULL, input, &plan);
	if (rc)
		return rig_failed(rig, "plan", rc);
	*restored = plan.restore_blocks;
	*estimate = (double)plan.choice.ttft_ns * 1e-9;
	return 0;
}

int request_serve(struct pipeline_rig *rig, uint32_t strategy, uint32_t blocks)
{
	struct pipeline_run *run = rig->run;
	struct cli_stats before, after;
	struct tn_load *load = NULL;
	uint64_t began, ended = 0;
	double cpu;
	int rc = 0;

	cli_stats(rig->cache, &before);
	cpu = cli_cpu_seconds();
	began = cli_now_ns();
	if (blocks)
		rc = request_begin_load(rig, rig->keys + PIPELINE_WARM_BLOCKS, blocks, pipeline_input_tokens(rig->set, blocks),
					&load);
	run->begin = (double)(cli_now_ns() - began) * 1e-9;
	if (!rc && load && strategy == TN_STRATEGY_LOAD_THEN_COMPUTE)
		rc = request_wait_all(rig, load, blocks);
	if (!rc)
		rc = compute(rig, load, blocks, began, &ended);
	run->cpu = cli_cpu_seconds() - cpu;
	cli_stats(rig->cache, &after);
	if (!rc && load)
		rc = rig_end_load(rig, load);
	run->restored = blocks;
	run->ttft = (double)(ended - began) * 1e-9;
	run->bubble = run->ttft > run->compute ? run->ttft - run->compute : 0;
	run->bytes_read = after.bytes_read - before.bytes_read;
	run->bytes_written = after.bytes_written - before.bytes_written;
	run->bounced = after.bounced_objects - before.bounced_objects;
	return rc;
}

/* In an open cache: starts the write load if there is one, then serves the request. */
static int serve(struct pipeline_rig *rig, const struct pipeline_arm *arm)
{
	uint32_t blocks = arm->strategy == TN_STRATEGY_RECOMPUTE ? 0 : arm->blocks;
	struct pipeline_load load;
	int rc = 0;

	if (arm->writes && load_start(&load, rig, PIPELINE_WRITE_CHAIN + (arm->run << 24)))
		return -1;
	if (arm->split)
		rc = request_plan(rig, arm->blocks, &blocks, &rig->run->estimate);
	if (!rc)
		rc = request_serve(rig, arm->strategy, blocks);
	if (arm->writes && load_stop(&load))
		rc = -1;
	return rc;
}

void pipeline_request(const void *arg, void *out)
{
	const struct pipeline_job *job = arg;
	const struct pipeline_arm *arm = &job->arm;
	bool scheduled = arm->strategy == TN_STRATEGY_TENUTO;
	struct pipeline_run *run = out;
	struct pipeline_rig rig;
	int rc = request_open(&rig, job->set, scheduled ? "slack" : "none", scheduled ? job->set->slack : NULL, run);

	if (!rc)
		rc = serve(&rig, arm);
	if (!rc) {
		run->wrong_objects = rig_check(&rig, run->restored);
		if (run->wrong_objects)
			rig_failed(&rig, "the load brought wrong bytes", -EBADMSG);
	}
	rig_close(&rig);
}
