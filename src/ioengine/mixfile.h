/* SPDX-License-Identifier: Apache-2.0 */
/* Files that hold a device's mix (sched/mix.h): device models, and what was measured of a directory. */
#ifndef TN_IOENGINE_MIXFILE_H
#define TN_IOENGINE_MIXFILE_H

#include "sched/mix.h"

#define TN_MIXFILE_NAME "tenuto.mix" /* in the directory it was measured in */

/* 0 and *out, or -errno (-ENOENT, -EACCES, ...; -EINVAL, -EPROTONOSUPPORT with path:line) with detail. */
int tn_mixfile_load(const char *path, struct tn_mix *out);

/* Writes dir/tenuto.mix, mode 0600, durably: after a crash the file is the old one or the new one. 0 or -errno. */
int tn_mixfile_save(const char *dir, const struct tn_mix *mix);

#endif
