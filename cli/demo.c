/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto demo`: a generated chat workload with real bytes on a real disk, killed in the middle.
 *
 * A child serves the first half and is killed with SIGKILL while it saves, without a flush before; this process then opens
 * the same directory, recovers and serves the rest. Every byte given back is compared with what was saved. The result
 * also shows what computing the same hits again would have cost.
 */
#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tenuto/admin.h>
#include <tenuto/cache.h>

#include "engine.h"
#include "workload.h"

#define LAYERS 8u
#define OBJECT_BYTES (128u << 10)
#define CAPACITY_BLOCKS 1200u
#define REQUESTS 800u
#define HALF_LIMIT_NS 35000000000ull /* longest time of one half; on a slow disk the second half begins then */

/*
 * What computing a prompt again costs: 2 FLOP per parameter and token. Attention takes 4 * layers * heads * head_dim FLOP
 * per token and position before it; with causal attention half of all positions on average.
 */
struct machine {
	const char *name;
	double parameters;
	double attention; /* 4 * layers * heads * head_dim */
	double kv_bytes_token;
	double flops; /* of the machine, at the utilisation below */
};

#define UTILISATION 0.4

static const struct machine machines[] = {
	{"Llama-3-8B on one H100", 8.03e9, 4.0 * 32 * 32 * 128, 131072, 989e12},
	{"Llama-3-70B on four H100", 70.6e9, 4.0 * 80 * 64 * 128, 327680, 4 * 989e12},
};

struct demo_args {
	const char *dir, *nvme;
	uint64_t seed, requests;
	bool json;
};

static const struct cli_opt options[] = {
	{"dir", "DIR", "a temporary one", "where to store (a new directory is made inside, and removed)", CLI_STRING,
	 offsetof(struct demo_args, dir), 0, 0},
	{"nvme", "ADDRESS", NULL, "store on the namespace of this NVMe controller, which holds no store (`tenuto store format`)", CLI_STRING,
	 offsetof(struct demo_args, nvme), 0, 0},
	{"requests", "N", "800", "how many", CLI_COUNT, offsetof(struct demo_args, requests), 2, 100000},
	{"seed", "N", "1", "of the workload", CLI_COUNT, offsetof(struct demo_args, seed), 1, UINT64_MAX},
	{"json", NULL, NULL, "print the result as JSON", CLI_FLAG, offsetof(struct demo_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "demo",
	.about = "Serves a generated chat workload (docs/workload.md) from a store on disk with real bytes, all verified. "
		 "In the middle the serving process is killed with SIGKILL; another one recovers the store and goes on. "
		 "Takes under 90 s and up to 2 GiB of disk.",
	.opts = options,
};

/* Shared with the child, which may die at any moment. */
struct half {
	atomic_ullong served; /* requests */
	struct engine_totals totals;
	struct cli_stats stats;
	uint64_t disk_blocks; /* after the last request */
	uint64_t busy_ns;
	double cpu_s;
	bool cut_short;
	int rc;
};

static int open_engine(const struct trace *t, const char *dir, struct engine **e)
{
	struct engine_opts o = {
		.dirs = &dir,
		.ndirs = 1,
		.model = "demo",
		.capacity_blocks = CAPACITY_BLOCKS,
		.longest = t->longest,
		.policy = "default",
		.seed = 1,
		.verify = true,
	};
	int rc = tn_geometry_raw(LAYERS, OBJECT_BYTES, &o.geometry);

	return rc ? rc : engine_open(&o, e);
}

/* Serves requests [from, to), and updates *half after each. */
static int serve(struct engine *e, const struct trace *t, size_t from, size_t to, struct half *half,
		 struct cli_progress *p)
{
	uint64_t start = cli_now_ns();
	int rc = 0;

	for (size_t i = from; !rc && i < to && !cli_interrupted(); i++) {
		rc = engine_request(e, t->ids + t->first[i], t->length[i], trace_partial(t, i), NULL);
		engine_stats(e, &half->stats);
		half->disk_blocks = half->stats.disk_blocks;
		half->totals = *engine_totals(e);
		half->busy_ns = cli_now_ns() - start;
		half->cpu_s = cli_cpu_seconds();
		atomic_store(&half->served, i + 1 - from);
		if (p)
			cli_progress_step(p, i + 1);
		if (half->busy_ns > HALF_LIMIT_NS) {
			half->cut_short = true;
			break;
		}
	}
	return rc;
}

/* The child: serves until it is killed. It goes on past the middle, so that it dies under load. */
static void child(const struct trace *t, const char *dir, struct half *half)
{
	struct engine *e;
	int rc = open_engine(t, dir, &e);

	if (rc)
		half->rc = cli_fail(rc, "cannot open the cache");
	else if ((rc = serve(e, t, 0, t->requests, half, NULL)))
		half->rc = cli_fail(rc, "first half");
	_exit(half->rc);
}

/* Runs the child and kills it in the middle; *status as of waitpid. */
static int first_half(const struct trace *t, const char *dir, struct half *half, struct cli_progress *p)
{
	size_t middle = t->requests / 2;
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
		return cli_error(CLI_ENVIRONMENT, "fork: %s", strerror(errno));
	if (!pid)
		child(t, dir, half);
	for (;;) {
		struct timespec ms = {.tv_nsec = 1000000};
		uint64_t served = atomic_load(&half->served);

		if (waitpid(pid, &status, WNOHANG) == pid) {
			if (half->rc)
				return half->rc;
			if (half->cut_short || cli_interrupted())
				return CLI_OK;
			return cli_error(CLI_PROBLEM, "the first half ended by itself (status %#x)", status);
		}
		if (served > middle || cli_interrupted())
			break;
		cli_progress_step(p, served);
		nanosleep(&ms, NULL);
	}
	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
	return CLI_OK;
}

static int second_half(const struct trace *t, const char *dir, size_t from, struct half *half, struct cli_progress *p)
{
	struct engine *e;
	int rc = open_engine(t, dir, &e), closed;

	if (rc)
		return cli_fail(rc, "cannot recover the store");
	engine_stats(e, &half->stats);
	half->disk_blocks = half->stats.recovered_blocks;
	rc = serve(e, t, from, t->requests, half, p);
	if (!rc)
		rc = engine_flush(e);
	engine_stats(e, &half->stats);
	half->totals = *engine_totals(e);
	closed = engine_close(e);
	rc = rc ? rc : closed;
	return rc ? cli_fail(rc, "second half") : CLI_OK;
}

/* ---- the result -------------------------------------------------------------------------------- */

struct sums {
	uint64_t requests, blocks, hits, wrong, verified;
	uint64_t bytes_read, bytes_written, detected;
	uint64_t stored, recovered;
	double read_s, write_s, recovery_s, cpu_s, wall_s;
	bool cut_short;
	bool interrupted;
};

static void add_half(struct sums *s, const struct half *h)
{
	s->requests += h->totals.requests;
	s->blocks += h->totals.blocks;
	s->hits += h->totals.hit_blocks;
	s->wrong += h->totals.wrong_objects;
	s->verified += h->totals.verified_objects;
	s->bytes_read += h->stats.bytes_read;
	s->bytes_written += h->stats.bytes_written;
	s->detected += h->stats.corrupt_objects;
	s->read_s += (double)h->totals.read_ns * 1e-9;
	s->write_s += (double)h->totals.write_ns * 1e-9;
	s->cut_short |= h->cut_short;
}

static double recompute_s(const struct machine *m, const struct sums *s)
{
	double tokens = (double)s->hits * TRACE_BLOCK_TOKENS;
	/* Hits are prefixes: on average half of a request's hits lie before one. */
	double before = s->requests ? tokens / (double)s->requests / 2 : 0;

	return tokens * (2 * m->parameters + m->attention * before) / (m->flops * UTILISATION);
}

static double gbps(uint64_t bytes, double seconds)
{
	return seconds > 0 ? (double)bytes * 1e-9 / seconds : 0;
}

static json_t *as_json(const struct sums *s)
{
	json_t *list = json_array();
	json_t *o;
	double rate = gbps(s->bytes_read, s->read_s);

	for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
		double kv = (double)s->hits * TRACE_BLOCK_TOKENS * machines[i].kv_bytes_token;
		double again = recompute_s(&machines[i], s);

		json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:f}", "machine", machines[i].name,
						      "recompute_s", again, "kv_bytes", kv, "restore_s",
						      rate > 0 ? kv * 1e-9 / rate : 0, "break_even_gbps",
						      again > 0 ? kv * 1e-9 / again : 0));
	}
	o = json_pack("{s:I, s:I, s:I, s:f, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:b, s:b, s:o}", "requests",
		      (json_int_t)s->requests, "blocks", (json_int_t)s->blocks, "hit_blocks", (json_int_t)s->hits,
		      "hit_rate", s->blocks ? (double)s->hits / (double)s->blocks : 0.0, "bytes_read",
		      (json_int_t)s->bytes_read, "bytes_written", (json_int_t)s->bytes_written, "read_gbps", rate,
		      "write_gbps", gbps(s->bytes_written, s->write_s), "verified_objects", (json_int_t)s->verified,
		      "corrupt_objects", (json_int_t)(s->wrong + s->detected), "stored_blocks_before_kill",
		      (json_int_t)s->stored, "recovered_blocks", (json_int_t)s->recovered, "recovery_seconds",
		      s->recovery_s, "cpu_seconds", s->cpu_s, "wall_seconds", s->wall_s, "cut_short", s->cut_short,
		      "interrupted", s->interrupted, "recompute", list);
	return o;
}

static void print_machines(const struct sums *s)
{
	const bool left[] = {true, false, false, false, false};
	double rate = gbps(s->bytes_read, s->read_s);
	struct cli_table t;
	char a[32], b[32];

	cli_table_init(&t, 5, left);
	cli_table_cell(&t, "the same hits for");
	cli_table_cell(&t, "computed again");
	cli_table_cell(&t, "KV bytes");
	cli_table_cell(&t, "restored");
	cli_table_cell(&t, "break-even");
	for (size_t i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
		double kv = (double)s->hits * TRACE_BLOCK_TOKENS * machines[i].kv_bytes_token;
		double again = recompute_s(&machines[i], s);

		cli_table_cell(&t, "%s", machines[i].name);
		cli_table_cell(&t, "%s", cli_duration(a, again));
		cli_table_cell(&t, "%s", cli_bytes(b, kv));
		cli_table_cell(&t, "%s", rate > 0 ? cli_duration(a, kv * 1e-9 / rate) : "-");
		cli_table_cell(&t, "%.2f GB/s", again > 0 ? kv * 1e-9 / again : 0);
	}
	cli_table_print(&t, stdout, true);
	printf("\nComputed again: (2 x parameters + attention) FLOP per token at 989 TFLOP/s x %.1f\n"
	       "per GPU, all of it GPU time. Restored: the model's KV bytes at the %.2f GB/s read\n"
	       "here, no GPU time. Break-even: the disk speed from which on restoring is faster.\n",
	       UTILISATION, rate);
	puts("\nThe seed decides the requests. Hits differ a little from run to run, because kill -9\n"
	     "comes in the middle of saves, and blocks that were not finished are lost.");
}

static int print(const struct sums *s)
{
	const bool left[] = {true, false, true};
	struct cli_table t;
	char a[32], b[32];

	cli_table_init(&t, 3, left);
	cli_table_cell(&t, "requests");
	cli_table_cell(&t, "%s", cli_number(a, s->requests));
	cli_table_cell(&t, "%s", s->interrupted ? "interrupted: the figures are of these"
				 : s->cut_short ? "cut short: this disk is slow"
						: "of a generated chat workload");
	cli_table_cell(&t, "hits");
	cli_table_cell(&t, "%s", cli_number(a, s->hits));
	cli_table_cell(&t, "of %s blocks (%.1f %%)", cli_number(b, s->blocks),
		       s->blocks ? 100.0 * (double)s->hits / (double)s->blocks : 0);
	cli_table_cell(&t, "read");
	cli_table_cell(&t, "%.2f GB/s", gbps(s->bytes_read, s->read_s));
	cli_table_cell(&t, "%s in %.1f s of loading", cli_bytes(a, (double)s->bytes_read), s->read_s);
	cli_table_cell(&t, "written");
	cli_table_cell(&t, "%.2f GB/s", gbps(s->bytes_written, s->write_s));
	cli_table_cell(&t, "%s in %.1f s with a save under way", cli_bytes(a, (double)s->bytes_written), s->write_s);
	cli_table_cell(&t, "verified");
	cli_table_cell(&t, "%s", cli_number(a, s->verified));
	cli_table_cell(&t, "objects of %u KiB, every byte; %llu wrong", OBJECT_BYTES >> 10,
		       (unsigned long long)(s->wrong + s->detected));
	if (s->recovery_s > 0) {
		cli_table_cell(&t, "recovered");
		cli_table_cell(&t, "%s", cli_number(a, s->recovered));
		cli_table_cell(&t, "blocks after kill -9, in %s (%s at the last request before, no flush)",
			       cli_duration(b, s->recovery_s), cli_number(a, s->stored));
	}
	cli_table_cell(&t, "time");
	cli_table_cell(&t, "%s", cli_duration(a, s->wall_s));
	cli_table_cell(&t, "%.1f s of CPU", s->cpu_s);
	cli_table_print(&t, stdout, false);
	putchar('\n');
	print_machines(s);
	return cli_finish(CLI_OK);
}

static int run(const struct demo_args *a, const struct trace *t, const char *dir, struct half *half)
{
	struct sums s = {0};
	struct cli_progress p;
	uint64_t start = cli_now_ns();
	int rc;

	cli_progress_begin(&p, "demo", t->requests);
	rc = first_half(t, dir, &half[0], &p);
	if (!rc && !cli_interrupted())
		rc = second_half(t, dir, (size_t)atomic_load(&half[0].served), &half[1], &p);
	cli_progress_end(&p);
	if (rc)
		return rc;
	s.interrupted = cli_interrupted();
	add_half(&s, &half[0]);
	add_half(&s, &half[1]);
	s.stored = half[0].disk_blocks;
	s.recovered = half[1].stats.recovered_blocks;
	s.recovery_s = (double)half[1].stats.recovery_ns * 1e-9;
	s.cpu_s = half[0].cpu_s + cli_cpu_seconds();
	s.wall_s = (double)(cli_now_ns() - start) * 1e-9;
	rc = a->json ? cli_json(as_json(&s)) : print(&s);
	if (!rc && s.wrong + s.detected)
		rc = cli_error(CLI_PROBLEM, "wrong bytes were found");
	if (!rc && s.interrupted)
		rc = cli_error(CLI_ENVIRONMENT, "interrupted");
	if (!rc && !s.recovered && s.stored)
		rc = cli_error(CLI_PROBLEM, "nothing was recovered");
	return rc;
}

/* With too few free bytes nothing would be stored, and a run of zeroes would look like a result. */
static int check_free_bytes(const char *dir)
{
	struct tn_geometry g;
	int rc = tn_geometry_raw(LAYERS, OBJECT_BYTES, &g);

	return rc ? cli_fail(rc, NULL) : cli_check_free_bytes(dir, engine_disk_bytes(&g, CAPACITY_BLOCKS));
}

/* On a drive that holds no store; afterwards it holds none again. */
static int on_drive(const struct demo_args *a, const struct trace *t, struct half *half)
{
	struct tn_admin_device device;
	struct tn_admin_store store;
	const char *dir;
	char path[64];
	int rc, formatted;

	snprintf(path, sizeof(path), "%s%.40s", cli_is_drive(a->nvme) ? "" : "nvme:", a->nvme);
	dir = path;
	tn_admin_store_init(&store);
	store.dirs = &dir;
	store.ndirs = 1;
	rc = tn_admin_store_info(&store, &device);
	if (rc == 0)
		return cli_error(CLI_USAGE, "%s holds a store: `tenuto store format --nvme %s` empties it", path, a->nvme);
	if (rc != -ENOENT)
		return cli_fail(rc, NULL);
	rc = run(a, t, path, half);
	formatted = tn_admin_format(path, NULL, NULL, NULL);
	return rc ? rc : formatted ? cli_fail(formatted, "emptying the drive") : CLI_OK;
}

int cmd_demo(int argc, char **argv)
{
	struct demo_args a = {.seed = 1, .requests = REQUESTS};
	struct workload_opts w;
	struct trace t;
	struct half *half;
	char dir[4096];
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	if (a.dir && a.nvme)
		return cli_error(CLI_USAGE, "--dir %s and --nvme %s: give one of them", a.dir, a.nvme);
	if (a.dir && cli_is_drive(a.dir))
		return cli_error(CLI_USAGE, "--dir %s: is a drive; give it as --nvme %s", a.dir, a.dir + strlen("nvme:"));
	workload_opts_init(&w);
	w.seed = a.seed;
	w.requests = a.requests;
	half = mmap(NULL, 2 * sizeof(*half), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (half == MAP_FAILED || workload_generate(&w, &t))
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	cli_catch_interrupts();
	rc = a.nvme ? on_drive(&a, &t, half) : cli_scratch_dir(a.dir, NULL, dir, sizeof(dir));
	if (!rc && !a.nvme) {
		rc = check_free_bytes(dir);
		if (!rc)
			rc = run(&a, &t, dir, half);
		cli_remove_tree(dir);
	}
	trace_free(&t);
	munmap(half, 2 * sizeof(*half));
	return rc;
}
