/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target of what a transfer agent reads from others: metadata, lists of runs, and the messages of a connection, before and after the handshake. The first byte
 * says which. What an agent reads from one that it has connected to is fuzz_xfer_answer.c's.
 *
 * Whatever the bytes, they are refused, or taken; an agent that has read them goes on. The checksums of metadata and lists are made right, so that what lies behind is met.
 */
#include <assert.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <tenuto/xfer.h>

#include "base/clock.h"
#include "base/hash.h"
#include "xfer/link.h"

#define FRAME_BYTES 24u /* magic, version, bytes, checksum (src/xfer/metadata.c) */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char secret[] = "a secret of the fuzz";
static struct tn_xfer_agent *agent, *known; /* known: with the secret, so that this program has its key; agents with a secret load signed metadata alone */

static void start(void)
{
	static const char address[] = "unix:@tn-xfer-fuzz-%d";
	struct tn_xfer_agent_opts opts;
	char own[64];

	if (agent)
		return;
	snprintf(own, sizeof(own), address, (int)getpid());
	tn_xfer_agent_opts_init(&opts);
	opts.name = "fuzz";
	opts.listen = own;
	assert(tn_xfer_agent_create(&opts, &agent) == 0);
	snprintf(own, sizeof(own), "unix:@tn-xfer-fuzz-known-%d", (int)getpid());
	opts.secret = secret;
	opts.secret_bytes = strlen(secret);
	assert(tn_xfer_agent_create(&opts, &known) == 0);
}

static void set_frame(uint8_t *bytes, size_t size)
{
	uint64_t n = size, sum;

	if (size < FRAME_BYTES)
		return;
	sum = tn_hash64(bytes + FRAME_BYTES, size - FRAME_BYTES);
	memcpy(bytes + 8, &n, sizeof(n));
	memcpy(bytes + 16, &sum, sizeof(sum));
}

static void load(const uint8_t *bytes, size_t size)
{
	char name[TN_XFER_NAME_BYTES];

	if (tn_xfer_load(agent, bytes, size, name) == 0)
		assert(tn_xfer_invalidate(agent, name) == 0);
}

static void unpack(const uint8_t *bytes, size_t size)
{
	struct tn_xfer_run runs[8];
	enum tn_xfer_segment segment;
	struct tn_xfer_list *list;
	int64_t n = tn_xfer_runs_unpack(bytes, size, &segment, runs, 8);

	/* No section is registered: none of the runs is found, whatever they are. */
	if (n > 0)
		assert(tn_xfer_list_create(agent, NULL, segment, runs, (uint32_t)(n < 8 ? n : 8), &list) < 0);
}

/* The bytes of somebody who has connected; the agent answers, or closes. */
static void talk(const uint8_t *bytes, size_t size)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	int n = snprintf(un.sun_path + 1, sizeof(un.sun_path) - 1, "tn-xfer-fuzz-%d", (int)getpid());
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct pollfd p = {.fd = fd, .events = POLLIN};
	uint8_t answer[4096];

	assert(fd >= 0 && connect(fd, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0);
	if (send(fd, bytes, size, MSG_NOSIGNAL) > 0 && shutdown(fd, SHUT_WR) == 0)
		while (poll(&p, 1, 1000) == 1 && recv(fd, answer, sizeof(answer), 0) > 0)
			;
	close(fd);
}

/* The same of one who has proved the key. */
static void talk_proved(const uint8_t *bytes, size_t size)
{
	struct tn_xfer_shake s = {.key_bytes = strlen(secret), .name = {"talks"}, .generation = {5, 0}};
	struct tn_xfer_socket sock;
	struct pollfd p = {.events = POLLIN};
	uint64_t until = tn_now_ns(&tn_clock_system) + 5000000000u;
	char address[64];
	uint8_t answer[4096];

	snprintf(address, sizeof(address), "unix:@tn-xfer-fuzz-known-%d", (int)getpid());
	memcpy(s.key, secret, s.key_bytes);
	assert(tn_xfer_dial(address, until, &sock) == 0 && tn_xfer_shake_hands(sock.fd, &s, until) == 0);
	p.fd = sock.fd;
	if (send(p.fd, bytes, size, MSG_NOSIGNAL) > 0 && shutdown(p.fd, SHUT_WR) == 0)
		while (poll(&p, 1, 1000) == 1 && recv(p.fd, answer, sizeof(answer), 0) > 0)
			;
	tn_xfer_socket_close(&sock);
	while (tn_xfer_take(known, (char[TN_XFER_NAME_BYTES]){0}, answer, sizeof(answer)) >= 0)
		;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *exact; /* so that a byte read behind the end is seen */

	start();
	if (size < 1)
		return 0;
	exact = malloc(size);
	assert(exact);
	memcpy(exact, data + 1, size - 1);
	if (data[0] % 4 == 2) {
		talk(exact, size - 1);
	} else if (data[0] % 4 == 3) {
		talk_proved(exact, size - 1);
	} else {
		set_frame(exact, size - 1);
		if (data[0] % 4 == 0)
			load(exact, size - 1);
		else
			unpack(exact, size - 1);
	}
	free(exact);
	return 0;
}
