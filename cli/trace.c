/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parser of request traces: one pass, line by line, jansson for the JSON of a line, zlib for a file that gzip has compressed.
 *
 * It is strict, because a trace that is silently misread gives figures that are silently wrong. Errors are: wrong types,
 * missing fields, negative or absurd values, a number of ids that does not fit the length, an id twice in one
 * prompt. Unknown fields are ignored. Arrivals that go backwards are accepted and counted.
 */
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>
#include <zlib.h>

/* A million 20-digit ids with separators fit. The limit keeps a file without line ends from filling the memory. */
#define LINE_MAX_BYTES (32u << 20)
#define TIMESTAMP_MAX_MS 1e15

static int fail(struct trace_reader *r, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static int fail(struct trace_reader *r, int code, const char *fmt, ...)
{
	va_list ap;
	int n = r->line ? snprintf(r->error, sizeof(r->error), "%.160s:%" PRIu64 ": ", r->name, r->line)
			: snprintf(r->error, sizeof(r->error), "%.160s: ", r->name);

	va_start(ap, fmt);
	vsnprintf(r->error + n, sizeof(r->error) - (size_t)n, fmt, ap);
	va_end(ap);
	return code;
}

/* zlib gives back what is not compressed as it is. -1 with errno: EBADMSG for damaged data, ENODATA if its end is missing. */
static ssize_t read_gzip(void *cookie, char *to, size_t bytes)
{
	gzFile gz = cookie;
	int n = gzread(gz, to, bytes < 1u << 20 ? (unsigned)bytes : 1u << 20), rc = Z_OK, saved = errno;

	gzerror(gz, &rc);
	if (n < 0 || (n == 0 && rc != Z_OK && rc != Z_STREAM_END)) {
		errno = rc == Z_ERRNO ? saved : rc == Z_BUF_ERROR ? ENODATA : rc == Z_MEM_ERROR ? ENOMEM : EBADMSG;
		return -1;
	}
	return n;
}

static int close_gzip(void *cookie)
{
	gzclose_r(cookie);
	return 0;
}

/* NULL with errno. */
static FILE *open_file(const char *name)
{
	int fd = strcmp(name, "-") ? open(name, O_RDONLY | O_CLOEXEC) : fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
	gzFile gz = fd < 0 ? NULL : gzdopen(fd, "r");
	FILE *file = gz ? fopencookie(gz, "r", (cookie_io_functions_t){.read = read_gzip, .close = close_gzip}) : NULL;

	if (file)
		return file;
	if (gz)
		gzclose_r(gz);
	else if (fd >= 0)
		close(fd);
	if (fd >= 0)
		errno = ENOMEM;
	return NULL;
}

int trace_open(struct trace_reader *r, const char *name, const struct trace_format *format, FILE *file)
{
	memset(r, 0, sizeof(*r));
	r->name = name;
	if (format)
		r->format = *format;
	r->file = file ? file : open_file(name);
	if (!r->file)
		return fail(r, -errno, "cannot be opened: %s", strerror(errno));
	return 0;
}

void trace_close(struct trace_reader *r)
{
	if (r->file)
		fclose(r->file);
	free(r->text);
	free(r->ids);
	free(r->seen);
	memset(r, 0, sizeof(*r));
}

/* The next line without its end: 1, 0 at the end of the file. */
static int read_line(struct trace_reader *r, size_t *len)
{
	size_t n = 0;
	int c;

	r->line++;
	flockfile(r->file);
	while ((c = getc_unlocked(r->file)) != EOF && c != '\n') {
		if (n == r->text_capacity) {
			size_t capacity = r->text_capacity ? r->text_capacity * 2 : 4096;
			char *grown = capacity <= LINE_MAX_BYTES ? realloc(r->text, capacity) : NULL;

			if (!grown) {
				funlockfile(r->file);
				return capacity > LINE_MAX_BYTES
					       ? fail(r, -EINVAL, "line is longer than %u bytes", LINE_MAX_BYTES)
					       : fail(r, -ENOMEM, "out of memory");
			}
			r->text = grown;
			r->text_capacity = capacity;
		}
		r->text[n++] = (char)c;
	}
	funlockfile(r->file);
	r->bytes += n + (c == '\n');
	if (c == EOF && ferror(r->file))
		return fail(r, errno == EBADMSG || errno == ENODATA ? -EINVAL : -errno, "cannot be read: %s",
			    errno == EBADMSG ? "its compressed data are damaged" : errno == ENODATA ? "its compressed data end too early" : strerror(errno));
	*len = n;
	return c != EOF || n > 0;
}

static bool blank(const char *s, size_t n)
{
	while (n > 0 && (s[n - 1] == ' ' || s[n - 1] == '\t' || s[n - 1] == '\r'))
		n--;
	return n == 0;
}

/* The value as the trace has it, cut off where it is long. */
static const char *shown(const json_t *v, char *text, size_t bytes)
{
	char *all = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));

	snprintf(text, bytes, "%s", all ? all : "?");
	if (all && strlen(all) >= bytes)
		memcpy(text + bytes - 4, "...", 4);
	free(all);
	return text;
}

/* v: NULL if the field is missing, and then *out stays. */
static int get_whole(struct trace_reader *r, const json_t *v, const char *name, uint64_t min, uint64_t max, uint64_t *out)
{
	char text[48];

	if (!v)
		return 0;
	if (!json_is_integer(v))
		return fail(r, -EINVAL, "%s must be a whole number, not %s", name, shown(v, text, sizeof(text)));
	if (json_integer_value(v) < (json_int_t)min || json_integer_value(v) > (json_int_t)max)
		return fail(r, -EINVAL, "%s %lld is out of range (%" PRIu64 " to %" PRIu64 ")", name, (long long)json_integer_value(v), min, max);
	*out = (uint64_t)json_integer_value(v);
	return 0;
}

/* The first request decides, of all that could: the caller, its field block_size, 512 tokens. The others may not say otherwise. */
static int get_block_tokens(struct trace_reader *r, const json_t *o)
{
	uint32_t known = r->block_tokens ? r->block_tokens : r->format.block_tokens;
	const json_t *v = json_object_get(o, "block_size");
	uint64_t tokens = known ? known : TRACE_BLOCK_TOKENS;
	int rc = get_whole(r, v, "block_size", 1, TRACE_BLOCK_TOKENS_MAX, &tokens);

	if (rc)
		return rc;
	if (known && tokens != known)
		return fail(r, -EINVAL, "block_size %" PRIu64 ", but %u tokens per block %s", tokens, known,
			    r->format.block_tokens ? "were asked for (--block-tokens)" : "in the first request");
	r->block_tokens = (uint32_t)tokens;
	return 0;
}

static int get_timestamp(struct trace_reader *r, const json_t *o, bool first, double *out)
{
	const json_t *v = json_object_get(o, "timestamp");
	double per_ms = r->format.unit == TRACE_UNIT_S ? 1e3 : 1, t;
	char text[48];

	if (first)
		r->timed = v;
	*out = 0;
	if (!v && !r->timed)
		return 0;
	if (!v)
		return fail(r, -EINVAL, "no timestamp, but the first request has one: all must have one, or none");
	if (!r->timed)
		return fail(r, -EINVAL, "timestamp %s, but the first request has none: all must have one, or none", shown(v, text, sizeof(text)));
	if (!json_is_number(v))
		return fail(r, -EINVAL, "timestamp must be a number, not %s", shown(v, text, sizeof(text)));
	if (json_is_real(v) && r->format.unit == TRACE_UNIT_DEFAULT)
		return fail(r, -EINVAL, "timestamp %s: seconds or ms? only whole numbers are taken for ms: give --timestamp-unit s, or ms",
			    shown(v, text, sizeof(text)));
	t = json_number_value(v) * per_ms;
	if (!isfinite(t) || t < 0 || t > TIMESTAMP_MAX_MS)
		return fail(r, -EINVAL, "timestamp %s is out of range (0 to %g %s)", shown(v, text, sizeof(text)), TIMESTAMP_MAX_MS / per_ms,
			    r->format.unit == TRACE_UNIT_S ? "s" : "ms");
	*out = t;
	return 0;
}

static int reserve_ids(struct trace_reader *r, uint32_t n)
{
	uint32_t capacity = r->ids_capacity ? r->ids_capacity : 256;
	uint64_t *ids, *seen;

	while (capacity < n)
		capacity *= 2;
	if (capacity == r->ids_capacity)
		return 0;
	ids = realloc(r->ids, capacity * sizeof(*ids));
	if (ids)
		r->ids = ids;
	seen = realloc(r->seen, 2 * (size_t)capacity * sizeof(*seen));
	if (seen)
		r->seen = seen;
	if (!ids || !seen)
		return fail(r, -ENOMEM, "out of memory");
	r->ids_capacity = capacity;
	return 0;
}

/* Equal ids mean equal prefixes, so an id cannot occur twice in one prompt. */
static int check_distinct(struct trace_reader *r, uint32_t n)
{
	uint64_t mask = 4;

	while (mask < 2 * (uint64_t)n)
		mask *= 2;
	memset(r->seen, 0xff, mask * sizeof(*r->seen));
	mask--;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t at = (r->ids[i] * 0x9e3779b97f4a7c15u >> 20) & mask;

		while (r->seen[at] != UINT64_MAX && r->seen[at] != r->ids[i])
			at = (at + 1) & mask;
		if (r->seen[at] == r->ids[i])
			return fail(r, -EINVAL, "hash_ids[%u]: %" PRIu64 " is in this prompt twice", i, r->ids[i]);
		r->seen[at] = r->ids[i];
	}
	return 0;
}

static int get_ids(struct trace_reader *r, const json_t *o, uint64_t input_length, uint32_t *out)
{
	const json_t *list = json_object_get(o, "hash_ids");
	uint64_t expect = (input_length + r->block_tokens - 1) / r->block_tokens;
	char text[48];
	uint32_t n;
	int rc;

	if (!list)
		return fail(r, -EINVAL, "no hash_ids");
	if (!json_is_array(list))
		return fail(r, -EINVAL, "hash_ids must be an array, not %s", shown(list, text, sizeof(text)));
	if (json_array_size(list) != expect)
		return fail(r, -EINVAL, "%zu hash_ids, but input_length %" PRIu64 " makes %" PRIu64 " block%s of %u tokens (--block-tokens N for others)",
			    json_array_size(list), input_length, expect, expect == 1 ? "" : "s", r->block_tokens);
	n = (uint32_t)expect;
	rc = reserve_ids(r, n);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(list, i);

		if (!json_is_integer(v) || json_integer_value(v) < 0)
			return fail(r, -EINVAL, "hash_ids[%u] must be a whole number >= 0, not %s", i, shown(v, text, sizeof(text)));
		r->ids[i] = (uint64_t)json_integer_value(v);
	}
	*out = n;
	return check_distinct(r, n);
}

static int parse_object(struct trace_reader *r, const json_t *o, struct trace_request *req)
{
	const json_t *input = json_object_get(o, "input_length");
	bool first = !r->block_tokens;
	int rc;

	if (!json_is_object(o))
		return fail(r, -EINVAL, "not a JSON object");
	if (!input)
		return fail(r, -EINVAL, "no input_length");
	req->output_length = 0;
	rc = get_block_tokens(r, o);
	if (!rc)
		rc = get_timestamp(r, o, first, &req->timestamp_ms);
	if (!rc)
		rc = get_whole(r, input, "input_length", 1, TRACE_TOKENS_MAX, &req->input_length);
	if (!rc)
		rc = get_whole(r, json_object_get(o, "output_length"), "output_length", 0, TRACE_TOKENS_MAX, &req->output_length);
	if (!rc)
		rc = get_ids(r, o, req->input_length, &req->n);
	if (rc)
		return rc;
	req->ids = r->ids;
	req->line = r->line;
	if (req->timestamp_ms < r->last_ms && !r->backwards++)
		r->backwards_line = r->line;
	r->last_ms = req->timestamp_ms;
	return 1;
}

int trace_next(struct trace_reader *r, struct trace_request *req)
{
	json_error_t e;
	json_t *o;
	size_t len;
	uint64_t line;
	int rc = read_line(r, &len);

	if (rc <= 0)
		return rc;
	if (r->line == 1 && len >= 3 && !memcmp(r->text, "\xef\xbb\xbf", 3))
		return fail(r, -EINVAL, "begins with a byte order mark (EF BB BF), which JSON does not have: remove these 3 bytes");
	if (blank(r->text, len)) { /* allowed at the end of the file only */
		line = r->line;
		while ((rc = read_line(r, &len)) > 0)
			if (!blank(r->text, len)) {
				r->line = line;
				return fail(r, -EINVAL, "empty line");
			}
		return rc;
	}
	if (memchr(r->text, 0, len)) /* jansson would skip null bytes */
		return fail(r, -EINVAL, "not valid JSON: a NUL byte");
	o = json_loadb(r->text, len, JSON_REJECT_DUPLICATES, &e);
	if (!o)
		return fail(r, -EINVAL, "not valid JSON at column %d: %.120s", e.column, e.text);
	rc = parse_object(r, o, req);
	json_decref(o);
	return rc;
}

/* ---- whole traces ------------------------------------------------------------------------------ */

/* *p gets space for n elements, or stays as it is. */
static bool grow(void *p, size_t n, size_t each)
{
	void *old, *grown;

	memcpy(&old, p, sizeof(old));
	grown = reallocarray(old, n, each);
	if (grown)
		memcpy(p, &grown, sizeof(grown));
	return grown;
}

static int reserve(struct trace *t, uint32_t n)
{
	if (t->requests == t->requests_capacity) {
		size_t capacity = t->requests_capacity ? t->requests_capacity * 2 : 1024;

		if (!grow(&t->length, capacity, sizeof(*t->length)) || !grow(&t->first, capacity, sizeof(*t->first)) ||
		    !grow(&t->arrival_ms, capacity, sizeof(*t->arrival_ms)) ||
		    !grow(&t->input_tokens, capacity, sizeof(*t->input_tokens)) ||
		    !grow(&t->output_tokens, capacity, sizeof(*t->output_tokens)))
			return -ENOMEM;
		t->requests_capacity = capacity;
	}
	if (t->blocks + n > t->ids_capacity) {
		uint64_t capacity = t->ids_capacity ? t->ids_capacity : 16384;

		while (capacity < t->blocks + n)
			capacity *= 2;
		if (!grow(&t->ids, capacity, sizeof(*t->ids)))
			return -ENOMEM;
		t->ids_capacity = capacity;
	}
	return 0;
}

int trace_append(struct trace *t, const struct trace_request *req)
{
	size_t i = t->requests;

	if (reserve(t, req->n))
		return -ENOMEM;
	t->length[i] = req->n;
	t->first[i] = t->blocks;
	t->arrival_ms[i] = req->timestamp_ms;
	t->input_tokens[i] = req->input_length;
	t->output_tokens[i] = (uint32_t)req->output_length;
	memcpy(t->ids + t->blocks, req->ids, req->n * sizeof(*req->ids));
	t->blocks += req->n;
	if (req->n > t->longest)
		t->longest = req->n;
	t->requests++;
	return 0;
}

static int compare_ids(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

int trace_distinct(const struct trace *t, uint64_t blocks, uint64_t *distinct)
{
	uint64_t *sorted = blocks ? reallocarray(NULL, blocks, sizeof(*sorted)) : NULL;

	*distinct = 0;
	if (!sorted)
		return blocks ? -ENOMEM : 0;
	memcpy(sorted, t->ids, blocks * sizeof(*sorted));
	qsort(sorted, blocks, sizeof(*sorted), compare_ids);
	for (uint64_t i = 0; i < blocks; i++)
		*distinct += !i || sorted[i] != sorted[i - 1];
	free(sorted);
	return 0;
}

int trace_finish(struct trace *t)
{
	return trace_distinct(t, t->blocks, &t->distinct);
}

int trace_load(struct trace *t, const char *name, const struct trace_format *format, uint64_t limit, char *error, size_t error_bytes)
{
	struct trace_reader r;
	struct trace_request req;
	int rc = trace_open(&r, name, format, NULL);

	memset(t, 0, sizeof(*t));
	while (!rc && (!limit || t->requests < limit)) {
		rc = trace_next(&r, &req);
		if (rc <= 0)
			break;
		rc = trace_append(t, &req);
		if (rc)
			fail(&r, rc, "out of memory");
	}
	t->backwards = r.backwards;
	t->backwards_line = r.backwards_line;
	t->block_tokens = r.block_tokens;
	t->timed = r.timed;
	if (!rc && !t->requests) {
		r.line = 0;
		rc = fail(&r, -EINVAL, "holds no request");
	}
	if (!rc && trace_finish(t))
		rc = fail(&r, -ENOMEM, "out of memory");
	snprintf(error, error_bytes, "%s", r.error);
	trace_close(&r);
	if (rc)
		trace_free(t);
	return rc;
}

void trace_free(struct trace *t)
{
	free(t->length);
	free(t->first);
	free(t->arrival_ms);
	free(t->input_tokens);
	free(t->output_tokens);
	free(t->ids);
	memset(t, 0, sizeof(*t));
}
