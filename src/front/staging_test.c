/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that an attached process alone can map (stage.h): its bytes arrive, whatever kind of memory it is; words say so only then; operations that
 * find no session memory are refused and leave nothing behind; and what becomes of pages when either process ends.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "front/stage.h"
#include "session_rig.h"

#define BLOCK_BYTES (uint64_t)(RIG_LAYERS * RIG_PAGES * 2 * 4096)
#define THREADS 8u
#define THREAD_BLOCKS 8u /* most of one operation of a thread */

static uint32_t hints; /* shared: lines of the owner's log that name tn_memory_alloc */

static void on_log(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	if (strstr(text, "tn_memory_alloc"))
		__atomic_add_fetch(&hints, 1, __ATOMIC_RELAXED);
}

/* The same blocks in a pool that the owner maps. */
static void open_mapped(struct rig *r, struct rig_space *s)
{
	r->o.staged = false;
	assert_int_equal(rig_space_open(r, &(struct rig_space_opts){0}, s), 0);
	r->o.staged = true;
	assert_null(s->pool->stage);
}

static uint64_t staged_bytes(struct rig *r)
{
	return rig_stats(r).staged_bytes;
}

static void fails(int rc, int expected, const char *says)
{
	assert_int_equal(rc, expected);
	if (!strstr(tn_error_last()->text, says))
		fail_msg("\"%s\" does not say \"%s\"", tn_error_last()->text, says);
}

/* ---- bytes arrive ---------------------------------------------------------------------------------------------- */

static int load_and_save_from(const char *dir, uint64_t first)
{
	struct rig r;

	attach_staged(dir, 0, &r);
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS); /* checks the bytes */
	assert_int_equal(rig_save(r.s, first, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_load(r.s, first, BLOCKS), BLOCKS);
	assert_int_equal(staged_bytes(&r) % (3 * BLOCKS * BLOCK_BYTES), 0); /* with those of sessions before */
	detach(&r);
	return 0;
}

static int load_and_save(const char *dir)
{
	return load_and_save_from(dir, 1 + BLOCKS);
}

static int load_and_save_others(const char *dir)
{
	return load_and_save_from(dir, 1 + 2 * BLOCKS);
}

static void bytes_of_private_memory_arrive_and_are_counted(void **state)
{
	char path[PATH];
	struct rig r;

	hints = 0;
	rig_init(&r, 64u << 20, 8u << 20, 64);
	r.o.cache.log = on_log;
	rig_must_open(&r);
	socket_path(&r, path);
	assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	assert_int_equal(rig_save(r.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(staged_bytes(&r), 0);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(end_of(start(i ? "load_and_save_others" : "load_and_save", &r)), 0);
		assert_int_equal(rig_load(r.s, 1 + BLOCKS * (1 + i), BLOCKS), BLOCKS);
		rig_until(&r, staged_bytes(&r) == 3 * BLOCKS * BLOCK_BYTES * (1 + i)); /* also after the session has ended */
	}
	assert_int_equal(rig_close(&r), 0);
	assert_int_equal(__atomic_load_n(&hints, __ATOMIC_RELAXED), 2); /* once per process */
	rig_tear_down(&r);
}

/* A pool of the rig's blocks in memory of the caller's, of pool_bytes(npages). */
static void open_over(struct rig *r, void *memory, uint32_t npages, uint64_t stage_bytes, struct rig_space *s)
{
	struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .npages = npages};
	uint64_t each, base[RIG_LAYERS * 2];
	struct tn_memory_range range = {.address = memory};
	struct tn_pool_layout layout;
	struct tn_memory_desc d;
	struct tn_memory *m;
	uint32_t count;

	*s = *r->s;
	s->npages = npages;
	assert_int_equal(tn_layout_regions(&s->g, &shape, &count, &each), 0);
	assert_int_equal(tn_layout_fill(&s->g, &shape, NULL, base, &layout), 0);
	range.bytes = count * each;
	tn_memory_desc_init(&d);
	d.ranges = &range;
	d.nranges = 1;
	d.stage_bytes = stage_bytes;
	assert_int_equal(tn_memory_register(r->cache, &d, &m), 0);
	assert_int_equal(tn_pool_create(m, &s->g, &layout, &s->pool), 0);
	assert_non_null(s->pool->stage);
	for (uint32_t l = 0; l < count; l++)
		s->bases[l] = (char *)memory + l * each;
}

static void close_over(struct rig_space *s)
{
	struct tn_memory *m = s->pool->memory;

	assert_int_equal(tn_pool_destroy(s->pool), 0);
	assert_int_equal(tn_memory_unregister(m), 0);
}

static uint64_t pool_bytes(uint32_t npages)
{
	return npages / RIG_PAGES * BLOCK_BYTES;
}

static void use(struct rig *r, void *memory, uint64_t id)
{
	struct rig_space s;

	open_over(r, memory, 8 * RIG_PAGES, 0, &s);
	assert_int_equal(rig_load(&s, 1, 4), 4); /* into the second half of the pool */
	assert_int_equal(rig_save(&s, id, 4, 0).stored, 4);
	assert_int_equal(rig_load(&s, id, 4), 4);
	close_over(&s);
}

/* A heap that was the parent's, and stays as it is there. */
static int inherit(const char *dir)
{
	uint64_t bytes = pool_bytes(8 * RIG_PAGES);
	unsigned char *heap = malloc(bytes);
	struct rig r;
	pid_t pid;

	assert_non_null(heap);
	memset(heap, 0x5a, bytes);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		attach_staged(dir, 0, &r);
		use(&r, heap, 3000);
		detach(&r);
		_exit(0);
	}
	assert_int_equal(end_of(pid), 0);
	for (uint64_t i = 0; i < bytes; i++)
		assert_int_equal(heap[i], 0x5a);
	free(heap);
	return 0;
}

static void memory_of_any_kind_will_do(void **state)
{
	uint64_t bytes = pool_bytes(8 * RIG_PAGES);
	struct rig r, mine;
	unsigned char *heap;
	char path[300];
	void *mapped;
	int fd;

	set_up(&r);
	attach_staged(r.dir, 0, &mine);
	heap = malloc(bytes + 1);
	assert_non_null(heap);
	use(&mine, heap + 1, 1000); /* at an odd address */
	snprintf(path, sizeof(path), "%s/file", r.dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	assert_ptr_not_equal(mapped, MAP_FAILED);
	use(&mine, mapped, 2000);
	munmap(mapped, bytes);
	close(fd);
	detach(&mine);
	assert_int_equal(end_of(start("inherit", &r)), 0);
	assert_int_equal(rig_load(r.s, 3000, 4), 4);
	free(heap);
	rig_tear_down(&r);
}

/* Some pages of blocks, which begin and end anywhere; no other page is written. */
static void only_the_wanted_pages_are_written(void **state)
{
	uint32_t rounds = tn_test_soak() ? 2000 : 100;
	struct rig r, mine;
	struct tn_rng rng;

	set_up(&r);
	attach_staged(r.dir, 0, &mine);
	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < rounds; i++) {
		uint32_t n = 1 + (uint32_t)tn_rng_below(&rng, BLOCKS), all = n * RIG_PAGES;
		struct tn_load_opts o;
		struct tn_load *load;

		tn_load_opts_init(&o);
		o.first_page = tn_rng_below(&rng, all);
		o.npages = 1 + tn_rng_below(&rng, all - o.first_page);
		for (uint32_t p = 0; p < all; p++)
			rig_poison(mine.s, p);
		load = rig_load_begin(mine.s, 1, n, 0, &o);
		assert_int_equal(rig_load_wait(mine.s, load, RIG_LAYERS - 1), n);
		rig_load_end(mine.s, load);
		for (uint32_t p = 0; p < all; p++) {
			if (p < o.first_page || p >= o.first_page + o.npages)
				assert_true(rig_poisoned(mine.s, p));
			else
				for (uint32_t l = 0; l < RIG_LAYERS; l++)
					assert_true(rig_holds(mine.s, 1 + p / RIG_PAGES, l, p % RIG_PAGES, p));
		}
	}
	detach(&mine);
	rig_tear_down(&r);
}

/* ---- words ----------------------------------------------------------------------------------------------------- */

/* Whoever looks at the word alone, as a GPU does, finds the bytes when it has risen. */
static void a_word_rises_after_the_bytes_are_there(void **state)
{
	uint32_t rounds = tn_test_soak() ? 5000 : 200;
	struct rig r, mine;

	set_up(&r);
	attach_staged(r.dir, 0, &mine);
	for (uint32_t i = 0; i < rounds; i++) {
		const uint64_t *word[RIG_LAYERS];
		uint64_t value[RIG_LAYERS];
		struct tn_load *load;

		for (uint32_t p = 0; p < BLOCKS * RIG_PAGES; p++)
			rig_poison(mine.s, p);
		load = rig_load_begin(mine.s, 1, BLOCKS, 0, NULL);
		for (uint32_t l = 0; l < RIG_LAYERS; l++) {
			assert_int_equal(tn_load_event(load, l, &word[l], &value[l]), 0);
			while (__atomic_load_n(word[l], __ATOMIC_ACQUIRE) < value[l])
				sched_yield();
			for (uint32_t p = 0; p < BLOCKS * RIG_PAGES; p++)
				if (!rig_holds(mine.s, 1 + p / RIG_PAGES, l, p % RIG_PAGES, p))
					rig_fail(&mine, "round %u: layer %u of page %u is not there", i, l, p);
			assert_int_equal(tn_load_poll(load, l), BLOCKS);
		}
		rig_load_end(mine.s, load);
	}
	detach(&mine);
	rig_tear_down(&r);
}

/* The pages hold other bytes until the event is raised, and again after the end of the save. */
static void a_layer_is_copied_when_its_event_has_come(void **state)
{
	struct rig r, mine;
	struct tn_event *event;
	struct tn_save *save;

	set_up(&r);
	attach_staged(r.dir, 0, &mine);
	assert_int_equal(tn_event_create(mine.cache, &event), 0);
	for (uint64_t i = 0; i < 20; i++) {
		struct tn_save_result res = {.size = sizeof(res)};
		uint64_t first = 100 + 10 * i, *word = i < 10 ? NULL : tn_event_address(event);

		save = rig_save_begin(mine.s, first, 4, 0, NULL);
		for (uint32_t p = 0; p < 4 * RIG_PAGES; p++)
			rig_poison(mine.s, p);
		for (uint32_t l = 0; l < RIG_LAYERS; l++)
			assert_int_equal(tn_save_layer(save, l, event, 1 + i * RIG_LAYERS + l), 0);
		assert_int_equal(tn_save_commit(save), 0);
		assert_int_equal(tn_save_end(save, tn_test_now() + RIG_MS, &res), -ETIMEDOUT);
		for (uint32_t l = 0; l < RIG_LAYERS; l++) {
			for (uint32_t p = 0; p < 4 * RIG_PAGES; p++)
				rig_fill(mine.s, first + p / RIG_PAGES, l, p % RIG_PAGES, p);
			if (word)
				__atomic_store_n(word, 1 + i * RIG_LAYERS + l, __ATOMIC_RELEASE);
			else
				assert_int_equal(tn_event_raise(event, 1 + i * RIG_LAYERS + l), 0);
		}
		assert_int_equal(tn_save_end(save, tn_test_deadline(), &res), 0);
		for (uint32_t p = 0; p < 4 * RIG_PAGES; p++)
			rig_poison(mine.s, p);
		assert_int_equal(res.stored, 4);
		assert_int_equal(rig_load(mine.s, first, 4), 4);
		assert_int_equal(rig_load(r.s, first, 4), 4);
	}
	tn_event_destroy(event);
	detach(&mine);
	rig_tear_down(&r);
}

/* Of operations that are staged and of others, by an eventfd that was asked for before, between, and after them. */
static void completions_tell_of_both_kinds(void **state)
{
	struct rig r, mine;
	char path[PATH];

	set_up(&r);
	for (uint32_t when = 0; when < 3; when++) {
		struct tn_load *load[2] = {NULL, NULL};
		struct tn_load_opts o;
		struct rig_space mapped;
		bool ended[2] = {false, false};
		struct pollfd fd = {.events = POLLIN};

		init_in(r.dir, &mine);
		mine.o.attached = true;
		socket_path(&r, path);
		assert_int_equal(tn_cache_attach(path, patient(), &mine.cache), 0);
		if (when == 0)
			fd.fd = tn_cache_eventfd(mine.cache);
		assert_int_equal(rig_space_open(&mine, &(struct rig_space_opts){0}, &mapped), 0);
		tn_load_opts_init(&o);
		o.tag = 0;
		load[0] = rig_load_begin(&mapped, 1, BLOCKS, 0, &o);
		mine.o.staged = true;
		assert_int_equal(rig_space_open(&mine, &(struct rig_space_opts){0}, mine.s), 0);
		if (when == 1)
			fd.fd = tn_cache_eventfd(mine.cache);
		o.tag = 1;
		load[1] = rig_load_begin(mine.s, 1, BLOCKS, 0, &o);
		if (when == 2)
			fd.fd = tn_cache_eventfd(mine.cache);
		while (!ended[0] || !ended[1]) {
			struct tn_completion c[4];
			uint64_t count;
			int n;

			assert_int_equal(poll(&fd, 1, (int)(60 * 1000)), 1);
			assert_int_equal(read(fd.fd, &count, sizeof(count)), sizeof(count));
			while ((n = tn_cache_completions(mine.cache, c, 4)) > 0)
				for (int i = 0; i < n; i++) {
					assert_ptr_equal(c[i].load, load[c[i].tag]);
					ended[c[i].tag] |= c[i].ended;
				}
			assert_int_equal(n, 0);
		}
		rig_load_end(&mapped, load[0]);
		rig_load_end(mine.s, load[1]);
		rig_check_blocks(&mapped, 1, BLOCKS, 0);
		rig_check_blocks(mine.s, 1, BLOCKS, 0);
		rig_space_close(&mapped);
		detach(&mine);
	}
	rig_tear_down(&r);
}

/* ---- the session memory is full ---------------------------------------------------------------------------------- */

static int load_of(const struct rig_space *s, uint32_t n, uint32_t first_page, struct tn_load **load)
{
	struct tn_key keys[BLOCKS];
	uint32_t pages[BLOCKS * RIG_PAGES];

	rig_keys(1, n, keys);
	rig_pages(s, first_page, n, pages);
	return tn_load_begin(s->space, s->pool, keys, n, pages, NULL, load);
}

static int save_of(const struct rig_space *s, uint64_t first, uint32_t n, uint32_t first_page, struct tn_save **save)
{
	struct tn_key keys[BLOCKS];
	uint32_t pages[BLOCKS * RIG_PAGES];

	rig_keys(first, n, keys);
	rig_pages(s, first_page, n, pages);
	return tn_save_begin(s->space, s->pool, keys, n, pages, NULL, save);
}

static void what_does_not_fit_is_refused_and_leaves_nothing_behind(void **state)
{
	void *memory = malloc(pool_bytes(64));
	struct tn_save *save[2], *other;
	struct tn_load *load;
	struct rig_space s;
	struct rig r, mine;

	set_up(&r);
	attach_staged(r.dir, 0, &mine);
	open_over(&mine, memory, 64, 4 * BLOCK_BYTES + 4096, &s); /* 4 blocks of 16 */
	assert_int_equal(save_of(&s, 1000, 3, 0, &save[0]), 0);
	for (uint32_t i = 0; i < 100; i++) {
		fails(load_of(&s, 2, 32, &load), -EAGAIN, "tn_memory_alloc");
		fails(save_of(&s, 2000, 2, 32, &other), -EAGAIN, "tn_memory_alloc");
	}
	assert_int_equal(save_of(&s, 2000, 1, 32, &save[1]), 0);
	assert_int_equal(tn_save_abort(save[1]), 0);
	assert_int_equal(tn_save_end(save[1], tn_test_deadline(), NULL), 0);
	/* The pages of what was refused are free, and one block of session memory is. */
	assert_int_equal(load_of(&s, 1, 32, &load), 0);
	assert_int_equal(tn_load_wait(load, RIG_LAYERS - 1, tn_test_deadline()), 1);
	assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	rig_check_blocks(&s, 1, 1, 32);
	assert_int_equal(tn_save_abort(save[0]), 0);
	assert_int_equal(tn_save_end(save[0], tn_test_deadline(), NULL), 0);
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(load_of(&s, 4, 32, &load), 0);
		assert_int_equal(tn_load_cancel(load), 0);
		assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	}
	assert_int_equal(s.pool->stage->nfree, 4);
	close_over(&s);
	/* Less than a block is one block. */
	open_over(&mine, memory, 64, 1, &s);
	assert_int_equal(load_of(&s, 1, 32, &load), 0);
	assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	close_over(&s);
	free(memory);
	detach(&mine);
	rig_tear_down(&r);
}

static void pages_that_another_pool_has_are_refused(void **state)
{
	struct rig_space s;
	struct tn_pool_layout layout;
	struct tn_pool_shape shape = {.order = TN_POOL_PLANES_PAGES, .npages = 64};
	uint64_t base[RIG_LAYERS * 2];
	void *memory = malloc(pool_bytes(64));
	struct tn_load *load, *second;
	struct rig r, mine;

	set_up(&r);
	attach_staged(r.dir, 0, &mine);
	open_over(&mine, memory, 64, 0, &s);
	assert_int_equal(tn_layout_fill(&s.g, &shape, NULL, base, &layout), 0);
	{
		struct rig_space shifted = s;
		uint32_t pages[RIG_PAGES] = {0, 1, 2, 3};
		struct tn_key key = rig_key(1);

		/* Its page 0 begins in the middle of page 2 of the other, and it ends earlier. */
		for (uint32_t i = 0; i < RIG_LAYERS * 2; i++)
			base[i] += 2 * 4096 + 512;
		layout.npages = 32;
		assert_int_equal(tn_pool_create(s.pool->memory, &s.g, &layout, &shifted.pool), 0);
		load = rig_load_begin(&s, 1, 1, 4, NULL); /* pages 4 to 7 */
		fails(tn_load_begin(s.space, shifted.pool, &key, 1, pages, NULL, &second), -EINVAL, "another pool");
		rig_load_end(&s, load);
		assert_int_equal(tn_load_begin(s.space, shifted.pool, &key, 1, pages, NULL, &second), 0);
		fails(load_of(&s, 1, 4, &load), -EINVAL, "another pool");
		assert_int_equal(tn_load_end(second, tn_test_deadline(), NULL), 0);
		assert_int_equal(tn_pool_destroy(shifted.pool), 0);
	}
	close_over(&s);
	free(memory);
	detach(&mine);
	rig_tear_down(&r);
}

/* ---- many threads ------------------------------------------------------------------------------------------------ */

struct worker {
	struct rig *r;
	struct rig_space *s[2]; /* the same blocks: staged, and mapped by the owner */
	uint32_t number, rounds;
	uint64_t next_id;
	bool poisoned; /* the second half of its part of pool 0 is: nobody may write there */
	struct tn_rng rng;
	pthread_t thread;
};

static uint32_t pages_of(const struct worker *w, bool second)
{
	return (2 * w->number + second) * THREAD_BLOCKS * RIG_PAGES;
}

static void save_something(struct worker *w, struct rig_space *s, uint64_t id, uint32_t n)
{
	bool aborts = tn_rng_below(&w->rng, 4) == 0;
	struct tn_save_result res = {.size = sizeof(res)};
	uint32_t pages[THREAD_BLOCKS * RIG_PAGES], layer;
	struct tn_key keys[THREAD_BLOCKS];
	struct tn_save *save;
	int rc;

	rig_keys(id, n, keys);
	rig_pages(s, pages_of(w, false), n, pages);
	rc = tn_save_begin(s->space, s->pool, keys, n, pages, NULL, &save);
	if (rc == -EAGAIN)
		return; /* the write backlog */
	assert_int_equal(rc, 0);
	for (layer = 0; layer < RIG_LAYERS && !(aborts && tn_rng_below(&w->rng, 3) == 0); layer++) {
		for (uint32_t p = 0; p < n * RIG_PAGES; p++)
			rig_fill(s, id + p / RIG_PAGES, layer, p % RIG_PAGES, pages[p]);
		assert_int_equal(tn_save_layer(save, layer, NULL, 0), 0);
	}
	assert_int_equal(aborts ? tn_save_abort(save) : tn_save_commit(save), 0);
	rc = tn_save_end(save, tn_rng_below(&w->rng, 2) ? 0 : tn_test_deadline(), &res);
	if (rc == -ETIMEDOUT)
		rc = tn_save_end(save, tn_test_deadline(), &res);
	assert_int_equal(rc, 0);
	for (uint32_t p = 0; p < n * RIG_PAGES; p++)
		rig_poison(s, pages[p]); /* they are the caller's again */
}

static void load_something(struct worker *w, struct rig_space *s, uint64_t id, uint32_t n)
{
	bool cancels = tn_rng_below(&w->rng, 3) == 0;
	uint32_t first = pages_of(w, true), layer = (uint32_t)tn_rng_below(&w->rng, RIG_LAYERS);
	struct tn_load *load = rig_load_begin(s, id, n, first, NULL);
	int good = rig_load_wait(s, load, layer), rc;

	assert_true(good >= 0 && good <= (int)n);
	for (uint32_t p = 0; p < (uint32_t)good * RIG_PAGES; p++)
		if (!rig_holds(s, id + p / RIG_PAGES, layer, p % RIG_PAGES, first + p))
			rig_fail(w->r, "WRONG BYTES: thread %u, block %llu, layer %u", w->number, (unsigned long long)id + p / RIG_PAGES, layer);
	if (cancels)
		assert_int_equal(tn_load_cancel(load), 0);
	else if ((good = rig_load_wait(s, load, RIG_LAYERS - 1)) > 0)
		rig_check_blocks(s, id, (uint32_t)good, first);
	rc = tn_load_end(load, tn_rng_below(&w->rng, 2) ? 0 : tn_test_deadline(), NULL);
	while (rc == -EBUSY)
		rc = tn_load_end(load, tn_test_deadline(), NULL);
	assert_int_equal(rc, 0);
}

/* Nothing writes to pages after the end of their load, while other operations go on. */
static void poison_is_left_alone(struct worker *w)
{
	uint32_t first = pages_of(w, true);

	for (uint32_t p = 0; w->poisoned && p < THREAD_BLOCKS * RIG_PAGES; p++)
		if (!rig_poisoned(w->s[0], first + p))
			rig_fail(w->r, "thread %u: page %u was written to after the end of its load", w->number, first + p);
}

static void poison(struct worker *w)
{
	w->poisoned = true;
	for (uint32_t p = 0; p < THREAD_BLOCKS * RIG_PAGES; p++)
		rig_poison(w->s[0], pages_of(w, true) + p);
}

static void *work(void *arg)
{
	struct worker *w = arg;

	for (uint32_t i = 0; i < w->rounds; i++) {
		struct rig_space *s = w->s[tn_rng_below(&w->rng, 2)];
		uint32_t n = 1 + (uint32_t)tn_rng_below(&w->rng, THREAD_BLOCKS);

		save_something(w, s, w->next_id, n);
		poison_is_left_alone(w);
		load_something(w, w->s[tn_rng_below(&w->rng, 2)], w->next_id, n);
		poison(w);
		w->next_id += n;
	}
	return NULL;
}

static int mixture(const char *dir)
{
	struct worker w[THREADS];
	struct rig_space mapped;
	struct rig r;

	alarm(600); /* eight threads under a sanitizer */
	attach_staged(dir, 0, &r);
	open_mapped(&r, &mapped);
	for (uint32_t i = 0; i < THREADS; i++) {
		w[i] = (struct worker){.r = &r, .s = {r.s, &mapped}, .number = i, .rounds = tn_test_soak() ? 2000 : 40,
				       .next_id = 1000000ull * (i + 1)};
		tn_rng_seed(&w[i].rng, tn_test_seed() + i);
		assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	}
	for (uint32_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(w[i].thread, NULL), 0);
	assert_int_equal(r.s->pool->stage->nfree, r.s->pool->stage->nslots);
	rig_space_close(&mapped);
	detach(&r);
	return 0;
}

static void threads_use_both_kinds_at_once(void **state)
{
	struct rig r;

	set_up(&r);
	assert_int_equal(end_of(start("mixture", &r)), 0);
	assert_int_equal(rig_load(r.s, 1, 1) >= 0, 1);
	rig_tear_down(&r);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static int begin_and_hang_with(const char *dir, uint32_t stage_blocks)
{
	struct tn_load *load;
	struct tn_save *save;
	struct rig r;

	attach_staged(dir, stage_blocks, &r);
	for (uint32_t i = 0; i < 8; i++) {
		if (i % 2)
			load_of(r.s, BLOCKS, i % 6 * BLOCKS * RIG_PAGES, &load);
		else if (save_of(r.s, 1000 * (i + 64 * (uint32_t)getpid()), BLOCKS, i % 6 * BLOCKS * RIG_PAGES, &save) == 0)
			for (uint32_t l = 0; l < RIG_LAYERS; l++)
				tn_save_layer(save, l, NULL, 0);
	}
	pause();
	return 0;
}

static int begin_and_hang(const char *dir)
{
	return begin_and_hang_with(dir, 0);
}

static int begin_and_hang_in_batches(const char *dir)
{
	return begin_and_hang_with(dir, BLOCKS * 3 / 4);
}

/* Of the owner's process: the rig's, and the session memories of others. */
static uint32_t memories(struct rig *r)
{
	uint32_t n;

	pthread_mutex_lock(&r->cache->lock);
	n = r->cache->nmemories;
	pthread_mutex_unlock(&r->cache->lock);
	return n;
}

static void a_killed_process_leaves_nothing_behind(void **state)
{
	uint32_t kills = tn_test_soak() ? 1000 : 16;
	struct tn_rng rng;
	struct rig r;

	set_up(&r);
	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < kills; i += 4) {
		uint64_t until = tn_test_deadline();
		pid_t pid[4];

		for (uint32_t k = 0; k < 4; k++)
			pid[k] = start(k % 2 ? "begin_and_hang" : "begin_and_hang_in_batches", &r);
		for (uint32_t k = 0; k < 4; k++) {
			usleep(tn_rng_below(&rng, 30000));
			kill_and_wait(pid[k]);
		}
		while (memories(&r) > 1 && tn_test_now() < until)
			usleep(1000);
		assert_int_equal(memories(&r), 1);
		assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
	}
	rig_tear_down(&r);
}

/* Owns the cache in the directory of the rig, until it is killed. */
static int own(const char *dir)
{
	char path[PATH];
	struct rig r;

	init_in(dir, &r);
	rig_must_open(&r);
	socket_path(&r, path);
	assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	while (pause() < 0)
		;
	return 0;
}

/* The dead owner has no address of the pages: they are the caller's at once, and nothing is written to them any more. */
static void when_the_owner_is_killed_the_pages_are_free_at_once(void **state)
{
	uint32_t rounds = tn_test_soak() ? 200 : 6;
	struct tn_rng rng;
	struct rig r;

	rig_init(&r, 64u << 20, 0, 64);
	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 0; i < rounds; i++) {
		pid_t owner = start_owner("own", &r);
		struct tn_save_result res = {.size = sizeof(res)};
		struct tn_save *save, *open;
		struct tn_load *load;
		const uint64_t *word;
		uint64_t value;
		struct rig mine;

		attach_staged(r.dir, i % 2 * 24, &mine); /* as many as the operations below need, the last of them in batches */
		if (i == 0) {
			assert_int_equal(rig_save(mine.s, 1, BLOCKS, 0).stored, BLOCKS);
			assert_int_equal(rig_flush(&mine), 0);
		}
		open = rig_save_begin(mine.s, 5000 * (1 + i), 4, 512, NULL);
		save = rig_save_begin(mine.s, 1000 * (1 + i), 8, BLOCKS * RIG_PAGES, NULL);
		load = rig_load_begin(mine.s, 1, BLOCKS, 0, NULL);
		assert_int_equal(tn_load_event(load, RIG_LAYERS - 1, &word, &value), 0);
		rig_save_give(mine.s, save);
		usleep(tn_rng_below(&rng, 2000));
		kill_and_wait(owner);
		assert_int_equal(tn_load_wait(load, RIG_LAYERS - 1, TN_FOREVER) < (int)BLOCKS + 1, 1);
		while (tn_load_poll(load, 0) != -ESHUTDOWN)
			usleep(100);
		while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value)
			sched_yield();
		assert_int_equal(tn_load_end(load, TN_FOREVER, NULL), 0);
		for (uint32_t p = 0; p < BLOCKS * RIG_PAGES; p++)
			rig_poison(mine.s, p);
		{
			int rc = tn_save_end(save, TN_FOREVER, &res);

			assert_true(rc == -ESHUTDOWN || rc == 0);
		}
		assert_int_equal(tn_save_abort(open), 0);
		assert_int_equal(tn_save_end(open, TN_FOREVER, &res), -ESHUTDOWN);
		assert_int_equal(load_of(mine.s, 1, 0, &load), -ESHUTDOWN);
		for (uint32_t p = 0; p < BLOCKS * RIG_PAGES; p++)
			assert_true(rig_poisoned(mine.s, p));
		detach(&mine);
	}
	rig_must_open(&r);
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS); /* the next owner is warm */
	rig_tear_down(&r);
}

/* What other processes do. */
static const struct {
	const char *name;
	int (*run)(const char *dir);
} bodies[] = {
	{"load_and_save", load_and_save},
	{"load_and_save_others", load_and_save_others},
	{"inherit", inherit},
	{"mixture", mixture},
	{"begin_and_hang", begin_and_hang},
	{"begin_and_hang_in_batches", begin_and_hang_in_batches},
	{"own", own},
};

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_of_private_memory_arrive_and_are_counted),
		cmocka_unit_test(memory_of_any_kind_will_do),
		cmocka_unit_test(only_the_wanted_pages_are_written),
		cmocka_unit_test(a_word_rises_after_the_bytes_are_there),
		cmocka_unit_test(a_layer_is_copied_when_its_event_has_come),
		cmocka_unit_test(completions_tell_of_both_kinds),
		cmocka_unit_test(what_does_not_fit_is_refused_and_leaves_nothing_behind),
		cmocka_unit_test(pages_that_another_pool_has_are_refused),
		cmocka_unit_test(threads_use_both_kinds_at_once),
		cmocka_unit_test(a_killed_process_leaves_nothing_behind),
		cmocka_unit_test(when_the_owner_is_killed_the_pages_are_free_at_once),
	};

	for (size_t i = 0; argc == 3 && i < sizeof(bodies) / sizeof(bodies[0]); i++)
		if (strcmp(argv[1], bodies[i].name) == 0)
			return bodies[i].run(argv[2]);
	return tn_test_ran(cmocka_run_group_tests(tests, NULL, NULL));
}
