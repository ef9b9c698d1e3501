/* SPDX-License-Identifier: Apache-2.0 */
/* Registering an agent's sections, and taking them back. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/thread.h"
#include "xfer/agent.h"
#include "xfer/backends.h"
#include "xfer/shared.h"

static int check(const struct tn_xfer_agent *a, enum tn_xfer_segment segment, const struct tn_xfer_section *s, uint32_t n)
{
	if (!a || (n && !s) || (unsigned)segment >= TN_XFER_SEGMENTS)
		return tn_fail(-EINVAL, "%u sections at %p of segment %d: an agent, an array and a segment are wanted", n, (const void *)s, (int)segment);
	for (uint32_t i = 0; i < n; i++) {
		if (!s[i].bytes && (segment == TN_XFER_DRAM || segment == TN_XFER_VRAM))
			return tn_fail(-EINVAL, "section %u at %#llx has 0 bytes: at least one is wanted", i, (unsigned long long)s[i].address);
		if (s[i].address + s[i].bytes < s[i].address || (!s[i].address && segment == TN_XFER_DRAM))
			return tn_fail(-EINVAL, "section %u: %llu bytes at %#llx are no range of addresses", i, (unsigned long long)s[i].bytes,
				       (unsigned long long)s[i].address);
		if (s[i].meta && strlen(s[i].meta) >= TN_XFER_META_BYTES)
			return tn_fail(-EINVAL, "section %u: its meta has %zu bytes, at most %u", i, strlen(s[i].meta), TN_XFER_META_BYTES - 1);
	}
	return 0;
}

/* ---- register ---------------------------------------------------------------------------------------------------------- */

/* From all backends that have it. Without the lock: a backend may close a file. */
static void give_back(struct tn_xfer_agent *a, struct tn_xfer_sec *sec)
{
	for (uint32_t i = 0; i < TN_XFER_BACKENDS_MAX; i++)
		if (sec->backends & 1u << i && a->backend[i].ops->section_remove)
			a->backend[i].ops->section_remove(a->backend[i].self, sec->handle[i]);
	sec->backends = 0;
}

/* What peers have to know of the section for backend i. */
static int make_key(struct tn_xfer_agent *a, uint32_t i, struct tn_xfer_sec *sec)
{
	const struct tn_xfer_backend *b = &a->backend[i];
	unsigned char key[TN_XFER_SECTION_KEY_MAX];
	size_t bytes = b->ops->section_key ? b->ops->section_key(b->self, sec->handle[i], key) : 0;

	return bytes && tn_xfer_sec_set_key(sec, i, key, (uint32_t)bytes) ? tn_fail(-ENOMEM, "no memory for the key of a section") : 0;
}

/* With every backend of the first n that takes the segment. */
static int give_out(struct tn_xfer_agent *a, uint32_t n, struct tn_xfer_sec *sec, const struct tn_xfer_section *s)
{
	uint32_t takers = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct tn_xfer_backend *b = &a->backend[i];
		int rc;

		if (!(b->ops->segments & 1u << sec->segment))
			continue;
		takers++;
		rc = b->ops->section_add ? tn_xfer_backend_told(b->ops, b->ops->section_add(b->self, sec->segment, s, &sec->handle[i])) : 0;
		if (rc == -ENOTSUP)
			continue;
		if (rc == 0) {
			sec->backends |= 1u << i;
			rc = make_key(a, i, sec);
		}
		if (rc) {
			give_back(a, sec);
			return tn_fail_cause(rc, "backend %s takes no section at %#llx of device %llu", b->ops->name, (unsigned long long)s->address,
					     (unsigned long long)s->device);
		}
	}
	if (!sec->backends && takers)
		return tn_fail_cause(-ENOTSUP, "no backend of agent %s takes the section of segment %u", a->name, sec->segment);
	if (!sec->backends)
		return tn_fail(-ENOTSUP, "no backend of agent %s takes sections of segment %u", a->name, sec->segment);
	return 0;
}

/* With every backend that takes it. 0, or -errno with detail. */
static int make(struct tn_xfer_agent *a, enum tn_xfer_segment segment, const struct tn_xfer_section *s, uint32_t nbackends, struct tn_xfer_sec **out)
{
	struct tn_xfer_sec *sec = tn_xfer_sec_new(segment, s);
	int rc = sec ? give_out(a, nbackends, sec, s) : tn_fail(-ENOMEM, "no memory for another section");

	if (rc == 0) {
		rc = tn_xfer_share_section(sec, s->meta);
		if (rc)
			give_back(a, sec);
	}
	if (rc == 0)
		*out = sec;
	else if (sec)
		tn_xfer_sec_put(sec);
	return rc;
}

/* Sections that are being registered. */
struct entering {
	struct tn_xfer_agent *a;
	enum tn_xfer_segment segment;
	const struct tn_xfer_section *s;
	uint32_t n;
	struct tn_xfer_sec **made; /* n; NULL: the table had it */
	struct tn_xfer_sec **sorted; /* those that were made */
	uint32_t nsorted;
};

/* With the lock. 0; -EAGAIN: the table has one no more; or -errno with detail. */
static int check_known(const struct entering *e)
{
	for (uint32_t i = 0; i < e->n; i++) {
		const struct tn_xfer_sec *known = tn_xfer_table_exact(&e->a->table, e->segment, &e->s[i]);

		if (known && known->revoked)
			return tn_fail(-EBUSY, "section %u: the one at %#llx is about to be deregistered: peers have not confirmed it yet", i,
				       (unsigned long long)e->s[i].address);
		if (!known && !e->made[i])
			return -EAGAIN;
	}
	return 0;
}

/* With the lock: a file or object has one number, and a number one file or object. */
static int check_meta(const struct entering *e)
{
	for (uint32_t i = 0; i < e->nsorted; i++) {
		const struct tn_xfer_sec *sec = e->sorted[i], *other = tn_xfer_table_sibling(&e->a->table, sec->segment, sec->device);

		if (!other && i && e->sorted[i - 1]->device == sec->device)
			other = e->sorted[i - 1];
		if (other && strcmp(other->meta ? other->meta : "", sec->meta ? sec->meta : ""))
			return tn_fail(-EINVAL, "device %llu is %s already, it cannot be %s, too: give each its own number", (unsigned long long)sec->device,
				       other->meta ? other->meta : "a descriptor", sec->meta ? sec->meta : "a descriptor");
	}
	return 0;
}

/* With the lock: all or none. Those that the table takes have a second reference then. */
static int enter(struct entering *e)
{
	struct tn_xfer_agent *a = e->a;
	int rc = check_known(e);

	e->nsorted = 0;
	for (uint32_t i = 0; i < e->n && rc == 0; i++)
		if (e->made[i])
			e->sorted[e->nsorted++] = e->made[i];
	tn_xfer_secs_sort(e->sorted, e->nsorted);
	if (rc == 0)
		rc = check_meta(e);
	if (rc == 0 && e->nsorted > TN_XFER_SECTIONS_MAX - a->table.n)
		rc = tn_fail(-ENOSPC, "agent %s has %u sections: %u more are beyond the %u that it takes", a->name, a->table.n, e->nsorted, TN_XFER_SECTIONS_MAX);
	if (rc == 0 && tn_xfer_table_merge(&a->table, e->sorted, e->nsorted, TN_XFER_MERGE_ADD))
		rc = tn_fail(-ENOMEM, "no memory for %u more sections", e->nsorted);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < e->n; i++) {
		struct tn_xfer_sec *sec = e->made[i];

		if (!sec)
			tn_xfer_table_exact(&a->table, e->segment, &e->s[i])->registrations++;
		if (!sec || sec->refs == 1)
			continue;
		sec->id = ++a->last_id;
		a->stat[TN_XFER_STAT_SECTIONS]++;
		if (sec->end != UINT64_MAX)
			a->stat[TN_XFER_STAT_REGISTERED_BYTES] += sec->end - sec->address;
	}
	a->revision += e->nsorted != 0;
	return 0;
}

/* Those that the table lacks are made without the lock. It may lose one meanwhile, which is then made, too. */
static int register_all(struct entering *e)
{
	struct tn_xfer_agent *a = e->a;
	int rc;

	do {
		rc = 0;
		for (uint32_t i = 0; i < e->n && rc == 0; i++) {
			bool known;
			uint32_t nbackends;

			pthread_mutex_lock(&a->lock);
			known = tn_xfer_table_exact(&a->table, e->segment, &e->s[i]) != NULL;
			nbackends = a->nbackends;
			pthread_mutex_unlock(&a->lock);
			if (known || e->made[i])
				continue;
			rc = make(a, e->segment, &e->s[i], nbackends, &e->made[i]);
			if (rc)
				tn_fail_cause(rc, "section %u", i);
		}
		if (rc)
			return rc;
		pthread_mutex_lock(&a->lock);
		rc = enter(e);
		pthread_mutex_unlock(&a->lock);
	} while (rc == -EAGAIN);
	return rc;
}

int tn_xfer_register(struct tn_xfer_agent *agent, enum tn_xfer_segment segment, const struct tn_xfer_section *sections, uint32_t n)
{
	struct entering e = {agent, segment, sections, n, NULL, NULL, 0};
	size_t bytes = tn_array_bytes((size_t)n + 1, sizeof(*e.made));
	int rc = check(agent, segment, sections, n);

	if (rc)
		return rc;
	e.made = tn_get(&tn_alloc_system, bytes);
	e.sorted = tn_get(&tn_alloc_system, bytes);
	rc = e.made && e.sorted ? register_all(&e) : tn_fail(-ENOMEM, "no memory for %u sections", n);
	for (uint32_t i = 0; e.made && i < n; i++) {
		if (!e.made[i])
			continue;
		if (rc || !e.made[i]->id)
			give_back(agent, e.made[i]);
		tn_xfer_sec_put(e.made[i]);
	}
	tn_put(&tn_alloc_system, e.made, bytes);
	tn_put(&tn_alloc_system, e.sorted, bytes);
	return rc;
}

/* ---- deregister -------------------------------------------------------------------------------------------------------- */

/*
 * With the lock: whether all may go. Counts down what would be taken back, so that a section which is named twice needs two registrations, and then up again. Those
 * that are revoked already only wait for their peers.
 */
static int may_go(struct tn_xfer_agent *a, enum tn_xfer_segment segment, const struct tn_xfer_section *s, uint32_t n)
{
	uint32_t counted;
	int rc = 0;

	for (counted = 0; counted < n && rc == 0; counted++) {
		struct tn_xfer_sec *sec = tn_xfer_table_exact(&a->table, segment, &s[counted]);

		if (sec && sec->revoked)
			continue;
		if (!sec || !sec->registrations) {
			rc = tn_fail(-ENOENT, "section %u, %llu bytes at %#llx of device %llu, is not registered%s", counted, (unsigned long long)s[counted].bytes,
				     (unsigned long long)s[counted].address, (unsigned long long)s[counted].device, sec ? " as often" : "");
			break;
		}
		if (!--sec->registrations && sec->users)
			rc = tn_fail(-EBUSY, "section %u at %#llx is used by %u requests: release them first", counted, (unsigned long long)sec->address,
				     sec->users);
	}
	while (counted--) {
		struct tn_xfer_sec *sec = tn_xfer_table_exact(&a->table, segment, &s[counted]);

		sec->registrations += !sec->revoked;
	}
	return rc;
}

/* With the lock: counts down; those that are left without a registration are revoked, and peers told. */
static void revoke(struct tn_xfer_agent *a, enum tn_xfer_segment segment, const struct tn_xfer_section *s, uint32_t n, uint64_t serial)
{
	uint64_t message[TN_XFER_REVOKE_IDS + 1];
	uint32_t ids = 0;
	bool any = false;

	for (uint32_t i = 0; i <= n; i++) {
		struct tn_xfer_sec *sec = i < n ? tn_xfer_table_exact(&a->table, segment, &s[i]) : NULL;

		if (sec && !sec->revoked && --sec->registrations == 0) {
			sec->revoked = true;
			sec->revocation = serial;
			message[++ids] = sec->id;
			any = true;
		}
		if (!any || (i < n && ids < TN_XFER_REVOKE_IDS))
			continue;
		message[0] = i < n ? 0 : serial; /* what is confirmed comes last */
		for (struct tn_list *pos = a->control.conns.next; pos != &a->control.conns; pos = pos->next) {
			struct tn_xfer_conn *c = tn_container_of(pos, struct tn_xfer_conn, link);

			if (c->outgoing || c->state != TN_XFER_CONN_OPEN || c->ended)
				continue;
			c->told = serial;
			if (tn_xfer_conn_send(&a->control, c, TN_XFER_REVOKE, message, (uint32_t)((ids + 1) * sizeof(*message)), TN_XFER_METADATA_MAX) &&
			    !c->ended)
				tn_xfer_conn_close(&a->control, c); /* no memory: a peer that cannot be told is cut off */
		}
		ids = 0;
	}
	if (any)
		tn_xfer_control_wake(&a->control); /* connections whose notifications found no place */
}

/* With the lock: a peer that has not confirmed; NULL: all have. */
static const struct tn_xfer_conn *unconfirmed(const struct tn_xfer_agent *a, uint64_t serial)
{
	for (struct tn_list *pos = a->control.conns.next; pos != &a->control.conns; pos = pos->next) {
		const struct tn_xfer_conn *c = tn_container_of(pos, struct tn_xfer_conn, link);

		if (!c->outgoing && c->state == TN_XFER_CONN_OPEN && !c->ended && c->revoked < serial)
			return c;
	}
	return NULL;
}

/* With the lock, which is given back while backends close files. Takes revoked sections out. */
static void remove_all(struct tn_xfer_agent *a, enum tn_xfer_segment segment, const struct tn_xfer_section *s, uint32_t n)
{
	struct tn_xfer_sec *first = NULL, *sec;

	for (uint32_t i = 0; i < n; i++) {
		sec = tn_xfer_table_exact(&a->table, segment, &s[i]);
		if (!sec || !sec->revoked || sec->leaving)
			continue;
		sec->leaving = true;
		sec->refs++;
		sec->next = first;
		first = sec;
		a->stat[TN_XFER_STAT_SECTIONS]--;
		if (sec->end != UINT64_MAX)
			a->stat[TN_XFER_STAT_REGISTERED_BYTES] -= sec->end - sec->address;
	}
	if (!first)
		return;
	tn_xfer_table_sweep(&a->table);
	while ((sec = first) != NULL) {
		first = sec->next;
		pthread_mutex_unlock(&a->lock);
		give_back(a, sec);
		pthread_mutex_lock(&a->lock);
		tn_xfer_sec_put(sec);
	}
}

/*
 * With the lock: the call is made again, so what it has counted down is counted up again. Those that are revoked stay so. Sections newer than the call have taken
 * the place of some that another call took out.
 */
static void count_up(struct tn_xfer_agent *a, enum tn_xfer_segment segment, const struct tn_xfer_section *s, uint32_t n, uint64_t last_id)
{
	for (uint32_t i = 0; i < n; i++) {
		struct tn_xfer_sec *sec = tn_xfer_table_exact(&a->table, segment, &s[i]);

		if (sec && !sec->revoked && sec->id <= last_id)
			sec->registrations++;
	}
}

int tn_xfer_deregister(struct tn_xfer_agent *agent, enum tn_xfer_segment segment, const struct tn_xfer_section *sections, uint32_t n,
		       uint64_t deadline_ns)
{
	const struct tn_xfer_conn *c;
	uint64_t serial = 0, last_id;
	int rc = check(agent, segment, sections, n);

	if (rc)
		return rc;
	pthread_mutex_lock(&agent->lock);
	last_id = agent->last_id;
	rc = may_go(agent, segment, sections, n);
	if (rc == 0) {
		revoke(agent, segment, sections, n, ++agent->revision);
		for (uint32_t i = 0; i < n; i++) {
			const struct tn_xfer_sec *sec = tn_xfer_table_exact(&agent->table, segment, &sections[i]);

			if (sec->revoked && sec->revocation > serial)
				serial = sec->revocation;
		}
		while ((c = unconfirmed(agent, serial)) != NULL && rc == 0)
			rc = tn_cond_wait(&agent->changed, &agent->lock, deadline_ns);
		rc = c ? tn_fail(-EBUSY, "agent %s has not confirmed that it uses none of the sections: deregister them again later", c->shake.name[0]) : 0;
		if (rc)
			count_up(agent, segment, sections, n, last_id);
	}
	if (rc == 0)
		remove_all(agent, segment, sections, n);
	pthread_mutex_unlock(&agent->lock);
	return rc;
}

/* ---- query ------------------------------------------------------------------------------------------------------------- */

int tn_xfer_query(struct tn_xfer_agent *agent, enum tn_xfer_segment segment, const struct tn_xfer_section *sections, uint32_t n,
		  struct tn_xfer_found *out)
{
	const struct tn_xfer_backend *b = NULL;
	int rc = check(agent, segment, sections, n);

	if (rc == 0 && n && !out)
		rc = tn_fail(-EINVAL, "no array for %u answers", n);
	if (rc)
		return rc;
	pthread_mutex_lock(&agent->lock);
	for (uint32_t i = 0; i < agent->nbackends && !b; i++)
		if (agent->backend[i].ops->query && segment != TN_XFER_DRAM && agent->backend[i].ops->segments & 1u << segment)
			b = &agent->backend[i];
	pthread_mutex_unlock(&agent->lock);
	if (!b)
		return tn_fail(-ENOTSUP, "no backend of agent %s knows what exists of segment %u", agent->name, (unsigned)segment);
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = tn_xfer_backend_told(b->ops, b->ops->query(b->self, segment, &sections[i], &out[i]));
	return rc;
}
