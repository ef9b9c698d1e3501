/* SPDX-License-Identifier: Apache-2.0 */
/* Look-ups of any number of keys: of more than one call takes (tn_space_op_blocks) in parts, which read as one. No Python in here. */
#ifndef TENUTO_PYTHON_LOOKUP_H
#define TENUTO_PYTHON_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

#include <tenuto/tenuto.h>

/** struct tn_py_leases - leases beyond the first one; of malloc */
struct tn_py_leases {
	uint64_t *pin;
	size_t n;
};

/**
 * struct tn_py_lookup
 * @cache, @spaces, @nspaces: of one cache
 * @windows: of each space: how many blocks its rule wants at the end of a prefix; 0: all (TN_MATCH_PREFIX)
 * @most:    keys of one call
 * @pin:     take leases
 * @tiers:   of one space: n bytes, zero; or NULL
 * @match:   out: of all parts; pin: of the first that has a lease
 * @firsts:  out: by space
 * @leases:  out: of the other parts; end all with tn_py_unpin
 */
struct tn_py_lookup {
	struct tn_cache *cache;
	struct tn_space *spaces[TN_MATCH_SPACES_MAX];
	uint32_t windows[TN_MATCH_SPACES_MAX];
	uint32_t nspaces;
	const struct tn_key *keys;
	size_t n, most;
	bool pin;
	uint8_t *tiers;
	struct tn_match match;
	uint32_t firsts[TN_MATCH_SPACES_MAX];
	struct tn_py_leases leases;
};

/** tn_py_look_up - Return: matched blocks; or a negative errno, and there is no lease */
int tn_py_look_up(struct tn_py_lookup *l);
/** tn_py_match_add_part - what was found of a further part. Return: 0; -ENOMEM: without its lease, which is the caller's */
int tn_py_match_add_part(struct tn_match *match, struct tn_py_leases *leases, const struct tn_match *part);
/** tn_py_unpin - end all leases of a match, and forget them. Return: 0 or the first error */
int tn_py_unpin(struct tn_cache *cache, struct tn_match *match, struct tn_py_leases *leases);

#endif
