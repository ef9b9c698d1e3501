/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA driver on a real GPU: test-cuda-device PLUGIN [SEED]. Tests each device, prints a line of JSON per check, and ends with 1 if one is not ok, with
 * 77 if there is no GPU. It links nothing but libc, so that it runs where it was not built.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <tenuto/device_memory.h>
#include <tenuto/plugin.h>
#include <time.h>
#include <unistd.h>

#include "base/checksum_targets.h"

#define AREA (256ull << 20)
#define PIECES 10000u
#define OBJECTS 2000u
#define SECOND 1000000000ull

static const struct tn_device_driver *driver;
static const struct tn_device_driver_ops *ops;
static const char *program, *plugin_path;
static uint64_t seed = 1;
static struct tn_device_properties about;
static uint32_t device;
static unsigned char *memory, *host, *back, *expected;
static void *stream;
static struct tn_device_piece piece[PIECES];
static int failures;

/* splitmix64 */
static uint64_t next(void)
{
	uint64_t z = (seed += 0x9e3779b97f4a7c15ull);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

static void report(const char *check, int rc, bool same, uint64_t n, uint64_t bytes)
{
	bool ok = rc == 0 && same;

	failures += !ok;
	printf("{\"check\": \"%s\", \"device\": %u, \"name\": \"%s\", \"ok\": %s, \"error\": \"%s\", \"n\": %llu, \"bytes\": %llu}\n", check, device, about.name,
	       ok ? "true" : "false", rc ? strerror(-rc) : same ? "" : "not the same bytes", (unsigned long long)n, (unsigned long long)bytes);
	fflush(stdout);
}

static int reach(void *of, uint64_t event)
{
	return ops->wait(driver, of, event, now_ns() + 60 * SECOND);
}

static int copy_and_wait(enum tn_device_way way, const struct tn_device_piece *pieces, uint32_t n)
{
	uint64_t event;
	int rc = ops->copy(driver, stream, way, pieces, n, &event);

	return rc ? rc : reach(stream, event);
}

/* Pieces of odd sizes in shuffled places; both sides have gaps of up to 31 bytes, and any alignment. */
static uint32_t scatter(unsigned char *to_side, uint32_t largest, uint64_t *bytes)
{
	uint64_t at = 0, other = 0;
	uint32_t n = 0;

	*bytes = 0;
	while (n < PIECES) {
		uint64_t size = 1 + next() % largest;

		at += next() % 32;
		other += next() % 32;
		if (next() % 4 > 0) {
			at = (at + 15) / 16 * 16;
			other = (other + 15) / 16 * 16;
		}
		if (at + size > AREA || other + size > AREA)
			break;
		piece[n++] = (struct tn_device_piece){memory + at, to_side + other, size};
		at += size;
		other += size;
		*bytes += size;
	}
	for (uint32_t i = n; i-- > 1;) {
		uint32_t k = (uint32_t)(next() % (i + 1));
		struct tn_device_piece p = piece[i];

		piece[i] = piece[k];
		piece[k] = p;
	}
	return n;
}

static void check_copies(uint32_t largest, const char *to_device, const char *to_host)
{
	struct tn_device_piece all = {memory, back, AREA};
	uint64_t bytes;
	uint32_t n;
	int rc;

	for (uint64_t i = 0; i < AREA; i += 8) {
		uint64_t v = next();

		memcpy(host + i, &v, 8);
	}
	memset(back, 0x5a, AREA);
	memset(expected, 0x5a, AREA);
	rc = copy_and_wait(TN_DEVICE_FROM_HOST, &all, 1);
	n = scatter(host, largest, &bytes);
	for (uint32_t i = 0; i < n; i++)
		memcpy(expected + ((unsigned char *)piece[i].device - memory), piece[i].other, piece[i].bytes);
	if (!rc)
		rc = copy_and_wait(TN_DEVICE_FROM_HOST, piece, n);
	memset(back, 0, AREA);
	if (!rc)
		rc = copy_and_wait(TN_DEVICE_TO_HOST, &all, 1);
	report(to_device, rc, memcmp(back, expected, AREA) == 0, n, bytes);

	/* The device holds `expected` now. */
	n = scatter(back, largest, &bytes);
	memset(back, 0xa5, AREA);
	memset(host, 0xa5, AREA);
	for (uint32_t i = 0; i < n; i++)
		memcpy(host + ((unsigned char *)piece[i].other - back), expected + ((unsigned char *)piece[i].device - memory), piece[i].bytes);
	rc = copy_and_wait(TN_DEVICE_TO_HOST, piece, n);
	report(to_host, rc, memcmp(back, host, AREA) == 0, n, bytes);
}

/* Needs `expected` on the device. Objects of up to five pieces, and one whose pieces are the rest. */
static void check_sums(uint32_t largest, const char *check)
{
	static struct tn_device_sum sum[OBJECTS];
	uint64_t bytes, event, right = 0;
	uint32_t n = scatter(host, largest, &bytes), used = 0, objects = 0, at = 0;
	int rc;

	for (; objects < OBJECTS && used + 5 <= n; used += sum[objects++].npieces)
		sum[objects] = (struct tn_device_sum){.npieces = (uint32_t)(next() % 6)};
	rc = ops->sum(driver, stream, piece, sum, objects, &event);
	if (!rc)
		rc = reach(stream, event);
	bytes = 0;
	for (uint32_t i = 0; i < objects; at += sum[i++].npieces) {
		struct iovec iov[5];
		size_t length = 0;

		for (uint32_t k = 0; k < sum[i].npieces; k++) {
			iov[k] = (struct iovec){expected + ((unsigned char *)piece[at + k].device - memory), piece[at + k].bytes};
			length += piece[at + k].bytes;
		}
		right += sum[i].sum == tn_checksum_iov_sse2(iov, sum[i].npieces, 0, length);
		bytes += length;
	}
	report(check, rc, right == objects, objects, bytes);
}

static void check_words(void)
{
	uint64_t *word = (uint64_t *)(void *)host, event = 0;
	struct tn_device_piece p = {memory, host + 4096, 4096};
	void *other = NULL;
	bool late = false, order = false;
	int rc = ops->stream_create(driver, device, &other);

	word[0] = word[1] = 0;
	if (!rc)
		rc = ops->word_wait(driver, stream, &word[0], 5);
	if (!rc)
		rc = ops->stream_follow(driver, other, stream);
	if (!rc)
		rc = ops->copy(driver, other, TN_DEVICE_FROM_HOST, &p, 1, &event);
	if (!rc)
		rc = ops->word_write(driver, other, &word[1], 9);
	if (!rc) {
		uint64_t begin = now_ns();

		late = ops->wait(driver, other, event, begin + SECOND / 20) == -ETIMEDOUT && now_ns() >= begin + SECOND / 20 && word[1] == 0;
	}
	__atomic_store_n(&word[0], 6, __ATOMIC_SEQ_CST);
	if (event)
		rc = rc ? rc : reach(other, event);
	for (uint64_t end = now_ns() + 10 * SECOND; !rc && !order && now_ns() < end;)
		order = __atomic_load_n(&word[1], __ATOMIC_ACQUIRE) == 9;
	if (other)
		ops->stream_destroy(driver, other);
	report("words, streams that follow, deadline", rc, late && order, 1, 4096);
}

/* The other process: 4,096 bytes of 41 become 42. */
static int import_memory(void)
{
	unsigned char in[TN_DEVICE_EXPORT_BYTES], *pinned = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct tn_device_piece p = {.other = pinned, .bytes = 4096};
	int rc = read(0, in, sizeof(in)) == sizeof(in) && pinned != MAP_FAILED ? 0 : -EIO;

	if (!rc)
		rc = ops->import(driver, device, in, &p.device);
	if (!rc)
		rc = ops->pin(driver, pinned, 4096);
	if (!rc)
		rc = ops->stream_create(driver, device, &stream);
	if (!rc)
		rc = copy_and_wait(TN_DEVICE_TO_HOST, &p, 1);
	for (uint32_t i = 0; i < 4096 && !rc; i++)
		rc = pinned[i] == 41 ? 0 : -EBADMSG;
	if (!rc) {
		memset(pinned, 42, 4096);
		rc = copy_and_wait(TN_DEVICE_FROM_HOST, &p, 1);
	}
	if (!rc)
		ops->import_end(driver, device, p.device);
	return -rc;
}

static void check_ipc(void)
{
	unsigned char out[TN_DEVICE_EXPORT_BYTES];
	struct tn_device_piece p = {memory + 12345, host, 4096};
	bool same = true;
	int ends[2], status = 0, rc;
	char number[16];
	pid_t pid;

	memset(host, 41, 4096);
	rc = copy_and_wait(TN_DEVICE_FROM_HOST, &p, 1);
	if (!rc)
		rc = ops->exports(driver, memory + 12345, 4096, out);
	if (!rc && pipe(ends))
		rc = -errno;
	if (rc) {
		report("memory of another process", rc, true, 1, 4096);
		return;
	}
	snprintf(number, sizeof(number), "%u", device);
	pid = fork();
	if (pid == 0) {
		dup2(ends[0], 0);
		close(ends[1]);
		execl(program, program, plugin_path, "import", number, NULL);
		_exit(EIO);
	}
	if (pid < 0 || write(ends[1], out, sizeof(out)) != sizeof(out) || waitpid(pid, &status, 0) != pid)
		rc = -EIO;
	if (!rc && status)
		rc = WIFEXITED(status) ? -WEXITSTATUS(status) : -EIO;
	close(ends[0]);
	close(ends[1]);
	if (!rc)
		rc = copy_and_wait(TN_DEVICE_TO_HOST, &p, 1);
	for (uint32_t i = 0; i < 4096; i++)
		same &= host[i] == 42;
	report("memory of another process", rc, same, 1, 4096);
}

static void check_refusals(void)
{
	struct tn_memory_range range = {.address = host, .bytes = 4096, .device = device};
	char detail[256] = "";
	bool refused = ops->register_range(driver, &range, detail, sizeof(detail)) == -EINVAL;

	range.address = memory;
	range.bytes = AREA;
	report("ranges", ops->register_range(driver, &range, detail, sizeof(detail)), refused, 2, AREA);
}

static int test_device(void)
{
	int rc = ops->properties(driver, device, &about);

	if (!rc)
		rc = ops->allocate(driver, device, AREA, (void **)&memory);
	if (!rc)
		rc = ops->stream_create(driver, device, &stream);
	report("start", rc, true, 0, AREA);
	if (rc)
		return rc;
	check_refusals();
	check_copies(3000, "small pieces to the device", "small pieces to the host");
	check_copies(50000, "pieces of all sizes to the device", "pieces of all sizes to the host");
	if (about.sums) {
		check_sums(300, "checksums of short objects");
		check_sums(50000, "checksums of long objects");
	}
	if (about.words)
		check_words();
	check_ipc();
	ops->stream_destroy(driver, stream);
	ops->release(driver, device, memory);
	return 0;
}

static int open_plugin(char *detail, size_t detail_bytes)
{
	void *handle = dlopen(plugin_path, RTLD_NOW | RTLD_LOCAL);
	const struct tn_plugin *plugin = handle ? dlsym(handle, "tn_plugin") : NULL;

	if (!plugin) {
		snprintf(detail, detail_bytes, "%s", dlerror());
		return -EINVAL;
	}
	driver = plugin->table;
	ops = driver->ops;
	return ops->count(driver, detail, detail_bytes);
}

static void *host_memory(void)
{
	void *at = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED) {
		fprintf(stderr, "no %llu bytes of host memory\n", (unsigned long long)AREA);
		exit(1);
	}
	return at;
}

int main(int argc, char **argv)
{
	char detail[256] = "no device";
	int count;

	if (argc < 2) {
		fprintf(stderr, "usage: %s PLUGIN [SEED]\n", argv[0]);
		return 2;
	}
	program = argv[0];
	plugin_path = argv[1];
	count = open_plugin(detail, sizeof(detail));
	if (argc == 4 && strcmp(argv[2], "import") == 0) {
		device = (uint32_t)strtoul(argv[3], NULL, 10);
		return import_memory();
	}
	if (count <= 0) {
		printf("skipped: %s\n", detail);
		return count == -EINVAL ? 1 : 77;
	}
	seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	printf("{\"check\": \"seed\", \"seed\": %llu, \"devices\": %d}\n", (unsigned long long)seed, count);
	host = host_memory();
	back = host_memory();
	expected = host_memory();
	if (ops->pin(driver, host, AREA) || ops->pin(driver, back, AREA)) {
		fprintf(stderr, "%llu bytes of host memory cannot be pinned\n", 2 * (unsigned long long)AREA);
		return 1;
	}
	for (device = 0; device < (uint32_t)count; device++)
		test_device();
	ops->unpin(driver, host, AREA);
	ops->unpin(driver, back, AREA);
	return failures != 0;
}
