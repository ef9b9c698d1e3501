/* SPDX-License-Identifier: Apache-2.0 */
/* How large a store that nobody has opened yet may grow: for callers that size their tables before they open it. */
#include <errno.h>

#include "base/error.h"
#include "store/store_internal.h"

int tn_store_capacity(const struct tn_store_opts *o, const char *dir, uint64_t *capacity_bytes, uint64_t *slots)
{
	/* As much of a store as a blocking read needs; nothing of it is kept. */
	struct tn_store s = {.io = o->io, .alloc = o->alloc, .clock = o->clock, .read_only = true}; /* the open logs what it finds */
	struct tn_store_device d = {.store = &s};
	enum tn_found found = TN_FOUND_NOTHING;
	void *pages;
	int rc;

	tn_list_init(&s.queued);
	rc = tn_store_set_path(&d, dir);
	if (rc == 0)
		rc = tn_io_open(s.io, d.path, TN_IO_READ_ONLY, &d.file);
	if (rc)
		return rc;
	pages = tn_store_pages_get(&s, 2 * TN_DISK_PAGE);
	rc = pages ? 0 : tn_fail(-ENOMEM, "no memory for superblocks");
	if (rc == 0)
		rc = tn_store_identify(&d, pages, &found);
	if (rc == 0 && found != TN_FOUND_STORE)
		rc = tn_fail(-ENOENT, "%s holds no finished store", d.path);
	if (rc == 0) {
		*capacity_bytes = d.super.segment_bytes * d.super.segment_count;
		*slots = (uint64_t)d.super.segment_count * d.super.segment_pages * TN_DISK_RECORDS;
	}
	tn_store_pages_put(&s, pages, 2 * TN_DISK_PAGE);
	tn_io_close(s.io, d.file);
	return rc;
}
