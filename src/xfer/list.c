/* SPDX-License-Identifier: Apache-2.0 */
#include "xfer/list.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

static size_t list_bytes(uint32_t nruns)
{
	return sizeof(struct tn_xfer_list) + ((size_t)nruns + 1) * sizeof(struct tn_xfer_list_run);
}

static const char *segment_name(uint32_t segment)
{
	static const char *const names[TN_XFER_SEGMENTS] = {"DRAM", "VRAM", "BLOCK", "OBJECT", "FILE"};

	return segment < TN_XFER_SEGMENTS ? names[segment] : "unknown";
}

/* One past the last byte of a run. */
static int run_end(const struct tn_xfer_run *r, uint32_t i, uint64_t *end)
{
	uint64_t last, at;

	if (!r->count)
		return tn_fail(-EINVAL, "run %u has no descriptors: its count is 0", i);
	if (__builtin_mul_overflow(r->count - 1, r->stride, &last) || __builtin_add_overflow(r->address, last, &at) ||
	    __builtin_add_overflow(at, r->bytes, end))
		return tn_fail(-EINVAL, "run %u: %llu descriptors of %llu bytes at %#llx, %llu bytes apart, go beyond the last address", i,
			       (unsigned long long)r->count, (unsigned long long)r->bytes, (unsigned long long)r->address, (unsigned long long)r->stride);
	return 0;
}

static int set_run(const struct tn_xfer_table *t, struct tn_xfer_list *l, const struct tn_xfer_run *r, uint32_t i)
{
	struct tn_xfer_run own = *r;
	uint64_t end = 0;
	int rc;

	if (own.count == 1)
		own.stride = 0;
	rc = run_end(&own, i, &end);
	if (rc)
		return rc;
	if (l->count + own.count > TN_XFER_DESCRIPTORS_MAX || own.count > TN_XFER_DESCRIPTORS_MAX)
		return tn_fail(-E2BIG, "run %u: a list has at most %u descriptors", i, TN_XFER_DESCRIPTORS_MAX);
	l->run[i] = (struct tn_xfer_list_run){own.address, own.bytes, own.stride, l->count, NULL};
	l->run[i].sec = tn_xfer_table_cover(t, l->segment, own.device, own.address, end);
	if (!l->run[i].sec)
		return tn_fail(-ENOENT, "run %u: no %s section of device %llu has all of [%#llx, %#llx): register it%s%s", i, segment_name(l->segment),
			       (unsigned long long)own.device, (unsigned long long)own.address, (unsigned long long)end,
			       l->peer ? " at agent " : "", l->peer ? l->peer->head.name : "");
	l->run[i].sec->refs++;
	l->count += own.count;
	l->nruns = i + 1;
	return 0;
}

static void put_sections(struct tn_xfer_list *l)
{
	for (uint32_t i = 0; i < l->nruns; i++)
		tn_xfer_sec_put(l->run[i].sec);
}

static int find_peer(struct tn_xfer_agent *a, const char *name, struct tn_xfer_list *l)
{
	if (!name || !strcmp(name, a->name))
		return 0;
	l->peer = tn_xfer_peer_find(a, name);
	return l->peer ? 0 : tn_fail(-ENOENT, "agent %s: its metadata was not loaded", name);
}

int tn_xfer_list_create(struct tn_xfer_agent *agent, const char *peer, enum tn_xfer_segment segment, const struct tn_xfer_run *runs, uint32_t n,
			struct tn_xfer_list **out)
{
	struct tn_xfer_list *l;
	int rc;

	if (!agent || !out || (n && !runs) || (unsigned)segment >= TN_XFER_SEGMENTS)
		return tn_fail(-EINVAL, "a list of %u runs at %p of segment %d: an agent, an array and a segment are wanted", n, (const void *)runs, (int)segment);
	if (n > TN_XFER_DESCRIPTORS_MAX)
		return tn_fail(-E2BIG, "%u runs: a list has at most %u descriptors", n, TN_XFER_DESCRIPTORS_MAX);
	l = tn_get(&tn_alloc_system, list_bytes(n));
	if (!l)
		return tn_fail(-ENOMEM, "no memory for a list of %u runs", n);
	l->agent = agent;
	l->segment = segment;
	pthread_mutex_lock(&agent->lock);
	rc = find_peer(agent, peer, l);
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = set_run(l->peer ? &l->peer->table : &agent->table, l, &runs[i], i);
	if (rc == 0) {
		l->run[n].first = l->count;
		if (l->peer)
			l->peer->refs++;
		agent->nlists++;
	} else {
		put_sections(l);
	}
	pthread_mutex_unlock(&agent->lock);
	if (rc) {
		tn_put(&tn_alloc_system, l, list_bytes(n));
		return rc;
	}
	*out = l;
	return 0;
}

uint64_t tn_xfer_list_count(const struct tn_xfer_list *list)
{
	return list ? list->count : 0;
}

void tn_xfer_list_destroy(struct tn_xfer_list *list)
{
	struct tn_xfer_agent *a;

	if (!list)
		return;
	a = list->agent;
	pthread_mutex_lock(&a->lock);
	put_sections(list);
	if (list->peer)
		tn_xfer_peer_put(a, list->peer);
	a->nlists--;
	pthread_mutex_unlock(&a->lock);
	tn_put(&tn_alloc_system, list, list_bytes(list->nruns));
}
