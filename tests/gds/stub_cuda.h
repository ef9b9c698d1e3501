/* SPDX-License-Identifier: Apache-2.0 */
/* A libcuda.so.1 for tests: what it says of addresses, and which context a thread is in. */
#ifndef TN_TEST_STUB_CUDA_H
#define TN_TEST_STUB_CUDA_H

enum stub_cuda_memory {
	STUB_CUDA_UNKNOWN, /* no address is of a device */
	STUB_CUDA_CONTEXT, /* all are of a context */
	STUB_CUDA_DEVICE,  /* all are of a device, and of no context */
};

/* Members are read and written with __atomic_*. */
struct stub_cuda {
	int memory;   /* enum stub_cuda_memory */
	int retained; /* how often a primary context was retained */
	int fail_stream_create, fail_stream_synchronize; /* the next call fails with this number; the work of the stream is done all the same */
	int streams; /* that there are now */
};

/* The stub exports these. */
extern struct stub_cuda stub_cuda;

/* Whether the calling thread is in the context that its memory wants; none is wanted of memory that is not known. */
int stub_cuda_is_current(void);
/* Something that the stream does when somebody waits for it. NULL: the stream of threads without one, which each has for itself. */
void stub_cuda_ask(void *stream, void (*run)(void *arg), void *arg);
/* How many contexts the calling thread has pushed and not popped. */
int stub_cuda_pushed(void);

#endif
