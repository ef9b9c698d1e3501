/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sections that other processes can map: memory of tn_memory_alloc, and memfds that the caller names so (meta "memfd").
 *
 * Who wants to map a peer's section opens a connection of its own, asks for the file, gets its descriptor by SCM_RIGHTS, and closes the connection. A file that can be
 * made shorter is refused on both sides: a byte behind its end would be a SIGBUS.
 */
#ifndef TN_XFER_SHARED_H
#define TN_XFER_SHARED_H

#include <sys/types.h>

#include "xfer/section.h"

struct tn_xfer_agent;
struct tn_xfer_conn;
struct tn_xfer_control;
struct tn_xfer_peer;
struct tn_xfer_pieces;

/* TN_XFER_SHARE: u64 id of a section. TN_XFER_SHARED: this, with the file's descriptor if rc is 0. */
struct tn_xfer_shared {
	int32_t rc;
	uint32_t zero;
	uint64_t offset;
};

/* Notes whether a new section of this process can be mapped by others. 0; -EINVAL, -EPERM: it is to be, but cannot. */
int tn_xfer_share_section(struct tn_xfer_sec *sec, const char *meta);
/* With the lock: the file of a section of this agent, which stays the agent's: 0, -ENOENT, -ENOTSUP. */
int tn_xfer_shared_file(const struct tn_xfer_agent *a, uint64_t id, int *fd, uint64_t *offset);
/* Maps bytes of a file that a peer has sent. 0; -EPERM: it can be made shorter; -ERANGE: it is too short; -errno of mmap. With detail. */
int tn_xfer_map_file(int fd, uint64_t offset, uint64_t bytes, struct tn_xfer_mapped *out);
/* The answer to a message TN_XFER_SHARE; the descriptor is the caller's. False: the socket does not take it at once. */
bool tn_xfer_send_shared(int sock, const struct tn_xfer_shared *answer, int fd);

/*
 * With the lock, which is given back meanwhile: maps the peer's sections that the pieces need and that can be mapped. What cannot be is left as it is. The caller has
 * references on the peer and on the sections.
 */
void tn_xfer_peer_map(struct tn_xfer_agent *a, struct tn_xfer_peer *p, const struct tn_xfer_pieces *pieces, uint64_t deadline_ns);

#endif
