/* SPDX-License-Identifier: Apache-2.0 */
/* See direct.h. */
#include "device/direct.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"

#define PLUGIN "gds"
#define START_NS 10000000000u /* the library starts in a second or two; without its kernel driver it was seen to take minutes */
#define DETAIL_BYTES 256u

struct file {
	int fd; /* -1: there is none */
	bool serves; /* shared: handle is registered, and nothing was refused */
	struct tn_device_file *handle;
};

/* A device, by number of its copier. */
struct gpu {
	uint32_t device; /* the driver's number of it */
	bool serves;	 /* shared: queue is there, and nothing was refused */
	struct tn_device_file_queue *queue;
};

struct tn_direct {
	enum tn_direct_mode mode;
	uint32_t streams;
	const struct tn_alloc *alloc;
	const struct tn_log *log;
	const struct tn_clock *clock;
	pthread_mutex_t opening; /* of what follows */
	bool waited; /* for the library to start */
	bool said;   /* the log has why nothing goes the direct way */
	bool open;   /* the files are registered */
	const struct tn_device_file_ops *ops;
	struct gpu gpu[TN_COPIERS_MAX];
	struct file file[TN_DIRECT_FILES_MAX];
	pthread_mutex_t lock; /* of lines */
	struct tn_log_limit lines;
};

int tn_direct_mode_of(const char *transfer, enum tn_direct_mode *out)
{
	static const char *const names[] = {[TN_DIRECT_NEVER] = "bounce", [TN_DIRECT_AUTO] = "auto", [TN_DIRECT_ALWAYS] = "direct"};

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(transfer, names[i]) == 0) {
			*out = (enum tn_direct_mode)i;
			return 0;
		}
	return tn_fail(-EINVAL, "transfer \"%.64s\": must be \"auto\", \"direct\" or \"bounce\"", transfer);
}

int tn_direct_create(enum tn_direct_mode mode, uint32_t streams, const struct tn_alloc *alloc, const struct tn_log *log, const struct tn_clock *clock,
		     struct tn_direct **out)
{
	struct tn_direct *d = tn_get(alloc, sizeof(*d));

	if (!d)
		return tn_fail(-ENOMEM, "no memory for the direct way to memory of devices");
	*d = (struct tn_direct){.mode = mode, .streams = streams ? streams : TN_DIRECT_STREAMS, .alloc = alloc, .log = log, .clock = clock};
	for (uint32_t i = 0; i < TN_DIRECT_FILES_MAX; i++)
		d->file[i].fd = -1;
	pthread_mutex_init(&d->opening, NULL);
	pthread_mutex_init(&d->lock, NULL);
	*out = d;
	return 0;
}

static void remove_files(struct tn_direct *d)
{
	for (uint32_t i = 0; i < TN_DIRECT_FILES_MAX; i++) {
		if (d->file[i].handle)
			d->ops->remove(d->file[i].handle);
		d->file[i].handle = NULL;
	}
}

void tn_direct_destroy(struct tn_direct *d)
{
	if (!d)
		return;
	for (uint32_t i = 0; i < TN_COPIERS_MAX; i++)
		if (d->gpu[i].queue)
			d->ops->queue_destroy(d->gpu[i].queue);
	remove_files(d);
	pthread_mutex_destroy(&d->lock);
	pthread_mutex_destroy(&d->opening);
	tn_put(d->alloc, d, sizeof(*d));
}

void tn_direct_file(struct tn_direct *d, uint32_t i, int fd)
{
	d->file[i].fd = fd;
}

/* ---- opening --------------------------------------------------------------------------------------------- */

/* 0; 1: the plugin copies by way of host memory itself; or why it does not start. */
static int start(struct tn_direct *d, char *detail)
{
	struct tn_device_file_properties p;
	uint64_t now = tn_now_ns(d->clock);
	int rc = tn_device_file_open(PLUGIN, &d->ops);

	if (rc)
		return rc;
	rc = d->ops->start(now + (d->waited ? 0 : START_NS), detail, DETAIL_BYTES);
	d->waited = true;
	rc = rc ? rc : d->ops->describe(&p, detail, DETAIL_BYTES);
	if (rc)
		return tn_fail(rc, "plugin " PLUGIN " does not start: %s", detail);
	return p.way == TN_DEVICE_FILE_HOST;
}

static int add_files(struct tn_direct *d, char *detail)
{
	bool any = false;
	int rc = 0;

	for (uint32_t i = 0; i < TN_DIRECT_FILES_MAX && !rc; i++)
		if (d->file[i].fd >= 0) {
			rc = d->ops->add(d->file[i].fd, &d->file[i].handle, detail, DETAIL_BYTES);
			any = true;
		}
	if (!any)
		return tn_fail(-ENOTSUP, "no store is a file with O_DIRECT: put the directories on a file system that has it, or set transfer to \"bounce\"");
	if (rc) {
		remove_files(d);
		return tn_fail(rc, "plugin " PLUGIN " does not serve the stores: %s", detail);
	}
	for (uint32_t i = 0; i < TN_DIRECT_FILES_MAX; i++)
		__atomic_store_n(&d->file[i].serves, d->file[i].handle != NULL, __ATOMIC_RELEASE); /* behind handle */
	d->open = true;
	return 0;
}

static bool can_sum(const struct tn_device_driver *driver, uint32_t device)
{
	struct tn_device_properties p;

	return driver->ops->sum && driver->ops->properties(driver, device, &p) == 0 && p.sums;
}

static int add_queue(struct tn_direct *d, struct gpu *g, char *detail)
{
	int rc = g->queue ? 0 : d->ops->queue_create(TN_DEVICE_FILE_SYNC, d->streams, &g->queue, detail, DETAIL_BYTES);

	return rc ? tn_fail(rc, "plugin " PLUGIN " does not serve one device more: %s", detail) : 0;
}

static int open_files(struct tn_direct *d, char *detail)
{
	int rc;

	if (d->open)
		return 0;
	rc = start(d, detail);
	if (rc == 1 && d->mode == TN_DIRECT_AUTO)
		return tn_fail(-ENOTSUP, "plugin " PLUGIN " copies by way of host memory itself (compatibility mode)");
	return rc < 0 ? rc : add_files(d, detail);
}

/* Under its lock. */
static int open_for(struct tn_direct *d, const struct tn_device_driver *driver, uint32_t device, struct gpu *g)
{
	char detail[DETAIL_BYTES] = "";
	int rc;

	if (!can_sum(driver, device))
		return tn_fail(-ENOTSUP, "driver %s does not sum objects on device %u: set transfer to \"bounce\"", driver->ops->name, device);
	rc = open_files(d, detail);
	return rc ? rc : add_queue(d, g, detail);
}

int tn_direct_open(struct tn_direct *d, const struct tn_device_driver *driver, uint32_t device, uint32_t number)
{
	struct gpu *g;
	int rc;

	if (!d)
		return 0;
	pthread_mutex_lock(&d->opening);
	g = &d->gpu[number];
	g->device = device;
	rc = open_for(d, driver, device, g);
	__atomic_store_n(&g->serves, rc == 0, __ATOMIC_RELEASE); /* behind queue */
	if (rc && d->mode == TN_DIRECT_AUTO) {
		if (!d->said)
			tn_log(d->log, TN_LOG_INFO, "memory of devices is loaded and saved by way of host memory: %s", tn_error_last()->text);
		d->said = true;
		rc = 0;
	}
	pthread_mutex_unlock(&d->opening);
	return rc;
}

bool tn_direct_has(const struct tn_direct *d, uint32_t number, uint32_t i)
{
	return d && __atomic_load_n(&d->gpu[number].serves, __ATOMIC_ACQUIRE) && __atomic_load_n(&d->file[i].serves, __ATOMIC_ACQUIRE);
}

uint32_t tn_direct_streams(const struct tn_direct *d)
{
	return d->streams;
}

/* ---- transfers -------------------------------------------------------------------------------------------- */

void tn_direct_submit(struct tn_direct *d, uint32_t number, uint32_t i, struct tn_device_file_transfer *transfer)
{
	transfer->file = d->file[i].handle;
	d->ops->submit(d->gpu[number].queue, transfer);
}

/* Who has no direct way after this error; NULL: it may pass. */
static bool *refused_by(struct tn_direct *d, uint32_t number, uint32_t i, int status)
{
	switch (status) {
	case -ENOTSUP:
		return &d->file[i].serves;
	case -ENODEV: /* the device, */
	case -EFAULT: /* an address of it, */
	case -EINVAL: /* or its context */
		return &d->gpu[number].serves;
	default:
		return NULL;
	}
}

void tn_direct_failed(struct tn_direct *d, uint32_t number, uint32_t i, const struct tn_device_file_transfer *t)
{
	bool *serves = refused_by(d, number, i, t->status);
	bool refused = serves && __atomic_exchange_n(serves, false, __ATOMIC_RELAXED);
	bool may;

	pthread_mutex_lock(&d->lock);
	may = tn_log_may(&d->lines, d->log, tn_now_ns(d->clock));
	pthread_mutex_unlock(&d->lock);
	if (refused && serves == &d->gpu[number].serves)
		tn_log(d->log, TN_LOG_WARN, "device %u: %s; from now on bytes of memory of the driver's device %u go by way of host memory, until more of it "
		       "is registered", i, t->detail, d->gpu[number].device);
	else if (may || refused)
		tn_log(d->log, TN_LOG_WARN, "device %u: %s; %s by way of host memory", i, t->detail,
		       refused ? "from now on its bytes go" : "what this was part of is moved again,");
}
