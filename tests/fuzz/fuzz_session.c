/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzz target of what an attached process can do to its owner: calls, commands and their rings, any word of the region, messages on the socket,
 * greetings, pages that go away. The input is a list of such deeds of one session, which begins in good order: it has a space, a memory
 * and a pool. The cache is simulated and everything runs on one thread, so an input does the same each time, but for what earlier
 * ones have left in the cache.
 *
 * Whatever the bytes, the session ends, nothing of it is left, and the owner's own blocks are as they were.
 *
 * What threads and processes make of the same is session_hostile_test.c.
 */
#include <assert.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "front/cache_rig.h"
#include "front/serve.h"

#define DEEDS_MAX 96u
#define NAPS_MAX 64u	   /* after so many, whatever waits for the core is over with the session */
#define RIG_LIFE 512u	   /* inputs that one cache gets */
#define MEMORY_BYTES (1u << 20)
#define PAGES 16u
#define KEYS 8u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int __real_nanosleep(const struct timespec *t, struct timespec *left);
int __wrap_nanosleep(const struct timespec *t, struct timespec *left);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *arg), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *arg), void *arg);

static struct rig *rig;
static struct tn_served *served; /* the session that is under way; NULL: none */
static uint32_t naps;

static const char *const tenants[] = {"some"};

/* A thread of the owner's that waits for the core: this one is the core, too. */
int __wrap_nanosleep(const struct timespec *t, struct timespec *left)
{
	if (!served)
		return __real_nanosleep(t, left);
	rig_turn(rig, RIG_MS);
	if (++naps > NAPS_MAX)
		served->over = 1;
	return 0;
}

/* A call with a thread of its own is done at once. */
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *arg), void *arg)
{
	if (!served)
		return __real_pthread_create(thread, attr, run, arg);
	run(arg);
	return 0;
}

/* ---- the input ---------------------------------------------------------------------------------------------------- */

struct input {
	const uint8_t *at, *end;
};

/* Zeros behind the end. */
static uint64_t take(struct input *in, uint32_t bytes)
{
	uint64_t v = 0;
	size_t n = (size_t)(in->end - in->at) < bytes ? (size_t)(in->end - in->at) : bytes;

	memcpy(&v, in->at, n);
	in->at += n;
	return v;
}

/* Some bytes of what is right are the input's. */
static void overlay(struct input *in, void *p, size_t bytes)
{
	for (uint64_t n = take(in, 1) % 8; n > 0; n--) {
		size_t at = take(in, 2) % bytes, most = 1 + take(in, 1) % 8;
		uint64_t v = take(in, 8);

		memcpy((unsigned char *)p + at, &v, most < bytes - at ? most : bytes - at);
	}
}

/* ---- what the session has ------------------------------------------------------------------------------------------ */

struct attacker {
	struct tn_served *s;
	const struct tn_region *region;
	uint32_t space, pool;
	uint64_t generation[TN_REGION_OPS_MAX];
	int file, region_file;
	struct input in;
};

/* Asks in a place what lies there, and has it answered. */
static void ask(struct attacker *a, uint32_t place, uint32_t kind, uint32_t bytes)
{
	tn_call_ask(a->region, place, kind, bytes);
	tn_served_answer(a->s);
}

static uint32_t put_space(const struct attacker *a, unsigned char *to)
{
	struct tn_wire_space w = {.shard = {.size = sizeof(w.shard), .tp_size = 1, .pp_size = 1}};
	struct tn_geometry g = rig_geometry(rig);

	w.length[0] = 4; /* tenant, model */
	w.length[1] = 4;
	memcpy(w.strings, "sometest", 8);
	tn_quota_init(&w.quota);
	assert(tn_geometry_store(&g, w.geometry, sizeof(w.geometry)) >= 0);
	memcpy(to, &w, sizeof(w));
	return sizeof(w);
}

static uint32_t put_match(const struct attacker *a, unsigned char *to)
{
	struct tn_wire_match w = {.nspaces = 1, .n = KEYS, .flags = TN_MATCH_PIN, .space = {a->space}};

	memcpy(to, &w, sizeof(w));
	rig_keys(1, KEYS, (struct tn_key *)(void *)(to + sizeof(w)));
	return sizeof(w) + KEYS * sizeof(struct tn_key);
}

static uint32_t put_pool(const struct attacker *a, unsigned char *to)
{
	struct tn_geometry g = rig_geometry(rig);
	struct tn_wire_pool w = {.memory = 0, .nbases = g.layers * g.nplanes, .npages = PAGES};
	uint64_t base[TN_PLANES_MAX * 8], at = 0;

	for (uint32_t i = 0; i < w.nbases; i++) {
		w.stride[i % g.nplanes] = tn_geometry_page_bytes(&g, i % g.nplanes);
		base[i] = at;
		at += PAGES * w.stride[i % g.nplanes];
	}
	assert(at <= MEMORY_BYTES && tn_geometry_store(&g, w.geometry, sizeof(w.geometry)) >= 0);
	memcpy(to, &w, sizeof(w));
	memcpy(to + sizeof(w), base, w.nbases * sizeof(*base));
	return sizeof(w) + w.nbases * (uint32_t)sizeof(*base);
}

/* What a call of the kind asks in good order. Returns its bytes. */
static uint32_t put_call(const struct attacker *a, uint32_t kind, unsigned char *to)
{
	struct tn_wire_about about = {.number = a->space, .n = KEYS, .pin = UINT64_C(1) << 32 | 1};
	struct tn_wire_plan plan = {.space = a->space, .input_tokens = 1000, .match = {.size = sizeof(plan.match), .blocks = KEYS}};
	struct tn_wire_events events = {.max = 64, .at = TN_BLOCK_NONE};
	struct tn_wire_slack slack = {.space = a->space};

	switch (kind) {
	case TN_WIRE_SPACE_OPEN:
		return put_space(a, to);
	case TN_WIRE_MATCH:
	case TN_WIRE_QUERY:
		return put_match(a, to);
	case TN_WIRE_POOL_CREATE:
		return put_pool(a, to);
	case TN_WIRE_PLAN:
		memcpy(to, &plan, sizeof(plan));
		return sizeof(plan);
	case TN_WIRE_EVENTS:
	case TN_WIRE_SNAPSHOT:
		memcpy(to, &events, sizeof(events));
		return sizeof(events);
	case TN_WIRE_SLACK_SET:
	case TN_WIRE_SLACK_GET:
		memcpy(to, &slack, sizeof(slack));
		return sizeof(slack) + (kind == TN_WIRE_SLACK_SET ? 256 : 0);
	case TN_WIRE_POOL_DESTROY:
		about.number = a->pool;
		break;
	default:
		break;
	}
	memcpy(to, &about, sizeof(about));
	rig_keys(1, KEYS, (struct tn_key *)(void *)(to + sizeof(about)));
	return sizeof(about) + KEYS * sizeof(struct tn_key);
}

/* ---- deeds --------------------------------------------------------------------------------------------------------- */

static void call(struct attacker *a)
{
	uint32_t place = (uint32_t)take(&a->in, 1) % TN_WIRE_CALLS, kind = (uint32_t)take(&a->in, 1) % (TN_WIRE_SLACK_GET + 2);
	unsigned char *to = tn_call_asked_bytes(a->region, place);
	uint32_t bytes = put_call(a, kind, to);

	overlay(&a->in, to, bytes);
	ask(a, place, kind, bytes + (uint32_t)(int8_t)take(&a->in, 1));
}

static void change_word(struct attacker *a)
{
	uint32_t table = (uint32_t)take(&a->in, 1) % (TN_REGION_TABLES + 1);
	uint64_t from = table < TN_REGION_TABLES ? a->region->at[table] : 0, words = (a->region->bytes - from) / 8;
	uint64_t *word = (uint64_t *)(void *)(a->region->base + from) + take(&a->in, 2) % words, v = take(&a->in, 8);

	switch (take(&a->in, 1) % 4) {
	case 0:
		*word = v;
		break;
	case 1:
		*word += v % 16;
		break;
	case 2:
		*word -= v % 16;
		break;
	default:
		*word ^= UINT64_C(1) << v % 64;
	}
}

/* A load, a save or a prefetch; what it gives and when it commits is the input's. */
static void command(struct attacker *a)
{
	uint32_t op = (uint32_t)take(&a->in, 1) % a->region->counts.ops, blocks = 1 + (uint32_t)take(&a->in, 1) % 4;
	const struct tn_geometry g = rig_geometry(rig);
	struct tn_face_asked *asked = tn_face_asked(a->region, op);
	struct tn_doorbell bell = tn_region_kicks(a->region);

	rig_keys(1 + take(&a->in, 1), blocks, tn_face_keys(a->region, op));
	for (uint32_t i = 0; i < blocks * g.pages_per_block; i++)
		tn_face_pages(a->region, op)[i] = i % PAGES;
	for (uint32_t i = 0; i < g.layers; i++)
		tn_face_given(a->region, op)[i] = (struct tn_face_given){0, TN_EVENT_NONE, take(&a->in, 1) % 8 > 0};
	asked->cancel = take(&a->in, 1) % 8 == 1;
	asked->commit = take(&a->in, 1) % 8 != 1;
	asked->command = (struct tn_command){.kind = 1 + (uint32_t)take(&a->in, 1) % 3, .space = a->space, .pool = a->pool, .blocks = blocks,
					     .end_page = (uint64_t)blocks * g.pages_per_block, .deadline_ns = TN_FOREVER};
	asked->command.generation = ++a->generation[op];
	overlay(&a->in, &asked->command, sizeof(asked->command));
	overlay(&a->in, tn_face_pages(a->region, op), blocks * g.pages_per_block * sizeof(uint32_t));
	tn_doorbell_ring(&bell, op);
}

static void message(struct attacker *a)
{
	struct tn_wire_memory w = {.magic = TN_WIRE_MAGIC, .nranges = 1, .range = {{0, MEMORY_BYTES}}};
	int fds[TN_WIRE_RANGES_MAX];
	uint32_t n;

	overlay(&a->in, &w, sizeof(w));
	n = take(&a->in, 1) % 4 ? w.nranges : (uint32_t)take(&a->in, 1);
	n = n < TN_WIRE_RANGES_MAX ? n : TN_WIRE_RANGES_MAX;
	for (uint32_t i = 0; i < n; i++)
		fds[i] = a->file;
	tn_served_message(a->s, &w, take(&a->in, 1) ? sizeof(w) : take(&a->in, 2) % sizeof(w), fds, n);
}

static void greet(struct attacker *a)
{
	struct tn_wire_hello h = {.magic = TN_WIRE_MAGIC, .page_bytes = (uint32_t)sysconf(_SC_PAGESIZE), .command_bytes = sizeof(struct tn_command),
				  .token = "token"};

	snprintf(h.version, sizeof(h.version), "%s", tn_version());
	overlay(&a->in, &h, sizeof(h));
	if (take(&a->in, 1) % 4 == 0)
		memset(h.token, (int)take(&a->in, 1), sizeof(h.token));
	if (tn_served_check_hello(&h, take(&a->in, 1) ? sizeof(h) : take(&a->in, 1)) == 0)
		tn_rules_find(a->s->rules, geteuid(), h.token);
}

/* Pages of its memory, or of its region, go away under the owner. */
static void punch(struct attacker *a)
{
	off_t at = (off_t)take(&a->in, 2) * 4096;
	uint64_t how = take(&a->in, 1) % 4;

	if (how == 0)
		(void)!ftruncate(a->file, at % MEMORY_BYTES);
	else if (how == 1)
		(void)!fallocate(a->region_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at % (off_t)a->region->bytes, 4096);
	else
		(void)!fallocate(a->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at % MEMORY_BYTES, 4096);
}

static void act(struct attacker *a)
{
	switch (take(&a->in, 1) % 10) {
	case 0:
	case 1:
	case 2:
		call(a);
		break;
	case 3:
		change_word(a);
		break;
	case 4:
	case 5:
		command(a);
		break;
	case 6:
		message(a);
		break;
	case 7:
		greet(a);
		break;
	case 8:
		punch(a);
		break;
	default:
		for (uint64_t n = take(&a->in, 1) % 8; n > 0; n--)
			rig_turn(rig, RIG_MS);
	}
}

/* ---- a session ------------------------------------------------------------------------------------------------------ */

static void open_rig(void)
{
	struct rig_opts o = rig_simulated_opts();

	setenv("CMOCKA_TEST_ABORT", "1", 1);
	o.cache.host_bytes = 1u << 20;
	rig = rig_start(&o);
	rig_save(rig->s, 1, KEYS, 0);
}

/* The owner's process has rules for a tenant, and for all. */
static void begin(struct attacker *a, bool whole)
{
	const char token[TN_SERVE_TOKEN_BYTES] = "token", none[TN_SERVE_TOKEN_BYTES] = "";
	struct tn_serve_rule rules[2];
	struct tn_serve_opts o;

	for (uint32_t i = 0; i < 2; i++) {
		tn_serve_rule_init(&rules[i]);
		rules[i].uid = geteuid();
	}
	rules[0].token = token;
	rules[0].tenants = tenants;
	rules[0].ntenants = 1;
	tn_serve_opts_init(&o);
	o.rules = rules;
	o.nrules = 2;
	a->s = tn_get(rig->cache->alloc, sizeof(*a->s));
	assert(a->s);
	a->s->cache = rig->cache;
	a->s->uid = geteuid();
	a->s->pid = getpid();
	a->s->sock = a->s->process = a->s->news = -1;
	pthread_mutex_init(&a->s->lock, NULL);
	assert(tn_rules_create(&o, rig->cache->alloc, &a->s->rules) == 0);
	a->s->rule = tn_rules_find(a->s->rules, geteuid(), whole ? none : token);
	assert(a->s->rule && tn_served_begin(a->s, &a->region_file) == 0);
	a->region = &a->s->region;
}

/* As a front that keeps the rules begins. */
static void set_up(struct attacker *a)
{
	struct tn_wire_memory w = {.magic = TN_WIRE_MAGIC, .nranges = 1, .range = {{0, MEMORY_BYTES}}};
	struct tn_wire_space_told told;

	ask(a, 0, TN_WIRE_SPACE_OPEN, put_space(a, tn_call_asked_bytes(a->region, 0)));
	assert(tn_call_told(a->region, 0)->status == 0);
	memcpy(&told, tn_call_told_bytes(a->region, 0), sizeof(told));
	a->space = told.number;
	tn_served_message(a->s, &w, sizeof(w), &a->file, 1);
	ask(a, 0, TN_WIRE_POOL_CREATE, put_pool(a, tn_call_asked_bytes(a->region, 0)));
	assert(tn_call_told(a->region, 0)->status == 0);
	memcpy(&a->pool, tn_call_told_bytes(a->region, 0), sizeof(a->pool));
}

static void end(struct attacker *a, uint32_t memories)
{
	a->s->over = 1;
	tn_served_leave(a->s);
	served = NULL;
	assert(a->s->nspaces == 0 && a->s->nopening == 0 && a->s->holder.leases.taken == 0 && a->s->holder.queries.taken == 0);
	tn_served_destroy(a->s);
	assert(rig->cache->nmemories == memories && rig->cache->matches->common_leases.taken == 0);
	for (uint32_t i = TN_POOLS_OWN; i < TN_POOLS_OWN + TN_SERVED_POOLS; i++)
		assert(!rig->cache->pools[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct attacker a;
	static uint32_t inputs;
	uint32_t memories;

	if (inputs++ % RIG_LIFE == 0) {
		if (rig) {
			assert(rig_load(rig->s, 1, KEYS) >= 0); /* checks the bytes of what is there */
			rig_tear_down(rig);
		}
		open_rig();
	}
	a = (struct attacker){.in = {data, data + size}, .file = memfd_create("attacker", MFD_CLOEXEC)};
	assert(a.file >= 0 && ftruncate(a.file, MEMORY_BYTES) == 0);
	memories = rig->cache->nmemories;
	naps = 0;
	begin(&a, take(&a.in, 1) % 2);
	served = a.s;
	set_up(&a);
	for (uint32_t n = 0; n < DEEDS_MAX && a.in.at < a.in.end && !a.s->over; n++)
		act(&a);
	end(&a, memories);
	close(a.region_file);
	close(a.file);
	return 0;
}
