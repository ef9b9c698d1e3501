/* SPDX-License-Identifier: Apache-2.0 */
/* The handshake against somebody who does not know the key: as the one who connects, and as the one who listens. */
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <tenuto/xfer.h>

#include "tn_test.h"
#include "xfer/codec.h"
#include "xfer/link.h"

static const char secret[] = "a secret of two agents";

static struct tn_xfer_agent *agent_new(const char *name, const char *listen)
{
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *a;

	tn_xfer_agent_opts_init(&opts);
	opts.name = name;
	opts.listen = listen;
	opts.secret = secret;
	opts.secret_bytes = sizeof(secret) - 1;
	assert_int_equal(tn_xfer_agent_create(&opts, &a), 0);
	return a;
}

static int dial(const char *address)
{
	struct tn_xfer_socket sock;
	int fd;

	assert_int_equal(tn_xfer_dial(address, tn_test_deadline(), &sock), 0);
	fd = dup(sock.fd);
	tn_xfer_socket_close(&sock);
	return fd;
}

static void send_hello(int fd, uint32_t version)
{
	unsigned char body[128] = {0};
	struct tn_xfer_writer w = {body, 0, sizeof(body)};

	tn_xfer_write_u32(&w, version);
	w.bytes += TN_XFER_NONCE_BYTES;
	tn_xfer_write_u64(&w, 1);
	tn_xfer_write_block(&w, "nobody", 6);
	assert_int_equal(tn_xfer_send_all(fd, TN_XFER_HELLO, body, (uint32_t)w.bytes, tn_test_deadline()), 0);
}

static uint32_t refusal(int fd)
{
	struct tn_xfer_message head;
	unsigned char body[1024];
	uint32_t code;

	assert_int_equal(tn_xfer_receive(fd, &head, body, sizeof(body), tn_test_deadline()), 0);
	assert_int_equal(head.type, TN_XFER_REFUSED);
	memcpy(&code, body, sizeof(code));
	/* Nothing more comes. */
	assert_int_equal(tn_xfer_receive(fd, &head, body, sizeof(body), tn_test_deadline()), -ECONNRESET);
	return code;
}

static void who_connects_without_the_key_is_refused(void **state)
{
	struct tn_xfer_agent *a = agent_new("a", "unix:@tn-xfer-handshake");
	unsigned char body[1024], mac[TN_XFER_MAC_BYTES] = {0};
	struct tn_xfer_message head;
	char sender[TN_XFER_NAME_BYTES];
	int fd;

	fd = dial("unix:@tn-xfer-handshake");
	send_hello(fd, TN_XFER_WIRE_VERSION);
	assert_int_equal(tn_xfer_receive(fd, &head, body, sizeof(body), tn_test_deadline()), 0);
	assert_int_equal(head.type, TN_XFER_CHALLENGE);
	assert_int_equal(tn_xfer_send_all(fd, TN_XFER_PROOF, mac, sizeof(mac), tn_test_deadline()), 0);
	assert_int_equal(refusal(fd), EACCES);
	close(fd);
	assert_int_equal(tn_xfer_take(a, sender, NULL, 0), -EAGAIN);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static void nothing_is_taken_before_the_proof(void **state)
{
	static const uint32_t early[] = {TN_XFER_NOTIFY, TN_XFER_FETCH, TN_XFER_PROOF, TN_XFER_REVOKED, TN_XFER_WELCOME, 99};
	struct tn_xfer_agent *a = agent_new("a", "unix:@tn-xfer-handshake");
	char sender[TN_XFER_NAME_BYTES], byte;

	for (unsigned i = 0; i < sizeof(early) / sizeof(early[0]); i++) {
		int fd;

		fd = dial("unix:@tn-xfer-handshake");
		assert_int_equal(tn_xfer_send_all(fd, early[i], "12345678", 8, tn_test_deadline()), 0);
		assert_int_equal(tn_xfer_receive_bytes(fd, &byte, 1, tn_test_deadline()), -ECONNRESET);
		close(fd);
	}
	assert_int_equal(tn_xfer_take(a, sender, NULL, 0), -EAGAIN);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

static void another_version_of_the_protocol_is_refused(void **state)
{
	struct tn_xfer_agent *a = agent_new("a", "unix:@tn-xfer-handshake");
	int fd;

	fd = dial("unix:@tn-xfer-handshake");
	send_hello(fd, TN_XFER_WIRE_VERSION + 1);
	assert_int_equal(refusal(fd), EPROTONOSUPPORT);
	close(fd);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

/* Listens, and answers with a MAC of zeros. */
static void *impostor(void *arg)
{
	int fd = accept(*(int *)arg, NULL, NULL);
	unsigned char body[1024] = {0}, hello[1024];
	struct tn_xfer_writer w = {body, TN_XFER_NONCE_BYTES, sizeof(body)};
	struct tn_xfer_message head;
	int *proved = arg;

	tn_xfer_write_u64(&w, 5);
	tn_xfer_write_block(&w, "a", 1);
	w.bytes += TN_XFER_MAC_BYTES;
	if (tn_xfer_receive(fd, &head, hello, sizeof(hello), tn_test_deadline()) ||
	    tn_xfer_send_all(fd, TN_XFER_CHALLENGE, body, (uint32_t)w.bytes, tn_test_deadline()))
		abort();
	*proved = tn_xfer_receive(fd, &head, hello, sizeof(hello), tn_test_deadline()) == 0;
	close(fd);
	return NULL;
}

static void who_listens_without_the_key_is_not_believed(void **state)
{
	struct tn_xfer_agent *b = agent_new("b", "none");
	struct sockaddr_un un = {.sun_family = AF_UNIX, .sun_path = "\0tn-xfer-impostor"};
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), state_of = listener;
	char name[TN_XFER_NAME_BYTES];
	pthread_t thread;

	assert_int_equal(bind(listener, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 17)), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(pthread_create(&thread, NULL, impostor, &state_of), 0);
	assert_int_equal(tn_xfer_fetch(b, "unix:@tn-xfer-impostor", tn_test_deadline(), name), -EACCES);
	pthread_join(thread, NULL);
	assert_int_equal(state_of, 0); /* it got no proof that it could show to others */
	close(listener);
	assert_int_equal(tn_xfer_agent_destroy(b), 0);
}

/* A message that is none makes the agent give up the connection; the transfers of who sent it may go on. */
static void a_connection_that_is_given_up_counts_until_the_other_side_closes_it(void **state)
{
	static unsigned char memory[4096];
	struct tn_xfer_section section = {.address = (uintptr_t)memory, .bytes = sizeof(memory)};
	struct tn_xfer_agent *a = agent_new("a", "unix:@tn-xfer-handshake");
	struct tn_xfer_shake s = {.key_bytes = sizeof(secret) - 1, .name = {"raw"}, .generation = {1, 0}};
	char byte;
	int fd;

	memcpy(s.key, secret, sizeof(secret) - 1);
	assert_int_equal(tn_xfer_register(a, TN_XFER_DRAM, &section, 1), 0);
	fd = dial("unix:@tn-xfer-handshake");
	assert_int_equal(tn_xfer_shake_hands(fd, &s, tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_send_all(fd, 99, "1", 1, tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_receive_bytes(fd, &byte, 1, tn_test_deadline()), -ECONNRESET);
	assert_int_equal(tn_xfer_deregister(a, TN_XFER_DRAM, &section, 1, tn_test_now() + TN_TEST_SECOND / 20), -EBUSY);
	close(fd);
	assert_int_equal(tn_xfer_deregister(a, TN_XFER_DRAM, &section, 1, tn_test_deadline()), 0);
	assert_int_equal(tn_xfer_agent_destroy(a), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_connects_without_the_key_is_refused),
		cmocka_unit_test(nothing_is_taken_before_the_proof),
		cmocka_unit_test(another_version_of_the_protocol_is_refused),
		cmocka_unit_test(a_connection_that_is_given_up_counts_until_the_other_side_closes_it),
		cmocka_unit_test(who_listens_without_the_key_is_not_believed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
