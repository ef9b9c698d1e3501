/* SPDX-License-Identifier: Apache-2.0 */
/* One bucket: where it is, who asks, and how a request to it is signed. */
#ifndef TN_PLUGIN_S3_STORE_H
#define TN_PLUGIN_S3_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../http/http.h"
#include "client.h"
#include "sign.h"

#define S3_HOST_BYTES 320u

struct s3_store {
	struct http *http;
	struct s3_credentials who;
	char base[16 + S3_HOST_BYTES]; /* "https://HOST" */
	const char *host;		/* of it */
	char bucket_path[72];		/* "/BUCKET", or "" if the host has the bucket */
	bool sign_body;			/* nothing else protects it: no TLS */
	uint64_t multipart_bytes;
};

/* Takes the options: 0, or -EINVAL with a detail. */
int s3_store_set(struct s3_store *store, const struct s3_opts *opts, char *detail, size_t detail_bytes);

/* A request; range_bytes: 0: no range. query: percent-encoded and sorted. */
struct s3_wish {
	const char *method;
	const char *key;
	const char *query;
	uint64_t range_first;
	uint64_t range_bytes;
	bool if_absent;
};

/* Writes a signed line. 0, or -errno. */
int s3_describe(const struct s3_store *store, const struct s3_wish *wish, const struct http_request *r, struct http_line *line);

/* As http_check; a store that says that two writes met at one key is asked again. */
int s3_check(struct http_request *r);

#endif
