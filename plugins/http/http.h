/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP requests for plugins, by libcurl: one thread over curl_multi_poll, a bounded number of connections, tries with jitter.
 *
 * A request lies in its caller's memory from http_post until its `done` is called. When `done` is called, libcurl has let go of all buffers of the request. So a
 * request that is stopped has a definite end: `done` comes without waiting for the server. Every try asks `describe` for the method, the URL and the header fields,
 * because a signature holds for minutes only. `check` says what an answer means, and whether another try is worth it.
 *
 * What this does not do: it follows no redirect, keeps no cookies, and asks for no compression. It knows no service.
 *
 * Threads: http_post and http_poke from any; callbacks come from the thread of the loop, which holds no lock then.
 * Exit: the thread ends before libcrypto does. From then on no request is done, and http_wait returns -ECANCELED.
 * Forks: a child closes its copies of the sockets at once, so that the server sees the end of a connection when the parent dies. It makes no call here.
 */
#ifndef TN_PLUGIN_HTTP_H
#define TN_PLUGIN_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define HTTP_URL_BYTES 8192u
#define HTTP_ETAG_BYTES 128u
#define HTTP_ANSWER_BYTES 1024u
#define HTTP_CONNECTIONS_MAX 256u
#define HTTP_NO_DEADLINE UINT64_MAX

struct http;

/**
 * struct http_opts - how requests are made
 * @connections: most at the same time, 1 to HTTP_CONNECTIONS_MAX
 * @tries:       of a request, the first included
 * @stall_s:     a try during which no byte moves for so long is given up
 * @ca_file:     certificates that are believed; NULL: the system's. Servers of https URLs are always verified
 */
struct http_opts {
	uint32_t connections;
	uint32_t tries;
	uint32_t stall_s;
	const char *ca_file;
};

/** struct http_line - what a try sends before its body; @fields: see http_field */
struct http_line {
	const char *method;
	char url[HTTP_URL_BYTES];
	void *fields;
};

/** http_field - one more header field, as printf makes it. Return: 0; -ENOMEM; -E2BIG. */
int http_field(struct http_line *line, const char *format, ...) __attribute__((format(printf, 2, 3)));

/**
 * struct http_request - zero it, then set what is the caller's
 * @describe:  writes @line: 0, or -errno, which ends the request
 * @check:     of an answer of any status: 0, or -errno and perhaps @again. NULL: http_check
 * @failed:    of a try that has failed with @code, whether or not another one follows. @why: what libcurl says of the transport; NULL: an answer came. NULL: nobody asks
 * @done:      the end; the last access to the request and to its buffers was before
 * @stop:      becomes 1 (atomic) when the request is to end; then http_poke is called; NULL: nobody stops it
 * @deadline_ns: CLOCK_MONOTONIC; ends the request, whatever it does: with what the try before has failed with, or -ETIMEDOUT. No try begins behind it
 * @body, @nbody: what is sent; @body_skip of its bytes are passed over, then @body_bytes are sent
 * @into, @ninto, @into_bytes: where the body of a 2xx answer goes; one that is longer is an error
 * @etag:      NULL, or HTTP_ETAG_BYTES that get the ETag as the server wrote it; "": the answer had none
 * @text, @text_bytes: where other bodies go, with a zero at the end; what does not fit is dropped. NULL: HTTP_ANSWER_BYTES of the client's own
 *
 * Results, also for check:
 * @code:      0, or -errno: of the transport, or of check
 * @status:    of the answer of the last try; 0: none came
 * @again:     set by check: the failure may pass
 * @tries:     that were begun
 * @failure:   -errno of the last try that has failed; 0: none has
 * @answer:    during check and failed: @text, or the client's own
 * @too_long:  the body of the answer had more than @into_bytes, which is -EIO
 * @moved:     bytes in @into
 * @text_used: bytes in @text
 * @length:    Content-Length; UINT64_MAX: the answer had none
 * @first:     first byte of Content-Range; UINT64_MAX: none
 */
struct http_request {
	struct http_request *next;
	int (*describe)(struct http_request *r, struct http_line *line);
	int (*check)(struct http_request *r);
	void (*failed)(struct http_request *r, int code, const char *why);
	void (*done)(struct http_request *r);
	void *waiter; /* of http_wait */
	const uint32_t *stop;
	uint64_t deadline_ns;
	const struct iovec *body;
	uint64_t body_skip;
	uint64_t body_bytes;
	uint32_t nbody;
	uint32_t ninto;
	const struct iovec *into;
	uint64_t into_bytes;
	char *etag;
	char *text;
	const char *answer;
	uint32_t text_bytes;
	uint32_t text_used;
	int32_t code;
	int32_t failure;
	int32_t status;
	uint32_t tries;
	bool again;
	bool too_long;
	uint64_t moved;
	uint64_t length;
	uint64_t first;
};

/** http_create - the loop and its thread. Return: 0 and *out; -ENOMEM; -EAGAIN: no thread. */
int http_create(const struct http_opts *opts, struct http **out);

/** http_destroy - waits for all requests; NULL is fine. So requests that are left have a deadline. */
void http_destroy(struct http *h);

/** http_post - begins the requests of a chain (@next); allocates nothing itself, though libcurl may. When the process ends, requests end with -ECANCELED, also from within this. */
void http_post(struct http *h, struct http_request *first, struct http_request *last);

/** http_poke - the stop words of requests are looked at; may be called with any lock held that `done` takes */
void http_poke(struct http *h);

/** http_wait - posts a request and waits until it is done; not from a callback. Sets @done and @waiter. Return: its code. */
int http_wait(struct http *h, struct http_request *r);

/** http_check - the check of most requests: 0 of a 2xx status; sets again of what may pass (429, 5xx). Return: as http_status_code. */
int http_check(struct http_request *r);

/** http_status_code - 0 of 2xx; -EACCES of 401, 403; -ENOENT of 404; -EEXIST of 412; -ENOSPC of 507; -EINVAL of other 4xx and of 3xx; else -EIO */
int http_status_code(int status);

/** http_now_ns - CLOCK_MONOTONIC */
uint64_t http_now_ns(void);

#endif
