/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tests of a cache on a simulated disk (sim/simcache.h) share: a small machine, its beginning and its end, and a
 * few questions to it. Whatever goes wrong here fails the test.
 */
#ifndef TN_CACHE_SIM_RIG_H
#define TN_CACHE_SIM_RIG_H

#include "simcache.h"
#include "tn_test.h"

/* One disk of 4 MiB in segments of 512 KiB, no host memory, "lru", blocks of 2 layers and 2 pages, pools of 64 pages. */
struct crig_opts sim_rig_opts(void);
/* The disk makes faults when tn_io_faulty_set tells r->io to. */
void sim_rig_faulty(struct crig_opts *o);
/* Opened, and the new segments are prepared. */
struct crig *sim_rig_up(const struct crig_opts *o);
/* Closes without an error, with the faults over. */
void sim_rig_down(struct crig *r);
/* What a flush returns; it ends within a minute. */
int sim_rig_flush(struct crig *r);
/* Whether a block of space 0 is found. */
bool sim_rig_there(struct crig *r, uint64_t id);
/* Whether it can be loaded, to the last pages of the pool; then with every byte right. */
bool sim_rig_loads(struct crig *r, uint32_t space, uint64_t id);

#endif
