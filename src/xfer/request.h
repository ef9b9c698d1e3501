/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests: what the agent does to all of them. All of these with the agent's lock.
 *
 *   state   | post | verdict (cancel, deadline, peer)         | the backend has ended
 *   --------+------+------------------------------------------+---------------------------------------------------------
 *   IDLE    | ACTIVE |                                        |
 *   ACTIVE  | -EBUSY | ENDING, or ENDED if only the notification waits | ENDED; ACTIVE as long as its notification finds no place
 *   ENDING  | -EBUSY | no change                              | ENDED
 *   ENDED   | ACTIVE |                                        |
 */
#ifndef TN_XFER_REQUEST_H
#define TN_XFER_REQUEST_H

#include "xfer/agent.h"

/* Fails all requests to a peer that is lost or gone. */
void tn_xfer_requests_fail(struct tn_xfer_agent *a, const struct tn_xfer_peer *p, int code);
/* Fails what is overdue, tries to send notifications and confirmations that wait; when to be called next. */
uint64_t tn_xfer_requests_overdue(struct tn_xfer_agent *a, uint64_t now_ns);
/* Confirms a peer's revocation, if no request that is under way uses what was revoked. */
void tn_xfer_requests_confirm(struct tn_xfer_agent *a, struct tn_xfer_peer *p);

#endif
