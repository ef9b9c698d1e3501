/* SPDX-License-Identifier: Apache-2.0 */
/* See vfio.h. Linux Documentation/driver-api/vfio.rst and linux/vfio.h. */
#include "nvme/vfio.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/vfio.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/fork.h"

#define DEVICES "/sys/bus/pci/devices"
#define CLASS_NVME 0x010802ul
#define AREAS 1024u
#define FIRST_IOVA (1ull << 32) /* above the window of interrupts */
#define LAST_IOVA (1ull << 38)	/* within the 39 bits that every IOMMU of today translates */
#define PCI_COMMAND 4u
#define PCI_COMMAND_MEMORY 2u
#define PCI_COMMAND_MASTER 4u
#define PCI_COMMAND_NO_INTX 0x400u /* Interrupt Disable (PCI Local Bus Specification 3.0, 6.2.2): nobody listens, and the line may be shared */

/* Memory that is mapped, in the order of its addresses on the bus. */
struct area {
	unsigned char *memory;
	uint64_t bytes, iova;
};

struct tn_nvme_vfio {
	const struct tn_alloc *alloc;
	struct tn_nvme_port port;
	char bdf[TN_NVME_BDF_BYTES];
	int container, group, device;
	struct tn_fork_fd fork[3]; /* of these: a child that outlives this process must not keep the controller */
	pthread_mutex_t lock; /* of the areas: each pair of queues may have a thread of its own, which takes memory for it */
	struct area area[AREAS];
	uint32_t areas;
};

/* ---- sysfs ------------------------------------------------------------------------------------------------------ */

static unsigned long read_number(const char *bdf, const char *name)
{
	char path[PATH_MAX], text[32];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), DEVICES "/%s/%s", bdf, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return ULONG_MAX;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	return n > 0 ? strtoul(text, NULL, 0) : ULONG_MAX;
}

/* Last part of what a link of the device's points to; empty: there is none. */
static void read_link(const char *bdf, const char *name, char *out, size_t bytes)
{
	char path[PATH_MAX], target[PATH_MAX];
	ssize_t n;

	snprintf(path, sizeof(path), DEVICES "/%s/%s", bdf, name);
	n = readlink(path, target, sizeof(target) - 1);
	target[n > 0 ? n : 0] = 0;
	snprintf(out, bytes, "%.*s", (int)bytes - 1, strrchr(target, '/') ? strrchr(target, '/') + 1 : "");
}

static void describe(const char *bdf, struct tn_nvme_found *f)
{
	char group[16], path[64];

	snprintf(f->bdf, sizeof(f->bdf), "%.*s", (int)sizeof(f->bdf) - 1, bdf);
	read_link(bdf, "driver", f->driver, sizeof(f->driver));
	read_link(bdf, "iommu_group", group, sizeof(group));
	f->group = *group ? (int)strtol(group, NULL, 10) : -1;
	snprintf(path, sizeof(path), "/dev/vfio/%d", f->group);
	f->vfio = f->group >= 0 && strcmp(f->driver, "vfio-pci") == 0 && access(path, R_OK | W_OK) == 0;
}

bool tn_nvme_vfio_look(const char *bdf, struct tn_nvme_found *found)
{
	bool there = !strchr(bdf, '/') && read_number(bdf, "class") == CLASS_NVME;

	if (there)
		describe(bdf, found);
	return there;
}

int tn_nvme_vfio_find(struct tn_nvme_found *found, uint32_t max)
{
	DIR *d = opendir(DEVICES);
	struct dirent *e;
	int n = 0;

	if (!d)
		return tn_fail(-errno, DEVICES ": %s", strerror(errno));
	while ((e = readdir(d))) {
		if (e->d_name[0] == '.' || read_number(e->d_name, "class") != CLASS_NVME)
			continue;
		if ((uint32_t)n < max)
			describe(e->d_name, &found[n]);
		n++;
	}
	closedir(d);
	return n;
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

/* Where an area of so many bytes begins on the bus, and its place among the others; UINT64_MAX: there is no room. */
static uint64_t find_iova_gap(const struct tn_nvme_vfio *v, uint64_t bytes, uint32_t *at)
{
	uint64_t from = FIRST_IOVA;

	for (*at = 0; *at < v->areas && v->area[*at].iova - from < bytes; ++*at)
		from = v->area[*at].iova + v->area[*at].bytes;
	return v->areas == AREAS || LAST_IOVA - from < bytes ? UINT64_MAX : from;
}

/* Under lock. */
static int add_area(struct tn_nvme_vfio *v, void *memory, uint64_t bytes)
{
	uint32_t at;
	struct vfio_iommu_type1_dma_map m = {.argsz = sizeof(m), .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
					     .vaddr = (uintptr_t)memory, .size = bytes};

	m.iova = bytes > LAST_IOVA ? UINT64_MAX : find_iova_gap(v, bytes, &at);
	if (m.iova == UINT64_MAX)
		return tn_fail(-ENOSPC, "%s: no bus addresses for %llu bytes", v->bdf, (unsigned long long)bytes);
	if (ioctl(v->container, VFIO_IOMMU_MAP_DMA, &m))
		return tn_fail(-errno, "%s: %llu bytes cannot be mapped: %s%s", v->bdf, (unsigned long long)bytes, strerror(errno),
			       errno == ENOMEM ? ": raise the limit of locked memory (ulimit -l)" : "");
	memmove(&v->area[at + 1], &v->area[at], (v->areas - at) * sizeof(v->area[0]));
	v->area[at] = (struct area){memory, bytes, m.iova};
	v->areas++;
	return 0;
}

static int map(void *arg, void *memory, uint64_t bytes)
{
	struct tn_nvme_vfio *v = arg;
	int rc;

	pthread_mutex_lock(&v->lock);
	rc = add_area(v, memory, bytes);
	pthread_mutex_unlock(&v->lock);
	return rc;
}

static void unmap(void *arg, void *memory, uint64_t bytes)
{
	struct tn_nvme_vfio *v = arg;
	uint32_t i = 0;

	pthread_mutex_lock(&v->lock);
	while (i < v->areas && (v->area[i].memory != memory || v->area[i].bytes != bytes))
		i++;
	if (i < v->areas) {
		struct vfio_iommu_type1_dma_unmap u = {.argsz = sizeof(u), .iova = v->area[i].iova, .size = v->area[i].bytes};

		ioctl(v->container, VFIO_IOMMU_UNMAP_DMA, &u); /* fails only for what was never mapped */
		v->areas--;
		memmove(&v->area[i], &v->area[i + 1], (v->areas - i) * sizeof(v->area[0]));
	}
	pthread_mutex_unlock(&v->lock);
}

static int translate(void *arg, uintptr_t address, uint64_t length, uint64_t *bus, uint64_t *contiguous)
{
	struct tn_nvme_vfio *v = arg;
	bool found = false;

	pthread_mutex_lock(&v->lock);
	for (uint32_t i = 0; i < v->areas && !found; i++) {
		const struct area *a = &v->area[i];
		uint64_t skip = address - (uintptr_t)a->memory;

		found = address >= (uintptr_t)a->memory && skip < a->bytes;
		if (!found)
			continue;
		*bus = a->iova + skip;
		*contiguous = a->bytes - skip < length ? a->bytes - skip : length;
	}
	pthread_mutex_unlock(&v->lock);
	return found ? 0 : tn_fail(-EFAULT, "%s: %#llx is not mapped", v->bdf, (unsigned long long)address);
}

static void *get(void *arg, uint64_t bytes, uint64_t *bus)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t some;

	if (memory == MAP_FAILED)
		return NULL;
	madvise(memory, bytes, MADV_DONTFORK);
	if (map(arg, memory, bytes) == 0 && translate(arg, (uintptr_t)memory, bytes, bus, &some) == 0)
		return memory;
	munmap(memory, bytes);
	return NULL;
}

static void put(void *arg, void *memory, uint64_t bytes)
{
	unmap(arg, memory, bytes);
	munmap(memory, bytes);
}

static void pause_for_it(void *arg)
{
	sched_yield();
}

static void watch(struct tn_nvme_vfio *v, uint32_t which, int fd)
{
	tn_fork_lock();
	tn_fork_watch(&v->fork[which], fd);
	tn_fork_unlock();
}

static void drop(struct tn_nvme_vfio *v, uint32_t which, int fd)
{
	if (fd < 0)
		return;
	tn_fork_unwatch(&v->fork[which]);
	close(fd);
}

static const char other[] = "VFIO (type 1) finds the pages to pin by their address in this process, and memory that no CPU maps has none: hand over a provider "
			    "of its bus addresses";

/* ---- opened and closed ---------------------------------------------------------------------------------------------------- */

static int check_bound(const char *bdf, struct tn_nvme_found *f)
{
	unsigned long class = strlen(bdf) < TN_NVME_BDF_BYTES ? read_number(bdf, "class") : ULONG_MAX;

	if (class == ULONG_MAX)
		return tn_fail(-EINVAL, "%s: no such device on the PCI bus; an address looks like 0000:03:00.0", bdf);
	if (class != CLASS_NVME)
		return tn_fail(-ENODEV, "%s: class %#lx is no NVMe controller", bdf, class);
	describe(bdf, f);
	if (f->group < 0)
		return tn_fail(-ENOTSUP, "%s: no IOMMU protects memory from it: switch the IOMMU on (intel_iommu=on, amd_iommu=on)", bdf);
	if (strcmp(f->driver, "vfio-pci"))
		return tn_fail(-EBUSY, "%s: %s%s has it: when nothing on it is in use, write vfio-pci to " DEVICES "/%s/driver_override, the address to "
				       DEVICES "/%s/driver/unbind, and again to /sys/bus/pci/drivers_probe",
			       bdf, *f->driver ? "the driver " : "no driver", f->driver, bdf, bdf);
	return 0;
}

static int open_group(struct tn_nvme_vfio *v, const struct tn_nvme_found *f)
{
	struct vfio_group_status status = {.argsz = sizeof(status)};
	char path[64];

	snprintf(path, sizeof(path), "/dev/vfio/%d", f->group);
	v->group = tn_above_streams(open(path, O_RDWR | O_CLOEXEC));
	if (v->group < 0)
		return tn_fail(errno == EBUSY ? -EBUSY : errno == ENOENT ? -ENODEV : -errno, "%s: %s%s", path, strerror(errno),
			       errno == EBUSY ? ": another process has the controller" : "");
	watch(v, 0, v->group);
	v->container = tn_above_streams(open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC));
	if (v->container < 0)
		return tn_fail(-errno, "/dev/vfio/vfio: %s%s", strerror(errno), errno == EACCES ? ": give this user read and write access to it" : "");
	watch(v, 1, v->container);
	if (ioctl(v->container, VFIO_GET_API_VERSION) != VFIO_API_VERSION || ioctl(v->container, VFIO_CHECK_EXTENSION, VFIO_TYPE1v2_IOMMU) <= 0)
		return tn_fail(-ENOTSUP, "%s: this kernel's VFIO has no type 1 (version 2) IOMMU", v->bdf);
	if (ioctl(v->group, VFIO_GROUP_GET_STATUS, &status))
		return tn_fail(-errno, "%s: %s", path, strerror(errno));
	if (!(status.flags & VFIO_GROUP_FLAGS_VIABLE))
		return tn_fail(-EBUSY, "%s: other devices of IOMMU group %d are not bound to vfio-pci: bind them, too, or take another drive", v->bdf, f->group);
	if (ioctl(v->group, VFIO_GROUP_SET_CONTAINER, &v->container) || ioctl(v->container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU))
		return tn_fail(-errno, "%s: no container for IOMMU group %d: %s", v->bdf, f->group, strerror(errno));
	return 0;
}

/* Memory decoding, no interrupts, and bus mastering if it may reach memory; the kernel switches all that off when the device is opened. */
static int set_command(const struct tn_nvme_vfio *v, bool reaches_memory)
{
	struct vfio_region_info r = {.argsz = sizeof(r), .index = VFIO_PCI_CONFIG_REGION_INDEX};
	uint16_t command;

	if (ioctl(v->device, VFIO_DEVICE_GET_REGION_INFO, &r) ||
	    pread(v->device, &command, sizeof(command), (off_t)r.offset + PCI_COMMAND) != sizeof(command))
		return tn_fail(-EIO, "%s: its configuration cannot be read", v->bdf);
	command |= PCI_COMMAND_MEMORY | PCI_COMMAND_MASTER | PCI_COMMAND_NO_INTX;
	if (!reaches_memory)
		command &= (uint16_t)~PCI_COMMAND_MASTER;
	if (pwrite(v->device, &command, sizeof(command), (off_t)r.offset + PCI_COMMAND) != sizeof(command))
		return tn_fail(-EIO, "%s: its configuration cannot be written", v->bdf);
	return 0;
}

static int cut(void *arg)
{
	return set_command(arg, false);
}

static int open_device(struct tn_nvme_vfio *v)
{
	struct vfio_region_info r = {.argsz = sizeof(r), .index = VFIO_PCI_BAR0_REGION_INDEX};
	void *registers;
	int rc;

	v->device = tn_above_streams(ioctl(v->group, VFIO_GROUP_GET_DEVICE_FD, v->bdf));
	if (v->device < 0)
		return tn_fail(-errno, "%s: %s", v->bdf, strerror(errno));
	watch(v, 2, v->device);
	rc = set_command(v, true);
	if (rc)
		return rc;
	if (ioctl(v->device, VFIO_DEVICE_GET_REGION_INFO, &r) || !(r.flags & VFIO_REGION_INFO_FLAG_MMAP))
		return tn_fail(-ENOTSUP, "%s: its registers cannot be mapped", v->bdf);
	registers = mmap(NULL, r.size, PROT_READ | PROT_WRITE, MAP_SHARED, v->device, (off_t)r.offset);
	if (registers == MAP_FAILED)
		return tn_fail(-errno, "%s: its registers cannot be mapped: %s", v->bdf, strerror(errno));
	madvise(registers, r.size, MADV_DONTFORK); /* a child's copy would keep the device open */
	v->port.registers = registers;
	v->port.register_bytes = r.size;
	return 0;
}

int tn_nvme_vfio_open(const char *bdf, const struct tn_alloc *alloc, struct tn_nvme_vfio **out)
{
	struct tn_nvme_found f;
	struct tn_nvme_vfio *v;
	int rc = check_bound(bdf, &f);

	if (rc)
		return rc;
	v = tn_get(alloc, sizeof(*v));
	if (!v)
		return tn_fail(-ENOMEM, "nvme: no memory");
	v->alloc = alloc;
	pthread_mutex_init(&v->lock, NULL);
	v->container = v->group = v->device = -1;
	memcpy(v->bdf, f.bdf, sizeof(v->bdf));
	v->port = (struct tn_nvme_port){.name = v->bdf, .get = get, .put = put, .map = map, .unmap = unmap, .translate = translate, .cut = cut,
					.pause = pause_for_it, .other = other, .arg = v};
	rc = open_group(v, &f);
	rc = rc ? rc : open_device(v);
	if (rc) {
		tn_nvme_vfio_close(v);
		return rc;
	}
	*out = v;
	return 0;
}

/* The device before its group, and that before the container: only then the IOMMU forgets the mappings. */
void tn_nvme_vfio_close(struct tn_nvme_vfio *v)
{
	if (!v)
		return;
	if (v->port.registers)
		munmap(v->port.registers, v->port.register_bytes);
	drop(v, 2, v->device);
	drop(v, 0, v->group);
	drop(v, 1, v->container);
	pthread_mutex_destroy(&v->lock);
	tn_put(v->alloc, v, sizeof(*v));
}

const struct tn_nvme_port *tn_nvme_vfio_port(struct tn_nvme_vfio *v)
{
	return &v->port;
}
