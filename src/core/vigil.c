/* SPDX-License-Identifier: Apache-2.0 */
/* See vigil.h. */
#include "core/vigil.h"

void tn_vigil_ended(struct tn_vigil *v)
{
	v->ended = true;
	v->idle = v->kept = false;
}

void tn_vigil_begun(struct tn_vigil *v, uint64_t now_ns)
{
	if (v->ended)
		v->soon = !v->idle || now_ns - v->since_ns < TN_VIGIL_SOON_NS;
	v->used += v->kept;
	v->ended = v->idle = v->kept = false;
}

bool tn_vigil_keep(struct tn_vigil *v, uint64_t now_ns)
{
	if (!v->able || !v->ended)
		return false;
	if (!v->idle) {
		v->idle = true;
		v->since_ns = now_ns;
		v->kept = v->soon;
		v->vigils += v->kept;
	}
	if (v->kept && now_ns - v->since_ns >= TN_VIGIL_NS)
		v->kept = v->soon = false;
	return v->kept;
}
