/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test-gds-device DEVICE_PLUGIN GDS_PLUGIN [DIR]: bytes between a file in DIR (default: /var/tmp) and a device's memory by the plugin gds, for a machine
 * with a GPU: libtenuto_cuda.so libtenuto_gds.so. Links libc alone, and opens both plugins itself.
 *
 * Prints a line of JSON per check and per figure. Exit status: 0: all is right; 1: something is not; 77: there is no device, or cuFile does not start.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tenuto/device_file.h>
#include <tenuto/device_memory.h>
#include <tenuto/plugin.h>

#define BYTES (64ull << 20)
#define PASSES 4u /* that a figure is taken of */
#define PIECE (4ull << 20)
#define THREADS 8u
#define PAGES (32ull << 10)   /* a piece of a queue's transfer */
#define TRANSFER (1ull << 20) /* bytes of one */
#define START_SECONDS 30

static const struct tn_device_driver *driver;
static const struct tn_device_file_ops *gds;
static char detail[256];
static bool wrong;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static bool check(const char *name, int rc)
{
	printf("{\"check\": \"%s\", \"ok\": %s, \"code\": %d, \"detail\": \"", name, rc ? "false" : "true", rc);
	for (const char *c = rc ? detail : ""; *c; c++)
		putchar(*c < ' ' || *c > '~' || *c == '"' || *c == '\\' ? '?' : *c);
	puts("\"}");
	wrong |= rc != 0;
	return rc == 0;
}

static void report_figure(const char *way, unsigned threads, uint64_t ns)
{
	printf("{\"figure\": \"gds\", \"way\": \"%s\", \"threads\": %u, \"piece_kib\": %llu, \"gb_per_s\": %.3f}\n", way, threads, PIECE >> 10,
	       ns ? (double)(PASSES * BYTES) / (double)ns : 0);
}

static const void *table_of(const char *path, uint32_t kind)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const struct tn_plugin *plugin = library ? dlsym(library, "tn_plugin") : NULL;

	if (plugin && plugin->kind == kind)
		return plugin->table;
	fprintf(stderr, "%s: %s\n", path, library ? "no plugin of this kind" : dlerror());
	return NULL;
}

/* Bytes that say where they are in the file. */
static void fill(uint64_t *word, uint64_t first)
{
	for (uint64_t i = 0; i < BYTES / 8; i++)
		word[i] = first + i;
}

static int write_all(const char *path, const char *bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	uint64_t at = 0;
	ssize_t n = 1;

	while (fd >= 0 && at < BYTES && n > 0) {
		n = write(fd, bytes + at, BYTES - at);
		at += n > 0 ? (uint64_t)n : 0;
	}
	if (fd < 0 || at < BYTES || fsync(fd) || close(fd)) {
		snprintf(detail, sizeof(detail), "%.200s: %s", path, strerror(errno));
		return -EIO;
	}
	return 0;
}

/* Whole memory of the device to or from host memory, which is pinned. */
static int copy(void *stream, enum tn_device_way way, void *device, void *host)
{
	struct tn_device_piece piece = {.device = device, .other = host, .bytes = BYTES};
	uint64_t event;
	int rc = driver->ops->copy(driver, stream, way, &piece, 1, &event);

	detail[0] = '\0';
	return rc ? rc : driver->ops->wait(driver, stream, event, now_ns() + 60000000000u);
}

/* A thread's share of the pieces. */
struct share {
	struct tn_device_file *file;
	char *device;
	bool write;
	unsigned first, step;
	int rc;
	char detail[256];
};

static void *move_share(void *arg)
{
	struct share *s = arg;

	for (uint64_t i = s->first; i < PASSES * (BYTES / PIECE) && s->rc == 0; i += s->step) {
		uint64_t at = i * PIECE % BYTES;

		s->rc = s->write ? gds->write(s->file, s->device + at, PIECE, at, s->detail, sizeof(s->detail)) :
				   gds->read(s->file, s->device + at, PIECE, at, s->detail, sizeof(s->detail));
	}
	return NULL;
}

static int move_all(struct tn_device_file *file, char *device, bool write, unsigned threads)
{
	struct share share[THREADS];
	pthread_t thread[THREADS];
	uint64_t begin = now_ns();
	unsigned started = 0;
	int rc = 0;

	for (; started < threads && rc == 0; started += rc == 0) {
		share[started] = (struct share){.file = file, .device = device, .write = write, .first = started, .step = threads};
		rc = -pthread_create(&thread[started], NULL, move_share, &share[started]);
	}
	for (unsigned i = 0; i < started; i++) {
		pthread_join(thread[i], NULL);
		if (share[i].rc && !rc) {
			rc = share[i].rc;
			memcpy(detail, share[i].detail, sizeof(detail));
		}
	}
	if (rc == 0)
		report_figure(write ? "device to file" : "file to device", threads, now_ns() - begin);
	return rc;
}

/* ---- by queues: pieces of pages, as those of a cache are ------------------------------------------------------------- */

struct move {
	struct tn_device_file_transfer t;
	struct iovec piece[TRANSFER / PAGES];
	int *left;
};

static void moved(struct tn_device_file_transfer *t)
{
	__atomic_fetch_sub(((struct move *)t->arg)->left, 1, __ATOMIC_ACQ_REL);
}

/* All of it, in transfers that are all in the queue at once. */
static int move_by_queue(struct tn_device_file_queue *queue, struct tn_device_file *file, char *device, bool write, const char *way)
{
	static struct move move[BYTES / TRANSFER];
	int left = PASSES * (BYTES / TRANSFER), rc = 0;
	uint64_t begin = now_ns();

	for (unsigned pass = 0; pass < PASSES; pass++) {
		int after = left - (int)(BYTES / TRANSFER);

		for (uint64_t i = 0; i < BYTES / TRANSFER; i++) {
			struct move *m = &move[i];

			for (uint64_t k = 0; k < TRANSFER / PAGES; k++)
				m->piece[k] = (struct iovec){device + i * TRANSFER + k * PAGES, PAGES};
			m->left = &left;
			m->t = (struct tn_device_file_transfer){.file = file, .piece = m->piece, .npieces = TRANSFER / PAGES, .write = write,
								.offset = i * TRANSFER, .done = moved, .arg = m};
			gds->submit(queue, &m->t);
		}
		while (__atomic_load_n(&left, __ATOMIC_ACQUIRE) > after)
			usleep(50);
		for (uint64_t i = 0; i < BYTES / TRANSFER && rc == 0; i++) {
			rc = move[i].t.status;
			memcpy(detail, move[i].t.detail, sizeof(move[i].t.detail));
		}
	}
	printf("{\"figure\": \"gds queue\", \"calls\": \"%s\", \"way\": \"%s\", \"streams\": %u, \"piece_kib\": %llu, \"gb_per_s\": %.3f}\n", way,
	       write ? "device to file" : "file to device", THREADS, PAGES >> 10, rc ? 0 : (double)(PASSES * BYTES) / (double)(now_ns() - begin));
	return rc;
}

static int compare(const char *path, const uint64_t *host, uint64_t first)
{
	for (uint64_t i = 0; i < BYTES / 8; i++)
		if (host[i] != first + i) {
			snprintf(detail, sizeof(detail), "%.150s: byte %llu is not what was written", path, (unsigned long long)(i * 8));
			return -EBADMSG;
		}
	return 0;
}

static int read_back(const char *path, char *host)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t at = 0;
	ssize_t n = 1;

	while (fd >= 0 && at < BYTES && n > 0) {
		n = pread(fd, host + at, BYTES - at, (off_t)at);
		at += n > 0 ? (uint64_t)n : 0;
	}
	close(fd);
	snprintf(detail, sizeof(detail), "%.200s: %llu bytes came", path, (unsigned long long)at);
	return at == BYTES ? 0 : -EIO;
}

/* Of cuFile's other calls it is not known whether each machine has them: they are reported. */
static void check_queues(const char *path, const char *other, struct tn_device_file *from, struct tn_device_file *to, char *device, void *stream, char *host)
{
	static const char *const names[] = {[TN_DEVICE_FILE_SYNC] = "sync", [TN_DEVICE_FILE_BATCH] = "batch", [TN_DEVICE_FILE_ASYNC] = "async"};

	for (unsigned calls = TN_DEVICE_FILE_SYNC; calls <= TN_DEVICE_FILE_ASYNC; calls++) {
		struct tn_device_file_queue *queue;
		int rc = gds->queue_create((enum tn_device_file_calls)calls, THREADS, &queue, detail, sizeof(detail));

		if (rc) {
			printf("{\"figure\": \"gds queue\", \"calls\": \"%s\", \"code\": %d}\n", names[calls], rc);
			continue;
		}
		memset(host, 0, BYTES);
		check("the device is cleared", copy(stream, TN_DEVICE_FROM_HOST, device, host));
		check("a queue brings all bytes of the file", move_by_queue(queue, from, device, false, names[calls]));
		check("they are copied to the host", copy(stream, TN_DEVICE_TO_HOST, device, host));
		check("they are the file's", compare(path, (uint64_t *)(void *)host, 1000));
		fill((uint64_t *)(void *)host, calls * 7000000000u);
		check("others are copied to the device", copy(stream, TN_DEVICE_FROM_HOST, device, host));
		check("a queue brings all of them to the other file", move_by_queue(queue, to, device, true, names[calls]));
		check("they are read there", read_back(other, host));
		check("they are the device's", compare(other, (uint64_t *)(void *)host, calls * 7000000000u));
		gds->queue_destroy(queue);
	}
}

/* file to device, and device to another file; what arrived is looked at past the plugin. */
static void check_transfers(const char *path, const char *other, char *device, void *stream, char *host)
{
	struct tn_device_file *from, *to;

	fill((uint64_t *)(void *)host, 1000);
	if (!check("a file is written", write_all(path, host)) || !check("the other file is written", write_all(other, host)))
		return;
	if (!check("the file is registered", gds->acquire(path, 0, &from, detail, sizeof(detail))))
		return;
	if (check("the other file is registered", gds->acquire(other, 1, &to, detail, sizeof(detail)))) {
		for (unsigned threads = 1; threads <= THREADS; threads *= THREADS) {
			memset(host, 0, BYTES);
			check("the device is cleared", copy(stream, TN_DEVICE_FROM_HOST, device, host));
			check("all bytes go from the file to the device", move_all(from, device, false, threads));
			check("they are copied to the host", copy(stream, TN_DEVICE_TO_HOST, device, host));
			check("they are the file's", compare(path, (uint64_t *)(void *)host, 1000));
			fill((uint64_t *)(void *)host, threads * 5000000000u);
			check("others are copied to the device", copy(stream, TN_DEVICE_FROM_HOST, device, host));
			check("all bytes go from the device to the other file", move_all(to, device, true, threads));
			check("they are read there", read_back(other, host));
			check("they are the device's", compare(other, (uint64_t *)(void *)host, threads * 5000000000u));
		}
		check_queues(path, other, from, to, device, stream, host);
		check("what is not aligned is refused", gds->read(from, device, 100, 0, detail, sizeof(detail)) == -ENOTSUP ? 0 : -EINVAL);
		gds->release(to);
	}
	gds->release(from);
	check("no file is held", -gds->cleanup());
}

static int run(const char *dir)
{
	static const char *const ways[] = {"host memory", "kernel module", "PCI P2PDMA"};
	struct tn_device_file_properties p = {0};
	char path[4096], other[4096], *host;
	void *stream = NULL, *device = NULL;

	if (!check("gds describes itself", gds->describe(&p, detail, sizeof(detail))))
		return 1;
	printf("{\"gds\": \"%s\", \"library\": %u, \"module\": \"%u.%u\"}\n", p.way < 3 ? ways[p.way] : "?", p.version, p.module_major, p.module_minor);
	snprintf(path, sizeof(path), "%.4000s/tenuto-gds-%d-a", dir, (int)getpid());
	snprintf(other, sizeof(other), "%.4000s/tenuto-gds-%d-b", dir, (int)getpid());
	host = aligned_alloc(4096, BYTES);
	if (host && check("host memory is pinned", driver->ops->pin(driver, host, BYTES))) {
		if (check("the device has memory", driver->ops->allocate(driver, 0, BYTES, &device))) {
			struct tn_memory_range range = {.address = device, .bytes = BYTES};

			if (check("it is registered", driver->ops->register_range(driver, &range, detail, sizeof(detail)))) {
				if (check("a stream is made", driver->ops->stream_create(driver, 0, &stream))) {
					check_transfers(path, other, device, stream, host);
					driver->ops->stream_destroy(driver, stream);
				}
				driver->ops->unregister_range(driver, &range);
			}
			driver->ops->release(driver, 0, device);
		}
		driver->ops->unpin(driver, host, BYTES);
	}
	free(host);
	unlink(path);
	unlink(other);
	return wrong;
}

int main(int argc, char **argv)
{
	int n, rc;

	if (argc < 3) {
		fprintf(stderr, "usage: test-gds-device DEVICE_PLUGIN GDS_PLUGIN [DIR]\n");
		return 2;
	}
	driver = table_of(argv[1], TN_PLUGIN_DEVICE);
	gds = table_of(argv[2], TN_PLUGIN_DEVICE_FILE);
	if (!driver || !gds)
		return 1;
	n = driver->ops->count(driver, detail, sizeof(detail));
	if (n <= 0 || !driver->ops->allocate) {
		printf("{\"skip\": \"no device: %s\"}\n", detail);
		return 77;
	}
	rc = gds->start(now_ns() + START_SECONDS * 1000000000ull, detail, sizeof(detail));
	if (rc) {
		check("gds starts", rc);
		return 77;
	}
	return run(argc > 3 ? argv[3] : "/var/tmp");
}
