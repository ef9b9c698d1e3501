/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A libcuda.so.1 of the tests: the part of CUDA's driver API that plugins/cuda calls, over host memory, with two devices. A program that links it has
 * it loaded before the plugin asks for a library of that name, and so the plugin gets it.
 *
 * It is as strict as the real one, or more. Device memory is mapped for nobody: the fake's own accesses go by a second mapping. Every stream
 * has a thread, so that all happens later. Copies need pinned host memory. Calls need a current context. While an engine
 * captures a graph (fake_cuda_capture), a call that would break the capture fails unless its thread has relaxed that. A device that did
 * something impossible is lost, as a real context is. Kernels run the TN_HD bodies of the plugin.
 */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(default)

#define FAKE_DEVICES 2

/* The call of this name fails with @result: the one after @skip that succeed; name NULL: no call fails any more. */
void fake_cuda_fail(const char *name, unsigned int skip, int result);
/* Whether the failure above was met. */
bool fake_cuda_failed(void);
/* The driver has no function of this name; NULL: it has all. */
void fake_cuda_lacks(const char *name);
/* The version that the driver says it has: 13000, 12080, 12000. */
void fake_cuda_version(int version);
/* An attribute of all devices is 0; -1: none is. */
void fake_cuda_without(int attribute);
/* Streams stand still, or go on. */
void fake_cuda_hold(bool hold);
/* Copies that streams have begun wait so long first. */
void fake_cuda_slow(uint64_t ns);
/* The context of a device is lost: all its calls fail with @result; 0: a new one. */
void fake_cuda_lose(int device, int result);
/* A graph is being captured in another thread. */
void fake_cuda_capture(bool capture);
/* How often a call of this name succeeded. */
unsigned int fake_cuda_calls(const char *name);
/* How often an event was asked for that was not reached. */
unsigned int fake_cuda_asked_not_ready(void);
/* Drops allocations and registrations: after a call that gives them back was made to fail. */
void fake_cuda_forget(void);
/* Contexts on this thread's stack, and whether its captures are as they were before any call. */
int fake_cuda_depth(void);
bool fake_cuda_mode_is_kept(void);
/* What is left: allocations, registered host ranges, streams, events, imported mappings. */
unsigned int fake_cuda_left(void);
/* Bytes of device memory, for a test that fills and compares them. */
void fake_cuda_peek(const void *device, void *out, uint64_t bytes);
void fake_cuda_poke(void *device, const void *from, uint64_t bytes);
/* An engine's own: a context that is not the primary one, a stream in the primary context of a device, memory without a context. */
void *fake_cuda_engine_stream(int device);
void fake_cuda_engine_stream_end(void *stream);
/* Makes the thread's current context the primary one of a device; NULL stack: -1. */
void fake_cuda_current(int device);
/* From now on memory that is allocated belongs to another context than the primary one. */
void fake_cuda_foreign(bool foreign);

#pragma GCC visibility pop

#endif
