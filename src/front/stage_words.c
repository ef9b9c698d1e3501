/* SPDX-License-Identifier: Apache-2.0 */
/* See stage_words.h. */
#include "front/stage_words.h"

#include <errno.h>

#include "base/error.h"

static bool knows_words(const struct tn_device_driver *driver)
{
	return driver->ops->word_wait || driver->ops->word_write;
}

static int pin(const struct tn_stage_words *w, const struct tn_device_driver *driver)
{
	struct tn_region_pages layers = tn_region_pages(w->layers, TN_REGION_READY), events = tn_region_pages(w->events, TN_REGION_EVENTS);
	int rc = driver->ops->pin(driver, layers.first, layers.bytes);

	if (rc)
		return rc;
	rc = driver->ops->pin(driver, events.first, events.bytes);
	if (rc)
		driver->ops->unpin(driver, layers.first, layers.bytes);
	return rc;
}

static void unpin(const struct tn_stage_words *w, const struct tn_device_driver *driver)
{
	struct tn_region_pages layers = tn_region_pages(w->layers, TN_REGION_READY), events = tn_region_pages(w->events, TN_REGION_EVENTS);

	driver->ops->unpin(driver, layers.first, layers.bytes);
	driver->ops->unpin(driver, events.first, events.bytes);
}

/* The driver's, or one that is not in use; NULL: none. */
static struct tn_stage_user *user_of(struct tn_stage_words *w, const struct tn_device_driver *driver)
{
	struct tn_stage_user *unused = NULL;

	for (uint32_t i = 0; i < TN_STAGE_DRIVERS_MAX; i++) {
		if (w->user[i].pools > 0 && w->user[i].driver == driver)
			return &w->user[i];
		if (w->user[i].pools == 0)
			unused = &w->user[i];
	}
	return unused;
}

int tn_stage_words_pin(struct tn_stage_words *w, const struct tn_device_driver *driver)
{
	struct tn_stage_user *u = user_of(w, driver);
	int rc = 0;

	if (!knows_words(driver))
		return 0;
	if (!u)
		return tn_fail(-ENOSPC, "tn_pool_create: there are pools of %u drivers, the most there can be; destroy those of one", TN_STAGE_DRIVERS_MAX);
	if (u->pools == 0)
		rc = pin(w, driver);
	if (rc)
		return tn_fail(rc, "tn_pool_create: driver %s does not pin the words that its streams wait for (error %d)", driver->ops->name, rc);
	u->driver = driver;
	u->pools++;
	return 0;
}

void tn_stage_words_unpin(struct tn_stage_words *w, const struct tn_device_driver *driver)
{
	struct tn_stage_user *u = user_of(w, driver);

	if (!knows_words(driver))
		return;
	u->pools--;
	if (u->pools == 0)
		unpin(w, driver);
}

void tn_stage_words_unpin_all(struct tn_stage_words *w)
{
	for (uint32_t i = 0; i < TN_STAGE_DRIVERS_MAX; i++) {
		if (w->user[i].pools > 0)
			unpin(w, w->user[i].driver);
		w->user[i].pools = 0;
	}
}
