/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memories and pools: where an engine keeps its pages, and who has which of them: one load, or any number of saves. Registering and
 * creating take a lock; nothing on the way of a load or save does.
 *
 * Whoever claims a page marks it first and looks at the marks of others then, all in one order (SEQ_CST): of two that
 * claim the same bytes at once at least one sees the other. Both may, and then both are refused: an engine that does this
 * has an error of its own.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/abi.h"
#include "base/error.h"
#include "core/core.h"
#include "core/transfers.h"
#include "device/copier.h"
#include "device/device.h"
#include "front/attach.h"
#include "front/stage.h"
#include "layout/layout.h"

void tn_memory_desc_init_sized(struct tn_memory_desc *desc, size_t size)
{
	static const struct tn_memory_desc defaults = {.size = sizeof(defaults), .kind = TN_MEMORY_HOST};

	tn_abi_init(desc, size, &defaults, sizeof(defaults));
}

static size_t ranges_bytes(size_t n)
{
	return tn_array_bytes(n, sizeof(struct tn_mapped_range));
}

static bool ranges_meet(const struct tn_memory_range *a, const struct tn_memory_range *b)
{
	uintptr_t at = (uintptr_t)a->address, other = (uintptr_t)b->address;

	return at < other + b->bytes && other < at + a->bytes;
}

static int check_ranges(const struct tn_memory_range *range, uint32_t n)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct tn_memory_range *r = &range[i];
		uintptr_t end;

		if (!r->address || r->bytes == 0)
			return tn_fail(-EINVAL, "tn_memory_register: range %u of %u has no address, or no bytes", i, n);
		if (__builtin_add_overflow((uintptr_t)r->address, r->bytes, &end) ||
		    __builtin_add_overflow(sum, r->bytes, &sum))
			return tn_fail(-EOVERFLOW, "tn_memory_register: range %u at %p with %llu bytes wraps around the address space",
				       i, r->address, (unsigned long long)r->bytes);
		for (uint32_t k = 0; k < i; k++)
			if (ranges_meet(r, &range[k]))
				return tn_fail(-EINVAL, "tn_memory_register: ranges %u at %p and %u at %p overlap", k, range[k].address,
					       i, r->address);
	}
	return 0;
}

static void free_memory(struct tn_memory *memory)
{
	const struct tn_alloc *a = memory->cache->alloc;

	tn_put(a, memory->mapped, memory->mapping.nranges * sizeof(*memory->mapped));
	tn_put(a, memory->range, ranges_bytes(memory->mapping.nranges));
	tn_put(a, memory, sizeof(*memory));
}

/* On the owner thread. */
static int map_memory(struct tn_cache *cache, void *arg)
{
	const struct tn_memory *m = arg;

	for (uint32_t i = 0; i < m->mapping.nranges; i++)
		m->mapped[i] = tn_transfers_map(cache, m->range[i].address, m->range[i].bytes);
	return 0;
}

static int unmap_memory(struct tn_cache *cache, void *arg)
{
	const struct tn_memory *m = arg;

	for (uint32_t i = 0; i < m->mapping.nranges; i++)
		if (m->mapped[i])
			tn_transfers_unmap(cache, m->range[i].address, m->range[i].bytes);
	return 0;
}

/*
 * A drive that maps memory has all of its pages made and kept. For memory of processes that have attached, which say themselves how much that
 * is, and may take pages away, nothing is mapped: its bytes are copied on their way.
 */
static bool may_be_mapped(const struct tn_memory *m)
{
	const struct tn_cache *cache = m->cache;

	return m->session == cache->own && !cache->attached && !m->driver && tn_transfers_maps(cache);
}

static void leave_device(struct tn_memory *m)
{
	if (!m->driver)
		return;
	if (m->mapping.copier)
		tn_copiers_leave(&m->cache->copiers, m->mapping.copier);
	for (uint32_t i = 0; i < m->mapping.nranges; i++)
		m->driver->ops->unregister_range(m->driver, &(struct tn_memory_range){.address = m->range[i].address, .bytes = m->range[i].bytes,
										      .device = m->device});
}

/* Executors have the driver copy its bytes. */
static int take_to_executors(struct tn_memory *m)
{
	int rc = tn_copiers_join(&m->cache->copiers, m->driver, m->device, &m->mapping.copier);

	return rc ? rc : tn_transfers_open_direct(m->cache, m->driver, m->device, m->mapping.copier);
}

/* What was done is undone by leave_device, also after an error. */
static int take_to_device(struct tn_memory *m, const struct tn_memory_desc *d)
{
	int rc = tn_device_register(d->driver, d->ranges, d->nranges);

	if (rc)
		return rc;
	m->driver = d->driver;
	m->device = d->ranges[0].device;
	m->staged = m->cache->attached;
	return m->staged ? 0 : take_to_executors(m);
}

int tn_memory_register(struct tn_cache *cache, const struct tn_memory_desc *desc, struct tn_memory **out)
{
	return tn_memory_register_for(cache, desc, NULL, out);
}

int tn_memory_register_for(struct tn_cache *cache, const struct tn_memory_desc *desc, struct tn_session *session, struct tn_memory **out)
{
	struct tn_memory_desc d;
	struct tn_memory *memory;
	int rc;

	if (!cache || !desc || !out)
		return tn_fail(-EINVAL, "tn_memory_register: cache, desc or out is missing");
	if (tn_check_process(cache))
		return -ECHILD;
	tn_memory_desc_init(&d);
	rc = tn_abi_in(TN_ABI(tn_memory_desc, ranges), &d, desc);
	if (rc)
		return rc;
	if (d.kind > TN_MEMORY_DEVICE || d.nranges == 0 || !d.ranges)
		return tn_fail(-EINVAL, "tn_memory_register: kind %u with %u ranges", d.kind, d.nranges);
	if (d.kind == TN_MEMORY_FD)
		return tn_fail(-ENOTSUP, "tn_memory_register: this library moves no bytes of files: map the file, and register the addresses");
	rc = d.kind == TN_MEMORY_DEVICE ? tn_device_check(d.driver) : 0;
	rc = rc ? rc : check_ranges(d.ranges, d.nranges);
	if (rc)
		return rc;
	memory = tn_get(cache->alloc, sizeof(*memory));
	if (!memory)
		return tn_fail(-ENOMEM, "tn_memory_register: no memory");
	memory->cache = cache;
	tn_list_init(&memory->pools);
	memory->session = session ? session : cache->own;
	memory->stage_bytes = d.stage_bytes;
	memory->range = tn_get(cache->alloc, ranges_bytes(d.nranges));
	if (!memory->range) {
		tn_put(cache->alloc, memory, sizeof(*memory));
		return tn_fail(-ENOMEM, "tn_memory_register: no memory for %u ranges", d.nranges);
	}
	tn_mapping_init(&memory->mapping, memory->range, d.ranges, d.nranges);
	rc = d.kind == TN_MEMORY_DEVICE ? take_to_device(memory, &d) : 0;
	if (rc == 0 && cache->attached)
		rc = tn_remote_memory(memory);
	if (rc) {
		leave_device(memory);
		free_memory(memory);
		return rc;
	}
	if (may_be_mapped(memory))
		memory->mapped = tn_get(cache->alloc, d.nranges * sizeof(*memory->mapped));
	if (memory->mapped)
		tn_messages_call(&cache->messages, map_memory, memory);
	pthread_mutex_lock(&cache->lock);
	cache->nmemories++;
	tn_list_push(&cache->memories, &memory->link);
	pthread_mutex_unlock(&cache->lock);
	*out = memory;
	return 0;
}

int tn_memory_unregister(struct tn_memory *memory)
{
	struct tn_cache *cache;
	uint32_t pools;

	if (!memory)
		return 0;
	cache = memory->cache;
	if (tn_check_process(cache))
		return -ECHILD;
	pthread_mutex_lock(&cache->lock);
	pools = memory->npools;
	if (pools == 0) {
		cache->nmemories--;
		tn_list_del(&memory->link);
	}
	pthread_mutex_unlock(&cache->lock);
	if (pools > 0)
		return tn_fail(-EBUSY, "tn_memory_unregister: it has %u pools; destroy them first", pools);
	if (cache->attached)
		tn_remote_memory_unregister(memory);
	if (memory->mapped)
		tn_messages_call(&cache->messages, unmap_memory, memory);
	leave_device(memory);
	free_memory(memory);
	return 0;
}

static size_t table_bytes(const struct tn_geometry *g)
{
	return tn_array_bytes((size_t)g->layers * g->nplanes, sizeof(uint64_t));
}

/* ---- claims ----------------------------------------------------------------------------------------------- */

/*
 * The pages of pools with one layout. A memory keeps them as long as it has a pool, so whoever claims a page looks at the others'
 * without a lock.
 */
struct tn_claims {
	struct tn_layout layout;
	uint64_t *loading; /* shared bitmap: pages that belong to a load */
	uint32_t *saving;  /* shared: by page, how many saves it is part of */
	uint32_t nothers;  /* shared: those before it are complete */
	struct other {
		struct tn_claims *claims;
		struct tn_overlap overlap; /* of these pages with its pages */
	} other[TN_MEMORY_LAYOUTS_MAX];
	size_t loading_bytes, saving_bytes;
};

static void destroy_claims(struct tn_claims *c, const struct tn_alloc *alloc)
{
	tn_put(alloc, c->layout.base, table_bytes(&c->layout.geometry));
	tn_put(alloc, c->loading, c->loading_bytes);
	tn_put(alloc, c->saving, c->saving_bytes);
	tn_put(alloc, c, sizeof(*c));
}

static int create_claims(const struct tn_layout *layout, const struct tn_alloc *alloc, struct tn_claims **out)
{
	size_t bytes = table_bytes(&layout->geometry);
	struct tn_claims *c = tn_get(alloc, sizeof(*c));

	if (!c)
		return tn_fail(-ENOMEM, "tn_pool_create: no memory");
	c->layout = *layout;
	c->loading_bytes = (layout->npages + 63) / 64 * sizeof(uint64_t);
	c->saving_bytes = tn_array_bytes(layout->npages, sizeof(*c->saving));
	c->layout.base = tn_get(alloc, bytes);
	c->loading = tn_get(alloc, c->loading_bytes);
	c->saving = tn_get(alloc, c->saving_bytes);
	if (!c->layout.base || !c->loading || !c->saving) {
		destroy_claims(c, alloc);
		return tn_fail(-ENOMEM, "tn_pool_create: no memory for %llu pages", (unsigned long long)layout->npages);
	}
	memcpy(c->layout.base, layout->base, bytes);
	*out = c;
	return 0;
}

static void looks_at(struct tn_claims *c, struct tn_claims *other)
{
	struct other *o = &c->other[c->nothers];

	tn_overlap_init(&o->overlap, &c->layout, &other->layout);
	o->claims = other;
	if (o->overlap.nways > 0)
		__atomic_store_n(&c->nothers, c->nothers + 1, __ATOMIC_SEQ_CST);
}

/* From now on each looks at the other, if their layouts overlap. */
static void meet(struct tn_claims *a, struct tn_claims *b)
{
	looks_at(a, b);
	looks_at(b, a);
}

static bool is_loading(const struct tn_claims *c, uint64_t page)
{
	return __atomic_load_n(&c->loading[page / 64], __ATOMIC_SEQ_CST) >> (page % 64) & 1;
}

static bool is_saving(const struct tn_claims *c, uint64_t page)
{
	return __atomic_load_n(&c->saving[page], __ATOMIC_SEQ_CST) > 0;
}

static bool any_loading(void *arg, uint64_t first, uint64_t end)
{
	while (first < end && !is_loading(arg, first))
		first++;
	return first < end;
}

static bool any_claimed(void *arg, uint64_t first, uint64_t end)
{
	while (first < end && !is_loading(arg, first) && !is_saving(arg, first))
		first++;
	return first < end;
}

/* Whether pages of other layouts that share bytes with this one are claimed: taken says which claims count. */
static bool others_have(const struct tn_claims *c, uint64_t page, bool (*taken)(void *arg, uint64_t first, uint64_t end))
{
	uint32_t n = __atomic_load_n(&c->nothers, __ATOMIC_SEQ_CST);

	for (uint32_t i = 0; i < n; i++)
		if (tn_overlap_any(&c->other[i].overlap, page, taken, c->other[i].claims))
			return true;
	return false;
}

static int out_of_range(const struct tn_claims *c, uint64_t i, uint32_t page)
{
	return tn_fail(-EINVAL, "pages[%llu] = %u: the pool has %llu pages", (unsigned long long)i, page,
		       (unsigned long long)c->layout.npages);
}

static int taken_by(uint64_t i, uint32_t page, const char *whom)
{
	return tn_fail(-EINVAL, "pages[%llu] = %u: %s", (unsigned long long)i, page, whom);
}

void tn_claims_loaded(struct tn_claims *c, const uint32_t *pages, uint64_t first, uint64_t end)
{
	for (uint64_t i = first; i < end; i++)
		__atomic_fetch_and(&c->loading[pages[i] / 64], ~(1ull << (pages[i] % 64)), __ATOMIC_RELEASE);
}

int tn_claims_load(struct tn_claims *c, const uint32_t *pages, uint64_t first, uint64_t end)
{
	for (uint64_t i = first; i < end; i++) {
		uint32_t page = pages[i];
		uint64_t bit = 1ull << (page % 64), undo = i + 1;
		int rc = 0;

		if (page >= c->layout.npages) {
			undo = i;
			rc = out_of_range(c, i, page);
		} else if (__atomic_fetch_or(&c->loading[page / 64], bit, __ATOMIC_SEQ_CST) & bit) {
			undo = i;
			rc = taken_by(i, page, "given twice, or still part of another load");
		} else if (is_saving(c, page)) {
			rc = taken_by(i, page, "still part of a save; end it first");
		} else if (others_have(c, page, any_claimed)) {
			rc = taken_by(i, page, "still part of a load or save through another pool of the memory; end it first");
		}
		if (rc) {
			tn_claims_loaded(c, pages, first, undo);
			return rc;
		}
	}
	return 0;
}

void tn_claims_saved(struct tn_claims *c, const uint32_t *pages, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		__atomic_fetch_sub(&c->saving[pages[i]], 1, __ATOMIC_RELEASE);
}

int tn_claims_save(struct tn_claims *c, const uint32_t *pages, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		uint32_t page = pages[i];
		int rc = 0;

		if (page >= c->layout.npages) {
			tn_claims_saved(c, pages, i);
			return out_of_range(c, i, page);
		}
		__atomic_fetch_add(&c->saving[page], 1, __ATOMIC_SEQ_CST);
		if (is_loading(c, page))
			rc = taken_by(i, page, "still part of a load; end it first");
		else if (others_have(c, page, any_loading))
			rc = taken_by(i, page, "still part of a load through another pool of the memory; end it first");
		if (rc) {
			tn_claims_saved(c, pages, i + 1);
			return rc;
		}
	}
	return 0;
}

/* ---- pools ------------------------------------------------------------------------------------------------ */

/* The same pages in the same bytes, whatever they hold. */
static bool same_places(const struct tn_layout *a, const struct tn_layout *b)
{
	uint32_t planes = a->geometry.nplanes, n = a->geometry.layers * planes;

	return b->geometry.layers == a->geometry.layers && b->geometry.nplanes == planes && a->npages == b->npages &&
	       memcmp(a->stride, b->stride, sizeof(a->stride)) == 0 &&
	       memcmp(a->page_bytes, b->page_bytes, sizeof(a->page_bytes)) == 0 &&
	       memcmp(a->base, b->base, n * sizeof(*a->base)) == 0;
}

/* The claims of a layout over a memory: those of pools before, or new ones. Under cache->lock. */
static int find_claims(struct tn_memory *m, const struct tn_layout *layout, struct tn_claims **out)
{
	int rc;

	for (uint32_t i = 0; i < m->nclaims; i++) {
		if (!same_places(&m->claims[i]->layout, layout))
			continue;
		*out = m->claims[i];
		return 0;
	}
	if (m->nclaims == TN_MEMORY_LAYOUTS_MAX)
		return tn_fail(-ENOSPC, "tn_pool_create: the memory has had pools of %u layouts; destroy all of its pools, or register "
			       "its bytes as several memories", TN_MEMORY_LAYOUTS_MAX);
	rc = create_claims(layout, m->cache->alloc, out);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < m->nclaims; i++)
		meet(m->claims[i], *out);
	m->claims[m->nclaims++] = *out;
	return 0;
}

/* The number by which operations name it. Under cache->lock. */
static int take_number(struct tn_cache *cache, struct tn_pool *pool)
{
	bool own = pool->memory->session == cache->own;
	uint32_t end = own ? TN_POOLS_OWN : TN_POOLS_MAX;

	pool->number = own ? 0 : TN_POOLS_OWN;
	while (pool->number < end && __atomic_load_n(&cache->pools[pool->number], __ATOMIC_ACQUIRE))
		pool->number++;
	return pool->number < end ? 0 : tn_fail(-ENOSPC, "tn_pool_create: there are %u pools, the most there can be; destroy some", end);
}

/* An attached cache has the owner's numbers. */
static bool has_numbers(const struct tn_memory *m)
{
	return !m->cache->attached;
}

/*
 * The number by which lists name the memory, from its first pool on. One is free: there are as many as pools in the owner and in all of its sessions
 * together (TN_POOLS_MAX), and a memory gives its number back with its last pool. Under cache->lock.
 */
static void take_mapping(struct tn_memory *m)
{
	const struct tn_mapping **mappings = m->cache->mappings;
	uint32_t number = TN_MEMORY_OF_POOLS;

	if (m->npools > 0)
		return;
	while (number < TN_MEMORIES_MAX && mappings[number])
		number++;
	assert(number < TN_MEMORIES_MAX);
	m->number = number;
	__atomic_store_n(&mappings[number], &m->mapping, __ATOMIC_RELEASE);
}

/* Its last pool has gone, and nothing under way names it. Under cache->lock. */
static void give_mapping(struct tn_memory *m)
{
	if (m->npools == 0 && has_numbers(m))
		__atomic_store_n(&m->cache->mappings[m->number], NULL, __ATOMIC_RELEASE);
}

/*
 * Claims are for the operations of this process. A pool of a process that has attached gets none: that process claims its pages itself. To compare its
 * layouts here would take time under cache->lock, and memory, as much as that process likes.
 */
static int join_memory(struct tn_memory *memory, struct tn_pool *pool)
{
	int rc = 0;

	pthread_mutex_lock(&memory->cache->lock);
	if (has_numbers(memory)) {
		rc = take_number(memory->cache, pool);
		if (rc == 0)
			take_mapping(memory);
	}
	if (rc == 0 && memory->session == memory->cache->own) {
		rc = find_claims(memory, &pool->layout, &pool->claims);
		if (rc)
			give_mapping(memory);
	}
	if (rc == 0) {
		pool->session = memory->session;
		memory->npools++;
		tn_list_push(&memory->pools, &pool->link);
		if (has_numbers(memory))
			__atomic_store_n(&memory->cache->pools[pool->number], pool, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&memory->cache->lock);
	return rc;
}

/* Its memory may be gone. */
static void free_pool(struct tn_pool *pool, const struct tn_alloc *a)
{
	tn_put(a, pool->layout.base, table_bytes(&pool->layout.geometry));
	tn_put(a, pool, sizeof(*pool));
}

/* Where the core is in another process it is told of the pool. */
static int tell_owner(struct tn_pool *pool, const struct tn_pool_layout *layout)
{
	if (pool->memory->cache->attached)
		return tn_remote_pool(pool, layout);
	pool->align = tn_layout_align(&pool->layout, &pool->memory->mapping);
	return 0;
}

static void forget_at_owner(struct tn_pool *pool)
{
	if (pool->memory->cache->attached)
		tn_remote_pool_destroy(pool);
}

int tn_pool_create(struct tn_memory *memory, const struct tn_geometry *geometry, const struct tn_pool_layout *layout,
		   struct tn_pool **out)
{
	const struct tn_alloc *a;
	struct tn_pool *pool;
	uint64_t *table;
	int rc;

	if (!memory || !geometry || !layout || !layout->base || !out)
		return tn_fail(-EINVAL, "tn_pool_create: memory, geometry, layout, its base or out is missing");
	if (tn_check_process(memory->cache))
		return -ECHILD;
	rc = tn_geometry_check(geometry);
	if (rc)
		return rc;
	a = memory->cache->alloc;
	pool = tn_get(a, sizeof(*pool));
	table = tn_get(a, table_bytes(geometry));
	rc = pool && table ? 0 : tn_fail(-ENOMEM, "tn_pool_create: no memory");
	if (rc == 0)
		rc = tn_layout_init(geometry, layout, &memory->mapping, table, &pool->layout);
	if (rc == 0) {
		pool->memory = memory;
		rc = tell_owner(pool, layout);
		if (rc == 0) {
			rc = join_memory(memory, pool);
			if (rc)
				forget_at_owner(pool);
		}
	}
	if (rc) {
		tn_put(a, table, table_bytes(geometry));
		tn_put(a, pool, sizeof(*pool));
		return rc;
	}
	*out = pool;
	return 0;
}

int tn_pool_destroy(struct tn_pool *pool)
{
	const struct tn_alloc *a;
	struct tn_memory *m;
	int rc = 0;

	if (!pool)
		return 0;
	m = pool->memory;
	if (tn_check_process(m->cache))
		return -ECHILD;
	if (__atomic_load_n(&pool->ops, __ATOMIC_ACQUIRE) > 0)
		return tn_fail(-EBUSY, "tn_pool_destroy: %u loads or saves use it; end them first", pool->ops);
	a = m->cache->alloc;
	if (m->cache->attached)
		rc = tn_remote_pool_destroy(pool);
	else if (m->session != m->cache->own)
		rc = tn_owner_call(m->cache, tn_session_forget_pool, pool);
	if (rc)
		return rc;
	pthread_mutex_lock(&m->cache->lock);
	m->npools--;
	give_mapping(m);
	tn_list_del(&pool->link);
	if (has_numbers(m) && m->session == m->cache->own) /* of others the core has forgotten it: the number may be another pool's by now */
		__atomic_store_n(&m->cache->pools[pool->number], NULL, __ATOMIC_RELEASE);
	for (; m->npools == 0 && m->nclaims > 0; m->nclaims--)
		destroy_claims(m->claims[m->nclaims - 1], a);
	pthread_mutex_unlock(&m->cache->lock);
	free_pool(pool, a);
	return 0;
}

/* ---- of an owner that is gone -------------------------------------------------------------------------------- */

void tn_memories_abandon(struct tn_cache *cache)
{
	const struct tn_alloc *a = cache->alloc;
	struct tn_list *at;

	while ((at = tn_list_pop(&cache->memories))) {
		struct tn_memory *m = tn_container_of(at, struct tn_memory, link);

		while ((at = tn_list_pop(&m->pools))) {
			struct tn_pool *pool = tn_container_of(at, struct tn_pool, link);

			tn_stage_pool_destroy(pool);
			free_pool(pool, a);
		}
		while (m->nclaims > 0)
			destroy_claims(m->claims[--m->nclaims], a);
		leave_device(m);
		free_memory(m);
	}
	cache->nmemories = 0;
}
