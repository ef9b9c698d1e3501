/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of `tenuto bench nvme` share: a store on the software controller, beside memcpy. */
#ifndef TENUTO_NVME_BENCH_H
#define TENUTO_NVME_BENCH_H

#include <stdbool.h>
#include <stdint.h>

enum { NVME_STORE_SAVE, NVME_STORE_LOAD, NVME_STORE_OPS };

/* Of one round, by operation. */
struct nvme_store_figures {
	double store_s[NVME_STORE_OPS], memcpy_s[NVME_STORE_OPS];
};

struct nvme_store;

/* total bytes in blocks of 32 objects. 0, or -errno. */
int nvme_store_open(uint64_t object_bytes, uint64_t total, bool verify, struct nvme_store **out);
/* Saves new blocks and flushes, then loads them; memcpy before each, or after. */
int nvme_store_round(struct nvme_store *s, bool memcpy_first, struct nvme_store_figures *f);
/* That a round saves, and loads. */
uint64_t nvme_store_bytes(const struct nvme_store *s);
/* NULL-safe. */
int nvme_store_close(struct nvme_store *s);

#endif
