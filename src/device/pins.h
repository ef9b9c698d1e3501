/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host memory of a cache's that drivers of devices copy from and to, and whose words their streams wait for and raise. Each driver that has joined has all of
 * it pinned, also what is added later. Any thread; the lock is held while a driver pins.
 */
#ifndef TN_DEVICE_PINS_H
#define TN_DEVICE_PINS_H

#include <pthread.h>
#include <tenuto/device_memory.h>

#include "base/list.h"

#define TN_PINS_DRIVERS_MAX 8u

/* Memory that was added; the holder's, until it is removed. */
struct tn_pin {
	struct tn_list link;
	void *memory; /* whole pages */
	uint64_t bytes;
};

struct tn_pins {
	pthread_mutex_t lock;
	struct tn_list pin;
	struct {
		const struct tn_device_driver *driver; /* NULL: none */
		uint32_t users;
	} at[TN_PINS_DRIVERS_MAX];
};

void tn_pins_init(struct tn_pins *pins);
/* Nothing is added, and no driver has joined. */
void tn_pins_fini(struct tn_pins *pins);
/* Whole pages, for as long as they are not removed. 0, or the error of a driver that does not pin them: then they are not added. */
int tn_pins_add(struct tn_pins *pins, struct tn_pin *pin, void *memory, uint64_t bytes);
/* No copy names it any more. Nothing happens if it was not added. */
void tn_pins_remove(struct tn_pins *pins, struct tn_pin *pin);
/* Once for each leave. 0; -ENOSPC: TN_PINS_DRIVERS_MAX have joined; or the driver's error: then nothing is pinned. */
int tn_pins_join(struct tn_pins *pins, const struct tn_device_driver *driver);
void tn_pins_leave(struct tn_pins *pins, const struct tn_device_driver *driver);

#endif
