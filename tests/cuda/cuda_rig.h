/* SPDX-License-Identifier: Apache-2.0 */
/* The plugin over the fake libcuda, opened anew for each test, with device memory, pinned memory and streams. */
#ifndef CUDA_RIG_H
#define CUDA_RIG_H

#include <tenuto/device_memory.h>
#include <tenuto/plugin.h>

#include "base/rng.h"
#include "fake_cuda.h"
#include "tn_test.h"

#define CUDA_RIG_BYTES (4u << 20)

/**
 * struct cuda_rig
 * @device: CUDA_RIG_BYTES of device 0; @host: as many, pinned
 * @left: what earlier tests left of CUDA's, on purpose
 * @inside: what a test believes that is in the device memory
 */
struct cuda_rig {
	void *plugin;
	const struct tn_device_driver *driver;
	const struct tn_device_driver_ops *ops;
	unsigned char *device, *host, *inside;
	void *stream;
	unsigned int left;
	struct tn_rng rng;
};

/* Only the driver: kernels: with those that the fake runs. */
void cuda_rig_open(struct cuda_rig *r, bool kernels);
/* And all of it; random bytes on both sides. */
void cuda_rig_up(struct cuda_rig *r, bool kernels);
/* Everything is given back: of CUDA nothing is left, and this thread is as it was. */
void cuda_rig_down(struct cuda_rig *r);
void cuda_rig_close(struct cuda_rig *r);

/*
 * Cuts @bytes of both sides into up to @most pieces of up to @largest bytes, in any order, with bytes between them; some pieces are empty, and
 * sides are aligned to each other or not. Return: how many.
 */
uint32_t cuda_rig_pieces(struct cuda_rig *r, struct tn_device_piece *piece, uint32_t most, uint32_t largest);

/* Copies pieces, waits for them, and compares all bytes of both sides, those between the pieces, too. */
void cuda_rig_copy(struct cuda_rig *r, enum tn_device_way way, const struct tn_device_piece *piece, uint32_t n);

/* 0: reached; else as wait says. */
int cuda_rig_wait(struct cuda_rig *r, uint64_t event);

#endif
