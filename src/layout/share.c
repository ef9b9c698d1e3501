/* SPDX-License-Identifier: Apache-2.0 */
/* Shares: a rank's pool with its memory and its heads, checked, and as bytes. */
#include "layout/share.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"

#define SHARE_VERSION 1u

static const char share_magic[8] = "TNSHARE";

/* As it is written; bases, ranges and the checksum follow. */
struct serial {
	char magic[8];
	uint32_t version, nranges;
	uint64_t bytes; /* of all */
	unsigned char geometry[TN_GEOMETRY_BYTES];
	struct tn_rank_heads rank;
	uint32_t memory, device, zero;
	uint64_t npages;
	uint64_t stride[TN_PLANES_MAX];
};

_Static_assert(sizeof(struct serial) == 288, "no padding in what is written");

/* ---- check --------------------------------------------------------------------------------------------------------- */

static int check_rank(const struct tn_rank_heads *s, const struct tn_geometry *g)
{
	uint32_t heads;

	if (s->tp_size == 0 || s->tp_rank >= s->tp_size)
		return tn_fail(-EINVAL, "tp_rank %u of tp_size %u: a rank below the size is wanted", s->tp_rank, s->tp_size);
	if (s->kv_heads == 0 || (s->kv_heads % s->tp_size != 0 && s->tp_size % s->kv_heads != 0))
		return tn_fail(-EINVAL, "kv_heads %u over tp_size %u: one must divide the other", s->kv_heads, s->tp_size);
	heads = tn_rank_heads_count(s);
	for (uint32_t i = 0; i < g->nplanes; i++) {
		const struct tn_plane *p = &g->planes[i];

		if (p->kind != TN_PLANE_LATENT && p->kind != TN_PLANE_STATE && p->heads != heads)
			return tn_fail(-EINVAL, "plane %u has %u heads: kv_heads %u over tp_size %u make %u per rank", i, p->heads, s->kv_heads, s->tp_size,
				       heads);
	}
	return 0;
}

static int check_ranges(const struct tn_pool_share *s)
{
	uint64_t sum = 0;

	if (s->memory != TN_MEMORY_HOST && s->memory != TN_MEMORY_DEVICE)
		return tn_fail(-EINVAL, "memory %u: TN_MEMORY_HOST or TN_MEMORY_DEVICE is wanted", s->memory);
	if (s->nranges == 0 || s->nranges > TN_POOL_RANGES_MAX || !s->range)
		return tn_fail(-EINVAL, "%u ranges: 1 to %u are wanted", s->nranges, TN_POOL_RANGES_MAX);
	for (uint32_t i = 0; i < s->nranges; i++) {
		const struct tn_pool_range *r = &s->range[i];

		if (r->bytes == 0 || r->address > UINT64_MAX - r->bytes || r->bytes > INT64_MAX || sum > INT64_MAX - r->bytes)
			return tn_fail(-EINVAL, "range %u: %llu bytes at %#llx make no sense", i, (unsigned long long)r->bytes, (unsigned long long)r->address);
		sum += r->bytes;
	}
	return 0;
}

/* The bytes of all pages of a plane, from its base on; false: more than a memory has. */
static bool plane_extent(const struct tn_pool_share *s, uint32_t plane, uint64_t *out)
{
	uint64_t page = tn_geometry_page_bytes(&s->geometry, plane), extent;

	if (__builtin_mul_overflow(s->layout.npages - 1, s->layout.stride[plane], &extent) || __builtin_add_overflow(extent, page, &extent))
		return false;
	*out = extent;
	return true;
}

static int check_planes(const struct tn_pool_share *s)
{
	struct tn_share_cursor at = {0};

	for (uint32_t layer = 0; layer < s->geometry.layers; layer++) {
		for (uint32_t plane = 0; plane < s->geometry.nplanes; plane++) {
			uint64_t base = s->layout.base[layer * s->geometry.nplanes + plane], extent;

			if (s->layout.npages > 1 && s->layout.stride[plane] < tn_geometry_page_bytes(&s->geometry, plane))
				return tn_fail(-EINVAL, "plane %u: a stride of %llu bytes is shorter than its page, which has %u", plane,
					       (unsigned long long)s->layout.stride[plane], tn_geometry_page_bytes(&s->geometry, plane));
			if (!plane_extent(s, plane, &extent) || !tn_share_find(s, &at, base) || extent > s->range[at.range].bytes - (base - at.offset))
				return tn_fail(-EINVAL, "layer %u, plane %u: %llu pages from offset %llu on lie in no range of the memory", layer, plane,
					       (unsigned long long)s->layout.npages, (unsigned long long)base);
		}
	}
	return 0;
}

int tn_pool_share_check(const struct tn_pool_share *share)
{
	int rc = share ? tn_geometry_check(&share->geometry) : tn_fail(-EINVAL, "no share");

	if (rc == 0)
		rc = check_rank(&share->rank, &share->geometry);
	if (rc == 0)
		rc = check_ranges(share);
	if (rc)
		return rc;
	if (share->layout.npages == 0 || share->layout.npages > (UINT64_C(1) << 32) || !share->layout.base)
		return tn_fail(-EINVAL, "npages %llu: 1 to 2^32, and bases are wanted", (unsigned long long)share->layout.npages);
	return check_planes(share);
}

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

static uint64_t bases_of(const struct tn_geometry *g)
{
	return (uint64_t)g->layers * g->nplanes;
}

int64_t tn_pool_share_store(const struct tn_pool_share *share, void *buf, size_t len)
{
	struct serial head = {.version = SHARE_VERSION};
	uint64_t bases, bytes, sum;
	unsigned char *at = buf;
	int rc = tn_pool_share_check(share);

	if (rc)
		return rc;
	bases = bases_of(&share->geometry) * sizeof(uint64_t);
	bytes = sizeof(head) + bases + share->nranges * sizeof(*share->range) + sizeof(sum);
	if (bytes > len)
		return (int64_t)bytes;
	memcpy(head.magic, share_magic, sizeof(head.magic));
	head.nranges = share->nranges;
	head.bytes = bytes;
	rc = tn_geometry_store(&share->geometry, head.geometry, sizeof(head.geometry));
	if (rc < 0)
		return rc;
	head.rank = share->rank;
	head.memory = share->memory;
	head.device = share->device;
	head.npages = share->layout.npages;
	memcpy(head.stride, share->layout.stride, share->geometry.nplanes * sizeof(*head.stride));
	memcpy(at, &head, sizeof(head));
	memcpy(at + sizeof(head), share->layout.base, bases);
	memcpy(at + sizeof(head) + bases, share->range, share->nranges * sizeof(*share->range));
	sum = tn_hash64(at, bytes - sizeof(sum));
	memcpy(at + bytes - sizeof(sum), &sum, sizeof(sum));
	return (int64_t)bytes;
}

/* Magic, version, length and checksum, before any field is believed. */
static int open_envelope(const void *buf, size_t len, struct serial *head)
{
	uint64_t sum;

	if (len < sizeof(*head) + sizeof(sum))
		return tn_fail(-EBADMSG, "%zu bytes are too few for a share, which has at least %zu", len, sizeof(*head) + sizeof(sum));
	memcpy(head, buf, sizeof(*head));
	if (memcmp(head->magic, share_magic, sizeof(head->magic)) != 0)
		return tn_fail(-EBADMSG, "these bytes are no share: they do not begin with its magic");
	if (head->version != SHARE_VERSION)
		return tn_fail(-EPROTONOSUPPORT, "share version %u: this library reads %u; use the one that wrote it", head->version, SHARE_VERSION);
	if (head->bytes != len)
		return tn_fail(-EBADMSG, "a share of %zu bytes: it was written with %llu", len, (unsigned long long)head->bytes);
	memcpy(&sum, (const char *)buf + len - sizeof(sum), sizeof(sum));
	if (sum != tn_hash64(buf, len - sizeof(sum)))
		return tn_fail(-EBADMSG, "share damaged: its checksum does not match");
	return 0;
}

int64_t tn_pool_share_load(const void *buf, size_t len, struct tn_pool_share *out, uint64_t *table, size_t words)
{
	struct tn_pool_share s = {0};
	struct serial head;
	uint64_t bases, need;
	int rc = buf && out ? open_envelope(buf, len, &head) : tn_fail(-EINVAL, "bytes %p, share %p: both are wanted", buf, (void *)out);

	if (rc == 0) {
		rc = tn_geometry_load(head.geometry, sizeof(head.geometry), &s.geometry);
		rc = rc < 0 ? rc : 0;
	}
	if (rc)
		return rc;
	bases = bases_of(&s.geometry);
	if (head.nranges > TN_POOL_RANGES_MAX)
		return tn_fail(-EINVAL, "%u ranges: 1 to %u are wanted", head.nranges, TN_POOL_RANGES_MAX);
	need = bases + 2 * (uint64_t)head.nranges;
	if (len != sizeof(head) + (need + 1) * sizeof(uint64_t))
		return tn_fail(-EBADMSG, "a share of %zu bytes: its %llu numbers do not fit its length", len, (unsigned long long)need);
	if (need > words || !table)
		return (int64_t)need;
	memcpy(table, (const char *)buf + sizeof(head), need * sizeof(uint64_t));
	s.layout.npages = head.npages;
	s.layout.base = table;
	memcpy(s.layout.stride, head.stride, sizeof(s.layout.stride));
	s.rank = head.rank;
	s.memory = head.memory;
	s.device = head.device;
	s.nranges = head.nranges;
	s.range = (const struct tn_pool_range *)(table + bases);
	rc = tn_pool_share_check(&s);
	if (rc)
		return rc;
	*out = s;
	return (int64_t)need;
}
