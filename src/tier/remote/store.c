/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/remote/store.h"

#include <assert.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/allowance.h"
#include "base/checksum.h"
#include "base/error.h"
#include "tier/remote/figures.h"
#include "tier/remote/object.h"

#define MOVE_NS 10000000000ull	   /* deadline of a block, and so much later by its size: */
#define NS_PER_BYTE 2000u	   /* 16 at the same time get through a link of 10 MB/s */
#define WRITES 4u		   /* slots that writes may have at once: the others are for look-ups and reads, which somebody waits for */
#define PROBE_NS 2000000000ull	   /* likewise of a look-up's header */
#define POLL_NS 200000ull	   /* between looks at what is under way */
#define FAILURES 3u		   /* in a row, and the store is left alone, ... */
#define ALONE_NS 5000000000ull	   /* ... for so long */
#define SECOND_NS 1000000000ull
#define DAY_NS (86400 * SECOND_NS)
#define BAD 64u			   /* objects that are remembered as damaged */
#define QUIET_NS 60000000000ull	   /* between lines of the log about single failures */

/* A look-up's header, or a block; free if both are NULL. */
struct slot {
	struct tn_object_store *store;
	struct tn_tier_probe *probe;
	struct tn_tier_move *move;
	uint32_t key; /* of the probe's: that is asked for, or the first of those */
	struct tn_object_find find; /* n: how many are asked for; 0: key alone, by its header */
	unsigned char *buffer;
	uint64_t bytes;
	uint64_t begun_ns, deadline_ns; /* of the request */
	struct tn_job job;		/* of a block that has come: verifies it and copies it to where it belongs */
	bool working;			/* the job is under way */
	int status;			/* its result */
};

/* A block whose object is not it: the next write of it replaces the object. */
struct bad {
	struct tn_key space, key;
};

struct limits {
	struct tn_allowance second, day;
};

struct tn_object_store {
	const struct tn_tier_env *env;
	struct tn_object_store_opts o;
	struct tn_object_store_owner owner;
	struct tn_list probes;	      /* all that have not ended; those that were asked for longest ago first */
	struct tn_list reads, writes; /* that wait for slots */
	struct tn_tier_probe nobody;  /* stands for one that has ended before its last answers */
	struct slot slot[TN_OBJECT_SLOTS];
	uint32_t busy, writing; /* slots; those of writes */
	uint32_t failures;
	struct bad bad[BAD];
	uint32_t nbad;	   /* that there ever were: the oldest make room */
	uint64_t quiet_ns; /* until when another first failure is no line of the log */
	uint64_t alone_ns; /* until when the store is left alone; 0: it is not */
	struct limits limit[2]; /* of reads and of writes */
	struct tn_remote_figures figures;
	uint32_t jobs; /* under way */
	bool closing;
};

/* ---- the store's health ------------------------------------------------------------------------------------------- */

/* write: what has no place to be written to, as a bucket that there is not, is no answer to go on with. */
static void hear(struct tn_object_store *r, bool write, int status, uint64_t now_ns)
{
	if (status == 0 || status == -EEXIST || ((status == -ENOENT || status == -ENODATA) && !write)) {
		if (r->failures >= FAILURES)
			tn_log(r->env->log, TN_LOG_INFO, "remote %s: the store answers again", r->o.name);
		r->failures = 0;
		return;
	}
	if (++r->failures == 1 && now_ns >= r->quiet_ns) {
		tn_log(r->env->log, TN_LOG_WARN, "remote %s: a %s failed (error %d)%s%s", r->o.name, write ? "write" : "read", -status,
		       write && status == -ENOENT ? ": is there such a bucket? " : ": ", tn_error_last()->code == status ? tn_error_last()->text : "");
		r->quiet_ns = now_ns + QUIET_NS;
	}
	if (r->failures < FAILURES)
		return;
	r->figures.counts.pauses += !r->alone_ns;
	if (r->failures == FAILURES)
		tn_log(r->env->log, TN_LOG_WARN, "remote %s: %u requests in a row failed (error %d); the store is asked again in %llu s", r->o.name, r->failures,
		       -status, ALONE_NS / 1000000000ull);
	r->alone_ns = now_ns + ALONE_NS;
}

/* Left alone, or tried by one request, for which no other waits. */
static bool is_down(const struct tn_object_store *r)
{
	return r->alone_ns || (r->failures >= FAILURES && r->busy > 0);
}

static bool is_spent(struct tn_allowance *a, uint64_t now_ns)
{
	return tn_allowance_due(a, now_ns) > now_ns;
}

int tn_object_store_health(struct tn_object_store *r)
{
	if (r->o.client->ops->read_only)
		return -EROFS;
	return is_down(r) ? -EHOSTDOWN : is_spent(&r->limit[true].day, tn_now_ns(r->env->clock)) ? -EDQUOT : 0;
}

static void spend(struct tn_object_store *r, bool write, uint64_t bytes)
{
	tn_allowance_spend(&r->limit[write].second, (int64_t)bytes);
	tn_allowance_spend(&r->limit[write].day, (int64_t)bytes);
}

/* ---- slots ----------------------------------------------------------------------------------------------------------- */

static struct slot *free_slot(struct tn_object_store *r)
{
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		if (!r->slot[i].probe && !r->slot[i].move)
			return &r->slot[i];
	return NULL;
}

static int fit(const struct tn_object_store *r, struct slot *s, uint64_t bytes)
{
	if (s->bytes >= bytes)
		return 0;
	tn_put(r->env->alloc, s->buffer, s->bytes);
	s->buffer = tn_get(r->env->alloc, bytes);
	s->bytes = s->buffer ? bytes : 0;
	return s->buffer ? 0 : -ENOMEM;
}

static enum tn_remote_kind kind_of(const struct slot *s)
{
	return s->probe ? TN_REMOTE_LOOKUP : s->move->write ? TN_REMOTE_WRITE : TN_REMOTE_READ;
}

static void asks(struct tn_object_store *r, struct slot *s, uint64_t now_ns, uint64_t deadline_ns)
{
	tn_remote_asked(&r->figures, kind_of(s));
	s->begun_ns = now_ns;
	s->deadline_ns = deadline_ns;
}

/* The slot's buffer is written, or read, and perhaps data behind it. */
static int begin(struct tn_object_store *r, struct slot *s, const struct tn_tier_space *space, const struct tn_key *key, struct tn_object_transfer *t)
{
	char name[TN_OBJECT_NAME_BYTES];

	tn_object_name(r->o.prefix, space, key, name, sizeof(name));
	t->name = name;
	t->part[0].address = s->buffer;
	return r->o.client->ops->begin(r->o.client, (uint32_t)(s - r->slot), t);
}

/* ---- damaged objects ------------------------------------------------------------------------------------------------ */

static struct bad *find_bad(struct tn_object_store *r, const struct tn_tier_space *space, const struct tn_key *key)
{
	for (uint32_t i = 0; i < BAD; i++)
		if (tn_key_eq(&r->bad[i].key, key) && tn_key_eq(&r->bad[i].space, &space->id))
			return &r->bad[i];
	return NULL;
}

static void is_bad(struct tn_object_store *r, const struct tn_tier_space *space, const struct tn_key *key)
{
	char name[TN_OBJECT_NAME_BYTES];

	r->figures.counts.corrupt_objects++;
	if (find_bad(r, space, key))
		return;
	tn_object_name(r->o.prefix, space, key, name, sizeof(name));
	tn_log(r->env->log, TN_LOG_WARN, "remote %s: object %s is damaged; who saves the block again replaces it", r->o.name, name);
	r->bad[r->nbad++ % BAD] = (struct bad){space->id, *key};
}

/* ---- blocks -------------------------------------------------------------------------------------------------------- */

/* Where the block lies in one piece: there its bytes go to, or come from, without a copy. NULL: it is scattered. */
static unsigned char *piece_of(const struct tn_tier_move *m)
{
	return m->mem.layout ? NULL : tn_mapping_address(m->mem.memory, m->mem.flat);
}

/* What is not the block is not there: the core forgets it, and somebody computes it anew. In the block's pages another process could change it. */
static int unpack(const struct tn_object_store *r, const struct tn_tier_move *m, const unsigned char *object)
{
	const unsigned char *piece = piece_of(m), *data = piece ? piece : object + tn_object_header_bytes(m->shape);
	const struct tn_shape *s = m->shape;
	struct iovec iov[TN_OBJECT_IOVS_MAX];

	if (tn_object_decode(object, m))
		return -ENOENT;
	for (uint32_t l = 0; l < s->layers && r->env->o->verify; l++)
		if (tn_checksum(data + (uint64_t)l * s->padded_bytes, s->object_bytes) != m->checks[l])
			return -ENOENT;
	for (uint32_t l = 0; l < s->layers && !piece; l++)
		tn_span_store(&m->mem, s, l, data + (uint64_t)l * s->padded_bytes, iov);
	return 0;
}

static int begin_move(struct tn_object_store *r, struct slot *s, uint64_t now_ns)
{
	struct tn_tier_move *m = s->move;
	unsigned char *piece = piece_of(m);
	uint64_t header = tn_object_header_bytes(m->shape), data = m->shape->slot_bytes;
	struct tn_object_transfer t = {.write = m->write, .replace = m->write && find_bad(r, &m->space, &m->key), .part = {{NULL, piece ? header : header + data}, {piece, piece ? data : 0}},
				       .deadline_ns = now_ns + MOVE_NS + data * NS_PER_BYTE};
	int rc = fit(r, s, t.part[0].bytes);

	assert(piece || !m->write); /* out of memory's tier, where blocks lie in one piece */
	if (rc)
		return rc;
	if (m->write)
		tn_object_encode(m, s->buffer);
	spend(r, m->write, header + data);
	asks(r, s, now_ns, t.deadline_ns);
	return begin(r, s, &m->space, &m->key, &t);
}

static int written(struct tn_object_store *r, const struct tn_tier_move *m, int status)
{
	struct bad *bad = find_bad(r, &m->space, &m->key);

	if (status == -EEXIST) /* another node was first: the same key is the same block */
		return 0;
	if (status == 0 && bad)
		*bad = (struct bad){{{0, 0}}, {{0, 0}}};
	return status;
}

static void end_move(struct tn_object_store *r, struct slot *s, int status)
{
	struct tn_tier_move *m = s->move;

	s->move = NULL;
	r->writing -= m->write;
	if (m->write)
		status = written(r, m, status);
	r->owner.moved(r->owner.arg, r, m, status);
}

/* Damaged or cut short: what is not the block is not there. */
static void end_damaged(struct tn_object_store *r, struct slot *s)
{
	is_bad(r, &s->move->space, &s->move->key);
	end_move(r, s, -ENOENT);
}

static void run_unpack(struct tn_job *job)
{
	struct slot *s = tn_container_of(job, struct slot, job);

	s->status = unpack(s->store, s->move, s->buffer);
}

static void unpack_done(struct tn_job *job)
{
	struct slot *s = tn_container_of(job, struct slot, job);
	struct tn_object_store *r = s->store;

	s->working = false;
	r->jobs--;
	r->busy--;
	if (r->closing)
		s->move = NULL;
	else if (s->status)
		end_damaged(r, s);
	else
		end_move(r, s, 0);
}

/* The block has come: a worker sees to it, and the slot is busy until then. */
static void start_unpack(struct tn_object_store *r, struct slot *s)
{
	r->busy++;
	r->jobs++;
	s->working = true;
	s->job = (struct tn_job){.bytes = 2 * s->move->shape->slot_bytes, .run = run_unpack, .done = unpack_done};
	if (r->env->exec) {
		r->env->exec->post(r->env->exec, &s->job);
	} else {
		run_unpack(&s->job);
		unpack_done(&s->job);
	}
}

/* ---- look-ups --------------------------------------------------------------------------------------------------------- */

static bool has_keys(const struct tn_tier_probe *p)
{
	return p->asked < p->n && p->found == p->n; /* no gap was found */
}

static void end_probe(struct tn_object_store *r, struct tn_tier_probe *p, int status)
{
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		if (r->slot[i].probe == p)
			r->slot[i].probe = &r->nobody; /* what is still to come is behind a gap */
	tn_list_del(&p->link);
	r->owner.probed(r->owner.arg, r, p, status);
}

/* The answers for all keys before the first that is missing are in. */
static bool is_answered(const struct tn_object_store *r, const struct tn_tier_probe *p)
{
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		if (r->slot[i].probe == p && r->slot[i].key < p->found)
			return false;
	return !has_keys(p);
}

/* That many of the first keys are there, as far as answers are in. */
static uint32_t answered(const struct tn_object_store *r, const struct tn_tier_probe *p)
{
	uint32_t n = p->found < p->asked ? p->found : p->asked;

	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		if (r->slot[i].probe == p && r->slot[i].key < n)
			n = r->slot[i].key;
	return n;
}

/* The next look-up in turn that has a key to ask for; those that nobody waits for any more end here. */
static struct tn_tier_probe *next_probe(struct tn_object_store *r)
{
	struct tn_list *pos, *tmp;

	tn_list_for_each_safe(pos, tmp, &r->probes) {
		struct tn_tier_probe *p = tn_container_of(pos, struct tn_tier_probe, link);

		if (p->wanted && !p->wanted(p)) {
			p->found = answered(r, p);
			end_probe(r, p, -ECANCELED);
		} else if (has_keys(p)) {
			tn_list_del(&p->link);
			tn_list_push(&r->probes, &p->link);
			return p;
		}
	}
	return NULL;
}

static void name_key(const struct tn_object_find *f, uint32_t i, char name[TN_OBJECT_NAME_BYTES])
{
	const struct slot *s = tn_container_of(f, struct slot, find);

	tn_object_name(s->store->o.prefix, &s->probe->space, &s->probe->keys[s->key + i], name, TN_OBJECT_NAME_BYTES);
}

/* The keys of a look-up that the slot asks for: the next one, or as many as the client takes. */
static void take_keys(const struct tn_object_store *r, struct slot *s)
{
	struct tn_tier_probe *p = s->probe;
	uint32_t left = p->n - p->asked, n = left < TN_OBJECT_NAMES ? left : TN_OBJECT_NAMES;

	s->key = p->asked;
	s->find.n = r->o.client->ops->find ? n : 0;
	p->asked += s->find.n ? s->find.n : 1;
}

static int begin_probe(struct tn_object_store *r, struct slot *s, uint64_t now_ns)
{
	struct tn_object_transfer t = {.part = {{NULL, TN_OBJECT_HEAD_BYTES}}, .deadline_ns = now_ns + PROBE_NS};
	int rc;

	asks(r, s, now_ns, t.deadline_ns);
	if (s->find.n) {
		s->find.name = name_key;
		s->find.deadline_ns = t.deadline_ns;
		return r->o.client->ops->find(r->o.client, (uint32_t)(s - r->slot), &s->find);
	}
	rc = fit(r, s, TN_OBJECT_HEAD_BYTES);
	spend(r, false, TN_OBJECT_HEAD_BYTES);
	return rc ? rc : begin(r, s, &s->probe->space, &s->probe->keys[s->key], &t);
}

static void answer(struct tn_object_store *r, struct slot *s, int status)
{
	struct tn_tier_probe *p = s->probe;
	uint32_t first = s->key, n = s->find.n ? s->find.n : 1, there;

	s->probe = NULL;
	if (p == &r->nobody)
		return;
	if (s->find.n)
		there = status ? 0 : s->find.found;
	else
		there = status == 0 && tn_object_check(s->buffer, &p->space, &p->keys[first]) == 0;
	if (there == 0 && !s->find.n && (status == 0 || status == -ENODATA))
		is_bad(r, &p->space, &p->keys[first]);
	r->figures.counts.hit_blocks += there;
	if (there < n && first + there < p->found)
		p->found = first + there;
	if (is_answered(r, p))
		end_probe(r, p, 0);
}

/* ---- steps -------------------------------------------------------------------------------------------------------------- */

static void end_slot(struct tn_object_store *r, struct slot *s, int status, uint64_t now_ns)
{
	bool write = s->move && s->move->write;
	uint64_t bytes = s->move ? tn_object_header_bytes(s->move->shape) + s->move->shape->slot_bytes : 0;

	r->busy--;
	tn_remote_ended(&r->figures, kind_of(s), status, bytes, now_ns - s->begun_ns);
	hear(r, write, status, now_ns);
	if (s->probe)
		answer(r, s, status);
	else if (!write && status == 0)
		start_unpack(r, s);
	else if (!write && status == -ENODATA)
		end_damaged(r, s);
	else
		end_move(r, s, status);
}

static bool poll_slots(struct tn_object_store *r, uint64_t now_ns)
{
	bool any = false;

	for (uint32_t i = 0; i < TN_OBJECT_SLOTS && r->busy > 0; i++) {
		struct slot *s = &r->slot[i];
		int status = (s->probe || s->move) && !s->working ? r->o.client->ops->poll(r->o.client, i) : -EINPROGRESS;

		if (status == -EINPROGRESS)
			continue;
		end_slot(r, s, status, now_ns);
		any = true;
	}
	return any;
}

/* Whether a read, or a write, may begin in this second; else *due_ns is lowered to when. */
static bool may_begin(struct tn_object_store *r, bool write, uint64_t now_ns, uint64_t *due_ns)
{
	uint64_t due = tn_allowance_due(&r->limit[write].second, now_ns);

	if (due > now_ns && due < *due_ns)
		*due_ns = due;
	return due <= now_ns;
}

/* The next block: one to read, else one to write, if writes may have another slot. */
static struct tn_tier_move *next_move(struct tn_object_store *r, uint64_t now_ns, uint64_t *due_ns)
{
	struct tn_list *link = NULL;

	if (!tn_list_empty(&r->reads) && may_begin(r, false, now_ns, due_ns))
		link = tn_list_pop(&r->reads);
	if (!link && r->writing < WRITES && !tn_list_empty(&r->writes) && may_begin(r, true, now_ns, due_ns)) {
		link = tn_list_pop(&r->writes);
		r->writing += link != NULL;
	}
	return link ? tn_container_of(link, struct tn_tier_move, link) : NULL;
}

/* The next key of the next look-up, else the next block; false: there is none, or no slot. */
static bool fill_slot(struct tn_object_store *r, uint64_t now_ns, uint64_t *due_ns)
{
	struct slot *s = free_slot(r);
	int down, rc;

	if (!s)
		return false;
	down = is_down(r) ? -EHOSTDOWN : 0;
	s->probe = next_probe(r);
	if (s->probe)
		take_keys(r, s);
	else
		s->move = next_move(r, now_ns, due_ns);
	if (!s->probe && !s->move)
		return false;
	if (!down && is_spent(&r->limit[s->move && s->move->write].day, now_ns))
		down = -EDQUOT;
	r->busy++;
	r->figures.counts.unasked_requests += down != 0;
	rc = down ? down : s->probe ? begin_probe(r, s, now_ns) : begin_move(r, s, now_ns);
	if (down) {
		r->busy--;
		if (s->probe)
			answer(r, s, rc);
		else
			end_move(r, s, rc);
	} else if (rc) {
		end_slot(r, s, rc, now_ns);
	}
	return true;
}

/* A client that wakes nobody is polled; one that does is asked at its deadlines, too. */
static uint64_t due_of(const struct tn_object_store *r, uint64_t now_ns)
{
	uint64_t due = TN_FOREVER;

	if (r->busy > r->jobs && !r->o.client->ops->wake)
		return now_ns + POLL_NS;
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS && r->busy > r->jobs; i++)
		if ((r->slot[i].probe || r->slot[i].move) && !r->slot[i].working && r->slot[i].deadline_ns < due)
			due = r->slot[i].deadline_ns;
	return due;
}

bool tn_object_store_step(struct tn_object_store *r, uint64_t now_ns, uint64_t *due_ns)
{
	bool any = poll_slots(r, now_ns);
	uint64_t due;

	if (r->alone_ns && now_ns >= r->alone_ns)
		r->alone_ns = 0;
	while (fill_slot(r, now_ns, due_ns))
		any = true;
	due = due_of(r, now_ns);
	if (due < *due_ns)
		*due_ns = due;
	return any;
}

static enum tn_remote_state state_of(struct tn_object_store *r, uint64_t now_ns)
{
	if (r->alone_ns)
		return TN_REMOTE_ALONE;
	if (r->failures >= FAILURES)
		return TN_REMOTE_TRIED;
	return is_spent(&r->limit[false].day, now_ns) || is_spent(&r->limit[true].day, now_ns) ? TN_REMOTE_SPENT : TN_REMOTE_SERVES;
}

void tn_object_store_stats(struct tn_object_store *r, struct tn_remote_stats *stats)
{
	tn_remote_figures_read(&r->figures, stats);
	snprintf(stats->name, sizeof(stats->name), "%s", r->o.name);
	stats->state = state_of(r, tn_now_ns(r->env->clock));
	stats->read_only = r->o.client->ops->read_only;
}

uint64_t tn_object_store_latency(const struct tn_object_store *r)
{
	return r->figures.latency_ns;
}

uint64_t tn_object_store_corrupt(const struct tn_object_store *r)
{
	return r->figures.counts.corrupt_objects;
}

void tn_object_store_probe(struct tn_object_store *r, struct tn_tier_probe *probe)
{
	probe->found = probe->n;
	tn_list_push(&r->probes, &probe->link);
}

void tn_object_store_move(struct tn_object_store *r, struct tn_tier_move *move)
{
	tn_list_push(move->write ? &r->writes : &r->reads, &move->link);
}

bool tn_object_store_moves(const struct tn_object_store *r, const struct tn_tier_move *move)
{
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		if (r->slot[i].move == move)
			return true;
	return false;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------- */

static void wake_owner(void *io)
{
	tn_io_wake(io);
}

int tn_object_store_create(const struct tn_tier_env *env, const struct tn_object_store_opts *opts, const struct tn_object_store_owner *owner,
			   struct tn_object_store **out)
{
	struct tn_object_store *r = tn_get(env->alloc, sizeof(*r));
	uint64_t now = tn_now_ns(env->clock);

	if (!r)
		return tn_fail(-ENOMEM, "remote %s: no memory", opts->name);
	r->env = env;
	r->o = *opts;
	r->owner = *owner;
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		r->slot[i].store = r;
	tn_allowance_init(&r->limit[false].second, opts->read_bytes_per_s, SECOND_NS, now);
	tn_allowance_init(&r->limit[false].day, opts->read_bytes_per_day, DAY_NS, now);
	tn_allowance_init(&r->limit[true].second, opts->write_bytes_per_s, SECOND_NS, now);
	tn_allowance_init(&r->limit[true].day, opts->write_bytes_per_day, DAY_NS, now);
	tn_list_init(&r->probes);
	tn_list_init(&r->reads);
	tn_list_init(&r->writes);
	if (opts->client->ops->wake)
		opts->client->ops->wake(opts->client, wake_owner, env->io);
	*out = r;
	return 0;
}

void tn_object_store_close(struct tn_object_store *r)
{
	r->closing = true;
	while (r->jobs > 0)
		if (!tn_exec_collect(r->env->exec))
			sched_yield();
	if (r->o.client)
		r->o.client->ops->destroy(r->o.client);
	r->o.client = NULL;
}

void tn_object_store_destroy(struct tn_object_store *r)
{
	struct tn_list *link;

	if (!r)
		return;
	tn_object_store_close(r);
	while ((link = tn_list_pop(&r->probes))) {
		struct tn_tier_probe *p = tn_container_of(link, struct tn_tier_probe, link);

		p->done(p, -ESHUTDOWN);
	}
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		tn_put(r->env->alloc, r->slot[i].buffer, r->slot[i].bytes);
	tn_put(r->env->alloc, r, sizeof(*r));
}
