/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A generated chat workload: multi-turn sessions with shared system prompts (docs/workload.md).
 *
 * The result is a trace like a recorded one: one seed, one trace.
 */
#ifndef TENUTO_CLI_WORKLOAD_H
#define TENUTO_CLI_WORKLOAD_H

#include <stdint.h>

#include "trace.h"

struct workload_opts {
	uint64_t seed;
	uint64_t requests; /* how many to generate */
	uint32_t systems;  /* different system prompts, Zipf-popular */
	uint32_t system_tokens; /* mean length of a system prompt */
	uint32_t turns;	   /* mean number of requests per session */
	uint32_t user_tokens, answer_tokens; /* medians of a request's message and answer */
	double session_s;  /* mean time between the beginnings of two sessions */
	double think_s;	   /* mean time between an answer and the next message */
};

void workload_opts_init(struct workload_opts *o);
/* 0 or -ENOMEM; release with trace_free. */
int workload_generate(const struct workload_opts *o, struct trace *t);

#endif
