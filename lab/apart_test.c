/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An executor in a process apart, killed and replaced again and again. Random IOCBs of all operations, some waiting for events, some
 * cancelled. Each must be reported once. Objects and places belong to an IOCB from its issue to its report, also across executors; what was
 * given back is used for something else at once, so that a transfer which comes too late is seen.
 */
#include "lab/apart_rig.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/rng.h"
#include "tn_test.h"

#define OBJECT 512u
#define OBJECTS 512u
#define PLACES 256u
#define DEPTH 32u
#define EACH 4u /* IOCTXs of an IOCB at most */
#define FREE_STAMP UINT64_C(0xf4ee)
#define NO_STAMP UINT64_C(0x5a5a) /* where an object is to come */
#define MAYBE 8u

struct part {
	uint32_t object, from; /* from: a place, or an object that is copied */
	uint64_t stamp;	       /* of what is written, copied or checked */
};

struct out {
	uint32_t n;
	struct part part[EACH];
};

struct host {
	struct tn_apart a;
	char path[128];
	struct tn_rng rng;
	bool object_busy[OBJECTS], place_busy[PLACES];
	uint64_t maybe[PLACES][MAYBE]; /* stamps of what may lie there */
	uint32_t maybes[PLACES];       /* MAYBE + 1: lost count */
	struct out out[DEPTH];
	uint64_t stamp, event, issued, reported, cancelled, wishes, repeated;
};

static uint64_t *words(struct host *h, uint32_t object)
{
	return (uint64_t *)(void *)(h->a.memory + (size_t)object * OBJECT);
}

static void fill(struct host *h, uint32_t object, uint64_t stamp)
{
	for (uint32_t i = 0; i < OBJECT / 8; i++)
		words(h, object)[i] = stamp + i;
}

static bool has(struct host *h, uint32_t object, uint64_t stamp)
{
	for (uint32_t i = 0; i < OBJECT / 8; i++)
		if (words(h, object)[i] != stamp + i)
			return false;
	return true;
}

static void open_host(struct host *h)
{
	struct tn_apart_opts o = {.ring = {.depth = DEPTH, .ioctxs = EACH, .events = 1}, .path = h->path, .objects = OBJECTS,
				  .object_bytes = OBJECT, .alloc = &tn_alloc_system};
	const char *tmp = getenv("TMPDIR");
	int fd;

	memset(h, 0, sizeof(*h));
	tn_rng_seed(&h->rng, tn_test_seed());
	snprintf(h->path, sizeof(h->path), "%s/tenuto-apart-%d", tmp && *tmp ? tmp : "/var/tmp", (int)getpid());
	fd = open(h->path, O_RDWR | O_CREAT | O_EXCL, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, PLACES * 4096), 0);
	close(fd);
	assert_int_equal(tn_apart_open(&h->a, &o), 0);
	for (uint32_t p = 0; p < PLACES; p++)
		h->maybes[p] = MAYBE + 1;
	for (uint32_t i = 0; i < OBJECTS; i++)
		fill(h, i, FREE_STAMP);
	h->stamp = 1u << 20;
}

static void close_host(struct host *h)
{
	tn_apart_close(&h->a);
	unlink(h->path);
}

static uint32_t reserve(struct host *h, bool *busy, uint32_t n)
{
	uint32_t at = tn_rng_below(&h->rng, n);

	while (busy[at])
		at = (at + 1) % n; /* there are more than IOCBs can hold */
	busy[at] = true;
	return at;
}

/* Nothing has come here since it was given back. */
static uint32_t reserve_object(struct host *h, uint64_t stamp)
{
	uint32_t object = reserve(h, h->object_busy, OBJECTS);

	assert_true(has(h, object, FREE_STAMP));
	fill(h, object, stamp);
	return object;
}

static void give_back(struct host *h, uint32_t object)
{
	fill(h, object, FREE_STAMP);
	h->object_busy[object] = false;
}

static void prepare(struct host *h, uint16_t op, struct part *p, struct tn_ioctx *x)
{
	*p = (struct part){.stamp = h->stamp += OBJECT};
	p->object = reserve_object(h, op == TN_IOCB_WRITE || op == TN_IOCB_CHECK ? p->stamp : NO_STAMP);
	if (op == TN_IOCB_COPY)
		p->from = reserve_object(h, p->stamp);
	else if (op != TN_IOCB_CHECK)
		p->from = reserve(h, h->place_busy, PLACES);
	if (op == TN_IOCB_WRITE && h->maybes[p->from] <= MAYBE && h->maybes[p->from]++ < MAYBE)
		h->maybe[p->from][h->maybes[p->from] - 1] = p->stamp;
	*x = (struct tn_ioctx){.place = p->from, .length = OBJECT, .entry = p->object};
}

static void issue(struct host *h)
{
	struct tn_ring_after after = {0, h->event + tn_rng_below(&h->rng, 3)};
	uint32_t n = 1 + tn_rng_below(&h->rng, EACH), id;
	struct tn_iocb *cb;

	if (tn_ring_get_iocb(h->a.ring, n, tn_rng_below(&h->rng, 4) ? NULL : &after, &id))
		return;
	cb = tn_ring_iocb(h->a.ring, id);
	cb->op = (uint16_t)(TN_IOCB_READ + tn_rng_below(&h->rng, 4));
	cb->flags = TN_IOCB_SUM;
	h->out[id].n = n;
	for (uint32_t i = 0; i < n; i++)
		prepare(h, cb->op, &h->out[id].part[i], &tn_ring_ioctx(h->a.ring, id)[i]);
	assert_int_equal(tn_ring_issue(h->a.ring, &id, 1), 0);
	h->issued++;
}

/* Of any that is out, or of none. */
static void cancel(struct host *h)
{
	uint32_t id = tn_rng_below(&h->rng, DEPTH);

	h->wishes += h->out[id].n > 0;
	tn_ring_cancel(h->a.ring, &id, 1);
}

static bool may_be(const struct host *h, uint32_t place, uint64_t stamp)
{
	uint32_t n = h->maybes[place];

	for (uint32_t i = 0; i < n && n <= MAYBE; i++)
		if (h->maybe[place][i] == stamp)
			return true;
	return n > MAYBE;
}

static void check_part(struct host *h, uint16_t op, const struct part *p, uint64_t sum)
{
	assert_int_equal(sum, tn_checksum(words(h, p->object), OBJECT));
	if (op == TN_IOCB_READ) {
		assert_true(may_be(h, p->from, words(h, p->object)[0]));
		assert_true(h->maybes[p->from] > MAYBE || has(h, p->object, words(h, p->object)[0]));
	} else {
		assert_true(has(h, p->object, p->stamp));
	}
	if (op == TN_IOCB_WRITE) { /* from now on this is there, and nothing else */
		h->maybe[p->from][0] = p->stamp;
		h->maybes[p->from] = 1;
	}
}

static void report(struct host *h, const struct tn_ring_completion *c)
{
	const int32_t *statuses = tn_ring_statuses(h->a.ring, c->id);
	uint16_t op = tn_ring_iocb(h->a.ring, c->id)->op;
	struct out *out = &h->out[c->id];

	assert_true(out->n > 0); /* else it is reported twice */
	assert_non_null(statuses);
	assert_true(c->status == 0 || c->status == -ECANCELED);
	for (uint32_t i = 0; i < out->n; i++) {
		assert_true(statuses[i] == 0 || (statuses[i] == -ECANCELED && c->status));
		if (statuses[i] == 0)
			check_part(h, op, &out->part[i], tn_ring_sums(h->a.ring, c->id)[i]);
		give_back(h, out->part[i].object);
		if (op == TN_IOCB_COPY)
			give_back(h, out->part[i].from);
		else if (op != TN_IOCB_CHECK)
			h->place_busy[out->part[i].from] = false;
	}
	h->cancelled += c->status != 0;
	h->reported++;
	out->n = 0;
	assert_int_equal(tn_ring_put(h->a.ring, &c->id, 1), 0);
}

static bool collect(struct host *h)
{
	struct tn_ring_completion done[DEPTH];
	uint32_t n = tn_ring_poll(h->a.ring, done, DEPTH);

	for (uint32_t i = 0; i < n; i++)
		report(h, &done[i]);
	return n > 0;
}

/* Kills the executor in the middle of much. What it had finished is reported; the rest is done again, by the next one. */
static void replace(struct host *h)
{
	for (uint32_t i = tn_rng_below(&h->rng, 2 * DEPTH); i > 0; i--)
		issue(h);
	assert_true(WIFSIGNALED(tn_apart_stop(&h->a)));
	collect(h);
	h->repeated += tn_ring_repeat(h->a.ring);
	assert_int_equal(tn_apart_start(&h->a, false), 0);
}

static void every_iocb_is_reported_once_however_often_its_executor_is_killed(void **state)
{
	uint64_t iocbs = tn_test_soak() ? 10000000 : 60000, kills = tn_test_soak() ? 100 : 20, killed = 0, kill_at = 1;
	uint64_t deadline = tn_test_deadline(), before = 0;
	static struct host h;

	open_host(&h);
	assert_int_equal(tn_apart_start(&h.a, false), 0);
	while (h.reported < iocbs || h.reported < h.issued) {
		if (h.issued < iocbs)
			issue(&h);
		if (tn_rng_below(&h.rng, 8) == 0)
			cancel(&h);
		if (tn_rng_below(&h.rng, 4) == 0)
			tn_ring_signal(h.a.ring, 0, ++h.event);
		if (killed < kills && h.reported >= kill_at) {
			replace(&h);
			killed++;
			/* One collect may report all that are out: the last kill comes before the last of these. */
			kill_at = killed * iocbs / kills + tn_rng_below(&h.rng, (uint32_t)(iocbs / kills) - 2 * DEPTH);
		}
		if (collect(&h) && h.reported - before > 1000) {
			before = h.reported;
			deadline = tn_test_deadline();
		}
		assert_true(tn_test_now() < deadline); /* nothing is reported any more */
		if (h.issued - h.reported == DEPTH)
			sched_yield();
	}
	assert_int_equal(h.issued, h.reported);
	assert_int_equal(killed, kills);
	print_message("# %llu IOCBs, %llu wished to be cancelled, %llu were; %llu kills, %llu IOCBs done again\n",
		      (unsigned long long)h.reported, (unsigned long long)h.wishes, (unsigned long long)h.cancelled,
		      (unsigned long long)killed, (unsigned long long)h.repeated);
	assert_true(h.repeated > 0 && h.cancelled > 0);
	for (uint32_t i = 0; i < OBJECTS; i++) /* nothing came late */
		assert_true(has(&h, i, FREE_STAMP));
	close_host(&h);
}

static void an_executor_that_writes_to_the_hosts_words_is_killed_by_the_mmu(void **state)
{
	static struct host h;
	int status = 0;

	open_host(&h);
	issue(&h);
	tn_ring_signal(h.a.ring, 0, 100);
	assert_int_equal(tn_apart_start(&h.a, true), 0);
	assert_int_equal(waitpid(h.a.pid, &status, 0), h.a.pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	h.a.pid = 0;
	assert_false(collect(&h));
	assert_int_equal(tn_ring_repeat(h.a.ring), 1);
	assert_int_equal(tn_apart_start(&h.a, false), 0);
	for (uint64_t deadline = tn_test_deadline(); h.reported == 0;) {
		assert_true(tn_test_now() < deadline);
		collect(&h);
		sched_yield();
	}
	close_host(&h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_executor_that_writes_to_the_hosts_words_is_killed_by_the_mmu),
		cmocka_unit_test(every_iocb_is_reported_once_however_often_its_executor_is_killed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
