/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text that says which remotes there are: "SPEC;SPEC", asked in this order. A spec is a client's first word and what follows it, among it settings of the
 * remote tier's own, which the client does not see: "s3,bucket=kv-cache,prefix=llama,endpoint=https://s3.example.org".
 *
 *   prefix=NAME             of the objects' names, 1 to 63 bytes; default "tenuto"
 *   write_bytes_per_s=SIZE, write_bytes_per_day=SIZE, read_bytes_per_s=SIZE, read_bytes_per_day=SIZE
 *                           as 64GiB or 500MB; default no limit
 *
 * Errors name no value, since any of them may be a secret key.
 */
#ifndef TN_TIER_REMOTE_SPEC_H
#define TN_TIER_REMOTE_SPEC_H

#include "tier/remote/store.h"

#define TN_REMOTES_MAX 8u
#define TN_SPEC_BYTES 512u

struct tn_remote_spec {
	struct tn_object_store_opts store; /* without its client. The first of a kind has the client's word as its name; later ones word-2, word-3 */
	char client[TN_SPEC_BYTES];	   /* what is the client's: its word and its settings */
};

/* How many remotes the text names, 1 to TN_REMOTES_MAX, or -EINVAL. */
int tn_remote_specs(const char *text, struct tn_remote_spec *out);

#endif
