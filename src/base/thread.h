/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library. */
#ifndef TN_BASE_THREAD_H
#define TN_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>

/*
 * A thread that takes no signals, because they are the program's; but for SIGBUS, which it causes itself by an access to memory that is gone
 * (base/guard.h). 0, or the errno of pthread_create.
 */
int tn_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

/* A condition whose deadlines are CLOCK_MONOTONIC times. */
void tn_cond_init(pthread_cond_t *cond);
/* 0, -ETIMEDOUT; deadline_ns UINT64_MAX: none. */
int tn_cond_wait(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t deadline_ns);

#endif
