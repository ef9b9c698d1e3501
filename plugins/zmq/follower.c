/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The following end: a SUB socket for batches, and a DEALER socket for questions.
 *
 * Each question has a DEALER socket of its own, so that no answer to an earlier one comes after it. When the publisher goes, the SUB socket goes,
 * too: what it had queued is of a life of the publisher that is over. A monitor of the SUB socket says when the publisher comes and goes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zmq.h>

#include "form.h"
#include "zmq_bus.h"

#define MESSAGE_BYTES_MAX (INT64_C(64) << 20)
#define ALIVE_S 5 /* between two questions of TCP whether the other end is there */
#define ALIVE_MISSES 3
#define RECONNECT_MS 100
#define RECONNECT_MAX_MS 1000

struct follower {
	struct zmq_bus_options o;
	void *context, *sub, *monitor, *dealer;
	struct form_events events;
	uint64_t sockets; /* names the monitor's addresses */
};

static void *open_socket(struct follower *f, int type)
{
	int linger = 0, hwm = (int)f->o.hwm, first = RECONNECT_MS, max = RECONNECT_MAX_MS;
	int on = 1, every = ALIVE_S, misses = ALIVE_MISSES;
	int64_t bytes = MESSAGE_BYTES_MAX;
	void *socket = zmq_socket(f->context, type);

	if (!socket)
		return NULL;
	zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof(linger));
	zmq_setsockopt(socket, ZMQ_RCVHWM, &hwm, sizeof(hwm));
	zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &bytes, sizeof(bytes));
	/* A SUB socket sends nothing, and would wait for a lost host for ever. ZMTP's heartbeats abort in libzmq 4.3.4 if the reader is slow. */
	zmq_setsockopt(socket, ZMQ_TCP_KEEPALIVE, &on, sizeof(on));
	zmq_setsockopt(socket, ZMQ_TCP_KEEPALIVE_IDLE, &every, sizeof(every));
	zmq_setsockopt(socket, ZMQ_TCP_KEEPALIVE_INTVL, &every, sizeof(every));
	zmq_setsockopt(socket, ZMQ_TCP_KEEPALIVE_CNT, &misses, sizeof(misses));
	zmq_setsockopt(socket, ZMQ_RECONNECT_IVL, &first, sizeof(first));
	zmq_setsockopt(socket, ZMQ_RECONNECT_IVL_MAX, &max, sizeof(max));
	return socket;
}

static void close_socket(void **socket)
{
	if (*socket)
		zmq_close(*socket);
	*socket = NULL;
}

static int open_sub(struct follower *f)
{
	char address[64];
	int linger = 0;

	f->sub = open_socket(f, ZMQ_SUB);
	f->monitor = f->sub ? zmq_socket(f->context, ZMQ_PAIR) : NULL;
	if (!f->monitor)
		return zmq_bus_fail(-errno, "zmq: no socket: %s", zmq_strerror(errno));
	zmq_setsockopt(f->monitor, ZMQ_LINGER, &linger, sizeof(linger));
	snprintf(address, sizeof(address), "inproc://monitor-%llu", (unsigned long long)f->sockets++);
	zmq_socket_monitor(f->sub, address, ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED);
	zmq_connect(f->monitor, address);
	zmq_setsockopt(f->sub, ZMQ_SUBSCRIBE, f->o.topic, strlen(f->o.topic));
	if (zmq_connect(f->sub, f->o.endpoint))
		return zmq_bus_fail(-errno, "zmq: cannot connect to %s: %s", f->o.endpoint, zmq_strerror(errno));
	return 0;
}

static void close_sub(struct follower *f)
{
	if (f->sub)
		zmq_socket_monitor(f->sub, NULL, 0);
	close_socket(&f->monitor);
	close_socket(&f->sub);
}

int follower_create(const struct tn_xfer_param *params, uint32_t n, void **out)
{
	struct follower *f = calloc(1, sizeof(*f));
	int rc = f ? zmq_bus_options(&f->o, params, n) : zmq_bus_fail(-ENOMEM, "zmq: no memory");

	if (rc == 0) {
		f->context = zmq_ctx_new();
		rc = f->context ? open_sub(f) : zmq_bus_fail(-ENOMEM, "zmq: no memory");
	}
	if (rc) {
		follower_destroy(f);
		return rc;
	}
	*out = f;
	return 0;
}

void follower_destroy(void *follower)
{
	struct follower *f = follower;

	if (!f)
		return;
	close_sub(f);
	close_socket(&f->dealer);
	if (f->context)
		zmq_ctx_term(f->context);
	form_free(&f->events);
	free(f);
}

int follower_ask(void *follower, uint64_t sequence)
{
	struct follower *f = follower;
	unsigned char question[8];

	if (!f->o.replay[0])
		return -ENOTSUP;
	close_socket(&f->dealer);
	f->dealer = open_socket(f, ZMQ_DEALER);
	if (!f->dealer || zmq_connect(f->dealer, f->o.replay))
		return zmq_bus_fail(-EAGAIN, "zmq: cannot connect to %s: %s", f->o.replay, zmq_strerror(errno));
	if (sequence == TN_BUS_SNAPSHOT)
		memcpy(question, ZMQ_BUS_SNAPSHOT, sizeof(question));
	else
		zmq_bus_put(question, sequence);
	zmq_send(f->dealer, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_send(f->dealer, question, sizeof(question), ZMQ_DONTWAIT);
	return 0;
}

/* The last two frames of a message are its sequence and its payload, whatever lies before. -EAGAIN: there is none. payload: initialised. */
static int read_frames(void *socket, unsigned char sequence[8], zmq_msg_t *payload)
{
	int more = 1, frames = 0;
	size_t before = 0;

	for (; more; frames++) {
		zmq_msg_t next;

		before = zmq_msg_size(payload);
		if (before == 8)
			memcpy(sequence, zmq_msg_data(payload), 8);
		zmq_msg_init(&next);
		if (zmq_msg_recv(&next, socket, ZMQ_DONTWAIT) < 0) {
			zmq_msg_close(&next);
			return -EAGAIN;
		}
		more = zmq_msg_more(&next);
		zmq_msg_move(payload, &next);
		zmq_msg_close(&next);
	}
	return frames >= 2 && before == 8 ? 0 : zmq_bus_fail(-EBADMSG, "zmq: a message of %d frames is no batch", frames);
}

/* kind: of a batch. */
static int read_batch(struct follower *f, void *socket, uint32_t kind, struct tn_bus_message *out)
{
	unsigned char sequence[8];
	zmq_msg_t payload;
	int rc;

	zmq_msg_init(&payload);
	rc = read_frames(socket, sequence, &payload);
	if (rc == 0) {
		*out = (struct tn_bus_message){.kind = kind, .sequence = zmq_bus_get(sequence)};
		if (kind == TN_BUS_ANSWER && out->sequence == ZMQ_BUS_END) {
			out->kind = zmq_msg_size(&payload) ? TN_BUS_BUSY : TN_BUS_END;
		} else {
			rc = form_read(zmq_msg_data(&payload), zmq_msg_size(&payload), &f->events);
			out->events = f->events.event;
			out->n = f->events.n;
		}
	}
	zmq_msg_close(&payload);
	return rc == -ENOMEM ? zmq_bus_fail(-EBADMSG, "zmq: a batch of more events than memory takes") : rc;
}

/* What the monitor says: the number of the event, 16 bits in the machine's order, then a frame with the address. */
static int read_monitor(struct follower *f, struct tn_bus_message *out)
{
	unsigned char text[ZMQ_BUS_TEXT];
	uint16_t event = 0;
	int more = 1;
	size_t size = sizeof(more);

	if (zmq_recv(f->monitor, text, sizeof(text), ZMQ_DONTWAIT) < 2)
		return 0;
	memcpy(&event, text, sizeof(event));
	zmq_getsockopt(f->monitor, ZMQ_RCVMORE, &more, &size);
	if (more)
		zmq_recv(f->monitor, text, sizeof(text), ZMQ_DONTWAIT);
	if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
		out->kind = TN_BUS_CONNECTED;
		return 0;
	}
	out->kind = TN_BUS_LOST;
	close_sub(f);
	close_socket(&f->dealer);
	return open_sub(f);
}

int follower_receive(void *follower, bool answers, int timeout_ms, struct tn_bus_message *out)
{
	struct follower *f = follower;
	zmq_pollitem_t item[3] = {{.socket = f->monitor, .events = ZMQ_POLLIN}};
	int n = 1, sub = 0, dealer = 0, rc = 0;

	*out = (struct tn_bus_message){.kind = TN_BUS_NOTHING};
	if (!f->sub)
		return open_sub(f);
	if (f->dealer)
		item[dealer = n++] = (zmq_pollitem_t){.socket = f->dealer, .events = ZMQ_POLLIN};
	if (!answers)
		item[sub = n++] = (zmq_pollitem_t){.socket = f->sub, .events = ZMQ_POLLIN};
	if (zmq_poll(item, n, timeout_ms) <= 0)
		return 0;
	if (item[0].revents)
		rc = read_monitor(f, out);
	else if (dealer && item[dealer].revents)
		rc = read_batch(f, f->dealer, TN_BUS_ANSWER, out);
	else if (sub && item[sub].revents)
		rc = read_batch(f, f->sub, TN_BUS_LIVE, out);
	return rc == -EAGAIN ? 0 : rc;
}
