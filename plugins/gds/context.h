/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA context of an address. cuFile moves bytes in the calling thread's current context, and an executor's thread has none.
 *
 * libcuda.so.1 is loaded at run time. Where it is missing, or does not know the address, nothing is done: cuFile says what it lacks.
 */
#ifndef TN_GDS_CONTEXT_H
#define TN_GDS_CONTEXT_H

#include <stdbool.h>

/* Makes the address's context the calling thread's; true: gds_context_leave undoes it. Any thread. */
bool gds_context_enter(const void *address);
void gds_context_leave(void);

/* The context of an address, or NULL: it is not known. */
void *gds_context_of(const void *address);
/* Whether there are streams at all. Any thread. */
bool gds_context_has_streams(void);
/* A stream of the calling thread's context: 0, or an error of CUDA's. */
int gds_stream_create(void **stream);
/* Until all of it is over: 0, or an error of CUDA's; NULL: the stream of threads without one. */
int gds_stream_wait(void *stream);
void gds_stream_destroy(void *stream);

#endif
