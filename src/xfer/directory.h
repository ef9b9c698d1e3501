/* SPDX-License-Identifier: Apache-2.0 */
/* The directory in which an agent's metadata is published, by a plugin (tenuto/xfer_directory.h). */
#ifndef TN_XFER_DIRECTORY_H
#define TN_XFER_DIRECTORY_H

struct tn_xfer_agent;

/* Of an agent that ends: its entries go. */
void tn_xfer_directory_close(struct tn_xfer_agent *a);

#endif
