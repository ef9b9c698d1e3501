/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines on their way to the caller's callback: a bounded ring that any thread puts lines into and one thread empties, so
 * that a callback which blocks (a full pipe, a disk) holds up nobody. What does not fit is counted, and the count is logged.
 *
 * Each place of the ring says by its turn whose it is: turn t is free for the line number t, t + 1 holds it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/futex.h"
#include "base/thread.h"
#include "core/core.h"
#include "core/logger.h"

#define LINES 256u /* a power of two */

struct line {
	uint64_t turn;	   /* shared */
	const char *where; /* a function's name */
	enum tn_log_level level;
	char text[512];
};

struct tn_logger {
	struct tn_log *log; /* that goes through the thread, until stop */
	struct tn_log out;  /* what it was: the caller's */
	const struct tn_alloc *alloc;
	pthread_t thread;
	uint64_t next;	 /* shared: number of the next line put in */
	uint64_t taken;	 /* the thread's: of the next one taken out */
	uint64_t lost;	 /* shared: lines that found no place */
	uint32_t asleep; /* shared: futex word */
	uint32_t stop;	 /* shared */
	struct line line[LINES];
};

/* A place for a line, whose number is told; NULL: there is none. */
static struct line *claim(struct tn_logger *l, uint64_t *number)
{
	uint64_t n = __atomic_load_n(&l->next, __ATOMIC_RELAXED);

	for (;;) {
		struct line *at = &l->line[n % LINES];
		uint64_t turn = __atomic_load_n(&at->turn, __ATOMIC_ACQUIRE);

		if (turn < n)
			return NULL;
		if (turn > n) { /* somebody was faster */
			n = __atomic_load_n(&l->next, __ATOMIC_RELAXED);
		} else if (__atomic_compare_exchange_n(&l->next, &n, n + 1, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			*number = n;
			return at;
		}
	}
}

/* Any thread: a tn_log_fn. */
static void put_line(void *arg, enum tn_log_level level, const char *where, const char *text)
{
	struct tn_logger *l = arg;
	uint64_t number;
	struct line *at = claim(l, &number);

	if (!at) {
		__atomic_add_fetch(&l->lost, 1, __ATOMIC_RELAXED);
		return;
	}
	at->level = level;
	at->where = where;
	snprintf(at->text, sizeof(at->text), "%s", text);
	__atomic_store_n(&at->turn, number + 1, __ATOMIC_SEQ_CST);
	/* The thread says that it sleeps, then looks; here it is the other way round, so one of the two sees the other. */
	if (__atomic_load_n(&l->asleep, __ATOMIC_SEQ_CST) && __atomic_exchange_n(&l->asleep, 0, __ATOMIC_SEQ_CST))
		tn_futex_wake(&l->asleep);
}

static bool has_line(const struct tn_logger *l)
{
	return __atomic_load_n(&l->line[l->taken % LINES].turn, __ATOMIC_SEQ_CST) == l->taken + 1;
}

static void hand_over(struct tn_logger *l)
{
	struct line *at = &l->line[l->taken % LINES];

	l->out.fn(l->out.arg, at->level, at->where, at->text);
	__atomic_store_n(&at->turn, l->taken + LINES, __ATOMIC_RELEASE);
	l->taken++;
}

/* After the lines that were in front of them. */
static void tell_lost(struct tn_logger *l)
{
	uint64_t lost = __atomic_exchange_n(&l->lost, 0, __ATOMIC_RELAXED);

	if (lost)
		tn_log(&l->out, TN_LOG_WARN, "%llu log lines were lost: the log callback took too long",
		       (unsigned long long)lost);
}

static void *logger_main(void *arg)
{
	struct tn_logger *l = arg;

	pthread_setname_np(pthread_self(), "tenuto-log");
	for (;;) {
		/* Read before the look: every line from before the stop is then seen. */
		bool stop = __atomic_load_n(&l->stop, __ATOMIC_SEQ_CST);

		if (has_line(l)) {
			hand_over(l);
			continue;
		}
		tell_lost(l);
		if (stop)
			return NULL;
		__atomic_store_n(&l->asleep, 1, __ATOMIC_SEQ_CST);
		if (!has_line(l) && !__atomic_load_n(&l->stop, __ATOMIC_SEQ_CST))
			tn_futex_wait(&l->asleep, 1, TN_FOREVER);
		__atomic_store_n(&l->asleep, 0, __ATOMIC_SEQ_CST);
	}
}

int tn_logger_start(struct tn_log *log, const struct tn_alloc *alloc, struct tn_logger **out)
{
	struct tn_logger *l;
	int rc;

	if (!log->fn)
		return 0;
	l = tn_get(alloc, sizeof(*l));
	if (!l)
		return tn_fail(-ENOMEM, "no memory for log lines");
	l->log = log;
	l->out = *log;
	l->alloc = alloc;
	for (uint64_t i = 0; i < LINES; i++)
		l->line[i].turn = i;
	rc = tn_thread_start(&l->thread, logger_main, l);
	if (rc) {
		tn_put(alloc, l, sizeof(*l));
		return tn_fail(-rc, "cannot start the log thread (errno %d)", rc);
	}
	log->fn = put_line;
	log->arg = l;
	*out = l;
	return 0;
}

void tn_logger_stop(struct tn_logger *l)
{
	if (!l)
		return;
	__atomic_store_n(&l->stop, 1, __ATOMIC_SEQ_CST);
	if (__atomic_exchange_n(&l->asleep, 0, __ATOMIC_SEQ_CST))
		tn_futex_wake(&l->asleep);
	pthread_join(l->thread, NULL);
	*l->log = l->out;
	tn_put(l->alloc, l, sizeof(*l));
}
