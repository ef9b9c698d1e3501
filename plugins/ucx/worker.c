/* SPDX-License-Identifier: Apache-2.0 */
/* The lock and the thread of a worker. */
#include "ucx.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CLOSING_NS 10000000u   /* an endpoint that closes is looked at as often */
#define LEAVE_NS 2000000000u   /* that endpoints have to close when the backend ends */
#define DRAIN_NS 300000000u
#define QUIET_NS 100000000u    /* that nothing moves: the kernel passes on what a sender has left after 40 ms (a late ACK) */
#define PAUSE_NS 1000000u
/*
 * An operation that waits for space at the peer has no event. The peer needs a CPU to make space, perhaps this one: so the thread gives it to others and looks again,
 * until nothing has moved for YIELD_NS. Then it sleeps for FULL_NS at a time.
 */
#define YIELD_NS 200000u
#define FULL_NS 50000u

uint64_t ucx_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void ucx_lock(struct ucx *u)
{
	__atomic_add_fetch(&u->waiting, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&u->lock);
	__atomic_sub_fetch(&u->waiting, 1, __ATOMIC_RELAXED);
}

void ucx_unlock(struct ucx *u)
{
	pthread_mutex_unlock(&u->lock);
}

void ucx_wake(struct ucx *u)
{
	uint64_t one = 1;
	ssize_t n = write(u->wake, &one, sizeof(one));

	(void)n; /* it fails only if the counter is full: then it is readable, too */
}

/* A mutex gives no turns: without this the thread would take it again before those who wait for it. */
static void let_others(struct ucx *u)
{
	ucx_unlock(u);
	while (__atomic_load_n(&u->waiting, __ATOMIC_RELAXED))
		sched_yield();
	pthread_mutex_lock(&u->lock);
}

static void yield(struct ucx *u)
{
	ucx_unlock(u);
	sched_yield();
	pthread_mutex_lock(&u->lock);
}

static void sleep_until(struct ucx *u, uint64_t now, uint64_t next_ns)
{
	struct pollfd p[] = {{.fd = u->efd, .events = POLLIN}, {.fd = u->wake, .events = POLLIN}};
	uint64_t left = next_ns > now ? next_ns - now : 0, count;
	struct timespec t = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};

	ucx_unlock(u);
	ppoll(p, 2, next_ns == UINT64_MAX ? NULL : &t, NULL);
	if (p[1].revents)
		while (read(u->wake, &count, sizeof(count)) > 0)
			;
	pthread_mutex_lock(&u->lock);
}

static void *run(void *arg)
{
	struct ucx *u = arg;

	pthread_mutex_lock(&u->lock);
	for (;;) {
		unsigned moved = u->api->ucp_worker_progress(u->worker);
		uint64_t now = ucx_now(), next_ns = ucx_give_up(u, now);
		struct ucx_work *ended;

		if (moved)
			u->busy_ns = now;
		if (ucx_peers_close(u) && now + CLOSING_NS < next_ns)
			next_ns = now + CLOSING_NS;
		ended = ucx_go_on(u, NULL);
		if (ended) {
			ucx_unlock(u);
			ucx_tell_ended(ended);
			pthread_mutex_lock(&u->lock);
		} else if (moved || u->ready) {
			let_others(u);
		} else if (u->stop && (!u->peers || now >= u->stop_ns)) {
			break; /* an endpoint that does not close is closed with the worker */
		} else if (u->api->ucp_worker_arm(u->worker) != UCS_ERR_BUSY) {
			sleep_until(u, now, next_ns);
		} else if (now < u->busy_ns + YIELD_NS) {
			yield(u);
		} else {
			sleep_until(u, now, now + FULL_NS);
		}
	}
	ucx_unlock(u);
	return NULL;
}

int ucx_thread_start(struct ucx *u)
{
	sigset_t all, old;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&u->thread, NULL, run, u);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return ucx_fail(-rc, "backend ucx: a thread: %s", strerror(rc));
	u->has_thread = true;
	return 0;
}

void ucx_thread_stop(struct ucx *u)
{
	if (!u->has_thread)
		return;
	ucx_lock(u);
	u->stop = true;
	u->stop_ns = ucx_now() + LEAVE_NS;
	ucx_unlock(u);
	ucx_wake(u);
	pthread_join(u->thread, NULL);
}

/* With the lock: whether something has moved, or is there to be read. */
static bool look_at_worker(struct ucx *u)
{
	struct pollfd p = {.fd = u->efd, .events = POLLIN};

	return u->api->ucp_worker_progress(u->worker) || u->api->ucp_worker_arm(u->worker) == UCS_ERR_BUSY || poll(&p, 1, 0) > 0;
}

void ucx_drain(struct ucx *u)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	uint64_t now = ucx_now(), until = now + DRAIN_NS, busy_ns;

	for (;;) {
		ucx_lock(u);
		if (look_at_worker(u))
			u->busy_ns = now;
		busy_ns = u->busy_ns;
		ucx_unlock(u);
		if (now >= until || now >= busy_ns + QUIET_NS)
			break;
		nanosleep(&pause, NULL);
		now = ucx_now();
	}
	ucx_wake(u);
}
