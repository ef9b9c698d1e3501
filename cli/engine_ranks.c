/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scheduler and its ranks, each a process. The scheduler tells all ranks a request at once through sockets, and waits for what all of them say. Its lease holds all
 * shares of what it has found until then.
 */
#include "engine_ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tenuto/session.h>

#include "cli.h"

enum what {
	ATTACH,
	REQUEST,      /* load and save; as many ids follow */
	SETTLE_BLOCK, /* the save of the block, if there is one: good is 1 */
	SETTLE,
};

struct order {
	uint32_t what;
	uint32_t n, found;
	uint32_t partial_last;
	uint64_t id;
};

struct answer {
	int32_t rc;
	uint32_t good;
	struct rank_totals totals;
	char text[240]; /* of an error */
};

struct process {
	pid_t pid;
	int sock;
	struct rank_totals totals;
};

struct engine_ranks {
	struct tn_cache *cache; /* the scheduler's session */
	struct tn_space *space[ENGINE_RANKS_MAX];
	struct rank_opts o;
	struct process process[ENGINE_RANKS_MAX];
	struct engine_ranks_totals total;
	struct tn_key *keys;
	uint64_t *hashes;
	char dir[200], path[216];
};

/* ---- messages ---------------------------------------------------------------------------------- */

static bool send_all(int sock, const void *p, size_t bytes)
{
	for (const char *at = p; bytes > 0;) {
		ssize_t n = send(sock, at, bytes, MSG_NOSIGNAL);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		at += n;
		bytes -= (size_t)n;
	}
	return true;
}

static bool receive_all(int sock, void *p, size_t bytes)
{
	for (char *at = p; bytes > 0;) {
		ssize_t n = recv(sock, at, bytes, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		at += n;
		bytes -= (size_t)n;
	}
	return true;
}

/* ---- a rank's process --------------------------------------------------------------------------- */

struct self {
	struct rank_opts o;
	const char *path;
	int sock;
	uint64_t *ids;
	struct tn_cache *cache;
	struct rank *rank;
};

static int attach_to(const char *path, struct tn_cache **cache)
{
	struct tn_attach_opts o;

	tn_attach_opts_init(&o);
	o.deadline_ns = cli_now_ns() + RANK_PATIENCE_NS;
	return tn_cache_attach(path, &o, cache);
}

static int attach(struct self *s)
{
	int rc = attach_to(s->path, &s->cache);

	return rc ? rc : rank_open(s->cache, &s->o, &s->rank);
}

/* How many blocks it loaded, or -errno. */
static int serve(struct self *s, const struct order *o)
{
	const struct tn_key *keys;
	int rc = rank_reap(s->rank), good;

	if (!rc)
		rc = rank_keys(s->rank, s->ids, o->n, &keys);
	if (rc)
		return rc;
	good = rank_load(s->rank, s->ids, o->found);
	if (good >= 0)
		rc = rank_save(s->rank, s->ids, (uint32_t)good, o->n, o->partial_last);
	return rc ? rc : good;
}

static int carry_out(struct self *s, const struct order *o)
{
	int rc;

	switch ((enum what)o->what) {
	case ATTACH:
		return attach(s);
	case REQUEST:
		return serve(s, o);
	case SETTLE_BLOCK:
		if (!rank_saves(s->rank, o->id))
			return 0;
		rc = rank_settle_block(s->rank, o->id);
		return rc ? rc : 1;
	case SETTLE:
		return rank_settle(s->rank);
	}
	return -EINVAL;
}

/* Until the scheduler closes the socket, or ends. */
static int obey(struct self *s)
{
	struct order o;
	int rc;

	while (receive_all(s->sock, &o, sizeof(o))) {
		struct answer a = {.rc = -EPROTO};

		if (o.n <= s->o.longest && receive_all(s->sock, s->ids, o.n * sizeof(*s->ids)))
			a.rc = carry_out(s, &o);
		a.good = a.rc > 0 ? (uint32_t)a.rc : 0;
		if (s->rank)
			a.totals = *rank_totals(s->rank);
		if (a.rc < 0)
			snprintf(a.text, sizeof(a.text), "%.239s", tn_error_last()->text);
		if (!send_all(s->sock, &a, sizeof(a)))
			break;
	}
	rc = rank_close(s->rank);
	if (!rc && s->cache)
		rc = tn_cache_close(s->cache);
	free(s->ids);
	return rc ? CLI_PROBLEM : CLI_OK;
}

/* ---- the scheduler ------------------------------------------------------------------------------ */

static int start_rank(struct engine_ranks *e, uint32_t rank)
{
	struct self s = {.o = e->o, .path = e->path};
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair))
		return -errno;
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		/* Of an interrupt the scheduler hears; its copies of the others' sockets would keep them from seeing its end. */
		signal(SIGINT, SIG_IGN);
		signal(SIGTERM, SIG_IGN);
		signal(SIGHUP, SIG_IGN);
		for (uint32_t i = 0; i < rank; i++)
			close(e->process[i].sock);
		close(pair[0]);
		s.o.rank = rank;
		s.sock = pair[1];
		s.ids = calloc(s.o.longest, sizeof(*s.ids));
		_exit(s.ids ? obey(&s) : CLI_ENVIRONMENT);
	}
	close(pair[1]);
	if (pid < 0) {
		close(pair[0]);
		return -EAGAIN;
	}
	e->process[rank] = (struct process){.pid = pid, .sock = pair[0]};
	return 0;
}

int engine_ranks_start(const struct rank_opts *o, struct engine_ranks **out)
{
	struct engine_ranks *e = calloc(1, sizeof(*e));
	int rc;

	if (!e)
		return -ENOMEM;
	e->o = *o;
	e->keys = calloc(o->longest, sizeof(*e->keys));
	e->hashes = calloc(o->longest, 2 * sizeof(*e->hashes));
	rc = e->keys && e->hashes ? cli_temp_dir(NULL, e->dir, sizeof(e->dir)) : -ENOMEM;
	if (rc)
		e->dir[0] = '\0';
	snprintf(e->path, sizeof(e->path), "%s/socket", e->dir);
	for (uint32_t i = 0; i < o->ranks && !rc; i++)
		rc = start_rank(e, i);
	if (rc) {
		engine_ranks_close(e);
		return rc;
	}
	*out = e;
	return 0;
}

static int ended(uint32_t rank)
{
	cli_error(CLI_PROBLEM, "the process of rank %u has ended", rank);
	return -ESHUTDOWN;
}

static void add(struct rank_totals *to, const struct rank_totals *t)
{
	to->stored_blocks += t->stored_blocks;
	to->rejected_blocks += t->rejected_blocks;
	to->failed_blocks += t->failed_blocks;
	to->verified_objects += t->verified_objects;
	to->wrong_objects += t->wrong_objects;
	to->read_ns += t->read_ns;
	to->write_ns += t->write_ns;
	to->error = to->error ? to->error : t->error;
}

/* All ranks at once. *least, *most: of what they say; *read_ns: of the slowest. */
static int order_all(struct engine_ranks *e, const struct order *o, const uint64_t *ids, uint32_t *least, uint32_t *most, uint64_t *read_ns)
{
	int rc = 0;

	*least = UINT32_MAX;
	*most = 0;
	*read_ns = 0;
	e->total.all = (struct rank_totals){0};
	for (uint32_t i = 0; i < e->o.ranks; i++)
		if (!send_all(e->process[i].sock, o, sizeof(*o)) || !send_all(e->process[i].sock, ids, o->n * sizeof(*ids)))
			return ended(i);
	for (uint32_t i = 0; i < e->o.ranks; i++) {
		struct process *p = &e->process[i];
		uint64_t before_ns = p->totals.read_ns;
		struct answer a;

		if (!receive_all(p->sock, &a, sizeof(a)))
			return ended(i);
		if (a.rc < 0)
			cli_error(CLI_PROBLEM, "rank %u: %.239s", i, a.text);
		rc = a.rc < 0 ? a.rc : rc;
		p->totals = a.totals;
		add(&e->total.all, &a.totals);
		*least = a.good < *least ? a.good : *least;
		*most = a.good > *most ? a.good : *most;
		*read_ns = a.totals.read_ns - before_ns > *read_ns ? a.totals.read_ns - before_ns : *read_ns;
		e->total.short_loads += o->what == REQUEST && a.good < o->found;
	}
	return rc;
}

int engine_ranks_attach(struct engine_ranks *e, struct tn_cache *cache)
{
	struct order o = {.what = ATTACH};
	uint32_t least, most;
	uint64_t read_ns;
	int rc = tn_cache_serve(cache, e->path, NULL);

	if (!rc)
		rc = attach_to(e->path, &e->cache);
	for (uint32_t i = 0; i < e->o.ranks && !rc; i++) {
		struct rank_opts ro = e->o;

		ro.rank = i;
		rc = rank_space_open(e->cache, &ro, &e->space[i]);
	}
	return rc ? rc : order_all(e, &o, NULL, &least, &most, &read_ns);
}

/* The longest prefix that all ranks have, held; a block whose save is under way does not end it. */
static int match(struct engine_ranks *e, const uint64_t *ids, uint32_t n, struct tn_match *m)
{
	for (;;) {
		struct order o = {.what = SETTLE_BLOCK};
		uint32_t least, most;
		uint64_t read_ns;
		int rc = tn_match_all(e->space, e->o.ranks, e->keys, n, NULL, m, TN_MATCH_PIN), told;

		if (rc < 0 || (uint32_t)rc >= n)
			return rc;
		o.id = ids[rc];
		told = order_all(e, &o, NULL, &least, &most, &read_ns);
		if (!told && most == 0)
			return rc;
		if (m->pin)
			tn_unpin(e->space[0], m->pin);
		if (told)
			return told;
	}
}

int engine_ranks_request(struct engine_ranks *e, const uint64_t *ids, uint32_t n, bool partial_last, uint32_t *good, uint32_t *host, uint64_t *read_ns)
{
	struct tn_match m = {.size = sizeof(m)};
	struct order o = {.what = REQUEST, .n = n, .partial_last = partial_last};
	uint32_t most;
	int rc = n <= e->o.longest ? rank_make_keys(e->space[0], ids, n, e->hashes, e->keys) : -EINVAL, found;

	if (rc)
		return rc;
	found = match(e, ids, n, &m);
	if (found < 0)
		return found;
	o.found = (uint32_t)found;
	rc = order_all(e, &o, ids, good, &most, read_ns);
	*host = m.tier_blocks[TN_TIER_HOST] / e->o.ranks;
	if (m.pin)
		tn_unpin(e->space[0], m.pin);
	return rc;
}

int engine_ranks_settle(struct engine_ranks *e)
{
	const struct order o = {.what = SETTLE};
	uint32_t least, most;
	uint64_t read_ns;

	return order_all(e, &o, NULL, &least, &most, &read_ns);
}

const struct engine_ranks_totals *engine_ranks_totals(const struct engine_ranks *e)
{
	return &e->total;
}

int engine_ranks_close(struct engine_ranks *e)
{
	int rc = 0, status;

	if (!e)
		return 0;
	for (uint32_t i = 0; i < ENGINE_RANKS_MAX; i++)
		if (e->process[i].pid > 0)
			close(e->process[i].sock);
	for (uint32_t i = 0; i < ENGINE_RANKS_MAX; i++)
		if (e->process[i].pid > 0 && (waitpid(e->process[i].pid, &status, 0) != e->process[i].pid || status))
			rc = ended(i);
	for (uint32_t i = 0; e->cache && i < e->o.ranks; i++)
		tn_space_close(e->space[i]);
	if (e->cache)
		tn_cache_close(e->cache);
	if (e->dir[0])
		cli_remove_tree(e->dir);
	free(e->keys);
	free(e->hashes);
	free(e);
	return rc;
}
