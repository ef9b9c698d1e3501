/* SPDX-License-Identifier: Apache-2.0 */
/* See seen.h. */
#include "ring/seen.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

#define SEEN 1024u
#define BATCH 64u

struct tn_seen_one {
	uint32_t device, bytes;
	uint64_t latency_ns;
	enum tn_io_op op;
	int status;
};

int tn_seen_init(struct tn_seen *s, const struct tn_alloc *alloc)
{
	s->alloc = alloc;
	s->one = tn_get(alloc, SEEN * sizeof(*s->one));
	if (!s->one)
		return tn_fail(-ENOMEM, "executor: no memory");
	pthread_mutex_init(&s->lock, NULL);
	return 0;
}

void tn_seen_fini(struct tn_seen *s)
{
	if (!s->one)
		return;
	pthread_mutex_destroy(&s->lock);
	tn_put(s->alloc, s->one, SEEN * sizeof(*s->one));
}

bool tn_seen_add(struct tn_seen *s, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns, int status)
{
	bool many;

	pthread_mutex_lock(&s->lock);
	if (s->n < SEEN)
		s->one[s->n++] = (struct tn_seen_one){device, bytes, latency_ns, op, status};
	else
		s->lost++;
	many = s->n == SEEN / 2;
	pthread_mutex_unlock(&s->lock);
	return many;
}

void tn_seen_tell(struct tn_seen *s, tn_executor_observe observe, void *arg)
{
	struct tn_seen_one batch[BATCH];
	uint32_t n;

	do {
		pthread_mutex_lock(&s->lock);
		n = s->n < BATCH ? s->n : BATCH;
		s->n -= n;
		memcpy(batch, s->one + s->n, n * sizeof(batch[0]));
		pthread_mutex_unlock(&s->lock);
		for (uint32_t i = 0; i < n; i++)
			observe(arg, batch[i].device, batch[i].op, batch[i].bytes, batch[i].latency_ns, batch[i].status);
	} while (n == BATCH);
}

uint64_t tn_seen_lost(struct tn_seen *s)
{
	uint64_t lost;

	pthread_mutex_lock(&s->lock);
	lost = s->lost;
	pthread_mutex_unlock(&s->lock);
	return lost;
}
