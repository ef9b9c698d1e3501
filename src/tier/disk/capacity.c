/* SPDX-License-Identifier: Apache-2.0 */
/* How large new stores are, and how many blocks they and those that are there can hold: before any is opened. */
#include "tier/disk/disk.h"

#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/error.h"

#define SMALL_BYTES (UINT64_C(1) << 30) /* a new store with less is more likely a mistake */

/* Slots of new stores: one for each block of the size that was announced, and some for those in between. */
uint64_t tn_disk_new_slots(const struct tn_tier_env *env)
{
	uint64_t each = env->slot_bytes ? env->slot_bytes : tn_shape_least_block(env->o->disk_bytes);

	return env->o->disk_bytes / each + env->o->disk_bytes / each / 8 + 1024;
}

/* Lays new stores out for blocks of the given geometry: the bytes that disk_blocks of them need, and the segments. */
static int plan_layout(struct tn_tier_env *env, uint64_t *bytes)
{
	uint64_t blocks = env->o->disk_blocks, least;
	struct tn_shape s;
	uint32_t *sizes;

	if (tn_shape_init(env->o->geometry, &s))
		return tn_error_last()->code;
	if (blocks == 0) {
		blocks = env->o->disk_bytes / (s.slot_bytes + TN_STORE_HEADER_BYTES);
		blocks = blocks > 64 ? blocks - 64 : 1;
	}
	sizes = tn_get(env->alloc, s.layers * sizeof(*sizes));
	if (!sizes)
		return tn_fail(-ENOMEM, "no memory");
	for (uint32_t i = 0; i < s.layers; i++)
		sizes[i] = s.object_bytes;
	env->slot_bytes = s.slot_bytes;
	least = tn_store_bytes_for(blocks, (uint32_t)env->o->ndirs, s.layers, sizes, &env->segment_bytes);
	tn_put(env->alloc, sizes, s.layers * sizeof(*sizes));
	*bytes = least;
	return 0;
}

/* A tenth of what is free; of a drive all but what the index may need. */
static int spare_bytes(const struct tn_tier_env *env, uint64_t *bytes)
{
	struct statvfs fs;

	*bytes = 0;
	for (size_t i = 0; i < env->o->ndirs; i++) {
		if (tn_drive_is(env->o->dirs[i])) {
			*bytes += tn_drives_bytes(env->drives, env->o->dirs[i]) / 16 * 15;
			continue;
		}
		if (statvfs(env->o->dirs[i], &fs))
			return tn_fail(-errno, "directory %s: %s", env->o->dirs[i], strerror(errno));
		*bytes += (uint64_t)fs.f_bavail * fs.f_frsize / 10;
	}
	return 0;
}

/* Bytes of a directory's file system, or of a drive, all and those that are free; false: it does not say. */
static bool free_disk_of(const struct tn_tier_env *env, const char *dir, uint64_t *all, uint64_t *left)
{
	struct statvfs fs;

	if (tn_drive_is(dir)) {
		*all = *left = tn_drives_bytes(env->drives, dir);
		return *all > 0;
	}

	if (statvfs(dir, &fs))
		return false;
	*all = (uint64_t)fs.f_blocks * fs.f_frsize;
	*left = (uint64_t)fs.f_bavail * fs.f_frsize;
	return true;
}

/*
 * A capacity that no file system could ever hold is refused, before tables are made for it. One that does not fit beside what is there now is said
 * to be so: it may fit later. existing: what the stores have, of which nobody knows how much is written.
 * in_blocks: the caller gave disk_blocks, and disk_bytes follows from them.
 */
static int check_free_disk(const struct tn_tier_env *env, uint64_t existing, bool in_blocks)
{
	uint64_t each = env->o->disk_bytes / env->o->ndirs, all, left;

	for (size_t i = 0; i < env->o->ndirs; i++) {
		const char *dir = env->o->dirs[i];

		if (!free_disk_of(env, dir, &all, &left))
			continue; /* opening the store says why */
		if (each > all)
			return tn_fail(-EINVAL, "%s %llu: a capacity of %llu bytes in %s, which has %llu in all; give less",
				       in_blocks ? "disk_blocks" : "disk_bytes",
				       (unsigned long long)(in_blocks ? env->o->disk_blocks : env->o->disk_bytes),
				       (unsigned long long)each, dir, (unsigned long long)all);
		if (each > left && existing == 0)
			tn_log(env->log, TN_LOG_WARN, "%s: its capacity is %llu MiB, and %llu MiB are free: saves will fail when it is full", dir,
			       (unsigned long long)each >> 20, (unsigned long long)left >> 20);
	}
	return 0;
}

/* Of new stores, if it was not given. existing: bytes of those that are there. */
static int choose_bytes(struct tn_tier_env *env, uint64_t existing)
{
	struct tn_cache_opts *o = env->o;
	bool in_blocks = o->geometry && o->disk_blocks && !o->disk_bytes;
	uint64_t bytes = 0;
	int rc = 0;

	if (o->geometry && (o->disk_bytes || o->disk_blocks)) {
		rc = plan_layout(env, &bytes);
		if (rc == 0 && in_blocks)
			o->disk_bytes = bytes;
	}
	if (rc == 0)
		rc = check_free_disk(env, existing, in_blocks);
	if (rc == 0 && o->disk_bytes == 0 && existing == 0) {
		rc = spare_bytes(env, &o->disk_bytes);
		if (rc == 0 && o->disk_bytes < SMALL_BYTES)
			tn_log(env->log, TN_LOG_WARN, "new stores have %llu MiB, a tenth of what is free, and never more: for larger ones give disk_bytes, with empty directories",
			       (unsigned long long)o->disk_bytes >> 20);
	}
	return rc;
}

int tn_disk_plan(struct tn_tier_env *env, uint64_t *blocks)
{
	const struct tn_store_opts so = {.io = env->io, .alloc = env->alloc, .clock = env->clock, .log = env->log};
	uint64_t existing = 0, stored_slots = 0, size, slots;
	int rc;

	if (env->o->ndirs == 0)
		return 0;
	for (size_t i = 0; i < env->o->ndirs; i++)
		if (tn_store_capacity(&so, env->o->dirs[i], &size, &slots) == 0) {
			existing += size;
			stored_slots += slots;
		}
	rc = choose_bytes(env, existing);
	slots = rc ? 0 : tn_disk_new_slots(env);
	*blocks += slots > stored_slots ? slots : stored_slots;
	return rc;
}
