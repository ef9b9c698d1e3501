/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the identify data say that the driver goes by: names and limits of a controller and of a namespace (Base 5.17.2, NVM 4.1.5). Pure; asks
 * nobody for data.
 *
 * Each function has TN_NVME_IDENTIFY_BYTES of data, which are the controller's and may say anything, and fills a part of struct tn_nvme_info: first the
 * controller's, then its limits if they were asked for, then the namespace's. Any thread.
 */
#ifndef TN_NVME_IDENTIFY_DATA_H
#define TN_NVME_IDENTIFY_DATA_H

#include "nvme/controller.h"

/* Names, MDTS, write cache, SGLs, optional commands. cap: the register, whose MPSMIN is the unit of MDTS. */
void tn_nvme_read_controller(const unsigned char *data, uint64_t cap, struct tn_nvme_info *info);
/* Limits of commands that MDTS does not limit, because they move no data. */
void tn_nvme_read_limits(const unsigned char *data, uint64_t cap, struct tn_nvme_info *info);
/*
 * Size and LBA format of info->namespace_id; what a 16-bit number of blocks cannot say limits commands, too. port: the controller's name, for messages. 0;
 * -ENODEV: no such namespace; -ENOTSUP: metadata, protection, or a block size that is not used; -EINVAL: what it says cannot be.
 */
int tn_nvme_read_namespace(const unsigned char *data, const char *port, struct tn_nvme_info *info);

#endif
