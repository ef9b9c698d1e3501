/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench pipeline`: how much of a restore hides behind compute, by strategy.
 *
 * Every run is a child process that opens the same store anew and serves one request; the strategies take turns, in
 * another order each round, so that a drifting machine harms all alike. The rows are medians over the rounds.
 */
#include "pipeline.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <tenuto/layout.h>

#define SAVES 4u
#define SAVE_BYTES (64ull << 20)
#define SET_BYTES_MAX (1ull << 30)
#define CALIBRATIONS 3u

struct args {
	const char *dir;
	const char *model;
	const char *gpu;
	const char *hit_rates;
	const char *compute;
	const char *writes;
	const char *io_engine;
	const char *report;
	uint64_t layers, prompt_tokens, repeat, stretch, seed;
	bool json;
};

static const struct cli_opt options[] = {
	{"dir", "DIR", "a temporary one", "where to measure (a new directory is made inside, and removed)", CLI_STRING,
	 offsetof(struct args, dir), 0, 0},
	{"model", "NAME", "llama3-8b", "whose KV and compute", CLI_STRING, offsetof(struct args, model), 0, 0},
	{"gpu", "NAME", "h100", "that the compute times are of", CLI_STRING, offsetof(struct args, gpu), 0, 0},
	{"layers", "N", "the model's", "of the model, to measure fewer", CLI_COUNT, offsetof(struct args, layers), 1, 4096},
	{"prompt-tokens", "N", "8192", "length of the prompt", CLI_COUNT, offsetof(struct args, prompt_tokens), 1, 1u << 20},
	{"hit-rates", "LIST", "0,25,50,75,80,85,87.5,90,95,100", "per cent of the prompt that is restored", CLI_STRING,
	 offsetof(struct args, hit_rates), 0, 0},
	{"stretch", "N", "16", "compute takes so many times as long as on the GPU", CLI_COUNT,
	 offsetof(struct args, stretch), 1, 10000},
	{"compute", "HOW", "sleep", "sleep or spin", CLI_STRING, offsetof(struct args, compute), 0, 0},
	{"writes", "WHEN", "both", "off, on or both", CLI_STRING, offsetof(struct args, writes), 0, 0},
	{"repeat", "N", "3", "runs of each row", CLI_COUNT, offsetof(struct args, repeat), 1, PIPELINE_REPEAT_MAX},
	{"io-engine", "NAME", "auto", "auto, io_uring or posix", CLI_STRING, offsetof(struct args, io_engine), 0, 0},
	{"seed", "N", "1", "of contents and page order", CLI_COUNT, offsetof(struct args, seed), 0, UINT64_MAX},
	{"report", "FILE.html", NULL, "write a page with charts", CLI_STRING, offsetof(struct args, report), 0, 0},
	{"json", NULL, NULL, "print the result as JSON", CLI_FLAG, offsetof(struct args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench pipeline",
	.about = "Serves a prompt of which a part is restored from disk, layer by layer, while the rest is computed (for as long as "
		 "each layer takes on the GPU), and says how long compute had to wait. Strategies in turns: recompute everything; "
		 "load all, then compute; layer by layer, reads and writes mixed; Tenuto; and what an ideal would take. "
		 "Every restored byte is checked.",
	.opts = options,
};

struct bench {
	const struct args *args;
	struct pipeline_set set;
	struct pipeline_result result;
	uint32_t hit[PIPELINE_HITS_MAX]; /* blocks */
	/* Runs of one (hit, writes, strategy), by round. */
	struct pipeline_run *runs;
	struct cli_progress progress;
	uint64_t steps;
	uint64_t run; /* number of the last child */
	char dir[4096];
};

static struct pipeline_run *run_at(const struct bench *b, size_t hit, bool writes, int strategy, size_t round)
{
	return &b->runs[((hit * 2 + writes) * PIPELINE_MEASURED + (size_t)strategy) * b->result.repeat + round];
}

static int child(struct bench *b, const struct pipeline_arm *arm, struct pipeline_run *run)
{
	struct pipeline_job job = {.set = &b->set, .arm = *arm};
	double cpu;
	int rc;

	job.arm.run = ++b->run;
	*run = (struct pipeline_run){.rc = 0};
	rc = bench_fork(pipeline_request, &job, run, sizeof(*run), &cpu);
	if (rc)
		return rc;
	cli_progress_step(&b->progress, ++b->steps);
	if (run->rc)
		return cli_error((enum cli_exit)run->rc, "%s, %u blocks%s: %s", pipeline_name(arm->strategy),
				 arm->blocks, arm->writes ? ", with writes" : "", run->why);
	return cli_interrupted() ? cli_error(CLI_ENVIRONMENT, "interrupted") : CLI_OK;
}

/* ---- measuring --------------------------------------------------------------------------------- */

static int prepare(struct bench *b)
{
	struct pipeline_run run = {.rc = 0};
	double cpu;
	int rc = bench_fork(pipeline_prepare, &b->set, &run, sizeof(run), &cpu);

	cli_progress_step(&b->progress, ++b->steps);
	if (!rc && run.rc)
		rc = cli_error((enum cli_exit)run.rc, "preparing: %s", run.why);
	return rc;
}

/* What the device gives a load that has it to itself: all blocks at once, nothing computed meanwhile. */
static int calibrate(struct bench *b)
{
	struct pipeline_arm arm = {.strategy = PIPELINE_LOAD_THEN_COMPUTE, .blocks = b->set.blocks};
	double rate[CALIBRATIONS];
	struct pipeline_run *run = malloc(sizeof(*run));
	int rc = run ? CLI_OK : cli_error(CLI_ENVIRONMENT, "out of memory");

	for (size_t i = 0; !rc && i < CALIBRATIONS; i++) {
		rc = child(b, &arm, run);
		rate[i] = rc ? 0 : (double)run->bytes_read / run->bubble;
	}
	free(run);
	if (rc)
		return rc;
	b->result.device = (struct pipeline_device){.read_bps = bench_median(rate, CALIBRATIONS)};
	b->result.calibrated = "loading the whole prompt at once";
	return CLI_OK;
}

/* The order of strategies moves on by one each round. What does not depend on the hit rate runs once a round. */
static int measure_round(struct bench *b, size_t round)
{
	int rc = CLI_OK;

	for (size_t hit = 0; !rc && hit < b->result.nhits; hit++)
		for (int writes = 0; !rc && writes < 2; writes++)
			for (int i = 0; !rc && b->result.writes[writes] && i < PIPELINE_MEASURED; i++) {
				int s = (int)((size_t)i + round) % PIPELINE_MEASURED;
				struct pipeline_run *run = run_at(b, hit, writes, s, round);
				struct pipeline_arm arm = {.strategy = s, .blocks = b->hit[hit], .writes = writes};

				if (s == PIPELINE_RECOMPUTE && hit)
					*run = *run_at(b, 0, writes, s, round);
				else
					rc = child(b, &arm, run);
			}
	return rc;
}

static void add_row(struct bench *b, int strategy, size_t hit, bool writes)
{
	double v[8][PIPELINE_REPEAT_MAX];
	size_t n = b->result.repeat;
	struct pipeline_row *w = &b->result.row[b->result.rows++];
	struct pipeline_run ideal = {.rc = 0};

	*w = (struct pipeline_row){.strategy = strategy, .blocks = b->hit[hit], .writes = writes,
				   .hit_rate = (double)b->hit[hit] / b->set.blocks};
	if (strategy == PIPELINE_IDEAL)
		pipeline_ideal(&b->set, &b->result.device, b->hit[hit], &ideal);
	for (size_t i = 0; i < n; i++) {
		const struct pipeline_run *run = strategy == PIPELINE_IDEAL ? &ideal : run_at(b, hit, writes, strategy, i);

		v[0][i] = run->ttft;
		v[1][i] = run->compute;
		v[2][i] = run->bubble;
		v[3][i] = (double)run->bytes_read * 1e-9 / run->ttft;
		v[4][i] = (double)run->bytes_written * 1e-9 / run->ttft;
		v[5][i] = run->cpu;
		v[6][i] = run->late;
	}
	w->ttft = bench_median(v[0], n); /* which sorts */
	w->ttft_p99 = v[0][(size_t)ceil(0.99 * (double)n) - 1];
	w->compute = bench_median(v[1], n);
	w->bubble = bench_median(v[2], n);
	w->read_gbps = bench_median(v[3], n);
	w->write_gbps = bench_median(v[4], n);
	w->cpu = bench_median(v[5], n);
	w->late = bench_median(v[6], n);
}

static int measure(struct bench *b)
{
	size_t each = b->result.nhits * PIPELINE_MEASURED - (b->result.nhits - 1);
	int rc;

	cli_progress_begin(&b->progress, "bench pipeline",
			   1 + CALIBRATIONS + b->result.repeat * each * (size_t)(b->result.writes[0] + b->result.writes[1]));
	rc = prepare(b);
	if (!rc)
		rc = calibrate(b);
	for (size_t round = 0; !rc && round < b->result.repeat; round++)
		rc = measure_round(b, round);
	cli_progress_end(&b->progress);
	for (int writes = 0; !rc && writes < 2; writes++)
		for (size_t hit = 0; b->result.writes[writes] && hit < b->result.nhits; hit++)
			for (int s = 0; s < PIPELINE_STRATEGIES; s++)
				add_row(b, s, hit, writes);
	return rc;
}

/* ---- setting up -------------------------------------------------------------------------------- */

/* "0,25,100": per cent, rising. */
static int parse_hits(struct bench *b)
{
	const char *s = b->args->hit_rates;

	do {
		char *end;
		double v = strtod(s, &end);
		uint32_t blocks = (uint32_t)lround(v / 100 * b->set.blocks);

		if (end == s || (*end && *end != ',') || !(v >= 0 && v <= 100))
			return cli_error(CLI_USAGE, "--hit-rates \"%s\": must be numbers from 0 to 100, with commas",
					 b->args->hit_rates);
		if (b->result.nhits && blocks <= b->hit[b->result.nhits - 1])
			return cli_error(CLI_USAGE,
					 "--hit-rates \"%s\": must rise by at least one block (%.3g %% of the prompt)",
					 b->args->hit_rates, 100.0 / b->set.blocks);
		if (b->result.nhits == PIPELINE_HITS_MAX)
			return cli_error(CLI_USAGE, "--hit-rates: more than %u", PIPELINE_HITS_MAX);
		b->hit[b->result.nhits++] = blocks;
		s = *end ? end + 1 : end;
	} while (*s);
	return CLI_OK;
}

static int parse_geometry(struct bench *b)
{
	const struct args *a = b->args;
	struct tn_geometry *g = &b->set.geometry;
	uint64_t block_tokens;
	int rc = tn_model_find(a->model, g);

	if (rc)
		return cli_fail(rc, "--model");
	if (a->layers > g->layers)
		return cli_error(CLI_USAGE, "--layers %llu: %s has %u", (unsigned long long)a->layers, a->model,
				 g->layers);
	if (a->layers)
		g->layers = (uint32_t)a->layers;
	block_tokens = (uint64_t)g->page_tokens * g->pages_per_block;
	b->set.blocks = (uint32_t)((a->prompt_tokens + block_tokens - 1) / block_tokens);
	if (b->set.blocks * tn_geometry_block_bytes(g) > SET_BYTES_MAX)
		return cli_error(CLI_USAGE,
				 "--prompt-tokens %llu: its KV has more than 1 GiB; give fewer tokens or --layers",
				 (unsigned long long)a->prompt_tokens);
	return CLI_OK;
}

static int parse_choices(struct bench *b)
{
	const struct args *a = b->args;

	if (strcmp(a->compute, "sleep") && strcmp(a->compute, "spin"))
		return cli_error(CLI_USAGE, "--compute %s: must be sleep or spin", a->compute);
	if (strcmp(a->writes, "off") && strcmp(a->writes, "on") && strcmp(a->writes, "both"))
		return cli_error(CLI_USAGE, "--writes %s: must be off, on or both", a->writes);
	b->set.spin = !strcmp(a->compute, "spin");
	b->result.writes[0] = strcmp(a->writes, "on") != 0;
	b->result.writes[1] = strcmp(a->writes, "off") != 0;
	return CLI_OK;
}

/* Page indices of the prompt's blocks in no order, as an engine's free list gives them after a while. */
static int shuffle_pages(struct pipeline_set *set)
{
	uint32_t n = (set->blocks > PIPELINE_WARM_BLOCKS ? set->blocks : PIPELINE_WARM_BLOCKS) * set->geometry.pages_per_block;
	uint64_t x = set->seed * 2 + 1;

	set->pages = calloc(n, sizeof(*set->pages));
	if (!set->pages)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t j;

		x = x * 6364136223846793005u + 1442695040888963407u; /* Knuth's MMIX */
		j = (uint32_t)((x >> 33) % (i + 1));
		set->pages[i] = set->pages[j];
		set->pages[j] = i;
	}
	return 0;
}

static void *shared_memory(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

static int set_up(struct bench *b)
{
	struct pipeline_set *set = &b->set;
	uint64_t block = tn_geometry_block_bytes(&set->geometry);
	uint32_t least = set->blocks > PIPELINE_WARM_BLOCKS ? set->blocks : PIPELINE_WARM_BLOCKS;

	set->model_name = b->args->model;
	set->gpu = b->args->gpu;
	set->stretch = (double)b->args->stretch;
	set->io_engine = b->args->io_engine;
	set->seed = b->args->seed;
	set->saves = SAVES;
	set->save_blocks = (uint32_t)(SAVE_BYTES / block ? SAVE_BYTES / block : 1);
	/* Twice what is under way: what was evicted waits for its remove record. */
	set->write_blocks = 2 * SAVES * set->save_blocks + 16;
	set->read_bytes = least * block;
	set->write_bytes = (uint64_t)SAVES * set->save_blocks * block;
	set->read_memory = shared_memory(set->read_bytes);
	set->write_memory = shared_memory(set->write_bytes);
	b->runs = calloc(b->result.nhits * 2 * PIPELINE_MEASURED * b->result.repeat, sizeof(*b->runs));
	if (!set->read_memory || !set->write_memory || !b->runs || shuffle_pages(set))
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	memset(set->write_memory, 0x5A, set->write_bytes);
	return CLI_OK;
}

static int run_table(struct bench *b)
{
	char dir[4200];
	int rc = cli_temp_dir(b->args->dir, b->dir, sizeof(b->dir));

	if (rc)
		return cli_error(CLI_ENVIRONMENT, "no directory in %s: %s",
				 b->args->dir ? b->args->dir : "the temporary one", strerror(-rc));
	snprintf(dir, sizeof(dir), "%s/store", b->dir);
	b->set.dir = dir;
	if (mkdir(dir, 0700))
		rc = cli_error(CLI_ENVIRONMENT, "%s: %s", dir, strerror(errno));
	if (!rc)
		rc = measure(b);
	cli_remove_tree(b->dir);
	return rc;
}

static void release(struct bench *b)
{
	if (b->set.read_memory)
		munmap(b->set.read_memory, b->set.read_bytes);
	if (b->set.write_memory)
		munmap(b->set.write_memory, b->set.write_bytes);
	free(b->set.pages);
	free(b->runs);
	free(b);
}

int cmd_bench_pipeline(int argc, char **argv)
{
	struct args a = {.model = "llama3-8b", .gpu = "h100", .hit_rates = "0,25,50,75,80,85,87.5,90,95,100",
			 .compute = "sleep", .writes = "both", .io_engine = "auto", .prompt_tokens = 8192, .repeat = 3,
			 .stretch = 16, .seed = 1};
	struct bench *b;
	int noperands, rc = cli_parse(&verb, argc, argv, &a, &noperands);

	if (rc != CLI_GO)
		return rc;
	b = calloc(1, sizeof(*b));
	if (!b)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	b->args = &a;
	b->result.set = &b->set;
	b->result.repeat = (size_t)a.repeat;
	rc = parse_choices(b);
	if (!rc)
		rc = parse_geometry(b);
	if (!rc)
		rc = parse_hits(b);
	if (!rc)
		rc = set_up(b);
	cli_catch_interrupts();
	if (!rc)
		rc = run_table(b);
	if (!rc && a.report)
		rc = pipeline_report(&b->result, a.report);
	if (!rc)
		rc = a.json ? cli_json(pipeline_json(&b->result)) : pipeline_print(&b->result);
	release(b);
	return rc;
}
