/* SPDX-License-Identifier: Apache-2.0 */
/* See volume.h. */
#include "nvme/volume.h"

#include <errno.h>
#include <string.h>

#include "base/checksum.h"

#define MAGIC 0x4c564e54u /* "TNVL" */
#define VERSION 1u

struct page {
	uint32_t magic;
	uint16_t version;
	uint16_t zero;
	uint64_t sum; /* of everything behind it */
	uint64_t sequence;
	uint64_t size_bytes;
	uint64_t exists;
	unsigned char zeros[TN_VOLUME_PAGE - 40];
};

_Static_assert(sizeof(struct page) == TN_VOLUME_PAGE && offsetof(struct page, sequence) == 16, "docs/format.md");

static uint64_t sum_of(const struct page *p)
{
	return tn_checksum(&p->sequence, sizeof(*p) - offsetof(struct page, sequence));
}

void tn_volume_encode(const struct tn_volume *v, unsigned char *page)
{
	struct page p = {.magic = MAGIC, .version = VERSION, .exists = v->exists, .sequence = v->sequence, .size_bytes = v->size_bytes};

	p.sum = sum_of(&p);
	memcpy(page, &p, sizeof(p));
}

int tn_volume_decode(const unsigned char *page, struct tn_volume *v)
{
	struct page p;

	memcpy(&p, page, sizeof(p));
	if (p.magic != MAGIC || p.version != VERSION || p.zero || p.sum != sum_of(&p))
		return -EUCLEAN;
	*v = (struct tn_volume){.sequence = p.sequence, .size_bytes = p.size_bytes, .exists = p.exists != 0};
	return 0;
}

int tn_volume_choose(const unsigned char *two, struct tn_volume *v, bool *same)
{
	struct tn_volume a, b;
	bool has_a = tn_volume_decode(two, &a) == 0, has_b = tn_volume_decode(two + TN_VOLUME_PAGE, &b) == 0;

	if (!has_a && !has_b)
		return -EUCLEAN;
	*v = !has_b || (has_a && a.sequence > b.sequence) ? a : b;
	*same = has_a && has_b && a.size_bytes == b.size_bytes && a.exists == b.exists;
	return 0;
}

static uint32_t ones(const unsigned char *bytes, uint32_t n)
{
	uint32_t bits = 0;

	for (uint32_t i = 0; i < n; i++)
		bits += (uint32_t)__builtin_popcount(bytes[i]);
	return bits;
}

/* Nothing, or a header, be it damaged: all that is not zero is in one logical block, so that a power cut does not tear it. One bit may have flipped. */
static bool is_ours(const unsigned char *page)
{
	uint32_t magic, flipped;

	memcpy(&magic, page, sizeof(magic));
	flipped = ones(page + offsetof(struct page, zeros), sizeof(((struct page *)NULL)->zeros));
	return flipped + (uint32_t)__builtin_popcount(magic ^ MAGIC) <= 1 || flipped + ones(page, offsetof(struct page, zeros)) <= 1;
}

bool tn_volume_is_ours(const unsigned char *two)
{
	return is_ours(two) && is_ours(two + TN_VOLUME_PAGE);
}
