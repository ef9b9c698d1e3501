/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An agent in a process of its own, for tests: a child that does one thing per message.
 *
 * Its memory is shared with the test, which so sees what arrives there. Children are forked before the test makes an agent, because sanitizers take no fork of
 * several threads; the child's agent is made later. No part of libtenuto.
 */
#ifndef TN_XFER_PEER_RIG_H
#define TN_XFER_PEER_RIG_H

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tenuto/xfer.h>

#include "tn_test.h"

#define PEER_BYTES (8u << 20)
#define PEER_MESSAGE 65536u

struct peer_process {
	pid_t pid;
	int sock;
	const char *name, *backends, *listen, *secret, *meta; /* meta: of its memory */
	unsigned char *memory; /* PEER_BYTES */
};

/* What the child is asked for; the answer: rc, then bytes. */
struct peer_message {
	char what; /* m: metadata; p: partial metadata, of a section that it registers then; l: load; n: take a notification; t: tell; d: deregister its memory; a: register it again; f: fork; q: end */
	int64_t rc;
	uint32_t bytes;
	char name[TN_XFER_NAME_BYTES];
	unsigned char data[PEER_MESSAGE];
};

#define PEER_MESSAGE_HEAD offsetof(struct peer_message, data)

static void peer_do(struct tn_xfer_agent *a, const struct peer_process *p, struct peer_message *m)
{
	static unsigned char second[4096];
	struct tn_xfer_section s = {.address = (uintptr_t)p->memory, .bytes = PEER_BYTES, .meta = p->meta};
	uint64_t until = tn_test_deadline();

	switch (m->what) {
	case 'm':
		m->rc = tn_xfer_metadata(a, TN_XFER_DRAM, NULL, 0, m->data, sizeof(m->data));
		m->bytes = (uint32_t)(m->rc > 0 ? m->rc : 0);
		return;
	case 'p':
		s = (struct tn_xfer_section){.address = (uintptr_t)second, .bytes = sizeof(second)};
		m->rc = tn_xfer_register(a, TN_XFER_DRAM, &s, 1);
		if (m->rc == 0)
			m->rc = tn_xfer_metadata(a, TN_XFER_DRAM, &s, 1, m->data, sizeof(m->data));
		m->bytes = (uint32_t)(m->rc > 0 ? m->rc : 0);
		return;
	case 'l':
		m->rc = tn_xfer_load(a, m->data, m->bytes, m->name);
		m->bytes = 0;
		return;
	case 'n':
		while ((m->rc = tn_xfer_take(a, m->name, m->data, sizeof(m->data))) == -EAGAIN && tn_test_now() < until)
			usleep(200);
		m->bytes = (uint32_t)(m->rc > 0 ? m->rc : 0);
		return;
	case 't':
		m->rc = tn_xfer_notify(a, m->name, m->data, m->bytes);
		m->bytes = 0;
		return;
	case 'd':
		m->rc = tn_xfer_deregister(a, TN_XFER_DRAM, &s, 1, tn_test_now() + TN_TEST_SECOND / 5);
		return;
	case 'f':
		m->rc = fork();
		if (m->rc == 0) {
			sleep(10); /* outlives the peer, and the test's patience */
			_exit(0);
		}
		m->bytes = 0;
		return;
	default:
		m->rc = tn_xfer_register(a, TN_XFER_DRAM, &s, 1);
	}
}

static void peer_run(const struct peer_process *p)
{
	static struct peer_message m;
	const char *specs[] = {p->backends};
	struct tn_xfer_agent_opts opts;
	struct tn_xfer_agent *a;
	ssize_t n;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (recv(p->sock, &m, sizeof(m), 0) <= 0) /* the sign to begin */
		_exit(0);
	tn_xfer_agent_opts_init(&opts);
	opts.name = p->name;
	opts.backends = specs;
	opts.nbackends = 1;
	opts.listen = p->listen;
	opts.secret = p->secret;
	opts.secret_bytes = p->secret ? strlen(p->secret) : 0;
	if (tn_xfer_agent_create(&opts, &a))
		_exit(1);
	m.what = 'a';
	peer_do(a, p, &m);
	while ((n = recv(p->sock, &m, sizeof(m), 0)) > 0 && m.what != 'q') {
		peer_do(a, p, &m);
		if (send(p->sock, &m, PEER_MESSAGE_HEAD + m.bytes, 0) < 0)
			_exit(2);
	}
	_exit(tn_xfer_agent_destroy(a) ? 3 : 0);
}

/* Names and options of p are set; its memory may be another one's. */
static inline void peer_fork(struct peer_process *p)
{
	int both[2], bytes = 1 << 20;

	if (!p->memory)
		p->memory = mmap(NULL, PEER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(p->memory, MAP_FAILED);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, both), 0);
	setsockopt(both[0], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	setsockopt(both[1], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
	fflush(NULL);
	p->pid = fork();
	assert_true(p->pid >= 0);
	p->sock = both[p->pid == 0];
	if (p->pid == 0) {
		close(both[0]);
		peer_run(p);
	}
	close(both[1]);
}

static inline void peer_begin(const struct peer_process *p)
{
	assert_true(send(p->sock, "b", 1, 0) == 1);
}

static inline void peer_start(struct peer_process *p)
{
	peer_fork(p);
	peer_begin(p);
}

/* One question; m is the question and the answer. */
static inline int64_t peer_ask(const struct peer_process *p, struct peer_message *m, char what, uint32_t bytes)
{
	m->what = what;
	m->bytes = bytes;
	assert_true(send(p->sock, m, PEER_MESSAGE_HEAD + bytes, 0) > 0);
	assert_true(recv(p->sock, m, sizeof(*m), 0) > 0);
	return m->rc;
}

/* It runs no more when this returns. */
static inline void peer_stop(const struct peer_process *p)
{
	int status;

	kill(p->pid, SIGSTOP);
	assert_int_equal(waitpid(p->pid, &status, WUNTRACED), p->pid);
	assert_true(WIFSTOPPED(status));
}

static inline void peer_end(struct peer_process *p, int sig)
{
	struct peer_message m = {.what = 'q'};
	int status;

	if (sig)
		kill(p->pid, sig);
	else
		assert_true(send(p->sock, &m, PEER_MESSAGE_HEAD, 0) > 0);
	assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
	if (sig)
		assert_true(WIFSIGNALED(status));
	else
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(p->sock);
}

#endif
