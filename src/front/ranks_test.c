/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor parallelism over processes: one that schedules, and one per rank that saves and loads the rank's share, all attached to the cache
 * that this process serves. Each of them does what it is told through a socket, so the test decides what happens in which order, and who dies when.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/core.h"
#include "cache_rig.h"

#define RANKS 3u
#define BLOCKS 8u
#define NPAGES 256u
#define PATH 300u
#define LIFE_S 240u /* a process that waits for longer is killed, and the test fails */

/* ---- what a process does when it is told ------------------------------------------------------------------------ */

enum what {
	MATCH,	    /* scheduler: how many blocks all ranks have */
	PIN,	    /* the same with a lease, which the process keeps */
	UNPIN,	    /* the lease ends: what tn_unpin says */
	UNPIN_THAT, /* as UNPIN, of another process's lease */
	SAVE,	    /* worker: how many blocks are stored or were there */
	SAVE_HALF,  /* begins, and gives half of the layers */
	LOAD,	    /* how many blocks came, whose bytes were compared */
	LOAD_BEGIN, /* half of LOAD ... */
	LOAD_END,   /* ... and the other half */
};

struct order {
	uint32_t what, n;
	uint64_t first, pin;
};

struct said {
	int64_t result;
	uint64_t pin;
};

/* A process, on its own side. The scheduler has all spaces and no memory. */
struct self {
	struct rig r;
	struct rig_space s[RANKS];
	bool schedules;
	struct tn_load *load;
	uint64_t load_first;
};

static void socket_path(const char *dir, char path[PATH])
{
	snprintf(path, PATH, "%s/socket", dir);
}

static void attach(const char *dir, uint32_t rank, struct self *self)
{
	struct tn_attach_opts ao;
	char path[PATH];

	*self = (struct self){.schedules = rank == RANKS};
	rig_init(&self->r, 0, 0, 64);
	assert_int_equal(rmdir(self->r.dir), 0);
	self->r.o.attached = true;
	self->r.o.npages = NPAGES;
	socket_path(dir, path);
	tn_attach_opts_init(&ao);
	ao.deadline_ns = tn_test_deadline();
	assert_int_equal(tn_cache_attach(path, &ao, &self->r.cache), 0);
	for (uint32_t i = 0; i < RANKS; i++)
		if (self->schedules || i == rank)
			assert_int_equal(rig_space_open(&self->r, &(struct rig_space_opts){.rank = i, .ranks = RANKS,
											   .no_pool = self->schedules},
							&self->s[i]), 0);
	if (!self->schedules)
		self->s[0] = self->s[rank];
}

static int match(struct self *self, const struct order *o, unsigned flags, uint64_t *pin)
{
	struct tn_space *spaces[RANKS];
	struct tn_match m = {.size = sizeof(m)};
	struct tn_key keys[RIG_AT_ONCE];
	int rc;

	for (uint32_t i = 0; i < RANKS; i++)
		spaces[i] = self->s[i].space;
	rig_keys(o->first, o->n, keys);
	rc = tn_match_all(spaces, RANKS, keys, o->n, NULL, &m, flags);
	*pin = rc > 0 ? m.pin : 0;
	return rc;
}

static int64_t save_half(struct rig_space *s, const struct order *o)
{
	struct tn_save *save = rig_save_begin(s, o->first, o->n, 0, NULL);

	for (uint32_t l = 0; l < RIG_LAYERS / 2; l++)
		assert_int_equal(tn_save_layer(save, l, NULL, 0), 0);
	return 0;
}

static int64_t load_end(struct self *self)
{
	int good = -1;

	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		good = rig_load_wait(&self->s[0], self->load, l);
	rig_load_end(&self->s[0], self->load);
	assert_true(good >= 0);
	rig_check_blocks(&self->s[0], self->load_first, (uint32_t)good, NPAGES / 2);
	return good;
}

static int64_t carry_out(struct self *self, const struct order *o, uint64_t *pin)
{
	struct tn_save_result res;

	switch ((enum what)o->what) {
	case MATCH:
		return match(self, o, 0, pin);
	case PIN:
		return match(self, o, TN_MATCH_PIN, pin);
	case UNPIN:
	case UNPIN_THAT:
		return tn_unpin(self->s[0].space, o->pin);
	case SAVE:
		res = rig_save(&self->s[0], o->first, o->n, 0);
		return res.stored + res.existing + res.host_only;
	case SAVE_HALF:
		return save_half(&self->s[0], o);
	case LOAD:
		return rig_load(&self->s[0], o->first, o->n);
	case LOAD_BEGIN:
		self->load_first = o->first;
		self->load = rig_load_begin(&self->s[0], o->first, o->n, NPAGES / 2, NULL);
		return 0;
	case LOAD_END:
		return load_end(self);
	}
	return -EINVAL;
}

/* Until nobody gives orders any more. */
static int obey(const char *dir, uint32_t rank)
{
	struct self self;
	struct order o;

	attach(dir, rank, &self);
	while (recv(STDIN_FILENO, &o, sizeof(o), 0) == sizeof(o)) {
		struct said said = {.pin = 0};

		said.result = carry_out(&self, &o, &said.pin);
		if (send(STDIN_FILENO, &said, sizeof(said), MSG_NOSIGNAL) < 0)
			break;
	}
	for (uint32_t i = 0; i < (self.schedules ? RANKS : 1); i++)
		rig_space_close(&self.s[i]);
	assert_int_equal(tn_cache_close(self.r.cache), 0);
	return 0;
}

/* ---- the other side ----------------------------------------------------------------------------------------------- */

struct process {
	pid_t pid;
	int sock;
};

struct world {
	struct rig r;
	struct tn_rng rng;
	struct process rank[RANKS + 1]; /* the last one schedules */
};

#define SCHEDULER RANKS

static void start(struct world *w, uint32_t rank)
{
	struct process *p = &w->rank[rank];
	char number[16];
	int pair[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	snprintf(number, sizeof(number), "%u", rank);
	fflush(stdout);
	p->pid = fork();
	assert_true(p->pid >= 0);
	if (p->pid == 0) {
		alarm(LIFE_S);
		dup2(pair[1], STDIN_FILENO);
		execl("/proc/self/exe", "ranks-test", w->r.dir, number, (char *)NULL);
		_exit(127);
	}
	close(pair[1]);
	p->sock = pair[0];
}

static void order(struct world *w, uint32_t rank, const struct order *o)
{
	assert_int_equal(send(w->rank[rank].sock, o, sizeof(*o), MSG_NOSIGNAL), sizeof(*o));
}

static int64_t answer(struct world *w, uint32_t rank, uint64_t *pin)
{
	struct said said;

	if (recv(w->rank[rank].sock, &said, sizeof(said), 0) != sizeof(said))
		fail_msg("process %u does not answer any more", rank);
	if (pin)
		*pin = said.pin;
	return said.result;
}

static int64_t command(struct world *w, uint32_t rank, enum what what, uint64_t first, uint32_t n)
{
	order(w, rank, &(struct order){.what = what, .first = first, .n = n});
	return answer(w, rank, NULL);
}

/* All ranks at once; each must answer the same. */
static int64_t tell_ranks(struct world *w, enum what what, uint64_t first, uint32_t n)
{
	int64_t all = -1;

	for (uint32_t i = 0; i < RANKS; i++)
		order(w, i, &(struct order){.what = what, .first = first, .n = n});
	for (uint32_t i = 0; i < RANKS; i++) {
		int64_t one = answer(w, i, NULL);

		assert_true(i == 0 || one == all);
		all = one;
	}
	return all;
}

static void end(struct world *w, uint32_t rank)
{
	struct process *p = &w->rank[rank];
	int status;

	close(p->sock);
	assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
	assert_int_equal(status, 0);
}

static void kill_and_wait(struct world *w, uint32_t rank)
{
	struct process *p = &w->rank[rank];

	assert_int_equal(kill(p->pid, SIGKILL), 0);
	assert_int_equal(waitpid(p->pid, NULL, 0), p->pid);
	close(p->sock);
}

static void up(struct world *w, uint64_t disk_bytes, uint64_t host_bytes)
{
	char path[PATH];

	rig_init(&w->r, disk_bytes, host_bytes, 64);
	w->r.o.spaces = 0;
	w->r.o.attached = false;
	rig_must_open(&w->r);
	tn_rng_seed(&w->rng, tn_test_seed());
	socket_path(w->r.dir, path);
	assert_int_equal(tn_cache_serve(w->r.cache, path, NULL), 0);
	for (uint32_t i = 0; i <= RANKS; i++)
		start(w, i);
}

static void down(struct world *w)
{
	for (uint32_t i = 0; i <= RANKS; i++)
		end(w, i);
	rig_tear_down(&w->r);
}

static uint32_t any_rank(struct world *w)
{
	return (uint32_t)tn_rng_below(&w->rng, RANKS);
}

/* ---- what is found -------------------------------------------------------------------------------------------------- */

static void a_block_is_found_when_every_rank_has_saved_it(void **state)
{
	struct world w;

	up(&w, 64u << 20, 8u << 20);
	for (uint64_t p = 1; p <= 10; p++) {
		uint32_t last = any_rank(&w);

		for (uint32_t i = 1; i < RANKS; i++)
			assert_int_equal(command(&w, (last + i) % RANKS, SAVE, p * 100, BLOCKS), BLOCKS);
		assert_int_equal(command(&w, SCHEDULER, MATCH, p * 100, BLOCKS), 0);
		/* One that has some of them ends the prefix there. */
		assert_int_equal(command(&w, last, SAVE, p * 100, 3), 3);
		assert_int_equal(command(&w, SCHEDULER, MATCH, p * 100, BLOCKS), 3);
		assert_int_equal(command(&w, last, SAVE, p * 100, BLOCKS), BLOCKS);
		assert_int_equal(command(&w, SCHEDULER, MATCH, p * 100, BLOCKS), BLOCKS);
		assert_int_equal(tell_ranks(&w, LOAD, p * 100, BLOCKS), BLOCKS);
	}
	down(&w);
}

static void a_block_whose_save_has_not_committed_on_every_rank_is_not_found(void **state)
{
	struct world w;
	uint32_t half;

	up(&w, 64u << 20, 8u << 20);
	half = any_rank(&w);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(command(&w, i, i == half ? SAVE_HALF : SAVE, 1, BLOCKS), i == half ? 0 : BLOCKS);
	assert_int_equal(command(&w, SCHEDULER, MATCH, 1, BLOCKS), 0);
	/* Killed in the middle, it never will be; the one that takes its place saves again. */
	kill_and_wait(&w, half);
	assert_int_equal(command(&w, SCHEDULER, MATCH, 1, BLOCKS), 0);
	start(&w, half);
	assert_int_equal(command(&w, half, SAVE, 1, BLOCKS), BLOCKS);
	assert_int_equal(command(&w, SCHEDULER, MATCH, 1, BLOCKS), BLOCKS);
	assert_int_equal(tell_ranks(&w, LOAD, 1, BLOCKS), BLOCKS);
	down(&w);
}

/* ---- leases ---------------------------------------------------------------------------------------------------------- */

/* More than fits, of all ranks. */
static void press(struct world *w)
{
	static uint64_t next = 1000000;

	for (uint32_t i = 0; i < 8; i++, next += 100)
		tell_ranks(w, SAVE, next, BLOCKS);
}

static void the_schedulers_lease_keeps_the_blocks_for_the_loads_of_the_ranks(void **state)
{
	struct order unpin = {.what = UNPIN};
	struct world w;

	up(&w, 0, 8u << 20); /* 61 slots */
	assert_int_equal(tell_ranks(&w, SAVE, 1, BLOCKS), BLOCKS);
	order(&w, SCHEDULER, &(struct order){.what = PIN, .first = 1, .n = BLOCKS + 3});
	assert_int_equal(answer(&w, SCHEDULER, &unpin.pin), BLOCKS);
	press(&w);
	assert_int_equal(tell_ranks(&w, LOAD, 1, BLOCKS), BLOCKS);
	/* It is the scheduler's. */
	unpin.what = UNPIN_THAT;
	order(&w, 0, &unpin);
	assert_int_equal(answer(&w, 0, NULL), -EINVAL);
	press(&w);
	assert_int_equal(tell_ranks(&w, LOAD, 1, BLOCKS), BLOCKS);
	unpin.what = UNPIN;
	order(&w, SCHEDULER, &unpin);
	assert_int_equal(answer(&w, SCHEDULER, NULL), 0);
	press(&w);
	assert_int_equal(command(&w, SCHEDULER, MATCH, 1, BLOCKS), 0);
	assert_int_equal(tell_ranks(&w, LOAD, 1, BLOCKS), 0);
	down(&w);
}

/* What one rank lacks is held of no rank. */
static void a_lease_holds_what_all_ranks_have_or_nothing(void **state)
{
	struct order unpin = {.what = UNPIN};
	struct world w;

	up(&w, 0, 8u << 20);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(command(&w, i, SAVE, 1, i == 1 ? 2 : BLOCKS), i == 1 ? 2 : BLOCKS);
	order(&w, SCHEDULER, &(struct order){.what = PIN, .first = 1, .n = BLOCKS});
	assert_int_equal(answer(&w, SCHEDULER, &unpin.pin), 2);
	press(&w);
	for (uint32_t i = 0; i < RANKS; i++)
		assert_int_equal(command(&w, i, LOAD, 1, BLOCKS), 2);
	order(&w, SCHEDULER, &unpin);
	assert_int_equal(answer(&w, SCHEDULER, NULL), 0);
	down(&w);
}

/* ---- who dies --------------------------------------------------------------------------------------------------------- */

static void workers_are_killed_while_they_save(void **state)
{
	uint32_t rounds = tn_test_soak() ? 500 : 12, all = 0, some = 0;
	struct world w;

	up(&w, 64u << 20, 8u << 20);
	for (uint32_t i = 0; i < RANKS; i++) /* it has begun */
		assert_int_equal(command(&w, i, LOAD, 1, 1), 0);
	for (uint64_t p = 1; p <= rounds; p++) {
		uint32_t victim = any_rank(&w);
		int64_t found, loaded;

		for (uint32_t i = 0; i < RANKS; i++)
			order(&w, i, &(struct order){.what = SAVE, .first = p * 100, .n = BLOCKS});
		usleep((useconds_t)tn_rng_below(&w.rng, 800));
		kill_and_wait(&w, victim);
		for (uint32_t i = 0; i < RANKS; i++)
			if (i != victim)
				assert_int_equal(answer(&w, i, NULL), BLOCKS);
		start(&w, victim);
		/*
		 * Of a save that was committed what is stored by the time that the owner knows of the death stays, first blocks first; maybe it
		 * does not know yet. What is found, every rank can load.
		 */
		found = command(&w, SCHEDULER, MATCH, p * 100, BLOCKS);
		for (uint32_t i = 0; i < RANKS; i++) {
			loaded = command(&w, i, LOAD, p * 100, BLOCKS);
			if (i == victim)
				assert_in_range(loaded, found, BLOCKS);
			else
				assert_int_equal(loaded, BLOCKS);
		}
		all += found == BLOCKS;
		some += found > 0 && found < BLOCKS;
		assert_int_equal(tell_ranks(&w, SAVE, p * 100, BLOCKS), BLOCKS);
		assert_int_equal(command(&w, SCHEDULER, MATCH, p * 100, BLOCKS), BLOCKS);
	}
	print_message("# of %u saves whose process was killed %u were over, and %u half over\n", rounds, all, some);
	down(&w);
}

static void the_scheduler_is_killed_while_the_ranks_load_what_it_held(void **state)
{
	uint32_t rounds = tn_test_soak() ? 200 : 6;
	struct world w;

	up(&w, 0, 8u << 20);
	for (uint32_t round = 0; round < rounds; round++) {
		assert_int_equal(tell_ranks(&w, SAVE, 1, BLOCKS), BLOCKS);
		assert_int_equal(command(&w, SCHEDULER, PIN, 1, BLOCKS), BLOCKS);
		for (uint32_t i = 0; i < RANKS; i++)
			order(&w, i, &(struct order){.what = LOAD_BEGIN, .first = 1, .n = BLOCKS});
		usleep((useconds_t)tn_rng_below(&w.rng, 2000));
		kill_and_wait(&w, SCHEDULER);
		/* A load holds its blocks itself once it has begun: it goes on, or what it finds no more is cut off. */
		for (uint32_t i = 0; i < RANKS; i++)
			assert_int_equal(answer(&w, i, NULL), 0);
		for (uint32_t i = 0; i < RANKS; i++)
			assert_int_equal(command(&w, i, LOAD_END, 1, BLOCKS), BLOCKS);
		/* Its lease is over. */
		rig_until(&w.r, (press(&w), command(&w, 0, LOAD, 1, BLOCKS)) == 0);
		start(&w, SCHEDULER);
		assert_int_equal(command(&w, SCHEDULER, MATCH, 1, BLOCKS), 0);
	}
	down(&w);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_is_found_when_every_rank_has_saved_it),
		cmocka_unit_test(a_block_whose_save_has_not_committed_on_every_rank_is_not_found),
		cmocka_unit_test(the_schedulers_lease_keeps_the_blocks_for_the_loads_of_the_ranks),
		cmocka_unit_test(a_lease_holds_what_all_ranks_have_or_nothing),
		cmocka_unit_test(workers_are_killed_while_they_save),
		cmocka_unit_test(the_scheduler_is_killed_while_the_ranks_load_what_it_held),
	};

	if (argc == 3) {
		setenv("CMOCKA_TEST_ABORT", "1", 1);
		return obey(argv[1], (uint32_t)strtoul(argv[2], NULL, 10));
	}
	return cmocka_run_group_tests(tests, NULL, NULL);
}
