/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One cache for the processes of a machine: one process owns it and serves it, others attach and make the same calls.
 *
 * The calls of cache.h, match.h and memory.h mean the same in a process that has attached. What goes on between it and the owner's
 * process goes through memory that both map; a load or a save costs no system call but the wake-up of a sleeping owner. Pages in memory
 * that both can map are read and written by the owner in place: memory of tn_memory_alloc, or a memfd, POSIX shared memory or a file of hugetlbfs that the
 * process has mapped shared. Other files that are mapped shared are refused (-EINVAL). Memory that is truncated or punched while it is registered
 * fails its loads and saves: loads find nothing, saves return -EFAULT, and so does each begin once one of them has ended so. What ends that is to unregister the
 * memory and to register other memory. The owner maps of each process at most 64 memories with 1,024 ranges together and with as many bytes as the machine has, or as
 * max_memory_bytes of the process's rule says, and of all processes 64 TiB: -ENOSPC beyond.
 *
 * All other memory of an attached process (of malloc, anonymous, private mappings of files) is staged: a thread of that process copies each byte between the
 * pages and session memory that the owner maps. Each pool has as much of it as it has pages, 1 GiB at most, or as stage_bytes of struct tn_memory_desc says; the kernel
 * gives it pages when it is used. A load or save has its part of it, whole blocks, from tn_load_begin or tn_save_begin until the owner is done with it: -EAGAIN
 * if others have too much of it. Nobody waits for it. An operation with more blocks than there is session memory for takes one half of what is free
 * and is carried out in batches of as many blocks, one after the other: it is slower, all layers of such a load come at its end, and a batch does not pin the blocks of later ones as a load
 * otherwise pins all of its blocks (a lease does). The batches of such a save become visible one after the other: what an abort after the commit, lost
 * memory (-EFAULT) or the end of either process leaves is a prefix of it. It is read from the pages after tn_save_commit, too, until tn_save_end returned 0, as any save. Saves copy a layer once it was given and its event
 * has come, also of blocks that turn out to be stored already. Every sign that a layer is there, event words included, comes after its
 * bytes. The statistic staged_bytes counts the bytes, and the owner's log says once per process that it copies.
 *
 * What one process can hold is a part of what the processes that use the cache leave, so that each finds some, and nobody waits for another one. Its
 * saves under way have at most as many slots, and as many bytes of the write backlog, as they leave free; of more blocks it is said that they were not
 * admitted (-EAGAIN in struct tn_save_result), and tn_save_begin says -EAGAIN. Its leases keep at most half of the blocks that the store holds: beyond
 * that a look-up with TN_MATCH_PIN finds a shorter prefix, or says -EAGAIN. Saves of a process that has the cache alone have no such limit, nor have
 * leases of the owner's process. The owner's process counts once it has begun a save. Who comes later has its part as the saves before it end, or are
 * given up.
 *
 * The owner trusts nothing that an attached process writes: what is wrong fails that process's own calls. An attached process that ends, is killed or
 * stops holds up nobody. One that ends loses its loads, saves and leases, and nothing else; children that it has forked do not keep its session.
 *
 * The owner's process has a handler of SIGBUS for as long as it lives (memory of others may be truncated while it is read): a program that installs one
 * later calls that of before for addresses that are not its own.
 *
 * When the owner's process closes the cache or is killed, calls and waits of those that have attached return -ESHUTDOWN at once, and event words of
 * loads rise with a good prefix of 0. Pages that were being loaded stay -EBUSY (tn_load_end) until nothing of that owner can land in them any more; staged pages are
 * free at once, or once no copy of their device is under way.
 * That nothing can land any more is seen by the locks that the dead owner has on the files of its store (/proc/locks). Where they cannot be seen - from another PID namespace, or
 * another mount namespace that has not the store at the owner's path - such pages stay -EBUSY for good. tn_cache_close then waits for nothing but copies of a device: of an owner
 * that is gone it ends all loads and saves, pools and memories that are left, whose handles are used no more. The process does not put anything into these pages again: it frees the
 * memory (munmap, tn_memory_free), attaches once more and uses other memory; or it ends, and the next one takes new memory, not the old file. To spare it that, share the PID namespace and the store's path (read-only will
 * do; docs/deploy.md, Containers).
 * Before Linux 6.9 an owner that is killed while its disk hangs is noticed only when the disk goes on.
 *
 * While the owner's process is stopped, or does not run for another reason, waits with a deadline end by their deadline, tn_flush and
 * tn_space_drop, too. Every other call (look-ups, tn_unpin, spaces, memories, pools, statistics) returns -ETIMEDOUT after 10 seconds, and those after it at
 * once, until the owner has answered. The owner may carry out what had timed out; a lease, space, memory or pool that it gives is given back. A space
 * or memory that is given back meanwhile stays the session's until the session ends.
 *
 * After -ESHUTDOWN the process closes the cache and attaches again, to the next owner. What it has then:
 *
 *   spaces, pools, memories   are opened, created and registered again: spaces by identity, shard and geometry, pools by layout
 *   keys                      are the same, if the store is: they name the same blocks, which the next owner finds (blocks in memory only are gone)
 *   tn_memory_alloc's memory  stays, with its bytes
 *   events                    are created again, with values from 0 on
 *   loads, saves, prefetches, leases, queries   are gone: end loads and saves before closing; a save that had not ended may or may not be stored
 *
 * An engine of several processes (tensor parallelism): each rank's process opens the space of its share, and saves and loads there. The scheduler's process opens
 * the spaces of all ranks, needs no memory, looks up with tn_match_all, and tells the ranks the keys of what it found. Its lease holds all shares of these
 * blocks until it calls tn_unpin, which is after the ranks have told it that their loads are over. If it dies, its leases end: loads that have begun go on, others
 * may find less. If a rank dies while it saves, nobody finds the block until a rank in its place has saved its share. examples/ranks.c is such an engine.
 *
 * Threads: any.
 */
#ifndef TENUTO_SESSION_H
#define TENUTO_SESSION_H

#include <tenuto/cache.h>
#include <tenuto/shared_memory.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Most processes that are attached to one cache. */
#define TN_ATTACHED_MAX 32u

/** Most rules of a cache, and bytes of a token with the zero at its end. */
#define TN_SERVE_RULES_MAX 256u
#define TN_SERVE_TOKEN_BYTES 128u
/** Of struct tn_serve_rule: whoever knows the token. */
#define TN_ANY_UID UINT32_MAX

/**
 * struct tn_serve_rule - what the processes of a user may; begin with tn_serve_rule_init, then set what differs
 * @size:         sizeof(struct tn_serve_rule), set by init
 * @uid:          effective user of the process when it attaches, as the kernel tells the owner; or TN_ANY_UID. 0 by default
 * @token:        that the process must give (struct tn_attach_opts): for containers that share a uid; NULL: none
 * @tenants, @ntenants: whose spaces it may open and look up (struct tn_identity); 0: all. A process that is let see some tenants only has the statistics of
 *                these alone (tn_cache_stats), and none of devices, which would tell it of the others (-EACCES); latencies of its own calls it has
 * @read_only:    it saves and drops nothing (-EROFS)
 * @max_priority: of its loads and saves; higher ones become this
 * @quota:        most of each space that it opens, which stays the space's; NULL: none. It may ask for less
 * @max_memory_bytes: most bytes of memory that each process may have registered at a time, session memory of staged pools included; 0: as many
 *                as the machine has, swap included
 */
struct tn_serve_rule {
	size_t size;
	uint32_t uid;
	const char *token;
	const char *const *tenants;
	uint32_t ntenants;
	bool read_only;
	int32_t max_priority;
	const struct tn_quota *quota;
	uint64_t max_memory_bytes;
};

/** tn_serve_rule_init_sized - tn_serve_rule_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_serve_rule_init_sized(struct tn_serve_rule *rule, size_t size);

/** tn_serve_rule_init - defaults: size set, uid 0, everything allowed. Any thread. */
static inline void tn_serve_rule_init(struct tn_serve_rule *rule)
{
	tn_serve_rule_init_sized(rule, sizeof(*rule));
}

/**
 * struct tn_serve_opts - begin with tn_serve_opts_init, then set what differs
 * @size:   sizeof(struct tn_serve_opts), set by init
 * @rules, @nrules: copied; the first one that is about a process counts. None: this process's own uid may do everything
 */
struct tn_serve_opts {
	size_t size;
	const struct tn_serve_rule *rules;
	uint32_t nrules;
};

/** tn_serve_opts_init_sized - tn_serve_opts_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_serve_opts_init_sized(struct tn_serve_opts *opts, size_t size);

/** tn_serve_opts_init - defaults: size set, no rules. Any thread. */
static inline void tn_serve_opts_init(struct tn_serve_opts *opts)
{
	tn_serve_opts_init_sized(opts, sizeof(*opts));
}

/**
 * tn_cache_serve - let other processes attach
 * @path: of a Unix socket that is made, at most 107 bytes. A socket that a dead owner left behind is replaced
 * @opts: who may what; NULL: processes of this process's own effective uid, everything
 *
 * Until tn_cache_close. If rules are about other users, every user may connect, and those of whom no rule is are refused.
 *
 * Return: 0; -EADDRINUSE (a process answers there), -EEXIST (something else than a socket is there), -ENAMETOOLONG, -EALREADY (it is served
 * already), -EINVAL (an attached cache cannot be served on; a rule: the detail names it), -ENOMEM, or an error of the file system.
 */
TN_API int tn_cache_serve(struct tn_cache *cache, const char *path, const struct tn_serve_opts *opts);

/**
 * tn_cache_serve_anew - other rules for processes that attach from now on; those that are attached keep theirs
 *
 * Whether other users may connect at all stays as tn_cache_serve had it. Return: 0; -EINVAL (a rule, or the cache is not served), -ENOMEM.
 */
TN_API int tn_cache_serve_anew(struct tn_cache *cache, const struct tn_serve_opts *opts);

/**
 * struct tn_attach_opts - begin with tn_attach_opts_init, then set what differs
 * @size:        sizeof(struct tn_attach_opts), set by init
 * @deadline_ns: until when to wait for the owner's answer; 0: ten seconds
 * @token:       that the owner's rules ask for, less than TN_SERVE_TOKEN_BYTES; NULL: none
 */
struct tn_attach_opts {
	size_t size;
	uint64_t deadline_ns;
	const char *token;
};

/** tn_attach_opts_init_sized - tn_attach_opts_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_attach_opts_init_sized(struct tn_attach_opts *opts, size_t size);

/** tn_attach_opts_init - defaults: size set, ten seconds, no token. Any thread. */
static inline void tn_attach_opts_init(struct tn_attach_opts *opts)
{
	tn_attach_opts_init_sized(opts, sizeof(*opts));
}

/**
 * tn_cache_serve_socket - tn_cache_serve with a socket that listens already, as systemd gives one (sd_listen_fds)
 * @fd: Unix socket of type SOCK_SEQPACKET that is bound to an absolute path and listens. From now on the cache's, which closes it; the
 *      path stays. Who may connect is up to its permissions, too
 * @opts: as of tn_cache_serve
 *
 * Return: as tn_cache_serve; after an error the descriptor stays the caller's. -EINVAL, too, if it is another kind of socket.
 */
TN_API int tn_cache_serve_socket(struct tn_cache *cache, int fd, const struct tn_serve_opts *opts);

/**
 * tn_cache_attach - the cache that another process serves at a path
 * @opts: or NULL for the defaults
 *
 * Return: 0 and *out, to be closed with tn_cache_close; -ENOENT, -ECONNREFUSED (nobody serves there, or not any more), -EACCES (no rule of the owner
 * is about this uid and token), -EPROTONOSUPPORT (not a socket of Tenuto, or of another version or page size), -EAGAIN (TN_ATTACHED_MAX), -ETIMEDOUT,
 * -ENAMETOOLONG, -ENOMEM.
 */
TN_API int tn_cache_attach(const char *path, const struct tn_attach_opts *opts, struct tn_cache **out);

/**
 * tn_cache_attach_store - attach to the process that has a store open and serves it
 * @dir:      a directory of the store, as its owner was given it
 * @instance: part of it; "default"
 * @opts:     or NULL for the defaults
 *
 * The owner has left a link, DIR/<instance>/tenuto.socket; what answers there must have this very store open.
 *
 * Return: as tn_cache_attach; -ENOENT: no store is there, or nobody serves it.
 */
TN_API int tn_cache_attach_store(const char *dir, const char *instance, const struct tn_attach_opts *opts, struct tn_cache **out);

#ifdef __cplusplus
}
#endif
#endif
