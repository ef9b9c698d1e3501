/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Superblocks: what a device is, and how the devices of a store find together.
 *
 * Everything that touches the identity of a device is here: locking its file, telling an unfinished
 * creation from a broken store, refusing other versions and other stores. Nothing is written to a
 * file before it has been identified as ours or as empty.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "store/store_internal.h"

#define LOCK_RETRY_NS 10000000ull
#define SEGMENT_BYTES_MIN (64u << 10)
#define SEGMENT_BYTES_MAX (1ull << 40)
#define LOG_BYTES_MIN (64u << 10)
#define SLOT_PAGES_MAX ((1u << 26) - 1) /* so that also the number after the last slot has 32 bits */
#define DEVICE_BYTES_MAX (1ull << 57)

enum found { FOUND_NOTHING, FOUND_CREATING, FOUND_STORE };

/* ---- pure ------------------------------------------------------------------------------------------- */

/* Regions follow from the sizes; 0, or -EINVAL when the numbers cannot be. */
static int place_regions(struct tn_disk_super *sb)
{
	uint64_t pages;

	if (sb->segment_bytes < SEGMENT_BYTES_MIN || sb->segment_bytes > SEGMENT_BYTES_MAX ||
	    sb->segment_bytes % TN_DISK_PAGE != 0 || sb->segment_count == 0 || sb->segment_pages == 0 ||
	    (uint64_t)sb->segment_count * sb->segment_pages > SLOT_PAGES_MAX ||
	    sb->segment_count > DEVICE_BYTES_MAX / sb->segment_bytes || sb->log_bytes < LOG_BYTES_MIN ||
	    sb->log_bytes % TN_DISK_PAGE != 0 || sb->log_bytes > 1ull << 40)
		return -EINVAL;
	pages = (uint64_t)sb->segment_count * sb->segment_pages +
		(sb->segment_count + TN_DISK_RECORDS - 1) / TN_DISK_RECORDS;
	sb->log_offset = TN_DISK_LOG_OFFSET;
	sb->checkpoint_bytes = pages * TN_DISK_PAGE + sizeof(struct tn_disk_root);
	sb->checkpoint_offset[0] = sb->log_offset + sb->log_bytes;
	sb->checkpoint_offset[1] = sb->checkpoint_offset[0] + sb->checkpoint_bytes;
	sb->segments_offset = tn_round_up(sb->checkpoint_offset[1] + sb->checkpoint_bytes, 65536);
	return 0;
}

/* Bits of a device's local slot numbers. */
static uint32_t slot_bits(uint64_t slot_pages)
{
	uint32_t bits = 6;

	while (bits < 32 && 1ull << (bits - 6) < slot_pages)
		bits++;
	return bits;
}

int tn_disk_super_decode(const void *page, size_t len, struct tn_disk_super *out)
{
	struct tn_disk_super sb, placed;
	int rc;

	if (len < sizeof(sb))
		return tn_fail(-EBADMSG, "superblock: %zu bytes, must be %zu", len, sizeof(sb));
	memcpy(&sb, page, sizeof(sb));
	rc = tn_disk_check(&sb.head, TN_DISK_MAGIC_SUPER, sizeof(sb), "superblock");
	if (rc)
		return rc;
	placed = sb;
	if (place_regions(&placed) || memcmp(&placed, &sb, sizeof(sb)) != 0 || sb.device_count == 0 ||
	    sb.device_count > TN_DEVICES_MAX || sb.device_index >= sb.device_count || sb.state < TN_DISK_CREATING ||
	    sb.state > TN_DISK_CLEAN || sb.generation >= TN_DISK_LIMIT || sb.epoch >= TN_DISK_LIMIT ||
	    sb.log_epoch >= TN_DISK_LIMIT || sb.sequence_floor >= TN_DISK_LIMIT)
		return tn_fail(-EBADMSG, "superblock: impossible values");
	*out = sb;
	return 0;
}

int tn_store_super_pick(const void *copy0, const void *copy1, const char *path, struct tn_disk_super *out, bool *repair)
{
	struct tn_disk_super sb[2];
	int rc0 = tn_disk_super_decode(copy0, TN_DISK_PAGE, &sb[0]);
	int rc1 = tn_disk_super_decode(copy1, TN_DISK_PAGE, &sb[1]);

	*repair = rc0 || rc1 || sb[0].generation != sb[1].generation;
	if (rc0 && rc1) {
		if (rc0 == -EPROTONOSUPPORT)
			rc1 = tn_disk_super_decode(copy0, TN_DISK_PAGE, &sb[0]);
		if (rc1 == -EPROTONOSUPPORT)
			return tn_fail_cause(-EPROTONOSUPPORT, "%s", path);
		return tn_fail_cause(-EUCLEAN, "%s: both superblocks are damaged; `tenuto store check --rebuild` restores them",
				     path);
	}
	if (rc0)
		*out = sb[1];
	else if (rc1)
		*out = sb[0];
	else
		*out = sb[0].generation >= sb[1].generation ? sb[0] : sb[1];
	return 0;
}

int tn_store_set_path(struct tn_store_device *d, const char *dir)
{
	int n = snprintf(d->path, sizeof(d->path), "%s/tenuto.store", dir);

	if (n < 0 || (size_t)n >= sizeof(d->path))
		return tn_fail(-ENAMETOOLONG, "directory name of %zu bytes: at most %zu", strlen(dir), sizeof(d->path) - 14);
	return 0;
}

/* ---- one file ----------------------------------------------------------------------------------------- */

/* The pid that the owner of a locked file left in its superblock; 0 if it cannot be read. */
static uint32_t owner_pid(struct tn_store_device *d, void *pages)
{
	struct tn_disk_super sb;
	uint32_t pid = 0;
	bool repair;

	if (tn_io_open(d->store->io, d->path, TN_IO_READ_ONLY, &d->file))
		return 0;
	if (tn_store_sync_io(d, TN_IO_READ, TN_DISK_SUPER_OFFSET(0), pages, TN_DISK_PAGE) == 0 &&
	    tn_store_sync_io(d, TN_IO_READ, TN_DISK_SUPER_OFFSET(1), (char *)pages + TN_DISK_PAGE, TN_DISK_PAGE) == 0 &&
	    tn_store_super_pick(pages, (char *)pages + TN_DISK_PAGE, d->path, &sb, &repair) == 0)
		pid = sb.owner_pid;
	tn_io_close(d->store->io, d->file);
	return pid;
}

/* Opens and locks, trying again until the deadline: a killed owner's last writes may still hold the lock. */
int tn_store_lock_wait(struct tn_store_device *d, unsigned flags, uint64_t *left_ns, uint32_t *file)
{
	for (;;) {
		int rc = tn_io_open(d->store->io, d->path, flags | TN_IO_LOCK, file);

		if (rc != -EBUSY || *left_ns == 0)
			return rc;
		tn_store_poll(d->store, LOCK_RETRY_NS); /* nothing is in flight: this only waits */
		*left_ns -= *left_ns < LOCK_RETRY_NS ? *left_ns : LOCK_RETRY_NS;
	}
}

static int open_locked(struct tn_store_device *d, const struct tn_store_opts *o, void *pages)
{
	unsigned flags = (o->inspect ? 0 : TN_IO_LOCK) | (o->read_only ? TN_IO_READ_ONLY : TN_IO_CREATE);
	uint64_t left = o->lock_timeout_ns;
	struct tn_io_stat st;
	uint32_t pid;
	int rc;

	rc = o->inspect ? tn_io_open(d->store->io, d->path, flags, &d->file)
			: tn_store_lock_wait(d, flags, &left, &d->file);
	if (rc == -EBUSY) {
		pid = owner_pid(d, pages);
		return tn_fail(-EBUSY, "%s is in use by process %u: stop it, or use another instance name", d->path, pid);
	}
	if (rc)
		return tn_fail_cause(rc, "cannot open the store %s", d->path);
	rc = tn_io_stat(d->store->io, d->file, &st);
	if (rc == 0 && st.offset_align > TN_DISK_PAGE) {
		/* Direct I/O in units larger than our structures: go through the page cache. */
		tn_io_close(d->store->io, d->file);
		rc = tn_io_open(d->store->io, d->path, flags | TN_IO_BUFFERED, &d->file);
	}
	if (rc)
		return tn_fail_cause(rc, "cannot open the store %s", d->path);
	d->open = true;
	return 0;
}

static bool all_zero(const void *p, size_t len)
{
	const unsigned char *c = p;

	return len == 0 || (c[0] == 0 && memcmp(c, c + 1, len - 1) == 0);
}

/* Is there nothing but an unfinished creation? The space table is written after both superblocks. */
static int looks_empty(struct tn_store_device *d, void *pages, bool *empty)
{
	int rc = 0;

	*empty = true;
	for (int i = 0; i < 2 && rc == 0 && *empty; i++) {
		rc = tn_store_sync_io(d, TN_IO_READ, TN_DISK_SPACES_OFFSET(i), pages, TN_DISK_PAGE);
		if (rc == 0)
			*empty = all_zero(pages, TN_DISK_PAGE);
	}
	return rc;
}

static int identify(struct tn_store_device *d, void *pages, enum found *found)
{
	char *second = (char *)pages + TN_DISK_PAGE;
	struct tn_io_stat st;
	bool repair, empty;
	int rc = tn_io_stat(d->store->io, d->file, &st);

	*found = FOUND_NOTHING;
	if (rc)
		return rc;
	if (st.size_bytes < TN_DISK_LOG_OFFSET) {
		memset(pages, st.size_bytes > 0 && st.size_bytes < TN_DISK_PAGE ? 0xff : 0, TN_DISK_PAGE);
		if (st.size_bytes >= TN_DISK_PAGE)
			rc = tn_store_sync_io(d, TN_IO_READ, 0, pages, TN_DISK_PAGE);
		if (rc || all_zero(pages, TN_DISK_PAGE))
			return rc;
		return tn_fail(-EUCLEAN, "%s is only %llu bytes long: not a store, or cut off; remove it to begin anew", d->path,
			       (unsigned long long)st.size_bytes);
	}
	/* An unreadable copy is as good as a damaged one. */
	memset(pages, 0, 2 * TN_DISK_PAGE);
	if (tn_store_sync_io(d, TN_IO_READ, TN_DISK_SUPER_OFFSET(0), pages, TN_DISK_PAGE))
		memset(pages, 0xff, TN_DISK_PAGE);
	if (tn_store_sync_io(d, TN_IO_READ, TN_DISK_SUPER_OFFSET(1), second, TN_DISK_PAGE))
		memset(second, 0xff, TN_DISK_PAGE);
	rc = tn_store_super_pick(pages, second, d->path, &d->super, &repair);
	if (rc == -EUCLEAN) {
		struct tn_error keep = *tn_error_last();

		rc = looks_empty(d, pages, &empty);
		if (rc == 0 && !empty)
			rc = tn_fail(-EUCLEAN, "%s", keep.text);
		return rc;
	}
	if (rc)
		return rc;
	if (st.size_bytes < d->super.segments_offset)
		return tn_fail(-EUCLEAN, "%s is cut off within its index: %llu of %llu bytes; remove it to begin anew", d->path,
			       (unsigned long long)st.size_bytes, (unsigned long long)d->super.segments_offset);
	*found = d->super.state == TN_DISK_CREATING ? FOUND_CREATING : FOUND_STORE;
	d->super_damaged = repair;
	return 0;
}

int tn_store_super_write(struct tn_store_device *d, enum tn_disk_state state)
{
	/* Nothing else is under way when superblocks are written; before there is a log there is no page of its. */
	void *own = d->log.header_page ? NULL : tn_store_pages_get(d->store, TN_DISK_PAGE);
	struct tn_disk_super *page = own ? own : (void *)d->log.header_page;
	int rc = 0;

	if (!page)
		return tn_fail(-ENOMEM, "no memory for a superblock");
	d->super.state = state;
	d->super.generation++;
	tn_disk_seal(&d->super.head, TN_DISK_MAGIC_SUPER, sizeof(d->super));
	*page = d->super;
	for (int i = 0; i < 2 && rc == 0; i++) {
		rc = tn_store_sync_io(d, TN_IO_WRITE, TN_DISK_SUPER_OFFSET(i), page, TN_DISK_PAGE);
		if (rc == 0)
			rc = tn_store_sync_io(d, TN_IO_SYNC, 0, NULL, 0);
	}
	tn_store_pages_put(d->store, own, TN_DISK_PAGE);
	return rc;
}

/* ---- restoring ---------------------------------------------------------------------------------------------- */

#define SCAN_BYTES (8ull << 30) /* checkpoints of the largest index lie within */

/* A superblock copy in a checkpoint root somewhere at the file's start; the newest one. */
static int find_copy(struct tn_store_device *d, uint64_t file_bytes, struct tn_disk_super *found)
{
	unsigned char *window = tn_store_pages_get(d->store, TN_STORE_BULK_BYTES + TN_DISK_PAGE);
	uint64_t newest = 0;

	if (!window)
		return tn_fail(-ENOMEM, "no memory to look for superblocks");
	for (uint64_t at = TN_DISK_LOG_OFFSET; at < file_bytes && at < SCAN_BYTES; at += TN_STORE_BULK_BYTES) {
		uint64_t n = file_bytes - at < TN_STORE_BULK_BYTES + TN_DISK_PAGE ? file_bytes - at
										: TN_STORE_BULK_BYTES + TN_DISK_PAGE;

		n -= n % TN_DISK_PAGE;
		if (n == 0 || tn_store_sync_io(d, TN_IO_READ, at, window, (uint32_t)n))
			continue;
		for (uint64_t i = 0; i + sizeof(struct tn_disk_root) <= n; i += TN_DISK_PAGE) {
			const struct tn_disk_root *root = (const struct tn_disk_root *)(const void *)(window + i);
			struct tn_disk_super sb;

			if (root->head.magic == TN_DISK_MAGIC_ROOT && root->checkpoint > newest &&
			    tn_disk_super_decode(&root->super, TN_DISK_PAGE, &sb) == 0 &&
			    tn_disk_root_check(root, sizeof(*root), &sb) == 0) {
				newest = root->checkpoint;
				*found = sb;
			}
		}
	}
	tn_store_pages_put(d->store, window, TN_STORE_BULK_BYTES + TN_DISK_PAGE);
	return newest > 0 ? 0
			  : tn_fail(-EUCLEAN, "%s: no copy of the superblock is left, nothing can be restored; remove it to begin anew", d->path);
}

int tn_store_super_restore(struct tn_store *s, const struct tn_store_opts *o)
{
	void *pages = tn_store_pages_get(s, 2 * TN_DISK_PAGE);
	int rc = pages ? 0 : tn_fail(-ENOMEM, "no memory for superblocks");

	for (uint32_t i = 0; i < s->ndevices && rc == 0; i++) {
		struct tn_store_device *d = &s->dev[i];
		struct tn_io_stat st = {0};
		enum found found;

		rc = tn_store_set_path(d, o->dirs[i]);
		if (rc == 0)
			rc = open_locked(d, o, pages);
		if (rc)
			break;
		rc = identify(d, pages, &found);
		if (rc == -EUCLEAN && tn_io_stat(s->io, d->file, &st) == 0 && st.size_bytes > TN_DISK_LOG_OFFSET) {
			rc = find_copy(d, st.size_bytes, &d->super);
			if (rc == 0)
				rc = tn_store_super_write(d, TN_DISK_OPEN);
			if (rc == 0)
				tn_log(s->log, TN_LOG_INFO, "%s: superblocks restored from a checkpoint", d->path);
		}
		tn_io_close(s->io, d->file);
		d->open = false;
	}
	tn_store_pages_put(s, pages, 2 * TN_DISK_PAGE);
	return rc;
}

/* ---- creation ------------------------------------------------------------------------------------------- */

static int pick_sizes(const struct tn_store_opts *o, struct tn_disk_super *sb)
{
	uint64_t segment = o->segment_bytes, per_device, slots, count, pages;

	if (o->capacity_bytes == 0)
		return tn_fail(-EINVAL, "capacity_bytes 0: a new store needs a capacity");
	per_device = o->capacity_bytes / o->ndirs;
	if (segment == 0) {
		segment = o->capacity_bytes / 64;
		segment = segment < (4u << 20) ? 4u << 20 : segment > (1u << 30) ? 1u << 30 : segment;
	}
	if (segment <= SEGMENT_BYTES_MAX)
		segment = tn_round_up(segment < SEGMENT_BYTES_MIN ? SEGMENT_BYTES_MIN : segment, 65536);
	if (segment > SEGMENT_BYTES_MAX || per_device > 1ull << 56)
		return tn_fail(-EINVAL, "capacity of %llu bytes in segments of %llu: more than a store can address",
			       (unsigned long long)o->capacity_bytes, (unsigned long long)segment);
	count = (per_device + segment - 1) / segment;
	slots = o->max_slots ? o->max_slots / o->ndirs + 1 : per_device / 65536 + 1;
	count = count ? count : 1;
	pages = (slots + count - 1) / count;
	/* Not more than fit with the smallest slot and header. */
	if (pages > segment / (TN_STORE_HEADER_BYTES + TN_STORE_BLOCK_ALIGN))
		pages = segment / (TN_STORE_HEADER_BYTES + TN_STORE_BLOCK_ALIGN);
	pages = (pages + TN_DISK_RECORDS - 1) / TN_DISK_RECORDS;
	if (count * pages > SLOT_PAGES_MAX / o->ndirs || (uint64_t)o->ndirs << slot_bits(count * pages) > 1ull << 32)
		return tn_fail(-EINVAL,
			       "capacity of %llu bytes needs %llu pages of slot table, at most %u: give fewer, larger slots (max_slots)",
			       (unsigned long long)o->capacity_bytes, (unsigned long long)(count * pages * o->ndirs),
			       SLOT_PAGES_MAX);
	sb->segment_bytes = segment;
	sb->segment_count = (uint32_t)count;
	sb->segment_pages = (uint32_t)pages;
	sb->log_bytes = o->log_bytes < 1ull << 62 ? o->log_bytes : 1ull << 62;
	if (sb->log_bytes == 0) { /* room for each slot to change twice between checkpoints */
		sb->log_bytes = count * pages * TN_DISK_PAGE * 2;
		sb->log_bytes = sb->log_bytes < (1u << 20)   ? 1u << 20
				: sb->log_bytes > (256u << 20) ? 256u << 20
							       : sb->log_bytes;
	}
	sb->log_bytes = tn_round_up(sb->log_bytes < LOG_BYTES_MIN ? LOG_BYTES_MIN : sb->log_bytes, TN_DISK_PAGE);
	if (place_regions(sb))
		return tn_fail(-EINVAL, "log of %llu bytes: at most 1 TiB", (unsigned long long)sb->log_bytes);
	return 0;
}

static int random_words(const struct tn_store_opts *o, uint64_t *word, unsigned n)
{
	struct tn_rng rng;

	if (o->entropy[0] == 0 && o->entropy[1] == 0)
		return tn_rng_entropy(word, n * sizeof(*word));
	tn_rng_seed(&rng, o->entropy[0] ^ o->entropy[1] << 1);
	for (unsigned i = 0; i < n; i++)
		word[i] = tn_rng_next(&rng);
	return 0;
}

static int create_device(struct tn_store_device *d, const struct tn_disk_super *plan, const uint64_t uuid[2])
{
	int rc = tn_io_allocate(d->store->io, d->file, 0, plan->segments_offset);

	if (rc)
		return tn_fail_cause(rc, "%s: no room for the index (%llu bytes)", d->path,
				     (unsigned long long)plan->segments_offset);
	d->super = *plan;
	d->super.device_index = d->index;
	memcpy(d->super.device_uuid, uuid, sizeof(d->super.device_uuid));
	rc = tn_store_super_write(d, TN_DISK_CREATING);
	if (rc == 0)
		rc = tn_store_spaces_format(d);
	if (rc == 0)
		rc = tn_store_ckpt_format(d);
	return rc;
}

/* All devices are complete, then each is declared so: whatever a crash leaves is told apart at open. */
static int create_set(struct tn_store *s, const struct tn_store_opts *o)
{
	uint64_t word[4 + 2 * TN_DEVICES_MAX];
	struct tn_disk_super plan;
	int rc;

	memset(&plan, 0, sizeof(plan));
	rc = pick_sizes(o, &plan);
	if (rc == 0)
		rc = random_words(o, word, 4 + 2 * s->ndevices);
	if (rc)
		return rc;
	memcpy(plan.store_uuid, word, 16);
	memcpy(plan.secret, word + 2, 16);
	plan.device_count = s->ndevices;
	plan.created_wall_ns = tn_wall_ns(s->clock);
	plan.epoch = 1;
	plan.log_epoch = 0;
	for (uint32_t i = 0; i < s->ndevices && rc == 0; i++)
		rc = create_device(&s->dev[i], &plan, word + 4 + 2 * i);
	for (uint32_t i = 0; i < s->ndevices && rc == 0; i++)
		rc = tn_store_super_write(&s->dev[i], TN_DISK_CLEAN);
	if (rc == 0)
		tn_log(s->log, TN_LOG_INFO, "created a store of %u x %u segments of %llu bytes", s->ndevices,
		       plan.segment_count, (unsigned long long)plan.segment_bytes);
	return rc;
}

/* ---- the set -------------------------------------------------------------------------------------------- */

static int check_set(const struct tn_store *s, const enum found *found)
{
	const struct tn_disk_super *first = NULL;

	for (uint32_t i = 0; i < s->ndevices && !first; i++)
		if (found[i] == FOUND_STORE)
			first = &s->dev[i].super;
	for (uint32_t i = 0; i < s->ndevices; i++) {
		struct tn_store_device *d = &s->dev[i];

		if (found[i] == FOUND_NOTHING)
			return tn_fail(-ENODEV, "%s holds no store, but the other directories belong to a store of %u devices",
				       d->path, first->device_count);
		if (memcmp(d->super.store_uuid, first->store_uuid, 16) != 0)
			return tn_fail(-EXDEV, "%s belongs to another store (%016llx, not %016llx)", d->path,
				       (unsigned long long)d->super.store_uuid[0], (unsigned long long)first->store_uuid[0]);
	}
	for (uint32_t i = 0; i < s->ndevices; i++) {
		struct tn_store_device *d = &s->dev[i];

		if (d->super.device_count != s->ndevices)
			return tn_fail(-ENODEV, "%s is device %u of a store of %u devices, %u directories were given", d->path,
				       d->super.device_index, d->super.device_count, s->ndevices);
		if (d->super.segment_bytes != first->segment_bytes || d->super.segment_count != first->segment_count ||
		    d->super.segment_pages != first->segment_pages)
			return tn_fail(-EUCLEAN, "%s has other sizes than the rest of its store: put the right file back, or remove all of them",
				       d->path);
	}
	return 0;
}

/* Puts the devices into the order of their numbers. */
static int order_set(struct tn_store *s)
{
	struct tn_store_device tmp;

	for (uint32_t i = 0; i < s->ndevices; i++) {
		while (s->dev[i].super.device_index != i) {
			uint32_t to = s->dev[i].super.device_index;

			if (s->dev[to].super.device_index == to)
				return tn_fail(-EXDEV, "%s and %s are both device %u of their store", s->dev[i].path,
					       s->dev[to].path, to);
			tmp = s->dev[to];
			s->dev[to] = s->dev[i];
			s->dev[i] = tmp;
		}
	}
	for (uint32_t i = 0; i < s->ndevices; i++)
		s->dev[i].index = i;
	return 0;
}

int tn_store_super_open(struct tn_store *s, const struct tn_store_opts *o)
{
	enum found found[TN_DEVICES_MAX];
	uint32_t stores = 0;
	void *pages = tn_store_pages_get(s, 2 * TN_DISK_PAGE);
	int rc = 0;

	if (!pages)
		return tn_fail(-ENOMEM, "no memory for superblocks");
	for (uint32_t i = 0; i < s->ndevices && rc == 0; i++) {
		struct tn_store_device *d = &s->dev[i];

		rc = tn_store_set_path(d, o->dirs[i]);
		if (rc == 0)
			rc = open_locked(d, o, pages);
		if (rc == 0)
			rc = identify(d, pages, &found[i]);
		if (rc)
			break;
		stores += found[i] == FOUND_STORE;
		if (d->super_damaged)
			tn_log(s->log, TN_LOG_WARN, "%s: one superblock is damaged or older%s", d->path,
			       s->read_only ? "" : "; both are written again");
	}
	tn_store_pages_put(s, pages, 2 * TN_DISK_PAGE);
	if (rc)
		return rc;
	if (stores > 0)
		rc = check_set(s, found);
	if (rc == 0 && stores > 0)
		rc = order_set(s);
	else if (rc == 0 && s->read_only)
		rc = tn_fail(-ENOENT,
			     "%s is no finished store: it is empty, or its creation was interrupted; remove it, or open a cache there, which "
			     "makes it anew",
			     s->dev[0].path);
	else if (rc == 0)
		rc = create_set(s, o);
	if (rc)
		return rc;
	s->segment_bytes = s->dev[0].super.segment_bytes;
	s->segment_count = s->dev[0].super.segment_count;
	s->segment_pages = s->dev[0].super.segment_pages;
	s->slot_pages = s->segment_count * s->segment_pages;
	s->table_pages = (s->segment_count + TN_DISK_RECORDS - 1) / TN_DISK_RECORDS;
	s->device_shift = slot_bits(s->slot_pages);
	if ((uint64_t)s->ndevices << s->device_shift > 1ull << 32)
		return tn_fail(-EUCLEAN, "%s: %u slot pages on %u devices: more than can be numbered; remove the store's files and begin anew",
			       s->dev[0].path, s->slot_pages, s->ndevices);
	return 0;
}
