/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of the backend's spec, and the text of the last failure. */
#ifndef TN_PLUGIN_S3_OPTIONS_H
#define TN_PLUGIN_S3_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include <tenuto/xfer_backend.h>

#include "client.h"

/* Puts parameters over what the environment says. The texts stay the parameters'. 0, or -EINVAL. */
int s3_options_read(const struct tn_xfer_param *params, uint32_t n, struct s3_opts *opts, bool *if_absent);

/* Keeps a text for s3_error; returns code. */
int s3_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Why the last call of this thread that failed has failed. */
const char *s3_error(void);

#endif
