/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owners that end, or stop: what the processes that are attached learn of it, by when, and what becomes of their pages. How attached
 * processes end is session_ends_test.c.
 */
#include <pthread.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/syscall.h>

#include "session_rig.h"
#include "stalled_disk.h"

#define LEASES 64u /* of a cache with max_ops as rig_init has it */
#define ENGINE "TN_TEST_ENGINE" /* of the next owner that is started */

/* Owns the cache in the directory of the rig, until it is killed, or told to close. */
static int own_until_told(const char *dir, bool forks)
{
	char path[PATH];
	sigset_t term;
	struct rig r;
	int signal;

	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	assert_int_equal(pthread_sigmask(SIG_BLOCK, &term, NULL), 0);
	init_in(dir, &r);
	r.o.cache.io_engine = getenv(ENGINE);
	rig_must_open(&r);
	socket_path(&r, path);
	assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	if (forks && fork() == 0)
		for (;;)
			pause();
	assert_int_equal(sigwait(&term, &signal), 0);
	return rig_close(&r);
}

static int own(const char *dir)
{
	return own_until_told(dir, false);
}

/* A child has copies of all its descriptors. It goes with the session of processes, which the test kills. */
static int own_and_fork(const char *dir)
{
	setpgid(0, 0);
	return own_until_told(dir, true);
}

/* ---- an owner that is killed ------------------------------------------------------------------------------------- */

/* Processes and threads that wait when the owner is killed. */
struct waiting {
	struct rig *r;
	struct tn_load *load;
	struct tn_save *save; /* waits for an event that nobody raises */
	uint32_t killed;      /* shared */
};

/* A thread of it; how its last call ended, and when. */
struct waiter {
	struct waiting *w;
	pthread_t thread;
	int rc;
	uint64_t end_ns;
};

static int wait_for_load(struct waiting *w)
{
	return tn_load_wait(w->load, RIG_LAYERS - 1, TN_FOREVER);
}

static int wait_for_save(struct waiting *w)
{
	struct tn_save_result res = {.size = sizeof(res)};

	return tn_save_end(w->save, TN_FOREVER, &res);
}

static int wait_for_flush(struct waiting *w)
{
	int rc;

	do
		rc = tn_flush(w->r->cache, TN_FOREVER);
	while (rc == 0);
	return rc;
}

static int look_up(struct waiting *w)
{
	int rc;

	do
		rc = rig_match(w->r->s, 1, BLOCKS);
	while (rc >= 0);
	return rc;
}

static int (*const waits[])(struct waiting *w) = {wait_for_load, wait_for_save, wait_for_flush, look_up};
#define WAITS (sizeof(waits) / sizeof(waits[0]))

static struct waiter waiters[WAITS];

static void *wait_in_thread(void *arg)
{
	struct waiter *waiter = arg;

	waiter->rc = waits[waiter - waiters](waiter->w);
	waiter->end_ns = tn_test_now();
	return NULL;
}

/* Others attach meanwhile: they are attached, or learn that nobody serves. One that dies slowly may not answer. */
static void *attach_in_thread(void *arg)
{
	struct waiting *w = arg;
	struct tn_cache *cache;
	char path[PATH];
	uint32_t killed;
	int rc;

	socket_path(w->r, path);
	do {
		killed = __atomic_load_n(&w->killed, __ATOMIC_SEQ_CST);
		rc = tn_cache_attach(path, attach_by(tn_test_now() + 200 * RIG_MS), &cache);
		if (rc == 0)
			tn_cache_close(cache);
		else
			assert_true(rc == -ECONNREFUSED || rc == -ETIMEDOUT);
	} while (!killed);
	return NULL;
}

static void join(pthread_t thread, const char *what)
{
	const struct timespec t = {time(NULL) + 60, 0};

	if (pthread_timedjoin_np(thread, NULL, &t))
		fail_msg("HANG: %s", what);
}

static void all_calls_say_so(struct rig *r, struct tn_load *load)
{
	struct tn_match m = {.size = sizeof(m)};
	struct tn_key key = rig_key(1);
	uint32_t pages[RIG_PAGES] = {0};
	struct tn_load *other;
	uint64_t value;

	assert_int_equal(tn_load_wait(load, RIG_LAYERS - 1, TN_FOREVER), -ESHUTDOWN);
	assert_int_equal(tn_load_poll(load, 0), -ESHUTDOWN);
	assert_int_equal(tn_match(r->s->space, &key, 1, NULL, &m, 0), -ESHUTDOWN);
	assert_int_equal(tn_load_begin(r->s->space, r->s->pool, &key, 1, pages, NULL, &other), -ESHUTDOWN);
	assert_int_equal(tn_flush(r->cache, TN_FOREVER), -ESHUTDOWN);
	assert_int_equal(tn_drop(r->s->space, &key, 1), -ESHUTDOWN);
	assert_int_equal(tn_cache_stat(r->cache, "loads", &value), -ESHUTDOWN);
}

/* Kills the owner while all wait. How long the last of them took to learn of it. */
static uint64_t kill_while_all_wait(pid_t owner, struct waiting *w, uint64_t after_us)
{
	pthread_t attaching;
	uint64_t from, last = 0;

	for (uint32_t i = 0; i < WAITS; i++) {
		waiters[i].w = w;
		assert_int_equal(pthread_create(&waiters[i].thread, NULL, wait_in_thread, &waiters[i]), 0);
	}
	assert_int_equal(pthread_create(&attaching, NULL, attach_in_thread, w), 0);
	usleep((useconds_t)after_us);
	from = tn_test_now();
	assert_int_equal(kill(owner, SIGKILL), 0);
	__atomic_store_n(&w->killed, 1, __ATOMIC_SEQ_CST);
	for (uint32_t i = 0; i < WAITS; i++) {
		join(waiters[i].thread, "a wait for an owner that was killed");
		assert_true(waiters[i].rc == -ESHUTDOWN || (i == 0 && waiters[i].rc >= 0));
		if (waiters[i].end_ns > from && waiters[i].end_ns - from > last)
			last = waiters[i].end_ns - from;
	}
	all_calls_say_so(w->r, w->load);
	join(attaching, "attaching to an owner that was killed");
	return last;
}

/* A save that waits for its caller for ever. */
static struct tn_save *begin_save(struct rig *r, struct tn_event *event)
{
	struct tn_save *save = rig_save_begin(r->s, 5000, 8, BLOCKS * RIG_PAGES, NULL);

	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_save_layer(save, l, event, 1), 0);
	assert_int_equal(tn_save_commit(save), 0);
	return save;
}

struct killing {
	struct rig *r;
	struct stalled_disk *disk; /* that is to hang; NULL: it does not */
	pid_t owner;
	struct tn_rng *rng;
};

/* One owner's end, and the next one's beginning. Returns how long the last wait took to learn of it. */
static uint64_t an_owner_is_killed(struct killing *k)
{
	struct tn_event *event;
	struct waiting w = {0};
	struct rig mine;
	uint64_t took;

	attach(k->r->dir, &mine);
	assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS); /* the owner is warm */
	assert_int_equal(tn_event_create(mine.cache, &event), 0);
	if (k->disk)
		stalled_disk_stop(k->disk);
	w.r = &mine;
	w.load = rig_load_begin(mine.s, 1, BLOCKS, 0, NULL);
	w.save = begin_save(&mine, event);
	for (uint64_t until = tn_test_deadline(); k->disk && stalled_disk_reads(k->disk) == 0 && tn_test_now() < until; usleep(500))
		;
	took = kill_while_all_wait(k->owner, &w, tn_rng_below(k->rng, 3000));
	if (k->disk) {
		/* The dead owner's reads may still land. */
		assert_int_equal(tn_load_end(w.load, tn_test_now() + 5 * RIG_MS, NULL), -EBUSY);
		stalled_disk_go_on(k->disk);
	}
	assert_int_equal(tn_load_end(w.load, tn_test_deadline(), NULL), 0);
	for (uint32_t p = 0; p < BLOCKS * RIG_PAGES; p++)
		rig_poison(mine.s, p);
	assert_int_equal(waitpid(k->owner, NULL, 0), k->owner);
	k->owner = start_owner("own", k->r);
	for (uint32_t p = 0; p < BLOCKS * RIG_PAGES; p++)
		assert_true(rig_poisoned(mine.s, p));
	tn_event_destroy(event);
	detach(&mine);
	return took;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void owners_are_killed(struct rig *r, struct stalled_disk *disk, uint32_t rounds)
{
	struct killing k = {.r = r};
	struct tn_rng rng;
	struct rig mine;
	uint64_t took[200];

	tn_rng_seed(&rng, tn_test_seed());
	k.rng = &rng;
	k.owner = start_owner("own", r);
	attach(r->dir, &mine);
	assert_int_equal(rig_save(mine.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(&mine), 0);
	detach(&mine);
	for (uint32_t i = 0; i < rounds; i++) {
		/* The next owner's: threads that hang in the kernel, or requests of an io_uring. */
		assert_int_equal(setenv(ENGINE, i % 2 ? "auto" : "posix", 1), 0);
		k.disk = i % 4 >= 2 ? disk : NULL;
		took[i] = an_owner_is_killed(&k);
	}
	kill_and_wait(k.owner);
	qsort(took, rounds, sizeof(*took), by_size);
	printf("# %u owners killed%s: the last wait ended after %.1f ms (median), %.1f ms (p95), %.1f ms at most\n", rounds,
	       disk ? ", half of them while their disk hung" : "", took[rounds / 2] / 1e6, took[rounds * 95 / 100] / 1e6, took[rounds - 1] / 1e6);
}

static void when_the_owner_is_killed_every_wait_ends_and_the_next_owner_is_warm(void **state)
{
	struct rig r;

	rig_init(&r, 64u << 20, 0, 64);
	owners_are_killed(&r, NULL, tn_test_soak() ? 100 : 4);
	rig_tear_down(&r);
}

static void init_on(struct stalled_disk *disk, struct rig *r)
{
	const char *was = getenv("TMPDIR");
	char *old = was ? strdup(was) : NULL;

	assert_int_equal(setenv("TMPDIR", disk->path, 1), 0);
	rig_init(r, 64u << 20, 0, 64);
	if (old)
		setenv("TMPDIR", old, 1);
	else
		unsetenv("TMPDIR");
	free(old);
}

static void pages_stay_busy_while_the_disk_of_a_killed_owner_hangs(void **state)
{
	struct stalled_disk disk;
	const char *no = stalled_disk_create(&disk);
	struct rig r;

	if (no)
		tn_test_skip(no);
	init_on(&disk, &r);
	owners_are_killed(&r, &disk, tn_test_soak() ? 100 : 4);
	rig_tear_down(&r);
	stalled_disk_destroy(&disk);
}

/* The child of own_and_keep_locks. The owner's number must be free once it is reaped: a process group would keep it. */
static void keeper_path(const char *dir, char *path, size_t bytes)
{
	snprintf(path, bytes, "%s/keeper", dir);
}

static void kill_keeper(const char *dir)
{
	char path[300];
	FILE *f;
	int pid;

	keeper_path(dir, path, sizeof(path));
	f = fopen(path, "re");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%d", &pid), 1);
	fclose(f);
	unlink(path);
	assert_int_equal(kill(pid, SIGKILL), 0);
}

/* Owns it with a child that the library knows nothing of, which keeps the locks as a transfer does that the kernel has not ended. */
static int own_and_keep_locks(const char *dir)
{
	char path[PATH], keeper[300];
	struct rig r;
	long pid;
	FILE *f;

	init_in(dir, &r);
	rig_must_open(&r);
	socket_path(&r, path);
	keeper_path(dir, keeper, sizeof(keeper));
	pid = syscall(SYS_clone, (long)SIGCHLD, 0l, 0l, 0l, 0l);
	if (pid == 0) {
		alarm(180);
		for (;;)
			pause();
	}
	f = fopen(keeper, "we");
	assert_non_null(f);
	fprintf(f, "%ld", pid);
	fclose(f);
	assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	pause(); /* until it is killed */
	return 1;
}

/* The owner is dead and reaped, and its locks are not gone: its pages are not given back. */
static int wait_for_locks(const char *dir)
{
	struct tn_load *load;
	struct rig r, mine;
	pid_t owner;

	init_in(dir, &r);
	owner = start_owner("own_and_keep_locks", &r);
	attach(dir, &mine);
	assert_int_equal(rig_save(mine.s, 1, BLOCKS, 0).stored, BLOCKS);
	stop_and_wait(owner);
	load = rig_load_begin(mine.s, 1, BLOCKS, 0, NULL);
	kill_and_wait(owner);
	while (rig_match(mine.s, 1, 1) != -ESHUTDOWN)
		usleep(500);
	assert_int_equal(tn_load_end(load, tn_test_now() + 5 * RIG_MS, NULL), -EBUSY);
	kill_keeper(dir);
	assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	detach(&mine);
	fflush(stdout);
	_exit(0); /* LeakSanitizer cannot look about in the first process of a namespace */
}

/* Closes a cache of which a load has not ended. What it leaves to be freed is the pages alone. */
static void abandon(struct rig *r, struct tn_load *load)
{
	const struct rig_space left = *r->s;

	assert_int_equal(tn_pool_destroy(r->s->pool), -EBUSY);
	assert_int_equal(tn_cache_close(r->cache), 0);
	assert_int_equal(tn_load_end(load, 0, NULL), -EINVAL);
	rig_memory_free(r, left.memory, left.memory_bytes);
}

static void a_cache_whose_pages_stay_busy_can_be_closed(void **state)
{
	struct rig r, mine;
	struct tn_load *load;
	pid_t owner;
	uint32_t descriptors;

	rig_init(&r, 64u << 20, 0, 64);
	owner = start_owner("own_and_keep_locks", &r);
	descriptors = entries("/proc/self/fd");
	for (int staged = 0; staged < 2; staged++) {
		char path[PATH];

		init_in(r.dir, &mine);
		mine.o.attached = true;
		mine.o.staged = staged;
		socket_path(&r, path);
		assert_int_equal(tn_cache_attach(path, patient(), &mine.cache), 0);
		assert_int_equal(rig_space_open(&mine, &(struct rig_space_opts){0}, mine.s), 0);
		if (!staged) {
			assert_int_equal(rig_save(mine.s, 1, BLOCKS, 0).stored, BLOCKS);
			assert_int_equal(rig_flush(&mine), 0);
		}
		stop_and_wait(owner);
		load = rig_load_begin(mine.s, 1, BLOCKS, 0, NULL);
		kill_and_wait(owner);
		while (rig_match(mine.s, 1, 1) != -ESHUTDOWN)
			usleep(500);
		if (!staged)
			assert_int_equal(tn_load_end(load, tn_test_now() + 5 * RIG_MS, NULL), -EBUSY);
		abandon(&mine, load);
		assert_int_equal(entries("/proc/self/fd"), descriptors);
		kill_keeper(r.dir);
		owner = start_owner(staged ? "own" : "own_and_keep_locks", &r); /* the next one, to which it attaches again */
	}
	attach(r.dir, &mine);
	assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS);
	detach(&mine);
	assert_int_equal(kill(owner, SIGTERM), 0);
	assert_int_equal(end_of(owner), 0);
	rig_tear_down(&r);
}

/* The same in a PID namespace of its own, as in a container. */
static int wait_for_locks_in_a_container(const char *dir)
{
	pid_t pid;

	if (unshare(CLONE_NEWPID | CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return TN_TEST_SKIP;
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		alarm(180);
		if (mount("proc", "/proc", "proc", 0, NULL))
			_exit(TN_TEST_SKIP);
		execl("/proc/self/exe", "session-test", "wait_for_locks", dir, (char *)NULL);
		_exit(127);
	}
	fflush(stdout);
	_exit(end_of(pid)); /* LeakSanitizer begins a thread, and none begins where the first process has ended */
}

static void pages_stay_busy_while_a_dead_owners_locks_are_there(void **state)
{
	struct rig r;
	int rc;

	rig_init(&r, 64u << 20, 0, 64);
	assert_int_equal(end_of(start("wait_for_locks", &r)), 0);
	rig_tear_down(&r);
	rig_init(&r, 64u << 20, 0, 64);
	rc = end_of(start("wait_for_locks_in_a_container", &r));
	rig_tear_down(&r);
	if (rc == TN_TEST_SKIP)
		tn_test_skip("a PID namespace takes root");
	assert_int_equal(rc, 0);
}

/* Kills the owner, and waits until that is known here, when the time is asked for next. */
static struct {
	pid_t owner;
	struct tn_cache *cache;
} dying;

static uint64_t kill_and_tell_time(void *arg)
{
	pid_t pid = dying.owner;

	dying.owner = 0;
	if (pid)
		kill_and_wait(pid);
	while (pid && !tn_region_is_dead(&dying.cache->region))
		usleep(500);
	return tn_now_ns(&tn_clock_system);
}

static void event_words_rise_although_the_owner_dies_while_a_load_begins(void **state)
{
	const struct tn_clock clock = {.now_ns = kill_and_tell_time};
	const uint64_t *word;
	struct tn_load *load;
	struct rig r, mine;
	uint64_t value;
	pid_t owner;

	rig_init(&r, 64u << 20, 0, 64);
	unsetenv(ENGINE);
	owner = start_owner("own", &r);
	attach(r.dir, &mine);
	assert_int_equal(rig_save(mine.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS);
	mine.cache->clock = clock; /* a load that begins asks for the time after it has looked whether the owner is there */
	dying.cache = mine.cache;
	dying.owner = owner;
	load = rig_load_begin(mine.s, 1, BLOCKS, 0, NULL);
	assert_int_equal(dying.owner, 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++) {
		assert_int_equal(tn_load_event(load, l, &word, &value), 0);
		rig_until(&mine, !mine.s->pool->stage || __atomic_load_n(word, __ATOMIC_ACQUIRE) >= value); /* a thread raises those of staged loads */
		assert_true(__atomic_load_n(word, __ATOMIC_ACQUIRE) >= value);
	}
	assert_int_equal(tn_load_wait(load, 0, TN_FOREVER), -ESHUTDOWN);
	assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	detach(&mine);
	rig_tear_down(&r);
}

static void a_killed_owners_child_keeps_nobody_from_its_socket(void **state)
{
	pid_t owner, next;
	struct rig r, mine;

	rig_init(&r, 64u << 20, 0, 64);
	owner = start_owner("own_and_fork", &r);
	attach(r.dir, &mine);
	kill_and_wait(owner);
	while (rig_match(mine.s, 1, 1) != -ESHUTDOWN)
		usleep(1000);
	detach(&mine);
	next = start_owner("own", &r);
	attach(r.dir, &mine);
	assert_int_equal(rig_save(mine.s, 1, BLOCKS, 0).stored, BLOCKS);
	detach(&mine);
	assert_int_equal(kill(-owner, SIGKILL), 0); /* the child was there all the time */
	kill_and_wait(next);
	rig_tear_down(&r);
}

/* ---- an owner that closes ------------------------------------------------------------------------------------------ */

static void a_cache_that_is_closed_lets_its_processes_go(void **state)
{
	struct rig r, mine;

	set_up(&r);
	attach(r.dir, &mine); /* in the same process, which is allowed */
	assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(rig_close(&r), 0);
	while (rig_match(mine.s, 1, 1) != -ESHUTDOWN)
		usleep(1000);
	detach(&mine);
	rig_tear_down(&r);
}

/* Attaches and closes until it is told to stop. Every attempt ends in one of the ways that it may. */
static void *come_and_go(void *arg)
{
	struct waiting *w = arg;
	struct tn_cache *cache;
	char path[PATH];

	socket_path(w->r, path);
	while (!__atomic_load_n(&w->killed, __ATOMIC_SEQ_CST)) {
		int rc = tn_cache_attach(path, patient(), &cache);

		if (rc == 0)
			assert_int_equal(tn_cache_close(cache), 0);
		else
			assert_true(rc == -ECONNREFUSED || rc == -ENOENT);
	}
	return NULL;
}

static void processes_attach_while_the_owner_closes(void **state)
{
	struct waiting w = {0};
	pthread_t thread[2];
	char path[PATH];
	struct rig r;

	set_up(&r);
	w.r = &r;
	socket_path(&r, path);
	for (uint32_t k = 0; k < 2; k++)
		assert_int_equal(pthread_create(&thread[k], NULL, come_and_go, &w), 0);
	for (uint32_t i = 0; i < (tn_test_soak() ? 200u : 8u); i++) {
		usleep(2000);
		assert_int_equal(rig_close(&r), 0);
		rig_must_open(&r);
		assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	}
	__atomic_store_n(&w.killed, 1, __ATOMIC_SEQ_CST);
	for (uint32_t k = 0; k < 2; k++)
		join(thread[k], "attaching while the owner closes");
	rig_tear_down(&r);
}

static void calls_end_at_once_when_the_owner_closes_although_its_disk_hangs(void **state)
{
	struct stalled_disk disk;
	const char *no = stalled_disk_create(&disk);
	struct rig r, mine;
	struct tn_load *load;
	pid_t owner;

	if (no)
		tn_test_skip(no);
	init_on(&disk, &r);
	unsetenv(ENGINE);
	owner = start_owner("own", &r);
	attach(r.dir, &mine);
	assert_int_equal(rig_save(mine.s, 1, BLOCKS, 0).stored, BLOCKS);
	assert_int_equal(rig_flush(&mine), 0);
	stalled_disk_stop(&disk);
	load = rig_load_begin(mine.s, 1, BLOCKS, 0, NULL);
	for (uint64_t until = tn_test_deadline(); stalled_disk_reads(&disk) == 0 && tn_test_now() < until; usleep(500))
		;
	assert_int_equal(kill(owner, SIGTERM), 0);
	while (rig_match(mine.s, 1, 1) >= 0)
		usleep(500);
	all_calls_say_so(&mine, load);
	assert_int_equal(tn_load_end(load, tn_test_now() + 5 * RIG_MS, NULL), -EBUSY);
	stalled_disk_go_on(&disk);
	assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	assert_int_equal(end_of(owner), 0);
	detach(&mine);
	rig_tear_down(&r);
	stalled_disk_destroy(&disk);
}

/* ---- an owner that is stopped ---------------------------------------------------------------------------------------- */

static void calls_of_a_stopped_owner_end_by_a_deadline_and_what_they_got_is_given_back(void **state)
{
	struct tn_match m = {.size = sizeof(m)};
	struct tn_cache *other;
	struct tn_key keys[BLOCKS];
	uint64_t pin[LEASES];
	struct tn_memory_range range = {.bytes = 1u << 20};
	struct tn_memory_desc d;
	struct tn_memory *memory;
	struct tn_load *load;
	struct rig r, mine;
	char path[PATH];
	pid_t owner;

	rig_init(&r, 64u << 20, 0, 64);
	socket_path(&r, path);
	owner = start_owner("own", &r);
	attach(r.dir, &mine);
	assert_int_equal(rig_save(mine.s, 1, BLOCKS, 0).stored, BLOCKS);
	rig_keys(1, BLOCKS, keys);
	assert_int_equal(tn_memory_alloc(range.bytes, NULL, &range.address), 0);
	tn_memory_desc_init(&d);
	d.nranges = 1;
	d.ranges = &range;
	stop_and_wait(owner);
	load = rig_load_begin(mine.s, 1, BLOCKS, 0, NULL);
	assert_int_equal(tn_load_wait(load, 0, tn_test_now() + 5 * RIG_MS), -ETIMEDOUT);
	assert_int_equal(tn_load_end(load, tn_test_now() + 5 * RIG_MS, NULL), -EBUSY);
	assert_int_equal(tn_flush(mine.cache, tn_test_now() + 5 * RIG_MS), -ETIMEDOUT);
	assert_int_equal(tn_cache_attach(path, attach_by(tn_test_now() + 5 * RIG_MS), &other), -ETIMEDOUT);
	tn_attached_answer_within(mine.cache, 5 * RIG_MS);
	assert_int_equal(tn_memory_register(mine.cache, &d, &memory), -ETIMEDOUT);
	assert_int_equal(tn_match(mine.s->space, keys, BLOCKS, NULL, &m, TN_MATCH_PIN), -ETIMEDOUT);
	tn_attached_answer_within(mine.cache, 600 * RIG_SECOND);
	assert_int_equal(rig_match(mine.s, 1, BLOCKS), -ETIMEDOUT); /* at once */
	assert_int_equal(kill(owner, SIGCONT), 0);
	while (rig_match(mine.s, 1, BLOCKS) == -ETIMEDOUT) /* until the owner has answered what it was asked before */
		usleep(1000);
	assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
	for (uint32_t i = 0; i < LEASES; i++) /* none is taken by the look-up whose answer came too late */
		pin[i] = rig_pin(mine.s, 1, BLOCKS);
	for (uint32_t i = 0; i < LEASES; i++)
		rig_unpin(mine.s, pin[i]);
	assert_int_equal(tn_memory_register(mine.cache, &d, &memory), 0);
	assert_int_equal(tn_memory_unregister(memory), 0);
	assert_int_equal(tn_memory_free(range.address), 0);
	assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS);
	detach(&mine);
	assert_int_equal(kill(owner, SIGTERM), 0);
	assert_int_equal(end_of(owner), 0);
	rig_tear_down(&r);
}

static void *pin_too_late(void *arg)
{
	const struct rig *r = arg;
	struct tn_match m = {.size = sizeof(m)};
	struct tn_key keys[BLOCKS];

	rig_keys(1, BLOCKS, keys);
	assert_int_equal(tn_match(r->s->space, keys, BLOCKS, NULL, &m, TN_MATCH_PIN), -ETIMEDOUT);
	return NULL;
}

static void what_several_late_answers_gave_is_given_back(void **state)
{
	uint64_t pin[LEASES];
	struct rig r, mine;
	pthread_t thread[4];
	pid_t owner;

	rig_init(&r, 64u << 20, 0, 64);
	owner = start_owner("own", &r);
	attach(r.dir, &mine);
	assert_int_equal(rig_save(mine.s, 1, BLOCKS, 0).stored, BLOCKS);
	for (uint32_t round = 0; round < 5; round++) {
		stop_and_wait(owner);
		tn_attached_answer_within(mine.cache, 60 * RIG_MS);
		for (uint32_t k = 0; k < 4; k++)
			assert_int_equal(pthread_create(&thread[k], NULL, pin_too_late, &mine), 0);
		for (uint32_t k = 0; k < 4; k++)
			join(thread[k], "a call of a stopped owner");
		tn_attached_answer_within(mine.cache, 600 * RIG_SECOND);
		assert_int_equal(kill(owner, SIGCONT), 0);
		while (rig_match(mine.s, 1, BLOCKS) == -ETIMEDOUT)
			usleep(1000);
	}
	rig_match(mine.s, 1, BLOCKS); /* the owner has looked at all places since */
	for (uint32_t i = 0; i < LEASES; i++)
		pin[i] = rig_pin(mine.s, 1, BLOCKS);
	for (uint32_t i = 0; i < LEASES; i++)
		rig_unpin(mine.s, pin[i]);
	detach(&mine);
	assert_int_equal(kill(owner, SIGTERM), 0);
	assert_int_equal(end_of(owner), 0);
	rig_tear_down(&r);
}

/* What was done before the owner died was done. */
static void a_save_that_has_ended_stays_so_when_the_owner_is_killed(void **state)
{
	for (uint32_t staged = 0; staged < 2; staged++) {
		struct tn_save_result res = {.size = sizeof(res)};
		struct tn_completion c[4];
		struct tn_save *save;
		struct rig r, mine;
		bool ended = false;
		pid_t owner;
		int rc;

		rig_init(&r, 64u << 20, 0, 64);
		owner = start_owner("own", &r);
		if (staged)
			attach_staged(r.dir, 0, &mine);
		else
			attach(r.dir, &mine);
		save = rig_save_begin(mine.s, 1, BLOCKS, 0, NULL);
		rig_fill_blocks(mine.s, 1, BLOCKS, 0);
		rig_save_give(mine.s, save);
		while (!ended)
			for (int i = 0, n = tn_cache_completions(mine.cache, c, 4); i < n; i++)
				ended |= c[i].save == save && c[i].ended;
		kill_and_wait(owner);
		while (!tn_region_is_dead(&mine.cache->region))
			usleep(100);
		rc = tn_save_end(save, tn_test_deadline(), &res);
		assert_int_equal(rc, 0);
		assert_int_equal(res.stored, BLOCKS);
		detach(&mine);
		rig_tear_down(&r);
	}
}

int main(int argc, char **argv)
{
	static const struct body bodies[] = {
		{"own", own},
		{"own_and_fork", own_and_fork},
		{"own_and_keep_locks", own_and_keep_locks},
		{"wait_for_locks", wait_for_locks},
		{"wait_for_locks_in_a_container", wait_for_locks_in_a_container},
		{NULL, NULL},
	};
	const char *why = rig_namespace ? RIG_FILE : rig_on_device ? RIG_STAGED : NULL;
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(when_the_owner_is_killed_every_wait_ends_and_the_next_owner_is_warm),
		RIG_TEST(pages_stay_busy_while_the_disk_of_a_killed_owner_hangs, why),
		RIG_TEST(pages_stay_busy_while_a_dead_owners_locks_are_there, why),
		RIG_TEST(a_cache_whose_pages_stay_busy_can_be_closed, why),
		cmocka_unit_test(event_words_rise_although_the_owner_dies_while_a_load_begins),
		cmocka_unit_test(a_killed_owners_child_keeps_nobody_from_its_socket),
		cmocka_unit_test(a_cache_that_is_closed_lets_its_processes_go),
		cmocka_unit_test(processes_attach_while_the_owner_closes),
		RIG_TEST(calls_end_at_once_when_the_owner_closes_although_its_disk_hangs, why),
		cmocka_unit_test(calls_of_a_stopped_owner_end_by_a_deadline_and_what_they_got_is_given_back),
		cmocka_unit_test(what_several_late_answers_gave_is_given_back),
		cmocka_unit_test(a_save_that_has_ended_stays_so_when_the_owner_is_killed),
	};
	int rc = run_body(argc, argv, bodies);

	return rc >= 0 ? rc : cmocka_run_group_tests(tests, NULL, NULL);
}
