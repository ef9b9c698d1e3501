/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "store.h"
#include "upload.h"

#define CONNECTIONS 16u
#define TRIES 5u
#define STALL_S 30u
#define MULTIPART_BYTES (UINT64_C(64) << 20)

struct s3_client {
	struct s3_store store;
};

/* What a transfer keeps here. */
struct own {
	struct http_request http; /* first */
	struct s3_client *client;
	struct object_transfer *transfer;
	struct s3_upload *upload; /* a write in parts; NULL: the transfer is one request */
};

static const char *environment(const char *name, const char *other)
{
	const char *value = getenv(name);

	if ((!value || !*value) && other)
		value = getenv(other);
	return value && *value ? value : NULL;
}

void s3_opts_init(struct s3_opts *opts)
{
	const char *region = environment("AWS_REGION", "AWS_DEFAULT_REGION");

	*opts = (struct s3_opts){
		.endpoint = environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
		.region = region ? region : "us-east-1",
		.access_key = environment("AWS_ACCESS_KEY_ID", NULL),
		.secret_key = environment("AWS_SECRET_ACCESS_KEY", NULL),
		.session_token = environment("AWS_SESSION_TOKEN", NULL),
		.ca_file = environment("AWS_CA_BUNDLE", NULL),
		.connections = CONNECTIONS,
		.tries = TRIES,
		.multipart_bytes = MULTIPART_BYTES,
	};
}

int s3_client_create(const struct s3_opts *opts, struct s3_client **out, char *detail, size_t detail_bytes)
{
	struct http_opts http = {.connections = opts->connections, .tries = opts->tries, .stall_s = STALL_S, .ca_file = opts->ca_file};
	struct s3_client *client = calloc(1, sizeof(*client));
	int rc = client ? s3_store_set(&client->store, opts, detail, detail_bytes) : -ENOMEM;

	if (rc == 0) {
		rc = http_create(&http, &client->store.http);
		if (rc)
			snprintf(detail, detail_bytes, "the thread of the client: %s", strerror(-rc));
	}
	if (rc) {
		free(client);
		return rc;
	}
	*out = client;
	return 0;
}

void s3_client_destroy(void *client)
{
	struct s3_client *c = client;

	if (!c)
		return;
	http_destroy(c->store.http);
	explicit_bzero(&c->store.who, sizeof(c->store.who));
	free(c);
}

/* ---- requests that are one HTTP request -------------------------------------------------------------------------------- */

static struct own *own_of(struct http_request *r)
{
	return (struct own *)(void *)r; /* its first member */
}

static int describe(struct http_request *r, struct http_line *line)
{
	static const char *const methods[] = {[OBJECT_GET] = "GET", [OBJECT_PUT] = "PUT", [OBJECT_HEAD] = "HEAD"};
	struct object_transfer *t = own_of(r)->transfer;
	struct s3_wish wish = {.method = methods[t->op], .key = t->key, .query = "", .if_absent = t->op == OBJECT_PUT && t->if_absent};

	if (t->op == OBJECT_GET) {
		wish.range_first = t->offset;
		wish.range_bytes = t->bytes;
	}
	return s3_describe(&own_of(r)->client->store, &wish, r, line);
}

/* What an answer to a single request is worth. A range that reaches beyond the object is short, however the store says so. */
static int check(struct http_request *r)
{
	const struct object_transfer *t = own_of(r)->transfer;
	int code = s3_check(r);

	if (code == -EEXIST && r->tries > 1)
		return -EIO; /* the try before, whose answer was lost, may have made the object */
	if (code || t->op != OBJECT_GET)
		return code;
	if (r->status == 206 && r->first == t->offset && r->moved < t->bytes)
		return -ENODATA;
	if (r->status != 206 || r->first != t->offset || r->moved != t->bytes)
		return -EIO;
	return 0;
}

static void single_failed(struct http_request *r, int code, const char *why)
{
	struct object_transfer *t = own_of(r)->transfer;

	s3_tell(&own_of(r)->client->store, t, r, code, why);
}

static void single_done(struct http_request *r)
{
	struct object_transfer *t = own_of(r)->transfer;

	t->code = r->code;
	t->tries = r->tries;
	/* A short answer has moved what it had; bytes of another range, or of an answer that is too long, count as none. */
	if (t->op == OBJECT_GET)
		t->moved = r->status == 206 && r->first == t->offset && !r->too_long ? r->moved : 0;
	else
		t->moved = r->code == 0 ? t->bytes : 0;
	t->object_bytes = t->op == OBJECT_HEAD && r->code == 0 && r->length != UINT64_MAX ? r->length : 0;
	t->done(t);
}

int s3_prepare(void *client, struct object_transfer *t)
{
	struct s3_client *c = client;
	size_t n = t->key ? strlen(t->key) : 0;
	struct own *own;
	int rc = 0;

	if (!n || n > S3_KEY_MAX || (t->op == OBJECT_GET && !t->bytes) || t->bytes > S3_OBJECT_MAX)
		return -EINVAL;
	own = calloc(1, sizeof(*own));
	if (!own)
		return -ENOMEM;
	own->client = c;
	own->transfer = t;
	if (t->op == OBJECT_PUT && t->bytes > c->store.multipart_bytes)
		rc = s3_upload_new(&c->store, t->bytes, &own->upload);
	if (rc)
		free(own);
	else
		t->own = own;
	return rc;
}

void s3_forget(struct object_transfer *t)
{
	struct own *own = t->own;

	if (!own)
		return;
	s3_upload_free(own->upload);
	free(own);
	t->own = NULL;
}

void s3_post(struct object_transfer *t)
{
	struct own *own = t->own;

	t->code = 0;
	t->moved = 0;
	if (own->upload) {
		s3_upload_begin(own->upload, t);
		return;
	}
	own->http = (struct http_request){.describe = describe, .check = check, .failed = single_failed, .done = single_done, .stop = t->stop, .deadline_ns = t->deadline_ns};
	if (t->op == OBJECT_PUT) {
		own->http.body = t->iov;
		own->http.nbody = t->niov;
		own->http.body_bytes = t->bytes;
	} else if (t->op == OBJECT_GET) {
		own->http.into = t->iov;
		own->http.ninto = t->niov;
		own->http.into_bytes = t->bytes;
	}
	http_post(own->client->store.http, &own->http, &own->http);
}

void s3_poke(void *client)
{
	http_poke(((struct s3_client *)client)->store.http);
}
