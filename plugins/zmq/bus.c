/* SPDX-License-Identifier: Apache-2.0 */
/* libtenuto_zmq.so: block events over ZMQ, in vLLM's wire form (docs/events.md). */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tenuto/plugin.h>

#include "zmq_bus.h"

static _Thread_local char detail[512];

int zmq_bus_fail(int rc, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(detail, sizeof(detail), fmt, ap);
	va_end(ap);
	return rc;
}

const char *zmq_bus_error(void)
{
	return detail;
}

void zmq_bus_put(unsigned char out[8], uint64_t value)
{
	for (int i = 0; i < 8; i++)
		out[i] = (unsigned char)(value >> (56 - 8 * i));
}

uint64_t zmq_bus_get(const unsigned char in[8])
{
	uint64_t value = 0;

	for (int i = 0; i < 8; i++)
		value = value << 8 | in[i];
	return value;
}

static int take_text(const struct tn_xfer_param *p, char out[ZMQ_BUS_TEXT])
{
	if (strlen(p->value) >= ZMQ_BUS_TEXT)
		return zmq_bus_fail(-EINVAL, "%s: %zu bytes, at most %d are taken", p->key, strlen(p->value), ZMQ_BUS_TEXT - 1);
	memcpy(out, p->value, strlen(p->value) + 1);
	return 0;
}

static int take_number(const struct tn_xfer_param *p, uint64_t max, uint64_t *out)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(p->value, &end, 10);
	if (errno || end == p->value || *end || *p->value == '-' || value > max)
		return zmq_bus_fail(-EINVAL, "%s=%.40s: give a number up to %llu", p->key, p->value, (unsigned long long)max);
	*out = value;
	return 0;
}

static int take(struct zmq_bus_options *o, const struct tn_xfer_param *p)
{
	uint64_t rank;
	int rc;

	if (strcmp(p->key, "endpoint") == 0)
		return take_text(p, o->endpoint);
	if (strcmp(p->key, "replay") == 0)
		return take_text(p, o->replay);
	if (strcmp(p->key, "topic") == 0)
		return take_text(p, o->topic);
	if (strcmp(p->key, "buffer") == 0)
		return take_number(p, 1u << 24, &o->buffer);
	if (strcmp(p->key, "buffer_bytes") == 0)
		return take_number(p, UINT64_C(1) << 36, &o->buffer_bytes);
	if (strcmp(p->key, "hwm") == 0)
		return take_number(p, 1u << 24, &o->hwm);
	if (strcmp(p->key, "rank") == 0) {
		rc = take_number(p, 1u << 20, &rank);
		o->rank = (int64_t)rank;
		return rc;
	}
	return zmq_bus_fail(-EINVAL, "zmq has no parameter '%.40s': endpoint, replay, topic, rank, buffer, buffer_bytes, hwm, names, tokens, bytes_per_second and interval_ms are known", p->key);
}

int zmq_bus_options(struct zmq_bus_options *o, const struct tn_xfer_param *params, uint32_t n)
{
	int rc = 0;

	*o = (struct zmq_bus_options){.rank = -1, .buffer = 10000, .buffer_bytes = 64u << 20, .hwm = 1000};
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = take(o, &params[i]);
	if (rc == 0 && !o->endpoint[0])
		rc = zmq_bus_fail(-EINVAL, "zmq: no endpoint: give endpoint=tcp://127.0.0.1:5557");
	return rc;
}

static const struct tn_event_bus_ops ops = {
	.size = sizeof(ops),
	.abi = TN_EVENT_BUS_ABI,
	.name = "zmq",
	.publisher_create = publisher_create,
	.publisher_destroy = publisher_destroy,
	.publish = publisher_publish,
	.serve = publisher_serve,
	.answer = publisher_answer,
	.follower_create = follower_create,
	.follower_destroy = follower_destroy,
	.ask = follower_ask,
	.receive = follower_receive,
	.error = zmq_bus_error,
};

const struct tn_plugin tn_plugin = {
	.size = sizeof(tn_plugin),
	.abi = TN_PLUGIN_ABI,
	.kind = TN_PLUGIN_EVENT_BUS,
	.name = "zmq",
	.built_for = TN_PLUGIN_BUILT_FOR,
	.table = &ops,
};
