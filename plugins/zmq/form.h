/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of block events as vLLM writes them in msgpack: an array of a time, the events, and a data-parallel rank where there is one. Newer
 * sources write a map with those names. Both are read; the array is written, which is what vLLM 0.32 reads.
 */
#ifndef TENUTO_ZMQ_FORM_H
#define TENUTO_ZMQ_FORM_H

#include <stdbool.h>

#include <msgpack.h>
#include <tenuto/event_bus.h>

/* A batch as bytes. rank below 0: none. 0; -ENOMEM. */
int form_write(msgpack_sbuffer *out, double seconds, const struct tn_bus_event *events, uint32_t n, int64_t rank);

/* Room for the events of a batch; grows up to EVENTS_MAX, and is freed with form_free. */
struct form_events {
	struct tn_bus_event *event;
	uint32_t n, max;
	uint32_t *token_ids;
	size_t ntokens, max_tokens;
};
#define FORM_EVENTS_MAX (1u << 20)

/* 0 and events; -EBADMSG: no batch; -ENOMEM. Events of an unknown type are left out. */
int form_read(const void *bytes, size_t size, struct form_events *out);
void form_free(struct form_events *events);

#endif
