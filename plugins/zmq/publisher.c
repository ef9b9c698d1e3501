/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The publishing end: a PUB socket for batches, and a ROUTER socket for questions.
 *
 * A question names the first batch that is wanted, or asks for a snapshot. The client gets what is kept, some messages in each turn, and then the
 * end. A client that does not read is forgotten after CLIENT_NS. Nothing here waits for a client: the sockets' queues are bounded, PUB drops what
 * a slow follower has no place for, and ROUTER says so (ZMQ_ROUTER_MANDATORY).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <zmq.h>

#include "form.h"
#include "zmq_bus.h"

#define CLIENTS 32u
#define CLIENT_NS UINT64_C(30000000000)
#define QUESTION_BYTES_MAX 512 /* of a frame of a question, or of a subscription */
#define QUEUED_BYTES_MAX (UINT64_C(64) << 20) /* of snapshots, for all clients together */
#define TURN_MESSAGES 256 /* of old batches, for a client */

enum asks { NOBODY, OLD_BATCHES, SNAPSHOT };

struct client {
	enum asks asks;
	unsigned char identity[256];
	size_t identity_bytes;
	uint64_t next;	/* of OLD_BATCHES: sequence that is sent next */
	uint64_t life;	/* tells this client from the one that had the place before */
	uint64_t taken_ns; /* when it took a message last */
};

struct kept {
	uint64_t sequence;
	zmq_msg_t payload;
};

struct publisher {
	struct zmq_bus_options o;
	void *context, *pub, *router;
	struct kept *kept; /* a ring of o.buffer */
	uint64_t first, nkept, kept_bytes;
	struct client client[CLIENTS];
	uint64_t lives;
	uint64_t queued; /* shared: bytes of parts of snapshots that no client has taken */
	msgpack_sbuffer bytes;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---- what is kept ------------------------------------------------------------------------------------------------- */

static struct kept *kept_at(const struct publisher *p, uint64_t i)
{
	return &p->kept[(p->first + i) % p->o.buffer];
}

static void drop_oldest(struct publisher *p)
{
	struct kept *k = kept_at(p, 0);

	p->kept_bytes -= zmq_msg_size(&k->payload);
	zmq_msg_close(&k->payload);
	p->first = (p->first + 1) % p->o.buffer;
	p->nkept--;
}

static void keep(struct publisher *p, uint64_t sequence, zmq_msg_t *payload)
{
	struct kept *k;

	while (p->nkept && (p->nkept == p->o.buffer || p->kept_bytes + zmq_msg_size(payload) > p->o.buffer_bytes))
		drop_oldest(p);
	if (p->o.buffer == 0 || zmq_msg_size(payload) > p->o.buffer_bytes)
		return;
	k = kept_at(p, p->nkept);
	k->sequence = sequence;
	zmq_msg_init(&k->payload);
	zmq_msg_copy(&k->payload, payload);
	p->kept_bytes += zmq_msg_size(payload);
	p->nkept++;
}

/* The oldest batch from a sequence on: sequences rise, and may have gaps. NULL: none. */
static struct kept *first_from(const struct publisher *p, uint64_t sequence)
{
	uint64_t low = 0, high = p->nkept;

	while (low < high) {
		uint64_t middle = (low + high) / 2;

		if (kept_at(p, middle)->sequence < sequence)
			low = middle + 1;
		else
			high = middle;
	}
	return low < p->nkept ? kept_at(p, low) : NULL;
}

/* ---- the beginning and the end -------------------------------------------------------------------------------------- */

static int bind_socket(struct publisher *p, int type, const char *endpoint, void **out)
{
	int linger = 0, hwm = (int)p->o.hwm, mandatory = 1;
	int64_t bytes = QUESTION_BYTES_MAX;

	*out = zmq_socket(p->context, type);
	if (!*out)
		return zmq_bus_fail(-errno, "zmq: no socket: %s", zmq_strerror(errno));
	zmq_setsockopt(*out, ZMQ_LINGER, &linger, sizeof(linger));
	zmq_setsockopt(*out, ZMQ_SNDHWM, &hwm, sizeof(hwm));
	zmq_setsockopt(*out, ZMQ_MAXMSGSIZE, &bytes, sizeof(bytes));
	if (type == ZMQ_ROUTER)
		zmq_setsockopt(*out, ZMQ_ROUTER_MANDATORY, &mandatory, sizeof(mandatory));
	if (zmq_bind(*out, endpoint))
		return zmq_bus_fail(-errno, "zmq: cannot bind %s: %s: give another address, or end who has it", endpoint, zmq_strerror(errno));
	return 0;
}

int publisher_create(const struct tn_xfer_param *params, uint32_t n, void **out)
{
	struct publisher *p = calloc(1, sizeof(*p));
	int rc = p ? zmq_bus_options(&p->o, params, n) : zmq_bus_fail(-ENOMEM, "zmq: no memory");

	if (rc) {
		free(p);
		return rc;
	}
	msgpack_sbuffer_init(&p->bytes);
	p->context = zmq_ctx_new();
	p->kept = calloc(p->o.buffer ? p->o.buffer : 1, sizeof(*p->kept));
	rc = p->context && p->kept ? 0 : zmq_bus_fail(-ENOMEM, "zmq: no memory for %llu batches", (unsigned long long)p->o.buffer);
	if (rc == 0)
		rc = bind_socket(p, ZMQ_PUB, p->o.endpoint, &p->pub);
	if (rc == 0 && p->o.replay[0])
		rc = bind_socket(p, ZMQ_ROUTER, p->o.replay, &p->router);
	if (rc) {
		publisher_destroy(p);
		return rc;
	}
	*out = p;
	return 0;
}

void publisher_destroy(void *publisher)
{
	struct publisher *p = publisher;

	while (p->kept && p->nkept)
		drop_oldest(p);
	if (p->pub)
		zmq_close(p->pub);
	if (p->router)
		zmq_close(p->router);
	if (p->context)
		zmq_ctx_term(p->context);
	msgpack_sbuffer_destroy(&p->bytes);
	free(p->kept);
	free(p);
}

/* ---- batches --------------------------------------------------------------------------------------------------------- */

static int payload_of(struct publisher *p, double seconds, const struct tn_bus_event *events, uint32_t n, zmq_msg_t *out)
{
	msgpack_sbuffer_clear(&p->bytes);
	if (form_write(&p->bytes, seconds, events, n, p->o.rank) || zmq_msg_init_size(out, p->bytes.size))
		return zmq_bus_fail(-ENOMEM, "zmq: no memory for a batch of %u events", n);
	memcpy(zmq_msg_data(out), p->bytes.data, p->bytes.size);
	return 0;
}

/* A part of a snapshot, which is counted until the last queue has let it go. */
struct part {
	uint64_t *queued;
	size_t size;
	unsigned char bytes[];
};

static void release_part(void *bytes, void *hint)
{
	struct part *part = hint;

	__atomic_sub_fetch(part->queued, part->size, __ATOMIC_RELAXED);
	free(part);
}

static int part_of(struct publisher *p, const struct tn_bus_event *events, uint32_t n, zmq_msg_t *out)
{
	struct part *part;

	msgpack_sbuffer_clear(&p->bytes);
	part = form_write(&p->bytes, 0, events, n, p->o.rank) ? NULL : malloc(sizeof(*part) + p->bytes.size);
	if (!part)
		return zmq_bus_fail(-ENOMEM, "zmq: no memory for a part of %u events", n);
	part->queued = &p->queued;
	part->size = p->bytes.size;
	memcpy(part->bytes, p->bytes.data, part->size);
	if (zmq_msg_init_data(out, part->bytes, part->size, release_part, part)) {
		free(part);
		return zmq_bus_fail(-ENOMEM, "zmq: no memory for a part of %u events", n);
	}
	__atomic_add_fetch(&p->queued, part->size, __ATOMIC_RELAXED);
	return 0;
}

long publisher_publish(void *publisher, uint64_t sequence, double seconds, const struct tn_bus_event *events, uint32_t n)
{
	struct publisher *p = publisher;
	unsigned char number[8];
	zmq_msg_t payload;
	long bytes;
	int rc = payload_of(p, seconds, events, n, &payload);

	if (rc)
		return rc;
	bytes = (long)(zmq_msg_size(&payload) + sizeof(number) + strlen(p->o.topic));
	keep(p, sequence, &payload);
	zmq_bus_put(number, sequence);
	zmq_send(p->pub, p->o.topic, strlen(p->o.topic), ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_send(p->pub, number, sizeof(number), ZMQ_SNDMORE | ZMQ_DONTWAIT);
	if (zmq_msg_send(&payload, p->pub, ZMQ_DONTWAIT) < 0)
		zmq_msg_close(&payload);
	return bytes;
}

/* ---- questions --------------------------------------------------------------------------------------------------------- */

/* An answer's frames: the client, an empty one, topic, sequence, payload. 0, or -errno: nothing was sent. */
static int send_answer(struct publisher *p, const struct client *c, const char *topic, uint64_t sequence, zmq_msg_t *payload)
{
	unsigned char number[8];
	zmq_msg_t copy;

	if (zmq_send(p->router, c->identity, c->identity_bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
		return -errno;
	zmq_bus_put(number, sequence);
	zmq_send(p->router, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_send(p->router, topic, strlen(topic), ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_send(p->router, number, sizeof(number), ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_msg_init(&copy);
	if (payload)
		zmq_msg_copy(&copy, payload);
	if (zmq_msg_send(&copy, p->router, ZMQ_DONTWAIT) < 0)
		zmq_msg_close(&copy);
	return 0;
}

static int send_end(struct publisher *p, const struct client *c)
{
	return send_answer(p, c, "", ZMQ_BUS_END, NULL);
}

/* Who is not told asks again after a while, all the same. */
static void refuse(struct publisher *p, const struct client *c)
{
	zmq_msg_t text;

	if (zmq_msg_init_size(&text, strlen(ZMQ_BUS_BUSY)))
		return;
	memcpy(zmq_msg_data(&text), ZMQ_BUS_BUSY, strlen(ZMQ_BUS_BUSY));
	send_answer(p, c, "", ZMQ_BUS_END, &text);
	zmq_msg_close(&text);
}

/* The place of a client that asks; a new question of the same client takes the place of its old one. NULL: too many ask. */
static struct client *place_for(struct publisher *p, const unsigned char *identity, size_t bytes)
{
	struct client *unused = NULL;

	for (struct client *c = p->client; c < p->client + CLIENTS; c++) {
		if (c->asks && c->identity_bytes == bytes && memcmp(c->identity, identity, bytes) == 0)
			return c;
		if (!c->asks)
			unused = c;
	}
	return unused;
}

/* 1 and *life: it asks for a snapshot. */
static int take_question(struct publisher *p, const unsigned char *identity, size_t identity_bytes, const unsigned char question[8], uint64_t *life)
{
	struct client *c = place_for(p, identity, identity_bytes), refused = {.identity_bytes = identity_bytes};

	if (!c) {
		memcpy(refused.identity, identity, identity_bytes);
		refuse(p, &refused);
		return 0;
	}
	memcpy(c->identity, identity, identity_bytes);
	c->identity_bytes = identity_bytes;
	c->life = ++p->lives * CLIENTS + (uint64_t)(c - p->client);
	c->taken_ns = now_ns();
	c->asks = memcmp(question, ZMQ_BUS_SNAPSHOT, 8) == 0 ? SNAPSHOT : OLD_BATCHES;
	c->next = zmq_bus_get(question);
	*life = c->life;
	return c->asks == SNAPSHOT;
}

/* Reads one question: 1 and *life, 0, or -EAGAIN: there is none. One with another form is dropped. */
static int read_question(struct publisher *p, uint64_t *life)
{
	unsigned char identity[256], last[8];
	size_t identity_bytes = 0;
	int frames = 0, more = 1, bytes = 0;
	size_t size = sizeof(more);

	while (more) {
		unsigned char *to = frames == 0 ? identity : last;

		bytes = zmq_recv(p->router, to, frames == 0 ? sizeof(identity) : sizeof(last), ZMQ_DONTWAIT);
		if (bytes < 0)
			return -EAGAIN;
		if (frames++ == 0)
			identity_bytes = (size_t)bytes;
		zmq_getsockopt(p->router, ZMQ_RCVMORE, &more, &size);
	}
	if (frames < 2 || frames > 3 || bytes != 8 || identity_bytes > sizeof(identity))
		return 0;
	return take_question(p, identity, identity_bytes, last, life);
}

static void send_old(struct publisher *p, struct client *c)
{
	for (int i = 0; i < TURN_MESSAGES; i++) {
		struct kept *k = first_from(p, c->next);
		int rc = k ? send_answer(p, c, p->o.topic, k->sequence, &k->payload) : send_end(p, c);

		if (rc == -EAGAIN && now_ns() - c->taken_ns < CLIENT_NS)
			return;
		if (rc || !k) {
			c->asks = NOBODY;
			return;
		}
		c->taken_ns = now_ns();
		c->next = k->sequence + 1;
	}
}

/* Whether somebody still waits for old batches. */
static bool send_all_old(struct publisher *p)
{
	bool waits = false;

	for (struct client *c = p->client; c < p->client + CLIENTS; c++) {
		if (c->asks == OLD_BATCHES)
			send_old(p, c);
		waits |= c->asks == OLD_BATCHES;
	}
	return waits;
}

int publisher_serve(void *publisher, int timeout_ms, uint64_t *client)
{
	struct publisher *p = publisher;
	zmq_pollitem_t item = {.socket = p->router, .events = ZMQ_POLLIN};
	int rc = 0;

	if (!p->router) {
		zmq_poll(NULL, 0, timeout_ms);
		return 0;
	}
	zmq_poll(&item, 1, send_all_old(p) && timeout_ms > 1 ? 1 : timeout_ms);
	while (rc == 0)
		rc = read_question(p, client);
	send_all_old(p);
	return rc > 0;
}

int publisher_answer(void *publisher, uint64_t client, uint64_t sequence, const struct tn_bus_event *events, uint32_t n, bool last)
{
	struct publisher *p = publisher;
	struct client *c = &p->client[client % CLIENTS];
	zmq_msg_t payload;
	int rc;

	if (c->asks != SNAPSHOT || c->life != client)
		return -ENOENT;
	if (!events) {
		refuse(p, c);
		c->asks = NOBODY;
		return 0;
	}
	rc = -EAGAIN;
	if (__atomic_load_n(&p->queued, __ATOMIC_RELAXED) < QUEUED_BYTES_MAX) {
		rc = part_of(p, events, n, &payload);
		if (rc) {
			c->asks = NOBODY;
			return rc;
		}
		rc = send_answer(p, c, p->o.topic, sequence, &payload);
		zmq_msg_close(&payload);
	}
	if (rc == -EAGAIN && now_ns() - c->taken_ns < CLIENT_NS)
		return rc;
	c->taken_ns = now_ns();
	if (rc) {
		c->asks = NOBODY;
		return -ENOENT;
	}
	if (last) { /* the end goes like that of old batches, none of which is left */
		c->asks = OLD_BATCHES;
		c->next = UINT64_MAX;
	}
	return 0;
}
