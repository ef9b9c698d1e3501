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

/** Most bytes of a key, as S3 has it. */
#define S3_KEY_MAX 1024u
/** Least bytes of a part that is not the last. */
#define S3_PART_MIN (UINT64_C(5) << 20)
/** Most bytes of an object, as S3 has it. */
#define S3_OBJECT_MAX (UINT64_C(5) << 40)
/** Bytes of a reason in words, with the zero. */
#define S3_WHY_BYTES 400u

struct s3_client;
struct s3_upload;

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
void s3_client_destroy(struct s3_client *client);

enum s3_op {
	S3_GET,	 /**< bytes of an object, from @offset on */
	S3_PUT,	 /**< the whole object */
	S3_HEAD, /**< whether it is there, and how long */
};

/**
 * struct s3_transfer - zero it, then set what is the caller's
 * @op:     enum s3_op
 * @key:    of the object, 1 to S3_KEY_MAX bytes
 * @offset: S3_GET: of the first byte
 * @bytes:  how many; S3_GET: at least 1, and fewer in the store are -EIO
 * @iov, @niov: where they go to or come from
 * @if_absent: S3_PUT: -EEXIST if there is such an object. -EIO if it is found after a try that failed, because that try may have made it
 * @stop, @deadline_ns: as of struct http_request
 * @arg:    the caller's own
 * @failed: a try has failed, whether or not another one follows: why, in words, until it returns; NULL: nobody asks
 * @done:   the end
 * @code:   0; -ENOENT: no such object; -EACCES: the store refuses; -EEXIST; -EIO: short, damaged, or the store fails; -ECONNREFUSED, -EHOSTUNREACH; -ENOSPC; -ETIMEDOUT: the deadline, and no try has failed; -ECANCELED
 * @moved:  bytes that are in their place; of S3_PUT all or none
 * @object_bytes: S3_HEAD: how long it is
 * @upload: of s3_prepare
 */
struct s3_transfer {
	struct http_request http;
	struct s3_client *client;
	const char *key;
	uint64_t offset;
	uint64_t bytes;
	const struct iovec *iov;
	uint32_t niov;
	enum s3_op op;
	bool if_absent;
	int32_t code;
	const uint32_t *stop;
	uint64_t deadline_ns;
	void *arg;
	void (*failed)(struct s3_transfer *t, const char *why);
	void (*done)(struct s3_transfer *t);
	uint64_t moved;
	uint64_t object_bytes;
	struct s3_upload *upload;
};

/** s3_prepare - takes the memory that a write in parts needs; @op, @key and @bytes are set. Return: 0; -EINVAL: key, bytes; -ENOMEM. */
int s3_prepare(struct s3_client *client, struct s3_transfer *t);

/** s3_forget - gives it back */
void s3_forget(struct s3_transfer *t);

/** s3_post - begins a prepared transfer; may be called again after `done`. Allocates nothing itself, though libcurl may. */
void s3_post(struct s3_transfer *t);

/** s3_poke - the stop words of transfers are looked at; may be called with any lock held that `done` takes */
void s3_poke(struct s3_client *client);

/** s3_wait - s3_prepare, s3_post, sleeps until the end, s3_forget; not from `done`. Sets done. Return: its code. */
int s3_wait(struct s3_client *client, struct s3_transfer *t);

#endif
