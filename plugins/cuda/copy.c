/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of many scattered pieces: small ones by one launch of a kernel, which reads where they are from the stream's ring; large ones, and all
 * where there is no kernel or no free entry, by cuMemcpyBatchAsync, or by cuMemcpyAsync each where a driver has no batches.
 */
#include "copy.h"

#include <errno.h>

#include "stream.h"

/* A launch costs about as much as so many copies by the engine. */
#define KERNEL_PIECES_MIN 4u

uint64_t tn_cuda_kernel_below_bytes = 64u << 10;
uint32_t tn_cuda_bus_blocks = 32;

/* A copy that is being begun. @begun: something of it is in the stream */
struct copy {
	struct tn_cuda_stream *s;
	enum tn_device_way way;
	const struct tn_device_piece *piece;
	uint32_t n;
	uint32_t small; /* pieces that the kernel takes; 0: it takes none */
	bool begun;
};

static bool is_small(const struct copy *c, const struct tn_device_piece *p)
{
	return c->small > 0 && p->bytes < tn_cuda_kernel_below_bytes;
}

static void *to_of(enum tn_device_way way, const struct tn_device_piece *p)
{
	return way == TN_DEVICE_TO_HOST ? p->other : p->device;
}

static void *from_of(enum tn_device_way way, const struct tn_device_piece *p)
{
	return way == TN_DEVICE_TO_HOST ? p->device : p->other;
}

static uint32_t count_small(struct copy *c)
{
	uint32_t small = 0;

	if (!c->s->ring)
		return 0;
	for (uint32_t i = 0; i < c->n; i++)
		small += c->piece[i].bytes > 0 && c->piece[i].bytes < tn_cuda_kernel_below_bytes;
	return small >= KERNEL_PIECES_MIN && tn_cuda_stream_has_free(c->s, small) ? small : 0;
}

static int launch(struct copy *c)
{
	struct tn_cuda_stream *s = c->s;
	uint32_t first = (uint32_t)(s->taken % TN_CUDA_RING), n = 0, blocks = c->way == TN_DEVICE_WITHIN ? 2 * (uint32_t)s->d->sms : tn_cuda_bus_blocks;
	void *parameters[] = {&s->ring, &first, &n};
	int rc;

	for (uint32_t i = 0; i < c->n; i++) {
		const struct tn_device_piece *p = &c->piece[i];

		if (p->bytes > 0 && is_small(c, p))
			tn_cuda_entry_of(s, s->taken + n++)->span =
				(struct tn_cuda_span){(uintptr_t)to_of(c->way, p), (uintptr_t)from_of(c->way, p), p->bytes};
	}
	rc = tn_cuda_result(s->cuda, s->d,
			    s->cuda->api.cuLaunchKernel(s->d->copy, n < blocks ? n : blocks, 1, 1, TN_CUDA_COPY_LANES, 1, 1, 0, s->stream, parameters, NULL));
	if (rc)
		return rc;
	s->taken += n;
	c->begun = true;
	return 0;
}

static int copy_each(struct copy *c, uint32_t n)
{
	struct tn_cuda_stream *s = c->s;

	for (uint32_t i = 0; i < n; i++) {
		int rc = tn_cuda_result(s->cuda, s->d, s->cuda->api.cuMemcpyAsync(s->to[i], s->from[i], s->bytes[i], s->stream));

		if (rc)
			return rc;
		c->begun = true;
	}
	return 0;
}

/* The first @n of the stream's arrays. A batch that fails may have begun in part. */
static int copy_batch(struct copy *c, uint32_t n)
{
	tn_cu_copy_attributes attributes = {.srcAccessOrder = TN_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
	const struct tn_cuda_api *api = &c->s->cuda->api;
	struct tn_cuda_stream *s = c->s;
	size_t from_first_on = 0, failed;
	tn_cu_result r = TN_CUDA_ERROR_NOT_SUPPORTED;

	if (!__atomic_load_n(&s->d->no_batch, __ATOMIC_RELAXED)) {
		if (api->batch_since_13)
			r = api->batch_since_13(s->to, s->from, s->bytes, n, &attributes, &from_first_on, 1, s->stream);
		else if (api->batch_before_13)
			r = api->batch_before_13(s->to, s->from, s->bytes, n, &attributes, &from_first_on, 1, &failed, s->stream);
		if (r == TN_CUDA_ERROR_NOT_SUPPORTED)
			__atomic_store_n(&s->d->no_batch, true, __ATOMIC_RELAXED);
	}
	if (r == TN_CUDA_ERROR_NOT_SUPPORTED)
		return copy_each(c, n);
	c->begun = true;
	return tn_cuda_result(s->cuda, s->d, r);
}

static int copy_large(struct copy *c)
{
	struct tn_cuda_stream *s = c->s;
	uint32_t n = 0;
	int rc = 0;

	for (uint32_t i = 0; i < c->n && !rc; i++) {
		const struct tn_device_piece *p = &c->piece[i];

		if (p->bytes == 0 || is_small(c, p))
			continue;
		s->to[n] = (uintptr_t)to_of(c->way, p);
		s->from[n] = (uintptr_t)from_of(c->way, p);
		s->bytes[n++] = p->bytes;
		if (n == TN_CUDA_BATCH) {
			rc = copy_batch(c, n);
			n = 0;
		}
	}
	return rc || n == 0 ? rc : copy_batch(c, n);
}

/*
 * An error that comes when a part is in the stream is told by wait: the caller may not use the memory again before that part is over.
 */
int tn_cuda_copy(const struct tn_device_driver *driver, void *stream, enum tn_device_way way, const struct tn_device_piece *piece, uint32_t n,
		 uint64_t *event)
{
	struct copy c = {.s = stream, .way = way, .piece = piece, .n = n};
	struct tn_cuda_stream *s = stream;
	struct tn_cuda_scope scope;
	int rc = tn_cuda_enter(s->cuda, s->device, &scope);

	if (rc)
		return rc;
	rc = tn_cuda_stream_prepare(s);
	if (!rc) {
		c.small = count_small(&c);
		rc = c.small > 0 ? launch(&c) : 0;
		if (!rc)
			rc = copy_large(&c);
		if (rc && c.begun && !s->error) {
			s->failed = s->asked + 1;
			s->error = rc;
		}
		if (!rc || c.begun)
			rc = tn_cuda_stream_record(s, event);
		if (rc && c.begun)
			s->cuda->api.cuStreamSynchronize(s->stream);
	}
	tn_cuda_leave(&scope);
	return rc;
}
