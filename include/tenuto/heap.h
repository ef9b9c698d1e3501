/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The symmetric heap: objects of KV that one process writes straight into the memory of another.
 *
 * Each rank owns a heap of the same size, and maps those of all ranks. An object lies in one heap; a producer of any rank
 * writes it there in place, then makes it READY by one compare-and-swap, and a reader of any rank reads it where it lies. One rank is the master: it allocates,
 * finds keys, evicts. Opening and removing an object is a request to the master; committing one, finding one and reading one is not a system call.
 * Objects are immutable until they are removed. The heap is memory: it ends with the last process that maps it.
 *
 * All processes run on one machine, as one user, in one PID namespace, with one $XDG_RUNTIME_DIR (else /tmp), and trust each other with the objects' bytes. A heap
 * is not inherited by forked children. Layout and memory order: heap_layout.h. docs/heap.md: failures, sizes.
 */
#ifndef TENUTO_HEAP_H
#define TENUTO_HEAP_H

#include <tenuto/error.h>
#include <tenuto/heap_layout.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_heap;
struct tn_device_driver;

/** Most characters of a heap's name. */
#define TN_HEAP_NAME_MAX 64
/** In place of an owner's rank: hash of the key modulo the ranks. */
#define TN_HEAP_ANY UINT32_MAX

/** In which order READY objects are evicted. */
enum tn_heap_order {
	TN_HEAP_LAST_ACCESS, /**< those that were not read for longest first */
	TN_HEAP_FIFO,	     /**< the oldest first */
};

/** struct tn_heap_token - a number that nobody guesses; who joins with it has the rights that the master gave it (tn_heap_token_make). Zeros: none */
struct tn_heap_token {
	uint64_t word[2];
};

/**
 * struct tn_heap_opts - how the master makes the heap; other ranks only use master_rank, timeout_ns and token
 * @size:        of this struct (tn_heap_opts_init)
 * @heap_bytes:  payload of each rank; rounded down to pages; at least one page
 * @page_bytes:  a power of two, 4 KiB to 1 GiB. Extents are 1, 2, 4 ... 128 pages; default 256 KiB
 * @master_rank: rank that allocates; default 0
 * @slots:       most objects of a rank; 0: one per page
 * @order:       enum tn_heap_order
 * @water_hi:    percent of a heap's payload in use: eviction begins above; default 95
 * @water_lo:    percent: and ends here; default 85
 * @reclaim_ns:  an object that is not READY for so long goes DEAD; default 10 s
 * @timeout_ns:  how long to wait for the master when joining, and for each answer; default 30 s
 * @need_tokens: 1: a rank that joins needs a token, and has its rights. 0: it has all rights; default
 * @token:       of a rank that joins
 * @driver:      not NULL: the payload lies in the memory of a device, and this driver (tenuto/device_memory.h) outlives the heap. All ranks name one, or none. The
 *               memory is the master's: the heap ends with the master's process
 * @device:      number of the device, in this process
 */
struct tn_heap_opts {
	size_t size;
	uint64_t heap_bytes;
	uint32_t page_bytes;
	uint32_t master_rank;
	uint32_t slots;
	uint32_t order;
	uint32_t water_hi;
	uint32_t water_lo;
	uint64_t reclaim_ns;
	uint64_t timeout_ns;
	uint32_t need_tokens;
	struct tn_heap_token token;
	const struct tn_device_driver *driver;
	uint32_t device;
};

/** tn_heap_opts_init_sized - tn_heap_opts_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_heap_opts_init_sized(struct tn_heap_opts *opts, size_t size);

/** tn_heap_opts_init - defaults; heap_bytes is 0 and must be set by the master. Any thread. */
static inline void tn_heap_opts_init(struct tn_heap_opts *opts)
{
	tn_heap_opts_init_sized(opts, sizeof(*opts));
}

/** struct tn_heap_name - what a header says of a key: xxhash64, and the digest that readers compare. For kernels that write headers by themselves */
struct tn_heap_name {
	uint64_t hash;
	uint64_t digest[2];
};

/** struct tn_heap_meta - where a READY object lies; the epoch names it among all that the slot ever holds */
struct tn_heap_meta {
	uint64_t key_hash;
	uint32_t owner_rank;
	uint32_t epoch;
	uint64_t header_off;
	uint64_t payload_off;
	uint64_t bytes_total;
	uint32_t page_bytes;
	uint32_t n_pages;
};

/** struct tn_heap_copy - where another replica of a planned object goes */
struct tn_heap_copy {
	uint64_t header_off;
	uint64_t payload_base;
	uint32_t rank;
	uint32_t epoch;
};

/**
 * struct tn_heap_plan - where a producer is to write an object
 *
 * Of an object with replicas it names the first one; the others are in @copy, @copies of them. tn_heap_commit copies the first one there. A kernel that commits by
 * itself writes and finishes each.
 */
struct tn_heap_plan {
	uint64_t key_hash;
	uint32_t dst_rank;
	uint32_t epoch;
	uint64_t header_off;
	uint64_t payload_base;
	uint64_t bytes_total;
	uint32_t page_bytes;
	uint32_t n_pages;
	uint32_t announces; /**< of tn_heap_reserve: tn_heap_commit tells the master */
	uint32_t copies;
	struct tn_heap_copy copy[TN_HEAP_REPLICAS_MAX - 1];
};

/**
 * struct tn_heap_stats - counters of one rank; each only rises, but for heap_used, ready_count and leases
 * @heap_used:        bytes of extents that are not free, of the rank's own heap
 * @heap_total:       bytes of payload of the rank's own heap
 * @ready_count:      READY objects of it
 * @leases:           held on objects of it
 * @evictions:        of it
 * @reclaims:         objects of it that were not made READY in time
 * @oom:              objects that did not fit into it
 * @ann_ring_depth:   announces that the master has not taken yet
 * @bytes_tx:         written by this rank with tn_heap_put
 * @bytes_rx:         read by this rank with tn_heap_get
 * @failures:         calls of this rank that failed by damage or a lost master
 * @timeouts:         calls of this rank that the master did not answer in time
 * @cas_failures:     commits of this rank that were refused, because the plan had ended
 * @unverified_reads: gets of this rank of objects that have no checksum
 * @pages:            that this rank has copied with tn_heap_put and tn_heap_get
 * @page_time_ns:     that it took for these; with the checksum
 */
struct tn_heap_stats {
	size_t size;
	uint64_t heap_used, heap_total, ready_count, leases;
	uint64_t evictions, reclaims, oom, ann_ring_depth;
	uint64_t bytes_tx, bytes_rx;
	uint64_t failures, timeouts, cas_failures, unverified_reads;
	uint64_t pages, page_time_ns;
};

/**
 * tn_heap_create - make a heap as its master, or join it as another rank
 * @name:  the same for all ranks; at most TN_HEAP_NAME_MAX characters without '/'
 * @ranks: of the heap, 1 to TN_HEAP_RANKS_MAX
 * @rank:  of this process. One process at a time has it; after its death another one may join as it
 *
 * Any thread. A rank other than the master waits up to timeout_ns for the master. The master starts a thread. A master that died comes back by the same call: it
 * joins, if another rank has taken over; else it makes another heap of the name, and the ranks of the first one get -ESTALE from it.
 *
 * Return: 0 and *out; -EINVAL (with the value), -EEXIST (another process has the rank), -EACCES (another user may write into the directory of the heap's
 * socket, or the heap needs a token that this rank does not have), -ESRCH (the process is not seen by the master), -ETIMEDOUT (no master), -ENOTSUP (the driver passes no memory to other processes) and the driver's errors,
 * -ETOOMANYREFS (the master's RLIMIT_NOFILE is too low for the descriptors that are on their way to its ranks), -ENOMEM, and the errors of mkdir, open, socket and /proc.
 */
TN_API int tn_heap_create(const char *name, uint32_t ranks, uint32_t rank, const struct tn_heap_opts *opts, struct tn_heap **out);

/**
 * tn_heap_destroy - leave the heap. NULL-safe. No other call may be under way, and no lease be held
 *
 * Plans of this rank end. A master that leaves is as one that died: another rank may take over.
 */
TN_API void tn_heap_destroy(struct tn_heap *heap);

/**
 * tn_heap_take_over - become the master in place of one that is dead
 *
 * Any thread. Scans all headers, and builds the index from them. Objects and open plans stay as they are.
 *
 * Return: 0 (also if this rank is the master); -EBUSY (there is a master), -ETIMEDOUT (a process that is no master had its lock all the time), -EACCES (this rank's token does not give it all rights), -ENOTSUP (the payload lay on a device), -ENOMEM, or another errno if it is not known whether a rank's process lives,
 * such as -EMFILE. After an error nothing has changed: it may be tried again.
 */
TN_API int tn_heap_take_over(struct tn_heap *heap);

/**
 * tn_heap_token_make - let a process join as @rank, with rights of its own
 * @read:  bits of the ranks whose objects it may read; their payload is mapped so that a write ends the process
 * @write: bits of the ranks whose heaps it may write into, and whose objects it may remove and evict. All other payload is not mapped
 * @out:   for the opts of that process. It is valid until the next one is made for @rank, and as long as this master lives
 *
 * The master alone; any thread. The rights keep mistakes from other ranks' objects: headers and leases are mapped writable by all.
 *
 * Return: 0; -EPERM (this rank is not the master), -EINVAL (no such rank, or bits of none).
 */
TN_API int tn_heap_token_make(struct tn_heap *heap, uint32_t rank, uint64_t read, uint64_t write, struct tn_heap_token *out);

/**
 * tn_heap_open_for_write - reserve memory for an object
 * @key:   @key_bytes bytes, at least 1
 * @bytes: of the object; at least 1, at most 128 pages
 * @owner: rank that it is to lie at, or TN_HEAP_ANY
 * @flags: of TN_HEAP_PIN, TN_HEAP_PRIORITY and TN_HEAP_REPLICAS(n); 0: none. Replicas lie at the owner and the ranks that follow it
 *
 * Any thread; asks the master. The plan ends by tn_heap_commit or tn_heap_abandon, or after reclaim_ns by itself. Write payload only between.
 *
 * Return: 0 and *plan; -EEXIST (there is an object of that key, perhaps not READY yet), -EINVAL, -EACCES (this rank may not write there), -EFBIG (more than 128 pages, or than a heap has), -ENOSPC (all
 * is pinned, leased or being written), -ESHUTDOWN (no master: tn_heap_take_over), -ESTALE (the master has another heap of the name, or this process
 * was stopped until the plan had ended), -ETIMEDOUT.
 */
TN_API int tn_heap_open_for_write(struct tn_heap *heap, const void *key, size_t key_bytes, uint64_t bytes, uint32_t owner, uint32_t flags,
				  struct tn_heap_plan *plan);

/**
 * tn_heap_reserve - tn_heap_open_for_write without the master, if a free extent of the right size is at hand
 *
 * Any thread; no system call, unless it has to ask the master after all. Others find the object once the master has seen that it was committed, some microseconds
 * later. A key of which there is an object already is refused only then: the later object goes DEAD, and nobody finds it.
 *
 * Return: as tn_heap_open_for_write.
 */
TN_API int tn_heap_reserve(struct tn_heap *heap, const void *key, size_t key_bytes, uint64_t bytes, uint32_t owner, uint32_t flags,
			   struct tn_heap_plan *plan);

/**
 * tn_heap_commit - make an object READY whose bytes are all written, with their checksum
 *
 * Any thread; no system call. A kernel that used tn_heap_finish has done it already, without a checksum. Of an object with replicas the other ones are written
 * here, as copies of the first one. On a device what wrote the bytes has ended; the device sums them, if its driver can.
 *
 * Return: 0 (at least one replica is READY); -ESTALE (the plan has ended, or what a kernel committed is gone: the object is lost, write it again), -EINVAL (a plan
 * that is none); what the device failed with when it was to sum (the object is lost, too).
 */
TN_API int tn_heap_commit(struct tn_heap *heap, const struct tn_heap_plan *plan);

/** tn_heap_abandon - give a plan up; its memory comes back soon. Any thread. Return: 0, -ESTALE, -EINVAL, as above. */
TN_API int tn_heap_abandon(struct tn_heap *heap, const struct tn_heap_plan *plan);

/**
 * tn_heap_put - open, copy @bytes from @src, to each replica, and commit
 *
 * Any thread. If a free extent of the right size is at hand, the master admits the object while its bytes are copied. Else it is asked for a plan.
 *
 * Return: as these do.
 */
TN_API int tn_heap_put(struct tn_heap *heap, const void *key, size_t key_bytes, const void *src, uint64_t bytes, uint32_t owner, uint32_t flags);

/**
 * tn_heap_get_location - where the object of a key lies
 *
 * Any thread; no system call. The object may be gone when the caller looks: read it under a lease. Of replicas it is the one at this rank, else one whose owner's
 * process lives, else any.
 *
 * Return: 0 and *meta; -ENOENT; -EAGAIN (it is not READY yet); -EACCES (this rank may not read where it lies).
 */
TN_API int tn_heap_get_location(struct tn_heap *heap, const void *key, size_t key_bytes, struct tn_heap_meta *meta);

/**
 * tn_heap_hold - tn_heap_get_location with a lease: until tn_heap_release the object's bytes stay where they are
 *
 * Any thread; no system call. A removed or evicted object stays readable for who holds it. Leases of a process end with it.
 */
TN_API int tn_heap_hold(struct tn_heap *heap, const void *key, size_t key_bytes, struct tn_heap_meta *meta);

/** tn_heap_release - give a lease back, once per tn_heap_hold. Any thread. Return: 0, -EINVAL. */
TN_API int tn_heap_release(struct tn_heap *heap, const struct tn_heap_meta *meta);

/**
 * tn_heap_get - copy an object
 * @dst:       @dst_bytes bytes
 *
 * Any thread; no system call. Compares the checksum if the object has one. Of replicas the nearest one is copied, and another one if that is damaged.
 *
 * Return: 0 and *bytes, the object's; -ENOENT, -EAGAIN, -EACCES, as above; -ENOBUFS (dst is too small; *bytes is set); -EBADMSG (the bytes are damaged).
 */
TN_API int tn_heap_get(struct tn_heap *heap, const void *key, size_t key_bytes, void *dst, uint64_t dst_bytes, uint64_t *bytes);

/** tn_heap_remove - remove a READY object, with its replicas. Any thread; asks the master. Return: 0, -ENOENT, -EAGAIN (not READY), -EACCES (this rank may
 * not write where it lies), -ESHUTDOWN, -ESTALE, -ETIMEDOUT. */
TN_API int tn_heap_remove(struct tn_heap *heap, const void *key, size_t key_bytes);

/**
 * tn_heap_evict_until_below - evict objects of every rank that this one may write into until at most @percent (0..100) of its payload is in use
 *
 * Any thread; asks the master. Return: number of objects evicted, -EINVAL, -ESHUTDOWN, -ESTALE, -ETIMEDOUT.
 */
TN_API int tn_heap_evict_until_below(struct tn_heap *heap, uint32_t percent);

/** tn_heap_stats_get - counters of a rank; @out->size is set by the caller. Any thread. Return: 0, -EINVAL. */
TN_API int tn_heap_stats_get(struct tn_heap *heap, uint32_t rank, struct tn_heap_stats *out);

/** tn_heap_name_of - what a header says of a key of @key_bytes bytes. Any thread. Return: 0 and *out; -EINVAL (a key of 0 bytes). */
TN_API int tn_heap_name_of(const void *key, size_t key_bytes, struct tn_heap_name *out);

/** tn_heap_ptr - this process's address of an offset in a rank's heap; of payload on a device it is the device's. Any thread. NULL: there is no such rank or offset, or it is payload that this rank has no right to. */
TN_API void *tn_heap_ptr(struct tn_heap *heap, uint32_t rank, uint64_t offset);

/** tn_heap_rank - of this process. Any thread. */
TN_API uint32_t tn_heap_rank(const struct tn_heap *heap);

/** tn_heap_ranks - number of ranks. Any thread. */
TN_API uint32_t tn_heap_ranks(const struct tn_heap *heap);

/** tn_heap_write_rights - bit r: this process may write into the heap of rank r; all of them without need_tokens. Any thread. */
TN_API uint64_t tn_heap_write_rights(const struct tn_heap *heap);

#ifdef __cplusplus
}
#endif
#endif
