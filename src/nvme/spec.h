/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a host and an NVMe controller say to each other: registers, queue entries, and the parts of the identify data that Tenuto uses.
 *
 * Clauses here and in the other files are those of the NVM Express Base Specification 2.0c ("Base"), of the NVM Command Set Specification 1.0c ("NVM")
 * and of the NVMe over PCIe Transport Specification 1.0 ("PCIe"); later editions of Base number them otherwise. Little-endian machines only. Host,
 * device and the software controller (lab/nvme_soft.c) share this file.
 */
#ifndef TN_NVME_SPEC_H
#define TN_NVME_SPEC_H

#include <tenuto/ring.h> /* TN_HD, TN_RING_CHECK, loads and stores with order */

#define TN_NVME_PAGE 4096u /* memory page that the driver sets in CC.MPS, and that PRPs and lists are cut by */
#define TN_NVME_ADMIN 0u   /* number of the admin queue pair */

/* ---- registers (Base 3.1.3) -------------------------------------------------------------------------- */

enum {
	TN_NVME_CAP = 0x00,  /* 64 bits: capabilities (3.1.3.1) */
	TN_NVME_VS = 0x08,   /* version (3.1.3.2) */
	TN_NVME_CC = 0x14,   /* configuration (3.1.3.5) */
	TN_NVME_CSTS = 0x1c, /* status (3.1.3.6) */
	TN_NVME_AQA = 0x24,  /* sizes of the admin queues (3.1.3.8) */
	TN_NVME_ASQ = 0x28,  /* 64 bits: where they lie (3.1.3.9, 3.1.3.10) */
	TN_NVME_ACQ = 0x30,
	TN_NVME_DOORBELLS = 0x1000, /* (PCIe 3.1.2) */
};

#define TN_NVME_CC_ENABLE 1u
#define TN_NVME_CC_SHUTDOWN (1u << 14)	      /* SHN: normal */
#define TN_NVME_CC_SHUTDOWN_MASK (3u << 14)
#define TN_NVME_CC_ENTRIES (6u << 16 | 4u << 20) /* IOSQES, IOCQES: 64 and 16 bytes */
#define TN_NVME_CSTS_READY 1u
#define TN_NVME_CSTS_FATAL 2u
#define TN_NVME_CSTS_SHUT (2u << 2) /* SHST: complete */
#define TN_NVME_CSTS_SHUT_MASK (3u << 2)
#define TN_NVME_GONE UINT32_MAX /* what reads return from a controller that was unplugged */

TN_HD uint32_t tn_nvme_cap_entries(uint64_t cap) /* MQES, from 0: most entries of an I/O queue */
{
	return (uint32_t)(cap & 0xffff) + 1;
}

/* TO: by when CSTS.RDY follows CC.EN (Base 3.1.3.1, 3.5.1), and one unit more: a controller may need all of it, and 0 is no time at all. */
TN_HD uint64_t tn_nvme_cap_timeout_ns(uint64_t cap)
{
	return (((cap >> 24) & 0xff) + 1) * 500000000ull;
}

TN_HD uint32_t tn_nvme_cap_stride(uint64_t cap) /* DSTRD: bytes from one doorbell to the next */
{
	return 4u << ((cap >> 32) & 15);
}

TN_HD uint32_t tn_nvme_cap_page_shift(uint64_t cap) /* MPSMIN: the smallest memory page */
{
	return 12u + (uint32_t)((cap >> 48) & 15);
}

TN_HD int tn_nvme_cap_nvm(uint64_t cap) /* CSS: the NVM command set is there */
{
	return (int)((cap >> 37) & 1);
}

/* Offset of a doorbell: of a submission queue's tail (PCIe 3.1.2.1), or of a completion queue's head (PCIe 3.1.2.2). */
TN_HD uint64_t tn_nvme_doorbell(uint64_t cap, uint32_t queue, uint32_t completion)
{
	return TN_NVME_DOORBELLS + (uint64_t)(2 * queue + completion) * tn_nvme_cap_stride(cap);
}

/* ---- entries of queues (Base 3.3.3.1, 3.3.3.2) --------------------------------------------------------------------- */

enum tn_nvme_admin_opcode {
	TN_NVME_DELETE_SQ = 0x00,
	TN_NVME_CREATE_SQ = 0x01,
	TN_NVME_DELETE_CQ = 0x04,
	TN_NVME_CREATE_CQ = 0x05,
	TN_NVME_IDENTIFY = 0x06,
	TN_NVME_ABORT = 0x08,
	TN_NVME_SET_FEATURES = 0x09,
};

enum tn_nvme_opcode { TN_NVME_FLUSH = 0x00, TN_NVME_WRITE = 0x01, TN_NVME_READ = 0x02, TN_NVME_WRITE_ZEROES = 0x08, TN_NVME_DATASET = 0x09 };

#define TN_NVME_FEATURE_CACHE 6u  /* volatile write cache (Base 5.27.1.4) */
#define TN_NVME_FEATURE_QUEUES 7u /* number of queues (Base 5.27.1.5) */
#define TN_NVME_FLAG_SGL 0x40u	  /* PSDT: the data pointer is an SGL */
#define TN_NVME_FUA (1u << 30)	  /* dword 12 of a write: durable when it completes (NVM 3.2.6) */
#define TN_NVME_DEALLOCATE 4u	  /* dword 11 of a dataset management command (NVM 3.2.3) */

/** struct tn_nvme_command - entry of a submission queue; data: PRP1 and PRP2, or one SGL descriptor */
struct tn_nvme_command {
	uint8_t opcode;
	uint8_t flags;
	uint16_t id;
	uint32_t namespace_id;
	uint32_t dword2[2];
	uint64_t metadata;
	uint64_t data[2];
	uint32_t dword10, dword11, dword12, dword13, dword14, dword15;
};

/** struct tn_nvme_completion - entry of a completion queue; status: the phase in bit 0, above it code (8 bits) and type (3 bits) */
struct tn_nvme_completion {
	uint32_t result;
	uint32_t reserved;
	uint16_t sq_head;
	uint16_t sq_id;
	uint16_t id;
	uint16_t status;
};

/** struct tn_nvme_sgl - an SGL descriptor (Base 4.1.2) */
struct tn_nvme_sgl {
	uint64_t address;
	uint32_t length;
	uint8_t reserved[3];
	uint8_t type;
};

#define TN_NVME_SGL_DATA 0x00u	       /* a block of data */
#define TN_NVME_SGL_SEGMENT 0x20u      /* of more descriptors, the last of which names a further segment */
#define TN_NVME_SGL_LAST_SEGMENT 0x30u /* of more descriptors */

/** struct tn_nvme_range - of a dataset management command (NVM 3.2.3) */
struct tn_nvme_range {
	uint32_t attributes;
	uint32_t blocks;
	uint64_t first;
};

TN_RING_CHECK(sizeof(struct tn_nvme_command) == 64 && offsetof(struct tn_nvme_command, data) == 24 &&
		      offsetof(struct tn_nvme_command, dword10) == 40,
	      "a command is 64 bytes");
TN_RING_CHECK(sizeof(struct tn_nvme_completion) == 16 && offsetof(struct tn_nvme_completion, id) == 12, "a completion is 16 bytes");
TN_RING_CHECK(sizeof(struct tn_nvme_sgl) == 16 && offsetof(struct tn_nvme_sgl, type) == 15, "an SGL descriptor is 16 bytes");
TN_RING_CHECK(sizeof(struct tn_nvme_range) == 16, "a range is 16 bytes");

/* Status without the phase: type and code (Base 3.3.3.2.1); 0: success. */
TN_HD uint32_t tn_nvme_status(const struct tn_nvme_completion *c)
{
	return (c->status >> 1) & 0x7ff;
}

enum tn_nvme_status_code {
	TN_NVME_INVALID_OPCODE = 0x001,
	TN_NVME_INVALID_FIELD = 0x002,
	TN_NVME_ID_CONFLICT = 0x003,
	TN_NVME_TRANSFER_ERROR = 0x004,
	TN_NVME_INTERNAL_ERROR = 0x006,
	TN_NVME_ABORTED = 0x007,
	TN_NVME_SQ_DELETED = 0x008,
	TN_NVME_INVALID_NAMESPACE = 0x00b,
	TN_NVME_BAD_SGL = 0x00f,
	TN_NVME_BAD_PRP = 0x013,
	TN_NVME_LBA_RANGE = 0x080,
	TN_NVME_CAPACITY = 0x081,
	TN_NVME_INVALID_QUEUE = 0x101,
	TN_NVME_INVALID_SIZE = 0x102,
	TN_NVME_WRITE_FAULT = 0x280,
	TN_NVME_READ_FAULT = 0x281,
};

/* ---- identify data (Base 5.17.2, NVM 4.1.5) ------------------------------------------------------------------ */

#define TN_NVME_IDENTIFY_BYTES 4096u
#define TN_NVME_IDENTIFY_NAMESPACE 0u  /* CNS */
#define TN_NVME_IDENTIFY_CONTROLLER 1u
#define TN_NVME_IDENTIFY_ACTIVE 2u /* namespaces that there are */
#define TN_NVME_IDENTIFY_LIMITS 6u /* of a command set's commands: I/O Command Set specific Identify Controller (NVM 4.1.5) */

/* Offsets in the controller's data. */
enum {
	TN_NVME_ID_SERIAL = 4,	  /* 20 characters */
	TN_NVME_ID_MODEL = 24,	  /* 40 */
	TN_NVME_ID_FIRMWARE = 64, /* 8 */
	TN_NVME_ID_MDTS = 77,	  /* most bytes of a transfer: 2^n pages of CAP.MPSMIN; 0: no limit */
	TN_NVME_ID_ACL = 258,	  /* aborts at once, from 0 */
	TN_NVME_ID_NN = 516,	  /* 32 bits: namespaces */
	TN_NVME_ID_ONCS = 520,	  /* 16 bits: bit 2: dataset management, 3: write zeroes */
	TN_NVME_ID_VWC = 525,	  /* bit 0: a volatile write cache */
	TN_NVME_ID_SGLS = 536,	  /* 32 bits; bits 1:0: what follows; 0: no SGLs; 3 is reserved, and taken for 0 */
};

#define TN_NVME_SGLS_BYTES 1u  /* pieces may begin and end at any byte */
#define TN_NVME_SGLS_DWORDS 2u /* at dwords only */

/* Offsets in the limits of the NVM command set. */
enum {
	TN_NVME_LIMITS_WZSL = 1, /* most bytes of a write zeroes: 2^n pages of CAP.MPSMIN; 0: no limit. MDTS is none, as no data move (Base 5.17.2.1) */
};

/* Offsets in a namespace's data. */
enum {
	TN_NVME_NS_SIZE = 0,   /* 64 bits: logical blocks */
	TN_NVME_NS_NLBAF = 25, /* LBA formats, from 0 */
	TN_NVME_NS_FLBAS = 26, /* bits 3:0: the LBA format in use; bits 6:5: bits 5:4 of it if NLBAF is above 16 */
	TN_NVME_NS_DPS = 29,   /* bits 2:0: end-to-end protection */
	TN_NVME_NS_LBAF = 128, /* formats of 32 bits: metadata bytes (15:0), log2 of the block's bytes (23:16) */
};

#endif
