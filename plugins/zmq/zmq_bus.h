/* SPDX-License-Identifier: Apache-2.0 */
/* What both ends of the ZMQ bus share: parameters, frames and errors. */
#ifndef TENUTO_ZMQ_BUS_H
#define TENUTO_ZMQ_BUS_H

#include <stdbool.h>

#include <tenuto/event_bus.h>

/* The question for a snapshot, in the place of a sequence: a publisher of vLLM takes it for a number that it has not reached. */
#define ZMQ_BUS_SNAPSHOT "snapshot"
/* The sequence behind the last answer: -1. */
#define ZMQ_BUS_END UINT64_MAX
/* What the last answer has in the place of a batch if too many ask. */
#define ZMQ_BUS_BUSY "busy"
#define ZMQ_BUS_TEXT 256

/* texts stay the caller's. 0 or -EINVAL with the parameter. */
struct zmq_bus_options {
	char endpoint[ZMQ_BUS_TEXT], replay[ZMQ_BUS_TEXT], topic[ZMQ_BUS_TEXT];
	int64_t rank;	/* below 0: none */
	uint64_t buffer; /* batches that are kept */
	uint64_t buffer_bytes;
	uint64_t hwm; /* batches that wait for one follower */
};
int zmq_bus_options(struct zmq_bus_options *o, const struct tn_xfer_param *params, uint32_t n);

/* rc, with the detail of this thread. */
int zmq_bus_fail(int rc, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *zmq_bus_error(void);

void zmq_bus_put(unsigned char out[8], uint64_t value);
uint64_t zmq_bus_get(const unsigned char in[8]);

/* publisher.c */
int publisher_create(const struct tn_xfer_param *params, uint32_t n, void **out);
void publisher_destroy(void *publisher);
long publisher_publish(void *publisher, uint64_t sequence, double seconds, const struct tn_bus_event *events, uint32_t n);
int publisher_serve(void *publisher, int timeout_ms, uint64_t *client);
int publisher_answer(void *publisher, uint64_t client, uint64_t sequence, const struct tn_bus_event *events, uint32_t n, bool last);

/* follower.c */
int follower_create(const struct tn_xfer_param *params, uint32_t n, void **out);
void follower_destroy(void *follower);
int follower_ask(void *follower, uint64_t sequence);
int follower_receive(void *follower, bool answers, int timeout_ms, struct tn_bus_message *out);

#endif
