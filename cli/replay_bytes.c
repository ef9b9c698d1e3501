/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto replay` with real bytes: a stand-in engine serves request after request from the real cache.
 */
#include "replay.h"

#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#include <tenuto/admin.h>
#include <tenuto/cache.h>

#include "engine.h"
#include "explain.h"

/* Blocks that the existing stores can hold; 0: there is no store. *all: each directory has a store. */
static uint64_t store_capacity(const char *const *dirs, size_t ndirs, bool *all)
{
	uint64_t blocks = 0;

	*all = true;
	for (size_t i = 0; i < ndirs; i++) {
		struct tn_admin_store s;
		struct tn_admin_device d;

		tn_admin_store_init(&s);
		s.dirs = &dirs[i];
		s.ndirs = 1;
		if (tn_admin_store_info(&s, &d) == 0 && d.segments_assigned)
			blocks += d.slots * d.segments / d.segments_assigned;
		else
			*all = false;
	}
	return blocks;
}

/*
 * Without --capacity-blocks everything is kept: the blocks of the store, and the trace's blocks if enough bytes are
 * free.
 */
static int default_capacity(const struct trace *t, const struct tn_geometry *g, uint32_t ranks, const char *const *dirs, size_t ndirs,
			    uint64_t *capacity)
{
	uint64_t need = engine_disk_bytes(g, t->distinct * ranks), free_bytes = 0, had;
	char a[32], b[32];
	bool all;

	had = store_capacity(dirs, ndirs, &all) / ranks;
	if (had) {
		/* 0: the stores' own capacity, without a warning that they cannot grow. */
		*capacity = had < t->distinct ? t->distinct : all ? 0 : had;
		return CLI_OK;
	}
	for (size_t i = 0; i < ndirs; i++) {
		struct statvfs v;

		if (cli_is_drive(dirs[i]))
			return cli_error(CLI_USAGE, "%s: how many blocks may the store have there? give --capacity-blocks", dirs[i]);
		if (statvfs(dirs[i], &v))
			return cli_error(CLI_ENVIRONMENT, "%s: %s", dirs[i], strerror(errno));
		free_bytes += (uint64_t)v.f_bavail * v.f_frsize;
	}
	free_bytes = free_bytes / 10 * 9; /* a disk that is filled to the brim is slow */
	if (need > free_bytes)
		return cli_error(CLI_USAGE, "all %llu distinct blocks need %s (a quarter and 256 blocks of it for slots that wait "
				 "to be used again), and nine tenths of what is free are %s; give --capacity-blocks",
				 (unsigned long long)t->distinct, cli_bytes(a, (double)need), cli_bytes(b, (double)free_bytes));
	*capacity = t->distinct;
	return CLI_OK;
}

/* Waits until the request's arrival; counts the request as late if that was more than 10 ms ago. */
static void wait_arrival(const struct trace *t, size_t i, double speed, uint64_t start_ns, struct replay_result *r)
{
	double due_s = (t->arrival_ms[i] - t->arrival_ms[0]) * 1e-3 / speed;
	int64_t left;

	while ((left = (int64_t)(start_ns + (uint64_t)(due_s > 0 ? due_s * 1e9 : 0)) - (int64_t)cli_now_ns()) > 0 &&
	       !cli_interrupted()) {
		struct timespec ts = {.tv_nsec = left < 100000000 ? left : 100000000};

		nanosleep(&ts, NULL);
	}
	r->late_requests += left < -10000000;
}

/*
 * Only whole blocks are written. So blocks that are in the bytes and not in the blocks were saved by two requests at
 * once.
 */
static uint64_t written_twice(const struct cli_stats *st, uint64_t block_disk_bytes)
{
	uint64_t blocks = st->bytes_written / block_disk_bytes;

	return blocks > st->saved_blocks ? blocks - st->saved_blocks : 0;
}

static void set_result(struct replay_result *r, struct engine *e, bool later, double run_s)
{
	const struct engine_totals *s = engine_totals(e);
	struct cli_stats st;

	r->requests = s->requests;
	r->blocks = s->blocks;
	r->hit_blocks = s->hit_blocks;
	r->host_hit_blocks = s->host_hit_blocks;
	r->wrong_objects = s->wrong_objects;
	r->read_seconds = (double)s->read_ns * 1e-9;
	/* A save into host memory ends before its bytes are on disk; those of several ranks overlap. */
	r->short_loads = s->short_loads;
	r->write_seconds = later ? run_s : (double)s->write_ns * 1e-9;
	if (engine_stats(e, &st))
		return;
	r->blocks_written = st.saved_blocks;
	r->in_saving_blocks = s->in_saving_blocks;
	r->written_twice_blocks = written_twice(&st, r->block_disk_bytes);
	r->blocks_rejected = st.admission_rejected_blocks + st.host_only_blocks;
	r->capacity_blocks = st.capacity_blocks;
	r->blocks_held = st.disk_blocks;
	r->blocks_failed = st.save_failed_blocks;
	r->blocks_unread = st.saved_blocks > st.blocks_read_back ? st.saved_blocks - st.blocks_read_back : 0;
	r->bytes_read = st.bytes_read;
	r->bytes_written = st.bytes_written;
	r->verified_objects = s->verified_objects ? s->verified_objects : st.verified_objects;
	r->corrupt_detected = st.corrupt_objects;
	r->io_errors = st.io_errors;
	r->recovered_blocks = st.recovered_blocks;
}

static int serve(const struct replay_args *a, const struct trace *t, struct engine *e, struct replay_result *r)
{
	bool later = a->host_blocks > 0 || a->ranks > 1;
	uint64_t start_ns = cli_now_ns();
	struct cli_progress p;
	size_t i;
	int rc = 0;

	cli_progress_begin(&p, "replay", t->blocks);
	for (i = 0; !rc && i < t->requests && !cli_interrupted(); i++) {
		if (a->speed > 0)
			wait_arrival(t, i, a->speed, start_ns, r);
		rc = engine_request(e, t->ids + t->first[i], t->length[i], trace_partial(t, i), NULL);
		if ((i + 1) * REPLAY_SAMPLES >= (r->samples + 1) * t->requests) {
			double run_s = (double)(cli_now_ns() - start_ns) * 1e-9;

			set_result(r, e, later, run_s);
			replay_sample(r, t, i + 1, run_s);
		}
		cli_progress_step(&p, t->first[i]);
	}
	cli_progress_end(&p);
	r->interrupted = !rc && i < t->requests;
	if (r->interrupted)
		rc = trace_distinct(t, i < t->requests ? t->first[i] : t->blocks, &r->distinct_blocks);
	if (!rc)
		rc = engine_flush(e);
	set_result(r, e, later, (double)(cli_now_ns() - start_ns) * 1e-9);
	return rc;
}

/* Warns of the blocks that a smaller capacity than the store had drops at once. */
static void warn_dropped(struct engine *e)
{
	struct cli_stats st;
	char capacity[32], dropped[32], had[32];

	if (engine_stats(e, &st) || st.recovered_blocks <= st.capacity_blocks)
		return;
	cli_error(CLI_OK, "warning: capacity %s: %s of %s blocks were dropped", cli_number(capacity, st.capacity_blocks),
		  cli_number(dropped, st.recovered_blocks - st.capacity_blocks), cli_number(had, st.recovered_blocks));
}

static int run(const struct replay_args *a, const struct trace *t, const struct tn_geometry *g,
	       const char *const *dirs, size_t ndirs, struct replay_result *r)
{
	struct engine_opts o = {
		.dirs = dirs,
		.ndirs = ndirs,
		.model = a->model ? a->model : "raw",
		.geometry = *g,
		.ranks = (uint32_t)a->ranks,
		.capacity_blocks = a->capacity_blocks,
		.host_blocks = a->host_blocks,
		.longest = t->longest,
		.policy = a->policy,
		.io_engine = a->io_engine,
		.seed = a->seed,
		.verify = a->verify,
		/*
		 * Without arrival times, a request that needs blocks of a save under way is taken to come after the end
		 * of that save.
		 */
		.wait_saves = !(a->speed > 0),
	};
	struct explain *x;
	struct engine *e;
	int rc = a->capacity_blocks ? 0 : default_capacity(t, g, (uint32_t)a->ranks, dirs, ndirs, &o.capacity_blocks);
	int closed;

	if (rc)
		return rc;
	rc = explain_open(a->explain, &x);
	if (rc)
		return rc;
	o.explain = x ? explain_decision : NULL;
	o.explain_arg = x;
	rc = engine_open(&o, &e);
	if (rc) {
		explain_close(x);
		return a->capacity_blocks && rc == -EINVAL
			       ? cli_fail(rc, "cannot open the cache with --capacity-blocks %llu", (unsigned long long)a->capacity_blocks)
			       : cli_fail(rc, "cannot open the cache");
	}
	warn_dropped(e);
	r->distinct_blocks = t->distinct;
	r->capacity_blocks = o.capacity_blocks;
	r->block_bytes = a->ranks * tn_geometry_block_bytes(g);
	r->block_disk_bytes = a->ranks * engine_block_disk_bytes(g);
	rc = serve(a, t, e, r);
	if (rc)
		rc = cli_fail(rc, NULL);
	closed = engine_close(e);
	if (closed && !rc)
		rc = cli_fail(closed, "closing");
	closed = explain_close(x);
	rc = rc ? rc : closed;
	return rc;
}

int replay_bytes(const struct replay_args *a, const struct trace *t, const struct tn_geometry *g,
		 struct replay_result *r)
{
	char temp[4096];
	const char *one = temp;
	int rc;

	for (size_t i = 0; i < a->dirs.n; i++)
		if ((rc = cli_check_place("--dir ", a->dirs.item[i])))
			return rc;
	if (a->dirs.n)
		return run(a, t, g, a->dirs.item, a->dirs.n, r);
	rc = cli_scratch_dir(NULL, NULL, temp, sizeof(temp));
	if (rc)
		return rc;
	rc = run(a, t, g, &one, 1, r);
	cli_remove_tree(temp);
	return rc;
}
