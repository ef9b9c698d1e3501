/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Request traces (the format of the Mooncake FAST'25 release): one JSON object per line with timestamp (ms),
 * input_length, output_length (tokens) and hash_ids, one id for each 512 tokens of the prompt.
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

#define TRACE_BLOCK_TOKENS 512u
#define TRACE_TOKENS_MAX (1u << 29) /* longest prompt accepted: a million blocks */

struct trace_request {
	double timestamp_ms;
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
	char *text;
	size_t text_capacity;
	uint64_t *ids;
	uint32_t ids_capacity;
	uint64_t *seen; /* open addressing: ids of this request, for the duplicate check */
	char error[320]; /* file:line: what is wrong */
};

/* 0, or -errno with r->error set. @file may be an open stream of the caller (then @name is only for messages), or NULL. */
int trace_open(struct trace_reader *r, const char *name, FILE *file);
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
	size_t requests_capacity;
	uint64_t ids_capacity;
};

/*
 * Reads up to limit requests (0: all). 0, or -errno with the message in error. A trace without a
 * request is an error.
 */
int trace_load(struct trace *t, const char *name, uint64_t limit, char *error, size_t error_bytes);
/* Appends a request; for generated workloads. 0 or -ENOMEM. trace_finish counts the distinct ids afterwards. */
int trace_append(struct trace *t, const struct trace_request *req);
int trace_finish(struct trace *t);
/* How many different ids the first `blocks` are. 0 or -ENOMEM. */
int trace_distinct(const struct trace *t, uint64_t blocks, uint64_t *distinct);
void trace_free(struct trace *t);

/* Whether the last block of request i is only partly filled. */
static inline bool trace_partial(const struct trace *t, size_t i)
{
	return t->input_tokens[i] % TRACE_BLOCK_TOKENS != 0;
}

#endif
