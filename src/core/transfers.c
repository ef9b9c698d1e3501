/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What operations move, as IOCBs: between the parts of blocks and the ring.
 *
 * An operation has up to four lists (enum tn_op_list), said to the ring once, when it begins: the engine's pages, the memory tier's places, the device
 * tier's, and header buffers. An entry of the first three is block * layers + layer, so a copy between them has the same entry on both sides.
 * Each part of a block becomes IOCTXs in an IOCB that is being written; parts share an IOCB if they are of one operation and one kind, and
 * of one window: the executor sorts an IOCB by address, and a later layer of a load must not go before an earlier one.
 * The progress of reads is looked at while their IOCB runs, so that a late object does not keep its neighbours' news.
 *
 * IOCBs are shared by whose memory the pages are in, and by kind of user (budget.h), so that each gets some while others want more than there are.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "core/budget.h"
#include "core/core.h"
#include "core/pool.h"
#include "core/transfers.h"
#include "ring/executor.h"

#define OPEN 16u /* IOCBs that are being written */
#define WINDOW_BYTES (32u << 20) /* of one load */
#define READ_BYTES (256u << 20)	 /* of one IOCB: as many as fit, unless several executors share them (iocb_bytes); ... */
#define WRITE_BYTES (8u << 20)	 /* ... while one is written, the next are filled ... */
#define COPY_BYTES (4u << 20)	 /* ... and several executors share the copies */
#define LOOKS 16u		 /* at an IOCB's entries while it runs */
#define LAST_PRIORITY INT32_MIN	 /* of copies that nobody waits for */
#define NONE UINT32_MAX
#define BUS_PAGE 4096u

/* An IOCB that is written or out. */
struct transfer {
	struct tn_transfer t; /* its first part, which all others are like */
	struct tn_budget *budget;
	uint32_t count;
	uint32_t object_bytes;
	uint32_t seen; /* had ended when the IOCB was last looked at */
	uint32_t told; /* the scheduler knows that they ended */
	uint32_t from; /* all before were told to who walks */
	uint64_t bytes;
	uint32_t next; /* in the list of those that are out */
};

struct tn_transfers {
	struct tn_ring *ring;
	struct tn_executor *executor;
	struct tn_direct *direct; /* between files and memory of devices; NULL: no bytes go so */
	struct transfer at[TN_BUDGET_IOCBS];
	uint32_t first, last; /* out, in the order of issue */
	uint32_t open[OPEN], nopen; /* being written */
	struct tn_budgets budgets;
	/* Reads of this turn, by device: what the scheduler said may go, and what of that is counted already. */
	uint64_t left[TN_DEVICES_MAX], granted[TN_DEVICES_MAX];
	uint32_t asked; /* devices, as bits */
};

/* What each kind of transfer is to the ring. */
static const struct {
	uint16_t op;
	uint8_t list, source; /* enum tn_op_list; TN_LISTS: where the operation's bytes are */
	uint32_t bytes;	      /* most of one IOCB */
} kinds[] = {
	[TN_TRANSFER_READ] = {TN_IOCB_READ, TN_LISTS, 0, READ_BYTES},
	[TN_TRANSFER_WRITE] = {TN_IOCB_WRITE, TN_LISTS, 0, WRITE_BYTES},
	[TN_TRANSFER_IN] = {TN_IOCB_COPY, TN_LIST_PAGES, TN_LIST_MEMORY, COPY_BYTES},
	[TN_TRANSFER_OUT] = {TN_IOCB_COPY, TN_LIST_MEMORY, TN_LIST_PAGES, COPY_BYTES},
	[TN_TRANSFER_IN_NEAR] = {TN_IOCB_COPY, TN_LIST_PAGES, TN_LIST_NEAR, COPY_BYTES},
	[TN_TRANSFER_OUT_NEAR] = {TN_IOCB_COPY, TN_LIST_NEAR, TN_LIST_PAGES, COPY_BYTES},
	[TN_TRANSFER_FOLLOW] = {TN_IOCB_COPY, TN_LIST_PAGES, TN_LISTS, COPY_BYTES},
	[TN_TRANSFER_CHECK] = {TN_IOCB_CHECK, TN_LISTS, 0, COPY_BYTES},
	[TN_TRANSFER_READ_HEADER] = {TN_IOCB_READ, TN_LIST_HEADERS, 0, READ_BYTES},
	[TN_TRANSFER_WRITE_HEADER] = {TN_IOCB_WRITE, TN_LIST_HEADERS, 0, WRITE_BYTES},
};

static void observe(void *arg, uint32_t device, enum tn_io_op op, uint32_t bytes, uint64_t latency_ns, int status)
{
	struct tn_cache *cache = arg;

	cache->row.drives->ops->drives->observe(cache->row.drives, device, op, bytes, latency_ns, status);
}

static int thread_engine(void *arg, struct tn_io **out)
{
	const struct tn_cache *cache = arg;
	uint32_t depth = 1;

	while (depth < cache->o.io_depth)
		depth *= 2;
	return cache->engines.make(&cache->engines, depth, out);
}

static void wake_owner(void *arg)
{
	tn_io_wake(((struct tn_cache *)arg)->io);
}

_Static_assert(TN_DEVICES_MAX <= TN_DIRECT_FILES_MAX, "each device has a file");

/* Engines that do not lend their files, such as those of namespaces, have none for the direct way. */
static int create_direct(struct tn_cache *cache)
{
	struct tn_io_lent lent;
	enum tn_direct_mode mode;
	int rc = tn_direct_mode_of(cache->o.transfer, &mode);

	if (rc || mode == TN_DIRECT_NEVER || cache->ndevices == 0)
		return rc;
	rc = tn_direct_create(mode, cache->o.transfer_streams, cache->alloc, &cache->log, &cache->clock, &cache->transfers->direct);
	for (uint32_t i = 0; i < cache->ndevices && !rc; i++) {
		uint32_t file = cache->row.drives->ops->drives->file(cache->row.drives, i);

		if (file != TN_IO_NO_FILE && tn_io_lend(cache->io, file, &lent) == 0 && lent.direct)
			tn_direct_file(cache->transfers->direct, i, lent.fd);
	}
	return rc;
}

static int create_executor(struct tn_cache *cache)
{
	uint32_t file[TN_DEVICES_MAX];
	struct tn_executor_opts o = {
		.ring = cache->transfers->ring,
		.ndevices = cache->ndevices,
		.depth = cache->o.io_depth,
		.alloc = cache->alloc,
		.clock = &cache->clock,
		.exec = cache->exec,
		.threads = cache->exec ? 0 : cache->o.executors,
		.wake = wake_owner,
		.wake_arg = cache,
		.observe = observe,
		.observe_arg = cache,
		.pins = &cache->copiers.pins,
		.direct = cache->transfers->direct,
	};
	const struct tn_executor_files files = {.io = cache->io, .file = file, .engine = thread_engine, .engine_arg = cache};

	for (uint32_t i = 0; i < o.ndevices; i++)
		file[i] = cache->row.drives->ops->drives->file(cache->row.drives, i);
	return tn_executor_open(&cache->engines, &o, &files, &cache->transfers->executor);
}

/* ---- memory ---------------------------------------------------------------------------------------------------- */

static bool whole_pages(void *memory, uint64_t bytes, unsigned char **first, uint64_t *length)
{
	uintptr_t from = ((uintptr_t)memory + BUS_PAGE - 1) / BUS_PAGE * BUS_PAGE, to = ((uintptr_t)memory + bytes) / BUS_PAGE * BUS_PAGE;

	*first = (unsigned char *)memory + (from - (uintptr_t)memory);
	*length = to > from ? to - from : 0;
	return *length > 0;
}

bool tn_transfers_map(const struct tn_cache *cache, void *memory, uint64_t bytes)
{
	unsigned char *first;
	uint64_t length;

	if (!whole_pages(memory, bytes, &first, &length))
		return false;
	if (tn_executor_map(cache->transfers->executor, first, length) == 0)
		return true;
	tn_log(&cache->log, TN_LOG_WARN, "%s; its bytes are copied on their way to and from the drive", tn_error_last()->text);
	return false;
}

void tn_transfers_unmap(const struct tn_cache *cache, void *memory, uint64_t bytes)
{
	unsigned char *first;
	uint64_t length;

	if (whole_pages(memory, bytes, &first, &length))
		tn_executor_unmap(cache->transfers->executor, first, length);
}

bool tn_transfers_maps(const struct tn_cache *cache)
{
	return cache->transfers && tn_executor_maps(cache->transfers->executor);
}

int tn_transfers_open_direct(const struct tn_cache *cache, const struct tn_device_driver *driver, uint32_t device, const struct tn_copier *copier)
{
	return tn_direct_open(cache->transfers ? cache->transfers->direct : NULL, driver, device, tn_copier_number(copier));
}

/* The cache's own memory of the host is mapped for as long as there is an executor. */
static void map_own(const struct tn_cache *cache, bool map)
{
	for (uint32_t i = 0; i < TN_MEMORY_OF_POOLS; i++) {
		const struct tn_mapped_range *r = cache->mappings[i] && !cache->mappings[i]->copier ? cache->mappings[i]->range : NULL;

		if (r && map)
			tn_transfers_map(cache, r->address, r->bytes);
		else if (r)
			tn_transfers_unmap(cache, r->address, r->bytes);
	}
}

/* ---- made and unmade ------------------------------------------------------------------------------------------- */

int tn_transfers_create(struct tn_cache *cache)
{
	struct tn_ring_opts ro = tn_ring_opts_default();
	struct tn_transfers *r = tn_get(cache->alloc, sizeof(*r));
	int rc;

	if (!r)
		return tn_fail(-ENOMEM, "transfers: no memory");
	cache->transfers = r;
	cache->mappings[TN_MEMORY_OF_HEADERS] = cache->row.drives ? cache->row.drives->headers->memory : NULL;
	cache->mappings[TN_MEMORY_OF_TIER] = cache->row.memory ? cache->row.memory->memory : NULL;
	cache->mappings[TN_MEMORY_OF_NEAR] = cache->row.near ? cache->row.near->memory : NULL;
	r->first = r->last = NONE;
	tn_budgets_init(&r->budgets, &cache->copiers);
	cache->budgets = &r->budgets;
	ro.memory.depth = TN_BUDGET_IOCBS;
	ro.mappings = cache->mappings;
	ro.nmappings = TN_MEMORIES_MAX;
	ro.lists = (cache->o.max_ops + cache->offloads.n + TN_SESSIONS_MAX * TN_SESSION_OPS_MAX) * TN_LISTS;
	if (cache->o.max_op_blocks < ro.memory.ioctxs)
		ro.memory.ioctxs = cache->o.max_op_blocks > TN_TRANSFER_OBJECTS_MAX ? cache->o.max_op_blocks : TN_TRANSFER_OBJECTS_MAX;
	rc = tn_ring_create(&ro, cache->alloc, &r->ring);
	rc = rc ? rc : create_direct(cache);
	rc = rc ? rc : create_executor(cache);
	if (rc == 0)
		map_own(cache, true);
	if (rc == 0 && cache->mappings[TN_MEMORY_OF_TIER])
		rc = tn_pins_add(&cache->copiers.pins, &cache->tier_pin, cache->mappings[TN_MEMORY_OF_TIER]->range->address,
				 cache->mappings[TN_MEMORY_OF_TIER]->range->bytes / BUS_PAGE * BUS_PAGE);
	return rc;
}

void tn_transfers_destroy(struct tn_cache *cache)
{
	struct tn_transfers *r = cache->transfers;

	if (!r)
		return;
	tn_pins_remove(&cache->copiers.pins, &cache->tier_pin);
	if (r->executor)
		map_own(cache, false);
	tn_direct_destroy(r->direct);
	tn_executor_destroy(r->executor);
	tn_ring_destroy(r->ring);
	tn_put(cache->alloc, r, sizeof(*r));
	cache->transfers = NULL;
}

_Static_assert(TN_TIER_OBJECT_MAX <= TN_RING_OBJECT_MAX, "no space takes the last bounce buffers of another one's objects");

int tn_transfers_shape(struct tn_cache *cache, const struct tn_shape *shape)
{
	return tn_executor_make_bounces(cache->transfers->executor, shape->padded_bytes);
}

bool tn_transfers_idle(const struct tn_cache *cache)
{
	return cache->transfers->budgets.taken == 0;
}

/* ---- once per operation ------------------------------------------------------------------------------------ */

static uint32_t list_of(const struct tn_op *op, unsigned list)
{
	if (list == TN_LISTS)
		list = op->pool ? TN_LIST_PAGES : TN_LIST_MEMORY;
	return op->index * TN_LISTS + list;
}

void tn_transfers_prepare(struct tn_op *op, const uint64_t *checks)
{
	struct tn_cache *cache = op->cache;
	struct tn_ring *ring = cache->transfers->ring;

	op->iocbs = 0;
	op->out_bytes = 0;
	memset(op->list, 0, sizeof(op->list));
	op->list[TN_LIST_MEMORY] = (struct tn_ring_list){.shape = op->shape, .blocks = op->n, .memory = TN_MEMORY_OF_TIER,
							 .flat = op->offset, .align = TN_PLACE_ALIGN, .checks = checks};
	if (cache->mappings[TN_MEMORY_OF_NEAR] && op->near)
		op->list[TN_LIST_NEAR] = (struct tn_ring_list){.shape = op->shape, .blocks = op->n, .memory = TN_MEMORY_OF_NEAR, .flat = op->near,
							     .align = TN_PLACE_ALIGN};
	if (op->pool)
		op->list[TN_LIST_PAGES] = (struct tn_ring_list){
			.shape = op->shape,
			.blocks = op->n,
			.memory = op->pool->memory->number,
			.layout = &op->pool->layout,
			.pages = op->pages,
			.first_page = op->first_page,
			.end_page = op->end_page,
			.align = op->pool->align,
			.checks = checks,
		};
	if (cache->row.drives)
		op->list[TN_LIST_HEADERS] = (struct tn_ring_list){.shape = op->header_shape, .blocks = TN_HEADER_BUFFERS,
								  .memory = TN_MEMORY_OF_HEADERS,
								  .flat = cache->row.drives->headers->offset,
								  .align = TN_PLACE_ALIGN};
	for (unsigned k = 0; k < TN_LISTS; k++)
		tn_ring_list_set(ring, list_of(op, k), op->list[k].shape ? &op->list[k] : NULL);
}

/* ---- writing IOCBs ------------------------------------------------------------------------------------------ */

/* Of the device that it waits for, NULL: of none. That is where its pages lie, those that it copies to or else its operation's; or where they come from. */
static const struct tn_copier *copier_of(const struct tn_transfer *t)
{
	if (t->kind == TN_TRANSFER_IN_NEAR)
		return t->op->cache->mappings[TN_MEMORY_OF_NEAR]->copier;
	return tn_pool_copier(t->to ? t->to->pool : t->op->pool);
}

/* So many of the IOCB's objects have ended. Or they are not waited for any more: they wait for no drive, but for their device. */
static void report_ended(struct tn_cache *cache, struct transfer *x, uint32_t ended, bool moved)
{
	uint64_t bytes;

	if (ended <= x->told)
		return;
	bytes = (uint64_t)(ended - x->told) * x->object_bytes;
	if (x->t.kind == TN_TRANSFER_READ)
		tn_schedule_ended(cache, TN_IO_READ, x->t.device, bytes, moved);
	else if (kinds[x->t.kind].op == TN_IOCB_WRITE)
		tn_schedule_ended(cache, TN_IO_WRITE, x->t.device, bytes, moved);
	x->told = ended;
}

void tn_transfers_turn(struct tn_cache *cache)
{
	struct tn_transfers *r = cache->transfers;

	if (!tn_budgets_turn(&r->budgets, tn_now_ns(&cache->clock)))
		return;
	for (uint32_t id = r->first; id != NONE; id = r->at[id].next)
		if (r->at[id].budget->stands)
			report_ended(cache, &r->at[id], r->at[id].count, false);
}

bool tn_transfers_again(struct tn_cache *cache)
{
	return tn_budgets_again(&cache->transfers->budgets);
}

bool tn_transfers_may_read(struct tn_read_item *item, uint32_t chunk)
{
	struct tn_reading *rd = item->r;
	struct tn_cache *cache = rd->op.cache;
	struct tn_transfers *r = cache->transfers;
	uint64_t bytes = (uint64_t)tn_shape_chunk_count(rd->op.shape, chunk) * rd->op.shape->padded_bytes;
	uint32_t d = item->device;
	bool later = false;

	if (!cache->schedule)
		return true;
	if (!(r->asked & 1u << d))
		r->left[d] = tn_schedule_read_allowance(cache, d, bytes, &later);
	r->asked |= 1u << d;
	if (r->left[d] >= bytes) {
		r->left[d] -= bytes;
		return true;
	}
	if (later)
		return false;
	tn_transfers_issue(cache); /* what was gathered counts first */
	if (!tn_schedule_read(item, chunk, bytes)) /* says why not */
		return false;
	r->granted[d] += bytes;
	return true;
}

/* Reads of data that nobody has asked the scheduler for yet are told to it. */
static void count_reads(struct tn_cache *cache, const struct transfer *x)
{
	struct tn_transfers *r = cache->transfers;
	uint64_t known = r->granted[x->t.device] < x->bytes ? r->granted[x->t.device] : x->bytes;
	struct tn_reading *rd = tn_reading_of(x->t.op);

	r->granted[x->t.device] -= known;
	if (x->bytes > known)
		tn_schedule_read(&rd->items[x->t.block], x->t.window, x->bytes - known);
}

static uint16_t flags_of(const struct tn_transfer *t)
{
	bool sums = t->op->writing && t->op->pool && (t->kind == TN_TRANSFER_WRITE || t->kind == TN_TRANSFER_OUT);

	/* What other processes can change is looked at only once it has landed where they cannot. */
	bool landed = t->kind == TN_TRANSFER_OUT && tn_op_is_foreign(t->op);

	bool reads = t->kind == TN_TRANSFER_READ || t->kind == TN_TRANSFER_READ_HEADER;

	/* A header that is read goes before its load's objects: it is one page, and none of them can be checked before it is there. */
	return (uint16_t)((t->verify ? TN_IOCB_VERIFY : 0) | (sums ? TN_IOCB_SUM : 0) | (landed ? TN_IOCB_LANDED : 0) |
			  (t->again ? TN_IOCB_BOUNCE : 0) | (t->kind == TN_TRANSFER_READ_HEADER ? TN_IOCB_FIRST : 0) |
			  (reads && tn_reading_of(t->op)->whole ? TN_IOCB_WHOLE : 0));
}

static int32_t priority_of(const struct tn_transfer *t)
{
	if ((t->kind == TN_TRANSFER_OUT || t->kind == TN_TRANSFER_OUT_NEAR) && t->op->writing)
		return LAST_PRIORITY;
	return t->op->priority;
}

/* Completes an IOCB that was being written, and notes it as out. */
static void close_iocb(struct tn_cache *cache, uint32_t id)
{
	struct tn_transfers *r = cache->transfers;
	struct transfer *x = &r->at[id];
	struct tn_iocb *cb = tn_ring_iocb(r->ring, id);

	if (x->t.kind == TN_TRANSFER_READ)
		count_reads(cache, x);
	cb->op = kinds[x->t.kind].op;
	cb->list = list_of(x->t.to ? x->t.to : x->t.op, kinds[x->t.kind].list);
	cb->source = list_of(x->t.op, kinds[x->t.kind].source);
	cb->count = x->count;
	cb->flags = flags_of(&x->t);
	cb->request_bytes = x->t.request_bytes;
	cb->priority = priority_of(&x->t);
	x->next = NONE;
	if (r->last == NONE)
		r->first = id;
	else
		r->at[r->last].next = id;
	r->last = id;
}

/* Hands over the first n that are being written; the executor is woken once. */
static void issue(struct tn_cache *cache, uint32_t n)
{
	struct tn_transfers *r = cache->transfers;
	int err;

	for (uint32_t k = 0; k < n; k++)
		close_iocb(cache, r->open[k]);
	err = tn_ring_issue(r->ring, r->open, n);
	assert(err == 0);
	r->nopen -= n;
	memmove(r->open, r->open + n, r->nopen * sizeof(r->open[0]));
}

void tn_transfers_issue(struct tn_cache *cache)
{
	struct tn_transfers *r = cache->transfers;

	if (r->nopen > 0)
		issue(cache, r->nopen);
	for (uint32_t d = 0; d < cache->ndevices; d++) {
		if (r->granted[d]) /* there was no IOCB for it */
			tn_schedule_ended(cache, TN_IO_READ, d, r->granted[d], false);
		r->granted[d] = 0;
	}
	r->asked = 0;
}

/* Whether both go into one IOCB. */
static bool alike(const struct tn_transfer *a, const struct tn_transfer *b)
{
	return a->op == b->op && a->kind == b->kind && a->verify == b->verify && a->again == b->again && a->device == b->device && a->window == b->window &&
	       a->to == b->to;
}

/* The bytes that are out of this user's, and as it. */
static uint64_t *out_of(struct tn_budget *b, const struct tn_transfer *t)
{
	return &b->out_bytes[t->user][kinds[t->kind].op == TN_IOCB_COPY];
}

static bool writes(const struct tn_transfer *t)
{
	return t->user == TN_TRANSFER_SAVES || t->user == TN_TRANSFER_OFFLOADS;
}

/* As many of a load's reads are out as its space's slack table allows. A load has IOCBs of its own on each device. */
static bool is_bounded(const struct tn_cache *cache, const struct tn_transfer *t)
{
	uint32_t most = t->kind == TN_TRANSFER_READ ? tn_schedule_most_iocbs(tn_reading_of(t->op), t->window) : 0;

	return most && t->op->iocbs >= (uint64_t)most * cache->ndevices;
}

/*
 * Whether an IOCB may be taken for this. Beside loads, which come first, writes get a quarter of the IOCBs and of the bytes if nobody
 * else wants them; without loads half of the IOCBs, so that the next load finds some. Bytes do not keep headers back: they are few, and
 * blocks whose data is written wait for them.
 */
static bool may_take(struct tn_cache *cache, const struct tn_transfer *t)
{
	struct tn_budgets *all = &cache->transfers->budgets;
	const struct tn_copier *copier = copier_of(t);
	struct tn_budget *b = tn_budget_of(all, copier);
	bool loads = tn_loads_move(cache);
	uint32_t depth = tn_budget_depth(copier), keep = 0;
	uint64_t most = (uint64_t)cache->o.io_depth * (kinds[t->kind].op == TN_IOCB_COPY ? TN_CHUNK_BYTES : TN_IO_BYTES);

	if (is_bounded(cache, t) || (b->stands && t->kind != TN_TRANSFER_WRITE_HEADER))
		return false;
	if (writes(t)) {
		keep = loads ? depth * 3 / 4 : depth / 2;
		if (t->kind != TN_TRANSFER_WRITE_HEADER && *out_of(b, t) > (loads ? most / 4 : most))
			return false;
	} else if (t->kind == TN_TRANSFER_IN || t->kind == TN_TRANSFER_IN_NEAR || (t->kind == TN_TRANSFER_READ && !cache->schedule)) {
		if (t->op->iocbs >= 2 && t->op->out_bytes >= WINDOW_BYTES)
			return false;
	}
	return tn_share_may(&b->share, t->user, tn_budget_left(all, copier), keep);
}

static uint32_t take(struct tn_cache *cache, const struct tn_transfer *t)
{
	struct tn_transfers *r = cache->transfers;
	uint32_t id;

	if (!may_take(cache, t))
		return NONE;
	if (r->nopen == OPEN)
		issue(cache, OPEN);
	if (tn_ring_get_iocb(r->ring, r->ring->view.ioctxs, NULL, &id))
		return NONE;
	tn_budget_took(&r->budgets, copier_of(t), t->user);
	r->open[r->nopen++] = id;
	r->at[id] = (struct transfer){.t = *t, .budget = tn_budget_of(&r->budgets, copier_of(t)), .object_bytes = t->op->shape->padded_bytes};
	if (kinds[t->kind].list == TN_LIST_HEADERS)
		r->at[id].object_bytes = t->op->header_shape->padded_bytes;
	t->op->iocbs++;
	t->op->inflight++;
	return id;
}

/* The IOCB being written that this belongs to, by its place in `open`; nopen: there is none. */
static uint32_t find_open(const struct tn_transfers *r, const struct tn_transfer *t)
{
	uint32_t k = 0;

	while (k < r->nopen && !alike(&r->at[r->open[k]].t, t))
		k++;
	return k;
}

/* Of several executors each shall have two IOCBs of a load's reads: one alone that takes all of them reads while the others sleep. */
static uint64_t iocb_bytes(const struct tn_cache *cache, enum tn_transfer_kind kind)
{
	bool shared = cache->o.executors > 1 && kinds[kind].op == TN_IOCB_READ;

	return shared ? WINDOW_BYTES / 2 / cache->o.executors : kinds[kind].bytes;
}

static bool has_space(const struct tn_transfers *r, uint32_t k, const struct tn_transfer *t)
{
	const struct transfer *x = &r->at[r->open[k]];

	return x->count + t->count <= r->ring->view.ioctxs && x->bytes < iocb_bytes(t->op->cache, t->kind);
}

bool tn_transfer_may(const struct tn_transfer *t)
{
	const struct tn_transfers *r = t->op->cache->transfers;
	uint32_t k = find_open(r, t);

	return (k < r->nopen && has_space(r, k, t)) || may_take(t->op->cache, t);
}

/* The IOCB that takes this: one that is being written, or a new one, or NONE. */
static uint32_t writable(struct tn_cache *cache, const struct tn_transfer *t)
{
	struct tn_transfers *r = cache->transfers;
	uint32_t k = find_open(r, t);

	if (k == r->nopen)
		return take(cache, t);
	if (has_space(r, k, t))
		return r->open[k];
	issue(cache, k + 1);
	return take(cache, t);
}

bool tn_transfer_add(const struct tn_transfer *t)
{
	struct tn_cache *cache = t->op->cache;
	struct tn_transfers *r = cache->transfers;
	const struct tn_shape *s = t->op->shape;
	uint32_t id = writable(cache, t), layers = s->layers, entry = t->block * layers + t->first;
	struct transfer *x;
	struct tn_ioctx *ctx;
	uint64_t bytes;

	assert(t->count > 0 && t->count <= TN_TRANSFER_OBJECTS_MAX);
	if (id == NONE)
		return false;
	x = &r->at[id];
	ctx = tn_ring_ioctx(r->ring, id) + x->count;
	if (kinds[t->kind].list == TN_LIST_HEADERS)
		*ctx = (struct tn_ioctx){t->place, x->object_bytes, t->block};
	else if (kinds[t->kind].op == TN_IOCB_COPY)
		for (uint32_t l = 0; l < t->count; l++)
			ctx[l] = (struct tn_ioctx){entry + l, s->object_bytes, (t->to ? t->to_block * layers + t->first : entry) + l};
	else
		for (uint32_t l = 0; l < t->count; l++)
			ctx[l] = (struct tn_ioctx){t->place + (uint64_t)l * (s->padded_bytes / TN_PLACE_ALIGN), s->object_bytes,
						   entry + l};
	bytes = (uint64_t)t->count * x->object_bytes;
	x->count += t->count;
	x->bytes += bytes;
	t->op->out_bytes += bytes;
	*out_of(x->budget, t) += bytes;
	return true;
}

/* ---- what ended ---------------------------------------------------------------------------------------------- */

/* The status of some objects: 1 while one of them has not ended. */
static int part_status(const int32_t *at, uint32_t objects)
{
	int status = 0;

	for (uint32_t k = 0; k < objects; k++) {
		int one = __atomic_load_n(&at[k], __ATOMIC_ACQUIRE);

		if (one == TN_RING_PENDING)
			return 1;
		if (status == 0)
			status = one;
	}
	return status;
}

/* What part of its operation the IOCB's k-th transfer begins. */
static struct tn_part part_of(struct tn_cache *cache, const struct transfer *x, const struct tn_ioctx *ctx)
{
	const struct tn_shape *s = x->t.op->shape;
	struct tn_part p = {.op = x->t.op, .kind = x->t.kind, .verified = x->t.verify, .again = x->t.again, .count = 1};
	uint64_t entry = kinds[x->t.kind].op == TN_IOCB_COPY ? ctx->place : ctx->entry;

	if (kinds[x->t.kind].list == TN_LIST_HEADERS) {
		p.buffer = ctx->entry;
		p.block = cache->row.drives->headers->block[p.buffer];
		return p;
	}
	p.block = (uint32_t)(entry / s->layers);
	p.first = (uint32_t)(entry % s->layers);
	if (!x->t.op->writing)
		p.count = tn_shape_chunk_count(s, tn_shape_chunk_of(s, p.first));
	return p;
}

/* What may be told more than once, and before its IOCB is through. */
static bool is_read(const struct transfer *x)
{
	return x->t.kind == TN_TRANSFER_READ || x->t.kind == TN_TRANSFER_IN || x->t.kind == TN_TRANSFER_IN_NEAR;
}

/* The IOCB is through: it leaves the list of those that are out, and what it took of the scheduler's and its user's bytes is free. */
static void unlink_iocb(struct tn_cache *cache, uint32_t id, uint32_t before)
{
	struct tn_transfers *r = cache->transfers;
	struct transfer *x = &r->at[id];

	if (before == NONE)
		r->first = x->next;
	else
		r->at[before].next = x->next;
	if (r->last == id)
		r->last = before;
	report_ended(cache, x, x->count, true);
	x->t.op->out_bytes -= x->bytes;
	*out_of(x->budget, &x->t) -= x->bytes;
}

/* All of its parts were told. */
static void put_iocb(struct tn_transfers *r, uint32_t id)
{
	struct transfer *x = &r->at[id];

	x->t.op->iocbs--;
	x->t.op->inflight--;
	tn_budget_gave(&r->budgets, copier_of(&x->t), x->t.user);
	tn_ring_put(r->ring, &id, 1);
}

/* The next part of the walk's IOCB that has ended; of one that is through, what has no status was given up. */
static bool next_part(struct tn_transfer_walk *w, struct tn_part *p)
{
	struct tn_transfers *r = w->cache->transfers;
	struct transfer *x = &r->at[w->id];
	const struct tn_ioctx *ctx = tn_ring_ioctx(r->ring, w->id);
	const int32_t *statuses = tn_ring_statuses(r->ring, w->id);

	while (w->k < x->count) {
		*p = part_of(w->cache, x, &ctx[w->k]);
		p->status = statuses ? part_status(statuses + w->k, p->count) : 1;
		p->sums = tn_ring_sums(r->ring, w->id) + w->k;
		w->k += p->count;
		w->all &= p->status != 1;
		x->from = w->all ? w->k : x->from;
		if (p->status == 1 && !w->through)
			continue;
		if (p->status == 1)
			p->status = -ECANCELED;
		return true;
	}
	return false;
}

/* Whether the parts of the IOCB are to be looked at. The reads of an operation are, if it is named; else what is through, or well on its way. */
static bool visit(struct tn_transfer_walk *w, uint32_t id)
{
	struct tn_transfers *r = w->cache->transfers;
	struct transfer *x = &r->at[id];
	struct tn_ring_completion done;
	uint32_t ended;

	if (w->op)
		return x->t.op == w->op && is_read(x);
	ended = tn_ring_ended(r->ring, id);
	w->through = tn_ring_result(r->ring, id, &done) == 0;
	if (w->through) {
		unlink_iocb(w->cache, id, w->before);
		return true;
	}
	w->before = id;
	report_ended(w->cache, x, ended, true);
	if (!is_read(x) || ended <= x->seen || (ended - x->seen) * LOOKS < x->count)
		return false;
	x->seen = ended;
	return true;
}

struct tn_transfer_walk tn_transfers_walk(struct tn_cache *cache, const struct tn_op *op)
{
	struct tn_transfers *r = cache->transfers;
	struct tn_ring_completion done;

	while (!op && tn_ring_poll(r->ring, &done, 1))
		; /* the list has them in the order of issue */
	return (struct tn_transfer_walk){.cache = cache, .op = op, .next = op && !op->iocbs ? NONE : r->first, .before = NONE, .id = NONE};
}

bool tn_transfers_ended(struct tn_transfer_walk *w, struct tn_part *p)
{
	struct tn_transfers *r = w->cache->transfers;

	for (;;) {
		if (w->id != NONE && next_part(w, p))
			return true;
		if (w->id != NONE && w->through)
			put_iocb(r, w->id);
		w->id = w->next;
		if (w->id == NONE)
			return false;
		w->next = r->at[w->id].next;
		w->k = r->at[w->id].from;
		w->all = true;
		if (visit(w, w->id))
			w->any = true;
		else
			w->id = NONE;
	}
}

bool tn_transfers_step(struct tn_cache *cache)
{
	return tn_executor_step(cache->transfers->executor);
}

uint64_t tn_transfers_due(const struct tn_cache *cache, uint64_t now_ns)
{
	uint64_t due = tn_executor_due(cache->transfers->executor, now_ns);

	return due < cache->transfers->budgets.stands_ns ? due : cache->transfers->budgets.stands_ns;
}

void tn_transfers_cancel(const struct tn_op *op)
{
	struct tn_transfers *r = op->cache->transfers;

	for (uint32_t id = op->iocbs ? r->first : NONE; id != NONE; id = r->at[id].next)
		if (r->at[id].t.op == op)
			tn_ring_cancel(r->ring, &id, 1);
}

void tn_transfers_stats(const struct tn_cache *cache, struct tn_stats *stats)
{
	struct tn_executor_stats s;

	tn_executor_stats(cache->transfers->executor, &s);
	stats->bounced_objects = s.bounced;
	stats->direct_bytes = s.direct_bytes;
	stats->verified_objects = s.verified;
	stats->unobserved_requests = s.unobserved;
}
