/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Controllers reached over VFIO (type 1 container) with the stock kernel driver vfio-pci.
 *
 * Nothing here unbinds a drive from its driver: tn_nvme_vfio_open refuses one that the kernel's nvme driver has, and says what to write where.
 * The kernel lets one process have a controller. Memory is pinned while it is mapped. Memory that no CPU
 * maps needs a provider of bus addresses (tn_nvme_map_other): the port has none.
 *
 * One thread makes all calls, but the port's.
 */
#ifndef TN_NVME_VFIO_H
#define TN_NVME_VFIO_H

#include "nvme/controller.h"

#define TN_NVME_BDF_BYTES 16u

/** struct tn_nvme_found - a drive that was found; driver: that has it, or empty; group: of the IOMMU, or -1: there is no IOMMU */
struct tn_nvme_found {
	char bdf[TN_NVME_BDF_BYTES];
	char driver[32];
	int group;
	bool vfio; /* can be opened now, by the file's rights */
};

/* Every NVMe controller on the PCI bus, as sysfs has it: how many there are, of which `max` are written; or -errno. */
int tn_nvme_vfio_find(struct tn_nvme_found *found, uint32_t max);

/* The one of this address; false: there is no NVMe controller. */
bool tn_nvme_vfio_look(const char *bdf, struct tn_nvme_found *found);

struct tn_nvme_vfio;

/*
 * Opens a controller by its address on the PCI bus ("0000:03:00.0"). 0 and *out; -EINVAL: no such address; -ENODEV: no NVMe controller
 * there; -EBUSY: another driver or process has it; -ENOTSUP: no IOMMU; -EACCES: no right to it.
 */
int tn_nvme_vfio_open(const char *bdf, const struct tn_alloc *alloc, struct tn_nvme_vfio **out);
/* Everything that used the port has gone. NULL-safe. */
void tn_nvme_vfio_close(struct tn_nvme_vfio *v);
const struct tn_nvme_port *tn_nvme_vfio_port(struct tn_nvme_vfio *v);

#endif
