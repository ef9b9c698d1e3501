/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shape of KV: sizes of pages, objects and blocks, and the serialised form of a geometry.
 *
 * All arithmetic on sizes that a caller or a disk may have made up happens here, once, with overflow
 * checks. What passed tn_geometry_check has objects of at most 2^30 bytes and blocks of at most 2^42. The tokens of a
 * block are not bounded by its bytes, because a state plane has none per token: they need 64 bits, and go up to 2^44.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "layout/layout.h"

#define GEOMETRY_VERSION 1u

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a geometry is serialised by copying it");

static const unsigned char geometry_magic[8] = {'T', 'N', 'G', 'E', 'O', 'M', 0, 0};

/* The serialised form: see TN_GEOMETRY_BYTES. */
struct serial {
	unsigned char magic[sizeof(geometry_magic)];
	uint32_t version;
	struct tn_geometry g;
	uint64_t checksum;
};
static_assert(sizeof(struct serial) == TN_GEOMETRY_BYTES && offsetof(struct serial, checksum) == TN_GEOMETRY_BYTES - 8,
	      "no padding");

/* Bits of one page of a plane; false on overflow. */
static bool page_bits(const struct tn_geometry *g, const struct tn_plane *p, uint64_t *bits)
{
	uint64_t tokens = p->kind == TN_PLANE_STATE ? 1 : g->page_tokens;
	uint64_t n = (uint64_t)p->heads * p->head_dim;

	return !__builtin_mul_overflow(n, tokens, &n) && !__builtin_mul_overflow(n, p->elem_bits, bits);
}

/* Adds the plane's page bytes to *sum. */
static int plane_check(const struct tn_geometry *g, uint32_t i, uint64_t *sum)
{
	const struct tn_plane *p = &g->planes[i];
	uint64_t bits;

	if (p->kind > TN_PLANE_STATE)
		return tn_fail(-EINVAL, "plane %u: kind %u is unknown, the last is %u", i, p->kind, TN_PLANE_STATE);
	if (p->heads == 0 || p->head_dim == 0)
		return tn_fail(-EINVAL, "plane %u: heads %u and head_dim %u must both be above 0", i, p->heads,
			       p->head_dim);
	if (p->elem_bits != 4 && p->elem_bits != 8 && p->elem_bits != 16 && p->elem_bits != 32)
		return tn_fail(-EINVAL, "plane %u: elem_bits %u must be 4, 8, 16 or 32", i, p->elem_bits);
	if (!page_bits(g, p, &bits) || bits / 8 > TN_OBJECT_BYTES_MAX)
		return tn_fail(-EOVERFLOW, "plane %u: a page of %u tokens, %u heads, head_dim %u is larger than %u bytes",
			       i, g->page_tokens, p->heads, p->head_dim, TN_OBJECT_BYTES_MAX);
	if (bits % 8 != 0)
		return tn_fail(-EINVAL, "plane %u: a page has %llu bits, which are no whole bytes", i,
			       (unsigned long long)bits);
	*sum += bits / 8; /* at most 8 * 2^30 over all planes */
	return 0;
}

/* Everything but pages_per_block; *sum: bytes of one page over all planes. */
static int check_page(const struct tn_geometry *g, uint64_t *sum)
{
	int rc;

	if (g->layers == 0)
		return tn_fail(-EINVAL, "layers 0: a shard has at least one");
	if (g->layers > TN_LAYERS_MAX)
		return tn_fail(-EOVERFLOW, "layers %u: at most %u", g->layers, TN_LAYERS_MAX);
	if (g->page_tokens == 0)
		return tn_fail(-EINVAL, "page_tokens 0: a page has at least one token");
	if (g->page_order > TN_PAGE_HND)
		return tn_fail(-EINVAL, "page_order %u is unknown, the last is %u", g->page_order, TN_PAGE_HND);
	if (g->nplanes == 0 || g->nplanes > TN_PLANES_MAX)
		return tn_fail(-EINVAL, "nplanes %u: must be 1 to %u", g->nplanes, TN_PLANES_MAX);
	*sum = 0;
	for (uint32_t i = 0; i < g->nplanes; i++) {
		rc = plane_check(g, i, sum);
		if (rc)
			return rc;
	}
	return 0;
}

int tn_geometry_check(const struct tn_geometry *g)
{
	uint64_t sum;
	int rc = check_page(g, &sum);

	if (rc)
		return rc;
	if (g->pages_per_block == 0)
		return tn_fail(-EINVAL, "pages_per_block 0: a block has at least one page");
	if (g->pages_per_block > TN_BLOCK_PAGES_MAX)
		return tn_fail(-EOVERFLOW, "pages_per_block %u: at most %u", g->pages_per_block, TN_BLOCK_PAGES_MAX);
	sum *= g->pages_per_block; /* at most 2^33 * 2^12 */
	if (sum > TN_OBJECT_BYTES_MAX)
		return tn_fail(-EOVERFLOW, "%u pages_per_block make objects of %llu bytes, at most %u: take fewer",
			       g->pages_per_block, (unsigned long long)sum, TN_OBJECT_BYTES_MAX);
	return 0;
}

bool tn_geometry_same(const struct tn_geometry *a, const struct tn_geometry *b)
{
	return a->layers == b->layers && a->page_tokens == b->page_tokens && a->pages_per_block == b->pages_per_block &&
	       a->page_order == b->page_order && a->nplanes == b->nplanes &&
	       memcmp(a->planes, b->planes, a->nplanes * sizeof(a->planes[0])) == 0;
}

uint32_t tn_geometry_page_bytes(const struct tn_geometry *g, uint32_t plane)
{
	const struct tn_plane *p = &g->planes[plane];
	uint64_t tokens = p->kind == TN_PLANE_STATE ? 1 : g->page_tokens;

	return (uint32_t)(tokens * p->heads * p->head_dim * p->elem_bits / 8);
}

uint32_t tn_geometry_object_bytes(const struct tn_geometry *g)
{
	uint32_t sum = 0;

	for (uint32_t i = 0; i < g->nplanes; i++)
		sum += tn_geometry_page_bytes(g, i);
	return sum * g->pages_per_block;
}

uint64_t tn_geometry_block_bytes(const struct tn_geometry *g)
{
	return (uint64_t)g->layers * tn_geometry_object_bytes(g);
}

uint64_t tn_geometry_block_tokens(const struct tn_geometry *g)
{
	return (uint64_t)g->page_tokens * g->pages_per_block; /* below 2^44 */
}

uint32_t tn_geometry_default_pages(const struct tn_geometry *g)
{
	uint64_t sum, pages;

	if (check_page(g, &sum))
		return 0;
	if (sum > TN_OBJECT_BYTES_MAX) {
		tn_fail(-EOVERFLOW, "one page over all planes has %llu bytes, at most %u are possible",
			(unsigned long long)sum, TN_OBJECT_BYTES_MAX);
		return 0;
	}
	pages = (TN_OBJECT_BYTES_DEFAULT + sum - 1) / sum;
	return pages > TN_BLOCK_PAGES_MAX ? TN_BLOCK_PAGES_MAX : (uint32_t)pages;
}

int tn_geometry_raw(uint32_t layers, uint64_t object_bytes, struct tn_geometry *out)
{
	struct tn_geometry g = {
		.layers = layers,
		.page_tokens = 1,
		.pages_per_block = 1,
		.page_order = TN_PAGE_NHD,
		.nplanes = 1,
	};
	int rc;

	if (object_bytes == 0)
		return tn_fail(-EINVAL, "object_bytes 0: an object has at least one byte");
	if (object_bytes > TN_OBJECT_BYTES_MAX)
		return tn_fail(-EOVERFLOW, "object_bytes %llu: at most %u", (unsigned long long)object_bytes,
			       TN_OBJECT_BYTES_MAX);
	g.planes[0] = (struct tn_plane){TN_PLANE_K, 1, (uint32_t)object_bytes, 8};
	rc = tn_geometry_check(&g);
	if (rc == 0)
		*out = g;
	return rc;
}

int tn_geometry_store(const struct tn_geometry *g, void *buf, size_t len)
{
	struct serial s = {.version = GEOMETRY_VERSION, .g = *g};
	int rc;

	if (len < TN_GEOMETRY_BYTES)
		return tn_fail(-ENOBUFS, "buffer of %zu bytes: a geometry takes %u", len, TN_GEOMETRY_BYTES);
	rc = tn_geometry_check(g);
	if (rc)
		return rc;
	memcpy(s.magic, geometry_magic, sizeof(s.magic));
	memset(s.g.planes + g->nplanes, 0, (TN_PLANES_MAX - g->nplanes) * sizeof(s.g.planes[0]));
	s.checksum = tn_hash64(&s, offsetof(struct serial, checksum));
	memcpy(buf, &s, sizeof(s));
	return (int)TN_GEOMETRY_BYTES;
}

/* Magic, version, length, checksum: the envelope, before any field is believed. */
static int open_envelope(const void *buf, size_t len, struct serial *s)
{
	if (len < offsetof(struct serial, g))
		return tn_fail(-EBADMSG, "%zu bytes are too few for a geometry, which has %u", len, TN_GEOMETRY_BYTES);
	memcpy(s, buf, len < sizeof(*s) ? len : sizeof(*s));
	if (memcmp(s->magic, geometry_magic, sizeof(s->magic)) != 0)
		return tn_fail(-EBADMSG, "these bytes are no geometry: they do not begin with its magic");
	if (s->version != GEOMETRY_VERSION)
		return tn_fail(-EPROTONOSUPPORT, "geometry version %u: this library reads %u; use the one that wrote it",
			       s->version, GEOMETRY_VERSION);
	if (len < TN_GEOMETRY_BYTES)
		return tn_fail(-EBADMSG, "geometry cut off: %zu of %u bytes", len, TN_GEOMETRY_BYTES);
	if (s->checksum != tn_hash64(s, offsetof(struct serial, checksum)))
		return tn_fail(-EBADMSG, "geometry damaged: its checksum does not match");
	return 0;
}

int tn_geometry_load(const void *buf, size_t len, struct tn_geometry *g)
{
	static const struct tn_plane unused;
	struct serial s;
	int rc = open_envelope(buf, len, &s);

	for (uint32_t i = 0; rc == 0 && i < TN_PLANES_MAX; i++)
		if (i >= s.g.nplanes && memcmp(&s.g.planes[i], &unused, sizeof(unused)))
			return tn_fail(-EINVAL, "plane %u is unused (nplanes %u) but not zero", i, s.g.nplanes);
	if (rc == 0)
		rc = tn_geometry_check(&s.g);
	if (rc)
		return rc;
	*g = s.g;
	return (int)TN_GEOMETRY_BYTES;
}
