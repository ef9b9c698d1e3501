/* SPDX-License-Identifier: Apache-2.0 */
/* Peers: agents whose metadata was loaded, and the connections to them. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
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
	p->reachable = 0;
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

static struct tn_xfer_record record_at(const unsigned char *records, uint32_t i)
{
	struct tn_xfer_record r;

	memcpy(&r, records + (uint64_t)i * sizeof(r), sizeof(r));
	return r;
}

/* Sections that the records lack are gone. registrations, which a peer's sections have no other use for, marks those that are there. */
static void prune(struct tn_xfer_peer *p, const unsigned char *records, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct tn_xfer_record r = record_at(records, i);
		struct tn_xfer_section s = {r.address, r.end == UINT64_MAX ? 0 : r.end - r.address, r.device, NULL};
		struct tn_xfer_sec *sec = tn_xfer_table_exact(&p->table, r.segment, &s);

		if (sec && sec->id == r.id)
			sec->registrations = 1;
	}
	for (uint32_t i = 0; i < p->table.n; i++) {
		struct tn_xfer_sec *sec = p->table.entry[i].sec;

		sec->revoked = sec->leaving = !sec->registrations;
		sec->registrations = 0;
	}
	tn_xfer_table_sweep(&p->table);
}

/* What was revoked up to the revision is out of the table. Metadata that was loaded while the agent dialled may be newer. */
static void set_pruned(struct tn_xfer_peer *p, uint64_t revision)
{
	if (revision > p->head.revision)
		p->head.revision = revision;
	if (revision > p->pruned_revision)
		p->pruned_revision = revision;
}

static int add_sections(struct tn_xfer_agent *a, struct tn_xfer_peer *p, const unsigned char *records, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct tn_xfer_record r = record_at(records, i);
		struct tn_xfer_section s = {r.address, r.end == UINT64_MAX ? 0 : r.end - r.address, r.device, NULL};
		struct tn_xfer_sec *sec = tn_xfer_table_exact(&p->table, r.segment, &s);

		if (sec && sec->id == r.id)
			continue;
		if (sec) {
			sec->revoked = sec->leaving = true; /* registered anew since */
			tn_xfer_table_sweep(&p->table);
		}
		sec = tn_xfer_sec_new(r.segment, &s);
		if (!sec)
			return -ENOMEM;
		sec->id = r.id;
		sec->backends = map_backends(a, &p->head, r.backends);
		if (tn_xfer_table_add(&p->table, sec)) {
			tn_xfer_sec_put(sec);
			return -ENOMEM;
		}
	}
	return 0;
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

static int check_head(const struct tn_xfer_agent *a, const struct tn_xfer_head *head, const struct tn_xfer_peer *known)
{
	uint64_t generation = known ? known->head.generation : 0;

	if (!strcmp(head->name, a->name))
		return tn_fail(-EINVAL, "metadata of agent %s: it has this agent's own name", head->name);
	if (head->generation < generation)
		return tn_fail(-ESTALE, "metadata of agent %s: a newer agent of this name was loaded already", head->name);
	if (head->generation == generation && head->revision < known->head.revision)
		return tn_fail(-ESTALE, "metadata of agent %s has revision %llu, and %llu is known: take it again", head->name,
			       (unsigned long long)head->revision, (unsigned long long)known->head.revision);
	if (!map_backends(a, head, UINT32_MAX))
		return tn_fail(-ENOTSUP, "metadata of agent %s: this agent has none of its %u backends (the first is %s)", head->name, head->nbackends,
			       head->nbackends ? head->backend[0].name : "missing");
	return 0;
}

int tn_xfer_peer_load(struct tn_xfer_agent *a, const void *metadata, uint64_t bytes, struct tn_xfer_peer **old, char *name)
{
	struct tn_xfer_head head;
	const unsigned char *records;
	struct tn_xfer_peer *p;
	uint32_t n;
	int rc = tn_xfer_metadata_unpack(metadata, bytes, &head, &records, &n);

	*old = NULL;
	if (rc)
		return rc;
	p = tn_xfer_peer_find(a, head.name);
	rc = check_head(a, &head, p);
	if (rc)
		return rc;
	if (p && p->head.generation != head.generation) {
		*old = p;
		p->refs++;
		tn_xfer_peer_drop(a, p);
		p = NULL;
	}
	if (!p)
		p = peer_new(a);
	if (!p)
		return -ENOMEM;
	p->head = head;
	p->backends = map_backends(a, &head, UINT32_MAX);
	if (p->state == TN_XFER_PEER_LOST)
		p->state = TN_XFER_PEER_LOADED;
	if (!(head.flags & TN_XFER_META_PARTIAL)) {
		prune(p, records, n);
		set_pruned(p, head.revision);
	}
	if (name)
		memcpy(name, head.name, sizeof(head.name));
	return add_sections(a, p, records, n);
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

/* Asks for metadata on a connection that has just opened. Nothing is used on it yet, so that revocations on the way are confirmed at once. */
static int ask_metadata(int fd, uint64_t deadline_ns, void **out, uint64_t *bytes)
{
	unsigned char ids[sizeof(uint64_t) * (TN_XFER_REVOKE_IDS + 1)];
	struct tn_xfer_message head;
	int rc = tn_xfer_send_all(fd, TN_XFER_FETCH, NULL, 0, deadline_ns);

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
	if (head.type != TN_XFER_METADATA || head.bytes > TN_XFER_METADATA_MAX || !head.bytes)
		return tn_fail(-EPROTO, "message %u of %u bytes in place of metadata", head.type, head.bytes);
	*out = tn_get(&tn_alloc_system, head.bytes);
	if (!*out)
		return -ENOMEM;
	*bytes = head.bytes;
	rc = tn_xfer_receive_bytes(fd, *out, head.bytes, deadline_ns);
	if (rc)
		tn_put(&tn_alloc_system, *out, head.bytes);
	return rc;
}

int tn_xfer_peer_fetch(struct tn_xfer_agent *a, const char *address, uint64_t deadline_ns, void **out, uint64_t *bytes)
{
	struct tn_xfer_shake s = {.key_bytes = a->key_bytes, .generation = {a->generation, 0}};
	int fd, rc;

	if (!a->shared)
		return tn_fail(-EINVAL, "agent %s has no secret: to fetch metadata both agents have the same (secret of struct tn_xfer_agent_opts)", a->name);
	memcpy(s.key, a->key, a->key_bytes);
	memcpy(s.name[0], a->name, sizeof(a->name));
	rc = tn_xfer_dial(address, deadline_ns, &fd);
	if (rc)
		return rc;
	rc = tn_xfer_shake_hands(fd, &s, deadline_ns);
	if (rc == 0)
		rc = ask_metadata(fd, deadline_ns, out, bytes);
	close(fd);
	return rc;
}

/* Dials and shakes hands, without the lock. *metadata: NULL if nothing was registered or revoked since the pruned revision. */
static int dial(const char *address, struct tn_xfer_shake *s, uint64_t pruned, uint64_t deadline_ns, int *fd, void **metadata, uint64_t *bytes)
{
	int rc = tn_xfer_dial(address, deadline_ns, fd);

	*metadata = NULL;
	if (rc)
		return rc;
	rc = tn_xfer_shake_hands(*fd, s, deadline_ns);
	if (rc == 0 && s->revision != pruned)
		rc = ask_metadata(*fd, deadline_ns, metadata, bytes);
	if (rc)
		close(*fd);
	return rc;
}

static void add_handles(struct tn_xfer_agent *a, struct tn_xfer_peer *p)
{
	forget_handles(a, p);
	for (uint32_t i = 0; i < p->head.nbackends; i++) {
		const struct tn_xfer_identity *id = &p->head.backend[i];

		for (uint32_t k = 0; k < a->nbackends; k++) {
			const struct tn_xfer_backend *b = &a->backend[k];

			if (strcmp(b->ops->name, id->name))
				continue;
			if (!b->ops->peer_add)
				continue;
			if (tn_xfer_backend_told(b->ops, b->ops->peer_add(b->self, id->identity, id->bytes, &p->handle[k])) == 0)
				p->reachable |= 1u << k;
			else
				memcpy(p->why[k], tn_error_last()->text, sizeof(p->why[k]) - 1);
		}
	}
}

/* After a dial that has succeeded. */
static int take_over(struct tn_xfer_agent *a, struct tn_xfer_peer *p, int fd, const void *metadata, uint64_t bytes)
{
	if (metadata && !p->gone) {
		struct tn_xfer_head head;
		const unsigned char *records;
		uint32_t n;
		int rc = tn_xfer_metadata_unpack(metadata, bytes, &head, &records, &n);

		if (rc)
			return rc;
		prune(p, records, n);
		set_pruned(p, head.revision);
	}
	if (p->gone)
		return tn_fail(-ESTALE, "agent %s was forgotten meanwhile", p->head.name);
	p->conn = tn_xfer_control_adopt(&a->control, fd, p);
	if (!p->conn)
		return -ENOMEM;
	p->state = TN_XFER_PEER_CONNECTED;
	add_handles(a, p);
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

int tn_xfer_peer_connect(struct tn_xfer_agent *a, struct tn_xfer_peer *p, uint64_t deadline_ns)
{
	char address[TN_XFER_ADDRESS_BYTES];
	struct tn_xfer_shake s;
	uint64_t pruned, bytes = 0;
	void *metadata;
	int fd, rc = 0;

	/* What is left of an older connection may still use its handles. */
	while ((p->dialling || (!p->conn && p->jobs)) && rc == 0)
		rc = tn_xfer_changed(a, deadline_ns);
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
	rc = dial(address, &s, pruned, deadline_ns, &fd, &metadata, &bytes);
	pthread_mutex_lock(&a->lock);
	p->dialling = false;
	pthread_cond_broadcast(&a->changed);
	if (rc)
		return tn_fail_cause(rc, "agent %s cannot be reached", s.name[1]);
	rc = take_over(a, p, fd, metadata, bytes);
	if (rc)
		close(fd);
	tn_put(&tn_alloc_system, metadata, bytes);
	return rc;
}
