/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Request traces (the format of the Mooncake FAST'25 release): one JSON object per line with timestamp, input_length, output_length (tokens)
 * and hash_ids, one id for each block of the prompt. docs/workload.md describes the fields. A file may be compressed by gzip.
 *
 * What is read never depends on a guess. The tokens of a block are those of the caller, else of the field block_size, else 512. Timestamps are in
 * the caller's unit, else in ms; numbers with a fraction have no unit by default. Either all requests have a timestamp or none has.
 *
 * trace_reader hands out request after request and refuses a line that is not well-formed, with file and
 * line in the message. struct trace holds a whole file, for callers that need later requests, too.
 */
#ifndef TENUTO_CLI_TRACE_H
#define TENUTO_CLI_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define TRACE_BLOCK_TOKENS 512u /* where nothing says otherwise */
#define TRACE_BLOCK_TOKENS_MAX (1u << 20)
#define TRACE_TOKENS_MAX (1u << 29) /* longest prompt accepted: a million blocks */

enum trace_unit {
	TRACE_UNIT_DEFAULT, /* ms, whole numbers only */
	TRACE_UNIT_MS,
	TRACE_UNIT_S,
};

/* How the caller says that a trace is to be read. All zero: by what the trace says. */
struct trace_format {
	uint32_t block_tokens; /* 0: as the trace says */
	enum trace_unit unit;
};

struct trace_request {
	double timestamp_ms; /* 0 in a trace without timestamps */
	uint64_t input_length;
	uint64_t output_length;
	const uint64_t *ids; /* valid until the next call */
	uint32_t n;
	uint64_t line;
};

struct trace_reader {
	FILE *file;
	const char *name;
	uint64_t line;
	uint64_t bytes; /* read so far */
	uint64_t backwards; /* requests that came before their predecessor */
	uint64_t backwards_line; /* the first of them */
	double last_ms;
	struct trace_format format;
	uint32_t block_tokens; /* of a block of this trace; 0 before the first request */
	bool timed;	       /* the first request has a timestamp */
	char *text;
	size_t text_capacity;
	uint64_t *ids;
	uint32_t ids_capacity;
	uint64_t *seen; /* open addressing: ids of this request, for the duplicate check */
	char error[320]; /* file:line: what is wrong */
};

/*
 * 0, or -errno with r->error set. format: NULL for all zero. @file may be an open stream of the caller, which is not decompressed (then @name is only for
 * messages), or NULL.
 */
int trace_open(struct trace_reader *r, const char *name, const struct trace_format *format, FILE *file);
/* 1: *req is the next request; 0: the end; -EINVAL, -EIO, -ENOMEM with r->error set. */
int trace_next(struct trace_reader *r, struct trace_request *req);
void trace_close(struct trace_reader *r);

/* A whole trace: the ids of all requests one behind the other. */
struct trace {
	size_t requests;
	uint32_t *length;   /* blocks of each request */
	uint64_t *first;    /* index into ids */
	double *arrival_ms;
	uint64_t *input_tokens;
	uint32_t *output_tokens;
	uint64_t *ids;
	uint64_t blocks;
	uint32_t longest; /* blocks of the longest request */
	uint64_t distinct;
	uint64_t backwards, backwards_line;
	uint32_t block_tokens;
	bool timed; /* false: no request has a timestamp, and all arrive at 0 */
	size_t requests_capacity;
	uint64_t ids_capacity;
};

/*
 * Reads up to limit requests (0: all). 0, or -errno with the message in error. A trace without a
 * request is an error.
 */
int trace_load(struct trace *t, const char *name, const struct trace_format *format, uint64_t limit, char *error, size_t error_bytes);
/* Appends a request; for generated workloads. 0 or -ENOMEM. trace_finish counts the distinct ids afterwards. */
int trace_append(struct trace *t, const struct trace_request *req);
int trace_finish(struct trace *t);
/* How many different ids the first `blocks` are. 0 or -ENOMEM. */
int trace_distinct(const struct trace *t, uint64_t blocks, uint64_t *distinct);
void trace_free(struct trace *t);

/* Whether the last block of request i is only partly filled. */
static inline bool trace_partial(const struct trace *t, size_t i)
{
	return t->input_tokens[i] % t->block_tokens != 0;
}

#endif
