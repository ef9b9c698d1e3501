/* SPDX-License-Identifier: Apache-2.0 */
/* Objects as blocks of a cache (objects.h): their texts, and operations on many of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "objects_internal.h"

/* Objects of one space, in one pool. */
struct batch {
	struct tn_py_objects *o;
	struct tn_py_object_space *space;
	struct tn_pool *pool;
	struct tn_py_item **item;
	struct tn_key *key;
	uint32_t *page;
	uint8_t *outcome;
	size_t n;
	char *stage;
	uint64_t stage_stride;
	int error;
};

/* ---- texts ---------------------------------------------------------------------------------------------------------------- */

int tn_py_item_name(struct tn_py_item *item, const char *text)
{
	char *copy = strdup(text), *at, *rank, *hash = NULL, *salt = NULL;

	*item = (struct tn_py_item){.salt = ""};
	if (!copy)
		return -ENOMEM;
	rank = strchr(copy, '@');
	at = rank ? strchr(rank + 1, '@') : NULL;
	hash = at ? strchr(at + 1, '@') : NULL;
	if (!hash || rank == copy || at == rank + 1 || hash == at + 1 || hash[1] == '\0' || hash[1] == '@') {
		free(copy);
		return 0;
	}
	*rank = '\0';
	salt = strchr(hash + 1, '@');
	if (salt) {
		*salt = '\0';
		item->salt = salt + 1;
	}
	item->model = copy;
	item->name = rank + 1;
	return 0;
}

/* ---- batches ---------------------------------------------------------------------------------------------------------------- */

static int batch_init(struct batch *b, struct tn_py_objects *o, size_t n)
{
	*b = (struct batch){.o = o};
	b->item = calloc(n, sizeof(struct tn_py_item *));
	b->key = calloc(n, sizeof(*b->key));
	b->page = calloc(n, sizeof(*b->page));
	b->outcome = calloc(n, 1);
	return b->item && b->key && b->page && b->outcome ? 0 : -ENOMEM;
}

static void batch_free(struct batch *b)
{
	free(b->item);
	free(b->key);
	free(b->page);
	free(b->outcome);
}

static bool alike(const struct tn_py_item *a, const struct tn_py_item *b)
{
	return strcmp(a->model, b->model) == 0 && strcmp(a->salt, b->salt) == 0;
}

static void batch_add(struct batch *b, struct tn_py_item *item, uint32_t page)
{
	b->item[b->n] = item;
	b->page[b->n] = page;
	tn_py_object_key(b->space->s, item->name, &b->key[b->n++]);
}

/* The next objects that are of one space and pool; their pool is NULL if they must be staged. Return: whether there were any. */
static bool batch_next(struct batch *b, struct tn_py_item *items, size_t n)
{
	struct tn_py_item *first = NULL;
	struct tn_py_place place;

	b->n = 0;
	b->space = NULL;
	for (size_t i = 0; i < n; i++) {
		if (items[i].done || (first && (!alike(first, &items[i]) || first->bytes != items[i].bytes)))
			continue;
		if (!first) {
			items[i].done = true;
			b->space = items[i].bytes ? tn_py_space_get(b->o, &items[i], items[i].bytes) : NULL;
			if (!b->space) {
				b->error = b->error ? b->error : -EINVAL;
				continue;
			}
			first = &items[i];
		}
		place = tn_py_place(b->o->places, &b->space->geometry, items[i].data);
		if (first == &items[i])
			b->pool = place.pool;
		if (place.pool != b->pool)
			continue;
		items[i].done = true;
		batch_add(b, &items[i], place.page);
	}
	return first != NULL;
}

static void batch_done(struct batch *b)
{
	tn_py_space_put(b->o, b->space);
}

/* Memory of ours in place of the objects' own. Return: pages of it, 0 if there is none. */
static size_t stage_in(struct batch *b)
{
	uint64_t bytes = 0;

	b->pool = tn_py_stage(b->o->places, &b->space->geometry, &b->stage, &bytes);
	b->stage_stride = (b->space->bytes + 4095) / 4096 * 4096;
	return b->pool ? bytes / b->stage_stride : 0;
}

/* ---- loads -------------------------------------------------------------------------------------------------------------------- */

/* Objects from..from + n, of which each is there or was a moment ago: one that fails does not cost those behind it. */
static void load_part(struct batch *b, size_t from, size_t n)
{
	size_t end = from + n, part = n;
	int good;

	while (from < end && !tn_py_objects_stopping(b->o)) {
		size_t want = end - from < part ? end - from : part;

		good = tn_py_blocks_load(b->o, b->space->s, b->pool, b->key + from, b->page + from, want, b->space->geometry.layers);
		if (good == -E2BIG && want > 1) {
			part = (want + 1) / 2;
			continue;
		}
		for (int i = 0; i < good; i++)
			b->item[from + (size_t)i]->good = true;
		from += good == (int)want ? want : (size_t)(good > 0 ? good : 0) + 1;
	}
}

static void load_staged(struct batch *b)
{
	size_t pages = stage_in(b), k;

	if (!pages)
		return;
	for (size_t at = 0; at < b->n; at += k) {
		k = b->n - at < pages ? b->n - at : pages;
		for (size_t i = 0; i < k; i++)
			b->page[at + i] = (uint32_t)i;
		load_part(b, at, k);
		for (size_t i = 0; i < k; i++)
			if (b->item[at + i]->good)
				memcpy(b->item[at + i]->data, b->stage + i * b->stage_stride, b->space->bytes);
	}
	tn_py_unstage(b->o->places);
}

/* Only what is there goes on: a miss in the midst of a load would end it. */
static void keep_present(struct batch *b)
{
	size_t kept = 0;

	for (size_t i = 0; i < b->n; i++)
		if (tn_py_block_there(b->o, b->space->s, &b->key[i], NULL)) {
			b->item[kept] = b->item[i];
			b->key[kept] = b->key[i];
			b->page[kept++] = b->page[i];
		}
	b->n = kept;
}

/* Texts that are no keys are of no operation. */
static void begin(struct tn_py_item *items, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		items[i].good = false;
		items[i].done = !items[i].model;
	}
}

void tn_py_objects_load(struct tn_py_objects *o, struct tn_py_item *items, size_t n)
{
	struct batch b;

	begin(items, n);
	if (batch_init(&b, o, n) == 0)
		while (!tn_py_objects_stopping(o) && batch_next(&b, items, n)) {
			keep_present(&b);
			if (b.n && b.pool)
				load_part(&b, 0, b.n);
			else if (b.n)
				load_staged(&b);
			batch_done(&b);
		}
	batch_free(&b);
}

/* ---- saves --------------------------------------------------------------------------------------------------------------------- */

static void save_part(struct batch *b, size_t from, size_t n)
{
	size_t end = from + n, part = n;
	int rc;

	while (from < end && !tn_py_objects_stopping(b->o)) {
		size_t want = end - from < part ? end - from : part;

		rc = tn_py_blocks_save(b->o, b->space->s, b->pool, b->key + from, b->page + from, want, b->space->geometry.layers, b->outcome + from);
		if (rc == -E2BIG && want > 1) {
			part = (want + 1) / 2;
			continue;
		}
		for (size_t i = from; i < from + want; i++) {
			uint8_t became = b->outcome[i];

			b->item[i]->good = rc == 0 && (became == TN_SAVED_STORED || became == TN_SAVED_EXISTING || became == TN_SAVED_HOST_ONLY);
			if (!b->item[i]->good && !b->error)
				b->error = rc ? rc : -ENOSPC;
		}
		from += want;
	}
}

static void save_staged(struct batch *b)
{
	size_t pages = stage_in(b), k;

	if (!pages) {
		b->error = b->error ? b->error : -ENOMEM;
		return;
	}
	for (size_t at = 0; at < b->n; at += k) {
		k = b->n - at < pages ? b->n - at : pages;
		for (size_t i = 0; i < k; i++) {
			b->page[at + i] = (uint32_t)i;
			memcpy(b->stage + i * b->stage_stride, b->item[at + i]->data, b->space->bytes);
		}
		save_part(b, at, k);
	}
	tn_py_unstage(b->o->places);
}

int tn_py_objects_save(struct tn_py_objects *o, struct tn_py_item *items, size_t n)
{
	struct batch b;
	int rc = 0;

	begin(items, n);
	for (size_t i = 0; i < n; i++)
		rc = items[i].model ? rc : -EINVAL;
	if (batch_init(&b, o, n) == 0)
		while (!tn_py_objects_stopping(o) && batch_next(&b, items, n)) {
			tn_py_size_add(o, b.item[0]->model, b.space->bytes);
			if (b.pool)
				save_part(&b, 0, b.n);
			else
				save_staged(&b);
			batch_done(&b);
		}
	else
		rc = -ENOMEM;
	rc = rc ? rc : b.error;
	batch_free(&b);
	return rc || !tn_py_objects_stopping(o) ? rc : -ESHUTDOWN;
}

/* ---- look-ups and drops ---------------------------------------------------------------------------------------------------- */

/* For each object and each size that its model's objects have. */
static void each_size(struct tn_py_objects *o, struct tn_py_item *items, size_t n, void (*fn)(struct tn_py_objects *, struct tn_py_object_space *, struct tn_py_item *))
{
	uint64_t sizes[TN_PY_SIZES_MAX];

	begin(items, n);
	for (size_t i = 0; i < n && !tn_py_objects_stopping(o); i++) {
		uint32_t nsizes;

		if (items[i].done)
			continue;
		nsizes = tn_py_sizes(o, items[i].model, sizes);
		for (uint32_t k = 0; k < nsizes && !tn_py_objects_stopping(o); k++) {
			struct tn_py_object_space *s = tn_py_space_get(o, &items[i], sizes[k]);

			for (size_t j = i; s && j < n; j++)
				if (items[j].model && !items[j].done && alike(&items[i], &items[j]))
					fn(o, s, &items[j]);
			if (s)
				tn_py_space_put(o, s);
		}
		for (size_t j = n; j-- > i;)
			items[j].done |= items[j].model && alike(&items[i], &items[j]);
	}
}

static void look_up(struct tn_py_objects *o, struct tn_py_object_space *s, struct tn_py_item *item)
{
	struct tn_key key;

	if (item->good)
		return;
	tn_py_object_key(s->s, item->name, &key);
	item->good = tn_py_block_there(o, s->s, &key, NULL);
}

/* Whether two names are of one rank and group: what comes before the second at sign. */
static bool one_series(const struct tn_py_item *a, const struct tn_py_item *b)
{
	const char *end = strchr(a->name, '@');

	end = end ? strchr(end + 1, '@') : NULL;
	return end && alike(a, b) && strncmp(a->name, b->name, (size_t)(end - a->name) + 1) == 0;
}

/* Keys of the first object and of those of its series that follow; they are done then. Return: how many */
static size_t series(const struct tn_space *s, struct tn_py_item *items, size_t n, struct tn_key *keys)
{
	size_t nkeys = 0;

	for (size_t i = 0; i < n; i++)
		if (items[i].model && !items[i].good && one_series(&items[0], &items[i])) {
			tn_py_object_key(s, items[i].name, &keys[nkeys++]);
			items[i].done = true;
		}
	return nkeys;
}

/* LMCache gives the objects of a rank and group in the order of the prompt: remote tiers are asked for each such series up to the first that is missing. */
static void ask_missing(struct tn_py_objects *o, struct tn_py_item *items, size_t n)
{
	uint64_t until_ns = tn_py_now_ns() + o->opts.remote_timeout_ns, sizes[TN_PY_SIZES_MAX];
	struct tn_key *keys = calloc(n, sizeof(*keys));

	for (size_t i = 0; i < n; i++)
		items[i].done = !items[i].model || items[i].good;
	for (size_t i = 0; keys && i < n && !tn_py_objects_stopping(o); i++) {
		uint32_t nsizes = items[i].done ? 0 : tn_py_sizes_ask(o, items[i].model, sizes, until_ns);

		for (uint32_t k = 0; k < nsizes; k++) {
			struct tn_py_object_space *s = tn_py_space_get(o, &items[i], sizes[k]);

			if (s) {
				tn_py_blocks_ask(o, s->s, keys, series(s->s, items + i, n - i, keys), until_ns);
				tn_py_space_put(o, s);
			}
		}
	}
	free(keys);
}

void tn_py_objects_exist(struct tn_py_objects *o, struct tn_py_item *items, size_t n)
{
	size_t missing = 0;

	each_size(o, items, n, look_up);
	for (size_t i = 0; i < n; i++)
		missing += items[i].model && !items[i].good;
	if (!missing || !o->opts.remote_timeout_ns)
		return;
	ask_missing(o, items, n);
	each_size(o, items, n, look_up);
}

static void drop(struct tn_py_objects *o, struct tn_py_object_space *s, struct tn_py_item *item)
{
	struct tn_key key;

	tn_py_object_key(s->s, item->name, &key);
	item->good |= tn_py_objects_seen(o, tn_drop(s->s, &key, 1)) == 1;
}

void tn_py_objects_drop(struct tn_py_objects *o, struct tn_py_item *items, size_t n)
{
	each_size(o, items, n, drop);
}

/* ---- open and close ------------------------------------------------------------------------------------------------------------- */

static int open_sizes(struct tn_py_objects *o)
{
	struct tn_memory_range range = {.bytes = 4096};
	struct tn_memory_desc desc;
	void *page = NULL;
	int rc;

	rc = tn_geometry_raw(1, TN_PY_SIZE_BYTES, &o->size_geometry);
	rc = rc ? rc : tn_memory_alloc(range.bytes, NULL, &page);
	if (rc)
		return rc;
	o->size_page = range.address = page;
	tn_memory_desc_init(&desc);
	desc.nranges = 1;
	desc.ranges = &range;
	rc = tn_memory_register(o->cache, &desc, &o->size_memory);
	return rc ? rc : tn_py_pool_over(o->size_memory, &o->size_geometry, 0, TN_PY_SIZE_BYTES, 1, &o->size_pool);
}

int tn_py_objects_open(struct tn_cache *cache, const struct tn_py_objects_opts *opts, struct tn_py_objects **out)
{
	struct tn_py_objects *o = calloc(1, sizeof(*o));
	int rc;

	if (!o)
		return -ENOMEM;
	o->cache = cache;
	o->opts = *opts;
	o->tenant = strdup(opts->tenant);
	o->revision = strdup(opts->revision);
	pthread_mutex_init(&o->lock, NULL);
	o->places = tn_py_places_open(cache, opts->stage_bytes);
	rc = o->tenant && o->revision && o->places ? open_sizes(o) : -ENOMEM;
	if (rc)
		tn_py_objects_close(o);
	else
		*out = o;
	return rc;
}

void tn_py_objects_stop(struct tn_py_objects *o)
{
	__atomic_store_n(&o->stopping, true, __ATOMIC_RELEASE);
}

bool tn_py_objects_gone(const struct tn_py_objects *o)
{
	return __atomic_load_n(&o->gone, __ATOMIC_ACQUIRE);
}

bool tn_py_objects_close(struct tn_py_objects *o)
{
	if (__atomic_load_n(&o->stuck, __ATOMIC_ACQUIRE))
		return false;
	tn_py_spaces_close(o);
	if (tn_py_pool_end(o->size_pool) || tn_memory_unregister(o->size_memory) || (o->places && !tn_py_places_close(o->places)))
		return false;
	tn_memory_free(o->size_page);
	pthread_mutex_destroy(&o->lock);
	free(o->tenant);
	free(o->revision);
	free(o);
	return true;
}
