/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is in a file that has no valid superblock. Every structure of a store is looked for, on its page: a file in
 * which anything is left is never formatted. A checkpoint root holds a copy of the superblock, with which the store
 * goes on. Without such a copy nothing can be restored, because the secret that names the blocks is in superblocks
 * only.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "store/store_internal.h"

#define SCAN_BYTES (8ull << 30) /* the largest index lies within */
#define WINDOW_BYTES (4u << 20)
#define SECTOR_BYTES 512u
#define FLOOR_RAISE (1ull << 32) /* what sessions since that copy may have used: 256 of them */

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
	struct tn_disk_super *copy;
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

	*sc->copy = *sb;
	sc->found_copy = true;
	for (int i = 0; i < 2; i++) {
		if (tn_store_sync_io(sc->dev, TN_IO_READ, sb->checkpoint_offset[i], root, sizeof(*root)) ||
		    !root_copy(root, &other) || memcmp(other.device_uuid, sb->device_uuid, 16) != 0 ||
		    root->checkpoint < newest)
			continue;
		newest = root->checkpoint;
		*sc->copy = other;
	}
}

/* False: nothing more is to be learned. len: what follows the page in memory, too. */
static bool look(struct scan *sc, uint64_t at, unsigned char *page, uint64_t len)
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
	bool more = true;

	if (!window)
		return tn_fail(-ENOMEM, "no memory to look for superblocks");
	for (uint64_t at = 0; at < file_bytes && at < SCAN_BYTES && more; at += WINDOW_BYTES) {
		uint64_t n = file_bytes - at, here;

		n = n < WINDOW_BYTES + TN_DISK_PAGE ? n - n % TN_DISK_PAGE : WINDOW_BYTES + TN_DISK_PAGE;
		here = n < WINDOW_BYTES ? n : WINDOW_BYTES;
		tn_store_patient_read(sc->dev, at, window, n); /* what cannot be read is not known to be empty */
		for (uint64_t i = 0; i < here && more; i += TN_DISK_PAGE)
			more = look(sc, at + i, window + i, n - i);
	}
	tn_store_pages_put(s, window, WINDOW_BYTES + TN_DISK_PAGE);
	return 0;
}

static void describe(const struct scan *sc, char *text, size_t room)
{
	size_t n = 0;

	for (size_t k = 0; k < KINDS && n < room; k++)
		if (sc->count[k] > 0)
			n += (size_t)snprintf(text + n, room - n, "%s%llu %s from byte %llu on", n ? ", " : "",
					      (unsigned long long)sc->count[k], kinds[k].name,
					      (unsigned long long)sc->first[k]);
	if (n == 0)
		snprintf(text, room, "nothing of a store is in it, but it is not empty");
}

int tn_store_trace(struct tn_store_device *d, uint64_t file_bytes, struct tn_disk_super *copy, enum tn_found *found)
{
	struct scan sc = {.dev = d, .copy = copy};
	char text[400];
	int rc = scan_file(&sc, file_bytes);

	if (rc)
		return rc;
	if (sc.found_copy) {
		tn_log(d->store->log, TN_LOG_WARN, "%s: both superblocks are damaged: going on with the copy in a checkpoint%s",
		       d->path, d->store->read_only ? "" : ", both are written again");
		d->super_damaged = true;
		copy->state = TN_DISK_OPEN; /* that of the first root is from before the creation ended */
		copy->sequence_floor += copy->sequence_floor < TN_DISK_LIMIT / 2 ? FLOOR_RAISE : 0;
		*found = TN_FOUND_STORE;
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
