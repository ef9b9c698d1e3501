/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moments between an attached process and its owner that come by chance once in a million, and that a test has to arrange: it sees some calls of the
 * library first, and lets the other side act just then. And answers that come too late, or to questions that make no sense.
 */
#include <linux/futex.h>
#include <sys/syscall.h>

#include "base/error.h"
#include "front/serve.h"
#include "front/stage.h"
#include "session_rig.h"

#define REFUSED 5u /* connections that find no descriptor */

/* ---- calls of the library that are seen first ------------------------------------------------------------------------ */

ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n);
int __real_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags);
int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags);
int __real_nanosleep(const struct timespec *t, struct timespec *left);
int __wrap_nanosleep(const struct timespec *t, struct timespec *left);
void __real_tn_stage_begin(struct tn_front_op *op);
void __wrap_tn_stage_begin(struct tn_front_op *op);
void __real_tn_sessions_sleep(struct tn_cache *cache, bool asleep);
void __wrap_tn_sessions_sleep(struct tn_cache *cache, bool asleep);
int __real_tn_attached_call(struct tn_cache *cache, enum tn_wire_call kind, const struct iovec *in, int nin, const struct iovec *out, int nout);
int __wrap_tn_attached_call(struct tn_cache *cache, enum tn_wire_call kind, const struct iovec *in, int nin, const struct iovec *out, int nout);

#define HALF (BLOCKS / 2) /* as much as one of two sessions may hold of the store's slots */

static struct {
	uint32_t *completed; /* shared: the thread that listens stays in its next write until this word has changed; NULL: it does not */
	uint32_t writes;     /* shared: of it that have begun */
	uint32_t refuse, refused, naps; /* shared: connections that shall not be accepted; those that were not; naps of the server's thread */
	pid_t kill;	     /* the process that ends before the next staged operation begins; 0: none */
	const struct tn_front_op *begun; /* that operation */
	struct tn_event *raise; /* shared: the owner is about to say that it sleeps when this event gets 1; NULL: none does */
	struct rig *opens;   /* who opens a space in it once the next one that is closed has been given back; NULL: nobody */
	struct rig_space opened;
} at;

static bool is_thread(const char *name)
{
	char mine[16] = "";

	pthread_getname_np(pthread_self(), mine, sizeof(mine));
	return strcmp(mine, name) == 0;
}

ssize_t __wrap_write(int fd, const void *p, size_t n)
{
	uint32_t *word = __atomic_load_n(&at.completed, __ATOMIC_SEQ_CST), seen;

	if (word && is_thread("tenuto-listen")) {
		seen = __atomic_load_n(word, __ATOMIC_SEQ_CST);
		__atomic_add_fetch(&at.writes, 1, __ATOMIC_SEQ_CST);
		while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == seen)
			usleep(500);
	}
	return __real_write(fd, p, n);
}

int __wrap_accept4(int fd, struct sockaddr *address, socklen_t *len, int flags)
{
	if (__atomic_load_n(&at.refused, __ATOMIC_SEQ_CST) < __atomic_load_n(&at.refuse, __ATOMIC_SEQ_CST)) {
		__atomic_add_fetch(&at.refused, 1, __ATOMIC_SEQ_CST);
		errno = EMFILE;
		return -1;
	}
	return __real_accept4(fd, address, len, flags);
}

int __wrap_nanosleep(const struct timespec *t, struct timespec *left)
{
	if (is_thread("tenuto-server"))
		__atomic_add_fetch(&at.naps, 1, __ATOMIC_SEQ_CST);
	return __real_nanosleep(t, left);
}

/* Whether the thread of that name sleeps, now and for a while. */
static bool sleeps(const char *name)
{
	DIR *d = opendir("/proc/self/task");
	const struct dirent *e;
	bool asleep = false;

	assert_non_null(d);
	while ((e = readdir(d))) {
		char path[300], its[32] = "", state = '?';
		FILE *f;

		snprintf(path, sizeof(path), "/proc/self/task/%.200s/stat", e->d_name);
		f = fopen(path, "r");
		if (f && fscanf(f, "%*d (%31[^)]) %c", its, &state) == 2 && strcmp(its, name) == 0)
			asleep = state == 'S';
		if (f)
			fclose(f);
	}
	closedir(d);
	return asleep;
}

void __wrap_tn_sessions_sleep(struct tn_cache *cache, bool asleep)
{
	struct tn_event *raise = asleep ? __atomic_exchange_n(&at.raise, NULL, __ATOMIC_SEQ_CST) : NULL;

	if (raise)
		assert_int_equal(tn_event_raise(raise, 1), 0);
	__real_tn_sessions_sleep(cache, asleep);
}

/* The owner ends after the front has looked whether it is there, and the thread that copies knows it and sleeps again. */
void __wrap_tn_stage_begin(struct tn_front_op *op)
{
	if (at.kill) {
		at.begun = op;
		kill_and_wait(at.kill);
		while (!tn_region_is_gone(&op->cache->region))
			usleep(500);
		for (uint32_t times = 0; times < 20; usleep(500))
			times = sleeps("tenuto-stage") ? times + 1 : 0;
	}
	__real_tn_stage_begin(op);
}

int __wrap_tn_attached_call(struct tn_cache *cache, enum tn_wire_call kind, const struct iovec *in, int nin, const struct iovec *out, int nout)
{
	int rc = __real_tn_attached_call(cache, kind, in, nin, out, nout);
	struct rig_space_opts o = {.seed = 9999, .pages_per_block = 2 * RIG_PAGES, .no_pool = true};
	struct rig *opens = at.opens;

	if (kind == TN_WIRE_SPACE_CLOSE && opens) {
		at.opens = NULL;
		assert_int_equal(rig_space_open(opens, &o, &at.opened), 0);
	}
	return rc;
}

/* ---- processes ------------------------------------------------------------------------------------------------------- */

/* Owns the cache in the directory until it is killed. */
static int own(const char *dir)
{
	char path[PATH];
	struct rig r;

	init_in(dir, &r);
	rig_must_open(&r);
	socket_path(&r, path);
	assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	for (;;)
		pause();
	return 0;
}

/* A served cache in this process. */
static void serve(struct rig *r)
{
	char path[PATH];

	rig_set_up(r, 0, 8u << 20, 64);
	socket_path(r, path);
	assert_int_equal(tn_cache_serve(r->cache, path, NULL), 0);
	rig_save(r->s, 1, BLOCKS, 0);
}

static void join(pthread_t thread, const char *what)
{
	const struct timespec t = {time(NULL) + 60, 0};

	if (pthread_timedjoin_np(thread, NULL, &t))
		fail_msg("HANG: %s", what);
}

/* ---- wake-ups ---------------------------------------------------------------------------------------------------------- */

/* Whoever has the region can move the thread that sleeps on one of its words to another one, which nobody wakes. */
static void a_sleeper_that_is_moved_to_another_word_looks_again(void **state)
{
	struct held before;
	struct rig r, mine;

	serve(&r);
	before = held_by(&r);
	attach(r.dir, &mine);
	tn_attached_answer_within(mine.cache, 60 * RIG_SECOND);
	for (uint32_t i = 0; i < 2; i++) {
		struct tn_region_front *f = tn_region_front(&mine.cache->region);
		long moved = 0;

		rig_until(&r, moved > 0 || (moved = syscall(SYS_futex, &f->rung, FUTEX_CMP_REQUEUE, 0, 1, &f->wakes,
							    __atomic_load_n(&f->rung, __ATOMIC_SEQ_CST))) > 0);
		assert_int_equal(rig_match(mine.s, 1, BLOCKS), BLOCKS);
	}
	detach(&mine);
	all_is_given_back(&r, &before);
	rig_tear_down(&r);
}

/* Nobody wakes an owner that is awake, and nothing rings for an event: the owner has looked at the save, found nothing, and is about to sleep. */
static void an_event_that_is_raised_before_the_owner_sleeps_is_seen(void **state)
{
	uint32_t pages[HALF * RIG_PAGES];
	struct tn_key keys[HALF];
	struct tn_event *event;
	struct tn_save *save;
	struct rig r, mine;

	serve(&r);
	attach(r.dir, &mine);
	rig_keys(100, HALF, keys);
	rig_pages(mine.s, 0, HALF, pages);
	rig_fill_blocks(mine.s, 100, HALF, 0);
	assert_int_equal(tn_event_create(mine.cache, &event), 0);
	assert_int_equal(tn_save_begin(mine.s->space, mine.s->pool, keys, HALF, pages, NULL, &save), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_save_layer(save, l, event, 1), 0);
	assert_int_equal(tn_save_commit(save), 0);
	assert_int_equal(rig_flush(&r), 0); /* nothing is under way but this save */
	usleep(200000);
	__atomic_store_n(&at.raise, event, __ATOMIC_SEQ_CST);
	tn_io_wake(r.cache->io);
	assert_int_equal(tn_test_ended(tn_save_end(save, tn_test_deadline(), NULL)), 0);
	assert_int_equal(rig_match(mine.s, 100, HALF), HALF);
	tn_event_destroy(event);
	detach(&mine);
	rig_tear_down(&r);
}

struct closing {
	struct rig *r;
	pthread_t thread;
};

static void *close_in_thread(void *arg)
{
	struct closing *c = arg;

	assert_int_equal(tn_cache_close(c->r->cache), 0);
	return NULL;
}

/* The thread is about to sleep when it is told to end. */
static void a_listener_that_is_told_to_end_before_it_sleeps_ends(void **state)
{
	struct closing c;
	struct rig r, mine;

	serve(&r);
	init_in(r.dir, &mine);
	mine.o.attached = true;
	{
		char path[PATH];

		socket_path(&r, path);
		assert_int_equal(tn_cache_attach(path, patient(), &mine.cache), 0);
	}
	__atomic_store_n(&at.completed, &tn_region_core(&mine.cache->region)->completed, __ATOMIC_SEQ_CST);
	assert_true(tn_cache_eventfd(mine.cache) >= 0);
	rig_until(&r, __atomic_load_n(&at.writes, __ATOMIC_SEQ_CST) > 0);
	c.r = &mine;
	assert_int_equal(pthread_create(&c.thread, NULL, close_in_thread, &c), 0);
	join(c.thread, "closing a cache that has an eventfd");
	__atomic_store_n(&at.completed, NULL, __ATOMIC_SEQ_CST);
	rig_tear_down(&r);
}

/* A connection that no descriptor is left for waits, and the server's thread with it: it naps, as the socket stays readable. */
static void without_descriptors_the_server_naps(void **state)
{
	struct rig r, mine;
	uint32_t naps;

	serve(&r);
	naps = __atomic_load_n(&at.naps, __ATOMIC_SEQ_CST);
	__atomic_store_n(&at.refuse, REFUSED, __ATOMIC_SEQ_CST);
	attach(r.dir, &mine);
	assert_int_equal(__atomic_load_n(&at.refused, __ATOMIC_SEQ_CST), REFUSED);
	assert_int_equal(__atomic_load_n(&at.naps, __ATOMIC_SEQ_CST) - naps, REFUSED);
	detach(&mine);
	rig_tear_down(&r);
}

/* ---- an owner that goes ------------------------------------------------------------------------------------------------ */

static void a_staged_operation_that_begins_as_the_owner_goes_ends(void **state)
{
	uint32_t pages[BLOCKS * RIG_PAGES];
	struct tn_key keys[BLOCKS];
	struct tn_load *load;
	struct rig r, mine;

	rig_init(&r, 64u << 20, 0, 64);
	at.kill = start_owner("own", &r);
	init_in(r.dir, &mine);
	mine.o.attached = mine.o.staged = true;
	{
		char path[PATH];

		socket_path(&r, path);
		assert_int_equal(tn_cache_attach(path, patient(), &mine.cache), 0);
	}
	assert_int_equal(rig_space_open(&mine, &(struct rig_space_opts){0}, mine.s), 0);
	rig_keys(1, BLOCKS, keys);
	rig_pages(mine.s, 0, BLOCKS, pages);
	assert_int_equal(tn_load_begin(mine.s->space, mine.s->pool, keys, BLOCKS, pages, NULL, &load), 0);
	at.kill = 0;
	/* Nobody calls: who waits for the event words or the eventfd alone, as a stream does, goes on. */
	rig_until(&r, tn_face_is_drained(at.begun->region, at.begun->number, at.begun->generation));
	assert_int_equal(tn_test_ended(tn_load_wait(load, 0, tn_test_deadline())), -ESHUTDOWN);
	assert_int_equal(tn_test_ended(tn_load_end(load, tn_test_deadline(), NULL)), 0);
	detach(&mine);
	rig_tear_down(&r);
}

/* Whether the dead owner's reads can still land is not known, if its store's file cannot be looked at: the pages stay the load's. */
static void pages_are_not_given_back_on_a_guess(void **state)
{
	char file[512], away[520];
	struct tn_load *load;
	struct rig r, mine;
	pid_t owner;

	rig_init(&r, 64u << 20, 0, 64);
	owner = start_owner("own", &r);
	attach(r.dir, &mine);
	assert_int_equal(rig_save(mine.s, 1, BLOCKS, 0).stored, BLOCKS);
	stop_and_wait(owner);
	load = rig_load_begin(mine.s, 1, BLOCKS, 0, NULL);
	snprintf(file, sizeof(file), "%s/default/tenuto.store", r.dir);
	snprintf(away, sizeof(away), "%s.away", file);
	assert_int_equal(rename(file, away), 0);
	kill_and_wait(owner);
	rig_until(&r, rig_match(mine.s, 1, 1) == -ESHUTDOWN);
	assert_int_equal(tn_load_end(load, tn_test_now(), NULL), -EBUSY);
	assert_int_equal(tn_load_end(load, tn_test_now() + 5 * RIG_MS, NULL), -EBUSY);
	assert_int_equal(rename(away, file), 0);
	assert_int_equal(tn_test_ended(tn_load_end(load, tn_test_deadline(), NULL)), 0);
	detach(&mine);
	rig_tear_down(&r);
}

/* ---- spaces ------------------------------------------------------------------------------------------------------------- */

/* Once the owner has answered that a space is closed, its number is the next one's: also before the call that closed it returns. */
static void a_number_that_another_space_has_got_meanwhile_is_that_spaces(void **state)
{
	static struct rig_space held[TN_SPACES_MAX];
	struct rig_space_opts o = {.no_pool = true};
	struct rig_space closed;
	struct rig r, mine;
	uint16_t number;

	serve(&r);
	attach(r.dir, &mine);
	o.seed = 1;
	assert_int_equal(rig_space_open(&mine, &o, &closed), 0);
	number = closed.space->index;
	for (uint64_t i = 2; i < TN_SPACES_MAX; i++) { /* that one alone can make way */
		o.seed = i;
		assert_int_equal(rig_space_open(&r, &o, &held[i]), 0);
	}
	at.opens = &mine;
	rig_space_close(&closed);
	assert_null(at.opens);
	assert_int_equal(at.opened.space->index, number);
	assert_int_equal(at.opened.space->geometry.pages_per_block, 2 * RIG_PAGES);
	assert_int_equal(at.opened.space->refs, 1);
	rig_space_close(&at.opened);
	detach(&mine);
	for (uint64_t i = 2; i < TN_SPACES_MAX; i++)
		rig_space_close(&held[i]);
	rig_tear_down(&r);
}

/* A quota evicts what is beyond it. Neither a process that may only read sets one, nor the rule that says so. */
static void who_only_reads_sets_no_quota(void **state)
{
	struct tn_attach_opts o = *patient();
	struct tn_serve_opts so;
	struct tn_serve_rule rule;
	struct tn_quota q;
	struct rig r, mine;
	char path[PATH];

	rig_set_up(&r, 64u << 20, 8u << 20, 64);
	tn_quota_init(&q);
	q.bytes[TN_TIER_DISK] = q.bytes[TN_TIER_HOST] = 1;
	tn_serve_rule_init(&rule);
	rule.uid = geteuid();
	rule.read_only = true;
	rule.quota = &q;
	tn_serve_opts_init(&so);
	so.rules = &rule;
	so.nrules = 1;
	socket_path(&r, path);
	assert_int_equal(tn_cache_serve(r.cache, path, &so), 0);
	assert_int_equal(rig_save(r.s, 1, BLOCKS, 0).stored, BLOCKS);
	init_in(r.dir, &mine);
	mine.o.attached = true;
	assert_int_equal(tn_cache_attach(path, &o, &mine.cache), 0);
	for (uint32_t asks = 0; asks < 2; asks++) {
		assert_int_equal(rig_space_open(&mine, &(struct rig_space_opts){.quota = asks ? &q : NULL}, mine.s), 0);
		assert_true(tn_space_quota(r.s->space, TN_TIER_DISK) == UINT64_MAX);
		assert_true(tn_space_quota(r.s->space, TN_TIER_HOST) == UINT64_MAX);
		rig_space_close(mine.s);
	}
	assert_int_equal(tn_cache_close(mine.cache), 0);
	assert_int_equal(rig_match(r.s, 1, BLOCKS), BLOCKS);
	rig_tear_down(&r);
}

/* ---- calls --------------------------------------------------------------------------------------------------------------- */

static int ask_plan(struct rig *r, uint32_t blocks, uint32_t ntiers, uint32_t sent)
{
	static uint8_t tiers[4096];
	struct tn_plan plan = {.size = sizeof(plan)};
	struct tn_wire_plan w = {.space = r->s->space->index, .ntiers = ntiers, .input_tokens = 1000};
	const struct iovec in[] = {{&w, sizeof(w)}, {tiers, sent}}, out = {&plan, sizeof(plan)};

	w.match.size = sizeof(w.match);
	w.match.blocks = blocks;
	return __real_tn_attached_call(r->cache, TN_WIRE_PLAN, in, 2, &out, 1);
}

/* A front that keeps its rules never asks so. */
static void plans_of_more_blocks_than_there_can_be_are_refused(void **state)
{
	struct rig r, mine;
	uint32_t most;

	serve(&r);
	attach(r.dir, &mine);
	most = r.cache->o.max_op_blocks;
	assert_true(most < 4000);
	assert_int_equal(ask_plan(&mine, most, most, most), 0);
	assert_int_equal(ask_plan(&mine, most, 0, 0), 0);
	assert_int_equal(ask_plan(&mine, most + 1, most + 1, most + 1), 0); /* of a match in several parts */
	assert_int_equal(ask_plan(&mine, 1u << 20, 0, 0), 0);
	assert_int_equal(ask_plan(&mine, (1u << 20) + 1, 0, 0), -EINVAL);
	assert_int_equal(ask_plan(&mine, UINT32_MAX, 0, 0), -EINVAL);
	assert_int_equal(ask_plan(&mine, most, most, most - 1), -EINVAL); /* the last tier would be a stranger's byte */
	assert_int_equal(ask_plan(&mine, most, most - 1, most), -EINVAL);
	assert_int_equal(rig_match(mine.s, 1, BLOCKS), BLOCKS);
	detach(&mine);
	rig_tear_down(&r);
}

/* Asks something while the session's thread waits for a lock. */
static void *plan_in_thread(void *arg)
{
	struct rig *r = arg;

	assert_int_equal(ask_plan(r, 1, 0, 0), 0);
	return NULL;
}

static bool is_asked(const struct rig *r, uint32_t kind)
{
	const struct tn_region *g = &r->cache->region;
	bool is = false;

	for (uint32_t i = 0; i < TN_WIRE_CALLS; i++)
		is |= __atomic_load_n(&tn_call_asked(g, i)->turn, __ATOMIC_ACQUIRE) != __atomic_load_n(&tn_call_told(g, i)->turn, __ATOMIC_ACQUIRE) &&
		      tn_call_asked(g, i)->kind == kind;
	return is;
}

/* What the owner has of memories and of sessions' pools. */
static uint32_t kept(struct rig *r)
{
	uint32_t n;

	pthread_mutex_lock(&r->cache->lock);
	n = r->cache->nmemories;
	for (uint32_t i = TN_POOLS_OWN; i < TN_POOLS_MAX; i++)
		n += __atomic_load_n(&r->cache->pools[i], __ATOMIC_ACQUIRE) != NULL;
	pthread_mutex_unlock(&r->cache->lock);
	return n;
}

/* The answer comes when nobody waits for it any more: pool and session memory are given back all the same. */
static void a_staged_pool_whose_answer_comes_too_late_leaves_nothing_at_the_owner(void **state)
{
	uint64_t base[TN_PLANES_MAX * 8];
	struct tn_pool_layout layout = {.base = base};
	struct tn_pool *pool;
	struct rig r, mine;
	pthread_t thread;
	uint32_t before;
	int rc;

	serve(&r);
	init_in(r.dir, &mine);
	mine.o.attached = mine.o.staged = true;
	{
		char path[PATH];

		socket_path(&r, path);
		assert_int_equal(tn_cache_attach(path, patient(), &mine.cache), 0);
	}
	assert_int_equal(rig_space_open(&mine, &(struct rig_space_opts){0}, mine.s), 0);
	layout.npages = mine.s->npages;
	memcpy(layout.stride, mine.s->pool->layout.stride, sizeof(layout.stride));
	for (uint32_t k = 0; k < mine.s->g.layers * mine.s->g.nplanes; k++)
		base[k] = mine.s->pool->layout.base[k];
	before = kept(&r);
	tn_attached_answer_within(mine.cache, 600 * RIG_SECOND);
	assert_int_equal(pthread_mutex_lock(&r.s->space->plan_lock), 0);
	assert_int_equal(pthread_create(&thread, NULL, plan_in_thread, &mine), 0);
	rig_until(&r, is_asked(&mine, TN_WIRE_PLAN));
	tn_attached_answer_within(mine.cache, 100 * RIG_MS);
	/* If the session's thread is faster, once more: then it waits. */
	while ((rc = tn_pool_create(mine.s->pool->memory, &mine.s->g, &layout, &pool)) == 0) {
		tn_attached_answer_within(mine.cache, 600 * RIG_SECOND);
		assert_int_equal(tn_pool_destroy(pool), 0);
		tn_attached_answer_within(mine.cache, 100 * RIG_MS);
	}
	assert_int_equal(rc, -ETIMEDOUT);
	assert_int_equal(pthread_mutex_unlock(&r.s->space->plan_lock), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	tn_attached_answer_within(mine.cache, 600 * RIG_SECOND);
	/* The next calls give it back. */
	rig_until(&r, tn_pool_create(mine.s->pool->memory, &mine.s->g, &layout, &pool) == 0);
	assert_int_equal(tn_pool_destroy(pool), 0);
	assert_int_equal(kept(&r), before);
	detach(&mine);
	rig_until(&r, kept(&r) == 1); /* the owner's own memory */
	rig_tear_down(&r);
}

/* ---- a test that fails ----------------------------------------------------------------------------------------------- */

static void *fail_in_thread(void *arg)
{
	fail_msg("this is the failure that the test wants");
	return NULL;
}

static int fail_beside_a_process(const char *dir)
{
	pthread_t thread;
	struct rig r;

	init_in(dir, &r);
	stop_and_wait(start_owner("own", &r));
	assert_int_equal(pthread_create(&thread, NULL, fail_in_thread, NULL), 0);
	pthread_join(thread, NULL);
	return 0;
}

/* Also a process that is stopped; whoever kept it would keep the terminal, and the program that reads the test's output would wait. */
static void a_failed_assertion_of_a_thread_ends_the_test_and_its_processes(void **state)
{
	struct tn_cache *cache;
	char path[PATH];
	struct rig r;

	rig_init(&r, 64u << 20, 0, 64);
	socket_path(&r, path);
	assert_int_equal(end_of(start("fail", &r)), 1000 + SIGABRT);
	rig_until(&r, tn_cache_attach(path, attach_by(tn_test_now() + 100 * RIG_MS), &cache) == -ECONNREFUSED);
	rig_tear_down(&r);
}

int main(int argc, char **argv)
{
	static const struct body bodies[] = {{"own", own}, {"fail", fail_beside_a_process}, {NULL, NULL}};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sleeper_that_is_moved_to_another_word_looks_again),
		cmocka_unit_test(an_event_that_is_raised_before_the_owner_sleeps_is_seen),
		cmocka_unit_test(a_listener_that_is_told_to_end_before_it_sleeps_ends),
		cmocka_unit_test(without_descriptors_the_server_naps),
		cmocka_unit_test(a_staged_operation_that_begins_as_the_owner_goes_ends),
		RIG_FILE_TEST(pages_are_not_given_back_on_a_guess),
		cmocka_unit_test(a_number_that_another_space_has_got_meanwhile_is_that_spaces),
		cmocka_unit_test(who_only_reads_sets_no_quota),
		cmocka_unit_test(plans_of_more_blocks_than_there_can_be_are_refused),
		cmocka_unit_test(a_staged_pool_whose_answer_comes_too_late_leaves_nothing_at_the_owner),
		cmocka_unit_test(a_failed_assertion_of_a_thread_ends_the_test_and_its_processes),
	};
	int rc = run_body(argc, argv, bodies);

	return rc >= 0 ? rc : cmocka_run_group_tests(tests, NULL, NULL);
}
