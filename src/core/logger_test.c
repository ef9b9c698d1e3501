/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines through a thread: in order, none lost without being counted, whatever the callback takes. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/logger.h"
#include "tn_test.h"

#define THREADS 4u
#define EACH 20000u

struct got {
	uint32_t open; /* shared: the callback returns */
	uint32_t next[THREADS]; /* number of the next line of each thread */
	uint64_t lines;
	uint64_t lost; /* shared */
	uint32_t slow; /* microseconds that the callback takes to tell what was lost */
};

static void count_line(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	struct got *g = arg;
	unsigned long long lost;
	unsigned thread, n;

	while (!__atomic_load_n(&g->open, __ATOMIC_ACQUIRE))
		usleep(1000);
	if (sscanf(text, "%llu log lines were lost", &lost) == 1) {
		__atomic_add_fetch(&g->lost, lost, __ATOMIC_RELEASE);
		usleep(g->slow);
		return;
	}
	assert_int_equal(sscanf(text, "thread %u line %u", &thread, &n), 2);
	assert_true(thread < THREADS && n >= g->next[thread]);
	g->next[thread] = n + 1;
	g->lines++;
}

static struct tn_logger *start(struct got *g, struct tn_log *log)
{
	struct tn_logger *logger;

	*log = (struct tn_log){count_line, g, TN_LOG_INFO};
	assert_int_equal(tn_logger_start(log, &tn_alloc_system, &logger), 0);
	return logger;
}

static void lines_that_find_no_place_are_counted(void **state)
{
	struct got g = {0};
	struct tn_log log;
	struct tn_logger *logger = start(&g, &log);

	for (uint32_t i = 0; i < 300; i++)
		tn_log(&log, TN_LOG_INFO, "thread 0 line %u", i);
	__atomic_store_n(&g.open, 1, __ATOMIC_RELEASE);
	tn_logger_stop(logger);
	assert_int_equal(g.lines, 256);
	assert_int_equal(g.next[0], 256); /* the first ones */
	assert_int_equal(g.lost, 44);
	assert_ptr_equal(log.arg, &g);
}

struct talker {
	const struct tn_log *log;
	uint32_t number;
};

static void *talk(void *arg)
{
	const struct talker *t = arg;

	for (uint32_t i = 0; i < EACH; i++)
		tn_log(t->log, TN_LOG_INFO, "thread %u line %u", t->number, i);
	return NULL;
}

static void lines_of_many_threads_come_in_the_order_of_each(void **state)
{
	struct got g = {.open = 1};
	struct tn_log log;
	struct tn_logger *logger = start(&g, &log);
	struct talker talker[THREADS];
	pthread_t thread[THREADS];

	for (uint32_t i = 0; i < THREADS; i++) {
		talker[i] = (struct talker){&log, i};
		assert_int_equal(pthread_create(&thread[i], NULL, talk, &talker[i]), 0);
	}
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	tn_logger_stop(logger);
	assert_int_equal(g.lines + g.lost, THREADS * EACH);
	assert_true(g.lines > 0);
}

/* The thread has looked for lines and tells what was lost: a line comes, and then the stop. */
static void the_last_line_before_the_stop_is_handed_over(void **state)
{
	struct got g = {.slow = 50000};
	struct tn_log log;
	struct tn_logger *logger = start(&g, &log);

	for (uint32_t i = 0; i < 300; i++)
		tn_log(&log, TN_LOG_INFO, "thread 0 line %u", i);
	__atomic_store_n(&g.open, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&g.lost, __ATOMIC_ACQUIRE))
		usleep(1000);
	tn_log(&log, TN_LOG_INFO, "thread 0 line 300");
	tn_logger_stop(logger);
	assert_int_equal(g.lines, 257);
	assert_int_equal(g.lost, 44);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lines_that_find_no_place_are_counted),
		cmocka_unit_test(lines_of_many_threads_come_in_the_order_of_each),
		cmocka_unit_test(the_last_line_before_the_stop_is_handed_over),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
