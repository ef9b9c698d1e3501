/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Processes that end, stop or misbehave while they are attached: nothing of them is left in the owner's process, and others do not notice.
 * How owners end is session_owner_test.c.
 */
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "ioengine/faulty_rig.h"
#include "session_rig.h"

#define SETS 4u		/* of BLOCKS blocks, that processes which live load: more than host memory holds */
#define LIVING 2u
#define AT_ONCE 8u
#define SAMPLES 1000000u
#define BATCH_NS (800 * RIG_MS) /* where loads are timed, a batch at least takes so long */
#define OWN_PAGE 256u /* pages of a pool from here on are no load's and no save's */
#define OWN_PAGES 64u

/* What the processes of a test have in common, in a file. All words are shared. */
struct shared {
	uint32_t stop, phase;
	uint32_t begun; /* processes that have attached and work */
	pid_t child;	/* that a process has forked */
	struct {
		uint32_t loads; /* also of how many there are samples */
		uint32_t phase[SAMPLES], ns[SAMPLES];
	} living[LIVING];
};

static struct shared *share(const char *dir)
{
	char path[PATH + 8];
	struct shared *shared;
	int fd;

	snprintf(path, sizeof(path), "%s/shared", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, sizeof(*shared)), 0);
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(shared != MAP_FAILED);
	close(fd);
	return shared;
}

static void unshare_it(struct shared *shared)
{
	munmap(shared, sizeof(*shared));
}

static uint32_t read_word(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

/* Waits until the word is at least that. */
static void reaches(const uint32_t *word, uint32_t value)
{
	uint64_t until = tn_test_deadline();

	while (read_word(word) < value) {
		assert_true(tn_test_now() < until);
		usleep(500);
	}
}

/* ---- processes that work until they are killed, or told to leave ------------------------------------------------- */

static volatile sig_atomic_t leaves;

static void on_term(int signal)
{
	leaves = 1;
}

static void toil_once(struct rig *r, struct tn_rng *rng)
{
	uint32_t pages[BLOCKS * RIG_PAGES], n = 1 + (uint32_t)tn_rng_below(rng, BLOCKS);
	uint64_t first = 1 + BLOCKS * tn_rng_below(rng, SETS);
	struct tn_match m = {.size = sizeof(m)};
	struct tn_save_result res = {.size = sizeof(res)};
	struct tn_key keys[BLOCKS];
	struct tn_save *save;
	struct tn_load *load;

	rig_pages(r->s, 0, n, pages);
	if (tn_rng_below(rng, 2)) {
		rig_keys(first, n, keys);
		assert_true(tn_match(r->s->space, keys, n, NULL, &m, TN_MATCH_PIN) >= 0);
		assert_int_equal(tn_load_begin(r->s->space, r->s->pool, keys, n, pages, NULL, &load), 0);
		if (tn_rng_below(rng, 2))
			assert_true(tn_load_wait(load, RIG_LAYERS - 1, tn_test_deadline()) >= 0);
		assert_int_equal(tn_load_end(load, tn_test_deadline(), NULL), 0);
		if (m.pin)
			rig_unpin(r->s, m.pin);
		return;
	}
	/* Those of the sets are as the living know them; the others are nobody's. */
	if (tn_rng_below(rng, 4))
		first = 100000 + BLOCKS * (tn_rng_below(rng, 64) + 64 * (uint64_t)getpid());
	rig_keys(first, n, keys);
	rig_fill_blocks(r->s, first, n, 0);
	assert_int_equal(tn_save_begin(r->s->space, r->s->pool, keys, n, pages, NULL, &save), 0);
	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		assert_int_equal(tn_save_layer(save, l, NULL, 0), 0);
	assert_int_equal(tn_save_commit(save), 0);
	if (tn_rng_below(rng, 8) == 0)
		assert_int_equal(rig_flush(r), 0);
	assert_int_equal(tn_save_end(save, tn_test_deadline(), &res), 0);
}

static int toil(const char *dir)
{
	struct shared *shared = share(dir);
	struct tn_rng rng;
	struct rig r;

	signal(SIGTERM, on_term);
	tn_rng_seed(&rng, (uint64_t)getpid());
	attach(dir, &r);
	__atomic_add_fetch(&shared->begun, 1, __ATOMIC_SEQ_CST);
	while (!leaves)
		toil_once(&r, &rng);
	detach(&r);
	unshare_it(shared);
	return 0;
}

/* Lives until it is told to stop. Its loads have the right bytes, and nobody writes to what is its own. */
static int live(const char *dir, uint32_t who)
{
	struct shared *shared = share(dir);
	unsigned char *more = NULL;
	void *memory = NULL;
	struct rig r;

	attach(dir, &r);
	for (uint32_t p = 0; p < OWN_PAGES; p++)
		rig_poison(r.s, OWN_PAGE + p);
	for (uint32_t i = 0; !read_word(&shared->stop); i++) {
		uint64_t first = 1 + BLOCKS * (i % SETS), from;
		uint32_t n = read_word(&shared->living[who].loads), phase = read_word(&shared->phase);

		from = tn_test_now();
		if (rig_load(r.s, first, BLOCKS) == (int)BLOCKS && n < SAMPLES) {
			shared->living[who].ns[n] = (uint32_t)(tn_test_now() - from);
			shared->living[who].phase[n] = phase;
			__atomic_store_n(&shared->living[who].loads, n + 1, __ATOMIC_SEQ_CST);
		} else {
			rig_save(r.s, first, BLOCKS, 0);
		}
		assert_true(rig_poisoned(r.s, OWN_PAGE + i % OWN_PAGES));
		if (i % 16 == 0) { /* memory that the kernel may have taken from one that died */
			for (uint32_t k = 0; more && k < 1u << 20; k++)
				assert_int_equal(more[k], 0x5a);
			tn_memory_free(memory);
			assert_int_equal(tn_memory_alloc(1u << 20, NULL, &memory), 0);
			more = memset(memory, 0x5a, 1u << 20);
		}
	}
	tn_memory_free(memory);
	detach(&r);
	unshare_it(shared);
	return 0;
}

static int live_first(const char *dir)
{
	return live(dir, 0);
}

static int live_second(const char *dir)
{
	return live(dir, 1);
}

/* Attaches when others have just died: nothing that was theirs is written to its memory. */
static int come_later(const char *dir)
{
	struct rig r;

	attach(dir, &r);
	for (uint32_t p = 0; p < RIG_POOL_PAGES / 2; p++)
		rig_poison(r.s, p);
	usleep(20000);
	rig_load(r.s, 1, BLOCKS); /* to the second half */
	for (uint32_t p = 0; p < RIG_POOL_PAGES / 2; p++)
		assert_true(rig_poisoned(r.s, p));
	detach(&r);
	return 0;
}

/* So many processes at once that work, and all end: killed at a moment of their own, or told to leave. */
static void a_batch_ends(struct rig *r, struct shared *shared, struct tn_rng *rng, bool killed)
{
	uint32_t begun = read_word(&shared->begun);
	bool together = tn_rng_below(rng, 4) == 0;
	pid_t pid[AT_ONCE], later;

	for (uint32_t k = 0; k < AT_ONCE; k++)
		pid[k] = start("toil", r);
	if (!killed || tn_rng_below(rng, 4)) /* else some have not attached yet */
		reaches(&shared->begun, begun + AT_ONCE);
	for (uint32_t k = 0; k < AT_ONCE; k++) {
		if (!together)
			usleep((useconds_t)tn_rng_below(rng, 5000));
		assert_int_equal(kill(pid[k], killed ? SIGKILL : SIGTERM), 0);
	}
	later = start("come_later", r);
	for (uint32_t k = 0; k < AT_ONCE; k++)
		assert_int_equal(end_of(pid[k]), killed ? 1000 + SIGKILL : 0);
	assert_int_equal(end_of(later), 0);
}

/* ---- how long loads of those that live take meanwhile ------------------------------------------------------------ */

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* Of both processes, in us; 0: no loads. */
static double percentile(const struct shared *shared, uint32_t phase, double part)
{
	uint32_t *ns = calloc(LIVING * (size_t)SAMPLES, sizeof(*ns)), n = 0;
	double us;

	assert_non_null(ns);
	for (uint32_t who = 0; who < LIVING; who++)
		for (uint32_t i = 0; i < read_word(&shared->living[who].loads); i++)
			if (shared->living[who].phase[i] == phase)
				ns[n++] = shared->living[who].ns[i];
	qsort(ns, n, sizeof(*ns), by_size);
	us = n ? ns[(uint32_t)(part * (n - 1))] / 1000.0 : 0;
	free(ns);
	return us;
}

/* Phases 2i are of one kind, 2i + 1 of the other. Prints the means over the rounds, and 95 % of what the mean ratio may be. */
static void report(const struct shared *shared, uint32_t rounds, double part, const char *one, const char *other)
{
	double first = 0, second = 0, sum = 0, squares = 0, mean, half;

	for (uint32_t i = 0; i < rounds; i++) {
		double a = percentile(shared, 2 * i, part), b = percentile(shared, 2 * i + 1, part), ratio = log(a / b);

		first += a / rounds;
		second += b / rounds;
		sum += ratio;
		squares += ratio * ratio;
	}
	mean = sum / rounds;
	half = rounds > 1 ? 2.1 * sqrt((squares - rounds * mean * mean) / (rounds - 1) / rounds) : 0;
	printf("# loads of those that live, p%g: %.0f us while %s, %.0f us while %s; ratio %.3f (%.3f to %.3f, %u rounds)\n", 100 * part, first,
	       one, second, other, exp(mean), exp(mean - half), exp(mean + half), rounds);
}

static uint64_t address_space(void)
{
	unsigned long long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	assert_non_null(f);
	assert_int_equal(fscanf(f, "%llu", &pages), 1);
	fclose(f);
	return pages * 4096;
}

static void killed_processes_leave_nothing_behind_and_those_that_live_do_not_notice(void **state)
{
	/* 1,000 are killed, and as many leave. */
	uint32_t rounds = tn_test_soak() ? 20 : 1, batches = tn_test_soak() ? 7 : 2;
	uint64_t bytes = 0;
	struct shared *shared;
	pid_t living[LIVING];
	struct held alone, before;
	struct tn_rng rng;
	struct rig r;

	set_up(&r);
	shared = share(r.dir);
	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t i = 1; i < SETS; i++)
		assert_int_equal(rig_save(r.s, 1 + i * BLOCKS, BLOCKS, 0).stored, BLOCKS);
	alone = held_by(&r);
	living[0] = start("live_first", &r);
	living[1] = start("live_second", &r);
	for (uint32_t who = 0; who < LIVING; who++)
		reaches(&shared->living[who].loads, 2 * SETS);
	before = held_by(&r);
	for (uint32_t i = 0; i < 2 * rounds; i++) {
		bool killed = i % 2 == (i / 2) % 2; /* each is the first of its round as often */

		__atomic_store_n(&shared->phase, i / 2 * 2 + !killed, __ATOMIC_SEQ_CST);
		for (uint32_t k = 0; k < batches; k++) {
			uint64_t until = tn_test_now() + BATCH_NS;

			a_batch_ends(&r, shared, &rng, killed);
			has_only(&r, &before, true);
			while (tn_test_soak() && tn_test_now() < until)
				usleep(1000); /* killed or not, as many processes begin per second */
		}
		if (i == 1)
			bytes = address_space();
		printf("# round %u of %u, %u processes %s\n", i / 2 + 1, rounds, batches * AT_ONCE, killed ? "killed" : "have left");
	}
	for (uint32_t who = 0; who < LIVING; who++)
		reaches(&shared->living[who].loads, read_word(&shared->living[who].loads) + SETS);
	__atomic_store_n(&shared->stop, 1, __ATOMIC_SEQ_CST);
	for (uint32_t who = 0; who < LIVING; who++)
		assert_int_equal(end_of(living[who]), 0);
	all_is_given_back(&r, &alone);
	printf("# %u MiB of address space after the first round, %u MiB after the last\n", (unsigned)(bytes >> 20),
	       (unsigned)(address_space() >> 20));
	if (tn_test_soak()) {
		assert_true(address_space() < bytes + (1u << 30));
		report(shared, rounds, 0.5, "others are killed", "others leave");
		report(shared, rounds, 0.99, "others are killed", "others leave");
	}
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
	assert_int_equal(tn_space_drop(r.s->space, tn_test_deadline()), 0);
	rig_until(&r, tn_registry_count(r.cache->registry) == 0);
	unshare_it(shared);
	rig_tear_down(&r);
}

/* ---- processes that leave in other ways --------------------------------------------------------------------------- */

static int leave_in_disorder(const char *dir)
{
	struct rig r;

	attach(dir, &r);
	rig_pin(r.s, 1, BLOCKS);
	_exit(0); /* gives nothing back */
}

static void a_process_that_exits_without_a_word_is_not_attached_any_more(void **state)
{
	struct held before;
	struct rig r;

	set_up(&r);
	before = held_by(&r);
	assert_int_equal(end_of(start("leave_in_disorder", &r)), 0);
	all_is_given_back(&r, &before);
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
	rig_tear_down(&r);
}

/* A child has all descriptors of a process that has attached, and outlives it. Made by the system call itself: no handler closes them. */
static void fork_in(struct shared *shared)
{
	pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

	while (child == 0)
		pause();
	assert_true(child > 0);
	__atomic_store_n(&shared->child, child, __ATOMIC_SEQ_CST);
}

static int fork_and_hang(const char *dir)
{
	struct shared *shared = share(dir);
	struct rig r;

	attach(dir, &r);
	rig_load_begin(r.s, 1, BLOCKS, 0, NULL);
	fork_in(shared);
	while (pause())
		;
	return 0;
}

static int fork_and_close(const char *dir)
{
	struct shared *shared = share(dir);
	struct rig r;

	attach(dir, &r);
	fork_in(shared);
	detach(&r);
	while (!read_word(&shared->stop))
		usleep(1000);
	unshare_it(shared);
	return 0;
}

static void ends_although_a_child_lives(bool killed)
{
	struct shared *shared;
	struct held before;
	struct rig r;
	pid_t pid;

	set_up(&r);
	shared = share(r.dir);
	before = held_by(&r);
	pid = start(killed ? "fork_and_hang" : "fork_and_close", &r);
	reaches((uint32_t *)&shared->child, 1);
	if (killed)
		kill_and_wait(pid);
	all_is_given_back(&r, &before);
	assert_int_equal(kill(shared->child, SIGKILL), 0); /* it was there all the time */
	__atomic_store_n(&shared->stop, 1, __ATOMIC_SEQ_CST);
	if (!killed)
		assert_int_equal(end_of(pid), 0);
	unshare_it(shared);
	rig_tear_down(&r);
}

static void a_killed_process_is_not_attached_any_more_although_its_child_lives(void **state)
{
	ends_although_a_child_lives(true);
}

static void a_process_that_closes_is_not_attached_any_more_although_its_child_lives(void **state)
{
	ends_although_a_child_lives(false);
}

/* ---- processes that stop ------------------------------------------------------------------------------------------- */

static void a_process_that_is_stopped_holds_up_nobody(void **state)
{
	struct shared *shared;
	struct held before;
	struct rig r, mine;
	pid_t pid[4];

	set_up(&r);
	shared = share(r.dir);
	before = held_by(&r);
	for (uint32_t k = 0; k < 4; k++)
		pid[k] = start("toil", &r);
	reaches(&shared->begun, 4);
	for (uint32_t k = 0; k < 4; k++)
		assert_int_equal(kill(pid[k], SIGSTOP), 0);
	attach(r.dir, &mine);
	for (uint32_t i = 0; i < 20; i++) {
		assert_true(rig_load(mine.s, 1, BLOCKS) >= 0);
		assert_int_equal(rig_save(mine.s, 50000 + i * BLOCKS, BLOCKS, 0).failed, 0);
		assert_int_equal(rig_load(r.s, 50000 + i * BLOCKS, BLOCKS), BLOCKS);
	}
	assert_int_equal(rig_flush(&mine), 0);
	detach(&mine);
	for (uint32_t k = 0; k < 2; k++) {
		assert_int_equal(kill(pid[k], SIGTERM), 0);
		assert_int_equal(kill(pid[k], SIGCONT), 0);
		assert_int_equal(end_of(pid[k]), 0);
	}
	for (uint32_t k = 2; k < 4; k++)
		kill_and_wait(pid[k]);
	all_is_given_back(&r, &before);
	unshare_it(shared);
	rig_tear_down(&r);
}

/* ---- calls on threads of their own ---------------------------------------------------------------------------------- */

static int flush_for_ever(const char *dir)
{
	struct shared *shared = share(dir);
	struct rig r;

	attach(dir, &r);
	rig_save(r.s, 9000, BLOCKS, 0);
	__atomic_add_fetch(&shared->begun, 1, __ATOMIC_SEQ_CST);
	tn_flush(r.cache, TN_FOREVER);
	return 1; /* it is killed before */
}

static void a_process_is_killed_while_its_call_waits_for_a_disk_that_hangs(void **state)
{
	const struct tn_fault hang = {.kind = TN_FAULT_HANG, .op = TN_IO_SYNC, .count = UINT64_MAX};
	struct shared *shared;
	struct held before;
	char path[PATH];
	struct rig r;
	pid_t pid[2];

	rig_init(&r, 64u << 20, 8u << 20, 64);
	r.o.faulty = true;
	rig_must_open(&r);
	socket_path(&r, path);
	assert_int_equal(tn_cache_serve(r.cache, path, NULL), 0);
	shared = share(r.dir);
	rig_save(r.s, 1, BLOCKS, 0);
	assert_int_equal(rig_flush(&r), 0);
	before = held_by(&r);
	rig_fault(&r, &hang, 1);
	for (uint32_t k = 0; k < 2; k++)
		pid[k] = start("flush_for_ever", &r);
	reaches(&shared->begun, 2);
	while (held_by(&r).threads < before.threads + 4) /* a thread of each session, and of each call */
		usleep(500);
	for (uint32_t k = 0; k < 2; k++)
		kill_and_wait(pid[k]);
	all_is_given_back(&r, &before); /* while the disk hangs */
	assert_int_equal(rig_load(r.s, 1, BLOCKS), BLOCKS);
	rig_calm(&r);
	unshare_it(shared);
	rig_tear_down(&r);
}

/* ---- processes that say nothing, or too much --------------------------------------------------------------------------- */

/* How the owner has answered: a refusal, or the end. */
static int refusal_of(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	struct tn_wire_welcome w;
	ssize_t n;

	assert_int_equal(poll(&p, 1, 60000), 1);
	n = recv(fd, &w, sizeof(w), 0);
	return n == (ssize_t)sizeof(w) ? w.status : n == 0 ? -ECONNRESET : -errno;
}

static void connections_that_say_nothing_keep_nobody_out(void **state)
{
	struct held before;
	struct tn_cache *cache;
	char path[PATH];
	int fd[40];
	struct rig r;

	set_up(&r);
	socket_path(&r, path);
	before = held_by(&r);
	for (uint32_t i = 0; i < 40; i++)
		fd[i] = connect_to(path, SOCK_SEQPACKET);
	assert_int_equal(tn_cache_attach(path, patient(), &cache), 0);
	assert_int_equal(refusal_of(fd[0]), -ETIMEDOUT); /* the oldest made place for it */
	assert_int_equal(tn_cache_close(cache), 0);
	assert_int_equal(refusal_of(fd[39]), -ETIMEDOUT); /* by itself */
	for (uint32_t i = 0; i < 40; i++)
		close(fd[i]);
	all_is_given_back(&r, &before);
	rig_tear_down(&r);
}

/* A session that the test itself has. */
static int greet_owner(const char *dir)
{
	struct tn_wire_hello hello = {.magic = TN_WIRE_MAGIC, .page_bytes = (uint32_t)sysconf(_SC_PAGESIZE),
				      .command_bytes = sizeof(struct tn_command)};
	struct tn_wire_welcome w;
	char path[PATH];
	int fd;

	snprintf(path, sizeof(path), "%s/socket", dir);
	snprintf(hello.version, sizeof(hello.version), "%s", tn_version());
	fd = connect_to(path, SOCK_SEQPACKET);
	assert_int_equal(send(fd, &hello, sizeof(hello), 0), sizeof(hello));
	assert_int_equal(recv(fd, &w, sizeof(w), 0), sizeof(w));
	assert_int_equal(w.status, 0);
	return fd;
}

enum flood { MESSAGES, RINGS, CALLS, FLOODS };

/* Until it is killed. */
static int flood(const char *dir, enum flood kind)
{
	const struct tn_wire_memory w = {.magic = TN_WIRE_MAGIC, .nranges = 1};
	struct shared *shared = share(dir);
	int fd = greet_owner(dir);
	struct rig r;

	attach(dir, &r);
	__atomic_add_fetch(&shared->begun, 1, __ATOMIC_SEQ_CST);
	while (!read_word(&shared->stop)) {
		const struct tn_region *region = &r.cache->region;

		if (kind == MESSAGES) {
			assert_true(send(fd, &w, sizeof(w), MSG_NOSIGNAL) > 0); /* and reads no answer */
		} else if (kind == RINGS) {
			__atomic_add_fetch(&tn_region_front(region)->wakes, 1, __ATOMIC_SEQ_CST);
			tn_region_ring(region);
		} else {
			for (uint32_t i = 0; i < TN_WIRE_CALLS; i++)
				tn_call_ask(region, i, i % 2 ? TN_WIRE_FLUSH : TN_WIRE_STATS, sizeof(struct tn_wire_about));
			tn_region_ring(region);
		}
	}
	return 1;
}

static int flood_messages(const char *dir)
{
	return flood(dir, MESSAGES);
}

static int flood_rings(const char *dir)
{
	return flood(dir, RINGS);
}

static int flood_calls(const char *dir)
{
	return flood(dir, CALLS);
}

/* How long loads of one process take while others flood, and while they are stopped. */
static void time_loads_beside(struct rig *r, struct shared *shared, const pid_t *pid)
{
	pid_t living = start("live_first", r);
	uint32_t rounds = 10;

	for (uint32_t i = 0; i < 2 * rounds; i++) {
		for (uint32_t k = 0; k < FLOODS; k++)
			assert_int_equal(kill(pid[k], i % 2 ? SIGSTOP : SIGCONT), 0);
		__atomic_store_n(&shared->phase, i, __ATOMIC_SEQ_CST);
		usleep(1500000);
	}
	__atomic_store_n(&shared->stop, 1, __ATOMIC_SEQ_CST);
	assert_int_equal(end_of(living), 0);
	report(shared, rounds, 0.5, "others flood", "they do not");
	report(shared, rounds, 0.99, "others flood", "they do not");
}

static void processes_that_ask_without_end_hold_up_nobody(void **state)
{
	const char *const body[FLOODS] = {"flood_messages", "flood_rings", "flood_calls"};
	struct shared *shared;
	struct held before;
	struct rig r, mine;
	pid_t pid[FLOODS];

	set_up(&r);
	shared = share(r.dir);
	before = held_by(&r);
	for (uint32_t k = 0; k < FLOODS; k++)
		pid[k] = start(body[k], &r);
	reaches(&shared->begun, FLOODS);
	for (uint32_t i = 0; i < 10; i++) {
		attach(r.dir, &mine);
		assert_int_equal(rig_match(mine.s, 1, BLOCKS), BLOCKS);
		assert_int_equal(rig_load(mine.s, 1, BLOCKS), BLOCKS);
		assert_int_equal(rig_save(mine.s, 70000 + i * BLOCKS, BLOCKS, 0).failed, 0);
		detach(&mine);
	}
	if (tn_test_soak())
		time_loads_beside(&r, shared, pid);
	for (uint32_t k = 0; k < FLOODS; k++)
		kill_and_wait(pid[k]);
	all_is_given_back(&r, &before);
	unshare_it(shared);
	rig_tear_down(&r);
}

int main(int argc, char **argv)
{
	static const struct body bodies[] = {
		{"toil", toil},
		{"live_first", live_first},
		{"live_second", live_second},
		{"come_later", come_later},
		{"leave_in_disorder", leave_in_disorder},
		{"fork_and_hang", fork_and_hang},
		{"fork_and_close", fork_and_close},
		{"flush_for_ever", flush_for_ever},
		{"flood_messages", flood_messages},
		{"flood_rings", flood_rings},
		{"flood_calls", flood_calls},
		{NULL, NULL},
	};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_processes_leave_nothing_behind_and_those_that_live_do_not_notice),
		cmocka_unit_test(a_process_that_exits_without_a_word_is_not_attached_any_more),
		cmocka_unit_test(a_killed_process_is_not_attached_any_more_although_its_child_lives),
		cmocka_unit_test(a_process_that_closes_is_not_attached_any_more_although_its_child_lives),
		cmocka_unit_test(a_process_that_is_stopped_holds_up_nobody),
		RIG_FAULTY_TEST(a_process_is_killed_while_its_call_waits_for_a_disk_that_hangs),
		cmocka_unit_test(connections_that_say_nothing_keep_nobody_out),
		cmocka_unit_test(processes_that_ask_without_end_hold_up_nobody),
	};
	int rc = run_body(argc, argv, bodies);

	return rc >= 0 ? rc : cmocka_run_group_tests(tests, NULL, NULL);
}
