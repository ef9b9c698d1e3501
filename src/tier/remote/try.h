/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TN_TIER_REMOTE_TRY_H
#define TN_TIER_REMOTE_TRY_H

#include <stdint.h>

struct tn_remote_spec;

/* Writes the object PREFIX/check and reads it back; of one that is for reading only, asks for it. Any thread; waits. 0, or why not: tn_error_last. */
int tn_remote_try(const struct tn_remote_spec *spec, uint64_t deadline_ns);

#endif
