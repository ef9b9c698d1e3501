/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include <errno.h>
#include <semaphore.h>
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

void s3_client_destroy(struct s3_client *client)
{
	if (!client)
		return;
	http_destroy(client->store.http);
	explicit_bzero(&client->store.who, sizeof(client->store.who));
	free(client);
}

/* ---- requests that are one HTTP request -------------------------------------------------------------------------------- */

static struct s3_transfer *transfer_of(struct http_request *r)
{
	return (struct s3_transfer *)(void *)r; /* its first member */
}

static int describe(struct http_request *r, struct http_line *line)
{
	static const char *const methods[] = {[S3_GET] = "GET", [S3_PUT] = "PUT", [S3_HEAD] = "HEAD"};
	struct s3_transfer *t = transfer_of(r);
	struct s3_wish wish = {.method = methods[t->op], .key = t->key, .query = "", .if_absent = t->op == S3_PUT && t->if_absent};

	if (t->op == S3_GET) {
		wish.range_first = t->offset;
		wish.range_bytes = t->bytes;
	}
	return s3_describe(&t->client->store, &wish, r, line);
}

/* What an answer to a single request is worth. A range that reaches beyond the object is short, however the store says so. */
static int check(struct http_request *r)
{
	const struct s3_transfer *t = transfer_of(r);
	int code = s3_check(r);

	if (code == -EEXIST && r->tries > 1)
		return -EIO; /* the try before, whose answer was lost, may have made the object */
	if (code || t->op != S3_GET)
		return code;
	if (r->status != 206 || r->first != t->offset || r->moved != t->bytes)
		return -EIO;
	return 0;
}

static void single_failed(struct http_request *r, int code, const char *why)
{
	struct s3_transfer *t = transfer_of(r);

	s3_tell(&t->client->store, t, r, code, why);
}

static void single_done(struct http_request *r)
{
	struct s3_transfer *t = transfer_of(r);

	t->code = r->code;
	/* A short answer has moved what it had; bytes of another range, or of an answer that is too long, count as none. */
	if (t->op == S3_GET)
		t->moved = r->status == 206 && r->first == t->offset && !r->too_long ? r->moved : 0;
	else
		t->moved = r->code == 0 ? t->bytes : 0;
	t->object_bytes = t->op == S3_HEAD && r->code == 0 && r->length != UINT64_MAX ? r->length : 0;
	t->done(t);
}

int s3_prepare(struct s3_client *client, struct s3_transfer *t)
{
	size_t n = t->key ? strlen(t->key) : 0;

	if (!n || n > S3_KEY_MAX || (t->op == S3_GET && !t->bytes) || t->bytes > S3_OBJECT_MAX)
		return -EINVAL;
	t->client = client;
	t->upload = NULL;
	if (t->op == S3_PUT && t->bytes > client->store.multipart_bytes)
		return s3_upload_new(&client->store, t->bytes, &t->upload);
	return 0;
}

void s3_forget(struct s3_transfer *t)
{
	s3_upload_free(t->upload);
	t->upload = NULL;
}

void s3_post(struct s3_transfer *t)
{
	t->code = 0;
	t->moved = 0;
	if (t->upload) {
		s3_upload_begin(t->upload, t);
		return;
	}
	t->http = (struct http_request){.describe = describe, .check = check, .failed = single_failed, .done = single_done, .stop = t->stop, .deadline_ns = t->deadline_ns};
	if (t->op == S3_PUT) {
		t->http.body = t->iov;
		t->http.nbody = t->niov;
		t->http.body_bytes = t->bytes;
	} else if (t->op == S3_GET) {
		t->http.into = t->iov;
		t->http.ninto = t->niov;
		t->http.into_bytes = t->bytes;
	}
	http_post(t->client->store.http, &t->http, &t->http);
}

void s3_poke(struct s3_client *client)
{
	http_poke(client->store.http);
}

/* ---- with a caller who sleeps ------------------------------------------------------------------------------------------ */

struct waiting {
	struct s3_transfer transfer; /* first */
	sem_t done;
};

static void wake(struct s3_transfer *t)
{
	sem_post(&((struct waiting *)(void *)t)->done);
}

int s3_wait(struct s3_client *client, struct s3_transfer *t)
{
	struct waiting w = {.transfer = *t};
	int rc;

	w.transfer.done = wake;
	rc = s3_prepare(client, &w.transfer);
	if (rc)
		return rc;
	sem_init(&w.done, 0, 0);
	s3_post(&w.transfer);
	while (sem_wait(&w.done))
		; /* a signal */
	sem_destroy(&w.done);
	s3_forget(&w.transfer);
	t->code = w.transfer.code;
	t->moved = w.transfer.moved;
	t->object_bytes = w.transfer.object_bytes;
	return t->code;
}
