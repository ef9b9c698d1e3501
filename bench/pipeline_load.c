/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The write load: a thread that saves one prompt after the other, as fast as admission takes them.
 *
 * A fixed number of saves is under way at once, as an engine's memory allows. The next save begins when the oldest has
 * ended. The bytes are made once, because contents do not matter; the keys are always new.
 */
#include "pipeline.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

/* Most saves under way (pipeline_set.saves). */
#define SAVES_MAX 16u
#define RETRY_MS 1

static int stopping(const struct pipeline_load *load)
{
	return __atomic_load_n(&load->stop, __ATOMIC_ACQUIRE);
}

/* Begins one save of save_blocks new blocks from its own pages of the pool. */
static int begin_save(struct pipeline_load *load, uint64_t number, uint32_t slot, struct tn_key *keys, uint32_t *pages,
		      struct tn_save **save)
{
	const struct pipeline_set *set = load->rig->set;
	uint32_t n = set->save_blocks, each = n * set->geometry.pages_per_block;
	int rc;

	for (uint32_t i = 0; i < each; i++)
		pages[i] = slot * each + i;
	if (rig_keys(load->rig, load->chain + number, n, keys))
		return -EINVAL;
	while ((rc = tn_save_begin(load->rig->space, load->rig->write_pool.pool, keys, n, pages, NULL, save)) == -EAGAIN) {
		if (stopping(load))
			return -ECANCELED;
		poll(NULL, 0, RETRY_MS); /* the write backlog is full */
	}
	for (uint32_t layer = 0; !rc && layer < set->geometry.layers; layer++)
		rc = tn_save_layer(*save, layer, NULL, 0);
	if (rc)
		return rc;
	__atomic_add_fetch(&load->begun, n * tn_geometry_block_bytes(&set->geometry), __ATOMIC_RELAXED);
	return tn_save_commit(*save);
}

static int end_save(struct pipeline_load *load, struct tn_save **save)
{
	struct tn_save_result r = {.size = sizeof(r)};
	int rc = tn_save_end(*save, cli_now_ns() + PIPELINE_PATIENCE_NS, &r);

	if (rc)
		return rc;
	*save = NULL;
	if (r.failed)
		return r.error;
	__atomic_add_fetch(&load->saves_done, 1, __ATOMIC_RELAXED);
	return 0;
}

static void *run(void *arg)
{
	struct pipeline_load *load = arg;
	const struct pipeline_set *set = load->rig->set;
	struct tn_save *save[SAVES_MAX] = {NULL};
	struct tn_key *keys = calloc(set->save_blocks, sizeof(*keys));
	uint32_t *pages = calloc((size_t)set->save_blocks * set->geometry.pages_per_block, sizeof(*pages));
	int rc = keys && pages ? 0 : -ENOMEM;
	uint64_t number = 0;

	while (!rc && !stopping(load)) {
		uint32_t slot = (uint32_t)(number % set->saves);

		if (save[slot])
			rc = end_save(load, &save[slot]);
		if (!rc)
			rc = begin_save(load, number++, slot, keys, pages, &save[slot]);
	}
	if (rc == -ECANCELED)
		rc = 0;
	for (uint32_t i = 0; i < set->saves; i++)
		if (save[i]) {
			int end = end_save(load, &save[i]);

			rc = rc ? rc : end;
		}
	free(keys);
	free(pages);
	__atomic_store_n(&load->error, rc, __ATOMIC_RELEASE);
	return NULL;
}

int load_start(struct pipeline_load *load, struct pipeline_rig *rig, uint64_t chain)
{
	uint64_t deadline = cli_now_ns() + PIPELINE_PATIENCE_NS;
	int rc;

	*load = (struct pipeline_load){.rig = rig, .chain = chain};
	rc = pthread_create(&load->thread, NULL, run, load);
	if (rc)
		return rig_failed(rig, "thread", -rc);
	while (!__atomic_load_n(&load->saves_done, __ATOMIC_RELAXED) && !__atomic_load_n(&load->error, __ATOMIC_ACQUIRE) &&
	       cli_now_ns() < deadline)
		poll(NULL, 0, RETRY_MS);
	return 0;
}

int load_stop(struct pipeline_load *load)
{
	__atomic_store_n(&load->stop, 1, __ATOMIC_RELEASE);
	pthread_join(load->thread, NULL);
	return load->error ? rig_failed(load->rig, "write load", load->error) : 0;
}
