/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of another cache of this cluster, which serves them (src/peer): it is asked on a connection, and what it has not got is not there. Nothing is written.
 *
 * One thread has the connection, so that the owner waits for nothing. A request goes from one to the other by its state: WANTED by the owner, ASKED by the thread,
 * MOVING while its bytes arrive, ENDED. A deadline ends a WANTED or an ASKED one at once: its answer is thrown away when it comes. Of a MOVING one it ends the
 * connection, and with it all that was asked.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/proc.h"
#include "base/secret_file.h"
#include "base/thread.h"
#include "tier/remote/peer_window.h"
#include "tier/remote/peer_wire.h"
#include "xfer/backends.h"
#include "xfer/link.h"

#define DIAL_NS 1000000000ull  /* until a connection is there, with its handshake */
#define STALL_NS 5000000000ull /* without a byte in the middle of an answer */
#define SLICE_NS 20000000ull   /* between looks whether anybody still wants it */
#define SCRATCH_BYTES 65536u
#define WHY_BYTES 200u

enum request_state { FREE, WANTED, ASKED, MOVING, ENDED };

struct request {
	uint32_t state; /* shared */
	struct tn_object_find *find; /* NULL: a transfer */
	struct tn_object_transfer t;
	struct tn_key space;
	struct tn_key *keys;
	uint32_t n;
	/* The thread's until it has ended. */
	uint64_t id;
	uint32_t found;
	int status;
	char why[WHY_BYTES];
};

struct peer {
	struct tn_object_client base;
	const struct tn_alloc *alloc;
	void (*wake_owner)(void *arg); /* NULL: it polls */
	void *owner;
	char address[TN_XFER_ADDRESS_BYTES];
	struct tn_secret secret;
	uint64_t boot[2];
	struct request request[TN_OBJECT_SLOTS];
	struct tn_key keys[TN_OBJECT_SLOTS][TN_OBJECT_NAMES];
	int wake; /* eventfd: there is something WANTED, or stop */
	uint32_t stop; /* shared */
	pthread_t thread;
	/* The thread's. */
	struct tn_xfer_socket sock; /* fd -1: not connected */
	struct tn_peer_window window;
	uint64_t next_id;
	unsigned char message[sizeof(struct tn_peer_answer) + TN_PEER_METADATA_MAX];
	unsigned char scratch[SCRATCH_BYTES];
};

static struct peer *peer_of(struct tn_object_client *c)
{
	return (struct peer *)c;
}

static uint64_t now_ns(void)
{
	return tn_now_ns(&tn_clock_system);
}

static bool pass(struct request *r, uint32_t from, uint32_t to)
{
	return __atomic_compare_exchange_n(&r->state, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static uint64_t deadline_of(const struct request *r)
{
	return r->find ? r->find->deadline_ns : r->t.deadline_ns;
}

/* ---- the owner's side ---------------------------------------------------------------------------------------------- */

/* The end of a name: SPACE/KEY (object.h). Any other name is of no block: zeros, which no peer has. */
static void read_name(const char *name, struct tn_key *space, struct tn_key *key)
{
	const size_t tail = 65, n = strlen(name);
	unsigned long long word[4];

	if (n < tail || sscanf(name + n - tail, "%16llx%16llx/%16llx%16llx", &word[0], &word[1], &word[2], &word[3]) != 4)
		memset(word, 0, sizeof(word));
	*space = (struct tn_key){{word[0], word[1]}};
	*key = (struct tn_key){{word[2], word[3]}};
}

static void want(struct peer *p, struct request *r)
{
	__atomic_store_n(&r->state, WANTED, __ATOMIC_RELEASE);
	eventfd_write(p->wake, 1);
}

static int begin(struct tn_object_client *c, uint32_t slot, const struct tn_object_transfer *t)
{
	struct request *r = &peer_of(c)->request[slot];

	if (t->write)
		return tn_fail(-EROFS, "a peer's blocks are for reading only");
	read_name(t->name, &r->space, r->keys);
	r->t = *t;
	r->t.name = NULL;
	r->find = NULL;
	r->n = 1;
	want(peer_of(c), r);
	return 0;
}

static int find(struct tn_object_client *c, uint32_t slot, struct tn_object_find *f)
{
	struct request *r = &peer_of(c)->request[slot];
	char name[TN_OBJECT_NAME_BYTES];

	for (uint32_t i = 0; i < f->n; i++) {
		f->name(f, i, name);
		read_name(name, &r->space, &r->keys[i]);
	}
	r->find = f;
	r->n = f->n;
	want(peer_of(c), r);
	return 0;
}

static int poll_slot(struct tn_object_client *c, uint32_t slot)
{
	struct request *r = &peer_of(c)->request[slot];
	uint32_t state = __atomic_load_n(&r->state, __ATOMIC_ACQUIRE);

	if (state == ENDED) {
		if (r->find && r->status == 0)
			r->find->found = r->found < r->n ? r->found : r->n;
		__atomic_store_n(&r->state, FREE, __ATOMIC_RELEASE);
		return r->status ? tn_fail(r->status, "%s", r->why) : 0;
	}
	if (now_ns() < deadline_of(r) || (!pass(r, ASKED, FREE) && !pass(r, WANTED, FREE)))
		return -EINPROGRESS;
	return tn_fail(-ETIMEDOUT, "peer %s has not answered by the deadline", peer_of(c)->address + sizeof("tcp:") - 1);
}

static void set_wake(struct tn_object_client *c, void (*fn)(void *arg), void *arg)
{
	struct peer *p = peer_of(c);

	p->owner = arg;
	__atomic_store_n(&p->wake_owner, fn, __ATOMIC_RELEASE);
}

/* ---- the thread ---------------------------------------------------------------------------------------------------- */

/* what: of the failure; NULL: the peer itself says so. */
static void end(struct peer *p, struct request *r, int status, const char *what)
{
	void (*wake_owner)(void *arg) = __atomic_load_n(&p->wake_owner, __ATOMIC_ACQUIRE);

	r->status = status;
	if (status)
		snprintf(r->why, sizeof(r->why), "peer %s: %s", p->address + sizeof("tcp:") - 1, what ? what : "it says so");
	__atomic_store_n(&r->state, ENDED, __ATOMIC_RELEASE);
	if (wake_owner)
		wake_owner(p->owner);
}

static bool stops(const struct peer *p)
{
	return __atomic_load_n(&p->stop, __ATOMIC_ACQUIRE);
}

static void disconnect(struct peer *p)
{
	if (p->sock.fd < 0)
		return;
	tn_xfer_socket_close(&p->sock);
	p->sock.fd = -1;
	tn_peer_window_leave(&p->window);
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		if (pass(&p->request[i], ASKED, MOVING))
			end(p, &p->request[i], -ECONNRESET, "the connection has ended");
}

/* Of a connection; r: whose bytes they are, or NULL. -ETIMEDOUT: nobody wants them any more, or none has come for long. */
static int read_bytes(const struct peer *p, const struct request *r, void *to, uint64_t bytes)
{
	uint64_t heard = now_ns();
	int rc;

	while (bytes) {
		ssize_t n = recv(p->sock.fd, to, bytes, 0);
		uint64_t now;

		if (n > 0) {
			to = (char *)to + n;
			bytes -= (uint64_t)n;
			heard = 0;
			continue;
		}
		if (n == 0 || (errno != EAGAIN && errno != EINTR))
			return -ECONNRESET;
		now = now_ns();
		heard = heard ? heard : now;
		if (stops(p) || now - heard >= STALL_NS || (r && now >= deadline_of(r)))
			return -ETIMEDOUT;
		rc = tn_xfer_socket_wait(p->sock.fd, POLLIN, now + SLICE_NS);
		if (rc && rc != -ETIMEDOUT)
			return rc;
	}
	return 0;
}

static int skip_bytes(struct peer *p, uint64_t bytes)
{
	int rc = 0;

	for (uint64_t n; bytes && rc == 0; bytes -= n) {
		n = bytes < SCRATCH_BYTES ? bytes : SCRATCH_BYTES;
		rc = stops(p) ? -ECANCELED : read_bytes(p, NULL, p->scratch, n);
	}
	return rc;
}

/* The next answer with its metadata. 0, or the connection is of no use any more. */
static int read_answer(struct peer *p, struct tn_peer_answer *a, const unsigned char **metadata)
{
	struct tn_xfer_message head;
	int rc = read_bytes(p, NULL, &head, sizeof(head));

	if (rc)
		return rc;
	if (head.type != TN_PEER_ANSWER || head.bytes < sizeof(*a) || head.bytes > sizeof(p->message))
		return -EPROTO;
	rc = read_bytes(p, NULL, p->message, head.bytes);
	if (rc)
		return rc;
	memcpy(a, p->message, sizeof(*a));
	*metadata = p->message + sizeof(*a);
	return a->metadata == head.bytes - sizeof(*a) && a->slot < TN_OBJECT_SLOTS && a->status <= 0 && a->status != -EINPROGRESS ? 0 : -EPROTO;
}

static int join(struct peer *p, uint64_t deadline_ns)
{
	const struct tn_peer_join ask = {.version = TN_PEER_VERSION, .boot = {p->boot[0], p->boot[1]}};
	const unsigned char *metadata;
	struct tn_peer_answer a;
	int rc = tn_xfer_send_all(p->sock.fd, TN_PEER_JOIN, &ask, sizeof(ask), deadline_ns);

	rc = rc ? rc : read_answer(p, &a, &metadata);
	rc = rc ? rc : a.status;
	if (rc == 0 && a.metadata)
		tn_peer_window_join(&p->window, metadata, a.metadata);
	return rc;
}

static int dial(struct peer *p)
{
	uint64_t deadline_ns = now_ns() + DIAL_NS;
	struct tn_xfer_shake s = {.key_bytes = sizeof(p->secret), .generation = {1, 0}};
	int rc = tn_xfer_dial(p->address, deadline_ns, &p->sock);

	if (rc) {
		p->sock.fd = -1;
		return rc;
	}
	memcpy(s.key, &p->secret, sizeof(p->secret));
	snprintf(s.name[0], sizeof(s.name[0]), "tenuto-remote-%d", (int)getpid());
	rc = tn_xfer_shake_hands(p->sock.fd, &s, deadline_ns);
	explicit_bzero(s.key, sizeof(s.key));
	rc = rc ? rc : join(p, deadline_ns);
	if (rc)
		disconnect(p);
	return rc;
}

/* The message is made while the request is MOVING, so that it stays what it is. */
static int ask(struct peer *p, struct request *r)
{
	struct {
		struct tn_peer_ask ask;
		struct tn_key keys[TN_OBJECT_NAMES];
	} m;
	uint64_t bytes = 0;
	uint32_t type = r->find ? TN_PEER_FIND : TN_PEER_GET;
	int rc;

	for (uint32_t i = 0; i < TN_OBJECT_PARTS && !r->find; i++)
		bytes += r->t.part[i].bytes;
	r->id = ++p->next_id;
	m.ask = (struct tn_peer_ask){.id = r->id, .slot = (uint32_t)(r - p->request), .bytes = bytes, .n = r->n, .space = r->space,
				     .flags = p->window.open ? 0 : TN_PEER_BEHIND};
	memcpy(m.keys, r->keys, r->n * sizeof(*r->keys));
	__atomic_store_n(&r->state, ASKED, __ATOMIC_RELEASE);
	rc = tn_xfer_send_all(p->sock.fd, type, &m, (uint32_t)(sizeof(m.ask) + m.ask.n * sizeof(struct tn_key)), now_ns() + DIAL_NS);
	if (rc)
		disconnect(p);
	return rc;
}

static void ask_all(struct peer *p)
{
	int rc = 0;

	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++) {
		struct request *r = &p->request[i];

		if (__atomic_load_n(&r->state, __ATOMIC_ACQUIRE) != WANTED)
			continue;
		rc = rc || p->sock.fd >= 0 ? rc : dial(p);
		if (!pass(r, WANTED, MOVING))
			continue;
		if (rc)
			end(p, r, rc, tn_error_last()->code == rc ? tn_error_last()->text : "it cannot be asked");
		else
			rc = ask(p, r);
	}
}

static int read_parts(struct peer *p, struct request *r, uint64_t bytes)
{
	int rc = 0;

	for (uint32_t i = 0; i < TN_OBJECT_PARTS && rc == 0; i++) {
		rc = read_bytes(p, r, r->t.part[i].address, r->t.part[i].bytes);
		bytes -= r->t.part[i].bytes;
	}
	return rc ? rc : skip_bytes(p, bytes);
}

/* The bytes of a block: 0, or the connection is of no use any more. */
static int take_block(struct peer *p, struct request *r, const struct tn_peer_answer *a)
{
	uint64_t wanted = 0;
	int rc;

	for (uint32_t i = 0; i < TN_OBJECT_PARTS; i++)
		wanted += r->t.part[i].bytes;
	if (a->status || a->bytes < wanted) {
		end(p, r, a->status ? a->status : -ENODATA, NULL);
		return a->address ? 0 : skip_bytes(p, a->bytes);
	}
	if (!a->address) {
		rc = read_parts(p, r, a->bytes);
		end(p, r, rc, "the block has not come whole");
		return rc;
	}
	rc = tn_peer_window_read(&p->window, &r->t, a->address, &p->stop);
	if (!p->window.open)
		want(p, r); /* behind the answer, then */
	else
		end(p, r, rc, "the block cannot be copied");
	return 0;
}

static int take_answer(struct peer *p)
{
	const unsigned char *metadata;
	struct tn_peer_answer a;
	struct request *r;
	int rc = read_answer(p, &a, &metadata);

	if (rc)
		return rc;
	if (a.metadata)
		tn_peer_window_add(&p->window, metadata, a.metadata);
	r = &p->request[a.slot];
	if (r->id != a.id || !pass(r, ASKED, MOVING))
		return a.address ? 0 : skip_bytes(p, a.bytes); /* nobody waits for it any more */
	if (!r->find)
		return take_block(p, r, &a);
	r->found = a.found;
	end(p, r, a.status, NULL);
	return 0;
}

static void *run(void *arg)
{
	struct peer *p = arg;

	while (!stops(p)) {
		struct pollfd fd[2] = {{.fd = p->wake, .events = POLLIN}, {.fd = p->sock.fd, .events = POLLIN}};
		eventfd_t n;

		poll(fd, 2, -1);
		if (fd[0].revents)
			eventfd_read(p->wake, &n);
		if (fd[1].revents && take_answer(p))
			disconnect(p);
		ask_all(p);
	}
	disconnect(p);
	return NULL;
}

/* ---- the whole ----------------------------------------------------------------------------------------------------- */

static void destroy(struct tn_object_client *c)
{
	struct peer *p = peer_of(c);

	__atomic_store_n(&p->stop, 1, __ATOMIC_RELEASE);
	eventfd_write(p->wake, 1);
	pthread_join(p->thread, NULL);
	tn_peer_window_close(&p->window);
	close(p->wake);
	explicit_bzero(&p->secret, sizeof(p->secret));
	tn_put(p->alloc, p, sizeof(*p));
}

static const struct tn_object_client_ops ops = {
	.size = sizeof(ops), .name = "peer", .read_only = true, .begin = begin, .find = find, .poll = poll_slot, .wake = set_wake, .destroy = destroy};

static int read_spec(const char *text, struct tn_xfer_spec *spec, const char *value[3])
{
	static const char *const name[3] = {"host", "port", "secret_file"};

	if (tn_xfer_spec_split("remote", text, spec))
		return -EINVAL;
	for (uint32_t i = 0; i < spec->n; i++) {
		uint32_t k = 0;

		while (k < 3 && strcmp(spec->param[i].key, name[k]) != 0)
			k++;
		if (k == 3)
			return tn_fail(-EINVAL, "remote peer: there is no %s; it has host, port and secret_file", spec->param[i].key);
		value[k] = spec->param[i].value;
	}
	for (uint32_t k = 0; k < 3; k++)
		if (!value[k] || !*value[k])
			return tn_fail(-EINVAL, "remote peer: %s is missing: write peer,host=HOST,port=PORT,secret_file=FILE", name[k]);
	return 0;
}

static int set_up(struct peer *p, const char *spec_text)
{
	const char *value[3] = {NULL, NULL, NULL};
	struct tn_xfer_spec spec;
	int rc = read_spec(spec_text, &spec, value);

	rc = rc ? rc : tn_secret_read(value[2], &p->secret);
	if (rc)
		return rc;
	if (snprintf(p->address, sizeof(p->address), "tcp:%s:%s", value[0], value[1]) >= (int)sizeof(p->address))
		return tn_fail(-EINVAL, "remote peer: host %.40s... is too long", value[0]);
	tn_boot_id(p->boot);
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		p->request[i].keys = p->keys[i];
	p->sock.fd = -1;
	p->wake = tn_above_streams(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (p->wake < 0)
		return tn_fail(-errno, "remote peer: no descriptor: %s", strerror(errno));
	tn_peer_window_init(&p->window, &p->secret);
	rc = tn_thread_start(&p->thread, run, p);
	if (rc) {
		tn_peer_window_close(&p->window);
		close(p->wake);
		rc = tn_fail(-rc, "remote peer: no thread: %s", strerror(rc));
	}
	return rc;
}

int tn_peer_client_create(const char *spec, const struct tn_alloc *alloc, struct tn_object_client **out)
{
	struct peer *p = tn_get(alloc, sizeof(*p));
	int rc;

	if (!p)
		return tn_fail(-ENOMEM, "remote peer: no memory");
	p->base.ops = &ops;
	p->alloc = alloc;
	rc = set_up(p, spec);
	if (rc)
		tn_put(alloc, p, sizeof(*p));
	else
		*out = &p->base;
	return rc;
}
