/* SPDX-License-Identifier: Apache-2.0 */
/* The disk tier as a durable one (tier/durable.h): the store does it all. */
#include "tier/durable.h"

#include "tier/disk/disk.h"

static struct tn_secret secret(const struct tn_tier_base *t)
{
	return tn_store_secret(tn_disk_at(t)->store);
}

static int number(struct tn_tier_base *t, const struct tn_key *id, uint16_t *n)
{
	return tn_store_space(tn_disk_of(t)->store, id, n);
}

static int space(const struct tn_tier_base *t, uint16_t n, struct tn_tier_space *out)
{
	return tn_store_space_info(tn_disk_at(t)->store, n, &out->id, &out->epoch);
}

static uint32_t numbers(const struct tn_tier_base *t)
{
	return tn_store_spaces(tn_disk_at(t)->store);
}

static void give_back(struct tn_tier_base *t, uint16_t n)
{
	tn_store_space_give_back(tn_disk_of(t)->store, n);
}

static int drop(struct tn_tier_base *t, uint16_t n, uint32_t *epoch)
{
	struct tn_store *store = tn_disk_of(t)->store;
	struct tn_key id;
	int rc = tn_store_space_drop(store, n);

	return rc ? rc : tn_store_space_info(store, n, &id, epoch);
}

static void update(struct tn_tier_base *t, uint32_t slot)
{
	tn_store_update(tn_disk_of(t)->store, slot);
}

static void flush(struct tn_tier_base *t, void (*done)(void *arg, int status), void *arg)
{
	tn_store_flush(tn_disk_of(t)->store, done, arg);
}

static bool deleted(const struct tn_tier_base *t)
{
	return tn_store_deleted(tn_disk_at(t)->store);
}

static uint64_t work(struct tn_tier_base *t, uint64_t now_ns)
{
	return tn_store_step(tn_disk_of(t)->store, now_ns);
}

const struct tn_durable_ops tn_disk_durable_ops = {
	.secret = secret,
	.number = number,
	.space = space,
	.numbers = numbers,
	.give_back = give_back,
	.drop = drop,
	.update = update,
	.flush = flush,
	.deleted = deleted,
	.work = work,
};
