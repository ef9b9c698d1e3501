/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target of what a transfer agent reads from one that it has connected to: the answers to its handshake, and to its questions. The first byte says what is asked, and
 * how many messages are made right before the bytes come.
 *
 * Whatever the bytes, the call ends with an error or with metadata that was taken.
 */
#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <tenuto/xfer.h>

#include "xfer/codec.h"
#include "xfer/link.h"

#define DEADLINE_NS 2000000000ull

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char secret[] = "a secret of who answers";
static struct tn_xfer_agent *agent;
static int listener;
static char address[64];

/* What the answering side does with one connection. */
struct answer {
	const uint8_t *bytes;
	size_t size;
	unsigned right; /* messages that are right: 0, 1: the challenge, 2: the welcome, too */
};

static void start(void)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	struct tn_xfer_agent_opts opts;
	int n;

	if (agent)
		return;
	n = snprintf(un.sun_path + 1, sizeof(un.sun_path) - 1, "tn-xfer-answer-%d", (int)getpid());
	snprintf(address, sizeof(address), "unix:@tn-xfer-answer-%d", (int)getpid());
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert(listener >= 0 && bind(listener, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0);
	assert(listen(listener, 8) == 0);
	tn_xfer_agent_opts_init(&opts);
	opts.name = "asks";
	opts.listen = "none";
	opts.secret = secret;
	opts.secret_bytes = strlen(secret);
	assert(tn_xfer_agent_create(&opts, &agent) == 0);
}

static uint64_t until(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec + DEADLINE_NS;
}

/* A challenge as an agent makes it, for the hello that has come. False: the other side has gone. */
static bool challenge(int fd)
{
	struct tn_xfer_shake s = {.key_bytes = strlen(secret), .name = {"", "answers"}, .generation = {0, 7}};
	unsigned char in[512], body[512], mac[TN_XFER_MAC_BYTES];
	struct tn_xfer_writer w = {body, 0, sizeof(body)};
	struct tn_xfer_message head;
	struct tn_xfer_reader r;

	if (tn_xfer_receive(fd, &head, in, sizeof(in), until()))
		return false;
	r = (struct tn_xfer_reader){in, head.bytes, false};
	tn_xfer_read_u32(&r);
	memcpy(s.nonce[0], tn_xfer_read(&r, TN_XFER_NONCE_BYTES), TN_XFER_NONCE_BYTES);
	s.generation[0] = tn_xfer_read_u64(&r);
	tn_xfer_read_text(&r, s.name[0], sizeof(s.name[0]));
	memcpy(s.key, secret, s.key_bytes);
	assert(tn_xfer_shake_mac(&s, 1, mac) == 0);
	tn_xfer_write(&w, s.nonce[1], TN_XFER_NONCE_BYTES);
	tn_xfer_write_u64(&w, s.generation[1]);
	tn_xfer_write_block(&w, s.name[1], (uint32_t)strlen(s.name[1]));
	tn_xfer_write(&w, mac, sizeof(mac));
	return tn_xfer_send_all(fd, TN_XFER_CHALLENGE, body, (uint32_t)w.bytes, until()) == 0;
}

static bool welcome(int fd)
{
	unsigned char proof[512];
	struct tn_xfer_message head;
	uint64_t revision = 3;

	return tn_xfer_receive(fd, &head, proof, sizeof(proof), until()) == 0 &&
	       tn_xfer_send_all(fd, TN_XFER_WELCOME, &revision, sizeof(revision), until()) == 0;
}

static void *answer(void *arg)
{
	const struct answer *a = arg;
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct pollfd p = {.fd = fd, .events = POLLIN};
	char ignored[512];

	assert(fd >= 0);
	if ((a->right < 1 || challenge(fd)) && (a->right < 2 || welcome(fd)) && send(fd, a->bytes, a->size, MSG_NOSIGNAL) >= 0 && shutdown(fd, SHUT_WR) == 0)
		while (poll(&p, 1, 1000) == 1 && recv(fd, ignored, sizeof(ignored), 0) > 0)
			;
	close(fd);
	return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char name[TN_XFER_NAME_BYTES], text[256];
	struct answer a;
	pthread_t thread;
	uint8_t *exact; /* so that a byte read behind the end is seen */

	start();
	if (size < 1)
		return 0;
	exact = malloc(size);
	assert(exact);
	memcpy(exact, data + 1, size - 1);
	a = (struct answer){exact, size - 1, data[0] % 3u};
	assert(pthread_create(&thread, NULL, answer, &a) == 0);
	if (data[0] & 64)
		assert(tn_xfer_fetch_stats(agent, address, until(), text, sizeof(text)) != 0);
	else if (tn_xfer_fetch(agent, address, until(), name) == 0)
		assert(tn_xfer_invalidate(agent, name) == 0);
	pthread_join(thread, NULL);
	free(exact);
	return 0;
}
