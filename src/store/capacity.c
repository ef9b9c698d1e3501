/* SPDX-License-Identifier: Apache-2.0 */
/* How large a store that nobody has opened yet may grow: for callers that size their tables before they open it. */
#include <errno.h>

#include "base/error.h"
#include "store/store_internal.h"

int tn_store_capacity(const struct tn_store_opts *o, const char *dir, uint64_t *capacity_bytes, uint64_t *slots)
{
	/* As much of a store as a blocking read needs; nothing of it is kept. */
	struct tn_store s = {.io = o->io, .alloc = o->alloc, .clock = o->clock, .log = o->log};
	struct tn_store_device d = {.store = &s};
	struct tn_disk_super sb;
	char *pages;
	bool repair;
	int rc;

	tn_list_init(&s.queued);
	rc = tn_store_set_path(&d, dir);
	if (rc == 0)
		rc = tn_io_open(s.io, d.path, TN_IO_READ_ONLY, &d.file);
	if (rc)
		return rc;
	pages = tn_store_pages_get(&s, 2 * TN_DISK_PAGE);
	rc = pages ? 0 : tn_fail(-ENOMEM, "no memory for superblocks");
	/* A copy that cannot be read is as good as a damaged one: the memory is zero. */
	for (int i = 0; i < 2 && rc == 0; i++)
		tn_store_sync_io(&d, TN_IO_READ, TN_DISK_SUPER_OFFSET(i), pages + (size_t)i * TN_DISK_PAGE, TN_DISK_PAGE);
	if (rc == 0)
		rc = tn_store_super_pick(pages, pages + TN_DISK_PAGE, d.path, &sb, &repair);
	if (rc == 0) {
		*capacity_bytes = sb.segment_bytes * sb.segment_count;
		*slots = (uint64_t)sb.segment_count * sb.segment_pages * TN_DISK_RECORDS;
	}
	tn_store_pages_put(&s, pages, 2 * TN_DISK_PAGE);
	tn_io_close(s.io, d.file);
	return rc;
}
