/* SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"

#include <errno.h>
#include <sys/random.h>

#include "base/error.h"
#include "base/hash.h"

void tn_rng_seed(struct tn_rng *rng, uint64_t seed)
{
	for (int i = 0; i < 4; i++, seed += TN_MIX64_STEP)
		rng->s[i] = tn_mix64(seed);
}

static inline uint64_t rotl(uint64_t x, int k)
{
	return (x << k) | (x >> (64 - k));
}

uint64_t tn_rng_next(struct tn_rng *rng)
{
	uint64_t *s = rng->s;
	uint64_t result = rotl(s[1] * 5, 7) * 9;
	uint64_t t = s[1] << 17;

	s[2] ^= s[0];
	s[3] ^= s[1];
	s[1] ^= s[2];
	s[0] ^= s[3];
	s[2] ^= t;
	s[3] = rotl(s[3], 45);
	return result;
}

int tn_rng_entropy(void *buf, size_t len)
{
	unsigned char *p = buf;

	while (len > 0) {
		ssize_t n = getrandom(p, len, 0);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return tn_fail(-errno, "getrandom: the kernel gave no randomness (errno %d)", errno);
		p += n;
		len -= (size_t)n;
	}
	return 0;
}
