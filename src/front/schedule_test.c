/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler inside the cache: what it lets go on a described drive, what it says, learns and plans. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "front/front.h"
#include "cache_rig.h"
#include "lab/paced.h"
#include "lab/paced_cache.h"

#define MS 1000000ull
#define STRETCH 16u

/* A pair of D7-PS1010, as share/devices has it, with 1/16 of its speed: blocks of 128 KiB, 4 layers. */
static const char drive[] = "tenuto-mix 1\nsource a test\nmeasured_s 0\nread_bps 2900000000\nwrite_bps 1200000000\n"
			    "mixed_bps 1200000000\nread_latency_ns 60000\nwrite_latency_ns 10000\n";

struct log {
	struct tn_decision d[4096];
	uint32_t n; /* shared */
};

static void remember(void *arg, const struct tn_decision *d)
{
	struct log *log = arg;

	if (log->n < 4096)
		log->d[log->n] = *d;
	__atomic_store_n(&log->n, log->n + (log->n < 4096), __ATOMIC_RELEASE);
}

static struct tn_paced_drive paced_as;

static int open_paced(const struct tn_cache_opts *opts, struct tn_cache **out)
{
	return tn_paced_cache_open(opts, &paced_as, out);
}

static void reopen(struct rig *r, struct log *log, const char *scheduler, bool paced)
{
	static char path[512];
	FILE *f;

	assert_int_equal(rig_close(r), 0);
	snprintf(path, sizeof(path), "%s/drive.model", r->dir);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(drive, f);
	fclose(f);
	r->o.cache.scheduler = scheduler;
	r->o.cache.explain = log ? remember : NULL;
	r->o.cache.explain_arg = log;
	paced_as = (struct tn_paced_drive){path, STRETCH};
	r->o.open = paced ? open_paced : NULL;
	rig_must_open(r);
}

static uint32_t count(const struct log *log, uint32_t chosen)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < __atomic_load_n(&log->n, __ATOMIC_ACQUIRE); i++)
		n += log->d[i].chosen == chosen;
	return n;
}

static void every_read_and_write_is_explained(void **state)
{
	static struct log log, none;
	const uint64_t block = RIG_LAYERS * RIG_PAGES * 8192;
	uint64_t read = 0, written = 0;
	uint32_t layer = 0, n;
	struct rig r;

	memset(&log, 0, sizeof(log));
	memset(&none, 0, sizeof(none));
	rig_set_up(&r, 64u << 20, 0, 64);
	reopen(&r, &log, "slack", false);
	assert_int_equal(rig_save(r.s, 1, 16, 0).stored, 16);
	assert_int_equal(rig_load(r.s, 1, 16), 16);
	rig_stats(&r); /* the owner has made another turn */
	rig_stats(&r);
	n = __atomic_load_n(&log.n, __ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < n; i++) {
		const struct tn_decision *d = &log.d[i];

		read += d->chosen == TN_CHOSE_READ ? d->bytes : 0;
		written += d->chosen == TN_CHOSE_WRITE ? d->bytes : 0;
		if (d->chosen == TN_CHOSE_READ) {
			assert_true(d->load == 1 && d->layer >= layer && d->device == 0 && d->time_ns > 0);
			layer = d->layer;
		}
	}
	assert_int_equal(read, 16 * block);
	/* And 1 MiB each when segments are prepared, then a header that says so. */
	assert_true(written >= 16 * (block + 4096));
	written -= 16 * (block + 4096);
	assert_int_equal(written % 4096, 0);
	assert_true(written % (1u << 20) / 4096 <= written >> 20);
	reopen(&r, &none, "none", false);
	assert_int_equal(rig_load(r.s, 1, 16), 16);
	assert_int_equal(none.n, 0);
	r.o.cache.scheduler = "best";
	assert_int_equal(rig_close(&r), 0);
	assert_int_equal(rig_open(&r), -EINVAL);
	r.o.cache.scheduler = "slack";
	assert_int_equal(rig_open(&r), 0);
	rig_tear_down(&r);
}

/* Of those that are so many objects: preparation writes 1 MiB at a time. */
static uint64_t longest_write(const struct log *log, uint64_t object)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < __atomic_load_n(&log->n, __ATOMIC_ACQUIRE); i++)
		if (log->d[i].chosen == TN_CHOSE_WRITE && log->d[i].bytes > most && log->d[i].bytes % object == 0)
			most = log->d[i].bytes;
	return most;
}

/* Objects of 96 KiB: chunks of one, two and one. */
static void a_save_without_loads_writes_more_than_a_chunk_at_once(void **state)
{
	static struct log log;
	const uint64_t object = RIG_PAGES * 24576;
	struct rig r;

	memset(&log, 0, sizeof(log));
	rig_set_up(&r, 64u << 20, 0, 192);
	reopen(&r, &log, "slack", false);
	assert_int_equal(rig_save(r.s, 1, 16, 0).stored, 16);
	assert_in_range(longest_write(&log, object), 3 * object, RIG_LAYERS * object);
	assert_int_equal(rig_load(r.s, 1, 16), 16);
	rig_tear_down(&r);
}

/* ---- writes beside reads ----------------------------------------------------------------------------- */

static struct tn_paced *paced; /* of the rig that is open */

/* The disk of a simulated rig gets the time of the drive, and the scheduler knows the drive. */
static void pace(struct rig *r)
{
	struct tn_paced_opts o = {.stretch = STRETCH, .alloc = &tn_alloc_system, .clock = tn_simdisk_clock(r->disk), .log = &r->cache->log};
	struct tn_mix mix;

	assert_int_equal(tn_mix_parse(drive, strlen(drive), "drive", &mix), 0);
	o.mix = &mix;
	assert_int_equal(tn_paced_create(&o, &paced), 0);
	assert_int_equal(tn_io_paced_create(r->io, 128, paced, &r->io), 0);
	mix.read_bps /= STRETCH;
	mix.write_bps /= STRETCH;
	mix.mixed_bps /= STRETCH;
	mix.read_latency_ns *= STRETCH;
	mix.write_latency_ns *= STRETCH;
	r->cache->engines.mix[0] = mix;
	r->cache->tiers.slow_read_ns *= STRETCH;
}

static struct rig *on_simulated_drive(const char *scheduler, uint64_t host_bytes, uint64_t backlog, struct log *log)
{
	struct rig_opts o = rig_simulated_opts();

	o.cache.disk_bytes = 256u << 20;
	o.segment_bytes = 4u << 20;
	o.cache.max_blocks = 16384;
	o.cache.host_bytes = host_bytes;
	o.cache.scheduler = scheduler;
	o.cache.write_backlog_bytes = backlog;
	o.cache.explain = log ? remember : NULL;
	o.cache.explain_arg = log;
	o.spaces = 1;
	o.layers = RIG_LAYERS;
	o.pages_per_block = RIG_PAGES;
	o.heads = 2;
	o.head_dim = 64;
	o.npages = RIG_POOL_PAGES;
	o.read_ns = o.write_ns = o.sync_ns = RIG_US;
	o.prepare = pace;
	return rig_start(&o);
}

static void tear_down(struct rig *r)
{
	rig_tear_down(r);
	tn_paced_destroy(paced);
}

struct writer {
	struct tn_save *save[2];
	uint64_t id, blocks;
};

/* Keeps two saves under way, of blocks that are new each time. */
static void write_on(struct rig *r, struct writer *w)
{
	for (uint32_t k = 0; k < 2; k++) {
		struct tn_save_result res = {.size = sizeof(res)};
		int rc = w->save[k] ? tn_save_end(w->save[k], 1, &res) : 0;

		if (rc == -ETIMEDOUT)
			continue;
		assert_int_equal(rc, 0);
		w->blocks += w->save[k] ? res.stored : 0;
		w->save[k] = rig_save_begin(r->s, 1000 + w->id, 16, 896 + k * 16 * RIG_PAGES, NULL);
		rig_save_give(r->s, w->save[k]);
		w->id += 16;
	}
}

static void step(struct rig *r, struct writer *w, bool writes)
{
	if (writes)
		write_on(r, w);
	rig_turn(r, MS);
}

#define RESTORES 60u

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Restores of 32 blocks (4 MiB: 23 ms at this speed), one after the other: the median, and the blocks written. */
static double median_restore_ms(const char *scheduler, bool writes, uint64_t *blocks)
{
	struct rig *r = on_simulated_drive(scheduler, 0, 0, NULL);
	struct writer w = {.id = 0};
	uint64_t took[RESTORES];

	assert_int_equal(rig_save(r->s, 1, 32, 0).stored, 32);
	for (uint32_t k = 0; k < RESTORES; k++) {
		uint64_t from = rig_now(r);
		struct tn_load *load = rig_load_begin(r->s, 1, 32, 512, NULL);

		while (tn_load_poll(load, RIG_LAYERS - 1) == -EAGAIN)
			step(r, &w, writes);
		took[k] = rig_now(r) - from;
		assert_int_equal(tn_load_poll(load, RIG_LAYERS - 1), 32);
		rig_load_end(r->s, load);
		rig_check_blocks(r->s, 1, 32, 512);
		for (from = rig_now(r); rig_now(r) < from + 10 * MS;)
			step(r, &w, writes);
	}
	for (uint32_t k = 0; k < 2; k++)
		if (w.save[k])
			rig_save_end(r->s, w.save[k]);
	*blocks = w.blocks;
	tear_down(r);
	qsort(took, RESTORES, sizeof(took[0]), by_value);
	return (double)took[RESTORES / 2] / 1e6;
}

static void a_write_load_slows_restores_only_without_the_scheduler(void **state)
{
	uint64_t blocks[3];
	double alone = median_restore_ms("slack", false, &blocks[0]);
	double with = median_restore_ms("slack", true, &blocks[1]);
	double mixed = median_restore_ms("none", true, &blocks[2]);

	print_message("# median restore: %.1f ms alone, %.1f ms with writes (%llu blocks), %.1f ms unscheduled (%llu blocks)\n",
		      alone, with, (unsigned long long)blocks[1], mixed, (unsigned long long)blocks[2]);
	assert_true(blocks[1] > 0 && blocks[2] > 0);
	assert_true(with < 1.5 * alone && mixed > 3 * alone);
}

static void save_beyond_the_backlog(uint64_t host_bytes)
{
	static struct log log;
	uint32_t pages[16 * RIG_PAGES];
	struct tn_key keys[16];
	struct tn_save *save[8];
	uint32_t n = 0;
	struct rig *r;
	int rc = 0;

	memset(&log, 0, sizeof(log));
	r = on_simulated_drive("slack", host_bytes, 4u << 20, &log); /* two saves of 2 MiB */
	rig_save(r->s, 1, 16, 0);
	for (; n < 8; n++) {
		rig_keys(100 + n * 16, 16, keys);
		rig_pages(r->s, 128 + n * 16 * RIG_PAGES, 16, pages);
		rc = tn_save_begin(r->s->space, r->s->pool, keys, 16, pages, NULL, &save[n]);
		if (rc)
			break;
		rig_save_give(r->s, save[n]);
		rig_run(r, 10 * RIG_US); /* the core has seen it, but the device has not caught up */
	}
	assert_int_equal(rc, -EAGAIN);
	assert_non_null(strstr(tn_error_last()->text, "backlog"));
	assert_int_equal(rig_load(r->s, 1, 16), 16);
	for (uint32_t k = 0; k < n; k++)
		rig_save_end(r->s, save[k]);
	assert_int_equal(count(&log, TN_CHOSE_REFUSE), 1);
	assert_int_equal(rig_save(r->s, 900, 1, 0).stored, 1); /* and later it is let in */
	tear_down(r);
}

static void a_save_beyond_the_backlog_is_refused_and_reads_are_not(void **state)
{
	save_beyond_the_backlog(0);
}

static void a_save_that_host_memory_has_no_room_for_counts_to_the_backlog(void **state)
{
	save_beyond_the_backlog(1u << 20);
}

/* Holds the owner until it is told to go on. */
static int hold_owner(struct tn_cache *cache, void *arg)
{
	uint32_t *word = arg;

	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != 2)
		sched_yield();
	return 0;
}

struct hold {
	struct tn_cache *cache;
	uint32_t word; /* shared: 1 the owner is held, 2 it may go on */
};

static void *hold(void *arg)
{
	struct hold *h = arg;

	tn_owner_call(h->cache, hold_owner, &h->word);
	return NULL;
}

/* As many saves of 16 blocks as are let in between two steps of the owner; some are not handed over all the same. */
static uint32_t save_in_one_turn(struct rig *r, struct tn_save **save, uint32_t most)
{
	struct hold h = {.cache = rig_core(r)};
	static uint32_t pages[257 * RIG_PAGES];
	static struct tn_key keys[257];
	uint32_t n = 0;
	pthread_t thread;
	int rc = 0;

	assert_int_equal(pthread_create(&thread, NULL, hold, &h), 0);
	rig_until(r, __atomic_load_n(&h.word, __ATOMIC_ACQUIRE) != 0);
	for (uint32_t i = 0; i < 16; i++)
		keys[i] = rig_key(5000);
	for (uint32_t i = 0; i < 16 * RIG_PAGES; i++)
		pages[i] = 1u << 30;
	for (uint32_t k = 0; k < 100; k++) /* pages that there are not */
		assert_int_equal(tn_save_begin(r->s->space, r->s->pool, keys, 16, pages, NULL, &save[0]), -EINVAL);
	while (n < most && rc == 0) {
		rig_keys(100 + n * 16, 16, keys);
		rig_pages(r->s, 128 + n % 4 * 16 * RIG_PAGES, 16, pages);
		rc = tn_save_begin(r->s->space, r->s->pool, keys, 16, pages, NULL, &save[n]);
		n += rc == 0;
	}
	assert_int_equal(rc, n < most ? -EAGAIN : 0);
	rig_keys(1, 257, keys);
	if (n < most) /* what would be refused later, too, is not told to try again */
		assert_int_equal(tn_save_begin(r->s->space, r->s->pool, keys, 257, pages, NULL, &save[n]), -E2BIG);
	__atomic_store_n(&h.word, 2, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	return n;
}

static void end_saves(struct rig *r, struct tn_save **save, uint32_t n, bool commit)
{
	for (uint32_t k = 0; k < n; k++) {
		if (commit)
			rig_save_give(r->s, save[k]);
		else
			assert_int_equal(tn_save_abort(save[k]), 0);
	}
	for (uint32_t k = 0; k < n; k++)
		rig_save_end(r->s, save[k]);
}

static void saves_begun_in_one_turn_do_not_exceed_the_backlog(void **state)
{
	struct tn_save *save[16];
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	r.o.cache.write_backlog_bytes = 7u << 20; /* three saves of 2 MiB, and not a fourth */
	reopen(&r, NULL, "slack", false);
	for (int round = 0; round < 3; round++) { /* stored, there already, aborted: all of it is given back */
		assert_int_equal(save_in_one_turn(&r, save, 16), 3);
		end_saves(&r, save, 3, round < 2);
	}
	rig_tear_down(&r);
	rig_set_up(&r, 64u << 20, 4u << 20, 64);
	r.o.cache.write_backlog_bytes = 3u << 20; /* and host memory has room for two */
	reopen(&r, NULL, "slack", false);
	assert_int_equal(save_in_one_turn(&r, save, 16), 3);
	end_saves(&r, save, 3, true);
	rig_tear_down(&r);
	rig_set_up(&r, 64u << 20, 4u << 20, 64);
	r.o.cache.write_backlog_bytes = 3u << 20;
	reopen(&r, NULL, "slack", false);
	__atomic_store_n(&r.s->space->quota.bytes[TN_TIER_HOST], 0, __ATOMIC_RELAXED); /* but not for this space's */
	assert_int_equal(save_in_one_turn(&r, save, 16), 1);
	end_saves(&r, save, 1, true);
	rig_tear_down(&r);
	rig_set_up(&r, 64u << 20, 0, 64);
	r.o.cache.write_backlog_bytes = 1; /* one is always let in */
	reopen(&r, NULL, "slack", false);
	assert_int_equal(save_in_one_turn(&r, save, 16), 1);
	end_saves(&r, save, 1, true);
	r.o.cache.write_backlog_bytes = UINT64_MAX;
	reopen(&r, NULL, "slack", false);
	assert_int_equal(save_in_one_turn(&r, save, 16), 16);
	end_saves(&r, save, 16, true);
	rig_tear_down(&r);
}

/* ---- where the engine is ------------------------------------------------------------------------------ */

struct engine {
	struct tn_load_op load;
	struct tn_front_op front;
	struct tn_space space;
	struct tn_cache cache;
	struct tn_session session;
	uint64_t now_ns;
	uint32_t stop; /* shared */
	uint32_t layer;
};

static uint64_t engine_now(void *arg)
{
	return ((struct engine *)arg)->now_ns;
}

/* The time tells the layer: 1000 ns each. */
static void *wait_for_layers(void *arg)
{
	struct engine *e = arg;

	while (!__atomic_load_n(&e->stop, __ATOMIC_ACQUIRE)) {
		e->now_ns = ++e->layer * 1000ull + 1;
		tn_hint_wait_begins(&e->front, e->layer, e->now_ns);
		e->now_ns++;
		tn_hint_wait_ends(&e->front, e->layer, e->now_ns);
	}
	return NULL;
}

static void no_layer_is_taken_for_reached_at_the_time_of_another(void **state)
{
	const struct tn_region_counts counts = {.ops = 1, .blocks = 1, .pages = 1, .layers = 1, .chunks = 1};
	struct engine *e = calloc(1, sizeof(*e));
	uint64_t until = tn_test_now() + 200 * MS, deadline = tn_test_deadline();
	struct tn_face_asked *asked;
	uint32_t last = 0;
	pthread_t thread;

	e->cache.clock = (struct tn_clock){engine_now, NULL, e};
	e->cache.schedule = (struct tn_schedule *)e; /* there is one; nothing is asked of it */
	assert_int_equal(tn_region_create(&counts, &tn_alloc_system, &e->cache.region), 0);
	tn_region_core(&e->cache.region)->scheduled = 1;
	e->space.shape.layers = UINT32_MAX;
	e->session.region = e->cache.region;
	e->load.r.op.session = &e->session;
	e->load.r.op.cache = e->front.cache = &e->cache;
	e->front.space = &e->space;
	tn_op_set_space(&e->load.r.op, &e->space);
	asked = tn_face_asked(&e->cache.region, 0);
	assert_int_equal(pthread_create(&thread, NULL, wait_for_layers, e), 0);
	/* At least so long, and on a busy machine until the other thread has had its turns, too. */
	while (tn_test_now() < until || (last == 0 && tn_test_now() < deadline)) {
		tn_schedule_load_at(&e->load.r);
		assert_int_equal(e->load.r.sched.at_layer, e->load.r.sched.at_ns / 1000);
		assert_true(e->load.r.sched.at_layer >= last);
		last = e->load.r.sched.at_layer;
	}
	__atomic_store_n(&e->stop, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	tn_schedule_load_at(&e->load.r);
	assert_int_equal(e->load.r.sched.at_layer, e->layer);
	/* As seen from between the two. */
	asked->at_ns = 0;
	asked->at_layer++;
	tn_schedule_load_at(&e->load.r);
	assert_int_equal(e->load.r.sched.at_layer, e->layer);
	assert_int_equal(e->load.r.sched.at_ns, e->layer * 1000ull + 2);
	tn_region_destroy(&e->cache.region, &tn_alloc_system);
	free(e);
}

/* ---- slack --------------------------------------------------------------------------------------------- */

static struct tn_slack *table(const char *model, uint32_t layers, uint64_t window_ns)
{
	static const uint64_t inputs[] = {1, 4096}, prefixes[] = {0, 65536};
	struct tn_slack_desc d;
	struct tn_slack *t;

	tn_slack_desc_init(&d);
	d.model = model;
	d.layers = layers;
	d.inputs = inputs;
	d.prefixes = prefixes;
	d.ninputs = d.nprefixes = 2;
	assert_int_equal(tn_slack_create(&d, &t), 0);
	for (uint32_t k = 0; k < 4 && window_ns; k++)
		assert_int_equal(tn_slack_set(t, k & 1, k >> 1, TN_SLACK_ALL_LAYERS,
					      k & 1 ? window_ns : 1), 0);
	return t;
}

static void a_table_of_another_model_or_with_gaps_is_refused(void **state)
{
	struct {
		const char *model, *says;
		uint32_t layers;
		uint64_t ns;
		int rc;
	} given[] = {
		{"other", "other", RIG_LAYERS, 5, -EINVAL},
		{"test", "layers", RIG_LAYERS + 1, 5, -EINVAL},
		{"test", "gaps", RIG_LAYERS, 0, -EINVAL},
		{"test", "", RIG_LAYERS, 5, 0},
		{"-", "", RIG_LAYERS, 5, 0},
	};
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++) {
		struct tn_slack *t = table(given[i].model, given[i].layers, given[i].ns);

		assert_int_equal(tn_space_slack(r.s->space, t), given[i].rc);
		if (given[i].rc)
			assert_non_null(strstr(tn_error_last()->text, given[i].says));
		tn_slack_destroy(t);
	}
	assert_int_equal(tn_space_slack(NULL, NULL), -EINVAL);
	assert_int_equal(tn_phase(r.cache, (enum tn_phase)7, 0), -EINVAL);
	assert_int_equal(tn_phase(r.cache, TN_PHASE_DECODE, 0), 0);
	assert_int_equal(tn_phase(r.cache, TN_PHASE_PREFILL, UINT64_MAX), 0);
	rig_tear_down(&r);
}

/* A request as an engine runs it: waits for a layer, computes it for so long. */
static void run_request(struct rig *r, uint64_t first, uint32_t n, uint64_t input, uint64_t compute_ns)
{
	struct tn_load_opts o;
	struct tn_load *load;

	tn_load_opts_init(&o);
	o.input_tokens = input;
	load = rig_load_begin(r->s, first, n, 0, &o);
	for (uint32_t l = 0; l < r->s->g.layers; l++) {
		assert_int_equal(rig_load_wait(r->s, load, l), n);
		assert_int_equal(tn_load_wait(load, l, rig_deadline(r)), n); /* it is there: the engine is at this layer */
		rig_run(r, compute_ns);
	}
	rig_load_end(r->s, load);
}

/* The most IOCBs that a load has out once its first layer is there, with that bound in the space's table; 0: none. */
static uint32_t iocbs_out(uint32_t bound, uint32_t ndirs)
{
	struct tn_slack_cell cell = {.size = sizeof(cell), .window_ns = MS, .most_iocbs = bound};
	struct rig_opts o = rig_simulated_opts();
	struct tn_slack *t = table("test", 8, MS);
	struct tn_load_opts lo;
	struct tn_load *load;
	uint32_t most = 0;
	struct rig *r;

	o.layers = 8;
	o.pages_per_block = RIG_BLOCK_PAGES;
	o.heads = 8;
	o.head_dim = 128; /* 1 MiB per object: each layer is a chunk */
	o.cache.disk_bytes = 256u << 20;
	o.cache.ndirs = ndirs;
	o.segment_bytes = 16u << 20;
	o.read_ns = 100 * RIG_US;
	r = rig_start(&o);
	for (uint32_t k = 0; k < 4; k++)
		assert_int_equal(tn_slack_set_cell(t, k & 1, k >> 1, TN_SLACK_ALL_LAYERS, &cell), 0);
	assert_int_equal(tn_space_slack(r->s->space, t), 0);
	tn_slack_destroy(t);
	assert_int_equal(rig_save(r->s, 1, 4, 0).stored, 4);
	tn_load_opts_init(&lo);
	lo.input_tokens = 4096;
	load = rig_load_begin(r->s, 1, 4, 0, &lo);
	while (tn_load_poll(load, 7) == -EAGAIN) {
		rig_run(r, RIG_US);
		for (const struct tn_list *at = r->cache->loads.next; at != &r->cache->loads; at = at->next) {
			const struct tn_op *op = tn_container_of(at, struct tn_op, link);

			if (tn_load_poll(load, 0) != -EAGAIN && op->iocbs > most)
				most = op->iocbs;
		}
	}
	rig_load_end(r->s, load);
	rig_check_blocks(r->s, 1, 4, 0);
	rig_tear_down(r);
	return most;
}

static void no_more_iocbs_of_a_load_are_out_than_the_table_says(void **state)
{
	uint32_t free = iocbs_out(0, 1);

	assert_true(free > 2);
	assert_true(iocbs_out(1, 1) == 1 && iocbs_out(2, 1) == 2);
	assert_int_equal(iocbs_out(100, 1), free);
	assert_int_equal(iocbs_out(1, 2), 2); /* per device */
}

static void a_cache_without_a_table_learns_the_layers_time_from_waits(void **state)
{
	struct rig_opts o = rig_simulated_opts();
	struct tn_slack *t;
	struct rig *r;
	uint64_t ns;

	o.layers = RIG_LAYERS;
	r = rig_start(&o);
	rig_save(r->s, 1, 8, 0);
	assert_int_equal(tn_space_slack_copy(r->s->space, &t), 0);
	assert_int_equal(tn_slack_window(t, 1000, 512, 0), 0);
	tn_slack_destroy(t);
	for (int k = 0; k < 20; k++)
		run_request(r, 1, 8, 1000, 3 * MS);
	rig_run(r, RIG_SECOND);
	assert_int_equal(tn_space_slack_copy(r->s->space, &t), 0);
	ns = tn_slack_window(t, 1000, 512, 0);
	print_message("# %.2f ms learned of 3 ms\n", (double)ns / 1e6);
	assert_in_range(ns, 3 * MS * 9 / 10, 3 * MS * 11 / 10);
	tn_slack_destroy(t);
	rig_tear_down(r);
}

/* Prompts that are computed as a whole have no load, so nothing else says what they take. */
static void a_cache_learns_from_what_the_engine_says_of_computed_layers(void **state)
{
	struct rig_opts o = rig_simulated_opts();
	struct tn_space *space;
	struct tn_slack *t;
	struct rig *r;
	uint64_t ns;

	o.layers = RIG_LAYERS;
	r = rig_start(&o);
	space = r->s->space;
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_space_observe(space, 4000, 0, l, 5 * MS), 0);
	assert_int_equal(tn_space_observe(space, 4000, 0, RIG_LAYERS, 5 * MS), -EINVAL);
	assert_int_equal(tn_space_observe(space, 0, 0, 0, 5 * MS), -EINVAL);
	assert_int_equal(tn_space_observe(space, TN_SLACK_TOKENS_MAX + 1, 0, 0, 5 * MS), -EINVAL);
	assert_int_equal(tn_space_observe(space, 1, TN_SLACK_TOKENS_MAX + 1, 0, 5 * MS), -EINVAL);
	assert_int_equal(tn_space_observe(space, 4000, 0, 0, 0), 0);
	assert_int_equal(tn_space_observe(space, 4000, 0, 0, UINT64_MAX), 0); /* no layer takes that */
	rig_run(r, RIG_SECOND);
	assert_int_equal(tn_space_slack_copy(space, &t), 0);
	ns = tn_slack_window(t, 4000, 0, 1);
	assert_in_range(ns, 5 * MS * 19 / 20, 5 * MS * 21 / 20);
	tn_slack_destroy(t);
	rig_tear_down(r);
}

static void a_fast_engine_on_a_slow_disk_restores_only_a_part(void **state)
{
	struct tn_match m = {.size = sizeof(m), .blocks = 64, .tier_blocks = {[TN_TIER_DISK] = 64}};
	struct tn_plan p = {.size = sizeof(p)};
	struct tn_slack *t;
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 256); /* layers so large that not all are read as one */
	reopen(&r, NULL, "slack", true); /* 181 MB/s: 720 us per layer and block */
	assert_int_equal(tn_plan(r.s->space, &m, NULL, 64, &p), 0);
	assert_int_equal(p.restore_blocks, 64); /* nothing is known of the engine */
	assert_int_equal(p.choice.ttft_ns, 0);
	t = table("test", RIG_LAYERS, 4096 * 100000ull); /* 100 us per token: computing a block takes 6.4 ms per layer */
	assert_int_equal(tn_space_slack(r.s->space, t), 0);
	tn_slack_destroy(t);
	assert_int_equal(tn_plan(r.s->space, &m, NULL, 64, &p), 0);
	assert_int_equal(p.restore_blocks, 64);
	assert_true(p.choice.ttft_ns == p.restore_all.ttft_ns && p.choice.ttft_ns < p.recompute_all.ttft_ns);
	t = table("test", RIG_LAYERS, 4096 * 6000ull); /* 384 us per block and layer: half of what reading takes */
	assert_int_equal(tn_space_slack(r.s->space, t), 0);
	tn_slack_destroy(t);
	assert_int_equal(tn_plan(r.s->space, &m, NULL, 64, &p), 0);
	print_message("# %u blocks of 64 restored: %.2f ms; all: %.2f ms, none: %.2f ms\n", p.restore_blocks,
		      (double)p.choice.ttft_ns / 1e6, (double)p.restore_all.ttft_ns / 1e6,
		      (double)p.recompute_all.ttft_ns / 1e6);
	assert_true(p.restore_blocks > 0 && p.restore_blocks < 64 && p.restore_blocks + p.recompute_blocks == 64);
	assert_true(p.choice.ttft_ns < p.restore_all.ttft_ns && p.choice.ttft_ns < p.recompute_all.ttft_ns);
	p.size = 1;
	assert_int_equal(tn_plan(r.s->space, &m, NULL, 64, &p), -EINVAL);
	rig_tear_down(&r);
}

/* Of 64 blocks every other one lies in host memory: what is restored is paid for only where it is read. */
static void a_plan_counts_reads_where_they_are(void **state)
{
	struct tn_plan blind = {.size = sizeof(blind)}, p = blind;
	struct tn_slack *t = table("test", RIG_LAYERS, 4096 * 6000ull);
	struct tn_key keys[64];
	struct tn_match m = {.size = sizeof(m)};
	uint8_t tiers[64];
	struct rig r;

	rig_set_up(&r, 64u << 20, 24u << 20, 256);
	rig_save(r.s, 1, 64, 0);
	reopen(&r, NULL, "slack", true);
	assert_int_equal(tn_space_slack(r.s->space, t), 0);
	tn_slack_destroy(t);
	rig_keys(1, 64, keys);
	for (uint32_t i = 1; i < 64; i += 2) {
		assert_int_equal(tn_prefetch(r.s->space, &keys[i], 1, tn_test_deadline()), 1);
		rig_until(&r, rig_stats(&r).prefetched_blocks == i / 2 + 1);
	}
	assert_int_equal(tn_match(r.s->space, keys, 64, tiers, &m, 0), 64);
	assert_true(m.tier_blocks[TN_TIER_HOST] == 32 && m.tier_blocks[TN_TIER_DISK] == 32);
	for (uint32_t i = 0; i < 64; i++)
		assert_int_equal(tiers[i], i % 2 ? TN_TIER_HOST : TN_TIER_DISK);
	assert_int_equal(tn_plan(r.s->space, &m, NULL, 64, &blind), 0);
	assert_int_equal(tn_plan(r.s->space, &m, tiers, 64, &p), 0);
	print_message("# %u of 64 blocks restored, reading %.2f ms; not told where they lie %u, %.2f ms\n", p.restore_blocks,
		      (double)p.choice.io_ns / 1e6, blind.restore_blocks, (double)blind.choice.io_ns / 1e6);
	assert_true(blind.restore_blocks > 32);
	assert_int_equal(blind.restore_all.io_ns, p.restore_all.io_ns);
	assert_true(p.restore_blocks >= 2 && p.restore_blocks % 2 == 0); /* the one behind a read one is there at once */
	assert_in_range(p.choice.io_ns * 64 / p.restore_blocks, p.restore_all.io_ns * 9 / 10, p.restore_all.io_ns * 11 / 10);
	rig_tear_down(&r);
}

static void a_disk_faster_than_any_is_planned_with_all_the_same(void **state)
{
	struct tn_match m = {.size = sizeof(m), .blocks = 64, .tier_blocks = {[TN_TIER_DISK] = 64}};
	struct tn_plan p = {.size = sizeof(p)};
	struct tn_slack *t = table("test", RIG_LAYERS, 4096 * 1500ull);
	struct rig r;

	rig_set_up(&r, 64u << 20, 0, 64);
	reopen(&r, NULL, "none", false);
	assert_int_equal(tn_space_slack(r.s->space, t), 0);
	tn_slack_destroy(t);
	__atomic_store_n(&rig_core(&r)->ns_per_mib[TN_TIER_DISK], 1, __ATOMIC_RELAXED);
	assert_int_equal(tn_plan(r.s->space, &m, NULL, 64, &p), 0);
	assert_int_equal(p.restore_blocks, 64);
	rig_tear_down(&r);
}

static void what_lies_far_away_is_planned_with_the_speed_of_that_tier(void **state)
{
	struct tn_match m = {.size = sizeof(m), .blocks = 64, .tier_blocks = {[TN_TIER_REMOTE] = 64}};
	struct tn_plan p = {.size = sizeof(p)};
	struct tn_slack *t = table("test", RIG_LAYERS, 4096 * 6000ull);
	uint8_t tiers[64];
	struct rig r;

	memset(tiers, TN_TIER_REMOTE, sizeof(tiers));
	rig_set_up(&r, 64u << 20, 0, 256);
	reopen(&r, NULL, "none", false);
	assert_int_equal(tn_space_slack(r.s->space, t), 0);
	tn_slack_destroy(t);
	__atomic_store_n(&rig_core(&r)->ns_per_mib[TN_TIER_DISK], 1, __ATOMIC_RELAXED);
	assert_int_equal(tn_plan(r.s->space, &m, tiers, 64, &p), 0);
	assert_int_equal(p.choice.ttft_ns, 0); /* nothing is known of that tier */
	__atomic_store_n(&rig_core(&r)->ns_per_mib[TN_TIER_REMOTE], 5 * MS, __ATOMIC_RELAXED); /* 210 MB/s */
	assert_int_equal(tn_plan(r.s->space, &m, tiers, 64, &p), 0);
	assert_true(p.restore_blocks > 0 && p.restore_blocks < 64);
	assert_true(p.choice.ttft_ns < p.restore_all.ttft_ns && p.choice.ttft_ns < p.recompute_all.ttft_ns);
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_read_and_write_is_explained),
		cmocka_unit_test(a_save_without_loads_writes_more_than_a_chunk_at_once),
		RIG_SIMULATED_TEST(a_write_load_slows_restores_only_without_the_scheduler),
		RIG_SIMULATED_TEST(a_save_beyond_the_backlog_is_refused_and_reads_are_not),
		RIG_SIMULATED_TEST(a_save_that_host_memory_has_no_room_for_counts_to_the_backlog),
		RIG_EMBEDDED_TEST(saves_begun_in_one_turn_do_not_exceed_the_backlog, "a process that has attached has half of the backlog: session_share_test.c"),
		cmocka_unit_test(no_layer_is_taken_for_reached_at_the_time_of_another),
		cmocka_unit_test(a_table_of_another_model_or_with_gaps_is_refused),
		RIG_SIMULATED_TEST(no_more_iocbs_of_a_load_are_out_than_the_table_says),
		RIG_SIMULATED_TEST(a_cache_without_a_table_learns_the_layers_time_from_waits),
		RIG_SIMULATED_TEST(a_cache_learns_from_what_the_engine_says_of_computed_layers),
		RIG_FAULTY_TEST(a_fast_engine_on_a_slow_disk_restores_only_a_part),
		RIG_FAULTY_TEST(a_plan_counts_reads_where_they_are),
		cmocka_unit_test(a_disk_faster_than_any_is_planned_with_all_the_same),
		cmocka_unit_test(what_lies_far_away_is_planned_with_the_speed_of_that_tier),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
