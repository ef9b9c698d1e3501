/* SPDX-License-Identifier: Apache-2.0 */
/* Workers, and an owner that helps: each job runs once and ends once, and who sleeps is woken. */
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "core/core.h"
#include "core/workers.h"
#include "ioengine/ioengine.h"
#include "tn_test.h"

#define JOBS 1000u
#define ROUNDS 100u

struct work {
	struct tn_job job;
	uint32_t runs, ends; /* runs: shared */
	bool by_owner;
};

static struct work work[JOBS];
static pthread_t owner;
static uint32_t hold, begun; /* shared: jobs of workers do not end; how many of theirs have begun */

static void run(struct tn_job *job)
{
	struct work *w = tn_container_of(job, struct work, job);

	w->by_owner = pthread_equal(owner, pthread_self());
	__atomic_add_fetch(&w->runs, 1, __ATOMIC_RELAXED);
	if (w->by_owner)
		return;
	__atomic_add_fetch(&begun, 1, __ATOMIC_RELEASE);
	while (__atomic_load_n(&hold, __ATOMIC_ACQUIRE))
		sched_yield();
}

static void done(struct tn_job *job)
{
	tn_container_of(job, struct work, job)->ends++;
}

static struct tn_io *start(uint32_t n, struct tn_workers **workers)
{
	const struct tn_ioengine_opts o = {.kind = TN_IOENGINE_POSIX, .depth = 8, .threads = 1, .alloc = &tn_alloc_system, .clock = &tn_clock_system};
	struct tn_io *io;

	owner = pthread_self();
	memset(work, 0, sizeof(work));
	hold = begun = 0;
	assert_int_equal(tn_ioengine_create(&o, &io), 0);
	assert_int_equal(tn_workers_create(n, JOBS, &tn_alloc_system, io, workers), 0);
	return io;
}

static void post(struct tn_workers *workers, uint32_t i)
{
	work[i].job = (struct tn_job){.run = run, .done = done, .bytes = 1u << 20};
	tn_workers_exec(workers)->post(tn_workers_exec(workers), &work[i].job);
}

static uint32_t ended(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < JOBS; i++)
		n += work[i].ends;
	return n;
}

/* As the owner's loop, with or without help. */
static void until_ended(struct tn_workers *workers, struct tn_io *io, uint32_t n, bool helps)
{
	struct tn_io_req *none[1];

	while (ended() < n) {
		if (tn_exec_collect(tn_workers_exec(workers)) || (helps && tn_workers_help(workers)))
			continue;
		tn_io_poll(io, none, 1, UINT64_MAX); /* for ever, if nobody wakes it: the test's time limit says so */
	}
}

static void each_job_runs_once_and_whoever_waits_is_woken(void **state)
{
	struct tn_rng rng;

	tn_rng_seed(&rng, tn_test_seed());
	for (uint32_t round = 0; round < ROUNDS; round++) {
		struct tn_workers *workers;
		struct tn_io *io = start(1 + round % 3, &workers);
		uint32_t n = 1 + (uint32_t)tn_rng_below(&rng, round % 2 ? JOBS : 8);
		bool helps = tn_rng_below(&rng, 2);

		for (uint32_t i = 0; i < n; i++) {
			post(workers, i);
			if (tn_rng_below(&rng, 20) == 0)
				tn_exec_collect(tn_workers_exec(workers));
			if (tn_rng_below(&rng, 50) == 0)
				usleep(100); /* the workers fall asleep */
		}
		until_ended(workers, io, n, helps);
		for (uint32_t i = 0; i < n; i++) {
			assert_int_equal(work[i].runs, 1);
			assert_int_equal(work[i].ends, 1);
		}
		tn_workers_destroy(workers);
		tn_io_destroy(io);
	}
}

static void an_owner_that_helps_takes_what_no_worker_has_begun(void **state)
{
	struct tn_workers *workers;
	struct tn_io *io = start(1, &workers);
	uint32_t helped = 0;

	__atomic_store_n(&hold, 1, __ATOMIC_RELEASE);
	for (uint32_t i = 0; i < JOBS; i++)
		post(workers, i);
	while (__atomic_load_n(&begun, __ATOMIC_ACQUIRE) == 0)
		sched_yield();
	while (tn_workers_help(workers))
		helped++;
	assert_true(helped > 0);
	tn_exec_collect(tn_workers_exec(workers));
	assert_int_equal(ended(), JOBS - 1); /* all but the one that the worker has */
	assert_int_equal(begun, 1);
	__atomic_store_n(&hold, 0, __ATOMIC_RELEASE);
	until_ended(workers, io, JOBS, false);

	__atomic_store_n(&hold, 1, __ATOMIC_RELEASE);
	memset(work, 0, sizeof(work));
	begun = 0;
	post(workers, 0);
	while (__atomic_load_n(&begun, __ATOMIC_ACQUIRE) == 0)
		sched_yield();
	work[1].job = (struct tn_job){.run = run, .done = done, .bytes = 64u << 20};
	tn_workers_exec(workers)->post(tn_workers_exec(workers), &work[1].job);
	assert_false(tn_workers_help(workers)); /* the worker's: it would keep the owner for long */
	__atomic_store_n(&hold, 0, __ATOMIC_RELEASE);
	until_ended(workers, io, 2, true);
	tn_workers_destroy(workers);
	tn_io_destroy(io);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_job_runs_once_and_whoever_waits_is_woken),
		cmocka_unit_test(an_owner_that_helps_takes_what_no_worker_has_begun),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
