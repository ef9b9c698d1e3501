/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caller threads do everything at once to a cache much smaller than what they save, on real files: saves and their
 * aborts, loads with deadlines and cancels, waiting by eventfd, leases while blocks are evicted, drops and
 * flushes; then the same with reads that fail, come late, short, corrupt or out of order. Every byte of every load is
 * checked, and nothing may take longer than a minute.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "cache_rig.h"
#include "ioengine/faulty_rig.h"

#define THREADS 4u
#define OP_BLOCKS 12u
#define CHAINS 30u
#define CHAIN_BLOCKS 16u
#define LIMIT_NS (60 * RIG_SECOND)

struct caller {
	struct rig *r;
	struct tn_rng rng;
	uint32_t first_page; /* pages of its own: OP_BLOCKS * RIG_PAGES */
	uint64_t until_ns, most_ops;
	bool faulty;
	uint64_t saves, hits, ops;
	char error[640];
};

static uint32_t below(struct caller *c, uint32_t n)
{
	return tn_rng_below(&c->rng, n);
}

static void wrong(struct caller *c, const char *what, int rc)
{
	if (!c->error[0])
		snprintf(c->error, sizeof(c->error), "%s: %d: %s", what, rc, tn_error_last()->text);
}

static uint32_t pick(struct caller *c, struct tn_key *keys, uint64_t *first)
{
	uint32_t n = 1 + below(c, OP_BLOCKS);

	*first = 1 + below(c, CHAINS) * CHAIN_BLOCKS;
	rig_keys(*first, n, keys);
	return n;
}

static void pages_of(const struct caller *c, uint32_t *pages)
{
	for (uint32_t i = 0; i < OP_BLOCKS * RIG_PAGES; i++)
		pages[i] = c->first_page + (i * 5) % (OP_BLOCKS * RIG_PAGES); /* 5 and 48 have no common factor */
}

static void contents(struct caller *c, uint64_t id, uint32_t layer, const uint32_t *pages, bool check)
{
	for (uint32_t k = 0; k < RIG_PAGES; k++) {
		if (!check)
			rig_fill(c->r->s, id, layer, k, pages[k]);
		else if (!rig_holds(c->r->s, id, layer, k, pages[k]))
			wrong(c, "WRONG BYTES", (int)id);
	}
}

static void save(struct caller *c)
{
	struct tn_key keys[OP_BLOCKS];
	uint32_t pages[OP_BLOCKS * RIG_PAGES], layers = RIG_LAYERS;
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_save *save;
	uint64_t first, limit = tn_test_now() + LIMIT_NS;
	uint32_t n = pick(c, keys, &first);
	bool abort = below(c, 8) == 0;
	int rc;

	pages_of(c, pages);
	rc = tn_save_begin(c->r->s->space, c->r->s->pool, keys, n, pages, NULL, &save);
	if (rc == -EAGAIN)
		return;
	if (rc) {
		wrong(c, "save_begin", rc);
		return;
	}
	if (abort)
		layers = below(c, RIG_LAYERS + 1);
	for (uint32_t l = 0; l < layers; l++) {
		for (uint32_t i = 0; i < n; i++)
			contents(c, first + i, l, pages + i * RIG_PAGES, false);
		if ((rc = tn_save_layer(save, l, NULL, 0)) != 0)
			wrong(c, "save_layer", rc);
	}
	rc = abort ? tn_save_abort(save) : tn_save_commit(save);
	if (rc)
		wrong(c, "save_commit", rc);
	while ((rc = tn_save_end(save, tn_test_now() + below(c, 3) * 1000000u, &res)) == -ETIMEDOUT)
		if (tn_test_now() > limit) {
			wrong(c, "HANG: save_end", rc);
			return;
		}
	if (rc)
		wrong(c, "save_end", rc);
	c->saves += abort ? 0 : res.stored;
}

/* Some wait by deadline, some by poll and the eventfd. */
static int wait_layer(struct caller *c, struct tn_load *load, uint32_t layer, bool by_eventfd)
{
	uint64_t limit = tn_test_now() + LIMIT_NS;
	int fd = tn_cache_eventfd(c->r->cache), rc;

	while (tn_test_now() < limit) {
		struct pollfd p = {fd, POLLIN, 0};
		uint64_t count;

		rc = by_eventfd ? tn_load_poll(load, layer) : tn_load_wait(load, layer, limit);
		if (rc != -EAGAIN)
			return rc;
		if (poll(&p, 1, 2) > 0) /* another thread may take the signal that was for this one */
			(void)!read(fd, &count, sizeof(count));
	}
	return -ETIMEDOUT;
}

static void load(struct caller *c)
{
	struct tn_key keys[OP_BLOCKS];
	uint32_t pages[OP_BLOCKS * RIG_PAGES];
	struct tn_load_opts o;
	struct tn_load *load;
	uint64_t first;
	uint32_t n = pick(c, keys, &first), cancel_at = below(c, 6) ? UINT32_MAX : below(c, RIG_LAYERS);
	bool by_eventfd = below(c, 2);
	int rc = 0;

	pages_of(c, pages);
	tn_load_opts_init(&o);
	o.input_tokens = below(c, 2) * below(c, 4096);
	if (below(c, 4) == 0)
		o.deadline_ns = tn_test_now() + below(c, 2000000);
	o.priority = (int32_t)below(c, 3);
	rc = tn_load_begin(c->r->s->space, c->r->s->pool, keys, n, pages, &o, &load);
	if (rc == -EAGAIN)
		return;
	if (rc) {
		wrong(c, "load_begin", rc);
		return;
	}
	for (uint32_t l = 0; l < RIG_LAYERS; l++) {
		if (l == cancel_at)
			tn_load_cancel(load);
		rc = wait_layer(c, load, l, by_eventfd);
		if (rc < 0)
			wrong(c, "load_wait", rc);
		for (int i = 0; i < rc; i++)
			contents(c, first + (uint64_t)i, l, pages + (uint32_t)i * RIG_PAGES, true);
	}
	c->hits += rc > 0 ? (uint64_t)rc : 0;
	rc = tn_load_end(load, tn_test_now() + LIMIT_NS, NULL);
	if (rc)
		wrong(c, "load_end", rc);
}

static void lease(struct caller *c)
{
	struct tn_key keys[OP_BLOCKS];
	struct tn_match m = {.size = sizeof(m)};
	uint64_t first;
	uint32_t n = pick(c, keys, &first);
	int rc = tn_match(c->r->s->space, keys, n, NULL, &m, TN_MATCH_PIN);

	if (rc < 0 && rc != -EAGAIN)
		wrong(c, "match", rc);
	if (rc <= 0 || !m.pin)
		return;
	if (below(c, 2))
		usleep(below(c, 500));
	rc = tn_unpin(c->r->s->space, m.pin);
	if (rc)
		wrong(c, "unpin", rc);
}

static void other(struct caller *c)
{
	struct tn_stats st = {0};
	struct tn_key keys[OP_BLOCKS];
	uint64_t first;
	uint32_t n = pick(c, keys, &first);
	int rc = 0;

	switch (below(c, 4)) {
	case 0:
		rc = tn_flush(c->r->cache, tn_test_now() + (below(c, 2) ? LIMIT_NS : below(c, 1000000)));
		rc = rc == -ETIMEDOUT || rc == -ENOSPC ? 0 : rc;
		break;
	case 1:
		rc = tn_drop(c->r->s->space, keys, 1);
		break;
	case 2:
		rc = tn_prefetch(c->r->s->space, keys, n, tn_test_now() + below(c, 5000000));
		rc = rc == -EAGAIN ? 0 : rc;
		break;
	default:
		rc = tn_stats_take(c->r->cache, &st);
	}
	if (rc < 0 && !c->faulty)
		wrong(c, "flush, drop, prefetch or stats", rc);
}

/* On a busy machine until it has saved and loaded something, too. */
static bool goes_on(const struct caller *c)
{
	uint64_t now = tn_test_now();

	return now < c->until_ns || ((c->saves == 0 || c->hits == 0) && now < c->until_ns + LIMIT_NS);
}

static void *caller_main(void *arg)
{
	struct caller *c = arg;

	for (; goes_on(c) && c->ops < c->most_ops && !c->error[0]; c->ops++) {
		uint32_t what = below(c, 100);

		if (what < 35)
			save(c);
		else if (what < 75)
			load(c);
		else if (what < 95)
			lease(c);
		else
			other(c);
	}
	return NULL;
}

/* The operations that were done. */
static uint64_t run_callers(struct rig *r, uint64_t seconds, uint64_t most_ops, bool faulty)
{
	struct caller c[THREADS];
	pthread_t thread[THREADS];
	uint64_t hits = 0, saves = 0, ops = 0;
	struct tn_stats st;

	for (uint32_t t = 0; t < THREADS; t++) {
		c[t] = (struct caller){.r = r, .first_page = t * OP_BLOCKS * RIG_PAGES, .most_ops = most_ops, .faulty = faulty,
				       .until_ns = tn_test_now() + seconds * RIG_SECOND};
		tn_rng_seed(&c[t].rng, tn_test_seed() + t);
		assert_int_equal(pthread_create(&thread[t], NULL, caller_main, &c[t]), 0);
	}
	for (uint32_t t = 0; t < THREADS; t++)
		pthread_join(thread[t], NULL);
	for (uint32_t t = 0; t < THREADS; t++) {
		if (c[t].error[0])
			fail_msg("thread %u: %s", t, c[t].error);
		hits += c[t].hits;
		saves += c[t].saves;
		ops += c[t].ops;
	}
	st = rig_stats(r);
	printf("# %llu operations: %llu blocks saved, %llu loaded, %llu evicted, %llu joined, %llu corrupt, %llu errors\n",
	       (unsigned long long)ops, (unsigned long long)saves, (unsigned long long)hits,
	       (unsigned long long)st.evicted_blocks[TN_TIER_DISK], (unsigned long long)st.joined_blocks,
	       (unsigned long long)st.corrupt_objects, (unsigned long long)st.io_errors);
	assert_true(saves > 0 && hits > 0);
	if (!faulty)
		assert_int_equal(st.corrupt_objects, 0);
	return ops;
}

static void stress(uint64_t host_bytes, uint32_t head_dim, const char *scheduler, uint32_t executors)
{
	uint64_t give_up = tn_test_now() + 60 * RIG_SECOND;
	struct rig r;

	rig_init(&r, 16u << 20, host_bytes, head_dim);
	r.o.cache.scheduler = scheduler;
	r.o.cache.executors = executors;
	assert_int_equal(rig_open(&r), 0);
	/* A sanitizer on a busy machine takes more than one turn to fill the store. */
	do
		run_callers(&r, tn_test_soak() ? 150 : rig_attached ? 1 : 4, UINT64_MAX, false);
	while (rig_stats(&r).evicted_blocks[TN_TIER_DISK] == 0 && tn_test_now() < give_up);
	assert_true(rig_stats(&r).evicted_blocks[TN_TIER_DISK] > 0);
	rig_tear_down(&r);
}

/*
 * Failed blocks cost slots for good, so a store lasts for a number of operations; then comes the next one. The faults that make the device
 * one that fails are over early, so that it mostly takes writes again when the cache closes; on a busy machine, where fewer requests go by, it may
 * still be read-only, and then close says -EIO.
 */
static void storm(uint32_t executors, uint32_t head_dim)
{
	static const struct tn_fault reads[] = {
		{.kind = TN_FAULT_CORRUPT, .op = TN_IO_READ, .from = 400, .count = UINT64_MAX, .percent = 1},
		{.kind = TN_FAULT_EIO, .op = TN_IO_READ, .from = 400, .count = 20, .percent = 20},
		{.kind = TN_FAULT_SHORT, .op = TN_IO_READ, .from = 600, .count = 50, .percent = 10},
		{.kind = TN_FAULT_LATE, .op = TN_IO_READ, .count = UINT64_MAX, .percent = 3, .delay_ns = 3000000}};
	uint64_t ops = 0, wanted = tn_test_soak() ? 1000000 : 1;
	struct tn_io_faulty_opts o = {.faults = reads, .fault_count = 4, .reorder = true, .submit_eagain_percent = 5};

	for (uint64_t round = 0; ops < wanted; round++) {
		struct rig r;
		bool fails;
		int rc;

		o.seed = tn_test_seed() + round;
		rig_init(&r, 16u << 20, round % 2 ? 2u << 20 : 0, head_dim);
		r.o.cache.executors = executors;
		r.o.faulty = true;
		r.o.faults = &o;
		rig_must_open(&r);
		ops += run_callers(&r, tn_test_soak() ? 120 : 4, 10000, true);
		fails = rig_device(&r, 0).health != TN_HEALTHY;
		rc = rig_close(&r);
		if (rc && !(fails && rc == -EIO))
			rig_fail(&r, "close: %d: %s", rc, tn_error_last()->text);
		rig_tear_down(&r);
	}
}

static void threads_on_a_small_disk_get_right_bytes_or_none(void **state)
{
	stress(0, 64, "slack", 0);
}

static void threads_without_a_scheduler_get_right_bytes_or_none(void **state)
{
	stress(1u << 20, 64, "none", 0);
}

static void threads_over_a_host_tier_get_right_bytes_or_none(void **state)
{
	stress(4u << 20, 64, "slack", 0);
}

static void threads_with_bounced_pages_get_right_bytes_or_none(void **state)
{
	stress(2u << 20, 24, "slack", 0);
}

static void threads_with_executors_get_right_bytes_or_none(void **state)
{
	stress(1u << 20, 64, "slack", 2);
	stress(0, 24, "none", 1);
}

static void reads_that_fail_or_are_late_give_right_bytes_or_none(void **state)
{
	storm(0, 64);
}

static void executors_whose_reads_fail_or_are_late_give_right_bytes_or_none(void **state)
{
	storm(2, 24);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(threads_on_a_small_disk_get_right_bytes_or_none),
		cmocka_unit_test(threads_without_a_scheduler_get_right_bytes_or_none),
		cmocka_unit_test(threads_over_a_host_tier_get_right_bytes_or_none),
		cmocka_unit_test(threads_with_bounced_pages_get_right_bytes_or_none),
		RIG_TEST(threads_with_executors_get_right_bytes_or_none, rig_has_executors() ? NULL : RIG_NO_EXECUTORS),
		RIG_FAULTY_TEST(reads_that_fail_or_are_late_give_right_bytes_or_none),
		RIG_FAULTY_TEST(executors_whose_reads_fail_or_are_late_give_right_bytes_or_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
