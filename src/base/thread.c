/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <signal.h>
#include <time.h>

int tn_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg)
{
	sigset_t mask, old;
	int rc;

	sigfillset(&mask);
	sigdelset(&mask, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &mask, &old);
	rc = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc;
}

void tn_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

int tn_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns)
{
	struct timespec t = {.tv_sec = (time_t)(deadline_ns / 1000000000u), .tv_nsec = (long)(deadline_ns % 1000000000u)};

	return deadline_ns == UINT64_MAX ? -pthread_cond_wait(cond, lock) : -pthread_cond_timedwait(cond, lock, &t);
}
