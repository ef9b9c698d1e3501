/* SPDX-License-Identifier: Apache-2.0 */
#include "cache_sim_rig.h"

#include <errno.h>

#include "ioengine/ioengine.h"

#define BLOCK_PAGES_MAX 8u

static struct tn_io *wrap(struct tn_io *disk, const struct tn_clock *clock, uint64_t seed)
{
	struct tn_io_faulty_opts o = {.seed = seed, .clock = clock};
	struct tn_io *io;

	assert_int_equal(tn_io_faulty_create(disk, &o, &io), 0);
	return io;
}

static void calm(struct tn_io *wrapper)
{
	tn_io_faulty_set(wrapper, NULL, 0);
	tn_io_faulty_release(wrapper);
}

struct crig_opts sim_rig_opts(void)
{
	return (struct crig_opts){
		.seed = tn_test_seed(),
		.ndirs = 1,
		.segment_bytes = 512u << 10,
		.disk_bytes = 4u << 20,
		.policy = "lru",
		.io_depth = 16,
		.max_ops = 12,
		.layers = 2,
		.pages_per_block = 2,
		.head_dim = 128,
		.npages = 64,
	};
}

void sim_rig_faulty(struct crig_opts *o)
{
	o->wrap = wrap;
	o->calm = calm;
}

struct crig *sim_rig_up(const struct crig_opts *o)
{
	struct crig *r = crig_create(o);

	assert_true(crig_open(r));
	crig_run(r, 5 * CRIG_SECOND);
	return r;
}

void sim_rig_down(struct crig *r)
{
	if (r->o.calm)
		r->o.calm(r->io);
	if (!crig_close(r) || r->error[0])
		fail_msg("%s", r->error);
	crig_destroy(r);
}

int sim_rig_flush(struct crig *r)
{
	struct tn_flush_waiter *w = tn_flush_begin(r->cache);
	uint64_t end = crig_now(r) + 60 * CRIG_SECOND;
	int rc;

	while ((rc = tn_flush_poll(w)) == -EAGAIN && crig_now(r) < end)
		crig_turn(r, CRIG_MS);
	assert_int_not_equal(rc, -EAGAIN);
	return rc;
}

bool sim_rig_there(struct crig *r, uint64_t id)
{
	struct tn_key key = crig_key(id);
	struct tn_match m = {.size = sizeof(m)};
	int rc = tn_match(r->space[0], &key, 1, NULL, &m, 0);

	assert_true(rc >= 0);
	return rc == 1;
}

bool sim_rig_loads(struct crig *r, uint32_t space, uint64_t id)
{
	uint32_t pages[BLOCK_PAGES_MAX], n = r->g.pages_per_block;
	struct tn_key key = crig_key(id);
	struct tn_load *load;
	int good;

	assert_true(n <= BLOCK_PAGES_MAX);
	for (uint32_t k = 0; k < n; k++)
		pages[k] = r->o.npages - n + k;
	assert_int_equal(tn_load_begin(r->space[space], r->pool[space], &key, 1, pages, NULL, &load), 0);
	while ((good = tn_load_poll(load, r->g.layers - 1)) == -EAGAIN)
		crig_turn(r, CRIG_MS);
	for (uint32_t l = 0; l < r->g.layers && good == 1; l++)
		for (uint32_t k = 0; k < n; k++)
			assert_true(crig_check(r, space, id, l, k, pages[k]));
	while (tn_load_end(load, 0, NULL) == -EBUSY)
		crig_turn(r, CRIG_MS);
	return good == 1;
}
