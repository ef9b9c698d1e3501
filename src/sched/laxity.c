/* SPDX-License-Identifier: Apache-2.0 */
/* The layers' needs against the time that reading up to each of them takes. */
#include "sched/laxity.h"

#define FAR_NS (INT64_C(1) << 60) /* longer times count as this one, and sums of a few do not overflow */
#define LATE_SHARE 4		  /* reads may take so much of their time longer, and a layer comes so much of it early */

static int64_t bounded(double ns)
{
	return ns < (double)FAR_NS ? (int64_t)ns : FAR_NS;
}

static int64_t until(uint64_t then, uint64_t now)
{
	if (then >= now)
		return then - now < (uint64_t)FAR_NS ? (int64_t)(then - now) : FAR_NS;
	return now - then < (uint64_t)FAR_NS ? -(int64_t)(now - then) : -FAR_NS;
}

/*
 * The engine may be faster than its table says, and then it is for the rest of this load: the shortest time that the
 * layers were seen to take, as a part of the table's. The load keeps it, so that a load whose slack was overestimated
 * once gives no more.
 */
static void look_at_pace(struct tn_sched_load *load)
{
	struct tn_sched_laxity *k = &load->laxity;
	double table, took;

	if (load->at_ns && k->seen_ns && load->at_layer > k->seen_layer) {
		table = (double)(load->before_ns[load->at_layer] - load->before_ns[k->seen_layer]);
		took = load->at_ns > k->seen_ns ? (double)(load->at_ns - k->seen_ns) : 0;
		if (took < (1 - k->faster) * table) {
			k->faster = 1 - took / table;
			k->known = false;
		}
	}
	k->seen_layer = load->at_layer;
	k->seen_ns = load->at_ns;
}

/* Compute of the layers before this one. */
static int64_t computed_ns(const struct tn_sched_load *load, uint32_t layer)
{
	return bounded((1 - load->laxity.faster) * (double)load->before_ns[layer]);
}

/*
 * The least over all layers from next_layer on: compute of the layers before the layer, less reading up to the layer
 * and those that are read with it. Not above FAR_NS.
 */
static int64_t least(struct tn_sched_load *load, int64_t layer_ns)
{
	struct tn_sched_laxity *k = &load->laxity;
	uint32_t together = load->together ? load->together : 1;

	if (k->layer_ns == layer_ns && k->next_layer == load->next_layer && k->known)
		return k->least_ns;
	k->known = true;
	k->next_layer = load->next_layer;
	k->layer_ns = layer_ns;
	k->least_ns = FAR_NS;
	for (uint32_t l = load->next_layer; l < load->layers; l++) {
		uint32_t read = ((l - load->next_layer) / together + 1) * together;
		int64_t one = computed_ns(load, l) - bounded((double)layer_ns * read);

		if (one < k->least_ns)
			k->least_ns = one;
	}
	return k->least_ns;
}

static uint64_t layer_window(const struct tn_sched_load *load, uint32_t layer)
{
	if (layer + 1 < load->layers)
		return load->before_ns[layer + 1] - load->before_ns[layer];
	return layer ? load->before_ns[layer] - load->before_ns[layer - 1] : 0;
}

int64_t tn_laxity(struct tn_sched_load *load, uint64_t read_bps, uint64_t now_ns, int64_t *read_ns)
{
	uint64_t since = load->at_ns ? load->at_ns : load->start_ns;
	int64_t layer_ns, laxity, whole;
	uint32_t next = load->next_layer;

	if (!load->before_ns || !load->layer_bytes || !read_bps || next >= load->layers)
		return TN_LAXITY_NONE;
	if (next <= load->at_layer && (load->at_ns || load->start_ns <= now_ns))
		return TN_LAXITY_NONE;
	look_at_pace(load);
	layer_ns = bounded((double)load->layer_bytes * 1e9 / (double)read_bps * (LATE_SHARE + 1) / LATE_SHARE);
	*read_ns = bounded((double)layer_ns * (load->layers - next));
	laxity = until(since, now_ns) - computed_ns(load, load->at_layer) + least(load, layer_ns) -
		 bounded((double)layer_window(load, next) / LATE_SHARE);
	if (load->deadline_ns) {
		whole = until(load->deadline_ns, now_ns) - *read_ns;
		laxity = whole < laxity ? whole : laxity;
	}
	return laxity;
}
