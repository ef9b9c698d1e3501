/* SPDX-License-Identifier: Apache-2.0 */
/* See identify.h. */
#include "nvme/identify.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"

#define MOST_SHIFT 30u /* no limit is taken for more than 1 GiB */

static uint32_t field(const unsigned char *data, uint32_t offset, uint32_t bytes)
{
	uint32_t v = 0;

	memcpy(&v, data + offset, bytes);
	return v;
}

/* Characters padded with blanks; what cannot be printed becomes a question mark. */
static void text(const unsigned char *data, uint32_t offset, uint32_t bytes, char *out)
{
	uint32_t end = 0;

	for (uint32_t i = 0; i < bytes; i++) {
		unsigned char c = data[offset + i];

		out[i] = c >= 0x20 && c < 0x7f ? (char)c : '?';
		if (c > 0x20)
			end = i + 1;
	}
	out[end] = 0;
}

/* 2^n pages of CAP.MPSMIN; 0 says that there is no limit. */
static uint32_t limit_bytes(uint64_t cap, uint32_t n)
{
	uint32_t shift = n + tn_nvme_cap_page_shift(cap);

	return n == 0 || shift > MOST_SHIFT ? 1u << MOST_SHIFT : 1u << shift;
}

void tn_nvme_read_controller(const unsigned char *data, uint64_t cap, struct tn_nvme_info *info)
{
	uint32_t oncs = field(data, TN_NVME_ID_ONCS, 2), sgls = field(data, TN_NVME_ID_SGLS, 4) & 3;

	text(data, TN_NVME_ID_MODEL, 40, info->model);
	text(data, TN_NVME_ID_SERIAL, 20, info->serial);
	text(data, TN_NVME_ID_FIRMWARE, 8, info->firmware);
	info->transfer_bytes = limit_bytes(cap, field(data, TN_NVME_ID_MDTS, 1));
	info->cache = field(data, TN_NVME_ID_VWC, 1) & 1;
	info->discard = oncs & 4;
	info->zeroes_bytes = oncs & 8 ? limit_bytes(cap, 0) : 0;
	info->sgl = sgls == TN_NVME_SGLS_BYTES || sgls == TN_NVME_SGLS_DWORDS;
}

void tn_nvme_read_limits(const unsigned char *data, uint64_t cap, struct tn_nvme_info *info)
{
	uint32_t zeroes_bytes = limit_bytes(cap, field(data, TN_NVME_LIMITS_WZSL, 1));

	if (info->zeroes_bytes > zeroes_bytes)
		info->zeroes_bytes = zeroes_bytes;
}

/* The LBA format in use: its upper bits count only where there are formats for them (NVM 4.1.5.1, FLBAS). */
static uint32_t format_of(const unsigned char *data)
{
	uint32_t flbas = field(data, TN_NVME_NS_FLBAS, 1), index = flbas & 15;

	if (field(data, TN_NVME_NS_NLBAF, 1) > 16)
		index |= (flbas >> 5 & 3) << 4;
	return field(data, TN_NVME_NS_LBAF + 4 * index, 4);
}

int tn_nvme_read_namespace(const unsigned char *data, const char *port, struct tn_nvme_info *info)
{
	uint32_t format = format_of(data), metadata = format & 0xffff, shift = (format >> 16) & 0xff, protection = field(data, TN_NVME_NS_DPS, 1) & 7;
	uint32_t most;

	memcpy(&info->blocks, data + TN_NVME_NS_SIZE, 8);
	if (info->blocks == 0)
		return tn_fail(-ENODEV, "%s: namespace %u is not there", port, info->namespace_id);
	if (metadata || protection)
		return tn_fail(-ENOTSUP, "%s: namespace %u has %u bytes of metadata per block%s: format it without", port, info->namespace_id, metadata,
			       protection ? " and end-to-end protection" : "");
	if (shift < 9 || shift > 12)
		return tn_fail(-ENOTSUP, "%s: namespace %u has blocks of 2^%u bytes: 512 to 4096 can be used", port, info->namespace_id, shift);
	if (info->blocks > UINT64_MAX >> shift)
		return tn_fail(-EINVAL, "%s: namespace %u is said to have %llu blocks", port, info->namespace_id, (unsigned long long)info->blocks);
	info->block_bytes = 1u << shift;
	most = info->block_bytes << 16; /* NLB has 16 bits (NVM 3.2.4, 3.2.6, 3.2.8) */
	if (info->transfer_bytes > most)
		info->transfer_bytes = most;
	if (info->zeroes_bytes > most)
		info->zeroes_bytes = most;
	return 0;
}
