/* SPDX-License-Identifier: Apache-2.0 */
/*
 * No kind of work can keep another one waiting for ever. In simulation, each kind of operation is begun while another kind
 * is repeated without a pause, and has to end within its bound. TN_SIM_FULL=1 adds other machines and mixtures of three.
 *
 * The bounds are those of docs/architecture.md ("What waits for what"), for the sizes below.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "block/registry.h"
#include "core/core.h"
#include "front/cache_rig.h"
#include "far.h"
#include "store/store_internal.h"
#include "tier/disk/disk.h"

#define BLOCKS 8u  /* of one operation */
#define PER_BLOCK 4u
#define COPIES 4u  /* of the repeated operation, at once */
#define SLOTS 14u  /* operations under way at once */
#define HOSTED 0u  /* space with a quota in host memory */
#define DIRECT 1u  /* and the one without */
#define NEW_IDS 100000u
#define WARM_UP_NS (100 * RIG_MS)

enum kind {
	LOAD_HOST, LOAD_DISK, SAVE, OFFLOAD, PREFETCH, SAVE_OTHER, FLUSH, DROP, DROP_SPACE, CHECKPOINT, PREPARE, SPACE_OPEN,
	KINDS,
};

/* What an operation waits for in the end: a turn of reads, a share of the writes, or nothing that others take. */
enum needs { READS, WRITES, STORE_WRITES, NOTHING };

static const struct {
	const char *name;
	enum needs needs;
	bool saves; /* it is, or begins with, a save */
} kinds[KINDS] = {
	[LOAD_HOST] = {"load from host memory", READS, false},
	[LOAD_DISK] = {"load from disk", READS, false},
	[SAVE] = {"save", WRITES, true},
	[OFFLOAD] = {"save and offload", WRITES, true},
	[PREFETCH] = {"prefetch", READS, false},
	[SAVE_OTHER] = {"save of a larger size", WRITES, true}, /* into a segment that moves, if the store is full */
	[FLUSH] = {"flush", WRITES, false},
	[DROP] = {"drop", WRITES, true},
	[DROP_SPACE] = {"drop of a space", WRITES, false},
	[CHECKPOINT] = {"checkpoint", STORE_WRITES, false},
	[PREPARE] = {"preparation of a segment", STORE_WRITES, false},
	[SPACE_OPEN] = {"opening and closing a space", NOTHING, false},
};

/* An operation under way. */
struct act {
	enum kind kind;
	bool begun, again; /* again: whenever it has ended */
	uint32_t at; /* which of the rig's places: its pages and block numbers */
	uint64_t begin_ns, id, number;
	struct tn_load *load;
	struct tn_save *save;
	struct tn_flush_waiter *flush;
};

struct world {
	struct rig *r;
	bool full; /* every save takes the place of blocks, of either size */
	struct rig_space third, other; /* other: blocks of twice the size */
	uint64_t next_id, ended[KINDS], most[KINDS];
	uint64_t stored, not_stored; /* blocks of saves */
	uint32_t late, cut_short, npins; /* cut short: prefetches */
	struct {
		uint32_t space;
		uint64_t pin;
	} pins[2 * SLOTS + 1];
	struct act act[SLOTS];
};

static void must(struct world *w, bool ok, const char *what, int rc)
{
	if (!ok)
		fail_msg("TN_SEED=%llu: %s: %d %s", (unsigned long long)w->r->o.seed, what, rc, tn_error_last()->text);
}

/* ---- names and pages --------------------------------------------------------------------------------------- */

/* Blocks that are there from the beginning, and pinned. */
static uint64_t hot_id(enum kind kind, uint32_t at)
{
	switch (kind) {
	case LOAD_HOST:
		return 1000;
	case LOAD_DISK:
		return 2000 + at * BLOCKS;
	default:
		return 3000 + at * BLOCKS;
	}
}

static void pages_of(uint32_t at, uint32_t *pages)
{
	for (uint32_t i = 0; i < BLOCKS * PER_BLOCK; i++)
		pages[i] = at * BLOCKS * PER_BLOCK + i;
}

static tn_block block_of(struct world *w, uint32_t space, uint64_t id)
{
	struct tn_key key = rig_key(id);

	return tn_registry_find_one(w->r->cache->registry, w->r->s[space].space->index, &key, false);
}

/* All blocks of an operation that are still known are, or are not, on their way to a tier or there. */
static bool all_are(struct world *w, uint64_t id, enum tn_tier tier, enum tn_residency residency, bool are)
{
	for (uint32_t i = 0; i < BLOCKS; i++) {
		tn_block b = block_of(w, HOSTED, id + i);

		if (b != TN_BLOCK_NONE && (tn_block_residency(w->r->cache->registry, b, tier) == residency) != are)
			return false;
	}
	return true;
}

static bool is_under_way(const struct world *w, const struct tn_key *first)
{
	for (const struct tn_list *pos = w->r->cache->loads.next; pos != &w->r->cache->loads; pos = pos->next) {
		const struct tn_op *op = tn_container_of(pos, struct tn_op, link);

		if (op->alive && memcmp(&op->keys[0], first, sizeof(*first)) == 0)
			return true;
	}
	return false;
}

static void out_of_host(struct world *w, uint64_t id)
{
	struct tn_cache *cache = w->r->cache;

	for (uint32_t i = 0; i < BLOCKS; i++) {
		tn_block b = block_of(w, HOSTED, id + i);

		must(w, b != TN_BLOCK_NONE, "a pinned block is gone", 0);
		if (tn_tier_has(cache->row.memory, b))
			tn_tier_leave(cache->row.memory, b, TN_LEAVE_DROPPED);
	}
}

/* ---- loads and saves ------------------------------------------------------------------------------------------ */

static bool begin_load(struct world *w, struct act *a, uint32_t space)
{
	struct tn_key keys[BLOCKS];
	uint32_t pages[BLOCKS * PER_BLOCK];
	int rc;

	rig_keys(hot_id(a->kind, a->at), BLOCKS, keys);
	pages_of(a->at, pages);
	rc = tn_load_begin(w->r->s[space].space, w->r->s[space].pool, keys, BLOCKS, pages, NULL, &a->load);
	must(w, rc == 0 || rc == -EAGAIN, "load", rc);
	return rc == 0;
}

static bool load_is_over(struct world *w, struct act *a)
{
	uint8_t busy[1];
	int rc;

	for (uint32_t l = 0; l < w->r->s->g.layers; l++) {
		rc = tn_load_poll(a->load, l);
		if (rc == -EAGAIN)
			return false;
		must(w, rc == BLOCKS, "load", rc);
	}
	rc = tn_load_end(a->load, 0, busy);
	must(w, rc == 0 || rc == -EBUSY, "end of a load", rc);
	return rc == 0;
}

static bool begin_save(struct world *w, struct act *a, const struct rig_space *s)
{
	struct tn_key keys[BLOCKS];
	uint32_t pages[2 * BLOCKS * PER_BLOCK];
	int rc;

	rig_keys(a->id, BLOCKS, keys);
	pages_of(a->at, pages);
	pages_of(a->at ? a->at - 1 : 1, pages + BLOCKS * PER_BLOCK);
	rc = tn_save_begin(s->space, s->pool, keys, BLOCKS, pages, NULL, &a->save);
	must(w, rc == 0 || rc == -EAGAIN, "save", rc);
	if (rc)
		return false;
	for (uint32_t l = 0; l < w->r->s->g.layers; l++)
		tn_save_layer(a->save, l, NULL, 0);
	tn_save_commit(a->save);
	return true;
}

static bool save_is_over(struct world *w, struct act *a)
{
	struct tn_save_result res = {.size = sizeof(res)};
	int rc;

	if (!a->save)
		return true;
	rc = tn_save_end(a->save, 1, &res);
	if (rc == -ETIMEDOUT)
		return false;
	must(w, rc == 0 && (res.stored == BLOCKS || (w->full && res.error == -ENOSPC)), "save", rc ? rc : res.error);
	a->save = NULL;
	w->stored += res.stored;
	w->not_stored += BLOCKS - res.stored;
	return true;
}

/* ---- the others ------------------------------------------------------------------------------------------------- */

static bool flush_is_over(struct world *w, struct act *a)
{
	int rc = tn_flush_poll(a->flush);

	must(w, rc == 0 || rc == -EAGAIN || (w->full && rc == -ENOSPC), "flush", rc);
	return rc != -EAGAIN;
}

/* pages_per_block 0: as the first space, and without a pool. */
static void open_space(struct world *w, const char *tenant, uint32_t pages_per_block, struct rig_space *space)
{
	struct rig_space_opts o = {.tenant = tenant, .pages_per_block = pages_per_block, .no_pool = !pages_per_block};
	int rc = rig_space_open(w->r, &o, space);

	must(w, rc == 0, "space", rc);
}

/* As if every page of the region that is written next differed from what is there. */
static bool begin_checkpoint(struct world *w, struct act *a)
{
	struct tn_store_device *d = &tn_disk_tier_store(w->r->cache->row.durable)->dev[0];
	uint32_t pages = d->store->table_pages + d->super.segment_count * d->store->segment_pages;

	if (d->ckpt.phase != TN_CKPT_IDLE)
		return false;
	for (uint32_t i = 0; i < pages; i++)
		d->ckpt.dirty[d->ckpt.region][i / 64] |= 1ull << i % 64;
	a->number = d->ckpt.number;
	tn_store_ckpt_start(d, false);
	return true;
}

/* Without any the store prepares nothing: somebody may want the segment at once. */
static bool slots_left(const struct tn_store_device *d)
{
	for (uint32_t i = 0; i < d->store->nshapes; i++)
		if (d->store->shape[i].free_slots[d->index] > 0)
			return true;
	return false;
}

/* As if an unassigned segment had never been written. */
static bool begin_prepare(struct world *w, struct act *a)
{
	struct tn_store_device *d = &tn_disk_tier_store(w->r->cache->row.durable)->dev[0];
	struct tn_list *first = d->unassigned.next;

	if (d->prep.segment != UINT32_MAX)
		return false;
	a->number = UINT64_MAX; /* all are assigned: nothing to do */
	if (first == &d->unassigned)
		return true;
	a->number = (uint64_t)(tn_container_of(first, struct tn_store_segment, link) - d->segs);
	d->segs[a->number].prepared = false;
	return true;
}

static bool begin_act(struct world *w, struct act *a)
{
	struct tn_key keys[BLOCKS];
	struct rig_space dora;
	int rc;

	switch (a->kind) {
	case LOAD_HOST:
		return begin_load(w, a, HOSTED);
	case LOAD_DISK:
		return begin_load(w, a, DIRECT);
	case SAVE:
		return begin_save(w, a, &w->r->s[DIRECT]);
	case SAVE_OTHER:
		return begin_save(w, a, &w->other);
	case OFFLOAD:
	case DROP:
		return begin_save(w, a, &w->r->s[HOSTED]);
	case PREFETCH:
		out_of_host(w, hot_id(PREFETCH, a->at));
		rig_keys(hot_id(PREFETCH, a->at), BLOCKS, keys);
		rc = tn_prefetch(w->r->s[HOSTED].space, keys, BLOCKS, TN_FOREVER);
		must(w, rc == BLOCKS || rc == -EAGAIN, "prefetch", rc);
		return rc == BLOCKS;
	case FLUSH:
		a->flush = tn_flush_begin(&w->r->cache->flushes);
		return true;
	case DROP_SPACE:
		rc = tn_space_drop_begin(&w->r->cache->drops, w->third.space, &a->flush);
		must(w, rc == 0 || rc == -EBUSY, "drop of a space", rc);
		return rc == 0;
	case CHECKPOINT:
		return begin_checkpoint(w, a);
	case PREPARE:
		return begin_prepare(w, a);
	default:
		open_space(w, "dora", 0, &dora);
		rig_space_close(&dora);
		return true;
	}
}

static bool act_is_over(struct world *w, struct act *a)
{
	struct tn_store_device *d = &tn_disk_tier_store(w->r->cache->row.durable)->dev[0];
	struct tn_key keys[BLOCKS];

	switch (a->kind) {
	case LOAD_HOST:
	case LOAD_DISK:
		return load_is_over(w, a);
	case SAVE:
	case SAVE_OTHER:
		return save_is_over(w, a);
	case OFFLOAD:
		return save_is_over(w, a) && all_are(w, a->id, TN_TIER_DISK, TN_FILLING, false);
	case DROP: /* at once, whatever else of the blocks is under way */
		if (!save_is_over(w, a))
			return false;
		rig_keys(a->id, BLOCKS, keys);
		must(w, tn_drop(w->r->s[HOSTED].space, keys, BLOCKS) == BLOCKS, "drop", 0);
		return true;
	case PREFETCH: /* brings as much as there are places for in host memory */
		if (all_are(w, hot_id(PREFETCH, a->at), TN_TIER_HOST, TN_PRESENT, true))
			return true;
		rig_keys(hot_id(PREFETCH, a->at), 1, keys);
		if (is_under_way(w, &keys[0]))
			return false;
		w->cut_short++;
		return true;
	case FLUSH:
	case DROP_SPACE:
		return flush_is_over(w, a);
	case CHECKPOINT:
		return d->ckpt.number > a->number;
	case PREPARE:
		return a->number == UINT64_MAX || !slots_left(d) || d->segs[a->number].prepared || d->segs[a->number].shape != TN_SHAPE_NONE;
	default:
		return true;
	}
}

/* ---- the rig ------------------------------------------------------------------------------------------------------ */

/* Begins what waits to begin, and what has ended and is to be repeated. */
static void go_on(struct world *w)
{
	for (uint32_t i = 0; i < SLOTS; i++) {
		struct act *a = &w->act[i];

		if (a->kind == KINDS)
			continue;
		if (a->begun && act_is_over(w, a)) {
			w->ended[a->kind]++;
			a->begun = false;
			if (!a->again)
				a->kind = KINDS;
		}
		if (a->kind == KINDS || a->begun)
			continue;
		a->at = i;
		a->id = w->next_id;
		w->next_id += BLOCKS;
		a->begun = begin_act(w, a);
	}
}

static void turn(struct world *w)
{
	rig_turn(w->r, 5 * RIG_MS);
}

/* Nothing is repeated any more: everything ends. */
static void drain(struct world *w)
{
	uint64_t end = rig_now(w->r) + 60 * RIG_SECOND;
	bool left;

	for (uint32_t i = 0; i < SLOTS; i++) {
		w->act[i].again = false;
		if (!w->act[i].begun)
			w->act[i].kind = KINDS;
	}
	do {
		go_on(w);
		turn(w);
		left = !tn_core_idle(w->r->cache);
		for (uint32_t i = 0; i < SLOTS; i++)
			left |= w->act[i].kind != KINDS;
		must(w, rig_now(w->r) < end, "not everything ends when nothing new is begun", 0);
	} while (left);
}

static void save_hot(struct world *w, enum kind kind, uint32_t at, uint32_t space)
{
	struct act a = {.at = at, .id = hot_id(kind, at)};

	while (!begin_save(w, &a, &w->r->s[space]))
		turn(w);
	while (!save_is_over(w, &a))
		turn(w);
	w->pins[w->npins].space = space;
	w->pins[w->npins++].pin = rig_pin(&w->r->s[space], a.id, BLOCKS);
}

static struct world *world_up(const struct rig_opts *o)
{
	struct world *w = calloc(1, sizeof(*w));

	assert_non_null(w);
	for (uint32_t i = 0; i < SLOTS; i++)
		w->act[i].kind = KINDS;
	w->next_id = NEW_IDS;
	w->r = rig_simulated(o);
	rig_must_open(w->r);
	w->r->s[DIRECT].space->quota.bytes[TN_TIER_HOST] = 0;
	open_space(w, "carl", 0, &w->third);
	save_hot(w, LOAD_HOST, 0, HOSTED);
	for (uint32_t i = 0; i < SLOTS; i++) {
		save_hot(w, LOAD_DISK, i, DIRECT);
		save_hot(w, PREFETCH, i, HOSTED);
	}
	open_space(w, "emil", 2 * PER_BLOCK, &w->other); /* blocks larger than those that host memory is cut for already */
	w->act[0] = (struct act){.kind = FLUSH};
	go_on(w);
	drain(w);
	rig_run(w->r, 5 * RIG_SECOND); /* the new segments are prepared by then */
	for (uint32_t i = 0; i < SLOTS; i++)
		out_of_host(w, hot_id(PREFETCH, i));
	return w;
}

static void world_down(struct world *w)
{
	for (uint32_t i = 0; i < w->npins; i++)
		rig_unpin(&w->r->s[w->pins[i].space], w->pins[i].pin);
	rig_space_close(&w->third);
	rig_space_close(&w->other);
	rig_tear_down(w->r);
	free(w);
}

/* Blocks of 32 KiB on a disk that takes 5 ms per read and 2 ms per write, beside one worker that takes 0.3 ms per block. */
static struct rig_opts machine(uint64_t seed)
{
	struct rig_opts o = rig_simulated_opts();

	o.seed = seed;
	o.cache.disk_bytes = 128u << 20;
	o.segment_bytes = 1u << 20;
	o.cache.host_bytes = 160u * (36u << 10);
	o.quota_blocks[0] = o.quota_blocks[1] = 520; /* more than is pinned, on its way in and held by a slow tier, all at once */
	o.cache.max_ops = 32;
	o.layers = 1;
	o.pages_per_block = PER_BLOCK;
	o.npages = SLOTS * BLOCKS * PER_BLOCK;
	o.read_ns = 5 * RIG_MS;
	o.write_ns = 2 * RIG_MS;
	o.sync_ns = RIG_MS;
	o.job_ns = 300 * RIG_US;
	return o;
}

/* ---- what must be true ------------------------------------------------------------------------------------------- */

/* Writes of the store's own, of up to 1 MiB, that make up a segment's preparation or a checkpoint. */
static uint32_t store_writes(const struct world *w)
{
	const struct tn_store *store = tn_disk_tier_store(w->r->cache->row.durable);
	const struct tn_store_device *d = &store->dev[0];

	return (uint32_t)(store->segment_bytes >> 20) + 2 + (store->table_pages + d->super.segment_count * store->segment_pages) / 8;
}

/* Transfers of the blocks of one operation, and of their headers. */
static uint64_t transfers(const struct world *w, enum kind kind)
{
	return BLOCKS * (kind == SAVE_OTHER ? w->other.space : w->r->s->space)->shape.chunks + 1;
}

/* Requests of a load: of objects of two chunks most are read by themselves, and its headers as one. */
static uint64_t reads(const struct world *w)
{
	return BLOCKS * w->r->o.layers + 1;
}

/* What a request takes on average: a twentieth of them takes ten times as long (sim/simdisk.c). */
static uint64_t average(uint64_t ns)
{
	return ns * 29 / 20;
}

/*
 * Time of the device per write, as the scheduler measures it: from its request to its end. Where the device takes one request at a time, a
 * write may find one read before it each time, and one write of the log, which asks nobody, with its sync; where it takes two, these two at
 * once, and waits for the shorter.
 */
static uint64_t write_time(const struct world *w, const enum kind *others, uint32_t n)
{
	const struct rig_opts *o = &w->r->o;
	bool loads = false, logs = false;
	uint64_t read, log;

	for (uint32_t i = 0; i < n; i++) {
		loads |= kinds[others[i]].needs == READS;
		logs |= others[i] == FLUSH || others[i] == DROP || others[i] == DROP_SPACE;
	}
	read = loads ? o->read_ns : 0;
	log = logs ? o->write_ns + o->sync_ns : 0;
	switch (o->cache.io_depth) {
	case 1:
		return average(o->write_ns + read + log);
	case 2:
		return average(o->write_ns + (read < log ? read : log));
	default:
		return average(o->write_ns);
	}
}

/*
 * Before a write that was passed over goes, the reads in flight end, or twice the time passes that they should take: the latency as the scheduler learns it,
 * which a slow read can double. Once for blocks and once for headers; the time until the next turn counts from the beginning of this.
 */
static uint64_t held(const struct world *w)
{
	return 2 * (4 * average(w->r->o.read_ns) + RIG_MS);
}

/*
 * By when an operation has to end beside others, each of them in several copies that began before. A load that is passed
 * over has a turn after 200 ms, and one load does in each 100 ms; where the engine takes few reads at once, what is not
 * urgent has one in seventeen. A write that is passed over goes after 250 ms, its header likewise, and then writes have a
 * 64th of the time, in which all that was there before goes first; the store's own wait each for themselves.
 */
static uint64_t bound_ns(const struct world *w, enum kind kind, const enum kind *others, uint32_t n)
{
	const struct rig_opts *o = &w->r->o;
	uint64_t share = 64 * write_time(w, others, n), writes = transfers(w, kind);

	for (uint32_t i = 0; i < n; i++)
		writes += kinds[others[i]].saves ? COPIES * transfers(w, others[i]) : 0;
	switch (kinds[kind].needs) {
	case READS:
		return 300 * RIG_MS + n * COPIES * (100 * RIG_MS + 17 * reads(w) * average(o->read_ns) / o->cache.io_depth);
	case WRITES:
		return (w->full ? 6000 : 1500) * RIG_MS + held(w) + writes * share;
	case STORE_WRITES:
		return 1500 * RIG_MS + store_writes(w) * (300 * RIG_MS + held(w) + share) + held(w) + writes * share;
	default:
		return 50 * RIG_MS;
	}
}

/* Lets what is repeated go on until each of it has ended once, or for so long. */
static bool each_has_ended(struct world *w, const enum kind *others, uint32_t n, uint64_t ns)
{
	uint64_t end = rig_now(w->r) + ns;
	bool all = n == 0;

	while (!all && rig_now(w->r) < end) {
		go_on(w);
		turn(w);
		all = true;
		for (uint32_t i = 0; i < n; i++)
			all &= w->ended[others[i]] > 0;
	}
	return all;
}

/*
 * How long one operation takes while the others are repeated; counts it as late if that is longer than its bound. The
 * others have to end within theirs, too.
 */
static uint64_t takes(struct world *w, enum kind kind, const enum kind *others, uint32_t n)
{
	struct act *a = &w->act[SLOTS - 1];
	uint64_t from, took, bound = bound_ns(w, kind, others, n), most = 0;

	memset(w->ended, 0, sizeof(w->ended));
	for (uint32_t i = 0; i < n * COPIES; i++)
		w->act[i] = (struct act){.kind = others[i / COPIES], .again = true};
	for (uint32_t i = 0; i < n; i++)
		most = bound_ns(w, others[i], others, n) > most ? bound_ns(w, others[i], others, n) : most;
	for (from = rig_now(w->r); n > 0 && rig_now(w->r) < from + WARM_UP_NS;) {
		go_on(w);
		turn(w);
	}
	*a = (struct act){.kind = kind};
	from = rig_now(w->r);
	do {
		go_on(w);
		turn(w);
		took = rig_now(w->r) - from;
	} while (a->kind != KINDS && took <= bound);
	if (a->kind != KINDS || !each_has_ended(w, others, n, most)) {
		printf("# LATE, after %.1f s: a %s%s, beside: %s%s%s\n", (double)(rig_now(w->r) - from) / 1e9, kinds[kind].name,
		       a->kind == KINDS ? " ended, and not" : "", n ? kinds[others[0]].name : "nothing", n > 1 ? ", " : "",
		       n > 1 ? kinds[others[1]].name : "");
		w->late++;
	}
	w->most[kind] = took > w->most[kind] ? took : w->most[kind];
	drain(w);
	return took;
}

/* A device writes one checkpoint and prepares one segment at a time: who begins the next one is left to chance. */
static bool only_one(enum kind kind)
{
	return kind == CHECKPOINT || kind == PREPARE;
}

/* Nobody waits for a preparation, so it may come after checkpoints; only that these are begun without a pause is made up. */
static bool may_mix(enum kind a, enum kind b)
{
	return a == b ? !only_one(a) : !(only_one(a) && only_one(b));
}

static void sweep(struct world *w)
{
	for (enum kind kind = 0; kind < KINDS; kind++) {
		uint64_t alone = takes(w, kind, NULL, 0), most = 0;
		enum kind worst = 0;

		for (enum kind other = 0; other < KINDS; other++) {
			uint64_t took;

			if (!may_mix(kind, other))
				continue;
			took = takes(w, kind, &other, 1);
			if (getenv("TN_TEST_VERBOSE"))
				printf("# %s beside %s: %.1f ms\n", kinds[kind].name, kinds[other].name, (double)took / 1e6);
			if (took > most) {
				most = took;
				worst = other;
			}
		}
		printf("# %s: %.1f ms alone, at most %.1f of %.0f, beside: %s\n", kinds[kind].name, (double)alone / 1e6,
		       (double)most / 1e6, (double)bound_ns(w, kind, &worst, 1) / 1e6, kinds[worst].name);
	}
}

static void every_operation_ends_in_time_beside_any_other(void **state)
{
	struct rig_opts o = machine(tn_test_seed());
	struct world *w = world_up(&o);

	sweep(w);
	assert_int_equal(w->late, 0);
	assert_int_equal(w->cut_short, 0);
	world_down(w);
}

/* A third tier takes copies of what is saved, slowly, and gives way. */
static const struct tn_far_opts far = {.seed = 5, .blocks = 400, .latency_ns = 40 * RIG_MS};

static void and_beside_a_third_tier_that_is_slow(void **state)
{
	struct rig_opts o = machine(tn_test_seed());
	struct world *w;

	o.far = &far;
	w = world_up(&o);
	sweep(w);
	assert_int_equal(w->late, 0);
	assert_int_equal(w->cut_short, 0);
	assert_true(tn_far_blocks(w->r->far) > 0);
	world_down(w);
}

/* Slots come by evictions and by segments that move, and each has to wait for the log. */
static void and_when_every_save_takes_the_place_of_others(void **state)
{
	struct rig_opts o = machine(tn_test_seed());
	struct world *w;

	o.cache.disk_bytes = 24u << 20;
	o.quota_blocks[0] = o.quota_blocks[1] = 0;
	w = world_up(&o);
	w->full = true;
	sweep(w);
	printf("# %llu blocks stored, no place for %llu\n", (unsigned long long)w->stored, (unsigned long long)w->not_stored);
	assert_int_equal(w->late, 0);
	assert_int_equal(w->cut_short, 0);
	assert_true(w->stored > 9 * w->not_stored);
	world_down(w);
}

/* A save has headers for both devices: each device lets its own go after 250 ms, whatever the other one does. */
static void no_device_keeps_the_headers_of_another_waiting(void **state)
{
	struct rig_opts o = machine(tn_test_seed());
	enum kind loads = LOAD_DISK;
	struct world *w;
	uint64_t took;

	o.cache.ndirs = 2;
	o.write_ns = 100 * RIG_US;
	w = world_up(&o);
	took = takes(w, SAVE, &loads, 1);
	printf("# %.1f ms\n", (double)took / 1e6);
	assert_int_equal(w->late, 0);
	assert_true(took < 1000 * RIG_MS);
	world_down(w);
}

/* Few or many transfers at once, a slow worker or a fast one, slow disks of one or two directories. */
static struct rig_opts random_machine(struct tn_rng *rng, uint64_t seed)
{
	struct rig_opts o = machine(seed);

	o.cache.io_depth = 1u << tn_rng_below(rng, 6);
	o.cache.ndirs = 1 + tn_rng_below(rng, 2);
	o.job_ns = (20 + tn_rng_below(rng, 400)) * RIG_US;
	o.read_ns = (500 + tn_rng_below(rng, 5000)) * RIG_US;
	o.write_ns = (100 + tn_rng_below(rng, 3000)) * RIG_US;
	o.head_dim = tn_rng_below(rng, 2) ? 128 : 96;
	if (tn_rng_below(rng, 3) == 0) { /* blocks of 320 KiB, in two chunks */
		o.layers = 5;
		o.head_dim = 256;
		o.segment_bytes = 4u << 20;
		o.cache.disk_bytes = 1u << 30;
		o.cache.host_bytes = 160u * (330u << 10);
	}
	return o;
}

static void and_on_other_machines_beside_any_two(void **state)
{
	const char *full = getenv("TN_SIM_FULL");
	uint64_t first = tn_test_seed();
	uint32_t rounds = full ? 200 : 6, pairs = full ? 60 : 30;

	for (uint64_t seed = first; seed < first + rounds; seed++) {
		struct rig_opts o;
		struct tn_rng rng;
		struct world *w;

		tn_rng_seed(&rng, seed);
		o = random_machine(&rng, seed);
		o.far = seed % 3 ? NULL : &far;
		w = world_up(&o);
		for (uint32_t k = 0; k < pairs; k++) {
			enum kind kind = tn_rng_below(&rng, KINDS);
			enum kind others[2] = {tn_rng_below(&rng, KINDS), tn_rng_below(&rng, KINDS)};

			if (may_mix(kind, others[0]) && may_mix(kind, others[1]) && may_mix(others[0], others[1]))
				takes(w, kind, others, 2);
		}
		if (getenv("TN_TEST_VERBOSE"))
			for (uint32_t k = 0; k < KINDS; k++)
				printf("# seed %llu: %s: %.1f ms\n", (unsigned long long)seed, kinds[k].name, (double)w->most[k] / 1e6);
		if (w->late)
			fail_msg("TN_SEED=%llu%s: %u operations were late", (unsigned long long)seed, full ? " TN_SIM_FULL=1" : "",
				 w->late);
		world_down(w);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_operation_ends_in_time_beside_any_other),
		cmocka_unit_test(and_beside_a_third_tier_that_is_slow),
		cmocka_unit_test(and_when_every_save_takes_the_place_of_others),
		cmocka_unit_test(no_device_keeps_the_headers_of_another_waiting),
		cmocka_unit_test(and_on_other_machines_beside_any_two),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
