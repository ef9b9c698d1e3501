/* SPDX-License-Identifier: Apache-2.0 */
/* Spaces of objects, the sizes that a model's objects have, and single operations (objects.h). */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "objects_internal.h"

/* Spaces that stay open: the least recently used one goes. */
#define SPACES_MAX 256u
/* How long a wait goes on without looking up. */
#define SLICE_NS UINT64_C(50000000)
/* How often remote tiers are asked for sizes that other nodes have added, and for how many of them at once. */
#define SIZES_ASK_NS UINT64_C(1000000000)
#define SIZES_ASKED 4u
/* How long the end waits for transfers. */
#define LAST_NS UINT64_C(10000000000)
#define NAP_NS 500000
/* Of the spaces here: how keys are made, and the tenant of a salt. Another way of it needs another name. */
#define HASHES "tenuto objects 2"

/* ---- waits ---------------------------------------------------------------------------------------------------------------- */

bool tn_py_objects_stopping(const struct tn_py_objects *o)
{
	return __atomic_load_n(&o->stopping, __ATOMIC_ACQUIRE) || tn_py_objects_gone(o);
}

/* What a call has returned: the owner's end is remembered. */
int tn_py_objects_seen(struct tn_py_objects *o, int rc)
{
	if (rc == -ESHUTDOWN)
		__atomic_store_n(&o->gone, true, __ATOMIC_RELEASE);
	return rc;
}

static void nap(void)
{
	const struct timespec t = {0, NAP_NS};

	nanosleep(&t, NULL);
}

/* Until the bytes are the caller's again. A device that hangs keeps a load for as long as it does; after tn_py_objects_stop it is left behind. */
static int load_end(struct tn_py_objects *o, struct tn_load *load)
{
	int rc;

	do {
		rc = tn_load_end(load, tn_py_now_ns() + SLICE_NS, NULL);
		if (rc == -EBUSY && __atomic_load_n(&o->stopping, __ATOMIC_ACQUIRE)) {
			rc = tn_load_end(load, tn_py_now_ns() + LAST_NS, NULL);
			if (rc == -EBUSY)
				__atomic_store_n(&o->stuck, true, __ATOMIC_RELEASE);
			break;
		}
	} while (rc == -EBUSY);
	return rc;
}

static int save_end(struct tn_py_objects *o, struct tn_save *save)
{
	int rc;

	do {
		rc = tn_py_objects_seen(o, tn_save_end(save, tn_py_now_ns() + SLICE_NS, NULL));
		if (rc == -ETIMEDOUT && __atomic_load_n(&o->stopping, __ATOMIC_ACQUIRE)) {
			rc = tn_save_end(save, tn_py_now_ns() + LAST_NS, NULL);
			if (rc == -ETIMEDOUT)
				__atomic_store_n(&o->stuck, true, __ATOMIC_RELEASE);
			break;
		}
	} while (rc == -ETIMEDOUT);
	return rc;
}

/* ---- one operation -------------------------------------------------------------------------------------------------------- */

/* Return: how many of n blocks came, from the first on; -E2BIG: ask for fewer. */
int tn_py_blocks_load(struct tn_py_objects *o, struct tn_space *s, struct tn_pool *pool, const struct tn_key *keys, const uint32_t *pages, size_t n, uint32_t layers)
{
	struct tn_load_opts opts;
	struct tn_load *load;
	int rc, good;

	tn_load_opts_init(&opts);
	opts.deadline_ns = tn_py_now_ns() + o->opts.load_timeout_ns;
	while ((rc = tn_py_objects_seen(o, tn_load_begin(s, pool, keys, n, pages, &opts, &load))) == -EAGAIN && tn_py_now_ns() < opts.deadline_ns && !tn_py_objects_stopping(o))
		nap();
	if (rc)
		return rc == -E2BIG ? rc : 0;
	do
		good = tn_py_objects_seen(o, tn_load_wait(load, layers - 1, tn_py_now_ns() + SLICE_NS));
	while (good == -ETIMEDOUT && !tn_py_objects_stopping(o));
	/* The prefix does not grow any more, and what came is verified. */
	rc = load_end(o, load);
	return rc || good < 0 ? 0 : good;
}

/* Return: 0 with @outcome, or a negative errno: nothing was stored. */
int tn_py_blocks_save(struct tn_py_objects *o, struct tn_space *s, struct tn_pool *pool, const struct tn_key *keys, const uint32_t *pages, size_t n, uint32_t layers,
		uint8_t *outcome)
{
	uint64_t until = tn_py_now_ns() + o->opts.save_timeout_ns;
	struct tn_save_opts opts;
	struct tn_save *save;
	int rc, ended;

	tn_save_opts_init(&opts);
	opts.outcome = outcome;
	while ((rc = tn_py_objects_seen(o, tn_save_begin(s, pool, keys, n, pages, &opts, &save))) == -EAGAIN && tn_py_now_ns() < until && !tn_py_objects_stopping(o))
		nap();
	if (rc)
		return rc;
	for (uint32_t i = 0; i < layers && rc == 0; i++)
		rc = tn_save_layer(save, i, NULL, 0);
	rc = rc ? rc : tn_save_commit(save);
	if (rc)
		tn_save_abort(save);
	ended = save_end(o, save);
	return rc ? rc : ended;
}

bool tn_py_block_there(struct tn_py_objects *o, struct tn_space *s, const struct tn_key *key, uint64_t *pin)
{
	struct tn_match m = {.size = sizeof(m)};
	bool there = tn_py_objects_seen(o, tn_match(s, key, 1, NULL, &m, pin ? TN_MATCH_PIN : 0)) == 1;

	if (there && pin)
		*pin = m.pin;
	return there;
}

/* Return: as tn_match_all */
static int ask_part(struct tn_py_objects *o, struct tn_space *s, const struct tn_key *keys, size_t n, uint64_t until_ns)
{
	struct tn_match m = {.size = sizeof(m)};
	uint64_t query;
	int rc;

	while ((rc = tn_py_objects_seen(o, tn_match_begin(&s, 1, keys, n, until_ns, 0, &query))) == -EAGAIN && tn_py_now_ns() < until_ns && !tn_py_objects_stopping(o))
		nap();
	if (rc)
		return rc;
	while ((rc = tn_py_objects_seen(o, tn_match_poll(o->cache, query, NULL, &m))) == -EAGAIN && !tn_py_objects_stopping(o))
		nap();
	if (rc == -EAGAIN)
		tn_match_cancel(o->cache, query);
	return rc;
}

void tn_py_blocks_ask(struct tn_py_objects *o, struct tn_space *s, const struct tn_key *keys, size_t n, uint64_t until_ns)
{
	size_t from = 0, part = n;

	while (from < n && !tn_py_objects_stopping(o)) {
		size_t want = n - from < part ? n - from : part;
		int found = ask_part(o, s, keys + from, want, until_ns);

		if (found == -E2BIG && want > 1) {
			part = (want + 1) / 2;
			continue;
		}
		if (found != (int)want)
			return;
		from += want;
	}
}

/* ---- spaces ------------------------------------------------------------------------------------------------------------------ */

/* A slash, and a part in which a slash is none and a percent sign says so. Return: the end. */
static char *put_part(char *at, const char *part)
{
	*at++ = '/';
	for (; *part; part++) {
		if (*part == '/' || *part == '%') {
			memcpy(at, *part == '/' ? "%2F" : "%25", 3);
			at += 3;
		} else {
			*at++ = *part;
		}
	}
	*at = '\0';
	return at;
}

/*
 * The tenant of a space: no other tenant and salt have it. Without a salt it is the tenant as it is, with one "/tenant/salt"; a tenant that begins
 * with a slash is one part: "/%2Ftenant". Return: to be freed; NULL: no memory.
 */
static char *tenant_of(const char *tenant, const char *salt)
{
	char *out, *end;

	if (!*salt && *tenant != '/')
		return strdup(tenant);
	out = malloc(3 * (strlen(tenant) + strlen(salt)) + sizeof("//"));
	if (!out)
		return NULL;
	end = put_part(out, tenant);
	if (*salt)
		put_part(end, salt);
	return out;
}

static int space_open(struct tn_py_objects *o, const char *model, const char *salt, const char *hashes, const struct tn_geometry *g, struct tn_space **out)
{
	char *tenant = tenant_of(o->tenant, salt);
	struct tn_identity id;
	struct tn_shard shard;
	int rc;

	if (!tenant)
		return -ENOMEM;
	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.tenant = tenant;
	id.model = model;
	id.revision = o->revision;
	id.hash_algorithm = hashes;
	rc = tn_py_objects_seen(o, tn_space_open(o->cache, &id, &shard, g, NULL, out));
	free(tenant);
	return rc;
}

static void space_free(struct tn_py_object_space *s)
{
	tn_space_close(s->s);
	free(s->model);
	free(s->salt);
	free(s);
}

/* Under lock. */
static void forget_oldest(struct tn_py_objects *o)
{
	struct tn_py_object_space **oldest = NULL, *s;

	for (struct tn_py_object_space **at = &o->spaces; *at; at = &(*at)->next)
		if ((*at)->users == 0 && (!oldest || (*at)->used < (*oldest)->used))
			oldest = at;
	if (!oldest)
		return;
	s = *oldest;
	*oldest = s->next;
	o->nspaces--;
	space_free(s);
}

static struct tn_py_object_space *space_new(struct tn_py_objects *o, const struct tn_py_item *item, uint64_t bytes)
{
	struct tn_py_object_space *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->model = strdup(item->model);
	s->salt = strdup(item->salt);
	s->bytes = bytes;
	if (s->model && s->salt && tn_py_raw(bytes, &s->geometry) == 0 && space_open(o, s->model, s->salt, HASHES, &s->geometry, &s->s) == 0) {
		s->next = o->spaces;
		o->spaces = s;
		o->nspaces++;
		return s;
	}
	space_free(s);
	return NULL;
}

/* The space of an object of this size; NULL if it cannot be had. Give it back with space_put. */
struct tn_py_object_space *tn_py_space_get(struct tn_py_objects *o, const struct tn_py_item *item, uint64_t bytes)
{
	struct tn_py_object_space *s;

	pthread_mutex_lock(&o->lock);
	for (s = o->spaces; s; s = s->next)
		if (s->bytes == bytes && strcmp(s->model, item->model) == 0 && strcmp(s->salt, item->salt) == 0)
			break;
	if (!s) {
		if (o->nspaces >= SPACES_MAX)
			forget_oldest(o);
		s = space_new(o, item, bytes);
	}
	if (s) {
		s->users++;
		s->used = ++o->uses;
	}
	pthread_mutex_unlock(&o->lock);
	return s;
}

void tn_py_space_put(struct tn_py_objects *o, struct tn_py_object_space *s)
{
	pthread_mutex_lock(&o->lock);
	s->users--;
	pthread_mutex_unlock(&o->lock);
}

void tn_py_object_key(const struct tn_space *s, const char *name, struct tn_key *key)
{
	const uint32_t token = 0;

	memset(key, 0, sizeof(*key));
	tn_keys_from_tokens(s, &token, 1, name, strlen(name), key, 1);
}

/* ---- sizes: under lock --------------------------------------------------------------------------------------------------------- */

static void size_key(const struct tn_py_object_model *m, uint32_t i, struct tn_key *key)
{
	char name[16];

	snprintf(name, sizeof(name), "size %u", i);
	tn_py_object_key(m->s, name, key);
}

static bool has_size(const struct tn_py_object_model *m, uint64_t bytes)
{
	for (uint32_t i = 0; i < m->nsizes; i++)
		if (m->size[i] == bytes)
			return true;
	return false;
}

static void know_size(struct tn_py_object_model *m, uint64_t bytes)
{
	if (bytes && m->nsizes < TN_PY_SIZES_MAX && !has_size(m, bytes))
		m->size[m->nsizes++] = bytes;
}

/* What others have added since, too. */
static void read_sizes(struct tn_py_objects *o, struct tn_py_object_model *m)
{
	struct tn_key key;
	uint32_t page = 0;
	uint64_t bytes, pin = 0;

	while (m->nkept < TN_PY_SIZES_MAX) {
		size_key(m, m->nkept, &key);
		if (!tn_py_block_there(o, m->s, &key, NULL) || !tn_py_block_there(o, m->s, &key, &pin))
			return;
		if (tn_py_blocks_load(o, m->s, o->size_pool, &key, &page, 1, 1) != 1) {
			tn_unpin(m->s, pin);
			return;
		}
		memcpy(&bytes, o->size_page, sizeof(bytes));
		know_size(m, bytes);
		m->pin[m->nkept] = pin;
		m->kept[m->nkept++] = bytes;
	}
}

static bool is_kept(const struct tn_py_object_model *m, uint64_t bytes)
{
	for (uint32_t i = 0; i < m->nkept; i++)
		if (m->kept[i] == bytes)
			return true;
	return false;
}

/* Another process may add one at the same time: then its is read, and ours comes behind it. */
static void keep_size(struct tn_py_objects *o, struct tn_py_object_model *m, uint64_t bytes)
{
	struct tn_key key;
	uint32_t page = 0;
	uint8_t outcome;

	know_size(m, bytes);
	for (int tries = 0; tries < 4 && !is_kept(m, bytes) && m->nkept < TN_PY_SIZES_MAX && !tn_py_objects_stopping(o); tries++) {
		read_sizes(o, m);
		if (is_kept(m, bytes))
			return;
		memset(o->size_page, 0, TN_PY_SIZE_BYTES);
		memcpy(o->size_page, &bytes, sizeof(bytes));
		size_key(m, m->nkept, &key);
		if (tn_py_blocks_save(o, m->s, o->size_pool, &key, &page, 1, 1, &outcome))
			return;
		read_sizes(o, m);
	}
}

static struct tn_py_object_model *model_get(struct tn_py_objects *o, const char *name)
{
	struct tn_py_object_model *m;

	for (m = o->models; m; m = m->next)
		if (strcmp(m->name, name) == 0)
			return m;
	m = calloc(1, sizeof(*m));
	if (!m)
		return NULL;
	m->name = strdup(name);
	if (!m->name || space_open(o, name, "", HASHES " sizes", &o->size_geometry, &m->s)) {
		free(m->name);
		free(m);
		return NULL;
	}
	m->next = o->models;
	o->models = m;
	return m;
}

uint32_t tn_py_sizes(struct tn_py_objects *o, const char *name, uint64_t *sizes)
{
	struct tn_py_object_model *m;
	uint32_t n = 0;

	pthread_mutex_lock(&o->lock);
	m = model_get(o, name);
	if (m) {
		read_sizes(o, m);
		n = m->nsizes;
		memcpy(sizes, m->size, n * sizeof(*sizes));
	}
	pthread_mutex_unlock(&o->lock);
	return n;
}

uint32_t tn_py_sizes_ask(struct tn_py_objects *o, const char *name, uint64_t *sizes, uint64_t until_ns)
{
	struct tn_py_object_model *m;
	struct tn_key keys[SIZES_ASKED];
	struct tn_space *s = NULL;

	pthread_mutex_lock(&o->lock);
	m = model_get(o, name);
	if (m && tn_py_now_ns() >= m->ask_ns) {
		m->ask_ns = tn_py_now_ns() + SIZES_ASK_NS;
		s = m->s;
		for (uint32_t i = 0; i < SIZES_ASKED; i++)
			size_key(m, m->nkept + i, &keys[i]);
	}
	pthread_mutex_unlock(&o->lock); /* models stay until all threads have ended */
	if (s)
		tn_py_blocks_ask(o, s, keys, SIZES_ASKED, until_ns);
	return tn_py_sizes(o, name, sizes);
}

void tn_py_size_add(struct tn_py_objects *o, const char *name, uint64_t bytes)
{
	struct tn_py_object_model *m;

	pthread_mutex_lock(&o->lock);
	m = model_get(o, name);
	if (m && !is_kept(m, bytes))
		keep_size(o, m, bytes);
	pthread_mutex_unlock(&o->lock);
}

/* ---- the end ------------------------------------------------------------ */

static void model_free(struct tn_py_object_model *m)
{
	for (uint32_t i = 0; i < m->nkept; i++)
		tn_unpin(m->s, m->pin[i]);
	tn_space_close(m->s);
	free(m->name);
	free(m);
}

void tn_py_spaces_close(struct tn_py_objects *o)
{
	while (o->spaces) {
		struct tn_py_object_space *s = o->spaces;

		o->spaces = s->next;
		space_free(s);
	}
	while (o->models) {
		struct tn_py_object_model *m = o->models;

		o->models = m->next;
		model_free(m);
	}
}
