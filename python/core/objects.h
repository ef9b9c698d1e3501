/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects: bytes of any size under a text, kept as blocks of a cache. No Python in here: threads without the GIL call it.
 *
 * A text is `model@rank@group@hash[@salt]`, as LMCache's storage connectors get it. An object is a block of one page: its space has the model, the salt
 * (as part of the tenant) and the size; its key is made of `rank@group@hash`. A look-up does not know the size: the sizes that a model's objects have
 * are kept in the cache, too, as small blocks of a space of their own.
 *
 * Threads: any, each function; nobody may be inside when tn_py_objects_close is called.
 */
#ifndef TENUTO_PYTHON_OBJECTS_H
#define TENUTO_PYTHON_OBJECTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include <tenuto/tenuto.h>

/**
 * struct tn_py_item - an object, and what became of it
 * @model: a copy of the text, cut where the parts end; NULL: the text was none
 * @name:  rank@group@hash, in that copy
 * @salt:  in that copy, "" if there is none
 * @data, @bytes: where it lies; of no meaning to look-ups and drops
 * @good:  out: it is there now
 * @done:  no part of the rest of the work
 */
struct tn_py_item {
	char *model;
	const char *name, *salt;
	char *data;
	uint64_t bytes;
	bool good, done;
};

/** tn_py_item_name - take a text apart. Return: 0, -ENOMEM; without a model if it is no key */
int tn_py_item_name(struct tn_py_item *item, const char *text);

/**
 * struct tn_py_objects_opts
 * @tenant, @revision: of all spaces; with a salt the tenant is `/tenant/salt`, no other tenant's
 * @load_timeout_ns:   what a load has not brought by then is a miss
 * @save_timeout_ns:   how long a save waits for its turn
 * @remote_timeout_ns: how long a look-up waits for tiers that do not answer at once; 0: nobody is asked
 * @stage_bytes:       memory for objects that lie where a pool cannot
 */
struct tn_py_objects_opts {
	const char *tenant, *revision;
	uint64_t load_timeout_ns, save_timeout_ns, remote_timeout_ns, stage_bytes;
};

struct tn_py_objects;

int tn_py_objects_open(struct tn_cache *cache, const struct tn_py_objects_opts *opts, struct tn_py_objects **out);
/** tn_py_objects_stop - waits that are under way end; every operation from now on finds nothing */
void tn_py_objects_stop(struct tn_py_objects *o);
/** tn_py_objects_gone - the cache's owner is no longer there */
bool tn_py_objects_gone(const struct tn_py_objects *o);
/** tn_py_objects_close - Return: whether all was given back; if not, the cache must stay open */
bool tn_py_objects_close(struct tn_py_objects *o);

void tn_py_objects_exist(struct tn_py_objects *o, struct tn_py_item *items, size_t n);
void tn_py_objects_load(struct tn_py_objects *o, struct tn_py_item *items, size_t n);
/** tn_py_objects_save - Return: 0, or why the first that was not stored was not */
int tn_py_objects_save(struct tn_py_objects *o, struct tn_py_item *items, size_t n);
void tn_py_objects_drop(struct tn_py_objects *o, struct tn_py_item *items, size_t n);

/* places.c: pools over the memory that objects lie in, which is registered mapping by mapping */

struct tn_py_places;

/** struct tn_py_place - @pool: NULL: none can be made there */
struct tn_py_place {
	struct tn_pool *pool;
	uint32_t page;
};

struct tn_py_places *tn_py_places_open(struct tn_cache *cache, uint64_t stage_bytes);
/** tn_py_places_close - Return: whether all was given back */
bool tn_py_places_close(struct tn_py_places *p);
/** tn_py_place - where an object lies; pools hold until tn_py_places_close */
struct tn_py_place tn_py_place(struct tn_py_places *p, const struct tn_geometry *g, const void *data);
/**
 * tn_py_stage - memory of ours for objects that lie in no pool, for one thread at a time; give it back with tn_py_unstage
 * @bytes: out: of all pages
 *
 * Return: a pool and its memory, or NULL
 */
struct tn_pool *tn_py_stage(struct tn_py_places *p, const struct tn_geometry *g, char **memory, uint64_t *bytes);
void tn_py_unstage(struct tn_py_places *p);

/** tn_py_raw - the geometry of an object: as few layers as there can be. Return: 0; -EOVERFLOW: there can be no such object */
int tn_py_raw(uint64_t bytes, struct tn_geometry *g);
/** tn_py_pool_over - a pool of raw pages in a memory from @first on, @stride apart. Return: 0 or a negative errno */
int tn_py_pool_over(struct tn_memory *m, const struct tn_geometry *g, uint64_t first, uint64_t stride, uint64_t npages, struct tn_pool **out);
/**
 * tn_py_pool_end - tn_pool_destroy, again and again for a while
 *
 * The owner may be on its way out of an operation that this side has ended, or does not answer. Return: as tn_pool_destroy.
 */
int tn_py_pool_end(struct tn_pool *pool);

#endif
