/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, their events, and the wait for one (stream.h). */
#include "stream.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define RING_BYTES (TN_CUDA_RING * sizeof(union tn_cuda_entry))

/*
 * How wait waits: it asks again and again. For WAIT_AWAKE_NS it only lets others run, since most copies of a layer are over by then. Then it sleeps for
 * an eighth of the time that it has waited, at most WAIT_SLEEP_NS, so that it is late by at most so much. CUDA's own wait for an event has no
 * deadline.
 */
#define WAIT_AWAKE_NS 20000u
#define WAIT_SLEEP_NS 100000u

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void pause_ns(uint64_t waited_ns, uint64_t left_ns)
{
	uint64_t ns = waited_ns / 8 < WAIT_SLEEP_NS ? waited_ns / 8 : WAIT_SLEEP_NS;

	if (waited_ns < WAIT_AWAKE_NS) {
		sched_yield();
		return;
	}
	if (ns > left_ns)
		ns = left_ns;
	nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static void free_ring(struct tn_cuda_stream *s)
{
	if (!s->ring)
		return;
	tn_cuda_unpin(s->driver, s->ring, RING_BYTES);
	munmap(s->ring, RING_BYTES);
}

static int make_ring(struct tn_cuda_stream *s)
{
	int rc;

	if (!s->d->copy || !s->d->host_pointers)
		return 0;
	s->ring = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (s->ring == MAP_FAILED) {
		s->ring = NULL;
		return -ENOMEM;
	}
	rc = tn_cuda_pin(s->driver, s->ring, RING_BYTES);
	if (rc) {
		munmap(s->ring, RING_BYTES);
		s->ring = NULL;
	}
	return rc;
}

int tn_cuda_stream_create(const struct tn_device_driver *driver, uint32_t device, void **stream)
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	struct tn_cuda_scope scope;
	struct tn_cuda_stream *s;
	int rc = tn_cuda_enter(cuda, device, &scope);

	if (rc)
		return rc;
	s = calloc(1, sizeof(*s));
	if (!s) {
		tn_cuda_leave(&scope);
		return -ENOMEM;
	}
	s->driver = driver;
	s->cuda = cuda;
	s->d = scope.device;
	s->device = device;
	rc = make_ring(s);
	if (!rc)
		rc = tn_cuda_result(cuda, s->d, cuda->api.cuStreamCreate(&s->stream, TN_CU_STREAM_NON_BLOCKING));
	tn_cuda_leave(&scope);
	if (rc) {
		free_ring(s);
		free(s);
		return rc;
	}
	pthread_mutex_lock(&cuda->lock);
	s->next = cuda->streams;
	cuda->streams = s;
	pthread_mutex_unlock(&cuda->lock);
	*stream = s;
	return 0;
}

/* Of a lost device CUDA's part is gone already. */
void tn_cuda_stream_destroy(const struct tn_device_driver *driver, void *stream)
{
	struct tn_cuda_stream *s = stream, **at;
	struct tn_cuda *cuda = tn_cuda_of(driver);
	struct tn_cuda_scope scope;

	pthread_mutex_lock(&cuda->lock);
	for (at = &cuda->streams; *at != s; at = &(*at)->next)
		;
	*at = s->next;
	pthread_mutex_unlock(&cuda->lock);
	if (tn_cuda_enter(cuda, s->device, &scope) == 0) {
		for (uint32_t i = 0; i < TN_CUDA_EVENTS; i++) {
			if (s->event[i])
				cuda->api.cuEventDestroy(s->event[i]);
		}
		cuda->api.cuStreamDestroy(s->stream);
		tn_cuda_leave(&scope);
	}
	free_ring(s);
	free(s);
}

/* All up to @event is over: results go to who asked for them, and ring entries are free. */
static void reach(struct tn_cuda_stream *s, uint64_t event)
{
	if (event <= s->reached)
		return;
	s->reached = event;
	for (; s->sums_ended < s->sums_begun; s->sums_ended++) {
		const struct tn_cuda_sums *c = &s->sums[s->sums_ended % TN_CUDA_SUMS];

		if (c->event > event)
			break;
		for (uint32_t i = 0; i < c->n; i++)
			c->out[i].sum = tn_cuda_entry_of(s, c->first + i)->object.sum;
	}
	s->freed = s->taken_at[event % TN_CUDA_EVENTS];
}

/* All that was reached since. */
static void catch_up(struct tn_cuda_stream *s)
{
	while (s->reached < s->asked && s->cuda->api.cuEventQuery(s->event[(s->reached + 1) % TN_CUDA_EVENTS]) == TN_CUDA_SUCCESS)
		reach(s, s->reached + 1);
}

bool tn_cuda_stream_has_free(struct tn_cuda_stream *s, uint64_t entries)
{
	if (entries > TN_CUDA_RING - (s->taken - s->freed))
		catch_up(s);
	return entries <= TN_CUDA_RING - (s->taken - s->freed);
}

int tn_cuda_stream_prepare(struct tn_cuda_stream *s)
{
	struct CUevent_st **slot = &s->event[(s->asked + 1) % TN_CUDA_EVENTS];

	if (s->asked - s->reached == TN_CUDA_EVENTS)
		catch_up(s);
	if (s->asked - s->reached == TN_CUDA_EVENTS)
		return -EAGAIN;
	return *slot ? 0 : tn_cuda_result(s->cuda, s->d, s->cuda->api.cuEventCreate(slot, TN_CU_EVENT_DISABLE_TIMING));
}

int tn_cuda_stream_record(struct tn_cuda_stream *s, uint64_t *event)
{
	uint64_t next = s->asked + 1;
	int rc = tn_cuda_result(s->cuda, s->d, s->cuda->api.cuEventRecord(s->event[next % TN_CUDA_EVENTS], s->stream));

	if (rc)
		return rc;
	s->asked = next;
	s->taken_at[next % TN_CUDA_EVENTS] = s->taken;
	*event = next;
	return 0;
}

int tn_cuda_wait(const struct tn_device_driver *driver, void *stream, uint64_t event, uint64_t deadline_ns)
{
	struct tn_cuda_stream *s = stream;
	struct tn_cuda *cuda = tn_cuda_of(driver);
	uint64_t begin = now_ns(), now = begin;
	struct tn_cuda_scope scope;
	tn_cu_result r;
	int rc;

	if (event > s->asked)
		return -EINVAL;
	if (event > s->reached) {
		rc = tn_cuda_enter(cuda, s->device, &scope);
		if (rc)
			return rc;
		while ((r = cuda->api.cuEventQuery(s->event[event % TN_CUDA_EVENTS])) == TN_CUDA_ERROR_NOT_READY && now < deadline_ns) {
			pause_ns(now - begin, deadline_ns - now);
			now = now_ns();
		}
		tn_cuda_leave(&scope);
		if (r == TN_CUDA_ERROR_NOT_READY)
			return -ETIMEDOUT;
		rc = tn_cuda_result(cuda, s->d, r);
		if (rc)
			return rc;
		reach(s, event);
	}
	return s->error && event >= s->failed ? s->error : 0;
}
