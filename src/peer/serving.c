/* SPDX-License-Identifier: Apache-2.0 */
#include "peer/serving.h"

#include <errno.h>
#include <string.h>
#include <tenuto/match.h>
#include <tenuto/shared_memory.h>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "core/core.h"
#include "front/front.h"
#include "tier/remote/object.h"

#define LOAD_NS 2000000000ull	    /* until a block has come from the disk */
#define GONE_NS 1000000000ull	    /* until a peer has confirmed that it reads slots no more */
#define SLOT_BYTES_MAX (1ull << 30) /* of one block */

/* ---- slots --------------------------------------------------------------------------------------------------------- */

static struct tn_xfer_section section_of(const struct tn_serving_slot *slot)
{
	return (struct tn_xfer_section){.address = (uintptr_t)slot->memory, .bytes = slot->bytes};
}

static void clear_pool(struct tn_serving_slot *slot)
{
	tn_pool_destroy(slot->pool);
	slot->pool = NULL;
}

static void clear_loaded(struct tn_serving_slot *slot)
{
	clear_pool(slot);
	tn_memory_unregister(slot->registered);
	tn_memory_free(slot->loaded);
	slot->loaded = NULL;
	slot->registered = NULL;
}

/* Bytes that a peer may still read stay where they are, for good. */
static int clear_shared(struct tn_serving *s, struct tn_serving_slot *slot, uint64_t deadline_ns)
{
	const struct tn_xfer_section section = section_of(slot);
	int rc = slot->shared ? tn_xfer_deregister(s->agent, TN_XFER_DRAM, &section, 1, deadline_ns) : 0;

	if (rc)
		return rc;
	if (slot->memory != slot->loaded)
		tn_memory_free(slot->memory);
	slot->memory = NULL;
	slot->shared = slot->told = false;
	return 0;
}

static int clear_slot(struct tn_serving *s, struct tn_serving_slot *slot, uint64_t deadline_ns)
{
	int rc = clear_shared(s, slot, deadline_ns);

	if (rc)
		return rc;
	clear_loaded(slot);
	slot->bytes = 0;
	return 0;
}

void tn_serving_destroy(struct tn_serving *s)
{
	uint64_t deadline_ns = tn_now_ns(&tn_clock_system) + GONE_NS;

	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++) {
		uint64_t bytes;

		if (s->slot[i].load)
			tn_serving_end(s, i, &bytes);
		clear_shared(s, &s->slot[i], deadline_ns);
		clear_loaded(&s->slot[i]);
	}
}

/* Memory for a copy that peers of this machine may map. Without one the bytes go over the connection. */
static void share(struct tn_serving *s, struct tn_serving_slot *slot)
{
	struct tn_xfer_section section;
	void *memory;

	slot->memory = slot->loaded;
	if (!s->agent || tn_memory_alloc(slot->bytes, NULL, &memory))
		return;
	section = (struct tn_xfer_section){.address = (uintptr_t)memory, .bytes = slot->bytes};
	slot->shared = tn_xfer_register(s->agent, TN_XFER_DRAM, &section, 1) == 0;
	if (slot->shared)
		slot->memory = memory;
	else
		tn_memory_free(memory);
}

static int make_memory(struct tn_serving *s, struct tn_serving_slot *slot, uint64_t bytes)
{
	struct tn_memory_range range;
	struct tn_memory_desc desc;
	void *memory;
	int rc = clear_slot(s, slot, tn_now_ns(&tn_clock_system) + GONE_NS);

	rc = rc ? rc : tn_memory_alloc(bytes, NULL, &memory);
	if (rc)
		return rc;
	slot->loaded = memory;
	slot->bytes = bytes;
	range = (struct tn_memory_range){.address = memory, .bytes = bytes};
	tn_memory_desc_init(&desc);
	desc.ranges = &range;
	desc.nranges = 1;
	rc = tn_memory_register(s->cache, &desc, &slot->registered);
	if (rc)
		clear_slot(s, slot, 0);
	else
		share(s, slot);
	return rc;
}

/* Pages of one block, which together are its bytes as they lie in an object: layer by layer, of each the planes, of each the pages. */
static int make_pool(struct tn_serving_slot *slot, const struct tn_space *space)
{
	const struct tn_geometry *g = &space->geometry;
	uint64_t base[TN_LAYERS_MAX * TN_PLANES_MAX], at = tn_object_header_bytes(&space->shape);
	struct tn_pool_layout layout = {.npages = g->pages_per_block, .base = base};
	int rc;

	for (uint32_t p = 0; p < g->nplanes; p++)
		layout.stride[p] = tn_geometry_page_bytes(g, p);
	for (uint32_t l = 0; l < g->layers; l++) {
		uint64_t plane = at + (uint64_t)l * space->shape.padded_bytes;

		for (uint32_t p = 0; p < g->nplanes; plane += layout.stride[p++] * g->pages_per_block)
			base[l * g->nplanes + p] = plane;
	}
	clear_pool(slot);
	rc = tn_pool_create(slot->registered, g, &layout, &slot->pool);
	if (rc == 0)
		slot->space_id = space->id;
	return rc;
}

/* The slot's memory and pool are those of a block of the space. */
static int fit(struct tn_serving *s, struct tn_serving_slot *slot, const struct tn_space *space)
{
	uint64_t bytes = tn_object_header_bytes(&space->shape) + space->shape.slot_bytes;
	int rc = 0;

	if (slot->pool && tn_key_eq(&slot->space_id, &space->id))
		return 0;
	if (bytes > SLOT_BYTES_MAX)
		return tn_fail(-E2BIG, "a block of %llu bytes", (unsigned long long)bytes);
	if (slot->bytes < bytes)
		rc = make_memory(s, slot, bytes);
	return rc ? rc : make_pool(slot, space);
}

/* ---- blocks -------------------------------------------------------------------------------------------------------- */

static bool stays(const struct tn_space *space, const struct tn_key *key)
{
	tn_block b = tn_registry_find_one(space->cache->registry, space->index, key, false);

	return b != TN_BLOCK_NONE && !tn_watch_expires(space->cache->watch, b);
}

/*
 * How many of the first keys lie here, and may leave: what lies at another peer, or in an object store, others can get there themselves; what has a time to
 * live would come to them without it. Or what tn_match says.
 */
static int lies_here(struct tn_space *space, const struct tn_key *keys, uint32_t n, struct tn_match *match, unsigned flags)
{
	uint8_t tiers[TN_OBJECT_NAMES];
	int found = tn_match(space, keys, n, tiers, match, flags);
	int here = 0;

	if (found < 0)
		return found;
	while (here < found && match->first == 0 && tiers[here] != TN_TIER_REMOTE && stays(space, &keys[here]))
		here++;
	return here;
}

uint32_t tn_serving_find(const struct tn_serving *s, const struct tn_key *space_id, const struct tn_key *keys, uint32_t n)
{
	struct tn_match match = {.size = sizeof(match)};
	struct tn_space *space;
	int found;

	if (tn_space_of_id(s->cache, space_id, &space))
		return 0;
	found = lies_here(space, keys, n, &match, 0);
	tn_space_close(space);
	return found > 0 ? (uint32_t)found : 0;
}

static int start_load(struct tn_serving_slot *slot, const struct tn_key *key)
{
	uint32_t pages[TN_BLOCK_PAGES_MAX];
	struct tn_load_opts o;

	for (uint32_t i = 0; i < slot->space->geometry.pages_per_block; i++)
		pages[i] = i;
	tn_load_opts_init(&o);
	o.priority = INT32_MIN;
	o.deadline_ns = tn_now_ns(&tn_clock_system) + LOAD_NS;
	slot->key = *key;
	return tn_load_begin(slot->space, slot->pool, key, 1, pages, &o, &slot->load);
}

/* What the load held besides. */
static void release_space(struct tn_serving *s, struct tn_serving_slot *slot)
{
	if (slot->pin)
		tn_cache_unpin(s->cache, slot->pin);
	slot->pin = 0;
	tn_space_close(slot->space);
	slot->space = NULL;
}

int tn_serving_begin(struct tn_serving *s, uint32_t slot, const struct tn_key *space_id, const struct tn_key *key)
{
	struct tn_match match = {.size = sizeof(match)};
	struct tn_serving_slot *at = &s->slot[slot];
	int rc = tn_space_of_id(s->cache, space_id, &at->space), found;

	if (rc)
		return rc;
	found = lies_here(at->space, key, 1, &match, TN_MATCH_PIN);
	rc = found > 0 ? 0 : found < 0 ? found : -ENOENT;
	at->pin = match.pin;
	rc = rc ? rc : fit(s, at, at->space);
	rc = rc ? rc : start_load(at, key);
	if (rc) {
		at->load = NULL;
		release_space(s, at);
	}
	return rc;
}

/* The copy for the peer, if there is one, and the header before it. */
static void put_object(struct tn_serving_slot *slot)
{
	const struct tn_shape *shape = &slot->space->shape;
	uint64_t at = tn_object_header_bytes(shape), checks[TN_LAYERS_MAX];
	struct tn_tier_move m = {.space = {slot->space->id, slot->space->epoch}, .key = slot->key, .shape = shape, .checks = checks};

	for (uint32_t l = 0; l < shape->layers; l++, at += shape->padded_bytes)
		checks[l] = slot->shared ? tn_checksum_copy(slot->memory + at, slot->loaded + at, shape->object_bytes, true) :
					   tn_checksum(slot->loaded + at, shape->object_bytes);
	tn_object_encode(&m, slot->memory);
}

int tn_serving_end(struct tn_serving *s, uint32_t slot, uint64_t *bytes)
{
	struct tn_serving_slot *at = &s->slot[slot];
	const struct tn_shape *shape = &at->space->shape;
	int good = tn_load_wait(at->load, shape->layers - 1, TN_FOREVER);

	tn_load_end(at->load, TN_FOREVER, NULL);
	at->load = NULL;
	*bytes = tn_object_header_bytes(shape) + shape->slot_bytes;
	if (good == 1)
		put_object(at);
	release_space(s, at);
	return good == 1 ? 0 : -ENOENT;
}

int64_t tn_serving_tell(struct tn_serving *s, uint32_t slot, void *out, size_t bytes)
{
	struct tn_serving_slot *at = &s->slot[slot];
	const struct tn_xfer_section section = section_of(at);
	int64_t n;

	if (at->told)
		return 0;
	n = tn_xfer_metadata(s->agent, TN_XFER_DRAM, &section, 1, out, bytes);
	if (n < 0 || (uint64_t)n > bytes)
		return n < 0 ? n : tn_fail(-E2BIG, "metadata of %lld bytes", (long long)n);
	at->told = true;
	return n;
}
