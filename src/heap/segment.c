/* SPDX-License-Identifier: Apache-2.0 */
/* Segments and directory of a heap: sizes, memfds, mapping. */
#include "heap/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/rng.h"

#define PAGE_BYTES_MAX (1u << 30)
#define HEAP_BYTES_MAX (UINT64_C(1) << 46)
#define ANNOUNCES 1024u
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static uint64_t round_up(uint64_t n, uint64_t align)
{
	return (n + align - 1) / align * align;
}

static uint32_t slots_of(const struct tn_heap_opts *o)
{
	uint64_t pages = o->heap_bytes / o->page_bytes;

	return o->slots ? o->slots : (uint32_t)(pages < TN_HEAP_SLOTS_MAX ? pages : TN_HEAP_SLOTS_MAX);
}

int tn_heap_opts_check(const struct tn_heap_opts *o)
{
	if (o->page_bytes < 4096 || o->page_bytes > PAGE_BYTES_MAX || (o->page_bytes & (o->page_bytes - 1)))
		return tn_fail(-EINVAL, "page_bytes %u: a power of two from 4096 to %u is needed", o->page_bytes, PAGE_BYTES_MAX);
	if (o->heap_bytes < o->page_bytes || o->heap_bytes > HEAP_BYTES_MAX)
		return tn_fail(-EINVAL, "heap_bytes %llu: at least a page of %u bytes is needed, at most 2^46", (unsigned long long)o->heap_bytes,
			       o->page_bytes);
	if (o->slots > TN_HEAP_SLOTS_MAX)
		return tn_fail(-EINVAL, "slots %u: %u at most", o->slots, TN_HEAP_SLOTS_MAX);
	if (o->need_tokens > 1)
		return tn_fail(-EINVAL, "need_tokens %u: 0 or 1", o->need_tokens);
	if (o->driver && o->need_tokens)
		return tn_fail(-EINVAL, "need_tokens with a driver: who imports the memory of a device may read and write it");
	if (o->order > TN_HEAP_FIFO)
		return tn_fail(-EINVAL, "order %u is unknown", o->order);
	if (o->water_hi > 100 || o->water_lo > o->water_hi || o->water_hi == 0)
		return tn_fail(-EINVAL, "water_lo %u and water_hi %u: 0 <= lo <= hi <= 100 percent, and hi above 0", o->water_lo, o->water_hi);
	return 0;
}

/* A sealed memfd: no process can make it shorter under another one. */
static int make_file(const char *name, uint64_t bytes, int *out)
{
	int fd = tn_above_streams(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
	int rc = 0;

	if (fd < 0)
		return tn_fail(-errno, "memfd_create: %s", strerror(errno));
	if (ftruncate(fd, (off_t)bytes) || fcntl(fd, F_ADD_SEALS, SEALS))
		rc = tn_fail(-errno, "a memfd of %llu bytes: %s", (unsigned long long)bytes, strerror(errno));
	if (rc)
		close(fd);
	else
		*out = fd;
	return rc;
}

/* A forked child has no mapping: it does not keep writing after its parent's death, by which the parent counts as ended. */
static int keep_from_children(void *p, uint64_t bytes)
{
	return madvise(p, bytes, MADV_DONTFORK) ? tn_fail(-errno, "madvise(MADV_DONTFORK): %s", strerror(errno)) : 0;
}

static int fail_to_map(uint64_t bytes)
{
	return tn_fail(-ENOMEM, "%llu bytes of a heap cannot be mapped: %s", (unsigned long long)bytes, strerror(errno));
}

static int map_directory(struct tn_heap_memory *m)
{
	void *p = mmap(NULL, m->dir_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->dir_fd, 0);

	if (p == MAP_FAILED)
		return fail_to_map(m->dir_bytes);
	m->dir = p;
	return keep_from_children(p, m->dir_bytes);
}

/* Addresses for a whole segment, and in them what lies before the payload. */
static int map_control(struct tn_heap_memory *m, uint32_t rank)
{
	void *p = mmap(NULL, m->layout.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return fail_to_map(m->layout.bytes);
	m->base[rank] = p;
	if (mmap(p, m->layout.heap_base, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m->ctl_fd[rank], 0) == MAP_FAILED)
		return fail_to_map(m->layout.heap_base);
	return keep_from_children(p, m->layout.heap_base);
}

/* The payload, as far as this process has a right to it. */
static int map_payload(struct tn_heap_memory *m, uint32_t rank)
{
	uint64_t bytes = m->layout.heap_limit - m->layout.heap_base;
	unsigned char *at = m->base[rank] + m->layout.heap_base;
	int access = m->rights.write >> rank & 1 ? PROT_READ | PROT_WRITE : PROT_READ;

	if (m->payload_fd[rank] < 0)
		return 0;
	if (mmap(at, bytes, access, MAP_SHARED | MAP_FIXED, m->payload_fd[rank], 0) == MAP_FAILED)
		return fail_to_map(bytes);
	return keep_from_children(at, bytes);
}

/* Where everything of a segment lies. */
static struct tn_heap_ctl lay_out(uint32_t ranks, const struct tn_heap_opts *o)
{
	struct tn_heap_ctl c = {.magic = TN_HEAP_MAGIC, .version = TN_HEAP_VERSION, .ranks = ranks, .page_bytes = o->page_bytes,
				.water_hi = o->water_hi, .water_lo = o->water_lo, .hdr_count = slots_of(o)};

	c.hdr_base = TN_HEAP_CTL_BYTES;
	c.lease_base = c.hdr_base + (uint64_t)c.hdr_count * sizeof(struct tn_heap_slot);
	c.ann_base = round_up(c.lease_base + (uint64_t)c.hdr_count * ranks * sizeof(uint32_t), 64);
	c.ann_capacity = ANNOUNCES;
	c.heap_base = c.bump_ptr = round_up(c.ann_base + ANNOUNCES * sizeof(struct tn_heap_announce), o->page_bytes);
	c.heap_limit = c.bytes = c.heap_base + o->heap_bytes / o->page_bytes * o->page_bytes;
	return c;
}

static uint32_t places_of(uint32_t ranks, uint32_t slots)
{
	uint32_t n = 64;

	while (n < 2ull * ranks * slots)
		n *= 2;
	return n;
}

static uint64_t directory_bytes(uint32_t places)
{
	return round_up(sizeof(struct tn_heap_directory) + places * sizeof(struct tn_heap_place), TN_HEAP_CTL_BYTES);
}

static int map_controls(struct tn_heap_memory *m)
{
	int rc = 0;

	for (uint32_t r = 0; r < m->ranks && rc == 0; r++)
		rc = map_control(m, r);
	return rc;
}

static int map_payloads(struct tn_heap_memory *m)
{
	int rc = 0;

	for (uint32_t r = 0; r < m->ranks && rc == 0; r++)
		rc = map_payload(m, r);
	return rc;
}

static void start_empty(struct tn_heap_memory *m, uint32_t ranks)
{
	*m = (struct tn_heap_memory){.ranks = ranks, .dir_fd = -1, .wake_fd = -1};
	for (uint32_t r = 0; r < TN_HEAP_RANKS_MAX; r++)
		m->ctl_fd[r] = m->payload_fd[r] = -1;
}

static int make_files(struct tn_heap_memory *m)
{
	int rc = make_file("tenuto-heap-directory", m->dir_bytes, &m->dir_fd);

	for (uint32_t r = 0; r < m->ranks && rc == 0; r++) {
		rc = make_file("tenuto-heap", m->layout.heap_base, &m->ctl_fd[r]);
		if (rc == 0 && !m->on_device)
			rc = make_file("tenuto-heap-payload", m->layout.heap_limit - m->layout.heap_base, &m->payload_fd[r]);
	}
	m->wake_fd = tn_above_streams(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	return rc == 0 && m->wake_fd < 0 ? tn_fail(-errno, "eventfd: %s", strerror(errno)) : rc;
}

int tn_heap_memory_make(uint32_t ranks, const struct tn_heap_opts *o, struct tn_heap_memory *out)
{
	struct tn_heap_memory m;
	int rc;

	start_empty(&m, ranks);
	m.layout = lay_out(ranks, o);
	m.places = places_of(ranks, m.layout.hdr_count);
	m.dir_bytes = directory_bytes(m.places);
	m.order = o->order;
	m.reclaim_ns = o->reclaim_ns;
	m.rights = tn_heap_all_rights(ranks);
	m.need_tokens = o->need_tokens;
	m.on_device = o->driver != NULL;
	rc = tn_rng_entropy(&m.id, sizeof(m.id));
	if (rc == 0)
		rc = make_files(&m);
	if (rc == 0)
		rc = map_directory(&m);
	if (rc == 0)
		rc = map_controls(&m);
	if (rc == 0)
		rc = map_payloads(&m);
	if (rc) {
		tn_heap_memory_drop(&m);
		return rc;
	}
	for (uint32_t r = 0; r < ranks; r++)
		memcpy(m.base[r], &m.layout, sizeof(m.layout));
	*m.dir = (struct tn_heap_directory){.magic = TN_HEAP_DIRECTORY_MAGIC, .version = TN_HEAP_VERSION, .ranks = ranks,
					    .page_bytes = o->page_bytes, .slots = m.layout.hdr_count, .order = o->order, .places = m.places,
					    .bytes = m.dir_bytes, .segment_bytes = m.layout.bytes, .reclaim_ns = o->reclaim_ns, .id = m.id,
					    .need_tokens = o->need_tokens};
	*out = m;
	return 0;
}

/* Bytes of a file that nobody can make shorter; 0: it is not such a file. */
static uint64_t file_bytes(int fd)
{
	struct stat st;
	int seals = fcntl(fd, F_GET_SEALS);

	return seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

/* Whether a segment's control block has that layout; what changes in it is not compared. */
static bool has_layout(const unsigned char *base, const struct tn_heap_ctl *layout)
{
	struct tn_heap_ctl c;

	memcpy(&c, base, sizeof(c));
	c.bump_ptr = layout->bump_ptr;
	c.hdr_head = layout->hdr_head;
	c.ann_head = layout->ann_head;
	c.ann_tail = layout->ann_tail;
	c.epoch = layout->epoch;
	memcpy(c.free_head, layout->free_head, sizeof(c.free_head));
	return memcmp(&c, layout, sizeof(c)) == 0;
}

/* Whether the payloads have that size, and can be mapped as the rights say. */
static bool has_payloads(const struct tn_heap_memory *m, const struct tn_heap_ctl *layout)
{
	for (uint32_t r = 0; r < m->ranks && !m->on_device; r++) {
		int flags = m->payload_fd[r] < 0 ? 0 : fcntl(m->payload_fd[r], F_GETFL);

		if (m->payload_fd[r] >= 0 && file_bytes(m->payload_fd[r]) != layout->heap_limit - layout->heap_base)
			return false;
		if ((m->rights.write >> r & 1) && (flags < 0 || (flags & O_ACCMODE) != O_RDWR))
			return false;
	}
	return true;
}

/*
 * Copies what the directory and the first control block say, and checks it: sizes of the files, options, the layout that follows from them. Until then the layout has the
 * sizes of what is mapped.
 */
static bool believe(struct tn_heap_memory *m)
{
	struct tn_heap_directory d;
	struct tn_heap_ctl c, layout;
	struct tn_heap_opts o;
	bool sound;

	memcpy(&d, m->dir, sizeof(d));
	memcpy(&c, m->base[0], sizeof(c));
	o = (struct tn_heap_opts){.heap_bytes = c.heap_limit - c.heap_base, .page_bytes = d.page_bytes, .slots = d.slots, .order = d.order,
				  .water_hi = c.water_hi, .water_lo = c.water_lo};
	sound = d.magic == TN_HEAP_DIRECTORY_MAGIC && d.version == TN_HEAP_VERSION && d.ranks == m->ranks && d.bytes == m->dir_bytes && d.slots &&
		tn_heap_opts_check(&o) == 0 && d.places == places_of(m->ranks, d.slots) && directory_bytes(d.places) == m->dir_bytes;
	if (!sound)
		return false;
	layout = lay_out(m->ranks, &o);
	sound = layout.bytes == m->layout.bytes && layout.heap_base == m->layout.heap_base && has_payloads(m, &layout);
	for (uint32_t r = 0; r < m->ranks; r++)
		sound &= has_layout(m->base[r], &layout);
	if (!sound)
		return false;
	m->layout = layout;
	m->places = d.places;
	m->order = d.order;
	m->reclaim_ns = d.reclaim_ns;
	m->id = d.id;
	m->need_tokens = d.need_tokens;
	return true;
}

/* Descriptors in the order in which they were sent. */
static void take_files(struct tn_heap_memory *m, const int *fds)
{
	m->dir_fd = *fds++;
	m->wake_fd = *fds++;
	for (uint32_t r = 0; r < m->ranks; r++)
		m->ctl_fd[r] = *fds++;
	for (uint32_t r = 0; r < m->ranks; r++)
		if (!m->on_device && ((m->rights.read | m->rights.write) >> r & 1))
			m->payload_fd[r] = *fds++;
}

/* What is mapped before anything in it is believed: sizes of files, and of addresses. */
static int map_unread(struct tn_heap_memory *m)
{
	uint64_t control = file_bytes(m->ctl_fd[0]), bytes;

	m->dir_bytes = file_bytes(m->dir_fd);
	for (uint32_t r = 1; r < m->ranks; r++)
		if (file_bytes(m->ctl_fd[r]) != control)
			control = 0;
	if (m->dir_bytes < sizeof(struct tn_heap_directory) || control < TN_HEAP_CTL_BYTES)
		return tn_fail(-EINVAL, "what the heap's master has sent is not the memory of a heap");
	if (map_directory(m))
		return -ENOMEM;
	bytes = __atomic_load_n(&m->dir->segment_bytes, __ATOMIC_RELAXED);
	if (bytes <= control || bytes - control > HEAP_BYTES_MAX)
		return tn_fail(-EINVAL, "the heap's directory tells of segments of %llu bytes", (unsigned long long)bytes);
	m->layout.heap_base = control;
	m->layout.bytes = bytes;
	return map_controls(m);
}

int tn_heap_memory_map(uint32_t ranks, bool on_device, const struct tn_heap_rights *rights, const int *fds, struct tn_heap_memory *out)
{
	struct tn_heap_memory m;
	int rc;

	start_empty(&m, ranks);
	m.rights = *rights;
	m.on_device = on_device;
	take_files(&m, fds);
	rc = map_unread(&m);
	if (rc == 0 && !believe(&m))
		rc = tn_fail(-EINVAL, "the heap's directory is of another version (this library's is %u), or contradicts itself", TN_HEAP_VERSION);
	if (rc == 0)
		rc = map_payloads(&m);
	if (rc)
		tn_heap_memory_drop(&m);
	else
		*out = m;
	return rc;
}

static void close_file(int fd)
{
	if (fd >= 0)
		close(fd);
}

void tn_heap_memory_drop(struct tn_heap_memory *m)
{
	if (m->ranks == 0)
		return;
	for (uint32_t r = 0; r < m->ranks; r++) {
		if (m->base[r])
			munmap(m->base[r], m->layout.bytes);
		close_file(m->ctl_fd[r]);
		close_file(m->payload_fd[r]);
	}
	if (m->dir)
		munmap(m->dir, m->dir_bytes);
	close_file(m->dir_fd);
	close_file(m->wake_fd);
	*m = (struct tn_heap_memory){0};
}

void tn_heap_describe(struct tn_heap_slot *s, const struct tn_heap_name *name, uint64_t bytes, uint32_t page_bytes, uint32_t flags)
{
	s->header.key_hash = name->hash;
	s->header.n_pages = (uint32_t)((bytes + page_bytes - 1) / page_bytes);
	s->header.page_size = page_bytes;
	s->header.bytes_total = bytes;
	s->header.last_access = s->extra.born = tn_now_ns(&tn_clock_system);
	s->header.flags = flags;
	__atomic_store_n(&s->extra.digest[0], name->digest[0], __ATOMIC_RELAXED);
	__atomic_store_n(&s->extra.digest[1], name->digest[1], __ATOMIC_RELAXED);
	s->extra.checksum_epoch = 0;
}
