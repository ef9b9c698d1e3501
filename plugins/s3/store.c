/* SPDX-License-Identifier: Apache-2.0 */
#include "store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define AUTHORIZATION_BYTES 1024u
#define PATH_BYTES (3 * S3_KEY_MAX + 80)
#define FIELDS_MAX 6u

/* ---- options ----------------------------------------------------------------------------------------------------------- */

static int fill(const char *what, const char *value, char *out, size_t bytes, char *detail, size_t detail_bytes)
{
	if (!value || !*value || strlen(value) >= bytes) {
		snprintf(detail, detail_bytes, "%s: 1 to %zu bytes are wanted", what, bytes - 1);
		return -EINVAL;
	}
	for (const char *p = value; *p; p++)
		if (*p <= ' ' || *p > '~') {
			snprintf(detail, detail_bytes, "%s has a byte %#x: visible ASCII is wanted", what, (unsigned)(unsigned char)*p);
			return -EINVAL;
		}
	memcpy(out, value, strlen(value) + 1);
	return 0;
}

static int set_credentials(struct s3_credentials *who, const struct s3_opts *o, char *detail, size_t detail_bytes)
{
	int rc;

	if (!o->access_key || !o->secret_key) {
		snprintf(detail, detail_bytes, "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or access_key and secret_key");
		return -EINVAL;
	}
	rc = fill("access_key", o->access_key, who->access_key, sizeof(who->access_key), detail, detail_bytes);
	if (rc == 0)
		rc = fill("secret_key", o->secret_key, who->secret_key, sizeof(who->secret_key), detail, detail_bytes);
	if (rc == 0 && o->session_token)
		rc = fill("session_token", o->session_token, who->session_token, sizeof(who->session_token), detail, detail_bytes);
	if (rc == 0)
		rc = fill("region", o->region, who->region, sizeof(who->region), detail, detail_bytes);
	return rc;
}

/* As S3 allows names; so a bucket is safe in a host's name and in a path. */
static int check_bucket(const char *bucket, char *detail, size_t detail_bytes)
{
	size_t n = bucket ? strlen(bucket) : 0;

	if (n >= 3 && n <= 63 && strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789.-") == n)
		return 0;
	snprintf(detail, detail_bytes, "bucket=%.70s: the name of a bucket, 3 to 63 of a to z, 0 to 9, \".\" and \"-\" are wanted", bucket ? bucket : "");
	return -EINVAL;
}

static int set_endpoint(struct s3_store *store, const struct s3_opts *o, char *detail, size_t detail_bytes)
{
	const char *host = o->endpoint;
	size_t n;

	if (!o->endpoint) {
		/* The certificate of AWS has one level of names below s3: a bucket with a dot goes into the path. */
		bool in_host = !strchr(o->bucket, '.');

		snprintf(store->base, sizeof(store->base), "https://%s%ss3.%s.amazonaws.com", in_host ? o->bucket : "", in_host ? "." : "", store->who.region);
		if (!in_host)
			snprintf(store->bucket_path, sizeof(store->bucket_path), "/%s", o->bucket);
		store->host = store->base + strlen("https://");
		return 0;
	}
	if (!strncmp(host, "https://", 8))
		host += 8;
	else if (!strncmp(host, "http://", 7))
		host += 7;
	else
		host = "";
	n = strcspn(host, "/?#@ ");
	if (!n || n >= S3_HOST_BYTES || strcmp(host + n, host[n] == '/' ? "/" : "")) {
		const char *user = strrchr(o->endpoint, '@'); /* before it may be a password */

		snprintf(detail, detail_bytes, "endpoint=%.200s: http://HOST[:PORT] or https://HOST[:PORT] is wanted", user ? user : o->endpoint);
		return -EINVAL;
	}
	snprintf(store->base, sizeof(store->base), "%.*s", (int)(host + n - o->endpoint), o->endpoint);
	store->host = store->base + (host - o->endpoint);
	store->sign_body = host - o->endpoint == 7;
	snprintf(store->bucket_path, sizeof(store->bucket_path), "/%s", o->bucket);
	return 0;
}

static int check_numbers(const struct s3_opts *o, char *detail, size_t detail_bytes)
{
	if (o->connections < 1 || o->connections > HTTP_CONNECTIONS_MAX)
		snprintf(detail, detail_bytes, "connections=%u: 1 to %u", o->connections, HTTP_CONNECTIONS_MAX);
	else if (o->tries < 1 || o->tries > 100)
		snprintf(detail, detail_bytes, "tries=%u: 1 to 100", o->tries);
	else if (o->multipart_bytes < S3_PART_MIN || o->multipart_bytes > UINT64_C(5) << 30)
		snprintf(detail, detail_bytes, "multipart_bytes=%llu: %llu (5 MiB) to 5 GiB", (unsigned long long)o->multipart_bytes, (unsigned long long)S3_PART_MIN);
	else
		return 0;
	return -EINVAL;
}

int s3_store_set(struct s3_store *store, const struct s3_opts *opts, char *detail, size_t detail_bytes)
{
	int rc = set_credentials(&store->who, opts, detail, detail_bytes);

	if (rc == 0)
		rc = check_bucket(opts->bucket, detail, detail_bytes);
	if (rc == 0)
		rc = set_endpoint(store, opts, detail, detail_bytes);
	if (rc == 0)
		rc = check_numbers(opts, detail, detail_bytes);
	store->multipart_bytes = opts->multipart_bytes;
	return rc;
}

/* ---- requests ---------------------------------------------------------------------------------------------------------- */

struct fields {
	struct s3_field field[FIELDS_MAX];
	size_t n;
	char range[64], hash[S3_HEX_BYTES], time[S3_TIME_BYTES];
};

static void add(struct fields *f, const char *name, const char *value)
{
	f->field[f->n++] = (struct s3_field){name, value};
}

/* All that is sent and signed, in the order of the names. */
static int make_fields(const struct s3_store *store, const struct s3_wish *wish, const struct http_request *r, struct fields *f)
{
	struct timespec now;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &now);
	s3_time(now.tv_sec, f->time);
	if (store->sign_body || !r->body_bytes)
		rc = s3_hash(r->body, r->nbody, r->body_skip, r->body_bytes, f->hash);
	else
		snprintf(f->hash, sizeof(f->hash), S3_UNSIGNED_BODY);
	add(f, "host", store->host);
	if (wish->if_absent)
		add(f, "if-none-match", "*");
	if (wish->range_bytes) {
		snprintf(f->range, sizeof(f->range), "bytes=%llu-%llu", (unsigned long long)wish->range_first,
			 (unsigned long long)(wish->range_first + wish->range_bytes - 1));
		add(f, "range", f->range);
	}
	add(f, "x-amz-content-sha256", f->hash);
	add(f, "x-amz-date", f->time);
	if (store->who.session_token[0])
		add(f, "x-amz-security-token", store->who.session_token);
	return rc;
}

int s3_describe(const struct s3_store *store, const struct s3_wish *wish, const struct http_request *r, struct http_line *line)
{
	char path[PATH_BYTES], authorization[AUTHORIZATION_BYTES];
	struct fields f = {.n = 0};
	struct s3_to_sign what = {.method = wish->method, .path = path, .query = wish->query, .fields = f.field, .body_hash = f.hash, .service = "s3", .time = f.time};
	int n = snprintf(path, sizeof(path), "%s/", store->bucket_path), rc;

	rc = s3_encode(wish->key, 1, path + n, sizeof(path) - (size_t)n);
	if (rc < 0)
		return rc;
	rc = make_fields(store, wish, r, &f);
	what.nfields = f.n;
	if (rc == 0)
		rc = s3_sign(&store->who, &what, authorization, sizeof(authorization));
	if (rc)
		return rc;
	line->method = wish->method;
	n = snprintf(line->url, sizeof(line->url), "%s%s%s%s", store->base, path, *wish->query ? "?" : "", wish->query);
	if (n < 0 || (size_t)n >= sizeof(line->url))
		return -E2BIG;
	rc = http_field(line, "Authorization: %s", authorization);
	for (size_t i = 0; i < f.n && rc == 0; i++)
		rc = http_field(line, "%s: %s", f.field[i].name, f.field[i].value);
	return rc;
}

int s3_check(struct http_request *r)
{
	int code = http_check(r);

	r->again |= r->status == 409;
	return code;
}
