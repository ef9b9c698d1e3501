/* SPDX-License-Identifier: Apache-2.0 */
#include "stub_cufile.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "../../plugins/gds/cufile.h"
#include "stub_cuda.h"

#define API __attribute__((visibility("default")))

API struct stub_cufile stub_cufile;

API struct cufile_error cuFileDriverOpen(void);
API struct cufile_error cuFileDriverGetProperties(struct cufile_properties *out);
API struct cufile_error cuFileHandleRegister(void **handle, struct cufile_description *d);
API void cuFileHandleDeregister(void *handle);
API ssize_t cuFileRead(void *handle, void *base, size_t bytes, off_t offset, off_t base_offset);
API ssize_t cuFileWrite(void *handle, const void *base, size_t bytes, off_t offset, off_t base_offset);
API struct cufile_error cuFileGetVersion(int *out);
API struct cufile_error cuFileBatchIOSetUp(void **batch, unsigned most);
API struct cufile_error cuFileBatchIOSubmit(void *batch, unsigned n, struct cufile_batch_piece *piece, unsigned flags);
API struct cufile_error cuFileBatchIOGetStatus(void *batch, unsigned least, unsigned *n, struct cufile_batch_event *event, struct timespec *timeout);
API struct cufile_error cuFileBatchIOCancel(void *batch);
API void cuFileBatchIODestroy(void *batch);
API struct cufile_error cuFileReadAsync(void *handle, void *base, size_t *bytes, off_t *offset, off_t *base_offset, ssize_t *moved, void *stream);
API struct cufile_error cuFileWriteAsync(void *handle, void *base, size_t *bytes, off_t *offset, off_t *base_offset, ssize_t *moved, void *stream);

static struct cufile_error begin(enum stub_call call)
{
	__atomic_fetch_add(&stub_cufile.calls[call], 1, __ATOMIC_RELAXED);
	return (struct cufile_error){.error = __atomic_exchange_n(&stub_cufile.fail[call], 0, __ATOMIC_ACQ_REL)};
}

struct cufile_error cuFileDriverOpen(void)
{
	struct cufile_error e = begin(STUB_OPEN);

	while (__atomic_load_n(&stub_cufile.hold_open, __ATOMIC_ACQUIRE))
		usleep(1000);
	return e;
}

struct cufile_error cuFileDriverGetProperties(struct cufile_properties *out)
{
	*out = (struct cufile_properties){.feature_flags = __atomic_load_n(&stub_cufile.feature_flags, __ATOMIC_ACQUIRE)};
	out->module.major_version = (unsigned)__atomic_load_n(&stub_cufile.module_major, __ATOMIC_ACQUIRE);
	out->module.minor_version = 7;
	return begin(STUB_PROPERTIES);
}

/* The handle is memory of its own, so that a sanitizer sees who uses one that is no longer registered. */
struct cufile_error cuFileHandleRegister(void **handle, struct cufile_description *d)
{
	struct cufile_error e = begin(STUB_REGISTER);
	int *fd = e.error ? NULL : malloc(sizeof(*fd));

	if (!fd)
		return e;
	*fd = d->file.fd;
	*handle = fd;
	__atomic_fetch_add(&stub_cufile.registered, 1, __ATOMIC_RELAXED);
	return e;
}

void cuFileHandleDeregister(void *handle)
{
	__atomic_fetch_sub(&stub_cufile.registered, 1, __ATOMIC_RELAXED);
	free(handle);
}

static void wait_while_held(void)
{
	__atomic_fetch_add(&stub_cufile.held, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(&stub_cufile.hold, __ATOMIC_ACQUIRE))
		usleep(200);
	__atomic_fetch_sub(&stub_cufile.held, 1, __ATOMIC_ACQ_REL);
}

/* What a transfer returns at once: 0: go on. */
static ssize_t refused(enum stub_call call)
{
	int error = begin(call).error;

	wait_while_held();
	if (!stub_cuda_is_current())
		return -5015;
	if (error >= 0)
		return -error;
	errno = -error;
	return -1;
}

/* Where the bytes of an address are: those of the soft device are not where its address is. */
static void *bytes_of(const void *address)
{
	void *(*bytes)(const void *of) = __atomic_load_n(&stub_cufile.bytes_of, __ATOMIC_ACQUIRE);
	void *soft = bytes ? NULL : dlopen("libtenuto_soft.so", RTLD_NOW | RTLD_NOLOAD);
	void *found;

	if (soft)
		*(void **)&bytes = dlsym(soft, "tn_soft_bytes");
	found = bytes ? bytes(address) : NULL;
	if (soft)
		dlclose(soft);
	return found ? found : (void *)(uintptr_t)address;
}

ssize_t cuFileRead(void *handle, void *base, size_t bytes, off_t offset, off_t base_offset)
{
	ssize_t n = refused(STUB_READ);

	bytes -= (size_t)__atomic_exchange_n(&stub_cufile.shorter, 0, __ATOMIC_ACQ_REL);
	return n ? n : pread(*(int *)handle, bytes_of((char *)base + base_offset), bytes, offset);
}

#ifndef STUB_LACKS_WRITE
ssize_t cuFileWrite(void *handle, const void *base, size_t bytes, off_t offset, off_t base_offset)
{
	ssize_t n = refused(STUB_WRITE);

	bytes -= (size_t)__atomic_exchange_n(&stub_cufile.shorter, 0, __ATOMIC_ACQ_REL);
	return n ? n : pwrite(*(int *)handle, bytes_of((const char *)base + base_offset), bytes, offset);
}
#endif

struct cufile_error cuFileGetVersion(int *out)
{
	*out = 1200;
	return (struct cufile_error){0};
}

/* ---- batches: their pieces move when their status is asked for ---------------------------------------- */

struct batch {
	unsigned most, n, told;
	struct cufile_batch_piece piece[];
};

struct cufile_error cuFileBatchIOSetUp(void **batch, unsigned most)
{
	struct cufile_error e = begin(STUB_BATCH_SET_UP);
	struct batch *b = e.error ? NULL : calloc(1, sizeof(*b) + most * sizeof(b->piece[0]));

	if (!b)
		return e;
	b->most = most;
	*batch = b;
	__atomic_fetch_add(&stub_cufile.batches, 1, __ATOMIC_RELAXED);
	return e;
}

struct cufile_error cuFileBatchIOSubmit(void *batch, unsigned n, struct cufile_batch_piece *piece, unsigned flags)
{
	struct cufile_error e = begin(STUB_BATCH_SUBMIT);
	struct batch *b = batch;

	if (!e.error && (b->n != b->told || n > b->most))
		e.error = 5022;
	if (e.error)
		return e;
	for (b->n = 0; b->n < n; b->n++)
		b->piece[b->n] = piece[b->n];
	b->told = 0;
	return e;
}

static ssize_t move_piece(const struct cufile_batch_piece *p)
{
	if (p->opcode == CUFILE_OPCODE_READ)
		return cuFileRead(p->handle, p->u.batch.base, p->u.batch.bytes, p->u.batch.offset, p->u.batch.base_offset);
#ifndef STUB_LACKS_WRITE
	return cuFileWrite(p->handle, p->u.batch.base, p->u.batch.bytes, p->u.batch.offset, p->u.batch.base_offset);
#else
	return -5022;
#endif
}

/* Tells of half of them at a time, the last one first. */
struct cufile_error cuFileBatchIOGetStatus(void *batch, unsigned least, unsigned *n, struct cufile_batch_event *event, struct timespec *timeout)
{
	struct cufile_error e = begin(STUB_BATCH_STATUS);
	struct batch *b = batch;
	unsigned some = (b->n - b->told + 1) / 2;

	if (e.error)
		return e;
	for (unsigned i = 0; i < some; i++) {
		const struct cufile_batch_piece *p = &b->piece[b->n - 1 - b->told++];
		ssize_t moved = move_piece(p);

		event[i] = (struct cufile_batch_event){p->cookie, moved < 0 ? 0x40 : CUFILE_STATUS_COMPLETE, (size_t)moved};
	}
	*n = some;
	return e;
}

struct cufile_error cuFileBatchIOCancel(void *batch)
{
	struct batch *b = batch;

	b->n = b->told = 0;
	return (struct cufile_error){0};
}

void cuFileBatchIODestroy(void *batch)
{
	__atomic_fetch_sub(&stub_cufile.batches, 1, __ATOMIC_RELAXED);
	free(batch);
}

/* ---- streams: arguments are read when the stream gets there ------------------------------------------- */

struct call {
	void *handle, *base;
	size_t *bytes;
	off_t *offset, *base_offset;
	ssize_t *moved;
	int opcode;
};

static void carry_out(void *arg)
{
	struct call *c = arg;
	struct cufile_batch_piece p = {.handle = c->handle, .opcode = c->opcode};

	p.u.batch.base = c->base;
	p.u.batch.bytes = *c->bytes;
	p.u.batch.offset = *c->offset;
	p.u.batch.base_offset = *c->base_offset;
	*c->moved = move_piece(&p);
	free(c);
}

static struct cufile_error ask(enum stub_call call, const struct call *with, void *stream)
{
	struct cufile_error e = begin(call);
	struct call *c = e.error ? NULL : malloc(sizeof(*c));

	if (!c)
		return e;
	*c = *with;
	stub_cuda_ask(stream, carry_out, c);
	return e;
}

struct cufile_error cuFileReadAsync(void *handle, void *base, size_t *bytes, off_t *offset, off_t *base_offset, ssize_t *moved, void *stream)
{
	return ask(STUB_READ_ASYNC, &(struct call){handle, base, bytes, offset, base_offset, moved, CUFILE_OPCODE_READ}, stream);
}

struct cufile_error cuFileWriteAsync(void *handle, void *base, size_t *bytes, off_t *offset, off_t *base_offset, ssize_t *moved, void *stream)
{
	return ask(STUB_WRITE_ASYNC, &(struct call){handle, base, bytes, offset, base_offset, moved, CUFILE_OPCODE_WRITE}, stream);
}
