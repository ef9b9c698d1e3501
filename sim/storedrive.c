/* SPDX-License-Identifier: Apache-2.0 */
#include "storedrive.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "storedrive_internal.h"

#define KILL_LOSES_NS 100000000u /* the store's promise */

static const char *const dirs[] = {"a", "b"};

/* ---- failures and look-ups ------------------------------------------------------------------------ */

bool drive_fail(struct drive *d, const char *fmt, ...)
{
	va_list ap;

	if (!d->error[0]) {
		va_start(ap, fmt);
		vsnprintf(d->error, sizeof(d->error), fmt, ap);
		va_end(ap);
	}
	return false;
}

struct tn_key drive_key(uint32_t key)
{
	return (struct tn_key){{0x6b65790000000000u + key, tn_hash64(&key, sizeof(key))}};
}

struct tn_key drive_space_id(uint32_t space)
{
	return (struct tn_key){{0x7370616365u, space + 1}};
}

static uint32_t find_record(const struct drive *d, const struct tn_key *key, uint64_t sequence)
{
	struct tn_key k;
	uint32_t number = (uint32_t)(key->word[0] & UINT32_MAX);

	if (number >= d->opts.keys)
		return NONE;
	k = drive_key(number);
	if (!tn_key_eq(&k, key))
		return NONE;
	for (uint32_t i = d->newest[number]; i != NONE; i = d->records[i].next)
		if (d->records[i].sequence == sequence)
			return i;
	return NONE;
}

static bool is_durable(const struct drive *d, const struct drive_record *r)
{
	return r->published && r->published <= d->durable_tick;
}

/* Without any flush: its record was written, and nothing but a power cut takes it. */
static bool outlives_kill(const struct drive *d, const struct drive_record *r)
{
	return d->killed_ns && !d->cut && !d->opts.faulty && r->published && r->published_ns + KILL_LOSES_NS <= d->killed_ns;
}

static bool is_gone(const struct drive *d, const struct drive_record *r)
{
	return r->dropped == 2 || (r->removed && r->removed <= d->durable_tick);
}

/* ---- the store's callbacks -------------------------------------------------------------------------- */

static uint32_t on_recovered(void *arg, tn_slot slot, const struct tn_index_entry *entry)
{
	struct drive *d = arg;
	uint32_t i = find_record(d, &entry->key, entry->sequence);
	struct drive_record *r;

	if (i == NONE) {
		drive_fail(d, "recovered slot %u: key %llx sequence %llu was never saved", slot,
			   (unsigned long long)entry->key.word[0], (unsigned long long)entry->sequence);
		return UINT32_MAX;
	}
	r = &d->records[i];
	if (!tn_key_eq(&entry->parent, &r->parent) || entry->flags != r->flags)
		drive_fail(d, "recovered slot %u: parent or flags of key %u differ from what was saved", slot, r->key);
	if (d->decline_percent && tn_rng_below(&d->rng, 100) < d->decline_percent) {
		r->declined = true;
		r->removed = ++d->tick;
		return UINT32_MAX;
	}
	r->found = slot;
	return i;
}

static void on_describe(void *arg, tn_slot slot, uint32_t cookie, struct tn_index_entry *entry)
{
	struct drive *d = arg;

	memset(entry, 0, sizeof(*entry));
	if (cookie >= d->nrecords) {
		drive_fail(d, "describe of slot %u: cookie %u was never given", slot, cookie);
		return;
	}
	*entry = drive_entry(d, &d->records[cookie]);
}

static void on_evict(void *arg, tn_slot slot, uint32_t cookie)
{
	struct drive *d = arg;

	if (cookie >= d->nrecords || !d->records[cookie].live || d->records[cookie].slot != slot)
		drive_fail(d, "evict of slot %u, cookie %u: no live block", slot, cookie);
	else if (d->evict_count < DRIVE_EVICTS_MAX)
		d->evict[d->evict_count++] = cookie;
	if (d->opts.faulty && cookie < d->nrecords)
		d->records[cookie].asked = true;
}

static bool on_vacate(void *arg, tn_slot first, uint32_t n)
{
	struct drive *d = arg;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t cookie = tn_store_cookie(d->store, first + i);

		if (cookie != UINT32_MAX)
			drive_remove(d, cookie, false);
	}
	return true;
}

static void on_health(void *arg, uint32_t device, enum tn_health health)
{
	struct drive *d = arg;

	if (health != TN_HEALTHY && !d->opts.faulty && !d->disk->ops->is_off(d->disk))
		drive_fail(d, "device %u became %d without a fault", device, health);
}

struct tn_index_entry drive_entry(const struct drive *d, const struct drive_record *r)
{
	return (struct tn_index_entry){
		.key = drive_key(r->key),
		.parent = r->parent,
		.sequence = r->sequence,
		.space = d->space[r->space],
		.recency = (uint32_t)r->version,
		.flags = r->flags,
	};
}

/* ---- life ------------------------------------------------------------------------------------------ */

static struct drive *drive_new(const struct drive_opts *opts, struct medium *disk, uint64_t seed)
{
	struct drive *d = calloc(1, sizeof(*d));

	assert(d);
	d->opts = *opts;
	d->disk = disk;
	tn_rng_seed(&d->rng, seed);
	d->newest = calloc(opts->keys, sizeof(*d->newest));
	assert(d->newest);
	return d;
}

struct drive *drive_create(const struct drive_opts *opts, struct medium *disk)
{
	struct drive *d = drive_new(opts, disk, opts->seed);

	memset(d->newest, 0xff, opts->keys * sizeof(*d->newest));
	return d;
}

struct drive *drive_fork(const struct drive *d, struct medium *disk, uint64_t seed)
{
	struct drive *f = drive_new(&d->opts, disk, seed);

	memcpy(f->newest, d->newest, d->opts.keys * sizeof(*d->newest));
	f->records_max = d->nrecords + 64;
	f->records = malloc(f->records_max * sizeof(*f->records));
	assert(f->records);
	if (d->nrecords)
		memcpy(f->records, d->records, d->nrecords * sizeof(*f->records));
	f->nrecords = d->nrecords;
	f->tick = d->tick;
	f->durable_tick = d->durable_tick;
	f->version = d->version;
	f->sequence_max = d->sequence_max;
	f->cut = d->cut;
	memcpy(f->space, d->space, sizeof(f->space));
	return f;
}

/* Without power: what is in flight is forgotten, nothing reaches the medium, memory is freed. */
static void abandon(struct drive *d)
{
	if (!d->store)
		return;
	d->disk->ops->on_event(d->disk, NULL, NULL);
	d->disk->ops->power_off(d->disk);
	while (d->own_inflight && drive_pump(d, 0))
		;
	tn_store_close(d->store);
	d->store = NULL;
}

void drive_destroy(struct drive *d)
{
	if (!d)
		return;
	abandon(d);
	drive_memory_free(d);
	free(d->records);
	free(d->newest);
	free(d);
}

uint32_t drive_record_new(struct drive *d, const struct drive_record *r)
{
	if (d->nrecords == d->records_max) {
		d->records_max = d->records_max * 2 + 64;
		d->records = realloc(d->records, d->records_max * sizeof(*d->records));
		assert(d->records);
	}
	d->records[d->nrecords] = *r;
	d->records[d->nrecords].next = d->newest[r->key];
	d->newest[r->key] = d->nrecords;
	return d->nrecords++;
}

/* ---- open, verify, adopt ----------------------------------------------------------------------------- */

bool drive_open(struct drive *d)
{
	struct tn_store_opts o = {
		.io = d->io = d->disk->ops->io(d->disk),
		.alloc = &tn_alloc_system,
		.clock = d->disk->ops->clock(d->disk),
		.dirs = dirs,
		.ndirs = d->opts.ndevices,
		.capacity_bytes = d->opts.capacity_bytes,
		.segment_bytes = d->opts.segment_bytes,
		.max_slots = d->opts.max_slots,
		.log_bytes = d->opts.log_bytes,
		.prepare = d->opts.prepare,
		.slow_read_ns = 3600000000000u,
		.entropy = {d->opts.seed + 1, 0x5eed},
		.boot = {d->disk->ops->boot(d->disk)},
		.cb = {.recovered = on_recovered,
		       .describe = on_describe,
		       .evict = on_evict,
		       .health = on_health,
		       .vacate = on_vacate,
		       .arg = d},
	};
	int err;

	for (uint32_t i = 0; i < d->nrecords; i++) {
		d->records[i].found = NONE;
		d->records[i].live = d->records[i].declined = false;
	}
	d->evict_count = 0;
	memset(d->space_open, 0, sizeof(d->space_open));
	err = tn_store_open(&o, &d->store);
	if (err)
		return drive_fail(d, "open: %d: %s", err, tn_error_last()->text);
	d->n.opens++;
	return !d->error[0] && drive_classes(d);
}

static bool verify_key(struct drive *d, uint32_t key)
{
	uint64_t must = 0;
	uint32_t found = NONE;
	bool declined = false;

	for (uint32_t i = d->newest[key]; i != NONE; i = d->records[i].next) {
		const struct drive_record *r = &d->records[i];

		if ((is_durable(d, r) || outlives_kill(d, r)) && !r->removed && !r->dropped && !r->asked && !r->shaky &&
		    r->sequence > must)
			must = r->sequence;
		declined |= r->declined;
		if (r->found == NONE)
			continue;
		if (found != NONE)
			return drive_fail(d, "key %u: found twice, in slots %u and %u", key, d->records[found].found,
					  r->found);
		found = i;
		if (!r->published)
			return drive_fail(d, "key %u sequence %llu: found, but was never published", key,
					  (unsigned long long)r->sequence);
		if (is_gone(d, r))
			return drive_fail(d, "key %u sequence %llu: found in slot %u, but its %s is durable", key,
					  (unsigned long long)r->sequence, r->found, r->dropped ? "drop" : "removal");
		if (r->found != r->slot)
			return drive_fail(d, "key %u: found in slot %u, was saved to %u", key, r->found, r->slot);
	}
	if (declined)
		return true; /* and with it what it superseded is forgotten */
	if (must && found == NONE)
		return drive_fail(d, "key %u sequence %llu: durable, and not found", key, (unsigned long long)must);
	if (must && d->records[found].sequence < must)
		return drive_fail(d, "key %u: sequence %llu found, but %llu is durable", key,
				  (unsigned long long)d->records[found].sequence, (unsigned long long)must);
	return true;
}

bool drive_verify(struct drive *d)
{
	for (uint32_t key = 0; key < d->opts.keys; key++)
		if (!verify_key(d, key))
			return false;
	for (uint32_t i = 0; i < d->nrecords; i++) {
		const struct drive_record *r = &d->records[i];
		bool lately = i + 32 > d->nrecords;

		if (r->found == NONE || r->shaky)
			continue;
		if (!lately && tn_rng_below(&d->rng, 100) >= d->opts.verify_percent)
			continue;
		d->n.verified++;
		if (!drive_verify_block(d, r))
			return false;
	}
	return true;
}

bool drive_same_found(struct drive *a, const struct drive *b)
{
	for (uint32_t i = 0; i < a->nrecords; i++) {
		const struct drive_record *r = &a->records[i];

		if (r->found != b->records[i].found)
			return drive_fail(a, "key %u sequence %llu: slot %d after one recovery, %d after two", r->key,
					  (unsigned long long)r->sequence, (int)b->records[i].found, (int)r->found);
	}
	return true;
}

void drive_outlived(struct drive *d)
{
	for (uint32_t i = 0; i < d->nrecords && d->opts.faulty; i++) {
		struct drive_record *r = &d->records[i];

		r->shaky |= !(r->published && r->published <= d->durable_tick);
	}
}

void drive_adopt(struct drive *d)
{
	uint64_t now = ++d->tick;

	if (d->killed_ns)
		drive_outlived(d);

	for (uint32_t i = 0; i < d->nrecords; i++) {
		struct drive_record *r = &d->records[i];

		r->live = r->found != NONE;
		r->asked = false;
		if (r->published)
			r->published = now;
		if (r->live) {
			r->removed = 0;
			r->dropped = 0;
		} else if (r->declined) {
			r->removed = ++d->tick; /* asked for, but no flush says yet that it is so */
		} else {
			r->removed = now;
		}
	}
	d->durable_tick = now;
	d->killed_ns = 0;
	d->cut = false;
}

bool drive_close(struct drive *d)
{
	int err;

	if (!drive_settle(d))
		return false;
	err = tn_store_close(d->store);
	d->store = NULL;
	if (err && !d->opts.faulty)
		return drive_fail(d, "close: %d: %s", err, tn_error_last()->text);
	if (!err)
		d->durable_tick = d->tick;
	else
		drive_outlived(d); /* a device that is offline keeps the log as a process that dies would leave it */
	return !d->error[0];
}

bool drive_crash(struct drive *d, enum tn_simdisk_crash mode, uint64_t seed)
{
	/* The hook is the caller's; closing without power makes no events. */
	d->disk->ops->power_off(d->disk);
	while (d->own_inflight && drive_pump(d, 0))
		;
	tn_store_close(d->store);
	d->store = NULL;
	memset(d->flush, 0, sizeof(d->flush));
	d->disk->ops->crash(d->disk, mode, seed);
	d->cut = mode != TN_SIMDISK_KILL;
	d->disk->ops->set_faults(d->disk, NULL);
	/* Now and then the registry is too small for what is found. */
	d->decline_percent = tn_rng_below(&d->rng, 3) ? 0 : 10;
	if (!drive_open(d) || !drive_verify(d))
		return false;
	drive_adopt(d);
	d->decline_percent = 0;
	return drive_flush_wait(d);
}
