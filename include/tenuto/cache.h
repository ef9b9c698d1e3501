/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache: KV blocks kept in host memory and on disk, found by key, given back verified.
 *
 * An engine registers its paged KV memory once (tenuto/memory.h) and from then on speaks of keys
 * and page indices. All operations that move bytes are asynchronous: begin, wait or poll, end.
 *
 * Threads: every function may be called from any thread. One load or save handle is for one thread at a
 * time. Nothing here blocks but open and close (also of spaces), tn_space_drop, wait, tn_load_end, tn_save_end and flush. Deadlines
 * are absolute CLOCK_MONOTONIC ns.
 *
 * Handles: a load or save that was ended, or never begun, and one of the other kind are answered with -EINVAL by every
 * call. So is all but one of the threads that end one handle at once, and whoever comes after it.
 *
 * Forks: in a process that was forked from the opener every call on its cache says -ECHILD at once, and tn_space_close does
 * nothing. Such a process keeps none of the opener's locks (its copies of the descriptors are closed before fork returns; a
 * child made by the clone system call itself keeps them until it ends or calls exec), and may open a cache of its own.
 */
#ifndef TENUTO_CACHE_H
#define TENUTO_CACHE_H

#include <stdbool.h>

#include <tenuto/decision.h>
#include <tenuto/device.h>
#include <tenuto/error.h>
#include <tenuto/latency.h>
#include <tenuto/layout.h>
#include <tenuto/match.h>
#include <tenuto/memory.h>
#include <tenuto/slack.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_cache;
struct tn_space;
struct tn_event;
/**
 * A save whose next layer, or commit, does not come for so long is given up: its slots are for others, whatever its caller does with the pages later
 * goes nowhere, and tn_save_end says so (struct tn_save_result: error -ECANCELED). A layer that waits for its event counts as missing.
 */
#define TN_SAVE_IDLE_NS 30000000000ull

/* Handles of loads and saves are numbers, not addresses: checked in every call, and of no other load or save ever again. */
struct tn_load;
struct tn_save;

/**
 * struct tn_cache_opts - begin with tn_cache_opts_init, then set what differs
 * @size:            sizeof(struct tn_cache_opts), set by init
 * @dirs:            directories, one per device; none: host memory only. "nvme:0000:03:00.0" in the place of one is the namespace of that NVMe controller,
 *                   bound to vfio-pci and reached without the kernel; it holds one store, of whatever @instance. The host tier and memories of this process are
 *                   pinned, whole, so that it reaches them. Each directory has to be there. On a disk that is mounted give one inside the mount, never the
 *                   mount point: what becomes of a disk that is late is told at tn_cache_open. What `tenuto bench mix DIR` measured of one (DIR/tenuto.mix) is
 *                   taken as known
 * @instance:        name of this process's part of them (DIR/<instance>/), default "default"
 * @disk_bytes:      capacity on disk over all directories; 0 with dirs: what the stores already have, or for new ones a tenth of the free space, on a namespace
 *                   15 sixteenths. Each directory gets an equal part, rounded up to whole segments (about 1/64 of the capacity, 4 MiB to 1 GiB, more for very
 *                   large blocks of @geometry). The index comes on top. A store never grows beyond what it was made with: asked for more, it warns and goes on
 *                   with what it has (a larger one begins in an empty directory); asked for less, it uses less, and the blocks beyond that are dropped
 * @disk_blocks:     likewise, counted in blocks of the first space opened: the store never holds more (0: as many as @disk_bytes holds). With @geometry
 *                   and without @disk_bytes, new stores get the bytes that so many blocks need
 * @geometry:        of the largest blocks that will be stored, so that new stores can be laid out for them; NULL: unknown (then blocks of 1/64 of the
 *                   capacity do not fit a segment, and those of half that size leave much of it unused: a warning; beyond 262,144 blocks in all there
 *                   can be no more than the capacity holds of 64 KiB each)
 * @host_bytes:      host tier, 0: none
 * @max_blocks:      most blocks known at once, all tiers; 0: derived from the capacities. Fewer than the stores hold: -ENOSPC, and none is lost
 * @max_ops:         most loads, saves and prefetches at once; 0: 64
 * @max_op_blocks:   most blocks of one load or save; 0: 8192
 * @io_depth:        most I/O requests in flight, 0: 128
 * @io_engine:       "auto" (io_uring, or threads where the kernel forbids it), "io_uring" or "posix" (threads). Where the
 *                   kernel forbids it later, from a sandbox that began after open, threads take over from both
 * @executors:       threads that read, write, verify and copy, each with an I/O engine of its own, at most 16; 0: the owner thread's engine reads and writes,
 *                   and the workers verify and copy (one device and few CPUs are served best so). On namespaces each thread has a pair of queues of each
 *                   controller, and the store another: a controller that has fewer pairs is refused, and so are directories beside namespaces
 * @workers:         checksum and copy threads, without @executors; 0: one for each second CPU, at most 4
 * @policy:          "default", "lru", "fifo", "s3fifo"
 * @verify:          check every object read (default true; false is for benchmarks)
 * @read_only:       never write to the directories
 * @write_bytes_per_day: SSD write budget, 0: none
 * @header_cache_bytes: memory for block headers (checksums), 0: 32 MiB
 * @lock_timeout_ns: how long open waits for another owner to go away, default 5 s
 * @seed:            of eviction sampling; 0: from the kernel
 * @log, @log_arg, @log_level: log lines, default none. They come in their order from a thread of the cache, so that a callback that blocks holds up
 *                   nothing else; 256 wait, more are lost and counted, and all have come when tn_cache_close, or tn_cache_open with an error, returns
 * @scheduler:       "slack": reads strictly first and by need, writes into slack (default); "none": reads and writes mixed as they come, for benchmarks
 * @explain, @explain_arg: told every decision of the scheduler, default none
 * @write_backlog_bytes: most bytes of saves that wait for the disk; tn_save_begin says -EAGAIN rather than exceed it, and loads never wait for it. A save
 *                   counts whole from tn_save_begin on, less, as soon as that is known, its blocks that are there already, are rejected, found a place
 *                   in host memory or were written; one is always let in when nothing waits. With a host tier, so much more may be begun as it has
 *                   free places for, within the space's quota. 0: what the devices write in about two seconds, at least 256 MiB, 1 GiB if not measured
 * @offload_lag_ms:  how long a block that was admitted to disk may lie in host memory before its write begins, also while loads never pause: from a quarter of
 *                   it on its write goes into the loads' slack, from half of it on before reads, for at most half of the devices' time. Longer only while the
 *                   devices cannot write as fast as saves bring blocks; the bound then is host memory's size, and the statistics offload_oldest_ns and
 *                   offload_waiting_bytes say how far behind they are. 1,000 by default, which a kill can cost beside what is in flight; UINT32_MAX: no bound
 *                   in time
 * @durability_ms:   what was written to disk is made durable about so long after: a power cut loses at most that and the two syncs; default 1,000. 0:
 *                   tn_save_end waits until what it says is stored is durable, and returns the error of a flush that failed. UINT32_MAX: only what tn_flush
 *                   covered is durable. The death of the process alone, whatever this says, loses what was in flight or was written in the last 100 ms
 * @device_tier:     memory of a device for blocks, above the host tier (tenuto/memory.h); default none
 * @transfer:        between files and memory of devices of this process: "auto" (default): straight, by the plugin gds, where it needs no host memory; else
 *                   by way of pinned host memory. "direct": by the plugin in any case; tn_memory_register fails where it does not serve. "bounce": never by it
 * @transfer_streams: threads, for each device, that ask the plugin for a transfer each, 1 to 64; 0: 8
 * @cluster_secret_file: file of mode 0600 with 16 to 4,096 secret bytes, the same on all nodes that are to know blocks by the same keys; NULL: the store's own
 *                   secret, which no other store has. With another secret than before, what a store holds is not found any more
 * @remote:          object stores behind all tiers: "s3,bucket=kv-cache,prefix=NAME", or up to 8 with ";" between them, asked in their order (docs/remote.md); NULL: none
 * @offload:         when a block in host memory is written to @remote: "after_reuse" (default): once a load took it; "on_evict": before it leaves; "always"
 */
struct tn_cache_opts {
	size_t size;
	const char *const *dirs;
	size_t ndirs;
	const char *instance;
	uint64_t disk_bytes;
	uint64_t disk_blocks;
	const struct tn_geometry *geometry;
	uint64_t host_bytes;
	uint64_t max_blocks;
	uint32_t max_ops;
	uint32_t max_op_blocks;
	uint32_t io_depth;
	const char *io_engine;
	uint32_t executors;
	uint32_t workers;
	const char *policy;
	bool verify;
	bool read_only;
	uint64_t write_bytes_per_day;
	uint64_t header_cache_bytes;
	uint64_t lock_timeout_ns;
	uint64_t seed;
	tn_log_fn log;
	void *log_arg;
	enum tn_log_level log_level;
	const char *scheduler;
	tn_explain_fn explain;
	void *explain_arg;
	uint64_t write_backlog_bytes;
	uint32_t offload_lag_ms;
	uint32_t durability_ms;
	struct tn_device_tier device_tier;
	const char *transfer;
	uint32_t transfer_streams;
	const char *cluster_secret_file;
	const char *remote;
	const char *offload;
};

/** tn_cache_opts_init_sized - tn_cache_opts_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_cache_opts_init_sized(struct tn_cache_opts *opts, size_t size);

/** tn_cache_opts_init - defaults. Any thread. */
static inline void tn_cache_opts_init(struct tn_cache_opts *opts)
{
	tn_cache_opts_init_sized(opts, sizeof(*opts));
}

/**
 * tn_cache_open - open or create the stores, recover what they hold, start the threads
 *
 * Any thread; blocks for the recovery (about 1 s a million blocks).
 *
 * Of a store on several directories a lost device costs its own blocks. One whose directory is empty is made anew. One that cannot be opened (its directory is
 * not there or lets nobody in, its disk fails), and one whose directory is not given, is offline for this session (a warning, struct tn_device_stats: health),
 * and is made anew when it comes back: it missed a session, and what it holds may have been dropped meanwhile. A file that is not a store's, or a store's that
 * is damaged beyond use, is never written: the open fails and says what is in it. An open that fails leaves no new file behind.
 *
 * So a disk that is mounted only after the open costs its blocks for good, even if the session saved nothing: see to it before the open that all directories
 * are there; nothing waits for them. If the directory is one inside the mount, nothing is written in its place; and if no directory is there, also of a cache
 * that has only one, the open fails (-ENOENT) and nothing is lost. If it is the mount point itself, which is an empty directory without its disk, a device is
 * made there at once, on the file system below, and grows to its part of the capacity.
 *
 * Return: 0 and *out, or -EINVAL (option), -EBUSY (another process owns an instance; the detail has its pid, or that of a child of a dead owner that keeps the
 * lock), -ENOENT, -ENOTDIR, -EACCES, -EROFS, -EIO (of a directory of a new store, or of all of them), -ENOENT (read_only, and there is no store), -ENOSPC,
 * -ENOMEM, -EPERM (a secret file that others can read), -EPROTONOSUPPORT (format version), -EUCLEAN (not a store, or broken beyond repair), -EXDEV (directories
 * of different stores, or two copies of one device), -ENODEV (more directories than the store has devices; it cannot grow).
 */
TN_API int tn_cache_open(const struct tn_cache_opts *opts, struct tn_cache **out);

/**
 * tn_cache_close - wait for what is in flight, flush, write a checkpoint, close; NULL is fine
 *
 * All loads and saves must have ended and all memories be unregistered (asserted). Leases end with the cache: nothing waits for
 * them.
 *
 * Return: 0; or the error of the last flush, or of blocks that were admitted to disk and could not be written from host
 * memory (-ENOSPC: the disk had no free slots for them). The cache is gone either way.
 */
TN_API int tn_cache_close(struct tn_cache *cache);

/**
 * tn_cache_eventfd - readable whenever an operation completed since it was last read
 *
 * Return: the file descriptor, owned by the cache: do not close it; or -EINVAL.
 */
TN_API int tn_cache_eventfd(struct tn_cache *cache);

/**
 * struct tn_completion - a load or save that has made progress
 * @tag:          of the options it was begun with
 * @load, @save:  the one that it is; the other is NULL
 * @ended:        tn_load_end, or tn_save_end, has nothing to wait for any more
 * @ready_layers: loads: the first so many layers need no wait
 * @good_blocks:  loads: length of the good prefix so far
 */
struct tn_completion {
	uint64_t tag;
	struct tn_load *load;
	struct tn_save *save;
	uint32_t ended;
	uint32_t ready_layers;
	uint32_t good_blocks;
	uint32_t reserved;
};

/**
 * tn_cache_completions - which loads and saves have made progress since this was last asked
 * @out: array of @max
 *
 * Never waits: the eventfd says when to ask. Each load or save is told once, however much has happened to it, with
 * its state at the moment of the call; again when something has happened since. One that was ended is not told. Now and then one is told
 * of which there is nothing new. Several readers share the completions: each is told to one of them.
 *
 * Return: how many (0..max), or -EINVAL.
 */
TN_API int tn_cache_completions(struct tn_cache *cache, struct tn_completion *out, size_t max);

/**
 * struct tn_identity - what makes KV bytes reusable; two spaces that differ in any of it never match
 * @tenant:         who owns the blocks ("" for one tenant)
 * @model:          model id, required
 * @revision:       model revision
 * @kv_dtype:       "bf16", "fp8_e4m3", ...
 * @rotary:         rotary settings as the engine prints them
 * @hash_algorithm: of the engine's block hashes, or "" for tn_keys_from_tokens
 * @hash_seed:      of those hashes
 * @reset_revision: names the weights where an engine has changed them while it ran; zeros: the weights that it started with. All ranks and
 *                  nodes that share blocks have the same 16 bytes, drawn at random for each change: 16 bytes that were never given before
 *                  find nothing. To change weights: abort saves that are not committed, end loads, close the space, and open it with the new
 *                  bytes. With zeros, after a restart with the old weights, their blocks are found again.
 */
struct tn_identity {
	size_t size;
	const char *tenant;
	const char *model;
	const char *revision;
	const char *kv_dtype;
	const char *rotary;
	const char *hash_algorithm;
	uint64_t hash_seed;
	unsigned char reset_revision[16];
};

/**
 * struct tn_shard - the physical share
 * @tp_rank, @tp_size: tensor parallelism; MLA (only latent planes) is stored as TP 0/1 whatever is given here
 * @pp_rank, @pp_size: pipeline parallelism: the geometry has this rank's layers only
 * @group:         which of the engine's KV cache groups, for models with several kinds of layers; 0 if there is one
 * @match_rule:    enum tn_match_rule
 * @window_tokens: of TN_MATCH_WINDOW
 * @head_group, @head_groups: with @head_groups above 0 the blocks are those of a head group, of so many (tenuto/heads.h), for ranks of every TP size: the
 *                 geometry is the group's, and @tp_rank and @tp_size are no part of what they are. 0: the share of one rank
 */
struct tn_shard {
	size_t size;
	uint32_t tp_rank, tp_size;
	uint32_t pp_rank, pp_size;
	uint32_t group, match_rule, window_tokens;
	uint32_t head_group, head_groups;
};

/**
 * struct tn_quota - limits of a space
 * @bytes: by enum tn_tier: most bytes in that tier; UINT64_MAX: no limit; 0: nothing is ever stored there
 */
struct tn_quota {
	size_t size;
	uint64_t bytes[TN_TIERS_MAX];
};

/** tn_identity_init_sized - tn_identity_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_identity_init_sized(struct tn_identity *id, size_t size);

/** tn_identity_init - defaults: size set, all strings empty. Any thread. */
static inline void tn_identity_init(struct tn_identity *id)
{
	tn_identity_init_sized(id, sizeof(*id));
}

/** tn_shard_init_sized - tn_shard_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_shard_init_sized(struct tn_shard *shard, size_t size);

/** tn_shard_init - defaults: size set, TP 0/1, PP 0/1, longest prefix. Any thread. */
static inline void tn_shard_init(struct tn_shard *shard)
{
	tn_shard_init_sized(shard, sizeof(*shard));
}

/** tn_quota_init_sized - tn_quota_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_quota_init_sized(struct tn_quota *quota, size_t size);

/** tn_quota_init - defaults: size set, no limits. Any thread. */
static inline void tn_quota_init(struct tn_quota *quota)
{
	tn_quota_init_sized(quota, sizeof(*quota));
}

/**
 * tn_space_open - the blocks of one tenant, model and shard
 * @quota: NULL for no limits, or - if the space is open already - for those it has
 *
 * Return: 0 and *out (close with tn_space_close; opening one identity twice gives the same blocks), -EINVAL (also
 * for objects above 128 MiB, or in too many pieces: the detail has the limit),
 * -ENOSPC (1,024 are open), -ENOMEM.
 *
 * How many spaces are opened in the life of a store is not bounded. It knows 1,024 at a time; when one more is opened, one that nobody has open
 * goes: one without blocks, else the least recently used with all its blocks (32 at a time; then the call waits until
 * they are gone, a few milliseconds, or five seconds and -ENOSPC if leases hold some of each).
 */
TN_API int tn_space_open(struct tn_cache *cache, const struct tn_identity *identity, const struct tn_shard *shard,
			 const struct tn_geometry *geometry, const struct tn_quota *quota, struct tn_space **out);

/** tn_space_close - the handle goes, the blocks stay until their slots, or the space's number, are needed; NULL is fine */
TN_API void tn_space_close(struct tn_space *space);

/**
 * tn_space_op_blocks - most blocks of one load, save or prefetch of a space; more are -E2BIG
 *
 * max_op_blocks of the cache (of an attached one: of its owner), fewer for blocks of more than 64 layers or 16 pages. A look-up with
 * no more keys than this is answered whole. Any thread. Return: blocks; 0: one block has more pages than max_op_blocks allows, or
 * there is no space (NULL).
 */
TN_API uint32_t tn_space_op_blocks(const struct tn_space *space);

/**
 * tn_space_drop - forget all blocks of a space, durably
 *
 * Waits until the space's new epoch is on disk: afterwards no crash brings a block back. Other spaces are not held up. From its beginning on nothing
 * of the space is found; saves that begin meanwhile are kept. A remote store keeps its objects, and a later look-up finds them: change reset_revision.
 *
 * Return: 0; -EBUSY (loads or saves still under way at the deadline; nothing was dropped); -EROFS; -ENOMEM. After
 * -ETIMEDOUT or an I/O error the blocks are gone for this process, but a crash may bring them back: the store goes on
 * trying to write the new epoch with everything that it writes later, and a tn_flush or another tn_space_drop that
 * returns 0 says that it is durable.
 */
TN_API int tn_space_drop(struct tn_space *space, uint64_t deadline_ns);

/**
 * tn_keys_from_tokens - block keys of a prompt: chained XXH3-128 seeded with the identity's secret
 * @space:  any space of the identity: its shards and KV groups with as many tokens per block all have these keys
 * @tokens: token ids
 * @n:      number of tokens; only whole blocks (page_tokens * pages_per_block) get keys
 * @extra:  what else the KV depends on (LoRA id, image hashes, cache salt); NULL if nothing
 * @keys:   @max of them, to be filled
 *
 * Return: keys written, or -EINVAL.
 */
TN_API long tn_keys_from_tokens(const struct tn_space *space, const uint32_t *tokens, size_t n, const void *extra,
				size_t extra_bytes, struct tn_key *keys, size_t max);

/**
 * tn_keys_from_hashes - block keys from an engine's own chained page hashes
 * @hashes:     npages hashes of hash_bytes (16..32) each, in prompt order
 *
 * The last page's hash names the block; it is rehashed with the identity's secret, as
 * tn_keys_from_tokens says. A trailing part of a block gets no key.
 *
 * Return: keys written, or -EINVAL.
 */
TN_API long tn_keys_from_hashes(const struct tn_space *space, const void *hashes, size_t hash_bytes, size_t npages,
				struct tn_key *keys, size_t max);

/**
 * tn_prefetch - bring blocks to host memory before they are asked for
 *
 * Best effort: ends quietly at the deadline or when there is no host tier or no free place in it.
 *
 * Return: blocks that will be looked for (n, or 0 without host tier or disk), -EINVAL, -EAGAIN (max_ops), -E2BIG
 * (max_op_blocks).
 */
TN_API int tn_prefetch(struct tn_space *space, const struct tn_key *keys, size_t n, uint64_t deadline_ns);

/**
 * struct tn_load_opts
 * @first_page, @npages: sub-range of the pages of keys[0..n) to write; npages 0: all. Pages outside it are
 *               not touched; the page index array still has n * pages_per_block entries
 * @deadline_ns: give up then: what has not arrived is a miss
 * @priority:    higher first; among equals the earlier needed one. Of INT32_MIN nothing is kept in memory besides, or counts as reuse for remotes
 * @input_tokens: tokens the engine computes beyond what is loaded (after tn_plan with those of its recompute_blocks):
 *               with the space's slack table it tells when each layer is needed; 0: not known
 * @start_ns:    when compute of layer 0 may begin; 0: as soon as it is there
 * @tag:         the caller's, for tn_cache_completions
 */
struct tn_load_opts {
	size_t size;
	uint64_t first_page;
	uint64_t npages;
	uint64_t deadline_ns;
	int32_t priority;
	uint64_t input_tokens;
	uint64_t start_ns;
	uint64_t tag;
};

/** tn_load_opts_init_sized - tn_load_opts_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_load_opts_init_sized(struct tn_load_opts *opts, size_t size);

/** tn_load_opts_init - defaults: size set, all pages, no deadline. Any thread. */
static inline void tn_load_opts_init(struct tn_load_opts *opts)
{
	tn_load_opts_init_sized(opts, sizeof(*opts));
}

/**
 * tn_load_begin - start bringing blocks into the pool's pages
 * @n:     at least 1
 * @pages: n * pages_per_block page indices, block-major; copied
 * @opts:  NULL for defaults
 *
 * The pages belong to Tenuto until tn_load_end returned 0.
 *
 * Return: 0 and *out; -EINVAL (a page out of range, given twice, or still part of another load or of a save, with
 * the value; a sub-range without a page), -EAGAIN (max_ops are under way; or, of an attached cache, others have the session memory that the pages need),
 * -E2BIG (more than max_op_blocks allows), -EFAULT (of an attached cache: pages of the memory are gone, as an operation
 * before has told; tenuto/session.h). Blocks that are not there are no error: they shorten the good prefix.
 */
TN_API int tn_load_begin(struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t n,
			 const uint32_t *pages, const struct tn_load_opts *opts, struct tn_load **out);

/**
 * tn_load_wait - wait until @layer of every block of the good prefix is in place and verified
 *
 * The first layer of a load that is asked for, by tn_load_wait, tn_load_poll or tn_load_event, decides what is read first: layer 0 says that
 * the caller computes layer by layer, so layers come in their order, each as soon as can be; a later one says that it wants all of
 * them, which is faster as a whole. Until then the load before in this space decides, and @input_tokens, which says layer by layer.
 *
 * Return: length of the good prefix in blocks (0..n; never grows), -ETIMEDOUT, -EINVAL (no such layer or load).
 */
TN_API int tn_load_wait(struct tn_load *load, uint32_t layer, uint64_t deadline_ns);

/** tn_load_poll - as tn_load_wait, but -EAGAIN instead of waiting */
TN_API int tn_load_poll(struct tn_load *load, uint32_t layer);

/**
 * tn_load_event - a word of memory that says when @layer of every block of the good prefix is in place and verified
 * @word:  out: 64 bits, to be read only; their address holds until tn_cache_close
 * @value: out: the layer needs no wait as soon as the word has this value or a higher one
 *
 * For those who cannot call tn_load_wait: a stream of a GPU that waits for a value in memory, say. The word reaches the value in any
 * case, also when the load fails or is cancelled: what can be computed on is then the good prefix, which tn_load_poll
 * returns. It never falls, so a wait that begins after tn_load_end finds it over, too. A stream cannot stop waiting: a load without a deadline of which
 * nothing comes for TN_SAVE_IDLE_NS is given up from here on.
 *
 * Return: 0, -EINVAL (no such layer or load).
 */
TN_API int tn_load_event(struct tn_load *load, uint32_t layer, const uint64_t **word, uint64_t *value);

/**
 * tn_load_cancel - stop caring: what is not yet issued will not be
 *
 * Waits return the prefix that is good. Return: 0, -EINVAL (no such load).
 */
TN_API int tn_load_cancel(struct tn_load *load);

/**
 * tn_load_end - cancel what has not arrived, wait until nothing is in flight any more, give the handle back
 * @deadline_ns: when to stop waiting; 0, or a time that is over: do not wait
 * @busy:        with -EBUSY: bitmap over the n blocks ((n + 7) / 8 bytes) of those whose pages are still written to, or NULL
 *
 * After all layers of all blocks have arrived there is nothing to wait for. Transfers are in flight whenever the good prefix is
 * shorter than what was asked for, although all layers were waited for.
 *
 * Return: 0: the pages are the caller's again and the handle is gone; -EBUSY: transfers are still in flight at the deadline, the
 * handle lives on, call again (the eventfd says when something ended). -EINVAL: no such load, it was ended before.
 */
TN_API int tn_load_end(struct tn_load *load, uint64_t deadline_ns, uint8_t *busy);

/** What became of a block of a save. */
enum tn_saved {
	TN_SAVED_NOT,	    /**< the save was aborted */
	TN_SAVED_STORED,    /**< on disk, or on its way there, by this save */
	TN_SAVED_EXISTING,  /**< likewise, but before this save */
	TN_SAVED_HOST_ONLY, /**< in host memory, and kept off the disk */
	TN_SAVED_REJECTED,  /**< nowhere: not admitted */
	TN_SAVED_FAILED,    /**< nowhere: see tn_save_result */
	TN_SAVED_KINDS,
};

/**
 * struct tn_save_opts
 * @parent:   key of the block before keys[0]; NULL if keys[0] begins the prompt, or if that is not known. Where a look-up finds prefixes
 *            (TN_MATCH_PREFIX), a block whose parent is not there is not admitted: nobody could find it. A parent that is the last
 *            block of a save which began earlier is on its way, and counts if that save stores it. A save of the same process is waited for until it has
 *            ended, TN_SAVE_IDLE_NS after its caller stops at the latest; one of another process must have all its layers and its commit by the time that
 *            this one is stored. Whoever finds a shorter prefix than was saved once begins the next save at the first block that is missing
 * @partial_last: the last block is known to hold a prompt's unfinished tail (a hint for admission)
 * @priority: -128..127, for eviction; 0 is normal
 * @ttl_ns:   not found any more after that time (to the second), nor after reopening; 0: never forgotten for its age.
 *            Of a block that is saved again the longer time counts from then on, also if its time was over and it had
 *            not gone yet; with 0 it is kept across reopening from the next durable point on
 * @outcome:  n bytes, which stay the caller's: enum tn_saved of each block, set when tn_save_end returns 0; or NULL
 * @tag:      the caller's, for tn_cache_completions
 */
struct tn_save_opts {
	size_t size;
	const struct tn_key *parent;
	bool partial_last;
	int32_t priority;
	uint64_t ttl_ns;
	uint8_t *outcome;
	uint64_t tag;
};

/** tn_save_opts_init_sized - tn_save_opts_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_save_opts_init_sized(struct tn_save_opts *opts, size_t size);

/** tn_save_opts_init - defaults: size set, a prompt's beginning, no hints. Any thread. */
static inline void tn_save_opts_init(struct tn_save_opts *opts)
{
	tn_save_opts_init_sized(opts, sizeof(*opts));
}

/**
 * tn_save_begin - announce blocks that compute is about to produce
 * @keys:  n block keys, consecutive blocks of one prompt
 * @pages: n * pages_per_block page indices; copied. The bytes are Tenuto's to read from each
 *         tn_save_layer until tn_save_end returned 0; no load may have them from now until then, other saves may
 *
 * Blocks that are already there, or that admission rejects, cost nothing further.
 *
 * Return: 0 and *out; -EINVAL (also for a page that still belongs to a load, with its index), -EAGAIN (max_ops, or
 * write_backlog_bytes, or session memory as of tn_load_begin: nothing was begun; ask again when saves have gone on, or leave these blocks
 * out), -E2BIG (more than max_op_blocks allows), -EFAULT (as tn_load_begin).
 */
TN_API int tn_save_begin(struct tn_space *space, struct tn_pool *pool, const struct tn_key *keys, size_t n,
			 const uint32_t *pages, const struct tn_save_opts *opts, struct tn_save **out);

/**
 * tn_event_create - a word of memory that an engine raises when bytes are final
 *
 * The word is 0 at first and only rises. One event serves all layers of a save, and one save after the other, with rising values.
 *
 * Return: 0 and *out, -EINVAL, -EAGAIN (1,024 of the cache are in use).
 */
TN_API int tn_event_create(struct tn_cache *cache, struct tn_event **out);

/** tn_event_destroy - no save may wait for it any more; NULL is fine. What is left goes with the cache. */
TN_API void tn_event_destroy(struct tn_event *event);

/** tn_event_raise - the word has at least @value from now on. Any thread; nothing waits. Return: 0, -EINVAL. */
TN_API int tn_event_raise(struct tn_event *event, uint64_t value);

/**
 * tn_event_address - where the word lies, for a device that writes it
 *
 * The device stores 64 bits, each time a higher value, after the bytes that they are about are visible to this machine's CPUs. Nobody
 * else raises the event then. The cache looks at the word every 50 us while a save waits for it.
 *
 * Return: the address, until tn_event_destroy; NULL without an event.
 */
TN_API uint64_t *tn_event_address(struct tn_event *event);

/**
 * tn_save_layer - the bytes of @layer of all blocks are final once @event has reached @value
 * @event: of the same cache; NULL: they are final now
 *
 * Each layer once, in any order.
 *
 * Return: 0, -EINVAL (no such layer, or given before).
 */
TN_API int tn_save_layer(struct tn_save *save, uint32_t layer, const struct tn_event *event, uint64_t value);

/**
 * tn_save_commit - all layers were given: let the blocks become visible when their bytes are stored
 *
 * First block first, some at a time: a look-up before tn_save_end has returned may find the first ones only, and these are
 * what the death of the process leaves.
 *
 * Return: 0, -EINVAL if a layer is missing (the save stays open).
 */
TN_API int tn_save_commit(struct tn_save *save);

/**
 * tn_save_abort - forget the save
 *
 * Nothing of it becomes visible, unless it was committed before: then what is stored by the time that this is seen stays. Return: 0, -EINVAL (no such save).
 */
TN_API int tn_save_abort(struct tn_save *save);

/**
 * struct tn_save_result - what became of the blocks; all together they are n, or after an abort none
 * @size:      sizeof(struct tn_save_result), set by the caller
 * @stored:    visible, and on disk or on their way there since this save: admitted
 * @existing:  likewise, but before this save
 * @host_only: visible, in host memory alone, new or there before: admission - the policy, the write budget, the
 *             space's quota, the devices' health - keeps them off the disk, or there is none. No flush is about them, and
 *             they end with the process. A later save of such a block asks admission again
 * @rejected:  not admitted, and no place in host memory
 * @failed:    no free slot (known at once, or after a second in which only transfers were in the way of it), an I/O error, -EROFS (the device takes no writes), or -EBUSY (the key was dropped and is still
 *             held); -ECANCELED: nothing came of the save for TN_SAVE_IDLE_NS, and none of its blocks was stored
 * @error:     of the first that failed; if none did, why the first of those that are host_only or rejected was kept off the
 *             disk: -EROFS: no device takes writes, or the cache was opened read-only; -EDQUOT: the write budget is
 *             used up; -ENOENT: its parent is not there; -EBUSY: nothing can go for it, because all is held by leases, loads and saves under way; -EAGAIN: the saves of this process
 *             that are under way hold its part of the slots (tenuto/session.h); 0: the policy did not want it, the quota is 0, or there is no disk
 *
 * What is stored or existing survives the process and a power cut as soon as a tn_flush that began later has returned 0,
 * unless it was evicted or dropped since, or has a time to live; all else does not.
 */
struct tn_save_result {
	size_t size;
	uint32_t stored;
	uint32_t existing;
	uint32_t host_only;
	uint32_t rejected;
	uint32_t failed;
	int error;
};

/**
 * tn_save_end - after commit or abort: wait, then give the handle back
 * @result: size set by the caller; or NULL
 *
 * Return: 0: the pages are the caller's and the handle is gone; -ETIMEDOUT: still under way, call again;
 * -EINVAL: neither committed nor aborted, or no such save: it was ended before. With durability_ms 0 also what tn_flush returns:
 * then the handle is gone too, and what result says is stored can be loaded, but is not known to be durable. -EFAULT, of an attached
 * cache: pages of the memory are gone; the handle is gone too, and nothing was stored, or a prefix of a save in batches (tenuto/session.h). -ESHUTDOWN, of
 * an attached cache: its owner is gone, and what became of the save is not known; the handle is gone too.
 */
TN_API int tn_save_end(struct tn_save *save, uint64_t deadline_ns, struct tn_save_result *result);

/**
 * tn_drop - forget single blocks (and thereby what follows them in their chains)
 *
 * Asynchronous; a block under load goes when its load ends. Return: blocks found, or -EINVAL.
 */
TN_API int tn_drop(struct tn_space *space, const struct tn_key *keys, size_t n);

/**
 * tn_flush - make durable what the saves that ended before have stored
 *
 * That is each block that tn_save_result counts as stored or existing, wherever it lies by now: 0 says that each of them
 * which was not evicted, dropped or over its time since is on disk, and that no crash takes it from there. What a save left in
 * host memory alone (host_only) is not meant. Blocks that could not be written before are tried again by each flush, so a later one
 * may return 0; one that had to leave host memory meanwhile is told by one flush (statistic offload_lost_blocks
 * counts them). What can be made durable is, also when another block is the reason of an error.
 *
 * Return: 0, -ETIMEDOUT, or the error of the first block that could not be written (-ENOSPC: no free slot for it, -EROFS: no
 * device takes writes) or of the device. -EROFS also if the cache was opened read-only and saves have left blocks in its
 * host memory.
 * -ESTALE: a store's file was deleted underneath (looked for after each sync, and by a flush that has nothing to write): what
 * is in it is served until the cache closes and is gone then, also what an earlier flush had made durable.
 */
TN_API int tn_flush(struct tn_cache *cache, uint64_t deadline_ns);

/* ---- the scheduler ------------------------------------------------------------------------------ */

/**
 * tn_space_slack - how long the engine computes on each layer of this space's model
 * @table: copied; NULL: forget what is known and learn anew
 *
 * Without a table, and with a wrong one, the cache learns the times from the waits of loads that say their
 * input_tokens. Return: 0, -EINVAL (a table of another model than the space's, "-" being any; of another number of
 * layers than its geometry; or with gaps), -ENOMEM.
 */
TN_API int tn_space_slack(struct tn_space *space, const struct tn_slack *table);

/**
 * tn_space_slack_copy - the table as it is corrected by now, to be kept for the next start
 *
 * Return: 0 and *out (tn_slack_destroy), -ENOMEM.
 */
TN_API int tn_space_slack_copy(struct tn_space *space, struct tn_slack **out);

/**
 * tn_space_slack_changes - whether tn_space_slack_copy has something new, and how much it copies
 * @changes: out: how often the table was set or corrected; 0: nothing was ever known
 * @cells:   out: of the table, over all layers
 *
 * Any thread of the process that owns the cache; the owner's thread is not asked. Return: 0, -EINVAL (a cache that was attached).
 */
TN_API int tn_space_slack_changes(struct tn_space *space, uint64_t *changes, uint64_t *cells);

/**
 * tn_space_observe - the engine has computed a layer: corrects the space's table
 * @input_tokens:  that were computed at once, 1 to TN_SLACK_TOKENS_MAX
 * @prefix_tokens: before them, whose KV was there
 * @layer:         below the geometry's layers
 * @ns:            how long the layer took; times that cannot be right are ignored, as of tn_slack_observe
 *
 * For what no load shows: prompts that are computed as a whole. The time between two tn_load_wait of a load that says its
 * input_tokens counts without this call; do not give it twice. Any thread; does not wait, and the owner learns in its next
 * turn. Without a scheduler nothing is learned.
 *
 * Return: 0, -EINVAL with the value, -ECHILD (in a forked child).
 */
TN_API int tn_space_observe(struct tn_space *space, uint64_t input_tokens, uint64_t prefix_tokens, uint32_t layer, uint64_t ns);

/**
 * tn_space_at - one more handle of a space that somebody has open, for who keeps the tables of all of them in files
 * @index: its number (tn_space_index), below 1,024
 * @name:  out: of its tenant, model, revision, dtype, share and geometry. The same in each cache and after each start, and of a space
 *         with another reset_revision or other hashes
 *
 * Any thread of the process that owns the cache. The blocks in it are its clients' business: take the table, and close it.
 *
 * Return: 0 and *out (tn_space_close), -ENOENT (nobody has such a space open), -EINVAL (no such number, a cache that was attached).
 */
TN_API int tn_space_at(struct tn_cache *cache, uint32_t index, struct tn_space **out, struct tn_key *name);

enum tn_phase { TN_PHASE_PREFILL, TN_PHASE_DECODE };

/**
 * tn_phase - what the engine does now
 * @phase:    TN_PHASE_DECODE: no load is expected for @slack_ns, writes may go in larger quanta
 * @slack_ns: how long; 0: until tn_phase is called again (decode), or nothing known (prefill, where it is the time
 *            until the next load)
 *
 * A hint: loads that come all the same are served first as ever. Return: 0, -EINVAL.
 */
TN_API int tn_phase(struct tn_cache *cache, enum tn_phase phase, uint64_t slack_ns);

/** struct tn_plan_cost - estimates: time to the last layer's end, time compute waits, compute and I/O in all */
struct tn_plan_cost {
	uint64_t ttft_ns;
	uint64_t bubble_ns;
	uint64_t compute_ns;
	uint64_t io_ns;
};

/**
 * struct tn_plan - how much of a matched prefix to restore
 * @restore_blocks:   the first so many blocks of the match; the rest is cheaper to compute again
 * @recompute_blocks: the others
 * @choice:           what that costs
 * @restore_all, @recompute_all: what the extremes cost
 */
struct tn_plan {
	size_t size;
	uint32_t restore_blocks;
	uint32_t recompute_blocks;
	struct tn_plan_cost choice, restore_all, recompute_all;
};

/**
 * tn_plan - split a matched prefix: restore the first part, compute the rest again
 * @match:        of tn_match with the longest-prefix rule
 * @tiers:        of the same tn_match: where each matched block lies; NULL: those in host memory are taken to come first
 * @input_tokens: tokens behind the match, which are computed in any case
 * @plan:         size set by the caller
 *
 * Any thread. From the space's slack table and the measured speed of the disk; what lies in host memory counts as there at
 * once. As long as one of them is not known, everything is restored and the costs are 0. A window or checkpoint (TN_MATCH_WINDOW,
 * TN_MATCH_EXACT) is never split.
 *
 * Return: 0, -EINVAL, -EOVERFLOW (a restore of centuries).
 */
TN_API int tn_plan(struct tn_space *space, const struct tn_match *match, const uint8_t *tiers, uint64_t input_tokens,
		   struct tn_plan *plan);

/**
 * tn_stat_name - statistics have names, as many as there are indices before NULL
 *
 * A later version may have more, at any index; a name keeps its meaning. Names end with the unit: _blocks, _objects, _bytes, _ns;
 * those of one tier begin with the tier: "host_blocks", "disk_blocks". The list with what each counts is
 * docs/statistics.md.
 *
 * Any thread. Return: the name, or NULL past the last.
 */
TN_API const char *tn_stat_name(uint32_t index);

/**
 * tn_cache_stats - a snapshot of all statistics
 * @values: @n of them; values[i] is what tn_stat_name(i) names
 *
 * To a process that has attached and may see some tenants only (struct tn_serve_rule): of the spaces of those tenants, as long as they keep
 * their numbers. What is not counted by space is 0 then; docs/statistics.md says what that is.
 *
 * Return: how many statistics there are (more than @n: only @n were written), -EINVAL.
 */
TN_API int tn_cache_stats(struct tn_cache *cache, uint64_t *values, uint32_t n);

/** tn_cache_stat - one statistic by its name. Return: 0 and *value, -ENOENT (this version has none of that name), -EINVAL. */
TN_API int tn_cache_stat(struct tn_cache *cache, const char *name, uint64_t *value);

/**
 * tn_cache_device_stats - a snapshot of one device, also of one that is offline
 * @index: 0 for the first; devices keep their places while the cache is open
 * @stats: size set by the caller
 *
 * Return: 0, -ENOENT past the last device (at once in a cache without directories), -EINVAL, -EACCES (attached, and let see some tenants only).
 */
TN_API int tn_cache_device_stats(struct tn_cache *cache, uint32_t index, struct tn_device_stats *stats);

#ifdef __cplusplus
}
#endif
#endif
