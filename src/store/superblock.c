/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Superblocks: what one file is. Locking it, telling an unfinished creation from a broken store, refusing
 * other versions. How the devices of a store find together is in set.c. Nothing is written to a file before it has been
 * identified as ours or as empty.
 *
 * In a file that has no valid superblock every structure of a store is looked for, on its page: a file in which anything
 * is left is never formatted. A checkpoint root holds a copy of the superblock, with which the store goes on. Without
 * such a copy nothing can be restored, because the secret that names the blocks is in superblocks only.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/proc.h"
#include "store/store_internal.h"

#define LOCK_RETRY_NS 10000000ull
#define SCAN_BYTES (8ull << 30) /* the largest index lies within */
#define WINDOW_BYTES (4u << 20)
#define UNREADABLE_WINDOWS 2u /* in a row: the device is gone, and each of its reads may take seconds */
#define SECTOR_BYTES 512u
#define FLOOR_RAISE (1ull << 32) /* what sessions since that copy may have used: 256 of them */

/* The newer valid copy of two; false: there is none. *repair: one copy must be written again. */
static bool pick(const void *pages, struct tn_disk_super *out, bool *repair)
{
	struct tn_disk_super other;
	bool first = tn_disk_super_decode(pages, TN_DISK_PAGE, out) == 0;
	bool second = tn_disk_super_decode((const char *)pages + TN_DISK_PAGE, TN_DISK_PAGE, &other) == 0;

	*repair = !first || !second || out->generation != other.generation;
	if (second && (!first || other.generation > out->generation))
		*out = other;
	return first || second;
}

int tn_store_set_path(struct tn_store_device *d, const char *dir)
{
	int n = snprintf(d->path, sizeof(d->path), "%s/tenuto.store", dir);

	if (n < 0 || (size_t)n >= sizeof(d->path))
		return tn_fail(-ENAMETOOLONG, "directory name of %zu bytes: at most %zu", strlen(dir), sizeof(d->path) - 14);
	return 0;
}

/* ---- one file ----------------------------------------------------------------------------------------- */

/* Reads both copies; those that cannot be read become 0xff, as good as damaged. Returns how many. */
static uint32_t read_copies(struct tn_store_device *d, char *pages)
{
	uint32_t unreadable = 0;

	for (int i = 0; i < 2; i++, pages += TN_DISK_PAGE) {
		if (tn_store_sync_io(d, TN_IO_READ, TN_DISK_SUPER_OFFSET(i), pages, TN_DISK_PAGE) == 0)
			continue;
		memset(pages, 0xff, TN_DISK_PAGE);
		unreadable++;
	}
	return unreadable;
}

/* The pid that the owner of a locked file left in its superblock; 0 if it cannot be read. */
static uint32_t owner_pid(struct tn_store_device *d, void *pages)
{
	struct tn_disk_super sb = {.owner_pid = 0};
	bool repair;

	if (tn_io_open(d->store->io, d->path, TN_IO_READ_ONLY, &d->file))
		return 0;
	read_copies(d, pages);
	pick(pages, &sb, &repair);
	tn_io_close(d->store->io, d->file);
	return sb.owner_pid;
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

/* Says who has the lock, as far as that can be found out. */
static int in_use(const struct tn_store_device *d, pid_t owner)
{
	pid_t holder = tn_file_holder(d->path, owner);

	if (owner == 0 || holder == owner || tn_process_lives(owner))
		return tn_fail(-EBUSY, "%s is in use by process %d: stop it, or give another directory", d->path,
			       (int)(owner ? owner : holder));
	if (holder)
		return tn_fail(-EBUSY, "%s is in use by process %d: stop it, or give another directory (process %d, which owned "
			       "it, is gone; a child that it forked keeps what it inherited)", d->path, (int)holder, (int)owner);
	return tn_fail(-EBUSY, "%s is in use, and process %d, which owned it, is gone: its last writes have not ended, or "
		       "a process that cannot be seen from here has it open, maybe a child that it forked", d->path, (int)owner);
}

/* Of files the cause names the path. */
static int cannot_open(const struct tn_store_device *d, int rc)
{
	if (strncmp(tn_error_last()->text, d->path, strlen(d->path)) == 0)
		return tn_fail_cause(rc, "cannot open the store");
	return tn_fail_cause(rc, "cannot open the store %s", d->path);
}

int tn_store_device_open(struct tn_store_device *d, const struct tn_store_opts *o, bool make, void *pages)
{
	unsigned flags = (o->inspect ? 0 : TN_IO_LOCK) | (o->read_only ? TN_IO_READ_ONLY : 0);
	uint64_t left = o->lock_timeout_ns;
	struct tn_io_stat st;
	int rc;

	if (make)
		rc = tn_io_open(d->store->io, d->path, flags | TN_IO_CREATE | TN_IO_EXCLUSIVE, &d->file);
	else
		rc = o->inspect ? tn_io_open(d->store->io, d->path, flags, &d->file)
				: tn_store_lock_wait(d, flags, &left, &d->file);
	if (rc == -EBUSY)
		return in_use(d, (pid_t)owner_pid(d, pages));
	if (rc)
		return cannot_open(d, rc);
	d->made = make;
	rc = tn_io_stat(d->store->io, d->file, &st);
	if (rc || st.offset_align > TN_DISK_PAGE)
		tn_io_close(d->store->io, d->file);
	if (rc == 0 && st.offset_align > TN_DISK_PAGE) /* direct I/O in units larger than our structures: go through the page cache */
		rc = tn_io_open(d->store->io, d->path, flags | TN_IO_BUFFERED, &d->file);
	if (rc)
		return cannot_open(d, rc);
	d->open = true;
	return 0;
}

void tn_store_device_close(struct tn_store_device *d)
{
	if (d->open)
		tn_io_close(d->store->io, d->file);
	d->open = false;
}

static const struct {
	uint32_t magic;
	const char *name;
} kinds[] = {
	{TN_DISK_MAGIC_SUPER, "superblocks"},	      {TN_DISK_MAGIC_SPACES, "space tables"},
	{TN_DISK_MAGIC_LOG, "log groups"},	      {TN_DISK_MAGIC_ROOT, "checkpoint roots"},
	{TN_DISK_MAGIC_PAGE, "checkpoint pages"},    {TN_DISK_MAGIC_SEGMENT, "segment headers"},
	{TN_DISK_MAGIC_BLOCK, "block headers"},	      {TN_DISK_MAGIC_MARK, "marks"},
};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

struct scan {
	struct tn_store_device *dev;
	uint64_t count[KINDS], first[KINDS];
	bool anything; /* besides a torn first superblock */
	bool found_copy;
};

static bool all_zero(const void *p, size_t len)
{
	const unsigned char *c = p;

	return len == 0 || (c[0] == 0 && memcmp(c, c + 1, len - 1) == 0);
}

/* The first write of a creation, torn: all that says something is in the page's first sector. */
static bool torn_creation(const unsigned char *page)
{
	const struct tn_disk_head *head = (const struct tn_disk_head *)(const void *)page;

	return head->magic == TN_DISK_MAGIC_SUPER && all_zero(page + SECTOR_BYTES, TN_DISK_PAGE - SECTOR_BYTES);
}

static bool root_copy(const struct tn_disk_root *root, struct tn_disk_super *sb)
{
	return root->head.magic == TN_DISK_MAGIC_ROOT && tn_disk_super_decode(&root->super, TN_DISK_PAGE, sb) == 0 &&
	       tn_disk_root_check(root, sizeof(*root), sb) == 0;
}

/* One root was found, and with it the place of the other: the newer one's copy. */
static void newest_copy(struct scan *sc, const struct tn_disk_super *sb, struct tn_disk_root *root)
{
	struct tn_disk_super other;
	uint64_t newest = 0;

	sc->dev->super = *sb;
	sc->found_copy = true;
	for (int i = 0; i < 2; i++) {
		if (tn_store_sync_io(sc->dev, TN_IO_READ, sb->checkpoint_offset[i], root, sizeof(*root)) ||
		    !root_copy(root, &other) || memcmp(other.device_uuid, sb->device_uuid, 16) != 0 ||
		    root->checkpoint < newest)
			continue;
		newest = root->checkpoint;
		sc->dev->super = other;
	}
}

/* False: nothing more is to be learned. len: what follows the page in memory, too. */
static bool learn_from_page(struct scan *sc, uint64_t at, unsigned char *page, uint64_t len)
{
	const struct tn_disk_head *head = (const struct tn_disk_head *)(const void *)page;
	struct tn_disk_super sb;

	if (all_zero(page, TN_DISK_PAGE))
		return true;
	if (at > 0 || !torn_creation(page))
		sc->anything = true;
	for (size_t k = 0; k < KINDS; k++) {
		if (head->magic != kinds[k].magic)
			continue;
		if (sc->count[k]++ == 0)
			sc->first[k] = at;
	}
	if (len >= sizeof(struct tn_disk_root) && root_copy((const struct tn_disk_root *)(const void *)page, &sb)) {
		newest_copy(sc, &sb, (struct tn_disk_root *)(void *)page);
		return false;
	}
	return head->magic != TN_DISK_MAGIC_SEGMENT; /* behind the checkpoints */
}

static int scan_file(struct scan *sc, uint64_t file_bytes)
{
	struct tn_store *s = sc->dev->store;
	unsigned char *window = tn_store_pages_get(s, WINDOW_BYTES + TN_DISK_PAGE);
	uint32_t unreadable = 0;
	bool more = true;
	int rc = 0;

	if (!window)
		return tn_fail(-ENOMEM, "no memory to look for superblocks");
	for (uint64_t at = 0; at < file_bytes && at < SCAN_BYTES && more; at += WINDOW_BYTES) {
		uint64_t n = file_bytes - at, errors = sc->dev->read_errors, here;

		n = n < WINDOW_BYTES + TN_DISK_PAGE ? n - n % TN_DISK_PAGE : WINDOW_BYTES + TN_DISK_PAGE;
		here = n < WINDOW_BYTES ? n : WINDOW_BYTES;
		tn_store_bulk_read(sc->dev, at, window, n); /* what cannot be read is not known to be empty */
		unreadable = sc->dev->read_errors - errors >= n / TN_DISK_PAGE ? unreadable + 1 : 0;
		if (unreadable == UNREADABLE_WINDOWS) {
			rc = tn_fail(-EIO, "%s: nothing of it can be read", sc->dev->path);
			break;
		}
		for (uint64_t i = 0; i < here && more; i += TN_DISK_PAGE)
			more = learn_from_page(sc, at + i, window + i, n - i);
	}
	tn_store_pages_put(s, window, WINDOW_BYTES + TN_DISK_PAGE);
	return rc;
}

static void describe(const struct scan *sc, char *text, size_t len)
{
	size_t n = 0;

	for (size_t k = 0; k < KINDS && n < len; k++)
		if (sc->count[k] > 0)
			n += (size_t)snprintf(text + n, len - n, "%s%llu %s from byte %llu on", n ? ", " : "",
					      (unsigned long long)sc->count[k], kinds[k].name,
					      (unsigned long long)sc->first[k]);
	if (n == 0)
		snprintf(text, len, "nothing of a store is in it, but it is not empty");
}

/*
 * What is in a file without a valid superblock: 0 and d->found, which is TN_FOUND_STORE with d->super (of the newest
 * checkpoint root), or TN_FOUND_NOTHING; -EUCLEAN, whose detail says what was found where.
 */
static int trace(struct tn_store_device *d, uint64_t file_bytes)
{
	struct scan sc = {.dev = d};
	char text[400];
	int rc = scan_file(&sc, file_bytes);

	if (rc)
		return rc;
	if (sc.found_copy) {
		tn_log(d->store->log, TN_LOG_WARN, "%s: both superblocks are damaged: going on with the copy in a checkpoint%s",
		       d->path, d->store->read_only ? "" : ", both are written again");
		d->super_damaged = true;
		d->super.state = TN_DISK_OPEN; /* that of the first root is from before the creation ended */
		d->super.sequence_floor += d->super.sequence_floor < TN_DISK_LIMIT / 2 ? FLOOR_RAISE : 0;
		d->found = TN_FOUND_STORE;
		return 0;
	}
	if (file_bytes < TN_DISK_LOG_OFFSET) {
		if (!sc.anything && file_bytes % TN_DISK_PAGE == 0 && sc.count[0] == 0)
			return 0;
		return tn_fail(-EUCLEAN, "%s is only %llu bytes long: not a store, or cut off; remove it to begin anew", d->path,
			       (unsigned long long)file_bytes);
	}
	if (!sc.anything && file_bytes > SCAN_BYTES)
		return tn_fail(-EUCLEAN, "%s is empty as far as was looked (%llu of %llu bytes), but longer than what a creation leaves: "
			       "remove it to begin anew",
			       d->path, SCAN_BYTES, (unsigned long long)file_bytes);
	if (!sc.anything && file_bytes % TN_DISK_PAGE == 0)
		return 0;
	describe(&sc, text, sizeof(text));
	return tn_fail(-EUCLEAN, "%s: both superblocks are damaged and no checkpoint has a copy of them (%s): nothing can be restored; "
		       "remove it to begin anew",
		       d->path, text);
}

int tn_store_identify(struct tn_store_device *d, void *pages)
{
	uint32_t unreadable = 0;
	struct tn_io_stat st;
	int rc = tn_io_stat(d->store->io, d->file, &st);

	d->found = TN_FOUND_NOTHING;
	d->super_damaged = false;
	if (rc || st.size_bytes == 0)
		return rc;
	memset(pages, 0, 2 * TN_DISK_PAGE);
	if (st.size_bytes >= TN_DISK_LOG_OFFSET)
		unreadable = read_copies(d, pages);
	for (int i = 0; i < 2; i++) /* also if the other copy is valid: a conversion may have ended between the two */
		if (tn_disk_super_decode((const char *)pages + (size_t)i * TN_DISK_PAGE, TN_DISK_PAGE, &d->super) == -EPROTONOSUPPORT)
			return tn_fail_cause(-EPROTONOSUPPORT, "%s", d->path);
	if (pick(pages, &d->super, &d->super_damaged)) {
		d->found = TN_FOUND_STORE;
		if (d->super_damaged)
			tn_log(d->store->log, TN_LOG_WARN, "%s: one superblock is damaged or older%s", d->path,
			       d->store->read_only ? "" : "; both are written again");
	} else {
		rc = trace(d, st.size_bytes);
	}
	if (rc == -EUCLEAN && unreadable == 2)
		return tn_fail_cause(-EIO, "%s: it cannot be read", d->path);
	if (rc || d->found == TN_FOUND_NOTHING)
		return rc;
	if (st.size_bytes < d->super.segments_offset)
		return tn_fail(-EUCLEAN, "%s is cut off within its index: %llu of %llu bytes; remove it to begin anew", d->path,
			       (unsigned long long)st.size_bytes, (unsigned long long)d->super.segments_offset);
	if (d->super.state == TN_DISK_CREATING)
		d->found = TN_FOUND_CREATING;
	return 0;
}

int tn_store_super_write(struct tn_store_device *d, enum tn_disk_state state, struct tn_disk_super *page)
{
	int rc = 0;

	d->super.state = state;
	d->super.generation++;
	tn_disk_seal(&d->super.head, TN_DISK_MAGIC_SUPER, sizeof(d->super));
	*page = d->super;
	for (int i = 0; i < 2 && rc == 0; i++) {
		rc = tn_store_sync_io(d, TN_IO_WRITE, TN_DISK_SUPER_OFFSET(i), page, TN_DISK_PAGE);
		if (rc == 0)
			rc = tn_store_sync_io(d, TN_IO_SYNC, 0, NULL, 0);
	}
	return rc;
}

int tn_store_capacity(const struct tn_store_opts *o, const char *dir, uint64_t *capacity_bytes, uint64_t *slots)
{
	struct tn_store *s = tn_get(o->alloc, sizeof(*s)); /* as much of a store as a blocking read needs */
	struct tn_store_device *d;
	void *pages;
	int rc;

	if (!s)
		return tn_fail(-ENOMEM, "no memory to look at a store");
	s->io = o->io;
	s->alloc = o->alloc;
	s->clock = o->clock; /* and no log: the open logs what it finds */
	s->read_only = true;
	tn_list_init(&s->queued);
	d = s->device;
	d->store = s;
	rc = tn_store_set_path(d, dir);
	if (rc == 0)
		rc = tn_io_open(s->io, d->path, TN_IO_READ_ONLY, &d->file);
	if (rc == 0) {
		d->open = true;
		pages = tn_store_pages_get(s, 2 * TN_DISK_PAGE);
		rc = pages ? tn_store_identify(d, pages) : tn_fail(-ENOMEM, "no memory for superblocks");
		tn_store_pages_put(s, pages, 2 * TN_DISK_PAGE);
	}
	if (rc == 0 && d->found != TN_FOUND_STORE)
		rc = tn_fail(-ENOENT, "%s holds no finished store", d->path);
	if (rc == 0) {
		*capacity_bytes = d->super.segment_bytes * d->super.segment_count;
		*slots = (uint64_t)d->super.segment_count * d->super.segment_pages * TN_DISK_RECORDS;
	}
	tn_store_device_close(d);
	tn_put(o->alloc, s, sizeof(*s));
	return rc;
}
