/* SPDX-License-Identifier: Apache-2.0 */
/* See cuda_rig.h. */
#include "cuda_rig.h"

#include <dlfcn.h>
#include <string.h>
#include <sys/mman.h>

void cuda_rig_open(struct cuda_rig *r, bool kernels)
{
	const struct tn_plugin *plugin;

	*r = (struct cuda_rig){.plugin = dlopen(kernels ? CUDA_PLUGIN_KERNELS : CUDA_PLUGIN_PLAIN, RTLD_NOW | RTLD_LOCAL)};
	r->left = fake_cuda_left();
	if (!r->plugin)
		print_error("%s\n", dlerror());
	assert_non_null(r->plugin);
	plugin = dlsym(r->plugin, "tn_plugin");
	assert_non_null(plugin);
	assert_int_equal(plugin->abi, TN_PLUGIN_ABI);
	assert_int_equal(plugin->kind, TN_PLUGIN_DEVICE);
	assert_string_equal(plugin->name, "cuda");
	r->driver = plugin->table;
	r->ops = r->driver->ops;
	assert_int_equal(r->ops->abi, TN_DEVICE_DRIVER_ABI);
	tn_rng_seed(&r->rng, tn_test_seed());
}

void cuda_rig_up(struct cuda_rig *r, bool kernels)
{
	struct tn_memory_range range = {.bytes = CUDA_RIG_BYTES};
	char detail[256] = "";

	cuda_rig_open(r, kernels);
	assert_int_equal(r->ops->count(r->driver, detail, sizeof(detail)), FAKE_DEVICES);
	assert_int_equal(r->ops->allocate(r->driver, 0, CUDA_RIG_BYTES, (void **)&r->device), 0);
	range.address = r->device;
	assert_int_equal(r->ops->register_range(r->driver, &range, detail, sizeof(detail)), 0);
	r->host = mmap(NULL, CUDA_RIG_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	r->inside = malloc(CUDA_RIG_BYTES);
	assert_true(r->host != MAP_FAILED && r->inside);
	assert_int_equal(r->ops->pin(r->driver, r->host, CUDA_RIG_BYTES), 0);
	assert_int_equal(r->ops->stream_create(r->driver, 0, &r->stream), 0);
	for (uint32_t i = 0; i < CUDA_RIG_BYTES; i += 8) {
		uint64_t a = tn_rng_next(&r->rng), b = tn_rng_next(&r->rng);

		memcpy(r->inside + i, &a, 8);
		memcpy(r->host + i, &b, 8);
	}
	fake_cuda_poke(r->device, r->inside, CUDA_RIG_BYTES);
}

void cuda_rig_close(struct cuda_rig *r)
{
	assert_int_equal(fake_cuda_depth(), 0);
	assert_true(fake_cuda_mode_is_kept());
	assert_int_equal(dlclose(r->plugin), 0);
}

void cuda_rig_down(struct cuda_rig *r)
{
	struct tn_memory_range range = {.address = r->device, .bytes = CUDA_RIG_BYTES};

	r->ops->stream_destroy(r->driver, r->stream);
	r->ops->unpin(r->driver, r->host, CUDA_RIG_BYTES);
	r->ops->unregister_range(r->driver, &range);
	r->ops->release(r->driver, 0, r->device);
	munmap(r->host, CUDA_RIG_BYTES);
	free(r->inside);
	assert_int_equal(fake_cuda_left(), r->left);
	cuda_rig_close(r);
}

uint32_t cuda_rig_pieces(struct cuda_rig *r, struct tn_device_piece *piece, uint32_t most, uint32_t largest)
{
	uint32_t n = 0, at = 0, other = 0, bytes;

	while (n < most) {
		bytes = tn_rng_below(&r->rng, largest + 1);
		at += tn_rng_below(&r->rng, 64);
		other += tn_rng_below(&r->rng, 64);
		if (tn_rng_below(&r->rng, 4) > 0) {
			at = (at + 15) / 16 * 16;
			other = (other + 15) / 16 * 16 + (tn_rng_below(&r->rng, 2) ? 0 : 4 * tn_rng_below(&r->rng, 4));
		}
		if (at + bytes > CUDA_RIG_BYTES || other + bytes > CUDA_RIG_BYTES)
			break;
		piece[n++] = (struct tn_device_piece){r->device + at, r->host + other, bytes};
		at += bytes;
		other += bytes;
	}
	for (uint32_t i = 1; i < n; i++) {
		uint32_t k = tn_rng_below(&r->rng, i + 1);
		struct tn_device_piece p = piece[i];

		piece[i] = piece[k];
		piece[k] = p;
	}
	return n;
}

int cuda_rig_wait(struct cuda_rig *r, uint64_t event)
{
	return tn_test_ended(r->ops->wait(r->driver, r->stream, event, tn_test_deadline()));
}

void cuda_rig_copy(struct cuda_rig *r, enum tn_device_way way, const struct tn_device_piece *piece, uint32_t n)
{
	unsigned char *host = malloc(CUDA_RIG_BYTES), *device = malloc(CUDA_RIG_BYTES);
	uint64_t event;

	assert_true(host && device);
	memcpy(host, r->host, CUDA_RIG_BYTES);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t d = (uint64_t)((unsigned char *)piece[i].device - r->device), h = (uint64_t)((unsigned char *)piece[i].other - r->host);

		if (way == TN_DEVICE_TO_HOST)
			memcpy(host + h, r->inside + d, piece[i].bytes);
		else
			memcpy(r->inside + d, host + h, piece[i].bytes);
	}
	assert_int_equal(r->ops->copy(r->driver, r->stream, way, piece, n, &event), 0);
	assert_int_equal(cuda_rig_wait(r, event), 0);
	fake_cuda_peek(r->device, device, CUDA_RIG_BYTES);
	assert_memory_equal(device, r->inside, CUDA_RIG_BYTES);
	assert_memory_equal(host, r->host, CUDA_RIG_BYTES);
	free(host);
	free(device);
}
