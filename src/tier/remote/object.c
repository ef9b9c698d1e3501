/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/remote/object.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"

#define MAGIC 0x4b4c42544d524e54u /* "TNRMTBLK" */
#define VERSION 1u

/* Little-endian, as all formats. */
struct head {
	uint64_t magic;
	uint32_t version, header_bytes;
	uint32_t layers, object_bytes, padded_bytes, reserved; /* zero */
	uint32_t codec, key_id; /* 0: as it is */
	struct tn_key key, parent, space;
	uint64_t checks_hash;
	uint64_t head_hash; /* of all before it */
};

_Static_assert(sizeof(struct head) == 104 && sizeof(struct head) < TN_OBJECT_HEAD_BYTES, "the head of an object");

static unsigned char *checks_of(const void *header)
{
	return (unsigned char *)(uintptr_t)header + sizeof(struct head);
}

void tn_object_name(const char *prefix, const struct tn_tier_space *space, const struct tn_key *key, char *name, size_t bytes)
{
	snprintf(name, bytes, "%s/%016llx%016llx/%016llx%016llx", prefix, (unsigned long long)space->id.word[0], (unsigned long long)space->id.word[1],
		 (unsigned long long)key->word[0], (unsigned long long)key->word[1]);
}

uint64_t tn_object_header_bytes(const struct tn_shape *shape)
{
	uint64_t bytes = sizeof(struct head) + shape->layers * sizeof(uint64_t);

	return (bytes + TN_OBJECT_HEAD_BYTES - 1) / TN_OBJECT_HEAD_BYTES * TN_OBJECT_HEAD_BYTES;
}

void tn_object_encode(const struct tn_tier_move *m, void *header)
{
	const struct tn_shape *s = m->shape;
	struct head h = {
		.magic = MAGIC,
		.version = VERSION,
		.header_bytes = (uint32_t)tn_object_header_bytes(s),
		.layers = s->layers,
		.object_bytes = s->object_bytes,
		.padded_bytes = s->padded_bytes,
		.key = m->key,
		.parent = m->parent,
		.space = m->space.id,
		.checks_hash = tn_hash64(m->checks, s->layers * sizeof(uint64_t)),
	};

	h.head_hash = tn_hash64(&h, offsetof(struct head, head_hash));
	memset(header, 0, h.header_bytes);
	memcpy(header, &h, sizeof(h));
	memcpy(checks_of(header), m->checks, s->layers * sizeof(uint64_t));
}

int tn_object_check(const void *header, const struct tn_tier_space *space, const struct tn_key *key)
{
	struct head h;

	memcpy(&h, header, sizeof(h));
	if (h.magic != MAGIC || h.version != VERSION || h.head_hash != tn_hash64(&h, offsetof(struct head, head_hash)))
		return tn_fail(-EBADMSG, "no header of a block");
	if (!tn_key_eq(&h.key, key) || !tn_key_eq(&h.space, &space->id) || h.codec || h.key_id)
		return tn_fail(-EBADMSG, "the header of another block");
	return 0;
}

int tn_object_decode(const void *header, const struct tn_tier_move *m)
{
	const struct tn_shape *s = m->shape;
	struct head h;

	if (tn_object_check(header, &m->space, &m->key))
		return -EBADMSG;
	memcpy(&h, header, sizeof(h));
	if (h.layers != s->layers || h.object_bytes != s->object_bytes || h.padded_bytes != s->padded_bytes || h.header_bytes != tn_object_header_bytes(s))
		return tn_fail(-EBADMSG, "a block of another shape: %u objects of %u bytes", h.layers, h.object_bytes);
	memcpy(m->checks, checks_of(header), s->layers * sizeof(uint64_t));
	return tn_hash64(m->checks, s->layers * sizeof(uint64_t)) == h.checks_hash ? 0 : tn_fail(-EBADMSG, "damaged checksums");
}
