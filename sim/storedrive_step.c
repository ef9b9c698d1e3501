/* SPDX-License-Identifier: Apache-2.0 */
/* The script: what a drive does next, by chance. */
#include "base/error.h"
#include "base/hash.h"
#include "storedrive_internal.h"

static uint32_t chance(struct drive *d, uint32_t n)
{
	return tn_rng_below(&d->rng, n);
}

uint32_t drive_live(const struct drive *d, uint32_t key)
{
	for (uint32_t i = d->newest[key]; i != NONE; i = d->records[i].next)
		if (d->records[i].live)
			return i;
	return NONE;
}

bool drive_space(struct drive *d, uint32_t space)
{
	struct tn_key id = drive_space_id(space);
	int err;

	if (d->space_open[space])
		return true;
	err = tn_store_space(d->store, &id, &d->space[space]);
	if (err)
		return drive_fail(d, "space %u: %d: %s", space, err, tn_error_last()->text);
	d->space_open[space] = true;
	return true;
}

static uint32_t random_live(struct drive *d)
{
	for (uint32_t tries = 0; tries < 50; tries++) {
		uint32_t i = drive_live(d, chance(d, d->opts.keys));

		if (i != NONE)
			return i;
	}
	return NONE;
}

static void evict_wanted(struct drive *d)
{
	while (d->evict_count)
		drive_remove(d, d->evict[--d->evict_count], false);
}

/* Up to n slots; frees some by evicting, as the cache would. */
static uint32_t reserve(struct drive *d, uint32_t cls, uint32_t n, tn_slot *slots)
{
	uint32_t got = 0;

	for (uint32_t tries = 0; tries < 40; tries++) {
		got = tn_store_reserve(d->store, d->cls[cls], n, slots);
		evict_wanted(d);
		if (got || d->error[0])
			return got;
		if (chance(d, 2) && tn_store_move(d->store, d->cls[cls], chance(d, 2), tn_store_demand(d->store))) {
			if (!drive_flush_wait(d))
				return 0;
			continue;
		}
		for (uint32_t i = 0; i < 4; i++) {
			uint32_t r = random_live(d);

			if (r != NONE)
				drive_remove(d, r, false);
		}
		if (!drive_flush_wait(d))
			return 0;
	}
	d->n.starved++;
	return 0;
}

static bool step_save(struct drive *d)
{
	uint32_t cls = chance(d, 100) < d->opts.big_percent ? 2 : chance(d, 2);
	uint32_t n = cls == 2 ? 1 : 1 + chance(d, DRIVE_BATCH), got;
	struct drive_spec specs[DRIVE_BATCH];
	tn_slot slots[DRIVE_BATCH];

	got = reserve(d, cls, n, slots);
	for (uint32_t i = 0; i < got; i++) {
		uint32_t key = chance(d, d->opts.keys), tries = 0, k;

		/* Mostly new keys; now and then one that is there, once in a batch. */
		while (tries++ < 20 && drive_live(d, key) != NONE && chance(d, 10))
			key = chance(d, d->opts.keys);
		for (k = 0; k < i; k++) {
			if (specs[k].key != key)
				continue;
			key = (key + 1) % d->opts.keys;
			k = UINT32_MAX;
		}
		if (!drive_space(d, key % DRIVE_SPACES))
			return false;
		specs[i] = (struct drive_spec){
			.key = key,
			.cls = cls,
			.space = key % DRIVE_SPACES,
			.slot = slots[i],
			.abort_stage = chance(d, 30) ? 0 : 1 + chance(d, 2),
		};
		/* Remove the old one before, or (in publish) after. */
		k = drive_live(d, key);
		if (k != NONE && chance(d, 2))
			drive_remove(d, k, false);
	}
	return got ? drive_save_batch(d, specs, got) : !d->error[0];
}

static bool step_remove(struct drive *d)
{
	for (uint32_t n = 1 + chance(d, 4); n > 0; n--) {
		uint32_t i = random_live(d);

		if (i != NONE)
			drive_remove(d, i, chance(d, 40) == 0);
	}
	return !d->error[0];
}

static bool step_drop(struct drive *d)
{
	uint32_t space = chance(d, DRIVE_SPACES);
	int err;

	if (!drive_space(d, space))
		return false;
	for (uint32_t i = 0; i < d->nrecords; i++)
		if (d->records[i].space == space && d->records[i].published && !d->records[i].dropped)
			d->records[i].dropped = 1;
	err = tn_store_space_drop(d->store, d->space[space]);
	if (err == 0 && !drive_flush_status(d, &err))
		return false;
	if (err && !d->opts.faulty)
		return drive_fail(d, "drop of space %u: %d: %s", space, err, tn_error_last()->text);
	for (uint32_t i = 0; i < d->nrecords; i++) {
		if (d->records[i].space != space || d->records[i].dropped != 1)
			continue;
		if (err == 0)
			d->records[i].dropped = 2;
		drive_remove(d, i, false);
	}
	d->n.drops++;
	return !d->error[0];
}

static bool step_idle(struct drive *d)
{
	uint64_t until = medium_now(d->disk) + (chance(d, 4) ? 2000000u : 3000000000u);

	while (medium_now(d->disk) < until && !d->error[0])
		drive_pump(d, 500000000u);
	evict_wanted(d);
	return !d->error[0];
}

static bool step_touch(struct drive *d)
{
	uint32_t i = random_live(d);

	if (i != NONE)
		tn_store_touch(d->store, d->records[i].slot, chance(d, 1000));
	return true;
}

static bool step_unreserve(struct drive *d)
{
	tn_slot slots[3];
	uint32_t got = tn_store_reserve(d->store, d->cls[0], 3, slots);

	evict_wanted(d);
	for (uint32_t i = 0; i < got; i++)
		tn_store_unreserve(d->store, slots[i]);
	return !d->error[0];
}

static bool step_reopen(struct drive *d)
{
	d->disk->ops->set_faults(d->disk, NULL); /* closing may fail, opening may not */
	if (!drive_close(d) || !drive_open(d) || !drive_verify(d))
		return false;
	drive_adopt(d);
	return true;
}

bool drive_step(struct drive *d)
{
	static const struct {
		uint32_t weight;
		bool (*fn)(struct drive *d);
	} steps[] = {
		{400, step_save}, {100, step_remove}, {30, step_touch}, {60, step_idle},
		{10, step_unreserve}, {12, step_drop}, {8, step_reopen}, {100, drive_flush_wait},
	};
	uint32_t sum = 0, at;

	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
		sum += steps[i].weight;
	at = chance(d, sum + 120);
	for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		if (at < steps[i].weight)
			return steps[i].fn(d);
		at -= steps[i].weight;
	}
	drive_flush_start(d); /* goes on beside the next steps */
	return true;
}
