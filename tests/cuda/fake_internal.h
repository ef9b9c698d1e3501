/* SPDX-License-Identifier: Apache-2.0 */
/* What the two files of the fake libcuda share. */
#ifndef FAKE_INTERNAL_H
#define FAKE_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "plugins/cuda/api.h"

/* Device memory: @at, for nobody, and @alias, the same bytes for the fake. */
struct fake_allocation {
	struct fake_allocation *next;
	uint64_t at, bytes;
	unsigned char *alias;
	struct CUctx_st *context;
	int device, fd;
	bool imported;
};

extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_news;

tn_cu_result fake_enter(const char *name, bool needs);
struct CUctx_st *fake_current(void);
int fake_device_of(const struct CUctx_st *context);
void fake_lost_at(int device);
int fake_loss(int device);
/* The bytes of device memory, NULL: not all of them are that; of any device: -1. */
void *fake_alias(uint64_t address, uint64_t bytes, int device);
bool fake_is_pinned(uint64_t address, uint64_t bytes);

#define FAKE_DECLARE(function, version, parameters) tn_cu_result fake_##function parameters;
TN_CUDA_CALLS(FAKE_DECLARE)
tn_cu_result fake_batch_before_13(tn_cu_pointer *to, tn_cu_pointer *from, size_t *bytes, size_t n, tn_cu_copy_attributes *attributes,
				  size_t *first_of_attributes, size_t nattributes, size_t *failed, struct CUstream_st *stream);
tn_cu_result fake_batch_since_13(tn_cu_pointer *to, tn_cu_pointer *from, size_t *bytes, size_t n, tn_cu_copy_attributes *attributes,
				 size_t *first_of_attributes, size_t nattributes, struct CUstream_st *stream);

#endif
