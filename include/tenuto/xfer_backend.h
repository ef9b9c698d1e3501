/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a backend of the transfer agent (tenuto/xfer.h) does: a const table of functions.
 *
 * The agent checks names, ranges, generations and deadlines; a backend only moves pieces. It calls back one function, ended of struct tn_xfer_job.
 *
 * Threads: any, at the same time, but for the calls about one job, which come one at a time; cancel alone may come while post runs, and while ended is called.
 * The agent holds locks during cancel, so cancel waits for nothing and does not call ended. A backend holds no lock while it calls ended. Errors are -errno.
 *
 * A backend is part of the library, or a plugin of kind TN_PLUGIN_XFER (tenuto/plugin.h) whose name is the backend's. A plugin does not link the library:
 * it says why a call failed by error.
 */
#ifndef TENUTO_XFER_BACKEND_H
#define TENUTO_XFER_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tenuto/xfer.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TN_XFER_BACKEND_ABI 1u

/** The backend reaches bytes of a peer by @mapped of struct tn_xfer_piece. */
#define TN_XFER_USES_MAPPED 1u
/** Objects are written whole: what has failed of a write is not tried again alone, which would replace the object by a part of it. */
#define TN_XFER_WHOLE 2u
/** Most bytes of a piece. */
#define TN_XFER_PIECE_MAX (UINT32_C(4) << 20)
/** Most bytes by which a backend names itself to another agent's backend of its name. */
#define TN_XFER_IDENTITY_MAX 4096u
/** Most bytes that a backend says of a section to another agent's backend of its name. */
#define TN_XFER_SECTION_KEY_MAX 1024u

/** struct tn_xfer_param - "key=value" of a spec */
struct tn_xfer_param {
	const char *key;
	const char *value;
};

/**
 * struct tn_xfer_section_key - what a peer's backend has said of a section (section_key), such as a key to its memory
 * @section: number of the section at that peer, never used again there
 * @bytes:   of @data, 1 to TN_XFER_SECTION_KEY_MAX; from outside: check them
 */
struct tn_xfer_section_key {
	uint64_t section;
	uint32_t bytes;
	const unsigned char *data;
};

/**
 * struct tn_xfer_piece - bytes that follow each other on both sides
 * @local, @remote: addresses or offsets, as their segments have them
 * @bytes:          1 to TN_XFER_PIECE_MAX
 * @first:          bytes of the request before it
 * @local_section:  of section_add
 * @remote_section: of section_add; for a peer's: struct tn_xfer_section_key, which lives as long as the job, or NULL: the peer's backend has said nothing
 * @moved:          the backend's: bytes from the beginning on that were moved
 * @status:         the backend's: 0, or why @moved stays below @bytes; -EINPROGRESS until then
 * @shared:         the backend's: 1: it has moved several pieces as one, so that @status may be a neighbour's. The agent then tries the piece again, alone
 * @mapped:         where this process reaches the bytes that are at @remote in a peer, because the agent has mapped the peer's memfd; NULL: it has not
 */
struct tn_xfer_piece {
	uint64_t local;
	uint64_t remote;
	uint64_t bytes;
	uint64_t first;
	void *local_section;
	void *remote_section;
	uint64_t moved;
	int32_t status;
	uint32_t shared;
	unsigned char *mapped;
};

/**
 * struct tn_xfer_job - a request, as its backend sees it
 * @op:      enum tn_xfer_op
 * @local_segment, @remote_segment: enum tn_xfer_segment
 * @peer:    of peer_add; NULL: both sides are this agent's
 * @piece:   in the order of the request
 * @npieces: how many; 0 is legal
 * @alone:   1: each piece is moved by itself: they have failed together with others before
 * @bytes:   of all of them
 * @stop:    becomes 1 (atomic) when the request is to end early, before cancel is called
 * @ended:   the backend calls it once per post, from any thread, after its last access to the job and to the bytes. Another job may be prepared and posted from within
 * @work:    the backend's, made by prepare
 * @next:    the backend's, for a queue
 * @word:    the backend's; zeros at each post
 * @cut:     the backend's; 0 at each post. 1: it has given up its connection to the peer to end the job, so the agent gives up its own
 */
struct tn_xfer_job {
	uint32_t op;
	uint32_t local_segment;
	uint32_t remote_segment;
	uint32_t stop;
	void *peer;
	struct tn_xfer_piece *piece;
	uint32_t npieces;
	uint32_t alone;
	uint64_t bytes;
	void (*ended)(struct tn_xfer_job *job);
	void *work;
	struct tn_xfer_job *next;
	uint64_t word[4];
	uint64_t cut;
};

/** tn_xfer_piece_end - says how a piece ended; others may read it at any time */
static inline void tn_xfer_piece_end(struct tn_xfer_piece *piece, uint64_t moved, int32_t status)
{
	__atomic_store_n(&piece->moved, moved, __ATOMIC_RELAXED);
	__atomic_store_n(&piece->status, status, __ATOMIC_RELEASE);
}

/** tn_xfer_job_stopped - whether the job is to end early */
static inline bool tn_xfer_job_stopped(const struct tn_xfer_job *job)
{
	return __atomic_load_n(&job->stop, __ATOMIC_ACQUIRE) != 0;
}

/** struct tn_xfer_cost - what a transfer is expected to take: @latency_ns + bytes / @bytes_per_s */
struct tn_xfer_cost {
	uint64_t latency_ns;
	uint64_t bytes_per_s;
};

/**
 * struct tn_xfer_backend_ops - a backend
 * @size:     sizeof(struct tn_xfer_backend_ops)
 * @abi:      TN_XFER_BACKEND_ABI
 * @name:     by which specs and metadata name it
 * @segments: bits 1 << enum tn_xfer_segment that section_add takes
 *
 * @create:  0 and *out, or -errno; -EINVAL: a parameter that it does not know
 * @destroy: no job is under way, no section and no peer is left
 * @section_add:    may open files. 0 and *handle
 * @section_remove: no job uses it
 * @section_key:    what peers need to reach the section: how many bytes of @out; 0: nothing
 * @query:          whether a file or object is there
 * @identity:       what a peer's backend of this name needs (endpoint, process): how many bytes of @out
 * @peer_add:       0 and *peer; 1 and *peer: only what is mapped can be reached, the detail says why; or why the peer cannot be reached: -EHOSTUNREACH, -EPERM.
 *                  Called with the connection to the peer open. With TN_XFER_USES_MAPPED it also takes an identity of 0 bytes, of a peer whose identity nothing
 *                  proves: 1, and *peer that is not NULL
 * @peer_remove:    no job uses it
 * @can:            0, or why not: -ENOTSUP. @peer: whether the remote side is another agent's
 * @cost:           as far as is known
 * @prepare:        memory and whatever else post needs; @forget gives it back
 * @post:           begins; no failure: what fails is told by the pieces
 * @cancel:         asks for the early end of a job after @stop was set; ended is called in any case
 * @error:          why the last call of this thread that failed has failed, in words; plugins have it, in the library tn_error_last knows
 * @process:        the process that an identity names; 0: none. Metadata is bytes that anybody may have sent: the agent calls peer_add only if the kernel says that
 *                  this process is at the other end of the connection (Unix sockets), or if the shared secret has signed the metadata (TCP)
 * @why:            what is known of why a job fails or has failed, in words: how many bytes of @out with the zero; 0: nothing. From post until forget, at the same
 *                  time as other calls about the job. The agent holds locks, so it waits for nothing
 * @flags:          TN_XFER_USES_MAPPED: the agent maps a peer's memory where it can be mapped; TN_XFER_WHOLE
 *
 * Those that a backend lacks are NULL: process, section_add (nothing to do; handles are NULL), section_remove, section_key, query, identity and the peers (own agent
 * only), prepare, forget, cancel (it looks at @stop), error, why.
 */
struct tn_xfer_backend_ops {
	size_t size;
	uint32_t abi;
	uint32_t segments;
	const char *name;
	int (*create)(const struct tn_xfer_param *params, uint32_t n, void **out);
	void (*destroy)(void *backend);
	int (*section_add)(void *backend, enum tn_xfer_segment segment, const struct tn_xfer_section *section, void **handle);
	void (*section_remove)(void *backend, void *handle);
	size_t (*section_key)(void *backend, void *handle, unsigned char out[TN_XFER_SECTION_KEY_MAX]);
	int (*query)(void *backend, enum tn_xfer_segment segment, const struct tn_xfer_section *section, struct tn_xfer_found *out);
	size_t (*identity)(void *backend, unsigned char out[TN_XFER_IDENTITY_MAX]);
	int (*peer_add)(void *backend, const unsigned char *identity, size_t bytes, void **peer);
	void (*peer_remove)(void *backend, void *peer);
	int (*can)(void *backend, enum tn_xfer_op op, enum tn_xfer_segment local, enum tn_xfer_segment remote, bool peer);
	void (*cost)(void *backend, bool peer, struct tn_xfer_cost *out);
	int (*prepare)(void *backend, struct tn_xfer_job *job);
	void (*forget)(void *backend, struct tn_xfer_job *job);
	void (*post)(void *backend, struct tn_xfer_job *job);
	void (*cancel)(void *backend, struct tn_xfer_job *job);
	const char *(*error)(void);
	uint32_t (*process)(void *backend, const unsigned char *identity, size_t bytes);
	uint32_t flags;
	size_t (*why)(void *backend, const struct tn_xfer_job *job, char *out, size_t bytes);
};

#ifdef __cplusplus
}
#endif
#endif
