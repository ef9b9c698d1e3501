/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The space table: which fingerprints the blocks' small space numbers stand for, and what was dropped.
 *
 * Every device has it, in two copies written in turn; the newest of all counts. It is written by the
 * group commit (log.c) before the first record that needs it. A drop is a sequence number: blocks of the
 * space with a lower one are never recovered, however old the index that names them.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

int tn_store_spaces_format(struct tn_store_device *d, struct tn_disk_spaces *t)
{
	int rc;

	memset(t, 0, sizeof(*t));
	memcpy(t->store_uuid, d->super.store_uuid, sizeof(t->store_uuid));
	t->generation = 1;
	/* A device that is made anew may have a table of its earlier life. */
	rc = d->made ? 0 : tn_store_sync_io(d, TN_IO_WRITE, TN_DISK_SPACES_OFFSET(1), &t->space[0], TN_DISK_PAGE);
	tn_disk_seal(&t->head, TN_DISK_MAGIC_SPACES, sizeof(*t));
	if (rc == 0)
		rc = tn_store_sync_io(d, TN_IO_WRITE, TN_DISK_SPACES_OFFSET(0), t, sizeof(*t));
	if (rc == 0)
		rc = tn_store_sync_io(d, TN_IO_SYNC, 0, NULL, 0);
	return rc;
}

void tn_store_spaces_load(struct tn_store *s)
{
	s->spaces.generation = 0;
	tn_store_each(d, s) {
		struct tn_disk_spaces *t = d->spaces_page;

		d->spaces_generation = d->absent ? UINT64_MAX : 0; /* an absent one has nothing to write */
		for (int copy = 0; copy < 2 && !d->absent; copy++) {
			if (tn_store_sync_io(d, TN_IO_READ, TN_DISK_SPACES_OFFSET(copy), t, sizeof(*t)) ||
			    tn_store_checked(d, tn_disk_spaces_check(t, sizeof(*t), d->super.store_uuid)))
				continue;
			if (t->generation > d->spaces_generation) {
				d->spaces_generation = t->generation;
				d->spaces_copy = copy;
			}
			if (t->generation > s->spaces.generation)
				s->spaces = *t;
		}
	}
	s->spaces_lost = s->spaces.generation == 0;
	if (s->spaces_lost) {
		memset(&s->spaces, 0, sizeof(s->spaces));
		memcpy(s->spaces.store_uuid, s->dev[0].super.store_uuid, sizeof(s->spaces.store_uuid));
		s->spaces.generation = 1;
		tn_log(s->log, TN_LOG_WARN, "%s: the space table is damaged: rebuilding it from block headers", s->dev[0].path);
	}
}

static bool in_use(const struct tn_store *s, uint16_t space)
{
	return space < s->spaces.count && !tn_key_is_zero(&s->spaces.space[space].id);
}

bool tn_store_spaces_valid(const struct tn_store *s, uint16_t space, uint64_t sequence)
{
	return in_use(s, space) && sequence >= s->spaces.space[space].min_sequence;
}

/*
 * The table is lost: of each number the newest epoch seen is the one that was in use, whoever had the number before. Its first
 * sequence stands in for the minimum: blocks of earlier epochs have lower ones.
 */
static void learn(struct tn_store *s, const struct tn_store_header *h)
{
	uint16_t i = h->entry.space;
	struct tn_disk_space *sp = &s->spaces.space[i];

	if (tn_key_is_zero(&sp->id) || h->space_epoch > sp->epoch) {
		*sp = (struct tn_disk_space){
			.id = h->space_id, .epoch = h->space_epoch, .min_sequence = h->entry.sequence};
		s->spaces.generation++;
		if (i >= s->spaces.count)
			s->spaces.count = i + 1u;
	} else if (h->space_epoch == sp->epoch && tn_key_eq(&sp->id, &h->space_id) && h->entry.sequence < sp->min_sequence) {
		sp->min_sequence = h->entry.sequence;
		s->spaces.generation++;
	}
}

bool tn_store_spaces_adopt(struct tn_store *s, const struct tn_store_header *h)
{
	uint16_t i = h->entry.space;
	const struct tn_disk_space *sp;

	if (i >= TN_STORE_SPACES_MAX || tn_key_is_zero(&h->space_id))
		return false;
	if (s->spaces_lost)
		learn(s, h);
	sp = &s->spaces.space[i];
	return i < s->spaces.count && tn_key_eq(&sp->id, &h->space_id) && h->space_epoch == sp->epoch &&
	       h->entry.sequence >= sp->min_sequence;
}

int tn_store_space(struct tn_store *s, const struct tn_key *space_id, uint16_t *space)
{
	struct tn_disk_spaces *t = &s->spaces;
	uint32_t i = t->count;

	if (tn_key_is_zero(space_id))
		return tn_fail(-EINVAL, "a space's fingerprint must not be zero");
	for (uint32_t k = t->count; k-- > 0;) {
		if (tn_key_eq(&t->space[k].id, space_id)) {
			*space = (uint16_t)k;
			return 0;
		}
		if (tn_key_is_zero(&t->space[k].id))
			i = k;
	}
	if (i == TN_STORE_SPACES_MAX)
		return tn_fail(-ENOSPC, "%u spaces in one store: no more", TN_STORE_SPACES_MAX);
	if (i == t->count) {
		t->space[i].epoch = 1;
		t->count++;
	}
	/* A number that was given back keeps its epoch and minimum sequence: both are new to whoever gets it. */
	t->space[i].id = *space_id;
	t->generation++;
	*space = (uint16_t)i;
	return 0;
}

static void next_epoch(struct tn_store *s, uint16_t space)
{
	s->spaces.space[space].epoch++;
	s->spaces.space[space].min_sequence = s->sequence;
	s->spaces.generation++;
}

void tn_store_space_give_back(struct tn_store *s, uint16_t space)
{
	assert(in_use(s, space));
	s->spaces.space[space].id = (struct tn_key){{0, 0}};
	next_epoch(s, space);
}

int tn_store_space_info(const struct tn_store *s, uint16_t space, struct tn_key *space_id, uint32_t *epoch)
{
	if (!in_use(s, space))
		return tn_fail(-ENOENT, "space %u: there is none", space);
	*space_id = s->spaces.space[space].id;
	*epoch = s->spaces.space[space].epoch;
	return 0;
}

int tn_store_space_drop(struct tn_store *s, uint16_t space)
{
	if (!in_use(s, space))
		return tn_fail(-ENOENT, "space %u: there is none", space);
	if (s->read_only)
		return tn_fail(-EROFS, "the store is open read-only");
	next_epoch(s, space);
	return 0;
}

uint16_t tn_store_spaces(const struct tn_store *s)
{
	return (uint16_t)s->spaces.count;
}
