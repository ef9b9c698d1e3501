/* SPDX-License-Identifier: Apache-2.0 */
/* Attached caches with pages on a soft device, and what the ends and halts of processes mean to them. Everything else of it is cache_device_test.c. */
#include "device/soft_rig.h"
#include "session_rig.h"

static void open_and_serve(struct rig *r)
{
	char path[PATH];

	r->o.device = false;
	rig_must_open(r);
	socket_path(r, path);
	assert_int_equal(tn_cache_serve(r->cache, path, NULL), 0);
}

/* Owns the cache in the directory of the rig until it is killed. */
static __attribute__((noreturn)) int own(const char *dir)
{
	struct rig r;

	init_in(dir, &r);
	open_and_serve(&r);
	for (;;)
		pause();
}

struct client {
	struct rig r;
	struct tn_soft_device *device;
};

/* With as many chunks; session memory for so many blocks, 0: for all; copies that take as long at least. */
struct form {
	uint32_t chunks, stage_blocks;
	uint64_t copy_ns;
};

static void attach_with_device(const char *dir, const struct form *form, struct client *c)
{
	const struct tn_soft_device_opts o = {.seed = tn_test_seed(), .copy_ns = form->copy_ns};
	char path[PATH];

	assert_int_equal(tn_soft_device_create(&o, &c->device), 0);
	init_in(dir, &c->r);
	c->r.o.attached = c->r.o.device = true;
	c->r.o.head_dim = form->chunks == 1 ? 64 : 512;
	c->r.o.npages = 256;
	c->r.o.stage_blocks = form->stage_blocks;
	c->r.o.soft_device = c->device;
	socket_path(&c->r, path);
	assert_int_equal(tn_cache_attach(path, patient(), &c->r.cache), 0);
	assert_int_equal(rig_space_open(&c->r, &(struct rig_space_opts){0}, c->r.s), 0);
	assert_non_null(c->r.s->pool->stage);
	assert_int_equal(c->r.s->space->shape.chunks, form->chunks);
}

static void detach_with_device(struct client *c)
{
	detach(&c->r);
	tn_soft_device_destroy(c->device);
}

static uint64_t under_way(const struct client *c)
{
	return tn_soft_device_stats(c->device).under_way;
}

/* The owner dies while copies of a load and of a save stand in their streams. Waits end at once; pages are busy until the copies are over. */
static void when_the_owner_is_killed_waits_end_and_pages_stay_busy_until_their_copies_are_over(void **state)
{
	struct tn_save_result res = {.size = sizeof(res)};
	struct client c;
	struct rig r;
	struct tn_load *load;
	struct tn_save *save;
	pid_t owner;
	int rc;

	rig_init(&r, 64u << 20, 0, 64);
	owner = start_owner("own", &r);
	attach_with_device(r.dir, *state, &c);
	assert_int_equal(rig_save(c.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	tn_soft_device_hold(c.device, true);
	load = rig_load_begin(c.r.s, 1, BLOCKS, 0, NULL);
	rig_until(&c.r, under_way(&c) == c.r.s->space->shape.chunks);
	save = rig_save_begin(c.r.s, 100, BLOCKS, BLOCKS * RIG_PAGES, NULL);
	rig_save_give(c.r.s, save);
	rig_until(&c.r, under_way(&c) > c.r.s->space->shape.chunks);
	kill_and_wait(owner);
	rc = tn_load_wait(load, RIG_LAYERS - 1, tn_test_deadline());
	assert_true(rc == 0 || rc == -ESHUTDOWN);
	assert_int_equal(tn_load_end(load, tn_test_now() + 20 * RIG_MS, NULL), -EBUSY);
	assert_int_equal(tn_save_end(save, tn_test_now() + 20 * RIG_MS, &res), -ETIMEDOUT);
	tn_soft_device_hold(c.device, false);
	assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	assert_int_equal(tn_save_end(save, tn_test_deadline(), &res), -ESHUTDOWN);
	assert_int_equal(under_way(&c), 0);
	detach_with_device(&c);
	rig_tear_down(&r);
}

/* Batches tell of themselves in the words, too; what the owner's end has told is never taken back. */
static void no_word_falls_when_the_owner_is_killed_under_a_load_in_batches(void **state)
{
	const struct form form = {.chunks = ((const struct form *)*state)->chunks, .stage_blocks = 10, .copy_ns = 60 * RIG_MS};
	struct client c;
	struct rig r;
	struct tn_load *load;
	const uint64_t *word[RIG_LAYERS];
	uint64_t value, seen[RIG_LAYERS] = {0};
	pid_t owner;

	rig_init(&r, 64u << 20, 0, 64);
	owner = start_owner("own", &r);
	attach_with_device(r.dir, &form, &c);
	assert_int_equal(rig_save(c.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	load = rig_load_begin(c.r.s, 1, BLOCKS, 0, NULL);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_load_event(load, l, &word[l], &value), 0);
	rig_until(&c.r, under_way(&c) == form.chunks); /* all copies of a batch */
	kill_and_wait(owner);
	for (uint64_t end = tn_test_now() + 400 * RIG_MS; tn_test_now() < end;)
		for (uint32_t l = 0; l < RIG_LAYERS; l++) {
			uint64_t now = __atomic_load_n(word[l], __ATOMIC_ACQUIRE);

			assert_true(now >= seen[l]);
			seen[l] = now;
		}
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_true(seen[l] >= value);
	assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	detach_with_device(&c);
	rig_tear_down(&r);
}

static void *let_go_later(void *device)
{
	usleep(50000);
	tn_soft_device_hold(device, false);
	return NULL;
}

/* Nobody ends the operations: the close waits for the copies before their streams go. */
static void a_cache_whose_owner_was_killed_is_closed_while_copies_are_under_way(void **state)
{
	struct client c;
	pthread_t later;
	struct rig r;
	pid_t owner;

	rig_init(&r, 64u << 20, 0, 64);
	owner = start_owner("own", &r);
	attach_with_device(r.dir, *state, &c);
	assert_int_equal(rig_save(c.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	tn_soft_device_hold(c.device, true);
	rig_load_begin(c.r.s, 1, BLOCKS, 0, NULL);
	rig_until(&c.r, under_way(&c) > 0);
	kill_and_wait(owner);
	rig_until(&c.r, tn_region_is_gone(&c.r.cache->region));
	assert_int_equal(pthread_create(&later, NULL, let_go_later, c.device), 0);
	assert_int_equal(tn_cache_close(c.r.cache), 0);
	assert_int_equal(under_way(&c), 0);
	assert_int_equal(pthread_join(later, NULL), 0);
	tn_soft_device_release(c.device, c.r.s->memory);
	tn_soft_device_destroy(c.device);
	rig_tear_down(&r);
}

static const struct form one_chunk = {.chunks = 1};

/* Loads and saves until it is killed. */
static __attribute__((noreturn)) int work_on_device(const char *dir)
{
	struct client c;

	attach_with_device(dir, &one_chunk, &c);
	for (uint64_t i = 0;; i++) {
		uint64_t first = 1000 * (uint64_t)getpid() + i % 4 * BLOCKS;

		assert_int_equal(rig_save(c.r.s, first, BLOCKS, 0).failed, 0);
		rig_load(c.r.s, first, BLOCKS);
	}
}

/* Other processes' loads and saves end meanwhile, with device memory, too, and the owner gives back what a client had that is killed then. */
static void a_stopped_client_with_device_memory_holds_nobody_up(void **state)
{
	struct client c;
	struct held before;
	struct rig r;
	pid_t pid;

	rig_init(&r, 64u << 20, 8u << 20, 64);
	open_and_serve(&r);
	attach_with_device(r.dir, *state, &c);
	assert_int_equal(rig_save(c.r.s, 1, BLOCKS, 0).stored, BLOCKS);
	before = held_by(&r);
	for (uint32_t i = 0; i < (tn_test_soak() ? 40 : 4); i++) {
		pid = start("work_on_device", &r);
		rig_until(&r, rig_match(r.s, 1000 * (uint64_t)pid, 1) == 1);
		usleep(1000 * (tn_test_seed() * 7 + i * 13) % 20000);
		stop_and_wait(pid);
		assert_int_equal(rig_load(c.r.s, 1, BLOCKS), BLOCKS);
		assert_int_equal(rig_save(c.r.s, 100 + i * BLOCKS, BLOCKS, 0).failed, 0);
		assert_int_equal(kill(pid, SIGCONT), 0);
		kill_and_wait(pid);
	}
	all_is_given_back(&r, &before);
	detach_with_device(&c);
	rig_tear_down(&r);
}

/* With one chunk and with 4. */
#define BOTH(f) {#f, (f), NULL, NULL, &form[0]}, {#f " (4 chunks)", (f), NULL, NULL, &form[1]}

int main(int argc, char **argv)
{
	static const struct body bodies[] = {{"own", own}, {"work_on_device", work_on_device}, {NULL, NULL}};
	static struct form form[] = {{.chunks = 1}, {.chunks = 4}};
	const struct CMUnitTest tests[] = {
		BOTH(when_the_owner_is_killed_waits_end_and_pages_stay_busy_until_their_copies_are_over),
		BOTH(no_word_falls_when_the_owner_is_killed_under_a_load_in_batches),
		BOTH(a_cache_whose_owner_was_killed_is_closed_while_copies_are_under_way),
		cmocka_unit_test_prestate(a_stopped_client_with_device_memory_holds_nobody_up, &form[0]),
	};
	int rc = run_body(argc, argv, bodies);

	return rc >= 0 ? rc : cmocka_run_group_tests(tests, NULL, NULL);
}
