/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Public structs that may grow, so that a program runs with a library of another version than its headers.
 *
 * Each begins with `size_t size`, the sizeof of the caller's build. A later version appends members and changes nothing else:
 * no member moves, none goes, and none takes the padding behind the last one. What both builds know is copied. A struct that lies
 * inside another one, or in an array, cannot grow.
 *
 * Linux does the same for its system calls (copy_struct_from_user).
 */
#ifndef TN_BASE_ABI_H
#define TN_BASE_ABI_H

#include <stddef.h>

/* One such struct, as this library knows it. */
struct tn_abi {
	const char *name;
	size_t size;
	size_t least; /* of its first version */
	const char *hint;
};

/* sizeof of the struct when its last member was `last`. */
#define TN_ABI_SIZE(type, last)                                                                                     \
	((offsetof(type, last) + sizeof(((type *)0)->last) + _Alignof(type) - 1) / _Alignof(type) * _Alignof(type))

/*
 * Of struct type, which callers pass, and whose first version ended with the member first_last. Below: the same for a
 * result.
 */
#define TN_ABI(type, first_last)                                                                                    \
	(&(const struct tn_abi){#type, sizeof(struct type), TN_ABI_SIZE(struct type, first_last), "begin with " #type "_init"})
#define TN_ABI_RESULT(type, first_last)                                                                             \
	(&(const struct tn_abi){#type, sizeof(struct type), TN_ABI_SIZE(struct type, first_last), "set size to its sizeof"})

/*
 * An init function's work: *theirs gets its size, the defaults of the members that it has, and zeros behind them. A size that
 * is too small for the first version shows when the struct is used.
 */
void tn_abi_init(void *theirs, size_t theirs_size, const void *defaults, size_t size);

/*
 * What a caller passes: *ours has the defaults, and gets the members that *theirs has. What *theirs has beyond ours must be zero: the
 * library does not know what else it would mean.
 *
 * 0, or -EINVAL with the name and both sizes in the detail.
 */
int tn_abi_in(const struct tn_abi *abi, void *ours, const void *theirs);

/* Whether a result of the size that *theirs says can be returned: 0, or -EINVAL as above. */
int tn_abi_check(const struct tn_abi *abi, const void *theirs);

/* Returns a result: *theirs, which tn_abi_check has passed, keeps its size, and gets zeros beyond ours. */
void tn_abi_out(const struct tn_abi *abi, void *theirs, const void *ours);

#endif
