/* SPDX-License-Identifier: Apache-2.0 */
/* Saves, removals, flushes and reopenings of a store on a namespace whose writes and flushes are logged (store_life.h). */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "guest_rig.h"
#include "store_life.h"

#define ROUNDS 40u
#define CHANGES 7u

struct life {
	struct guest_drive *d;
	struct rig *rig;
	struct life_note note;
	unsigned char *page; /* that notes are written from */
	uint64_t page_bus;
};

/* By a queue that is no engine's. The note is on the medium, as far as the log tells, when this returns. */
static bool write_note(struct life *l)
{
	const struct tn_nvme_info *info = l->d->info;
	struct tn_nvme_queue *q = tn_nvme_io_queue(l->d->nvme, 1);
	struct tn_nvme_command c = tn_nvme_transfer(TN_NVME_WRITE, info->namespace_id, info->blocks - LIFE_NOTES_BYTES / info->block_bytes, 1);
	const struct tn_nvme_piece piece = {l->page_bus, info->block_bytes};
	const struct tn_nvme_list none = {0};
	uint64_t end = tn_now_ns(&tn_clock_system) + 10 * GUEST_SECOND_NS;
	struct tn_nvme_completion done;

	l->note.magic = LIFE_MAGIC;
	memcpy(l->page, &l->note, sizeof(l->note));
	must(tn_nvme_set_prps(&c, &piece, 1, &none) == 0, "no list");
	c.id = (uint16_t)tn_nvme_queue_id(q);
	tn_nvme_queue_put(q, &c);
	tn_nvme_queue_ring(q);
	guest.commands++;
	while (!tn_nvme_queue_poll(q, &done))
		must(tn_now_ns(&tn_clock_system) < end, "a note is not written");
	tn_nvme_queue_took(q);
	tn_nvme_queue_give(q, done.id);
	must(tn_nvme_status(&done) == 0, "a note's status is %#x", (unsigned)tn_nvme_status(&done));
	return true;
}

/* Before anything changes: nothing is expected of these keys. */
static bool announce(struct life *l, const uint64_t *key, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		l->note.durable[key[i]] = 0;
		l->note.gone[key[i]] = 0;
	}
	return write_note(l);
}

/* After a flush or a close that ended well. */
static bool all_is_durable(struct life *l)
{
	for (uint64_t n = 0; n < LIFE_KEYS; n++) {
		const struct rig_block *b = rig_find(l->rig, n);

		l->note.durable[n] = b ? b->entry.sequence : 0;
		l->note.gone[n] = !b;
	}
	return write_note(l);
}

static bool one_round(struct life *l)
{
	uint32_t n = 1 + tn_rng_below(&guest.rng, CHANGES);
	uint64_t key[CHANGES];

	l->note.round++;
	for (uint32_t i = 0; i < n; i++)
		key[i] = tn_rng_below(&guest.rng, LIFE_KEYS);
	if (!announce(l, key, n))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		if (rig_find(l->rig, key[i]))
			rig_remove(l->rig, key[i]);
		else
			must(rig_save(l->rig, key[i]) >= 0, "not saved: %.150s", l->rig->logs);
	}
	rig_step(l->rig, tn_rng_below(&guest.rng, 3));
	if (tn_rng_below(&guest.rng, 8) == 0) {
		must(rig_close(l->rig) == 0 && rig_open(l->rig) == 0, "not closed and opened: %.150s", l->rig->logs);
		return all_is_durable(l);
	}
	if (tn_rng_below(&guest.rng, 5) < 2) {
		must(rig_flush(l->rig) == 0, "not flushed: %.150s", l->rig->logs);
		return all_is_durable(l);
	}
	return true;
}

bool guest_store_life(struct guest_drive *d)
{
	struct life l = {.d = d};
	struct tn_io *io;
	bool ok = true;

	must(d->info->queues >= 2, "only %u queue pairs", d->info->queues);
	l.page = d->port->get(d->port->arg, TN_NVME_PAGE, &l.page_bus);
	must(l.page, "no memory");
	if (!guest_engine(d, 0, 0, d->info->blocks - LIFE_NOTES_BYTES / d->info->block_bytes, &io))
		return false;
	l.rig = life_rig(io, 1);
	must(rig_open(l.rig) == 0, "no store: %.150s", l.rig->logs);
	for (uint32_t round = 0; ok && round < ROUNDS; round++)
		ok = one_round(&l);
	must(!ok || l.rig->evict_calls == 0, "the store evicts, which the notes do not tell");
	/* No close: what was not flushed stays so. */
	rig_abandon(l.rig);
	l.rig->store = NULL;
	guest_engine_end(io);
	d->port->put(d->port->arg, l.page, TN_NVME_PAGE);
	return ok;
}
