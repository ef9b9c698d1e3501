/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_script.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "front/front.h"
#include "tier/disk/disk.h"

#define BLOCKS (CSCRIPT_CHAINS * CSCRIPT_CHAIN_BLOCKS)

static uint32_t below(struct cscript *s, uint32_t n)
{
	return tn_rng_below(&s->rng, n);
}

static uint32_t per_block(const struct cscript *s)
{
	return s->r->s->g.pages_per_block;
}

/* Block numbers begin with 1: key 0 means no block. */
static struct tn_key key_of(uint64_t id)
{
	return rig_key(id + 1);
}

static void fill_keys(uint64_t first, uint32_t n, struct tn_key *keys)
{
	for (uint32_t i = 0; i < n; i++)
		keys[i] = key_of(first + i);
}

/* ---- pages -------------------------------------------------------------------------------------------- */

static bool take_pages(struct cscript *s, struct cact *a)
{
	uint32_t n = a->n * per_block(s);

	assert_true(n <= CSCRIPT_ACT_PAGES);
	if (s->nfree[a->space] < n)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t at = below(s, s->nfree[a->space]);

		a->pages[i] = s->free_pages[a->space][at];
		s->free_pages[a->space][at] = s->free_pages[a->space][--s->nfree[a->space]];
		rig_poison(&s->r->s[a->space], a->pages[i]);
	}
	return true;
}

static void give_pages(struct cscript *s, struct cact *a)
{
	for (uint32_t i = 0; i < a->n * per_block(s); i++)
		s->free_pages[a->space][s->nfree[a->space]++] = a->pages[i];
}

static struct cact *free_act(struct cscript *s)
{
	for (uint32_t i = 0; i < CSCRIPT_ACTS; i++)
		if (s->act[i].kind == CACT_NONE)
			return &s->act[i];
	return NULL;
}

static struct cact *new_act(struct cscript *s, struct cact *a)
{
	memset(a, 0, sizeof(*a));
	a->script = s;
	a->space = below(s, RIG_SPACES);
	a->begin_ns = rig_now(s->r);
	a->deadline_ns = TN_FOREVER;
	return a;
}

static void end_act(struct cscript *s, struct cact *a)
{
	if (a->kind == CACT_LOAD || a->kind == CACT_SAVE)
		give_pages(s, a);
	for (uint32_t l = 0; a->kind == CACT_SAVE && l < a->layer; l++)
		tn_event_destroy(a->event[l].event);
	a->kind = CACT_NONE;
}

/* ---- saves -------------------------------------------------------------------------------------------- */

static void compute_layer(struct cact *a, uint32_t layer)
{
	struct cscript *s = a->script;

	for (uint32_t i = 0; i < a->n * per_block(s); i++)
		rig_fill(&s->r->s[a->space], a->id + i / per_block(s), layer, i % per_block(s), a->pages[i]);
}

/* The layers' bytes are only there from now on. */
static void raise_events(struct cscript *s, struct cact *a)
{
	for (uint32_t l = 0; l < a->layer; l++) {
		struct cact_event *e = &a->event[l];

		if (!e->event || e->raised || rig_now(s->r) < e->ready_ns)
			continue;
		compute_layer(a, l);
		e->raised = true;
		if (e->device)
			__atomic_store_n(tn_event_address(e->event), l + 1, __ATOMIC_SEQ_CST);
		else if (tn_event_raise(e->event, l + 1))
			rig_fail(s->r, "event_raise: %s", tn_error_last()->text);
	}
}

static void begin_save(struct cscript *s)
{
	struct cact *a = free_act(s);
	struct tn_key keys[CSCRIPT_ACT_BLOCKS], parent;
	struct tn_save_opts o;
	uint32_t chain = below(s, CSCRIPT_CHAINS), from;
	int rc;

	if (!a)
		return;
	new_act(s, a);
	a->n = 1 + below(s, CSCRIPT_ACT_BLOCKS < CSCRIPT_ACT_PAGES / per_block(s) ? CSCRIPT_ACT_BLOCKS
										  : CSCRIPT_ACT_PAGES / per_block(s));
	from = below(s, 3) ? 0 : below(s, CSCRIPT_CHAIN_BLOCKS);
	if (from + a->n > CSCRIPT_CHAIN_BLOCKS)
		from = CSCRIPT_CHAIN_BLOCKS - a->n;
	a->id = chain * CSCRIPT_CHAIN_BLOCKS + from;
	if (!take_pages(s, a))
		return;
	fill_keys(a->id, a->n, keys);
	tn_save_opts_init(&o);
	parent = key_of(a->id - 1);
	/* Now and then one that is nowhere, or on its way. */
	o.parent = from && (s->block[a->space][a->id - 1].saved || below(s, 4) == 0) ? &parent : NULL;
	o.partial_last = below(s, 4) == 0;
	rc = tn_save_begin(s->r->s[a->space].space, s->r->s[a->space].pool, keys, a->n, a->pages, &o, &a->save);
	rig_note(s->r, (uint64_t)rc);
	if (rc) {
		if (rc != -EAGAIN)
			rig_fail(s->r, "save_begin: %d: %s", rc, tn_error_last()->text);
		give_pages(s, a);
		return;
	}
	a->kind = CACT_SAVE;
	a->tick = ++s->tick;
	s->n.saves++;
	for (uint32_t i = 0; i < a->n; i++) {
		s->block[a->space][a->id + i].saving++;
		s->block[a->space][a->id + i].gone = false;
	}
}

static void give_layer(struct cscript *s, struct cact *a)
{
	struct cact_event *e = &a->event[a->layer];
	int rc = 0;

	*e = (struct cact_event){NULL};
	if (below(s, 3) == 0) {
		e->device = below(s, 2);
		e->ready_ns = rig_now(s->r) + below(s, 2000) * RIG_US;
		rc = tn_event_create(s->r->cache, &e->event);
		if (rc == 0 && e->device)
			tn_event_address(e->event); /* from here on the core looks by itself */
	} else {
		compute_layer(a, a->layer);
	}
	if (rc == 0)
		rc = tn_save_layer(a->save, a->layer, e->event, a->layer + 1);
	if (rc)
		rig_fail(s->r, "save_layer %u: %d: %s", a->layer, rc, tn_error_last()->text);
	a->layer++;
}

static void save_ended(struct cscript *s, struct cact *a, const struct tn_save_result *res)
{
	uint32_t there = res->stored + res->existing;

	rig_note(s->r, (uint64_t)res->stored << 48 | (uint64_t)res->existing << 32 | res->rejected << 16 | res->failed);
	rig_note(s->r, res->host_only);
	if ((a->aborted ? 0 : a->n) != there + res->host_only + res->rejected + res->failed)
		rig_fail(s->r, "save of %u blocks: %u stored, %u existing, %u host only, %u rejected, %u failed", a->n,
			  res->stored, res->existing, res->host_only, res->rejected, res->failed);
	if (!a->aborted && s->roomy && s->healthy && !tn_simdisk_is_off(s->r->disk) && there != a->n &&
	    res->error != -EBUSY && /* dropped before, and still held by somebody */
	    res->error != -ENOENT)  /* what is before them is not there */
		rig_fail(s->r, "a save in a roomy cache: %u host only, %u rejected, %u failed (%d)", res->host_only,
			  res->rejected, res->failed, res->error);
	s->n.stored += res->stored;
	s->n.failed += res->failed;
	s->tick++;
	for (uint32_t i = 0; i < a->n; i++) {
		struct cblock *b = &s->block[a->space][a->id + i];

		b->saving--;
		if (!a->aborted && there == a->n && b->dropped < a->tick && !b->saved)
			b->saved = s->tick;
	}
}

static void go_on_save(struct cscript *s, struct cact *a, bool hurry)
{
	struct tn_save_result res = {.size = sizeof(res)};
	int rc;

	raise_events(s, a);
	if (!a->over && !hurry && below(s, 80) == 0) {
		tn_save_abort(a->save);
		a->over = a->aborted = true;
	}
	while (!a->over && a->layer < s->r->s->g.layers && (hurry || below(s, 2)))
		give_layer(s, a);
	if (!a->over && a->layer == s->r->s->g.layers && (hurry || below(s, 2))) {
		rc = tn_save_commit(a->save);
		if (rc)
			rig_fail(s->r, "save_commit: %d: %s", rc, tn_error_last()->text);
		a->over = true;
		a->end_ns = rig_now(s->r);
	}
	if (!a->over)
		return;
	rc = tn_save_end(a->save, 1, &res);
	if (rc == -ETIMEDOUT)
		return;
	if (rc)
		rig_fail(s->r, "save_end: %d: %s", rc, tn_error_last()->text);
	if (!a->aborted && rig_now(s->r) - a->end_ns > s->save_most_ns)
		s->save_most_ns = rig_now(s->r) - a->end_ns;
	save_ended(s, a, &res);
	end_act(s, a);
}

/* ---- loads -------------------------------------------------------------------------------------------- */

static void begin_load(struct cscript *s, uint32_t chain, uint32_t n)
{
	struct cact *a = free_act(s);
	struct tn_key keys[CSCRIPT_ACT_BLOCKS];
	struct tn_load_opts o;
	uint32_t most = CSCRIPT_ACT_PAGES / per_block(s) < CSCRIPT_ACT_BLOCKS ? CSCRIPT_ACT_PAGES / per_block(s)
									      : CSCRIPT_ACT_BLOCKS;
	int rc;

	if (!a)
		return;
	new_act(s, a);
	a->n = n < most ? n : most;
	a->id = chain * CSCRIPT_CHAIN_BLOCKS;
	if (!take_pages(s, a))
		return;
	a->end_page = a->n * per_block(s);
	tn_load_opts_init(&o);
	if (below(s, 3) == 0) {
		a->first_page = below(s, a->end_page);
		o.first_page = a->first_page;
		o.npages = 1 + below(s, a->end_page - a->first_page);
		a->end_page = a->first_page + (uint32_t)o.npages;
	}
	if (below(s, 4) == 0)
		o.deadline_ns = a->deadline_ns = rig_now(s->r) + below(s, 3000) * RIG_US;
	o.priority = (int32_t)below(s, 5) - 2;
	fill_keys(a->id, a->n, keys);
	rc = tn_load_begin(s->r->s[a->space].space, s->r->s[a->space].pool, keys, a->n, a->pages, &o, &a->load);
	rig_note(s->r, (uint64_t)rc);
	if (rc) {
		if (rc != -EAGAIN)
			rig_fail(s->r, "load_begin: %d: %s", rc, tn_error_last()->text);
		give_pages(s, a);
		return;
	}
	a->kind = CACT_LOAD;
	a->good = a->n;
	s->n.loads++;
}

/* Layer a->layer is there for the first `good` blocks: every wanted byte of it must be right. */
static void check_layer(struct cscript *s, struct cact *a)
{
	for (uint32_t i = a->first_page; i < a->end_page && i / per_block(s) < a->good; i++) {
		if (!rig_holds(&s->r->s[a->space], a->id + i / per_block(s), a->layer, i % per_block(s), a->pages[i]))
			rig_fail(s->r, "WRONG BYTES: space %u block %llu layer %u page %u", a->space,
				 (unsigned long long)a->id + i / per_block(s), a->layer, i % per_block(s));
		s->n.checked_pages++;
	}
}

static void poll_layers(struct cscript *s, struct cact *a)
{
	while (a->layer < s->r->s->g.layers) {
		int rc = tn_load_poll(a->load, a->layer);

		if (rc == -EAGAIN) {
			if (rig_now(s->r) > RIG_MS && rig_now(s->r) - RIG_MS > a->deadline_ns)
				rig_fail(s->r, "a load says nothing of layer %u %llu us after its deadline", a->layer,
					  (unsigned long long)((rig_now(s->r) - a->deadline_ns) / RIG_US));
			return;
		}
		rig_note(s->r, (uint64_t)rc);
		if (rc < 0 || (uint32_t)rc > a->good)
			rig_fail(s->r, "load_poll: %d after a prefix of %u", rc, a->good);
		a->good = (uint32_t)rc;
		check_layer(s, a);
		a->layer++;
	}
}

/* Pages that nobody may write to: outside the sub-range, and of blocks given back while others drained. */
static void check_untouched(struct cscript *s, struct cact *a)
{
	for (uint32_t i = 0; i < a->n * per_block(s); i++) {
		bool outside = i < a->first_page || i >= a->end_page, back = a->back >> (i / per_block(s)) & 1;

		if ((outside || back) && !rig_poisoned(&s->r->s[a->space], a->pages[i]))
			rig_fail(s->r, "page %u of a load of pages %u..%u was written to, %s", i, a->first_page,
				  a->end_page, outside ? "outside the range" : "after it was given back");
	}
}

static void go_on_load(struct cscript *s, struct cact *a, bool hurry)
{
	uint8_t busy[(CSCRIPT_ACT_BLOCKS + 7) / 8];
	int rc;

	if (!a->back) /* pages given back have other bytes now */
		poll_layers(s, a);
	if (!a->over && (a->layer == s->r->s->g.layers || (!hurry && below(s, 60) == 0))) {
		if (a->layer < s->r->s->g.layers)
			tn_load_cancel(a->load);
		a->over = true;
	}
	if (!a->over)
		return;
	rc = tn_load_end(a->load, 0, busy);
	if (rc == -EBUSY) {
		for (uint32_t b = 0; b < a->n; b++) {
			if ((busy[b / 8] >> (b % 8) & 1) || (a->back >> b & 1))
				continue;
			a->back |= (uint16_t)(1u << b);
			for (uint32_t k = 0; k < per_block(s); k++)
				rig_poison(&s->r->s[a->space], a->pages[b * per_block(s) + k]);
		}
		return;
	}
	if (rc)
		rig_fail(s->r, "load_end: %d: %s", rc, tn_error_last()->text);
	check_untouched(s, a);
	s->n.hits += a->layer == s->r->s->g.layers ? a->good : 0;
	end_act(s, a);
}

/* ---- the rest ------------------------------------------------------------------------------------------ */

static void begin_flush(struct cscript *s)
{
	struct cact *a = free_act(s);

	if (!a)
		return;
	new_act(s, a);
	a->tick = s->tick;
	a->flush = tn_flush_begin(&s->r->cache->flushes);
	assert_non_null(a->flush);
	a->kind = CACT_FLUSH;
	s->n.flushes++;
}

static void go_on_flush(struct cscript *s, struct cact *a)
{
	int rc = tn_flush_poll(a->flush);

	if (rc == -EAGAIN)
		return;
	rig_note(s->r, (uint64_t)rc);
	if (rc == 0 && a->tick > s->durable_tick)
		s->durable_tick = a->tick;
	if (rc && s->healthy && !(rc == -ENOSPC && !s->roomy) && !tn_simdisk_is_off(s->r->disk))
		rig_fail(s->r, "flush: %d: %s", rc, tn_error_last()->text);
	end_act(s, a);
}

static void begin_lease(struct cscript *s)
{
	struct cact *a = free_act(s);
	struct tn_key keys[CSCRIPT_ACT_BLOCKS];
	struct tn_match m = {.size = sizeof(m)};
	uint32_t n = 1 + below(s, CSCRIPT_ACT_BLOCKS);
	int rc;

	if (!a)
		return;
	new_act(s, a);
	a->id = below(s, CSCRIPT_CHAINS) * CSCRIPT_CHAIN_BLOCKS;
	fill_keys(a->id, n, keys);
	rc = tn_match(s->r->s[a->space].space, keys, n, NULL, &m, TN_MATCH_PIN);
	rig_note(s->r, (uint64_t)rc);
	for (uint32_t i = 0; rc > 0 && i < m.blocks; i++)
		if (s->block[a->space][a->id + i].gone)
			rig_fail(s->r, "block %u is found although its space was dropped", (unsigned)a->id + i);
	if (rc <= 0 || !m.pin)
		return;
	a->kind = CACT_LEASE;
	a->pin = m.pin;
	a->end_ns = rig_now(s->r) + below(s, 5000) * RIG_US;
}

static void go_on_lease(struct cscript *s, struct cact *a, bool hurry)
{
	if (!hurry && rig_now(s->r) < a->end_ns)
		return;
	if (tn_unpin(s->r->s[a->space].space, a->pin))
		rig_fail(s->r, "unpin: %s", tn_error_last()->text);
	a->kind = CACT_NONE;
}

static void prefetch(struct cscript *s)
{
	struct tn_key keys[CSCRIPT_ACT_BLOCKS];
	uint32_t n = 1 + below(s, CSCRIPT_ACT_BLOCKS), space = below(s, RIG_SPACES);
	int rc;

	fill_keys(below(s, CSCRIPT_CHAINS) * CSCRIPT_CHAIN_BLOCKS, n, keys);
	rc = tn_prefetch(s->r->s[space].space, keys, n, rig_now(s->r) + below(s, 4000) * RIG_US);
	rig_note(s->r, (uint64_t)rc);
	if (rc < 0 && rc != -EAGAIN)
		rig_fail(s->r, "prefetch: %d: %s", rc, tn_error_last()->text);
}

static void dropped(struct cscript *s, struct cblock *b)
{
	b->saved = 0;
	b->dropped = ++s->tick;
}

static void drop(struct cscript *s)
{
	struct tn_key keys[4];
	uint32_t n = 1 + below(s, 4), space = below(s, RIG_SPACES), first = below(s, BLOCKS - n);
	int rc;

	fill_keys(first, n, keys);
	rc = tn_drop(s->r->s[space].space, keys, n);
	rig_note(s->r, (uint64_t)rc);
	if (rc < 0)
		rig_fail(s->r, "drop: %d: %s", rc, tn_error_last()->text);
	for (uint32_t i = 0; i < n; i++)
		dropped(s, &s->block[space][first + i]);
}

static void drop_space(struct cscript *s)
{
	uint32_t space = below(s, RIG_SPACES);
	struct cact *a = free_act(s);
	int rc;

	if (!a)
		return;
	new_act(s, a);
	a->space = space;
	rc = tn_space_drop_begin(&s->r->cache->drops, s->r->s[space].space, &a->flush);
	rig_note(s->r, (uint64_t)rc);
	if (rc && rc != -EBUSY)
		rig_fail(s->r, "space_drop: %d: %s", rc, tn_error_last()->text);
	if (rc)
		return;
	a->kind = CACT_DROP;
	for (uint32_t i = 0; i < BLOCKS; i++) {
		dropped(s, &s->block[space][i]);
		s->block[space][i].gone = true;
	}
}

/* If its new epoch could not be made durable, a crash may bring the blocks back. */
static void go_on_drop(struct cscript *s, struct cact *a)
{
	int rc = tn_flush_poll(a->flush);

	if (rc == -EAGAIN)
		return;
	rig_note(s->r, (uint64_t)rc);
	if (rc && s->healthy && !tn_simdisk_is_off(s->r->disk))
		rig_fail(s->r, "space_drop: %d: %s", rc, tn_error_last()->text);
	for (uint32_t i = 0; rc && i < BLOCKS; i++)
		s->block[a->space][i].gone = false;
	end_act(s, a);
}

/* ---- stepping ------------------------------------------------------------------------------------------- */

static uint32_t go_on(struct cscript *s, bool hurry)
{
	uint32_t active = 0;

	for (uint32_t i = 0; i < CSCRIPT_ACTS; i++) {
		struct cact *a = &s->act[i];

		if (a->kind == CACT_SAVE)
			go_on_save(s, a, hurry);
		else if (a->kind == CACT_LOAD)
			go_on_load(s, a, hurry);
		else if (a->kind == CACT_FLUSH)
			go_on_flush(s, a);
		else if (a->kind == CACT_DROP)
			go_on_drop(s, a);
		else if (a->kind == CACT_LEASE)
			go_on_lease(s, a, hurry);
		active += a->kind != CACT_NONE;
	}
	return active;
}

static void check_quotas(struct cscript *s)
{
	for (uint32_t i = 0; i < RIG_SPACES; i++) {
		uint64_t have = s->r->cache->row.durable->space_blocks[s->r->s[i].space->index];

		if (s->r->o.quota_blocks[i] && have > s->r->o.quota_blocks[i])
			rig_fail(s->r, "space %u has %llu blocks on disk, its quota is %llu", i, (unsigned long long)have,
				 (unsigned long long)s->r->o.quota_blocks[i]);
	}
}

void cscript_step(struct cscript *s)
{
	uint32_t what = below(s, s->only_saves ? 25 : 100), chain = below(s, CSCRIPT_CHAINS), n = 1 + below(s, CSCRIPT_ACT_BLOCKS);

	if (what < 25)
		begin_save(s);
	else if (what < 50)
		begin_load(s, chain, n);
	else if (what < 53)
		for (uint32_t i = 0; i < 3; i++) /* a popular prefix */
			begin_load(s, chain, n);
	else if (what < 57)
		prefetch(s);
	else if (what < 61)
		begin_lease(s);
	else if (what < 63)
		begin_flush(s);
	else if (what < 65 && s->drops)
		drop(s);
	else if (what == 65 && s->drops && below(s, 8) == 0)
		drop_space(s);
	go_on(s, false);
	rig_turn(s->r, below(s, 300) * RIG_US);
	rig_note(s->r, rig_now(s->r));
	check_quotas(s);
}

static void load_hangs(struct rig *r, uint32_t number)
{
	struct tn_op *op = &r->cache->own->ops[number].op;
	const struct tn_reading *rd = tn_reading_of(op);

	rig_fail(r, "HANG: a load of %u blocks has not ended: %u transfers, header %u, chunk %u", op->n, op->inflight, rd->hdr_i,
		 rd->chunk);
}

static void save_hangs(struct rig *r, uint32_t number)
{
	struct tn_op *op = &r->cache->own->ops[number].op;
	const struct tn_writing *w = tn_writing_of(op);

	rig_fail(r, "HANG: a save of %u blocks has not ended: %u without a place, %u unwritten, %u transfers, header %u; "
		 "committed %llu reserved %llu", op->n, w->unplaced, w->unwritten, op->inflight, w->hdr_i,
		 (unsigned long long)r->cache->row.durable->blocks, (unsigned long long)r->cache->row.durable->entries);
}

static void hang(struct rig *r, const struct cact *a)
{
	uint64_t free_now, freeing;
	struct tn_front_op *op;

	if (a->kind == CACT_LOAD && tn_handle_enter(a->load, TN_HANDLE_LOAD, "hang", &op) == 0)
		load_hangs(r, op->number);
	if (a->kind == CACT_SAVE && tn_handle_enter(a->save, TN_HANDLE_SAVE, "hang", &op) == 0)
		save_hangs(r, op->number);
	tn_store_free_slots(tn_disk_tier_store(r->cache->row.durable), r->s[a->space].space->cls[TN_TIER_DISK], &free_now, &freeing);
	rig_fail(r, "HANG: a flush or lease has not ended; %llu slots are freeing, device is %d", (unsigned long long)freeing,
		 tn_store_health(tn_disk_tier_store(r->cache->row.durable), 0));
}

void cscript_drain(struct cscript *s, uint64_t limit_ns)
{
	uint64_t end = rig_now(s->r) + limit_ns;

	while (go_on(s, true) || !tn_core_idle(s->r->cache) || s->r->cache->blocks.doomed_count) {
		rig_turn(s->r, RIG_MS);
		if (rig_now(s->r) <= end)
			continue;
		for (uint32_t i = 0; i < CSCRIPT_ACTS; i++)
			if (s->act[i].kind != CACT_NONE)
				hang(s->r, &s->act[i]);
		rig_check_quiet(s->r);
		rig_fail(s->r, "HANG: the core is not idle after %llu s", (unsigned long long)(limit_ns / RIG_SECOND));
	}
}

void cscript_settle(struct cscript *s)
{
	uint64_t limit = 60 * RIG_SECOND;

	cscript_drain(s, limit);
	begin_flush(s);
	cscript_drain(s, limit);
	rig_check_quiet(s->r);
}

/* ---- verification ----------------------------------------------------------------------------------------- */

/* Of the number that key_of knows. */
static bool found(struct cscript *s, uint32_t space, uint64_t id)
{
	return rig_match(&s->r->s[space], id + 1, 1) == 1;
}

/* What only a tier has that others use, too, may get lost. */
static bool is_local(const struct cscript *s, uint32_t space, const struct tn_key *key)
{
	const struct tn_cache *cache = s->r->cache;
	tn_block b = tn_registry_find_one(cache->registry, s->r->s[space].space->index, key, false);

	return b != TN_BLOCK_NONE && tn_block_is_local(&cache->blocks, b);
}

static void verify_loads(struct cscript *s)
{
	for (uint32_t space = 0; space < RIG_SPACES; space++)
		for (uint32_t id = 0; id < BLOCKS; id++) {
			struct cact *a;
			struct tn_key key = key_of(id);
			uint64_t before = s->n.hits;
			bool promised;

			if (!found(s, space, id))
				continue;
			promised = is_local(s, space, &key);
			a = new_act(s, free_act(s));
			a->space = space;
			a->n = 1;
			a->id = id;
			a->end_page = per_block(s);
			a->good = 1;
			if (!take_pages(s, a) || tn_load_begin(s->r->s[space].space, s->r->s[space].pool, &key, 1, a->pages,
							       NULL, &a->load))
				rig_fail(s->r, "verification: no load: %s", tn_error_last()->text);
			a->kind = CACT_LOAD;
			cscript_drain(s, 20 * RIG_SECOND);
			if (s->healthy && promised && s->n.hits != before + 1)
				rig_fail(s->r, "space %u block %u was found and could not be loaded", space, id);
		}
}

void cscript_verify(struct cscript *s)
{
	for (uint32_t space = 0; space < RIG_SPACES; space++)
		for (uint32_t id = 0; id < BLOCKS; id++) {
			const struct cblock *b = &s->block[space][id];
			bool there = found(s, space, id);

			rig_note(s->r, there);
			if (there && b->gone)
				rig_fail(s->r, "space %u block %u came back after its space was dropped", space, id);
			if (s->roomy && b->saved && b->saved <= s->durable_tick && !there)
				rig_fail(s->r, "space %u block %u: durable, and not found (saved at %llu, durable up to %llu, now %llu, "
					 "%llu crashes)", space, id, (unsigned long long)b->saved,
					 (unsigned long long)s->durable_tick, (unsigned long long)s->tick,
					 (unsigned long long)s->n.crashes);
		}
	verify_loads(s);
}

/* What was found is what is true from now on. */
static void adopt(struct cscript *s)
{
	cscript_verify(s);
	s->durable_tick = ++s->tick;
	for (uint32_t space = 0; space < RIG_SPACES; space++)
		for (uint32_t id = 0; id < BLOCKS; id++)
			s->block[space][id].saved = found(s, space, id) ? s->tick : 0;
}

void cscript_reopen(struct cscript *s)
{
	cscript_settle(s);
	s->durable_tick = s->tick;
	rig_reopen(s->r);
	adopt(s);
}

void cscript_crash(struct cscript *s, enum tn_simdisk_crash mode)
{
	s->n.crashes++;
	rig_power_off(s->r);
	cscript_drain(s, 60 * RIG_SECOND);
	rig_crashed(s->r, mode, tn_rng_next(&s->rng));
	adopt(s);
}

/* ---- life ------------------------------------------------------------------------------------------------- */

struct cscript *cscript_create(struct rig *r, uint64_t seed)
{
	struct cscript *s = calloc(1, sizeof(*s));

	assert_non_null(s);
	s->r = r;
	tn_rng_seed(&s->rng, seed);
	for (uint32_t i = 0; i < RIG_SPACES; i++) {
		s->free_pages[i] = calloc(r->o.npages, sizeof(uint32_t));
		assert_non_null(s->free_pages[i]);
		for (uint32_t p = 0; p < r->o.npages; p++)
			s->free_pages[i][s->nfree[i]++] = p;
	}
	return s;
}

void cscript_destroy(struct cscript *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; i < RIG_SPACES; i++)
		free(s->free_pages[i]);
	free(s);
}
