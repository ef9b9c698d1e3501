/* SPDX-License-Identifier: Apache-2.0 */
/* Measures look-ups in a registry of made-up blocks. */
#ifndef TN_LAB_MATCH_BENCH_H
#define TN_LAB_MATCH_BENCH_H

#include <stdint.h>

/** struct tn_match_bench - what tn_match_bench_run does
 * @entries: blocks in the registry, at least 1
 * @keys:    keys per look-up, all of them found
 * @rounds:  look-ups
 * @seed:    seed of the made-up keys
 */
struct tn_match_bench {
	uint32_t entries;
	uint32_t keys;
	uint32_t rounds;
	uint64_t seed;
};

/**
 * tn_match_bench_run - time look-ups, pins included, of random blocks among many
 * @ns_per_key:  out: one mean per round; an array of bench->rounds entries
 * @index_bytes: out: memory of the registry
 *
 * Any thread; blocks while the registry is filled (about 0.2 s per million entries).
 *
 * Return: 0, -EINVAL, -ENOMEM.
 */
int tn_match_bench_run(const struct tn_match_bench *bench, double *ns_per_key, uint64_t *index_bytes);

#endif
