/* SPDX-License-Identifier: Apache-2.0 */
/* For those in the library who wait for an agent beside other things: a call when its event word rises. */
#ifndef TN_XFER_WAKE_H
#define TN_XFER_WAKE_H

struct tn_xfer_agent;

/* fn runs on the thread that raised the word, under locks of the agent's: it wakes somebody, and does no more. To be said before the first post. */
void tn_xfer_wake_by(struct tn_xfer_agent *a, void (*fn)(void *arg), void *arg);

#endif
