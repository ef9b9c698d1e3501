/* SPDX-License-Identifier: Apache-2.0 */
/* For tools: look into stores that no cache has open, also broken ones. */
#ifndef TENUTO_ADMIN_H
#define TENUTO_ADMIN_H

#include <stdbool.h>

#include <tenuto/error.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * struct tn_admin_store - which store, and whom to tell; begin with tn_admin_store_init
 * @size:     sizeof(struct tn_admin_store), set by init
 * @dirs:     its directories, one per device, in any order
 * @ndirs:    1 .. TN_DEVICES_MAX
 * @instance: DIR/<instance> is looked into; default "default"
 * @log:      gets a line for each thing found (TN_LOG_WARN: a problem, TN_LOG_INFO: repaired, or just so)
 * @log_arg:  its argument
 * @progress: called now and then with bytes done and in all; false from it ends the work with -ECANCELED; or NULL
 * @progress_arg: its argument
 */
struct tn_admin_store {
	size_t size;
	const char *const *dirs;
	size_t ndirs;
	const char *instance;
	tn_log_fn log;
	void *log_arg;
	bool (*progress)(void *arg, uint64_t done, uint64_t total);
	void *progress_arg;
};

/**
 * struct tn_admin_device - one device of a store, as its file says
 * @path:               of the store's file
 * @store_uuid, @device_uuid: who it is
 * @device_index, @device_count: its place in the store
 * @format_version:     of the file
 * @clean:              it was closed in order
 * @owner_pid:          process that opened it last
 * @in_use:             it is open right now; the counts below are then of its last checkpoint and log
 * @missing:            it cannot be opened, is empty, or missed a session: the store goes on without it, or makes it anew when
 *                      it is opened to be written; what follows is then as of the other devices, the counts are 0
 * @superblock_damaged: one of the two copies needs repair, or both
 * @created_wall_ns, @opened_wall_ns: ns since 1970
 * @file_bytes:         length of the file
 * @index_bytes:        superblocks, log, checkpoints
 * @segment_bytes:      of each segment; times @segments: the device's capacity, which is that of each device of its store
 * @segments, @segments_allocated, @segments_assigned: in all, with bytes reserved in the file, in use by a slot size
 * @slots, @blocks, @quarantined: in the assigned segments
 * @log_bytes, @log_used_bytes: size of the log, and what a recovery would read of it
 * @checkpoints:        written so far
 * @spaces:             known fingerprints
 */
struct tn_admin_device {
	char path[512];
	uint64_t store_uuid[2], device_uuid[2];
	uint32_t device_index, device_count;
	uint32_t format_version;
	bool clean, in_use, missing, superblock_damaged;
	uint32_t owner_pid;
	uint64_t created_wall_ns, opened_wall_ns;
	uint64_t file_bytes, index_bytes, segment_bytes;
	uint32_t segments, segments_allocated, segments_assigned;
	uint64_t slots, blocks, quarantined;
	uint64_t log_bytes, log_used_bytes;
	uint64_t checkpoints;
	uint32_t spaces;
};

/** struct tn_admin_verify - what tn_admin_store_verify read
 * @blocks:          looked at
 * @objects, @bytes: read and checked; those of blocks without a good header are not
 * @corrupt_blocks:  whose header does not fit the index or does not decode
 * @corrupt_objects: whose checksum is wrong
 * @io_errors:       blocks of which a transfer failed
 * @lost_segments:   damaged or cut off: the index is not believed about their blocks, which are not read
 */
struct tn_admin_verify {
	uint64_t blocks, objects, bytes;
	uint64_t corrupt_blocks, corrupt_objects, io_errors;
	uint64_t lost_segments;
};

#define TN_ADMIN_REBUILD 1u /**< make the index anew from block headers, restore superblocks */

/** struct tn_admin_check - what tn_admin_store_check found
 * @problems: structures that are damaged (each is a line of the log)
 * @repaired: of them made good
 * @blocks:   in the index, after the repair if there was one
 * @stale:    index entries whose header says something else (misses when read)
 * The rest is of a rebuild:
 * @segments_restored: whose own header was damaged, and was made again from their block headers
 * @segments_lost:     whose header is damaged, and in which no block header is good
 * @headers_damaged, @headers_unreadable: block headers that are not valid, or cannot be read: their blocks are lost
 * @blocks_superseded: found, but there is a newer one of the same key
 * @blocks_dropped:    found, but their space was dropped, or is not known
 */
struct tn_admin_check {
	uint64_t problems, repaired, blocks, stale;
	uint64_t segments_restored, segments_lost, headers_damaged, headers_unreadable, blocks_superseded, blocks_dropped;
};

/** tn_admin_store_init_sized - tn_admin_store_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_admin_store_init_sized(struct tn_admin_store *store, size_t size);

/** tn_admin_store_init - defaults: no directories, instance "default", silent. Any thread. */
static inline void tn_admin_store_init(struct tn_admin_store *store)
{
	tn_admin_store_init_sized(store, sizeof(*store));
}

/**
 * tn_admin_store_info - what the devices of a store are and hold
 * @device: store->ndirs entries, in the order of the directories
 *
 * Any thread. Changes nothing and takes no ownership: works beside the process that has the store open. Waits up to a
 * second for its locks before it says in_use: those of a process that was just killed go with its last transfers.
 *
 * Return: 0, or of the first directory that cannot be told: -ENOENT, -EACCES, -EUCLEAN, -EPROTONOSUPPORT, -EIO,
 * -EINVAL, -ENOMEM.
 */
TN_API int tn_admin_store_info(const struct tn_admin_store *store, struct tn_admin_device *device);

/**
 * tn_admin_store_verify - read every block and check every object's checksum
 *
 * Each bad block is a line of the log: its file, slot, place in the file and key.
 *
 * Any thread; blocks. Takes the store's locks, for which it waits up to a second, and changes nothing.
 *
 * Return: 0 and *result (also when corruption was found), -EBUSY (in use), -ECANCELED, or as tn_cache_open.
 */
TN_API int tn_admin_store_verify(const struct tn_admin_store *store, struct tn_admin_verify *result);

/**
 * tn_admin_store_check - is the index sound and does it agree with the block headers
 * @flags: 0: change nothing; TN_ADMIN_REBUILD: also restore superblocks and make the index anew from headers
 *
 * Any thread; blocks. Takes the store's locks, for which it waits up to a second.
 *
 * Return: 0 and *result (also when problems were found), -EBUSY (in use), -ECANCELED, -EUCLEAN (no copy of the superblock
 * is left anywhere), -ENODEV (TN_ADMIN_REBUILD, and a device is not there: it would lose its blocks; an empty directory in its
 * place gets a new one), or as tn_cache_open.
 */
TN_API int tn_admin_store_check(const struct tn_admin_store *store, unsigned flags, struct tn_admin_check *result);

/**
 * tn_admin_format - make the namespace of an NVMe controller ready for a store, which the next cache on "nvme:ADDRESS" makes there
 * @drive:  "nvme:0000:03:00.0", the address alone, or a block device of it ("/dev/nvme0n1")
 * @serial: the drive of this serial number is taken whatever it holds; NULL: only one that is empty, or Tenuto's
 * @log, @log_arg: as in struct tn_admin_store
 *
 * What the drive held is gone. Never takes a drive from its driver: it says what to do, unless something on the drive is in use.
 *
 * Any thread; blocks.
 *
 * Return: 0, or -EINVAL (no such drive), -EBUSY (the kernel's driver, or another process, has it, or it is in use: the detail says by what),
 * -EUCLEAN (it holds something else), -ENOTSUP (no IOMMU, or a drive that Tenuto does not drive), -EACCES, -EIO, -ENOMEM.
 */
TN_API int tn_admin_format(const char *drive, const char *serial, tn_log_fn log, void *log_arg);

#define TN_ADMIN_DRIVES_MAX 32

/**
 * struct tn_admin_drive - an NVMe controller of this machine
 * @address: on the PCI bus
 * @driver:  that has it, or ""
 * @lacks:   why Tenuto cannot use it now, and what to do; "" if it can
 * @iommu_group: or -1: no IOMMU translates its addresses
 * @usable:  it could be opened now
 */
struct tn_admin_drive {
	char address[16];
	char driver[32];
	char lacks[464];
	int iommu_group;
	bool usable;
};

/** tn_admin_drives - which there are: how many, of which up to @max are written, or -errno. Any thread; opens none of them. */
TN_API int tn_admin_drives(struct tn_admin_drive *out, size_t max);

/**
 * tn_admin_memory_limit - most bytes of memory that this process may have, as tn_cache_open compares host_bytes with it
 * @what:       out: text of what sets it: the machine's memory, or the cgroup whose limit is the lowest
 * @what_bytes: of @what, its end included
 *
 * Any thread; reads files of /proc and of the cgroups, as far as they are visible from here. Return: bytes; UINT64_MAX: it is not known.
 */
TN_API uint64_t tn_admin_memory_limit(char *what, size_t what_bytes);

/**
 * tn_admin_secret_check - whether tn_cache_open would take a file as cluster_secret_file
 * @path: of the file
 *
 * Any thread; reads the file. Return: 0; -EPERM: it is no file of this user's or root's, or others may use it; -EINVAL: it has fewer than 16 bytes, or more than
 * 4096; -ENOENT, -EACCES, -EIO. The text of the error names the file and what to do.
 */
TN_API int tn_admin_secret_check(const char *path);

#ifdef __cplusplus
}
#endif
#endif
