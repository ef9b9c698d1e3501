/* SPDX-License-Identifier: Apache-2.0 */
/* See on_device.h. */
#include "heap/on_device.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/error.h"
#include "device/device.h"

#define BUFFER_BYTES (1u << 20)
#define COPY_NS 30000000000u /* a device that takes longer for a buffer is lost */

/* ---- beginning and end ------------------------------------------------------------------------------------------ */

static int check_driver(struct tn_heap_on_device *d)
{
	const struct tn_device_driver_ops *ops = d->driver->ops;
	struct tn_device_properties p = {0};
	int rc = tn_device_check(d->driver);

	if (rc == 0)
		rc = ops->properties(d->driver, d->device, &p);
	if (rc)
		return tn_fail(rc, "device %u of the heap's driver: error %d", d->device, rc);
	d->sums = p.sums && ops->sum;
	if (!p.exports || !ops->allocate || !ops->release || !ops->exports || !ops->import || !ops->import_end)
		return tn_fail(-ENOTSUP, "driver %s does not pass memory of device %u to other processes, which a heap needs", ops->name, d->device);
	return 0;
}

/* The stream, the buffer, and the payload's ranges. */
static int make_path(struct tn_heap_on_device *d)
{
	const struct tn_device_driver_ops *ops = d->driver->ops;
	int rc = ops->stream_create(d->driver, d->device, &d->stream);
	void *p;

	if (rc)
		return tn_fail(rc, "no stream of device %u: error %d", d->device, rc);
	p = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return tn_fail(-ENOMEM, "no memory for the buffer of a heap on device %u", d->device);
	d->buffer = p;
	rc = ops->pin(d->driver, d->buffer, BUFFER_BYTES);
	if (rc)
		return tn_fail(rc, "the buffer of a heap cannot be pinned for device %u: error %d", d->device, rc);
	d->pinned = true;
	for (; d->registered < d->ranks && rc == 0; d->registered += rc == 0) {
		struct tn_memory_range range = {.address = d->payload[d->registered], .bytes = d->bytes, .device = d->device};

		rc = tn_device_register(d->driver, &range, 1);
	}
	return rc;
}

static int begin(struct tn_heap_on_device *d, const struct tn_heap_memory *m)
{
	d->ranks = m->ranks;
	d->bytes = m->layout.heap_limit - m->layout.heap_base;
	return check_driver(d);
}

int tn_heap_on_device_make(struct tn_heap_on_device *d, struct tn_heap_memory *m)
{
	const struct tn_device_driver_ops *ops = d->driver->ops;
	int rc = begin(d, m);

	d->allocated = true;
	for (uint32_t r = 0; r < d->ranks && rc == 0; r++) {
		void *p = NULL;

		rc = ops->allocate(d->driver, d->device, d->bytes, &p);
		d->payload[r] = p;
		if (rc == 0)
			rc = ops->exports(d->driver, p, d->bytes, m->dir->device_export[r]);
		if (rc)
			tn_fail(rc, "%llu bytes of device %u for rank %u: error %d", (unsigned long long)d->bytes, d->device, r, rc);
	}
	return rc ? rc : make_path(d);
}

int tn_heap_on_device_map(struct tn_heap_on_device *d, const struct tn_heap_memory *m)
{
	int rc = begin(d, m);

	for (uint32_t r = 0; r < d->ranks && rc == 0; r++) {
		unsigned char name[TN_DEVICE_EXPORT_BYTES];
		void *p = NULL;

		memcpy(name, m->dir->device_export[r], sizeof(name));
		rc = d->driver->ops->import(d->driver, d->device, name, &p);
		d->payload[r] = p;
		if (rc)
			tn_fail(rc, "driver %s cannot import the payload of rank %u: error %d", d->driver->ops->name, r, rc);
	}
	return rc ? rc : make_path(d);
}

void tn_heap_on_device_drop(struct tn_heap_on_device *d)
{
	const struct tn_device_driver_ops *ops = d->driver ? d->driver->ops : NULL;

	if (!ops)
		return;
	if (d->broken && d->stream && ops->wait(d->driver, d->stream, d->event, tn_now_ns(&tn_clock_system) + COPY_NS) == -ETIMEDOUT) {
		*d = (struct tn_heap_on_device){0};
		return;
	}
	if (d->stream)
		ops->stream_destroy(d->driver, d->stream);
	while (d->registered--) {
		struct tn_memory_range range = {.address = d->payload[d->registered], .bytes = d->bytes, .device = d->device};

		ops->unregister_range(d->driver, &range);
	}
	if (d->pinned)
		ops->unpin(d->driver, d->buffer, BUFFER_BYTES);
	if (d->buffer)
		munmap(d->buffer, BUFFER_BYTES);
	for (uint32_t r = 0; r < d->ranks && d->payload[r]; r++) {
		if (d->allocated)
			ops->release(d->driver, d->device, d->payload[r]);
		else
			ops->import_end(d->driver, d->device, d->payload[r]);
	}
	*d = (struct tn_heap_on_device){0};
}

/* ---- copies ----------------------------------------------------------------------------------------------------- */

/* A stream in which something failed is made anew, once the device has ended what it was asked for: until then it may read and write the buffer. */
static int mend_stream(struct tn_heap_on_device *d)
{
	const struct tn_device_driver_ops *ops = d->driver->ops;
	int rc;

	if (!d->broken)
		return 0;
	if (d->stream && ops->wait(d->driver, d->stream, d->event, 0) == -ETIMEDOUT)
		return tn_fail(-ETIMEDOUT, "device %u has still not ended what a heap asked of it before; try again later", d->device);
	if (d->stream)
		ops->stream_destroy(d->driver, d->stream);
	d->stream = NULL;
	rc = ops->stream_create(d->driver, d->device, &d->stream);
	if (rc)
		return tn_fail(rc, "no new stream of device %u: error %d", d->device, rc);
	d->broken = false;
	return 0;
}

static int wait_for(struct tn_heap_on_device *d, uint64_t event)
{
	int rc = d->driver->ops->wait(d->driver, d->stream, event, tn_now_ns(&tn_clock_system) + COPY_NS);

	d->event = event;
	d->broken = rc != 0;
	return rc;
}

/* As many bytes as the buffer has. */
static int move_buffer(struct tn_heap_on_device *d, enum tn_device_way way, unsigned char *payload, uint64_t bytes)
{
	const struct tn_device_piece piece = {payload, d->buffer, bytes};
	uint64_t event;
	int rc = d->driver->ops->copy(d->driver, d->stream, way, &piece, 1, &event);

	rc = rc ? rc : wait_for(d, event);
	return rc ? tn_fail(rc, "device %u did not copy %llu bytes of a heap: error %d", d->device, (unsigned long long)bytes, rc) : 0;
}

int tn_heap_on_device_write(struct tn_heap_on_device *d, uint32_t rank, uint64_t at, const void *src, uint64_t bytes)
{
	int rc;

	pthread_mutex_lock(&d->lock);
	rc = mend_stream(d);
	for (uint64_t done = 0; done < bytes && rc == 0; done += BUFFER_BYTES) {
		uint64_t n = bytes - done < BUFFER_BYTES ? bytes - done : BUFFER_BYTES;

		memcpy(d->buffer, (const unsigned char *)src + done, n);
		rc = move_buffer(d, TN_DEVICE_FROM_HOST, d->payload[rank] + at + done, n);
	}
	pthread_mutex_unlock(&d->lock);
	return rc;
}

int tn_heap_on_device_read(struct tn_heap_on_device *d, uint32_t rank, uint64_t at, void *dst, uint64_t bytes)
{
	int rc;

	pthread_mutex_lock(&d->lock);
	rc = mend_stream(d);
	for (uint64_t done = 0; done < bytes && rc == 0; done += BUFFER_BYTES) {
		uint64_t n = bytes - done < BUFFER_BYTES ? bytes - done : BUFFER_BYTES;

		rc = move_buffer(d, TN_DEVICE_TO_HOST, d->payload[rank] + at + done, n);
		if (rc == 0)
			memcpy((unsigned char *)dst + done, d->buffer, n);
	}
	pthread_mutex_unlock(&d->lock);
	return rc;
}

int tn_heap_on_device_sum(struct tn_heap_on_device *d, uint32_t rank, uint64_t at, uint64_t bytes, uint64_t *sum)
{
	const struct tn_device_piece piece = {d->payload[rank] + at, NULL, bytes};
	struct tn_device_sum *result = (void *)d->buffer; /* the driver writes it when the device gets there, be it after this call has given up */
	uint64_t event;
	int rc;

	if (!d->sums)
		return -ENOTSUP;
	pthread_mutex_lock(&d->lock);
	rc = mend_stream(d);
	if (rc == 0) {
		*result = (struct tn_device_sum){.npieces = 1};
		rc = d->driver->ops->sum(d->driver, d->stream, &piece, result, 1, &event);
		rc = rc ? rc : wait_for(d, event);
		*sum = result->sum;
		if (rc)
			tn_fail(rc, "device %u did not sum %llu bytes of a heap: error %d", d->device, (unsigned long long)bytes, rc);
	}
	pthread_mutex_unlock(&d->lock);
	return rc;
}
