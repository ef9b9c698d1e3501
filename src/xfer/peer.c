/* SPDX-License-Identifier: Apache-2.0 */
/* Peers: agents whose metadata was loaded, and the connections to them. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "xfer/agent.h"
#include "xfer/backends.h"
#include "xfer/codec.h"

struct tn_xfer_peer *tn_xfer_peer_find(struct tn_xfer_agent *a, const char *name)
{
	struct tn_list *pos;

	for (pos = a->peers.next; pos != &a->peers; pos = pos->next) {
		struct tn_xfer_peer *p = tn_container_of(pos, struct tn_xfer_peer, link);

		if (!strcmp(p->head.name, name))
			return p;
	}
	return NULL;
}

static void forget_handles(struct tn_xfer_agent *a, struct tn_xfer_peer *p)
{
	for (uint32_t i = 0; i < a->nbackends; i++) {
		if (p->handle[i] && a->backend[i].ops->peer_remove)
			a->backend[i].ops->peer_remove(a->backend[i].self, p->handle[i]);
		p->handle[i] = NULL;
	}
	p->reachable = p->mapped_only = 0;
}

void tn_xfer_peer_put(struct tn_xfer_agent *a, struct tn_xfer_peer *p)
{
	assert(p->refs);
	if (--p->refs)
		return;
	forget_handles(a, p);
	tn_xfer_table_clear(&p->table);
	tn_put(&tn_alloc_system, p, sizeof(*p));
}

void tn_xfer_peer_disconnect(struct tn_xfer_peer *p)
{
	if (p->jobs) {
		p->held = p->conn;
		p->held->held = true;
	}
	p->conn = NULL;
}

void tn_xfer_peer_drop(struct tn_xfer_agent *a, struct tn_xfer_peer *p)
{
	p->gone = true;
	tn_list_del(&p->link);
	a->stat[TN_XFER_STAT_PEERS]--;
	if (p->conn) {
		p->conn->peer = NULL;
		tn_xfer_conn_close(&a->control, p->conn);
		tn_xfer_peer_disconnect(p);
	}
	tn_xfer_peer_put(a, p);
}

/* ---- metadata ---------------------------------------------------------------------------------------------------------- */

/* Bits of this agent's backends, by the order of the peer's. */
static uint32_t map_backends(const struct tn_xfer_agent *a, const struct tn_xfer_head *head, uint32_t theirs)
{
	uint32_t ours = 0;

	for (uint32_t i = 0; i < head->nbackends; i++)
		for (uint32_t k = 0; k < a->nbackends && theirs & 1u << i; k++)
			if (!strcmp(a->backend[k].ops->name, head->backend[i].name))
				ours |= 1u << k;
	return ours;
}

/* The keys of a section that was read: by the order of the agent's backends. */
static void map_keys(const struct tn_xfer_agent *a, const struct tn_xfer_head *head, struct tn_xfer_sec *sec)
{
	struct tn_xfer_section_key *theirs[TN_XFER_BACKENDS_MAX];

	memcpy(theirs, sec->key, sizeof(theirs));
	memset(sec->key, 0, sizeof(sec->key));
	for (uint32_t i = 0; i < TN_XFER_BACKENDS_MAX; i++) {
		for (uint32_t k = 0; k < a->nbackends && theirs[i]; k++) {
			if (strcmp(a->backend[k].ops->name, head->backend[i].name) || sec->key[k])
				continue;
			sec->key[k] = theirs[i];
			theirs[i] = NULL;
		}
		tn_xfer_key_free(theirs[i]); /* of a backend that this agent lacks */
	}
}

/* What was revoked up to the revision is out of the table. Metadata that was loaded while the agent dialled may be newer. */
static void set_pruned(struct tn_xfer_peer *p, uint64_t revision)
{
	if (revision > p->head.revision)
		p->head.revision = revision;
	if (revision > p->pruned_revision)
		p->pruned_revision = revision;
}

static struct tn_xfer_peer *peer_new(struct tn_xfer_agent *a)
{
	struct tn_xfer_peer *p = tn_get(&tn_alloc_system, sizeof(*p));

	if (!p)
		return NULL;
	p->refs = 1;
	tn_list_push(&a->peers, &p->link);
	a->stat[TN_XFER_STAT_PEERS]++;
	return p;
}

static bool same_boot(const struct tn_xfer_head *a, const struct tn_xfer_head *b)
{
	return a->boot[0] == b->boot[0] && a->boot[1] == b->boot[1];
}

/* Generations of one boot of a machine have an order. Of two boots nobody knows the later one: what was loaded last counts. */
static int check_head(const struct tn_xfer_agent *a, const struct tn_xfer_head *head, const struct tn_xfer_peer *known)
{
	const struct tn_xfer_head *old = known && same_boot(head, &known->head) && (head->boot[0] || head->boot[1]) ? &known->head : NULL;

	if (!strcmp(head->name, a->name))
		return tn_fail(-EINVAL, "metadata of agent %s: it has this agent's own name", head->name);
	if (old && head->generation < old->generation)
		return tn_fail(-ESTALE, "metadata of agent %s: a newer agent of this name was loaded already", head->name);
	if (known && head->generation == known->head.generation && head->revision < known->head.revision)
		return tn_fail(-ESTALE, "metadata of agent %s has revision %llu, and %llu is known: take it again", head->name,
			       (unsigned long long)head->revision, (unsigned long long)known->head.revision);
	if (!map_backends(a, head, UINT32_MAX))
		return tn_fail(-ENOTSUP, "metadata of agent %s: this agent has none of its %u backends (the first is %s)", head->name, head->nbackends,
			       head->nbackends ? head->backend[0].name : "missing");
	return 0;
}

int tn_xfer_peer_load(struct tn_xfer_agent *a, const struct tn_xfer_metadata *m, struct tn_xfer_peer **old)
{
	const struct tn_xfer_head *head = &m->head;
	struct tn_xfer_peer *p = tn_xfer_peer_find(a, head->name);
	uint32_t theirs = 0, ours = 0;
	bool whole = !(head->flags & TN_XFER_META_PARTIAL);
	int rc = check_head(a, head, p);

	if (rc)
		return rc;
	if (p && (p->head.generation != head->generation || !same_boot(&p->head, head))) {
		*old = p;
		p->refs++;
		tn_xfer_peer_drop(a, p);
		p = NULL;
	}
	if (!p)
		p = peer_new(a);
	if (!p)
		return -ENOMEM;
	p->head = *head;
	p->backends = map_backends(a, head, UINT32_MAX);
	if (p->state == TN_XFER_PEER_LOST || (p->conn && p->conn->closing))
		p->state = TN_XFER_PEER_LOADED; /* the end of the old connection does not undo this */
	for (uint32_t i = 0; i < m->n; i++) {
		if (m->sec[i]->backends != theirs) {
			theirs = m->sec[i]->backends;
			ours = map_backends(a, head, theirs) | (theirs & TN_XFER_SEC_SHARED);
		}
		m->sec[i]->backends = ours;
		map_keys(a, head, m->sec[i]);
	}
	rc = tn_xfer_table_merge(&p->table, m->sec, m->n, TN_XFER_MERGE_ADD | (whole ? TN_XFER_MERGE_PRUNE : 0));
	if (rc == 0 && whole)
		set_pruned(p, head->revision);
	return rc;
}

static int compare_ids(const void *a, const void *b)
{
	uint64_t x, y;

	memcpy(&x, a, sizeof(x));
	memcpy(&y, b, sizeof(y));
	return (x > y) - (x < y);
}

void tn_xfer_peer_revoke(struct tn_xfer_peer *p, uint64_t serial, const unsigned char *ids, uint32_t n)
{
	uint64_t sorted[TN_XFER_REVOKE_IDS];

	n = n < TN_XFER_REVOKE_IDS ? n : TN_XFER_REVOKE_IDS;
	memcpy(sorted, ids, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), compare_ids);
	for (uint32_t i = 0; i < p->table.n; i++) {
		struct tn_xfer_sec *sec = p->table.entry[i].sec;

		if (bsearch(&sec->id, sorted, n, sizeof(*sorted), compare_ids))
			sec->revoked = sec->leaving = true;
	}
	tn_xfer_table_sweep(&p->table);
	set_pruned(p, serial);
}

/* ---- connections ------------------------------------------------------------------------------------------------------- */

/* Asks for metadata or statistics on a connection that has just opened. Nothing is used on it yet, so that revocations on the way are confirmed at once. */
static int ask(int fd, uint32_t question, uint64_t deadline_ns, void **out, uint64_t *bytes)
{
	unsigned char ids[sizeof(uint64_t) * (TN_XFER_REVOKE_IDS + 1)];
	uint32_t answer = question == TN_XFER_FETCH ? TN_XFER_METADATA : TN_XFER_STATISTICS;
	struct tn_xfer_message head;
	int rc = tn_xfer_send_all(fd, question, NULL, 0, deadline_ns);

	for (;;) {
		if (rc == 0)
			rc = tn_xfer_receive_bytes(fd, &head, sizeof(head), deadline_ns);
		if (rc)
			return rc;
		if (head.type != TN_XFER_REVOKE)
			break;
		if (head.bytes < sizeof(uint64_t) || head.bytes > sizeof(ids))
			return tn_fail(-EPROTO, "a revocation of %u bytes", head.bytes);
		rc = tn_xfer_receive_bytes(fd, ids, head.bytes, deadline_ns);
		if (rc == 0)
			rc = tn_xfer_send_all(fd, TN_XFER_REVOKED, ids, sizeof(uint64_t), deadline_ns);
	}
	if (head.type != answer || head.bytes > TN_XFER_METADATA_MAX || !head.bytes)
		return tn_fail(-EPROTO, "message %u of %u bytes in place of message %u", head.type, head.bytes, answer);
	*out = tn_get(&tn_alloc_system, head.bytes);
	if (!*out)
		return -ENOMEM;
	*bytes = head.bytes;
	rc = tn_xfer_receive_bytes(fd, *out, head.bytes, deadline_ns);
	if (rc)
		tn_put(&tn_alloc_system, *out, head.bytes);
	return rc;
}

int tn_xfer_peer_fetch(struct tn_xfer_agent *a, const char *address, uint32_t question, uint64_t deadline_ns, void **out, uint64_t *bytes)
{
	struct tn_xfer_shake s = {.key_bytes = a->key_bytes, .generation = {a->generation, 0}};
	struct tn_xfer_socket sock;
	int rc;

	if (!a->shared)
		return tn_fail(-EINVAL, "agent %s has no secret: to ask another agent both have the same (secret of struct tn_xfer_agent_opts; --secret-file of tenuto xfer)", a->name);
	memcpy(s.key, a->key, a->key_bytes);
	memcpy(s.name[0], a->name, sizeof(a->name));
	rc = tn_xfer_dial(address, deadline_ns, &sock);
	if (rc)
		return rc;
	rc = tn_xfer_shake_hands(sock.fd, &s, deadline_ns);
	if (rc == 0)
		rc = ask(sock.fd, question, deadline_ns, out, bytes);
	tn_xfer_socket_close(&sock);
	return rc;
}

/* A connection that has just opened. */
struct dialled {
	struct tn_xfer_socket sock;
	bool has_metadata; /* something was registered or revoked since the pruned revision */
	struct tn_xfer_metadata metadata;
};

/* Dials and shakes hands, without the lock. */
static int dial(const struct tn_xfer_agent *a, const char *address, struct tn_xfer_shake *s, uint64_t pruned, uint64_t deadline_ns, struct dialled *d)
{
	int rc = tn_xfer_dial(address, deadline_ns, &d->sock);
	uint64_t bytes;
	void *metadata;

	d->has_metadata = false;
	if (rc)
		return rc;
	rc = tn_xfer_shake_hands(d->sock.fd, s, deadline_ns);
	if (rc == 0 && s->revision != pruned) {
		rc = ask(d->sock.fd, TN_XFER_FETCH, deadline_ns, &metadata, &bytes);
		if (rc == 0) {
			rc = tn_xfer_agent_unpack(a, metadata, bytes, &d->metadata);
			d->has_metadata = rc == 0;
			tn_put(&tn_alloc_system, metadata, bytes);
		}
	}
	if (rc)
		tn_xfer_socket_close(&d->sock);
	return rc;
}

/*
 * Metadata is bytes that anybody may have sent. So a process that it names is used only if it is the one that the kernel sees at the other end, or if the secret
 * has signed it.
 */
static int check_process(const struct tn_xfer_agent *a, const struct tn_xfer_backend *b, const struct tn_xfer_identity *id, int fd)
{
	uint32_t named = b->ops->process ? b->ops->process(b->self, id->identity, id->bytes) : 0, real = 0;
	bool seen = tn_xfer_socket_process(fd, &real) == 0;

	if (!named || (seen ? named == real : a->shared))
		return 0;
	if (!seen)
		return tn_fail(-EPERM, "backend %s: nothing proves that the peer is process %u: give both agents a secret, or let them listen on Unix sockets",
			       b->ops->name, named);
	return tn_fail(-EPERM, "backend %s: the metadata names process %u, and process %u listens", b->ops->name, named, real);
}

static void add_handles(struct tn_xfer_agent *a, struct tn_xfer_peer *p, int fd)
{
	forget_handles(a, p);
	for (uint32_t i = 0; i < p->head.nbackends; i++) {
		const struct tn_xfer_identity *id = &p->head.backend[i];

		for (uint32_t k = 0; k < a->nbackends; k++) {
			const struct tn_xfer_backend *b = &a->backend[k];
			int rc;

			if (strcmp(b->ops->name, id->name) || !b->ops->peer_add)
				continue;
			rc = check_process(a, b, id, fd);
			if (rc == 0)
				rc = tn_xfer_backend_told(b->ops, b->ops->peer_add(b->self, id->identity, id->bytes, &p->handle[k]));
			else if (b->ops->flags & TN_XFER_USES_MAPPED) /* memory that the peer sends a file of is its own */
				rc = tn_xfer_backend_told(b->ops, b->ops->peer_add(b->self, NULL, 0, &p->handle[k]));
			if (rc >= 0)
				p->reachable |= 1u << k;
			if (rc > 0)
				p->mapped_only |= 1u << k;
			if (rc)
				memcpy(p->why[k], tn_error_last()->text, sizeof(p->why[k]) - 1);
		}
	}
}

/* After a dial that has succeeded. */
static int take_over(struct tn_xfer_agent *a, struct tn_xfer_peer *p, struct dialled *d)
{
	int rc = 0;

	if (p->gone)
		return tn_fail(-ESTALE, "agent %s was forgotten meanwhile", p->head.name);
	if (d->has_metadata) {
		rc = tn_xfer_table_merge(&p->table, d->metadata.sec, d->metadata.n, TN_XFER_MERGE_PRUNE);
		if (rc == 0)
			set_pruned(p, d->metadata.head.revision);
	}
	p->conn = rc ? NULL : tn_xfer_control_adopt(&a->control, &d->sock, p);
	if (!p->conn)
		return tn_fail(-ENOMEM, "no memory for a connection to agent %s", p->head.name);
	p->state = TN_XFER_PEER_CONNECTED;
	add_handles(a, p, p->conn->sock.fd);
	return 0;
}

static int prepare_shake(const struct tn_xfer_agent *a, const struct tn_xfer_peer *p, struct tn_xfer_shake *s)
{
	*s = (struct tn_xfer_shake){.generation = {a->generation, p->head.generation}};
	if (!p->head.address[0])
		return tn_fail(-ECONNREFUSED, "agent %s listens nowhere: create it with an address", p->head.name);
	if (a->shared) {
		memcpy(s->key, a->key, a->key_bytes);
		s->key_bytes = a->key_bytes;
	} else if (p->head.flags & TN_XFER_META_KEY) {
		memcpy(s->key, p->head.key, TN_XFER_KEY_BYTES);
		s->key_bytes = TN_XFER_KEY_BYTES;
	} else {
		return tn_fail(-EACCES, "agent %s has a shared secret, and this agent has none", p->head.name);
	}
	memcpy(s->name[0], a->name, sizeof(a->name));
	memcpy(s->name[1], p->head.name, sizeof(p->head.name));
	return 0;
}

int tn_xfer_peer_open(struct tn_xfer_agent *a, const struct tn_xfer_peer *p, uint64_t deadline_ns, struct tn_xfer_socket *out)
{
	char address[TN_XFER_ADDRESS_BYTES];
	struct tn_xfer_shake s;
	int rc = prepare_shake(a, p, &s);

	if (rc)
		return rc;
	memcpy(address, p->head.address, sizeof(address));
	pthread_mutex_unlock(&a->lock);
	rc = tn_xfer_dial(address, deadline_ns, out);
	if (rc == 0) {
		rc = tn_xfer_shake_hands(out->fd, &s, deadline_ns);
		if (rc)
			tn_xfer_socket_close(out);
	}
	pthread_mutex_lock(&a->lock);
	return rc;
}

int tn_xfer_peer_connect(struct tn_xfer_agent *a, struct tn_xfer_peer *p, uint64_t deadline_ns)
{
	char address[TN_XFER_ADDRESS_BYTES];
	struct tn_xfer_shake s;
	struct dialled d;
	uint64_t pruned;
	int rc = 0;

	/* What is left of an older connection may still use its handles. */
	while ((p->dialling || (p->conn ? p->conn->closing : p->jobs > 0)) && rc == 0)
		rc = tn_cond_wait(&a->changed, &a->lock, deadline_ns);
	if (rc)
		return tn_fail(rc, "agent %s has not answered by the deadline", p->head.name);
	if (p->gone)
		return tn_fail(-ESTALE, "agent %s was forgotten: load its metadata", p->head.name);
	if (p->conn)
		return 0;
	if (p->state == TN_XFER_PEER_LOST)
		return tn_fail(-ECONNRESET, "agent %s is lost: load its metadata again", p->head.name);
	rc = prepare_shake(a, p, &s);
	if (rc)
		return rc;
	memcpy(address, p->head.address, sizeof(address));
	pruned = p->pruned_revision;
	p->dialling = true;
	pthread_mutex_unlock(&a->lock);
	rc = dial(a, address, &s, pruned, deadline_ns, &d);
	pthread_mutex_lock(&a->lock);
	p->dialling = false;
	pthread_cond_broadcast(&a->changed);
	if (rc)
		return tn_fail_cause(rc, "agent %s cannot be reached", s.name[1]);
	rc = take_over(a, p, &d);
	if (rc)
		tn_xfer_socket_close(&d.sock);
	if (d.has_metadata)
		tn_xfer_metadata_free(&d.metadata);
	return rc;
}
