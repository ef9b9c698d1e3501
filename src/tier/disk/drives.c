/* SPDX-License-Identifier: Apache-2.0 */
/* The drives of the disk tier, as tier/drives.h wants them: the store says where slots lie and what it knows of each drive, headers.c the rest. */
#include <tenuto/ring.h>

#include "tier/disk/disk.h"
#include "tier/disk/headers.h"

static uint64_t data_at(const struct tn_tier_base *t, uint32_t place)
{
	struct tn_store_place where;

	tn_store_locate(tn_disk_at(t)->store, place, &where);
	return tn_ioctx_disk(where.device, where.data_offset / TN_PLACE_ALIGN);
}

static uint64_t header_at(const struct tn_tier_base *t, uint32_t place)
{
	struct tn_store_place where;

	tn_store_locate(tn_disk_at(t)->store, place, &where);
	return tn_ioctx_disk(where.device, where.header_offset / TN_STORE_HEADER_BYTES);
}

/* ---- headers -------------------------------------------------------------------------------------------------- */

static bool header_known(struct tn_tier_base *t, const struct tn_header_want *want)
{
	return tn_headers_cached(tn_disk_of(t)->headers, want);
}

static uint32_t header_take(struct tn_tier_base *t, bool write, uint32_t block)
{
	return tn_headers_take(tn_disk_of(t)->headers, write, block);
}

static void header_give(struct tn_tier_base *t, uint32_t buffer)
{
	tn_headers_give(tn_disk_of(t)->headers, buffer);
}

static int header_read(struct tn_tier_base *t, uint32_t buffer, int status, const struct tn_header_want *want)
{
	struct tn_headers *h = tn_disk_of(t)->headers;

	status = status ? status : tn_headers_decode(h, buffer, want);
	tn_headers_give(h, buffer);
	return status;
}

static void header_encode(struct tn_tier_base *t, uint32_t buffer, struct tn_header_put *put)
{
	put->entry.sequence = tn_store_next_sequence(tn_disk_of(t)->store);
	tn_headers_encode(tn_disk_of(t)->headers, buffer, put);
}

static void header_written(struct tn_tier_base *t, uint32_t buffer, int status, const struct tn_header_want *what)
{
	struct tn_headers *h = tn_disk_of(t)->headers;

	tn_headers_give(h, buffer);
	if (status == 0)
		tn_headers_written(h, what->place, what->key, what->sequence, what->shape->layers, what->checks);
}

/* ---- what drives tell, and what is known of them ---------------------------------------------------------------- */

static bool complete(struct tn_tier_base *t, struct tn_io_req *req)
{
	return tn_store_complete(tn_disk_of(t)->store, req);
}

static void observe(struct tn_tier_base *t, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns, int status)
{
	tn_store_observe(tn_disk_of(t)->store, device, op, bytes, latency_ns, status);
}

static uint32_t file(const struct tn_tier_base *t, uint32_t device)
{
	return tn_store_file(tn_disk_at(t)->store, device);
}

static const char *path(const struct tn_tier_base *t, uint32_t device)
{
	return tn_store_path(tn_disk_at(t)->store, device);
}

static int stats(const struct tn_tier_base *t, uint32_t device, struct tn_device_stats *out)
{
	return tn_store_stats(tn_disk_at(t)->store, device, out);
}

static void counts(const struct tn_tier_base *t, struct tn_drive_counts *c)
{
	tn_headers_counts(tn_disk_at(t)->headers, &c->header_cache_hits, &c->header_reads);
	c->index_bytes = tn_store_index_bytes(tn_disk_at(t)->store);
	c->recovery_ns = tn_store_recovery_ns(tn_disk_at(t)->store);
}

const struct tn_drive_ops tn_disk_drive_ops = {
	.data_at = data_at,
	.header_at = header_at,
	.header_known = header_known,
	.header_take = header_take,
	.header_give = header_give,
	.header_read = header_read,
	.header_encode = header_encode,
	.header_written = header_written,
	.complete = complete,
	.observe = observe,
	.file = file,
	.path = path,
	.stats = stats,
	.counts = counts,
};
