/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cache of the process with a device that stands still: what is asked of the device waits, and nothing else does. Loads and saves of host memory, and
 * of a second device, go on; and the operations of the device that stands end by their deadlines, or when it is lost. Where a stream waits, of an attached
 * cache, too, there is a deadline in any case.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "cache_rig.h"
#include "core/core.h"
#include "device/soft_rig.h"

#define DISK (256u << 20)
#define HOST (64u << 20)
#define BLOCKS 4u
#define OPS 10u	  /* loads that stand, and as many saves */
#define ROUNDS 4u /* of work beside them */

struct form {
	const char *scheduler;
	uint32_t head_dim; /* 64: 4 layers are one chunk; 512: 4 */
	uint32_t executors;
	uint64_t host_bytes;
	bool attached;
};

struct world {
	struct rig r;
	struct tn_soft_device *device[2];
	struct rig_space host, second; /* pools of host memory, and of the second device */
	struct tn_load *load[OPS];
	struct tn_save *save[OPS];
	uint32_t starved; /* shared: writes that reads have kept waiting for 250 ms */
};

static void explain(void *arg, const struct tn_decision *d)
{
	struct world *w = arg;

	if (d->chosen == TN_CHOSE_WRITE && d->reason == TN_REASON_STARVED)
		__atomic_fetch_add(&w->starved, 1, __ATOMIC_RELAXED);
}

/* Where pools that are opened, or freed, lie from now on. */
static void on(struct world *w, struct tn_soft_device *device)
{
	w->r.o.device = device != NULL;
	w->r.o.soft_device = device;
}

static void up(struct world *w, void **state)
{
	const struct tn_soft_device_opts o = {.seed = tn_test_seed()};
	const struct form *form = *state;

	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(tn_soft_device_create(&o, &w->device[i]), 0);
	rig_init(&w->r, DISK, form->host_bytes, form->head_dim);
	w->r.o.cache.scheduler = form->scheduler;
	w->r.o.cache.executors = form->executors;
	w->r.o.cache.max_ops = 64;
	w->r.o.cache.explain = explain;
	w->r.o.cache.explain_arg = w;
	w->r.o.attached = form->attached;
	w->r.o.staged = false;
	on(w, w->device[0]);
	rig_must_open(&w->r);
	on(w, w->device[1]);
	assert_int_equal(rig_space_open(&w->r, &(struct rig_space_opts){.seed = 7}, &w->second), 0);
	on(w, NULL);
	assert_int_equal(rig_space_open(&w->r, &(struct rig_space_opts){.seed = 8}, &w->host), 0);
}

static void down(struct world *w)
{
	on(w, w->device[1]);
	rig_space_close(&w->second);
	on(w, NULL);
	rig_space_close(&w->host);
	on(w, w->device[0]);
	rig_tear_down(&w->r);
	for (uint32_t i = 0; i < 2; i++)
		tn_soft_device_destroy(w->device[i]);
}

static uint64_t first_of(uint32_t i)
{
	return 1 + i * BLOCKS;
}

/* The first device stands, with loads of blocks on disk, which have so much time, and saves. */
static void stand(struct world *w, uint64_t load_ns)
{
	struct tn_load_opts o;

	tn_load_opts_init(&o);
	for (uint32_t i = 0; i < OPS; i++)
		assert_int_equal(rig_save(w->r.s, first_of(i), BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(&w->r), 0);
	tn_soft_device_hold(w->device[0], true);
	o.deadline_ns = load_ns == TN_FOREVER ? TN_FOREVER : tn_test_now() + load_ns;
	for (uint32_t i = 0; i < OPS; i++) {
		w->load[i] = rig_load_begin(w->r.s, first_of(i), BLOCKS, 2 * i * BLOCKS * RIG_PAGES, &o);
		w->save[i] = rig_save_begin(w->r.s, 10000 + first_of(i), BLOCKS, (2 * i + 1) * BLOCKS * RIG_PAGES, NULL);
		rig_save_give(w->r.s, w->save[i]);
	}
	rig_until(&w->r, tn_soft_device_stats(w->device[0]).under_way > 0);
}

/* What the device has under way has not ended for long enough. */
static void stands(struct world *w)
{
	uint64_t due;

	rig_until(&w->r, tn_copiers_stand(&rig_core(&w->r)->copiers, 0, tn_test_now(), &due));
}

static void end(struct world *w)
{
	for (uint32_t i = 0; i < OPS; i++) {
		rig_load_end(w->r.s, w->load[i]);
		assert_int_equal(rig_save_end(w->r.s, w->save[i]).stored, BLOCKS);
	}
}

static void go_on(struct world *w)
{
	tn_soft_device_hold(w->device[0], false);
	for (uint32_t i = 0; i < OPS; i++)
		assert_int_equal(rig_load_wait(w->r.s, w->load[i], RIG_LAYERS - 1), BLOCKS);
	end(w);
}

/* Saves and loads other blocks each time. */
static void works(struct rig_space *s)
{
	for (uint32_t i = 0; i < ROUNDS; i++) {
		assert_int_equal(rig_save(s, first_of(i), BLOCKS, 0).stored, BLOCKS);
		assert_int_equal(rig_load(s, first_of(i), BLOCKS), BLOCKS);
	}
}

static void host_memory_and_other_devices_go_on_beside_a_device_that_stands(void **state)
{
	struct world w = {0};

	up(&w, state);
	stand(&w, TN_FOREVER);
	stands(&w);
	__atomic_store_n(&w.starved, 0, __ATOMIC_RELAXED);
	works(&w.host);
	works(&w.second);
	/* A read that stands keeps no write waiting. Of a cache with host memory writes wait for loads beside them. */
	assert_true(w.r.o.cache.host_bytes || __atomic_load_n(&w.starved, __ATOMIC_RELAXED) < ROUNDS);
	for (uint32_t i = 0; i < OPS; i++)
		assert_int_equal(rig_match(w.r.s, 10000 + first_of(i), 1), 0);
	go_on(&w);
	down(&w);
}

static void host_memory_goes_on_beside_two_devices_that_stand(void **state)
{
	struct tn_load *load[OPS];
	struct world w = {0};

	up(&w, state);
	for (uint32_t i = 0; i < OPS; i++)
		assert_int_equal(rig_save(&w.second, first_of(i), BLOCKS / 2, 0).stored, BLOCKS / 2);
	stand(&w, TN_FOREVER);
	tn_soft_device_hold(w.device[1], true);
	for (uint32_t i = 0; i < OPS; i++)
		load[i] = rig_load_begin(&w.second, first_of(i), BLOCKS / 2, i * BLOCKS * RIG_PAGES, NULL);
	rig_until(&w.r, tn_soft_device_stats(w.device[1]).under_way > 0);
	works(&w.host);
	go_on(&w);
	tn_soft_device_hold(w.device[1], false);
	for (uint32_t i = 0; i < OPS; i++) {
		assert_int_equal(rig_load_wait(&w.second, load[i], RIG_LAYERS - 1), BLOCKS / 2);
		rig_load_end(&w.second, load[i]);
	}
	down(&w);
}

/* Nor does who wants the same blocks wait for it: a load joins no load that waits for another device. */
static void the_blocks_that_a_device_waits_for_come_to_host_memory(void **state)
{
	struct world w = {0};
	struct rig_space same;

	up(&w, state);
	assert_int_equal(rig_space_open(&w.r, &(struct rig_space_opts){0}, &same), 0);
	stand(&w, TN_FOREVER);
	for (uint32_t i = 0; i < OPS; i++)
		assert_int_equal(rig_load(&same, first_of(i), BLOCKS), BLOCKS);
	go_on(&w);
	rig_space_close(&same);
	down(&w);
}

/* ---- what its operations hold ------------------------------------------------------------------------------------ */

/* All slots, or all bytes that may wait for the disk. */
static void up_small(struct world *w, void **state, uint64_t disk_bytes, uint64_t backlog_bytes)
{
	const struct form *form = *state;

	assert_int_equal(tn_soft_device_create(&(struct tn_soft_device_opts){.seed = tn_test_seed()}, &w->device[0]), 0);
	rig_init(&w->r, disk_bytes, form->host_bytes, 64);
	w->r.o.cache.scheduler = form->scheduler;
	w->r.o.cache.executors = form->executors;
	w->r.o.cache.write_backlog_bytes = backlog_bytes;
	w->r.o.cache.max_ops = 64;
	on(w, w->device[0]);
	rig_must_open(&w->r);
	on(w, NULL);
	assert_int_equal(rig_space_open(&w->r, &(struct rig_space_opts){.seed = 8, .head_dim = 128}, &w->host), 0);
}

static void down_small(struct world *w)
{
	on(w, NULL);
	rig_space_close(&w->host);
	on(w, w->device[0]);
	rig_tear_down(&w->r);
	tn_soft_device_destroy(w->device[0]);
}

/* Each slot of the disk holds a block of a load that stands: no segment can go, and a save of another size is told so at once. */
static void a_save_does_not_wait_for_slots_that_loads_of_a_device_that_stands_hold(void **state)
{
	enum { LOADS = 48, EACH = 4 };
	struct tn_load *load[LOADS];
	struct world w = {0};
	uint32_t n = 0;
	uint64_t begun;

	up_small(&w, state, 16u << 20, 0);
	for (uint32_t i = 0; i < LOADS; i++)
		rig_save(w.r.s, 1 + i * EACH, EACH, 0);
	assert_int_equal(rig_flush(&w.r), 0);
	tn_soft_device_hold(w.device[0], true);
	for (uint32_t i = 0; i < LOADS; i++)
		if (rig_count(w.r.s, 1 + i * EACH, EACH) > 0)
			load[n++] = rig_load_begin(w.r.s, 1 + i * EACH, EACH, i * EACH * RIG_PAGES, NULL);
	stands(&w);
	begun = tn_test_now();
	assert_int_equal(rig_save(&w.host, 1, 1, 0).error, -ENOSPC);
	assert_true(tn_test_now() - begun < RIG_SECOND);
	tn_soft_device_hold(w.device[0], false);
	for (uint32_t i = 0; i < n; i++) {
		rig_load_wait(w.r.s, load[i], RIG_LAYERS - 1);
		rig_load_end(w.r.s, load[i]);
	}
	assert_int_equal(rig_save(&w.host, 1, 1, 0).stored, 1);
	down_small(&w);
}

static void saves_of_a_device_that_stands_take_nothing_of_the_backlog(void **state)
{
	struct tn_key keys[BLOCKS];
	uint32_t pages[BLOCKS * RIG_PAGES];
	struct world w = {0};
	struct tn_save *save;

	up_small(&w, state, 64u << 20, OPS * BLOCKS * (128u << 10));
	tn_soft_device_hold(w.device[0], true);
	for (uint32_t i = 0; i < OPS; i++) {
		w.save[i] = rig_save_begin(w.r.s, first_of(i), BLOCKS, i * BLOCKS * RIG_PAGES, NULL);
		rig_save_give(w.r.s, w.save[i]);
	}
	rig_until(&w.r, tn_soft_device_stats(w.device[0]).under_way > 0);
	rig_keys(1, BLOCKS, keys);
	rig_pages(&w.host, 0, BLOCKS, pages);
	rig_fill_blocks(&w.host, 1, BLOCKS, 0);
	rig_until(&w.r, tn_save_begin(w.host.space, w.host.pool, keys, BLOCKS, pages, NULL, &save) == 0);
	rig_save_give(&w.host, save);
	assert_int_equal(rig_save_end(&w.host, save).stored, BLOCKS);
	tn_soft_device_hold(w.device[0], false);
	for (uint32_t i = 0; i < OPS; i++)
		assert_int_equal(rig_save_end(w.r.s, w.save[i]).stored, BLOCKS);
	down_small(&w);
}

/* The blocks before a save's own are on their way from the device: what nobody could find is not kept. */
static void a_save_does_not_wait_for_the_blocks_before_it_that_stand(void **state)
{
	const struct tn_key parent = rig_key(BLOCKS);
	struct tn_save *first, *second;
	struct tn_save_opts o;
	struct world w = {0};
	struct rig_space same;

	up_small(&w, state, 64u << 20, 0);
	assert_int_equal(rig_space_open(&w.r, &(struct rig_space_opts){0}, &same), 0);
	tn_soft_device_hold(w.device[0], true);
	first = rig_save_begin(w.r.s, 1, BLOCKS, 0, NULL);
	rig_save_give(w.r.s, first);
	tn_save_opts_init(&o);
	o.parent = &parent;
	second = rig_save_begin(&same, 1 + BLOCKS, BLOCKS, 0, &o);
	rig_save_give(&same, second);
	assert_int_equal(rig_save_end(&same, second).rejected, BLOCKS);
	tn_soft_device_hold(w.device[0], false);
	assert_int_equal(rig_save_end(w.r.s, first).stored, BLOCKS);
	rig_space_close(&same);
	down_small(&w);
}

/* ---- the ends of its operations ------------------------------------------------------------------------------------ */

static void a_deadline_ends_the_loads_of_a_device_that_stands(void **state)
{
	struct world w = {0};

	up(&w, state);
	stand(&w, RIG_SECOND / 4);
	for (uint32_t i = 0; i < OPS; i++)
		assert_true(rig_load_wait(w.r.s, w.load[i], RIG_LAYERS - 1) < (int)BLOCKS);
	assert_true(tn_soft_device_stats(w.device[0]).under_way > 0);
	tn_soft_device_hold(w.device[0], false);
	end(&w);
	down(&w);
}

static void a_lost_device_ends_all_that_it_kept_waiting(void **state)
{
	struct tn_save_result saved;
	struct world w = {0};

	up(&w, state);
	stand(&w, TN_FOREVER);
	tn_soft_device_lose(w.device[0]);
	for (uint32_t i = 0; i < OPS; i++) {
		assert_int_equal(rig_load_wait(w.r.s, w.load[i], RIG_LAYERS - 1), 0);
		rig_load_end(w.r.s, w.load[i]);
		saved = rig_save_end(w.r.s, w.save[i]);
		assert_int_equal(saved.stored, 0);
		assert_int_equal(saved.error, -ENODEV);
	}
	works(&w.host);
	works(&w.second);
	down(&w);
}

/* From now on what waits for a stream, or a stream for it, is given up after this. */
static void idle(struct world *w, uint64_t ns)
{
	__atomic_store_n(&w->r.cache->save_idle_ns, ns, __ATOMIC_SEQ_CST);
	__atomic_store_n(&rig_core(&w->r)->save_idle_ns, ns, __ATOMIC_SEQ_CST);
}

/* A stream of the second device: what it waits for is given up, also without a deadline. A load that no stream waits for goes on waiting. */
static void a_stream_that_waits_for_a_device_that_stands_goes_on(void **state)
{
	const struct tn_device_driver *driver;
	struct world w = {0};
	struct tn_device_piece piece;
	struct tn_load *other;
	const uint64_t *word;
	uint64_t value, event;
	void *stream;

	up(&w, state);
	driver = tn_soft_device_driver(w.device[1]);
	assert_int_equal(driver->ops->stream_create(driver, 0, &stream), 0);
	assert_int_equal(rig_save(w.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	idle(&w, 50 * RIG_MS);
	tn_soft_device_hold(w.device[0], true);
	w.load[0] = rig_load_begin(w.r.s, 1, BLOCKS, 0, NULL);
	other = rig_load_begin(w.r.s, 1, BLOCKS, BLOCKS * RIG_PAGES, NULL);
	assert_int_equal(tn_load_event(w.load[0], RIG_LAYERS - 1, &word, &value), 0);
	assert_int_equal(driver->ops->word_wait(driver, stream, word, value), 0);
	piece = (struct tn_device_piece){.device = w.second.memory, .other = w.second.memory + 64, .bytes = 64};
	assert_int_equal(driver->ops->copy(driver, stream, TN_DEVICE_WITHIN, &piece, 1, &event), 0);
	assert_int_equal(driver->ops->wait(driver, stream, event, tn_test_now() + RIG_MS), -ETIMEDOUT);
	assert_int_equal(driver->ops->wait(driver, stream, event, tn_test_deadline()), 0);
	assert_true(tn_load_poll(w.load[0], RIG_LAYERS - 1) < (int)BLOCKS);
	usleep(100000);
	assert_int_equal(tn_load_poll(other, RIG_LAYERS - 1), -EAGAIN);
	tn_soft_device_hold(w.device[0], false);
	assert_int_equal(rig_load_wait(w.r.s, other, RIG_LAYERS - 1), BLOCKS);
	rig_load_end(w.r.s, other);
	rig_load_end(w.r.s, w.load[0]);
	driver->ops->stream_destroy(driver, stream);
	idle(&w, TN_SAVE_IDLE_NS);
	down(&w);
}

static void a_save_whose_stream_never_raises_its_word_is_given_up(void **state)
{
	struct tn_save_result saved;
	struct tn_event *event;
	struct world w = {0};
	struct tn_save *save;

	up(&w, state);
	assert_int_equal(tn_event_create(w.r.cache, &event), 0);
	assert_non_null(tn_event_address(event)); /* a stream may write it from now on */
	idle(&w, 50 * RIG_MS);
	save = rig_save_begin(w.r.s, 1, BLOCKS, 0, NULL);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_save_layer(save, l, event, 1), 0);
	assert_int_equal(tn_save_commit(save), 0);
	saved = rig_save_end(w.r.s, save);
	assert_int_equal(saved.stored, 0);
	assert_int_equal(saved.error, -ECANCELED);
	idle(&w, TN_SAVE_IDLE_NS);
	tn_event_destroy(event);
	down(&w);
}

#define FORM(f, i, text) {#f " (" text ")", (f), NULL, NULL, &form[i]}
#define ALL(f) FORM(f, 0, "one chunk"), FORM(f, 1, "4 chunks"), FORM(f, 2, "with host memory"), FORM(f, 3, "2 executors"), \
	       FORM(f, 4, "without a scheduler")
#define SOME(f) FORM(f, 1, "4 chunks"), FORM(f, 2, "with host memory")
#define ATTACHED(f) FORM(f, 5, "attached")

int main(int argc, char **argv)
{
	static struct form form[] = {{NULL, 64, 0, 0}, {NULL, 512, 0, 0}, {NULL, 512, 0, HOST}, {NULL, 512, 2, 0}, {"none", 512, 0, HOST}, {NULL, 512, 0, HOST, true}};
	const struct CMUnitTest tests[] = {
		ALL(host_memory_and_other_devices_go_on_beside_a_device_that_stands),
		SOME(host_memory_goes_on_beside_two_devices_that_stand),
		FORM(a_save_does_not_wait_for_slots_that_loads_of_a_device_that_stands_hold, 0, "one chunk"),
		FORM(saves_of_a_device_that_stands_take_nothing_of_the_backlog, 0, "one chunk"),
		FORM(a_save_does_not_wait_for_the_blocks_before_it_that_stand, 0, "one chunk"),
		SOME(the_blocks_that_a_device_waits_for_come_to_host_memory),
		SOME(a_deadline_ends_the_loads_of_a_device_that_stands),
		SOME(a_lost_device_ends_all_that_it_kept_waiting),
		FORM(a_stream_that_waits_for_a_device_that_stands_goes_on, 2, "with host memory"),
		ATTACHED(a_stream_that_waits_for_a_device_that_stands_goes_on),
		FORM(a_save_whose_stream_never_raises_its_word_is_given_up, 2, "with host memory"),
		ATTACHED(a_save_whose_stream_never_raises_its_word_is_given_up),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
