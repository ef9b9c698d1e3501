/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words that a device's streams wait for and raise: those of layers of staged loads, and events of saves (tn_load_event, tn_event_address). The
 * driver has them pinned while there is a pool that it copies for. Under cache->lock.
 */
#ifndef TN_FRONT_STAGE_WORDS_H
#define TN_FRONT_STAGE_WORDS_H

#include <tenuto/device_memory.h>

#include "region/region.h"

#define TN_STAGE_DRIVERS_MAX 8u

struct tn_stage_words {
	const struct tn_region *layers, *events; /* that have the words */
	struct tn_stage_user {
		const struct tn_device_driver *driver;
		uint32_t pools; /* 0: not in use */
	} user[TN_STAGE_DRIVERS_MAX];
};

/* For one more pool of the driver's. 0; -ENOSPC: of too many drivers; the driver's error. A driver whose streams know no words pins none. */
int tn_stage_words_pin(struct tn_stage_words *words, const struct tn_device_driver *driver);
/* For one pool less; or for all, of all drivers. */
void tn_stage_words_unpin(struct tn_stage_words *words, const struct tn_device_driver *driver);
void tn_stage_words_unpin_all(struct tn_stage_words *words);

#endif
