/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pieces of a request: descriptors of two lists, matched by their order, neighbours merged, long ones cut.
 *
 * A piece knows how many bytes of the request are before it, a descriptor, too: so what happened to a descriptor is found from the pieces.
 */
#ifndef TN_XFER_PIECES_H
#define TN_XFER_PIECES_H

#include "xfer/list.h"

struct tn_xfer_match {
	const struct tn_xfer_list *local, *remote;
	const uint32_t *local_index, *remote_index; /* NULL: all in their order */
	uint64_t n;
};

#define TN_XFER_PIECE_SPLIT 2u /* of `shared` */

struct tn_xfer_pieces {
	struct tn_xfer_piece *piece; /* sections are struct tn_xfer_sec until the backend is known */
	uint32_t npieces;
	uint64_t *before; /* bytes before each descriptor, and all of them at the end: n + 1 */
	uint64_t n;
};

/* 0; -EINVAL: indices or lengths; -E2BIG; -ENOMEM. */
int tn_xfer_pieces_make(const struct tn_xfer_match *m, struct tn_xfer_pieces *out);
void tn_xfer_pieces_free(struct tn_xfer_pieces *p);
/*
 * After all have ended: of pieces that have failed, and whose failure may be that of a neighbour, the descriptors that were not moved, each a piece of its own.
 * out: none if there is no such piece. The pieces that these stand for are marked TN_XFER_PIECE_SPLIT. 0; -ENOMEM.
 */
int tn_xfer_pieces_split(struct tn_xfer_pieces *p, struct tn_xfer_pieces *out);
/* What happened to a descriptor; pieces that have not ended: -EINPROGRESS. alone: what split has made. */
void tn_xfer_pieces_result(const struct tn_xfer_pieces *p, const struct tn_xfer_pieces *alone, uint64_t descriptor, struct tn_xfer_result *out);
/* Moved bytes of all, and why the first failed that did; split ones have not. */
int tn_xfer_pieces_sum(const struct tn_xfer_pieces *p, uint64_t *bytes);
/* The first descriptor that has failed with that status; UINT64_MAX: none has. At any time. */
uint64_t tn_xfer_pieces_failed(const struct tn_xfer_pieces *p, const struct tn_xfer_pieces *alone, int status);

#endif
