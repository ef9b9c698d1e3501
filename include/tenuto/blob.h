/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes, and blobs in them by key: bytes of any kind in the tiers of a cache.
 *
 * A volume has a name and a size up to which its blobs go. A catalogue, the file "volumes" of a directory, keeps what was registered. A blob is a block of a space of its
 * own: it lies in host memory, on disk and in remote stores as other blocks do, is checked when it is read, and may be evicted. Then it is not there: -ENOENT, and never
 * other bytes. A volume that was removed and registered anew finds nothing of what it had before.
 *
 * The catalogue's functions: any thread, any process. One thread at a time per open volume.
 */
#ifndef TENUTO_BLOB_H
#define TENUTO_BLOB_H

#include <stddef.h>
#include <stdint.h>
#include <tenuto/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most bytes of a volume's name: letters, digits, '.', '_' and '-'. */
#define TN_VOLUME_NAME_MAX 63u
/** Most volumes of a catalogue. */
#define TN_VOLUMES_MAX 1024u
/** Most bytes of a blob. */
#define TN_BLOB_BYTES_MAX (UINT64_C(64) << 20)
/** Most bytes of a blob's key. */
#define TN_BLOB_KEY_MAX 1024u

struct tn_cache;
struct tn_volume;

/**
 * struct tn_volume_info - a volume of a catalogue
 * @name:       ends with zero
 * @blob_bytes: most bytes of a blob
 * @id:         drawn when it was registered
 */
struct tn_volume_info {
	char name[TN_VOLUME_NAME_MAX + 1];
	uint64_t blob_bytes;
	unsigned char id[16];
};

/** tn_volume_register - Return: 0; -EEXIST: there is one of the name; -EINVAL: name, blob_bytes (1 to TN_BLOB_BYTES_MAX); -ENOSPC: TN_VOLUMES_MAX; what the directory says. */
TN_API int tn_volume_register(const char *dir, const char *name, uint64_t blob_bytes);

/** tn_volume_remove - Return: 0; -ENOENT. Its blobs are not found any more, and go as others come. */
TN_API int tn_volume_remove(const char *dir, const char *name);

/** tn_volume_list - by name. Return: how many there are (more than @max: @max were written); -EBADMSG: a line of the catalogue is none; what the directory says. */
TN_API long tn_volume_list(const char *dir, struct tn_volume_info *out, size_t max);

/** tn_volume_open - a volume of a catalogue, in a cache, which may be attached. Return: 0 and *out; -ENOENT: not registered; what tn_space_open and tn_memory_register say. */
TN_API int tn_volume_open(struct tn_cache *cache, const char *dir, const char *name, struct tn_volume **out);

/** tn_volume_close - before its cache; waits for what a device still has of a blob. NULL is fine. */
TN_API void tn_volume_close(struct tn_volume *volume);

/**
 * tn_blob_put - bytes by key
 * @key: 1 to TN_BLOB_KEY_MAX bytes
 *
 * A key names its bytes: one that is there is not replaced.
 *
 * It returns by the deadline. A device that has the bytes then still has the volume's page, too: later puts and gets wait for it, until their own deadlines.
 *
 * Return: 0: it is there; 1: it was there before; -EINVAL; -E2BIG: more than the volume's blob_bytes; -ENOSPC: the cache keeps it nowhere; -ETIMEDOUT; what
 * tn_save_begin says.
 */
TN_API int tn_blob_put(struct tn_volume *volume, const void *key, size_t key_bytes, const void *data, size_t bytes, uint64_t deadline_ns);

/**
 * tn_blob_get - the bytes of a key, also from a tier that does not answer at once; by the deadline, as tn_blob_put
 * @out: at most @max bytes are written
 *
 * Return: how many bytes the blob has; -ENOENT: it is not there; -EINVAL; -ETIMEDOUT; what tn_load_begin says.
 */
TN_API int64_t tn_blob_get(struct tn_volume *volume, const void *key, size_t key_bytes, void *out, size_t max, uint64_t deadline_ns);

#ifdef __cplusplus
}
#endif
#endif
