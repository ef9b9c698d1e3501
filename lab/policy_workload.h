/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random workloads for tests of policies: a seed makes a mixture of sessions, documents, loops and scans, whose sizes, orders and weights are
 * random, too. Equal ids mean equal prefixes. No attempt is made to be realistic: what a policy promises for any workload must hold here.
 */
#ifndef TN_LAB_POLICY_WORKLOAD_H
#define TN_LAB_POLICY_WORKLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tn_workload {
	char name[160]; /* what it is made of */
	uint64_t *ids; /* of all requests, one request behind the other */
	uint32_t *lengths;
	bool *partial; /* the request's last block is an unfinished tail */
	size_t requests, requests_room;
	size_t blocks, blocks_room;
	uint32_t longest;
};

/* Ends the process where there is no memory. tn_workload_free gives it back. */
void tn_workload_make(struct tn_workload *w, uint64_t seed);
void tn_workload_add(struct tn_workload *w, const uint64_t *ids, uint32_t n, bool partial);
void tn_workload_free(struct tn_workload *w);

#endif
