/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The space table: which fingerprints the blocks' small space numbers stand for, and what was dropped.
 *
 * Every device has it, in two copies; the newest of all counts. The group commit (log.c) writes one copy before the first
 * record that needs it, and the cycle the other one, when the first is durable: so both copies are durable before a flush ends,
 * and one that is damaged costs nothing. A mark says which generation was durable: if no valid copy is as new, headers are asked.
 * A drop is a sequence number: blocks of the space with a lower one are never recovered, however old the index that names them.
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

/* Reads one copy, as far as it can be read, to d->spaces_page. */
static int read_copy(struct tn_store_device *d, int copy)
{
	struct tn_disk_spaces *t = d->spaces_page;

	tn_store_bulk_read(d, TN_DISK_SPACES_OFFSET(copy), t, sizeof(*t));
	return tn_store_checked(d, tn_disk_spaces_check(t, sizeof(*t), d->super.store_uuid));
}

/*
 * The newest copy of a device, for all devices if there is no newer one. Returns how many copies are damaged: a creation
 * leaves one of them unwritten.
 */
static uint32_t load_device(struct tn_store_device *d)
{
	static const struct tn_disk_head blank;
	struct tn_store *s = d->store;
	uint32_t damaged = 0, blanks = 0;

	for (int copy = 0; copy < 2; copy++) {
		const struct tn_disk_spaces *t = d->spaces_page;
		int rc = read_copy(d, copy);

		blanks += memcmp(&t->head, &blank, sizeof(blank)) == 0;
		damaged += rc != 0;
		if (rc == 0 && t->generation > d->spaces_generation) {
			d->spaces_generation = t->generation;
			d->spaces_copy = copy;
		}
		if (rc == 0 && t->generation > s->spaces.generation)
			s->spaces = *t;
	}
	return d->spaces_generation == 1 && blanks == 1 ? 0 : damaged;
}

void tn_store_spaces_load(struct tn_store *s)
{
	uint64_t claimed = 0;
	bool unclaimed = false;

	tn_store_each(d, s) {
		uint32_t damaged;

		d->spaces_generation = d->absent ? UINT64_MAX : 0; /* an absent one has nothing to write */
		damaged = d->absent ? 0 : load_device(d);
		if (damaged > 0)
			tn_log(s->log, TN_LOG_WARN, "%s: %s space table is damaged, or was being written when the power went%s", d->path,
			       damaged == 1 ? "one copy of the" : "the", s->read_only ? "" : ": both copies are written again");
		unclaimed |= damaged > 0 && d->durable.spaces == 0;
		claimed = claimed > d->durable.spaces ? claimed : d->durable.spaces;
	}
	/* A damaged copy may have been newer than the valid ones, unless a mark says that it was not. */
	s->spaces_doubted = s->spaces.generation == 0 || s->spaces.generation < claimed || unclaimed;
	if (!s->spaces_doubted) {
		tn_store_each(d, s)
			if (!d->absent && d->spaces_generation > d->durable.spaces)
				d->durable.spaces = d->spaces_generation;
		return;
	}
	memcpy(s->spaces.store_uuid, s->dev[0].super.store_uuid, sizeof(s->spaces.store_uuid));
	for (uint32_t i = 0; i < TN_SPACES_MAX; i++)
		s->spaces_floor[i] = s->spaces.space[i].min_sequence;
	s->spaces.generation = s->spaces.generation > claimed ? s->spaces.generation : claimed + 1;
	tn_log(s->log, TN_LOG_WARN, "%s: the newest space table is lost: adding what is newer in block headers", s->dev[0].path);
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
 * The newest table is lost. Headers may say more than the one that is left, never less: no epoch and no minimum sequence falls. Of
 * each number the newest epoch seen is the one that was in use, whoever had the number before. Its first sequence stands in for
 * the minimum: blocks of earlier epochs have lower ones.
 *
 *	sequence          epoch    number
 *	below the floor   -        -                a dropped block: nothing is learned
 *	not below         lower    -                likewise
 *	not below         equal    without owner    given to the header's space
 *	not below         equal    of that space    a lower sequence is the minimum (of a space that was learned)
 *	not below         equal    of another one   nothing
 *	not below         higher   -                given to the header's space, with its epoch
 */
static void learn(struct tn_store *s, const struct tn_store_header *h)
{
	uint16_t i = h->entry.space;
	struct tn_disk_space *sp = &s->spaces.space[i];
	bool newer = h->space_epoch > sp->epoch || (h->space_epoch == sp->epoch && tn_key_is_zero(&sp->id));
	bool same = h->space_epoch == sp->epoch && tn_key_eq(&sp->id, &h->space_id);

	if (h->entry.sequence < s->spaces_floor[i] || !(newer || (same && h->entry.sequence < sp->min_sequence)))
		return;
	*sp = (struct tn_disk_space){.id = h->space_id, .epoch = h->space_epoch, .min_sequence = h->entry.sequence};
	s->spaces.generation++;
	if (i >= s->spaces.count)
		s->spaces.count = i + 1u;
}

bool tn_store_spaces_adopt(struct tn_store *s, const struct tn_store_header *h)
{
	uint16_t i = h->entry.space;
	const struct tn_disk_space *sp;

	if (i >= TN_SPACES_MAX || tn_key_is_zero(&h->space_id))
		return false;
	if (s->spaces_doubted)
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
	if (i == TN_SPACES_MAX)
		return tn_fail(-ENOSPC, "%u spaces in one store: no more", TN_SPACES_MAX);
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
