/* SPDX-License-Identifier: Apache-2.0 */
#include "gateway.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../http/http.h"

#define ENDPOINTS_MAX 8u
#define ENDPOINT_BYTES 256u
#define ERROR_BYTES 512u
#define ANSWER_BYTES 65536u
#define CONNECTIONS 2u
#define TRIES 20u
#define STALL_S 5u

struct gateway {
	struct http *http;
	uint32_t nendpoints;
	char endpoint[ENDPOINTS_MAX][ENDPOINT_BYTES];
};

struct call {
	struct http_request http; /* first */
	const struct gateway *gateway;
	const char *path;
};

static _Thread_local char last_error[ERROR_BYTES];

int etcd_fail(int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(last_error, sizeof(last_error), format, args);
	va_end(args);
	return code;
}

const char *etcd_error(void)
{
	return last_error;
}

/* ---- endpoints --------------------------------------------------------------------------------------------------------- */

static int add_endpoint(struct gateway *g, const char *from, size_t n)
{
	while (n && from[n - 1] == '/')
		n--;
	if (g->nendpoints == ENDPOINTS_MAX)
		return etcd_fail(-EINVAL, "directory etcd: more than %u endpoints", ENDPOINTS_MAX);
	if (n >= ENDPOINT_BYTES || (strncmp(from, "http://", 7) && strncmp(from, "https://", 8)) || memchr(from, ' ', n) || memchr(from, '@', n))
		return etcd_fail(-EINVAL, "directory etcd: endpoint %.*s: http://HOST:PORT or https://HOST:PORT is wanted, and \";\" between several", (int)(n < 200 ? n : 200),
				 from);
	snprintf(g->endpoint[g->nendpoints++], ENDPOINT_BYTES, "%.*s", (int)n, from);
	return 0;
}

int gateway_create(const char *endpoints, const char *ca_file, struct gateway **out)
{
	struct http_opts opts = {.connections = CONNECTIONS, .tries = TRIES, .stall_s = STALL_S, .ca_file = ca_file};
	struct gateway *g = calloc(1, sizeof(*g));
	int rc = 0;

	if (!g)
		return etcd_fail(-ENOMEM, "directory etcd: no memory");
	for (const char *at = endpoints; rc == 0; at += strcspn(at, ";") + 1) {
		rc = add_endpoint(g, at, strcspn(at, ";"));
		if (!at[strcspn(at, ";")])
			break;
	}
	if (rc == 0) {
		rc = http_create(&opts, &g->http);
		if (rc)
			etcd_fail(rc, "directory etcd: its thread: %s", strerror(-rc));
	}
	if (rc) {
		free(g);
		return rc;
	}
	*out = g;
	return 0;
}

void gateway_destroy(struct gateway *g)
{
	http_destroy(g->http);
	free(g);
}

/* ---- a call ------------------------------------------------------------------------------------------------------------ */

static int describe(struct http_request *r, struct http_line *line)
{
	const struct call *c = (const struct call *)(const void *)r;
	const struct gateway *g = c->gateway;

	line->method = "POST";
	snprintf(line->url, sizeof(line->url), "%s/v3/%s", g->endpoint[(r->tries - 1) % g->nendpoints], c->path);
	return http_field(line, "Content-Type: application/json");
}

/* A request above a limit of the server gets the status of one that came too often. */
static int check(struct http_request *r)
{
	int code = http_check(r);

	if (!code || (!strstr(r->text, "larger than max") && !strstr(r->text, "request is too large")))
		return code;
	r->again = false;
	return -E2BIG;
}

/* What etcd says of a failure, in JSON. */
static int refused(const struct http_request *r, const char *path)
{
	json_t *answer = json_loads(r->text, 0, NULL);
	const char *why = answer ? json_string_value(json_object_get(answer, "error")) : NULL;

	if (answer && !why)
		why = json_string_value(json_object_get(answer, "message"));
	etcd_fail(r->code, "etcd: %s: %s", path, why ? why : r->status ? "an answer without a reason" : strerror(-r->code));
	json_decref(answer);
	return r->code;
}

/* Takes the reference to what is asked. 0 and *answer, an object; or -errno with text. */
static int call(struct gateway *g, const char *path, json_t *ask, size_t answer_bytes, uint64_t deadline_ns, json_t **answer)
{
	char *text = ask ? json_dumps(ask, JSON_COMPACT) : NULL, *reply = malloc(answer_bytes);
	struct iovec body = {text, text ? strlen(text) : 0};
	struct call c = {
		.http = {
			.describe = describe,
			.check = check,
			.deadline_ns = deadline_ns,
			.body = &body,
			.nbody = 1,
			.body_bytes = body.iov_len,
			.text = reply,
			.text_bytes = (uint32_t)answer_bytes,
		},
		.gateway = g,
		.path = path,
	};
	int rc;

	json_decref(ask);
	*answer = NULL;
	if (!text || !reply) {
		rc = etcd_fail(-ENOMEM, "etcd: %s: no memory", path);
	} else if (http_wait(g->http, &c.http)) {
		rc = refused(&c.http, path);
	} else {
		*answer = json_loads(reply, 0, NULL);
		rc = json_is_object(*answer) ? 0 : etcd_fail(-EIO, "etcd: %s: an answer of %u bytes that is no JSON object", path, c.http.text_used);
	}
	free(text);
	free(reply);
	if (rc) {
		json_decref(*answer);
		*answer = NULL;
	}
	return rc;
}

/* A 64-bit number, which the gateway writes as a string. 0: there is none. */
static int64_t number(const json_t *object, const char *name)
{
	const char *text = json_string_value(json_object_get(object, name));

	return text ? strtoll(text, NULL, 10) : 0;
}

static json_t *of_lease(int64_t lease)
{
	char text[32];

	snprintf(text, sizeof(text), "%" PRId64, lease);
	return json_pack("{s:s}", "ID", text);
}

/* ---- leases ------------------------------------------------------------------------------------------------------------ */

int gateway_grant(struct gateway *g, uint32_t ttl_s, uint64_t deadline_ns, int64_t *lease)
{
	char ttl[16];
	json_t *answer;
	int rc;

	snprintf(ttl, sizeof(ttl), "%u", ttl_s);
	rc = call(g, "lease/grant", json_pack("{s:s}", "TTL", ttl), ANSWER_BYTES, deadline_ns, &answer);
	if (rc)
		return rc;
	*lease = number(answer, "ID");
	json_decref(answer);
	return *lease ? 0 : etcd_fail(-EIO, "etcd: lease/grant: an answer without a lease");
}

int gateway_keep_alive(struct gateway *g, int64_t lease, uint64_t deadline_ns)
{
	json_t *answer;
	int rc = call(g, "lease/keepalive", of_lease(lease), ANSWER_BYTES, deadline_ns, &answer);

	if (rc)
		return rc;
	if (number(json_object_get(answer, "result"), "TTL") <= 0)
		rc = etcd_fail(-ENOENT, "etcd: the lease has ended");
	json_decref(answer);
	return rc;
}

int gateway_revoke(struct gateway *g, int64_t lease, uint64_t deadline_ns)
{
	json_t *answer;
	int rc = call(g, "lease/revoke", of_lease(lease), ANSWER_BYTES, deadline_ns, &answer);

	json_decref(answer);
	return rc;
}

/* ---- keys -------------------------------------------------------------------------------------------------------------- */

/* A JSON string of base64, or NULL. */
static json_t *base64(const void *bytes, size_t n)
{
	char *text = malloc((n + 2) / 3 * 4 + 1);
	json_t *out;

	if (!text)
		return NULL;
	EVP_EncodeBlock((unsigned char *)text, bytes, (int)n);
	out = json_string(text);
	free(text);
	return out;
}

int gateway_put(struct gateway *g, const char *key, const void *value, size_t bytes, int64_t lease, uint64_t deadline_ns)
{
	char text[32];
	json_t *answer;
	int rc;

	if (bytes > ETCD_VALUE_MAX)
		return etcd_fail(-E2BIG, "etcd: a value of %zu bytes: at most %zu. Publish some of the sections", bytes, ETCD_VALUE_MAX);
	snprintf(text, sizeof(text), "%" PRId64, lease);
	rc = call(g, "kv/put", json_pack("{s:o,s:o,s:s}", "key", base64(key, strlen(key)), "value", base64(value, bytes), "lease", text), ANSWER_BYTES, deadline_ns,
		  &answer);
	json_decref(answer);
	return rc;
}

/* The bytes of a base64 text; -EBADMSG: it is none. */
static int64_t decode(const char *text, void *out, size_t max)
{
	size_t n = strlen(text), bytes = n / 4 * 3, signs = 0;
	unsigned char *own;
	int got;

	while (signs < n && text[n - 1 - signs] == '=')
		signs++;
	if (n % 4 || signs > 2)
		return etcd_fail(-EBADMSG, "etcd: a value that is no base64");
	bytes -= signs;
	if (bytes > max)
		return (int64_t)bytes;
	own = malloc(n / 4 * 3 + 1); /* it writes zeros for the signs at the end */
	if (!own)
		return etcd_fail(-ENOMEM, "etcd: no memory for a value of %zu bytes", bytes);
	got = EVP_DecodeBlock(own, (const unsigned char *)text, (int)n);
	if (got >= 0 && (size_t)got >= bytes) /* it passes over blanks at both ends */
		memcpy(out, own, bytes);
	else
		got = -1;
	free(own);
	return got >= 0 ? (int64_t)bytes : etcd_fail(-EBADMSG, "etcd: a value that is no base64");
}

int64_t gateway_get(struct gateway *g, const char *key, void *out, size_t max, uint64_t deadline_ns)
{
	const char *value;
	json_t *answer;
	int64_t n = call(g, "kv/range", json_pack("{s:o}", "key", base64(key, strlen(key))), ETCD_VALUE_MAX / 3 * 4 + ANSWER_BYTES, deadline_ns, &answer);

	if (n)
		return n;
	value = json_string_value(json_object_get(json_array_get(json_object_get(answer, "kvs"), 0), "value"));
	if (value)
		n = decode(value, out, max);
	else
		n = etcd_fail(-ENOENT, "etcd: there is no %.300s", key);
	json_decref(answer);
	return n;
}

int gateway_delete(struct gateway *g, const char *key, uint64_t deadline_ns)
{
	json_t *answer;
	int rc = call(g, "kv/deleterange", json_pack("{s:o}", "key", base64(key, strlen(key))), ANSWER_BYTES, deadline_ns, &answer);

	json_decref(answer);
	return rc;
}
