/* SPDX-License-Identifier: Apache-2.0 */
#include "tier/remote/remote.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/checksum.h"
#include "base/error.h"
#include "tier/remote/client.h"
#include "tier/remote/object.h"

#define BLOCKS 65536u		   /* that the tier knows at most */
#define PREFIX "tenuto"
#define PREFIX_BYTES 64u
#define SPEC_BYTES 512u
#define MOVE_NS 10000000000ull	   /* deadline of a block, and so much later by its size: */
#define NS_PER_BYTE 2000u	   /* 16 at the same time get through a link of 10 MB/s */
#define WRITES 4u		   /* slots that writes may have at once: the others are for look-ups and reads, which somebody waits for */
#define PROBE_NS 2000000000ull	   /* likewise of a look-up's header */
#define POLL_NS 200000ull	   /* between looks at what is under way */
#define FAILURES 3u		   /* in a row, and the store is left alone, ... */
#define BAD 64u			   /* objects that are remembered as damaged */
#define ALONE_NS 5000000000ull	   /* ... for so long */
#define QUIET_NS 60000000000ull	   /* between lines of the log about single failures */

/* A look-up's header, or a block; free if both are NULL. */
struct slot {
	const struct remote *remote;
	struct tn_tier_probe *probe;
	struct tn_tier_move *move;
	uint32_t key; /* of the probe's: that is asked for, or the first of those */
	struct tn_object_find find; /* n: how many are asked for; 0: key alone, by its header */
	unsigned char *buffer;
	uint64_t bytes;
};

/* A block whose object is not it: the next write of it replaces the object. */
struct bad {
	struct tn_key space, key;
};

struct remote {
	struct tn_tier_base base;
	const struct tn_tier_env *env;
	struct tn_object_client *client;
	char prefix[PREFIX_BYTES];
	struct tn_list probes;	      /* all that have not ended; those that were asked for longest ago first */
	struct tn_list reads, writes; /* that wait for slots */
	struct tn_list cancelled;     /* moves that waited and are not wanted any more: they end in the next step */
	struct tn_tier_probe nobody;  /* stands for one that has ended before its last answers */
	struct slot slot[TN_OBJECT_SLOTS];
	uint32_t busy, writing; /* slots; those of writes */
	uint32_t failures;
	struct bad bad[BAD];
	uint32_t nbad; /* that there ever were: the oldest make room */
	uint64_t quiet_ns; /* until when another first failure is no line of the log */
	uint64_t alone_ns; /* until when the store is left alone; 0: it is not */
};

static struct remote *remote_of(struct tn_tier_base *t)
{
	return (struct remote *)t;
}

static const struct remote *remote_at(const struct tn_tier_base *t)
{
	return (const struct remote *)t;
}

/* ---- the store's health ------------------------------------------------------------------------------------------- */

/* write: what has no place to be written to, as a bucket that there is not, is no answer to go on with. */
static void hear(struct remote *r, bool write, int status, uint64_t now_ns)
{
	if (status == 0 || status == -EEXIST || (status == -ENOENT && !write)) {
		if (r->failures >= FAILURES)
			tn_log(r->env->log, TN_LOG_INFO, "remote tier: the store answers again");
		r->failures = 0;
		return;
	}
	if (++r->failures == 1 && now_ns >= r->quiet_ns) {
		tn_log(r->env->log, TN_LOG_WARN, "remote tier: a %s failed (error %d)%s", write ? "write" : "read", -status,
		       write && status == -ENOENT ? ": is there such a bucket?" : "");
		r->quiet_ns = now_ns + QUIET_NS;
	}
	if (r->failures < FAILURES)
		return;
	if (r->failures == FAILURES)
		tn_log(r->env->log, TN_LOG_WARN, "remote tier: %u requests in a row failed (error %d); the store is asked again in %llu s", r->failures, -status,
		       ALONE_NS / 1000000000ull);
	r->alone_ns = now_ns + ALONE_NS;
}

static int health(const struct tn_tier_base *t)
{
	const struct remote *r = remote_at(t);

	return r->alone_ns ? -EHOSTDOWN : r->client->ops->read_only ? -EROFS : 0;
}

/* ---- slots ----------------------------------------------------------------------------------------------------------- */

static struct slot *free_slot(struct remote *r)
{
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		if (!r->slot[i].probe && !r->slot[i].move)
			return &r->slot[i];
	return NULL;
}

static int fit(const struct remote *r, struct slot *s, uint64_t bytes)
{
	if (s->bytes >= bytes)
		return 0;
	tn_put(r->env->alloc, s->buffer, s->bytes);
	s->buffer = tn_get(r->env->alloc, bytes);
	s->bytes = s->buffer ? bytes : 0;
	return s->buffer ? 0 : -ENOMEM;
}

/* The slot's buffer is written, or read, and perhaps data behind it. */
static int begin(struct remote *r, struct slot *s, const struct tn_tier_space *space, const struct tn_key *key, struct tn_object_transfer *t)
{
	char name[TN_OBJECT_NAME_BYTES];

	tn_object_name(r->prefix, space, key, name, sizeof(name));
	t->name = name;
	t->part[0].address = s->buffer;
	return r->client->ops->begin(r->client, (uint32_t)(s - r->slot), t);
}

/* ---- damaged objects ------------------------------------------------------------------------------------------------ */

static struct bad *find_bad(struct remote *r, const struct tn_tier_space *space, const struct tn_key *key)
{
	for (uint32_t i = 0; i < BAD; i++)
		if (tn_key_eq(&r->bad[i].key, key) && tn_key_eq(&r->bad[i].space, &space->id))
			return &r->bad[i];
	return NULL;
}

static void is_bad(struct remote *r, const struct tn_tier_space *space, const struct tn_key *key)
{
	char name[TN_OBJECT_NAME_BYTES];

	if (find_bad(r, space, key))
		return;
	tn_object_name(r->prefix, space, key, name, sizeof(name));
	tn_log(r->env->log, TN_LOG_WARN, "remote tier: object %s is damaged; who saves the block again replaces it", name);
	r->bad[r->nbad++ % BAD] = (struct bad){space->id, *key};
}

/* ---- blocks -------------------------------------------------------------------------------------------------------- */

static void start_move(struct tn_tier_base *t, struct tn_tier_move *move)
{
	struct remote *r = remote_of(t);

	tn_list_push(move->write ? &r->writes : &r->reads, &move->link);
}

/* One that has a slot ends with its request, which the client does not withdraw. */
static void cancel_move(struct tn_tier_base *t, struct tn_tier_move *move)
{
	struct remote *r = remote_of(t);

	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		if (r->slot[i].move == move)
			return;
	tn_list_del(&move->link);
	tn_list_push(&r->cancelled, &move->link);
}

static bool end_cancelled(struct remote *r)
{
	bool any = !tn_list_empty(&r->cancelled);

	while (!tn_list_empty(&r->cancelled)) {
		struct tn_tier_move *m = tn_container_of(tn_list_pop(&r->cancelled), struct tn_tier_move, link);

		m->done(m, -ECANCELED);
	}
	return any;
}

/* Where the block lies in one piece: there its bytes go to, or come from, without a copy. NULL: it is scattered. */
static unsigned char *piece_of(const struct tn_tier_move *m)
{
	return m->mem.layout ? NULL : tn_mapping_address(m->mem.memory, m->mem.flat);
}

/* What is not the block is not there: the core forgets it, and somebody computes it anew. In the block's pages another process could change it. */
static int unpack(const struct remote *r, const struct tn_tier_move *m, const unsigned char *object)
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

static int begin_move(struct remote *r, struct slot *s, uint64_t now_ns)
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
	return begin(r, s, &m->space, &m->key, &t);
}

static int written(struct remote *r, const struct tn_tier_move *m, int status)
{
	struct bad *bad = find_bad(r, &m->space, &m->key);

	if (status == -EEXIST) /* another node was first: the same key is the same block */
		return 0;
	if (status == 0 && bad)
		*bad = (struct bad){{{0, 0}}, {{0, 0}}};
	return status;
}

/* -EIO may be a truncated object, or a store that failed: then a write more than need be does no harm. */
static int unpacked(struct remote *r, const struct tn_tier_move *m, const unsigned char *object, int status)
{
	int rc = status ? status : unpack(r, m, object);

	if (rc == -EIO || (rc && status == 0))
		is_bad(r, &m->space, &m->key);
	return rc;
}

static void end_move(struct remote *r, struct slot *s, int status)
{
	struct tn_tier_move *m = s->move;

	s->move = NULL;
	r->writing -= m->write;
	if (m->write)
		status = written(r, m, status);
	else
		status = unpacked(r, m, s->buffer, status);
	m->done(m, status);
}

/* ---- look-ups --------------------------------------------------------------------------------------------------------- */

static int start_probe(struct tn_tier_base *t, struct tn_tier_probe *probe)
{
	probe->asked = 0;
	probe->found = probe->n;
	tn_list_push(&remote_of(t)->probes, &probe->link);
	return 0;
}

static bool has_keys(const struct tn_tier_probe *p)
{
	return p->asked < p->n && p->found == p->n; /* no gap was found */
}

static void end_probe(struct remote *r, struct tn_tier_probe *p, int status)
{
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		if (r->slot[i].probe == p)
			r->slot[i].probe = &r->nobody; /* what is still to come is behind a gap */
	tn_list_del(&p->link);
	p->done(p, status);
}

/* The answers for all keys before the first that is missing are in. */
static bool is_answered(const struct remote *r, const struct tn_tier_probe *p)
{
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		if (r->slot[i].probe == p && r->slot[i].key < p->found)
			return false;
	return !has_keys(p);
}

/* The next look-up in turn that has a key to ask for; those that nobody waits for any more end here. */
static struct tn_tier_probe *next_probe(struct remote *r)
{
	struct tn_list *pos, *tmp;

	tn_list_for_each_safe(pos, tmp, &r->probes) {
		struct tn_tier_probe *p = tn_container_of(pos, struct tn_tier_probe, link);

		if (p->wanted && !p->wanted(p)) {
			p->found = 0;
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

	tn_object_name(s->remote->prefix, &s->probe->space, &s->probe->keys[s->key + i], name, TN_OBJECT_NAME_BYTES);
}

/* The keys of a look-up that the slot asks for: the next one, or as many as the client takes. */
static void take_keys(const struct remote *r, struct slot *s)
{
	struct tn_tier_probe *p = s->probe;
	uint32_t left = p->n - p->asked, n = left < TN_OBJECT_NAMES ? left : TN_OBJECT_NAMES;

	s->key = p->asked;
	s->find.n = r->client->ops->find ? n : 0;
	p->asked += s->find.n ? s->find.n : 1;
}

static int begin_probe(struct remote *r, struct slot *s, uint64_t now_ns)
{
	struct tn_object_transfer t = {.part = {{NULL, TN_OBJECT_HEAD_BYTES}}, .deadline_ns = now_ns + PROBE_NS};
	int rc;

	if (s->find.n) {
		s->find.name = name_key;
		s->find.deadline_ns = t.deadline_ns;
		return r->client->ops->find(r->client, (uint32_t)(s - r->slot), &s->find);
	}
	rc = fit(r, s, TN_OBJECT_HEAD_BYTES);
	return rc ? rc : begin(r, s, &s->probe->space, &s->probe->keys[s->key], &t);
}

static void answer(struct remote *r, struct slot *s, int status)
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
	if (there == 0 && !s->find.n && (status == 0 || status == -EIO))
		is_bad(r, &p->space, &p->keys[first]);
	if (there < n && first + there < p->found)
		p->found = first + there;
	if (is_answered(r, p))
		end_probe(r, p, 0);
}

/* ---- steps -------------------------------------------------------------------------------------------------------------- */

static void end_slot(struct remote *r, struct slot *s, int status, uint64_t now_ns)
{
	r->busy--;
	hear(r, s->move && s->move->write, status, now_ns);
	if (s->probe)
		answer(r, s, status);
	else
		end_move(r, s, status);
}

static bool poll_slots(struct remote *r, uint64_t now_ns)
{
	bool any = false;

	for (uint32_t i = 0; i < TN_OBJECT_SLOTS && r->busy > 0; i++) {
		struct slot *s = &r->slot[i];
		int status = s->probe || s->move ? r->client->ops->poll(r->client, i) : -EINPROGRESS;

		if (status == -EINPROGRESS)
			continue;
		end_slot(r, s, status, now_ns);
		any = true;
	}
	return any;
}

/* The next block: one to read, else one to write, if writes may have another slot. */
static struct tn_tier_move *next_move(struct remote *r)
{
	struct tn_list *link = tn_list_pop(&r->reads);

	if (!link && r->writing < WRITES) {
		link = tn_list_pop(&r->writes);
		r->writing += link != NULL;
	}
	return link ? tn_container_of(link, struct tn_tier_move, link) : NULL;
}

/* The next key of the next look-up, else the next block; false: there is none, or no slot. */
static bool fill_slot(struct remote *r, uint64_t now_ns)
{
	struct slot *s = free_slot(r);
	int rc;

	if (!s)
		return false;
	s->probe = next_probe(r);
	if (s->probe)
		take_keys(r, s);
	else
		s->move = next_move(r);
	if (!s->probe && !s->move)
		return false;
	r->busy++;
	rc = r->alone_ns ? -EHOSTDOWN : s->probe ? begin_probe(r, s, now_ns) : begin_move(r, s, now_ns);
	if (rc == -EHOSTDOWN) {
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

static bool step(struct tn_tier_base *t, uint64_t now_ns, uint64_t *due_ns)
{
	struct remote *r = remote_of(t);
	bool any = poll_slots(r, now_ns);

	any |= end_cancelled(r);
	if (r->alone_ns && now_ns >= r->alone_ns)
		r->alone_ns = 0;
	while (fill_slot(r, now_ns))
		any = true;
	if (r->busy > 0 && now_ns + POLL_NS < *due_ns)
		*due_ns = now_ns + POLL_NS;
	return any;
}

static uint32_t events(struct tn_tier_base *t, struct tn_tier_event *out, uint32_t max)
{
	return 0;
}

/* ---- places ------------------------------------------------------------------------------------------------------------ */

static int space(struct tn_tier_base *t, const struct tn_shape *shape, uint32_t *cls)
{
	*cls = 0;
	return 0;
}

/* A key is a place. */
static int place(struct tn_tier_base *t, struct tn_place_wait *w, uint32_t want, uint32_t *out)
{
	uint32_t n = want < TN_PLACES_AT_ONCE ? want : TN_PLACES_AT_ONCE;

	int rc = health(t);

	if (rc)
		return tn_fail(rc, "the remote store %s", rc == -EROFS ? "is for reading only" : "does not answer");
	memset(out, 0, n * sizeof(*out));
	return (int)n;
}

static void release(struct tn_tier_base *t, tn_block b, uint32_t at, int status)
{
}

static void fill(struct tn_tier_base *t, tn_block b, uint32_t at, const struct tn_index_entry *entry)
{
}

static void drain(struct tn_tier_base *t, tn_block b, uint32_t at, enum tn_leave how)
{
}

static uint64_t capacity(const struct tn_tier_base *t)
{
	uint32_t records = remote_at(t)->env->max_blocks;

	return records / 2 < BLOCKS ? records / 2 : BLOCKS;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------- */

/* What is under way ends here, while the memory that it is about is there. */
static int close_client(struct tn_tier_base *t)
{
	struct remote *r = remote_of(t);

	if (r->client)
		r->client->ops->destroy(r->client);
	r->client = NULL;
	return 0;
}

static void destroy(struct tn_tier_base *t)
{
	struct remote *r = remote_of(t);
	struct tn_list *link;

	close_client(t);
	while ((link = tn_list_pop(&r->probes))) {
		struct tn_tier_probe *p = tn_container_of(link, struct tn_tier_probe, link);

		p->done(p, -ESHUTDOWN);
	}
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		tn_put(r->env->alloc, r->slot[i].buffer, r->slot[i].bytes);
	if (t->policy)
		t->policy->ops->destroy(t->policy);
	tn_put(r->env->alloc, r, sizeof(*r));
}

static const struct tn_tier_ops ops = {
	.size = sizeof(ops),
	.abi = TN_TIER_ABI,
	.name = "remote",
	.traits = {.reach = TN_REACH_WHOLE, .keyed = true, .offloads = true, .keeps = true},
	.space = space,
	.probe = start_probe,
	.place = place,
	.release = release,
	.fill = fill,
	.drain = drain,
	.capacity = capacity,
	.health = health,
	.move = start_move,
	.cancel = cancel_move,
	.events = events,
	.step = step,
	.close = close_client,
	.destroy = destroy,
};

static int plan(struct tn_tier_env *env, uint64_t *blocks)
{
	if (env->o->remote)
		*blocks += BLOCKS;
	return 0;
}

int tn_remote_tier_create(const struct tn_tier_env *env, struct tn_object_client *client, const char *prefix, struct tn_tier_base **out)
{
	struct tn_policy_opts po = {.capacity = env->max_blocks, .seed = env->o->seed, .alloc = env->alloc};
	struct remote *r = tn_get(env->alloc, sizeof(*r));
	const struct tn_policy_ops *policy;
	int rc;

	if (!r) {
		client->ops->destroy(client);
		return tn_fail(-ENOMEM, "remote tier: no memory");
	}
	r->env = env;
	r->client = client;
	r->base.ops = &ops;
	r->base.tier = TN_TIER_REMOTE;
	for (uint32_t i = 0; i < TN_OBJECT_SLOTS; i++)
		r->slot[i].remote = r;
	snprintf(r->prefix, sizeof(r->prefix), "%s", prefix);
	tn_list_init(&r->probes);
	tn_list_init(&r->reads);
	tn_list_init(&r->writes);
	tn_list_init(&r->cancelled);
	rc = tn_policy_find("lru", &policy);
	rc = rc ? rc : policy->create(&po, &r->base.policy);
	if (rc)
		destroy(&r->base);
	else
		*out = &r->base;
	return rc;
}

/* "BACKEND,...[,prefix=PREFIX]": what is behind the prefix's comma is the backend's, too. Errors name no parameter, as it may be a secret key. */
static int split(const char *remote, char prefix[PREFIX_BYTES], char spec[SPEC_BYTES])
{
	static const char word[] = ",prefix=";
	const char *at = strstr(remote, word), *value = at ? at + sizeof(word) - 1 : PREFIX;
	size_t n = strcspn(value, ",");
	int length, backend = (int)strcspn(remote, ",");

	if (n == 0 || n >= PREFIX_BYTES)
		return tn_fail(-EINVAL, "remote \"%.*s\": the prefix \"%.*s\" has %zu bytes; it may have 1 to %u", backend < 32 ? backend : 32, remote,
			       n < PREFIX_BYTES ? (int)n : (int)PREFIX_BYTES, value, n, PREFIX_BYTES - 1);
	snprintf(prefix, PREFIX_BYTES, "%.*s", (int)n, value);
	length = snprintf(spec, SPEC_BYTES, "%.*s%s", (int)(at ? (size_t)(at - remote) : strlen(remote)), remote, at ? value + n : "");
	return length < (int)SPEC_BYTES ? 0 : tn_fail(-EINVAL, "remote \"%.*s\": its parameters are longer than %u bytes", backend < 32 ? backend : 32, remote, SPEC_BYTES);
}

static int make(const struct tn_tier_env *env, struct tn_tier_base **out)
{
	char prefix[PREFIX_BYTES], spec[SPEC_BYTES];
	struct tn_object_client *client;
	int rc;

	if (!env->o->remote)
		return 0;
	if (!env->o->cluster_secret_file)
		tn_log(env->log, TN_LOG_WARN, "remote tier: without cluster_secret_file it serves this store alone; no other node finds what is saved there");
	rc = split(env->o->remote, prefix, spec);
	rc = rc ? rc : tn_agent_client_create(spec, env->alloc, &client);
	return rc ? rc : tn_remote_tier_create(env, client, prefix, out);
}

const struct tn_tier_maker tn_remote_tier_maker = {.plan = plan, .make = make};
