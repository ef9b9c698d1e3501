/* SPDX-License-Identifier: Apache-2.0 */
/* The built-in backends, and what a spec says: "NAME,key=value,...". */
#ifndef TN_XFER_BACKENDS_H
#define TN_XFER_BACKENDS_H

#include <tenuto/xfer_backend.h>

extern const struct tn_xfer_backend_ops tn_xfer_memory_ops; /* memory to memory, of this process or of others on the machine */
extern const struct tn_xfer_backend_ops tn_xfer_file_ops;   /* memory to files, of this agent */
extern const struct tn_xfer_backend_ops tn_xfer_gds_ops;    /* device memory to files, of this agent */
extern const struct tn_xfer_backend_ops tn_xfer_null_ops;   /* moves nothing and says that it did: the agent's own cost */
extern const struct tn_xfer_backend_ops tn_xfer_faulty_ops; /* another one of these, with faults */

/* What a call of a backend gave: the words of a plugin become the detail. */
int tn_xfer_backend_told(const struct tn_xfer_backend_ops *ops, int rc);

#define TN_XFER_PARAMS_MAX 16u
#define TN_XFER_SPEC_BYTES 512u

/* A spec in its parts: the text, whose name ends with a zero, and the parameters, which point into it. */
struct tn_xfer_spec {
	char name[TN_XFER_SPEC_BYTES];
	struct tn_xfer_param param[TN_XFER_PARAMS_MAX];
	uint32_t n;
};

/* Cuts a copy of a text into its name and its parameters. what: "backend", for messages. 0, or -EINVAL with detail: text may be NULL, empty or too long. */
int tn_xfer_spec_split(const char *what, const char *text, struct tn_xfer_spec *out);

/* The path of a FILE or BLOCK section's meta, and the flags of tn_io_open that its mode means. */
const char *tn_xfer_file_path(const char *meta, unsigned *flags);

/* As query of a backend, of FILE and BLOCK sections; backend is not looked at. */
int tn_xfer_file_query(void *backend, enum tn_xfer_segment segment, const struct tn_xfer_section *section, struct tn_xfer_found *out);

/* A whole number of a spec: 0, or -EINVAL with detail. */
int tn_xfer_param_number(const char *backend, const struct tn_xfer_param *param, uint64_t least, uint64_t most, uint64_t *out);

#endif
