/* SPDX-License-Identifier: Apache-2.0 */
/* What the software controller does with memory: an IOMMU, lists of commands, the namespace's bytes. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "nvme_soft_internal.h"

#define FIRST_PAGE (1ull << 20) /* of the bus; no address of a small number is ever right */
#define NO_PAGE UINT32_MAX
#define SEGMENTS_MAX 64u

/* ---- the IOMMU -------------------------------------------------------------------------------------------- */

void *tn_soft_at(struct tn_soft *s, uint64_t bus, uint64_t bytes)
{
	uint64_t page = bus / TN_NVME_PAGE - FIRST_PAGE;
	unsigned char *memory;

	if (bus / TN_NVME_PAGE < FIRST_PAGE || page >= TN_SOFT_BUS_PAGES || bus % TN_NVME_PAGE + bytes > TN_NVME_PAGE)
		return NULL;
	memory = __atomic_load_n(&s->page[page], __ATOMIC_ACQUIRE);
	return memory ? memory + bus % TN_NVME_PAGE : NULL;
}

/* The first of so many free pages of the bus that follow one another. */
static uint32_t find_pages(struct tn_soft *s, uint32_t n)
{
	uint32_t run = 0;

	for (uint32_t tried = 0; tried < 2 * TN_SOFT_BUS_PAGES; tried++) {
		uint32_t at = s->next_page++;

		if (s->next_page == TN_SOFT_BUS_PAGES)
			s->next_page = run = 0;
		else if (s->page[at])
			run = 0;
		else if (++run == n)
			return at + 1 - n;
	}
	return NO_PAGE;
}

static struct tn_soft_region *region_of(struct tn_soft *s, const unsigned char *memory)
{
	for (uint32_t i = 0; i < TN_SOFT_REGIONS_MAX; i++) {
		struct tn_soft_region *r = &s->region[i];

		if (r->memory && memory >= r->memory && memory < r->memory + r->pages * TN_NVME_PAGE)
			return r;
	}
	return NULL;
}

static void unmap_region(struct tn_soft *s, struct tn_soft_region *r)
{
	for (uint64_t i = 0; i < r->pages && r->bus[i] != NO_PAGE; i++)
		__atomic_store_n(&s->page[r->bus[i]], NULL, __ATOMIC_RELEASE);
	free(r->bus);
	memset(r, 0, sizeof(*r));
}

static int map_runs(struct tn_soft *s, struct tn_soft_region *r, uint32_t longest)
{
	for (uint64_t i = 0; i < r->pages;) {
		uint64_t left = r->pages - i;
		uint32_t run = (uint32_t)left, first;

		if (longest) {
			run = 1 + tn_rng_below(&s->map_rng, longest);
			run = run < left ? run : (uint32_t)left;
		}
		first = find_pages(s, run);
		if (first == NO_PAGE)
			return tn_fail(-ENOSPC, "software controller: no bus addresses are left");
		for (uint32_t k = 0; k < run; k++, i++) {
			r->bus[i] = first + k;
			__atomic_store_n(&s->page[first + k], r->memory + i * TN_NVME_PAGE, __ATOMIC_RELEASE);
		}
		s->next_page = (s->next_page + (longest ? 1 + tn_rng_below(&s->map_rng, 3) : 0)) % TN_SOFT_BUS_PAGES;
	}
	return 0;
}

static int map(struct tn_soft *s, unsigned char *memory, uint64_t bytes, uint32_t longest)
{
	struct tn_soft_region *r = NULL;
	int rc;

	if (bytes == 0 || bytes % TN_NVME_PAGE || (uintptr_t)memory % TN_NVME_PAGE)
		return tn_fail(-EINVAL, "software controller: %llu bytes at %p are not whole pages", (unsigned long long)bytes, (void *)memory);
	for (uint32_t i = 0; i < TN_SOFT_REGIONS_MAX && !r; i++)
		r = s->region[i].memory ? NULL : &s->region[i];
	if (!r)
		return tn_fail(-ENOSPC, "software controller: %u memories are mapped", TN_SOFT_REGIONS_MAX);
	r->bus = malloc(bytes / TN_NVME_PAGE * sizeof(*r->bus));
	if (!r->bus)
		return tn_fail(-ENOMEM, "software controller: no memory");
	r->memory = memory;
	r->pages = bytes / TN_NVME_PAGE;
	memset(r->bus, 0xff, r->pages * sizeof(*r->bus));
	rc = map_runs(s, r, longest);
	if (rc)
		unmap_region(s, r);
	return rc;
}

static int port_map(void *arg, void *memory, uint64_t bytes)
{
	struct tn_soft *s = arg;
	int rc;

	pthread_mutex_lock(&s->lock);
	rc = map(s, memory, bytes, s->o.scattered);
	pthread_mutex_unlock(&s->lock);
	return rc;
}

static void port_unmap(void *arg, void *memory, uint64_t bytes)
{
	struct tn_soft *s = arg;
	struct tn_soft_region *r;

	pthread_mutex_lock(&s->lock);
	r = region_of(s, memory);
	if (r)
		unmap_region(s, r);
	pthread_mutex_unlock(&s->lock);
}

static int translate(void *arg, uintptr_t address, uint64_t length, uint64_t *bus, uint64_t *contiguous)
{
	struct tn_soft *s = arg;
	struct tn_soft_region *r;
	uint64_t at, first, n = 1;

	pthread_mutex_lock(&s->lock);
	r = region_of(s, (const unsigned char *)address);
	if (r) {
		at = address - (uintptr_t)r->memory;
		first = at / TN_NVME_PAGE;
		while (first + n < r->pages && r->bus[first + n] == r->bus[first] + n)
			n++;
		*bus = (FIRST_PAGE + r->bus[first]) * TN_NVME_PAGE + at % TN_NVME_PAGE;
		*contiguous = n * TN_NVME_PAGE - at % TN_NVME_PAGE;
		if (*contiguous > length)
			*contiguous = length;
	}
	pthread_mutex_unlock(&s->lock);
	return r ? 0 : tn_fail(-EFAULT, "software controller: %#llx is not mapped", (unsigned long long)address);
}

static void *port_get(void *arg, uint64_t bytes, uint64_t *bus)
{
	struct tn_soft *s = arg;
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t some;
	int rc;

	if (memory == MAP_FAILED)
		return NULL;
	pthread_mutex_lock(&s->lock);
	rc = map(s, memory, bytes, 0);
	pthread_mutex_unlock(&s->lock);
	if (rc == 0 && translate(s, (uintptr_t)memory, bytes, bus, &some) == 0)
		return memory;
	munmap(memory, bytes);
	return NULL;
}

static void port_put(void *arg, void *memory, uint64_t bytes)
{
	port_unmap(arg, memory, bytes);
	munmap(memory, bytes);
}

/* ---- lists: what of the memory a command names ----------------------------------------------------------------- */

struct walk {
	struct tn_soft *s;
	uint32_t n;
	uint64_t left; /* bytes */
	uint64_t sum;  /* of the lists' words */
	bool bad;
	bool unmapped;
};

/* Neighbours on the bus become one piece. */
static void add_piece(struct walk *k, uint64_t bus, uint64_t bytes)
{
	struct tn_nvme_piece *last = k->n ? &k->s->piece[k->n - 1] : NULL;

	if (k->n == TN_SOFT_PIECES_MAX || bytes > k->left) {
		k->bad = true;
		return;
	}
	k->left -= bytes;
	if (last && last->bus + last->length == bus)
		last->length += bytes;
	else
		k->s->piece[k->n++] = (struct tn_nvme_piece){bus, bytes};
}

static uint64_t word_at(struct walk *k, uint64_t bus)
{
	const uint64_t *word = tn_soft_at(k->s, bus, 8);

	if (!word) {
		k->unmapped = true;
		return 0;
	}
	k->sum = (k->sum ^ *word) * 0x9e3779b97f4a7c15ull;
	return *word;
}

static void add_page(struct walk *k, uint64_t bus)
{
	k->bad |= bus % TN_NVME_PAGE != 0;
	add_piece(k, bus, k->left < TN_NVME_PAGE ? k->left : TN_NVME_PAGE);
}

/* Base 4.1.1. */
static void walk_prps(struct walk *k, const struct tn_nvme_command *c)
{
	uint64_t first = TN_NVME_PAGE - c->data[0] % TN_NVME_PAGE, at = c->data[1];

	k->bad |= c->data[0] % 4 != 0;
	add_piece(k, c->data[0], k->left < first ? k->left : first);
	if (k->left > 0 && k->left <= TN_NVME_PAGE) {
		add_page(k, c->data[1]);
		return;
	}
	k->bad |= at % 8 != 0;
	while (k->left > 0 && !k->bad && !k->unmapped) {
		uint64_t word = word_at(k, at);

		if (at % TN_NVME_PAGE == TN_NVME_PAGE - 8 && k->left > TN_NVME_PAGE) {
			k->bad |= word % TN_NVME_PAGE != 0;
			at = word;
			continue;
		}
		add_page(k, word);
		at += 8;
	}
}

static void one_sgl(struct walk *k, const struct tn_nvme_sgl *d)
{
	k->bad |= k->s->o.sgl == 2 && (d->address % 4 || d->length % 4);
	if (d->length)
		add_piece(k, d->address, d->length);
}

static struct tn_nvme_sgl sgl_at(struct walk *k, uint64_t bus)
{
	union {
		uint64_t word[2];
		struct tn_nvme_sgl d;
	} u = {.word = {word_at(k, bus), word_at(k, bus + 8)}};

	return u.d;
}

/* Base 4.1.2. */
static void walk_sgl(struct walk *k, const struct tn_nvme_command *c)
{
	struct tn_nvme_sgl d;

	memcpy(&d, c->data, sizeof(d));
	k->bad |= k->s->o.sgl == 0 || k->s->o.sgl == 3;
	for (uint32_t segments = 0; !k->bad && !k->unmapped && (d.type == TN_NVME_SGL_SEGMENT || d.type == TN_NVME_SGL_LAST_SEGMENT);) {
		bool last = d.type == TN_NVME_SGL_LAST_SEGMENT;
		uint32_t n = d.length / sizeof(d);
		uint64_t at = d.address;

		k->bad |= d.length % sizeof(d) != 0 || n == 0 || ++segments > SEGMENTS_MAX || at % 8;
		d.type = TN_NVME_SGL_DATA;
		d.length = 0;
		for (uint32_t i = 0; i < n && !k->bad && !k->unmapped; i++) {
			d = sgl_at(k, at + i * sizeof(d));
			if (d.type == TN_NVME_SGL_DATA)
				one_sgl(k, &d);
			else
				k->bad |= last || i + 1 < n || (d.type != TN_NVME_SGL_SEGMENT && d.type != TN_NVME_SGL_LAST_SEGMENT);
		}
		if (last || d.type == TN_NVME_SGL_DATA)
			return;
	}
	if (!k->bad && !k->unmapped) {
		k->bad |= d.type != TN_NVME_SGL_DATA;
		one_sgl(k, &d);
	}
}

/* The pieces of so many bytes, in s->piece; the status. */
static uint32_t pieces(struct tn_soft *s, struct tn_soft_work *w, uint64_t bytes, struct walk *k)
{
	bool sgl = w->c.flags >> 6;

	*k = (struct walk){.s = s, .left = bytes};
	if (sgl)
		walk_sgl(k, &w->c);
	else
		walk_prps(k, &w->c);
	if (k->unmapped) {
		tn_soft_found(s, TN_SOFT_BAD_ADDRESS);
		return TN_NVME_TRANSFER_ERROR;
	}
	if (k->bad || k->left) {
		tn_soft_found(s, TN_SOFT_BAD_LIST);
		return sgl ? TN_NVME_BAD_SGL : TN_NVME_BAD_PRP;
	}
	return 0;
}

enum move { TO_MEMORY, FROM_MEMORY, SUM };

/* Memory from a bus address on: of *bytes those that follow one another in memory, too. NULL: it is not mapped. */
static unsigned char *run_at(struct tn_soft *s, uint64_t bus, uint64_t *bytes)
{
	uint64_t most = *bytes, some = TN_NVME_PAGE - bus % TN_NVME_PAGE;
	unsigned char *memory;

	some = some < most ? some : most;
	memory = tn_soft_at(s, bus, some);
	while (memory && some < most) {
		uint64_t more = most - some < TN_NVME_PAGE ? most - some : TN_NVME_PAGE;

		if (tn_soft_at(s, bus + some, more) != memory + some)
			break;
		some += more;
	}
	*bytes = some;
	return memory;
}

/* Moves a piece, or adds it to a sum; false: some of it is not mapped. */
static bool move_piece(struct tn_soft *s, const struct tn_nvme_piece *p, enum move how, unsigned char *data, uint64_t *sum)
{
	for (uint64_t done = 0, some; done < p->length; done += some) {
		uint64_t bus = p->bus + done;
		void *memory;

		some = p->length - done;
		memory = run_at(s, bus, &some);
		if (!memory)
			return false;
		if (how == TO_MEMORY)
			memcpy(memory, data + done, some);
		else if (how == FROM_MEMORY)
			memcpy(data + done, memory, some);
		else
			*sum = (*sum ^ tn_checksum(memory, some)) * 0x9e3779b97f4a7c15ull;
	}
	return true;
}

static uint32_t move(struct tn_soft *s, uint32_t n, enum move how, unsigned char *data, uint64_t *sum)
{
	for (uint32_t i = 0; i < n; i++) {
		if (!move_piece(s, &s->piece[i], how, data, sum)) {
			tn_soft_found(s, TN_SOFT_BAD_ADDRESS);
			return TN_NVME_TRANSFER_ERROR;
		}
		data = data ? data + s->piece[i].length : NULL;
	}
	return 0;
}

uint32_t tn_soft_to_memory(struct tn_soft *s, struct tn_soft_work *w, unsigned char *data, uint64_t bytes)
{
	struct walk k;
	uint32_t status = pieces(s, w, bytes, &k);

	return status ? status : move(s, k.n, TO_MEMORY, data, NULL);
}

/* ---- commands ------------------------------------------------------------------------------------------------------- */

static uint64_t first_block(const struct tn_nvme_command *c)
{
	return c->dword10 | (uint64_t)c->dword11 << 32;
}

static uint64_t transfer_bytes(const struct tn_soft *s, const struct tn_nvme_command *c)
{
	return (uint64_t)((c->dword12 & 0xffff) + 1) * s->o.block_bytes;
}

static uint64_t data_bytes(const struct tn_soft *s, const struct tn_nvme_command *c)
{
	if (c->opcode == TN_NVME_DATASET)
		return ((c->dword10 & 0xff) + 1) * sizeof(struct tn_nvme_range);
	return c->opcode == TN_NVME_FLUSH || c->opcode == TN_NVME_WRITE_ZEROES ? 0 : transfer_bytes(s, c);
}

static uint32_t check_transfer(struct tn_soft *s, const struct tn_nvme_command *c)
{
	uint64_t bytes = transfer_bytes(s, c), blocks = bytes / s->o.block_bytes;
	uint32_t limit = c->opcode == TN_NVME_WRITE_ZEROES ? s->o.wzsl : s->o.mdts;

	if (limit && bytes > (uint64_t)TN_NVME_PAGE << limit) {
		tn_soft_found(s, TN_SOFT_TOO_LONG);
		return TN_NVME_INVALID_FIELD;
	}
	if (first_block(c) > s->o.blocks || blocks > s->o.blocks - first_block(c)) {
		tn_soft_found(s, TN_SOFT_TOO_LONG);
		return TN_NVME_LBA_RANGE;
	}
	return 0;
}

uint32_t tn_soft_look(struct tn_soft *s, struct tn_soft_work *w)
{
	const struct tn_nvme_command *c = &w->c;
	uint64_t bytes = data_bytes(s, c);
	uint32_t status = 0;
	struct walk k;

	bool moves = c->opcode == TN_NVME_READ || c->opcode == TN_NVME_WRITE || c->opcode == TN_NVME_WRITE_ZEROES;

	if (!moves && c->opcode != TN_NVME_FLUSH && c->opcode != TN_NVME_DATASET)
		return TN_NVME_INVALID_OPCODE;
	if (c->namespace_id != 1)
		return TN_NVME_INVALID_NAMESPACE;
	if (moves)
		status = check_transfer(s, c);
	if (status || bytes == 0 || s->o.trusting)
		return status;
	status = pieces(s, w, bytes, &k);
	w->list_sum = k.sum;
	w->data_sum = 0;
	if (status == 0 && c->opcode != TN_NVME_READ)
		status = move(s, k.n, SUM, NULL, &w->data_sum);
	return status;
}

/* The list and the data are as they were when the command was fetched; finds it out too late to matter. */
static void look_again(struct tn_soft *s, const struct tn_soft_work *w, const struct walk *k)
{
	uint64_t sum = 0;

	if (s->o.trusting)
		return;
	if (k->sum != w->list_sum)
		tn_soft_found(s, TN_SOFT_LIST_TOUCHED);
	else if (w->c.opcode != TN_NVME_READ && move(s, k->n, SUM, NULL, &sum) == 0 && sum != w->data_sum)
		tn_soft_found(s, TN_SOFT_DATA_TOUCHED);
}

static uint32_t deallocate(struct tn_soft *s, const struct tn_soft_work *w, uint32_t npieces)
{
	const struct tn_nvme_command *c = &w->c;
	struct tn_nvme_range range[256];

	if (move(s, npieces, FROM_MEMORY, (unsigned char *)range, NULL))
		return TN_NVME_TRANSFER_ERROR;
	for (uint32_t i = 0; i <= (c->dword10 & 0xff); i++) {
		const struct tn_nvme_range *r = &range[i];

		if (r->first > s->o.blocks || r->blocks > s->o.blocks - r->first)
			return TN_NVME_LBA_RANGE;
		if (!(c->dword11 & TN_NVME_DEALLOCATE))
			continue;
		if (!tn_soft_remember(s, w, r->first, r->blocks))
			return TN_NVME_INTERNAL_ERROR;
		memset(s->media + r->first * s->o.block_bytes, 0, (uint64_t)r->blocks * s->o.block_bytes);
	}
	return 0;
}

static void count(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, *counter + n, __ATOMIC_RELAXED);
}

uint32_t tn_soft_do(struct tn_soft *s, struct tn_soft_work *w)
{
	const struct tn_nvme_command *c = &w->c;
	uint64_t bytes = data_bytes(s, c);
	struct walk k;
	uint32_t status;

	if (c->opcode == TN_NVME_FLUSH) {
		tn_soft_flush(s, w->number);
		return 0;
	}
	if (c->opcode == TN_NVME_WRITE_ZEROES) {
		if (!tn_soft_remember(s, w, first_block(c), transfer_bytes(s, c) / s->o.block_bytes))
			return TN_NVME_INTERNAL_ERROR;
		memset(s->media + first_block(c) * s->o.block_bytes, 0, transfer_bytes(s, c));
		return 0;
	}
	status = pieces(s, w, bytes, &k);
	if (status)
		return status;
	look_again(s, w, &k);
	s->stats.bytes += bytes;
	count(c->opcode == TN_NVME_READ ? &s->moved[w->queue].read : &s->moved[w->queue].written, bytes);
	if (c->opcode == TN_NVME_DATASET)
		return deallocate(s, w, k.n);
	if (c->opcode == TN_NVME_READ)
		return move(s, k.n, TO_MEMORY, s->media + first_block(c) * s->o.block_bytes, NULL);
	if (c->dword12 & TN_NVME_FUA)
		tn_soft_settle(s, first_block(c), bytes / s->o.block_bytes);
	else if (!tn_soft_remember(s, w, first_block(c), bytes / s->o.block_bytes))
		return TN_NVME_INTERNAL_ERROR;
	return move(s, k.n, FROM_MEMORY, s->media + first_block(c) * s->o.block_bytes, NULL);
}

bool tn_soft_copy_write(struct tn_soft *s, struct tn_soft_work *w, struct tn_soft *to)
{
	uint64_t bytes = data_bytes(s, &w->c), first = first_block(&w->c);
	unsigned char *at = to->media + first * s->o.block_bytes;
	struct walk k;

	if (w->c.opcode == TN_NVME_WRITE_ZEROES) {
		bytes = transfer_bytes(s, &w->c);
		return tn_soft_remember(to, w, first, bytes / s->o.block_bytes) && memset(at, 0, bytes);
	}
	return w->c.opcode != TN_NVME_WRITE || (pieces(s, w, bytes, &k) == 0 && tn_soft_remember(to, w, first, bytes / s->o.block_bytes) &&
						move(s, k.n, FROM_MEMORY, at, NULL) == 0);
}

/* ---- made and unmade ----------------------------------------------------------------------------------------------------- */

static void *pages_of(uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

/* What happens to a controller that reaches no memory is no more than what happens to one that hangs. */
static int port_cut(void *arg)
{
	tn_soft_hang(arg);
	return 0;
}

/* The lock is the process's that has the controller, and goes with it. */
static int open_media(struct tn_soft *s)
{
	uint64_t bytes = s->o.blocks * s->o.block_bytes;
	void *p;

	if (!s->o.file) {
		s->media = pages_of(bytes);
		return 0;
	}
	tn_fork_lock();
	s->file = tn_above_streams(open(s->o.file, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	if (s->file >= 0)
		tn_fork_watch(&s->fork, s->file);
	tn_fork_unlock();
	if (s->file < 0)
		return tn_fail(-errno, "%s: %s", s->o.file, strerror(errno));
	if (flock(s->file, LOCK_EX | LOCK_NB))
		return tn_fail(-EBUSY, "%s: another controller has it", s->o.file);
	if (ftruncate(s->file, (off_t)bytes))
		return tn_fail(-errno, "%s: %s", s->o.file, strerror(errno));
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, s->file, 0);
	s->media = p == MAP_FAILED ? NULL : p;
	if (s->media)
		madvise(s->media, bytes, MADV_DONTFORK); /* a mapping keeps the lock, too */
	return 0;
}

int tn_soft_data_init(struct tn_soft *s)
{
	int rc;

	pthread_mutex_init(&s->lock, NULL);
	s->registers = pages_of(s->register_bytes);
	s->page = pages_of(TN_SOFT_BUS_PAGES * sizeof(*s->page));
	rc = open_media(s);
	if (rc)
		return rc;
	if (!s->registers || !s->media || !s->page)
		return tn_fail(-ENOMEM, "software controller: no memory");
	s->port.get = port_get;
	s->port.put = port_put;
	s->port.map = port_map;
	s->port.unmap = port_unmap;
	s->port.translate = translate;
	s->port.cut = port_cut;
	return 0;
}

void tn_soft_data_fini(struct tn_soft *s)
{
	tn_soft_settle(s, 0, UINT64_MAX);
	for (uint32_t i = 0; i < TN_SOFT_REGIONS_MAX; i++)
		free(s->region[i].bus);
	if (s->registers)
		munmap(s->registers, s->register_bytes);
	if (s->media)
		munmap(s->media, s->o.blocks * s->o.block_bytes);
	tn_fork_unwatch(&s->fork);
	if (s->file >= 0)
		close(s->file);
	if (s->page)
		munmap(s->page, TN_SOFT_BUS_PAGES * sizeof(*s->page));
	pthread_mutex_destroy(&s->lock);
}
