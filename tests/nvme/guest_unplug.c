/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A controller is pulled out of its slot while requests are under way. The host asks for it (device_del), which presses the slot's attention button. The kernel then
 * waits for five seconds with a blinking light; meanwhile this program switches the slot's power off, and the controller is gone at once, as when a hand pulls it.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "guest_rig.h"

#define REQUESTS 32u
#define REQUEST_BYTES 65536u
#define WAIT_NS (20 * GUEST_SECOND_NS)

/* PCI Express capability of a port with a slot (PCIe Base 7.5.3). */
#define CAPABILITIES 0x34
#define CAPABILITY_EXPRESS 0x10
#define SLOT_CONTROL 0x18
#define LIGHT_MASK 0x300u
#define LIGHT_BLINKS 0x200u
#define POWER_AND_INDICATOR_OFF 0x700u

static int open_port(const char *bdf, off_t *express)
{
	char link[PATH_MAX], path[PATH_MAX];
	unsigned char next = 0, id = 0;
	int fd;

	snprintf(link, sizeof(link), "/sys/bus/pci/devices/%s/../config", bdf);
	fd = realpath(link, path) ? open(path, O_RDWR) : -1;
	if (fd < 0 || pread(fd, &next, 1, CAPABILITIES) != 1)
		return -1;
	while (next && pread(fd, &id, 1, next) == 1 && id != CAPABILITY_EXPRESS)
		if (pread(fd, &next, 1, next + 1) != 1)
			return -1;
	*express = next;
	return next ? fd : -1;
}

struct load {
	struct tn_io *io;
	uint32_t file;
	struct tn_io_req req[REQUESTS];
	struct iovec iov[REQUESTS];
	unsigned char *memory;
	uint32_t out, ended, failed;
};

static void collect(struct load *l)
{
	struct tn_io_req *done[REQUESTS];
	unsigned n = tn_io_poll(l->io, done, REQUESTS, 1000000);

	for (unsigned i = 0; i < n; i++) {
		done[i]->owner = NULL;
		l->failed += done[i]->status != 0;
	}
	l->out -= n;
	l->ended += n;
}

static bool keep_busy(struct load *l)
{
	for (uint32_t i = 0; i < REQUESTS; i++) {
		struct tn_io_req *one = &l->req[i];

		if (one->owner)
			continue;
		l->iov[i] = (struct iovec){l->memory + i * REQUEST_BYTES, REQUEST_BYTES};
		*one = (struct tn_io_req){.op = i % 2 ? TN_IO_READ : TN_IO_WRITE, .file = l->file, .offset = (uint64_t)i * REQUEST_BYTES, .length = REQUEST_BYTES,
					  .iov = &l->iov[i], .iov_count = 1, .owner = l};
		must(tn_io_submit(l->io, &one, 1) == 1, "not taken");
		l->out++;
	}
	return true;
}

/* Under load until the host has pressed the button, and then the power goes. */
static bool pull(struct load *l, int port, off_t express)
{
	uint64_t end = tn_now_ns(&tn_clock_system) + WAIT_NS;
	uint16_t control = 0;

	printf("# unplug it now\n");
	fflush(stdout);
	while ((control & LIGHT_MASK) != LIGHT_BLINKS) {
		if (!keep_busy(l))
			return false;
		collect(l);
		must(l->failed == 0, "a request failed before the unplug");
		must(pread(port, &control, 2, express + SLOT_CONTROL) == 2 && tn_now_ns(&tn_clock_system) < end, "nobody presses the button");
	}
	if (!keep_busy(l))
		return false;
	control |= POWER_AND_INDICATOR_OFF;
	must(pwrite(port, &control, 2, express + SLOT_CONTROL) == 2, "no slot control");
	guest.faults++;
	return true;
}

static bool all_fails(struct load *l, struct guest_drive *d)
{
	uint64_t began = tn_now_ns(&tn_clock_system);
	uint32_t under_way = l->out;

	must(under_way > 0, "nothing was under way");
	while (l->out) {
		collect(l);
		must(tn_now_ns(&tn_clock_system) < began + WAIT_NS, "%u of %u requests hang", l->out, under_way);
	}
	printf("# %u requests were under way, %u failed, after %llu ms\n", under_way, l->failed,
	       (unsigned long long)((tn_now_ns(&tn_clock_system) - began) / 1000000));
	/* QEMU lets what its backend had begun come to its end, so that none may have failed; what follows fails. */
	guest.failed += l->failed;
	l->failed = 0;
	if (!keep_busy(l))
		return false;
	while (l->out) {
		collect(l);
		must(tn_now_ns(&tn_clock_system) < began + 2 * WAIT_NS, "%u later requests hang", l->out);
	}
	must(l->failed == REQUESTS, "%u of %u later requests failed", l->failed, REQUESTS);
	must(l->req[0].status == -ENODEV, "a later request ended with %d", l->req[0].status);
	guest.failed += l->failed;
	guest_engine_end(l->io);
	tn_nvme_destroy(d->nvme);
	d->info = NULL; /* stays open: the kernel's closing waits for more than a minute for an answer to a reset */
	return true;
}

bool guest_unplug(struct guest_drive *d)
{
	static struct load l;
	off_t express;
	int port = open_port(d->bdf, &express);
	bool ok;

	must(port >= 0, "no slot");
	l.memory = aligned_alloc(TN_NVME_PAGE, REQUESTS * REQUEST_BYTES);
	must(l.memory, "no memory");
	if (!guest_engine(d, 0, 0, 0, &l.io))
		return false;
	must(tn_nvme_engine_map(l.io, l.memory, REQUESTS * REQUEST_BYTES / 2) == 0, "not mapped");
	must(tn_io_open(l.io, "store", TN_IO_CREATE, &l.file) == 0, "no file");
	must(tn_io_allocate(l.io, l.file, 0, REQUESTS * REQUEST_BYTES) == 0, "not allocated");
	ok = pull(&l, port, express) && all_fails(&l, d);
	close(port);
	free(l.memory);
	return ok;
}
