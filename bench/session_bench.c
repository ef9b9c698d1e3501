/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tenuto bench session`: what it costs to use a cache that another process owns.
 *
 * A child process opens the cache and serves it; this process attaches twice: with memory that both map, and with memory of its own alone, which its front
 * stages. All make the same calls on the same cache, alternately, each with a pool of its own, and each loads the blocks that it saved. Beside it: how
 * long a word goes to another process and back.
 */
#include "bench.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tenuto/cache.h>
#include <tenuto/session.h>

#include "../cli/content.h"
#include "../cli/pool.h"

#define PATIENCE_NS 120000000000ull
#define ROUNDS_MAX 1000u
#define FLIGHTS 2u
#define FLIGHT_BYTES (32ull << 20)
#define BEGIN_BLOCKS 256u /* of the load whose begin is timed */
#define BEGINS 10u
#define MATCH_KEYS 512u
#define MATCHES 50u
#define TRIPS 200u /* loads of nothing, and words to another process and back */

/* Who calls, and what memory has the pool. */
enum kind { PRIVATE, SHARED, ATTACHED, STAGED, KINDS };
#define ATTACHES 2u /* kinds from ATTACHED on are this process's */
enum figure { SAVE, LOAD, MATCH, BEGIN, TRIP, FIGURES };

static const char *const kinds[KINDS] = {"embedded", "embedded_shared", "attached", "staged"};
static const char *const figures[FIGURES] = {"save_gbs", "load_gbs", "match_us", "begin_us", "trip_us"};

struct session_args {
	const char *dir;
	uint64_t object, layers, total, rounds;
	bool no_verify;
	bool json;
};

static const struct cli_opt options[] = {
	{"dir", "DIR", "/dev/shm", "where the store lies (a new directory is made inside, and removed)", CLI_STRING,
	 offsetof(struct session_args, dir), 0, 0},
	{"object", "SIZE", "128KiB", "object size", CLI_SIZE, offsetof(struct session_args, object), 4096, 64u << 20},
	{"layers", "N", "4", "objects per block", CLI_COUNT, offsetof(struct session_args, layers), 1, 256},
	{"total", "SIZE", "256MiB", "bytes that each side saves and loads per round; the store takes five times as many", CLI_SIZE,
	 offsetof(struct session_args, total), 1u << 20, 1ull << 40},
	{"rounds", "N", "15", "of all sides", CLI_COUNT, offsetof(struct session_args, rounds), 1, ROUNDS_MAX},
	{"no-verify", NULL, NULL, "without checksums", CLI_FLAG, offsetof(struct session_args, no_verify), 0, 0},
	{"json", NULL, NULL, "print every round as JSON", CLI_FLAG, offsetof(struct session_args, json), 0, 0},
	{0},
};

static const struct cli_verb verb = {
	.name = "bench session",
	.about = "The same calls in the process that owns a cache and in one that has attached to it, alternately: save and load, a look-up of 512 "
		 "keys, beginning a load of 256 blocks, and a load that finds nothing; beside it a word to another process and back.",
	.opts = options,
};

struct side {
	const struct session_args *args;
	struct tn_cache *cache;
	struct tn_space *space;
	struct cli_pool pool;
	struct tn_key *keys;
	uint32_t *pages;
	uint32_t blocks, batch; /* per round; per load or save */
	bool shared;		/* memory of tn_memory_alloc */
};

/* What the child is asked, and answers. */
struct order {
	uint32_t kind, figure;
	uint64_t seed;
};

struct answer {
	int rc;
	double value;
	char why[256];
};

struct bench {
	const struct session_args *args;
	struct tn_cache *cache[ATTACHES]; /* attached */
	struct side side[ATTACHES];	  /* of this process */
	pid_t owner;
	int sock;
	double figure[KINDS][FIGURES][ROUNDS_MAX];
	double ping_us[ROUNDS_MAX];
	size_t rounds;
};

static uint64_t patience_deadline(void)
{
	return cli_now_ns() + PATIENCE_NS;
}

static double us_since(uint64_t start)
{
	return (double)(cli_now_ns() - start) * 1e-3;
}

/* ---- a side ------------------------------------------------------------------------------------------------ */

static int make_memory(struct side *s, uint64_t bytes, void **out)
{
	if (s->shared)
		return tn_memory_alloc(bytes, NULL, out);
	*out = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (*out == MAP_FAILED)
		return -ENOMEM;
	madvise(*out, bytes, MADV_HUGEPAGE);
	return 0;
}

static int open_side(struct side *s, struct tn_cache *cache)
{
	const struct session_args *a = s->args;
	struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .alignment = 4096};
	uint64_t block_bytes = a->object * a->layers, bytes;
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_geometry g;
	void *memory;
	int rc = tn_geometry_raw((uint32_t)a->layers, a->object, &g);

	s->cache = cache;
	s->blocks = (uint32_t)(a->total / block_bytes);
	s->batch = block_bytes < FLIGHT_BYTES ? (uint32_t)(FLIGHT_BYTES / block_bytes) : 1;
	shape.npages = s->batch * FLIGHTS > BEGIN_BLOCKS ? s->batch * FLIGHTS : BEGIN_BLOCKS;
	s->keys = calloc(s->blocks > MATCH_KEYS ? s->blocks : MATCH_KEYS, sizeof(*s->keys));
	s->pages = calloc(shape.npages, sizeof(*s->pages));
	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.model = "session";
	if (rc || !s->keys || !s->pages)
		return rc ? rc : -ENOMEM;
	for (uint32_t i = 0; i < shape.npages; i++)
		s->pages[i] = i;
	bytes = cli_pool_bytes(&g, &shape);
	rc = tn_space_open(cache, &id, &shard, &g, NULL, &s->space);
	if (!rc)
		rc = make_memory(s, bytes, &memory);
	if (rc)
		return rc;
	content_fill(memory, bytes, 1, 0, 0);
	return cli_pool_open(cache, &g, &shape, memory, &s->pool);
}

static int make_keys(struct side *s, uint64_t seed)
{
	uint32_t n = s->blocks > MATCH_KEYS ? s->blocks : MATCH_KEYS;
	uint64_t *hash = calloc(n, 16);
	long rc;

	for (uint32_t i = 0; hash && i < n; i++) {
		hash[2 * i] = seed;
		hash[2 * i + 1] = i;
	}
	rc = hash ? tn_keys_from_hashes(s->space, hash, 16, n, s->keys, n) : -ENOMEM;
	free(hash);
	return rc == (long)n ? 0 : (int)rc;
}

/* ---- saves and loads --------------------------------------------------------------------------------------- */

static int end_save(struct tn_save *save, uint32_t *stored)
{
	struct tn_save_result r = {.size = sizeof(r)};
	int rc = tn_save_end(save, patience_deadline(), &r);

	*stored += r.stored;
	return rc ? rc : r.error;
}

static int begin_save(struct side *s, uint32_t at, uint32_t n, const uint32_t *pages, struct tn_save **save)
{
	struct tn_save_opts o;
	int rc;

	tn_save_opts_init(&o);
	o.parent = at ? &s->keys[at - 1] : NULL;
	rc = tn_save_begin(s->space, s->pool.pool, s->keys + at, n, pages, &o, save);
	for (uint32_t l = 0; !rc && l < s->args->layers; l++)
		rc = tn_save_layer(*save, l, NULL, 0);
	return rc ? rc : tn_save_commit(*save);
}

static int end_load(struct side *s, struct tn_load *load, uint32_t n)
{
	uint64_t until = patience_deadline();
	int good = (int)n, rc;

	for (uint32_t l = 0; l < s->args->layers && good == (int)n; l++)
		good = tn_load_wait(load, l, until);
	rc = tn_load_end(load, until, NULL);
	return rc ? rc : good == (int)n ? 0 : good < 0 ? good : -ENODATA;
}

/* GB/s of all blocks of the side, FLIGHTS batches at a time, and of the flush of saves. */
static int transfer_all(struct side *s, enum figure figure, double *gbs)
{
	union { struct tn_save *save; struct tn_load *load; } op[FLIGHTS] = {{NULL}};
	uint32_t n[FLIGHTS] = {0}, stored = 0, k = 0, at = 0, flights = (s->blocks + s->batch - 1) / s->batch;
	uint64_t start = cli_now_ns();
	int rc = 0;

	for (uint32_t f = 0; !rc && f < flights + FLIGHTS; f++, k = f % FLIGHTS) {
		const uint32_t *pages = s->pages + k * s->batch;

		if (n[k])
			rc = figure == SAVE ? end_save(op[k].save, &stored) : end_load(s, op[k].load, n[k]);
		n[k] = s->blocks - at < s->batch ? s->blocks - at : s->batch;
		if (rc || !n[k])
			continue;
		if (figure == SAVE)
			rc = begin_save(s, at, n[k], pages, &op[k].save);
		else
			rc = tn_load_begin(s->space, s->pool.pool, s->keys + at, n[k], pages, NULL, &op[k].load);
		at += n[k];
	}
	if (!rc && figure == SAVE)
		rc = stored == s->blocks ? tn_flush(s->cache, patience_deadline()) : -ENOSPC;
	*gbs = (double)(s->blocks * s->args->layers * s->args->object) / (double)(cli_now_ns() - start);
	return rc;
}

/* ---- single calls ------------------------------------------------------------------------------------------- */

static int time_match(struct side *s, double *us)
{
	uint32_t want = s->blocks < MATCH_KEYS ? s->blocks : MATCH_KEYS;
	double v[MATCHES];

	for (uint32_t i = 0; i < MATCHES; i++) {
		struct tn_match m = {.size = sizeof(m)};
		uint64_t start = cli_now_ns();
		int rc = tn_match(s->space, s->keys, MATCH_KEYS, NULL, &m, TN_MATCH_PIN);

		v[i] = us_since(start);
		if (rc >= 0 && m.pin)
			tn_unpin(s->space, m.pin);
		if (rc != (int)want)
			return rc < 0 ? rc : -ENODATA;
	}
	*us = bench_median(v, MATCHES);
	return 0;
}

static int time_begin(struct side *s, double *us)
{
	uint32_t n = s->blocks < BEGIN_BLOCKS ? s->blocks : BEGIN_BLOCKS;
	double v[BEGINS];

	for (uint32_t i = 0; i < BEGINS; i++) {
		uint64_t start = cli_now_ns();
		struct tn_load *load;
		int rc = tn_load_begin(s->space, s->pool.pool, s->keys, n, s->pages, NULL, &load);

		v[i] = us_since(start);
		if (!rc)
			rc = end_load(s, load, n);
		if (rc)
			return rc;
	}
	*us = bench_median(v, BEGINS);
	return 0;
}

/* A load of a block that nobody has saved: from begin to the answer of a wait, the owner's thread and two wake-ups. */
static int time_trip(struct side *s, double *us)
{
	const struct tn_key nowhere = {{1, 2}};
	double v[TRIPS];

	for (uint32_t i = 0; i < TRIPS; i++) {
		uint64_t start = cli_now_ns();
		struct tn_load *load;
		int rc = tn_load_begin(s->space, s->pool.pool, &nowhere, 1, s->pages, NULL, &load), good;

		if (rc)
			return rc;
		good = tn_load_wait(load, 0, patience_deadline());
		v[i] = us_since(start);
		rc = tn_load_end(load, patience_deadline(), NULL);
		if (rc || good)
			return rc ? rc : -EEXIST;
	}
	*us = bench_median(v, TRIPS);
	return 0;
}

static int measure(struct side *s, enum figure figure, uint64_t seed, double *value)
{
	int rc = make_keys(s, seed);

	if (rc)
		return rc;
	switch (figure) {
	case MATCH:
		return time_match(s, value);
	case BEGIN:
		return time_begin(s, value);
	case TRIP:
		return time_trip(s, value);
	default:
		return transfer_all(s, figure, value);
	}
}

/* ---- the owner's process ------------------------------------------------------------------------------------ */

static int open_owner(const struct session_args *a, const char *dir, struct tn_cache **cache, struct side *sides)
{
	struct tn_cache_opts o;
	struct tn_geometry g;
	char path[4096 + 8];
	int rc = tn_geometry_raw((uint32_t)a->layers, a->object, &g);

	tn_cache_opts_init(&o);
	o.dirs = &dir;
	o.ndirs = 1;
	/* Each side's saves of a round take the places of those of the round before. */
	o.disk_blocks = (uint32_t)(a->total / (a->object * a->layers)) * KINDS * 9 / 8 + 64;
	o.geometry = &g;
	o.policy = "lru";
	o.verify = !a->no_verify;
	if (!rc)
		rc = tn_cache_open(&o, cache);
	for (int k = PRIVATE; !rc && k <= SHARED; k++) {
		sides[k] = (struct side){.args = a, .shared = k == SHARED};
		rc = open_side(&sides[k], *cache);
	}
	snprintf(path, sizeof(path), "%s/socket", dir);
	return rc ? rc : tn_cache_serve(*cache, path, NULL);
}

static bool give(int sock, int rc, double value)
{
	const struct tn_error *e = tn_error_last();
	struct answer answer = {.rc = rc, .value = value};

	if (rc)
		snprintf(answer.why, sizeof(answer.why), "%.250s", e->code == rc ? e->text : strerror(-rc));
	return send(sock, &answer, sizeof(answer), MSG_NOSIGNAL) == sizeof(answer) && !rc;
}

/* Until the other end of the socket is closed; the process, and all that it has, ends with it. */
static void be_owner(const struct session_args *a, const char *dir, int sock)
{
	struct side sides[KINDS];
	struct tn_cache *cache;
	struct order order;
	double value = 0;
	int rc = open_owner(a, dir, &cache, sides);

	while (give(sock, rc, value) && recv(sock, &order, sizeof(order), 0) == sizeof(order))
		rc = measure(&sides[order.kind], (enum figure)order.figure, order.seed, &value);
}

static int start_owner(struct bench *b, const char *dir)
{
	int ends[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
		return cli_error(CLI_ENVIRONMENT, "socketpair: %s", strerror(errno));
	fflush(NULL);
	b->owner = fork();
	if (!b->owner) {
		bench_die_with_parent();
		close(ends[0]);
		be_owner(b->args, dir, ends[1]);
		_exit(0);
	}
	close(ends[1]);
	b->sock = ends[0];
	return b->owner < 0 ? cli_error(CLI_ENVIRONMENT, "fork: %s", strerror(errno)) : CLI_OK;
}

/* What the owner answers; CLI_OK, or the exit code after a message. */
static int take(struct bench *b, double *value)
{
	struct answer answer;

	if (recv(b->sock, &answer, sizeof(answer), 0) != sizeof(answer))
		return cli_error(CLI_PROBLEM, "the owner's process died");
	*value = answer.value;
	return answer.rc ? cli_error(cli_exit_of(answer.rc), "the owner's process: %s", answer.why) : CLI_OK;
}

/* ---- the machine's own ping-pong ---------------------------------------------------------------------------- */

static void wait_for_value(uint32_t *word, uint32_t value)
{
	for (;;) {
		uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);

		if (seen == value)
			return;
		syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
	}
}

static void tell_value(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* us of a word to another process and one back, both of which sleep meanwhile. */
static int ping_pong(double *us)
{
	uint32_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	double v[TRIPS];
	pid_t pid;

	if (words == MAP_FAILED)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	fflush(NULL);
	pid = fork();
	if (!pid) {
		bench_die_with_parent();
		for (uint32_t i = 1; i <= TRIPS; i++) {
			wait_for_value(&words[0], i);
			tell_value(&words[16], i);
		}
		_exit(0);
	}
	for (uint32_t i = 1; pid > 0 && i <= TRIPS; i++) {
		uint64_t start = cli_now_ns();

		tell_value(&words[0], i);
		wait_for_value(&words[16], i);
		v[i - 1] = us_since(start);
	}
	if (pid > 0)
		waitpid(pid, NULL, 0);
	munmap(words, 4096);
	if (pid < 0)
		return cli_error(CLI_ENVIRONMENT, "fork: %s", strerror(errno));
	*us = bench_median(v, TRIPS);
	return CLI_OK;
}

/* ---- the rounds --------------------------------------------------------------------------------------------- */

static int one(struct bench *b, enum kind kind, enum figure figure, uint64_t seed, double *value)
{
	const struct order order = {kind, figure, seed};
	int rc;

	if (kind >= ATTACHED) {
		rc = measure(&b->side[kind - ATTACHED], figure, seed, value);
		return rc ? cli_fail(rc, "%s, %s", kinds[kind], figures[figure]) : CLI_OK;
	}
	if (send(b->sock, &order, sizeof(order), MSG_NOSIGNAL) != sizeof(order))
		return cli_error(CLI_PROBLEM, "the owner's process died");
	return take(b, value);
}

/* Every figure of all sides, one after the other; another one begins in each round. */
static int one_round(struct bench *b, uint64_t round, double figure[KINDS][FIGURES])
{
	int rc = CLI_OK;

	for (int f = 0; f < FIGURES && !rc; f++)
		for (uint64_t k = round; k < round + KINDS && !rc; k++)
			rc = one(b, (enum kind)(k % KINDS), (enum figure)f, 1 + round * KINDS + k % KINDS, &figure[k % KINDS][f]);
	return rc;
}

static int run(struct bench *b, const char *dir, struct cli_progress *progress)
{
	double ignored, first[KINDS][FIGURES], figure[KINDS][FIGURES];
	struct tn_attach_opts opts = {.size = sizeof(opts), .deadline_ns = patience_deadline()};
	char path[4096 + 8];
	int rc = start_owner(b, dir);

	if (!rc)
		rc = take(b, &ignored);
	if (rc)
		return rc;
	snprintf(path, sizeof(path), "%s/socket", dir);
	for (uint32_t i = 0; i < ATTACHES && !rc; i++) {
		rc = tn_cache_attach(path, &opts, &b->cache[i]);
		if (!rc)
			rc = open_side(&b->side[i], b->cache[i]);
	}
	if (rc)
		return cli_fail(rc, "attach");
	rc = one_round(b, 0, first); /* memory is touched, the store's slots are written once */
	for (; !rc && b->rounds < b->args->rounds && !cli_interrupted(); b->rounds++) {
		rc = one_round(b, b->rounds + 1, figure);
		for (int k = 0; k < KINDS; k++)
			for (int f = 0; f < FIGURES; f++)
				b->figure[k][f][b->rounds] = figure[k][f];
		if (!rc)
			rc = ping_pong(&b->ping_us[b->rounds]);
		cli_progress_step(progress, b->rounds + 1);
	}
	return rc ? rc : cli_interrupted() ? cli_error(CLI_ENVIRONMENT, "interrupted") : CLI_OK;
}

/* ---- the result --------------------------------------------------------------------------------------------- */

static void cells(struct cli_table *t, double *v, size_t n, int digits)
{
	double low, high, median = bench_median(v, n);

	bench_median_interval(v, n, &low, &high);
	cli_table_cell(t, "%.*f (%.*f - %.*f)", digits, median, digits, low, digits, high);
}

static void row(struct cli_table *t, const struct bench *b, enum kind kind, const char *name)
{
	double v[ROUNDS_MAX];

	cli_table_cell(t, "%s", name);
	for (int f = 0; f < FIGURES; f++) {
		memcpy(v, b->figure[kind][f], b->rounds * sizeof(*v));
		cells(t, v, b->rounds, f <= LOAD ? 2 : 1);
	}
}

/* Rates and tn_load_begin over those of the owner's process; look-ups and trips: us more than there, less one ping-pong. */
static void compare(struct cli_table *t, const struct bench *b, enum kind kind, enum kind with, const char *name)
{
	double v[ROUNDS_MAX];

	cli_table_cell(t, "%s", name);
	for (int f = 0; f < FIGURES; f++) {
		bool difference = f == MATCH || f == TRIP;

		for (size_t i = 0; i < b->rounds; i++) {
			double mine = b->figure[kind][f][i], other = b->figure[with][f][i];

			v[i] = difference ? mine - other - b->ping_us[i] : mine / other;
		}
		cells(t, v, b->rounds, difference ? 1 : 3);
	}
}

static int print(struct bench *b)
{
	static const char *const heads[] = {"", "save GB/s", "load GB/s", "match us", "begin us", "load of nothing us"};
	const bool left[] = {true, false, false, false, false, false};
	struct cli_table t;
	char s[32];

	printf("%u blocks of %u objects of %s per round, %zu rounds; medians and their 95 %% intervals\n\n", b->side->blocks,
	       (unsigned)b->args->layers, cli_bytes(s, (double)b->args->object), b->rounds);
	cli_table_init(&t, 6, left);
	for (size_t i = 0; i < 6; i++)
		cli_table_cell(&t, "%s", heads[i]);
	row(&t, b, PRIVATE, "embedded, anonymous memory");
	row(&t, b, SHARED, "embedded, tn_memory_alloc");
	row(&t, b, ATTACHED, "attached, tn_memory_alloc");
	row(&t, b, STAGED, "attached, anonymous memory (staged)");
	compare(&t, b, ATTACHED, PRIVATE, "attached against anonymous *");
	compare(&t, b, ATTACHED, SHARED, "attached against tn_memory_alloc *");
	compare(&t, b, STAGED, PRIVATE, "staged against anonymous *");
	cli_table_print(&t, stdout, true);
	printf("\n* ratio; of match and load of nothing: us more than embedded and one ping-pong. A word to another process and back: %.1f us\n",
	       bench_median(b->ping_us, b->rounds));
	return cli_finish(CLI_OK);
}

static json_t *list(const double *v, size_t n)
{
	json_t *all = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append_new(all, json_real(v[i]));
	return all;
}

static json_t *as_json(const struct bench *b)
{
	json_t *o = json_object();

	for (int k = 0; k < KINDS; k++) {
		json_t *side = json_object();

		for (int f = 0; f < FIGURES; f++)
			json_object_set_new(side, figures[f], list(b->figure[k][f], b->rounds));
		json_object_set_new(o, kinds[k], side);
	}
	json_object_set_new(o, "ping_pong_us", list(b->ping_us, b->rounds));
	return o;
}

static void end(struct bench *b)
{
	for (uint32_t i = 0; i < ATTACHES; i++) {
		cli_pool_close(&b->side[i].pool);
		tn_space_close(b->side[i].space);
		tn_cache_close(b->cache[i]);
		free(b->side[i].keys);
		free(b->side[i].pages);
	}
	close(b->sock);
	if (b->owner > 0) {
		kill(b->owner, SIGKILL); /* its store is removed anyway */
		waitpid(b->owner, NULL, 0);
	}
}

int cmd_bench_session(int argc, char **argv)
{
	struct session_args a = {.dir = "/dev/shm", .object = 128u << 10, .layers = 4, .total = 256u << 20, .rounds = 15};
	struct cli_progress progress;
	struct bench *b;
	char dir[4096];
	int n, rc = cli_parse(&verb, argc, argv, &a, &n);

	if (rc != CLI_GO)
		return rc;
	if (a.total < a.object * a.layers)
		return cli_error(CLI_USAGE, "--total: one block alone takes %llu bytes", (unsigned long long)(a.object * a.layers));
	b = calloc(1, sizeof(*b));
	if (!b)
		return cli_error(CLI_ENVIRONMENT, "out of memory");
	b->args = &a;
	b->sock = -1;
	for (uint32_t i = 0; i < ATTACHES; i++)
		b->side[i] = (struct side){.args = &a, .shared = i == 0};
	cli_catch_interrupts();
	rc = cli_scratch_dir(a.dir, NULL, dir, sizeof(dir));
	if (rc) {
		free(b);
		return rc;
	}
	rc = cli_check_free_bytes(dir, a.total * (KINDS + 1));
	cli_progress_begin(&progress, "bench session", a.rounds);
	if (!rc)
		rc = run(b, dir, &progress);
	end(b);
	cli_progress_end(&progress);
	cli_remove_tree(dir);
	if (rc == CLI_OK)
		rc = a.json ? cli_json(as_json(b)) : print(b);
	free(b);
	return rc;
}
