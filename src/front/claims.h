/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pages of pools with one layout, and who has them. A page belongs to one load, or to any number of saves. Claims of a
 * memory live as long as it has a pool, so whoever claims a page looks at the others without a lock.
 */
#ifndef TN_FRONT_CLAIMS_H
#define TN_FRONT_CLAIMS_H

#include "core/pool.h"

int tn_claims_create(const struct tn_layout *layout, const struct tn_alloc *alloc, struct tn_claims **out);
void tn_claims_destroy(struct tn_claims *c, const struct tn_alloc *alloc);
const struct tn_layout *tn_claims_layout(const struct tn_claims *c);
/* From now on each looks at the other, if their layouts overlap. */
void tn_claims_meet(struct tn_claims *a, struct tn_claims *b);
/*
 * Claims pages[first..end) for a load, or none: 0, or -EINVAL with the index in the detail (out of range, given twice, or still part of
 * another load or of a save). Any thread.
 */
int tn_claims_load(struct tn_claims *c, const uint32_t *pages, uint64_t first, uint64_t end);
void tn_claims_loaded(struct tn_claims *c, const uint32_t *pages, uint64_t first, uint64_t end);
/* Likewise pages[0..n) for a save, which other saves may have, too. */
int tn_claims_save(struct tn_claims *c, const uint32_t *pages, uint64_t n);
void tn_claims_saved(struct tn_claims *c, const uint32_t *pages, uint64_t n);

#endif
