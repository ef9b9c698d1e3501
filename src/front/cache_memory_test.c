/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memories and pools through the public API: tenants and KV groups that share one registered memory, pages that two pools have
 * in common, and what is refused.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "cache_rig.h"
#include "core/core.h"
#include "core/pool.h"
#include "device/soft_rig.h"
#include "tn_test.h"

#define GROUPS 2u
#define TENANTS 3u
#define NPAGES 256u /* of each group's pool, in the same bytes */
#define QUOTA 6u    /* blocks of a tenant with quotas */

/*
 * Two groups over the tensors of the rig's memory, as engines lay hybrid models out: page p of one lies in the bytes of page
 * p of the other. The first group has four layers, the second two, and a plane of scales less.
 */
struct world {
	struct rig r;
	struct tn_memory *memory;
	struct tn_geometry g[GROUPS];
	struct tn_pool *pool[GROUPS];
	struct tn_space *space[TENANTS][GROUPS];
};

static void register_memory(struct world *w, struct tn_memory **out)
{
	struct tn_memory_range range[RIG_LAYERS];
	struct tn_memory_desc desc;

	for (uint32_t l = 0; l < RIG_LAYERS; l++)
		range[l] = (struct tn_memory_range){.address = w->r.s[0].bases[l], .bytes = RIG_POOL_PAGES * 2 * 4096u};
	tn_memory_desc_init(&desc);
	desc.ranges = range;
	desc.nranges = RIG_LAYERS;
	assert_int_equal(tn_memory_register(w->r.cache, &desc, out), 0);
}

/* Of the group's geometry: layer l in range l, K and V behind each other, from page `first` of the range on. */
static int create_pool(struct world *w, uint32_t group, uint32_t first, uint32_t npages, struct tn_pool **out)
{
	const struct tn_geometry *g = &w->g[group];
	uint64_t base[RIG_LAYERS * 2];
	struct tn_pool_layout layout = {.npages = npages, .base = base};

	for (uint32_t p = 0; p < g->nplanes; p++)
		layout.stride[p] = 4096;
	for (uint32_t i = 0; i < g->layers * g->nplanes; i++)
		base[i] = ((uint64_t)(i / g->nplanes) * 2 * RIG_POOL_PAGES + (i % g->nplanes) * RIG_POOL_PAGES + first) * 4096;
	return tn_pool_create(w->memory, g, &layout, out);
}

static void open_tenant(struct world *w, uint32_t t, bool quotas)
{
	static const char *const name[TENANTS] = {"anna", "bert", "carl"};

	for (uint32_t group = 0; group < GROUPS; group++) {
		struct tn_identity id;
		struct tn_shard shard;
		struct tn_quota quota;

		tn_identity_init(&id);
		tn_shard_init(&shard);
		tn_quota_init(&quota);
		id.tenant = name[t];
		id.model = "hybrid";
		shard.group = group;
		if (quotas)
			quota.bytes[TN_TIER_DISK] = quota.bytes[TN_TIER_HOST] = QUOTA * tn_geometry_block_bytes(&w->g[group]);
		assert_int_equal(tn_space_open(w->r.cache, &id, &shard, &w->g[group], &quota, &w->space[t][group]), 0);
	}
}

static void up(struct world *w)
{
	memset(w, 0, sizeof(*w));
	rig_set_up(&w->r, 64u << 20, 16u << 20, 64);
	w->g[0] = w->g[1] = w->r.s[0].g;
	w->g[1].layers = 2;
	w->g[1].nplanes = 1;
	register_memory(w, &w->memory);
	for (uint32_t group = 0; group < GROUPS; group++)
		assert_int_equal(create_pool(w, group, 0, NPAGES, &w->pool[group]), 0);
	for (uint32_t t = 0; t < TENANTS; t++)
		open_tenant(w, t, t > 0);
}

static void down(struct world *w)
{
	for (uint32_t t = 0; t < TENANTS; t++)
		for (uint32_t group = 0; group < GROUPS; group++)
			tn_space_close(w->space[t][group]);
	for (uint32_t group = 0; group < GROUPS; group++)
		assert_int_equal(tn_pool_destroy(w->pool[group]), 0);
	assert_int_equal(tn_memory_unregister(w->memory), 0);
	rig_tear_down(&w->r);
}

/* ---- bytes ------------------------------------------------------------------------------------------------ */

static void fill(struct world *w, uint32_t t, uint32_t group, uint64_t id, uint32_t page, bool check)
{
	const struct tn_geometry *g = &w->g[group];

	for (uint32_t i = 0; i < g->layers * g->nplanes; i++) {
		unsigned char *at = (unsigned char *)w->r.s[0].bases[i / g->nplanes] + ((uint64_t)(i % g->nplanes) * RIG_POOL_PAGES + page) * 4096;
		uint64_t word = (id * 64 + i) * 16 + t * 2 + group + 1;

		for (uint32_t k = 0; k < 4096; k += 8)
			if (check)
				assert_memory_equal(at + k, &word, 8);
			else
				memcpy(at + k, &word, 8);
	}
}

static void pages_from(uint32_t first, uint32_t n, uint32_t *pages)
{
	for (uint32_t i = 0; i < n * RIG_PAGES; i++)
		pages[i] = first + i;
}

static int begin_save(struct world *w, uint32_t t, uint32_t group, uint64_t id, uint32_t n, uint32_t first, struct tn_save **save)
{
	uint32_t pages[16 * RIG_PAGES];
	struct tn_key keys[16];

	pages_from(first, n, pages);
	for (uint32_t i = 0; i < n; i++)
		keys[i] = rig_key(id + i);
	return tn_save_begin(w->space[t][group], w->pool[group], keys, n, pages, NULL, save);
}

static void end_save(struct world *w, uint32_t group, struct tn_save *save)
{
	for (uint32_t l = 0; l < w->g[group].layers; l++)
		assert_int_equal(tn_save_layer(save, l, NULL, 0), 0);
	assert_int_equal(tn_save_commit(save), 0);
	assert_int_equal(tn_save_end(save, tn_test_deadline(), NULL), 0);
}

static void save(struct world *w, uint32_t t, uint32_t group, uint64_t id, uint32_t n, uint32_t first)
{
	struct tn_save *s;

	for (uint32_t i = 0; i < n * RIG_PAGES; i++)
		fill(w, t, group, id + i / RIG_PAGES, first + i, false);
	assert_int_equal(begin_save(w, t, group, id, n, first, &s), 0);
	end_save(w, group, s);
}

static int begin_load(struct world *w, uint32_t t, uint32_t group, uint64_t id, uint32_t n, uint32_t first, struct tn_load **load)
{
	uint32_t pages[16 * RIG_PAGES];
	struct tn_key keys[16];

	pages_from(first, n, pages);
	for (uint32_t i = 0; i < n; i++)
		keys[i] = rig_key(id + i);
	return tn_load_begin(w->space[t][group], w->pool[group], keys, n, pages, NULL, load);
}

/* Returns the good prefix, whose bytes were compared. */
static int load(struct world *w, uint32_t t, uint32_t group, uint64_t id, uint32_t n, uint32_t first)
{
	struct tn_load *l;
	int good;

	assert_int_equal(begin_load(w, t, group, id, n, first, &l), 0);
	good = tn_load_wait(l, w->g[group].layers - 1, tn_test_deadline());
	assert_true(good >= 0);
	for (uint32_t i = 0; i + 1 < w->g[group].layers; i++)
		good = tn_load_wait(l, i, tn_test_deadline());
	assert_int_equal(tn_load_end(l, tn_test_deadline(), NULL), 0);
	for (uint32_t i = 0; i < (uint32_t)good * RIG_PAGES; i++)
		fill(w, t, group, id + i / RIG_PAGES, first + i, true);
	return good;
}

static uint32_t there(struct world *w, uint32_t t, uint32_t group, uint64_t first, uint32_t n)
{
	struct tn_match m = {.size = sizeof(m)};
	uint32_t found = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct tn_key key = rig_key(first + i);

		found += tn_match(w->space[t][group], &key, 1, NULL, &m, 0) == 1;
	}
	return found;
}

/* ---- tests ------------------------------------------------------------------------------------------------ */

static void three_tenants_and_two_groups_use_one_registered_memory(void **state)
{
	struct world w;

	up(&w);
	for (uint64_t id = 100; id < 112; id += 4)
		for (uint32_t t = 0; t < TENANTS; t++)
			for (uint32_t group = 0; group < GROUPS; group++)
				save(&w, t, group, id, 4, (t * 4 + group * 2) * 4);
	assert_int_equal(tn_flush(w.r.cache, tn_test_deadline()), 0);
	for (uint32_t group = 0; group < GROUPS; group++) {
		assert_int_equal(there(&w, 0, group, 100, 12), 12);
		assert_int_equal(load(&w, 0, group, 100, 12, 100 + group * 48), 12);
		for (uint32_t t = 1; t < TENANTS; t++) {
			uint32_t found = there(&w, t, group, 100, 12), loaded = 0;

			assert_in_range(found, 1, 2 * QUOTA);
			for (uint64_t id = 100; id < 112; id++)
				loaded += load(&w, t, group, id, 1, 100) == 1;
			assert_in_range(loaded, 1, found); /* what a load brings to host memory may drive another block out */
		}
	}
	down(&w);
}

static void a_quota_holds_whatever_pool_the_blocks_come_through(void **state)
{
	struct tn_match m = {.size = sizeof(m)};
	struct world w;
	uint32_t host = 0, disk = 0;
	int rc;

	up(&w);
	for (uint64_t id = 0; id < 60; id += 10)
		save(&w, 1, 1, 100 + id, 10, 0);
	/* An offload can find the disk's quota taken by blocks that a save is writing. If host memory needs the place of such a block
	 * before the next try, the block is lost: one flush says so. */
	rc = tn_flush(w.r.cache, tn_test_deadline());
	assert_true(rc == 0 || rc == -ENOSPC);
	assert_int_equal(tn_flush(w.r.cache, tn_test_deadline()), 0);
	for (uint64_t id = 0; id < 60; id++) {
		struct tn_key key = rig_key(100 + id);

		if (tn_match(w.space[1][1], &key, 1, NULL, &m, 0) == 1) {
			host += m.tier_blocks[TN_TIER_HOST];
			disk += m.tier_blocks[TN_TIER_DISK];
		}
	}
	assert_in_range(host + disk, 1, 2 * QUOTA);
	assert_in_range(host, 0, QUOTA);
	down(&w);
}

static void a_page_under_load_is_refused_to_every_other_pool_that_has_its_bytes(void **state)
{
	struct tn_pool *behind, *first;
	struct tn_load *a, *b;
	struct tn_save *s;
	struct world w;

	up(&w);
	assert_int_equal(create_pool(&w, 0, NPAGES, NPAGES, &behind), 0);
	assert_int_equal(begin_load(&w, 0, 0, 100, 2, 8, &a), 0);
	/* the same tenant or another, through the same pool or another: to load or to save */
	assert_int_equal(begin_load(&w, 1, 0, 100, 1, 12, &b), -EINVAL);
	assert_int_equal(begin_load(&w, 1, 1, 100, 1, 12, &b), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "pages[0] = 12: still part of a load or save through another pool"));
	assert_int_equal(begin_load(&w, 1, 1, 100, 1, 15, &b), -EINVAL);
	assert_int_equal(begin_save(&w, 2, 0, 200, 1, 8, &s), -EINVAL);
	assert_int_equal(begin_save(&w, 2, 1, 200, 1, 8, &s), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "still part of a load through another pool"));
	/* a refused one has taken nothing; pages beside are free, and so are other bytes with the same index */
	assert_int_equal(begin_load(&w, 1, 1, 100, 1, 4, &b), 0);
	assert_int_equal(tn_load_end(b, tn_test_deadline(), NULL), 0);
	assert_int_equal(begin_load(&w, 1, 1, 100, 1, 16, &b), 0);
	assert_int_equal(tn_load_end(b, tn_test_deadline(), NULL), 0);
	first = w.pool[0];
	w.pool[0] = behind;
	assert_int_equal(begin_load(&w, 1, 0, 100, 2, 8, &b), 0);
	assert_int_equal(tn_load_end(b, tn_test_deadline(), NULL), 0);
	assert_int_equal(tn_pool_destroy(w.pool[0]), 0);
	w.pool[0] = first;
	/* the pages are free when the load has ended */
	assert_int_equal(tn_load_end(a, tn_test_deadline(), NULL), 0);
	assert_int_equal(begin_save(&w, 2, 1, 200, 1, 8, &s), 0);
	/* a save's: other saves may have them, no load may */
	assert_int_equal(begin_load(&w, 0, 0, 100, 1, 8, &a), -EINVAL);
	assert_int_equal(begin_load(&w, 0, 1, 100, 1, 8, &a), -EINVAL);
	save(&w, 0, 0, 300, 1, 8);
	end_save(&w, 1, s);
	assert_int_equal(begin_load(&w, 0, 0, 100, 1, 8, &a), 0);
	assert_int_equal(tn_load_end(a, tn_test_deadline(), NULL), 0);
	down(&w);
}

static void what_no_memory_is_is_refused_by_what_it_is(void **state)
{
	char *at = (char *)(UINT64_C(1) << 32);
	struct tn_memory_range range[2] = {{.address = at, .bytes = 4096}, {.address = at + 4096, .bytes = 4096}};
	struct tn_memory_desc desc;
	struct tn_memory *memory = NULL;
	struct rig r;
	char *there;

	rig_set_up(&r, 0, 4u << 20, 64);
	tn_memory_desc_init(&desc);
	assert_int_equal(tn_memory_register(r.cache, &desc, &memory), -EINVAL);
	desc.ranges = range;
	desc.nranges = 2;
	desc.kind = TN_MEMORY_FD;
	assert_int_equal(tn_memory_register(r.cache, &desc, &memory), -ENOTSUP);
	assert_non_null(strstr(tn_error_last()->text, "map the file"));
	desc.kind = TN_MEMORY_DEVICE;
	assert_int_equal(tn_memory_register(r.cache, &desc, &memory), -ENOTSUP);
	desc.kind = TN_MEMORY_DEVICE + 1;
	assert_int_equal(tn_memory_register(r.cache, &desc, &memory), -EINVAL);
	desc.kind = TN_MEMORY_HOST;
	range[0].bytes = 4097;
	assert_int_equal(tn_memory_register(r.cache, &desc, &memory), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "ranges 0"));
	range[0].bytes = 0;
	assert_int_equal(tn_memory_register(r.cache, &desc, &memory), -EINVAL);
	range[0] = (struct tn_memory_range){.bytes = 4096};
	assert_int_equal(tn_memory_register(r.cache, &desc, &memory), -EINVAL);
	range[0] = (struct tn_memory_range){.address = (void *)(UINTPTR_MAX - 100), .bytes = 4096};
	assert_int_equal(tn_memory_register(r.cache, &desc, &memory), -EOVERFLOW);
	assert_null(memory);
	there = r.owner ? rig_memory(&r, 8192) : at; /* the owner of an attached cache maps what is registered */
	range[0] = (struct tn_memory_range){.address = there, .bytes = 4096};
	range[1] = (struct tn_memory_range){.address = there + 4096, .bytes = 4096};
	assert_int_equal(tn_memory_register(r.cache, &desc, &memory), 0);
	assert_int_equal(tn_memory_unregister(memory), 0);
	if (r.owner)
		rig_memory_free(&r, there, 8192);
	rig_tear_down(&r);
}

static void a_pool_of_another_geometry_or_cache_is_refused(void **state)
{
	struct tn_key key = rig_key(1);
	uint32_t pages[RIG_PAGES] = {0, 1, 2, 3};
	struct world w, other;
	struct tn_load *l;
	struct tn_save *s;

	up(&w);
	up(&other);
	assert_int_equal(tn_load_begin(w.space[0][0], w.pool[1], &key, 1, pages, NULL, &l), -EINVAL);
	assert_int_equal(tn_save_begin(w.space[0][1], w.pool[0], &key, 1, pages, NULL, &s), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "geometry"));
	assert_int_equal(tn_load_begin(w.space[0][0], other.pool[0], &key, 1, pages, NULL, &l), -EINVAL);
	assert_non_null(strstr(tn_error_last()->text, "different caches"));
	down(&other);
	down(&w);
}

static void what_is_in_use_stays(void **state)
{
	struct tn_pool *more[TN_MEMORY_LAYOUTS_MAX], *again;
	struct tn_load *l;
	struct world w;
	uint32_t n = 0;

	up(&w);
	assert_int_equal(tn_memory_unregister(w.memory), -EBUSY);
	assert_int_equal(begin_load(&w, 0, 0, 100, 1, 0, &l), 0);
	assert_int_equal(tn_pool_destroy(w.pool[0]), -EBUSY);
	assert_int_equal(tn_load_end(l, tn_test_deadline(), NULL), 0);
	/* Pools of one layout share what tells who has a page, so there may be any number of them; of layouts there may be 16. */
	while (n < TN_MEMORY_LAYOUTS_MAX && create_pool(&w, 0, 100 + n, NPAGES, &more[n]) == 0)
		n++;
	assert_int_equal(n, TN_MEMORY_LAYOUTS_MAX - GROUPS);
	assert_int_equal(create_pool(&w, 0, 99, NPAGES, &again), -ENOSPC);
	for (uint32_t i = 0; i < 100; i++) {
		assert_int_equal(create_pool(&w, 0, 100, NPAGES, &again), 0);
		assert_int_equal(tn_pool_destroy(again), 0);
	}
	for (uint32_t i = 0; i < n; i++)
		assert_int_equal(tn_pool_destroy(more[i]), 0);
	assert_int_equal(create_pool(&w, 0, 99, NPAGES, &again), -ENOSPC);
	for (uint32_t group = 0; group < GROUPS; group++)
		assert_int_equal(tn_pool_destroy(w.pool[group]), 0);
	for (uint32_t group = 0; group < GROUPS; group++)
		assert_int_equal(create_pool(&w, group, 0, NPAGES, &w.pool[group]), 0);
	assert_int_equal(create_pool(&w, 0, 99, NPAGES, &again), 0);
	assert_int_equal(tn_pool_destroy(again), 0);
	down(&w);
}

/* If it kept its entry after that, lists could name memory that is freed, and each memory would take a number for good. */
static void a_memory_has_a_number_while_it_has_pools(void **state)
{
	const struct tn_mapping **mappings;
	struct tn_memory *first, *second;
	struct world w;
	uint32_t number;

	up(&w);
	mappings = w.r.cache->mappings;
	first = w.memory;
	number = first->number;
	assert_int_equal(tn_pool_destroy(w.pool[0]), 0);
	assert_ptr_equal(mappings[number], &first->mapping);
	assert_int_equal(tn_pool_destroy(w.pool[1]), 0);
	assert_null(mappings[number]);
	register_memory(&w, &second);
	w.memory = second;
	assert_int_equal(create_pool(&w, 0, 0, NPAGES, &w.pool[0]), 0);
	assert_int_equal(second->number, number);
	assert_ptr_equal(mappings[number], &second->mapping);
	assert_int_equal(tn_pool_destroy(w.pool[0]), 0);
	assert_null(mappings[number]);
	assert_int_equal(tn_memory_unregister(second), 0);
	w.memory = first;
	for (uint32_t group = 0; group < GROUPS; group++)
		assert_int_equal(create_pool(&w, group, 0, NPAGES, &w.pool[group]), 0);
	assert_ptr_equal(mappings[number], &first->mapping);
	down(&w);
}

/* ---- threads ---------------------------------------------------------------------------------------------- */

#define PLACES 4u
#define ROUNDS 100u

struct claimer {
	struct world *w;
	uint32_t group;
	uint32_t *loading; /* by page that two places share: loads that have it */
	uint32_t got, twice;
	uint64_t until_ns;
	pthread_t thread;
};

/* Loads of what is not there: their pages are theirs until they have ended. */
static void *claim(void *arg)
{
	struct claimer *c = arg;

	for (uint32_t i = 0; c->got < ROUNDS && rig_now(&c->w->r) < c->until_ns; i++) {
		uint32_t place = i % PLACES;
		struct tn_load *l;

		if (begin_load(c->w, c->group, c->group, 900, 1, place * 3, &l))
			continue; /* somebody else has a page of it */
		c->got++;
		for (uint32_t k = place; k < place + 2; k++) /* a block of 4 pages every 3 pages */
			c->twice += __atomic_add_fetch(&c->loading[k], 1, __ATOMIC_SEQ_CST) != 1;
		sched_yield(); /* whoever else could have it now gets it */
		for (uint32_t k = place; k < place + 2; k++)
			__atomic_sub_fetch(&c->loading[k], 1, __ATOMIC_SEQ_CST);
		if (tn_load_end(l, tn_test_deadline(), NULL))
			c->twice += ROUNDS; /* assertions are for the main thread */
	}
	return NULL;
}

static void no_two_threads_ever_have_the_same_bytes(void **state)
{
	uint32_t loading[PLACES + 1] = {0};
	struct claimer c[4];
	struct world w;

	up(&w);
	for (uint32_t i = 0; i < 4; i++) {
		c[i] = (struct claimer){.w = &w, .group = i % GROUPS, .loading = loading, .until_ns = rig_deadline(&w.r)};
		assert_int_equal(pthread_create(&c[i].thread, NULL, claim, &c[i]), 0);
	}
	for (uint32_t i = 0; i < 4; i++) {
		pthread_join(c[i].thread, NULL);
		assert_int_equal(c[i].got, ROUNDS);
		assert_int_equal(c[i].twice, 0);
	}
	down(&w);
}

/* Of a driver that has no other memory: what the cache has is pinned, and streams are made. */
static void a_memory_that_the_driver_does_not_serve_is_not_registered(void **state)
{
	static const struct {
		enum tn_soft_call call;
		uint32_t calls;
	} row[] = {{TN_SOFT_PIN, 4}, {TN_SOFT_STREAM_CREATE, 8}}; /* two tables of words, the host tier, bounce buffers */
	const struct tn_soft_device_opts o = {0};
	struct tn_memory_range range = {.bytes = 1u << 20};
	struct tn_soft_device *other;
	struct tn_memory *memory;
	struct tn_memory_desc d;
	struct rig r;

	rig_set_up(&r, 64u << 20, 8u << 20, 64);
	assert_int_equal(tn_soft_device_create(&o, &other), 0);
	range.address = tn_soft_device_memory(other, range.bytes);
	tn_memory_desc_init(&d);
	d.kind = TN_MEMORY_DEVICE;
	d.driver = tn_soft_device_driver(other);
	d.ranges = &range;
	d.nranges = 1;
	for (uint32_t k = 0; k < 2; k++)
		for (uint32_t i = 0; i < row[k].calls; i++) {
			tn_soft_device_refuse(other, row[k].call, i, -ENOMEM);
			assert_int_equal(tn_memory_register(r.cache, &d, &memory), -ENOMEM);
			assert_non_null(strstr(tn_error_last()->text, "driver soft"));
		}
	assert_int_equal(tn_memory_register(r.cache, &d, &memory), 0);
	assert_int_equal(tn_memory_unregister(memory), 0);
	tn_soft_device_destroy(other); /* it says so if anything is left */
	rig_tear_down(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		RIG_EMBEDDED_TEST(a_memory_that_the_driver_does_not_serve_is_not_registered, "the owner has no part in memory of devices"),
		cmocka_unit_test(three_tenants_and_two_groups_use_one_registered_memory),
		cmocka_unit_test(a_quota_holds_whatever_pool_the_blocks_come_through),
		cmocka_unit_test(a_page_under_load_is_refused_to_every_other_pool_that_has_its_bytes),
		cmocka_unit_test(what_no_memory_is_is_refused_by_what_it_is),
		RIG_ALONE_TEST(a_pool_of_another_geometry_or_cache_is_refused),
		cmocka_unit_test(what_is_in_use_stays),
		RIG_EMBEDDED_TEST(a_memory_has_a_number_while_it_has_pools, "the numbers are the owner's"),
		cmocka_unit_test(no_two_threads_ever_have_the_same_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
