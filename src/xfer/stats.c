/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of an agent, by name. */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "xfer/agent.h"

static const char *const names[TN_XFER_STATS] = {
	[TN_XFER_STAT_TX_BYTES] = "tx_bytes",
	[TN_XFER_STAT_RX_BYTES] = "rx_bytes",
	[TN_XFER_STAT_TX_REQUESTS] = "tx_requests",
	[TN_XFER_STAT_RX_REQUESTS] = "rx_requests",
	[TN_XFER_STAT_POST_NS] = "post_ns",
	[TN_XFER_STAT_TIME_NS] = "transfer_ns",
	[TN_XFER_STAT_FAILED] = "failed_requests",
	[TN_XFER_STAT_CANCELLED] = "cancelled_requests",
	[TN_XFER_STAT_TIMED_OUT] = "timed_out_requests",
	[TN_XFER_STAT_DISCONNECTED] = "disconnected_requests",
	[TN_XFER_STAT_STALE] = "stale_requests",
	[TN_XFER_STAT_BACKEND_FAILED] = "backend_failed_requests",
	[TN_XFER_STAT_NOTIFIED] = "sent_notifications",
	[TN_XFER_STAT_NOTIFICATIONS] = "received_notifications",
	[TN_XFER_STAT_REGISTERED_BYTES] = "registered_bytes",
	[TN_XFER_STAT_SECTIONS] = "registered_sections",
	[TN_XFER_STAT_PEERS] = "loaded_peers",
	[TN_XFER_STAT_PEERS_LOST] = "lost_peers",
};

const char *tn_xfer_stat_name(uint32_t index)
{
	return index < TN_XFER_STATS ? names[index] : NULL;
}

int tn_xfer_stats(struct tn_xfer_agent *agent, uint64_t *values, uint32_t n)
{
	if (!agent || (n && !values))
		return tn_fail(-EINVAL, "agent %p, values %p: both are wanted", (void *)agent, (void *)values);
	pthread_mutex_lock(&agent->lock);
	memcpy(values, agent->stat, (n < TN_XFER_STATS ? n : TN_XFER_STATS) * sizeof(*values));
	pthread_mutex_unlock(&agent->lock);
	return TN_XFER_STATS;
}
