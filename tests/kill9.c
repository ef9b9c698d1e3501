/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill -9 at random moments, on a real directory through the public API: a child saves, loads, drops and
 * flushes, and reports through a pipe what flush made durable. The parent kills the child. Another child opens the
 * cache again and reads every block. Every durable block that was not dropped must be there, and no byte may
 * be wrong. Every second reader ends without a close, so that recoveries are cut off as well.
 *
 * One child never flushes: blocks that were stored 100 ms before the kill must be there. To these 100 ms is added the longest
 * time that a small write of another thread of the child took meanwhile, so that a busy machine does not fail the test.
 * With host memory offload_lag_ms is added, too.
 *
 * TN_KILL9_ROUNDS=200 is the long form. Directory: TMPDIR, else /var/tmp. The parent itself never has threads.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tenuto/tenuto.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/rng.h"
#include "enginepool.h"
#include "ioengine/ioengine.h"
#include "lab/scratch.h"
#include "tn_test.h"

#define LAYERS 4u
#define OBJECT 4096u
#define BATCH 4u /* blocks of one prompt */
#define BATCHES_MAX 4096u
#define BATCHES_A_ROUND 120u
#define PAGES 64u
#define KILL_LOSES_NS 100000000ull /* a block stored so long before the kill is not lost with the process */
/*
 * Writes one after the other, each of which may be as late as the slowest one of the probe: two groups of the index log, the one under way
 * when the block was stored and its own, each of a space table, segment headers and the group.
 */
#define KILL_WRITES 6u
#define PROBE_NS 5000000ull
#define PROBE_PAGES 1024u /* enough for five seconds: a child lives half a second */

struct setting {
	const char *name;
	uint32_t ndirs;
	uint64_t host_bytes;
	uint64_t disk_blocks; /* 0: all blocks fit, none is evicted */
	const char *policy;
	bool never_flushes;
	uint32_t offload_lag_ms; /* with host memory, if the child never flushes */
};

/* How late the machine itself was, in one round: the longest time of small writes to new space, and the begin of the one
 * under way. */
struct probe {
	uint64_t worst_ns;
	uint64_t begun_ns;
	uint64_t late_ns; /* both, at the kill */
};

/* What the parent knows: how many first blocks of each batch must be there. */
struct ledger {
	uint32_t started; /* batches that were ever begun */
	uint8_t durable[BATCHES_MAX];
	uint8_t dropped_from[BATCHES_MAX]; /* blocks from here on may be gone */
	uint64_t stored_ns[BATCHES_MAX]; /* when a save of the whole batch had ended; 0: none did */
	uint64_t early_ns[BATCHES_MAX];	 /* time from then until the kill, if the batch must be there because of it */
	struct probe *probe; /* shared with the child */
};

enum word { READY, STARTED, STORED, DURABLE, DROPPING };

struct message {
	uint32_t word;
	uint32_t value; /* number of a batch, or of a block of a batch */
	uint64_t now_ns;
};

/* ---- the cache, opened by a child --------------------------------------------------------------------------- */

struct child {
	const struct setting *setting;
	const char *dir;
	struct tn_cache *cache;
	struct tn_space *space;
	struct tn_pool *pool;
	unsigned char *mem[LAYERS]; /* PAGES objects each */
	struct tn_rng rng;
	int pipe_fd;
	uint32_t saved; /* batches that can be loaded */
	struct probe *probe;
	bool stop;
};

/* Any failure in a child ends the child: the parent sees the status, people see the line number. */
static void die(const char *what, long value)
{
	fprintf(stderr, "# kill9 child: %s: %ld: %s\n", what, value, tn_error_last()->text);
	_exit(1);
}

static struct tn_key key_of(uint32_t batch, uint32_t block)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, (uint64_t)batch * BATCH + block);
	return (struct tn_key){{(uint64_t)batch << 8 | block, tn_rng_next(&rng)}};
}

static void contents(uint32_t batch, uint32_t block, uint32_t layer, unsigned char *dst)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, ((uint64_t)batch << 16 | block << 8 | layer) + 1);
	for (uint32_t i = 0; i < OBJECT; i += 8) {
		uint64_t word = tn_rng_next(&rng);

		memcpy(dst + i, &word, 8);
	}
}

static void open_cache(struct child *c)
{
	char path[2][300];
	const char *dirs[2] = {path[0], path[1]};
	struct tn_pool_shape layout = {.order = TN_POOL_PLANE_REGION, .npages = PAGES};
	struct tn_cache_opts o;
	struct tn_identity id;
	struct tn_shard shard;
	struct tn_geometry g;
	int err;

	tn_cache_opts_init(&o);
	tn_identity_init(&id);
	tn_shard_init(&shard);
	for (uint32_t i = 0; i < c->setting->ndirs; i++)
		snprintf(path[i], sizeof(path[i]), "%s/%u", c->dir, i);
	o.dirs = dirs;
	o.ndirs = c->setting->ndirs;
	o.disk_bytes = 128u << 20;
	o.disk_blocks = c->setting->disk_blocks;
	o.host_bytes = c->setting->host_bytes;
	o.policy = c->setting->policy;
	if (c->setting->offload_lag_ms)
		o.offload_lag_ms = c->setting->offload_lag_ms;
	if (c->setting->never_flushes && tn_rng_below(&c->rng, 2))
		o.durability_ms = UINT32_MAX; /* and no cycle of durability syncs either */
	o.workers = 1;
	o.lock_timeout_ns = 20 * TN_TEST_SECOND;
	id.model = "kill9";
	if (tn_geometry_raw(LAYERS, OBJECT, &g))
		die("geometry", 0);
	o.geometry = &g;
	err = tn_cache_open(&o, &c->cache);
	if (err)
		die("open", err);
	err = tn_space_open(c->cache, &id, &shard, &g, NULL, &c->space);
	if (err)
		die("space", err);
	for (uint32_t l = 0; l < LAYERS; l++) {
		c->mem[l] = aligned_alloc(4096, (size_t)PAGES * OBJECT);
		if (!c->mem[l])
			die("memory", 0);
	}
	err = enginepool_create(c->cache, &g, &layout, (void *const *)c->mem, &c->pool);
	if (err)
		die("pool", err);
}

static void close_cache(struct child *c)
{
	int err = enginepool_destroy(c->pool);

	if (err)
		die("unregister", err);
	tn_space_close(c->space);
	err = tn_cache_close(c->cache);
	if (err)
		die("close", err);
}

static void send_word(const struct child *c, enum word word, uint32_t value)
{
	struct message m = {.word = word, .value = value, .now_ns = tn_test_now()};

	if (write(c->pipe_fd, &m, sizeof(m)) != sizeof(m))
		_exit(1); /* the parent is gone */
}

/* Loads a batch into the pages from `page` on and checks the bytes. Returns how many of its first blocks were there. */
static uint32_t load_batch(struct child *c, uint32_t batch, uint32_t page)
{
	struct tn_key keys[BATCH];
	uint32_t pages[BATCH];
	unsigned char want[OBJECT];
	struct tn_match m = {.size = sizeof(m)};
	struct tn_load *load;
	int good = 0, n, err;

	for (uint32_t i = 0; i < BATCH; i++) {
		keys[i] = key_of(batch, i);
		pages[i] = page + i;
	}
	n = tn_match(c->space, keys, BATCH, NULL, &m, TN_MATCH_PIN);
	if (n == -EAGAIN)
		return 0;
	if (n < 0)
		die("match", n);
	if (n > 0) {
		while ((err = tn_load_begin(c->space, c->pool, keys, (size_t)n, pages, NULL, &load)) == -EAGAIN)
			usleep(100);
		if (err)
			die("load", err);
		for (uint32_t l = 0; l < LAYERS; l++) {
			good = tn_load_wait(load, l, tn_test_deadline());
			if (good < 0)
				die("wait", good);
		}
		err = tn_load_end(load, tn_test_deadline(), NULL);
		if (err)
			die("load end", err);
	}
	if (m.pin)
		tn_unpin(c->space, m.pin);
	for (uint32_t i = 0; i < (uint32_t)good; i++) {
		for (uint32_t l = 0; l < LAYERS; l++) {
			contents(batch, i, l, want);
			if (memcmp(want, c->mem[l] + (size_t)(page + i) * OBJECT, OBJECT) != 0)
				die("wrong bytes in batch", batch);
		}
	}
	return (uint32_t)good;
}

/* ---- the child that works until it is killed ------------------------------------------------------------------ */

static void *load_for_ever(void *arg)
{
	struct child *c = arg;
	struct tn_rng rng;

	tn_rng_seed(&rng, (uint64_t)getpid());
	while (!__atomic_load_n(&c->stop, __ATOMIC_RELAXED)) {
		uint32_t n = __atomic_load_n(&c->saved, __ATOMIC_ACQUIRE);

		if (n > 0)
			load_batch(c, tn_rng_below(&rng, n), PAGES / 2);
		else
			usleep(200);
	}
	return NULL;
}

/* Whether all blocks were stored. */
static bool save_batch(struct child *c, uint32_t batch)
{
	uint32_t pages[BATCH], first = tn_rng_below(&c->rng, PAGES / 2 - BATCH);
	struct tn_key keys[BATCH];
	struct tn_save_result result = {.size = sizeof(result)};
	struct tn_save *save;
	int err;

	for (uint32_t i = 0; i < BATCH; i++) {
		keys[i] = key_of(batch, i);
		pages[i] = first + i;
		for (uint32_t l = 0; l < LAYERS; l++)
			contents(batch, i, l, c->mem[l] + (size_t)pages[i] * OBJECT);
	}
	while ((err = tn_save_begin(c->space, c->pool, keys, BATCH, pages, NULL, &save)) == -EAGAIN)
		usleep(100);
	if (err)
		die("save", err);
	for (uint32_t l = 0; l < LAYERS; l++) {
		err = tn_save_layer(save, l, NULL, 0);
		if (err)
			die("save layer", err);
	}
	if (tn_rng_below(&c->rng, 20) == 0)
		tn_save_abort(save);
	else if ((err = tn_save_commit(save)) != 0)
		die("commit", err);
	err = tn_save_end(save, tn_test_deadline(), &result);
	if (err)
		die("save end", err);
	return result.stored + result.existing == BATCH;
}

/*
 * Writes page after page of space that was never written, by the engine that the store writes with, and takes the time. The disk alone is not it:
 * ext4 ends such a write in a worker thread of normal priority, which on a busy machine waits a second for a CPU.
 */
static void *probe_for_ever(void *arg)
{
	static const struct tn_log silent;
	struct tn_ioengine_opts o = {.depth = 4, .alloc = &tn_alloc_system, .clock = &tn_clock_system, .log = &silent};
	struct iovec iov = {aligned_alloc(4096, 4096), 4096};
	struct tn_io_req req, *one, *ended;
	struct child *c = arg;
	struct tn_io *io = NULL;
	char path[300];
	uint32_t file = 0;

	snprintf(path, sizeof(path), "%s/probe", c->dir);
	unlink(path);
	if (!iov.iov_base || tn_ioengine_create(&o, &io) || tn_io_open(io, path, TN_IO_CREATE, &file) ||
	    tn_io_allocate(io, file, 0, PROBE_PAGES * 4096))
		die("probe", 0);
	memset(iov.iov_base, 1, 4096);
	for (uint64_t i = 0;; i++) {
		uint64_t start = tn_test_now(), took;

		__atomic_store_n(&c->probe->begun_ns, start, __ATOMIC_RELAXED);
		usleep(PROBE_NS / 1000);
		req = (struct tn_io_req){.op = TN_IO_WRITE, .file = file, .offset = i % PROBE_PAGES * 4096, .length = 4096, .iov_count = 1,
					 .iov = &iov};
		one = &req;
		if (tn_io_submit(io, &one, 1) != 1)
			die("probe's submit", 0);
		while (tn_io_poll(io, &ended, 1, TN_TEST_SECOND) == 0)
			; /* a disk that never answers ends with the child */
		if (req.status)
			die("probe's write", req.status);
		took = tn_test_now() - start - PROBE_NS;
		if (took > c->probe->worst_ns)
			__atomic_store_n(&c->probe->worst_ns, took, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void flush(struct child *c, const uint32_t *batches, uint32_t n)
{
	int err = tn_flush(c->cache, tn_test_deadline());

	if (err)
		die("flush", err);
	for (uint32_t i = 0; i < n; i++)
		send_word(c, DURABLE, batches[i]);
}

static void work(struct child *c, uint32_t next)
{
	uint32_t last = next + BATCHES_A_ROUND, unflushed[8], n = 0;
	const struct sched_param first = {1};
	pthread_t loader, probe;

	if (c->setting->never_flushes)
		sched_setscheduler(0, SCHED_FIFO, &first); /* all threads of the child inherit the priority */
	if (c->setting->never_flushes && pthread_create(&probe, NULL, probe_for_ever, c))
		die("thread", 0);
	open_cache(c);
	__atomic_store_n(&c->saved, next, __ATOMIC_RELEASE);
	if (pthread_create(&loader, NULL, load_for_ever, c))
		die("thread", 0);
	send_word(c, READY, 0);
	for (;;) {
		uint32_t batch = next < last ? next++ : tn_rng_below(&c->rng, last);

		send_word(c, STARTED, batch);
		if (save_batch(c, batch)) {
			send_word(c, STORED, batch);
			unflushed[n++] = batch;
		}
		if (batch + 1 == next)
			__atomic_store_n(&c->saved, next, __ATOMIC_RELEASE);
		if (c->setting->never_flushes) {
			n = 0;
			continue;
		}
		if (n == 8 || tn_rng_below(&c->rng, 5) == 0) {
			flush(c, unflushed, n);
			n = 0;
		}
		if (tn_rng_below(&c->rng, 30) == 0) {
			uint32_t victim = tn_rng_below(&c->rng, next), block = tn_rng_below(&c->rng, BATCH);
			struct tn_key key = key_of(victim, block);

			/* Forgets blocks that were saved again but not flushed: no promise covers them. */
			n = 0;
			send_word(c, DROPPING, victim * BATCH + block);
			tn_drop(c->space, &key, 1);
		}
	}
}

/* ---- the child that looks ----------------------------------------------------------------------------------------- */

static void check_store(struct child *c, const struct ledger *ledger, bool close)
{
	uint32_t total = 0, durable = 0, lost = 0;

	open_cache(c);
	for (uint32_t b = 0; b < ledger->started; b++) {
		uint32_t good = load_batch(c, b, 0), must = ledger->durable[b];

		total += good;
		durable += must;
		if (must > ledger->dropped_from[b])
			must = ledger->dropped_from[b];
		if (c->setting->disk_blocks > 0 || good >= must)
			continue;
		fprintf(stderr, "# kill9: batch %u: %u blocks of %u durable ones", b, good, must);
		if (c->setting->never_flushes)
			fprintf(stderr, ", stored %.1f ms before the kill, the machine late by %.1f", (double)ledger->early_ns[b] / 1e6,
				(double)ledger->probe->late_ns / 1e6);
		fprintf(stderr, "\n");
		lost++;
	}
	if (lost > 0)
		die("durable blocks are gone, of so many batches", lost);
	if (c->setting->disk_blocks && total > c->setting->disk_blocks + c->setting->host_bytes / (LAYERS * OBJECT))
		die("more blocks than the capacity", total);
	if (c->setting->disk_blocks && durable > 3 * c->setting->disk_blocks && total < c->setting->disk_blocks / 2)
		die("of a full store there is little left", total);
	if (close)
		close_cache(c);
	_exit(0);
}

/* ---- the parent ----------------------------------------------------------------------------------------------------- */

static void note(struct ledger *ledger, const struct message *m)
{
	uint32_t batch = m->value, block = 0;

	switch (m->word) {
	case STARTED:
		if (ledger->started <= batch)
			ledger->started = batch + 1;
		break;
	case STORED:
		if (ledger->stored_ns[batch] == 0)
			ledger->stored_ns[batch] = m->now_ns;
		break;
	case DURABLE:
		ledger->durable[batch] = BATCH;
		ledger->dropped_from[batch] = BATCH;
		break;
	case DROPPING:
		batch = m->value / BATCH;
		block = m->value % BATCH;
		if (ledger->dropped_from[batch] > block)
			ledger->dropped_from[batch] = (uint8_t)block;
		break;
	default:
		break;
	}
}

/* Reads messages until the deadline; false when the child has closed its end. */
static bool listen_until(int fd, struct ledger *ledger, uint64_t deadline, bool *ready)
{
	for (;;) {
		uint64_t now = tn_test_now();
		struct pollfd p = {.fd = fd, .events = POLLIN};
		struct message m;

		if (now >= deadline || poll(&p, 1, (int)((deadline - now) / 1000000 + 1)) == 0)
			return true;
		if (read(fd, &m, sizeof(m)) != sizeof(m))
			return false;
		note(ledger, &m);
		if (m.word == READY) {
			*ready = true;
			return true;
		}
	}
}

/* A write that had not ended at the kill counts, too, because the saves of that time had not ended either. */
static void note_late(struct probe *p, uint64_t killed_ns)
{
	uint64_t due = p->begun_ns + PROBE_NS;

	p->late_ns = p->worst_ns;
	if (p->begun_ns > 0 && killed_ns > due + p->late_ns)
		p->late_ns = killed_ns - due;
}

/* Blocks that must be there although nobody flushed. */
static void note_stored(const struct setting *s, struct ledger *ledger, uint64_t killed_ns)
{
	uint64_t may_lose = KILL_LOSES_NS + s->offload_lag_ms * 1000000ull + KILL_WRITES * ledger->probe->late_ns;

	for (uint32_t b = 0; b < ledger->started; b++) {
		if (ledger->stored_ns[b] == 0 || ledger->stored_ns[b] + may_lose > killed_ns)
			continue;
		ledger->durable[b] = BATCH;
		ledger->dropped_from[b] = BATCH;
		ledger->early_ns[b] = killed_ns - ledger->stored_ns[b];
	}
	memset(ledger->stored_ns, 0, sizeof(ledger->stored_ns));
}

static void kill_one(const struct setting *s, const char *dir, struct ledger *ledger, struct tn_rng *rng)
{
	struct child c = {.setting = s, .dir = dir, .probe = ledger->probe};
	uint64_t killed_ns;
	uint32_t next = ledger->started;
	uint64_t seed = tn_rng_next(rng);
	bool ready = false, alive = true;
	int fd[2], status;
	pid_t pid;

	assert_int_equal(pipe(fd), 0);
	*ledger->probe = (struct probe){0, 0, 0};
	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		close(fd[0]);
		c.pipe_fd = fd[1];
		tn_rng_seed(&c.rng, seed);
		work(&c, next);
	}
	close(fd[1]);
	/* One child in five is killed while it opens the cache. */
	if (tn_rng_below(rng, 5) == 0) {
		alive = listen_until(fd[0], ledger, tn_test_now() + tn_rng_below(rng, 30000) * 1000ull, &ready);
	} else {
		alive = listen_until(fd[0], ledger, tn_test_deadline(), &ready);
		assert_true(ready || !alive);
		if (alive)
			alive = listen_until(fd[0], ledger, tn_test_now() + tn_rng_below(rng, 400000) * 1000ull, &ready);
	}
	if (!alive)
		print_message("# the child ended by itself\n");
	killed_ns = tn_test_now();
	kill(pid, SIGKILL);
	while (listen_until(fd[0], ledger, tn_test_now() + 10 * TN_TEST_SECOND, &ready))
		;
	close(fd[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(alive && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	if (s->never_flushes) {
		note_late(ledger->probe, killed_ns);
		note_stored(s, ledger, killed_ns);
	}
}

static void look_one(const struct setting *s, const char *dir, const struct ledger *ledger, bool close)
{
	struct child c = {.setting = s, .dir = dir, .pipe_fd = -1};
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		tn_rng_seed(&c.rng, 1);
		check_store(&c, ledger, close);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void series(const struct setting *s, uint32_t rounds, struct tn_rng *rng)
{
	const char *tmp = getenv("TMPDIR");
	struct ledger *ledger = calloc(1, sizeof(*ledger));
	char dir[256], path[300];
	uint64_t late = 0;
	uint32_t durable = 0;

	assert_non_null(ledger);
	ledger->probe = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(ledger->probe != MAP_FAILED);
	assert_int_equal(tn_scratch_make(tmp && tmp[0] ? tmp : "/var/tmp", dir, sizeof(dir)), 0);
	for (uint32_t i = 0; i < s->ndirs; i++) {
		snprintf(path, sizeof(path), "%s/%u", dir, i);
		assert_int_equal(mkdir(path, 0700), 0);
	}
	for (uint32_t r = 0; r < rounds && ledger->started + BATCHES_A_ROUND < BATCHES_MAX; r++) {
		kill_one(s, dir, ledger, rng);
		late = late > ledger->probe->late_ns ? late : ledger->probe->late_ns;
		look_one(s, dir, ledger, r % 2);
	}
	for (uint32_t b = 0; b < ledger->started; b++)
		durable += ledger->durable[b];
	printf("# %s: %u rounds, %u blocks begun, %u durable", s->name, rounds, ledger->started * BATCH, durable);
	printf(s->never_flushes ? ", late by %llu ms at worst\n" : "\n", (unsigned long long)(late / 1000000));
	tn_scratch_remove(dir);
	munmap(ledger->probe, 4096);
	free(ledger);
}

/* Long forms are many short series: each begins with a new store. */
static void killed(const struct setting *s, uint64_t salt)
{
	const char *env = getenv("TN_KILL9_ROUNDS");
	uint32_t rounds = env ? (uint32_t)strtoul(env, NULL, 0) : 10;
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed() + salt);
	rounds = s->never_flushes ? rounds : (rounds + 2) / 3;
	for (uint32_t done = 0; done < rounds; done += 10)
		series(s, rounds - done < 10 ? rounds - done : 10, &rng);
}

static void a_killed_cache_on_one_disk_keeps_what_was_flushed(void **state)
{
	killed(&(struct setting){.name = "one directory", .ndirs = 1, .policy = "lru"}, 1);
}

static void a_killed_cache_with_host_memory_and_two_disks_keeps_what_was_flushed(void **state)
{
	killed(&(struct setting){.name = "host memory, two directories", .ndirs = 2, .host_bytes = 1u << 20, .policy = "lru"},
	       2);
}

static void a_killed_cache_that_evicts_never_gives_wrong_bytes(void **state)
{
	killed(&(struct setting){.name = "evicting", .ndirs = 1, .host_bytes = 512u << 10, .disk_blocks = 200,
				 .policy = "default"},
	       3);
}

static void a_killed_cache_that_never_flushed_loses_what_was_in_flight_and_nothing_else(void **state)
{
	killed(&(struct setting){.name = "no flush", .ndirs = 1, .policy = "lru", .never_flushes = true}, 4);
}

static void a_killed_cache_with_host_memory_that_never_flushed_loses_nothing_older_than_the_lag(void **state)
{
	killed(&(struct setting){.name = "no flush, host memory", .ndirs = 1, .host_bytes = 1u << 20, .policy = "lru",
				 .never_flushes = true, .offload_lag_ms = 100},
	       5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_killed_cache_on_one_disk_keeps_what_was_flushed),
		cmocka_unit_test(a_killed_cache_with_host_memory_and_two_disks_keeps_what_was_flushed),
		cmocka_unit_test(a_killed_cache_that_evicts_never_gives_wrong_bytes),
		cmocka_unit_test(a_killed_cache_that_never_flushed_loses_what_was_in_flight_and_nothing_else),
		cmocka_unit_test(a_killed_cache_with_host_memory_that_never_flushed_loses_nothing_older_than_the_lag),
	};

	return cmocka_run_group_tests_name("kill9", tests, NULL, NULL);
}
