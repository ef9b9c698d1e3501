/* SPDX-License-Identifier: Apache-2.0 */
/* See pins.h. */
#include "device/pins.h"

#include <assert.h>
#include <errno.h>

#include "base/error.h"

void tn_pins_init(struct tn_pins *pins)
{
	*pins = (struct tn_pins){0};
	pthread_mutex_init(&pins->lock, NULL);
	tn_list_init(&pins->pin);
}

void tn_pins_fini(struct tn_pins *pins)
{
	assert(tn_list_empty(&pins->pin));
	pthread_mutex_destroy(&pins->lock);
}

static int fail(const struct tn_device_driver *driver, const struct tn_pin *p, int rc)
{
	return tn_fail(rc, "driver %s does not pin %llu bytes of host memory (error %d): raise the limit of locked memory (ulimit -l), or lower host_bytes",
		       driver->ops->name, (unsigned long long)p->bytes, rc);
}

/* Unpins it for the drivers before `end`. */
static void unpin(struct tn_pins *pins, const struct tn_pin *p, uint32_t end)
{
	for (uint32_t i = 0; i < end; i++)
		if (pins->at[i].driver)
			pins->at[i].driver->ops->unpin(pins->at[i].driver, p->memory, p->bytes);
}

int tn_pins_add(struct tn_pins *pins, struct tn_pin *pin, void *memory, uint64_t bytes)
{
	int rc = 0;

	*pin = (struct tn_pin){.memory = memory, .bytes = bytes};
	pthread_mutex_lock(&pins->lock);
	for (uint32_t i = 0; i < TN_PINS_DRIVERS_MAX && rc == 0; i++) {
		const struct tn_device_driver *driver = pins->at[i].driver;

		rc = driver ? driver->ops->pin(driver, memory, bytes) : 0;
		if (rc) {
			unpin(pins, pin, i);
			fail(driver, pin, rc);
			pin->memory = NULL;
		}
	}
	if (rc == 0)
		tn_list_push(&pins->pin, &pin->link);
	pthread_mutex_unlock(&pins->lock);
	return rc;
}

void tn_pins_remove(struct tn_pins *pins, struct tn_pin *pin)
{
	if (!pin->memory)
		return;
	pthread_mutex_lock(&pins->lock);
	tn_list_del(&pin->link);
	unpin(pins, pin, TN_PINS_DRIVERS_MAX);
	pthread_mutex_unlock(&pins->lock);
	pin->memory = NULL;
}

/* Of all that was added, or that lies in the list before `end`. */
static void unpin_all(struct tn_pins *pins, const struct tn_device_driver *driver, const struct tn_list *end)
{
	for (const struct tn_list *pos = pins->pin.next; pos != end; pos = pos->next) {
		const struct tn_pin *p = tn_container_of(pos, struct tn_pin, link);

		driver->ops->unpin(driver, p->memory, p->bytes);
	}
}

static int pin_all(struct tn_pins *pins, const struct tn_device_driver *driver)
{
	for (const struct tn_list *pos = pins->pin.next; pos != &pins->pin; pos = pos->next) {
		const struct tn_pin *p = tn_container_of(pos, struct tn_pin, link);
		int rc = driver->ops->pin(driver, p->memory, p->bytes);

		if (rc == 0)
			continue;
		unpin_all(pins, driver, pos);
		return fail(driver, p, rc);
	}
	return 0;
}

int tn_pins_join(struct tn_pins *pins, const struct tn_device_driver *driver)
{
	uint32_t at = TN_PINS_DRIVERS_MAX;
	int rc = 0;

	pthread_mutex_lock(&pins->lock);
	for (uint32_t i = TN_PINS_DRIVERS_MAX; i > 0; i--)
		if (!pins->at[i - 1].driver)
			at = i - 1;
	for (uint32_t i = 0; i < TN_PINS_DRIVERS_MAX; i++)
		if (pins->at[i].driver == driver)
			at = i;
	if (at == TN_PINS_DRIVERS_MAX)
		rc = tn_fail(-ENOSPC, "driver %s: %u drivers have memories already, the most there can be", driver->ops->name, at);
	else if (!pins->at[at].driver)
		rc = pin_all(pins, driver);
	if (rc == 0) {
		pins->at[at].driver = driver;
		pins->at[at].users++;
	}
	pthread_mutex_unlock(&pins->lock);
	return rc;
}

void tn_pins_leave(struct tn_pins *pins, const struct tn_device_driver *driver)
{
	pthread_mutex_lock(&pins->lock);
	for (uint32_t i = 0; i < TN_PINS_DRIVERS_MAX; i++) {
		if (pins->at[i].driver != driver || --pins->at[i].users > 0)
			continue;
		unpin_all(pins, driver, &pins->pin);
		pins->at[i].driver = NULL;
	}
	pthread_mutex_unlock(&pins->lock);
}
