/* SPDX-License-Identifier: Apache-2.0 */
/* What objects.c and object_spaces.c share (objects.h): the spaces of objects, the sizes that they have, and single operations. */
#ifndef TENUTO_PYTHON_OBJECTS_INTERNAL_H
#define TENUTO_PYTHON_OBJECTS_INTERNAL_H

#include "objects.h"

#define TN_PY_SIZES_MAX 64u
/* A block of the list of sizes: 64 bits, the rest is 0. */
#define TN_PY_SIZE_BYTES 512u

struct tn_py_object_space {
	struct tn_py_object_space *next;
	char *model, *salt;
	uint64_t bytes, used;
	uint32_t users;
	struct tn_geometry geometry;
	struct tn_space *s;
};

/* The sizes of a model's objects: those in the cache, found so far, are the first @nkept; @pin are their leases. */
struct tn_py_object_model {
	struct tn_py_object_model *next;
	char *name;
	struct tn_space *s;
	uint64_t size[TN_PY_SIZES_MAX], kept[TN_PY_SIZES_MAX], pin[TN_PY_SIZES_MAX];
	uint32_t nsizes, nkept;
	uint64_t ask_ns; /* remote tiers are not asked for sizes before */
};

struct tn_py_objects {
	struct tn_cache *cache;
	char *tenant, *revision;
	struct tn_py_objects_opts opts;
	bool stopping, gone, stuck;
	struct tn_py_places *places;
	pthread_mutex_t lock; /* spaces, models */
	struct tn_py_object_space *spaces;
	struct tn_py_object_model *models;
	uint32_t nspaces;
	uint64_t uses;
	struct tn_geometry size_geometry;
	char *size_page;
	struct tn_memory *size_memory;
	struct tn_pool *size_pool;
};

/** tn_py_now_ns - CLOCK_MONOTONIC; as binding.h has it, which is not for files without Python */
uint64_t tn_py_now_ns(void);
bool tn_py_objects_stopping(const struct tn_py_objects *o);
/** tn_py_objects_seen - what a call has returned: the owner's end is remembered */
int tn_py_objects_seen(struct tn_py_objects *o, int rc);
/** tn_py_blocks_load - Return: how many of n blocks came, from the first on; -E2BIG: ask for fewer */
int tn_py_blocks_load(struct tn_py_objects *o, struct tn_space *s, struct tn_pool *pool, const struct tn_key *keys, const uint32_t *pages, size_t n,
		      uint32_t layers);
/** tn_py_blocks_save - Return: 0 with @outcome, or a negative errno: nothing was stored */
int tn_py_blocks_save(struct tn_py_objects *o, struct tn_space *s, struct tn_pool *pool, const struct tn_key *keys, const uint32_t *pages, size_t n,
		      uint32_t layers, uint8_t *outcome);
/** tn_py_block_there - @pin: out: a lease; NULL: none is wanted */
bool tn_py_block_there(struct tn_py_objects *o, struct tn_space *s, const struct tn_key *key, uint64_t *pin);
/**
 * tn_py_blocks_ask - wait until all tiers have said which of n blocks they have, up to the first that is nowhere
 *
 * A look-up that follows knows them. What has not been said by @until_ns is not there.
 */
void tn_py_blocks_ask(struct tn_py_objects *o, struct tn_space *s, const struct tn_key *keys, size_t n, uint64_t until_ns);
void tn_py_object_key(const struct tn_space *s, const char *name, struct tn_key *key);
/** tn_py_space_get - of an object of this size; NULL if it cannot be had. Give it back with tn_py_space_put */
struct tn_py_object_space *tn_py_space_get(struct tn_py_objects *o, const struct tn_py_item *item, uint64_t bytes);
void tn_py_space_put(struct tn_py_objects *o, struct tn_py_object_space *s);
/** tn_py_sizes - of a model's objects, also those that others have added. Return: how many, TN_PY_SIZES_MAX at most */
uint32_t tn_py_sizes(struct tn_py_objects *o, const char *model, uint64_t *sizes);
/** tn_py_sizes_ask - tn_py_sizes, for which remote tiers are asked first */
uint32_t tn_py_sizes_ask(struct tn_py_objects *o, const char *model, uint64_t *sizes, uint64_t until_ns);
void tn_py_size_add(struct tn_py_objects *o, const char *model, uint64_t bytes);
/** tn_py_spaces_close - all spaces and leases */
void tn_py_spaces_close(struct tn_py_objects *o);

#endif
