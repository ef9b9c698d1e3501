/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto replay TRACE`: options, which of them go together, and the result as a table or JSON.
 *
 * The run itself is in replay_index.c (no bytes) and replay_bytes.c (real ones).
 */
#include "replay.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <tenuto/layout.h>

#include "cost.h"
#include "engine_ranks.h"
#include "lab/models.h"
#include "lab/policy_sim.h"

#define CAPACITY_MAX (1ull << 31)

#define OPT(name, arg, dflt, type, field, min, max, help) \
	{name, arg, dflt, help, type, offsetof(struct replay_args, field), min, max}

static const struct cli_opt options[] = {
	OPT("capacity-blocks", "N", NULL, CLI_COUNT, capacity_blocks, 1, CAPACITY_MAX,
	    "most blocks on disk; without it every distinct block of the trace fits and none is evicted, but a store that "
	    "is in --dir already is used as large as it is"),
	OPT("host-blocks", "N", "0", CLI_COUNT, host_blocks, 0, CAPACITY_MAX, "most blocks in host memory"),
	OPT("policy", "NAME", "default", CLI_STRING, policy, 0, 0,
	    "default, lru, fifo, s3fifo, or belady (only with --no-io)"),
	OPT("no-io", NULL, NULL, CLI_FLAG, no_io, 0, 0, "index only: no bytes are moved"),
	OPT("geometry", "LxBYTES", "8x16KiB", CLI_GEOMETRY, geometry, 0, 0, "layers of a block and bytes of each"),
	OPT("model", "NAME", NULL, CLI_STRING, model, 0, 0, "a model's geometry instead, as many tokens per block as in the trace"),
	OPT("dir", "DIR", "a temporary one", CLI_STRINGS, dirs, 0, 0,
	    "where to store, or a raw drive as nvme:0000:03:00.0; repeat for several devices; kept afterwards"),
	OPT("ranks", "N", "1", CLI_COUNT, ranks, 1, ENGINE_RANKS_MAX,
	    "tensor parallelism: so many processes, each with its share of every block, attach to the cache of this one, which schedules"),
	OPT("block-tokens", "N", NULL, CLI_COUNT, block_tokens, 1, TRACE_BLOCK_TOKENS_MAX,
	    "tokens of the trace's blocks; without it as the trace's field block_size says, else 512"),
	OPT("timestamp-unit", "UNIT", NULL, CLI_STRING, timestamp_unit, 0, 0,
	    "of the trace: s or ms; without it ms, and a timestamp with a fraction is refused"),
	OPT("limit", "N", "all", CLI_COUNT, limit, 1, UINT64_MAX, "only the first N requests"),
	OPT("speed", "FACTOR", "as fast as possible", CLI_RATE, speed, 0, 0,
	    "requests arrive as in the trace, FACTOR times as fast; without it a request waits for saves of its blocks"),
	OPT("verify", NULL, NULL, CLI_FLAG, verify, 0, 0, "compare every restored byte with what was saved"),
	OPT("report", "FILE.html", NULL, CLI_STRING, report, 0, 0, "write a page with the curves"),
	OPT("explain", "FILE", NULL, CLI_STRING, explain, 0, 0, "write every decision of the scheduler: JSON lines (docs/explain.md)"),
	OPT("gpu", "NAME", NULL, CLI_STRING, gpu, 0, 0, "compute time to first token: --model on this GPU (h100...)"),
	OPT("slack", "FILE", NULL, CLI_STRING, slack, 0, 0, "the same with the compute times of a slack table"),
	OPT("slo-ms", "MS", NULL, CLI_RATE, slo_ms, 0, 0, "and the largest rate with p90 of it within so many ms"),
	OPT("rate", "FACTOR", "1", CLI_RATE, rate, 0, 0, "for it: arrival rate, as a multiple of the trace's"),
	OPT("device-model", "NAME", "two D7-PS1010: 29 GB/s", CLI_STRING, device_model, 0, 0,
	    "for it: the drive: one of share/devices, or a file (also a tenuto.mix)"),
	OPT("read-gbps", "GB/S", NULL, CLI_RATE, read_gbps, 0, 0,
	    "for it: what the drive reads; writing and mixed in the same proportion"),
	OPT("price", "LIST", COST_PRICES, CLI_STRING, price, 0, 0, "for it: " COST_PRICES_HELP),
	OPT("drive", "LIST", COST_DRIVE, CLI_STRING, drive, 0, 0, "for it: " COST_DRIVE_HELP),
	OPT("seed", "N", "1", CLI_COUNT, seed, 1, UINT64_MAX, "of sampling policies, and of the model's arrivals"),
	OPT("io-engine", "NAME", "auto", CLI_STRING, io_engine, 0, 0, "auto, io_uring or posix"),
	OPT("json", NULL, NULL, CLI_FLAG, json, 0, 0, "print the result as JSON"),
	{0},
};

static const struct cli_verb verb = {
	.name = "replay",
	.operands = "TRACE.jsonl",
	.about = "Runs a trace of requests against the cache. Each hash id is one block of tokens: the longest run of "
		 "cached blocks from the start of a prompt is loaded (these are the hits), the rest is saved. TRACE.jsonl, or '-' for "
		 "standard input, may be compressed by gzip. It has one JSON object per line: input_length and hash_ids, and if known "
		 "timestamp, output_length and block_size (docs/workload.md).",
	.opts = options,
	.min_operands = 1,
	.max_operands = 1,
};

void replay_sample(struct replay_result *r, const struct trace *t, size_t done, double wall_s)
{
	size_t k = r->samples;
	double arrival_s = t->arrival_ms[done - 1] * 1e-3;

	if (k > REPLAY_SAMPLES || (done < t->requests && done * REPLAY_SAMPLES < (k + 1) * t->requests))
		return;
	r->sample[k] = (struct replay_sample){
		.requests = done,
		.trace_s = k && r->sample[k - 1].trace_s > arrival_s ? r->sample[k - 1].trace_s : arrival_s,
		.wall_s = wall_s,
		.read_s = r->read_seconds,
		.write_s = r->write_seconds,
		.blocks = r->blocks,
		.hit_blocks = r->hit_blocks,
		.bytes_read = r->bytes_read,
		.bytes_written = r->bytes_written,
	};
	r->samples++;
}

static double gbps(uint64_t bytes, double seconds)
{
	return seconds > 0 ? (double)bytes * 1e-9 / seconds : 0;
}

static json_t *as_json(const struct replay_args *a, const struct replay_result *r,
		       const struct replay_model *m)
{
	json_t *o = json_object();
	struct {
		const char *name;
		uint64_t value;
	} counts[] = {
		{"requests", r->requests},
		{"blocks", r->blocks},
		{"hit_blocks", r->hit_blocks},
		{"host_hit_blocks", r->host_hit_blocks},
		{"distinct_blocks", r->distinct_blocks},
		{"blocks_written", r->blocks_written},
		{"blocks_written_twice", r->written_twice_blocks},
		{"blocks_in_saving", r->in_saving_blocks},
		{"blocks_admission_rejected", r->blocks_rejected},
		{"blocks_never_read_back", r->blocks_unread},
		{"blocks_failed", r->blocks_failed},
		{"blocks_held", r->blocks_held},
		{"blocks_recovered", r->recovered_blocks},
		{"block_tokens", r->block_tokens},
		{"block_bytes", r->block_bytes},
		{"bytes_read", r->bytes_read},
		{"bytes_written", r->bytes_written},
		{"verified_objects", r->verified_objects},
		{"corrupt_objects", r->wrong_objects + r->corrupt_detected},
		{"wrong_objects", r->wrong_objects},
		{"io_errors", r->io_errors},
		{"ranks", a->ranks},
		{"short_loads", r->short_loads},
		{"late_requests", r->late_requests},
	};

	for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
		json_object_set_new(o, counts[i].name, json_integer((json_int_t)counts[i].value));
	json_object_set_new(o, "hit_rate", json_real(r->blocks ? (double)r->hit_blocks / (double)r->blocks : 0));
	json_object_set_new(o, "read_gbps", json_real(gbps(r->bytes_read, r->read_seconds)));
	json_object_set_new(o, "write_gbps", json_real(gbps(r->bytes_written, r->write_seconds)));
	json_object_set_new(o, "read_seconds", json_real(r->read_seconds));
	json_object_set_new(o, "write_seconds", json_real(r->write_seconds));
	json_object_set_new(o, "cpu_seconds", json_real(r->cpu_seconds));
	json_object_set_new(o, "wall_seconds", json_real(r->wall_seconds));
	json_object_set_new(o, "policy", json_string(a->policy));
	json_object_set_new(o, "capacity_blocks",
			    r->capacity_blocks ? json_integer((json_int_t)r->capacity_blocks) : json_null());
	json_object_set_new(o, "host_blocks", json_integer((json_int_t)a->host_blocks));
	json_object_set_new(o, "io", json_boolean(!a->no_io));
	json_object_set_new(o, "interrupted", json_boolean(r->interrupted));
	if (m && !r->interrupted)
		json_object_set_new(o, "ttft", replay_model_json(m));
	return o;
}

static void row(struct cli_table *t, const char *name, uint64_t n, const char *note)
{
	char num[32];

	cli_table_cell(t, "%s", name);
	cli_table_cell(t, "%s", cli_number(num, n));
	cli_table_cell(t, "%s", note);
}

static void print_io(struct cli_table *t, const struct replay_args *a, const struct replay_result *r)
{
	char b[32], d[32];

	cli_table_cell(t, "read");
	cli_table_cell(t, "%s", cli_bytes(b, (double)r->bytes_read));
	cli_table_cell(t, "%.2f GB/s over %s of loading", gbps(r->bytes_read, r->read_seconds),
		       cli_duration(d, r->read_seconds));
	cli_table_cell(t, "written");
	cli_table_cell(t, "%s", cli_bytes(b, (double)r->bytes_written));
	cli_table_cell(t, "%.2f GB/s over %s %s", gbps(r->bytes_written, r->write_seconds),
		       cli_duration(d, r->write_seconds), a->host_blocks || a->ranks > 1 ? "of the run" : "with a save under way");
	row(t, "objects verified", r->verified_objects,
	    a->verify ? "every restored byte compared" : "checksums; --verify compares every byte");
	row(t, "objects corrupt", r->wrong_objects + r->corrupt_detected,
	    r->wrong_objects ? "WRONG BYTES WERE GIVEN BACK" : "");
	if (r->recovered_blocks)
		row(t, "blocks recovered", r->recovered_blocks, "were in the store already");
	if (r->blocks_failed || r->io_errors)
		row(t, "blocks not stored", r->blocks_failed, "I/O errors or no free slot");
	if (a->ranks > 1) {
		row(t, "ranks", a->ranks, "processes; a block counts when all have their share of it");
		row(t, "loads cut short", r->short_loads, r->short_loads ? "of ranks that got less than the scheduler's lease held" : "");
	}
	if (a->speed > 0)
		row(t, "requests late", r->late_requests, "began after their time");
}

static int print(const struct replay_args *a, const struct replay_result *r, const struct replay_model *m)
{
	const bool left[] = {true, false, true};
	struct cli_table t;
	char d[32], note[96];

	cli_table_init(&t, 3, left);
	row(&t, "requests", r->requests, r->interrupted ? "interrupted: the figures are of these" : "");
	snprintf(note, sizeof(note), "of %u token%s", r->block_tokens, r->block_tokens == 1 ? "" : "s");
	row(&t, "blocks", r->blocks, note);
	row(&t, "distinct blocks", r->distinct_blocks, "");
	snprintf(note, sizeof(note), "%.2f %% of the blocks", r->blocks ? 100.0 * (double)r->hit_blocks / (double)r->blocks : 0);
	row(&t, "hits", r->hit_blocks, note);
	if (a->host_blocks)
		row(&t, "  from host memory", r->host_hit_blocks, "");
	row(&t, "blocks written", r->blocks_written, "");
	snprintf(note, sizeof(note), "%.1f %% of those written",
		 r->blocks_written ? 100.0 * (double)r->blocks_unread / (double)r->blocks_written : 0);
	row(&t, "  never read back", r->blocks_unread, note);
	if (r->written_twice_blocks)
		row(&t, "  and once more", r->written_twice_blocks, "by two requests at once; in 'written', not in the line above");
	if (r->in_saving_blocks)
		row(&t, "blocks in saving", r->in_saving_blocks, "asked for before their save had ended: no hits");
	row(&t, "blocks not admitted", r->blocks_rejected, r->blocks_rejected ? "by the policy: not worth a write" : "");
	if (!a->no_io)
		print_io(&t, a, r);
	if (r->capacity_blocks)
		row(&t, "capacity", r->capacity_blocks,
		    a->capacity_blocks > r->capacity_blocks ? "blocks: the store that was there holds no more" : "blocks");
	cli_table_cell(&t, "policy");
	cli_table_cell(&t, "%s", a->policy);
	cli_table_cell(&t, "%s", a->no_io ? "index only, no bytes moved" : "");
	cli_table_cell(&t, "time");
	cli_table_cell(&t, "%s", cli_duration(d, r->wall_seconds));
	cli_table_cell(&t, "%.2f s of CPU", r->cpu_seconds);
	cli_table_print(&t, stdout, false);
	if (m && !r->interrupted)
		replay_model_print(m);
	return cli_finish(CLI_OK);
}

static int check_no_io(const struct replay_args *a)
{
	const struct {
		const char *name;
		bool given;
	} needs_io[] = {{"dir", a->dirs.n > 0}, {"verify", a->verify}, {"speed", a->speed > 0}, {"io-engine", a->io_engine},
		       {"explain", a->explain}, {"ranks", a->ranks > 1}};

	for (size_t i = 0; a->no_io && i < sizeof(needs_io) / sizeof(needs_io[0]); i++)
		if (needs_io[i].given)
			return cli_error(CLI_USAGE, "--%s and --no-io exclude each other: without I/O no bytes are moved",
					 needs_io[i].name);
	if (!strcmp(a->policy, "belady") && a->host_blocks)
		return cli_error(CLI_USAGE, "--policy belady and --host-blocks exclude each other: belady has one tier");
	return CLI_OK;
}

/* Checks which options go together, and sets what follows from them. */
static int check_args(const struct replay_args *a)
{
	bool known = false;
	char names[160] = "";
	size_t n = 0;

	for (size_t i = 0; tn_policy_name(i); i++)
		known |= !strcmp(a->policy, tn_policy_name(i));
	if (!strcmp(a->policy, "belady") && !a->no_io)
		return cli_error(CLI_USAGE, "belady knows the future, so it works only with --no-io");
	if (!known && strcmp(a->policy, "belady")) {
		for (size_t i = 0; tn_policy_name(i) && n < sizeof(names); i++)
			n += (size_t)snprintf(names + n, sizeof(names) - n, ", %s", tn_policy_name(i));
		return cli_error(CLI_USAGE, "--policy: no policy '%s'; there are belady%s", a->policy, names);
	}
	if (a->timestamp_unit && strcmp(a->timestamp_unit, "s") && strcmp(a->timestamp_unit, "ms"))
		return cli_error(CLI_USAGE, "--timestamp-unit: no unit '%s'; there are s and ms", a->timestamp_unit);
	if (a->model && a->geometry.layers)
		return cli_error(CLI_USAGE, "give either --geometry or --model, not both");
	if (a->ranks > 1 && a->speed > 0)
		return cli_error(CLI_USAGE, "--ranks and --speed exclude each other: the scheduler gives the ranks one request after the other");
	return check_no_io(a) || replay_model_check(a) ? CLI_USAGE : CLI_OK;
}

static int geometry_of(const struct replay_args *a, const struct trace *t, struct tn_geometry *g)
{
	int rc;

	if (!a->model) {
		rc = tn_geometry_raw(a->geometry.layers ? (uint32_t)a->geometry.layers : 8,
				     a->geometry.layers ? a->geometry.object_bytes : 16384, g);
		return rc ? cli_fail(rc, "--geometry") : CLI_OK;
	}
	rc = tn_model_find(a->model, g);
	if (rc)
		return cli_fail(rc, "--model");
	/* A hash id of the trace names one page, one block. */
	g->page_tokens = t->block_tokens;
	g->pages_per_block = 1;
	rc = tn_geometry_check(g);
	return rc ? cli_fail(rc, "--model %s", a->model) : CLI_OK;
}

/* Of a block: each rank has as many layers, and a part of each. */
static int share_of(struct tn_geometry *g, uint32_t ranks)
{
	int rc = 0;

	for (uint32_t p = 0; p < g->nplanes; p++) {
		struct tn_plane *plane = &g->planes[p];
		uint32_t *parts = plane->heads > 1 ? &plane->heads : &plane->head_dim;

		if (plane->kind == TN_PLANE_LATENT || *parts % ranks)
			return cli_error(CLI_USAGE, "--ranks %u: %s", ranks, plane->kind == TN_PLANE_LATENT ? "this model's KV is latent, and every rank has all of it"
					 : plane->heads > 1 ? "it does not divide the model's KV heads" : "it does not divide the bytes of a layer");
		*parts /= ranks;
	}
	rc = tn_geometry_check(g);
	return rc ? cli_fail(rc, "--ranks %u", ranks) : CLI_OK;
}

static double children_cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_CHILDREN, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Prints the figures. The exit code follows from them. */
static int finish(const struct replay_args *a, const char *name, const struct trace *t, const struct replay_result *r,
		  const struct replay_model *m)
{
	int rc = a->json ? cli_json(as_json(a, r, m)) : print(a, r, m);

	if (!rc && r->interrupted)
		rc = cli_error(CLI_ENVIRONMENT, "interrupted after %" PRIu64 " of %zu requests%s", r->requests, t->requests,
			       a->report ? "; no report was written" : "");
	else if (!rc && a->report)
		rc = report_write(a, name, t, r, m);
	if (r->wrong_objects || r->corrupt_detected || r->io_errors)
		rc = CLI_PROBLEM;
	return rc;
}

static int run(const struct replay_args *a, const char *name, const struct trace *t, struct replay_result *r)
{
	struct replay_model *m = NULL;
	struct tn_geometry g;
	uint64_t start_ns = cli_now_ns();
	double cpu = cli_cpu_seconds();
	int rc = geometry_of(a, t, &g);

	r->block_tokens = t->block_tokens;
	r->capacity_blocks = a->capacity_blocks;
	if (!rc)
		r->block_bytes = tn_geometry_block_bytes(&g);
	if (!rc)
		rc = replay_model_create(a, &g, &m);
	if (!rc && a->ranks > 1)
		rc = share_of(&g, (uint32_t)a->ranks);
	if (m && !(r->each = calloc(t->requests, sizeof(*r->each))))
		rc = cli_error(CLI_ENVIRONMENT, "out of memory");
	if (!rc)
		rc = a->no_io ? replay_index(a, t, r) : replay_bytes(a, t, &g, r);
	if (!rc && m && !r->interrupted)
		rc = replay_model_run(m, t, r->each);
	r->wall_seconds = (double)(cli_now_ns() - start_ns) * 1e-9;
	r->cpu_seconds = cli_cpu_seconds() - cpu + (a->ranks > 1 ? children_cpu_seconds() : 0);
	if (!rc)
		rc = finish(a, name, t, r, m);
	replay_model_destroy(m);
	free(r->each);
	return rc;
}

/* Loads the trace and runs it. */
static int replay(const struct replay_args *a, const char *name)
{
	struct replay_result *r;
	struct trace t;
	char error[320];
	const struct trace_format format = {
		.block_tokens = (uint32_t)a->block_tokens,
		.unit = !a->timestamp_unit ? TRACE_UNIT_DEFAULT : !strcmp(a->timestamp_unit, "s") ? TRACE_UNIT_S : TRACE_UNIT_MS,
	};
	const char *times = a->speed > 0 ? "--speed" : a->gpu ? "--gpu" : a->slack ? "--slack" : NULL;
	int rc = trace_load(&t, name, &format, a->limit, error, sizeof(error));

	if (rc)
		return cli_error(cli_exit_of(rc), "%s", error);
	if (times && !t.timed) {
		trace_free(&t);
		return cli_error(CLI_USAGE, "%s: its requests have no timestamp, and %s needs to know when they arrive", name, times);
	}
	if (t.backwards)
		cli_error(CLI_OK, "note: %" PRIu64 " requests arrive before the one above them, first at %s:%" PRIu64,
			  t.backwards, name, t.backwards_line);
	cli_catch_interrupts();
	r = calloc(1, sizeof(*r));
	rc = r ? run(a, name, &t, r) : cli_error(CLI_ENVIRONMENT, "out of memory");
	free(r);
	trace_free(&t);
	return rc;
}

int cmd_replay(int argc, char **argv)
{
	struct replay_args a = {.policy = "default", .seed = 1, .ranks = 1};
	bool made = false;
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	rc = check_args(&a);
	if (rc)
		return rc;
	rc = a.report ? cli_try_file("--report ", a.report, &made) : CLI_OK; /* so that an error is reported now, not after an hour */
	if (!rc)
		rc = replay(&a, argv[1]);
	cli_forget_file(a.report, made);
	return rc;
}
