/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything tiny and everything at once: threads save, load, pin, drop and flush blocks of five sizes in a store of a few
 * segments, over one to three directories, with and without host memory, quotas and write budgets. Some hold what they
 * pinned for seconds, some begin saves and take their time. What is asserted is time: each operation ends by its
 * deadline, and those that have none in seconds; with leases held the cache closes; and when they are gone there
 * is a place for every size. TN_SOAK=1: ten minutes.
 */
#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "cache_rig.h"

#define SIZES 5u
#define THREADS 6u
#define OP_BLOCKS 12u
#define OP_PAGES (OP_BLOCKS * RIG_PAGES)
#define CHAINS 12u
#define CHAIN_BLOCKS 24u
#define LEASES 4u /* of one thread */
#define MS 1000000ull
/* What a busy machine may add: an operation that takes longer waits for something that does not come. */
#define MARGIN_NS (60 * RIG_SECOND)

static const uint32_t head_dim[SIZES] = {128, 64, 48, 32, 16}; /* 256 to 32 KiB per block */

enum kind { SAVE, LOAD, MATCH, FLUSH, DROP, DROP_SPACE, PREFETCH, STATS, KINDS };
static const char *const kind_name[KINDS] = {"save", "load", "match", "flush", "drop", "drop of a space", "prefetch", "stats"};

struct storm {
	struct rig rig; /* opens no space of its own */
	struct rig_space s[SIZES];
	char paths[3][300];
	const char *dirs[3];
	uint64_t until_ns;
	bool drops;
};

struct lease {
	uint32_t size;
	uint64_t pin, until_ns;
};

struct caller {
	struct storm *s;
	struct tn_rng rng;
	uint32_t first_page;
	struct lease lease[LEASES];
	uint64_t longest[KINDS], count[KINDS], stored, failed, hits;
	const char *doing; /* shared: for the one who finds that it does not end */
	char error[640];
};

/* ---- bytes ------------------------------------------------------------------------------------------------ */

static bool contents(struct caller *c, uint32_t size, uint64_t id, uint32_t layer, const uint32_t *pages, bool check)
{
	for (uint32_t k = 0; k < RIG_PAGES; k++) {
		if (!check)
			rig_fill(&c->s->s[size], id, layer, k, pages[k]);
		else if (!rig_holds(&c->s->s[size], id, layer, k, pages[k]))
			return false;
	}
	return true;
}

/* ---- one operation after the other ------------------------------------------------------------------------------ */

static uint32_t below(struct caller *c, uint32_t n)
{
	return tn_rng_below(&c->rng, n);
}

static void wrong(struct caller *c, const char *what, int rc)
{
	if (!c->error[0])
		snprintf(c->error, sizeof(c->error), "%s: %d: %s", what, rc, rc ? tn_error_last()->text : "");
}

/* An operation that was to end at `due` has ended. */
static void ended(struct caller *c, enum kind kind, uint64_t begun_ns, uint64_t due_ns)
{
	uint64_t now = tn_test_now();

	c->count[kind]++;
	c->longest[kind] = now - begun_ns > c->longest[kind] ? now - begun_ns : c->longest[kind];
	if (now > due_ns + MARGIN_NS && !c->error[0])
		snprintf(c->error, sizeof(c->error), "a %s ended %.3f s after its deadline", kind_name[kind],
			 (double)(now - due_ns) / 1e9);
}

static uint32_t pick(struct caller *c, uint32_t *size, uint64_t *first, struct tn_key *keys, uint32_t *pages)
{
	uint32_t n = 1 + below(c, OP_BLOCKS);

	*size = below(c, SIZES);
	*first = 1 + below(c, CHAINS) * 64ull + below(c, CHAIN_BLOCKS - OP_BLOCKS);
	rig_keys(*first, n, keys);
	for (uint32_t i = 0; i < OP_PAGES; i++)
		pages[i] = c->first_page + i;
	return n;
}

static void save(struct caller *c)
{
	struct tn_key keys[OP_BLOCKS], parent;
	uint32_t pages[OP_PAGES], size, n;
	uint64_t first, begun = tn_test_now();
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_save_opts so;
	struct tn_save *save;
	bool abort = below(c, 8) == 0;
	int rc;

	n = pick(c, &size, &first, keys, pages);
	parent = rig_key(first - 1);
	tn_save_opts_init(&so);
	so.parent = &parent;
	rc = tn_save_begin(c->s->s[size].space, c->s->s[size].pool, keys, n, pages, &so, &save);
	if (rc) {
		if (rc != -EAGAIN)
			wrong(c, "save_begin", rc);
		return;
	}
	for (uint32_t l = 0; l < RIG_LAYERS; l++) {
		if (below(c, 40) == 0)
			usleep(below(c, 300000)); /* an engine that computes for long */
		for (uint32_t i = 0; i < n; i++)
			contents(c, size, first + i, l, pages + i * RIG_PAGES, false);
		if ((rc = tn_save_layer(save, l, NULL, 0)) != 0)
			wrong(c, "save_layer", rc);
	}
	rc = abort ? tn_save_abort(save) : tn_save_commit(save);
	if (rc)
		wrong(c, "save_commit", rc);
	begun = tn_test_now();
	rc = tn_save_end(save, begun + MARGIN_NS, &res);
	if (rc)
		wrong(c, "HANG: save_end", rc);
	if (rc == 0 && res.failed && res.error != -ENOSPC && res.error != -EBUSY && res.error != -EROFS)
		wrong(c, "a save failed", res.error);
	c->stored += rc ? 0 : res.stored;
	c->failed += rc ? 0 : res.failed;
	ended(c, SAVE, begun, begun);
}

static void load(struct caller *c)
{
	struct tn_key keys[OP_BLOCKS];
	uint32_t pages[OP_PAGES], size, n;
	uint64_t first, begun = tn_test_now(), due;
	struct tn_load_opts o;
	struct tn_load *load;
	int rc;

	n = pick(c, &size, &first, keys, pages);
	tn_load_opts_init(&o);
	if (below(c, 3) == 0)
		o.deadline_ns = begun + below(c, 50) * MS;
	due = o.deadline_ns < begun + RIG_SECOND ? o.deadline_ns : begun;
	rc = tn_load_begin(c->s->s[size].space, c->s->s[size].pool, keys, n, pages, &o, &load);
	if (rc) {
		if (rc != -EAGAIN)
			wrong(c, "load_begin", rc);
		return;
	}
	for (uint32_t l = 0; l < RIG_LAYERS; l++) {
		if (below(c, 60) == 0)
			tn_load_cancel(load);
		rc = tn_load_wait(load, l, due + MARGIN_NS);
		if (rc < 0)
			wrong(c, "HANG: load_wait", rc);
		for (int i = 0; i < rc; i++)
			if (!contents(c, size, first + (uint64_t)i, l, pages + (uint32_t)i * RIG_PAGES, true))
				wrong(c, "WRONG BYTES", 0);
	}
	c->hits += rc > 0 ? (uint64_t)rc : 0;
	rc = tn_load_end(load, due + MARGIN_NS, NULL);
	if (rc)
		wrong(c, "HANG: load_end", rc);
	ended(c, LOAD, begun, due);
}

static void match(struct caller *c)
{
	struct lease *l = &c->lease[below(c, LEASES)];
	struct tn_key keys[OP_BLOCKS];
	uint32_t pages[OP_PAGES], size, n;
	uint64_t first, begun = tn_test_now();
	struct tn_match m = {.size = sizeof(m)};
	int rc;

	for (uint32_t i = 0; i < LEASES; i++) {
		if (c->lease[i].pin == 0 || tn_test_now() < c->lease[i].until_ns)
			continue;
		rc = tn_unpin(c->s->s[c->lease[i].size].space, c->lease[i].pin);
		if (rc)
			wrong(c, "unpin", rc);
		c->lease[i].pin = 0;
	}
	n = pick(c, &size, &first, keys, pages);
	rc = tn_match(c->s->s[size].space, keys, n, NULL, &m, l->pin ? 0 : TN_MATCH_PIN);
	if (rc < 0 && rc != -EAGAIN)
		wrong(c, "match", rc);
	if (rc > 0 && l->pin == 0)
		*l = (struct lease){size, m.pin, begun + (below(c, 6) ? below(c, 20) * MS : below(c, 3000) * MS)};
	ended(c, MATCH, begun, begun);
}

static void flush(struct caller *c)
{
	uint64_t begun = tn_test_now(), due = begun + (below(c, 2) ? MARGIN_NS : below(c, 100) * MS);
	int rc = tn_flush(c->s->rig.cache, due);

	if (rc == -ETIMEDOUT ? due == begun + MARGIN_NS : rc && rc != -ENOSPC && rc != -EROFS)
		wrong(c, rc == -ETIMEDOUT ? "HANG: flush" : "flush", rc);
	ended(c, FLUSH, begun, rc == -ETIMEDOUT ? due : begun);
}

static void other(struct caller *c)
{
	struct tn_stats st = {0};
	struct tn_key keys[OP_BLOCKS];
	uint32_t pages[OP_PAGES], size, n;
	uint64_t first, begun = tn_test_now(), due;
	int rc;

	n = pick(c, &size, &first, keys, pages);
	switch (below(c, 8)) {
	case 0:
	case 1:
		rc = tn_drop(c->s->s[size].space, keys, 1 + below(c, n));
		ended(c, DROP, begun, begun);
		break;
	case 2:
		if (!c->s->drops)
			return;
		due = begun + below(c, 200) * MS;
		rc = tn_space_drop(c->s->s[size].space, due);
		rc = rc == -EBUSY || rc == -ETIMEDOUT ? 0 : rc;
		ended(c, DROP_SPACE, begun, due);
		break;
	case 3:
	case 4:
	case 5:
		rc = tn_prefetch(c->s->s[size].space, keys, n, begun + below(c, 50) * MS);
		rc = rc == -EAGAIN ? 0 : rc;
		ended(c, PREFETCH, begun, begun);
		break;
	default:
		rc = tn_stats_take(c->s->rig.cache, &st);
		ended(c, STATS, begun, begun);
	}
	if (rc < 0)
		wrong(c, "drop, prefetch or stats", rc);
}

static void *caller_main(void *arg)
{
	struct caller *c = arg;

	while (tn_test_now() < c->s->until_ns && !c->error[0]) {
		static const struct {
			uint32_t up_to;
			void (*run)(struct caller *c);
			const char *name;
		} what[] = {{45, save, "save"}, {70, load, "load"}, {90, match, "match"}, {94, flush, "flush"}, {100, other, "another one"}};
		uint32_t dice = below(c, 100), k = 0;

		while (dice >= what[k].up_to)
			k++;
		__atomic_store_n(&c->doing, what[k].name, __ATOMIC_RELAXED);
		what[k].run(c);
	}
	return NULL;
}

/* Joins within the margin, or says who does not come back. */
static void join(pthread_t thread, void **result, uint64_t ns, const char *what, const char *const *doing)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += (time_t)(ns / RIG_SECOND) + 1;
	if (pthread_timedjoin_np(thread, result, &until))
		fail_msg("HANG: %s%s", what, doing ? __atomic_load_n(doing, __ATOMIC_RELAXED) : "");
}

/* ---- a storm ------------------------------------------------------------------------------------------------------ */

static void random_plan(struct storm *s, struct tn_rng *rng)
{
	static const char *const policies[] = {"default", "lru", "s3fifo", "fifo"};
	struct tn_cache_opts *o = &s->rig.o.cache;

	o->ndirs = 1 + tn_rng_below(rng, 3);
	o->disk_bytes = (tn_rng_below(rng, 3) ? 12ull : 20ull) << 20;
	o->host_bytes = tn_rng_below(rng, 2) ? (2ull + 2 * tn_rng_below(rng, 2)) << 20 : 0;
	o->policy = policies[tn_rng_below(rng, 4)];
	o->scheduler = tn_rng_below(rng, 4) ? "slack" : "none";
	o->executors = tn_rng_below(rng, 3) == 0;
	o->max_ops = 3 + tn_rng_below(rng, 12);
	o->max_op_blocks = 16;
	o->io_depth = 1u << tn_rng_below(rng, 7);
	o->write_backlog_bytes = tn_rng_below(rng, 2) ? 1u << 20 : 0;
	o->write_bytes_per_day = tn_rng_below(rng, 6) ? 0 : 100ull << 20;
	o->max_blocks = 8192;
	for (uint32_t i = 0; i < o->ndirs; i++) {
		snprintf(s->paths[i], sizeof(s->paths[i]), "%s/%u", s->rig.dir, i);
		mkdir(s->paths[i], 0700);
		s->dirs[i] = s->paths[i];
	}
	o->dirs = s->dirs;
	if (rig_namespace) { /* beside the directories */
		s->dirs[0] = rig_namespace_name();
		o->executors = 0;
	}
	s->drops = tn_rng_below(rng, 4) == 0;
	printf("# %zu directories of %llu KiB, %llu MiB of host memory, %s, scheduler %s, %u executors, %u operations, depth %u, backlog "
	       "%llu, budget %llu%s\n", o->ndirs, (unsigned long long)(o->disk_bytes / o->ndirs >> 10),
	       (unsigned long long)(o->host_bytes >> 20), o->policy, o->scheduler, o->executors, o->max_ops, o->io_depth,
	       (unsigned long long)o->write_backlog_bytes, (unsigned long long)o->write_bytes_per_day, s->drops ? ", drops" : "");
}

static void open_sizes(struct storm *s, struct tn_rng *rng)
{
	s->rig.o.spaces = 0;
	rig_must_open(&s->rig);
	for (uint32_t k = 0; k < SIZES; k++) {
		struct tn_quota quota;

		tn_quota_init(&quota);
		if (tn_rng_below(rng, 4) == 0)
			quota.bytes[TN_TIER_DISK] = tn_rng_below(rng, 24) * (1ull << 18);
		if (tn_rng_below(rng, 4) == 0)
			quota.bytes[TN_TIER_HOST] = tn_rng_below(rng, 8) * (1ull << 18);
		assert_int_equal(rig_space_open(&s->rig, &(struct rig_space_opts){.head_dim = head_dim[k], .quota = &quota}, &s->s[k]), 0);
	}
}

static void *close_main(void *arg)
{
	return (void *)(intptr_t)rig_close(&((struct storm *)arg)->rig);
}

/* On a thread of its own, so that it can be told that it does not return. */
static void close_sizes(struct storm *s)
{
	pthread_t thread;
	void *status;

	for (uint32_t k = 0; k < SIZES; k++)
		rig_space_close(&s->s[k]);
	assert_int_equal(pthread_create(&thread, NULL, close_main, s), 0);
	join(thread, &status, 2 * MARGIN_NS, "tn_cache_close", NULL);
	if ((intptr_t)status != 0 && (intptr_t)status != -ENOSPC && (intptr_t)status != -EROFS)
		fail_msg("close: %d: %s", (int)(intptr_t)status, "");
}

/* The storm is over: with every lease ended, there is a place for a block of any size. */
static void each_size_finds_a_place(struct storm *s, struct caller *c)
{
	for (uint32_t t = 0; t < THREADS; t++)
		for (uint32_t i = 0; i < LEASES; i++)
			if (c[t].lease[i].pin)
				rig_unpin(&s->s[c[t].lease[i].size], c[t].lease[i].pin);
	for (uint32_t k = 0; k < SIZES; k++) {
		struct tn_save_result res;
		int rc = rig_flush(&s->rig);

		assert_true(rc == 0 || rc == -ENOSPC || rc == -EROFS);
		res = rig_save(&s->s[k], 100000 + k, 1, 0);
		if (res.failed)
			fail_msg("nobody holds anything, and a block of size %u has no place: %d", k, res.error);
	}
}

static void run_callers(struct storm *s, struct caller *c, uint64_t seconds)
{
	pthread_t thread[THREADS];

	s->until_ns = tn_test_now() + seconds * RIG_SECOND;
	for (uint32_t t = 0; t < THREADS; t++)
		assert_int_equal(pthread_create(&thread[t], NULL, caller_main, &c[t]), 0);
	for (uint32_t t = 0; t < THREADS; t++)
		join(thread[t], NULL, seconds * RIG_SECOND + 3 * MARGIN_NS, "a thread does not come back from a ", &c[t].doing);
	for (uint32_t t = 0; t < THREADS; t++)
		if (c[t].error[0])
			fail_msg("thread %u: %s", t, c[t].error);
}

static void report(const struct caller *c)
{
	uint64_t stored = 0, failed = 0, hits = 0;

	printf("#");
	for (uint32_t k = 0; k < KINDS; k++) {
		uint64_t n = 0, longest = 0;

		for (uint32_t t = 0; t < THREADS; t++) {
			n += c[t].count[k];
			longest = c[t].longest[k] > longest ? c[t].longest[k] : longest;
		}
		printf("%s %llu x %s up to %.3f s", k ? "," : "", (unsigned long long)n, kind_name[k], (double)longest / 1e9);
	}
	for (uint32_t t = 0; t < THREADS; t++) {
		stored += c[t].stored;
		failed += c[t].failed;
		hits += c[t].hits;
	}
	printf("; %llu blocks stored, %llu without a place, %llu loaded\n", (unsigned long long)stored, (unsigned long long)failed,
	       (unsigned long long)hits);
}

static void no_operation_of_a_storm_outlives_its_deadline(void **state)
{
	uint64_t end = tn_test_now() + (tn_test_soak() ? 600 : rig_attached ? 4 : 8) * RIG_SECOND, round = 0;

	do {
		struct caller c[THREADS] = {0};
		struct tn_rng rng;
		struct storm s;

		tn_rng_seed(&rng, tn_test_seed() + round);
		printf("# round %llu, TN_SEED=%llu:\n", (unsigned long long)round, (unsigned long long)(tn_test_seed() + round));
		rig_init(&s.rig, 4u << 20, 0, head_dim[0]);
		random_plan(&s, &rng);
		open_sizes(&s, &rng);
		for (uint32_t t = 0; t < THREADS; t++) {
			c[t].s = &s;
			c[t].first_page = t * OP_PAGES;
			tn_rng_seed(&c[t].rng, tn_rng_next(&rng));
		}
		run_callers(&s, c, tn_test_soak() ? 10 : 2);
		report(c);
		if (tn_rng_below(&rng, 2))
			each_size_finds_a_place(&s, c);
		close_sizes(&s); /* every other time with leases held */
		rig_tear_down(&s.rig);
		round++;
	} while (tn_test_now() < end);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_operation_of_a_storm_outlives_its_deadline),
	};

	return cmocka_run_group_tests_name("cache-storm", tests, NULL, NULL);
}
