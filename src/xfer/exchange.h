/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TN_XFER_EXCHANGE_H
#define TN_XFER_EXCHANGE_H

#include "xfer/agent.h"

/* What an agent does with messages of its peers; the argument is the agent. */
extern const struct tn_xfer_control_ops tn_xfer_agent_control_ops;

#endif
