/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Everything an engine needs.
 *
 * A program compiled against these headers runs with later versions of the library. Structs that begin with `size` may have more
 * members there, behind those of today: what both know is used, members that a program does not have keep their defaults, and of
 * results a program gets as much as its struct holds. A program runs with an earlier version, too, as long as it leaves
 * zero what that one does not know; else it is told -EINVAL. All other structs, and enumerators, stay as they are.
 *
 * The init functions are inline, because they pass the size of the caller's struct: other languages call tn_..._init_sized.
 */
#ifndef TENUTO_TENUTO_H
#define TENUTO_TENUTO_H

#include <tenuto/blob.h>
#include <tenuto/blockset.h>
#include <tenuto/cache.h>
#include <tenuto/decision.h>
#include <tenuto/device.h>
#include <tenuto/device_memory.h>
#include <tenuto/error.h>
#include <tenuto/events.h>
#include <tenuto/heads.h>
#include <tenuto/hints.h>
#include <tenuto/latency.h>
#include <tenuto/layout.h>
#include <tenuto/match.h>
#include <tenuto/memory.h>
#include <tenuto/names.h>
#include <tenuto/prefix_tree.h>
#include <tenuto/publish.h>
#include <tenuto/remote.h>
#include <tenuto/sequence.h>
#include <tenuto/session.h>
#include <tenuto/slack.h>
#include <tenuto/status.h>
#include <tenuto/subscribe.h>
#include <tenuto/types.h>
#include <tenuto/xfer.h>

#endif
