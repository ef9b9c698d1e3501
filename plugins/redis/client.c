/* SPDX-License-Identifier: Apache-2.0 */
#include "client.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "connection.h"

#define PORT 6379u
#define CONNECTIONS 2u
#define CONNECTIONS_MAX 8u
#define TRIES 3u
#define NODES_MAX 64u /* servers of a cluster; HTTP_SOCKETS_MAX has place for all of their connections */
#define REDIRECTS_MAX 8u
#define STALL_NS UINT64_C(10000000000)
#define FIRST_PAUSE_NS UINT64_C(50000000)
#define LONGEST_PAUSE_NS UINT64_C(2000000000)
#define NODE_UNKNOWN UINT8_MAX
#define NODE_OF_SLOT UINT32_MAX

struct node {
	char host[REDIS_HOST_BYTES];
	uint32_t port;
	struct redis_connection connection[CONNECTIONS_MAX];
};

struct redis_client {
	struct redis_opts opts;
	char host[REDIS_HOST_BYTES], hello[REDIS_HELLO_BYTES];
	size_t hello_bytes;
	uint32_t hello_replies;
	pthread_t thread;
	int wake;
	pthread_mutex_t lock; /* of posted and stop */
	struct redis_request *posted;
	bool stop;
	/* Of the thread. */
	struct redis_request *requests; /* all that have not ended */
	uint64_t random;
	uint32_t nnodes, entry; /* entry: the node that is asked for slots of which nothing is known */
	struct node *node;
	uint8_t of_slot[REDIS_SLOTS];
	struct http_sockets sockets;
};

/* ---- ends and tries ---------------------------------------------------------------------------------------------------- */

static void unlink_request(struct redis_client *c, struct redis_request *r)
{
	struct redis_request **at = &c->requests;

	while (*at != r)
		at = &(*at)->next;
	*at = r->next;
}

static void end(struct redis_request *r, int code)
{
	struct object_transfer *t = r->transfer;

	unlink_request(r->client, r);
	t->code = code;
	t->done(t);
}

static void report_try(const struct redis_request *r, const char *what)
{
	char why[OBJECT_WHY_BYTES];

	if (!r->transfer->failed)
		return;
	snprintf(why, sizeof(why), "key %.100s at %.60s:%u: %.200s", r->transfer->key, r->client->host, r->client->opts.port, what);
	r->transfer->failed(r->transfer, why);
}

/* A try has failed. It is made again after a pause, unless it was the last one, or none would begin before the deadline. */
static void try_failed(struct redis_request *r, int code, bool again, const char *why)
{
	struct redis_client *c = r->client;
	struct object_transfer *t = r->transfer;
	uint64_t pause = FIRST_PAUSE_NS << (t->tries < 8 ? t->tries : 8), now = object_now_ns();

	report_try(r, why);
	r->failure = code;
	c->random = c->random * UINT64_C(6364136223846793005) + 1442695040888963407u;
	pause = pause < LONGEST_PAUSE_NS ? pause : LONGEST_PAUSE_NS;
	pause = pause / 4 + (c->random >> 33) % (pause * 3 / 4);
	r->node = NODE_OF_SLOT;
	r->asking = false;
	if (!again || t->tries >= c->opts.tries || (t->deadline_ns != OBJECT_NO_DEADLINE && now + pause >= t->deadline_ns))
		end(r, code);
	else
		r->resume_ns = now + pause;
}

/* ---- servers ----------------------------------------------------------------------------------------------------------- */

/* The node of an address, which may be new; NODE_OF_SLOT: there are too many. */
static uint32_t node_of(struct redis_client *c, const char *host, uint32_t port)
{
	uint32_t i = 0;

	while (i < c->nnodes && (strcmp(c->node[i].host, host) || c->node[i].port != port))
		i++;
	if (i < c->nnodes || i == NODES_MAX)
		return i == NODES_MAX ? NODE_OF_SLOT : i;
	c->nnodes++;
	snprintf(c->node[i].host, sizeof(c->node[i].host), "%s", host);
	c->node[i].port = port;
	for (uint32_t k = 0; k < CONNECTIONS_MAX; k++)
		c->node[i].connection[k].fd = -1;
	return i;
}

/* Its slots may be anywhere by now. */
static void node_failed(struct redis_client *c, uint32_t node)
{
	for (uint32_t i = 0; i < REDIS_SLOTS; i++)
		if (c->of_slot[i] == node)
			c->of_slot[i] = NODE_UNKNOWN;
	if (c->entry == node)
		c->entry = (c->entry + 1) % c->nnodes;
}

/* code 0: no request is to blame, and all begin again. */
static void drop(struct redis_client *c, uint32_t node, struct redis_connection *con, int code, const char *why)
{
	struct redis_request *r;

	redis_close(con);
	while ((r = redis_connection_take(con)) != NULL)
		if (code)
			try_failed(r, code, code != -EACCES, why);
	if (code)
		node_failed(c, node);
}

static uint32_t node_for(const struct redis_client *c, const struct redis_request *r)
{
	uint8_t known = c->of_slot[redis_slot(r->transfer->key)];

	return r->node != NODE_OF_SLOT ? r->node : known != NODE_UNKNOWN ? known : c->entry;
}

/* The connection of a server that has the least to do; one that is closed comes before one that is busy. NULL: all are full. */
static struct redis_connection *pick(struct redis_client *c, uint32_t node)
{
	struct redis_connection *best = NULL;

	for (uint32_t i = 0; i < c->opts.connections; i++) {
		struct redis_connection *con = &c->node[node].connection[i];

		if (con->fd >= 0 && con->n == 0)
			return con;
		if (con->fd >= 0 && redis_connection_full(con))
			continue;
		if (!best || (best->fd >= 0 && (con->fd < 0 || con->n < best->n)))
			best = con;
	}
	return best;
}

static void send_request(struct redis_client *c, struct redis_request *r)
{
	uint32_t node = node_for(c, r);
	struct redis_connection *con = pick(c, node);
	char why[OBJECT_WHY_BYTES];
	int rc = 0;

	if (!con)
		return;
	r->transfer->tries++;
	if (con->fd < 0)
		rc = redis_connect(con, &c->sockets, c->node[node].host, c->node[node].port, c->hello, c->hello_bytes, c->hello_replies, why);
	if (rc == 0) {
		redis_send(con, r);
		return;
	}
	try_failed(r, rc, true, why);
	node_failed(c, node);
}

/* ---- answers ----------------------------------------------------------------------------------------------------------- */

static uint32_t node_at(const struct redis_client *c, const struct redis_connection *con)
{
	uint32_t i = 0;

	while (con < c->node[i].connection || con >= c->node[i].connection + CONNECTIONS_MAX)
		i++;
	return i;
}

/* The command goes to where the server says, at once. Redirects that lead nowhere end as a failure. */
static void redirect(struct redis_request *r, const struct redis_error *e, const struct node *asked, const char *text)
{
	struct redis_client *c = r->client;
	uint32_t node = ++r->redirects > REDIRECTS_MAX ? NODE_OF_SLOT : node_of(c, *e->host ? e->host : asked->host, e->port);

	if (node == NODE_OF_SLOT) {
		try_failed(r, -EIO, false, text);
		return;
	}
	if (e->verdict == REDIS_MOVED)
		c->of_slot[e->slot] = (uint8_t)node;
	r->node = node;
	r->asking = e->verdict == REDIS_ASK;
	r->transfer->tries--; /* it was none of this server */
}

static void refused(struct redis_request *r, const struct node *asked, const char *text)
{
	struct redis_error e;

	redis_error_read(text, &e);
	if (e.verdict == REDIS_MOVED || e.verdict == REDIS_ASK)
		redirect(r, &e, asked, text);
	else
		try_failed(r, e.code, e.verdict == REDIS_AGAIN, text);
}

static void fail(struct redis_request *r, int code, const char *why)
{
	report_try(r, why);
	end(r, code);
}

static void got(struct redis_request *r, const struct redis_reply *reply)
{
	struct object_transfer *t = r->transfer;

	t->moved = reply->bytes <= t->bytes ? reply->bytes : 0;
	if (reply->bytes == t->bytes)
		end(r, 0);
	else if (!reply->bytes)
		fail(r, -ENOENT, "there is no such key, or the value is shorter");
	else
		fail(r, reply->bytes < t->bytes ? -ENODATA : -EIO, "the value has not as many bytes as were asked for");
}

static void put(struct redis_request *r, const struct redis_reply *reply)
{
	struct object_transfer *t = r->transfer;

	if (reply->kind == REDIS_STATUS) {
		t->moved = t->bytes;
		end(r, 0);
	} else if (r->failure) {
		fail(r, -EIO, "the key is there, and the try before may have set it");
	} else {
		fail(r, -EEXIST, "the key is there already");
	}
}

static void answered(struct redis_request *r, struct redis_connection *con, const struct redis_reply *reply)
{
	static const enum redis_reply_kind wanted[] = {[OBJECT_GET] = REDIS_STRING, [OBJECT_PUT] = REDIS_STATUS, [OBJECT_HEAD] = REDIS_INTEGER};
	struct object_transfer *t = r->transfer;

	if (reply->kind == REDIS_ERROR) {
		refused(r, &r->client->node[node_at(r->client, con)], reply->text);
	} else if (reply->kind != wanted[t->op] && !(t->op == OBJECT_PUT && reply->kind == REDIS_NIL && t->if_absent)) {
		fail(r, -EIO, "the answer is none to this command: check host and port");
	} else if (t->op == OBJECT_GET) {
		got(r, reply);
	} else if (t->op == OBJECT_PUT) {
		put(r, reply);
	} else {
		t->object_bytes = (uint64_t)reply->integer;
		end(r, reply->integer > 0 ? 0 : -ENOENT);
	}
}

/* ---- the thread -------------------------------------------------------------------------------------------------------- */

/* The request ends early. What is half sent takes its connection with it, and the other commands of that begin again. */
static void end_early(struct redis_client *c, struct redis_request *r, int code)
{
	struct redis_connection *con = r->connection;

	if (con && !redis_forget(con, r))
		drop(c, node_at(c, con), con, 0, NULL);
	end(r, code);
}

static void take_posted(struct redis_client *c)
{
	pthread_mutex_lock(&c->lock);
	while (c->posted) {
		struct redis_request *r = c->posted;

		c->posted = r->next;
		r->next = c->requests;
		c->requests = r;
	}
	pthread_mutex_unlock(&c->lock);
}

static bool is_stopped(const struct redis_request *r)
{
	return r->transfer->stop && __atomic_load_n(r->transfer->stop, __ATOMIC_ACQUIRE);
}

/* Ends what was stopped or is late, and sends what waits. */
static void step_requests(struct redis_client *c, uint64_t now)
{
	for (struct redis_request *r = c->requests, *next; r; r = next) {
		uint64_t deadline_ns = r->transfer->deadline_ns;

		next = r->next;
		if (is_stopped(r)) {
			end_early(c, r, -ECANCELED);
			continue;
		}
		if (deadline_ns <= now) {
			end_early(c, r, r->failure ? r->failure : -ETIMEDOUT);
			continue;
		}
		if (!r->connection && r->resume_ns <= now)
			send_request(c, r); /* may end it, or let it wait once more */
	}
}

/* When there is something to do for a request again, if nothing comes before: of those that wait for another try, too. */
static uint64_t requests_due(const struct redis_client *c, uint64_t now)
{
	uint64_t next_ns = UINT64_MAX;

	for (const struct redis_request *r = c->requests; r; r = r->next) {
		uint64_t due_ns = r->transfer->deadline_ns;

		if (!r->connection && r->resume_ns > now && r->resume_ns < due_ns)
			due_ns = r->resume_ns;
		next_ns = due_ns < next_ns ? due_ns : next_ns;
	}
	return next_ns;
}

struct watched {
	struct pollfd *fd;
	struct redis_connection **connection;
	nfds_t n;
};

/* Gives up connections that stall, and lists the others. Return: when the next one may stall. */
static uint64_t watch(struct redis_client *c, struct watched *w, uint64_t now)
{
	uint64_t next_ns = UINT64_MAX;

	w->fd[0] = (struct pollfd){.fd = c->wake, .events = POLLIN};
	w->n = 1;
	for (uint32_t i = 0; i < c->nnodes * CONNECTIONS_MAX; i++) {
		struct redis_connection *con = &c->node[i / CONNECTIONS_MAX].connection[i % CONNECTIONS_MAX];

		if (con->fd >= 0 && con->n && now >= con->moved_ns + STALL_NS)
			drop(c, i / CONNECTIONS_MAX, con, -EIO, "the server has not moved a byte for 10 s");
		if (con->fd < 0)
			continue;
		if (con->n && con->moved_ns + STALL_NS < next_ns)
			next_ns = con->moved_ns + STALL_NS;
		w->fd[w->n] = (struct pollfd){.fd = con->fd, .events = redis_connection_wants(con)};
		w->connection[w->n++] = con;
	}
	return next_ns;
}

static void wait_and_step(struct redis_client *c, struct watched *w, uint64_t until_ns)
{
	uint64_t now = object_now_ns(), left = until_ns > now ? until_ns - now : 0, count;
	struct timespec limit = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
	char why[OBJECT_WHY_BYTES];

	if (ppoll(w->fd, w->n, until_ns == UINT64_MAX ? NULL : &limit, NULL) <= 0)
		return;
	if (w->fd[0].revents && read(c->wake, &count, sizeof(count)) < 0)
		return;
	for (nfds_t i = 1; i < w->n; i++) {
		struct redis_connection *con = w->connection[i];
		int rc = w->fd[i].revents && con->fd == w->fd[i].fd ? redis_connection_step(con, w->fd[i].revents, answered, why) : 0;

		if (rc)
			drop(c, node_at(c, con), con, rc, why);
	}
}

static bool is_done(struct redis_client *c)
{
	bool stop;

	pthread_mutex_lock(&c->lock);
	stop = c->stop && !c->posted;
	pthread_mutex_unlock(&c->lock);
	return stop && !c->requests;
}

static void *run(void *arg)
{
	struct redis_client *c = arg;
	struct pollfd fd[1 + NODES_MAX * CONNECTIONS_MAX];
	struct redis_connection *connection[1 + NODES_MAX * CONNECTIONS_MAX];
	struct watched w = {.fd = fd, .connection = connection};

	while (!is_done(c)) {
		uint64_t now = object_now_ns(), requests_ns, stall_ns;

		take_posted(c);
		step_requests(c, now);
		stall_ns = watch(c, &w, now);
		requests_ns = requests_due(c, now); /* what watch gave up is among them */
		wait_and_step(c, &w, requests_ns < stall_ns ? requests_ns : stall_ns);
	}
	return NULL;
}

static void wake_thread(struct redis_client *c)
{
	uint64_t one = 1;

	if (write(c->wake, &one, sizeof(one)) < 0)
		return; /* the count is at its limit: the thread is woken anyway */
}

/* ---- the client -------------------------------------------------------------------------------------------------------- */

void redis_opts_init(struct redis_opts *opts)
{
	const char *password = getenv("REDISCLI_AUTH");

	*opts = (struct redis_opts){.host = "127.0.0.1", .port = PORT, .connections = CONNECTIONS, .tries = TRIES, .password = password && *password ? password : NULL};
}

static int check(const struct redis_opts *o)
{
	if (!*o->host || strlen(o->host) >= REDIS_HOST_BYTES)
		return object_fail(-EINVAL, "backend redis: host=%.40s: a name or an address of 1 to %u bytes is wanted", o->host, REDIS_HOST_BYTES - 1);
	if (!o->port || !o->connections || !o->tries)
		return object_fail(-EINVAL, "backend redis: port=%u, connections=%u, tries=%u: none of them may be 0", o->port, o->connections, o->tries);
	return 0;
}

static int start(struct redis_client *c)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&c->thread, NULL, run, c);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -rc;
}

int redis_client_create(const struct redis_opts *opts, struct redis_client **out)
{
	struct redis_client *c;
	int rc = check(opts);

	if (rc)
		return rc;
	c = calloc(1, sizeof(*c));
	if (c)
		c->node = calloc(NODES_MAX, sizeof(*c->node));
	if (!c || !c->node) {
		free(c);
		return object_fail(-ENOMEM, "no memory");
	}
	c->opts = *opts;
	snprintf(c->host, sizeof(c->host), "%s", opts->host);
	c->hello_bytes = redis_hello(opts->user, opts->password, opts->db, c->hello, sizeof(c->hello), &c->hello_replies);
	c->opts.password = c->opts.user = c->opts.host = NULL; /* they were the caller's */
	memset(c->of_slot, NODE_UNKNOWN, sizeof(c->of_slot));
	node_of(c, c->host, opts->port);
	if (getrandom(&c->random, sizeof(c->random), 0) < 0)
		c->random = object_now_ns();
	pthread_mutex_init(&c->lock, NULL);
	http_sockets_begin(&c->sockets);
	c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	rc = c->hello_replies && !c->hello_bytes ? object_fail(-EINVAL, "backend redis: user and password have more than %u bytes", REDIS_HELLO_BYTES - 100) : 0;
	if (rc == 0 && (c->wake < 0 || start(c)))
		rc = object_fail(-EAGAIN, "backend redis: no thread or no descriptor");
	if (rc == 0) {
		*out = c;
		return 0;
	}
	c->thread = 0;
	redis_client_destroy(c);
	return rc;
}

void redis_client_destroy(void *client)
{
	struct redis_client *c = client;

	if (c->thread) {
		pthread_mutex_lock(&c->lock);
		c->stop = true;
		pthread_mutex_unlock(&c->lock);
		wake_thread(c);
		pthread_join(c->thread, NULL);
	}
	for (uint32_t i = 0; i < c->nnodes * CONNECTIONS_MAX; i++)
		redis_close(&c->node[i / CONNECTIONS_MAX].connection[i % CONNECTIONS_MAX]);
	http_sockets_end(&c->sockets);
	if (c->wake >= 0)
		close(c->wake);
	pthread_mutex_destroy(&c->lock);
	explicit_bzero(c->hello, sizeof(c->hello));
	free(c->node);
	free(c);
}

int redis_prepare(void *client, struct object_transfer *t)
{
	size_t n = t->key ? strlen(t->key) : 0;
	struct redis_request *r;

	if (!n || n > REDIS_KEY_MAX || (t->op == OBJECT_GET && !t->bytes))
		return object_fail(-EINVAL, "a key of %zu bytes, or no byte to read: 1 to %u bytes are wanted", n, REDIS_KEY_MAX);
	if (t->bytes > REDIS_VALUE_MAX)
		return object_fail(-EINVAL, "an object of %llu bytes: a value has %llu at most", (unsigned long long)t->bytes, (unsigned long long)REDIS_VALUE_MAX);
	r = calloc(1, sizeof(*r) + (t->niov + 3) * sizeof(r->iov[0]));
	if (!r)
		return object_fail(-ENOMEM, "no memory for a command");
	r->iov = (struct iovec *)(r + 1);
	r->client = client;
	r->transfer = t;
	redis_command_set(&r->command, t, r->client->opts.ttl_s);
	t->own = r;
	return 0;
}

void redis_forget_transfer(struct object_transfer *t)
{
	free(t->own);
	t->own = NULL;
}

void redis_post(struct object_transfer *t)
{
	struct redis_request *r = t->own;
	struct redis_client *c = r->client;

	t->code = 0;
	t->moved = 0;
	t->tries = 0;
	r->node = NODE_OF_SLOT;
	r->asking = false;
	r->redirects = 0;
	r->failure = 0;
	r->resume_ns = 0;
	r->connection = NULL;
	pthread_mutex_lock(&c->lock);
	r->next = c->posted;
	c->posted = r;
	pthread_mutex_unlock(&c->lock);
	wake_thread(c);
}

void redis_poke(void *client)
{
	wake_thread(client);
}
