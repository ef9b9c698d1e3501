/* SPDX-License-Identifier: Apache-2.0 */
/* Everything an engine needs. */
#ifndef TENUTO_TENUTO_H
#define TENUTO_TENUTO_H

#include <tenuto/cache.h>
#include <tenuto/decision.h>
#include <tenuto/device.h>
#include <tenuto/error.h>
#include <tenuto/events.h>
#include <tenuto/layout.h>
#include <tenuto/slack.h>
#include <tenuto/types.h>

#endif
