/* SPDX-License-Identifier: Apache-2.0 */
/* What a simulated rig has of its own: the disk, the worker, the steps of the core, power cuts, and a look inside. */
#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/stack.h"
#include "block/registry.h"
#include "core/transfers.h"
#include "front/front.h"
#include "cache_rig.h"
#include "far.h"
#include "ioengine/faulty_rig.h"
#include "store/store_internal.h"
#include "tier/disk/disk.h"
#include "tier/slab.h"

struct rig_opts rig_simulated_opts(void)
{
	static const char *const dirs[] = {"a", "b"};
	struct rig_opts o = {.spaces = 2, .layers = 2, .pages_per_block = 2, .heads = 1, .head_dim = 128, .npages = 64,
			     .seed = tn_test_seed(), .segment_bytes = 512u << 10};

	tn_cache_opts_init(&o.cache);
	o.cache.dirs = dirs;
	o.cache.ndirs = 1;
	o.cache.disk_bytes = 4u << 20;
	o.cache.max_blocks = 8192;
	o.cache.max_ops = 12;
	o.cache.max_op_blocks = 64;
	o.cache.io_depth = 16;
	o.cache.header_cache_bytes = 64u << 10;
	o.cache.policy = "lru";
	return o;
}

struct rig *rig_simulated(const struct rig_opts *o)
{
	struct rig *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	r->simulated = true;
	r->o = *o;
	return r;
}

void rig_note(struct rig *r, uint64_t what)
{
	uint64_t words[2] = {r->hash, what};

	r->hash = tn_hash64(words, sizeof(words));
}

/* ---- jobs ------------------------------------------------------------------------------------------------ */

static void exec_post(struct tn_exec *exec, struct tn_job *job)
{
	struct rig_exec *e = (struct rig_exec *)exec;

	if (!e->posted)
		e->next_ns = tn_now_ns(e->clock) + e->job_ns;
	job->next = e->posted;
	e->posted = job;
}

/* One worker, to which each job takes the same time. */
static struct tn_job *next_in_order(struct rig_exec *e)
{
	struct tn_job **oldest = &e->posted, *job;

	if (!e->posted || tn_now_ns(e->clock) < e->next_ns)
		return NULL;
	while ((*oldest)->next)
		oldest = &(*oldest)->next;
	job = *oldest;
	*oldest = NULL;
	e->next_ns += e->job_ns;
	job->run(job);
	return job;
}

/* Some of those that ran are done now, and some of the others run. */
static void run_some(struct rig_exec *e)
{
	struct tn_job **at;

	for (at = &e->ran; *at;) {
		struct tn_job *job = *at;

		if (tn_rng_below(&e->rng, 3) == 0) {
			at = &job->next;
			continue;
		}
		*at = job->next;
		job->next = e->done;
		e->done = job;
	}
	for (at = &e->posted; *at;) {
		struct tn_job *job = *at;

		if (tn_rng_below(&e->rng, 3) == 0) {
			at = &job->next;
			continue;
		}
		*at = job->next;
		job->run(job);
		job->next = e->ran;
		e->ran = job;
	}
}

static struct tn_job *exec_next(struct tn_exec *exec)
{
	struct rig_exec *e = (struct rig_exec *)exec;
	struct tn_job *job;

	if (e->job_ns)
		return next_in_order(e);
	if (!e->taken)
		run_some(e);
	job = e->done;
	e->taken = job; /* once per turn: until all that is done was taken */
	if (job)
		e->done = job->next;
	return job;
}

/* ---- up and down ---------------------------------------------------------------------------------------- */

static void make_disk(struct rig *r)
{
	struct tn_simdisk_opts so = {.seed = r->o.seed, .depth = r->o.cache.io_depth + 32, .capacity_bytes = r->o.medium_bytes,
				     .read_ns = r->o.read_ns, .write_ns = r->o.write_ns, .sync_ns = r->o.sync_ns};
	struct tn_io_faulty_opts fo = {.seed = r->o.seed};

	assert_int_equal(tn_simdisk_create(&so, &r->disk), 0);
	r->io = tn_simdisk_io(r->disk);
	if (r->o.faulty) {
		if (r->o.faults)
			fo = *r->o.faults;
		fo.clock = tn_simdisk_clock(r->disk);
		assert_int_equal(tn_io_faulty_create(r->io, &fo, &r->io), 0);
	}
	tn_rng_seed(&r->exec.rng, r->o.seed ^ 0xe8ec);
	r->exec.exec.post = exec_post;
	r->exec.exec.next = exec_next;
	r->exec.clock = tn_simdisk_clock(r->disk);
	r->exec.job_ns = r->o.job_ns;
}

static int make_far(const struct tn_tier_env *env, struct tn_tier_base **out)
{
	struct tn_policy_opts po = {.capacity = env->max_blocks, .seed = env->o->seed, .alloc = env->alloc};
	struct rig *r = tn_container_of(env, struct tn_cache, tiers)->engines.devices;
	const struct tn_policy_ops *lru;
	struct tn_policy *policy;

	assert_int_equal(tn_policy_find("lru", &lru), 0);
	assert_int_equal(lru->create(&po, &policy), 0);
	return tn_far_tier(r->far, env->clock, env->alloc, policy, out);
}

static const struct tn_tier_maker far_maker = {.make = make_far};

int rig_sim_open(struct rig *r, struct tn_cache_opts *opts)
{
	int rc;

	if (!r->disk)
		make_disk(r);
	if (r->o.far && !r->far)
		assert_int_equal(tn_far_create(r->o.far, &r->far), 0);
	opts->seed = r->o.seed | 1;
	rc = tn_cache_create(opts, &r->cache);
	if (rc)
		return rc;
	r->cache->clock = *tn_simdisk_clock(r->disk);
	r->cache->exec = &r->exec.exec;
	r->cache->tiers.segment_bytes = r->o.segment_bytes;
	r->cache->tiers.boot[0] = tn_simdisk_boot(r->disk);
	r->cache->tiers.entropy[0] = r->o.seed + 1;
	r->cache->tiers.entropy[1] = 0x5eed;
	r->cache->engines.devices = r;
	if (r->far)
		r->cache->makers[TN_TIER_REMOTE] = &far_maker;
	if (r->o.prepare)
		r->o.prepare(r);
	r->cache->io = r->io;
	return tn_core_open(r->cache);
}

/* A small cache may have no place for all that was admitted; of a roomy one a flush has said so before. */
int rig_sim_close(struct rig *r)
{
	int rc;

	if (!tn_simdisk_is_off(r->disk)) { /* as the owner thread ends */
		r->cache->stopping = r->cache->offloads.closing = true;
		tn_offload_retry(&r->cache->offloads);
		rig_until(r, tn_core_idle(r->cache));
	}
	r->cache->io = NULL; /* the disk outlives the cache */
	rc = tn_core_close(r->cache);
	tn_cache_free(r->cache);
	r->cache = NULL;
	return rc == -ENOSPC || r->o.faulty || tn_simdisk_is_off(r->disk) ? 0 : rc;
}

void rig_power_off(struct rig *r)
{
	tn_simdisk_power_off_at(r->disk, 1);
	if (r->o.faulty)
		rig_calm(r);
}

void rig_crashed(struct rig *r, enum tn_simdisk_crash mode, uint64_t seed)
{
	int rc = rig_close(r);

	if (rc)
		rig_fail(r, "close: %d: %s", rc, tn_error_last()->text);
	tn_simdisk_crash(r->disk, mode, seed);
	rig_must_open(r);
}

void rig_power_cut(struct rig *r, enum tn_simdisk_crash mode)
{
	rig_power_off(r);
	rig_run(r, RIG_SECOND);
	rig_crashed(r, mode, 1);
}

/* ---- time ------------------------------------------------------------------------------------------------ */

void rig_sim_turn(struct rig *r, uint64_t max_ns)
{
	uint64_t due, now, soon, steps = 0;

	r->turns++;
	while (tn_core_step(r->cache, &due)) {
		if (++steps > 100000)
			rig_fail(r, "the core is busy for ever without anything coming of it");
	}
	now = rig_now(r);
	/* A worker would wake the owner. */
	if (r->exec.posted && r->exec.job_ns)
		due = due < r->exec.next_ns ? due : r->exec.next_ns;
	else if (r->exec.posted || r->exec.ran)
		due = now + RIG_US;
	if (due <= now || tn_core_wait(r->cache, due - now < max_ns ? due - now : max_ns))
		return;
	/* The owner thread would sleep until `due`: there must be nothing to do before, if nobody wakes it. */
	soon = rig_now(r) + 10 * RIG_US;
	if (r->io == tn_simdisk_io(r->disk) && !r->exec.posted && !r->exec.ran && !tn_save_devices_pending(r->cache) && soon < due &&
	    soon < tn_simdisk_next_ns(r->disk) && tn_core_step(r->cache, &due))
		rig_fail(r, "LOST WAKE-UP: there is something to do before the core wants to be called again");
}

void rig_oversleep(struct rig *r, uint64_t ns)
{
	uint64_t end = rig_now(r) + ns;

	while (rig_now(r) < end)
		tn_core_wait(r->cache, end - rig_now(r));
}

/* ---- nothing is lost -------------------------------------------------------------------------------------- */

/* Takes the free entries of a table, and puts them back. */
static uint32_t stack_length(uint64_t *head, const uint32_t *first, size_t entry_bytes)
{
	uint64_t whole = *head;
	uint32_t n = 0;

	while (tn_stack_pop(head, first, entry_bytes))
		n++;
	*head = whole;
	return n;
}

/* Where the tier says that the block's place is, it is. */
static bool has_its_place(const struct tn_tier_base *t, tn_block b)
{
	uint32_t place = tn_tier_place_of(t, b);

	return t->ops->traits.keyed || t->ops->find(t, place) == b;
}

static void check_record(struct rig *r, tn_block b)
{
	struct tn_cache *c = r->cache;
	bool anywhere = false;

	if (tn_block_refs(c->registry, b))
		rig_fail(r, "block %u: %u references are left", b, tn_block_refs(c->registry, b));
	for_each_tier(t, &c->row) {
		enum tn_residency residency = tn_tier_residency(t, b);

		if (residency != TN_PRESENT && residency != TN_ABSENT)
			rig_fail(r, "block %u: residency in tier %s is %d", b, t->ops->name, residency);
		if (residency == TN_PRESENT && !has_its_place(t, b))
			rig_fail(r, "block %u: its place %u in tier %s is not its", b, tn_tier_place_of(t, b), t->ops->name);
		anywhere |= residency == TN_PRESENT;
	}
	if (!anywhere)
		rig_fail(r, "block %u lies nowhere", b);
}

static void check_counts(struct rig *r, const struct tn_tier_base *t)
{
	uint64_t all = 0, of_space[RIG_SPACES] = {0};
	struct tn_cache *c = r->cache;

	for (tn_block b = tn_registry_next(c->registry, TN_BLOCK_NONE); b != TN_BLOCK_NONE; b = tn_registry_next(c->registry, b)) {
		all += tn_tier_has(t, b);
		for (uint32_t s = 0; s < r->o.spaces && tn_tier_has(t, b); s++)
			of_space[s] += tn_block_space(c->registry, b) == r->s[s].space->index;
	}
	if (all != t->blocks || all != t->entries)
		rig_fail(r, "blocks in tier %s: %llu, counted %llu, policy %llu", t->ops->name, (unsigned long long)all,
			 (unsigned long long)t->blocks, (unsigned long long)t->entries);
	for (uint32_t s = 0; s < r->o.spaces; s++)
		if (of_space[s] != t->space_blocks[r->s[s].space->index] || t->space_coming[r->s[s].space->index])
			rig_fail(r, "space %u: %llu blocks in tier %s, counted %llu, %llu coming", s, (unsigned long long)of_space[s],
				 t->ops->name, (unsigned long long)t->space_blocks[r->s[s].space->index],
				 (unsigned long long)t->space_coming[r->s[s].space->index]);
}

static void check_records(struct rig *r)
{
	struct tn_cache *c = r->cache;
	uint32_t resets = 0;

	for (tn_block b = 0; b < c->registry->unused; b++)
		if (tn_block_state(c->registry, b) == TN_BLOCK_COMPLETE)
			resets++;
	if (resets)
		rig_fail(r, "%u records of blocks that were never registered are left", resets);
	for (tn_block b = tn_registry_next(c->registry, TN_BLOCK_NONE); b != TN_BLOCK_NONE; b = tn_registry_next(c->registry, b))
		check_record(r, b);
	for_each_tier(t, &c->row)
		check_counts(r, t);
	if (c->row.durable->blocks != tn_disk_tier_store(c->row.durable)->slots[TN_SLOT_COMMITTED])
		rig_fail(r, "blocks on disk: %llu, store %llu", (unsigned long long)c->row.durable->blocks,
			 (unsigned long long)tn_disk_tier_store(c->row.durable)->slots[TN_SLOT_COMMITTED]);
}

void rig_check_quiet(struct rig *r)
{
	struct tn_cache *c = r->cache;
	uint32_t ops, leases = stack_length(&c->matches->free_leases, &c->matches->leases[0].next, sizeof(c->matches->leases[0]));

	tn_front_reap(c);
	ops = stack_length(&c->front->free_ops, &c->front->ops[0].next_free, sizeof(c->front->ops[0]));
	if (!tn_core_idle(c) || c->blocks.doomed_count)
		rig_fail(r, "not idle: loads %d saves %d flushes %d, %u to be offloaded, %u doomed",
				 !tn_list_empty(&c->loads), !tn_list_empty(&c->saves), !tn_list_empty(&c->offloads.flushes),
				 c->row.queues ? c->row.queues->to[c->row.durable->tier].count : 0, c->blocks.doomed_count);
	if (ops != c->o.max_ops || leases != c->matches->nleases)
		rig_fail(r, "%u of %u operations and %u of %u leases are free", ops, c->o.max_ops, leases,
				 c->matches->nleases);
	if (!tn_transfers_idle(c))
		rig_fail(r, "IOCBs are out");
	if (tn_disk_tier_store(c->row.durable)->slots[TN_SLOT_RESERVED])
		rig_fail(r, "%llu slots stay reserved", (unsigned long long)tn_disk_tier_store(c->row.durable)->slots[TN_SLOT_RESERVED]);
	if (c->row.queues && (tn_slab_at(c->row.memory)->used != c->row.memory->blocks || c->row.queues->dirty_slots))
		rig_fail(r, "%u host slots used for %llu blocks, %u dirty", tn_slab_at(c->row.memory)->used,
				 (unsigned long long)c->row.memory->blocks, c->row.queues->dirty_slots);
	for (uint32_t s = 0; s < r->o.spaces; s++)
		if (r->s[s].space->ops || r->s[s].space->held)
			rig_fail(r, "space %u counts %u operations, %u of callers", s, r->s[s].space->ops, r->s[s].space->held);
	check_records(r);
}
