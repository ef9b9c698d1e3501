/* SPDX-License-Identifier: Apache-2.0 */
/* See soft_rig.h. */
#include "device/soft_rig.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/rng.h"

#define MAGIC UINT64_C(0x74666f736e74)
#define MEMORIES 64u
#define RANGES 256u
#define STREAM_CALLS TN_DEVICE_CALLS /* that wait at most in a stream */
#define WAYS (TN_DEVICE_WITHIN + 1)
#define NAP_NS 20000u	   /* how often a stream looks at a word */

/* What names a memory in another process; fits into TN_DEVICE_EXPORT_BYTES. */
struct export {
	uint64_t magic, bytes;
	int64_t pid;
	int32_t fd;
};

struct memory {
	unsigned char *address, *bytes; /* for nobody, and for the device */
	uint64_t length;
	int fd;
	bool imported;
};

/* Host addresses that are pinned, or the device's that are registered. */
struct ranges {
	uint32_t n;
	struct range {
		uintptr_t address;
		uint64_t bytes;
	} range[RANGES];
};

enum kind { COPY, SUM, WORD_WAIT, WORD_WRITE, FOLLOW };

struct call {
	enum kind kind;
	enum tn_device_way way;
	struct tn_device_piece *piece;
	struct tn_device_sum *sum;
	uint32_t n;
	uint64_t *word, value; /* of FOLLOW: calls of the other stream that must be over */
	struct stream *other;
};

struct stream {
	struct tn_soft_device *device;
	pthread_t thread;
	struct tn_rng rng;
	struct call call[STREAM_CALLS];
	uint64_t begun, ended; /* an event is the number of its call, from 1 on */
	int failed;	       /* the first error: nothing goes on */
	bool stopping;
	pthread_cond_t news; /* its own: what one stream does wakes no other */
};

struct tn_soft_device {
	struct tn_soft_device_opts o;
	struct tn_device_driver driver;
	pthread_mutex_t lock; /* of what follows, and of the streams */
	struct memory memory[MEMORIES];
	struct ranges registered, pinned;
	uint32_t nstreams;
	bool held, lost;
	enum tn_device_way fail_way;
	uint64_t fail_at; /* number of the copy, of all of its way */
	int fail_error;
	enum tn_soft_call refused;
	uint64_t refuse_at; /* number of the call, of all of its kind */
	int refuse_error;
	struct tn_soft_device_stats stats;
	uint64_t carried_out[WAYS]; /* copies */
	uint64_t called[TN_SOFT_CALLS];
};

static struct tn_soft_device *device_of(const struct tn_device_driver *driver)
{
	return driver->arg ? driver->arg : tn_soft_device_of_process();
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void nap(uint64_t ns)
{
	struct timespec ts = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

	if (ns)
		nanosleep(&ts, NULL);
}

/* Under the lock: 0, or the error that the call is to return. */
static int refusal(struct tn_soft_device *d, enum tn_soft_call call)
{
	bool refused = d->refuse_error && d->refused == call && d->called[call] == d->refuse_at;

	d->called[call]++;
	d->stats.refused += refused;
	return d->lost ? -ENODEV : refused ? d->refuse_error : 0;
}

/* ---- memories, under the lock ---------------------------------------------------------------------------------------- */

/* The one that has all of these bytes, or NULL. */
static struct memory *memory_of(struct tn_soft_device *d, const void *address, uint64_t bytes)
{
	for (uint32_t i = 0; i < MEMORIES; i++) {
		struct memory *m = &d->memory[i];
		uint64_t skip = (uintptr_t)address - (uintptr_t)m->address;

		if (m->address && skip < m->length && bytes <= m->length - skip)
			return m;
	}
	return NULL;
}

static unsigned char *bytes_at(struct tn_soft_device *d, const void *address)
{
	struct memory *m = memory_of(d, address, 1);

	assert(m);
	return m->bytes + ((uintptr_t)address - (uintptr_t)m->address);
}

static int map(struct tn_soft_device *d, int fd, uint64_t bytes, bool imported, void **out)
{
	struct memory *m = d->memory;

	while (m < &d->memory[MEMORIES] && m->address)
		m++;
	if (m == &d->memory[MEMORIES])
		return -ENOSPC;
	m->address = mmap(NULL, bytes, PROT_NONE, MAP_SHARED, fd, 0);
	m->bytes = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m->address == MAP_FAILED || m->bytes == MAP_FAILED)
		abort();
	m->length = bytes;
	m->fd = fd;
	m->imported = imported;
	*out = m->address;
	return 0;
}

static void unmap(struct memory *m)
{
	munmap(m->address, m->length);
	munmap(m->bytes, m->length);
	close(m->fd);
	*m = (struct memory){0};
}

static int allocate(const struct tn_device_driver *driver, uint32_t device, uint64_t bytes, void **out)
{
	struct tn_soft_device *d = device_of(driver);
	int fd, rc;

	if (device != 0 || bytes == 0)
		return -EINVAL;
	fd = memfd_create("tenuto-soft-device", MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	rc = ftruncate(fd, (off_t)bytes) ? -errno : 0;
	if (rc == 0) {
		pthread_mutex_lock(&d->lock);
		rc = d->lost ? -ENODEV : map(d, fd, bytes, false, out);
		pthread_mutex_unlock(&d->lock);
	}
	if (rc)
		close(fd);
	return rc;
}

static void give_back(struct tn_soft_device *d, const void *address, bool imported)
{
	struct memory *m;

	pthread_mutex_lock(&d->lock);
	m = memory_of(d, address, 1);
	assert(m && m->address == address && m->imported == imported);
	unmap(m);
	pthread_mutex_unlock(&d->lock);
}

static void release(const struct tn_device_driver *driver, uint32_t device, void *address)
{
	give_back(device_of(driver), address, false);
}

static int exports(const struct tn_device_driver *driver, void *address, uint64_t bytes, unsigned char out[TN_DEVICE_EXPORT_BYTES])
{
	struct tn_soft_device *d = device_of(driver);
	struct export e = {.magic = MAGIC, .bytes = bytes, .pid = getpid(), .fd = -1};
	struct memory *m;

	pthread_mutex_lock(&d->lock);
	m = memory_of(d, address, bytes);
	if (m && m->address == address)
		e.fd = m->fd;
	pthread_mutex_unlock(&d->lock);
	memset(out, 0, TN_DEVICE_EXPORT_BYTES);
	memcpy(out, &e, sizeof(e));
	return e.fd < 0 ? -EINVAL : 0;
}

static int import(const struct tn_device_driver *driver, uint32_t device, const unsigned char in[TN_DEVICE_EXPORT_BYTES], void **out)
{
	struct tn_soft_device *d = device_of(driver);
	struct export e;
	struct stat st;
	char path[64];
	int fd, rc;

	memcpy(&e, in, sizeof(e));
	if (e.magic != MAGIC || device != 0)
		return -EINVAL;
	snprintf(path, sizeof(path), "/proc/%lld/fd/%d", (long long)e.pid, e.fd);
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	rc = fstat(fd, &st) ? -errno : (uint64_t)st.st_size < e.bytes ? -EINVAL : 0;
	if (rc == 0) {
		pthread_mutex_lock(&d->lock);
		rc = d->lost ? -ENODEV : map(d, fd, e.bytes, true, out);
		pthread_mutex_unlock(&d->lock);
	}
	if (rc)
		close(fd);
	return rc;
}

static void import_end(const struct tn_device_driver *driver, uint32_t device, void *address)
{
	give_back(device_of(driver), address, true);
}

/* ---- ranges ---------------------------------------------------------------------------------------------------------- */

/* Under the lock, as what follows. */
static bool lies_in(const struct ranges *t, const void *address, uint64_t bytes)
{
	for (uint32_t i = 0; i < t->n; i++) {
		uint64_t skip = (uintptr_t)address - t->range[i].address;

		if (skip < t->range[i].bytes && bytes <= t->range[i].bytes - skip)
			return true;
	}
	return false;
}

static int note(struct ranges *t, const void *address, uint64_t bytes)
{
	if (t->n == RANGES)
		return -ENOSPC;
	t->range[t->n++] = (struct range){(uintptr_t)address, bytes};
	return 0;
}

static void forget(struct ranges *t, const void *address, uint64_t bytes)
{
	uint32_t i = 0;

	while (i < t->n && !(t->range[i].address == (uintptr_t)address && t->range[i].bytes == bytes))
		i++;
	assert(i < t->n);
	t->range[i] = t->range[--t->n];
}

static int register_range(const struct tn_device_driver *driver, const struct tn_memory_range *range, char *detail, size_t detail_bytes)
{
	struct tn_soft_device *d = device_of(driver);
	int rc;

	pthread_mutex_lock(&d->lock);
	if (d->lost)
		rc = -ENODEV;
	else if (range->device != 0 || !memory_of(d, range->address, range->bytes))
		rc = -EINVAL;
	else
		rc = note(&d->registered, range->address, range->bytes);
	pthread_mutex_unlock(&d->lock);
	if (rc && detail)
		snprintf(detail, detail_bytes, "%s", rc == -EINVAL ? "no memory of the device has it" : "the device is lost, or has too many ranges");
	return rc;
}

static void unregister_range(const struct tn_device_driver *driver, const struct tn_memory_range *range)
{
	struct tn_soft_device *d = device_of(driver);

	pthread_mutex_lock(&d->lock);
	forget(&d->registered, range->address, range->bytes);
	pthread_mutex_unlock(&d->lock);
}

static int pin(const struct tn_device_driver *driver, void *host, uint64_t bytes)
{
	struct tn_soft_device *d = device_of(driver);
	int rc;

	if ((uintptr_t)host % 4096 || bytes == 0)
		return -EINVAL;
	pthread_mutex_lock(&d->lock);
	rc = refusal(d, TN_SOFT_PIN);
	rc = rc ? rc : note(&d->pinned, host, bytes);
	pthread_mutex_unlock(&d->lock);
	return rc;
}

static void unpin(const struct tn_device_driver *driver, void *host, uint64_t bytes)
{
	struct tn_soft_device *d = device_of(driver);

	pthread_mutex_lock(&d->lock);
	forget(&d->pinned, host, bytes);
	pthread_mutex_unlock(&d->lock);
}

/* ---- what streams do ------------------------------------------------------------------------------------------------- */

static int carry_out_copy(struct stream *s, const struct call *c)
{
	struct tn_soft_device *d = s->device;
	uint64_t begun = now_ns(), bytes = 0, least = d->o.copy_ns, took;
	bool fails;
	int error;

	pthread_mutex_lock(&d->lock);
	fails = d->fail_error && d->fail_way == c->way && d->carried_out[c->way] == d->fail_at;
	error = fails ? d->fail_error : 0;
	d->carried_out[c->way]++;
	pthread_mutex_unlock(&d->lock);
	for (uint32_t i = 0; i < c->n - (fails ? c->n / 2 + 1 : 0); i++) {
		const struct tn_device_piece *p = &c->piece[i];
		bool out = c->way == TN_DEVICE_TO_HOST;

		memcpy(out ? p->other : p->device, out ? p->device : p->other, p->bytes);
		bytes += c->piece[i].bytes;
	}
	if (d->o.bytes_per_second)
		least += (uint64_t)((double)bytes * 1e9 / (double)d->o.bytes_per_second);
	took = now_ns() - begun;
	nap(took < least ? least - took : 0);
	pthread_mutex_lock(&d->lock);
	d->stats.copied_bytes += bytes;
	d->stats.way_bytes[c->way] += bytes;
	pthread_mutex_unlock(&d->lock);
	return error;
}

static void carry_out_sum(const struct call *c)
{
	const struct tn_device_piece *piece = c->piece;

	for (uint32_t i = 0; i < c->n; i++) {
		struct iovec *iov = calloc(c->sum[i].npieces + 1, sizeof(*iov));
		size_t bytes = 0;

		assert(iov);

		for (uint32_t k = 0; k < c->sum[i].npieces; k++, piece++) {
			iov[k] = (struct iovec){.iov_base = piece->device, .iov_len = piece->bytes};
			bytes += piece->bytes;
		}
		c->sum[i].sum = tn_checksum_iov(iov, c->sum[i].npieces, 0, bytes);
		free(iov);
	}
}

static bool reached(struct stream *s, const struct call *c)
{
	if (c->kind == WORD_WAIT)
		return __atomic_load_n(c->word, __ATOMIC_ACQUIRE) >= c->value;
	return c->other->ended >= c->value;
}

/* Under the lock: until the call has nothing to wait for. */
static void wait_for_turn(struct stream *s, const struct call *c)
{
	struct tn_soft_device *d = s->device;

	while (!s->stopping && !d->lost && (d->held || ((c->kind == WORD_WAIT || c->kind == FOLLOW) && !reached(s, c)))) {
		pthread_mutex_unlock(&d->lock);
		nap(NAP_NS);
		pthread_mutex_lock(&d->lock);
	}
}

static int carry_out(struct stream *s, const struct call *c)
{
	struct tn_soft_device *d = s->device;

	if (d->o.late_ns)
		nap(tn_rng_next(&s->rng) % d->o.late_ns);
	if (c->kind == COPY)
		return carry_out_copy(s, c);
	if (c->kind == SUM)
		carry_out_sum(c);
	if (c->kind == WORD_WRITE)
		__atomic_store_n(c->word, c->value, __ATOMIC_RELEASE);
	return 0;
}

static void *stream_main(void *arg)
{
	struct stream *s = arg;
	struct tn_soft_device *d = s->device;

	pthread_mutex_lock(&d->lock);
	for (;;) {
		struct call *c;
		int rc = s->failed;

		if (s->ended == s->begun) {
			if (s->stopping)
				break;
			pthread_cond_wait(&s->news, &d->lock);
			continue;
		}
		c = &s->call[s->ended % STREAM_CALLS];
		if (!rc)
			wait_for_turn(s, c);
		if (!rc && d->lost)
			rc = -ENODEV;
		pthread_mutex_unlock(&d->lock);
		if (!rc)
			rc = carry_out(s, c);
		free(c->piece);
		pthread_mutex_lock(&d->lock);
		s->failed = s->failed ? s->failed : rc;
		s->ended++;
		d->stats.under_way -= c->kind == COPY;
		pthread_cond_broadcast(&s->news);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

/* ---- streams --------------------------------------------------------------------------------------------------------- */

static int stream_create(const struct tn_device_driver *driver, uint32_t device, void **out)
{
	struct tn_soft_device *d = device_of(driver);
	struct stream *s = calloc(1, sizeof(*s));
	pthread_condattr_t attr;
	int rc;

	if (!s)
		return -ENOMEM;
	s->device = d;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&s->news, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_lock(&d->lock);
	rc = device != 0 ? -EINVAL : refusal(d, TN_SOFT_STREAM_CREATE);
	tn_rng_seed(&s->rng, d->o.seed + d->nstreams);
	if (rc == 0)
		rc = -pthread_create(&s->thread, NULL, stream_main, s);
	d->nstreams += rc == 0;
	pthread_mutex_unlock(&d->lock);
	if (rc == 0) {
		*out = s;
		return 0;
	}
	pthread_cond_destroy(&s->news);
	free(s);
	return rc;
}

static void stream_destroy(const struct tn_device_driver *driver, void *stream)
{
	struct tn_soft_device *d = device_of(driver);
	struct stream *s = stream;

	pthread_mutex_lock(&d->lock);
	assert(s->ended == s->begun);
	s->stopping = true;
	d->nstreams--;
	pthread_cond_broadcast(&s->news);
	pthread_mutex_unlock(&d->lock);
	pthread_join(s->thread, NULL);
	pthread_cond_destroy(&s->news);
	free(s);
}

/* Under the lock. */
static int append(struct stream *s, const struct call *c, uint64_t *event)
{
	struct tn_soft_device *d = s->device;

	if (d->lost)
		return -ENODEV;
	if (s->begun - s->ended == STREAM_CALLS)
		return -EAGAIN;
	s->call[s->begun % STREAM_CALLS] = *c;
	s->begun++;
	if (event)
		*event = s->begun;
	d->stats.copies += c->kind == COPY;
	d->stats.under_way += c->kind == COPY;
	pthread_cond_broadcast(&s->news);
	return 0;
}

/* The addresses by which the device reaches the pieces: memory for them, which the call frees. Under the lock. */
static struct tn_device_piece *resolve(struct tn_soft_device *d, enum tn_device_way way, const struct tn_device_piece *piece, uint32_t n)
{
	struct tn_device_piece *out = malloc((n + 1) * sizeof(*out));

	assert(out);
	for (uint32_t i = 0; i < n; i++) {
		assert(lies_in(&d->registered, piece[i].device, piece[i].bytes));
		out[i] = piece[i];
		out[i].device = bytes_at(d, piece[i].device);
		if (way == TN_DEVICE_WITHIN)
			out[i].other = bytes_at(d, piece[i].other);
	}
	return out;
}

static int copy(const struct tn_device_driver *driver, void *stream, enum tn_device_way way, const struct tn_device_piece *piece, uint32_t n,
		uint64_t *event)
{
	struct tn_soft_device *d = device_of(driver);
	struct call c = {.kind = COPY, .way = way, .n = n};
	int rc;

	assert(n > 0);
	pthread_mutex_lock(&d->lock);
	for (uint32_t i = 0; i < n; i++)
		assert(lies_in(way == TN_DEVICE_WITHIN ? &d->registered : &d->pinned, piece[i].other, piece[i].bytes));
	c.piece = resolve(d, way, piece, n);
	rc = refusal(d, TN_SOFT_COPY);
	rc = rc ? rc : append(stream, &c, event);
	pthread_mutex_unlock(&d->lock);
	if (rc)
		free(c.piece);
	return rc;
}

static int sum(const struct tn_device_driver *driver, void *stream, const struct tn_device_piece *piece, struct tn_device_sum *sums, uint32_t n,
	       uint64_t *event)
{
	struct tn_soft_device *d = device_of(driver);
	struct call c = {.kind = SUM, .n = n, .sum = sums};
	uint32_t pieces = 0;
	int rc;

	for (uint32_t i = 0; i < n; i++)
		pieces += sums[i].npieces;
	pthread_mutex_lock(&d->lock);
	c.piece = resolve(d, TN_DEVICE_TO_HOST, piece, pieces);
	rc = append(stream, &c, event);
	pthread_mutex_unlock(&d->lock);
	if (rc)
		free(c.piece);
	return rc;
}

static int about_word(const struct tn_device_driver *driver, struct stream *s, enum kind kind, const uint64_t *word, uint64_t value)
{
	struct tn_soft_device *d = device_of(driver);
	struct call c = {.kind = kind, .word = (uint64_t *)(uintptr_t)word, .value = value};
	int rc;

	pthread_mutex_lock(&d->lock);
	assert(lies_in(&d->pinned, word, sizeof(*word)));
	rc = append(s, &c, NULL);
	pthread_mutex_unlock(&d->lock);
	return rc;
}

static int word_wait(const struct tn_device_driver *driver, void *stream, const uint64_t *word, uint64_t value)
{
	return about_word(driver, stream, WORD_WAIT, word, value);
}

static int word_write(const struct tn_device_driver *driver, void *stream, uint64_t *word, uint64_t value)
{
	return about_word(driver, stream, WORD_WRITE, word, value);
}

static int stream_follow(const struct tn_device_driver *driver, void *stream, void *other)
{
	struct tn_soft_device *d = device_of(driver);
	struct call c = {.kind = FOLLOW, .other = other};
	int rc;

	pthread_mutex_lock(&d->lock);
	c.value = c.other->begun;
	rc = append(stream, &c, NULL);
	pthread_mutex_unlock(&d->lock);
	return rc;
}

static int wait_for(const struct tn_device_driver *driver, void *stream, uint64_t event, uint64_t deadline_ns)
{
	struct tn_soft_device *d = device_of(driver);
	struct timespec ts = {.tv_sec = (time_t)(deadline_ns / 1000000000u), .tv_nsec = (long)(deadline_ns % 1000000000u)};
	struct stream *s = stream;
	int rc = 0;

	pthread_mutex_lock(&d->lock);
	assert(event > 0 && event <= s->begun);
	while (s->ended < event && rc == 0) {
		if (deadline_ns == 0)
			rc = ETIMEDOUT;
		else if (deadline_ns == TN_FOREVER)
			pthread_cond_wait(&s->news, &d->lock);
		else
			rc = pthread_cond_timedwait(&s->news, &d->lock, &ts);
	}
	rc = s->ended < event ? -ETIMEDOUT : s->failed;
	pthread_mutex_unlock(&d->lock);
	return rc;
}

/* ---- the device ------------------------------------------------------------------------------------------------------ */

static int count(const struct tn_device_driver *driver, char *detail, size_t detail_bytes)
{
	return 1;
}

static int properties(const struct tn_device_driver *driver, uint32_t device, struct tn_device_properties *out)
{
	if (device != 0)
		return -EINVAL;
	*out = (struct tn_device_properties){.name = "soft device", .uuid = {1}, .bytes = UINT64_C(1) << 40, .words = 1, .sums = 1, .exports = 1};
	return 0;
}

const struct tn_device_driver_ops tn_soft_device_ops = {
	.size = sizeof(tn_soft_device_ops),
	.abi = TN_DEVICE_DRIVER_ABI,
	.name = "soft",
	.count = count,
	.properties = properties,
	.register_range = register_range,
	.unregister_range = unregister_range,
	.pin = pin,
	.unpin = unpin,
	.stream_create = stream_create,
	.stream_destroy = stream_destroy,
	.copy = copy,
	.wait = wait_for,
	.stream_follow = stream_follow,
	.word_wait = word_wait,
	.word_write = word_write,
	.sum = sum,
	.allocate = allocate,
	.release = release,
	.exports = exports,
	.import = import,
	.import_end = import_end,
};

int tn_soft_device_create(const struct tn_soft_device_opts *opts, struct tn_soft_device **out)
{
	struct tn_soft_device *d = calloc(1, sizeof(*d));

	if (!d)
		return -ENOMEM;
	d->o = *opts;
	d->driver = (struct tn_device_driver){.ops = &tn_soft_device_ops, .arg = d};
	pthread_mutex_init(&d->lock, NULL);
	*out = d;
	return 0;
}

static struct tn_soft_device *of_process;

static uint64_t option(const char *name)
{
	const char *text = getenv(name);

	return text ? strtoull(text, NULL, 10) : 0;
}

static void make_of_process(void)
{
	const struct tn_soft_device_opts o = {.copy_ns = option("TN_SOFT_COPY_NS"), .late_ns = option("TN_SOFT_LATE_NS"), .seed = 1,
					      .bytes_per_second = option("TN_SOFT_BYTES_PER_SECOND")};

	if (tn_soft_device_create(&o, &of_process))
		abort();
}

struct tn_soft_device *tn_soft_device_of_process(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, make_of_process);
	return of_process;
}

void tn_soft_device_destroy(struct tn_soft_device *d)
{
	assert(d->registered.n == 0 && d->pinned.n == 0 && d->nstreams == 0);
	for (uint32_t i = 0; i < MEMORIES; i++)
		if (d->memory[i].address)
			unmap(&d->memory[i]);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

const struct tn_device_driver *tn_soft_device_driver(struct tn_soft_device *d)
{
	return &d->driver;
}

void *tn_soft_device_memory(struct tn_soft_device *d, uint64_t bytes)
{
	void *address;

	return allocate(&d->driver, 0, bytes, &address) ? NULL : address;
}

void tn_soft_device_release(struct tn_soft_device *d, void *memory)
{
	release(&d->driver, 0, memory);
}

void *tn_soft_device_bytes(struct tn_soft_device *d, const void *address)
{
	void *bytes;

	pthread_mutex_lock(&d->lock);
	bytes = memory_of(d, address, 1) ? bytes_at(d, address) : NULL;
	pthread_mutex_unlock(&d->lock);
	return bytes;
}

void tn_soft_device_hold(struct tn_soft_device *d, bool held)
{
	pthread_mutex_lock(&d->lock);
	d->held = held;
	pthread_mutex_unlock(&d->lock);
}

void tn_soft_device_fail(struct tn_soft_device *d, enum tn_device_way way, uint64_t after, int error)
{
	pthread_mutex_lock(&d->lock);
	d->fail_way = way;
	d->fail_at = d->carried_out[way] + after;
	d->fail_error = error;
	pthread_mutex_unlock(&d->lock);
}

void tn_soft_device_refuse(struct tn_soft_device *d, enum tn_soft_call call, uint64_t after, int error)
{
	pthread_mutex_lock(&d->lock);
	d->refused = call;
	d->refuse_at = d->called[call] + after;
	d->refuse_error = error;
	pthread_mutex_unlock(&d->lock);
}

void tn_soft_device_lose(struct tn_soft_device *d)
{
	pthread_mutex_lock(&d->lock);
	d->lost = true;
	pthread_mutex_unlock(&d->lock);
}

struct tn_soft_device_stats tn_soft_device_stats(struct tn_soft_device *d)
{
	struct tn_soft_device_stats stats;

	pthread_mutex_lock(&d->lock);
	stats = d->stats;
	pthread_mutex_unlock(&d->lock);
	return stats;
}
