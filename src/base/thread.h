/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library. */
#ifndef TN_BASE_THREAD_H
#define TN_BASE_THREAD_H

#include <pthread.h>

/*
 * A thread that takes no signals, because they are the program's; but for SIGBUS, which it causes itself by an access to memory that is gone
 * (base/guard.h). 0, or the errno of pthread_create.
 */
int tn_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg);

#endif
