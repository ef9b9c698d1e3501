/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has which pages of a memory: one load, or any number of saves.
 *
 * Whoever claims a page marks it first and looks at the marks of others then, all in one order (SEQ_CST): of two that
 * claim the same bytes at once at least one sees the other. Both may, and then both are refused: an engine that does this
 * has an error of its own.
 */
#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "front/claims.h"
#include "layout/overlap.h"

struct tn_claims {
	struct tn_layout layout;
	uint64_t *loading; /* shared bitmap: pages that belong to a load */
	uint32_t *saving;  /* shared: by page, how many saves it is part of */
	uint32_t nothers;  /* shared: those before it are complete */
	struct other {
		struct tn_claims *claims;
		struct tn_overlap overlap; /* of these pages with its pages */
	} other[TN_MEMORY_LAYOUTS_MAX];
	size_t table_bytes, loading_bytes, saving_bytes;
};

int tn_claims_create(const struct tn_layout *layout, const struct tn_alloc *alloc, struct tn_claims **out)
{
	size_t planes = (size_t)layout->geometry.layers * layout->geometry.nplanes;
	struct tn_claims *c = tn_get(alloc, sizeof(*c));

	if (!c)
		return tn_fail(-ENOMEM, "tn_pool_create: no memory");
	c->layout = *layout;
	c->table_bytes = tn_array_bytes(planes, sizeof(uintptr_t));
	c->loading_bytes = (layout->npages + 63) / 64 * sizeof(uint64_t);
	c->saving_bytes = tn_array_bytes(layout->npages, sizeof(*c->saving));
	c->layout.base = tn_get(alloc, c->table_bytes);
	c->loading = tn_get(alloc, c->loading_bytes);
	c->saving = tn_get(alloc, c->saving_bytes);
	if (!c->layout.base || !c->loading || !c->saving) {
		tn_claims_destroy(c, alloc);
		return tn_fail(-ENOMEM, "tn_pool_create: no memory for %llu pages", (unsigned long long)layout->npages);
	}
	memcpy(c->layout.base, layout->base, planes * sizeof(uintptr_t));
	*out = c;
	return 0;
}

void tn_claims_destroy(struct tn_claims *c, const struct tn_alloc *alloc)
{
	tn_put(alloc, c->layout.base, c->table_bytes);
	tn_put(alloc, c->loading, c->loading_bytes);
	tn_put(alloc, c->saving, c->saving_bytes);
	tn_put(alloc, c, sizeof(*c));
}

const struct tn_layout *tn_claims_layout(const struct tn_claims *c)
{
	return &c->layout;
}

static void looks_at(struct tn_claims *c, struct tn_claims *other)
{
	struct other *o = &c->other[c->nothers];

	tn_overlap_init(&o->overlap, &c->layout, &other->layout);
	o->claims = other;
	if (o->overlap.nways > 0)
		__atomic_store_n(&c->nothers, c->nothers + 1, __ATOMIC_SEQ_CST);
}

void tn_claims_meet(struct tn_claims *a, struct tn_claims *b)
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
