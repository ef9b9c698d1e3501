/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of objects by the kernel: entries for the pieces, entries for the objects, one launch. */
#include <errno.h>

#include "stream.h"
#include "sum.h"

/* The pieces of all objects, then the objects. Return: the first object's entry. */
static uint64_t fill(struct tn_cuda_stream *s, const struct tn_device_piece *piece, const struct tn_device_sum *sum, uint32_t n, uint64_t pieces)
{
	uint64_t at = s->taken, objects = s->taken + pieces;

	for (uint32_t i = 0; i < n; i++) {
		struct tn_cuda_object o = {.first = (uint32_t)(at % TN_CUDA_RING), .pieces = sum[i].npieces};

		for (uint32_t k = 0; k < sum[i].npieces; k++, piece++) {
			tn_cuda_entry_of(s, at++)->span = (struct tn_cuda_span){.from = (uintptr_t)piece->device, .bytes = piece->bytes};
			o.bytes += piece->bytes;
		}
		tn_cuda_entry_of(s, objects + i)->object = o;
	}
	return objects;
}

static int launch(struct tn_cuda_stream *s, uint64_t object, uint32_t n)
{
	uint32_t first = (uint32_t)(object % TN_CUDA_RING);
	void *parameters[] = {&s->ring, &first, &n};

	if (n == 0)
		return 0;
	return tn_cuda_result(s->cuda, s->d, s->cuda->api.cuLaunchKernel(s->d->sum, n, 1, 1, TN_SUM_LANES, 1, 1, 0, s->stream, parameters, NULL));
}

static int begin(struct tn_cuda_stream *s, const struct tn_device_piece *piece, struct tn_device_sum *sum, uint32_t n, uint64_t *event)
{
	uint64_t pieces = 0, objects;
	int rc;

	for (uint32_t i = 0; i < n; i++)
		pieces += sum[i].npieces;
	if (pieces + n > TN_CUDA_RING)
		return -E2BIG;
	rc = tn_cuda_stream_prepare(s);
	if (rc)
		return rc;
	if (!tn_cuda_stream_has_free(s, pieces + n) || s->sums_begun - s->sums_ended == TN_CUDA_SUMS)
		return -EAGAIN;
	objects = fill(s, piece, sum, n, pieces);
	rc = launch(s, objects, n);
	if (rc)
		return rc;
	s->taken = objects + n;
	rc = tn_cuda_stream_record(s, event);
	if (rc) {
		s->cuda->api.cuStreamSynchronize(s->stream);
		return rc;
	}
	s->sums[s->sums_begun++ % TN_CUDA_SUMS] = (struct tn_cuda_sums){.out = sum, .event = *event, .first = objects, .n = n};
	return 0;
}

int tn_cuda_sum(const struct tn_device_driver *driver, void *stream, const struct tn_device_piece *piece, struct tn_device_sum *sum, uint32_t n,
		uint64_t *event)
{
	struct tn_cuda_stream *s = stream;
	struct tn_cuda_scope scope;
	int rc;

	if (!s->ring)
		return -ENOTSUP;
	rc = tn_cuda_enter(s->cuda, s->device, &scope);
	if (rc)
		return rc;
	rc = begin(s, piece, sum, n, event);
	tn_cuda_leave(&scope);
	return rc;
}
