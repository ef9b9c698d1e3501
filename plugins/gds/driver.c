/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

enum state { NOT_STARTED, STARTING, ENDED };

static struct {
	pthread_mutex_t lock;
	pthread_once_t once;
	pthread_cond_t changed; /* of CLOCK_MONOTONIC */
	enum state state;
	pthread_t thread;
	bool joined;
	int rc; /* once ENDED */
	char detail[256];
	struct cufile library; /* does not change once ready is set: read without the lock */
	int ready;	       /* __atomic: released once library is written */
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static void make_condition(void)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&driver.changed, &attr);
	pthread_condattr_destroy(&attr);
}

static void *open_driver(void *arg)
{
	char detail[sizeof(driver.detail)] = "";
	struct cufile library;
	int rc = cufile_load(&library, detail, sizeof(detail));
	struct cufile_error e;

	if (rc == 0) {
		e = library.driver_open();
		if (e.error)
			rc = cufile_fail("cuFileDriverOpen", e.error, e.cuda_error, detail, sizeof(detail));
	}
	pthread_mutex_lock(&driver.lock);
	if (rc == 0) {
		driver.library = library;
		__atomic_store_n(&driver.ready, 1, __ATOMIC_RELEASE);
	}
	driver.rc = rc;
	snprintf(driver.detail, sizeof(driver.detail), "%s", detail);
	driver.state = ENDED;
	pthread_cond_broadcast(&driver.changed);
	pthread_mutex_unlock(&driver.lock);
	return NULL;
}

/* The caller holds the lock. */
static int begin(char *detail, size_t detail_bytes)
{
	int rc = pthread_create(&driver.thread, NULL, open_driver, NULL);

	if (rc) {
		snprintf(detail, detail_bytes, "no thread to open cuFile in: allow this process more threads");
		return -rc;
	}
	driver.state = STARTING;
	return 0;
}

int gds_start(uint64_t deadline_ns, char *detail, size_t detail_bytes)
{
	struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000), .tv_nsec = (long)(deadline_ns % 1000000000)};
	bool late = false, join = false;
	int rc = 0;

	pthread_once(&driver.once, make_condition);
	pthread_mutex_lock(&driver.lock);
	if (driver.state == NOT_STARTED)
		rc = begin(detail, detail_bytes);
	while (rc == 0 && driver.state == STARTING && !late)
		late = pthread_cond_timedwait(&driver.changed, &driver.lock, &until) == ETIMEDOUT;
	if (rc == 0 && driver.state == ENDED) {
		join = !driver.joined;
		driver.joined = true;
		rc = driver.rc;
		if (rc)
			snprintf(detail, detail_bytes, "%s", driver.detail);
	} else if (rc == 0) {
		rc = -ETIMEDOUT;
		snprintf(detail, detail_bytes, "cuFileDriverOpen has not returned: its kernel driver may be missing (modprobe nvidia-fs), or the GPU is busy");
	}
	pthread_mutex_unlock(&driver.lock);
	if (join)
		pthread_join(driver.thread, NULL);
	return rc;
}

const struct cufile *gds_library(void)
{
	return __atomic_load_n(&driver.ready, __ATOMIC_ACQUIRE) ? &driver.library : NULL;
}

int gds_not_started(char *detail, size_t detail_bytes)
{
	snprintf(detail, detail_bytes, "cuFile has not started: call start first");
	return -EINVAL;
}
