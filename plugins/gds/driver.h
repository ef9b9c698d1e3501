/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts the library once per process.
 *
 * Without its kernel driver, cuFileDriverOpen of cuFile 1.19 was seen to spin for ten minutes and more. So a thread of its own calls it, and who
 * waits has a deadline. The thread cannot be ended: where the call never returns, it spins until the process ends. No second thread begins.
 */
#ifndef TN_GDS_DRIVER_H
#define TN_GDS_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "cufile.h"

/*
 * 0: the library is ready. -ETIMEDOUT: not by deadline_ns; a later call may find it ready. Else why it does not start, which stays: the process has
 * to begin again, because the library keeps what it found.
 */
int gds_start(uint64_t deadline_ns, char *detail, size_t detail_bytes);

/* NULL: no gds_start has returned 0. */
const struct cufile *gds_library(void);
/* What a call fails with then. */
int gds_not_started(char *detail, size_t detail_bytes);

#endif
