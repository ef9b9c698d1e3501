/* SPDX-License-Identifier: Apache-2.0 */
#include "attached.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tenuto/session.h>

#include "../cli/cli.h"

#define PATIENCE_NS 10000000000ull

int bench_attach(const char *path, struct tn_cache **cache)
{
	const struct tn_attach_opts opts = {.size = sizeof(opts), .deadline_ns = cli_now_ns() + PATIENCE_NS};
	struct stat st;

	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return tn_cache_attach_store(path, "default", &opts, cache);
	return tn_cache_attach(path, &opts, cache);
}

int bench_space_open(struct tn_cache *cache, const char *name, const struct tn_geometry *g, struct tn_space **space)
{
	struct tn_identity id;
	struct tn_shard shard;
	char model[64];

	snprintf(model, sizeof(model), "tenuto bench %s %d", name, (int)getpid());
	tn_identity_init(&id);
	tn_shard_init(&shard);
	id.model = model;
	return tn_space_open(cache, &id, &shard, g, NULL, space);
}

void bench_space_drop(struct tn_space *space)
{
	if (!space)
		return;
	if (tn_space_drop(space, cli_now_ns() + PATIENCE_NS))
		cli_error(CLI_PROBLEM, "blocks of this run stay in the owner's cache: %s", tn_error_last()->text);
	tn_space_close(space);
}

void *bench_memory(uint64_t bytes)
{
	void *memory;

	return tn_memory_alloc(bytes, NULL, &memory) ? NULL : memory;
}

void bench_memory_free(void *memory)
{
	tn_memory_free(memory);
}
