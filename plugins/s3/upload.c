/* SPDX-License-Identifier: Apache-2.0 */
#include "upload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "client.h"
#include "store.h"

#define PART_BYTES (UINT64_C(16) << 20)
#define PARTS_MAX 10000u
#define PART_STEP (UINT64_C(1) << 20)
#define ID_BYTES 1024u
#define TEXT_BYTES 4096u
#define XML_PART_BYTES (HTTP_ETAG_BYTES + 96u)
#define QUERY_BYTES (3 * ID_BYTES + 64)
#define ABORT_NS UINT64_C(5000000000)

struct part {
	struct http_request http; /* first */
	struct s3_upload *upload;
	uint32_t number;
	char etag[HTTP_ETAG_BYTES];
};

struct s3_upload {
	struct http_request http; /* first: begin and complete */
	struct s3_store *store;
	struct object_transfer *transfer;
	uint64_t part_bytes, bytes;
	uint32_t nparts, left;
	int32_t code; /* of the first part that failed */
	char id[ID_BYTES]; /* as the store wrote it */
	char text[TEXT_BYTES];
	char *xml;
	size_t xml_bytes;
	struct iovec xml_iov;
	struct part part[];
};

/* An abort on its own. */
struct abort {
	struct http_request http; /* first */
	struct s3_store *store;
	char key[S3_KEY_MAX + 1];
	char id[ID_BYTES];
};

int s3_upload_new(struct s3_store *store, uint64_t bytes, struct s3_upload **out)
{
	uint64_t part_bytes = store->multipart_bytes < PART_BYTES ? store->multipart_bytes : PART_BYTES;
	struct s3_upload *u;
	uint32_t n;

	while ((bytes + part_bytes - 1) / part_bytes > PARTS_MAX)
		part_bytes = (bytes / PARTS_MAX / PART_STEP + 1) * PART_STEP;
	n = (uint32_t)((bytes + part_bytes - 1) / part_bytes);
	u = calloc(1, sizeof(*u) + n * sizeof(u->part[0]));
	if (!u)
		return -ENOMEM;
	u->xml_bytes = 128 + (size_t)n * XML_PART_BYTES;
	u->xml = malloc(u->xml_bytes);
	if (!u->xml) {
		free(u);
		return -ENOMEM;
	}
	u->store = store;
	u->bytes = bytes;
	u->part_bytes = part_bytes;
	u->nparts = n;
	*out = u;
	return 0;
}

void s3_upload_free(struct s3_upload *upload)
{
	if (!upload)
		return;
	free(upload->xml);
	free(upload);
}

/* "uploadId=ID", with what stands before it. */
static int make_query(char out[QUERY_BYTES], const char *before, const char *id)
{
	int n = snprintf(out, QUERY_BYTES, "%suploadId=", before);
	int rc = s3_encode(id, 0, out + n, QUERY_BYTES - (size_t)n);

	return rc < 0 ? rc : 0;
}

/* ---- abort ------------------------------------------------------------------------------------------------------------- */

static int describe_abort(struct http_request *r, struct http_line *line)
{
	const struct abort *a = (const struct abort *)(const void *)r;
	char query[QUERY_BYTES];
	struct s3_wish wish = {.method = "DELETE", .key = a->key, .query = query};
	int rc = make_query(query, "", a->id);

	return rc ? rc : s3_describe(a->store, &wish, r, line);
}

static void abort_done(struct http_request *r)
{
	free(r);
}

/* Without memory, or if the store does not answer, parts stay: a rule of the bucket for incomplete uploads removes them. */
static void abort_upload(const struct s3_upload *u)
{
	struct abort *a = calloc(1, sizeof(*a));

	if (!a)
		return;
	a->store = u->store;
	snprintf(a->key, sizeof(a->key), "%s", u->transfer->key);
	memcpy(a->id, u->id, sizeof(a->id));
	a->http = (struct http_request){.describe = describe_abort, .done = abort_done, .deadline_ns = http_now_ns() + ABORT_NS};
	http_post(u->store->http, &a->http, &a->http);
}

/* The last access to the upload: its caller may free it in done. */
static void end(struct s3_upload *u, int code)
{
	struct object_transfer *t = u->transfer;

	if (code && u->id[0])
		abort_upload(u);
	t->code = code;
	t->moved = code ? 0 : t->bytes;
	t->done(t);
}

static void own_failed(struct http_request *r, int code, const char *why)
{
	const struct s3_upload *u = (const struct s3_upload *)(const void *)r;

	s3_tell(u->store, u->transfer, r, code, why);
}

/* ---- complete ---------------------------------------------------------------------------------------------------------- */

static int describe_complete(struct http_request *r, struct http_line *line)
{
	const struct s3_upload *u = (const struct s3_upload *)(const void *)r;
	char query[QUERY_BYTES];
	struct s3_wish wish = {.method = "POST", .key = u->transfer->key, .query = query, .if_absent = u->transfer->if_absent};
	int rc = make_query(query, "", u->id);

	return rc ? rc : s3_describe(u->store, &wish, r, line);
}

/* The store says 200 early, and may still say in the body that it has failed. */
static int check_complete(struct http_request *r)
{
	int code = s3_check(r);

	if ((code == -ENOENT || code == -EEXIST) && r->tries > 1)
		return -EIO; /* the try before, whose answer was lost, may have completed the upload */
	if (code || strstr(r->text, "<CompleteMultipartUploadResult"))
		return code;
	r->again = strstr(r->text, "<Code>InternalError<") || strstr(r->text, "<Code>SlowDown<");
	return -EIO;
}

static void complete_done(struct http_request *r)
{
	struct s3_upload *u = (struct s3_upload *)(void *)r;

	end(u, r->code);
}

static void complete(struct s3_upload *u)
{
	size_t n = (size_t)snprintf(u->xml, u->xml_bytes, "<CompleteMultipartUpload>");

	for (uint32_t i = 0; i < u->nparts; i++)
		n += (size_t)snprintf(u->xml + n, u->xml_bytes - n, "<Part><ETag>%s</ETag><PartNumber>%u</PartNumber></Part>", u->part[i].etag, i + 1);
	n += (size_t)snprintf(u->xml + n, u->xml_bytes - n, "</CompleteMultipartUpload>");
	u->xml_iov = (struct iovec){u->xml, n};
	u->http = (struct http_request){
		.describe = describe_complete,
		.check = check_complete,
		.failed = own_failed,
		.done = complete_done,
		.stop = u->transfer->stop,
		.deadline_ns = u->transfer->deadline_ns,
		.body = &u->xml_iov,
		.nbody = 1,
		.body_bytes = n,
		.text = u->text,
		.text_bytes = sizeof(u->text),
	};
	http_post(u->store->http, &u->http, &u->http);
}

/* ---- parts ------------------------------------------------------------------------------------------------------------- */

static int describe_part(struct http_request *r, struct http_line *line)
{
	const struct part *p = (const struct part *)(const void *)r;
	char query[QUERY_BYTES], number[32];
	struct s3_wish wish = {.method = "PUT", .key = p->upload->transfer->key, .query = query};
	int rc;

	if (p->upload->code)
		return -ECANCELED; /* another part has failed */
	snprintf(number, sizeof(number), "partNumber=%u&", p->number);
	rc = make_query(query, number, p->upload->id);
	return rc ? rc : s3_describe(p->upload->store, &wish, r, line);
}

static int check_part(struct http_request *r)
{
	int code = s3_check(r);

	return code ? code : r->etag[0] && !strpbrk(r->etag, "<>&") ? 0 : -EIO;
}

static void part_failed(struct http_request *r, int code, const char *why)
{
	const struct s3_upload *u = ((const struct part *)(const void *)r)->upload;

	s3_tell(u->store, u->transfer, r, code, why);
}

static void part_done(struct http_request *r)
{
	struct part *p = (struct part *)(void *)r;
	struct s3_upload *u = p->upload;

	if (r->code && !u->code)
		u->code = r->code;
	if (--u->left)
		return;
	if (u->code)
		end(u, u->code);
	else
		complete(u);
}

static void send_parts(struct s3_upload *u)
{
	const struct object_transfer *t = u->transfer;

	u->left = u->nparts;
	for (uint32_t i = 0; i < u->nparts; i++) {
		struct part *p = &u->part[i];
		uint64_t first = i * u->part_bytes;

		*p = (struct part){
			.http = {
				.describe = describe_part,
				.check = check_part,
				.failed = part_failed,
				.done = part_done,
				.stop = t->stop,
				.deadline_ns = t->deadline_ns,
				.body = t->iov,
				.nbody = t->niov,
				.body_skip = first,
				.etag = p->etag,
				.body_bytes = u->bytes - first < u->part_bytes ? u->bytes - first : u->part_bytes,
			},
			.upload = u,
			.number = i + 1,
		};
		if (i)
			u->part[i - 1].http.next = &p->http;
	}
	http_post(u->store->http, &u->part[0].http, &u->part[u->nparts - 1].http);
}

/* ---- begin ------------------------------------------------------------------------------------------------------------- */

static int describe_begin(struct http_request *r, struct http_line *line)
{
	const struct s3_upload *u = (const struct s3_upload *)(const void *)r;
	struct s3_wish wish = {.method = "POST", .key = u->transfer->key, .query = "uploads="};

	return s3_describe(u->store, &wish, r, line);
}

static int check_begin(struct http_request *r)
{
	struct s3_upload *u = (struct s3_upload *)(void *)r;
	int code = s3_check(r);

	return code ? code : s3_element(u->text, "UploadId", u->id, sizeof(u->id)) ? 0 : -EIO;
}

static void begin_done(struct http_request *r)
{
	struct s3_upload *u = (struct s3_upload *)(void *)r;

	if (r->code)
		end(u, r->code);
	else
		send_parts(u);
}

void s3_upload_begin(struct s3_upload *u, struct object_transfer *t)
{
	u->transfer = t;
	u->code = 0;
	u->id[0] = 0;
	u->http = (struct http_request){
		.describe = describe_begin,
		.check = check_begin,
		.failed = own_failed,
		.done = begin_done,
		.stop = t->stop,
		.deadline_ns = t->deadline_ns,
		.text = u->text,
		.text_bytes = sizeof(u->text),
	};
	http_post(u->store->http, &u->http, &u->http);
}
