/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one stream waits for: another stream, or a word. Either stream may be the engine's own, which is CUDA's alone: a cudaStream_t is a
 * CUstream. Ours are told by their address.
 */
#include <errno.h>

#include "stream.h"

/* A stream of CUDA's and the context that it is in. @device: NULL: a context that is not of ours */
struct stream_place {
	struct CUstream_st *stream;
	struct CUctx_st *context;
	struct tn_cuda_device *device;
};

/* 0 (legacy), 1 and 2 (per thread) are the same in every context: they are of the caller's current one. */
static bool is_default(const void *stream)
{
	return (uintptr_t)stream <= 2;
}

static int find_stream(struct tn_cuda *cuda, void *stream, struct stream_place *out)
{
	struct tn_cuda_stream *s;
	tn_cu_result r;
	int rc = tn_cuda_load(cuda, NULL, 0);

	if (rc)
		return rc;
	pthread_mutex_lock(&cuda->lock);
	for (s = cuda->streams; s && s != stream; s = s->next)
		;
	pthread_mutex_unlock(&cuda->lock);
	if (s) {
		*out = (struct stream_place){s->stream, tn_cuda_context(s->d), s->d};
		return tn_cuda_lost(s->d) ? -ENODEV : 0;
	}
	*out = (struct stream_place){.stream = stream};
	r = is_default(stream) ? cuda->api.cuCtxGetCurrent(&out->context) : cuda->api.cuStreamGetCtx(out->stream, &out->context);
	if (r != TN_CUDA_SUCCESS)
		return tn_cuda_result(cuda, NULL, r);
	for (int i = 0; i < cuda->ndevices && out->context; i++) {
		if (tn_cuda_context(&cuda->device[i]) == out->context)
			out->device = &cuda->device[i];
	}
	return !out->context ? -EINVAL : out->device && tn_cuda_lost(out->device) ? -ENODEV : 0;
}

/* In the context of each stream: a default one is of the context that is current. CUDA keeps the event until it was reached. */
int tn_cuda_stream_follow(const struct tn_device_driver *driver, void *stream, void *other)
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	struct stream_place behind, before;
	struct tn_cuda_scope scope, inner;
	struct CUevent_st *event;
	int rc = find_stream(cuda, stream, &behind);

	if (!rc)
		rc = find_stream(cuda, other, &before);
	if (!rc)
		rc = tn_cuda_enter_context(cuda, before.device, before.context, &scope);
	if (rc)
		return rc;
	rc = tn_cuda_result(cuda, before.device, cuda->api.cuEventCreate(&event, TN_CU_EVENT_DISABLE_TIMING));
	if (!rc) {
		rc = tn_cuda_result(cuda, before.device, cuda->api.cuEventRecord(event, before.stream));
		if (!rc)
			rc = tn_cuda_enter_context(cuda, behind.device, behind.context, &inner);
		if (!rc) {
			rc = tn_cuda_result(cuda, behind.device, cuda->api.cuStreamWaitEvent(behind.stream, event, 0));
			tn_cuda_leave(&inner);
		}
		cuda->api.cuEventDestroy(event);
	}
	tn_cuda_leave(&scope);
	return rc;
}

static int enter_for_word(struct tn_cuda *cuda, void *stream, struct stream_place *place, struct tn_cuda_scope *scope)
{
	int rc = find_stream(cuda, stream, place);

	if (rc)
		return rc;
	if (!place->device || !place->device->words)
		return -ENOTSUP;
	return tn_cuda_enter_context(cuda, place->device, place->context, scope);
}

int tn_cuda_word_wait(const struct tn_device_driver *driver, void *stream, const uint64_t *word, uint64_t value)
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	struct tn_cuda_scope scope;
	struct stream_place place;
	int rc = enter_for_word(cuda, stream, &place, &scope);

	if (rc)
		return rc;
	rc = tn_cuda_result(cuda, place.device,
			    cuda->api.cuStreamWaitValue64(place.stream, (tn_cu_pointer)(uintptr_t)word, value, TN_CU_STREAM_WAIT_VALUE_GEQ));
	tn_cuda_leave(&scope);
	return rc;
}

/* The default write has a barrier before it: who sees the word sees what the stream did before. */
int tn_cuda_word_write(const struct tn_device_driver *driver, void *stream, uint64_t *word, uint64_t value)
{
	struct tn_cuda *cuda = tn_cuda_of(driver);
	struct tn_cuda_scope scope;
	struct stream_place place;
	int rc = enter_for_word(cuda, stream, &place, &scope);

	if (rc)
		return rc;
	rc = tn_cuda_result(cuda, place.device,
			    cuda->api.cuStreamWriteValue64(place.stream, (tn_cu_pointer)(uintptr_t)word, value, TN_CU_STREAM_WRITE_VALUE_DEFAULT));
	tn_cuda_leave(&scope);
	return rc;
}
