/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The default policy: keep what is worth most, take from the ends of chains.
 *
 * Only leaves go (blocks without children in the tier), as a block whose parent is gone cannot be found. Of 64
 * random leaves the leaf of the lowest value goes. The value is hits per tick, by a life table of similar blocks
 * (policy_life.h). A block comes in only if a read of it is likely enough to be worth a write, and if the block is
 * worth more than the leaf that it would displace. Blocks that are not in the tier are remembered as ghosts: how often
 * they were referenced, and when last.
 *
 * Memory: 20 bytes per entry, and 5.3 bytes per ghost. docs/policy.md has the reasons and the figures.
 */
#include <assert.h>
#include <errno.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "policy/policy_duel.h"
#include "policy/policy_life.h"

#define CANDIDATES 64u
#define SCAN_MAX 4096u /* leaves tried one by one if no candidate was usable */
#define MIN_READS_PER_WRITE (1.f / 32)
#define ZONES 3u /* leaves of negative, zero and positive priority */
#define ENTRIES_MAX (UINT32_C(1) << 31)
#define GENERATIONS 31u /* mask */

#define GHOST_WAYS 12u
#define GHOSTS_MIN 65536u
#define GHOSTS_FULL (UINT32_C(1) << 20) /* up to here one ghost per block; beyond, two per three blocks */
#define GHOST_SPAN 128u /* the ghosts' 16-bit clock wraps after this many capacities */

struct entry {
	uint32_t last; /* tick of the last reference */
	uint32_t parent; /* the entry is linked to it while parent_generation is the parent's generation */
	/* Leaf: place in leaves; else: number of linked children. Not in the tier: of children that wait for this entry. */
	uint32_t link;
	unsigned int count : 6; /* references, 0: not in the tier */
	unsigned int class : 6;
	unsigned int fresh : 1; /* let in by a request that is not through */
	unsigned int leaf : 1;
	unsigned int generation : 5; /* goes up when a block with children goes, which ends all their links at once */
	unsigned int parent_generation : 5;
	int priority : 8;
};
_Static_assert(sizeof(struct entry) == 16, "four entries a cache line");
_Static_assert(TN_LIFE_CLASSES <= 64 && TN_LIFE_COUNT_MAX < 64, "they have 6 bits");

/* One cache line of ghosts. tag 0: none. */
struct ghosts {
	uint16_t tag[GHOST_WAYS];
	uint16_t last[GHOST_WAYS]; /* in units of 2^ghost_shift ticks */
	uint8_t count[GHOST_WAYS];
};

/* What a block's class depends on besides the block: the block before it in the present request. */
struct context {
	uint32_t count; /* references of that block, 0 if there is no block */
	bool continued; /* within a new chain that grows out of the end of a chain seen once */
};

/* What admit found out, for the insert that follows. */
struct pending {
	uint64_t hash;
	struct entry entry;
	bool valid;
};

struct policy {
	struct tn_policy base;
	const struct tn_alloc *alloc;
	uint32_t nentries;
	uint32_t zone[ZONES + 1]; /* where each zone begins in leaves, and where the last zone ends */
	uint32_t nghosts; /* lines */
	uint32_t ghost_shift;
	uint32_t chosen; /* the victim that admit compared with */
	uint32_t spared; /* the parent of the block that is to come in: not a victim */
	bool open; /* the first request has come: no more recovered blocks */
	struct context context;
	struct pending pending;
	struct tn_rng rng;
	struct entry *entries;
	uint32_t *leaves;
	struct ghosts *ghosts;
	struct tn_life *life; /* the owner's, where there is one */
	struct tn_duel *duel; /* NULL: this policy is a shadow in the owner's duel */
	struct policy *owner;
};

static struct policy *policy_of(struct tn_policy *p)
{
	return (struct policy *)(void *)p;
}

/* ---- ghosts --------------------------------------------------------------------------------------------- */

static uint16_t ghost_tag(uint64_t hash)
{
	return (uint16_t)(hash >> 48) | 1;
}

static struct ghosts *ghost_line(struct policy *p, uint64_t hash)
{
	return &p->ghosts[(hash >> 8) % p->nghosts];
}

/* The place of the ghost in the line, GHOST_WAYS if it has none. */
static uint32_t ghost_find(const struct ghosts *g, uint64_t hash)
{
	uint32_t i = 0;

	while (i < GHOST_WAYS && g->tag[i] != ghost_tag(hash))
		i++;
	return i;
}

/* Takes the ghost's own place, or a free place, or that of the oldest ghost in the line. */
static void ghost_put(struct policy *p, uint64_t hash, uint32_t count, uint32_t last)
{
	struct ghosts *g = ghost_line(p, hash);
	uint32_t at = ghost_find(g, hash);
	uint16_t now = (uint16_t)(p->life->now >> p->ghost_shift);

	if (at == GHOST_WAYS) {
		at = 0;
		for (uint32_t i = 0; i < GHOST_WAYS; i++) {
			if (!g->tag[i]) {
				at = i;
				break;
			}
			if ((uint16_t)(now - g->last[i]) > (uint16_t)(now - g->last[at]))
				at = i;
		}
	}
	g->tag[at] = ghost_tag(hash);
	g->last[at] = (uint16_t)(last >> p->ghost_shift);
	g->count[at] = (uint8_t)count;
}

static void ghost_forget(struct policy *p, uint64_t hash)
{
	struct ghosts *g = ghost_line(p, hash);
	uint32_t at = ghost_find(g, hash);

	if (at < GHOST_WAYS)
		g->tag[at] = 0;
}

/* ---- leaves --------------------------------------------------------------------------------------------- */

static uint32_t zone_of(const struct entry *e)
{
	return e->priority < 0 ? 0 : e->priority == 0 ? 1 : 2;
}

static void leaf_put(struct policy *p, uint32_t place, uint32_t id)
{
	p->leaves[place] = id;
	p->entries[id].link = place;
}

/* Zones lie one behind the other; each later zone frees a place by moving its first leaf behind its last. */
static void leaf_add(struct policy *p, uint32_t id)
{
	uint32_t hole = p->zone[ZONES]++, zone = zone_of(&p->entries[id]);

	for (uint32_t z = ZONES - 1; z > zone; z--) {
		if (p->zone[z] != hole)
			leaf_put(p, hole, p->leaves[p->zone[z]]);
		hole = p->zone[z]++;
	}
	leaf_put(p, hole, id);
	p->entries[id].leaf = 1;
	if (p->duel)
		tn_duel_leaf(p->duel, id);
}

/* Afterwards the entry has no children. */
static void leaf_take(struct policy *p, uint32_t id)
{
	struct entry *e = &p->entries[id];
	uint32_t hole = e->link;

	for (uint32_t z = zone_of(e); z < ZONES; z++) {
		uint32_t end = --p->zone[z + 1];

		if (end != hole)
			leaf_put(p, hole, p->leaves[end]);
		hole = end;
	}
	e->leaf = 0;
	e->link = 0;
}

/* ---- chains --------------------------------------------------------------------------------------------- */

static uint32_t parent_of(const struct policy *p, uint32_t id)
{
	const struct entry *e = &p->entries[id];

	if (e->parent == TN_ENTRY_NONE || p->entries[e->parent].generation != e->parent_generation)
		return TN_ENTRY_NONE;
	return e->parent;
}

static void link_to(struct policy *p, uint32_t id, uint32_t parent)
{
	struct entry *e = &p->entries[id], *up = &p->entries[parent];

	if (up->leaf)
		leaf_take(p, parent);
	up->link++;
	e->parent = parent;
	e->parent_generation = up->generation;
}

/* The guard is for a parent whose generation wrapped while a child of an old generation was still here. */
static void unlink_from(struct policy *p, uint32_t id)
{
	uint32_t parent = parent_of(p, id);
	struct entry *up;

	p->entries[id].parent = TN_ENTRY_NONE;
	if (parent == TN_ENTRY_NONE)
		return;
	up = &p->entries[parent];
	if (up->leaf || !up->link)
		return;
	if (--up->link == 0 && up->count)
		leaf_add(p, parent);
}

/*
 * The parent that the caller gives counts: the parent may have gone and come back, under another id perhaps. Only
 * during recovery may the parent be a block that is not in yet.
 */
static void relink(struct policy *p, uint32_t id, uint32_t parent)
{
	if (parent == TN_ENTRY_NONE || parent == id)
		return;
	assert(parent < p->nentries);
	if (parent_of(p, id) == parent || (p->open && !p->entries[parent].count))
		return;
	unlink_from(p, id);
	link_to(p, id, parent);
}

/* ---- classes -------------------------------------------------------------------------------------------- */

static enum tn_duel_order order_of(const struct policy *p)
{
	return p->duel ? p->duel->order : TN_DUEL_VALUE;
}

static float value_of(const struct policy *p, uint32_t id)
{
	const struct entry *e = &p->entries[id];

	if (order_of(p) == TN_DUEL_RECENCY)
		return 0;
	if (order_of(p) == TN_DUEL_S3FIFO)
		return tn_duel_has_dropped(p->duel, id) ? 0 : 1;
	return tn_life_value(p->life, e->class, e->last);
}

/* Gives e its class as of the present reference; the next block of the request follows e. */
static void classify(struct policy *p, struct entry *e, uint32_t interval, const struct tn_policy_block *b)
{
	struct context *c = &p->context;
	uint32_t kind, level;

	if (e->count > 1) {
		c->continued = false;
		kind = tn_life_count_kind(e->count);
		level = tn_life_interval_level(interval);
	} else {
		if (c->count > 1)
			c->continued = c->count == 2;
		kind = b->partial ? TN_LIFE_PARTIAL : c->continued ? TN_LIFE_CONTINUED : 0;
		level = tn_life_depth_level(b->depth);
	}
	e->class = (kind * TN_LIFE_LEVELS + level) & 63;
	e->last = p->life->now;
	c->count = e->count;
}

static void request(struct tn_policy *base, uint32_t parent, uint64_t parent_hash)
{
	struct policy *p = policy_of(base);

	p->open = true;
	p->context = (struct context){0};
	if (p->duel)
		tn_duel_request(p->duel, parent_hash ? tn_mix64(parent_hash) : 0);
	p->pending.valid = false;
	p->chosen = p->spared = TN_ENTRY_NONE;
	if (parent != TN_ENTRY_NONE) {
		const struct entry *e = &p->entries[parent];

		assert(parent < p->nentries);
		p->context = (struct context){e->count, e->class / TN_LIFE_LEVELS == TN_LIFE_CONTINUED};
	}
}

static void observe(struct policy *p, uint64_t hash, const struct entry *e)
{
	if (!p->owner)
		tn_life_observe(p->life, hash, e->class);
}

/* A reference of a block that is in, as classified before. */
static void learn_entry(struct policy *p, uint32_t id, const struct tn_policy_block *b)
{
	struct entry *e = &p->entries[id];
	uint64_t hash = tn_mix64(b->key_hash);

	if (e->fresh)
		ghost_forget(p, hash);
	e->fresh = 0;
	if (p->duel) {
		tn_duel_refer(p->duel, hash, b);
		tn_duel_is(p->duel, id);
	}
	observe(p, hash, e);
}

static void touch(struct tn_policy *base, uint32_t id, const struct tn_policy_block *b)
{
	struct policy *p = policy_of(base);
	struct entry *e = &p->entries[id];

	assert(id < p->nentries && e->count);
	if (e->count < TN_LIFE_COUNT_MAX)
		e->count++;
	classify(p, e, p->life->now - e->last, b);
	learn_entry(p, id, b);
	relink(p, id, b->parent);
}

/* A reference of a block that is not in the tier. */
static void reference(struct policy *p, const struct tn_policy_block *b, uint64_t hash, struct entry *e)
{
	const struct ghosts *g = ghost_line(p, hash);
	uint32_t at = ghost_find(g, hash), count = 1, interval = 0;

	if (at < GHOST_WAYS) {
		count = g->count[at] < TN_LIFE_COUNT_MAX ? g->count[at] + 1u : TN_LIFE_COUNT_MAX;
		interval = (uint32_t)(uint16_t)((p->life->now >> p->ghost_shift) - g->last[at]) << p->ghost_shift;
	}
	*e = (struct entry){.parent = TN_ENTRY_NONE, .count = count & 63};
	e->priority = b->priority;
	classify(p, e, interval, b);
}

/* ---- victims -------------------------------------------------------------------------------------------- */

/* Whether a goes before b. */
static bool goes_before(const struct policy *p, const struct entry *a, float value, const struct entry *b, float than)
{
	if (a->priority != b->priority)
		return a->priority < b->priority;
	if (value < than || value > than)
		return value < than;
	return p->life->now - a->last > p->life->now - b->last;
}

static bool may_go(const struct policy *p, uint32_t id, tn_usable_fn usable, void *arg)
{
	return id != p->spared && (!usable || usable(arg, id));
}

/* The leaf to go of the n leaves from `first` on. All picks are made before the first is read: cache misses overlap. */
static uint32_t pick(struct policy *p, uint32_t first, uint32_t n, tn_usable_fn usable, void *arg)
{
	uint32_t picks[CANDIDATES], npicks = n < CANDIDATES ? n : CANDIDATES, best = TN_ENTRY_NONE;
	uint64_t random = 0;
	float best_value = 0;

	for (uint32_t i = 0; i < npicks; i++) {
		/* One random number serves two picks. */
		random = i % 2 ? random << 32 : n > CANDIDATES ? tn_rng_next(&p->rng) : 0;
		picks[i] = p->leaves[first + (n > CANDIDATES ? (uint32_t)((random >> 32) * n >> 32) : i)];
		__builtin_prefetch(&p->entries[picks[i]]);
	}
	for (uint32_t i = 0; i < npicks; i++) {
		const struct entry *e = &p->entries[picks[i]];
		float value = value_of(p, picks[i]);

		if (best != TN_ENTRY_NONE && !goes_before(p, e, value, &p->entries[best], best_value))
			continue;
		if (!may_go(p, picks[i], usable, arg))
			continue;
		best = picks[i];
		best_value = value;
	}
	if (best != TN_ENTRY_NONE || n <= CANDIDATES)
		return best;
	/* Hardly any leaf is usable: any usable one goes. */
	first += tn_rng_below(&p->rng, n - (n < SCAN_MAX ? n : SCAN_MAX) + 1);
	for (uint32_t i = 0; i < n && i < SCAN_MAX; i++)
		if (may_go(p, p->leaves[first + i], usable, arg))
			return p->leaves[first + i];
	return TN_ENTRY_NONE;
}

/* A leaf of the lowest priority that S3-FIFO has dropped, of those that are known to be. */
static uint32_t next_dropped(struct policy *p, tn_usable_fn usable, void *arg)
{
	uint32_t zone = 0;

	while (zone < ZONES - 1 && p->zone[zone + 1] == p->zone[zone])
		zone++;
	for (uint32_t n = p->duel->count; n > 0; n--) {
		uint32_t id = tn_duel_next(p->duel);

		if (!p->entries[id].count || !p->entries[id].leaf || !tn_duel_has_dropped(p->duel, id))
			continue;
		tn_duel_leaf(p->duel, id); /* until it is removed */
		if (zone_of(&p->entries[id]) == zone && may_go(p, id, usable, arg))
			return id;
	}
	return TN_ENTRY_NONE;
}

static uint32_t choose(struct policy *p, tn_usable_fn usable, void *arg)
{
	uint32_t id = TN_ENTRY_NONE;

	if (order_of(p) == TN_DUEL_S3FIFO)
		id = next_dropped(p, usable, arg);
	for (uint32_t z = 0; z < ZONES && id == TN_ENTRY_NONE; z++)
		if (p->zone[z + 1] > p->zone[z])
			id = pick(p, p->zone[z], p->zone[z + 1] - p->zone[z], usable, arg);
	return id;
}

static uint32_t victim(struct tn_policy *base, tn_usable_fn usable, void *arg)
{
	struct policy *p = policy_of(base);

	if (p->chosen == TN_ENTRY_NONE || !p->entries[p->chosen].leaf ||
	    !may_go(p, p->chosen, usable, arg))
		p->chosen = choose(p, usable, arg);
	return p->chosen;
}

/* ---- in and out ----------------------------------------------------------------------------------------- */

/* Whether the block displaces a leaf; sets which leaf. */
static bool displaces(struct policy *p, const struct entry *e, tn_usable_fn usable, void *arg)
{
	const struct entry *out;
	float value;

	p->chosen = choose(p, usable, arg);
	if (p->chosen == TN_ENTRY_NONE)
		return false;
	out = &p->entries[p->chosen];
	value = value_of(p, p->chosen);
	if (e->priority != out->priority ? e->priority < out->priority :
					   value >= p->life->value[e->class][0]) {
		p->chosen = TN_ENTRY_NONE;
		return false;
	}
	if (p->duel || p->owner->duel->order != TN_DUEL_VALUE)
		tn_life_note_evicted(p->life, value);
	return true;
}

/*
 * Whether the block comes in as LRU or S3-FIFO has it. A new block does not take the place of one that S3-FIFO holds: there is always another one that
 * it does not hold, but that one may not be a leaf yet, or pinned.
 */
static bool follows(struct policy *p, const struct entry *e, tn_usable_fn usable, void *arg)
{
	p->chosen = choose(p, usable, arg);
	if (p->chosen != TN_ENTRY_NONE && p->entries[p->chosen].priority <= e->priority &&
	    (p->duel->order == TN_DUEL_RECENCY || tn_duel_has_dropped(p->duel, p->chosen)))
		return true;
	p->chosen = TN_ENTRY_NONE;
	return false;
}

/* Whether a block that has its parent is worth a write and, in a full tier, a leaf. */
static bool is_worth(struct policy *p, const struct tn_policy_block *b, const struct entry *e, bool full, tn_usable_fn usable, void *arg)
{
	if (b->decided != TN_POLICY_UNDECIDED)
		return b->decided == TN_POLICY_LET_IN;
	if (!full)
		return true;
	if (order_of(p) != TN_DUEL_VALUE)
		return follows(p, e, usable, arg);
	if (b->priority <= 0 && p->life->reads_per_write[e->class] < MIN_READS_PER_WRITE)
		return false;
	return displaces(p, e, usable, arg);
}

static bool admit(struct tn_policy *base, const struct tn_policy_block *b, bool full, tn_usable_fn usable, void *arg)
{
	struct policy *p = policy_of(base);
	struct entry e;
	uint64_t hash = tn_mix64(b->key_hash);
	bool orphan = p->duel && b->depth > 0 && b->parent == TN_ENTRY_NONE;

	p->chosen = TN_ENTRY_NONE;
	p->spared = b->parent;
	reference(p, b, hash, &e);
	if (orphan || !is_worth(p, b, &e, full, usable, arg)) {
		p->pending.valid = false;
		p->spared = TN_ENTRY_NONE;
		return false;
	}
	p->pending = (struct pending){hash, e, true};
	return true;
}

static void learn(struct tn_policy *base, uint32_t id, const struct tn_policy_block *b)
{
	struct policy *p = policy_of(base);
	uint64_t hash = tn_mix64(b->key_hash);
	struct entry e;

	if (id != TN_ENTRY_NONE) {
		if (p->entries[id].fresh) {
			p->entries[id].last = p->life->now;
			learn_entry(p, id, b);
		}
		return;
	}
	reference(p, b, hash, &e);
	ghost_put(p, hash, e.count, e.last);
	if (p->duel)
		tn_duel_refer(p->duel, hash, b);
	observe(p, hash, &e);
}

/*
 * A recovered block: its history is not known. No reference is counted, or the life table would believe that
 * all recovered blocks were not read for that long. The tick keeps the order in which they were used.
 */
static void recover(struct policy *p, const struct tn_policy_block *b, struct entry *e)
{
	*e = (struct entry){.last = p->duel ? p->life->now++ : p->life->now, .parent = TN_ENTRY_NONE, .count = 1};
	e->class = ((b->partial ? TN_LIFE_PARTIAL : 0) * TN_LIFE_LEVELS + tn_life_depth_level(b->depth)) & 63;
	e->priority = b->priority;
}

/* A share takes the place of another one of its block, which was removed just now: the ghost knows the block's references. */
static void succeed(struct policy *p, const struct tn_policy_block *b, uint64_t hash, struct entry *e)
{
	const struct ghosts *g = ghost_line(p, hash);
	uint32_t at = ghost_find(g, hash), kind, level;

	*e = (struct entry){.last = p->life->now, .parent = TN_ENTRY_NONE, .count = 1};
	if (at < GHOST_WAYS) {
		e->count = g->count[at] & 63;
		e->last -= (uint32_t)(uint16_t)((p->life->now >> p->ghost_shift) - g->last[at]) << p->ghost_shift;
	}
	kind = e->count > 1 ? tn_life_count_kind(e->count) : b->partial ? TN_LIFE_PARTIAL : 0;
	level = e->count > 1 ? tn_life_interval_level(p->life->now - e->last) : tn_life_depth_level(b->depth);
	e->class = (kind * TN_LIFE_LEVELS + level) & 63;
	e->priority = b->priority;
}

static void insert(struct tn_policy *base, uint32_t id, const struct tn_policy_block *b)
{
	struct policy *p = policy_of(base);
	struct entry *e = &p->entries[id], in;
	uint64_t hash = tn_mix64(b->key_hash);
	uint32_t waiting = e->link;

	assert(id < p->nentries && !e->count);
	if (!p->open)
		recover(p, b, &in);
	else if (p->pending.valid && p->pending.hash == hash)
		in = p->pending.entry;
	else if (b->decided == TN_POLICY_LET_IN)
		succeed(p, b, hash, &in);
	else
		reference(p, b, hash, &in);
	in.fresh = p->open && b->decided != TN_POLICY_LET_IN;
	if (p->duel && !p->open)
		tn_duel_recover(p->duel, hash, id, b);
	p->pending.valid = false;
	p->spared = TN_ENTRY_NONE;
	if (!in.fresh)
		ghost_forget(p, hash);
	in.generation = e->generation;
	if (p->open && waiting) { /* children of a block that recovery did not find: this is another block */
		in.generation = (in.generation + 1u) & GENERATIONS;
		waiting = 0;
	}
	*e = in;
	e->link = waiting;
	if (!waiting)
		leaf_add(p, id);
	relink(p, id, b->parent);
}

static void remove_entry(struct tn_policy *base, uint32_t id, uint64_t key_hash, enum tn_policy_why why)
{
	struct policy *p = policy_of(base);
	struct entry *e = &p->entries[id];

	assert(id < p->nentries && e->count);
	if (p->chosen == id)
		p->chosen = TN_ENTRY_NONE;
	if (!e->fresh)
		ghost_put(p, tn_mix64(key_hash), e->count, e->last);
	if (p->duel)
		tn_duel_remove(p->duel, tn_mix64(key_hash), id);
	unlink_from(p, id);
	if (e->leaf)
		leaf_take(p, id);
	else
		e->generation = (e->generation + 1u) & GENERATIONS;
	e->link = 0;
	e->count = 0;
}

/* ---- create --------------------------------------------------------------------------------------------- */

/* How long a ghost's tick is. */
static void time_ghosts(struct policy *p, uint32_t capacity)
{
	uint64_t span = (uint64_t)GHOST_SPAN * (capacity < GHOSTS_MIN ? GHOSTS_MIN : capacity);

	p->ghost_shift = 0;
	while (UINT64_C(65536) << p->ghost_shift < span && p->ghost_shift < 16)
		p->ghost_shift++;
}

static void size_ghosts(struct policy *p, uint32_t capacity)
{
	uint64_t ghosts = capacity < GHOSTS_FULL ? capacity : GHOSTS_FULL;

	if (ghosts < (uint64_t)capacity * 2 / 3)
		ghosts = (uint64_t)capacity * 2 / 3;
	if (ghosts < GHOSTS_MIN)
		ghosts = GHOSTS_MIN;
	p->nghosts = (uint32_t)((ghosts + GHOST_WAYS - 1) / GHOST_WAYS);
	time_ghosts(p, capacity);
}

/* What is measured in capacities is so from now on. Ghosts that there are keep their ticks. */
static void expect(struct tn_policy *base, uint32_t blocks)
{
	struct policy *p = policy_of(base);

	uint32_t known = p->life->capacity, apart = blocks > known ? blocks - known : known - blocks;

	tn_duel_expect(p->duel, blocks);
	if (apart > known / 16) { /* the table is computed anew, which takes long */
		tn_life_expect(p->life, blocks);
		if (!p->open)
			time_ghosts(p, blocks);
	}
}

static void destroy(struct tn_policy *base)
{
	struct policy *p = policy_of(base);

	if (!p)
		return;
	if (p->duel)
		tn_duel_fini(p->duel);
	if (!p->owner && p->life)
		tn_life_fini(p->life);
	if (!p->owner)
		tn_put(p->alloc, p->life, sizeof(*p->life));
	tn_put(p->alloc, p->duel, sizeof(*p->duel));
	tn_put(p->alloc, p->entries, tn_array_bytes(p->nentries, sizeof(*p->entries)));
	tn_put(p->alloc, p->leaves, tn_array_bytes(p->nentries, sizeof(*p->leaves)));
	tn_put(p->alloc, p->ghosts, tn_array_bytes(p->nghosts, sizeof(*p->ghosts)));
	tn_put(p->alloc, p, sizeof(*p));
}

/* A policy without a life table and a duel of its own. owner: whose table it uses, or NULL. NULL: an error is said. */
static struct policy *create_bare(const struct tn_policy_opts *opts, uint32_t capacity, struct policy *owner)
{
	struct policy *p = tn_get(opts->alloc, sizeof(*p));

	if (p) {
		p->base.ops = &tn_policy_default;
		p->alloc = opts->alloc;
		p->nentries = opts->capacity;
		p->chosen = p->spared = TN_ENTRY_NONE;
		p->owner = owner;
		p->life = owner ? owner->life : NULL;
		tn_rng_seed(&p->rng, opts->seed);
		size_ghosts(p, capacity);
		p->entries = tn_get(opts->alloc, tn_array_bytes(p->nentries, sizeof(*p->entries)));
		p->leaves = tn_get(opts->alloc, tn_array_bytes(p->nentries, sizeof(*p->leaves)));
		p->ghosts = tn_get(opts->alloc, tn_array_bytes(p->nghosts, sizeof(*p->ghosts)));
		if (p->entries && p->leaves && p->ghosts)
			return p;
		destroy(&p->base);
	}
	tn_fail(-ENOMEM, "policy default: no memory for %u entries", opts->capacity);
	return NULL;
}

static int begin_duel(struct policy *p, const struct tn_policy_opts *opts)
{
	struct tn_policy_opts of_shadow = *opts;
	struct policy *shadow;

	of_shadow.capacity = tn_duel_nodes(opts->capacity);
	shadow = create_bare(&of_shadow, of_shadow.capacity, p);
	if (!shadow)
		return -ENOMEM;
	p->duel = tn_get(opts->alloc, sizeof(*p->duel));
	if (!p->duel) {
		destroy(&shadow->base);
		return tn_fail(-ENOMEM, "policy default: no memory for its shadows");
	}
	return tn_duel_init(p->duel, opts, &shadow->base);
}

static int create(const struct tn_policy_opts *opts, struct tn_policy **out)
{
	uint32_t capacity = opts->target && opts->target < opts->capacity ? opts->target : opts->capacity;
	struct policy *p;
	int rc;

	if (!opts->capacity || opts->capacity > ENTRIES_MAX)
		return tn_fail(-EINVAL, "policy default: %u entries: must be 1 to %u", opts->capacity, ENTRIES_MAX);
	p = create_bare(opts, capacity, NULL);
	if (!p)
		return -ENOMEM;
	p->life = tn_get(opts->alloc, sizeof(*p->life));
	rc = p->life ? tn_life_init(p->life, opts->alloc, capacity) : tn_fail(-ENOMEM, "policy default: no memory for a life table");
	if (rc == 0)
		rc = begin_duel(p, opts);
	if (rc) {
		destroy(&p->base);
		return rc;
	}
	tn_duel_expect(p->duel, capacity);
	*out = &p->base;
	return 0;
}

const struct tn_policy_ops tn_policy_default = {
	.size = sizeof(tn_policy_default),
	.abi = TN_POLICY_ABI,
	.name = "default",
	.forward = true,
	.create = create,
	.destroy = destroy,
	.request = request,
	.admit = admit,
	.insert = insert,
	.learn = learn,
	.touch = touch,
	.victim = victim,
	.remove = remove_entry,
	.expect = expect,
};
