/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Superblocks: what one file is. Locking it, telling an unfinished creation from a broken store, refusing
 * other versions. How the devices of a store find together is in set.c, and what is left of a store without
 * superblocks in trace.c. Nothing is written to a file before it has been identified as ours or as empty.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/holder.h"
#include "store/store_internal.h"

#define LOCK_RETRY_NS 10000000ull

/* The newer valid copy; false: there is none. *repair: one copy must be written again. */
static bool pick(const void *copy0, const void *copy1, struct tn_disk_super *out, bool *repair)
{
	struct tn_disk_super sb[2];
	int rc0 = tn_disk_super_decode(copy0, TN_DISK_PAGE, &sb[0]);
	int rc1 = tn_disk_super_decode(copy1, TN_DISK_PAGE, &sb[1]);

	*repair = rc0 || rc1 || sb[0].generation != sb[1].generation;
	if (rc0 && rc1)
		return false;
	if (rc0 == 0 && (rc1 || sb[0].generation >= sb[1].generation))
		*out = sb[0];
	else
		*out = sb[1];
	return true;
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
	    pick(pages, (const char *)pages + TN_DISK_PAGE, &sb, &repair))
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

/* Says who has the lock, as far as that can be found out. */
static int in_use(const struct tn_store_device *d, pid_t owner)
{
	pid_t holder = tn_file_holder(d->path, owner);

	if (owner == 0 || holder == owner || tn_process_lives(owner))
		return tn_fail(-EBUSY, "%s is in use by process %d: stop it, or use another instance name", d->path,
			       (int)(owner ? owner : holder));
	if (holder)
		return tn_fail(-EBUSY, "%s is in use by process %d: stop it, or use another instance name (process %d, which owned "
			       "it, is gone; a child that it forked keeps what it inherited)", d->path, (int)holder, (int)owner);
	return tn_fail(-EBUSY, "%s is in use, and process %d, which owned it, is gone: its last writes have not ended, or "
		       "a process that cannot be seen from here has it open, maybe a child that it forked", d->path, (int)owner);
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
		return tn_fail_cause(rc, "cannot open the store %s", d->path);
	d->made = make;
	rc = tn_io_stat(d->store->io, d->file, &st);
	if (rc || st.offset_align > TN_DISK_PAGE)
		tn_io_close(d->store->io, d->file);
	if (rc == 0 && st.offset_align > TN_DISK_PAGE) /* direct I/O in units larger than our structures: go through the page cache */
		rc = tn_io_open(d->store->io, d->path, flags | TN_IO_BUFFERED, &d->file);
	if (rc)
		return tn_fail_cause(rc, "cannot open the store %s", d->path);
	d->open = true;
	return 0;
}

void tn_store_device_close(struct tn_store_device *d)
{
	if (d->open)
		tn_io_close(d->store->io, d->file);
	d->open = false;
}

/* Neither copy is valid: another version's, a copy elsewhere, nothing at all, or something that is not ours to write to. */
static int without_superblocks(struct tn_store_device *d, const void *pages, uint64_t file_bytes, enum tn_found *found)
{
	struct tn_disk_super sb;

	for (int i = 0; i < 2; i++)
		if (tn_disk_super_decode((const char *)pages + (size_t)i * TN_DISK_PAGE, TN_DISK_PAGE, &sb) == -EPROTONOSUPPORT)
			return tn_fail_cause(-EPROTONOSUPPORT, "%s", d->path);
	return tn_store_trace(d, file_bytes, &d->super, found);
}

int tn_store_identify(struct tn_store_device *d, void *pages, enum tn_found *found)
{
	uint32_t unreadable = 0;
	struct tn_io_stat st;
	int rc = tn_io_stat(d->store->io, d->file, &st);

	*found = TN_FOUND_NOTHING;
	d->super_damaged = false;
	if (rc || st.size_bytes == 0)
		return rc;
	/* An unreadable copy is as good as a damaged one. */
	memset(pages, 0, 2 * TN_DISK_PAGE);
	for (int i = 0; i < 2 && st.size_bytes >= TN_DISK_LOG_OFFSET; i++) {
		char *page = (char *)pages + (size_t)i * TN_DISK_PAGE;

		if (tn_store_sync_io(d, TN_IO_READ, TN_DISK_SUPER_OFFSET(i), page, TN_DISK_PAGE)) {
			memset(page, 0xff, TN_DISK_PAGE);
			unreadable++;
		}
	}
	if (pick(pages, (const char *)pages + TN_DISK_PAGE, &d->super, &d->super_damaged)) {
		*found = TN_FOUND_STORE;
		if (d->super_damaged)
			tn_log(d->store->log, TN_LOG_WARN, "%s: one superblock is damaged or older%s", d->path,
			       d->store->read_only ? "" : "; both are written again");
	} else {
		rc = without_superblocks(d, pages, st.size_bytes, found);
	}
	if (rc == -EUCLEAN && unreadable == 2)
		return tn_fail_cause(-EIO, "%s: it cannot be read", d->path);
	if (rc || *found == TN_FOUND_NOTHING)
		return rc;
	if (st.size_bytes < d->super.segments_offset)
		return tn_fail(-EUCLEAN, "%s is cut off within its index: %llu of %llu bytes; remove it to begin anew", d->path,
			       (unsigned long long)st.size_bytes, (unsigned long long)d->super.segments_offset);
	if (d->super.state == TN_DISK_CREATING)
		*found = TN_FOUND_CREATING;
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
