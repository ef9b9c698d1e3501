/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench pipeline`: how much of a restore hides behind compute, by strategy.
 *
 * Here: the command line, the store and memory of a run, calibration. Every measured run is a child process that opens
 * the same store anew.
 */
#include "pipeline.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <tenuto/layout.h>

#define SAVES 4u
#define SAVE_BYTES (64ull << 20)
#define SET_BYTES_MAX (1ull << 30)
#define TMPFS "/dev/shm"
#define MODEL "solidigm-d7-ps1010-pair"
#define RESTORES 1000u
#define REQUESTS 50u
#define STRETCH 16u
/* A run whose compute was woken up later than this share of its TTFT is not a fair measurement. */
#define LATE_SHARE 0.05
/* Few: with writes, the strategies that do not schedule take half a minute per rate and service. */
#define HIT_RATES "75,87.5,95"
#define HIT_RATES_SPLIT "0,50,75,80,85,87.5,90,95,100"

static const struct cli_opt options[] = {
	{"dir", "DIR", "/dev/shm", "where to measure (a new directory is made inside, and removed)", CLI_STRING,
	 offsetof(struct pipeline_args, dir), 0, 0},
	{"mode", "NAME", "table", "table, restores, learn or split (see above)", CLI_STRING,
	 offsetof(struct pipeline_args, mode), 0, 0},
	{"device-model", "NAME", "without --dir: " MODEL, "a drive that the directory, best on tmpfs, is paced as: one of share/devices, or a file",
	 CLI_STRING, offsetof(struct pipeline_args, device_model), 0, 0},
	{"service", "HOW", "both", "how the described drive serves: in order, share (side by side), or both (mode table; elsewhere order)",
	 CLI_STRING, offsetof(struct pipeline_args, service), 0, 0},
	{"model", "NAME", "llama3-8b", "whose KV and compute", CLI_STRING, offsetof(struct pipeline_args, model), 0, 0},
	{"gpu", "NAME", "h100", "that the compute times are of", CLI_STRING, offsetof(struct pipeline_args, gpu), 0, 0},
	{"layers", "N", "the model's", "of the model, to measure fewer", CLI_COUNT, offsetof(struct pipeline_args, layers), 1, 4096},
	{"prompt-tokens", "N", "8192", "length of the prompt", CLI_COUNT, offsetof(struct pipeline_args, prompt_tokens), 1, 1u << 20},
	{"hit-rates", "LIST", HIT_RATES "; mode split: " HIT_RATES_SPLIT, "per cent of the prompt that is restored (modes table, split)", CLI_STRING,
	 offsetof(struct pipeline_args, hit_rates), 0, 0},
	{"stretch", "N", "16, but 1 with --dir alone", "compute and the described drive take so many times as long; a real directory takes what it takes",
	 CLI_COUNT,
	 offsetof(struct pipeline_args, stretch), 1, 10000},
	{"slack", "FILE", "analytic", "slack table that the compute times are from (tenuto profile)", CLI_STRING,
	 offsetof(struct pipeline_args, slack), 0, 0},
	{"compute", "HOW", "sleep", "sleep or spin (not mode restores)", CLI_STRING, offsetof(struct pipeline_args, compute), 0, 0},
	{"writes", "WHEN", "both", "off, on or both (mode table)", CLI_STRING, offsetof(struct pipeline_args, writes), 0, 0},
	{"repeat", "N", "1 in mode table, else 3", "runs of each row; mode restores divides its restores among them", CLI_COUNT, offsetof(struct pipeline_args, repeat), 1, PIPELINE_REPEAT_MAX},
	{"restores", "N", "1000", "restores of each row (mode restores)", CLI_COUNT, offsetof(struct pipeline_args, restores), 1,
	 PIPELINE_RESTORES_MAX},
	{"requests", "N", "50", "requests of each row (mode learn)", CLI_COUNT, offsetof(struct pipeline_args, requests), 1,
	 PIPELINE_REQUESTS_MAX},
	{"io-engine", "NAME", "auto", "auto, io_uring or posix", CLI_STRING, offsetof(struct pipeline_args, io_engine), 0, 0},
	{"seed", "N", "1", "of contents and page order", CLI_COUNT, offsetof(struct pipeline_args, seed), 0, UINT64_MAX},
	{"report", "FILE.html", NULL, "write a page with charts (mode table)", CLI_STRING, offsetof(struct pipeline_args, report), 0, 0},
	{"explain", "FILE", NULL, "write the scheduler's decisions, each with its run and arm (docs/explain.md)", CLI_STRING,
	 offsetof(struct pipeline_args, explain), 0, 0},
	{"price", "LIST", COST_PRICES, COST_PRICES_HELP " (mode table; no DRAM is counted)", CLI_STRING, offsetof(struct pipeline_args, price), 0, 0},
	{"json", NULL, NULL, "print the result as JSON", CLI_FLAG, offsetof(struct pipeline_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench pipeline",
	.about = "Serves a prompt of which a part is restored from disk, layer by layer, while the rest is computed (for as long as "
		 "each layer takes on the GPU), and says how long compute had to wait. Strategies, one after the other: recompute everything; "
		 "load all, then compute; layer by layer, reads and writes at the same time; Tenuto; and what an ideal would take. "
		 "Every object's checksum is verified; modes table and split compare every byte, too.\n"
		 "Modes: table, TTFT by strategy and hit rate; restores, the latency of small restores beside writes; learn, TTFT "
		 "request by request with a right, a wrong and no slack table; split, restoring a part where the device is slow.",
	.opts = options,
};

static const struct mode {
	const char *name;
	int (*run)(struct pipeline_bench *b);
} modes[] = {{"table", pipeline_table}, {"restores", pipeline_restores}, {"learn", pipeline_learn}, {"split", pipeline_split}};

static const struct mode *mode_of(const char *name)
{
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
		if (!strcmp(name, modes[i].name))
			return &modes[i];
	return NULL;
}

#define PERMILLE 1000u

void pipeline_begin(struct pipeline_bench *b, const char *what, uint64_t arms)
{
	b->arms = arms;
	b->begun = 0;
	snprintf(b->what, sizeof(b->what), "%s", what);
	cli_progress_begin(&b->progress, b->what, arms * PERMILLE);
}

void pipeline_done(struct pipeline_run *run, uint64_t done, uint64_t all)
{
	__atomic_store_n(&run->permille, (uint32_t)(done * PERMILLE / all), __ATOMIC_RELAXED);
}

static void show_progress(void *arg, const void *result)
{
	struct pipeline_bench *b = arg;
	const struct pipeline_run *run = result;
	uint64_t before = b->begun ? b->begun - 1 : 0;

	cli_progress_step(&b->progress, before * PERMILLE + __atomic_load_n(&run->permille, __ATOMIC_RELAXED));
}

static int check_run(struct pipeline_bench *b, const char *what, const struct pipeline_run *run)
{
	if (run->rc)
		return cli_error((enum cli_exit)run->rc, "%s: %s", what, run->why);
	if (run->ttft > 0) {
		b->timed++;
		b->late += run->late > LATE_SHARE * run->ttft;
	}
	return cli_interrupted() ? cli_error(CLI_ENVIRONMENT, "interrupted") : CLI_OK;
}

int pipeline_fork(struct pipeline_bench *b, const char *what, void (*fn)(const void *job, void *result), const void *job,
		  void *result, size_t bytes)
{
	const struct bench_watch watch = {show_progress, b};
	double cpu;
	int rc;

	if (b->arms) {
		b->begun++;
		snprintf(b->what, sizeof(b->what), "run %" PRIu64 " of %" PRIu64 " (%s)", b->begun, b->arms, what);
		explain_run(b->set.explain, what);
	}
	rc = bench_fork(fn, job, result, bytes, &watch, &cpu);
	return rc ? rc : check_run(b, what, result);
}

int pipeline_child(struct pipeline_bench *b, const struct pipeline_arm *arm, struct pipeline_run *run)
{
	struct pipeline_job job = {.set = &b->set, .arm = *arm};
	char what[96];

	job.arm.run = ++b->run;
	*run = (struct pipeline_run){.rc = 0};
	snprintf(what, sizeof(what), "%s%s, %u of %u blocks%s", tn_strategy_name(arm->strategy), arm->split ? " split" : "",
		 arm->blocks, b->set.blocks, arm->writes ? ", with writes" : "");
	return pipeline_fork(b, what, pipeline_request, &job, run, sizeof(*run));
}

/* ---- setting up -------------------------------------------------------------------------------- */

/*
 * "0,25,100": per cent, rising. Hit rates of the default list that are the same number of blocks of a short prompt
 * count once.
 */
static int parse_hits(struct pipeline_bench *b)
{
	const char *usual = strcmp(b->args->mode, "table") ? HIT_RATES_SPLIT : HIT_RATES;
	const char *list = b->args->hit_rates ? b->args->hit_rates : usual, *s = list;

	do {
		char *end;
		double v = strtod(s, &end);
		uint32_t blocks = (uint32_t)lround(v / 100 * b->set.blocks);
		bool rises = !b->nhits || blocks > b->hit[b->nhits - 1];

		if (end == s || (*end && *end != ',') || !(v >= 0 && v <= 100))
			return cli_error(CLI_USAGE, "--hit-rates \"%s\": must be numbers from 0 to 100, with commas", list);
		if (!rises && b->args->hit_rates)
			return cli_error(CLI_USAGE, "--hit-rates \"%s\": must rise by at least one block (%.3g %% of the prompt)",
					 list, 100.0 / b->set.blocks);
		if (b->nhits == PIPELINE_HITS_MAX)
			return cli_error(CLI_USAGE, "--hit-rates: more than %u", PIPELINE_HITS_MAX);
		if (rises)
			b->hit[b->nhits++] = blocks;
		s = *end ? end + 1 : end;
	} while (*s);
	return CLI_OK;
}

static int parse_geometry(struct pipeline_bench *b)
{
	const struct pipeline_args *a = b->args;
	struct tn_geometry *g = &b->set.geometry;
	uint64_t block_tokens;
	int rc = tn_model_find(a->model, g);

	if (rc)
		return cli_fail(rc, "--model");
	if (a->layers > g->layers)
		return cli_error(CLI_USAGE, "--layers %llu: %s has %u", (unsigned long long)a->layers, a->model,
				 g->layers);
	b->set.model_layers = g->layers;
	if (a->layers)
		g->layers = (uint32_t)a->layers;
	block_tokens = tn_geometry_block_tokens(g);
	b->set.blocks = (uint32_t)((a->prompt_tokens + block_tokens - 1) / block_tokens);
	if (b->set.blocks * tn_geometry_block_bytes(g) > SET_BYTES_MAX)
		return cli_error(CLI_USAGE,
				 "--prompt-tokens %llu: its KV has more than 1 GiB; give fewer tokens or --layers",
				 (unsigned long long)a->prompt_tokens);
	if (b->set.blocks * block_tokens != a->prompt_tokens)
		return cli_error(CLI_OK, "--prompt-tokens %llu: runs %llu tokens, as a block has %llu", (unsigned long long)a->prompt_tokens,
				 (unsigned long long)(b->set.blocks * block_tokens), (unsigned long long)block_tokens);
	return CLI_OK;
}

/* Whether the device is a described one. */
static bool described(const struct pipeline_args *a)
{
	return a->device_model || !a->dir;
}

/* Options that only some modes use: the other modes refuse them. */
static int check_mode(const struct pipeline_args *a)
{
	const struct {
		const char *option;
		bool given;
		const char *modes;
	} only[] = {
		{"--hit-rates", a->hit_rates, "table or split"}, {"--writes", a->writes, "table"},
		{"--report", a->report, "table"},		 {"--compute", a->compute, "table, learn or split"},
		{"--restores", a->restores, "restores"},	 {"--requests", a->requests, "learn"},
		{"--price", a->price, "table"},
	};

	if (!mode_of(a->mode))
		return cli_error(CLI_USAGE, "--mode %s: must be table, restores, learn or split", a->mode);
	for (size_t i = 0; i < sizeof(only) / sizeof(only[0]); i++)
		if (only[i].given && !strstr(only[i].modes, a->mode))
			return cli_error(CLI_USAGE, "%s and --mode %s: %s is of mode %s", only[i].option, a->mode,
					 only[i].option, only[i].modes);
	if (a->service && !described(a))
		return cli_error(CLI_USAGE, "--service: a real directory serves as it does; it is of --device-model");
	if (a->service && !strcmp(a->service, "both") && strcmp(a->mode, "table"))
		return cli_error(CLI_USAGE, "--service both: is of mode table");
	return CLI_OK;
}

/* Defaults of options that were not given. */
static void complete(struct pipeline_args *a)
{
	/* A real directory cannot be stretched: compute beside it takes as long as on the GPU. */
	a->stretch = a->stretch ? a->stretch : described(a) ? STRETCH : 1;
	a->service = a->service ? a->service : strcmp(a->mode, "table") || !described(a) ? "order" : "both";
	a->compute = a->compute ? a->compute : "sleep";
	a->writes = a->writes ? a->writes : "both";
	a->repeat = a->repeat ? a->repeat : strcmp(a->mode, "table") ? 3 : 1;
	a->restores = a->restores ? a->restores : RESTORES;
	a->requests = a->requests ? a->requests : REQUESTS;
}

static int parse_choices(struct pipeline_bench *b)
{
	const struct pipeline_args *a = b->args;

	if (strcmp(a->compute, "sleep") && strcmp(a->compute, "spin"))
		return cli_error(CLI_USAGE, "--compute %s: must be sleep or spin", a->compute);
	if (strcmp(a->writes, "off") && strcmp(a->writes, "on") && strcmp(a->writes, "both"))
		return cli_error(CLI_USAGE, "--writes %s: must be off, on or both", a->writes);
	if (strcmp(a->service, "order") && strcmp(a->service, "share") && strcmp(a->service, "both"))
		return cli_error(CLI_USAGE, "--service %s: must be order, share or both", a->service);
	b->services[PIPELINE_ORDER] = strcmp(a->service, "share") != 0;
	b->services[PIPELINE_SHARE] = strcmp(a->service, "order") != 0;
	b->set.spin = !strcmp(a->compute, "spin");
	b->writes[0] = strcmp(a->writes, "on") != 0;
	b->writes[1] = strcmp(a->writes, "off") != 0;
	return CLI_OK;
}

/* Page indices of the prompt's blocks in no order, as an engine's free list gives them after a while. */
static int shuffle_pages(struct pipeline_set *set)
{
	uint32_t n = set->pool_blocks * set->geometry.pages_per_block;
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

	return p == MAP_FAILED ? NULL : p;
}

static int set_up(struct pipeline_bench *b)
{
	struct pipeline_set *set = &b->set;
	uint64_t block = tn_geometry_block_bytes(&set->geometry);
	int rc;

	set->model_name = b->args->model;
	set->gpu = b->args->gpu;
	set->stretch = (uint32_t)b->args->stretch;
	set->io_engine = b->args->io_engine;
	set->seed = b->args->seed;
	set->saves = SAVES;
	set->save_blocks = (uint32_t)(SAVE_BYTES / block ? SAVE_BYTES / block : 1);
	/* Twice the blocks under way, because the slots of evicted blocks wait for their remove records. */
	set->write_blocks = 2 * SAVES * set->save_blocks + 16;
	set->pool_blocks = set->blocks > PIPELINE_WARM_BLOCKS ? set->blocks : PIPELINE_WARM_BLOCKS;
	rc = rig_pool_bytes(&set->geometry, set->pool_blocks, &set->read_bytes);
	if (!rc)
		rc = rig_pool_bytes(&set->geometry, SAVES * set->save_blocks, &set->write_bytes);
	if (rc)
		return cli_fail(rc, "--model");
	if (described(b->args)) {
		set->read_memory = shared_memory(set->read_bytes);
		set->write_memory = shared_memory(set->write_bytes);
		if (!set->read_memory || !set->write_memory)
			return cli_error(CLI_ENVIRONMENT, "out of memory");
	}
	if (shuffle_pages(set))
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	return pipeline_slack_open(set, b->args->slack);
}

static int prepare(struct pipeline_bench *b)
{
	struct pipeline_run run = {.rc = 0};

	pipeline_begin(b, "preparing the store", 0);
	return pipeline_fork(b, b->what, pipeline_prepare, &b->set, &run, sizeof(run));
}

static int run_mode(struct pipeline_bench *b)
{
	int rc = pipeline_calibrate(&b->set, &b->progress, &b->device);

	cli_progress_end(&b->progress);
	if (!rc)
		rc = prepare(b);
	if (rc)
		return rc;
	return mode_of(b->args->mode)->run(b);
}

void pipeline_reads(struct pipeline_bench *b, double seconds, double expected)
{
	b->slow_reads |= described(b->args) && seconds > PIPELINE_SLOW * expected;
}

/* At most one line: a sign that the machine was too busy. */
static void warn_if_busy(const struct pipeline_bench *b)
{
	char why[160];

	if (b->slow_reads)
		snprintf(why, sizeof(why), "reads without writes took more than %g times what the device's model says",
			 PIPELINE_SLOW);
	else if (b->late * 10 > b->timed)
		snprintf(why, sizeof(why), "in %" PRIu64 " of %" PRIu64 " runs compute woke up late by more than %g %% of TTFT",
			 b->late, b->timed, LATE_SHARE * 100);
	else
		return;
	cli_error(CLI_PROBLEM, "warning: %s: the machine was too busy for these figures", why);
}

/* Runs in a directory of its own, which is removed afterwards. */
static int run_in_directory(struct pipeline_bench *b)
{
	char base[4096], dir[4200], model[4200], services[PIPELINE_SERVICES][4200];
	int rc = cli_scratch_dir(b->args->dir, TMPFS, base, sizeof(base));

	if (rc)
		return rc;
	snprintf(dir, sizeof(dir), "%s/store", base);
	b->set.dir = dir;
	if (described(b->args)) {
		rc = cli_find_device_model(b->args->device_model ? b->args->device_model : MODEL, model, sizeof(model));
		b->set.device_model = model;
	}
	for (int i = 0; !rc && described(b->args) && i < PIPELINE_SERVICES; i++) {
		snprintf(services[i], sizeof(services[i]), "%s/%s.model", base, pipeline_service_name((enum pipeline_service)i));
		rc = pipeline_model_file(model, services[i], (enum pipeline_service)i);
		b->set.services[i] = services[i];
	}
	pipeline_serve_as(b, b->services[PIPELINE_ORDER] ? PIPELINE_ORDER : PIPELINE_SHARE);
	if (!rc && mkdir(dir, 0700))
		rc = cli_error(CLI_ENVIRONMENT, "%s: %s", dir, strerror(errno));
	if (!rc)
		rc = run_mode(b);
	cli_progress_end(&b->progress);
	if (!rc)
		warn_if_busy(b);
	cli_remove_tree(base);
	return rc;
}

static void release(struct pipeline_bench *b)
{
	if (b->set.read_memory)
		munmap(b->set.read_memory, b->set.read_bytes);
	if (b->set.write_memory)
		munmap(b->set.write_memory, b->set.write_bytes);
	free(b->set.pages);
	tn_slack_destroy(b->set.slack);
	free(b);
}

int cmd_bench_pipeline(int argc, char **argv)
{
	struct pipeline_args a = {.mode = "table", .model = "llama3-8b", .gpu = "h100",
				  .io_engine = "auto", .prompt_tokens = 8192, .seed = 1};
	struct pipeline_bench *b;
	bool made = false;
	int noperands, rc = cli_parse(&verb, argc, argv, &a, &noperands);

	if (rc != CLI_GO)
		return rc;
	rc = check_mode(&a);
	if (rc)
		return rc;
	complete(&a);
	b = calloc(1, sizeof(*b));
	if (!b)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	b->args = &a;
	b->repeat = (size_t)a.repeat;
	rc = parse_choices(b);
	if (!rc)
		rc = cost_parse_prices(a.price, &b->prices);
	if (!rc)
		rc = parse_geometry(b);
	if (!rc)
		rc = parse_hits(b);
	if (!rc)
		rc = set_up(b);
	if (!rc)
		rc = explain_open(a.explain, &b->set.explain);
	cli_catch_interrupts();
	if (!rc && a.report)
		rc = cli_try_file("--report ", a.report, &made); /* so that an error is reported now, not after minutes */
	if (!rc)
		rc = run_in_directory(b);
	cli_forget_file(a.report, made);
	if (explain_close(b->set.explain) && !rc)
		rc = CLI_ENVIRONMENT;
	release(b);
	return rc;
}
