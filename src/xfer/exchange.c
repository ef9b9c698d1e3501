/* SPDX-License-Identifier: Apache-2.0 */
/* Metadata given out and taken, peers, and what comes from them. */
#include "xfer/exchange.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/abi.h"
#include "base/clock.h"
#include "base/error.h"
#include "xfer/request.h"
#include "xfer/shared.h"

/* ---- metadata ---------------------------------------------------------------------------------------------------------- */

static void make_head(const struct tn_xfer_agent *a, struct tn_xfer_head *head)
{
	*head = (struct tn_xfer_head){.flags = a->shared ? TN_XFER_META_SIGNED : TN_XFER_META_KEY,
				      .generation = a->generation,
				      .revision = a->revision,
				      .boot = {a->boot[0], a->boot[1]},
				      .nbackends = a->nbackends};
	memcpy(head->name, a->name, sizeof(head->name));
	memcpy(head->address, a->listener.address, sizeof(head->address));
	if (!a->shared)
		memcpy(head->key, a->key, TN_XFER_KEY_BYTES);
	for (uint32_t i = 0; i < a->nbackends; i++) {
		const struct tn_xfer_backend *b = &a->backend[i];
		struct tn_xfer_identity *id = &head->backend[i];

		memcpy(id->name, b->ops->name, strlen(b->ops->name) + 1);
		if (b->ops->identity)
			id->bytes = (uint32_t)b->ops->identity(b->self, id->identity);
	}
}

/* With the lock: pointers to sections, in the order of the table or of the caller. *out: tn_put. */
static int choose_sections(struct tn_xfer_agent *a, enum tn_xfer_segment segment, const struct tn_xfer_section *sections, uint32_t n,
			   struct tn_xfer_sec ***out, uint32_t *count)
{
	uint32_t most = sections ? n : a->table.n;
	int rc = 0;

	*count = 0;
	*out = tn_get(&tn_alloc_system, tn_array_bytes((size_t)most + 1, sizeof(**out)));
	if (!*out)
		return tn_fail(-ENOMEM, "no memory for metadata of %u sections", most);
	for (uint32_t i = 0; i < most && rc == 0; i++) {
		struct tn_xfer_sec *sec = sections ? tn_xfer_table_exact(&a->table, segment, &sections[i]) : a->table.entry[i].sec;

		if (sec && !sec->revoked)
			(*out)[(*count)++] = sec;
		else if (sections)
			rc = tn_fail(-ENOENT, "section %u at %#llx is not registered", i, (unsigned long long)sections[i].address);
	}
	if (rc)
		tn_put(&tn_alloc_system, *out, tn_array_bytes((size_t)most + 1, sizeof(**out)));
	return rc;
}

int64_t tn_xfer_metadata(struct tn_xfer_agent *agent, enum tn_xfer_segment segment, const struct tn_xfer_section *sections, uint32_t n, void *out,
			 size_t bytes)
{
	struct tn_xfer_head head;
	struct tn_xfer_sec **secs;
	uint32_t count, most;
	int64_t rc;

	if (!agent || (bytes && !out) || (unsigned)segment >= TN_XFER_SEGMENTS)
		return tn_fail(-EINVAL, "agent %p, %zu bytes at %p, segment %d", (void *)agent, bytes, out, (int)segment);
	pthread_mutex_lock(&agent->lock);
	most = sections ? n : agent->table.n;
	rc = choose_sections(agent, segment, sections, n, &secs, &count);
	if (rc == 0) {
		make_head(agent, &head);
		head.flags |= sections ? TN_XFER_META_PARTIAL : 0;
		rc = (int64_t)tn_xfer_metadata_pack(&head, secs, count, out, bytes);
		tn_put(&tn_alloc_system, secs, tn_array_bytes((size_t)most + 1, sizeof(*secs)));
	}
	pthread_mutex_unlock(&agent->lock);
	if (rc > 0 && (uint64_t)rc <= bytes) {
		int sealed = tn_xfer_metadata_seal(out, (uint64_t)rc, agent->key, agent->key_bytes);

		rc = sealed ? sealed : rc;
	}
	return rc;
}

int tn_xfer_agent_load(struct tn_xfer_agent *agent, struct tn_xfer_metadata *m)
{
	struct tn_xfer_peer *old = NULL;
	int rc;

	pthread_mutex_lock(&agent->lock);
	rc = tn_xfer_peer_load(agent, m, &old);
	if (old) {
		tn_xfer_requests_fail(agent, old, -ESTALE);
		tn_xfer_peer_put(agent, old);
	}
	pthread_mutex_unlock(&agent->lock);
	return rc;
}

int tn_xfer_load(struct tn_xfer_agent *agent, const void *metadata, size_t bytes, char *name)
{
	struct tn_xfer_metadata m;
	int rc;

	if (!agent || !metadata)
		return tn_fail(-EINVAL, "agent %p, metadata %p: both are wanted", (void *)agent, metadata);
	rc = tn_xfer_agent_unpack(agent, metadata, bytes, &m);
	if (rc)
		return rc;
	rc = tn_xfer_agent_load(agent, &m);
	if (rc == 0 && name)
		memcpy(name, m.head.name, sizeof(m.head.name));
	tn_xfer_metadata_free(&m);
	return rc;
}

int tn_xfer_fetch(struct tn_xfer_agent *agent, const char *address, uint64_t deadline_ns, char *name)
{
	uint64_t bytes;
	void *metadata;
	int rc;

	if (!agent || !address)
		return tn_fail(-EINVAL, "agent %p, address %p: both are wanted", (void *)agent, (const void *)address);
	rc = tn_xfer_peer_fetch(agent, address, TN_XFER_FETCH, deadline_ns, &metadata, &bytes);
	if (rc)
		return rc;
	rc = tn_xfer_load(agent, metadata, bytes, name);
	tn_put(&tn_alloc_system, metadata, bytes);
	return rc;
}

int64_t tn_xfer_fetch_stats(struct tn_xfer_agent *agent, const char *address, uint64_t deadline_ns, char *out, size_t bytes)
{
	uint64_t n;
	void *text;
	int rc;

	if (!agent || !address || (bytes && !out))
		return tn_fail(-EINVAL, "agent %p, address %p, %zu bytes at %p: an agent, an address and memory are wanted", (void *)agent, (const void *)address,
			       bytes, (void *)out);
	rc = tn_xfer_peer_fetch(agent, address, TN_XFER_FETCH_STATS, deadline_ns, &text, &n);
	if (rc)
		return rc;
	if (bytes) {
		size_t copied = n < bytes ? n : bytes - 1;

		memcpy(out, text, copied);
		out[copied] = 0;
	}
	tn_put(&tn_alloc_system, text, n);
	return (int64_t)n;
}

/* ---- peers ------------------------------------------------------------------------------------------------------------- */

/* With the lock: NULL with detail. */
static struct tn_xfer_peer *known(struct tn_xfer_agent *a, const char *name)
{
	struct tn_xfer_peer *p = tn_xfer_peer_find(a, name);

	if (!p)
		tn_fail(-ENOENT, "agent %s: its metadata was not loaded", name);
	return p;
}

static int no_peer(struct tn_xfer_agent *agent, const char *peer)
{
	return agent && peer ? 0 : tn_fail(-EINVAL, "agent %p, name of a peer %p: both are wanted", (void *)agent, (const void *)peer);
}

int tn_xfer_connect(struct tn_xfer_agent *agent, const char *peer, uint64_t deadline_ns)
{
	struct tn_xfer_peer *p;
	int rc = no_peer(agent, peer);

	if (rc)
		return rc;
	pthread_mutex_lock(&agent->lock);
	p = known(agent, peer);
	rc = p ? 0 : -ENOENT;
	if (p) {
		p->refs++;
		rc = tn_xfer_peer_connect(agent, p, deadline_ns);
		tn_xfer_peer_put(agent, p);
	}
	pthread_mutex_unlock(&agent->lock);
	return rc;
}

int tn_xfer_invalidate(struct tn_xfer_agent *agent, const char *peer)
{
	struct tn_xfer_peer *p;
	int rc = no_peer(agent, peer);

	if (rc)
		return rc;
	pthread_mutex_lock(&agent->lock);
	p = known(agent, peer);
	if (p) {
		p->refs++;
		tn_xfer_peer_drop(agent, p);
		tn_xfer_requests_fail(agent, p, -ESTALE);
		tn_xfer_peer_put(agent, p);
	}
	pthread_mutex_unlock(&agent->lock);
	return p ? 0 : -ENOENT;
}

int tn_xfer_peer(struct tn_xfer_agent *agent, const char *peer, struct tn_xfer_peer_info *out)
{
	struct tn_xfer_peer_info info = {.size = sizeof(info)};
	const struct tn_xfer_peer *p;
	int rc = no_peer(agent, peer);

	if (rc == 0)
		rc = out ? tn_abi_check(TN_ABI_RESULT(tn_xfer_peer_info, revision), out) : tn_fail(-EINVAL, "no struct for the answer");
	if (rc)
		return rc;
	pthread_mutex_lock(&agent->lock);
	p = tn_xfer_peer_find(agent, peer);
	if (p) {
		info.state = p->state;
		info.sections = p->table.n;
		info.generation = p->head.generation;
		info.revision = p->head.revision;
	}
	pthread_mutex_unlock(&agent->lock);
	if (!p)
		return -ENOENT; /* an answer, no failure */
	tn_abi_out(TN_ABI_RESULT(tn_xfer_peer_info, revision), out, &info);
	return 0;
}

int tn_xfer_peer_sections(struct tn_xfer_agent *agent, const char *peer, uint32_t first, uint32_t n, struct tn_xfer_peer_section *out)
{
	const struct tn_xfer_peer *p;
	int count = 0, rc = no_peer(agent, peer);

	if (rc == 0 && n && !out)
		rc = tn_fail(-EINVAL, "no array for %u sections", n);
	if (rc)
		return rc;
	pthread_mutex_lock(&agent->lock);
	p = known(agent, peer);
	for (uint32_t i = first; p && i < p->table.n && i - first < n; i++, count++) {
		const struct tn_xfer_sec *s = p->table.entry[i].sec;

		out[count] = (struct tn_xfer_peer_section){s->address, s->end == UINT64_MAX ? 0 : s->end - s->address, s->device, s->segment, 0};
	}
	pthread_mutex_unlock(&agent->lock);
	return p ? count : -ENOENT;
}

/* With the lock. */
static int notify_peer(struct tn_xfer_agent *a, const char *name, const void *bytes, uint32_t n)
{
	struct tn_xfer_peer *p = known(a, name);
	int rc;

	if (!p)
		return -ENOENT;
	p->refs++;
	rc = tn_xfer_peer_connect(a, p, tn_now_ns(&tn_clock_system) + a->connect_ns);
	if (rc == 0) {
		rc = p->conn ? tn_xfer_conn_send(&a->control, p->conn, TN_XFER_NOTIFY, bytes, n, 0) : -ECONNRESET;
		if (rc)
			tn_fail(rc, rc == -ECONNRESET ? "agent %s is lost" : "too much waits to be sent to agent %s", name);
		a->stat[TN_XFER_STAT_NOTIFIED] += rc == 0;
	}
	tn_xfer_peer_put(a, p);
	return rc;
}

int tn_xfer_notify(struct tn_xfer_agent *agent, const char *peer, const void *notification, uint32_t bytes)
{
	int rc = no_peer(agent, peer);

	if (rc)
		return rc;
	if ((bytes && !notification) || bytes > TN_XFER_NOTIFICATION_MAX)
		return tn_fail(-EINVAL, "a notification of %u bytes at %p: at most %u", bytes, notification, TN_XFER_NOTIFICATION_MAX);
	pthread_mutex_lock(&agent->lock);
	if (!strcmp(peer, agent->name))
		rc = tn_xfer_enqueue(agent, agent->name, notification, bytes, false);
	else
		rc = notify_peer(agent, peer, notification, bytes);
	pthread_mutex_unlock(&agent->lock);
	return rc;
}

/* ---- what comes from peers --------------------------------------------------------------------------------------------- */

static void introduce(void *arg, struct tn_xfer_shake *s)
{
	const struct tn_xfer_agent *a = arg;

	memcpy(s->key, a->key, a->key_bytes);
	s->key_bytes = a->key_bytes;
	memcpy(s->name[1], a->name, sizeof(a->name));
	s->generation[1] = a->generation;
}

static void opened(void *arg, struct tn_xfer_conn *c)
{
	c->revoked = ((struct tn_xfer_agent *)arg)->revision;
}

static bool notified(void *arg, struct tn_xfer_conn *c, const void *bytes, uint32_t n)
{
	return tn_xfer_enqueue(arg, c->shake.name[0], bytes, n, c->revoked < c->told) == 0;
}

static void fetched(void *arg, struct tn_xfer_conn *c)
{
	struct tn_xfer_agent *a = arg;
	uint64_t bytes = 0;
	struct tn_xfer_head head;
	struct tn_xfer_sec **secs;
	uint32_t count, most = a->table.n;
	void *out = NULL;

	if (choose_sections(a, TN_XFER_DRAM, NULL, 0, &secs, &count)) {
		tn_xfer_conn_close(&a->control, c);
		return;
	}
	make_head(a, &head);
	bytes = tn_xfer_metadata_pack(&head, secs, count, NULL, 0);
	if (bytes <= TN_XFER_METADATA_MAX)
		out = tn_get(&tn_alloc_system, bytes);
	if (out)
		tn_xfer_metadata_pack(&head, secs, count, out, bytes);
	if (!out || tn_xfer_metadata_seal(out, bytes, a->key, a->key_bytes) || tn_xfer_conn_send(&a->control, c, TN_XFER_METADATA, out, (uint32_t)bytes, 2 * (uint64_t)TN_XFER_METADATA_MAX))
		tn_xfer_conn_close(&a->control, c);
	tn_put(&tn_alloc_system, out, bytes);
	tn_put(&tn_alloc_system, secs, tn_array_bytes((size_t)most + 1, sizeof(*secs)));
}

static void asked_stats(void *arg, struct tn_xfer_conn *c)
{
	const struct tn_xfer_agent *a = arg;
	char text[TN_XFER_STATS * 64];
	int n = 0;

	for (uint32_t i = 0; i < TN_XFER_STATS; i++)
		n += snprintf(text + n, sizeof(text) - (size_t)n, "%s %llu\n", tn_xfer_stat_name(i), (unsigned long long)a->stat[i]);
	tn_xfer_conn_send(&((struct tn_xfer_agent *)arg)->control, c, TN_XFER_STATISTICS, text, (uint32_t)n, 0); /* else the asker waits until his deadline */
}

static bool shared(void *arg, struct tn_xfer_conn *c, uint64_t id)
{
	struct tn_xfer_shared answer = {0};
	int fd = -1;

	answer.rc = tn_xfer_shared_file(arg, id, &fd, &answer.offset);
	return tn_xfer_send_shared(c->sock.fd, &answer, fd);
}

static void revoke(void *arg, struct tn_xfer_conn *c, uint64_t serial, const unsigned char *ids, uint32_t n)
{
	struct tn_xfer_agent *a = arg;
	struct tn_xfer_peer *p = c->peer;

	if (!p)
		return;
	tn_xfer_peer_revoke(p, serial, ids, n);
	if (!serial)
		return;
	c->revoking = serial;
	tn_xfer_requests_confirm(a, p);
}

static void wake_waiters(void *arg, struct tn_xfer_conn *c)
{
	pthread_cond_broadcast(&((struct tn_xfer_agent *)arg)->changed);
}

static void closed(void *arg, struct tn_xfer_conn *c)
{
	struct tn_xfer_agent *a = arg;
	struct tn_xfer_peer *p = c->peer;

	if (c->outgoing && p) {
		tn_xfer_peer_disconnect(p);
		if (p->state == TN_XFER_PEER_CONNECTED) /* else it was loaded since the connection was cut */
			p->state = TN_XFER_PEER_LOST;
		a->stat[TN_XFER_STAT_PEERS_LOST]++;
		tn_log(&a->log, TN_LOG_WARN, "agent %s is lost", p->head.name);
		tn_xfer_requests_fail(a, p, -ECONNRESET);
	}
	pthread_cond_broadcast(&a->changed);
	tn_xfer_raise(a);
}

static uint64_t overdue(void *arg, uint64_t now_ns)
{
	return tn_xfer_requests_overdue(arg, now_ns);
}

const struct tn_xfer_control_ops tn_xfer_agent_control_ops = {
	.introduce = introduce,
	.opened = opened,
	.notified = notified,
	.fetched = fetched,
	.asked_stats = asked_stats,
	.shared = shared,
	.revoke = revoke,
	.revoked = wake_waiters,
	.closed = closed,
	.overdue = overdue,
};
