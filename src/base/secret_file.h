/* SPDX-License-Identifier: Apache-2.0 */
/* A secret in a file that nobody else can read. */
#ifndef TN_BASE_SECRET_FILE_H
#define TN_BASE_SECRET_FILE_H

#include "base/hash.h"

#define TN_SECRET_FILE_LEAST 16u
#define TN_SECRET_FILE_MOST 4096u

/*
 * The secret follows from all bytes of the file, but for one line end behind them. 0 and *out; -EPERM: it is no file of this user's or root's, or others may read
 * it; -EINVAL: fewer than TN_SECRET_FILE_LEAST bytes, or more than TN_SECRET_FILE_MOST; -ENOENT, -EACCES, -EIO.
 */
int tn_secret_read(const char *path, struct tn_secret *out);

#endif
