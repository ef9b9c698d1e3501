/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of one bucket of an S3 store: read a range, write one whole, ask whether it is there.
 *
 * A transfer lies in its caller's memory from s3_post until its `done`. At that moment nothing reads or writes its buffers any more. A write above multipart_bytes
 * goes in parts; if it fails or is stopped, the parts are removed behind its end. Failures that may pass are tried again, never beyond the deadline.
 *
 * What this does not do: it knows nothing of the agent, and keeps no index of objects.
 *
 * Threads: any; `done` comes from the thread of the client, without a lock. When the process ends, it comes from within s3_post, with -ECANCELED.
 */
#ifndef TN_PLUGIN_S3_CLIENT_H
#define TN_PLUGIN_S3_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../http/http.h"
#include "../object/object.h"

/** Most bytes of a key, as S3 has it. */
#define S3_KEY_MAX 1024u
/** Least bytes of a part that is not the last. */
#define S3_PART_MIN (UINT64_C(5) << 20)
/** Most bytes of an object, as S3 has it. */
#define S3_OBJECT_MAX (UINT64_C(5) << 40)

struct s3_client;

/**
 * struct s3_opts - begin with s3_opts_init, then set what differs
 * @endpoint: "https://HOST[:PORT]" or "http://HOST[:PORT]", the bucket goes into the path; NULL: AWS's of the region, the bucket goes into the host's name
 * @region:   of the signature
 * @bucket:   must be there
 * @access_key, @secret_key, @session_token: credentials; @session_token NULL: none
 * @ca_file:  certificates that are believed; NULL: the system's
 * @connections: most at the same time
 * @tries:    of a request, the first included
 * @multipart_bytes: larger objects are written in parts of up to 16 MiB; at least S3_PART_MIN
 */
struct s3_opts {
	const char *endpoint;
	const char *region;
	const char *bucket;
	const char *access_key;
	const char *secret_key;
	const char *session_token;
	const char *ca_file;
	uint32_t connections;
	uint32_t tries;
	uint64_t multipart_bytes;
};

/** s3_opts_init - defaults, and what the environment says: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION, AWS_DEFAULT_REGION, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
 * AWS_SESSION_TOKEN, AWS_CA_BUNDLE. The texts are the environment's. */
void s3_opts_init(struct s3_opts *opts);

/** s3_client_create - a client and its thread; connects to nobody. Return: 0 and *out; -EINVAL, -ENOMEM, -EAGAIN with @detail. */
int s3_client_create(const struct s3_opts *opts, struct s3_client **out, char *detail, size_t detail_bytes);

/** s3_client_destroy - no transfer is left; waits some seconds at most until parts of failed writes are removed. NULL is fine. */
void s3_client_destroy(void *client);

/** s3_prepare - takes the memory that a transfer needs; @op, @key and @bytes are set. Return: 0; -EINVAL: key, bytes; -ENOMEM. */
int s3_prepare(void *client, struct object_transfer *t);

/** s3_forget - gives it back */
void s3_forget(struct object_transfer *t);

/** s3_post - begins a prepared transfer; may be called again after `done`. Allocates nothing itself, though libcurl may. */
void s3_post(struct object_transfer *t);

/** s3_poke - the stop words of transfers are looked at; may be called with any lock held that `done` takes */
void s3_poke(void *client);

#endif
