/* SPDX-License-Identifier: Apache-2.0 */
/* The fake's streams: a thread each, which carries out one operation after the other, and loses the device where one is impossible. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fake_cuda.h"
#include "fake_internal.h"
#include "plugins/cuda/sum.h"

enum what { COPY, COPY_KERNEL, SUM_KERNEL, RECORD, WAIT_EVENT, WAIT_VALUE, WRITE_VALUE };

/* @event, @value: also an event and the number of its record; @ring, @first, @n: of a kernel, with its grid */
struct operation {
	struct operation *next;
	enum what what;
	uint64_t to, from, value;
	size_t bytes;
	struct CUevent_st *event;
	union tn_cuda_entry *ring;
	uint32_t first, n, grid, block;
};

struct CUstream_st {
	struct CUctx_st *context;
	pthread_t thread;
	struct operation *first, **last;
	bool busy, ending;
};

/* @recorded, @reached: numbers of records; @users: itself, and operations that name it; @next: of all that there are */
struct CUevent_st {
	struct CUevent_st *next;
	uint64_t recorded, reached;
	unsigned int users;
	struct CUctx_st *context;
};

struct CUmod_st {
	int nothing;
};

struct CUfunc_st {
	enum what what;
};

static struct CUmod_st the_module;
static struct CUfunc_st copy_kernel = {COPY_KERNEL}, sum_kernel = {SUM_KERNEL};
static struct CUevent_st *events; /* also those that nobody can name any more, of a lost device */
static unsigned int streams;
static bool held;
static uint64_t slow_ns;
static unsigned int not_ready;

unsigned int fake_cuda_asked_not_ready(void)
{
	return __atomic_load_n(&not_ready, __ATOMIC_RELAXED);
}

unsigned int fake_stream_left(void);
unsigned int fake_stream_left(void)
{
	unsigned int n;

	pthread_mutex_lock(&fake_lock);
	n = streams;
	for (const struct CUevent_st *e = events; e; e = e->next)
		n++;
	pthread_mutex_unlock(&fake_lock);
	return n;
}

void fake_cuda_hold(bool hold)
{
	pthread_mutex_lock(&fake_lock);
	held = hold;
	pthread_cond_broadcast(&fake_news);
	pthread_mutex_unlock(&fake_lock);
}

void fake_cuda_slow(uint64_t ns)
{
	pthread_mutex_lock(&fake_lock);
	slow_ns = ns;
	pthread_mutex_unlock(&fake_lock);
}

static void let_event_go(struct CUevent_st *event)
{
	struct CUevent_st **at = &events;

	if (--event->users > 0)
		return;
	while (*at != event)
		at = &(*at)->next;
	*at = event->next;
	free(event);
}

/* The fake's address of what a copy names: device memory, or pinned memory. */
static unsigned char *reachable(uint64_t address, uint64_t bytes)
{
	void *alias = fake_alias(address, bytes, -1);

	if (alias)
		return alias;
	return fake_is_pinned(address, bytes) ? (unsigned char *)(uintptr_t)address : NULL;
}

static bool run_copy_kernel(const struct operation *o)
{
	for (uint32_t block = 0; block < o->grid; block++) {
		for (uint32_t i = block; i < o->n; i += o->grid) {
			struct tn_cuda_span span = o->ring[(o->first + i) % TN_CUDA_RING].span;

			span.to = (uintptr_t)reachable(span.to, span.bytes);
			span.from = (uintptr_t)reachable(span.from, span.bytes);
			if (!span.to || !span.from)
				return false;
			for (uint32_t lane = 0; lane < o->block; lane++)
				tn_cuda_copy_span(&span, lane, o->block);
		}
	}
	return true;
}

/* The bodies read the addresses of pieces from the ring: from a copy with the fake's. */
static bool run_sum_kernel(const struct operation *o)
{
	union tn_cuda_entry *own = malloc(TN_CUDA_RING * sizeof(*own));
	struct tn_sum_block block;
	bool ok = true;

	assert(own && o->block == TN_SUM_LANES);
	for (uint32_t i = 0; i < o->n && ok; i++) {
		struct tn_cuda_object *object = &o->ring[(o->first + i) % TN_CUDA_RING].object;

		for (uint32_t k = 0; k < object->pieces; k++) {
			union tn_cuda_entry *e = &own[(object->first + k) % TN_CUDA_RING];

			*e = o->ring[(object->first + k) % TN_CUDA_RING];
			e->span.from = (uintptr_t)fake_alias(e->span.from, e->span.bytes, -1);
			ok &= e->span.from != 0 || e->span.bytes == 0;
		}
		for (uint64_t turn = 0; ok && turn < tn_sum_turns(object); turn++) {
			for (uint32_t lane = 0; lane < TN_SUM_LANES; lane++)
				tn_sum_parts(&block, own, object, turn, lane);
			for (uint32_t lane = 0; lane < TN_SUM_LEAVES; lane++)
				tn_sum_join(&block, object, turn, lane);
			tn_sum_root(&block, object, turn);
		}
	}
	free(own);
	return ok;
}

static void nap(uint64_t ns)
{
	nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)}, NULL);
}

static bool is_ending(struct CUstream_st *s)
{
	bool is;

	pthread_mutex_lock(&fake_lock);
	is = s->ending;
	pthread_mutex_unlock(&fake_lock);
	return is;
}

static bool carry_out(struct CUstream_st *s, struct operation *o)
{
	unsigned char *to, *from;
	uint64_t ns;

	pthread_mutex_lock(&fake_lock);
	ns = o->what <= SUM_KERNEL ? slow_ns : 0;
	pthread_mutex_unlock(&fake_lock);
	nap(ns);
	switch (o->what) {
	case COPY:
		to = reachable(o->to, o->bytes);
		from = reachable(o->from, o->bytes);
		if (to && from)
			memcpy(to, from, o->bytes);
		return to && from;
	case COPY_KERNEL:
		return run_copy_kernel(o);
	case SUM_KERNEL:
		return run_sum_kernel(o);
	case WAIT_VALUE:
		while (__atomic_load_n((uint64_t *)(uintptr_t)o->to, __ATOMIC_ACQUIRE) < o->value && !is_ending(s))
			nap(50000);
		return true;
	case WRITE_VALUE:
		__atomic_store_n((uint64_t *)(uintptr_t)o->to, o->value, __ATOMIC_RELEASE);
		return true;
	default:
		return true;
	}
}

static void finish(struct operation *o)
{
	if (o->what == RECORD && o->event->reached < o->value)
		o->event->reached = o->value;
	if (o->event)
		let_event_go(o->event);
	pthread_cond_broadcast(&fake_news);
	free(o);
}

static void *run(void *arg)
{
	struct CUstream_st *s = arg;
	struct operation *o;

	pthread_mutex_lock(&fake_lock);
	for (;;) {
		while ((!s->first || held) && !(s->ending && !s->first))
			pthread_cond_wait(&fake_news, &fake_lock);
		if (!s->first)
			break;
		o = s->first;
		s->first = o->next;
		if (!s->first)
			s->last = &s->first;
		s->busy = true;
		while (o->what == WAIT_EVENT && o->event->reached < o->value && !s->ending)
			pthread_cond_wait(&fake_news, &fake_lock);
		pthread_mutex_unlock(&fake_lock);
		if (!fake_loss(fake_device_of(s->context)) && !carry_out(s, o))
			fake_lost_at(fake_device_of(s->context));
		pthread_mutex_lock(&fake_lock);
		s->busy = false;
		finish(o);
	}
	pthread_mutex_unlock(&fake_lock);
	return NULL;
}

static tn_cu_result put(struct CUstream_st *s, struct operation operation)
{
	struct operation *o = malloc(sizeof(*o));

	assert(o);
	*o = operation;
	o->next = NULL;
	pthread_mutex_lock(&fake_lock);
	if (o->event)
		o->event->users++;
	if (o->what == RECORD)
		o->value = ++o->event->recorded;
	else if (o->what == WAIT_EVENT)
		o->value = o->event->recorded;
	*s->last = o;
	s->last = &o->next;
	pthread_cond_broadcast(&fake_news);
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

#define BEGIN(name)                                   \
	do {                                          \
		tn_cu_result r_ = fake_enter(name, true); \
		if (r_)                               \
			return r_;                    \
	} while (0)

static struct CUstream_st *make_stream(void)
{
	struct CUstream_st *s = calloc(1, sizeof(*s));

	assert(s);
	s->context = fake_current();
	s->last = &s->first;
	if (pthread_create(&s->thread, NULL, run, s))
		abort();
	return s;
}

/* Numbers 0 to 2 are the default stream of the current context. */
static struct CUstream_st *stream_of(struct CUstream_st *s)
{
	static struct CUstream_st *defaults[FAKE_DEVICES];
	int device;

	if ((uintptr_t)s > 2)
		return s;
	device = fake_device_of(fake_current());
	if (!defaults[device]) {
		defaults[device] = make_stream();
		pthread_detach(defaults[device]->thread);
	}
	return defaults[device];
}

tn_cu_result fake_cuStreamCreate(struct CUstream_st **stream, unsigned int flags)
{
	BEGIN("cuStreamCreate");
	pthread_mutex_lock(&fake_lock);
	streams++;
	pthread_mutex_unlock(&fake_lock);
	*stream = make_stream();
	return 0;
}

tn_cu_result fake_cuStreamDestroy(struct CUstream_st *s)
{
	fake_enter("cuStreamDestroy", true);
	pthread_mutex_lock(&fake_lock);
	s->ending = true;
	streams--;
	pthread_cond_broadcast(&fake_news);
	pthread_mutex_unlock(&fake_lock);
	pthread_join(s->thread, NULL);
	free(s);
	return 0;
}

tn_cu_result fake_cuStreamSynchronize(struct CUstream_st *s)
{
	BEGIN("cuStreamSynchronize");
	pthread_mutex_lock(&fake_lock);
	while (s->first || s->busy)
		pthread_cond_wait(&fake_news, &fake_lock);
	pthread_mutex_unlock(&fake_lock);
	return (tn_cu_result)fake_loss(fake_device_of(s->context));
}

tn_cu_result fake_cuStreamGetCtx(struct CUstream_st *s, struct CUctx_st **context)
{
	tn_cu_result r = fake_enter("cuStreamGetCtx", false);

	*context = s->context;
	return r;
}

tn_cu_result fake_cuStreamWaitEvent(struct CUstream_st *s, struct CUevent_st *event, unsigned int flags)
{
	BEGIN("cuStreamWaitEvent");
	return put(stream_of(s), (struct operation){.what = WAIT_EVENT, .event = event});
}

static bool is_word(tn_cu_pointer address)
{
	return address % 8 == 0 && fake_is_pinned(address, 8);
}

tn_cu_result fake_cuStreamWaitValue64(struct CUstream_st *s, tn_cu_pointer address, uint64_t value, unsigned int flags)
{
	BEGIN("cuStreamWaitValue64");
	if (flags != TN_CU_STREAM_WAIT_VALUE_GEQ || !is_word(address))
		return TN_CUDA_ERROR_INVALID_VALUE;
	return put(stream_of(s), (struct operation){.what = WAIT_VALUE, .to = address, .value = value});
}

tn_cu_result fake_cuStreamWriteValue64(struct CUstream_st *s, tn_cu_pointer address, uint64_t value, unsigned int flags)
{
	BEGIN("cuStreamWriteValue64");
	if (flags != TN_CU_STREAM_WRITE_VALUE_DEFAULT || !is_word(address))
		return TN_CUDA_ERROR_INVALID_VALUE;
	return put(stream_of(s), (struct operation){.what = WRITE_VALUE, .to = address, .value = value});
}

tn_cu_result fake_cuEventCreate(struct CUevent_st **event, unsigned int flags)
{
	struct CUevent_st *e;

	BEGIN("cuEventCreate");
	e = calloc(1, sizeof(*e));
	assert(e && flags == TN_CU_EVENT_DISABLE_TIMING);
	e->users = 1;
	e->context = fake_current();
	pthread_mutex_lock(&fake_lock);
	e->next = events;
	events = e;
	pthread_mutex_unlock(&fake_lock);
	*event = e;
	return 0;
}

tn_cu_result fake_cuEventDestroy(struct CUevent_st *event)
{
	fake_enter("cuEventDestroy", true);
	pthread_mutex_lock(&fake_lock);
	let_event_go(event);
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

tn_cu_result fake_cuEventRecord(struct CUevent_st *event, struct CUstream_st *s)
{
	BEGIN("cuEventRecord");
	if (event->context != stream_of(s)->context)
		return TN_CUDA_ERROR_INVALID_HANDLE;
	return put(stream_of(s), (struct operation){.what = RECORD, .event = event});
}

tn_cu_result fake_cuEventQuery(struct CUevent_st *event)
{
	bool reached;

	BEGIN("cuEventQuery");
	pthread_mutex_lock(&fake_lock);
	reached = event->reached == event->recorded;
	pthread_mutex_unlock(&fake_lock);
	/* The device may have been lost on the way to it. */
	if (fake_loss(fake_device_of(event->context)))
		return (tn_cu_result)fake_loss(fake_device_of(event->context));
	if (!reached)
		__atomic_add_fetch(&not_ready, 1, __ATOMIC_RELAXED);
	return reached ? 0 : TN_CUDA_ERROR_NOT_READY;
}

tn_cu_result fake_cuMemcpyAsync(tn_cu_pointer to, tn_cu_pointer from, size_t bytes, struct CUstream_st *s)
{
	BEGIN("cuMemcpyAsync");
	return put(s, (struct operation){.what = COPY, .to = to, .from = from, .bytes = bytes});
}

static tn_cu_result batch(const char *name, const tn_cu_pointer *to, const tn_cu_pointer *from, const size_t *bytes, size_t n,
			  const tn_cu_copy_attributes *attributes, const size_t *first_of_attributes, size_t nattributes, struct CUstream_st *s)
{
	BEGIN(name);
	if (n == 0 || nattributes != 1 || first_of_attributes[0] != 0 || attributes->srcAccessOrder != TN_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)
		return TN_CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n; i++) {
		if (bytes[i] == 0)
			return TN_CUDA_ERROR_INVALID_VALUE;
		put(s, (struct operation){.what = COPY, .to = to[i], .from = from[i], .bytes = bytes[i]});
	}
	return 0;
}

tn_cu_result fake_batch_before_13(tn_cu_pointer *to, tn_cu_pointer *from, size_t *bytes, size_t n, tn_cu_copy_attributes *attributes,
				  size_t *first_of_attributes, size_t nattributes, size_t *failed, struct CUstream_st *s)
{
	*failed = SIZE_MAX;
	return batch("cuMemcpyBatchAsync", to, from, bytes, n, attributes, first_of_attributes, nattributes, s);
}

tn_cu_result fake_batch_since_13(tn_cu_pointer *to, tn_cu_pointer *from, size_t *bytes, size_t n, tn_cu_copy_attributes *attributes,
				 size_t *first_of_attributes, size_t nattributes, struct CUstream_st *s)
{
	return batch("cuMemcpyBatchAsync_v2", to, from, bytes, n, attributes, first_of_attributes, nattributes, s);
}

tn_cu_result fake_cuModuleLoadData(struct CUmod_st **module, const void *image)
{
	BEGIN("cuModuleLoadData");
	*module = &the_module;
	return 0;
}

tn_cu_result fake_cuModuleGetFunction(struct CUfunc_st **function, struct CUmod_st *module, const char *name)
{
	BEGIN("cuModuleGetFunction");
	if (strcmp(name, "tn_cuda_copy_kernel") == 0)
		*function = &copy_kernel;
	else if (strcmp(name, "tn_cuda_sum_kernel") == 0)
		*function = &sum_kernel;
	else
		return TN_CUDA_ERROR_NOT_FOUND;
	return 0;
}

tn_cu_result fake_cuFuncGetAttribute(int *value, unsigned int attribute, struct CUfunc_st *function)
{
	BEGIN("cuFuncGetAttribute");
	*value = 1024;
	return attribute == TN_CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 0 : TN_CUDA_ERROR_INVALID_VALUE;
}

tn_cu_result fake_cuLaunchKernel(struct CUfunc_st *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
				 unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, struct CUstream_st *s, void **parameters, void **extra)
{
	struct operation o = {.what = function->what, .grid = grid_x, .block = block_x};

	BEGIN("cuLaunchKernel");
	if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x > 1024 || block_y != 1 || block_z != 1 || shared_bytes || extra)
		return TN_CUDA_ERROR_INVALID_VALUE;
	o.ring = *(union tn_cuda_entry **)parameters[0];
	o.first = *(uint32_t *)parameters[1];
	o.n = *(uint32_t *)parameters[2];
	if (!fake_is_pinned((uintptr_t)o.ring, TN_CUDA_RING * sizeof(*o.ring)))
		return TN_CUDA_ERROR_INVALID_VALUE;
	return put(s, o);
}
