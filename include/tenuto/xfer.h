/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transfer agent: moves bytes between memories, files and processes.
 *
 * An agent has a name. It registers sections once, gives its metadata to other agents, loads theirs, and moves bytes between its own sections (local) and
 * those of another agent, or of itself (remote):
 *
 *   tn_xfer_register       sections that transfers may name
 *   tn_xfer_metadata       bytes for other agents; tn_xfer_load takes theirs
 *   tn_xfer_list_create    descriptors, each inside one section, checked once
 *   tn_xfer_request_create chooses a backend and takes all memory that the transfer needs
 *   tn_xfer_post           begins; allocates nothing
 *   tn_xfer_wait           sleeps until the end, or tn_xfer_status asks; then post again, or tn_xfer_release
 *
 * Who owns bytes: a transfer's ranges belong to it from post until its state is TN_XFER_ENDED. A deadline and a cancel end the wait, not the ownership: the
 * state is TN_XFER_ENDING as long as a byte may still move, and until then release and deregister return -EBUSY.
 *
 * Who may connect: an agent listens on a socket (listen of struct tn_xfer_agent_opts). Both ends prove by HMAC-SHA256 that they have its key: the shared secret,
 * or, without one, a random key that the agent's metadata carries. So metadata without a shared secret is a key to the agent's sections: treat it so. With a secret,
 * metadata is signed, and no other is taken. Another process's memory is used only if the kernel says that this process is at the other end of the Unix socket, or, by
 * TCP, if signed metadata names it. The connection's messages are neither encrypted nor signed. HMAC is libcrypto's, which is opened when it is first needed; where it
 * is missing, processes do not connect, and agents with a secret give no metadata (-ENOTSUP).
 *
 * Metadata has a generation, which is new for each agent that is created, and a revision, which rises with each registration. What belongs to an older generation
 * fails with -ESTALE, and moves nothing.
 *
 * Threads: any, at the same time, on one agent, too; calls on one list or one request come one at a time, but for tn_xfer_cancel, tn_xfer_status and tn_xfer_wait,
 * which any thread may call while the request exists. Deadlines are absolute CLOCK_MONOTONIC times in ns; TN_FOREVER: none. A forked child uses no agent of its
 * parent.
 */
#ifndef TENUTO_XFER_H
#define TENUTO_XFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tenuto/error.h>
#include <tenuto/layout.h>
#include <tenuto/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct tn_xfer_agent;
struct tn_xfer_list;
struct tn_xfer_request;

/** Bytes of an agent's name with the zero at its end. */
#define TN_XFER_NAME_BYTES 128u
/** Bytes of a backend's name with the zero at its end. */
#define TN_XFER_BACKEND_NAME_BYTES 32u
/** Of tn_xfer_post: the transfer has no notification. */
#define TN_XFER_NO_NOTIFICATION UINT32_MAX
/** Most bytes of one notification. */
#define TN_XFER_NOTIFICATION_MAX 65536u
/** Most backends of one agent. */
#define TN_XFER_BACKENDS_MAX 8u
/** Most bytes of an agent's metadata. */
#define TN_XFER_METADATA_MAX (UINT32_C(64) << 20)
/** Most sections of one agent. */
#define TN_XFER_SECTIONS_MAX 262144u
/** Most descriptors of one list. */
#define TN_XFER_DESCRIPTORS_MAX (UINT32_C(1) << 24)
/** Bytes of a section's meta with the zero at its end: paths and keys. */
#define TN_XFER_META_BYTES 1024u

/** Where the bytes of a section lie. */
enum tn_xfer_segment {
	TN_XFER_DRAM,	/**< addresses of the agent's process */
	TN_XFER_VRAM,	/**< addresses of an accelerator */
	TN_XFER_BLOCK,	/**< bytes of a block device */
	TN_XFER_OBJECT, /**< bytes of an object in an object store */
	TN_XFER_FILE,	/**< bytes of a file */
	TN_XFER_SEGMENTS,
};

/** Which way bytes go. */
enum tn_xfer_op {
	TN_XFER_READ,  /**< from remote to local */
	TN_XFER_WRITE, /**< from local to remote */
};

/* ---- agents ---------------------------------------------------------------------------------------------------------- */

/**
 * struct tn_xfer_agent_opts - begin with tn_xfer_agent_opts_init, then set what differs
 * @size:         sizeof(struct tn_xfer_agent_opts), set by init
 * @name:         names the agent among those that exchange metadata with it; 1 to 127 bytes
 * @backends:     as tn_xfer_backend_add takes them, the preferred one first; NULL: "memory" and "file"
 * @nbackends:    how many
 * @listen:       where other agents connect: "unix:PATH", "unix:@NAME" (Linux's abstract names), "tcp:HOST:PORT" (no HOST: 127.0.0.1; PORT 0: any free one), or
 *                "none"; NULL: an abstract name of its own. A Unix socket takes processes of the same user, and root's
 * @secret:       shared secret of the agents that may connect; NULL: a random key, which the metadata carries
 * @secret_bytes: how many, 16 to 256
 * @connect_ns:   how long to wait for a peer to accept a connection, for a host to be found, and at the end for notifications to be sent; 5 s by default
 * @notifications_max: most notifications that wait to be taken, 4096 by default; beyond it those of others wait at the sender, but for up to 32 MiB
 *                while a peer is to confirm a deregister, which it does behind them
 * @log, @log_arg, @log_level: log callback, called from any thread; NULL: none
 */
struct tn_xfer_agent_opts {
	size_t size;
	const char *name;
	const char *const *backends;
	uint32_t nbackends;
	const char *listen;
	const void *secret;
	size_t secret_bytes;
	uint64_t connect_ns;
	uint32_t notifications_max;
	tn_log_fn log;
	void *log_arg;
	enum tn_log_level log_level;
};

/** tn_xfer_agent_opts_init_sized - tn_xfer_agent_opts_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_xfer_agent_opts_init_sized(struct tn_xfer_agent_opts *opts, size_t size);

/** tn_xfer_agent_opts_init - defaults: no name, built-in backends, an abstract Unix socket. Any thread. */
static inline void tn_xfer_agent_opts_init(struct tn_xfer_agent_opts *opts)
{
	tn_xfer_agent_opts_init_sized(opts, sizeof(*opts));
}

/**
 * tn_xfer_agent_create - an agent, its backends and its listener
 *
 * Any thread. Starts a thread for connections, and those of its backends.
 *
 * Return: 0 and *out; -EINVAL (name, backend, address); -EADDRINUSE; -ENOENT (no backend of that name); -ETIMEDOUT: the host of the address was not found; -ENOMEM.
 */
TN_API int tn_xfer_agent_create(const struct tn_xfer_agent_opts *opts, struct tn_xfer_agent **out);

/**
 * tn_xfer_agent_destroy - ends an agent; NULL is fine
 *
 * Peers are not waited for: deregister first what is to be freed, or their transfers may still touch it. But notifications that were told, and that a peer has
 * not taken yet, are sent first, for connect_ns at most.
 *
 * Its requests and lists are released before. Peers see it go. Return: 0; -EBUSY: it has requests or lists.
 */
TN_API int tn_xfer_agent_destroy(struct tn_xfer_agent *agent);

/** tn_xfer_backend_name - names of the backends that are built in, by index; NULL past the last. tn_plugin_list has those of plugins. Any thread. */
TN_API const char *tn_xfer_backend_name(uint32_t index);

/**
 * tn_xfer_backend_add - one more backend of an agent
 * @spec: its name, then parameters: "file", "file,engine=posix", "faulty,over=memory,seed=3" (docs/xfer.md lists them)
 *
 * A name that is not built in is that of a plugin (tenuto/plugin.h), which is opened. Any thread. Sections that are registered already are not registered with it.
 *
 * Return: 0; -EEXIST: the agent has one of that name; -ENOENT: no such name; -EINVAL: a parameter; -ENOSPC: TN_XFER_BACKENDS_MAX; -EPERM, -EPROTO, -ELIBACC: the
 * plugin is refused; what the backend says.
 */
TN_API int tn_xfer_backend_add(struct tn_xfer_agent *agent, const char *spec);

/**
 * struct tn_xfer_backend_info - a backend of an agent
 * @size:        set by the caller
 * @name:        of it
 * @segments:    bits 1 << enum tn_xfer_segment that it takes
 * @latency_ns:  expected time of a transfer of one byte
 * @bytes_per_s: expected rate of a large one
 */
struct tn_xfer_backend_info {
	size_t size;
	char name[TN_XFER_BACKEND_NAME_BYTES];
	uint32_t segments;
	uint64_t latency_ns;
	uint64_t bytes_per_s;
};

/** tn_xfer_backend_get - backend @index of an agent, in its order. Any thread. Return: 0, -EINVAL, -ENOENT past the last. */
TN_API int tn_xfer_backend_get(struct tn_xfer_agent *agent, uint32_t index, struct tn_xfer_backend_info *out);

/* ---- sections -------------------------------------------------------------------------------------------------------- */

/**
 * struct tn_xfer_section - bytes that transfers may name
 * @address: of the first byte; FILE, BLOCK and OBJECT: its offset
 * @bytes:   how many; FILE, BLOCK and OBJECT: 0 is all that there will be
 * @device:  VRAM: which device; FILE and BLOCK without @meta: the descriptor, which stays the caller's and open; else any number, by which descriptors name the section
 * @meta:    FILE and BLOCK: path, with an optional mode before it: "ro:PATH", "rw:PATH" (the default: made if missing), "rw,direct:PATH"; OBJECT: key; DRAM:
 *           "memfd": a shared mapping of a memfd with F_SEAL_SHRINK, which peers of the machine map (as they do memory of tn_memory_alloc without a word); NULL or "":
 *           none; VRAM: not used
 */
struct tn_xfer_section {
	uint64_t address;
	uint64_t bytes;
	uint64_t device;
	const char *meta;
};

/**
 * tn_xfer_register - sections, with every backend of the agent that takes them
 *
 * All or none. A section that is registered again is counted; sections may overlap. Any thread; opens files.
 *
 * Return: 0; -EINVAL (a segment, an empty section, an address that wraps around, "memfd" of memory that is none); -EPERM: a memfd that is not sealed; -ENOTSUP: no backend of the agent takes the segment; -ENOSPC
 * (TN_XFER_SECTIONS_MAX); what the backends say: -ENOENT, -EACCES, -EMFILE, ...
 */
TN_API int tn_xfer_register(struct tn_xfer_agent *agent, enum tn_xfer_segment segment, const struct tn_xfer_section *sections, uint32_t n);

/**
 * tn_xfer_deregister - takes sections back, as they were registered
 * @deadline_ns: until when to wait for peers to confirm that none of their requests uses them
 *
 * All or none. A section that was registered several times needs as many calls. Peers that are connected are told, and no new request of theirs uses the sections.
 *
 * Return: 0: no transfer can touch the bytes any more; -ENOENT: one is not registered; -EBUSY: a request of this agent uses one, as the detail says, or
 * a peer has not confirmed: then the section takes no new request, and the call is made again. However often it is made, it counts once.
 */
TN_API int tn_xfer_deregister(struct tn_xfer_agent *agent, enum tn_xfer_segment segment, const struct tn_xfer_section *sections, uint32_t n,
			      uint64_t deadline_ns);

/** struct tn_xfer_found - answer of tn_xfer_query; @exists: whether there is something; @bytes: how large it is */
struct tn_xfer_found {
	uint64_t bytes;
	uint32_t exists;
	uint32_t reserved;
};

/**
 * tn_xfer_query - whether files or objects exist, and how large they are
 * @sections: need not be registered; meta or, for files, device names them
 * @out:      @n answers
 *
 * Any thread; asks the file system. Return: 0; -ENOTSUP: no backend can say that of the segment; -EINVAL.
 */
TN_API int tn_xfer_query(struct tn_xfer_agent *agent, enum tn_xfer_segment segment, const struct tn_xfer_section *sections, uint32_t n,
			 struct tn_xfer_found *out);

/* ---- metadata and peers ---------------------------------------------------------------------------------------------- */

/**
 * tn_xfer_metadata - what another agent needs to know of this one
 * @segment:  of @sections
 * @sections: those that it may use, as they were registered; NULL: all
 * @n:        how many; 0 with @sections: only how to connect
 * @out:      gets the bytes, if @bytes are enough
 *
 * Any thread. Return: how many bytes it has (more than @bytes: nothing was written), -ENOENT (a section that is not registered), -ENOTSUP: no HMAC to sign it with.
 */
TN_API int64_t tn_xfer_metadata(struct tn_xfer_agent *agent, enum tn_xfer_segment segment, const struct tn_xfer_section *sections, uint32_t n, void *out,
				size_t bytes);

/**
 * tn_xfer_load - takes another agent's metadata
 * @name: gets the agent's name, TN_XFER_NAME_BYTES; NULL: not wanted
 *
 * Of the generation that is known: sections are added, and those that a whole, newer revision lacks are gone. Of a newer generation, or of another boot of the machine:
 * the old peer is gone, and its requests end with -ESTALE. Connects to nobody. Any thread.
 *
 * Return: 0; -EBADMSG: not metadata, cut, or changed on the way; -EPROTONOSUPPORT: of a newer version; -EACCES: this agent has a secret, which has not signed it;
 * -ESTALE: a newer generation is known; -EINVAL: this agent's own name; -ENOTSUP: no backend in common, or no HMAC; -ENOMEM.
 */
TN_API int tn_xfer_load(struct tn_xfer_agent *agent, const void *metadata, size_t bytes, char *name);

/**
 * tn_xfer_fetch - loads the metadata of the agent that listens at an address
 * @address: "unix:..." or "tcp:HOST:PORT"; both agents have the same secret
 * @name:    gets its name, TN_XFER_NAME_BYTES; NULL: not wanted
 *
 * Return: as tn_xfer_load; -ETIMEDOUT; -ECONNREFUSED; -EACCES: the secrets differ; -EINVAL: this agent has no secret.
 */
TN_API int tn_xfer_fetch(struct tn_xfer_agent *agent, const char *address, uint64_t deadline_ns, char *name);

/** tn_xfer_connect - connects to a loaded peer now, else its first transfer does. Return: 0; -ENOENT; -ETIMEDOUT; -ECONNREFUSED; -EACCES. */
TN_API int tn_xfer_connect(struct tn_xfer_agent *agent, const char *peer, uint64_t deadline_ns);

/**
 * tn_xfer_invalidate - forgets a peer
 *
 * Its requests end with -ESTALE, lists of it can only be destroyed, the connection closes. Return: 0; -ENOENT.
 */
TN_API int tn_xfer_invalidate(struct tn_xfer_agent *agent, const char *peer);

/**
 * tn_xfer_directory_set - where the agent publishes its metadata, and looks up that of others
 * @spec: the name of a plugin, then parameters: "etcd,endpoints=http://127.0.0.1:2379,ttl_s=10" (docs/xfer.md lists them)
 *
 * Asks no server. Any thread. Return: 0; -EEXIST: the agent has a directory; -EINVAL: a parameter; -ENOENT: no such plugin; -EPERM, -EPROTO, -ELIBACC: it is refused.
 */
TN_API int tn_xfer_directory_set(struct tn_xfer_agent *agent, const char *spec);

/**
 * tn_xfer_publish - puts the agent's metadata into its directory
 * @label:    names one of several entries of the agent, 1 to 127 bytes without a slash; NULL: "metadata"
 * @segment, @sections, @n: as of tn_xfer_metadata
 *
 * Replaces what was published under the label. Later registrations are not published by themselves. The entry is kept alive by a thread of the directory; it goes with
 * tn_xfer_unpublish, with tn_xfer_agent_destroy, and some seconds after the process has died. Any thread.
 *
 * Return: 0; -ENOENT: no directory, or a section that is not registered; -E2BIG: the directory takes less; -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT, -EIO: its server.
 */
TN_API int tn_xfer_publish(struct tn_xfer_agent *agent, const char *label, enum tn_xfer_segment segment, const struct tn_xfer_section *sections, uint32_t n,
			   uint64_t deadline_ns);

/** tn_xfer_unpublish - takes an entry of the agent back; peers keep what they have loaded. Any thread. Return: 0, also if there is none; else as tn_xfer_publish. */
TN_API int tn_xfer_unpublish(struct tn_xfer_agent *agent, const char *label, uint64_t deadline_ns);

/**
 * tn_xfer_lookup - loads the metadata that an agent has published
 * @peer:  its name
 * @label: as of tn_xfer_publish
 *
 * Any thread. Return: as tn_xfer_load; -ENOENT: no directory, or no entry: it was not published, or its agent is dead; -ECONNREFUSED, -EHOSTUNREACH, -ETIMEDOUT, -EIO.
 */
TN_API int tn_xfer_lookup(struct tn_xfer_agent *agent, const char *peer, const char *label, uint64_t deadline_ns);

/** What is known of a peer's process. */
enum tn_xfer_peer_state {
	TN_XFER_PEER_LOADED,	/**< its metadata is there */
	TN_XFER_PEER_CONNECTED, /**< its process answers */
	TN_XFER_PEER_LOST,	/**< the connection broke: it ended or died; a load of its metadata brings it back */
};

/**
 * struct tn_xfer_peer_info - a peer whose metadata was loaded
 * @size:       set by the caller
 * @state:      enum tn_xfer_peer_state
 * @generation: which of the agents of that name
 * @revision:   the newest that was loaded
 * @sections:   how many of it are known
 */
struct tn_xfer_peer_info {
	size_t size;
	uint32_t state;
	uint32_t sections;
	uint64_t generation;
	uint64_t revision;
};

/** tn_xfer_peer - what is known of a peer. Any thread. Return: 0; -ENOENT: not loaded; -EINVAL. */
TN_API int tn_xfer_peer(struct tn_xfer_agent *agent, const char *peer, struct tn_xfer_peer_info *out);

/** struct tn_xfer_peer_section - a section of a peer; @bytes: 0: all that there will be */
struct tn_xfer_peer_section {
	uint64_t address;
	uint64_t bytes;
	uint64_t device;
	uint32_t segment;
	uint32_t reserved;
};

/**
 * tn_xfer_peer_sections - what is known of a peer's sections, for tools
 * @first: so many are passed over
 * @out:   gets @n of them
 *
 * Sorted by segment, device and address. Any thread. Return: how many were written; -ENOENT: not loaded; -EINVAL.
 */
TN_API int tn_xfer_peer_sections(struct tn_xfer_agent *agent, const char *peer, uint32_t first, uint32_t n, struct tn_xfer_peer_section *out);

/* ---- descriptor lists ------------------------------------------------------------------------------------------------ */

/**
 * struct tn_xfer_run - @count descriptors of @bytes each, of which one begins @stride bytes behind the one before
 *
 * A flat descriptor is a run of one; its stride does not matter. All of a run lies in one section, which (segment, device, address) finds. Descriptors of 0 bytes
 * are legal and move nothing.
 */
struct tn_xfer_run {
	uint64_t address;
	uint64_t bytes;
	uint64_t device;
	uint64_t stride;
	uint64_t count;
};

/**
 * tn_xfer_list_create - descriptors that requests name by index
 * @peer: whose sections; NULL: this agent's own
 *
 * Descriptors have the indices 0, 1, ... through the runs in their order. Runs of one list may lie on several devices. Any thread.
 *
 * Return: 0 and *out; -EINVAL (a count of 0, a run that wraps around); -ENOENT: a run is in no section, or the peer is not loaded; -E2BIG: TN_XFER_DESCRIPTORS_MAX;
 * -ENOMEM.
 */
TN_API int tn_xfer_list_create(struct tn_xfer_agent *agent, const char *peer, enum tn_xfer_segment segment, const struct tn_xfer_run *runs, uint32_t n,
			       struct tn_xfer_list **out);

/** tn_xfer_list_count - how many descriptors a list has. Any thread. */
TN_API uint64_t tn_xfer_list_count(const struct tn_xfer_list *list);

/** tn_xfer_list_destroy - NULL is fine; requests that were made of it do not need it */
TN_API void tn_xfer_list_destroy(struct tn_xfer_list *list);

/**
 * tn_xfer_runs_pack - runs as bytes, for another process
 * @out: gets the bytes, if @bytes are enough
 *
 * Checksummed; neighbours that one run can say are one run. Any thread. Return: how many bytes there are (more than @bytes: nothing was written), -EINVAL.
 */
TN_API int64_t tn_xfer_runs_pack(enum tn_xfer_segment segment, const struct tn_xfer_run *runs, uint32_t n, void *out, size_t bytes);

/**
 * tn_xfer_runs_unpack - runs from bytes
 *
 * Each has a descriptor, and all together at most TN_XFER_DESCRIPTORS_MAX. Return: how many there are (more than @max: only @max were written); -EBADMSG; -EPROTONOSUPPORT.
 */
TN_API int64_t tn_xfer_runs_unpack(const void *packed, size_t bytes, enum tn_xfer_segment *segment, struct tn_xfer_run *runs, uint32_t max);

/**
 * tn_xfer_layout_map - descriptors that move blocks between pools of different layouts, page sizes and TP sizes
 * @mine:   a pool of this process; @local gets its runs
 * @theirs: a pool of another agent, as tn_pool_share_load has it; @remote gets its runs, as many, each with as many descriptors of as many bytes
 * @pages:  which pages of either pool have the same tokens
 * @max:    of either array; 0 to only count
 *
 * tn_pool_map says what can be mapped. The segment of a list is TN_XFER_DRAM for TN_MEMORY_HOST, TN_XFER_VRAM for TN_MEMORY_DEVICE; its sections have the share's
 * ranges, and its device: for TN_MEMORY_HOST, too. Any thread.
 *
 * Return: how many runs each list has (more than @max: nothing was written); 0: the ranks have no head in common; else as tn_pool_map; -E2BIG; -ENOMEM.
 */
TN_API int64_t tn_xfer_layout_map(const struct tn_pool_share *mine, const struct tn_pool_share *theirs, const struct tn_pool_pages *pages,
				  struct tn_xfer_run *local, struct tn_xfer_run *remote, uint32_t max);

/* ---- requests -------------------------------------------------------------------------------------------------------- */

/**
 * struct tn_xfer_request_opts - begin with tn_xfer_request_opts_init, then set what differs
 * @size:      sizeof(struct tn_xfer_request_opts), set by init
 * @backends:  names, the preferred one first; others are not used; NULL: every one of the agent, the one with the least estimated time first
 * @nbackends: how many
 * @notification_bytes: most bytes of a notification that it is posted with, 256 by default; at most TN_XFER_NOTIFICATION_MAX
 */
struct tn_xfer_request_opts {
	size_t size;
	const char *const *backends;
	uint32_t nbackends;
	uint32_t notification_bytes;
};

/** tn_xfer_request_opts_init_sized - tn_xfer_request_opts_init for a caller whose struct has @size bytes. Any thread. */
TN_API void tn_xfer_request_opts_init_sized(struct tn_xfer_request_opts *opts, size_t size);

/** tn_xfer_request_opts_init - defaults: any backend. Any thread. */
static inline void tn_xfer_request_opts_init(struct tn_xfer_request_opts *opts)
{
	tn_xfer_request_opts_init_sized(opts, sizeof(*opts));
}

/**
 * tn_xfer_request_create - a transfer that can be posted any number of times
 * @local:          of this agent (peer NULL)
 * @local_indices:  @n descriptors of it; NULL: all, in their order
 * @remote:         of a peer, or of this agent
 * @remote_indices: as many; each has as many bytes as its local one
 * @n:              how many; not used if both arrays are NULL
 * @opts:           NULL: defaults
 *
 * Descriptors that follow each other on both sides are moved as one; if that fails, each is tried again, alone. Connects to the peer, if the backend needs it; waits for that as long as connect_ns says. Any thread.
 *
 * Return: 0 and *out; -EINVAL (indices, lengths that differ, a list of another agent); -ENOTSUP: no backend can, and the detail says why for each; -ESTALE: a section or
 * peer of a list is gone; -ETIMEDOUT, -ECONNREFUSED, -EACCES: the peer; -ENOMEM.
 */
TN_API int tn_xfer_request_create(struct tn_xfer_agent *agent, enum tn_xfer_op op, struct tn_xfer_list *local, const uint32_t *local_indices,
				  struct tn_xfer_list *remote, const uint32_t *remote_indices, uint32_t n, const struct tn_xfer_request_opts *opts,
				  struct tn_xfer_request **out);

/**
 * tn_xfer_post - begins the transfer
 * @deadline_ns:        when it fails with -ETIMEDOUT
 * @notification:       what the remote agent is told after all bytes are there; copied
 * @notification_bytes: 0 to those of struct tn_xfer_request_opts, or TN_XFER_NO_NOTIFICATION
 *
 * Small transfers end within the call. Allocates nothing.
 *
 * Return: 0: it has begun, or ended, as tn_xfer_status says; -EBUSY: it is still going on; -ETIMEDOUT: the deadline was over already; -ESTALE: a section or the peer is
 * gone; -ECONNRESET: the peer is lost; -EINVAL. After an error nothing moves.
 */
TN_API int tn_xfer_post(struct tn_xfer_request *request, uint64_t deadline_ns, const void *notification, uint32_t notification_bytes);

enum tn_xfer_state {
	TN_XFER_IDLE,	/**< not posted yet */
	TN_XFER_ACTIVE, /**< bytes move */
	TN_XFER_ENDING, /**< it has failed, as status says, but bytes may still move */
	TN_XFER_ENDED,	/**< nothing of it moves */
};

/**
 * struct tn_xfer_status - how a request stands
 * @size:     set by the caller
 * @state:    enum tn_xfer_state
 * @status:   ENDING and ENDED: 0, or why it failed: -ECANCELED, -ETIMEDOUT, -ECONNRESET (the peer is lost), -ESTALE, -EIO and what else the backend says
 * @bytes:    that were moved, as far as is known
 * @post_ns:  how long the last post took
 * @time_ns:  from its begin to the end
 * @estimate_ns: what it was expected to take
 * @descriptors, @pieces: how many the request has, and how many of these after neighbours were merged
 * @backend:  name of the one that moves it
 */
struct tn_xfer_status {
	size_t size;
	uint32_t state;
	int32_t status;
	uint64_t bytes;
	uint64_t post_ns;
	uint64_t time_ns;
	uint64_t estimate_ns;
	uint64_t descriptors;
	uint64_t pieces;
	char backend[TN_XFER_BACKEND_NAME_BYTES];
};

/** tn_xfer_status - asks, waits for nothing; a deadline that is over ends the request. Return: 0, -EINVAL. */
TN_API int tn_xfer_status(struct tn_xfer_request *request, struct tn_xfer_status *out);

/**
 * tn_xfer_wait - sleeps until the request has ended, or has failed
 *
 * Return: 0: all bytes were moved; -EAGAIN: it still goes on at @deadline_ns; -EINVAL: it was not posted; else why it failed, and tn_error_last says what the backend
 * knows of it: of a store its answer, also that of the last try before a deadline. After a failure bytes may still move: tn_xfer_status says so, and tn_xfer_cancel waits until they do not.
 */
TN_API int tn_xfer_wait(struct tn_xfer_request *request, uint64_t deadline_ns);

/**
 * tn_xfer_cancel - ends a request early
 *
 * Return: 0: nothing of it moves any more, whether it was cancelled, had ended or was not posted; -EBUSY: at @deadline_ns bytes may still move.
 */
TN_API int tn_xfer_cancel(struct tn_xfer_request *request, uint64_t deadline_ns);

/** tn_xfer_release - the end of a request; NULL is fine. Return: 0; -EBUSY: bytes may still move: tn_xfer_cancel first. */
TN_API int tn_xfer_release(struct tn_xfer_request *request);

/** struct tn_xfer_result - one descriptor; @bytes: moved of it; @status: 0, -EINPROGRESS, or why not all of it was moved */
struct tn_xfer_result {
	uint64_t bytes;
	int32_t status;
	uint32_t reserved;
};

/**
 * tn_xfer_results - a status and byte count per descriptor
 * @first: index in the request, from 0
 * @out:   of @n descriptors
 *
 * Return: 0; -EINVAL: the request has not so many, or was not posted.
 */
TN_API int tn_xfer_results(struct tn_xfer_request *request, uint64_t first, uint32_t n, struct tn_xfer_result *out);

/** tn_xfer_explain - in words, why the request has its backend. Return: a text that lives as long as the request. */
TN_API const char *tn_xfer_explain(const struct tn_xfer_request *request);

/* ---- notifications and events ---------------------------------------------------------------------------------------- */

/**
 * tn_xfer_notify - tells a peer something
 * @peer: loaded, or this agent's own name
 *
 * What is told follows what was told before. Connects as tn_xfer_request_create does. Any thread.
 *
 * Return: 0: it is on its way; -EAGAIN: too much waits to be sent to the peer; -ENOENT; -ECONNRESET; -ETIMEDOUT, -ECONNREFUSED, -EACCES; -EINVAL (too long).
 */
TN_API int tn_xfer_notify(struct tn_xfer_agent *agent, const char *peer, const void *notification, uint32_t bytes);

/**
 * tn_xfer_take - takes the oldest notification
 * @sender: gets the name of the agent, TN_XFER_NAME_BYTES
 * @out:    gets the bytes, if @max are enough
 *
 * Any thread. Return: how many bytes it has (more than @max: it was not taken); -EAGAIN: there is none.
 */
TN_API int64_t tn_xfer_take(struct tn_xfer_agent *agent, char *sender, void *out, size_t max);

/**
 * tn_xfer_event_word - rises whenever a request ends or fails, a notification arrives, or a peer is lost
 *
 * Whoever wants to sleep reads it, looks at what interests him, and calls tn_xfer_event_wait with what he had read. Return: lives as long as the agent.
 */
TN_API const uint32_t *tn_xfer_event_word(struct tn_xfer_agent *agent);

/** tn_xfer_event_wait - sleeps while the event word is @seen. Return: 0; -ETIMEDOUT. */
TN_API int tn_xfer_event_wait(struct tn_xfer_agent *agent, uint32_t seen, uint64_t deadline_ns);

/** tn_xfer_eventfd - an eventfd that is readable after the event word rose; the agent's. Return: the descriptor, or -errno. */
TN_API int tn_xfer_eventfd(struct tn_xfer_agent *agent);

/* ---- statistics ------------------------------------------------------------------------------------------------------ */

/** tn_xfer_stat_name - statistics have names, as tn_stat_name's; docs/xfer.md lists them. Return: the name, or NULL past the last. */
TN_API const char *tn_xfer_stat_name(uint32_t index);

/** tn_xfer_stats - values[i] is what tn_xfer_stat_name(i) names. Any thread. Return: how many there are (more than @n: only @n were written), -EINVAL. */
TN_API int tn_xfer_stats(struct tn_xfer_agent *agent, uint64_t *values, uint32_t n);

/**
 * tn_xfer_fetch_stats - the statistics of the agent that listens at an address
 * @address: as tn_xfer_fetch has it; both agents have the same secret
 * @out:     gets lines "NAME VALUE" and a zero, cut where @bytes end
 *
 * Any thread. Return: bytes of the text without the zero; as tn_xfer_fetch: -ETIMEDOUT, -ECONNREFUSED, -EACCES, -EINVAL; -EPROTO: an older agent.
 */
TN_API int64_t tn_xfer_fetch_stats(struct tn_xfer_agent *agent, const char *address, uint64_t deadline_ns, char *out, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
