/* SPDX-License-Identifier: Apache-2.0 */
#include "base/hash.h"

#define XXH_STATIC_LINKING_ONLY /* the streaming state lives on the stack */
#include <xxhash.h>

struct tn_key tn_hash_chain(const struct tn_secret *secret, const struct tn_key *prev, const void *data, size_t len)
{
	const uint64_t head[4] = {secret->word[0], secret->word[1], prev->word[0], prev->word[1]};
	XXH3_state_t st;
	XXH128_hash_t h;

	XXH3_INITSTATE(&st); /* else reset trusts a stale seed on the stack and keeps a garbled secret */
	XXH3_128bits_reset_withSeed(&st, secret->word[0]);
	XXH3_128bits_update(&st, head, sizeof(head));
	XXH3_128bits_update(&st, data, len);
	h = XXH3_128bits_digest(&st);
	/* The all-zero key means "no parent". */
	if ((h.low64 | h.high64) == 0)
		h.low64 = 1;
	return (struct tn_key){{h.low64, h.high64}};
}

uint64_t tn_hash64(const void *data, size_t len)
{
	return XXH3_64bits(data, len);
}

uint64_t tn_hash_xxh64(const void *data, size_t len)
{
	return XXH64(data, len, 0);
}
