/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The transport of a lane (lane.h) that moves pieces of device memory the direct way (device/direct.h), and gives all others to the transport
 * below it.
 */
#ifndef TN_RING_DIRECT_H
#define TN_RING_DIRECT_H

#include "ring/lane.h"

/* What its make is given in the place of places. */
struct tn_direct_places {
	const struct tn_lane_transport_ops *below;
	const void *places; /* of the transport below */
};

extern const struct tn_lane_transport_ops tn_direct_transport_ops;

#endif
