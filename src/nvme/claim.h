/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether an NVMe controller may be taken: what sysfs and the table of mounts say of its block devices, and, where this user may read them, whether they hold btrfs or
 * ZFS, of whose use neither says anything (resident.h). Changes nothing; what else a namespace holds is for who opens it (range.c).
 */
#ifndef TN_NVME_CLAIM_H
#define TN_NVME_CLAIM_H

#include <stddef.h>

#include "nvme/vfio.h"

/*
 * name: an address on the PCI bus, or a block device or controller of it ("/dev/nvme0n1", "/dev/nvme0"). 0 and its address, if it is bound to
 * vfio-pci. -EINVAL: none such; -EBUSY: something on it is in use, or it has another driver; -ENOTSUP: no IOMMU. The detail says what to do.
 */
int tn_nvme_claim(const char *name, char address[TN_NVME_BDF_BYTES]);
/* What keeps a controller from being used, and what to do; empty: nothing. */
void tn_nvme_lacks(const struct tn_nvme_found *found, char *text, size_t bytes);

#endif
