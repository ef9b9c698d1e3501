/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench-cuda-copies [DEVICE]: bytes per second of scattered copies between pinned host memory and a GPU, both ways, as a share of one copy of the same bytes;
 * the copy kernel with several numbers of blocks against the copy engine; and of checksums on the device. One line of JSON per figure, the
 * median of five runs that alternate. Exit code 77 without a GPU. It links nothing but libc.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <tenuto/device_memory.h>
#include <tenuto/plugin.h>
#include <time.h>

#include "copy.h"

#define AREA (1ull << 30)
#define PIECES_MAX 10000u
#define RUNS 5

static const struct tn_device_driver *driver;
static const struct tn_device_driver_ops *ops;
static struct tn_device_properties about;
static uint32_t device;
static unsigned char *memory, *host;
static void *stream;
static struct tn_device_piece piece[PIECES_MAX];
static struct tn_device_sum sum[PIECES_MAX];

/* How pieces are copied. @below: tn_cuda_kernel_below_bytes; 0 blocks: the engine */
struct path {
	const char *name;
	uint64_t below;
	uint32_t blocks;
};
static const struct path paths[] = {{"one copy", 0, 0},		      {"engine", 0, 0},		       {"kernel", UINT64_MAX, 8}, {"kernel", UINT64_MAX, 16},
				    {"kernel", UINT64_MAX, 32}, {"kernel", UINT64_MAX, 64}, {"kernel", UINT64_MAX, 128}};
#define PATHS (sizeof(paths) / sizeof(paths[0]))

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void must(int rc, const char *what)
{
	if (rc == 0)
		return;
	fprintf(stderr, "%s: %s\n", what, strerror(-rc));
	exit(1);
}

/* Does not sleep, unlike a wait with a deadline. */
static void reach(uint64_t event)
{
	int rc;

	while ((rc = ops->wait(driver, stream, event, 0)) == -ETIMEDOUT)
		;
	must(rc, "wait");
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t median(uint64_t *ns)
{
	qsort(ns, RUNS, sizeof(*ns), by_value);
	return ns[RUNS / 2];
}

/* Every slot of host memory once, in a shuffled place of the device's. */
static uint32_t scatter(uint64_t bytes)
{
	uint32_t n = (uint32_t)(AREA / bytes < PIECES_MAX ? AREA / bytes : PIECES_MAX);
	uint64_t x = 88172645463325252ull;

	for (uint32_t i = 0; i < n; i++)
		piece[i] = (struct tn_device_piece){memory + i * bytes, host + i * bytes, bytes};
	for (uint32_t i = n; i-- > 1;) {
		void *at = piece[i].device;
		uint32_t k;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		k = (uint32_t)(x % (i + 1));
		piece[i].device = piece[k].device;
		piece[k].device = at;
	}
	return n;
}

static uint64_t copy_once(const struct path *path, enum tn_device_way way, uint32_t n, uint64_t bytes, uint64_t *begun_ns)
{
	struct tn_device_piece one = {memory, host, n * bytes};
	uint64_t event, begin;

	tn_cuda_kernel_below_bytes = path->below;
	tn_cuda_bus_blocks = path->blocks;
	begin = now_ns();
	must(path == paths ? ops->copy(driver, stream, way, &one, 1, &event) : ops->copy(driver, stream, way, piece, n, &event), "copy");
	*begun_ns = now_ns() - begin;
	reach(event);
	return now_ns() - begin;
}

static void measure_copies(enum tn_device_way way, uint64_t bytes)
{
	uint64_t ns[PATHS][RUNS], begun[PATHS][RUNS], ignored, one = 0;
	uint32_t n = scatter(bytes);

	for (unsigned int p = 0; p < PATHS; p++)
		copy_once(&paths[p], way, n, bytes, &ignored);
	for (int run = 0; run < RUNS; run++) {
		for (unsigned int p = 0; p < PATHS; p++)
			ns[p][run] = copy_once(&paths[p], way, n, bytes, &begun[p][run]);
	}
	for (unsigned int p = 0; p < PATHS; p++) {
		uint64_t t = median(ns[p]);

		one = p == 0 ? t : one;
		printf("{\"figure\": \"scattered copies\", \"device\": \"%s\", \"way\": \"%s\", \"piece_kib\": %llu, \"pieces\": %u, \"path\": \"%s\", "
		       "\"blocks\": %u, \"gb_per_s\": %.2f, \"share_of_one_copy\": %.3f, \"begin_us\": %.1f}\n",
		       about.name, way == TN_DEVICE_TO_HOST ? "to host" : "from host", (unsigned long long)(bytes >> 10), n, paths[p].name, paths[p].blocks,
		       (double)(n * bytes) / (double)t, (double)one / (double)t, (double)median(begun[p]) / 1e3);
	}
	fflush(stdout);
}

static void measure_sums(uint64_t bytes)
{
	uint64_t ns[RUNS], event, begin;
	uint32_t n = scatter(bytes);

	for (uint32_t i = 0; i < n; i++)
		sum[i].npieces = 1;
	for (int run = -1; run < RUNS; run++) {
		begin = now_ns();
		must(ops->sum(driver, stream, piece, sum, n, &event), "sum");
		reach(event);
		if (run >= 0)
			ns[run] = now_ns() - begin;
	}
	printf("{\"figure\": \"checksums\", \"device\": \"%s\", \"object_kib\": %llu, \"objects\": %u, \"gb_per_s\": %.1f}\n", about.name,
	       (unsigned long long)(bytes >> 10), n, (double)(n * bytes) / (double)median(ns));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	char detail[256] = "no device";
	int count;

	driver = tn_plugin.table;
	ops = driver->ops;
	device = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
	count = ops->count(driver, detail, sizeof(detail));
	if (count <= 0 || device >= (uint32_t)count) {
		printf("skipped: %s\n", count > 0 ? "no such device" : detail);
		return 77;
	}
	must(ops->properties(driver, device, &about), "properties");
	must(ops->allocate(driver, device, AREA, (void **)&memory), "allocate");
	host = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	must(host == MAP_FAILED ? -ENOMEM : 0, "host memory");
	must(ops->pin(driver, host, AREA), "pin");
	must(ops->stream_create(driver, device, &stream), "stream");
	for (uint64_t kib = 32; kib <= 512; kib *= 2) {
		measure_copies(TN_DEVICE_FROM_HOST, kib << 10);
		measure_copies(TN_DEVICE_TO_HOST, kib << 10);
	}
	for (uint64_t kib = 32; kib <= 512 && about.sums; kib *= 2)
		measure_sums(kib << 10);
	ops->stream_destroy(driver, stream);
	ops->unpin(driver, host, AREA);
	ops->release(driver, device, memory);
	return 0;
}
